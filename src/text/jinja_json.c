/* jinja_json.c - the tojson filter: Python's json.dumps(x, ensure_ascii, indent, separators, sort_keys), with
 * ensure_ascii off unless asked for, as transformers replaces Jinja's own filter. */
#include "text/jinja_int.h"

#include <stdio.h>

typedef struct {
    jsb b;
    bool ascii, sort;
    const jstr *indent; /* NULL: one line */
    const jstr *item, *key;
} writer;

static void text(jinja *j, writer *w, const jstr *s) {
    uint32_t hint = 0;
    size_t from = 0;
    char t[16];
    jsb_lit(j, &w->b, "\"");
    for (size_t at = 0, n; at < s->n; at += n) {
        unsigned char c = (unsigned char)s->p[at];
        n = jutf8_len(c);
        if (c == '"' || c == '\\') snprintf(t, sizeof t, "\\%c", c);
        else if (c == '\n') strcpy(t, "\\n");
        else if (c == '\r') strcpy(t, "\\r");
        else if (c == '\t') strcpy(t, "\\t");
        else if (c == '\f') strcpy(t, "\\f");
        else if (c == '\b') strcpy(t, "\\b");
        else if (c < 0x20) snprintf(t, sizeof t, "\\u%04x", c);
        else if (w->ascii && c >= 0x80) {
            uint32_t cp = jutf8_at(s->p + at);
            if (cp < 0x10000) snprintf(t, sizeof t, "\\u%04x", cp);
            else
                snprintf(t, sizeof t, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                         0xdc00 + ((cp - 0x10000) & 0x3ff));
        } else continue;
        jsb_sub(j, &w->b, s, from, at);
        jsb_add(j, &w->b, t, strlen(t), jstr_trusted_at(s, at, &hint));
        from = at + n;
    }
    jbytes(j, s->n);
    jsb_sub(j, &w->b, s, from, s->n);
    jsb_lit(j, &w->b, "\"");
}

static void number(jinja *j, writer *w, jval v) {
    char t[40];
    if (v.k != V_FLOAT) {
        jrepr_add(j, &w->b, v);
        return;
    }
    jfloat_text(j, v.f, t);
    jsb_lit(j, &w->b,
            !strcmp(t, "nan")    ? "NaN"
            : !strcmp(t, "inf")  ? "Infinity"
            : !strcmp(t, "-inf") ? "-Infinity"
                                 : t);
}

static void new_line(jinja *j, writer *w, size_t level) {
    if (!w->indent) return;
    jsb_lit(j, &w->b, "\n");
    jsb_fill(j, &w->b, w->indent, level);
}

static void value(jinja *j, writer *w, jval v, size_t level);

static void key(jinja *j, writer *w, jval k) {
    switch (k.k) {
    case V_STR: text(j, w, k.s); return;
    case V_BOOL: jsb_lit(j, &w->b, k.i ? "\"true\"" : "\"false\""); return;
    case V_NONE: jsb_lit(j, &w->b, "\"null\""); return;
    case V_INT: case V_BIG: case V_FLOAT:
        jsb_lit(j, &w->b, "\"");
        number(j, w, k);
        jsb_lit(j, &w->b, "\"");
        return;
    default: jfail(j, J_TYPE, "keys must be str, int, float, bool or None, not %s", jtype_name(k));
    }
}

static void object(jinja *j, writer *w, jval v, size_t level) {
    const jdict *d = v.d;
    if (!d->n) {
        jsb_lit(j, &w->b, "{}");
        return;
    }
    if (w->sort) { /* by key alone: keys differ, so whole pairs order the same */
        jlist *keys =
            jfilter_find("sort", 4)
                ->fn(j, v,
                     &(jargs){
                         .n_kw = 1, .kw = (const jstr *[]){jstr_lit(j, "case_sensitive")}, .kv = (jval[]){jbool(true)}})
                .l;
        jdict *sorted = jdict_new(j);
        for (size_t i = 0; i < keys->n; i++) {
            jval x = jnone();
            jdict_get(j, d, keys->v[i], &x);
            jdict_set(j, sorted, keys->v[i], x);
        }
        d = sorted;
    }
    jsb_lit(j, &w->b, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) jsb_str(j, &w->b, w->item);
        new_line(j, w, level + 1);
        key(j, w, d->e[i].key);
        jsb_str(j, &w->b, w->key);
        value(j, w, d->e[i].val, level + 1);
    }
    new_line(j, w, level);
    jsb_lit(j, &w->b, "}");
}

static void array(jinja *j, writer *w, const jlist *l, size_t level) {
    if (!l->n) {
        jsb_lit(j, &w->b, "[]");
        return;
    }
    jsb_lit(j, &w->b, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i) jsb_str(j, &w->b, w->item);
        new_line(j, w, level + 1);
        value(j, w, l->v[i], level + 1);
    }
    new_line(j, w, level);
    jsb_lit(j, &w->b, "]");
}

static void value(jinja *j, writer *w, jval v, size_t level) {
    jstep(j, 1);
    jdeeper(j);
    switch (v.k) {
    case V_NONE: jsb_lit(j, &w->b, "null"); break;
    case V_BOOL: jsb_lit(j, &w->b, v.i ? "true" : "false"); break;
    case V_INT: case V_BIG: case V_FLOAT: number(j, w, v); break;
    case V_STR: text(j, w, v.s); break;
    case V_LIST: case V_TUPLE: array(j, w, v.l, level); break;
    case V_DICT: object(j, w, v, level); break;
    default: jfail(j, J_TYPE, "Object of type %s is not JSON serializable", jtype_name(v));
    }
    jhigher(j);
}

static bool given(jval v) {
    return v.k != V_MISSING && v.k != V_NONE;
}

jval jtojson(jinja *j, jval v, const jargs *a) {
    static const char *const NAMES[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    jval x[4];
    writer w = {0};
    jbind(j, "tojson", a, 0, 4, NAMES, x);
    w.ascii = x[0].k != V_MISSING && jtruth(j, x[0]);
    w.sort = x[3].k != V_MISSING && jtruth(j, x[3]);
    if (given(x[1])) {
        jsb b;
        jsb_init(&b);
        if (x[1].k == V_STR) {
            w.indent = x[1].s;
        } else {
            int64_t n = jindex(j, x[1], "");
            if (n > 1000) jfail(j, J_LIMIT, "indent too large");
            if (n > 0) jsb_fill(j, &b, jstr_lit(j, " "), (size_t)n);
            w.indent = jsb_done(j, &b);
        }
    }
    w.item = jstr_lit(j, w.indent ? "," : ", ");
    w.key = jstr_lit(j, ": ");
    if (given(x[2])) {
        jlist *l = jto_list(j, x[2]);
        if (l->n != 2) jfail(j, J_VALUE, "separators must be two strings");
        if (l->v[0].k != V_STR || l->v[1].k != V_STR) jfail(j, J_TYPE, "separators must be strings");
        w.item = l->v[0].s;
        w.key = l->v[1].s;
    }
    value(j, &w, v, 0);
    return jstring(jsb_done(j, &w.b));
}
