/* jinja_filter.c - the table of filters, and those that work on one value: text, numbers, defaults.
 * Filters on sequences are in jinja_filter_seq.c, tojson in jinja_json.c.  Semantics: jinja2/filters.py of 3.1.6. */
#include "text/jinja_int.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define NO_ARGS(j, a, fname) jbind(j, fname, a, 0, 0, NULL, NULL)

static bool given(jval v) {
    return v.k != V_MISSING && v.k != V_NONE;
}

/* ---- plain text ---- */

static jval f_upper(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_upper");
    return jstring(jstr_case(j, jsoft_str(j, v), CASE_UPPER));
}

static jval f_lower(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_lower");
    return jstring(jstr_case(j, jsoft_str(j, v), CASE_LOWER));
}

static jval f_capitalize(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_capitalize");
    return jstring(jstr_case(j, jsoft_str(j, v), CASE_CAPITAL));
}

/* Words begin after white space, '-' and opening brackets; unlike str.title, digits and apostrophes end none. */
static jval f_title(jinja *j, jval v, const jargs *a) {
    const jstr *s = jsoft_str(j, v);
    jsb b;
    size_t at = 0, w;
    NO_ARGS(j, a, "do_title");
    jsb_init(&b);
    while (at < s->n) {
        size_t from = at, first;
        for (; at < s->n; at += w) {
            uint32_t cp = jutf8_at(s->p + at);
            w = jutf8_len((unsigned char)s->p[at]);
            if (!jcp_space(cp) && !(cp < 0x80 && strchr("-({[<", (int)cp) && cp)) break;
        }
        jsb_sub(j, &b, s, from, at); /* separators; their upper and lower case are themselves */
        if (at >= s->n) break;
        from = at;
        first = from + jutf8_len((unsigned char)s->p[from]);
        for (; at < s->n; at += w) {
            uint32_t cp = jutf8_at(s->p + at);
            w = jutf8_len((unsigned char)s->p[at]);
            if (jcp_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp))) break;
        }
        jsb_str(j, &b, jstr_case(j, jstr_plain(j, jstr_sub(j, s, from, first)), CASE_UPPER));
        jsb_str(j, &b, jstr_case(j, jstr_plain(j, jstr_sub(j, s, first, at)), CASE_LOWER));
    }
    return jstring(jsb_done(j, &b));
}

static jval f_trim(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"chars"};
    jval chars;
    jbind(j, "do_trim", a, 0, 1, NAMES, &chars);
    if (given(chars) && chars.k != V_STR) jfail(j, J_TYPE, "strip arg must be None or str");
    return jstring(jstr_strip(j, jsoft_str(j, v), given(chars) ? chars.s : NULL, 3));
}

static jval f_replace(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"old", "new", "count"};
    jval x[3];
    int64_t count = -1;
    const jstr *s, *old, *by;
    jbind(j, "do_replace", a, 2, 3, NAMES, x);
    if (given(x[2])) count = jindex(j, x[2], "");
    s = jto_str(j, v);
    old = jto_str(j, x[0]);
    by = jto_str(j, x[1]);
    if (j->autoescape) {
        s = v.k == V_STR && v.s->markup ? v.s : x[0].k == V_STR && x[0].s->markup ? jstr_escape(j, v) : jsoft_str(j, v);
        if (s->markup) by = jstr_escape(j, x[1]);
    }
    return jstring(jstr_replace(j, s, old, by, count));
}

static jval f_string(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "soft_str");
    return jstring(jsoft_str(j, v));
}

static jval f_safe(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_mark_safe");
    return jstring(jstr_markup(j, jsoft_str(j, v)));
}

static jval f_escape(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "escape");
    return jstring(jstr_escape(j, v));
}

static jval f_forceescape(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_forceescape");
    return jstring(jstr_escape(j, jstring(jto_str(j, v))));
}

static jval f_center(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"width"};
    jval w;
    jbind(j, "do_center", a, 0, 1, NAMES, &w);
    return jstring(jstr_pad(j, jsoft_str(j, v), w.k == V_MISSING ? 80 : jindex(j, w, ""), NULL, '^'));
}

