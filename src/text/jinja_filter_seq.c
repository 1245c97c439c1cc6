/* jinja_filter_seq.c - filters on sequences.  map, select, reject, unique, batch, slice and items give iterators that
 * work when asked, once, as Python's generators do.  Semantics: jinja2/filters.py of 3.1.6. */
#include "text/jinja_int.h"

#include <stdio.h>

#define NO_ARGS(j, a, fname) jbind(j, fname, a, 0, 0, NULL, NULL)

static bool flag(jinja *j, jval v) {
    return v.k != V_MISSING && jtruth(j, v);
}

/* An argument that Python's sorted() wants as an integer. */
static bool int_flag(jinja *j, jval v) {
    if (v.k == V_UNDEF) jfail(j, J_TYPE, "'Undefined' object cannot be interpreted as an integer");
    return v.k != V_MISSING && jindex(j, v, "") != 0;
}

static jval fold_case(jinja *j, jval v, bool case_sensitive) {
    return v.k == V_STR && !case_sensitive ? jstring(jstr_case(j, v.s, CASE_LOWER)) : v;
}

/* ---- one item, all items ---- */

static jval f_length(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "len");
    return jint(jlength(j, v));
}

static jval f_list(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_list");
    return jlistv(jto_list(j, v));
}

static jval f_first(jinja *j, jval v, const jargs *a) {
    jval x;
    NO_ARGS(j, a, "do_first");
    return jiter_next(j, jiter_new(j, v), &x) ? x : jundef_hint(j, "No first item, sequence was empty.");
}

static jlist *reversible(jinja *j, jval v) {
    switch (v.k) {
    case V_LIST: case V_TUPLE: return v.l;
    case V_STR: case V_DICT: case V_VIEW: case V_RANGE: case V_UNDEF: return jto_list(j, v);
    default: jfail(j, J_TYPE, "'%s' object is not reversible", jtype_name(v));
    }
}

static jval f_last(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "do_last");
    if (v.k == V_STR && v.s->n) return jget_item(j, v, jint(-1));
    {
        jlist *l = reversible(j, v);
        return l->n ? l->v[l->n - 1] : jundef_hint(j, "No last item, sequence was empty.");
    }
}

static jval f_reverse(jinja *j, jval v, const jargs *a) {
    jiter *it;
    NO_ARGS(j, a, "do_reverse");
    if (v.k == V_STR) return jslice(j, v, jnone(), jnone(), jint(-1));
    if (v.k == V_ITER) { /* no reversed() for generators: a reversed list */
        jlist *l = jto_list(j, v);
        return jslice(j, jlistv(l), jnone(), jnone(), jint(-1));
    }
    if (!jiterable(v)) jfail(j, J_RUNTIME, "argument must be iterable");
    it = jcalloc(j, 1, sizeof *it);
    *it = (jiter){.kind = IT_REVERSED, .type_name = v.k == V_LIST ? "list_reverseiterator" : "reversed"};
    it->src = jlistv(reversible(j, v));
    return jiter_val(it);
}

static jval f_join(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"d", "attribute"};
    jval x[2];
    const jstr *sep;
    jbind(j, "do_join", a, 0, 2, NAMES, x);
    sep = x[0].k == V_MISSING ? jstr_lit(j, "") : jto_str(j, x[0]);
    if (x[1].k != V_MISSING && x[1].k != V_NONE) {
        jiter *it = jiter_new(j, v);
        jlist *l = jlist_new(j, 0);
        jval item;
        while (jiter_next(j, it, &item)) jlist_add(j, l, jget_path(j, item, x[1], (jval){.k = V_MISSING}));
        v = jlistv(l);
    }
    if (j->autoescape) { /* one safe part makes the whole safe */
        jlist *l = jto_list(j, v);
        bool safe = x[0].k == V_STR && x[0].s->markup;
        for (size_t i = 0; i < l->n; i++) safe |= l->v[i].k == V_STR && l->v[i].s->markup;
        if (safe)
            return jstring(jstr_join(j, jstr_escape(j, x[0].k == V_MISSING ? jstring(sep) : x[0]), jlistv(l), true));
        v = jlistv(l);
    }
    return jstring(jstr_join(j, sep, v, true));
}

static jval f_sum(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"attribute", "start"};
    jval x[2], item, sum;
    jiter *it;
    jbind(j, "do_sum", a, 0, 2, NAMES, x);
    sum = x[1].k == V_MISSING ? jint(0) : x[1];
    it = jiter_new(j, v);
    if (sum.k == V_STR) jfail(j, J_TYPE, "sum() can't sum strings [use ''.join(seq) instead]");
    while (jiter_next(j, it, &item)) sum = jadd(j, sum, jget_path(j, item, x[0], (jval){.k = V_MISSING}));
    return sum;
}

