/* durable_take.c - taking durable requests in: by key, by id, new ones, and again at a start.  See durable.h. */
#include "serve/durable_int.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/bounds.h"
#include "serve/conversation.h"
#include "serve/go_on.h"
#include "serve/planner.h"
#include "serve/record.h"
#include "serve/runner.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

enum { RECORD_MAX = JOURNAL_REQUEST_BYTES, LOG_RETRY_S = 5 };

/* ---- loop ---- */

static bool number(const char *s, uint64_t *v) {
    *v = 0;
    if (!*s || strlen(s) > 18) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        *v = *v * 10 + (uint64_t)(*s - '0');
    }
    return true;
}

bool durable_headers(gen *g, const httpreq *r, serve_error *e) {
    const char *key = httpreq_get(r, HTTPREQ_IDEMPOTENCY_KEY), *last = httpreq_get(r, HTTPREQ_LAST_EVENT_ID);
    if (!g->d->durable || (g->kind != GEN_POST && g->kind != GEN_GET)) return true;
    if (g->kind == GEN_POST && httpreq_has(r, HTTPREQ_IDEMPOTENCY_KEY)) {
        if (!*key || strlen(key) > JOURNAL_KEY_BYTES)
            return bad_field(e, "Idempotency-Key", "an Idempotency-Key has 1 to %d bytes", JOURNAL_KEY_BYTES);
        g->has_key = true;
    }
    if (!g->srv->dur) return true; /* a warning tells of it */
    if (*last && !(g->has_from = number(last, &g->from)))
        return bad_field(e, "Last-Event-ID", "Last-Event-ID must be the number of an event");
    if (!buf_str(&g->idem_key, key)) return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    return true;
}

/* ---- what is there already ---- */

bool durable_load(gen *g, const journal_entry *e) {
    view *v = &g->view;
    hd_err err = {0};
    hd_status st;
    v->how = VIEW_STORED;
    snprintf(v->id, sizeof v->id, "%s", e->request.id);
    v->order = e->order;
    v->state = e->state;
    v->lost = e->lost;
    v->has_end = e->finish && finish_read(e->finish, e->n_finish, &v->end);
    gen_clear_plan(g);
    if ((st = record_read(g, g->d, e, &err))) {
        v->how = VIEW_NONE;
        if (st == HD_NOTFOUND) return serve_fail(&g->error, 404, "not_found", "id", "there is no stored response '%.100s' here", e->request.id);
        if (st == HD_NOMEM) return serve_fail(&g->error, 503, "out_of_memory", NULL, "%s", err.msg);
        return serve_fail(&g->error, 410, "events_lost", NULL, "%s", err.msg);
    }
    if (gen_make_choices(g)) return true;
    v->how = VIEW_NONE;
    return false;
}

hd_status durable_resolve(const gen *g, const char *id, char out[JOURNAL_ID_BYTES + 1]) {
    const durable *d = g->srv->dur;
    if (!d || !*id) return HD_NOTFOUND;
    if (conversation_is_name(id)) return journal_named(d->log, d->space[g->key], id, out, NULL);
    if (snprintf(out, JOURNAL_ID_BYTES + 1, "%s", id) > JOURNAL_ID_BYTES) return HD_NOTFOUND;
    return HD_OK;
}

hd_status durable_find(const gen *g, const char *id, journal_entry **out) {
    durable *d = g->srv->dur;
    char is[JOURNAL_ID_BYTES + 1];
    hd_status st = durable_resolve(g, id, is);
    *out = NULL;
    if (st || (st = journal_find(d->log, is, out, NULL))) return st;
    if (!memcmp((*out)->request.ns, d->space[g->key], JOURNAL_DIGEST)) return HD_OK;
    journal_entry_free(*out);
    *out = NULL;
    return HD_NOTFOUND;
}

static int feed(const char *p, size_t n, void *ctx) { return EVP_DigestUpdate(ctx, p, n) ? 0 : -1; }

