/* test_stop.c - stop strings: named cases, and random texts cut in random ways against a search of the whole text. */
#include "base/mem.h"
#include "decode/stop.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    stop_set *set;
    stop_stream *st;
    hd_buf out;
    size_t which;
} fixture;

static fixture open_stops(const char *const *stops, size_t n) {
    fixture f = {.which = 99};
    stop_string s[STOP_MAX_STRINGS];
    for (size_t i = 0; i < n; i++) s[i] = (stop_string){stops[i], strlen(stops[i])};
    assert_int_equal(stop_set_new(&f.set, s, n, NULL), HD_OK);
    assert_int_equal(stop_stream_new(&f.st, f.set, NULL), HD_OK);
    buf_init(&f.out, 1 << 20);
    return f;
}
static void close_stops(fixture *f) {
    buf_deinit(&f->out);
    stop_stream_free(f->st);
    stop_set_free(f->set);
}
static bool push(fixture *f, const char *s) { return stop_push(f->st, s, strlen(s), &f->out, &f->which); }
static bool finish(fixture *f) { return stop_finish(f->st, &f->out, &f->which); }
#define OUT_IS(f, s) assert_string_equal(buf_cstr(&(f).out), s)

/* R046: parts of a stop string must never be seen; a false alarm is released in full. */
static void r046_hold_back_a_suffix_that_may_begin_a_stop(void **state) {
    static const char *const one[] = {"DEFGHIJ"}, *const two[] = {"\nUser:", "\nUs"};
    fixture f = open_stops(one, 1);
    (void)state;
    assert_false(push(&f, "ABC"));
    OUT_IS(f, "ABC");
    assert_false(push(&f, "DEF"));
    assert_false(push(&f, "G"));
    assert_false(push(&f, "HI"));
    OUT_IS(f, "ABC");
    assert_true(push(&f, "J"));
    OUT_IS(f, "ABC");
    assert_int_equal(f.which, 0);
    assert_true(push(&f, "more")); /* swallowed */
    assert_true(finish(&f));
    OUT_IS(f, "ABC");
    close_stops(&f);

    f = open_stops(one, 1);
    push(&f, "ABC");
    assert_false(push(&f, "DEF"));
    OUT_IS(f, "ABC");
    assert_false(push(&f, "X"));
    OUT_IS(f, "ABCDEFX");
    close_stops(&f);

    f = open_stops(two, 2);
    assert_false(push(&f, "hi\nU"));
    OUT_IS(f, "hi");
    assert_true(push(&f, "ser: x"));
    OUT_IS(f, "hi");
    assert_int_equal(f.which, 1);
    close_stops(&f);
}

/* R047: held text is flushed at every kind of end. */
static void r047_flush_what_is_held_at_every_end(void **state) {
    static const char *const nl[] = {"\n"}, *const q[] = {"?\n"};
    fixture f = open_stops(nl, 1);
    (void)state;
    assert_true(push(&f, "?\n")); /* the stop closes a piece that also holds text */
    OUT_IS(f, "?");
    close_stops(&f);

    f = open_stops(nl, 1);
    assert_false(push(&f, "?")); /* then EOS */
    OUT_IS(f, "?");
    assert_false(finish(&f));
    OUT_IS(f, "?");
    close_stops(&f);

    f = open_stops(q, 1);
    assert_false(push(&f, "?"));
    OUT_IS(f, "");
    assert_int_equal(stop_held(f.st), 1);
    assert_false(finish(&f));
    OUT_IS(f, "?");
    assert_false(finish(&f)); /* released once */
    OUT_IS(f, "?");
    close_stops(&f);
}

/* R048: only an overlap of a suffix with a beginning may be held, not text that occurs inside a stop. */
static void r048_text_inside_a_stop_is_not_held(void **state) {
    static const char *const s[] = {"<|eot|><|h|>assistant<|/h|>"};
    fixture f = open_stops(s, 1);
    (void)state;
    assert_false(push(&f, "ple"));
    assert_false(push(&f, "as"));
    OUT_IS(f, "pleas");
    assert_false(finish(&f));
    OUT_IS(f, "pleas");
    close_stops(&f);
}

