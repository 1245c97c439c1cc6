/* jinja_str.c - strings that know which of their bytes came out of the input, and text forms of values.
 *
 * Lengths and indices that templates see count code points; n_cp == n marks ASCII, where both are equal.  Every
 * operation carries the spans along: a part keeps the spans inside it, a concatenation shifts the second's. */
#include "text/jinja_int.h"

#include "base/jsonw.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <utf8proc.h>

/* ---- UTF-8 that is known to be valid ---- */

size_t jutf8_len(unsigned char c) {
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

uint32_t jutf8_at(const char *p) {
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80) return u[0];
    if (u[0] < 0xe0) return (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3f);
    if (u[0] < 0xf0) return (uint32_t)(u[0] & 0x0f) << 12 | (uint32_t)(u[1] & 0x3f) << 6 | (u[2] & 0x3f);
    return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3f) << 12 | (uint32_t)(u[2] & 0x3f) << 6 | (u[3] & 0x3f);
}

size_t jutf8_put(char dst[4], uint32_t cp) {
    if (cp < 0x80) {
        dst[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        dst[0] = (char)(0xc0 | cp >> 6);
        dst[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        dst[0] = (char)(0xe0 | cp >> 12);
        dst[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        dst[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    dst[0] = (char)(0xf0 | cp >> 18);
    dst[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    dst[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    dst[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t jutf8_count(const char *p, size_t n) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) k += ((unsigned char)p[i] & 0xc0) != 0x80;
    return k;
}

bool jcp_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

bool jcp_printable(uint32_t cp) {
    if (cp < 0x7f) return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CS: case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

/* ---- building ---- */

void jsb_init(jsb *b) {
    *b = (jsb){0};
}

static void sb_room(jinja *j, jsb *b, size_t more) {
    size_t cap = b->cap ? b->cap : 64;
    if (b->n + more <= b->cap) return;
    if (b->n + more > UINT32_MAX / 4) jfail(j, J_LIMIT, "string too long");
    while (cap < b->n + more) cap *= 2;
    if (cap > j->mem.max_bytes / 4) cap = b->n + more; /* doubling would run into the limit early */
    b->p = jgrow(j, b->p, b->cap, cap);
    b->cap = cap;
}

static void sb_span(jinja *j, jsb *b, size_t a, size_t z) {
    if (a >= z) return;
    if (b->n_spans && b->spans[b->n_spans - 1].b == a) {
        b->spans[b->n_spans - 1].b = (uint32_t)z;
        return;
    }
    if (b->n_spans == b->cap_spans) {
        size_t cap = b->cap_spans ? b->cap_spans * 2 : 4;
        b->spans = jgrow(j, b->spans, b->cap_spans * sizeof *b->spans, cap * sizeof *b->spans);
        b->cap_spans = cap;
    }
    b->spans[b->n_spans++] = (jspan){(uint32_t)a, (uint32_t)z};
}

/* The output itself: bytes go to the caller's buffer. */
static void root_add(jinja *j, const jsb *b, const char *p, size_t n) {
    if (b->n + n <= b->cap && buf_add(j->out, p, n)) return;
    if (j->out->failed == HD_NOMEM) jfail(j, J_MEMORY, "no memory for the output");
    jfail(j, J_LIMIT, "the template's output is longer than %zu bytes", b->n + n > b->cap ? b->cap : j->out->max_bytes);
}

static void sb_bytes(jinja *j, jsb *b, const char *p, size_t n) {
    jbytes(j, n);
    if (b->root) {
        root_add(j, b, p, n);
    } else {
        sb_room(j, b, n);
        memcpy(b->p + b->n, p, n);
    }
    b->n += n;
}

void jsb_add(jinja *j, jsb *b, const char *p, size_t n, bool trusted) {
    if (!n) return;
    sb_bytes(j, b, p, n);
    if (!trusted) sb_span(j, b, b->n - n, b->n);
}

void jsb_lit(jinja *j, jsb *b, const char *s) {
    jsb_add(j, b, s, strlen(s), true);
}

/* The first span that ends after byte `at`. */
static uint32_t span_after(const jstr *s, size_t at) {
    uint32_t lo = 0, hi = s->n_spans;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (s->spans[mid].b <= at) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

void jsb_sub(jinja *j, jsb *b, const jstr *s, size_t from, size_t to) {
    size_t at = b->n;
    if (from >= to) return;
    sb_bytes(j, b, s->p + from, to - from);
    for (uint32_t i = span_after(s, from); i < s->n_spans && s->spans[i].a < to; i++) {
        size_t a = s->spans[i].a > from ? s->spans[i].a : from, z = s->spans[i].b < to ? s->spans[i].b : to;
        jstep(j, i & 1);
        sb_span(j, b, at + a - from, at + z - from);
    }
}

void jsb_str(jinja *j, jsb *b, const jstr *s) {
    jsb_sub(j, b, s, 0, s->n);
}

void jsb_fill(jinja *j, jsb *b, const jstr *s, size_t times) {
    uint64_t total = (uint64_t)s->n * times;
    if (!s->n || !times) return;
    if (times > UINT32_MAX || total > UINT32_MAX / 4) jfail(j, J_LIMIT, "string too long");
    jstep(j, times);
    if (!b->root) sb_room(j, b, total);
    for (size_t i = 0; i < times; i++) jsb_str(j, b, s);
}

void jsb_cp(jinja *j, jsb *b, uint32_t cp, bool trusted) {
    char t[4];
    jsb_add(j, b, t, jutf8_put(t, cp), trusted);
}

void jsb_untrust(jinja *j, jsb *b, size_t from) {
    while (b->n_spans && b->spans[b->n_spans - 1].a >= from) b->n_spans--;
    if (b->n_spans && b->spans[b->n_spans - 1].b > from) b->spans[b->n_spans - 1].b = (uint32_t)from;
    sb_span(j, b, from, b->n);
}

const jstr *jsb_done(jinja *j, jsb *b) {
    jstr *s = jalloc(j, sizeof *s);
    *s = (jstr){.p = b->n ? b->p : "", .n = (uint32_t)b->n, .spans = b->spans, .n_spans = (uint32_t)b->n_spans};
    s->n_cp = (uint32_t)jutf8_count(s->p, s->n);
    return s;
}

bool jstr_trusted_at(const jstr *s, size_t at, uint32_t *hint) {
    while (*hint < s->n_spans && s->spans[*hint].b <= at) ++*hint;
    return *hint >= s->n_spans || at < s->spans[*hint].a;
}

/* ---- making strings ---- */

void jstr_init(jstr *s, const char *p, size_t n) {
    *s = (jstr){.p = p, .n = (uint32_t)n, .n_cp = (uint32_t)jutf8_count(p, n)};
    s->hash = jstr_hash(s);
}

const jstr *jstr_lit(jinja *j, const char *p) {
    jstr *s = jalloc(j, sizeof *s);
    *s = (jstr){.p = p, .n = (uint32_t)strlen(p)};
    s->n_cp = (uint32_t)jutf8_count(p, s->n);
    return s;
}

const jstr *jstr_copy(jinja *j, const char *p, size_t n, bool trusted) {
    jsb b;
    jsb_init(&b);
    jsb_add(j, &b, p, n, trusted);
    return jsb_done(j, &b);
}

const jstr *jstr_fmt(jinja *j, const char *fmt, ...) {
    char t[200];
    int n;
    va_list ap;
    va_start(ap, fmt);
    n = vsnprintf(t, sizeof t, fmt, ap);
    va_end(ap);
    return jstr_copy(j, t, n < 0 ? 0 : n < (int)sizeof t ? (size_t)n : sizeof t - 1, true);
}

/* A view: no bytes are copied, spans only where the part begins or ends inside the spanned region. */
const jstr *jstr_sub(jinja *j, const jstr *s, size_t a, size_t b) {
    jstr *t;
    uint32_t first, last;
    if (a == 0 && b == s->n) return s;
    t = jalloc(j, sizeof *t);
    *t = (jstr){.p = s->p + a, .n = (uint32_t)(b - a), .markup = s->markup};
    if (s->n == s->n_cp) {
        t->n_cp = t->n;
    } else {
        jbytes(j, t->n);
        t->n_cp = (uint32_t)jutf8_count(t->p, t->n);
    }
    first = span_after(s, a);
    for (last = first; last < s->n_spans && s->spans[last].a < b;) last++;
    if (first < last) {
        jspan *v = jalloc(j, (last - first) * sizeof *v);
        jstep(j, (last - first) / 8);
        for (uint32_t i = first; i < last; i++) {
            size_t from = s->spans[i].a > a ? s->spans[i].a : a, to = s->spans[i].b < b ? s->spans[i].b : b;
            v[i - first] = (jspan){(uint32_t)(from - a), (uint32_t)(to - a)};
        }
        t->spans = v;
        t->n_spans = last - first;
    }
    return t;
}

/* Templates that loop over a content that happens to be a string make many of these: ASCII ones are kept. */
const jstr *jstr_char(jinja *j, const jstr *s, size_t at) {
    unsigned char c = (unsigned char)s->p[at];
    uint32_t span = span_after(s, at);
    bool trusted = span >= s->n_spans || at < s->spans[span].a;
    if (c >= 0x80 || s->markup) return jstr_sub(j, s, at, at + jutf8_len(c));
    if (!j->chars[trusted][c]) j->chars[trusted][c] = jstr_sub(j, s, at, at + 1);
    return j->chars[trusted][c];
}

static void room_spans(jinja *j, jroom *r, const jspan *v, uint32_t n, uint32_t shift) {
    if (r->n_spans + n > r->cap_spans) {
        uint32_t cap = r->n_spans ? 2 * (r->n_spans + n) : n;
        jspan *bigger = jalloc(j, cap * sizeof *bigger);
        jstep(j, r->n_spans / 8);
        if (r->n_spans) memcpy(bigger, r->spans, r->n_spans * sizeof *bigger);
        r->spans = bigger; /* older strings keep the old ones */
        r->cap_spans = cap;
    }
    for (uint32_t i = 0; i < n; i++) r->spans[r->n_spans++] = (jspan){v[i].a + shift, v[i].b + shift};
    jstep(j, n / 8);
}

/* Chains like s = s + x take time and memory in proportion to what is added. */
const jstr *jstr_concat(jinja *j, const jstr *a, const jstr *b) {
    jstr *s;
    jroom *room = a->room;
    uint64_t n = (uint64_t)a->n + b->n;
    if (a->markup != b->markup) {
        if (a->markup) b = jstr_escape(j, jstring(b));
        else a = jstr_escape(j, jstring(a));
        return jstr_concat(j, a, b);
    }
    if (!b->n) return a;
    if (!a->n) return b;
    if (n > UINT32_MAX / 4) jfail(j, J_LIMIT, "string too long");
    jbytes(j, b->n);
    if (!room || a->n != room->used || room->cap - room->used < b->n) {
        size_t cap = room ? 2 * n : n; /* the second addition shows that more will come */
        jbytes(j, n);
        if (cap > j->mem.max_bytes / 4) cap = n;
        room = jalloc(j, sizeof *room + cap);
        *room = (jroom){.used = a->n, .cap = cap};
        memcpy(room->data, a->p, a->n);
        room_spans(j, room, a->spans, a->n_spans, 0);
    }
    memcpy(room->data + room->used, b->p, b->n);
    room->used += b->n;
    room_spans(j, room, b->spans, b->n_spans, a->n);
    s = jalloc(j, sizeof *s);
    *s = (jstr){.p = room->data, .n = (uint32_t)n, .n_cp = a->n_cp + b->n_cp, .room = room, .markup = a->markup,
                .spans = room->spans, .n_spans = room->n_spans};
    return s;
}

static const jstr *with_markup(jinja *j, const jstr *s, bool on) {
    jstr *t;
    if (s->markup == on) return s;
    t = jalloc(j, sizeof *t);
    *t = *s;
    t->markup = on;
    return t;
}

const jstr *jstr_plain(jinja *j, const jstr *s) {
    return with_markup(j, s, false);
}

const jstr *jstr_markup(jinja *j, const jstr *s) {
    return with_markup(j, s, true);
}

const jstr *jstr_escape(jinja *j, jval v) {
    const jstr *s;
    jsb b;
    size_t from = 0, at = 0;
    uint32_t hint = 0;
    if (v.k == V_STR && v.s->markup) return v.s;
    s = jto_str(j, v);
    jsb_init(&b);
    for (; at < s->n; at++) {
        const char *by = s->p[at] == '&' ? "&amp;" : s->p[at] == '<' ? "&lt;" : s->p[at] == '>' ? "&gt;"
                       : s->p[at] == '"' ? "&#34;" : s->p[at] == '\'' ? "&#39;" : NULL;
        if (!by) continue;
        jsb_sub(j, &b, s, from, at);
        jsb_add(j, &b, by, strlen(by), jstr_trusted_at(s, at, &hint));
        from = at + 1;
    }
    jsb_sub(j, &b, s, from, s->n);
    return jstr_markup(j, jsb_done(j, &b));
}

bool jstr_tainted(const jstr *s) {
    return s->n_spans != 0;
}

size_t jstr_offset(const jstr *s, size_t cp) {
    size_t at = 0;
    if (s->n == s->n_cp) return cp;
    if (cp >= s->n_cp) return s->n;
    while (cp--) at += jutf8_len((unsigned char)s->p[at]);
    return at;
}

bool jstr_eq(const jstr *a, const jstr *b) {
    return a->n == b->n && (a->p == b->p || !memcmp(a->p, b->p, a->n));
}

bool jstr_is(const jstr *s, const char *lit) {
    return s->n == strlen(lit) && !memcmp(s->p, lit, s->n);
}

/* ---- text of values ---- */

/* Shortest digits that read back equal, as Python's repr. */
void jfloat_text(jinja *j, double f, char dst[40]) {
    hd_buf b;
    bool ok;
    if (isnan(f)) strcpy(dst, "nan");
    else if (isinf(f)) strcpy(dst, f > 0 ? "inf" : "-inf");
    else {
        buf_init(&b, 64);
        jsonw_double(&b, f);
        ok = !b.failed && b.len < 40;
        if (ok) memcpy(dst, b.data, b.len + 1);
        buf_deinit(&b);
        if (!ok) jfail(j, J_MEMORY, "no memory to render the template");
    }
}

static void add_int(jinja *j, jsb *b, jval v) {
    char t[48];
    size_t k = sizeof t;
    ji128 i = jas_i128(v);
    unsigned __int128 u = i < 0 ? -(unsigned __int128)i : (unsigned __int128)i;
    do t[--k] = (char)('0' + (int)(u % 10));
    while (u /= 10);
    if (i < 0) t[--k] = '-';
    jsb_add(j, b, t + k, sizeof t - k, true);
}

static void repr_str(jinja *j, jsb *b, const jstr *s) {
    bool single = memchr(s->p, '\'', s->n) != NULL, dbl = memchr(s->p, '"', s->n) != NULL;
    char q = single && !dbl ? '"' : '\'', t[12];
    uint32_t hint = 0;
    size_t from = 0;
    if (s->markup) jsb_lit(j, b, "Markup(");
    jsb_add(j, b, &q, 1, true);
    for (size_t at = 0, w; at < s->n; at += w) {
        uint32_t cp = jutf8_at(s->p + at);
        w = jutf8_len((unsigned char)s->p[at]);
        if (cp == (unsigned char)q || cp == '\\') snprintf(t, sizeof t, "\\%c", (char)cp);
        else if (cp == '\n') strcpy(t, "\\n");
        else if (cp == '\r') strcpy(t, "\\r");
        else if (cp == '\t') strcpy(t, "\\t");
        else if (jcp_printable(cp)) continue;
        else snprintf(t, sizeof t, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        jsb_sub(j, b, s, from, at);
        jsb_add(j, b, t, strlen(t), jstr_trusted_at(s, at, &hint));
        from = at + w;
    }
    jsb_sub(j, b, s, from, s->n);
    jsb_add(j, b, &q, 1, true);
    if (s->markup) jsb_lit(j, b, ")");
}

static void repr_bytes(jinja *j, jsb *b, const jstr *s) {
    char q = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'', t[8];
    uint32_t hint = 0;
    jsb_lit(j, b, "b");
    jsb_add(j, b, &q, 1, true);
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        if (c == (unsigned char)q || c == '\\') snprintf(t, sizeof t, "\\%c", c);
        else if (c == '\n') strcpy(t, "\\n");
        else if (c == '\r') strcpy(t, "\\r");
        else if (c == '\t') strcpy(t, "\\t");
        else snprintf(t, sizeof t, c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", c);
        jsb_add(j, b, t, strlen(t), jstr_trusted_at(s, i, &hint));
    }
    jsb_add(j, b, &q, 1, true);
}

static void repr_list(jinja *j, jsb *b, const jlist *l, const char *open, const char *close) {
    jsb_lit(j, b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i) jsb_lit(j, b, ", ");
        jrepr_add(j, b, l->v[i]);
    }
    if (*open == '(' && l->n == 1) jsb_lit(j, b, ",");
    jsb_lit(j, b, close);
}

static void repr_dict(jinja *j, jsb *b, const jdict *d) {
    jsb_lit(j, b, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) jsb_lit(j, b, ", ");
        jrepr_add(j, b, d->e[i].key);
        jsb_lit(j, b, ": ");
        jrepr_add(j, b, d->e[i].val);
    }
    jsb_lit(j, b, "}");
}

static void repr_view(jinja *j, jsb *b, jval v) {
    jsb_lit(j, b, jtype_name(v));
    jsb_lit(j, b, "(");
    repr_list(j, b, jto_list(j, v), "[", "]");
    jsb_lit(j, b, ")");
}

void jrepr_add(jinja *j, jsb *b, jval v) {
    char t[200];
    jstep(j, 1);
    jdeeper(j);
    t[0] = 0;
    switch (v.k) {
    case V_MISSING: case V_UNDEF: strcpy(t, "Undefined"); break;
    case V_NONE: strcpy(t, "None"); break;
    case V_BOOL: strcpy(t, v.i ? "True" : "False"); break;
    case V_INT: case V_BIG: add_int(j, b, v); break;
    case V_FLOAT: jfloat_text(j, v.f, t); break;
    case V_STR: repr_str(j, b, v.s); break;
    case V_BYTES: repr_bytes(j, b, v.s); break;
    case V_LIST: repr_list(j, b, v.l, "[", "]"); break;
    case V_TUPLE: repr_list(j, b, v.l, "(", ")"); break;
    case V_DICT: repr_dict(j, b, v.d); break;
    case V_NS:
        jsb_lit(j, b, "<Namespace ");
        repr_dict(j, b, v.d);
        jsb_lit(j, b, ">");
        break;
    case V_VIEW: repr_view(j, b, v); break;
    case V_RANGE:
        snprintf(t, sizeof t, v.r->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)", (long long)v.r->start,
                 (long long)v.r->stop, (long long)v.r->step);
        break;
    case V_MACRO:
        if (v.m->node->kind == N_CALLBLOCK) {
            strcpy(t, "<Macro anonymous>");
        } else {
            const jstr *name = &v.m->node->name->s;
            snprintf(t, sizeof t, "<Macro '%.*s'>", name->n < 100 ? (int)name->n : 100, name->p);
        }
        break;
    case V_LOOP:
        snprintf(t, sizeof t, "<LoopContext %lld/%lld>", (long long)v.lp->index0 + 1, (long long)jloop_length(j, v.lp));
        break;
    default: snprintf(t, sizeof t, "<%s object>", jtype_name(v)); /* Python prints an address */
    }
    jsb_lit(j, b, t);
    jhigher(j);
}

void jprint(jinja *j, jsb *b, jval v) {
    if (v.k == V_STR) jsb_str(j, b, v.s);
    else if (v.k != V_UNDEF) jrepr_add(j, b, v);
}

const jstr *jto_str(jinja *j, jval v) {
    jsb b;
    if (v.k == V_STR) return jstr_plain(j, v.s);
    jsb_init(&b);
    jprint(j, &b, v);
    return jsb_done(j, &b);
}

const jstr *jsoft_str(jinja *j, jval v) {
    return v.k == V_STR ? v.s : jto_str(j, v);
}

const jstr *jrepr(jinja *j, jval v) {
    jsb b;
    jsb_init(&b);
    jrepr_add(j, &b, v);
    return jsb_done(j, &b);
}
