/* stored.c - see stored.h. */
#include "serve/stored.h"

#include "serve/conversation.h"
#include "serve/durable.h"
#include "serve/openai.h"
#include "serve/record.h"
#include "serve/runner.h"

#include <stdio.h>
#include <string.h>

static bool is(const char *p, size_t n, const char *text) { return n == strlen(text) && !memcmp(p, text, n); }

/* One name=value of the query.  Others than ours are ignored, as fields of a body are. */
static bool parameter(gen *g, const char *name, size_t n_name, const char *v, size_t n, serve_error *e) {
    if (is(name, n_name, "stream")) {
        bool on = is(v, n, "true") || is(v, n, "1");
        g->want_stream = on && !g->conn->head_only;
        return on || is(v, n, "false") || is(v, n, "0") || bad_field(e, "stream", "stream must be true or false");
    }
    if (is(name, n_name, "starting_after")) {
        g->from = 0;
        for (size_t i = 0; i < n; i++) {
            if (v[i] < '0' || v[i] > '9' || n > 18) return bad_field(e, "starting_after", "starting_after must be the number of an event");
            g->from = g->from * 10 + (uint64_t)(v[i] - '0');
        }
        g->has_from = n > 0;
        return g->has_from || bad_field(e, "starting_after", "starting_after must be the number of an event");
    }
    if (is(name, n_name, "after") && g->kind == GEN_NAMES) {
        snprintf(g->want_id, sizeof g->want_id, "%.*s", (int)(n < sizeof g->want_id ? n : sizeof g->want_id - 1), v);
    }
    return true;
}

bool stored_query(gen *g, const httpreq *r, serve_error *e) {
    const char *p = strchr(buf_cstr(&r->target), '?');
    if (!p) return true;
    p++;
    while (*p && *p != '#') {
        size_t n = strcspn(p, "&#"), name = strcspn(p, "=&#");
        const char *v = name < n ? p + name + 1 : p + n;
        if (!parameter(g, p, name, v, (size_t)(p + n - v), e)) return false;
        p += n;
        if (*p == '&') p++;
    }
    return true;
}

static void unknown(gen *g) {
    serve_fail(&g->error, 404, "not_found", "id", "there is no stored response '%.100s' here", g->want_id);
}

static void not_read(gen *g, hd_status st) {
    if (st == HD_NOTFOUND) unknown(g);
    else if (st == HD_FAILED) serve_fail(&g->error, 410, "events_lost", NULL, "the stored response '%.100s' is damaged", g->want_id);
    else serve_fail(&g->error, 503, "log_failed", NULL, "the request log cannot be read");
}

static void get(gen *g) {
    journal_entry *e;
    hd_status st = durable_find(g, g->want_id, &e);
    if (st) {
        not_read(g, st);
        return;
    }
    if (durable_load(g, e)) g->plan.stream = g->want_stream;
    journal_entry_free(e);
}

static void known(gen *g) {
    journal_entry *e;
    jsonw w;
    hd_status st = durable_find(g, g->want_id, &e);
    journal_entry_free(e);
    if (st == HD_NOTFOUND) {
        serve_fail(&g->error, 404, "not_found", "id", "there is no generation '%.100s'", g->want_id);
        return;
    }
    jsonw_init(&w, &g->reply);
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, g->want_id);
    jsonw_key(&w, "cancelled"), jsonw_bool(&w, false);
    jsonw_obj_end(&w);
}

/* A request that ended a moment ago may count as running until its end is written: wait for that once. */
static hd_status delete_it(journal *j, const char *id, hd_err *err) {
    hd_status st = journal_delete(j, id, err);
    if (st != HD_INVALID) return st;
    (void)journal_flush(j, NULL);
    return journal_delete(j, id, err);
}

static void delete(gen *g) {
    journal_entry *e;
    char object[64];
    hd_err err = {0};
    char id[JOURNAL_ID_BYTES + 1];
    jsonw w;
    hd_status st = durable_resolve(g, g->want_id, id);
    if (st) {
        not_read(g, st);
        return;
    }
    st = durable_find(g, id, &e);
    if (!st && record_dialect(e) && record_dialect(e) != g->d) st = HD_NOTFOUND;
    journal_entry_free(e);
    if (!st || st == HD_FAILED) st = delete_it(durable_log(g->srv->dur), id, &err); /* a damaged one may go too */
    if (st == HD_INVALID) {
        serve_fail(&g->error, 409, "still_running", "id", "the response '%.100s' is still being made; cancel it first", g->want_id);
        return;
    }
    if (st) {
        not_read(g, st);
        return;
    }
    snprintf(object, sizeof object, "%s.deleted", g->d->object);
    jsonw_init(&w, &g->reply);
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, id);
    jsonw_key(&w, "object"), jsonw_str(&w, object);
    jsonw_key(&w, "deleted"), jsonw_bool(&w, true);
    jsonw_obj_end(&w);
}

void stored_plan(gen *g) {
    if (g->kind == GEN_GET) get(g);
    else if (g->kind == GEN_DELETE) delete(g);
    else if (g->kind == GEN_NAMES) conversation_names(g);
    else known(g);
}

void stored_status(gen *g) {
    conn *c = g->conn;
    const runner *r = g->view.r;
    jsonw w;
    buf_clear(&g->reply);
    jsonw_init(&w, &g->reply);
    jsonw_obj(&w);
    openai_head(&w, g, g->d->object);
    jsonw_key(&w, "status"), jsonw_str(&w, r && runner_queued(r) ? "queued" : "in_progress");
    jsonw_key(&w, "choices"), jsonw_arr(&w), jsonw_arr_end(&w);
    jsonw_key(&w, "usage"), jsonw_null(&w);
    jsonw_obj_end(&w);
    c->gen = NULL;
    http_reply(c, g->kind == GEN_POST ? 202 : 200, "application/json", NULL, buf_cstr(&g->reply), g->reply.len);
    gen_release(g);
}

void stored_cancelled(gen *g, bool late) {
    conn *c = g->conn;
    const runner *r = g->view.r;
    jsonw w;
    bool did = !r->over || (r->error.code && !strcmp(r->error.code, cancel_reason_name(CANCEL_BY_REQUEST)));
    if (!late && !viewer_may_end(g)) return;
    jsonw_init(&w, &g->reply);
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, g->id);
    jsonw_key(&w, "cancelled"), jsonw_bool(&w, did);
    jsonw_obj_end(&w);
    c->gen = NULL;
    http_reply(c, 200, "application/json", NULL, buf_cstr(&g->reply), g->reply.len);
    gen_release(g);
}
