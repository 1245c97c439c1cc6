/* jinja_method.c - which attributes values have, and the methods of everything but strings.
 *
 * A name that Python's object has hides a dict's key of the same name ("items"), so the tables hold every public name
 * of the type, also those that the sandbox refuses.  Dunder names exist on every object and are always refused. */
#include "text/jinja_int.h"

#include <math.h>

#define NO_ARGS(j, a, fname) jbind(j, fname, a, 0, 0, NULL, NULL)

static const jval NOTHING = {.k = V_MISSING};

/* Ids are places in these lists. */
static const char *const DICT[] = {"get", "items", "keys", "values", "copy", "fromkeys", "clear", "pop", "popitem",
                                   "setdefault", "update"};
static const char *const LIST[] = {"count", "index", "copy", "append", "clear", "extend", "insert", "pop", "remove",
                                   "reverse", "sort"};
static const char *const VIEW[] = {"isdisjoint", "mapping"};
static const char *const LOOP[] = {"cycle", "changed"};
static const char *const CYCLER[] = {"next", "reset"};
static const char *const INT[] = {"bit_length", "conjugate", "as_integer_ratio", "bit_count", "to_bytes", "from_bytes"};
static const char *const FLOAT[] = {"is_integer", "conjugate", "as_integer_ratio", "hex", "fromhex"};
static const char *const BYTES[] = {"decode"};
static const char *const DUNDER[] = {"__class__", "__delattr__", "__dir__", "__doc__", "__eq__", "__format__", "__ge__",
    "__getattribute__", "__getstate__", "__gt__", "__hash__", "__init__", "__init_subclass__", "__le__", "__lt__",
    "__ne__", "__new__", "__reduce__", "__reduce_ex__", "__repr__", "__setattr__", "__sizeof__", "__str__",
    "__subclasshook__"};
static const char *const CONTAINER_DUNDER[] = {"__contains__", "__getitem__", "__iter__", "__len__", "__add__",
    "__mul__", "__mod__", "__rmul__", "__setitem__", "__delitem__", "__class_getitem__", "__or__", "__reversed__",
    "__iadd__", "__imul__", "__ior__", "__ror__", "__rmod__", "__getnewargs__"};

static int place(const jstr *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (jstr_is(name, names[i])) return (int)i;
    return -1;
}
#define PLACE(name, list) place(name, list, sizeof(list) / sizeof *(list))

static jval bound(jinja *j, jval self, const char *name, int id) {
    jmethod *m = jalloc(j, sizeof *m);
    *m = (jmethod){self, name, id};
    return (jval){.k = V_METHOD, .me = m};
}

static jval bound_at(jinja *j, jval self, int id, const char *const *names) {
    return id < 0 ? NOTHING : bound(j, self, names[id], id);
}

static jval number_attr(jinja *j, jval v, const jstr *name) {
    if (jstr_is(name, "real")) return v.k == V_FLOAT ? v : jint128(j, jas_i128(v));
    if (jstr_is(name, "imag")) return v.k == V_FLOAT ? jfloat(0) : jint(0);
    if (v.k == V_FLOAT) return bound_at(j, v, PLACE(name, FLOAT), FLOAT);
    if (jstr_is(name, "numerator")) return jint128(j, jas_i128(v));
    if (jstr_is(name, "denominator")) return jint(1);
    return bound_at(j, v, PLACE(name, INT), INT);
}

static jval macro_attr(jinja *j, const jmacro *m, const jstr *name) {
    const jnode *n = m->node;
    if (jstr_is(name, "name")) return n->kind == N_MACRO ? jstring(&n->name->s) : jnone();
    if (jstr_is(name, "arguments")) {
        jlist *l = jlist_new(j, n->list2.n);
        for (size_t i = 0; i < n->list2.n; i++) l->v[l->n++] = jstring(&n->list2.v[i]->name->s);
        return jtuplev(l);
    }
    if (jstr_is(name, "catch_kwargs")) return jbool(n->takes_kwargs);
    if (jstr_is(name, "catch_varargs")) return jbool(n->takes_varargs);
    if (jstr_is(name, "caller")) return jbool(n->takes_caller);
    return NOTHING;
}

