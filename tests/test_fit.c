/* test_fit.c (slow-test) - `heddle fit`: its arguments, its verdicts, its numbers against formulas written down here, and all of it
 * against an engine that is really opened and filled: the memory it takes, the rows and contexts it admits.
 *
 * Memory is what the kernel counts: "Anonymous" of /proc/self/smaps_rollup, of a child process that opens model and engine with
 * the same options, fills the budget with rows and keeps the largest value seen.  It must be within fit's total, and be 80 % of
 * it: the rest is room that limits allow and these runs do not use (logits of more rows than run, hidden states of embeddings,
 * the tree's lists when pages have few tokens).  The demo model takes part where $HEDDLE_TEST_MODEL names it. */
#include "tiny/tiny_model.h"
#include "util/gguf_edit.h"

#include "base/mem.h"
#include "exec/engine.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Keys and values outweigh all else: 4 layers x 8 heads x 64 x 2 = 4096 numbers a token. */
static const tiny_variant wide = {.name = "wide", .arch = "llama", .hidden = 128, .layers = 4, .heads = 8, .kv_heads = 8,
                                  .head_dim = 64, .ffn = 128, .eps = 1e-5, .theta = 10000, .tied = 1, .seed = 71};
/* Every second layer sees 64 positions. */
static const tiny_variant windows = {.name = "windows", .arch = "gemma3", .hidden = 128, .layers = 4, .heads = 8, .kv_heads = 8,
                                     .head_dim = 64, .ffn = 128, .eps = 1e-6, .theta = 1000000, .window = 64, .pattern = 2,
                                     .qk_norm = 1, .tied = 1, .seed = 72};
/* 85 MiB of matrices. */
static const tiny_variant heavy = {.name = "heavy", .arch = "llama", .hidden = 1024, .layers = 3, .heads = 8, .kv_heads = 8,
                                   .head_dim = 128, .ffn = 1024, .eps = 1e-5, .theta = 10000, .tied = 1, .seed = 73};

static char dir[] = "/tmp/heddle-fit-XXXXXX", wide_path[64], windows_path[64], script_path[64], other_path[64], out[1 << 16];

static int setup(void **state) {
    static const char script[] = "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":1000,\"default\":{\"emit\":[1]}}";
    FILE *f;
    (void)state;
    hd_mem_tune(); /* as the program does */
    if (!mkdtemp(dir)) return -1;
    snprintf(wide_path, sizeof wide_path, "%s/wide.gguf", dir);
    snprintf(windows_path, sizeof windows_path, "%s/windows.gguf", dir);
    snprintf(script_path, sizeof script_path, "%s/script.json", dir);
    snprintf(other_path, sizeof other_path, "%s/other.gguf", dir);
    if (!(f = fopen(script_path, "w"))) return -1;
    fwrite(script, 1, sizeof script - 1, f);
    if (fclose(f)) return -1;
    return tiny_model_write(&wide, NULL, wide_path) || tiny_model_write(&windows, NULL, windows_path) ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(wide_path), unlink(windows_path), unlink(script_path), unlink(other_path);
    return rmdir(dir);
}

/* Exit status of `heddle fit ARGS`, with $W, $G, $S and $O the models; what it printed is in `out`.  errors: on stderr too,
 * where libraries may have something to say (hwloc does, in a chroot without /sys). */
static int run_with(const char *args, bool errors) {
    char cmd[1000];
    FILE *p;
    int rc;
    size_t n;
    snprintf(cmd, sizeof cmd, "W=%s; G=%s; S=script:%s; O=%s; %s fit %s 2>%s", wide_path, windows_path, script_path, other_path,
             HEDDLE_BIN, args, errors ? "&1" : "/dev/null");
    assert_non_null(p = popen(cmd, "r"));
    n = fread(out, 1, sizeof out - 1, p);
    out[n] = 0;
    rc = pclose(p);
    assert_true(WIFEXITED(rc));
    return WEXITSTATUS(rc);
}

static int run(const char *args) { return run_with(args, true); }

static json_t *fit_json(const char *args, int *status) {
    char all[900];
    json_t *j;
    snprintf(all, sizeof all, "%s --json", args);
    *status = run_with(all, false);
    if (!(j = json_loads(out, JSON_REJECT_DUPLICATES, NULL))) fail_msg("fit %s: %s", args, run(all) < 0 ? "" : out);
    return j;
}

static uint64_t num(const json_t *j, const char *key) {
    json_t *v = json_object_get(j, key);
    if (!json_is_integer(v)) fail_msg("no number '%s'", key);
    return (uint64_t)json_integer_value(v);
}

static uint64_t num_at(const json_t *j, const char *key, size_t i) {
    json_t *v = json_array_get(json_object_get(j, key), i);
    if (!json_is_integer(v)) fail_msg("no number '%s'[%zu]", key, i);
    return (uint64_t)json_integer_value(v);
}

static const char *str(const json_t *j, const char *key) { return json_string_value(json_object_get(j, key)); }

