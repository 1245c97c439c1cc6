/* stop.c - see stop.h.
 *
 * One Knuth-Morris-Pratt automaton per stop string, all fed byte by byte.  A string's state is how many of its bytes
 * the text seen so far ends with, as a proper prefix; so the string with the largest state names the longest suffix
 * that must be held, and the held bytes are the first ones of that very string: no buffer is needed. Always true
 * between calls: passed + held == seen; held == max of matched[] (or 0) unless a stop is decided. */
#include "decode/stop.h"
#include "base/mem.h"

#include <stdint.h>
#include <string.h>

#define NONE SIZE_MAX

typedef struct {
    const char *s;
    size_t n;
    const uint16_t *fail; /* fail[q], q in 1..n: longest proper prefix of s that ends s[0..q) */
} pattern;

struct stop_set {
    size_t n;
    bool first[256]; /* bytes that begin some string */
    pattern p[];     /* the bytes and tables lie behind, in one block */
};

struct stop_stream {
    const stop_set *set;
    uint64_t seen;   /* bytes fed */
    uint64_t passed; /* bytes given to out */
    size_t best;     /* complete stop with the earliest start so far, or NONE */
    uint64_t best_start;
    bool over; /* a stop is decided, or stop_finish was called */
    bool decided;
    bool idle;          /* every matched[] is 0 */
    uint16_t matched[]; /* per string: < its length */
};

hd_status stop_set_new(stop_set **out, const stop_string *strings, size_t n, hd_err *err) {
    size_t bytes = 0, cells = 0;
    stop_set *s;
    char *text;
    uint16_t *fail;
    *out = NULL;
    if (n > STOP_MAX_STRINGS)
        return hd_fail_field(err, HD_INVALID, "stop", "%zu stop strings, at most %d are taken", n, STOP_MAX_STRINGS);
    for (size_t i = 0; i < n; i++) {
        if (!strings[i].n) return hd_fail_field(err, HD_INVALID, "stop", "stop string %zu is empty", i);
        if (strings[i].n > STOP_MAX_BYTES)
            return hd_fail_field(err, HD_INVALID, "stop", "stop string %zu has %zu bytes, at most %d are taken", i,
                                 strings[i].n, STOP_MAX_BYTES);
        bytes += strings[i].n; /* at most 64 * 4096 */
        cells += strings[i].n + 1;
    }
    if (!(s = hd_calloc(1, sizeof *s + n * sizeof *s->p + cells * sizeof *fail + bytes)))
        return hd_fail(err, HD_NOMEM, "no memory for stop strings");
    s->n = n;
    fail = (uint16_t *)(void *)(s->p + n);
    text = (char *)(fail + cells);
    for (size_t i = 0; i < n; i++) {
        size_t len = strings[i].n, q = 0;
        memcpy(text, strings[i].s, len);
        for (size_t j = 1; j < len; j++) { /* fail[0] and fail[1] are 0 */
            while (q && text[j] != text[q]) q = fail[q];
            if (text[j] == text[q]) q++;
            fail[j + 1] = (uint16_t)q;
        }
        s->first[(unsigned char)text[0]] = true;
        s->p[i] = (pattern){text, len, fail};
        text += len;
        fail += len + 1;
    }
    *out = s;
    return HD_OK;
}

void stop_set_free(stop_set *s) { hd_free(s); }

hd_status stop_stream_new(stop_stream **out, const stop_set *set, hd_err *err) {
    stop_stream *s = hd_calloc(1, sizeof *s + set->n * sizeof *s->matched);
    *out = NULL;
    if (!s) return hd_fail(err, HD_NOMEM, "no memory for the state of stop strings");
    s->set = set;
    s->best = NONE;
    s->idle = true;
    *out = s;
    return HD_OK;
}

void stop_stream_free(stop_stream *s) { hd_free(s); }

/* The string whose matched prefix is the longest; NONE when nothing matches. */
static size_t longest(const stop_stream *s) {
    size_t best = NONE;
    if (s->idle) return NONE;
    for (size_t i = 0; i < s->set->n; i++)
        if (s->matched[i] && (best == NONE || s->matched[i] > s->matched[best])) best = i;
    return best;
}

/* One byte into every automaton; updates best.  True: decided. */
static bool feed(stop_stream *s, char c) {
    bool idle = true, earlier = false;
    s->seen++;
    for (size_t i = 0; i < s->set->n; i++) {
        const pattern *p = &s->set->p[i];
        size_t q = s->matched[i];
        while (q && p->s[q] != c) q = p->fail[q];
        if (p->s[q] == c) q++;
        if (q == p->n) {
            uint64_t start = s->seen - q;
            if (s->best == NONE || start < s->best_start) { /* equal starts: complete first, then first listed */
                s->best = i;
                s->best_start = start;
            }
            q = p->fail[q];
        }
        s->matched[i] = (uint16_t)q;
        if (q) idle = false;
    }
    s->idle = idle;
    if (s->best == NONE) return false;
    for (size_t i = 0; i < s->set->n; i++)
        if (s->matched[i] && s->seen - s->matched[i] < s->best_start) earlier = true;
    return !earlier;
}

/* Pass the text up to absolute byte `end`.  Before position `at` it is the first bytes of string `held`, whose own
 * start is `passed`; from there on it is text. */
static void pass(stop_stream *s, uint64_t end, size_t held, uint64_t at, const char *text, hd_buf *out) {
    if (s->passed < at && s->passed < end) {
        uint64_t to = end < at ? end : at;
        buf_add(out, s->set->p[held].s, (size_t)(to - s->passed));
        s->passed = to;
    }
    if (s->passed < end) {
        buf_add(out, text + (s->passed - at), (size_t)(end - s->passed));
        s->passed = end;
    }
}

bool stop_push(stop_stream *s, const char *text, size_t n, hd_buf *out, size_t *which) {
    const uint64_t at = s->seen;
    const size_t held = longest(s);
    uint64_t end;
    if (s->over) goto over;
    HD_ASSERT(s->seen - s->passed == stop_held(s));
    for (size_t i = 0; i < n; i++) {
        if (s->idle && !s->set->first[(unsigned char)text[i]]) {
            s->seen++;
            continue;
        }
        if (feed(s, text[i])) {
            s->over = s->decided = true;
            break;
        }
    }
    end = s->decided ? s->best_start : s->seen - stop_held(s);
    pass(s, end, held, at, text, out);
over:
    if (s->decided && which) *which = s->best;
    return s->decided;
}

bool stop_finish(stop_stream *s, hd_buf *out, size_t *which) {
    if (!s->over) {
        size_t held = longest(s);
        s->over = true;
        s->decided = s->best != NONE;
        pass(s, s->decided ? s->best_start : s->seen, held, s->seen, NULL, out);
    }
    if (s->decided && which) *which = s->best;
    return s->decided;
}

size_t stop_held(const stop_stream *s) {
    size_t i = s->over ? NONE : longest(s);
    return i == NONE ? 0 : s->matched[i];
}
