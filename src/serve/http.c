/* http.c - see http.h.
 *
 * Built on bufferevents over plain sockets.  evhttp was tried and left: it does not report a peer that leaves while a
 * reply is pending, spins on a reset with EV_CLOSED and answers its own errors in HTML.  Closing is deferred: callbacks
 * set `dead` and free the socket; the memory goes when the turn is over, so callers up the stack may still look.
 * Read: http_accept, http_read, reply_done, on_event. */
#include "serve/http.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/bounds.h"
#include "serve/metrics.h"
#include "serve/route.h"

#include <event2/buffer.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LINGER_US = 2000000,
    LINGER_BYTES = 64 << 20,      /* a client still sending its refused body may finish it */
    SWALLOW_BYTES = 64 * 1024,    /* refused at the head with no more body than this: read it, keep the connection */
    BODY_RATE = 64 * 1024,        /* bytes a second that a body must keep on the whole */
    BODY_SLACK_US = 60 * 1000000, /* on top of that */
};

static void arm(conn *c, uint64_t us) {
    struct timeval tv = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
    evtimer_add(c->timer, &tv);
}

static void uncount(conn *c) {
    c->srv->body_bytes -= c->counted;
    c->counted = 0;
}

void http_close(conn *c) {
    server *s = c->srv;
    if (c->dead) return;
    c->dead = true;
    if (c->gen) gen_abandon(c->gen);
    c->gen = NULL;
    uncount(c);
    bounds_output_end(c);
    bufferevent_free(c->bev);
    event_free(c->timer);
    c->bev = NULL;
    c->timer = NULL;
    if (c->prev) c->prev->next = c->next;
    else s->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    c->prev = NULL;
    c->next = s->dead;
    s->dead = c;
    s->n_conns--;
    event_active(s->reap_ev, EV_TIMEOUT, 0);
    server_check_drained(s);
}

void http_reap(server *s) {
    while (s->dead) {
        conn *c = s->dead;
        s->dead = c->next;
        httpreq_deinit(&c->req);
        buf_deinit(&c->path);
        hd_free(c);
    }
}

size_t http_unsent(const conn *c) { return c->dead ? 0 : evbuffer_get_length(bufferevent_get_output(c->bev)); }

void http_take_body(conn *c, hd_buf *body, size_t *counted) {
    *body = c->req.body;
    buf_init(&c->req.body, c->req.max_body_bytes);
    *counted = c->counted;
    c->counted = 0;
}

/* All output has left: shut our side and wait for the peer to do the same. */
static void linger(conn *c) {
    if (c->eof) {
        http_close(c);
        return;
    }
    c->state = CONN_LINGER;
    c->t_linger_end_us = server_now_us() + LINGER_US;
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    arm(c, LINGER_US);
}

static void flush_and_close(conn *c) {
    c->state = CONN_FLUSH;
    evtimer_del(c->timer); /* the write timeout guards this state */
    if (!http_unsent(c)) linger(c);
}

static void http_read(conn *c);

/* The reply to the current request is in the output. */
static void reply_done(conn *c) {
    server *s = c->srv;
    c->gen = NULL;
    bounds_output(c);
    c->streaming = false;
    c->request_id[0] = 0;
    uncount(c);
    if (!c->keep_alive) {
        flush_and_close(c);
    } else {
        httpreq_reset(&c->req);
        c->state = CONN_READ;
        arm(c, s->opt.idle_timeout_us);
        if (!c->in_read) http_read(c);
    }
    server_check_drained(s);
}

