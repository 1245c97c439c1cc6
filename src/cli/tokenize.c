/* tokenize.c - `heddle tokenize MODEL (--text T | --file F | --jsonl F) [--special] [--bos] [--json]`.
 *
 * --jsonl answers one line per line of F ("-": stdin): {"text"} or {"hex"} gives {"ids"}, a line that cannot be
 * answered gives {"error":{"message"},"line"}. */
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/opts.h"

#include "base/jsonw.h"

#include <jansson.h>
#include <string.h>

typedef struct {
    const char *model, *text, *file, *jsonl;
    unsigned flags;
    bool json;
} options;

static int parse(options *o, int argc, char **argv) {
    static const char usage[] = "heddle tokenize MODEL (--text T | --file F | --jsonl F) [--special] [--bos] [--json]\n"
                                "  --special   control tokens written in the text are recognised\n"
                                "  --bos       BOS (and EOS) are added where the model's file says so";
    bool special = false, bos = false;
    size_t n_args;
    const opt_def defs[] = {{"--text", OPT_STR, &o->text, NULL}, {"--file", OPT_STR, &o->file, NULL},
                            {"--jsonl", OPT_STR, &o->jsonl, NULL}, {"--special", OPT_FLAG, &special, NULL},
                            {"--bos", OPT_FLAG, &bos, NULL}, {"--json", OPT_FLAG, &o->json, NULL}};
    int rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, &o->model, 1, &n_args, usage);
    if (rc) return rc;
    o->flags = (special ? TOK_SPECIAL : 0u) | (bos ? TOK_BOS : 0u);
    if (n_args && !!o->text + !!o->file + !!o->jsonl == 1) return 0;
    fprintf(stderr, "heddle: a MODEL and one of --text, --file and --jsonl are needed\nusage: %s\n", usage);
    return EXIT_USAGE;
}

static void put_ids(hd_buf *b, const id_list *ids, const char *open, const char *between, const char *close) {
    buf_str(b, open);
    for (size_t i = 0; i < ids->n; i++) buf_fmt(b, "%s%d", i ? between : "", ids->ids[i]);
    buf_str(b, close);
}

static int digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static hd_status unhex(const char *s, size_t n, hd_buf *out, hd_err *err) {
    for (size_t i = 0; i < n; i += 2) {
        int hi = digit(s[i]), lo = i + 1 < n ? digit(s[i + 1]) : -1;
        if (hi < 0 || lo < 0)
            return hd_fail_field(err, HD_INVALID, "hex", "\"hex\" is not pairs of hexadecimal digits");
        buf_byte(out, (char)(hi * 16 + lo));
    }
    return out->failed ? hd_fail(err, out->failed, "the line is too long") : HD_OK;
}

static hd_status line_ids(const options *o, const tokenizer *t, const hd_buf *line, id_list *ids, hd_err *err) {
    json_error_t why;
    json_t *root, *text, *hex;
    hd_buf bytes;
    hd_status st;
    if (line->failed) return hd_fail(err, line->failed, "the line is too long");
    if (!(root = json_loadb(buf_cstr(line), line->len, JSON_ALLOW_NUL, &why)))
        return hd_fail(err, HD_INVALID, "not JSON: %s", why.text);
    text = json_object_get(root, "text"); /* NULL too if root is no object */
    hex = json_object_get(root, "hex");
    buf_init(&bytes, SIZE_MAX);
    if (!json_is_object(root) || !text == !hex || (text && !json_is_string(text)) || (hex && !json_is_string(hex)))
        st = hd_fail(err, HD_INVALID, "a line is an object with \"text\" or \"hex\"");
    else if (text)
        st = tokenizer_encode(t, json_string_value(text), json_string_length(text), o->flags, ids, err);
    else if (!(st = unhex(json_string_value(hex), json_string_length(hex), &bytes, err)))
        st = tokenizer_encode(t, buf_cstr(&bytes), bytes.len, o->flags, ids, err);
    buf_deinit(&bytes);
    json_decref(root);
    return st;
}

static hd_status answer_lines(const options *o, const tokenizer *t, hd_err *err) {
    input_lines in;
    hd_buf out;
    id_list ids;
    hd_status st;
    if ((st = input_lines_open(&in, o->jsonl, err))) return st;
    buf_init(&out, SIZE_MAX);
    id_list_init(&ids, INT32_MAX);
    while (input_lines_next(&in)) {
        buf_clear(&out);
        ids.n = 0;
        if (line_ids(o, t, &in.line, &ids, err)) {
            jsonw w;
            jsonw_init(&w, &out);
            jsonw_obj(&w);
            jsonw_key(&w, "error");
            jsonw_obj(&w);
            jsonw_key(&w, "message");
            jsonw_str(&w, err->msg);
            jsonw_obj_end(&w);
            jsonw_key(&w, "line");
            jsonw_uint(&w, in.number);
            jsonw_obj_end(&w);
        } else {
            put_ids(&out, &ids, "{\"ids\":[", ",", "]}");
        }
        if (out.failed) {
            st = hd_fail(err, out.failed, "no memory for the answer to line %lu", in.number);
            break;
        }
        buf_byte(&out, '\n');
        if (fwrite(out.data, 1, out.len, stdout) != out.len) {
            st = hd_fail(err, HD_IO, "stdout cannot be written");
            break;
        }
    }
    if (!st) st = input_lines_end(&in, o->jsonl, err);
    id_list_deinit(&ids);
    buf_deinit(&out);
    input_lines_close(&in);
    return st;
}

static hd_status answer_text(const options *o, const tokenizer *t, hd_err *err) {
    hd_buf text, out;
    id_list ids;
    hd_status st = HD_OK;
    buf_init(&text, INT32_MAX);
    buf_init(&out, SIZE_MAX);
    id_list_init(&ids, INT32_MAX);
    if (o->file) st = input_file(o->file, &text, err);
    if (!st)
        st = tokenizer_encode(t, o->file ? buf_cstr(&text) : o->text, o->file ? text.len : strlen(o->text), o->flags,
                              &ids, err);
    if (!st) {
        /* Without --json: what detokenize --ids takes. */
        put_ids(&out, &ids, o->json ? "{\"ids\":[" : "", ",", o->json ? "]}\n" : "\n");
        if (out.failed)
            st = hd_fail(err, out.failed, "no memory for %zu ids", ids.n);
        else if (fwrite(out.data, 1, out.len, stdout) != out.len)
            st = hd_fail(err, HD_IO, "stdout cannot be written");
    }
    id_list_deinit(&ids);
    buf_deinit(&text);
    buf_deinit(&out);
    return st;
}

int cmd_tokenize(int argc, char **argv) {
    options o = {0};
    tokenizer *t;
    hd_err err;
    hd_status st;
    int rc = parse(&o, argc, argv);
    if (rc) return rc;
    if (input_tokenizer(&t, o.model, &err)) return fail_with(&err);
    st = o.jsonl ? answer_lines(&o, t, &err) : answer_text(&o, t, &err);
    tokenizer_free(t);
    if (!st && fflush(stdout)) st = hd_fail(&err, HD_IO, "stdout cannot be written");
    return st ? fail_with(&err) : 0;
}
