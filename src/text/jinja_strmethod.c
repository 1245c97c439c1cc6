/* jinja_strmethod.c - the methods of Python's str, with spans carried along.  Methods of Markup are the same and give
 * Markup; arguments that end up in the text are escaped there. */
#include "text/jinja_int.h"

enum {
    S_CAPITALIZE, S_CASEFOLD, S_CENTER, S_COUNT, S_ENCODE, S_ENDSWITH, S_EXPANDTABS, S_FIND, S_FORMAT, S_FORMAT_MAP,
    S_INDEX, S_ISALNUM, S_ISALPHA, S_ISASCII, S_ISDECIMAL, S_ISDIGIT, S_ISIDENTIFIER, S_ISLOWER, S_ISNUMERIC,
    S_ISPRINTABLE, S_ISSPACE, S_ISTITLE, S_ISUPPER, S_JOIN, S_LJUST, S_LOWER, S_LSTRIP, S_MAKETRANS, S_PARTITION,
    S_REMOVEPREFIX, S_REMOVESUFFIX, S_REPLACE, S_RFIND, S_RINDEX, S_RJUST, S_RPARTITION, S_RSPLIT, S_RSTRIP, S_SPLIT,
    S_SPLITLINES, S_STARTSWITH, S_STRIP, S_SWAPCASE, S_TITLE, S_TRANSLATE, S_UPPER, S_ZFILL
};
static const char *const NAMES[] = {
    "capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find", "format", "format_map",
    "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
    "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "maketrans", "partition",
    "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "translate", "upper", "zfill"};

int jstr_method_id(const jstr *name) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (jstr_is(name, NAMES[i])) return (int)i;
    return -1;
}

const char *jstr_method_name(int id) {
    return NAMES[id];
}

/* ---- searching ---- */

int64_t jstr_find(jinja *j, const jstr *s, const jstr *what, size_t from, size_t to, bool last) {
    const char *p = s->p;
    if (from > to || to - from < what->n) return -1;
    jstep(j, 1);
    if (!what->n) return (int64_t)(last ? to : from);
    if (!last) {
        const char *q = memmem(p + from, to - from, what->p, what->n);
        jbytes(j, q ? (size_t)(q - p) - from : to - from); /* only what was looked at */
        return q ? q - p : -1;
    }
    for (size_t at = to - what->n + 1; at-- > from;) {
        if (p[at] != what->p[0]) {
            if (!(at & 63)) jstep(j, 1);
            continue;
        }
        jbytes(j, what->n);
        jstep(j, 1);
        if (!memcmp(p + at, what->p, what->n)) return (int64_t)at;
    }
    return -1;
}

static int strip_from(const jstr *s, const jstr *chars, size_t at, size_t *w) {
    uint32_t cp = jutf8_at(s->p + at);
    *w = jutf8_len((unsigned char)s->p[at]);
    if (!chars) return jcp_space(cp);
    if (*w == 1) return memchr(chars->p, s->p[at], chars->n) != NULL;
    return memmem(chars->p, chars->n, s->p + at, *w) != NULL;
}

const jstr *jstr_strip(jinja *j, const jstr *s, const jstr *chars, int side) {
    size_t a = 0, b = s->n, w;
    while (side & 1 && a < b && strip_from(s, chars, a, &w)) {
        a += w;
        jstep(j, chars ? chars->n / 64 + 1 : 0);
    }
    while (side & 2 && b > a) {
        size_t k = b - 1;
        while (((unsigned char)s->p[k] & 0xc0) == 0x80) k--;
        if (!strip_from(s, chars, k, &w)) break;
        b = k;
        jstep(j, chars ? chars->n / 64 + 1 : 0);
    }
    jbytes(j, a + s->n - b);
    return jstr_sub(j, s, a, b);
}

