/* jinja_int.h - what the files of the template engine share.
 *
 * text -> jinja_lex -> tokens -> jinja_parse (statements) and jinja_expr (expressions) -> nodes -> jinja_scope (each
 * name gets a slot) -> jinja_eval (runs) with jinja_ops (operators, attributes, items), jinja_filter*, jinja_test,
 * jinja_method*, jinja_format (% and .format), jinja_json (tojson) and jinja_global (functions).
 * jinja_value and jinja_str hold the values, template.c the public calls.
 *
 * Memory: a parsed template lives in its own arena and never changes after parsing, so many threads may render it.
 * A render owns one arena; every value of the render is in it or borrowed from the template or the input.
 * Errors: jfail() fills the error and jumps to the one setjmp in template.c; nothing in between owns anything, so
 * there is nothing to release on the way.
 * Bounds: jstep() counts work (long operations pay by their bytes), jdeeper() counts nesting, the arena bytes. */
#ifndef HD_TEXT_JINJA_INT_H
#define HD_TEXT_JINJA_INT_H

#include "base/arena.h"
#include "text/template.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef __int128 ji128;
typedef struct jinja jinja;
typedef struct jnode jnode;

enum {
    JINJA_MAX_TEXT = 1 << 20,          /* template text, bytes */
    JINJA_MAX_PARSED = 256 << 20,      /* memory of a parsed template, bytes */
    JINJA_MAX_NEST = 200,              /* brackets and blocks in a template */
    JINJA_MAX_TREE = 400,              /* height of an expression; Python's compiler gives up near 250 */
    JINJA_MAX_DEPTH = 1600,            /* nested evaluation: about 180 macro calls, as Python's limit of 1,000 frames */
    JINJA_MAX_RANGE = 100000,          /* the sandbox's own limit on range() */
    JINJA_MAX_MEMORY = 64 << 20,       /* values of one render, bytes */
    JINJA_MAX_OUTPUT = 16 << 20,       /* output bytes unless the options say otherwise */
    JINJA_MAX_STEPS = 20 * 1000 * 1000, /* steps unless the options say otherwise, and ... */
    JINJA_STEPS_PER_BYTE = 16           /* ... so many more for each byte of input: some look at every character */
};

/* Error classes: what Python would have raised.  The name is what hd_err.field holds. */
#define JINJA_CLASSES(X)                                                                                               \
    X(RAISE, "raise", HD_INVALID)                                                                                      \
    X(SYNTAX, "syntax", HD_INVALID)                                                                                    \
    X(UNDEFINED, "undefined", HD_INVALID)                                                                              \
    X(TYPE, "type", HD_INVALID)                                                                                        \
    X(VALUE, "value", HD_INVALID) /* ValueError, ZeroDivisionError, OverflowError, KeyError, IndexError */             \
    X(SANDBOX, "sandbox", HD_INVALID)                                                                                  \
    X(RUNTIME, "runtime", HD_INVALID)                                                                                  \
    X(RECURSION, "recursion", HD_FULL)                                                                                 \
    X(LIMIT, "limit", HD_FULL)                                                                                         \
    X(MEMORY, "memory", HD_NOMEM)                                                                                      \
    X(UNSUPPORTED, "unsupported", HD_UNSUPPORTED)
typedef enum {
#define X(id, name, code) J_##id,
    JINJA_CLASSES(X)
#undef X
} jclass;

/* ---- strings ---- */

/* Bytes [a, b) of a string that came out of the input: not trusted. */
typedef struct {
    uint32_t a, b;
} jspan;

/* Where the bytes and spans of concatenations live, so that the newest one may grow in place: a string that ends where
 * `used` ends owns the rest. */
typedef struct {
    size_t used, cap;
    jspan *spans;
    uint32_t n_spans, cap_spans;
    char data[];
} jroom;

/* A string: UTF-8, immutable.  Spans are ascending; neighbours may touch. */
typedef struct {
    const char *p;
    uint32_t n, n_cp; /* bytes, code points */
    uint64_t hash;    /* 0: not computed yet */
    jroom *room;
    const jspan *spans;
    uint32_t n_spans;
    bool markup; /* markupsafe's Markup: additions to it are escaped */
} jstr;

/* A name of the template, interned: compare by pointer. */
typedef struct jatom {
    jstr s;
    struct jatom *next;
    struct jdef *def; /* scope analysis only */
} jatom;

/* ---- values ---- */

