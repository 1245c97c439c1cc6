/* decoder_forward.c - one ragged step through a dense decoder.
 *
 * All members of the pool run the same program; a phase is an index range that they share out, then a barrier.  What lies
 * between two products and is too little to share (norms, quantising, for a few tokens) is done at the barrier by the last
 * one to arrive.  Every weight is read once per step for all tokens of all segments; by each part of them where there are so
 * many that multiplying takes far longer.  Each member has tokens and rows of its own that it begins with in every phase: what
 * it wrote is in its cache, and cores may be far apart.  Then it helps the others.  Whoever computes a piece, its value is the
 * same: pieces are outputs, never parts of a sum (law 1).  Nothing here allocates; workspaces come from decoder_plan.
 * Read: space_layout (what exists), run (the program), then the phases in the order run names them. */
#include "model/decoder.h"
#include "base/checked.h"
#include "base/mem.h"
#include "model/decoder_clock.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum {
    HEAD_ROWS = 32,     /* of a grain of the head */
    HEAD_PAD = 16,      /* logits between positions: else their lines would share a few sets of the first cache */
    PACK_TOKENS = 4,    /* mm_act_pack may be split at multiples of this; so many and fewer are one member's work */
    FEW_TOKENS = 32,    /* about where weights stop being read as distant streams (mm_mul) */
    PIECE_BYTES = 64 << 10, /* of weights, for few tokens the least that pays for a call's streams */
    PART_TOKENS = 64,   /* that pay for another reading of the weights */
    MAX_PARTS = 16,
    HEAD_BYTES = 256 << 10, /* of logits that a member makes at once: they are looked at while they are in its L2 */
    ATTN_TILE = 16,     /* queries of one segment that share a pass over the keys */
    PHASES_PER_LAYER = 10,
    PHASES_OUTSIDE = 4
};

typedef struct {
    uint32_t seg, kv_head, head0, n_heads, q0, n_q;
} attn_item;

/* An index range in parts; part p is [at[p], at[p + 1]) and belongs to the members whose share of all members it is. */
typedef struct {
    uint32_t n, at[MAX_PARTS + 1];
} parts;

struct forward_space {
    step_limits lim;
    void *block;
    uint64_t bytes;
    unsigned n_members, n_active; /* of the pool; those who run this step */
    uint64_t t_begin_ns;          /* of this step, when it is timed */
    uint32_t *tok_seg, *tok_pos, *tok_index; /* of token t: its segment, its position, its index in the segment */
    float *x, *xn, *q, *k, *v, *att, *gate, *up, *y, *rope, *logits, *hidden;
    logit_best *best;                        /* [member][logits row]; whole ones are the first member's, after the step */
    uint64_t best_stride;                    /* members' are on lines of their own */
    bool *only_best;                         /* of a logits row */
    float *head_out;                         /* one slice a member */
    uint64_t head_out_stride;
    uint32_t *logit_tok;                     /* logits row l belongs to token logit_tok[l] */
    uint32_t *logit_hidden;                  /* whose hidden state is row logit_hidden[l], or NO_HIDDEN */
    uint32_t *hidden_tok;                    /* hidden row h belongs to token hidden_tok[h] */
    void *act[ACT_KINDS], *ff_act;           /* quantised: what width and heads go into; the feed-forward's middle */
    uint8_t *scratch;                        /* one slice a member */
    uint64_t scratch_bytes;
    attn_item *items;
    uint32_t n_items, max_items;
    uint32_t items_run;                      /* that are handed out together, so that who takes them knows what comes next */
    bool items_store;                        /* each item is all of one token's kv head, whose key it stores itself */
    pool_cursor *cursors;                    /* [phase][part] */
    uint32_t n_phases;
    /* this step */
    decoder *d;
    const step *st;
    parts by_token, by_vector, by_item, by_logits, by_hidden; /* tokens of products; of all else */
    uint32_t n_lanes; /* cursors of a phase */
    uint32_t n_logits, n_hidden;
};

#define NO_HIDDEN UINT32_MAX
#define NO_ITEM   UINT32_MAX

/* Hand out the next `bytes` of the block, or only count them while base is NULL. */
static void *take(uint8_t *base, uint64_t *at, uint64_t bytes) {
    void *p = base ? base + *at : NULL;
    *at += (bytes + 63) & ~(uint64_t)63;
    return p;
}

/* Parts that t tokens are cut into for n members, of at least so many tokens. */
static uint32_t count_parts(uint64_t t, unsigned n, uint32_t least) {
    uint64_t p = t / least;
    if (p > n) p = n;
    return p < 1 ? 1 : p > MAX_PARTS ? MAX_PARTS : (uint32_t)p;
}

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static act_kind down_kind(const decoder *d, uint32_t layer) { return mm_act_kind(d->base.k, d->layers[layer].down.type); }

