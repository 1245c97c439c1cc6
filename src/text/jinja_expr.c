/* jinja_expr.c - the grammar of expressions, from tokens to nodes (jinja2/parser.py of Jinja2 3.1.6).
 *
 * Weakest first: x if c else y · or · and · not · comparisons and in · + - · ~ · * / // % · ** · unary · postfix
 * (.name [item] call) · |filter and `is` tests.  Fields: binary a, b; COND a = test, b = then, c = else or NULL;
 * COMPARE a, list with ops; CALL a = callee, list = args, list2 = keyword values with kw, b = *args, c = **kwargs;
 * FILTER and TEST the same with a = subject (NULL: the body of a filter block); SLICE a, b, c; DICT list = keys, list2
 * = values. */
#include "text/jinja_int.h"

static jnode *expr_or(jparser *p);
static jnode *unary(jparser *p, bool with_filter);
static jnode *primary(jparser *p, bool with_namespace);

static jnode *joined(jparser *p, jnode *n, const jnode *x) {
    if (x && x->height + 1 > n->height) n->height = (uint16_t)(x->height + 1);
    if (n->height > JINJA_MAX_TREE)
        jerror_raise(p->e, J_RECURSION, n->line, "expression nested deeper than %d", JINJA_MAX_TREE);
    return n;
}

static jnode *binary(jparser *p, jnode_kind kind, uint32_t line, jnode *a, jnode *b) {
    jnode *n = jnode_new(p, kind, line);
    n->a = a;
    n->b = b;
    return joined(p, joined(p, n, a), b);
}

static void member(jparser *p, jnode *n, jnodes *l, jnode *x) {
    jnodes_add(p, l, x);
    joined(p, n, x);
}

static jnode *constant(jparser *p, uint32_t line, jval v) {
    jnode *n = jnode_new(p, N_CONST, line);
    n->value = v;
    return n;
}

static jval string_value(jparser *p, const char *s, size_t n) {
    jstr *t = jparse_alloc(p, sizeof *t);
    jstr_init(t, s, n);
    return jstring(t);
}

/* ---- chains of operators ---- */

jnode *jexpr_parse(jparser *p, bool with_cond) {
    uint32_t line = p->cur.line;
    jnode *n, *then;
    jparse_enter(p);
    n = expr_or(p);
    while (with_cond && jparse_skip(p, "if")) {
        then = n;
        n = jnode_new(p, N_COND, line);
        n->b = then;
        n->a = expr_or(p);
        if (jparse_skip(p, "else")) n->c = jexpr_parse(p, true);
        joined(p, joined(p, joined(p, n, n->a), n->b), n->c);
        line = p->cur.line;
    }
    jparse_leave(p);
    return n;
}

static jnode *concat(jparser *p);

static jnode *sum(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *n = concat(p);
    while (p->cur.kind == T_ADD || p->cur.kind == T_SUB) {
        jnode_kind k = p->cur.kind == T_ADD ? N_ADD : N_SUB;
        jparse_advance(p);
        n = binary(p, k, line, n, concat(p));
        line = p->cur.line;
    }
    return n;
}

static bool compare_op(jparser *p, uint8_t *op) {
    switch (p->cur.kind) {
    case T_EQ: *op = CMP_EQ; break;
    case T_NE: *op = CMP_NE; break;
    case T_LT: *op = CMP_LT; break;
    case T_LE: *op = CMP_LE; break;
    case T_GT: *op = CMP_GT; break;
    case T_GE: *op = CMP_GE; break;
    default:
        if (jparse_is(p, "in")) {
            *op = CMP_IN;
            break;
        }
        if (jparse_is(p, "not")) {
            const jtok *t = jparse_look(p);
            if (t->kind == T_NAME && t->n == 2 && !memcmp(t->p, "in", 2)) {
                jparse_advance(p);
                *op = CMP_NOTIN;
                break;
            }
        }
        return false;
    }
    jparse_advance(p);
    return true;
}