static const json_t *scheme(const json_t *j, const char *name) {
    const json_t *list = json_object_get(j, "schemes");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(str(json_array_get(list, i), "kv_type"), name)) return json_array_get(list, i);
    fail_msg("no scheme %s", name);
    return NULL;
}

/* ---- arguments ---- */

static void wrong_arguments(void **state) {
    static const char *const usage[] = {"", "$W $G", "$W --rows x", "$W --rows -1", "$W --rows 0", "$W --rows 4097", "$W --ctx", "$W --ctx 1.5",
                                        "$W --kv-type q5", "$W --kv-type q8,", "$W --kv-budget lots", "$W --kv-budget -1",
                                        "$W --memory 1X", "$W --threads 257", "$W --isa abacus", "$W --what", "$W --json=1x --rows"};
    static const char *const failed[] = {"/nonexistent", "script:/nonexistent", "$W --ctx 1", "$W --page-tokens 3",
                                         "$W --page-tokens 8192", "$W --step-tokens 65537", "$W --max-rows 4097",
                                         "/dev/null"};
    (void)state;
    for (size_t i = 0; i < sizeof usage / sizeof *usage; i++)
        if (run(usage[i]) != 64 || !strstr(out, i ? "heddle: " : "usage: ")) fail_msg("'%s': %s", usage[i], out);
    for (size_t i = 0; i < sizeof failed / sizeof *failed; i++)
        if (run(failed[i]) != 1 || !strstr(out, "heddle: ")) fail_msg("'%s': %s", failed[i], out);
}

/* What loading refuses, fit refuses too. */
static void files_that_do_not_load(void **state) {
    gguf_edit e = {.drop_key = "llama.block_count"};
    (void)state;
    gguf_edit_copy(wide_path, other_path, &e);
    assert_int_equal(run("$O"), 1);
    assert_non_null(strstr(out, "llama.block_count"));
    e = (gguf_edit){.keys = {{"llama.block_count", GGUF_U32, 5, NULL}}};
    gguf_edit_copy(wide_path, other_path, &e);
    assert_int_equal(run("$O"), 1);
    assert_non_null(strstr(out, "blk.4.attn_norm.weight"));
    e = (gguf_edit){.keys = {{"llama.block_count", GGUF_U32, 3, NULL}}};
    gguf_edit_copy(wide_path, other_path, &e);
    assert_int_equal(run("$O"), 1);
    assert_non_null(strstr(out, "blk.3."));
    e = (gguf_edit){.turn_tensor = "blk.1.ffn_up.weight"};
    gguf_edit_copy(wide_path, other_path, &e);
    assert_int_equal(run("$O"), 1);
    assert_non_null(strstr(out, "blk.1.ffn_up.weight"));
}

/* Opened for its sizes, a model says so instead of running. */
static void sizes_do_not_run(void **state) {
    const model_options mo = {.n_threads = 1, .sizes_only = true};
    const engine_options eo = {.kv_budget_bytes = 1 << 24};
    model *m;
    engine *e = NULL;
    hd_err err;
    (void)state;
    if (model_open(&m, wide_path, &mo, &err)) fail_msg("%s", err.msg);
    assert_int_equal(engine_open(&e, m, &eo, &err), HD_INVALID);
    assert_non_null(strstr(err.msg, "without its weights"));
    assert_null(e);
    model_close(m);
}

/* Neither the file's pages nor packed weights come into memory. */
static void weights_are_not_read(void **state) {
    uint64_t weights;
    struct rusage ru;
    json_t *j;
    pid_t pid;
    int rc;
    (void)state;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    print_message("skipped: the sanitizer's own memory is larger than the model\n");
    skip();
#endif
    assert_int_equal(tiny_model_write(&heavy, NULL, other_path), 0);
    j = fit_json("$O", &rc);
    assert_int_equal(rc, 0);
    weights = num(j, "weight_bytes");
    assert_true(weights > 70 << 20);
    assert_true(num(j, "file_bytes") >= weights);
    json_decref(j);
    if (!(pid = fork())) {
        if (!freopen("/dev/null", "w", stdout)) _exit(98);
        execl(HEDDLE_BIN, HEDDLE_BIN, "fit", other_path, (char *)NULL);
        _exit(99);
    }
    assert_int_equal(wait4(pid, &rc, 0, &ru), pid);
    assert_int_equal(rc, 0);
    print_message("heavy: %ld KiB resident at most, %llu KiB of weights\n", ru.ru_maxrss, (unsigned long long)weights / 1024);
    assert_true((uint64_t)ru.ru_maxrss * 1024 < weights / 2);
}

/* ---- numbers ---- */

