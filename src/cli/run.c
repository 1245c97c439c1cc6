/* run.c - chat in the terminal: one shot with a prompt, otherwise a conversation that ends with /bye or end of input.
 *
 * A question that does not fit is taken back, so that the conversation stays as it was: nothing is ever cut out of it silently, and
 * /clear begins anew. */
#include "cli/common.h"
#include "base/mem.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "heddle run MODEL [PROMPT | -p PROMPT] [--system S] [-n MAX] [--temperature T] [--top-k K] [--top-p P]\n"
                            "       [--min-p P] [--seed S] [--trace FILE]\n" MODEL_OPTS_USAGE;

typedef struct {
    loaded l;
    json_t *messages;
    size_t n_system;  /* of them, those a cleared conversation keeps */
    sampling_params sampling;
    uint32_t max_tokens;
    bool seed_given;
    bool talks; /* a conversation, no one shot */
} chat;

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) { (void)sig, interrupted = 1; }

static const char *token_text(const model_info *in, int32_t id, char buf[256]) {
    gguf_str s = {"", 0};
    if (id >= 0) s = tokenizer_bytes(in->tok, id, true);
    snprintf(buf, 256, "%.*s", (int)(s.n < 255 ? s.n : 255), s.s);
    return buf;
}

/* The conversation as token ids, special tokens only where the template wrote them. */
static hd_status render(chat *c, id_list *ids, hd_err *err) {
    const model_info *in = model_get(c->l.m);
    char bos[256], eos[256];
    json_t *input = json_pack("{s:O, s:b, s:s, s:s}", "messages", c->messages, "add_generation_prompt", 1, "bos_token",
                              token_text(in, in->bos, bos), "eos_token", token_text(in, in->eos, eos));
    template_options opt = {.now = hd_wall_seconds(), .local = true};
    template_spans spans = {0};
    text_piece *pieces = NULL;
    hd_buf text;
    hd_status st;
    if (!input) return hd_fail(err, HD_NOMEM, "no memory");
    buf_init(&text, 64 << 20);
    st = template_render(in->chat, input, &opt, &text, &spans, err);
    if (!st && !(pieces = hd_reallocarray(NULL, spans.n + 1, sizeof *pieces))) st = hd_fail(err, HD_NOMEM, "no memory");
    for (size_t i = 0; !st && i < spans.n; i++)
        pieces[i] = (text_piece){buf_cstr(&text) + spans.spans[i].start, spans.spans[i].n, spans.spans[i].trusted};
    if (!st) st = tokenizer_encode_pieces(in->tok, pieces, spans.n, TOK_SPECIAL, ids, err);
    hd_free(pieces);
    template_spans_deinit(&spans);
    buf_deinit(&text);
    json_decref(input);
    return st;
}

/* The last question had none: it is taken back. */
static int no_answer(chat *c, const hd_err *err) {
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
    fail_with(err);
    if (c->talks) fprintf(stderr, "heddle: the question is taken back; /clear begins a new conversation\n");
    return EXIT_FAILED;
}

/* One answer, printed as it comes and kept in the conversation. */
static int answer(chat *c) {
    id_list ids;
    collected out;
    gen_request r = {.id = "", .max_tokens = c->max_tokens, .sampling = c->sampling};
    session *s;
    gen_event ev;
    hd_err err;
    int rc = 0;
    id_list_init(&ids, 1u << 28);
    if (render(c, &ids, &err)) {
        id_list_deinit(&ids);
        return no_answer(c, &err);
    }
    if (!c->seed_given) r.sampling.seed = random_seed();
    r.prompt = ids.ids;
    r.n_prompt = ids.n;
    if (engine_submit(c->l.e, &r, 1, NULL, NULL, &s, &err)) {
        id_list_deinit(&ids);
        return no_answer(c, &err);
    }
    collected_init(&out);
    interrupted = 0;
    do {
        session_wait(s, &ev, 100000);
        collected_add(&out, &ev);
        if (ev.n_text) {
            fwrite(ev.text, 1, ev.n_text, stdout);
            fflush(stdout);
        }
        if (interrupted) session_cancel(s, CANCEL_BY_REQUEST);
    } while (ev.kind != EV_DONE);
    putchar('\n');
    fflush(stdout); /* before what stderr says */
    if (ev.finish == FINISH_FAILED) rc = fail_with(&ev.err);
    if (isatty(STDERR_FILENO) && ev.stats.generated_tokens > 1 && ev.stats.decode_us)
        fprintf(stderr, "[%u tokens, %.1f tokens/s, first after %.0f ms%s]\n", ev.stats.generated_tokens,
                (ev.stats.generated_tokens - 1) / ((double)ev.stats.decode_us / 1e6), (double)ev.stats.prefill_us / 1000,
                ev.finish != FINISH_LENGTH ? "" : ev.stats.generated_tokens == c->max_tokens ? "; cut at -n" : "; the context is full: /clear begins anew");
    json_array_append_new(c->messages, json_pack("{s:s, s:s%}", "role", "assistant", "content", buf_cstr(&out.text), out.text.len));
    session_free(s);
    collected_deinit(&out);
    id_list_deinit(&ids);
    return rc;
}

