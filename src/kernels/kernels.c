/* kernels.c - which kernels this CPU gets. */
#include "kernels/attn_int.h"
#include "kernels/mm_layout.h"
#include "kernels/vec_int.h"

#include <string.h>

#if HD_HAVE_AVX2
#include <cpuid.h>
#endif

static const kernels k_generic = {.name = "generic", .mm = &mm_generic, .attn = &attn_generic, .vec = &vec_generic};

#if HD_HAVE_AVX2
static const kernels k_avx2 = {.name = "avx2", .mm = &mm_avx2, .attn = &attn_avx2, .vec = &vec_avx2};

/* AVX2, FMA and F16C: always together in silicon, but a hypervisor can hide each.  cpu_supports also asks whether the
 * system saves the wide registers; clang 14 does not know the name "f16c", so that bit is read by hand. */
static bool has_avx2(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const kernels *kernels_get(const char *name) {
#if HD_HAVE_AVX2
    if ((!name || !strcmp(name, "avx2")) && has_avx2()) return &k_avx2;
#endif
    if (!name || !strcmp(name, "generic")) return &k_generic;
    return NULL;
}

const char *kernels_name(const kernels *k) { return k->name; }
