/* jinja_eval.c - runs the tree: expressions, calls, statements, loops, macros.
 *
 * Each frame that jinja_scope.c made has an environment at run time, linked to the one around it; a loop uses one for
 * all its iterations, a macro call or a recursive loop makes a new one.  Output goes to j->sink; blocks whose text
 * becomes a value put a builder of their own there for the time being. */
#include "text/jinja_int.h"

#include <stdio.h>

typedef enum { GO_ON, GO_BREAK, GO_CONTINUE } flow;

static jval eval(jinja *j, jenv *env, const jnode *n);
static flow run(jinja *j, jenv *env, const jnodes *body);

/* ---- environments ---- */

/* A name of the input or, failing that, a global.  Converted once. */
static jval resolve(jinja *j, const jatom *name) {
    const jscope *root = j->t->root;
    json_t *v;
    jval r;
    if (j->t->blocks.n) { /* a block sees what the template stored at its top level so far */
        jstep(j, root->n / 8);
        for (size_t i = 0; i < root->n; i++)
            if (root->slots[i].name == name && root->slots[i].stored && j->root_env->slots[i].k != V_MISSING)
                return j->root_env->slots[i];
    }
    if (jdict_get(j, j->inputs, jstring(&name->s), &r)) return r;
    v = json_object_getn(j->input, name->s.p, name->s.n);
    if (v) {
        bool token = name->s.n > 6 && !memcmp(name->s.p + name->s.n - 6, "_token", 6);
        r = jfrom_json(j, v, token && json_is_string(v));
    } else {
        r = jglobal_find(j, &name->s);
    }
    jdict_set(j, j->inputs, jstring(&name->s), r);
    return r;
}

/* Load the slots that are no parameters. */
static void enter(jinja *j, jenv *env) {
    const jscope *s = env->scope;
    for (size_t i = 0; i < s->n; i++) {
        const jslot *sl = &s->slots[i];
        jenv *from = env;
        switch (sl->load) {
        case LOAD_PARAM: break;
        case LOAD_ALIAS:
            for (uint16_t h = sl->hops; h; h--) from = from->up;
            env->slots[i] = from->slots[sl->slot];
            break;
        case LOAD_RESOLVE: env->slots[i] = resolve(j, sl->name); break;
        default: env->slots[i] = (jval){.k = V_MISSING};
        }
    }
    jstep(j, s->n);
}

static jenv *env_new(jinja *j, jenv *up, const jscope *s) {
    jenv *env = jcalloc(j, 1, sizeof *env + s->n * sizeof *env->slots); /* zero is V_MISSING */
    env->up = up;
    env->scope = s;
    return env;
}

static jenv *env_enter(jinja *j, jenv *up, const jscope *s) {
    jenv *env = env_new(j, up, s);
    enter(j, env);
    return env;
}

static jval *place_of(jenv *env, const jnode *n) {
    for (uint16_t h = n->hops; h; h--) env = env->up;
    return &env->slots[n->slot];
}

/* ---- assignment ---- */

static void assign(jinja *j, jenv *env, const jnode *target, jval v, bool filter) {
    jlist *l;
    jiter *it;
    jval x;
    switch (target->kind) {
    case N_NAME:
        if (filter) env->slots[target->test_slot] = v;
        else *place_of(env, target) = v;
        return;
    case N_NSREF: {
        jval ns = *place_of(env, target);
        if (ns.k != V_NS) jfail(j, J_RUNTIME, "cannot assign attribute on non-namespace object");
        if (target->value.s->p[0] == '_')
            jfail(j, J_SANDBOX,
                  "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'. "
                  "Please rename the attribute.",
                  (int)target->value.s->n, target->value.s->p);
        jdict_set(j, ns.d, target->value, v);
        return;
    }
    default: break;
    }
    if (!jiterable(v)) {
        if (v.k == V_UNDEF) jundef_raise(j, v);
        jfail(j, J_TYPE, "cannot unpack non-iterable %s object", jtype_name(v));
    }
    it = jiter_new(j, v);
    l = jlist_new(j, target->list.n);
    while (jiter_next(j, it, &x)) {
        if (l->n == target->list.n) jfail(j, J_VALUE, "too many values to unpack (expected %zu)", target->list.n);
        l->v[l->n++] = x;
    }
    if (l->n < target->list.n)
        jfail(j, J_VALUE, "not enough values to unpack (expected %zu, got %zu)", target->list.n, l->n);
    for (size_t i = 0; i < l->n; i++) assign(j, env, target->list.v[i], l->v[i], filter);
}

