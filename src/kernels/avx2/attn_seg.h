/* attn_seg.h - attention of many rows (queries of a segment, by heads), to the bits of attn_generic.c (order: attn_int.h).
 *
 * A row is one (query, head), queries outermost.  Rows go in groups, as many as there are registers for the sums of 16 or
 * 32 positions or dimensions each.  Per block of 256 positions a group makes its scores, turns them into weights and sums
 * values before the next group begins: its weights and queries stay in L1, its sums in registers until they join what the
 * blocks before gave.  K and V of a block come out of L2 for all groups but the first, and are widened to f32 each time:
 * beside the multiplications that is little.  q4, which is more, becomes q8 of the same numbers first, once for all groups.
 *
 * A lane is one position (scores) or one dimension (values), so no sum is ever split.  Positions that only some rows of a
 * group see go to masked sums: there are few, and loops of their own for each number of rows cost more.
 * Read: run_segment, seg_rows, seg_block, group_scores, group_weigh, group_values. */
#ifndef HD_KERNELS_AVX2_ATTN_SEG_H
#define HD_KERNELS_AVX2_ATTN_SEG_H

#include "kernels/avx2/attn_loops.h"
#include "kernels/avx2/kv_turn_avx2.h"

enum {
    SEG_ROWS = ATTN_WIDE ? 12 : 6,      /* of a group: with SEG_TILES 24 of 32 or 12 of 16 registers are sums */
    SEG_TILES = ATTN_WIDE ? 2 : 1,      /* of 16 positions or dimensions at once */
    SEG_STEP = ATTN_WIDE ? 4 : 2,       /* there are loops for multiples of so many rows; what is missing is filled up */
    SEG_ALL = 96,                       /* rows that share a read of K and V from memory */
    SEG_STRIDE = ATTN_BLOCK + KV_LANES, /* floats between rows of weights: not all to fall on the same cache sets */
    SEG_PIECES = ATTN_BLOCK / KV_LANES,
    SEG_Q8_BYTES = ATTN_HEAD_MAX + KV_BLOCKS_MAX * KV_SCALE_BYTES, /* of a position */
};
_Static_assert(SEG_ALL % SEG_ROWS == 0 && SEG_ROWS % SEG_STEP == 0, "full groups need no filling up");

/* Positions [a, b) of the block, which one page holds; a is a multiple of 16. */
typedef struct {
    const char *k, *v;   /* K of 16 positions from a on; all of the page's V */
    const char *ahead;   /* K at the same place of the next block, or NULL */
    uint32_t a, b, slot; /* slot: of a in the page */
} seg_piece;

typedef struct {
    uint32_t n, padded;                        /* rows of the group; with those that fill it up */
    uint32_t lo[SEG_ROWS], hi[SEG_ROWS];       /* what each sees of the block, relative to it; fillers: nothing */
    uint32_t some_lo, some_hi, all_lo, all_hi; /* what some row sees, what all rows see; all_lo <= all_hi */
    float *out[SEG_ROWS], *big_m, *big_l;      /* big_m, big_l: of the first row and those after it */
    float a[SEG_ROWS], b[SEG_ROWS];            /* out = fma(o, b, out a) c ... */
    bool first[SEG_ROWS];                      /* ... or o c, as it is the first block */
    bool last[SEG_ROWS];                       /* the last block that the row sees */
    const float *sink[SEG_ROWS];               /* or NULL */
    float c[SEG_ROWS];                         /* part_of_sum in the last block, else 1 */
    const float *q;                            /* [head_dim][padded] */
    uint32_t n_pieces;
    seg_piece pieces[SEG_PIECES];
} seg_group;

typedef struct {
    _Alignas(64) float p[SEG_ROWS][SEG_STRIDE];                      /* scores, then exp(score - m) */
    float scaled[SEG_ROWS][SEG_STRIDE];                              /* q8, q4: p times the scale of a position's value block */
    float q[SEG_ALL * ATTN_HEAD_MAX];                                /* group by group [head_dim][rows] */
    float turned[4][ATTN_HEAD_MAX];                                  /* q4: queries on their way there */
    char k[ATTN_BLOCK * SEG_Q8_BYTES], v[ATTN_BLOCK * SEG_Q8_BYTES]; /* q4: a block as q8 in a page of its own */
    kv_shape shape;                                                  /* as the loops see it */
    const float *row[SEG_ALL];                                       /* its query */
    float *out[SEG_ALL];
    float big_m[SEG_ALL], big_l[SEG_ALL];
    uint32_t lo[SEG_ALL], hi[SEG_ALL]; /* visible positions */
    uint32_t seen_lo, seen_hi;         /* what any row sees */
    uint32_t n_rows, h0, n_heads;
    uint32_t ask_row, ask_end, ask_dim, ask_each; /* queries to ask for: of these rows, so many lines at a time */
    seg_group g;
} segment;

