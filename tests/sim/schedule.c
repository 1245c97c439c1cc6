/* schedule.c - from a seed to a plan, and plans as text. */
#include "sim/sim.h"
#include "base/mem.h"
#include "model/model_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {
#define X(id, name) name,
    SIM_EVENTS(X)
#undef X
};

/* ---- the model ---- */

static const char *const texts[V_BYTES] = {
    [V_BOS] = "<s>", [V_EOS] = "</s>", [V_EOT] = "</e>", [V_A] = "a", [V_B] = "b", [V_AB] = "ab", [V_C] = " c",
    [V_E_ACUTE] = "\xc3\xa9", [V_HALF] = "\xf0\x9f", [V_OTHER_HALF] = "\x98\x80", [V_LEAD] = "\xc3", [V_STOP] = "STOP",
    [V_ST] = "ST", [V_OP] = "OP", [V_X] = "x", [V_MARK0] = "0!", "1!", "2!", "3!", "4!", "5!",
};

const char *sim_vocab_bytes(int32_t id, size_t *n) {
    static char big[SIM_BIG_TOKEN], bytes[256];
    if (id >= V_BYTES) {
        bytes[id - V_BYTES] = (char)(id - V_BYTES);
        *n = 1;
        return &bytes[id - V_BYTES];
    }
    if (id == V_BIG) {
        memset(big, 'y', sizeof big);
        *n = sizeof big;
        return big;
    }
    *n = strlen(texts[id]);
    return texts[id];
}

static int32_t random_emit(uint64_t *s) {
    static const int32_t often[] = {V_A, V_B, V_AB, V_C, V_E_ACUTE, V_HALF, V_OTHER_HALF, V_LEAD, V_STOP, V_ST, V_OP, V_X};
    if (sim_chance(s, 8)) return (int32_t)sim_below(s, V_BIG); /* also control tokens and ends */
    if (sim_chance(s, 8)) return V_BYTES + (int32_t)sim_below(s, 256);
    return often[sim_below(s, sizeof often / sizeof *often)];
}

static void make_rule(sim_rule *r, uint64_t *s, bool fills) {
    r->n_emit = sim_below(s, SIM_MAX_EMIT + 1);
    r->then = sim_chance(s, 50) ? THEN_EOS : sim_chance(s, 75) ? THEN_LOOP : THEN_FAIL;
    for (uint32_t i = 0; i < r->n_emit; i++) r->emit[i] = random_emit(s);
    if (fills) r->n_emit = 2, r->emit[0] = r->emit[1] = V_BIG, r->then = THEN_LOOP;
    if (!r->n_emit && r->then == THEN_LOOP) r->then = THEN_EOS;
    if (!sim_chance(s, 35) || fills) return;
    r->n_top = sim_below(s, r->n_emit + 1);
    for (uint32_t i = 0; i < r->n_top; i++)
        for (int j = 0; j < SIM_TOPS; j++) {
            r->top[i][j] = (sim_top){random_emit(s), (int)sim_below(s, 9)};
            for (int k = 0; k < j; k++) /* an id is listed once */
                if (r->top[i][k].id == r->top[i][j].id) r->top[i][j] = r->top[i][k];
        }
}

static void json_text(FILE *f, int32_t id) {
    size_t n;
    const char *s = sim_vocab_bytes(id, &n);
    fprintf(f, "{\"hex\":\"");
    for (size_t i = 0; i < n; i++) fprintf(f, "%02X", (unsigned char)s[i]);
    fprintf(f, "\"}");
}

static void json_rule(FILE *f, const sim_rule *r) {
    static const char *const then[] = {"eos", "loop", "fail"};
    fprintf(f, "\"then\":\"%s\",\"emit\":[", then[r->then]);
    for (uint32_t i = 0; i < r->n_emit; i++) fprintf(f, "%s%d", i ? "," : "", r->emit[i]);
    fprintf(f, "],\"top\":[");
    for (uint32_t i = 0; i < r->n_top; i++) {
        fprintf(f, "%s[", i ? "," : "");
        for (int j = 0; j < SIM_TOPS; j++) fprintf(f, "%s[%d,%d]", j ? "," : "", r->top[i][j].id, r->top[i][j].logit);
        fprintf(f, "]");
    }
    fprintf(f, "]");
}

