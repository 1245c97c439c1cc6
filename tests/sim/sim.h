/* sim.h - the schedule explorer: random schedules of calls against a manual engine, judged after every turn.
 *
 * One 64-bit seed gives a plan: engine options, a scripted model, and an array of events (calls of clients, turns of the
 * engine, turns of the clock).  The array is plain, so it can be printed, replayed and shrunk: an event names the slot it
 * acts on, and an event whose slot was never filled does nothing.  A request is a function of its event's own number, so
 * that leaving events out does not change the others.  Nothing here waits, and one thread does everything.
 * Read: schedule.c (seed to plan), request.c, oracle.c (what a request must answer), world.c and judge.c (running and
 * judging), leases.c (the coordinator against a naive one), explore.c (many seeds, shrinking). */
#ifndef HD_SIM_H
#define HD_SIM_H

#include "exec/coordinator.h"
#include "exec/engine.h"

#include <stdio.h>

/* name, what the slot names */
#define SIM_EVENTS(X)                                                                                                  \
    X(SUBMIT, "submit")             /* request slots from `slot` on; arg: seed of the requests */                       \
    X(READ, "read")                 /* arg events of a session */                                                      \
    X(STALL, "stall")               /* its reader stops reading */                                                     \
    X(RESUME, "resume")                                                                                                \
    X(CANCEL, "cancel")             /* session_cancel */                                                               \
    X(CANCEL_ID, "cancel_id")       /* engine_cancel */                                                                \
    X(CANCEL_SOURCE, "fire")        /* cancellation source `slot`, which may cover several */                          \
    X(FREE, "free")                 /* session_free, read or not */                                                    \
    X(RAISE_CAP, "raise_cap")       /* to arg */                                                                       \
    X(STOP, "stop")                                                                                                    \
    X(FORCE, "force")               /* arg: seed of the ids */                                                         \
    X(PRIORITY, "priority")         /* class arg - 1 */                                                                \
    X(DETACH, "detach")                                                                                                \
    X(JOB, "job")                   /* exclusive job `slot`; arg: microseconds of patience */                          \
    X(JOB_CANCEL, "job_cancel")                                                                                        \
    X(LEASE, "lease")               /* of the second coordinator; arg: 0 shared, 1 exclusive, +2: can be cancelled */  \
    X(RELEASE, "release")                                                                                              \
    X(LEASE_CANCEL, "lease_cancel")                                                                                    \
    X(LEASE_CLOSE, "lease_close")                                                                                      \
    X(CLOCK, "clock")               /* arg microseconds later */                                                       \
    X(TURN, "turn")                 /* arg turns of the engine */                                                      \
    X(NO_MEMORY, "no_memory")       /* in the next submit or turn, from allocation arg on */                           \
    X(DRAIN, "drain")                                                                                                  \
    X(CLOSE, "close")               /* of the engine; the schedule's last event that does anything */
typedef enum {
#define X(id, name) SIM_##id,
    SIM_EVENTS(X)
#undef X
    SIM_N_KINDS
} sim_kind;

typedef struct {
    sim_kind kind;
    uint32_t slot;
    uint64_t arg;
} sim_event;

enum {
    SIM_MAX_EVENTS = 160,
    SIM_MAX_SLOTS = 96,
    SIM_SOURCES = 4,
    SIM_MAX_JOBS = 16,
    SIM_MAX_LEASES = 64,
    SIM_MAX_RULES = 6,
    SIM_MAX_EMIT = 16,
    SIM_TOPS = 4,
    SIM_MAX_PROMPT = 80,
    SIM_BIG_TOKEN = 512 /* bytes of the token that fills a queue's text */
};

/* ---- the scripted model, as data that the oracle reads too ---- */

/* Ids of the vocabulary; bytes follow. */
enum {
    V_BOS, V_EOS, V_EOT, V_A, V_B, V_AB, V_C, V_E_ACUTE, V_HALF, V_OTHER_HALF, V_LEAD, V_STOP, V_ST, V_OP, V_X,
    V_MARK0, /* SIM_MAX_RULES marks, one per rule */
    V_BIG = V_MARK0 + SIM_MAX_RULES,
    V_BYTES,
    V_SIZE = V_BYTES + 256
};
/* What an id stands for. */
const char *sim_vocab_bytes(int32_t id, size_t *n);

typedef struct {
    int32_t id;
    int logit;
} sim_top;

typedef enum { THEN_EOS, THEN_LOOP, THEN_FAIL } sim_then;
typedef struct {
    uint32_t n_emit, n_top; /* steps [0, n_top) have listed logits */
    int32_t emit[SIM_MAX_EMIT];
    sim_top top[SIM_MAX_EMIT][SIM_TOPS];
    sim_then then;
} sim_rule;

