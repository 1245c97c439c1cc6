/* sampler.h - from logits to a token: processors, logprobs, truncation, draw.
 *
 * Order (docs/sampling.md): mask and forbidden ids -> logit bias -> repetition -> presence -> frequency -> DRY ->
 * [logprobs are read here] -> top_p -> typical -> min_p -> XTC -> top_k -> temperature -> draw.  Temperature 0 takes the
 * arg-max (lowest id on a tie) and ignores the truncations.  Wherever tokens are ordered, it is by logit descending,
 * then id ascending; a cut between equal logits keeps the lower ids.  Each truncation sees the distribution renormalised
 * over what the ones before it left.  The draw is the inverse of the cumulative distribution in that order at
 * philox_uniform(seed, sample, position, purpose): a pure function, so nothing is saved and nothing depends on who else
 * is running.  A logit that is NaN counts as forbidden. */
#ifndef HD_DECODE_SAMPLER_H
#define HD_DECODE_SAMPLER_H

#include "base/err.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SAMPLER_MAX_TOP_LOGPROBS = 20, SAMPLER_MAX_BIAS = 4096, SAMPLER_MAX_BREAKERS = 64 };

typedef struct {
    int32_t id;
    float bias; /* added, finite; -INFINITY bans */
} logit_bias;

/* Zero is not the default of every field: start from sampling_defaults(). */
typedef struct {
    float temperature;        /* 0: greedy; 0..100 */
    float top_p, min_p;       /* 1 and 0: off */
    float typical_p;          /* 1: off */
    uint32_t top_k;           /* 0: off */
    float xtc_probability, xtc_threshold; /* probability 0: off */
    float repetition_penalty; /* 1: off; divides positive logits, multiplies negative ones */
    float presence_penalty, frequency_penalty; /* 0: off; -2..2 */
    uint32_t repetition_window, presence_window, frequency_window; /* last tokens looked at (prompt included); 0: all */
    float dry_multiplier, dry_base; /* multiplier 0: off */
    uint32_t dry_allowed_length, dry_window; /* repeats up to this long are free, at most 4096; window 0: all */
    const int32_t *dry_breakers; /* ids that a repeated span may not cross */
    size_t n_dry_breakers;
    const logit_bias *bias;
    size_t n_bias;
    uint64_t seed;
    uint32_t sample_index;
    bool logprobs;
    uint32_t n_top_logprobs; /* 0..20 */
} sampling_params;

/* Temperature 1, windows 20 (DRY: all; base 1.75, allowed length 2), everything else off, seed 0. */
void sampling_defaults(sampling_params *p);
/* Every field in range, ids < n_vocab; HD_INVALID names the field as the HTTP API calls it. */
hd_status sampling_check(const sampling_params *p, size_t n_vocab, hd_err *err);

/* One sampler serves one row; opening checks p and copies its arrays.  It holds no state: sampling changes nothing. */
typedef struct sampler sampler;
hd_status sampler_open(sampler **out, const sampling_params *p, size_t n_vocab, hd_err *err);
void sampler_close(sampler *s);
const sampling_params *sampler_params(const sampler *s);
/* Greedy, and nothing else looks at logits or changes them: where no token is banned or masked the choice is the largest one's
 * first id, which sampler_sample gives too. */
bool sampler_takes_best(const sampler *s);

typedef struct {
    int32_t id;
    float logprob; /* -INFINITY possible */
} token_logprob;
typedef struct {
    int32_t id;
    float logprob; /* of the chosen one; valid if logprobs */
    uint32_t n_top;
    token_logprob top[SAMPLER_MAX_TOP_LOGPROBS]; /* by logprob descending, then id */
} sample_result;

/* Sample at absolute position `position` (that of the new token).  logits[n_vocab] is scratch: it is changed.
 * history[0..n_history): prompt and generated tokens so far; ids outside the vocabulary (placeholders) count as unlike
 * any token.  banned: ids that may not come now (min_tokens, padding ids), may be NULL.  mask: bit i set = allowed,
 * (n_vocab+31)/32 words, may be NULL.  work: sampler_work_bytes(n_vocab) of scratch, 8-byte aligned, any content; one
 * caller at a time.  HD_FAILED: every token is forbidden or the logits are not numbers; the row must end, others go on.
 * No heap calls. */
hd_status sampler_sample(const sampler *s, const kernels *k, float *logits, size_t n_vocab, const int32_t *history,
                         size_t n_history, uint64_t position, const int32_t *banned, size_t n_banned,
                         const uint32_t *mask, void *work, sample_result *out, hd_err *err);
size_t sampler_work_bytes(size_t n_vocab);

/* Log-probability of `id` (0 <= id < n_vocab) and of the n_top (<= 20) best of untouched logits (scoring a prompt):
 * log-softmax over the whole vocabulary.  Logits without a finite maximum give -INFINITY throughout. */
void logprobs_read(const kernels *k, const float *logits, size_t n_vocab, int32_t id, uint32_t n_top, sample_result *out);

#endif
