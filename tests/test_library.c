/* test_library.c - what an application gets: the symbols, the header in C and C++, an installed copy, Python.
 *
 * It runs the tools an application would be built with, in a folder of its own; a tool that is not there skips its test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEADER TEST_DIR "/../include/heddle.h"
#define SHARED HEDDLE_BUILD_DIR "/libheddle.so.0"

static char dir[] = "/tmp/heddle-library-XXXXXX";

/* Run a shell command in `dir` and return what it prints (static, at most 64 KiB); a status other than 0 fails the test. */
static const char *run(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *run(const char *fmt, ...) {
    static char out[64 << 10], cmd[4096];
    size_t n;
    int status, at = snprintf(cmd, sizeof cmd, "cd %s && exec 2>&1; ", dir);
    va_list ap;
    FILE *f;
    va_start(ap, fmt);
    vsnprintf(cmd + at, sizeof cmd - (size_t)at, fmt, ap);
    va_end(ap);
    f = popen(cmd, "r");
    assert_non_null(f);
    n = fread(out, 1, sizeof out - 1, f);
    out[n] = 0;
    status = pclose(f);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("%s\nended with %#x and said\n%s", cmd, (unsigned)status, out);
    return out;
}

static void need(const char *tool) {
    char cmd[128];
    snprintf(cmd, sizeof cmd, "command -v %s >/dev/null 2>&1", tool);
    if (system(cmd) == 0) return;
    print_message("there is no %s on this machine\n", tool);
    skip();
}

/* Instrumented builds make no shared library. */
static void need_shared(void) {
    if (access(SHARED, R_OK) == 0) return;
    print_message("this build has no shared library\n");
    skip();
}

static void write_file(const char *name, const char *text) {
    char path[200];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static const char script[] = "{\"vocab\":[\"</s>\",\"Hello\",\" world\",\"!\"],\"special\":{\"eos\":[0]},"
                             "\"rules\":[{\"match\":\"two\",\"emit\":[\"Hello\"],\"then\":\"eos\"}],"
                             "\"default\":{\"emit\":[\"Hello\",\" world\",\"!\"],\"then\":\"eos\"}}";

static int make_dir(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    write_file("script.json", script);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    run("cd / && rm -rf %s", dir);
    return 0;
}

/* The names the header promises, each between two spaces. */
static void promised(char *out, size_t size) {
    char line[1000];
    FILE *f = fopen(HEADER, "r");
    assert_non_null(f);
    strcpy(out, " ");
    while (fgets(line, sizeof line, f)) {
        char *name, *end;
        if (strncmp(line, "HEDDLE_API ", 11) || !(end = strchr(line, '('))) continue;
        for (name = end; name > line && (isalnum((unsigned char)name[-1]) || name[-1] == '_'); name--) {}
        assert_true(strlen(out) + (size_t)(end - name) + 2 < size);
        strncat(out, name, (size_t)(end - name));
        strcat(out, " ");
    }
    fclose(f);
}

/* What nm prints: "address type name[@@version]" per line.  Returns how many names there were. */
static int only_promised(const char *nm, const char *names, const char *version) {
    int n = 0;
    for (const char *line = nm; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char type, name[200], key[210];
        size_t len;
        if (sscanf(line, "%*x %c %199s", &type, name) != 2 || type == 'A' || type == 'U') continue;
        len = strcspn(name, "@");
        if (version) assert_string_equal(name + len, version);
        name[len] = 0;
        snprintf(key, sizeof key, " %s ", name);
        if (!strstr(names, key)) fail_msg("%s is shown and not in heddle.h", name);
        n++;
    }
    return n;
}

static void shows_the_header_and_no_more(void **state) {
    char names[8192];
    int n = 0;
    (void)state;
    need("nm");
    promised(names, sizeof names);
    for (const char *p = names; *p; p++) n += *p == ' ';
    n--;
    assert_true(n > 20);
    assert_int_equal(only_promised(run("nm -g --defined-only %s/libheddle.a", HEDDLE_BUILD_DIR), names, NULL), n);
    need_shared();
    assert_int_equal(only_promised(run("nm -D --defined-only %s", SHARED), names, "@@HEDDLE_0.1"), n);
    assert_non_null(strstr(run("readelf -d %s", SHARED), "SONAME"));
    /* A library does not draw the server's packages in. */
    assert_null(strstr(run("readelf -d %s", SHARED), "libevent"));
}

static void the_header_is_c(void **state) {
    (void)state;
    need("cc");
    write_file("header.c", "#include <heddle.h>\n#include <heddle.h>\nint main(void) { heddle_event e; HEDDLE_INIT(&e); return 0; }\n");
    for (int i = 0; i < 2; i++)
        run("cc -std=%s -pedantic -Wall -Wextra -Werror -I%s/../include -fsyntax-only header.c", i ? "c17" : "c11", TEST_DIR);
}

static void the_header_is_cxx(void **state) {
    static const char *const stds[] = {"c++11", "c++20"};
    (void)state;
    need("c++");
    write_file("header.cc", "#include <heddle.h>\nint main() { heddle_request r; HEDDLE_REQUEST_INIT(&r); r.top_k = 4; return 0; }\n");
    for (size_t i = 0; i < sizeof stds / sizeof *stds; i++)
        run("c++ -std=%s -pedantic -Wall -Wextra -Werror -I%s/../include -fsyntax-only header.cc", stds[i], TEST_DIR);
    need_shared();
    run("c++ -I%s/../include header.cc -o header.exe %s && LD_LIBRARY_PATH=%s ./header.exe", TEST_DIR, SHARED, HEDDLE_BUILD_DIR);
}

static void expect_three(const char *said) {
    if (!strstr(said, "[0] stop, 4 tokens") || !strstr(said, "[1] stop, 2 tokens") || !strstr(said, "[2] stop, 4 tokens"))
        fail_msg("the example said\n%s", said);
}

static void installed(void **state) {
    static const char *const files[] = {"bin/heddle", "include/heddle.h", "libheddle.a", "libheddle.so", "libheddle.so.0",
                                        "heddle.pc", "heddleConfig.cmake", "heddleConfigVersion.cmake", "heddleTargets.cmake"};
    const char *found, *pc = "PKG_CONFIG_PATH=$(dirname $(find $PWD/prefix -name heddle.pc)) pkg-config";
    (void)state;
    need_shared();
    need("cmake");
    need("pkg-config");
    need("cc");
    run("cmake --install %s --prefix %s/elsewhere && mv elsewhere prefix", HEDDLE_BUILD_DIR, dir); /* it may be moved */
    found = run("find prefix");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strstr(found, files[i])) fail_msg("%s is not installed, only\n%s", files[i], found);
    assert_non_null(strstr(run("env -i prefix/bin/heddle --version"), HEDDLE_VERSION)); /* and it needs no other place */
    assert_string_equal(run("%s --modversion heddle", pc), HEDDLE_VERSION "\n");

    run("cp %s/../examples/three_sessions.c .", TEST_DIR);
    run("cc three_sessions.c -o shared $(%s --cflags --libs heddle)", pc);
    expect_three(run("LD_LIBRARY_PATH=$(dirname $(find $PWD/prefix -name libheddle.so.0)) ./shared script:script.json one two three"));
    /* As docs/library.md says it for a prefix that the loader does not look in. */
    run("cc three_sessions.c -o with_path $(%s --cflags --libs heddle) -Wl,-rpath,$(%s --variable=libdir heddle)", pc, pc);
    expect_three(run("env -i ./with_path script:script.json one two three"));
    run("cp %s/../examples/method.c . && cc method.c -o method $(%s --cflags --libs heddle)", TEST_DIR, pc);
    assert_non_null(strstr(run("LD_LIBRARY_PATH=$(dirname $(find $PWD/prefix -name libheddle.so.0)) ./method script:script.json"),
                           "the answers are equal"));
    run("cc three_sessions.c -o static $(%s --cflags heddle) $(find prefix -name libheddle.a) "
        "$(%s --static --libs heddle | sed 's/-lheddle//')", pc, pc);
    run("! readelf -d static | grep libheddle");
    expect_three(run("./static script:script.json one two three"));
}

static void found_by_cmake(void **state) {
    (void)state;
    need_shared();
    need("cmake");
    if (access("/usr/bin/ninja", X_OK) && access("/usr/bin/make", X_OK)) {
        print_message("there is neither ninja nor make on this machine\n");
        skip();
    }
    run("test -d prefix || cmake --install %s --prefix %s/prefix", HEDDLE_BUILD_DIR, dir);
    run("mkdir -p app && cp %s/../examples/three_sessions.c app/", TEST_DIR);
    write_file("app/CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\n"
                                     "project(app C)\n"
                                     "find_package(heddle 0.1 REQUIRED)\n"
                                     "add_executable(app three_sessions.c)\n"
                                     "target_link_libraries(app heddle::heddle)\n"
                                     "add_executable(app_static three_sessions.c)\n"
                                     "target_link_libraries(app_static heddle::static)\n");
    run("cmake -S app -B app/build -DCMAKE_PREFIX_PATH=%s/prefix && cmake --build app/build", dir);
    expect_three(run("app/build/app script:script.json one two three"));
    expect_three(run("app/build/app_static script:script.json one two three"));
    write_file("app/CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(app C)\nfind_package(heddle 0.2 QUIET)\n"
                                     "if(heddle_FOUND)\n  message(FATAL_ERROR \"0.1 passed for 0.2\")\nendif()\n");
    run("cmake -S app -B app/build2 -DCMAKE_PREFIX_PATH=%s/prefix", dir);
}

static void python(void **state) {
    (void)state;
    need_shared();
    need("python3");
    assert_string_equal(run("HEDDLE_LIBRARY=%s python3 %s/../examples/chat.py script:script.json hi", SHARED, TEST_DIR),
                        "Hello world!\n(4 tokens, stop)\n");
    assert_non_null(strstr(run("! HEDDLE_LIBRARY=%s python3 %s/../examples/chat.py script:nothing.json hi", SHARED, TEST_DIR),
                           "heddle_model_open: "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shows_the_header_and_no_more), cmocka_unit_test(the_header_is_c), cmocka_unit_test(the_header_is_cxx),
        cmocka_unit_test(installed),                    cmocka_unit_test(found_by_cmake),  cmocka_unit_test(python),
    };
    return cmocka_run_group_tests_name("library", tests, make_dir, remove_dir);
}
