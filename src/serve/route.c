/* route.c - see route.h.
 *
 * Order of judgement: preflight (asks no key) -> path -> method -> key -> body limit -> phase.  What can be refused at
 * the head is, so that no body is read for nothing. */
#include "serve/route.h"

#include "serve/gen.h"

#include <string.h>
#include <strings.h>

struct route {
    const char *path;  /* exact, or a prefix when it ends in '/' and is not the root */
    const char *allow; /* methods */
    void (*get)(conn *c);
    void (*post)(conn *c);     /* answered in the loop */
    const dialect *generate;   /* POST through a planner */
    const dialect *stored;     /* GET and DELETE of stored responses, through a planner */
    bool open;                 /* no key needed */
    bool anthropic;            /* errors in that shape */
    const char *missing;       /* known elsewhere: 404 with this text, which names what there is.  SDKs would try a 501 again */
};

/* ---- what others have ---- */
#define RESPONSES "the responses API is not in this server; use POST /v1/chat/completions (client.chat.completions.create)"
#define MESSAGES "Anthropic's messages API is not in this server; use an OpenAI client and POST /v1/chat/completions"
#define RERANK "reranking is not in this server; POST /v1/embeddings gives vectors to compare"
#define ADAPTERS "adapters are not in this server"
#define TEXT_ONLY "this server makes text and embeddings only: POST /v1/chat/completions, /v1/completions, /v1/embeddings"
#define MODEL_ONLY "this server runs a model and nothing else: POST /v1/chat/completions, /v1/completions, /v1/embeddings"

static void names(conn *c) { gen_start_stored(c, &dialect_chat, GEN_NAMES, ""); }

static const route routes[] = {
    {"/", "GET, HEAD, OPTIONS", .get = control_root, .open = true},
    {"/health", "GET, HEAD, OPTIONS", .get = control_health, .open = true},
    {"/v1/health", "GET, HEAD, OPTIONS", .get = control_health, .open = true},
    {"/metrics", "GET, HEAD, OPTIONS", .get = control_metrics},
    {"/v1/models", "GET, HEAD, OPTIONS", .get = control_models},
    {"/v1/models/", "GET, HEAD, OPTIONS", .get = control_models},
    {"/v1/heddle/state", "GET, HEAD, OPTIONS", .get = control_state},
    {"/v1/heddle/names", "GET, HEAD, OPTIONS", .get = names},
    {"/v1/heddle/cancel", "POST, OPTIONS", .post = control_cancel},
    {"/v1/heddle/steer", "POST, OPTIONS", .post = control_steer},
    {"/v1/chat/completions", "POST, OPTIONS", .generate = &dialect_chat},
    {"/v1/chat/completions/", "GET, HEAD, DELETE, OPTIONS", .stored = &dialect_chat},
    {"/v1/completions", "POST, OPTIONS", .generate = &dialect_completions},
    {"/v1/completions/", "GET, HEAD, DELETE, OPTIONS", .stored = &dialect_completions},
    {"/v1/embeddings", "POST, OPTIONS", .generate = &dialect_embeddings},
    {"/tokenize", "POST, OPTIONS", .generate = &dialect_tokenize},
    {"/detokenize", "POST, OPTIONS", .generate = &dialect_detokenize},
    {"/v1/responses", .missing = RESPONSES},
    {"/v1/responses/", .missing = RESPONSES},
    {"/v1/conversations", .missing = RESPONSES},
    {"/v1/conversations/", .missing = RESPONSES},
    {"/v1/assistants", .missing = RESPONSES},
    {"/v1/assistants/", .missing = RESPONSES},
    {"/v1/threads", .missing = RESPONSES},
    {"/v1/threads/", .missing = RESPONSES},
    {"/v1/messages", .missing = MESSAGES, .anthropic = true},
    {"/v1/messages/count_tokens", .missing = "Anthropic's messages API is not in this server; POST /tokenize gives a text's or a chat's tokens", .anthropic = true},
    {"/v1/messages/", .missing = MESSAGES, .anthropic = true},
    {"/v1/complete", .missing = MESSAGES, .anthropic = true},
    {"/v1/rerank", .missing = RERANK},
    {"/v1/score", .missing = RERANK},
    {"/rerank", .missing = RERANK},
    {"/v1/adapters", .missing = ADAPTERS},
    {"/v1/adapters/", .missing = ADAPTERS},
    {"/v1/images/", .missing = TEXT_ONLY},
    {"/v1/audio/", .missing = TEXT_ONLY},
    {"/v1/videos", .missing = TEXT_ONLY},
    {"/v1/realtime", .missing = TEXT_ONLY},
    {"/v1/realtime/", .missing = TEXT_ONLY},
    {"/v1/moderations", .missing = MODEL_ONLY},
    {"/v1/files", .missing = MODEL_ONLY},
    {"/v1/files/", .missing = MODEL_ONLY},
    {"/v1/uploads", .missing = MODEL_ONLY},
    {"/v1/batches", .missing = MODEL_ONLY},
    {"/v1/batches/", .missing = MODEL_ONLY},
    {"/v1/fine_tuning/", .missing = MODEL_ONLY},
    {"/v1/vector_stores", .missing = MODEL_ONLY},
    {"/v1/vector_stores/", .missing = MODEL_ONLY},
    {"/api/", .missing = "Ollama's own API is not in this server; its OpenAI API is: POST /v1/chat/completions, GET /v1/models"},
};

