/* journal_db.c - see journal_int.h.
 *
 * What is true of the file: each row carries a checksum over its contents and its place, so that a row that was changed
 * or moved is seen even where SQLite cannot see it.  A request has exactly one outcome row.  Events of a choice are
 * numbered 0, 1, 2, ... without a gap.
 *
 * WAL with synchronous=FULL: a commit is one append to the WAL and one sync of it.  A commit that fails leaves frames
 * that the next one overwrites; should the machine die between the two, the failed transaction may count after all.
 * Read: opening, then one transaction's statements, then reading. */
#include "state/journal_int.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char *const sql[N_DB_STMTS] = {
#define X(id, text) text,
    DB_STMTS(X)
#undef X
};

/* id, ns, key, ... are BLOBs: compared byte for byte.  seed and sum are 64 bits in SQLite's signed integers. */
static const char schema[] =
    "CREATE TABLE request(ord INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL, ns BLOB NOT NULL, key BLOB,"
    " body BLOB NOT NULL, identity BLOB NOT NULL, seed INTEGER NOT NULL, n_choices INTEGER NOT NULL,"
    " created INTEGER NOT NULL, prompt BLOB NOT NULL, record BLOB NOT NULL, sum INTEGER NOT NULL);"
    "CREATE UNIQUE INDEX request_id ON request(id);"
    "CREATE UNIQUE INDEX request_key ON request(ns,key) WHERE key IS NOT NULL;"
    "CREATE TABLE outcome(ord INTEGER PRIMARY KEY, state INTEGER NOT NULL, events INTEGER NOT NULL,"
    " finished INTEGER NOT NULL, finish BLOB, sum INTEGER NOT NULL);"
    "CREATE INDEX outcome_running ON outcome(ord) WHERE state=0;"
    "CREATE INDEX outcome_ended ON outcome(finished,ord) WHERE state<>0;"
    "CREATE TABLE event(ord INTEGER NOT NULL, choice INTEGER NOT NULL, idx INTEGER NOT NULL, token INTEGER NOT NULL,"
    " text BLOB NOT NULL, extra BLOB NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY(ord,choice,idx)) WITHOUT ROWID;";
/* What schema 2 has beside.  held: 1 where the response has the name, 0 where it will when it has finished. */
static const char schema_2[] =
    "CREATE TABLE IF NOT EXISTS turn(ord INTEGER PRIMARY KEY, prev INTEGER NOT NULL, depth INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " data BLOB NOT NULL, sum INTEGER NOT NULL);"
    "CREATE INDEX IF NOT EXISTS turn_prev ON turn(prev) WHERE prev<>0;"
    "CREATE TABLE IF NOT EXISTS label(ord INTEGER PRIMARY KEY, ns BLOB NOT NULL, name BLOB NOT NULL, held INTEGER NOT NULL,"
    " sum INTEGER NOT NULL);"
    "CREATE UNIQUE INDEX IF NOT EXISTS label_held ON label(ns,name) WHERE held=1;";

/* ---- errors ---- */

static hd_status status_of(int rc) {
    switch (rc & 0xff) {
    case SQLITE_NOMEM: return HD_NOMEM;
    case SQLITE_FULL: return HD_FULL;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return HD_FAILED;
    default: return HD_IO;
    }
}

hd_status db_failed(sqlite3 *c, int rc, const char *what, hd_err *err) {
    int os = c ? sqlite3_system_errno(c) : 0;
    return hd_fail(err, status_of(rc), "request log: %s: %s%s%s", what, sqlite3_errstr(rc), os ? ": " : "",
                   os ? strerror(os) : "");
}

/* ---- checksums ---- */

void db_sum_add(db_sum *s, const void *p, size_t n) {
    s->h = XXH3_64bits_withSeed(p ? p : "", n, s->h ^ (uint64_t)n * 0x9e3779b97f4a7c15u);
}

static int64_t sum_request(const journal_request *r) {
    db_sum s = {1};
    uint64_t head[3] = {r->seed, r->n_choices, (uint64_t)r->created};
    db_sum_add(&s, r->id, strlen(r->id));
    db_sum_add(&s, r->ns, sizeof r->ns);
    db_sum_add(&s, r->key, r->key ? r->n_key : 0);
    db_sum_add(&s, r->body, sizeof r->body);
    db_sum_add(&s, r->identity, sizeof r->identity);
    db_sum_add(&s, head, sizeof head);
    db_sum_add(&s, r->prompt, r->n_prompt * sizeof *r->prompt);
    db_sum_add(&s, r->record, r->n_record);
    return (int64_t)s.h;
}

