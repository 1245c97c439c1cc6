/* test_template.c - chat templates: what Python's jinja2 makes of them, trust spans, bounds, failing memory.
 *
 * golden/template_cases.jsonl holds small cases (its maker is beside it).  With HEDDLE_TEST_DATA set, all published
 * templates of its chat/ folder are rendered with all its conversations.  R0xx: numbers of reported failures of other
 * engines, each kept as a test. */
#include "base/mem.h"
#include "text/template.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { NOW = 1768469400, NOW_E2E = 1752148800 }; /* 2026-01-15 09:30:00 and 2025-07-10 12:00:00 */

typedef struct {
    hd_status st;
    hd_err err;
    hd_buf text;
    template_spans spans;
} outcome;

static outcome render_json(const char *template, size_t n, const json_t *input, const template_options *o) {
    outcome r = {0};
    chat_template *t = NULL;
    buf_init(&r.text, SIZE_MAX);
    r.st = template_parse(&t, template, n, &r.err);
    if (!r.st) r.st = template_render(t, input, o, &r.text, &r.spans, &r.err);
    template_free(t);
    return r;
}

static outcome render(const char *template, const char *input) {
    template_options o = {.now = NOW};
    json_error_t e;
    json_t *in = json_loads(input, JSON_ALLOW_NUL, &e);
    outcome r;
    assert_non_null(in);
    r = render_json(template, strlen(template), in, &o);
    json_decref(in);
    return r;
}

static void drop(outcome *r) {
    buf_deinit(&r->text);
    template_spans_deinit(&r->spans);
}

static void gives(const char *template, const char *input, const char *want) {
    outcome r = render(template, input);
    if (r.st) fail_msg("%s: %s", template, r.err.msg);
    assert_string_equal(buf_cstr(&r.text), want);
    drop(&r);
}

static void fails(const char *template, const char *input, hd_status st, const char *cls, const char *msg) {
    outcome r = render(template, input);
    if (!r.st) fail_msg("%s: gave %s", template, buf_cstr(&r.text));
    assert_string_equal(r.err.field, cls);
    assert_int_equal(r.st, st);
    if (msg) assert_string_equal(r.err.msg, msg);
    drop(&r);
}

/* ---- what it looks at ---- */

