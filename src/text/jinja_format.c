/* jinja_format.c - Python's two ways to fill in text: "..." % args and "...".format(args).
 *
 * Numbers are rendered by the same routine for both.  What comes out of an argument keeps the argument's spans; padding
 * belongs to the format.  Field names of .format() go through the sandbox's attribute rules. */
#include "text/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_WIDTH = 1 << 20 }; /* of a field, against formats like %999999999d */

/* One conversion: [[fill]align][sign][#][0][width][,][.precision][type] */
typedef struct {
    const jstr *fill;
    char align, sign, type, group;
    bool alt, zero;
    int64_t width, precision; /* < 0: not given */
} spec;

/* ---- numbers ---- */

static size_t digits_of(unsigned __int128 u, unsigned base, bool upper, char *end) {
    char *p = end;
    do *--p = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    while (u /= base);
    return (size_t)(end - p);
}

/* Put sign, prefix and digits together, padded: digits before the first of "." "e" are grouped. */
static void put_number(jinja *j, jsb *out, const spec *f, bool neg, const char *prefix, const char *body, size_t n) {
    jsb b;
    const char *sign = neg ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    size_t whole = 0, used = strlen(sign) + strlen(prefix), len, groups;
    unsigned per = f->type == 'x' || f->type == 'X' || f->type == 'o' || f->type == 'b' ? 4 : 3;
    int64_t pad;
    while (whole < n && body[whole] != '.' && body[whole] != 'e' && body[whole] != 'E' && body[whole] != '%') whole++;
    if (per == 4) whole = n; /* hexadecimal digits include e */
    groups = f->group && whole ? (whole - 1) / per : 0;
    len = used + n + groups;
    jsb_init(&b);
    jsb_lit(j, &b, sign);
    jsb_lit(j, &b, prefix);
    pad = f->width > (int64_t)len ? f->width - (int64_t)len : 0;
    if (f->align == '=' && pad) { /* zeros take part in grouping */
        size_t zeros = (size_t)pad;
        if (f->group && jstr_is(f->fill, "0")) {
            size_t total = whole + groups + zeros, k = total - total / (per + 1);
            if (total % (per + 1) == 0) k++; /* no separator in front */
            zeros = k > whole ? k - whole : 0;
            for (size_t i = 0; i < zeros; i++) {
                jsb_lit(j, &b, "0");
                if ((zeros + whole - i - 1) % per == 0 && zeros + whole - i - 1) jsb_add(j, &b, &f->group, 1, true);
            }
        } else {
            jsb_fill(j, &b, f->fill, zeros);
        }
    }
    for (size_t i = 0; i < whole; i++) {
        jsb_add(j, &b, body + i, 1, true);
        if (f->group && (whole - i - 1) % per == 0 && whole - i - 1) jsb_add(j, &b, &f->group, 1, true);
    }
    jsb_add(j, &b, body + whole, n - whole, true);
    if (f->align == '=') jsb_str(j, out, jsb_done(j, &b));
    else jsb_str(j, out, jstr_pad(j, jsb_done(j, &b), f->width, f->fill, f->align ? f->align : '>'));
}

static void put_int(jinja *j, jsb *out, const spec *f, jval v) {
    char t[136];
    ji128 i = jas_i128(v);
    unsigned __int128 u = i < 0 ? -(unsigned __int128)i : (unsigned __int128)i;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    size_t n = digits_of(u, base, f->type == 'X', t + sizeof t);
    const char *prefix = !f->alt || base == 10 ? ""
                         : base == 8           ? "0o"
                         : base == 2           ? "0b"
                         : f->type == 'X'      ? "0X"
                                               : "0x";
    put_number(j, out, f, i < 0, prefix, t + sizeof t - n, n);
}

