/* jinja_value.c - values: numbers, lists, dicts, undefined, equality and order, iteration.
 *
 * Lists and dicts of a render never change once a template sees them (the sandbox refuses the methods that would),
 * except namespaces.  Nested values are walked with jdeeper(), so that depth is bounded. */
#include "text/jinja_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <xxhash.h>

void jmemory_fail(jinja *j) {
    if (j->mem.failed == HD_NOMEM) jfail(j, J_MEMORY, "no memory to render the template");
    jfail(j, J_LIMIT, "the template's values need more than %zu bytes", j->mem.max_bytes);
}

void *jalloc(jinja *j, size_t n) {
    void *p = arena_alloc(&j->mem, n);
    if (!p) jmemory_fail(j);
    return p;
}

void *jcalloc(jinja *j, size_t n, size_t size) {
    void *p = arena_calloc(&j->mem, n, size);
    if (!p) jmemory_fail(j);
    return p;
}

void *jgrow(jinja *j, void *old, size_t was, size_t n) {
    void *p = arena_grow(&j->mem, old, was, n);
    if (!p) jmemory_fail(j);
    return p;
}

void jstep_fail(jinja *j) {
    j->steps = 0;
    jfail(j, J_LIMIT, "the template takes too many steps");
}

void jdepth_fail(jinja *j) {
    jfail(j, J_RECURSION, "maximum recursion depth exceeded");
}

/* ---- numbers ---- */

jval jint128(jinja *j, ji128 v) {
    jval r = {.k = V_BIG};
    if (v >= INT64_MIN && v <= INT64_MAX) return jint((int64_t)v);
    r.big = jalloc(j, sizeof *r.big);
    *r.big = v;
    return r;
}

ji128 jas_i128(jval v) {
    return v.k == V_BIG ? *v.big : (ji128)v.i;
}

double jas_double(jval v) {
    return v.k == V_FLOAT ? v.f : v.k == V_BIG ? (double)*v.big : (double)v.i;
}

int64_t jindex(jinja *j, jval v, const char *what) {
    const ji128 max = (ji128)1 << 62;
    ji128 i;
    if (v.k == V_UNDEF) jundef_raise(j, v);
    if (!jis_int(v)) jfail(j, J_TYPE, "%s'%s' object cannot be interpreted as an integer", what, jtype_name(v));
    i = jas_i128(v);
    return (int64_t)(i > max ? max : i < -max ? -max : i);
}

/* ---- types ---- */

const char *jtype_name(jval v) {
    switch (v.k) {
    case V_MISSING: case V_UNDEF: return "Undefined";
    case V_NONE: return "NoneType";
    case V_BOOL: return "bool";
    case V_INT: case V_BIG: return "int";
    case V_FLOAT: return "float";
    case V_STR: return v.s->markup ? "Markup" : "str";
    case V_BYTES: return "bytes";
    case V_LIST: return "list";
    case V_TUPLE: return v.sub ? "_GroupTuple" : "tuple";
    case V_DICT: return "dict";
    case V_VIEW: return v.sub == JVIEW_KEYS ? "dict_keys" : v.sub == JVIEW_VALUES ? "dict_values" : "dict_items";
    case V_RANGE: return "range";
    case V_ITER: return v.it->type_name;
    case V_NS: return "Namespace";
    case V_MACRO: return "Macro";
    case V_FUNC: return "function";
    case V_METHOD: return v.me->self.k == V_STR && v.me->self.s->markup ? "method" : "builtin_function_or_method";
    case V_LOOP: return "LoopContext";
    case V_CYCLER: return "Cycler";
    case V_JOINER: return "Joiner";
    default: return "object";
    }
}

const char *jtype_repr(jval v, char dst[64]) {
    const char *module = "";
    switch (v.k) {
    case V_NONE: return "None";
    case V_NS: case V_CYCLER: case V_JOINER: module = "jinja2.utils."; break;
    case V_MACRO: case V_LOOP: case V_UNDEF: module = "jinja2.runtime."; break;
    case V_STR: module = v.s->markup ? "markupsafe." : ""; break;
    default: break;
    }
    snprintf(dst, 64, "%s%s object", module, jtype_name(v));
    return dst;
}

