/* vfs.h - the few file operations the disk tier uses, behind one table, so that tests can make any of them fail.
 *
 * Names are entries of one directory; there are no paths below it.  Every call answers 0 or a count, or -errno.
 * pread and pwrite may be short; vfs_read and vfs_write go on until all is done. */
#ifndef HD_STATE_VFS_H
#define HD_STATE_VFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { VFS_READ, VFS_MAKE /* must not exist; mode 0600 */, VFS_KEEP /* made when missing; mode 0600 */ } vfs_mode;

typedef struct {
    uint64_t size;
    int64_t mtime_s;
    bool regular;
} vfs_stat;

typedef struct vfs {
    void *ctx;
    /* Open a directory, made with mode 0700 when missing (its parents are not).  own: set the mode even if it was there. */
    int (*open_dir)(void *ctx, const char *path, bool own);
    int (*open)(void *ctx, int dir, const char *name, vfs_mode mode); /* never follows a link */
    void (*close)(void *ctx, int fd);
    int64_t (*pread)(void *ctx, int fd, void *buf, size_t n, uint64_t at);
    int64_t (*pwrite)(void *ctx, int fd, const void *buf, size_t n, uint64_t at);
    int (*reserve)(void *ctx, int fd, uint64_t size); /* the file has this size from now on, its blocks if the system can */
    int (*sync)(void *ctx, int fd);                   /* of a file: contents and size; of a directory: its entries */
    int (*rename)(void *ctx, int dir, const char *from, const char *to);
    int (*unlink)(void *ctx, int dir, const char *name);
    int (*lock)(void *ctx, int fd, bool on); /* exclusive against every other open of the file; -EWOULDBLOCK at once */
    int (*stat)(void *ctx, int dir, const char *name, vfs_stat *out);
    int (*touch)(void *ctx, int fd); /* mtime = now */
    /* Calls each(...) per entry until it answers false. */
    int (*list)(void *ctx, int dir, bool (*each)(void *each_ctx, const char *name), void *each_ctx);
    /* A number that differs once entries were added or removed since; 0: cannot tell, so look again. */
    uint64_t (*changed)(void *ctx, int dir);
    int (*random)(void *ctx, void *buf, size_t n);
    int64_t (*now_s)(void *ctx); /* the clock of mtime_s */
} vfs;

extern const vfs vfs_real;

int vfs_read(const vfs *fs, int fd, void *buf, size_t n, uint64_t at); /* -ENODATA: the file ends before at + n */
int vfs_write(const vfs *fs, int fd, const void *buf, size_t n, uint64_t at);

#endif
