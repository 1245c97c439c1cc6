/* template.h - chat templates: a Jinja engine with the semantics of Python's Jinja2 as the transformers library sets
 * it up (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, generation tag, tojson, raise_exception,
 * strftime_now).
 *
 * Bounded: steps, nesting depth and output bytes have limits, so a hostile template ends with an error.  A parsed
 * template is immutable and may be rendered from any thread at once. */
#ifndef HD_TEXT_TEMPLATE_H
#define HD_TEXT_TEMPLATE_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <time.h>

typedef struct chat_template chat_template;

/* Errors of both calls: err->msg in Python's words, err->line the template's line (0: unknown), err->field the class:
 *   HD_INVALID      "raise" (raise_exception: the template refused the conversation; msg is its text), "syntax",
 *                   "undefined", "type", "value", "sandbox", "runtime"; "input": the input is no object
 *   HD_FULL         "limit" (steps, bytes, sizes), "recursion"
 *   HD_UNSUPPORTED  "unsupported": Python would go on, we do not (docs/templates.md)
 *   HD_NOMEM        "memory"
 * text must be UTF-8 of at most 1 MiB; it is not kept.  On error *out is NULL. */
hd_status template_parse(chat_template **out, const char *text, size_t n, hd_err *err);
void template_free(chat_template *t);
/* Whether it looks at the input's variable `tools` anywhere: one that does not can tell the model of none. */
bool template_reads_tools(const chat_template *t);

typedef struct {
    int64_t now;          /* Unix seconds for strftime_now, read as UTC unless local is set */
    bool local;           /* use the machine's time zone */
    size_t max_output;    /* bytes; 0: 16 MiB */
    uint64_t max_steps;   /* 0: 20 million, and 16 for each byte of the input's strings */
} template_options;

/* A run of output bytes and where it came from: template text and literals (trusted) or values out of `input` that
 * user text flowed into (not trusted).  Spans cover the output in order. */
typedef struct {
    size_t start, n;
    bool trusted;
} template_span;
typedef struct {
    template_span *spans;
    size_t n, cap;
} template_spans;
void template_spans_deinit(template_spans *s);

/* Append the text of `input` (a JSON object: messages, tools, add_generation_prompt, bos_token, ...; borrowed) to out,
 * whose own limit counts too, and its spans to *spans (NULL: not wanted; else zeroed or used before, offsets count from
 * where out stood).  Strings of the input are not trusted, except top-level ones whose name ends in "_token".  opt may
 * be NULL.  On error out and spans hold a part of the text and are to be dropped.  Values of one render take at most
 * 64 MiB, the stack at most 1 MiB.  Any thread; one template may be rendered by many at once. */
hd_status template_render(const chat_template *t, const json_t *input, const template_options *opt, hd_buf *out,
                          template_spans *spans, hd_err *err);

#endif
