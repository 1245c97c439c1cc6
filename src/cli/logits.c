/* logits.c - raw logits of a text or of ids, and the perplexity of a file, both through the executor. */
#include "cli/common.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- logits ---- */

static int write_logits(loaded *l, const id_list *ids, bool last, FILE *to) {
    gen_request r = {.id = "", .prompt = ids->ids, .n_prompt = ids->n, .prompt_logits = true};
    session *s;
    gen_event ev;
    hd_err err;
    int rc = 0;
    sampling_defaults(&r.sampling);
    if (engine_submit(l->e, &r, 1, NULL, NULL, &s, &err)) return fail_with(&err);
    do {
        session_wait(s, &ev, UINT64_MAX);
        if (ev.kind == EV_LOGITS && (!last || ev.position + 1 == ids->n))
            fwrite(ev.logits, sizeof *ev.logits, ev.n_logits, to); /* little-endian machines only, as all of heddle */
    } while (ev.kind != EV_DONE);
    if (ev.finish == FINISH_FAILED) rc = fail_with(&ev.err);
    session_free(s);
    return rc;
}

int cmd_logits(int argc, char **argv) {
    static const char usage[] = "heddle logits MODEL (--text T | --ids L) [--last] [--out F]\n" MODEL_OPTS_USAGE;
    model_opts mo = {0};
    const char *text = NULL, *ids = NULL, *out = NULL, *args[1];
    bool last = false;
    size_t n_args;
    id_list list;
    loaded l;
    hd_err err;
    FILE *to = stdout;
    int rc;
    const opt_def defs[] = {MODEL_OPT_DEFS(mo), {"--text", OPT_STR, &text, NULL}, {"--ids", OPT_STR, &ids, NULL},
                            {"--out", OPT_STR, &out, NULL}, {"--last", OPT_FLAG, &last, NULL}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 1, &n_args, usage))) return rc;
    if (n_args != 1 || !text == !ids) {
        fprintf(stderr, "usage: %s\n", usage);
        return EXIT_USAGE;
    }
    if ((rc = loaded_open(&l, args[0], &mo, true))) return rc;
    id_list_init(&list, 1u << 28);
    if (ids) {
        list.ids = parse_ids(ids, &list.n);
        rc = list.ids ? 0 : EXIT_FAILED;
    } else if (tokenizer_encode(model_get(l.m)->tok, text, strlen(text), TOK_BOS, &list, &err)) {
        rc = fail_with(&err);
    }
    if (!rc && out && !(to = fopen(out, "wb"))) {
        fprintf(stderr, "heddle: %s: %s\n", out, strerror(errno));
        rc = EXIT_FAILED;
    }
    if (!rc) rc = write_logits(&l, &list, last, to);
    if (to && to != stdout && fclose(to)) {
        fprintf(stderr, "heddle: %s: %s\n", out, strerror(errno));
        rc = EXIT_FAILED;
    }
    id_list_deinit(&list);
    loaded_close(&l);
    return stdout_ok() ? rc : EXIT_FAILED;
}

/* ---- perplexity ---- */

/* Sum of -log p over every position after the first of one chunk. */
static int chunk_nll(loaded *l, const int32_t *ids, size_t n, double *nll) {
    gen_request r = {.id = "", .prompt = ids, .n_prompt = n, .prompt_logprobs = true};
    session *s;
    gen_event ev;
    hd_err err;
    int rc = 0;
    sampling_defaults(&r.sampling);
    if (engine_submit(l->e, &r, 1, NULL, NULL, &s, &err)) return fail_with(&err);
    do {
        session_wait(s, &ev, UINT64_MAX);
        if (ev.kind == EV_PROMPT) *nll -= ev.sample.logprob;
    } while (ev.kind != EV_DONE);
    if (ev.finish == FINISH_FAILED) rc = fail_with(&ev.err);
    session_free(s);
    return rc;
}

/* Non-overlapping chunks of the context; each begins with BOS where the file says so. */
static int whole_nll(loaded *l, const id_list *ids, uint32_t ctx, double *nll, uint64_t *scored) {
    const model_info *in = model_get(l->m);
    bool bos = tokenizer_adds_bos(in->tok) && in->bos >= 0;
    uint32_t room = ctx - bos;
    int32_t *chunk = hd_reallocarray(NULL, ctx, sizeof *chunk);
    int rc = 0;
    if (!chunk) {
        fprintf(stderr, "heddle: no memory for %u tokens\n", ctx);
        rc = EXIT_FAILED;
    }
    for (size_t at = 0; !rc && at < ids->n; at += room) {
        size_t n = ids->n - at < room ? ids->n - at : room;
        if (bos) chunk[0] = in->bos;
        memcpy(chunk + bos, ids->ids + at, n * sizeof *chunk);
        n += bos;
        if (n < 2) break;
        rc = chunk_nll(l, chunk, n, nll);
        *scored += n - 1;
    }
    hd_free(chunk);
    return rc;
}

int cmd_perplexity(int argc, char **argv) {
    static const char usage[] = "heddle perplexity MODEL FILE [--ctx N] [--json]\n" MODEL_OPTS_USAGE;
    model_opts mo = {.ctx = 512, .usual_ctx = true};
    const char *args[2];
    bool json = false;
    size_t n_args;
    double nll = 0;
    uint64_t scored = 0;
    id_list ids;
    engine_view view = {0};
    loaded l;
    hd_err err;
    hd_buf text;
    int rc;
    const opt_def defs[] = {MODEL_OPT_DEFS(mo), {"--json", OPT_FLAG, &json, NULL}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 2, &n_args, usage))) return rc;
    if (n_args != 2) {
        fprintf(stderr, "usage: %s\n", usage);
        return EXIT_USAGE;
    }
    id_list_init(&ids, 1u << 28);
    buf_init(&text, (size_t)1 << 30);
    if (input_file(args[1], &text, &err)) {
        rc = fail_with(&err);
        goto out;
    }
    if ((rc = loaded_open(&l, args[0], &mo, true))) goto out;
    engine_look(l.e, &view);
    if (tokenizer_encode(model_get(l.m)->tok, buf_cstr(&text), text.len, 0, &ids, &err)) rc = fail_with(&err);
    else rc = whole_nll(&l, &ids, view.ctx, &nll, &scored);
    loaded_close(&l);
    if (!rc && !scored) {
        fprintf(stderr, "heddle: %s has fewer than two tokens\n", args[1]);
        rc = EXIT_FAILED;
    }
    if (!rc && json) printf("{\"tokens\":%llu,\"nll\":%.17g,\"perplexity\":%.17g}\n", (unsigned long long)scored, nll,
                            exp(nll / (double)scored));
    else if (!rc) printf("%llu tokens, perplexity %.5f\n", (unsigned long long)scored, exp(nll / (double)scored));
out:
    id_list_deinit(&ids);
    buf_deinit(&text);
    return stdout_ok() ? rc : EXIT_FAILED;
}