#if ATTN_WIDE
#define APART __asm__ volatile("" ::: "memory")
#else
#define APART IN_ORDER
#endif

/* acc[r] += x[r step] y.  With AVX-512 each multiplication fetches its own x and one y is used up before the next: with x in
 * a register for two y, 24 sums reach 0.90 of the peak, so 0.99. */
TILE_INLINE void seg_fma(const uint32_t n, v16 *acc, const float *x, const uint32_t step, v16 y) {
    UNROLL for (uint32_t r = 0; r < n; r++) {
        acc[r] = fma16(set16(x[r * step]), y, acc[r]);
        APART;
    }
}

/* ---- scores ---- */

/* p[r][i * 16 .. + 16) = scale * sum_d q[d][r] k[i][d][0..16) for n rows and m tiles.  ahead: V to ask for meanwhile, `ask`
 * bytes with each dimension, chunk by chunk; V itself or, where it is here, anything with ask 0. */
typedef struct {
    const char *k[SEG_TILES];
    const char *ahead;
    size_t ask, ahead_chunk;
} seg_keys;

TILE_INLINE void seg_scores_n(const uint32_t n, const uint32_t m, const kv_scheme scheme, const float *q, const seg_keys *t,
                              uint32_t head_dim, float scale, float *p) {
    const bool blocked = scheme == KV_Q8;
    const char *k[SEG_TILES], *ahead = t->ahead;
    v16 acc[SEG_TILES][SEG_ROWS];
    UNROLL for (uint32_t i = 0; i < m; i++) {
        k[i] = t->k[i];
        UNROLL for (uint32_t r = 0; r < n; r++) acc[i][r] = zero16();
    }
    for (uint32_t c = 0; c < head_dim; c += KV_LANES, ahead += t->ahead_chunk) {
        uint32_t width = head_dim - c < KV_LANES ? 8 : KV_LANES;
        const char *line = ahead;
        for (uint32_t d = 0; d < width; d += 2, q += 2 * n, line += 2 * t->ask) {
            _mm_prefetch(line, _MM_HINT_T1);
            _mm_prefetch(line + t->ask, _MM_HINT_T1);
            UNROLL for (uint32_t i = 0; i < m; i++) seg_fma(n, acc[i], q, 1, widen16(scheme, k[i]));
            UNROLL for (uint32_t i = 0; i < m; i++) {
                seg_fma(n, acc[i], q + n, 1, widen16(scheme, k[i] + bytes16(scheme)));
                k[i] += 2 * bytes16(scheme);
            }
        }
        if (blocked && (c % KV_BLOCK || c + KV_LANES >= head_dim)) { /* the block's sums join those of the blocks before */
            UNROLL for (uint32_t i = 0; i < m; i++) {
                v16 s = halves16(k[i]);
                UNROLL for (uint32_t r = 0; r < n; r++) {
                    float *x = p + r * SEG_STRIDE + i * KV_LANES;
                    store16(x, fma16(acc[i][r], s, c < KV_BLOCK ? zero16() : load16(x)));
                    acc[i][r] = zero16();
                }
                k[i] += KV_LANES * KV_SCALE_BYTES;
            }
        }
    }
    v16 s = set16(scale);
    UNROLL for (uint32_t i = 0; i < m; i++) UNROLL for (uint32_t r = 0; r < n; r++) {
        float *x = p + r * SEG_STRIDE + i * KV_LANES;
        store16(x, mul16(blocked ? load16(x) : acc[i][r], s));
    }
}

/* ---- values ---- */

#if ATTN_WIDE
typedef __mmask16 see16;
TILE_INLINE see16 seen(bool yes) { return (see16)(yes ? 0xffff : 0); }
TILE_INLINE v16 fma_seen(see16 k, v16 a, v16 b, v16 c) { return _mm512_mask_mov_ps(c, k, _mm512_fmadd_ps(a, b, c)); }
#else
typedef __m256 see16;
TILE_INLINE see16 seen(bool yes) { return _mm256_castsi256_ps(_mm256_set1_epi32(-(int)yes)); }
TILE_INLINE v16 fma_seen(see16 k, v16 a, v16 b, v16 c) {
    v16 y = fma16(a, b, c);
    return (v16){_mm256_blendv_ps(c.lo, y.lo, k), _mm256_blendv_ps(c.hi, y.hi, k)};
}
#endif

