/* test_serve_cli.c - `heddle serve` as a process: its port, keys, signals and exits. */
#include "util/http_client.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char script[] = "{\"vocab\":[\"</s>\",\"X\"],\"special\":{\"eos\":[0]},\"context\":100000,"
                             "\"step_delay_ms\":5,\"prompt_delay_ms\":5,\"rules\":[{\"match\":\"run\",\"emit\":[1],\"then\":\"loop\"}],\"default\":{\"emit\":[1]}}";
#define RUN(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"run\"}],\"stream\":true" more "}"

typedef struct {
    pid_t pid;
    int err; /* its stderr */
    char text[4096];
    uint16_t port;
} proc;

static char path[64], keys[64];

static int write_files(void **state) {
    int fd;
    (void)state;
    strcpy(path, "/tmp/heddle-serve-XXXXXX");
    strcpy(keys, "/tmp/heddle-keys-XXXXXX");
    fd = mkstemp(path);
    if (fd < 0 || write(fd, script, sizeof script - 1) < 0) return -1;
    close(fd);
    fd = mkstemp(keys);
    if (fd < 0 || write(fd, "# keys\r\nfirst\r\n\nsecond\n", 23) < 0) return -1;
    close(fd);
    return 0;
}

static int remove_files(void **state) {
    (void)state;
    unlink(path);
    unlink(keys);
    return 0;
}

/* Start with further arguments; wait until it serves (or ends, when `serves` is false). */
static void start(proc *p, bool serves, const char *const *more) {
    int fds[2];
    char model[80];
    const char *argv[20] = {"heddle", "serve", model, "--port", "0"};
    size_t n = 5, got = 0;
    uint64_t end = now_ms() + 20000;
    memset(p, 0, sizeof *p);
    snprintf(model, sizeof model, "script:%s", path);
    while (more && *more) argv[n++] = *more++;
    assert_int_equal(pipe(fds), 0);
    if (!(p->pid = fork())) {
        dup2(fds[1], 2);
        close(fds[0]), close(fds[1]);
        execv(HEDDLE_BIN, (char *const *)argv);
        _exit(99);
    }
    close(fds[1]);
    p->err = fds[0];
    while (now_ms() < end && got < sizeof p->text - 1) {
        struct pollfd f = {p->err, POLLIN, 0};
        char *at;
        ssize_t k;
        if (poll(&f, 1, 100) != 1) continue;
        if ((k = read(p->err, p->text + got, sizeof p->text - 1 - got)) <= 0) break;
        got += (size_t)k;
        if (serves && (at = strstr(p->text, "http://127.0.0.1:")) && strchr(at, '\n')) {
            p->port = (uint16_t)atoi(at + 17);
            break;
        }
    }
    if (serves && !p->port) fail_msg("it does not serve: %s", p->text);
}

/* Its exit status; -1 after timeout_ms (it is killed then). */
static int end(proc *p, int timeout_ms) {
    uint64_t t = now_ms() + (uint64_t)timeout_ms;
    int st;
    while (waitpid(p->pid, &st, WNOHANG) == 0) {
        if (now_ms() > t) {
            kill(p->pid, SIGKILL);
            waitpid(p->pid, &st, 0);
            close(p->err);
            return -1;
        }
        sleep_ms(10);
    }
    close(p->err);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 1000 + WTERMSIG(st);
}

static void serves_and_drains(void **state) {
    static const char *const more[] = {"--api-key-file", keys, "--alias", "gpt", NULL};
    proc p;
    client c;
    char *body;
    (void)state;
    start(&p, true, more);
    assert_int_equal(client_once(p.port, "GET", "/health", NULL, NULL, &body), 200);
    hd_free(body);
    assert_int_equal(client_once(p.port, "GET", "/v1/models", NULL, NULL, &body), 401);
    hd_free(body);
    assert_int_equal(client_once(p.port, "GET", "/v1/models/gpt", "Authorization: Bearer second\r\n", NULL, &body), 200);
    hd_free(body);
    assert_true(client_open(&c, p.port));
    assert_true(client_request(&c, "POST", "/v1/chat/completions", "Authorization: Bearer first\r\n", RUN(",\"max_tokens\":60")));
    assert_true(client_until(&c, "id: 2", 5000));
    kill(p.pid, SIGTERM);
    assert_true(client_finish(&c, 10000)); /* the running one ends as it would have */
    assert_non_null(strstr(c.body.data, "data: [DONE]"));
    client_close(&c);
    assert_int_equal(end(&p, 5000), 0);
}

