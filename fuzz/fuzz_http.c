/* fuzz_http.c - bytes as a connection's input: the request reader in odd pieces, the path, and the body as JSON fields.
 *
 * The first byte gives the size of the pieces.  Requests are read one after the other as on a connection; the limits
 * are small so that the fuzzer finds them. */
#include "base/mem.h"
#include "serve/httpreq.h"
#include "serve/request.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void body_fields(const char *body, size_t n) {
    static const char *const keys[] = {"temperature", "n", "stop", "stream", "seed", "model"};
    serve_error e = {0};
    bool big;
    uint64_t seed;
    json_t *v = request_parse(body, n, &big, &seed, &e);
    for (size_t i = 0; v && i < sizeof keys / sizeof *keys; i++) {
        serve_error why = {0};
        double d = 0;
        int64_t k = 0;
        bool b = false;
        const char *s = "";
        size_t len = 0;
        if (!req_num(v, keys[i], -2, 2, &d, &why) && why.status != 400) abort();
        if (d < -2 || d > 2) abort();
        if (req_int(v, keys[i], 0, 128, &k, &why) && (k < 0 || k > 128)) abort();
        req_bool(v, keys[i], &b, &why);
        req_str(v, keys[i], &s, &len, &why);
    }
    if (!v && e.status != 400 && e.status != 503) abort();
    {
        hd_buf out;
        json_t *back;
        buf_init(&out, 1 << 16);
        serve_error_json(&out, &e); /* whatever the message holds, the error is JSON */
        if (!(back = json_loadb(out.data, out.len, JSON_ALLOW_NUL, NULL))) abort();
        json_decref(back);
        buf_deinit(&out);
    }
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *p = (const char *)data;
    size_t step, at = 1;
    httpreq r;
    if (!n) return 0;
    step = 1 + data[0] % 64;
    httpreq_init(&r, 512, 4096);
    while (at < n) {
        size_t k = n - at < step ? n - at : step, took = httpreq_feed(&r, p + at, k);
        at += took;
        if (took > k || r.body.len > 4096 || r.head_bytes > 512) abort();
        if (r.state == HTTPREQ_BAD) {
            if (r.status < 400 || !r.why) abort();
            break;
        }
        if (r.state == HTTPREQ_HEAD_DONE || r.state == HTTPREQ_DONE) {
            hd_buf path;
            buf_init(&path, HTTPREQ_MAX_TARGET);
            httpreq_path(&r, &path);
            buf_deinit(&path);
        }
        if (r.state == HTTPREQ_DONE) {
            body_fields(r.body.data, r.body.len);
            httpreq_reset(&r);
        } else if (!took && r.state != HTTPREQ_HEAD_DONE) {
            break;
        }
    }
    httpreq_deinit(&r);
    body_fields(p + 1, n - 1);
    return 0;
}