static int64_t sum_outcome(uint64_t order, journal_state state, int64_t events, int64_t finished, const void *p, size_t n) {
    db_sum s = {2};
    uint64_t head[4] = {order, (uint64_t)state, (uint64_t)events, (uint64_t)finished};
    db_sum_add(&s, head, sizeof head);
    db_sum_add(&s, p, n);
    return (int64_t)s.h;
}

static int64_t sum_event(uint64_t order, uint32_t choice, uint64_t index, const journal_event *ev) {
    db_sum s = {3};
    uint64_t head[4] = {order, choice, index, (uint32_t)ev->token};
    db_sum_add(&s, head, sizeof head);
    db_sum_add(&s, ev->text, ev->n_text);
    db_sum_add(&s, ev->extra, ev->n_extra);
    return (int64_t)s.h;
}

/* ---- opening ---- */

static int one_int(sqlite3 *c, const char *text, int64_t *out) {
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(c, text, -1, &s, NULL);
    *out = 0;
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        *out = sqlite3_column_int64(s, 0);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* Run a statement whose one row of text must be `want`.  SQLITE_CORRUPT: it was not. */
static int one_text(sqlite3 *c, const char *text, const char *want) {
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(c, text, -1, &s, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        const unsigned char *got = sqlite3_column_text(s, 0);
        rc = !got ? SQLITE_NOMEM : strcmp((const char *)got, want) ? SQLITE_CORRUPT : SQLITE_OK;
    }
    sqlite3_finalize(s);
    return rc == SQLITE_DONE ? SQLITE_CORRUPT : rc;
}

static hd_status connect_to(sqlite3 **c, const char *path, const char *vfs, int flags, hd_err *err) {
    int rc = sqlite3_open_v2(path, c, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, vfs);
    if (rc == SQLITE_OK) rc = sqlite3_extended_result_codes(*c, 1);
    if (rc == SQLITE_OK) rc = sqlite3_busy_timeout(*c, DB_BUSY_MS);
    /* The file may be somebody else's: nothing in its schema is run. */
    if (rc == SQLITE_OK) rc = sqlite3_db_config(*c, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_db_config(*c, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_db_config(*c, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_db_config(*c, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    if (rc == SQLITE_OK) rc = sqlite3_exec(*c, "PRAGMA temp_store=MEMORY", NULL, NULL, NULL);
    return rc == SQLITE_OK ? HD_OK : db_failed(*c, rc, "opening", err);
}

/* From schema 1: all of it or nothing. */
static hd_status bring_up(db *d, hd_err *err) {
    char text[64];
    int rc;
    snprintf(text, sizeof text, "PRAGMA user_version=%d; COMMIT", DB_SCHEMA);
    if ((rc = sqlite3_exec(d->w, "BEGIN IMMEDIATE", NULL, NULL, NULL)) || (rc = sqlite3_exec(d->w, schema_2, NULL, NULL, NULL)) ||
        (rc = sqlite3_exec(d->w, text, NULL, NULL, NULL)))
        return db_failed(d->w, rc, "bringing schema 1 up", err);
    return HD_OK;
}

/* HD_FAILED: damaged or foreign, and said so in err. */
static hd_status try_open(db *d, const char *path, const char *vfs, hd_err *err) {
    int64_t version, application, tables;
    char text[96];
    int rc;
    hd_status st = connect_to(&d->w, path, vfs, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, err);
    if (st) return st;
    if ((rc = one_int(d->w, "PRAGMA user_version", &version)) || (rc = one_int(d->w, "PRAGMA application_id", &application)) ||
        (rc = one_int(d->w, "SELECT count(*) FROM sqlite_schema", &tables))) {
        if (rc == SQLITE_ERROR) /* its head names a file format that SQLite does not know */
            return hd_fail(err, HD_FAILED, "request log: %s: %s", path, sqlite3_errmsg(d->w));
        return db_failed(d->w, rc, "reading the head", err);
    }
    if (tables == 0 && version == 0) {
        if ((rc = sqlite3_exec(d->w, "PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL", NULL, NULL, NULL)))
            return db_failed(d->w, rc, "a new database", err);
    } else if (application != DB_APPLICATION) {
        return hd_fail(err, HD_FAILED, "request log: %s is a database of something else", path);
    } else if (version > DB_SCHEMA) {
        return hd_fail(err, HD_UNSUPPORTED, "request log: %s has schema version %lld, this heddle knows up to %d: use the newer "
                       "heddle or another state directory", path, (long long)version, DB_SCHEMA);
    } else if (version < 1) {
        return hd_fail(err, HD_FAILED, "request log: %s has schema version %lld, which never was", path, (long long)version);
    }
    /* EXTRA is FULL, and the directory is synced after the rollback journal of the change to WAL was deleted: should that
     * journal come back after a power cut, it would take the database back to nothing, under a WAL that counts on it. */
    if ((rc = sqlite3_exec(d->w,
                           "PRAGMA synchronous=EXTRA; PRAGMA secure_delete=ON; PRAGMA journal_size_limit=8388608;"
                           "PRAGMA wal_autocheckpoint=1000",
                           NULL, NULL, NULL)))
        return db_failed(d->w, rc, "settings", err);
    if ((rc = one_text(d->w, "PRAGMA journal_mode=WAL", "wal"))) {
        if (rc == SQLITE_CORRUPT)
            return hd_fail(err, HD_IO, "request log: %s: this file system cannot do WAL (shared memory, locks)", path);
        return db_failed(d->w, rc, "WAL", err);
    }
    if (tables == 0 && version == 0) {
        snprintf(text, sizeof text, "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT", DB_APPLICATION, DB_SCHEMA);
        if ((rc = sqlite3_exec(d->w, "BEGIN IMMEDIATE", NULL, NULL, NULL)) ||
            (rc = sqlite3_exec(d->w, schema, NULL, NULL, NULL)) || (rc = sqlite3_exec(d->w, schema_2, NULL, NULL, NULL)) ||
            (rc = sqlite3_exec(d->w, text, NULL, NULL, NULL)))
            return db_failed(d->w, rc, "creating tables", err);
    } else if ((rc = one_text(d->w, "PRAGMA integrity_check(1)", "ok"))) {
        return db_failed(d->w, rc, "checking", err);
    } else if (version < DB_SCHEMA && (st = bring_up(d, err))) {
        return st;
    }
    snprintf(text, sizeof text, "PRAGMA max_page_count=%llu", (unsigned long long)((d->max_bytes + DB_SLACK_BYTES) / DB_PAGE));
    if ((rc = sqlite3_exec(d->w, text, NULL, NULL, NULL))) return db_failed(d->w, rc, "max_page_count", err);
    if ((st = connect_to(&d->r, path, vfs, SQLITE_OPEN_READWRITE, err))) return st;
    for (int i = 0; i < N_DB_STMTS; i++) {
        sqlite3 *c = i >= DB_R_BY_ID ? d->r : d->w;
        rc = sqlite3_prepare_v3(c, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &d->st[i], NULL);
        if (rc == SQLITE_ERROR) /* a table or column is missing */
            return hd_fail(err, HD_FAILED, "request log: %s lacks a table or column: %s", path, sqlite3_errmsg(c));
        if (rc) return db_failed(c, rc, "preparing", err);
    }
    if ((rc = one_int(d->w, "SELECT count(*) FROM outcome", &tables))) return db_failed(d->w, rc, "counting", err);
    d->n_requests = (uint64_t)tables;
    return HD_OK;
}

static void disconnect(db *d) {
    for (int i = 0; i < N_DB_STMTS; i++) {
        sqlite3_finalize(d->st[i]);
        d->st[i] = NULL;
    }
    sqlite3_close(d->r);
    sqlite3_close(d->w); /* last: it takes the WAL into the database */
    d->r = d->w = NULL;
}

/* Out of the way, under a name that is free.  Its WAL goes with it; the index of the WAL is rebuilt anyway. */
static hd_status move_aside(const char *path, hd_err *err) {
    char to[4200], from[4200];
    struct stat sb;
    hd_err why = *err;
    for (int i = 1; i <= DB_ASIDE; i++) {
        snprintf(to, sizeof to, "%s.corrupt-%d", path, i);
        if (lstat(to, &sb) == 0) continue;
        if (rename(path, to) != 0)
            return hd_fail(err, HD_IO, "%s; and it cannot be moved aside: %s", why.msg, strerror(errno));
        snprintf(from, sizeof from, "%s-wal", path);
        snprintf(to, sizeof to, "%s.corrupt-%d-wal", path, i);
        if (rename(from, to) != 0 && errno != ENOENT)
            return hd_fail(err, HD_IO, "%s; and its WAL cannot be moved aside: %s", why.msg, strerror(errno));
        snprintf(from, sizeof from, "%s-shm", path);
        if (unlink(from) != 0 && errno != ENOENT)
            return hd_fail(err, HD_IO, "%s; and %s cannot be removed: %s", why.msg, from, strerror(errno));
        hd_log(HD_LOG_WARN, "%s; moved aside as requests.db.corrupt-%d, a new log is begun: earlier durable requests are gone",
               why.msg, i);
        return HD_OK;
    }
    return hd_fail(err, HD_FULL, "%s; and %d damaged logs are kept already: remove some", why.msg, DB_ASIDE);
}

/* The file with its mode, before SQLite makes it with another; -wal and -shm get the same mode from it. */
static hd_status make_file(const char *dir, const char *path, const char *vfs, hd_err *err) {
    struct stat sb;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600), at;
    if (fd < 0) return hd_fail(err, HD_IO, "request log: %s: %s", path, strerror(errno));
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        close(fd);
        return hd_fail(err, HD_IO, "request log: %s is not a plain file", path);
    }
    if ((sb.st_mode & 07777) != 0600 && fchmod(fd, 0600) != 0) {
        close(fd);
        return hd_fail(err, HD_IO, "request log: %s can be read by others, and: %s", path, strerror(errno));
    }
    close(fd);
    if (sb.st_size > 0 || vfs) return HD_OK; /* named before; or not a file of ours */
    at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* the name too survives a power cut */
    if (at < 0 || fsync(at) != 0) {
        int e = errno;
        if (at >= 0) close(at);
        return hd_fail(err, HD_IO, "request log: %s: %s", dir, strerror(e));
    }
    close(at);
    return HD_OK;
}

hd_status db_open(db *d, const char *dir, const char *vfs, uint64_t max_bytes, hd_err *err) {
    char path[4100];
    hd_err e = {0};
    hd_status st;
    memset(d, 0, sizeof *d);
    d->max_bytes = max_bytes;
    if (pthread_mutex_init(&d->r_mu, NULL)) return hd_fail(err, HD_NOMEM, "request log: no mutex");
    d->r_mu_made = true;
    if (snprintf(path, sizeof path, "%s/requests.db", dir) >= (int)sizeof path) {
        st = hd_fail(err, HD_INVALID, "request log: the path of the state directory is too long");
        goto out;
    }
    if ((st = make_file(dir, path, vfs, &e))) goto out;
    st = try_open(d, path, vfs, &e);
    if (st == HD_FAILED) {
        disconnect(d);
        if ((st = move_aside(path, &e)) || (st = make_file(dir, path, vfs, &e))) goto out;
        d->moved_aside = true;
        st = try_open(d, path, vfs, &e);
    }
out:
    if (st) {
        if (err && e.code) *err = e;
        db_close(d);
    }
    return st;
}

void db_close(db *d) {
    disconnect(d);
    if (d->r_mu_made) pthread_mutex_destroy(&d->r_mu);
    d->r_mu_made = false;
}

static const char *const db_files[DB_FILES] = {".db", ".db-wal", ".lock"};

static bool look(const db_place *p, int i, struct stat *sb) {
    char path[sizeof p->base + 16];
    snprintf(path, sizeof path, "%s%s", p->base, db_files[i]);
    return stat(path, sb) == 0;
}

void db_note_place(db *d, const char *dir) {
    db_place *p = &d->place;
    struct stat sb;
    snprintf(p->base, sizeof p->base, "%s/requests", dir);
    for (int i = 0; i < DB_FILES; i++) {
        if (!look(p, i, &sb)) p->base[0] = 0; /* a file system of another kind */
        else p->dev[i] = sb.st_dev, p->ino[i] = sb.st_ino;
    }
}

hd_status db_in_place(const db *d, hd_err *err) {
    const db_place *p = &d->place;
    struct stat sb;
    for (int i = 0; i < DB_FILES && p->base[0]; i++)
        if (!look(p, i, &sb) || sb.st_dev != p->dev[i] || sb.st_ino != p->ino[i])
            return hd_fail(err, HD_IO, "request log: requests%s in the state directory was moved or removed while it is in use; a restart begins a new log",
                           db_files[i]);
    return HD_OK;
}

/* ---- statements ---- */

void db_bind(sqlite3_stmt *s, int i, const void *p, size_t n) {
    sqlite3_bind_blob64(s, i, p && n ? p : "", n, SQLITE_STATIC);
}

hd_status db_done(db *d, db_stmt i, const char *what, hd_err *err) {
    int rc = sqlite3_step(d->st[i]);
    sqlite3_reset(d->st[i]);
    sqlite3_clear_bindings(d->st[i]);
    return rc == SQLITE_DONE ? HD_OK : db_failed(d->w, rc, what, err);
}

hd_status db_with_order(db *d, db_stmt i, uint64_t order, const char *what, hd_err *err) {
    sqlite3_bind_int64(d->st[i], 1, (int64_t)order);
    return db_done(d, i, what, err);
}

hd_status db_begin(db *d, hd_err *err) {
    d->n_before = d->n_requests;
    return db_done(d, DB_BEGIN, "begin", err);
}

hd_status db_commit(db *d, hd_err *err) { return db_done(d, DB_COMMIT, "commit", err); }

void db_rollback(db *d) {
    d->n_requests = d->n_before;
    if (!sqlite3_get_autocommit(d->w)) db_done(d, DB_ROLLBACK, "rollback", NULL);
}

hd_status db_mark(db *d, hd_err *err) {
    d->n_marked = d->n_requests;
    return db_done(d, DB_MARK, "a savepoint", err);
}

hd_status db_mark_end(db *d, bool undo, hd_err *err) {
    hd_status st = undo ? db_done(d, DB_MARK_UNDO, "a savepoint", err) : HD_OK;
    if (undo) d->n_requests = d->n_marked;
    return st ? st : db_done(d, DB_MARK_END, "a savepoint", err);
}

static hd_status found(db *d, db_stmt i, db_found *out, hd_err *err) {
    sqlite3_stmt *s = d->st[i];
    int rc = sqlite3_step(s);
    hd_status st = HD_OK;
    if (rc == SQLITE_DONE) {
        st = HD_NOTFOUND;
    } else if (rc != SQLITE_ROW) {
        st = db_failed(d->w, rc, "looking up", err);
    } else {
        int n_id = sqlite3_column_bytes(s, 1), n_body = sqlite3_column_bytes(s, 2), state = sqlite3_column_int(s, 3);
        const void *id = sqlite3_column_blob(s, 1), *body = sqlite3_column_blob(s, 2);
        memset(out, 0, sizeof *out);
        if (!id || n_id > JOURNAL_ID_BYTES || !body || n_body != JOURNAL_DIGEST || state < 0 || state > JOURNAL_CANCELLED) {
            st = hd_fail(err, HD_FAILED, "request log: request %lld is damaged", (long long)sqlite3_column_int64(s, 0));
        } else {
            out->order = (uint64_t)sqlite3_column_int64(s, 0);
            out->state = (journal_state)state;
            memcpy(out->id, id, (size_t)n_id);
            memcpy(out->body, body, JOURNAL_DIGEST);
        }
    }
    sqlite3_reset(s);
    sqlite3_clear_bindings(s);
    return st;
}

hd_status db_by_key(db *d, const uint8_t *ns, const void *key, size_t n_key, db_found *out, hd_err *err) {
    db_bind(d->st[DB_BY_KEY], 1, ns, JOURNAL_DIGEST);
    db_bind(d->st[DB_BY_KEY], 2, key, n_key);
    return found(d, DB_BY_KEY, out, err);
}

hd_status db_by_id(db *d, const char *id, db_found *out, hd_err *err) {
    db_bind(d->st[DB_BY_ID], 1, id, strlen(id));
    return found(d, DB_BY_ID, out, err);
}

hd_status db_by_order(db *d, uint64_t order, db_found *out, hd_err *err) {
    sqlite3_bind_int64(d->st[DB_BY_ORDER], 1, (int64_t)order);
    return found(d, DB_BY_ORDER, out, err);
}

hd_status db_put_request(db *d, const journal_request *r, uint64_t *order, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_PUT_REQUEST];
    hd_status st;
    db_turn before = {0};
    if (r->turn && r->after && (st = db_turn_look(d, r->after, &before, err))) return st;
    db_bind(s, 1, r->id, strlen(r->id));
    db_bind(s, 2, r->ns, JOURNAL_DIGEST);
    if (r->key) db_bind(s, 3, r->key, r->n_key);
    db_bind(s, 4, r->body, JOURNAL_DIGEST);
    db_bind(s, 5, r->identity, JOURNAL_DIGEST);
    sqlite3_bind_int64(s, 6, (int64_t)r->seed);
    sqlite3_bind_int64(s, 7, r->n_choices);
    sqlite3_bind_int64(s, 8, r->created);
    db_bind(s, 9, r->prompt, r->n_prompt * sizeof *r->prompt);
    db_bind(s, 10, r->record, r->n_record);
    sqlite3_bind_int64(s, 11, sum_request(r));
    if ((st = db_done(d, DB_PUT_REQUEST, "writing a request", err))) return st;
    *order = (uint64_t)sqlite3_last_insert_rowid(d->w);
    if ((st = db_put_outcome(d, *order, JOURNAL_RUNNING, 0, 0, NULL, 0, err)) ||
        (r->turn && (st = db_put_turn(d, *order, &before, r->after, r->turn, r->n_turn, err))) ||
        (r->name && (st = db_put_label(d, *order, r->ns, r->name, err))))
        return st;
    d->n_requests++;
    return HD_OK;
}

hd_status db_put_outcome(db *d, uint64_t order, journal_state state, int64_t events, int64_t finished, const void *finish,
                         size_t n, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_PUT_OUTCOME];
    sqlite3_bind_int64(s, 1, (int64_t)order);
    sqlite3_bind_int64(s, 2, state);
    sqlite3_bind_int64(s, 3, events);
    sqlite3_bind_int64(s, 4, finished);
    if (finish) db_bind(s, 5, finish, n);
    sqlite3_bind_int64(s, 6, sum_outcome(order, state, events, finished, finish, n));
    return db_done(d, DB_PUT_OUTCOME, "writing an end", err);
}

hd_status db_put_event(db *d, uint64_t order, uint32_t choice, uint64_t index, const journal_event *ev, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_PUT_EVENT];
    sqlite3_bind_int64(s, 1, (int64_t)order);
    sqlite3_bind_int64(s, 2, choice);
    sqlite3_bind_int64(s, 3, (int64_t)index);
    sqlite3_bind_int64(s, 4, ev->token);
    db_bind(s, 5, ev->text, ev->n_text);
    db_bind(s, 6, ev->extra, ev->n_extra);
    sqlite3_bind_int64(s, 7, sum_event(order, choice, index, ev));
    return db_done(d, DB_PUT_EVENT, "writing an event", err);
}

