/* store_index.c - what the store knows: entries by key, chained in buckets, and the segments they lie in.
 *
 * Entries and segments are named by their place in an array, so both arrays may move.  A segment's place is reused only by
 * the writer thread, which alone adds segments.  All with the mutex held, but for init and free. */
#include "state/store_int.h"

#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

static uint32_t bucket(const store *s, const pagekey *key) {
    return (uint32_t)XXH3_64bits_withSeed(key->b, sizeof key->b, s->seed) & (s->n_buckets - 1);
}

bool store_index_init(store *s) {
    s->n_buckets = 1024;
    s->free_entry = STORE_NONE;
    if (!(s->buckets = hd_alloc(s->n_buckets * sizeof *s->buckets))) return false;
    for (uint32_t i = 0; i < s->n_buckets; i++) s->buckets[i] = STORE_NONE;
    return true;
}

void store_index_free(store *s) {
    for (size_t i = 0; i < s->n_segs; i++) seal_wipe(&s->segs[i].h, sizeof s->segs[i].h);
    hd_free(s->segs);
    hd_free(s->entries);
    hd_free(s->buckets);
}

store_entry *store_index_find(store *s, const pagekey *key) {
    for (int32_t i = s->buckets[bucket(s, key)]; i != STORE_NONE; i = s->entries[i].next)
        if (!memcmp(s->entries[i].e.key.b, key->b, sizeof key->b)) return &s->entries[i];
    return NULL;
}

/* More buckets, if there is memory for them; without, chains get longer. */
static void spread(store *s) {
    uint32_t n = s->n_buckets * 2;
    int32_t *b = hd_alloc(n * sizeof *b);
    if (!b) return;
    for (uint32_t i = 0; i < n; i++) b[i] = STORE_NONE;
    hd_free(s->buckets);
    s->buckets = b;
    s->n_buckets = n;
    for (size_t i = 0; i < s->n_entries; i++) {
        store_entry *e = &s->entries[i];
        if (e->seg == STORE_FREE_SEG) continue;
        uint32_t k = bucket(s, &e->e.key);
        e->next = b[k];
        b[k] = (int32_t)i;
    }
}

bool store_index_set(store *s, const seg_entry *e, int32_t seg, uint32_t number) {
    store_entry *at = store_index_find(s, &e->key);
    if (!at) {
        size_t max = (size_t)s->opt.max_pages + s->opt.max_queued;
        uint32_t k;
        if (s->free_entry != STORE_NONE) {
            at = &s->entries[s->free_entry];
            s->free_entry = at->next;
        } else {
            if (!hd_grow(&s->entries, &s->entries_cap, s->n_entries + 1, sizeof *s->entries, max)) return false;
            at = &s->entries[s->n_entries++];
        }
        if (s->n_known++ >= s->n_buckets) {
            at->seg = STORE_FREE_SEG;
            spread(s);
        }
        k = bucket(s, &e->key);
        at->next = s->buckets[k];
        s->buckets[k] = (int32_t)(at - s->entries);
    }
    at->e = *e;
    at->seg = seg;
    at->number = number;
    return true;
}

void store_index_drop(store *s, const pagekey *key) {
    int32_t *link = &s->buckets[bucket(s, key)], i;
    while ((i = *link) != STORE_NONE) {
        store_entry *e = &s->entries[i];
        if (!memcmp(e->e.key.b, key->b, sizeof key->b)) {
            *link = e->next;
            e->seg = STORE_FREE_SEG;
            e->next = s->free_entry;
            s->free_entry = i;
            s->n_known--;
            return;
        }
        link = &e->next;
    }
}

int32_t store_seg_add(store *s, const seg_head *h, bool ours, int64_t now_s) {
    size_t i = 0;
    while (i < s->n_segs && s->segs[i].used) i++;
    if (i == s->n_segs) {
        if (!hd_grow(&s->segs, &s->segs_cap, i + 1, sizeof *s->segs, STORE_MAX_LISTED)) return STORE_NONE;
        s->n_segs++;
    }
    s->segs[i] = (store_seg){*h, true, ours, now_s};
    return (int32_t)i;
}

void store_seg_drop(store *s, int32_t seg) {
    if (!s->segs[seg].used) return;
    uint32_t left = s->segs[seg].ours ? s->segs[seg].h.n_blocks : 0;
    for (size_t i = 0; i < s->n_entries && left; i++)
        if (s->entries[i].seg == seg) {
            pagekey key = s->entries[i].e.key;
            store_index_drop(s, &key);
            left--;
        }
    seal_wipe(&s->segs[seg].h, sizeof s->segs[seg].h);
    s->segs[seg].used = false;
}

static bool as_good(const seg_entry *a, const seg_entry *b) {
    if (a->n_tokens != b->n_tokens) return false;
    for (int g = 0; g < SEG_GROUPS; g++)
        if (b->bytes[g] && a->bytes[g] != b->bytes[g]) return false;
    return true;
}

void store_index_take(store *s, int32_t seg, const seg_entry *e, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        store_entry *have = store_index_find(s, &e[i].key);
        if (have && have->seg >= 0 && as_good(&have->e, &e[i])) continue;
        if (have && have->seg == STORE_QUEUED_SEG) {
            store_slot *q = &s->slots[have->number];
            if (q->state != Q_READY || !as_good(&e[i], &have->e)) continue;
            q->state = Q_SKIP;
        }
        store_index_set(s, &e[i], seg, i);
    }
}
