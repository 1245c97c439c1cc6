/* vocab_spec.c - see vocab_spec.h. */
#include "util/vocab_spec.h"

#include "base/buf.h"
#include "text/tokenizer_int.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void u32(hd_buf *f, uint32_t v) { buf_add(f, &v, 4); }
static void u64(hd_buf *f, uint64_t v) { buf_add(f, &v, 8); }
static void str(hd_buf *f, const char *s) { u64(f, strlen(s)), buf_str(f, s); }
static void key(hd_buf *f, const char *name, uint32_t type, uint64_t *n) { str(f, name), u32(f, type), ++*n; }
static void array(hd_buf *f, const char *name, uint32_t elem, size_t len, uint64_t *n) {
    key(f, name, GGUF_ARRAY, n), u32(f, elem), u64(f, len);
}

static const char *letter(int byte, char out[4]) {
    uint32_t cp = vocab_byte_letter((uint8_t)byte);
    size_t k = 0;
    if (cp >= 0x80) out[k++] = (char)(0xc0 | cp >> 6);
    out[k++] = (char)(cp < 0x80 ? cp : 0x80 | (cp & 0x3f));
    out[k] = 0;
    return out;
}

void vocab_write(hd_buf *f, const vocab_spec *s) {
    hd_buf keys;
    uint64_t n = 0;
    size_t total = s->n + (s->byte_letters ? 256 : 0), n_merges = 0;
    char l[4];
    buf_init(&keys, SIZE_MAX);
    key(&keys, "tokenizer.ggml.model", GGUF_STRING, &n), str(&keys, s->model);
    if (s->pre) key(&keys, "tokenizer.ggml.pre", GGUF_STRING, &n), str(&keys, s->pre);
    key(&keys, "general.architecture", GGUF_STRING, &n), str(&keys, s->arch ? s->arch : "llama");
    if (!s->no_tokens) {
        array(&keys, "tokenizer.ggml.tokens", GGUF_STRING, total, &n);
        for (size_t i = 0; i < s->n; i++) str(&keys, s->tokens[i].text);
        for (size_t i = s->n; i < total; i++) str(&keys, letter((int)(i - s->n), l));
    }
    if (!s->no_types) {
        array(&keys, "tokenizer.ggml.token_type", GGUF_I32, total, &n);
        for (size_t i = 0; i < total; i++) u32(&keys, i < s->n ? (uint32_t)s->tokens[i].type : 1);
    }
    if (!s->no_scores) {
        array(&keys, "tokenizer.ggml.scores", GGUF_F32, total, &n);
        for (size_t i = 0; i < total; i++) buf_add(&keys, i < s->n ? &s->tokens[i].score : &(float){0}, 4);
    }
    if (s->merges) {
        while (s->merges[n_merges]) n_merges++;
        array(&keys, "tokenizer.ggml.merges", GGUF_STRING, n_merges, &n);
        for (size_t i = 0; i < n_merges; i++) str(&keys, s->merges[i]);
    }
    if (s->template) key(&keys, "tokenizer.chat_template", GGUF_STRING, &n), str(&keys, s->template);
    for (const char *const *p = s->ints; p && *p; p += 2)
        key(&keys, p[0], GGUF_U32, &n), u32(&keys, (uint32_t)strtol(p[1], NULL, 10));
    for (const char *const *p = s->bools; p && *p; p += 2)
        key(&keys, p[0], GGUF_BOOL, &n), buf_byte(&keys, p[1][0] == '1');
    buf_init(f, SIZE_MAX);
    buf_str(f, "GGUF"), u32(f, 3), u64(f, 0), u64(f, n);
    buf_add(f, keys.data, keys.len);
    assert_int_equal(f->failed, HD_OK);
    buf_deinit(&keys);
}

hd_status vocab_try(tokenizer **t, const vocab_spec *s, hd_err *err) {
    hd_buf f;
    gguf *g;
    hd_status st;
    vocab_write(&f, s);
    if (gguf_open_memory(&g, f.data, f.len, err)) fail_msg("%s", err->msg);
    st = tokenizer_from_gguf(t, g, err);
    gguf_close(g);
    buf_deinit(&f); /* nothing may point into the file any more */
    return st;
}

tokenizer *vocab_open(const vocab_spec *s) {
    tokenizer *t;
    hd_err err;
    if (vocab_try(&t, s, &err)) fail_msg("%s", err.msg);
    return t;
}

/* ------------------------------------------------------------------------------------------------ two of them */

static const vocab_token bpe_tokens[] = {
    {"<|end|>", 3, 0},
    {"<|user|>", 3, 0},
    {"<tool>", 4, 0},
    {"ab", 1, 0},
    {"abc", 1, 0},
    {"bc", 1, 0},
    {"\xc4\xa0"
     "a",
     1, 0},
    {"aa", 1, 0},
    {"aaaa", 1, 0},
    {"<tool><tool>", 4, 0},
};
/* bc before ab: in "abc" the b goes to the c. */
static const char *const bpe_merges[] = {"b c", "a b", "a bc", "\xc4\xa0 a", "a a", "aa aa", "< |", "<| e", NULL};
const vocab_spec vocab_bpe = {
    .model = "gpt2",
    .pre = "gpt-2",
    .tokens = bpe_tokens,
    .n = sizeof bpe_tokens / sizeof *bpe_tokens,
    .merges = bpe_merges,
    .no_scores = true,
    .byte_letters = true,
    .ints = (const char *const[]){"tokenizer.ggml.eos_token_id", "0", "tokenizer.ggml.bos_token_id", "1", NULL}};

vocab_token vocab_spm_tokens[VOCAB_SPM_FIXED + 256];
static char byte_names[256][8];

const vocab_spec *vocab_spm(void) {
    static const vocab_token fixed[VOCAB_SPM_FIXED] = {
        {"<unk>", 2, 0}, {"<s>", 3, 0},   {"</s>", 3, 0}, {SP, 1, -1},   {SP "T", 1, -2}, {"T", 1, -20},
        {"h", 1, -21},   {"i", 1, -22},   {"s", 1, -23},  {"is", 1, -3}, {"his", 1, -4},  {SP "This", 1, -5},
        {SP SP, 1, -6},  {"<doc>", 4, 0}, {"<", 1, -30},  {">", 1, -31}, {"<s", 1, -32},
    };
    static vocab_spec s = {.model = "llama", .tokens = vocab_spm_tokens, .n = VOCAB_SPM_FIXED + 256};
    memcpy(vocab_spm_tokens, fixed, sizeof fixed);
    for (int b = 0; b < 256; b++) {
        snprintf(byte_names[b], sizeof byte_names[b], "<0x%02X>", b);
        vocab_spm_tokens[VOCAB_SPM_FIXED + b] = (vocab_token){byte_names[b], 6, 0};
    }
    return &s;
}
