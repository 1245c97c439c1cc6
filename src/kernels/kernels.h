/* kernels.h - the table of compute kernels of one instruction set, chosen at run time.
 *
 * `generic` is the definition of every kernel in plain C; the others fill the same table.  Law 1: what a kernel writes
 * for one output element depends on that element's inputs alone, in one fixed order of operations, whatever the number
 * of columns, rows, threads or pages in the call.  All sets give the same bits as generic (tested), so they share one
 * numerics version.  No kernel allocates, keeps state or starts threads. */
#ifndef HD_KERNELS_KERNELS_H
#define HD_KERNELS_KERNELS_H

#include "tensor/type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Raised whenever a stored logit or a draw would change (part of every identity). */
#define HD_NUMERICS_VERSION 4
/* Raised whenever packed weights of one layout would differ (part of the name of a packed file). */
enum { HD_PACK_VERSION = 3 };

typedef struct kernels kernels;
/* The set of that name, or for NULL the best this CPU has.  NULL if it has not got it. */
const kernels *kernels_get(const char *name);
/* Names of the sets in this build, the best first, whether this CPU has them or not; NULL after the last. */
const char *kernels_built(size_t i);
/* Names of the sets with ", " between, the best first: all of this build, or those this CPU has. */
enum { KERNELS_LIST_MAX = 64 };
void kernels_list(char dst[KERNELS_LIST_MAX], bool here);
const char *kernels_name(const kernels *k);

/* ---- matrix products: y = W x ----
 * W has n_rows outputs and n_cols inputs (a multiple of the type's block, 1 to 2^31).  Weights are repacked at load
 * into groups of 8 rows (rows padded to 8, columns to the unit); activations are quantised per token and block of a
 * token's row into the form the weight type wants.  Both forms, and the order of operations, are in mm_layout.h.  Packed
 * weights are the same for every path here, so a packed file outlives a change of path; of activations the values are, and
 * where a path has them in another form (ACT_I16_32, ACT_I16_TOP) it has a kind of its own.  All sizes are the caller's to have checked. */
typedef enum { ACT_F32, ACT_I8_32, ACT_I8_256, ACT_I16_32, ACT_I8_32_TOP, ACT_I16_TOP, ACT_KINDS } act_kind;

typedef struct {
    tensor_type type;
    uint32_t n_rows, n_cols;
    void *data; /* packed, 64-byte aligned, mm_packed_bytes long */
} mm_weight;
/* Rows [r0, r1) of w, which stays theirs; r0 is a multiple of 32. */
mm_weight mm_rows(const mm_weight *w, uint32_t r0, uint32_t r1);

/* Name of the layout that mm_pack writes for this set, at most 23 bytes; sets with the same name share packed weights. */
const char *mm_layout_name(const kernels *k);
bool mm_supported(tensor_type type);
act_kind mm_act_kind(const kernels *k, tensor_type type);
/* 0 for a type that is not supported, UINT64_MAX for what no memory holds. */
uint64_t mm_packed_bytes(const kernels *k, tensor_type type, uint32_t n_rows, uint32_t n_cols);
/* Pack rows [r0, r1) (r0 a multiple of 8; r1 too or n_rows) from GGUF rows; src points at row 0 and needs no
 * alignment.  Threads may pack different rows of one w. */
void mm_pack(const kernels *k, mm_weight *w, const void *src, uint32_t r0, uint32_t r1);

/* Bytes that m tokens of n_cols activations take in form `kind`; a multiple of 64 (SIZE_MAX: too many). */
size_t mm_act_bytes(const kernels *k, act_kind kind, uint32_t n_cols, uint32_t m);
/* Where token t of them begins, a multiple of 4: from there on the form is that of the tokens behind it alone. */
size_t mm_act_offset(act_kind kind, uint32_t n_cols, uint32_t t);
/* Quantise tokens [t0, t1) of m; x[t * ldx + c].  Tokens may be split over threads at multiples of 4.  A block with a
 * NaN or an infinity makes its token's outputs NaN (in ACT_F32: what IEEE says); magnitudes below 1e-30 count as 0 in
 * a block of nothing larger. */
