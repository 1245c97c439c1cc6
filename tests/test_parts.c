/* test_parts.c - wide steps: however a step's tokens and rows are cut up among the members of the pool, the logits have the
 * same bits as those of narrow steps on one thread (law 1).
 *
 * From 128 tokens on a step is cut into parts of tokens, as many as members or of 64 tokens; below only into rows.  Two rows
 * share steps, so that a part ends in the midst of one and another holds the ends of both.
 *
 * The best of a position's logits is held against a search through all of them, also where the row asks for nothing else and
 * where two ids have the same logit. */
#include "format/gguf.h"
#include "model/model.h"
#include "tiny/tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT = 67, LONG = 301, TOKENS = SHORT + LONG, PAGE = 64, PAGES = (LONG + PAGE - 1) / PAGE };

typedef struct {
    model *m;
    void *pages[2][MODEL_MAX_GROUPS][PAGES];
    float *logits; /* [TOKENS][TINY_VOCAB]: first those of the short row */
    logit_best best[TOKENS];
} rig;

static void open_rig(rig *r, const char *path, unsigned threads, uint32_t step_tokens) {
    model_options mo = {.n_threads = threads};
    step_limits lim = {.max_tokens = step_tokens, .max_segs = 2, .max_logits = step_tokens, .ctx = PAGES * PAGE,
                       .page_tokens = PAGE, .kv_type = {KV_F16, KV_F16}};
    hd_err err;
    if (model_open(&r->m, path, &mo, &err) || model_plan(r->m, &lim, &err)) fail_msg("%s", err.msg);
    for (int row = 0; row < 2; row++)
        for (uint32_t g = 0; g < model_get(r->m)->n_groups; g++)
            for (int p = 0; p < PAGES; p++)
                assert_non_null(r->pages[row][g][p] = aligned_alloc(64, model_page_bytes(r->m, g, PAGE, KV_F16)));
    assert_non_null(r->logits = malloc((size_t)TOKENS * TINY_VOCAB * sizeof *r->logits));
}

static void close_rig(rig *r) { /* all but the logits */
    for (int row = 0; row < 2; row++)
        for (uint32_t g = 0; g < model_get(r->m)->n_groups; g++)
            for (int p = 0; p < PAGES; p++) free(r->pages[row][g][p]);
    model_close(r->m);
}

/* The short row's logits are not asked for with bare: then they are zeros. */
static void keep(rig *r, const segment *g, uint32_t at, bool bare) {
    assert_int_equal(!g->logits, bare);
    memset(r->logits + (size_t)at * TINY_VOCAB, 0, (size_t)g->n * TINY_VOCAB * sizeof *r->logits);
    if (!bare) memcpy(r->logits + (size_t)at * TINY_VOCAB, g->logits, (size_t)g->n * TINY_VOCAB * sizeof *r->logits);
    memcpy(r->best + at, g->best, g->n * sizeof *r->best);
}

/* Both rows through steps of so many tokens; the short one's come first.  The caller frees the logits. */
static float *run_some(const char *path, unsigned threads, uint32_t step_tokens, bool bare, logit_best *best) {
    static const uint32_t length[] = {SHORT, LONG}, first[] = {0, SHORT};
    uint32_t done[2] = {0, 0}, bad;
    int32_t ids[LONG];
    rig r;
    hd_err err;
    open_rig(&r, path, threads, step_tokens);
    for (uint32_t i = 0; i < LONG; i++) ids[i] = (int32_t)((i * 37 + i / 7 * 11) % 317);
    while (done[1] < LONG) {
        segment segs[2];
        step st = {.segs = segs};
        memset(segs, 0, sizeof segs);
        uint32_t row_of[2];
        for (uint32_t row = 0; row < 2; row++) {
            uint32_t n = length[row] - done[row], room = step_tokens - st.n_tokens;
            segment *s = &segs[st.n_segs];
            if (n > room) n = room;
            if (!n) continue;
            s->tokens = ids + done[row];
            s->n = n;
            s->pos0 = done[row];
            s->only_best = bare && row == 0;
            for (uint32_t g = 0; g < model_get(r.m)->n_groups; g++) s->pages[g] = r.pages[row][g];
            row_of[st.n_segs++] = row;
            st.n_tokens += n;
        }
        if (model_forward(r.m, &st, &bad, &err)) fail_msg("%s", err.msg);
        for (uint32_t i = 0; i < st.n_segs; i++) {
            uint32_t row = row_of[i];
            keep(&r, &segs[i], first[row] + done[row], bare && row == 0);
            done[row] += segs[i].n;
        }
    }
    close_rig(&r);
    memcpy(best, r.best, sizeof r.best);
    return r.logits;
}