const jstr *jstr_replace(jinja *j, const jstr *s, const jstr *old, const jstr *by, int64_t count) {
    jsb b;
    size_t from = 0, at = 0;
    int64_t hit;
    if (count == 0) return s;
    jsb_init(&b);
    if (!old->n) { /* between all characters */
        for (at = 0; count; count--) {
            size_t w;
            jsb_str(j, &b, by);
            jstep(j, 1);
            if (at >= s->n) break;
            w = jutf8_len((unsigned char)s->p[at]);
            jsb_sub(j, &b, s, at, at + w);
            at += w;
        }
        from = at;
    } else {
        if (jstr_find(j, s, old, 0, s->n, false) < 0) return s;
        while (count-- && (hit = jstr_find(j, s, old, from, s->n, false)) >= 0) {
            jsb_sub(j, &b, s, from, (size_t)hit);
            jsb_str(j, &b, by);
            from = (size_t)hit + old->n;
        }
    }
    jsb_sub(j, &b, s, from, s->n);
    return s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b);
}

/* ---- splitting and joining ---- */

static void part(jinja *j, jlist *l, const jstr *s, size_t a, size_t b) {
    jlist_add(j, l, jstring(jstr_sub(j, s, a, b)));
}

static void flip(jlist *l) {
    for (size_t i = 0, k = l->n; i + 1 < k; i++) {
        jval t = l->v[i];
        l->v[i] = l->v[--k];
        l->v[k] = t;
    }
}

static jlist *split_space(jinja *j, const jstr *s, int64_t max) {
    jlist *l = jlist_new(j, 0);
    size_t at = 0, w;
    jbytes(j, s->n);
    for (;;) {
        size_t from;
        while (at < s->n && jcp_space(jutf8_at(s->p + at))) at += jutf8_len((unsigned char)s->p[at]);
        if (at >= s->n) return l;
        from = at;
        if (max >= 0 && (int64_t)l->n >= max) { /* the rest, with the white space at its end */
            part(j, l, s, from, s->n);
            return l;
        }
        while (at < s->n && !jcp_space(jutf8_at(s->p + at))) {
            w = jutf8_len((unsigned char)s->p[at]);
            at += w;
        }
        part(j, l, s, from, at);
    }
}

static jlist *rsplit_space(jinja *j, const jstr *s, int64_t max) {
    jlist *l = jlist_new(j, 0);
    size_t end = s->n, k, w;
    jbytes(j, s->n);
    for (;;) {
        end = jstr_strip(j, jstr_sub(j, s, 0, end), NULL, 2)->n;
        if (!end) break;
        if (max >= 0 && (int64_t)l->n >= max) {
            part(j, l, s, 0, end);
            break;
        }
        for (k = end; k; k -= w) {
            w = 1;
            while (((unsigned char)s->p[k - w] & 0xc0) == 0x80) w++;
            if (jcp_space(jutf8_at(s->p + k - w))) break;
        }
        part(j, l, s, k, end);
        end = k;
    }
    flip(l);
    return l;
}

jlist *jstr_split(jinja *j, const jstr *s, const jstr *sep, int64_t max, bool right) {
    jlist *l;
    size_t at = right ? s->n : 0;
    int64_t hit;
    if (!sep) return right ? rsplit_space(j, s, max) : split_space(j, s, max);
    if (!sep->n) jfail(j, J_VALUE, "empty separator");
    l = jlist_new(j, 0);
    if (right) {
        while (max-- && (hit = jstr_find(j, s, sep, 0, at, true)) >= 0) {
            part(j, l, s, (size_t)hit + sep->n, at);
            at = (size_t)hit;
        }
        part(j, l, s, 0, at);
        flip(l);
        return l;
    }
    while (max-- && (hit = jstr_find(j, s, sep, at, s->n, false)) >= 0) {
        part(j, l, s, at, (size_t)hit);
        at = (size_t)hit + sep->n;
    }
    part(j, l, s, at, s->n);
    return l;
}

static bool line_end(uint32_t cp) {
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

jlist *jstr_lines(jinja *j, const jstr *s, bool keep) {
    jlist *l = jlist_new(j, 0);
    size_t from = 0, at = 0;
    jbytes(j, s->n);
    while (at < s->n) {
        uint32_t cp = jutf8_at(s->p + at);
        size_t end = at;
        at += jutf8_len((unsigned char)s->p[at]);
        if (!line_end(cp)) continue;
        if (cp == '\r' && at < s->n && s->p[at] == '\n') at++;
        part(j, l, s, from, keep ? at : end);
        from = at;
    }
    if (from < s->n) part(j, l, s, from, s->n);
    return l;
}

const jstr *jstr_join(jinja *j, const jstr *sep, jval items, bool any) {
    jiter *it = jiter_new(j, items);
    jsb b;
    jval v;
    jsb_init(&b);
    for (size_t i = 0; jiter_next(j, it, &v); i++) {
        const jstr *s;
        if (!any && v.k != V_STR && !sep->markup)
            jfail(j, J_TYPE, "sequence item %zu: expected str instance, %s found", i, jtype_name(v));
        s = sep->markup ? jstr_escape(j, v) : jto_str(j, v);
        if (i) jsb_str(j, &b, sep);
        jsb_str(j, &b, s);
    }
    return sep->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b);
}