static uint64_t up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static void numbers(void **state) {
    static const struct {
        const char *name;
        uint64_t bytes; /* of 32 values: docs/kv.md */
    } kv[] = {{"f16", 64}, {"f32", 128}, {"bf16", 64}, {"q8", 34}, {"q4", 18}};
    json_t *j, *g;
    int rc;
    (void)state;
    j = fit_json("$W --page-tokens 64 --kv-budget 10M", &rc);
    assert_int_equal(num(j, "context_train"), 512);
    assert_int_equal(num(j, "layers"), 4);
    /* q, k, v, o: 128 x 512; gate, up, down: 128 x 128; the embedding of 320, which is the head too; f32. */
    assert_int_equal(num(j, "weight_bytes"), (4 * (4 * 128 * 512 + 3 * 128 * 128) + 320 * 128) * 4);
    assert_int_equal(num(j, "vector_bytes"), (4 * 2 + 1) * 128 * 4);
    assert_int_equal(num(j, "mapped_bytes"), 320 * 128 * 4);
    assert_int_equal(num(j, "kv_budget_bytes"), 10 << 20);
    for (size_t i = 0; i < sizeof kv / sizeof *kv; i++) {
        const json_t *s = scheme(j, kv[i].name);
        uint64_t token = 4096 / 32 * kv[i].bytes, page = up(64 * token, 4096);
        assert_int_equal(num_at(s, "bytes_per_token", 0), token);
        assert_int_equal(num_at(s, "page_bytes", 0), page);
        assert_int_equal(num(s, "row_bytes"), 8 * page);
        assert_int_equal(num(s, "rows_that_fit"), (10 << 20) / (8 * page));
        assert_int_equal(num(s, "largest_context"), (10 << 20) / page >= 8 ? 512 : (10 << 20) / page * 64);
    }
    assert_int_equal(num(j, "total_bytes"), num(j, "fixed_bytes") + (10 << 20));
    assert_int_equal(num(j, "fixed_bytes"), num(j, "weight_bytes") + num(j, "vector_bytes") + num(j, "workspace_bytes") +
                                                num(j, "table_bytes") + num(j, "program_bytes"));
    assert_int_equal(num(j, "left_bytes"), num(j, "memory_limit_bytes") - num(j, "fixed_bytes"));
    assert_int_equal(num(j, "kv_budget_default_bytes"), (num(j, "memory_limit_bytes") - num(j, "weight_bytes")) / 2);
    json_decref(j);
    /* Two groups of two layers; a row of 512 holds 8 pages of full attention, and of the other what 64 positions and a step of
     * 64 can touch: 128 positions, in 3 pages. */
    j = fit_json("$G --page-tokens 64 --step-tokens 64 --kv-type f16,q8", &rc);
    g = json_object_get(j, "groups");
    assert_int_equal(json_array_size(g), 2);
    assert_int_equal(num(json_array_get(g, 0), "layers"), 2);
    assert_int_equal(num(json_array_get(g, 0), "window"), 0);
    assert_int_equal(num(json_array_get(g, 1), "layers"), 2);
    assert_int_equal(num(json_array_get(g, 1), "window"), 64);
    assert_int_equal(num_at(j, "bytes_per_token", 0), 2048 / 32 * 64);
    assert_int_equal(num_at(j, "bytes_per_token", 1), 2048 / 32 * 34);
    assert_int_equal(num(j, "row_bytes"), 8 * (64 * 4096) + 3 * up(64 * 2176, 4096));
    json_decref(j);
    /* A page that is not whole pages of the system takes whole ones: 8 x 4352 bytes. */
    j = fit_json("$W --page-tokens 8 --kv-type q8", &rc);
    assert_int_equal(num_at(j, "page_bytes", 0), 9 * 4096);
    assert_int_equal(num(j, "row_bytes"), 64 * 9 * 4096);
    json_decref(j);
    /* One token is no context. */
    j = fit_json("$W --page-tokens 1 --kv-budget 8K", &rc);
    assert_int_equal(rc, 1);
    assert_int_equal(num(j, "largest_context"), 0);
    json_decref(j);
    /* The scripted model: 1 KiB a token (DESIGN: accounted), no weights. */
    j = fit_json("$S --page-tokens 64 --kv-budget 1M", &rc);
    assert_int_equal(rc, 0);
    assert_int_equal(num(j, "weight_bytes"), 0);
    assert_int_equal(num_at(j, "bytes_per_token", 0), 1024);
    assert_int_equal(num(j, "largest_context"), 1000);
    assert_int_equal(num(j, "rows_that_fit"), 1);
    json_decref(j);
}

/* What one more of something adds to a number, with the options of both. */
static uint64_t more(const char *key, const char *with, const char *without) {
    int rc;
    json_t *a = fit_json(with, &rc), *b = fit_json(without, &rc);
    uint64_t x = num(a, key), y = num(b, key);
    assert_true(x >= y);
    json_decref(a);
    json_decref(b);
    return x - y;
}

/* Tables are no less than what the documents say that they hold (docs/execution.md, cache.md, state.md): a session's 256 records and 64
 * KiB of text, twice; the tokens of who waits, and of who runs once more; the tokens of every page in the tree. */
