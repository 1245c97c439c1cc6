/* test_api_method.c - heddle.h: methods of an application, steering, cancellation sources, exclusive jobs.
 *
 * Expected texts are what the scripts say; for drafts, on tiny random models, the expected output is that of the engine's
 * own method, which knows no drafts.  Where something must happen while a request runs, an exclusive job holds the engine. */
#include <heddle.h>

#include "base/mem.h"
#include "tiny/tiny_model.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Ids: 0 bos, 1 eos, 2.. words; byte b is 7 + b. */
#define SCRIPT                                                                                                         \
    "{\"vocab\":[\"<s>\",\"</s>\",\"Hello\",\" world\",\"!\",\"one\",\"two\"],\"special\":{\"bos\":0,\"eos\":[1]},"     \
    "\"context\":4096,\"token_delay_ms\":%d,"                                                                          \
    "\"rules\":[{\"match\":\"loop\",\"emit\":[\"one\",\"two\"],\"then\":\"loop\"}],"                                   \
    "\"default\":{\"emit\":[\"Hello\",\" world\",\"!\"],\"then\":\"eos\"}}"
enum { BYTES = 7, VOCAB = BYTES + 256 };

typedef struct {
    heddle_model *m;
    heddle_engine *e;
} rig;

static heddle_error err;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        HEDDLE_INIT(&err);                                                                                             \
        if ((call) != HEDDLE_OK) fail_msg("%s: %s", #call, err.message);                                               \
    } while (0)
#define FAILS(call, status, name)                                                                                      \
    do {                                                                                                               \
        HEDDLE_INIT(&err);                                                                                             \
        assert_int_equal(call, status);                                                                                \
        assert_int_equal(err.code, status);                                                                            \
        assert_string_equal(err.field, name);                                                                          \
    } while (0)

static rig open_rig(int delay_ms, uint32_t max_rows) {
    char path[] = "/tmp/heddle-method-XXXXXX", name[64], json[1024];
    int fd = mkstemp(path), n = snprintf(json, sizeof json, SCRIPT, delay_ms);
    heddle_engine_options o;
    rig r;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, json, (size_t)n), n);
    close(fd);
    snprintf(name, sizeof name, "script:%s", path);
    OK(heddle_model_open(&r.m, name, NULL, &err));
    unlink(path);
    HEDDLE_INIT(&o);
    o.max_rows = max_rows;
    OK(heddle_engine_open(&r.e, r.m, &o, &err));
    return r;
}

static void close_rig(rig *r) {
    heddle_engine_close(r->e);
    heddle_model_close(r->m);
}

static heddle_request request(const char *method, uint32_t max_tokens) {
    static const int32_t prompt[] = {2, 3};
    heddle_request q;
    HEDDLE_REQUEST_INIT(&q);
    q.prompt = prompt;
    q.n_prompt = 2;
    q.temperature = 0;
    q.max_tokens = max_tokens;
    q.method = method;
    return q;
}

static heddle_request looping(uint32_t max_tokens) {
    static const int32_t prompt[] = {BYTES + 'l', BYTES + 'o', BYTES + 'o', BYTES + 'p'};
    heddle_request q = request(NULL, max_tokens);
    q.prompt = prompt;
    q.n_prompt = 4;
    return q;
}

static heddle_session *begin(const rig *r, const heddle_request *q) {
    heddle_session *s = NULL;
    OK(heddle_open(r->e, q, 1, &s, &err));
    return s;
}

/* Collect s and give it up. */
static heddle_result *end(heddle_session *s) {
    heddle_result *out = NULL;
    heddle_collect(s, &out, NULL);
    assert_non_null(out);
    heddle_session_free(s);
    return out;
}

static heddle_result *answer(const rig *r, const heddle_request *q) { return end(begin(r, q)); }

static void add(const rig *r, const char *name, void *ctx, heddle_method m) {
    m.size = sizeof m;
    m.name = name;
    m.ctx = ctx;
    OK(heddle_register(r->e, &m, &err));
}

/* Callbacks run on the engine's thread, where cmocka's assertions must not: the first line that was wrong is kept. */
static atomic_int wrong_line;
#define EXPECT(cond)                                                                                                   \
    do {                                                                                                               \
        int none_ = 0;                                                                                                 \
        if (!(cond)) atomic_compare_exchange_strong(&wrong_line, &none_, __LINE__);                                    \
    } while (0)