static jval f_indent(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"width", "first", "blank"};
    jval x[3];
    const jstr *s, *by;
    jlist *lines;
    jsb b;
    jbind(j, "do_indent", a, 0, 3, NAMES, x);
    if (v.k == V_UNDEF) jundef_raise(j, v);
    if (v.k == V_LIST) jfail(j, J_TYPE, "'list' object has no attribute 'splitlines'");
    if (v.k == V_TUPLE) jfail(j, J_TYPE, "can only concatenate tuple (not \"str\") to tuple");
    if (v.k != V_STR) jfail(j, J_TYPE, "unsupported operand type(s) for +=: '%s' and 'str'", jtype_name(v));
    s = jstr_plain(j, v.s);
    if (x[0].k == V_STR) {
        by = v.s->markup ? jstr_plain(j, jstr_escape(j, x[0])) : jstr_plain(j, x[0].s);
    } else {
        jsb_init(&b);
        if (x[0].k == V_MISSING || jindex(j, x[0], "") > 0)
            jsb_fill(j, &b, jstr_lit(j, " "), x[0].k == V_MISSING ? 4 : (size_t)jindex(j, x[0], ""));
        by = jsb_done(j, &b);
    }
    lines = jstr_lines(j, jstr_concat(j, s, jstr_lit(j, "\n")), false);
    jsb_init(&b);
    for (size_t i = 0; i < lines->n; i++) {
        const jstr *line = lines->v[i].s;
        bool blank = x[2].k != V_MISSING && jtruth(j, x[2]);
        if (i) jsb_lit(j, &b, "\n");
        if (i ? blank || line->n : x[1].k != V_MISSING && jtruth(j, x[1])) jsb_str(j, &b, by);
        jsb_str(j, &b, line);
    }
    return jstring(v.s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b));
}

static jval f_truncate(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"length", "killwords", "end", "leeway"};
    jval x[4];
    int64_t length, leeway;
    const jstr *end, *s, *cut;
    jbind(j, "do_truncate", a, 0, 4, NAMES, x);
    length = x[0].k == V_MISSING ? 255 : jindex(j, x[0], "");
    if (x[2].k != V_MISSING && x[2].k != V_STR) jfail(j, J_TYPE, "end must be a string");
    end = x[2].k == V_MISSING ? jstr_lit(j, "...") : x[2].s;
    leeway = given(x[3]) ? jindex(j, x[3], "") : 5;
    if (length < end->n_cp) jfail(j, J_VALUE, "expected length >= %u, got %lld", end->n_cp, (long long)length);
    if (leeway < 0) jfail(j, J_VALUE, "expected leeway >= 0, got %lld", (long long)leeway);
    if (jlength(j, v) <= length + leeway) return v;
    if (v.k != V_STR) jfail(j, J_TYPE, "can only truncate a string");
    s = v.s;
    cut = jstr_sub(j, s, 0, jstr_offset(s, (size_t)(length - end->n_cp)));
    if (x[1].k == V_MISSING || !jtruth(j, x[1])) {
        jlist *parts = jstr_split(j, cut, jstr_lit(j, " "), 1, true);
        cut = parts->v[0].s;
    }
    return jstring(jstr_concat(j, cut, end));
}

static bool word_char(uint32_t cp) {
    return cp == '_' || jcp_alpha(cp) || jcp_decimal(cp) || jcp_digit(cp) || jcp_numeric(cp);
}

static jval f_wordcount(jinja *j, jval v, const jargs *a) {
    const jstr *s = jsoft_str(j, v);
    bool in = false;
    int64_t n = 0;
    NO_ARGS(j, a, "do_wordcount");
    jbytes(j, s->n);
    for (size_t at = 0; at < s->n; at += jutf8_len((unsigned char)s->p[at])) {
        bool w = word_char(jutf8_at(s->p + at));
        n += w && !in;
        in = w;
    }
    return jint(n);
}

