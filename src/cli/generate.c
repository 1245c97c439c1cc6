/* generate.c - raw completion: one prompt, or a file of them run together through the executor. */
#include "cli/generate.h"
#include "base/mem.h"

#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "heddle generate MODEL (--prompt T | --prompt-file F | --ids 1,2,3 | --ids-file F | --batch-file F.jsonl) [-n MAX]\n"
    "       [--temperature T] [--top-k K] [--top-p P] [--min-p P] [--typical-p P] [--repetition-penalty R]\n"
    "       [--presence-penalty P] [--frequency-penalty P] [--seed S] [--stop S]... [--ignore-eos] [--special] [--logprobs K]\n"
    "       [--max-queued N] [--default-max-tokens N] [--trace FILE] [--json]\n" MODEL_OPTS_USAGE "\n"
    "Without -n it goes on until the model ends it, and one that does not until the end of the context. Text is written as it comes.";

/* ---- answers as JSON ---- */

static float logprob_number(float v) { return isfinite(v) ? v : -9999; }

static void write_logprobs(jsonw *w, const collected *c) {
    jsonw_key(w, "logprobs");
    jsonw_arr(w);
    for (size_t i = 0; i < c->n; i++) {
        const collected_token *t = &c->tokens[i];
        jsonw_obj(w);
        jsonw_key(w, "id"), jsonw_int(w, t->id);
        jsonw_key(w, "logprob"), jsonw_f32(w, logprob_number(t->logprob));
        jsonw_key(w, "top");
        jsonw_arr(w);
        for (uint32_t j = 0; j < t->n_top; j++) {
            const token_logprob *p = &c->tops[t->top_at + j];
            jsonw_obj(w);
            jsonw_key(w, "id"), jsonw_int(w, p->id);
            jsonw_key(w, "logprob"), jsonw_f32(w, logprob_number(p->logprob));
            jsonw_obj_end(w);
        }
        jsonw_arr_end(w);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
}

static void write_answer(hd_buf *b, const collected *c, const gen_line *g) {
    const gen_stats *st = &c->end.stats;
    jsonw w;
    jsonw_init(&w, b);
    jsonw_obj(&w);
    jsonw_key(&w, "text"), jsonw_strn(&w, buf_cstr(&c->text), c->text.len);
    jsonw_key(&w, "ids"), jsonw_arr(&w);
    for (size_t i = 0; i < c->n; i++) jsonw_int(&w, c->tokens[i].id);
    jsonw_arr_end(&w);
    jsonw_key(&w, "prompt_ids"), jsonw_arr(&w);
    for (size_t i = 0; i < g->ids.n; i++) jsonw_int(&w, g->ids.ids[i]);
    jsonw_arr_end(&w);
    jsonw_key(&w, "finish_reason"), jsonw_str(&w, finish_reason_name(c->end.finish));
    jsonw_key(&w, "prompt_tokens"), jsonw_uint(&w, st->prompt_tokens);
    jsonw_key(&w, "generated_tokens"), jsonw_uint(&w, st->generated_tokens);
    jsonw_key(&w, "cached_tokens"), jsonw_uint(&w, st->cached_tokens);
    jsonw_key(&w, "seed"), jsonw_uint(&w, g->sampling.seed);
    if (g->sampling.logprobs) write_logprobs(&w, c);
    jsonw_key(&w, "prefill_ms"), jsonw_num(&w, (double)st->prefill_us / 1000);
    jsonw_key(&w, "decode_ms"), jsonw_num(&w, (double)st->decode_us / 1000);
    jsonw_obj_end(&w);
}

/* Print what a generation gave, or its error, which is an answer too.  False: it could not be printed. */
static bool print_answer(const collected *c, const gen_line *g, uint64_t line) {
    hd_buf b;
    if (c->end.finish == FINISH_FAILED) {
        print_json_error(&c->end.err, line);
        return true;
    }
    buf_init(&b, SIZE_MAX);
    write_answer(&b, c, g);
    buf_byte(&b, '\n');
    if (!b.failed && !c->text.failed) fwrite(b.data, 1, b.len, stdout);
    else fprintf(stderr, "heddle: no memory for an answer\n");
    buf_deinit(&b);
    return !b.failed;
}

/* ---- many lines at once ---- */

typedef struct {
    gen_line line;
    uint64_t number;
    session *s;
    collected out;
    hd_err err;
    bool failed, done;
} job;

/* At most this many lines are in flight; finished ones wait in order for those before them. */
enum { WINDOW = 512 };

typedef struct {
    loaded *l;
    job jobs[WINDOW];
    uint64_t read, printed; /* lines taken from the file, lines answered */
    sem_t ready;
    bool all_ok;
} batch;

static void on_event(void *ctx) { sem_post(ctx); }

static void finish_job(job *j) {
    if (j->s) session_free(j->s);
    gen_line_deinit(&j->line);
    collected_deinit(&j->out);
    memset(j, 0, sizeof *j);
}

/* Submit; when the queue is full the job stays as it is and is tried again. */
static bool submit(batch *b, job *j) {
    gen_request r = gen_line_request(&j->line);
    void *ctx = &b->ready;
    hd_status st = engine_submit(b->l->e, &r, 1, on_event, &ctx, &j->s, &j->err);
    if (st == HD_FULL) return false;
    if (st) j->failed = j->done = true;
    return true;
}

static void drain(batch *b) {
    for (uint64_t i = b->printed; i < b->read; i++) {
        job *j = &b->jobs[i % WINDOW];
        gen_event ev;
        if (j->done || !j->s) continue;
        for (session_next(j->s, &ev); ev.kind != EV_NONE; session_next(j->s, &ev))
            if (collected_add(&j->out, &ev)) j->done = true;
    }
}

static void print_ready(batch *b) {
    for (; b->printed < b->read && b->jobs[b->printed % WINDOW].done; b->printed++) {
        job *j = &b->jobs[b->printed % WINDOW];
        if (j->failed) print_json_error(&j->err, j->number);
        else if (!print_answer(&j->out, &j->line, j->number)) b->all_ok = false;
        finish_job(j);
    }
    fflush(stdout);
}

/* Take the next line of the file.  False at its end. */
static bool read_job(batch *b, input_lines *in, const gen_line *defaults) {
    job *j;
    size_t len;
    do {
        if (!input_lines_next(in)) return false;
        len = in->line.len;
        while (len && (in->line.data[len - 1] == '\r' || in->line.data[len - 1] == ' ')) len--;
    } while (!len && !in->line.failed); /* blank lines are not requests */
    j = &b->jobs[b->read++ % WINDOW];
    j->number = in->number;
    collected_init(&j->out);
    gen_line_init(&j->line);
    if (in->line.failed) hd_fail(&j->err, in->line.failed, "the line is too long");
    if (in->line.failed || gen_line_parse(&j->line, in->line.data, len, defaults, b->l->m, &j->err)) j->failed = j->done = true;
    return true;
}

static int run_batch(loaded *l, const char *path, const gen_line *defaults) {
    batch *b = hd_calloc(1, sizeof *b);
    uint64_t submitted = 0;
    input_lines in;
    bool ok, more = true;
    hd_err err;
    if (!b) {
        fprintf(stderr, "heddle: no memory\n");
        return EXIT_FAILED;
    }
    if (input_lines_open(&in, path, &err)) {
        hd_free(b);
        return fail_with(&err);
    }
    b->l = l;
    b->all_ok = true;
    sem_init(&b->ready, 0, 0);
    while (more || b->printed < b->read) {
        while (more && b->read - b->printed < WINDOW) more = read_job(b, &in, defaults);
        for (; submitted < b->read; submitted++) {
            job *j = &b->jobs[submitted % WINDOW];
            if (!j->done && !submit(b, j)) break;
        }
        drain(b);
        print_ready(b);
        if (b->printed < b->read && !b->jobs[b->printed % WINDOW].done) sem_wait(&b->ready);
    }
    sem_destroy(&b->ready);
    ok = b->all_ok;
    if (input_lines_end(&in, path, &err)) fail_with(&err), ok = false;
    input_lines_close(&in);
    hd_free(b);
    return stdout_ok() && ok ? 0 : EXIT_FAILED;
}

/* ---- one prompt ---- */

static int run_one(loaded *l, gen_line *g, bool json) {
    gen_request r = gen_line_request(g);
    collected c;
    session *s;
    gen_event ev;
    hd_err err;
    int rc = 0;
    if (engine_submit(l->e, &r, 1, NULL, NULL, &s, &err)) {
        if (json) print_json_error(&err, 0);
        return fail_with(&err);
    }
    collected_init(&c);
    do {
        session_wait(s, &ev, UINT64_MAX);
        collected_add(&c, &ev);
        if (!json && ev.n_text) {
            fwrite(ev.text, 1, ev.n_text, stdout);
            if (fflush(stdout)) session_cancel(s, CANCEL_BY_REQUEST); /* nobody reads it: stdout_ok() says why */
        }
    } while (ev.kind != EV_DONE);
    session_free(s);
    if (c.end.finish == FINISH_FAILED) rc = fail_with(&c.end.err);
    if (json) rc = print_answer(&c, g, 0) ? rc : EXIT_FAILED;
    else putchar('\n');
    collected_deinit(&c);
    return stdout_ok() ? rc : EXIT_FAILED;
}

int cmd_generate(int argc, char **argv) {
    model_opts mo = {0};
    gen_line g;
    opt_list stops = {.n = 0};
    const char *prompt = NULL, *prompt_file = NULL, *ids = NULL, *ids_file = NULL, *batch_file = NULL, *schema = NULL,
               *grammar = NULL, *args[2];
    uint32_t n = 0, logprobs = 0;
    int64_t seed = 0;
    bool json = false, special = false, given_n = false, given_seed = false, given_logprobs = false;
    size_t n_args;
    hd_buf file;
    loaded l = {0};
    hd_err err;
    int rc;
    gen_line_init(&g);
    buf_init(&file, (size_t)1 << 30);
    const opt_def defs[] = {MODEL_OPT_DEFS(mo), TRACE_OPT_DEF(mo),
        {"--max-queued", OPT_COUNT, &mo.max_queued, NULL}, {"--default-max-tokens", OPT_COUNT, &mo.default_max_tokens, NULL},
        {"--prompt", OPT_STR, &prompt, NULL}, {"-p", OPT_STR, &prompt, NULL}, {"--prompt-file", OPT_STR, &prompt_file, NULL},
        {"--ids", OPT_STR, &ids, NULL}, {"--ids-file", OPT_STR, &ids_file, NULL}, {"--batch-file", OPT_STR, &batch_file, NULL},
        {"-n", OPT_UINT, &n, &given_n}, {"--max-tokens", OPT_UINT, &n, &given_n},
        {"--temperature", OPT_FLOAT, &g.sampling.temperature, NULL}, {"--top-k", OPT_UINT, &g.sampling.top_k, NULL},
        {"--top-p", OPT_FLOAT, &g.sampling.top_p, NULL}, {"--min-p", OPT_FLOAT, &g.sampling.min_p, NULL},
        {"--typical-p", OPT_FLOAT, &g.sampling.typical_p, NULL},
        {"--repetition-penalty", OPT_FLOAT, &g.sampling.repetition_penalty, NULL},
        {"--presence-penalty", OPT_FLOAT, &g.sampling.presence_penalty, NULL},
        {"--frequency-penalty", OPT_FLOAT, &g.sampling.frequency_penalty, NULL},
        {"--seed", OPT_I64, &seed, &given_seed}, {"--stop", OPT_LIST, &stops, NULL}, {"--schema", OPT_STR, &schema, NULL},
        {"--grammar", OPT_STR, &grammar, NULL}, {"--logprobs", OPT_UINT, &logprobs, &given_logprobs},
        {"--special", OPT_FLAG, &special, NULL}, {"--ignore-eos", OPT_FLAG, &g.ignore_eos, NULL},
        {"--json", OPT_FLAG, &json, NULL}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 2, &n_args, usage))) return rc;
    if (n_args == 2) {
        fprintf(stderr, "heddle: too many arguments: %.100s; a prompt is given with --prompt\n", args[1]);
        return EXIT_USAGE;
    }
    if (n_args != 1 || !!prompt + !!prompt_file + !!ids + !!ids_file + !!batch_file != 1) {
        fprintf(stderr, "heddle: one MODEL and one of --prompt, --prompt-file, --ids, --ids-file, --batch-file\nusage: %s\n", usage);
        return EXIT_USAGE;
    }
    if (schema || grammar) {
        fprintf(stderr, "heddle: --schema and --grammar are not supported yet\n");
        return EXIT_FAILED;
    }
    if (given_n) g.max_tokens = n;
    g.seed_given = given_seed;
    g.sampling.seed = given_seed ? (uint64_t)seed : random_seed();
    g.sampling.logprobs = given_logprobs;
    g.sampling.n_top_logprobs = logprobs;
    for (size_t i = 0; i < stops.n; i++)
        if (gen_line_add_stop(&g, stops.items[i], strlen(stops.items[i]), &err)) {
            rc = fail_with(&err);
            goto out;
        }
    if ((rc = loaded_open(&l, args[0], &mo, true))) goto out;
    if (batch_file) {
        rc = run_batch(&l, batch_file, &g);
        goto out;
    }
    if ((ids_file || prompt_file) && input_file(ids_file ? ids_file : prompt_file, &file, &err)) rc = fail_with(&err);
    else if (prompt) buf_str(&file, prompt);
    if (!rc && (ids || ids_file)) {
        if (!(g.ids.ids = parse_ids(ids ? ids : buf_cstr(&file), &g.ids.n))) rc = EXIT_FAILED;
    } else if (!rc && tokenizer_encode(model_get(l.m)->tok, buf_cstr(&file), file.len, TOK_BOS | (special ? TOK_SPECIAL : 0),
                                       &g.ids, &err)) {
        rc = fail_with(&err);
    }
    if (!rc) rc = run_one(&l, &g, json);
out:
    gen_line_deinit(&g);
    buf_deinit(&file);
    loaded_close(&l);
    return rc;
}
