/* openai.c - see openai.h. */
#include "serve/openai.h"

#include "serve/stream.h"
#include "text/replay.h"

#include <math.h>
#include <string.h>

bool openai_check_constraints(const json_t *body, serve_error *e) {
    static const char *const grammars[] = {"structured_outputs", "guided_json",    "guided_regex", "guided_choice",
                                           "guided_grammar",     "grammar",        "json_schema"};
    const json_t *f = req_get(body, "response_format"), *m;
    if (f) {
        const char *type = json_name(req_get(f, "type"));
        if (!json_is_object(f)) return bad_field(e, "response_format", "response_format must be an object");
        if (!type) return bad_field(e, "response_format.type", "response_format.type is missing");
        if (!strcmp(type, "json_schema")) {
            const json_t *js = req_get(f, "json_schema"), *schema = req_get(json_is_object(js) ? js : f, "schema");
            if (!json_is_object(schema) && !json_is_boolean(schema))
                return bad_field(e, "response_format.json_schema", "response_format has no schema");
        }
        if (!strcmp(type, "json_schema") || !strcmp(type, "json_object"))
            return serve_fail(e, 422, "unsupported_parameter", "response_format", "response_format %s is not supported yet", type);
        if (strcmp(type, "text") != 0)
            return bad_field(e, "response_format.type", "unknown response_format.type '%.60s'", type);
    }
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++)
        if (req_get(body, grammars[i]))
            return serve_fail(e, 422, "unsupported_parameter", grammars[i], "%s is not supported yet", grammars[i]);
    if (req_get(body, "audio") || req_get(body, "web_search_options")) {
        const char *what = req_get(body, "audio") ? "audio" : "web_search_options";
        return serve_fail(e, 400, "unsupported_parameter", what, "%s is not supported", what);
    }
    if ((m = req_get(body, "modalities"))) {
        if (!json_is_array(m)) return bad_field(e, "modalities", "modalities must be an array");
        for (size_t i = 0; i < json_array_size(m); i++) {
            const char *one = json_name(json_array_get(m, i));
            if (!one || strcmp(one, "text"))
                return serve_fail(e, 400, "unsupported_modality", "modalities", "this model makes text only");
        }
    }
    return true;
}

void openai_head(jsonw *w, const gen *g, const char *object) {
    jsonw_key(w, "id"), jsonw_str(w, g->id);
    jsonw_key(w, "object"), jsonw_str(w, object);
    jsonw_key(w, "created"), jsonw_int(w, g->created);
    jsonw_key(w, "model"), jsonw_str(w, g->model_name ? g->model_name : g->srv->info->name);
    jsonw_key(w, "system_fingerprint"), jsonw_str(w, g->fingerprint[0] ? g->fingerprint : g->srv->fingerprint);
}

bool openai_frames(gen *g, const char *object, serve_error *e) {
    jsonw w;
    jsonw_init(&w, &g->frame_head);
    jsonw_obj(&w);
    openai_head(&w, g, object);
    buf_str(&g->frame_head, ",\"choices\":[{\"index\":");
    /* With include_usage every frame but the last says usage: null. */
    buf_str(&g->frame_tail, g->plan.include_usage ? "}],\"usage\":null" : "}]");
    if (g->frame_head.failed || g->frame_tail.failed)
        return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    return true;
}

void openai_usage(jsonw *w, const gen *g) {
    uint64_t prompt, cached, completion;
    gen_usage(g, &prompt, &cached, &completion);
    jsonw_key(w, "usage"), jsonw_obj(w);
    jsonw_key(w, "prompt_tokens"), jsonw_uint(w, prompt);
    jsonw_key(w, "completion_tokens"), jsonw_uint(w, completion);
    jsonw_key(w, "total_tokens"), jsonw_uint(w, prompt + completion);
    jsonw_key(w, "prompt_tokens_details"), jsonw_obj(w);
    jsonw_key(w, "cached_tokens"), jsonw_uint(w, cached);
    if (g->choices[0].stats.cache_miss) { /* ours: why not more */
        jsonw_key(w, "cache_miss"), jsonw_str(w, g->choices[0].stats.cache_miss);
        jsonw_key(w, "cache_miss_at"), jsonw_uint(w, g->choices[0].stats.cache_miss_at);
    }
    if (g->plan.pin_us) jsonw_key(w, "pinned_tokens"), jsonw_uint(w, g->choices[0].stats.pinned_tokens);
    if (g->prompts[0].facts.n_replayed) /* ids of earlier answers that came along */
        jsonw_key(w, "replayed_tokens"), jsonw_uint(w, g->prompts[0].facts.n_replayed);
    jsonw_obj_end(w);
    jsonw_key(w, "completion_tokens_details"), jsonw_obj(w);
    jsonw_key(w, "reasoning_tokens"), jsonw_uint(w, 0);
    jsonw_obj_end(w);
    jsonw_obj_end(w);
}

