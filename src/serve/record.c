/* record.c - see record.h.
 *
 * One function, `policy`, names the fields of a policy in order; a codec writes them or reads them, so both sides agree. */
#include "serve/record.h"

#include "base/mem.h"
#include "state/le.h"
#include "state/prefix.h"

#include <stdio.h>
#include <string.h>

enum {
    POLICY_VERSION = 2,
    END_VERSION = 1,
    PACK_HEAD = 12,
};

/* ---- numbers in order, written or read ---- */

typedef struct {
    hd_buf *out; /* NULL: reading */
    const uint8_t *p;
    size_t n, at;
    bool bad;    /* reading: it ended too early, or holds what cannot be */
    bool oom;
} codec;

static void raw(codec *c, void *v, size_t n) {
    if (c->out) {
        buf_add(c->out, v, n);
    } else if (c->bad || n > c->n - c->at) {
        c->bad = true;
        memset(v, 0, n);
    } else {
        memcpy(v, c->p + c->at, n);
        c->at += n;
    }
}

static void io_u8(codec *c, uint8_t *v) { raw(c, v, 1); }

static void io_u32(codec *c, uint32_t *v) {
    uint8_t b[4];
    le_put32(b, *v);
    raw(c, b, sizeof b);
    *v = le_get32(b);
}

static void io_u64(codec *c, uint64_t *v) {
    uint8_t b[8];
    le_put64(b, *v);
    raw(c, b, sizeof b);
    *v = le_get64(b);
}

static void io_i32(codec *c, int32_t *v) {
    uint32_t u = (uint32_t)*v;
    io_u32(c, &u);
    *v = (int32_t)u;
}

static void io_i64(codec *c, int64_t *v) {
    uint64_t u = (uint64_t)*v;
    io_u64(c, &u);
    *v = (int64_t)u;
}

static void io_f32(codec *c, float *v) {
    uint32_t u;
    memcpy(&u, v, sizeof u);
    io_u32(c, &u);
    memcpy(v, &u, sizeof u);
}

static void io_bool(codec *c, bool *v) {
    uint8_t b = *v;
    io_u8(c, &b);
    if (b > 1) c->bad = true;
    *v = b == 1;
}

/* A count of elements that take `each` bytes at least, at most max. */
static void io_count(codec *c, size_t *n, size_t each, size_t max) {
    uint32_t v = (uint32_t)*n;
    io_u32(c, &v);
    if (!c->out && (v > max || (each && v > (c->n - c->at) / each))) c->bad = true, v = 0;
    *n = v;
}

/* A text in an array of `cap` bytes. */
static void io_name(codec *c, char *s, size_t cap) {
    size_t n = c->out ? strlen(s) : 0;
    io_count(c, &n, 1, cap - 1);
    raw(c, s, n);
    if (!c->out) s[n] = 0;
}

static void *room(codec *c, size_t n, size_t size) {
    void *p = c->bad || c->oom ? NULL : hd_calloc(n ? n : 1, size);
    if (!p) c->oom |= !c->bad, c->bad = true;
    return p;
}

static void io_ids(codec *c, int32_t **ids, size_t *n, size_t max) {
    io_count(c, n, 4, max);
    if (!c->out && *n && !(*ids = room(c, *n, sizeof **ids))) *n = 0;
    for (size_t i = 0; i < *n; i++) io_i32(c, &(*ids)[i]);
}

/* A heap text of n bytes, NULL when there is none. */
static void io_text(codec *c, char **s, size_t *n) {
    bool there = *s != NULL;
    io_bool(c, &there);
    if (!there) return;
    io_count(c, n, 1, UINT32_MAX);
    if (!c->out && !(*s = room(c, *n + 1, 1))) *n = 0;
    if (*s) raw(c, *s, *n);
}

/* ---- policy ---- */