hd_status db_drop(db *d, uint64_t order, hd_err *err) {
    hd_status st;
    if ((st = db_with_order(d, DB_DROP_EVENTS, order, "deleting", err)) ||
        (st = db_with_order(d, DB_DROP_OUTCOME, order, "deleting", err)) ||
        (st = db_with_order(d, DB_DROP_REQUEST, order, "deleting", err)) || (st = db_drop_label(d, order, err)) ||
        (st = db_release_turn(d, order, err)))
        return st;
    if (d->n_requests) d->n_requests--;
    return HD_OK;
}

hd_status db_trim(db *d, uint64_t order, uint32_t choice, uint64_t index, hd_err *err) {
    sqlite3_bind_int64(d->st[DB_TRIM], 2, choice);
    sqlite3_bind_int64(d->st[DB_TRIM], 3, (int64_t)index);
    return db_with_order(d, DB_TRIM, order, "dropping events", err);
}

/* One row of integers. */
static hd_status ints(db *d, db_stmt i, int64_t *a, int64_t *b, hd_err *err) {
    int rc = sqlite3_step(d->st[i]);
    if (rc == SQLITE_ROW) {
        *a = sqlite3_column_int64(d->st[i], 0);
        if (b) *b = sqlite3_column_int64(d->st[i], 1);
    }
    sqlite3_reset(d->st[i]);
    return rc == SQLITE_ROW ? HD_OK : rc == SQLITE_DONE ? HD_NOTFOUND : db_failed(d->w, rc, "reading", err);
}

