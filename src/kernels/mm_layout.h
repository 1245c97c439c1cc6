/* mm_layout.h - packed weights and activation records of the matrix products, as bytes.
 *
 * Rows go in groups of 8.  A group is a run of units in rising k; a unit is 8 rows x `unit` columns and holds its own
 * scales, so one group is one sequential stream.  Rows are padded to 8, columns to the unit, with scale 0.
 *
 *   type          unit  bytes  content (r = row 0..7)
 *   F32 F16 BF16     8    ..   [k][r]
 *   Q4_0            64   288   d f16[2][r]               2 x nibbles
 *   Q4_1            64   320   d f16[2][r], m f16[2][r]  2 x nibbles
 *   Q5_0            64   352   d f16[2][r]               2 x fives
 *   Q5_1            64   384   d f16[2][r], m f16[2][r]  2 x fives
 *   Q8_0            64   544   d f16[2][r]               2 x octets
 *   IQ4_NL          64   288   d f16[2][r]               2 x nibbles
 *   Q4_K           256  1184   d f16[r], dmin f16[r], scales u8[64], mins u8[64]   8 x nibbles
 *   Q5_K           256  1440   d f16[r], dmin f16[r], scales u8[64], mins u8[64]   8 x fives
 *   Q6_K           256  1680   d f16[r], scales i8[128]                            8 x sixes
 *   Q2_K           256   672   d f16[r], dmin f16[r], scale | min << 4 u8[128]     8 x twos
 *   Q3_K           256   912   d f16[r], scales i8[128]                            8 x threes
 *   IQ4_XS         256  1104   d f16[r], scales i8[8][r] (already less 32)         8 x nibbles
 *
 * Per 32 columns (k = 0..31 inside them), made so that one 256-bit vector is 8 rows x 4 consecutive k and is multiplied
 * by one broadcast 32-bit word of four int8 activations:
 *   nibbles  128 B  byte 32j+4r+i: low = q[r][4j+i], high = q[r][16+4j+i]                     (j, i in 0..3)
 *   octets   256 B  byte 32j+4r+i = q[r][4j+i] + 128, which makes them unsigned                (j in 0..7)
 *   twos      64 B  byte 32h+4r+i, bits 2j..2j+1 = q[r][16h+4j+i]                              (h in 0..1)
 * The odd widths keep whole values in the low bits, where one AND gets them, and cut the rest of the values over the
 * high bits.  With w(j) the byte q[r][4j+i], byte 32b+4r+i is
 *   threes    96 B  b=0: w0 | w1 << 3 | w6.01 << 6      b=1: w2 | w3 << 3 | w6.2 << 6 | w7.2 << 7
 *                   b=2: w4 | w5 << 3 | w7.01 << 6
 *   fives    160 B  b=0: w0 | w5.012 << 5    b=1: w1 | w7.3 << 5 | w5.34 << 6    b=2: w2 | w6.012 << 5
 *                   b=3: w3 | w7.4 << 5 | w6.34 << 6    b=4: w4 | w7.012 << 5
 *   sixes    192 B  two halves of 96 B for 16 k each, in a half  b=0..2: wb | w3.(2b, 2b+1) << 6
 * Scales of a 256-unit, 16 B for each pair (2p, 2p+1): [r0-3 of 2p][r0-3 of 2p+1][r4-7 of 2p][r4-7 of 2p+1], where the
 * pair is two sub-blocks of 32 (Q4_K, Q5_K) or of 16 columns.  Mins of Q4_K and Q5_K: r0 (2p, 2p+1), r1 (2p, 2p+1)...
 * As measured, the 2.8 % that whole bytes for 6-bit scales cost in Q4_K are cheaper than unpacking them.
 *
 * Activations of m tokens: panels of 4 tokens (the last one 1..3), in a panel [block][token] records; ACT_F32 is
 * [k][token].
 *
 * Definition of a product, y from +0, blocks in rising k, every int sum exact in 32 bits, every fma rounded once:
 *   32-blocks, int8:   y = fma(f32(sum (q - off) a), d * s, y)   off: Q4_0 8, Q5_0 16, Q8_0 128, others 0
 *                      (Q8_0: a of the column that stands out has 15 bits, act_i8_32)
 *                      (IQ4: q = table[nibble]; IQ4_XS: d = d * scale)
 *                      Q4_1, Q5_1 then: y = fma(m, ssum, y)
 *   256-blocks, int8:  y = fma(f32(sum_j scale_j sum (q - off) a), d * s, y)      off: Q6_K 32, Q3_K 4, others 0
 *                      with mins then: y = fma(-f32(sum_j min_j sum a), dmin * s, y)
 *   F32 F16 BF16:      y = fma(w, a, y) for each k */
