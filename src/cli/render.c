/* render.c - `heddle render`: a conversation through a chat template, to look at or to compare.
 *
 * One conversation: the text on stdout.  The special tokens of MODEL are there as bos_token and so on, unless the input
 * has them.  --jsonl: one JSON line per input line, in order; a line that fails answers
 * {"error":{...},"line":n} and does not stop the rest. */
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/common.h"
#include "cli/opts.h"
#include "cli/input.h"
#include "format/gguf.h"
#include "model/model.h"
#include "text/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FILE = 64 << 20 }; /* template or conversation, bytes */

typedef struct {
    const char *model, *template, *messages, *tools, *input, *jsonl, *now;
    bool no_generation_prompt;
} args;

static const char usage_text[] =
    "heddle render (MODEL | --template F.jinja) (--messages F.json [--tools F.json]\n"
    "              [--no-generation-prompt] | --input F.json) [--now ISO-TIME]\n"
    "       heddle render [MODEL | --template F.jinja] --jsonl F [--now ISO-TIME]\n"
    "--jsonl lines: {\"template\",\"input\",\"now\"} -> {\"text\"}; F may be -";

static int usage(const char *why) {
    fprintf(stderr, "heddle: %s\nusage: %s\n", why, usage_text);
    return EXIT_USAGE;
}

static int fail(const hd_err *e) {
    if (e->line) fprintf(stderr, "template, line %u:\n", e->line);
    return fail_with(e);
}

/* ---- input ---- */