static void drain_has_an_end(void **state) {
    static const char *const more[] = {"--drain-timeout", "0.3", NULL};
    proc p;
    client c;
    (void)state;
    start(&p, true, more);
    assert_true(client_open(&c, p.port));
    assert_true(client_request(&c, "POST", "/v1/chat/completions", NULL, RUN("")));
    assert_true(client_until(&c, "id: 2", 5000));
    kill(p.pid, SIGINT);
    assert_true(client_finish(&c, 5000));
    assert_non_null(strstr(c.body.data, "\"code\":\"shutdown\""));
    client_close(&c);
    assert_int_equal(end(&p, 5000), 0);
}

/* It has said `word` on stderr: two signals of a kind are one until the first was taken. */
static void wait_for(proc *p, const char *word) {
    size_t n = strlen(p->text);
    uint64_t t_end = now_ms() + 10000;
    while (!strstr(p->text, word) && now_ms() < t_end && n < sizeof p->text - 1) {
        struct pollfd f = {p->err, POLLIN, 0};
        ssize_t k;
        if (poll(&f, 1, 100) != 1) continue;
        if ((k = read(p->err, p->text + n, sizeof p->text - 1 - n)) <= 0) break;
        n += (size_t)k;
        p->text[n] = 0;
    }
    if (!strstr(p->text, word)) fail_msg("it does not say %s: %s", word, p->text);
}

static void second_signal_ends_at_once(void **state) {
    proc p;
    client c;
    (void)state;
    start(&p, true, NULL);
    assert_true(client_open(&c, p.port));
    assert_true(client_request(&c, "POST", "/v1/chat/completions", NULL, RUN("")));
    assert_true(client_until(&c, "id: 2", 5000));
    kill(p.pid, SIGTERM);
    wait_for(&p, "draining");
    kill(p.pid, SIGTERM);
    assert_int_equal(end(&p, 2000), 1);
    client_close(&c);
}

/* R113: signals in the middle of one step of ten seconds.  One: it ends once the drain is over.  Two: at once. */
static void signals_during_a_long_prefill(void **state) {
    static const char *const more[] = {"--drain-timeout", "0.5", "--step-tokens", "4096", NULL};
    char *json = malloc(3000);
    (void)state;
    {
        size_t k = (size_t)sprintf(json, "{\"stream\":true,\"prompt\":\"");
        memset(json + k, 'w', 2000);
        strcpy(json + k + 2000, "\"}");
    }
    for (int n = 1; n <= 2; n++) {
        proc p;
        client c;
        uint64_t t;
        start(&p, true, n == 1 ? more : more + 2);
        assert_true(client_open(&c, p.port));
        assert_true(client_request(&c, "POST", "/v1/completions", NULL, json));
        assert_true(client_head(&c, 5000));
        sleep_ms(300);
        t = now_ms();
        for (int i = 0; i < n; i++) kill(p.pid, SIGTERM), sleep_ms(100);
        assert_int_equal(end(&p, 5000), n == 1 ? 0 : 1);
        if (n == 1) {
            assert_true(now_ms() - t >= 400);
            assert_true(client_finish(&c, 1000));
            assert_non_null(strstr(c.body.data, "\"code\":\"shutdown\""));
        }
        client_close(&c);
    }
    free(json);
}

/* What a process says on stderr until it ends. */
static void rest_of(proc *p, char *out, size_t size) {
    size_t n = strlen(p->text);
    memcpy(out, p->text, n);
    for (ssize_t got; n < size - 1 && (got = read(p->err, out + n, size - 1 - n)) > 0;) n += (size_t)got;
    out[n] = 0;
}

