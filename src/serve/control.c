/* control.c - answers that never wait for compute: health, models, metrics, state, cancel, the front page, preflight.
 *
 * All run in the loop and read copies (engine_look), so they answer while a long prefill or planning is under way. */
#include "serve/route.h"

#include "base/jsonw.h"
#include "serve/gen.h"
#include "serve/metrics.h"
#include "serve/runner.h"
#include "serve/state.h"

#include <stdio.h>
#include <string.h>

enum {
    SMALL_REPLY = 16 << 20,
    CONTROL_BODY = 64 * 1024, /* of cancel and steer */
    STEER_TEXT = 1024,        /* a closing marker and a sentence; tokenised in the loop, so short */
    STEER_FORCED = 64,        /* as the engine takes them */
};

static void reply_json(conn *c, int status, hd_buf *b) {
    if (b->failed) {
        serve_error e = {0};
        serve_fail(&e, 503, "out_of_memory", NULL, "no memory for the reply");
        http_reply_error(c, &e);
    } else {
        http_reply(c, status, "application/json", NULL, buf_cstr(b), b->len);
    }
    buf_deinit(b);
}

void control_health(conn *c) {
    server *s = c->srv;
    server_phase phase = server_phase_now(s);
    engine_view v = {0};
    serve_error e = {0};
    if (phase == PHASE_LOADING) {
        serve_fail(&e, 503, "loading", NULL, "loading");
    } else {
        engine_look(s->eng, &v);
        if (v.failed) serve_fail(&e, 503, "failed", NULL, "failed");
        else if (phase >= PHASE_DRAINING || v.draining) serve_fail(&e, 503, "draining", NULL, "draining");
    }
    if (e.status) {
        /* Both readers of health checks are served: "status" for ours, "error" for llama-server's. */
        hd_buf b;
        char extra[40];
        buf_init(&b, 4096);
        serve_error_json(&b, &e);
        buf_drop_front(&b, 1);
        snprintf(extra, sizeof extra, "Retry-After: 1\r\n");
        {
            hd_buf all;
            buf_init(&all, 4096);
            buf_fmt(&all, "{\"status\":\"%s\",%s", e.code, buf_cstr(&b));
            http_reply(c, 503, "application/json", extra, buf_cstr(&all), all.len);
            buf_deinit(&all);
        }
        buf_deinit(&b);
        return;
    }
    http_reply(c, 200, "application/json", NULL, "{\"status\":\"ok\"}", 15);
}

void control_root(conn *c) {
    static const char page[] =
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>heddle</title>"
        "<body style=\"font-family:sans-serif;max-width:40em;margin:3em auto;line-height:1.5\">"
        "<h1>heddle " HEDDLE_VERSION "</h1><p>A language model server with an OpenAI-compatible interface. "
        "Point a client at <code>/v1</code>: <code>POST /v1/chat/completions</code>, <code>POST /v1/completions</code>, "
        "<code>GET <a href=\"/v1/models\">/v1/models</a></code>. State: <a href=\"/health\">/health</a>, "
        "<a href=\"/metrics\">/metrics</a>, <a href=\"/v1/heddle/state\">/v1/heddle/state</a>.</p>";
    http_reply(c, 200, "text/html; charset=utf-8", NULL, page, sizeof page - 1);
}

static void write_model(server *s, jsonw *w, const char *id) {
    const model_info *m = s->info;
    jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, id);
    jsonw_key(w, "object"), jsonw_str(w, "model");
    jsonw_key(w, "created"), jsonw_int(w, s->created);
    jsonw_key(w, "owned_by"), jsonw_str(w, "heddle");
    jsonw_key(w, "root"), jsonw_str(w, m->name);
    jsonw_key(w, "parent"), jsonw_null(w);
    jsonw_key(w, "max_model_len"), jsonw_uint(w, s->ctx);
    jsonw_key(w, "context_window"), jsonw_uint(w, s->ctx);
    jsonw_key(w, "status"), jsonw_str(w, "loaded");
    jsonw_key(w, "architecture"), jsonw_obj(w);
    jsonw_key(w, "name"), jsonw_str(w, m->arch);
    jsonw_key(w, "input_modalities"), jsonw_arr(w), jsonw_str(w, "text"), jsonw_arr_end(w);
    jsonw_key(w, "output_modalities"), jsonw_arr(w), jsonw_str(w, "text"), jsonw_arr_end(w);
    jsonw_obj_end(w);
    jsonw_key(w, "meta"), jsonw_obj(w);
    jsonw_key(w, "n_ctx"), jsonw_uint(w, s->ctx);
    jsonw_key(w, "n_ctx_train"), jsonw_uint(w, m->ctx_train);
    jsonw_key(w, "n_vocab"), jsonw_uint(w, m->n_vocab);
    jsonw_key(w, "n_embd"), jsonw_uint(w, m->width);
    jsonw_key(w, "n_params"), jsonw_uint(w, m->n_params);
    jsonw_key(w, "size"), jsonw_uint(w, m->weight_bytes);
    jsonw_key(w, "chat_template"), jsonw_bool(w, m->chat != NULL || m->scripted);
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