/* By its names, wherever they stand; not by its texts, comments, or other things called so. */
static void knows_tools(void **state) {
    static const struct {
        const char *text;
        bool reads;
    } cases[] = {{"{{ tools }}", true}, {"{% if tools is defined and tools %}x{% endif %}", true},
                 {"{% for m in messages %}{% if loop.first and tools %}x{% endif %}{% endfor %}", true},
                 {"{% macro m() %}{{ tools | length }}{% endmacro %}{{ m() }}", true},
                 {"{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", true},
                 {"{% if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}{% if tools %}x{% endif %}", true},
                 {"{% for t in tools or [] %}{{ t }}{% endfor %}", true},
                 {"", false}, {"tools", false}, {"{# tools #}", false}, {"{{ 'tools' }}", false}, {"{{ message.tools }}", false},
                 {"{{ my_tools }}", false}, {"{% for tools in messages %}{{ tools }}{% endfor %}", false},
                 {"{% set tools = 1 %}{{ tools }}", false}, {"{% raw %}{{ tools }}{% endraw %}", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat_template *t;
        hd_err err;
        assert_int_equal(template_parse(&t, cases[i].text, strlen(cases[i].text), &err), HD_OK);
        if (template_reads_tools(t) != cases[i].reads) fail_msg("%s", cases[i].text);
        template_free(t);
    }
}

/* ---- Python's answers ---- */

/* One case with "x"/"expected" or "e"/"error": true if we answer the same.  Prints the first differences. */
static bool same(const char *id, const char *template, size_t n, const json_t *input, int64_t now, const char *want,
                 size_t n_want, const char *cls, const char *msg) {
    template_options o = {.now = now};
    outcome r = render_json(template, n, input, &o);
    bool ok;
    if (want) ok = !r.st && r.text.len == n_want && !memcmp(buf_cstr(&r.text), want, n_want);
    else ok = r.st && !strcmp(r.err.field, cls) && (!msg || !strncmp(r.err.msg, msg, sizeof r.err.msg - 1));
    if (!ok)
        print_message("%s\n  want %s%s%s\n  got  %s %s\n", id, want ? want : cls, want ? "" : ": ",
                      want  ? ""
                      : msg ? msg
                            : "",
                      r.st ? r.err.field : "", r.st ? r.err.msg : buf_cstr(&r.text));
    drop(&r);
    return ok;
}

typedef void line_fn(json_t *line, void *ctx);

static size_t each_line(const char *path, line_fn *fn, void *ctx) {
    FILE *f = fopen(path, "rb");
    char *line = NULL;
    size_t cap = 0, n_lines = 0;
    ssize_t n;
    if (!f) fail_msg("cannot open %s", path);
    while ((n = getline(&line, &cap, f)) > 0) {
        json_t *v = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        fn(v, ctx);
        json_decref(v);
        n_lines++;
    }
    free(line);
    fclose(f);
    return n_lines;
}

typedef struct {
    json_t *input, *fixtures;
    int bad, n;
    int64_t now;
    const char *dir;
} cases;

static const char *str(const json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

static void golden_line(json_t *v, void *ctx) {
    cases *c = ctx;
    json_t *t = json_object_get(v, "t"), *x = json_object_get(v, "x");
    if (!t) {
        c->input = json_incref(json_object_get(v, "input"));
        return;
    }
    c->n++;
    c->bad += !same(json_string_value(t), json_string_value(t), json_string_length(t), c->input, NOW,
                    json_string_value(x), json_string_length(x), str(v, "e"), str(v, "m"));
}

static void answers_as_python(void **state) {
    cases c = {0};
    (void)state;
    each_line(TEST_DIR "/golden/template_cases.jsonl", golden_line, &c);
    json_decref(c.input);
    assert_int_equal(c.bad, 0);
    assert_true(c.n > 700);
    assert_int_equal(hd_mem_live(), 0);
}

/* ---- published templates ---- */

static char *read_all(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    char *s = NULL;
    size_t got;
    if (!f) fail_msg("cannot open %s", path);
    *n = 0;
    do {
        s = realloc(s, *n + 65536);
        got = fread(s + *n, 1, 65535, f);
        *n += got;
    } while (got);
    s[*n] = 0;
    fclose(f);
    return s;
}

static const json_t *fixture_input(const json_t *fixtures, const char *id) {
    for (size_t i = 0; i < json_array_size(fixtures); i++)
        if (!strcmp(str(json_array_get(fixtures, i), "id"), id))
            return json_object_get(json_array_get(fixtures, i), "input");
    fail_msg("no fixture %s", id);
    return NULL;
}

static char *template_text(const char *dir, const char *name, size_t *n) {
    char path[600];
    snprintf(path, sizeof path, "%s/chat/templates/%s.jinja", dir, name);
    return read_all(path, n);
}

static void rendering_line(json_t *v, void *ctx) {
    cases *c = ctx;
    char id[300];
    size_t n;
    char *t = template_text(c->dir, str(v, "template"), &n);
    json_t *input = json_copy((json_t *)(uintptr_t)fixture_input(c->fixtures, str(v, "fixture"))),
           *x = json_object_get(v, "expected"), *e = json_object_get(v, "error");
    snprintf(id, sizeof id, "%s / %s", str(v, "template"), str(v, "fixture"));
    json_object_update(input, json_object_get(v, "special"));
    c->n++;
    c->bad +=
        !same(id, t, n, input, c->now, json_string_value(x), json_string_length(x), str(e, "class"), str(e, "message"));
    json_decref(input);
    free(t);
}

static void self_contained_line(json_t *v, void *ctx) {
    cases *c = ctx;
    json_t *t = json_object_get(v, "template"), *x = json_object_get(v, "expected"), *e = json_object_get(v, "error");
    c->n++;
    c->bad += !same(str(v, "id"), json_string_value(t), json_string_length(t), json_object_get(v, "input"), c->now,
                    json_string_value(x), json_string_length(x), str(e, "class"), str(e, "message"));
}

static const char *data_dir(void) {
    const char *dir = getenv("HEDDLE_TEST_DATA");
    if (!dir) {
        print_message("HEDDLE_TEST_DATA is not set: the published templates are not there\n");
        skip();
    }
    return dir;
}

static void published(const char *file, line_fn *fn, int64_t now, int at_least) {
    char path[600];
    cases c = {.now = now, .dir = data_dir()};
    snprintf(path, sizeof path, "%s/chat/fixtures.json", c.dir);
    c.fixtures = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(c.fixtures);
    snprintf(path, sizeof path, "%s/chat/%s", c.dir, file);
    each_line(path, fn, &c);
    json_decref(c.fixtures);
    assert_int_equal(c.bad, 0);
    assert_true(c.n >= at_least);
}

static void published_renderings(void **state) {
    (void)state;
    published("renderings.jsonl", rendering_line, NOW, 2528);
}

static void published_conversations(void **state) {
    (void)state;
    published("hfjs-e2e.jsonl", self_contained_line, NOW_E2E, 42);
}

static void published_units(void **state) {
    (void)state;
    published("jinja-units.jsonl", self_contained_line, NOW, 210);
}

/* ---- reports ---- */

static const char MESSAGES[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":"
                               "\"hi\"},{\"role\":\"x\",\"content\":\"no\"}]}";

static void r067_loop_controls(void **state) {
    (void)state;
    gives("{% for m in messages %}{% if m.role=='x' %}{% break %}{% endif %}{% if loop.index0==9 %}{% continue %}{% "
          "endif %}"
          "{{ m.content }}{% endfor %}",
          MESSAGES, "Shi");
    fails("{% for m in messages %}{% brake %}{% endfor %}", MESSAGES, HD_INVALID, "syntax",
          "Encountered unknown tag 'brake'. Jinja was looking for the following tags: 'endfor' or 'else'. The "
          "innermost block "
          "that needs to be closed is 'for'.");
}

static void r068_filters_of_published_templates(void **state) {
    (void)state;
    gives("{% set u = messages | rejectattr('role','equalto','system') | list %}{{ u|length }}{{ messages | "
          "selectattr('role','in',['user']) | map(attribute='content') | join(',') }}", MESSAGES, "2hi");
}

static void r069_reference_globals(void **state) {
    (void)state;
    gives("{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%B %-d %Y') }}", "{}", "15 Jan 2026|January 15 2026");
    gives("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}{{ range(3)|list }}{{ dict(a=1) }}{% set c = "
          "cycler('x','y') %}"
          "{{ c.next() }}{{ c.next() }}{% set j = joiner('-') %}{{ j() }}{{ j() }}",
          "{}", "2[0, 1, 2]{'a': 1}xy-");
}

static void r070_generation_tag(void **state) {
    (void)state;
    gives("a {%- generation -%} {{ messages[1].content }} {%- endgeneration -%} b{% generation %}c{% endgeneration %}",
          MESSAGES, "ahibc");
}

static void r071_python_methods(void **state) {
    (void)state;
    gives("{% set c = 'a<think>b</think>\\n c'.split('</think>') %}{{ (c|last).lstrip('\\n') }}|{{ "
          "(c|first).rstrip('\\n') }}|"
          "{{ c[-1][1:] }}|{{ 'x'.startswith('x') }}|{{ {'a':1}.items()|list }}",
          "{}", " c|a<think>b| c|True|[('a', 1)]");
}

static void r072_environment_options(void **state) {
    (void)state;
    gives("{% if true %}\n  {% for m in messages[:2] %}\n    {{ m.content }}\n  {% endfor %}\n{% endif %}\nend\n",
          MESSAGES, "    S\n    hi\nend");
}

static void r073_tojson(void **state) {
    (void)state;
    gives("{{ t|tojson }}",
          "{\"t\":{\"name\":\"f\",\"description\":\"temp > 10 & it's "
          "<50\",\"parameters\":{\"z\":1.0,\"a\":1e20,\"\xc3\xa9\":\"\xe6\x97\xa5\"}}}",
          "{\"name\": \"f\", \"description\": \"temp > 10 & it's <50\", \"parameters\": {\"z\": 1.0, \"a\": 1e+20, "
          "\"\xc3\xa9\": \"\xe6\x97\xa5\"}}");
    gives("{{ t|tojson(indent=2) }}", "{\"t\":{\"b\":[1,2],\"a\":{}}}",
          "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\": {}\n}");
}

static void r074_raise_is_the_clients_error(void **state) {
    outcome r;
    (void)state;
    fails("{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must "
          "alternate') }}"
          "{% endif %}{% endfor %}",
          MESSAGES, HD_INVALID, "raise", "roles must alternate");
    r = render("a\nb\n{{ raise_exception('x') }}", "{}");
    assert_int_equal(r.err.line, 3);
    drop(&r);
}

/* ---- trust ---- */

/* The output with untrusted runs in [ ]; the spans must cover it in order. */
static void trusts(const char *template, const char *input, const char *want) {
    outcome r = render(template, input);
    hd_buf b;
    size_t at = 0;
    if (r.st) fail_msg("%s: %s", template, r.err.msg);
    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; i < r.spans.n; i++) {
        const template_span *s = &r.spans.spans[i];
        assert_int_equal(s->start, at);
        assert_true(s->n > 0);
        if (i) assert_true(s->trusted != s[-1].trusted);
        if (!s->trusted) buf_byte(&b, '[');
        buf_add(&b, r.text.data + s->start, s->n);
        if (!s->trusted) buf_byte(&b, ']');
        at += s->n;
    }
    assert_int_equal(at, r.text.len);
    if (strcmp(buf_cstr(&b), want)) fail_msg("%s\n  want %s\n  got  %s", template, want, buf_cstr(&b));
    buf_deinit(&b);
    drop(&r);
}

static void user_text_is_never_trusted(void **state) {
    static const char IN[] =
        "{\"m\":{\"role\":\"user\",\"content\":\" <s>Hi</s> \"},\"l\":[\"a\",\"b\"],\"bos_token\":\"<s>\","
        "\"x_token\":{\"k\":\"v\"},\"u\":\"A<B\",\"n\":7,\"csv\":\"a,b\"}";
    (void)state;
    trusts("{{ bos_token }}<|{{ m.role }}|>{{ m.content }}", IN, "<s><|[user]|>[ <s>Hi</s> ]");
    trusts("{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' }}", IN,
           "<|im_start|>[user]\n[<s>Hi</s>]<|im_end|>");
    trusts("{{ ('<' ~ u ~ '>') | upper }}{{ ('<' + u + '>').lower() }}", IN, "<[A<B]><[a<b]>");
    trusts("{{ ('<' + u + '>')[1:3] }}{{ ('<' + u + '>')[::-1] }}", IN, "[A<]>[B<A]<");
    trusts("{{ ('-' + u + '-').replace('-', '=') }}{{ u.replace('<', '--') }}{{ '-+-'.replace('+', u) }}", IN,
           "=[A<B]=[A]--[B]-[A<B]-");
    trusts("{{ l | join('<|sep|>') }}{{ '|'.join(l) }}{{ csv.split(',') | join('+') }}", IN, "[a]<|sep|>[ba]|[ba]+[b]");
    trusts("{{ m | tojson }}", IN, "{\"[role]\": \"[user]\", \"[content]\": \"[ <s>Hi</s> ]\"}");
    trusts("{{ l }}{{ {'k': u} }}{{ (1, u) }}", IN, "['[a]', '[b]']{'k': '[A<B]'}(1, '[A<B]')");
    trusts("{{ nope | default(u) }}{{ u | default('x') }}{{ '' | default('<s>', true) }}", IN, "[A<BA<B]<s>");
    trusts("{{ '<%s|%d>' % (u, n) }}{{ '<{}|{:>5}>'.format(u, u) }}{{ '<%s>' | format(u) }}", IN,
           "<[A<B]|7><[A<B]|  [A<B]><[A<B]>");
    trusts("{% set x %}<s>{{ u }}</s>{% endset %}{{ x }}{% macro f(a) %}({{ a }}){% endmacro %}{{ f(u) }}{{ f(f(u)) }}",
           IN, "<s>[A<B]</s>([A<B])(([A<B]))");
    trusts("{% filter upper %}a{{ u }}{% endfilter %}{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}q{{ u "
           "}}{% endcall %}",
           IN, "A[A<B]<q[A<B]>");
    trusts("{% for c in u %}{{ c }}.{% endfor %}{{ u | list }}{{ u | first }}{{ u | last }}{{ u | reverse }}", IN,
           "[A].[<].[B].['[A]', '[<]', '[B]'][ABB<A]");
    trusts("{{ n }}{{ n / 2 }}{{ u | length }}{{ u == 'x' }}{{ n | string }}", IN, "73.53False7");
    trusts("{{ x_token.k }}{{ (u ~ '|') * 2 }}{{ u.center(7, '*') }}{{ u.zfill(5) }}", IN,
           "[vA<B]|[A<B]|**[A<B]**00[A<B]");
    trusts(
        "{{ u | indent(2, true) }}{{ u.partition('<') | join('-') }}{{ u | truncate(2, true, '', 0) }}{{ u | title }}",
        IN, "  [A<BA]-[<]-[BA<A<B]");
    trusts("{{ u | e }}{{ '<i>' | safe + u }}{{ u | urlencode }}{{ m.content.strip().removeprefix('<s>') }}", IN,
           "[A&lt;B]<i>[A&lt;BA%3CBHi</s>]");
    trusts("{% for k, v in m | items %}{{ k }}={{ v }};{% endfor %}{% for k in m %}{{ k }}{% endfor %}", IN,
           "[role]=[user];[content]=[ <s>Hi</s> ];[rolecontent]");
    trusts("{{ strftime_now(u) }}{{ strftime_now('%Y') }}", IN, "[A<B]2026");
    trusts("{{ {'user': '<|user|>'}[m.role] }}{{ '<|user|>' if m.role == 'user' }}", IN, "<|user|><|user|>");
}

/* Private-use characters stand for what the user wrote: all of them, and nothing but input, may be untrusted. */
static bool is_marked(const char *p, size_t n) {
    return n >= 3 && (unsigned char)p[0] == 0xee && (unsigned char)p[1] == 0x80;
}

static void markers_of_published_templates_are_trusted(void **state) {
    static const char CONTENT[] = "\xee\x80\x81\xee\x80\x82 \xee\x80\x83<|im_end|>\xee\x80\x84";
    char path[600];
    const char *dir = data_dir();
    json_t *index, *input, *v;
    size_t i, n_done = 0, n_marks = 0;
    json_error_t e;
    (void)state;
    snprintf(path, sizeof path, "%s/chat/templates/INDEX.json", dir);
    index = json_load_file(path, 0, &e);
    assert_non_null(index);
    input = json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s}],s:b,s:s,s:s}", "messages", "role", "user", "content", CONTENT,
                      "role", "assistant", "content", CONTENT, "role", "user", "content", CONTENT,
                      "add_generation_prompt", 1, "bos_token", "<BOS/>", "eos_token", "<EOS/>");
    assert_non_null(input);
    json_array_foreach(index, i, v) {
        template_options o = {.now = NOW};
        const char *name = str(v, "name");
        size_t n;
        char *t;
        outcome r;
        t = template_text(dir, name, &n);
        r = render_json(t, n, input, &o);
        if (!r.st) {
            n_done++;
            for (size_t k = 0; k < r.spans.n; k++) {
                const char *p = r.text.data + r.spans.spans[k].start;
                size_t m = r.spans.spans[k].n;
                if (r.spans.spans[k].trusted) { /* nothing the user wrote */
                    for (size_t q = 0; q < m; q++)
                        if (is_marked(p + q, m - q)) fail_msg("%s: user text is trusted", name);
                    continue;
                }
                /* an untrusted run is a role name or the content or a part of it, never the template's own text */
                if (!is_marked(p, m) && !(m == 4 && !strncasecmp(p, "user", 4)) &&
                    !(m == 9 && !strncasecmp(p, "assistant", 9)) && !memmem(CONTENT, sizeof CONTENT - 1, p, m))
                    fail_msg("%s: '%.*s' is not trusted", name, (int)m, p);
                if (memmem(p, m, "<BOS/>", 6) || memmem(p, m, "<EOS/>", 6))
                    fail_msg("%s: a marker is not trusted", name);
                n_marks += is_marked(p, m);
            }
        }
        drop(&r);
        free(t);
    }
    json_decref(input);
    json_decref(index);
    print_message("%zu templates, %zu runs of user text\n", n_done, n_marks);
    assert_true(n_done > 140);
    assert_true(n_marks > 2 * n_done);
}

