/* fuzz_record.c - stored policies, events and ends as another build or a bad disk might leave them: read or refused, and what
 * was read is written to the same bytes.  Input: choices (2 bytes), what it is (1 byte), then the bytes. */
#include "serve/record.h"

#include "base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void policy(const uint8_t *p, size_t n, uint32_t n_choices) {
    static const int32_t ids[] = {1, 2, 3, 4, 5};
    static const model_info info = {.n_vocab = 100};
    static server s;
    journal_entry e = {.request = {.id = "x", .record = p, .n_record = n, .prompt = ids, .n_prompt = 5, .n_choices = n_choices}};
    const dialect *d = record_dialect(&e);
    gen *g = hd_calloc(1, sizeof *g);
    hd_buf out;
    if (!g) return;
    s.info = &info;
    g->srv = &s;
    buf_init(&out, SIZE_MAX);
    if (d && !record_read(g, d, &e, NULL)) {
        g->d = d;
        if (!record_write(g, &out) || out.len != n || memcmp(out.data, p, n)) abort();
    }
    buf_deinit(&out);
    gen_clear_plan(g);
    hd_free(g);
}

static void events(const uint8_t *p, size_t n) {
    journal_event e;
    gen_event ev;
    size_t k;
    for (size_t at = 0; at < n && (k = event_unpack((const char *)p + at, n - at, &e)); at += k) {
        uint8_t extra[EVENT_EXTRA_MAX];
        journal_event again;
        int32_t id;
        if (!event_read(&e, &ev)) continue;
        if (event_mark_token(event_mark(&e), &id) != (ev.kind == EV_TOKEN)) abort();
        event_write(&ev, e.n_extra > 1, extra, &again);
        if (again.n_extra > EVENT_EXTRA_MAX || again.n_text != e.n_text) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    serve_error end;
    if (size < 3) return 0;
    switch (data[2] % 3) {
    case 0: policy(data + 3, size - 3, (uint32_t)data[0] | (uint32_t)data[1] << 8); break;
    case 1: events(data + 3, size - 3); break;
    default: finish_read(data + 3, size - 3, &end);
    }
    return 0;
}