typedef enum {
    V_MISSING, V_UNDEF, V_NONE, V_BOOL, V_INT, V_BIG, V_FLOAT, V_STR, V_BYTES, V_LIST, V_TUPLE, V_DICT, V_VIEW, V_RANGE,
    V_ITER, V_NS, V_MACRO, V_FUNC, V_METHOD, V_LOOP, V_CYCLER, V_JOINER
} jkind;

typedef struct jval {
    uint8_t k;
    uint8_t sub; /* V_VIEW: jview; V_TUPLE: 1 for a (grouper, list) pair; V_FUNC: jfunc */
    union {
        int64_t i; /* V_INT, V_BOOL */
        double f;
        ji128 *big;
        const jstr *s;
        struct jlist *l;
        struct jdict *d; /* V_DICT, V_VIEW, V_NS */
        struct jrange *r;
        struct jiter *it;
        struct jundef *u;
        struct jmacro *m;
        struct jmethod *me;
        struct jloop *lp;
        struct jcycler *cy;
        struct jjoiner *jo;
    };
} jval;

typedef enum { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS } jview;
typedef enum {
    JF_RANGE, JF_DICT, JF_NAMESPACE, JF_CYCLER, JF_JOINER, JF_LIPSUM, JF_RAISE, JF_STRFTIME, JF_FROMKEYS
} jfunc;

typedef struct jlist_room jlist_room; /* as jroom, for l = l + [x] */
typedef struct jlist {
    jval *v;
    size_t n, cap;
    jlist_room *room;
} jlist;
typedef struct {
    jval key, val;
    uint64_t hash;
} jentry;
typedef struct jdict {
    jentry *e; /* in insertion order */
    uint32_t n, cap;
    uint32_t *index; /* n_index (a power of two) places holding entry + 1, or NULL while small */
    uint32_t n_index;
} jdict;
typedef struct jrange {
    int64_t start, stop, step, n;
} jrange;
typedef struct jundef {
    const char *hint; /* message, or NULL: built from obj and name */
    jval obj;         /* V_MISSING: a plain name */
    jval name;
    jclass cls; /* raised when used */
} jundef;
typedef struct jcycler {
    jlist *items;
    size_t pos;
} jcycler;
typedef struct jjoiner {
    jval sep;
    bool used;
} jjoiner;
typedef struct jmethod {
    jval self;
    const char *name;
    int id; /* of jinja_method.c */
} jmethod;

/* Arguments of a call.  kw names are unique. */
typedef struct {
    jval *v;
    size_t n;
    const jstr **kw;
    jval *kv;
    size_t n_kw;
} jargs;

/* ---- iteration ---- */

typedef enum {
    IT_EMPTY, IT_LIST, IT_REVERSED, IT_STR, IT_DICT, IT_RANGE, IT_MAP_ATTR, IT_MAP, IT_SELECT, IT_LATER, IT_TEST
} jiter_kind;
typedef struct jiter {
    jiter_kind kind;
    uint8_t view;
    bool started, reject, on_attr, busy;
    const char *type_name; /* for messages */
    jval src;
    size_t pos;
    struct jiter *in;
    jval attr, dflt;
    const struct jfilter *filter;
    const struct jtest *test;
    const char *wrong; /* what is wrong with the arguments, said when the first item is asked for */
    jargs args;
    jval (*later)(jinja *j, struct jiter *it); /* IT_LATER: makes the list on first use */
    const jnode *node;                         /* IT_TEST: the for statement */
    struct jenv *env;
} jiter;

typedef struct jloop {
    jval iterable;
    jiter *it;
    int64_t index0, len; /* len < 0: not known */
    jval after, cur, before, changed;
    const jnode *node;
    struct jenv *outer;
    int64_t depth0;
    bool recursive;
} jloop;

/* ---- nodes ---- */

typedef enum {
    /* expressions */
    N_CONST, N_NAME, N_NSREF, N_TUPLE, N_LIST, N_DICT, N_COND, N_OR, N_AND, N_NOT, N_COMPARE, N_ADD, N_SUB, N_MUL,
    N_DIV, N_FLOORDIV, N_MOD, N_POW, N_NEG, N_POS, N_CONCAT, N_GETATTR, N_GETITEM, N_SLICE, N_CALL, N_FILTER, N_TEST,
    /* statements */
    N_OUTPUT, N_DATA, N_SET, N_SETBLOCK, N_FOR, N_IF, N_MACRO, N_CALLBLOCK, N_FILTERBLOCK, N_WITH, N_SCOPE,
    N_AUTOESCAPE, N_BLOCK, N_BREAK, N_CONTINUE, N_LOADER
} jnode_kind;
typedef enum { CTX_LOAD, CTX_STORE, CTX_PARAM } jctx;
typedef enum { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOTIN } jcmp;

