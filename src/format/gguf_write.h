/* gguf_write.h - writing GGUF version 3 files, little-endian.
 *
 * Keys and tensor entries are collected first, then the tensors' bytes are streamed in the order of the entries; the
 * file grows beside its final name and takes it at the end, so that a reader never sees half a file:
 *
 *     gguf_writer_open -> gguf_put_* and gguf_put_tensor -> gguf_write_data, for each tensor -> gguf_writer_commit
 *
 * One thread at a time.  gguf_put_* return nothing: the first failure is kept and reported by the next call that has an
 * hd_err.  Names and values are copied. */
#ifndef HD_FORMAT_GGUF_WRITE_H
#define HD_FORMAT_GGUF_WRITE_H

#include "format/gguf.h"

typedef struct gguf_writer gguf_writer;

/* alignment: of tensor data, a power of two >= 8; 0 means 32, the default (other values are stored as
 * general.alignment).  *out is NULL on error.  HD_IO: the file beside `path` cannot be created. */
hd_status gguf_writer_open(gguf_writer **out, const char *path, uint32_t alignment, hd_err *err);
/* Also after an error or a commit.  Without a commit nothing stays behind.  w may be NULL. */
void gguf_writer_close(gguf_writer *w);

/* One value.  type: an integer type (gguf_put_int takes negative values), f32 or f64.  A value that the type cannot
 * hold is an HD_INVALID. */
void gguf_put_uint(gguf_writer *w, const char *key, gguf_type type, uint64_t v);
void gguf_put_int(gguf_writer *w, const char *key, gguf_type type, int64_t v);
void gguf_put_real(gguf_writer *w, const char *key, gguf_type type, double v);
void gguf_put_bool(gguf_writer *w, const char *key, bool v);
void gguf_put_str(gguf_writer *w, const char *key, const char *s);
/* n elements of a number type or bool, laid out as in memory (bool: one byte, 0 or 1). */
void gguf_put_array(gguf_writer *w, const char *key, gguf_type elem, const void *values, size_t n);
void gguf_put_strs(gguf_writer *w, const char *key, const gguf_str *values, size_t n);
/* Key i of an open file, as it is there. */
void gguf_put_copy(gguf_writer *w, const gguf *from, size_t i);

/* The next tensor.  dims[0] is contiguous and a multiple of the type's block. */
void gguf_put_tensor(gguf_writer *w, gguf_str name, tensor_type type, uint32_t n_dims, const uint64_t *dims);

/* The next n bytes of the data, not beyond the end of the tensor they belong to; padding is added here.  After the
 * first call nothing can be put any more.  HD_INVALID: a put failed, equal names, or more bytes than the tensor has. */
hd_status gguf_write_data(gguf_writer *w, const void *data, size_t n, hd_err *err);

/* Everything is there: make it durable and give it its name, replacing what had it.  HD_INVALID: bytes are missing. */
hd_status gguf_writer_commit(gguf_writer *w, hd_err *err);

#endif
