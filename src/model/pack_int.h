/* pack_int.h - the packed file as its reader and its writer see it. */
#ifndef HD_MODEL_PACK_INT_H
#define HD_MODEL_PACK_INT_H

#include "model/pack.h"

/* Matrices lie as the kernels want them in memory, which is little-endian by mm_layout.h; so does the head. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed files are little-endian");

enum {
    PACK_FILE_VERSION = 1,
    PACK_HEAD_BYTES = 4096,
    PACK_PIECE = 2 << 20, /* has one checksum; a huge page, so that pages in memory and pieces of the file fall together */
};

typedef struct {
    char magic[8]; /* "HEDLPAK\n" */
    uint32_t file_version, flags;
    uint8_t mark[PACK_DIGEST], plan[PACK_DIGEST], digest[PACK_DIGEST];
    uint32_t version, zero;
    char layout[24];
    uint64_t bytes, file_bytes, n_pieces;
    uint8_t sums[PACK_DIGEST]; /* XXH3-128 of the checksums */
    uint8_t self[PACK_DIGEST]; /* XXH3-128 of all before */
} pack_head;
_Static_assert(sizeof(pack_head) == 152, "the head has no gaps");

static inline uint64_t pack_pieces(uint64_t bytes) { return bytes / PACK_PIECE + (bytes % PACK_PIECE != 0); }
/* Where the first piece begins: behind head and checksums, at a huge page. */
static inline uint64_t pack_data_at(uint64_t n_pieces) {
    return (PACK_HEAD_BYTES + 8 * n_pieces + PACK_PIECE - 1) / PACK_PIECE * PACK_PIECE;
}
void pack_head_fill(pack_head *h, const pack_want *w);
void pack_digest(const void *p, size_t n, uint8_t out[PACK_DIGEST]);
/* Checksum of piece i: a piece in another place, or of another model, does not match. */
uint64_t pack_sum(const pack_want *w, uint64_t i, const void *p, size_t n);

#endif