static void sampling(codec *c, gen_params *p) {
    sampling_params *s = &p->sampling;
    float *const reals[] = {&s->temperature, &s->top_p, &s->min_p, &s->typical_p, &s->xtc_probability, &s->xtc_threshold,
                            &s->repetition_penalty, &s->presence_penalty, &s->frequency_penalty, &s->dry_multiplier, &s->dry_base};
    uint32_t *const whole[] = {&s->top_k, &s->repetition_window, &s->presence_window, &s->frequency_window,
                               &s->dry_allowed_length, &s->dry_window, &s->n_top_logprobs};
    size_t n_bias = s->n_bias;
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) io_f32(c, reals[i]);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) io_u32(c, whole[i]);
    io_u64(c, &s->seed);
    io_ids(c, &p->breakers, &s->n_dry_breakers, SAMPLER_MAX_BREAKERS);
    io_count(c, &n_bias, 8, SAMPLER_MAX_BIAS);
    if (!c->out && n_bias && !(p->bias = room(c, n_bias, sizeof *p->bias))) n_bias = 0;
    for (size_t i = 0; i < n_bias; i++) io_i32(c, &p->bias[i].id), io_f32(c, &p->bias[i].bias);
    s->n_bias = n_bias;
    s->bias = p->bias;
    s->dry_breakers = p->breakers;
}

/* Read, the strings lie behind the array, in its block. */
static void stops(codec *c, gen_params *p) {
    size_t bytes = 0, at = 0;
    for (size_t i = 0; c->out && i < p->n_stops; i++) bytes += p->stops[i].n;
    io_count(c, &p->n_stops, 4, STOP_MAX_STRINGS);
    io_count(c, &bytes, 1, STOP_MAX_STRINGS * STOP_MAX_BYTES);
    if (!c->out && p->n_stops && !(p->stops = room(c, 1, p->n_stops * sizeof *p->stops + bytes))) p->n_stops = 0;
    for (size_t i = 0; i < p->n_stops; i++) {
        char *text = c->out ? NULL : (char *)(p->stops + p->n_stops) + at;
        size_t n = c->out ? p->stops[i].n : 0;
        io_count(c, &n, 1, STOP_MAX_BYTES);
        if (c->out) {
            buf_add(c->out, p->stops[i].s, n);
            continue;
        }
        if (n > bytes - at) c->bad = true, n = 0;
        raw(c, text, n);
        p->stops[i] = (stop_string){text, n};
        at += n;
    }
}

static void policy(codec *c, gen *g) {
    gen_params *p = &g->plan;
    bool *const flags[] = {&g->has_big_seed, &p->ignore_eos, &p->special, &p->stream, &p->include_usage, &p->logprobs,
                           &p->return_token_ids, &p->timings, &p->echo, &p->score_prompt, &p->no_cache, &p->has_max_tokens,
                           &p->seed_given};
    uint64_t *const times[] = {&p->queue_timeout_us, &p->first_token_timeout_us, &p->total_timeout_us, &p->pin_us};
    uint8_t priority = (uint8_t)(p->priority - PRIORITY_HIGH);
    size_t n_name = g->model_name ? strlen(g->model_name) : 0;
    io_i64(c, &g->accepted_us);
    io_u32(c, &g->ctx);
    io_text(c, &g->model_name, &n_name);
    io_name(c, g->fingerprint, sizeof g->fingerprint);
    io_name(c, g->warning, sizeof g->warning);
    sampling(c, p);
    stops(c, p);
    io_ids(c, &p->stop_ids, &p->n_stop_ids, REQUEST_MAX_STOP_IDS);
    io_u32(c, &p->max_tokens);
    io_u32(c, &p->min_tokens);
    io_u32(c, &p->n);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) io_bool(c, flags[i]);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) io_u64(c, times[i]);
    io_u8(c, &priority);
    if (priority >= N_PRIORITIES) c->bad = true, priority = 0;
    p->priority = (gen_priority)(priority + PRIORITY_HIGH);
    io_name(c, p->share, sizeof p->share);
    io_name(c, p->space, sizeof p->space);
}