static bool say(chat *c, const char *role, const char *text, size_t n) {
    json_t *m = json_pack("{s:s, s:s%}", "role", role, "content", text, n);
    if (m && !json_array_append_new(c->messages, m)) return true;
    fprintf(stderr, "heddle: the text is not valid UTF-8 and was left out\n");
    return false;
}

static bool is(const char *line, ssize_t n, const char *word) { return (size_t)n == strlen(word) && !memcmp(line, word, (size_t)n); }

static int converse(chat *c) {
    static const char help[] = "/clear begins a new conversation, /bye or ^D ends; ^C ends an answer\n";
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    ssize_t n;
    bool tty = isatty(STDIN_FILENO);
    struct sigaction sa = {.sa_handler = on_interrupt};
    if (tty) sigaction(SIGINT, &sa, NULL); /* ^C ends the answer, not the program */
    if (tty) fputs(help, stderr);
    c->talks = true;
    for (;;) {
        if (tty) fputs("> ", stdout), fflush(stdout);
        if ((n = getline(&line, &cap, stdin)) < 0) break;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (!n) continue;
        if (is(line, n, "/bye")) break;
        if (is(line, n, "/help")) fputs(help, stderr);
        else if (is(line, n, "/clear")) while (json_array_size(c->messages) > c->n_system) json_array_remove(c->messages, c->n_system);
        else if (!say(c, "user", line, (size_t)n) || answer(c)) rc = EXIT_FAILED;
    }
    free(line);
    return tty ? 0 : rc; /* who sat there has seen it */
}

/* What the file says, where the command line says nothing. */
static void use_hints(sampling_params *s, const model_info *in) {
    if (!isnan(in->temperature)) s->temperature = in->temperature;
    if (!isnan(in->top_p)) s->top_p = in->top_p;
    if (!isnan(in->min_p)) s->min_p = in->min_p;
    if (in->top_k != UINT32_MAX) s->top_k = in->top_k;
}

int cmd_run(int argc, char **argv) {
    model_opts mo = {0};
    chat c = {.max_tokens = GEN_NO_CAP};
    sampling_params given;
    const char *prompt = NULL, *system = NULL, *args[2];
    bool t = false, k = false, p = false, mp = false, has_n = false;
    uint32_t n = 0;
    int64_t seed = 0;
    size_t n_args;
    int rc;
    sampling_defaults(&given);
    const opt_def defs[] = {MODEL_OPT_DEFS(mo), TRACE_OPT_DEF(mo), {"-p", OPT_STR, &prompt, NULL}, {"--system", OPT_STR, &system, NULL},
        {"-n", OPT_COUNT, &n, &has_n}, {"--temperature", OPT_FLOAT, &given.temperature, &t}, {"--top-k", OPT_UINT, &given.top_k, &k},
        {"--top-p", OPT_FLOAT, &given.top_p, &p}, {"--min-p", OPT_FLOAT, &given.min_p, &mp}, {"--seed", OPT_I64, &seed, &c.seed_given}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 2, &n_args, usage))) return rc;
    if (!n_args || (n_args == 2 && prompt)) {
        fprintf(stderr, "usage: %s\n", usage);
        return EXIT_USAGE;
    }
    if (n_args == 2) prompt = args[1];
    if ((rc = loaded_open(&c.l, args[0], &mo, true))) return rc;
    if (!model_get(c.l.m)->chat) {
        fprintf(stderr, "heddle: the model has no usable chat template%s%s; use 'heddle generate'\n",
                model_get(c.l.m)->chat_error ? ": " : "", model_get(c.l.m)->chat_error ? model_get(c.l.m)->chat_error : "");
        loaded_close(&c.l);
        return EXIT_FAILED;
    }
    c.sampling = given;
    use_hints(&c.sampling, model_get(c.l.m));
    if (t) c.sampling.temperature = given.temperature;
    if (k) c.sampling.top_k = given.top_k;
    if (p) c.sampling.top_p = given.top_p;
    if (mp) c.sampling.min_p = given.min_p;
    if (has_n) c.max_tokens = n;
    c.sampling.seed = (uint64_t)seed;
    c.messages = json_array();
    if (system && say(&c, "system", system, strlen(system))) c.n_system = 1;
    if (prompt) {
        rc = say(&c, "user", prompt, strlen(prompt)) ? answer(&c) : EXIT_FAILED;
    } else {
        rc = converse(&c);
    }
    json_decref(c.messages);
    loaded_close(&c.l);
    return stdout_ok() ? rc : EXIT_FAILED;
}
