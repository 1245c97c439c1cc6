/* decoder_forward.c - one ragged step through a dense decoder.
 *
 * All members of the pool run the same program; a phase is an index range that they share out, then a barrier.  Every
 * weight is read once per step for all tokens of all segments.  Whoever computes a piece, its value is the same: pieces
 * are outputs, never parts of a sum (law 1).  Nothing here allocates; workspaces come from decoder_plan.
 * Read: space_layout (what exists), run (the program), then the phases in the order run names them. */
#include "model/decoder.h"
#include "base/checked.h"
#include "base/mem.h"
#include "model/decoder_clock.h"

#include <string.h>
#include <sys/mman.h>

enum {
    PACK_TOKENS = 4,    /* mm_act_pack may be split at multiples of this */
    FEW_TOKENS = 32,    /* about where weights stop being read as distant streams (mm_mul) */
    ATTN_TILE = 16,     /* queries of one segment that share a pass over the keys */
    PHASES_PER_LAYER = 10,
    PHASES_OUTSIDE = 4
};

typedef struct {
    uint32_t seg, kv_head, head0, n_heads, q0, n_q;
} attn_item;

struct forward_space {
    step_limits lim;
    void *block;
    uint64_t bytes;
    unsigned n_members;
    uint32_t *tok_seg, *tok_pos, *tok_index; /* of token t: its segment, its position, its index in the segment */
    float *x, *xn, *q, *k, *v, *att, *gate, *up, *y, *rope, *logits, *hidden;
    uint32_t *logit_tok;                     /* logits row l belongs to token logit_tok[l] */
    uint32_t *logit_hidden;                  /* whose hidden state is row logit_hidden[l], or NO_HIDDEN */
    uint32_t *hidden_tok;                    /* hidden row h belongs to token hidden_tok[h] */
    void *act[ACT_KINDS];
    uint8_t *scratch;                        /* one slice a member */
    uint64_t scratch_bytes;
    attn_item *items;
    uint32_t n_items, max_items;
    pool_cursor *cursors;
    uint32_t n_cursors;
    /* this step */
    decoder *d;
    const step *st;
    uint32_t n_logits, n_hidden;
};

#define NO_HIDDEN UINT32_MAX

/* Hand out the next `bytes` of the block, or only count them while base is NULL. */
static void *take(uint8_t *base, uint64_t *at, uint64_t bytes) {
    void *p = base ? base + *at : NULL;
    *at += (bytes + 63) & ~(uint64_t)63;
    return p;
}

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The one place that says what a step needs.  Returns the bytes of all of it. */
static uint64_t space_layout(forward_space *s, const decoder *d, const step_limits *lim, uint8_t *base) {
    const decoder_config *c = &d->cfg;
    uint64_t t = lim->max_tokens, at = 0, qw = (uint64_t)c->n_head * c->head_dim, kw = (uint64_t)c->n_kv * c->head_dim;
    uint64_t widest = max_u64(max_u64(c->width, qw), c->ff), act_tokens = max_u64(t, lim->max_logits);
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
    s->logit_tok = take(base, &at, lim->max_logits * sizeof(uint32_t));
    s->logit_hidden = take(base, &at, lim->max_logits * sizeof(uint32_t));
    s->hidden = take(base, &at, (uint64_t)lim->max_hidden * c->width * sizeof(float));
    s->hidden_tok = take(base, &at, lim->max_hidden * sizeof(uint32_t));
    for (int kind = 0; kind < ACT_KINDS; kind++)
        s->act[kind] = take(base, &at, mm_act_bytes(d->base.k, (act_kind)kind, (uint32_t)widest, (uint32_t)act_tokens));
    s->scratch_bytes = (max_u64(mm_scratch_bytes(), attn_scratch_bytes(lim->ctx, c->n_head / c->n_kv)) + 63) & ~63ull;
    s->scratch = take(base, &at, s->scratch_bytes * s->n_members);
    s->max_items = (lim->max_tokens / ATTN_TILE + lim->max_segs + 1) * c->n_head;
    s->items = take(base, &at, s->max_items * sizeof *s->items);
    s->n_cursors = c->n_layers * PHASES_PER_LAYER + PHASES_OUTSIDE;
    s->cursors = take(base, &at, s->n_cursors * sizeof *s->cursors);
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
    if (!d->packed) return hd_fail(err, HD_INVALID, "model: it was opened without its weights");
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
    unsigned member;
    uint32_t phase; /* index of the next cursor; equal in all members */
    uint64_t since; /* timed steps: when the phase began */
} worker;

