/* pretok.c - the scanners, one per pattern family, and the table of names.
 *
 * A stage looks at one piece u[a..b) and marks in cut[] where new pieces start inside it.  It must not look past b: in
 * the original each piece is a string of its own, so the end of a piece is an end of text.  A pattern's matches and the
 * gaps between them are pieces alike.  Each match_* below answers the end of the match at i, or i for none.
 * Read: the shared parts, then gpt2 (the ancestor), modern (llama3, qwen, gpt-4o, tekken), deepseek, falcon, the table.
 *
 * Sources: the tokenizer.json of each model; where llama.cpp's pattern is known to differ, the original is followed. */
#include "text/pretok.h"

#include <string.h>

/* ------------------------------------------------------------------------------------------------- shared parts */

#define CRLF(x) (uni_cp(x) == '\r' || uni_cp(x) == '\n')

static size_t run(const uni *u, size_t i, size_t b, uni classes) {
    while (i < b && (u[i] & classes)) i++;
    return i;
}

static size_t run_not(const uni *u, size_t i, size_t b, uni classes) {
    while (i < b && !(u[i] & classes)) i++;
    return i;
}

/* 's 't 're 've 'm 'll 'd at i; fold: in any case, where the long s (U+017F) counts as an s. */
static size_t contraction(const uni *u, size_t i, size_t b, bool fold) {
    uint32_t x, y = 0;
    if (i + 1 >= b || uni_cp(u[i]) != '\'') return i;
    x = uni_cp(u[i + 1]);
    if (i + 2 < b) y = uni_cp(u[i + 2]);
    if (fold) {
        if (x == 0x17f) x = 's';
        if (x < 0x80) x |= 0x20; /* nothing but S T M D R V L E becomes one of the letters below */
        if (y < 0x80) y |= 0x20;
    }
    if (x == 's' || x == 't' || x == 'm' || x == 'd') return i + 2;
    if (((x == 'r' || x == 'v') && y == 'e') || (x == 'l' && y == 'l')) return i + 3;
    return i;
}

