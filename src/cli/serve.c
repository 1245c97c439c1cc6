/* serve.c - `heddle serve MODEL`: the server as a process: options, loading behind an open port, signals, draining.
 *
 * The port is bound before the model loads, so that health checks see 503 loading.  SIGTERM or SIGINT drains (running
 * generations go on for --drain-timeout, then end with an error) and exits 0; a second one exits at once. */
#include "cli/common.h"

#include "base/mem.h"
#include "serve/server.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define USAGE                                                                                                          \
    "heddle serve MODEL [--host 127.0.0.1] [--port 8080] [--api-key KEY]... [--api-key-file F] [--alias NAME]...\n"    \
    "       [--max-queued N] [--default-max-tokens N] [--max-body SIZE] [--max-replies SIZE] [--max-connections N]\n"      \
    "       [--cors-origin ORIGIN] [--comment-interval SECONDS] [--drain-timeout SECONDS] [--stuck-timeout SECONDS] [--trace FILE]\n"  \
    "       [--pin-budget SIZE] [--no-durable] [--retain DURATION] [--log-cap SIZE]\n" MODEL_OPTS_USAGE

enum { MAX_KEYS = 256, SPARE_FILES = 128, MIN_REPLIES = 1 << 20 };
/* A comment within the patience of every proxy; a drain no service manager waits longer for; steps of a day are a hang. */
#define MIN_TIME_S 0.01f
#define MAX_TIME_S 3600.0f
#define MAX_STUCK_S 86400.0f

typedef struct {
    const char *name;
    const model_opts *opts;
    loaded l;
    int rc;
    atomic_int done; /* publishes l and rc */
} loading;

static void *load(void *arg) {
    loading *ld = arg;
    ld->rc = loaded_open(&ld->l, ld->name, ld->opts, true);
    atomic_store_explicit(&ld->done, 1, memory_order_release);
    return NULL;
}

/* Keys of a file, one per line; empty lines and those starting with # are skipped.  They point into *text. */
static bool key_file(const char *path, hd_buf *text, const char **keys, size_t *n_keys) {
    hd_err err;
    if (input_file(path, text, &err)) {
        fail_with(&err);
        return false;
    }
    if (!text->len) return true;
    for (char *p = text->data, *end; *p; p = end) {
        size_t len = strcspn(p, "\r\n");
        end = p + len;
        while (*end == '\r' || *end == '\n') *end++ = 0;
        if (!len || *p == '#') continue;
        if (*n_keys == MAX_KEYS) {
            fprintf(stderr, "heddle: %s: more than %d keys\n", path, MAX_KEYS);
            return false;
        }
        keys[(*n_keys)++] = p;
    }
    return true;
}

/* "90", "90s", "15m", "24h", "7d": seconds, at least one. */
static bool parse_duration(const char *s, uint64_t *out) {
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{0, 1}, {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    uint64_t v = 0;
    size_t i = 0;
    for (; s[i] >= '0' && s[i] <= '9'; i++)
        if (i == 9) return false; /* some decades; and no overflow below */
        else v = v * 10 + (uint64_t)(s[i] - '0');
    if (!i || (s[i] && s[i + 1])) return false;
    for (size_t k = 0; k < sizeof units / sizeof *units; k++)
        if (units[k].unit == s[i]) return (*out = v * units[k].seconds) > 0;
    return false;
}

/* One descriptor per connection and some to spare, as far as the hard limit allows. */
static void raise_file_limit(uint64_t want) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= want) return;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    (void)setrlimit(RLIMIT_NOFILE, &r);
}

/* A stop signal within `ms`: its number, else 0. */
static int stop_signal(const sigset_t *set, long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    int sig = sigtimedwait(set, NULL, &t);
    return sig > 0 ? sig : 0;
}