typedef void (*phase_fn)(worker *w, size_t begin, size_t end);

/* The end of every phase: wait for the others. */
static void phase_end(worker *w, step_part part) {
    const decoder *d = w->s->d;
    uint64_t done;
    if (!d->clock) {
        pool_barrier(d->base.pool, w->member);
        return;
    }
    done = clock_ns();
    pool_barrier(d->base.pool, w->member);
    clock_add(d->clock, w->member, part, done - w->since);
    w->since = clock_ns();
    clock_add(d->clock, w->member, STEP_WAITING, w->since - done);
}

static void phase(worker *w, size_t n, size_t grain, step_part part, phase_fn fn) {
    forward_space *s = w->s;
    atomic_size_t *next = &s->cursors[w->phase++].next;
    for (;;) {
        size_t b = atomic_fetch_add_explicit(next, grain, memory_order_relaxed);
        if (b >= n) break;
        fn(w, b, n - b < grain ? n : b + grain);
    }
    phase_end(w, part);
}

/* Products of one activation with up to three matrices, as one range of row chunks. */
typedef struct {
    const mm_weight *w;
    float *out;
    const void *act;
    uint32_t n_chunks;
} product;
typedef struct {
    product p[3];
    uint32_t n, m, chunk_rows, total;
} products;

static void products_init(products *ps, uint32_t m, unsigned members) {
    uint64_t rows = 0;
    ps->m = m;
    for (uint32_t i = 0; i < ps->n; i++) rows += ps->p[i].w->n_rows;
    /* Few tokens: long pieces let a member walk distant streams. Many: small pieces balance better. */
    ps->chunk_rows = m <= FEW_TOKENS ? (uint32_t)((rows / (members * 4ull) + 31) & ~31ull) : 64;
    if (ps->chunk_rows < 32) ps->chunk_rows = 32;
    ps->total = 0;
    for (uint32_t i = 0; i < ps->n; i++) {
        ps->p[i].n_chunks = (ps->p[i].w->n_rows + ps->chunk_rows - 1) / ps->chunk_rows;
        ps->total += ps->p[i].n_chunks;
    }
}

static void multiply(worker *w, products *ps, step_part part) {
    forward_space *s = w->s;
    atomic_size_t *next = &s->cursors[w->phase++].next;
    void *scratch = s->scratch + w->member * s->scratch_bytes;
    products_init(ps, ps->m, s->n_members);
    for (;;) {
        size_t i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        const product *p = ps->p;
        uint32_t r0, r1;
        if (i >= ps->total) break;
        while (i >= p->n_chunks) i -= p->n_chunks, p++;
        r0 = (uint32_t)i * ps->chunk_rows;
        r1 = p->w->n_rows - r0 < ps->chunk_rows ? p->w->n_rows : r0 + ps->chunk_rows;
        mm_mul(s->d->base.k, p->w, p->act, ps->m, p->out, p->w->n_rows, r0, r1, scratch);
    }
    phase_end(w, part);
}