/* Namespaces are checked before the value is worked out. */
static void check_namespaces(jinja *j, jenv *env, const jnode *target) {
    if (target->kind == N_NSREF && place_of(env, target)->k != V_NS)
        jfail(j, J_RUNTIME, "cannot assign attribute on non-namespace object");
    for (size_t i = 0; target->kind == N_TUPLE && i < target->list.n; i++) check_namespaces(j, env, target->list.v[i]);
}

/* ---- captured output ---- */

static const jstr *capture(jinja *j, jenv *env, const jnodes *body, flow *f) {
    jsb b, *old = j->sink;
    jsb_init(&b);
    j->sink = &b;
    *f = run(j, env, body);
    j->sink = old;
    return j->autoescape ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b);
}

static void emit(jinja *j, jval v) {
    if (j->autoescape) jsb_str(j, j->sink, jstr_escape(j, v));
    else jprint(j, j->sink, v);
}

/* ---- calls ---- */

/* Python's words; functions of Jinja itself count the piped value as an argument. */
static _Noreturn void bind_many(jinja *j, const char *fname, size_t n_required, size_t n, size_t got) {
    size_t self = !strncmp(fname, "do_", 3) || !strncmp(fname, "test_", 5);
    if (!self) jfail(j, J_TYPE, "%s() takes at most %zu argument%s (%zu given)", fname, n, n == 1 ? "" : "s", got);
    if (n_required == n)
        jfail(j, J_TYPE, "%s() takes %zu positional argument%s but %zu were given", fname, n + self, n ? "s" : "",
              got + self);
    jfail(j, J_TYPE, "%s() takes from %zu to %zu positional arguments but %zu were given", fname, n_required + self,
          n + self, got + self);
}

static _Noreturn void bind_missing(jinja *j, const char *fname, size_t n_required, const char *const *names,
                                   const jval *out) {
    char list[200] = "";
    size_t k = 0, n = 0, total = 0;
    for (size_t i = 0; i < n_required; i++) total += out[i].k == V_MISSING;
    if (!names[0])
        jfail(j, J_TYPE, "%s expected at least %zu argument%s, got %zu", fname, n_required, n_required == 1 ? "" : "s",
              n_required - total);
    for (size_t i = 0; i < n_required && k < sizeof list; i++) {
        if (out[i].k != V_MISSING) continue;
        k += (size_t)snprintf(list + k, sizeof list - k, "%s'%s'",
                              !n               ? ""
                              : n + 1 == total ? total > 2 ? ", and " : " and "
                                               : ", ",
                              names[i]);
        n++;
    }
    jfail(j, J_TYPE, "%s() missing %zu required positional argument%s: %s", fname, total, total == 1 ? "" : "s", list);
}

void jbind(jinja *j, const char *fname, const jargs *a, size_t n_required, size_t n, const char *const *names,
           jval *out) {
    for (size_t i = 0; i < n; i++) out[i] = (jval){.k = V_MISSING};
    if (a->n > n) bind_many(j, fname, n_required, n, a->n);
    for (size_t i = 0; i < a->n; i++) out[i] = a->v[i];
    for (size_t k = 0; k < a->n_kw; k++) {
        size_t i = 0;
        while (i < n && !(names[i] && jstr_is(a->kw[k], names[i]))) i++;
        if (i == n)
            jfail(j, J_TYPE, "%s() got an unexpected keyword argument '%.*s'", fname,
                  a->kw[k]->n < 100 ? (int)a->kw[k]->n : 100, a->kw[k]->p);
        if (out[i].k != V_MISSING) jfail(j, J_TYPE, "%s() got multiple values for argument '%s'", fname, names[i]);
        out[i] = a->kv[k];
    }
    for (size_t i = 0; i < n_required; i++)
        if (out[i].k == V_MISSING) bind_missing(j, fname, n_required, names, out);
}