bool jtruth(jinja *j, jval v) {
    switch (v.k) {
    case V_MISSING: case V_UNDEF: case V_NONE: return false;
    case V_BOOL: case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STR: case V_BYTES: return v.s->n != 0;
    case V_LIST: case V_TUPLE: return v.l->n != 0;
    case V_DICT: case V_VIEW: return v.d->n != 0;
    case V_RANGE: return v.r->n != 0;
    case V_LOOP: return jloop_length(j, v.lp) != 0;
    default: return true;
    }
}

/* ---- undefined ---- */

static jval undef_new(jinja *j, const char *hint, jval obj, jval name, jclass cls) {
    jundef *u = jalloc(j, sizeof *u);
    *u = (jundef){hint, obj, name, cls};
    return (jval){.k = V_UNDEF, .u = u};
}

jval jundef_name(jinja *j, const jstr *name) {
    return undef_new(j, NULL, (jval){.k = V_MISSING}, jstring(name), J_UNDEFINED);
}

/* A template that asks every character of a string for a key would make millions: equal ones in a row are shared. */
jval jundef_attr(jinja *j, jval obj, jval name) {
    uint64_t h = ((uint64_t)obj.i ^ (uint64_t)name.i * 31) * 0x9e3779b97f4a7c15;
    jundef **place = &j->undefs[h >> 56], *u = *place;
    if (!u || u->obj.k != obj.k || u->obj.sub != obj.sub || u->obj.i != obj.i || u->name.k != name.k ||
        u->name.i != name.i)
        *place = undef_new(j, NULL, obj, name, J_UNDEFINED).u;
    return (jval){.k = V_UNDEF, .u = *place};
}

jval jundef_hint(jinja *j, const char *fmt, ...) {
    char buf[300], *s;
    int n;
    va_list ap;
    va_start(ap, fmt);
    n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    n = n < 0 ? 0 : n < (int)sizeof buf ? n : (int)sizeof buf - 1;
    s = jalloc(j, (size_t)n + 1);
    memcpy(s, buf, (size_t)n);
    s[n] = 0;
    return undef_new(j, s, (jval){.k = V_MISSING}, jnone(), J_UNDEFINED);
}

jval jundef_unsafe(jinja *j, jval obj, const jstr *attr) {
    jval u = jundef_hint(j, "access to attribute '%.*s' of '%s' object is unsafe.", attr->n < 200 ? (int)attr->n : 200,
                         attr->p, jtype_name(obj));
    u.u->cls = J_SANDBOX;
    return u;
}

void jundef_raise(jinja *j, jval v) {
    const jundef *u = v.u;
    char type[64];
    const jstr *name;
    if (v.k != V_UNDEF) jfail(j, J_UNDEFINED, "value is undefined");
    if (u->hint) jfail(j, u->cls, "%s", u->hint);
    name = jrepr(j, u->name);
    if (u->obj.k == V_MISSING) jfail(j, u->cls, "%.*s is undefined", (int)name->n, name->p);
    if (u->name.k != V_STR)
        jfail(j, u->cls, "%s has no element %.*s", jtype_repr(u->obj, type), (int)name->n, name->p);
    jfail(j, u->cls, "'%s' has no attribute %.*s", jtype_repr(u->obj, type), (int)name->n, name->p);
}

/* ---- equality, order, hashes ---- */

static int num_order(jval a, jval b, bool *nan) {
    *nan = false;
    if (a.k != V_FLOAT && b.k != V_FLOAT) {
        ji128 x = jas_i128(a), y = jas_i128(b);
        return x < y ? -1 : x > y;
    }
    if (a.k == V_FLOAT && b.k == V_FLOAT) {
        *nan = isnan(a.f) || isnan(b.f);
        return a.f < b.f ? -1 : a.f > b.f;
    }
    { /* int and float: exactly, not through rounding */
        bool flip = a.k == V_FLOAT;
        double f = flip ? a.f : b.f;
        ji128 i = jas_i128(flip ? b : a), t;
        int r;
        if (isnan(f)) {
            *nan = true;
            return 0;
        }
        if (f >= 0x1p126) r = -1;
        else if (f <= -0x1p126) r = 1;
        else {
            t = (ji128)f;
            r = i < t ? -1 : i > t ? 1 : (double)t < f ? -1 : (double)t > f;
        }
        return flip ? -r : r;
    }
}

