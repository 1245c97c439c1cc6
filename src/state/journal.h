/* journal.h - the durable request log: what a request was and what it has published, on disk (docs/durable.md).
 *
 * A request is *accepted* once its record is committed and synced; from then on it survives kill -9 and a power cut.
 * Its events are appended behind the caller's back and are, after any crash, a gapless prefix of what was appended.
 * A running request can therefore be admitted again from its record and go on after its last event on disk.
 *
 * One writer thread owns writing.  Who may wait for the disk and who may not:
 *
 *     may wait       journal_open, _accept, _delete, _sweep, _flush, _close, and all reads (_find*, _unfinished, _read_events)
 *     never waits    journal_append, _finish, _stats: they copy into a queue of a fixed size and allocate nothing
 *
 * When that queue is full or a write fails, the requests concerned *lose durability*: what is on disk of them stays a
 * valid prefix, later events are ignored, the callback `lost` is called once, and nothing else happens to them.
 * All functions may be called from any thread, but no call may be under way or follow when journal_close is called. */
#ifndef HD_STATE_JOURNAL_H
#define HD_STATE_JOURNAL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JOURNAL_DIGEST = 32,                   /* bytes of a key's namespace, a body's digest, a model's identity */
    JOURNAL_ID_BYTES = 127,                /* of a request's id */
    JOURNAL_KEY_BYTES = 255,               /* of an idempotency key */
    JOURNAL_NAME_BYTES = 64,               /* of a response's name */
    JOURNAL_TURNS = 1024,                  /* of a conversation */
    JOURNAL_CONVERSATION_BYTES = 64 << 20, /* all its turns together */
    JOURNAL_CHOICES = 1024,                /* per request: n times prompts */
    JOURNAL_REQUEST_BYTES = 64 << 20,      /* record, prompt and turn together */
    JOURNAL_EVENT_BYTES = 256 << 10,       /* text and extra of one event together */
    JOURNAL_FINISH_BYTES = 1 << 20,        /* a finish record */
    JOURNAL_MIN_BYTES = 1 << 20,           /* the least max_bytes */
    JOURNAL_MIN_QUEUE_BYTES = 4096,        /* the least queue_bytes */
};

typedef struct journal journal;

typedef enum { JOURNAL_RUNNING, JOURNAL_FINISHED, JOURNAL_FAILED, JOURNAL_CANCELLED } journal_state;
const char *journal_state_name(journal_state s);

typedef enum {
    JOURNAL_LOST_QUEUE = 1, /* the queue was full: the disk does not keep up */
    JOURNAL_LOST_WRITE,     /* a write or sync failed */
    JOURNAL_LOST_SPACE,     /* max_bytes reached and nothing finished left to delete, or the disk is full */
} journal_loss;

/* Zero is the default of every field. */
typedef struct {
    uint64_t max_bytes;      /* of the database: 1 GiB.  At it, the oldest finished requests go, then accepts are refused */
    uint64_t max_requests;   /* on disk: 100,000.  Likewise */
    uint32_t max_running;    /* unfinished at once: 4096.  More accepts are refused */
    uint64_t retain_seconds; /* how long a finished request is kept: 24 hours */
    uint32_t append_every;   /* queued events that start a write: 32 */
    uint32_t gather_ms;      /* how long an event may wait for others before it is written: 50 */
    uint32_t queue_bytes;    /* events and finish records not yet being written: 4 MiB (held twice) */
    const char *vfs;         /* name of the SQLite VFS to use, for tests; NULL: SQLite's own */
    /* Request `order` lost durability.  Called once per request, on the writer thread, without a lock; it must not wait
     * and must not call the journal except _append, _finish and _stats. */
    void (*lost)(void *ctx, uint64_t order, const char *id, journal_loss why);
    void *ctx;
} journal_config;