/* The body in one spelling (sorted keys, no white space), without what may differ between two readers of one answer. */
static bool digest_body(const gen *g, const json_t *body, uint8_t out[JOURNAL_DIGEST]) {
    json_t *rest = json_copy((json_t *)(uintptr_t)body);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    uint64_t seed = g->has_big_seed ? g->big_seed : 0; /* the parsed one is rounded */
    bool ok = rest && c;
    if (ok) {
        json_object_del(rest, "stream");
        json_object_del(rest, "stream_options");
        ok = EVP_DigestInit_ex(c, EVP_sha256(), NULL) && EVP_DigestUpdate(c, g->d->name, strlen(g->d->name) + 1) &&
             EVP_DigestUpdate(c, &seed, sizeof seed) && !json_dump_callback(rest, feed, c, JSON_COMPACT | JSON_SORT_KEYS) &&
             EVP_DigestFinal_ex(c, out, NULL);
    }
    EVP_MD_CTX_free(c);
    json_decref(rest);
    return ok;
}

/* How this reader wants the answer, whatever the first one wanted. */
static bool read_manner(const json_t *body, bool *stream, bool *usage, serve_error *e) {
    const json_t *so = req_get(body, "stream_options");
    return req_bool(body, "stream", stream, e) &&
           (!so || (json_is_object(so) ? req_bool(so, "include_usage", usage, e)
                                       : bad_field(e, "stream_options", "stream_options must be an object")));
}

static bool conflict(serve_error *e) {
    return serve_fail(e, 409, "idempotency_conflict", "Idempotency-Key",
                      "this Idempotency-Key was used with another request; take a new key, or send the same body to the same route");
}

static bool attach(gen *g, const journal_entry *found) {
    bool stream = g->plan.stream, usage = g->plan.include_usage, background = g->background;
    if (memcmp(found->request.body, g->view.body, JOURNAL_DIGEST)) {
        g->view.how = VIEW_NONE;
        return conflict(&g->error);
    }
    if (!durable_load(g, found)) return false;
    g->plan.stream = stream;
    g->plan.include_usage = usage;
    g->background = background;
    return false; /* no planning */
}

static bool look_up(gen *g, serve_error *e) {
    durable *d = g->srv->dur;
    journal_entry *found;
    hd_err err = {0};
    hd_status st = journal_find_by_key(d->log, d->space[g->key], g->idem_key.data, g->idem_key.len, &found, &err);
    bool go_on;
    if (st == HD_NOTFOUND) return true;
    if (st == HD_FAILED) return serve_fail(e, 410, "events_lost", NULL, "the stored request of this key is damaged");
    if (st) return serve_fail(e, 503, "log_failed", NULL, "the request log cannot be read: %s", err.msg);
    go_on = attach(g, found);
    journal_entry_free(found);
    return go_on;
}

bool durable_plan(gen *g, const json_t *body, serve_error *e) {
    server *s = g->srv;
    bool keep = false, background = false, goes_on = g->d->durable && go_on_asked(body);
    if (!g->d->durable) return true;
    g->has_from &= g->has_key || goes_on; /* events of anything else are new */
    if (!req_bool(body, "store", &keep, e) || !req_bool(body, "background", &background, e)) return false;
    if (!g->has_key && !keep && !background && !goes_on) return true;
    if (!s->dur) {
        if (background || goes_on)
            return serve_fail(e, 422, "unsupported_parameter", background ? "background" : "continue_response",
                              "%s needs a server with a request log: start it with --state-dir",
                              background ? "background" : "continue_response");
        g->not_kept = g->has_key ? "Idempotency-Key" : "store";
        return true;
    }
    g->background = background;
    g->view.how = VIEW_NEW;
    if (!read_manner(body, &g->plan.stream, &g->plan.include_usage, e)) return false;
    if (!digest_body(g, body, g->view.body)) return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    return !g->has_key || look_up(g, e);
}

