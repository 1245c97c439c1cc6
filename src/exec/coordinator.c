/* coordinator.c - see coordinator.h.
 *
 * A lease is WAITING (in the line), HELD (in the list of held ones) or GONE (neither).  It leaves WAITING once, under
 * mu, by whoever grants, cancels, closes or gives up; that thread then tells it, without mu, in the order decided.
 * While the line is not empty its head cannot be granted: every change that could make it grantable ends with drain().
 *
 * References to a lease: one while WAITING or HELD, one per list of leases to tell, one of its subscription until the
 * observer ran or cannot run any more, one of the call that made it.  Each lease refers to the coordinator, so a thread
 * that is still busy with one never finds the coordinator freed.
 *
 * mu guards every field but the reference counts.  Nothing is called with mu held that could call back or wait: neither
 * `told` nor cancel_subscribe nor cancel_unsubscribe (which waits for an observer that may want mu).
 * Read: decide, drain, tell, then coordinator_acquire and on_cancel. */
#include "exec/coordinator.h"
#include "base/mem.h"
#include "base/plant.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

typedef enum { WAITING, HELD, GONE } lease_state;

struct lease {
    coordinator *c; /* holds a reference */
    lease_mode mode;
    lease_state state;
    hd_status answer; /* once it is no longer WAITING */
    const void *owner;
    lease_told told; /* may be NULL: coordinator_wait looks at `state` instead */
    void *ctx;
    cancel_sub *sub;    /* while WAITING; taken out by the thread that decides */
    bool observed;      /* the observer ran, and dropped the subscription's reference */
    lease *prev, *next; /* in the line or among the held */
    lease *to_tell;
    atomic_uint refs;
};

typedef struct {
    lease *head, *tail;
} lease_list;

/* Leases decided under mu, to be told after it, in order. */
typedef struct {
    lease *head, **end;
} tell_list;

struct coordinator {
    pthread_mutex_t mu;
    pthread_cond_t changed; /* a lease was decided, released or told; for wait and quiesce */
    lease_list line, held;
    uint32_t max_queued, n_line, n_line_exclusive, n_shared;
    uint32_t n_telling; /* decided, but `told` has not returned */
    bool exclusive, closed;
    atomic_uint refs;
};

/* ---- lists, references ---- */

static void list_add(lease_list *q, lease *l) {
    l->prev = q->tail;
    l->next = NULL;
    if (q->tail)
        q->tail->next = l;
    else
        q->head = l;
    q->tail = l;
}

static void list_remove(lease_list *q, lease *l) {
    if (l->prev)
        l->prev->next = l->next;
    else
        q->head = l->next;
    if (l->next)
        l->next->prev = l->prev;
    else
        q->tail = l->prev;
    l->prev = l->next = NULL;
}

static void coordinator_ref(coordinator *c) { atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed); }

static void coordinator_unref(coordinator *c) {
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mu);
    hd_free(c);
}

static void lease_ref(lease *l) { atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed); }

static void lease_unref(lease *l) {
    coordinator *c = l->c;
    if (atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1) return;
    hd_free(l);
    coordinator_unref(c);
}

/* ---- decisions, all under mu ---- */

static bool grantable(const coordinator *c, lease_mode mode) {
    return !c->exclusive && (mode == LEASE_SHARED || c->n_shared == 0);
}

static void check(const coordinator *c) {
    HD_ASSERT(!c->exclusive || c->n_shared == 0);
    HD_ASSERT(c->n_line <= c->max_queued && c->n_line_exclusive <= c->n_line);
    HD_ASSERT((c->n_line == 0) == !c->line.head && (c->n_shared > 0 || c->exclusive) == (c->held.head != NULL));
    HD_ASSERT(!c->line.head || !grantable(c, c->line.head->mode));
    (void)c;
}

#ifdef HD_DEBUG
/* A deadlock in the making: the one who asks could wait behind itself. */
static bool holds_one(const coordinator *c, const void *owner) {
    if (!owner) return false;
    for (const lease *l = c->held.head; l; l = l->next)
        if (l->owner == owner) return true;
    return false;
}
#endif

