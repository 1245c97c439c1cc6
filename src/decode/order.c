/* order.c - see order.h. */
#include "decode/order.h"

#include <math.h>
#include <string.h>

static const float PER_UNIT = 16; /* buckets per unit of logit: e^(1/16) between neighbours, 256 units in all */

/* -0 and 0 are equal as values, so they must be as keys: x + 0 turns -0 into 0. */
static order_entry entry(float x, size_t id) {
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, 4);
    u = u & 0x80000000u ? u : ~(u | 0x80000000u); /* ascending key ^ ~0: descending */
    return (uint64_t)u << 32 | (uint32_t)id;
}

float order_value(order_entry e) {
    uint32_t u = (uint32_t)(e >> 32);
    float x;
    u = u & 0x80000000u ? u : ~u & 0x7FFFFFFFu;
    memcpy(&x, &u, 4);
    return x;
}

/* Distance below the maximum in buckets; the last bucket has no lower end.  Rounding is monotone, so equal values share
 * a bucket and a greater value never falls into a later one: buckets are disjoint runs of the sorted order. */
static float depth(const order *o, size_t i) { return (o->max - o->x[i]) * PER_UNIT; }

void order_begin(order *o) {
    o->n_ready = o->n_all = 0;
    o->next = 0;
    memset(o->hist, 0, ORDER_BUCKETS * sizeof *o->hist);
    for (size_t i = 0; i < o->n; i++) {
        float d;
        if (!(o->x[i] > -INFINITY)) continue;
        d = depth(o, i);
        o->hist[d < ORDER_BUCKETS - 1 ? (uint32_t)d : ORDER_BUCKETS - 1]++;
        o->n_all++;
    }
}

/* By entry, ascending; entries with equal keys come in ascending id and stay so. */
static void sort_entries(order_entry *e, order_entry *tmp, size_t n) {
    if (n <= 64) {
        for (size_t i = 1; i < n; i++) {
            order_entry v = e[i];
            size_t j = i;
            for (; j && e[j - 1] > v; j--) e[j] = e[j - 1];
            e[j] = v;
        }
        return;
    }
    for (unsigned shift = 32; shift < 64; shift += 8) { /* four stable passes over the key's bytes */
        size_t count[256] = {0}, at = 0;
        order_entry *swap = tmp;
        for (size_t i = 0; i < n; i++) count[e[i] >> shift & 255]++;
        for (size_t b = 0; b < 256; b++) {
            size_t k = count[b];
            count[b] = at;
            at += k;
        }
        for (size_t i = 0; i < n; i++) tmp[count[e[i] >> shift & 255]++] = e[i];
        tmp = e;
        e = swap;
    }
}

bool order_more(order *o) {
    size_t want = o->n_ready ? o->n_ready * 4 : ORDER_FIRST, n = o->n_ready;
    uint32_t end = o->next;
    float lo = (float)o->next, hi;
    if (o->n_ready == o->n_all) return false;
    while (end < ORDER_BUCKETS && n < want) n += o->hist[end++];
    hi = end == ORDER_BUCKETS ? INFINITY : (float)end;
    n = o->n_ready;
    for (size_t i = 0; i < o->n; i++) {
        float d;
        if (!(o->x[i] > -INFINITY)) continue;
        d = depth(o, i);
        if (d >= lo && (d < hi || hi == INFINITY)) o->c[n++] = entry(o->x[i], i);
    }
    sort_entries(o->c + o->n_ready, o->tmp, n - o->n_ready);
    o->n_ready = n;
    o->next = end;
    return true;
}