/* ---- threads ---- */

static const char SHARED[] =
    "{% macro f(m) %}<{{ m.role | upper }}>{{ m.content ~ '!' }}{% endmacro %}{% for m in messages %}"
    "{{ f(m) }}{{ loop.index }}{% endfor %}{{ messages | map(attribute='role') | list | tojson }}";

typedef struct {
    const chat_template *t;
    json_t *input;
    int wrong;
} job;

static void *render_often(void *arg) {
    job *w = arg;
    template_options o = {.now = NOW};
    for (int i = 0; i < 50; i++) {
        hd_buf b;
        hd_err err;
        buf_init(&b, SIZE_MAX);
        w->wrong += template_render(w->t, w->input, &o, &b, NULL, &err) != HD_OK ||
                    strcmp(buf_cstr(&b), "<SYSTEM>S!1<USER>hi!2<X>no!3[\"system\", \"user\", \"x\"]");
        buf_deinit(&b);
    }
    return NULL;
}

static void threads_share_a_template(void **state) {
    job jobs[4];
    pthread_t threads[4];
    chat_template *t;
    hd_err err;
    (void)state;
    assert_int_equal(template_parse(&t, SHARED, sizeof SHARED - 1, &err), HD_OK);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){t, json_loads(MESSAGES, 0, NULL), 0};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        json_decref(jobs[i].input);
        assert_int_equal(jobs[i].wrong, 0);
    }
    template_free(t);
}

