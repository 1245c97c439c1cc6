/* attn_avx2.c - attention over pages with 8-wide registers, to the bits of attn_generic.c (order: attn_int.h).
 *
 * Work goes tile by tile: up to TILE_ROWS rows, a row being one (query, head), queries outermost.  Per block of 256
 * positions a tile makes all scores, turns them into p, and sums values; rows are taken up to 6 at a time so that 12
 * accumulators stay in registers while K or V streams by.  F16 is widened on the fly: the conversion runs beside the
 * multiplications and costs less than a widened copy would.  K and V of a block are read from memory once per tile.
 *
 * A lane is one position (scores) or one dimension (values), so no sum is ever split: rows, tiles and pages can be cut
 * anywhere.
 * Read: run, tile_block, scores, softmax_row, values. */
#include "kernels/attn_int.h"
#include "kernels/avx2/math_avx2.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define IN_ORDER __asm__ volatile("" ::: "memory") /* else clang loads all broadcasts first and spills accumulators */
#else
#define UNROLL _Pragma("GCC unroll 8")
#define IN_ORDER ((void)0)
#endif

enum {
    TILE_ROWS = 48,  /* a tile's scores and one K block fit L2; 8 groups of 6 share each read of K and V */
    GROUP_ROWS = 6,  /* 2 x 6 accumulators, 2 loaded vectors, 1 broadcast: 15 of 16 registers */
    MAX_GROUPS = TILE_ROWS / GROUP_ROWS,
};
_Static_assert(TILE_ROWS % GROUP_ROWS == 0, "a full tile has MAX_GROUPS groups");

/* Positions [lo, hi) of a block that exactly the rows [row, row + n) of a tile see. */
typedef struct {
    uint32_t lo, hi, row, n;
} span;

/* Rows that are worked on together.  What they see of a block, relative to it, is cut into spans: one where all see the
 * same, else a few short ones at the ends, as the first and last visible positions move on from query to query. */
typedef struct {
    uint32_t begin, n; /* rows [begin, begin + n) of the tile */
    uint32_t lo, hi, n_spans;
    span spans[2 * GROUP_ROWS];
} row_group;

typedef struct {
    _Alignas(64) float p[TILE_ROWS][ATTN_BLOCK]; /* scores, then exp(score - m) */
    float o[TILE_ROWS * ATTN_HEAD_MAX];          /* this block's value sums, [row][head_dim] */
    float k[ATTN_HEAD_MAX * KV_LANES];           /* K of 16 positions gathered from pages smaller than that */
    const float *q[TILE_ROWS];
    float *out[TILE_ROWS];
    float big_m[TILE_ROWS], big_l[TILE_ROWS];
    uint32_t lo[TILE_ROWS], hi[TILE_ROWS];             /* visible positions */
    uint32_t block_lo[TILE_ROWS], block_hi[TILE_ROWS]; /* those in this block, relative to it */
    uint32_t seen_lo, seen_hi; /* what any row sees */
    uint32_t n_rows, n_groups;
    row_group groups[MAX_GROUPS];
} tile;

/* ---- storing ---- */

static void store(const kv_shape *s, void *k, void *v, uint32_t slot, const float *key, const float *value) {
    if (s->kv_type != TENSOR_F16) {
        attn_generic.store(s, k, v, slot, key, value);
        return;
    }
    uint32_t b = s->page_tokens < KV_LANES ? s->page_tokens : KV_LANES;
    uint16_t *k16 = (uint16_t *)k + kv_k_index(s, slot, 0), *v16 = v, lane[8];
    for (uint32_t d = 0; d < s->head_dim; d += 8) {
        _mm_storeu_si128((__m128i *)lane, _mm256_cvtps_ph(_mm256_loadu_ps(key + d), _MM_FROUND_TO_NEAREST_INT));
        for (uint32_t i = 0; i < 8; i++) k16[(size_t)(d + i) * b] = lane[i];
        _mm_storeu_si128((__m128i *)(v16 + kv_v_index(s, slot, d)),
                         _mm256_cvtps_ph(_mm256_loadu_ps(value + d), _MM_FROUND_TO_NEAREST_INT));
    }
}

