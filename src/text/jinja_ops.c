/* jinja_ops.c - operators, attributes, items and slices, as Python's built-in types define them.
 *
 * Integers are exact up to 127 bits; beyond that the render ends with an error, where Python would go on. */
#include "text/jinja_int.h"

#include <math.h>

static _Noreturn void bad_operands(jinja *j, const char *op, jval a, jval b) {
    jfail(j, J_TYPE, "unsupported operand type(s) for %s: '%s' and '%s'", op, jtype_name(a), jtype_name(b));
}

static void defined(jinja *j, jval a, jval b) {
    if (a.k == V_UNDEF) jundef_raise(j, a);
    if (b.k == V_UNDEF) jundef_raise(j, b);
}

static _Noreturn void too_large(jinja *j) {
    jfail(j, J_UNSUPPORTED, "integer too large");
}

/* ---- arithmetic ---- */

struct jlist_room {
    size_t used, cap;
    jval v[];
};

/* The newest list of a room grows in place, so that building one item by item does not cost the square. */
static jval join_lists(jinja *j, jval a, jval b) {
    jlist *l = jlist_new(j, 0);
    jlist_room *room = a.l->room;
    size_t n = a.l->n + b.l->n, cap;
    jstep(j, b.l->n);
    if (!room || a.l->n != room->used || room->cap - room->used < b.l->n) {
        cap = room ? 2 * n : n; /* the second addition shows that more will come */
        jstep(j, n / 4);
        room = jalloc(j, sizeof *room + cap * sizeof *room->v);
        *room = (jlist_room){.used = a.l->n, .cap = cap};
        if (a.l->n) memcpy(room->v, a.l->v, a.l->n * sizeof *room->v);
    }
    if (b.l->n) memcpy(room->v + room->used, b.l->v, b.l->n * sizeof *room->v);
    room->used += b.l->n;
    *l = (jlist){.v = room->v, .n = n, .cap = n, .room = room};
    return a.k == V_LIST ? jlistv(l) : jtuplev(l);
}

jval jadd(jinja *j, jval a, jval b) {
    ji128 r;
    if (a.k == V_STR && b.k == V_STR) return jstring(jstr_concat(j, a.s, b.s));
    defined(j, a, b);
    if (jis_int(a) && jis_int(b)) {
        if (__builtin_add_overflow(jas_i128(a), jas_i128(b), &r)) too_large(j);
        return jint128(j, r);
    }
    if (jis_num(a) && jis_num(b)) return jfloat(jas_double(a) + jas_double(b));
    if (a.k == b.k && (a.k == V_LIST || a.k == V_TUPLE)) return join_lists(j, a, b);
    if (a.k == V_STR && !a.s->markup) jfail(j, J_TYPE, "can only concatenate str (not \"%s\") to str", jtype_name(b));
    if (a.k == V_LIST || a.k == V_TUPLE)
        jfail(j, J_TYPE, "can only concatenate %s (not \"%s\") to %s", jtype_name(a), jtype_name(b), jtype_name(a));
    bad_operands(j, "+", a, b);
}

jval jmul_seq(jinja *j, jval seq, jval times) {
    int64_t n = jindex(j, times, "");
    jlist *l;
    jsb b;
    if (n < 0) n = 0;
    if (seq.k == V_STR) {
        jsb_init(&b);
        jsb_fill(j, &b, seq.s, (size_t)n);
        return jstring(seq.s->markup ? jstr_markup(j, jsb_done(j, &b)) : jsb_done(j, &b));
    }
    if (seq.l->n && (uint64_t)n > j->mem.max_bytes / sizeof(jval) / seq.l->n) jfail(j, J_LIMIT, "list too long");
    if (!seq.l->n) n = 0;
    jstep(j, seq.l->n * (size_t)n);
    l = jlist_new(j, seq.l->n * (size_t)n);
    for (int64_t i = 0; i < n; i++, l->n += seq.l->n) memcpy(l->v + l->n, seq.l->v, seq.l->n * sizeof *l->v);
    return seq.k == V_LIST ? jlistv(l) : jtuplev(l);
}

static bool is_seq(jval v) {
    return v.k == V_STR || v.k == V_LIST || v.k == V_TUPLE;
}

static jval multiply(jinja *j, jval a, jval b) {
    ji128 r;
    defined(j, a, b);
    if (jis_int(a) && jis_int(b)) {
        if (__builtin_mul_overflow(jas_i128(a), jas_i128(b), &r)) too_large(j);
        return jint128(j, r);
    }
    if (jis_num(a) && jis_num(b)) return jfloat(jas_double(a) * jas_double(b));
    if (is_seq(a) && jis_int(b)) return jmul_seq(j, a, b);
    if (is_seq(b) && jis_int(a)) return jmul_seq(j, b, a);
    if (is_seq(a) || is_seq(b))
        jfail(j, J_TYPE, "can't multiply sequence by non-int of type '%s'", jtype_name(is_seq(a) ? b : a));
    bad_operands(j, "*", a, b);
}

