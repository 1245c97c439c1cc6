/* test_durable_crash.c (slow-test) - a server with durable requests whose disk loses power: each is answered as if
 * nothing had been.
 *
 * Scripted model, server and request log in this process; the log lies on tests/util/memvfs.c, which drops, tears and
 * scrambles what was not synced.  A cycle is up to four lives on one disk.  In all but the last the power goes: in turn
 * at each sync that opening, accepting, appending, ending, resuming and closing make; at writes; or at a random moment.
 * What the server does after that reaches no disk, and its clients are gone.  Some lives end in order instead, with a
 * drain that is too short for what runs.  In the last life they come again, with
 * the same keys.  Held against a server without a log:
 *   - the events 0, 1, 2, ... of each request, joined from what was seen before each cut and what is read after it, are
 *     those of an uninterrupted run; what was seen before is told again the same
 *   - a request of which a byte was seen is the same request (id, created) ever after
 *   - read again when it has ended, and by a server that starts after that, it is the same once more; also unstreamed
 * $HEDDLE_CRASH_CYCLES: cycles, 300 by default, 40 under a sanitizer. */
#include "base/log.h"
#include "base/mem.h"
#include "util/memvfs.h"
#include "util/runs.h"
#include "util/server_rig.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SLOTS = 5,          /* requests in a cycle */
    MAX_EVENTS = 256,
    CUT_SYNCS = 24,     /* syncs that are cut in turn; a cycle without a crash makes fewer in its first life */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    CYCLES = 40,
    PATIENCE_MS = 120000,
#else
    CYCLES = 300,
    PATIENCE_MS = 20000,
#endif
};

/* Ids 0 </s>, 1 .. 9 below; then the bytes.  Sampled answers differ by seed; halves of characters; one fails. */
#define TOP "[[1,18],[2,18],[3,17],[4,17],[5,18],[6,17]]"
#define TOP4 TOP "," TOP "," TOP "," TOP
static const char script[] =
    "{\"vocab\":[\"</s>\",\"a\",\" b\",\"cd\",{\"hex\":\"C3\"},{\"hex\":\"A9\"},\" stop\",\"x\",{\"hex\":\"F09F\"},\".\"],"
    "\"special\":{\"eos\":[0]},\"context\":512,\"step_delay_ms\":1,"
    "\"rules\":[{\"match\":\"fail\",\"emit\":[1,2,4,5,3,8,1,2,9],\"then\":\"fail\"},"
    "{\"match\":\"end\",\"emit\":[1,2,4,5,3,8,1,2,9],\"then\":\"eos\"}],"
    "\"default\":{\"emit\":[1,1,1,1,1,1,1,1],\"then\":\"loop\",\"top\":[" TOP4 "," TOP4 "]}}";

typedef struct {
    const char *path, *body; /* without its braces */
    bool fails;
} specimen;
#define CHAT "/v1/chat/completions"
#define COMPLETE "/v1/completions"
#define SAY(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}],"
static const specimen specimens[] = {
    {COMPLETE, "\"prompt\":\"go\",\"max_tokens\":40,\"seed\":1", false},
    {CHAT, SAY("go") "\"max_tokens\":30,\"seed\":2,\"logprobs\":true,\"top_logprobs\":2", false},
    {COMPLETE, "\"prompt\":\"end\",\"max_tokens\":40,\"temperature\":0,\"seed\":1,\"logprobs\":1", false},
    {COMPLETE, "\"prompt\":\"go on\",\"max_tokens\":25,\"seed\":3,\"n\":2", false},
    {CHAT, SAY("stops") "\"max_tokens\":100,\"seed\":4,\"stop\":[\" stop b\",\"cdcd\"]", false},
    {COMPLETE, "\"prompt\":\"echo\",\"max_tokens\":20,\"seed\":5,\"echo\":true,\"logprobs\":2", false},
    {COMPLETE, "\"prompt\":[\"one\",\"two\"],\"max_tokens\":15,\"seed\":6,\"n\":2,\"repetition_penalty\":1.3", false},
    {CHAT, SAY("fail") "\"max_tokens\":30,\"seed\":7", true},
    {COMPLETE, "\"prompt\":\"one\",\"max_tokens\":1,\"seed\":8", false},
    {COMPLETE, "\"prompt\":\"ids\",\"max_tokens\":33,\"seed\":9,\"return_token_ids\":true,\"min_tokens\":9", false},
};
enum { N_SPECIMENS = sizeof specimens / sizeof *specimens };

