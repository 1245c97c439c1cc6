/* request.c - a submit event's requests: a function of the event's number alone. */
#include "sim/sim.h"

#include <string.h>

static const stop_string stop_choices[] = {{"STOP", 4}, {"ab", 2}, {"TOP", 3}, {"STOPSTOP", 8}, {"c", 1}, {"aab", 3},
                                           {"\xc3\xa9", 2}, {"\xef\xbf\xbd", 3}};

uint32_t sim_request_count(uint64_t arg) { return arg % 8 == 0 ? 3 : arg % 8 == 1 ? 2 : 1; }

static void make_sampling(sampling_params *p, logit_bias *bias, uint64_t *s) {
    sampling_defaults(p);
    p->seed = sim_next(s);
    p->sample_index = sim_below(s, 4);
    if (sim_chance(s, 55)) p->temperature = 0;
    if (sim_chance(s, 25)) p->top_k = 1 + sim_below(s, 6);
    if (sim_chance(s, 20)) p->top_p = 0.5f;
    if (sim_chance(s, 10)) p->min_p = 0.1f;
    if (sim_chance(s, 15)) p->repetition_penalty = 1.5f;
    if (sim_chance(s, 10)) p->frequency_penalty = 1;
    if (sim_chance(s, 10)) p->presence_penalty = 1;
    if (sim_chance(s, 10)) p->dry_multiplier = 0.8f;
    if (sim_chance(s, 30)) p->logprobs = true, p->n_top_logprobs = sim_below(s, 4);
    if (!sim_chance(s, 10)) return;
    bias[0] = (logit_bias){V_A, 3};
    bias[1] = (logit_bias){V_ST, -100};
    p->bias = bias;
    p->n_bias = 2;
}

/* Many begin like others: one of four beginnings, of any length. */
static void make_prompt(sim_request *r, uint64_t *s) {
    static const int32_t fill[] = {V_X, V_A, V_B, V_C};
    uint32_t n = 1 + sim_below(s, sim_chance(s, 80) ? 20 : SIM_MAX_PROMPT), same = sim_chance(s, 70) ? sim_below(s, n + 1) : 0;
    uint64_t beginning = sim_below(s, 4);
    for (uint32_t i = 0; i < n; i++) r->prompt[i] = fill[sim_below(i < same ? &beginning : s, 4)];
    if (sim_chance(s, 85)) r->prompt[sim_below(s, n)] = V_MARK0 + (int32_t)sim_below(s, SIM_MAX_RULES);
    if (sim_chance(s, 25)) r->prompt[sim_below(s, n)] = V_MARK0 + 1; /* the rule that may fill a queue's text */
    r->req.prompt = r->prompt;
    r->req.n_prompt = n;
}

static void make_ends(sim_request *r, uint64_t *s) {
    gen_request *q = &r->req;
    q->max_tokens = sim_chance(s, 5) ? 0 : sim_chance(s, 20) ? GEN_NO_CAP : 1 + sim_below(s, 40);
    if (sim_chance(s, 35)) {
        q->n_stops = 1 + sim_below(s, 3);
        for (size_t i = 0; i < q->n_stops; i++) r->stops[i] = stop_choices[sim_below(s, sizeof stop_choices / sizeof *stop_choices)];
        q->stops = r->stops;
    }
    if (sim_chance(s, 10)) {
        q->n_stop_ids = 1 + sim_below(s, 2);
        r->stop_ids[0] = V_OP;
        r->stop_ids[1] = V_LEAD;
        q->stop_ids = r->stop_ids;
    }
    q->ignore_eos = sim_chance(s, 15);
    if (sim_chance(s, 15)) q->min_tokens = sim_below(s, 8);
    q->special = sim_chance(s, 15);
}

static uint64_t timeout(uint64_t *s) { return sim_chance(s, 12) ? 1 + sim_below(s, 3000000) : 0; }

/* Wrong in one way; the engine must name the field, which is left to its own tests. */
static void spoil(sim_request *r, uint64_t *s) {
    gen_request *q = &r->req;
    r->invalid = true;
    switch (sim_below(s, 4)) {
    case 0: r->prompt[q->n_prompt - 1] = sim_chance(s, 50) ? -1 : V_SIZE; break;
    case 1: q->n_prompt = 0; break;
    case 2: q->priority = (gen_priority)2; break;
    default: q->method = "no such method";
    }
}

void sim_request_make(sim_request *r, uint64_t arg, uint32_t i, uint32_t slot) {
    static const char *const shares[] = {NULL, "ann", "ben"};
    uint64_t s = arg, method;
    memset(r, 0, sizeof *r);
    snprintf(r->id, sizeof r->id, "s%u", slot);
    r->req.id = r->id;
    make_prompt(r, &s);
    make_sampling(&r->req.sampling, r->bias, &s);
    r->req.sampling.sample_index += i;
    make_ends(r, &s);
    r->req.priority = (gen_priority)(sim_chance(&s, 60) ? 0 : (int)sim_below(&s, 3) - 1);
    r->req.no_cache = sim_chance(&s, 10);
    r->req.cache_space = sim_chance(&s, 15) ? "other" : NULL;
    r->req.share = shares[sim_chance(&s, 50) ? 0 : sim_below(&s, 3)];
    r->req.collect = sim_chance(&s, 15);
    r->source = sim_chance(&s, 20) ? (int)sim_below(&s, SIM_SOURCES) : -1;
    r->starts_stalled = sim_chance(&s, 30);
    r->req.queue_timeout_us = timeout(&s);
    r->req.first_token_timeout_us = timeout(&s);
    r->req.total_timeout_us = timeout(&s);
    method = sim_below(&s, 100);
    if (method < 12) {
        r->req.method = "guess"; /* sim_method_guess */
    } else if (method < 20) {
        r->req.method = "embedding";
        r->req.method_arg = sim_below(&s, 3) | 256; /* raw: small whole numbers */
        r->req.max_tokens = 0;
    } else if (method < 32) {
        if (method < 26) r->req.prompt_logprobs = true;
        else r->req.prompt_logits = true;
    }
    if (sim_chance(&s, 3)) spoil(r, &s);
    r->req.pin_us = sim_chance(&s, 15) ? 1 + sim_below(&s, 5000000) : 0;
    if (r->req.n_prompt) r->req.boundary = sim_below(&s, (uint32_t)r->req.n_prompt + 1);
}
