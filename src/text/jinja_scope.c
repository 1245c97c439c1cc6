/* jinja_scope.c - gives every name a place, with the scoping rules of Jinja's compiler.
 *
 * A frame (the template, a macro, a loop's body, its filter, its else part, a set, filter or with block) owns the names
 * stored in it; if-statements share the frame around them.  A frame's names are collected before its inner frames are
 * looked at, so an inner frame sees names that its outer frame stores later.  On entry a slot is loaded: parameters by
 * the caller, ALIAS with the outer frame's value, RESOLVE from the input, UNDEF with nothing.  The latter two differ
 * for a name that is stored first: unconditionally stored names never look at the input, those stored inside an if do.
 * Same outcome as jinja2/idtracking.py and compiler.py of 3.1.6, whose branch bookkeeping comes down to this rule.
 *
 * Every atom points to its innermost definition; frames push and pop these, so a look-up costs nothing. */
#include "text/jinja_int.h"

typedef struct jdef {
    struct jdef *outer;
    jscope *scope;
    jatom *name;
    uint32_t slot;
} jdef;

typedef struct {
    chat_template *t;
    jerror *e;
    jscope *cur;
    jdef **defs; /* of the frames that are open, innermost last */
    size_t n_defs, cap_defs;
    uint32_t branches; /* ifs around the code being collected, within its frame */
    uint32_t loops;    /* for statements around, macros included: `loop` may not be stored there */
    bool in_loop;      /* break and continue are possible */
    bool soft;         /* directly inside an if: unknown filters fail when reached, not now */
} walker;

static void *take(walker *w, size_t n) {
    void *p = arena_calloc(&w->t->mem, 1, n);
    if (!p)
        jerror_raise(w->e, w->t->mem.failed == HD_NOMEM ? J_MEMORY : J_LIMIT, 0,
                     w->t->mem.failed == HD_NOMEM ? "no memory for the template" : "template too large");
    return p;
}

/* ---- definitions ---- */

static jslot *define(walker *w, jatom *name, jload load) {
    jscope *s = w->cur;
    jslot *slot;
    jdef *d = name->def;
    if (!d || d->scope != s) {
        if (s->n == s->cap) {
            size_t cap = s->cap ? s->cap * 2 : 8;
            jslot *v = take(w, cap * sizeof *v);
            if (s->n) memcpy(v, s->slots, s->n * sizeof *v);
            s->slots = v;
            s->cap = cap;
        }
        if (w->n_defs == w->cap_defs) {
            size_t cap = w->cap_defs ? w->cap_defs * 2 : 64;
            jdef **v = take(w, cap * sizeof *v);
            if (w->n_defs) memcpy(v, w->defs, w->n_defs * sizeof *v);
            w->defs = v;
            w->cap_defs = cap;
        }
        d = take(w, sizeof *d);
        *d = (jdef){name->def, s, name, (uint32_t)s->n};
        w->defs[w->n_defs++] = d;
        name->def = d;
        slot = &s->slots[s->n++];
        *slot = (jslot){.name = name};
    } else {
        slot = &s->slots[d->slot];
    }
    slot->load = (uint8_t)load;
    if (load == LOAD_RESOLVE && jstr_is(&name->s, "tools")) w->t->reads_tools = true;
    return slot;
}

static void use(walker *w, jatom *name) {
    if (!name->def) define(w, name, LOAD_RESOLVE);
}

static void assign(walker *w, jatom *name, uint32_t line) {
    jdef *d = name->def;
    jslot *s;
    if (w->loops && jstr_is(&name->s, "loop"))
        jerror_raise(w->e, J_SYNTAX, line, "Can't assign to special loop variable in for-loop target");
    if (d && d->scope == w->cur) {
        w->cur->slots[d->slot].stored = true;
        return;
    }
    s = define(w, name, d ? LOAD_ALIAS : w->branches ? LOAD_RESOLVE : LOAD_UNDEF);
    s->stored = true;
    if (!d) return;
    s->hops = (uint16_t)(w->cur->level - d->scope->level);
    s->slot = d->slot;
}

