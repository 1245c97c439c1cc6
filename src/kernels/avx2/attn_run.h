/* attn_run.h - attention over pages for AVX2 and, with ATTN_WIDE 1, AVX-512, to the bits of attn_generic.c (order: attn_int.h).
 *
 * Work goes tile by tile: up to TILE_ROWS rows, a row being one (query, head), queries outermost.  Per block of 256
 * positions a tile makes all scores, turns them into p, and sums values (attn_loops.h).  K and V of a block are read from
 * memory once per tile.
 *
 * Memory is asked for one item ahead (foresee): while a block is worked on, what comes after it is on its way, be it the next
 * block or the next job's first.
 *
 * A lane is one position (scores) or one dimension (values), so no sum is ever split: rows, tiles and pages can be cut
 * anywhere.
 *
 * This is for few rows, whose time is the memory's: a step of decoding.  Many rows go to attn_seg.h, unless pages hold less
 * than 16 positions.
 * Read: run, tile_block, scores, max_row, weigh_row, values. */
#include "kernels/avx2/attn_loops.h"
#include "kernels/avx2/kv_turn_avx2.h"

#include <string.h>

enum {
    TILE_ROWS = 48, /* a tile's scores and one K block fit L2; its groups share each read of K and V */
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

_Static_assert((int)ATTN_HEAD_MAX >= (int)ATTN_BLOCK, "widened holds either");

/* The block that comes next: its tiles of K that are seen, [lo, hi) relative to it.  values: V is wanted too, all of it. */
typedef struct {
    const void *const *pages;
    size_t k_off, v_off;
    uint32_t base, lo, hi;
    bool values;
} upcoming;

typedef struct {
    _Alignas(64) float p[TILE_ROWS][ATTN_BLOCK]; /* scores, then exp(score - m) */
    float o[TILE_ROWS * ATTN_HEAD_MAX];          /* this block's value sums, [row][head_dim] */
    float scaled[TILE_ROWS][ATTN_BLOCK];         /* q8, q4: p times the scale of a position's value block */
    float widened[ATTN_HEAD_MAX * KV_LANES];     /* q8, q4 as f32: K of 16 positions, or V of a block for 16 dimensions */
    char k[ATTN_HEAD_MAX * KV_LANES * 4];        /* K of 16 positions gathered from pages smaller than that */
    float turned[TILE_ROWS][ATTN_HEAD_MAX];      /* q4: the queries */
    const float *q[TILE_ROWS];
    float *out[TILE_ROWS];
    float big_m[TILE_ROWS], big_l[TILE_ROWS];
    uint32_t lo[TILE_ROWS], hi[TILE_ROWS];             /* visible positions */
    uint32_t block_lo[TILE_ROWS], block_hi[TILE_ROWS]; /* those in this block, relative to it */
    uint32_t seen_lo, seen_hi;                         /* what any row sees */
    upcoming next;
    bool last, asked;                                  /* tile of the job; V of the block is on its way already, for then */
                                                       /* scores ask for K of what is next, and values for its V */
    uint32_t n_rows, n_groups;
    row_group groups[MAX_GROUPS];
} tile;

/* ---- one block of a tile ---- */

static bool in_a_block(uint32_t lo, uint32_t hi) { return lo / ATTN_BLOCK == (hi - 1) / ATTN_BLOCK; }

/* What comes after the block at base.  V of a block is asked for while its scores are made, which is too late where the
 * block is all there is: then it comes with the job before. */
static void foresee(const attn_job *job, tile *t, uint32_t base) {
    uint32_t lo, hi, end;
    t->asked = false;
    t->next = (upcoming){.pages = NULL};
    if (job->shape.page_tokens < KV_LANES) return;
    if (base + ATTN_BLOCK < t->seen_hi) {
        t->next = (upcoming){job->pages, job->k_off, job->v_off, base + ATTN_BLOCK, 0, 0, false};
        end = t->seen_hi;
    } else if (t->last && job->next.pages) {
        attn_visible(job, job->next.pos, &lo, &hi);
        if (lo >= hi) return;
        base = lo / ATTN_BLOCK * ATTN_BLOCK;
        t->next = (upcoming){job->next.pages, job->next.k_off, job->next.v_off, base, (lo - base) & ~(KV_LANES - 1u), 0,
                             in_a_block(lo, hi)};
        end = hi;
    } else {
        return;
    }
    t->asked = job->announced && in_a_block(t->seen_lo, t->seen_hi) && t->next.values;
    t->next.hi = (sooner(end - t->next.base, ATTN_BLOCK) + KV_LANES - 1) & ~(KV_LANES - 1u);
}

static const char *upcoming_at(const kv_shape *s, const upcoming *n, uint32_t at, size_t region) {
    return (const char *)n->pages[(n->base + at) / s->page_tokens] + region;
}

/* Ask for tiles [lo, hi) of what comes next: K, V or both. */
static void ask_tiles(const kv_shape *s, const upcoming *n, uint32_t lo, uint32_t hi, bool k, bool v) {
    for (uint32_t at = later(lo, n->lo); at < sooner(hi, n->hi); at += KV_LANES) {
        uint32_t slot = (n->base + at) % s->page_tokens;
        const char *from = upcoming_at(s, n, at, n->k_off) + slot * kv_k_bytes(s);
        for (size_t i = 0; k && i < KV_LANES * kv_k_bytes(s); i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
        if (!v) continue;
        from = upcoming_at(s, n, at, n->v_off);
        for (uint32_t d = 0; d < s->head_dim; d += KV_LANES) {
            const char *chunk = from + kv_v_at(s, slot, d);
            if (kv_blocked(s) && d % KV_BLOCK == 0) _mm_prefetch(from + kv_v_scale_at(s, slot, d / KV_BLOCK), _MM_HINT_T1);
            for (size_t i = 0; i < KV_LANES * kv_v_run(s, KV_LANES); i += 64) _mm_prefetch(chunk + i, _MM_HINT_T1);
        }
    }
}

/* K of positions [at, at + 16) as in a page of 16, out of smaller ones; only [lo, hi) may be touched. */
static void gather_k(const attn_job *job, uint32_t at, uint32_t lo, uint32_t hi, char *k) {
    const kv_shape *s = &job->shape;
    kv_shape wide = *s;
    size_t unit = kv_blocked(s) ? 1 : kv_plain_bytes(s);
    wide.page_tokens = KV_LANES;
    memset(k, 0, KV_LANES * kv_k_bytes(s));
    for (uint32_t i = 0; i < KV_LANES; i++) {
        uint32_t j = at + i, slot = j % s->page_tokens;
        if (j < lo || j >= hi) continue;
        const char *page = attn_page(job, j, job->k_off);
        for (uint32_t d = 0; d < s->head_dim; d += s->scheme == KV_Q4 ? 2 : 1)
            memcpy(k + kv_k_at(&wide, i, d), page + kv_k_at(s, slot, d), unit);
        for (uint32_t c = 0; kv_blocked(s) && c < kv_blocks(s); c++)
            memcpy(k + kv_k_scale_at(&wide, i, c), page + kv_k_scale_at(s, slot, c), KV_SCALE_BYTES);
    }
}

/* Whether q8 or q4 are widened once for all groups of rows: taking q4 apart twice costs more than a copy, q8 three times. */
static bool widens(const attn_job *job, const tile *t) {
    return (job->shape.scheme == KV_Q4 && t->n_groups > 1) || (job->shape.scheme == KV_Q8 && t->n_groups > 2);
}

/* The integers of K of 16 positions as f32, [head_dim][16]. */
static void widen_k(const kv_shape *s, const char *k, float *out) {
    for (uint32_t d = 0; d < s->head_dim; k += KV_LANES * KV_SCALE_BYTES) {
        uint32_t end = sooner(d + KV_BLOCK, s->head_dim);
        for (; d < end; d += 2, k += s->scheme == KV_Q8 ? 2 * KV_LANES : KV_LANES, out += 2 * KV_LANES) {
            __m128i low = _mm_loadu_si128((const __m128i *)k), high;
            if (s->scheme == KV_Q8) {
                high = _mm_loadu_si128((const __m128i *)(k + KV_LANES));
            } else {
                high = nibbles(low, true);
                low = nibbles(low, false);
            }
            store16(out, floats16(low));
            store16(out + KV_LANES, floats16(high));
        }
    }
}

/* Say where tile i of kt, 16 positions from base + at on, has its K, and V that is to be asked for. */
static void aim(const attn_job *job, tile *t, k_tile *kt, uint32_t i, uint32_t base, uint32_t at) {
    const kv_shape *s = &job->shape;
    uint32_t slot = (base + at) % s->page_tokens;
    kt->at[i] = at;
    kt->k[i] = kt->block[i] = (const char *)attn_page(job, base + at, job->k_off) + slot * kv_k_bytes(s);
    if (t->asked) {
        uint32_t to = later(t->next.lo, sooner(at, t->next.hi - KV_LANES)); /* the nearest it has; for the others: ask_rest */
        const char *k = upcoming_at(s, &t->next, to, t->next.k_off);
        slot = (t->next.base + to) % s->page_tokens;
        kt->ahead[i] = k + kv_k_at(s, slot, 0);
        kt->ahead_scales[i] = k + kv_k_scale_at(s, slot, 0);
    } else {
        const char *v = attn_page(job, base + at, job->v_off);
        kt->ahead[i] = v + kv_v_at(s, slot, 0);
        kt->ahead_scales[i] = v + kv_v_scale_at(s, slot, 0);
    }
    if (widens(job, t)) {
        widen_k(s, kt->k[i], t->widened);
        kt->k[i] = (const char *)t->widened;
    }
}

/* The scores of all groups of rows for the m tiles of kt. */
static void scores_of(const attn_job *job, tile *t, k_tile *kt, uint32_t m) {
    bool blocked = kv_blocked(&job->shape);
    kv_scheme scheme = widens(job, t) ? KV_F32 : job->shape.scheme;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        const row_group *rg = &t->groups[g];
        if (m == 1 && (rg->lo >= kt->at[0] + KV_LANES || rg->hi <= kt->at[0])) continue;
        scores_16(rg->n, m, scheme, blocked, t->q + rg->begin, kt, job->shape.head_dim, job->scale, t->p[rg->begin]);
        for (uint32_t i = 0; i < m; i++) kt->ahead[i] = kt->ahead_scales[i] = kt->k[i]; /* asked for once is enough */
        kt->ahead_chunk = kt->ahead_block = 0;
    }
}

/* Tiles that are worked on together lie far apart: a CPU follows several streams at once better than one. */
static void scores(const attn_job *job, tile *t, uint32_t base, uint32_t lo, uint32_t hi) {
    const kv_shape *s = &job->shape;
    bool small = s->page_tokens < KV_LANES;
    uint32_t side = t->asked ? KV_LANES : s->page_tokens; /* positions that lie side by side in what is asked for */
    k_tile far = {.ahead_chunk = side * kv_v_run(s, KV_LANES)}, kt;
    uint32_t first = lo / KV_LANES, end = (hi + KV_LANES - 1) / KV_LANES;
    uint32_t m = t->n_groups == 1 && !small ? tiles_at_once(t->n_rows) : 1, each = (end - first + m - 1) / m;
    if (kv_blocked(s)) {
        far.ahead_block = side * KV_SCALE_BYTES;
        far.pair_bytes = (uint32_t)kv_k_run(s, 2) * KV_LANES;
        far.gap = widens(job, t) ? 0 : KV_LANES * KV_SCALE_BYTES;
    }
    for (uint32_t j = 0; j < each; j++) {
        uint32_t n = 0;
        kt = far;
        if (small) {
            uint32_t at = (first + j) * KV_LANES;
            gather_k(job, base + at, base + lo, base + hi, t->k);
            kt = (k_tile){.k = {t->k},
                          .block = {t->k},
                          .ahead = {t->k},
                          .ahead_scales = {t->k},
                          .at = {at},
                          .pair_bytes = far.pair_bytes,
                          .gap = far.gap};
            if (widens(job, t)) {
                widen_k(s, t->k, t->widened);
                kt.k[0] = (const char *)t->widened;
            }
            n = 1;
        } else {
            for (uint32_t i = first + j; i < end && n < m; i += each) aim(job, t, &kt, n++, base, i * KV_LANES);
        }
        scores_of(job, t, &kt, n);
    }
}

/* Softcap and maximum of a row's scores [lo, hi).  All rows of a tile get theirs first and p then: both end in a few steps
 * that wait for each other, and where positions are few the next row must fill these waits. */
static float max_row(float *p, uint32_t lo, uint32_t hi, float softcap) {
    uint32_t begin = lo & ~7u, end = (hi + 7) & ~7u;
    if (softcap > 0)
        for (uint32_t j = begin; j < end; j += 8)
            _mm256_storeu_ps(p + j, softcap8(_mm256_loadu_ps(p + j), _mm256_set1_ps(softcap)));
    /* What shares a vector with the ends becomes p = 0, which adds nothing to a lane that is at least 0. */
    for (uint32_t j = begin; j < lo; j++) p[j] = -INFINITY;
    for (uint32_t j = hi; j < end; j++) p[j] = -INFINITY;
    __m256 part[4];
    UNROLL for (uint32_t i = 0; i < 4; i++) part[i] = _mm256_set1_ps(-INFINITY);
    uint32_t j = begin;
    for (; j + 32 <= end; j += 32)
        UNROLL for (uint32_t i = 0; i < 4; i++) part[i] = _mm256_max_ps(_mm256_loadu_ps(p + j + 8 * i), part[i]);
    for (; j < end; j += 8) part[0] = _mm256_max_ps(_mm256_loadu_ps(p + j), part[0]);
    return max8(_mm256_max_ps(_mm256_max_ps(part[0], part[1]), _mm256_max_ps(part[2], part[3])));
}

/* The scores become p; returns l. */
static float weigh_row(float *p, uint32_t lo, uint32_t hi, float m) {
    __m256 max = _mm256_set1_ps(m), sum = _mm256_setzero_ps();
    for (uint32_t j = lo & ~7u; j < hi; j += 8) {
        __m256 e = weight8(_mm256_sub_ps(_mm256_loadu_ps(p + j), max));
        sum = _mm256_add_ps(sum, e);
        _mm256_storeu_ps(p + j, e);
    }
    return sum8(sum);
}

/* Positions [a, b) of the block that lie in one page, for m times 16 dimensions (8 at the end of an odd head_dim). */
typedef struct {
    const char *v, *ahead, *ahead_end; /* V at position a; what to ask for meanwhile */
    size_t bytes, step;                /* of a position; to the next 16 dimensions */
    size_t ahead_step, ask;            /* v_tile */
    uint32_t width, m, a, b;
    kv_scheme scheme; /* of v: widened or not */
} v_run;

/* Add what a span has in common with the run. */
static void add_span(const attn_job *job, const v_run *run, tile *t, const span *sp, uint32_t d, bool asks) {
    uint32_t lo = later(sp->lo, run->a), hi = sooner(sp->hi, run->b);
    size_t head_dim = job->shape.head_dim;
    if (lo >= hi) return;
    v_tile vt = {.v = run->v + (lo - run->a) * run->bytes, .step = run->step, .n_pos = hi - lo};
    const float *p = kv_blocked(&job->shape) ? &t->scaled[sp->row][lo] : &t->p[sp->row][lo];
    vt.ahead = vt.ahead_end = vt.v;
    if (asks) {
        vt.ahead = run->ahead;
        vt.ahead_end = run->ahead_end;
        vt.ahead_step = run->ahead_step;
        vt.ask = run->ask;
    }
    float *o = t->o + sp->row * head_dim + d;
    if (run->width < KV_LANES) values_8(sp->n, run->scheme, run->bytes, p, &vt, o, head_dim);
    else values_16(sp->n, run->m, run->scheme, p, &vt, o, head_dim);
}

/* The integers of the run's values as f32, in t->widened. */
static void widen_v(tile *t, v_run *run) {
    float *out = t->widened;
    const char *v = run->v;
    for (uint32_t j = run->a; j < run->b; j++, v += run->bytes, out += run->width) {
        __m128i x = _mm_loadl_epi64((const __m128i *)v), high = x;
        if (run->scheme == KV_Q8) {
            if (run->width == KV_LANES) high = _mm_loadl_epi64((const __m128i *)(v + 8));
        } else {
            high = nibbles(x, true);
            x = nibbles(x, false);
        }
        _mm256_storeu_ps(out, floats8(x));
        if (run->width == KV_LANES) _mm256_storeu_ps(out + 8, floats8(high));
    }
    run->v = (const char *)t->widened;
    run->bytes = run->width * sizeof(float);
    run->scheme = KV_F32;
}

/* scaled = p * scale of the values' block, for the positions of a run; scales: that of the run's first position. */
static void scale_rows(tile *t, const v_run *run, const char *scales) {
    for (uint32_t r = 0; r < t->n_rows; r++) {
        uint32_t j = later(run->a, t->block_lo[r]), end = sooner(run->b, t->block_hi[r]);
        const float *p = t->p[r];
        float *out = t->scaled[r];
        for (; j < end && j % 8; j++) out[j] = p[j] * _cvtsh_ss(((const uint16_t *)scales)[j - run->a]);
        for (; j + 8 <= end; j += 8) {
            __m256 scale = halves8(scales + (size_t)(j - run->a) * KV_SCALE_BYTES);
            _mm256_storeu_ps(out + j, _mm256_mul_ps(_mm256_loadu_ps(p + j), scale));
        }
        for (; j < end; j++) out[j] = p[j] * _cvtsh_ss(((const uint16_t *)scales)[j - run->a]);
    }
}

/* What of the next block is asked for with the positions of a run, in whole tiles; K is one piece, V has one for each chunk. */
typedef struct {
    const char *at, *scales;
    size_t bytes, chunk; /* of a piece; between two of them, 0: K */
    uint32_t n;          /* positions */
} errand;

static errand errand_of(const kv_shape *s, const tile *t, uint32_t a, uint32_t b) {
    const upcoming *n = &t->next;
    uint32_t lo = later(a & ~(KV_LANES - 1u), n->lo), hi = sooner((b + KV_LANES - 1) & ~(KV_LANES - 1u), n->hi), slot;
    errand e = {.at = NULL};
    if (!n->pages || lo >= hi) return e;
    slot = (n->base + lo) % s->page_tokens;
    e.at = upcoming_at(s, n, lo, t->asked ? n->v_off : n->k_off);
    if (t->asked) {
        e.scales = e.at + kv_v_scale_at(s, slot, 0);
        e.at += kv_v_at(s, slot, 0);
        e.chunk = s->page_tokens * kv_v_run(s, KV_LANES);
        e.bytes = (hi - lo) * kv_v_run(s, KV_LANES);
    } else {
        e.at += slot * kv_k_bytes(s);
        e.bytes = (hi - lo) * kv_k_bytes(s);
    }
    e.n = hi - lo;
    return e;
}

/* The part of an errand that goes with dimensions d and on. */
static void set_out(const kv_shape *s, v_run *run, const errand *e, uint32_t d) {
    run->ahead = run->ahead_end = NULL;
    if (!e->at) return;
    if (e->chunk) {
        size_t before = kv_blocked(s) ? d / KV_BLOCK * KV_SCALE_BYTES * s->page_tokens : 0;
        run->ahead = e->at + d / KV_LANES * e->chunk + before;
        run->ahead_step = e->chunk;
        run->ahead_end = run->ahead + e->bytes;
        run->ask = 2 * kv_v_run(s, KV_LANES);
        if (kv_blocked(s) && d % KV_BLOCK == 0)
            for (size_t i = 0; i < e->n * KV_SCALE_BYTES; i += 64)
                _mm_prefetch(e->scales + before + d / KV_LANES * e->chunk + i, _MM_HINT_T1);
        return;
    }
    size_t end = e->bytes * sooner(d + run->m * KV_LANES, s->head_dim) / s->head_dim, begin = e->bytes * d / s->head_dim;
    run->ahead = e->at + begin;
    run->ahead_step = ((end - begin) / run->m + 63) & ~(size_t)63;
    run->ahead_end = run->ahead + (run->m > 1 ? run->ahead_step : end - begin);
    run->ask = 2 * ((kv_k_bytes(s) * KV_LANES + s->head_dim - 1) / s->head_dim);
}

/* What the loops did not come to: the next job's positions may be more than those of this one. */
static void ask_rest(const kv_shape *s, const tile *t, uint32_t lo, uint32_t hi) {
    const upcoming *n = &t->next;
    lo &= ~(KV_LANES - 1u);
    hi = (hi + KV_LANES - 1) & ~(KV_LANES - 1u);
    ask_tiles(s, n, 0, lo, true, n->values);
    if (n->values && !t->asked) ask_tiles(s, n, lo, hi, false, true);
    ask_tiles(s, n, hi, ATTN_BLOCK, true, n->values);
}

static void values(const attn_job *job, tile *t, uint32_t base, uint32_t lo, uint32_t hi) {
    const kv_shape *s = &job->shape;
    uint32_t most = t->n_groups > 1 ? 1 : sooner(tiles_at_once(t->n_rows), kv_blocked(s) ? 2 : MAX_TILES);
    v_run run = {.step = s->page_tokens * kv_v_run(s, KV_LANES)};
    memset(t->o, 0, (size_t)t->n_rows * s->head_dim * sizeof *t->o);
    for (run.a = lo; run.a < hi; run.a = run.b) { /* what one page holds of the block */
        uint32_t slot = (base + run.a) % s->page_tokens;
        run.b = sooner(hi, run.a + s->page_tokens - slot);
        const char *page = attn_page(job, base + run.a, job->v_off);
        errand ahead = errand_of(s, t, run.a, run.b);
        for (uint32_t d = 0; d < s->head_dim; d += run.m * KV_LANES) {
            run.m = most;
            while (run.m > 1 && d + run.m * KV_LANES > s->head_dim) run.m /= 2;
            if (kv_blocked(s) && d % KV_BLOCK) run.m = 1; /* not across blocks */
            run.width = sooner(KV_LANES, s->head_dim - d);
            run.v = page + kv_v_at(s, slot, d);
            run.bytes = kv_v_run(s, run.width);
            run.scheme = s->scheme;
            set_out(s, &run, &ahead, d);
            if (kv_blocked(s) && d % KV_BLOCK == 0) scale_rows(t, &run, page + kv_v_scale_at(s, slot, d / KV_BLOCK));
            if (widens(job, t)) widen_v(t, &run);
            for (uint32_t g = 0; g < t->n_groups; g++) {
                const row_group *rg = &t->groups[g];
                for (uint32_t i = 0; i < rg->n_spans; i++)
                    add_span(job, &run, t, &rg->spans[i], d, run.ahead && g == 0 && rg->spans[i].n == rg->n);
            }
        }
    }
    if (t->next.pages && base + ATTN_BLOCK >= t->seen_hi) ask_rest(s, t, lo, hi);
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
        _mm256_storeu_ps(out + d, _mm256_fmadd_ps(_mm256_loadu_ps(o + d), b8, _mm256_mul_ps(_mm256_loadu_ps(out + d), a8)));
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
    foresee(job, t, base);
    scores(job, t, base, lo, hi);
    for (uint32_t r = 0; r < t->n_rows; r++)
        if (t->block_lo[r] < t->block_hi[r]) m[r] = max_row(t->p[r], t->block_lo[r], t->block_hi[r], job->softcap);
    for (uint32_t r = 0; r < t->n_rows; r++)
        if (t->block_lo[r] < t->block_hi[r]) l[r] = weigh_row(t->p[r], t->block_lo[r], t->block_hi[r], m[r]);
    values(job, t, base, lo, hi);
    for (uint32_t r = 0; r < t->n_rows; r++)
        if (t->block_lo[r] < t->block_hi[r])
            merge_row(t->out[r], &t->big_m[r], &t->big_l[r], t->o + (size_t)r * job->shape.head_dim, m[r], l[r],
                      job->shape.head_dim);
}

/* What a row's value sums are multiplied by in the end. */
static float part_of_sum(float big_m, float big_l, const float *sink) {
    float a = 1;
    if (sink) {
        float max = *sink > big_m ? *sink : big_m;
        a = math_weightf(big_m - max);
        big_l = fmaf(1.0f, math_weightf(*sink - max), big_l * a);
    }
    return a * (1.0f / big_l);
}

static void finish_row(float *out, float part, uint32_t head_dim) {
    __m256 x = _mm256_set1_ps(part);
    for (uint32_t d = 0; d < head_dim; d += 8) _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(out + d), x));
}

