/* http_client.c - see http_client.h. */
#include "util/http_client.h"

#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void sleep_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

uint64_t now_ms(void) { return hd_now_us(&hd_clock_real) / 1000; }

bool client_open(client *c, uint16_t port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memset(c, 0, sizeof *c);
    buf_init(&c->head, 1 << 20);
    buf_init(&c->body, 256 << 20);
    buf_init(&c->raw, 256 << 20);
    c->length = -1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return c->fd >= 0 && !connect(c->fd, (struct sockaddr *)&a, sizeof a);
}

void client_close(client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    buf_deinit(&c->head);
    buf_deinit(&c->body);
    buf_deinit(&c->raw);
}

void client_reset(client *c) {
    struct linger l = {1, 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    client_close(c);
}

bool client_send(client *c, const char *p, size_t n) {
    while (n) {
        ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

bool client_request(client *c, const char *method, const char *path, const char *extra, const char *json) {
    hd_buf b;
    bool ok;
    buf_init(&b, 256 << 20);
    buf_fmt(&b, "%s %s HTTP/1.1\r\nHost: test\r\n%s", method, path, extra ? extra : "");
    if (json) buf_fmt(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(json));
    buf_str(&b, "\r\n");
    if (json) buf_str(&b, json);
    ok = client_send(c, buf_cstr(&b), b.len);
    buf_deinit(&b);
    buf_clear(&c->head);
    buf_clear(&c->body);
    c->status = 0;
    c->length = -1;
    c->ended = c->chunked = false;
    return ok;
}

bool client_header(const client *c, const char *name, char *dst, size_t n) {
    const char *p = buf_cstr(&c->head);
    size_t len = strlen(name);
    while ((p = strstr(p, "\r\n"))) {
        p += 2;
        if (!strncasecmp(p, name, len) && p[len] == ':') {
            size_t k;
            p += len + 1;
            while (*p == ' ') p++;
            k = strcspn(p, "\r");
            if (k >= n) k = n - 1;
            memcpy(dst, p, k);
            dst[k] = 0;
            return true;
        }
    }
    return false;
}

/* Understand what has come. */
static void digest(client *c) {
    char v[64], *end;
    if (!c->status) {
        size_t n;
        if (!c->raw.len || !(end = strstr(c->raw.data, "\r\n\r\n"))) return;
        n = (size_t)(end - c->raw.data) + 4;
        buf_add(&c->head, c->raw.data, n);
        buf_drop_front(&c->raw, n);
        c->status = atoi(c->head.data + 9);
        if (c->status == 100) { /* an interim response */
            c->status = 0;
            buf_clear(&c->head);
            digest(c);
            return;
        }
        c->chunked = client_header(c, "transfer-encoding", v, sizeof v) && !strcmp(v, "chunked");
        if (client_header(c, "content-length", v, sizeof v)) c->length = atol(v);
        if (c->status == 204) c->length = 0;
        c->keep_alive = client_header(c, "connection", v, sizeof v) && !strcmp(v, "keep-alive");
    }
    if (c->chunked) {
        while (!c->ended && c->raw.len && (end = strstr(c->raw.data, "\r\n"))) {
            size_t n = strtoul(c->raw.data, NULL, 16), at = (size_t)(end - c->raw.data) + 2;
            if (c->raw.len < at + n + 2) break;
            buf_add(&c->body, c->raw.data + at, n);
            buf_drop_front(&c->raw, at + n + 2);
            c->ended = !n;
        }
    } else {
        size_t n = c->raw.len;
        if (c->length >= 0 && c->body.len + n > (size_t)c->length) n = (size_t)c->length - c->body.len;
        buf_add(&c->body, buf_cstr(&c->raw), n);
        buf_drop_front(&c->raw, n);
        c->ended = (c->length >= 0 && c->body.len == (size_t)c->length) || (c->length < 0 && c->eof);
    }
}

/* One read; false: nothing within the time, or the end. */
static bool more(client *c, int timeout_ms) {
    char buf[65536];
    struct pollfd p = {c->fd, POLLIN, 0};
    ssize_t n;
    if (c->eof || timeout_ms < 0 || poll(&p, 1, timeout_ms) != 1) return false;
    n = recv(c->fd, buf, sizeof buf, 0);
    if (n <= 0) {
        c->eof = true;
        digest(c);
        return false;
    }
    buf_add(&c->raw, buf, (size_t)n);
    digest(c);
    return true;
}

bool client_head(client *c, int timeout_ms) {
    uint64_t end = now_ms() + (uint64_t)timeout_ms;
    digest(c);
    while (!c->status && more(c, (int)(end - now_ms()))) {}
    return c->status != 0;
}

bool client_until(client *c, const char *text, int timeout_ms) {
    uint64_t end = now_ms() + (uint64_t)timeout_ms;
    digest(c);
    for (;;) {
        if (strstr(buf_cstr(&c->body), text)) return true;
        if (c->ended || !more(c, (int)(end - now_ms()))) return strstr(buf_cstr(&c->body), text) != NULL;
    }
}

bool client_finish(client *c, int timeout_ms) {
    uint64_t end = now_ms() + (uint64_t)timeout_ms;
    digest(c);
    while (!c->ended && more(c, (int)(end - now_ms()))) {}
    return c->ended;
}

int client_once(uint16_t port, const char *method, const char *path, const char *extra, const char *json, char **body) {
    client c;
    int status = 0;
    if (body) *body = NULL;
    if (client_open(&c, port) && client_request(&c, method, path, extra, json) && client_finish(&c, 20000)) {
        status = c.status;
        if (body) *body = hd_strndup(buf_cstr(&c.body), c.body.len);
    }
    client_close(&c);
    return status;
}
