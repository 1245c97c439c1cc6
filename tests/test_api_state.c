/* test_api_state.c - heddle.h with a state directory: what was computed comes back in a later engine, the answer is the same,
 * and what cannot be opened is refused by name and leaves nothing behind. */
#include "tiny/tiny_model.h"

#include "heddle.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_PROMPT = 230, N_ANSWER = 12 };

static char root[] = "/tmp/heddle-api-state-XXXXXX", model_path[80], dir[80], key_a[80], key_b[80];
static heddle_model *model;

static void write_file(const char *path, const char *text, unsigned mode) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static int setup(void **state) {
    heddle_model_options o;
    heddle_error err;
    (void)state;
    if (!mkdtemp(root)) return -1;
    snprintf(model_path, sizeof model_path, "%s/m.gguf", root);
    snprintf(dir, sizeof dir, "%s/state", root);
    snprintf(key_a, sizeof key_a, "%s/a.key", root);
    snprintf(key_b, sizeof key_b, "%s/b.key", root);
    write_file(key_a, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n", 0600);
    write_file(key_b, "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n", 0600);
    HEDDLE_INIT(&o);
    HEDDLE_INIT(&err);
    o.n_threads = 1;
    if (tiny_model_write(tiny_variant_find("gemma3"), NULL, model_path)) return -1; /* two layer groups */
    return heddle_model_open(&model, model_path, &o, &err);
}

static int teardown(void **state) {
    char cmd[120];
    (void)state;
    heddle_model_close(model);
    snprintf(cmd, sizeof cmd, "rm -rf %s", root);
    return system(cmd);
}

static int clear_dir(void **state) {
    char cmd[120];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

static heddle_engine_options options(void) {
    heddle_engine_options o;
    HEDDLE_INIT(&o);
    o.max_rows = 2;
    o.page_tokens = 16;
    o.context = 300;
    o.kv_budget_bytes = 8 << 20;
    return o;
}

typedef struct {
    int32_t ids[N_ANSWER];
    uint32_t cached;
    heddle_counters seen;
} outcome;

/* One answer of an engine of its own. */
static outcome answer(const heddle_engine_options *o) {
    int32_t prompt[N_PROMPT];
    outcome out = {.cached = 0};
    heddle_request r;
    heddle_engine *e;
    heddle_session *s;
    heddle_result *a;
    heddle_error err;
    HEDDLE_INIT(&err);
    HEDDLE_REQUEST_INIT(&r);
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = 40 + i * 7 % 200;
    r.prompt = prompt;
    r.n_prompt = N_PROMPT;
    r.max_tokens = N_ANSWER;
    r.temperature = 0;
    r.ignore_eos = 1;
    if (heddle_engine_open(&e, model, o, &err)) fail_msg("%s: %s", err.field, err.message);
    assert_int_equal(heddle_open(e, &r, 1, &s, &err), HEDDLE_OK);
    assert_int_equal(heddle_collect(s, &a, &err), HEDDLE_OK);
    assert_int_equal(a->n_ids, N_ANSWER);
    memcpy(out.ids, a->ids, sizeof out.ids);
    out.cached = a->stats->cached_tokens;
    heddle_result_free(a);
    heddle_session_free(s);
    for (int tries = 0; tries < 10000; tries++) { /* a row's pages are let go of a moment after its end */
        HEDDLE_INIT(&out.seen);
        heddle_engine_look(e, &out.seen);
        if (out.seen.kv_bytes_cached) break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    heddle_engine_close(e);
    return out;
}

static void comes_back(void **state) {
    heddle_engine_options o = options();
    outcome cold = answer(&o), first, again;
    (void)state;
    assert_false(cold.seen.has_state_dir);
    o.state_dir = dir;
    o.state_cap_bytes = 32 << 20;
    first = answer(&o);
    assert_int_equal(first.cached, 0);
    assert_true(first.seen.has_state_dir && first.seen.state_writing);
    assert_int_equal(first.seen.state_cap_bytes, 32 << 20);
    assert_true(first.seen.kv_bytes_cached > 0);
    again = answer(&o);
    assert_int_equal(again.cached, N_PROMPT / 16 * 16); /* whole pages */
    assert_true(again.seen.state_files >= 1 && again.seen.state_bytes > 0 && again.seen.state_hits >= N_PROMPT / 16);
    assert_true(again.seen.state_read_bytes > 0);
    assert_memory_equal(again.ids, cold.ids, sizeof cold.ids);
    assert_memory_equal(first.ids, cold.ids, sizeof cold.ids);
    /* Other ways to keep keys and values are other pages. */
    o.kv_type = HEDDLE_KV_F32;
    assert_int_equal(answer(&o).cached, 0);
    /* Without a cache nothing is taken up. */
    o.kv_type = HEDDLE_KV_DEFAULT;
    o.no_cache = 1;
    assert_int_equal(answer(&o).cached, 0);
}

static void keys(void **state) {
    heddle_engine_options o = options();
    outcome cold = answer(&o), other;
    (void)state;
    o.state_dir = dir;
    o.state_key_file = key_a;
    assert_int_equal(answer(&o).cached, 0);
    assert_int_equal(answer(&o).cached, N_PROMPT / 16 * 16);
    o.state_key_file = key_b;
    other = answer(&o);
    assert_int_equal(other.cached, 0);
    assert_memory_equal(other.ids, cold.ids, sizeof cold.ids);
}

static void refused(const heddle_engine_options *o, heddle_status want, const char *field) {
    heddle_engine *e = (heddle_engine *)&want;
    heddle_error err;
    HEDDLE_INIT(&err);
    assert_int_equal(heddle_engine_open(&e, model, o, &err), want);
    assert_null(e);
    assert_string_equal(err.field, field);
    assert_true(err.message[0] != 0);
}

static void what_is_refused(void **state) {
    char path[100];
    heddle_engine_options o = options();
    (void)state;
    o.state_cap_bytes = 32 << 20;
    refused(&o, HEDDLE_INVALID, "state_cap_bytes"); /* no directory */
    o.state_cap_bytes = 0;
    o.state_key_file = key_a;
    refused(&o, HEDDLE_INVALID, "state_key_file");
    o = options();
    o.state_dir = dir;
    o.state_cap_bytes = 1000;
    refused(&o, HEDDLE_INVALID, "state_cap_bytes");
    o.state_cap_bytes = 0;
    o.state_dir = "";
    refused(&o, HEDDLE_INVALID, "state_dir");
    snprintf(path, sizeof path, "%s/not/there", root);
    o.state_dir = path;
    refused(&o, HEDDLE_NOT_FOUND, "state_dir");
    o.state_dir = model_path; /* a file */
    refused(&o, HEDDLE_IO, "state_dir");
    o.state_dir = dir;
    o.state_key_file = path;
    refused(&o, HEDDLE_NOT_FOUND, "state_key_file");
    assert_int_equal(chmod(key_b, 0644), 0);
    o.state_key_file = key_b; /* everybody may read it */
    refused(&o, HEDDLE_INVALID, "state_key_file");
    assert_int_equal(chmod(key_b, 0600), 0);
    /* The engine refuses: the store goes again, and the model is free for another. */
    o.state_key_file = NULL;
    o.kv_budget_bytes = 100;
    refused(&o, HEDDLE_INVALID, "kv_budget_bytes");
    o.kv_budget_bytes = 8 << 20;
    assert_int_equal(answer(&o).cached, 0);
}

/* Who was compiled before these members were there. */
static void older_callers(void **state) {
    heddle_engine_options o = options();
    char was[sizeof o];
    outcome out;
    (void)state;
    o.size = offsetof(heddle_engine_options, state_dir);
    memcpy(was, &o, sizeof o);
    memset(was + o.size, 0xAA, sizeof o - o.size); /* not theirs: must not be read */
    out = answer((const heddle_engine_options *)(const void *)was);
    assert_false(out.seen.has_state_dir);
}

/* Packed weights are kept by the first model and found by the second; no answer shows it. */
static void packed_weights(void **state) {
    heddle_engine_options o = options();
    outcome plain = answer(&o), out;
    heddle_model *plain_model = model;
    heddle_model_options mo;
    heddle_error err;
    glob_t found;
    char pattern[100];
    (void)state;
    HEDDLE_INIT(&mo);
    HEDDLE_INIT(&err);
    mo.n_threads = 1;
    mo.pack_dir = dir;
    snprintf(pattern, sizeof pattern, "%s/*.pack", dir);
    nanosleep(&(struct timespec){1, 100000000}, NULL); /* a file that was just written is not kept */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(heddle_model_open(&model, model_path, &mo, &err), HEDDLE_OK);
        out = answer(&o);
        heddle_model_close(model);
        assert_memory_equal(out.ids, plain.ids, sizeof out.ids);
        assert_int_equal(glob(pattern, 0, NULL, &found), 0);
        assert_int_equal(found.gl_pathc, 1);
        globfree(&found);
    }
    model = plain_model;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(comes_back, clear_dir), cmocka_unit_test_teardown(keys, clear_dir),
        cmocka_unit_test_teardown(what_is_refused, clear_dir), cmocka_unit_test(older_callers),
        cmocka_unit_test_teardown(packed_weights, clear_dir),
    };
    return cmocka_run_group_tests_name("api_state", tests, setup, teardown);
}