/* Python's 'repr' with a precision and no type: %g that keeps ".0". */
static void put_float(jinja *j, jsb *out, const spec *f, double v) {
    char t[1500], fmt[16];
    char type = f->type ? f->type : 'r';
    int p = f->precision < 0 ? 6 : (int)f->precision, n;
    bool neg = signbit(v) && !isnan(v);
    double a = fabs(v);
    if (p > 1000) jfail(j, J_LIMIT, "precision too large");
    if (!isfinite(v)) {
        strcpy(t, isnan(v) ? "nan" : "inf");
        if (type == 'F' || type == 'E' || type == 'G')
            for (char *c = t; *c; c++) *c = (char)(*c - 32);
        if (type == '%') strcat(t, "%");
    } else if (type == 'r' && f->precision < 0) {
        jfloat_text(j, a, t);
    } else if (type == '%') {
        n = snprintf(t, sizeof t, "%.*f%%", p, a * 100);
        if (n >= (int)sizeof t) jfail(j, J_LIMIT, "number too long");
    } else {
        char c = type == 'r' || type == 'n' ? 'g' : type;
        int (*const print)(char *, size_t, const char *, ...) = snprintf; /* the format is made here, not given */
        if ((c == 'g' || c == 'G') && p == 0) p = 1;
        snprintf(fmt, sizeof fmt, f->alt ? "%%#.*%c" : "%%.*%c", c);
        n = print(t, sizeof t, fmt, p, a);
        if (n >= (int)sizeof t) jfail(j, J_LIMIT, "number too long");
        if (type == 'r' && !strpbrk(t, ".e")) strcat(t, ".0");
    }
    put_number(j, out, f, neg, "", t, strlen(t));
}

static const jstr *cut(jinja *j, const jstr *s, int64_t precision) {
    if (precision < 0 || precision >= s->n_cp) return s;
    return jstr_sub(j, s, 0, jstr_offset(s, (size_t)precision));
}

/* ---- "..." % args ---- */

typedef struct {
    jval args;
    const jlist *list; /* a tuple */
    size_t used;
} percent;

static jval next_arg(jinja *j, percent *p) {
    if (p->list) {
        if (p->used >= p->list->n) jfail(j, J_TYPE, "not enough arguments for format string");
        return p->list->v[p->used++];
    }
    if (p->used++) jfail(j, J_TYPE, "not enough arguments for format string");
    return p->args;
}

static int64_t percent_number(jinja *j, percent *p, const jstr *s, size_t *at) {
    int64_t n = 0;
    if (*at < s->n && s->p[*at] == '*') {
        jval v = next_arg(j, p);
        ++*at;
        if (!jis_int(v)) jfail(j, J_TYPE, "* wants int");
        n = jindex(j, v, "");
    } else {
        while (*at < s->n && s->p[*at] >= '0' && s->p[*at] <= '9' && n <= MAX_WIDTH) n = n * 10 + (s->p[(*at)++] - '0');
    }
    if (n > MAX_WIDTH || n < -MAX_WIDTH) jfail(j, J_LIMIT, "width too large");
    return n;
}

static void percent_text(jinja *j, jsb *b, const spec *f, const jstr *s) {
    jsb_str(j, b, jstr_pad(j, cut(j, s, f->precision), f->width, NULL, f->align == '<' ? '<' : '>'));
}