/* Quotient towards minus infinity, remainder with the divisor's sign. */
static jval int_divide(jinja *j, jnode_kind op, jval a, jval b) {
    ji128 x = jas_i128(a), y = jas_i128(b), q, r;
    if (!y) jfail(j, J_VALUE, op == N_MOD ? "integer modulo by zero" : "integer division or modulo by zero");
    if (y == -1) return op == N_MOD ? jint(0) : jint128(j, -x);
    q = x / y;
    r = x % y;
    if (r && (r < 0) != (y < 0)) {
        q--;
        r += y;
    }
    return jint128(j, op == N_MOD ? r : q);
}

static jval float_divide(jinja *j, jnode_kind op, double x, double y) {
    double mod, div;
    if (y == 0) jfail(j, J_VALUE, op == N_MOD ? "float modulo" : "float floor division by zero");
    mod = fmod(x, y);
    div = (x - mod) / y;
    if (mod != 0) {
        if ((y < 0) != (mod < 0)) {
            mod += y;
            div -= 1;
        }
    } else {
        mod = copysign(0, y);
    }
    if (op == N_MOD) return jfloat(mod);
    if (div == 0) return jfloat(copysign(0, x / y));
    return jfloat(div - floor(div) > 0.5 ? floor(div) + 1 : floor(div));
}

static jval power(jinja *j, jval a, jval b) {
    double x, y, r;
    if (jis_int(a) && jis_int(b) && jas_i128(b) >= 0) {
        ji128 base = jas_i128(a), result = 1, n = jas_i128(b);
        if (base >= -1 && base <= 1 && n > 2) n = 2 + (n & 1);
        for (;;) {
            if (n & 1 && __builtin_mul_overflow(result, base, &result)) too_large(j);
            if (!(n >>= 1)) break;
            if (__builtin_mul_overflow(base, base, &base)) too_large(j);
        }
        return jint128(j, result);
    }
    x = jas_double(a);
    y = jas_double(b);
    if (x == 0 && y < 0) jfail(j, J_VALUE, "0.0 cannot be raised to a negative power");
    if (x < 0 && y != floor(y)) jfail(j, J_UNSUPPORTED, "complex numbers are not supported");
    r = pow(x, y);
    if (isinf(r) && !isinf(x) && !isinf(y)) jfail(j, J_VALUE, "(34, 'Numerical result out of range')");
    return jfloat(r);
}

jval jarith(jinja *j, jnode_kind op, jval a, jval b) {
    const char *sign = op == N_SUB        ? "-"
                       : op == N_DIV      ? "/"
                       : op == N_FLOORDIV ? "//"
                       : op == N_MOD      ? "%"
                                          : "** or pow()";
    ji128 r;
    if (op == N_ADD) return jadd(j, a, b);
    if (op == N_MUL) return multiply(j, a, b);
    if (op == N_MOD && a.k == V_STR) return jstring(jformat_percent(j, a.s, b));
    defined(j, a, b);
    if (!jis_num(a) || !jis_num(b)) bad_operands(j, sign, a, b);
    switch (op) {
    case N_SUB:
        if (a.k == V_FLOAT || b.k == V_FLOAT) return jfloat(jas_double(a) - jas_double(b));
        if (__builtin_sub_overflow(jas_i128(a), jas_i128(b), &r)) too_large(j);
        return jint128(j, r);
    case N_DIV:
        if (jas_double(b) == 0)
            jfail(j, J_VALUE, a.k == V_FLOAT || b.k == V_FLOAT ? "float division by zero" : "division by zero");
        return jfloat(jas_double(a) / jas_double(b));
    case N_POW: return power(j, a, b);
    default:
        if (a.k == V_FLOAT || b.k == V_FLOAT) return float_divide(j, op, jas_double(a), jas_double(b));
        return int_divide(j, op, a, b);
    }
}

jval jnegate(jinja *j, jval a, bool plus) {
    if (a.k == V_UNDEF) jundef_raise(j, a);
    if (a.k == V_FLOAT) return jfloat(plus ? a.f : -a.f);
    if (!jis_int(a)) jfail(j, J_TYPE, "bad operand type for unary %c: '%s'", plus ? '+' : '-', jtype_name(a));
    return jint128(j, plus ? jas_i128(a) : -jas_i128(a));
}

/* ---- comparison ---- */

