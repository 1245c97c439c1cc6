/* test_layers.c - the folders of src/ are layers: an include names the same folder or one further left in
 *
 *     base <- tensor <- kernels <- format <- text <- decode <- model <- state <- exec <- serve <- cli
 *
 * Sub-folders (kernels/avx2, exec/methods) belong to the folder they are in.  include/ holds the public header, which
 * includes nothing of heddle's; examples/ knows only that one.  Tests and fuzzers may include anything.
 * And scripts/test, which runs these checks, says what it can do.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const char *const layers[] = {"base",  "tensor", "kernels", "format", "text", "decode",
                                     "model", "state",  "exec",    "serve",  "cli"};
enum { N_LAYERS = sizeof layers / sizeof *layers };

/* The layer that `path` (from src/) starts with, or -1. */
static int layer_of(const char *path) {
    size_t n = strcspn(path, "/");
    for (int i = 0; i < N_LAYERS; i++)
        if (strlen(layers[i]) == n && !memcmp(layers[i], path, n)) return i;
    return -1;
}

/* NULL if a file of `layer` may have this line, else what is wrong with it. */
static const char *judge(int layer, const char *line) {
    int target;
    line += strspn(line, " \t");
    if (*line++ != '#') return NULL;
    line += strspn(line, " \t");
    if (strncmp(line, "include", 7)) return NULL;
    line += 7;
    line += strspn(line, " \t");
    if (*line++ != '"') return NULL; /* a system header */
    if (!strncmp(line, "heddle.h\"", 9)) return layer >= layer_of("exec/") ? NULL : "only exec and above know the API";
    target = layer_of(line);
    if (target < 0) return "an include is written from src/, starting with its layer";
    return target <= layer ? NULL : "it points to the right";
}

/* The same for a file of include/ or examples/: no header of heddle's but the installed <heddle.h>. */
static const char *judge_outside(const char *line) {
    line += strspn(line, " \t");
    if (*line++ != '#') return NULL;
    line += strspn(line, " \t");
    if (strncmp(line, "include", 7)) return NULL;
    line += 7;
    line += strspn(line, " \t");
    if (*line == '"') return "what is outside of src/ knows <heddle.h> only";
    if (*line == '<' && layer_of(line + 1) >= 0 && strchr(line, '/')) return "a header of src/ in disguise";
    return NULL;
}

typedef struct {
    int files, bad;
} tally;

static void walk(const char *rel, int layer, tally *t) {
    char path[600];
    DIR *d;
    snprintf(path, sizeof path, "%s/../src/%s", TEST_DIR, rel);
    d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char sub[300];
        struct stat sb;
        size_t n = strlen(e->d_name);
        if (e->d_name[0] == '.') continue;
        snprintf(sub, sizeof sub, "%.100s%s%.150s", rel, *rel ? "/" : "", e->d_name);
        snprintf(path, sizeof path, "%s/../src/%s", TEST_DIR, sub);
        assert_int_equal(stat(path, &sb), 0);
        if (S_ISDIR(sb.st_mode)) {
            int l = *rel ? layer : layer_of(e->d_name);
            if (l < 0)
                print_error("src/%s is no layer\n", sub), t->bad++;
            else
                walk(sub, l, t);
        } else if (*rel && n > 2 && e->d_name[n - 2] == '.' && strchr("ch", e->d_name[n - 1])) {
            char line[1000];
            FILE *f = fopen(path, "r");
            assert_non_null(f);
            t->files++;
            for (int no = 1; fgets(line, sizeof line, f); no++) {
                const char *why = judge(layer, line);
                if (why) print_error("src/%s:%d: %s: %s", sub, no, why, line), t->bad++;
            }
            fclose(f);
        }
    }
    closedir(d);
}

static void includes_point_left(void **state) {
    tally t = {0, 0};
    (void)state;
    walk("", -1, &t);
    assert_true(t.files > 20);
    assert_int_equal(t.bad, 0);
}

