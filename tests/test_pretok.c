/* test_pretok.c - where texts are cut before merging, against the `tokenizers` library, and in linear time.
 *
 * golden/pretok.jsonl comes from golden/make_pretok.py.  PRETOK_GOLDEN names another file of that form, for long runs.
 */
#include "base/mem.h"
#include "text/pretok.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of each piece of s, as bpe.c walks them; returns how many pieces. */
static size_t pieces(const pretok *p, const char *s, size_t n, size_t *len) {
    uni *u = malloc((n + 1) * sizeof *u);
    uint8_t *cut = malloc(n + 1);
    size_t k, m = 0;
    assert_true(u && cut);
    k = uni_decode(s, n, u);
    pretok_cut(p, u, k, cut);
    for (size_t i = 0; i < k;) {
        size_t bytes = 0;
        do bytes += uni_bytes(u[i++]);
        while (!cut[i]);
        while (bytes) {
            len[m] = p->flags & PRETOK_BYTE_DIGITS ? pretok_byte_digits((const uint8_t *)s, bytes) : bytes;
            s += len[m];
            bytes -= len[m++];
        }
    }
    free(u);
    free(cut);
    return m;
}

static const pretok *find(const char *name) {
    const pretok *p = pretok_find(name, strlen(name));
    if (!p) fail_msg("no pre-tokenizer %s", name);
    return p;
}

static void check(const char *name, const json_t *text, const json_t *want, int *bad) {
    size_t n = json_string_length(text), *len = malloc((n + 1) * sizeof *len), m;
    bool same;
    assert_non_null(len);
    m = pieces(find(name), json_string_value(text), n, len);
    same = m == json_array_size(want);
    for (size_t i = 0; same && i < m; i++) same = (json_int_t)len[i] == json_integer_value(json_array_get(want, i));
    if (!same && ++*bad <= 10) {
        char *t = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII), *w = json_dumps(want, JSON_COMPACT);
        print_message("%s: %s\n  want %s\n  got  [", name, t, w);
        for (size_t i = 0; i < m; i++) print_message("%zu,", len[i]);
        print_message("]\n");
        free(t), free(w);
    }
    free(len);
}

static void golden(void **state) {
    const char *path = getenv("PRETOK_GOLDEN");
    FILE *f = fopen(path ? path : TEST_DIR "/golden/pretok.jsonl", "rb");
    json_t *texts, *line;
    int bad = 0, kinds = 0;
    (void)state;
    assert_non_null(f);
    texts = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
    for (; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(line), kinds++) {
        const json_t *text, *cuts = json_object_get(line, "cuts");
        size_t i;
        json_array_foreach(json_object_get(texts, "texts"), i, text)
            check(json_string_value(json_object_get(line, "pre")), text, json_array_get(cuts, i), &bad);
    }
    fclose(f);
    json_decref(texts);
    assert_int_equal(kinds, 13);
    assert_int_equal(bad, 0);
}

/* A byte that is not UTF-8 is a symbol: no letter, number or space, and one byte long. */
static void bad_bytes(void **state) {
    size_t len[16], n;
    (void)state;
    n = pieces(find("llama-bpe"),
               "ab\xff\xfe"
               "cd",
               6, len);
    assert_int_equal(n, 3);
    assert_true(len[0] == 2 && len[1] == 2 && len[2] == 2); /* symbols run on, then the word */
    n = pieces(find("llama-bpe"),
               "ab\xff"
               "cd",
               5, len);
    assert_int_equal(n, 2);
    assert_true(len[0] == 2 && len[1] == 3); /* a single one leads the word after it */
    n = pieces(find("gpt-2"), " \xc3\xa9\xc3 \xc3", 6, len);
    assert_int_equal(n, 3);
    assert_true(len[0] == 3 && len[1] == 1 && len[2] == 2);
}

/* Every name pieces up to the whole text, whatever the text. */
static const char *const names[] = {
    "default",     "gpt-2",        "phi-2",        "jina-es",          "jina-de",     "jina-v1-en",   "jina-v2-es",
    "jina-v2-de",  "jina-v2-code", "roberta-bpe",  "exaone4",          "jais",        "trillion",     "granite-docling",
    "mpt",         "olmo",         "modern-bert",  "smollm",           "starcoder",   "refact",       "command-r",
    "codeshell",   "exaone",       "minerva",      "minerva-7b",       "falcon",      "llama-bpe",    "llama3",
    "llama-v3",    "lfm2",         "falcon3",      "falcon-h1",        "pixtral",     "dbrx",         "smaug-bpe",
    "chatglm-bpe", "glm4",         "qwen2",        "deepseek-r1-qwen", "stablelm2",   "megrez",       "hunyuan",
    "solar-open",  "grok-2",       "bailingmoe",   "bailingmoe2",      "llada-moe",   "qwen35",       "gpt-4o",
    "llama4",      "tekken",       "deepseek-llm", "deepseek-coder",   "deepseek-v3", "hunyuan-dense"};
enum { N_NAMES = sizeof names / sizeof *names };

static void whole(void **state) {
    uint32_t x = 1;
    (void)state;
    for (int round = 0; round < 300; round++) {
        char s[64];
        size_t n, len[65], total;
        for (n = 0; n < sizeof s; n++) {
            static const char mix[] = " \n\r\t'sSlLaA1\xc3\xa9\xe4\xbd\xa0\xff/!.\xcc\x81";
            x = x * 1664525 + 1013904223;
            s[n] = mix[(x >> 16) % (sizeof mix - 1)];
        }
        n = round % 65;
        for (int k = 0; k < N_NAMES; k++) {
            size_t m = pieces(find(names[k]), s, n, len);
            total = 0;
            for (size_t i = 0; i < m; i++) assert_true(len[i] > 0), total += len[i];
            assert_int_equal(total, n);
        }
    }
}

