/* avx512.h - the intrinsics of kernels/avx512 and kernels/avxvnni by SIMDe, for machines that have not got them.
 *
 * Included before anything else in those files when HEDDLE_EMULATE is set (cmake/kernels.cmake).  What they use beyond
 * AVX2 means SIMDe's function of the same name from here on; AVX-VNNI's 256-bit forms mean their EVEX twins, which do
 * the same.  libsimde-dev 0.7.4 lacks the functions below. */
#ifndef HD_TESTS_EMULATE_AVX512_H
#define HD_TESTS_EMULATE_AVX512_H

#include <immintrin.h>

#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>

static inline simde__m512 emulate_cvtepi32_ps(simde__m512i v) {
    simde__m512i_private x = simde__m512i_to_private(v);
    simde__m512_private y;
    for (int i = 0; i < 2; i++) y.m256[i] = _mm256_cvtepi32_ps(x.m256i[i]);
    return simde__m512_from_private(y);
}

static inline simde__m512 emulate_cvtph_ps(__m256i v) {
    simde__m512_private y;
    y.m256[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    y.m256[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
    return simde__m512_from_private(y);
}
static inline simde__m512i emulate_cvtepu16_epi32(__m256i v) {
    simde__m512i_private y;
    y.m256i[0] = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(v));
    y.m256i[1] = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1));
    return simde__m512i_from_private(y);
}
static inline simde__m512i emulate_cvtepi8_epi32(__m128i v) {
    simde__m512i_private y;
    y.m256i[0] = _mm256_cvtepi8_epi32(v);
    y.m256i[1] = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v));
    return simde__m512i_from_private(y);
}
static inline simde__m512i emulate_srai_epi32(simde__m512i v, unsigned n) {
    simde__m512i_private x = simde__m512i_to_private(v);
    for (int i = 0; i < 2; i++) x.m256i[i] = _mm256_srai_epi32(x.m256i[i], (int)n);
    return simde__m512i_from_private(x);
}
static inline simde__m512i emulate_cvtepi8_epi16(__m256i v) {
    simde__m512i_private y;
    y.m256i[0] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v));
    y.m256i[1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1));
    return simde__m512i_from_private(y);
}
static inline simde__m512i emulate_cvtepu8_epi16(__m256i v) {
    simde__m512i_private y;
    y.m256i[0] = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(v));
    y.m256i[1] = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(v, 1));
    return simde__m512i_from_private(y);
}
static inline simde__m512i emulate_join(simde__m512i v, __m256i high) {
    simde__m512i_private x = simde__m512i_to_private(v);
    x.m256i[1] = high;
    return simde__m512i_from_private(x);
}
static inline simde__m512i emulate_low(__m256i low) {
    simde__m512i_private x;
    x.m256i[0] = low;
    x.m256i[1] = _mm256_setzero_si256();
    return simde__m512i_from_private(x);
}
static inline simde__m512i emulate_srli_epi16(simde__m512i v, unsigned n) {
    simde__m512i_private x = simde__m512i_to_private(v);
    for (int i = 0; i < 2; i++) x.m256i[i] = _mm256_srli_epi16(x.m256i[i], (int)n);
    return simde__m512i_from_private(x);
}
static inline simde__m512i emulate_srli_8_bytes(simde__m512i v) {
    simde__m512i_private x = simde__m512i_to_private(v);
    for (int i = 0; i < 2; i++) x.m256i[i] = _mm256_srli_si256(x.m256i[i], 8);
    return simde__m512i_from_private(x);
}

static inline __m256 emulate_extractf32x8_ps(simde__m512 v, int i) { return simde__m512_to_private(v).m256[i]; }

/* Without this the unrolled tiles take minutes to compile. */
#define TILE_PLAIN 1

#undef _mm256_dpbusd_epi32
#undef _mm256_dpwssd_epi32
#define __m512                  simde__m512
#define __m512i                 simde__m512i
#define __mmask16               simde__mmask16
#define _mm512_add_epi32        simde_mm512_add_epi32
#define _mm512_add_ps           simde_mm512_add_ps
#define _mm512_and_si512        simde_mm512_and_si512
#define _mm512_andnot_si512     simde_mm512_andnot_si512
#define _mm512_broadcast_i32x4  simde_mm512_broadcast_i32x4
#define _mm512_broadcastss_ps   simde_mm512_broadcastss_ps
#define _mm512_bsrli_epi128(v, n) emulate_srli_8_bytes(v) /* all that is asked for */
#define _mm512_castps512_ps256  simde_mm512_castps512_ps256
#define _mm512_castps_si512     simde_mm512_castps_si512
#define _mm512_castsi256_si512  emulate_low
#define _mm512_castsi512_ps     simde_mm512_castsi512_ps
#define _mm512_cmp_ps_mask      simde_mm512_cmp_ps_mask
#define _mm512_cvtepi32_ps      emulate_cvtepi32_ps
#define _mm512_cvtepi8_epi16    emulate_cvtepi8_epi16
#define _mm512_cvtepi8_epi32    emulate_cvtepi8_epi32
#define _mm512_cvtepu16_epi32   emulate_cvtepu16_epi32
#define _mm512_cvtepu8_epi16    emulate_cvtepu8_epi16
#define _mm512_cvtph_ps         emulate_cvtph_ps
#define _mm512_dpbusd_epi32     simde_mm512_dpbusd_epi32
#define _mm512_dpwssd_epi32     simde_mm512_dpwssd_epi32
#define _mm512_extractf32x8_ps  emulate_extractf32x8_ps
#define _mm512_fmadd_ps         simde_mm512_fmadd_ps
#define _mm512_fnmadd_ps        simde_mm512_fnmadd_ps
#define _mm512_inserti64x4(v, high, n) emulate_join(v, high) /* n is 1 */
#define _mm512_loadu_ps         simde_mm512_loadu_ps
#define _mm512_loadu_si512      simde_mm512_loadu_si512
#define _mm512_mask_mov_ps      simde_mm512_mask_mov_ps
#define _mm512_maskz_mul_ps     simde_mm512_maskz_mul_ps
#define _mm512_max_ps           simde_mm512_max_ps
#define _mm512_mul_ps           simde_mm512_mul_ps
#define _mm512_mullo_epi32      simde_mm512_mullo_epi32
#define _mm512_or_si512         simde_mm512_or_si512
#define _mm512_set1_epi32       simde_mm512_set1_epi32
#define _mm512_set1_epi8        simde_mm512_set1_epi8
#define _mm512_set1_ps          simde_mm512_set1_ps
#define _mm512_setzero_ps       simde_mm512_setzero_ps
#define _mm512_setzero_si512    simde_mm512_setzero_si512
#define _mm512_shuffle_epi8     simde_mm512_shuffle_epi8
#define _mm512_slli_epi32       simde_mm512_slli_epi32
#define _mm512_srai_epi32       emulate_srai_epi32
#define _mm512_srli_epi16       emulate_srli_epi16
#define _mm512_storeu_ps        simde_mm512_storeu_ps
#define _mm512_storeu_si512     simde_mm512_storeu_si512
#define _mm512_sub_ps           simde_mm512_sub_ps
#define _mm512_unpackhi_epi16   simde_mm512_unpackhi_epi16
#define _mm512_unpacklo_epi16   simde_mm512_unpacklo_epi16
#define _mm256_dpbusd_epi32     simde_mm256_dpbusd_epi32
#define _mm256_dpwssd_epi32     simde_mm256_dpwssd_epi32
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32
#define _mm256_dpwssd_avx_epi32 simde_mm256_dpwssd_epi32

#endif
