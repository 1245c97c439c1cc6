/* script.c - running the scripted model: which rule a row follows, its logits, the delays.
 *
 * Step index of a position = that position - prompt length.  The scripted token has logit 20 and all others 0, or the
 * listed logits (others 0) where the rule has "top" for the step.  The hidden state of token t at position p is
 * h[i] = (31 t + 7 (p + 1) (i + 1)) mod 101 - 50: small whole numbers, so that sums of them are exact.
 * Keys and values are the token itself, at its place in the pages of every group: nothing here reads it, but a test can see
 * whether a row's pages hold what the row thinks. */
#include "model/script.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>


static hd_status script_plan(model *m, const step_limits *lim, hd_err *err) {
    script_model *s = (script_model *)m;
    float *logits = hd_calloc((size_t)lim->max_logits * m->info.n_vocab, sizeof *logits);
    logit_best *best = hd_calloc(lim->max_logits, sizeof *best);
    float *hidden = hd_calloc((size_t)lim->max_hidden * SCRIPT_WIDTH, sizeof *hidden);
    if (!logits || !best || !hidden) {
        hd_free(logits);
        hd_free(best);
        hd_free(hidden);
        return hd_fail(err, HD_NOMEM, "script: no memory");
    }
    hd_free(s->logits);
    hd_free(s->best);
    hd_free(s->hidden);
    s->logits = logits;
    s->best = best;
    s->hidden = hidden;
    s->lim = *lim;
    return HD_OK;
}

static uint64_t script_workspace_bytes(const model *m, const step_limits *lim) {
    return ((uint64_t)lim->max_logits * m->info.n_vocab + (uint64_t)lim->max_hidden * SCRIPT_WIDTH) * sizeof(float) +
           lim->max_logits * sizeof(logit_best);
}

static uint64_t script_page_bytes(const model *m, uint32_t g, uint32_t page_tokens, kv_scheme scheme) {
    (void)m, (void)g, (void)scheme;
    return (uint64_t)page_tokens * SCRIPT_TOKEN_BYTES;
}

static hd_status script_row_open(model *m, const int32_t *prompt, size_t n, void **row_state, hd_err *err) {
    script_model *s = (script_model *)m;
    hd_buf text;
    hd_status st;
    size_t i;
    buf_init(&text, SIZE_MAX);
    if ((st = tokenizer_decode(m->tok, prompt, n, true, &text, err))) {
        buf_deinit(&text);
        return st;
    }
    for (i = 0; i + 1 < s->n_rules; i++)
        if (memmem(buf_cstr(&text), text.len, s->rules[i].match, s->rules[i].n_match)) break;
    buf_deinit(&text);
    *row_state = &s->rules[i];
    return HD_OK;
}

/* False: the rule fails at this step. */
static bool script_logits(const script_model *s, const script_rule *r, uint64_t at, float *out) {
    uint32_t v = s->base.info.n_vocab;
    const script_top *top = NULL;
    memset(out, 0, v * sizeof *out);
    if (r->then == SCRIPT_LOOP && r->n_emit) at %= r->n_emit;
    if (at < r->n_emit && at < r->n_top) top = &r->top[at];
    if (at >= r->n_emit) {
        if (r->then == SCRIPT_FAIL) return false;
        if (s->base.info.n_eog) out[s->base.info.eog[0]] = 20;
    } else if (top) {
        for (size_t i = 0; i < top->n; i++) out[top->pairs[i].id] = top->pairs[i].logit;
    } else {
        out[r->emit[at]] = 20;
    }
    return true;
}

static void script_hidden(int32_t id, uint64_t pos, float *out) {
    for (uint32_t i = 0; i < SCRIPT_WIDTH; i++) out[i] = (float)(((uint64_t)id * 31 + (pos + 1) * (i + 1) * 7) % 101) - 50;
}

static void script_sleep(script_model *s, uint64_t us) {
    struct timespec t;
    if (!us) return;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(us / 1000000);
    t.tv_nsec += (long)(us % 1000000 * 1000);
    if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    pthread_mutex_lock(&s->mu);
    while (!s->interrupted && pthread_cond_timedwait(&s->wake, &s->mu, &t) != ETIMEDOUT) {}
    s->interrupted = false;
    pthread_mutex_unlock(&s->mu);
}

static void script_interrupt(model *m) {
    script_model *s = (script_model *)m;
    pthread_mutex_lock(&s->mu);
    s->interrupted = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
}

static void script_write_pages(const script_model *s, const segment *g) {
    uint32_t page = s->lim.page_tokens;
    for (uint32_t k = 0; k < s->base.info.n_groups; k++)
        for (uint32_t j = 0; j < g->n && g->pages[k]; j++) {
            uint32_t pos = g->pos0 + j;
            memcpy((uint8_t *)g->pages[k][pos / page] + (size_t)(pos % page) * SCRIPT_TOKEN_BYTES, &g->tokens[j], sizeof *g->tokens);
        }
}