/* \s+(?!\S)|\s+ with u[i] white: the run, but its last one is left to what follows. */
static size_t white(const uni *u, size_t i, size_t b) {
    size_t e = run(u, i, b, UNI_SPACE);
    return e < b && e - i > 1 ? e - 1 : e;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ with u[i] white: up to the last line end of the run, if it has one. */
static size_t white_lines(const uni *u, size_t i, size_t b) {
    size_t e = run(u, i, b, UNI_SPACE), p = e;
    while (p > i && !CRLF(u[p - 1])) p--;
    if (p > i) return p;
    return e < b && e - i > 1 ? e - 1 : e;
}

static size_t digits(const uni *u, size_t i, size_t b, size_t max) {
    return run(u, i, b - i > max ? i + max : b, UNI_N);
}

/* ---------------------------------------------------------------------------------------------------------- gpt2 */

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t match_gpt2(const uni *u, size_t i, size_t b) {
    size_t e = contraction(u, i, b, false), w = i;
    if (e > i) return e;
    if (uni_cp(u[i]) == ' ' && i + 1 < b && !(u[i + 1] & UNI_SPACE)) w++;
    if (u[w] & UNI_L) return run(u, w, b, UNI_L);
    if (u[w] & UNI_N) return run(u, w, b, UNI_N);
    if (u[w] & UNI_SPACE) return white(u, i, b);
    return run_not(u, w, b, UNI_SPACE | UNI_L | UNI_N);
}

static void stage_gpt2(const uni *u, size_t a, size_t b, uint8_t *cut) {
    for (size_t i = a; i < b; cut[i] = 1) i = match_gpt2(u, i, b);
}

/* \p{N}, each alone. */
static void stage_digit(const uni *u, size_t a, size_t b, uint8_t *cut) {
    for (size_t i = a; i < b; i++)
        if (u[i] & UNI_N) cut[i] = cut[i + 1] = 1;
}

/* \p{N}{1,3}: pieces of up to three from the left. */
static void stage_digits3(const uni *u, size_t a, size_t b, uint8_t *cut) {
    for (size_t i = a; i < b;) {
        size_t e = digits(u, i, b, 3);
        if (e > i)
            cut[i] = cut[e] = 1, i = e;
        else
            i++;
    }
}

/* \p{N}+ */
static void stage_numbers(const uni *u, size_t a, size_t b, uint8_t *cut) {
    for (size_t i = a; i < b;) {
        size_t e = run(u, i, b, UNI_N);
        if (e > i)
            cut[i] = cut[e] = 1, i = e;
        else
            i++;
    }
}

/* -------------------------------------------------------------------------------------------------------- modern */

/* What differs between the patterns that descend from cl100k. */
typedef struct {
    size_t max_digits;
    uni mark;      /* UNI_M: marks belong to words and not to symbols */
    bool leading;  /* contractions are a first alternative */
    bool cased;    /* words are cut where a capital follows small letters */
    bool trailing; /* a contraction may end a cased word */
    bool slash;    /* symbols take slashes with the line ends after them */
} modern;

/* [U]*[D]+ or [U]+[D]* from i, U = Lu Lt Lm Lo M, D = Ll Lm Lo M: the two alternatives of gpt-4o without what stands
 * before the word.  The greedy [U]* gives back until a D can follow, which is its last letter without case. */
static size_t cased_word(const uni *u, size_t i, size_t b, bool *first) {
    size_t e = run(u, i, b, UNI_LU | UNI_LO | UNI_M), p = e;
    *first = true;
    if (e < b && (u[e] & UNI_LL)) return run(u, e, b, UNI_LL | UNI_LO | UNI_M);
    while (p > i && !(u[p - 1] & (UNI_LO | UNI_M))) p--;
    if (p > i) return p;
    *first = false;
    return e; /* capitals only: the second alternative, or nothing */
}

static size_t match_cased(const uni *u, size_t i, size_t b, bool trailing) {
    bool first = false, first_bare = false;
    bool lead = !(u[i] & (UNI_L | UNI_N)) && !CRLF(u[i]) && i + 1 < b;
    size_t with = lead ? cased_word(u, i + 1, b, &first) : i;
    size_t bare = cased_word(u, i, b, &first_bare);
    size_t e = i;
    /* In order: first alternative with a lead, first without, second with a lead, second without. */
    if (lead && with > i + 1 && first)
        e = with;
    else if (bare > i && first_bare)
        e = bare;
    else if (lead && with > i + 1)
        e = with;
    else if (bare > i)
        e = bare;
    return e > i && trailing ? contraction(u, e, b, true) : e;
}

static size_t match_word(const uni *u, size_t i, size_t b, uni letters) {
    if (u[i] & letters) return run(u, i, b, letters);
    if (!(u[i] & UNI_N) && !CRLF(u[i]) && i + 1 < b && (u[i + 1] & letters)) return run(u, i + 1, b, letters);
    return i;
}

static size_t match_modern(const uni *u, size_t i, size_t b, const modern *m) {
    size_t e = m->leading ? contraction(u, i, b, true) : i, w = i;
    if (e > i) return e;
    e = m->cased ? match_cased(u, i, b, m->trailing) : match_word(u, i, b, UNI_L | m->mark);
    if (e > i) return e;
    if (u[i] & UNI_N) return digits(u, i, b, m->max_digits);
    if (uni_cp(u[i]) == ' ' && i + 1 < b && !(u[i + 1] & (UNI_SPACE | UNI_L | UNI_N | m->mark))) w++;
    if (u[w] & UNI_SPACE) return white_lines(u, i, b);
    e = run_not(u, w, b, UNI_SPACE | UNI_L | UNI_N | m->mark);
    while (e < b && (CRLF(u[e]) || (m->slash && uni_cp(u[e]) == '/'))) e++;
    return e;
}

static void cut_modern(const uni *u, size_t a, size_t b, uint8_t *cut, const modern *m) {
    for (size_t i = a; i < b; cut[i] = 1) i = match_modern(u, i, b, m);
}

/* (?i:C1)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static void stage_llama3(const uni *u, size_t a, size_t b, uint8_t *cut) {
    cut_modern(u, a, b, cut, &(modern){.max_digits = 3, .leading = true});
}

/* The same with single digits.  bailingmoe's \s*[\r\n] and possessive repeats cut at the same places. */
static void stage_qwen2(const uni *u, size_t a, size_t b, uint8_t *cut) {
    cut_modern(u, a, b, cut, &(modern){.max_digits = 1, .leading = true});
}

static void stage_qwen35(const uni *u, size_t a, size_t b, uint8_t *cut) {
    cut_modern(u, a, b, cut, &(modern){.max_digits = 1, .leading = true, .mark = UNI_M});
}

static void stage_gpt4o(const uni *u, size_t a, size_t b, uint8_t *cut) {
    cut_modern(u, a, b, cut, &(modern){.max_digits = 3, .cased = true, .trailing = true, .slash = true});
}

static void stage_tekken(const uni *u, size_t a, size_t b, uint8_t *cut) {
    cut_modern(u, a, b, cut, &(modern){.max_digits = 1, .cased = true, .slash = true});
}

/* ------------------------------------------------------------------------------------------------------ deepseek */

/* [\r\n], each alone. */
static void stage_line_ends(const uni *u, size_t a, size_t b, uint8_t *cut) {
    for (size_t i = a; i < b; i++)
        if (CRLF(u[i])) cut[i] = cut[i + 1] = 1;
}

typedef bool is_fn(uni u);

/* \s?X+ for a set X without white space in it (or one where a white X needs no white before it: see below). */
static void stage_spaced(const uni *u, size_t a, size_t b, uint8_t *cut, is_fn *is) {
    for (size_t i = a; i < b;) {
        size_t w = i;
        if ((u[i] & UNI_SPACE) && i + 1 < b && is(u[i + 1])) w++;
        if (!is(u[w])) {
            i++;
            continue;
        }
        while (w < b && is(u[w])) w++;
        cut[i] = cut[w] = 1;
        i = w;
    }
}

/* The letters that deepseek-llm's pattern lists: cased letters as of Unicode 11, with the gaps of that list. */
static const uint32_t deepseek_letters[][2] = {
    {0x41, 0x5a},       {0x61, 0x7a},       {0xb5, 0xb5},       {0xc0, 0xd6},       {0xd8, 0xf6},
    {0xf8, 0x1ba},      {0x1bc, 0x1bf},     {0x1c4, 0x293},     {0x295, 0x2af},     {0x370, 0x373},
    {0x376, 0x377},     {0x37b, 0x37d},     {0x37f, 0x37f},     {0x386, 0x386},     {0x388, 0x38a},
    {0x38c, 0x38c},     {0x38e, 0x3a1},     {0x3a3, 0x3f5},     {0x3f7, 0x481},     {0x48a, 0x52f},
    {0x531, 0x556},     {0x10a0, 0x10c5},   {0x13a0, 0x13f5},   {0x13f8, 0x13fd},   {0x1c90, 0x1cba},
    {0x1cbd, 0x1cbf},   {0x1d00, 0x1d2b},   {0x1d6b, 0x1d77},   {0x1d79, 0x1d9a},   {0x1e00, 0x1f15},
    {0x1f18, 0x1f1d},   {0x1f20, 0x1f45},   {0x1f48, 0x1f4d},   {0x1f50, 0x1f57},   {0x1f59, 0x1f59},
    {0x1f5b, 0x1f5b},   {0x1f5d, 0x1f5d},   {0x1f5f, 0x1f7d},   {0x1f80, 0x1fb4},   {0x1fb6, 0x1fbc},
    {0x1fbe, 0x1fbe},   {0x1fc2, 0x1fc4},   {0x1fc6, 0x1fcc},   {0x1fd0, 0x1fd3},   {0x1fd6, 0x1fdb},
    {0x1fe0, 0x1fec},   {0x1ff2, 0x1ff4},   {0x1ff6, 0x1ffc},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210a, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211d},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212a, 0x212d},   {0x212f, 0x2134},   {0x2139, 0x2139},   {0x213c, 0x213f},
    {0x2145, 0x2149},   {0x214e, 0x214e},   {0x2183, 0x2184},   {0x2c00, 0x2c7b},   {0x2c7e, 0x2ce4},
    {0x2ceb, 0x2cee},   {0x2cf2, 0x2cf3},   {0xa640, 0xa66d},   {0xa680, 0xa69b},   {0xa722, 0xa76f},
    {0xa771, 0xa787},   {0xa78b, 0xa78e},   {0xab70, 0xabbf},   {0xfb00, 0xfb06},   {0xfb13, 0xfb17},
    {0xff21, 0xff3a},   {0xff41, 0xff5a},   {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb},
    {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df}, {0x1e900, 0x1e943},
};

