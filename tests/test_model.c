/* test_model.c - a model file is complete and meant for its architecture, or it is refused by name before anything runs
 * (R080, R083): each tensor and each needed key is taken away in turn, shapes and settings are bent. */
#include "base/mem.h"
#include "format/gguf_write.h"
#include "model/model.h"
#include "tiny/tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How a copy differs from the original; unset parts copy as they are. */
typedef struct {
    const char *without;        /* key or tensor left out */
    const char *set_key;        /* key set to an integer instead */
    int64_t set_to;
    const char *real_key;       /* key set to a float instead */
    double real_to;
    const char *extra_tensor;   /* one more tensor of 32 floats */
    const char *narrower;       /* tensor whose last dimension is one less */
} change;

typedef struct {
    char original[64], copy[64];
} files;

static bool named(gguf_str s, const char *want) { return want && s.n == strlen(want) && !memcmp(s.s, want, s.n); }

static void put_keys(gguf_writer *w, const gguf *g, const change *c) {
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        gguf_str k = gguf_key(g, i);
        if (!named(k, c->without) && !named(k, c->set_key) && !named(k, c->real_key)) gguf_put_copy(w, g, i);
    }
    if (c->set_key) gguf_put_int(w, c->set_key, GGUF_I64, c->set_to);
    if (c->real_key) gguf_put_real(w, c->real_key, GGUF_F32, c->real_to);
}

static void write_copy(const files *f, const change *c) {
    gguf *g;
    gguf_writer *w;
    hd_err err;
    uint64_t extra[1] = {32};
    float zeros[32] = {0};
    assert_int_equal(gguf_open(&g, f->original, &err), HD_OK);
    assert_int_equal(gguf_writer_open(&w, f->copy, 0, &err), HD_OK);
    put_keys(w, g, c);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < gguf_n_tensors(g); i++) {
            const gguf_tensor *t = gguf_tensor_at(g, i);
            uint64_t dims[4];
            uint64_t bytes = t->size_bytes;
            memcpy(dims, t->dims, sizeof dims);
            if (named(t->name, c->without)) continue;
            if (named(t->name, c->narrower)) {
                uint64_t last = dims[t->n_dims - 1]--;
                bytes = bytes / last * (last - 1);
            }
            if (!pass) gguf_put_tensor(w, t->name, t->type, t->n_dims, dims);
            else assert_int_equal(gguf_write_data(w, t->data, bytes, &err), HD_OK);
        }
        if (!c->extra_tensor) continue;
        if (!pass) gguf_put_tensor(w, (gguf_str){c->extra_tensor, strlen(c->extra_tensor)}, TENSOR_F32, 1, extra);
        else assert_int_equal(gguf_write_data(w, zeros, sizeof zeros, &err), HD_OK);
    }
    if (gguf_writer_commit(w, &err)) fail_msg("%s", err.msg);
    gguf_writer_close(w);
    gguf_close(g);
}

static hd_status open_copy(const files *f, hd_err *err) {
    model_options mo = {.n_threads = 1};
    model *m;
    hd_status st = model_open(&m, f->copy, &mo, err);
    if (!st) model_close(m);
    else assert_null(m);
    return st;
}

static void start(files *f, const char *variant) {
    int fd;
    strcpy(f->original, "/tmp/heddle-model-XXXXXX");
    strcpy(f->copy, "/tmp/heddle-model-XXXXXX");
    assert_true((fd = mkstemp(f->original)) >= 0);
    close(fd);
    assert_true((fd = mkstemp(f->copy)) >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find(variant), NULL, f->original), 0);
}

static void end(const files *f) {
    unlink(f->original);
    unlink(f->copy);
}

/* Which tensors a family can do without (a tied head, biases, frequency divisors). */
static bool optional(gguf_str name) {
    return memmem(name.s, name.n, ".bias", 5) || named(name, "rope_freqs.weight") || named(name, "output.weight");
}

static void every_tensor_is_needed(void **state) {
    static const char *const variants[] = {"llama-untied", "qwen3", "gemma3", "llama-rope3"};
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        files f;
        gguf *g;
        hd_err err;
        start(&f, variants[v]);
        assert_int_equal(gguf_open(&g, f.original, &err), HD_OK);
        for (size_t i = 0; i < gguf_n_tensors(g); i++) {
            gguf_str n = gguf_tensor_at(g, i)->name;
            char name[128];
            snprintf(name, sizeof name, "%.*s", (int)n.n, n.s);
            write_copy(&f, &(change){.without = name});
            if (optional(n)) {
                assert_int_equal(open_copy(&f, &err), HD_OK);
                continue;
            }
            assert_int_equal(open_copy(&f, &err), HD_INVALID);
            assert_non_null(strstr(err.msg, name));
            write_copy(&f, &(change){.narrower = name});
            if (strcmp(name, "token_embd.weight") && strcmp(name, "output.weight")) { /* rows of these are the vocabulary */
                assert_int_not_equal(open_copy(&f, &err), HD_OK);
                assert_non_null(strstr(err.msg, name));
            }
        }
        gguf_close(g);
        end(&f);
    }
}

