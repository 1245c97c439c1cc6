/* engine_int.h - what the files of exec/ know of the engine.
 *
 * Lock order: engine->mu, session->mu, engine->wake_mu.  mu guards the line and the list of live sessions; it is held for
 * list work only, never during a step.  wake_mu is a leaf: anyone may take it to say that there is something to do. */
#ifndef HD_EXEC_ENGINE_INT_H
#define HD_EXEC_ENGINE_INT_H

#include "exec/coordinator.h"
#include "exec/executor.h"
#include "exec/line.h"

enum { STEP_TIMES = 64, MAX_METHODS = 16 };

/* A managed job that waits for, or has, the exclusive lease. */
typedef struct exclusive exclusive;

struct engine {
    executor x;
    engine_options opt; /* after defaults; read-only */
    pthread_t thread;
    const gen_method *methods[MAX_METHODS]; /* built-in ones first; mu */
    size_t n_methods;
    collect_pool *pool;

    pthread_mutex_t mu;
    line waiting;
    session *live;                  /* not over, waiting or running */
    uint32_t n_live;
    uint64_t next_order, next_id;
    bool draining, closing;
    uint64_t requests_total, rejected_full;
    bool fetching;                  /* the head of a line is being read for from disk; executor */
    uint64_t rested_at;             /* the step after which free memory was handed back; executor */
    bool line_changed;              /* someone came, went or changed: admission looks again */
    uint64_t line_due_us;           /* no one waiting has a deadline before this */
    uint64_t rank_due_us;           /* when ages change what admission found last time */
    const char *reason[N_PRIORITIES]; /* why the head of each rank waits */
    exclusive *jobs, *jobs_tail;    /* that wait, in order */
    exclusive *granted;             /* has the lease, the executor shall run it */
    uint64_t exclusive_total;

    coordinator *leases;
    lease *shared;                  /* the executor's, while rows run; executor */
    atomic_int shared_state;        /* what became of its request: see engine.c */

    pthread_mutex_t wake_mu;
    pthread_cond_t wake;
    bool woken;
    session *calls, *calls_tail;    /* sessions with a cancel or steering */

    atomic_bool has_work;           /* rows that wait for their readers are no work */
    atomic_ullong step_us_max;

    pthread_mutex_t view_mu;        /* guards the copy below */
    row_view *rows;
    uint32_t n_rows;
    engine_view view;
    double step_ms[STEP_TIMES];
    uint32_t n_step_ms;
    double service_us, first_free_us; /* moving mean of a row's time; until the first row ends, as far as one can tell */
    uint64_t t_view_us;
};

const hd_clock *engine_clock(const engine *e);
collect_pool *engine_collect_pool(engine *e);
void engine_wake(engine *e);              /* there may be work again; takes only wake_mu */
void engine_interrupt(engine *e);         /* cut a scripted model's sleep short */
void engine_call(engine *e, session *s);  /* s has a cancel or steering */
void engine_uncall(engine *e, session *s); /* it is over: nobody will ask */
/* It is over, after so many tokens: off all lists. */
void engine_forget(engine *e, session *s, uint64_t tokens);
void engine_requeue(engine *e, session *s); /* its row gave way */
/* A copy for those who look (view.c).  force: also when the last copy is recent. */
void engine_copy_view(engine *e, bool stepped, uint64_t step_us, bool force);

/* exclusive.c */
/* Is the executor allowed to run rows now?  Asks for its lease if there is something to run; *refused: it got neither the
 * lease nor a place in the line. */
bool engine_may_run(engine *e, bool wanted, bool *refused);
/* Give the lease up once no row runs, preempt rows that a job has waited for long enough, run a granted job.  Returns when
 * the next job's patience ends (UINT64_MAX: none). */
uint64_t engine_serve_jobs(engine *e);

#endif