static void percent_value(jinja *j, jsb *b, spec *f, jval v, bool markup, size_t at) {
    jsb t;
    const jstr *s;
    switch (f->type) {
    case 's':
        percent_text(j, b, f, jstr_plain(j, markup ? jstr_escape(j, v) : jto_str(j, v)));
        return;
    case 'r': case 'a':
        s = jrepr(j, v);
        percent_text(j, b, f, markup ? jstr_plain(j, jstr_escape(j, jstring(s))) : s);
        return;
    case 'c':
        if (v.k == V_STR && v.s->n_cp == 1) s = v.s;
        else if (jis_int(v)) {
            int64_t cp = jindex(j, v, "");
            if (cp < 0 || cp > 0x10ffff) jfail(j, J_VALUE, "%%c arg not in range(0x110000)");
            if (cp >= 0xd800 && cp < 0xe000) jfail(j, J_UNSUPPORTED, "lone surrogate in a string");
            jsb_init(&t);
            jsb_cp(j, &t, (uint32_t)cp, false); /* a number of the input could be made a marker this way */
            s = jsb_done(j, &t);
        } else jfail(j, J_TYPE, "%%c requires int or char");
        f->precision = -1;
        percent_text(j, b, f, s);
        return;
    case 'd': case 'i': case 'u': case 'x': case 'X': case 'o':
        if (v.k == V_UNDEF) jundef_raise(j, v);
        if (v.k == V_FLOAT && f->type != 'x' && f->type != 'X' && f->type != 'o') {
            if (!isfinite(v.f)) jfail(j, J_VALUE, "cannot convert float to integer");
            if (fabs(v.f) >= 0x1p126) jfail(j, J_UNSUPPORTED, "integer too large");
            v = jint128(j, (ji128)v.f);
        }
        if (!jis_int(v))
            jfail(j, J_TYPE,
                  f->type == 'x' || f->type == 'X' || f->type == 'o' ? "%%%c format: an integer is required, not %s"
                                                                     : "%%%c format: a real number is required, not %s",
                  f->type, jtype_name(v));
        if (f->precision > 0) { /* at least that many digits */
            spec g = {.fill = jstr_lit(j, "0"), .align = '=', .type = f->type, .width = f->precision};
            bool neg = jas_i128(v) < 0;
            jsb_init(&t);
            jsb_lit(j, &t, neg ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "");
            put_int(j, &t, &g, neg ? jnegate(j, v, false) : v);
            f->precision = -1;
            percent_text(j, b, f, jsb_done(j, &t));
            return;
        }
        put_int(j, b, f, v);
        return;
    case 'e': case 'E': case 'f': case 'F': case 'g': case 'G':
        if (v.k == V_UNDEF) jundef_raise(j, v);
        if (!jis_num(v)) jfail(j, J_TYPE, "must be real number, not %s", jtype_name(v));
        put_float(j, b, f, jas_double(v));
        return;
    default:
        jfail(j, J_VALUE, "unsupported format character '%c' (0x%x) at index %zu", f->type, (unsigned char)f->type, at);
    }
}

const jstr *jformat_percent(jinja *j, const jstr *s, jval args) {
    percent p = {.args = args, .list = args.k == V_TUPLE ? args.l : NULL};
    bool mapping = args.k == V_DICT || args.k == V_LIST || args.k == V_UNDEF, named = false;
    jsb b;
    jsb_init(&b);
    for (size_t at = 0; at < s->n;) {
        const char *q = memchr(s->p + at, '%', s->n - at);
        size_t to = q ? (size_t)(q - s->p) : s->n;
        spec f = {.fill = jstr_lit(j, " "), .precision = -1, .align = '>'};
        jval v = {.k = V_MISSING};
        jsb_sub(j, &b, s, at, to);
        if ((at = to) >= s->n) break;
        if (++at < s->n && s->p[at] == '(') {
            size_t from = ++at, depth = 1;
            while (at < s->n && depth) {
                depth += s->p[at] == '(';
                depth -= s->p[at++] == ')';
            }
            if (depth) jfail(j, J_VALUE, "incomplete format key");
            if (args.k != V_DICT) jfail(j, J_TYPE, "format requires a mapping");
            if (!jdict_get(j, args.d, jstring(jstr_sub(j, s, from, at - 1)), &v))
                jfail(j, J_VALUE, "'%.*s'", at - 1 - from < 100 ? (int)(at - 1 - from) : 100, s->p + from);
            named = true;
        }
        for (; at < s->n && s->p[at] && strchr("-+ #0", s->p[at]); at++) {
            if (s->p[at] == '-') f.align = '<';
            else if (s->p[at] == '#') f.alt = true;
            else if (s->p[at] == '0') f.zero = true;
            else if (s->p[at] == '+' || !f.sign) f.sign = s->p[at];
        }
        f.width = percent_number(j, &p, s, &at);
        if (f.width < 0) {
            f.align = '<';
            f.width = -f.width;
        }
        if (at < s->n && s->p[at] == '.') {
            at++;
            f.precision = percent_number(j, &p, s, &at);
            if (f.precision < 0) f.precision = 0;
        }
        while (at < s->n && (s->p[at] == 'l' || s->p[at] == 'h' || s->p[at] == 'L')) at++;
        if (at >= s->n) jfail(j, J_VALUE, "incomplete format");
        f.type = s->p[at++];
        if (f.type == '%') {
            jsb_sub(j, &b, s, at - 1, at);
            continue;
        }
        if (v.k == V_MISSING) v = next_arg(j, &p);
        if (f.zero && f.align == '>' && !strchr("srac", f.type)) {
            f.align = '=';
            f.fill = jstr_lit(j, "0");
        }
        percent_value(j, &b, &f, v, s->markup, jutf8_count(s->p, at - 1));
    }
    if (!named && (p.list ? p.used < p.list->n : !p.used && !mapping))
        jfail(j, J_TYPE, "not all arguments converted during string formatting");
    return s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b);
}

