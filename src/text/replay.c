/* replay.c - see replay.h. */
#include "text/replay.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "text/tokenizer_int.h"

#include <string.h>

#define VERSION "1."

static const char digits[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* ---- bits ---- */

typedef struct {
    hd_buf *out;
    uint32_t bits, n_bits;
} bit_writer;

static void put_byte(bit_writer *w, uint8_t b) {
    w->bits = w->bits << 8 | b;
    for (w->n_bits += 8; w->n_bits >= 6; w->n_bits -= 6) buf_byte(w->out, digits[w->bits >> (w->n_bits - 6) & 63]);
}

static void put_end(bit_writer *w) {
    if (w->n_bits) buf_byte(w->out, digits[w->bits << (6 - w->n_bits) & 63]);
}

static int digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

typedef struct {
    const char *p, *end;
    uint32_t bits, n_bits;
} bit_reader;

/* The next byte; -1: no whole one is left; -2: a character is no digit. */
static int get_byte(bit_reader *r) {
    while (r->n_bits < 8) {
        int d;
        if (r->p == r->end) return -1;
        if ((d = digit(*r->p++)) < 0) return -2;
        r->bits = r->bits << 6 | (uint32_t)d;
        r->n_bits += 6;
    }
    r->n_bits -= 8;
    return (int)(r->bits >> r->n_bits & 255);
}

/* ---- ids ---- */

/* May a client say that its text is this token?  Tokens that plain text can become, and single bytes. */
static bool stands_for_text(const tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n && !tokenizer_is_eog(t, id) && (vocab_is_text(t, id) || vocab_type(t, id) == TYPE_BYTE) &&
           tokenizer_bytes(t, id, false).n;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static bool well_formed(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        if (len <= 0) return false;
        i += (size_t)len;
    }
    return true;
}

/* What stands behind a marker is cut from it, so a text without white space at its edges has these ids in every place. */
static bool same_ids(const tokenizer *t, const char *text, size_t n_text, const int32_t *ids, size_t n) {
    id_list own;
    hd_err err;
    bool same;
    if (is_space(text[0]) || is_space(text[n_text - 1])) return false;
    id_list_init(&own, n);
    same = tokenizer_encode(t, text, n_text, TOK_CONTINUES, &own, &err) == HD_OK && own.n == n &&
           !memcmp(own.ids, ids, n * sizeof *ids);
    id_list_deinit(&own);
    return same;
}

bool replay_write(const tokenizer *t, const int32_t *ids, size_t n, size_t n_text, hd_buf *out) {
    hd_buf text;
    bool use = n && n_text && n <= REPLAY_MAX_IDS;
    buf_init(&text, n_text);
    for (size_t i = 0; i < n && use; i++) {
        gguf_str b = tokenizer_bytes(t, ids[i], false);
        use = stands_for_text(t, ids[i]) && buf_add(&text, b.s, b.n);
    }
    use = use && text.len == n_text && well_formed(text.data, text.len) && !same_ids(t, text.data, text.len, ids, n);
    if (use) {
        bit_writer w = {out, 0, 0};
        buf_str(out, VERSION);
        for (size_t i = 0; i < n; i++) {
            uint32_t v = (uint32_t)ids[i];
            for (; v >= 128; v >>= 7) put_byte(&w, (uint8_t)(v | 128));
            put_byte(&w, (uint8_t)v);
        }
        put_end(&w);
    }
    buf_deinit(&text);
    return use;
}

/* One id; -1: the end, -2: no id. */
static int64_t get_id(bit_reader *r) {
    uint32_t v = 0;
    for (unsigned shift = 0; shift < 28; shift += 7) {
        int b = get_byte(r);
        if (b < 0) return shift ? -2 : b;
        v |= (uint32_t)(b & 127) << shift;
        if (b < 128) return v;
    }
    return -2;
}

bool replay_read(const tokenizer *t, const char *code, size_t n, const char *text, size_t n_text, id_list *out) {
    bit_reader r = {code + 2, code + n, 0, 0};
    size_t at = 0;
    int64_t id;
    hd_err err;
    id_list_init(out, REPLAY_MAX_IDS);
    if (n < 2 || memcmp(code, VERSION, 2) != 0) return false;
    while ((id = get_id(&r)) >= 0) {
        gguf_str b;
        if (!stands_for_text(t, (int32_t)id)) break;
        b = tokenizer_bytes(t, (int32_t)id, false);
        if (b.n > n_text - at || memcmp(b.s, text + at, b.n) != 0 || id_list_add(out, (int32_t)id, &err)) break;
        at += b.n;
    }
    if (id == -1 && at == n_text && out->n) return true;
    id_list_deinit(out);
    return false;
}

bool replay_part(const tokenizer *t, const id_list *l, size_t at, size_t n_bytes, size_t *first, size_t *n) {
    size_t i = 0, pos = 0;
    for (; i < l->n && pos < at; i++) pos += tokenizer_bytes(t, l->ids[i], false).n;
    if (pos != at) return false;
    *first = i;
    for (; i < l->n && pos < at + n_bytes; i++) pos += tokenizer_bytes(t, l->ids[i], false).n;
    *n = i - *first;
    return pos == at + n_bytes;
}