/* A request to accept.  Everything is borrowed for the call. */
typedef struct {
    const char *id;                     /* 1..JOURNAL_ID_BYTES bytes, unique */
    const void *key;                    /* idempotency key of n_key bytes; NULL: none */
    size_t n_key;
    uint8_t ns[JOURNAL_DIGEST];         /* namespace of the key: digest of the API key */
    uint8_t body[JOURNAL_DIGEST];       /* digest of the canonical body */
    uint8_t identity[JOURNAL_DIGEST];   /* of the model that must answer */
    uint64_t seed;
    uint32_t n_choices;                 /* 1..JOURNAL_CHOICES */
    int64_t created;                    /* Unix seconds */
    const void *record;                 /* the policy, opaque */
    size_t n_record;
    const int32_t *prompt;              /* token ids; of several prompts one behind the other, as the record says */
    size_t n_prompt;
    /* These are not read back with an entry. */
    const char *name;                   /* of ns, 1..JOURNAL_NAME_BYTES bytes: it takes this name when it has finished; NULL: none */
    const void *turn;                   /* what it adds to a conversation, opaque; NULL: it is of none */
    size_t n_turn;
    uint64_t after;                     /* order of the request whose conversation that is; 0: it begins one */
} journal_request;

typedef enum {
    JOURNAL_NEW,      /* committed now */
    JOURNAL_SAME,     /* this key is there with the same body: attach to that request */
    JOURNAL_CONFLICT, /* this key is there with another body */
} journal_outcome;

typedef struct {
    journal_outcome outcome;
    uint64_t order; /* of the new or the found request: its admission order, and its handle below */
    char id[JOURNAL_ID_BYTES + 1];
    journal_state state;
} journal_accepted;

typedef struct {
    int32_t token;
    const void *text; /* published bytes, n_text of them; may be NULL when 0 */
    size_t n_text;
    const void *extra; /* logprobs or whatever belongs to the event, opaque */
    size_t n_extra;
} journal_event;

/* A request as stored.  One heap block; journal_entry_free. */
typedef struct {
    uint64_t order;
    journal_state state;
    bool lost;               /* ended after it had lost durability: its events are a prefix, its finish record may be missing */
    journal_request request; /* id, key, record and prompt point into the block */
    const uint64_t *published; /* [n_choices] events on disk of each choice */
    int64_t finished;        /* Unix seconds; 0 while running */
    const void *finish;      /* finish record, NULL if there is none */
    size_t n_finish;
} journal_entry;

typedef struct {
    uint64_t accepted, repeated, conflicts, refused; /* accepts: new, JOURNAL_SAME, JOURNAL_CONFLICT, HD_FULL */
    uint64_t events, finished;                       /* committed */
    uint64_t commits, failed_commits;
    uint64_t lost_queue, lost_write, lost_space;     /* requests that lost durability */
    uint64_t expired, evicted;                       /* requests deleted by retention, by quota */
    uint64_t damaged;                                /* times a row was found not to match its checksum */
    uint64_t moved_aside;                            /* 1: a damaged database was moved aside at open */
    uint64_t requests, running, bytes;               /* on disk now; bytes as of the last commit */
    uint64_t queue_bytes, queue_bytes_max;           /* waiting now, and the most so far */
    uint64_t commit_us_max;
} journal_stat;

/* Open or create requests.db in dir (made with mode 0700 if missing), mode 0600.  cfg may be NULL.
 * HD_IO: no such place, no permission, or another process has it open (named).  HD_UNSUPPORTED: written by a newer
 * heddle (both schema versions named), left untouched.  HD_INVALID: a limit in cfg below its least value.
 * A damaged or foreign database is moved to requests.db.corrupt-N with a warning, and a new one begun; it is checked
 * whole at open (PRAGMA integrity_check).  Events of unfinished requests from the first damaged one on are dropped. */
hd_status journal_open(journal **out, const char *dir, const journal_config *cfg, hd_err *err);

/* Write what is queued and close.  HD_TIMEOUT after timeout_ms: the writer goes on alone and frees everything when it is
 * done; the directory stays locked until then.  HD_IO: closed, but a last write failed.  j may be NULL. */
hd_status journal_close(journal *j, uint32_t timeout_ms, hd_err *err);

/* Commit a request, or find the one with its key.  Waits for the disk; concurrent calls share commits.
 * HD_FULL: max_bytes, max_requests or max_running reached by unfinished requests, or the disk is full.  HD_INVALID: a
 * field out of its bounds (`after`: the conversation would be above its own), or the id is taken.  HD_NOTFOUND: the request
 * `after` is not there or of no conversation.  HD_IO, HD_NOMEM: not committed (it may turn up after a power cut). */