static void args_eval(jinja *j, jenv *env, const jnode *n, jargs *a, jval caller) {
    size_t cap = n->list.n, cap_kw = n->list2.n + (caller.k != V_MISSING);
    jlist *star = NULL;
    jval kwargs = {.k = V_MISSING};
    *a = (jargs){0};
    if (cap) a->v = jalloc(j, cap * sizeof *a->v);
    for (; a->n < n->list.n; a->n++) a->v[a->n] = eval(j, env, n->list.v[a->n]);
    if (n->b) {
        star = jto_list(j, eval(j, env, n->b));
        if (star->n) {
            jval *v = jalloc(j, (a->n + star->n) * sizeof *v);
            if (a->n) memcpy(v, a->v, a->n * sizeof *v);
            memcpy(v + a->n, star->v, star->n * sizeof *v);
            a->v = v;
            a->n += star->n;
        }
    }
    if (n->c) {
        kwargs = eval(j, env, n->c);
        if (kwargs.k == V_UNDEF) jundef_raise(j, kwargs);
        if (kwargs.k != V_DICT) jfail(j, J_TYPE, "argument after ** must be a mapping, not %s", jtype_name(kwargs));
        if (kwargs.d->n > 1000) jfail(j, J_LIMIT, "more than 1000 keyword arguments");
        cap_kw += kwargs.d->n;
    }
    if (!cap_kw) return;
    a->kw = jalloc(j, cap_kw * sizeof *a->kw);
    a->kv = jalloc(j, cap_kw * sizeof *a->kv);
    for (; a->n_kw < n->list2.n; a->n_kw++) {
        a->kw[a->n_kw] = &n->kw[a->n_kw]->s;
        a->kv[a->n_kw] = eval(j, env, n->list2.v[a->n_kw]);
    }
    if (caller.k != V_MISSING) {
        a->kw[a->n_kw] = jstr_lit(j, "caller");
        a->kv[a->n_kw++] = caller;
    }
    for (uint32_t i = 0; kwargs.k == V_DICT && i < kwargs.d->n; i++) {
        const jentry *e = &kwargs.d->e[i];
        if (e->key.k != V_STR) jfail(j, J_TYPE, "keywords must be strings");
        for (size_t k = 0; k < a->n_kw; k++)
            if (jstr_eq(a->kw[k], e->key.s))
                jfail(j, J_TYPE, "got multiple values for keyword argument '%.*s'",
                      (int)(e->key.s->n < 100 ? e->key.s->n : 100), e->key.s->p);
        a->kw[a->n_kw] = e->key.s;
        a->kv[a->n_kw++] = e->val;
        jstep(j, a->n_kw);
    }
}

static jval *slot_named(jenv *env, const char *name) {
    for (size_t i = 0; i < env->scope->n; i++)
        if (jstr_is(&env->scope->slots[i].name->s, name)) return &env->slots[i];
    return NULL;
}

static _Noreturn void macro_fail(jinja *j, const jnode *n, const char *what, const jstr *arg) {
    const jstr *name = jrepr(j, n->kind == N_MACRO ? jstring(&n->name->s) : jnone());
    jfail(j, J_TYPE, arg ? "macro %.*s %s '%.*s'" : "macro %.*s %s", (int)(name->n < 100 ? name->n : 100), name->p,
          what, arg && arg->n < 100 ? (int)arg->n : 100, arg ? arg->p : "");
}

