/* journal_turns.c - conversations and names in the file of the request log: see journal_int.h.
 *
 * A request of a conversation has a turn: what it adds, and which turn is before.  Turns are written once and never changed;
 * requests that go on from the same one share all before.  A turn stays while its own request is there or a turn behind it is, so
 * deleting a request never takes anything from those that go on from it, and what nobody needs goes with the last who did.
 *
 * A label is a name that a request wants (held 0) or has (held 1).  The name goes over in the transaction that holds the
 * request's end, so it never stands for a response that is not all there.  Of several requests that want one name the one
 * accepted last has it in the end, in whatever order they end. */
#include "state/journal_int.h"

#include <string.h>

/* ---- turns ---- */

static int64_t sum_turn(uint64_t order, const db_turn *t, const void *data, size_t n) {
    db_sum s = {4};
    uint64_t head[4] = {order, t->prev, t->depth, t->bytes};
    db_sum_add(&s, head, sizeof head);
    db_sum_add(&s, data, n);
    return (int64_t)s.h;
}

static db_turn turn_of(sqlite3_stmt *s) {
    return (db_turn){(uint64_t)sqlite3_column_int64(s, 0), (uint64_t)sqlite3_column_int64(s, 1), (uint64_t)sqlite3_column_int64(s, 2)};
}

/* Of either connection. */
static hd_status look(sqlite3 *c, sqlite3_stmt *s, uint64_t order, db_turn *out, hd_err *err) {
    int rc;
    sqlite3_bind_int64(s, 1, (int64_t)order);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) *out = turn_of(s);
    db_reset(s);
    return rc == SQLITE_ROW ? HD_OK : rc == SQLITE_DONE ? HD_NOTFOUND : db_failed(c, rc, "looking a turn up", err);
}

hd_status db_turn_look(db *d, uint64_t order, db_turn *out, hd_err *err) { return look(d->w, d->st[DB_TURN], order, out, err); }

hd_status db_put_turn(db *d, uint64_t order, const db_turn *before, uint64_t prev, const void *data, size_t n, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_PUT_TURN];
    db_turn t = {prev, before->depth + 1, before->bytes + n};
    sqlite3_bind_int64(s, 1, (int64_t)order);
    sqlite3_bind_int64(s, 2, (int64_t)t.prev);
    sqlite3_bind_int64(s, 3, (int64_t)t.depth);
    sqlite3_bind_int64(s, 4, (int64_t)t.bytes);
    db_bind(s, 5, data, n);
    sqlite3_bind_int64(s, 6, sum_turn(order, &t, data, n));
    return db_done(d, DB_PUT_TURN, "writing a turn", err);
}

static hd_status needed(db *d, uint64_t order, bool *is, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_TURN_NEEDED];
    int rc;
    *is = order == d->keep_turn;
    if (*is) return HD_OK;
    sqlite3_bind_int64(s, 1, (int64_t)order);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) *is = sqlite3_column_int(s, 0) != 0;
    db_reset(s);
    return rc == SQLITE_ROW ? HD_OK : db_failed(d->w, rc, "looking a turn up", err);
}

hd_status db_release_turn(db *d, uint64_t order, hd_err *err) {
    db_turn t;
    bool is;
    hd_status st;
    for (int i = 0; order && i < JOURNAL_TURNS; i++, order = t.prev) {
        if ((st = needed(d, order, &is, err))) return st;
        if (is) return HD_OK;
        if ((st = db_turn_look(d, order, &t, err))) return st == HD_NOTFOUND ? HD_OK : st;
        if ((st = db_with_order(d, DB_DROP_TURN, order, "deleting a turn", err))) return st;
    }
    return HD_OK;
}

hd_status db_conversation(db *d, uint64_t order, db_turn *out, hd_err *err) {
    hd_status st;
    pthread_mutex_lock(&d->r_mu);
    st = look(d->r, d->st[DB_R_TURN_HEAD], order, out, err);
    pthread_mutex_unlock(&d->r_mu);
    return st == HD_NOTFOUND ? hd_fail(err, st, "request log: the request is of no conversation") : st;
}

