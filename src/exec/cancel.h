/* cancel.h - cancellation: one source, many observers.
 *
 * The first reason wins and stays.  Each subscription is its own handle and is told at most once, in subscription
 * order; those present when cancel begins are told even if they are removed meanwhile by another observer - except that
 * once cancel_unsubscribe has returned to a caller that is not itself inside an observer of this source (told by
 * cancel_fire, in the same thread), its observer neither runs nor will.  So two observers of different sources, fired
 * in two threads, must not remove each other: each would wait for the other. Subscribing after the cancel calls the
 * observer at once.  Observers run outside the source's lock, so they may subscribe, unsubscribe and cancel; what one
 * does never keeps the others from being told.  All calls are thread-safe. */
#ifndef HD_EXEC_CANCEL_H
#define HD_EXEC_CANCEL_H

#include "base/err.h"

#include <stdbool.h>

#define CANCEL_REASONS(X)                                                                                              \
    X(NONE, "none")                                                                                                    \
    X(CLIENT_DISCONNECTED, "client_disconnected")                                                                      \
    X(BY_REQUEST, "cancelled_by_request")                                                                              \
    X(IDLE_TIMEOUT, "idle_timeout")                                                                                    \
    X(DEADLINE_QUEUE, "deadline_queue")                                                                                \
    X(DEADLINE_FIRST_TOKEN, "deadline_first_token")                                                                    \
    X(DEADLINE_TOTAL, "deadline_total")                                                                                \
    X(ENGINE_CLOSED, "engine_closed")                                                                                  \
    X(SHUTDOWN, "shutdown")                                                                                            \
    X(FAILED, "failed")
typedef enum {
#define X(id, name) CANCEL_##id,
    CANCEL_REASONS(X)
#undef X
} cancel_reason;
const char *cancel_reason_name(cancel_reason r);

typedef struct cancellation cancellation;
typedef struct cancel_sub cancel_sub;
typedef void (*cancel_observer)(void *ctx, cancel_reason why);

hd_status cancel_new(cancellation **out, hd_err *err);
/* Reference counted: the maker holds one, each subscription one, cancel_ref one more.  Freed with the last. */
void cancel_ref(cancellation *c);
void cancel_unref(cancellation *c); /* NULL is fine */

/* True: this call set the reason, and every observer has been told when it returns.  False: it was cancelled before,
 * with the reason of that time; its observers may still be on their way.  why is not CANCEL_NONE. */
bool cancel_fire(cancellation *c, cancel_reason why);
cancel_reason cancel_why(const cancellation *c); /* CANCEL_NONE: not cancelled */
/* HD_CANCELLED with "generation cancelled: <reason>", or HD_OK. */
hd_status cancel_check(const cancellation *c, hd_err *err);

/* *out is NULL when the observer was called at once.  HD_NOMEM. */
hd_status cancel_subscribe(cancellation *c, cancel_observer fn, void *ctx, cancel_sub **out, hd_err *err);
/* NULL is fine.  Frees the handle.  Waits for the observer if it is running in another thread.
 * True: the call came from inside another observer of this source, and this observer has yet to be told and will be, so
 * its ctx must live until then.  False: it does not run after this call (unless it is the caller itself). */
bool cancel_unsubscribe(cancel_sub *s);

#endif
