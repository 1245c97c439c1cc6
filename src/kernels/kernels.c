/* kernels.c - which kernels this CPU gets. */
#include "kernels/attn_int.h"
#include "kernels/mm_layout.h"
#include "kernels/vec_int.h"

#include <stdio.h>
#include <string.h>

#if HD_HAVE_AVX2
#include <cpuid.h>
#elif HD_HAVE_NEON
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static bool always(void) { return true; }
static const kernels k_generic = {.name = "generic", .mm = &mm_generic, .attn = &attn_generic, .vec = &vec_generic};

#if HD_HAVE_AVX2
static const kernels k_avx2 = {.name = "avx2", .mm = &mm_avx2, .attn = &attn_avx2, .vec = &vec_avx2};
static const kernels k_avxvnni = {.name = "avxvnni", .mm = &mm_avxvnni, .attn = &attn_avx2, .vec = &vec_avx2};
static const kernels k_avx512 = {.name = "avx512", .mm = &mm_avx512, .attn = &attn_avx512, .vec = &vec_avx2};

/* AVX2, FMA and F16C: always together in silicon, but a hypervisor can hide each.  cpu_supports also asks whether the
 * system saves the wide registers; clang 14 does not know the name "f16c", so that bit is read by hand. */
static bool has_avx2(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

#if defined(HD_EMULATED) /* these sets are compiled without their instructions, for tests */
#define has_avxvnni has_avx2
#define has_avx512  has_avx2
#else
static bool has_avxvnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif
#endif

#if HD_HAVE_NEON
static const kernels k_neon = {.name = "neon", .mm = &mm_neon, .attn = &attn_neon, .vec = &vec_neon};
static const kernels k_dotprod = {.name = "dotprod", .mm = &mm_dotprod, .attn = &attn_neon, .vec = &vec_neon};
static const kernels k_i8mm = {.name = "i8mm", .mm = &mm_i8mm, .attn = &attn_neon, .vec = &vec_neon};

static bool has_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
static bool has_i8mm(void) { return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM); }
#endif

/* The best first. */
static const struct {
    const kernels *k;
    bool (*here)(void);
} sets[] = {
#if HD_HAVE_AVX2
    {&k_avx512, has_avx512},
    {&k_avxvnni, has_avxvnni},
    {&k_avx2, has_avx2},
#elif HD_HAVE_NEON
    {&k_i8mm, has_i8mm},
    {&k_dotprod, has_dotprod},
    {&k_neon, always},
#endif
    {&k_generic, always},
};
enum { N_SETS = sizeof sets / sizeof *sets };

const kernels *kernels_get(const char *name) {
    for (size_t i = 0; i < N_SETS; i++)
        if ((!name || !strcmp(name, sets[i].k->name)) && sets[i].here()) return sets[i].k;
    return NULL;
}

const char *kernels_built(size_t i) { return i < N_SETS ? sets[i].k->name : NULL; }

void kernels_list(char dst[KERNELS_LIST_MAX], bool here) {
    size_t n = 0;
    dst[0] = 0;
    for (size_t i = 0; i < N_SETS && n < KERNELS_LIST_MAX; i++)
        if (!here || sets[i].here()) n += (size_t)snprintf(dst + n, KERNELS_LIST_MAX - n, "%s%s", n ? ", " : "", sets[i].k->name);
}

const char *kernels_name(const kernels *k) { return k->name; }
