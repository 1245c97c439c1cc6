/* segment.c - writing and reading segments (segment.h, docs/state.md).
 *
 * Runs and their numbers (seal.h): block i's head is 4i, its group g is 4i + 1 + g, the index is INDEX_RUN.
 * Read: the head, the index, then blocks; writing is at the end. */
#include "state/segment.h"

#include "base/checked.h"
#include "state/le.h"

#include <errno.h>
#include <string.h>

#define INDEX_RUN UINT64_MAX
static const char magic[8] = {'H', 'E', 'D', 'L', 'K', 'V', 'S', '\n'};
static const char block_magic[4] = {'H', 'K', 'V', 'B'};
enum { HEAD_CHECKED = SEG_HEAD - SEAL_BYTES, FLAG_SEALED = 1, READ_PIECE = 256 << 10 /* read, then sealed while in L2 */ };

/* Offsets in the file's head and in a block's head. */
enum { H_VERSION = 8, H_FLAGS = 12, H_ID = 16, H_SALT = 32, H_TEST = 64, H_SIZE = 80, H_INDEX = 88, H_VALUE = 96, H_BLOCKS = 104 };
enum {
    B_NUMBER = 4,
    B_KEY = 8,
    B_PARENT = 40,
    B_IDENTITY = 72,
    B_TOKENS = 104,
    B_MASK = 108,
    B_BYTES = 112,
    B_VALUE = 128,
    B_SEALS = 144
};

uint64_t seg_block_bytes(const seg_entry *e) { return seg_block_head(e->n_tokens) + e->bytes[0] + e->bytes[1]; }

uint64_t seg_file_bytes(uint64_t blocks_bytes, uint32_t n_blocks) {
    return SEG_HEAD + blocks_bytes + (uint64_t)n_blocks * SEG_INDEX_ENTRY + SEAL_BYTES;
}

void seg_name(char name[SEG_NAME], const uint8_t id[SEG_ID], bool temporary) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < SEG_ID; i++) {
        name[2 * i] = digits[id[i] >> 4];
        name[2 * i + 1] = digits[id[i] & 15];
    }
    strcpy(name + 2 * SEG_ID, temporary ? ".tmp" : ".kv");
}

bool seg_parse_name(const char *name, uint8_t id[SEG_ID], bool *temporary) {
    for (int i = 0; i < 2 * SEG_ID; i++) {
        char c = name[i];
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (v < 0) return false;
        id[i / 2] = (uint8_t)(i % 2 ? id[i / 2] | v : v << 4);
    }
    *temporary = !strcmp(name + 2 * SEG_ID, ".tmp");
    return *temporary || !strcmp(name + 2 * SEG_ID, ".kv");
}

static hd_status io_failed(hd_err *err, int r, const char *what) {
    return hd_fail_at(err, HD_IO, (uint64_t)-r, "%s: %s", what, strerror(-r));
}

static seal_file seals_of(const seg_head *h) {
    seal_file f = {h->sealed, {0}, le_get64(h->id), h->raw, SEG_HEAD};
    memcpy(f.key, h->key, sizeof f.key);
    return f;
}

/* ---- reading ---- */

hd_status seg_read_head(seg_head *h, const vfs *fs, int fd, uint64_t file_size, const uint8_t id[SEG_ID], const seal_master *m,
                        hd_err *err) {
    uint8_t tag[SEAL_BYTES];
    uint64_t index_bytes;
    int r;
    memset(h, 0, sizeof *h);
    if (file_size < SEG_HEAD) return hd_fail(err, HD_INVALID, "segment: shorter than a head");
    if ((r = vfs_read(fs, fd, h->raw, SEG_HEAD, 0)))
        return r == -ENODATA ? hd_fail(err, HD_INVALID, "segment: shorter than a head") : io_failed(err, r, "segment head");
    if (memcmp(h->raw, magic, sizeof magic)) return hd_fail(err, HD_INVALID, "segment: not one");
    if (le_get32(h->raw + H_VERSION) != SEG_VERSION)
        return hd_fail(err, HD_UNSUPPORTED, "segment: version %u, not %u", le_get32(h->raw + H_VERSION), SEG_VERSION);
    seal_checksum(h->raw, HEAD_CHECKED, tag);
    if (memcmp(tag, h->raw + HEAD_CHECKED, SEAL_BYTES)) return hd_fail(err, HD_INVALID, "segment: the head is damaged");
    memcpy(h->id, h->raw + H_ID, SEG_ID);
    h->sealed = le_get32(h->raw + H_FLAGS) & FLAG_SEALED;
    h->size = le_get64(h->raw + H_SIZE);
    h->index_at = le_get64(h->raw + H_INDEX);
    h->value_us = le_get64(h->raw + H_VALUE);
    h->n_blocks = le_get32(h->raw + H_BLOCKS);
    index_bytes = (uint64_t)h->n_blocks * SEG_INDEX_ENTRY + SEAL_BYTES;
    if (memcmp(h->id, id, SEG_ID)) return hd_fail(err, HD_INVALID, "segment: under the name of another");
    if (h->size != file_size) return hd_fail(err, HD_INVALID, "segment: cut or grown");
    if (le_get32(h->raw + H_FLAGS) & ~(uint32_t)FLAG_SEALED || !h->n_blocks || h->n_blocks > SEG_MAX_BLOCKS ||
        h->size < SEG_HEAD + index_bytes || h->index_at != h->size - index_bytes)
        return hd_fail(err, HD_INVALID, "segment: the head contradicts itself");
    if (h->sealed != m->on) return hd_fail(err, HD_UNSUPPORTED, "segment: %s", m->on ? "not encrypted" : "encrypted");
    if (m->on) {
        if (!seal_derive(m, h->raw + H_SALT, h->key, tag)) return hd_fail(err, HD_NOMEM, "segment: no memory for its key");
        if (memcmp(tag, h->raw + H_TEST, SEAL_BYTES)) return hd_fail(err, HD_UNSUPPORTED, "segment: made with another key");
    }
    return HD_OK;
}