/* acc[i][r] += sum over the positions [lo, hi) that row r sees of p[r][j] v[j][16 i..) */
TILE_INLINE void seg_values_masked(const uint32_t n, const uint32_t m, const kv_scheme scheme, v16 acc[][SEG_ROWS],
                                   const seg_group *g, const float *p, const char *v, size_t step, uint32_t lo, uint32_t hi) {
    for (uint32_t j = lo; j < hi; j++, v += bytes16(scheme)) {
        v16 y[SEG_TILES];
        UNROLL for (uint32_t i = 0; i < m; i++) y[i] = widen16(scheme, v + i * step);
        UNROLL for (uint32_t r = 0; r < n; r++) {
            see16 k = seen(j >= g->lo[r] && j < g->hi[r]);
            v16 x = set16(p[r * SEG_STRIDE + j]);
            UNROLL for (uint32_t i = 0; i < m; i++) acc[i][r] = fma_seen(k, x, y[i], acc[i][r]);
            IN_ORDER;
        }
    }
}

/* The same where every row sees all; `ask` bytes from `ahead` on are asked for with each position. */
TILE_INLINE void seg_values_common(const uint32_t n, const uint32_t m, const kv_scheme scheme, v16 acc[][SEG_ROWS], const float *p,
                                   const char *v, size_t step, uint32_t lo, uint32_t hi, const char *ahead, size_t ask) {
    const float *end = p + hi;
    for (p += lo; p < end; p++, v += bytes16(scheme), ahead += ask) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        UNROLL for (uint32_t i = 0; i < m; i++) seg_fma(n, acc[i], p, SEG_STRIDE, widen16(scheme, v + i * step));
    }
}

/* Where the 16 m dimensions from d on lie in a page's V, and what part of `ahead` they ask for. */
typedef struct {
    size_t at, step;
    size_t ahead, ask; /* ahead: bytes for each position of the piece, asked for by the dimensions before */
    uint32_t d;
} seg_dims;

TILE_INLINE void seg_values_n(const uint32_t n, const uint32_t m, const kv_scheme scheme, const seg_group *g, const float *p,
                              const seg_dims *t) {
    v16 acc[SEG_TILES][SEG_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) UNROLL for (uint32_t i = 0; i < m; i++) acc[i][r] = zero16();
    for (const seg_piece *s = g->pieces; s < g->pieces + g->n_pieces; s++) {
        uint32_t lo = later(s->a, g->some_lo), hi = sooner(s->b, g->some_hi);
        uint32_t from = sooner(later(lo, g->all_lo), hi), to = later(sooner(hi, g->all_hi), from);
        const char *v = s->v + t->at + (s->slot + lo - s->a) * bytes16(scheme);
        const char *ahead = s->ahead ? s->ahead + t->ahead * (s->b - s->a) : v;
        seg_values_masked(n, m, scheme, acc, g, p, v, t->step, lo, from);
        v += (from - lo) * bytes16(scheme);
        seg_values_common(n, m, scheme, acc, p, v, t->step, from, to, ahead, s->ahead ? t->ask : 0);
        v += (to - from) * bytes16(scheme);
        seg_values_masked(n, m, scheme, acc, g, p, v, t->step, to, hi);
    }
    UNROLL for (uint32_t r = 0; r < n; r++) {
        if (g->lo[r] >= g->hi[r]) continue;
        float *out = g->out[r] + t->d;
        v16 a = set16(g->a[r]), b = set16(g->b[r]), c = set16(g->c[r]);
        UNROLL for (uint32_t i = 0; i < m; i++) {
            v16 x = acc[i][r];
            if (!g->first[r]) x = fma16(x, b, mul16(load16(out + i * KV_LANES), a));
            store16(out + i * KV_LANES, mul16(x, c));
        }
    }
}

/* The last 8 dimensions of a head that is no multiple of 16 wide, row by row. */
static void seg_values_8(kv_scheme scheme, size_t bytes, const seg_group *g, const float *p, const seg_dims *t) {
    for (uint32_t r = 0; r < g->n; r++, p += SEG_STRIDE) {
        float o[8] = {0}, *out = g->out[r] + t->d;
        if (g->lo[r] >= g->hi[r]) continue;
        for (const seg_piece *s = g->pieces; s < g->pieces + g->n_pieces; s++) {
            uint32_t lo = later(s->a, g->lo[r]), hi = sooner(s->b, g->hi[r]);
            if (lo >= hi) continue;
            v_tile vt = {.v = s->v + t->at + (s->slot + lo - s->a) * bytes, .n_pos = hi - lo};
            values_8(1, scheme, bytes, p + lo, &vt, o, 0);
        }
        __m256 x = _mm256_loadu_ps(o), a = _mm256_set1_ps(g->a[r]), b = _mm256_set1_ps(g->b[r]);
        if (!g->first[r]) x = _mm256_fmadd_ps(x, b, _mm256_mul_ps(_mm256_loadu_ps(out), a));
        _mm256_storeu_ps(out, _mm256_mul_ps(x, _mm256_set1_ps(g->c[r])));
    }
}

/* ---- each number of rows and tiles, and each scheme, has loops of its own ---- */