/* ---- the two inner loops ---- */

INLINE __m256 load8(const void *p, size_t i, bool f16) {
    return f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)p + i)))
               : _mm256_loadu_ps((const float *)p + i);
}

INLINE void fma_pair(const uint32_t n, const bool wide, __m256 acc[][2], const float *const *x, size_t at, __m256 y0,
                     __m256 y1) {
    UNROLL for (uint32_t r = 0; r < n; r++) {
        __m256 b = _mm256_broadcast_ss(x[r] + at);
        acc[r][0] = _mm256_fmadd_ps(b, y0, acc[r][0]);
        if (wide) acc[r][1] = _mm256_fmadd_ps(b, y1, acc[r][1]);
        IN_ORDER;
    }
}

/* A cache line's worth of elements from index `at` on, into L2: what the other half of the block needs.  One stream of
 * reads cannot keep the memory busy, and hints a few lines ahead in the same stream gain nothing; asking for V while K
 * is read, and for the next K while V is, doubles decode speed (docs/performance.md).  Hints into L1 gain half of that. */
INLINE void ask_l2(const char *ahead, size_t at, bool f16) {
    _mm_prefetch(ahead + at * (f16 ? 2 : 4), _MM_HINT_T1);
    if (!f16) _mm_prefetch(ahead + at * 4 + 64, _MM_HINT_T1);
}

/* p[r][0..16) = scale * sum_d q[r][d] k[d][0..16) for n rows; p rows lie ATTN_BLOCK apart.
 * ahead: V of the same positions, 16 dimensions at a time, ahead_step bytes apart. */
INLINE void scores_n(const uint32_t n, const bool f16, const float *const *q, const char *k, uint32_t head_dim,
                     float scale, float *p, const char *ahead, size_t ahead_step) {
    __m256 acc[GROUP_ROWS][2];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        row[r] = q[r];
    }
    for (uint32_t c = 0; c < head_dim; c += KV_LANES, ahead += ahead_step) {
        uint32_t width = head_dim - c < KV_LANES ? 8 : KV_LANES;
        for (uint32_t d = 0; d < width; d += 2) {
            size_t at = (size_t)(c + d) * KV_LANES;
            ask_l2(ahead, d * KV_LANES, f16);
            fma_pair(n, true, acc, row, c + d, load8(k, at, f16), load8(k, at + 8, f16));
            fma_pair(n, true, acc, row, c + d + 1, load8(k, at + 16, f16), load8(k, at + 24, f16));
        }
    }
    __m256 s = _mm256_set1_ps(scale);
    UNROLL for (uint32_t r = 0; r < n; r++) {
        _mm256_storeu_ps(p + (size_t)r * ATTN_BLOCK, _mm256_mul_ps(acc[r][0], s));
        _mm256_storeu_ps(p + (size_t)r * ATTN_BLOCK + 8, _mm256_mul_ps(acc[r][1], s));
    }
}

/* o[r][0..8*w) += sum_j p[r][j] v[j][0..8*w) for n rows and n_pos positions; o rows lie head_dim apart.
 * ahead: as many bytes of the next block's K. */
INLINE void values_n(const uint32_t n, const uint32_t w, const bool f16, const float *p, const char *v, uint32_t n_pos,
                     float *o, size_t head_dim, const char *ahead) {
    __m256 acc[GROUP_ROWS][2];
    const float *row[GROUP_ROWS];
    UNROLL for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = _mm256_loadu_ps(o + r * head_dim);
        acc[r][1] = w == 2 ? _mm256_loadu_ps(o + r * head_dim + 8) : acc[r][0];
        row[r] = p + (size_t)r * ATTN_BLOCK;
    }
    uint32_t j = 0;
    for (; j + 2 <= n_pos; j += 2) {
        size_t at = (size_t)j * 8 * w;
        ask_l2(ahead, at, f16);
        fma_pair(n, w == 2, acc, row, j, load8(v, at, f16), load8(v, at + 8 * (w - 1), f16));
        at += 8 * w;
        fma_pair(n, w == 2, acc, row, j + 1, load8(v, at, f16), load8(v, at + 8 * (w - 1), f16));
    }
    if (j < n_pos) {
        size_t at = (size_t)j * 8 * w;
        fma_pair(n, w == 2, acc, row, j, load8(v, at, f16), load8(v, at + 8 * (w - 1), f16));
    }
    UNROLL for (uint32_t r = 0; r < n; r++) {
        _mm256_storeu_ps(o + r * head_dim, acc[r][0]);
        if (w == 2) _mm256_storeu_ps(o + r * head_dim + 8, acc[r][1]);
    }
}

