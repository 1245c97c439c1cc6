/* server.c - opening, the loop thread, messages to it, draining, closing.  See server.h, server_int.h. */
#include "serve/server_int.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/bounds.h"
#include "serve/durable.h"
#include "serve/gen.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/planner.h"
#include "serve/runner.h"

#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    LAST_WORDS_US = 1000000, /* after a drain's deadline: time for the error events to leave */
};

uint64_t server_now_us(void) { return hd_now_us(&hd_clock_real); }

int64_t server_wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

uint64_t server_random_u64(void) {
    uint64_t v = 0;
    /* Blocks only before the machine has any entropy at all; interrupted or refused reads are tried again. */
    while (getrandom(&v, sizeof v, 0) != (ssize_t)sizeof v) {}
    return v;
}

void server_random_id(char *out, size_t n) {
    static const char alphabet[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % 8 == 0) v = server_random_u64();
        out[i] = alphabet[(v & 0xff) * 62 >> 8]; /* 5.9 bits each; the slight bias does not matter for 24 of them */
        v >>= 8;
    }
    out[n] = 0;
}

void server_wake(server *s) {
    static const uint64_t one = 1;
    while (write(s->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

void server_notify(void *ctx) {
    waker *w = ctx;
    server *s = w->srv;
    bool first = false;
    pthread_mutex_lock(&s->mu);
    if (!w->on && !s->closing) {
        w->on = true;
        w->next = NULL;
        first = !s->ready_head;
        if (s->ready_tail) s->ready_tail->next = w;
        else s->ready_head = w;
        s->ready_tail = w;
    }
    pthread_mutex_unlock(&s->mu);
    if (first) server_wake(s);
}

bool server_knows_model(const server *s, const char *name) {
    if (!*name || !strcmp(name, s->info->name)) return true;
    for (size_t i = 0; i < s->opt.n_aliases; i++)
        if (!strcmp(s->aliases[i], "*") || !strcmp(s->aliases[i], name)) return true;
    return false;
}

/* ---- loop ---- */

static void on_drain_deadline(evutil_socket_t fd, short what, void *arg) {
    server *s = arg;
    (void)fd, (void)what;
    if (server_phase_now(s) != PHASE_DRAINING) return;
    if (s->n_gens || s->n_running) {
        static const struct timeval last_words = {LAST_WORDS_US / 1000000, 0};
        hd_log(HD_LOG_WARN, "serve: %u generations are cut, the drain is over", s->n_gens + s->n_running);
        gen_cancel_all(s, CANCEL_SHUTDOWN);
        evtimer_add(s->drain_ev, &last_words);
    } else {
        atomic_store_explicit(&s->phase, PHASE_DRAINED, memory_order_release);
    }
}

void server_check_drained(server *s) {
    if (server_phase_now(s) != PHASE_DRAINING || s->n_gens || s->n_running) return;
    for (conn *c = s->conns; c; c = c->next)
        if (c->state == CONN_BUSY || http_unsent(c)) return;
    atomic_store_explicit(&s->phase, PHASE_DRAINED, memory_order_release);
}

static void on_rest(evutil_socket_t fd, short what, void *arg) {
    server *s = arg;
    (void)fd, (void)what;
    if (!s->n_gens) hd_mem_trim();
}

void server_rest(server *s) {
    static const struct timeval moment = {0, 500000};
    if (!s->n_gens && !evtimer_pending(s->rest_ev, NULL)) evtimer_add(s->rest_ev, &moment);
}

static void begin_drain(server *s, uint64_t timeout_us) {
    struct timeval tv = {(time_t)(timeout_us / 1000000), (suseconds_t)(timeout_us % 1000000)};
    if (server_phase_now(s) >= PHASE_DRAINED) return;
    atomic_store_explicit(&s->phase, PHASE_DRAINING, memory_order_release);
    if (s->eng) engine_drain(s->eng);
    evtimer_add(s->drain_ev, &tv);
    server_check_drained(s);
}

static void on_wake(evutil_socket_t fd, short what, void *arg) {
    server *s = arg;
    uint64_t n;
    waker *ready;
    gen *planned;
    runner *resumed;
    log_job *logged;
    bool stop, drain;
    uint64_t timeout;
    (void)what;
    while (read(fd, &n, sizeof n) < 0 && errno == EINTR) {}
    pthread_mutex_lock(&s->mu);
    ready = s->ready_head;
    s->ready_head = s->ready_tail = NULL;
    planned = s->planned_head;
    s->planned_head = s->planned_tail = NULL;
    stop = s->want_stop;
    if (!stop) {
        resumed = s->resumed;
        s->resumed = NULL;
        logged = s->logged;
        s->logged = NULL;
    }
    drain = s->want_drain;
    timeout = s->drain_timeout_us;
    s->want_drain = false;
    pthread_mutex_unlock(&s->mu);
    if (stop) {
        event_base_loopbreak(s->base);
        /* Planned ones must still be found by the closing thread. */
        pthread_mutex_lock(&s->mu);
        while (planned) {
            gen *next = planned->planned_next;
            planned->planned_next = s->planned_head;
            s->planned_head = planned;
            planned = next;
        }
        pthread_mutex_unlock(&s->mu);
        return;
    }
    while (resumed) {
        runner *next = resumed->next;
        runner_adopt(resumed);
        resumed = next;
    }
    if (drain) begin_drain(s, timeout);
    while (planned) {
        gen *next = planned->planned_next;
        gen_planned(planned);
        planned = next;
    }
    while (ready) {
        waker *w = ready;
        /* Clearing `on` allows the next notify to link it again, so take what is behind it first. */
        pthread_mutex_lock(&s->mu);
        ready = w->next;
        w->on = false;
        pthread_mutex_unlock(&s->mu);
        w->wake(w);
    }
    durable_answered(logged);
    runner_reap(s);
}

static void on_reap(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    http_reap(arg);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int n, void *arg) {
    (void)l, (void)addr, (void)n;
    http_accept(arg, fd);
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg) {
    server *s = arg;
    (void)fd, (void)what;
    evconnlistener_enable(s->listener);
}

/* Out of descriptors: the waiting connection would wake us without end, so look away for a moment. */
static void on_accept_error(struct evconnlistener *l, void *arg) {
    static const struct timeval moment = {0, 100000};
    server *s = arg;
    hd_log(HD_LOG_WARN, "serve: accept: %s", strerror(errno));
    evconnlistener_disable(l);
    evtimer_add(s->accept_ev, &moment);
}

static void *loop(void *arg) {
    server *s = arg;
    event_base_dispatch(s->base);
    return NULL;
}

/* ---- opening and closing ---- */

static hd_status copy_strings(char ***out, const char *const *from, size_t n, hd_err *err) {
    if (!n) return HD_OK;
    if (!(*out = hd_calloc(n, sizeof **out))) return hd_fail(err, HD_NOMEM, "serve: no memory");
    for (size_t i = 0; i < n; i++)
        if (!((*out)[i] = hd_strdup(from[i]))) return hd_fail(err, HD_NOMEM, "serve: no memory");
    return HD_OK;
}

static void free_strings(char **p, size_t n) {
    for (size_t i = 0; p && i < n; i++) hd_free(p[i]);
    hd_free(p);
}

static hd_status bind_port(server *s, hd_err *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char port[8];
    int why, saved = 0;
    snprintf(port, sizeof port, "%u", s->opt.port);
    if ((why = getaddrinfo(s->host, port, &hints, &list)))
        return hd_fail_field(err, HD_IO, "host", "serve: %s: %s", s->host, gai_strerror(why));
    for (struct addrinfo *a = list; a && !s->listener; a = a->ai_next) {
        s->listener = evconnlistener_new_bind(s->base, on_accept, s,
                                              LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE, 1024,
                                              a->ai_addr, (int)a->ai_addrlen);
        saved = errno;
    }
    freeaddrinfo(list);
    if (!s->listener) return hd_fail_field(err, HD_IO, "port", "serve: %s port %u: %s%s", s->host, s->opt.port,
                                           strerror(saved), saved == EADDRINUSE ? "; --port N takes another, 0 any that is free" : "");
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    {
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        if (getsockname(evconnlistener_get_fd(s->listener), (struct sockaddr *)&a, &n))
            return hd_fail(err, HD_IO, "serve: getsockname: %s", strerror(errno));
        s->port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                                : ((struct sockaddr_in *)&a)->sin_port);
    }
    return HD_OK;
}

void server_defaults(server_options *o) {
#define DEFAULT(field, v)                                                                                              \
    if (!o->field) o->field = v
    DEFAULT(max_connections, 1024);
    DEFAULT(max_head_bytes, 64 * 1024);
    DEFAULT(max_body_bytes, (size_t)32 << 20);
    DEFAULT(max_bodies_bytes, o->max_body_bytes * 8);
    DEFAULT(head_timeout_us, 10000000);
    DEFAULT(body_timeout_us, 30000000);
    DEFAULT(idle_timeout_us, 75000000);
    DEFAULT(write_timeout_us, 60000000);
    DEFAULT(comment_us, 5000000);
    DEFAULT(n_planners, 2);
    DEFAULT(max_planning, 256);
    DEFAULT(collect_tokens, 65536);
    DEFAULT(max_replies_bytes, (size_t)128 << 20);
#undef DEFAULT
}

hd_status server_open(server **out, engine *e, model *m, const server_options *opt, hd_err *err) {
    server *s = hd_calloc(1, sizeof *s);
    struct event_config *cfg = NULL;
    hd_status st = HD_NOMEM;
    sigset_t all, old;
    *out = NULL;
    if (!s) return hd_fail(err, HD_NOMEM, "serve: no memory");
    s->wake_fd = -1;
    pthread_mutex_init(&s->mu, NULL);
    buf_init(&s->scratch, (size_t)64 << 20);
    if (opt) s->opt = *opt;
    buf_init(&s->record, JOURNAL_FINISH_BYTES);
    server_defaults(&s->opt);
    s->created = hd_wall_seconds();
    if (!(s->host = hd_strdup(s->opt.host ? s->opt.host : "127.0.0.1")) ||
        !(s->cors_origin = hd_strdup(s->opt.cors_origin ? s->opt.cors_origin : "*")) ||
        !(s->recent = hd_calloc(RECENT_IDS, sizeof *s->recent)) || !(s->met = metrics_new())) {
        hd_fail(err, HD_NOMEM, "serve: no memory");
        goto fail;
    }
    if ((st = copy_strings(&s->keys, s->opt.api_keys, s->opt.n_api_keys, err)) ||
        (st = copy_strings(&s->aliases, s->opt.aliases, s->opt.n_aliases, err)))
        goto fail;
    if ((st = durable_open(&s->dur, s, err))) goto fail;
    st = HD_IO;
    if (!(cfg = event_config_new()) || event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK) ||
        !(s->base = event_base_new_with_config(cfg)) || (s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 ||
        !(s->wake_ev = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_wake, s)) ||
        event_add(s->wake_ev, NULL) || !(s->reap_ev = evtimer_new(s->base, on_reap, s)) ||
        !(s->accept_ev = evtimer_new(s->base, on_accept_again, s)) ||
        !(s->drain_ev = evtimer_new(s->base, on_drain_deadline, s)) || !(s->rest_ev = evtimer_new(s->base, on_rest, s))) {
        hd_fail(err, HD_IO, "serve: the event loop cannot be made: %s", strerror(errno));
        goto fail;
    }
    if ((st = bind_port(s, err)) || (st = planner_new(&s->planner, s, s->opt.n_planners, s->opt.max_planning, err))) goto fail;
    if (e && (st = server_attach(s, e, m, err))) goto fail;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    s->loop_started = !pthread_create(&s->loop_thread, NULL, loop, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!s->loop_started) {
        st = hd_fail(err, HD_IO, "serve: the loop thread could not be started");
        goto fail;
    }
    event_config_free(cfg);
    *out = s;
    return HD_OK;
fail:
    if (cfg) event_config_free(cfg);
    server_close(s);
    return st;
}

hd_status server_attach(server *s, engine *e, model *m, hd_err *err) {
    hd_status st;
    engine_view v = {0};
    const model_info *i = model_get(m);
    char text[512];
    s->eng = e;
    s->mdl = m;
    s->info = i;
    if (!engine_salt(e, s->share_salt))
        for (int k = 0; k < 4; k++) memcpy(s->share_salt + 8 * k, &(uint64_t){server_random_u64()}, 8);
    engine_look(e, &v);
    s->ctx = v.ctx;
    s->max_rows = v.max_rows;
    s->max_queued = v.max_queued;
    s->max_request_bytes = bounds_least_requests(v.max_rows, v.max_queued);
    if (s->max_request_bytes < s->opt.max_bodies_bytes) s->max_request_bytes = s->opt.max_bodies_bytes;
    snprintf(text, sizeof text, "%s|%s|%llu|%llu|%u|%s|%d", i->name, i->arch, (unsigned long long)i->n_params,
             (unsigned long long)i->weight_bytes, i->n_vocab, i->isa, HD_NUMERICS_VERSION);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%016llx", (unsigned long long)XXH3_64bits(text, strlen(text)));
    if (s->dur && (st = durable_resume(s->dur, err))) return st;
    atomic_store_explicit(&s->phase, PHASE_SERVING, memory_order_release);
    return HD_OK;
}

uint16_t server_port(const server *s) { return s->port; }
const char *server_model_id(const server *s) { return s->info ? s->info->name : ""; }

void server_drain(server *s, uint64_t timeout_us) {
    pthread_mutex_lock(&s->mu);
    s->want_drain = true;
    s->drain_timeout_us = timeout_us;
    pthread_mutex_unlock(&s->mu);
    server_wake(s);
}

bool server_drained(const server *s) { return server_phase_now(s) == PHASE_DRAINED; }

void server_close(server *s) {
    if (!s) return;
    if (s->loop_started) {
        pthread_mutex_lock(&s->mu);
        s->want_stop = true;
        pthread_mutex_unlock(&s->mu);
        server_wake(s);
        pthread_join(s->loop_thread, NULL);
    }
    /* From here on this thread is the only one: first the planners, who may still be submitting. */
    planner_free(s->planner);
    s->planner = NULL;
    /* The executor goes on while gens and runners are freed one by one: it must not link one behind one that is gone. */
    pthread_mutex_lock(&s->mu);
    s->closing = true;
    pthread_mutex_unlock(&s->mu);
    for (gen *g = s->gens; g; g = g->next)
        if (g->conn) g->conn->gen = NULL;
    if (s->base) gen_free_all(s);
    runner_free_all(s);
    durable_close(s->dur);
    while (s->logged) {
        log_job *j = s->logged;
        s->logged = j->next;
        log_job_free(j);
    }
    while (s->conns) http_close(s->conns);
    http_reap(s);
    if (s->listener) evconnlistener_free(s->listener);
    if (s->wake_ev) event_free(s->wake_ev);
    if (s->reap_ev) event_free(s->reap_ev);
    if (s->accept_ev) event_free(s->accept_ev);
    if (s->drain_ev) event_free(s->drain_ev);
    if (s->rest_ev) event_free(s->rest_ev);
    if (s->base) event_base_free(s->base);
    if (s->wake_fd >= 0) close(s->wake_fd);
    free_strings(s->keys, s->opt.n_api_keys);
    free_strings(s->aliases, s->opt.n_aliases);
    metrics_free(s->met);
    buf_deinit(&s->scratch);
    buf_deinit(&s->record);
    hd_free(s->recent);
    hd_free(s->host);
    hd_free(s->cors_origin);
    pthread_mutex_destroy(&s->mu);
    hd_free(s);
}
