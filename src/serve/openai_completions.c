/* openai_completions.c - POST /v1/completions: prompts of four shapes, echo, the legacy logprobs, scoring.
 *
 * Choices are prompt x n, index = prompt * n + sample.  echo with logprobs scores the prompt token by token (the first
 * token has no logprob); with max_tokens 0 nothing is generated. */
#include "serve/openai.h"
#include "serve/stream.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define OBJECT "text_completion"
enum { MAX_PROMPT_IDS = 64 << 20 };

static bool oom(serve_error *e) { return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request"); }

static bool text_prompt(gen *g, gen_prompt *p, const json_t *v, unsigned flags, serve_error *e) {
    hd_err err = {0};
    hd_status st;
    id_list_init(&p->ids, MAX_PROMPT_IDS);
    st = tokenizer_encode(g->srv->info->tok, json_string_value(v), json_string_length(v), flags, &p->ids, &err);
    if (st == HD_NOMEM) return oom(e);
    if (st != HD_OK) return bad_field(e, "prompt", "%s", err.msg);
    if (g->plan.echo) {
        if (!(p->echo = hd_strndup(json_string_value(v), json_string_length(v)))) return oom(e);
        p->n_echo = json_string_length(v);
    }
    return true;
}

static bool ids_prompt(gen *g, gen_prompt *p, const json_t *v, serve_error *e) {
    const model_info *m = g->srv->info;
    hd_err err = {0};
    id_list_init(&p->ids, MAX_PROMPT_IDS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        int64_t id;
        if (!json_is_whole(json_array_get(v, i), &id) || id < 0 || id >= m->n_vocab || (size_t)id >= tokenizer_size(m->tok))
            return bad_field(e, "prompt", "prompt: element %zu is not a token id below %u", i, m->n_vocab);
        if (id_list_add(&p->ids, (int32_t)id, &err) != HD_OK) return oom(e);
    }
    if (g->plan.echo) {
        hd_buf text;
        buf_init(&text, (size_t)64 << 20);
        if (tokenizer_decode(m->tok, p->ids.ids, p->ids.n, g->plan.special, &text, &err) != HD_OK || text.failed) {
            buf_deinit(&text);
            return oom(e);
        }
        p->echo = buf_take(&text, &p->n_echo);
    }
    return true;
}

static bool prompts(gen *g, const json_t *body, serve_error *e) {
    const json_t *in = req_get(body, "prompt");
    bool bos = true, special = false, many;
    unsigned flags;
    size_t n;
    if (!in) return bad_field(e, "prompt", "prompt is missing");
    if (!json_is_string(in) && !json_is_array(in))
        return bad_field(e, "prompt", "prompt must be a string, an array of strings, of token ids, or of such arrays");
    if (!req_bool(body, "add_special_tokens", &bos, e) || !req_bool(body, "parse_special", &special, e)) return false;
    flags = (bos ? TOK_BOS : 0) | (special ? TOK_SPECIAL : 0);
    many = json_is_array(in) && !json_is_number(json_array_get(in, 0));
    if (!(n = many ? json_array_size(in) : 1)) return bad_field(e, "prompt", "prompt is empty");
    if (n > GEN_MAX_CHOICES) return bad_field(e, "prompt", "prompt may hold at most %d prompts", GEN_MAX_CHOICES);
    if (!(g->prompts = hd_calloc(n, sizeof *g->prompts))) return oom(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = many ? json_array_get(in, i) : in;
        gen_prompt *p = &g->prompts[i];
        id_list_init(&p->ids, 0);
        g->n_prompts = (uint32_t)i + 1;
        if (json_is_string(v)) {
            if (!text_prompt(g, p, v, flags, e)) return false;
        } else if (json_is_array(v)) {
            if (!ids_prompt(g, p, v, e)) return false;
        } else {
            return bad_field(e, "prompt", "prompt: element %zu is neither a string nor an array of token ids", i);
        }
        if (!p->ids.n) return bad_field(e, "prompt", many ? "prompt %zu has no tokens" : "the prompt has no tokens", i);
    }
    return true;
}

static bool frames(gen *g, serve_error *e) { return openai_frames(g, OBJECT, e); }

static bool plan(gen *g, const json_t *body, serve_error *e) {
    gen_params *p = &g->plan;
    int64_t top = -1, best = -1;
    const char *suffix = "";
    if (!gen_params_read(g->srv, body, g->has_big_seed, g->big_seed, p, e) ||
        !req_int(body, "logprobs", 0, SAMPLER_MAX_TOP_LOGPROBS, &top, e) || !req_bool(body, "echo", &p->echo, e) ||
        !req_int(body, "best_of", 1, REQUEST_MAX_N, &best, e) || !req_str(body, "suffix", &suffix, NULL, e) ||
        !openai_check_constraints(body, e))
        return false;
    if (*suffix) return serve_fail(e, 400, "unsupported_parameter", "suffix", "suffix is not supported");
    if (best >= 0 && best != p->n)
        return serve_fail(e, 400, "unsupported_parameter", "best_of", "best_of other than n is not supported");
    p->logprobs = top >= 0;
    p->sampling.n_top_logprobs = top > 0 ? (uint32_t)top : 0;
    p->score_prompt = p->echo && p->logprobs;
    return prompts(g, body, e) && frames(g, e);
}

/* ---- legacy logprobs: tokens, token_logprobs, top_logprobs, text_offset ---- */

/* A token as a JSON string: its text, or "bytes:\xNN..." where it is not whole characters. */
static void token_string(const gen *g, hd_buf *b, int32_t id) {
    gguf_str t = tokenizer_bytes(g->srv->info->tok, id, true);
    bool whole = true;
    uint32_t cp;
    for (size_t i = 0; i < t.n && whole;) {
        int k = utf8_next(t.s + i, t.n - i, &cp);
        if (k < 0) whole = false;
        else i += (size_t)k;
    }
    buf_byte(b, '"');
    if (whole) {
        jsonw_escape(b, t.s, t.n);
    } else {
        buf_str(b, "bytes:");
        for (size_t i = 0; i < t.n; i++) buf_fmt(b, "\\\\x%02x", (unsigned char)t.s[i]);
    }
    buf_byte(b, '"');
}

static void entry(gen *g, choice *ch, const token_entry *t) {
    const sample_result *r = &t->sample;
    hd_buf *b;
    bool in_top = false;
    token_string(g, openai_piece(ch, PIECE_A), r->id);
    b = openai_piece(ch, PIECE_B);
    if (t->first) buf_str(b, "null");
    else openai_logprob(b, r->logprob);
    b = openai_piece(ch, PIECE_C);
    if (t->first) {
        buf_str(b, "null");
    } else {
        buf_byte(b, '{');
        for (uint32_t i = 0; i < r->n_top; i++) {
            if (i) buf_byte(b, ',');
            token_string(g, b, r->top[i].id);
            buf_byte(b, ':');
            openai_logprob(b, r->top[i].logprob);
            in_top |= r->top[i].id == r->id;
        }
        if (!in_top) { /* the token itself is always there */
            if (r->n_top) buf_byte(b, ',');
            token_string(g, b, r->id);
            buf_byte(b, ':');
            openai_logprob(b, r->logprob);
        }
        buf_byte(b, '}');
    }
    buf_fmt(openai_piece(ch, PIECE_D), "%llu", (unsigned long long)t->chars);
    ch->n_piece++;
}

static void logprobs(const gen *g, const choice *ch, hd_buf *out) {
    if (!g->plan.logprobs) {
        buf_str(out, "null");
        return;
    }
    buf_str(out, "{\"tokens\":[");
    buf_add(out, buf_cstr(&ch->pieces[PIECE_A]), ch->pieces[PIECE_A].len);
    buf_str(out, "],\"token_logprobs\":[");
    buf_add(out, buf_cstr(&ch->pieces[PIECE_B]), ch->pieces[PIECE_B].len);
    buf_str(out, "],\"top_logprobs\":[");
    buf_add(out, buf_cstr(&ch->pieces[PIECE_C]), ch->pieces[PIECE_C].len);
    buf_str(out, "],\"text_offset\":[");
    buf_add(out, buf_cstr(&ch->pieces[PIECE_D]), ch->pieces[PIECE_D].len);
    buf_str(out, "]}");
}

/* ---- stream ---- */

static void frame(gen *g, choice *ch, const char *text, size_t n, const char *finish, hd_buf *out) {
    gen_frame(g, out);
    buf_add(out, g->frame_head.data, g->frame_head.len);
    buf_fmt(out, "%u,\"text\":\"", ch->index);
    jsonw_escape(out, text, n);
    buf_byte(out, '"');
    if (g->plan.return_token_ids && ch->pieces[PIECE_IDS].len)
        buf_fmt(out, ",\"token_ids\":[%s]", buf_cstr(&ch->pieces[PIECE_IDS]));
    buf_str(out, ",\"logprobs\":");
    if (ch->n_piece) logprobs(g, ch, out);
    else buf_str(out, "null");
    if (finish) buf_fmt(out, ",\"finish_reason\":\"%s\"", finish);
    else buf_str(out, ",\"finish_reason\":null");
    buf_add(out, g->frame_tail.data, g->frame_tail.len);
    if (finish) {
        jsonw w;
        jsonw_init(&w, out);
        w.comma = true;
        openai_extras(&w, g, ch);
    }
    buf_byte(out, '}');
    gen_frame_end(g, out);
    for (int i = 0; i < N_PIECES; i++) buf_clear(&ch->pieces[i]);
    ch->n_piece = 0;
}

static void start(gen *g, hd_buf *out) { (void)g, (void)out; }
static void delta(gen *g, choice *ch, const char *text, size_t n, hd_buf *out) { frame(g, ch, text, n, NULL, out); }
static void finish(gen *g, choice *ch, hd_buf *out) { frame(g, ch, "", 0, openai_finish(ch), out); }
static void end(gen *g, hd_buf *out) { openai_end(g, OBJECT, out); }

static void reply(gen *g, hd_buf *out) {
    jsonw w;
    jsonw_init(&w, out);
    jsonw_obj(&w);
    openai_head(&w, g, OBJECT);
    jsonw_key(&w, "choices"), jsonw_arr(&w);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        choice *ch = &g->choices[i];
        jsonw_obj(&w);
        jsonw_key(&w, "index"), jsonw_uint(&w, ch->index);
        jsonw_key(&w, "text"), jsonw_strn(&w, buf_cstr(&ch->text), ch->text.len);
        jsonw_key(&w, "logprobs");
        logprobs(g, ch, out);
        w.comma = true;
        if (g->plan.return_token_ids) {
            buf_fmt(out, ",\"token_ids\":[%s]", buf_cstr(&ch->pieces[PIECE_IDS]));
            openai_ids(&w, "prompt_token_ids", &g->prompts[ch->prompt].ids);
        }
        jsonw_key(&w, "finish_reason"), jsonw_str(&w, openai_finish(ch));
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    openai_usage(&w, g);
    openai_extras(&w, g, &g->choices[0]);
    jsonw_obj_end(&w);
}

const dialect dialect_completions = {"completions", "cmpl-", OBJECT, plan, frames, start, delta, finish, end, entry, reply, true};