static hd_status parse_json(const char *s, size_t n, const char *what, json_t **out, hd_err *err) {
    json_error_t e;
    *out = json_loadb(s, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (*out) return HD_OK;
    return hd_fail(err, HD_INVALID, "%s: line %d, column %d: %s", what, e.line, e.column, e.text);
}

static hd_status read_json(const char *path, json_t **out, hd_err *err) {
    hd_buf b;
    hd_status st;
    buf_init(&b, MAX_FILE);
    st = input_file(path, &b, err);
    if (!st) st = parse_json(buf_cstr(&b), b.len, path, out, err);
    buf_deinit(&b);
    return st;
}

/* 2026-01-15, 2026-01-15T09:30:00 or with Z or +hh:mm at the end.  A time without a zone is taken as it is. */
static hd_status parse_time(const char *s, template_options *o, hd_err *err) {
    struct tm tm = {0};
    int k = 0, oh = 0, om = 0, used = 0;
    char sign = 0;
    tm.tm_mday = 1;
    if (sscanf(s, "%4d-%2d-%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &k) != 3) goto bad;
    s += k;
    if (*s == 'T' || *s == ' ') {
        k = 0;
        if (sscanf(++s, "%2d:%2d%n", &tm.tm_hour, &tm.tm_min, &k) != 2) goto bad;
        s += k;
        if (*s == ':') {
            k = 0;
            if (sscanf(++s, "%2d%n", &tm.tm_sec, &k) != 1) goto bad;
            s += k;
        }
    }
    if (*s == '.') s += 1 + strspn(s + 1, "0123456789");
    if (!strcmp(s, "Z")) s++;
    else if (sscanf(s, "%c%2d:%2d%n", &sign, &oh, &om, &used) == 3 && (sign == '+' || sign == '-')) s += used;
    else oh = om = 0;
    if (*s || tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 ||
        tm.tm_min > 59 || tm.tm_sec > 60 || tm.tm_hour < 0 || tm.tm_min < 0 || tm.tm_sec < 0)
        goto bad;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    o->now = (int64_t)timegm(&tm) - (sign == '-' ? -1 : 1) * (oh * 3600 + om * 60);
    o->local = false;
    return HD_OK;
bad:
    return hd_fail_field(err, HD_INVALID, "now", "not a time like 2026-01-15T09:30:00");
}

/* ---- the template ---- */

/* The text of the model's special tokens, under the names that templates use. */
static hd_status special_tokens(const gguf *g, json_t *tokens, hd_err *err) {
    static const char *const NAMES[] = {"bos", "eos", "unknown", "padding"}, *const VARS[] = {"bos_token", "eos_token",
                                                                                              "unk_token", "pad_token"};
    gguf_type type;
    gguf_str *all = NULL;
    uint64_t id;
    size_t n;
    hd_status st = gguf_arr_n(g, "tokenizer.ggml.tokens", &type, &n, err);
    if (st == HD_NOTFOUND) return HD_OK;
    if (st) return st;
    if (!(all = hd_reallocarray(NULL, n ? n : 1, sizeof *all)))
        return hd_fail(err, HD_NOMEM, "no memory for the vocabulary");
    st = gguf_arr_strs(g, "tokenizer.ggml.tokens", all, n, err);
    for (size_t i = 0; !st && n && i < sizeof NAMES / sizeof *NAMES; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", NAMES[i]);
        if (gguf_get_uint(g, key, 0, n - 1, &id, NULL)) continue;
        json_object_set_new(tokens, VARS[i], json_stringn(all[id].s, all[id].n)); /* left out if it is no UTF-8 */
    }
    hd_free(all);
    return st;
}

/* A scripted model's own template, and its special tokens. */
static hd_status scripted_template(const char *name, chat_template **out, json_t *tokens, hd_err *err) {
    model_options opt = {.vocab_only = true};
    const model_info *in;
    model *m;
    hd_status st = model_open(&m, name, &opt, err);
    if (st) return st;
    in = model_get(m);
    if (in->chat_text) st = template_parse(out, in->chat_text, strlen(in->chat_text), err);
    else st = hd_fail(err, HD_UNSUPPORTED, "%.200s has no chat template", name);
    for (int i = 0; !st && i < 2; i++) {
        int32_t id = i ? in->eos : in->bos;
        gguf_str t = id < 0 ? (gguf_str){0} : tokenizer_bytes(in->tok, id, true);
        if (id >= 0) json_object_set_new(tokens, i ? "eos_token" : "bos_token", json_stringn(t.s, t.n));
    }
    model_close(m);
    return st;
}

/* *out and the model's special tokens added to `tokens`. */
static hd_status load_template(const args *a, chat_template **out, json_t *tokens, hd_err *err) {
    hd_status st;
    *out = NULL;
    if (a->template) {
        hd_buf b;
        buf_init(&b, MAX_FILE);
        st = input_file(a->template, &b, err);
        if (!st) st = template_parse(out, buf_cstr(&b), b.len, err);
        buf_deinit(&b);
    } else if (!strncmp(a->model, "script:", 7)) {
        st = scripted_template(a->model, out, tokens, err);
    } else {
        gguf *g = NULL;
        gguf_str s;
        st = gguf_open(&g, a->model, err);
        if (!st) st = gguf_get_str(g, "tokenizer.chat_template", &s, err);
        if (!st) st = template_parse(out, s.s, s.n, err);
        if (!st) st = special_tokens(g, tokens, err);
        gguf_close(g);
    }
    return st;
}

static hd_status conversation(const args *a, json_t **out, hd_err *err) {
    json_t *messages = NULL, *tools = NULL, *o = NULL;
    hd_status st = HD_OK;
    *out = NULL;
    if (a->input) return read_json(a->input, out, err);
    st = read_json(a->messages, &messages, err);
    if (!st && a->tools) st = read_json(a->tools, &tools, err);
    if (st) goto done;
    if (json_is_object(messages)) { /* a whole request: its parts are taken over */
        o = json_incref(messages);
    } else if ((o = json_object())) {
        json_object_set(o, "messages", messages);
    }
    if (!o || (tools && json_object_set(o, "tools", tools)) ||
        (!json_object_get(o, "add_generation_prompt") &&
         json_object_set_new(o, "add_generation_prompt", json_boolean(!a->no_generation_prompt))))
        st = hd_fail(err, HD_NOMEM, "no memory for the conversation");
    if (!st && a->no_generation_prompt) json_object_set_new(o, "add_generation_prompt", json_false());
    if (st) json_decref(o);
    else *out = o;
done:
    json_decref(messages);
    json_decref(tools);
    return st;
}

static int render_one(const args *a, const template_options *o) {
    chat_template *t = NULL;
    json_t *input = NULL, *tokens = json_object();
    hd_err err = {0};
    hd_buf out;
    hd_status st = load_template(a, &t, tokens, &err);
    buf_init(&out, SIZE_MAX);
    if (!st) st = conversation(a, &input, &err);
    if (!st && json_is_object(input)) json_object_update_missing(input, tokens);
    if (!st) st = template_render(t, input, o, &out, NULL, &err);
    if (!st) fwrite(buf_cstr(&out), 1, out.len, stdout);
    buf_deinit(&out);
    json_decref(input);
    json_decref(tokens);
    template_free(t);
    return st ? fail(&err) : 0;
}

/* ---- --jsonl ---- */

static hd_status line_render(const char *line, size_t n, const chat_template *shared, json_t *tokens,
                             const template_options *base, hd_buf *text, hd_err *err) {
    json_t *v = NULL, *input, *template, *now;
    chat_template *own = NULL;
    template_options o = *base;
    hd_status st = parse_json(line, n, "input", &v, err);
    if (st) return st;
    input = json_object_get(v, "input");
    template = json_object_get(v, "template");
    now = json_object_get(v, "now");
    if (!json_is_object(input)) st = hd_fail_field(err, HD_INVALID, "input", "input must be an object");
    else if (template && !json_is_string(template))
        st = hd_fail_field(err, HD_INVALID, "template", "template must be a string");
    else if (!template && !shared) st = hd_fail_field(err, HD_INVALID, "template", "template is missing");
    if (!st && now) st = json_is_string(now) ? parse_time(json_string_value(now), &o, err)
                                             : hd_fail_field(err, HD_INVALID, "now", "now must be a string");
    if (!st && template) st = template_parse(&own, json_string_value(template), json_string_length(template), err);
    if (!st && !template) json_object_update_missing(input, tokens);
    if (!st) st = template_render(own ? own : shared, input, &o, text, NULL, err);
    template_free(own);
    json_decref(v);
    return st;
}

static void line_answer(hd_buf *line, const hd_buf *text, hd_status st, const hd_err *err, unsigned long n) {
    jsonw w;
    jsonw_init(&w, line);
    jsonw_obj(&w);
    if (!st) {
        jsonw_key(&w, "text");
        jsonw_strn(&w, buf_cstr(text), text->len);
    } else {
        jsonw_key(&w, "error");
        jsonw_obj(&w);
        jsonw_key(&w, "message");
        jsonw_str(&w, err->msg);
        jsonw_key(&w, "type");
        jsonw_str(&w, hd_status_name(st));
        if (err->field[0]) {
            jsonw_key(&w, "class");
            jsonw_str(&w, err->field);
        }
        if (err->line) {
            jsonw_key(&w, "template_line");
            jsonw_uint(&w, err->line);
        }
        jsonw_obj_end(&w);
        jsonw_key(&w, "line");
        jsonw_uint(&w, n);
    }
    jsonw_obj_end(&w);
}

static int render_lines(const args *a, const template_options *o) {
    chat_template *shared = NULL;
    json_t *tokens = json_object();
    input_lines in;
    hd_err err = {0};
    int rc = 0;
    if (((a->template || a->model) && load_template(a, &shared, tokens, &err)) ||
        input_lines_open(&in, a->jsonl, &err)) {
        template_free(shared);
        json_decref(tokens);
        return fail(&err);
    }
    while (!rc && input_lines_next(&in)) {
        hd_buf text, answer;
        hd_status st;
        err = (hd_err){0};
        buf_init(&text, SIZE_MAX);
        buf_init(&answer, SIZE_MAX);
        st = in.line.failed ? hd_fail(&err, in.line.failed, "the line is too long")
                            : line_render(buf_cstr(&in.line), in.line.len, shared, tokens, o, &text, &err);
        line_answer(&answer, &text, st, &err, in.number);
        buf_byte(&answer, '\n');
        if (answer.failed || fwrite(buf_cstr(&answer), 1, answer.len, stdout) != answer.len) rc = EXIT_FAILED;
        buf_deinit(&text);
        buf_deinit(&answer);
    }
    if (!rc && input_lines_end(&in, a->jsonl, &err)) rc = fail(&err);
    input_lines_close(&in);
    template_free(shared);
    json_decref(tokens);
    return rc;
}

int cmd_render(int argc, char **argv) {
    args a = {0};
    template_options o = {.now = (int64_t)time(NULL), .local = true};
    hd_err err = {0};
    size_t n_args;
    const opt_def defs[] = {{"--template", OPT_STR, &a.template, NULL}, {"--messages", OPT_STR, &a.messages, NULL},
                            {"--tools", OPT_STR, &a.tools, NULL}, {"--input", OPT_STR, &a.input, NULL},
                            {"--jsonl", OPT_STR, &a.jsonl, NULL}, {"--now", OPT_STR, &a.now, NULL},
                            {"--no-generation-prompt", OPT_FLAG, &a.no_generation_prompt, NULL}};
    int rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, &a.model, 1, &n_args, usage_text);
    if (rc) return rc;
    if (a.model && a.template) return usage("a model or --template, not both");
    if (!!a.messages + !!a.input + !!a.jsonl != 1) return usage("one of --messages, --input and --jsonl is needed");
    if (!a.jsonl && !a.model && !a.template) return usage("a model or --template is needed");
    if ((a.tools || a.no_generation_prompt) && !a.messages)
        return usage("--tools and --no-generation-prompt go with --messages");
    if (a.now && parse_time(a.now, &o, &err)) return usage(err.msg);
    rc = a.jsonl ? render_lines(&a, &o) : render_one(&a, &o);
    return stdout_ok() ? rc : EXIT_FAILED;
}
