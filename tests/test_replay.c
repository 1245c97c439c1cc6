/* test_replay.c - the ids of an answer as clients carry them: what goes out, what is believed of what comes back.
 *
 * Codes were made by another hand: python3 -c 'import base64; print("1." + base64.urlsafe_b64encode(bytes([...])))' of LEB128. */
#include "base/mem.h"
#include "text/replay.h"
#include "text/tok_longest.h"
#include "util/runs.h"
#include "util/vocab_spec.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

/* Ids: text is cut at the longest entry, so "Hanzi" is Han, zi, and H, anzi is another way to write it. */
enum { BOS, EOS, HAN, ZI, H, ANZI, SPACE, NEWLINE, ENTRIES };

static tokenizer *open_longest(void) {
    static const gguf_str entries[ENTRIES] = {{"<s>", 3}, {"</s>", 4}, {"Han", 3}, {"zi", 2}, {"H", 1}, {"anzi", 4}, {" ", 1}, {"\n", 1}};
    static const bool special[ENTRIES] = {true, true};
    static const int32_t eos[] = {EOS};
    longest_vocab v = {.entries = entries, .special = special, .n = ENTRIES, .bos = BOS, .eos = eos, .n_eos = 1};
    tokenizer *t;
    hd_err err;
    if (tokenizer_from_entries(&t, &v, &err)) fail_msg("%s", err.msg);
    return t;
}

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static void expect_code(const tokenizer *t, const int32_t *ids, size_t n, size_t n_text, const char *want) {
    hd_buf b;
    buf_init(&b, 1000);
    assert_int_equal(replay_write(t, ids, n, n_text, &b), want != NULL);
    assert_string_equal(buf_cstr(&b), want ? want : "");
    buf_deinit(&b);
}

static bool reads(const tokenizer *t, const char *code, const char *text) {
    id_list l;
    bool ok = replay_read(t, code, strlen(code), text, strlen(text), &l);
    assert_true(ok == (l.n > 0));
    id_list_deinit(&l);
    return ok;
}

static void what_goes_out(void **state) {
    tokenizer *t = open_longest();
    (void)state;
    expect_code(t, IDS(H, ANZI), 5, "1.BAU");
    expect_code(t, IDS(HAN, ZI), 5, NULL);        /* its own ids */
    expect_code(t, IDS(H, ANZI), 4, NULL);        /* a stop string cut the text */
    expect_code(t, IDS(H, ANZI), 6, NULL);        /* or ids are missing */
    expect_code(t, IDS(H, EOS, ANZI), 5, NULL);   /* a control token prints nothing */
    expect_code(t, IDS(H, ENTRIES + 'a'), 2, NULL);
    expect_code(t, IDS(HAN, ENTRIES + 'z', ENTRIES + 'i'), 5, "1.AoIBcQ"); /* LEB128 of 2, 130, 113: 02 82 01 71 */
    expect_code(t, IDS(H, ENTRIES + 0xc3), 2, NULL); /* half a character became U+FFFD */
    expect_code(t, IDS(SPACE, HAN), 4, "1.BgI");  /* templates trim, and what stands before may grow together with it */
    expect_code(t, IDS(HAN, NEWLINE), 4, "1.Agc");
    expect_code(t, NULL, 0, 0, NULL);
    tokenizer_free(t);
}

static void what_is_believed(void **state) {
    static const char *const wrong[] = {"", "1", "1.", "2.BAU", "1.BAU=", "1.BA", "1.BAUA", "1.BAUF", "1.B", "1.B!U", "BAU", "1. BAU",
                                        "1.BAEF" /* H, </s>, anzi */, "1.BP____8", "1.BP___", "1.hAU" /* never ends */};
    tokenizer *t = open_longest();
    id_list l;
    (void)state;
    assert_true(replay_read(t, "1.BAU", 5, "Hanzi", 5, &l));
    assert_int_equal(l.n, 2);
    assert_int_equal(l.ids[0], H);
    assert_int_equal(l.ids[1], ANZI);
    id_list_deinit(&l);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (reads(t, wrong[i], "Hanzi")) fail_msg("%s is believed", wrong[i]);
    assert_false(reads(t, "1.BAU", "hanzi"));
    assert_false(reads(t, "1.BAU", "Hanz"));
    assert_false(reads(t, "1.BAU", "Hanzi "));
    assert_false(reads(t, "1.BAU", ""));
    tokenizer_free(t);
}