/* ---- new ones ---- */

static void refused(gen *g, hd_status st, const hd_err *err) {
    serve_error *e = &g->error;
    if (conversation_refused(g, st, err)) return;
    switch (st) {
    case HD_FULL:
        serve_fail(e, 429, "log_full", NULL, "the request log takes no more: %s", err->msg);
        e->retry_after_s = LOG_RETRY_S;
        break;
    case HD_INVALID: serve_fail(e, 400, "invalid_value", err->field, "%s", err->msg); break;
    case HD_NOMEM: serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request"); break;
    default:
        serve_fail(e, 503, "log_failed", NULL, "the request could not be written to the request log: %s", err->msg);
        e->retry_after_s = LOG_RETRY_S;
    }
}

/* Another request took the key meanwhile. */
static void join_other(gen *g, const char *id) {
    journal_entry *found;
    hd_err err = {0};
    hd_status st = journal_find(g->srv->dur->log, id, &found, &err);
    if (st) {
        g->view.how = VIEW_NONE;
        serve_fail(&g->error, 503, "log_failed", NULL, "the request log cannot be read: %s", err.msg);
        return;
    }
    attach(g, found);
    journal_entry_free(found);
}

static int32_t *all_ids(const gen *g, size_t *n) {
    int32_t *ids;
    size_t at = 0;
    *n = 0;
    for (uint32_t i = 0; i < g->n_prompts; i++) *n += g->prompts[i].ids.n;
    if (!(ids = hd_reallocarray(NULL, *n, sizeof *ids))) return NULL;
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        memcpy(ids + at, g->prompts[i].ids.ids, g->prompts[i].ids.n * sizeof *ids);
        at += g->prompts[i].ids.n;
    }
    return ids;
}

static hd_status log_accept(gen *g, const hd_buf *record, journal_accepted *out, hd_err *err) {
    durable *d = g->srv->dur;
    journal_request r = {.id = g->id, .key = g->idem_key.len ? g->idem_key.data : NULL, .n_key = g->idem_key.len,
                         .seed = g->plan.sampling.seed, .n_choices = g->n_choices, .created = g->created,
                         .record = record->data, .n_record = record->len, .name = g->name[0] ? g->name : NULL,
                         .turn = g->turn.len ? g->turn.data : NULL, .n_turn = g->turn.len, .after = g->after};
    hd_status st;
    int32_t *ids = all_ids(g, &r.n_prompt);
    if (!ids) return hd_fail(err, HD_NOMEM, "no memory for the request");
    r.prompt = ids;
    memcpy(r.ns, d->space[g->key], JOURNAL_DIGEST);
    memcpy(r.body, g->view.body, JOURNAL_DIGEST);
    memcpy(r.identity, d->identity, JOURNAL_DIGEST);
    st = journal_accept(d->log, &r, out, err);
    hd_free(ids);
    return st;
}

static runner *runner_of(gen *g) {
    runner *r = runner_new(g->srv, g->d, g->id, g->n_choices);
    if (!r) return NULL;
    memcpy(r->ns, g->srv->dur->space[g->key], JOURNAL_DIGEST);
    r->key = g->key;
    r->logprobs = g->plan.logprobs;
    return r;
}

static void free_was(resumed_choice *was, uint32_t n) {
    for (uint32_t i = 0; was && i < n; i++) hd_free(was[i].said);
    hd_free(was);
}

static void cannot_go_on(gen *g, hd_status st, const hd_err *err) {
    if (st == HD_INVALID) serve_fail(&g->error, 409, "nothing_to_continue", err->field, "%s", err->msg);
    else if (st == HD_NOMEM) serve_fail(&g->error, 503, "out_of_memory", NULL, "%s", err->msg);
    else serve_fail(&g->error, 410, "events_lost", "continue_response", "%s", err->msg);
}

