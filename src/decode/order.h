/* order.h - the candidates in order (value descending, id ascending), as many as somebody wants, without sorting all.
 *
 * Windows below the maximum are searched for their candidates one after another, each as deep as all before it.  Those of a
 * window are put into buckets of 1/16; order_more sorts the next few buckets, each time some four times as many in all.
 * Sampling looks at the top of a distribution, so the first call is nearly always the last.  The worst case (a flat
 * distribution walked to its end) is one radix sort of the vocabulary.  -inf and NaN are no candidates. */
#ifndef HD_DECODE_ORDER_H
#define HD_DECODE_ORDER_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORDER_BUCKETS = 4096, ORDER_FIRST = 128 };

/* An entry: the value as a key whose unsigned order is descending, then the id. */
typedef uint64_t order_entry;
static inline uint32_t order_id(order_entry e) { return (uint32_t)e; }
float order_value(order_entry e);

typedef struct {
    const kernels *k;
    const float *x; /* n values; must not change while in use */
    size_t n;
    float max;
    order_entry *c;        /* n of scratch: c[0..n_ready) is sorted, [n_ready..n_filled) the rest of the window by buckets */
    order_entry *tmp;      /* n of scratch */
    uint32_t *ids;         /* n of scratch: the window's */
    uint32_t *hist;        /* ORDER_BUCKETS of scratch: where buckets of the window end in c */
    size_t n_ready, n_filled, n_ids;
    float low;             /* the window's lower end, which is not in it */
    uint32_t next;         /* buckets of the window below this one are sorted */
} order;

/* k, x, n, max (the maximum of x, finite), c, tmp, ids and hist are set by the caller. */
void order_begin(order *o);
/* True: n_ready grew.  False: all candidates are in c. */
bool order_more(order *o);
/* True: there is a candidate number i, and c[i] is it. */
static inline bool order_has(order *o, size_t i) {
    while (i >= o->n_ready)
        if (!order_more(o)) return false;
    return true;
}

#endif
