/* engine.h - requests in, events out.
 *
 * engine_open starts the executor thread, which alone owns rows, pages and steps (see exec/executor.h).  A session is
 * one generation: opened by engine_submit, read by session_next, ended exactly once by an EV_DONE, freed by its owner.
 * A session's queue is bounded: when its reader lags, that row pauses and no other.  All calls are thread-safe unless
 * said; none waits for compute. */
#ifndef HD_EXEC_ENGINE_H
#define HD_EXEC_ENGINE_H

#include "base/clock.h"
#include "base/err.h"
#include "base/trace.h"
#include "decode/sampler.h"
#include "decode/stop.h"
#include "exec/cancel.h"
#include "model/model.h"
#include "state/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct engine engine;
typedef struct session session;
typedef struct gen_method gen_method; /* exec/row.h: an algorithm that produces a request's output */

enum { ENGINE_MAX_QUEUED = 1 << 20 }; /* sums with rows stay far below 32 bits; who looks copies so many */

/* Limits and their defaults (0 takes the default).  UINT64_MAX is a time that never comes. */
typedef struct {
    uint32_t max_rows;           /* rows in a step: 16 */
    uint32_t max_queued;         /* waiting requests: 256; at most ENGINE_MAX_QUEUED */
    uint32_t step_tokens;        /* tokens per step: 256 */
    uint64_t step_target_us;     /* so long a step should take in which rows decode: 20 ms; prompts get less of it then (step.c) */
    uint32_t default_max_tokens; /* projection of a request that names no cap: 512 */
    uint64_t kv_budget_bytes;    /* pages of all rows: half of (memory limit - weights) */
    uint64_t pin_budget_bytes;   /* of them, what requests may pin (gen_request.pin_us): a quarter; at most half */
    uint32_t page_tokens;        /* positions per page: 64 */
    uint32_t ctx;                /* effective context: the model's own */
    kv_scheme kv_type;           /* of layers with full attention: KV_F16 */
    kv_scheme kv_type_sliding;   /* of layers with a window: as kv_type */
    uint64_t idle_timeout_us;    /* a full, unread queue: 30 s */
    uint64_t stuck_timeout_us;   /* work but no finished step for this long = failed: 120 s */
    uint64_t age_us;             /* waiting this long lifts a request by one priority class: 10 s */
    uint64_t collect_tokens;     /* held unread by all collecting sessions together: 65,536 */
    uint32_t max_leases_queued;  /* waiting exclusive jobs: 64 */
    bool no_cache;               /* rows share nothing and leave nothing behind */
    store *store;                /* cached pages that must go, go there, and come back from there; borrowed; NULL: none */
    const hd_clock *clock;       /* hd_clock_real */
    trace *trace;                /* what happens is written there; borrowed; NULL: nothing is */
    bool manual;                 /* no thread of its own: engine_turn drives it (tests with a turned clock) */
} engine_options;

/* Classes, the most urgent first.  Waiting age_us counts as one class; a class never overtakes itself. */
typedef enum { PRIORITY_HIGH = -1, PRIORITY_NORMAL = 0, PRIORITY_LOW = 1 } gen_priority;
enum { N_PRIORITIES = 3 };

#define GEN_NO_CAP UINT32_MAX
typedef struct {
    const char *method;          /* NULL: "autoregressive"; "embedding"; or a registered one */
    uint64_t method_arg;         /* the method's own: embedding: an embedding_pooling */
    gen_priority priority;
    const char *share;           /* requests of one share key (a user, an API key) get one fair share; NULL = ""; <= 63 bytes */
    bool collect;                /* its unread output is bounded by collect_tokens instead of by the session's queue */
    size_t boundary;             /* so many tokens of the prompt a next turn is expected to begin with; 0: unknown.  A hint: what
                                    windows see there is kept longer */
    uint64_t pin_us;             /* pages of the prompt stay cached so long, within engine_options.pin_budget_bytes; 0: as worth it */
    const char *cache_space;     /* shares computed prefixes only with requests of the same name (a tenant); NULL = ""; <= 63 bytes */
    bool no_cache;               /* take nothing up and leave nothing behind */
    bool readmit;                /* accepted in an earlier life: a full queue does not refuse it */
    cancellation *cancel;        /* cancels this request too (one source may cover several); borrowed until it is over */
    const char *id;              /* for state and cancel, at most 63 bytes; "" = the engine makes one */
    const int32_t *prompt;       /* copied */
    size_t n_prompt;             /* 1 .. context - 1 (or context when max_tokens is 0) */
    const int32_t *said;         /* copied; what it generated before and who asks has already (a resume): counted, taken for its
                                    own, and not handed out again.  Read at the speed of a prompt, it goes on to the same bits.
                                    Only for methods that make text, and without prompt scores and logits */
    size_t n_said;               /* <= max_tokens */
    uint32_t max_tokens;         /* GEN_NO_CAP: until the context ends.  0: only read (and score) the prompt */
    sampling_params sampling;    /* arrays are copied */
    const stop_string *stops;    /* copied */
    size_t n_stops;
    const int32_t *stop_ids;     /* tokens that end like EOS, besides the model's own */
    size_t n_stop_ids;
    bool ignore_eos;             /* EOS is an ordinary token: sampled, counted, printed as nothing */
    uint32_t min_tokens;         /* EOS is forbidden before this many */
    bool special;                /* print control tokens */
    bool prompt_logprobs;        /* EV_PROMPT events score positions 1.. of the prompt (sampling.n_top_logprobs) */
    bool prompt_logits;          /* EV_LOGITS events hand out raw logits of every prompt position (CLI, tests) */
    uint64_t queue_timeout_us, first_token_timeout_us, total_timeout_us; /* 0: none */
} gen_request;