void control_models(conn *c) {
    static const char prefix[] = "/v1/models/";
    server *s = c->srv;
    const char *path = buf_cstr(&c->path);
    hd_buf b;
    jsonw w;
    buf_init(&b, SMALL_REPLY);
    jsonw_init(&w, &b);
    if (!strncmp(path, prefix, sizeof prefix - 1)) {
        const char *id = path + sizeof prefix - 1;
        if (!*id || !server_knows_model(s, id)) {
            serve_error e = {0};
            serve_fail(&e, 404, "model_not_found", "model", "there is no model '%.200s' here; there is '%s'", id, s->info->name);
            http_reply_error(c, &e);
            buf_deinit(&b);
            return;
        }
        write_model(s, &w, id);
    } else {
        jsonw_obj(&w);
        jsonw_key(&w, "object"), jsonw_str(&w, "list");
        jsonw_key(&w, "data"), jsonw_arr(&w);
        write_model(s, &w, s->info->name);
        for (size_t i = 0; i < s->opt.n_aliases; i++)
            if (strcmp(s->aliases[i], "*") != 0 && strcmp(s->aliases[i], s->info->name) != 0) write_model(s, &w, s->aliases[i]);
        jsonw_arr_end(&w);
        jsonw_obj_end(&w);
    }
    reply_json(c, 200, &b);
}

void control_metrics(conn *c) {
    hd_buf b;
    buf_init(&b, SMALL_REPLY);
    metrics_write(c->srv, &b);
    http_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, buf_cstr(&b), b.len);
    buf_deinit(&b);
}

void control_state(conn *c) {
    hd_buf b;
    buf_init(&b, SMALL_REPLY);
    if (!state_write(c->srv, c->key, &b)) b.failed = HD_NOMEM;
    reply_json(c, 200, &b);
}

/* The small body of a control request, with its id.  NULL: e says why. */
static json_t *read_control(conn *c, const char **id, serve_error *e) {
    bool big;
    uint64_t seed;
    json_t *body;
    *id = "";
    if (c->req.body.len > CONTROL_BODY) { /* an id and a few fields; larger bodies are not worth the loop's time */
        serve_fail(e, 413, "request_too_large", NULL, "the body may hold at most %d bytes", CONTROL_BODY);
        return NULL;
    }
    if (!(body = request_parse(c->req.body.data, c->req.body.len, &big, &seed, e))) return NULL;
    if (req_str(body, "id", id, NULL, e) && (*id[0] || bad_field(e, "id", "id is missing"))) return body;
    json_decref(body);
    return NULL;
}

static void reply_control(conn *c, const char *id, const char *what, bool did) {
    hd_buf b;
    jsonw w;
    buf_init(&b, SMALL_REPLY);
    jsonw_init(&w, &b);
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, id);
    jsonw_key(&w, what), jsonw_bool(&w, did);
    jsonw_obj_end(&w);
    reply_json(c, 200, &b);
}

static bool unknown_id(serve_error *e, const char *id) {
    return serve_fail(e, 404, "not_found", "id", "there is no generation '%.100s'", id);
}

void control_cancel(conn *c) {
    serve_error e = {0};
    const char *id;
    runner *r;
    json_t *body = read_control(c, &id, &e);
    int known = body ? gen_cancel_id(c->srv, c->key, id, CANCEL_BY_REQUEST) : -1;
    if (known < 0 && !e.status && c->srv->dur) { /* of an earlier life, perhaps: the log knows */
        gen_start_stored(c, &dialect_chat, GEN_KNOWN, id);
        json_decref(body);
        return;
    }
    if (known < 0) unknown_id(&e, id);
    if (known == 1 && (r = runner_find_id(c->srv, id))) gen_start_cancelled(c, r);
    else if (e.status) http_reply_error(c, &e);
    else reply_control(c, id, "cancelled", known == 1);
    json_decref(body);
}

