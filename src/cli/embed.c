/* embed.c - the embedding of one text, through the executor. */
#include "cli/common.h"
#include "exec/methods/embedding.h"

#include <string.h>

/* n shortest numbers that read back as these floats.  False: no memory for them. */
static bool print_vector(const float *v, size_t n, size_t n_tokens, bool json) {
    hd_buf b;
    jsonw w;
    bool ok;
    buf_init(&b, SIZE_MAX);
    jsonw_init(&w, &b);
    if (json) jsonw_obj(&w), jsonw_key(&w, "embedding"), jsonw_arr(&w);
    for (size_t i = 0; i < n; i++) {
        if (!json && i) buf_byte(&b, '\n'), w.comma = false;
        jsonw_f32(&w, v[i]);
    }
    if (json) jsonw_arr_end(&w), jsonw_key(&w, "tokens"), jsonw_uint(&w, n_tokens), jsonw_obj_end(&w);
    ok = b.failed == HD_OK;
    if (ok) puts(buf_cstr(&b));
    else fprintf(stderr, "heddle: no memory for the answer\n");
    buf_deinit(&b);
    return ok;
}

static int embed(loaded *l, const id_list *ids, uint64_t arg, bool json) {
    gen_request r = {.id = "", .method = "embedding", .method_arg = arg, .prompt = ids->ids, .n_prompt = ids->n};
    session *s;
    gen_event ev;
    hd_err err;
    int rc = 0;
    sampling_defaults(&r.sampling);
    if (engine_submit(l->e, &r, 1, NULL, NULL, &s, &err)) return fail_with(&err);
    do {
        session_wait(s, &ev, UINT64_MAX);
        if (ev.kind == EV_VECTOR && !print_vector(ev.vector, ev.n_vector, ids->n, json)) rc = EXIT_FAILED;
    } while (ev.kind != EV_DONE);
    if (ev.finish == FINISH_FAILED) rc = fail_with(&ev.err);
    session_free(s);
    return rc;
}

int cmd_embed(int argc, char **argv) {
    static const char usage[] = "heddle embed MODEL --text T [--pooling last|mean|cls] [--no-normalize] [--json]\n" MODEL_OPTS_USAGE;
    model_opts mo = {0};
    const char *text = NULL, *pooling = NULL, *args[1];
    bool json = false, raw = false;
    embedding_pooling how = EMBEDDING_LAST;
    size_t n_args;
    id_list ids;
    loaded l;
    hd_err err;
    int rc;
    const opt_def defs[] = {MODEL_OPT_DEFS(mo), {"--text", OPT_STR, &text, NULL}, {"--pooling", OPT_STR, &pooling, NULL},
                            {"--no-normalize", OPT_FLAG, &raw, NULL}, {"--json", OPT_FLAG, &json, NULL}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 1, &n_args, usage))) return rc;
    if (n_args != 1 || !text || (pooling && !embedding_by_name(pooling, &how))) {
        fprintf(stderr, "usage: %s\n", usage);
        return EXIT_USAGE;
    }
    if ((rc = loaded_open(&l, args[0], &mo, true))) return rc;
    id_list_init(&ids, 1u << 28);
    if (tokenizer_encode(model_get(l.m)->tok, text, strlen(text), TOK_BOS, &ids, &err)) rc = fail_with(&err);
    else rc = embed(&l, &ids, (pooling ? how : embedding_default(model_get(l.m))) | (raw ? EMBEDDING_RAW : 0), json);
    id_list_deinit(&ids);
    loaded_close(&l);
    return stdout_ok() ? rc : EXIT_FAILED;
}