typedef enum { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_FAILED } finish_reason;
const char *finish_reason_name(finish_reason r); /* "stop", "length", "cancelled", "failed" */

typedef struct {
    uint32_t prompt_tokens, cached_tokens; /* cached: of the prompt, taken up instead of computed */
    const char *cache_miss;    /* why not more: prefix_miss_name, static text; NULL: it was never admitted */
    uint32_t cache_miss_at;    /* the first token that could not be taken up for that reason */
    uint32_t pinned_tokens;    /* of the prompt; 0 also where gen_request.pin_us could not be had */
    uint32_t generated_tokens; /* ids + 1 if ended by EOS */
    uint64_t queue_us;         /* submit to admission */
    uint64_t prefill_us;       /* admission to first token */
    uint64_t decode_us;        /* first token to the end */
    uint64_t gap_p50_us, gap_p99_us; /* between tokens, to within 10 %; 0 with fewer than two tokens */
    uint64_t paused_us;        /* its reader lagged */
    uint64_t preempted_us;     /* it had given its pages back */
    uint32_t preemptions;
    uint64_t computed_tokens;  /* positions computed for it, those computed again after a preemption included */
} gen_stats;

typedef enum {
    EV_NONE,   /* nothing waits */
    EV_PROMPT, /* scores of prompt position `position`: sample.id is the prompt's token there */
    EV_LOGITS, /* logits[n_logits] after prompt position `position`; borrowed until the next session_next */
    EV_TOKEN,  /* one sampled token (never the ending EOS) with the text it released, often none */
    EV_VECTOR, /* embedding: vector[n_vector], borrowed until the next session_next */
    EV_TEXT,   /* text released at the end (held characters or a held stop prefix); no token */
    EV_DONE    /* the end; nothing follows */
} event_kind;

typedef struct {
    event_kind kind;
    uint64_t position;
    sample_result sample;     /* EV_TOKEN, EV_PROMPT */
    const char *text;         /* EV_TOKEN, EV_TEXT: whole UTF-8 characters, borrowed until the next session_next */
    size_t n_text;
    const float *logits;
    size_t n_logits;
    const float *vector;
    size_t n_vector;
    finish_reason finish;     /* EV_DONE */
    cancel_reason reason;     /* EV_DONE with FINISH_CANCELLED */
    int32_t stop_index;       /* EV_DONE: which stop string, or -1 */
    bool ended_by_eos;
    gen_stats stats;
    hd_err err;               /* EV_DONE with FINISH_FAILED */
} gen_event;

/* Called on the executor thread when something new waits in the session.  Must be quick, must not call the session. */
typedef void (*session_notify)(void *ctx);

/* The model is borrowed and must outlive the engine.  n_threads: 0 = by topology. */
hd_status engine_open(engine **out, model *m, const engine_options *opt, hd_err *err);
/* Manual engines: one turn (sweep, admit, at most one step) on the calling thread.  0: a step ran, turn again; else
 * microseconds of opt.clock until something is due (UINT64_MAX: nothing before the next call from outside). */
uint64_t engine_turn(engine *e);
/* Add a method under its name, before the first request that names it.  m is borrowed until the engine is closed.
 * HD_FULL: 16 are registered; HD_INVALID: the name is taken. */
hd_status engine_register(engine *e, const gen_method *m, hd_err *err);
/* Cancels everything with `engine_closed`, waits for the executor thread.  Sessions stay readable until freed. */
void engine_close(engine *e);
/* No new requests (HD_CLOSED); running and queued ones go on.  True once nothing is left. */
void engine_drain(engine *e);
bool engine_idle(engine *e);

/* Run job(ctx) when nothing else runs: admission stops, running rows finish or, after drain_us, give their pages back
 * (and continue afterwards, to the same bits).  Jobs run one after another in the order of their calls, on the executor's
 * thread; done(ctx, st) is told exactly once there (or on the closing thread): HD_OK after job ran, HD_CANCELLED, HD_CLOSED.
 * Returns HD_FULL when too many wait and HD_CLOSED, and then done is not called.  cancel may be NULL. */
typedef void (*engine_job)(void *ctx);
typedef void (*engine_job_done)(void *ctx, hd_status st);
hd_status engine_exclusive(engine *e, engine_job job, engine_job_done done, void *ctx, uint64_t drain_us, cancellation *cancel,
                           hd_err *err);

