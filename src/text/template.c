/* template.c - the public calls of the template engine, and the one place where errors land. */
#include "text/jinja_int.h"

#include "base/jsonw.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *name;
    hd_status code;
} CLASSES[] = {
#define X(id, name, code) {name, code},
    JINJA_CLASSES(X)
#undef X
};

/* Cut a message that does not fit at a character's border. */
static void whole_characters(char *s, size_t cap) {
    size_t n = strlen(s), k = n;
    if (n + 1 < cap) return;
    while (k && ((unsigned char)s[k - 1] & 0xc0) == 0x80) k--;
    if (k && k - 1 + jutf8_len((unsigned char)s[k - 1]) > n) s[k - 1] = 0;
}

__attribute__((format(printf, 4, 0))) static void fill_error(jerror *e, jclass cls, uint32_t line, const char *fmt,
                                                             va_list ap) {
    char msg[sizeof ((hd_err *)0)->msg];
    vsnprintf(msg, sizeof msg, fmt, ap);
    whole_characters(msg, sizeof msg);
    hd_fail_field(e->err, CLASSES[cls].code, CLASSES[cls].name, "%s", msg);
    e->err->line = line ? line : e->line;
}

void jerror_raise(jerror *e, jclass cls, uint32_t line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill_error(e, cls, line, fmt, ap);
    va_end(ap);
    longjmp(e->jump, 1);
}

void jfail(jinja *j, jclass cls, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fill_error(&j->e, cls, 0, fmt, ap);
    va_end(ap);
    longjmp(j->e.jump, 1);
}

hd_status template_parse(chat_template **out, const char *text, size_t n, hd_err *err) {
    hd_err own;
    jerror e = {.err = err ? err : &own};
    chat_template *volatile t;
    *out = NULL;
    if (!(t = hd_calloc(1, sizeof *t))) return hd_fail_field(err, HD_NOMEM, "memory", "no memory for the template");
    arena_init(&t->mem, JINJA_MAX_PARSED);
    if (setjmp(e.jump)) {
        template_free(t);
        return e.err->code;
    }
    jparse_template(t, &e, text, n);
    jscope_resolve(t, &e);
    t->lex = NULL;
    *out = t;
    return HD_OK;
}

void template_free(chat_template *t) {
    if (!t) return;
    arena_deinit(&t->mem);
    hd_free(t);
}

bool template_reads_tools(const chat_template *t) { return t->reads_tools; }

void template_spans_deinit(template_spans *s) {
    hd_free(s->spans);
    *s = (template_spans){0};
}

static bool span_add(template_spans *s, size_t start, size_t end, bool trusted) {
    if (start == end) return true;
    if (!hd_grow(&s->spans, &s->cap, s->n + 1, sizeof *s->spans, SIZE_MAX / sizeof *s->spans)) return false;
    s->spans[s->n++] = (template_span){start, end - start, trusted};
    return true;
}

/* The runs of trusted and untrusted bytes, covering the output. */
static bool spans_write(template_spans *s, const jsb *b) {
    size_t at = 0;
    for (size_t i = 0; i < b->n_spans; i++) {
        if (!span_add(s, at, b->spans[i].a, true) || !span_add(s, b->spans[i].a, b->spans[i].b, false)) return false;
        at = b->spans[i].b;
    }
    return span_add(s, at, b->n, true);
}

/* A function of its own, so that nothing the caller keeps in registers lives across setjmp. */
__attribute__((noinline)) static hd_status guarded_run(jinja *j, template_spans *spans) {
    if (setjmp(j->e.jump)) return j->e.err->code;
    j->inputs = jdict_new(j);
    jrun(j);
    if (spans && !spans_write(spans, &j->root))
        return hd_fail_field(j->e.err, HD_NOMEM, "memory", "no memory for the spans");
    return HD_OK;
}

hd_status template_render(const chat_template *t, const json_t *input, const template_options *opt, hd_buf *out,
                          template_spans *spans, hd_err *err) {
    static const template_options DEFAULTS = {0};
    hd_err own;
    jinja *j;
    hd_status st;
    size_t max;
    if (!opt) opt = &DEFAULTS;
    if (!json_is_object(input))
        return hd_fail_field(err, HD_INVALID, "input", "the template's input is not a JSON object");
    if (!(j = hd_calloc(1, sizeof *j)))
        return hd_fail_field(err, HD_NOMEM, "memory", "no memory to render the template");
    max = opt->max_output ? opt->max_output : JINJA_MAX_OUTPUT;
    j->e.err = err ? err : &own;
    j->t = t;
    j->input = input;
    j->opt = opt;
    j->out = out;
    j->root.root = true;
    j->root.cap = max < UINT32_MAX / 4 ? max : UINT32_MAX / 4;
    j->sink = &j->root;
    j->steps = opt->max_steps ? opt->max_steps : JINJA_MAX_STEPS;
    arena_init(&j->mem, JINJA_MAX_MEMORY);
    st = guarded_run(j, spans);
    arena_deinit(&j->mem);
    hd_free(j);
    return st;
}
