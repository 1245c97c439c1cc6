/* line.h - who waits, and who is next.
 *
 * Requests stand in one queue per (share, class).  A class counts as the next higher one for every age_us that its request
 * has waited.  Among the heads of one rank, rows that were preempted come first, then who has waited for LINE_OVERDUE_AGES times
 * age_us, by age (new shares could else come without end), then the share that was served least, then the older request.
 * So nobody waits for ever.  Shares are charged for the tokens they are admitted for (start-time
 * fair queueing: Goyal, Vin, Cheng 1996): a share that was idle does not save up, one that floods gets its part.
 * The caller's lock guards everything. */
#ifndef HD_EXEC_LINE_H
#define HD_EXEC_LINE_H

#include "exec/session.h"

enum { LINE_OVERDUE_AGES = 3, LINE_MAX_IDLE = 256 }; /* shares without requests whose account is remembered */

typedef struct {
    session *head, *tail; /* by order */
} line_queue;

typedef struct share {
    char key[SESSION_MAX_KEY];
    uint64_t vtime;          /* where its next request starts, in tokens */
    uint32_t n_live;         /* sessions of it that are not over */
    uint32_t n_waiting;
    line_queue q[N_PRIORITIES];
    struct share *next_hash;
    struct share *next, *prev; /* among shares with someone waiting, or among idle ones (oldest first) */
} share;

typedef struct {
    share *bucket[64];
    share *active;             /* someone waits */
    share *idle, *idle_last;   /* nobody lives */
    uint32_t n_idle, n_waiting;
    uint64_t vnow;
    uint64_t age_us;
} line;

void line_init(line *l, uint64_t age_us);
void line_deinit(line *l); /* nobody lives */
/* The share of a session that becomes live / is over.  False: no memory. */
bool line_join(line *l, session *s);
void line_leave(line *l, session *s);

void line_push(line *l, session *s);   /* by order within its queue: a preempted row stands in front */
void line_remove(line *l, session *s);
/* The next one of a rank >= min_rank (0: the most urgent), or NULL; *rank is its rank. */
session *line_next(const line *l, uint64_t now_us, uint32_t min_rank, uint32_t *rank);
uint32_t line_rank(const line *l, const session *s, uint64_t now_us);
/* s is admitted for so many tokens / it ended having used so many. */
void line_charge(line *l, session *s, uint64_t tokens);
void line_settle(line *l, session *s, uint64_t tokens);
/* When someone waiting next gets a better place by age (UINT64_MAX: never). */
uint64_t line_next_change(const line *l, uint64_t now_us);
/* Everyone waiting, in no order: f for each; f may not change the line. */
void line_each(const line *l, void (*f)(void *ctx, session *s), void *ctx);

#endif
