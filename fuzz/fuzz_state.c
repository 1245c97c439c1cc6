/* fuzz_state.c - arbitrary bytes as a segment of the disk tier (docs/state.md), read to the last block.
 * Input: one byte that says which seals are made to match first (bit 0: id, sizes and sum of the head, bit 1: the index, bit 2: the
 * heads of blocks, bit 3: their payloads), so that what lies behind the seals is reached too; then the file.
 * Whatever is read must be bytes of the file, and no more of them than were asked for. */
#include "state/le.h"
#include "state/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *p;
    size_t n;
} memory;

static int64_t memory_pread(void *ctx, int fd, void *buf, size_t n, uint64_t at) {
    memory *m = ctx;
    (void)fd;
    if (at >= m->n) return 0;
    if (n > m->n - at) n = m->n - (size_t)at;
    memcpy(buf, m->p + at, n);
    return (int64_t)n;
}

/* The seal of a run, as an unencrypted file of this id has it. */
static void reseal(memory *m, uint64_t number, uint64_t at, uint64_t n, uint64_t tag_at) {
    seal_file f = {false, {0}, le_get64(m->p + 16), NULL, 0};
    seal s;
    if (at > m->n || n > m->n - at || tag_at > m->n || SEAL_BYTES > m->n - tag_at) return;
    if (!seal_begin(&s, &f, number, true) || !seal_data(&s, m->p + at, m->p + at, n) || !seal_take(&s, m->p + tag_at)) abort();
}

static void fix(memory *m, uint8_t what) {
    uint32_t n;
    uint64_t index_at;
    if (m->n < SEG_HEAD) return;
    n = le_get32(m->p + 104);
    index_at = m->n - (uint64_t)n * SEG_INDEX_ENTRY - SEAL_BYTES;
    if (!n || n > SEG_MAX_BLOCKS || index_at > m->n) return;
    if (what & 1) {
        le_put64(m->p + 80, m->n);
        le_put64(m->p + 88, index_at);
        seal_checksum(m->p, SEG_HEAD - SEAL_BYTES, m->p + SEG_HEAD - SEAL_BYTES);
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *e = m->p + index_at + (uint64_t)i * SEG_INDEX_ENTRY;
        uint64_t at = le_get64(e + 32), head = SEG_BLOCK_FIXED + 4 * (uint64_t)le_get32(e + 64), b0 = le_get64(e + 40);
        if (at > m->n || m->n - at < SEG_BLOCK_FIXED || head > m->n - at || b0 > m->n) continue;
        if (what & 8) {
            reseal(m, 4 * (uint64_t)i + 1, at + head + SEAL_BYTES, b0, at + 144);
            reseal(m, 4 * (uint64_t)i + 2, at + head + SEAL_BYTES + b0, le_get64(e + 48), at + 160);
        }
        if (what & 4) reseal(m, 4 * (uint64_t)i, at, head, at + head);
    }
    if (what & 2) reseal(m, UINT64_MAX, index_at, (uint64_t)n * SEG_INDEX_ENTRY, m->n - SEAL_BYTES);
}

static void read_all(const vfs *fs, memory *m) {
    static uint8_t raw[SEG_INDEX_MAX];
    static seg_entry entries[SEG_MAX_BLOCKS];
    seal_master none = {false, {0}};
    uint8_t id[SEG_ID] = {0};
    seg_head h;
    hd_err err;
    if (m->n >= SEG_HEAD) memcpy(id, m->p + 16, SEG_ID);
    if (seg_read_head(&h, fs, 0, m->n, id, &none, &err) || seg_read_index(entries, raw, fs, 0, &h, &err)) return;
    for (uint32_t i = 0; i < h.n_blocks && i < 64; i++) {
        const seg_entry *e = &entries[i];
        const uint8_t *block = m->p + e->at;
        int32_t tokens[SEG_MAX_TOKENS];
        void *into[SEG_GROUPS] = {NULL, NULL};
        if (e->at + seg_block_bytes(e) > m->n) abort(); /* the index was checked */
        for (uint32_t k = 0; k < e->n_tokens; k++) tokens[k] = (int32_t)le_get32(block + SEG_BLOCK_FIXED + 4 * k);
        for (int g = 0; g < SEG_GROUPS; g++)
            if (e->bytes[g] && !(into[g] = malloc(e->bytes[g]))) abort();
        if (!seg_read_block(fs, 0, &h, i, e, block + 72, tokens, into, &err)) {
            const uint8_t *from = block + seg_block_head(e->n_tokens);
            for (int g = 0; g < SEG_GROUPS; from += e->bytes[g++])
                if (into[g] && memcmp(into[g], from, e->bytes[g])) abort();
            tokens[0]++;
            if (seg_read_block(fs, 0, &h, i, e, block + 72, tokens, into, &err) != HD_NOTFOUND) abort();
        }
        for (int g = 0; g < SEG_GROUPS; g++) free(into[g]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory m;
    vfs fs = {.ctx = &m, .pread = memory_pread};
    char name[64];
    uint8_t id[SEG_ID];
    bool temporary;
    if (!size) return 0;
    m.n = size - 1;
    if (!(m.p = malloc(m.n ? m.n : 1))) return 0;
    if (m.n) memcpy(m.p, data + 1, m.n);
    fix(&m, data[0]);
    read_all(&fs, &m);
    memset(name, 0, sizeof name);
    memcpy(name, data, size < sizeof name ? size : sizeof name - 1);
    if (seg_parse_name(name, id, &temporary)) {
        char back[SEG_NAME];
        seg_name(back, id, temporary);
        if (strcmp(back, name)) abort();
    }
    free(m.p);
    return 0;
}