static bool list_equal(jinja *j, const jlist *a, const jlist *b) {
    bool same = a->n == b->n;
    jdeeper(j);
    for (size_t i = 0; same && i < a->n; i++) same = jequal(j, a->v[i], b->v[i]);
    jhigher(j);
    return same;
}

static bool dict_equal(jinja *j, const jdict *a, const jdict *b) {
    bool same = a->n == b->n;
    jval v;
    jdeeper(j);
    for (uint32_t i = 0; same && i < a->n; i++)
        same = jdict_get(j, b, a->e[i].key, &v) && jequal(j, a->e[i].val, v);
    jhigher(j);
    return same;
}

bool jsame(jval a, jval b) {
    if (a.k != b.k) return false;
    switch (a.k) {
    case V_MISSING: case V_NONE: return true;
    case V_FLOAT: return a.f == b.f;
    case V_BIG: return *a.big == *b.big;
    case V_STR: return a.s == b.s || (a.s->p == b.s->p && a.s->n == b.s->n);
    default: return a.i == b.i && a.sub == b.sub;
    }
}

bool jequal(jinja *j, jval a, jval b) {
    bool nan;
    jstep(j, 1);
    if (jis_num(a) && jis_num(b)) return num_order(a, b, &nan) == 0 && !nan;
    if (a.k == V_STR && b.k == V_STR) {
        jbytes(j, a.s->n);
        return jstr_eq(a.s, b.s);
    }
    if (a.k != b.k) return false;
    switch (a.k) {
    case V_UNDEF: case V_NONE: return true;
    case V_BYTES: return jstr_eq(a.s, b.s);
    case V_LIST: case V_TUPLE: return list_equal(j, a.l, b.l);
    case V_DICT: return dict_equal(j, a.d, b.d);
    case V_RANGE:
        return a.r->n == b.r->n && (!a.r->n || (a.r->start == b.r->start && (a.r->n == 1 || a.r->step == b.r->step)));
    case V_METHOD: return a.me->id == b.me->id && jsame(a.me->self, b.me->self);
    default: return a.i == b.i && a.sub == b.sub;
    }
}

static bool from_order(int r, jcmp op) {
    return op == CMP_LT ? r < 0 : op == CMP_LE ? r <= 0 : op == CMP_GT ? r > 0 : r >= 0;
}

bool jless(jinja *j, jval a, jval b, jcmp op) {
    static const char *const OPS[] = {[CMP_LT] = "<", [CMP_LE] = "<=", [CMP_GT] = ">", [CMP_GE] = ">="};
    bool nan, r;
    jstep(j, 1);
    if (a.k == V_UNDEF) jundef_raise(j, a);
    if (b.k == V_UNDEF) jundef_raise(j, b);
    if (jis_num(a) && jis_num(b)) {
        int o = num_order(a, b, &nan);
        return !nan && from_order(o, op);
    }
    if (a.k == b.k && (a.k == V_STR || a.k == V_BYTES)) { /* UTF-8 bytes order as code points */
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        int o = n ? memcmp(a.s->p, b.s->p, n) : 0;
        jbytes(j, n);
        return from_order(o ? o : a.s->n < b.s->n ? -1 : a.s->n > b.s->n, op);
    }
    if (a.k == b.k && (a.k == V_LIST || a.k == V_TUPLE)) {
        size_t n = a.l->n < b.l->n ? a.l->n : b.l->n, i = 0;
        while (i < n && jequal(j, a.l->v[i], b.l->v[i])) i++;
        if (i == n) return from_order(a.l->n < b.l->n ? -1 : a.l->n > b.l->n, op);
        jdeeper(j);
        r = jless(j, a.l->v[i], b.l->v[i], op);
        jhigher(j);
        return r;
    }
    jfail(j, J_TYPE, "'%s' not supported between instances of '%s' and '%s'", OPS[op], jtype_name(a), jtype_name(b));
}

uint64_t jstr_hash(const jstr *s) {
    uint64_t h = s->hash ? s->hash : XXH3_64bits(s->p, s->n);
    return h ? h : 1;
}