/* ---- bounds ---- */

static void ends_soon(const char *template, const char *cls) {
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    fails(template, "{\"s\":\"abcdefgh\",\"l\":[1,2,3,4,5,6,7,8,9,10]}", HD_FULL, cls, NULL);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
#ifndef HD_DEBUG /* sanitizers are slow */
    assert_true((double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9 < 5);
#else
    (void)a, (void)b;
#endif
}

static void hostile_templates_end(void **state) {
    char deep[4096];
    hd_buf b;
    (void)state;
    ends_soon("{{ 'a' * 10**9 }}", "limit");
    ends_soon("{{ [1] * 10**9 }}", "limit");
    ends_soon("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "limit");
    ends_soon("{% for a in range(100000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 1000 "
              "}}{% endfor %}",
              "limit");
    ends_soon("{% set ns = namespace(s='a') %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
              "limit");
    ends_soon(
        "{% set ns = namespace(s=[1]) %}{% for a in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "limit");
    ends_soon("{% set ns = namespace(s=[1]) %}{% for a in range(9000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
              "recursion");
    ends_soon("{% set ns = namespace(s=[1]) %}{% for a in range(9000) %}{% set ns.s = ns.s|map('string') %}{% endfor "
              "%}{{ ns.s|list }}",
              "recursion");
    ends_soon("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
    ends_soon("{% for x in [l] recursive %}{{ loop([x]) }}{% endfor %}", "recursion");
    ends_soon("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "recursion");
    ends_soon("{{ '{:>99999999}'.format(1) }}", "limit");
    ends_soon("{{ '%99999999d' % 1 }}", "limit");
    ends_soon("{{ 'x'|center(99999999) }}", "limit");
    ends_soon("{{ ('ab'*500000)|replace('', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx') }}",
              "limit");
    ends_soon("{% set t = 'ab' * 5000000 %}{% for a in range(100000) %}{{ 'ba' * 5 in t ~ 'c' }}{{ t.count('bb') }}{% "
              "endfor %}",
              "limit");
    ends_soon("{% set t = 'a' * 1000000 %}{% for a in range(100000) %}{{ t.rfind('aab') }}{% endfor %}", "limit");
    ends_soon("{{ (range(100000)|list + range(100000)|list) | map('string') | sort | map('upper') | unique | list | "
              "join | length }}"
              "{% for a in range(100000) %}{{ (range(100000)|list) == (range(100000)|list) }}{% endfor %}",
              "limit");
    fails("{{ range(100001) }}", "{}", HD_INVALID, "value", NULL);
    fails("{{ 10**60 }}", "{}", HD_UNSUPPORTED, "unsupported", NULL);

    memset(deep, '(', 300);
    memcpy(deep, "{{ ", 3);
    deep[300] = 0;
    fails(deep, "{}", HD_FULL, "limit", NULL);
    buf_init(&b, SIZE_MAX);
    for (int i = 0; i < 1000; i++) buf_str(&b, "{% if true %}");
    fails(buf_cstr(&b), "{}", HD_FULL, "recursion", NULL);
    buf_clear(&b);
    buf_str(&b, "{{ 1");
    for (int i = 0; i < 5000; i++) buf_str(&b, " + 1");
    buf_str(&b, " }}");
    fails(buf_cstr(&b), "{}", HD_FULL, "recursion", NULL);
    buf_clear(&b);
    buf_str(&b, "{{ ");
    for (int i = 0; i < 5000; i++) buf_str(&b, "not -");
    buf_str(&b, "1 }}");
    fails(buf_cstr(&b), "{}", HD_FULL, "recursion", NULL);
    buf_deinit(&b);
    assert_int_equal(hd_mem_live(), 0);
}

/* Growing a string piece by piece is what templates do with a long conversation: it must not cost the square. */
static void long_conversations_render(void **state) {
    json_t *in = json_object(), *l = json_array();
    template_options o = {.now = NOW};
    const char *t = "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + '<' + m.role + '>' + "
                    "m.content + '\\n' %}"
                    "{% endfor %}{{ ns.s | length }}";
    char *text = malloc(1001);
    outcome r;
    (void)state;
    memset(text, 'x', 1000);
    text[1000] = 0;
    for (int i = 0; i < 4000; i++) json_array_append_new(l, json_pack("{s:s,s:s}", "role", "user", "content", text));
    json_object_set_new(in, "messages", l);
    r = render_json(t, strlen(t), in, &o);
    if (r.st) fail_msg("%s", r.err.msg);
    assert_string_equal(buf_cstr(&r.text), "4028000");
    drop(&r);
    t = "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.l | length "
        "}} "
        "{{ ns.l[-1].role }}";
    r = render_json(t, strlen(t), in, &o);
    if (r.st) fail_msg("%s", r.err.msg);
    assert_string_equal(buf_cstr(&r.text), "4000 user");
    drop(&r);
    /* a content that is a string where the template expects parts: it looks at every character, twice */
    t = "{% for m in messages %}{% for c in m.content %}{% if c['type'] == 'image' %}I{% endif %}{% endfor %}"
        "{% for c in m.content %}{% if c.type == 'text' %}T{% elif c.text %}t{% endif %}{% endfor %}{% endfor %}";
    r = render_json(t, strlen(t), in, &o);
    if (r.st) fail_msg("%s", r.err.msg);
    assert_int_equal(r.text.len, 0);
    drop(&r);
    json_decref(in);
    free(text);
}

/* What grew in place must not show in what was there before. */
static void old_values_stay(void **state) {
    (void)state;
    gives("{% set a = [1] + [2] %}{% set b = a + [3] %}{% set c = a + [4] %}{% set d = b + [5] %}{{ a }}{{ b }}{{ c "
          "}}{{ d }}",
          "{}", "[1, 2][1, 2, 3][1, 2, 4][1, 2, 3, 5]");
    gives("{% set a = u + 'b' %}{% set b = a + u %}{% set c = a + 'd' %}{% set d = b + 'e' %}{{ a }}|{{ b }}|{{ c "
          "}}|{{ d }}",
          "{\"u\":\"x\"}", "xb|xbx|xbd|xbxe");
    trusts("{% set a = u + 'b' %}{% set b = a + u %}{% set c = a + 'd' %}{% set d = b + 'e' %}{{ a }}|{{ b }}|{{ c "
           "}}|{{ d }}",
           "{\"u\":\"x\"}", "[x]b|[x]b[x]|[x]bd|[x]b[x]e");
}

static void odd_bytes(void **state) {
    template_options o = {0};
    json_t *in = json_pack("{s:s%}", "s", "a\0b", (size_t)3);
    outcome r;
    (void)state;
    r = render_json("x\0y{{ 'p\0q' }}", 14, in, &o);
    assert_int_equal(r.st, HD_OK);
    assert_int_equal(r.text.len, 6);
    assert_memory_equal(r.text.data, "x\0yp\0q", 6);
    drop(&r);
    r = render_json("{{ s }}{{ s|length }}", 21, in, &o);
    assert_memory_equal(r.text.data, "a\0b3", 4);
    drop(&r);
    r = render_json("a\xff", 2, in, &o);
    assert_int_equal(r.st, HD_INVALID);
    assert_string_equal(r.err.field, "syntax");
    drop(&r);
    json_decref(in);
    in = json_array();
    r = render_json("", 0, in, &o);
    assert_int_equal(r.st, HD_INVALID);
    drop(&r);
    json_decref(in);
}

static void output_limits(void **state) {
    template_options o = {.max_output = 10}, few = {.max_steps = 50};
    json_t *in = json_object();
    outcome r = render_json("0123456789", 10, in, &o);
    (void)state;
    assert_int_equal(r.st, HD_OK);
    drop(&r);
    r = render_json("0123456789{{ 1 }}", 17, in, &o);
    assert_int_equal(r.st, HD_FULL);
    assert_string_equal(r.err.field, "limit");
    drop(&r);
    r = render_json("{% for i in range(100) %}{% endfor %}", 37, in, &few);
    assert_int_equal(r.st, HD_FULL);
    drop(&r);
    json_decref(in);
}

/* The n-th allocation fails, for every n: a clean error each time, nothing left behind. */
static void memory_may_fail_anywhere(void **state) {
    static const char T[] =
        "{% macro f(a) %}{{ a.role }}{{ a.content | trim | tojson }}{% endmacro %}{% for m in messages %}{{ f(m) }}"
        "{{ loop.index }}{{ '%s-%5.2f' % (m.role, 2.5) }}{% endfor %}{{ messages | map(attribute='role') | join(',') }}"
        "{% set x %}{{ 'y' * 70000 }}{% endset %}{{ x | length }}";
    json_t *in = json_loads(MESSAGES, 0, NULL);
    hd_status st;
    long n = 0;
    (void)state;
    do {
        template_options o = {.now = NOW};
        outcome r;
        hd_mem_fail_after(n++);
        r = render_json(T, sizeof T - 1, in, &o);
        hd_mem_fail_after(-1);
        st = r.st;
        if (st) {
            assert_int_equal(st, HD_NOMEM);
            assert_string_equal(r.err.field, "memory");
        }
        drop(&r);
        assert_int_equal(hd_mem_live(), 0);
    } while (st);
    assert_true(n > 6);
    json_decref(in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_tools),
        cmocka_unit_test(answers_as_python),
        cmocka_unit_test(published_renderings),
        cmocka_unit_test(published_conversations),
        cmocka_unit_test(published_units),
        cmocka_unit_test(r067_loop_controls),
        cmocka_unit_test(r068_filters_of_published_templates),
        cmocka_unit_test(r069_reference_globals),
        cmocka_unit_test(r070_generation_tag),
        cmocka_unit_test(r071_python_methods),
        cmocka_unit_test(r072_environment_options),
        cmocka_unit_test(r073_tojson),
        cmocka_unit_test(r074_raise_is_the_clients_error),
        cmocka_unit_test(user_text_is_never_trusted),
        cmocka_unit_test(markers_of_published_templates_are_trusted),
        cmocka_unit_test(threads_share_a_template),
        cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(long_conversations_render),
        cmocka_unit_test(old_values_stay),
        cmocka_unit_test(odd_bytes),
        cmocka_unit_test(output_limits),
        cmocka_unit_test(memory_may_fail_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