static void the_earliest_start_wins(void **state) {
    static const char *const s[] = {"bc", "abcd", "zz", "zz"};
    fixture f = open_stops(s, 4);
    (void)state;
    assert_false(push(&f, "xabc")); /* "bc" is complete, "abcd" may still begin earlier */
    OUT_IS(f, "x");
    assert_true(push(&f, "d"));
    OUT_IS(f, "x");
    assert_int_equal(f.which, 1);
    close_stops(&f);

    f = open_stops(s, 4);
    assert_false(push(&f, "xabc"));
    assert_true(push(&f, "e"));
    OUT_IS(f, "xa");
    assert_int_equal(f.which, 0);
    close_stops(&f);

    f = open_stops(s, 4);
    assert_false(push(&f, "xabc"));
    assert_true(finish(&f)); /* the end decides */
    OUT_IS(f, "xa");
    assert_int_equal(f.which, 0);
    close_stops(&f);

    f = open_stops(s, 4);
    assert_true(push(&f, "zz"));
    assert_int_equal(f.which, 2); /* equal strings: first listed */
    close_stops(&f);
}

static void limits_are_stated(void **state) {
    static char big[STOP_MAX_BYTES + 1];
    stop_string many[STOP_MAX_STRINGS + 1];
    stop_set *set;
    stop_stream *st;
    hd_err err;
    hd_buf out;
    (void)state;
    memset(big, 'a', sizeof big);
    for (size_t i = 0; i < STOP_MAX_STRINGS + 1; i++) many[i] = (stop_string){big, STOP_MAX_BYTES};
    assert_int_equal(stop_set_new(&set, many, STOP_MAX_STRINGS + 1, &err), HD_INVALID);
    assert_string_equal(err.field, "stop");
    assert_int_equal(stop_set_new(&set, &(stop_string){big, 0}, 1, &err), HD_INVALID);
    assert_int_equal(stop_set_new(&set, &(stop_string){big, sizeof big}, 1, &err), HD_INVALID);
    assert_null(set);
    assert_int_equal(stop_set_new(&set, NULL, 0, &err), HD_OK); /* no stops: everything passes */
    assert_int_equal(stop_stream_new(&st, set, &err), HD_OK);
    buf_init(&out, 100);
    assert_false(stop_push(st, "abc", 3, &out, NULL));
    assert_string_equal(buf_cstr(&out), "abc");
    buf_deinit(&out);
    stop_stream_free(st);
    stop_set_free(set);
    for (long n = 0; n < 2; n++) { /* each refused allocation is reported and nothing leaks */
        hd_status a, b = HD_NOMEM;
        hd_mem_fail_after(n);
        a = stop_set_new(&set, many, 2, &err);
        if (a == HD_OK) b = stop_stream_new(&st, set, &err);
        hd_mem_fail_after(-1);
        assert_int_equal(a, n ? HD_OK : HD_NOMEM);
        assert_int_equal(b, HD_NOMEM);
        stop_set_free(set);
    }
    assert_int_equal(hd_mem_live(), 0);
}

static void pushing_asks_the_heap_for_nothing(void **state) {
    static const char *const s[] = {"aab", "\n\n"};
    fixture f = open_stops(s, 2);
    (void)state;
    buf_add(&f.out, "room", 4); /* the buffer grows to its first size here */
    hd_mem_forbid(true);
    hd_mem_fail_after(0);
    assert_false(push(&f, "aa"));
    assert_false(push(&f, "a\n"));
    assert_true(push(&f, "\n"));
    hd_mem_fail_after(-1);
    hd_mem_forbid(false);
    OUT_IS(f, "roomaaa");
    close_stops(&f);
}

/* What a search of the whole text says: the definition. */
typedef struct {
    bool decided;
    size_t start, which, passed;
} verdict;
static verdict search(const char *text, size_t n, const stop_string *stops, size_t n_stops, bool ended) {
    verdict v = {.which = SIZE_MAX};
    size_t pending = n, best_len = 0; /* start of the longest suffix that is a proper prefix of a stop */
    for (size_t i = 0; i < n_stops; i++) {
        for (size_t at = 0; at + stops[i].n <= n; at++)
            if (!memcmp(text + at, stops[i].s, stops[i].n)) {
                if (v.which == SIZE_MAX || at < v.start || (at == v.start && stops[i].n < best_len)) {
                    v.which = i;
                    v.start = at;
                    best_len = stops[i].n;
                }
                break;
            }
        for (size_t len = 1; len < stops[i].n && len <= n; len++)
            if (!memcmp(text + n - len, stops[i].s, len) && n - len < pending) pending = n - len;
    }
    v.decided = v.which != SIZE_MAX && (ended || pending >= v.start);
    v.passed = v.decided ? v.start : ended ? n : pending;
    return v;
}