static logit_best search(const float *x) {
    logit_best b = {-INFINITY, 0};
    for (uint32_t i = 0; i < TINY_VOCAB; i++)
        if (x[i] > b.logit) b = (logit_best){x[i], i};
    return b;
}

static void assert_best(const logit_best *best, const float *logits) { /* of all TOKENS */
    for (uint32_t t = 0; t < TOKENS; t++) {
        logit_best want = search(logits + (size_t)t * TINY_VOCAB);
        assert_int_equal(best[t].id, want.id);
        assert_memory_equal(&best[t].logit, &want.logit, sizeof want.logit);
    }
}

static float *run(const char *path, unsigned threads, uint32_t step_tokens) {
    logit_best best[TOKENS];
    float *logits = run_some(path, threads, step_tokens, false, best);
    assert_best(best, logits);
    return logits;
}

/* The same bests for rows that ask for nothing else beside ones that do. */
static void best_alone(const char *path, const float *logits, unsigned threads, uint32_t step_tokens) {
    logit_best best[TOKENS];
    float *got = run_some(path, threads, step_tokens, true, best);
    assert_best(best, logits);
    assert_memory_equal(got + (size_t)SHORT * TINY_VOCAB, logits + (size_t)SHORT * TINY_VOCAB, (size_t)LONG * TINY_VOCAB * sizeof *got);
    free(got);
}

static void same_bits(void **state) {
    static const char *const names[] = {"llama", "llama-bias", "gemma3", "qwen3", "q4_0-head8", "q4_1", "q4_k", "q6_k", "q8_0", "iq4_xs"};
    static const struct {
        unsigned threads;
        uint32_t step_tokens;
    } cuts[] = {{1, TOKENS}, {2, TOKENS}, {3, TOKENS}, {4, 256}, {2, 136}, {2, 129}, {3, 72}, {4, 24}};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[] = "/tmp/heddle-parts-XXXXXX";
        int fd = mkstemp(path);
        float *want;
        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(tiny_model_write(tiny_variant_find(names[i]), NULL, path), 0);
        want = run(path, 1, 8);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            float *got = run(path, cuts[c].threads, cuts[c].step_tokens);
            for (uint32_t t = 0; t < TOKENS; t++)
                if (memcmp(got + (size_t)t * TINY_VOCAB, want + (size_t)t * TINY_VOCAB, TINY_VOCAB * sizeof *want))
                    fail_msg("%s, %u threads, steps of %u: token %u differs", names[i], cuts[c].threads, cuts[c].step_tokens, t);
            free(got);
        }
        best_alone(path, want, 2, TOKENS);
        best_alone(path, want, 3, 10);
        free(want);
        unlink(path);
    }
}

/* Give the upper half of the vocabulary the lower half's rows of the head. */
static void twin_rows(const char *path) {
    gguf *g;
    hd_err err;
    if (gguf_open(&g, path, &err)) fail_msg("%s", err.msg);
    const gguf_tensor *t = gguf_tensor_find(g, "output.weight");
    if (!t) t = gguf_tensor_find(g, "token_embd.weight");
    assert_non_null(t);
    uint64_t half = t->size_bytes / 2;
    uint8_t *rows = malloc(half);
    memcpy(rows, t->data, half);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, rows, half, (off_t)(t->offset + half)), half);
    close(fd);
    free(rows);
    gguf_close(g);
}

static void of_equal_logits_the_first(void **state) {
    static const unsigned threads[] = {1, 2, 3, 4};
    char path[] = "/tmp/heddle-parts-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tiny_model_write(tiny_variant_find("llama"), NULL, path), 0);
    twin_rows(path);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        logit_best best[TOKENS];
        float *logits = run_some(path, threads[i], 24, false, best);
        for (uint32_t t = 0; t < TOKENS; t++) {
            const float *x = logits + (size_t)t * TINY_VOCAB;
            assert_true(x[best[t].id] == x[best[t].id + TINY_VOCAB / 2]);
            assert_int_equal(best[t].id, search(x).id);
        }
        free(logits);
    }
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(of_equal_logits_the_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