#ifndef HD_KERNELS_MM_LAYOUT_H
#define HD_KERNELS_MM_LAYOUT_H

#include "kernels/kernels_int.h"

#include <string.h>

enum {
    MM_ROWS = 8,
    MM_PANEL = 4,
    MM_SCRATCH_BYTES = 32 * 1024, /* avx2: 16 rows of 256 to 512 columns unpacked, and 128 tokens of their sums */
};

/* Columns and bytes of a unit; false for a type without a layout. */
static inline bool mm_unit(tensor_type type, uint32_t *cols, uint32_t *bytes) {
    switch ((int)type) {
    case TENSOR_F32: return *cols = 8, *bytes = 256, true;
    case TENSOR_F16:
    case TENSOR_BF16: return *cols = 8, *bytes = 128, true;
    case TENSOR_Q4_0:
    case TENSOR_IQ4_NL: return *cols = 64, *bytes = 288, true;
    case TENSOR_Q4_1: return *cols = 64, *bytes = 320, true;
    case TENSOR_Q5_0: return *cols = 64, *bytes = 352, true;
    case TENSOR_Q5_1: return *cols = 64, *bytes = 384, true;
    case TENSOR_Q8_0: return *cols = 64, *bytes = 544, true;
    case TENSOR_Q2_K: return *cols = 256, *bytes = 672, true;
    case TENSOR_Q3_K: return *cols = 256, *bytes = 912, true;
    case TENSOR_Q4_K: return *cols = 256, *bytes = 1184, true;
    case TENSOR_Q5_K: return *cols = 256, *bytes = 1440, true;
    case TENSOR_Q6_K: return *cols = 256, *bytes = 1680, true;
    case TENSOR_IQ4_XS: return *cols = 256, *bytes = 1104, true;
    default: return *cols = *bytes = 0, false;
    }
}

static inline uint32_t mm_units(tensor_type type, uint32_t n_cols) {
    uint32_t cols, bytes;
    mm_unit(type, &cols, &bytes);
    return n_cols / cols + (n_cols % cols != 0);
}

static inline size_t mm_group_bytes(tensor_type type, uint32_t n_cols) {
    uint32_t cols, bytes;
    mm_unit(type, &cols, &bytes);
    return (size_t)mm_units(type, n_cols) * bytes;
}

/* The scale of a record is amax / 127.  A block whose values are all below MM_TINY counts as zeros, so that
 * the reciprocal stays finite; a block with a NaN or an infinity has scale NaN and zeros, which makes every output of
 * that token NaN and no other. */
#define MM_TINY 1e-30f

/* One large value makes the step of its whole block coarse, and the states of a model have a few columns far above the rest,
 * always the same ones: in 8 bits they would be most of the error (docs/performance.md).  So ACT_I8_32_TOP keeps a block's largest
 * value, the first if there are several, apart if it is more than twice the second: the second is 127 steps then, unless
 * the largest would be more than MM_TOP.  With Q the rounded largest, top is (Q + 64) >> 7 in one byte of a word, and q has
 * the rest, Q - 128 top. */
