/* test_tokenize_cli.c - `heddle tokenize` and `heddle detokenize`, run as programs on a vocabulary-only file; and what all
 * commands do with lists of lines and with scripted models. */
#include "util/vocab_spec.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char model[] = "/tmp/heddle-tok-XXXXXX", input[] = "/tmp/heddle-in-XXXXXX", second[] = "/tmp/heddle-in2-XXXXXX";
static char out[1 << 16];

static void write_file(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Exit status of `heddle ARGS`, with $M the model, $I and $J the input files; what it printed is in `out`. */
static int run(const char *args) {
    char cmd[1000];
    FILE *p;
    int rc;
    size_t n;
    snprintf(cmd, sizeof cmd, "M=%s; I=%s; J=%s; exec 2>&1; %s %s\n", model, input, second, HEDDLE_BIN, args);
    p = popen(cmd, "r");
    assert_non_null(p);
    n = fread(out, 1, sizeof out - 1, p);
    out[n] = 0;
    rc = pclose(p);
    assert_true(WIFEXITED(rc));
    return WEXITSTATUS(rc);
}

static void expect(const char *args, const char *want) {
    int rc = run(args);
    if (rc) fail_msg("'%s' exits %d: %s", args, rc, out);
    assert_string_equal(out, want);
}

static void texts(void **state) {
    (void)state;
    expect("tokenize $M --text 'abc a'", "4,6\n");
    expect("tokenize $M --text 'abc a' --json", "{\"ids\":[4,6]}\n");
    expect("tokenize $M --text '' --json", "{\"ids\":[]}\n");
    expect("tokenize $M --text ''", "\n");
    expect("tokenize $M --text '<|end|>' --special", "0\n");
    expect("tokenize $M --text '<|end|>'", "70,134,111,120,110,134,72\n");
    expect("tokenize $M --text a --bos", "1,107\n");
    expect("tokenize $M --text '<|user|>a' --bos --special", "1,107\n");
    write_file(input, "a\0b\xff\n", 5);
    expect("tokenize $M --file $I --json", "{\"ids\":[107,10,108,265,20]}\n");
    expect("tokenize $M --file - --json < $I", "{\"ids\":[107,10,108,265,20]}\n");
}

static void lines(void **state) {
    static const char in[] = "{\"text\":\"abc\"}\n"
                             "{\"hex\":\"61ff\"}\n"
                             "nonsense\n"
                             "\n"
                             "{\"hex\":\"6\"}\n"
                             "{\"text\":1}\n"
                             "{\"text\":\"a\",\"hex\":\"61\"}\n"
                             "{\"text\":\"\\u0000\\u2028\"}\n"
                             "[1]\n"
                             "{\"text\":\"\xff\"}\n"
                             "{\"text\":\"ab\"}";
    char *at = out;
    (void)state;
    write_file(input, in, sizeof in - 1);
    assert_int_equal(run("tokenize $M --jsonl $I"), 0);
    for (int i = 1; i <= 11; i++) {
        char want[60], *end = strchr(at, '\n');
        assert_non_null(end);
        *end = 0;
        if (i == 1)
            assert_string_equal(at, "{\"ids\":[4]}");
        else if (i == 2)
            assert_string_equal(at, "{\"ids\":[107,265]}");
        else if (i == 8)
            assert_string_equal(at, "{\"ids\":[10,236,138,178]}");
        else if (i == 11)
            assert_string_equal(at, "{\"ids\":[3]}");
        else {
            snprintf(want, sizeof want, "\"},\"line\":%d}", i);
            assert_true(!strncmp(at, "{\"error\":{\"message\":\"", 21) && strstr(at, want));
        }
        at = end + 1;
    }
    assert_string_equal(at, "");
    assert_int_equal(run("tokenize $M --jsonl - < $I"), 0);
    write_file(input, "", 0);
    expect("tokenize $M --jsonl $I", "");
}

static void back(void **state) {
    (void)state;
    expect("detokenize $M --ids 4,6", "abc a\n");
    expect("detokenize $M --ids ' 4, 6 '", "abc a\n");
    expect("detokenize $M --ids 0,4,2", "abc<tool>\n");
    expect("detokenize $M --ids 0,4 --special", "<|end|>abc\n");
    expect("detokenize $M --ids 265,20 --json", "{\"text\":\"\xef\xbf\xbd\\n\"}\n");
    expect("detokenize $M --ids ''", "\n");
    assert_int_equal(run("detokenize $M --ids 4,266"), 1);
    assert_non_null(strstr(out, "266"));
    assert_int_equal(run("detokenize $M --ids 4,x"), 1);
    assert_int_equal(run("detokenize $M --ids 4,"), 1);
    assert_int_equal(run("detokenize $M --ids 99999999999999999999"), 1);
}

static void wrong_usage(void **state) {
    static const char *const usage[] = {"tokenize",
                                        "tokenize $M",
                                        "tokenize --text a",
                                        "tokenize $M --text a --file $I",
                                        "tokenize $M --text",
                                        "tokenize $M --text a --nonsense",
                                        "tokenize $M $M --text a",
                                        "detokenize",
                                        "detokenize $M",
                                        "detokenize --ids 1",
                                        "detokenize $M --ids",
                                        "detokenize $M --ids 1 --text"};
    (void)state;
    for (size_t i = 0; i < sizeof usage / sizeof *usage; i++)
        if (run(usage[i]) != 64) fail_msg("'%s' is not refused as wrong usage: %s", usage[i], out);
    assert_int_equal(run("tokenize /nonexistent --text a"), 1);
    assert_int_equal(run("tokenize $M --file /nonexistent"), 1);
    assert_int_equal(run("tokenize $M --jsonl /nonexistent"), 1);
    assert_int_equal(run("tokenize $I --text a"), 1); /* no GGUF */
}

/* What is no list of lines: a device that never ends, a directory.  Said, in bounded time and memory, with status 1; a line
 * that is only too long costs itself. */
static void no_lines(void **state) {
    static const char script[] = "{\"vocab\":[\"</s>\",\"a\"],\"special\":{\"eos\":[0]},\"context\":9,\"default\":{\"emit\":[1]}}";
    static const char *const commands[] = {"tokenize $M --jsonl", "generate script:$I --batch-file", "render --jsonl"};
    (void)state;
    write_file(input, script, sizeof script - 1);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char args[100];
        snprintf(args, sizeof args, "%s /dev/zero", commands[i]);
        assert_int_equal(run(args), 1);
        assert_non_null(strstr(out, "/dev/zero: line 1 does not end within"));
        assert_non_null(strstr(out, "\"line\":1}"));
        assert_null(strstr(out, "\"line\":2}"));
        snprintf(args, sizeof args, "%s /tmp", commands[i]);
        assert_int_equal(run(args), 1);
        assert_non_null(strstr(out, "/tmp: cannot be read after line 0"));
    }
    assert_int_equal(run("tokenize $M --jsonl - < /tmp"), 1);
    {
        static const char next[] = "\n{\"text\":\"abc\"}";
        FILE *f = fopen(input, "wb");
        assert_non_null(f);
        assert_int_equal(fseek(f, 65 << 20, SEEK_SET), 0); /* a line of NULs, in a file with a hole */
        assert_int_equal(fwrite(next, 1, sizeof next - 1, f), sizeof next - 1);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(run("tokenize $M --jsonl $I"), 0);
    assert_string_equal(out, "{\"error\":{\"message\":\"the line is too long\"},\"line\":1}\n{\"ids\":[4]}\n");
}

/* render takes scripted models as every command does. */
static void scripted_templates(void **state) {
    static const char script[] = "{\"vocab\":[\"<s>\",\"</s>\",\"a\"],\"special\":{\"bos\":0,\"eos\":[1]},\"context\":9,"
                                 "\"template\":\"{{bos_token}}{{messages[0].content}}{{eos_token}}\",\"default\":{\"emit\":[2]}}";
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";
    static const char line[] = "{\"input\":{\"messages\":[{\"content\":\"x\"}]}}";
    (void)state;
    write_file(input, script, sizeof script - 1);
    write_file(second, talk, sizeof talk - 1);
    expect("render script:$I --messages $J", "<s>hi</s>");
    assert_int_equal(run("render script:/nonexistent --messages $J"), 1);
    assert_non_null(strstr(out, "/nonexistent: No such file"));
    assert_int_equal(run("render script:$M --messages $J"), 1);
    write_file(second, line, sizeof line - 1);
    expect("render script:$I --jsonl $J", "{\"text\":\"<s>x</s>\"}\n");
    if (!access("/dev/full", W_OK)) {
        assert_int_equal(run("render script:$I --jsonl $J > /dev/full"), 1);
        write_file(second, talk, sizeof talk - 1);
        assert_int_equal(run("render script:$I --messages $J > /dev/full"), 1);
    }
    assert_int_equal(run("inspect script:$I"), 1);
    assert_non_null(strstr(out, "scripted model"));
}

/* Text comes through a pipe as it is made, not by the buffer; where nobody takes it, it is not made.  200 letters a second,
 * for minutes. */
static void text_comes_at_once(void **state) {
    static const char script[] = "{\"vocab\":[\"</s>\",\"a\"],\"special\":{\"eos\":[0]},\"context\":100000,\"step_delay_ms\":5,"
                                 "\"rules\":[{\"match\":\"a\",\"emit\":[1],\"then\":\"loop\"}],\"default\":{\"emit\":[1]}}";
    char name[80];
    struct pollfd f = {.events = POLLIN};
    int fds[2], status;
    ssize_t n;
    pid_t pid;
    (void)state;
    write_file(input, script, sizeof script - 1);
    snprintf(name, sizeof name, "script:%s", input);
    assert_int_equal(pipe(fds), 0);
    if (!(pid = fork())) {
        dup2(fds[1], 1);
        close(fds[0]), close(fds[1]);
        execl(HEDDLE_BIN, "heddle", "generate", name, "--prompt", "a", (char *)NULL);
        _exit(99);
    }
    close(fds[1]);
    f.fd = fds[0];
    if (poll(&f, 1, 15000) != 1) kill(pid, SIGKILL);
    n = read(fds[0], out, sizeof out);
    kill(pid, SIGINT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(fds[0]);
    assert_true(n > 0 && n < 4096);
    for (ssize_t i = 0; i < n; i++) assert_int_equal(out[i], 'a');
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT); /* it was in the middle of it */
    if (!access("/dev/full", W_OK)) {
        time_t t = time(NULL);
        assert_int_equal(run("generate script:$I --prompt a -n 4000 > /dev/full"), 1);
        assert_true(time(NULL) - t < 12); /* 20 s to the end */
    }
    assert_int_equal(run("generate --help"), 0);
    assert_non_null(strstr(out, "until the end of the context"));
}

/* --help names what a command takes: its own, sampling where it samples, and what all that load a model share. */
static void help_names_the_options(void **state) {
    static const char *const shared[] = {"--threads", "--ctx", "--kv-budget", "--kv-type", "--step-tokens", "--step-ms", "--max-rows",
                                         "--page-tokens", "--no-cache", "--isa", "--state-dir", "--state-cap", "--state-key-file",
                                         "--pack-cache", "--pack-cap", "every command that loads a model"};
    static const char *const loading[] = {"serve", "run", "generate", "bench", "embed", "logits", "perplexity"};
    static const char *const sampling[] = {"--temperature", "--top-k", "--top-p", "--min-p", "--typical-p", "--repetition-penalty",
                                           "--presence-penalty", "--frequency-penalty", "--seed", "--stop", "--logprobs", "--ignore-eos"};
    (void)state;
    for (size_t i = 0; i < sizeof loading / sizeof *loading; i++) {
        char args[40];
        snprintf(args, sizeof args, "%s --help", loading[i]);
        assert_int_equal(run(args), 0);
        for (size_t k = 0; k < sizeof shared / sizeof *shared; k++)
            if (!strstr(out, shared[k])) fail_msg("%s does not name %s", args, shared[k]);
    }
    assert_int_equal(run("generate --help"), 0);
    for (size_t k = 0; k < sizeof sampling / sizeof *sampling; k++)
        if (!strstr(out, sampling[k])) fail_msg("generate does not name %s", sampling[k]);
    assert_int_equal(run("run --help"), 0);
    for (size_t k = 0; k < 4; k++) assert_non_null(strstr(out, sampling[k]));
    assert_non_null(strstr(out, "--seed"));
    assert_int_equal(run("serve --help"), 0);
    assert_non_null(strstr(out, "--pin-budget"));
}

/* 0 is no number of rows, pages or bytes: it is refused by the option's name, before a model is opened, and not taken for the
 * default.  Where 0 means something it is taken. */
static void zero_is_not_the_default(void **state) {
    static const char *const loading[] = {"serve", "run", "generate", "bench", "embed", "logits", "perplexity", "fit"};
    static const char *const shared[] = {"--kv-budget", "--step-tokens", "--step-ms", "--max-rows", "--page-tokens", "--state-cap", "--pack-cap"};
    static const char *const own[][2] = {{"fit", "--rows"}, {"fit", "--memory"}, {"fit", "--max-queued"}, {"fit", "--max-body"},
                                         {"fit", "--max-replies"}, {"fit", "--max-connections"}, {"fit", "--default-max-tokens"},
                                         {"serve", "--max-queued"}, {"serve", "--pin-budget"}, {"serve", "--default-max-tokens"},
                                         {"serve", "--max-body"}, {"serve", "--max-replies"}, {"serve", "--max-connections"},
                                         {"serve", "--log-cap"}, {"run", "-n"}, {"bench", "-n"}, {"generate", "--max-queued"},
                                         {"generate", "--default-max-tokens"}};
    static const char script[] = "{\"vocab\":[\"</s>\",\"a\"],\"special\":{\"eos\":[0]},\"context\":100,\"default\":{\"emit\":[1]}}";
    char args[200], want[80];
    (void)state;
    for (size_t i = 0; i < sizeof loading / sizeof *loading; i++)
        for (size_t k = 0; k < sizeof shared / sizeof *shared; k++) {
            snprintf(args, sizeof args, "%s /nowhere %s 0", loading[i], shared[k]);
            snprintf(want, sizeof want, "heddle: %s takes a ", shared[k]);
            if (run(args) != 64 || !strstr(out, want) || !strstr(out, "of at least 1")) fail_msg("%s: %s", args, out);
        }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        snprintf(args, sizeof args, "%s /nowhere %s 0", own[i][0], own[i][1]);
        snprintf(want, sizeof want, "heddle: %s takes a ", own[i][1]);
        if (run(args) != 64 || !strstr(out, want) || !strstr(out, "of at least 1")) fail_msg("%s: %s", args, out);
    }
    write_file(input, script, sizeof script - 1);
    expect("generate script:$I --prompt a -n 0 --threads 0 --ctx 0 --top-k 0 --min-p 0 --logprobs 0", "\n");
}