hd_status db_oldest(db *d, uint64_t *order, int64_t *finished, hd_err *err) {
    int64_t o = 0;
    hd_status st = ints(d, DB_OLDEST, &o, finished, err);
    *order = (uint64_t)o;
    return st;
}

hd_status db_used(db *d, uint64_t *bytes, hd_err *err) {
    int64_t pages = 0, unused = 0;
    hd_status st = ints(d, DB_PAGES, &pages, NULL, err);
    if (!st) st = ints(d, DB_UNUSED, &unused, NULL, err);
    *bytes = (uint64_t)(pages > unused ? pages - unused : 0) * DB_PAGE;
    return st;
}

hd_status db_give_back(db *d, hd_err *err) {
    int64_t unused = 0;
    char text[64];
    int rc;
    hd_status st = ints(d, DB_UNUSED, &unused, NULL, err);
    if (st || unused < 2 * DB_VACUUM_PAGES) return st;
    snprintf(text, sizeof text, "PRAGMA incremental_vacuum(%d)", DB_VACUUM_PAGES);
    rc = sqlite3_exec(d->w, text, NULL, NULL, NULL);
    return rc ? db_failed(d->w, rc, "giving pages back", err) : HD_OK;
}

/* ---- reading ---- */

typedef struct {
    const void *p;
    size_t n;
} span;

