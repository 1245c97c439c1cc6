/* world.h - a plan being run: the engine, what was asked of it, and what was seen of it after the last turn. */
#ifndef HD_SIM_WORLD_H
#define HD_SIM_WORLD_H

#include "exec/engine_int.h"
#include "sim/sim.h"

/* What the engine showed of a request after a turn. */
typedef struct {
    bool live, running;      /* in the view at all; as a row */
    bool preempted;          /* waits, but was a row before */
    row_phase phase;
    uint32_t generated, prompt_done, n_done, preemptions;
    uint32_t unread;         /* records in its queue */
    size_t unread_text;
} sim_seen;

typedef struct {
    bool used;               /* a request was accepted */
    sim_request r;
    oracle o;
    session *s;              /* NULL once freed */
    bool stalled, done, was_row, left_now;
    sim_seen seen;
    uint64_t order, t_submit_us;
    gen_priority priority;
    uint32_t max_tokens;     /* with what steering raised */
    /* what must become of it; what had been called before the last turn is due now */
    cancel_reason cancel;    /* the first */
    bool stop;               /* steering's */
    cancel_reason end_cancel[4]; /* at its end: one of these, if any */
    int n_end_cancel;
    bool end_stop, end_free; /* at its end: by steering; by either of the two */
    uint32_t n_generated;    /* by its statistics */
    uint32_t n_at_end;       /* tokens it had at the turn before its end */
    bool collect;
    /* tokens that steering put in: id of generated token at[i] */
    uint32_t n_forced, forced_at[64];
    int32_t forced[64];
    /* reading */
    uint32_t n_read, n_prompt_read, n_logits_read;
    bool read_vector;
    size_t n_text;           /* bytes of text read */
    uint64_t t_read_us, t_paused_us;
    bool was_full;           /* its queue, before the last turn */
    bool may_lack_memory;    /* it lived through a turn that ran short */
} sim_slot;

typedef struct sim_world sim_world;
typedef struct {
    sim_world *w;
    bool asked, waits, ran;
    int told;
    hd_status said;
    uint64_t due_us;
    uint32_t overdue_turns;
    cancellation *cancel;
} sim_job;

struct sim_world {
    const sim_plan *p;
    sim_totals *t;
    uint32_t at;             /* event */
    uint64_t now;
    hd_clock clock;
    model *m;
    engine *e;
    sim_slot slot[SIM_MAX_SLOTS];
    sim_job job[SIM_MAX_JOBS];
    cancellation *source[SIM_SOURCES];
    sim_leases *leases;
    uint64_t next_order, accepted;
    uint32_t ctx;
    engine_view view;        /* after the last turn */
    row_view rows[16], queue[32];
    bool draining, closed, no_memory; /* the last turn ran short of memory */
    bool ever_no_memory, freed_any;
    long fail_after;         /* -1: off */
    /* the last turn said: nothing to do before due_us */
    bool asleep, half_read;
    uint64_t due_us;
};

void sim_wrong(const sim_world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
#define SIM_CHECK(w, cond, ...)                                                                                        \
    do {                                                                                                               \
        if (!(cond)) sim_wrong(w, __VA_ARGS__);                                                                        \
    } while (0)

/* judge.c */
void judge_before(sim_world *w);                     /* before a turn: whose queue is full */
void judge_turn(sim_world *w, uint64_t slept_until); /* after it: look, compare with what was seen before */
void judge_look(sim_world *w);
void judge_event(sim_world *w, sim_slot *s, const gen_event *ev); /* one event read */
uint32_t sim_live(const sim_world *w);

#endif