static bool entry_ok(const seg_entry *e, uint64_t index_at) {
    uint64_t bytes, end;
    if (!e->n_tokens || e->n_tokens > SEG_MAX_TOKENS || !e->mask || e->mask >> SEG_GROUPS) return false;
    for (int g = 0; g < SEG_GROUPS; g++)
        if (e->bytes[g] > SEG_MAX_GROUP_BYTES || (e->bytes[g] != 0) != (e->mask >> g & 1)) return false;
    bytes = seg_block_bytes(e);
    return e->at >= SEG_HEAD && hd_add(e->at, bytes, &end) && end <= index_at;
}

hd_status seg_read_index(seg_entry *entries, uint8_t *raw, const vfs *fs, int fd, const seg_head *h, hd_err *err) {
    size_t n = (size_t)h->n_blocks * SEG_INDEX_ENTRY;
    seal_file f = seals_of(h);
    seal s;
    bool ok;
    int r = vfs_read(fs, fd, raw, n + SEAL_BYTES, h->index_at);
    if (!r && !seal_begin(&s, &f, INDEX_RUN, false)) r = -ENOMEM;
    seal_wipe(f.key, sizeof f.key);
    if (r == -ENOMEM) return hd_fail(err, HD_NOMEM, "segment: no memory for the index");
    if (r) return r == -ENODATA ? hd_fail(err, HD_INVALID, "segment: cut") : io_failed(err, r, "segment index");
    ok = seal_data(&s, raw, raw, n);
    if (!seal_match(&s, raw + n) || !ok) return hd_fail(err, HD_INVALID, "segment: the index is damaged");
    for (uint32_t i = 0; i < h->n_blocks; i++) {
        const uint8_t *p = raw + (size_t)i * SEG_INDEX_ENTRY;
        seg_entry *e = &entries[i];
        memcpy(e->key.b, p, 32);
        e->at = le_get64(p + 32);
        e->bytes[0] = le_get64(p + 40);
        e->bytes[1] = le_get64(p + 48);
        e->value_us = le_get64(p + 56);
        e->n_tokens = le_get32(p + 64);
        e->mask = le_get32(p + 68);
        if (!entry_ok(e, h->index_at)) return hd_fail(err, HD_INVALID, "segment: entry %u contradicts the file", i);
    }
    return HD_OK;
}

bool seg_block_is(const uint8_t *block, const seg_entry *e, const uint8_t identity[32], const int32_t *tokens) {
    if (memcmp(block, block_magic, 4) || memcmp(block + B_KEY, e->key.b, 32) || memcmp(block + B_IDENTITY, identity, 32) ||
        le_get32(block + B_TOKENS) != e->n_tokens || le_get32(block + B_MASK) != e->mask ||
        le_get64(block + B_BYTES) != e->bytes[0] || le_get64(block + B_BYTES + 8) != e->bytes[1])
        return false;
    for (uint32_t i = 0; i < e->n_tokens; i++)
        if (le_get32(block + SEG_BLOCK_FIXED + 4 * (size_t)i) != (uint32_t)tokens[i]) return false;
    return true;
}

