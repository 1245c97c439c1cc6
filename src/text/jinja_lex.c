/* jinja_lex.c - template text to tokens, with Jinja's rules for white space around tags.
 *
 * Three states: text, inside {% %}, inside {{ }}.  Comments and raw blocks are handled as part of text.  With
 * trim_blocks one newline after a block tag or comment goes away; with lstrip_blocks the blanks before one do, if the
 * line holds nothing else before it; '-' strips all white space on its side, '+' switches the rules off.
 * Rules: jinja2/lexer.py of Jinja2 3.1.6. */
#include "text/jinja_int.h"

#include "base/jsonw.h"

#include <ctype.h>
#include <stdlib.h>
#include <utf8proc.h>
#include <xxhash.h>

enum { IN_TEXT, IN_BLOCK, IN_VAR, IN_RAW };

static void *lex_alloc(jlex *l, size_t n) {
    void *p = arena_alloc(l->mem, n);
    if (!p) jerror_raise(l->e, l->mem->failed == HD_NOMEM ? J_MEMORY : J_LIMIT, l->line, "template too large");
    return p;
}

#define lex_fail(l, ...) jerror_raise((l)->e, J_SYNTAX, (l)->line, __VA_ARGS__)

/* ---- names ---- */

static void atoms_rehash(jlex *l, size_t n) {
    jatom **b = lex_alloc(l, n * sizeof *b);
    memset(b, 0, n * sizeof *b);
    for (size_t i = 0; i < l->n_buckets; i++) {
        for (jatom *a = l->atoms[i], *next; a; a = next) {
            next = a->next;
            a->next = b[a->s.hash & (n - 1)];
            b[a->s.hash & (n - 1)] = a;
        }
    }
    l->atoms = b;
    l->n_buckets = n;
}

jatom *jlex_atom(jlex *l, const char *p, size_t n) {
    uint64_t h = XXH3_64bits(p, n);
    jatom *a;
    if (!l->n_buckets) atoms_rehash(l, 64);
    h = h ? h : 1;
    for (a = l->atoms[h & (l->n_buckets - 1)]; a; a = a->next)
        if (a->s.n == n && !memcmp(a->s.p, p, n)) return a;
    if (l->n_atoms >= l->n_buckets) atoms_rehash(l, l->n_buckets * 2);
    a = lex_alloc(l, sizeof *a);
    *a = (jatom){0};
    jstr_init(&a->s, p, n);
    a->next = l->atoms[h & (l->n_buckets - 1)];
    l->atoms[h & (l->n_buckets - 1)] = a;
    l->n_atoms++;
    return a;
}

/* ---- characters ---- */

/* Bytes of white space at p: 0 if there is none. */
static size_t space_at(const char *p, size_t n) {
    size_t len;
    if (!n) return 0;
    len = jutf8_len((unsigned char)*p);
    return jcp_space(jutf8_at(p)) ? len : 0;
}

static size_t skip_space(const jlex *l, size_t at) {
    for (size_t w; (w = space_at(l->src + at, l->n - at)); at += w) {}
    return at;
}

/* Length of p[0..n) without white space at its end. */
static size_t rstrip(const char *p, size_t n) {
    while (n) {
        size_t k = n - 1;
        while (k && ((unsigned char)p[k] & 0xc0) == 0x80) k--;
        if (!jcp_space(jutf8_at(p + k))) break;
        n = k;
    }
    return n;
}

static bool all_space(const char *p, size_t n) {
    return n && rstrip(p, n) == 0;
}

static uint32_t newlines(const char *p, size_t n) {
    uint32_t k = 0;
    for (const char *q = p; (q = memchr(q, '\n', n - (size_t)(q - p))); q++) k++;
    return k;
}

void jlex_init(jlex *l, jerror *e, arena *mem, const char *text, size_t n) {
    char *s;
    size_t k = 0;
    *l = (jlex){.e = e, .mem = mem, .line = 1, .line_start = true};
    if (n > JINJA_MAX_TEXT) jerror_raise(e, J_LIMIT, 0, "template longer than %d bytes", JINJA_MAX_TEXT);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int w = (unsigned char)text[i] < 0x80 ? 1 : utf8_next(text + i, n - i, &cp);
        if (w < 0) jerror_raise(e, J_SYNTAX, 0, "template is not valid UTF-8 at byte %zu", i);
        i += (size_t)w;
    }
    s = lex_alloc(l, n + 1);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r') {
            s[k++] = '\n';
            if (i + 1 < n && text[i + 1] == '\n') i++;
        } else {
            s[k++] = text[i];
        }
    }
    if (k && s[k - 1] == '\n') k--; /* keep_trailing_newline is off */
    s[k] = 0;
    l->src = s;
    l->n = k;
}

