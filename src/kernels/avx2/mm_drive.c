/* mm_drive.c - the way of a call through its matrix: which rows meet which tokens when. */
#include "kernels/avx2/mm_avx2.h"

enum {
    M_BLOCK = 128,     /* tokens whose quantised activations stay in L2 while all rows pass by; measured */
    RUN_BYTES = 1200,  /* of a stream, before the next one's turn: 0.5 to 2 kB are within 3 % (measured) */
    WIDE_BYTES = 4608, /* of a group: two of them and 8 tokens beside them are within L1 */
    WIDE_TWO = 3072,   /* of a group: with two tokens shorter ones are better off as four streams; measured */
    AHEAD_FOUR = 1024, /* with 4 tokens a line is multiplied for long enough to fetch from further ahead; measured */
};

/* Scratch: sums of 16 rows x M_BLOCK tokens, one tile, the panel. */
typedef struct {
    __m256 sums[2 * M_BLOCK];
    __m256i tmp[16];
    uint8_t panel[];
} work;

enum { PANEL_MAX = 16 * 1024 }; /* the floats' panel is the largest */
_Static_assert(sizeof(work) + PANEL_MAX <= MM_SCRATCH_BYTES, "scratch holds sums, tile and panel");

typedef struct {
    const mm_tiles *t;
    const mm_weight *w;
    const uint8_t *act;
    size_t group_bytes, record;
    uint32_t n_units, n_blocks, r1, m;
    float *y;
    size_t ldy;
    work *s;
} call;

static inline const uint8_t *group_at(const call *c, uint32_t g) {
    return (const uint8_t *)c->w->data + g * c->group_bytes;
}

static inline void store(const call *c, uint32_t g, uint32_t t, const __m256 *v) {
    float *y = c->y + t * c->ldy + (size_t)g * MM_ROWS;
    uint32_t n = c->r1 - g * MM_ROWS;
    if (n >= MM_ROWS)
        _mm256_storeu_ps(y, _mm256_load_ps((const float *)v));
    else
        memcpy(y, v, n * sizeof *y);
}

/* Groups g + j * part for j in [0, sets * nr), with tokens [t0, t1).  The streams advance together in runs of units: nr at
 * once, one set of nr after the other, and a run meets all tokens while it is in L1.  What reads it first asks for what
 * comes right after it, what reads it last for the next run. */
static void walk(const call *c, uint32_t sets, uint32_t nr, uint32_t g, uint32_t part, uint32_t t0, uint32_t t1) {
    uint32_t per_unit = c->n_blocks / c->n_units;
    size_t unit = c->group_bytes / c->n_units;
    uint32_t run = unit < RUN_BYTES ? (uint32_t)(RUN_BYTES / unit) : 1;
    __m256 *sums = c->s->sums;
    memset(sums, 0, (size_t)(t1 - t0) * sets * nr * sizeof *sums);
    for (uint32_t u = 0; u < c->n_units; u += run) {
        uint32_t n = c->n_units - u < run ? c->n_units - u : run;
        for (uint32_t i = 0; i < sets; i++) {
            const uint8_t *w[4];
            for (uint32_t r = 0; r < nr; r++) w[r] = group_at(c, g + (i * nr + r) * part) + u * unit;
            for (uint32_t t = t0; t < t1; t += MM_PANEL) {
                uint32_t nc = t1 - t < MM_PANEL ? t1 - t : MM_PANEL;
                const uint8_t *a = c->act + ((size_t)t * c->n_blocks + (size_t)u * per_unit * nc) * c->record;
                ptrdiff_t ahead = t1 - t0 == MM_PANEL ? AHEAD_FOUR
                                  : t == t0           ? c->t->ahead
                                  : t1 - t <= MM_PANEL ? (ptrdiff_t)(run * unit)
                                                       : 0;
                c->t->direct[nr][nc](w, ahead, a, n, sums + (i * (t1 - t0) + t - t0) * nr, c->s->tmp);
            }
        }
    }
    for (uint32_t i = 0; i < sets; i++)
        for (uint32_t t = t0; t < t1; t++)
            for (uint32_t r = 0; r < nr; r++) store(c, g + (i * nr + r) * part, t, sums++);
}

/* All groups without unpacking them: distant streams, the parts of [g0, g1), then what is left over. */
static void direct(const call *c, uint32_t g0, uint32_t g1, uint32_t t0, uint32_t t1) {
    uint32_t m = t1 - t0, nr = m <= 2 ? 4 : 2, sets = m > MM_PANEL && 4 * m <= 2 * M_BLOCK ? 2 : 1;
    uint32_t part = (g1 - g0) / (sets * nr);
    for (uint32_t i = 0; i < part; i++) walk(c, sets, nr, g0 + i, part, t0, t1);
    for (g0 += part * sets * nr; g0 + 2 <= g1; g0 += 2) walk(c, 1, 2, g0, 1, t0, t1);
    if (g0 < g1) walk(c, 1, 1, g0, 1, t0, t1);
}