static jval macro_call(jinja *j, const jmacro *m, const jargs *a) {
    const jnode *n = m->node;
    size_t n_params = n->list2.n, used = 0;
    jenv *env = env_new(j, m->env, n->scope);
    jval *kwargs = NULL, *slot;
    bool *taken = a->n_kw ? jcalloc(j, a->n_kw, sizeof *taken) : NULL, own_caller = false;
    const jstr *text;
    bool escape = j->autoescape;
    flow f;
    enter(j, env);
    for (size_t i = 0; i < n_params; i++) {
        jval v = {.k = V_MISSING};
        const jnode *p = n->list2.v[i];
        if (i < a->n) v = a->v[i];
        else
            for (size_t k = 0; k < a->n_kw; k++)
                if (!taken[k] && jstr_eq(a->kw[k], &p->name->s)) {
                    v = a->kv[k];
                    taken[k] = true;
                    used++;
                }
        own_caller |= jstr_is(&p->name->s, "caller");
        env->slots[p->slot] = v;
    }
    if (n->takes_caller && !own_caller && (slot = slot_named(env, "caller"))) {
        *slot = (jval){.k = V_MISSING};
        for (size_t k = 0; k < a->n_kw; k++)
            if (!taken[k] && jstr_is(a->kw[k], "caller")) {
                *slot = a->kv[k];
                taken[k] = true;
                used++;
            }
        if (slot->k == V_MISSING || slot->k == V_NONE) *slot = jundef_hint(j, "No caller defined");
    }
    if (n->takes_kwargs && (kwargs = slot_named(env, "kwargs"))) *kwargs = jdictv(jdict_new(j));
    for (size_t k = 0; k < a->n_kw && used < a->n_kw; k++) {
        if (taken[k]) continue;
        if (kwargs) jdict_set(j, kwargs->d, jstring(a->kw[k]), a->kv[k]);
        else if (jstr_is(a->kw[k], "caller"))
            macro_fail(j, n, "was invoked with two values for the special caller argument. This is most likely a bug.",
                       NULL);
        else macro_fail(j, n, "takes no keyword argument", a->kw[k]);
    }
    if (n->takes_varargs && (slot = slot_named(env, "varargs"))) {
        jlist *l = jlist_new(j, a->n > n_params ? a->n - n_params : 0);
        for (size_t i = n_params; i < a->n; i++) l->v[l->n++] = a->v[i];
        *slot = jtuplev(l);
    } else if (a->n > n_params) {
        char what[60];
        snprintf(what, sizeof what, "takes not more than %zu argument(s)", n_params);
        macro_fail(j, n, what, NULL);
    }
    for (size_t i = 0; i < n_params; i++) {
        const jnode *p = n->list2.v[i];
        size_t first = n_params - n->list3.n;
        if (env->slots[p->slot].k != V_MISSING) continue;
        if (i >= first) env->slots[p->slot] = eval(j, env, n->list3.v[i - first]);
        else env->slots[p->slot] = jundef_hint(j, "parameter '%.*s' was not provided", (int)p->name->s.n, p->name->s.p);
    }
    text = capture(j, env, &n->list, &f);
    j->autoescape = escape;
    return jstring(text);
}

static jval loop_call(jinja *j, jloop *lp, const jargs *a);

jval jcall(jinja *j, jval f, const jargs *a) {
    jval r;
    jdeeper(j);
    switch (f.k) {
    case V_MACRO: r = macro_call(j, f.m, a); break;
    case V_METHOD: r = jmethod_call(j, f.me, a); break;
    case V_FUNC: r = jglobal_call(j, f, a); break;
    case V_LOOP: r = loop_call(j, f.lp, a); break;
    case V_JOINER:
        if (a->n || a->n_kw)
            jfail(j, J_TYPE, "Joiner.__call__() takes 1 positional argument but %zu were given", a->n + 1);
        r = f.jo->used ? f.jo->sep : jstring(jstr_lit(j, ""));
        f.jo->used = true;
        break;
    case V_UNDEF: jundef_raise(j, f);
    default: jfail(j, J_TYPE, "'%s' object is not callable", jtype_name(f));
    }
    jhigher(j);
    return r;
}

static jval call(jinja *j, jenv *env, const jnode *n, jval caller) {
    jval f = eval(j, env, n->a);
    jargs a;
    args_eval(j, env, n, &a, caller);
    j->e.line = n->line;
    return jcall(j, f, &a);
}

/* ---- expressions ---- */

static jval concat(jinja *j, jenv *env, const jnode *n) {
    const jstr *s = NULL;
    for (size_t i = 0; i < n->list.n; i++) {
        jval v = eval(j, env, n->list.v[i]);
        const jstr *t = j->autoescape ? jstr_escape(j, v) : jto_str(j, v);
        s = s ? jstr_concat(j, s, t) : t;
    }
    return jstring(s);
}

static jval compare(jinja *j, jenv *env, const jnode *n) {
    jval a = eval(j, env, n->a);
    for (size_t i = 0; i < n->list.n; i++) {
        jval b = eval(j, env, n->list.v[i]);
        j->e.line = n->line;
        if (!jcompare(j, (jcmp)n->ops[i], a, b)) return jbool(false);
        a = b;
    }
    return jbool(true);
}

static jval filter(jinja *j, jenv *env, const jnode *n, jval subject) {
    jargs a;
    if (!n->filter) { /* an unknown name that jinja_scope.c let through */
        jfail(j, J_RUNTIME, "No filter named '%.*s' found.", (int)n->name->s.n, n->name->s.p);
    }
    if (n->a)
        subject = n->a->kind == N_FILTER && subject.k != V_MISSING ? filter(j, env, n->a, subject) : eval(j, env, n->a);
    args_eval(j, env, n, &a, (jval){.k = V_MISSING});
    j->e.line = n->line;
    return n->filter->fn(j, subject, &a);
}

