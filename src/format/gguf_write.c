/* gguf_write.c - see gguf_write.h; the layout is at the head of gguf.c. */
#include "format/gguf_write.h"

#include "base/buf.h"
#include "base/checked.h"
#include "base/mem.h"
#include "format/gguf_int.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_META_BYTES = 1 << 30, PAD_BYTES = 4096 };

typedef struct {
    size_t name_at, name_n; /* in the buffer of entries */
    uint64_t size_bytes;
} entry;

struct gguf_writer {
    char *path, *aside; /* aside is set while that file exists */
    int fd;
    uint32_t alignment;
    hd_buf keys, tensors; /* as in the file */
    entry *key_names, *entries;
    size_t n_keys, cap_keys, n_entries, cap_entries;
    uint64_t end;     /* of the last entry, from the start of the data area */
    size_t cur;       /* the tensor that gets the next bytes */
    uint64_t done;    /* bytes of it that are written */
    bool writing;     /* the head is written */
    hd_status failed; /* of a put */
    char what[96];    /* and its name */
};

static void put_failed(gguf_writer *w, hd_status st, gguf_str name) {
    if (w->failed) return;
    w->failed = st;
    strcpy(w->what, gguf_quote(name).s);
}

static gguf_str cstr(const char *s) { return (gguf_str){s, strlen(s)}; }

static void put_str(hd_buf *b, gguf_str s) {
    uint64_t n = s.n;
    buf_add(b, &n, 8);
    buf_add(b, s.s, s.n);
}

/* The name of a key or tensor, remembered for the search for equal ones. */
static bool put_name(gguf_writer *w, hd_buf *b, gguf_str name, entry **list, size_t *n, size_t *cap, size_t max_bytes) {
    if (w->failed) return false;
    if (w->writing || !name.n || name.n > max_bytes || memchr(name.s, 0, name.n)) {
        put_failed(w, HD_INVALID, name);
        return false;
    }
    if (!hd_grow(list, cap, *n + 1, sizeof **list, GGUF_MAX_KEYS)) {
        put_failed(w, HD_NOMEM, name);
        return false;
    }
    put_str(b, name);
    (*list)[(*n)++] = (entry){b->len - name.n, name.n, 0};
    return true;
}

static bool put_key(gguf_writer *w, const char *key, uint32_t type) {
    if (!put_name(w, &w->keys, cstr(key), &w->key_names, &w->n_keys, &w->cap_keys, GGUF_MAX_KEY_BYTES)) return false;
    buf_add(&w->keys, &type, 4);
    return true;
}

/* Bytes and largest magnitudes of the integer types; 0 bytes for the others. */
static size_t int_type(gguf_type type, uint64_t *max, uint64_t *max_negative) {
    size_t bytes;
    bool is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    switch (type) {
    case GGUF_U8:
    case GGUF_I8: bytes = 1; break;
    case GGUF_U16:
    case GGUF_I16: bytes = 2; break;
    case GGUF_U32:
    case GGUF_I32: bytes = 4; break;
    case GGUF_U64:
    case GGUF_I64: bytes = 8; break;
    case GGUF_F32:
    case GGUF_BOOL:
    case GGUF_STRING:
    case GGUF_ARRAY:
    case GGUF_F64:
    default: return 0;
    }
    *max = UINT64_MAX >> (64 - 8 * bytes + is_signed);
    *max_negative = is_signed ? *max + 1 : 0;
    return bytes;
}

void gguf_put_uint(gguf_writer *w, const char *key, gguf_type type, uint64_t v) {
    uint64_t max, low;
    size_t n = int_type(type, &max, &low);
    if (!n || v > max)
        put_failed(w, HD_INVALID, cstr(key));
    else if (put_key(w, key, type))
        buf_add(&w->keys, &v, n); /* little-endian: the low bytes come first */
}

