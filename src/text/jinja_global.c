/* jinja_global.c - the functions a template may call: range, dict, namespace, cycler, joiner, raise_exception,
 * strftime_now, and the helpers of loop variables. */
#include "text/jinja_int.h"

#include <stdio.h>
#include <time.h>

static const struct {
    const char *name;
    jfunc id;
} GLOBALS[] = {{"range", JF_RANGE}, {"dict", JF_DICT}, {"namespace", JF_NAMESPACE}, {"cycler", JF_CYCLER},
               {"joiner", JF_JOINER}, {"lipsum", JF_LIPSUM}, {"raise_exception", JF_RAISE},
               {"strftime_now", JF_STRFTIME}};

jval jglobal_find(jinja *j, const jstr *name) {
    (void)j;
    for (size_t i = 0; i < sizeof GLOBALS / sizeof *GLOBALS; i++)
        if (jstr_is(name, GLOBALS[i].name)) return (jval){.k = V_FUNC, .sub = (uint8_t)GLOBALS[i].id};
    return (jval){.k = V_MISSING};
}

static jval range(jinja *j, const jargs *a) {
    jrange *r = jcalloc(j, 1, sizeof *r);
    ji128 n;
    if (a->n_kw) jfail(j, J_TYPE, "range() takes no keyword arguments");
    if (a->n < 1 || a->n > 3)
        jfail(j, J_TYPE,
              a->n ? "range expected at most 3 arguments, got %zu" : "range expected at least 1 argument, got %zu",
              a->n);
    r->step = 1;
    if (a->n > 1) r->start = jindex(j, a->v[0], "");
    r->stop = jindex(j, a->v[a->n > 1], "");
    if (a->n > 2) r->step = jindex(j, a->v[2], "");
    if (!r->step) jfail(j, J_VALUE, "range() arg 3 must not be zero");
    if (r->step > 0) n = r->stop > r->start ? ((ji128)r->stop - r->start - 1) / r->step + 1 : 0;
    else n = r->start > r->stop ? ((ji128)r->start - r->stop - 1) / -(ji128)r->step + 1 : 0;
    if (n > JINJA_MAX_RANGE)
        jfail(j, J_VALUE, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", JINJA_MAX_RANGE);
    r->n = (int64_t)n;
    return (jval){.k = V_RANGE, .r = r};
}

jval jdict_of(jinja *j, const char *fname, const jargs *a) {
    jdict *d = jdict_new(j);
    if (a->n > 1) jfail(j, J_TYPE, "%s expected at most 1 argument, got %zu", fname, a->n);
    if (a->n && a->v[0].k == V_DICT) {
        for (uint32_t i = 0; i < a->v[0].d->n; i++) jdict_set(j, d, a->v[0].d->e[i].key, a->v[0].d->e[i].val);
    } else if (a->n) {
        jiter *it = jiter_new(j, a->v[0]);
        jval x;
        for (size_t k = 0; jiter_next(j, it, &x); k++) {
            jlist *l;
            if (!jiterable(x))
                jfail(j, J_TYPE, "cannot convert dictionary update sequence element #%zu to a sequence", k);
            l = jto_list(j, x);
            if (l->n != 2)
                jfail(j, J_VALUE, "dictionary update sequence element #%zu has length %zu; 2 is required", k, l->n);
            jdict_set(j, d, l->v[0], l->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) jdict_set(j, d, jstring(a->kw[i]), a->kv[i]);
    return jdictv(d);
}

static jval namespace(jinja *j, const jargs *a) {
    jval v = jdict_of(j, "dict", a);
    for (uint32_t i = 0; i < v.d->n; i++) {
        const jval key = v.d->e[i].key;
        if (key.k == V_STR && key.s->n && key.s->p[0] == '_')
            jfail(j, J_SANDBOX,
                  "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%.*s'. "
                  "Please rename the attribute.",
                  key.s->n < 100 ? (int)key.s->n : 100, key.s->p);
    }
    v.k = V_NS;
    return v;
}

static jval cycler(jinja *j, const jargs *a) {
    jcycler *c = jcalloc(j, 1, sizeof *c);
    if (a->n_kw) jfail(j, J_TYPE, "Cycler.__init__() got an unexpected keyword argument");
    if (!a->n) jfail(j, J_RUNTIME, "at least one item has to be provided");
    c->items = jlist_new(j, a->n);
    memcpy(c->items->v, a->v, a->n * sizeof *a->v);
    c->items->n = a->n;
    return (jval){.k = V_CYCLER, .cy = c};
}

static jval joiner(jinja *j, const jargs *a) {
    static const char *const NAMES[] = {"sep"};
    jjoiner *o = jcalloc(j, 1, sizeof *o);
    jbind(j, "Joiner.__init__", a, 0, 1, NAMES, &o->sep);
    if (o->sep.k == V_MISSING) o->sep = jstring(jstr_lit(j, ", "));
    return (jval){.k = V_JOINER, .jo = o};
}

/* Python's datetime.strftime: the C library's, in the C locale, on a naive time. */
static jval strftime_now(jinja *j, const jargs *a) {
    static const char *const NAMES[] = {"format"};
    static const char ALLOWED[] = "aAwdbBmyYHIMSpjUWcxXGuVeDFTRrnthCgklsP%";
    size_t (*const format)(char *, size_t, const char *, const struct tm *) = strftime; /* unchecked on purpose */
    jval f;
    char spec[8], text[100];
    time_t t = (time_t)j->opt->now;
    struct tm tm = {0};
    jsb b;
    bool trusted;
    jbind(j, "strftime_now", a, 1, 1, NAMES, &f);
    if (f.k != V_STR) jfail(j, J_TYPE, "strftime() argument 1 must be str, not %s", jtype_name(f));
    if (!(j->opt->local ? localtime_r(&t, &tm) : gmtime_r(&t, &tm))) jfail(j, J_VALUE, "time out of range");
    trusted = !jstr_tainted(f.s);
    jsb_init(&b);
    for (size_t i = 0; i < f.s->n; i++) {
        size_t k = 0;
        if (f.s->p[i] != '%' || i + 1 >= f.s->n) {
            jsb_add(j, &b, f.s->p + i, 1, trusted);
            continue;
        }
        spec[k++] = f.s->p[i++];
        if (strchr("-_0^#", f.s->p[i]) && f.s->p[i] && i + 1 < f.s->n) spec[k++] = f.s->p[i++];
        spec[k] = f.s->p[i];
        spec[k + 1] = 0;
        if (spec[k] == 'f') jsb_add(j, &b, "000000", 6, trusted);
        else if (spec[k] == 'z' || spec[k] == 'Z') continue; /* a naive time has no zone */
        else if (!spec[k] || !strchr(ALLOWED, spec[k])) jsb_add(j, &b, spec, k + 1, trusted);
        else jsb_add(j, &b, text, format(text, sizeof text, spec, &tm), trusted);
    }
    return jstring(jsb_done(j, &b));
}

static jval fromkeys(jinja *j, const jargs *a) {
    static const char *const NAMES[] = {NULL, NULL};
    jval x[2], key;
    jdict *d = jdict_new(j);
    jiter *it;
    jbind(j, "fromkeys", a, 1, 2, NAMES, x);
    for (it = jiter_new(j, x[0]); jiter_next(j, it, &key);) jdict_set(j, d, key, x[1].k == V_MISSING ? jnone() : x[1]);
    return jdictv(d);
}

jval jglobal_call(jinja *j, jval f, const jargs *a) {
    static const char *const MESSAGE[] = {"message"};
    jval v;
    const jstr *s;
    switch ((jfunc)f.sub) {
    case JF_RANGE: return range(j, a);
    case JF_DICT: return jdict_of(j, "dict", a);
    case JF_NAMESPACE: return namespace(j, a);
    case JF_CYCLER: return cycler(j, a);
    case JF_JOINER: return joiner(j, a);
    case JF_FROMKEYS: return fromkeys(j, a);
    case JF_STRFTIME: return strftime_now(j, a);
    case JF_RAISE:
        jbind(j, "raise_exception", a, 1, 1, MESSAGE, &v);
        s = jto_str(j, v);
        jfail(j, J_RAISE, "%.*s", (int)s->n, s->p);
    default: jfail(j, J_UNSUPPORTED, "lipsum is not supported");
    }
}