/* include/ and examples/. */
static void the_outside_knows_the_public_header_only(void **state) {
    static const char *const dirs[] = {"include", "examples"};
    tally t = {0, 0};
    (void)state;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char path[600], line[1000];
        DIR *d;
        snprintf(path, sizeof path, "%s/../%s", TEST_DIR, dirs[i]);
        d = opendir(path);
        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));) {
            size_t n = strlen(e->d_name);
            FILE *f;
            if (n < 3 || e->d_name[n - 2] != '.' || !strchr("ch", e->d_name[n - 1])) continue;
            snprintf(path, sizeof path, "%s/../%s/%.200s", TEST_DIR, dirs[i], e->d_name);
            f = fopen(path, "r");
            assert_non_null(f);
            t.files++;
            for (int no = 1; fgets(line, sizeof line, f); no++) {
                const char *why = judge_outside(line);
                if (why) print_error("%s/%s:%d: %s: %s", dirs[i], e->d_name, no, why, line), t.bad++;
            }
            fclose(f);
        }
        closedir(d);
    }
    assert_true(t.files >= 2);
    assert_int_equal(t.bad, 0);
}

static void the_judge_can_refuse(void **state) {
    int format = layer_of("format/gguf.h");
    (void)state;
    assert_null(judge(format, "#include \"tensor/type.h\"\n"));
    assert_null(judge(format, "  #  include \"format/gguf.h\"\n"));
    assert_null(judge(format, "#include <string.h>\n"));
    assert_null(judge(format, "const char *s = \"text/x.h\";\n"));
    assert_non_null(judge(format, "#include \"text/tokenizer.h\"\n"));
    assert_non_null(judge(format, "# include \"cli/cli.h\"\n"));
    assert_non_null(judge(format, "#include \"gguf.h\"\n"));
    assert_non_null(judge(format, "#include \"../text/tokenizer.h\"\n"));
    assert_non_null(judge(format, "#include \"heddle.h\"\n"));
    assert_null(judge(layer_of("cli/"), "#include \"heddle.h\"\n"));
    assert_null(judge_outside("#include <heddle.h>\n"));
    assert_null(judge_outside("#include <sys/stat.h>\n"));
    assert_non_null(judge_outside("#include \"exec/engine.h\"\n"));
    assert_non_null(judge_outside("# include <exec/engine.h>\n"));
}

/* Exit status of scripts/test with these arguments; what it says is in out. */
static int stages(const char *args, char *out, size_t size) {
    char cmd[600];
    FILE *p;
    int rc;
    snprintf(cmd, sizeof cmd, "cd / && timeout 60 %s/../scripts/test %s 2>&1", TEST_DIR, args);
    assert_non_null(p = popen(cmd, "r"));
    out[fread(out, 1, size - 1, p)] = 0;
    rc = pclose(p);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

/* The script that runs all this explains itself, and refuses what it does not know, before it installs or builds anything. */
static void the_stages_are_named(void **state) {
    static const char *const all[] = {"release", "clang", "asan", "tsan", "hostile", "planted", "isa", "fuzz"};
    static const char *const variables[] = {"HEDDLE_TEST_DATA", "HEDDLE_FUZZ_SECONDS", "HEDDLE_JOBS"};
    char out[8000];
    (void)state;
    assert_int_equal(stages("--help", out, sizeof out), 0);
    assert_int_equal(strncmp(out, "test [STAGE...]", 15), 0);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) assert_non_null(strstr(out, variables[i]));
    assert_null(strstr(out, "pipefail"));
    assert_null(strstr(out, "== packages"));
    assert_int_equal(stages("release -h", out, sizeof out), 0);
    assert_int_equal(strncmp(out, "test [STAGE...]", 15), 0);
    assert_int_equal(stages("clang releas", out, sizeof out), 64);
    assert_non_null(strstr(out, "no stage is called releas"));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) assert_non_null(strstr(out, all[i]));
    assert_null(strstr(out, "== "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(includes_point_left),
        cmocka_unit_test(the_outside_knows_the_public_header_only),
        cmocka_unit_test(the_judge_can_refuse),
        cmocka_unit_test(the_stages_are_named),
    };
    return cmocka_run_group_tests_name("layers", tests, NULL, NULL);
}