static jval test(jinja *j, jenv *env, const jnode *n) {
    jargs a;
    jval v;
    if (!n->test) jfail(j, J_RUNTIME, "No test named '%.*s' found.", (int)n->name->s.n, n->name->s.p);
    v = eval(j, env, n->a);
    args_eval(j, env, n, &a, (jval){.k = V_MISSING});
    j->e.line = n->line;
    return jbool(n->test->fn(j, v, &a));
}

static jval slice_bound(jinja *j, jenv *env, const jnode *n) {
    return n ? eval(j, env, n) : jnone();
}

static jval members(jinja *j, jenv *env, const jnode *n) {
    jlist *l = jlist_new(j, n->list.n);
    for (size_t i = 0; i < n->list.n; i++) l->v[l->n++] = eval(j, env, n->list.v[i]);
    return n->kind == N_LIST ? jlistv(l) : jtuplev(l);
}

static jval expression(jinja *j, jenv *env, const jnode *n) {
    jval a, b, c;
    switch (n->kind) {
    case N_CONST: case N_DATA: return n->value;
    case N_NAME:
        a = *place_of(env, n);
        return a.k == V_MISSING ? jundef_name(j, &n->name->s) : a;
    case N_TUPLE: case N_LIST: return members(j, env, n);
    case N_DICT: {
        jdict *d = jdict_new(j);
        for (size_t i = 0; i < n->list.n; i++) {
            a = eval(j, env, n->list.v[i]);
            jdict_set(j, d, a, eval(j, env, n->list2.v[i]));
        }
        return jdictv(d);
    }
    case N_COND:
        if (jtruth(j, eval(j, env, n->a))) return eval(j, env, n->b);
        if (n->c) return eval(j, env, n->c);
        return jundef_hint(j, "the inline if-expression on line %u evaluated to false and no else section was defined.",
                           n->line);
    case N_OR:
        a = eval(j, env, n->a);
        return jtruth(j, a) ? a : eval(j, env, n->b);
    case N_AND:
        a = eval(j, env, n->a);
        return jtruth(j, a) ? eval(j, env, n->b) : a;
    case N_NOT: return jbool(!jtruth(j, eval(j, env, n->a)));
    case N_COMPARE: return compare(j, env, n);
    case N_ADD: case N_SUB: case N_MUL: case N_DIV: case N_FLOORDIV: case N_MOD: case N_POW:
        a = eval(j, env, n->a);
        b = eval(j, env, n->b);
        j->e.line = n->line;
        return jarith(j, (jnode_kind)n->kind, a, b);
    case N_NEG: case N_POS: return jnegate(j, eval(j, env, n->a), n->kind == N_POS);
    case N_CONCAT: return concat(j, env, n);
    case N_GETATTR: return jget_attr(j, eval(j, env, n->a), &n->name->s);
    case N_GETITEM:
        a = eval(j, env, n->a);
        if (n->b->kind == N_SLICE) {
            b = slice_bound(j, env, n->b->a);
            c = slice_bound(j, env, n->b->b);
            return jslice(j, a, b, c, slice_bound(j, env, n->b->c));
        }
        return jget_item(j, a, eval(j, env, n->b));
    case N_CALL: return call(j, env, n, (jval){.k = V_MISSING});
    case N_FILTER: return filter(j, env, n, (jval){.k = V_MISSING});
    case N_TEST: return test(j, env, n);
    default: jfail(j, J_UNSUPPORTED, "a slice outside of [] is not supported");
    }
}

static jval eval(jinja *j, jenv *env, const jnode *n) {
    jval v;
    jstep(j, 1);
    jdeeper(j);
    j->e.line = n->line;
    v = expression(j, env, n);
    jhigher(j);
    return v;
}

/* ---- loops ---- */

static jloop *loop_new(jinja *j, const jnode *n, jenv *outer, jval iterable, int64_t depth0) {
    jloop *lp = jcalloc(j, 1, sizeof *lp);
    if (n->c) {
        jiter *it = jcalloc(j, 1, sizeof *it);
        *it = (jiter){.kind = IT_TEST, .type_name = "generator", .src = iterable, .node = n};
        it->env = env_enter(j, outer, n->scope2);
        iterable = jiter_val(it);
    }
    *lp = (jloop){.iterable = iterable,
                  .it = jiter_new(j, iterable),
                  .index0 = -1,
                  .len = -1,
                  .node = n,
                  .outer = outer,
                  .depth0 = depth0,
                  .recursive = n->flag};
    return lp;
}