static const route *find(const char *path) {
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t n = strlen(routes[i].path);
        if (!strcmp(path, routes[i].path)) return &routes[i];
        if (n > 1 && routes[i].path[n - 1] == '/' && !strncmp(path, routes[i].path, n) && path[n]) return &routes[i];
    }
    return NULL;
}

/* Most who come here have the base URL wrong: without /v1, or with two of them. */
static void not_found(serve_error *e, const char *path) {
    char with[120];
    const route *r = NULL;
    if (!strncmp(path, "/v1/v1/", 7)) r = find(path + 3);
    else if (snprintf(with, sizeof with, "/v1%s", path) < (int)sizeof with) r = find(with);
    if (r && !r->missing && strcmp(r->path, "/"))
        serve_fail(e, 404, "not_found", NULL, "there is nothing at %.200s; did you mean %s?", path, r->path);
    else serve_fail(e, 404, "not_found", NULL, "there is nothing at %.200s", path);
}

bool route_origin_allowed(const server *s, const char *origin) {
    return !strcmp(s->cors_origin, "*") || !strcasecmp(s->cors_origin, origin);
}

/* Equal, in a time that depends on the candidate's length only. */
static bool same_secret(const char *given, const char *key) {
    size_t n = strlen(key);
    unsigned diff = strlen(given) != n;
    for (size_t i = 0; given[i]; i++) diff |= (unsigned)(unsigned char)given[i] ^ (unsigned char)key[n ? i % n : 0];
    return !diff;
}

static bool key_ok(conn *c) {
    const server *s = c->srv;
    const char *auth = httpreq_get(&c->req, HTTPREQ_AUTHORIZATION), *given = httpreq_get(&c->req, HTTPREQ_X_API_KEY);
    bool ok = !s->opt.n_api_keys;
    if (!strncasecmp(auth, "Bearer ", 7)) {
        given = auth + 7;
        while (*given == ' ') given++;
    }
    c->key = 0;
    for (size_t i = 0; i < s->opt.n_api_keys; i++)
        if (same_secret(given, s->keys[i])) ok = true, c->key = i + 1;
    return ok;
}

static bool has_method(const route *r, unsigned m) {
    if (m == HTTP_GET || m == HTTP_HEAD) return r->get || r->stored;
    return m == HTTP_POST ? r->post || r->generate : m == HTTP_DELETE && r->stored;
}

void route_head(conn *c) {
    server *s = c->srv;
    serve_error *e = &c->early;
    unsigned m = c->req.method;
    server_phase phase = server_phase_now(s);
    const route *r;
    c->route = NULL;
    c->key = 0;
    c->allow = NULL;
    buf_clear(&c->path);
    if (m == HTTP_CONNECT) {
        serve_fail(e, 405, "method_not_allowed", NULL, "this is not a proxy");
        c->keep_alive = false;
        return;
    }
    if (!httpreq_path(&c->req, &c->path)) {
        serve_fail(e, 400, "bad_http", NULL, "the request target is not a path");
        return;
    }
    if (m == HTTP_OPTIONS) return; /* preflight: before key and path */
    if (!(r = find(buf_cstr(&c->path)))) {
        not_found(e, buf_cstr(&c->path));
        if (!key_ok(c)) goto unauthorised;
        return;
    }
    c->route = r;
    c->allow = r->allow;
    e->anthropic = r->anthropic;
    if (!r->open && !key_ok(c)) goto unauthorised;
    if (r->missing) {
        serve_fail(e, 404, "not_supported", NULL, "%s", r->missing);
    } else if (!has_method(r, m)) {
        serve_fail(e, 405, "method_not_allowed", NULL, "%s is not a method of %s; there are %s",
                   http_method_str((enum http_method)m), r->path, r->allow);
    } else if (phase == PHASE_LOADING && !r->open) {
        serve_fail(e, 503, "loading", NULL, "the model is loading");
        e->retry_after_s = 1;
    } else if (phase >= PHASE_DRAINING && r->generate) {
        serve_fail(e, 503, "draining", NULL, "the server is shutting down");
        e->retry_after_s = 5;
    }
    return;
unauthorised:
    memset(e, 0, sizeof *e);
    e->anthropic = c->route && c->route->anthropic;
    serve_fail(e, 401, "invalid_api_key", NULL, "a valid key is needed: Authorization: Bearer KEY");
}

void route_dispatch(conn *c) {
    const route *r = c->route;
    if (c->req.method == HTTP_OPTIONS) control_preflight(c);
    else if (r->generate) gen_start(c, r->generate);
    else if (r->stored) gen_start_stored(c, r->stored, c->req.method == HTTP_DELETE ? GEN_DELETE : GEN_GET, buf_cstr(&c->path) + strlen(r->path));
    else if (c->req.method == HTTP_POST) r->post(c);
    else r->get(c);
}
