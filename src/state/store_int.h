/* store_int.h - what store.c (callers), store_index.c (what is known), store_dir.c (the directory) and store_write.c (the
 * writer thread) share. */
#ifndef HD_STATE_STORE_INT_H
#define HD_STATE_STORE_INT_H

#include "state/segment.h"
#include "state/store.h"

#include <pthread.h>

enum {
    STORE_QUEUED_SEG = -1, /* entry.seg: the page is in the queue, `number` is its slot */
    STORE_FREE_SEG = -2,
    STORE_NONE = -1,
    STORE_MAX_LISTED = 65536, /* names looked at in the directory */
    STORE_TOUCH_S = 60,       /* a segment's last use is kept to this grain */
    STORE_SCRATCH = 1 << 20,
};

typedef struct {
    seg_entry e;
    int32_t seg;     /* index in segs, or one of the above */
    uint32_t number; /* block in the segment, or slot in the queue */
    int32_t next;    /* in its bucket, or in the free list */
} store_entry;

typedef struct {
    seg_head h;
    bool used, ours; /* !ours: of another key or version, only counted */
    int64_t touched_s;
} store_seg;

/* FILLING: its putter copies.  READY: the writer may take it. */
typedef enum { Q_FILLING, Q_READY, Q_SKIP /* another process wrote it meanwhile */ } store_qstate;

/* A queued page.  Its memory is a piece of the ring; pieces are taken and given back in order. */
typedef struct {
    seg_page page;
    uint64_t ring_at, ring_bytes;
    uint64_t seq, t_us;
    store_qstate state;
    uint32_t readers; /* getters that copy from it: it stays until they are done */
} store_slot;

struct store {
    const vfs *fs;
    store_opts opt;
    char path[512]; /* dir/kv, for messages */
    seal_master master;
    int dir, lock_fd;

    /* Writer thread only (and store_open before it starts). */
    uint8_t *scratch;
    seg_page **batch;
    seg_entry *loading; /* SEG_MAX_BLOCKS */
    uint64_t dir_changed;

    pthread_t writer;
    bool started;
    pthread_mutex_t mu;  /* guards everything below; never held over a file operation */
    pthread_cond_t work; /* to the writer */
    pthread_cond_t done; /* from the writer, and from the last reader of a slot */
    bool stop;
    uint64_t seed; /* of the hash of keys */

    store_entry *entries;
    size_t n_entries, entries_cap;
    int32_t free_entry;
    int32_t *buckets;
    uint32_t n_buckets; /* a power of two */
    uint64_t n_known;   /* entries in use */
    store_seg *segs;
    size_t n_segs, segs_cap;

    uint8_t *ring;
    uint64_t ring_tail; /* where the next piece may begin; the oldest begins at its slot's ring_at */
    store_slot *slots;  /* opt.max_queued, a ring: [slot_head, slot_head + n_slots) */
    uint32_t slot_head, n_slots;
    uint64_t next_seq, done_seq; /* pages with seq < done_seq are settled */
    uint64_t flush_seq;          /* pages below do not linger */
    uint64_t failed_since_flush;
    uint64_t t_retry_us, t_scan_us;
    uint64_t scans_asked, scans_done;
    store_counts n;
};

uint64_t store_now_us(void);                                     /* monotonic */
void store_wait(store *s, pthread_cond_t *c, uint64_t until_us); /* with mu held */
void store_fail_start(bool on); /* tests: the writer thread does not start, for this thread's opens */
static inline store_slot *store_slot_at(store *s, uint32_t i) { return &s->slots[(s->slot_head + i) % s->opt.max_queued]; }

/* store_index.c; all with mu held */
bool store_index_init(store *s);
void store_index_free(store *s);
store_entry *store_index_find(store *s, const pagekey *key);
/* Put or replace; false: no room (the page is then not found, nothing else). */
bool store_index_set(store *s, const seg_entry *e, int32_t seg, uint32_t number);
void store_index_drop(store *s, const pagekey *key);
int32_t store_seg_add(store *s, const seg_head *h, bool ours, int64_t now_s); /* STORE_NONE: no memory */
void store_seg_drop(store *s, int32_t seg);
/* Make the pages of segment `seg` findable, where the index has nothing as good. */
void store_index_take(store *s, int32_t seg, const seg_entry *e, uint32_t n);

/* store_dir.c: writer thread, mu not held.
 * Bring the index up to the directory.  With room: the caller has the directory's lock, and what is least useful goes until
 * need_bytes in one more file with need_pages fit.  HD_FULL: they do not, HD_IO, HD_NOMEM. */
hd_status store_dir_pass(store *s, bool make_room, uint64_t need_bytes, uint32_t need_files, uint32_t need_pages, hd_err *err);
hd_status store_dir_lock(store *s, hd_err *err); /* waits up to 2 s: HD_TIMEOUT */
void store_dir_unlock(store *s);
void store_remove(store *s, const uint8_t id[SEG_ID]); /* any thread, mu not held */
uint64_t store_listing_bytes(void);                    /* of the longest listing of the directory */

/* store_salt.c has store_salt. */

/* store_write.c */
void *store_writer(void *arg);

#endif