bool jcontains(jinja *j, jval seq, jval item) {
    jval x;
    switch (seq.k) {
    case V_STR:
        if (item.k != V_STR)
            jfail(j, J_TYPE, "'in <string>' requires string as left operand, not %s", jtype_name(item));
        return jstr_find(j, seq.s, item.s, 0, seq.s->n, false) >= 0;
    case V_LIST: case V_TUPLE:
        for (size_t i = 0; i < seq.l->n; i++)
            if (jequal(j, seq.l->v[i], item)) return true;
        return false;
    case V_DICT: return jdict_get(j, seq.d, item, &x);
    case V_VIEW:
        if (seq.sub == JVIEW_KEYS) return jdict_get(j, seq.d, item, &x);
        break;
    case V_NONE: case V_BOOL: case V_INT: case V_BIG: case V_FLOAT: case V_NS: case V_MACRO: case V_FUNC: case V_METHOD:
    case V_CYCLER: case V_JOINER: jfail(j, J_TYPE, "argument of type '%s' is not iterable", jtype_name(seq));
    default: break;
    }
    for (jiter *it = jiter_new(j, seq); jiter_next(j, it, &x);)
        if (jequal(j, x, item)) return true;
    return false;
}

bool jcompare(jinja *j, jcmp op, jval a, jval b) {
    switch (op) {
    case CMP_EQ: return jequal(j, a, b);
    case CMP_NE: return !jequal(j, a, b);
    case CMP_IN: return jcontains(j, b, a);
    case CMP_NOTIN: return !jcontains(j, b, a);
    default: return jless(j, a, b, op);
    }
}

/* ---- attributes and items ---- */

