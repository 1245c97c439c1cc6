/* tiny_golden.c - reads stored logits (format: tiny_model.h). */
#include "tiny/tiny_model.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { SEQS_MAX = 16, POSITIONS_MAX = 4096 };

/* n little-endian 32-bit words into out; 0 or -1. */
static int read_words(FILE *f, uint32_t *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint8_t b[4];
        if (fread(b, 1, 4, f) != 4) return -1;
        out[i] = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    return 0;
}

static int read_sequence(tiny_sequence *s, FILE *f) {
    uint32_t n, *ids = NULL, *logits = NULL;
    if (read_words(f, &n, 1) || !n || n > POSITIONS_MAX) return -1;
    ids = hd_alloc(n * sizeof *ids);
    s->ids = (int32_t *)ids;
    logits = hd_alloc((size_t)n * TINY_VOCAB * sizeof *logits);
    s->logits = (float *)(void *)logits;
    if (!ids || !logits) return -1;
    s->n = n;
    return read_words(f, ids, n) || read_words(f, logits, (size_t)n * TINY_VOCAB) ? -1 : 0;
}

int tiny_golden_read(tiny_golden *g, const char *dir, const char *name) {
    char path[1024];
    uint32_t head[3];
    FILE *f = NULL;
    memset(g, 0, sizeof *g);
    if ((size_t)snprintf(path, sizeof path, "%s/%s.logits", dir, name) >= sizeof path) return -1;
    if (!(f = fopen(path, "rb"))) return -1;
    if (read_words(f, head, 3) || head[0] != 0x31474448 || !head[1] || head[1] > SEQS_MAX || head[2] != TINY_VOCAB)
        goto bad;
    if (!(g->seqs = hd_calloc(head[1], sizeof *g->seqs))) goto bad;
    g->n_seqs = head[1];
    for (uint32_t i = 0; i < g->n_seqs; i++)
        if (read_sequence(&g->seqs[i], f)) goto bad;
    if (fgetc(f) != EOF) goto bad;
    fclose(f);
    return 0;
bad:
    fclose(f);
    tiny_golden_free(g);
    return -1;
}

int tiny_hidden_read(float *out, const char *dir, const char *name, uint32_t seq, uint32_t n, uint32_t width) {
    char path[1024];
    uint32_t head[3], have = 0;
    int rc = -1;
    FILE *f = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/%s.hidden", dir, name) >= sizeof path || !(f = fopen(path, "rb"))) return -1;
    if (read_words(f, head, 3) || head[0] != 0x31484448 || seq >= head[1] || head[2] != width) goto out;
    for (uint32_t i = 0; i <= seq; i++) {
        if (read_words(f, &have, 1) || have > POSITIONS_MAX) goto out;
        if (i < seq && fseek(f, (long)have * width * 4, SEEK_CUR)) goto out;
    }
    if (have == n && !read_words(f, (uint32_t *)(void *)out, (size_t)n * width)) rc = 0;
out:
    fclose(f);
    return rc;
}

void tiny_golden_free(tiny_golden *g) {
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        hd_free((void *)g->seqs[i].ids);
        hd_free((void *)g->seqs[i].logits);
    }
    hd_free(g->seqs);
    memset(g, 0, sizeof *g);
}
