/* line.c - see line.h. */
#include "exec/line.h"
#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

void line_init(line *l, uint64_t age_us) {
    memset(l, 0, sizeof *l);
    l->age_us = age_us;
}

static share **bucket_of(line *l, const char *key) { return &l->bucket[XXH3_64bits(key, strlen(key)) % 64]; }

static void link_share(share **list, share *h) {
    h->prev = NULL;
    if ((h->next = *list)) h->next->prev = h;
    *list = h;
}

static void unlink_share(share **list, share *h) {
    if (h->prev) h->prev->next = h->next;
    else *list = h->next;
    if (h->next) h->next->prev = h->prev;
    h->next = h->prev = NULL;
}

static void unlink_idle(line *l, share *h) {
    if (l->idle_last == h) l->idle_last = h->prev;
    unlink_share(&l->idle, h);
    l->n_idle--;
}

static void drop_share(line *l, share *h) {
    share **at = bucket_of(l, h->key);
    while (*at != h) at = &(*at)->next_hash;
    *at = h->next_hash;
    hd_free(h);
}

void line_deinit(line *l) {
    HD_ASSERT(!l->n_waiting && !l->active);
    while (l->idle) {
        share *h = l->idle;
        unlink_idle(l, h);
        drop_share(l, h);
    }
}

bool line_join(line *l, session *s) {
    share **at = bucket_of(l, s->copy.share), *h = *at;
    while (h && strcmp(h->key, s->copy.share) != 0) h = h->next_hash;
    if (!h) {
        if (!(h = hd_calloc(1, sizeof *h))) return false;
        memcpy(h->key, s->copy.share, sizeof h->key);
        h->next_hash = *at;
        *at = h;
    } else if (!h->n_live) {
        unlink_idle(l, h);
    }
    h->n_live++;
    s->share = h;
    return true;
}

void line_leave(line *l, session *s) {
    share *h = s->share;
    s->share = NULL;
    if (--h->n_live) return;
    if (h->vtime <= l->vnow) { /* it would start anew anyway */
        drop_share(l, h);
        return;
    }
    h->next = NULL;
    if ((h->prev = l->idle_last)) h->prev->next = h;
    else l->idle = h;
    l->idle_last = h;
    if (++l->n_idle > LINE_MAX_IDLE) {
        share *oldest = l->idle;
        unlink_idle(l, oldest);
        drop_share(l, oldest);
    }
}

static line_queue *queue_of(const session *s) { return &s->share->q[s->copy.req.priority - PRIORITY_HIGH]; }

void line_push(line *l, session *s) {
    line_queue *q = queue_of(s);
    session *after = q->tail;
    while (after && after->order > s->order) after = after->prev_wait;
    s->prev_wait = after;
    s->next_wait = after ? after->next_wait : q->head;
    if (after) after->next_wait = s;
    else q->head = s;
    if (s->next_wait) s->next_wait->prev_wait = s;
    else q->tail = s;
    if (!s->share->n_waiting++) link_share(&l->active, s->share);
    l->n_waiting++;
    s->waiting = true;
}

void line_remove(line *l, session *s) {
    line_queue *q = queue_of(s);
    HD_ASSERT(s->waiting);
    if (s->prev_wait) s->prev_wait->next_wait = s->next_wait;
    else q->head = s->next_wait;
    if (s->next_wait) s->next_wait->prev_wait = s->prev_wait;
    else q->tail = s->prev_wait;
    s->next_wait = s->prev_wait = NULL;
    if (!--s->share->n_waiting) unlink_share(&l->active, s->share);
    l->n_waiting--;
    s->waiting = false;
}

uint32_t line_rank(const line *l, const session *s, uint64_t now_us) {
    uint32_t class = (uint32_t)(s->copy.req.priority - PRIORITY_HIGH);
    uint64_t steps = now_us > s->t_submit_us ? (now_us - s->t_submit_us) / l->age_us : 0;
    return steps >= class ? 0 : class - (uint32_t)steps;
}

static uint64_t start_of(const line *l, const session *s) { return s->share->vtime > l->vnow ? s->share->vtime : l->vnow; }

static bool overdue(const line *l, const session *s, uint64_t now_us) {
    return now_us > s->t_submit_us && (now_us - s->t_submit_us) / l->age_us >= LINE_OVERDUE_AGES;
}

/* Within one rank. */
static bool before(const line *l, const session *a, const session *b, uint64_t now_us) {
    bool late_a = overdue(l, a, now_us), late_b = overdue(l, b, now_us);
    uint64_t sa, sb;
    if ((a->row != NULL) != (b->row != NULL)) return a->row != NULL;
    if (a->row || (late_a && late_b)) return a->order < b->order;
    if (late_a != late_b) return late_a;
    sa = start_of(l, a);
    sb = start_of(l, b);
    return sa != sb ? sa < sb : a->order < b->order;
}

session *line_next(const line *l, uint64_t now_us, uint32_t min_rank, uint32_t *rank) {
    session *best = NULL;
    *rank = UINT32_MAX;
    for (const share *h = l->active; h; h = h->next)
        for (int c = 0; c < N_PRIORITIES; c++) {
            session *s = h->q[c].head; /* the oldest of its queue, so also the most aged */
            uint32_t r;
            if (!s || (r = line_rank(l, s, now_us)) < min_rank || r > *rank) continue;
            if (r < *rank || before(l, s, best, now_us)) best = s, *rank = r;
        }
    return best;
}

void line_charge(line *l, session *s, uint64_t tokens) {
    uint64_t start = start_of(l, s);
    l->vnow = start;
    s->share->vtime = start + tokens;
    s->cost = tokens;
}

void line_settle(line *l, session *s, uint64_t tokens) {
    share *h = s->share;
    (void)l;
    if (tokens < s->cost) h->vtime -= s->cost - tokens < h->vtime ? s->cost - tokens : h->vtime;
    else h->vtime += tokens - s->cost;
    s->cost = tokens;
}

uint64_t line_next_change(const line *l, uint64_t now_us) {
    uint64_t next = UINT64_MAX;
    for (const share *h = l->active; h; h = h->next)
        for (int c = 0; c < N_PRIORITIES; c++) {
            const session *s = h->q[c].head;
            uint32_t r;
            uint64_t due;
            if (!s || overdue(l, s, now_us)) continue;
            r = line_rank(l, s, now_us);
            due = s->t_submit_us + (r ? (uint64_t)c - r + 1 : LINE_OVERDUE_AGES) * l->age_us;
            if (due < next) next = due;
        }
    return next;
}

void line_each(const line *l, void (*f)(void *ctx, session *s), void *ctx) {
    for (const share *h = l->active; h; h = h->next)
        for (int c = 0; c < N_PRIORITIES; c++)
            for (session *s = h->q[c].head; s; s = s->next_wait) f(ctx, s);
}
