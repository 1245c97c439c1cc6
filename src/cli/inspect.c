/* inspect.c - `heddle inspect MODEL [--json]`: what a model file holds, without loading it. */
#include "cli/common.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "text/template.h"

#include <stdio.h>
#include <string.h>

enum { MAX_JSON_BYTES = 1 << 30, SHORT_ARRAY = 64, TYPE_IDS = 64 };

/* What the page starts with; absent ones are empty or 0. */
typedef struct {
    gguf_str arch, name, tok_model, tok_pre, template;
    uint64_t context, n_tokens, n_params, tensor_bytes;
    uint64_t count[TYPE_IDS], bytes[TYPE_IDS]; /* by type id */
} summary;

static void summarise(const gguf *g, summary *s) {
    char key[160];
    size_t n;
    memset(s, 0, sizeof *s);
    if (!gguf_get_str(g, "general.architecture", &s->arch, NULL) && s->arch.n < 100) {
        snprintf(key, sizeof key, "%.*s.context_length", (int)s->arch.n, s->arch.s);
        (void)gguf_get_uint(g, key, 0, UINT64_MAX, &s->context, NULL);
    }
    (void)gguf_get_str(g, "general.name", &s->name, NULL);
    (void)gguf_get_str(g, "tokenizer.ggml.model", &s->tok_model, NULL);
    (void)gguf_get_str(g, "tokenizer.ggml.pre", &s->tok_pre, NULL);
    (void)gguf_get_str(g, "tokenizer.chat_template", &s->template, NULL);
    if (!gguf_arr_n(g, "tokenizer.ggml.tokens", NULL, &n, NULL)) s->n_tokens = n;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        s->n_params += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        s->tensor_bytes += t->size_bytes;
        if ((unsigned)t->type >= TYPE_IDS) continue;
        s->count[t->type]++;
        s->bytes[t->type] += t->size_bytes;
    }
}

/* Whether the chat template can be used, and then whether it tells the model of tools. */
static bool template_usable(const summary *s, bool *tools) {
    chat_template *t = NULL;
    *tools = false;
    if (!s->template.n || template_parse(&t, s->template.s, s->template.n, NULL)) return false;
    *tools = template_reads_tools(t);
    template_free(t);
    return true;
}

/* --- JSON --- */

static void put_str(jsonw *w, const char *key, gguf_str s) {
    jsonw_key(w, key);
    if (s.n)
        jsonw_strn(w, s.s, s.n);
    else
        jsonw_null(w);
}

static void put_uint(jsonw *w, const char *key, uint64_t v) {
    jsonw_key(w, key);
    jsonw_uint(w, v);
}

static bool put_number(jsonw *w, gguf_type type, const char *text) {
    if (type == GGUF_STRING || type == GGUF_ARRAY) return false;
    if (!strcmp(text, "nan") || !strcmp(text, "-nan") || strstr(text, "inf"))
        jsonw_null(w);
    else
        jsonw_raw(w, text, strlen(text));
    return true;
}

/* Short arrays as they are, long ones as {"type","count"}. */
static void put_array(jsonw *w, const gguf *g, size_t i, const char *name) {
    gguf_type elem;
    size_t n;
    if (gguf_arr_n(g, name, &elem, &n, NULL)) {
        jsonw_null(w);
    } else if (elem == GGUF_STRING && n <= SHORT_ARRAY) {
        gguf_str v[SHORT_ARRAY];
        jsonw_arr(w);
        if (!gguf_arr_strs(g, name, v, n, NULL))
            for (size_t k = 0; k < n; k++) jsonw_strn(w, v[k].s, v[k].n);
        jsonw_arr_end(w);
    } else if (elem != GGUF_STRING && n <= SHORT_ARRAY) {
        int64_t ints[SHORT_ARRAY];
        float reals[SHORT_ARRAY];
        bool whole = !gguf_arr_i64(g, name, ints, n, NULL), real = !whole && !gguf_arr_f32(g, name, reals, n, NULL);
        jsonw_arr(w);
        for (size_t k = 0; k < n; k++) {
            if (elem == GGUF_BOOL)
                jsonw_bool(w, ints[k]);
            else if (whole)
                jsonw_int(w, ints[k]);
            else if (real)
                jsonw_num(w, (double)reals[k]);
            else
                jsonw_null(w);
        }
        jsonw_arr_end(w);
    } else {
        char text[64], *space;
        gguf_key_text(g, i, text, sizeof text);
        if ((space = strchr(text, '['))) *space = 0;
        jsonw_obj(w);
        jsonw_key(w, "type");
        jsonw_str(w, text);
        put_uint(w, "count", n);
        jsonw_obj_end(w);
    }
}