hd_status sim_model_open(const sim_plan *p, model **out, hd_err *err) {
    static char *vocab; /* the same for all seeds; it is written once */
    char *json;
    size_t n, n_vocab;
    hd_status st;
    FILE *f;
    if (!vocab) {
        f = open_memstream(&vocab, &n_vocab);
        for (int32_t id = 0; id < V_BYTES; id++) {
            if (id) fprintf(f, ",");
            json_text(f, id);
        }
        fclose(f);
    }
    f = open_memstream(&json, &n);
    fprintf(f, "{\"vocab\":[%s],\"special\":{\"bos\":%d,\"eos\":[%d,%d]},\"context\":%u,", vocab, V_BOS, V_EOS, V_EOT, SIM_MAX_PROMPT);
    if (p->window) fprintf(f, "\"window\":%u,", p->window);
    fprintf(f, "\"rules\":[");
    for (uint32_t i = 0; i + 1 < p->n_rules; i++) {
        fprintf(f, "%s{\"match\":\"%s\",", i ? "," : "", texts[V_MARK0 + i]);
        json_rule(f, &p->rules[i]);
        fprintf(f, "}");
    }
    fprintf(f, "],\"default\":{");
    json_rule(f, &p->rules[p->n_rules - 1]);
    fprintf(f, "}}");
    fclose(f);
    st = script_open_memory(out, json, n, "sim", NULL, err);
    free(json);
    return st;
}

/* ---- the engine ---- */

static void make_options(engine_options *o, uint64_t *s, uint32_t n_groups) {
    static const uint32_t steps[] = {1, 2, 3, 5, 8, 32}, pages[] = {1, 2, 4, 8};
    uint64_t stride;
    memset(o, 0, sizeof *o);
    o->max_rows = 1 + sim_below(s, 8);
    o->max_queued = 1 + sim_below(s, 6);
    o->step_tokens = steps[sim_below(s, 6)];
    o->page_tokens = pages[sim_below(s, 4)];
    o->ctx = 8 + sim_below(s, SIM_MAX_PROMPT - 8);
    o->default_max_tokens = 1 + sim_below(s, 20);
    stride = (uint64_t)(o->page_tokens < 4 ? 4 : o->page_tokens) * 1024; /* a page is at least 4 KiB of address space */
    /* From one short row to plenty. */
    o->kv_budget_bytes = n_groups * stride * (2 + sim_below(s, sim_chance(s, 50) ? 100 / o->page_tokens : 400 / o->page_tokens));
    o->idle_timeout_us = (1 + sim_below(s, 5)) * 1000000u;
    o->age_us = (1 + sim_below(s, 10)) * 500000u;
    o->collect_tokens = 1 + sim_below(s, 40);
    o->max_leases_queued = 1 + sim_below(s, 4);
    o->no_cache = sim_chance(s, 20);
    o->pin_budget_bytes = sim_chance(s, 50) ? o->kv_budget_bytes / (2 + sim_below(s, 8)) : 0;
    o->manual = true;
}

/* ---- events ---- */

static const struct {
    sim_kind kind;
    uint32_t weight;
} weights[] = {
    {SIM_TURN, 300},  {SIM_SUBMIT, 190},      {SIM_READ, 60},      {SIM_STALL, 40},       {SIM_RESUME, 40}, {SIM_CANCEL, 25},
    {SIM_CANCEL_ID, 15}, {SIM_CANCEL_SOURCE, 8}, {SIM_FREE, 20},   {SIM_RAISE_CAP, 15},   {SIM_STOP, 10},   {SIM_FORCE, 20},
    {SIM_PRIORITY, 15}, {SIM_DETACH, 10},     {SIM_JOB, 20},       {SIM_JOB_CANCEL, 10},  {SIM_LEASE, 60},  {SIM_RELEASE, 45},
    {SIM_LEASE_CANCEL, 12}, {SIM_LEASE_CLOSE, 1}, {SIM_CLOCK, 70}, {SIM_NO_MEMORY, 25},   {SIM_DRAIN, 2},   {SIM_CLOSE, 1},
};

static sim_kind random_kind(uint64_t *s) {
    uint32_t sum = 0, at;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) sum += weights[i].weight;
    at = sim_below(s, sum);
    for (size_t i = 0;; i++) {
        if (at < weights[i].weight) return weights[i].kind;
        at -= weights[i].weight;
    }
}

typedef struct {
    uint32_t slots, jobs, leases; /* given out */
} numbers;

/* One of the last few, mostly: those still alive. */
static uint32_t recent(uint64_t *s, uint32_t n) {
    uint32_t back = sim_below(s, sim_chance(s, 80) ? 8 : 64);
    return n ? (back < n ? n - 1 - back : sim_below(s, n)) : 0;
}

