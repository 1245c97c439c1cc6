/* penalties.c - changes of logits that look at what was said: bias, repetition, presence, frequency, DRY.
 *
 * Repetition: Keskar et al. 2019 (CTRL, section 4.1), with negative logits multiplied as everyone does since.  Presence
 * and frequency: the OpenAI API reference.  DRY: the sampler its author p-e-w published ("don't repeat yourself").
 * Every token of the vocabulary is touched at most once per rule, so no order of visits shows in the result. */
#include "decode/sampler_int.h"

#include <math.h>

/* The last `window` tokens (0: all). */
static const int32_t *recent(const int32_t *history, size_t n_history, uint32_t window, size_t *n) {
    *n = window && window < n_history ? window : n_history;
    return n_history ? history + (n_history - *n) : history;
}
static bool known(int32_t id, size_t n_vocab) { return (uint64_t)(int64_t)id < n_vocab; }

/* Occurrences of the ids of h in count[]; entries of other ids hold anything. */
static void count_ids(uint32_t *count, const int32_t *h, size_t n, size_t n_vocab) {
    for (size_t i = 0; i < n; i++)
        if (known(h[i], n_vocab)) count[h[i]] = 0;
    for (size_t i = 0; i < n; i++)
        if (known(h[i], n_vocab)) count[h[i]]++;
}

typedef enum { REPETITION, PRESENCE, FREQUENCY } rule;

static void penalise(rule r, float strength, uint32_t window, float *x, size_t n_vocab, const int32_t *history,
                     size_t n_history, uint32_t *count) {
    size_t n;
    const int32_t *h = recent(history, n_history, window, &n);
    count_ids(count, h, n, n_vocab);
    for (size_t i = 0; i < n; i++) {
        uint32_t times;
        float *v;
        if (!known(h[i], n_vocab) || !(times = count[h[i]])) continue;
        count[h[i]] = 0; /* once per token */
        v = &x[h[i]];
        switch (r) {
        case REPETITION: *v = *v > 0 ? *v / strength : *v * strength; break;
        case PRESENCE: *v -= strength; break;
        case FREQUENCY: *v -= strength * (float)times; break;
        }
    }
}

/* base^e by squaring: the same multiplications everywhere. */
static double power(double base, uint32_t e) {
    double r = 1;
    for (; e; e >>= 1) {
        if (e & 1) r *= base;
        base *= base;
    }
    return r;
}

/* A token t that would continue a repeat is punished: if the history ends with a span that also ends right before an
 * earlier t, the longest such span having n tokens, by multiplier * base^(n - allowed_length) from n = allowed_length.
 * A span holds no breaker, and a breaker is never punished.  Span lengths are the Z-function (Gusfield 1997, 1.4) of
 * the reversed window: linear in the window.  Lengths count up to DRY_MAX_MATCH, so only as many z are kept. */
static void dry(const sampling_params *p, float *x, size_t n_vocab, const int32_t *history, size_t n_history,
                uint32_t *best, uint16_t *z) {
    enum { BREAKER = UINT16_MAX + 1 }; /* above every span length */
    size_t n, limit = 0, left = 0, right = 0;
    const int32_t *h = recent(history, n_history, p->dry_window, &n), *last;
    if (n < 2) return;
    for (size_t i = 0; i < n; i++)
        if (known(h[i], n_vocab)) best[h[i]] = 0;
    for (size_t i = 0; i < p->n_dry_breakers; i++) best[p->dry_breakers[i]] = BREAKER;
    last = h + n - 1; /* reversed: r[i] is last[-i] */
#define R(i) last[-(ptrdiff_t)(i)]
    while (limit < n && limit < DRY_MAX_MATCH && known(R(limit), n_vocab) && best[R(limit)] != BREAKER) limit++;
    for (size_t i = 1; limit && i < n; i++) { /* [left, right): the match that reaches furthest */
        size_t len = 0;
        int32_t next = R(i - 1); /* the token that followed this earlier place */
        if (i < right) len = z[i - left] < right - i ? z[i - left] : right - i;
        while (len < limit && i + len < n && R(len) == R(i + len)) len++;
        if (i + len > right) {
            left = i;
            right = i + len;
        }
        if (i < DRY_MAX_MATCH) z[i] = (uint16_t)len;
        if (known(next, n_vocab) && best[next] < len) best[next] = (uint32_t)len;
    }
#undef R
    for (size_t i = 0; i < n; i++) {
        uint32_t len;
        double d;
        if (!known(h[i], n_vocab)) continue;
        len = best[h[i]];
        if (len == BREAKER || !len || len < p->dry_allowed_length) continue;
        best[h[i]] = 0;
        d = (double)p->dry_multiplier * power(p->dry_base, len - p->dry_allowed_length);
        x[h[i]] -= d < 1e30 ? (float)d : 1e30f; /* finite: a mask may leave no other token */
    }
}

void penalties_apply(const sampling_params *p, float *x, size_t n_vocab, const int32_t *history, size_t n_history,
                     const sampler_work *w) {
    for (size_t i = 0; i < p->n_bias; i++) x[p->bias[i].id] += p->bias[i].bias;
    if (p->repetition_penalty != 1)
        penalise(REPETITION, p->repetition_penalty, p->repetition_window, x, n_vocab, history, n_history, w->count);
    if (p->presence_penalty != 0)
        penalise(PRESENCE, p->presence_penalty, p->presence_window, x, n_vocab, history, n_history, w->count);
    if (p->frequency_penalty != 0)
        penalise(FREQUENCY, p->frequency_penalty, p->frequency_window, x, n_vocab, history, n_history, w->count);
    if (p->dry_multiplier > 0) dry(p, x, n_vocab, history, n_history, w->count, w->z);
}
