/* executor.h - rows, pages and steps: the part of the engine that decides.
 *
 * One thread calls it.  It knows no threads and no waiting: a caller feeds it sessions and asks it for steps, so that
 * tests can drive it with a turned clock.  A turn is: take calls, sweep deadlines, admit, plan, forward, consume in row
 * order, publish, settle, evict.  executor.c: opening, rows, ends.  pages.c: pages and preemption.  step.c: the step. */
#ifndef HD_EXEC_EXECUTOR_H
#define HD_EXEC_EXECUTOR_H

#include "exec/plan.h"
#include "exec/row.h"
#include "exec/tell.h"
#include "state/prefix.h"

#include <stdatomic.h>

enum { PROMPT_LOGITS = 16 }; /* rows of logits kept for prompt scoring and drafts beside one per decoding row */

enum { MAX_PINS = 64 }; /* conversations whose pages stay for a while; one more makes the one that ends first go */
typedef struct {
    prefix_node *at;                      /* the last page's; with all before it */
    uint32_t n_pages;
    uint32_t first[MODEL_MAX_GROUPS];     /* page from which on it is pinned */
    uint64_t until_us;
} exec_pin;

struct executor {
    model *m;
    const model_info *info;
    engine_options opt;          /* filled in: no zeros */
    engine_plan plan;            /* what they come to */
    kv *kv;
    prefix_tree *tree;           /* what was computed once; its pages are counted there, not in reserved_bytes */
    uint32_t n_groups, max_pages;
    row **rows;                  /* [max_rows], by (rank, order): the last gives way first */
    uint32_t n_rows;
    uint64_t reserved_bytes;     /* sum over rows; with what rows use of the tree <= budget */
    segment *segs;               /* [max_rows] */
    row **seg_rows;
    uint8_t *sample_work;        /* one for each of sample_members */
    unsigned sample_members;
    hd_buf text_a, text_b;       /* of one token: detokenised, then past the stop filter */
    /* The disk tier, where opt.store is set. */
    uint8_t identity[32];        /* of the model */
    uint64_t t_close_us;         /* all that is cached is being written, until then (real time) */
    bool spilling;               /* dropped pages go there */
    struct {
        bool on;
        uint64_t order;          /* of the session it is for */
        prefix_node *at;         /* down to here nodes are used by the fetch, so that they stay */
        uint32_t n_nodes, goal;
        uint8_t *has;            /* [max_pages] groups that the tree or the disk has */
    } fetch;
    exec_pin pins[MAX_PINS];     /* those that end first in front (pin.c) */
    uint32_t n_pins;
    bool freed;                  /* rows or pages became free since the caller last looked */
    /* Counters; others read them at any time.  What a request adds is there before its reader sees its end. */
    atomic_ullong steps, prompt_tokens, generated_tokens, preemptions, faults_contained, pauses;
    atomic_ullong finished[4], cancelled[16];
    atomic_ullong t_progress_us; /* last time a forward pass ended or there was no work */
    uint32_t step_tokens_last;
    uint64_t t_forward_us;       /* when the last forward pass ended */
    double service_us;           /* moving mean of admission to end, for Retry-After */
    double step_us;              /* moving mean of a step */
    double token_us;             /* moving mean of a token's part of a step of many; 0: not known */
    uint64_t step_us_max;        /* longest step of late: halves its distance to the mean with each */
    uint64_t idle_due_us;        /* when the next paused row runs into its idle deadline; UINT64_MAX: none */
    uint64_t deadline_us;        /* no running row has a deadline before this */
    uint32_t step_budget;        /* tokens that the last step could have had */
    tell_steps told;             /* for who debugs (tell.h) */
};

/* Fill in defaults, bound the context by the budget, allocate everything a step needs. */
hd_status executor_open(executor *x, model *m, const engine_options *opt, hd_err *err);
void executor_close(executor *x); /* no rows left */

/* Can this prompt ever run?  HD_INVALID / HD_NEVER_FITS with the numbers. */
hd_status executor_check(const executor *x, const gen_request *req, hd_err *err);
/* Bytes that a row with n tokens in all would hold at most. */
uint64_t executor_project(const executor *x, uint32_t n_tokens);
/* Tokens that admission counts for s: its prompt and a named cap in full; without one the default, and more as it grows. */
uint32_t executor_projected_tokens(const executor *x, const session *s);

