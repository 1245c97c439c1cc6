/* prompt.c - see prompt.h.
 *
 * Messages are brought to the shape that templates written for the transformers library expect: roles they know,
 * content as one string, call arguments as objects.  What clients wrote never becomes a control token: the template
 * engine says which bytes it wrote itself, and only those are searched for control tokens.
 * Read: message, then prompt_chat. */
#include "serve/prompt.h"

#include "base/mem.h"
#include "serve/request.h"
#include "serve/history.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MESSAGES = 65536, MAX_PROMPT_IDS = 64 << 20 };

static bool oom(serve_error *e) { return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request"); }

/* One content part's text is appended; `at` names the part. */
static bool part(const json_t *p, hd_buf *text, const char *at, serve_error *e) {
    const char *type;
    const json_t *v;
    if (json_is_string(p)) return buf_add(text, json_string_value(p), json_string_length(p));
    if (!json_is_object(p)) return bad_field(e, at, "%s must be an object", at);
    type = json_name(req_get(p, "type"));
    if (!type) return bad_field(e, at, "%s has no type", at);
    if (!strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text") || !strcmp(type, "refusal")) {
        v = req_get(p, strcmp(type, "refusal") ? "text" : "refusal");
        if (!json_is_string(v)) return bad_field(e, at, "%s has no text", at);
        buf_add(text, json_string_value(v), json_string_length(v));
        return true;
    }
    {
        static const struct {
            const char *type, *modality;
        } known[] = {{"image_url", "image"},   {"input_image", "image"}, {"image", "image"},  {"input_audio", "audio"},
                     {"audio_url", "audio"},   {"input_video", "video"}, {"video_url", "video"}, {"file", "file"},
                     {"input_file", "file"}};
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcmp(type, known[i].type))
                return serve_fail(e, 400, "unsupported_modality", at, "%s: this model takes no %s input", at, known[i].modality);
    }
    return bad_field(e, at, "%s: unknown content type '%.40s'", at, type);
}

/* content of any shape as one string; NULL only after filling e. */
static json_t *content(const json_t *v, const char *at, serve_error *e) {
    hd_buf text;
    json_t *out = NULL;
    char where[96];
    if (!v) return json_string("");
    if (json_is_string(v)) return json_incref((json_t *)(uintptr_t)v);
    if (!json_is_array(v)) {
        bad_field(e, at, "%s must be a string, an array of parts or null", at);
        return NULL;
    }
    buf_init(&text, (size_t)1 << 30);
    for (size_t i = 0; i < json_array_size(v); i++) {
        snprintf(where, sizeof where, "%s[%zu]", at, i);
        if (!part(json_array_get(v, i), &text, where, e)) goto out;
    }
    if (text.failed || !(out = json_stringn_nocheck(buf_cstr(&text), text.len))) oom(e);
out:
    buf_deinit(&text);
    return out;
}

/* Calls in the shape templates expect: arguments as an object where they parse as one. */
static json_t *tool_calls(const json_t *calls, const char *at, serve_error *e) {
    json_t *out = json_array();
    char where[96];
    for (size_t i = 0; out && i < json_array_size(calls); i++) {
        json_t *call = json_copy(json_array_get(calls, i)), *f = call ? json_object_get(call, "function") : NULL, *args;
        snprintf(where, sizeof where, "%s[%zu]", at, i);
        if (!json_is_object(call)) {
            bad_field(e, where, "%s must be an object", where);
            goto bad;
        }
        if (f) {
            if (!json_is_object(f) || !json_is_string(req_get(f, "name"))) {
                bad_field(e, where, "%s has no function name", where);
                goto bad;
            }
            if (!(f = json_copy(f))) goto nomem;
            if (json_object_set_new(call, "function", f)) goto nomem;
            args = json_object_get(f, "arguments");
            if (json_is_string(args)) {
                json_t *parsed = json_loadb(json_string_value(args), json_string_length(args), JSON_ALLOW_NUL, NULL);
                if (json_is_object(parsed)) json_object_set_new(f, "arguments", parsed);
                else json_decref(parsed);
            } else if (!args || json_is_null(args)) {
                json_object_set_new(f, "arguments", json_object());
            }
        }
        if (json_array_append_new(out, call)) goto nomem_gone;
        continue;
    nomem:
        json_decref(call);
    nomem_gone:
        json_decref(out);
        oom(e);
        return NULL;
    bad:
        json_decref(call);
        json_decref(out);
        return NULL;
    }
    if (!out) oom(e);
    return out;
}