/* How many ids each prompt has (they are in the log's own column), and what is echoed. */
static void prompts(codec *c, gen *g, size_t *n_ids) {
    size_t n = g->n_prompts;
    io_count(c, &n, 21, GEN_MAX_CHOICES);
    if (!c->out && n && !(g->prompts = room(c, n, sizeof *g->prompts))) n = 0;
    for (size_t i = 0; i < n; i++) {
        gen_prompt *p = &g->prompts[i];
        size_t ids = p->ids.n;
        uint64_t replayed = p->facts.n_replayed, boundary = p->facts.boundary;
        if (!c->out) id_list_init(&p->ids, SIZE_MAX);
        g->n_prompts = (uint32_t)i + 1; /* what is there is freed, whatever happens */
        io_count(c, &ids, 0, UINT32_MAX);
        n_ids[i] = ids;
        io_u64(c, &replayed);
        io_u64(c, &boundary);
        p->facts = (prompt_facts){(size_t)replayed, (size_t)boundary};
        io_text(c, &p->echo, &p->n_echo);
    }
}

bool record_write(gen *g, hd_buf *out) {
    size_t *n_ids = hd_calloc(g->n_prompts, sizeof *n_ids);
    codec c = {.out = out};
    uint8_t version = POLICY_VERSION;
    if (!n_ids) return false;
    io_u8(&c, &version);
    io_name(&c, (char *)(uintptr_t)g->d->name, 64);
    policy(&c, g); /* writing, it leaves every value as it is */
    prompts(&c, g, n_ids);
    hd_free(n_ids);
    return !out->failed && !c.bad;
}

static const dialect *head(codec *c) {
    static const dialect *const known[] = {&dialect_chat, &dialect_completions};
    uint8_t version = 0;
    char name[64];
    io_u8(c, &version);
    io_name(c, name, sizeof name);
    if (c->bad || version != POLICY_VERSION) return NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i]->name, name)) return known[i];
    return NULL;
}

const dialect *record_dialect(const journal_entry *e) {
    codec c = {.p = e->request.record, .n = e->request.n_record};
    return head(&c);
}

static bool take_ids(gen *g, const journal_entry *e, const size_t *n_ids) {
    size_t at = 0;
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        if (!n_ids[i] || n_ids[i] > e->request.n_prompt - at) return false;
        for (size_t k = 0; k < n_ids[i]; k++) {
            int32_t id = e->request.prompt[at++];
            if (id < 0 || (uint32_t)id >= g->srv->info->n_vocab || id_list_add(&g->prompts[i].ids, id, NULL)) return false;
        }
    }
    return at == e->request.n_prompt;
}

hd_status record_read(gen *g, const dialect *d, const journal_entry *e, hd_err *err) {
    codec c = {.p = e->request.record, .n = e->request.n_record};
    const dialect *is = head(&c);
    size_t *n_ids;
    bool good;
    if (!is) return hd_fail(err, HD_UNSUPPORTED, "the stored request was written by another version of the server");
    if (is != d) return hd_fail(err, HD_NOTFOUND, "it is of another kind");
    policy(&c, g);
    g->created = e->request.created;
    if (!(n_ids = hd_calloc(GEN_MAX_CHOICES, sizeof *n_ids))) return hd_fail(err, HD_NOMEM, "no memory for a stored request");
    prompts(&c, g, n_ids);
    good = !c.bad && c.at == c.n && g->n_prompts && g->plan.n && (uint64_t)g->n_prompts * g->plan.n == e->request.n_choices;
    if (good && !take_ids(g, e, n_ids)) good = false;
    hd_free(n_ids);
    if (c.oom) return hd_fail(err, HD_NOMEM, "no memory for a stored request");
    return good ? HD_OK : hd_fail(err, HD_INVALID, "the stored request cannot be read");
}

/* ---- events ---- */

enum { KIND_TOKEN, KIND_PROMPT, KIND_TEXT, KIND_END, KIND_MASK = 15, HAS_LOGPROB = 16 };

static uint8_t *put32(uint8_t *p, uint32_t v) { return le_put32(p, v), p + 4; }
static uint8_t *put64(uint8_t *p, uint64_t v) { return le_put64(p, v), p + 8; }

static uint8_t *put_f32(uint8_t *p, float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return put32(p, u);
}

