/* method.c - a method of one's own: prompt lookup.
 *
 *     method MODEL [PROMPT]
 *
 * Text repeats itself.  When the last two tokens occurred before, what followed them then is a good guess for what follows
 * now, and the engine checks K guesses in one step at little more than the cost of one token.  The method is a plan alone:
 * guesses change how fast a request is answered, not what the answer is, which the program checks. */
#include <heddle.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K = 8 };

static heddle_error err;

static void need(heddle_status st, const char *what) {
    if (st == HEDDLE_OK) return;
    fprintf(stderr, "%s: %s%s%s\n", what, err.field, *err.field ? ": " : "", err.message);
    exit(1);
}

static uint32_t wants(void *ctx, const heddle_row *row) {
    (void)ctx;
    (void)row;
    return K;
}

/* Draft what followed the latest earlier place of the last two tokens. */
static void plan(void *ctx, heddle_row *row, heddle_plan *p) {
    size_t n;
    const int32_t *t = heddle_row_tokens(row, &n);
    (void)ctx;
    if (!p->max_draft || n < 3) return;
    for (size_t i = n - 2; i-- > 0;)
        if (t[i] == t[n - 2] && t[i + 1] == t[n - 1]) {
            p->draft = t + i + 2;
            p->n_draft = n - i - 2 < p->max_draft ? (uint32_t)(n - i - 2) : p->max_draft;
            return;
        }
}

static heddle_result *answer(heddle_engine *e, const int32_t *prompt, size_t n, const char *method) {
    heddle_request q;
    heddle_session *s;
    heddle_result *r;
    heddle_counters before, after;
    HEDDLE_REQUEST_INIT(&q);
    HEDDLE_INIT(&before);
    HEDDLE_INIT(&after);
    q.prompt = prompt;
    q.n_prompt = n;
    q.max_tokens = 96;
    q.temperature = 0;
    q.method = method;
    heddle_engine_look(e, &before);
    need(heddle_open(e, &q, 1, &s, &err), "request");
    need(heddle_collect(s, &r, &err), "answer");
    heddle_session_free(s);
    while (heddle_engine_look(e, &after), after.running) {} /* the counters follow the step that ended it */
    printf("%-14s %3zu tokens in %3llu steps, %.0f ms\n", method, r->n_ids, (unsigned long long)(after.steps - before.steps),
           (double)(r->stats->prefill_us + r->stats->decode_us) / 1000);
    return r;
}

int main(int argc, char **argv) {
    const char *prompt = argc > 2 ? argv[2] : "one two three four one two three four one two three four one two";
    heddle_model *model;
    heddle_engine *engine;
    heddle_method lookup;
    heddle_result *plain, *guessed;
    int32_t *ids;
    size_t n;
    int same;

    HEDDLE_INIT(&err);
    HEDDLE_INIT(&lookup);
    if (argc != 2 && argc != 3) return fprintf(stderr, "usage: method MODEL [PROMPT]\n"), 64;
    need(heddle_model_open(&model, argv[1], NULL, &err), argv[1]);
    need(heddle_engine_open(&engine, model, NULL, &err), "engine");
    lookup.name = "lookup";
    lookup.wants = wants;
    lookup.plan = plan;
    need(heddle_register(engine, &lookup, &err), "method");
    need(heddle_tokenize(model, prompt, strlen(prompt), HEDDLE_TOKENIZE_BOS, &ids, &n, &err), "prompt");
    plain = answer(engine, ids, n, "autoregressive");
    guessed = answer(engine, ids, n, "lookup");
    same = plain->n_ids == guessed->n_ids && !memcmp(plain->ids, guessed->ids, plain->n_ids * sizeof *plain->ids);
    printf("the answers are %s\n", same ? "equal" : "DIFFERENT");
    heddle_result_free(plain);
    heddle_result_free(guessed);
    heddle_free(ids);
    heddle_engine_close(engine);
    heddle_model_close(model);
    return !same;
}