/* The tokens that force_ids or end_reasoning stand for.  At most STEER_FORCED of them. */
static bool read_forced(const server *s, const json_t *body, id_list *ids, serve_error *e) {
    const json_t *list = req_get(body, "force_ids");
    const char *text = NULL;
    size_t n = 0;
    hd_err err = {0};
    hd_status st = HD_OK;
    if (!req_str(body, "end_reasoning", &text, &n, e)) return false;
    if (list && text) return bad_field(e, "force_ids", "force_ids and end_reasoning exclude each other");
    if (text) {
        if (!n || n > STEER_TEXT) return bad_field(e, "end_reasoning", "end_reasoning must hold 1 to %d bytes", STEER_TEXT);
        st = tokenizer_encode(s->info->tok, text, n, TOK_SPECIAL | TOK_CONTINUES, ids, &err);
        if (st == HD_FULL || ids->n > STEER_FORCED)
            return bad_field(e, "end_reasoning", "end_reasoning has more than %d tokens", STEER_FORCED);
        if (st == HD_NOMEM) return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
        return st == HD_OK || bad_field(e, "end_reasoning", "%s", err.msg);
    }
    if (!list) return true;
    if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > STEER_FORCED)
        return bad_field(e, "force_ids", "force_ids must be an array of 1 to %d token ids", STEER_FORCED);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id;
        if (!json_is_whole(json_array_get(list, i), &id) || id < 0 || id >= s->info->n_vocab)
            return bad_field(e, "force_ids", "force_ids[%zu] is not a token id below %u", i, s->info->n_vocab);
        if (id_list_add(ids, (int32_t)id, &err)) return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    }
    return true;
}

static bool read_steering(const server *s, const json_t *body, gen_steering *how, id_list *ids, serve_error *e) {
    int64_t cap = -1;
    if (!req_int(body, "max_tokens", 1, INT64_MAX, &cap, e) || !req_bool(body, "stop", &how->stop, e) ||
        !req_priority(body, &how->priority, e) || !read_forced(s, body, ids, e))
        return false;
    how->has_max_tokens = cap > 0;
    how->max_tokens = cap >= GEN_NO_CAP ? GEN_NO_CAP - 1 : (uint32_t)cap;
    how->has_priority = req_get(body, "priority") != NULL;
    how->force = ids->ids;
    how->n_force = ids->n;
    if (!how->stop && !how->has_max_tokens && !how->has_priority && !how->n_force)
        return bad_field(e, NULL, "there is nothing to steer: max_tokens, stop, priority, force_ids or end_reasoning");
    return true;
}

void control_steer(conn *c) {
    serve_error e = {0};
    gen_steering how = {0};
    const char *id;
    id_list ids;
    hd_err err = {0};
    hd_status st = HD_OK;
    int known = 0;
    json_t *body = read_control(c, &id, &e);
    id_list_init(&ids, STEER_FORCED + 1);
    if (body && read_steering(c->srv, body, &how, &ids, &e)) {
        known = gen_steer_id(c->srv, c->key, id, &how, &st, &err);
        if (known < 0) unknown_id(&e, id);
        else if (st == HD_FULL) serve_fail(&e, 409, "too_many_forced", "force_ids", "%s", err.msg);
        else if (st == HD_UNSUPPORTED) serve_fail(&e, 409, "durable_request", NULL, "%s", err.msg);
        else if (st) bad_field(&e, "force_ids", "%s", err.msg);
    }
    if (e.status) http_reply_error(c, &e);
    else reply_control(c, id, "steered", known == 1);
    id_list_deinit(&ids);
    json_decref(body);
}

/* What browsers ask before a cross-origin request; carries no key by design. */
void control_preflight(conn *c) {
    const char *headers = httpreq_get(&c->req, HTTPREQ_ACR_HEADERS);
    char extra[HTTPREQ_MAX_VALUE + 400];
    snprintf(extra, sizeof extra,
             "Access-Control-Allow-Methods: GET, HEAD, POST, DELETE, OPTIONS\r\n"
             "Access-Control-Allow-Headers: %s\r\nAccess-Control-Max-Age: 86400\r\nAllow: GET, HEAD, POST, DELETE, OPTIONS\r\n",
             headers[0] ? headers : "authorization, content-type");
    http_reply(c, 204, NULL, extra, "", 0);
}