#define SEG_CASE(rows, m, call, ...)                                                                                               \
    case (rows) + 16 * (m):                                                                                                        \
        call(rows, m, __VA_ARGS__);                                                                                                \
        break;
#define SEG_CASES(m, call, ...)                                                                                                    \
    SEG_CASE(SEG_STEP, m, call, __VA_ARGS__)                                                                                       \
    SEG_CASE(2 * SEG_STEP, m, call, __VA_ARGS__) SEG_CASE(3 * SEG_STEP, m, call, __VA_ARGS__)
#if ATTN_WIDE
#define SEG_BY_ROWS(rows, m, call, ...)                                                                                            \
    switch ((rows) + 16 * (m)) { SEG_CASES(1, call, __VA_ARGS__) SEG_CASES(2, call, __VA_ARGS__) }
#else
#define SEG_BY_ROWS(rows, m, call, ...)                                                                                            \
    switch ((rows) + 16 * (m)) { SEG_CASES(1, call, __VA_ARGS__) }
#endif
#define SEG_BY_SCHEME(scheme, rows, m, call)                                                                                       \
    switch (scheme) {                                                                                                              \
    case KV_F16: SEG_BY_ROWS(rows, m, call, KV_F16) break;                                                                         \
    case KV_BF16: SEG_BY_ROWS(rows, m, call, KV_BF16) break;                                                                       \
    case KV_Q8: SEG_BY_ROWS(rows, m, call, KV_Q8) break;                                                                           \
    default: SEG_BY_ROWS(rows, m, call, KV_F32) break;                                                                             \
    }

static void seg_scores(uint32_t n, uint32_t m, kv_scheme scheme, const float *q, const seg_keys *t, uint32_t head_dim, float scale,
                       float *p) {
#define SCORES(n, m, scheme) seg_scores_n(n, m, scheme, q, t, head_dim, scale, p)
    SEG_BY_SCHEME(scheme, n, m, SCORES)
#undef SCORES
}

static void seg_values(uint32_t m, kv_scheme scheme, const seg_group *g, const float *p, const seg_dims *t) {
#define VALUES(n, m, scheme) seg_values_n(n, m, scheme, g, p, t)
    SEG_BY_SCHEME(scheme, g->padded, m, VALUES)
#undef VALUES
}

/* ---- one block of a group ---- */

/* Ask for a part of the queries that come next. */
static void ask_queries(segment *s, uint32_t head_dim) {
    for (uint32_t i = 0; i < s->ask_each && s->ask_row < s->ask_end; i++) {
        _mm_prefetch((const char *)(s->row[s->ask_row] + s->ask_dim), _MM_HINT_T0);
        s->ask_dim += 16;
        if (s->ask_dim < head_dim) continue;
        s->ask_dim = 0;
        s->ask_row++;
    }
}

/* The scores of [lo, hi), which is what some row sees, in whole tiles.  asks: V has not been asked for by a group before. */
static void group_scores(const attn_job *job, segment *s, bool asks) {
    const kv_shape *shape = &s->shape;
    const seg_group *g = &s->g;
    size_t of_16 = KV_LANES * kv_k_bytes(shape), v_16 = KV_LANES * kv_v_run(shape, KV_LANES);
    const seg_piece *piece = g->pieces;
    for (uint32_t at = piece->a, m; at < g->some_hi; at += m * KV_LANES) {
        seg_keys t = {.ask = 0};
        m = at + KV_LANES < g->some_hi ? SEG_TILES : 1;
        for (uint32_t i = 0, j = at; i < m; i++, j += KV_LANES) {
            if (j >= piece->b) piece++;
            t.k[i] = piece->k + (j - piece->a) / KV_LANES * of_16;
            if (i) continue;
            t.ahead = t.k[0];
            if (!asks) continue;
            t.ahead = piece->v + kv_v_at(shape, piece->slot + j - piece->a, 0);
            t.ask = m * v_16 / KV_LANES;
            t.ahead_chunk = shape->page_tokens * kv_v_run(shape, KV_LANES);
        }
        ask_queries(s, shape->head_dim);
        seg_scores(g->padded, m, shape->scheme, g->q, &t, shape->head_dim, job->scale, &s->p[0][at]);
    }
}

#if ATTN_WIDE
enum { WEIGH_ROWS = 4 };

