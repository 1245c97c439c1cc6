/* tiny_model.h - small random models that tests write to disk, and the stored logits they must give.
 *
 * Weights are never stored: value i of the tensor called NAME is a pure function of (NAME, seed, i), written the same
 * way here and in tiny_gen.py.  make_goldens.py builds each model with the transformers library from those values and
 * stores its logits under tests/golden/; a test writes the same model as GGUF with tiny_model_write, loads it with heddle
 * and compares.  variants.def is the list; it is read by both sides.
 *
 * The generator.  Indices and sums are modulo 2^64.
 *   word(NAME, seed, i) = splitmix64(fnv1a64(NAME) + seed + i)         u = (word >> 40) / 2^23 - 1, in [-1, 1)
 *   *norm.weight      1 + 0.1 u                    (attn_q_norm, attn_k_norm: 1.5 + 0.1 u, so that scores are peaked)
 *   *.bias            0.1 u
 *   token_embd.weight sqrt(3) / 4 * u
 *   other matrices    sqrt(3 / fan_in) * u         (attn_q and attn_k: 1.6 times that)
 * computed in double, rounded once to float32.  i counts the tensor's elements as they lie in the file (GGUF names and
 * layout: llama's q and k rows are in adjacent-pair order, gemma's norms include the 1).
 * Block formats are generated as blocks, not quantised: byte j of block b is word((b << 16) + j) >> 40 & 255; then the
 * scale fields are overwritten (tiny_block in tiny_model.c), so that the dequantised values have about the size above. */
#ifndef HD_TESTS_TINY_MODEL_H
#define HD_TESTS_TINY_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum { TINY_ROPE_NONE, TINY_ROPE_LINEAR, TINY_ROPE_YARN, TINY_ROPE_LLAMA3 };
enum { TINY_VOCAB = 320, TINY_BOS = 317, TINY_EOS = 318, TINY_PAD = 319 };

typedef struct {
    const char *name, *arch;
    uint32_t hidden, layers, heads, kv_heads, head_dim, ffn;
    double eps, theta, theta_swa; /* theta_swa: rope base of windowed layers; 0 = no key (gemma3 means 10000) */
    int scaling;                  /* TINY_ROPE_*; on gemma3 it applies to the global layers only */
    double factor, low, high;     /* low, high: llama3 only */
    double beta_fast, beta_slow;  /* yarn; 0 = no key (32 and 1) */
    uint32_t orig_ctx;
    uint32_t window, pattern;     /* pattern: every n-th layer is global; 0 = no key (gemma3: 6, others: all windowed) */
    int tied, bias_qkv, bias_o, qk_norm;
    uint32_t wtype;               /* GGUF type id of the matrices, 0 = F32 */
    uint32_t etype;               /* that of token_embd and output, 0 = wtype too; a block format, as wtype is then */
    int brief;                    /* the golden has short sequences only */
    uint64_t seed;
} tiny_variant;

extern const tiny_variant tiny_variants[];
extern const size_t tiny_n_variants;
const tiny_variant *tiny_variant_find(const char *name); /* NULL: no such name */

/* Convert one matrix row of n floats into whole blocks at `out`; returns 0, or -1 to give up. */
typedef int (*tiny_quantise_fn)(void *ctx, const float *row, size_t n, void *out);

/* Other weight types for a variant whose wtype is 0: every matrix with rows of whole blocks is written as `type`. */
typedef struct {
    uint32_t type;                       /* GGUF type id */
    uint32_t block_elems, block_bytes;
    tiny_quantise_fn quantise;
    void *ctx;
} tiny_weights;

/* Write `v` as a GGUF v3 file at `path` (overwritten).  w may be NULL.  Returns 0, or -1 with errno set. */
int tiny_model_write(const tiny_variant *v, const tiny_weights *w, const char *path);

/* The float32 values of one tensor as the generator defines them, before any conversion: out[0..n).
 * fan_in is the row length of a matrix, 0 for vectors. */
void tiny_values(const char *tensor, uint64_t seed, size_t fan_in, float *out, size_t n);

/* The token strings' count and ids are fixed: ids 0..255 are the bytes in order, 256..316 are two-letter merges,
 * 317..319 are control tokens (bos, eos, pad). */

typedef struct {
    uint32_t n;           /* positions */
    const int32_t *ids;   /* [n] */
    const float *logits;  /* [n, TINY_VOCAB], row-major */
} tiny_sequence;

typedef struct {
    uint32_t n_seqs;
    tiny_sequence *seqs;  /* owned, with everything behind it: tiny_golden_free */
} tiny_golden;

/* Read the golden of variant `name` from folder `dir` (tests: TEST_DIR "/golden").  File, little-endian:
 * u32 'HDG1', u32 n_seqs, u32 vocab; per sequence u32 n, i32 ids[n], f32 logits[n * vocab].
 * Returns 0, or -1 (missing, malformed or no memory; *g is then empty). */
int tiny_golden_read(tiny_golden *g, const char *dir, const char *name);
/* The hidden states after the final norm of sequence `seq` of that golden into out [n, width].  File NAME.hidden: u32 'HDH1',
 * u32 n_seqs, u32 width; per sequence u32 n, f32 hidden[n * width].  Returns 0, or -1 (also when n or width differ). */
int tiny_hidden_read(float *out, const char *dir, const char *name, uint32_t seq, uint32_t n, uint32_t width);
void tiny_golden_free(tiny_golden *g);

#endif