/* Each number of rows gets loops of its own, with all accumulators in registers. */
#define BY_ROWS(n, call)                                                                                               \
    switch (n) {                                                                                                       \
    case 1: call(1); break;                                                                                            \
    case 2: call(2); break;                                                                                            \
    case 3: call(3); break;                                                                                            \
    case 4: call(4); break;                                                                                            \
    case 5: call(5); break;                                                                                            \
    default: call(6); break;                                                                                           \
    }

static void scores_16(uint32_t n, bool f16, const float *const *q, const char *k, uint32_t head_dim, float scale,
                      float *p, const char *ahead, size_t ahead_step) {
#define F16(n) scores_n(n, true, q, k, head_dim, scale, p, ahead, ahead_step)
#define F32(n) scores_n(n, false, q, k, head_dim, scale, p, ahead, ahead_step)
    if (f16) {
        BY_ROWS(n, F16)
    } else {
        BY_ROWS(n, F32)
    }
#undef F16
#undef F32
}

static void values_16(uint32_t n, uint32_t width, bool f16, const float *p, const char *v, uint32_t n_pos, float *o,
                      size_t head_dim, const char *ahead) {
#define WIDE_F16(n) values_n(n, 2, true, p, v, n_pos, o, head_dim, ahead)
#define WIDE_F32(n) values_n(n, 2, false, p, v, n_pos, o, head_dim, ahead)
#define HALF(n) values_n(n, 1, f16, p, v, n_pos, o, head_dim, ahead)
    if (width < KV_LANES) {
        BY_ROWS(n, HALF)
    } else if (f16) {
        BY_ROWS(n, WIDE_F16)
    } else {
        BY_ROWS(n, WIDE_F32)
    }
#undef WIDE_F16
#undef WIDE_F32
#undef HALF
}

/* ---- one block of a tile ---- */

/* K of positions [at, at + 16) as [head_dim][16] f32, out of pages of fewer than 16; only [lo, hi) may be touched. */
static void gather_k(const attn_job *job, uint32_t at, uint32_t lo, uint32_t hi, float *k) {
    const kv_shape *s = &job->shape;
    for (uint32_t i = 0; i < KV_LANES; i++) {
        uint32_t j = at + i;
        const void *page = j >= lo && j < hi ? attn_page(job, j, job->k_off) : NULL;
        size_t from = kv_k_index(s, j % s->page_tokens, 0);
        for (uint32_t d = 0; d < s->head_dim; d++, from += s->page_tokens) {
            float x = 0;
            if (page && s->kv_type == TENSOR_F16) x = _cvtsh_ss(((const uint16_t *)page)[from]);
            else if (page) x = ((const float *)page)[from];
            k[d * KV_LANES + i] = x;
        }
    }
}