static uint8_t *put_sample(uint8_t *p, const sample_result *s) {
    p = put_f32(p, s->logprob);
    *p++ = (uint8_t)s->n_top;
    for (uint32_t i = 0; i < s->n_top; i++) p = put_f32(put32(p, (uint32_t)s->top[i].id), s->top[i].logprob);
    return p;
}

static uint8_t miss_number(const char *name) {
    for (int i = 0; name && i < N_PREFIX_MISSES; i++)
        if (!strcmp(name, prefix_miss_name((prefix_miss)i))) return (uint8_t)i;
    return UINT8_MAX;
}

static uint8_t *put_end(uint8_t *p, const gen_event *ev) {
    const gen_stats *s = &ev->stats;
    const uint32_t small[] = {s->prompt_tokens, s->cached_tokens, s->cache_miss_at, s->generated_tokens, s->preemptions,
                              s->pinned_tokens};
    const uint64_t large[] = {s->queue_us, s->prefill_us, s->decode_us, s->gap_p50_us, s->gap_p99_us, s->paused_us,
                              s->preempted_us, s->computed_tokens};
    *p++ = (uint8_t)ev->finish;
    *p++ = ev->ended_by_eos;
    *p++ = miss_number(s->cache_miss);
    p = put32(p, (uint32_t)ev->stop_index);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) p = put32(p, small[i]);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) p = put64(p, large[i]);
    return p;
}

void event_write(const gen_event *ev, bool logprobs, uint8_t extra[EVENT_EXTRA_MAX], journal_event *out) {
    uint8_t *p = extra + 1;
    *out = (journal_event){.token = -1, .text = ev->text, .n_text = ev->n_text, .extra = extra};
    switch (ev->kind) {
    case EV_TOKEN:
    case EV_PROMPT:
        extra[0] = ev->kind == EV_TOKEN ? KIND_TOKEN : KIND_PROMPT;
        out->token = ev->sample.id;
        if (!logprobs) break;
        extra[0] |= HAS_LOGPROB;
        p = put_sample(p, &ev->sample);
        break;
    case EV_DONE:
        extra[0] = KIND_END;
        p = put_end(p, ev);
        break;
    default: extra[0] = KIND_TEXT;
    }
    out->n_extra = (size_t)(p - extra);
}

static void get_sample(codec *c, sample_result *s) {
    uint8_t n = 0;
    io_f32(c, &s->logprob);
    io_u8(c, &n);
    if (n > SAMPLER_MAX_TOP_LOGPROBS) c->bad = true, n = 0;
    s->n_top = n;
    for (uint32_t i = 0; i < n; i++) io_i32(c, &s->top[i].id), io_f32(c, &s->top[i].logprob);
}

static void get_end(codec *c, gen_event *ev) {
    gen_stats *s = &ev->stats;
    uint32_t *const small[] = {&s->prompt_tokens, &s->cached_tokens, &s->cache_miss_at, &s->generated_tokens, &s->preemptions,
                               &s->pinned_tokens};
    uint64_t *const large[] = {&s->queue_us, &s->prefill_us, &s->decode_us, &s->gap_p50_us, &s->gap_p99_us, &s->paused_us,
                               &s->preempted_us, &s->computed_tokens};
    uint8_t finish = 0, miss = 0;
    io_u8(c, &finish);
    io_bool(c, &ev->ended_by_eos);
    io_u8(c, &miss);
    io_i32(c, &ev->stop_index);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) io_u32(c, small[i]);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) io_u64(c, large[i]);
    if (finish != FINISH_STOP && finish != FINISH_LENGTH) c->bad = true;
    ev->finish = finish == FINISH_LENGTH ? FINISH_LENGTH : FINISH_STOP;
    s->cache_miss = miss < N_PREFIX_MISSES ? prefix_miss_name((prefix_miss)miss) : NULL;
}

