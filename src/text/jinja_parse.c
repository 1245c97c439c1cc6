/* jinja_parse.c - statements: from tokens to the tree that jinja_scope.c and jinja_eval.c walk.
 *
 * Fields: OUTPUT list; DATA value; SET a = target, b = value; SETBLOCK a = target, b = filter or NULL, list = body; FOR
 * a = target, b = iterable, c = filter or NULL, list = body, list2 = else; IF a = test, list = body, list2 = elif
 * nodes, list3 = else; MACRO name, list = body, list2 = parameters, list3 = defaults of the last of them; CALLBLOCK the
 * same with a = the call (NULL: generation block); FILTERBLOCK a = filter, list = body; WITH list2 = targets, list3 =
 * values, list = body; SCOPE, AUTOESCAPE (a = value) and BLOCK (name) list = body.  Grammar: jinja2/parser.py of 3.1.6.
 */
#include "text/jinja_int.h"

#include <stdarg.h>
#include <stdio.h>

static void body(jparser *p, jnodes *out, const char *const *ends);

static const char *const END_FOR[] = {"endfor", NULL}, *const END_FOR_ELSE[] = {"endfor", "else", NULL},
                  *const END_IF[] = {"elif", "else", "endif", NULL}, *const END_ELSE[] = {"endif", NULL},
                  *const END_SET[] = {"endset", NULL}, *const END_MACRO[] = {"endmacro", NULL},
                  *const END_CALL[] = {"endcall", NULL}, *const END_FILTER[] = {"endfilter", NULL},
                  *const END_WITH[] = {"endwith", NULL}, *const END_BLOCK[] = {"endblock", NULL},
                  *const END_AUTOESCAPE[] = {"endautoescape", NULL}, *const END_GENERATION[] = {"endgeneration", NULL};

/* ---- what jinja_expr.c uses too ---- */

void *jparse_alloc(jparser *p, size_t n) {
    void *q = arena_calloc(p->mem, 1, n);
    if (!q)
        jerror_raise(p->e, p->mem->failed == HD_NOMEM ? J_MEMORY : J_LIMIT, p->cur.line,
                     p->mem->failed == HD_NOMEM ? "no memory for the template" : "template too large");
    return q;
}