int cmd_serve(int argc, char **argv) {
    model_opts mo = {0};
    const char *args[1], *host = "127.0.0.1", *keyfile = NULL, *draft = NULL, *cors = NULL;
    const char *keys[MAX_KEYS];
    size_t n_args, n_keys = 0;
    uint32_t port = 8080, max_connections = 0;
    uint64_t max_body = 0, max_replies = 0;
    float comment_s = 5, drain_s = 30, stuck_s = 120;
    const char *retain = NULL;
    bool no_durable = false;
    server_options so = {0};
    opt_list key_list = {.n = 0}, aliases = {.n = 0}, adapters = {.n = 0};
    opt_def defs[] = {
        MODEL_OPT_DEFS(mo),
        TRACE_OPT_DEF(mo),
        {"--host", OPT_STR, &host, NULL},
        {"--port", OPT_UINT, &port, NULL},
        {"--max-queued", OPT_COUNT, &mo.max_queued, NULL},
        {"--pin-budget", OPT_BYTES, &mo.pin_budget, NULL},
        {"--default-max-tokens", OPT_COUNT, &mo.default_max_tokens, NULL},
        {"--api-key", OPT_LIST, &key_list, NULL},
        {"--api-key-file", OPT_STR, &keyfile, NULL},
        {"--alias", OPT_LIST, &aliases, NULL},
        {"--adapter", OPT_LIST, &adapters, NULL},
        {"--draft", OPT_STR, &draft, NULL},
        {"--max-body", OPT_BYTES, &max_body, NULL},
        {"--max-replies", OPT_BYTES, &max_replies, NULL},
        {"--max-connections", OPT_COUNT, &max_connections, NULL},
        {"--cors-origin", OPT_STR, &cors, NULL},
        {"--comment-interval", OPT_FLOAT, &comment_s, NULL},
        {"--drain-timeout", OPT_FLOAT, &drain_s, NULL},
        {"--stuck-timeout", OPT_FLOAT, &stuck_s, NULL},
        {"--retain", OPT_STR, &retain, NULL},
        {"--log-cap", OPT_BYTES, &so.log.max_bytes, NULL},
        {"--no-durable", OPT_FLAG, &no_durable, NULL},
    };
    loading ld = {0};
    server *srv = NULL;
    pthread_t loader;
    hd_buf key_text;
    const char *wrong;
    sigset_t stops, old;
    hd_err err;
    int rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 1, &n_args, USAGE);
    if (rc) return rc;
    buf_init(&key_text, 1 << 20);
    if (n_args != 1) {
        fprintf(stderr, "heddle: serve needs one MODEL\nusage: %s\n", USAGE);
        return EXIT_USAGE;
    }
    if ((wrong = port > 65535                                    ? "--port must be at most 65535"
                 : max_replies && max_replies < MIN_REPLIES         ? "--max-replies must be at least 1M"
                 : comment_s < MIN_TIME_S || comment_s > MAX_TIME_S ? "--comment-interval must be between 0.01 and 3600 seconds"
                 : drain_s < 0 || drain_s > MAX_TIME_S             ? "--drain-timeout must be between 0 and 3600 seconds"
                 : stuck_s < MIN_TIME_S || stuck_s > MAX_STUCK_S   ? "--stuck-timeout must be between 0.01 and 86400 seconds"
                 : (retain || so.log.max_bytes || no_durable) && !mo.state_dir
                     ? "--retain, --log-cap and --no-durable need a --state-dir"
                 : retain && !parse_duration(retain, &so.log.retain_seconds)
                     ? "--retain must be a duration like 90s, 15m, 24h or 7d"
                 : so.log.max_bytes && so.log.max_bytes < JOURNAL_MIN_BYTES ? "--log-cap must be at least 1M"
                                                                   : NULL)) {
        fprintf(stderr, "heddle: %s\n", wrong);
        return EXIT_USAGE;
    }
    if (adapters.n || draft) {
        fprintf(stderr, "heddle: %s is not supported yet\n", draft ? "--draft" : "--adapter");
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < key_list.n; i++) keys[n_keys++] = key_list.items[i];
    if (keyfile && !key_file(keyfile, &key_text, keys, &n_keys)) {
        buf_deinit(&key_text);
        return EXIT_FAILED;
    }
    if (keyfile && !n_keys) { /* who names a key file does not want an open server */
        fprintf(stderr, "heddle: %s holds no key\n", keyfile);
        buf_deinit(&key_text);
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < n_keys; i++)
        if (!*keys[i]) {
            fprintf(stderr, "heddle: an API key may not be empty\n");
            buf_deinit(&key_text);
            return EXIT_USAGE;
        }
    mo.stuck_timeout_us = (uint64_t)((double)stuck_s * 1e6);
    so.host = host;
    so.state_dir = no_durable ? NULL : mo.state_dir;
    so.port = (uint16_t)port;
    so.max_connections = max_connections;
    so.max_body_bytes = max_body;
    so.max_replies_bytes = max_replies;
    so.max_planning = mo.max_queued > 256 ? mo.max_queued : 0;
    so.comment_us = (uint64_t)((double)comment_s * 1e6);
    so.api_keys = keys;
    so.n_api_keys = n_keys;
    so.aliases = aliases.items;
    so.n_aliases = aliases.n;
    so.cors_origin = cors;
    raise_file_limit((uint64_t)(max_connections ? max_connections : 1024) + SPARE_FILES);

    /* All threads inherit the mask: stop signals are taken here and nowhere else, SIGPIPE by nobody. */
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stops, &old);
    signal(SIGPIPE, SIG_IGN);
    if (mo.trace_path && trace_open(&mo.trace, mo.trace_path, 0, &err)) {
        rc = fail_with(&err);
        goto out;
    }
    so.trace = mo.trace;
    if (server_open(&srv, NULL, NULL, &so, &err)) {
        rc = fail_with(&err);
        goto out;
    }
    ld.name = args[0];
    ld.opts = &mo;
    if (pthread_create(&loader, NULL, load, &ld)) {
        fprintf(stderr, "heddle: no thread to load the model\n");
        rc = EXIT_FAILED;
        goto out;
    }
    while (!atomic_load_explicit(&ld.done, memory_order_acquire))
        if (stop_signal(&stops, 20)) _exit(0); /* nothing to finish yet, and loading has no way to stop early */
    pthread_join(loader, NULL);
    if ((rc = ld.rc)) goto out;
    if (server_attach(srv, ld.l.e, ld.l.m, &err)) {
        rc = fail_with(&err);
        goto out;
    }
    fprintf(stderr, "heddle: serving %s at http://%s%s%s:%u\n", server_model_id(srv), strchr(host, ':') ? "[" : "", host,
            strchr(host, ':') ? "]" : "", server_port(srv));
    if (model_get(ld.l.m)->chat_error)
        fprintf(stderr, "heddle: the model's chat template cannot be used, /v1/completions can: %s\n", model_get(ld.l.m)->chat_error);
    while (sigwaitinfo(&stops, NULL) < 0 && errno == EINTR) {}
    fprintf(stderr, "heddle: draining, a second signal ends at once\n");
    server_drain(srv, (uint64_t)((double)drain_s * 1e6));
    while (!server_drained(srv))
        if (stop_signal(&stops, 20)) _exit(EXIT_FAILED);
out:
    server_close(srv);
    loaded_close(&ld.l);
    trace_close(mo.trace);
    buf_deinit(&key_text);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}
