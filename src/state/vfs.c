/* vfs.c - the operations of vfs.h on the real file system. */
#include "state/vfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int result(int64_t r) { return r < 0 ? -errno : 0; }

static int real_open_dir(void *ctx, const char *path, bool own) {
    int fd;
    (void)ctx;
    if (mkdir(path, 0700) && errno != EEXIST) return -errno;
    if ((fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) return -errno;
    if (own) {
        struct stat sb;
        if (fstat(fd, &sb) || ((sb.st_mode & 0777) != 0700 && fchmod(fd, 0700))) {
            int e = errno;
            close(fd);
            return -e;
        }
    }
    return fd;
}

static int real_open(void *ctx, int dir, const char *name, vfs_mode mode) {
    static const int flags[] = {O_RDONLY, O_RDWR | O_CREAT | O_EXCL, O_RDWR | O_CREAT};
    int fd;
    (void)ctx;
    /* O_NONBLOCK: a pipe put in a file's place must not hang the opener. */
    do fd = openat(dir, name, flags[mode] | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

static void real_close(void *ctx, int fd) {
    (void)ctx;
    close(fd);
}

static int64_t real_pread(void *ctx, int fd, void *buf, size_t n, uint64_t at) {
    ssize_t r;
    (void)ctx;
    do r = pread(fd, buf, n, (off_t)at);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : r;
}

static int64_t real_pwrite(void *ctx, int fd, const void *buf, size_t n, uint64_t at) {
    ssize_t r;
    (void)ctx;
    do r = pwrite(fd, buf, n, (off_t)at);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : r;
}

static int real_reserve(void *ctx, int fd, uint64_t size) {
    int r;
    (void)ctx;
    /* Not posix_fallocate: where the file system cannot, that one writes every block. */
    do r = fallocate(fd, 0, 0, (off_t)size);
    while (r && errno == EINTR);
    if (r && (errno == EOPNOTSUPP || errno == ENOSYS)) r = ftruncate(fd, (off_t)size);
    return result(r);
}

static int real_sync(void *ctx, int fd) {
    (void)ctx;
    return result(fsync(fd));
}

static int real_rename(void *ctx, int dir, const char *from, const char *to) {
    (void)ctx;
    return result(renameat(dir, from, dir, to));
}

static int real_unlink(void *ctx, int dir, const char *name) {
    (void)ctx;
    return result(unlinkat(dir, name, 0));
}

static int real_lock(void *ctx, int fd, bool on) {
    int r;
    (void)ctx;
    do r = flock(fd, on ? LOCK_EX | LOCK_NB : LOCK_UN);
    while (r && errno == EINTR);
    return result(r);
}

static int real_stat(void *ctx, int dir, const char *name, vfs_stat *out) {
    struct stat sb;
    (void)ctx;
    if (fstatat(dir, name, &sb, AT_SYMLINK_NOFOLLOW)) return -errno;
    *out = (vfs_stat){(uint64_t)sb.st_size, sb.st_mtim.tv_sec, S_ISREG(sb.st_mode)};
    return 0;
}

static int real_touch(void *ctx, int fd) {
    (void)ctx;
    return result(futimens(fd, NULL));
}

static int real_list(void *ctx, int dir, bool (*each)(void *, const char *), void *each_ctx) {
    int fd, e;
    DIR *d;
    (void)ctx;
    /* A directory descriptor of its own: the stream moves its offset. */
    if ((fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) return -errno;
    if (!(d = fdopendir(fd))) {
        e = errno;
        close(fd);
        return -e;
    }
    errno = 0;
    for (struct dirent *ent; (ent = readdir(d)); errno = 0)
        if (!each(each_ctx, ent->d_name)) break;
    e = errno;
    closedir(d);
    return -e;
}

static uint64_t real_changed(void *ctx, int dir) {
    struct stat sb;
    (void)ctx;
    if (fstat(dir, &sb)) return 0;
    /* The kernel stamps in ticks, so what changed just now may change again with the same stamp. */
    if (sb.st_mtim.tv_sec >= time(NULL) - 1) return 0;
    return (uint64_t)sb.st_mtim.tv_sec * 1000000000u + (uint64_t)sb.st_mtim.tv_nsec;
}

static int real_random(void *ctx, void *buf, size_t n) {
    (void)ctx;
    for (size_t at = 0; at < n;) {
        ssize_t r = getrandom((char *)buf + at, n - at, 0);
        if (r < 0 && errno != EINTR) return -errno;
        if (r > 0) at += (size_t)r;
    }
    return 0;
}

static int64_t real_now_s(void *ctx) {
    (void)ctx;
    return time(NULL);
}

const vfs vfs_real = {NULL,         real_open_dir, real_open,    real_close,  real_pread, real_pwrite,
                      real_reserve, real_sync,     real_rename,  real_unlink, real_lock,  real_stat,
                      real_touch,   real_list,     real_changed, real_random, real_now_s};

int vfs_read(const vfs *fs, int fd, void *buf, size_t n, uint64_t at) {
    for (size_t done = 0; done < n;) {
        int64_t r = fs->pread(fs->ctx, fd, (char *)buf + done, n - done, at + done);
        if (r < 0) return (int)r;
        if (r == 0) return -ENODATA;
        done += (size_t)r;
    }
    return 0;
}

int vfs_write(const vfs *fs, int fd, const void *buf, size_t n, uint64_t at) {
    for (size_t done = 0; done < n;) {
        int64_t r = fs->pwrite(fs->ctx, fd, (const char *)buf + done, n - done, at + done);
        if (r < 0) return (int)r;
        if (r == 0) return -EIO;
        done += (size_t)r;
    }
    return 0;
}
