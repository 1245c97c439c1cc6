/* test_gguf.c - the GGUF reader: good files, and every way that is known for a bad one.
 *
 * Files are built byte by byte here, not with our writer, so that the layout is stated twice.  Expected values follow
 * from the GGUF specification. */
#include "base/buf.h"
#include "base/mem.h"
#include "format/gguf.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- a file as bytes --- */

static hd_buf f;

static void u8(unsigned v) { buf_byte(&f, (char)v); }
static void u32(uint32_t v) { buf_add(&f, &v, 4); }
static void u64(uint64_t v) { buf_add(&f, &v, 8); }
static void f32(float v) { buf_add(&f, &v, 4); }
static void f64(double v) { buf_add(&f, &v, 8); }
static void str(const char *s) { u64(strlen(s)), buf_str(&f, s); }
static void head(uint64_t n_tensors, uint64_t n_keys) {
    buf_deinit(&f);
    buf_init(&f, 1 << 20);
    buf_str(&f, "GGUF"), u32(3), u64(n_tensors), u64(n_keys);
}
static void key(const char *name, gguf_type type) { str(name), u32(type); }
static void key_u32(const char *name, uint32_t v) { key(name, GGUF_U32), u32(v); }
static void key_str(const char *name, const char *v) { key(name, GGUF_STRING), str(v); }
static void array(const char *name, gguf_type elem, uint64_t n) { key(name, GGUF_ARRAY), u32(elem), u64(n); }
static void tensor(const char *name, uint32_t n_dims, uint64_t d0, uint64_t d1, uint32_t type, uint64_t offset) {
    str(name), u32(n_dims);
    for (uint32_t i = 0; i < n_dims && i < 16; i++) u64(i == 0 ? d0 : i == 1 ? d1 : 1);
    u32(type), u64(offset);
}
static void zeros(size_t n) {
    while (n--) u8(0);
}
static void pad(size_t align) {
    while (f.len % align) u8(0);
}

static gguf *good(void) {
    gguf *g;
    hd_err err;
    assert_int_equal(f.failed, HD_OK);
    if (gguf_open_memory(&g, f.data, f.len, &err)) fail_msg("%s", err.msg);
    return g;
}

/* Refused, with the status, words and field given; quickly, and with nothing left on the heap. */
static void bad(hd_status want, const char *words, const char *field) {
    struct timespec a, b;
    gguf *g = (gguf *)&f;
    hd_err err;
    hd_status st;
    long live = hd_mem_live();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    st = gguf_open_memory(&g, f.data, f.len, &err);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    assert_null(g);
    if (st != want || !strstr(err.msg, words) || (field && strcmp(err.field, field)))
        fail_msg("want %s '%s' field '%s', got %s '%s' field '%s'", hd_status_name(want), words, field ? field : "",
                 hd_status_name(st), err.msg, err.field);
    assert_true((b.tv_sec - a.tv_sec) * 1000000000LL + b.tv_nsec - a.tv_nsec < 10000000);
    assert_int_equal(hd_mem_live(), live);
}

/* A small but complete file; the values are used by several tests. */
static void sample(void) {
    head(2, 14);
    key_str("general.architecture", "llama");
    key_u32("u32", 7);
    key("i32", GGUF_I32), u32((uint32_t)-7);
    key("u64", GGUF_U64), u64(1ull << 40);
    key("i64", GGUF_I64), u64((uint64_t)-5);
    key("f32", GGUF_F32), f32(0.1f);
    key("f64", GGUF_F64), f64(3.0);
    key("u8", GGUF_U8), u8(200);
    key("i8", GGUF_I8), u8(0xFE);
    key("yes", GGUF_BOOL), u8(1);
    array("one", GGUF_U32, 1), u32(9);
    array("ints", GGUF_I32, 3), u32(1), u32((uint32_t)-2), u32(3);
    array("strs", GGUF_STRING, 3), str("a"), str(""), str("c\nd");
    array("none", GGUF_F32, 0);
    tensor("b", 2, 32, 2, TENSOR_Q4_0, 64);
    tensor("a", 1, 16, 0, TENSOR_F32, 0);
    pad(32);
    for (int i = 0; i < 16; i++) f32((float)i);
    zeros(36);
}