uint64_t jhash(jinja *j, jval v) {
    uint64_t h = v.k;
    switch (v.k) {
    case V_STR: case V_BYTES:
        if (!v.s->hash) jbytes(j, v.s->n);
        return jstr_hash(v.s);
    case V_FLOAT:
        if (fabs(v.f) < 0x1p63 && v.f == floor(v.f)) return jhash(j, jint((int64_t)v.f));
        return XXH3_64bits(&v.f, sizeof v.f);
    case V_BOOL: case V_INT: return XXH3_64bits(&v.i, sizeof v.i);
    case V_BIG: {
        double f = (double)*v.big; /* a float may be equal to it */
        return XXH3_64bits(&f, sizeof f);
    }
    case V_NONE: case V_UNDEF: case V_MISSING: return XXH3_64bits(&h, sizeof h);
    case V_TUPLE:
        jdeeper(j);
        for (size_t i = 0; i < v.l->n; i++) h = (h ^ jhash(j, v.l->v[i])) * 0x9e3779b97f4a7c15;
        jhigher(j);
        return h;
    case V_LIST: case V_DICT: jfail(j, J_TYPE, "unhashable type: '%s'", jtype_name(v));
    default: return XXH3_64bits(&v.i, sizeof v.i);
    }
}

/* ---- lists and dicts ---- */

jlist *jlist_new(jinja *j, size_t cap) {
    jlist *l = jalloc(j, sizeof *l);
    *l = (jlist){0};
    if (cap) {
        uint64_t n = (uint64_t)cap * sizeof *l->v;
        if (cap > SIZE_MAX / sizeof *l->v) jfail(j, J_LIMIT, "list too long");
        l->v = jalloc(j, n);
        l->cap = cap;
    }
    return l;
}

void jlist_add(jinja *j, jlist *l, jval v) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        l->v = jgrow(j, l->v, l->cap * sizeof *l->v, cap * sizeof *l->v);
        l->cap = cap;
    }
    jstep(j, 1);
    l->v[l->n++] = v;
}

jdict *jdict_new(jinja *j) {
    jdict *d = jalloc(j, sizeof *d);
    *d = (jdict){0};
    return d;
}

enum { DICT_SMALL = 8 }; /* up to here a scan is as quick as an index */

static bool key_equal(jinja *j, const jentry *e, jval key, uint64_t hash) {
    jstep(j, 1);
    return e->hash == hash && jequal(j, e->key, key);
}

static jentry *dict_find(jinja *j, const jdict *d, jval key, uint64_t hash) {
    if (!d->index) {
        for (uint32_t i = 0; i < d->n; i++)
            if (key_equal(j, &d->e[i], key, hash)) return &d->e[i];
        return NULL;
    }
    for (uint32_t at = (uint32_t)hash & (d->n_index - 1);; at = (at + 1) & (d->n_index - 1)) {
        if (!d->index[at]) return NULL;
        if (key_equal(j, &d->e[d->index[at] - 1], key, hash)) return &d->e[d->index[at] - 1];
    }
}

static void dict_index(jdict *d, uint32_t i) {
    uint32_t at = (uint32_t)d->e[i].hash & (d->n_index - 1);
    while (d->index[at]) at = (at + 1) & (d->n_index - 1);
    d->index[at] = i + 1;
}

void jdict_set(jinja *j, jdict *d, jval key, jval val) {
    uint64_t hash = jhash(j, key);
    jentry *e = dict_find(j, d, key, hash);
    if (e) {
        e->val = val;
        return;
    }
    if (d->n == d->cap) {
        uint32_t cap = d->cap ? d->cap * 2 : 4;
        if (d->cap > UINT32_MAX / 8) jfail(j, J_LIMIT, "dict too large");
        d->e = jgrow(j, d->e, d->cap * sizeof *d->e, cap * sizeof *d->e);
        d->cap = cap;
        if (cap > DICT_SMALL) {
            d->n_index = cap * 2;
            d->index = jcalloc(j, d->n_index, sizeof *d->index);
            for (uint32_t i = 0; i < d->n; i++) dict_index(d, i);
            jstep(j, d->n);
        }
    }
    d->e[d->n++] = (jentry){key, val, hash};
    if (d->index) dict_index(d, d->n - 1);
}

