/* fuzz_gguf.c - any bytes through the GGUF reader, and everything that can be asked of a file that was accepted.
 *
 *     python3 fuzz/seed_gguf.py SEEDS && build-fuzz/fuzz_gguf -max_len=4096 -dict=fuzz/gguf.dict CORPUS SEEDS */
#include "base/mem.h"
#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(e)                                                                                                       \
    do {                                                                                                               \
        if (!(e)) {                                                                                                    \
            fprintf(stderr, "line %d: %s\n", __LINE__, #e);                                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The views lie in the file; sums of all bytes make sanitizers look at each. */
static const uint8_t *begin, *end;
static volatile unsigned sink;

static void touch(const void *p, size_t n) {
    unsigned sum = 0;
    CHECK(!n || ((const uint8_t *)p >= begin && n <= (size_t)(end - (const uint8_t *)p)));
    for (size_t i = 0; i < n; i++) sum += ((const uint8_t *)p)[i];
    sink += sum;
}

static void ask(const gguf *g, const char *key) {
    hd_err err;
    uint64_t u;
    float x;
    bool b;
    gguf_str s;
    gguf_type elem;
    size_t n;
    (void)gguf_get_uint(g, key, 0, UINT64_MAX, &u, &err);
    (void)gguf_get_uint(g, key, 3, 7, &u, NULL);
    (void)gguf_get_f32(g, key, &x, &err);
    if (!gguf_get_bool(g, key, &b, &err)) sink += b;
    if (!gguf_get_str(g, key, &s, &err)) touch(s.s, s.n);
    CHECK(gguf_arr_n(g, key, &elem, &n, &err) == HD_OK);
    if (n <= 4096) {
        gguf_str strs[4096];
        int64_t ints[4096];
        float floats[4096];
        (void)gguf_arr_i64(g, key, ints, n, &err);
        (void)gguf_arr_f32(g, key, floats, n, &err);
        if (!gguf_arr_strs(g, key, strs, n, &err))
            for (size_t i = 0; i < n; i++) touch(strs[i].s, strs[i].n);
        CHECK(gguf_arr_i64(g, key, ints, n + 1, &err) != HD_OK);
    }
    if (n) (void)gguf_arr_uint(g, key, n - 1, 0, UINT64_MAX, &u, &err);
    CHECK(gguf_arr_uint(g, key, n, 0, UINT64_MAX, &u, &err) != HD_OK);
}

static void look(const gguf *g) {
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        gguf_str k = gguf_key(g, i);
        char text[64], *name = hd_strndup(k.s, k.n);
        CHECK(name && strlen(name) == k.n && gguf_has(g, name));
        for (size_t room = 0; room <= sizeof text; room += 9) {
            memset(text, 1, sizeof text);
            gguf_key_text(g, i, text, room);
            CHECK(!room || memchr(text, 0, room));
        }
        ask(g, name);
        hd_free(name);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        const tensor_type_info *info = tensor_type_get(t->type);
        char *name = hd_strndup(t->name.s, t->name.n);
        CHECK(name && gguf_tensor_find(g, name) == t);
        hd_free(name);
        touch(t->data, t->size_bytes);
        CHECK((const uint8_t *)t->data == begin + t->offset);
        CHECK(t->dims[0] / info->block_elems * info->block_bytes * t->dims[1] * t->dims[2] * t->dims[3] ==
              t->size_bytes);
        if (t->dims[0] <= 4096) {
            float row[4096];
            (void)tensor_dequant_row(t->type, t->data, row, t->dims[0]);
        }
        gguf_tensor_fetch(g, t, 0, t->size_bytes);
        gguf_tensor_release(g, t, 0, t->size_bytes);
        for (size_t k = 0; k < i; k++) {
            const gguf_tensor *o = gguf_tensor_at(g, k);
            CHECK(t->offset + t->size_bytes <= o->offset || o->offset + o->size_bytes <= t->offset);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gguf *g;
    hd_err err;
    hd_status st;
    begin = data, end = data + size;
    st = gguf_open_memory(&g, data, size, &err);
    CHECK((st == HD_OK) == (g != NULL));
    CHECK(st == HD_OK || (st == err.code && memchr(err.msg, 0, sizeof err.msg) && err.msg[0]));
    if (g) look(g);
    gguf_close(g);
    return 0;
}