void gguf_put_int(gguf_writer *w, const char *key, gguf_type type, int64_t v) {
    uint64_t max, low;
    size_t n = int_type(type, &max, &low);
    if (!n || (v < 0 ? 0 - (uint64_t)v > low : (uint64_t)v > max))
        put_failed(w, HD_INVALID, cstr(key));
    else if (put_key(w, key, type))
        buf_add(&w->keys, &v, n);
}

void gguf_put_real(gguf_writer *w, const char *key, gguf_type type, double v) {
    float f = (float)v;
    if ((type != GGUF_F32 && type != GGUF_F64) || (type == GGUF_F32 && isfinite(v) && !isfinite(f)))
        put_failed(w, HD_INVALID, cstr(key));
    else if (put_key(w, key, type))
        buf_add(&w->keys, type == GGUF_F32 ? (void *)&f : (void *)&v, type == GGUF_F32 ? 4 : 8);
}

void gguf_put_bool(gguf_writer *w, const char *key, bool v) {
    if (put_key(w, key, GGUF_BOOL)) buf_byte(&w->keys, v);
}

void gguf_put_str(gguf_writer *w, const char *key, const char *s) {
    if (put_key(w, key, GGUF_STRING)) put_str(&w->keys, cstr(s));
}

static bool put_array(gguf_writer *w, const char *key, uint32_t elem, uint64_t n) {
    if (!put_key(w, key, GGUF_ARRAY)) return false;
    buf_add(&w->keys, &elem, 4);
    buf_add(&w->keys, &n, 8);
    return true;
}

void gguf_put_array(gguf_writer *w, const char *key, gguf_type elem, const void *values, size_t n) {
    uint64_t max, low;
    size_t bytes = elem == GGUF_F32 ? 4 : elem == GGUF_F64 ? 8 : elem == GGUF_BOOL ? 1 : int_type(elem, &max, &low);
    const uint8_t *p = values;
    bool ok = bytes && n <= MAX_META_BYTES / bytes;
    for (size_t i = 0; ok && elem == GGUF_BOOL && i < n; i++) ok = p[i] <= 1;
    if (!ok)
        put_failed(w, HD_INVALID, cstr(key));
    else if (put_array(w, key, elem, n))
        buf_add(&w->keys, values, n * bytes);
}

void gguf_put_strs(gguf_writer *w, const char *key, const gguf_str *values, size_t n) {
    if (put_array(w, key, GGUF_STRING, n))
        for (size_t i = 0; i < n; i++) put_str(&w->keys, values[i]);
}

void gguf_put_copy(gguf_writer *w, const gguf *from, size_t i) {
    const gguf_kv *kv;
    if (i >= from->n_keys) return;
    kv = &from->keys[i];
    if (!put_name(w, &w->keys, kv->name, &w->key_names, &w->n_keys, &w->cap_keys, GGUF_MAX_KEY_BYTES)) return;
    buf_add(&w->keys, &(uint32_t){kv->type}, 4);
    if (kv->type == GGUF_ARRAY) buf_add(&w->keys, &(uint32_t){kv->elem}, 4), buf_add(&w->keys, &kv->n, 8);
    buf_add(&w->keys, kv->p, gguf_kv_bytes(kv));
}

void gguf_put_tensor(gguf_writer *w, gguf_str name, tensor_type type, uint32_t n_dims, const uint64_t *dims) {
    const tensor_type_info *info = tensor_type_get(type);
    uint64_t n = 1, size = 0, offset = 0;
    bool ok = info && n_dims >= 1 && n_dims <= 4;
    for (uint32_t d = 0; ok && d < n_dims; d++) ok = dims[d] && hd_mul(n, dims[d], &n) && n <= INT64_MAX;
    ok = ok && dims[0] % info->block_elems == 0 && hd_mul(n / info->block_elems, info->block_bytes, &size) &&
         hd_align_up(w->end, w->alignment, &offset) && hd_add(offset, size, &w->end);
    if (!ok) put_failed(w, HD_INVALID, name);
    if (!put_name(w, &w->tensors, name, &w->entries, &w->n_entries, &w->cap_entries, GGUF_MAX_NAME_BYTES)) return;
    w->entries[w->n_entries - 1].size_bytes = size;
    buf_add(&w->tensors, &n_dims, 4);
    buf_add(&w->tensors, dims, 8 * n_dims);
    buf_add(&w->tensors, &(uint32_t){type}, 4);
    buf_add(&w->tensors, &offset, 8);
}