bool jdict_get(jinja *j, const jdict *d, jval key, jval *out) {
    jentry *e = dict_find(j, d, key, jhash(j, key));
    if (e) *out = e->val;
    return e != NULL;
}

bool jdict_gets(jinja *j, const jdict *d, const char *key, jval *out) {
    jstr s = {.p = key, .n = (uint32_t)strlen(key)};
    return jdict_get(j, d, jstring(&s), out);
}

int64_t jlength(jinja *j, jval v) {
    switch (v.k) {
    case V_UNDEF: return 0;
    case V_STR: return v.s->n_cp;
    case V_BYTES: return v.s->n;
    case V_LIST: case V_TUPLE: return (int64_t)v.l->n;
    case V_DICT: case V_VIEW: return v.d->n;
    case V_RANGE: return v.r->n;
    case V_LOOP: return jloop_length(j, v.lp);
    default: jfail(j, J_TYPE, "object of type '%s' has no len()", jtype_name(v));
    }
}

/* ---- iteration ---- */

jval jiter_val(jiter *it) {
    return (jval){.k = V_ITER, .it = it};
}

bool jiterable(jval v) {
    switch (v.k) {
    case V_UNDEF:
    case V_STR:
    case V_BYTES:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_ITER:
    case V_LOOP: return true;
    default: return false;
    }
}

jiter *jiter_new(jinja *j, jval v) {
    jiter *it;
    if (v.k == V_ITER) return v.it;
    it = jcalloc(j, 1, sizeof *it);
    it->src = v;
    it->type_name = "iterator";
    switch (v.k) {
    case V_UNDEF: it->kind = IT_EMPTY; break;
    case V_STR:
        it->kind = IT_STR;
        it->src.s = jstr_plain(j, v.s); /* characters of Markup are plain */
        break;
    case V_LIST: case V_TUPLE: it->kind = IT_LIST; break;
    case V_DICT: it->kind = IT_DICT; break;
    case V_VIEW:
        it->kind = IT_DICT;
        it->view = v.sub;
        break;
    case V_RANGE: it->kind = IT_RANGE; break;
    case V_BYTES: case V_LOOP: jfail(j, J_UNSUPPORTED, "iterating over a '%s' is not supported", jtype_name(v));
    default: jfail(j, J_TYPE, "'%s' object is not iterable", jtype_name(v));
    }
    return it;
}

static jval pair(jinja *j, jval a, jval b) {
    jlist *l = jlist_new(j, 2);
    l->v[0] = a;
    l->v[1] = b;
    l->n = 2;
    return jtuplev(l);
}

/* The next item that passes; *out is left alone at the end. */
static bool filtered(jinja *j, jiter *it, jval *out) {
    jval x;
    if (it->wrong) jfail(j, J_RUNTIME, "%s", it->wrong);
    while (jiter_next(j, it->in, &x)) {
        jval asked;
        switch (it->kind) {
        case IT_MAP_ATTR: *out = jget_path(j, x, it->attr, it->dflt); return true;
        case IT_MAP: *out = it->filter->fn(j, x, &it->args); return true;
        case IT_TEST:
            if (!jtest_item(j, it, &x)) continue;
            break;
        default:
            asked = it->on_attr ? jget_path(j, x, it->attr, (jval){.k = V_MISSING}) : x;
            if ((it->test ? it->test->fn(j, asked, &it->args) : jtruth(j, asked)) == it->reject) continue;
        }
        *out = x;
        return true;
    }
    return false;
}

