/* store.h - the disk tier: pages of attention state in a directory that several processes share.
 *
 * store_put copies a page into a bounded queue; one writer thread makes segments of it (segment.h), written aside, synced,
 * renamed.  store_get copies a page back from the queue or from disk.  Whatever is doubtful is a miss, and a damaged file is
 * removed: damage never becomes an error of the caller's or a wrong answer.  Not there is HD_NOTFOUND.
 *
 * Limits: bytes of all files in the directory, files, pages known, bytes and pages in the queue; at the first three the
 * least useful segment goes, by (age since last use) * bytes / value; at the last two store_put refuses and counts.
 * When writing fails (no space, I/O error) the tier stops taking pages for retry_ms and says so in store_stats; reads go on.
 *
 * Any thread may call anything here, store_close excepted, which must be the last call. */
#ifndef HD_STATE_STORE_H
#define HD_STATE_STORE_H

#include "base/err.h"
#include "state/pagekey.h"
#include "state/vfs.h"

enum {
    STORE_GROUPS = 2,
    STORE_MAX_TOKENS = 1024, /* of one page */
};
#define STORE_MAX_GROUP_BYTES ((uint64_t)1 << 30)

typedef struct store store;

/* Zero means the default in brackets. */
typedef struct {
    const char *dir;        /* required; made with mode 0700 when missing, its parents are not.  Files lie in dir/kv */
    const char *key_file;   /* NULL: no encryption */
    uint64_t cap_bytes;     /* of all files together [4 GiB]; at least 1 MiB */
    uint64_t queue_bytes;   /* memory for pages on their way [64 MiB]; declared workspace */
    uint64_t segment_bytes; /* a segment is begun with this much waiting [8 MiB or cap / 2048; at most cap / 8, queue / 2] */
    uint32_t max_files;     /* [4096] */
    uint32_t max_pages;     /* in the index, about 100 bytes each [262144] */
    uint32_t max_queued;    /* pages in the queue [4096] */
    uint32_t linger_ms;     /* how long a page waits for others before it is written anyway [1000] */
    uint32_t retry_ms;      /* pause after a failed write [30000] */
    uint32_t rescan_ms;     /* files of other processes are looked for after a miss, at most this often [1000] */
    const vfs *fs;          /* [vfs_real] */
} store_opts;

/* Bytes of memory that a store with these options takes at most: its queue, what it knows of files, a listing of the directory. */
uint64_t store_bytes(const store_opts *opts);
/* HD_IO, HD_NOTFOUND, HD_INVALID name the path that was refused: directory, or key file (see seal_load). */
hd_status store_open(store **out, const store_opts *opts, hd_err *err);
/* Ends after the segment being written, if any; what still waits is lost, so store_flush first. */
void store_close(store *s);

/* A page.  Pointers are borrowed for the call.  blob[g] NULL: group g is absent; at least one is there, with 1 byte or more. */
typedef struct {
    pagekey key, parent;
    const uint8_t *identity; /* 32 bytes */
    const int32_t *tokens;
    uint32_t n_tokens; /* 1 .. STORE_MAX_TOKENS */
    const void *blob[STORE_GROUPS];
    uint64_t bytes[STORE_GROUPS];
    uint64_t value_us; /* compute a hit saves; 0: 1 ms per token */
} store_page;

/* HD_OK: queued, or it is there already with all these groups.  Waits up to wait_ms for room; 0 never blocks, which is what
 * the executor uses.  HD_FULL: no room, dropped.  HD_IO: writing is paused, dropped.  HD_NEVER_FITS: larger than the queue or
 * half the cap.  HD_INVALID: a field is out of range.  HD_NOMEM. */
hd_status store_put(store *s, const store_page *p, uint32_t wait_ms);

typedef enum { STORE_ABSENT, STORE_QUEUED, STORE_DURABLE } store_where;
/* What is known of a key, from memory, without touching the disk: so it may be gone at the get.  info may be NULL. */
typedef struct {
    uint64_t bytes[STORE_GROUPS]; /* 0: the group is absent */
    uint64_t value_us;
    uint32_t n_tokens;
} store_info;
store_where store_find(store *s, const pagekey *key, store_info *info);

/* Copy the groups whose into[g] is not NULL, each of exactly bytes[g] bytes; all must be there.  identity and token ids are
 * compared with what the file says.  HD_NOTFOUND: a miss, err (may be NULL) says why; HD_NOMEM.  Blocks for the disk. */
typedef struct {
    pagekey key;
    const uint8_t *identity;
    const int32_t *tokens;
    uint32_t n_tokens;
    void *into[STORE_GROUPS]; /* contents are undefined unless HD_OK */
    uint64_t bytes[STORE_GROUPS];
} store_want;
hd_status store_get(store *s, const store_want *w, hd_err *err);

/* Write what was put before this call.  HD_OK: all of it is durable.  HD_IO: some was given up since the last flush (err
 * says why).  HD_TIMEOUT: not finished in time; it goes on. */
hd_status store_flush(store *s, uint32_t timeout_ms, hd_err *err);

/* Look for files of other processes now, and wait until it is done (tests, start-up). */
void store_rescan(store *s);

/* 32 bytes that every process on this directory gets, today and after a restart; for naming what must not be guessed.  False:
 * they could not be kept (out is then undefined): the caller makes its own, and finds nothing again after a restart. */
enum { STORE_SALT = 32 };
bool store_salt(const store *s, uint8_t out[STORE_SALT]);

typedef struct {
    uint64_t files, pages, bytes, cap_bytes; /* files and bytes of the directory as last listed */
    uint64_t queue_pages, queue_bytes, queue_cap_bytes;
    uint64_t puts, put_known, put_dropped, put_failed; /* dropped: no room or paused; failed: taken, then not written */
    uint64_t hits, misses, foreign;                    /* foreign: sound, but of other tokens or another identity */
    uint64_t damaged_files, evicted_files, evicted_bytes, ignored_files; /* ignored: other version or other key */
    uint64_t written_bytes, read_bytes, write_errors;
    bool writing;         /* false while paused */
    char last_error[200]; /* of a write, "" if none yet */
} store_counts;
void store_stats(store *s, store_counts *out);

#endif