/* weight8 for n times 16 positions, x[i] less m.  Side by side, as each is a long chain of operations. */
TILE_INLINE void weigh_16(const uint32_t n, __m512 *x, float m) {
    const __m512 magic = _mm512_set1_ps(MATH_ROUND_BIAS_F), max = _mm512_set1_ps(m);
    __m512 t[WEIGH_ROWS], r[WEIGH_ROWS], q[WEIGH_ROWS];
    UNROLL for (uint32_t i = 0; i < n; i++) x[i] = _mm512_sub_ps(x[i], max);
    UNROLL for (uint32_t i = 0; i < n; i++) t[i] = _mm512_fmadd_ps(x[i], _mm512_set1_ps(MATH_LOG2E_F), magic);
    UNROLL for (uint32_t i = 0; i < n; i++) q[i] = _mm512_sub_ps(t[i], magic);
    UNROLL for (uint32_t i = 0; i < n; i++) r[i] = _mm512_fmadd_ps(q[i], _mm512_set1_ps(-MATH_LN2_HI_F), x[i]);
    UNROLL for (uint32_t i = 0; i < n; i++) r[i] = _mm512_fmadd_ps(q[i], _mm512_set1_ps(-MATH_LN2_LO_F), r[i]);
    UNROLL for (uint32_t i = 0; i < n; i++) q[i] = _mm512_fmadd_ps(r[i], _mm512_set1_ps(MATH_E4), _mm512_set1_ps(MATH_E3));
    UNROLL for (uint32_t i = 0; i < n; i++) q[i] = _mm512_fmadd_ps(r[i], q[i], _mm512_set1_ps(MATH_E2));
    UNROLL for (uint32_t i = 0; i < n; i++) q[i] = _mm512_fmadd_ps(r[i], q[i], _mm512_set1_ps(MATH_E1));
    UNROLL for (uint32_t i = 0; i < n; i++) q[i] = _mm512_fmadd_ps(r[i], q[i], _mm512_set1_ps(MATH_E0));
    UNROLL for (uint32_t i = 0; i < n; i++) r[i] = _mm512_fmadd_ps(_mm512_mul_ps(r[i], r[i]), q[i], r[i]);
    UNROLL for (uint32_t i = 0; i < n; i++) {
        __mmask16 some = _mm512_cmp_ps_mask(x[i], _mm512_set1_ps(MATH_WEIGHT_MIN), _CMP_NLT_UQ);
        __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t[i]), 23));
        x[i] = _mm512_maskz_mul_ps(some, _mm512_add_ps(_mm512_set1_ps(1.0f), r[i]), power);
    }
}

/* max_row, 16 positions at a time. */
static float seg_max_row(float *p, uint32_t lo, uint32_t hi, float softcap) {
    uint32_t begin = lo & ~15u, end = (hi + 15) & ~15u, last = end - 16, j = begin;
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 part[4];
    if (softcap > 0)
        for (; j < end; j += 8) _mm256_storeu_ps(p + j, softcap8(_mm256_loadu_ps(p + j), _mm256_set1_ps(softcap)));
    store16(p + begin, _mm512_mask_mov_ps(none, (__mmask16)(0xffffu << (lo - begin)), load16(p + begin)));
    store16(p + last, _mm512_mask_mov_ps(none, (__mmask16)(0xffffu >> (end - hi)), load16(p + last)));
    UNROLL for (uint32_t i = 0; i < 4; i++) part[i] = none;
    for (j = begin; j + 64 <= end; j += 64)
        UNROLL for (uint32_t i = 0; i < 4; i++) part[i] = _mm512_max_ps(load16(p + j + 16 * i), part[i]);
    for (; j < end; j += 16) part[0] = _mm512_max_ps(load16(p + j), part[0]);
    part[0] = _mm512_max_ps(_mm512_max_ps(part[0], part[1]), _mm512_max_ps(part[2], part[3]));
    return max8(_mm256_max_ps(_mm512_castps512_ps256(part[0]), _mm512_extractf32x8_ps(part[0], 1)));
}

TILE_INLINE __m256 weigh_some(const uint32_t n, float *p, float m, __m256 sum) {
    __m512 x[WEIGH_ROWS];
    UNROLL for (uint32_t i = 0; i < n; i++) x[i] = load16(p + i * 16);
    weigh_16(n, x, m);
    UNROLL for (uint32_t i = 0; i < n; i++) {
        sum = _mm256_add_ps(sum, _mm512_castps512_ps256(x[i]));
        sum = _mm256_add_ps(sum, _mm512_extractf32x8_ps(x[i], 1));
        store16(p + i * 16, x[i]);
    }
    return sum;
}

static float seg_weigh_row(float *p, uint32_t lo, uint32_t hi, float m) {
    __m256 sum = _mm256_setzero_ps();
    uint32_t j = lo & ~15u;
    for (; j + 16 * (WEIGH_ROWS - 1) < hi; j += 16 * WEIGH_ROWS) sum = weigh_some(WEIGH_ROWS, p + j, m, sum);
    for (; j < hi; j += 16) sum = weigh_some(1, p + j, m, sum);
    return sum8(sum);
}
#else
#define seg_max_row   max_row
#define seg_weigh_row weigh_row
#endif

