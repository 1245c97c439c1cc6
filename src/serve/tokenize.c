/* tokenize.c - POST /tokenize and /detokenize in the shapes of llama-server and of vLLM, told apart by field names.
 *
 *   {"content", add_special=false, parse_special=true, with_pieces=false}  -> {"tokens":[id | {"id","piece"}]}
 *   {"prompt" | "messages", add_special_tokens=true, return_token_strs}    -> {"count","max_model_len","tokens"}
 *   {"tokens"}                                                             -> {"content","prompt"} */
#include "serve/gen.h"
#include "serve/prompt.h"

#include "base/jsonw.h"
#include "base/mem.h"

#include <string.h>

enum { MAX_IDS = 64 << 20 };

/* A piece is a string, or a list of its bytes where it is not whole characters. */
static void piece(jsonw *w, gguf_str t) {
    uint32_t cp;
    for (size_t i = 0; i < t.n;) {
        int k = utf8_next(t.s + i, t.n - i, &cp);
        if (k < 0) {
            jsonw_arr(w);
            for (size_t j = 0; j < t.n; j++) jsonw_uint(w, (unsigned char)t.s[j]);
            jsonw_arr_end(w);
            return;
        }
        i += (size_t)k;
    }
    jsonw_strn(w, t.s ? t.s : "", t.n);
}

static bool reply_failed(const gen *g, serve_error *e) {
    if (g->reply.failed == HD_FULL) return serve_fail(e, 500, "reply_too_large", NULL, "the reply is larger than the server can hold");
    return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the reply");
}

static bool encode(server *s, const char *text, size_t n, unsigned flags, const char *field, id_list *ids, serve_error *e) {
    hd_err err = {0};
    hd_status st = tokenizer_encode(s->info->tok, text, n, flags, ids, &err);
    if (st == HD_OK) return true;
    if (st == HD_NOMEM) return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    return bad_field(e, field, "%s", err.msg);
}

static bool tokenize(gen *g, const json_t *body, serve_error *e) {
    server *s = g->srv;
    const tokenizer *tok = s->info->tok;
    const char *text = NULL;
    size_t n = 0;
    bool bos, special, pieces = false, ok = false, llama = req_get(body, "content") != NULL;
    id_list ids;
    jsonw w;
    id_list_init(&ids, MAX_IDS);
    bos = !llama;
    special = llama;
    if (!req_bool(body, llama ? "add_special" : "add_special_tokens", &bos, e) ||
        !req_bool(body, "parse_special", &special, e) ||
        !req_bool(body, llama ? "with_pieces" : "return_token_strs", &pieces, e))
        goto out;
    if (!llama && req_get(body, "messages")) {
        if (!prompt_chat(s, body, 0, &ids, NULL, g->warning, sizeof g->warning, e)) goto out;
    } else {
        const char *field = llama ? "content" : "prompt";
        if (!req_str(body, field, &text, &n, e)) goto out;
        if (!text) {
            bad_field(e, "content", "content, prompt or messages is missing");
            goto out;
        }
        if (!encode(s, text, n, (bos ? TOK_BOS : 0) | (special ? TOK_SPECIAL : 0), field, &ids, e)) goto out;
    }
    jsonw_init(&w, &g->reply);
    jsonw_obj(&w);
    if (!llama) {
        jsonw_key(&w, "count"), jsonw_uint(&w, ids.n);
        jsonw_key(&w, "max_model_len"), jsonw_uint(&w, s->ctx);
    }
    jsonw_key(&w, "tokens"), jsonw_arr(&w);
    for (size_t i = 0; i < ids.n; i++) {
        if (!(llama && pieces)) {
            jsonw_int(&w, ids.ids[i]);
            continue;
        }
        jsonw_obj(&w);
        jsonw_key(&w, "id"), jsonw_int(&w, ids.ids[i]);
        jsonw_key(&w, "piece"), piece(&w, tokenizer_bytes(tok, ids.ids[i], true));
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    if (!llama && pieces) {
        jsonw_key(&w, "token_strs"), jsonw_arr(&w);
        for (size_t i = 0; i < ids.n; i++) {
            gguf_str t = tokenizer_bytes(tok, ids.ids[i], true);
            jsonw_strn(&w, t.s ? t.s : "", t.n);
        }
        jsonw_arr_end(&w);
    }
    jsonw_obj_end(&w);
    ok = !g->reply.failed || reply_failed(g, e);
out:
    id_list_deinit(&ids);
    return ok;
}

static bool detokenize(gen *g, const json_t *body, serve_error *e) {
    server *s = g->srv;
    const json_t *in = req_get(body, "tokens");
    size_t n = json_array_size(in);
    int32_t *ids;
    bool skip_special = false, ok = false;
    hd_buf text;
    hd_err err = {0};
    jsonw w;
    if (!json_is_array(in)) return bad_field(e, "tokens", in ? "tokens must be an array of ids" : "tokens is missing");
    if (!req_bool(body, "skip_special_tokens", &skip_special, e)) return false;
    if (!(ids = hd_calloc(n, sizeof *ids))) return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    buf_init(&text, (size_t)256 << 20);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!json_is_whole(json_array_get(in, i), &id) || id < 0 || (size_t)id >= tokenizer_size(s->info->tok)) {
            bad_field(e, "tokens", "tokens[%zu] is not a token id below %zu", i, tokenizer_size(s->info->tok));
            goto out;
        }
        ids[i] = (int32_t)id;
    }
    if (tokenizer_decode(s->info->tok, ids, n, !skip_special, &text, &err) != HD_OK || text.failed) {
        serve_fail(e, text.failed ? 400 : 500, text.failed ? "invalid_value" : "internal_error", "tokens",
                   text.failed ? "the text of these tokens is too long" : "%s", err.msg);
        goto out;
    }
    jsonw_init(&w, &g->reply);
    jsonw_obj(&w);
    jsonw_key(&w, "content"), jsonw_strn(&w, buf_cstr(&text), text.len);
    jsonw_key(&w, "prompt"), jsonw_strn(&w, buf_cstr(&text), text.len);
    jsonw_obj_end(&w);
    ok = !g->reply.failed || reply_failed(g, e);
out:
    buf_deinit(&text);
    hd_free(ids);
    return ok;
}

const dialect dialect_tokenize = {.name = "tokenize", .plan = tokenize};
const dialect dialect_detokenize = {.name = "detokenize", .plan = detokenize};