/* Queries [i0, i0 + n) with heads [h0, h0 + n_heads). */
static void run_tile(const attn_job *job, tile *t, uint32_t i0, uint32_t n, uint32_t h0, uint32_t n_heads) {
    uint32_t head_dim = job->shape.head_dim, lo = UINT32_MAX, hi = 0;
    t->n_rows = n * n_heads;
    t->last = i0 + n == job->n_q && h0 + n_heads == job->n_group;
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
        if (job->shape.scheme == KV_Q4) {
            kv_turn_avx2(t->q[r], t->turned[r], head_dim, KV_TURN_QUERY);
            t->q[r] = t->turned[r];
        }
    }
    t->n_groups = (t->n_rows + GROUP_ROWS - 1) / GROUP_ROWS;
    for (uint32_t g = 0, r = 0; g < t->n_groups; g++) {
        uint32_t left = t->n_groups - g, size = (t->n_rows - r + left - 1) / left;
        t->groups[g].begin = r;
        t->groups[g].n = size;
        r += size;
    }
    t->seen_lo = lo;
    t->seen_hi = hi;
    for (uint32_t base = lo / ATTN_BLOCK * ATTN_BLOCK; base < hi; base += ATTN_BLOCK) tile_block(job, t, base);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        if (t->lo[r] >= t->hi[r]) continue;
        const float *sink = job->sinks ? &job->sinks[h0 + r % n_heads] : NULL;
        finish_row(t->out[r], part_of_sum(t->big_m[r], t->big_l[r], sink), head_dim);
        if (job->shape.scheme == KV_Q4) kv_turn_avx2(t->out[r], t->out[r], head_dim, KV_TURN_BACK);
    }
}

#include "kernels/avx2/attn_seg.h"

static void run(const attn_job *job, void *scratch) {
    if (job->n_q > 1 && (uint64_t)job->n_q * job->n_group > GROUP_ROWS && job->shape.page_tokens >= KV_LANES) {
        run_segment(job, scratch);
        return;
    }
    uint32_t heads = sooner(job->n_group, TILE_ROWS), queries = TILE_ROWS / heads;
    for (uint32_t i = 0; i < job->n_q; i += queries)
        for (uint32_t h = 0; h < job->n_group; h += heads)
            run_tile(job, scratch, i, sooner(queries, job->n_q - i), h, sooner(heads, job->n_group - h));
}

enum { SCRATCH = sizeof(tile) > sizeof(segment) ? sizeof(tile) : sizeof(segment) };
const attn_ops ATTN_OPS = {.store = kv_store_avx2, .run = run, .scratch_bytes = SCRATCH};