/* --- good files --- */

static void reads_what_is_there(void **state) {
    gguf *g;
    const gguf_tensor *t;
    gguf_str s, strs[3];
    gguf_type elem;
    uint64_t u;
    int64_t ints[3];
    float x, floats[3];
    bool yes;
    size_t n;
    (void)state;
    sample();
    g = good();
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_file_bytes(g), f.len);
    assert_int_equal(gguf_n_keys(g), 14);
    assert_memory_equal(gguf_key(g, 1).s, "u32", 3);
    assert_int_equal(gguf_key_type(g, 11), GGUF_ARRAY);
    assert_true(gguf_has(g, "none"));
    assert_false(gguf_has(g, "non"));

    assert_int_equal(gguf_get_str(g, "general.architecture", &s, NULL), HD_OK);
    assert_int_equal(s.n, 5);
    assert_memory_equal(s.s, "llama", 5);
    assert_int_equal(gguf_get_f32(g, "f32", &x, NULL), HD_OK);
    assert_true(x == 0.1f);
    assert_int_equal(gguf_get_f32(g, "i32", &x, NULL), HD_OK);
    assert_true(x == -7);
    assert_int_equal(gguf_get_bool(g, "yes", &yes, NULL), HD_OK);
    assert_true(yes);

    assert_int_equal(gguf_arr_n(g, "strs", &elem, &n, NULL), HD_OK);
    assert_int_equal(elem, GGUF_STRING);
    assert_int_equal(n, 3);
    assert_int_equal(gguf_arr_strs(g, "strs", strs, 3, NULL), HD_OK);
    assert_int_equal(strs[1].n, 0);
    assert_memory_equal(strs[2].s, "c\nd", 3);
    assert_int_equal(gguf_arr_i64(g, "ints", ints, 3, NULL), HD_OK);
    assert_int_equal(ints[1], -2);
    assert_int_equal(gguf_arr_f32(g, "ints", floats, 3, NULL), HD_OK);
    assert_true(floats[1] == -2 && floats[2] == 3);
    assert_int_equal(gguf_arr_uint(g, "ints", 2, 0, 10, &u, NULL), HD_OK);
    assert_int_equal(u, 3);
    assert_int_equal(gguf_arr_n(g, "u32", &elem, &n, NULL), HD_OK); /* a scalar is an array of one */
    assert_int_equal(n, 1);
    assert_int_equal(gguf_arr_n(g, "none", &elem, &n, NULL), HD_OK);
    assert_int_equal(n, 0);

    assert_int_equal(gguf_n_tensors(g), 2);
    t = gguf_tensor_at(g, 0);
    assert_memory_equal(t->name.s, "b", 1);
    assert_ptr_equal(t, gguf_tensor_find(g, "b"));
    assert_int_equal(t->size_bytes, 36);
    assert_int_equal(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3], 64);
    t = gguf_tensor_find(g, "a");
    assert_int_equal(t->type, TENSOR_F32);
    memcpy(&x, (const char *)t->data + 60, 4);
    assert_true(x == 15);
    assert_null(gguf_tensor_find(g, "ab"));
    assert_null(gguf_tensor_find(g, ""));
    assert_null(gguf_tensor_at(g, 2));
    gguf_tensor_fetch(g, t, 0, t->size_bytes);
    gguf_tensor_release(g, t, 0, t->size_bytes);
    gguf_close(g);

    f.data[4] = 2; /* version 2 has the same layout */
    g = good();
    assert_int_equal(gguf_version(g), 2);
    gguf_close(g);
}