static hd_status script_forward(model *m, const step *st, uint32_t *bad_seg, hd_err *err) {
    script_model *s = (script_model *)m;
    uint64_t us = s->step_delay_us;
    uint32_t n_logits = 0, n_hidden = 0;
    for (uint32_t i = 0; i < st->n_segs; i++) {
        segment *g = &st->segs[i];
        const script_rule *r = g->row_state;
        script_write_pages(s, g);
        g->hidden = s->hidden + (uint64_t)n_hidden * SCRIPT_WIDTH;
        for (uint32_t j = g->first_hidden; j < g->end_hidden; j++, n_hidden++)
            script_hidden(g->tokens[j], (uint64_t)g->pos0 + j, s->hidden + (uint64_t)n_hidden * SCRIPT_WIDTH);
        g->logits = g->only_best ? NULL : s->logits + (uint64_t)n_logits * m->info.n_vocab;
        g->best = s->best + n_logits;
        for (uint32_t j = g->first_logits; j < g->n; j++, n_logits++) {
            uint64_t next = (uint64_t)g->pos0 + j + 1; /* the position these logits decide */
            float *out = s->logits + (uint64_t)n_logits * m->info.n_vocab;
            if (next < g->n_prompt) {
                memset(out, 0, m->info.n_vocab * sizeof *out);
            } else if (!script_logits(s, r, next - g->n_prompt, out)) {
                *bad_seg = i;
                return hd_fail(err, HD_FAILED, "the script fails at step %llu", (unsigned long long)(next - g->n_prompt));
            }
            uint32_t id = vec_argmax(m->k, out, m->info.n_vocab);
            s->best[n_logits] = isnan(out[id]) ? (logit_best){-INFINITY, 0} : (logit_best){out[id], id};
        }
        if (g->first_logits < g->n) us += s->token_delay_us;
        if (g->pos0 < g->n_prompt)
            us += s->prompt_delay_us * (g->pos0 + g->n < g->n_prompt ? g->n : g->n_prompt - g->pos0);
    }
    script_sleep(s, us);
    return HD_OK;
}

static bool script_digest(const model *m, uint8_t out[16]) {
    memcpy(out, ((const script_model *)m)->digest, 16);
    return true;
}

static const model_ops script_ops = {
    .close = script_close,
    .plan = script_plan,
    .digest = script_digest,
    .workspace_bytes = script_workspace_bytes,
    .page_bytes = script_page_bytes,
    .forward = script_forward,
    .row_open = script_row_open,
    .interrupt = script_interrupt,
};

hd_status script_open_memory(model **out, const char *text, size_t n, const char *name, const model_options *opt, hd_err *err) {
    script_model *s = hd_calloc(1, sizeof *s);
    pthread_condattr_t attr;
    json_error_t why;
    json_t *root;
    hd_status st;
    (void)opt;
    *out = NULL;
    if (!s) return hd_fail(err, HD_NOMEM, "script: no memory");
    s->base.ops = &script_ops;
    pthread_mutex_init(&s->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    XXH128_canonicalFromHash((XXH128_canonical_t *)s->digest, XXH3_128bits(text, n));
    s->base.k = kernels_get(NULL);
    s->base.info = (model_info){.arch = "script", .bos = -1, .eos = -1, .n_groups = 1, .isa = "script", .n_threads = 1,
                                .scripted = true, .n_layers = 1, .width = SCRIPT_WIDTH, .temperature = __builtin_nanf(""),
                                .top_p = __builtin_nanf(""), .min_p = __builtin_nanf(""), .top_k = UINT32_MAX,
                                .groups = {{.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .token_bytes = SCRIPT_TOKEN_BYTES}}};
    if (!(s->base.name = hd_strdup(name))) st = hd_fail(err, HD_NOMEM, "script: no memory");
    else if (!(root = json_loadb(text, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why)))
        st = hd_fail_at(err, HD_INVALID, (uint64_t)why.position, "script: line %d: %s", why.line, why.text);
    else {
        s->base.info.name = s->base.name;
        st = script_read(s, root, err);
        json_decref(root);
    }
    if (st) {
        script_close(&s->base);
        return st;
    }
    *out = &s->base;
    return HD_OK;
}

hd_status script_open(model **out, const char *path, const model_options *opt, hd_err *err) {
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    FILE *f = fopen(path, "rb");
    char chunk[65536];
    size_t n;
    hd_buf b;
    hd_status st;
    *out = NULL;
    if (!f) return hd_fail(err, errno == ENOENT ? HD_NOTFOUND : HD_IO, "%s: %s", path, strerror(errno));
    buf_init(&b, SCRIPT_MAX_FILE);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0 && buf_add(&b, chunk, n)) {}
    if (ferror(f)) st = hd_fail(err, HD_IO, "%s: cannot be read", path);
    else if (b.failed) st = hd_fail(err, b.failed, "%s: larger than 64 MiB", path);
    else st = script_open_memory(out, buf_cstr(&b), b.len, base, opt, err);
    if (*out) (*out)->info.file_bytes = b.len;
    fclose(f);
    buf_deinit(&b);
    return st;
}