static hd_status read_run(const vfs *fs, int fd, const seal_file *f, uint64_t number, uint8_t *into, uint64_t n, uint64_t at,
                          const uint8_t *tag, hd_err *err) {
    seal s;
    bool ok = true;
    if (!seal_begin(&s, f, number, false)) return hd_fail(err, HD_NOMEM, "segment: no memory to read");
    for (uint64_t done = 0; done < n && ok;) {
        size_t k = n - done < READ_PIECE ? (size_t)(n - done) : READ_PIECE;
        int r = vfs_read(fs, fd, into + done, k, at + done);
        if (r) {
            seal_drop(&s);
            return r == -ENODATA ? hd_fail(err, HD_INVALID, "segment: cut") : io_failed(err, r, "segment block");
        }
        ok = seal_data(&s, into + done, into + done, k);
        done += k;
    }
    if (!seal_match(&s, tag) || !ok) return hd_fail(err, HD_INVALID, "segment: a block is damaged");
    return HD_OK;
}

hd_status seg_read_block(const vfs *fs, int fd, const seg_head *h, uint32_t number, const seg_entry *e, const uint8_t identity[32],
                         const int32_t *tokens, void *const into[SEG_GROUPS], hd_err *err) {
    uint8_t head[SEG_BLOCK_HEAD_MAX];
    size_t head_n = (size_t)seg_block_head(e->n_tokens), n = head_n - SEAL_BYTES;
    uint64_t at = e->at + head_n;
    seal_file f = seals_of(h);
    seal s;
    hd_status st = HD_OK;
    bool ok;
    int r = vfs_read(fs, fd, head, head_n, e->at);
    if (r) {
        st = r == -ENODATA ? hd_fail(err, HD_INVALID, "segment: cut") : io_failed(err, r, "segment block");
        goto out;
    }
    if (!seal_begin(&s, &f, 4 * (uint64_t)number, false)) {
        st = hd_fail(err, HD_NOMEM, "segment: no memory to read");
        goto out;
    }
    ok = seal_data(&s, head, head, n);
    if (!seal_match(&s, head + n) || !ok || le_get32(head + B_NUMBER) != number) {
        st = hd_fail(err, HD_INVALID, "segment: a block's head is damaged");
        goto out;
    }
    if (!seg_block_is(head, e, identity, tokens)) {
        st = hd_fail(err, HD_NOTFOUND, "segment: the block is of other tokens");
        goto out;
    }
    for (int g = 0; g < SEG_GROUPS && !st; at += e->bytes[g++])
        if (into[g] && e->mask >> g & 1)
            st = read_run(fs, fd, &f, 4 * (uint64_t)number + 1 + (uint64_t)g, into[g], e->bytes[g], at,
                          head + B_SEALS + SEAL_BYTES * g, err);
out:
    seal_wipe(f.key, sizeof f.key);
    if (h->sealed) seal_wipe(head, sizeof head);
    return st;
}

/* ---- writing ---- */

void seg_block_init(uint8_t *block, const seg_entry *e, const pagekey *parent, const uint8_t identity[32], const int32_t *tokens) {
    memset(block, 0, SEG_BLOCK_FIXED);
    memcpy(block, block_magic, 4);
    memcpy(block + B_KEY, e->key.b, 32);
    memcpy(block + B_PARENT, parent->b, 32);
    memcpy(block + B_IDENTITY, identity, 32);
    le_put32(block + B_TOKENS, e->n_tokens);
    le_put32(block + B_MASK, e->mask);
    le_put64(block + B_BYTES, e->bytes[0]);
    le_put64(block + B_BYTES + 8, e->bytes[1]);
    le_put64(block + B_VALUE, e->value_us);
    for (uint32_t i = 0; i < e->n_tokens; i++) le_put32(block + SEG_BLOCK_FIXED + 4 * (size_t)i, (uint32_t)tokens[i]);
}

/* Write one run, through scratch when it is encrypted.  0 or -errno. */
static int write_run(const vfs *fs, int fd, const seal_file *f, uint64_t number, const uint8_t *p, uint64_t n, uint64_t at,
                     uint8_t *tag, uint8_t *scratch, size_t scratch_n) {
    seal s;
    int r = 0;
    if (!seal_begin(&s, f, number, true)) return -ENOMEM;
    for (uint64_t done = 0; done < n && !r;) {
        size_t k = n - done < scratch_n ? (size_t)(n - done) : scratch_n;
        uint8_t *out = f->on ? scratch : (uint8_t *)(uintptr_t)(p + done); /* out == in: only read */
        if (!seal_data(&s, out, p + done, k)) r = -ENOMEM;
        else r = vfs_write(fs, fd, out, k, at + done);
        done += k;
    }
    if (r) seal_drop(&s);
    else if (!seal_take(&s, tag)) r = -ENOMEM;
    return r;
}

