/* gguf_edit.c - see gguf_edit.h. */
#include "util/gguf_edit.h"

#include "base/mem.h"
#include "format/gguf_write.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static bool is(gguf_str a, const char *b) { return b && a.n == strlen(b) && !memcmp(a.s, b, a.n); }

static void put_key(gguf_writer *w, const gguf_edit_key *k) {
    if (k->type == GGUF_STRING)
        gguf_put_str(w, k->key, k->s);
    else if (k->type == GGUF_BOOL)
        gguf_put_bool(w, k->key, k->n != 0);
    else if (k->type == GGUF_F32)
        gguf_put_real(w, k->key, k->type, (double)k->n);
    else if (k->n < 0)
        gguf_put_int(w, k->key, k->type, k->n);
    else
        gguf_put_uint(w, k->key, k->type, (uint64_t)k->n);
}

static void put_keys(gguf_writer *w, const gguf *g, const gguf_edit *e) {
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        gguf_str name = gguf_key(g, i);
        bool skip = is(name, e->drop_key);
        for (int k = 0; k < 4 && e->keys[k].key; k++) skip |= is(name, e->keys[k].key);
        if (!skip) gguf_put_copy(w, g, i);
    }
    for (int k = 0; k < 4 && e->keys[k].key; k++) put_key(w, &e->keys[k]);
}

/* The bytes that the copy has of tensor t, 0: none. */
static uint64_t kept(const gguf_tensor *t, size_t i, const gguf_edit *e, gguf_tensor *as) {
    *as = *t;
    if (e->parts && i % e->parts != e->part) return 0;
    if (!is(t->name, e->turn_tensor)) return t->size_bytes;
    as->type = TENSOR_I32;
    return as->size_bytes = t->dims[0] * t->dims[1] * 4;
}

void gguf_edit_copy(const char *from, const char *to, const gguf_edit *e) {
    gguf *g;
    gguf_writer *w;
    gguf_tensor as;
    hd_err err;
    if (gguf_open(&g, from, &err)) fail_msg("%s", err.msg);
    assert_int_equal(gguf_writer_open(&w, to, 0, &err), HD_OK);
    if (!e->part) put_keys(w, g, e);
    if (e->parts) {
        gguf_put_uint(w, "split.no", GGUF_U16, e->part);
        gguf_put_uint(w, "split.count", GGUF_U16, e->parts);
        gguf_put_int(w, "split.tensors.count", GGUF_I32, (int64_t)gguf_n_tensors(g));
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        if (kept(gguf_tensor_at(g, i), i, e, &as)) gguf_put_tensor(w, as.name, as.type, as.n_dims, as.dims);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        uint64_t n = kept(t, i, e, &as);
        void *zeros = NULL;
        if (n > t->size_bytes) assert_non_null(zeros = hd_calloc(1, n));
        if (n && gguf_write_data(w, zeros ? zeros : t->data, n, &err)) fail_msg("%s", err.msg);
        hd_free(zeros);
    }
    if (gguf_writer_commit(w, &err)) fail_msg("%s", err.msg);
    gguf_writer_close(w);
    gguf_close(g);
}
