/* test_tiny.c - the small random models are written as their Python twin makes them, and their goldens can be read.
 *
 * tests/golden/tiny.sums holds size and FNV-1a of every model's data section as tiny_gen.py computes it.  With
 * HEDDLE_TINY_DIR set, the files are written there and kept (tests/tiny/check_tiny.py reads them); otherwise into a
 * temporary folder that is removed. */
#include "tiny/tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

static uint64_t hash_tail(FILE *f, long size, uint64_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    assert_int_equal(fseek(f, size - (long)n, SEEK_SET), 0);
    for (uint64_t i = 0; i < n; i++) {
        int c = getc(f);
        assert_int_not_equal(c, EOF);
        h = (h ^ (unsigned)c) * 0x100000001b3u;
    }
    return h;
}

static void files_equal_the_python_twin(void **state) {
    char dir[] = "/tmp/heddle-tiny-XXXXXX", path[512], name[64];
    const char *keep = getenv("HEDDLE_TINY_DIR");
    unsigned long long bytes, want;
    size_t n = 0;
    (void)state;
    if (!keep) assert_non_null(mkdtemp(dir));
    FILE *sums = fopen(TEST_DIR "/golden/tiny.sums", "r");
    assert_non_null(sums);
    while (fscanf(sums, "%63s %llu %llx", name, &bytes, &want) == 3) {
        const tiny_variant *v = tiny_variant_find(name);
        assert_non_null(v);
        assert_ptr_equal(v, &tiny_variants[n++]);
        snprintf(path, sizeof path, "%s/%s.gguf", keep ? keep : dir, name);
        assert_int_equal(tiny_model_write(v, NULL, path), 0);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        assert_int_equal(fseek(f, 0, SEEK_END), 0);
        long size = ftell(f);
        assert_true(size > (long)bytes && (size - (long)bytes) % 32 == 0);
        uint64_t got = hash_tail(f, size, bytes);
        if (got != want) fail_msg("%s: data section %016llx, twin %016llx", name, (unsigned long long)got, want);
        fclose(f);
        if (!keep) assert_int_equal(unlink(path), 0);
    }
    fclose(sums);
    assert_int_equal(n, tiny_n_variants);
    if (!keep) assert_int_equal(rmdir(dir), 0);
}

static void goldens_are_readable(void **state) {
    tiny_golden g;
    (void)state;
    for (size_t k = 0; k < tiny_n_variants; k++) {
        assert_int_equal(tiny_golden_read(&g, TEST_DIR "/golden", tiny_variants[k].name), 0);
        assert_int_equal(g.n_seqs, tiny_variants[k].brief ? 2 : 3);
        assert_int_equal(g.seqs[0].n, tiny_variants[k].brief ? 21 : 70);
        for (uint32_t s = 0; s < g.n_seqs; s++) {
            for (uint32_t i = 0; i < g.seqs[s].n; i++) assert_in_range(g.seqs[s].ids[i], 0, TINY_VOCAB - 1);
            for (size_t i = 0; i < (size_t)g.seqs[s].n * TINY_VOCAB; i++)
                assert_true(isfinite(g.seqs[s].logits[i]) && fabsf(g.seqs[s].logits[i]) < 100);
        }
        tiny_golden_free(&g);
    }
    assert_int_equal(tiny_golden_read(&g, TEST_DIR "/golden", "no-such-model"), -1);
    assert_int_equal(hd_mem_live(), 0);
}

/* Stands in for a real quantiser: keeps the sign of each value, 32 a block. */
static int sign_bits(void *ctx, const float *row, size_t n, void *out) {
    uint8_t *p = out;
    memset(p, 0, n / 8);
    for (size_t i = 0; i < n; i++) p[i / 8] |= (uint8_t)((row[i] < 0) << (i % 8));
    *(size_t *)ctx += n;
    return 0;
}

static int refuses(void *ctx, const float *row, size_t n, void *out) {
    (void)ctx, (void)row, (void)n, (void)out;
    return -1;
}

static void a_quantiser_sees_every_matrix(void **state) {
    char path[] = "/tmp/heddle-tiny-XXXXXX";
    size_t seen = 0, matrices = 320 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 96 * 3);
    tiny_weights w = {.type = 99, .block_elems = 32, .block_bytes = 4, .quantise = sign_bits, .ctx = &seen};
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find("llama"), &w, path), 0);
    assert_int_equal(seen, matrices);
    w.quantise = refuses;
    assert_int_equal(tiny_model_write(tiny_variant_find("llama"), &w, path), -1);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_equal_the_python_twin),
        cmocka_unit_test(goldens_are_readable),
        cmocka_unit_test(a_quantiser_sees_every_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