/* What the targets hold, as the loop's filter hands it on: a tuple is put together anew. */
static jval targets_value(jinja *j, const jenv *env, const jnode *target) {
    jlist *l;
    if (target->kind != N_TUPLE) return env->slots[target->test_slot];
    l = jlist_new(j, target->list.n);
    for (size_t i = 0; i < target->list.n; i++) l->v[l->n++] = targets_value(j, env, target->list.v[i]);
    return jtuplev(l);
}

bool jtest_item(jinja *j, jiter *it, jval *item) {
    assign(j, it->env, it->node->a, *item, true);
    if (!jtruth(j, eval(j, it->env, it->node->c))) return false;
    *item = targets_value(j, it->env, it->node->a);
    return true;
}

static bool loop_next(jinja *j, jloop *lp) {
    jval v = lp->after;
    lp->after = (jval){.k = V_MISSING};
    if (v.k == V_MISSING && !jiter_next(j, lp->it, &v)) return false;
    lp->index0++;
    lp->before = lp->cur;
    lp->cur = v;
    return true;
}

static bool loop_peek(jinja *j, jloop *lp) {
    return lp->after.k != V_MISSING || jiter_next(j, lp->it, &lp->after);
}

int64_t jloop_length(jinja *j, jloop *lp) {
    if (lp->len < 0 && lp->iterable.k != V_ITER) lp->len = jlength(j, lp->iterable);
    if (lp->len < 0) {
        jlist *rest = jto_list(j, jiter_val(lp->it));
        lp->it = jiter_new(j, jlistv(rest));
        lp->len = (int64_t)rest->n + lp->index0 + 1 + (lp->after.k != V_MISSING);
    }
    return lp->len;
}

jval jloop_attr(jinja *j, jloop *lp, const jstr *name) {
    if (jstr_is(name, "index")) return jint(lp->index0 + 1);
    if (jstr_is(name, "index0")) return jint(lp->index0);
    if (jstr_is(name, "first")) return jbool(lp->index0 == 0);
    if (jstr_is(name, "last")) return jbool(!loop_peek(j, lp));
    if (jstr_is(name, "length")) return jint(jloop_length(j, lp));
    if (jstr_is(name, "revindex")) return jint(jloop_length(j, lp) - lp->index0);
    if (jstr_is(name, "revindex0")) return jint(jloop_length(j, lp) - lp->index0 - 1);
    if (jstr_is(name, "depth")) return jint(lp->depth0 + 1);
    if (jstr_is(name, "depth0")) return jint(lp->depth0);
    if (jstr_is(name, "previtem")) return lp->index0 == 0 ? jundef_hint(j, "there is no previous item") : lp->before;
    if (jstr_is(name, "nextitem")) return loop_peek(j, lp) ? lp->after : jundef_hint(j, "there is no next item");
    return (jval){.k = V_MISSING};
}

static flow loop_run(jinja *j, const jnode *n, jenv *outer, jval iterable, int64_t depth0) {
    jloop *lp = loop_new(j, n, outer, iterable, depth0);
    jenv *env = env_new(j, outer, n->scope);
    bool some = false;
    while (loop_next(j, lp)) {
        flow f;
        env->slots[0] = (jval){.k = V_LOOP, .lp = lp};
        assign(j, env, n->a, lp->cur, false);
        enter(j, env);
        f = run(j, env, &n->list);
        if (f == GO_BREAK) { /* what stands after the body is not reached, so the else part still runs */
            if (n->list2.n && !some) return run(j, env_enter(j, outer, n->scope3), &n->list2);
            return GO_ON;
        }
        if (f != GO_CONTINUE) some = true;
    }
    if (n->list2.n && !some) return run(j, env_enter(j, outer, n->scope3), &n->list2);
    return GO_ON;
}

static jval loop_render(jinja *j, const jnode *n, jenv *outer, jval iterable, int64_t depth0) {
    jsb b, *old = j->sink;
    jsb_init(&b);
    j->sink = &b;
    loop_run(j, n, outer, iterable, depth0);
    j->sink = old;
    return jstring(j->autoescape ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b));
}