void openai_extra_content(const tokenizer *t, const id_list *ids, size_t n_text, const char *comma, hd_buf *out) {
    hd_buf code;
    buf_init(&code, 4 * REPLAY_MAX_IDS * 2);
    if (replay_write(t, ids->ids, ids->n, n_text, &code) && !code.failed)
        buf_fmt(out, "%s\"extra_content\":{\"heddle\":{\"ids\":\"%s\"}}", comma, buf_cstr(&code));
    buf_deinit(&code);
}

void openai_message(jsonw *w, const tokenizer *t, const hd_buf *text, const id_list *ids) {
    jsonw_key(w, "role"), jsonw_str(w, "assistant");
    jsonw_key(w, "content"), jsonw_strn(w, buf_cstr(text), text->len);
    jsonw_key(w, "refusal"), jsonw_null(w);
    if (ids) openai_extra_content(t, ids, text->len, ",", w->b);
}

static void timings(jsonw *w, const gen_stats *s) {
    double prompt_ms = (double)s->prefill_us / 1000, gen_ms = (double)s->decode_us / 1000;
    uint32_t prompt_n = s->prompt_tokens - s->cached_tokens, n = s->generated_tokens;
    jsonw_key(w, "timings"), jsonw_obj(w);
    jsonw_key(w, "cache_n"), jsonw_uint(w, s->cached_tokens);
    jsonw_key(w, "prompt_n"), jsonw_uint(w, prompt_n);
    jsonw_key(w, "prompt_ms"), jsonw_num(w, prompt_ms);
    jsonw_key(w, "prompt_per_token_ms"), jsonw_num(w, prompt_n ? prompt_ms / prompt_n : 0);
    jsonw_key(w, "prompt_per_second"), jsonw_num(w, prompt_ms > 0 ? prompt_n / prompt_ms * 1000 : 0);
    jsonw_key(w, "predicted_n"), jsonw_uint(w, n);
    jsonw_key(w, "predicted_ms"), jsonw_num(w, gen_ms);
    jsonw_key(w, "predicted_per_token_ms"), jsonw_num(w, n ? gen_ms / n : 0);
    jsonw_key(w, "predicted_per_second"), jsonw_num(w, gen_ms > 0 ? n / gen_ms * 1000 : 0);
    jsonw_key(w, "queue_ms"), jsonw_num(w, (double)s->queue_us / 1000);
    jsonw_key(w, "prefill_ms"), jsonw_num(w, prompt_ms);
    jsonw_key(w, "decode_ms"), jsonw_num(w, gen_ms);
    jsonw_key(w, "gap_p50_ms"), jsonw_num(w, (double)s->gap_p50_us / 1000);
    jsonw_key(w, "gap_p99_ms"), jsonw_num(w, (double)s->gap_p99_us / 1000);
    jsonw_key(w, "paused_ms"), jsonw_num(w, (double)s->paused_us / 1000);
    jsonw_key(w, "preempted_ms"), jsonw_num(w, (double)s->preempted_us / 1000);
    jsonw_key(w, "preemptions"), jsonw_uint(w, s->preemptions);
    jsonw_obj_end(w);
}

void openai_extras(jsonw *w, const gen *g, const choice *ch) {
    jsonw_key(w, "seed");
    if (g->has_big_seed) jsonw_uint(w, g->plan.sampling.seed);
    else jsonw_int(w, (int64_t)g->plan.sampling.seed);
    if (g->plan.timings) timings(w, &ch->stats);
}

void openai_ids(jsonw *w, const char *key, const id_list *ids) {
    jsonw_key(w, key), jsonw_arr(w);
    for (size_t i = 0; i < ids->n; i++) jsonw_int(w, ids->ids[i]);
    jsonw_arr_end(w);
}

void openai_end(gen *g, const char *object, hd_buf *out) {
    if (g->plan.include_usage) {
        jsonw w;
        gen_frame(g, out);
        jsonw_init(&w, out);
        jsonw_obj(&w);
        openai_head(&w, g, object);
        jsonw_key(&w, "choices"), jsonw_arr(&w), jsonw_arr_end(&w);
        openai_usage(&w, g);
        jsonw_obj_end(&w);
        gen_frame_end(g, out);
    }
    sse_done(out);
}

const char *openai_finish(const choice *ch) { return ch->finish == FINISH_LENGTH ? "length" : "stop"; }

void openai_logprob(hd_buf *b, float lp) { jsonw_double(b, isfinite(lp) ? (double)lp : -9999.0); }
