/* cancel.c - see cancel.h.
 *
 * A source fires once.  From then on nobody joins its list, so the list is the snapshot: the firing thread takes its
 * head, runs that observer without the lock, and goes on until the list is empty.  The other calls see three kinds of
 * handle: in the list (not told yet), `running`, or told.
 *
 *   removed by ...                 in the list            running                       told
 *   the firing thread (observers)  `gone`: told, freed    `gone`: freed when it returns  freed
 *   any other thread               unlinked, freed        waited for, then freed        freed
 *
 * mu guards everything but refs and why, and is never held while an observer runs.
 * Read: cancel_fire, cancel_unsubscribe, then the rest. */
#include "exec/cancel.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>

struct cancel_sub {
    cancellation *of; /* holds a reference */
    cancel_observer fn;
    void *ctx;
    cancel_sub *prev, *next;
    bool told; /* out of the list: its observer runs or ran */
    bool gone; /* its owner is done with it; the firing thread frees it */
};

struct cancellation {
    pthread_mutex_t mu;
    pthread_cond_t returned; /* an observer returned, for unsubscribers of other threads */
    cancel_sub *head, *tail; /* not told yet, in subscription order */
    cancel_sub *running;
    bool firing;
    pthread_t by; /* the firing thread, while firing */
    atomic_uint refs;
    atomic_int why; /* cancel_reason; written once under mu, publishes nothing else */
};

const char *cancel_reason_name(cancel_reason r) {
    switch (r) {
#define X(id, name)                                                                                                    \
    case CANCEL_##id: return name;
        CANCEL_REASONS(X)
#undef X
    }
    return "unknown";
}

hd_status cancel_new(cancellation **out, hd_err *err) {
    cancellation *c = hd_calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return hd_fail(err, HD_NOMEM, "cancel: no memory for a source");
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->returned, NULL);
    atomic_init(&c->refs, 1);
    atomic_init(&c->why, CANCEL_NONE);
    *out = c;
    return HD_OK;
}

void cancel_ref(cancellation *c) { atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed); }

void cancel_unref(cancellation *c) {
    if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) return;
    HD_ASSERT(!c->head && !c->firing);
    pthread_cond_destroy(&c->returned);
    pthread_mutex_destroy(&c->mu);
    hd_free(c);
}

cancel_reason cancel_why(const cancellation *c) {
    return (cancel_reason)atomic_load_explicit(&c->why, memory_order_acquire);
}

hd_status cancel_check(const cancellation *c, hd_err *err) {
    cancel_reason why = cancel_why(c);
    if (why == CANCEL_NONE) return HD_OK;
    return hd_fail(err, HD_CANCELLED, "generation cancelled: %s", cancel_reason_name(why));
}

static void unlink_sub(cancellation *c, cancel_sub *s) {
    if (s->prev)
        s->prev->next = s->next;
    else
        c->head = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        c->tail = s->prev;
    s->prev = s->next = NULL;
}

static void free_sub(cancel_sub *s) {
    cancellation *c = s->of;
    hd_free(s);
    cancel_unref(c);
}

bool cancel_fire(cancellation *c, cancel_reason why) {
    HD_ASSERT(why != CANCEL_NONE);
    pthread_mutex_lock(&c->mu);
    if (cancel_why(c) != CANCEL_NONE) {
        pthread_mutex_unlock(&c->mu);
        return false;
    }
    atomic_store_explicit(&c->why, (int)why, memory_order_release);
    cancel_ref(c); /* an observer may drop the caller's */
    c->firing = true;
    c->by = pthread_self();
    for (cancel_sub *s; (s = c->head);) {
        unlink_sub(c, s);
        s->told = true;
        c->running = s;
        pthread_mutex_unlock(&c->mu);
        s->fn(s->ctx, why);
        pthread_mutex_lock(&c->mu);
        c->running = NULL;
        pthread_cond_broadcast(&c->returned);
        if (s->gone) free_sub(s); /* not the last reference: ours is still there */
    }
    c->firing = false;
    pthread_mutex_unlock(&c->mu);
    cancel_unref(c);
    return true;
}

hd_status cancel_subscribe(cancellation *c, cancel_observer fn, void *ctx, cancel_sub **out, hd_err *err) {
    cancel_reason why = cancel_why(c);
    cancel_sub *s = NULL;
    *out = NULL;
    if (why == CANCEL_NONE && !(s = hd_calloc(1, sizeof *s)))
        return hd_fail(err, HD_NOMEM, "cancel: no memory for a subscription");
    pthread_mutex_lock(&c->mu);
    if ((why = cancel_why(c)) == CANCEL_NONE) {
        cancel_ref(c);
        s->of = c;
        s->fn = fn;
        s->ctx = ctx;
        s->prev = c->tail;
        if (c->tail)
            c->tail->next = s;
        else
            c->head = s;
        c->tail = s;
        *out = s;
    }
    pthread_mutex_unlock(&c->mu);
    if (why != CANCEL_NONE) {
        hd_free(s);
        fn(ctx, why);
    }
    return HD_OK;
}

bool cancel_unsubscribe(cancel_sub *s) {
    cancellation *c;
    bool inside, later = false;
    if (!s) return false;
    c = s->of;
    pthread_mutex_lock(&c->mu);
    HD_ASSERT(!s->gone);
    inside = c->firing && pthread_equal(c->by, pthread_self());
    if (inside && (!s->told || c->running == s)) {
        s->gone = true;
        later = !s->told;
        s = NULL; /* cancel_fire frees it */
    } else if (!s->told) {
        unlink_sub(c, s);
    } else {
        while (c->running == s) pthread_cond_wait(&c->returned, &c->mu);
    }
    pthread_mutex_unlock(&c->mu);
    if (s) free_sub(s);
    return later;
}