typedef struct jnodes {
    jnode **v;
    size_t n, cap;
} jnodes;

/* One shape for all nodes; which fields count is said where the node is made (jinja_parse.c, jinja_expr.c). */
struct jnode {
    uint8_t kind;
    uint8_t ctx;        /* N_NAME */
    uint8_t op;         /* of N_COMPARE's operands, through ops */
    bool flag;          /* N_FOR recursive, N_FILTER inside an if (unknown name is a run-time error), N_BLOCK scoped */
    uint16_t height;    /* of the expression */
    uint16_t hops;      /* N_NAME: environments to go up */
    uint32_t slot;      /* N_NAME: place in that environment */
    uint32_t test_slot; /* N_NAME that is a for target: place in the filter's environment */
    uint32_t line;
    jatom *name;
    jval value; /* N_CONST, N_DATA */
    jnode *a, *b, *c;
    jnodes list, list2, list3;
    uint8_t *ops;              /* N_COMPARE: one jcmp for each of list */
    jatom **kw;                /* N_CALL, N_FILTER, N_TEST: names of list2 */
    const struct jfilter *filter;
    const struct jtest *test;
    struct jscope *scope, *scope2, *scope3; /* body; for: filter, else */
    bool takes_caller, takes_kwargs, takes_varargs;
};

/* What entering a scope does with each slot. */
typedef enum { LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEF } jload;
typedef struct {
    jatom *name;
    uint8_t load;
    bool stored;
    uint16_t hops; /* LOAD_ALIAS: where the value comes from, seen from the scope itself */
    uint32_t slot; /* LOAD_ALIAS: place there */
} jslot;
typedef struct jscope {
    struct jscope *parent;
    uint32_t level;
    jslot *slots;
    size_t n, cap;
} jscope;
typedef struct jenv {
    struct jenv *up;
    const jscope *scope;
    jval slots[];
} jenv;

typedef struct jmacro {
    const jnode *node; /* N_MACRO or N_CALLBLOCK */
    jenv *env;
} jmacro;

/* ---- parsing ---- */

typedef struct jerror {
    jmp_buf jump;
    hd_err *err;
    uint32_t line;
} jerror;

struct chat_template {
    arena mem;
    jnodes body;
    jscope *root;
    jnodes blocks; /* N_BLOCK */
    bool reads_tools; /* the input's variable of that name is looked at somewhere */
    struct jlex *lex; /* while parsing: its table of names */
};