static bool lit_at(const jlex *l, size_t at, const char *lit) {
    size_t n = strlen(lit);
    return at + n <= l->n && !memcmp(l->src + at, lit, n);
}

/* ---- text ---- */

/* End of a tag whose closing starts at `at`: [+-]close, with what it swallows.  0 if there is none. */
static size_t close_at(const jlex *l, size_t at, const char *close, bool trim, bool plus) {
    size_t n = strlen(close);
    if (at < l->n && l->src[at] == '-' && lit_at(l, at + 1, close)) return skip_space(l, at + 1 + n);
    if (plus && at < l->n && l->src[at] == '+' && lit_at(l, at + 1, close)) return at + 1 + n;
    if (!lit_at(l, at, close)) return 0;
    at += n;
    return trim && at < l->n && l->src[at] == '\n' ? at + 1 : at;
}

/* `{% raw %}` at `at` (a "{%"): its end, or 0. */
static size_t raw_at(const jlex *l, size_t at) {
    at += 2;
    if (at < l->n && (l->src[at] == '-' || l->src[at] == '+')) at++;
    at = skip_space(l, at);
    if (!lit_at(l, at, "raw")) return 0;
    at = skip_space(l, at + 3);
    return close_at(l, at, "%}", false, false);
}

static size_t endraw_at(const jlex *l, size_t at) {
    at += 2;
    if (at < l->n && (l->src[at] == '-' || l->src[at] == '+')) at++;
    at = skip_space(l, at);
    if (!lit_at(l, at, "endraw")) return 0;
    at = skip_space(l, at + 6);
    return close_at(l, at, "%}", true, true);
}

static size_t find2(const jlex *l, size_t at, char a, const char *second) {
    while (at + 1 < l->n) {
        const char *q = memchr(l->src + at, a, l->n - 1 - at);
        if (!q) break;
        at = (size_t)(q - l->src);
        if (strchr(second, q[1]) && q[1]) return at;
        at++;
    }
    return l->n;
}

/* Text [from, to) before a tag with this sign: what is left of it. */
static size_t text_before(const jlex *l, size_t from, size_t to, char sign, bool is_var) {
    const char *p = l->src + from;
    size_t n = to - from, nl;
    if (sign == '-') return rstrip(p, n);
    if (sign == '+' || is_var) return n;
    for (nl = n; nl && p[nl - 1] != '\n'; nl--) {}
    if ((nl || l->line_start) && all_space(p + nl, n - nl)) return nl;
    return n;
}

static void pass(jlex *l, size_t to) {
    l->line_start = to > 0 && l->src[to - 1] == '\n';
    l->pos = to;
}

static void data_token(jlex *l, jtok *t, size_t from, size_t n) {
    *t = (jtok){.kind = T_DATA, .line = l->line, .p = l->src + from, .n = n};
}

/* The comment whose content starts at pos. */
static void comment(jlex *l) {
    size_t start = l->pos, at = start, end;
    at = find2(l, at, '#', "}");
    if (at >= l->n) {
        if (start < l->n) lex_fail(l, "Missing end of comment tag");
        pass(l, l->n); /* an open comment at the very end is no error */
        return;
    }
    end = at + 2;
    if (at > start && l->src[at - 1] == '-') {
        end = skip_space(l, end);
    } else if (!(at > start && l->src[at - 1] == '+') && end < l->n && l->src[end] == '\n') {
        end++;
    }
    l->line += newlines(l->src + start, end - start);
    pass(l, end);
}

/* The raw block whose content starts at pos: its text as one token. */
static bool raw(jlex *l, jtok *t) {
    size_t start = l->pos, at = start, end, keep;
    char sign;
    for (;; at++) {
        at = find2(l, at, '{', "%");
        if (at >= l->n) {
            if (start < l->n) lex_fail(l, "Missing end of raw directive");
            l->pos = l->n;
            return false;
        }
        if ((end = endraw_at(l, at))) break;
    }
    sign = l->src[at + 2];
    keep = text_before(l, start, at, sign, false);
    data_token(l, t, start, keep);
    l->line += newlines(l->src + start, end - start);
    l->state = IN_TEXT;
    pass(l, end);
    return keep > 0;
}

