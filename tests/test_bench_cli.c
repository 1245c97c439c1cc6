/* test_bench_cli.c - `heddle bench`: the shape of what it prints, shares against limits worked out here from the numbers beside
 * them, the parts of a step adding up, and a model's least costs by hand. */
#include "model/model.h"
#include "tiny/tiny_model.h"

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

static char dir[] = "/tmp/heddle-bench-XXXXXX", path[64], out[1 << 16];

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    return tiny_model_write(tiny_variant_find("llama-f16"), NULL, path);
}

static int teardown(void **state) {
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static json_t *bench(const char *args) {
    char cmd[400];
    FILE *p;
    json_t *j;
    /* More tokens than a session's queue holds: no row ends before all are read, however late the reader comes. */
    snprintf(cmd, sizeof cmd, "%s bench %s -p 48 -b 1,3 -n 300 --threads 2 --json %s 2>/dev/null", HEDDLE_BIN, path, args);
    assert_non_null(p = popen(cmd, "r"));
    out[fread(out, 1, sizeof out - 1, p)] = 0;
    assert_int_equal(pclose(p), 0);
    assert_non_null(j = json_loads(out, JSON_REJECT_DUPLICATES, NULL));
    return j;
}

static double num(const json_t *j, const char *key) {
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("no number \"%s\" in %s", key, out);
    return json_number_value(v);
}

static void test_plain(void **state) {
    json_t *j = bench("");
    const json_t *d = json_object_get(j, "decode"), *p = json_object_get(j, "prefill");
    (void)state;
    assert_int_equal(json_array_size(p), 1);
    assert_int_equal(json_array_size(d), 2);
    assert_true(num(json_array_get(p, 0), "tok_s") > 0 && num(json_array_get(p, 0), "tokens") == 48);
    assert_true(num(json_array_get(d, 1), "rows") == 3 && num(json_array_get(d, 1), "tok_s") > 0);
    assert_true(num(json_array_get(p, 0), "cpu_tok_s") > 0 && num(json_array_get(d, 1), "cpu_tok_s") > 0);
    assert_null(json_object_get(j, "roofline"));
    assert_null(json_object_get(json_array_get(d, 0), "share"));
    assert_null(json_object_get(json_array_get(d, 0), "phases"));
    json_decref(j);
}

/* The model of "llama-f16": 2 layers of 64 wide, 4 heads and 2 kv heads of 16, 96 wide inside, a tied head of 320. */
enum { TRUNK = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96), HEAD = TINY_VOCAB * 64 };

static void test_costs(void **state) {
    model *m;
    model_cost trunk, head;
    step_times t;
    hd_err err;
    (void)state;
    assert_int_equal(model_open(&m, path, &(model_options){.n_threads = 1}, &err), HD_OK);
    model_costs(m, &trunk, &head);
    for (int k = 0; k < ACT_KINDS; k++) {
        assert_int_equal(trunk.products[k], k == ACT_F32 ? TRUNK : 0);
        assert_int_equal(head.products[k], k == ACT_F32 ? HEAD : 0);
    }
    assert_int_equal(trunk.bytes, 2 * TRUNK);
    assert_int_equal(head.bytes, 2 * HEAD);
    model_step_times(m, &t);
    assert_int_equal(t.n_steps, 0);
    model_close(m);
}

/* What a head costs is that of its own type, whatever the layers have. */
static void test_costs_of_a_head(void **state) {
    static const struct {
        const char *variant;
        tensor_type layers, head;
        uint64_t n_head;
    } cases[] = {{"q4_0-head8", TENSOR_Q4_0, TENSOR_Q8_0, TINY_VOCAB * 160}, {"q8_0", TENSOR_Q8_0, TENSOR_Q8_0, TINY_VOCAB * 256}};
    const kernels *set = kernels_get(NULL);
    char file[64];
    (void)state;
    snprintf(file, sizeof file, "%s/head.gguf", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model *m;
        model_cost trunk, head;
        hd_err err;
        assert_int_equal(tiny_model_write(tiny_variant_find(cases[i].variant), NULL, file), 0);
        assert_int_equal(model_open(&m, file, &(model_options){.n_threads = 1}, &err), HD_OK);
        model_costs(m, &trunk, &head);
        for (int k = 0; k < ACT_KINDS; k++) {
            assert_int_equal(trunk.products[k] != 0, k == (int)mm_act_kind(set, cases[i].layers));
            assert_int_equal(head.products[k], k == (int)mm_act_kind(set, cases[i].head) ? cases[i].n_head : 0);
        }
        assert_int_equal(head.bytes, cases[i].n_head / 32 * 34);
        model_close(m);
        unlink(file);
    }
}

/* The limits printed are medians over the run and shares use the neighbours of each figure, so the two agree only as far as
 * the machine was steady: within a factor of 4 here, where a wrong unit or a forgotten tensor is off by more. */
static void test_roofline(void **state) {
    json_t *j = bench("--roofline");
    const json_t *r = json_object_get(j, "roofline"), *p = json_array_get(json_object_get(j, "prefill"), 0);
    double f32 = num(r, "f32_gfma_s"), limit, share = num(p, "share");
    (void)state;
    assert_true(num(r, "read_gb_s") > 0);
    if (f32 > 0) {
        assert_true(num(r, "int8_gmac_s") > num(r, "int16_gmac_s") && num(r, "int16_gmac_s") > f32);
        limit = 48 / ((48.0 * TRUNK + HEAD) / (f32 * 1e9));
        assert_true(share * limit < 4 * num(p, "tok_s") && share * limit > num(p, "tok_s") / 4);
    }
    assert_true(num(json_array_get(json_object_get(j, "decode"), 0), "share") > 0);
    assert_null(json_object_get(p, "phases"));
    json_decref(j);
}