void mm_act_pack(const kernels *k, act_kind kind, const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t t0,
                 uint32_t t1, void *dst);
/* The same for columns [c0, c1) of all m tokens; c0 is a multiple of mm_act_unit, c1 too or n_cols.  Columns may be split
 * over threads so. */
void mm_act_pack_cols(const kernels *k, act_kind kind, const float *x, size_t ldx, uint32_t n_cols, uint32_t m, uint32_t c0,
                      uint32_t c1, void *dst);
uint32_t mm_act_unit(act_kind kind); /* columns: 8, 64 or 256 */

/* y[t * ldy + r] = sum_c W[r][c] * x[t][c] for r in [r0, r1) (r0 a multiple of 8; r1 too or n_rows), t in [0, m); act
 * holds exactly these m tokens.  For few tokens (up to 8 to 50, by type) the call reads 2 or 4 distant streams of weights,
 * parts of [r0, r1): memory speed wants a few hundred KiB of weights per call, more tokens want rows in multiples of 16.
 * scratch: mm_scratch_bytes() of this thread's own, 64-byte aligned. */
void mm_mul(const kernels *k, const mm_weight *w, const void *act, uint32_t m, float *y, size_t ldy, uint32_t r0,
            uint32_t r1, void *scratch);
size_t mm_scratch_bytes(void);

/* ---- attention over pages ----
 * A page holds positions [i*page_tokens, (i+1)*page_tokens) of every layer of its group.  Within it, one (layer, kv
 * head) has a K region at k_off and a V region at v_off, in the kernel's own layout, kv_head_bytes long each; pages and
 * offsets are 64-byte aligned.  The layout is the same for all instruction sets. */

/* How keys and values are kept; 0 stands for "none chosen" in options and is no scheme.  q8 and q4: head_dim in blocks of
 * 32 (the last may be 8, 16 or 24), each with an f16 scale and integers in -127..127 or -8..7, rounded to nearest even;
 * q4's scale is picked for the least squared error (kv_int.h). */
typedef enum { KV_DEFAULT, KV_F16, KV_F32, KV_BF16, KV_Q8, KV_Q4, KV_SCHEMES } kv_scheme;
const char *kv_scheme_name(kv_scheme scheme); /* "f16" ..., "default" */
/* name[0..n), case as written; false: there is no such scheme. */
bool kv_scheme_by_name(const char *name, size_t n, kv_scheme *out);
#define KV_SCHEME_NAMES "f16, f32, bf16, q8 or q4"

typedef struct {
    uint32_t head_dim;    /* multiple of 8, at most 512 */
    uint32_t page_tokens; /* any power of two; fast paths want >= 16 */
    kv_scheme scheme;
} kv_shape;
size_t kv_head_bytes(const kv_shape *s); /* of K or of V; a multiple of 64 */

/* Write k[head_dim], v[head_dim] of the position with index `slot` in its page, as the scheme says.  What is written
 * depends on this key and this value alone.  Threads may store different positions of one page. */
void kv_store(const kernels *k, const kv_shape *s, void *page, size_t k_off, size_t v_off, uint32_t slot,
              const float *key, const float *value);

/* What a thread attends to after a job: one query at position pos.  pages NULL: not known. */
typedef struct {
    const void *const *pages;
    size_t k_off, v_off;
    uint32_t pos;
} attn_next;