static void param(walker *w, jatom *name) {
    define(w, name, LOAD_PARAM)->stored = true;
}

static jscope *open_frame(walker *w, size_t *mark) {
    jscope *s = take(w, sizeof *s);
    s->parent = w->cur;
    s->level = w->cur ? w->cur->level + 1 : 0;
    *mark = w->n_defs;
    w->cur = s;
    return s;
}

static void close_frame(walker *w, size_t mark) {
    while (w->n_defs > mark) {
        jdef *d = w->defs[--w->n_defs];
        d->name->def = d->outer;
    }
    w->cur = w->cur->parent;
}

/* ---- collecting a frame's names ---- */

static void collect(walker *w, const jnode *n);

static void collect_all(walker *w, const jnodes *l) {
    for (size_t i = 0; i < l->n; i++) collect(w, l->v[i]);
}

static void collect(walker *w, const jnode *n) {
    if (!n) return;
    switch (n->kind) {
    case N_NAME:
        if (n->ctx == CTX_LOAD) use(w, n->name);
        else if (n->ctx == CTX_STORE) assign(w, n->name, n->line);
        else param(w, n->name);
        return;
    case N_NSREF: use(w, n->name); return;
    case N_SET:
        collect(w, n->b);
        collect(w, n->a);
        return;
    case N_SETBLOCK: collect(w, n->a); return;
    case N_FOR: collect(w, n->b); return;
    case N_IF:
        collect(w, n->a);
        w->branches++;
        collect_all(w, &n->list);
        collect_all(w, &n->list2);
        collect_all(w, &n->list3);
        w->branches--;
        return;
    case N_MACRO: assign(w, n->name, n->line); return;
    case N_CALLBLOCK: case N_FILTERBLOCK: collect(w, n->a); return;
    case N_WITH: collect_all(w, &n->list3); return;
    case N_SCOPE: case N_BLOCK: return;
    default:
        collect(w, n->a);
        collect(w, n->b);
        collect(w, n->c);
        collect_all(w, &n->list);
        collect_all(w, &n->list2);
    }
}

static void collect_params(walker *w, const jnode *target) {
    if (target->kind == N_NAME) {
        if (jstr_is(&target->name->s, "loop"))
            jerror_raise(w->e, J_SYNTAX, target->line, "Can't assign to special loop variable in for-loop target");
        param(w, target->name);
    }
    for (size_t i = 0; i < target->list.n; i++) collect_params(w, target->list.v[i]);
}

/* Whether a name is read in these nodes before something there declares it (inner frames included). */
static int reads(const jnode *n, const char *name) {
    int r = 0;
    const jnodes *lists[] = {&n->list2, &n->list3, &n->list};
    if (n->kind == N_BLOCK) return 0;
    if (n->kind == N_NAME && jstr_is(&n->name->s, name)) return n->ctx == CTX_LOAD ? 1 : -1;
    if (n->a && (r = reads(n->a, name))) return r;
    if (n->b && (r = reads(n->b, name))) return r;
    if (n->c && (r = reads(n->c, name))) return r;
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < lists[k]->n; i++)
            if ((r = reads(lists[k]->v[i], name))) return r;
    return 0;
}

static bool body_reads(const jnodes *l, const char *name) {
    for (size_t i = 0; i < l->n; i++) {
        int r = reads(l->v[i], name);
        if (r) return r > 0;
    }
    return false;
}

/* ---- placing names, frame by frame ---- */

static void place(walker *w, jnode *n);

static void place_all(walker *w, jnodes *l) {
    for (size_t i = 0; i < l->n; i++) place(w, l->v[i]);
}

static void place_name(walker *w, jnode *n) {
    jdef *d = n->name->def;
    if (!d) { /* a name in a place that Jinja's own analysis forgets: a set block's filter */
        use(w, n->name);
        d = n->name->def;
    }
    n->hops = (uint16_t)(w->cur->level - d->scope->level);
    n->slot = d->slot;
}