static void quote(jinja *j, jsb *b, jval v, bool query) {
    const jstr *s = jto_str(j, v);
    uint32_t hint = 0;
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        char t[4];
        bool trusted = jstr_trusted_at(s, i, &hint);
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("_.-~", c)) ||
            (c == '/' && !query))
            jsb_add(j, b, s->p + i, 1, trusted);
        else if (c == ' ' && query) jsb_add(j, b, "+", 1, trusted);
        else {
            snprintf(t, sizeof t, "%%%02X", c);
            jsb_add(j, b, t, 3, trusted);
        }
    }
}

static jval f_urlencode(jinja *j, jval v, const jargs *a) {
    jsb b;
    jiter *it;
    jval x;
    bool first = true;
    NO_ARGS(j, a, "do_urlencode");
    jsb_init(&b);
    if (v.k == V_STR || !jiterable(v)) {
        quote(j, &b, v, false);
        return jstring(jsb_done(j, &b));
    }
    it = jiter_new(j, v.k == V_DICT ? (jval){.k = V_VIEW, .sub = JVIEW_ITEMS, .d = v.d} : v);
    while (jiter_next(j, it, &x)) {
        jlist *p = jto_list(j, x);
        if (p->n != 2) jfail(j, J_VALUE, "not enough values to unpack (expected 2, got %zu)", p->n);
        if (!first) jsb_lit(j, &b, "&");
        first = false;
        quote(j, &b, p->v[0], true);
        jsb_lit(j, &b, "=");
        quote(j, &b, p->v[1], true);
    }
    return jstring(jsb_done(j, &b));
}

static jval f_striptags(jinja *j, jval v, const jargs *a) {
    const jstr *s = jto_str(j, v);
    jsb b;
    size_t pos = 0;
    jlist *words;
    NO_ARGS(j, a, "do_striptags");
    jsb_init(&b);
    while (pos < s->n) {
        const char *q = memchr(s->p + pos, '<', s->n - pos);
        size_t start, end;
        int64_t at;
        if (!q) break;
        start = (size_t)(q - s->p);
        if (s->n - start >= 4 && !memcmp(q, "<!--", 4)) {
            at = jstr_find(j, s, jstr_lit(j, "-->"), start + 4, s->n, false);
            end = (size_t)at + 3;
        } else {
            at = jstr_find(j, s, jstr_lit(j, ">"), start, s->n, false);
            end = (size_t)at + 1;
        }
        if (at < 0) break;
        jsb_sub(j, &b, s, pos, start);
        pos = end;
    }
    jsb_sub(j, &b, s, pos, s->n);
    words = jstr_split(j, jsb_done(j, &b), NULL, -1, false);
    s = jstr_join(j, jstr_lit(j, " "), jlistv(words), false);
    if (memchr(s->p, '&', s->n))
        jfail(j, J_UNSUPPORTED, "striptags of text with character references is not supported");
    return jstring(s);
}

static jval f_xmlattr(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"autospace"};
    jval space;
    jsb b;
    jbind(j, "do_xmlattr", a, 0, 1, NAMES, &space);
    if (v.k == V_UNDEF) jundef_raise(j, v);
    if (v.k != V_DICT) jfail(j, J_TYPE, "'%s' object has no attribute 'items'", jtype_name(v));
    jsb_init(&b);
    for (uint32_t i = 0; i < v.d->n; i++) {
        const jentry *e = &v.d->e[i];
        if (e->val.k == V_NONE || e->val.k == V_UNDEF) continue;
        if (e->key.k != V_STR) jfail(j, J_TYPE, "expected string or bytes-like object");
        for (size_t k = 0; k < e->key.s->n; k++)
            if (e->key.s->p[k] && strchr(" \t\n\r\f\v/>=", e->key.s->p[k]))
                jfail(j, J_VALUE, "Invalid character in attribute name");
        if (b.n || space.k == V_MISSING || jtruth(j, space)) jsb_lit(j, &b, " ");
        jsb_str(j, &b, jstr_escape(j, e->key));
        jsb_lit(j, &b, "=\"");
        jsb_str(j, &b, jstr_escape(j, e->val));
        jsb_lit(j, &b, "\"");
    }
    return jstring(j->autoescape ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b));
}

