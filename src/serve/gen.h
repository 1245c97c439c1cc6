/* gen.h - one request that needs a planner, from its body to the last byte of its reply.
 *
 * The loop makes it, a planner fills it and submits its sessions, the loop drains them into the connection (streamed)
 * or into the reply being collected.  What differs between dialects is behind `struct dialect`.  A gen of a durable
 * request is a *viewer* (viewer.h): it owns no sessions, its events come from a runner or from the request log.
 *
 * gen.c: life, what planners give back, cancelling, steering.  gen_submit.c: planner side, towards the engine.
 * gen_flow.c: events into replies.
 *
 * Ownership moves: PLANNING - a planner owns the plan fields, the loop only `conn`, `cancelled` and the links.
 * ACTIVE - the loop owns everything.  FREE - pooled; a late notify from the executor may still name it, harmlessly. */
#ifndef HD_SERVE_GEN_H
#define HD_SERVE_GEN_H

#include "serve/error.h"
#include "serve/http.h"
#include "serve/prompt.h"
#include "serve/request.h"
#include "serve/server_int.h"
#include "serve/viewer.h"

#include <jansson.h>

enum {
    GEN_MAX_CHOICES = 1024,          /* n x prompts */
    GEN_MAX_INPUTS = 2048,           /* of an embedding request: they do not all wait in the queue at once */
    GEN_MAX_PENDING = 4200,          /* tokens held without text: a stop string of 4096 one-byte tokens and some */
};

/* A token whose entry waits until its text is out (or is known to be withheld by a stop). */
typedef struct {
    sample_result sample;
    uint64_t start;  /* text bytes of this choice before it */
    uint64_t chars;  /* the same in code points, echo included */
    bool first;      /* the first token of a prompt: it has no logprob */
} token_entry;

/* Rendered pieces of entries, by what the dialect puts there (comma-separated JSON values). */
enum { PIECE_A, PIECE_B, PIECE_C, PIECE_D, PIECE_IDS, N_PIECES };

typedef struct {
    session *s;
    uint32_t index, prompt;
    hd_buf text;              /* collected text (unstreamed); embeddings: the vector's bytes */
    id_list ids;              /* of a chat's answer, which its client may bring back; cut off at a limit */
    hd_buf pieces[N_PIECES];
    uint32_t n_piece;         /* entries in pieces A..D */
    uint64_t text_bytes;      /* generated text released so far */
    uint64_t seen_bytes, seen_chars; /* text that all tokens so far stand for, released or not */
    detok dt;
    token_entry *pending;
    size_t n_pending, cap_pending;
    uint32_t collected;       /* tokens counted in srv->collected_tokens */
    bool echo_over;
    bool done;
    finish_reason finish;
    int32_t stop_index;
    bool ended_by_eos;
    gen_stats stats;
    view_place at; /* of a viewer */
} choice;

typedef struct {
    id_list ids;
    char *echo; /* completions: the text to echo, or NULL */
    size_t n_echo;
    prompt_facts facts; /* chat */
} gen_prompt;

typedef struct dialect {
    const char *name;      /* label of metrics */
    const char *id_prefix; /* of the response object's id; NULL: no object */
    const char *object;
    /* Planner thread.  Fill g->plan, g->prompts (or g->reply for a request that generates nothing). */
    bool (*plan)(gen *g, const json_t *body, serve_error *e);
    bool (*frames)(gen *g, serve_error *e); /* constant text of a stream's frames; NULL: it has none.  Any thread that owns g */
    /* Loop thread; each appends whole SSE events to out. */
    void (*start)(gen *g, hd_buf *out);                                          /* accepted */
    void (*delta)(gen *g, choice *ch, const char *text, size_t n, hd_buf *out);  /* text and the pieces so far */
    void (*finish)(gen *g, choice *ch, hd_buf *out);                             /* one choice ended */
    void (*end)(gen *g, hd_buf *out);                                            /* all did */
    void (*entry)(gen *g, choice *ch, const token_entry *t);                     /* append t to ch->pieces */
    void (*reply)(gen *g, hd_buf *out);                                          /* the unstreamed reply */
    bool durable;          /* its requests can be kept in the log */
} dialect;