static void needed_keys_are_named(void **state) {
    static const char *const keys[] = {"general.architecture", "llama.embedding_length", "llama.block_count",
        "llama.context_length", "llama.attention.head_count", "llama.feed_forward_length", "tokenizer.ggml.tokens"};
    files f;
    (void)state;
    start(&f, "llama");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        hd_err err;
        write_copy(&f, &(change){.without = keys[i]});
        assert_int_not_equal(open_copy(&f, &err), HD_OK);
        if (!strstr(err.msg, keys[i]) && !strstr(err.field, keys[i])) fail_msg("%s: %s", keys[i], err.msg);
    }
    end(&f);
}

static void odd_settings_are_refused(void **state) {
    static const change changes[] = {
        {.set_key = "llama.attention.head_count", .set_to = 0},
        {.set_key = "llama.attention.head_count", .set_to = -4},
        {.set_key = "llama.attention.head_count_kv", .set_to = 3},   /* 4 heads */
        {.set_key = "llama.attention.key_length", .set_to = 12},     /* not a multiple of 8 */
        {.set_key = "llama.attention.key_length", .set_to = 1 << 30},
        {.set_key = "llama.attention.value_length", .set_to = 8},
        {.set_key = "llama.rope.dimension_count", .set_to = 7},
        {.set_key = "llama.rope.dimension_count", .set_to = 4096},
        {.set_key = "llama.block_count", .set_to = 3},               /* the file has 2 */
        {.set_key = "llama.block_count", .set_to = 1},               /* tensors would be left over */
        {.set_key = "llama.block_count", .set_to = 1 << 20},
        {.set_key = "llama.embedding_length", .set_to = 32},
        {.set_key = "llama.context_length", .set_to = 0},
        {.set_key = "llama.expert_count", .set_to = 8},
        {.real_key = "llama.attention.layer_norm_rms_epsilon", .real_to = -1},
        {.real_key = "llama.attention.layer_norm_rms_epsilon", .real_to = 1e300 * 1e10},
        {.real_key = "llama.rope.freq_base", .real_to = 0},
        {.extra_tensor = "blk.0.ffn_gate_inp.weight"},
    };
    files f;
    (void)state;
    start(&f, "llama");
    write_copy(&f, &(change){.extra_tensor = NULL});
    {
        hd_err err;
        if (open_copy(&f, &err)) fail_msg("an unchanged copy does not load: %s", err.msg);
    }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        hd_err err;
        write_copy(&f, &changes[i]);
        if (!open_copy(&f, &err)) fail_msg("change %zu was accepted", i);
        assert_true(err.field[0] && err.msg[0]);
    }
    end(&f);
}

static void an_unknown_architecture_is_named(void **state) {
    files f;
    gguf *g;
    gguf_writer *w;
    hd_err err;
    (void)state;
    start(&f, "llama");
    assert_int_equal(gguf_open(&g, f.original, &err), HD_OK);
    assert_int_equal(gguf_writer_open(&w, f.copy, 0, &err), HD_OK);
    put_keys(w, g, &(change){.without = "general.architecture"});
    gguf_put_str(w, "general.architecture", "mamba7");
    assert_int_equal(gguf_writer_commit(w, &err), HD_OK);
    gguf_writer_close(w);
    gguf_close(g);
    assert_int_equal(open_copy(&f, &err), HD_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "mamba7"));
    end(&f);
}

/* Law: every allocation of a load may fail, and nothing is left behind. */
static void allocation_failures(void **state) {
    files f;
    hd_status st;
    long n = 0;
    (void)state;
    start(&f, "llama");
    write_copy(&f, &(change){.extra_tensor = NULL});
    do {
        hd_err err;
        hd_mem_fail_after(n++);
        st = open_copy(&f, &err);
        hd_mem_fail_after(-1);
        assert_true(st == HD_OK || st == HD_NOMEM);
        assert_int_equal(hd_mem_live(), 0);
    } while (st && n < 5000);
    assert_int_equal(st, HD_OK);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_is_needed),
        cmocka_unit_test(needed_keys_are_named),
        cmocka_unit_test(odd_settings_are_refused),
        cmocka_unit_test(an_unknown_architecture_is_named),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
