/* openai_chat.c - POST /v1/chat/completions: request, stream chunks, reply.
 *
 * A stream is: role chunk per choice, one chunk per token that yields text, finish chunk per choice, the usage chunk
 * if asked for, [DONE].  Numbers of events count in the order they are written. */
#include "serve/openai.h"
#include "serve/prompt.h"
#include "serve/stream.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define CHUNK "chat.completion.chunk"

static bool frames(gen *g, serve_error *e) { return openai_frames(g, CHUNK, e); }

static bool plan(gen *g, const json_t *body, serve_error *e) {
    gen_params *p = &g->plan;
    server *s = g->srv;
    int64_t top = -1;
    if (!gen_params_read(s, body, g->has_big_seed, g->big_seed, p, e) || !req_bool(body, "logprobs", &p->logprobs, e) ||
        !req_int(body, "top_logprobs", 0, SAMPLER_MAX_TOP_LOGPROBS, &top, e) || !openai_check_constraints(body, e))
        return false;
    if (top > 0 && !p->logprobs) return bad_field(e, "top_logprobs", "top_logprobs needs logprobs: true");
    p->sampling.n_top_logprobs = top > 0 ? (uint32_t)top : 0;
    if (p->has_max_tokens && !p->max_tokens)
        return request_bad_cap(req_get(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens", e);
    if (!(g->prompts = hd_calloc(1, sizeof *g->prompts)))
        return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    g->n_prompts = 1;
    id_list_init(&g->prompts[0].ids, 0);
    return prompt_chat(s, body, g->n_before, &g->prompts[0].ids, &g->prompts[0].facts, g->warning, sizeof g->warning, e) && frames(g, e);
}

/* ---- logprobs: {"token","logprob","bytes","top_logprobs":[...]} ---- */

static void token_members(const gen *g, hd_buf *b, int32_t id, float lp) {
    gguf_str t = tokenizer_bytes(g->srv->info->tok, id, true);
    buf_str(b, "\"token\":\"");
    jsonw_escape(b, t.s, t.n);
    buf_str(b, "\",\"logprob\":");
    openai_logprob(b, lp);
    buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < t.n; i++) buf_fmt(b, i ? ",%u" : "%u", (unsigned char)t.s[i]);
    buf_byte(b, ']');
    if (g->plan.return_token_ids) buf_fmt(b, ",\"token_id\":%d", id);
}

static void entry(gen *g, choice *ch, const token_entry *t) {
    hd_buf *b = openai_piece(ch, PIECE_A);
    buf_byte(b, '{');
    token_members(g, b, t->sample.id, t->sample.logprob);
    buf_str(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->sample.n_top; i++) {
        buf_str(b, i ? ",{" : "{");
        token_members(g, b, t->sample.top[i].id, t->sample.top[i].logprob);
        buf_byte(b, '}');
    }
    buf_str(b, "]}");
    ch->n_piece++;
}

static void logprobs(const gen *g, const choice *ch, hd_buf *out) {
    if (!g->plan.logprobs) {
        buf_str(out, "null");
        return;
    }
    buf_str(out, "{\"content\":[");
    buf_add(out, buf_cstr(&ch->pieces[PIECE_A]), ch->pieces[PIECE_A].len);
    buf_str(out, "],\"refusal\":null}");
}

/* ---- stream ---- */

static void open_chunk(gen *g, const choice *ch, hd_buf *out) {
    gen_frame(g, out);
    buf_add(out, g->frame_head.data, g->frame_head.len);
    buf_fmt(out, "%u", ch->index);
}

/* Everything behind the delta, and the pieces that go with it. */
static void close_chunk(gen *g, choice *ch, const char *finish, hd_buf *out) {
    bool any = ch->n_piece > 0;
    if (g->plan.return_token_ids && ch->pieces[PIECE_IDS].len)
        buf_fmt(out, ",\"token_ids\":[%s]", buf_cstr(&ch->pieces[PIECE_IDS]));
    buf_str(out, ",\"logprobs\":");
    if (any) logprobs(g, ch, out);
    else buf_str(out, "null");
    if (finish) buf_fmt(out, ",\"finish_reason\":\"%s\"", finish);
    else buf_str(out, ",\"finish_reason\":null");
    buf_add(out, g->frame_tail.data, g->frame_tail.len);
    for (int i = 0; i < N_PIECES; i++) buf_clear(&ch->pieces[i]);
    ch->n_piece = 0;
}

static void start(gen *g, hd_buf *out) {
    for (uint32_t i = 0; i < g->n_choices; i++) {
        open_chunk(g, &g->choices[i], out);
        buf_str(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        close_chunk(g, &g->choices[i], NULL, out);
        if (g->plan.return_token_ids && !i) {
            jsonw w;
            jsonw_init(&w, out);
            w.comma = true;
            openai_ids(&w, "prompt_token_ids", &g->prompts[0].ids);
        }
        buf_byte(out, '}');
        gen_frame_end(g, out);
    }
}

static void delta(gen *g, choice *ch, const char *text, size_t n, hd_buf *out) {
    open_chunk(g, ch, out);
    buf_str(out, ",\"delta\":{\"content\":\"");
    jsonw_escape(out, text, n);
    buf_str(out, "\"}");
    close_chunk(g, ch, NULL, out);
    buf_byte(out, '}');
    gen_frame_end(g, out);
}

static void finish(gen *g, choice *ch, hd_buf *out) {
    jsonw w;
    open_chunk(g, ch, out);
    buf_str(out, ",\"delta\":{");
    openai_extra_content(g->srv->info->tok, &ch->ids, ch->text_bytes, "", out);
    buf_byte(out, '}');
    close_chunk(g, ch, openai_finish(ch), out);
    jsonw_init(&w, out);
    w.comma = true;
    openai_extras(&w, g, ch);
    buf_byte(out, '}');
    gen_frame_end(g, out);
}

static void end(gen *g, hd_buf *out) { openai_end(g, CHUNK, out); }

/* ---- reply ---- */

static void reply(gen *g, hd_buf *out) {
    jsonw w;
    jsonw_init(&w, out);
    jsonw_obj(&w);
    openai_head(&w, g, "chat.completion");
    jsonw_key(&w, "choices"), jsonw_arr(&w);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        choice *ch = &g->choices[i];
        jsonw_obj(&w);
        jsonw_key(&w, "index"), jsonw_uint(&w, ch->index);
        jsonw_key(&w, "message"), jsonw_obj(&w);
        openai_message(&w, g->srv->info->tok, &ch->text, &ch->ids);
        jsonw_obj_end(&w);
        jsonw_key(&w, "logprobs");
        logprobs(g, ch, out);
        w.comma = true;
        if (g->plan.return_token_ids) buf_fmt(out, ",\"token_ids\":[%s]", buf_cstr(&ch->pieces[PIECE_IDS]));
        jsonw_key(&w, "finish_reason"), jsonw_str(&w, openai_finish(ch));
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    openai_usage(&w, g);
    openai_extras(&w, g, &g->choices[0]);
    if (g->plan.return_token_ids) openai_ids(&w, "prompt_token_ids", &g->prompts[0].ids);
    jsonw_obj_end(&w);
}

const dialect dialect_chat = {"chat", "chatcmpl-", "chat.completion", plan, frames, start, delta, finish, end, entry, reply, true};