/* Groups g and g + 1 without unpacking them first.  A run meets all tokens while it is in the caches, in panels of 4 two at
 * once, or one first where the rest would be less than one. */
static void pair_wide(const call *c, uint32_t g, uint32_t t0, uint32_t t1) {
    uint32_t per_unit = c->n_blocks / c->n_units, nc;
    size_t unit = c->group_bytes / c->n_units;
    uint32_t n_runs = t1 - t0 <= MM_WIDE ? 1 : (uint32_t)((c->group_bytes + WIDE_BYTES / 2) / WIDE_BYTES);
    uint32_t run = n_runs > 1 ? (c->n_units + n_runs - 1) / n_runs : c->n_units;
    bool whole = c->r1 - g * MM_ROWS >= 2 * MM_ROWS;
    for (uint32_t u = 0; u < c->n_units; u += run) {
        uint32_t n = c->n_units - u < run ? c->n_units - u : run;
        bool last = u + n == c->n_units, out = last && whole;
        const uint8_t *w[2], *next[2];
        w[0] = group_at(c, g) + u * unit, w[1] = w[0] + c->group_bytes;
        next[0] = last ? group_at(c, g + 2) : w[0] + n * unit, next[1] = next[0] + c->group_bytes;
        for (uint32_t t = t0; t < t1; t += nc) {
            uint32_t left = t1 - t, first, second;
            __m256 *sums = c->s->sums + (t - t0) * 2;
            size_t at = (size_t)u * per_unit;
            nc = left > MM_WIDE && left < MM_WIDE + MM_PANEL ? MM_PANEL : left < MM_WIDE ? left : MM_WIDE;
            first = nc < MM_PANEL ? nc : MM_PANEL, second = nc - first;
            c->t->wide[nc](w, t + nc < t1 ? w : next, c->act + ((size_t)t * c->n_blocks + at * first) * c->record,
                           c->act + ((size_t)(t + MM_PANEL) * c->n_blocks + at * second) * c->record, n,
                           u ? (const float *)sums : NULL, out ? c->y + t * c->ldy + (size_t)g * MM_ROWS : (float *)sums,
                           out ? c->ldy : 2 * MM_ROWS);
            if (last && !out)
                for (uint32_t j = 0; j < 2 * nc; j++) store(c, g + j % 2, t + j / 2, sums + j);
        }
    }
}

/* Lines [i, i + 1) / n of the next `bytes` at w: while one run is multiplied, the next one comes from memory. */
static inline void prefetch_part(const uint8_t *w, size_t bytes, uint32_t i, uint32_t n) {
    for (size_t o = bytes * i / n & ~(size_t)63; o < bytes * (i + 1) / n; o += 64)
        _mm_prefetch((const char *)w + o, _MM_HINT_T0);
}

/* Ask for the lines that will be written for tokens [t, t1): one line each, far apart. */
static inline void ask_to_write(const call *c, uint32_t g, uint32_t t, uint32_t t1) {
    for (; t < t1; t++) __builtin_prefetch(c->y + t * c->ldy + (size_t)g * MM_ROWS, 1, 3);
}

/* Groups g and g + 1.  What is not waited for (the next run's weights) and what a core has room for only little of (stores
 * to other lines for each token) is spread over the tiles. */