static void tables(void **state) {
    uint64_t pages = (64 << 20) / (64 * 8192), one;
    int rc;
    json_t *j;
    (void)state;
    one = more("table_bytes", "$W --kv-budget 64M --max-rows 17", "$W --kv-budget 64M --max-rows 16");
    assert_in_range(one, 2 * (64 << 10) + 256 * 160, 400 << 10);
    one = more("table_bytes", "$W --kv-budget 64M --max-queued 1256", "$W --kv-budget 64M --max-queued 256") / 1000;
    assert_in_range(one, 512 * 4 + 200, 512 * 4 + 3000);
    one = more("table_bytes", "$W --kv-budget 64M --max-queued 1 --max-rows 4 --ctx 512", "$W --kv-budget 64M --max-queued 1 --max-rows 4 --ctx 128");
    assert_in_range(one, (1 + 4 + 4) * 384 * 4, 3 * (1 + 4 + 4) * 384 * 4);
    /* A budget of one row has no room for more, however many may run: 1 + 16 prompts, and two rows at most. */
    one = more("table_bytes", "$W --kv-budget 4M --max-queued 1 --ctx 512", "$W --kv-budget 4M --max-queued 1 --ctx 512 --no-cache");
    assert_true(one > 0);
    {
        const uint64_t prompts = 17 * 384 * 4;
        one = more("table_bytes", "$W --kv-budget 4M --max-queued 1 --ctx 512 --no-cache", "$W --kv-budget 4M --max-queued 1 --ctx 128 --no-cache");
        /* 1024 tokens in 8 + 8 pages for two rows of 512, 640 in 2 x 5 for the five of 128 that one such row's room holds too */
        assert_in_range(one, prompts + (1024 - 640) * 8, prompts + 3 * 384 * 8);
    }
    one = more("table_bytes", "$W --kv-budget 64M --page-tokens 64", "$W --kv-budget 64M --page-tokens 64 --no-cache") / pages;
    assert_in_range(one, 64 * 4 + 100, 64 * 4 + 700);
    one = more("program_bytes", "$W --threads 64", "$W --threads 2") / 62;
    assert_in_range(one, 16 << 10, 256 << 10);
    /* The disk tier: its queue is 64 MiB. */
    j = fit_json("$W --kv-budget 64M", &rc);
    assert_int_equal(num(j, "store_bytes"), 0);
    assert_int_equal(num(j, "serving_log_bytes"), 0);
    json_decref(j);
    one = more("total_bytes", "$W --kv-budget 64M --state-dir /nowhere", "$W --kv-budget 64M");
    assert_in_range(one, 64 << 20, 128 << 20);
    j = fit_json("$W --kv-budget 64M --state-dir /nowhere", &rc);
    assert_in_range(num(j, "store_bytes"), one - (1 << 20), one + (1 << 20)); /* "program" is measured each time */
    /* Packed weights: pieces of 2 MiB behind a head of one. */
    assert_int_equal(num(j, "packed_file_bytes"), ((num(j, "weight_bytes") + (2 << 20) - 1) / (2 << 20) + 1) * (2 << 20));
    assert_true(num(j, "serving_log_bytes") >= 8 << 20); /* two queues of 4 MiB */
    json_decref(j);
    /* What clients may cause follows what they are allowed. */
    j = fit_json("$W --max-body 1M --max-replies 2M --max-connections 10 --max-queued 4", &rc);
    assert_int_equal(num(j, "serving_body_bytes"), 8 << 20);
    assert_int_equal(num(j, "serving_reply_bytes"), 8 << 20);
    assert_in_range(num(j, "serving_connection_bytes"), 10 * (3 * 64 << 10), 100 * (512 << 10));
    assert_true(num(j, "serving_planner_bytes") >= 1 << 20);
    assert_true(num(j, "serving_request_bytes") >= 20 * (2 * (64 << 10)));
    assert_int_equal(num(j, "serving_total_bytes"),
                     num(j, "serving_body_bytes") + num(j, "serving_reply_bytes") + num(j, "serving_connection_bytes") +
                         num(j, "serving_planner_bytes") + num(j, "serving_request_bytes") + num(j, "serving_log_bytes"));
    json_decref(j);
}

/* Pages that are no whole pages of the system: a token of the scripted model has 1024 bytes, a page of two takes 4096. */
static void small_pages(void **state) {
    json_t *j;
    int rc;
    uint64_t one;
    (void)state;
    j = fit_json("$S --page-tokens 2 --kv-budget 10M", &rc);
    assert_int_equal(num_at(j, "bytes_per_token", 0), 1024);
    assert_int_equal(num(j, "row_bytes"), 500 * 4096); /* 1000 tokens */
    assert_int_equal(num(j, "rows_that_fit"), (10 << 20) / (500 * 4096));
    json_decref(j);
    /* A list of free pages and one of dry ones, 4 bytes a page. */
    one = more("table_bytes", "$W --no-cache --page-tokens 1 --kv-type q4 --kv-budget 128M", "$W --no-cache --page-tokens 1 --kv-type q4 --kv-budget 64M");
    assert_in_range(one, 16384 * 8, 16384 * 16);
}