/* The one place that says what a step needs.  Returns the bytes of all of it. */
static uint64_t space_layout(forward_space *s, const decoder *d, const step_limits *lim, uint8_t *base) {
    const decoder_config *c = &d->cfg;
    uint64_t t = lim->max_tokens, at = 0, qw = (uint64_t)c->n_head * c->head_dim, kw = (uint64_t)c->n_kv * c->head_dim;
    uint64_t widest = max_u64(c->width, qw), ff_bytes = 0, act_tokens = max_u64(t, lim->max_logits);
    s->lim = *lim;
    s->n_members = d->base.info.n_threads; /* of the pool, which a model opened for its sizes has not got */
    s->tok_seg = take(base, &at, t * sizeof(uint32_t));
    s->tok_pos = take(base, &at, t * sizeof(uint32_t));
    s->tok_index = take(base, &at, t * sizeof(uint32_t));
    s->x = take(base, &at, t * c->width * sizeof(float));
    s->xn = take(base, &at, act_tokens * c->width * sizeof(float));
    s->q = take(base, &at, t * qw * sizeof(float));
    s->k = take(base, &at, t * kw * sizeof(float));
    s->v = take(base, &at, t * kw * sizeof(float));
    s->att = take(base, &at, t * qw * sizeof(float));
    s->gate = take(base, &at, t * c->ff * sizeof(float));
    s->up = take(base, &at, t * c->ff * sizeof(float));
    s->y = take(base, &at, t * c->width * sizeof(float));
    s->rope = take(base, &at, t * c->n_ropes * c->n_rot * sizeof(float));
    s->logits = take(base, &at, (uint64_t)lim->max_logits * d->base.info.n_vocab * sizeof(float));
    s->best_stride = (lim->max_logits + 7) & ~UINT64_C(7);
    s->best = take(base, &at, s->best_stride * s->n_members * sizeof *s->best);
    s->only_best = take(base, &at, lim->max_logits * sizeof *s->only_best);
    s->head_out_stride = max_u64(HEAD_BYTES / sizeof(float), (uint64_t)HEAD_ROWS * lim->max_logits);
    s->head_out_stride += (uint64_t)HEAD_PAD * lim->max_logits;
    s->head_out = take(base, &at, s->head_out_stride * s->n_members * sizeof(float));
    s->logit_tok = take(base, &at, lim->max_logits * sizeof(uint32_t));
    s->logit_hidden = take(base, &at, lim->max_logits * sizeof(uint32_t));
    s->hidden = take(base, &at, (uint64_t)lim->max_hidden * c->width * sizeof(float));
    s->hidden_tok = take(base, &at, lim->max_hidden * sizeof(uint32_t));
    for (int kind = 0; kind < ACT_KINDS; kind++)
        s->act[kind] = take(base, &at, mm_act_bytes(d->base.k, (act_kind)kind, (uint32_t)widest, (uint32_t)act_tokens));
    for (uint32_t i = 0; i < c->n_layers; i++)
        ff_bytes = max_u64(ff_bytes, mm_act_bytes(d->base.k, down_kind(d, i), c->ff, (uint32_t)t));
    s->ff_act = take(base, &at, ff_bytes);
    s->scratch_bytes = (max_u64(mm_scratch_bytes(), attn_scratch_bytes(lim->ctx, c->n_head / c->n_kv)) + 63) & ~63ull;
    s->scratch = take(base, &at, s->scratch_bytes * s->n_members);
    s->max_items = (lim->max_tokens / ATTN_TILE + lim->max_segs + 1) * c->n_head;
    s->items = take(base, &at, s->max_items * sizeof *s->items);
    s->n_phases = c->n_layers * PHASES_PER_LAYER + PHASES_OUTSIDE;
    s->cursors = take(base, &at, (uint64_t)s->n_phases * count_parts(s->n_members, s->n_members, 1) * sizeof *s->cursors);
    return at;
}

uint64_t decoder_workspace_bytes(const model *m, const step_limits *lim) {
    forward_space s;
    memset(&s, 0, sizeof s);
    return space_layout(&s, (const decoder *)m, lim, NULL);
}

void decoder_space_free(forward_space *s) {
    if (!s) return;
    if (s->block) munmap(s->block, s->bytes);
    hd_free(s);
}

hd_status decoder_plan(model *m, const step_limits *lim, hd_err *err) {
    decoder *d = (decoder *)m;
    forward_space *s;
    if (!d->packed.data) return hd_fail(err, HD_INVALID, "model: it was opened without its weights");
    if (!(s = hd_calloc(1, sizeof *s))) return hd_fail(err, HD_NOMEM, "model: no memory");
    s->bytes = space_layout(s, d, lim, NULL);
    s->block = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->block == MAP_FAILED) {
        s->block = NULL;
        decoder_space_free(s);
        return hd_fail(err, HD_NOMEM, "model: no memory for a workspace of %llu bytes", (unsigned long long)s->bytes);
    }
    space_layout(s, d, lim, s->block);
    decoder_space_free(d->space);
    d->space = s;
    s->d = d;
    return HD_OK;
}

void decoder_rest(model *m) {
    forward_space *s = ((decoder *)m)->space;
    if (s) madvise(s->block, s->bytes, MADV_DONTNEED); /* a step writes everything before it reads it */
}

uint64_t decoder_page_bytes(const model *m, uint32_t g, uint32_t page_tokens, kv_scheme scheme) {
    const decoder *d = (const decoder *)m;
    kv_shape shape = {d->cfg.head_dim, page_tokens, scheme};
    if (scheme <= KV_DEFAULT || scheme >= KV_SCHEMES) return 0;
    return 2 * (uint64_t)kv_head_bytes(&shape) * d->base.info.groups[g].n_layers * d->cfg.n_kv;
}

/* ---- sharing out work ---- */