/* $HEDDLE_LOG=debug tells the life of a request, and neither its text nor the key; info tells nothing of it. */
static void debug_lines(void **state) {
    static const char *const more[] = {"--api-key", "sesame-key", NULL};
    static const char auth[] = "Authorization: Bearer sesame-key\r\n";
    static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"walnut\"}],\"max_tokens\":3}";
    static const char *const wanted[] = {"engine: context 100000", ": taken: autoregressive, 6 prompt tokens, at most 3 to come", ": admitted after ",
                                         "0 of 6 prompt tokens cached", ": first token ", ": ended: stop, end of text; 6 prompt tokens (0 cached), 2 generated",
                                         ": accepted: POST /v1/chat/completions, not streamed", "GET /v1/models: refused or cut: 401 invalid_api_key",
                                         "GET /no?where: refused or cut: 404 not_found", ": ended: cancelled, client_disconnected"};
    static const char *const never[] = {"walnut", "sesame", "wrong-key", "\x1b"};
    static char said[1 << 16];
    (void)state;
    for (int debug = 0; debug < 2; debug++) {
        client c;
        proc p;
        assert_int_equal(setenv("HEDDLE_LOG", debug ? "debug" : "info", 1), 0);
        start(&p, true, more);
        assert_int_equal(client_once(p.port, "POST", "/v1/chat/completions", auth, chat, NULL), 200);
        assert_int_equal(client_once(p.port, "GET", "/v1/models", "Authorization: Bearer wrong-key\r\n", NULL, NULL), 401);
        assert_int_equal(client_once(p.port, "GET", "/no%1bwhere", auth, NULL, NULL), 404);
        assert_true(client_open(&c, p.port) && client_request(&c, "POST", "/v1/chat/completions", auth, RUN("")));
        assert_true(client_until(&c, "id: 2", 5000));
        client_close(&c);
        sleep_ms(300);
        kill(p.pid, SIGTERM);
        rest_of(&p, said, sizeof said);
        assert_int_equal(end(&p, 5000), 0);
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if ((strstr(said, wanted[i]) != NULL) != debug) fail_msg("%s: %s", wanted[i], said);
        for (size_t i = 0; i < sizeof never / sizeof *never; i++)
            if (strstr(said, never[i])) fail_msg("%s: %s", never[i], said);
    }
    assert_int_equal(unsetenv("HEDDLE_LOG"), 0);
}

static void wrong_usage(void **state) {
    static const char *const cases[][3] = {{"--nonsense", NULL}, {"--port", "70000", NULL}, {"--comment-interval", "0", NULL},
                                             {"--comment-interval", "3601", NULL}, {"--drain-timeout", "3601", NULL},
                                             {"--drain-timeout", "-1", NULL}, {"--stuck-timeout", "0", NULL}, {"--kv-type", "q5", NULL},
                                             {"--kv-type", "q8,", NULL}, {"--kv-type", "q8,f16,q4", NULL}};
    /* What is wrong with it, and what was probably meant. */
    static const char *const told[][4] = {{"--prot", "1", NULL, "did you mean --port?"}, {"--kv-budget", "much", NULL, "--kv-budget takes a size of at least 1 byte, such as 512M, not 'much'"},
                                          {"--max-rows", "-3", NULL, "--max-rows takes a whole number of at least 1, not '-3'"},
                                          {"--state-cap", "1G", NULL, "need a --state-dir"}};
    proc p;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(&p, false, cases[i]);
        assert_int_equal(end(&p, 5000), 64);
    }
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        start(&p, false, told[i]);
        assert_int_equal(end(&p, 5000), 64);
        if (!strstr(p.text, told[i][3])) fail_msg("%s: %s", told[i][0], p.text);
    }
    {
        static const char *const no_host[] = {"--host", "256.1.1.1", NULL};
        start(&p, false, no_host);
        assert_int_equal(end(&p, 20000), 1);
    }
    { /* a key file that holds no key must not open the server to everyone */
        static const char *const no_key[] = {"--api-key-file", "/dev/null", NULL};
        start(&p, false, no_key);
        assert_int_equal(end(&p, 20000), 1);
    }
}