/* A statement of the reading connection without a row. */
static int r_run(db *d, db_stmt i) {
    int rc = sqlite3_step(d->st[i]);
    db_reset(d->st[i]);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static hd_status bad_turn(uint64_t order, hd_err *err) {
    return hd_fail(err, HD_FAILED, "request log: turn %llu of a conversation is damaged", (unsigned long long)order);
}

static hd_status give_turn(db *d, uint64_t order, bool (*cb)(void *, const void *, size_t), void *ctx, bool *go_on, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_R_TURN];
    hd_status st = HD_OK;
    int rc;
    sqlite3_bind_int64(s, 1, (int64_t)order);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        db_turn t = turn_of(s);
        const void *data = sqlite3_column_blob(s, 3);
        size_t n = (size_t)sqlite3_column_bytes(s, 3);
        if (sqlite3_errcode(d->r) == SQLITE_NOMEM) st = db_failed(d->r, SQLITE_NOMEM, "reading a turn", err);
        else if (sum_turn(order, &t, data, n) != sqlite3_column_int64(s, 4)) st = bad_turn(order, err);
        else *go_on = cb(ctx, data, n);
    } else {
        st = rc == SQLITE_DONE ? bad_turn(order, err) : db_failed(d->r, rc, "reading a turn", err);
    }
    db_reset(s);
    return st;
}

/* One transaction, so that nobody deletes between two of them. */
hd_status db_read_turns(db *d, uint64_t order, bool (*cb)(void *, const void *, size_t), void *ctx, hd_err *err) {
    uint64_t path[JOURNAL_TURNS];
    uint32_t n = 0;
    bool go_on = true;
    db_turn t;
    hd_status st;
    int rc;
    pthread_mutex_lock(&d->r_mu);
    if ((rc = r_run(d, DB_R_BEGIN))) {
        st = db_failed(d->r, rc, "reading turns", err);
        goto out;
    }
    for (st = HD_OK; order && !st && n < JOURNAL_TURNS; order = t.prev) {
        if ((st = look(d->r, d->st[DB_R_TURN_HEAD], order, &t, err))) break;
        path[n++] = order;
    }
    if (st == HD_NOTFOUND) st = n ? bad_turn(order, err) : hd_fail(err, st, "request log: the request is of no conversation");
    else if (!st && order) st = bad_turn(order, err); /* longer than any that was accepted */
    while (n && !st && go_on) st = give_turn(d, path[--n], cb, ctx, &go_on, err);
    rc = r_run(d, DB_R_END);
    if (rc && !st) st = db_failed(d->r, rc, "reading turns", err);
out:
    pthread_mutex_unlock(&d->r_mu);
    return st;
}

/* ---- names ---- */

enum { L_ORD, L_NS, L_NAME, L_HELD, L_SUM, L_ID, L_CREATED };

typedef struct {
    uint64_t order;
    uint8_t ns[JOURNAL_DIGEST];
    char name[JOURNAL_NAME_BYTES + 1];
    bool held;
} label;

static int64_t sum_label(const label *l) {
    db_sum s = {5};
    uint64_t head[2] = {l->order, l->held};
    db_sum_add(&s, head, sizeof head);
    db_sum_add(&s, l->ns, sizeof l->ns);
    db_sum_add(&s, l->name, strlen(l->name));
    return (int64_t)s.h;
}

/* The row that s stands on.  False: damaged. */
static bool label_of(sqlite3_stmt *s, label *l) {
    const void *ns = sqlite3_column_blob(s, L_NS), *name = sqlite3_column_blob(s, L_NAME);
    int n = sqlite3_column_bytes(s, L_NAME);
    memset(l, 0, sizeof *l);
    if (!ns || sqlite3_column_bytes(s, L_NS) != JOURNAL_DIGEST || !name || n > JOURNAL_NAME_BYTES) return false;
    l->order = (uint64_t)sqlite3_column_int64(s, L_ORD);
    l->held = sqlite3_column_int(s, L_HELD) == 1;
    memcpy(l->ns, ns, JOURNAL_DIGEST);
    memcpy(l->name, name, (size_t)n);
    return sum_label(l) == sqlite3_column_int64(s, L_SUM);
}

static hd_status put_label(db *d, const label *l, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_PUT_LABEL];
    sqlite3_bind_int64(s, 1, (int64_t)l->order);
    db_bind(s, 2, l->ns, JOURNAL_DIGEST);
    db_bind(s, 3, l->name, strlen(l->name));
    sqlite3_bind_int(s, 4, l->held);
    sqlite3_bind_int64(s, 5, sum_label(l));
    return db_done(d, DB_PUT_LABEL, "writing a name", err);
}

