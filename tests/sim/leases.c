/* leases.c - a coordinator of its own beside the engine's, compared after each call with a naive one: a list of waiters. */
#include "sim/sim.h"

#include <stdlib.h>

typedef enum { NOTHING, WAITS, HELD, GONE } lease_state;

typedef struct {
    lease_state should;   /* by the naive one */
    lease_mode mode;
    hd_status end;        /* why it is gone */
    cancellation *cancel;
    lease *handle;
    int told;             /* how often */
    hd_status said;
} one;

struct sim_leases {
    coordinator *c;
    uint32_t max_queued;
    bool closed;
    one l[SIM_MAX_LEASES]; /* a waiter's place in the line is its number: slots are asked in rising order */
    char why[200];
};

sim_leases *sim_leases_open(uint32_t max_queued) {
    sim_leases *s = calloc(1, sizeof *s);
    hd_err err;
    s->max_queued = max_queued;
    if (coordinator_new(&s->c, max_queued, &err)) {
        fprintf(stderr, "sim: %s\n", err.msg);
        _Exit(SIM_VIOLATION);
    }
    return s;
}

static void on_told(void *ctx, lease *l, hd_status st) {
    one *x = ctx;
    (void)l;
    x->told++;
    x->said = st;
}

static uint32_t count(const sim_leases *s, lease_state st, int mode) {
    uint32_t n = 0;
    for (int i = 0; i < SIM_MAX_LEASES; i++) n += s->l[i].should == st && (mode < 0 || (int)s->l[i].mode == mode);
    return n;
}

static bool grantable(const sim_leases *s, lease_mode mode) {
    return !count(s, HELD, LEASE_EXCLUSIVE) && (mode == LEASE_SHARED || !count(s, HELD, LEASE_SHARED));
}

/* From the head of the line, as long as the head may run. */
static void grant_waiters(sim_leases *s) {
    for (int i = 0; i < SIM_MAX_LEASES; i++) {
        if (s->l[i].should != WAITS) continue;
        if (!grantable(s, s->l[i].mode)) return;
        s->l[i].should = HELD;
    }
}

static const char *wrong(sim_leases *s, int i, const char *what) {
    snprintf(s->why, sizeof s->why, "lease %d: %s (told %d times, last %s)", i, what, s->l[i].told, hd_status_name(s->l[i].said));
    return s->why;
}

static const char *compare(sim_leases *s) {
    coordinator_view v = coordinator_look(s->c);
    for (int i = 0; i < SIM_MAX_LEASES; i++) {
        const one *x = &s->l[i];
        switch (x->should) {
        case NOTHING: break;
        case WAITS:
            if (x->told) return wrong(s, i, "it should wait");
            break;
        case HELD:
            if (x->told != 1 || x->said != HD_OK) return wrong(s, i, "it should be held");
            break;
        case GONE:
            if (x->told != 1 || x->said != x->end) return wrong(s, i, "it should be gone");
        }
    }
    if (v.shared_held != count(s, HELD, LEASE_SHARED) || v.exclusive_held != count(s, HELD, LEASE_EXCLUSIVE) ||
        v.waiting != count(s, WAITS, -1) || v.waiting_exclusive != count(s, WAITS, LEASE_EXCLUSIVE) || v.closed != s->closed)
        return "the coordinator's view differs from the naive one";
    return NULL;
}

static const char *ask(sim_leases *s, int i, uint64_t arg) {
    one *x = &s->l[i];
    hd_status want, got;
    hd_err err;
    if (x->should != NOTHING || x->told) return NULL;
    for (int j = i; j < SIM_MAX_LEASES; j++)
        if (s->l[j].should != NOTHING) return NULL; /* a replay out of order */
    x->mode = arg & 1 ? LEASE_EXCLUSIVE : LEASE_SHARED;
    if (arg & 2 && cancel_new(&x->cancel, &err)) return "no cancellation";
    if (s->closed) want = HD_CLOSED;
    else if (!count(s, WAITS, -1) && grantable(s, x->mode)) want = HD_OK, x->should = HELD;
    else if (count(s, WAITS, -1) >= s->max_queued) want = HD_FULL;
    else want = HD_OK, x->should = WAITS;
    got = coordinator_acquire(s->c, x->mode, NULL, x->cancel, on_told, x, &x->handle, &err);
    if (got != want) return wrong(s, i, "another answer than the naive one's");
    if (got && (x->handle || x->told)) return wrong(s, i, "refused and told");
    return NULL;
}

static void release(sim_leases *s, int i) {
    if (s->l[i].should != HELD) return;
    s->l[i].should = GONE;
    s->l[i].end = HD_OK; /* it was told of the grant, of nothing after */
    grant_waiters(s);
    lease_release(s->l[i].handle);
}

static void cancel(sim_leases *s, int i) {
    if (!s->l[i].cancel) return;
    if (s->l[i].should == WAITS) {
        s->l[i].should = GONE;
        s->l[i].end = HD_CANCELLED;
        grant_waiters(s);
    }
    cancel_fire(s->l[i].cancel, CANCEL_BY_REQUEST);
}

static void shut(sim_leases *s) {
    s->closed = true;
    for (int i = 0; i < SIM_MAX_LEASES; i++)
        if (s->l[i].should == WAITS) s->l[i].should = GONE, s->l[i].end = HD_CLOSED;
    coordinator_close(s->c);
}

const char *sim_leases_event(sim_leases *s, const sim_event *e) {
    int i = (int)e->slot;
    const char *why = NULL;
    if (i >= SIM_MAX_LEASES) return NULL;
    if (e->kind == SIM_LEASE) why = ask(s, i, e->arg);
    else if (e->kind == SIM_RELEASE) release(s, i);
    else if (e->kind == SIM_LEASE_CANCEL) cancel(s, i);
    else shut(s);
    return why ? why : compare(s);
}

const char *sim_leases_close(sim_leases *s) {
    const char *why = NULL;
    hd_err err;
    for (int i = 0; i < SIM_MAX_LEASES && !why; i++) {
        release(s, i);
        why = compare(s);
    }
    if (!why && count(s, WAITS, -1)) why = "someone still waits when all leases are back";
    if (why) return why;
    shut(s);
    if (coordinator_quiesce(s->c, 0, &err)) return "not at rest at the end";
    coordinator_free(s->c);
    for (int i = 0; i < SIM_MAX_LEASES; i++) cancel_unref(s->l[i].cancel);
    free(s);
    return NULL;
}