static jval extreme(jinja *j, jval v, const jargs *a, jcmp op, const char *fname) {
    static const char *const NAMES[] = {"case_sensitive", "attribute"};
    jval x[2], item, best, best_key;
    jiter *it;
    bool cs;
    jbind(j, fname, a, 0, 2, NAMES, x);
    it = jiter_new(j, v);
    cs = flag(j, x[0]);
    if (!jiter_next(j, it, &best)) return jundef_hint(j, "No aggregated item, sequence was empty.");
    best_key = fold_case(j, jget_path(j, best, x[1], (jval){.k = V_MISSING}), cs);
    while (jiter_next(j, it, &item)) {
        jval key = fold_case(j, jget_path(j, item, x[1], (jval){.k = V_MISSING}), cs);
        if (!jless(j, key, best_key, op)) continue;
        best = item;
        best_key = key;
    }
    return best;
}

static jval f_min(jinja *j, jval v, const jargs *a) { return extreme(j, v, a, CMP_LT, "do_min"); }
static jval f_max(jinja *j, jval v, const jargs *a) { return extreme(j, v, a, CMP_GT, "do_max"); }

/* ---- sorting ---- */

typedef struct {
    jval key, val;
} keyed;

/* Stable merge sort; only "less" is asked, as in Python.  Reversed order keeps equal items in place. */
static void merge_sort(jinja *j, keyed *v, keyed *tmp, size_t n, bool reverse) {
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * w) {
            size_t mid = lo + w < n ? lo + w : n, hi = lo + 2 * w < n ? lo + 2 * w : n, a = lo, b = mid;
            for (size_t k = lo; k < hi; k++) {
                bool take_b = a >= mid || (b < hi && (reverse ? jless(j, v[a].key, v[b].key, CMP_LT)
                                                              : jless(j, v[b].key, v[a].key, CMP_LT)));
                tmp[k] = take_b ? v[b++] : v[a++];
            }
        }
        memcpy(v, tmp, n * sizeof *v);
    }
}

static jlist *sort_by(jinja *j, keyed *v, size_t n, bool reverse) {
    keyed *tmp = jalloc(j, (n + 1) * sizeof *tmp);
    jlist *l = jlist_new(j, n);
    merge_sort(j, v, tmp, n, reverse);
    for (size_t i = 0; i < n; i++) l->v[l->n++] = v[i].val;
    return l;
}

/* A list of the values at attributes "a,b.c", or of the item alone: lists ask for "less" only where members differ. */
static jval sort_key(jinja *j, jval item, const jlist *paths, bool cs) {
    jlist *key = jlist_new(j, paths->n);
    for (size_t i = 0; i < paths->n; i++)
        key->v[key->n++] = fold_case(j, jget_path(j, item, paths->v[i], (jval){.k = V_MISSING}), cs);
    return jlistv(key);
}

static jval f_sort(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"reverse", "case_sensitive", "attribute"};
    jval x[3];
    jlist *l, *paths;
    keyed *k;
    jbind(j, "do_sort", a, 0, 3, NAMES, x);
    l = jto_list(j, v);
    if (x[2].k == V_STR) {
        paths = jstr_split(j, x[2].s, jstr_lit(j, ","), -1, false);
    } else {
        paths = jlist_new(j, 1);
        paths->v[paths->n++] = x[2];
    }
    k = jalloc(j, (l->n + 1) * sizeof *k);
    for (size_t i = 0; i < l->n; i++) k[i] = (keyed){sort_key(j, l->v[i], paths, flag(j, x[1])), l->v[i]};
    return jlistv(sort_by(j, k, l->n, int_flag(j, x[0])));
}

static jval f_dictsort(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"case_sensitive", "by", "reverse"};
    jval x[3];
    bool by_value = false;
    keyed *k;
    jlist *l;
    jbind(j, "do_dictsort", a, 0, 3, NAMES, x);
    if (x[1].k != V_MISSING) {
        by_value = x[1].k == V_STR && jstr_is(x[1].s, "value");
        if (!by_value && !(x[1].k == V_STR && jstr_is(x[1].s, "key")))
            jfail(j, J_RUNTIME, "You can only sort by either \"key\" or \"value\"");
    }
    if (v.k == V_UNDEF) jundef_raise(j, v);
    if (v.k != V_DICT) jfail(j, J_TYPE, "'%s' object has no attribute 'items'", jtype_name(v));
    l = jto_list(j, (jval){.k = V_VIEW, .sub = JVIEW_ITEMS, .d = v.d});
    k = jalloc(j, (l->n + 1) * sizeof *k);
    for (size_t i = 0; i < l->n; i++)
        k[i] = (keyed){fold_case(j, l->v[i].l->v[by_value], flag(j, x[0])), l->v[i]};
    return jlistv(sort_by(j, k, l->n, int_flag(j, x[2])));
}