/* ---- "...".format(args) ---- */

typedef struct {
    const jargs *a;
    int64_t autonum; /* next automatic number, -1: explicit numbers are in use */
    bool markup;
} braces;

static spec parse_spec(jinja *j, const jstr *s, const char *type) {
    spec f = {.precision = -1};
    size_t at = 0, w = s->n ? jutf8_len((unsigned char)s->p[0]) : 0;
    if (s->n > w && strchr("<>=^", s->p[w]) && s->p[w]) {
        f.fill = jstr_sub(j, s, 0, w);
        f.align = s->p[w];
        at = w + 1;
    } else if (s->n && strchr("<>=^", s->p[0]) && s->p[0]) {
        f.align = s->p[0];
        at = 1;
    }
    if (at < s->n && (s->p[at] == '+' || s->p[at] == '-' || s->p[at] == ' ')) f.sign = s->p[at++];
    if (at < s->n && s->p[at] == 'z') jfail(j, J_UNSUPPORTED, "the z option is not supported");
    if (at < s->n && s->p[at] == '#') f.alt = s->p[at++] == '#';
    if (at < s->n && s->p[at] == '0') {
        f.zero = true;
        at++;
    }
    for (; at < s->n && s->p[at] >= '0' && s->p[at] <= '9' && f.width <= MAX_WIDTH; at++)
        f.width = f.width * 10 + (s->p[at] - '0');
    if (at < s->n && (s->p[at] == ',' || s->p[at] == '_')) f.group = s->p[at++];
    if (at < s->n && s->p[at] == '.') {
        f.precision = 0;
        if (++at >= s->n || s->p[at] < '0' || s->p[at] > '9') jfail(j, J_VALUE, "Format specifier missing precision");
        for (; at < s->n && s->p[at] >= '0' && s->p[at] <= '9' && f.precision <= MAX_WIDTH; at++)
            f.precision = f.precision * 10 + (s->p[at] - '0');
    }
    if (f.width > MAX_WIDTH || f.precision > MAX_WIDTH) jfail(j, J_LIMIT, "width too large");
    if (at < s->n) f.type = s->p[at++];
    if (at < s->n)
        jfail(j, J_VALUE, "Invalid format specifier '%.*s' for object of type '%s'", s->n < 100 ? (int)s->n : 100, s->p,
              type);
    if (f.zero && !f.fill) {
        f.fill = jstr_lit(j, "0");
        if (!f.align) f.align = '=';
    }
    if (!f.fill) f.fill = jstr_lit(j, " ");
    return f;
}