void jparse_fail(jparser *p, uint32_t line, const char *fmt, ...) {
    char buf[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    jerror_raise(p->e, J_SYNTAX, line, "%s", buf);
}

jnode *jnode_new(jparser *p, jnode_kind kind, uint32_t line) {
    jnode *n = jparse_alloc(p, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

void jnodes_add(jparser *p, jnodes *l, jnode *n) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        jnode **v = jparse_alloc(p, cap * sizeof *v);
        if (l->n) memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

void jparse_advance(jparser *p) {
    if (p->have_peek) {
        p->cur = p->peek;
        p->have_peek = false;
    } else {
        jlex_next(&p->lex, &p->cur);
    }
}

const jtok *jparse_look(jparser *p) {
    if (!p->have_peek) jlex_next(&p->lex, &p->peek);
    p->have_peek = true;
    return &p->peek;
}

bool jparse_is(const jparser *p, const char *name) {
    return p->cur.kind == T_NAME && jstr_is(&p->cur.name->s, name);
}

bool jparse_skip(jparser *p, const char *name) {
    if (!jparse_is(p, name)) return false;
    jparse_advance(p);
    return true;
}

static void expected(jparser *p, const char *what) {
    char buf[80];
    if (p->cur.kind == T_EOF) jparse_fail(p, p->cur.line, "unexpected end of template, expected '%s'.", what);
    jparse_fail(p, p->cur.line, "expected token '%s', got '%s'", what, jtok_name(&p->cur, buf, sizeof buf));
}

void jparse_expect(jparser *p, jtok_kind k) {
    if (p->cur.kind != k) expected(p, jtok_kind_name(k));
    jparse_advance(p);
}

static void expect_name(jparser *p, const char *name) {
    if (!jparse_skip(p, name)) expected(p, name);
}

void jparse_enter(jparser *p) {
    if (++p->nest > JINJA_MAX_NEST)
        jerror_raise(p->e, J_RECURSION, p->cur.line, "template nested deeper than %d", JINJA_MAX_NEST);
}

void jparse_leave(jparser *p) {
    p->nest--;
}

/* ---- errors about missing and unknown tags ---- */

/* "'elif' or 'else' or 'endif'" */
static void ends_text(const char *const *ends, char *dst, size_t n) {
    size_t k = 0;
    dst[0] = 0;
    for (size_t i = 0; ends[i] && k < n; i++)
        k += (size_t)snprintf(dst + k, n - k, "%s'%s'", i ? " or " : "", ends[i]);
}

static _Noreturn void fail_tag(jparser *p, const char *name, uint32_t line) {
    char head[120] = "Unexpected end of template.", want[120], middle[200] = "", tail[120] = "";
    bool known = false;
    if (name) snprintf(head, sizeof head, "Encountered unknown tag '%.80s'.", name);
    for (size_t i = 0; name && i < p->n_ends; i++)
        for (size_t k = 0; p->ends[i][k]; k++) known |= !strcmp(p->ends[i][k], name);
    if (p->n_ends) {
        ends_text(p->ends[p->n_ends - 1], want, sizeof want);
        snprintf(middle, sizeof middle,
                 known ? " You probably made a nesting mistake. Jinja is expecting this tag, but "
                         "currently looking for %s."
                       : " Jinja was looking for the following tags: %s.",
                 want);
    }
    if (p->n_tags)
        snprintf(tail, sizeof tail, " The innermost block that needs to be closed is '%.60s'.", p->tags[p->n_tags - 1]);
    jparse_fail(p, line, "%s%s%s", head, middle, tail);
}

/* ---- statements ---- */

/* Body of a block statement; the current token is then the end tag's name. */
static void statements(jparser *p, jnodes *out, const char *const *ends) {
    if (p->cur.kind == T_COLON) jparse_advance(p);
    jparse_expect(p, T_BLOCK_END);
    body(p, out, ends);
    if (p->cur.kind == T_EOF) {
        p->ends[p->n_ends++] = ends;
        fail_tag(p, NULL, p->cur.line);
    }
}

static void statements_to(jparser *p, jnodes *out, const char *const *ends) {
    statements(p, out, ends);
    jparse_advance(p);
}

static jnode *set(jparser *p, uint32_t line) {
    jnode *target = jexpr_target(p, false, true), *n;
    if (p->cur.kind == T_ASSIGN) {
        jparse_advance(p);
        n = jnode_new(p, N_SET, line);
        n->a = target;
        n->b = jexpr_tuple(p, true, false);
        return n;
    }
    n = jnode_new(p, N_SETBLOCK, line);
    n->a = target;
    n->b = jexpr_filter(p, NULL, false);
    statements_to(p, &n->list, END_SET);
    return n;
}

static jnode *loop(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_FOR, line);
    n->a = jexpr_target(p, false, false);
    expect_name(p, "in");
    n->b = jexpr_tuple(p, false, false);
    if (jparse_skip(p, "if")) n->c = jexpr_parse(p, true);
    n->flag = jparse_skip(p, "recursive");
    statements(p, &n->list, END_FOR_ELSE);
    if (jparse_skip(p, "endfor")) return n;
    jparse_advance(p);
    statements_to(p, &n->list2, END_FOR);
    return n;
}

static jnode *condition(jparser *p, uint32_t line) {
    jnode *result = jnode_new(p, N_IF, line), *n = result;
    for (;;) {
        n->a = jexpr_tuple(p, false, false);
        statements(p, &n->list, END_IF);
        if (jparse_skip(p, "elif")) {
            n = jnode_new(p, N_IF, p->cur.line);
            jnodes_add(p, &result->list2, n);
            continue;
        }
        if (jparse_skip(p, "else")) {
            statements_to(p, &result->list3, END_ELSE);
        } else {
            jparse_advance(p);
        }
        return result;
    }
}

static void signature(jparser *p, jnode *n) {
    jparse_expect(p, T_LPAREN);
    while (p->cur.kind != T_RPAREN) {
        jnode *arg;
        if (n->list2.n) jparse_expect(p, T_COMMA);
        arg = jexpr_target(p, true, false);
        arg->ctx = CTX_PARAM;
        if (p->cur.kind == T_ASSIGN) {
            jparse_advance(p);
            jnodes_add(p, &n->list3, jexpr_parse(p, true));
        } else if (n->list3.n) {
            jparse_fail(p, p->cur.line, "non-default argument follows default argument");
        }
        if (n->list2.n >= 64) jerror_raise(p->e, J_LIMIT, arg->line, "more than 64 parameters");
        for (size_t i = 0; i < n->list2.n; i++)
            if (n->list2.v[i]->name == arg->name)
                jparse_fail(p, arg->line, "duplicate argument '%.*s' in function definition", (int)arg->name->s.n,
                            arg->name->s.p);
        jnodes_add(p, &n->list2, arg);
    }
    jparse_expect(p, T_RPAREN);
}

static jnode *macro(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_MACRO, line);
    n->name = jexpr_target(p, true, false)->name;
    signature(p, n);
    statements_to(p, &n->list, END_MACRO);
    return n;
}

static jnode *call_block(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_CALLBLOCK, line);
    if (p->cur.kind == T_LPAREN) signature(p, n);
    n->a = jexpr_parse(p, true);
    if (n->a->kind != N_CALL) jparse_fail(p, line, "expected call");
    statements_to(p, &n->list, END_CALL);
    return n;
}