static bool is_deepseek_letter(uni u) {
    size_t lo = 0, hi = sizeof deepseek_letters / sizeof *deepseek_letters;
    uint32_t c = uni_cp(u);
    if (u & UNI_BAD) return false;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > deepseek_letters[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof deepseek_letters / sizeof *deepseek_letters && c >= deepseek_letters[lo][0];
}

/* [!-/:-~ and their full-width forms, U+2018 to U+201F, U+3000 to U+3002]: as written, letters are among them. */
static bool is_deepseek_sign(uni u) {
    uint32_t c = uni_cp(u);
    if (u & UNI_BAD) return false;
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '~') || (c >= 0xff01 && c <= 0xff0f) ||
           (c >= 0xff1a && c <= 0xff5e) || (c >= 0x2018 && c <= 0x201f) || (c >= 0x3000 && c <= 0x3002);
}

static bool is_letter(uni u) { return u & UNI_L; }
static bool is_punct(uni u) { return u & UNI_P; }

static void stage_deepseek_letters(const uni *u, size_t a, size_t b, uint8_t *cut) {
    stage_spaced(u, a, b, cut, is_deepseek_letter);
}
static void stage_deepseek_signs(const uni *u, size_t a, size_t b, uint8_t *cut) {
    stage_spaced(u, a, b, cut, is_deepseek_sign);
}
static void stage_spaced_letters(const uni *u, size_t a, size_t b, uint8_t *cut) {
    stage_spaced(u, a, b, cut, is_letter);
}
static void stage_spaced_punct(const uni *u, size_t a, size_t b, uint8_t *cut) { stage_spaced(u, a, b, cut, is_punct); }