static void put_keys(jsonw *w, const gguf *g) {
    jsonw_key(w, "keys");
    jsonw_obj(w);
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        gguf_str k = gguf_key(g, i), v;
        char *name = hd_strndup(k.s, k.n), text[64]; /* names hold no NUL: the reader refuses them */
        if (!name) {
            w->b->failed = HD_NOMEM;
            return;
        }
        jsonw_strn(w, k.s, k.n);
        buf_byte(w->b, ':');
        w->comma = false;
        gguf_key_text(g, i, text, sizeof text);
        if (gguf_key_type(g, i) == GGUF_STRING && !gguf_get_str(g, name, &v, NULL))
            jsonw_strn(w, v.s, v.n);
        else if (!put_number(w, gguf_key_type(g, i), text))
            put_array(w, g, i, name);
        hd_free(name);
    }
    jsonw_obj_end(w);
}

static void put_tensors(jsonw *w, const gguf *g, const summary *s) {
    jsonw_key(w, "types");
    jsonw_arr(w);
    for (uint32_t id = 0; id < TYPE_IDS; id++) {
        if (!s->count[id]) continue;
        jsonw_obj(w);
        jsonw_key(w, "type");
        jsonw_str(w, tensor_type_get(id)->name);
        put_uint(w, "count", s->count[id]);
        put_uint(w, "bytes", s->bytes[id]);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
    jsonw_key(w, "tensors");
    jsonw_arr(w);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        jsonw_obj(w);
        put_str(w, "name", t->name);
        jsonw_key(w, "type");
        jsonw_str(w, tensor_type_get(t->type)->name);
        jsonw_key(w, "dims");
        jsonw_arr(w);
        for (uint32_t d = 0; d < t->n_dims; d++) jsonw_uint(w, t->dims[d]);
        jsonw_arr_end(w);
        put_uint(w, "bytes", t->size_bytes);
        put_uint(w, "part", t->part);
        put_uint(w, "offset", t->offset);
        jsonw_obj_end(w);
    }
    jsonw_arr_end(w);
}

static int print_json(const gguf *g, const char *file, const summary *s) {
    hd_buf b;
    jsonw w;
    int rc = 0;
    bool tools;
    buf_init(&b, MAX_JSON_BYTES);
    jsonw_init(&w, &b);
    jsonw_obj(&w);
    jsonw_key(&w, "model");
    jsonw_str(&w, file);
    jsonw_key(&w, "format");
    jsonw_str(&w, "gguf");
    put_uint(&w, "version", gguf_version(g));
    put_uint(&w, "file_bytes", gguf_file_bytes(g));
    put_str(&w, "arch", s->arch);
    put_str(&w, "name", s->name);
    jsonw_key(&w, "context_length");
    if (s->context)
        jsonw_uint(&w, s->context);
    else
        jsonw_null(&w);
    jsonw_key(&w, "tokenizer");
    jsonw_obj(&w);
    put_str(&w, "model", s->tok_model);
    put_str(&w, "pre", s->tok_pre);
    put_uint(&w, "tokens", s->n_tokens);
    jsonw_obj_end(&w);
    jsonw_key(&w, "chat_template");
    jsonw_bool(&w, s->template.n > 0);
    jsonw_key(&w, "chat_template_tools");
    jsonw_bool(&w, template_usable(s, &tools) && tools);
    put_uint(&w, "n_tensors", gguf_n_tensors(g));
    put_uint(&w, "n_params", s->n_params);
    put_uint(&w, "tensor_bytes", s->tensor_bytes);
    put_keys(&w, g);
    put_tensors(&w, g, s);
    jsonw_obj_end(&w);
    if (b.failed) {
        fprintf(stderr, "heddle: no memory for the reply\n");
        rc = EXIT_FAILED;
    } else {
        puts(b.data);
    }
    buf_deinit(&b);
    return rc;
}