static void unknown_name(void **state) {
    (void)state;
    assert_null(pretok_find("llama-bpe2", 10));
    assert_null(pretok_find("", 0));
    assert_non_null(pretok_find("qwen2!", 5));
}

/* Long runs of one class, and of two in turn: linear in length, on a small stack too (R059).  A quadratic scanner would
 * need hours for these two megabytes, a recursive one more stack than there is. */
static void *long_runs(void *arg) {
    static const char *const units[] = {"a",
                                        "A",
                                        ".",
                                        " ",
                                        "\xe6\xbc\xa2",
                                        "\n",
                                        "\xf0\x9f\x98\x80",
                                        "1",
                                        "'",
                                        "\r\n",
                                        "aA",
                                        "A.",
                                        " \n",
                                        "a ",
                                        "\xcc\x81",
                                        "A\xcc\x81",
                                        "!\n",
                                        " .",
                                        "'s",
                                        "\xff",
                                        "\xc2\xa0",
                                        "/",
                                        "\xe3\x80\x80",
                                        "a1",
                                        "\n\n a",
                                        "\xce\xb1\x42"};
    enum { N = 1 << 21 };
    char *s = malloc(N);
    size_t *len = malloc(N * sizeof *len);
    assert_true(s && len);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        size_t w = strlen(units[k]), n = N / w * w;
        for (size_t i = 0; i < n; i++) s[i] = units[k][i % w];
        /* One name of each scanner. */
        static const char *const each[] = {"default",   "gpt-2",        "smollm",         "falcon",
                                           "llama-bpe", "qwen2",        "qwen35",         "gpt-4o",
                                           "tekken",    "deepseek-llm", "deepseek-coder", "deepseek-v3"};
        size_t total = 0, m = pieces(find(each[k % 12]), s, n, len);
        for (size_t i = 0; i < m; i++) total += len[i];
        assert_int_equal(total, n);
        n = n / 16 / w * w;
        for (size_t e = 0; e < 12; e++) {
            m = pieces(find(each[e]), s, n, len);
            total = 0;
            for (size_t i = 0; i < m; i++) total += len[i];
            assert_int_equal(total, n);
        }
    }
    free(s);
    free(len);
    return arg;
}

static void linear(void **state) {
    pthread_attr_t a;
    pthread_t t;
    (void)state;
    assert_int_equal(pthread_attr_init(&a), 0);
    assert_int_equal(pthread_attr_setstacksize(&a, 256 * 1024), 0);
    assert_int_equal(pthread_create(&t, &a, long_runs, NULL), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    pthread_attr_destroy(&a);
}

/* ------------------------------------------------------------------------------------------------ normal forms */

static void same_form(const char *in, const char *want, bool compose) {
    hd_buf b;
    hd_err err;
    buf_init(&b, 1 << 20);
    assert_int_equal(uni_normalise(in, strlen(in), compose, &b, &err), HD_OK);
    assert_string_equal(buf_cstr(&b), want);
    buf_deinit(&b);
}

/* Values from the Unicode standard's own examples (UAX #15) and from Python's unicodedata. */
static void normal_forms(void **state) {
    (void)state;
    same_form("abc", "abc", true);
    same_form("e\xcc\x81", "\xc3\xa9", true);
    same_form("\xc3\xa9", "e\xcc\x81", false);
    same_form("q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87", true); /* marks are ordered */
    same_form("\xe1\xbb\xa9", "u\xcc\x9b\xcc\x81", false);     /* two marks: ứ */
    same_form("u\xcc\x81\xcc\x9b", "\xe1\xbb\xa9", true);
    same_form("\xea\xb0\x81", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", false); /* Hangul */
    same_form("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81", true);
    same_form("\xe2\x84\xab", "\xc3\x85", true);                 /* a singleton: the Angstrom sign */
    same_form("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc", true); /* excluded from composition */
    same_form("\xef\xac\x80", "\xef\xac\x80", true);             /* compatibility forms stay */
    same_form("e\xff\xcc\x81\xff", "e\xff\xcc\x81\xff", true);   /* bytes that are not UTF-8 stay and separate */
    same_form("\xcc\x81"
              "a",
              "\xcc\x81"
              "a",
              true);
}

/* A megabyte of marks in falling order: sorting them one by one would take a day. */
static void hostile_marks(void **state) {
    enum { PAIRS = 1 << 18 };
    hd_buf in, out;
    hd_err err;
    (void)state;
    buf_init(&in, SIZE_MAX);
    buf_init(&out, SIZE_MAX);
    buf_byte(&in, 'x');
    for (int i = 0; i < PAIRS; i++) buf_str(&in, "\xcc\x81\xcc\xa3"); /* class 230, then 220 */
    assert_int_equal(uni_normalise(in.data, in.len, false, &out, &err), HD_OK);
    assert_int_equal(out.len, in.len);
    assert_memory_equal(out.data + 1, "\xcc\xa3", 2);
    assert_memory_equal(out.data + 1 + 2 * PAIRS - 2, "\xcc\xa3\xcc\x81", 4);
    buf_deinit(&in);
    buf_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),        cmocka_unit_test(bad_bytes), cmocka_unit_test(whole),
        cmocka_unit_test(unknown_name),  cmocka_unit_test(linear),    cmocka_unit_test(normal_forms),
        cmocka_unit_test(hostile_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
