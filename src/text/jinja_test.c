/* jinja_test.c - the tests behind `is` (jinja2/tests.py of 3.1.6). */
#include "text/jinja_int.h"

#include <math.h>

#define NO_ARGS(j, a, fname) jbind(j, fname, a, 0, 0, NULL, NULL)

static jval one(jinja *j, const jargs *a, const char *fname, const char *arg) {
    const char *names[] = {arg};
    jval x;
    jbind(j, fname, a, 1, 1, names, &x);
    return x;
}

static bool t_defined(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_defined"); return v.k != V_UNDEF; }
static bool t_undefined(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_undefined"); return v.k == V_UNDEF; }
static bool t_none(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_none"); return v.k == V_NONE; }
static bool t_boolean(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_boolean"); return v.k == V_BOOL; }
static bool t_true(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_true"); return v.k == V_BOOL && v.i; }
static bool t_false(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_false"); return v.k == V_BOOL && !v.i; }
static bool t_integer(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "test_integer");
    return v.k == V_INT || v.k == V_BIG;
}
static bool t_float(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_float"); return v.k == V_FLOAT; }
static bool t_number(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_number"); return jis_num(v); }
static bool t_string(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_string"); return v.k == V_STR; }
static bool t_mapping(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_mapping"); return v.k == V_DICT; }
static bool t_iterable(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_iterable"); return jiterable(v); }
static bool t_escaped(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "test_escaped");
    return v.k == V_STR && v.s->markup;
}

static bool t_callable(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "callable");
    return v.k == V_MACRO || v.k == V_FUNC || v.k == V_METHOD || v.k == V_LOOP || v.k == V_JOINER || v.k == V_UNDEF;
}

/* Whatever has a length and items; undefined has both. */
static bool t_sequence(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "test_sequence");
    return v.k == V_STR || v.k == V_BYTES || v.k == V_LIST || v.k == V_TUPLE || v.k == V_DICT || v.k == V_RANGE ||
           v.k == V_UNDEF;
}

static bool t_odd(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "test_odd");
    return jequal(j, jarith(j, N_MOD, v, jint(2)), jint(1));
}

static bool t_even(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "test_even");
    return jequal(j, jarith(j, N_MOD, v, jint(2)), jint(0));
}

static bool t_divisibleby(jinja *j, jval v, const jargs *a) {
    return jequal(j, jarith(j, N_MOD, v, one(j, a, "test_divisibleby", "num")), jint(0));
}

/* At least one cased character, and none of the other case. */
static bool all_case(jinja *j, jval v, bool upper) {
    const jstr *s = jto_str(j, v);
    bool some = false;
    jbytes(j, s->n);
    for (size_t at = 0; at < s->n; at += jutf8_len((unsigned char)s->p[at])) {
        uint32_t cp = jutf8_at(s->p + at);
        if (jcp_title(cp) || (upper ? jcp_lower(cp) : jcp_upper(cp))) return false;
        some |= upper ? jcp_upper(cp) : jcp_lower(cp);
    }
    return some;
}

static bool t_lower(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_lower"); return all_case(j, v, false); }
static bool t_upper(jinja *j, jval v, const jargs *a) { NO_ARGS(j, a, "test_upper"); return all_case(j, v, true); }

static bool t_filter(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "test_filter");
    (void)jhash(j, v);
    return v.k == V_STR && jfilter_find(v.s->p, v.s->n) != NULL;
}

static bool t_test(jinja *j, jval v, const jargs *a) {
    NO_ARGS(j, a, "test_test");
    (void)jhash(j, v);
    return v.k == V_STR && jtest_find(v.s->p, v.s->n) != NULL;
}

static bool t_sameas(jinja *j, jval v, const jargs *a) { return jsame(v, one(j, a, "test_sameas", "other")); }
static bool t_in(jinja *j, jval v, const jargs *a) { return jcontains(j, one(j, a, "test_in", "seq"), v); }
static bool t_eq(jinja *j, jval v, const jargs *a) { return jequal(j, v, one(j, a, "eq", NULL)); }
static bool t_ne(jinja *j, jval v, const jargs *a) { return !jequal(j, v, one(j, a, "ne", NULL)); }
static bool t_gt(jinja *j, jval v, const jargs *a) { return jless(j, v, one(j, a, "gt", NULL), CMP_GT); }
static bool t_ge(jinja *j, jval v, const jargs *a) { return jless(j, v, one(j, a, "ge", NULL), CMP_GE); }
static bool t_lt(jinja *j, jval v, const jargs *a) { return jless(j, v, one(j, a, "lt", NULL), CMP_LT); }
static bool t_le(jinja *j, jval v, const jargs *a) { return jless(j, v, one(j, a, "le", NULL), CMP_LE); }

static const jtest TESTS[] = {
    {"odd", t_odd}, {"even", t_even}, {"divisibleby", t_divisibleby}, {"defined", t_defined},
    {"undefined", t_undefined}, {"filter", t_filter}, {"test", t_test}, {"none", t_none}, {"boolean", t_boolean},
    {"false", t_false}, {"true", t_true}, {"integer", t_integer}, {"float", t_float}, {"lower", t_lower},
    {"upper", t_upper}, {"string", t_string}, {"mapping", t_mapping}, {"number", t_number}, {"sequence", t_sequence},
    {"iterable", t_iterable}, {"callable", t_callable}, {"sameas", t_sameas}, {"escaped", t_escaped}, {"in", t_in},
    {"==", t_eq}, {"eq", t_eq}, {"equalto", t_eq}, {"!=", t_ne}, {"ne", t_ne}, {">", t_gt}, {"gt", t_gt},
    {"greaterthan", t_gt}, {"ge", t_ge}, {">=", t_ge}, {"<", t_lt}, {"lt", t_lt}, {"lessthan", t_lt}, {"<=", t_le},
    {"le", t_le}};

const jtest *jtest_find(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof TESTS / sizeof *TESTS; i++)
        if (strlen(TESTS[i].name) == n && !memcmp(TESTS[i].name, name, n)) return &TESTS[i];
    return NULL;
}