static jval f_format(jinja *j, jval v, const jargs *a) {
    if (a->n && a->n_kw) jfail(j, J_RUNTIME, "can't handle positional and keyword arguments at the same time");
    if (a->n_kw) {
        jdict *d = jdict_new(j);
        for (size_t i = 0; i < a->n_kw; i++) jdict_set(j, d, jstring(a->kw[i]), a->kv[i]);
        return jstring(jformat_percent(j, jsoft_str(j, v), jdictv(d)));
    } else {
        jlist *l = jlist_new(j, a->n);
        for (size_t i = 0; i < a->n; i++) l->v[l->n++] = a->v[i];
        return jstring(jformat_percent(j, jsoft_str(j, v), jtuplev(l)));
    }
}

/* repr, with dicts in key order; Python also breaks lines wider than 80. */
static jval sorted_dicts(jinja *j, jval v) {
    jval r = v;
    jdeeper(j);
    if (v.k == V_LIST || v.k == V_TUPLE) {
        jlist *l = jlist_new(j, v.l->n);
        for (size_t i = 0; i < v.l->n; i++) l->v[l->n++] = sorted_dicts(j, v.l->v[i]);
        r.l = l;
    } else if (v.k == V_DICT) {
        jval keys = jfilter_find("sort", 4)->fn(
            j, v,
            &(jargs){.n_kw = 1, .kw = (const jstr *[]){jstr_lit(j, "case_sensitive")}, .kv = (jval[]){jbool(true)}});
        r = jdictv(jdict_new(j));
        for (size_t i = 0; i < keys.l->n; i++) {
            jval x = jnone();
            jdict_get(j, v.d, keys.l->v[i], &x);
            jdict_set(j, r.d, keys.l->v[i], sorted_dicts(j, x));
        }
    }
    jhigher(j);
    return r;
}

static jval f_pprint(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_pprint");
    return jstring(jrepr(j, sorted_dicts(j, v)));
}

/* ---- numbers ---- */

/* int(text, base) of Python; false: not a number of that base. */
static bool parse_int(jinja *j, const jstr *s, int base, jval *out) {
    size_t i = 0, n;
    bool neg = false, digit = false;
    ji128 v = 0;
    s = jstr_strip(j, s, NULL, 3);
    n = s->n;
    if (i < n && (s->p[i] == '-' || s->p[i] == '+')) neg = s->p[i++] == '-';
    if (i + 1 < n && s->p[i] == '0' && strchr("xXoObB", s->p[i + 1])) {
        int b = s->p[i + 1] == 'x' || s->p[i + 1] == 'X' ? 16 : s->p[i + 1] == 'o' || s->p[i + 1] == 'O' ? 8 : 2;
        if (base == 0 || base == b) {
            base = b;
            i += 2;
            if (i < n && s->p[i] == '_') i++;
        }
    }
    if (base == 0) base = 10;
    for (; i < n; i++) {
        char c = s->p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'z' ? c - 'a' + 10
                : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                       : 99;
        if (c == '_' && digit && i + 1 < n && s->p[i + 1] != '_') {
            digit = false;
            continue;
        }
        if (d >= base) return false;
        digit = true;
        if (__builtin_mul_overflow(v, (ji128)base, &v) || __builtin_add_overflow(v, (ji128)d, &v))
            jfail(j, J_UNSUPPORTED, "integer too large");
    }
    if (!digit) return false;
    *out = jint128(j, neg ? -v : v);
    return true;
}