static bool mutates(jval obj, const jstr *name) {
    static const char *const LIST[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const DICT[] = {"clear", "pop", "popitem", "setdefault", "update"};
    if (obj.k == V_LIST)
        for (size_t i = 0; i < sizeof LIST / sizeof *LIST; i++)
            if (jstr_is(name, LIST[i])) return true;
    if (obj.k == V_DICT)
        for (size_t i = 0; i < sizeof DICT / sizeof *DICT; i++)
            if (jstr_is(name, DICT[i])) return true;
    return false;
}

/* Attribute of the object itself with the sandbox's rules; V_MISSING: there is none. */
static jval own_attr(jinja *j, jval obj, const jstr *name) {
    jval v = jmethod_find(j, obj, name);
    if (v.k == V_MISSING) return v;
    if ((name->n && name->p[0] == '_') || mutates(obj, name)) return jundef_unsafe(j, obj, name);
    return v;
}

jval jget_attr(jinja *j, jval obj, const jstr *name) {
    jval v = own_attr(j, obj, name);
    if (v.k != V_MISSING) return v;
    if (obj.k == V_UNDEF) jundef_raise(j, obj);
    if (obj.k == V_DICT && jdict_get(j, obj.d, jstring(name), &v)) return v;
    return jundef_attr(j, obj, jstring(name));
}

static bool hashable(jval v) {
    if (v.k == V_LIST || v.k == V_DICT) return false;
    for (size_t i = 0; v.k == V_TUPLE && i < v.l->n; i++)
        if (!hashable(v.l->v[i])) return false;
    return true;
}

static bool item_at(jinja *j, jval obj, int64_t i, jval *out) {
    int64_t n = jlength(j, obj);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    switch (obj.k) {
    case V_STR: {
        size_t a = jstr_offset(obj.s, (size_t)i);
        jbytes(j, a);
        *out = jstring(jstr_char(j, obj.s, a));
        return true;
    }
    case V_BYTES: *out = jint((unsigned char)obj.s->p[i]); return true;
    case V_RANGE: *out = jint(obj.r->start + i * obj.r->step); return true;
    default: *out = obj.l->v[i]; return true;
    }
}

jval jget_item(jinja *j, jval obj, jval key) {
    jval v;
    switch (obj.k) {
    case V_UNDEF: jundef_raise(j, obj);
    case V_STR: case V_BYTES: case V_LIST: case V_TUPLE: case V_RANGE:
        if (jis_int(key) && item_at(j, obj, jindex(j, key, ""), &v)) return v;
        break;
    case V_DICT:
        if (hashable(key) && jdict_get(j, obj.d, key, &v)) return v;
        break;
    default: break;
    }
    if (key.k == V_STR) {
        v = own_attr(j, obj, key.s);
        if (v.k != V_MISSING) return v;
    }
    return jundef_attr(j, obj, key);
}

/* "a.b.0": items one after the other, digits as numbers.  dflt (unless missing or none) replaces undefined ones. */
jval jget_path(jinja *j, jval obj, jval attr, jval dflt) {
    size_t from = 0;
    const jstr *s = attr.s;
    if (attr.k == V_NONE || attr.k == V_MISSING) return obj;
    if (attr.k != V_STR) {
        obj = jget_item(j, obj, attr);
        return obj.k == V_UNDEF && dflt.k != V_MISSING && dflt.k != V_NONE ? dflt : obj;
    }
    for (;;) {
        size_t to = from;
        bool digits = true;
        jval part;
        for (; to < s->n && s->p[to] != '.'; to++) digits &= s->p[to] >= '0' && s->p[to] <= '9';
        if (digits && to > from && to - from < 18) {
            int64_t i = 0;
            for (size_t k = from; k < to; k++) i = i * 10 + (s->p[k] - '0');
            part = jint(i);
        } else {
            part = jstring(jstr_sub(j, s, from, to));
        }
        obj = jget_item(j, obj, part);
        if (obj.k == V_UNDEF && dflt.k != V_MISSING && dflt.k != V_NONE) obj = dflt;
        if (to >= s->n) return obj;
        from = to + 1;
    }
}

/* ---- slices ---- */

static int64_t slice_index(jinja *j, jval v, int64_t none) {
    if (v.k == V_NONE) return none;
    if (!jis_int(v))
        jfail(j, J_TYPE, "slice indices must be integers or None or have an __index__ method");
    return jindex(j, v, "");
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high) {
    if (i < 0) i += n;
    return i < low ? low : i > high ? high : i;
}

jval jslice(jinja *j, jval obj, jval start, jval stop, jval step) {
    int64_t n, st = slice_index(j, step, 1), a, b, count;
    jlist *l;
    jsb sb;
    switch (obj.k) {
    case V_UNDEF: jundef_raise(j, obj);
    case V_STR: case V_BYTES: case V_LIST: case V_TUPLE: case V_RANGE: break;
    case V_DICT: jfail(j, J_TYPE, "unhashable type: 'slice'");
    default: jfail(j, J_TYPE, "'%s' object is not subscriptable", jtype_name(obj));
    }
    n = jlength(j, obj);
    if (!st) jfail(j, J_VALUE, "slice step cannot be zero");
    if (st > n) st = n + 1; /* no further than past the other end */
    if (st < -n) st = -n - 1;
    a = clamp(slice_index(j, start, st > 0 ? 0 : n - 1 < 0 ? 0 : n - 1), n, st > 0 ? 0 : -1, st > 0 ? n : n - 1);
    b = stop.k == V_NONE ? (st > 0 ? n : -1) : clamp(slice_index(j, stop, 0), n, st > 0 ? 0 : -1, st > 0 ? n : n - 1);
    if (st > 0) count = b > a ? (b - a - 1) / st + 1 : 0;
    else count = a > b ? (a - b - 1) / -st + 1 : 0;
    jstep(j, (uint64_t)count / 16);
    if (obj.k == V_STR || obj.k == V_BYTES) {
        const jstr *s = obj.s;
        jbytes(j, s->n);
        if (st == 1) {
            size_t from = jstr_offset(s, (size_t)a), to = count ? jstr_offset(s, (size_t)b) : from;
            return (jval){.k = obj.k, .s = jstr_sub(j, s, from, to)};
        }
        jsb_init(&sb);
        if (s->n == s->n_cp) {
            for (int64_t i = 0; i < count; i++) jsb_sub(j, &sb, s, (size_t)(a + i * st), (size_t)(a + i * st + 1));
        } else {
            uint32_t *at = jalloc(j, ((size_t)s->n_cp + 1) * sizeof *at), k = 0;
            for (uint32_t i = 0; i < s->n; i += (uint32_t)jutf8_len((unsigned char)s->p[i])) at[k++] = i;
            at[k] = s->n;
            for (int64_t i = 0; i < count; i++) jsb_sub(j, &sb, s, at[a + i * st], at[a + i * st + 1]);
        }
        jstep(j, (uint64_t)count);
        return (jval){.k = obj.k, .s = s->markup ? jstr_markup(j, jsb_done(j, &sb)) : jsb_done(j, &sb)};
    }
    if (obj.k == V_RANGE) {
        jrange *r = jalloc(j, sizeof *r);
        uint64_t first = (uint64_t)obj.r->start, by = (uint64_t)obj.r->step; /* the end may lie past the last number */
        *r = (jrange){(int64_t)(first + (uint64_t)a * by), (int64_t)(first + (uint64_t)b * by),
                      (int64_t)(by * (uint64_t)st), count};
        return (jval){.k = V_RANGE, .r = r};
    }
    l = jlist_new(j, (size_t)count);
    for (int64_t i = 0; i < count; i++) l->v[l->n++] = obj.l->v[a + i * st];
    return obj.k == V_LIST ? jlistv(l) : jtuplev(l);
}