typedef struct {
    forward_space *s;
    const decoder_layer *y; /* of the layer being run */
    uint32_t layer;
    unsigned member, n;
    const parts *in; /* tokens that products see: of the step, at its end those with logits */
    uint32_t phase;  /* index of the next cursors; equal in all members */
    uint32_t asked;  /* the attention item whose keys are on their way; NO_ITEM: none */
    uint64_t since;  /* timed steps: when the phase began */
} worker;

typedef void (*phase_fn)(worker *w, size_t begin, size_t end);

/* What comes between two phases: fn for n tokens. */
typedef struct {
    worker *w;
    phase_fn fn;
    size_t n;
    uint64_t ns; /* timed steps: what it took, if it was ours */
} between;

static void run_between(void *ctx, unsigned member, unsigned n) {
    between *b = ctx;
    uint64_t begin = b->w->s->d->clock ? clock_ns() : 0;
    (void)member, (void)n;
    b->fn(b->w, 0, b->n);
    if (b->w->s->d->clock) b->ns = clock_ns() - begin;
}

/* The barrier after a phase, and fn(0, n) at it; fn may be NULL. */
static void meet(worker *w, step_part part, size_t n, phase_fn fn) {
    const decoder *d = w->s->d;
    between b = {w, fn, n, 0};
    uint64_t done = d->clock ? clock_ns() : 0;
    pool_barrier_then(d->base.pool, w->member, fn ? run_between : NULL, &b);
    if (!d->clock) return;
    clock_add(d->clock, w->member, part, done - w->since);
    clock_add(d->clock, w->member, STEP_VECTORS, b.ns);
    w->since = clock_ns();
    clock_add(d->clock, w->member, STEP_WAITING, w->since - done - b.ns);
    d->clock->lines[w->member].since = w->since;
}

/* This phase's cursors, one a part. */
static pool_cursor *next_phase(worker *w) { return w->s->cursors + (uint64_t)w->phase++ * w->s->n_lanes; }

/* The i-th part that this member turns to: its own, then the ones after it. */
static uint32_t part_of(const worker *w, const parts *of, uint32_t i) { return (w->member * of->n / w->n + i) % of->n; }

static void share_out(worker *w, const parts *of, size_t grain, phase_fn fn) {
    pool_cursor *cursors = next_phase(w);
    for (uint32_t i = 0; i < of->n; i++) {
        uint32_t p = part_of(w, of, i);
        for (;;) {
            size_t b = of->at[p] + atomic_fetch_add_explicit(&cursors[p].next, grain, memory_order_relaxed), end = of->at[p + 1];
            if (b >= end) break;
            fn(w, b, end - b < grain ? end : b + grain);
        }
    }
}

/* The end of a phase: wait for the others, then let next run on all of `of` (NULL: nothing), by one member where it is work
 * for one. */
static void phase_end(worker *w, step_part part, const parts *of, phase_fn next) {
    uint32_t n = next ? of->at[of->n] : 0;
    bool alone = n <= PACK_TOKENS;
    meet(w, part, n, alone ? next : NULL);
    if (!next || alone) return;
    share_out(w, of, PACK_TOKENS, next);
    meet(w, STEP_VECTORS, 0, NULL);
}

/* Rows of a product are handed out in grains of so many. */
typedef struct {
    uint32_t rows, min; /* rows of a grain; grains that a piece should have at least */
} grains;

/* For few tokens long pieces let a member walk distant streams; for many a piece is long enough by itself. */
static grains grains_for(const mm_weight *w, uint32_t m, uint32_t rows) {
    uint64_t row_bytes = mm_packed_bytes(NULL, w->type, 8, w->n_cols) / 8;
    if (m > FEW_TOKENS) return (grains){rows, 1 + 64 / rows};
    return (grains){rows, (uint32_t)(PIECE_BYTES / (row_bytes * rows)) + 1};
}

/* Take grains [*b, *e) of n for one of `members`.  Pieces come in rounds of one for each member, half of what is left, and
 * the last round takes all of it: so members of equal speed end together, and one that was held up is helped by the others.
 * Where the pieces begin depends on n alone. */
static bool take_grains(const worker *w, atomic_size_t *next, unsigned members, size_t n, const grains *g, size_t *b, size_t *e) {
    size_t at = atomic_load_explicit(next, memory_order_relaxed), k;
    do {
        size_t round = 0;
        if (at >= n) return false;
        for (;; round += k * members) {
            size_t left = n - round;
            k = left < 2 * (size_t)members * g->min ? (left + members - 1) / members : left / (2 * (size_t)members);
            if (w->n == 1) k = n;
            if (at < round + k * members) break;
        }
        if (k > n - at) k = n - at;
    } while (!atomic_compare_exchange_weak_explicit(next, &at, at + k, memory_order_relaxed, memory_order_relaxed));
    *b = at;
    *e = at + k;
    return true;
}

/* Tokens of one part and their activations. */
typedef struct {
    uint32_t t0, m;
} span;

typedef struct {
    const mm_weight *w;
    const void *act; /* of all tokens */
    float *out;
} product;

/* Grains [b, e) of one product for the tokens of x, as far as it has rows. */
static void multiply_rows(const worker *w, const product *p, span x, uint32_t rows, size_t b, size_t e) {
    forward_space *s = w->s;
    const mm_weight *a = p->w;
    uint64_t r0 = b * rows, r1 = e * rows < a->n_rows ? e * rows : a->n_rows;
    size_t act0 = mm_act_offset(mm_act_kind(s->d->base.k, a->type), a->n_cols, x.t0);
    mm_mul(s->d->base.k, a, (const uint8_t *)p->act + act0, x.m, p->out + (uint64_t)x.t0 * a->n_rows, a->n_rows, (uint32_t)r0,
           (uint32_t)r1, s->scratch + w->member * s->scratch_bytes);
}