static void write_head(conn *c, int status, const char *type, const char *extra, int64_t length) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    const char *origin = httpreq_get(&c->req, HTTPREQ_ORIGIN);
    if (server_phase_now(c->srv) >= PHASE_DRAINING) c->keep_alive = false;
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nServer: heddle\r\n", status, http_status_str((enum http_status)status));
    if (type) evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    if (length >= 0) evbuffer_add_printf(out, "Content-Length: %lld\r\n", (long long)length);
    else if (c->chunked) evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    if (c->request_id[0]) evbuffer_add_printf(out, "x-request-id: %s\r\n", c->request_id);
    if (origin[0] && route_origin_allowed(c->srv, origin))
        evbuffer_add_printf(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n"
                                 "Access-Control-Expose-Headers: x-request-id, retry-after, x-heddle-warning\r\n",
                            origin);
    if (extra) evbuffer_add(out, extra, strlen(extra));
    evbuffer_add_printf(out, "Connection: %s\r\n\r\n", c->keep_alive ? "keep-alive" : "close");
    metrics_status(c->srv->met, status);
}

void http_reply(conn *c, int status, const char *type, const char *extra, const char *body, size_t n) {
    bool bodyless = status == 204 || status == 304;
    if (c->dead) return;
    write_head(c, status, bodyless ? NULL : type, extra, bodyless ? -1 : (int64_t)n);
    if (!c->head_only && !bodyless) evbuffer_add(bufferevent_get_output(c->bev), body, n);
    reply_done(c);
}

static void free_body(const void *data, size_t n, void *ctx) {
    (void)n, (void)ctx;
    hd_free((void *)(uintptr_t)data);
}

void http_reply_take(conn *c, int status, const char *type, const char *extra, hd_buf *body) {
    size_t n = body->len;
    char *data;
    if (c->dead) return;
    write_head(c, status, type, extra, (int64_t)n);
    data = buf_take(body, &n);
    if (data && (c->head_only || evbuffer_add_reference(bufferevent_get_output(c->bev), data, n, free_body, NULL))) hd_free(data);
    reply_done(c);
}

/* Printable, and no longer than a line has room for. */
static void tell_text(char *dst, size_t size, const char *s) {
    size_t n = 0;
    for (; s[n] && n + 1 < size; n++) dst[n] = s[n] > ' ' && s[n] < 127 ? s[n] : '?';
    dst[n] = 0;
}

const char *http_tell(const conn *c, char out[HTTP_TOLD]) {
    char path[100];
    tell_text(path, sizeof path, buf_cstr(&c->path));
    snprintf(out, HTTP_TOLD, "%s %s", http_method_str((enum http_method)c->req.method), path);
    return out;
}

void http_tell_error(const conn *c, const serve_error *e) {
    char what[HTTP_TOLD], param[60];
    if (!hd_log_on(HD_LOG_DEBUG)) return;
    tell_text(param, sizeof param, e->param);
    hd_log(HD_LOG_DEBUG, "serve: %s: refused or cut: %d %s%s%s", http_tell(c, what), e->status, e->code ? e->code : "", *param ? ", " : "", param);
}

void http_reply_error(conn *c, const serve_error *e) {
    hd_buf body;
    char extra[300] = "";
    int n = 0;
    if (c->dead) return;
    http_tell_error(c, e);
    buf_init(&body, 16 * 1024);
    serve_error_json(&body, e);
    if (e->retry_after_s) n += snprintf(extra, sizeof extra, "Retry-After: %u\r\n", e->retry_after_s);
    if (e->status == 401) n += snprintf(extra + n, sizeof extra - (size_t)n, "WWW-Authenticate: Bearer\r\n");
    if (e->status == 405 && c->allow) snprintf(extra + n, sizeof extra - (size_t)n, "Allow: %s\r\n", c->allow);
    http_reply(c, e->status, "application/json", extra, buf_cstr(&body), body.len);
    buf_deinit(&body);
}

void http_stream_begin(conn *c, int status, const char *type, const char *extra) {
    if (c->dead) return;
    c->streaming = true;
    c->chunked = c->req.minor >= 1;
    if (!c->chunked) c->keep_alive = false;
    write_head(c, status, type, extra, -1);
}

void http_stream_write(conn *c, const char *p, size_t n) {
    struct evbuffer *out;
    if (c->dead || !n) return;
    out = bufferevent_get_output(c->bev);
    if (c->chunked) evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, p, n);
    if (c->chunked) evbuffer_add(out, "\r\n", 2);
}