/* Text up to the next tag; false if there was none and the state changed. */
static bool text(jlex *l, jtok *t) {
    size_t start = l->pos, at = find2(l, start, '{', "{%#"), keep, end;
    char kind, sign;
    bool some;
    if (at >= l->n) {
        data_token(l, t, start, l->n - start);
        l->line += newlines(l->src + start, l->n - start);
        pass(l, l->n);
        return true;
    }
    kind = l->src[at + 1];
    sign = at + 2 < l->n ? l->src[at + 2] : 0;
    keep = text_before(l, start, at, sign, kind == '{');
    data_token(l, t, start, keep);
    l->line += newlines(l->src + start, at - start);
    some = keep > 0;
    if (kind == '%' && (end = raw_at(l, at))) {
        l->line += newlines(l->src + at, end - at);
        pass(l, end);
        if (some) { /* hand out the text first, the raw content at the next call */
            l->state = IN_RAW;
            return true;
        }
        return raw(l, t);
    }
    pass(l, at + (sign == '-' || sign == '+' ? 3 : 2));
    if (kind == '#') {
        uint32_t line = t->line;
        comment(l);
        t->line = line;
        return some;
    }
    l->state = kind == '%' ? IN_BLOCK : IN_VAR;
    l->begin_due = true;
    return some;
}

/* ---- tags ---- */