static void format_value(jinja *j, jsb *b, jval v, const jstr *text) {
    spec f;
    if (!text->n) {
        jsb_str(j, b, jto_str(j, v));
        return;
    }
    if (v.k != V_STR && !jis_num(v)) {
        if (v.k == V_UNDEF) jundef_raise(j, v);
        jfail(j, J_TYPE, "unsupported format string passed to %s.__format__", jtype_name(v));
    }
    f = parse_spec(j, text, jtype_name(v));
    if (v.k == V_STR) {
        if (f.type && f.type != 's') jfail(j, J_VALUE, "Unknown format code '%c' for object of type 'str'", f.type);
        if (f.sign) jfail(j, J_VALUE, "Sign not allowed in string format specifier");
        if (f.align == '=' && !f.zero) jfail(j, J_VALUE, "'=' alignment not allowed in string format specifier");
        if (f.group) jfail(j, J_VALUE, "Cannot specify '%c' with 's'.", f.group);
        jsb_str(j, b,
                jstr_pad(j, cut(j, jstr_plain(j, v.s), f.precision), f.width, f.fill,
                         f.align && f.align != '=' ? f.align : '<'));
        return;
    }
    if (v.k != V_FLOAT && (!f.type || strchr("bcdoxXn", f.type))) {
        if (f.precision >= 0) jfail(j, J_VALUE, "Precision not allowed in integer format specifier");
        if (f.type == 'c') jfail(j, J_UNSUPPORTED, "the c format is not supported");
        if (f.type == 'n') f.type = 'd';
        put_int(j, b, &f, v);
        return;
    }
    if (f.type && !strchr("eEfFgGn%", f.type))
        jfail(j, J_VALUE, "Unknown format code '%c' for object of type '%s'", f.type, jtype_name(v));
    put_float(j, b, &f, jas_double(v));
}

/* "name", "0.attr[key]": the value it names. */
static jval field(jinja *j, braces *f, const jstr *s) {
    size_t at = 0;
    bool digits = true;
    jval v = {.k = V_MISSING};
    int64_t i = 0;
    for (; at < s->n && s->p[at] != '.' && s->p[at] != '['; at++) {
        digits &= s->p[at] >= '0' && s->p[at] <= '9';
        if (digits && i < MAX_WIDTH) i = i * 10 + (s->p[at] - '0');
    }
    if (digits) {
        if (!at) {
            if (f->autonum < 0)
                jfail(j, J_VALUE, "cannot switch from manual field specification to automatic field numbering");
            i = f->autonum++;
        } else {
            if (f->autonum > 0)
                jfail(j, J_VALUE, "cannot switch from automatic field numbering to manual field specification");
            f->autonum = -1;
        }
        if (i >= (int64_t)f->a->n) jfail(j, J_VALUE, "tuple index out of range");
        v = f->a->v[i];
    } else {
        jstr name = {.p = s->p, .n = (uint32_t)at};
        for (size_t k = 0; k < f->a->n_kw; k++)
            if (jstr_eq(f->a->kw[k], &name)) v = f->a->kv[k];
        if (v.k == V_MISSING) jfail(j, J_VALUE, "'%.*s'", at < 100 ? (int)at : 100, s->p);
    }
    while (at < s->n) {
        size_t from = at + 1;
        if (s->p[at] == '.') {
            for (at = from; at < s->n && s->p[at] != '.' && s->p[at] != '['; at++) {}
            if (at == from) jfail(j, J_VALUE, "Empty attribute in format string");
            v = jget_attr(j, v, jstr_sub(j, s, from, at));
        } else if (s->p[at] == '[') {
            int64_t n = 0;
            bool num = true;
            for (at = from; at < s->n && s->p[at] != ']'; at++) {
                num &= s->p[at] >= '0' && s->p[at] <= '9';
                if (num && n < ((int64_t)1 << 50)) n = n * 10 + (s->p[at] - '0');
            }
            if (at >= s->n) jfail(j, J_VALUE, "Missing ']' in format string");
            if (at == from) jfail(j, J_VALUE, "Empty attribute in format string");
            v = jget_item(j, v, num ? jint(n) : jstring(jstr_sub(j, s, from, at)));
            at++;
        } else {
            jfail(j, J_VALUE, "Only '.' or '[' may follow ']' in format field specifier");
        }
    }
    return v;
}