static void integers_of_any_width(void **state) {
    static const struct {
        const char *key;
        uint64_t min, max, want;
        hd_status st;
    } cases[] = {
        {"u32", 0, 10, 7, HD_OK},
        {"u32", 8, 10, 0, HD_INVALID},
        {"u32", 0, 6, 0, HD_INVALID},
        {"u64", 0, UINT64_MAX, 1ull << 40, HD_OK},
        {"u64", 0, UINT32_MAX, 0, HD_INVALID},
        {"u8", 0, 255, 200, HD_OK},
        {"i8", 0, 255, 0, HD_INVALID},
        {"i32", 0, UINT64_MAX, 0, HD_INVALID},
        {"i64", 0, UINT64_MAX, 0, HD_INVALID},
        {"f64", 0, 10, 3, HD_OK},
        {"f32", 0, 10, 0, HD_INVALID},
        {"one", 0, 10, 9, HD_OK},
        {"ints", 0, 10, 0, HD_INVALID},
        {"none", 0, 10, 0, HD_INVALID},
        {"yes", 0, 10, 0, HD_INVALID},
        {"strs", 0, 10, 0, HD_INVALID},
        {"absent", 0, 10, 0, HD_NOTFOUND},
        {"general.architecture", 0, 10, 0, HD_INVALID},
    };
    gguf *g;
    gguf_str s;
    bool b;
    float x;
    uint64_t u;
    int64_t i;
    hd_err err;
    (void)state;
    sample();
    g = good();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint64_t v = 0;
        hd_status st = gguf_get_uint(g, cases[k].key, cases[k].min, cases[k].max, &v, &err);
        if (st != cases[k].st || v != cases[k].want) fail_msg("case %zu: status %d value %llu", k, st, (long long)v);
        if (st) assert_string_equal(err.field, cases[k].key);
        if (st) assert_non_null(strstr(err.msg, cases[k].key));
    }
    assert_int_equal(gguf_get_str(g, "u32", &s, &err), HD_INVALID);
    assert_int_equal(gguf_get_str(g, "strs", &s, &err), HD_INVALID);
    assert_int_equal(gguf_get_bool(g, "u8", &b, &err), HD_INVALID);
    assert_int_equal(gguf_get_f32(g, "general.architecture", &x, &err), HD_INVALID);
    assert_int_equal(gguf_arr_uint(g, "ints", 3, 0, 9, &u, &err), HD_INVALID);
    assert_int_equal(gguf_arr_uint(g, "ints", SIZE_MAX, 0, 9, &u, &err), HD_INVALID);
    assert_int_equal(gguf_arr_uint(g, "ints", 1, 0, 9, &u, &err), HD_INVALID);
    assert_int_equal(gguf_arr_i64(g, "strs", &i, 1, &err), HD_INVALID);
    assert_int_equal(gguf_arr_strs(g, "ints", &s, 1, &err), HD_INVALID);
    assert_int_equal(gguf_arr_i64(g, "i8", &i, 1, &err), HD_OK);
    assert_int_equal(i, -2);
    gguf_close(g);
}

static void key_text(const gguf *g, const char *name, size_t n, const char *want) {
    char s[100];
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        gguf_str k = gguf_key(g, i);
        if (k.n != strlen(name) || memcmp(k.s, name, k.n)) continue;
        memset(s, 'x', sizeof s);
        gguf_key_text(g, i, s, n);
        assert_string_equal(s, want);
        return;
    }
    fail_msg("no key %s", name);
}

static void values_as_text(void **state) {
    gguf *g;
    (void)state;
    sample();
    g = good();
    key_text(g, "general.architecture", 100, "\"llama\"");
    key_text(g, "i32", 100, "-7");
    key_text(g, "f32", 100, "0.1");
    key_text(g, "yes", 100, "true");
    key_text(g, "ints", 100, "i32[3] [1, -2, 3]");
    key_text(g, "strs", 100, "string[3] [\"a\", \"\", \"c\\nd\"]");
    key_text(g, "none", 100, "f32[0] []");
    key_text(g, "strs", 16, "string[3] [\"...");
    key_text(g, "general.architecture", 1, "");
    gguf_close(g);

    head(0, 1), key_str("s", "h\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9");
    g = good();
    key_text(g, "s", 9, "\"h\xC3\xA9..."); /* no half character */
    gguf_close(g);
}

/* --- bad files --- */

