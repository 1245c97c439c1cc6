/* server_int.h - the server as its own files see it.
 *
 * Threads: "loop" fields belong to the event-loop thread; "fixed" ones never change after open or attach; the mutex
 * guards only the posted lists.  Messages to the loop are lists taken whole in one swap after an eventfd wake. */
#ifndef HD_SERVE_SERVER_INT_H
#define HD_SERVE_SERVER_INT_H

#include "serve/server.h"

#include "base/buf.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct conn conn;
typedef struct gen gen;
typedef struct planner planner;
typedef struct metrics metrics;
typedef struct durable durable; /* durable.h */
typedef struct runner runner;   /* runner.h */
typedef struct log_job log_job; /* durable.h */

/* Something that the loop must look at: linked once under the server's mu, told in the loop. */
typedef struct waker {
    server *srv;
    void (*wake)(struct waker *w); /* loop */
    struct waker *next;
    bool on;                       /* in the list */
} waker;

/* LOADING: no engine yet.  SERVING.  DRAINING: no new generations.  DRAINED: and nothing is left. */
typedef enum { PHASE_LOADING, PHASE_SERVING, PHASE_DRAINING, PHASE_DRAINED } server_phase;

enum { RECENT_IDS = 1024 }; /* finished ids that a cancel still knows */
typedef struct {
    char id[64];
    size_t key; /* as conn.key */
} recent_id;

struct server {
    /* fixed */
    server_options opt;
    char *host, *cors_origin;
    char **keys, **aliases;
    uint16_t port;
    int64_t created;
    uint8_t share_salt[32]; /* of names of spaces and shares; from attach on: the state directory's, where there is one */
    struct event_base *base;
    pthread_t loop_thread;
    bool loop_started;
    int wake_fd;
    planner *planner;

    /* fixed once phase is past LOADING (released by the store to phase, acquired by its readers) */
    engine *eng;
    model *mdl;
    const model_info *info;
    uint32_t ctx, max_rows, max_queued;
    durable *dur;     /* the request log; NULL: nothing is durable */
    size_t max_request_bytes;
    char fingerprint[24];
    atomic_int phase; /* server_phase */

    atomic_size_t request_bytes; /* planned requests hold so much (bounds.h); a sum, publishes nothing */

    /* Guards the posted lists and wishes below; never held while calling out.  The executor's notify takes it with the
     * session's own mutex held, so nothing may touch a session while holding it. */
    pthread_mutex_t mu;
    waker *ready_head, *ready_tail; /* sessions have events */
    gen *planned_head, *planned_tail; /* planners are done with them */
    log_job *logged;                  /* what the log's thread is done with */
    runner *resumed;                  /* from the log at the start, for the loop to adopt */
    bool want_stop, want_drain;
    bool closing;                     /* the loop is gone: nobody is to be told */
    uint64_t drain_timeout_us;

    /* loop */
    struct evconnlistener *listener;
    struct event *wake_ev, *reap_ev, *accept_ev, *drain_ev, *rest_ev;
    conn *conns, *dead; /* live ones; closed ones whose memory waits for the end of the turn */
    uint32_t n_conns;
    size_t body_bytes;          /* request bodies held, of connections and of generations being planned */
    size_t reply_bytes, output_bytes; /* bounds.h */
    gen *gens, *gens_last;      /* in flight, oldest first */
    gen *gens_free;             /* pooled: a late notify may still point at one */
    uint32_t n_gens, n_planning;
    uint64_t n_started;         /* generations ever */
    uint64_t collected_tokens;  /* held by unstreamed replies */
    metrics *met;
    recent_id *recent;          /* ring of finished ids */
    size_t n_recent;
    hd_buf scratch;             /* one turn's output of one connection */
    hd_buf record;              /* an end on its way into the log */
    runner *runners;            /* durable generations, running or just ended, oldest first */
    runner *runners_last;
    runner *dead_runners;       /* to be freed when no list names them */
    uint32_t n_runners, n_running; /* in the list; of them not over */
};

static inline server_phase server_phase_now(const server *s) {
    return (server_phase)atomic_load_explicit(&((server *)(uintptr_t)s)->phase, memory_order_acquire);
}
/* May the holder of API key `key` (1 + index; 0: there are none) see, cancel and steer what belongs to key `of`?  What is his
 * own; and the first key, the operator's, everything. */
static inline bool server_may(const server *s, size_t key, size_t of) { return !s->opt.n_api_keys || key == 1 || key == of; }
/* Wake the loop to look at its lists.  Any thread. */
void server_wake(server *s);
/* Have the loop call w->wake.  Any thread; ctx is a waker, so that it serves as a session_notify. */
void server_notify(void *w);
/* Loop: something ended; if a drain is on, see whether all is over. */
void server_check_drained(server *s);
/* Loop: the last generation has left; if it stays so for a moment, free memory goes back to the system. */
void server_rest(server *s);
uint64_t server_now_us(void);
int64_t server_wall_us(void); /* Unix time in microseconds */
void server_defaults(server_options *o); /* for what is zero */
/* n characters of an unguessable id from [0-9a-zA-Z], NUL-terminated. */
void server_random_id(char *out, size_t n);
uint64_t server_random_u64(void);
/* The served model answers to this name (empty: yes). */
bool server_knows_model(const server *s, const char *name);

#endif