/* Never returns: fills the error (line of `e` unless line is given) and jumps. */
_Noreturn void jerror_raise(jerror *e, jclass cls, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

typedef enum {
    T_EOF, T_DATA, T_BLOCK_BEGIN, T_BLOCK_END, T_VAR_BEGIN, T_VAR_END, T_NAME, T_STRING, T_INT, T_FLOAT,
    T_ADD, T_SUB, T_DIV, T_FLOORDIV, T_MUL, T_MOD, T_POW, T_TILDE, T_LBRACKET, T_RBRACKET, T_LPAREN, T_RPAREN, T_LBRACE,
    T_RBRACE, T_EQ, T_NE, T_GT, T_GE, T_LT, T_LE, T_ASSIGN, T_DOT, T_COLON, T_PIPE, T_COMMA, T_SEMICOLON
} jtok_kind;
typedef struct {
    jtok_kind kind;
    uint32_t line;
    const char *p; /* T_DATA, T_NAME, T_STRING: text, newlines and escapes already replaced */
    size_t n;
    jatom *name; /* T_NAME */
    jval num;    /* T_INT, T_FLOAT */
} jtok;

typedef struct jlex {
    jerror *e;
    arena *mem;
    const char *src;
    size_t n, pos;
    uint32_t line;
    uint8_t state;
    bool line_start, begin_due; /* begin_due: the tag's begin token was not handed out yet */
    char *closers; /* open brackets */
    size_t n_closers;
    jatom **atoms;
    size_t n_atoms, n_buckets;
} jlex;

void jlex_init(jlex *l, jerror *e, arena *mem, const char *text, size_t n);
void jlex_next(jlex *l, jtok *t);
jatom *jlex_atom(jlex *l, const char *p, size_t n);
const char *jtok_name(const jtok *t, char *dst, size_t n); /* as Jinja describes it in messages */
const char *jtok_kind_name(jtok_kind k);

typedef struct jparser {
    jerror *e;
    arena *mem;
    jlex lex;
    jtok cur, peek;
    bool have_peek;
    uint32_t nest;
    const char *const *ends[JINJA_MAX_NEST + 1]; /* lists of end tags that open blocks wait for */
    size_t n_ends;
    const char *tags[JINJA_MAX_NEST + 1];
    size_t n_tags;
} jparser;

_Noreturn void jparse_fail(jparser *p, uint32_t line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *jparse_alloc(jparser *p, size_t n);
jnode *jnode_new(jparser *p, jnode_kind kind, uint32_t line);
void jnodes_add(jparser *p, jnodes *l, jnode *n);
void jparse_advance(jparser *p);
const jtok *jparse_look(jparser *p);
bool jparse_is(const jparser *p, const char *name); /* the current token is this name */
bool jparse_skip(jparser *p, const char *name);
void jparse_expect(jparser *p, jtok_kind k);
void jparse_enter(jparser *p);
void jparse_leave(jparser *p);

jnode *jexpr_tuple(jparser *p, bool with_cond, bool parens); /* parens: an empty one is allowed */
jnode *jexpr_parse(jparser *p, bool with_cond);
jnode *jexpr_target(jparser *p, bool name_only, bool with_namespace);
jnode *jexpr_filter(jparser *p, jnode *node, bool inline_start);

void jparse_template(chat_template *t, jerror *e, const char *text, size_t n);
void jscope_resolve(chat_template *t, jerror *e);

/* ---- rendering ---- */

/* A growing string with its spans.  root: the output of the render instead of a value; cap is its limit then. */
typedef struct jsb {
    char *p;
    size_t n, cap;
    jspan *spans;
    size_t n_spans, cap_spans;
    bool root;
} jsb;

struct jinja {
    jerror e;
    arena mem;
    const chat_template *t;
    const json_t *input;
    const template_options *opt;
    hd_buf *out;
    template_spans *spans;
    jsb root;
    jsb *sink;
    uint64_t steps; /* left */
    uint32_t depth;
    bool autoescape;
    jenv *root_env;
    jdict *inputs; /* names of the input and globals that were asked for */
    const jstr *chars[2][128]; /* one-character strings that were made, untrusted and trusted */
    jundef *undefs[256];       /* the newest undefined attributes, by object and name */
};

_Noreturn void jfail(jinja *j, jclass cls, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void jstep_fail(jinja *j);
_Noreturn void jdepth_fail(jinja *j);
static inline void jstep(jinja *j, uint64_t n) {
    if (j->steps < n) jstep_fail(j);
    j->steps -= n;
}
static inline void jbytes(jinja *j, uint64_t n) { jstep(j, n / 64); } /* a pass over n bytes */
static inline void jdeeper(jinja *j) {
    if (++j->depth > JINJA_MAX_DEPTH) jdepth_fail(j);
}
static inline void jhigher(jinja *j) { j->depth--; }
_Noreturn void jmemory_fail(jinja *j); /* after the arena refused */
void *jalloc(jinja *j, size_t n);
void *jcalloc(jinja *j, size_t n, size_t size);
void *jgrow(jinja *j, void *old, size_t was, size_t n);

/* jinja_value.c */
static inline jval jnone(void) { return (jval){.k = V_NONE}; }
static inline jval jbool(bool b) { return (jval){.k = V_BOOL, .i = b}; }
static inline jval jint(int64_t i) { return (jval){.k = V_INT, .i = i}; }
static inline jval jfloat(double f) { return (jval){.k = V_FLOAT, .f = f}; }
static inline jval jstring(const jstr *s) { return (jval){.k = V_STR, .s = s}; }
static inline jval jlistv(jlist *l) { return (jval){.k = V_LIST, .l = l}; }
static inline jval jtuplev(jlist *l) { return (jval){.k = V_TUPLE, .l = l}; }
static inline jval jdictv(jdict *d) { return (jval){.k = V_DICT, .d = d}; }
static inline bool jis_int(jval v) { return v.k == V_INT || v.k == V_BOOL || v.k == V_BIG; }
static inline bool jis_num(jval v) { return jis_int(v) || v.k == V_FLOAT; }

jval jint128(jinja *j, ji128 v);
ji128 jas_i128(jval v); /* of an int kind */
double jas_double(jval v);
int64_t jindex(jinja *j, jval v, const char *what); /* an index argument, clamped to +-2^62; TypeError */
const char *jtype_name(jval v);
const char *jtype_repr(jval v, char dst[64]); /* as in Undefined messages: "dict object", "None" */
bool jtruth(jinja *j, jval v);
bool jequal(jinja *j, jval a, jval b);
bool jless(jinja *j, jval a, jval b, jcmp op); /* LT, LE, GT, GE; TypeError */
bool jsame(jval a, jval b);
uint64_t jhash(jinja *j, jval v); /* TypeError: unhashable */
uint64_t jstr_hash(const jstr *s);

jlist *jlist_new(jinja *j, size_t cap);
void jlist_add(jinja *j, jlist *l, jval v);
jdict *jdict_new(jinja *j);
void jdict_set(jinja *j, jdict *d, jval key, jval val);
bool jdict_get(jinja *j, const jdict *d, jval key, jval *out);
bool jdict_gets(jinja *j, const jdict *d, const char *key, jval *out);
int64_t jlength(jinja *j, jval v); /* len(); TypeError */
jiter *jiter_new(jinja *j, jval v); /* iter(); TypeError */
bool jiter_next(jinja *j, jiter *it, jval *out);
jlist *jto_list(jinja *j, jval v); /* list(v): always a fresh list */
bool jiterable(jval v);
jval jiter_val(jiter *it);
jval jundef_name(jinja *j, const jstr *name);
jval jundef_attr(jinja *j, jval obj, jval name);
jval jundef_hint(jinja *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
jval jundef_unsafe(jinja *j, jval obj, const jstr *attr);
_Noreturn void jundef_raise(jinja *j, jval u);
jval jfrom_json(jinja *j, const json_t *v, bool trusted);

/* jinja_str.c */
const jstr *jstr_lit(jinja *j, const char *s); /* s must outlive the render */
const jstr *jstr_copy(jinja *j, const char *p, size_t n, bool trusted);
const jstr *jstr_fmt(jinja *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const jstr *jstr_sub(jinja *j, const jstr *s, size_t a, size_t b); /* bytes [a, b) */
const jstr *jstr_char(jinja *j, const jstr *s, size_t at); /* the character at byte `at` */
const jstr *jstr_concat(jinja *j, const jstr *a, const jstr *b);
const jstr *jstr_plain(jinja *j, const jstr *s);
const jstr *jstr_markup(jinja *j, const jstr *s);
const jstr *jstr_escape(jinja *j, jval v); /* markupsafe.escape */
bool jstr_tainted(const jstr *s);
void jstr_init(jstr *s, const char *p, size_t n); /* trusted; counts and hashes */
size_t jstr_offset(const jstr *s, size_t cp);     /* byte offset of code point cp <= n_cp */
bool jstr_eq(const jstr *a, const jstr *b);
bool jstr_is(const jstr *s, const char *lit);
size_t jutf8_len(unsigned char c);                     /* of valid UTF-8 */
uint32_t jutf8_at(const char *p);                      /* of valid UTF-8 */
size_t jutf8_put(char dst[4], uint32_t cp);
size_t jutf8_count(const char *p, size_t n);
bool jcp_space(uint32_t cp);
bool jcp_printable(uint32_t cp);

void jsb_init(jsb *b);
void jsb_add(jinja *j, jsb *b, const char *p, size_t n, bool trusted);
void jsb_lit(jinja *j, jsb *b, const char *s);
void jsb_str(jinja *j, jsb *b, const jstr *s);
void jsb_sub(jinja *j, jsb *b, const jstr *s, size_t from, size_t to);
void jsb_fill(jinja *j, jsb *b, const jstr *s, size_t times);
void jsb_cp(jinja *j, jsb *b, uint32_t cp, bool trusted);
void jsb_untrust(jinja *j, jsb *b, size_t from); /* everything from byte `from` on */
const jstr *jsb_done(jinja *j, jsb *b);
bool jstr_trusted_at(const jstr *s, size_t at, uint32_t *hint); /* hint: 0 at first, for rising `at` */

const jstr *jto_str(jinja *j, jval v);  /* str(v): plain */
const jstr *jsoft_str(jinja *j, jval v); /* keeps Markup */
const jstr *jrepr(jinja *j, jval v);
void jrepr_add(jinja *j, jsb *b, jval v);
void jprint(jinja *j, jsb *b, jval v);
void jfloat_text(jinja *j, double f, char dst[40]);

/* jinja_case.c */
typedef enum { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_SWAP, CASE_FOLD } jcase;
const jstr *jstr_case(jinja *j, const jstr *s, jcase how);
bool jcp_alpha(uint32_t cp);
bool jcp_decimal(uint32_t cp);
bool jcp_digit(uint32_t cp);
bool jcp_numeric(uint32_t cp);
bool jcp_upper(uint32_t cp);
bool jcp_lower(uint32_t cp);
bool jcp_title(uint32_t cp);

/* jinja_ops.c */
jval jadd(jinja *j, jval a, jval b);
jval jarith(jinja *j, jnode_kind op, jval a, jval b);
jval jnegate(jinja *j, jval a, bool plus);
bool jcompare(jinja *j, jcmp op, jval a, jval b);
bool jcontains(jinja *j, jval seq, jval item);
jval jget_attr(jinja *j, jval obj, const jstr *name);
jval jget_item(jinja *j, jval obj, jval key);
jval jget_path(jinja *j, jval obj, jval attr, jval dflt); /* make_attrgetter: dotted path */
jval jslice(jinja *j, jval obj, jval start, jval stop, jval step);
jval jmul_seq(jinja *j, jval seq, jval times);

/* jinja_eval.c */
jval jcall(jinja *j, jval f, const jargs *a);
bool jtest_item(jinja *j, jiter *it, jval *item); /* IT_TEST: bind the targets, ask the condition */
void jrun(jinja *j);
jval jloop_attr(jinja *j, jloop *lp, const jstr *name);
int64_t jloop_length(jinja *j, jloop *lp);

/* Bind arguments to names: out[i] is V_MISSING where absent and i >= n_required.  TypeErrors as Python's. */
void jbind(jinja *j, const char *fname, const jargs *a, size_t n_required, size_t n, const char *const *names,
           jval *out);

/* jinja_filter*.c, jinja_test.c */
typedef struct jfilter {
    const char *name;
    jval (*fn)(jinja *j, jval v, const jargs *a);
} jfilter;
typedef struct jtest {
    const char *name;
    bool (*fn)(jinja *j, jval v, const jargs *a);
} jtest;
const jfilter *jfilter_find(const char *name, size_t n);
const jtest *jtest_find(const char *name, size_t n);
extern const jfilter jfilters_seq[];
extern const size_t jfilters_seq_n;

/* jinja_method*.c: the attribute of a value, V_MISSING if Python's object has none of that name. */
jval jmethod_find(jinja *j, jval obj, const jstr *name);
jval jmethod_call(jinja *j, const jmethod *m, const jargs *a);
int jstr_method_id(const jstr *name); /* -1: str has no such method */
jval jstr_method(jinja *j, const jstr *s, int id, const jargs *a);
const char *jstr_method_name(int id);
const jstr *jstr_strip(jinja *j, const jstr *s, const jstr *chars, int side); /* side: 1 left, 2 right, 3 both */
const jstr *jstr_replace(jinja *j, const jstr *s, const jstr *old, const jstr *by, int64_t count);
const jstr *jstr_pad(jinja *j, const jstr *s, int64_t width, const jstr *fill, char align);
jlist *jstr_lines(jinja *j, const jstr *s, bool keep);
const jstr *jstr_join(jinja *j, const jstr *sep, jval items, bool any); /* any: str() each item; otherwise TypeError */
jlist *jstr_split(jinja *j, const jstr *s, const jstr *sep, int64_t max, bool right);
int64_t jstr_find(jinja *j, const jstr *s, const jstr *what, size_t from, size_t to, bool last); /* bytes; -1 */

/* jinja_format.c */
const jstr *jformat_percent(jinja *j, const jstr *fmt, jval args);
const jstr *jformat_braces(jinja *j, const jstr *fmt, const jargs *a);

/* jinja_json.c */
jval jtojson(jinja *j, jval v, const jargs *a);

/* jinja_global.c */
jval jglobal_find(jinja *j, const jstr *name); /* V_MISSING: none */
jval jglobal_call(jinja *j, jval f, const jargs *a);
jval jdict_of(jinja *j, const char *fname, const jargs *a); /* dict(*args, **kwargs) */

#endif