static jval f_groupby(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"attribute", "default", "case_sensitive"};
    jval x[3], key = {.k = V_MISSING};
    jlist *l, *sorted, *out, *group = NULL;
    keyed *k;
    bool cs;
    jbind(j, "do_groupby", a, 1, 3, NAMES, x);
    cs = flag(j, x[2]);
    l = jto_list(j, v);
    k = jalloc(j, (l->n + 1) * sizeof *k);
    for (size_t i = 0; i < l->n; i++) k[i] = (keyed){fold_case(j, jget_path(j, l->v[i], x[0], x[1]), cs), l->v[i]};
    sorted = sort_by(j, k, l->n, false);
    out = jlist_new(j, 0);
    for (size_t i = 0; i < sorted->n; i++) {
        if (!group || !jequal(j, k[i].key, key)) {
            jlist *pair = jlist_new(j, 2);
            jval t = jtuplev(pair);
            key = k[i].key;
            group = jlist_new(j, 0);
            pair->v[0] = cs ? key : jget_path(j, sorted->v[i], x[0], x[1]);
            pair->v[1] = jlistv(group);
            pair->n = 2;
            t.sub = 1;
            jlist_add(j, out, t);
        }
        jlist_add(j, group, sorted->v[i]);
    }
    return jlistv(out);
}

/* ---- iterators ---- */

static jargs rest_of(const jargs *a, size_t from) {
    jargs r = *a;
    r.v = a->v ? a->v + from : NULL;
    r.n = a->n - from;
    return r;
}

/* "No filter named 'x'." */
static const char *unknown(jinja *j, const char *what, jval name) {
    const jstr *r = jrepr(j, name);
    size_t n = r->n < 200 ? r->n : 200;
    char *t = jalloc(j, n + 40);
    snprintf(t, n + 40, "No %s named %.*s.", what, (int)n, r->p);
    return t;
}

static jiter *generator(jinja *j, jiter_kind kind, jval src) {
    jiter *it = jcalloc(j, 1, sizeof *it);
    *it = (jiter){.kind = kind, .type_name = "generator", .src = src};
    return it;
}

static jval f_map(jinja *j, jval v, const jargs *a) {
    jiter *it = generator(j, IT_MAP, v);
    size_t i = 0;
    while (i < a->n_kw && !jstr_is(a->kw[i], "attribute")) i++;
    if (!a->n && i < a->n_kw) {
        it->kind = IT_MAP_ATTR;
        it->attr = a->kv[i];
        it->dflt = (jval){.k = V_MISSING};
        for (size_t k = 0; k < a->n_kw; k++) {
            if (jstr_is(a->kw[k], "default")) it->dflt = a->kv[k];
            else if (k != i) it->wrong = "Unexpected keyword argument";
        }
        return jiter_val(it);
    }
    if (!a->n) {
        it->wrong = "map requires a filter argument";
        return jiter_val(it);
    }
    if (a->v[0].k == V_STR) it->filter = jfilter_find(a->v[0].s->p, a->v[0].s->n);
    if (!it->filter) it->wrong = unknown(j, "filter", a->v[0]);
    it->args = rest_of(a, 1);
    return jiter_val(it);
}

static jval selection(jinja *j, jval v, const jargs *a, bool on_attr, bool reject) {
    jiter *it = generator(j, IT_SELECT, v);
    size_t off = on_attr;
    it->reject = reject;
    it->on_attr = on_attr;
    if (on_attr) {
        if (!a->n) {
            it->wrong = "Missing parameter for attribute name";
            return jiter_val(it);
        }
        it->attr = a->v[0];
    }
    if (a->n > off) {
        if (a->v[off].k == V_STR) it->test = jtest_find(a->v[off].s->p, a->v[off].s->n);
        if (!it->test) it->wrong = unknown(j, "test", a->v[off]);
        it->args = rest_of(a, off + 1);
    }
    return jiter_val(it);
}

static jval f_select(jinja *j, jval v, const jargs *a) { return selection(j, v, a, false, false); }
static jval f_reject(jinja *j, jval v, const jargs *a) { return selection(j, v, a, false, true); }
static jval f_selectattr(jinja *j, jval v, const jargs *a) { return selection(j, v, a, true, false); }
static jval f_rejectattr(jinja *j, jval v, const jargs *a) { return selection(j, v, a, true, true); }