static void not_gguf(void **state) {
    static const char *const starts[][2] = {{"version https://git-lfs.github.com/spec/v1", "git-lfs"},
                                            {"<!DOCTYPE html>", "HTML"},
                                            {"lmgg", "before GGUF"},
                                            {"GGU", "does not start with"},
                                            {"PK\x03\x04", "zip"}};
    (void)state;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        buf_clear(&f);
        buf_str(&f, starts[i][0]);
        bad(HD_INVALID, starts[i][1], "");
    }
    buf_clear(&f);
    bad(HD_INVALID, "empty", "");
}

static void versions(void **state) {
    (void)state;
    sample(), f.data[4] = 1;
    bad(HD_UNSUPPORTED, "version 1", NULL);
    sample(), f.data[4] = 4;
    bad(HD_UNSUPPORTED, "version 4", NULL);
    sample(), f.data[4] = 0;
    bad(HD_INVALID, "version 0", NULL);
    sample(), memcpy(f.data + 4, "\0\0\0\3", 4);
    bad(HD_UNSUPPORTED, "big-endian", NULL);
}

static void lengths_beyond_the_file(void **state) {
    static const uint64_t lies[] = {UINT64_MAX, 1ull << 31, 1ull << 40, 37, 1ull << 63, UINT64_MAX - 7, 5};
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        head(0, 1), u64(lies[i]), zeros(4); /* the 36-byte file: a key's length */
        assert_int_equal(f.len, 36);
        bad(HD_INVALID, "", NULL);
        head(0, 1), u64(lies[i]), buf_str(&f, "abcdefgh"), zeros(4); /* key "abcde..." cut inside its type, or longer */
        if (lies[i] > 12) bad(HD_INVALID, "by its length", NULL);
        head(0, 1), key("k", GGUF_STRING), u64(lies[i]), buf_str(&f, "abc");
        bad(HD_INVALID, "by its length", "k");
        head(0, 1), array("k", GGUF_STRING, 1), u64(lies[i]), buf_str(&f, "abc");
        bad(HD_INVALID, "by its length", "k");
        head(1, 0), u64(lies[i]), buf_str(&f, "abc"), zeros(30);
        if (lies[i] > 33) bad(HD_INVALID, "by its length", NULL);
    }
}

static void counts_that_lie(void **state) {
    static const uint64_t lies[] = {1ull << 62, UINT64_MAX, 1ull << 40, 1ull << 61, (1ull << 61) + 1, 101};
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        for (uint32_t elem = 0; elem <= GGUF_F64; elem++) {
            if (elem == GGUF_ARRAY) continue;
            head(0, 1), array("k", (gguf_type)elem, lies[i]), zeros(100);
            bad(HD_INVALID, elem == GGUF_STRING ? "an array of strings" : "truncated", "k");
        }
        head(lies[i], 0), zeros(100);
        bad(HD_INVALID, "cannot be in", NULL);
        head(0, lies[i]), zeros(100);
        bad(HD_INVALID, "cannot be in", NULL);
    }
    head(1ull << 63, 1);
    bad(HD_INVALID, "cannot be in", NULL);
}

/* Memory grows with what is read, not with what a count promises: at most 1 MiB for a promise. */
static void lies_cost_no_memory(void **state) {
    struct mallinfo2 before, after;
    gguf *g;
    (void)state;
    head(0, 0), memset(f.data + 8, 0xFF, 16), zeros(1000);
    before = mallinfo2();
    assert_int_equal(gguf_open_memory(&g, f.data, f.len, NULL), HD_INVALID);
    head(0, 20000), array("k", GGUF_STRING, UINT64_MAX), zeros(300000);
    assert_int_equal(gguf_open_memory(&g, f.data, f.len, NULL), HD_INVALID);
    after = mallinfo2();
    assert_true(after.arena + after.hblkhd < before.arena + before.hblkhd + (1 << 20) + 300000 * 2);
}

