/* test_detok.c - ids back to text: whole characters only, nothing taken back, U+FFFD where bytes are no text. */
#include "base/jsonw.h"
#include "text/tokenizer.h"
#include "util/vocab_spec.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#define FFFD     "\xef\xbf\xbd"
#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)
#define COUNT(a) (sizeof(a) / sizeof *(a))

static void expect_text(const tokenizer *t, const int32_t *ids, size_t n, bool special, const char *want) {
    hd_buf b;
    hd_err err;
    buf_init(&b, SIZE_MAX);
    if (tokenizer_decode(t, ids, n, special, &b, &err)) fail_msg("%s", err.msg);
    assert_string_equal(buf_cstr(&b), want);
    buf_deinit(&b);
}

/* R066: a continued text keeps its spaces: "Hel" + "lo" has none, " world" has one. */
static void continuation_R066(void **state) {
    tokenizer *t = vocab_open(vocab_spm());
    hd_buf b;
    detok d;
    (void)state;
    buf_init(&b, 100);
    detok_init(&d, t, false);
    detok_push(&d, t, 11, false, &b);
    detok_push(&d, t, 10, false, &b);
    detok_finish(&d, &b);
    assert_string_equal(buf_cstr(&b), " Thishis");
    buf_clear(&b);
    detok_init(&d, t, true);
    detok_push(&d, t, 1, false, &b); /* BOS prints nothing and is not the first text */
    detok_push(&d, t, 11, false, &b);
    detok_push(&d, t, 11, false, &b);
    detok_finish(&d, &b);
    assert_string_equal(buf_cstr(&b), "This This");
    buf_deinit(&b);
    tokenizer_free(t);
}

static void push_bytes(tokenizer *t, detok *d, hd_buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) detok_push(d, t, VOCAB_H + (uint8_t)s[i], false, out);
}

/* Random cuts of random bytes: the parts joined are the whole, each step is UTF-8 and a beginning of it. */
static void streaming_R045(void **state) {
    static const char *const texts[] = {"\xf0\x9f\x98\x8a", "\xe4\xbd\xa0\xe5\xa5\xbd",
                                        "a\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7z",
                                        "\xc3\xa9t\xc3\xa9"};
    tokenizer *t = vocab_open(vocab_spm());
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        detok d;
        hd_buf out;
        buf_init(&out, 1000);
        detok_init(&d, t, false);
        for (const char *p = texts[i]; *p; p++) {
            push_bytes(t, &d, &out, p, 1);
            assert_true(d.n_held <= 3);
            assert_true(out.len + d.n_held == (size_t)(p + 1 - texts[i]));
            assert_memory_equal(buf_cstr(&out), texts[i], out.len);
            for (size_t k = 0, len; k < out.len; k += len) { /* whole characters only */
                int step = utf8_next(out.data + k, out.len - k, &(uint32_t){0});
                assert_true(step > 0);
                len = (size_t)step;
            }
        }
        detok_finish(&d, &out);
        assert_string_equal(out.data, texts[i]);
        buf_deinit(&out);
    }
    tokenizer_free(t);
}

/* R052: bytes that are not UTF-8 come out as U+FFFD, one for each maximal part, also one that the end cuts off. */
static void replacement_R052(void **state) {
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"\x80", FFFD},
        {"\xc3(", FFFD "("},
        {"\xf0\x9f\x98", FFFD},
        {"\xff\xfe", FFFD FFFD},
        {"\xe2\x82", FFFD},
        {"\xe2\x82x", FFFD "x"},
        {"\xed\xa0\x80", FFFD FFFD FFFD},
        {"\xf0\x80\x80\x80", FFFD FFFD FFFD FFFD},
        {"\xf0\x9f\xf0\x9f\x98\x8a", FFFD "\xf0\x9f\x98\x8a"},
        {"\xc3\xc3\xa9", FFFD "\xc3\xa9"},
        {"a\xf4\x90z", "a" FFFD FFFD "z"},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xe0\x80", FFFD FFFD},
    };
    tokenizer *t = vocab_open(vocab_spm());
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        detok d;
        hd_buf out;
        buf_init(&out, 1000);
        detok_init(&d, t, false);
        push_bytes(t, &d, &out, cases[i].in, strlen(cases[i].in));
        detok_finish(&d, &out);
        assert_string_equal(out.data, cases[i].want);
        buf_deinit(&out);
    }
    tokenizer_free(t);
}

static void random_bytes_stream(void **state) {
    tokenizer *t = vocab_open(&vocab_bpe);
    uint32_t x = 7;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        static const uint8_t likely[] = {0x41, 0x80, 0x9f, 0xbf, 0xc2, 0xe0, 0xe2,
                                         0xed, 0xf0, 0xf4, 0xff, 0xa0, 0x90, 0xc0};
        char in[24];
        size_t n = 1 + (size_t)round % sizeof in, i = 0;
        hd_buf want, out;
        detok d;
        for (size_t k = 0; k < n; k++) x = x * 1664525 + 1013904223, in[k] = (char)likely[(x >> 16) % sizeof likely];
        buf_init(&want, 1000);
        buf_init(&out, 1000);
        while (i < n) { /* the definition: one U+FFFD for each maximal invalid part of the whole */
            uint32_t cp;
            int len = utf8_next(in + i, n - i, &cp);
            if (len > 0)
                buf_add(&want, in + i, (size_t)len);
            else
                buf_str(&want, FFFD);
            i += (size_t)(len > 0 ? len : -len);
        }
        detok_init(&d, t, true);
        for (i = 0; i < n; i++) {
            size_t before = out.len;
            detok_push(&d, t, VOCAB_L + (uint8_t)in[i], false, &out);
            assert_true(out.len >= before && !memcmp(buf_cstr(&out), buf_cstr(&want), out.len));
        }
        detok_finish(&d, &out);
        assert_string_equal(buf_cstr(&out), buf_cstr(&want));
        buf_deinit(&want);
        buf_deinit(&out);
    }
    tokenizer_free(t);
}

static void decode_refuses_wrong_ids(void **state) {
    tokenizer *t = vocab_open(&vocab_bpe);
    hd_buf b;
    hd_err err;
    (void)state;
    buf_init(&b, 100);
    assert_int_equal(tokenizer_decode(t, IDS(3, 266), false, &b, &err), HD_INVALID);
    assert_non_null(strstr(err.msg, "266"));
    assert_int_equal(tokenizer_decode(t, IDS(-1), false, &b, &err), HD_INVALID);
    assert_int_equal(b.len, 0);
    expect_text(t, IDS(0, 3), true, "<|end|>ab");
    expect_text(t, IDS(0, 3, 2), false, "ab<tool>");
    buf_deinit(&b);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(continuation_R066),        cmocka_unit_test(streaming_R045),
        cmocka_unit_test(replacement_R052),         cmocka_unit_test(random_bytes_stream),
        cmocka_unit_test(decode_refuses_wrong_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