/* One message, normalised.  NULL after filling e. */
static json_t *message(bool knows_developer, const json_t *m, size_t i, serve_error *e) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    char at[64];
    const json_t *v;
    const char *role;
    json_t *out, *text;
    bool assistant, has_calls, known = false;
    snprintf(at, sizeof at, "messages[%zu]", i);
    if (!json_is_object(m)) {
        bad_field(e, at, "%s must be an object", at);
        return NULL;
    }
    role = json_name(req_get(m, "role"));
    for (size_t k = 0; role && k < sizeof roles / sizeof *roles; k++) known |= !strcmp(role, roles[k]);
    if (!known) {
        snprintf(at, sizeof at, "messages[%zu].role", i);
        if (!role && req_get(m, "role")) bad_field(e, at, "%s must be a string without NUL characters", at);
        else bad_field(e, at, role ? "%s: unknown role '%.40s'" : "%s is missing", at, role);
        return NULL;
    }
    if (!(out = json_copy((json_t *)(uintptr_t)m))) return oom(e), NULL;
    /* Templates know four roles; the few that know `developer` say so in their text. */
    if (!strcmp(role, "developer") && !knows_developer)
        json_object_set_new(out, "role", json_string("system"));
    else if (!strcmp(role, "function"))
        json_object_set_new(out, "role", json_string("tool"));
    assistant = !strcmp(role, "assistant");
    if (assistant && (v = req_get(m, "function_call")) && !req_get(m, "tool_calls")) { /* the deprecated spelling */
        json_object_set_new(out, "tool_calls", json_pack("[{s:s,s:O}]", "type", "function", "function", v));
        json_object_del(out, "function_call");
    }
    has_calls = false;
    if ((v = req_get(out, "tool_calls"))) {
        json_t *calls;
        snprintf(at, sizeof at, "messages[%zu].tool_calls", i);
        if (!json_is_array(v)) {
            bad_field(e, at, "%s must be an array", at);
            goto bad;
        }
        if (!(calls = tool_calls(v, at, e))) goto bad;
        has_calls = json_array_size(calls) > 0;
        json_object_set_new(out, "tool_calls", calls);
    } else {
        json_object_del(out, "tool_calls");
    }
    /* null beside calls stays null, as templates test for it; elsewhere it is empty, so that none prints "None". */
    v = req_get(m, "content");
    if (!v && assistant && has_calls) {
        json_object_set_new(out, "content", json_null());
    } else {
        snprintf(at, sizeof at, "messages[%zu].content", i);
        if (!assistant && !json_object_get(m, "content")) { /* null is empty; nothing at all is a slip */
            bad_field(e, at, "%s is missing", at);
            goto bad;
        }
        if (!v && strcmp(role, "user") && (v = req_get(m, "refusal")) && !json_is_string(v)) v = NULL;
        if (!(text = content(v, at, e))) goto bad;
        json_object_set_new(out, "content", text);
    }
    if (assistant && (v = req_get(m, "reasoning")) && json_is_string(v) && !req_get(m, "reasoning_content"))
        json_object_set(out, "reasoning_content", (json_t *)(uintptr_t)v);
    return out;
bad:
    json_decref(out);
    return NULL;
}

