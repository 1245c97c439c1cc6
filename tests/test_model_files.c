/* test_model_files.c - model files that lie or lack something, up to the loaded model: reports R075-R080, R082, R083.
 *
 * test_gguf.c has the same classes byte by byte, test_model.c takes tensors and settings away; here every key is bent,
 * and the programs meet the smallest bad files. */
#include "base/buf.h"
#include "base/mem.h"
#include "tiny/tiny_model.h"
#include "util/gguf_edit.h"
#include "util/runs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/heddle-models-XXXXXX", good[64], edited[64];

/* Load it; a model that loads must also run. */
static hd_status load(const char *path, const model_options *opt, run_result *r, hd_err *err) {
    static const int32_t prompt[] = {72, 101, 108, 108, 111};
    engine_options eo = {.kv_budget_bytes = 16 << 20, .ctx = 64};
    gen_request q = {.id = "", .prompt = prompt, .n_prompt = 5, .max_tokens = 4};
    run_result own = {0};
    model *m;
    engine *e;
    hd_status st = model_open(&m, path, opt, err);
    if (!r) r = &own;
    memset(r, 0, sizeof *r);
    if (st) {
        assert_null(m);
        assert_true(*err->msg);
        return st;
    }
    if ((st = engine_open(&e, m, &eo, err)) == HD_OK) {
        sampling_defaults(&q.sampling);
        q.sampling.temperature = 0;
        q.sampling.logprobs = true;
        q.sampling.n_top_logprobs = 20;
        run_all(e, &q, 1, NULL, r);
        if (r->finish == FINISH_FAILED && r->err.code != HD_NEVER_FITS)
            fail_msg("%s loads and cannot run: %s", edited, r->err.msg);
        engine_close(e);
    }
    model_close(m);
    run_result_deinit(&own);
    return st;
}

static hd_status load_edited(const gguf_edit *e, hd_err *err) {
    gguf_edit_copy(good, edited, e);
    return load(edited, &(model_options){.n_threads = 1}, NULL, err);
}

/* R080: every key left out in turn.  What the model needs is missed by name; what has a default is not. */
static void each_key_missing(void **state) {
    static const char *const needed[] = {
        "general.architecture",   "llama.context_length",      "llama.block_count",
        "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
        "tokenizer.ggml.model",   "tokenizer.ggml.tokens",     "tokenizer.ggml.merges",
    };
    size_t n_needed = 0;
    gguf *g;
    hd_err err;
    (void)state;
    assert_int_equal(gguf_open(&g, good, &err), HD_OK);
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        char name[100];
        bool need = false;
        hd_status st;
        snprintf(name, sizeof name, "%.*s", (int)gguf_key(g, i).n, gguf_key(g, i).s);
        for (size_t k = 0; k < sizeof needed / sizeof *needed; k++) need |= !strcmp(needed[k], name);
        st = load_edited(&(gguf_edit){.drop_key = name}, &err);
        n_needed += need;
        if (!strcmp(name, "llama.attention.head_count_kv")) { /* its default is head_count, which the tensors refute */
            assert_int_equal(st, HD_INVALID);
            assert_non_null(strstr(err.msg, "attn_k.weight"));
        } else if (need ? !st || !strstr(err.msg, name) : st) {
            fail_msg("without %s: %s %s", name, hd_status_name(st), st ? err.msg : "");
        }
    }
    gguf_close(g);
    assert_int_equal(n_needed, sizeof needed / sizeof *needed);
}

/* R080, R077, R078: every number as text, zero, negative and huge; every text as a number.  An error or a model that
 * runs, never a crash, and never silence about a number that the shapes depend on. */
static void each_key_wrong(void **state) {
    static const struct {
        gguf_type type;
        int64_t n;
    } values[] = {{GGUF_STRING, 0},      {GGUF_U32, 0}, {GGUF_I32, -1}, {GGUF_U32, UINT32_MAX}, {GGUF_U64, INT64_MAX},
                  {GGUF_I64, INT64_MIN}, {GGUF_U32, 1}, {GGUF_U32, 3},  {GGUF_BOOL, 1},         {GGUF_F32, -1}};
    static const char *const shapes[] = {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                                         "llama.attention.head_count", "llama.attention.head_count_kv"};
    gguf *g;
    hd_err err;
    (void)state;
    assert_int_equal(gguf_open(&g, good, &err), HD_OK);
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        char name[100];
        bool shape = false;
        snprintf(name, sizeof name, "%.*s", (int)gguf_key(g, i).n, gguf_key(g, i).s);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) shape |= !strcmp(shapes[k], name);
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            gguf_edit e = {.keys = {{name, values[k].type, values[k].n, "x"}}};
            hd_status st;
            if (!strcmp(name, "general.alignment")) continue; /* the reader's own, in test_gguf.c */
            st = load_edited(&e, &err);
            if (shape && !st) fail_msg("%s of type %d = %lld loads", name, (int)values[k].type, (long long)values[k].n);
        }
    }
    gguf_close(g);
}

/* R080: writers differ in the width of integers. */
static void integer_widths(void **state) {
    static const gguf_type types[] = {GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_U64, GGUF_I64};
    hd_err err;
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        gguf_edit e = {.keys = {{"llama.block_count", types[k], 2, NULL},
                                {"llama.embedding_length", types[k], 64, NULL},
                                {"llama.attention.head_count", types[k], 4, NULL}}};
        if (load_edited(&e, &err)) fail_msg("type %d: %s", (int)types[k], err.msg);
    }
}

/* R083: a tensor of whole numbers where reals belong is refused by its name.  (test_model.c takes tensors away and cuts
 * them.) */