/* What a sampler sorts grows with the vocabulary: an id and a weight for each token, at least. */
static void large_vocabulary(void **state) {
    enum { N = 30000 };
    char args[100];
    FILE *f = fopen(other_path, "w");
    (void)state;
    assert_non_null(f);
    fprintf(f, "{\"vocab\":[\"</s>\"");
    for (int i = 1; i < N; i++) fprintf(f, ",\"w%d\"", i);
    fprintf(f, "],\"special\":{\"eos\":[0]},\"context\":1000,\"default\":{\"emit\":[1]}}");
    assert_int_equal(fclose(f), 0);
    snprintf(args, sizeof args, "script:%s --kv-budget 1M", other_path);
    assert_in_range(more("table_bytes", args, "$S --kv-budget 1M"), N * 8, N * 64);
}

/* ---- what clients may cause ---- */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { MEMORY_SHOWS = 0 }; /* the sanitizer's own hides it */
#else
enum { MEMORY_SHOWS = 1 };
#endif

/* In a process of its own: how far `work` raises what is resident.  n bytes of text, each touched before. */
static uint64_t peak_of(void (*work)(const char *text, size_t n), const char *pattern, size_t n) {
    uint64_t grown = 0;
    int fds[2], rc;
    pid_t pid;
    assert_int_equal(pipe(fds), 0);
    if (!(pid = fork())) {
        struct rusage before, after;
        char *text = malloc(n + 1);
        for (size_t i = 0, k = strlen(pattern); i <= n; i++) text[i] = i < n ? pattern[i % k] : 0;
        getrusage(RUSAGE_SELF, &before);
        work(text, n);
        getrusage(RUSAGE_SELF, &after);
        grown = (uint64_t)(after.ru_maxrss - before.ru_maxrss) * 1024;
        _exit(write(fds[1], &grown, sizeof grown) == sizeof grown ? 0 : 1);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &grown, sizeof grown), sizeof grown);
    close(fds[0]);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    return grown;
}

static void tokenise(const char *text, size_t n) {
    const model_options mo = {.n_threads = 1, .sizes_only = true};
    model *m;
    id_list ids;
    hd_err err;
    if (model_open(&m, wide_path, &mo, &err)) _exit(1);
    id_list_init(&ids, SIZE_MAX / 8);
    if (tokenizer_encode(model_get(m)->tok, text, n, 0, &ids, &err)) _exit(1);
}

/* So many bytes of an array of empty objects. */
static void parse(const char *text, size_t n) {
    char *s = (char *)(uintptr_t)text;
    for (size_t i = 3; i < n; i++) s[i] = ",{}"[i % 3];
    s[n - n % 3] = ']';
    if (!json_loadb(s, n - n % 3 + 1, 0, NULL)) _exit(1);
}

/* The peak of reading a body against what is declared for it, by slopes: two sizes, so that nothing constant counts. */
static void serving(void **state) {
    const uint64_t mib = 1 << 20;
    uint64_t declared, seen;
    gguf_edit e = {.keys = {{"tokenizer.chat_template", GGUF_STRING, 0, "{{ messages[0].content }}"}}};
    (void)state;
    /* A planner at a time has a large body. */
    declared = more("serving_planner_bytes", "$W --max-body 12M", "$W --max-body 4M");
    if (MEMORY_SHOWS) {
        seen = peak_of(tokenise, "a", 12 * mib) - peak_of(tokenise, "a", 4 * mib);
        print_message("tokenising: %.1f bytes for a byte, %.1f declared\n", (double)seen / (8 * mib), (double)declared / (8 * mib));
        assert_true(seen > 8 * mib);
        assert_in_range(declared, seen + 2 * 8 * mib, 4 * seen + 2 * 8 * mib); /* the body, and its text in the tree, too */
    }
    /* Both may have a small one, with values alone: "{},{},...", the dearest for their bytes. */
    declared = more("serving_planner_bytes", "$W --max-body 768K", "$W --max-body 256K");
    if (MEMORY_SHOWS) {
        seen = peak_of(parse, "[{}", mib) - peak_of(parse, "[{}", mib / 2);
        print_message("parsing: %.1f bytes for a byte, %.1f declared\n", (double)seen / (mib / 2), (double)declared / mib);
        assert_true(seen > 10 * mib);
        assert_in_range(declared / 2, seen + 2 * mib / 2, 4 * seen);
    }
    /* A template may hold 64 MiB and write 16, for each planner (docs/templates.md). */
    gguf_edit_copy(wide_path, other_path, &e);
    assert_in_range(more("serving_planner_bytes", "$O", "$W"), 2 * 80 * mib, 2 * 100 * mib);
    /* The log keeps up to 128 KiB of each choice that runs or waits; a record is written whole by each planner. */
    assert_in_range(more("serving_log_bytes", "$W --state-dir /nowhere --max-queued 116", "$W --state-dir /nowhere --max-queued 16"),
                    100 * (128 << 10), 200 * (128 << 10));
    assert_in_range(more("serving_log_bytes", "$W --state-dir /nowhere --max-body 9M", "$W --state-dir /nowhere --max-body 8M"), 2 * mib, 8 * mib);
    /* Each place in rows and queue can be taken, however small bodies are: two queues of 64 KiB. */
    {
        int rc;
        json_t *j = fit_json("$W --max-body 64K --max-queued 84 --max-rows 16", &rc);
        assert_in_range(num(j, "serving_request_bytes"), 100 * (2 * 64 << 10), 100 * (2 * 64 << 10) + 64 * mib);
        json_decref(j);
    }
}

