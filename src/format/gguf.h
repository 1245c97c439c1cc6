/* gguf.h - reading GGUF files (versions 2 and 3, little-endian): mapped, every count, size and offset checked.
 *
 * A model may be split over files NAME-00001-of-0000N.gguf; opening any part opens all.  Strings and arrays are
 * views into the mapping and live as long as the gguf.  Errors name the key or tensor (field) and byte offset (at). */
#ifndef HD_FORMAT_GGUF_H
#define HD_FORMAT_GGUF_H

#include "base/err.h"
#include "tensor/type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gguf gguf;

typedef struct {
    const char *s; /* not NUL-terminated */
    size_t n;
} gguf_str;

typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} gguf_type;

typedef struct {
    gguf_str name;
    tensor_type type;
    uint32_t n_dims;  /* 1..4 */
    uint64_t dims[4]; /* dims[0] contiguous; absent ones are 1 */
    const void *data; /* mapped, aligned as the file says */
    uint64_t size_bytes;
    uint64_t offset; /* in its file */
    uint32_t part;   /* which file of a split */
} gguf_tensor;

/* Open a file or any part of a split.  *out is NULL on error.  HD_NOTFOUND: no such file, or a part is missing (named).
 * HD_UNSUPPORTED: a version, byte order or tensor type that heddle does not read.  HD_INVALID: the file is damaged, cut
 * or contradicts itself.  A truncated or hostile file costs no more time and memory than its own size warrants. */
hd_status gguf_open(gguf **out, const char *path, hd_err *err);
/* Parse bytes in memory (borrowed until close), for tests and fuzzing.  Tensors are aligned relative to `data`.  One
 * part of a split is refused: its siblings cannot be found. */
hd_status gguf_open_memory(gguf **out, const void *data, size_t size, hd_err *err);
void gguf_close(gguf *g);

const char *gguf_path(const gguf *g); /* of the first part; "" for memory */
uint32_t gguf_version(const gguf *g);
uint64_t gguf_file_bytes(const gguf *g); /* all parts together */

/* Metadata, in file order. */
size_t gguf_n_keys(const gguf *g);
gguf_str gguf_key(const gguf *g, size_t i);
gguf_type gguf_key_type(const gguf *g, size_t i);
/* Value i as short text for people (arrays: element type and count, first elements). Writes at most n bytes with NUL.
 */
void gguf_key_text(const gguf *g, size_t i, char *dst, size_t n);
bool gguf_has(const gguf *g, const char *key);

/* Typed access.  Any integer width is accepted, and a float with an integral value; a one-element array counts as a
 * scalar.  HD_NOTFOUND: no such key.  HD_INVALID: another type or out of [min, max].  All name the key. */
hd_status gguf_get_uint(const gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, hd_err *err);
hd_status gguf_get_f32(const gguf *g, const char *key, float *out, hd_err *err);
hd_status gguf_get_bool(const gguf *g, const char *key, bool *out, hd_err *err);
hd_status gguf_get_str(const gguf *g, const char *key, gguf_str *out, hd_err *err);

/* Arrays (a scalar counts as an array of one).  _n gives the length; the element calls are O(1) for numbers;
 * gguf_arr_strs fills out[0..n) (n from gguf_arr_n) in one pass. */
hd_status gguf_arr_n(const gguf *g, const char *key, gguf_type *elem, size_t *n, hd_err *err);
hd_status gguf_arr_uint(const gguf *g, const char *key, size_t i, uint64_t min, uint64_t max, uint64_t *out,
                        hd_err *err);
hd_status gguf_arr_i64(const gguf *g, const char *key, int64_t *out, size_t n, hd_err *err);
hd_status gguf_arr_f32(const gguf *g, const char *key, float *out, size_t n, hd_err *err);
hd_status gguf_arr_strs(const gguf *g, const char *key, gguf_str *out, size_t n, hd_err *err);

/* A digest of everything in the file, or in all its parts: reads all of it.  XXH3-128, seed 0, of each part's bytes in the
 * order of parts.  False: no memory. */
bool gguf_digest(const gguf *g, uint8_t out[16]);
/* Which file this is, told without reading all of it: XXH3-128 of what the file system says of each part (inode, size, times),
 * everything before the tensors' data, and a few samples of the data.  A file with other contents has another mark unless
 * somebody set back its change time, which needs the machine's clock or the bare disk.  Another copy of equal contents has
 * another mark too.  False: no memory, or not a file. */
bool gguf_mark(const gguf *g, uint8_t out[16]);
/* Whether the mark can be relied on for what was read since it was opened: all parts are still the files that were opened,
 * none was changed within a second before that, when a further change could carry the same time, and nobody has one open or
 * mapped for writing. */
bool gguf_settled(const gguf *g);

/* Tensors, in file order; found by name in O(log n).  NULL if absent. */
size_t gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i);
const gguf_tensor *gguf_tensor_find(const gguf *g, const char *name);
/* Tell the system that bytes [at, at + n) of a tensor are needed at once (one call instead of a fault for every few pages), or
 * no more for now; they stay readable, and in the page cache.  at + n <= size_bytes.  Any thread. */
void gguf_tensor_fetch(const gguf *g, const gguf_tensor *t, uint64_t at, uint64_t n);
void gguf_tensor_release(const gguf *g, const gguf_tensor *t, uint64_t at, uint64_t n);

#endif