static void enqueue(coordinator *c, lease *l) {
    l->state = WAITING;
    list_add(&c->line, l);
    c->n_line++;
    c->n_line_exclusive += l->mode == LEASE_EXCLUSIVE;
    lease_ref(l);
}

static void decided(lease *l, lease_state state, hd_status answer, tell_list *t) {
    l->state = state;
    l->answer = answer;
    l->c->n_telling++;
    lease_ref(l);
    l->to_tell = NULL;
    *t->end = l;
    t->end = &l->to_tell;
}

/* l is in no list. */
static void grant(lease *l, tell_list *t) {
    coordinator *c = l->c;
    HD_ASSERT(grantable(c, l->mode));
    list_add(&c->held, l);
    if (l->mode == LEASE_SHARED)
        c->n_shared++;
    else
        c->exclusive = true;
    lease_ref(l);
    decided(l, HELD, HD_OK, t);
}

static void dequeue(lease *l) {
    coordinator *c = l->c;
    HD_ASSERT(l->state == WAITING);
    list_remove(&c->line, l);
    c->n_line--;
    c->n_line_exclusive -= l->mode == LEASE_EXCLUSIVE;
    lease_unref(l); /* never the last: somebody has it in hand */
}

/* Grant from the head of the line what can be granted: all shared ones in a row, or one exclusive one. */
static void drain(coordinator *c, tell_list *t) {
    for (lease *l; (l = c->line.head) && grantable(c, l->mode);) {
        lease_ref(l);
        dequeue(l);
        grant(l, t);
        lease_unref(l);
    }
    check(c);
    pthread_cond_broadcast(&c->changed);
}

static void tell_init(tell_list *t) {
    t->head = NULL;
    t->end = &t->head;
}

/* ---- telling, without mu ---- */

/* End a subscription of l that was in the caller's hand (NULL: there is none). */
static void forget_cancel(lease *l, cancel_sub *sub) {
    bool observed;
    if (!sub || cancel_unsubscribe(sub)) return; /* true: the observer still comes by, with its reference */
    pthread_mutex_lock(&l->c->mu);
    observed = l->observed;
    pthread_mutex_unlock(&l->c->mu);
    if (!observed) lease_unref(l);
}

/* After decided(): end the subscriptions, then tell each.  A told lease may be gone at once, so only the references of
 * this list are relied on. */
static void tell(tell_list *t) {
    for (lease *l = t->head, *next; l; l = next) {
        coordinator *c = l->c;
        cancel_sub *sub;
        next = l->to_tell;
        pthread_mutex_lock(&c->mu);
        sub = l->sub;
        l->sub = NULL;
        pthread_mutex_unlock(&c->mu);
        forget_cancel(l, sub);
        if (l->told) l->told(l->ctx, l, l->answer);
        pthread_mutex_lock(&c->mu);
        c->n_telling--;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->mu);
        lease_unref(l); /* of the list */
    }
}

/* The observer of a waiter's cancellation; a lease that was decided before is left alone. */
static void on_cancel(void *ctx, cancel_reason why) {
    lease *l = ctx;
    coordinator *c = l->c;
    tell_list t;
    (void)why;
    tell_init(&t);
    pthread_mutex_lock(&c->mu);
    l->observed = true;
    if (l->state == WAITING) {
        dequeue(l);
        decided(l, GONE, HD_CANCELLED, &t);
        drain(c, &t); /* readers behind a removed writer can go */
    }
    pthread_mutex_unlock(&c->mu);
    tell(&t);
    lease_unref(l); /* of the subscription */
}

/* Take l out of the line; false: it was decided before. */
static bool withdraw(lease *l) {
    coordinator *c = l->c;
    tell_list t;
    cancel_sub *sub = NULL;
    bool was;
    tell_init(&t);
    pthread_mutex_lock(&c->mu);
    if ((was = l->state == WAITING)) {
        dequeue(l);
        l->state = GONE;
        sub = l->sub;
        l->sub = NULL;
        drain(c, &t);
    }
    pthread_mutex_unlock(&c->mu);
    forget_cancel(l, sub);
    tell(&t);
    return was;
}