static int clean(void **state) {
    (void)state;
    atomic_store(&wrong_line, 0);
    return 0;
}

static int all_expected(void **state) {
    int line = atomic_load(&wrong_line);
    (void)state;
    if (line) print_error("in a callback, line %d was not as expected\n", line);
    return line;
}

/* ---- one method does what it is told ---- */

typedef struct {
    int opened, closed, planned, consumed, over;
    uint64_t arg;
    char id[64];
    uint32_t prompt, computed_min, left_max;
} seen;

static heddle_status watch_open(void *ctx, heddle_row *row, void **state, heddle_error *e) {
    seen *w = ctx;
    size_t n;
    (void)e;
    w->opened++;
    w->arg = heddle_row_arg(row);
    w->prompt = heddle_row_prompt_length(row);
    w->left_max = heddle_row_left(row);
    snprintf(w->id, sizeof w->id, "%s", heddle_row_id(row));
    EXPECT(heddle_row_tokens(row, &n)[1] == 3);
    EXPECT(n == 2);
    *state = malloc(1);
    return HEDDLE_OK;
}

static void watch_close(void *ctx, void *state) {
    ((seen *)ctx)->closed++;
    free(state);
}

static void watch_plan(void *ctx, heddle_row *row, heddle_plan *p) {
    EXPECT(p->size == sizeof *p);
    EXPECT(heddle_row_state(row));
    ((seen *)ctx)->planned++;
}

/* " world", "one", "two", whatever the model thinks. */
static void fixed_consume(void *ctx, heddle_row *row) {
    static const int32_t ids[] = {3, 5, 6};
    seen *w = ctx;
    size_t n;
    w->consumed++;
    heddle_row_tokens(row, &n);
    EXPECT(heddle_row_computed(row) == n);
    n -= heddle_row_prompt_length(row);
    EXPECT(heddle_row_left(row) == w->left_max - n);
    if (n == 3) heddle_row_end(row, HEDDLE_FINISH_STOP);
    else w->over += !heddle_row_publish(row, ids[n]);
}

static void emits_what_it_likes(void **state) {
    rig r = open_rig(0, 4);
    seen w = {0};
    heddle_request q = request("fixed", 10);
    heddle_result *out;
    heddle_text stop = {"net", 3};
    (void)state;
    add(&r, "fixed", &w,
        (heddle_method){.open = watch_open, .close = watch_close, .plan = watch_plan, .consume = fixed_consume});
    q.method_arg = 42;
    q.id = "it";
    out = answer(&r, &q);
    assert_string_equal(out->text, " worldonetwo");
    assert_int_equal(out->finish, HEDDLE_FINISH_STOP);
    assert_false(out->ended_by_eos);
    assert_int_equal(out->stats->generated_tokens, 3);
    heddle_result_free(out);
    assert_int_equal(w.arg, 42);
    assert_int_equal(w.prompt, 2);
    assert_string_equal(w.id, "it");
    assert_int_equal(w.consumed, 4);
    assert_int_equal(w.over, 0);

    q.max_tokens = 2; /* the cap is kept by the engine */
    out = answer(&r, &q);
    assert_string_equal(out->text, " worldone");
    assert_int_equal(out->finish, HEDDLE_FINISH_LENGTH);
    assert_int_equal(w.over, 1);
    heddle_result_free(out);

    q.max_tokens = 10; /* and so are stop strings */
    q.stops = &stop;
    q.n_stops = 1;
    out = answer(&r, &q);
    assert_string_equal(out->text, " worldo");
    assert_int_equal(out->stop_index, 0);
    assert_int_equal(w.over, 2);
    heddle_result_free(out);
    heddle_engine_close(r.e);
    assert_int_equal(w.opened, 3);
    assert_int_equal(w.closed, 3);
    heddle_model_close(r.m);
}

/* Raise the logit of the token "!" where the model says " world". */
static void edit_consume(void *ctx, heddle_row *row) {
    size_t n;
    int32_t id;
    float *logits = heddle_row_logits(row, &n);
    (void)ctx;
    EXPECT(logits);
    EXPECT(n == VOCAB);
    if (logits[3] == 20) logits[4] = 21;
    EXPECT(heddle_row_sample(row, &id) == HEDDLE_OK);
    EXPECT(heddle_row_sample(row, &id) == HEDDLE_OK); /* the same once more */
    EXPECT(!heddle_row_logits(row, &n));
    EXPECT(n == 0);
    if (heddle_row_publish(row, id)) EXPECT(heddle_row_sample(row, &id) == HEDDLE_NOT_FOUND);
}