static span column(sqlite3_stmt *s, int i) {
    span b;
    b.p = sqlite3_column_blob(s, i);
    b.n = (size_t)sqlite3_column_bytes(s, i);
    if (sqlite3_column_type(s, i) != SQLITE_BLOB) b.p = NULL, b.n = 0;
    return b;
}

static void *lay(unsigned char **at, span b) {
    void *p = *at;
    if (b.n) memcpy(p, b.p, b.n);
    *at += b.n;
    return p;
}

/* The row that s stands on, as an entry.  *n_events: how many events it must have, DB_LOST when that is not known.
 * HD_FAILED: it does not match its checksums. */
static hd_status entry_of(sqlite3_stmt *s, journal_entry **out, int64_t *n_events, hd_err *err) {
    enum { ORD, ID, NS, KEY, BODY, IDENTITY, SEED, N_CHOICES, CREATED, PROMPT, RECORD, SUM, STATE, EVENTS, FINISHED, FINISH, OSUM };
    span id = column(s, ID), ns = column(s, NS), key = column(s, KEY), body = column(s, BODY), identity = column(s, IDENTITY),
         prompt = column(s, PROMPT), record = column(s, RECORD), finish = column(s, FINISH);
    int64_t events, n_choices = sqlite3_column_int64(s, N_CHOICES), state = sqlite3_column_int64(s, STATE);
    bool has_key = sqlite3_column_type(s, KEY) == SQLITE_BLOB, has_finish = sqlite3_column_type(s, FINISH) == SQLITE_BLOB;
    journal_entry *e = NULL;
    unsigned char *at;
    if (sqlite3_errcode(sqlite3_db_handle(s)) == SQLITE_NOMEM) goto oom;
    if (id.n < 1 || id.n > JOURNAL_ID_BYTES || ns.n != JOURNAL_DIGEST || body.n != JOURNAL_DIGEST ||
        identity.n != JOURNAL_DIGEST || n_choices < 1 || n_choices > JOURNAL_CHOICES || prompt.n % sizeof(int32_t) ||
        key.n > JOURNAL_KEY_BYTES || sqlite3_column_type(s, STATE) != SQLITE_INTEGER || state < 0 || state > JOURNAL_CANCELLED)
        goto damaged;
    e = hd_calloc(1, sizeof *e + (size_t)n_choices * sizeof *e->published + prompt.n + record.n + finish.n + key.n + id.n + 1);
    if (!e) goto oom;
    at = (unsigned char *)(e + 1);
    e->published = (uint64_t *)(void *)at;
    at += (size_t)n_choices * sizeof *e->published;
    e->request.prompt = lay(&at, prompt);
    e->request.n_prompt = prompt.n / sizeof(int32_t);
    e->request.record = lay(&at, record);
    e->request.n_record = record.n;
    e->finish = has_finish ? lay(&at, finish) : NULL;
    e->n_finish = finish.n;
    e->request.key = has_key ? lay(&at, key) : NULL;
    e->request.n_key = key.n;
    e->request.id = lay(&at, id); /* the zero behind it is there already */
    memcpy(e->request.ns, ns.p, JOURNAL_DIGEST);
    memcpy(e->request.body, body.p, JOURNAL_DIGEST);
    memcpy(e->request.identity, identity.p, JOURNAL_DIGEST);
    e->request.seed = (uint64_t)sqlite3_column_int64(s, SEED);
    e->request.n_choices = (uint32_t)n_choices;
    e->request.created = sqlite3_column_int64(s, CREATED);
    e->order = (uint64_t)sqlite3_column_int64(s, ORD);
    e->state = (journal_state)state;
    events = sqlite3_column_int64(s, EVENTS);
    e->lost = e->state != JOURNAL_RUNNING && events == DB_LOST;
    e->finished = sqlite3_column_int64(s, FINISHED);
    if (strlen(e->request.id) != id.n || sum_request(&e->request) != sqlite3_column_int64(s, SUM) ||
        sum_outcome(e->order, e->state, events, e->finished, e->finish, e->n_finish) != sqlite3_column_int64(s, OSUM))
        goto damaged;
    *out = e;
    *n_events = e->state == JOURNAL_RUNNING ? DB_LOST : events;
    return HD_OK;
damaged:
    hd_free(e);
    return hd_fail(err, HD_FAILED, "request log: request %lld is damaged", (long long)sqlite3_column_int64(s, ORD));
oom:
    return hd_fail(err, HD_NOMEM, "request log: no memory for a stored request");
}

