/* unroll.h - functions of constants that compilers turn into straight code. */
#ifndef HD_KERNELS_AVX2_UNROLL_H
#define HD_KERNELS_AVX2_UNROLL_H

/* Sanitizers make unrolled vector code take minutes to compile: there the tiles are ordinary functions of variables. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TILE_PLAIN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TILE_PLAIN 1
#endif
#endif

#if defined(TILE_PLAIN)
#define TILE_INLINE static inline
#define UNROLL
#elif defined(__clang__)
#define TILE_INLINE static inline __attribute__((always_inline))
#define UNROLL      _Pragma("clang loop unroll(full)")
#else
#define TILE_INLINE static inline __attribute__((always_inline))
#define UNROLL      _Pragma("GCC unroll 16")
#endif

#endif