static sim_event random_event(uint64_t *s, numbers *n) {
    sim_event e = {.kind = random_kind(s)};
    switch (e.kind) {
    case SIM_SUBMIT:
        e.arg = sim_next(s);
        e.slot = n->slots;
        if (n->slots + sim_request_count(e.arg) > SIM_MAX_SLOTS) return (sim_event){SIM_TURN, 0, 1};
        n->slots += sim_request_count(e.arg);
        break;
    case SIM_JOB:
        if (n->jobs == SIM_MAX_JOBS) return (sim_event){SIM_TURN, 0, 1};
        e.slot = n->jobs++;
        e.arg = sim_chance(s, 40) ? sim_below(s, 2000000) : sim_chance(s, 50) ? 0 : 60000000;
        break;
    case SIM_LEASE:
        if (n->leases == SIM_MAX_LEASES) return (sim_event){SIM_TURN, 0, 1};
        e.slot = n->leases++;
        e.arg = (sim_chance(s, 35) ? 1 : 0) + (sim_chance(s, 30) ? 2 : 0);
        break;
    case SIM_JOB_CANCEL: e.slot = recent(s, n->jobs); break;
    case SIM_RELEASE:
    case SIM_LEASE_CANCEL: e.slot = recent(s, n->leases); break;
    case SIM_CANCEL_SOURCE: e.slot = sim_below(s, SIM_SOURCES); break;
    case SIM_TURN: e.arg = 1 + sim_below(s, sim_chance(s, 80) ? 3 : 20); break;
    case SIM_CLOCK: e.arg = sim_chance(s, 60) ? 1 + sim_below(s, 50000) : 1 + sim_below(s, 6000000); break;
    case SIM_NO_MEMORY: e.arg = sim_below(s, sim_chance(s, 60) ? 6 : 40); break;
    case SIM_READ: e.arg = 1 + sim_below(s, 12); goto session;
    case SIM_RAISE_CAP: e.arg = 1 + sim_below(s, 60); goto session;
    case SIM_FORCE: e.arg = sim_next(s); goto session;
    case SIM_PRIORITY: e.arg = sim_below(s, 3); goto session;
    case SIM_LEASE_CLOSE:
    case SIM_DRAIN:
    case SIM_CLOSE: break;
    default:
    session:
        e.slot = recent(s, n->slots);
    }
    return e;
}

static void make_world(sim_plan *p, uint64_t *s) {
    if (sim_chance(s, 40)) p->window = 1 + sim_below(s, 24);
    make_options(&p->opt, s, p->window ? 2 : 1);
    p->max_leases = sim_below(s, 6);
    p->n_rules = 1 + sim_below(s, SIM_MAX_RULES);
    for (uint32_t i = 0; i < p->n_rules; i++) make_rule(&p->rules[i], s, i == 1 && sim_chance(s, 60));
}

void sim_plan_make(sim_plan *p, uint64_t seed) {
    uint64_t s = seed;
    numbers n = {0};
    memset(p, 0, sizeof *p);
    p->seed = seed;
    make_world(p, &s);
    p->n_events = 30 + sim_below(&s, 90);
    for (uint32_t i = 0; i < p->n_events; i++) p->events[i] = random_event(&s, &n);
}

void sim_plan_print(const sim_plan *p, FILE *f) {
    const engine_options *o = &p->opt;
    fprintf(f, "# rows %u queued %u step %u page %u ctx %u budget %" PRIu64 " default %u idle %" PRIu64 " age %" PRIu64
            " collect %" PRIu64 " leases %u\n",
            o->max_rows, o->max_queued, o->step_tokens, o->page_tokens, o->ctx, o->kv_budget_bytes, o->default_max_tokens,
            o->idle_timeout_us, o->age_us, o->collect_tokens, o->max_leases_queued);
    fprintf(f, "seed %" PRIu64 "\n", p->seed);
    for (uint32_t i = 0; i < p->n_events; i++)
        fprintf(f, "%s %u %" PRIu64 "\n", kind_names[p->events[i].kind], p->events[i].slot, p->events[i].arg);
}

bool sim_plan_parse(sim_plan *p, FILE *f, const char **why) {
    char line[200], name[32];
    uint64_t s = 0;
    bool seeded = false;
    memset(p, 0, sizeof *p);
    while (fgets(line, sizeof line, f)) {
        sim_event e = {0};
        int kind = 0;
        if (line[0] == '#' || line[0] == '\n') continue;
        if (!seeded) {
            if (sscanf(line, "seed %" SCNu64, &p->seed) != 1) return *why = "the first line is not a seed", false;
            s = p->seed;
            make_world(p, &s);
            seeded = true;
            continue;
        }
        if (sscanf(line, "%31s %u %" SCNu64, name, &e.slot, &e.arg) != 3) return *why = "a line is not: event slot number", false;
        while (kind < SIM_N_KINDS && strcmp(name, kind_names[kind]) != 0) kind++;
        if (kind == SIM_N_KINDS) return *why = "an event is unknown", false;
        if (p->n_events == SIM_MAX_EVENTS || e.slot >= SIM_MAX_SLOTS) return *why = "too many events or slots", false;
        e.kind = (sim_kind)kind;
        p->events[p->n_events++] = e;
    }
    return seeded || (*why = "the file is empty", false);
}