bool event_read(const journal_event *in, gen_event *ev) {
    codec c = {.p = in->extra, .n = in->n_extra};
    uint8_t kind = 0;
    memset(ev, 0, sizeof *ev);
    io_u8(&c, &kind);
    ev->text = in->text;
    ev->n_text = in->n_text;
    ev->sample.id = in->token;
    switch (kind & KIND_MASK) {
    case KIND_TOKEN:
    case KIND_PROMPT:
        ev->kind = (kind & KIND_MASK) == KIND_TOKEN ? EV_TOKEN : EV_PROMPT;
        if (kind & HAS_LOGPROB) get_sample(&c, &ev->sample);
        break;
    case KIND_TEXT: ev->kind = EV_TEXT; break;
    case KIND_END:
        ev->kind = EV_DONE;
        get_end(&c, ev);
        break;
    default: return false;
    }
    return !c.bad && c.at == c.n;
}

uint32_t event_mark(const journal_event *e) {
    uint32_t kind = e->n_extra ? ((const uint8_t *)e->extra)[0] & KIND_MASK : KIND_MASK;
    return kind << 28 | ((uint32_t)e->token & 0xfffffff);
}

bool event_mark_token(uint32_t mark, int32_t *id) {
    *id = (int32_t)(mark & 0xfffffff);
    return mark >> 28 == KIND_TOKEN;
}

bool event_pack(hd_buf *out, const journal_event *e) {
    uint8_t head[PACK_HEAD];
    le_put32(head, (uint32_t)e->n_text);
    le_put32(head + 4, (uint32_t)e->n_extra);
    le_put32(head + 8, (uint32_t)e->token);
    if (!buf_reserve(out, sizeof head + e->n_text + e->n_extra)) return false;
    buf_add(out, head, sizeof head);
    if (e->n_text) buf_add(out, e->text, e->n_text);
    if (e->n_extra) buf_add(out, e->extra, e->n_extra);
    return true;
}

size_t event_unpack(const char *p, size_t n, journal_event *e) {
    const uint8_t *head = (const uint8_t *)p;
    size_t n_text, n_extra;
    if (n < PACK_HEAD) return 0;
    n_text = le_get32(head);
    n_extra = le_get32(head + 4);
    if (n_text > n - PACK_HEAD || n_extra > n - PACK_HEAD - n_text) return 0;
    *e = (journal_event){.token = (int32_t)le_get32(head + 8), .text = p + PACK_HEAD, .n_text = n_text,
                         .extra = p + PACK_HEAD + n_text, .n_extra = n_extra};
    return PACK_HEAD + n_text + n_extra;
}

/* ---- the end ---- */

/* Codes are static text, so that a stored one becomes one of these again. */
static const char *static_code(const char *code) {
    static const char *const known[] = {"internal_error", "identity_changed", "never_fits", "invalid_value", "events_lost",
                                        "unsupported_parameter", "out_of_memory"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i], code)) return known[i];
    for (int i = 1; i <= CANCEL_FAILED; i++)
        if (!strcmp(cancel_reason_name((cancel_reason)i), code)) return cancel_reason_name((cancel_reason)i);
    return known[0];
}

bool finish_write(const serve_error *e, hd_buf *out) {
    codec c = {.out = out};
    serve_error copy = *e;
    uint8_t version = END_VERSION;
    uint32_t status = (uint32_t)e->status;
    char code[64];
    snprintf(code, sizeof code, "%s", e->code ? e->code : "");
    io_u8(&c, &version);
    io_u32(&c, &status);
    io_name(&c, code, sizeof code);
    io_name(&c, copy.param, sizeof copy.param);
    io_name(&c, copy.msg, sizeof copy.msg);
    io_bool(&c, &copy.has_generated);
    io_u64(&c, &copy.generated_tokens);
    return !out->failed;
}

bool finish_read(const void *p, size_t n, serve_error *e) {
    codec c = {.p = p, .n = n};
    uint8_t version = 0;
    uint32_t status = 0;
    char code[64];
    memset(e, 0, sizeof *e);
    io_u8(&c, &version);
    io_u32(&c, &status);
    io_name(&c, code, sizeof code);
    io_name(&c, e->param, sizeof e->param);
    io_name(&c, e->msg, sizeof e->msg);
    io_bool(&c, &e->has_generated);
    io_u64(&c, &e->generated_tokens);
    if (c.bad || c.at != c.n || version != END_VERSION || (status && (status < 400 || status > 599))) return false;
    e->status = (int)status;
    e->code = static_code(code);
    return true;
}
