/* openai_embeddings.c - POST /v1/embeddings: inputs of four shapes, vectors as numbers or base64.
 *
 * Each input is one choice of a generation that generates nothing; they go through the executor together, as many at a
 * time as it has rows, and answer in their order.  Beyond OpenAI's fields: pooling ("last", "mean", "cls"), normalize, add_special_tokens, and the deadlines
 * of other generations.  A choice's text holds its vector, float32 as the machine writes it. */
#include "exec/methods/embedding.h"
#include "serve/openai.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_INPUT_IDS = 64 << 20 };

static bool oom(serve_error *e) { return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request"); }

static bool text_input(gen *g, id_list *ids, const json_t *v, unsigned flags, size_t i, serve_error *e) {
    hd_err err = {0};
    hd_status st;
    if (!json_string_length(v)) return bad_field(e, "input", "input %zu is empty", i);
    st = tokenizer_encode(g->srv->info->tok, json_string_value(v), json_string_length(v), flags, ids, &err);
    if (st == HD_NOMEM) return oom(e);
    return st == HD_OK || bad_field(e, "input", "%s", err.msg);
}

static bool ids_input(gen *g, id_list *ids, const json_t *v, size_t i, serve_error *e) {
    const model_info *m = g->srv->info;
    hd_err err = {0};
    for (size_t k = 0; k < json_array_size(v); k++) {
        int64_t id;
        if (!json_is_whole(json_array_get(v, k), &id) || id < 0 || id >= m->n_vocab || (size_t)id >= tokenizer_size(m->tok))
            return bad_field(e, "input", "input %zu: element %zu is not a token id below %u", i, k, m->n_vocab);
        if (id_list_add(ids, (int32_t)id, &err) != HD_OK) return oom(e);
    }
    return true;
}

static bool inputs(gen *g, const json_t *body, serve_error *e) {
    const json_t *in = req_get(body, "input");
    bool special = true, many;
    size_t n;
    if (!in) return bad_field(e, "input", "input is missing");
    if (!json_is_string(in) && !json_is_array(in))
        return bad_field(e, "input", "input must be a string, an array of strings, of token ids, or of such arrays");
    if (!req_bool(body, "add_special_tokens", &special, e)) return false;
    many = json_is_array(in) && !json_is_number(json_array_get(in, 0));
    if (!(n = many ? json_array_size(in) : 1)) return bad_field(e, "input", "input is empty");
    if (n > GEN_MAX_INPUTS) return bad_field(e, "input", "input may hold at most %d inputs", GEN_MAX_INPUTS);
    if (!(g->prompts = hd_calloc(n, sizeof *g->prompts))) return oom(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = many ? json_array_get(in, i) : in;
        id_list *ids = &g->prompts[i].ids;
        id_list_init(ids, MAX_INPUT_IDS);
        g->n_prompts = (uint32_t)i + 1;
        if (json_is_string(v)) {
            if (!text_input(g, ids, v, special ? TOK_BOS : 0, i, e)) return false;
        } else if (json_is_array(v)) {
            if (!ids_input(g, ids, v, i, e)) return false;
        } else {
            return bad_field(e, "input", "input %zu is neither a string nor an array of token ids", i);
        }
        if (!ids->n) return bad_field(e, "input", "input %zu has no tokens", i);
    }
    return true;
}

static bool deadline(const json_t *body, const char *key, uint64_t *us, serve_error *e) {
    int64_t ms = 0;
    if (!req_int(body, key, 0, (int64_t)1 << 40, &ms, e)) return false;
    *us = (uint64_t)ms * 1000;
    return true;
}

static bool plan(gen *g, const json_t *body, serve_error *e) {
    const model_info *m = g->srv->info;
    gen_params *p = &g->plan;
    const char *format = "float", *pooling = NULL;
    embedding_pooling how = embedding_default(m);
    int64_t dimensions = m->width;
    bool normalise = true;
    sampling_defaults(&p->sampling);
    p->n = 1;
    if (!req_str(body, "encoding_format", &format, NULL, e) || !req_str(body, "pooling", &pooling, NULL, e) ||
        !req_bool(body, "normalize", &normalise, e) || !req_int(body, "dimensions", 1, INT64_MAX, &dimensions, e) ||
        !deadline(body, "queue_timeout_ms", &p->queue_timeout_us, e) ||
        !deadline(body, "total_timeout_ms", &p->total_timeout_us, e))
        return false;
    if (strcmp(format, "float") && strcmp(format, "base64"))
        return bad_field(e, "encoding_format", "encoding_format must be float or base64");
    if (pooling && !embedding_by_name(pooling, &how)) return bad_field(e, "pooling", "pooling must be last, mean or cls");
    if (dimensions != m->width)
        return serve_fail(e, 400, "unsupported_parameter", "dimensions", "this model's embeddings have %u dimensions and are not cut",
                          m->width);
    p->base64 = !strcmp(format, "base64");
    p->method = "embedding";
    p->method_arg = (uint64_t)how | (normalise ? 0 : EMBEDDING_RAW);
    return inputs(g, body, e);
}

static void base64(hd_buf *out, const char *s, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)s;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        const char four[4] = {digits[v >> 18], digits[v >> 12 & 63], (char)(i + 1 < n ? digits[v >> 6 & 63] : '='),
                              (char)(i + 2 < n ? digits[v & 63] : '=')};
        buf_add(out, four, 4);
    }
}

static void vector(jsonw *w, const gen *g, const choice *ch) {
    float f;
    jsonw_key(w, "embedding");
    if (g->plan.base64) { /* little-endian, as every machine heddle runs on */
        buf_byte(w->b, '"');
        base64(w->b, buf_cstr(&ch->text), ch->text.len);
        buf_byte(w->b, '"');
        w->comma = true;
        return;
    }
    jsonw_arr(w);
    for (size_t i = 0; i + sizeof f <= ch->text.len; i += sizeof f) {
        memcpy(&f, ch->text.data + i, sizeof f);
        jsonw_f32(w, f);
    }
    jsonw_arr_end(w);
}

static void reply(gen *g, hd_buf *out) {
    uint64_t prompt, cached, completion;
    jsonw w;
    jsonw_init(&w, out);
    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, g->id);
    jsonw_key(&w, "object"), jsonw_str(&w, "list");
    jsonw_key(&w, "created"), jsonw_int(&w, g->created);
    jsonw_key(&w, "model"), jsonw_str(&w, g->srv->info->name);
    jsonw_key(&w, "data"), jsonw_arr(&w);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        jsonw_obj(&w);
        jsonw_key(&w, "object"), jsonw_str(&w, "embedding");
        jsonw_key(&w, "index"), jsonw_uint(&w, g->choices[i].index);
        vector(&w, g, &g->choices[i]);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    gen_usage(g, &prompt, &cached, &completion);
    jsonw_key(&w, "usage"), jsonw_obj(&w);
    jsonw_key(&w, "prompt_tokens"), jsonw_uint(&w, prompt);
    jsonw_key(&w, "total_tokens"), jsonw_uint(&w, prompt);
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
}

const dialect dialect_embeddings = {.name = "embeddings", .id_prefix = "embd-", .object = "list", .plan = plan, .reply = reply};