static bool ident_char(uint32_t cp) {
    if (cp < 0x80) return isalnum((int)cp) || cp == '_';
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

/* Digits with single underscores between: (d+_)*d+ .  Returns the end, or `at` if none. */
static size_t digits(const jlex *l, size_t at) {
    size_t end = at;
    while (at < l->n && isdigit((unsigned char)l->src[at])) {
        end = ++at;
        if (at + 1 < l->n && l->src[at] == '_' && isdigit((unsigned char)l->src[at + 1])) at++;
    }
    return end;
}

static size_t float_end(const jlex *l, size_t at) {
    size_t whole = digits(l, at), frac = whole, e, x;
    if (at && l->src[at - 1] == '.') return 0;
    if (whole < l->n && l->src[whole] == '.' && (x = digits(l, whole + 1)) > whole + 1) frac = x;
    if (frac < l->n && (l->src[frac] == 'e' || l->src[frac] == 'E')) {
        e = frac + 1;
        if (e < l->n && (l->src[e] == '+' || l->src[e] == '-')) e++;
        if ((x = digits(l, e)) > e) return x;
    }
    return frac > whole ? frac : 0;
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
}

static void integer(jlex *l, jtok *t) {
    size_t at = l->pos, end;
    int base = 10;
    ji128 v = 0;
    char c = l->src[at], x = at + 1 < l->n ? (char)tolower((unsigned char)l->src[at + 1]) : 0;
    if (c == '0' && (x == 'b' || x == 'o' || x == 'x')) {
        size_t q = at + 2;
        int b = x == 'b' ? 2 : x == 'o' ? 8 : 16;
        if (q < l->n && l->src[q] == '_') q++;
        if (q < l->n && digit_value(l->src[q]) < b) {
            base = b;
            at += 2;
        }
    }
    for (end = at;;) {
        size_t q = end;
        if (base != 10 || end > at) q += q < l->n && l->src[q] == '_';
        if (q >= l->n || digit_value(l->src[q]) >= base) break;
        if (base == 10 && c == '0' && l->src[q] != '0') break; /* decimal zero: only more zeros belong to it */
        if (__builtin_mul_overflow(v, (ji128)base, &v) || __builtin_add_overflow(v, (ji128)digit_value(l->src[q]), &v))
            jerror_raise(l->e, J_UNSUPPORTED, l->line, "integer literal too large");
        end = q + 1;
    }
    t->kind = T_INT;
    if (v >= INT64_MIN && v <= INT64_MAX) {
        t->num = jint((int64_t)v);
    } else {
        ji128 *big = lex_alloc(l, sizeof *big);
        *big = v;
        t->num = (jval){.k = V_BIG, .big = big};
    }
    pass(l, end);
}

static void real(jlex *l, jtok *t, size_t end) {
    char *s = lex_alloc(l, end - l->pos + 1);
    size_t k = 0;
    for (size_t i = l->pos; i < end; i++)
        if (l->src[i] != '_') s[k++] = l->src[i];
    s[k] = 0;
    t->kind = T_FLOAT;
    t->num = jfloat(strtod(s, NULL));
    pass(l, end);
}

static bool hex_escape(const char *p, size_t n, size_t want, uint32_t *cp) {
    *cp = 0;
    if (n < want) return false;
    for (size_t i = 0; i < want; i++) {
        int d = digit_value(p[i]);
        if (d > 15) return false;
        *cp = *cp << 4 | (uint32_t)d;
    }
    return true;
}

/* Python's unicode-escape decoding of the literal's body.  A surrogate pair becomes the character it stands for
 * (Python would fail when printing it). */
static void string(jlex *l, jtok *t, size_t end) {
    const char *p = l->src + l->pos + 1;
    size_t n = end - l->pos - 2, k = 0, want;
    char *s = lex_alloc(l, n + 8);
    uint32_t cp, low;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (c != '\\') {
            s[k++] = c;
            continue;
        }
        c = p[++i];
        switch (c) {
        case '\n': break;
        case '\\': case '\'': case '"': s[k++] = c; break;
        case 'a': s[k++] = '\a'; break;
        case 'b': s[k++] = '\b'; break;
        case 'f': s[k++] = '\f'; break;
        case 'n': s[k++] = '\n'; break;
        case 'r': s[k++] = '\r'; break;
        case 't': s[k++] = '\t'; break;
        case 'v': s[k++] = '\v'; break;
        case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7':
            cp = 0;
            for (want = 0; want < 3 && i < n && p[i] >= '0' && p[i] <= '7'; want++, i++)
                cp = cp * 8 + (uint32_t)(p[i] - '0');
            i--;
            k += jutf8_put(s + k, cp);
            break;
        case 'x': case 'u': case 'U':
            want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            if (!hex_escape(p + i + 1, n - i - 1, want, &cp))
                lex_fail(l, "truncated \\%c%s escape", c, c == 'x' ? "XX" : c == 'u' ? "XXXX" : "XXXXXXXX");
            i += want;
            if (cp >= 0xd800 && cp < 0xdc00 && i + 2 < n && p[i + 1] == '\\' && p[i + 2] == 'u' &&
                hex_escape(p + i + 3, n - i - 3, 4, &low) && low >= 0xdc00 && low < 0xe000) {
                cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
                i += 6;
            }
            if (cp > 0x10ffff) lex_fail(l, "illegal Unicode character");
            if (cp >= 0xd800 && cp < 0xe000) jerror_raise(l->e, J_UNSUPPORTED, l->line, "lone surrogate in a string");
            k += jutf8_put(s + k, cp);
            break;
        case 'N': jerror_raise(l->e, J_UNSUPPORTED, l->line, "\\N{...} escapes are not supported");
        default:
            s[k++] = '\\';
            s[k++] = c;
        }
    }
    t->kind = T_STRING;
    t->p = s;
    t->n = k;
    l->line += newlines(l->src + l->pos, end - l->pos);
    pass(l, end);
}

/* End of the string literal at pos, or 0. */
static size_t string_end(const jlex *l) {
    char q = l->src[l->pos];
    for (size_t i = l->pos + 1; i < l->n; i++) {
        if (l->src[i] == '\\') i++;
        else if (l->src[i] == q) return i + 1;
    }
    return 0;
}

static const struct {
    const char *text;
    jtok_kind kind;
} OPERATORS[] = {{"//", T_FLOORDIV}, {"**", T_POW}, {"==", T_EQ}, {"!=", T_NE}, {">=", T_GE}, {"<=", T_LE},
                 {"+", T_ADD}, {"-", T_SUB}, {"/", T_DIV}, {"*", T_MUL}, {"%", T_MOD}, {"~", T_TILDE},
                 {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE},
                 {"}", T_RBRACE}, {">", T_GT}, {"<", T_LT}, {"=", T_ASSIGN}, {".", T_DOT}, {":", T_COLON},
                 {"|", T_PIPE}, {",", T_COMMA}, {";", T_SEMICOLON}};