/* A budget below one page says what the least is; that much is enough. */
static void least_budget(void **state) {
    static const char script[] = "{\"vocab\":[\"</s>\",\"a\"],\"special\":{\"eos\":[0]},\"context\":100,\"default\":{\"emit\":[1]}}";
    unsigned long long least = 0;
    char args[100];
    const char *at;
    (void)state;
    write_file(input, script, sizeof script - 1);
    assert_int_equal(run("generate script:$I --prompt a -n 1 --page-tokens 16 --kv-budget 1"), 1);
    if (!(at = strstr(out, "kv-budget must be at least ")) || sscanf(at + 27, "%llu bytes for this model, not 1", &least) != 1) fail_msg("%s", out);
    assert_non_null(strstr(out, "one request needs a page of keys and values (16 tokens)"));
    assert_true(least >= 16 << 10); /* a token of a script takes 1 KiB */
    snprintf(args, sizeof args, "generate script:$I --prompt a -n 1 --page-tokens 16 --ctx 16 --kv-budget %llu", least);
    expect(args, "a\n");
    snprintf(args, sizeof args, "generate script:$I --prompt a -n 1 --page-tokens 16 --kv-budget %llu", least - 1);
    assert_int_equal(run(args), 1);
}

/* A prompt where a newcomer puts it, a name that is no file, a context that cannot be had: each is met with a word. */
static void first_steps(void **state) {
    static const char script[] = "{\"vocab\":[\"</s>\",\"a\"],\"special\":{\"eos\":[0]},\"context\":100,\"default\":{\"emit\":[1]}}";
    static const char warning[] = "heddle: warning: ";
    (void)state;
    write_file(input, script, sizeof script - 1);
    expect("run script:$I hello", "a\n");
    expect("run script:$I -p hello", "a\n");
    assert_int_equal(run("run script:$I hello -p hello"), 64);
    assert_int_equal(run("generate script:$I hello"), 64);
    assert_non_null(strstr(out, "a prompt is given with --prompt"));
    assert_int_equal(run("run SomeModel-7B hello"), 1);
    assert_non_null(strstr(out, "names of models are not known"));
    assert_int_equal(run("run ./nowhere.gguf hello"), 1);
    assert_null(strstr(out, "names of models"));
    assert_int_equal(run("generate script:$I --prompt a -n 1 --ctx 101"), 0);
    assert_non_null(strstr(out, "the model's own context is 100 tokens: no more of --ctx 101 is used"));
    assert_int_equal(run("generate script:$I --prompt a -n 1 --page-tokens 16 --kv-budget 64K"), 0);
    assert_non_null(strstr(out, "the context is 64 tokens, not 100: --kv-budget (64.0 KiB)"));
    assert_int_equal(run("generate script:$I --prompt a -n 1 --page-tokens 16 --kv-budget 64K --ctx 80"), 0);
    assert_non_null(strstr(out, "the context is 64 tokens, not 80"));
    assert_int_equal(run("generate script:$I --prompt a -n 1 --page-tokens 16 --kv-budget 64K --ctx 64"), 0);
    assert_null(strstr(out, warning));
    assert_int_equal(run("generate script:$I --prompt a -n 1"), 0);
    assert_null(strstr(out, warning));
    write_file(second, "aaaa", 4);
    assert_int_equal(run("perplexity script:$I $J"), 0); /* its 512 are no wish */
    assert_null(strstr(out, warning));
}