typedef struct {
    uint64_t seed;
    engine_options opt;
    uint32_t max_leases; /* of the second coordinator */
    uint32_t window;     /* of the model's second layer group; 0: it has none */
    uint32_t n_rules;    /* the last is the default; rule i < n_rules - 1 matches mark i */
    sim_rule rules[SIM_MAX_RULES];
    uint32_t n_events;
    sim_event events[SIM_MAX_EVENTS];
} sim_plan;

void sim_plan_make(sim_plan *p, uint64_t seed);
void sim_plan_print(const sim_plan *p, FILE *f);
/* What sim_plan_print wrote: options and model from the seed, the events as listed.  False: *why says what is wrong. */
bool sim_plan_parse(sim_plan *p, FILE *f, const char **why);
hd_status sim_model_open(const sim_plan *p, model **out, hd_err *err);

static inline uint64_t sim_next(uint64_t *s) { /* SplitMix64 (Steele, Lea, Flood 2014) */
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline uint32_t sim_below(uint64_t *s, uint32_t n) { return (uint32_t)(sim_next(s) % n); }
static inline bool sim_chance(uint64_t *s, uint32_t percent) { return sim_below(s, 100) < percent; }

/* ---- requests ---- */

typedef struct {
    gen_request req; /* leads into the fields below */
    char id[16];
    int32_t prompt[SIM_MAX_PROMPT], stop_ids[2];
    stop_string stops[3];
    logit_bias bias[2];
    int source;         /* cancellation source, or -1 */
    bool starts_stalled;
    bool invalid;       /* engine_submit must say HD_INVALID */
} sim_request;

/* The number of choices that event arg asks for, and the i-th of them for a slot. */
uint32_t sim_request_count(uint64_t arg);
void sim_request_make(sim_request *r, uint64_t arg, uint32_t i, uint32_t slot);

/* A second method beside the engine's own: guesses tokens ahead and takes back what was wrong. */
extern const gen_method sim_method_guess;

/* ---- the oracle: what a request must answer, from the rules alone ---- */

typedef struct {
    const sim_plan *plan;
    const sim_request *r;
    const sim_rule *rule;
    sampler *sampler;
    const kernels *k;
    void *work;
    float *logits;
    int32_t *history;       /* prompt, then tokens */
    uint32_t n_history, n_generated;
    uint32_t cap;
    char *text;             /* decoded so far, whole characters */
    size_t n_text, cap_text;
    char held[4];           /* bytes of an unfinished character */
    size_t n_held;
    bool over, decided;     /* it ended by itself; by a stop string */
    finish_reason finish;
    int32_t stop_index;
    bool by_eos;
} oracle;

void oracle_open(oracle *o, const sim_plan *p, const sim_request *r, const kernels *k, uint32_t ctx);
void oracle_close(oracle *o);
/* The token that comes next.  False: the script fails there, or nothing is left to generate (over is set). */
bool oracle_next(oracle *o, sample_result *out);
/* This token came: o->over says whether the request ends with it. */
void oracle_push(oracle *o, int32_t id);
/* Bytes of text that have passed the stop strings; final: the text is over. */
size_t oracle_released(oracle *o, bool final);
/* The logits of step `at` of the rule; false: it fails. */
bool oracle_logits(const sim_rule *rule, uint64_t at, float *out);

/* ---- the second coordinator ---- */

typedef struct sim_leases sim_leases;
sim_leases *sim_leases_open(uint32_t max_queued);
/* LEASE, RELEASE, LEASE_CANCEL, LEASE_CLOSE; then everything is compared.  NULL, or what is wrong. */
const char *sim_leases_event(sim_leases *l, const sim_event *e);
const char *sim_leases_close(sim_leases *l);

/* ---- running ---- */

typedef struct {
    uint64_t schedules, events, turns, steps, requests, refused, tokens, preemptions, pauses, cancelled, failed, jobs,
        leases, oom, replayed, pinned;
} sim_totals;

/* Runs the plan to its end.  A violation is told on stderr and ends the process with SIM_VIOLATION. */
enum { SIM_VIOLATION = 3 };
void sim_run(const sim_plan *p, sim_totals *t);

/* ---- exploring ---- */

typedef struct {
    uint64_t first, n;
    unsigned jobs;
    bool quiet;     /* no report of the failing seed */
    bool shrink;
    unsigned seconds_each; /* a schedule that runs longer is a violation */
    sim_totals totals;
    uint64_t tried;
    bool failed;
    uint64_t failing_seed;
} sim_exploration;

/* Explores seeds [first, first + n) in child processes until one fails.  The failing seed is shrunk and printed. */
void sim_explore(sim_exploration *x);
/* One plan in a child process.  True: it fails. */
bool sim_fails(const sim_plan *p, unsigned seconds, bool quiet);
void sim_shrink(sim_plan *p, unsigned seconds);
void sim_print_totals(const sim_totals *t, FILE *f);

#endif