static int write_block(const vfs *fs, int fd, const seal_file *f, uint32_t number, seg_page *p, uint8_t *scratch,
                       size_t scratch_n) {
    const seg_entry *e = &p->e;
    uint8_t tag[SEAL_BYTES];
    uint64_t head_n = seg_block_head(e->n_tokens), at = head_n;
    int r = 0;
    le_put32(p->block + B_NUMBER, number);
    for (int g = 0; g < SEG_GROUPS && !r; at += e->bytes[g++])
        if (e->mask >> g & 1)
            r = write_run(fs, fd, f, 4 * (uint64_t)number + 1 + (uint64_t)g, p->block + at, e->bytes[g], e->at + at,
                          p->block + B_SEALS + SEAL_BYTES * g, scratch, scratch_n);
    if (!r) r = write_run(fs, fd, f, 4 * (uint64_t)number, p->block, head_n - SEAL_BYTES, e->at, tag, scratch, scratch_n);
    if (!r) r = vfs_write(fs, fd, tag, SEAL_BYTES, e->at + head_n - SEAL_BYTES);
    return r;
}

static int write_index(const vfs *fs, int fd, const seal_file *f, seg_page **p, uint32_t n, uint64_t at, uint8_t *scratch) {
    size_t bytes = (size_t)n * SEG_INDEX_ENTRY;
    seal s;
    memset(scratch, 0, bytes);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *q = scratch + (size_t)i * SEG_INDEX_ENTRY;
        const seg_entry *e = &p[i]->e;
        memcpy(q, e->key.b, 32);
        le_put64(q + 32, e->at);
        le_put64(q + 40, e->bytes[0]);
        le_put64(q + 48, e->bytes[1]);
        le_put64(q + 56, e->value_us);
        le_put32(q + 64, e->n_tokens);
        le_put32(q + 68, e->mask);
    }
    if (!seal_begin(&s, f, INDEX_RUN, true)) return -ENOMEM;
    if (!seal_data(&s, scratch, scratch, bytes)) {
        seal_drop(&s);
        return -ENOMEM;
    }
    if (!seal_take(&s, scratch + bytes)) return -ENOMEM;
    return vfs_write(fs, fd, scratch, bytes + SEAL_BYTES, at);
}

hd_status seg_write(seg_head *h, const vfs *fs, int fd, const uint8_t id[SEG_ID], const seal_master *m, seg_page **p, uint32_t n,
                    uint8_t *scratch, size_t scratch_n, hd_err *err) {
    seal_file f;
    int r = 0;
    memset(h, 0, sizeof *h);
    h->index_at = SEG_HEAD;
    for (uint32_t i = 0; i < n; i++) {
        p[i]->e.at = h->index_at;
        h->index_at += seg_block_bytes(&p[i]->e);
        if (!hd_add(h->value_us, p[i]->e.value_us, &h->value_us)) h->value_us = UINT64_MAX;
    }
    h->size = seg_file_bytes(h->index_at - SEG_HEAD, n);
    h->n_blocks = n;
    h->sealed = m->on;
    memcpy(h->id, id, SEG_ID);
    memcpy(h->raw, magic, sizeof magic);
    le_put32(h->raw + H_VERSION, SEG_VERSION);
    le_put32(h->raw + H_FLAGS, m->on ? FLAG_SEALED : 0);
    memcpy(h->raw + H_ID, id, SEG_ID);
    if (m->on) {
        if ((r = fs->random(fs->ctx, h->raw + H_SALT, SEAL_SALT))) return io_failed(err, r, "random numbers");
        if (!seal_derive(m, h->raw + H_SALT, h->key, h->raw + H_TEST))
            return hd_fail(err, HD_NOMEM, "segment: no memory for its key");
    }
    le_put64(h->raw + H_SIZE, h->size);
    le_put64(h->raw + H_INDEX, h->index_at);
    le_put64(h->raw + H_VALUE, h->value_us);
    le_put32(h->raw + H_BLOCKS, n);
    seal_checksum(h->raw, HEAD_CHECKED, h->raw + HEAD_CHECKED);
    f = seals_of(h);
    r = vfs_write(fs, fd, h->raw, SEG_HEAD, 0);
    for (uint32_t i = 0; i < n && !r; i++) r = write_block(fs, fd, &f, i, p[i], scratch, scratch_n);
    if (!r) r = write_index(fs, fd, &f, p, n, h->index_at, scratch);
    seal_wipe(f.key, sizeof f.key);
    if (r == -ENOMEM) return hd_fail(err, HD_NOMEM, "segment: no memory to write");
    return r ? io_failed(err, r, "segment") : HD_OK;
}
