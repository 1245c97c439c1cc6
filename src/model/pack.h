/* pack.h - packed weights on disk, so that the next start maps what this one computed.
 *
 * A directory holds one file for each model file and layout, named by a digest of both (docs/state.md has the tables).  It is a
 * cache: a file that is absent, cut, damaged, of another model, version or layout is a miss, and the weights are packed from
 * the model file to the same bytes.  Damage is looked for when a file is opened, in every byte and by all threads, at memory
 * speed: all of it is read by the first token anyway.
 *
 * pack_file.c reads: head, mapping, checks.  pack_write.c writes, on a thread of its own: room under the cap, aside, synced,
 * renamed. */
#ifndef HD_MODEL_PACK_H
#define HD_MODEL_PACK_H

#include "base/err.h"
#include "base/pool.h"
#include "format/gguf.h"

enum { PACK_NAME = 40, PACK_DIGEST = 16 };
#define PACK_CAP_DEFAULT ((uint64_t)16 << 30)

/* What is looked for.  Everything in here is compared with the file's head. */
typedef struct {
    uint8_t mark[PACK_DIGEST]; /* of the model file: gguf_mark */
    uint8_t plan[PACK_DIGEST]; /* which matrix lies where, in which type and shape */
    uint32_t version;          /* HD_PACK_VERSION */
    char layout[24];           /* of the kernels, zero-padded */
    uint64_t bytes;            /* of all packed matrices, > 0 */
} pack_want;

/* The block behind every mm_weight. */
typedef struct {
    void *data; /* 64-byte aligned at least; not to be written when mapped */
    void *map;  /* what pack_free unmaps */
    size_t map_bytes;
    bool mapped;                 /* pages of the file, shared with other processes; else memory of our own */
    uint8_t digest[PACK_DIGEST]; /* of all of the model file, as its packer computed it: gguf_digest */
} pack_block;

/* PACK_MAPPED: the file lies in the page cache in huge pages, and they are the weights.  PACK_READ: it does not, so it was
 * read into huge pages of our own, because small ones under the weights cost more than the copy.  On PACK_MISS *out is empty,
 * and a damaged file was removed. */
typedef enum { PACK_MISS, PACK_MAPPED, PACK_READ } pack_found;
pack_found pack_load(pack_block *out, const char *dir, const pack_want *w, pool *p);
/* Empty memory for weights, huge pages where the system gives them.  HD_NOMEM. */
hd_status pack_alloc(pack_block *out, uint64_t bytes, hd_err *err);
void pack_free(pack_block *b);

/* Name of the file of `w` in its directory. */
void pack_name(const pack_want *w, char out[PACK_NAME]);
/* Bytes on disk for so many bytes of packed matrices. */
uint64_t pack_file_bytes(uint64_t bytes);

/* Write `data` (w->bytes, borrowed with `g` until pack_writer_finish) to the directory, which is made (mode 0700) if only its
 * last part is missing.  cap: bytes of all files there, 0: 16 GiB; the longest unused go first.  Nothing is written when the
 * model file is not settled (gguf_settled), another process is writing the same, it would be above the cap or take more than
 * half of what is free on the disk.  What goes wrong is told in one line of the log, and nothing else comes of it. */
typedef struct pack_writer pack_writer;
hd_status pack_writer_start(pack_writer **out, const char *dir, uint64_t cap, const pack_want *w, const void *data, const gguf *g,
                            hd_err *err);
/* Wait for it.  True: the file is there. */
bool pack_writer_finish(pack_writer *pw);

#endif