/* ---- verdicts ---- */

/* "fits_with": each piece of advice, taken alone, makes it fit. */
static void check_advice(const char *args, size_t at_least) {
    int rc;
    json_t *j = fit_json(args, &rc);
    const json_t *advice = json_object_get(j, "advice");
    assert_string_equal(str(j, "verdict"), "fits_with");
    assert_true(json_array_size(advice) >= at_least);
    for (size_t i = 0; i < json_array_size(advice); i++) {
        char more[400];
        int rc2;
        json_t *k;
        snprintf(more, sizeof more, "%s %s", args, json_string_value(json_array_get(advice, i)));
        k = fit_json(more, &rc2);
        if (rc2 || strcmp(str(k, "verdict"), "fits")) fail_msg("%s: %s", more, out);
        json_decref(k);
    }
    json_decref(j);
}

static void verdicts(void **state) {
    json_t *j;
    int rc;
    (void)state;
    assert_int_equal(run("$W"), 0);
    assert_non_null(strstr(out, "1 row of 512 tokens: fits\n"));
    assert_int_equal(run("$W --kv-budget 64M --ctx 512 --rows 16"), 0); /* 16 rows of 4 MiB: to the byte */
    assert_int_equal(run("$W --kv-budget 64M --ctx 512 --rows 17"), 1);
    check_advice("$W --page-tokens 64 --kv-budget 64M --ctx 512 --rows 17", 5); /* context, q8, q4, rows, budget */
    check_advice("$W --page-tokens 64 --kv-budget 64M --rows 40", 4);           /* q8 does not do */
    check_advice("$G --page-tokens 64 --kv-budget 2M --ctx 512 --rows 2", 3);
    check_advice("$W --page-tokens 64 --ctx 513", 1);
    check_advice("$W --page-tokens 64 --memory 64M --kv-budget 64M --rows 2", 1); /* a budget beyond the limit */
    check_advice("$S --page-tokens 64 --kv-budget 500K --ctx 1000", 2);
    assert_int_equal(run("$W --ctx 513"), 1);
    assert_non_null(strstr(out, "own context is 512"));
    /* Nothing was asked for: the engine takes what it can have. */
    assert_int_equal(run("$W --page-tokens 64 --kv-budget 3M"), 0);
    assert_non_null(strstr(out, "fits with --ctx 384"));
    assert_non_null(strstr(out, "a context of 384"));
    assert_int_equal(run("$W --page-tokens 64 --kv-budget 3M --ctx 512"), 1);
    j = fit_json("$W --memory 1M", &rc); /* less than the weights */
    assert_int_equal(rc, 1);
    assert_string_equal(str(j, "verdict"), "does_not_fit");
    assert_int_equal(json_array_size(json_object_get(j, "advice")), 0);
    assert_int_equal(num(j, "left_bytes"), 0);
    assert_true(json_is_false(json_object_get(j, "runs")));
    json_decref(j);
    assert_int_equal(run("$W --memory 1M"), 1);
    assert_non_null(strstr(out, "does not fit"));
    assert_non_null(strstr(out, "as asked it does not run"));
    /* What clients of a server can take: said where it does not count, counted where that is asked for. */
    assert_int_equal(run("$W --memory 300M"), 0);
    assert_non_null(strstr(out, "not counted: what clients can take"));
    assert_non_null(strstr(out, "more than is left"));
    assert_int_equal(run("$W --memory 300M --serving"), 1);
    assert_non_null(strstr(out, "a smaller --max-body"));
    assert_null(strstr(out, "not counted"));
    assert_int_equal(run("$W --memory 300M --serving --kv-budget 16M --max-body 256K --max-replies 2M --max-connections 16"), 0);
    j = fit_json("$W --memory 16G --kv-budget 16M --serving", &rc);
    assert_int_equal(rc, 0);
    assert_true(json_is_true(json_object_get(j, "serving_counted")));
    assert_int_equal(num(j, "fixed_bytes"), num(j, "weight_bytes") + num(j, "vector_bytes") + num(j, "workspace_bytes") + num(j, "table_bytes") +
                                                num(j, "store_bytes") + num(j, "program_bytes") + num(j, "serving_total_bytes"));
    json_decref(j);
}

/* ---- against a real engine ---- */

typedef struct {
    char error[400];
    uint32_t running, waiting, ctx;
    bool waits_for_pages, longest_taken, longer_refused;
    uint64_t peak, budget, weights;
} reality;

typedef struct {
    const char *path;
    engine_options eo;
    uint32_t rows;     /* so many are admitted, one more waits */
    uint32_t n_prompt, n_more;
} filling;