/* \s+$ */
static void stage_last_white(const uni *u, size_t a, size_t b, uint8_t *cut) {
    size_t i = b;
    while (i > a && (u[i - 1] & UNI_SPACE)) i--;
    if (i < b) cut[i] = 1;
}

static void stage_runs(const uni *u, size_t a, size_t b, uint8_t *cut, is_fn *is) {
    for (size_t i = a; i < b;) {
        size_t e = i;
        while (e < b && is(u[e])) e++;
        if (e > i)
            cut[i] = cut[e] = 1, i = e;
        else
            i++;
    }
}

static bool is_asian(uni u) {
    uint32_t c = uni_cp(u);
    return !(u & UNI_BAD) && ((c >= 0x800 && c <= 0x9fa5) || (c >= 0xac00 && c <= 0xd7ff));
}

static bool is_han_or_kana(uni u) {
    uint32_t c = uni_cp(u);
    return !(u & UNI_BAD) && ((c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff));
}

static void stage_asian(const uni *u, size_t a, size_t b, uint8_t *cut) { stage_runs(u, a, b, cut, is_asian); }
static void stage_han_kana(const uni *u, size_t a, size_t b, uint8_t *cut) { stage_runs(u, a, b, cut, is_han_or_kana); }

/* [ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * Numbers and control characters alone match nothing. */
static size_t match_deepseek3(const uni *u, size_t i, size_t b) {
    const uni LM = UNI_L | UNI_M, PS = UNI_P | UNI_S;
    size_t e = i + 1, w = i;
    if (uni_cp(u[i]) < 0x80 && (u[i] & PS)) {
        while (e < b && uni_cp(u[e]) < 0x80 && (u[e] & UNI_L)) e++;
        if (e > i + 1) return e;
    }
    if (!(u[i] & (UNI_L | PS)) && !CRLF(u[i]) && i + 1 < b && (u[i + 1] & LM)) return run(u, i + 1, b, LM);
    if (u[i] & LM) return run(u, i, b, LM);
    if (uni_cp(u[i]) == ' ' && i + 1 < b && (u[i + 1] & PS)) w++;
    if (u[w] & PS) {
        e = run(u, w, b, PS);
        while (e < b && CRLF(u[e])) e++;
        return e;
    }
    return u[i] & UNI_SPACE ? white_lines(u, i, b) : i;
}