static bool parse_float(jinja *j, const jstr *s, double *out) {
    char t[400], *end;
    size_t k = 0;
    s = jstr_strip(j, s, NULL, 3);
    if (!s->n || s->n >= sizeof t) return false;
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        if (c == '_') {
            if (!i || i + 1 >= s->n || s->p[i - 1] < '0' || s->p[i - 1] > '9' || s->p[i + 1] < '0' || s->p[i + 1] > '9')
                return false;
            continue;
        }
        if (!c || c == 'x' || c == 'X' || c == 'p' || c == 'P' || c == '(')
            return false; /* C's forms that Python lacks */
        t[k++] = c;
    }
    t[k] = 0;
    *out = strtod(t, &end);
    return end == t + k;
}

static bool to_float(jinja *j, jval v, double *out) {
    if (v.k == V_UNDEF) jundef_raise(j, v);
    if (jis_num(v)) {
        *out = jas_double(v);
        return true;
    }
    return v.k == V_STR && parse_float(j, v.s, out);
}

static bool float_to_int(jinja *j, double f, jval *out) {
    if (!isfinite(f)) return false;
    if (fabs(f) >= 0x1p126) jfail(j, J_UNSUPPORTED, "integer too large");
    *out = jint128(j, (ji128)f);
    return true;
}

static jval f_int(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"default", "base"};
    jval x[2], r;
    double f;
    jbind(j, "do_int", a, 0, 2, NAMES, x);
    if (jis_int(v)) return jint128(j, jas_i128(v));
    if (v.k == V_UNDEF) jundef_raise(j, v);
    if (v.k == V_FLOAT && isinf(v.f)) jfail(j, J_VALUE, "cannot convert float infinity to integer");
    if (v.k == V_STR) {
        int64_t base = x[1].k == V_MISSING ? 10 : jindex(j, x[1], "");
        if ((base == 0 || (base >= 2 && base <= 36)) && parse_int(j, v.s, (int)base, &r)) return r;
    }
    if (to_float(j, v, &f) && float_to_int(j, f, &r)) return r;
    return x[0].k == V_MISSING ? jint(0) : x[0];
}

static jval f_float(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"default"};
    jval dflt;
    double f;
    jbind(j, "do_float", a, 0, 1, NAMES, &dflt);
    if (to_float(j, v, &f)) return jfloat(f);
    return dflt.k == V_MISSING ? jfloat(0) : dflt;
}

static jval f_abs(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "abs");
    if (!jis_num(v)) jfail(j, J_TYPE, "bad operand type for abs(): '%s'", jtype_name(v));
    if (v.k == V_FLOAT) return jfloat(fabs(v.f));
    return jas_i128(v) < 0 ? jnegate(j, v, false) : jint128(j, jas_i128(v));
}

/* round(): half to even of the exact value, which is what correct decimal output does. */
static double round_to(double v, int64_t digits) {
    char t[400];
    if (!isfinite(v) || digits > 308) return v;
    if (digits < 0) {
        double p = pow(10, (double)-digits), q = v / p, r = nearbyint(q);
        return digits < -308 ? copysign(0, v) : r * p;
    }
    snprintf(t, sizeof t, "%.*f", (int)digits, v);
    return strtod(t, NULL);
}

static jval f_round(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"precision", "method"};
    jval x[2];
    int64_t digits;
    double p;
    jbind(j, "do_round", a, 0, 2, NAMES, x);
    digits = x[0].k == V_MISSING ? 0 : jindex(j, x[0], "");
    if (x[1].k != V_MISSING &&
        !(x[1].k == V_STR && (jstr_is(x[1].s, "common") || jstr_is(x[1].s, "ceil") || jstr_is(x[1].s, "floor"))))
        jfail(j, J_RUNTIME, "method must be common, ceil or floor");
    if (!jis_num(v)) jfail(j, J_TYPE, "type %s doesn't define __round__ method", jtype_name(v));
    if (x[1].k == V_MISSING || jstr_is(x[1].s, "common")) {
        if (v.k == V_FLOAT) return jfloat(round_to(v.f, digits));
        if (digits >= 0) return jint128(j, jas_i128(v));
        if (digits < -30) return jint(0);
        {
            ji128 unit = 1, i = jas_i128(v), q, r;
            for (int64_t k = digits; k < 0; k++) unit *= 10;
            q = i / unit;
            r = i % unit;
            if (r < 0) r = -r;
            if (2 * r > unit || (2 * r == unit && q % 2)) q += i < 0 ? -1 : 1;
            return jint128(j, q * unit);
        }
    }
    p = pow(10, (double)digits);
    return jfloat((jstr_is(x[1].s, "ceil") ? ceil(jas_double(v) * p) : floor(jas_double(v) * p)) / p);
}

