/* gguf_int.h - the open GGUF file as its own modules see it.
 *
 * gguf.c        parses one file into one of these and owns it
 * gguf_get.c    typed access to keys
 * gguf_split.c  finds the parts of a split and merges them into the first
 * gguf_mark.c   which file this is: a digest of all of it, or of what tells without reading all of it */
#ifndef HD_FORMAT_GGUF_INT_H
#define HD_FORMAT_GGUF_INT_H

#include "format/gguf.h"

#include <sys/stat.h>

/* Everything is read by copying from the mapping, and tensor data is used in place. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are little-endian and used as they lie");

/* One key.  A scalar has elem == type and n == 1, so that it reads as an array of one. */
typedef struct {
    gguf_str name;
    gguf_type type, elem;
    uint64_t n;
    const uint8_t *p; /* first element, checked to lie in the file with all the others */
} gguf_kv;

/* What the file system says of a file; equal for an unchanged one.  No device number: it may differ after a restart. */
typedef struct {
    uint64_t inode, size;
    int64_t modified_ns, changed_ns, looked_ns; /* looked_ns: when this was asked, by the same clock */
} gguf_stat;

typedef struct {
    const uint8_t *data;
    size_t size;
    gguf_stat stat;   /* when it was opened; zeros for memory */
    void *map;        /* what to unmap, NULL for borrowed memory */
    char *path;       /* owned; NULL for memory */
    uint64_t data_at; /* where the data area starts */
} gguf_part;

/* The orders are permutations that sort by name: lookups are binary searches and equal names are neighbours.  No
 * choice of names makes that slow, which a hash table could not promise. */
struct gguf {
    uint32_t version;
    gguf_part *parts;
    size_t n_parts;
    gguf_kv *keys;
    size_t n_keys, cap_keys;
    uint32_t *key_order;
    gguf_tensor *tensors;
    size_t n_tensors, cap_tensors;
    uint32_t *tensor_order;
};

/* More than any real model by a factor of 100; keeps indices in 32 bits. */
enum { GGUF_MAX_KEYS = 1 << 20, GGUF_MAX_TENSORS = 1 << 20, GGUF_MAX_KEY_BYTES = 65535, GGUF_MAX_NAME_BYTES = 64 };

gguf_stat gguf_stat_of(const struct stat *sb);

/* Open one file without looking at split keys.  NULL on error. */
hd_status gguf_open_one(gguf **out, const char *path, hd_err *err);
/* Build tensor_order anew and refuse equal names. */
hd_status gguf_index_tensors(gguf *g, hd_err *err);

/* Bytes of a key's value in the file, without type and count. */
uint64_t gguf_kv_bytes(const gguf_kv *kv);
const gguf_kv *gguf_kv_find(const gguf *g, const char *key);

/* Error with byte offset (or HD_NOWHERE), field (or "") and the file's path in front. */
hd_status gguf_fail(const gguf *g, size_t part, hd_err *err, hd_status code, uint64_t at, const char *field,
                    const char *fmt, ...) __attribute__((format(printf, 7, 8)));

/* A name from the file made fit for a message: cut, and without control characters. */
typedef struct {
    char s[72];
} gguf_quoted;
gguf_quoted gguf_quote(gguf_str s);

#endif