static void place_targets(walker *w, jnode *t, bool filter) {
    if (t->kind == N_NAME) {
        if (filter) t->test_slot = t->name->def->slot;
        else place_name(w, t);
    }
    for (size_t i = 0; i < t->list.n; i++) place_targets(w, t->list.v[i], filter);
}

static void macro(walker *w, jnode *n) {
    size_t mark;
    bool in_loop = w->in_loop, soft = w->soft, own_caller = false, own_kwargs = false, own_varargs = false;
    uint32_t branches = w->branches, loops = w->loops;
    w->in_loop = w->soft = false;
    w->branches = 0;
    n->scope = open_frame(w, &mark);
    for (size_t i = 0; i < n->list2.n; i++) {
        const jstr *s = &n->list2.v[i]->name->s;
        param(w, n->list2.v[i]->name);
        if (jstr_is(s, "caller")) {
            own_caller = true;
            if (i + n->list3.n < n->list2.n && body_reads(&n->list, "caller"))
                jerror_raise(w->e, J_SYNTAX, n->line,
                             "When defining macros or call blocks the special \"caller\" argument "
                             "must be omitted or be given a default.");
        }
        own_kwargs |= jstr_is(s, "kwargs");
        own_varargs |= jstr_is(s, "varargs");
    }
    collect_all(w, &n->list3);
    collect_all(w, &n->list);
    n->takes_caller = body_reads(&n->list, "caller");
    n->takes_kwargs = !own_kwargs && body_reads(&n->list, "kwargs");
    n->takes_varargs = !own_varargs && body_reads(&n->list, "varargs");
    /* the special parameters come after the named ones, in this order; jinja_eval.c finds them by slot name */
    if (n->takes_caller && !own_caller) param(w, jlex_atom(w->t->lex, "caller", 6));
    if (n->takes_kwargs) param(w, jlex_atom(w->t->lex, "kwargs", 6));
    if (n->takes_varargs) param(w, jlex_atom(w->t->lex, "varargs", 7));
    for (size_t i = 0; i < n->list2.n; i++) place_name(w, n->list2.v[i]);
    place_all(w, &n->list3);
    place_all(w, &n->list);
    close_frame(w, mark);
    w->in_loop = in_loop;
    w->soft = soft;
    w->branches = branches;
    w->loops = loops;
}

/* A frame whose body is list; extra: an expression evaluated inside it too. */
static void simple_frame(walker *w, jnode *n, jnode *extra) {
    size_t mark;
    bool soft = w->soft;
    uint32_t branches = w->branches;
    w->soft = false;
    w->branches = 0;
    n->scope = open_frame(w, &mark);
    if (n->kind == N_WITH) collect_all(w, &n->list2);
    if (extra) collect(w, extra);
    collect_all(w, &n->list);
    if (n->kind == N_WITH) place_all(w, &n->list2);
    if (extra) place(w, extra);
    place_all(w, &n->list);
    close_frame(w, mark);
    w->soft = soft;
    w->branches = branches;
}

static void loop(walker *w, jnode *n) {
    size_t mark;
    bool soft = w->soft, in_loop = w->in_loop;
    uint32_t branches = w->branches;
    place(w, n->b);
    w->soft = false;
    w->branches = 0;
    w->loops++;
    if (n->c) {
        n->scope2 = open_frame(w, &mark);
        collect_params(w, n->a);
        collect(w, n->c);
            place_targets(w, n->a, true);
        place(w, n->c);
        close_frame(w, mark);
    }
    n->scope = open_frame(w, &mark);
    param(w, jlex_atom(w->t->lex, "loop", 4)); /* slot 0 */
    collect_params(w, n->a);
    collect_all(w, &n->list);
    place_targets(w, n->a, false);
    w->in_loop = true;
    place_all(w, &n->list);
    close_frame(w, mark);
    w->in_loop = in_loop && !n->flag; /* a recursive loop is a function of its own */
    if (n->list2.n) {
        n->scope3 = open_frame(w, &mark);
        collect_all(w, &n->list2);
            place_all(w, &n->list2);
        close_frame(w, mark);
    }
    w->in_loop = in_loop;
    w->loops--;
    w->soft = soft;
    w->branches = branches;
}