/* What is known of an answer: events as text without what may differ. */
typedef struct {
    char *ev[MAX_EVENTS]; /* of several choices: in the order they came */
    size_t n;
    char *end;            /* NULL: not seen; "" for [DONE]; an error's text */
    char *whole;          /* the unstreamed reply, NULL: not asked */
    int status;
    char id[64];          /* "": no byte of it was seen */
    long long created;
} answer;

static answer reference[N_SPECIMENS];
static rig shared; /* the model, and the server without a log */
static memvfs *disk;
static char dir[200];
static uint64_t seed;

#define MUST(e, ...)                                                                                                   \
    do {                                                                                                               \
        if (!(e)) {                                                                                                    \
            print_message(__VA_ARGS__);                                                                                \
            fail_msg(" (cycle %llu) %s", (unsigned long long)seed, #e);                                                  \
        }                                                                                                              \
    } while (0)

static void answer_deinit(answer *a) {
    for (size_t i = 0; i < a->n; i++) free(a->ev[i]);
    free(a->end);
    free(a->whole);
    memset(a, 0, sizeof *a);
}

/* Takes out of a reply or an event what may differ: id and created (into a, if they are not known yet; else they must be
 * the same), and what was cached. */
static char *plain(json_t *v, answer *a) {
    const char *id = json_string_value(json_object_get(v, "id"));
    long long created = json_integer_value(json_object_get(v, "created"));
    json_t *usage = json_object_get(v, "usage");
    if (id && a) {
        if (!a->id[0]) {
            snprintf(a->id, sizeof a->id, "%s", id);
            a->created = created;
        }
        MUST(!strcmp(a->id, id) && a->created == created, "was %s and is %s", a->id, id);
    }
    json_object_del(v, "id");
    json_object_del(v, "created");
    if (usage) json_object_del(usage, "prompt_tokens_details");
    return json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS);
}

static void request(const specimen *s, bool stream, char *json, size_t n) {
    snprintf(json, n, "{%s,\"stream\":%s%s}", s->body, stream ? "true" : "false",
             stream ? ",\"stream_options\":{\"include_usage\":true}" : "");
}

/* Whole events of what c has read so far into a; the first must be number `from`.  Those that a has must be the same, others
 * are added. */
static void take(const client *c, answer *a, size_t from) {
    char *text = strndup(buf_cstr(&c->body), c->body.len), *cut = NULL;
    sse_list l;
    assert_non_null(text);
    for (char *p = text; (p = strstr(p, "\n\n")); p += 2) cut = p + 2;
    if (!cut) {
        free(text);
        return;
    }
    *cut = 0;
    sse_parse(text, &l);
    free(text);
    for (size_t i = 0; i < l.n; i++) {
        sse_event *e = &l.ev[i];
        if (e->number < 0 && !e->done &&
            (memvfs_is_cut(disk) || !strcmp(str_at(e->data, "error.code"), "shutdown"))) {
            /* Cut in order: it goes on in the next life.  Or by a disk without power, which cannot tell of events of
             * earlier lives: nobody lives to see that. */
        } else if (e->done || e->number < 0) {
            char *end = e->done ? strdup("") : plain(e->data, NULL);
            MUST(!a->end || !strcmp(a->end, end), "ended with '%s' and now with '%s'", a->end, end);
            MUST(from == a->n, "%zu events, and now %zu", a->n, from);
            free(a->end);
            a->end = end;
        } else {
            char *t = plain(e->data, a);
            MUST((size_t)e->number == from, "event %ld comes where %zu must", e->number, from);
            assert_true(from < MAX_EVENTS);
            if (from < a->n) {
                MUST(!strcmp(a->ev[from], t), "event %zu was %s and is %s", from, a->ev[from], t);
                free(t);
            } else {
                MUST(!a->end, "event %zu behind the end '%s'", from, a->end);
                a->ev[a->n++] = t;
            }
            from++;
        }
    }
    sse_free(&l);
}