/* HD_INVALID names the field; HD_NEVER_FITS: context or budget, with the numbers; HD_FULL: the queue is full;
 * HD_CLOSED: draining.  n sessions are accepted together or not at all: reqs[i] becomes out[i]. */
hd_status engine_submit(engine *e, const gen_request *reqs, size_t n, session_notify notify, void *const *notify_ctx,
                        session **out, hd_err *err);

/* Take the next event.  EV_NONE when nothing waits (or after EV_DONE). One reader at a time. */
void session_next(session *s, gen_event *ev);
/* The same, waiting up to timeout_us for one (UINT64_MAX: for ever). */
void session_wait(session *s, gen_event *ev, uint64_t timeout_us);
void session_cancel(session *s, cancel_reason why); /* first reason wins; takes effect within one step */
/* Steering: taken up before the session's next token.  All are no-ops once it is over. */
void session_raise_cap(session *s, uint32_t max_tokens); /* may generate so many in all; never lowers; as far as the context goes */
void session_stop(session *s);                           /* end as at a stop string, with what is there */
void session_set_priority(session *s, gen_priority p);   /* of a waiting one: its place among the classes; of a running one: who gives way */
/* The next tokens are these, in order, instead of sampled ones (ending a reasoning block: its closing marker).  Copied; at
 * most 64 ids wait.  HD_FULL, HD_INVALID. */
hd_status session_force(session *s, const int32_t *ids, size_t n, hd_err *err);
/* How many more tokens session_force would take now; the row makes it more as it takes them. */
uint32_t session_force_room(session *s);
/* From now on its output is collected (see gen_request.collect): nobody needs to read it until later. */
void session_detach(session *s);
const char *session_id(const session *s);
void session_progress(session *s, uint32_t *prompt_done, uint32_t *prompt_total, bool *queued); /* for keep-alives */
void session_free(session *s);                      /* cancels if it is not over; s is gone for the caller */
/* By id, any session that is not over.  False: unknown. */
bool engine_cancel(engine *e, const char *id, cancel_reason why);

/* ---- what the engine looks like now (a copy, never waits for a step) ---- */
#define ROW_PHASES(X)                                                                                                  \
    X(QUEUED, "queued")                                                                                                \
    X(PREFILL, "prefill")                                                                                              \
    X(DECODE, "decode")                                                                                                \
    X(WAITING_PREFIX, "waiting_prefix")                                                                                \
    X(PAUSED, "paused")                                                                                                \
    X(PREEMPTED, "preempted")                                                                                          \
    X(PUBLISHING, "publishing")                                                                                        \
    X(DONE, "done")
typedef enum {
#define X(id, name) ROW_##id,
    ROW_PHASES(X)
#undef X
} row_phase;
const char *row_phase_name(row_phase p);

typedef struct {
    char id[64];
    row_phase phase;
    const char *method;        /* static text */
    gen_priority priority;
    uint32_t prompt_tokens, prompt_done, cached_tokens, generated_tokens, pages, preemptions;
    const char *cache_miss;    /* as in gen_stats; NULL of a waiting one */
    uint32_t cache_miss_at;
    const char *wait_reason;   /* queue entries: "rows", "pages", "order", "exclusive_job", "draining"; static text */
    uint64_t waited_ms, expected_wait_ms;
} row_view;

typedef struct {
    uint32_t n_rows, n_queue;  /* filled entries of rows[] and queue[] */
    row_view *rows, *queue;    /* caller's arrays of cap entries, or NULL */
    uint32_t cap_rows, cap_queue;
    uint32_t running, waiting; /* true counts */
    uint64_t pages_total, pages_used, pages_cached; /* used: by rows, each counted once; cached: held by none */
    uint64_t pages_shared;     /* how many more rows would hold if they shared nothing */
    uint64_t pages_evicted;    /* ever */
    uint64_t pages_pinned, kv_bytes_pinned; /* used or cached, and not to be dropped */
    uint32_t pins;
    bool has_store;
    store_counts store;
    uint64_t kv_bytes_total, kv_bytes_used, kv_bytes_cached;
    kv_scheme kv_type, kv_type_sliding;
    uint32_t page_tokens, ctx, max_rows, max_queued, step_tokens;
    uint64_t steps;
    uint32_t step_tokens_last;
    double step_ms_p50, step_ms_max; /* max: of late */
    uint32_t leases_waiting;   /* exclusive jobs that wait or run */
    bool draining, failed;     /* failed: there was work and no step finished in time */
    uint64_t requests_total, finished_stop, finished_length, finished_failed, cancelled[16]; /* by cancel_reason */
    uint64_t prompt_tokens_total, generated_tokens_total, preemptions_total, rejected_full;
    uint64_t exclusive_total, faults_contained, pauses_total; /* jobs run; rows ended by a failing step; times a reader lagged */
    uint64_t retry_after_ms;   /* for 429: from measured rates, at least 1000 */
} engine_view;
void engine_look(engine *e, engine_view *v);
/* The salt of the state directory (store_salt), for naming cache spaces.  False: there is none. */
bool engine_salt(const engine *e, uint8_t out[32]);

#endif