static jnode *generation(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_CALLBLOCK, line);
    statements_to(p, &n->list, END_GENERATION);
    return n;
}

static jnode *filter_block(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_FILTERBLOCK, line);
    n->a = jexpr_filter(p, NULL, true);
    statements_to(p, &n->list, END_FILTER);
    return n;
}

static jnode *with(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_WITH, line);
    while (p->cur.kind != T_BLOCK_END) {
        jnode *t;
        if (n->list2.n) jparse_expect(p, T_COMMA);
        t = jexpr_target(p, false, false);
        if (t->kind == N_NAME) t->ctx = CTX_PARAM;
        for (size_t i = 0; t->kind == N_TUPLE && i < t->list.n; i++)
            if (t->list.v[i]->kind == N_NAME) t->list.v[i]->ctx = CTX_PARAM;
        jnodes_add(p, &n->list2, t);
        jparse_expect(p, T_ASSIGN);
        jnodes_add(p, &n->list3, jexpr_parse(p, true));
    }
    statements_to(p, &n->list, END_WITH);
    return n;
}

static jnode *autoescape(jparser *p, uint32_t line) {
    jnode *scope = jnode_new(p, N_SCOPE, line), *n = jnode_new(p, N_AUTOESCAPE, line);
    n->a = jexpr_parse(p, true);
    statements_to(p, &n->list, END_AUTOESCAPE);
    jnodes_add(p, &scope->list, n);
    return scope;
}

static jnode *block(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_BLOCK, line);
    n->name = p->cur.name;
    jparse_expect(p, T_NAME);
    n->flag = jparse_skip(p, "scoped");
    if (jparse_skip(p, "required")) jerror_raise(p->e, J_UNSUPPORTED, line, "required blocks are not supported");
    if (p->cur.kind == T_SUB)
        jparse_fail(p, p->cur.line, "Block names in Jinja have to be valid Python identifiers and may not contain "
                                    "hyphens, use an underscore instead.");
    statements_to(p, &n->list, END_BLOCK);
    if (p->cur.kind == T_NAME && p->cur.name == n->name) jparse_advance(p);
    return n;
}

static jnode *print(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_OUTPUT, line);
    while (p->cur.kind != T_BLOCK_END) {
        if (n->list.n) jparse_expect(p, T_COMMA);
        jnodes_add(p, &n->list, jexpr_parse(p, true));
    }
    return n;
}