static void values(void **state) {
    (void)state;
    head(0, 1), key("k", (gguf_type)13), zeros(8);
    bad(HD_INVALID, "value type 13", "k");
    head(0, 1), array("k", (gguf_type)99, 1), zeros(8);
    bad(HD_INVALID, "element type 99", "k");
    head(0, 1), array("k", GGUF_ARRAY, 1);
    for (int i = 0; i < 10000; i++) u32(GGUF_ARRAY), u64(1);
    bad(HD_UNSUPPORTED, "array of arrays", "k");
    head(0, 1), key("k", GGUF_BOOL), u8(2);
    bad(HD_INVALID, "boolean 2", "k");
    head(0, 1), array("k", GGUF_BOOL, 3), u8(0), u8(1), u8(255);
    bad(HD_INVALID, "boolean 255", "k");
    head(0, 1), str(""), u32(GGUF_U32), u32(1);
    bad(HD_INVALID, "empty", NULL);
    head(0, 1), u64(3), buf_add(&f, "a\0b", 3), u32(GGUF_U32), u32(1);
    bad(HD_INVALID, "NUL", NULL);
    head(0, 3), key_u32("k", 1), key_u32("j", 1), key_u32("k", 1);
    bad(HD_INVALID, "'k' occurs twice", "k");
}

static void alignments(void **state) {
    static const uint32_t wrong[] = {0, 1, 4, 12, 48, 33, 1u << 31};
    gguf *g;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        head(0, 1), key_u32("general.alignment", wrong[i]);
        bad(HD_INVALID, "general.alignment", "general.alignment");
    }
    head(0, 1), key_str("general.alignment", "32");
    bad(HD_INVALID, "general.alignment", "general.alignment");
    head(1, 1), key_u32("general.alignment", 64), tensor("t", 1, 1, 0, TENSOR_F32, 32), pad(64), zeros(64);
    bad(HD_INVALID, "not a multiple of the alignment 64", "t");
    head(1, 1), key_u32("general.alignment", 64), tensor("t", 1, 1, 0, TENSOR_F32, 64), pad(64), zeros(64), f32(5);
    g = good();
    assert_int_equal(gguf_tensor_find(g, "t")->offset % 64, 0);
    assert_memory_equal(gguf_tensor_find(g, "t")->data, "\0\0\xa0\x40", 4);
    gguf_close(g);
}

static void shapes(void **state) {
    static const uint32_t ranks[] = {0, 5, 9, 255, UINT32_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        head(1, 0), tensor("t", ranks[i], 1, 1, TENSOR_F32, 0), pad(32), zeros(64);
        bad(HD_INVALID, "dimensions", "t");
    }
    head(1, 0), tensor("t", 2, 1, 0, TENSOR_F32, 0), pad(32), zeros(64);
    bad(HD_INVALID, "dimension 1 of the tensor 't' is zero", "t");
    head(1, 0), tensor("t", 1, 0, 0, TENSOR_F32, 0), pad(32), zeros(64);
    bad(HD_INVALID, "is zero", "t");
    head(1, 0), tensor("t", 1, UINT64_MAX, 0, TENSOR_F32, 0), pad(32), zeros(64);
    bad(HD_INVALID, "elements", "t");
    head(1, 0), tensor("t", 2, 4, 1ull << 62, TENSOR_F32, 0), pad(32), zeros(64);
    bad(HD_INVALID, "elements", "t");
    head(1, 0), tensor("t", 2, 1ull << 32, 1ull << 32, TENSOR_F32, 0), pad(32), zeros(64);
    bad(HD_INVALID, "elements", "t");
    head(1, 0), tensor("t", 2, (1ull << 42) + 1, 1ull << 20, TENSOR_F32, 0), pad(32), zeros(64); /* bytes wrap */
    bad(HD_INVALID, "2^64 bytes", "t");
    head(1, 0), tensor("t", 1, (1ull << 62) + 1, 0, TENSOR_F32, 0), pad(32), zeros(64); /* 4 bytes if it wrapped */
    bad(HD_INVALID, "2^64 bytes", "t");
    head(1, 0), tensor("t", 1, 33, 0, TENSOR_Q8_0, 0), pad(32), zeros(128);
    bad(HD_INVALID, "multiple of 32", "t");
    head(1, 0), tensor("t", 2, 128, 2, TENSOR_Q4_K, 0), pad(32), zeros(512); /* 256 elements, but not per row */
    bad(HD_INVALID, "multiple of 256", "t");
    head(1, 0), str(""), u32(1), u64(1), u32(0), u64(0), zeros(64);
    bad(HD_INVALID, "is empty", NULL);
    head(1, 0), str("12345678901234567890123456789012345678901234567890123456789012345"), u32(1), u64(1), u32(0),
        u64(0);
    zeros(64);
    bad(HD_INVALID, "longer than 64", NULL);
}

