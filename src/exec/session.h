/* session.h - one generation between its producer (the executor) and its reader.
 *
 * The queue is a ring of SESSION_MAX_TOKENS records and SESSION_MAX_TEXT bytes of text.  When it is full the executor
 * leaves the row out of the step; it never waits and never drops.  A collecting session's ring grows instead, counted
 * against the engine's bound for all of them.  The end does not need room: it is kept beside the ring.  mu guards
 * everything below it; notify runs under mu, so that a freed session is never notified. */
#ifndef HD_EXEC_SESSION_H
#define HD_EXEC_SESSION_H

#include "base/buf.h"
#include "exec/engine.h"

#include <pthread.h>
#include <stdatomic.h>

#ifdef HD_HOSTILE
enum { SESSION_MAX_TOKENS = 1, SESSION_MAX_TEXT = 8, SESSION_LOGITS = 1 };
#elif defined HD_PLANT /* the explorer's build (tests/sim): short schedules must fill it */
enum { SESSION_MAX_TOKENS = 12, SESSION_MAX_TEXT = 1 << 10, SESSION_LOGITS = 8 };
#else
enum { SESSION_MAX_TOKENS = 256, SESSION_MAX_TEXT = 64 << 10, SESSION_LOGITS = 8 };
#endif
enum { SESSION_MAX_FORCED = 64, SESSION_MAX_KEY = 64 };

typedef struct {
    event_kind kind;
    uint64_t position;
    sample_result sample;
    uint32_t n_text; /* bytes of `text` that belong to this record, in order */
} session_record;

/* A request with everything it points at owned. */
typedef struct {
    gen_request req; /* pointers lead into the fields below */
    char id[64], share[SESSION_MAX_KEY], space[SESSION_MAX_KEY];
    int32_t *prompt, *stop_ids; /* behind the prompt lies what was said before */
    stop_set *stops;
    sampler *sampler;
} gen_copy;

/* Unread records of all collecting sessions of an engine; outlives it, because sessions may. */
typedef struct {
    atomic_llong held;
    long long limit;
    atomic_int refs;
    pthread_mutex_t mu; /* guards engine; after session->mu, before wake_mu */
    engine *engine;     /* to be woken when there is room again; NULL once it closes */
} collect_pool;
collect_pool *collect_pool_new(engine *e, uint64_t limit);
void collect_pool_leave(collect_pool *p); /* the engine closes */
void collect_pool_unref(collect_pool *p);

size_t session_bytes(void);         /* that one takes at most while nothing is collected, its prompt and sampler aside */
size_t session_waiting_bytes(void); /* the same of one that has never been admitted */

/* What a steering call left for the executor; under mu. */
typedef struct {
    bool stop, detach, has_priority;
    gen_priority priority;
    uint32_t cap;                      /* 0: unchanged */
    int32_t forced[SESSION_MAX_FORCED];
    uint32_t n_forced;
} session_steer;

struct session {
    gen_copy copy;
    engine *engine;                    /* lives as long as the session is not over */
    const hd_clock *clock;
    const gen_method *method;
    session *next_live, *prev_live;    /* engine's list of sessions that are not over; engine->mu */
    session *next_wait, *prev_wait;    /* its line (exec/line.h); engine->mu */
    struct share *share;               /* engine->mu */
    bool waiting;                      /* it stands in the line; engine->mu */
    session *next_call, *prev_call;    /* engine's list of sessions with something to say to the executor; engine->wake_mu */
    bool calling;                      /* it is on that list; engine->wake_mu */
    cancel_sub *sub;                   /* on copy.req.cancel; set before the session is in the line, executor afterwards */
    uint64_t t_submit_us;
    uint64_t order;                    /* FIFO position, kept through preemption; set at submit */
    uint64_t cost;                     /* tokens its share was charged for at admission; executor */
    struct row *row;                   /* executor only; NULL while waiting for the first time */
    atomic_int cancel;                 /* cancel_reason; publishes nothing else */
    atomic_uint progress_done;         /* prompt positions computed; a statistic */
    atomic_bool admitted;              /* a statistic */
    atomic_bool has_forced;            /* steer.n_forced > 0 */

    pthread_mutex_t mu;
    pthread_cond_t ready;
    session_notify notify;             /* NULL once the reader is gone */
    void *notify_ctx;
    session_record *ring;              /* [cap], from admission on */
    uint32_t head, n, cap;
    bool collect;
    collect_pool *pool;
    session_steer steer;
    hd_buf text;                       /* text of the waiting records, from text_at on */
    size_t text_at;
    float *logits;                     /* [SESSION_LOGITS][n_vocab] for prompt_logits */
    uint32_t n_logits, logits_at;      /* waiting rows of it, oldest at logits_at */
    uint64_t logits_pos;               /* position of the oldest */
    size_t n_vocab;
    float *vector;                     /* one waits, or NULL; vector_out: handed to the reader */
    size_t n_vector;
    float *vector_out;
    bool submitted;                    /* it is the engine's: cancels reach the executor */
    bool over, over_read, tail_read, reader_gone;
    bool starved;                      /* the executor saw it full: tell it when there is room */
    uint64_t t_read_us;                /* last time the reader took something */
    gen_event end;                     /* valid once over */
    hd_buf tail;                       /* text released by the end */
    hd_buf out;                        /* reader's copy of the text it borrows */
};

/* That it begins with: the prompt and what it said before. */
static inline uint32_t session_tokens(const session *s) { return (uint32_t)(s->copy.req.n_prompt + s->copy.req.n_said); }
hd_status session_new(session **out, engine *e, const gen_request *req, const gen_method *m, size_t n_vocab,
                      session_notify notify, void *ctx, hd_err *err);
/* The engine has it in its line: cancels that came before are passed on.  Under engine->mu. */
void session_submitted(session *s);
void session_unsubscribe(session *s); /* executor, before it is over */
/* Both sides are done with it: over and reader_gone. */
void session_destroy(session *s);

/* ---- producer side, executor thread ---- */
hd_status session_prepare(session *s, hd_err *err);  /* allocate the queue (at admission) */
/* Records that fit now (rows of logits for a prompt_logits request).  0 also arms the wake-up of the executor.  oldest: of
 * the collecting rows; it may go on above the bound of all of them, so that one always does. */
uint32_t session_room(session *s, bool oldest);
/* Take the steering that waits, but for the forced tokens, which are taken one by one where a token is due. */
void session_take_steer(session *s, session_steer *out);
uint32_t session_take_forced(session *s, int32_t *ids, uint32_t max);
/* False: no memory for the text; nothing has changed. */
bool session_push(session *s, const session_record *r, const char *text);
void session_push_logits(session *s, uint64_t position, const float *logits);
/* v is the session's from now on. */
void session_push_vector(session *s, float *v, size_t n);
uint64_t session_last_read(session *s);
/* Text that the end released, before session_finish.  False: no memory for it. */
bool session_push_tail(session *s, const char *tail, size_t n);
/* The end.  Exactly once.  May free the session if the reader has gone. */
void session_finish(session *s, const gen_event *end);

#endif