static product product_of(forward_space *s, const mm_weight *w, float *out) {
    return (product){w, out, s->act[mm_act_kind(s->d->base.k, w->type)], 0};
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
            for (uint32_t j = 0; j < c->n_rot / 2; j++, cs += 2) {
                float sn, cn;
                hd_sincos((double)s->tok_pos[t] * c->rope[r].freq[j], &sn, &cn);
                cs[0] = cn * c->rope[r].mscale;
                cs[1] = sn * c->rope[r].mscale;
            }
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
        uint64_t t0 = (uint64_t)(it->q0) * qw + (uint64_t)it->head0 * c->head_dim;
        job.pages = (const void *const *)g->pages[d->layer_group[w->layer]];
        job.k_off = ((uint64_t)d->layer_in_group[w->layer] * c->n_kv + it->kv_head) * 2 * head_bytes;
        job.v_off = job.k_off + head_bytes;
        job.k_next = it->kv_head + 1 < c->n_kv ? job.k_off + 2 * head_bytes : 0; /* most likely this member's next item */
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

static void ffn_act(worker *w, size_t t0, size_t t1) {
    forward_space *s = w->s;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    const mm_weight *ws[] = {&w->y->down};
    for (size_t t = t0; t < t1; t++) {
        float *gate = s->gate + t * c->ff, *up = s->up + t * c->ff;
        if (w->y->gate_bias) vec_add(d->base.k, gate, w->y->gate_bias, c->ff);
        if (w->y->up_bias) vec_add(d->base.k, up, w->y->up_bias, c->ff);
        if (c->gelu) vec_gelu_mul(d->base.k, gate, up, c->ff);
        else vec_silu_mul(d->base.k, gate, up, c->ff);
    }
    pack_for(s, ws, 1, s->gate, c->ff, s->st->n_tokens, (uint32_t)t0, (uint32_t)t1);
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

static void head_cap(worker *w, size_t l0, size_t l1) {
    forward_space *s = w->s;
    uint32_t v = s->d->base.info.n_vocab;
    for (size_t l = l0; l < l1; l++) vec_softcap(s->d->base.k, s->logits + l * v, s->d->cfg.final_softcap, v);
}

static void run(void *ctx, unsigned member, unsigned n) {
    forward_space *s = ctx;
    const decoder *d = s->d;
    const decoder_config *c = &d->cfg;
    worker w = {s, NULL, 0, member, 0, d->clock ? clock_ns() : 0};
    uint32_t t = s->st->n_tokens;
    products ps;
    (void)n;
    phase(&w, t, 1, STEP_VECTORS, embed);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const decoder_layer *y = w.y = &d->layers[i];
        w.layer = i;
        phase(&w, t, PACK_TOKENS, STEP_VECTORS, attn_in);
        ps = (products){{product_of(s, &y->q, s->q), product_of(s, &y->k, s->k), product_of(s, &y->v, s->v)}, 3, t, 0, 0};
        multiply(&w, &ps, STEP_MATRICES);
        phase(&w, (size_t)t * c->n_kv, 1, STEP_VECTORS, store_kv);
        phase(&w, s->n_items, 1, STEP_ATTENTION, attend);
        phase(&w, t, PACK_TOKENS, STEP_VECTORS, attn_out);
        ps = (products){{product_of(s, &y->o, s->y)}, 1, t, 0, 0};
        multiply(&w, &ps, STEP_MATRICES);
        phase(&w, t, PACK_TOKENS, STEP_VECTORS, ffn_in);
        ps = (products){{product_of(s, &y->gate, s->gate), product_of(s, &y->up, s->up)}, 2, t, 0, 0};
        multiply(&w, &ps, STEP_MATRICES);
        phase(&w, t, PACK_TOKENS, STEP_VECTORS, ffn_act);
        ps = (products){{product_of(s, &y->down, s->y)}, 1, t, 0, 0};
        multiply(&w, &ps, STEP_MATRICES);
    }
    if (s->n_hidden) phase(&w, s->n_hidden, 1, STEP_VECTORS, hidden_out);
    if (!s->n_logits) return;
    phase(&w, s->n_logits, PACK_TOKENS, STEP_VECTORS, head_in);
    ps = (products){{product_of(s, &d->head, s->logits)}, 1, s->n_logits, 0, 0};
    multiply(&w, &ps, STEP_HEAD);
    if (c->final_softcap > 0) phase(&w, s->n_logits, 1, STEP_VECTORS, head_cap);
}

/* Tiles of queries per kv head; where there are too few of them for the members, the heads of a group go apart. */
static void plan_attention(forward_space *s) {
    const decoder_config *c = &s->d->cfg;
    uint32_t group = c->n_head / c->n_kv, tiles = 0, split, t0 = 0;
    for (uint32_t i = 0; i < s->st->n_segs; i++) tiles += (s->st->segs[i].n + ATTN_TILE - 1) / ATTN_TILE;
    split = tiles * c->n_kv >= 2 * s->n_members ? 1 : (2 * s->n_members + tiles * c->n_kv - 1) / (tiles * c->n_kv);
    if (s->n_members == 1) split = 1;
    if (split > group) split = group;
    s->n_items = 0;
    for (uint32_t i = 0; i < s->st->n_segs; i++) {
        const segment *g = &s->st->segs[i];
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
        g->logits = s->logits + (uint64_t)s->n_logits * d->base.info.n_vocab;
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
            s->logit_tok[s->n_logits++] = t;
        }
    }
    HD_ASSERT(t == st->n_tokens);
    plan_attention(s);
    for (uint32_t i = 0; i < s->n_cursors; i++) pool_cursor_init(&s->cursors[i], 0);
    if (d->clock) {
        uint64_t begin = clock_ns();
        pool_run(d->base.pool, run, s);
        clock_add_step(d->clock, clock_ns() - begin);
    } else {
        pool_run(d->base.pool, run, s);
    }
    return HD_OK;
}