static long choice_of(const char *ev) {
    json_t *v = json_loads(ev, JSON_ALLOW_NUL, NULL), *c = at(v, "choices.0");
    long i = c ? (long)json_integer_value(json_object_get(c, "index")) : -1;
    json_decref(v);
    return i;
}

/* The next event of choice c in a from *i on; NULL: none. */
static const char *next_of(const answer *a, long c, size_t *i) {
    while (*i < a->n)
        if (choice_of(a->ev[(*i)++]) == c) return a->ev[*i - 1];
    return NULL;
}

/* a is whole: like the reference, choice by choice. */
static void compare(const answer *a, const answer *want) {
    MUST(a->end && !strcmp(a->end, want->end), "ends with '%s', without crashes '%s'", a->end ? a->end : "nothing", want->end);
    MUST(a->n == want->n, "%zu events, without crashes %zu", a->n, want->n);
    for (long c = -1; c < 4; c++) {
        size_t i = 0, j = 0;
        const char *x, *y;
        do {
            x = next_of(a, c, &i);
            y = next_of(want, c, &j);
            MUST(!x == !y && (!x || !strcmp(x, y)), "choice %ld: %s, without crashes %s", c, x ? x : "none", y ? y : "none");
        } while (x);
    }
}

/* The answers of a server without a log. */
static void learn(void) {
    for (int i = 0; i < N_SPECIMENS; i++) {
        answer *a = &reference[i];
        client c;
        char json[600];
        int status;
        json_t *v;
        request(&specimens[i], true, json, sizeof json);
        assert_true(client_open(&c, shared.port) && client_request(&c, "POST", specimens[i].path, NULL, json));
        assert_true(client_finish(&c, PATIENCE_MS));
        take(&c, a, 0);
        client_close(&c);
        assert_non_null(a->end);
        assert_int_equal(a->end[0] != 0, specimens[i].fails);
        request(&specimens[i], false, json, sizeof json);
        a->id[0] = 0;
        v = rig_post(&shared, specimens[i].path, json, &status);
        a->whole = plain(v, NULL);
        a->status = status;
        json_decref(v);
    }
}

/* ---- a cycle ---- */

typedef struct {
    const specimen *s;
    const answer *want;
    char key[40];
    answer got;
    client c;
    bool open;
    size_t from;
} slot;

/* The server of one life, with the one model; false: the power went while it started. */
static bool start(rig *r) {
    server_options so = {.state_dir = dir, .log = {.vfs = "mem", .gather_ms = 4, .append_every = 1 + (uint32_t)(seed % 12)}};
    engine_options eo = {.kv_budget_bytes = (uint64_t)16 << 20, .max_rows = 6};
    hd_err err = {0};
    memset(r, 0, sizeof *r);
    if (engine_open(&r->e, shared.m, &eo, &err)) fail_msg("engine: %s", err.msg);
    if (server_open(&r->s, r->e, shared.m, &so, &err)) {
        if (!memvfs_is_cut(disk)) print_message("server: %s\n", err.msg);
        engine_close(r->e);
        return false;
    }
    r->port = server_port(r->s);
    return true;
}

static void stop(rig *r) {
    server_close(r->s);
    engine_close(r->e);
}