static jnode *comparison(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *first = sum(p), *n;
    size_t cap = 0;
    uint8_t op;
    if (!compare_op(p, &op)) return first;
    n = jnode_new(p, N_COMPARE, line);
    n->a = first;
    joined(p, n, first);
    do {
        if (n->list.n == cap) {
            uint8_t *ops = jparse_alloc(p, cap = cap ? cap * 2 : 2);
            if (n->list.n) memcpy(ops, n->ops, n->list.n);
            n->ops = ops;
        }
        n->ops[n->list.n] = op;
        member(p, n, &n->list, sum(p));
    } while (compare_op(p, &op));
    return n;
}

static jnode *negation(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *n;
    if (!jparse_skip(p, "not")) return comparison(p);
    jparse_enter(p);
    n = binary(p, N_NOT, line, negation(p), NULL);
    jparse_leave(p);
    return n;
}

static jnode *expr_and(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *n = negation(p);
    while (jparse_skip(p, "and")) {
        n = binary(p, N_AND, line, n, negation(p));
        line = p->cur.line;
    }
    return n;
}

static jnode *expr_or(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *n = expr_and(p);
    while (jparse_skip(p, "or")) {
        n = binary(p, N_OR, line, n, expr_and(p));
        line = p->cur.line;
    }
    return n;
}

static jnode *power(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *n = unary(p, true);
    while (p->cur.kind == T_POW) {
        jparse_advance(p);
        n = binary(p, N_POW, line, n, unary(p, true));
        line = p->cur.line;
    }
    return n;
}

static jnode *product(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *n = power(p);
    for (;;) {
        jnode_kind k;
        switch (p->cur.kind) {
        case T_MUL: k = N_MUL; break;
        case T_DIV: k = N_DIV; break;
        case T_FLOORDIV: k = N_FLOORDIV; break;
        case T_MOD: k = N_MOD; break;
        default: return n;
        }
        jparse_advance(p);
        n = binary(p, k, line, n, power(p));
        line = p->cur.line;
    }
}

static jnode *concat(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *first = product(p), *n;
    if (p->cur.kind != T_TILDE) return first;
    n = jnode_new(p, N_CONCAT, line);
    member(p, n, &n->list, first);
    while (p->cur.kind == T_TILDE) {
        jparse_advance(p);
        member(p, n, &n->list, product(p));
    }
    return n;
}

/* ---- calls, filters, tests, subscripts ---- */

static void call_args(jparser *p, jnode *n) {
    uint32_t line = p->cur.line;
    size_t cap = 0;
    bool comma = false;
    jparse_expect(p, T_LPAREN);
    while (p->cur.kind != T_RPAREN) {
        if (comma) {
            jparse_expect(p, T_COMMA);
            if (p->cur.kind == T_RPAREN) break;
        }
        comma = true;
        if (p->cur.kind == T_MUL) {
            if (n->b || n->c) goto bad;
            jparse_advance(p);
            n->b = jexpr_parse(p, true);
            joined(p, n, n->b);
        } else if (p->cur.kind == T_POW) {
            if (n->c) goto bad;
            jparse_advance(p);
            n->c = jexpr_parse(p, true);
            joined(p, n, n->c);
        } else if (p->cur.kind == T_NAME && jparse_look(p)->kind == T_ASSIGN) {
            jatom *name = p->cur.name;
            if (n->c) goto bad;
            if (n->list2.n == cap) {
                jatom **kw = jparse_alloc(p, (cap = cap ? cap * 2 : 4) * sizeof *kw);
                if (n->list2.n) memcpy(kw, n->kw, n->list2.n * sizeof *kw);
                n->kw = kw;
            }
            for (size_t i = 0; i < n->list2.n && i < 64; i++)
                if (n->kw[i] == name)
                    jparse_fail(p, line, "keyword argument repeated: %.*s", (int)name->s.n, name->s.p);
            if (n->list2.n >= 64) jerror_raise(p->e, J_LIMIT, line, "more than 64 keyword arguments in a call");
            jparse_advance(p);
            jparse_advance(p);
            n->kw[n->list2.n] = name;
            member(p, n, &n->list2, jexpr_parse(p, true));
        } else {
            if (n->b || n->c || n->list2.n) goto bad;
            member(p, n, &n->list, jexpr_parse(p, true));
        }
    }
    jparse_expect(p, T_RPAREN);
    return;
bad:
    jparse_fail(p, line, "invalid syntax for function call expression");
}