/* --- text --- */

/* "%.*s" for a string of the file, control characters shown as ?. */
static void print_str(const char *label, gguf_str s) {
    printf("%-14s ", label);
    for (size_t i = 0; i < s.n && i < 200; i++) putchar((unsigned char)s.s[i] < 0x20 || s.s[i] == 0x7f ? '?' : s.s[i]);
    putchar('\n');
}

static void print_bytes(uint64_t n) {
    char size[SIZE_TEXT];
    printf("%s", size_text(n, size));
}

static int print_text(const gguf *g, const char *file, const summary *s) {
    gguf_str path = {file, strlen(file)};
    bool tools;
    print_str("model", path);
    if (s->arch.n) print_str("architecture", s->arch);
    if (s->name.n) print_str("name", s->name);
    printf("%-14s GGUF %u, ", "file", gguf_version(g));
    print_bytes(gguf_file_bytes(g));
    putchar('\n');
    if (s->context) printf("%-14s %llu\n", "context", (unsigned long long)s->context);
    if (s->tok_model.n) print_str("tokenizer", s->tok_model);
    if (s->tok_pre.n) print_str("pre-tokenizer", s->tok_pre);
    if (s->n_tokens) printf("%-14s %llu\n", "vocabulary", (unsigned long long)s->n_tokens);
    printf("%-14s %s\n", "chat template",
           !s->template.n ? "no" : !template_usable(s, &tools) ? "yes, but it cannot be used" : tools ? "yes, takes tools" : "yes, takes no tools");
    printf("%-14s %llu\n", "parameters", (unsigned long long)s->n_params);
    printf("%-14s %zu, ", "tensors", gguf_n_tensors(g));
    print_bytes(s->tensor_bytes);
    putchar('\n');
    for (uint32_t id = 0; id < TYPE_IDS; id++) {
        if (!s->count[id]) continue;
        printf("  %-12s %6llu  ", tensor_type_get(id)->name, (unsigned long long)s->count[id]);
        print_bytes(s->bytes[id]);
        putchar('\n');
    }
    printf("keys\n");
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        char text[120];
        gguf_str k = gguf_key(g, i);
        gguf_key_text(g, i, text, sizeof text);
        printf("  ");
        for (size_t c = 0; c < k.n && c < 200; c++) putchar((unsigned char)k.s[c] < 0x20 ? '?' : k.s[c]);
        printf(" = %s\n", text);
    }
    return 0;
}

int cmd_inspect(int argc, char **argv) {
    static const char usage[] = "heddle inspect MODEL [--json]";
    const char *file = NULL;
    bool json = false;
    size_t n_args;
    summary s;
    gguf *g;
    hd_err err;
    const opt_def defs[] = {{"--json", OPT_FLAG, &json, NULL}};
    int rc = opts_parse(argc, argv, defs, 1, &file, 1, &n_args, usage);
    if (rc) return rc;
    if (!n_args) {
        fprintf(stderr, "heddle: inspect needs a MODEL\nusage: %s\n", usage);
        return EXIT_USAGE;
    }
    if (!strncmp(file, "script:", 7)) {
        fprintf(stderr, "heddle: inspect reads GGUF files; a scripted model holds nothing but its script\n");
        return EXIT_FAILED;
    }
    if (gguf_open(&g, file, &err)) {
        fprintf(stderr, "heddle: %s\n", err.msg);
        return EXIT_FAILED;
    }
    summarise(g, &s);
    rc = json ? print_json(g, file, &s) : print_text(g, file, &s);
    gguf_close(g);
    if (fflush(stdout)) {
        fprintf(stderr, "heddle: cannot write the reply\n");
        rc = EXIT_FAILED;
    }
    return rc;
}
