/* store_salt.c - the directory's salt: what names that are secrets are mixed with before they name anything on disk.
 *
 * DIR/kv/salt is 32 random bytes and their checksum.  It is made under the directory's lock, aside, synced and renamed, so
 * every process on the directory has the same one.  A file that is torn, cut or otherwise wrong is replaced: what the old salt
 * named is then not found any more, and goes when there is no room, like everything that nobody asks for.  With a key file
 * the salt is derived from the key and no file is made: who has only the disk can then not even try names. */
#include "state/store_int.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { FILE_BYTES = STORE_SALT + SEAL_BYTES, LOCK_TRIES = 400, LOCK_STEP_MS = 5 };

#define NAME "salt"
#define ASIDE "salt.new"

static bool read_salt(const store *s, uint8_t out[STORE_SALT]) {
    const vfs *fs = s->fs;
    uint8_t file[FILE_BYTES + 1], tag[SEAL_BYTES];
    int64_t n = 0, r;
    int fd = fs->open(fs->ctx, s->dir, NAME, VFS_READ);
    if (fd < 0) return false;
    while (n < (int64_t)sizeof file && (r = fs->pread(fs->ctx, fd, file + n, sizeof file - (size_t)n, (uint64_t)n)) > 0) n += r;
    fs->close(fs->ctx, fd);
    if (n != FILE_BYTES) return false;
    seal_checksum(file, STORE_SALT, tag);
    if (memcmp(tag, file + STORE_SALT, SEAL_BYTES) != 0) return false;
    memcpy(out, file, STORE_SALT);
    return true;
}

static bool write_salt(const store *s, const uint8_t salt[STORE_SALT]) {
    const vfs *fs = s->fs;
    uint8_t file[FILE_BYTES];
    bool ok;
    int fd;
    memcpy(file, salt, STORE_SALT);
    seal_checksum(salt, STORE_SALT, file + STORE_SALT);
    fs->unlink(fs->ctx, s->dir, ASIDE); /* of a process that died */
    if ((fd = fs->open(fs->ctx, s->dir, ASIDE, VFS_MAKE)) < 0) return false;
    ok = !vfs_write(fs, fd, file, sizeof file, 0) && !fs->sync(fs->ctx, fd);
    fs->close(fs->ctx, fd);
    ok = ok && !fs->rename(fs->ctx, s->dir, ASIDE, NAME);
    if (!ok) fs->unlink(fs->ctx, s->dir, ASIDE);
    return ok && !fs->sync(fs->ctx, s->dir);
}

bool store_salt(const store *s, uint8_t out[STORE_SALT]) {
    const vfs *fs = s->fs;
    bool kept = false;
    int lock, r = -EWOULDBLOCK;
    if (s->master.on) return seal_secret(&s->master, "heddle spaces 1 ", out);
    if (read_salt(s, out)) return true;
    /* An open file of its own: the writer's lock must neither let this one through nor be given back with it. */
    if ((lock = fs->open(fs->ctx, s->dir, "lock", VFS_KEEP)) >= 0) {
        for (int i = 0; i < LOCK_TRIES && (r = fs->lock(fs->ctx, lock, true)) == -EWOULDBLOCK; i++)
            nanosleep(&(struct timespec){0, LOCK_STEP_MS * 1000000}, NULL);
        if (!r) {
            kept = read_salt(s, out); /* another process was sooner */
            if (!kept) kept = !fs->random(fs->ctx, out, STORE_SALT) && write_salt(s, out);
            fs->lock(fs->ctx, lock, false);
        }
        fs->close(fs->ctx, lock);
    }
    return kept;
}
