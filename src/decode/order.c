/* order.c - see order.h. */
#include "decode/order.h"

#include <math.h>
#include <string.h>

static const float PER_UNIT = 16;    /* buckets per unit of logit: e^(1/16) between neighbours, 256 units in all */
static const float FIRST_DEPTH = 8;  /* of the first window: e^-8 of the best token's probability */
enum { FEW = 256 };                  /* so many of a window are sorted at once */

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
static uint32_t bucket(const order *o, uint32_t id) {
    float d = (o->max - o->x[id]) * PER_UNIT;
    return d < ORDER_BUCKETS - 1 ? (uint32_t)d : ORDER_BUCKETS - 1;
}

void order_begin(order *o) {
    o->n_ready = o->n_filled = 0;
    o->low = o->max;
}

/* By entry, ascending; entries with equal keys come in ascending id and stay so. */
static void sort_entries(order_entry *e, order_entry *tmp, size_t n) {
    enum { BYTES = 4 }; /* of the key */
    uint32_t count[BYTES][256] = {{0}};
    order_entry *from = e;
    if (n <= 64) {
        for (size_t i = 1; i < n; i++) {
            order_entry v = e[i];
            size_t j = i;
            for (; j && e[j - 1] > v; j--) e[j] = e[j - 1];
            e[j] = v;
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        for (int b = 0; b < BYTES; b++) count[b][e[i] >> (32 + 8 * b) & 255]++;
    for (int b = 0; b < BYTES; b++) { /* stable passes over the key's bytes */
        const int shift = 32 + 8 * b;
        uint32_t at = 0;
        if (count[b][from[0] >> shift & 255] == n) continue; /* all alike: neighbours share their upper bytes */
        for (size_t v = 0; v < 256; v++) {
            uint32_t k = count[b][v];
            count[b][v] = at;
            at += k;
        }
        for (size_t i = 0; i < n; i++) tmp[count[b][from[i] >> shift & 255]++] = from[i];
        order_entry *swap = from;
        from = tmp;
        tmp = swap;
    }
    if (from != e) memcpy(e, from, n * sizeof *e);
}

/* Put the window's candidates into c behind what is there, by buckets.  hist: where each bucket ends. */
static void fill(order *o) {
    size_t at = o->n_ready;
    memset(o->hist, 0, ORDER_BUCKETS * sizeof *o->hist);
    for (size_t i = 0; i < o->n_ids; i++) o->hist[bucket(o, o->ids[i])]++;
    for (size_t b = 0; b < ORDER_BUCKETS; b++) {
        size_t n = o->hist[b];
        o->hist[b] = (uint32_t)at;
        at += n;
    }
    for (size_t i = 0; i < o->n_ids; i++) {
        uint32_t id = o->ids[i];
        o->c[o->hist[bucket(o, id)]++] = entry(o->x[id], id);
    }
    o->next = 0;
}

/* The next window: what lies below the last one, which was empty if it is the first.  False: there is none. */
static bool next_window(order *o) {
    bool first = o->low == o->max;
    float hi = o->low, depth = first ? FIRST_DEPTH : 2 * (o->max - o->low);
    if (hi == -INFINITY) return false;
    o->low = depth * PER_UNIT < ORDER_BUCKETS && o->max - depth < hi ? o->max - depth : -INFINITY;
    o->n_ids = vec_between(o->k, o->x, o->n, o->low, hi, o->ids);
    o->n_filled = o->n_ready + o->n_ids;
    if (o->n_ids <= FEW)
        for (size_t i = 0; i < o->n_ids; i++) o->c[o->n_ready + i] = entry(o->x[o->ids[i]], o->ids[i]);
    else
        fill(o);
    return true;
}

bool order_more(order *o) {
    size_t want = o->n_ready ? o->n_ready * 4 : ORDER_FIRST, n = o->n_ready;
    while (o->n_filled == o->n_ready)
        if (!next_window(o)) return false;
    if (o->n_ids <= FEW) n = o->n_filled;
    while (n < want && n < o->n_filled) n = o->hist[o->next++];
    sort_entries(o->c + o->n_ready, o->tmp, n - o->n_ready);
    o->n_ready = n;
    return true;
}
