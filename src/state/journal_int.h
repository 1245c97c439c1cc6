/* journal_int.h - the file of the request log, under journal.c: tables, transactions, reading.  journal_db.c has requests and
 * events, journal_turns.c conversations and names.
 *
 * A db has two connections.  The writing one belongs to the opener and then to the writer thread, without a lock; the
 * reading one is used under r_mu.  In WAL mode neither waits for the other.  Schema: docs/durable.md. */
#ifndef HD_STATE_JOURNAL_INT_H
#define HD_STATE_JOURNAL_INT_H

#include "state/journal.h"

#include <pthread.h>
#include <sqlite3.h>
#include <sys/types.h>

enum {
    DB_SCHEMA = 2, /* 1 had no conversations and names; it is brought up when it is opened */
    DB_APPLICATION = 0x68646a6c,  /* "hdjl", as PRAGMA application_id */
    DB_PAGE = 4096,
    DB_SLACK_BYTES = 1 << 20,     /* max_page_count lies this far above max_bytes: estimates are estimates */
    DB_ASIDE = 100,               /* damaged databases kept beside the new one */
    DB_BUSY_MS = 2000,            /* a reader's patience while the index of the WAL is rebuilt */
    DB_VACUUM_PAGES = 256,        /* given back per sweep step */
    DB_REQUEST_OVERHEAD = 3 * DB_PAGE, /* of a request beside its bytes: row, indices, ends of overflow chains */
    DB_TURN_OVERHEAD = DB_PAGE,        /* likewise of a turn and a name */
    DB_EVENT_OVERHEAD = 64,
};

/* Statements of the writing connection, then of the reading one. */
#define DB_STATE_OF_R "(SELECT state FROM outcome o WHERE o.ord=r.ord)"
#define DB_ENTRY                                                                                                       \
    "SELECT r.ord,r.id,r.ns,r.key,r.body,r.identity,r.seed,r.n_choices,r.created,r.prompt,r.record,r.sum,"             \
    "o.state,o.events,o.finished,o.finish,o.sum FROM request r LEFT JOIN outcome o ON o.ord=r.ord "
#define DB_NAMES                                                                                                       \
    "SELECT l.ord,l.ns,l.name,l.held,l.sum,r.id,r.created FROM label l JOIN request r ON r.ord=l.ord WHERE l.ns=?1 AND "