static jval later(jinja *j, jval src, jval (*make)(jinja *, jiter *), const jval *args, size_t n) {
    jiter *it = generator(j, IT_LATER, src);
    it->later = make;
    it->args.v = jalloc(j, n * sizeof *args + 1);
    memcpy(it->args.v, args, n * sizeof *args);
    it->args.n = n;
    return jiter_val(it);
}

static jval items_make(jinja *j, jiter *it) {
    if (it->src.k == V_UNDEF) return jlistv(jlist_new(j, 0));
    if (it->src.k != V_DICT) jfail(j, J_TYPE, "Can only get item pairs from a mapping.");
    return jlistv(jto_list(j, (jval){.k = V_VIEW, .sub = JVIEW_ITEMS, .d = it->src.d}));
}

static jval f_items(jinja *j, jval v, const jargs *a) {
    jval none = jnone();
    NO_ARGS(j, a, "do_items");
    return later(j, v, items_make, &none, 1);
}

static jval unique_make(jinja *j, jiter *it) {
    jiter *in = jiter_new(j, it->src);
    jlist *l = jlist_new(j, 0);
    jdict *seen = jdict_new(j);
    jval x, key, was;
    while (jiter_next(j, in, &x)) {
        key = fold_case(j, jget_path(j, x, it->args.v[1], (jval){.k = V_MISSING}), flag(j, it->args.v[0]));
        if (jdict_get(j, seen, key, &was)) continue;
        jdict_set(j, seen, key, jnone());
        jlist_add(j, l, x);
    }
    return jlistv(l);
}

static jval f_unique(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"case_sensitive", "attribute"};
    jval x[2];
    jbind(j, "do_unique", a, 0, 2, NAMES, x);
    return later(j, v, unique_make, x, 2);
}

static jval batch_make(jinja *j, jiter *it) {
    jiter *in = jiter_new(j, it->src);
    jlist *out = jlist_new(j, 0), *cur = jlist_new(j, 0);
    int64_t n = jindex(j, it->args.v[0], "");
    jval x, fill = it->args.v[1];
    while (jiter_next(j, in, &x)) {
        if ((int64_t)cur->n == n) {
            jlist_add(j, out, jlistv(cur));
            cur = jlist_new(j, 0);
        }
        jlist_add(j, cur, x);
    }
    if (cur->n) {
        if (fill.k != V_MISSING && fill.k != V_NONE)
            while ((int64_t)cur->n < n) jlist_add(j, cur, fill);
        jlist_add(j, out, jlistv(cur));
    }
    return jlistv(out);
}

static jval f_batch(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"linecount", "fill_with"};
    jval x[2];
    jbind(j, "do_batch", a, 1, 2, NAMES, x);
    return later(j, v, batch_make, x, 2);
}

static jval slice_make(jinja *j, jiter *it) {
    jlist *seq = jto_list(j, it->src), *out = jlist_new(j, 0);
    int64_t slices = jindex(j, it->args.v[0], ""), n = (int64_t)seq->n, offset = 0;
    jval fill = it->args.v[1];
    if (!slices) jfail(j, J_VALUE, "integer division or modulo by zero");
    for (int64_t i = 0; i < slices; i++) {
        int64_t per = n / slices, extra = n % slices, start = offset + i * per, end;
        jlist *part = jlist_new(j, 0);
        if (i < extra) offset++;
        end = offset + (i + 1) * per;
        for (int64_t k = start; k < end; k++) jlist_add(j, part, seq->v[k]);
        if (fill.k != V_MISSING && fill.k != V_NONE && i >= extra) jlist_add(j, part, fill);
        jlist_add(j, out, jlistv(part));
    }
    return jlistv(out);
}

static jval f_slice(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"slices", "fill_with"};
    jval x[2];
    jbind(j, "do_slice", a, 1, 2, NAMES, x);
    return later(j, v, slice_make, x, 2);
}

const jfilter jfilters_seq[] = {
    {"batch", f_batch}, {"count", f_length}, {"dictsort", f_dictsort}, {"first", f_first}, {"groupby", f_groupby},
    {"items", f_items}, {"join", f_join}, {"last", f_last}, {"length", f_length}, {"list", f_list}, {"map", f_map},
    {"max", f_max}, {"min", f_min}, {"reject", f_reject}, {"rejectattr", f_rejectattr}, {"reverse", f_reverse},
    {"select", f_select}, {"selectattr", f_selectattr}, {"slice", f_slice}, {"sort", f_sort}, {"sum", f_sum},
    {"unique", f_unique}};
const size_t jfilters_seq_n = sizeof jfilters_seq / sizeof *jfilters_seq;
