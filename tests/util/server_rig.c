/* server_rig.c - see server_rig.h. */
#include "util/server_rig.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void rig_open(rig *r, const char *script, const server_options *so, const engine_options *eo) {
    char path[] = "/tmp/heddle-script-XXXXXX", name[80];
    int fd = mkstemp(path);
    hd_err err;
    engine_options e = {0};
    memset(r, 0, sizeof *r);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, script, strlen(script)), (ssize_t)strlen(script));
    close(fd);
    snprintf(name, sizeof name, "script:%s", path);
    if (model_open(&r->m, name, NULL, &err)) fail_msg("model: %s", err.msg);
    unlink(path);
    if (eo) e = *eo;
    if (!e.kv_budget_bytes) e.kv_budget_bytes = (uint64_t)64 << 20;
    if (engine_open(&r->e, r->m, &e, &err)) fail_msg("engine: %s", err.msg);
    if (server_open(&r->s, r->e, r->m, so, &err)) fail_msg("server: %s", err.msg);
    r->port = server_port(r->s);
}

void rig_close(rig *r) {
    server_close(r->s);
    engine_close(r->e);
    model_close(r->m);
    memset(r, 0, sizeof *r);
}

static json_t *call(rig *r, const char *method, const char *path, const char *json, int *status) {
    char *body;
    json_t *v;
    int st = client_once(r->port, method, path, NULL, json, &body);
    if (status) *status = st;
    if (!st) fail_msg("%s %s: no reply", method, path);
    v = json_loads(body, JSON_ALLOW_NUL, NULL);
    if (!v) fail_msg("%s %s: not JSON: %s", method, path, body);
    hd_free(body);
    return v;
}

json_t *rig_post(rig *r, const char *path, const char *json, int *status) { return call(r, "POST", path, json, status); }
json_t *rig_get(rig *r, const char *path, int *status) { return call(r, "GET", path, NULL, status); }

long rig_state(rig *r, const char *what) {
    json_t *v = rig_get(r, "/v1/heddle/state", NULL), *x = at(v, what);
    long n = json_is_array(x) ? (long)json_array_size(x) : json_is_integer(x) ? (long)json_integer_value(x) : -1;
    json_decref(v);
    return n;
}

bool rig_wait(rig *r, const char *what, long want, int timeout_ms) {
    uint64_t end = now_ms() + (uint64_t)timeout_ms;
    for (;;) {
        if (rig_state(r, what) == want) return true;
        if (now_ms() >= end) return false;
        sleep_ms(5);
    }
}

json_t *at(json_t *v, const char *path) {
    while (v && *path) {
        char key[64];
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, strtoul(key, NULL, 10)) : json_object_get(v, key);
        path += n;
        if (*path) path++;
    }
    return v;
}

const char *str_at(json_t *v, const char *path) {
    const char *s = json_string_value(at(v, path));
    return s ? s : "";
}

void sse_parse(const char *body, sse_list *out) {
    long number = -1;
    size_t cap = 0;
    memset(out, 0, sizeof *out);
    while (*body) {
        size_t n = strcspn(body, "\n");
        if (body[n] != '\n') fail_msg("a line without an end: %s", body);
        if (!n || body[0] == ':') {
            out->comments += n > 0;
        } else if (!strncmp(body, "id: ", 4)) {
            number = atol(body + 4);
        } else if (!strncmp(body, "data: ", 6)) {
            sse_event *e;
            assert_true(hd_grow(&out->ev, &cap, out->n + 1, sizeof *out->ev, 1 << 20));
            e = &out->ev[out->n++];
            e->number = number;
            e->done = n == 12 && !strncmp(body + 6, "[DONE]", 6);
            e->data = e->done ? NULL : json_loadb(body + 6, n - 6, JSON_ALLOW_NUL, NULL);
            if (!e->done && !e->data) fail_msg("not JSON: %.*s", (int)n, body);
            number = -1;
            if (body[n + 1] != '\n') fail_msg("no blank line behind: %.*s", (int)n, body);
        } else {
            fail_msg("not an SSE line: %.*s", (int)n, body);
        }
        body += n + 1;
    }
}

void sse_free(sse_list *l) {
    for (size_t i = 0; i < l->n; i++) json_decref(l->ev[i].data);
    hd_free(l->ev);
    memset(l, 0, sizeof *l);
}

char *sse_text(const sse_list *l, long index) {
    hd_buf b;
    buf_init(&b, 64 << 20);
    for (size_t i = 0; i < l->n; i++) {
        json_t *c = at(l->ev[i].data, "choices.0"), *t;
        if (!c || json_integer_value(json_object_get(c, "index")) != index) continue;
        if (!(t = at(c, "delta.content"))) t = at(c, "text");
        if (t) buf_add(&b, json_string_value(t), json_string_length(t));
    }
    return buf_take(&b, NULL);
}
