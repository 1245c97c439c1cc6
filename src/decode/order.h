/* order.h - the candidates in order (value descending, id ascending), as many as somebody wants, without sorting all.
 *
 * order_begin counts the values into buckets of 1/16 below the maximum.  order_more then collects the next few buckets,
 * sorts only those and appends them, each time some four times as many.  Sampling looks at the top of a distribution,
 * so the first call is nearly always the last.  The worst case (a flat distribution walked to its end) is one radix
 * sort of the vocabulary.  -inf and NaN are no candidates. */
#ifndef HD_DECODE_ORDER_H
#define HD_DECODE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORDER_BUCKETS = 4096, ORDER_FIRST = 128 };

/* An entry: the value as a key whose unsigned order is descending, then the id. */
typedef uint64_t order_entry;
static inline uint32_t order_id(order_entry e) { return (uint32_t)e; }
float order_value(order_entry e);

typedef struct {
    const float *x; /* n values; must not change while in use */
    size_t n;
    float max;
    order_entry *c;        /* n of scratch: c[0..n_ready) is sorted, the rest follows later */
    order_entry *tmp;      /* n of scratch */
    uint32_t *hist;        /* ORDER_BUCKETS of scratch */
    size_t n_ready, n_all; /* n_all: number of candidates */
    uint32_t next;         /* buckets below this one are in c */
} order;

/* x, n, max (the maximum of x, finite), c, tmp and hist are set by the caller. */
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