static void bracket(jlex *l, jtok_kind k) {
    char c = k == T_LBRACE ? '}' : k == T_LPAREN ? ')' : ']', got;
    if (k == T_LBRACE || k == T_LPAREN || k == T_LBRACKET) {
        if (!l->closers) l->closers = lex_alloc(l, JINJA_MAX_NEST);
        if (l->n_closers == JINJA_MAX_NEST)
            jerror_raise(l->e, J_LIMIT, l->line, "more than %d brackets are open", JINJA_MAX_NEST);
        l->closers[l->n_closers++] = c;
        return;
    }
    got = k == T_RBRACE ? '}' : k == T_RPAREN ? ')' : ']';
    if (!l->n_closers) lex_fail(l, "unexpected '%c'", got);
    if (l->closers[--l->n_closers] != got) lex_fail(l, "unexpected '%c', expected '%c'", got, l->closers[l->n_closers]);
}

static void tag_token(jlex *l, jtok *t) {
    size_t end, at = skip_space(l, l->pos);
    uint32_t cp;
    const char *p;
    bool block = l->state == IN_BLOCK;
    l->line += newlines(l->src + l->pos, at - l->pos);
    pass(l, at);
    *t = (jtok){.kind = T_EOF, .line = l->line};
    if (at >= l->n) return;
    if (!l->n_closers && (end = close_at(l, at, block ? "%}" : "}}", block, block))) goto close;
    p = l->src + at;
    if (isdigit((unsigned char)*p)) {
        if ((end = float_end(l, at))) real(l, t, end);
        else integer(l, t);
        return;
    }
    cp = jutf8_at(p);
    if (ident_char(cp)) {
        for (end = at; end < l->n && ident_char(jutf8_at(l->src + end)); end += jutf8_len((unsigned char)l->src[end])) {
        }
        t->kind = T_NAME;
        t->name = jlex_atom(l, p, end - at);
        t->p = p;
        t->n = end - at;
        pass(l, end);
        return;
    }
    if ((*p == '"' || *p == '\'') && (end = string_end(l))) {
        string(l, t, end);
        return;
    }
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        if (!lit_at(l, at, OPERATORS[i].text)) continue;
        t->kind = OPERATORS[i].kind;
        if (strchr("[](){}", *p)) bracket(l, t->kind);
        pass(l, at + strlen(OPERATORS[i].text));
        return;
    }
    lex_fail(l,
             *p == '\''   ? "unexpected char \"%.*s\" at %zu"
             : *p == '\\' ? "unexpected char '\\%.*s' at %zu"
                          : "unexpected char '%.*s' at %zu",
             (int)jutf8_len((unsigned char)*p), p, jutf8_count(l->src, at));
close:
    *t = (jtok){.kind = block ? T_BLOCK_END : T_VAR_END, .line = l->line};
    l->line += newlines(l->src + at, end - at);
    l->state = IN_TEXT;
    pass(l, end);
}

void jlex_next(jlex *l, jtok *t) {
    for (;;) {
        if (l->state == IN_RAW) {
            l->state = IN_TEXT;
            if (raw(l, t)) return;
        } else if (l->begin_due) {
            l->begin_due = false;
            *t = (jtok){.kind = l->state == IN_BLOCK ? T_BLOCK_BEGIN : T_VAR_BEGIN, .line = l->line};
            return;
        } else if (l->state != IN_TEXT) {
            tag_token(l, t);
            return;
        } else if (l->pos >= l->n) {
            *t = (jtok){.kind = T_EOF, .line = l->line};
            return;
        } else if (text(l, t)) {
            return;
        }
    }
}

const char *jtok_kind_name(jtok_kind k) {
    switch (k) {
    case T_EOF: return "end of template";
    case T_DATA: return "template data / text";
    case T_BLOCK_BEGIN: return "begin of statement block";
    case T_BLOCK_END: return "end of statement block";
    case T_VAR_BEGIN: return "begin of print statement";
    case T_VAR_END: return "end of print statement";
    case T_NAME: return "name";
    case T_STRING: return "string";
    case T_INT: return "integer";
    case T_FLOAT: return "float";
    default: break;
    }
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++)
        if (OPERATORS[i].kind == k) return OPERATORS[i].text;
    return "?";
}

const char *jtok_name(const jtok *t, char *dst, size_t n) {
    size_t k = t->n < n - 1 ? t->n : n - 1;
    if (t->kind != T_NAME) return jtok_kind_name(t->kind);
    memcpy(dst, t->p, k);
    dst[k] = 0;
    return dst;
}
