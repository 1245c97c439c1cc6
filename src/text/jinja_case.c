/* jinja_case.c - upper, lower and title case and character classes as Python's str has them, on utf8proc's tables.
 *
 * Known differences: utf8proc and Python may carry different Unicode versions; isnumeric leaves out ideographs that
 * stand for numbers; isdigit knows the superscripts, subscripts and circled digits of the Basic Multilingual Plane
 * only. */
#include "text/jinja_int.h"

#include "text/jinja_case_table.h"

#include <utf8proc.h>

static utf8proc_category_t category(uint32_t cp) {
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool jcp_upper(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216f) || (cp >= 0x24b6 && cp <= 0x24cf);
}

bool jcp_lower(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xaa || cp == 0xba || (cp >= 0x2b0 && cp <= 0x2b8) ||
           (cp >= 0x2170 && cp <= 0x217f) || (cp >= 0x24d0 && cp <= 0x24e9);
}

bool jcp_title(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_LT;
}

bool jcp_alpha(uint32_t cp) {
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO;
}

bool jcp_decimal(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool jcp_digit(uint32_t cp) {
    return jcp_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468) ||
           (cp >= 0x2474 && cp <= 0x247c) || (cp >= 0x2488 && cp <= 0x2490) || cp == 0x24ea ||
           (cp >= 0x24f5 && cp <= 0x24fd) || cp == 0x24ff || (cp >= 0x2776 && cp <= 0x277e) ||
           (cp >= 0x2780 && cp <= 0x2788) || (cp >= 0x278a && cp <= 0x2792);
}

bool jcp_numeric(uint32_t cp) {
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

static bool cased(uint32_t cp) {
    return jcp_upper(cp) || jcp_lower(cp) || jcp_title(cp);
}

/* Characters that do not end a word for the final sigma. */
static bool ignorable(uint32_t cp) {
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_ME: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xb7 || cp == 0x2018 || cp == 0x2019 || cp == 0x2024 ||
               cp == 0x2027;
    }
}

/* Capital sigma at byte `at` ends a word: a cased letter before it and none after it. */
static bool final_sigma(const jstr *s, size_t at) {
    size_t i = at;
    bool before = false;
    while (i && !before) {
        uint32_t cp;
        do i--;
        while (((unsigned char)s->p[i] & 0xc0) == 0x80);
        cp = jutf8_at(s->p + i);
        if (ignorable(cp)) continue;
        if (!cased(cp)) return false;
        before = true;
    }
    if (!before) return false;
    for (i = at + 2; i < s->n; i += jutf8_len((unsigned char)s->p[i])) {
        uint32_t cp = jutf8_at(s->p + i);
        if (!ignorable(cp)) return !cased(cp);
    }
    return true;
}

static void put_upper(jinja *j, jsb *b, uint32_t cp, bool title, bool trusted) {
    size_t lo = 0, hi = sizeof CASE_SPECIAL / sizeof *CASE_SPECIAL;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (CASE_SPECIAL[mid].cp < cp) lo = mid + 1;
        else hi = mid;
    }
    if (lo < sizeof CASE_SPECIAL / sizeof *CASE_SPECIAL && CASE_SPECIAL[lo].cp == cp) {
        const char *t = title ? CASE_SPECIAL[lo].title : CASE_SPECIAL[lo].upper;
        jsb_add(j, b, t, strlen(t), trusted);
        return;
    }
    jsb_cp(j, b, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)cp) : utf8proc_toupper((utf8proc_int32_t)cp)),
           trusted);
}

static void put_lower(jinja *j, jsb *b, const jstr *s, size_t at, uint32_t cp, bool trusted) {
    if (cp == 0x130) {
        jsb_add(j, b, "i\xcc\x87", 3, trusted);
    } else if (cp == 0x3a3) {
        jsb_cp(j, b, final_sigma(s, at) ? 0x3c2 : 0x3c3, trusted);
    } else {
        jsb_cp(j, b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), trusted);
    }
}

static void put_folded(jinja *j, jsb *b, uint32_t cp, bool trusted) {
    utf8proc_int32_t out[8] = {(utf8proc_int32_t)cp};
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, 8, UTF8PROC_CASEFOLD, &last);
    if (n <= 0 || n > 8) n = 1;
    for (utf8proc_ssize_t i = 0; i < n; i++) jsb_cp(j, b, (uint32_t)out[i], trusted);
}

const jstr *jstr_case(jinja *j, const jstr *s, jcase how) {
    jsb b;
    uint32_t hint = 0;
    bool in_word = false;
    jsb_init(&b);
    jstep(j, s->n / 8);
    for (size_t at = 0; at < s->n; at += jutf8_len((unsigned char)s->p[at])) {
        uint32_t cp = jutf8_at(s->p + at);
        bool trusted = jstr_trusted_at(s, at, &hint);
        if (cp == 0x3a3) jbytes(j, s->n); /* the look around a sigma may be long */
        switch (how) {
        case CASE_UPPER: put_upper(j, &b, cp, false, trusted); break;
        case CASE_LOWER: put_lower(j, &b, s, at, cp, trusted); break;
        case CASE_CAPITAL:
            if (!at) put_upper(j, &b, cp, true, trusted);
            else put_lower(j, &b, s, at, cp, trusted);
            break;
        case CASE_TITLE:
            if (in_word) put_lower(j, &b, s, at, cp, trusted);
            else put_upper(j, &b, cp, true, trusted);
            in_word = cased(cp);
            break;
        case CASE_SWAP:
            if (jcp_upper(cp)) put_lower(j, &b, s, at, cp, trusted);
            else if (jcp_lower(cp)) put_upper(j, &b, cp, false, trusted);
            else jsb_cp(j, &b, cp, trusted);
            break;
        case CASE_FOLD: put_folded(j, &b, cp, trusted); break;
        }
    }
    return s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b);
}
