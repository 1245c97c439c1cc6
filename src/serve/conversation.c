/* conversation.c - see conversation.h.
 *
 * A turn in the log is a version, flags, and a JSON array of messages as they came.  A request's first message may be the answer
 * that it goes on from.  Read: conversation_plan, then before, answer, join. */
#include "serve/conversation.h"

#include "base/jsonw.h"
#include "serve/durable_int.h"
#include "serve/openai.h"
#include "serve/planner.h"
#include "serve/record.h"
#include "text/replay.h"

#include <stdio.h>
#include <string.h>

#define FIELD "previous_response_id"
#define NAME "response_name"
#define CHOICE "previous_choice"

enum {
    TURN_VERSION = 1,
    TURN_HEAD = 2,     /* version, flags */
    CONTINUES = 1,     /* the answer continues the last message (continue_final_message) */
    REPLACES = 2,      /* the first message stands for the last one before: it and the answer that continued it */
    SAME = 4,          /* nothing is added: a larger cap of the response before */
    NAMES_AT_ONCE = 1000,
};

static bool oom(serve_error *e) { return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request"); }

/* Of dots alone it would be a step in a path: clients and proxies take that before they ask. */
bool conversation_is_name(const char *s) {
    static const char *const ids[] = {"chatcmpl-", "cmpl-", "resp_"};
    size_t n = strnlen(s, JOURNAL_NAME_BYTES + 1);
    if (!n || n > JOURNAL_NAME_BYTES || !s[strspn(s, ".")] || s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")]) return false;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (!strncmp(s, ids[i], strlen(ids[i]))) return false;
    return true;
}

/* ---- the response that is gone on from ---- */

static bool not_there(serve_error *e, const char *id) {
    return serve_fail(e, 404, "not_found", FIELD, "there is no stored response '%.100s' here", id);
}

static bool find(gen *g, const char *id, journal_entry **out, serve_error *e) {
    hd_status st = durable_find(g, id, out);
    if (!st && (*out)->state == JOURNAL_RUNNING) { /* its end may be on its way to the disk */
        journal_entry_free(*out);
        (void)journal_flush(g->srv->dur->log, NULL);
        st = durable_find(g, id, out);
    }
    if (st == HD_NOTFOUND) return not_there(e, id);
    if (st == HD_FAILED) return serve_fail(e, 410, "events_lost", FIELD, "the stored response '%.100s' is damaged", id);
    if (st) return serve_fail(e, 503, "log_failed", NULL, "the request log cannot be read");
    return true;
}

static bool may_follow(const journal_entry *p, const char *id, int64_t which, serve_error *e) {
    if (p->state == JOURNAL_RUNNING) return serve_fail(e, 409, "still_running", FIELD, "the response '%.100s' is still being made", id);
    if (p->state != JOURNAL_FINISHED)
        return serve_fail(e, 409, "not_finished", FIELD, "the response '%.100s' was %s", id, journal_state_name(p->state));
    if (p->lost) return serve_fail(e, 410, "events_lost", FIELD, "the response '%.100s' lost durability: it is not all there", id);
    if (which >= p->request.n_choices)
        return bad_field(e, CHOICE, CHOICE " must be below %u, the choices of the response", p->request.n_choices);
    return true;
}

/* ---- what was before ---- */

typedef struct {
    hd_buf text; /* [[message, ...], [message, ...], ... */
    uint8_t flags[JOURNAL_TURNS];
    size_t n;
    bool bad;
} gathering;

static bool gather(void *ctx, const void *data, size_t n) {
    gathering *t = ctx;
    const uint8_t *p = data;
    if (n < TURN_HEAD || p[0] != TURN_VERSION || t->n == JOURNAL_TURNS) return t->bad = true, false;
    t->flags[t->n++] = p[1];
    buf_byte(&t->text, t->n > 1 ? ',' : '[');
    return buf_add(&t->text, p + TURN_HEAD, n - TURN_HEAD);
}

/* Its turns' messages in one list.  *continues: the answer belongs to the last one. */
static json_t *flatten(const json_t *turns, const gathering *t, bool *continues) {
    json_t *all = json_array();
    *continues = false;
    for (size_t i = 0; all && i < t->n; i++) {
        if (t->flags[i] & SAME) continue;
        if (t->flags[i] & REPLACES && json_array_size(all)) json_array_remove(all, json_array_size(all) - 1);
        *continues = t->flags[i] & CONTINUES;
        if (!json_array_extend(all, json_array_get(turns, i))) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

static bool too_large(const gen *g, serve_error *e) {
    return serve_fail(e, 413, "request_too_large", FIELD, "the conversation is larger than a body may be: %zu bytes", g->srv->opt.max_body_bytes);
}

/* It has no turn: it never had one, or was deleted since it was found. */
static bool no_turn(gen *g, const char *id, serve_error *e) {
    journal_entry *p;
    hd_status st = durable_find(g, id, &p);
    journal_entry_free(p);
    if (st == HD_NOTFOUND) return not_there(e, id);
    return serve_fail(e, 410, "events_lost", FIELD, "the response '%.100s' was stored by an earlier version, without its messages", id);
}

/* As one text, so that the bound on the values of a body counts all of them.  NULL: e is filled, or g->long_before. */
static json_t *before(gen *g, const journal_entry *p, bool *continues, serve_error *e) {
    gathering t = {.n = 0};
    json_t *all = NULL, *v = NULL;
    uint64_t bytes, seed;
    uint32_t n;
    bool big;
    serve_error why = {0};
    hd_status st = journal_conversation(g->srv->dur->log, p->order, &n, &bytes, NULL);
    if (st == HD_NOTFOUND) return no_turn(g, p->request.id, e), NULL;
    if (!st && bytes > g->srv->opt.max_body_bytes) return too_large(g, e), NULL;
    if (!st && bytes > PLANNER_LARGE_BODY && g->body.len <= PLANNER_LARGE_BODY && !g->long_before) return g->long_before = true, NULL;
    buf_init(&t.text, g->srv->opt.max_body_bytes + JOURNAL_TURNS + sizeof "{\"turns\":]}");
    buf_str(&t.text, "{\"turns\":");
    if (!st) st = journal_turns(g->srv->dur->log, p->order, gather, &t, NULL);
    buf_str(&t.text, "]}");
    if (st == HD_NOTFOUND) { /* just now */
        not_there(e, p->request.id);
    } else if (st == HD_FAILED || t.bad) {
        serve_fail(e, 410, "events_lost", FIELD, "the conversation of '%.100s' cannot be read", p->request.id);
    } else if (st || t.text.failed) {
        if (st == HD_IO) serve_fail(e, 503, "log_failed", NULL, "the request log cannot be read");
        else oom(e);
    } else if ((v = request_parse(t.text.data, t.text.len, &big, &seed, &why))) {
        if (!(all = flatten(json_object_get(v, "turns"), &t, continues))) oom(e);
    } else if (why.status == 400) {
        bad_field(e, FIELD, "the conversation holds more values than a body may, or is nested too deeply");
    } else {
        oom(e);
    }
    json_decref(v);
    buf_deinit(&t.text);
    return all;
}

/* ---- its answer ---- */

typedef struct {
    hd_buf text;
    id_list ids;
    bool bad, ended;
} answered;

static bool take(void *ctx, uint64_t index, const journal_event *in) {
    answered *a = ctx;
    gen_event ev;
    (void)index;
    if (!event_read(in, &ev)) return a->bad = true, false;
    if (ev.kind == EV_TOKEN) (void)id_list_add(&a->ids, ev.sample.id, NULL); /* past the limit they are not all there: seen below */
    if (ev.kind == EV_DONE) return a->ended = true;
    return buf_add(&a->text, ev.text, ev.n_text);
}

/* The message of a choice, byte for byte what its reply had. */
static json_t *answer(gen *g, const journal_entry *p, uint32_t which, serve_error *e) {
    answered a = {.bad = false};
    json_t *m = NULL;
    hd_status st;
    hd_buf out;
    jsonw w;
    buf_init(&a.text, g->srv->opt.max_body_bytes);
    id_list_init(&a.ids, REPLAY_MAX_IDS);
    buf_init(&out, 7 * g->srv->opt.max_body_bytes); /* escaped */
    st = journal_read_events(g->srv->dur->log, p->order, which, 0, take, &a, NULL);
    jsonw_init(&w, &out);
    jsonw_obj(&w);
    /* Another model's tokens stand for other text. */
    openai_message(&w, g->srv->info->tok, &a.text, memcmp(p->request.identity, g->srv->dur->identity, JOURNAL_DIGEST) ? NULL : &a.ids);
    jsonw_obj_end(&w);
    if (st == HD_FAILED || a.bad) serve_fail(e, 410, "events_lost", FIELD, "the answer of '%.100s' cannot be read", p->request.id);
    else if (st) serve_fail(e, 503, "log_failed", NULL, "the request log cannot be read");
    else if (a.text.failed == HD_FULL) too_large(g, e);
    else if (!a.text.failed && !a.ended) not_there(e, p->request.id); /* deleted since it was found: without events it is no answer */
    else if (a.text.failed || out.failed || !(m = json_loadb(out.data, out.len, JSON_ALLOW_NUL, NULL))) oom(e);
    buf_deinit(&a.text);
    buf_deinit(&out);
    id_list_deinit(&a.ids);
    return m;
}

/* The message that an answer continued, with it. */
static json_t *continued(const json_t *last, const json_t *said) {
    json_t *m = json_copy((json_t *)(uintptr_t)last), *parts, *c = json_object_get(m, "content"), *text = json_object_get(said, "content");
    bool ok;
    hd_buf both;
    if (json_is_array(c)) {
        parts = json_copy(c);
        ok = parts && !json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
        if (!ok) json_decref(parts);
        else ok = !json_object_set_new(m, "content", parts);
    } else {
        buf_init(&both, SIZE_MAX);
        if (json_is_string(c)) buf_add(&both, json_string_value(c), json_string_length(c));
        buf_add(&both, json_string_value(text), json_string_length(text));
        ok = !both.failed && !json_object_set_new(m, "content", json_stringn_nocheck(buf_cstr(&both), both.len));
        buf_deinit(&both);
    }
    json_object_del(m, "extra_content"); /* ids of a part */
    if (ok) return m;
    json_decref(m);
    return NULL;
}

/* ---- all of it ---- */

static int feed(const char *p, size_t n, void *ctx) { return buf_add(ctx, p, n) ? 0 : -1; }

/* What the log will hold of it. */
static bool leave_turn(gen *g, const json_t *first, const json_t *messages, uint8_t flags, serve_error *e) {
    json_t *mine = json_array();
    bool ok = mine && (!first || !json_array_append(mine, (json_t *)(uintptr_t)first)) &&
              (!messages || !json_array_extend(mine, (json_t *)(uintptr_t)messages));
    char head[TURN_HEAD] = {TURN_VERSION, (char)flags};
    buf_clear(&g->turn);
    ok = ok && buf_add(&g->turn, head, sizeof head) && !json_dump_callback(mine, feed, &g->turn, JSON_COMPACT);
    json_decref(mine);
    if (ok) return true;
    if (g->turn.failed != HD_FULL) return oom(e);
    return bad_field(e, "messages", "the messages are larger than the request log keeps of one request");
}

static json_t *with_messages(const json_t *body, json_t *all, const json_t *first, const json_t *messages) {
    json_t *b = json_copy((json_t *)(uintptr_t)body);
    if (b && !json_array_append(all, (json_t *)(uintptr_t)first) && !json_array_extend(all, (json_t *)(uintptr_t)messages) &&
        !json_object_set(b, "messages", all) && !json_object_del(b, FIELD))
        return b;
    json_decref(b);
    return NULL;
}

static bool follow(gen *g, const json_t *body, const char *id, int64_t which, json_t **whole, uint8_t *flags, json_t **first,
                   serve_error *e) {
    const json_t *messages = req_get(body, "messages");
    journal_entry *p = NULL;
    json_t *all = NULL, *said = NULL;
    bool continues = false, ok = false;
    size_t n;
    if (!json_is_array(messages) || !json_array_size(messages))
        return bad_field(e, "messages", "messages must be an array of the new ones, at least one");
    if (!find(g, id, &p, e)) return false;
    if (record_dialect(p) != g->d) not_there(e, id); /* of another kind */
    else if (may_follow(p, id, which, e) && (all = before(g, p, &continues, e))) said = answer(g, p, (uint32_t)which, e);
    if (!said) goto out;
    if (continues && (n = json_array_size(all))) {
        json_t *both = continued(json_array_get(all, n - 1), said);
        json_decref(said);
        said = both;
        json_array_remove(all, n - 1);
        *flags |= REPLACES;
    }
    if (!said || !(*whole = with_messages(body, all, said, messages))) {
        oom(e);
        goto out;
    }
    g->after = p->order;
    g->n_before = json_array_size(all) - json_array_size(messages);
    *first = json_incref(said);
    ok = true;
out:
    json_decref(said);
    json_decref(all);
    journal_entry_free(p);
    return ok;
}

static bool fields(gen *g, const json_t *body, const char **id, int64_t *which, serve_error *e) {
    const char *name = NULL;
    if (!req_str(body, FIELD, id, NULL, e) || !req_str(body, NAME, &name, NULL, e) || !req_int(body, CHOICE, 0, UINT32_MAX, which, e))
        return false;
    if (*which >= 0 && !*id) return bad_field(e, CHOICE, CHOICE " needs a " FIELD);
    if (*id && g->d != &dialect_chat)
        return serve_fail(e, 400, "unsupported_parameter", FIELD, FIELD " is for messages: a prompt is a whole");
    if (*id && req_get(body, "continue_response"))
        return bad_field(e, FIELD, FIELD " and continue_response exclude each other");
    if ((*id || name) && !g->srv->dur)
        return serve_fail(e, 422, "unsupported_parameter", *id ? FIELD : NAME, "%s needs a server with a request log: start it with --state-dir",
                          *id ? FIELD : NAME);
    if (!name) return true;
    if (!conversation_is_name(name))
        return bad_field(e, NAME, NAME " must have 1 to %d of A-Z a-z 0-9 . _ -, not begin like an id and not be dots alone", JOURNAL_NAME_BYTES);
    if (g->view.how != VIEW_NEW)
        return bad_field(e, NAME, NAME " is for stored responses: it needs store, background or an Idempotency-Key");
    snprintf(g->name, sizeof g->name, "%s", name);
    return true;
}

bool conversation_plan(gen *g, const json_t *body, json_t **whole) {
    serve_error *e = &g->error;
    const json_t *messages = req_get(body, "messages");
    const char *id = NULL;
    json_t *first = NULL;
    int64_t which = -1;
    uint8_t flags = json_is_true(req_get(body, "continue_final_message")) ? CONTINUES : 0;
    bool ok;
    *whole = NULL;
    if (!g->d->durable) return true;
    if (!fields(g, body, &id, &which, e)) return false;
    if (id && !follow(g, body, id, which < 0 ? 0 : which, whole, &flags, &first, e)) return false;
    ok = g->view.how != VIEW_NEW || g->d != &dialect_chat || req_get(body, "continue_response") || !json_is_array(messages) ||
         leave_turn(g, first, messages, flags, e);
    json_decref(first);
    return ok;
}

bool conversation_same(gen *g, serve_error *e) {
    uint32_t n;
    uint64_t bytes;
    hd_status st = journal_conversation(g->srv->dur->log, g->source->order, &n, &bytes, NULL);
    if (st == HD_NOTFOUND) return true; /* of none */
    if (st) return serve_fail(e, 503, "log_failed", NULL, "the request log cannot be read");
    g->after = g->source->order;
    return leave_turn(g, NULL, NULL, SAME, e);
}

bool conversation_refused(gen *g, hd_status st, const hd_err *err) {
    const char *field = g->source ? "continue_response" : FIELD;
    if (strcmp(err->field, "after") != 0) return false;
    if (st == HD_NOTFOUND) serve_fail(&g->error, 404, "not_found", field, "the response of %s was deleted just now", field);
    else bad_field(&g->error, field, "%s", err->msg);
    return true;
}

/* ---- names ---- */

typedef struct {
    jsonw w;
    size_t n;
    bool more;
} listing;

static bool list(void *ctx, const char *name, const char *id, int64_t created) {
    listing *l = ctx;
    if (l->n++ == NAMES_AT_ONCE) return l->more = true, false;
    jsonw_obj(&l->w);
    jsonw_key(&l->w, "name"), jsonw_str(&l->w, name);
    jsonw_key(&l->w, "id"), jsonw_str(&l->w, id);
    jsonw_key(&l->w, "created"), jsonw_int(&l->w, created);
    jsonw_obj_end(&l->w);
    return true;
}

void conversation_names(gen *g) {
    listing l = {.n = 0};
    hd_status st = HD_OK;
    jsonw_init(&l.w, &g->reply);
    jsonw_obj(&l.w);
    jsonw_key(&l.w, "object"), jsonw_str(&l.w, "list");
    jsonw_key(&l.w, "data"), jsonw_arr(&l.w);
    if (g->srv->dur) st = journal_names(g->srv->dur->log, g->srv->dur->space[g->key], g->want_id, list, &l, NULL);
    jsonw_arr_end(&l.w);
    jsonw_key(&l.w, "has_more"), jsonw_bool(&l.w, l.more);
    jsonw_obj_end(&l.w);
    if (st == HD_FAILED) serve_fail(&g->error, 410, "events_lost", NULL, "a name in the request log is damaged");
    else if (st) serve_fail(&g->error, 503, "log_failed", NULL, "the request log cannot be read");
}