static jnode *call(jparser *p, jnode *callee) {
    jnode *n = jnode_new(p, N_CALL, p->cur.line);
    n->a = callee;
    joined(p, n, callee);
    call_args(p, n);
    return n;
}

/* A filter's or test's name, dots included. */
static jatom *dotted(jparser *p) {
    jatom *a = p->cur.name;
    jparse_expect(p, T_NAME);
    while (p->cur.kind == T_DOT) {
        char buf[200];
        int k;
        jparse_advance(p);
        if (p->cur.kind != T_NAME) jparse_expect(p, T_NAME);
        k = snprintf(buf, sizeof buf, "%.*s.%.*s", (int)a->s.n, a->s.p, (int)p->cur.n, p->cur.p);
        if (k < 0 || (size_t)k >= sizeof buf) jparse_fail(p, p->cur.line, "name too long");
        char *s = jparse_alloc(p, (size_t)k);
        memcpy(s, buf, (size_t)k);
        a = jlex_atom(&p->lex, s, (size_t)k);
        jparse_advance(p);
    }
    return a;
}

jnode *jexpr_filter(jparser *p, jnode *node, bool inline_start) {
    while (p->cur.kind == T_PIPE || inline_start) {
        jnode *n;
        if (!inline_start) jparse_advance(p);
        n = jnode_new(p, N_FILTER, p->cur.line);
        n->name = dotted(p);
        n->filter = jfilter_find(n->name->s.p, n->name->s.n);
        n->a = node;
        joined(p, n, node);
        if (p->cur.kind == T_LPAREN) call_args(p, n);
        node = n;
        inline_start = false;
    }
    return node;
}

static jnode *postfix(jparser *p, jnode *n);

static jnode *test(jparser *p, jnode *subject) {
    jnode *n = jnode_new(p, N_TEST, p->cur.line);
    bool negated;
    jparse_advance(p);
    negated = jparse_skip(p, "not");
    n->a = subject;
    n->name = dotted(p);
    n->test = jtest_find(n->name->s.p, n->name->s.n);
    joined(p, n, subject);
    switch (p->cur.kind) {
    case T_LPAREN: call_args(p, n); break;
    case T_NAME:
        if (jparse_is(p, "else") || jparse_is(p, "or") || jparse_is(p, "and")) break;
        if (jparse_is(p, "is")) jparse_fail(p, p->cur.line, "You cannot chain multiple tests with is");
        /* fall through */
    case T_STRING: case T_INT: case T_FLOAT: case T_LBRACKET: case T_LBRACE:
        member(p, n, &n->list, postfix(p, primary(p, false)));
        break;
    default: break;
    }
    return negated ? binary(p, N_NOT, n->line, n, NULL) : n;
}

static jnode *slice_part(jparser *p) {
    if (p->cur.kind == T_COLON || p->cur.kind == T_RBRACKET || p->cur.kind == T_COMMA) return NULL;
    return jexpr_parse(p, true);
}

static jnode *subscript_arg(jparser *p) {
    uint32_t line = p->cur.line;
    jnode *first = NULL, *n;
    if (p->cur.kind != T_COLON) {
        first = jexpr_parse(p, true);
        if (p->cur.kind != T_COLON) return first;
    }
    jparse_advance(p);
    n = jnode_new(p, N_SLICE, line);
    n->a = first;
    n->b = slice_part(p);
    if (p->cur.kind == T_COLON) {
        jparse_advance(p);
        n->c = slice_part(p);
    }
    return joined(p, joined(p, joined(p, n, n->a), n->b), n->c);
}