const jstr *jstr_pad(jinja *j, const jstr *s, int64_t width, const jstr *fill, char align) {
    int64_t pad = width - s->n_cp, left;
    jsb b;
    if (pad <= 0) return s;
    if (!fill) fill = jstr_lit(j, " ");
    left = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & width & 1);
    jsb_init(&b);
    jsb_fill(j, &b, fill, (size_t)left);
    jsb_str(j, &b, s);
    jsb_fill(j, &b, fill, (size_t)(pad - left));
    return s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b);
}

/* ---- questions about all characters ---- */

static bool ask(uint32_t cp, int id) {
    switch (id) {
    case S_ISALPHA: return jcp_alpha(cp);
    case S_ISDECIMAL: return jcp_decimal(cp);
    case S_ISDIGIT: return jcp_digit(cp);
    case S_ISNUMERIC: return jcp_digit(cp) || jcp_numeric(cp);
    case S_ISALNUM: return jcp_alpha(cp) || jcp_digit(cp) || jcp_numeric(cp);
    case S_ISSPACE: return jcp_space(cp);
    case S_ISPRINTABLE: return jcp_printable(cp);
    default: return cp < 0x80;
    }
}

static bool all_are(jinja *j, const jstr *s, int id) {
    bool some = id == S_ISPRINTABLE || id == S_ISASCII;
    jbytes(j, s->n);
    for (size_t at = 0; at < s->n; at += jutf8_len((unsigned char)s->p[at])) {
        if (!ask(jutf8_at(s->p + at), id)) return false;
        some = true;
    }
    return some;
}

static bool is_title(jinja *j, const jstr *s) {
    bool some = false, in_word = false;
    jbytes(j, s->n);
    for (size_t at = 0; at < s->n; at += jutf8_len((unsigned char)s->p[at])) {
        uint32_t cp = jutf8_at(s->p + at);
        if (jcp_upper(cp) || jcp_title(cp)) {
            if (in_word) return false;
            in_word = some = true;
        } else if (jcp_lower(cp)) {
            if (!in_word) return false;
        } else {
            in_word = false;
        }
    }
    return some;
}

static bool is_identifier(jinja *j, const jstr *s) {
    jbytes(j, s->n);
    for (size_t at = 0; at < s->n; at += jutf8_len((unsigned char)s->p[at])) {
        uint32_t cp = jutf8_at(s->p + at);
        if (!(cp == '_' || jcp_alpha(cp) || (at && jcp_decimal(cp)))) return false;
    }
    return s->n > 0;
}

/* ---- arguments ---- */

static const jstr *want_str(jinja *j, jval v, const char *what) {
    if (v.k != V_STR) jfail(j, J_TYPE, "%smust be str, not %s", what, jtype_name(v));
    return v.s;
}

/* Optional start and end of find, count and the like: code points to bytes.  False: an empty range past the end. */
static bool bounds(jinja *j, const jstr *s, jval start, jval end, size_t *from, size_t *to) {
    int64_t n = s->n_cp, a = 0, b = n;
    if (start.k != V_MISSING && start.k != V_NONE) a = jindex(j, start, "");
    if (end.k != V_MISSING && end.k != V_NONE) b = jindex(j, end, "");
    if (a < 0 && (a += n) < 0) a = 0;
    if (b < 0 && (b += n) < 0) b = 0;
    if (b > n) b = n;
    if (a > b) return false;
    jbytes(j, s->n);
    *from = jstr_offset(s, (size_t)a);
    *to = jstr_offset(s, (size_t)b);
    return true;
}