static void types(void **state) {
    static const struct {
        uint32_t id;
        const char *name;
    } cases[] = {{4, "retired"},
                 {9, "Q8_1"},
                 {16, "IQ2_XXS"},
                 {40, "NVFP4"},
                 {137, "ik_llama"},
                 {43, "unknown"},
                 {UINT32_MAX, "4294967295"},
                 {256, "256"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        head(1, 0), tensor("t", 1, 256, 0, cases[i].id, 0), pad(32), zeros(2048);
        bad(HD_UNSUPPORTED, cases[i].name, "t");
    }
}

static void places(void **state) {
    (void)state;
    head(1, 0), tensor("t", 1, 8, 0, TENSOR_F32, UINT64_MAX - 7), pad(32), zeros(64);
    bad(HD_INVALID, "not a multiple", "t");
    head(1, 0), tensor("t", 1, 8, 0, TENSOR_F32, UINT64_MAX - 31), pad(32), zeros(64);
    bad(HD_INVALID, "truncated", "t");
    head(1, 0), tensor("t", 1, 8, 0, TENSOR_F32, 64), pad(32), zeros(64);
    bad(HD_INVALID, "truncated", "t");
    head(1, 0), tensor("t", 1, 8, 0, TENSOR_F32, 0), pad(32), zeros(31);
    bad(HD_INVALID, "truncated", "t");
    head(1, 0), tensor("t", 1, 8, 0, TENSOR_F32, 8), pad(32), zeros(64);
    bad(HD_INVALID, "alignment", "t");
    head(2, 0), tensor("s", 1, 9, 0, TENSOR_F32, 0), tensor("t", 1, 8, 0, TENSOR_F32, 32), pad(32), zeros(64);
    bad(HD_INVALID, "'s' and 't' overlap", "t");
    head(2, 0), tensor("s", 1, 8, 0, TENSOR_F32, 32), tensor("t", 1, 8, 0, TENSOR_F32, 32), pad(32), zeros(64);
    bad(HD_INVALID, "overlap", NULL);
    head(2, 0), tensor("t", 1, 8, 0, TENSOR_F32, 0), tensor("t", 1, 8, 0, TENSOR_F32, 32), pad(32), zeros(64);
    bad(HD_INVALID, "'t' occurs twice", "t");
}

/* Cut anywhere, the file is refused: nothing of the sample is optional. */
static void truncated_anywhere(void **state) {
    size_t full;
    (void)state;
    sample();
    full = f.len;
    for (size_t n = 0; n < full; n++) {
        gguf *g;
        char *copy = malloc(n ? n : 1); /* its own block, so that ASan sees a read past the end */
        hd_err err;
        assert_non_null(copy);
        memcpy(copy, f.data, n);
        if (gguf_open_memory(&g, copy, n, &err) == HD_OK) fail_msg("accepted when cut at %zu", n);
        assert_int_equal(err.code, HD_INVALID);
        free(copy);
    }
}

static void joined_with_cat(void **state) {
    hd_buf one;
    (void)state;
    buf_init(&one, 1 << 20);
    sample();
    pad(32); /* as the splitting tool leaves it */
    buf_add(&one, f.data, f.len);
    buf_add(&f, one.data, one.len);
    bad(HD_INVALID, "joining them (cat)", NULL);
    buf_deinit(&one);
}

/* Every allocation on the way fails once, and leaves nothing behind. */
static void allocation_failures(void **state) {
    long n = 0;
    hd_status st;
    (void)state;
    sample();
    do {
        gguf *g;
        hd_err err;
        long live = hd_mem_live();
        hd_mem_fail_after(n++);
        st = gguf_open_memory(&g, f.data, f.len, &err);
        hd_mem_fail_after(-1);
        assert_true(st == HD_OK ? g != NULL : st == HD_NOMEM && !g);
        gguf_close(g);
        assert_int_equal(hd_mem_live(), live);
    } while (st != HD_OK);
    assert_true(n > 5);
}

/* --- files and splits --- */

static char dir[] = "/tmp/heddle-gguf-XXXXXX";

static const char *in_dir(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void save(const char *name) {
    FILE *out = fopen(in_dir(name), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(f.data, 1, f.len, out), f.len);
    assert_int_equal(fclose(out), 0);
}

/* Part no (from 0) of 3, each with one tensor called t0, t1, t2 of 8 floats that are all no. */
static void part(unsigned no, uint32_t key_no, uint32_t count, uint32_t total, const char *arch) {
    char name[3] = {'t', (char)('0' + no), 0};
    head(1, arch ? 4 : 3);
    if (arch) key_str("general.architecture", arch);
    key("split.no", (gguf_type)2), buf_add(&f, &key_no, 2); /* u16, as the tools write it */
    key("split.count", (gguf_type)2), buf_add(&f, &count, 2);
    key("split.tensors.count", GGUF_I32), u32(total);
    tensor(name, 1, 8, 0, TENSOR_F32, 0), pad(32);
    for (int i = 0; i < 8; i++) f32((float)no);
}

static void three_parts(void) {
    part(0, 0, 3, 3, "llama"), save("m-00001-of-00003.gguf");
    part(1, 1, 3, 3, NULL), save("m-00002-of-00003.gguf");
    part(2, 2, 3, 3, NULL), save("m-00003-of-00003.gguf");
}

static void bad_file(const char *name, hd_status want, const char *words) {
    gguf *g;
    hd_err err;
    long live = hd_mem_live();
    hd_status st = gguf_open(&g, in_dir(name), &err);
    if (st != want || g || !strstr(err.msg, words))
        fail_msg("%s: want '%s', got %s '%s'", name, words, hd_status_name(st), st ? err.msg : "");
    assert_int_equal(hd_mem_live(), live);
}

static void files(void **state) {
    const gguf_tensor *t;
    float x;
    gguf *g;
    hd_err err;
    (void)state;
    sample(), save("plain.gguf");
    assert_int_equal(gguf_open(&g, in_dir("plain.gguf"), &err), HD_OK);
    assert_string_equal(gguf_path(g), in_dir("plain.gguf"));
    t = gguf_tensor_find(g, "a");
    gguf_tensor_fetch(g, t, 0, t->size_bytes);
    gguf_tensor_release(g, t, 4, t->size_bytes - 4); /* what is released stays readable */
    memcpy(&x, (const char *)t->data + 60, 4);
    assert_true(x == 15);
    gguf_close(g);
    bad_file("absent.gguf", HD_NOTFOUND, "absent.gguf");
    bad_file("", HD_INVALID, "not a regular file");
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    bad_file("fifo", HD_INVALID, "not a regular file");
    buf_clear(&f), save("empty.gguf");
    bad_file("empty.gguf", HD_INVALID, "empty");
    sample(), f.len -= 1, save("cut.gguf");
    bad_file("cut.gguf", HD_INVALID, "cut.gguf: the file is truncated");
}

static void any_part_opens_all(void **state) {
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    (void)state;
    three_parts();
    for (int k = 0; k < 3; k++) {
        gguf *g;
        hd_err err;
        gguf_str arch;
        if (gguf_open(&g, in_dir(names[k]), &err)) fail_msg("%s", err.msg);
        assert_int_equal(gguf_n_tensors(g), 3);
        assert_int_equal(gguf_get_str(g, "general.architecture", &arch, &err), HD_OK);
        for (int i = 0; i < 3; i++) {
            char name[3] = {'t', (char)('0' + i), 0};
            const gguf_tensor *t = gguf_tensor_find(g, name);
            float x;
            assert_non_null(t);
            assert_int_equal(t->part, i);
            memcpy(&x, t->data, 4);
            assert_true(x == (float)i);
        }
        gguf_close(g);
    }
}

static void splits_that_do_not_fit(void **state) {
    (void)state;
    three_parts();
    unlink(in_dir("m-00003-of-00003.gguf"));
    bad_file("m-00002-of-00003.gguf", HD_NOTFOUND, "part 3 of 3 of the model is missing");
    bad_file("m-00001-of-00003.gguf", HD_NOTFOUND, "m-00003-of-00003.gguf");
    part(2, 1, 3, 3, NULL), save("m-00003-of-00003.gguf"); /* a copy of part 2 under another number */
    bad_file("m-00001-of-00003.gguf", HD_INVALID, "it is part 2 of 3");
    bad_file("m-00003-of-00003.gguf", HD_INVALID, "call it NAME-00002-of-00003.gguf");
    part(2, 2, 3, 4, NULL), save("m-00003-of-00003.gguf"); /* another model by its total */
    bad_file("m-00001-of-00003.gguf", HD_INVALID, "another model");
    part(2, 2, 3, 3, "qwen2"), save("m-00003-of-00003.gguf");
    bad_file("m-00001-of-00003.gguf", HD_INVALID, "another model");
    part(1, 2, 3, 3, NULL), save("m-00003-of-00003.gguf"); /* its tensor is t1 again */
    bad_file("m-00001-of-00003.gguf", HD_INVALID, "'t1' occurs twice");
    part(0, 0, 3, 4, "llama"), save("m-00001-of-00003.gguf"); /* the total is off by one everywhere */
    part(1, 1, 3, 4, NULL), save("m-00002-of-00003.gguf");
    part(2, 2, 3, 4, NULL), save("m-00003-of-00003.gguf");
    bad_file("m-00001-of-00003.gguf", HD_INVALID, "split.tensors.count is 4");
    three_parts();
    part(1, 1, 3, 3, NULL), save("renamed.gguf");
    bad_file("renamed.gguf", HD_INVALID, "call it NAME-00002-of-00003.gguf");
    sample(), save("x-00001-of-00002.gguf");
    bad_file("x-00001-of-00002.gguf", HD_INVALID, "no split keys");
    part(0, 0, 60000, 3, "llama"), save("many.gguf");
    bad_file("many.gguf", HD_INVALID, "split.count");
    part(0, 5, 3, 3, "llama"), save("m-00001-of-00003.gguf");
    bad_file("m-00001-of-00003.gguf", HD_INVALID, "split.no");
    part(0, 0, 3, 3, "llama");
    bad(HD_UNSUPPORTED, "one part", "split.count"); /* in memory there are no siblings */
}

static void split_allocation_failures(void **state) {
    long n = 0;
    hd_status st;
    (void)state;
    three_parts();
    do {
        gguf *g;
        hd_err err;
        long live = hd_mem_live();
        hd_mem_fail_after(n++);
        st = gguf_open(&g, in_dir("m-00002-of-00003.gguf"), &err);
        hd_mem_fail_after(-1);
        assert_true(st == HD_OK ? g != NULL : st == HD_NOMEM && !g);
        gguf_close(g);
        assert_int_equal(hd_mem_live(), live);
    } while (st != HD_OK);
    assert_true(n > 20);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    char cmd[64];
    (void)state;
    buf_deinit(&f);
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_is_there),
        cmocka_unit_test(integers_of_any_width),
        cmocka_unit_test(values_as_text),
        cmocka_unit_test(not_gguf),
        cmocka_unit_test(versions),
        cmocka_unit_test(lengths_beyond_the_file),
        cmocka_unit_test(counts_that_lie),
        cmocka_unit_test(lies_cost_no_memory),
        cmocka_unit_test(values),
        cmocka_unit_test(alignments),
        cmocka_unit_test(shapes),
        cmocka_unit_test(types),
        cmocka_unit_test(places),
        cmocka_unit_test(truncated_anywhere),
        cmocka_unit_test(joined_with_cat),
        cmocka_unit_test(allocation_failures),
        cmocka_unit_test(files),
        cmocka_unit_test(any_part_opens_all),
        cmocka_unit_test(splits_that_do_not_fit),
        cmocka_unit_test(split_allocation_failures),
    };
    return cmocka_run_group_tests_name("gguf", tests, make_dir, remove_dir);
}