/* A question that does not fit is taken back, and what fits goes on; /clear begins anew and keeps the system's words. */
static void conversations(void **state) {
    /* The answer says which questions its prompt held: the template joins contents by a line break. */
    static const char script[] = "{\"vocab\":[\"</s>\",\"a\",\"sys only\",\"with one\"],\"special\":{\"eos\":[0]},\"context\":40,"
                                 "\"rules\":[{\"match\":\"one\",\"emit\":[3]},{\"match\":\"S\",\"emit\":[2]}],\"default\":{\"emit\":[1]}}";
    (void)state;
    write_file(input, script, sizeof script - 1);
    assert_int_equal(run("run script:$I --system S <<'E'\none\ntwo\n/clear\ntwo\n/bye\none\nE"), 0);
    assert_string_equal(out, "with one\nwith one\nsys only\n");
    assert_int_equal(run("run script:$I <<'E'\none\nfar too much for what is left of a context of forty\ntwo\nE"), 1);
    assert_int_equal(strncmp(out, "with one\n", 9), 0);
    assert_non_null(strstr(out, "the context holds 40"));
    assert_non_null(strstr(out, "taken back"));
    assert_string_equal(out + strlen(out) - 9, "with one\n");
    assert_int_equal(run("run script:$I 'far too much for what is left of a context of forty'"), 1);
    assert_null(strstr(out, "taken back"));
}

static int make_model(void **state) {
    vocab_spec s = vocab_bpe;
    hd_buf f;
    (void)state;
    s.bools = (const char *const[]){"tokenizer.ggml.add_bos_token", "1", NULL};
    close(mkstemp(model));
    close(mkstemp(input));
    close(mkstemp(second));
    vocab_write(&f, &s);
    write_file(model, f.data, f.len);
    buf_deinit(&f);
    return 0;
}

static int remove_files(void **state) {
    (void)state;
    unlink(model);
    unlink(input);
    unlink(second);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(lines), cmocka_unit_test(back),
                                       cmocka_unit_test(wrong_usage), cmocka_unit_test(no_lines),
                                       cmocka_unit_test(scripted_templates), cmocka_unit_test(text_comes_at_once),
                                       cmocka_unit_test(help_names_the_options), cmocka_unit_test(zero_is_not_the_default),
                                       cmocka_unit_test(least_budget), cmocka_unit_test(first_steps), cmocka_unit_test(conversations)};
    return cmocka_run_group_tests(tests, make_model, remove_files);
}