static jval loop_call(jinja *j, jloop *lp, const jargs *a) {
    static const char *const NAMES[] = {"iterable"};
    jval v;
    jbind(j, "loop", a, 1, 1, NAMES, &v);
    if (!lp->recursive) jfail(j, J_TYPE, "The loop must have the 'recursive' marker to be called recursively.");
    return loop_render(j, lp->node, lp->outer, v, lp->depth0 + 1);
}

/* ---- statements ---- */

static jval macro_value(jinja *j, const jnode *n, jenv *env) {
    jmacro *m = jalloc(j, sizeof *m);
    *m = (jmacro){n, env};
    return (jval){.k = V_MACRO, .m = m};
}

static flow run_if(jinja *j, jenv *env, const jnode *n) {
    if (jtruth(j, eval(j, env, n->a))) return run(j, env, &n->list);
    for (size_t i = 0; i < n->list2.n; i++)
        if (jtruth(j, eval(j, env, n->list2.v[i]->a))) return run(j, env, &n->list2.v[i]->list);
    return run(j, env, &n->list3);
}

static flow statement(jinja *j, jenv *env, const jnode *n) {
    jenv *inner;
    flow f = GO_ON;
    jval v;
    switch (n->kind) {
    case N_OUTPUT:
        for (size_t i = 0; i < n->list.n; i++) {
            const jnode *x = n->list.v[i];
            if (x->kind == N_DATA) jsb_str(j, j->sink, x->value.s);
            else emit(j, eval(j, env, x));
        }
        return GO_ON;
    case N_SET:
        check_namespaces(j, env, n->a);
        assign(j, env, n->a, eval(j, env, n->b), false);
        return GO_ON;
    case N_SETBLOCK:
        inner = env_enter(j, env, n->scope);
        v = jstring(capture(j, inner, &n->list, &f));
        if (f != GO_ON) return f;
        if (n->b) v = filter(j, inner, n->b, v);
        if (j->autoescape) v = jstring(jstr_escape(j, v));
        check_namespaces(j, env, n->a);
        assign(j, env, n->a, v, false);
        return GO_ON;
    case N_FOR:
        v = eval(j, env, n->b);
        if (!n->flag) return loop_run(j, n, env, v, 0);
        emit(j, loop_render(j, n, env, v, 0));
        return GO_ON;
    case N_IF: return run_if(j, env, n);
    case N_MACRO: *place_of(env, n) = macro_value(j, n, env); return GO_ON;
    case N_CALLBLOCK:
        if (n->a) {
            emit(j, call(j, env, n->a, macro_value(j, n, env)));
        } else {
            run(j, env_enter(j, env, n->scope), &n->list);
        }
        return GO_ON;
    case N_FILTERBLOCK:
        inner = env_enter(j, env, n->scope);
        v = jstring(capture(j, inner, &n->list, &f));
        if (f == GO_ON) emit(j, filter(j, inner, n->a, v));
        return f;
    case N_WITH:
        inner = env_enter(j, env, n->scope);
        for (size_t i = 0; i < n->list2.n; i++) assign(j, inner, n->list2.v[i], eval(j, env, n->list3.v[i]), false);
        return run(j, inner, &n->list);
    case N_SCOPE: return run(j, env_enter(j, env, n->scope), &n->list);
    case N_AUTOESCAPE: {
        bool old = j->autoescape;
        j->autoescape = jtruth(j, eval(j, env, n->a));
        f = run(j, env, &n->list);
        j->autoescape = old;
        return f;
    }
    case N_BLOCK:
        if (n->flag) jfail(j, J_UNSUPPORTED, "scoped blocks are not supported");
        run(j, env_enter(j, NULL, n->scope), &n->list);
        return GO_ON;
    case N_BREAK: return GO_BREAK;
    case N_CONTINUE: return GO_CONTINUE;
    default: jfail(j, J_TYPE, "no loader for this environment specified");
    }
}

static flow run(jinja *j, jenv *env, const jnodes *body) {
    flow f = GO_ON;
    jdeeper(j);
    for (size_t i = 0; i < body->n && f == GO_ON; i++) {
        jstep(j, 1);
        j->e.line = body->v[i]->line;
        f = statement(j, env, body->v[i]);
    }
    jhigher(j);
    return f;
}

void jrun(jinja *j) {
    j->root_env = env_new(j, NULL, j->t->root);
    enter(j, j->root_env);
    run(j, j->root_env, &j->t->body);
}