typedef enum { GEN_FREE, GEN_PLANNING, GEN_ACTIVE } gen_phase;

/* What is asked for: a generation, or something about a stored one. */
typedef enum {
    GEN_POST,
    GEN_GET,
    GEN_DELETE,
    GEN_KNOWN, /* a cancel of an id that no generation has: is it stored? */
    GEN_NAMES, /* the names of stored ones */
    GEN_CANCEL, /* a cancel of one that runs, until that is on disk; no planner sees it */
} gen_kind;

struct gen {
    server *srv;
    gen_phase phase;
    /* loop */
    conn *conn; /* NULL: the peer has gone */
    gen *prev, *next;
    struct event *timer; /* comments; keeps a paused collection's sessions read */
    size_t body_counted;
    size_t reply_bytes;  /* of srv->reply_bytes */
    uint64_t t_begin_us; /* first byte of its request */
    uint64_t t_start_us, t_last_write_us;
    uint64_t trace_order;
    uint64_t event_no;
    size_t key;          /* of the connection */
    uint32_t n_done;
    bool collecting, held; /* held: the bound on collected tokens stopped it */
    bool ending;           /* its sessions were cancelled, for ending_why */
    cancel_reason ending_why;
    waker w;             /* its sessions have something; srv->mu */
    gen *planned_next;   /* srv->mu */
    /* planner queue's mutex */
    gen *job_prev, *job_next;
    bool job_queued;
    /* any thread */
    atomic_int cancelled; /* cancel_reason, 0: none; set by the loop, read by the planner between its stages */

    /* fixed by the loop before a planner has it */
    gen_kind kind;
    const dialect *d;
    char id[64];
    bool has_key;        /* there is an Idempotency-Key, */
    hd_buf idem_key;     /* this one where there is a log */
    char want_id[72];    /* of GET, DELETE, KNOWN: an id, or the name of a response; NAMES: those behind this one */
    bool has_from;       /* Last-Event-ID or starting_after: only frames with higher numbers are wanted */
    uint64_t from;
    bool want_stream;    /* GET ?stream=true */

    /* planner, then loop */
    hd_buf body;
    int64_t created;
    serve_error error;
    hd_buf reply; /* JSON of a request that generates nothing */
    char warning[200]; /* for x-heddle-warning */
    gen_params plan;
    gen_prompt *prompts;
    uint32_t n_prompts;
    size_t request_bytes; /* of srv->request_bytes */
    choice *choices;
    uint32_t n_choices;
    uint32_t n_submitted; /* choices from here on have no session yet (planner, then loop) */
    bool has_big_seed;
    uint64_t big_seed;
    hd_buf frame_head, frame_tail; /* constant parts of a stream's frames */
    size_t frame_at;               /* where the frame being written begins */
    bool background;
    const char *not_kept;          /* what asked for durability on a server without a log */
    bool readmit;                  /* from the log, at a start */
    int64_t accepted_us;           /* wall clock, when the first life took it; total deadlines count from there */
    uint32_t ctx;                  /* effective context then */
    char *model_name;              /* of a durable one, as it was then; NULL: the served one's */
    char fingerprint[24];          /* likewise; "" */
    view view;                     /* of a durable one */
    /* conversation.h */
    char name[JOURNAL_NAME_BYTES + 1]; /* that its response takes; "" */
    hd_buf turn;                   /* what it adds to its conversation, for the log; empty: it is of none */
    uint64_t after;                /* order of the stored response that it goes on from; 0 */
    size_t n_before;               /* messages that the client did not send */
    bool long_before;              /* what was before is large: it is planned as a large body is */
    journal_entry *source;         /* of one that goes on where that one ended (go_on.h), while it is planned; owned */
};