jval jmethod_find(jinja *j, jval obj, const jstr *name) {
    jval v;
    int id;
    if (name->n > 4 && name->p[0] == '_' && name->p[1] == '_' && obj.k != V_NS) {
        bool box = obj.k == V_STR || obj.k == V_LIST || obj.k == V_TUPLE || obj.k == V_DICT;
        if (PLACE(name, DUNDER) >= 0 || (box && PLACE(name, CONTAINER_DUNDER) >= 0))
            return jnone(); /* refused anyway */
    }
    switch (obj.k) {
    case V_STR:
        id = jstr_method_id(name);
        return id < 0 ? NOTHING : bound(j, obj, jstr_method_name(id), id);
    case V_DICT: return bound_at(j, obj, PLACE(name, DICT), DICT);
    case V_LIST: return bound_at(j, obj, PLACE(name, LIST), LIST);
    case V_TUPLE:
        if (obj.sub && jstr_is(name, "grouper")) return obj.l->v[0];
        if (obj.sub && jstr_is(name, "list")) return obj.l->v[1];
        id = PLACE(name, LIST);
        return id > 1 ? NOTHING : bound_at(j, obj, id, LIST);
    case V_RANGE:
        if (jstr_is(name, "start")) return jint(obj.r->start);
        if (jstr_is(name, "stop")) return jint(obj.r->stop);
        if (jstr_is(name, "step")) return jint(obj.r->step);
        id = PLACE(name, LIST);
        return id > 1 ? NOTHING : bound_at(j, obj, id, LIST);
    case V_NS: return jdict_get(j, obj.d, jstring(name), &v) ? v : NOTHING;
    case V_BOOL: case V_INT: case V_BIG: case V_FLOAT: return number_attr(j, obj, name);
    case V_BYTES: return bound_at(j, obj, PLACE(name, BYTES), BYTES);
    case V_VIEW: return bound_at(j, obj, PLACE(name, VIEW), VIEW);
    case V_LOOP:
        v = jloop_attr(j, obj.lp, name);
        return v.k == V_MISSING ? bound_at(j, obj, PLACE(name, LOOP), LOOP) : v;
    case V_CYCLER:
        if (jstr_is(name, "current")) return obj.cy->items->v[obj.cy->pos];
        if (jstr_is(name, "items")) return jtuplev(obj.cy->items);
        if (jstr_is(name, "pos")) return jint((int64_t)obj.cy->pos);
        return bound_at(j, obj, PLACE(name, CYCLER), CYCLER);
    case V_JOINER:
        if (jstr_is(name, "sep")) return obj.jo->sep;
        return jstr_is(name, "used") ? jbool(obj.jo->used) : NOTHING;
    case V_MACRO: return macro_attr(j, obj.m, name);
    case V_FUNC:
        if (obj.sub == JF_DICT && jstr_is(name, "fromkeys")) return (jval){.k = V_FUNC, .sub = JF_FROMKEYS};
        return NOTHING;
    default: return NOTHING;
    }
}

static jval dict_call(jinja *j, const jmethod *m, const jargs *a) {
    static const char *const NONE[] = {NULL, NULL};
    const jdict *d = m->self.d;
    jval x[2], v;
    switch (m->id) {
    case 0:
        jbind(j, "get", a, 1, 2, NONE, x);
        if (jdict_get(j, d, x[0], &v)) return v;
        return x[1].k == V_MISSING ? jnone() : x[1];
    case 1: case 2: case 3:
        NO_ARGS(j, a, m->name);
        return (jval){.k = V_VIEW, .d = m->self.d,
                      .sub = m->id == 1 ? JVIEW_ITEMS : m->id == 2 ? JVIEW_KEYS : JVIEW_VALUES};
    case 4:
        NO_ARGS(j, a, m->name);
        return jdict_of(j, "dict", &(jargs){.v = (jval[]){m->self}, .n = 1});
    case 5: return jglobal_call(j, (jval){.k = V_FUNC, .sub = JF_FROMKEYS}, a);
    default: jfail(j, J_SANDBOX, "access to attribute '%s' of 'dict' object is unsafe.", m->name);
    }
}