/* Standard output of `heddle ARGS`; its exit status. */
static int output(const char *args, char *out, size_t size) {
    char cmd[500];
    FILE *f;
    size_t n;
    int rc;
    snprintf(cmd, sizeof cmd, "%s %s", HEDDLE_BIN, args);
    assert_non_null(f = popen(cmd, "r"));
    n = fread(out, 1, size - 1, f);
    out[n] = 0;
    rc = pclose(f);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

/* The doctor on a server that works and has somebody waiting, on one that wants a key, and where there is none. */
static void doctor(void **state) {
    static const char *const more[] = {"--max-rows", "1", "--api-key", "sesame", "--kv-type", "q8,bf16", NULL};
    static const char auth[] = "Authorization: Bearer sesame\r\n";
    char out[20000], args[200];
    client a, b;
    json_t *v, *limits;
    proc p;
    (void)state;
    start(&p, true, more);
    assert_true(client_open(&a, p.port) && client_request(&a, "POST", "/v1/chat/completions", auth, RUN("")));
    assert_true(client_until(&a, "id: 2", 5000));
    assert_true(client_open(&b, p.port) && client_request(&b, "POST", "/v1/chat/completions", auth, RUN("")));
    assert_true(client_until(&b, "id: 0", 5000)); /* accepted: it waits */
    snprintf(args, sizeof args, "doctor --json --url http://127.0.0.1:%u/ --api-key sesame", p.port);
    assert_int_equal(output(args, out, sizeof out), 0);
    assert_non_null(v = json_loads(out, 0, NULL));
    assert_true(json_integer_value(json_object_get(json_object_get(v, "machine"), "threads")) >= 1);
    assert_true(json_integer_value(json_object_get(json_object_get(v, "machine"), "memory_limit_bytes")) > 0);
    assert_string_equal(json_string_value(json_object_get(json_object_get(v, "server"), "health")), "ok");
    assert_int_equal(json_array_size(json_object_get(json_object_get(v, "server"), "queue")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(v, "server"), "limits"), "max_rows")), 1);
    limits = json_object_get(json_object_get(v, "server"), "limits");
    assert_string_equal(json_string_value(json_object_get(limits, "kv_type")), "q8");
    assert_string_equal(json_string_value(json_object_get(limits, "kv_type_sliding")), "bf16");
    json_decref(v);
    snprintf(args, sizeof args, "doctor --url http://127.0.0.1:%u --api-key sesame", p.port);
    assert_int_equal(output(args, out, sizeof out), 0);
    assert_non_null(strstr(out, "all rows are taken; waited "));
    assert_non_null(strstr(out, " of KV (q8, sliding windows bf16)"));
    snprintf(args, sizeof args, "doctor --url http://127.0.0.1:%u", p.port);
    assert_int_equal(output(args, out, sizeof out), 0);
    assert_non_null(strstr(out, "needs a key"));
    client_close(&a);
    client_close(&b);
    kill(p.pid, SIGTERM);
    assert_int_equal(end(&p, 5000), 0);
    snprintf(args, sizeof args, "doctor --url http://127.0.0.1:%u", p.port); /* gone now */
    assert_int_equal(output(args, out, sizeof out), 1);
    assert_non_null(strstr(out, "none answers"));
    assert_int_equal(output("doctor --url file:///etc/passwd", out, sizeof out), 1);
    assert_int_equal(output("doctor extra 2>&1", out, sizeof out), 64);
}

/* Something that takes the connection and says nothing costs two seconds. */
static void doctor_is_patient_for_two_seconds(void **state) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    uint64_t t = now_ms();
    char out[4000], args[100];
    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at) | listen(fd, 5) | getsockname(fd, (struct sockaddr *)&at, &n), 0);
    snprintf(args, sizeof args, "doctor --url http://127.0.0.1:%u", ntohs(at.sin_port));
    assert_int_equal(output(args, out, sizeof out), 1);
    assert_true(now_ms() - t < 6000);
    close(fd);
}

typedef struct {
    int fd;
    const char *health, *state;
} impostor;

