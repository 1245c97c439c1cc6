/* oracle.c - what a request must answer: from its rule, one token after another, with nothing of the engine.
 *
 * Greedy tokens without processors are chosen here; the others by the sampler, which is a pure function with tests of its
 * own.  Text is decoded and searched for stop strings anew at each token, the slow and plain way. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- the script ---- */

static bool holds_mark(const sim_request *r, int32_t mark) {
    /* Marks are the only tokens of a prompt that print a digit and '!'. */
    for (size_t i = 0; i < r->req.n_prompt; i++)
        if (r->prompt[i] == mark) return true;
    return false;
}

static const sim_rule *rule_of(const sim_plan *p, const sim_request *r) {
    uint32_t i = 0;
    while (i + 1 < p->n_rules && !holds_mark(r, V_MARK0 + (int32_t)i)) i++;
    return &p->rules[i];
}

bool oracle_logits(const sim_rule *rule, uint64_t at, float *out) {
    for (int i = 0; i < V_SIZE; i++) out[i] = 0;
    if (rule->then == THEN_LOOP) at %= rule->n_emit;
    if (at >= rule->n_emit) {
        if (rule->then == THEN_FAIL) return false;
        out[V_EOS] = 20;
    } else if (at < rule->n_top) {
        for (int j = 0; j < SIM_TOPS; j++) out[rule->top[at][j].id] = (float)rule->top[at][j].logit;
    } else {
        out[rule->emit[at]] = 20;
    }
    return true;
}

void oracle_open(oracle *o, const sim_plan *p, const sim_request *r, const kernels *k, uint32_t ctx) {
    uint32_t room = ctx - (uint32_t)r->req.n_prompt;
    hd_err err;
    memset(o, 0, sizeof *o);
    o->plan = p;
    o->r = r;
    o->k = k;
    o->rule = rule_of(p, r);
    o->stop_index = -1;
    o->cap = r->req.max_tokens < room ? r->req.max_tokens : room;
    o->history = malloc((SIM_MAX_PROMPT + ctx + 1) * sizeof *o->history);
    memcpy(o->history, r->prompt, r->req.n_prompt * sizeof *o->history);
    o->n_history = (uint32_t)r->req.n_prompt;
    o->logits = malloc(V_SIZE * sizeof *o->logits);
    o->work = aligned_alloc(64, (sampler_work_bytes(V_SIZE) + 63) / 64 * 64);
    if (sampler_open(&o->sampler, &r->req.sampling, V_SIZE, &err)) {
        fprintf(stderr, "sim: a request's sampling is refused: %s\n", err.msg);
        _Exit(SIM_VIOLATION);
    }
    if (!o->cap) o->over = true, o->finish = FINISH_LENGTH;
}

void oracle_close(oracle *o) {
    free(o->history);
    free(o->logits);
    free(o->work);
    free(o->text);
    sampler_close(o->sampler);
}

/* ---- tokens ---- */

static bool is_end(const oracle *o, int32_t id) {
    const gen_request *q = &o->r->req;
    for (size_t i = 0; i < q->n_stop_ids; i++)
        if (q->stop_ids[i] == id) return true;
    return !q->ignore_eos && (id == V_EOS || id == V_EOT);
}

static bool plain_greedy(const sampling_params *p) {
    return p->temperature == 0 && p->repetition_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0 &&
           p->dry_multiplier == 0 && !p->n_bias;
}

bool oracle_next(oracle *o, sample_result *out) {
    const gen_request *q = &o->r->req;
    int32_t banned[4];
    size_t n_banned = 0;
    hd_err err;
    memset(out, 0, sizeof *out);
    if (o->over) return false;
    if (!oracle_logits(o->rule, o->n_generated, o->logits)) {
        o->over = true;
        o->finish = FINISH_FAILED;
        return false;
    }
    if (o->n_generated < q->min_tokens) {
        banned[n_banned++] = V_EOS;
        banned[n_banned++] = V_EOT;
        for (size_t i = 0; i < q->n_stop_ids; i++) banned[n_banned++] = q->stop_ids[i];
    }
    if (plain_greedy(&q->sampling) && !q->sampling.logprobs) {
        for (size_t i = 0; i < n_banned; i++) o->logits[banned[i]] = -1e30f;
        for (int32_t i = 1; i < V_SIZE; i++)
            if (o->logits[i] > o->logits[out->id]) out->id = i;
        return true;
    }
    if (sampler_sample(o->sampler, o->k, o->logits, V_SIZE, o->history, o->n_history, o->n_history, banned, n_banned, NULL,
                       o->work, out, &err)) {
        o->over = true;
        o->finish = FINISH_FAILED;
        return false;
    }
    return true;
}