static uint32_t rnd(uint32_t *s) {
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void any_cutting_gives_what_a_whole_search_gives(void **state) {
    uint32_t r = 7, n_decided = 0, n_waiting = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[48], strings[4][8];
        stop_string stops[4];
        size_t n_stops = 1 + rnd(&r) % 4, n = rnd(&r) % sizeof text, fed = 0, which = 99;
        unsigned letters = 2 + rnd(&r) % 2;
        stop_set *set;
        stop_stream *st;
        hd_buf out;
        verdict v = {0};
        bool decided = false;
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + rnd(&r) % letters);
        for (size_t i = 0; i < n_stops; i++) {
            stops[i] = (stop_string){strings[i], 1 + rnd(&r) % 8};
            for (size_t j = 0; j < stops[i].n; j++) strings[i][j] = (char)('a' + rnd(&r) % letters);
        }
        assert_int_equal(stop_set_new(&set, stops, n_stops, NULL), HD_OK);
        assert_int_equal(stop_stream_new(&st, set, NULL), HD_OK);
        buf_init(&out, 1000);
        while (fed < n && !decided) {
            size_t piece = rnd(&r) % 6;
            if (piece > n - fed) piece = n - fed;
            decided = stop_push(st, text + fed, piece, &out, &which);
            fed += piece;
            v = search(text, fed, stops, n_stops, false);
            if (!v.decided && v.which != SIZE_MAX) n_waiting++;
            assert_int_equal(decided, v.decided);
            assert_int_equal(out.len, v.passed);
            if (!decided) assert_int_equal(stop_held(st), fed - v.passed);
        }
        if (!decided) {
            decided = stop_finish(st, &out, &which);
            v = search(text, fed, stops, n_stops, true);
            assert_int_equal(decided, v.decided);
        }
        assert_int_equal(out.len, v.passed);
        if (out.len) assert_memory_equal(out.data, text, out.len);
        if (decided) {
            n_decided++;
            assert_int_equal(which, v.which);
        }
        buf_deinit(&out);
        stop_stream_free(st);
        stop_set_free(set);
    }
    assert_true(n_decided > 1000 && n_waiting > 100); /* the cases that matter did occur */
}

/* A backtracking search would take some 4096 * 64 * 2^20 steps for this. */
static void hostile_stops_cost_linear_time(void **state) {
    static char a[STOP_MAX_BYTES], text[1 << 18];
    stop_string stops[STOP_MAX_STRINGS];
    stop_set *set;
    stop_stream *st;
    hd_buf out;
    clock_t t0 = clock();
    (void)state;
    memset(a, 'a', sizeof a);
    a[sizeof a - 1] = 'b';
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < STOP_MAX_STRINGS; i++) stops[i] = (stop_string){a + i, sizeof a - i};
    assert_int_equal(stop_set_new(&set, stops, STOP_MAX_STRINGS, NULL), HD_OK);
    assert_int_equal(stop_stream_new(&st, set, NULL), HD_OK);
    buf_init(&out, sizeof text);
    for (size_t i = 0; i < sizeof text; i += 4) assert_false(stop_push(st, text + i, 4, &out, NULL));
    assert_int_equal(out.len, sizeof text - (sizeof a - 1));
    assert_true((double)(clock() - t0) / CLOCKS_PER_SEC < 20);
    buf_deinit(&out);
    stop_stream_free(st);
    stop_set_free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r046_hold_back_a_suffix_that_may_begin_a_stop),
        cmocka_unit_test(r047_flush_what_is_held_at_every_end),
        cmocka_unit_test(r048_text_inside_a_stop_is_not_held),
        cmocka_unit_test(the_earliest_start_wins),
        cmocka_unit_test(limits_are_stated),
        cmocka_unit_test(pushing_asks_the_heap_for_nothing),
        cmocka_unit_test(any_cutting_gives_what_a_whole_search_gives),
        cmocka_unit_test(hostile_stops_cost_linear_time),
    };
    return cmocka_run_group_tests_name("stop", tests, NULL, NULL);
}