#define DB_STMTS(X)                                                                                                    \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                                        \
    X(COMMIT, "COMMIT")                                                                                                \
    X(ROLLBACK, "ROLLBACK")                                                                                            \
    X(MARK, "SAVEPOINT mark")                                                                                          \
    X(MARK_UNDO, "ROLLBACK TO mark")                                                                                   \
    X(MARK_END, "RELEASE mark")                                                                                        \
    X(PUT_REQUEST, "INSERT INTO request(id,ns,key,body,identity,seed,n_choices,created,prompt,record,sum)"             \
                   " VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)")                                                      \
    X(PUT_OUTCOME, "INSERT OR REPLACE INTO outcome(ord,state,events,finished,finish,sum) VALUES(?1,?2,?3,?4,?5,?6)")   \
    X(PUT_EVENT, "INSERT INTO event(ord,choice,idx,token,text,extra,sum) VALUES(?1,?2,?3,?4,?5,?6,?7)")                \
    X(BY_KEY, "SELECT ord,id,body," DB_STATE_OF_R " FROM request r WHERE ns=?1 AND key=?2")                            \
    X(BY_ID, "SELECT ord,id,body," DB_STATE_OF_R " FROM request r WHERE id=?1")                                        \
    X(BY_ORDER, "SELECT ord,id,body," DB_STATE_OF_R " FROM request r WHERE ord=?1")                                    \
    X(OLDEST, "SELECT ord,finished FROM outcome WHERE state<>0 ORDER BY finished,ord LIMIT 1")                         \
    X(DROP_REQUEST, "DELETE FROM request WHERE ord=?1")                                                                \
    X(DROP_OUTCOME, "DELETE FROM outcome WHERE ord=?1")                                                                \
    X(DROP_EVENTS, "DELETE FROM event WHERE ord=?1")                                                                   \
    X(TRIM, "DELETE FROM event WHERE ord=?1 AND choice=?2 AND idx>=?3")                                                \
    X(PAGES, "PRAGMA page_count")                                                                                      \
    X(UNUSED, "PRAGMA freelist_count")                                                                                 \
    X(PUT_TURN, "INSERT INTO turn(ord,prev,depth,bytes,data,sum) VALUES(?1,?2,?3,?4,?5,?6)")                           \
    X(TURN, "SELECT prev,depth,bytes FROM turn WHERE ord=?1")                                                          \
    X(TURN_NEEDED, "SELECT EXISTS(SELECT 1 FROM request WHERE ord=?1)"                                                 \
                   " OR EXISTS(SELECT 1 FROM turn WHERE prev=?1 AND prev<>0)")                                         \
    X(DROP_TURN, "DELETE FROM turn WHERE ord=?1")                                                                      \
    X(PUT_LABEL, "INSERT OR REPLACE INTO label(ord,ns,name,held,sum) VALUES(?1,?2,?3,?4,?5)")                          \
    X(LABEL, "SELECT ord,ns,name,held,sum FROM label WHERE ord=?1")                                                    \
    X(HOLDER, "SELECT ord FROM label WHERE ns=?1 AND name=?2 AND held=1")                                              \
    X(DROP_LABEL, "DELETE FROM label WHERE ord=?1")                                                                    \
    X(R_BY_ID, DB_ENTRY "WHERE r.id=?1")                                                                               \
    X(R_BY_KEY, DB_ENTRY "WHERE r.ns=?1 AND r.key=?2")                                                                 \
    X(R_BY_ORDER, DB_ENTRY "WHERE r.ord=?1")                                                                           \
    X(R_NEXT_RUNNING, "SELECT ord FROM outcome WHERE state=0 AND ord>?1 ORDER BY ord LIMIT 1")                         \
    X(R_PUBLISHED, "SELECT max(idx) FROM event WHERE ord=?1 AND choice=?2")                                            \
    X(R_EVENTS, "SELECT idx,token,text,extra,sum FROM event WHERE ord=?1 AND choice=?2 AND idx>=?3 ORDER BY idx")       \
    X(R_BEGIN, "BEGIN")                                                                                                \
    X(R_END, "COMMIT")                                                                                                 \
    X(R_TURN_HEAD, "SELECT prev,depth,bytes FROM turn WHERE ord=?1")                                                   \
    X(R_TURN, "SELECT prev,depth,bytes,data,sum FROM turn WHERE ord=?1")                                               \
    X(R_NAMED, DB_NAMES "l.name=?2 AND l.held=1")                                                                      \
    X(R_NAMES, DB_NAMES "l.name>?2 AND l.held=1 ORDER BY l.name")

typedef enum {
#define X(id, sql) DB_##id,
    DB_STMTS(X)
#undef X
    N_DB_STMTS
} db_stmt;

/* Where the files were when they were opened: what is written to a file without a name is lost. */
enum { DB_FILES = 3 };
typedef struct {
    char base[4100]; /* "" : not looked at */
    dev_t dev[DB_FILES];
    ino_t ino[DB_FILES];
} db_place;

typedef struct {
    sqlite3 *w, *r;
    pthread_mutex_t r_mu; /* guards r and the reading statements */
    bool r_mu_made;
    sqlite3_stmt *st[N_DB_STMTS];
    uint64_t max_bytes;
    uint64_t n_requests, n_before, n_marked; /* now; when the transaction, the mark began */
    uint64_t keep_turn;                      /* this request's turn is about to be gone on from: it stays when the request goes */
    bool moved_aside;
    db_place place;
} db;

/* dir exists and is locked by us.  On failure the db is closed. */
hd_status db_open(db *d, const char *dir, const char *vfs, uint64_t max_bytes, hd_err *err);
void db_close(db *d); /* accepts a half-open one */
/* Note where the files are, and look whether they are still there: HD_IO when one was moved or removed. */
void db_note_place(db *d, const char *dir);
hd_status db_in_place(const db *d, hd_err *err);

/* Writing.  Any failure inside a transaction means: db_rollback, nothing of it happened. */
hd_status db_begin(db *d, hd_err *err);
hd_status db_commit(db *d, hd_err *err);
void db_rollback(db *d);
/* A part of a transaction that can be taken back alone. */
hd_status db_mark(db *d, hd_err *err);
hd_status db_mark_end(db *d, bool undo, hd_err *err);

typedef struct {
    uint64_t order;
    journal_state state;
    char id[JOURNAL_ID_BYTES + 1];
    uint8_t body[JOURNAL_DIGEST];
} db_found;
/* HD_NOTFOUND: not there; err is left alone. */
hd_status db_by_key(db *d, const uint8_t *ns, const void *key, size_t n_key, db_found *out, hd_err *err);
hd_status db_by_id(db *d, const char *id, db_found *out, hd_err *err);
hd_status db_by_order(db *d, uint64_t order, db_found *out, hd_err *err);