typedef struct {
    kv_shape shape;
    const void *const *pages; /* page table of the row in this group; pages wholly outside every window may be NULL */
    size_t k_off, v_off;
    uint32_t n_group;         /* query heads that share this kv head; head h of query i at q + i*ldq + h*head_dim */
    const float *q;
    float *out;               /* not q */
    size_t ldq, ldout;        /* floats between consecutive queries */
    uint32_t pos0, n_q;       /* query i sits at position pos0 + i */
    uint32_t kv_end;          /* 0: causal, query at p sees positions <= p; else every query sees positions < kv_end */
    uint32_t window;          /* 0: none; else position j is seen from p iff j > p - window (later ones as kv_end says) */
    float scale, softcap;     /* score = q.k * scale; softcap > 0: softcap * tanh(score / softcap) */
    const float *sinks;       /* n_group scores that take part in the softmax without a value, or NULL */
    /* Hints, for speed alone: what the same thread runs next, of the same shape and window; and that this job was what the
     * one before named as its next. */
    attn_next next;
    bool announced;
} attn_job;
/* Softmax(q K^T) V for n_q queries x n_group heads.  A query that sees nothing gets zeros.  Positions that no query sees
 * may hold anything.  Order: positions in blocks of 256 at absolute multiples; in a block scores, the maximum, exp and
 * their sum in 8 lanes by position modulo 8, values in ascending position; blocks merged in ascending order (written out
 * in attn_int.h).  One (query, head) has the same bits whatever else is in the job and whatever the page size.
 * Cost is n_q * n_group * positions: split big jobs over threads by queries (multiples of 16) and kv heads.
 * scratch: attn_scratch_bytes of this thread's own, 64-byte aligned. */
void attn_run(const kernels *k, const attn_job *job, void *scratch);
size_t attn_scratch_bytes(uint32_t max_positions, uint32_t max_group);

/* ---- the rest of a step, one token at a time; n is any length unless said ---- */
/* out = x / sqrt(mean(x^2) + eps) * w.  Sum of squares in 8 lanes by index modulo 8, then a fixed tree. out may be x.
 * w NULL: all ones. */
void vec_rms_norm(const kernels *k, float *out, const float *x, const float *w, size_t n, float eps);
void vec_add(const kernels *k, float *x, const float *y, size_t n);          /* x += y */
void vec_scale(const kernels *k, float *x, float s, size_t n);               /* x *= s */
void vec_silu_mul(const kernels *k, float *gate, const float *up, size_t n); /* gate = silu(gate) * up */
void vec_gelu_mul(const kernels *k, float *gate, const float *up, size_t n); /* tanh form: gate = gelu(gate) * up */
void vec_softcap(const kernels *k, float *x, float cap, size_t n);           /* x = cap * tanh(x / cap) */
/* Rotate the first n_rot of x[head_dim] with cs[n_rot/2] pairs (cos, sin).  neox: pairs (i, i + n_rot/2), else
 * (2i, 2i+1). */
void vec_rope(const kernels *k, float *x, const float *cs, uint32_t n_rot, bool neox);
/* The table of a position that vec_rope takes: cs[2 i] = cos(pos * freq[i]) * scale, cs[2 i + 1] = sin, for i < n; as hd_sincos. */
void vec_turns(const kernels *k, float *cs, double pos, const double *freq, float scale, uint32_t n);
/* Lowest index of the maximum; NaN never wins; 0 if there is nothing else. */
uint32_t vec_argmax(const kernels *k, const float *x, size_t n);
/* Indices i with lo < x[i] <= hi, ascending, in ids[0..n): returns how many. */
size_t vec_between(const kernels *k, const float *x, size_t n, float lo, float hi, uint32_t *ids);
/* sum exp((x - ref) / t): exp in f32, sums in 8 double lanes by index modulo 8.  ref is finite, and at least the maximum, t > 0;
 * -inf entries count 0, NaN gives NaN. */
double vec_sum_exp(const kernels *k, const float *x, size_t n, float ref, float t);
/* log(sum exp(x)) in double: max + log of vec_sum_exp from it.  -inf entries count 0; NaN gives NaN, else +inf gives +inf,
 * nothing but -inf gives -inf. */
double vec_logsumexp(const kernels *k, const float *x, size_t n);

/* Our own exp, tanh, cos and sin in f32 precision, and log, exp and pow in double: the same bits on every machine. */
float hd_expf(float x);
float hd_tanhf(float x);
void hd_sincos(double x, float *s, float *c); /* |x| < 1e9 */
double hd_pow(double base, double e);         /* base > 0; for frequency tables */
double hd_logd(double x);
double hd_expd(double x);

#endif