/* Scores become weights, and it is said how the block's sums join those of the blocks before. */
static void group_weigh(const attn_job *job, segment *s) {
    seg_group *g = &s->g;
    float m[SEG_ROWS];
    for (uint32_t r = 0; r < g->n; r++)
        if (g->lo[r] < g->hi[r]) m[r] = seg_max_row(s->p[r], g->lo[r], g->hi[r], job->softcap);
    for (uint32_t r = 0; r < g->n; r++) {
        if (g->lo[r] >= g->hi[r]) continue;
        float l = seg_weigh_row(s->p[r], g->lo[r], g->hi[r], m[r]);
        g->first[r] = g->big_l[r] == 0; /* every l is at least 1 or NaN */
        if (g->first[r]) {
            g->big_m[r] = m[r];
            g->big_l[r] = l;
        } else {
            float max = m[r] > g->big_m[r] ? m[r] : g->big_m[r];
            g->a[r] = math_weightf(g->big_m[r] - max);
            g->b[r] = math_weightf(m[r] - max);
            g->big_m[r] = max;
            g->big_l[r] = fmaf(l, g->b[r], g->big_l[r] * g->a[r]);
        }
        g->c[r] = g->last[r] ? part_of_sum(g->big_m[r], g->big_l[r], g->sink[r]) : 1;
    }
}

/* scaled = p * scale of the block of dimensions d and on. */
static void group_scale(segment *s, uint32_t d) {
    const kv_shape *shape = &s->shape;
    const seg_group *g = &s->g;
    for (const seg_piece *pc = g->pieces; pc < g->pieces + g->n_pieces; pc++) {
        uint32_t end = sooner(pc->b, g->some_hi);
        const char *scales = pc->v + kv_v_scale_at(shape, pc->slot, d / KV_BLOCK);
        for (uint32_t j = pc->a; j < end; j += KV_LANES, scales += KV_LANES * KV_SCALE_BYTES) {
            v16 scale = halves16(scales);
            for (uint32_t r = 0; r < g->n; r++) store16(&s->scaled[r][j], mul16(load16(&s->p[r][j]), scale));
        }
    }
}

static void group_values(segment *s) {
    const kv_shape *shape = &s->shape;
    const seg_group *g = &s->g;
    const bool blocked = kv_blocked(shape);
    const float *p = blocked ? s->scaled[0] : s->p[0];
    seg_dims t = {.step = shape->page_tokens * kv_v_run(shape, KV_LANES)};
    for (uint32_t m; t.d < shape->head_dim; t.d += m * KV_LANES) {
        uint32_t left = shape->head_dim - t.d;
        m = left >= SEG_TILES * KV_LANES ? SEG_TILES : 1;
        t.at = kv_v_at(shape, 0, t.d);
        t.ahead = kv_k_bytes(shape) * t.d / shape->head_dim;
        t.ask = kv_k_bytes(shape) * m * KV_LANES / shape->head_dim;
        if (blocked && t.d % KV_BLOCK == 0) group_scale(s, t.d);
        ask_queries(s, shape->head_dim);
        if (left < KV_LANES) seg_values_8(shape->scheme, kv_v_run(shape, left), g, p, &t);
        else seg_values(m, shape->scheme, g, p, &t);
    }
}

/* ---- groups, blocks, rows ---- */

/* 32 bytes of q4 as 64 of q8.  Of K that is 4 dimensions of 16 positions; of V (`side`: the low and high halves of 8 bytes
 * come side by side) 16 dimensions of 4 positions. */
TILE_INLINE void bytes_of(const char *from, char *to, const bool side) {
    const __m256i low = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8);
    __m256i x = _mm256_loadu_si256((const __m256i *)from);
    __m256i a = _mm256_sub_epi8(_mm256_and_si256(x, low), eight);
    __m256i b = _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(x, 4), low), eight);
    if (side) {
        x = _mm256_unpacklo_epi64(a, b);
        b = _mm256_unpackhi_epi64(a, b);
        a = x;
    }
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_permute2x128_si256(a, b, 0x31));
}