/* --- the file --- */

static hd_status io_error(const gguf_writer *w, const char *doing, hd_err *err) {
    return hd_fail(err, HD_IO, "%s: cannot %s: %s", w->path, doing, strerror(errno));
}

static hd_status write_all(gguf_writer *w, const void *data, size_t n, hd_err *err) {
    const char *p = data;
    while (n) {
        ssize_t got = write(w->fd, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return io_error(w, "write", err);
        p += got, n -= (size_t)got;
    }
    return HD_OK;
}

/* Zeros from `at` up to a multiple of the alignment. */
static hd_status pad(gguf_writer *w, uint64_t at, hd_err *err) {
    static const char zeros[PAD_BYTES];
    uint64_t n = (w->alignment - at % w->alignment) % w->alignment;
    hd_status st = HD_OK;
    for (; n && !st; n -= n < sizeof zeros ? n : sizeof zeros)
        st = write_all(w, zeros, n < sizeof zeros ? (size_t)n : sizeof zeros, err);
    return st;
}

static int cmp_str(const void *pa, const void *pb) {
    const gguf_str *a = pa, *b = pb;
    int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

static hd_status distinct(const gguf_writer *w, const hd_buf *b, const entry *list, size_t n, hd_err *err) {
    gguf_str *v = hd_reallocarray(NULL, n ? n : 1, sizeof *v);
    hd_status st = HD_OK;
    if (!v) return hd_fail(err, HD_NOMEM, "gguf: no memory to compare names");
    for (size_t i = 0; i < n; i++) v[i] = (gguf_str){b->data + list[i].name_at, list[i].name_n};
    qsort(v, n, sizeof *v, cmp_str);
    for (size_t i = 1; i < n && !st; i++)
        if (!cmp_str(&v[i - 1], &v[i]))
            st = hd_fail_field(err, HD_INVALID, gguf_quote(v[i]).s, "%s: the name '%s' was put twice", w->path,
                               gguf_quote(v[i]).s);
    hd_free(v);
    return st;
}

static hd_status write_head(gguf_writer *w, hd_err *err) {
    struct {
        char magic[4];
        uint32_t version;
        uint64_t n_tensors, n_keys;
    } head = {{'G', 'G', 'U', 'F'}, 3, w->n_entries, w->n_keys};
    hd_status st;
    if (w->failed)
        return hd_fail_field(err, w->failed, w->what, "%s: '%s' cannot be written (name, type or value)", w->path,
                             w->what);
    if (w->keys.failed || w->tensors.failed)
        return hd_fail(err, w->keys.failed ? w->keys.failed : w->tensors.failed,
                       "%s: the keys and tensor entries need too much memory", w->path);
    if ((st = distinct(w, &w->keys, w->key_names, w->n_keys, err))) return st;
    if ((st = distinct(w, &w->tensors, w->entries, w->n_entries, err))) return st;
    w->writing = true;
    if ((st = write_all(w, &head, sizeof head, err))) return st;
    if ((st = write_all(w, w->keys.data, w->keys.len, err))) return st;
    if ((st = write_all(w, w->tensors.data, w->tensors.len, err))) return st;
    return pad(w, sizeof head + w->keys.len + w->tensors.len, err);
}

hd_status gguf_write_data(gguf_writer *w, const void *data, size_t n, hd_err *err) {
    hd_status st = w->writing ? HD_OK : write_head(w, err);
    if (st || !n) return st;
    if (w->cur == w->n_entries || n > w->entries[w->cur].size_bytes - w->done)
        return hd_fail(err, HD_INVALID, "%s: more bytes than the tensors have", w->path);
    if ((st = write_all(w, data, n, err))) return st;
    w->done += n;
    if (w->done < w->entries[w->cur].size_bytes) return HD_OK;
    st = pad(w, w->done, err); /* a tensor starts aligned */
    w->cur++, w->done = 0;
    return st;
}

static int open_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? hd_strndup(path, slash > path ? (size_t)(slash - path) : 1) : hd_strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (!folder) errno = ENOMEM;
    hd_free(folder);
    return fd;
}

hd_status gguf_writer_commit(gguf_writer *w, hd_err *err) {
    hd_status st = w->writing ? HD_OK : write_head(w, err);
    int folder;
    if (st) return st;
    if (!w->aside) return hd_fail(err, HD_INVALID, "%s: it was committed before", w->path);
    if (w->cur < w->n_entries)
        return hd_fail(err, HD_INVALID, "%s: the data of tensor %zu of %zu is missing", w->path, w->cur + 1,
                       w->n_entries);
    if ((folder = open_folder(w->path)) < 0)
        return errno == ENOMEM ? hd_fail(err, HD_NOMEM, "gguf: no memory for a path")
                               : io_error(w, "open its folder", err);
    if (fsync(w->fd))
        st = io_error(w, "sync", err);
    else if (rename(w->aside, w->path))
        st = io_error(w, "rename to it", err);
    else {
        hd_free(w->aside);
        w->aside = NULL;
        /* The rename is durable when the folder is.  Some file systems refuse to sync one; nothing better is left. */
        if (fsync(folder) && errno != EINVAL) st = io_error(w, "sync its folder", err);
    }
    close(folder);
    return st;
}

static hd_status create_aside(gguf_writer *w, hd_err *err) {
    size_t n = strlen(w->path) + 48;
    if (!(w->aside = hd_alloc(n))) return hd_fail(err, HD_NOMEM, "gguf: no memory for a path");
    /* Another writer of this process, or one that was killed and had our number, may have the first names. */
    for (int i = 0; i < 100; i++) {
        snprintf(w->aside, n, "%s.%ld-%d.part", w->path, (long)getpid(), i);
        w->fd = open(w->aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) return HD_OK;
        if (errno != EEXIST) break;
    }
    hd_free(w->aside);
    w->aside = NULL;
    return io_error(w, "create", err);
}

hd_status gguf_writer_open(gguf_writer **out, const char *path, uint32_t alignment, hd_err *err) {
    gguf_writer *w = hd_calloc(1, sizeof *w);
    hd_status st = HD_OK;
    *out = NULL;
    if (!w) return hd_fail(err, HD_NOMEM, "gguf: no memory for a writer");
    w->fd = -1;
    w->alignment = alignment ? alignment : 32;
    buf_init(&w->keys, MAX_META_BYTES);
    buf_init(&w->tensors, MAX_META_BYTES);
    if (w->alignment < 8 || (w->alignment & (w->alignment - 1)))
        st = hd_fail(err, HD_INVALID, "gguf: the alignment %u is not a power of two of at least 8", alignment);
    else if (!(w->path = hd_strdup(path)))
        st = hd_fail(err, HD_NOMEM, "gguf: no memory for a path");
    else
        st = create_aside(w, err);
    if (!st && w->alignment != 32) gguf_put_uint(w, "general.alignment", GGUF_U32, w->alignment);
    if (st) {
        gguf_writer_close(w);
        return st;
    }
    *out = w;
    return HD_OK;
}

void gguf_writer_close(gguf_writer *w) {
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    if (w->aside) unlink(w->aside);
    buf_deinit(&w->keys);
    buf_deinit(&w->tensors);
    hd_free(w->key_names);
    hd_free(w->entries);
    hd_free(w->path);
    hd_free(w->aside);
    hd_free(w);
}
