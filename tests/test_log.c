/* test_log.c - lines on stderr: levels, and the debug level's time and bound. */
#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 3 * HD_LOG_DEBUG_LINES };
static char text[MANY * 80];
static int saved;
static FILE *file;

/* stderr goes to a file from here to told(). */
static void listen(void) {
    assert_non_null(file = tmpfile());
    assert_true((saved = dup(2)) >= 0);
    assert_true(dup2(fileno(file), 2) >= 0);
}

/* What was said; the number of lines. */
static int told(void) {
    int n = 0;
    size_t len;
    assert_true(dup2(saved, 2) >= 0);
    close(saved);
    rewind(file);
    len = fread(text, 1, sizeof text - 1, file);
    text[len] = 0;
    fclose(file);
    for (const char *s = text; (s = strchr(s, '\n')); s++) n++;
    return n;
}

static void levels(void **state) {
    (void)state;
    for (int set = HD_LOG_ERROR; set <= HD_LOG_DEBUG; set++) {
        hd_log_set((hd_log_level)set);
        listen();
        for (int l = HD_LOG_ERROR; l <= HD_LOG_DEBUG; l++) {
            assert_int_equal(hd_log_on((hd_log_level)l), l <= set);
            hd_log((hd_log_level)l, "number %d", l);
        }
        assert_int_equal(told(), set + 1);
        assert_non_null(strstr(text, "heddle: error: number 0\n"));
        assert_int_equal(strstr(text, "heddle: info: number 2\n") != NULL, set >= HD_LOG_INFO);
    }
    /* The last one had the time in front: "heddle: debug: 12:34:56.789 number 3". */
    {
        int h, m, s, ms, at = 0;
        const char *line = strstr(text, "heddle: debug: ");
        assert_non_null(line);
        assert_int_equal(sscanf(line, "heddle: debug: %2d:%2d:%2d.%3d %n", &h, &m, &s, &ms, &at), 4);
        assert_string_equal(line + at, "number 3\n");
        assert_true(h < 24 && m < 60 && s < 61);
    }
}

static void wait_for_a_new_second(void) {
    time_t t = time(NULL);
    while (time(NULL) == t) usleep(1000);
}

/* A flood of debug lines is cut, and says so when there is room again; other levels are not. */
static void debug_is_bounded(void **state) {
    int n;
    (void)state;
    hd_log_set(HD_LOG_DEBUG);
    wait_for_a_new_second();
    listen();
    for (int i = 0; i < MANY; i++) hd_log(HD_LOG_DEBUG, "again");
    n = told();
    assert_in_range(n, HD_LOG_DEBUG_LINES, 2 * HD_LOG_DEBUG_LINES); /* a slow machine may see two seconds */
    listen();
    for (int i = 0; i < 10; i++) hd_log(HD_LOG_WARN, "still");
    assert_int_equal(told(), 10);
    wait_for_a_new_second();
    listen();
    hd_log(HD_LOG_DEBUG, "room");
    assert_int_equal(told(), 1);
    assert_non_null(strstr(text, " lines left out) room\n"));
}

/* A line that is too long is cut, and still a line. */
static void long_lines(void **state) {
    static char much[5000];
    (void)state;
    memset(much, 'x', sizeof much - 1);
    hd_log_set(HD_LOG_DEBUG);
    for (int l = HD_LOG_ERROR; l <= HD_LOG_DEBUG; l++) {
        listen();
        hd_log((hd_log_level)l, "%s", much);
        assert_int_equal(told(), 1);
        assert_in_range(strlen(text), 1000, 1024);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels), cmocka_unit_test(debug_is_bounded), cmocka_unit_test(long_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