/* Loop: start the request of c (its body is taken), or answer 429. */
void gen_start(conn *c, const dialect *d);
/* Likewise GET or DELETE of a stored response (c->path ends with its id), or the answer to a cancel of an unknown id. */
void gen_start_stored(conn *c, const dialect *d, gen_kind kind, const char *id);
/* Loop: c cancelled what r generates, and is answered when that is on disk, or after 5 s. */
void gen_start_cancelled(conn *c, runner *r);
void gen_planned(gen *g);  /* a planner is done with it */
void gen_drain(gen *g);    /* its sessions have something */
void gen_resume(gen *g);   /* its output went down */
bool gen_time(gen *g, uint64_t us); /* call on_timer then; false: no memory */
void gen_abandon(gen *g);  /* its peer has gone */
/* Cancel by response id, for the holder of API key `key`: 1 cancelled now, 0 known but over, -1 unknown, or not his. */
int gen_cancel_id(server *s, size_t key, const char *id, cancel_reason why);
typedef struct {
    bool stop, has_max_tokens, has_priority;
    uint32_t max_tokens;
    gen_priority priority;
    const int32_t *force; /* n_force ids to come next */
    size_t n_force;
} gen_steering;
/* Steer all choices of the response with this id: 1 done, 0 known but over or not begun yet, -1 unknown.  *st: HD_FULL,
 * HD_INVALID when the ids could not be forced, HD_UNSUPPORTED when it is durable and its tokens would change; then nothing
 * was changed. */
int gen_steer_id(server *s, size_t key, const char *id, const gen_steering *how, hd_status *st, hd_err *err);
void gen_cancel_all(server *s, cancel_reason why);
void gen_free_all(server *s); /* at close, when the planners are gone */
/* The plan and what belongs to it is freed; the gen may be filled anew.  Not its body nor its links. */
void gen_clear_plan(gen *g);

/* Planner thread: the sessions of g->prompts.  Fills g->error on failure. */
void gen_submit(gen *g);
/* A span of its line in the trace, from t0 to now; nothing without a trace.  Returns now. */
uint64_t gen_trace(const gen *g, const char *name, uint64_t t0_us, const char *arg, uint64_t v);
/* A numbered data event of a stream: its head, and its end, which drops it when the client has it already. */
void gen_frame(gen *g, hd_buf *out);
void gen_frame_end(gen *g, hd_buf *out);
/* Sums over choices. */
void gen_usage(const gen *g, uint64_t *prompt, uint64_t *cached, uint64_t *completion);

/* ---- between gen's own files and its relatives ---- */
static inline bool gen_streams(const gen *g) { return g->plan.stream; }
/* Loop: reply with an error, as the state of the reply allows, and end. */
void gen_fail(gen *g, const serve_error *e);
void gen_release(gen *g);
void gen_cancel_sessions(gen *g, cancel_reason why);
void gen_begin_reply(gen *g); /* loop: headers and first frames, then what is there */
void gen_cancel_error(serve_error *e, cancel_reason why);
/* One choice has ended: others may still wait to be the engine's. */
void gen_submit_more(gen *g, serve_error *e);
bool gen_make_choices(gen *g);
void gen_submit_error(gen *g, serve_error *e, hd_status st, const hd_err *err);
/* What an earlier life left of a choice. */
typedef struct {
    bool done, begun;
    int32_t *said; /* tokens that are read like a prompt instead of being generated again */
    size_t n_said;
} resumed_choice;
/* Submit choices [from, from + n) together or not at all; sessions go to out[0..n), events are told to w.  was (may be NULL,
 * [n]): those that are done get none. */
hd_status gen_submit_choices(gen *g, uint32_t from, uint32_t n, const resumed_choice *was, waker *w, session **out, hd_err *err);

extern const dialect dialect_chat, dialect_completions, dialect_embeddings, dialect_tokenize, dialect_detokenize;

#endif