static void scores(const attn_job *job, tile *t, uint32_t base, uint32_t lo, uint32_t hi) {
    const kv_shape *s = &job->shape;
    bool small = s->page_tokens < KV_LANES, f16 = s->kv_type == TENSOR_F16 && !small;
    size_t elem = kv_elem_bytes(s), v_step = (size_t)s->page_tokens * KV_LANES * elem;
    for (uint32_t at = lo / KV_LANES * KV_LANES; at < hi; at += KV_LANES) {
        const char *k = (const char *)t->k, *v = k;
        size_t step = 0;
        if (small) {
            gather_k(job, base + at, base + lo, base + hi, t->k);
        } else {
            size_t slot = (base + at) % s->page_tokens;
            k = (const char *)attn_page(job, base + at, job->k_off) + slot * s->head_dim * elem;
            v = (const char *)attn_page(job, base + at, job->v_off) + slot * KV_LANES * elem;
            step = v_step;
        }
        for (uint32_t g = 0; g < t->n_groups; g++) {
            const row_group *rg = &t->groups[g];
            if (rg->lo >= at + KV_LANES || rg->hi <= at) continue;
            scores_16(rg->n, f16, t->q + rg->begin, k, s->head_dim, job->scale, &t->p[rg->begin][at], v, step);
            v = k; /* asked for once is enough */
            step = 0;
        }
    }
}

/* Scores [lo, hi) of a row become p; returns m and l. */
static void softmax_row(float *p, uint32_t lo, uint32_t hi, float softcap, float *m, float *l) {
    uint32_t begin = lo & ~7u, end = (hi + 7) & ~7u;
    if (softcap > 0)
        for (uint32_t j = begin; j < end; j += 8)
            _mm256_storeu_ps(p + j, softcap8(_mm256_loadu_ps(p + j), _mm256_set1_ps(softcap)));
    /* What shares a vector with the ends becomes p = 0, which adds nothing to a lane that is at least 0. */
    for (uint32_t j = begin; j < lo; j++) p[j] = -INFINITY;
    for (uint32_t j = hi; j < end; j++) p[j] = -INFINITY;
    __m256 part[4], sum = _mm256_setzero_ps();
    UNROLL for (uint32_t i = 0; i < 4; i++) part[i] = _mm256_set1_ps(-INFINITY);
    uint32_t j = begin;
    for (; j + 32 <= end; j += 32)
        UNROLL for (uint32_t i = 0; i < 4; i++) part[i] = _mm256_max_ps(_mm256_loadu_ps(p + j + 8 * i), part[i]);
    for (; j < end; j += 8) part[0] = _mm256_max_ps(_mm256_loadu_ps(p + j), part[0]);
    *m = max8(_mm256_max_ps(_mm256_max_ps(part[0], part[1]), _mm256_max_ps(part[2], part[3])));
    __m256 max = _mm256_set1_ps(*m);
    for (j = begin; j < end; j += 8) {
        __m256 e = weight8(_mm256_sub_ps(_mm256_loadu_ps(p + j), max));
        sum = _mm256_add_ps(sum, e);
        _mm256_storeu_ps(p + j, e);
    }
    *l = sum8(sum);
}