static void stage_deepseek3(const uni *u, size_t a, size_t b, uint8_t *cut) {
    for (size_t i = a; i < b;) {
        size_t e = match_deepseek3(u, i, b);
        if (e > i)
            cut[i] = cut[e] = 1, i = e;
        else
            i++;
    }
}

/* -------------------------------------------------------------------------------------------- falcon and the old */

static bool is_any_punct(uni u) { return (u & UNI_P) || (uni_cp(u) < 0x80 && (u & UNI_S)); }
static bool is_old_punct(uni u) { return is_any_punct(u) && uni_cp(u) != '`'; }

static void stage_any_punct(const uni *u, size_t a, size_t b, uint8_t *cut) { stage_runs(u, a, b, cut, is_any_punct); }
static void stage_old_punct(const uni *u, size_t a, size_t b, uint8_t *cut) { stage_runs(u, a, b, cut, is_old_punct); }

/* [0-9][0-9][0-9] */
static void stage_triples(const uni *u, size_t a, size_t b, uint8_t *cut) {
    for (size_t i = a; i < b;) {
        size_t k = 0;
        while (k < 3 && i + k < b && uni_cp(u[i + k]) - '0' < 10) k++;
        if (k == 3)
            cut[i] = cut[i + 3] = 1, i += 3;
        else
            i += k + 1; /* none can start before the one that broke it */
    }
}

static bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static bool byte_digit(uint8_t c) {
    return is_digit(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0xbc || c == 0xbd || c == 0xbe;
}

static bool triple(const uint8_t *s) { return is_digit(s[0]) && is_digit(s[1]) && is_digit(s[2]); }

size_t pretok_byte_digits(const uint8_t *s, size_t n) {
    bool d = byte_digit(s[0]);
    size_t e = 0;
    if (d && n >= 3 && triple(s)) return 3;
    for (e = 1; e < n && byte_digit(s[e]) == d; e++)
        if (d && n - e >= 3 && triple(s + e)) break;
    return e;
}

/* --------------------------------------------------------------------------------------------------- table of names */

#define GPT2                                                                                                           \
    { stage_gpt2 }
#define DIGIT                                                                                                          \
    { stage_digit, stage_gpt2 }
#define LLAMA3                                                                                                         \
    { stage_llama3 }
#define QWEN2                                                                                                          \
    { stage_qwen2 }
#define DS3                                                                                                            \
    { stage_digits3, stage_han_kana, stage_deepseek3 }

static const pretok table[] = {
    {"default", PRETOK_GUESSED, {stage_old_punct, stage_gpt2, stage_numbers, stage_triples}},
    {"gpt-2", 0, GPT2},
    {"phi-2", 0, GPT2},
    {"jina-es", 0, GPT2},
    {"jina-de", 0, GPT2},
    {"jina-v1-en", 0, GPT2},
    {"jina-v2-es", 0, GPT2},
    {"jina-v2-de", 0, GPT2},
    {"jina-v2-code", 0, GPT2},
    {"roberta-bpe", 0, GPT2},
    {"exaone4", 0, GPT2},
    {"jais", 0, GPT2},
    {"trillion", 0, GPT2},
    {"granite-docling", 0, GPT2},
    {"mpt", PRETOK_NFC, GPT2},
    {"olmo", PRETOK_NFC, GPT2},
    {"modern-bert", PRETOK_NFC, GPT2},
    {"smollm", 0, DIGIT},
    {"starcoder", 0, DIGIT},
    {"refact", 0, DIGIT},
    {"command-r", 0, DIGIT},
    {"codeshell", 0, DIGIT},
    {"exaone", 0, DIGIT},
    {"minerva", 0, DIGIT},
    {"minerva-7b", 0, DIGIT},
    {"falcon", PRETOK_BYTE_DIGITS, {stage_any_punct, stage_gpt2}},
    {"llama-bpe", PRETOK_BOS | PRETOK_WHOLE, LLAMA3},
    {"llama3", PRETOK_BOS | PRETOK_WHOLE, LLAMA3},
    {"llama-v3", PRETOK_BOS | PRETOK_WHOLE, LLAMA3},
    {"lfm2", PRETOK_BOS | PRETOK_WHOLE, LLAMA3},
    {"falcon3", PRETOK_BOS | PRETOK_WHOLE, LLAMA3},
    {"falcon-h1", PRETOK_BOS | PRETOK_WHOLE, LLAMA3},
    {"pixtral", PRETOK_BOS | PRETOK_WHOLE, LLAMA3},
    {"dbrx", 0, LLAMA3},
    {"smaug-bpe", 0, LLAMA3},
    {"chatglm-bpe", 0, LLAMA3},
    {"glm4", 0, LLAMA3},
    {"qwen2", PRETOK_NFC, QWEN2},
    {"deepseek-r1-qwen", PRETOK_NFC, QWEN2},
    {"stablelm2", PRETOK_NFC, QWEN2},
    {"megrez", 0, QWEN2},
    {"hunyuan", 0, QWEN2},
    {"solar-open", 0, QWEN2},
    {"grok-2", 0, QWEN2},
    {"bailingmoe", 0, QWEN2},
    {"bailingmoe2", 0, QWEN2},
    {"llada-moe", 0, QWEN2},
    {"qwen35", PRETOK_NFC, {stage_qwen35}},
    {"gpt-4o", 0, {stage_gpt4o}},
    {"llama4", PRETOK_BOS, {stage_gpt4o}},
    {"tekken", PRETOK_BOS | PRETOK_WHOLE, {stage_tekken}},
    {"deepseek-llm",
     0,
     {stage_line_ends, stage_deepseek_letters, stage_deepseek_signs, stage_last_white, stage_asian, stage_numbers}},
    {"deepseek-coder", 0, {stage_line_ends, stage_spaced_letters, stage_spaced_punct, stage_asian, stage_digit}},
    {"deepseek-v3", 0, DS3},
    {"hunyuan-dense", 0, DS3},
};

const pretok *pretok_find(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i].name) == n && !memcmp(table[i].name, name, n)) return &table[i];
    return NULL;
}

void pretok_cut(const pretok *p, const uni *u, size_t n, uint8_t *cut) {
    memset(cut, 0, n + 1);
    cut[0] = cut[n] = 1;
    for (size_t s = 0; s < 6 && p->stages[s]; s++)
        for (size_t a = 0, b; a < n; a = b) {
            for (b = a + 1; !cut[b]; b++) continue;
            p->stages[s](u, a, b, cut);
        }
}