static const void *act_for(const forward_space *s, const mm_weight *w) { return s->act[mm_act_kind(s->d->base.k, w->type)]; }

typedef void (*piece_fn)(worker *w, const product *p, uint32_t n, span x, uint32_t rows, size_t b, size_t e);

/* Hand out the products of all tokens with `total` grains of rows as cells, a part of the tokens and a part of the rows each:
 * so a member writes the same lines of a product in every layer. */
static void share_grains(worker *w, const product *p, uint32_t n, uint32_t rows, size_t total, piece_fn fn) {
    pool_cursor *cursors = next_phase(w);
    uint32_t row_parts = count_parts(w->n, w->n, 1) / w->in->n, cells = w->in->n * row_parts;
    for (uint32_t i = 0; i < cells; i++) {
        uint32_t cell = (w->member * cells / w->n + i) % cells, part = cell / row_parts, r = cell % row_parts;
        span x = {w->in->at[part], w->in->at[part + 1] - w->in->at[part]};
        grains g = grains_for(p->w, x.m, rows);
        size_t b, e, first = total * r / row_parts, end = total * (r + 1) / row_parts;
        while (take_grains(w, &cursors[cell].next, w->n / cells, end - first, &g, &b, &e))
            fn(w, p, n, x, rows, first + b, first + e);
    }
}

static size_t grains_of(const mm_weight *w, uint32_t rows) { return (w->n_rows + (size_t)rows - 1) / rows; }

/* A piece of several matrices as one range of rows: it may begin in one and end in the next. */
static void multiply_piece(worker *w, const product *p, uint32_t n, span x, uint32_t rows, size_t b, size_t e) {
    for (uint32_t i = 0; i < n && e; i++) {
        size_t count = grains_of(p[i].w, rows), end = e < count ? e : count;
        if (b < end) multiply_rows(w, p + i, x, rows, b, end);
        b = b > count ? b - count : 0;
        e -= end;
    }
}

/* Products of one activation with up to three matrices. */
static void multiply(worker *w, const product *p, uint32_t n) {
    enum { ROWS = 32 };
    size_t total = 0;
    for (uint32_t i = 0; i < n; i++) total += grains_of(p[i].w, ROWS);
    share_grains(w, p, n, ROWS, total, multiply_piece);
}

/* Quantise tokens [t0, t1) of x once in each form that the matrices want. */
static void pack_for(forward_space *s, const mm_weight *const *ws, uint32_t n_ws, const float *x, uint32_t cols, uint32_t m,
                     uint32_t t0, uint32_t t1) {
    unsigned done = 0;
    for (uint32_t i = 0; i < n_ws; i++) {
        act_kind kind = mm_act_kind(s->d->base.k, ws[i]->type);
        if (done & 1u << kind) continue;
        done |= 1u << kind;
        mm_act_pack(s->d->base.k, kind, x, cols, cols, m, t0, t1, s->act[kind]);
    }
}

/* ---- phases ---- */

static kv_shape shape_of(const forward_space *s, uint32_t layer) {
    return (kv_shape){s->d->cfg.head_dim, s->lim.page_tokens, s->lim.kv_type[s->d->layer_group[layer]]};
}

static void embed(worker *w, size_t t0, size_t t1) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    uint64_t row_bytes = d->embed->size_bytes / d->embed->dims[1];
    for (size_t t = t0; t < t1; t++) {
        const segment *g = &s->st->segs[s->tok_seg[t]];
        float *x = s->x + t * c->width, *cs = s->rope + t * c->n_ropes * c->n_rot;
        int32_t id = g->tokens[s->tok_index[t]];
        tensor_dequant_row(d->embed->type, (const uint8_t *)d->embed->data + (uint64_t)id * row_bytes, x, c->width);
        if (c->embed_scale != 1) vec_scale(d->base.k, x, c->embed_scale, c->width);
        for (uint32_t r = 0; r < c->n_ropes; r++)
            vec_turns(d->base.k, cs + (uint64_t)r * c->n_rot, s->tok_pos[t], c->rope[r].freq, c->rope[r].mscale, c->n_rot / 2);
    }
}

/* x += norm(y + bias) or x += y + bias: what a block adds to the residual. */
static void add_residual(const decoder *d, float *x, float *y, const float *bias, const float *post_norm) {
    const decoder_config *c = &d->cfg;
    if (bias) vec_add(d->base.k, y, bias, c->width);
    if (post_norm) vec_rms_norm(d->base.k, y, y, post_norm, c->width, c->eps);
    vec_add(d->base.k, x, y, c->width);
}

/* Norm before attention; first the feed-forward of the layer below joins the residual. */
static void attn_in(worker *w, size_t t0, size_t t1) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    const mm_weight *ws[] = {&w->y->q, &w->y->k, &w->y->v};
    for (size_t t = t0; t < t1; t++) {
        float *x = s->x + t * c->width;
        if (w->layer) add_residual(d, x, s->y + t * c->width, w->y[-1].down_bias, w->y[-1].post_ffn_norm);
        vec_rms_norm(d->base.k, s->xn + t * c->width, x, w->y->attn_norm, c->width, c->eps);
    }
    pack_for(s, ws, 3, s->xn, c->width, s->st->n_tokens, (uint32_t)t0, (uint32_t)t1);
}

