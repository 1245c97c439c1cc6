/* http_client.h - a small HTTP client for tests over real sockets: raw bytes out, responses in, with timeouts. */
#ifndef HD_TESTS_HTTP_CLIENT_H
#define HD_TESTS_HTTP_CLIENT_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int fd;
    int status;
    hd_buf head, body; /* body: chunks joined */
    hd_buf raw;        /* bytes not yet understood */
    bool chunked, keep_alive;
    long length; /* of the body, or -1 */
    bool ended;  /* the response is complete */
    bool eof;
} client;

bool client_open(client *c, uint16_t port);
void client_close(client *c); /* FIN */
void client_reset(client *c); /* RST */
bool client_send(client *c, const char *p, size_t n);
/* A whole request with a JSON body (NULL: none).  extra: header lines each ending in CRLF, or NULL. */
bool client_request(client *c, const char *method, const char *path, const char *extra, const char *json);
/* Read until the head is there.  False: timeout or end. */
bool client_head(client *c, int timeout_ms);
/* Read on; true once `text` is in the body, false on timeout or when the response ends without it. */
bool client_until(client *c, const char *text, int timeout_ms);
bool client_finish(client *c, int timeout_ms); /* read the whole response */
/* Value of a header of the response into dst; false: absent. */
bool client_header(const client *c, const char *name, char *dst, size_t n);
/* open, request, finish, close: the status, 0 on failure.  *body (hd_free) may be NULL. */
int client_once(uint16_t port, const char *method, const char *path, const char *extra, const char *json, char **body);

void sleep_ms(int ms);
uint64_t now_ms(void);

#endif