/* q4 as q8 of the same numbers, of the positions of the block at base that any row sees: once for all groups. */
static void seg_widen(const attn_job *job, segment *s, uint32_t base) {
    const kv_shape *from = &job->shape, *to = &s->shape;
    uint32_t lo = (later(s->seen_lo, base) - base) & ~(KV_LANES - 1u), hi = sooner(s->seen_hi - base, ATTN_BLOCK);
    for (uint32_t at = lo; at < hi; at += KV_LANES) {
        uint32_t slot = (base + at) % from->page_tokens;
        const char *k = (const char *)attn_page(job, base + at, job->k_off) + slot * kv_k_bytes(from);
        const char *v = attn_page(job, base + at, job->v_off);
        char *out = s->k + at * kv_k_bytes(to);
        for (uint32_t d = 0; d < from->head_dim; k += KV_LANES * KV_SCALE_BYTES, out += KV_LANES * KV_SCALE_BYTES) {
            uint32_t end = sooner(d + KV_BLOCK, from->head_dim);
            for (; d < end; d += 4, k += 32, out += 64) bytes_of(k, out, false);
            memcpy(out, k, KV_LANES * KV_SCALE_BYTES);
        }
        for (uint32_t d = 0; d < from->head_dim; d += KV_LANES) {
            const char *x = v + kv_v_at(from, slot, d);
            uint32_t c = d / KV_BLOCK;
            out = s->v + kv_v_at(to, at, d);
            if (d % KV_BLOCK == 0)
                memcpy(s->v + kv_v_scale_at(to, at, c), v + kv_v_scale_at(from, slot, c), KV_LANES * KV_SCALE_BYTES);
            if (from->head_dim - d >= KV_LANES)
                for (uint32_t j = 0; j < KV_LANES; j += 4) bytes_of(x + j * 8, out + j * KV_LANES, true);
            else
                for (uint32_t j = 0; j < KV_LANES; j++)
                    _mm_storel_epi64((__m128i *)(out + j * 8), nibbles(_mm_loadl_epi64((const __m128i *)(x + j * 8)), false));
        }
    }
}

/* Pieces of the block at base that hold [some_lo, some_hi). */
static void seg_cut(const attn_job *job, segment *s, uint32_t base, bool asks) {
    const kv_shape *shape = &s->shape;
    seg_group *g = &s->g;
    uint32_t end = (g->some_hi + KV_LANES - 1) & ~(KV_LANES - 1u);
    g->n_pieces = 0;
    for (uint32_t a = g->some_lo & ~(KV_LANES - 1u), b; a < end; a = b) {
        uint32_t slot = (base + a) % shape->page_tokens, next = base + ATTN_BLOCK + a;
        seg_piece *pc = &g->pieces[g->n_pieces++];
        b = sooner(end, a + shape->page_tokens - slot);
        *pc = (seg_piece){.a = a, .b = b, .slot = slot};
        if (job->shape.scheme == KV_Q4) {
            pc->k = s->k + slot * kv_k_bytes(shape);
            pc->v = s->v;
            continue;
        }
        pc->k = (const char *)attn_page(job, base + a, job->k_off) + slot * kv_k_bytes(shape);
        pc->v = attn_page(job, base + a, job->v_off);
        if (asks && next < s->seen_hi) pc->ahead = (const char *)attn_page(job, next, job->k_off) + slot * kv_k_bytes(shape);
    }
}

/* What the group's rows see of the block at base; false: nothing. */
static bool seg_see(const segment *s, seg_group *g, uint32_t begin, uint32_t base) {
    g->some_lo = ATTN_BLOCK;
    g->some_hi = g->all_lo = 0;
    g->all_hi = ATTN_BLOCK;
    for (uint32_t r = 0; r < g->padded; r++) {
        g->lo[r] = g->hi[r] = 0;
        if (r >= g->n) continue;
        uint32_t a = later(s->lo[begin + r], base) - base, b = later(sooner(s->hi[begin + r], base + ATTN_BLOCK), base) - base;
        if (a < b) {
            g->lo[r] = a;
            g->hi[r] = b;
            g->last[r] = s->hi[begin + r] <= base + ATTN_BLOCK;
            g->some_lo = sooner(g->some_lo, a);
            g->some_hi = later(g->some_hi, b);
        }
        g->all_lo = later(g->all_lo, g->lo[r]);
        g->all_hi = sooner(g->all_hi, g->hi[r]);
    }
    if (g->all_lo > g->all_hi) g->all_hi = g->all_lo;
    return g->some_lo < g->some_hi;
}

/* q = [head_dim][padded] out of rows [begin, begin + n); those that are missing are as the last. */
static void seg_pack(const attn_job *job, segment *s, uint32_t begin, uint32_t n, uint32_t padded, float *q) {
    uint32_t head_dim = job->shape.head_dim;
    for (uint32_t r = 0; r < padded; r += SEG_STEP) {
        const float *x[SEG_STEP];
        for (uint32_t i = 0; i < SEG_STEP; i++) {
            x[i] = s->row[begin + sooner(r + i, n - 1)];
            if (job->shape.scheme != KV_Q4) continue;
            kv_turn_avx2(x[i], s->turned[i], head_dim, KV_TURN_QUERY);
            x[i] = s->turned[i];
        }
        float *to = q + r;
        for (uint32_t d = 0; d < head_dim; d += 4, to += 4 * padded) {
            __m128 a = _mm_loadu_ps(x[0] + d), b = _mm_loadu_ps(x[1] + d);
#if ATTN_WIDE
            __m128 c = _mm_loadu_ps(x[2] + d), e = _mm_loadu_ps(x[3] + d);
            _MM_TRANSPOSE4_PS(a, b, c, e);
            _mm_storeu_ps(to, a);
            _mm_storeu_ps(to + padded, b);
            _mm_storeu_ps(to + 2 * padded, c);
            _mm_storeu_ps(to + 3 * padded, e);
#else
            __m128 lo = _mm_unpacklo_ps(a, b), hi = _mm_unpackhi_ps(a, b);
            _mm_storel_pi((__m64 *)to, lo);
            _mm_storeh_pi((__m64 *)(to + padded), lo);
            _mm_storel_pi((__m64 *)(to + 2 * padded), hi);
            _mm_storeh_pi((__m64 *)(to + 3 * padded), hi);
#endif
        }
    }
}

