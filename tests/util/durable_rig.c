/* durable_rig.c - see durable_rig.h. */
#include "util/durable_rig.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char durable_script[] =
    "{\"vocab\":[\"<s>\",\"</s>\",\"Hi\",\" there\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":40000,\"token_delay_ms\":1,"
    "\"rules\":[{\"match\":\"long\",\"emit\":[\"abcdefghij\"],\"then\":\"loop\"},"
    "{\"match\":\"fail\",\"emit\":[\"ab\"],\"then\":\"fail\"},"
    "{\"match\":\"fast\",\"emit\":[\"abcdefghij\"],\"then\":\"loop\"}],"
    "\"default\":{\"emit\":[\"Hi\",\" there\"]}}";

void drig_start(drig *d) {
    server_options so = d->so;
    so.state_dir = d->dir;
    so.log.vfs = "drig";
    if (!so.log.gather_ms) so.log.gather_ms = 2;
    rig_open(&d->r, d->script, &so, &d->eo);
}

void drig_open(drig *d, const char *script, const server_options *so, const engine_options *eo) {
    memset(d, 0, sizeof *d);
    d->script = script;
    if (so) d->so = *so;
    if (eo) d->eo = *eo;
    snprintf(d->dir, sizeof d->dir, "/tmp/heddle-durable-XXXXXX");
    assert_non_null(mkdtemp(d->dir));
    d->disk = memvfs_new("drig");
    assert_non_null(d->disk);
    drig_start(d);
}

void drig_close(drig *d) {
    static const char *const files[] = {"requests.lock", "requests.db"};
    if (d->r.s) rig_close(&d->r);
    memvfs_free(d->disk);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[100];
        snprintf(path, sizeof path, "%s/%s", d->dir, files[i]);
        unlink(path);
    }
    if (rmdir(d->dir)) fail_msg("%s: %s", d->dir, strerror(errno));
}

void drig_cut(drig *d, uint64_t seed) {
    memvfs_cut_at_write(d->disk, 0);
    rig_close(&d->r);
    memvfs_cut_at_write(d->disk, -1);
    memvfs_reboot(d->disk, seed);
}

void drig_restart(drig *d, uint64_t seed) {
    drig_cut(d, seed);
    drig_start(d);
}

static void headers(char *out, size_t n, const char *key, const char *extra) {
    snprintf(out, n, "%s%s%s%s", key ? "Idempotency-Key: " : "", key ? key : "", key ? "\r\n" : "", extra ? extra : "");
}

char *ask(drig *d, const char *method, const char *path, const char *key, const char *extra, const char *json, int *status) {
    char head[400], *body = NULL;
    headers(head, sizeof head, key, extra);
    *status = client_once(d->r.port, method, path, head, json, &body);
    if (!*status) fail_msg("%s %s: no reply", method, path);
    return body;
}

char *ask_good(drig *d, const char *path, const char *key, const char *extra, const char *json) {
    int status;
    char *body = ask(d, json ? "POST" : "GET", path, key, extra, json, &status);
    if (status != 200) fail_msg("%s: %d %s", path, status, body);
    return body;
}

const char *ask_bad(drig *d, const char *method, const char *path, const char *key, const char *json, int status) {
    static char code[64];
    int got;
    char *body = ask(d, method, path, key, NULL, json, &got);
    json_t *v = json_loads(body, 0, NULL);
    if (got != status) fail_msg("%s %s: %d instead of %d: %s", method, path, got, status, body);
    snprintf(code, sizeof code, "%s", str_at(v, "error.code"));
    json_decref(v);
    hd_free(body);
    return code;
}

void begin(client *c, drig *d, const char *path, const char *key, const char *json, const char *text) {
    char head[400];
    headers(head, sizeof head, key, NULL);
    assert_true(client_open(c, d->r.port));
    assert_true(client_request(c, "POST", path, head, json));
    if (!client_until(c, text, LONG_DONE)) fail_msg("'%s' did not come: %d %s", text, c->status, buf_cstr(&c->body));
}

void id_of(const char *body, char id[64]) {
    const char *p = strstr(body, "\"id\":\"");
    if (!p) fail_msg("no id in %s", body);
    p += 6;
    snprintf(id, 64, "%.*s", (int)strcspn(p, "\""), p);
}

long durable_now(drig *d, const char *what) {
    char path[64];
    snprintf(path, sizeof path, "durable.%s", what);
    return rig_state(&d->r, path);
}

bool durable_is(drig *d, const char *what, long want) {
    char path[64];
    snprintf(path, sizeof path, "durable.%s", what);
    return rig_wait(&d->r, path, want, LONG_DONE);
}

void check_numbers(const char *body, long first) {
    sse_list l;
    sse_parse(body, &l);
    assert_true(l.n > 0);
    for (size_t i = 0; i + 1 < l.n; i++) assert_int_equal(l.ev[i].number, first + (long)i);
    assert_true(l.ev[l.n - 1].done);
    assert_int_equal(l.ev[l.n - 1].number, -1);
    sse_free(&l);
}

const char *behind(const char *body, long number) {
    char head[40];
    const char *p;
    snprintf(head, sizeof head, "id: %ld\n", number);
    p = strstr(body, head);
    if (!p) fail_msg("no event %ld", number);
    return strstr(p, "\n\n") + 2;
}