static void edits_logits(void **state) {
    rig r = open_rig(0, 4);
    heddle_request q = request("edit", 10);
    heddle_result *out;
    (void)state;
    add(&r, "edit", NULL, (heddle_method){.consume = edit_consume});
    q.logprobs = 1;
    out = answer(&r, &q);
    assert_string_equal(out->text, "Hello!!");
    assert_true(out->ended_by_eos);
    /* 21 beside 20 and 261 zeros */
    assert_true(fabs(out->logprobs[1] - -log1p(exp(-1) + 261 * exp(-21))) < 1e-6);
    heddle_result_free(out);
    close_rig(&r);
}

/* The scripted model's state of token t at position p is in dimension i: (31t + 7(p+1)(i+1)) mod 101 - 50. */
enum { HIDDEN = 8 };

static void hidden_plan(void *ctx, heddle_row *row, heddle_plan *p) {
    (void)ctx;
    (void)row;
    p->hidden = 1;
}

static void hidden_consume(void *ctx, heddle_row *row) {
    uint32_t first, *positions = ctx;
    size_t n, n_tokens;
    const int32_t *t = heddle_row_tokens(row, &n_tokens);
    const float *h = heddle_row_hidden(row, &first, &n);
    EXPECT(h);
    for (size_t k = 0; k < n; k++)
        EXPECT(h[k * HIDDEN] == (float)((31 * t[first + k] + 7 * (first + k + 1)) % 101) - 50);
    *positions += (uint32_t)n;
    if (heddle_row_computed(row) == n_tokens) heddle_row_end(row, HEDDLE_FINISH_LENGTH);
}

static void sees_hidden_states(void **state) {
    rig r = open_rig(0, 4);
    heddle_request q = request("hidden", 10);
    heddle_model_info in;
    heddle_result *out;
    int32_t prompt[700];
    uint32_t positions = 0;
    (void)state;
    HEDDLE_INIT(&in);
    heddle_model_look(r.m, &in);
    assert_int_equal(in.width, HIDDEN);
    for (int i = 0; i < 700; i++) prompt[i] = 2 + i % 50;
    q.prompt = prompt;
    q.n_prompt = 700;
    add(&r, "hidden", &positions, (heddle_method){.plan = hidden_plan, .consume = hidden_consume});
    out = answer(&r, &q);
    assert_int_equal(out->finish, HEDDLE_FINISH_LENGTH);
    assert_int_equal(out->n_ids, 0);
    assert_int_equal(positions, 700);
    heddle_result_free(out);
    close_rig(&r);
}

/* ---- methods that misbehave harm themselves only ---- */

static void silent(void *ctx, heddle_row *row) {
    (void)ctx;
    (void)row;
}
static void greedy_publisher(void *ctx, heddle_row *row) {
    (void)ctx;
    heddle_row_publish(row, 5);
    EXPECT(heddle_row_publish(row, 5) == 0);
    EXPECT(heddle_row_publish(row, 5) == 0);
}
static void outside(void *ctx, heddle_row *row) {
    (void)ctx;
    EXPECT(heddle_row_publish(row, VOCAB) == 0);
}
static void gives_up(void *ctx, heddle_row *row) {
    (void)ctx;
    heddle_row_fail(row, "no luck");
    heddle_row_fail(row, "again");
}
static heddle_status closed_today(void *ctx, heddle_row *row, void **st, heddle_error *e) {
    (void)ctx;
    (void)row;
    (void)st;
    return heddle_error_set(e, HEDDLE_UNSUPPORTED, "day", "closed today");
}
static heddle_status needs_an_arg(void *ctx, const heddle_request *q, const heddle_model_info *in, heddle_error *e) {
    (void)ctx;
    EXPECT(in->n_vocab == VOCAB);
    return q->method_arg ? HEDDLE_OK : heddle_error_set(e, HEDDLE_INVALID, "method_arg", "an argument is needed");
}