hd_status db_put_request(db *d, const journal_request *r, uint64_t *order, hd_err *err);
hd_status db_put_event(db *d, uint64_t order, uint32_t choice, uint64_t index, const journal_event *ev, hd_err *err);
/* events: how many the request has in all its choices once it has ended; DB_LOST: it lost durability. */
enum { DB_LOST = -1 };
hd_status db_put_outcome(db *d, uint64_t order, journal_state state, int64_t events, int64_t finished, const void *finish,
                         size_t n, hd_err *err);
hd_status db_drop(db *d, uint64_t order, hd_err *err); /* with its name, and what nobody needs any more of its conversation */
hd_status db_oldest(db *d, uint64_t *order, int64_t *finished, hd_err *err); /* HD_NOTFOUND: nothing has finished */
hd_status db_used(db *d, uint64_t *bytes, hd_err *err);
hd_status db_trim(db *d, uint64_t order, uint32_t choice, uint64_t index, hd_err *err); /* drop events >= index */
hd_status db_give_back(db *d, hd_err *err); /* some free pages to the file system, if there are many */

/* Conversations and names.  A turn has its request's order.  It stays while the request or a turn behind it does. */
typedef struct {
    uint64_t prev;  /* order of the turn before; 0: none */
    uint64_t depth; /* turns up to this one */
    uint64_t bytes; /* of all of them */
} db_turn;
hd_status db_turn_look(db *d, uint64_t order, db_turn *out, hd_err *err); /* HD_NOTFOUND: there is none; err is left alone */
hd_status db_put_turn(db *d, uint64_t order, const db_turn *before, uint64_t prev, const void *data, size_t n, hd_err *err);
hd_status db_release_turn(db *d, uint64_t order, hd_err *err); /* its request has gone */
hd_status db_put_label(db *d, uint64_t order, const uint8_t *ns, const char *name, hd_err *err); /* wanted */
/* Its request has finished: it takes the name that it wants, if it wants one and no later request has it. */
hd_status db_take_name(db *d, uint64_t order, hd_err *err);
hd_status db_drop_label(db *d, uint64_t order, hd_err *err);

/* Reading; these take r_mu. */
hd_status db_conversation(db *d, uint64_t order, db_turn *out, hd_err *err);
hd_status db_read_turns(db *d, uint64_t order, bool (*cb)(void *, const void *, size_t), void *ctx, hd_err *err);
hd_status db_named(db *d, const uint8_t *ns, const char *name, char id[JOURNAL_ID_BYTES + 1], hd_err *err);
hd_status db_names(db *d, const uint8_t *ns, const char *from, bool (*cb)(void *, const char *, const char *, int64_t), void *ctx,
                   hd_err *err);
hd_status db_find_id(db *d, const char *id, journal_entry **out, hd_err *err);
hd_status db_find_key(db *d, const uint8_t *ns, const void *key, size_t n_key, journal_entry **out, hd_err *err);
hd_status db_find_order(db *d, uint64_t order, journal_entry **out, hd_err *err);
/* The first running request after `after`.  HD_NOTFOUND: none. */
hd_status db_next_running(db *d, uint64_t after, uint64_t *order, hd_err *err);
/* As journal_read_events; *next: the index after the last one delivered. */
hd_status db_read_events(db *d, uint64_t order, uint32_t choice, uint64_t from,
                         bool (*cb)(void *, uint64_t, const journal_event *), void *ctx, uint64_t *next, hd_err *err);

/* ---- between journal_db.c and journal_turns.c ---- */

hd_status db_failed(sqlite3 *c, int rc, const char *what, hd_err *err); /* the failure of a call on c that returned rc */
void db_bind(sqlite3_stmt *s, int i, const void *p, size_t n);          /* the bytes must outlive the step */
/* Step a statement of the writing connection that returns no row. */
hd_status db_done(db *d, db_stmt i, const char *what, hd_err *err);
hd_status db_with_order(db *d, db_stmt i, uint64_t order, const char *what, hd_err *err);
static inline void db_reset(sqlite3_stmt *s) { sqlite3_reset(s), sqlite3_clear_bindings(s); }
/* A chain of checksums over parts; kind: which table. */
typedef struct {
    uint64_t h;
} db_sum;
void db_sum_add(db_sum *s, const void *p, size_t n);

#endif