static jnode *subscript(jparser *p, jnode *obj) {
    uint32_t line = p->cur.line;
    jnode *n;
    if (p->cur.kind == T_DOT) {
        jparse_advance(p);
        if (p->cur.kind == T_NAME) {
            n = binary(p, N_GETATTR, line, obj, NULL);
            n->name = p->cur.name;
        } else if (p->cur.kind == T_INT) {
            n = binary(p, N_GETITEM, line, obj, constant(p, line, p->cur.num));
        } else {
            jparse_fail(p, p->cur.line, "expected name or number");
        }
        jparse_advance(p);
        return n;
    }
    jparse_advance(p);
    {
        jnode *arg = jnode_new(p, N_TUPLE, line);
        while (p->cur.kind != T_RBRACKET) {
            if (arg->list.n) jparse_expect(p, T_COMMA);
            member(p, arg, &arg->list, subscript_arg(p));
        }
        jparse_expect(p, T_RBRACKET);
        if (arg->list.n == 1) arg = arg->list.v[0];
        return binary(p, N_GETITEM, line, obj, arg);
    }
}

static jnode *postfix(jparser *p, jnode *n) {
    for (;;) {
        if (p->cur.kind == T_DOT || p->cur.kind == T_LBRACKET) n = subscript(p, n);
        else if (p->cur.kind == T_LPAREN) n = call(p, n);
        else return n;
    }
}

static jnode *unary(jparser *p, bool with_filter) {
    uint32_t line = p->cur.line;
    jnode *n;
    if (p->cur.kind == T_SUB || p->cur.kind == T_ADD) {
        jnode_kind k = p->cur.kind == T_SUB ? N_NEG : N_POS;
        jparse_enter(p);
        jparse_advance(p);
        n = binary(p, k, line, unary(p, false), NULL);
        jparse_leave(p);
    } else {
        n = primary(p, false);
    }
    n = postfix(p, n);
    while (with_filter) {
        if (p->cur.kind == T_PIPE) n = jexpr_filter(p, n, false);
        else if (jparse_is(p, "is")) n = test(p, n);
        else if (p->cur.kind == T_LPAREN) n = call(p, n);
        else break;
    }
    return n;
}

/* ---- literals, names, tuples ---- */

static jnode *name(jparser *p, bool with_namespace) {
    jatom *a = p->cur.name;
    uint32_t line = p->cur.line;
    jnode *n;
    jparse_advance(p);
    if (jstr_is(&a->s, "true") || jstr_is(&a->s, "True")) return constant(p, line, jbool(true));
    if (jstr_is(&a->s, "false") || jstr_is(&a->s, "False")) return constant(p, line, jbool(false));
    if (jstr_is(&a->s, "none") || jstr_is(&a->s, "None")) return constant(p, line, jnone());
    if (with_namespace && p->cur.kind == T_DOT) {
        jparse_advance(p);
        n = jnode_new(p, N_NSREF, line);
        n->name = a;
        if (p->cur.kind == T_NAME) n->value = jstring(&p->cur.name->s);
        jparse_expect(p, T_NAME);
        return n;
    }
    n = jnode_new(p, N_NAME, line);
    n->name = a;
    return n;
}

static jnode *strings(jparser *p) {
    uint32_t line = p->cur.line;
    const char *s = p->cur.p;
    size_t n = p->cur.n, cap = 0;
    char *all = NULL;
    jparse_advance(p);
    while (p->cur.kind == T_STRING) { /* neighbours join */
        if (!all || n + p->cur.n > cap) {
            char *bigger = jparse_alloc(p, cap = 2 * (n + p->cur.n) + 1);
            memcpy(bigger, s, n);
            s = all = bigger;
        }
        memcpy(all + n, p->cur.p, p->cur.n);
        n += p->cur.n;
        jparse_advance(p);
    }
    return constant(p, line, string_value(p, s, n));
}

static jnode *list(jparser *p) {
    jnode *n = jnode_new(p, N_LIST, p->cur.line);
    jparse_advance(p);
    while (p->cur.kind != T_RBRACKET) {
        if (n->list.n) jparse_expect(p, T_COMMA);
        if (p->cur.kind == T_RBRACKET) break;
        member(p, n, &n->list, jexpr_parse(p, true));
    }
    jparse_expect(p, T_RBRACKET);
    return n;
}