static void misbehaviour_is_contained(void **state) {
    static const struct {
        const char *name, *text, *message;
        heddle_method m;
    } bad[] = {
        {"silent", "", "method silent: it neither published a token nor ended the row", {.consume = silent}},
        {"greedy", "one", "method greedy: it published more tokens than its segment has positions", {.consume = greedy_publisher}},
        {"outside", "", "method outside: it published a token outside the vocabulary", {.consume = outside}},
        {"gives_up", "", "method gives_up: no luck", {.consume = gives_up}},
        {"closed", "", "closed today", {.open = closed_today}},
    };
    rig r = open_rig(0, 4);
    heddle_request q = request(NULL, 10);
    heddle_session *good, *s;
    heddle_result *out;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        add(&r, bad[i].name, NULL, bad[i].m);
        q.method = NULL;
        good = begin(&r, &q);
        q.method = bad[i].name;
        out = answer(&r, &q);
        assert_int_equal(out->finish, HEDDLE_FINISH_FAILED);
        assert_string_equal(out->text, bad[i].text);
        assert_string_equal(out->error->message, bad[i].message);
        heddle_result_free(out);
        out = end(good);
        assert_string_equal(out->text, "Hello world!");
        heddle_result_free(out);
    }
    add(&r, "picky", NULL, (heddle_method){.check = needs_an_arg});
    q.method = "picky";
    FAILS(heddle_open(r.e, &q, 1, &s, &err), HEDDLE_INVALID, "method_arg");
    assert_string_equal(err.message, "an argument is needed");
    q.method_arg = 1;
    q.prompt_logits = 1;
    FAILS(heddle_open(r.e, &q, 1, &s, &err), HEDDLE_UNSUPPORTED, "prompt_logits");
    q.prompt_logits = 0;
    out = answer(&r, &q); /* nothing but a check: it answers as the engine's own method */
    assert_string_equal(out->text, "Hello world!");
    heddle_result_free(out);
    close_rig(&r);
}

static void registering(void **state) {
    rig r = open_rig(0, 4);
    heddle_method m;
    int n = 0;
    (void)state;
    HEDDLE_INIT(&m);
    FAILS(heddle_register(r.e, &m, &err), HEDDLE_INVALID, "name");
    m.name = "";
    FAILS(heddle_register(r.e, &m, &err), HEDDLE_INVALID, "name");
    m.name = "a name of more than sixty-three bytes, which is longer than it may be";
    FAILS(heddle_register(r.e, &m, &err), HEDDLE_INVALID, "name");
    m.name = "autoregressive";
    FAILS(heddle_register(r.e, &m, &err), HEDDLE_INVALID, "name");
    for (; n < 100; n++) {
        char name[8];
        snprintf(name, sizeof name, "m%d", n);
        m.name = name;
        if (heddle_register(r.e, &m, NULL)) break;
    }
    assert_in_range(n, 8, 16);
    m.name = "one-more";
    FAILS(heddle_register(r.e, &m, &err), HEDDLE_FULL, "");
    m.size = 0;
    FAILS(heddle_register(r.e, &m, &err), HEDDLE_INVALID, "size");
    close_rig(&r);
}

/* ---- drafts ---- */

/* Drafts from the true continuation, each token wrong with probability wrong/256, of random length. */
typedef struct {
    const int32_t *truth; /* the whole row, NULL: any tokens */
    size_t n_truth;
    uint32_t n_vocab, wrong;
    uint64_t seed;
    int32_t draft[80];
    uint32_t drafted, most;
} drafter;

static uint32_t rng(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

static uint32_t draft_wants(void *ctx, const heddle_row *row) {
    drafter *d = ctx;
    (void)row;
    return rng(&d->seed) % 12;
}

static void draft_plan(void *ctx, heddle_row *row, heddle_plan *p) {
    drafter *d = ctx;
    size_t n;
    heddle_row_tokens(row, &n);
    p->n_draft = rng(&d->seed) % 80; /* often too many */
    for (uint32_t i = 0; i < p->n_draft; i++) {
        bool wrong = !d->truth || n + i >= d->n_truth || rng(&d->seed) % 256 < d->wrong;
        d->draft[i] = wrong ? (int32_t)(rng(&d->seed) % (d->n_vocab + 1)) - 1 : d->truth[n + i]; /* -1 sometimes */
    }
    p->draft = d->draft;
    d->drafted += p->n_draft < p->max_draft ? p->n_draft : p->max_draft;
    if (p->max_draft > d->most) d->most = p->max_draft;
}

/* Publish one sampled token and no more, however good the draft was. */
static void one_by_one(void *ctx, heddle_row *row) {
    int32_t id;
    (void)ctx;
    if (heddle_row_sample(row, &id) == HEDDLE_OK) heddle_row_publish(row, id);
}

static void same_result(const heddle_result *a, const heddle_result *b) {
    assert_int_equal(a->n_ids, b->n_ids);
    assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, a->n_ids * sizeof *a->logprobs);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->stop_index, b->stop_index);
    assert_int_equal(a->ended_by_eos, b->ended_by_eos);
}