/* Random ids of text come back as they went out; random damage is never believed unless it says the same bytes. */
static void there_and_back(void **state) {
    tokenizer *all[] = {open_longest(), vocab_open(&vocab_bpe), vocab_open(vocab_spm())};
    uint64_t seed = 1;
    size_t written = 0, believed = 0;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        const tokenizer *t = all[round % 3];
        int32_t ids[20];
        size_t n = 1 + rng_below(&seed, 20);
        hd_buf text, code;
        id_list l;
        buf_init(&text, 10000);
        buf_init(&code, 10000);
        for (size_t i = 0; i < n; i++) {
            gguf_str b;
            do ids[i] = (int32_t)rng_below(&seed, (uint32_t)tokenizer_size(t) - 128); /* without bytes that are no text alone */
            while (tokenizer_is_control(t, ids[i]) && rng_below(&seed, 40));
            b = tokenizer_bytes(t, ids[i], true);
            buf_add(&text, b.s, b.n);
        }
        if (replay_write(t, ids, n, text.len, &code)) {
            written++;
            assert_true(replay_read(t, code.data, code.len, text.data, text.len, &l));
            assert_int_equal(l.n, n);
            assert_memory_equal(l.ids, ids, n * sizeof *ids);
            id_list_deinit(&l);
            code.data[rng_below(&seed, (uint32_t)code.len)] = (char)('-' + rng_below(&seed, 80));
            if (replay_read(t, code.data, code.len, text.data, text.len, &l)) {
                size_t at = 0;
                believed++;
                for (size_t i = 0; i < l.n; i++) {
                    gguf_str b = tokenizer_bytes(t, l.ids[i], false);
                    assert_false(tokenizer_is_control(t, l.ids[i]));
                    assert_true(b.n && at + b.n <= text.len && !memcmp(text.data + at, b.s, b.n));
                    at += b.n;
                }
                assert_int_equal(at, text.len);
            }
            id_list_deinit(&l);
        }
        buf_deinit(&text);
        buf_deinit(&code);
    }
    if (written < 100 || believed * 4 > written) fail_msg("%zu written, %zu believed after damage", written, believed);
    for (size_t i = 0; i < 3; i++) tokenizer_free(all[i]);
    assert_int_equal(hd_mem_live(), 0);
}

static void parts(void **state) {
    tokenizer *t = open_longest();
    id_list l;
    size_t first, n;
    (void)state;
    assert_true(replay_read(t, "1.BgcEBQY", 9, " \nHanzi ", 8, &l)); /* 6, 7, 4, 5, 6 */
    assert_true(replay_part(t, &l, 2, 5, &first, &n));
    assert_int_equal(first, 2);
    assert_int_equal(n, 2);
    assert_true(replay_part(t, &l, 0, 8, &first, &n));
    assert_int_equal(n, 5);
    assert_false(replay_part(t, &l, 2, 4, &first, &n));
    assert_false(replay_part(t, &l, 4, 4, &first, &n));
    id_list_deinit(&l);
    tokenizer_free(t);
}

static void memory_may_fail(void **state) {
    tokenizer *t = open_longest();
    bool done = false;
    (void)state;
    for (long n = 0; !done; n++) {
        hd_buf b;
        id_list l;
        buf_init(&b, 100);
        hd_mem_fail_after(n);
        done = replay_write(t, IDS(H, ANZI), 5, &b) && !b.failed && replay_read(t, "1.BAU", 5, "Hanzi", 5, &l);
        hd_mem_fail_after(-1);
        if (done) id_list_deinit(&l);
        buf_deinit(&b);
        assert_true(n < 100);
    }
    tokenizer_free(t);
    assert_int_equal(hd_mem_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_out), cmocka_unit_test(what_is_believed), cmocka_unit_test(there_and_back),
        cmocka_unit_test(parts),         cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