static void ask(slot *s, rig *r, uint64_t *rng) {
    char json[700], extra[200];
    bool resume = s->got.n && rng_below(rng, 3);
    request(s->s, true, json, sizeof json);
    s->from = resume ? s->got.n : 0;
    snprintf(extra, sizeof extra, "Idempotency-Key: %s\r\n", s->key);
    if (resume) snprintf(extra + strlen(extra), 60, "Last-Event-ID: %zu\r\n", s->got.n - 1);
    s->open = client_open(&s->c, r->port) && client_request(&s->c, "POST", s->s->path, extra, json);
    assert_true(s->open);
}

static void leave(slot *s) {
    if (!s->open) return;
    if (s->c.status == 200) take(&s->c, &s->got, s->from);
    client_close(&s->c);
    s->open = false;
}

/* What hangs. */
static void describe(rig *r, slot *slots) {
    char *state;
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].open && !slots[i].c.ended && !slots[i].c.eof)
            print_message("request %d, specimen %d: %zu events from before, status %d, from %zu, then %s\n", i,
                          (int)(slots[i].s - specimens), slots[i].got.n, slots[i].c.status, slots[i].from,
                          buf_cstr(&slots[i].c.body));
    client_once(r->port, "GET", "/v1/heddle/state", NULL, NULL, &state);
    print_message("%s\n", state ? state : "no state");
    hd_free(state);
}

/* All requests, until the power goes or all have ended.  n_ms: the power goes after so many, or (orderly) the server is
 * told to end; < 0: the power goes by itself or not. */
static void live(rig *r, slot *slots, uint64_t *rng, int n_ms, bool orderly) {
    uint64_t began = now_ms();
    bool busy = true;
    for (int i = 0; i < SLOTS && !memvfs_is_cut(disk); i++) {
        ask(&slots[i], r, rng);
        if (rng_below(rng, 4) == 0) sleep_ms((int)rng_below(rng, 8));
    }
    while (busy && !memvfs_is_cut(disk)) {
        busy = false;
        for (int i = 0; i < SLOTS; i++) {
            slot *s = &slots[i];
            if (!s->open || s->c.ended || s->c.eof) continue;
            (void)client_finish(&s->c, 2); /* a moment */
            busy |= !s->c.ended && !s->c.eof;
        }
        if (n_ms >= 0 && now_ms() - began >= (uint64_t)n_ms) {
            if (orderly) server_drain(r->s, 1000);
            else memvfs_cut_at_write(disk, 0);
            n_ms = -1;
        }
        if (now_ms() - began >= PATIENCE_MS) describe(r, slots);
        MUST(now_ms() - began < PATIENCE_MS, "a life without an end%s", orderly ? ", told to end" : "");
    }
    for (int i = 0; i < SLOTS; i++) leave(&slots[i]);
}

/* The last life: each request to its end, and once more. */
static void judge(rig *r, slot *slots, uint64_t *rng) {
    for (int i = 0; i < SLOTS; i++) ask(&slots[i], r, rng);
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &slots[i];
        MUST(client_finish(&s->c, PATIENCE_MS) && s->c.status == 200, "status %d: %s", s->c.status, buf_cstr(&s->c.body));
        leave(s);
        compare(&s->got, s->want);
    }
}

/* Everything again: the stream from its first event, and the reply. */
static void reread(rig *r, slot *slots) {
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &slots[i];
        char json[700], extra[100], *body, *whole;
        json_t *v;
        int status;
        request(s->s, true, json, sizeof json);
        snprintf(extra, sizeof extra, "Idempotency-Key: %s\r\n", s->key);
        s->open = client_open(&s->c, r->port) && client_request(&s->c, "POST", s->s->path, extra, json);
        s->from = 0;
        MUST(client_finish(&s->c, PATIENCE_MS) && s->c.status == 200, "status %d: %s", s->c.status, buf_cstr(&s->c.body));
        leave(s);
        compare(&s->got, s->want);
        request(s->s, false, json, sizeof json);
        status = client_once(r->port, "POST", s->s->path, extra, json, &body);
        v = json_loads(body, JSON_ALLOW_NUL, NULL);
        MUST(v, "not JSON: %s", body);
        whole = plain(v, &s->got);
        MUST(status == s->want->status && !strcmp(whole, s->want->whole), "unstreamed %d %s, without crashes %d %s", status,
             whole, s->want->status, s->want->whole);
        free(whole);
        json_decref(v);
        hd_free(body);
    }
}