bool jiter_next(jinja *j, jiter *it, jval *out) {
    bool more;
    jstep(j, 1);
    switch (it->kind) {
    case IT_EMPTY: return false;
    case IT_LIST:
        if (it->pos >= it->src.l->n) return false;
        *out = it->src.l->v[it->pos++];
        return true;
    case IT_REVERSED:
        if (it->pos >= it->src.l->n) return false;
        *out = it->src.l->v[it->src.l->n - ++it->pos];
        return true;
    case IT_STR:
        if (it->pos >= it->src.s->n) return false;
        *out = jstring(jstr_char(j, it->src.s, it->pos));
        it->pos += jutf8_len((unsigned char)it->src.s->p[it->pos]);
        return true;
    case IT_DICT:
        if (it->pos >= it->src.d->n) return false;
        {
            const jentry *e = &it->src.d->e[it->pos++];
            *out = it->view == JVIEW_KEYS ? e->key : it->view == JVIEW_VALUES ? e->val : pair(j, e->key, e->val);
        }
        return true;
    case IT_RANGE:
        if (it->pos >= (size_t)it->src.r->n) return false;
        *out = jint(it->src.r->start + (int64_t)it->pos++ * it->src.r->step);
        return true;
    case IT_LATER:
        if (!it->started) {
            it->started = true;
            it->src = it->later(j, it);
        }
        if (it->pos >= it->src.l->n) return false;
        *out = it->src.l->v[it->pos++];
        return true;
    case IT_MAP_ATTR: case IT_MAP: case IT_SELECT: case IT_TEST:
        if (it->busy) jfail(j, J_VALUE, "generator already executing");
        it->busy = true;
        jdeeper(j);
        if (!it->started) { /* a generator looks at its source when it is first asked */
            it->started = true;
            if (it->kind == IT_TEST || jtruth(j, it->src)) it->in = jiter_new(j, it->src);
        }
        more = it->in && filtered(j, it, out);
        jhigher(j);
        it->busy = false;
        return more;
    }
    return false;
}

jlist *jto_list(jinja *j, jval v) {
    jlist *l;
    jiter *it;
    jval x;
    if (v.k == V_LIST || v.k == V_TUPLE) {
        l = jlist_new(j, v.l->n);
        jstep(j, v.l->n);
        if (v.l->n) memcpy(l->v, v.l->v, v.l->n * sizeof *l->v);
        l->n = v.l->n;
        return l;
    }
    it = jiter_new(j, v);
    l = jlist_new(j, 0);
    while (jiter_next(j, it, &x)) jlist_add(j, l, x);
    return l;
}

/* ---- input ---- */

/* Strings point into the JSON value, which outlives the render. */
jval jfrom_json(jinja *j, const json_t *v, bool trusted) {
    jval r = jnone();
    jstep(j, 1);
    jdeeper(j);
    switch (json_typeof(v)) {
    case JSON_NULL: break;
    case JSON_TRUE: r = jbool(true); break;
    case JSON_FALSE: r = jbool(false); break;
    case JSON_INTEGER: r = jint(json_integer_value(v)); break;
    case JSON_REAL: r = jfloat(json_real_value(v)); break;
    case JSON_STRING: {
        size_t n = json_string_length(v);
        jstr *s = jcalloc(j, 1, sizeof *s + sizeof(jspan));
        jspan *span = (jspan *)(s + 1);
        if (n > UINT32_MAX / 4) jfail(j, J_LIMIT, "input string too long");
        if (!j->opt->max_steps) j->steps += n * JINJA_STEPS_PER_BYTE;
        s->p = json_string_value(v);
        s->n = (uint32_t)n;
        s->n_cp = (uint32_t)jutf8_count(s->p, n);
        if (!trusted && n) {
            *span = (jspan){0, s->n};
            s->spans = span;
            s->n_spans = 1;
        }
        r = jstring(s);
        break;
    }
    case JSON_ARRAY: {
        size_t n = json_array_size(v);
        jlist *l = jlist_new(j, n);
        for (size_t i = 0; i < n; i++) l->v[l->n++] = jfrom_json(j, json_array_get(v, i), trusted);
        r = jlistv(l);
        break;
    }
    case JSON_OBJECT: {
        jdict *d = jdict_new(j);
        json_t *o = (json_t *)(uintptr_t)v; /* jansson's iterators take no const, but only read */
        for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
            size_t n = json_object_iter_key_len(it);
            jstr *k = jcalloc(j, 1, sizeof *k + sizeof(jspan));
            jspan *span = (jspan *)(k + 1);
            k->p = json_object_iter_key(it);
            k->n = (uint32_t)n;
            k->n_cp = (uint32_t)jutf8_count(k->p, n);
            if (!trusted && n) {
                *span = (jspan){0, k->n};
                k->spans = span;
                k->n_spans = 1;
            }
            jdict_set(j, d, jstring(k), jfrom_json(j, json_object_iter_value(it), trusted));
        }
        r = jdictv(d);
        break;
    }
    }
    jhigher(j);
    return r;
}
