/* fp.h - the float environment: the same rounding, and denormals, on every thread that computes or chooses tokens.
 *
 * A program that loads a library made with -ffast-math has threads that flush denormals; a token must not depend on which
 * thread chose it (law 1). */
#ifndef HD_BASE_FP_H
#define HD_BASE_FP_H

#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef uint64_t hd_fp;

/* Round to nearest, no flushing, all exceptions masked on this thread; what it had before is returned, for hd_fp_leave. */
static inline hd_fp hd_fp_enter(void) {
    hd_fp old = 0;
#if defined(__x86_64__)
    old = _mm_getcsr();
    _mm_setcsr(0x1f80);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" ::"r"(UINT64_C(0)));
#endif
    return old;
}
static inline void hd_fp_leave(hd_fp old) {
#if defined(__x86_64__)
    _mm_setcsr((unsigned)old);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(old));
#else
    (void)old;
#endif
}

#endif
