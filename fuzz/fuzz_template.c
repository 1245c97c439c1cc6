/* fuzz_template.c - chat templates under libFuzzer: parsing and rendering of hostile text must end in time with a
 * status, valid UTF-8, spans that cover the output, and nothing of the input in a trusted span.
 *
 * First byte even: the rest is a template, rendered with a fixed conversation.  Odd: a template, a NUL, and the input as
 * JSON text.  Seeds: any .jinja files with a byte in front; -dict=fuzz/template.dict helps. */
#include "base/jsonw.h"
#include "text/template.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char INPUT[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be \\ue001<b>brief</b>.\"},{\"role\":\"user\",\"content\":\" h\\u00e9l\\ue001lo\\n{{ x }} \"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
    "\"arguments\":{\"a\":1.5,\"b\":[true,null]}}}]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"type\":\"number\"}},\"required\":[\"a\"]}}}],\"bos_token\":\"<s>\",\"n\":3,\"s\":\"A\\ue001 b\",\"l\":[3,1,2],"
    "\"d\":{\"k\":\"v\\ue001\",\"items\":0},\"add_generation_prompt\":true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* own: the template may write U+E001 itself; otherwise that character came from the input and is not trusted. */
static void check(const hd_buf *out, const template_spans *spans, bool own) {
    size_t at = 0;
    uint32_t cp;
    for (size_t i = 0; i < spans->n; i++) {
        const template_span *s = &spans->spans[i];
        if (s->start != at || !s->n) abort();
        if (s->trusted && !own && memchr(out->data + at, 0xee, s->n)) abort();
        at += s->n;
    }
    if (at != out->len) abort();
    for (size_t i = 0; i < out->len;) {
        int n = utf8_next(out->data + i, out->len - i, &cp);
        if (n < 1) abort();
        i += (size_t)n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    template_options o = {.now = 1768469400, .max_output = 1 << 18, .max_steps = 200000};
    const char *text = (const char *)data + 1, *end;
    chat_template *t;
    json_t *input = NULL;
    hd_buf out;
    template_spans spans = {0};
    hd_err err = {0};
    size_t n;
    bool fixed;
    if (!size) return 0;
    n = size - 1;
    if (data[0] & 1 && (end = memchr(text, 0, n))) {
        input = json_loadb(end + 1, n - (size_t)(end + 1 - text), JSON_ALLOW_NUL, NULL);
        n = (size_t)(end - text);
    }
    fixed = !input;
    if (fixed) input = json_loads(INPUT, JSON_ALLOW_NUL, NULL);
    if (template_parse(&t, text, n, &err)) {
        if (t) abort();
        json_decref(input);
        return 0;
    }
    buf_init(&out, SIZE_MAX);
    if (!json_is_object(input)) template_render(t, input, &o, &out, &spans, &err);
    else if (!template_render(t, input, &o, &out, &spans, &err)) check(&out, &spans, fixed ? memchr(text, '\\', n) || memchr(text, 0xee, n) : true);
    buf_deinit(&out);
    template_spans_deinit(&spans);
    template_free(t);
    json_decref(input);
    return 0;
}
