/* tiny_model.c - writes the small random models as GGUF v3 and reads their stored logits.
 *
 * Order: the generator, the tensor list of a variant, block formats, the file.  Everything is streamed a matrix row at a
 * time.  The generator must stay equal, bit for bit, to tiny_gen.py: test_tiny.c compares
 * whole data sections. */
#include "tiny/tiny_model.h"

#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TINY(nm, ar, ...) {.name = (nm), .arch = (ar), __VA_ARGS__},
const tiny_variant tiny_variants[] = {
#include "tiny/variants.def"
};
#undef TINY
const size_t tiny_n_variants = sizeof tiny_variants / sizeof *tiny_variants;

enum { F32 = 0, F16 = 1, BF16 = 30, ROW_MAX = 1024, TENSORS_MAX = 160, TENSOR_NAME_MAX = 64 };

const tiny_variant *tiny_variant_find(const char *name) {
    for (size_t i = 0; i < tiny_n_variants; i++)
        if (!strcmp(tiny_variants[i].name, name)) return &tiny_variants[i];
    return NULL;
}

/* ---- the generator ---- */

static uint64_t fnv1a64(const char *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

static uint64_t splitmix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double unit(uint64_t word) { return (double)(word >> 40) / 8388608.0 - 1.0; }

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* Standard deviation wanted for a matrix times sqrt(3), i.e. the bound of its uniform values. */
static double matrix_scale(const char *tensor, size_t fan_in) {
    if (!strcmp(tensor, "token_embd.weight")) return sqrt(3.0) / 4;
    double s = sqrt(3.0 / (double)fan_in);
    return ends_with(tensor, "attn_q.weight") || ends_with(tensor, "attn_k.weight") ? 1.6 * s : s;
}

/* Values [i0, i0 + n) of a tensor. */
static void values_at(const char *tensor, uint64_t seed, size_t fan_in, uint64_t i0, float *out, size_t n) {
    uint64_t base = fnv1a64(tensor) + seed + i0;
    double offset = 0, scale = 0.1;
    if (ends_with(tensor, "_q_norm.weight") || ends_with(tensor, "_k_norm.weight"))
        offset = 1.5;
    else if (ends_with(tensor, "norm.weight"))
        offset = 1;
    else if (!ends_with(tensor, ".bias"))
        scale = matrix_scale(tensor, fan_in);
    for (size_t i = 0; i < n; i++) out[i] = (float)(offset + scale * unit(splitmix64(base + i)));
}

void tiny_values(const char *tensor, uint64_t seed, size_t fan_in, float *out, size_t n) {
    values_at(tensor, seed, fan_in, 0, out, n);
}

/* ---- number formats ---- */

static void put_le(uint8_t *p, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* v rounded to an integer, ties to even; v is small enough to be exact below 2^31. */
static uint32_t round_even(double v) {
    uint32_t n = (uint32_t)v;
    double rest = v - n;
    return n + (rest > 0.5 || (rest == 0.5 && (n & 1)));
}

/* IEEE binary16, round to nearest even; subnormals kept, too large becomes infinity. */
static uint16_t half_bits(float f) {
    uint16_t sign = (uint16_t)(float_bits(f) >> 16 & 0x8000);
    double a = fabs((double)f);
    int e;
    if (a == 0) return sign;
    frexp(a, &e); /* a in [2^(e-1), 2^e) */
    if (e < -13) e = -13;
    uint32_t m = round_even(ldexp(a, 11 - e)); /* 11 significant bits, fewer below 2^-14 */
    if (m == 2048) m = 1024, e++;
    if (e > 16) return sign | 0x7c00;
    return (uint16_t)(sign | (m < 1024 ? m : (uint32_t)(e + 14) << 10 | (m & 1023)));
}

static uint16_t bf16_bits(float f) {
    uint32_t u = float_bits(f);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Where a block format keeps its scale, and how large the dequantised values are for a scale of 1. */
typedef struct {
    uint32_t type, elems, bytes;
    int d_at, min_at;    /* offsets of the f16 scale and of the f16 minimum; -1 = none */
    double rms;          /* of the values for d = 1 and random codes, minima included */
    double min_ratio;    /* minimum = this times the scale, so that the mean is about 0 */
} block_format;

static const block_format block_formats[] = {
    {2, 32, 18, 0, -1, 4.6, 0},       {3, 32, 20, 0, 2, 4.6, -7.5},     {6, 32, 22, 0, -1, 9.2, 0},
    {7, 32, 24, 0, 2, 9.2, -15.5},    {8, 32, 34, 0, -1, 74, 0},        {10, 256, 84, 80, 82, 13.9, 1.5},
    {11, 256, 110, 108, -1, 43, 0},   {12, 256, 144, 0, 2, 258, 7.5},   {13, 256, 176, 0, 2, 527, 15.5},
    {14, 256, 210, 208, -1, 1369, 0}, {20, 32, 18, 0, -1, 67, 0},       {23, 256, 136, 0, -1, 1240, 0},
    {39, 32, 17, -1, -1, 2.9, 0},
};

static const block_format *block_find(uint32_t type) {
    for (size_t i = 0; i < sizeof block_formats / sizeof *block_formats; i++)
        if (block_formats[i].type == type) return &block_formats[i];
    return NULL;
}

/* Block b of a tensor: random bytes, then scale fields.  Without a minimum the scale's sign is random too.
 * MXFP4 has a power of two as scale (byte 0). */
static void tiny_block(const block_format *f, const char *tensor, uint64_t seed, size_t fan_in, uint64_t b, uint8_t *out) {
    uint64_t base = fnv1a64(tensor) + seed + (b << 16);
    for (uint32_t j = 0; j < f->bytes; j++) out[j] = (uint8_t)(splitmix64(base + j) >> 40);
    uint64_t w = splitmix64(base + 0xffff);
    if (f->d_at < 0) {
        out[0] = (uint8_t)((!strcmp(tensor, "token_embd.weight") ? 123 : 121) + (w & 1));
        return;
    }
    double d = matrix_scale(tensor, fan_in) / sqrt(3.0) / f->rms * (1 + 0.25 * unit(w));
    if (f->min_at >= 0)
        put_le(out + f->min_at, half_bits((float)(f->min_ratio * d)), 2);
    else if (w & 1)
        d = -d;
    put_le(out + f->d_at, half_bits((float)d), 2);
}

/* ---- the tensors of a variant ---- */

typedef struct {
    char name[TENSOR_NAME_MAX];
    uint32_t cols, rows; /* rows 0: a vector of cols values */
    uint32_t type;
    uint64_t bytes, offset;
} tensor;

typedef struct {
    const tiny_variant *v;
    const tiny_weights *w;
    FILE *f;
    bool failed;
    uint32_t n_kv;
    size_t n_tensors;
    tensor tensors[TENSORS_MAX];
} writer;

/* Type of a matrix as the variant says. */
static uint32_t matrix_type(const tiny_variant *v, const char *name) {
    bool outside = !strcmp(name, "token_embd.weight") || !strcmp(name, "output.weight");
    return outside && v->etype ? v->etype : v->wtype;
}

static void add_tensor(writer *o, const char *name, uint32_t cols, uint32_t rows) {
    tensor *t = &o->tensors[o->n_tensors++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->cols = cols;
    t->rows = rows;
    t->type = F32;
    uint64_t row_bytes = 4 * (uint64_t)cols;
    if (rows && o->v->wtype) {
        t->type = matrix_type(o->v, name);
        const block_format *b = block_find(t->type);
        row_bytes = b ? (uint64_t)cols / b->elems * b->bytes : 2 * (uint64_t)cols;
    } else if (rows && o->w && cols % o->w->block_elems == 0) {
        t->type = o->w->type;
        row_bytes = (uint64_t)cols / o->w->block_elems * o->w->block_bytes;
    }
    t->bytes = row_bytes * (rows ? rows : 1);
    if (o->n_tensors > 1) {
        const tensor *p = t - 1;
        t->offset = (p->offset + p->bytes + 31) / 32 * 32;
    }
}

static void add_layer_tensor(writer *o, uint32_t layer, const char *role, uint32_t cols, uint32_t rows) {
    char name[TENSOR_NAME_MAX];
    snprintf(name, sizeof name, "blk.%u.%s", (unsigned)layer, role);
    add_tensor(o, name, cols, rows);
}

static void list_tensors(writer *o) {
    const tiny_variant *v = o->v;
    const uint32_t h = v->hidden, q = v->heads * v->head_dim, kv = v->kv_heads * v->head_dim;
    const bool sandwich = !strcmp(v->arch, "gemma3");
    add_tensor(o, "token_embd.weight", h, TINY_VOCAB);
    for (uint32_t i = 0; i < v->layers; i++) {
        add_layer_tensor(o, i, "attn_norm.weight", h, 0);
        add_layer_tensor(o, i, "attn_q.weight", h, q);
        add_layer_tensor(o, i, "attn_k.weight", h, kv);
        add_layer_tensor(o, i, "attn_v.weight", h, kv);
        add_layer_tensor(o, i, "attn_output.weight", q, h);
        if (v->bias_qkv) {
            add_layer_tensor(o, i, "attn_q.bias", q, 0);
            add_layer_tensor(o, i, "attn_k.bias", kv, 0);
            add_layer_tensor(o, i, "attn_v.bias", kv, 0);
        }
        if (v->bias_o) add_layer_tensor(o, i, "attn_output.bias", h, 0);
        if (v->qk_norm) {
            add_layer_tensor(o, i, "attn_q_norm.weight", v->head_dim, 0);
            add_layer_tensor(o, i, "attn_k_norm.weight", v->head_dim, 0);
        }
        if (sandwich) {
            add_layer_tensor(o, i, "post_attention_norm.weight", h, 0);
            add_layer_tensor(o, i, "post_ffw_norm.weight", h, 0);
        }
        add_layer_tensor(o, i, "ffn_norm.weight", h, 0);
        add_layer_tensor(o, i, "ffn_gate.weight", h, v->ffn);
        add_layer_tensor(o, i, "ffn_up.weight", h, v->ffn);
        add_layer_tensor(o, i, "ffn_down.weight", v->ffn, h);
    }
    add_tensor(o, "output_norm.weight", h, 0);
    if (!v->tied) add_tensor(o, "output.weight", h, TINY_VOCAB);
    if (v->scaling == TINY_ROPE_LLAMA3) add_tensor(o, "rope_freqs.weight", v->head_dim / 2, 0);
}

/* llama3 scaling as divisors of the plain frequencies: 1, factor, or 1 / ((1 - t) / factor + t) in between. */
static void rope_divisors(const tiny_variant *v, float *out) {
    for (uint32_t i = 0; i < v->head_dim / 2; i++) {
        double wave = 2 * 3.14159265358979323846 * pow(v->theta, 2.0 * i / v->head_dim);
        double t = (v->orig_ctx / wave - v->low) / (v->high - v->low);
        out[i] = (float)(t >= 1 ? 1 : t <= 0 ? v->factor : 1 / ((1 - t) / v->factor + t));
    }
}

/* ---- the file ---- */

static void put(writer *o, const void *p, size_t n) {
    if (!o->failed && fwrite(p, 1, n, o->f) != n) o->failed = true;
}

static void put_uint(writer *o, uint64_t v, size_t n) {
    uint8_t b[8];
    put_le(b, v, n);
    put(o, b, n);
}

static void put_str(writer *o, const char *s) {
    put_uint(o, strlen(s), 8);
    put(o, s, strlen(s));
}

enum { KV_U32 = 4, KV_I32 = 5, KV_F32 = 6, KV_BOOL = 7, KV_STR = 8, KV_ARR = 9 };

static void key(writer *o, const char *name, uint32_t type) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", *name == '.' ? o->v->arch : "", name);
    put_str(o, full);
    put_uint(o, type, 4);
    o->n_kv++;
}

static void key_u32(writer *o, const char *name, uint32_t v) { key(o, name, KV_U32), put_uint(o, v, 4); }
static void key_f32(writer *o, const char *name, double v) { key(o, name, KV_F32), put_uint(o, float_bits((float)v), 4); }
static void key_str(writer *o, const char *name, const char *v) { key(o, name, KV_STR), put_str(o, v); }
static void key_bool(writer *o, const char *name, bool v) { key(o, name, KV_BOOL), put_uint(o, v, 1); }

static void key_arr(writer *o, const char *name, uint32_t type, uint64_t n) {
    key(o, name, KV_ARR);
    put_uint(o, type, 4);
    put_uint(o, n, 8);
}

/* The two letters of merge k, k < 61: no pair occurs twice. */
static void merge_pair(int k, char *a, char *b) {
    *a = (char)('a' + k % 26);
    *b = (char)('a' + (k * 7 + 3 + k / 26) % 26);
}

/* A byte's letter in byte-level vocabularies, as UTF-8: printable Latin-1 stands for itself, the rest follows U+0100. */
static void byte_letter(int byte, char out[3]) {
    int cp = 0x100;
    bool self = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (self)
        cp = byte;
    else
        for (int i = 0; i < byte; i++) cp += !((i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174);
    if (cp < 128) {
        out[0] = (char)cp, out[1] = 0;
    } else {
        out[0] = (char)(0xc0 | cp >> 6), out[1] = (char)(0x80 | (cp & 63)), out[2] = 0;
    }
}

static void put_vocab(writer *o) {
    static const char *const control[] = {"<s>", "</s>", "<pad>"};
    char s[8];
    key_str(o, "tokenizer.ggml.model", "gpt2");
    key_str(o, "tokenizer.ggml.pre", "gpt-2");
    key_arr(o, "tokenizer.ggml.tokens", KV_STR, TINY_VOCAB);
    for (int i = 0; i < TINY_VOCAB; i++) {
        s[2] = 0;
        if (i < 256)
            byte_letter(i, s);
        else if (i < TINY_BOS)
            merge_pair(i - 256, s, s + 1);
        put_str(o, i < TINY_BOS ? s : control[i - TINY_BOS]);
    }
    key_arr(o, "tokenizer.ggml.token_type", KV_I32, TINY_VOCAB);
    for (int i = 0; i < TINY_VOCAB; i++) put_uint(o, i < TINY_BOS ? 1 : 3, 4);
    key_arr(o, "tokenizer.ggml.merges", KV_STR, TINY_BOS - 256);
    for (int i = 0; i < TINY_BOS - 256; i++) {
        merge_pair(i, s, s + 2);
        s[1] = ' ', s[3] = 0;
        put_str(o, s);
    }
    key_u32(o, "tokenizer.ggml.bos_token_id", TINY_BOS);
    key_u32(o, "tokenizer.ggml.eos_token_id", TINY_EOS);
    key_u32(o, "tokenizer.ggml.padding_token_id", TINY_PAD);
    key_bool(o, "tokenizer.ggml.add_bos_token", false);
}

static void put_keys(writer *o) {
    const tiny_variant *v = o->v;
    key_str(o, "general.architecture", v->arch);
    key_str(o, "general.name", v->name);
    key_u32(o, "general.alignment", 32);
    key_u32(o, ".context_length", 512);
    key_u32(o, ".block_count", v->layers);
    key_u32(o, ".embedding_length", v->hidden);
    key_u32(o, ".feed_forward_length", v->ffn);
    key_u32(o, ".attention.head_count", v->heads);
    key_u32(o, ".attention.head_count_kv", v->kv_heads);
    if (v->head_dim * v->heads != v->hidden) {
        key_u32(o, ".attention.key_length", v->head_dim);
        key_u32(o, ".attention.value_length", v->head_dim);
    }
    key_u32(o, ".rope.dimension_count", v->head_dim);
    key_f32(o, ".attention.layer_norm_rms_epsilon", v->eps);
    key_f32(o, ".rope.freq_base", v->theta);
    if (v->theta_swa > 0) key_f32(o, ".rope.freq_base_swa", v->theta_swa);
    if (v->window) key_u32(o, ".attention.sliding_window", v->window);
    if (v->pattern) key_u32(o, ".attention.sliding_window_pattern", v->pattern);
    if (v->scaling == TINY_ROPE_LINEAR || v->scaling == TINY_ROPE_YARN) {
        key_str(o, ".rope.scaling.type", v->scaling == TINY_ROPE_YARN ? "yarn" : "linear");
        key_f32(o, ".rope.scaling.factor", v->factor);
        if (v->orig_ctx) key_u32(o, ".rope.scaling.original_context_length", v->orig_ctx);
        if (v->beta_fast > 0) key_f32(o, ".rope.scaling.yarn_beta_fast", v->beta_fast);
        if (v->beta_slow > 0) key_f32(o, ".rope.scaling.yarn_beta_slow", v->beta_slow);
    }
    put_vocab(o);
}

static void put_row(writer *o, const tensor *t, uint32_t r) {
    float row[ROW_MAX];
    uint8_t out[ROW_MAX * 4];
    const uint64_t row_bytes = t->bytes / (t->rows ? t->rows : 1);
    const block_format *b = t->rows && o->v->wtype ? block_find(t->type) : NULL;
    if (b) {
        const uint32_t per_row = t->cols / b->elems;
        for (uint32_t i = 0; i < per_row; i++)
            tiny_block(b, t->name, o->v->seed, t->cols, (uint64_t)r * per_row + i, out + (size_t)i * b->bytes);
    } else {
        if (!strcmp(t->name, "rope_freqs.weight"))
            rope_divisors(o->v, row);
        else
            values_at(t->name, o->v->seed, t->cols, (uint64_t)r * t->cols, row, t->cols);
        if (t->type != F32 && !o->v->wtype) {
            if (o->w->quantise(o->w->ctx, row, t->cols, out)) errno = EINVAL, o->failed = true;
        } else {
            for (uint32_t i = 0; i < t->cols; i++) {
                if (t->type == F32)
                    put_le(out + 4 * (size_t)i, float_bits(row[i]), 4);
                else
                    put_le(out + 2 * (size_t)i, t->type == F16 ? half_bits(row[i]) : bf16_bits(row[i]), 2);
            }
        }
    }
    put(o, out, row_bytes);
}

int tiny_model_write(const tiny_variant *v, const tiny_weights *w, const char *path) {
    int rc = -1;
    writer *o = NULL;
    if (v->hidden > ROW_MAX || v->ffn > ROW_MAX || v->heads * v->head_dim > ROW_MAX ||
        (size_t)v->layers * 16 + 4 > TENSORS_MAX || (w && v->wtype) ||
        (v->wtype && v->wtype != F16 && v->wtype != BF16 && !block_find(v->wtype)) ||
        (v->etype && (!block_find(v->wtype) || !block_find(v->etype)))) {
        errno = EINVAL;
        return -1;
    }
    if (!(o = hd_calloc(1, sizeof *o))) goto out;
    o->v = v;
    o->w = w;
    list_tensors(o);
    if (!(o->f = fopen(path, "wb"))) goto out;
    put(o, "GGUF", 4);
    put_uint(o, 3, 4);
    put_uint(o, o->n_tensors, 8);
    put_uint(o, 0, 8); /* the number of keys, filled in below */
    put_keys(o);
    for (size_t i = 0; i < o->n_tensors; i++) {
        const tensor *t = &o->tensors[i];
        put_str(o, t->name);
        put_uint(o, t->rows ? 2 : 1, 4);
        put_uint(o, t->cols, 8);
        if (t->rows) put_uint(o, t->rows, 8);
        put_uint(o, t->type, 4);
        put_uint(o, t->offset, 8);
    }
    long start = ftell(o->f);
    if (start < 0) goto out;
    start = (start + 31) / 32 * 32;
    for (size_t i = 0; i < o->n_tensors; i++) {
        const tensor *t = &o->tensors[i];
        static const uint8_t zero[32] = {0};
        long at = ftell(o->f), want = start + (long)t->offset;
        if (at < 0 || want - at > 31) goto out;
        put(o, zero, (size_t)(want - at));
        for (uint32_t r = 0; r < (t->rows ? t->rows : 1); r++) put_row(o, t, r);
    }
    if (fseek(o->f, 16, SEEK_SET)) goto out;
    put_uint(o, o->n_kv, 8);
    rc = o->failed ? -1 : 0;
out:
    if (o && o->f && fclose(o->f)) rc = -1;
    hd_free(o);
    return rc;
}