static json_t *messages(const server *s, const json_t *body, size_t n_before, serve_error *e) {
    const json_t *in = req_get(body, "messages");
    bool knows_developer = s->info->chat_text && strstr(s->info->chat_text, "developer");
    json_t *out;
    if (!json_is_array(in)) {
        bad_field(e, "messages", in ? "messages must be an array" : "messages is missing");
        return NULL;
    }
    if (!json_array_size(in) || json_array_size(in) > MAX_MESSAGES) {
        bad_field(e, "messages", "messages must hold 1 to %d messages", MAX_MESSAGES);
        return NULL;
    }
    if (!(out = json_array())) return oom(e), NULL;
    for (size_t i = 0; i < json_array_size(in); i++) {
        json_t *m = message(knows_developer, json_array_get(in, i), i < n_before ? i : i - n_before, e);
        if (!m || json_array_append_new(out, m)) {
            if (m) oom(e);
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Tools for the template: functions; others are named in the warning.  *out stays NULL when there are none.  A template that
 * does not look at them would drop them without a word, and an agent wait for calls of tools its model never heard of. */
static bool tools(const model_info *info, const json_t *body, json_t **out, char *warning, size_t n_warning, serve_error *e) {
    const json_t *in = req_get(body, "tools"), *choice = req_get(body, "tool_choice"), *old = req_get(body, "functions");
    *out = NULL;
    if (choice) {
        const char *c = json_name(choice);
        if (c && !strcmp(c, "none")) return true;
        if (json_is_object(choice) || (c && !strcmp(c, "required")))
            return serve_fail(e, 422, "unsupported_parameter", "tool_choice", "forcing a tool call is not supported yet");
        if (!c || strcmp(c, "auto")) return bad_field(e, "tool_choice", "tool_choice must be none, auto, required or an object");
    }
    if (in && !json_is_array(in)) return bad_field(e, "tools", "tools must be an array");
    if (old && !json_is_array(old)) return bad_field(e, "functions", "functions must be an array");
    if (!json_array_size(in) && !json_array_size(old)) return true;
    if (!(*out = json_array())) return oom(e);
    for (size_t i = 0; i < json_array_size(in); i++) {
        json_t *t = json_array_get(in, i);
        const char *type = json_name(req_get(t, "type"));
        char at[96];
        snprintf(at, sizeof at, "tools[%zu]", i);
        if (!json_is_object(t) || !type) return bad_field(e, at, "%s must be an object with a type", at);
        if (strcmp(type, "function") != 0) {
            snprintf(warning, n_warning, "ignored a tool of a type other than function");
            continue;
        }
        if (!json_is_string(req_get(req_get(t, "function"), "name")))
            return bad_field(e, at, "%s.function.name is missing", at);
        json_array_append(*out, t);
    }
    for (size_t i = 0; i < json_array_size(old); i++)
        json_array_append_new(*out, json_pack("{s:s,s:O}", "type", "function", "function", json_array_get(old, i)));
    if (!json_array_size(*out)) json_decref(*out), *out = NULL;
    if (*out && info->chat && !template_reads_tools(info->chat))
        return serve_fail(e, 400, "unsupported_parameter", json_array_size(in) ? "tools" : "functions",
                          "this model takes no tools: its chat template does not know them. Leave them out, or send tool_choice \"none\"");
    return true;
}

static void set_token(json_t *input, const char *key, const server *s, int32_t id) {
    gguf_str t;
    if (id < 0) return;
    t = tokenizer_bytes(s->info->tok, id, true);
    json_object_set_new(input, key, json_stringn(t.s, t.n));
}

static bool template_error(hd_status st, const hd_err *err, serve_error *e) {
    if (st == HD_NOMEM) return oom(e);
    if (err->line)
        return serve_fail(e, 400, "template_error", "messages", "the chat template refused this conversation: %s (line %u)",
                          err->msg, err->line);
    return serve_fail(e, 400, "template_error", "messages", "the chat template refused this conversation: %s", err->msg);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void reverse(char *dst, const char *src, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = src[n - 1 - i];
}

/* Where `want` begins for the last time in text; n_text if nowhere.  Both are reversed so that memmem, which is linear
 * whatever the client wrote, finds it.  False: no memory. */
static bool last_place(const char *text, size_t n_text, const char *want, size_t n, size_t *at) {
    char *r, *hit;
    *at = n_text;
    if (!n || n > n_text) return true;
    if (!(r = hd_alloc(n_text + n))) return false;
    reverse(r, text, n_text);
    reverse(r + n_text, want, n);
    if ((hit = memmem(r, n_text, r + n_text, n))) *at = n_text - (size_t)(hit - r) - n;
    hd_free(r);
    return true;
}

/* Cut the rendering behind the last message's text, so that the model goes on with it.  Only what came from the client
 * is looked at: the template's own words behind the message may hold a short text too. */
static bool cut_final(const json_t *msgs, hd_buf *text, const template_spans *spans, serve_error *e) {
    const json_t *last = json_array_get(msgs, json_array_size(msgs) - 1), *c = json_object_get(last, "content");
    const char *want = json_string_value(c);
    size_t n = json_string_length(c), at;
    if (!want || strcmp(json_string_value(json_object_get(last, "role")), "assistant"))
        return bad_field(e, "continue_final_message", "the last message is not an assistant's text");
    while (n && is_space(want[0])) want++, n--; /* templates trim; look for what survives that */
    while (n && is_space(want[n - 1])) n--;
    for (size_t i = spans->n; i-- > 0;) {
        const template_span *sp = &spans->spans[i];
        if (sp->trusted) continue;
        if (!last_place(text->data + sp->start, sp->n, want, n, &at)) return oom(e);
        if (at == sp->n) continue;
        text->len = sp->start + at + n;
        text->data[text->len] = 0;
        return true;
    }
    return bad_field(e, "continue_final_message", "the chat template does not keep the last message's text");
}

/* What windows of attention look through must be kept where conversations go on: only then is the place of use. */
static bool wants_boundary(const model_info *m) {
    for (uint32_t g = 0; g < m->n_groups; g++)
        if (m->groups[g].window) return true;
    return false;
}

/* Where a next turn will leave these tokens: the conversation is rendered as it would be with an answer and a question more,
 * and the common beginning counted.  Templates that drop the reasoning of past turns leave them well before the end.  A
 * guess that costs no more than rendering again: bytes are compared, and tokens counted by what they print, which is exact
 * but for normalised text and SentencePiece's first space.  0: the template will not have it. */
static size_t boundary(const model_info *m, json_t *input, const json_t *msgs, const hd_buf *text, const id_list *ids) {
    json_t *longer = json_copy((json_t *)(uintptr_t)msgs), *more = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "assistant", "content",
                                                                            "x", "role", "user", "content", "x");
    template_options opt = {.now = hd_wall_seconds(), .local = true};
    size_t same = 0, n = 0;
    hd_buf next;
    hd_err err;
    buf_init(&next, (size_t)64 << 20);
    if (longer && more && !json_array_extend(longer, more) && !json_object_set(input, "messages", longer) &&
        template_render(m->chat, input, &opt, &next, NULL, &err) == HD_OK)
        while (same < text->len && same < next.len && text->data[same] == next.data[same]) same++;
    for (size_t bytes = 0; same && n < ids->n; n++)
        if ((bytes += tokenizer_bytes(m->tok, ids->ids[n], true).n) > same) break;
    buf_deinit(&next);
    json_decref(more);
    json_decref(longer);
    return n;
}

bool prompt_chat(server *s, const json_t *body, size_t n_before, id_list *out, prompt_facts *facts, char *warning, size_t n_warning,
                 serve_error *e) {
    const model_info *info = s->info;
    json_t *msgs = NULL, *tool_list = NULL, *input = NULL;
    const json_t *kwargs = req_get(body, "chat_template_kwargs");
    bool generation_prompt, go_on = false, ok = false;
    const char *effort = NULL;
    hd_buf text;
    template_spans spans = {0};
    text_piece *pieces = NULL;
    size_t n_pieces = 0;
    hd_status st;
    hd_err err = {0};
    history *with_ids = NULL;
    prompt_facts f = {0};
    buf_init(&text, (size_t)64 << 20);
    if (!(msgs = messages(s, body, n_before, e)) || !history_open(&with_ids, info->tok, msgs, n_before, e) || !tools(info, body, &tool_list, warning, n_warning, e) ||
        !req_bool(body, "continue_final_message", &go_on, e))
        goto out;
    generation_prompt = !go_on;
    if (!req_bool(body, "add_generation_prompt", &generation_prompt, e) || !req_str(body, "reasoning_effort", &effort, NULL, e))
        goto out;
    if (go_on && generation_prompt) {
        bad_field(e, "continue_final_message", "continue_final_message and add_generation_prompt exclude each other");
        goto out;
    }
    if (kwargs && !json_is_object(kwargs)) {
        bad_field(e, "chat_template_kwargs", "chat_template_kwargs must be an object");
        goto out;
    }
    if (info->chat) {
        const char *key;
        json_t *v;
        if (!(input = json_object())) {
            oom(e);
            goto out;
        }
        /* Variables named *_token are the model's own and trusted by the template engine: not for clients. */
        json_object_foreach((json_t *)(uintptr_t)kwargs, key, v) {
            size_t n = strlen(key);
            if (n < 6 || strcmp(key + n - 6, "_token") != 0) json_object_set(input, key, v);
        }
        json_object_set(input, "messages", msgs);
        if (tool_list) json_object_set(input, "tools", tool_list);
        else json_object_del(input, "tools");
        json_object_set_new(input, "add_generation_prompt", json_boolean(generation_prompt));
        set_token(input, "bos_token", s, info->bos);
        set_token(input, "eos_token", s, info->eos);
        if (effort && !json_object_get(input, "reasoning_effort"))
            json_object_set_new(input, "reasoning_effort", json_string(effort));
        {
            template_options opt = {.now = hd_wall_seconds(), .local = true};
            if ((st = template_render(info->chat, input, &opt, &text, &spans, &err)) != HD_OK) {
                template_error(st, &err, e);
                goto out;
            }
        }
    } else {
        serve_fail(e, 400, "no_chat_template", "messages", "this model has no usable chat template%s%s; /v1/completions works",
                   info->chat_error ? ": " : "", info->chat_error ? info->chat_error : "");
        goto out;
    }
    if (go_on && !cut_final(msgs, &text, &spans, e)) goto out;
    /* The template decides about BOS: nothing is added to what it wrote. */
    if (!(pieces = hd_calloc(spans.n + 1, sizeof *pieces))) {
        oom(e);
        goto out;
    }
    if (!spans.n && text.len) pieces[n_pieces++] = (text_piece){text.data, text.len, false};
    for (size_t i = 0; i < spans.n && spans.spans[i].start < text.len; i++) {
        const template_span *sp = &spans.spans[i];
        size_t n = sp->start + sp->n > text.len ? text.len - sp->start : sp->n;
        pieces[n_pieces++] = (text_piece){text.data + sp->start, n, sp->trusted};
    }
    out->max = MAX_PROMPT_IDS;
    if ((st = history_encode(with_ids, info->tok, pieces, n_pieces, out, &f.n_replayed, &err)) != HD_OK) {
        if (st == HD_NOMEM) oom(e);
        else serve_fail(e, 400, "invalid_value", "messages", "%s", err.msg);
        goto out;
    }
    if (facts && wants_boundary(info) && !go_on) f.boundary = boundary(info, input, msgs, &text, out);
    if (facts) *facts = f;
    ok = true;
out:
    history_close(with_ids);
    hd_free(pieces);
    template_spans_deinit(&spans);
    buf_deinit(&text);
    json_decref(input);
    json_decref(tool_list);
    json_decref(msgs);
    return ok;
}