static void sample(reality *r) {
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[200];
    unsigned long long kib;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %llu kB", &kib) == 1 && kib * 1024 > r->peak) r->peak = kib * 1024;
    if (f) fclose(f);
}

static bool rows_stand_still(engine *e) {
    row_view rows[64];
    engine_view v = {.rows = rows, .cap_rows = 64};
    engine_look(e, &v);
    for (uint32_t i = 0; i < v.n_rows; i++)
        if (rows[i].phase != ROW_PAUSED) return false;
    return v.n_rows > 0;
}

static hd_status fill(engine *e, const filling *f, reality *r, hd_err *err) {
    uint32_t n = f->rows + 1;
    gen_request rq[65] = {0};
    session *s[65];
    bool done[65] = {false};
    row_view queue[1];
    engine_view v = {.queue = queue, .cap_queue = 1};
    int32_t *ids = hd_reallocarray(NULL, (size_t)n * f->n_prompt, sizeof *ids);
    hd_status st;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < f->n_prompt; k++) ids[i * f->n_prompt + k] = (int32_t)(33 + (k ? k * 7 % 200 : i)); /* none share */
        rq[i] = (gen_request){.id = "", .prompt = ids + i * f->n_prompt, .n_prompt = f->n_prompt, .max_tokens = f->n_more, .ignore_eos = true};
        sampling_defaults(&rq[i].sampling);
        rq[i].sampling.temperature = 0;
    }
    st = engine_submit(e, rq, n, NULL, NULL, s, err);
    hd_free(ids);
    if (st) return st;
    for (int i = 0; i < 5000 && !(v.running && v.running + v.waiting == n); i++) engine_look(e, &v), usleep(1000);
    r->running = v.running;
    r->waiting = v.waiting;
    r->waits_for_pages = v.n_queue && queue[0].wait_reason && !strcmp(queue[0].wait_reason, "pages");
    /* Nobody reads: rows with more to say than a session holds stand still with their pages. */
    for (int i = 0; i < 6000 && f->n_more > 256 && !rows_stand_still(e); i++) sample(r), usleep(5000);
    for (uint32_t left = n, turn = 0; left; turn++) {
        for (uint32_t i = 0; i < n; i++) {
            gen_event ev;
            for (session_next(s[i], &ev); ev.kind != EV_NONE && !done[i]; session_next(s[i], &ev)) {
                if (ev.kind != EV_DONE) continue;
                done[i] = true;
                left--;
                if (ev.finish != FINISH_LENGTH) st = HD_FAILED, *err = ev.err;
            }
        }
        if (turn % 4 == 0) sample(r);
        usleep(2000);
    }
    sample(r);
    for (uint32_t i = 0; i < n; i++) session_free(s[i]);
    return st;
}

/* A prompt as long as the context is read; one token more can never be. */
static void try_longest(engine *e, uint32_t ctx, reality *r) {
    int32_t *ids = hd_calloc(ctx + 1, sizeof *ids);
    gen_request rq = {.id = "", .prompt = ids, .n_prompt = ctx, .max_tokens = 0};
    gen_event ev;
    session *s;
    hd_err err;
    for (uint32_t k = 0; k <= ctx; k++) ids[k] = (int32_t)(40 + k % 150);
    sampling_defaults(&rq.sampling);
    if (!engine_submit(e, &rq, 1, NULL, NULL, &s, &err)) {
        for (session_wait(s, &ev, 60000000); ev.kind != EV_NONE && ev.kind != EV_DONE;) session_wait(s, &ev, 60000000);
        r->longest_taken = ev.kind == EV_DONE && ev.finish == FINISH_LENGTH;
        session_free(s);
    }
    rq.n_prompt = ctx + 1;
    if (engine_submit(e, &rq, 1, NULL, NULL, &s, &err)) r->longer_refused = err.code == HD_NEVER_FITS;
    else session_free(s);
    hd_free(ids);
}

static void be_real(const filling *f, reality *r) {
    const model_options mo = {.n_threads = 2};
    engine_view v = {0};
    model *m;
    engine *e = NULL;
    hd_err err;
    if (model_open(&m, f->path, &mo, &err) || engine_open(&e, m, &f->eo, &err) || (f->rows && fill(e, f, r, &err))) {
        snprintf(r->error, sizeof r->error, "%s", err.msg);
        return;
    }
    engine_look(e, &v);
    r->ctx = v.ctx;
    r->budget = v.kv_bytes_total;
    r->weights = model_get(m)->weight_bytes;
    try_longest(e, v.ctx, r);
    engine_close(e);
    model_close(m);
}

/* In a process of its own, whose memory is only that. */
static reality really(const filling *f) {
    reality r = {0};
    int fds[2], rc;
    pid_t pid;
    assert_int_equal(pipe(fds), 0);
    if (!(pid = fork())) {
        be_real(f, &r);
        _exit(write(fds[1], &r, sizeof r) == sizeof r ? 0 : 1);
    }
    close(fds[1]);
    if (read(fds[0], &r, sizeof r) != sizeof r) fail_msg("the process that was to be measured died");
    close(fds[0]);
    assert_int_equal(waitpid(pid, &rc, 0), pid);
    if (r.error[0]) fail_msg("%s", r.error);
    return r;
}