static void test_phases(void **state) {
    static const char *const names[] = {"matrices", "head", "attention", "vectors", "waiting", "outside"};
    json_t *j = bench("--phases");
    const json_t *figures[] = {json_array_get(json_object_get(j, "prefill"), 0), json_array_get(json_object_get(j, "decode"), 1)};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const json_t *parts = json_object_get(figures[i], "phases");
        double sum = 0;
        for (int k = 0; k < 6; k++) sum += num(parts, names[k]);
        if (sum <= 0.8 || sum >= 1.2) fail_msg("the parts are %.3f together: %s", sum, out);
        assert_true(num(parts, "matrices") > 0 && num(parts, "vectors") > 0);
    }
    json_decref(j);
}

/* Exit status with these arguments; what it says is in `out`. */
static int refused(const char *args) {
    char cmd[400];
    FILE *p;
    int rc;
    snprintf(cmd, sizeof cmd, "%s bench %s --threads 1 %s 2>&1", HEDDLE_BIN, path, args);
    assert_non_null(p = popen(cmd, "r"));
    out[fread(out, 1, sizeof out - 1, p)] = 0;
    rc = pclose(p);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

/* What is wrong is said with the option's name; the model's context is 512. */
static void test_wrong_values(void **state) {
    static const struct {
        const char *args, *says;
        int rc;
    } cases[] = {{"-p -1", "-p takes up to 16 numbers from 1 to 4096 with commas between, or 0 for none, not '-1'", 64},
                 {"-p 9000", "-p takes up to 16 numbers from 1 to 4096 with commas between, or 0 for none, not '9000'", 64},
                 {"-p 4 -b 1,0", "-b takes up to 16 numbers from 1 to 4096 with commas between, or 0 for none, not '1,0'", 64},
                 {"-b x", "-b takes up to 16 numbers from 1 to 4096 with commas between, or 0 for none, not 'x'", 64},
                 {"-b ''", "not ''", 64},
                 {"-b 1,,2", "not '1,,2'", 64},
                 {"-b 1,-2", "not '1,-2'", 64},
                 {"-b 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "-b takes up to 16 numbers", 64},
                 {"-p 4 -b 1 -n 0", "-n takes a whole number of at least 1, not '0'", 64},
                 {"-p 4,600 -b 0", "-p 600 is beyond the context of 512 tokens", 1},
                 {"-p 65 -b 0 --ctx 64", "-p 65 is beyond the context of 64 tokens", 1},
                 {"-p 0 -b 1 --depth 504", "--depth 504 is beyond the context of 512 tokens", 1},
                 {"-p 0 -b 1 --depth 4294967290", "--depth 4294967290 is beyond the context", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = refused(cases[i].args);
        if (rc != cases[i].rc || !strstr(out, cases[i].says)) fail_msg("'%s' exits %d: %s", cases[i].args, rc, out);
    }
    assert_int_equal(refused("-p 512 -b 0"), 0);
    assert_int_equal(refused("-p 0 -b 0"), 0);
    assert_int_equal(refused("extra"), 64);
    assert_non_null(strstr(out, "usage: "));
}

/* A kernel path of no build is wrong usage, one that only this CPU lacks a failure; both name those there are. */
static void test_isa(void **state) {
    const char *name;
    (void)state;
    assert_int_equal(refused("-p 4 -b 0 --isa abacus"), 64);
    assert_non_null(strstr(out, "--isa must be one of "));
    assert_non_null(strstr(out, "not 'abacus'"));
    for (size_t i = 0; (name = kernels_built(i)); i++) assert_non_null(strstr(out, name));
    assert_int_equal(refused("-p 4 -b 0 --isa ''"), 64);
    assert_int_equal(setenv("HEDDLE_ISA", "slide-rule", 1), 0);
    assert_int_equal(refused("-p 4 -b 0"), 64);
    assert_non_null(strstr(out, "$HEDDLE_ISA must be one of "));
    assert_int_equal(refused("-p 4 -b 0 --isa generic"), 0);
    assert_int_equal(unsetenv("HEDDLE_ISA"), 0);
    for (size_t i = 0; (name = kernels_built(i)); i++) {
        char args[60], best[40];
        snprintf(args, sizeof args, "-p 4 -b 0 --isa %s", name);
        if (kernels_get(name)) {
            assert_int_equal(refused(args), 0);
            continue;
        }
        assert_int_equal(refused(args), 1);
        snprintf(best, sizeof best, "; it has %s", kernels_name(kernels_get(NULL)));
        if (!strstr(out, name) || !strstr(out, best) || !strstr(out, "generic")) fail_msg("%s: %s", args, out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_costs),
                                       cmocka_unit_test(test_costs_of_a_head), cmocka_unit_test(test_roofline),
                                       cmocka_unit_test(test_phases), cmocka_unit_test(test_wrong_values),
                                       cmocka_unit_test(test_isa)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