static jval search(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const NONE[] = {NULL, NULL, NULL};
    jval x[3];
    const jstr *what;
    size_t from = 0, to = 0;
    int64_t hit = -1, n = 0;
    bool in, last = id == S_RFIND || id == S_RINDEX;
    jbind(j, NAMES[id], a, 1, 3, NONE, x);
    what = want_str(j, x[0], "");
    in = bounds(j, s, x[1], x[2], &from, &to);
    if (id == S_COUNT) {
        if (in && !what->n) return jint((int64_t)jutf8_count(s->p + from, to - from) + 1);
        while (in && (hit = jstr_find(j, s, what, from, to, false)) >= 0) {
            n++;
            from = (size_t)hit + what->n;
        }
        return jint(n);
    }
    if (in) hit = jstr_find(j, s, what, from, to, last);
    if (hit < 0 && (id == S_INDEX || id == S_RINDEX)) jfail(j, J_VALUE, "substring not found");
    return jint(hit < 0 ? -1 : (int64_t)jutf8_count(s->p, (size_t)hit));
}

static bool affix(jinja *j, const jstr *s, size_t from, size_t to, jval what, bool at_end, bool nested) {
    if (what.k == V_TUPLE && !nested) {
        for (size_t i = 0; i < what.l->n; i++)
            if (affix(j, s, from, to, what.l->v[i], at_end, true)) return true;
        return false;
    }
    if (what.k != V_STR)
        jfail(j, J_TYPE,
              nested ? "tuple for %s must only contain str, not %s"
                     : "%s first arg must be str or a tuple of str, not %s",
              at_end ? "endswith" : "startswith", jtype_name(what));
    jbytes(j, what.s->n);
    if (to - from < what.s->n) return false;
    return !memcmp(s->p + (at_end ? to - what.s->n : from), what.s->p, what.s->n);
}

static jval starts_ends(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const NONE[] = {NULL, NULL, NULL};
    jval x[3];
    size_t from = 0, to = 0;
    bool in;
    jbind(j, NAMES[id], a, 1, 3, NONE, x);
    in = bounds(j, s, x[1], x[2], &from, &to);
    if (!in) from = to = 0;
    return jbool(affix(j, s, from, to, x[0], id == S_ENDSWITH, false) && in);
}

static jval three(jinja *j, const jstr *a, const jstr *b, const jstr *c) {
    jlist *l = jlist_new(j, 3);
    l->v[0] = jstring(a);
    l->v[1] = jstring(b);
    l->v[2] = jstring(c);
    l->n = 3;
    return jtuplev(l);
}

static jval partition(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const NONE[] = {NULL};
    jval x;
    const jstr *sep, *none;
    int64_t hit;
    bool right = id == S_RPARTITION;
    jbind(j, NAMES[id], a, 1, 1, NONE, &x);
    sep = want_str(j, x, "");
    if (!sep->n) jfail(j, J_VALUE, "empty separator");
    hit = jstr_find(j, s, sep, 0, s->n, right);
    none = jstr_sub(j, s, 0, 0);
    if (hit < 0) return right ? three(j, none, none, s) : three(j, s, none, none);
    return three(j, jstr_sub(j, s, 0, (size_t)hit), jstr_sub(j, s, (size_t)hit, (size_t)hit + sep->n),
                 jstr_sub(j, s, (size_t)hit + sep->n, s->n));
}

static jval pad(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const NONE[] = {NULL, NULL};
    jval x[2];
    const jstr *fill = NULL;
    jbind(j, NAMES[id], a, 1, 2, NONE, x);
    if (x[1].k != V_MISSING) {
        fill = want_str(j, x[1], "The fill character ");
        if (s->markup) fill = jstr_escape(j, x[1]);
        if (fill->n_cp != 1) jfail(j, J_TYPE, "The fill character must be exactly one character long");
    }
    return jstring(jstr_pad(j, s, jindex(j, x[0], ""), fill, id == S_LJUST ? '<' : id == S_RJUST ? '>' : '^'));
}