static void each_tensor_of_another_type(void **state) {
    gguf *g;
    hd_err err;
    (void)state;
    assert_int_equal(gguf_open(&g, good, &err), HD_OK);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        char name[100];
        gguf_edit e = {.turn_tensor = name};
        snprintf(name, sizeof name, "%.*s", (int)gguf_tensor_at(g, i)->name.n, gguf_tensor_at(g, i)->name.s);
        if (!load_edited(&e, &err) || !strstr(err.msg, name)) fail_msg("%s: %s", name, err.msg);
    }
    gguf_close(g);
}

/* R083: tensors larger than the keys say are as wrong as smaller ones. */
static void keys_that_say_less(void **state) {
    hd_err err;
    (void)state;
    assert_int_equal(load_edited(&(gguf_edit){.keys = {{"llama.attention.head_count_kv", GGUF_U32, 1, NULL}}}, &err),
                     HD_INVALID);
    assert_non_null(strstr(err.msg, "attn_k.weight"));
    assert_int_equal(load_edited(&(gguf_edit){.keys = {{"llama.block_count", GGUF_U32, 1, NULL}}}, &err), HD_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "blk.1."));
}

/* R082, R083: a model in three parts is the same model, from whichever part it is opened. */
static void three_parts(void **state) {
    run_result whole, split;
    model_options one = {.n_threads = 1};
    char path[3][100];
    hd_err err;
    (void)state;
    if (load(good, &one, &whole, &err)) fail_msg("%s", err.msg);
    assert_true(whole.n_logprobs > 80);
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "%s/m-%05u-of-00003.gguf", dir, i + 1);
        gguf_edit_copy(good, path[i], &(gguf_edit){.part = i, .parts = 3});
    }
    for (int i = 0; i < 3; i++) {
        if (load(path[i], &one, &split, &err)) fail_msg("%s", err.msg);
        assert_null(run_result_differs(&whole, &split));
        run_result_deinit(&split);
    }
    unlink(path[1]);
    assert_int_equal(load(path[0], &one, NULL, &err), HD_NOTFOUND);
    assert_non_null(strstr(err.msg, "m-00002-of-00003.gguf"));
    run_result_deinit(&whole);
}

/* ---- the programs ---- */

/* Exit status of heddle with these arguments; what it printed is in out. */
static int run(const char *args, char *out, size_t n_out) {
    char cmd[400];
    FILE *p;
    int rc;
    snprintf(cmd, sizeof cmd, "%s %s 2>&1 </dev/null", HEDDLE_BIN, args);
    assert_non_null(p = popen(cmd, "r"));
    out[fread(out, 1, n_out - 1, p)] = 0;
    rc = pclose(p);
    if (!WIFEXITED(rc)) fail_msg("%s: killed by a signal", args);
    return WEXITSTATUS(rc);
}

static hd_buf f;
static void u32(uint32_t v) { buf_add(&f, &v, 4); }
static void u64(uint64_t v) { buf_add(&f, &v, 8); }
static void str(const char *s) { u64(strlen(s)), buf_str(&f, s); }
static void head(uint64_t n_tensors, uint64_t n_kv) {
    buf_clear(&f), buf_str(&f, "GGUF"), u32(3), u64(n_tensors), u64(n_kv);
}

/* The smallest inputs of R075-R080 through the commands that open models: status 1 and a line that says why. */
static void programs_refuse(void **state) {
    static const char *const commands[] = {"inspect", "tokenize --text x", "generate --prompt x", "serve --port 0"};
    (void)state;
    buf_init(&f, 1 << 20);
    for (int i = 0; i < 7; i++) {
        switch (i) {
        case 0: head(0, 1), u64(UINT64_MAX), u32(0); break;                                     /* a key's length */
        case 1: head(0, 1), str("k"), u32(GGUF_ARRAY), u32(GGUF_U8), u64(1ull << 62); break;    /* an array's count */
        case 2: head(1ull << 63, 0); break;                                                     /* tensors */
        case 3: head(1, 0), str("t"), u32(2), u64(1), u64(0), u32(0), u64(0), u64(0); break;    /* dimension 0 */
        case 4: head(1, 0), str("t"), u32(UINT32_MAX), u64(1), u64(1), u32(0), u64(0); break;   /* rank */
        case 5: head(1, 0), str("t"), u32(2), u64(4), u64(1ull << 62), u32(0), u64(0); break;   /* size wraps */
        case 6: head(0, 1), str("general.architecture"), u32(GGUF_STRING), str("llama"); break; /* nothing else */
        }
        {
            FILE *out = fopen(edited, "wb");
            assert_non_null(out);
            assert_int_equal(fwrite(f.data, 1, f.len, out), f.len);
            fclose(out);
        }
        for (size_t k = 0; k < sizeof commands / sizeof *commands; k++) {
            char args[200], out[2000];
            int rc;
            if (i == 6 && k == 0) continue; /* nothing is wrong with its form */
            snprintf(args, sizeof args, "%s %s", commands[k], edited);
            rc = run(args, out, sizeof out);
            if (rc != 1 || strncmp(out, "heddle: ", 8)) fail_msg("input %d, %s: status %d, '%s'", i, args, rc, out);
        }
    }
    buf_deinit(&f);
}

static int make_files(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(good, sizeof good, "%s/good.gguf", dir);
    snprintf(edited, sizeof edited, "%s/edited.gguf", dir);
    return tiny_model_write(tiny_variant_find("llama"), NULL, good);
}

static int remove_files(void **state) {
    char cmd[100];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_missing),   cmocka_unit_test(each_key_wrong),
        cmocka_unit_test(integer_widths),     cmocka_unit_test(each_tensor_of_another_type),
        cmocka_unit_test(keys_that_say_less), cmocka_unit_test(three_parts),
        cmocka_unit_test(programs_refuse),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
