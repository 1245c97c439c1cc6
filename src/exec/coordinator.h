/* coordinator.h - who may execute at all: many shared leases, or one exclusive one.
 *
 * Requests are served first come, first served: a shared request never overtakes a waiting exclusive one, so managed
 * jobs are never starved.  The waiting line is bounded.  Leases are not re-entrant: who holds one must not ask for
 * another (debug builds assert it per owner).  It coordinates execution, not memory.  Source of the rules: the
 * reference's coordinator, docs/execution.md.  Thread-safe; callbacks run outside the lock, on the thread whose call
 * decided: so make no call here, and fire no cancellation, while holding a lock that a callback takes.  Callbacks may
 * make any call but coordinator_wait and coordinator_quiesce. */
#ifndef HD_EXEC_COORDINATOR_H
#define HD_EXEC_COORDINATOR_H

#include "exec/cancel.h"

#include <stdint.h>

typedef struct coordinator coordinator;
typedef struct lease lease;
typedef enum { LEASE_SHARED, LEASE_EXCLUSIVE } lease_mode;
/* HD_OK: the lease is held until lease_release.  HD_CANCELLED, HD_CLOSED: there is none, the handle is gone.  Exactly
 * once. */
typedef void (*lease_told)(void *ctx, lease *l, hd_status st);

/* max_queued bounds the waiting ones; 0: grant now or refuse.  HD_NOMEM. */
hd_status coordinator_new(coordinator **out, uint32_t max_queued, hd_err *err);
void coordinator_free(coordinator *c); /* closed, no leases left; NULL is fine */

/* Decided in this order: closed (HD_CLOSED); already cancelled (HD_CANCELLED); granted at once; line full (HD_FULL);
 * else it waits.  On HD_OK *out is the handle and `told` has been or will be called; otherwise (also HD_NOMEM) *out is
 * NULL and `told` is never called.  *out is set before `told` can run in this call, and is as good as what `told` says
 * of it. A cancel while it waits ends it (HD_CANCELLED); after the grant it does nothing, the lease is its holder's.
 * owner: who asks (any pointer, NULL: unchecked), for the re-entrancy check; cancel may be NULL, and is borrowed only
 * for the call (a waiting lease keeps its own reference). */
hd_status coordinator_acquire(coordinator *c, lease_mode mode, const void *owner, cancellation *cancel, lease_told told,
                              void *ctx, lease **out, hd_err *err);
/* The same, waiting for the answer at most timeout_us (UINT64_MAX: for ever); HD_TIMEOUT: it no longer waits. Not
 * HD_OK: *out is NULL. */
hd_status coordinator_wait(coordinator *c, lease_mode mode, const void *owner, cancellation *cancel,
                           uint64_t timeout_us, lease **out, hd_err *err);
void lease_release(lease *l); /* a granted one; NULL is fine; the handle is gone */
/* No new leases; waiters are told HD_CLOSED; held ones stay valid. */
void coordinator_close(coordinator *c);
/* Wait until no lease is held, none waits and every callback has returned.  HD_TIMEOUT (0: only look). */
hd_status coordinator_quiesce(coordinator *c, uint64_t timeout_us, hd_err *err);

typedef struct {
    uint32_t shared_held, waiting, waiting_exclusive;
    bool exclusive_held, closed;
} coordinator_view;
coordinator_view coordinator_look(coordinator *c);

#endif