/* ---- the calls ---- */

hd_status coordinator_new(coordinator **out, uint32_t max_queued, hd_err *err) {
    coordinator *c = hd_calloc(1, sizeof *c);
    pthread_condattr_t attr;
    *out = NULL;
    if (!c) return hd_fail(err, HD_NOMEM, "coordinator: no memory");
    pthread_mutex_init(&c->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    c->max_queued = max_queued;
    atomic_init(&c->refs, 1);
    *out = c;
    return HD_OK;
}

void coordinator_free(coordinator *c) {
    if (!c) return;
    HD_ASSERT(c->closed && !c->line.head && !c->held.head);
    coordinator_unref(c);
}

/* What becomes of a new lease; HD_OK and *wait false: grant.  Under mu. */
static hd_status decide(const coordinator *c, lease_mode mode, const cancellation *cancel, bool *wait, hd_err *err) {
    bool clear = !c->line.head;
    *wait = false;
    if (c->closed) return hd_fail(err, HD_CLOSED, "execution coordinator is closed");
    if (cancel && cancel_why(cancel) != CANCEL_NONE) return cancel_check(cancel, err);
    if (PLANTED(PLANT_SHARED_OVERTAKES) && mode == LEASE_SHARED) clear = true;
    if (clear && grantable(c, mode)) return HD_OK;
    if (c->n_line >= c->max_queued)
        return hd_fail(err, HD_FULL, "the line for execution is full (%u waiting)", (unsigned)c->n_line);
    *wait = true;
    return HD_OK;
}

/* As coordinator_acquire; *out has a reference more, for the caller. */
static hd_status acquire(coordinator *c, lease_mode mode, const void *owner, cancellation *cancel, lease_told told,
                         void *ctx, lease **out, hd_err *err) {
    lease *l = hd_calloc(1, sizeof *l); /* before the lock; judged after the other reasons to refuse */
    cancel_sub *sub;
    tell_list t;
    hd_status st;
    bool wait, late;
    *out = NULL;
    tell_init(&t);
    pthread_mutex_lock(&c->mu);
    HD_ASSERT(!holds_one(c, owner));
    st = decide(c, mode, cancel, &wait, err);
    if (st == HD_OK && !l) st = hd_fail(err, HD_NOMEM, "coordinator: no memory for a lease");
    if (st != HD_OK) {
        pthread_mutex_unlock(&c->mu);
        hd_free(l);
        return st;
    }
    *l = (lease){.c = c, .mode = mode, .owner = owner, .told = told, .ctx = ctx};
    atomic_init(&l->refs, 1);
    coordinator_ref(c);
    if (wait)
        enqueue(c, l);
    else
        grant(l, &t);
    check(c);
    pthread_mutex_unlock(&c->mu);
    *out = l; /* before it is told */
    if (!wait || !cancel) {
        tell(&t);
        return HD_OK;
    }
    /* From here on others may decide it.  They find no subscription yet, so this call ends its own if it is late. */
    lease_ref(l);
    if ((st = cancel_subscribe(cancel, on_cancel, l, &sub, err)) != HD_OK) {
        lease_unref(l);
        if (!withdraw(l)) return HD_OK;
        *out = NULL;
        lease_unref(l);
        return st;
    }
    pthread_mutex_lock(&c->mu);
    if (!(late = l->state != WAITING)) l->sub = sub;
    pthread_mutex_unlock(&c->mu);
    if (late) forget_cancel(l, sub);
    return HD_OK;
}

hd_status coordinator_acquire(coordinator *c, lease_mode mode, const void *owner, cancellation *cancel, lease_told told,
                              void *ctx, lease **out, hd_err *err) {
    hd_status st = acquire(c, mode, owner, cancel, told, ctx, out, err);
    if (*out) lease_unref(*out);
    return st;
}

/* Wait for c->changed; false: the time is over.  until NULL: for ever.  Under mu. */
static bool wait_changed(coordinator *c, const struct timespec *until) {
    if (!until) return pthread_cond_wait(&c->changed, &c->mu), true;
    return pthread_cond_timedwait(&c->changed, &c->mu, until) != ETIMEDOUT;
}

/* now + timeout_us in *t; NULL: so far away that it is never. */
static const struct timespec *deadline(uint64_t timeout_us, struct timespec *t) {
    enum { US = 1000000 };
    if (timeout_us / US > UINT32_MAX) return NULL; /* 136 years */
    clock_gettime(CLOCK_MONOTONIC, t);
    t->tv_sec += (time_t)(timeout_us / US);
    t->tv_nsec += (long)(timeout_us % US) * 1000;
    if (t->tv_nsec >= 1000000000) t->tv_sec++, t->tv_nsec -= 1000000000;
    return t;
}

hd_status coordinator_wait(coordinator *c, lease_mode mode, const void *owner, cancellation *cancel,
                           uint64_t timeout_us, lease **out, hd_err *err) {
    struct timespec t;
    const struct timespec *until = deadline(timeout_us, &t);
    lease *l;
    hd_status st = acquire(c, mode, owner, cancel, NULL, NULL, &l, err);
    *out = NULL;
    if (st != HD_OK) return st;
    pthread_mutex_lock(&c->mu);
    while (l->state == WAITING && wait_changed(c, until)) {}
    pthread_mutex_unlock(&c->mu);
    if (withdraw(l)) {
        st = hd_fail(err, HD_TIMEOUT, "the execution lease was not granted in time");
    } else {
        st = l->answer; /* written before the state was, both under mu, which withdraw took */
        if (st == HD_OK)
            *out = l;
        else if (st == HD_CANCELLED)
            cancel_check(cancel, err);
        else
            hd_fail(err, st, "execution coordinator is closed");
    }
    lease_unref(l);
    return st;
}

void lease_release(lease *l) {
    coordinator *c;
    tell_list t;
    if (!l) return;
    c = l->c;
    tell_init(&t);
    pthread_mutex_lock(&c->mu);
    HD_ASSERT(l->state == HELD);
    l->state = GONE;
    list_remove(&c->held, l);
    if (l->mode == LEASE_SHARED)
        c->n_shared--;
    else
        c->exclusive = false;
    drain(c, &t);
    pthread_mutex_unlock(&c->mu);
    tell(&t);
    lease_unref(l); /* last, as it keeps c */
}

void coordinator_close(coordinator *c) {
    tell_list t;
    tell_init(&t);
    coordinator_ref(c); /* the last one told may free it */
    pthread_mutex_lock(&c->mu);
    c->closed = true;
    for (lease *l; (l = c->line.head);) {
        lease_ref(l);
        dequeue(l);
        decided(l, GONE, HD_CLOSED, &t);
        lease_unref(l);
    }
    drain(c, &t);
    pthread_mutex_unlock(&c->mu);
    tell(&t);
    coordinator_unref(c);
}

hd_status coordinator_quiesce(coordinator *c, uint64_t timeout_us, hd_err *err) {
    struct timespec t;
    const struct timespec *until = deadline(timeout_us, &t);
    hd_status st = HD_OK;
    pthread_mutex_lock(&c->mu);
    while (c->held.head || c->line.head || c->n_telling)
        if (!wait_changed(c, until)) break;
    if (c->held.head || c->line.head || c->n_telling)
        st = hd_fail(err, HD_TIMEOUT, "execution did not come to rest in time: %u shared, %u exclusive, %u waiting",
                     (unsigned)c->n_shared, (unsigned)c->exclusive, (unsigned)c->n_line);
    pthread_mutex_unlock(&c->mu);
    return st;
}

coordinator_view coordinator_look(coordinator *c) {
    coordinator_view v;
    pthread_mutex_lock(&c->mu);
    v = (coordinator_view){c->n_shared, c->n_line, c->n_line_exclusive, c->exclusive, c->closed};
    pthread_mutex_unlock(&c->mu);
    return v;
}
