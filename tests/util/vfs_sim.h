/* vfs_sim.h - a directory in memory behind state/vfs.h, which fails when told to and loses what was not synced.
 *
 * It keeps twice what a disk keeps: what programs see, and what would be left after a power cut.  sync of a file copies its
 * contents from the first to the second, sync of the directory its names.  vfs_sim_cut throws a coin for everything that was
 * not synced: each name that was made, renamed or removed, and each 512 bytes of each file.  All paths are the one directory. */
#ifndef HD_TESTS_VFS_SIM_H
#define HD_TESTS_VFS_SIM_H

#include "state/vfs.h"

#include <pthread.h>

enum { SIM_FILES = 256, SIM_FDS = 64, SIM_LOG = 1024, SIM_NAME = 48 };

typedef struct {
    uint8_t *data, *disk; /* as seen, as synced */
    size_t size, disk_size;
    int64_t mtime_s;
    int locker;    /* fd + 1, or 0 */
    uint32_t refs; /* names, names on disk, log, fds */
} sim_file;

typedef struct {
    char name[SIM_NAME];
    sim_file *f;
} sim_name;

typedef struct {
    vfs table; /* give &table to the store */
    pthread_mutex_t mu;
    uint64_t rng;
    int64_t now_s;
    uint64_t capacity; /* bytes of all files as seen; above: ENOSPC */

    long n_ops, n_syncs;
    long fail_at; /* this operation fails (0: the first), or -1 */
    int fail_errno;
    bool fail_stays; /* and all after it: the process is as good as dead */
    bool short_io;   /* reads and writes do a part */
    bool read_only;

    sim_name names[SIM_FILES], disk[SIM_FILES]; /* f NULL: free */
    struct {
        char from[SIM_NAME], to[SIM_NAME]; /* "" : none */
        sim_file *f;
    } log[SIM_LOG]; /* of names, since the directory's last sync */
    int n_log;
    uint64_t changes;
    struct {
        sim_file *f;
        bool used, dir;
    } fds[SIM_FDS];
} vfs_sim;

void vfs_sim_init(vfs_sim *s, uint64_t seed);
void vfs_sim_deinit(vfs_sim *s);
void vfs_sim_cut(vfs_sim *s);                        /* no store is open */
void vfs_sim_copy(vfs_sim *to, const vfs_sim *from); /* names and contents only, all synced; to is initialised */

/* For tests that look and spoil: the i-th file whose name ends in ".kv" in the order of names, or NULL. */
sim_name *vfs_sim_segment(vfs_sim *s, int i);
int vfs_sim_segments(vfs_sim *s);
uint64_t vfs_sim_bytes(vfs_sim *s, const char *suffix);

#endif