void http_stream_end(conn *c, bool broken) {
    if (c->dead) return;
    if (c->chunked) evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5);
    if (broken) c->keep_alive = false;
    reply_done(c);
}

static void make_request_id(conn *c) {
    const char *given = httpreq_get(&c->req, HTTPREQ_REQUEST_ID);
    size_t n = strlen(given);
    bool good = n > 0 && n < sizeof c->request_id;
    for (size_t i = 0; good && i < n; i++) good = given[i] > 32 && given[i] < 127;
    if (good) {
        memcpy(c->request_id, given, n + 1);
    } else {
        memcpy(c->request_id, "req-", 4);
        server_random_id(c->request_id + 4, 24);
    }
}

/* Refuse and close: the rest of the input cannot be trusted to be a request. */
static void refuse(conn *c, int status, const char *code, const char *why, uint32_t retry_after_s) {
    serve_error e = {0};
    serve_fail(&e, status, code, NULL, "%s", why);
    e.retry_after_s = retry_after_s;
    if (!c->request_id[0]) make_request_id(c);
    c->keep_alive = false;
    c->state = CONN_BUSY;
    http_reply_error(c, &e);
}

/* The head is complete: refuse now what can be refused without its body. */
static void on_head(conn *c) {
    server *s = c->srv;
    httpreq *r = &c->req;
    bool long_body = r->chunked || r->content_length > SWALLOW_BYTES;
    bool expects = r->minor >= 1 && !strcasecmp(httpreq_get(r, HTTPREQ_EXPECT), "100-continue");
    make_request_id(c);
    c->keep_alive = r->keep_alive;
    c->head_only = r->method == HTTP_HEAD;
    c->streaming = c->chunked = false;
    memset(&c->early, 0, sizeof c->early);
    route_head(c);
    if (c->early.status && (long_body || (expects && r->has_body))) {
        c->keep_alive = false;
        c->state = CONN_BUSY;
        http_reply_error(c, &c->early);
        return;
    }
    r->discard_body = c->early.status != 0;
    if (expects && r->has_body) evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    c->t_body_end_us = server_now_us() + BODY_SLACK_US +
                       (r->chunked ? r->max_body_bytes : (size_t)r->content_length) * 1000000 / BODY_RATE;
    arm(c, s->opt.body_timeout_us);
}

/* Account for body bytes; false: all connections together hold too much. */
static bool count_body(conn *c) {
    server *s = c->srv;
    size_t now = c->req.body.len;
    s->body_bytes += now - c->counted;
    c->counted = now;
    return s->body_bytes <= s->opt.max_bodies_bytes;
}

/* Parse what has come, as far as the state allows. */
static void http_read(conn *c) {
    server *s = c->srv;
    struct evbuffer *in;
    if (c->in_read || c->dead) return;
    c->in_read = true;
    in = bufferevent_get_input(c->bev);
    while (!c->dead) {
        struct evbuffer_iovec v;
        size_t have = evbuffer_get_length(in), n;
        if (c->state == CONN_LINGER || c->state == CONN_FLUSH) {
            c->lingered += have;
            evbuffer_drain(in, have);
            if (c->lingered > LINGER_BYTES) http_close(c);
            break;
        }
        if (c->state == CONN_BUSY || http_unsent(c) > HTTP_OUTPUT_MARK) {
            if (have > HTTP_EXTRA_INPUT) http_close(c);
            break;
        }
        if (!have) break;
        if (!httpreq_begun(&c->req)) {
            c->t_begin_us = server_now_us();
            arm(c, s->opt.head_timeout_us);
        }
        if (evbuffer_peek(in, -1, NULL, &v, 1) < 1) break;
        n = httpreq_feed(&c->req, v.iov_base, v.iov_len);
        evbuffer_drain(in, n);
        switch (c->req.state) {
        case HTTPREQ_HEAD_DONE: on_head(c); break;
        case HTTPREQ_BODY: {
            uint64_t now = server_now_us();
            if (!count_body(c)) {
                refuse(c, 503, "overloaded", "the server holds too much request data at the moment", 1);
            } else if (now >= c->t_body_end_us) {
                refuse(c, 408, "request_timeout", "the request body came too slowly", 0);
            } else {
                uint64_t left = c->t_body_end_us - now;
                arm(c, left < s->opt.body_timeout_us ? left : s->opt.body_timeout_us);
            }
            break;
        }
        case HTTPREQ_DONE:
            evtimer_del(c->timer);
            c->state = CONN_BUSY;
            if (!count_body(c)) refuse(c, 503, "overloaded", "the server holds too much request data at the moment", 1);
            else if (c->early.status) http_reply_error(c, &c->early);
            else route_dispatch(c);
            break;
        case HTTPREQ_BAD:
            refuse(c, c->req.status, c->req.status == 413 ? "request_too_large" : "bad_http", c->req.why,
                   c->req.status == 503 ? 1 : 0);
            break;
        case HTTPREQ_HEAD: break;
        }
    }
    c->in_read = false;
}