/* May it run now?  HD_FULL: not yet, *why says for what. */
hd_status executor_admissible(const executor *x, const session *s, const char **why);
/* Admit it with this rank (it is admissible): the row runs, or it failed and has been ended. */
void executor_admit(executor *x, session *s, uint32_t rank);
/* Preempt rows of lower classes so that s can be admitted.  False: that would not do, nothing was touched. */
bool executor_make_way(executor *x, const session *s);
/* Preempt every row: an exclusive job does not wait any longer. */
void executor_preempt_all(executor *x);
/* s has a row that runs, and a cancel or steering came. */
void executor_cancel(executor *x, session *s, cancel_reason why);
void executor_steer(executor *x, session *s, const session_steer *st);
/* End overdue and evict ended rows.  Returns when the next deadline of a row is (clock time; UINT64_MAX: none). */
uint64_t executor_sweep(executor *x);
/* One step.  False: no row could do anything (none, or all paused). */
bool executor_step(executor *x);
/* A session that never became a row, or whose row was preempted. */
void executor_end_waiting(executor *x, session *s, finish_reason why, cancel_reason reason, const hd_err *err);
cancel_reason executor_overdue(const session *s, uint64_t now); /* CANCEL_NONE: not yet */
uint64_t executor_due(const session *s); /* its next deadline, UINT64_MAX: none */
void executor_check_invariants(const executor *x);              /* debug builds */

/* ---- between executor.c, pages.c and step.c ---- */
uint32_t pages_for(uint32_t n_tokens, uint32_t page_tokens);
uint64_t executor_committed(const executor *x);      /* bytes that rows may hold, shared pages counted once */
void *pages_get(executor *x, uint32_t g);            /* a page; cache makes room.  NULL: rows hold all there is */
void pages_drop(row *r, bool keep);                  /* all of them; keep: what is worth it stays in the tree */
void pages_take(executor *x, row *r, uint32_t n);    /* for positions [0, n); may preempt the last rows, r itself at last */
void pages_drop_behind_window(executor *x, row *r);
void executor_evict_ended(executor *x);
void executor_place(executor *x, row *r);            /* r->rank changed or r is the last: put it where it belongs */

/* ---- share.c: rows and the prefix tree ---- */
uint32_t share_most(const executor *x, const session *s); /* tokens that s may take up at most */
/* What s could take up in whole pages if it were admitted now. */
void share_find(const executor *x, const session *s, prefix_hit *h);
/* Bytes that admitting s would commit, given that hit: what it will hold for itself, and what it takes up that no row
 * uses yet, or only rows that are `leaving`. */
uint64_t share_cost(const executor *x, const session *s, const prefix_hit *h);
/* r goes through the tree from now on and takes up what is known of it; r->reserved_bytes is set. */
void share_begin(executor *x, row *r);
/* Put complete pages in. */
void share_publish(executor *x, row *r);
/* r is at a page's end with a prompt to go on: take up what others have computed meanwhile.  True: another row is just
 * computing r's next page, so r waits for it. */
bool share_follow(executor *x, row *r);
/* Leave the tree; keep: what r holds of an incomplete page stays there. */
void share_end(executor *x, row *r, bool keep);
/* Windows have moved on: let go of the page of group g before r->first_page[g] was raised past i. */
void share_release(executor *x, row *r, uint32_t g, uint32_t i);

/* ---- pin.c: prompts whose pages stay for a while ---- */
/* r's prompt is in the tree: pin it, if its request says so and it fits. */
void pins_take(executor *x, row *r);
/* Let go of the one that ends first.  False: there is none. */
bool pins_yield(executor *x);
/* Let go of what is over; when the next one will be (UINT64_MAX: none). */
uint64_t pins_sweep(executor *x, uint64_t now);

/* ---- disk.c: the prefix tree and the disk tier ---- */
hd_status disk_open(executor *x, hd_err *err);
/* Everything that is cached goes to disk; bounded in time. */
void disk_close(executor *x);
/* s may be admitted.  Read pages that it can take up from disk into the tree, some each time.  True: there are more. */
bool disk_fetch(executor *x, const session *s);
/* Whatever was being read stays cache and no more. */
void disk_fetch_end(executor *x);

#endif