/* Finish one head of q or k: bias, norm, rotation. */
static void finish_head(const decoder *d, float *h, const float *bias, const float *norm, const float *cs) {
    const decoder_config *c = &d->cfg;
    if (bias) vec_add(d->base.k, h, bias, c->head_dim);
    if (norm) vec_rms_norm(d->base.k, h, h, norm, c->head_dim, c->eps);
    vec_rope(d->base.k, h, cs, c->n_rot, c->rope_neox);
}

/* Items are (token, kv head): its query heads are finished, its key and value are stored in the row's page. */
static void store_kv(worker *w, size_t i0, size_t i1) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    const decoder_layer *y = w->y;
    kv_shape shape = shape_of(s, w->layer);
    uint64_t head_bytes = kv_head_bytes(&shape);
    uint32_t group = c->n_head / c->n_kv, hd = c->head_dim;
    for (size_t i = i0; i < i1; i++) {
        uint32_t t = (uint32_t)(i / c->n_kv), h = (uint32_t)(i % c->n_kv), pos = s->tok_pos[t];
        const segment *g = &s->st->segs[s->tok_seg[t]];
        const float *cs = s->rope + ((uint64_t)t * c->n_ropes + (c->n_ropes > 1 && c->sliding[w->layer])) * c->n_rot;
        float *k = s->k + ((uint64_t)t * c->n_kv + h) * hd, *v = s->v + ((uint64_t)t * c->n_kv + h) * hd;
        uint64_t k_off = ((uint64_t)d->layer_in_group[w->layer] * c->n_kv + h) * 2 * head_bytes;
        for (uint32_t j = h * group; j < (h + 1) * group; j++)
            finish_head(d, s->q + ((uint64_t)t * c->n_head + j) * hd, y->q_bias ? y->q_bias + j * hd : NULL, y->q_norm, cs);
        finish_head(d, k, y->k_bias ? y->k_bias + h * hd : NULL, y->k_norm, cs);
        if (y->v_bias) vec_add(d->base.k, v, y->v_bias + h * hd, hd);
        kv_store(d->base.k, &shape, g->pages[d->layer_group[w->layer]][pos / s->lim.page_tokens], k_off, k_off + head_bytes,
                 pos % s->lim.page_tokens, k, v);
    }
}

static void attend(worker *w, size_t i0, size_t i1) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    uint32_t qw = c->n_head * c->head_dim;
    attn_job job = {.shape = shape_of(s, w->layer), .ldq = qw, .ldout = qw,
                    .window = c->sliding[w->layer] ? c->window : 0, .scale = c->score_scale, .softcap = c->attn_softcap};
    uint64_t head_bytes = kv_head_bytes(&job.shape);
    for (size_t i = i0; i < i1; i++) {
        const attn_item *it = &s->items[i];
        const segment *g = &s->st->segs[it->seg];
        if (s->items_store) store_kv(w, it->q0 * c->n_kv + it->kv_head, it->q0 * c->n_kv + it->kv_head + 1);
        uint64_t t0 = (uint64_t)(it->q0) * qw + (uint64_t)it->head0 * c->head_dim;
        job.pages = (const void *const *)g->pages[d->layer_group[w->layer]];
        job.k_off = ((uint64_t)d->layer_in_group[w->layer] * c->n_kv + it->kv_head) * 2 * head_bytes;
        job.v_off = job.k_off + head_bytes;
        job.announced = i == w->asked;
        job.next = (attn_next){.pages = NULL};
        w->asked = i + 1 < s->n_items ? (uint32_t)i + 1 : NO_ITEM; /* most likely ours, even where another may take it */
        if (w->asked != NO_ITEM) {
            const attn_item *then = it + 1;
            job.next.pages = (const void *const *)s->st->segs[then->seg].pages[d->layer_group[w->layer]];
            job.next.k_off = ((uint64_t)d->layer_in_group[w->layer] * c->n_kv + then->kv_head) * 2 * head_bytes;
            job.next.v_off = job.next.k_off + head_bytes;
            job.next.pos = s->tok_pos[then->q0];
        }
        job.n_group = it->n_heads;
        job.q = s->q + t0;
        job.out = s->att + t0;
        job.pos0 = s->tok_pos[it->q0];
        job.n_q = it->n_q;
        attn_run(d->base.k, &job, s->scratch + w->member * s->scratch_bytes);
    }
}

static void attn_out(worker *w, size_t t0, size_t t1) {
    forward_space *s = w->s;
    const mm_weight *ws[] = {&w->y->o};
    pack_for(s, ws, 1, s->att, s->d->cfg.n_head * s->d->cfg.head_dim, s->st->n_tokens, (uint32_t)t0, (uint32_t)t1);
}

static void ffn_in(worker *w, size_t t0, size_t t1) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    const mm_weight *ws[] = {&w->y->gate, &w->y->up};
    for (size_t t = t0; t < t1; t++) {
        float *x = s->x + t * c->width;
        add_residual(d, x, s->y + t * c->width, w->y->o_bias, w->y->post_attn_norm);
        vec_rms_norm(d->base.k, s->xn + t * c->width, x, w->y->ffn_norm, c->width, c->eps);
    }
    pack_for(s, ws, 2, s->xn, c->width, s->st->n_tokens, (uint32_t)t0, (uint32_t)t1);
}