/* It is in the log, but what it goes on from could not be put there: it ends. */
static void give_up_new(gen *g, const runner *r, hd_status st, const hd_err *err) {
    hd_buf end;
    refused(g, st == HD_FULL ? HD_FULL : HD_IO, err);
    buf_init(&end, JOURNAL_FINISH_BYTES);
    if (finish_write(&g->error, &end))
        (void)journal_finish(g->srv->dur->log, r->order, JOURNAL_FAILED, hd_wall_seconds(), end.data, end.len, NULL);
    buf_deinit(&end);
}

/* First the engine, which refuses more often and leaves nothing behind; then the log.  Nothing is published before the loop
 * adopts the runner, so what is computed meanwhile waits in its sessions. */
void durable_submit(gen *g) {
    server *s = g->srv;
    session **made = hd_calloc(g->n_choices, sizeof *made);
    resumed_choice *was = g->source ? hd_calloc(g->n_choices, sizeof *was) : NULL;
    runner *r = runner_of(g);
    journal_accepted out = {0};
    hd_buf record;
    hd_err err = {0};
    hd_status st;
    buf_init(&record, RECORD_MAX);
    g->view.how = VIEW_NONE;
    g->accepted_us = server_wall_us();
    g->ctx = s->ctx;
    memcpy(g->fingerprint, s->fingerprint, sizeof g->fingerprint);
    if (!made || !r || (g->source && !was) || !(g->model_name = hd_strdup(s->info->name)) || !record_write(g, &record)) {
        serve_fail(&g->error, 503, "out_of_memory", NULL, "no memory for the request");
        goto out;
    }
    if (was && (st = go_on_recall(g, r, was, &err))) {
        cannot_go_on(g, st, &err);
        goto out;
    }
    if ((st = gen_submit_choices(g, 0, g->n_choices, was, &r->w, made, &err))) {
        gen_submit_error(g, &g->error, st, &err);
        goto out;
    }
    for (uint32_t i = 0; i < g->n_choices; i++) r->ch[i].s = made[i];
    g->view.discard = r;
    if (planner_unwanted(g)) goto out;
    if ((st = log_accept(g, &record, &out, &err))) {
        refused(g, st, &err);
    } else if (out.outcome == JOURNAL_CONFLICT) {
        conflict(&g->error);
    } else if (out.outcome == JOURNAL_SAME) {
        join_other(g, out.id);
    } else {
        r->order = g->view.order = out.order;
        if (was && (st = go_on_copy(g, r, &err))) {
            give_up_new(g, r, st, &err);
            r = NULL;
            goto out;
        }
        g->view.how = VIEW_NEW;
        g->view.r = r;
        bounds_request_to(g, r);
        g->view.discard = NULL;
    }
    r = NULL; /* the loop's, to keep or to throw away */
out:
    if (r && g->view.discard != r) runner_free(r);
    buf_deinit(&g->turn);
    journal_entry_free(g->source);
    g->source = NULL;
    free_was(was, g->n_choices);
    buf_deinit(&record);
    hd_free(made);
}

/* ---- at a start ---- */

static hd_status identify(durable *d, hd_err *err) {
    static const char label[] = "heddle durable 1";
    uint8_t all[sizeof label + 32 + 2];
    engine_view v = {0};
    hd_status st;
    memcpy(all, label, sizeof label);
    if ((st = model_identity(d->srv->mdl, all + sizeof label, err))) return st;
    engine_look(d->srv->eng, &v);
    all[sizeof all - 2] = (uint8_t)v.kv_type;
    all[sizeof all - 1] = (uint8_t)v.kv_type_sliding;
    return EVP_Digest(all, sizeof all, d->identity, NULL, EVP_sha256(), NULL) ? HD_OK
                                                                              : hd_fail(err, HD_NOMEM, "serve: no memory for a digest");
}

typedef struct {
    durable *d;
    hd_status st;
    hd_err *err;
    uint32_t n, n_failed;
} resuming;