static void on_read(struct bufferevent *bev, void *arg) {
    (void)bev;
    http_read(arg);
}

/* Called whenever little output is left. */
static void on_write(struct bufferevent *bev, void *arg) {
    conn *c = arg;
    (void)bev;
    bounds_output_end(c);
    if (c->state == CONN_FLUSH) {
        if (!http_unsent(c)) linger(c), server_check_drained(c->srv);
    } else if (c->state == CONN_BUSY) {
        if (c->gen) gen_resume(c->gen);
    } else if (c->state == CONN_READ) {
        http_read(c); /* pipelined requests waited for the output to go down */
        if (!c->dead) server_check_drained(c->srv);
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg) {
    conn *c = arg;
    (void)bev;
    if ((what & BEV_EVENT_EOF) && c->state != CONN_BUSY && http_unsent(c)) {
        /* A half-close after a complete reply: let the reply leave. */
        c->eof = true;
        if (c->state == CONN_READ) {
            c->keep_alive = false;
            flush_and_close(c);
        }
        return;
    }
    http_close(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    conn *c = arg;
    (void)fd, (void)what;
    if (c->state == CONN_READ && httpreq_begun(&c->req)) {
        refuse(c, 408, "request_timeout", "the request did not arrive in time", 0);
    } else {
        http_close(c);
    }
}

void http_accept(server *s, int fd) {
    static const int on = 1, sndbuf = HTTP_OUTPUT_MARK, idle = 15, every = 5, times = 3;
    const struct timeval write_timeout = {(time_t)(s->opt.write_timeout_us / 1000000),
                                          (suseconds_t)(s->opt.write_timeout_us % 1000000)};
    conn *c = NULL;
    if (s->n_conns >= s->opt.max_connections + HTTP_LIST_OVER || !(c = hd_calloc(1, sizeof *c))) {
        close(fd);
        metrics_refused_connection(s->met);
        return;
    }
    c->srv = s;
    httpreq_init(&c->req, s->opt.max_head_bytes, s->opt.max_body_bytes);
    buf_init(&c->path, HTTPREQ_MAX_TARGET);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf); /* a stalled reader is felt soon */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* a peer that vanished without a word */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    if (!(c->bev = bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE)) ||
        !(c->timer = evtimer_new(s->base, on_timer, c))) {
        if (c->bev) bufferevent_free(c->bev);
        else close(fd);
        httpreq_deinit(&c->req);
        hd_free(c);
        return;
    }
    if ((c->next = s->conns)) c->next->prev = c;
    s->conns = c;
    s->n_conns++;
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->bev, EV_WRITE, HTTP_OUTPUT_MARK / 2, 0);
    bufferevent_set_timeouts(c->bev, NULL, &write_timeout);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    arm(c, s->opt.idle_timeout_us);
    if (s->n_conns > s->opt.max_connections) {
        metrics_refused_connection(s->met);
        refuse(c, 503, "too_many_connections", "too many connections", 1);
    }
}