static void fill_in(jinja *j, jsb *b, braces *f, const jstr *s, int level);

static void replacement(jinja *j, jsb *b, braces *f, const jstr *s, int level) {
    size_t at = 0, end, bracket = 0;
    jval v;
    jsb t;
    const jstr *format;
    char conversion = 0;
    for (; at < s->n && (bracket || (s->p[at] != '!' && s->p[at] != ':')); at++) {
        bracket += s->p[at] == '[';
        if (s->p[at] == ']' && bracket) bracket--;
    }
    end = at;
    v = field(j, f, jstr_sub(j, s, 0, end));
    if (at < s->n && s->p[at] == '!') {
        if (at + 1 >= s->n) jfail(j, J_VALUE, "end of string while looking for conversion specifier");
        conversion = s->p[at + 1];
        at += 2;
        if (at < s->n && s->p[at] != ':') jfail(j, J_VALUE, "expected ':' after conversion specifier");
    }
    if (conversion == 's') v = jstring(jto_str(j, v));
    else if (conversion == 'r' || conversion == 'a') v = jstring(jrepr(j, v));
    else if (conversion) jfail(j, J_VALUE, "Unknown conversion specifier '%c'", conversion);
    jsb_init(&t);
    if (at < s->n) fill_in(j, &t, f, jstr_sub(j, s, at + 1, s->n), level + 1);
    format = jsb_done(j, &t);
    if (!f->markup) {
        format_value(j, b, v, format);
        return;
    }
    jsb_init(&t);
    if (v.k == V_STR && v.s->markup && format->n) jfail(j, J_VALUE, "Unsupported format specification for Markup.");
    if (v.k == V_STR && v.s->markup) {
        jsb_str(j, b, v.s);
        return;
    }
    format_value(j, &t, v, format);
    jsb_str(j, b, jstr_escape(j, jstring(jsb_done(j, &t))));
}

static void fill_in(jinja *j, jsb *b, braces *f, const jstr *s, int level) {
    if (level > 2) jfail(j, J_VALUE, "Max string recursion exceeded");
    jbytes(j, s->n);
    for (size_t at = 0, from; at < s->n;) {
        char c = s->p[at];
        size_t depth = 1;
        if (c != '{' && c != '}') {
            for (from = at; at < s->n && s->p[at] != '{' && s->p[at] != '}'; at++) {}
            jsb_sub(j, b, s, from, at);
            continue;
        }
        if (at + 1 < s->n && s->p[at + 1] == c) {
            jsb_sub(j, b, s, at, at + 1);
            at += 2;
            continue;
        }
        if (c == '}') jfail(j, J_VALUE, "Single '}' encountered in format string");
        for (from = ++at; at < s->n && depth; at++) {
            depth += s->p[at] == '{';
            depth -= s->p[at] == '}';
        }
        if (depth)
            jfail(j, J_VALUE,
                  from >= s->n ? "Single '{' encountered in format string" : "expected '}' before end of string");
        replacement(j, b, f, jstr_sub(j, s, from, at - 1), level);
    }
}

const jstr *jformat_braces(jinja *j, const jstr *s, const jargs *a) {
    braces f = {.a = a, .markup = s->markup};
    jsb b;
    jsb_init(&b);
    fill_in(j, &b, &f, jstr_plain(j, s), 1);
    return s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b);
}