static uint32_t later(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t sooner(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Positions [a, b) of the block that lie in one page, for 16 dimensions (8 at the end of an odd head_dim). */
typedef struct {
    const char *v, *ahead; /* V at position a; what to ask for meanwhile */
    uint32_t width, a, b;
    bool f16;
    size_t head_dim;
} v_run;

/* Add what a span has in common with the run. */
static void add_span(const v_run *run, tile *t, const span *sp, uint32_t d, const char *ahead) {
    uint32_t lo = later(sp->lo, run->a), hi = sooner(sp->hi, run->b);
    if (lo >= hi) return;
    const char *v = run->v + (size_t)(lo - run->a) * run->width * (run->f16 ? 2 : 4);
    values_16(sp->n, run->width, run->f16, &t->p[sp->row][lo], v, hi - lo, t->o + sp->row * run->head_dim + d,
              run->head_dim, ahead ? ahead : v);
}

/* Where the K lies that is wanted after the V of position base + at: the next block's, or that of the next job. */
static const char *next_k(const attn_job *job, const tile *t, uint32_t base, uint32_t at) {
    const kv_shape *s = &job->shape;
    uint32_t j = base + ATTN_BLOCK + at;
    size_t region = job->k_off;
    if (j >= t->seen_hi) {
        j = t->seen_lo / ATTN_BLOCK * ATTN_BLOCK + at;
        region = job->k_next;
        if (!region || j < t->seen_lo || j >= t->seen_hi) return NULL;
    }
    return (const char *)attn_page(job, j, region) + j % s->page_tokens * s->head_dim * kv_elem_bytes(s);
}

static void values(const attn_job *job, tile *t, uint32_t base, uint32_t lo, uint32_t hi) {
    const kv_shape *s = &job->shape;
    size_t elem = kv_elem_bytes(s);
    v_run run = {.f16 = s->kv_type == TENSOR_F16, .head_dim = s->head_dim};
    memset(t->o, 0, (size_t)t->n_rows * s->head_dim * sizeof *t->o);
    for (run.a = lo; run.a < hi; run.a = run.b) { /* what one page holds of the block */
        uint32_t slot = (base + run.a) % s->page_tokens;
        run.b = sooner(hi, run.a + s->page_tokens - slot);
        const char *page = attn_page(job, base + run.a, job->v_off);
        const char *ahead = next_k(job, t, base, run.a);
        for (uint32_t d = 0; d < s->head_dim; d += KV_LANES) {
            run.width = sooner(KV_LANES, s->head_dim - d);
            run.v = page + kv_v_index(s, slot, d) * elem;
            for (uint32_t g = 0; g < t->n_groups; g++) {
                const row_group *rg = &t->groups[g];
                for (uint32_t i = 0; i < rg->n_spans; i++)
                    add_span(&run, t, &rg->spans[i], d, g == 0 && rg->spans[i].n == rg->n ? ahead : NULL);
            }
            if (ahead) ahead += (size_t)(run.b - run.a) * run.width * elem;
        }
    }
}

static void merge_row(float *out, float *big_m, float *big_l, const float *o, float m, float l, uint32_t head_dim) {
    if (*big_l == 0) { /* the first: every l is at least 1 or NaN */
        *big_m = m;
        *big_l = l;
        memcpy(out, o, head_dim * sizeof *out);
        return;
    }
    float max = m > *big_m ? m : *big_m;
    float a = math_weightf(*big_m - max), b = math_weightf(m - max);
    __m256 a8 = _mm256_set1_ps(a), b8 = _mm256_set1_ps(b);
    *big_m = max;
    *big_l = fmaf(l, b, *big_l * a);
    for (uint32_t d = 0; d < head_dim; d += 8)
        _mm256_storeu_ps(out + d, _mm256_fmadd_ps(_mm256_loadu_ps(o + d), b8,
                                                  _mm256_mul_ps(_mm256_loadu_ps(out + d), a8)));
}

/* Cut [rg->lo, rg->hi) where a row begins or ends.  Both ends grow from row to row, so who sees a position are
 * neighbours. */
static void cut(const tile *t, row_group *rg) {
    rg->n_spans = 0;
    for (uint32_t x = rg->lo, next; x < rg->hi; x = next) {
        span sp = {.lo = x};
        next = rg->hi;
        for (uint32_t r = rg->begin; r < rg->begin + rg->n; r++) {
            uint32_t a = t->block_lo[r], b = t->block_hi[r];
            if (a <= x && x < b) {
                if (!sp.n++) sp.row = r;
                next = sooner(next, b);
            } else if (a > x) {
                next = sooner(next, a);
            }
        }
        sp.hi = next;
        if (sp.n) rg->spans[rg->n_spans++] = sp;
    }
}

static void tile_block(const attn_job *job, tile *t, uint32_t base) {
    uint32_t lo = ATTN_BLOCK, hi = 0;
    float m[TILE_ROWS], l[TILE_ROWS];
    for (uint32_t g = 0; g < t->n_groups; g++) {
        row_group *rg = &t->groups[g];
        rg->lo = ATTN_BLOCK;
        rg->hi = 0;
        for (uint32_t r = rg->begin; r < rg->begin + rg->n; r++) {
            uint32_t a = later(t->lo[r], base) - base, b = later(sooner(t->hi[r], base + ATTN_BLOCK), base) - base;
            if (a >= b) a = b = 0; /* sees none of this block */
            t->block_lo[r] = a;
            t->block_hi[r] = b;
            if (a < b) {
                rg->lo = sooner(rg->lo, a);
                rg->hi = later(rg->hi, b);
            }
        }
        cut(t, rg);
        lo = sooner(lo, rg->lo);
        hi = later(hi, rg->hi);
    }
    if (lo >= hi) return;
    scores(job, t, base, lo, hi);
    for (uint32_t r = 0; r < t->n_rows; r++)
        if (t->block_lo[r] < t->block_hi[r])
            softmax_row(t->p[r], t->block_lo[r], t->block_hi[r], job->softcap, &m[r], &l[r]);
    values(job, t, base, lo, hi);
    for (uint32_t r = 0; r < t->n_rows; r++)
        if (t->block_lo[r] < t->block_hi[r])
            merge_row(t->out[r], &t->big_m[r], &t->big_l[r], t->o + (size_t)r * job->shape.head_dim, m[r], l[r],
                      job->shape.head_dim);
}

static void finish_row(float *out, float big_m, float big_l, const float *sink, uint32_t head_dim) {
    float a = 1;
    if (sink) {
        float max = *sink > big_m ? *sink : big_m;
        a = math_weightf(big_m - max);
        big_l = fmaf(1.0f, math_weightf(*sink - max), big_l * a);
    }
    __m256 inv = _mm256_set1_ps(a * (1.0f / big_l));
    for (uint32_t d = 0; d < head_dim; d += 8) _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(out + d), inv));
}