static bool give_up(resuming *u, const journal_entry *e, const serve_error *why) {
    hd_buf end;
    buf_init(&end, JOURNAL_FINISH_BYTES);
    finish_write(why, &end);
    hd_log(HD_LOG_WARN, "serve: request %s is not taken up again: %s", e->request.id, why->msg);
    u->st = journal_finish(u->d->log, e->order, JOURNAL_FAILED, hd_wall_seconds(), end.data, end.len, u->err);
    if (u->st == HD_FULL) u->st = HD_OK; /* it is failed all the same */
    buf_deinit(&end);
    u->n_failed++;
    return !u->st;
}

typedef struct {
    runner_choice *ch;
    resumed_choice *was;
    bool bad;
} remembered;

static bool remember(void *ctx, uint64_t index, const journal_event *e) {
    remembered *m = ctx;
    gen_event ev;
    if (index >= m->ch->n_logged || !event_read(e, &ev)) return m->bad = true, false;
    m->ch->known[index] = event_mark(e);
    if (ev.kind != EV_DONE) return true;
    m->ch->finish = ev.finish;
    m->ch->stats = ev.stats;
    m->ch->done = m->was->done = true;
    return true;
}

/* What the log has of each choice.  Its tokens are handed to the engine as said, unless the prompt is scored (said_again false):
 * then all is computed anew and compared.  HD_INVALID: not what we write. */
static hd_status recall(durable *d, runner *r, const journal_entry *e, bool said_again, resumed_choice *was, hd_err *err) {
    for (uint32_t i = 0; i < r->n_choices; i++) {
        runner_choice *ch = &r->ch[i];
        remembered m = {.ch = ch, .was = &was[i]};
        hd_status st;
        ch->n_logged = ch->n_events = ch->tail_first = e->published[i];
        was[i].begun = ch->n_logged > 0;
        if (!ch->n_logged) continue;
        if (!(ch->known = hd_reallocarray(NULL, ch->n_logged, sizeof *ch->known))) return hd_fail(err, HD_NOMEM, "serve: no memory");
        if ((st = journal_read_events(d->log, e->order, i, 0, remember, &m, err))) return st;
        if (m.bad) return hd_fail(err, HD_INVALID, "its events cannot be read");
        if (!said_again || was[i].done) continue;
        if (!(was[i].said = hd_reallocarray(NULL, ch->n_logged, sizeof *was[i].said))) return hd_fail(err, HD_NOMEM, "serve: no memory");
        while (was[i].n_said < ch->n_logged && event_mark_token(ch->known[was[i].n_said], &was[i].said[was[i].n_said])) was[i].n_said++;
        ch->n_taken = was[i].n_said;
    }
    return HD_OK;
}

/* The context is one of its parameters: a smaller one may end the answer elsewhere. */
static bool still_fits(const gen *g) {
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        size_t n = g->prompts[i].ids.n, room = g->ctx > n ? g->ctx - n : 0;
        if (n + (g->plan.max_tokens < room ? g->plan.max_tokens : room) > g->srv->ctx) return false;
    }
    return true;
}

static void adopt_later(server *s, runner *r) {
    runner **at;
    pthread_mutex_lock(&s->mu);
    for (at = &s->resumed; *at; at = &(*at)->next) {}
    *at = r;
    pthread_mutex_unlock(&s->mu);
}

