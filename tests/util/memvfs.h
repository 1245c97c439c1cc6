/* memvfs.h - an SQLite file layer in memory that can fail and lose power, for tests.
 *
 * Each file has two images: what programs see, and what is on the disk.  Writes change the first and are remembered in
 * order; a sync makes the second equal to the first.  At a *power cut* every call fails from then on.  memvfs_reboot then
 * builds what a disk may hold: of the unsynced writes each sector is there, missing, torn (a part of it) or scrambled;
 * truncations, creations and deletions that were not synced happened or did not.  All by a seed.
 * Thread-safe.  Locks and the shared index of the WAL work within the process. */
#ifndef TESTS_UTIL_MEMVFS_H
#define TESTS_UTIL_MEMVFS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct memvfs memvfs;

memvfs *memvfs_new(const char *name); /* registered with SQLite under this name (copied) */
void memvfs_free(memvfs *v);          /* all files must be closed */

/* The n-th write, truncation or sync from now on (0: the next) and `times` - 1 after it return `code`; n < 0: none. */
void memvfs_fail(memvfs *v, long n, long times, int code);
/* The power goes at the n-th sync from now on (0: the next), which does not happen; n < 0: never. */
void memvfs_cut_at_sync(memvfs *v, long n);
/* Likewise at the n-th write, of which nothing is seen. */
void memvfs_cut_at_write(memvfs *v, long n);
/* While held, syncs wait.  memvfs_hold(v, false) lets them go. */
void memvfs_hold(memvfs *v, bool on);

bool memvfs_is_cut(memvfs *v);
long memvfs_syncs(memvfs *v);  /* so far */
long memvfs_writes(memvfs *v); /* writes, truncations and syncs so far */

/* After a cut or not, all files closed: what the disk holds becomes what programs see; power is back. */
void memvfs_reboot(memvfs *v, uint64_t seed);
void memvfs_clear(memvfs *v); /* an empty disk */

#endif