/* Count the events of e, which must have n_events of them.  With r_mu held. */
static hd_status published(db *d, journal_entry *e, int64_t n_events, hd_err *err) {
    uint64_t *n = (uint64_t *)(void *)(e + 1); /* as entry_of laid it out */
    sqlite3_stmt *s = d->st[DB_R_PUBLISHED];
    uint64_t all = 0;
    for (uint32_t c = 0; c < e->request.n_choices; c++) {
        int rc;
        sqlite3_bind_int64(s, 1, (int64_t)e->order);
        sqlite3_bind_int64(s, 2, c);
        rc = sqlite3_step(s);
        if (rc == SQLITE_ROW && sqlite3_column_type(s, 0) == SQLITE_INTEGER) n[c] = (uint64_t)sqlite3_column_int64(s, 0) + 1;
        db_reset(s);
        if (rc != SQLITE_ROW) return db_failed(d->r, rc, "counting events", err);
        all += n[c];
    }
    if (n_events != DB_LOST && all != (uint64_t)n_events)
        return hd_fail(err, HD_FAILED, "request log: request %llu is damaged: events are missing", (unsigned long long)e->order);
    return HD_OK;
}

/* Finish a lookup whose parameters are bound; takes r_mu's unlock over. */
static hd_status find(db *d, db_stmt i, journal_entry **out, hd_err *err) {
    sqlite3_stmt *s = d->st[i];
    int64_t n_events = 0;
    int rc = sqlite3_step(s);
    hd_status st = rc == SQLITE_ROW    ? entry_of(s, out, &n_events, err)
                   : rc == SQLITE_DONE ? hd_fail(err, HD_NOTFOUND, "request log: there is no such request")
                                       : db_failed(d->r, rc, "looking up", err);
    if (!st && (st = published(d, *out, n_events, err))) {
        journal_entry_free(*out);
        *out = NULL;
    }
    db_reset(s);
    pthread_mutex_unlock(&d->r_mu);
    return st;
}