/* Queries [i0, i0 + n) with heads [h0, h0 + n_heads). */
static void run_tile(const attn_job *job, tile *t, uint32_t i0, uint32_t n, uint32_t h0, uint32_t n_heads) {
    uint32_t head_dim = job->shape.head_dim, lo = UINT32_MAX, hi = 0;
    t->n_rows = n * n_heads;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        size_t i = i0 + r / n_heads, h = h0 + r % n_heads;
        t->q[r] = job->q + i * job->ldq + h * head_dim;
        t->out[r] = job->out + i * job->ldout + h * head_dim;
        t->big_m[r] = -INFINITY;
        t->big_l[r] = 0;
        attn_visible(job, job->pos0 + (uint32_t)i, &t->lo[r], &t->hi[r]);
        if (t->lo[r] >= t->hi[r]) {
            memset(t->out[r], 0, head_dim * sizeof(float));
            continue;
        }
        lo = sooner(lo, t->lo[r]);
        hi = later(hi, t->hi[r]);
    }
    t->n_groups = (t->n_rows + GROUP_ROWS - 1) / GROUP_ROWS;
    for (uint32_t g = 0, r = 0; g < t->n_groups; g++) {
        uint32_t left = t->n_groups - g, size = (t->n_rows - r + left - 1) / left;
        t->groups[g] = (row_group){.begin = r, .n = size};
        r += size;
    }
    t->seen_lo = lo;
    t->seen_hi = hi;
    for (uint32_t base = lo / ATTN_BLOCK * ATTN_BLOCK; base < hi; base += ATTN_BLOCK) tile_block(job, t, base);
    for (uint32_t r = 0; r < t->n_rows; r++)
        if (t->lo[r] < t->hi[r])
            finish_row(t->out[r], t->big_m[r], t->big_l[r], job->sinks ? &job->sinks[h0 + r % n_heads] : NULL, head_dim);
}

static void run(const attn_job *job, void *scratch) {
    uint32_t heads = sooner(job->n_group, TILE_ROWS), queries = TILE_ROWS / heads;
    for (uint32_t i = 0; i < job->n_q; i += queries)
        for (uint32_t h = 0; h < job->n_group; h += heads)
            run_tile(job, scratch, i, sooner(queries, job->n_q - i), h, sooner(heads, job->n_group - h));
}

const attn_ops attn_avx2 = {.store = store, .run = run, .scratch_bytes = sizeof(tile)};