enum { MM_TOP = 127 * 128 };
typedef struct {
    int8_t q[32]; /* -127..127 */
    union {
        int16_t init[2]; /* ACT_I8_32: -8 * int16 lane sums, over k%4 in {0,1} and {2,3}; twice that is the offset 16 */
        int8_t top[4];   /* ACT_I8_32_TOP: the value of column at / 8 + i is q + 128 * top[i]; three or all are 0 */
    };
    int32_t minus8; /* -8 * sum of the values; 16 times that is the offset 128 */
    float scale;
    union {
        float ssum;  /* ACT_I8_32: scale * f32(sum q) */
        uint32_t at; /* ACT_I8_32_TOP: where the weights of top begin in 256 bytes of octets; 0 if there is none */
    };
} act_i8_32;

typedef struct {
    int8_t q[256];
    float scale;
    int32_t pad[3];
    int16_t sum32[8];    /* over each 32 */
    int16_t sum16[16];   /* over each 16 */
    int16_t init[16][2]; /* -32 * lane sums over each 16: at most 8 * 127 * 32 = 32512 */
    int32_t minus32[16]; /* -32 * sum over each 16 */
} act_i8_256;

/* ACT_I16_32 and ACT_I16_TOP: the values and scale of ACT_I8_32 and ACT_I8_32_TOP for a set that multiplies words.  Each four
 * columns stand as 0, 2, 1, 3, because four bytes of weights widen to (0, 2) and (1, 3) without a shuffle. */
typedef struct {
    int16_t q[32];
    int32_t minus128; /* -128 * sum q */
    float scale;
} act_i16_32;

_Static_assert(sizeof(act_i8_32) == 48 && sizeof(act_i8_256) == 448 && sizeof(act_i16_32) == 72, "records are packed");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed words are little-endian");

/* Blocks of one token: padded as the weights are. */
static inline uint32_t mm_act_blocks(act_kind kind, uint32_t n_cols) {
    switch (kind) {
    case ACT_F32: return (n_cols / 8 + (n_cols % 8 != 0)) * 8;
    case ACT_I8_256: return n_cols / 256 + (n_cols % 256 != 0);
    default: return (n_cols / 64 + (n_cols % 64 != 0)) * 2;
    }
}

static inline size_t mm_act_record(act_kind kind) {
    switch (kind) {
    case ACT_F32: return sizeof(float);
    case ACT_I8_32:
    case ACT_I8_32_TOP: return sizeof(act_i8_32);
    case ACT_I8_256: return sizeof(act_i8_256);
    default: return sizeof(act_i16_32);
    }
}

/* Where token t of m begins, and how far its next record is. */
static inline size_t mm_act_at(act_kind kind, uint32_t n_blocks, uint32_t m, uint32_t t, uint32_t *step) {
    uint32_t t0 = t / MM_PANEL * MM_PANEL;
    *step = m - t0 < MM_PANEL ? m - t0 : MM_PANEL;
    return ((size_t)t0 * n_blocks + (t - t0)) * mm_act_record(kind);
}

/* Is there a column that stands out? */
static inline bool mm_has_top(const act_i8_32 *a) {
    uint32_t v;
    memcpy(&v, a->top, 4);
    return v != 0;
}

static inline uint16_t mm_ld16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline uint32_t mm_ld32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* IQ4 code points. */
#define MM_IQ4_TABLE -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* Index of (row, sub-block j) in the scales of a 256-unit, and in its mins. */
static inline unsigned mm_scale_at(unsigned r, unsigned j) { return j / 2 * 16 + r / 4 * 8 + (j & 1) * 4 + (r & 3); }
static inline unsigned mm_min_at(unsigned r, unsigned j) { return j / 2 * 16 + r * 2 + (j & 1); }

extern const mm_ops mm_generic;
#if HD_HAVE_AVX2
extern const mm_ops mm_avx2, mm_avxvnni, mm_avx512;
#endif
#if HD_HAVE_NEON
extern const mm_ops mm_neon, mm_dotprod, mm_i8mm;
#endif

#endif
