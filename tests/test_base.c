/* test_base.c - errors, buffers, numbers, random numbers. */
#include "base/buf.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "base/philox.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

/* Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10). */
static void philox_known_answers(void **state) {
    static const uint32_t cases[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t out[4];
        philox4x32(cases[i], cases[i] + 4, out);
        assert_memory_equal(out, cases[i] + 6, sizeof out);
    }
}

static void buf_refuses_past_its_limit(void **state) {
    hd_buf b;
    (void)state;
    buf_init(&b, 5);
    assert_true(buf_str(&b, "hello"));
    assert_string_equal(b.data, "hello");
    assert_false(buf_byte(&b, '!'));
    assert_int_equal(b.failed, HD_FULL);
    assert_false(buf_byte(&b, '!'));
    assert_null(buf_take(&b, NULL));
    buf_deinit(&b);
    assert_int_equal(hd_mem_live(), 0);
}

static void number_text(double v, const char *want) {
    hd_buf b;
    buf_init(&b, 100);
    jsonw_double(&b, v);
    assert_string_equal(buf_cstr(&b), want);
    buf_deinit(&b);
}

static void numbers_as_python_writes_them(void **state) {
    (void)state;
    number_text(0.1, "0.1");
    number_text(3, "3.0");
    number_text(1e20, "1e+20");
    number_text(1e15, "1000000000000000.0");
    number_text(-2.5e-7, "-2.5e-07");
    number_text(123456789.125, "123456789.125");
    number_text(5e-324, "5e-324");
    number_text(0.30000000000000004, "0.30000000000000004");
    number_text(NAN, "null");
}

static void bad_bytes_become_replacement_characters(void **state) {
    hd_buf b;
    jsonw w;
    (void)state;
    buf_init(&b, 100);
    jsonw_init(&w, &b);
    /* maximal invalid parts: 80 | C3 then 28 | F0 9F 98 (cut) -> one U+FFFD each */
    jsonw_strn(&w, "a\x80"
                   "b\xC3(\n\"\xF0\x9F\x98",
               10);
    assert_string_equal(buf_cstr(&b), "\"a\xEF\xBF\xBD"
                                      "b\xEF\xBF\xBD(\\n\\\"\xEF\xBF\xBD\"");
    buf_deinit(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(buf_refuses_past_its_limit),
        cmocka_unit_test(numbers_as_python_writes_them),
        cmocka_unit_test(bad_bytes_become_replacement_characters),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