static bool resume(resuming *u, gen *g, const journal_entry *e) {
    durable *d = u->d;
    server *s = d->srv;
    const dialect *dia = record_dialect(e);
    resumed_choice *was = hd_calloc(e->request.n_choices, sizeof *was);
    session **made = hd_calloc(e->request.n_choices, sizeof *made);
    runner *r = NULL;
    serve_error why = {0};
    hd_status st = HD_NOMEM;
    g->d = dia;
    snprintf(g->id, sizeof g->id, "%s", e->request.id);
    if (memcmp(e->request.identity, d->identity, JOURNAL_DIGEST)) {
        serve_fail(&why, 410, "identity_changed", NULL,
                   "the model or the way it computes has changed since the request was accepted; it is not continued");
    } else if (!dia) {
        serve_fail(&why, 410, "identity_changed", NULL, "the request was accepted by another version of the server");
    } else if (!was || !made) {
        goto nomem;
    } else if ((st = record_read(g, dia, e, u->err))) {
        if (st == HD_NOMEM) goto nomem;
        serve_fail(&why, 410, "identity_changed", NULL, "%s", u->err->msg);
    } else if (!still_fits(g)) {
        serve_fail(&why, 410, "identity_changed", NULL,
                   "the context is smaller than when the request was accepted (%u, now %u), so its answer might differ", g->ctx, s->ctx);
    }
    if (why.status) goto failed;
    g->readmit = true;
    g->n_choices = e->request.n_choices;
    g->choices = hd_calloc(g->n_choices, sizeof *g->choices);
    if (!g->choices || !(r = runner_new(s, dia, g->id, g->n_choices))) goto nomem;
    for (uint32_t i = 0; i < g->n_choices; i++) g->choices[i].prompt = i / g->plan.n;
    memcpy(r->ns, e->request.ns, JOURNAL_DIGEST);
    r->key = g->key;
    r->logprobs = g->plan.logprobs;
    r->order = e->order;
    if ((st = recall(d, r, e, !g->plan.score_prompt, was, u->err))) {
        if (st == HD_NOMEM || st == HD_IO) goto error;
        serve_fail(&why, 410, "events_lost", NULL, "%s", u->err->msg);
        goto failed;
    }
    if ((st = gen_submit_choices(g, 0, g->n_choices, was, &r->w, made, u->err))) {
        if (st == HD_NOMEM || st == HD_CLOSED) goto error;
        gen_submit_error(g, &why, st, u->err);
        goto failed;
    }
    for (uint32_t i = 0; i < g->n_choices; i++) r->ch[i].s = made[i];
    bounds_request_to(g, r);
    adopt_later(s, r);
    u->n++;
    free_was(was, e->request.n_choices);
    hd_free(made);
    return true;
nomem:
    st = hd_fail(u->err, HD_NOMEM, "serve: no memory to take up request %s again", e->request.id);
error:
    u->st = st;
    runner_free(r);
    free_was(was, e->request.n_choices);
    hd_free(made);
    return false;
failed:
    runner_free(r);
    free_was(was, e->request.n_choices);
    hd_free(made);
    return give_up(u, e, &why);
}

/* 1 + index of the API key with this namespace, 0: taken when there were none; one more than there are: of a key that is gone. */
static size_t key_of(const durable *d, const uint8_t ns[JOURNAL_DIGEST]) {
    size_t n = d->srv->opt.n_api_keys, k = 0;
    while (k <= n && memcmp(ns, d->space[k], JOURNAL_DIGEST)) k++;
    return k;
}

static bool resume_one(void *ctx, const journal_entry *e) {
    resuming *u = ctx;
    gen *g = hd_calloc(1, sizeof *g);
    bool go_on;
    if (!g) {
        u->st = hd_fail(u->err, HD_NOMEM, "serve: no memory to take up unfinished requests");
        return false;
    }
    g->srv = u->d->srv;
    g->key = key_of(u->d, e->request.ns);
    go_on = resume(u, g, e);
    gen_clear_plan(g);
    hd_free(g);
    return go_on;
}

hd_status durable_resume(durable *d, hd_err *err) {
    hd_err own = {0};
    resuming u = {.d = d, .err = err ? err : &own};
    hd_status st = identify(d, u.err);
    if (!st && !(st = journal_unfinished(d->log, resume_one, &u, u.err))) st = u.st;
    if (u.n || u.n_failed) hd_log(HD_LOG_INFO, "serve: %u unfinished requests go on, %u cannot", u.n, u.n_failed);
    server_wake(d->srv);
    return st;
}
