/* gguf_edit.h - a copy of a GGUF file with something changed: a key, a tensor, or only one part of a split. */
#ifndef HD_TESTS_GGUF_EDIT_H
#define HD_TESTS_GGUF_EDIT_H

#include "format/gguf.h"

/* A key to write instead of, or besides, what the file has. */
typedef struct {
    const char *key;
    gguf_type type; /* an integer type, GGUF_F32, GGUF_BOOL or GGUF_STRING */
    int64_t n;      /* the value of all but strings */
    const char *s;
} gguf_edit_key;

typedef struct {
    const char *drop_key;    /* left out */
    gguf_edit_key keys[4];   /* up to the first without a name */
    const char *turn_tensor; /* written as int32 of the same shape: not real numbers */
    uint32_t part, parts;    /* parts > 0: this part of a split, every parts-th tensor, keys in part 0 only */
} gguf_edit;

/* Fails the test on error. */
void gguf_edit_copy(const char *from, const char *to, const gguf_edit *e);

#endif