static void pair_by_panel(const call *c, uint32_t g, uint32_t t0, uint32_t t1) {
    uint32_t per_unit = c->n_blocks / c->n_units, n_panels = (t1 - t0 + MM_PANEL - 1) / MM_PANEL;
    uint32_t n_runs = (c->n_units + c->t->panel_units - 1) / c->t->panel_units;
    uint32_t run = (c->n_units + n_runs - 1) / n_runs; /* even runs: each costs a pass over the sums */
    size_t unit = c->group_bytes / c->n_units;
    bool whole = c->r1 - g * MM_ROWS >= 2 * MM_ROWS;
    for (uint32_t u = 0; u < c->n_units; u += run) {
        uint32_t n = c->n_units - u < run ? c->n_units - u : run, nc;
        bool first = u == 0, last = u + n == c->n_units;
        const uint8_t *w = group_at(c, g) + u * unit;
        /* the next run: further on in these two groups, or the beginning of the next two */
        const uint8_t *next = last ? group_at(c, g + 2) : w + n * unit;
        c->t->unpack(w, w + c->group_bytes, n, c->s->panel);
        for (uint32_t t = t0, i = 0; t < t1; t += nc) {
            bool two = c->t->two_panels && t1 - t >= 2 * MM_PANEL;
            uint32_t step = t1 - t < MM_PANEL ? t1 - t : MM_PANEL; /* tokens of a panel */
            const uint8_t *a = c->act + ((size_t)t * c->n_blocks + (size_t)u * per_unit * step) * c->record;
            __m256 *sums = c->s->sums + (t - t0) * 2;
            nc = two ? 2 * step : step;
            for (uint32_t end = i + 1 + two; i < end; i++) {
                prefetch_part(next, run * unit, i, n_panels);
                prefetch_part(next + c->group_bytes, run * unit, i, n_panels);
            }
            if (last) ask_to_write(c, g, t, t + nc);
            if (two) {
                bool out = last && whole;
                c->t->two_panels(c->s->panel, a, a + (size_t)step * c->n_blocks * c->record, n,
                                 first ? NULL : (const float *)sums,
                                 out ? c->y + t * c->ldy + (size_t)g * MM_ROWS : (float *)sums,
                                 out ? c->ldy : 2 * MM_ROWS);
                if (out) continue;
            } else {
                if (first)
                    for (uint32_t j = 0; j < 2 * nc; j++) sums[j] = _mm256_setzero_ps();
                c->t->panel[nc](c->s->panel, a, n, sums, c->s->tmp);
            }
            if (last)
                for (uint32_t j = 0; j < 2 * nc; j++) store(c, g + j % 2, t + j / 2, sums + j);
        }
    }
}

static void block(const call *c, uint32_t g0, uint32_t g1, uint32_t t0, uint32_t t1) {
    uint32_t m = t1 - t0;
    if (m >= c->t->wide_from && m < c->t->wide_below && (m > 2 || c->group_bytes >= WIDE_TWO))
        for (; g0 + 2 <= g1; g0 += 2) pair_wide(c, g0, t0, t1);
    else if (c->t->unpack && m >= c->t->panel_min)
        for (; g0 + 2 <= g1; g0 += 2) pair_by_panel(c, g0, t0, t1);
    direct(c, g0, g1, t0, t1);
}

void mm_avx2_drive(const mm_tiles *t, const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,
                   uint32_t r1, void *scratch) {
    act_kind kind = t->words ? ACT_I16_TOP : mm_act_kind(NULL, w->type);
    uint32_t g0 = r0 / MM_ROWS, g1 = (r1 + MM_ROWS - 1) / MM_ROWS, n, size;
    call c = {.t = t,
              .w = w,
              .act = act,
              .group_bytes = mm_group_bytes(w->type, w->n_cols),
              .record = mm_act_record(kind),
              .n_units = mm_units(w->type, w->n_cols),
              .n_blocks = mm_act_blocks(kind, w->n_cols),
              .r1 = r1,
              .m = m,
              .y = y,
              .ldy = ldy,
              .s = scratch};
    n = (m + M_BLOCK - 1) / M_BLOCK; /* even blocks, in whole panels */
    size = ((m + n - 1) / n + MM_PANEL - 1) / MM_PANEL * MM_PANEL;
    for (uint32_t t0 = 0; t0 < m; t0 += size) block(&c, g0, g1, t0, m - t0 < size ? m : t0 + size);
}

/* X(type, name) */
#define TYPES(X)                                                                                                       \
    X(F32, f32)                                                                                                        \
    X(F16, f16)                                                                                                        \
    X(BF16, bf16)                                                                                                      \
    MM_BLOCK_TYPES(X)

#define MUL(type, name)                                                                                                \
    static void mul_##name(const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,         \
                           uint32_t r1, void *scratch) {                                                               \
        mm_avx2_drive(&mm_avx2_##name, w, act, m, y, ldy, r0, r1, scratch);                                            \
    }
TYPES(MUL)

static mm_mul_fn mul_of(tensor_type type) {
    switch ((int)type) {
#define CASE(id, name)                                                                                                 \
    case TENSOR_##id: return mul_##name;
        TYPES(CASE)
    default: return NULL;
    }
}

const mm_ops mm_avx2 = {
    .act_pack = {[ACT_F32] = mm_avx2_act_f32,
                 [ACT_I8_32] = mm_avx2_act_i8_32,
                 [ACT_I8_256] = mm_avx2_act_i8_256,
                 [ACT_I16_32] = mm_avx2_act_i16_32,
                 [ACT_I8_32_TOP] = mm_avx2_act_top_32,
                 [ACT_I16_TOP] = mm_avx2_act_i16_top},
    .words = true,
    .mul = mul_of,
};