/* Law 1: whatever a method drafts, the output is that of no drafts. */
static void drafts_change_nothing(void **state) {
    static const char *const variants[] = {"llama", "gemma3", "qwen3"};
    uint64_t seed = 20250101;
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        char path[] = "/tmp/heddle-draft-XXXXXX";
        int fd = mkstemp(path);
        heddle_model_options mo;
        heddle_engine_options o;
        drafter d = {.n_vocab = TINY_VOCAB};
        uint32_t drafted = 0;
        rig r;
        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(tiny_model_write(tiny_variant_find(variants[v]), NULL, path), 0);
        HEDDLE_INIT(&mo);
        mo.n_threads = 2;
        OK(heddle_model_open(&r.m, path, &mo, &err));
        unlink(path);
        HEDDLE_INIT(&o);
        o.page_tokens = 4;
        OK(heddle_engine_open(&r.e, r.m, &o, &err));
        add(&r, "draft", &d, (heddle_method){.wants = draft_wants, .plan = draft_plan});
        add(&r, "slow", &d, (heddle_method){.wants = draft_wants, .plan = draft_plan, .consume = one_by_one});
        for (int i = 0; i < 24; i++) {
            heddle_request q;
            heddle_result *plain, *out;
            heddle_session *s, *other;
            int32_t prompt[40], truth[200];
            HEDDLE_REQUEST_INIT(&q);
            q.n_prompt = 1 + rng(&seed) % 40;
            for (size_t k = 0; k < q.n_prompt; k++) prompt[k] = (int32_t)(rng(&seed) % 300);
            q.prompt = prompt;
            q.max_tokens = 1 + rng(&seed) % 40;
            q.seed = rng(&seed);
            q.temperature = i % 3 ? 1 : 0;
            q.top_k = i % 3 ? 40 : 0;
            q.repetition_penalty = i % 4 ? 1 : 1.3f;
            q.logprobs = 1;
            q.ignore_eos = i % 2;
            plain = answer(&r, &q);
            memcpy(truth, prompt, q.n_prompt * sizeof *truth);
            memcpy(truth + q.n_prompt, plain->ids, plain->n_ids * sizeof *truth);
            d.truth = truth;
            d.n_truth = q.n_prompt + plain->n_ids;
            d.wrong = i % 4 == 0 ? 0 : i % 4 == 1 ? 256 : 40;
            d.seed = rng(&seed);
            d.drafted = 0;
            q.method = i % 5 == 4 ? "slow" : "draft";
            s = begin(&r, &q);
            q.method = NULL;
            other = begin(&r, &q); /* in the same steps */
            out = end(s);
            same_result(plain, out);
            heddle_result_free(out);
            drafted += d.drafted;
            out = end(other);
            same_result(plain, out);
            heddle_result_free(out);
            heddle_result_free(plain);
        }
#ifndef HD_HOSTILE /* a queue of one leaves no room for drafts */
        assert_true(drafted > 100 && d.most > 3);
#endif
        close_rig(&r);
    }
}

