/* test_gguf_write.c - files that we write are read back by our reader, and by the gguf Python package:
 *
 *     HEDDLE_KEEP_GGUF=/tmp/x.gguf build/test_gguf_write && python3 tests/golden/read_back.py /tmp/x.gguf */
#include "base/mem.h"
#include "format/gguf_write.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/heddle-write-XXXXXX";
static char path[300];

static gguf_writer *writer(uint32_t alignment) {
    gguf_writer *w;
    hd_err err;
    if (gguf_writer_open(&w, path, alignment, &err)) fail_msg("%s", err.msg);
    return w;
}

static gguf_str str(const char *s) { return (gguf_str){s, strlen(s)}; }

static int files_in_dir(void) {
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Every kind of key, two tensors, an alignment that needs padding.  read_back.py knows these values. */
static hd_status sample(gguf_writer *w, hd_err *err) {
    static const int32_t ints[] = {1, -2, 3};
    static const uint8_t bools[] = {1, 0, 1};
    static const float floats[] = {0.5f, -1.25f};
    const gguf_str strs[] = {{"a", 1}, {"", 0}, {"gr\xC3\xBC\xC3\x9F", 6}};
    float row[5] = {1, 2, 3, 4, 5};
    uint8_t blocks[68];
    hd_status st;
    gguf_put_str(w, "general.architecture", "llama");
    gguf_put_uint(w, "u8", GGUF_U8, 255);
    gguf_put_int(w, "i8", GGUF_I8, -128);
    gguf_put_uint(w, "u16", GGUF_U16, 65535);
    gguf_put_int(w, "i16", GGUF_I16, -32768);
    gguf_put_uint(w, "u32", GGUF_U32, UINT32_MAX);
    gguf_put_int(w, "i32", GGUF_I32, INT32_MIN);
    gguf_put_uint(w, "u64", GGUF_U64, UINT64_MAX);
    gguf_put_int(w, "i64", GGUF_I64, INT64_MIN);
    gguf_put_real(w, "f32", GGUF_F32, 0.1);
    gguf_put_real(w, "f64", GGUF_F64, 0.1);
    gguf_put_bool(w, "bool", true);
    gguf_put_array(w, "ints", GGUF_I32, ints, 3);
    gguf_put_array(w, "bools", GGUF_BOOL, bools, 3);
    gguf_put_array(w, "floats", GGUF_F32, floats, 2);
    gguf_put_strs(w, "strs", strs, 3);
    gguf_put_tensor(w, str("vector"), TENSOR_F32, 1, (uint64_t[]){5});
    gguf_put_tensor(w, str("matrix"), TENSOR_Q8_0, 2, (uint64_t[]){32, 2});
    for (int i = 0; i < 68; i++) blocks[i] = (uint8_t)(i % 34 == 0 ? 0 : i % 34 == 1 ? 0x3C : i); /* scale 1 */
    if ((st = gguf_write_data(w, row, 8, err))) return st;                                        /* in two pieces */
    if ((st = gguf_write_data(w, row + 2, 12, err))) return st;
    if ((st = gguf_write_data(w, blocks, 68, err))) return st;
    return gguf_writer_commit(w, err);
}

static void check_sample(const char *file) {
    gguf *g;
    hd_err err;
    uint64_t u;
    int64_t i, ints[3];
    float x;
    bool yes;
    gguf_str s, strs[3];
    const gguf_tensor *t;
    if (gguf_open(&g, file, &err)) fail_msg("%s", err.msg);
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_get_str(g, "general.architecture", &s, &err), HD_OK);
    assert_memory_equal(s.s, "llama", 5);
    assert_int_equal(gguf_get_uint(g, "u8", 0, 255, &u, &err), HD_OK);
    assert_int_equal(u, 255);
    assert_int_equal(gguf_get_uint(g, "u64", 0, UINT64_MAX, &u, &err), HD_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(gguf_arr_i64(g, "i8", &i, 1, &err), HD_OK);
    assert_int_equal(i, -128);
    assert_int_equal(gguf_arr_i64(g, "i64", &i, 1, &err), HD_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(gguf_get_f32(g, "f32", &x, &err), HD_OK);
    assert_true(x == 0.1f);
    assert_int_equal(gguf_get_bool(g, "bool", &yes, &err), HD_OK);
    assert_true(yes);
    assert_int_equal(gguf_arr_i64(g, "ints", ints, 3, &err), HD_OK);
    assert_int_equal(ints[1], -2);
    assert_int_equal(gguf_arr_i64(g, "bools", ints, 3, &err), HD_OK);
    assert_int_equal(ints[0] * 4 + ints[1] * 2 + ints[2], 5);
    assert_int_equal(gguf_arr_strs(g, "strs", strs, 3, &err), HD_OK);
    assert_int_equal(strs[2].n, 6);
    t = gguf_tensor_find(g, "vector");
    assert_non_null(t);
    memcpy(&x, (const char *)t->data + 16, 4);
    assert_true(x == 5);
    t = gguf_tensor_find(g, "matrix");
    assert_non_null(t);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(((const uint8_t *)t->data)[67], 67);
    gguf_close(g);
}

static void reads_back_what_it_wrote(void **state) {
    static const uint32_t alignments[] = {0, 32, 8, 64, 16384};
    const char *keep = getenv("HEDDLE_KEEP_GGUF");
    (void)state;
    for (size_t k = 0; k < sizeof alignments / sizeof *alignments; k++) {
        gguf_writer *w = writer(alignments[k]);
        hd_err err;
        assert_int_not_equal(access(path, F_OK), 0); /* nothing under its name before the commit */
        if (sample(w, &err)) fail_msg("%s", err.msg);
        assert_int_equal(gguf_writer_commit(w, &err), HD_INVALID);
        gguf_writer_close(w);
        check_sample(path);
        if (keep && alignments[k] == 64)
            assert_int_equal(rename(path, keep), 0);
        else
            unlink(path);
        assert_int_equal(files_in_dir(), 0);
    }
}

static void copies_keys(void **state) {
    char again[320];
    gguf_writer *w = writer(0);
    gguf *g;
    hd_err err;
    (void)state;
    assert_int_equal(sample(w, &err), HD_OK);
    gguf_writer_close(w);
    assert_int_equal(gguf_open(&g, path, &err), HD_OK);
    snprintf(again, sizeof again, "%s.again", path);
    assert_int_equal(gguf_writer_open(&w, again, 0, &err), HD_OK);
    for (size_t i = 0; i < gguf_n_keys(g); i++) gguf_put_copy(w, g, i);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        gguf_put_tensor(w, t->name, t->type, t->n_dims, t->dims);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        assert_int_equal(gguf_write_data(w, t->data, (size_t)t->size_bytes, &err), HD_OK);
    }
    assert_int_equal(gguf_writer_commit(w, &err), HD_OK);
    gguf_writer_close(w);
    gguf_close(g);
    check_sample(again);
    unlink(again);
    unlink(path);
}

/* After `put`, the first write must be refused naming `words`, and nothing may be left. */
static void refused(gguf_writer *w, const char *words) {
    hd_err err;
    assert_int_equal(gguf_write_data(w, "", 0, &err), HD_INVALID);
    if (!strstr(err.msg, words)) fail_msg("want '%s', got '%s'", words, err.msg);
    gguf_writer_close(w);
    assert_int_equal(files_in_dir(), 0);
}

static void what_cannot_be_written(void **state) {
    gguf_writer *w;
    hd_err err;
    (void)state;
    w = writer(0), gguf_put_uint(w, "k", GGUF_U8, 256), refused(w, "'k'");
    w = writer(0), gguf_put_uint(w, "k", GGUF_I32, 1u << 31), refused(w, "'k'");
    w = writer(0), gguf_put_int(w, "k", GGUF_U64, -1), refused(w, "'k'");
    w = writer(0), gguf_put_int(w, "k", GGUF_I16, -32769), refused(w, "'k'");
    w = writer(0), gguf_put_uint(w, "k", GGUF_F32, 1), refused(w, "'k'");
    w = writer(0), gguf_put_real(w, "k", GGUF_F32, 1e39), refused(w, "'k'");
    w = writer(0), gguf_put_real(w, "k", GGUF_U32, 1), refused(w, "'k'");
    w = writer(0), gguf_put_str(w, "", "x"), refused(w, "");
    w = writer(0), gguf_put_array(w, "k", GGUF_BOOL, "\2", 1), refused(w, "'k'");
    w = writer(0), gguf_put_array(w, "k", GGUF_STRING, "", 0), refused(w, "'k'");
    w = writer(0), gguf_put_bool(w, "k", 1), gguf_put_bool(w, "j", 1), gguf_put_bool(w, "k", 0), refused(w, "twice");
    w = writer(64), gguf_put_uint(w, "general.alignment", GGUF_U32, 32), refused(w, "twice");
    w = writer(0), gguf_put_tensor(w, str("t"), TENSOR_F32, 0, NULL), refused(w, "'t'");
    w = writer(0), gguf_put_tensor(w, str("t"), TENSOR_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}), refused(w, "'t'");
    w = writer(0), gguf_put_tensor(w, str("t"), TENSOR_F32, 2, (uint64_t[]){1, 0}), refused(w, "'t'");
    w = writer(0), gguf_put_tensor(w, str("t"), TENSOR_Q4_K, 1, (uint64_t[]){128}), refused(w, "'t'");
    w = writer(0), gguf_put_tensor(w, str("t"), TENSOR_F32, 2, (uint64_t[]){1ull << 40, 1ull << 40}), refused(w, "'t'");
    w = writer(0), gguf_put_tensor(w, str("t"), TENSOR_F32, 1, (uint64_t[]){1});
    gguf_put_tensor(w, str("t"), TENSOR_F32, 1, (uint64_t[]){1}), refused(w, "twice");

    w = writer(0), gguf_put_tensor(w, str("t"), TENSOR_F32, 1, (uint64_t[]){2});
    assert_int_equal(gguf_write_data(w, "123456789", 9, &err), HD_INVALID);
    assert_int_equal(gguf_write_data(w, "1234567", 7, &err), HD_OK);
    assert_int_equal(gguf_writer_commit(w, &err), HD_INVALID);
    assert_non_null(strstr(err.msg, "tensor 1 of 1 is missing"));
    assert_int_equal(gguf_write_data(w, "8", 1, &err), HD_OK);
    assert_int_equal(gguf_write_data(w, "9", 1, &err), HD_INVALID);
    gguf_writer_close(w);
    assert_int_equal(files_in_dir(), 0);

    assert_int_equal(gguf_writer_open(&w, path, 12, &err), HD_INVALID);
    assert_int_equal(gguf_writer_open(&w, "/nonexistent-folder/x.gguf", 0, &err), HD_IO);
    assert_null(w);
    assert_int_equal(files_in_dir(), 0);
}

static void allocation_failures(void **state) {
    long n = 0;
    hd_status st;
    (void)state;
    do {
        gguf_writer *w;
        hd_err err;
        long live = hd_mem_live();
        hd_mem_fail_after(n++);
        st = gguf_writer_open(&w, path, 64, &err);
        if (!st) st = sample(w, &err);
        gguf_writer_close(w);
        hd_mem_fail_after(-1);
        if (st != HD_OK && st != HD_NOMEM) fail_msg("%s", err.msg);
        assert_int_equal(hd_mem_live(), live);
        assert_int_equal(access(path, F_OK) == 0, st == HD_OK);
        unlink(path);
        assert_int_equal(files_in_dir(), 0);
    } while (st != HD_OK);
    assert_true(n > 5);
}

static int make_dir(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    return rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_back_what_it_wrote),
        cmocka_unit_test(copies_keys),
        cmocka_unit_test(what_cannot_be_written),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests_name("gguf_write", tests, make_dir, remove_dir);
}