static jval f_filesizeformat(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"binary"}, *const UNITS = "kMGTPEZY";
    jval x;
    double f = 0, base, unit;
    bool binary;
    int i = 0;
    jbind(j, "do_filesizeformat", a, 0, 1, NAMES, &x);
    if (!to_float(j, v, &f)) {
        const jstr *r = jrepr(j, v);
        if (v.k == V_STR)
            jfail(j, J_VALUE, "could not convert string to float: %.*s", r->n < 200 ? (int)r->n : 200, r->p);
        jfail(j, J_TYPE, "float() argument must be a string or a real number, not '%s'", jtype_name(v));
    }
    binary = x.k != V_MISSING && jtruth(j, x);
    base = binary ? 1024 : 1000;
    if (f == 1) return jstring(jstr_lit(j, "1 Byte"));
    if (f < base) return jstring(jstr_fmt(j, "%.0f Bytes", trunc(f) + 0.0));
    for (unit = base * base; i < 7 && f >= unit; i++) unit *= base;
    return jstring(jstr_fmt(j, "%.1f %c%sB", base * f / unit, i || !binary ? UNITS[i] : 'K', binary ? "i" : ""));
}

/* ---- choice and lookup ---- */

static jval f_default(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"default_value", "boolean"};
    jval x[2];
    jbind(j, "do_default", a, 0, 2, NAMES, x);
    if (v.k == V_UNDEF || (x[1].k != V_MISSING && jtruth(j, x[1]) && !jtruth(j, v)))
        return x[0].k == V_MISSING ? jstring(jstr_lit(j, "")) : x[0];
    return v;
}

static jval f_attr(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"name"};
    jval name;
    jbind(j, "do_attr", a, 1, 1, NAMES, &name);
    if (name.k != V_STR) jfail(j, J_TYPE, "attribute name must be string, not '%s'", jtype_name(name));
    if (v.k == V_UNDEF) jundef_raise(j, v);
    if (jmethod_find(j, v, name.s).k == V_MISSING) return jundef_attr(j, v, name);
    return jget_attr(j, v, name.s);
}

static const jfilter FILTERS[] = {
    {"abs", f_abs}, {"attr", f_attr}, {"capitalize", f_capitalize}, {"center", f_center}, {"d", f_default},
    {"default", f_default}, {"e", f_escape}, {"escape", f_escape}, {"filesizeformat", f_filesizeformat},
    {"float", f_float}, {"forceescape", f_forceescape}, {"format", f_format}, {"indent", f_indent}, {"int", f_int},
    {"lower", f_lower}, {"pprint", f_pprint}, {"replace", f_replace}, {"round", f_round}, {"safe", f_safe},
    {"string", f_string}, {"striptags", f_striptags}, {"title", f_title}, {"tojson", jtojson}, {"trim", f_trim},
    {"truncate", f_truncate}, {"upper", f_upper}, {"urlencode", f_urlencode}, {"wordcount", f_wordcount},
    {"xmlattr", f_xmlattr}};

static const jfilter *find(const jfilter *t, size_t n_t, const char *name, size_t n) {
    for (size_t i = 0; i < n_t; i++)
        if (strlen(t[i].name) == n && !memcmp(t[i].name, name, n)) return &t[i];
    return NULL;
}

const jfilter *jfilter_find(const char *name, size_t n) {
    const jfilter *f = find(FILTERS, sizeof FILTERS / sizeof *FILTERS, name, n);
    return f ? f : find(jfilters_seq, jfilters_seq_n, name, n);
}
