/* fuzz_stop.c - stop strings and a text cut in pieces, both from the input, against a search of the whole text.
 * Input: count of strings (2 bits), then length byte and bytes of each, then the text; cuts come from the text itself.
 */
#include "decode/stop.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stop_string stops[4];
    size_t n = 0, best = SIZE_MAX, want, fed = 0, which = SIZE_MAX;
    const char *text;
    stop_set *set;
    stop_stream *st;
    hd_buf out;
    bool stopped = false;
    if (!size) return 0;
    n = (*data & 3) + 1u;
    data++, size--;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        if (!size) return 0;
        len = 1 + *data % 12;
        data++, size--;
        if (len > size) return 0;
        stops[i] = (stop_string){(const char *)data, len};
        data += len, size -= len;
    }
    text = (const char *)data;
    want = size;
    for (size_t at = 0; at < size && best == SIZE_MAX; at++)
        for (size_t i = 0; i < n; i++)
            if (stops[i].n <= size - at && !memcmp(text + at, stops[i].s, stops[i].n) &&
                (best == SIZE_MAX || stops[i].n < stops[best].n)) {
                best = i;
                want = at;
            }
    if (stop_set_new(&set, stops, n, NULL) || stop_stream_new(&st, set, NULL)) abort();
    buf_init(&out, size + 1);
    while (fed < size && !stopped) {
        size_t piece = data[fed] % 7u;
        if (piece > size - fed) piece = size - fed;
        if (!piece) piece = 1;
        stopped = stop_push(st, text + fed, piece, &out, &which);
        fed += piece;
    }
    if (!stopped) stopped = stop_finish(st, &out, &which);
    if (stopped != (best != SIZE_MAX) || out.len != want || (want && memcmp(out.data, text, want))) abort();
    if (stopped && which != best) abort();
    buf_deinit(&out);
    stop_stream_free(st);
    stop_set_free(set);
    return 0;
}