/* A right draft makes fewer steps. */
static void drafts_save_steps(void **state) {
    rig r = open_rig(0, 4);
    heddle_request q = looping(100);
    heddle_result *plain, *out;
    heddle_counters c0, c1;
    int32_t truth[104];
    drafter d = {.n_vocab = VOCAB};
    (void)state;
    HEDDLE_INIT(&c0);
    HEDDLE_INIT(&c1);
    add(&r, "draft", &d, (heddle_method){.wants = draft_wants, .plan = draft_plan});
    q.logprobs = 1;
    plain = answer(&r, &q);
    memcpy(truth, q.prompt, 16);
    memcpy(truth + 4, plain->ids, 400);
    d.truth = truth;
    d.n_truth = 104;
    heddle_engine_look(r.e, &c0);
    q.method = "draft";
    out = answer(&r, &q);
    heddle_engine_look(r.e, &c1);
    same_result(plain, out);
#ifndef HD_HOSTILE
    assert_true(c1.steps - c0.steps < 60);
#endif
    heddle_result_free(plain);
    heddle_result_free(out);
    close_rig(&r);
}

/* ---- steering, sources, jobs ---- */

typedef struct {
    sem_t begun, go;
    atomic_int ran, told;
    heddle_status status;
    heddle_engine *e;
    uint32_t running;
} job;

static void run_job(void *ctx) {
    job *j = ctx;
    heddle_counters c;
    HEDDLE_INIT(&c);
    heddle_engine_look(j->e, &c);
    j->running = c.running;
    atomic_fetch_add(&j->ran, 1);
    sem_post(&j->begun);
    sem_wait(&j->go);
}

static void job_done(void *ctx, heddle_status st) {
    job *j = ctx;
    j->status = st;
    atomic_fetch_add(&j->told, 1);
}

/* Stop everything until release. */
static void hold(const rig *r, job *j) {
    memset(j, 0, sizeof *j);
    j->e = r->e;
    sem_init(&j->begun, 0, 0);
    sem_init(&j->go, 0, 0);
    OK(heddle_exclusive(r->e, run_job, job_done, j, 0, NULL, &err));
    sem_wait(&j->begun);
}

