/* test_inspect.c - `heddle inspect`, run as a program on a file made here and on the vocabulary files. */
#include "format/gguf_write.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char out[1 << 20];

/* Exit status; what it printed is in `out`. */
static int run(const char *args) {
    char cmd[1000];
    FILE *p;
    size_t n;
    int rc;
    snprintf(cmd, sizeof cmd, "%s inspect %s 2>&1", HEDDLE_BIN, args);
    p = popen(cmd, "r");
    assert_non_null(p);
    n = fread(out, 1, sizeof out - 1, p);
    out[n] = 0;
    rc = pclose(p);
    assert_true(WIFEXITED(rc));
    return WEXITSTATUS(rc);
}

static json_t *run_json(const char *path) {
    char args[600];
    json_error_t err;
    json_t *j;
    snprintf(args, sizeof args, "%s --json", path);
    if (run(args)) fail_msg("%s", out);
    j = json_loads(out, JSON_ALLOW_NUL, &err);
    if (!j) fail_msg("%s", err.text);
    return j;
}

static void a_model(void **state) {
    static const int32_t dims[] = {1, 2};
    char path[] = "/tmp/heddle-inspect-XXXXXX", args[100];
    float x[64] = {0};
    unsigned char q[34] = {0};
    gguf_writer *w;
    hd_err err;
    json_t *j, *keys;
    (void)state;
    close(mkstemp(path));
    assert_int_equal(gguf_writer_open(&w, path, 0, &err), HD_OK);
    gguf_put_str(w, "general.architecture", "llama");
    gguf_put_uint(w, "llama.context_length", GGUF_U32, 4096);
    gguf_put_real(w, "eps", GGUF_F32, 1e-5);
    gguf_put_real(w, "nan", GGUF_F32, (double)__builtin_nanf(""));
    gguf_put_bool(w, "flag", false);
    gguf_put_array(w, "sections", GGUF_I32, dims, 2);
    gguf_put_str(w, "odd", "line\n\"quoted\" \xFF");
    gguf_put_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_put_strs(w, "tokenizer.ggml.tokens", (gguf_str[]){{"a", 1}, {"b", 1}}, 2);
    gguf_put_str(w, "tokenizer.chat_template", "{% if tools %}{{ x }}{% endif %}");
    gguf_put_tensor(w, (gguf_str){"a", 1}, TENSOR_F32, 2, (uint64_t[]){32, 2});
    gguf_put_tensor(w, (gguf_str){"b", 1}, TENSOR_Q8_0, 1, (uint64_t[]){32});
    assert_int_equal(gguf_write_data(w, x, sizeof x, &err), HD_OK);
    assert_int_equal(gguf_write_data(w, q, sizeof q, &err), HD_OK);
    assert_int_equal(gguf_writer_commit(w, &err), HD_OK);
    gguf_writer_close(w);

    j = run_json(path);
    assert_string_equal(json_string_value(json_object_get(j, "arch")), "llama");
    assert_int_equal(json_integer_value(json_object_get(j, "context_length")), 4096);
    assert_true(json_is_true(json_object_get(j, "chat_template")));
    assert_true(json_is_true(json_object_get(j, "chat_template_tools")));
    assert_int_equal(json_integer_value(json_object_get(j, "n_params")), 96);
    assert_int_equal(json_integer_value(json_object_get(j, "tensor_bytes")), 256 + 34);
    assert_int_equal(json_array_size(json_object_get(j, "types")), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(json_object_get(j, "types"), 1), "bytes")), 34);
    assert_int_equal(json_array_size(json_object_get(j, "tensors")), 2);
    keys = json_object_get(j, "keys");
    assert_int_equal(json_object_size(keys), 10);
    assert_true((float)json_real_value(json_object_get(keys, "eps")) == 1e-5f);
    assert_true(json_is_null(json_object_get(keys, "nan")));
    assert_true(json_is_false(json_object_get(keys, "flag")));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(keys, "sections"), 1)), 2);
    assert_string_equal(json_string_value(json_object_get(keys, "odd")), "line\n\"quoted\" \xEF\xBF\xBD");
    assert_string_equal(json_string_value(json_array_get(json_object_get(keys, "tokenizer.ggml.tokens"), 1)), "b");
    json_decref(j);

    snprintf(args, sizeof args, "%s", path);
    assert_int_equal(run(args), 0);
    assert_non_null(strstr(out, "llama.context_length = 4096\n"));
    assert_non_null(strstr(out, "odd = \"line\\n"));
    assert_non_null(strstr(out, "yes, takes tools\n"));
    unlink(path);
}

static void vocabulary_only(void **state) {
    const char *data = getenv("HEDDLE_TEST_DATA");
    char path[500];
    json_t *j;
    (void)state;
    if (!data) {
        print_message("skipped: HEDDLE_TEST_DATA is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/tokenizers/vocab/gpt-2.gguf", data);
    j = run_json(path);
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "tokenizer"), "model")), "gpt2");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "tokenizer"), "tokens")), 50257);
    assert_int_equal(json_integer_value(json_object_get(j, "n_tensors")), 0);
    json_decref(j);
}

static void exit_statuses(void **state) {
    (void)state;
    assert_int_equal(run(""), 64);
    assert_int_equal(run("--nonsense x"), 64);
    assert_int_equal(run("a b"), 64);
    assert_int_equal(run("/nonexistent.gguf"), 1);
    assert_non_null(strstr(out, "/nonexistent.gguf"));
    assert_int_equal(run("/dev/null --json"), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model),
        cmocka_unit_test(vocabulary_only),
        cmocka_unit_test(exit_statuses),
    };
    return cmocka_run_group_tests_name("inspect", tests, NULL, NULL);
}