static const char *kv_args(const engine_options *o, char text[200]) {
    snprintf(text, 200, "--threads 2 --kv-budget %llu --page-tokens %u --step-tokens %u --max-rows %u --ctx %u --kv-type %s,%s",
             (unsigned long long)o->kv_budget_bytes, o->page_tokens, o->step_tokens, o->max_rows, o->ctx, kv_scheme_name(o->kv_type),
             kv_scheme_name(o->kv_type_sliding ? o->kv_type_sliding : o->kv_type));
    return text;
}

static void check_filled(const char *path, engine_options eo, uint32_t n_prompt, uint32_t n_more) {
    char args[400], more[200];
    filling f = {.path = path, .eo = eo, .n_prompt = n_prompt, .n_more = n_more};
    uint64_t total;
    reality r;
    json_t *j;
    int rc;
    snprintf(args, sizeof args, "%s %s", path, kv_args(&eo, more));
    j = fit_json(args, &rc);
    assert_int_equal(rc, 0);
    total = num(j, "total_bytes");
    f.rows = (uint32_t)num(j, "rows_that_fit");
    assert_in_range(f.rows, 2, eo.max_rows - 1); /* pages are what one more lacks, not rows */
    r = really(&f);
    print_message("%s: fit says %.1f MiB, %u rows; %.1f MiB were seen (%.0f %%)\n", strrchr(path, '/') + 1, (double)total / (1 << 20),
                  f.rows, (double)r.peak / (1 << 20), 100.0 * (double)r.peak / (double)total);
    assert_int_equal(r.weights, num(j, "weight_bytes"));
    assert_int_equal(r.budget, num(j, "kv_budget_bytes"));
    assert_int_equal(r.running, f.rows);
    assert_int_equal(r.waiting, 1);
    assert_true(r.waits_for_pages);
    assert_true(r.longest_taken && r.longer_refused);
    json_decref(j);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    assert_true(r.peak <= total);
    assert_true(r.peak >= total / 5 * 4);
#endif
}

static void check_longest(const char *path, engine_options eo) {
    char args[400], more[200];
    filling f = {.path = path, .eo = eo};
    reality r;
    json_t *j;
    int rc;
    snprintf(args, sizeof args, "%s %s", path, kv_args(&eo, more));
    j = fit_json(args, &rc);
    r = really(&f);
    assert_int_equal(r.ctx, num(j, "largest_context"));
    assert_true(r.longest_taken && r.longer_refused);
    json_decref(j);
}

static void filled(void **state) {
    (void)state;
    check_filled(wide_path, (engine_options){.kv_budget_bytes = 100 << 20, .page_tokens = 64, .step_tokens = 64, .max_rows = 14, .ctx = 512,
                                             .kv_type = KV_F32}, 200, 312);
    check_filled(windows_path, (engine_options){.kv_budget_bytes = 66 << 20, .page_tokens = 32, .step_tokens = 64, .max_rows = 14,
                                                .ctx = 512, .kv_type = KV_F32}, 200, 312);
}

static void longest(void **state) {
    static const kv_scheme kinds[] = {KV_F16, KV_F32, KV_BF16, KV_Q8, KV_Q4};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        engine_options eo = {.kv_budget_bytes = 1500 << 10, .page_tokens = 16, .step_tokens = 64, .max_rows = 4, .ctx = 512, .kv_type = kinds[i]};
        check_longest(wide_path, eo);
        eo.kv_type_sliding = KV_F16;
        check_longest(windows_path, eo);
    }
}

static void demo_model(void **state) {
    const char *path = getenv("HEDDLE_TEST_MODEL");
    (void)state;
    if (!path || !*path) {
        print_message("skipped: HEDDLE_TEST_MODEL does not name a model\n");
        skip();
    }
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    print_message("skipped: filling the demo model takes minutes under a sanitizer, whose own memory hides what is measured\n");
    skip();
#endif
    check_filled(path, (engine_options){.kv_budget_bytes = 68 << 20, .page_tokens = 64, .step_tokens = 256, .max_rows = 16, .ctx = 512,
                                        .kv_type = KV_F16}, 480, 32);
    check_filled(path, (engine_options){.kv_budget_bytes = 68 << 20, .page_tokens = 64, .step_tokens = 256, .max_rows = 16, .ctx = 512,
                                        .kv_type = KV_Q8}, 480, 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments), cmocka_unit_test(files_that_do_not_load), cmocka_unit_test(sizes_do_not_run),
        cmocka_unit_test(weights_are_not_read), cmocka_unit_test(numbers), cmocka_unit_test(tables), cmocka_unit_test(small_pages),
        cmocka_unit_test(large_vocabulary), cmocka_unit_test(serving), cmocka_unit_test(verdicts), cmocka_unit_test(longest),
        cmocka_unit_test(filled), cmocka_unit_test(demo_model),
    };
    return cmocka_run_group_tests_name("fit", tests, setup, teardown);
}