static jval zfill(jinja *j, const jstr *s, const jargs *a) {
    static const char *const NONE[] = {NULL};
    jval x;
    int64_t n;
    size_t sign;
    jsb b;
    jbind(j, "zfill", a, 1, 1, NONE, &x);
    n = jindex(j, x, "") - s->n_cp;
    if (n <= 0) return jstring(s);
    sign = s->n && (s->p[0] == '+' || s->p[0] == '-');
    jsb_init(&b);
    jsb_sub(j, &b, s, 0, sign);
    jsb_fill(j, &b, jstr_lit(j, "0"), (size_t)n);
    jsb_sub(j, &b, s, sign, s->n);
    return jstring(s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b));
}

static jval expandtabs(jinja *j, const jstr *s, const jargs *a) {
    static const char *const TABSIZE[] = {"tabsize"};
    jval x;
    int64_t size, col = 0;
    jsb b;
    uint32_t hint = 0;
    jbind(j, "expandtabs", a, 0, 1, TABSIZE, &x);
    size = x.k == V_MISSING ? 8 : jindex(j, x, "");
    if (size > (1 << 20)) jfail(j, J_LIMIT, "tab size too large");
    jsb_init(&b);
    for (size_t at = 0, w; at < s->n; at += w) {
        w = jutf8_len((unsigned char)s->p[at]);
        if (s->p[at] == '\t') {
            int64_t k = size > 0 ? size - col % size : 0;
            bool trusted = jstr_trusted_at(s, at, &hint);
            size_t from = b.n;
            jsb_fill(j, &b, jstr_lit(j, " "), (size_t)k);
            if (!trusted && k) jsb_untrust(j, &b, from);
            col += k;
        } else {
            jsb_sub(j, &b, s, at, at + w);
            col = s->p[at] == '\n' || s->p[at] == '\r' ? 0 : col + 1;
        }
    }
    return jstring(s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b));
}

static jval splits(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const SPLIT[] = {"sep", "maxsplit"};
    jval x[2];
    int64_t max;
    jbind(j, NAMES[id], a, 0, 2, SPLIT, x);
    if (x[0].k != V_MISSING && x[0].k != V_NONE && x[0].k != V_STR)
        jfail(j, J_TYPE, "must be str or None, not %s", jtype_name(x[0]));
    max = x[1].k == V_MISSING ? -1 : jindex(j, x[1], "");
    return jlistv(jstr_split(j, s, x[0].k == V_STR ? x[0].s : NULL, max < 0 ? -1 : max, id == S_RSPLIT));
}

static jval replace(jinja *j, const jstr *s, const jargs *a) {
    static const char *const NONE[] = {NULL, NULL, NULL};
    jval x[3];
    int64_t count;
    jbind(j, "replace", a, 2, 3, NONE, x);
    want_str(j, x[0], "replace() argument 1 ");
    want_str(j, x[1], "replace() argument 2 ");
    count = x[2].k == V_MISSING ? -1 : jindex(j, x[2], "");
    return jstring(jstr_replace(j, s, x[0].s, s->markup ? jstr_escape(j, x[1]) : x[1].s, count < 0 ? -1 : count));
}

static jval strips(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const NONE[] = {NULL};
    jval x;
    jbind(j, NAMES[id], a, 0, 1, NONE, &x);
    if (x.k != V_MISSING && x.k != V_NONE && x.k != V_STR) jfail(j, J_TYPE, "%s arg must be None or str", NAMES[id]);
    return jstring(jstr_strip(j, s, x.k == V_STR ? x.s : NULL, id == S_LSTRIP ? 1 : id == S_RSTRIP ? 2 : 3));
}

static jval remove_affix(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const NONE[] = {NULL};
    jval x;
    const jstr *t;
    bool suffix = id == S_REMOVESUFFIX;
    jbind(j, NAMES[id], a, 1, 1, NONE, &x);
    t = want_str(j, x, "");
    if (!affix(j, s, 0, s->n, x, suffix, true)) return jstring(s);
    return jstring(suffix ? jstr_sub(j, s, 0, s->n - t->n) : jstr_sub(j, s, t->n, s->n));
}

static jval encode(jinja *j, const jstr *s, const jargs *a) {
    static const char *const ENCODE[] = {"encoding", "errors"};
    jval x[2];
    jbind(j, "encode", a, 0, 2, ENCODE, x);
    if (x[0].k != V_MISSING && !(x[0].k == V_STR && (jstr_is(x[0].s, "utf-8") || jstr_is(x[0].s, "utf8"))))
        jfail(j, J_UNSUPPORTED, "only the utf-8 encoding is supported");
    return (jval){.k = V_BYTES, .s = jstr_plain(j, s)};
}

