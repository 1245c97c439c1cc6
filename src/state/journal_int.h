/* journal_int.h - the file of the request log, under journal.c: tables, transactions, reading.
 *
 * A db has two connections.  The writing one belongs to the opener and then to the writer thread, without a lock; the
 * reading one is used under r_mu.  In WAL mode neither waits for the other.  Schema: docs/durable.md. */
#ifndef HD_STATE_JOURNAL_INT_H
#define HD_STATE_JOURNAL_INT_H

#include "state/journal.h"

#include <pthread.h>
#include <sqlite3.h>

enum {
    DB_SCHEMA = 1,
    DB_APPLICATION = 0x68646a6c,  /* "hdjl", as PRAGMA application_id */
    DB_PAGE = 4096,
    DB_SLACK_BYTES = 1 << 20,     /* max_page_count lies this far above max_bytes: estimates are estimates */
    DB_ASIDE = 100,               /* damaged databases kept beside the new one */
    DB_BUSY_MS = 2000,            /* a reader's patience while the index of the WAL is rebuilt */
    DB_VACUUM_PAGES = 256,        /* given back per sweep step */
    DB_REQUEST_OVERHEAD = 3 * DB_PAGE, /* of a request beside its bytes: row, indices, ends of overflow chains */
    DB_EVENT_OVERHEAD = 64,
};

/* Statements of the writing connection, then of the reading one. */
#define DB_STATE_OF_R "(SELECT state FROM outcome o WHERE o.ord=r.ord)"
#define DB_ENTRY                                                                                                       \
    "SELECT r.ord,r.id,r.ns,r.key,r.body,r.identity,r.seed,r.n_choices,r.created,r.prompt,r.record,r.sum,"             \
    "o.state,o.events,o.finished,o.finish,o.sum FROM request r LEFT JOIN outcome o ON o.ord=r.ord "
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
    X(OLDEST, "SELECT ord,finished FROM outcome WHERE state<>0 ORDER BY finished,ord LIMIT 1")                         \
    X(DROP_REQUEST, "DELETE FROM request WHERE ord=?1")                                                                \
    X(DROP_OUTCOME, "DELETE FROM outcome WHERE ord=?1")                                                                \
    X(DROP_EVENTS, "DELETE FROM event WHERE ord=?1")                                                                   \
    X(TRIM, "DELETE FROM event WHERE ord=?1 AND choice=?2 AND idx>=?3")                                                \
    X(PAGES, "PRAGMA page_count")                                                                                      \
    X(UNUSED, "PRAGMA freelist_count")                                                                                 \
    X(R_BY_ID, DB_ENTRY "WHERE r.id=?1")                                                                               \
    X(R_BY_KEY, DB_ENTRY "WHERE r.ns=?1 AND r.key=?2")                                                                 \
    X(R_BY_ORDER, DB_ENTRY "WHERE r.ord=?1")                                                                           \
    X(R_NEXT_RUNNING, "SELECT ord FROM outcome WHERE state=0 AND ord>?1 ORDER BY ord LIMIT 1")                         \
    X(R_PUBLISHED, "SELECT max(idx) FROM event WHERE ord=?1 AND choice=?2")                                            \
    X(R_EVENTS, "SELECT idx,token,text,extra,sum FROM event WHERE ord=?1 AND choice=?2 AND idx>=?3 ORDER BY idx")

typedef enum {
#define X(id, sql) DB_##id,
    DB_STMTS(X)
#undef X
    N_DB_STMTS
} db_stmt;

typedef struct {
    sqlite3 *w, *r;
    pthread_mutex_t r_mu; /* guards r and the reading statements */
    bool r_mu_made;
    sqlite3_stmt *st[N_DB_STMTS];
    uint64_t max_bytes;
    uint64_t n_requests, n_before, n_marked; /* now; when the transaction, the mark began */
    bool moved_aside;
} db;

/* dir exists and is locked by us.  On failure the db is closed. */
hd_status db_open(db *d, const char *dir, const char *vfs, uint64_t max_bytes, hd_err *err);
void db_close(db *d); /* accepts a half-open one */

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

hd_status db_put_request(db *d, const journal_request *r, uint64_t *order, hd_err *err);
hd_status db_put_event(db *d, uint64_t order, uint32_t choice, uint64_t index, const journal_event *ev, hd_err *err);
/* events: how many the request has in all its choices once it has ended; DB_LOST: it lost durability. */
enum { DB_LOST = -1 };
hd_status db_put_outcome(db *d, uint64_t order, journal_state state, int64_t events, int64_t finished, const void *finish,
                         size_t n, hd_err *err);
hd_status db_drop(db *d, uint64_t order, hd_err *err);
hd_status db_oldest(db *d, uint64_t *order, int64_t *finished, hd_err *err); /* HD_NOTFOUND: nothing has finished */
hd_status db_used(db *d, uint64_t *bytes, hd_err *err);
hd_status db_trim(db *d, uint64_t order, uint32_t choice, uint64_t index, hd_err *err); /* drop events >= index */
hd_status db_give_back(db *d, hd_err *err); /* some free pages to the file system, if there are many */

/* Reading; these take r_mu. */
hd_status db_find_id(db *d, const char *id, journal_entry **out, hd_err *err);
hd_status db_find_key(db *d, const uint8_t *ns, const void *key, size_t n_key, journal_entry **out, hd_err *err);
hd_status db_find_order(db *d, uint64_t order, journal_entry **out, hd_err *err);
/* The first running request after `after`.  HD_NOTFOUND: none. */
hd_status db_next_running(db *d, uint64_t after, uint64_t *order, hd_err *err);
/* As journal_read_events; *next: the index after the last one delivered. */
hd_status db_read_events(db *d, uint64_t order, uint32_t choice, uint64_t from,
                         bool (*cb)(void *, uint64_t, const journal_event *), void *ctx, uint64_t *next, hd_err *err);

#endif