hd_status db_find_id(db *d, const char *id, journal_entry **out, hd_err *err) {
    *out = NULL;
    pthread_mutex_lock(&d->r_mu);
    db_bind(d->st[DB_R_BY_ID], 1, id, strlen(id));
    return find(d, DB_R_BY_ID, out, err);
}

hd_status db_find_key(db *d, const uint8_t *ns, const void *key, size_t n_key, journal_entry **out, hd_err *err) {
    *out = NULL;
    pthread_mutex_lock(&d->r_mu);
    db_bind(d->st[DB_R_BY_KEY], 1, ns, JOURNAL_DIGEST);
    db_bind(d->st[DB_R_BY_KEY], 2, key, n_key);
    return find(d, DB_R_BY_KEY, out, err);
}

hd_status db_find_order(db *d, uint64_t order, journal_entry **out, hd_err *err) {
    *out = NULL;
    pthread_mutex_lock(&d->r_mu);
    sqlite3_bind_int64(d->st[DB_R_BY_ORDER], 1, (int64_t)order);
    return find(d, DB_R_BY_ORDER, out, err);
}

hd_status db_next_running(db *d, uint64_t after, uint64_t *order, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_R_NEXT_RUNNING];
    int rc;
    pthread_mutex_lock(&d->r_mu);
    sqlite3_bind_int64(s, 1, (int64_t)after);
    rc = sqlite3_step(s);
    *order = rc == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(s, 0) : 0;
    db_reset(s);
    pthread_mutex_unlock(&d->r_mu);
    return rc == SQLITE_ROW ? HD_OK : rc == SQLITE_DONE ? HD_NOTFOUND : db_failed(d->r, rc, "looking for running requests", err);
}

