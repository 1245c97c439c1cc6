/* fuzz_tokenizer.c - a vocabulary and a text from the same bytes.
 *
 * Input: byte 0 picks the model and the pre-tokenizer, byte 1 holds flags, byte 2 the number of tokens; then tokens
 * (type, length, bytes) and merge rules (length, bytes) as long as their counts say; the rest is the text, cut in two
 * pieces. What must hold: ids are in range, an untrusted text yields no control token that the tokenizer does not add
 * itself, streaming and whole decoding agree, and what they give is UTF-8. */
#include "base/jsonw.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(e) ((e) ? (void)0 : abort())

typedef struct {
    const uint8_t *p;
    size_t n;
} input;

static uint8_t byte(input *in) { return in->n ? in->n--, *in->p++ : 0; }

static void u32(hd_buf *f, uint32_t v) { buf_add(f, &v, 4); }
static void u64(hd_buf *f, uint64_t v) { buf_add(f, &v, 8); }
static void str(hd_buf *f, const void *s, size_t n) { u64(f, n), buf_add(f, s, n); }
static void key(hd_buf *f, const char *name, uint32_t type) { str(f, name, strlen(name)), u32(f, type); }

static void chunk(hd_buf *f, input *in) {
    size_t n = byte(in) % 24;
    if (n > in->n) n = in->n;
    str(f, in->p, n);
    in->p += n, in->n -= n;
}

static void make_file(hd_buf *f, input *in) {
    static const char *const models[] = {"llama", "gpt2", "gpt2", "bert"};
    static const char *const pres[] = {"gpt-2",        "llama-bpe",      "qwen2",       "qwen35",
                                       "gpt-4o",       "tekken",         "falcon",      "smollm",
                                       "deepseek-llm", "deepseek-coder", "deepseek-v3", "default"};
    uint8_t kind = byte(in), more = byte(in);
    size_t n = byte(in) % 64 + 1u, n_merges = byte(in) % 32;
    const char *model = models[kind % 4], *pre = pres[kind / 4 % 12];
    hd_buf types;
    buf_init(&types, 1 << 16);
    buf_str(f, "GGUF"), u32(f, 3), u64(f, 0), u64(f, 8);
    key(f, "tokenizer.ggml.model", GGUF_STRING), str(f, model, strlen(model));
    key(f, "tokenizer.ggml.pre", GGUF_STRING), str(f, pre, strlen(pre));
    key(f, "general.architecture", GGUF_STRING), str(f, more & 1 ? "phi3" : "llama", more & 1 ? 4 : 5);
    key(f, "tokenizer.ggml.tokens", GGUF_ARRAY), u32(f, GGUF_STRING), u64(f, n);
    for (size_t i = 0; i < n; i++) {
        u32(&types, byte(in) % 7u);
        chunk(f, in);
    }
    key(f, "tokenizer.ggml.token_type", GGUF_ARRAY), u32(f, GGUF_I32), u64(f, n);
    buf_add(f, types.data, types.len);
    key(f, "tokenizer.ggml.scores", GGUF_ARRAY), u32(f, GGUF_F32), u64(f, n);
    for (size_t i = 0; i < n; i++) {
        float score = (float)(int8_t)byte(in);
        buf_add(f, &score, 4);
    }
    key(f, "tokenizer.ggml.merges", GGUF_ARRAY), u32(f, GGUF_STRING), u64(f, n_merges);
    for (size_t i = 0; i < n_merges; i++) chunk(f, in);
    key(f, "tokenizer.ggml.unknown_token_id", GGUF_U32), u32(f, more >> 4);
    buf_deinit(&types);
}

static void check_text(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        int len = utf8_next(s + i, n - i, &(uint32_t){0});
        MUST(len > 0);
        i += (size_t)len;
    }
}

/* unk: the unknown token, which may stand for text; nothing else that is control may. */
static void check(const tokenizer *t, const id_list *l, int32_t unk, bool trusted) {
    hd_buf whole;
    hd_err err;
    for (size_t i = 0; i < l->n; i++) {
        MUST(l->ids[i] >= 0 && (size_t)l->ids[i] < tokenizer_size(t));
        MUST(trusted || !tokenizer_is_control(t, l->ids[i]) || l->ids[i] == unk);
    }
    buf_init(&whole, 1 << 24);
    MUST(tokenizer_decode(t, l->ids, l->n, trusted, &whole, &err) == HD_OK);
    check_text(buf_cstr(&whole), whole.len);
    buf_deinit(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, size};
    hd_buf f;
    gguf *g = NULL;
    tokenizer *t = NULL;
    hd_err err;
    unsigned flags = size > 1 ? data[1] >> 1 & 7 : 0;
    if (size < 4) return 0;
    buf_init(&f, 1 << 20);
    make_file(&f, &in);
    if (!f.failed && gguf_open_memory(&g, f.data, f.len, &err) == HD_OK && tokenizer_from_gguf(&t, g, &err) == HD_OK) {
        const char *text = (const char *)in.p;
        size_t cut = in.n / 2;
        text_piece pieces[2] = {{text, cut, true}, {text ? text + cut : text, in.n - cut, false}};
        id_list a, b;
        id_list_init(&a, 1 << 20);
        id_list_init(&b, 1 << 20);
        if (tokenizer_encode(t, text, in.n, flags, &a, &err) == HD_OK)
            check(t, &a, data[1] >> 4, flags & (TOK_SPECIAL | TOK_BOS));
        if (tokenizer_encode_pieces(t, pieces, 2, flags, &b, &err) == HD_OK) check(t, &b, data[1] >> 4, true);
        id_list_deinit(&a);
        id_list_deinit(&b);
    }
    tokenizer_free(t);
    gguf_close(g);
    buf_deinit(&f);
    return 0;
}