static jval list_call(jinja *j, const jmethod *m, const jargs *a) {
    static const char *const NONE[] = {NULL, NULL, NULL};
    jval x[3], v;
    const jstr *r;
    int64_t from = 0, to, n = 0, i = 0;
    jiter *it;
    if (m->id == 2) {
        NO_ARGS(j, a, m->name);
        return jlistv(jto_list(j, m->self));
    }
    if (m->id > 2) jfail(j, J_SANDBOX, "access to attribute '%s' of 'list' object is unsafe.", m->name);
    jbind(j, m->name, a, 1, m->id == 0 ? 1 : 3, NONE, x);
    to = jlength(j, m->self);
    if (m->id == 1 && x[1].k != V_MISSING && (from = jindex(j, x[1], "")) < 0) from += to;
    if (m->id == 1 && x[2].k != V_MISSING) {
        int64_t end = jindex(j, x[2], "");
        to = end < 0 ? end + to : end;
    }
    for (it = jiter_new(j, m->self); jiter_next(j, it, &v); i++) {
        if (i < from || i >= to || !jequal(j, v, x[0])) continue;
        if (m->id == 1) return jint(i);
        n++;
    }
    if (m->id == 0) return jint(n);
    if (m->self.k == V_TUPLE) jfail(j, J_VALUE, "tuple.index(x): x not in tuple");
    r = jrepr(j, x[0]);
    jfail(j, J_VALUE, "%.*s is not in %s", r->n < 200 ? (int)r->n : 200, r->p, jtype_name(m->self));
}

static jval loop_method(jinja *j, const jmethod *m, const jargs *a) {
    jloop *lp = m->self.lp;
    jlist *l;
    if (a->n_kw) jfail(j, J_TYPE, "LoopContext.%s() got an unexpected keyword argument", m->name);
    if (m->id == 0) {
        if (!a->n) jfail(j, J_TYPE, "no items for cycling given");
        return a->v[lp->index0 % (int64_t)a->n];
    }
    l = jlist_new(j, a->n);
    if (a->n) memcpy(l->v, a->v, a->n * sizeof *a->v);
    l->n = a->n;
    if (lp->changed.k != V_MISSING && jequal(j, lp->changed, jtuplev(l))) return jbool(false);
    lp->changed = jtuplev(l);
    return jbool(true);
}

static jval number_call(jinja *j, const jmethod *m, const jargs *a) {
    jval v = m->self;
    NO_ARGS(j, a, m->name);
    if (!strcmp(m->name, "conjugate")) return v.k == V_FLOAT ? v : jint128(j, jas_i128(v));
    if (!strcmp(m->name, "is_integer")) return jbool(isfinite(v.f) && v.f == floor(v.f));
    if (!strcmp(m->name, "bit_length")) {
        ji128 i = jas_i128(v);
        int64_t n = 0;
        for (i = i < 0 ? -i : i; i; i >>= 1) n++;
        return jint(n);
    }
    jfail(j, J_UNSUPPORTED, "%s.%s is not supported", jtype_name(v), m->name);
}

jval jmethod_call(jinja *j, const jmethod *m, const jargs *a) {
    switch (m->self.k) {
    case V_STR: return jstr_method(j, m->self.s, m->id, a);
    case V_DICT: return dict_call(j, m, a);
    case V_LIST: case V_TUPLE: case V_RANGE: return list_call(j, m, a);
    case V_LOOP: return loop_method(j, m, a);
    case V_CYCLER:
        NO_ARGS(j, a, m->name);
        if (m->id == 1) {
            m->self.cy->pos = 0;
            return jnone();
        } else {
            jcycler *c = m->self.cy;
            jval v = c->items->v[c->pos];
            c->pos = (c->pos + 1) % c->items->n;
            return v;
        }
    case V_BYTES: NO_ARGS(j, a, m->name); return jstring(m->self.s);
    case V_BOOL: case V_INT: case V_BIG: case V_FLOAT: return number_call(j, m, a);
    default: jfail(j, J_UNSUPPORTED, "%s.%s is not supported", jtype_name(m->self), m->name);
    }
}