jval jstr_method(jinja *j, const jstr *s, int id, const jargs *a) {
    static const char *const NONE[] = {NULL}, *const KEEP[] = {"keepends"};
    static const jcase CASES[] = {[S_CAPITALIZE] = CASE_CAPITAL, [S_CASEFOLD] = CASE_FOLD, [S_LOWER] = CASE_LOWER,
                                  [S_SWAPCASE] = CASE_SWAP, [S_TITLE] = CASE_TITLE, [S_UPPER] = CASE_UPPER};
    jval x;
    switch (id) {
    case S_CAPITALIZE: case S_CASEFOLD: case S_LOWER: case S_SWAPCASE: case S_TITLE: case S_UPPER:
        jbind(j, NAMES[id], a, 0, 0, NULL, NULL);
        return jstring(jstr_case(j, s, CASES[id]));
    case S_CENTER: case S_LJUST: case S_RJUST: return pad(j, s, id, a);
    case S_COUNT: case S_FIND: case S_RFIND: case S_INDEX: case S_RINDEX: return search(j, s, id, a);
    case S_ENCODE: return encode(j, s, a);
    case S_STARTSWITH: case S_ENDSWITH: return starts_ends(j, s, id, a);
    case S_EXPANDTABS: return expandtabs(j, s, a);
    case S_FORMAT: return jstring(jformat_braces(j, s, a));
    case S_FORMAT_MAP: {
        jargs kw = {0};
        jbind(j, "format_map", a, 1, 1, NONE, &x);
        if (x.k != V_DICT) jfail(j, J_TYPE, "format_map() needs a mapping");
        kw.kw = jalloc(j, x.d->n * sizeof *kw.kw + 1);
        kw.kv = jalloc(j, x.d->n * sizeof *kw.kv + 1);
        for (uint32_t i = 0; i < x.d->n; i++)
            if (x.d->e[i].key.k == V_STR) {
                kw.kw[kw.n_kw] = x.d->e[i].key.s;
                kw.kv[kw.n_kw++] = x.d->e[i].val;
            }
        return jstring(jformat_braces(j, s, &kw));
    }
    case S_ISALNUM: case S_ISALPHA: case S_ISASCII: case S_ISDECIMAL: case S_ISDIGIT: case S_ISNUMERIC:
    case S_ISPRINTABLE: case S_ISSPACE:
        jbind(j, NAMES[id], a, 0, 0, NULL, NULL);
        return jbool(all_are(j, s, id));
    case S_ISLOWER: case S_ISUPPER:
        return jbool(jtest_find(id == S_ISLOWER ? "lower" : "upper", 5)->fn(j, jstring(s), a));
    case S_ISTITLE:
        jbind(j, NAMES[id], a, 0, 0, NULL, NULL);
        return jbool(is_title(j, s));
    case S_ISIDENTIFIER:
        jbind(j, NAMES[id], a, 0, 0, NULL, NULL);
        return jbool(is_identifier(j, s));
    case S_JOIN:
        jbind(j, NAMES[id], a, 1, 1, NONE, &x);
        if (!jiterable(x)) jfail(j, J_TYPE, "can only join an iterable");
        return jstring(jstr_join(j, s, x, false));
    case S_LSTRIP: case S_RSTRIP: case S_STRIP: return strips(j, s, id, a);
    case S_PARTITION: case S_RPARTITION: return partition(j, s, id, a);
    case S_REMOVEPREFIX: case S_REMOVESUFFIX: return remove_affix(j, s, id, a);
    case S_REPLACE: return replace(j, s, a);
    case S_SPLIT: case S_RSPLIT: return splits(j, s, id, a);
    case S_SPLITLINES:
        jbind(j, NAMES[id], a, 0, 1, KEEP, &x);
        return jlistv(jstr_lines(j, s, x.k != V_MISSING && jtruth(j, x)));
    case S_ZFILL: return zfill(j, s, a);
    default: jfail(j, J_UNSUPPORTED, "str.%s is not supported", NAMES[id]);
    }
}