static jnode *dict(jparser *p) {
    jnode *n = jnode_new(p, N_DICT, p->cur.line);
    jparse_advance(p);
    while (p->cur.kind != T_RBRACE) {
        if (n->list.n) jparse_expect(p, T_COMMA);
        if (p->cur.kind == T_RBRACE) break;
        member(p, n, &n->list, jexpr_parse(p, true));
        jparse_expect(p, T_COLON);
        member(p, n, &n->list2, jexpr_parse(p, true));
    }
    jparse_expect(p, T_RBRACE);
    return n;
}

static jnode *primary(jparser *p, bool with_namespace) {
    char buf[80];
    jnode *n;
    switch (p->cur.kind) {
    case T_NAME: return name(p, with_namespace);
    case T_STRING: return strings(p);
    case T_INT: case T_FLOAT:
        n = constant(p, p->cur.line, p->cur.num);
        jparse_advance(p);
        return n;
    case T_LPAREN:
        jparse_advance(p);
        n = jexpr_tuple(p, true, true);
        jparse_expect(p, T_RPAREN);
        return n;
    case T_LBRACKET: return list(p);
    case T_LBRACE: return dict(p);
    default: jparse_fail(p, p->cur.line, "unexpected '%s'", jtok_name(&p->cur, buf, sizeof buf));
    }
}

/* Expressions with commas between.  Jinja's parser means to stop a for target at `in`, but its check never holds, so
 * `for a, in x` is an error there and here. */
static jnode *tuple(jparser *p, bool simple, bool with_cond, bool parens, bool with_namespace) {
    jnode *n = jnode_new(p, N_TUPLE, p->cur.line);
    bool is_tuple = false;
    char buf[80];
    for (;;) {
        if (n->list.n) jparse_expect(p, T_COMMA);
        if (p->cur.kind == T_VAR_END || p->cur.kind == T_BLOCK_END || p->cur.kind == T_RPAREN) break;
        member(p, n, &n->list, simple ? primary(p, with_namespace) : jexpr_parse(p, with_cond));
        if (p->cur.kind != T_COMMA) break;
        is_tuple = true;
        n->line = p->cur.line;
    }
    if (is_tuple || (parens && !n->list.n)) return n;
    if (n->list.n) return n->list.v[0];
    jparse_fail(p, p->cur.line, "Expected an expression, got '%s'", jtok_name(&p->cur, buf, sizeof buf));
}

jnode *jexpr_tuple(jparser *p, bool with_cond, bool parens) {
    return tuple(p, false, with_cond, parens, false);
}

static void store(jparser *p, jnode *n) {
    static const char *const KINDS[] = {[N_CONST] = "const", [N_LIST] = "list", [N_DICT] = "dict"};
    switch (n->kind) {
    case N_NSREF: return;
    case N_NAME: n->ctx = CTX_STORE; return;
    case N_TUPLE:
        for (size_t i = 0; i < n->list.n; i++) {
            if (n->list.v[i]->kind != N_NAME && n->list.v[i]->kind != N_NSREF && n->list.v[i]->kind != N_TUPLE)
                jparse_fail(p, n->line, "can't assign to 'tuple'");
            store(p, n->list.v[i]);
        }
        return;
    default:
        jparse_fail(p, n->line, "can't assign to '%s'",
                    n->kind < sizeof KINDS / sizeof *KINDS && KINDS[n->kind] ? KINDS[n->kind] : "expression");
    }
}

jnode *jexpr_target(jparser *p, bool name_only, bool with_namespace) {
    jnode *n;
    if (name_only) {
        n = jnode_new(p, N_NAME, p->cur.line);
        n->name = p->cur.name;
        n->ctx = CTX_STORE;
        jparse_expect(p, T_NAME);
        /* can_assign: the constants' names are not assignable */
        if (jstr_is(&n->name->s, "true") || jstr_is(&n->name->s, "false") || jstr_is(&n->name->s, "none") ||
            jstr_is(&n->name->s, "True") || jstr_is(&n->name->s, "False") || jstr_is(&n->name->s, "None"))
            jparse_fail(p, n->line, "can't assign to 'name'");
        return n;
    }
    n = tuple(p, true, true, false, with_namespace);
    store(p, n);
    return n;
}
