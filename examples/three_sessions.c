/* three_sessions.c - three answers at once from one engine, printed as they grow.
 *
 *     three_sessions MODEL [PROMPT PROMPT PROMPT]
 *
 * One thread reads all three: notify raises a semaphore, and whoever has something is read without waiting. */
#include <heddle.h>

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3 };

static heddle_error err;

static void need(heddle_status st, const char *what) {
    if (st == HEDDLE_OK) return;
    fprintf(stderr, "%s: %s%s%s\n", what, err.field, *err.field ? ": " : "", err.message);
    exit(1);
}

static void wake(void *ctx) { sem_post((sem_t *)ctx); }

int main(int argc, char **argv) {
    const char *prompts[N] = {"The sea is", "A loom has", "Ten crows sat"};
    heddle_model *model;
    heddle_engine *engine;
    heddle_request requests[N];
    heddle_session *sessions[N];
    int32_t *ids[N];
    int open = N, last = -1;
    sem_t ready;

    HEDDLE_INIT(&err);
    if (argc != 2 && argc != 2 + N) return fprintf(stderr, "usage: three_sessions MODEL [PROMPT PROMPT PROMPT]\n"), 64;
    sem_init(&ready, 0, 0);
    need(heddle_model_open(&model, argv[1], NULL, &err), argv[1]);
    need(heddle_engine_open(&engine, model, NULL, &err), "engine");
    for (int i = 0; i < N; i++) {
        if (argc > 2) prompts[i] = argv[2 + i];
        HEDDLE_REQUEST_INIT(&requests[i]);
        need(heddle_tokenize(model, prompts[i], strlen(prompts[i]), HEDDLE_TOKENIZE_BOS, &ids[i], &requests[i].n_prompt,
                             &err),
             "prompt");
        requests[i].prompt = ids[i];
        requests[i].max_tokens = 24;
        requests[i].temperature = 0;
        requests[i].notify = wake;
        requests[i].notify_ctx = &ready;
    }
    need(heddle_open(engine, requests, N, sessions, &err), "request");
    for (int i = 0; i < N; i++) heddle_free(ids[i]);

    while (open) {
        sem_wait(&ready);
        for (int i = 0; i < N; i++) {
            heddle_event ev;
            HEDDLE_INIT(&ev);
            while (sessions[i] && heddle_next(sessions[i], &ev, 0) == HEDDLE_OK) {
                if (ev.n_text) {
                    if (last != i) printf("%s[%d]", last == N ? "\n" : last < 0 ? "" : " ", i);
                    fwrite(ev.text, 1, ev.n_text, stdout);
                    fflush(stdout);
                    last = i;
                }
                if (ev.kind != HEDDLE_EVENT_DONE) continue;
                printf("\n[%d] %s, %u tokens, first after %.0f ms", i, heddle_finish_name(ev.finish),
                       ev.stats->generated_tokens, (double)(ev.stats->queue_us + ev.stats->prefill_us) / 1000);
                heddle_session_free(sessions[i]);
                sessions[i] = NULL;
                last = N, open--;
            }
        }
    }
    printf("\n");
    heddle_engine_close(engine);
    heddle_model_close(model);
    return 0;
}