/* ---- text ---- */

static void put(oracle *o, const char *s, size_t n) {
    if (o->n_text + n > o->cap_text) {
        o->cap_text = (o->n_text + n) * 2;
        o->text = realloc(o->text, o->cap_text);
    }
    memcpy(o->text + o->n_text, s, n);
    o->n_text += n;
}

/* Length of the character that these bytes begin: > 0 whole, 0 it may still become one, < 0 that many bytes cannot
 * (Unicode 15, table 3-7, maximal subparts). */
static int character(const unsigned char *s, size_t n) {
    unsigned lo = 0x80, hi = 0xbf;
    int want;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return -1;
    want = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] == 0xe0) lo = 0xa0;
    if (s[0] == 0xed) hi = 0x9f;
    if (s[0] == 0xf0) lo = 0x90;
    if (s[0] == 0xf4) hi = 0x8f;
    for (int i = 1; i < want; i++) {
        if ((size_t)i == n) return 0;
        if (s[i] < lo || s[i] > hi) return -i;
        lo = 0x80, hi = 0xbf;
    }
    return want;
}

static void put_byte(oracle *o, char c) {
    o->held[o->n_held++] = c;
    while (o->n_held) {
        int n = character((const unsigned char *)o->held, o->n_held);
        size_t used = n < 0 ? (size_t)-n : (size_t)n;
        if (!n) return;
        if (n > 0) put(o, o->held, used);
        else put(o, "\xef\xbf\xbd", 3);
        memmove(o->held, o->held + used, o->n_held - used);
        o->n_held -= used;
    }
}

/* The stop string that ends text[0..n_text), if one does: the earliest start, then the one complete first, then the first
 * listed - unless an earlier start may yet become one.  Returns how much text has passed. */
static size_t search(oracle *o, bool final, bool *found, int32_t *index) {
    const gen_request *q = &o->r->req;
    *found = false;
    for (size_t at = 0; at < o->n_text; at++) {
        size_t best = SIZE_MAX, left = o->n_text - at;
        bool begun = false;
        for (size_t i = 0; i < q->n_stops; i++) {
            size_t n = q->stops[i].n;
            if (n <= left && n < best && !memcmp(o->text + at, q->stops[i].s, n)) best = n, *index = (int32_t)i;
            else if (n > left && !memcmp(o->text + at, q->stops[i].s, left)) begun = true;
        }
        if (best != SIZE_MAX) {
            *found = true;
            return at;
        }
        if (begun && !final) return at;
    }
    return o->n_text;
}

size_t oracle_released(oracle *o, bool final) {
    bool found;
    int32_t index;
    size_t passed;
    if (o->decided) return search(o, true, &found, &index);
    if (final && o->n_held) {
        put(o, "\xef\xbf\xbd", 3);
        o->n_held = 0;
    }
    if (!o->r->req.n_stops) return o->n_text;
    passed = search(o, final, &found, &index);
    if (final && found) o->decided = true, o->stop_index = index;
    return passed;
}

void oracle_push(oracle *o, int32_t id) {
    size_t n;
    const char *s = sim_vocab_bytes(id, &n);
    bool found = false;
    int32_t index;
    if (is_end(o, id)) {
        o->over = o->by_eos = true;
        o->finish = FINISH_STOP;
        return;
    }
    o->history[o->n_history++] = id;
    o->n_generated++;
    if (id > V_EOT || o->r->req.special)
        for (size_t i = 0; i < n; i++) put_byte(o, s[i]);
    if (o->r->req.n_stops) search(o, false, &found, &index);
    if (found) {
        o->over = o->decided = true;
        o->finish = FINISH_STOP;
        o->stop_index = index;
    } else if (o->n_generated >= o->cap) {
        o->over = true;
        o->finish = FINISH_LENGTH;
    }
}