static void test_power_cuts(void **state) {
    const char *env = getenv("HEDDLE_CRASH_CYCLES");
    long cycles = env ? atol(env) : CYCLES, cuts = 0, seen = 0, cut_running = 0;
    size_t events = 0;
    (void)state;
    rig_open(&shared, script, NULL, NULL);
    learn();
    for (long i = 0; i < cycles; i++) {
        uint64_t rng = (uint64_t)i * 1000003 + 17;
        slot slots[SLOTS];
        int lives = 1 + (int)rng_below(&rng, 3);
        rig r;
        seed = (uint64_t)i;
        memvfs_clear(disk);
        memset(slots, 0, sizeof slots);
        for (int k = 0; k < SLOTS; k++) {
            uint32_t which = rng_below(&rng, N_SPECIMENS);
            slots[k].s = &specimens[which];
            slots[k].want = &reference[which];
            snprintf(slots[k].key, sizeof slots[k].key, "key-%ld-%d", i, k);
        }
        for (int life = 0; life < lives; life++) {
            int n_ms = -1;
            size_t before = 0, after = 0;
            bool orderly = (i + life) % 5 == 4;
            switch ((i + life) % 5) {
            case 0:
            case 1: memvfs_cut_at_sync(disk, life ? (long)rng_below(&rng, CUT_SYNCS) : i / 2 % CUT_SYNCS); break;
            case 2: memvfs_cut_at_write(disk, (long)rng_below(&rng, 150)); break;
            default: n_ms = (int)rng_below(&rng, 120); break;
            }
            for (int k = 0; k < SLOTS; k++) before += slots[k].got.n;
            if (start(&r)) {
                live(&r, slots, &rng, n_ms, orderly);
                if (!orderly && !memvfs_is_cut(disk)) memvfs_cut_at_write(disk, 0); /* all were done: the power goes now */
                stop(&r);
            } else {
                MUST(memvfs_is_cut(disk), "the server does not start, with power");
            }
            cuts += memvfs_is_cut(disk);
            for (int k = 0; k < SLOTS; k++) {
                after += slots[k].got.n;
                cut_running += slots[k].got.n && !slots[k].got.end;
            }
            seen += after > before;
            memvfs_reboot(disk, rng_next(&rng));
        }
        MUST(start(&r), "the last life does not start");
        judge(&r, slots, &rng);
        reread(&r, slots);
        stop(&r);
        if (i % 8 == 0) { /* ended ones are read from a log that was closed */
            MUST(start(&r), "a start after an orderly end");
            reread(&r, slots);
            stop(&r);
        }
        for (int k = 0; k < SLOTS; k++) {
            events += slots[k].got.n;
            answer_deinit(&slots[k].got);
        }
    }
    print_message("%ld cycles, %ld power cuts, %ld lives with new events, %ld requests cut while running, %zu events "
                  "compared\n", cycles, cuts, seen, cut_running, events);
    assert_true(cuts >= cycles / 2);
    assert_true(cut_running > cycles / 4); /* it was about something */
    for (int i = 0; i < N_SPECIMENS; i++) answer_deinit(&reference[i]);
    rig_close(&shared);
}

static int setup(void **state) {
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(dir, sizeof dir, "%.150s/heddle-durable-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    disk = memvfs_new("mem");
    return disk && mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    DIR *d = opendir(dir);
    (void)state;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    memvfs_free(disk);
    return rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_power_cuts, setup, teardown)};
    hd_log_set(HD_LOG_ERROR); /* failing writes are what this is about */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