/* Rows [r, r + size) at the block at base. */
static void seg_block(const attn_job *job, segment *s, uint32_t base, uint32_t r, uint32_t size, bool *asks) {
    seg_group *g = &s->g;
    float *q = s->q + (size_t)r * job->shape.head_dim;
    g->n = size;
    g->padded = (size + SEG_STEP - 1) / SEG_STEP * SEG_STEP;
    bool first = base <= s->seen_lo;
    if (first) seg_pack(job, s, r, size, g->padded, q);
    if (!seg_see(s, g, r, base)) return;
    s->ask_row = r + size;
    s->ask_end = first ? sooner(s->ask_row + SEG_ROWS, s->n_rows) : 0;
    s->ask_dim = 0;
    uint32_t calls = (g->some_hi - g->some_lo + job->shape.head_dim) / (SEG_TILES * KV_LANES) + 1;
    s->ask_each = SEG_ROWS * job->shape.head_dim / 16 / calls + 1;
    seg_cut(job, s, base, *asks);
    for (uint32_t i = 0; i < size; i++) {
        g->out[i] = s->out[r + i];
        g->sink[i] = job->sinks ? &job->sinks[s->h0 + (r + i) % s->n_heads] : NULL;
    }
    g->big_m = s->big_m + r;
    g->big_l = s->big_l + r;
    g->q = q;
    group_scores(job, s, *asks);
    group_weigh(job, s);
    group_values(s);
    *asks = false;
}

/* Queries [i0, i0 + n) with heads [h0, h0 + n_heads). */
static void seg_rows(const attn_job *job, segment *s, uint32_t i0, uint32_t n, uint32_t h0, uint32_t n_heads) {
    uint32_t head_dim = job->shape.head_dim;
    s->shape = job->shape;
    if (job->shape.scheme == KV_Q4) s->shape = (kv_shape){head_dim, ATTN_BLOCK, KV_Q8};
    s->n_rows = n * n_heads;
    s->h0 = h0;
    s->n_heads = n_heads;
    s->seen_lo = UINT32_MAX;
    s->seen_hi = 0;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        size_t i = i0 + r / n_heads, h = h0 + r % n_heads;
        s->row[r] = job->q + i * job->ldq + h * head_dim;
        s->out[r] = job->out + i * job->ldout + h * head_dim;
        s->big_m[r] = -INFINITY;
        s->big_l[r] = 0;
        attn_visible(job, job->pos0 + (uint32_t)i, &s->lo[r], &s->hi[r]);
        if (s->lo[r] >= s->hi[r]) {
            memset(s->out[r], 0, head_dim * sizeof(float));
            continue;
        }
        s->seen_lo = sooner(s->seen_lo, s->lo[r]);
        s->seen_hi = later(s->seen_hi, s->hi[r]);
    }
    for (uint32_t base = s->seen_lo / ATTN_BLOCK * ATTN_BLOCK; base < s->seen_hi; base += ATTN_BLOCK) {
        bool asks = true;
        if (job->shape.scheme == KV_Q4) seg_widen(job, s, base);
        for (uint32_t r = 0; r < s->n_rows; r += SEG_ROWS) seg_block(job, s, base, r, sooner(SEG_ROWS, s->n_rows - r), &asks);
    }
    for (uint32_t r = 0; r < s->n_rows && job->shape.scheme == KV_Q4; r++)
        if (s->lo[r] < s->hi[r]) kv_turn_avx2(s->out[r], s->out[r], head_dim, KV_TURN_BACK);
}

static void run_segment(const attn_job *job, segment *s) {
    uint32_t heads = sooner(job->n_group, SEG_ALL), queries = SEG_ALL / heads;
    for (uint32_t i = 0; i < job->n_q; i += queries)
        for (uint32_t h = 0; h < job->n_group; h += heads)
            seg_rows(job, s, i, sooner(queries, job->n_q - i), h, sooner(heads, job->n_group - h));
}

#endif