hd_status db_read_events(db *d, uint64_t order, uint32_t choice, uint64_t from,
                         bool (*cb)(void *, uint64_t, const journal_event *), void *ctx, uint64_t *next, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_R_EVENTS];
    hd_status st = HD_OK;
    int rc;
    *next = from;
    if (from > INT64_MAX) return HD_OK;
    pthread_mutex_lock(&d->r_mu);
    sqlite3_bind_int64(s, 1, (int64_t)order);
    sqlite3_bind_int64(s, 2, choice);
    sqlite3_bind_int64(s, 3, (int64_t)from);
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        span text = column(s, 2), extra = column(s, 3);
        journal_event ev = {(int32_t)sqlite3_column_int64(s, 1), text.p, text.n, extra.p, extra.n};
        if (sqlite3_errcode(d->r) == SQLITE_NOMEM) {
            rc = SQLITE_NOMEM;
            break;
        }
        if (sqlite3_column_int64(s, 0) != (int64_t)*next || sum_event(order, choice, *next, &ev) != sqlite3_column_int64(s, 4)) {
            st = hd_fail_at(err, HD_FAILED, *next, "request log: event %llu of choice %u of request %llu is damaged",
                            (unsigned long long)*next, choice, (unsigned long long)order);
            rc = SQLITE_DONE;
            break;
        }
        ++*next;
        if (!cb(ctx, *next - 1, &ev)) {
            rc = SQLITE_DONE;
            break;
        }
    }
    if (rc != SQLITE_DONE) st = db_failed(d->r, rc, "reading events", err);
    db_reset(s);
    pthread_mutex_unlock(&d->r_mu);
    return st;
}