static void known(walker *w, jnode *n) {
    bool is_filter = n->kind == N_FILTER;
    if (is_filter ? n->filter != NULL : n->test != NULL) return;
    if (!w->soft)
        jerror_raise(w->e, J_SYNTAX, n->line, "No %s named '%.*s'.", is_filter ? "filter" : "test", (int)n->name->s.n,
                     n->name->s.p);
}

static void place(walker *w, jnode *n) {
    bool soft = w->soft;
    if (!n) return;
    switch (n->kind) {
    case N_NAME: case N_NSREF: place_name(w, n); return;
    case N_SET:
        place(w, n->b);
        place(w, n->a);
        return;
    case N_SETBLOCK:
        simple_frame(w, n, n->b);
        place(w, n->a);
        return;
    case N_FOR: loop(w, n); return;
    case N_IF:
        w->soft = true;
        place(w, n->a);
        place_all(w, &n->list);
        place_all(w, &n->list2);
        place_all(w, &n->list3);
        w->soft = soft;
        return;
    case N_MACRO:
        macro(w, n);
        n->hops = (uint16_t)(w->cur->level - n->name->def->scope->level);
        n->slot = n->name->def->slot;
        return;
    case N_CALLBLOCK:
        macro(w, n);
        place(w, n->a);
        return;
    case N_FILTERBLOCK: simple_frame(w, n, n->a); return;
    case N_WITH:
        place_all(w, &n->list3);
        simple_frame(w, n, NULL);
        return;
    case N_SCOPE: simple_frame(w, n, NULL); return;
    case N_BLOCK:
        for (size_t i = 0; i < w->t->blocks.n && i < 1000; i++)
            if (w->t->blocks.v[i]->name == n->name)
                jerror_raise(w->e, J_SYNTAX, n->line, "block '%.*s' defined twice", (int)n->name->s.n, n->name->s.p);
        if (w->t->blocks.n == w->t->blocks.cap) {
            size_t cap = w->t->blocks.cap ? w->t->blocks.cap * 2 : 4;
            jnode **v = take(w, cap * sizeof *v);
            if (cap > 1000) jerror_raise(w->e, J_LIMIT, n->line, "more than 1000 blocks");
            if (w->t->blocks.n) memcpy(v, w->t->blocks.v, w->t->blocks.n * sizeof *v);
            w->t->blocks.v = v;
            w->t->blocks.cap = cap;
        }
        w->t->blocks.v[w->t->blocks.n++] = n;
        return;
    case N_BREAK: case N_CONTINUE:
        if (!w->in_loop)
            jerror_raise(w->e, J_SYNTAX, n->line, n->kind == N_BREAK ? "'break' outside loop"
                                                                      : "'continue' not properly in loop");
        return;
    case N_COND:
        w->soft = true;
        break;
    case N_FILTER: case N_TEST: known(w, n); break;
    default: break;
    }
    place(w, n->a);
    place(w, n->b);
    place(w, n->c);
    place_all(w, &n->list);
    place_all(w, &n->list2);
    w->soft = soft;
}

static jscope *frame(walker *w, jnodes *body) {
    size_t mark;
    jscope *s = open_frame(w, &mark);
    collect_all(w, body);
    place_all(w, body);
    close_frame(w, mark);
    return s;
}

void jscope_resolve(chat_template *t, jerror *e) {
    walker w = {.t = t, .e = e};
    t->root = frame(&w, &t->body);
    /* a block is a frame without a parent; blocks inside blocks are appended while this runs */
    for (size_t i = 0; i < t->blocks.n; i++) t->blocks.v[i]->scope = frame(&w, &t->blocks.v[i]->list);
}