static void nap(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

static void release(job *j) {
    sem_post(&j->go);
    for (int tries = 0; !atomic_load(&j->told); nap())
        if (++tries > 20000) fail_msg("a job's end was never told");
    sem_destroy(&j->begun);
    sem_destroy(&j->go);
}

static void first_token(heddle_session *s) {
    heddle_event ev;
    HEDDLE_INIT(&ev);
    assert_int_equal(heddle_next(s, &ev, HEDDLE_FOREVER), HEDDLE_OK);
    assert_int_equal(ev.kind, HEDDLE_EVENT_TOKEN);
}

static void steering(void **state) {
    static const int32_t hello[] = {2, 3, 4}, wrong[] = {2, VOCAB};
    int32_t many[100] = {0};
    rig r = open_rig(1, 4);
    heddle_request q = looping(200);
    heddle_result *out;
    heddle_session *s;
    job j;
    (void)state;

    s = begin(&r, &q);
    first_token(s);
    hold(&r, &j);
    assert_int_equal(j.running, 0); /* the row gave way */
    heddle_raise_cap(s, 230);
    heddle_raise_cap(s, 3); /* never lower */
    heddle_set_priority(s, HEDDLE_PRIORITY_HIGH);
    heddle_set_priority(s, 99);
    release(&j);
    assert_int_equal(j.status, HEDDLE_OK);
    out = end(s);
    assert_int_equal(out->finish, HEDDLE_FINISH_LENGTH);
    assert_int_equal(out->stats->generated_tokens, 230);
    assert_int_equal(out->stats->preemptions, 1);
    heddle_result_free(out);

    q.max_tokens = 200;
    s = begin(&r, &q);
    first_token(s);
    hold(&r, &j);
    OK(heddle_force(s, hello, 3, &err));
    FAILS(heddle_force(s, wrong, 2, &err), HEDDLE_INVALID, "ids");
    FAILS(heddle_force(s, NULL, 2, &err), HEDDLE_INVALID, "ids");
    FAILS(heddle_force(s, many, 100, &err), HEDDLE_FULL, "ids");
    release(&j);
    out = end(s);
    assert_non_null(strstr(out->text, "Hello world!"));
    assert_int_equal(out->stats->generated_tokens, 200);
    heddle_result_free(out);

    s = begin(&r, &q);
    first_token(s);
    hold(&r, &j);
    heddle_stop(s);
    release(&j);
    out = end(s);
    assert_int_equal(out->finish, HEDDLE_FINISH_STOP);
    assert_int_equal(out->stop_index, -1);
    assert_false(out->ended_by_eos);
    assert_true(out->stats->generated_tokens < 200);
    heddle_result_free(out);
    close_rig(&r);
}

/* Nobody reads it, its queue would be full after 256 tokens: detached, it ends all the same. */
static void detaching(void **state) {
    rig r = open_rig(0, 4);
    heddle_request q = looping(1000);
    heddle_result *out;
    heddle_session *s = begin(&r, &q), *c;
    (void)state;
    heddle_detach(s);
    for (int tries = 0; !heddle_engine_idle(r.e); nap())
        if (++tries > 20000) fail_msg("it never ended");
    out = end(s);
    assert_int_equal(out->n_ids, 1000);
    heddle_result_free(out);
    q.collect = 1; /* the same from the start */
    c = begin(&r, &q);
    for (int tries = 0; !heddle_engine_idle(r.e); nap())
        if (++tries > 20000) fail_msg("it never ended");
    out = end(c);
    assert_int_equal(out->n_ids, 1000);
    heddle_result_free(out);
    heddle_stop(s = begin(&r, &q)); /* steering what is over does nothing */
    out = NULL;
    heddle_collect(s, &out, NULL);
    heddle_result_free(out);
    heddle_stop(s);
    heddle_detach(s);
    heddle_raise_cap(s, 5000);
    heddle_session_free(s);
    close_rig(&r);
}

static void one_source_for_many(void **state) {
    rig r = open_rig(1, 4);
    heddle_request q = looping(HEDDLE_NO_CAP);
    heddle_cancellation *c;
    heddle_session *s[3];
    heddle_result *out;
    (void)state;
    OK(heddle_cancellation_new(&c, &err));
    assert_int_equal(heddle_cancellation_reason(c), HEDDLE_CANCEL_NONE);
    q.cancel = c;
    for (int i = 0; i < 2; i++) s[i] = begin(&r, &q);
    first_token(s[0]);
    assert_int_equal(heddle_cancellation_fire(c, HEDDLE_CANCEL_SHUTDOWN), 1);
    assert_int_equal(heddle_cancellation_fire(c, HEDDLE_CANCEL_BY_REQUEST), 0);
    assert_int_equal(heddle_cancellation_reason(c), HEDDLE_CANCEL_SHUTDOWN);
    for (int i = 0; i < 2; i++) {
        out = end(s[i]);
        assert_int_equal(out->finish, HEDDLE_FINISH_CANCELLED);
        assert_int_equal(out->reason, HEDDLE_CANCEL_SHUTDOWN);
        heddle_result_free(out);
    }
    HEDDLE_INIT(&err);
    if (heddle_open(r.e, &q, 1, &s[2], &err) == HEDDLE_OK) { /* too late */
        out = end(s[2]);
        assert_int_equal(out->reason, HEDDLE_CANCEL_SHUTDOWN);
        heddle_result_free(out);
    } else {
        assert_int_equal(err.code, HEDDLE_CANCELLED);
    }
    heddle_cancellation_free(c);
    heddle_cancellation_free(NULL);
    OK(heddle_cancellation_new(&c, &err)); /* given up before its request is over */
    q = request(NULL, 9);
    q.cancel = c;
    s[0] = begin(&r, &q);
    heddle_cancellation_free(c);
    out = end(s[0]);
    assert_string_equal(out->text, "Hello world!");
    heddle_result_free(out);
    close_rig(&r);
}

static void jobs(void **state) {
    rig r = open_rig(0, 4);
    heddle_cancellation *c;
    heddle_counters look;
    job first, second, none = {.told = 0};
    (void)state;
    HEDDLE_INIT(&look);
    hold(&r, &first);
    memset(&second, 0, sizeof second);
    OK(heddle_cancellation_new(&c, &err));
    OK(heddle_exclusive(r.e, run_job, job_done, &second, 0, c, &err)); /* waits for the first */
    heddle_engine_look(r.e, &look);
    assert_true(look.exclusive_waiting >= 1);
    heddle_cancellation_fire(c, HEDDLE_CANCEL_BY_REQUEST);
    release(&first);
    for (int tries = 0; !atomic_load(&second.told); nap())
        if (++tries > 20000) fail_msg("a job's end was never told");
    assert_int_equal(second.status, HEDDLE_CANCELLED);
    assert_int_equal(atomic_load(&second.ran), 0);
    HEDDLE_INIT(&err);
    assert_int_equal(heddle_exclusive(r.e, NULL, job_done, &none, 0, NULL, &err), HEDDLE_INVALID);
    assert_string_equal(err.field, "job");
    heddle_cancellation_free(c);
    heddle_engine_look(r.e, &look);
    assert_int_equal(look.exclusive_total, 1);
    assert_int_equal(atomic_load(&none.told), 0);
    close_rig(&r);
}

/* The n-th allocation of this thread is refused, for every n: no memory is said, nothing is handed out, nothing leaks (the
 * sanitizers look), and the next try goes. */
#define REFUSE(out, call)                                                                                              \
    do {                                                                                                               \
        heddle_status st_ = HEDDLE_NO_MEMORY;                                                                          \
        int tries_ = 0;                                                                                                \
        for (long n_ = 0; st_ != HEDDLE_OK; n_++) {                                                                    \
            hd_mem_fail_after(n_);                                                                                     \
            st_ = (call);                                                                                              \
            hd_mem_fail_after(-1);                                                                                     \
            if (st_ == HEDDLE_OK) break;                                                                               \
            assert_int_equal(st_, HEDDLE_NO_MEMORY);                                                                   \
            assert_null(out);                                                                                          \
            assert_true(++tries_ < 10000);                                                                             \
        }                                                                                                              \
        assert_true(tries_ > 0);                                                                                       \
    } while (0)

static void refused_memory(void **state) {
    static const char chat[] = "[{\"role\":\"user\",\"content\":\"Hello <s>\"}]";
    rig r = open_rig(0, 4), own = open_rig(0, 4);
    heddle_request q[2] = {request(NULL, 3), request(NULL, 3)};
    heddle_session *s[2] = {NULL, NULL};
    heddle_cancellation *c;
    heddle_result *out;
    heddle_method m;
    char *text;
    int32_t *ids;
    size_t n;
    (void)state;
    q[0].stops = &(const heddle_text){"xyz", 3};
    q[0].n_stops = 1;
    REFUSE(ids, heddle_tokenize(r.m, "Hello", 5, 0, &ids, &n, NULL));
    REFUSE(text, heddle_detokenize(r.m, ids, n, 0, &text, &n, NULL));
    heddle_free(ids);
    heddle_free(text);
    REFUSE(text, heddle_render(r.m, chat, strlen(chat), &text, &n, NULL));
    heddle_free(text);
    REFUSE(ids, heddle_render_ids(r.m, chat, strlen(chat), &ids, &n, NULL));
    heddle_free(ids);
    REFUSE(c, heddle_cancellation_new(&c, NULL));
    q[1].cancel = c;
    REFUSE(s[0] ? s[0] : s[1], heddle_open(r.e, q, 2, s, NULL));
    for (int i = 0; i < 2; i++) {
        out = end(s[i]);
        assert_string_equal(out->text, "Hello world!");
        heddle_result_free(out);
    }
    heddle_cancellation_free(c);
    heddle_engine_close(own.e);
    own.e = NULL;
    REFUSE(own.e, heddle_engine_open(&own.e, own.m, NULL, NULL));
    HEDDLE_INIT(&m);
    m.name = "late";
    REFUSE(NULL, heddle_register(own.e, &m, NULL));
    close_rig(&own);
    close_rig(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(emits_what_it_likes, clean, all_expected),
        cmocka_unit_test_setup_teardown(edits_logits, clean, all_expected),
        cmocka_unit_test_setup_teardown(sees_hidden_states, clean, all_expected),
        cmocka_unit_test_setup_teardown(misbehaviour_is_contained, clean, all_expected),
        cmocka_unit_test_setup_teardown(registering, clean, all_expected),
        cmocka_unit_test_setup_teardown(drafts_change_nothing, clean, all_expected),
        cmocka_unit_test_setup_teardown(drafts_save_steps, clean, all_expected),
        cmocka_unit_test_setup_teardown(steering, clean, all_expected),
        cmocka_unit_test_setup_teardown(detaching, clean, all_expected),
        cmocka_unit_test_setup_teardown(one_source_for_many, clean, all_expected),
        cmocka_unit_test_setup_teardown(jobs, clean, all_expected),
        cmocka_unit_test_setup_teardown(refused_memory, clean, all_expected),
    };
    return cmocka_run_group_tests_name("api methods", tests, NULL, NULL);
}