hd_status journal_accept(journal *j, const journal_request *r, journal_accepted *out, hd_err *err);

/* Queue events first, first + 1, ... of a choice; first is the number appended before (journal_entry.published after a
 * start).  Copied.  HD_OK: queued.  HD_FULL: the queue is full, the request has now lost durability.  HD_CLOSED: it lost it
 * before; ignored.  HD_INVALID: no running request of that order, a wrong index, or an event above its bound. */
hd_status journal_append(journal *j, uint64_t order, uint32_t choice, uint64_t first, const journal_event *ev, size_t n,
                         hd_err *err);

/* Queue the end, after all events queued before.  record is copied.  HD_FULL: no room for the record; the state alone
 * will be written, and the request has lost durability.  HD_INVALID: no running request of that order, state is RUNNING,
 * or the record is above its bound. */
hd_status journal_finish(journal *j, uint64_t order, journal_state state, int64_t finished, const void *record, size_t n,
                         hd_err *err);

/* Wait until what was queued before is committed (or lost).  HD_IO, HD_FULL, HD_NOMEM: the write failed. */
hd_status journal_flush(journal *j, hd_err *err);

/* Reads see what is committed.  HD_NOTFOUND; HD_FAILED: it is there but damaged.  *out is NULL on any error. */
hd_status journal_find(journal *j, const char *id, journal_entry **out, hd_err *err);
hd_status journal_find_by_key(journal *j, const uint8_t ns[JOURNAL_DIGEST], const void *key, size_t n_key,
                              journal_entry **out, hd_err *err);
void journal_entry_free(journal_entry *e);

/* Committed events from index `from` on, in order, until they end or cb returns false.  ev is borrowed for the call of
 * cb, which must not call the journal's reads and should not wait.  HD_FAILED: the event err->at is damaged or missing
 * though later ones exist; those before it were delivered. */
hd_status journal_read_events(journal *j, uint64_t order, uint32_t choice, uint64_t from,
                              bool (*cb)(void *ctx, uint64_t index, const journal_event *ev), void *ctx, hd_err *err);

/* Unfinished requests in admission order, until cb returns false.  e is borrowed.  cb may call the journal. */
hd_status journal_unfinished(journal *j, bool (*cb)(void *ctx, const journal_entry *e), void *ctx, hd_err *err);

/* How long the conversation up to and with a request is.  HD_NOTFOUND: it is of none. */
hd_status journal_conversation(journal *j, uint64_t order, uint32_t *n_turns, uint64_t *n_bytes, hd_err *err);
/* Its turns, the first one first, until cb returns false.  data is borrowed for the call of cb, which must not call the
 * journal's reads.  What was before a turn stays with it whatever becomes of the requests it came with. */
hd_status journal_turns(journal *j, uint64_t order, bool (*cb)(void *ctx, const void *data, size_t n), void *ctx, hd_err *err);

/* The response that has a name: the last accepted one that took it and finished.  HD_NOTFOUND, HD_FAILED. */
hd_status journal_named(journal *j, const uint8_t ns[JOURNAL_DIGEST], const char *name, char id[JOURNAL_ID_BYTES + 1], hd_err *err);
/* All names of ns behind `from` ("" before the first), in order of their bytes, until cb returns false.  As journal_turns. */
hd_status journal_names(journal *j, const uint8_t ns[JOURNAL_DIGEST], const char *from,
                        bool (*cb)(void *ctx, const char *name, const char *id, int64_t created), void *ctx, hd_err *err);

/* Delete a finished request, and its name.  Waits for the disk.  HD_NOTFOUND; HD_INVALID: it is running. */
hd_status journal_delete(journal *j, const char *id, hd_err *err);

/* Delete what finished before now - retain_seconds, then the oldest finished above max_requests and max_bytes.
 * Unfinished requests are never deleted.  *n (may be NULL): how many went.  Waits for the disk. */
hd_status journal_sweep(journal *j, int64_t now, uint64_t *n, hd_err *err);

void journal_stats(journal *j, journal_stat *out);

#endif
