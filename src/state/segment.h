/* segment.h - the disk tier's file: pages of attention state, written once, then only read.
 *
 * A segment holds many pages: a head, blocks one behind the other, an index at the end.  docs/state.md draws it.  Nothing
 * in a file is believed before its seal matched, and what a reader is given is compared with what it asked for: key,
 * identity, token ids, sizes.  No size from a file is used to allocate or to read beyond the file. */
#ifndef HD_STATE_SEGMENT_H
#define HD_STATE_SEGMENT_H

#include "base/err.h"
#include "state/pagekey.h"
#include "state/seal.h"
#include "state/vfs.h"

enum {
    SEG_VERSION = 1,
    SEG_GROUPS = 2,
    SEG_ID = 16,
    SEG_HEAD = 128,
    SEG_BLOCK_FIXED = 176, /* of a block's head; then the token ids, then its seal */
    SEG_MAX_TOKENS = 1024, /* of a page: a block's head fits the stack */
    SEG_BLOCK_HEAD_MAX = SEG_BLOCK_FIXED + 4 * SEG_MAX_TOKENS + SEAL_BYTES,
    SEG_INDEX_ENTRY = 80,
    SEG_MAX_BLOCKS = 4096,
    SEG_INDEX_MAX = SEG_MAX_BLOCKS * SEG_INDEX_ENTRY + SEAL_BYTES,
    SEG_NAME = 2 * SEG_ID + 5, /* 32 hex digits, ".kv" or ".tmp", NUL */
};
#define SEG_MAX_GROUP_BYTES ((uint64_t)1 << 30)

/* What the index tells of a page.  mask: bit g is set when group g is there; bytes[g] is 0 otherwise. */
typedef struct {
    pagekey key;
    uint64_t at;
    uint64_t bytes[SEG_GROUPS];
    uint64_t value_us;
    uint32_t n_tokens, mask;
} seg_entry;

/* A file's head as it was read, and what follows from it. */
typedef struct {
    uint8_t raw[SEG_HEAD];
    uint8_t id[SEG_ID];
    uint8_t key[32]; /* wipe it */
    bool sealed;
    uint64_t size, index_at, value_us;
    uint32_t n_blocks;
} seg_head;

static inline uint64_t seg_block_head(uint32_t n_tokens) { return SEG_BLOCK_FIXED + 4 * (uint64_t)n_tokens + SEAL_BYTES; }
uint64_t seg_block_bytes(const seg_entry *e);
uint64_t seg_file_bytes(uint64_t blocks_bytes, uint32_t n_blocks);

/* "<32 hex digits>.kv" or ".tmp" to and from an id. */
void seg_name(char name[SEG_NAME], const uint8_t id[SEG_ID], bool temporary);
bool seg_parse_name(const char *name, uint8_t id[SEG_ID], bool *temporary);

/* Read and check the head of an open file that is named by `id`.
 * HD_INVALID: it is no whole segment.  HD_UNSUPPORTED: it may be one, of another version or another key.  HD_IO, HD_NOMEM. */
hd_status seg_read_head(seg_head *h, const vfs *fs, int fd, uint64_t file_size, const uint8_t id[SEG_ID], const seal_master *m,
                        hd_err *err);
/* entries: h->n_blocks of them; raw: SEG_INDEX_MAX bytes of scratch.  Offsets and sizes were checked.  HD_INVALID, HD_IO, HD_NOMEM. */
hd_status seg_read_index(seg_entry *entries, uint8_t *raw, const vfs *fs, int fd, const seg_head *h, hd_err *err);

/* A page to write.  block: room for the head, then the payload of each group in the mask; seg_block_init filled the head. */
typedef struct {
    uint8_t *block;
    seg_entry e;
} seg_page;
void seg_block_init(uint8_t *block, const seg_entry *e, const pagekey *parent, const uint8_t identity[32], const int32_t *tokens);
/* Compare the head of a block in memory with what is asked for. */
bool seg_block_is(const uint8_t *block, const seg_entry *e, const uint8_t identity[32], const int32_t *tokens);

/* Fill a file of seg_file_bytes(...) with n pages.  scratch of scratch_n bytes, at least SEG_INDEX_MAX and SEG_BLOCK_HEAD_MAX.
 * p[i]->e.at is set, h filled.  Seals and numbers are written into the blocks.  Not synced.  HD_IO with errno in err->at, HD_NOMEM. */
hd_status seg_write(seg_head *h, const vfs *fs, int fd, const uint8_t id[SEG_ID], const seal_master *m, seg_page **p, uint32_t n,
                    uint8_t *scratch, size_t scratch_n, hd_err *err);

/* Read the groups of block `number` whose into[g] is not NULL.  HD_INVALID: a seal does not match, the file has to go.
 * HD_NOTFOUND: a sound block of something else.  HD_IO, HD_NOMEM.  Contents of into[] are undefined unless HD_OK. */
hd_status seg_read_block(const vfs *fs, int fd, const seg_head *h, uint32_t number, const seg_entry *e, const uint8_t identity[32],
                         const int32_t *tokens, void *const into[SEG_GROUPS], hd_err *err);

#endif