/* Two answers, whatever was asked. */
static void *answer_twice(void *arg) {
    const impostor *im = arg;
    for (int i = 0; i < 2; i++) {
        const char *body = i ? im->state : im->health;
        char got[2000], head[200];
        int c = accept(im->fd, NULL, NULL);
        if (c < 0) break;
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", strlen(body));
        if (read(c, got, sizeof got) > 0 && write(c, head, strlen(head)) > 0 && write(c, body, strlen(body)) > 0) shutdown(c, SHUT_WR);
        close(c);
    }
    return NULL;
}

/* What a server says is shown, and never believed: no control characters, no numbers beyond those that can be printed. */
static void doctor_believes_nothing(void **state) {
    static const char *const states[] = {
        ("{\"queue\":[{\"id\":\"\\u001b[31m\",\"waited_ms\":1e300,\"expected_wait_ms\":-1e300}],\"running\":1e308,\"waiting\":1e19,"
        "\"limits\":{\"max_rows\":-1e19,\"kv_bytes\":1e308}}"),
        "{\"queue\":[7,null,\"x\",[],{}],\"limits\":5,\"running\":{}}",
        "[]", "nonsense", ""};
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof states / sizeof *states); i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof at;
        impostor im = {socket(AF_INET, SOCK_STREAM, 0), "{\"status\":\"\\u001b]0;ok\\u0007\"}", states[i / 2]};
        char out[8000], args[100];
        pthread_t t;
        json_t *v;
        assert_int_equal(bind(im.fd, (struct sockaddr *)&at, sizeof at) | listen(im.fd, 5) | getsockname(im.fd, (struct sockaddr *)&at, &n), 0);
        assert_int_equal(pthread_create(&t, NULL, answer_twice, &im), 0);
        snprintf(args, sizeof args, "doctor %s --url http://127.0.0.1:%u", i % 2 ? "--json" : "", ntohs(at.sin_port));
        assert_int_equal(output(args, out, sizeof out), 0);
        pthread_join(t, NULL);
        close(im.fd);
        if (i % 2) {
            assert_non_null(v = json_loads(out, 0, NULL));
            json_decref(v);
            continue;
        }
        assert_null(strpbrk(out, "\x1b\a"));
        assert_non_null(strstr(out, "  health      ?]0;ok?\n"));
        if (!i) {
            assert_non_null(strstr(out, "now         1000000000000000 run, 1000000000000000 wait\n"));
            assert_non_null(strstr(out, "?[31m  ,  priority: ; waited 1000000000000000 ms, about -1000000000000000 ms"));
        }
    }
}

static void traces(void **state) {
    static const char *const wanted[] = {"read", "parse", "tokenise", "submit", "prefill", "decode", "forward"};
    char file[] = "/tmp/heddle-trace-XXXXXX";
    const char *const more[] = {"--trace", file, NULL};
    json_t *v, *one;
    size_t i;
    char *body;
    proc p;
    (void)state;
    close(mkstemp(file));
    start(&p, true, more);
    assert_int_equal(client_once(p.port, "POST", "/v1/completions", NULL, "{\"prompt\":\"run\",\"max_tokens\":3}", &body), 200);
    hd_free(body);
    kill(p.pid, SIGTERM);
    assert_int_equal(end(&p, 5000), 0);
    assert_non_null(v = json_load_file(file, 0, NULL));
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
        bool seen = false;
        json_array_foreach(v, i, one) seen |= !strcmp(json_string_value(json_object_get(one, "name")), wanted[k]);
        if (!seen) fail_msg("no span called %s", wanted[k]);
    }
    json_decref(v);
    unlink(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_and_drains),
        cmocka_unit_test(drain_has_an_end),
        cmocka_unit_test(second_signal_ends_at_once),
        cmocka_unit_test(signals_during_a_long_prefill),
        cmocka_unit_test(debug_lines), cmocka_unit_test(wrong_usage),
        cmocka_unit_test(doctor),
        cmocka_unit_test(doctor_is_patient_for_two_seconds),
        cmocka_unit_test(doctor_believes_nothing),
        cmocka_unit_test(traces),
    };
    return cmocka_run_group_tests(tests, write_files, remove_files);
}