/* Rows [r0, r1) of gate become the activation of gate and up. */
static void activate(const worker *w, span x, uint32_t r0, uint32_t r1) {
    forward_space *s = w->s;
    const kernels *k = s->d->base.k;
    uint64_t ff = s->d->cfg.ff;
    for (uint32_t t = x.t0; t < x.t0 + x.m; t++) {
        float *gate = s->gate + t * ff + r0, *up = s->up + t * ff + r0;
        if (w->y->gate_bias) vec_add(k, gate, w->y->gate_bias + r0, r1 - r0);
        if (w->y->up_bias) vec_add(k, up, w->y->up_bias + r0, r1 - r0);
        if (s->d->cfg.gelu) vec_gelu_mul(k, gate, up, r1 - r0);
        else vec_silu_mul(k, gate, up, r1 - r0);
    }
}

static void gate_up_piece(worker *w, const product *p, uint32_t n, span x, uint32_t rows, size_t b, size_t e) {
    uint32_t ff = p->w->n_rows, r0 = (uint32_t)b * rows, r1 = e * rows < ff ? (uint32_t)e * rows : ff;
    for (uint32_t i = 0; i < n; i++) multiply_rows(w, p + i, x, rows, b, e);
    activate(w, x, r0, r1);
}

static void gate_up_pack_piece(worker *w, const product *p, uint32_t n, span x, uint32_t rows, size_t b, size_t e) {
    forward_space *s = w->s;
    act_kind kind = down_kind(s->d, w->layer);
    uint32_t ff = p->w->n_rows, r0 = (uint32_t)b * rows, r1 = e * rows < ff ? (uint32_t)e * rows : ff;
    gate_up_piece(w, p, n, x, rows, b, e);
    mm_act_pack_cols(s->d->base.k, kind, s->gate + (uint64_t)x.t0 * ff, ff, ff, x.m, r0, r1,
                     (uint8_t *)s->ff_act + mm_act_offset(kind, ff, x.t0));
}

/* The first half of the feed-forward, equal rows of both matrices together.  Who makes a piece also activates it while it is
 * in the cache and, with `pack`, quantises it: then a grain holds whole blocks. */
static void gate_up(worker *w, bool pack) {
    forward_space *s = w->s;
    const decoder_layer *y = w->y;
    uint32_t unit = mm_act_unit(down_kind(s->d, w->layer)), rows = pack && unit > 32 ? unit : 32;
    const product p[] = {{&y->gate, act_for(s, &y->gate), s->gate}, {&y->up, act_for(s, &y->up), s->up}};
    share_grains(w, p, 2, rows, grains_of(&y->gate, rows), pack ? gate_up_pack_piece : gate_up_piece);
}

/* Blocks of 256 rows are few: where they do not go round evenly, few would not balance. */
static bool packs_pieces(const worker *w) {
    uint32_t unit = mm_act_unit(down_kind(w->s->d, w->layer));
    uint32_t blocks = w->s->d->cfg.ff / unit, n = w->n / w->in->n;
    return unit <= 64 || blocks % n == 0 || blocks >= 4 * n;
}

static void ffn_pack(worker *w, size_t t0, size_t t1) {
    forward_space *s = w->s;
    uint32_t ff = s->d->cfg.ff;
    mm_act_pack(s->d->base.k, down_kind(s->d, w->layer), s->gate, ff, ff, s->st->n_tokens, (uint32_t)t0, (uint32_t)t1, s->ff_act);
}

/* The last residual sum and the final norm of token t into out. */
static void last_norm(worker *w, uint32_t t, float *out) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    float *x = s->x + (uint64_t)t * c->width;
    add_residual(d, x, s->y + (uint64_t)t * c->width, w->y->down_bias, w->y->post_ffn_norm);
    vec_rms_norm(d->base.k, out, x, d->out_norm, c->width, c->eps);
}

static void hidden_out(worker *w, size_t h0, size_t h1) {
    forward_space *s = w->s;
    for (size_t h = h0; h < h1; h++) last_norm(w, s->hidden_tok[h], s->hidden + h * s->d->cfg.width);
}

/* What the head reads, for wanted positions only.  The residual sum happens in place, so a position that also wanted its
 * hidden state takes it from there. */
static void head_in(worker *w, size_t l0, size_t l1) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    const mm_weight *ws[] = {&d->head};
    for (size_t l = l0; l < l1; l++) {
        float *xn = s->xn + l * c->width;
        uint32_t h = s->logit_hidden[l];
        if (h == NO_HIDDEN) last_norm(w, s->logit_tok[l], xn);
        else memcpy(xn, s->hidden + (uint64_t)h * c->width, c->width * sizeof *xn);
    }
    pack_for(s, ws, 1, s->xn, c->width, s->n_logits, (uint32_t)l0, (uint32_t)l1);
}

/* Members see logits in any order, so of equal ones the first is taken. */
static void better(logit_best *best, logit_best than) {
    if (than.logit > best->logit || (than.logit == best->logit && than.id < best->id)) *best = than;
}

/* Logits [r0, r1) of one position: capped, compared with the best so far, kept where they are wanted. */
static void take_logits(const worker *w, uint32_t l, float *y, uint32_t r0, uint32_t r1) {
    forward_space *s = w->s;
    const kernels *k = s->d->base.k;
    logit_best *best = &s->best[w->member * s->best_stride + l];
    if (s->d->cfg.final_softcap > 0) vec_softcap(k, y, s->d->cfg.final_softcap, r1 - r0);
    uint32_t i = vec_argmax(k, y, r1 - r0);
    better(best, (logit_best){y[i], r0 + i});
    if (!s->only_best[l]) memcpy(s->logits + (uint64_t)l * s->d->base.info.n_vocab + r0, y, (r1 - r0) * sizeof *y);
}