hd_status db_put_label(db *d, uint64_t order, const uint8_t *ns, const char *name, hd_err *err) {
    label l = {.order = order};
    memcpy(l.ns, ns, JOURNAL_DIGEST);
    memcpy(l.name, name, strnlen(name, JOURNAL_NAME_BYTES));
    return put_label(d, &l, err);
}

hd_status db_drop_label(db *d, uint64_t order, hd_err *err) { return db_with_order(d, DB_DROP_LABEL, order, "deleting a name", err); }

hd_status db_take_name(db *d, uint64_t order, hd_err *err) {
    sqlite3_stmt *s = d->st[DB_LABEL];
    uint64_t holder = 0;
    bool wanted;
    hd_status st;
    label l;
    int rc;
    sqlite3_bind_int64(s, 1, (int64_t)order);
    rc = sqlite3_step(s);
    wanted = rc == SQLITE_ROW && label_of(s, &l) && !l.held;
    db_reset(s);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) return db_failed(d->w, rc, "looking a name up", err);
    if (!wanted) return HD_OK;
    s = d->st[DB_HOLDER];
    db_bind(s, 1, l.ns, JOURNAL_DIGEST);
    db_bind(s, 2, l.name, strlen(l.name));
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) holder = (uint64_t)sqlite3_column_int64(s, 0);
    db_reset(s);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) return db_failed(d->w, rc, "looking a name up", err);
    if (holder > order) return db_drop_label(d, order, err);
    if (holder && (st = db_drop_label(d, holder, err))) return st;
    l.held = true;
    return put_label(d, &l, err);
}

/* The id beside a name; false: damaged. */
static bool id_of(sqlite3_stmt *s, char id[JOURNAL_ID_BYTES + 1]) {
    const void *p = sqlite3_column_blob(s, L_ID);
    int n = sqlite3_column_bytes(s, L_ID);
    if (!p || n > JOURNAL_ID_BYTES) return false;
    memcpy(id, p, (size_t)n);
    id[n] = 0;
    return true;
}

typedef struct {
    char *id;
} one_name;

static bool only(void *ctx, const char *name, const char *id, int64_t created) {
    one_name *o = ctx;
    (void)name, (void)created;
    memcpy(o->id, id, strlen(id) + 1);
    return false;
}

static hd_status read_names(db *d, db_stmt i, const uint8_t *ns, const char *name,
                            bool (*cb)(void *, const char *, const char *, int64_t), void *ctx, hd_err *err) {
    sqlite3_stmt *s = d->st[i];
    hd_status st = HD_OK;
    int rc;
    pthread_mutex_lock(&d->r_mu);
    db_bind(s, 1, ns, JOURNAL_DIGEST);
    db_bind(s, 2, name, strlen(name));
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        char id[JOURNAL_ID_BYTES + 1];
        label l;
        if (!label_of(s, &l) || !id_of(s, id)) {
            st = sqlite3_errcode(d->r) == SQLITE_NOMEM ? db_failed(d->r, SQLITE_NOMEM, "reading names", err)
                                                       : hd_fail(err, HD_FAILED, "request log: a name is damaged");
            rc = SQLITE_DONE;
            break;
        }
        if (!cb(ctx, l.name, id, sqlite3_column_int64(s, L_CREATED))) {
            rc = SQLITE_DONE;
            break;
        }
    }
    if (rc != SQLITE_DONE) st = db_failed(d->r, rc, "reading names", err);
    db_reset(s);
    pthread_mutex_unlock(&d->r_mu);
    return st;
}

hd_status db_named(db *d, const uint8_t *ns, const char *name, char id[JOURNAL_ID_BYTES + 1], hd_err *err) {
    one_name o = {id};
    hd_status st;
    id[0] = 0;
    st = read_names(d, DB_R_NAMED, ns, name, only, &o, err);
    return st ? st : id[0] ? HD_OK : hd_fail(err, HD_NOTFOUND, "request log: there is no such name");
}

hd_status db_names(db *d, const uint8_t *ns, const char *from, bool (*cb)(void *, const char *, const char *, int64_t), void *ctx,
                   hd_err *err) {
    return read_names(d, DB_R_NAMES, ns, from, cb, ctx, err);
}