/* extends, include, import, from: parsed loosely, they fail when reached because there is no loader. */
static jnode *loader(jparser *p, uint32_t line) {
    jnode *n = jnode_new(p, N_LOADER, line);
    n->a = jexpr_parse(p, true);
    while (p->cur.kind != T_BLOCK_END && p->cur.kind != T_EOF) jparse_advance(p);
    return n;
}

static jnode *break_(jparser *p, uint32_t line) {
    return jnode_new(p, N_BREAK, line);
}

static jnode *continue_(jparser *p, uint32_t line) {
    return jnode_new(p, N_CONTINUE, line);
}

static const struct {
    const char *tag;
    jnode *(*parse)(jparser *p, uint32_t line);
} STATEMENTS[] = {{"for", loop}, {"if", condition}, {"set", set}, {"macro", macro}, {"call", call_block},
                  {"filter", filter_block}, {"with", with}, {"autoescape", autoescape}, {"block", block},
                  {"print", print}, {"break", break_}, {"continue", continue_}, {"generation", generation},
                  {"extends", loader}, {"include", loader}, {"import", loader}, {"from", loader}};

static jnode *statement(jparser *p) {
    uint32_t line = p->cur.line;
    char buf[100];
    if (p->cur.kind != T_NAME) jparse_fail(p, line, "tag name expected");
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof *STATEMENTS; i++) {
        jnode *n;
        if (!jparse_is(p, STATEMENTS[i].tag)) continue;
        jparse_enter(p);
        p->tags[p->n_tags++] = STATEMENTS[i].tag;
        jparse_advance(p);
        n = STATEMENTS[i].parse(p, line);
        p->n_tags--;
        jparse_leave(p);
        return n;
    }
    fail_tag(p, jtok_name(&p->cur, buf, sizeof buf), line);
}

static bool at_end(const jparser *p, const char *const *ends) {
    for (size_t i = 0; ends && ends[i]; i++)
        if (jparse_is(p, ends[i])) return true;
    return false;
}

static void body(jparser *p, jnodes *out, const char *const *ends) {
    jnode *output = NULL, *n;
    if (ends) p->ends[p->n_ends++] = ends;
    while (p->cur.kind != T_EOF) {
        switch (p->cur.kind) {
        case T_DATA:
            n = jnode_new(p, N_DATA, p->cur.line);
            {
                jstr *s = jparse_alloc(p, sizeof *s);
                jstr_init(s, p->cur.p, p->cur.n);
                n->value = jstring(s);
            }
            if (!output) jnodes_add(p, out, output = jnode_new(p, N_OUTPUT, n->line));
            jnodes_add(p, &output->list, n);
            jparse_advance(p);
            break;
        case T_VAR_BEGIN:
            jparse_advance(p);
            n = jexpr_tuple(p, true, false);
            if (!output) jnodes_add(p, out, output = jnode_new(p, N_OUTPUT, n->line));
            jnodes_add(p, &output->list, n);
            jparse_expect(p, T_VAR_END);
            break;
        default: /* T_BLOCK_BEGIN */
            output = NULL;
            jparse_advance(p);
            if (at_end(p, ends)) goto done;
            jnodes_add(p, out, statement(p));
            jparse_expect(p, T_BLOCK_END);
        }
    }
done:
    if (ends) p->n_ends--;
}

void jparse_template(chat_template *t, jerror *e, const char *text, size_t n) {
    jparser *p = arena_calloc(&t->mem, 1, sizeof *p);
    if (!p) jerror_raise(e, t->mem.failed == HD_NOMEM ? J_MEMORY : J_LIMIT, 0, "no memory for the template");
    p->e = e;
    p->mem = &t->mem;
    jlex_init(&p->lex, e, &t->mem, text, n);
    t->lex = &p->lex;
    jparse_advance(p);
    body(p, &t->body, NULL);
}