/* Grains of the head whose logits of m positions are made at once. */
static size_t head_turn(uint32_t m) {
    size_t n = HEAD_BYTES / sizeof(float) / m / HEAD_ROWS;
    return n ? n : 1;
}

/* A piece of the head, in turns of what stays in the cache: most rows want nothing but the best of their logits, and all of
 * them are more memory than the head's weights where the vocabulary is large and the model small. */
static void head_piece(worker *w, const product *p, uint32_t n, span x, uint32_t rows, size_t b, size_t e) {
    forward_space *s = w->s;
    float *out = s->head_out + w->member * s->head_out_stride;
    size_t turn = head_turn(x.m), end;
    (void)n;
    for (; b < e; b = end) {
        end = e - b < turn ? e : b + turn;
        uint32_t r0 = (uint32_t)b * rows, r1 = end * rows < p->w->n_rows ? (uint32_t)end * rows : p->w->n_rows;
        uint32_t ld = r1 - r0 + HEAD_PAD;
        mm_weight part = mm_rows(p->w, r0, r1);
        mm_mul(s->d->base.k, &part, p->act, x.m, out, ld, 0, r1 - r0, s->scratch + w->member * s->scratch_bytes);
        for (uint32_t l = 0; l < x.m; l++) take_logits(w, l, out + (uint64_t)l * ld, r0, r1);
    }
}

static void head(worker *w) {
    const mm_weight *a = &w->s->d->head;
    w->in = &w->s->by_logits;
    share_grains(w, &(product){a, act_for(w->s, a), NULL}, 1, HEAD_ROWS, grains_of(a, HEAD_ROWS), head_piece);
}

static void store_tokens(worker *w, size_t t0, size_t t1) {
    store_kv(w, t0 * w->s->d->cfg.n_kv, t1 * w->s->d->cfg.n_kv);
}

static void layer(worker *w, uint32_t i) {
    forward_space *s = w->s;
    const decoder_layer *y = w->y = &s->d->layers[i];
    const parts *t = &s->by_vector;
    w->layer = i;
    multiply(w, (product[]){{&y->q, act_for(s, &y->q), s->q}, {&y->k, act_for(s, &y->k), s->k}, {&y->v, act_for(s, &y->v), s->v}},
             3);
    phase_end(w, STEP_MATRICES, t, s->items_store ? NULL : store_tokens);
    w->asked = NO_ITEM;
    share_out(w, &s->by_item, s->items_run, attend);
    phase_end(w, STEP_ATTENTION, t, attn_out);
    multiply(w, (product[]){{&y->o, act_for(s, &y->o), s->y}}, 1);
    phase_end(w, STEP_MATRICES, t, ffn_in);
    bool pack = packs_pieces(w);
    gate_up(w, pack);
    phase_end(w, STEP_MATRICES, t, pack ? NULL : ffn_pack);
    multiply(w, (product[]){{&y->down, s->ff_act, s->y}}, 1);
}

static void run(void *ctx, unsigned member, unsigned n) {
    forward_space *s = ctx;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    const parts *t = &s->by_vector;
    worker w = {.s = s, .y = d->layers, .member = member, .n = n, .in = &s->by_token, .since = d->clock ? clock_ns() : 0};
    if (d->clock) clock_add(d->clock, member, STEP_WAITING, w.since - s->t_begin_ns); /* for its core */
    share_out(&w, t, 1, embed);
    phase_end(&w, STEP_VECTORS, t, attn_in);
    for (uint32_t i = 0; i + 1 < c->n_layers; i++) {
        layer(&w, i);
        w.layer = i + 1;
        w.y = &d->layers[i + 1];
        phase_end(&w, STEP_MATRICES, t, attn_in);
    }
    layer(&w, c->n_layers - 1);
    if (s->n_hidden) {
        phase_end(&w, STEP_MATRICES, NULL, NULL);
        share_out(&w, &s->by_hidden, 1, hidden_out);
    }
    phase_end(&w, s->n_hidden ? STEP_VECTORS : STEP_MATRICES, &s->by_logits, s->n_logits ? head_in : NULL);
    if (!s->n_logits) return;
    head(&w);
    phase_end(&w, STEP_HEAD, NULL, NULL);
}

/* No member has seen a logit. */
static void best_begin(forward_space *s) {
    for (unsigned m = 0; m < s->n_active; m++)
        for (uint32_t l = 0; l < s->n_logits; l++) s->best[m * s->best_stride + l] = (logit_best){-INFINITY, 0};
}
static void best_end(forward_space *s) {
    for (unsigned m = 1; m < s->n_active; m++)
        for (uint32_t l = 0; l < s->n_logits; l++) better(&s->best[l], s->best[m * s->best_stride + l]);
}

static parts whole(uint32_t n) { return (parts){.n = 1, .at = {0, n}}; }

/* Many tokens are cut into parts, so that what a member makes of a token it mostly reads again itself: between cores that
 * share no cache a line that the other one wrote is dear, and weights read twice are not.  Whole pairs of panels. */
static parts cut(uint32_t t, uint32_t n, uint32_t unit) {
    uint32_t size = ((t + n - 1) / n + unit - 1) / unit * unit;
    parts out = {.n = n};
    for (uint32_t p = 0; p <= n; p++) out.at[p] = p * size < t ? p * size : t;
    return out;
}

static void plan_parts(forward_space *s) {
    uint32_t t = s->st->n_tokens;
    s->by_token = cut(t, count_parts(t, s->n_active, PART_TOKENS), 2 * PACK_TOKENS);
    s->by_vector = s->by_token.n > 1 ? s->by_token : cut(t, count_parts(t, s->n_active, PACK_TOKENS), PACK_TOKENS);
    s->n_lanes = count_parts(s->n_active, s->n_active, 1);
    s->by_hidden = whole(s->n_hidden);
    s->by_logits = whole(s->n_logits);
}

/* Tiles of queries per kv head; where there are too few of them for the members, the heads of a group go apart. */
static void plan_attention(forward_space *s) {
    const decoder_config *c = &s->d->cfg;
    uint32_t group = c->n_head / c->n_kv, tiles = 0, split, t0 = 0;
    for (uint32_t i = 0; i < s->st->n_segs; i++) tiles += (s->st->segs[i].n + ATTN_TILE - 1) / ATTN_TILE;
    split = tiles * c->n_kv >= 2 * s->n_active ? 1 : (2 * s->n_active + tiles * c->n_kv - 1) / (tiles * c->n_kv);
    if (s->n_active == 1) split = 1;
    if (split > group) split = group;
    s->n_items = 0;
    s->items_store = split == 1;
    for (uint32_t i = 0; i < s->st->n_segs; i++) {
        const segment *g = &s->st->segs[i];
        if (g->n > 1) s->items_store = false; /* its queries see each other's keys */
        for (uint32_t q0 = 0; q0 < g->n; q0 += ATTN_TILE)
            for (uint32_t h = 0; h < c->n_kv; h++)
                for (uint32_t p = 0; p < split; p++) {
                    uint32_t h0 = group * p / split, h1 = group * (p + 1) / split;
                    HD_ASSERT(s->n_items < s->max_items);
                    s->items[s->n_items++] = (attn_item){i, h, h * group + h0, h1 - h0, t0 + q0,
                                                         g->n - q0 < ATTN_TILE ? g->n - q0 : ATTN_TILE};
                }
        t0 += g->n;
    }
    s->by_item.n = s->by_vector.n;
    for (uint32_t i = 0, p = 0; p <= s->by_item.n; p++) {
        while (i < s->n_items && (p == s->by_item.n || s->items[i].q0 < s->by_vector.at[p])) i++;
        s->by_item.at[p] = i;
    }
    s->items_run = s->n_active == 1 ? s->n_items : s->n_items / (8 * s->n_active);
    if (!s->items_run) s->items_run = 1;
}

hd_status decoder_forward(model *m, const step *st, uint32_t *bad_seg, hd_err *err) {
    decoder *d = (decoder *)m;
    forward_space *s = d->space;
    uint32_t t = 0;
    (void)bad_seg, (void)err;
    HD_ASSERT(st->n_tokens <= s->lim.max_tokens && st->n_segs <= s->lim.max_segs);
    s->st = st;
    s->n_logits = s->n_hidden = 0;
    for (uint32_t i = 0; i < st->n_segs; i++) {
        segment *g = &st->segs[i];
        g->logits = g->only_best ? NULL : s->logits + (uint64_t)s->n_logits * d->base.info.n_vocab;
        g->best = s->best + s->n_logits;
        g->hidden = s->hidden + (uint64_t)s->n_hidden * d->cfg.width;
        for (uint32_t j = 0; j < g->n; j++, t++) {
            s->tok_seg[t] = i;
            s->tok_index[t] = j;
            s->tok_pos[t] = g->pos0 + j;
            bool wanted = j >= g->first_hidden && j < g->end_hidden;
            if (wanted) {
                HD_ASSERT(s->n_hidden < s->lim.max_hidden);
                s->hidden_tok[s->n_hidden++] = t;
            }
            if (j < g->first_logits) continue;
            HD_ASSERT(s->n_logits < s->lim.max_logits);
            s->logit_hidden[s->n_logits] = wanted ? s->n_hidden - 1 : NO_HIDDEN;
            s->only_best[s->n_logits] = g->only_best;
            s->logit_tok[s->n_logits++] = t;
        }
    }
    HD_ASSERT(t == st->n_tokens);
    s->n_active = pool_some(d->base.pool);
    plan_parts(s);
    plan_attention(s);
    best_begin(s);
    for (uint32_t i = 0; i < s->n_phases * s->n_lanes; i++) pool_cursor_init(&s->cursors[i], 0);
    if (d->clock) {
        uint64_t end, took;
        s->t_begin_ns = clock_ns();
        pool_run_some(d->base.pool, run, s);
        end = clock_ns();
        took = end - s->t_begin_ns;
        for (unsigned i = 0; i < s->n_active; i++)
            clock_add(d->clock, i, STEP_WAITING, end - d->clock->lines[i].since); /* for the last one */
        clock_add_step(d->clock, took);
        clock_add(d->clock, 0, STEP_WAITING, took * (s->n_members - s->n_active));
    } else {
        pool_run_some(d->base.pool, run, s);
    }
    best_end(s);
    return HD_OK;
}
