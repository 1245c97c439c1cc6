/* test_tokenizer_data.c - the tokenizers against ids that other programs gave for the real vocabularies.
 *
 * Data: HEDDLE_TEST_DATA/tokenizers (vocabulary-only GGUF files; expected ids from Hugging Face tokenizers and from
 * SentencePiece; ids of llama.cpp's vocabulary tests; conversations of mistral-common) and text/stress-strings.jsonl.
 * Compressed vocabularies are unpacked with the zstd program. */
#include "base/mem.h"
#include "text/tokenizer.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *data_dir;

static char *slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    char *p = NULL;
    size_t len = 0, cap = 0;
    if (!f) return NULL;
    for (;;) {
        size_t k;
        if (len + 65537 > cap) p = realloc(p, cap = cap * 2 + 131072);
        assert_non_null(p);
        if (!(k = fread(p + len, 1, 65536, f))) break;
        len += k;
    }
    fclose(f);
    p[len] = 0;
    if (n) *n = len;
    return p;
}

/* The bytes of data/tokenizers/vocab/NAME.gguf, or of NAME.gguf.zst; NULL if zstd is missing. */
static char *vocab_bytes(const char *name, size_t *n) {
    char path[512], command[700], *p;
    FILE *pipe;
    size_t len = 0, cap = 0;
    snprintf(path, sizeof path, "%s/tokenizers/vocab/%s.gguf", data_dir, name);
    if ((p = slurp(path, n))) return p;
    if (system("zstd --version >/dev/null 2>&1")) {
        print_message("no zstd program: %s is left out\n", name);
        return NULL;
    }
    snprintf(command, sizeof command, "zstd -dcq '%s/tokenizers/vocab/%s.gguf.zst'", data_dir, name);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    for (;;) {
        size_t k;
        if (len + 65537 > cap) p = realloc(p, cap = cap * 2 + 131072);
        assert_non_null(p);
        if (!(k = fread(p + len, 1, 65536, pipe))) break;
        len += k;
    }
    assert_int_equal(pclose(pipe), 0);
    *n = len;
    return p;
}

/* NULL: left out, and said why. */
static tokenizer *open_vocab(const char *name) {
    size_t n;
    char *bytes = vocab_bytes(name, &n);
    tokenizer *t = NULL;
    gguf *g;
    hd_err err;
    if (!bytes) return NULL;
    if (gguf_open_memory(&g, bytes, n, &err) || tokenizer_from_gguf(&t, g, &err)) fail_msg("%s: %s", name, err.msg);
    gguf_close(g);
    free(bytes);
    return t;
}

static json_t *next_line(FILE *f) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, f);
    json_t *v = n > 0 ? json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
    free(line);
    return v;
}

/* The string of this id, or NULL. */
static json_t *stress(const char *id) {
    char path[512];
    json_t *v;
    FILE *f;
    snprintf(path, sizeof path, "%s/text/stress-strings.jsonl", data_dir);
    if (!(f = fopen(path, "rb"))) fail_msg("%s is missing", path);
    while ((v = next_line(f))) {
        if (!strcmp(json_string_value(json_object_get(v, "id")), id)) break;
        json_decref(v);
    }
    fclose(f);
    return v;
}

static bool same_ids(const id_list *a, const json_t *want) {
    if (a->n != json_array_size(want)) return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->ids[i] != json_integer_value(json_array_get(want, i))) return false;
    return true;
}

static void report(const char *family, const char *id, const id_list *got, const json_t *want) {
    char *w = json_dumps(want, JSON_COMPACT);
    print_message("%s %s: got [", family, id);
    for (size_t i = 0; i < got->n && i < 40; i++) print_message("%d,", got->ids[i]);
    print_message("] want %.300s\n", w);
    free(w);
}

/* What the ids decode to is the text, or what the reference decodes them to. */
static void check_decoded(const tokenizer *t, const char *family, const json_t *want, const json_t *text,
                          const id_list *ids) {
    const json_t *decoded = json_object_get(want, "decoded");
    hd_buf out;
    hd_err err;
    if (!decoded) decoded = text;
    buf_init(&out, SIZE_MAX);
    assert_int_equal(tokenizer_decode(t, ids->ids, ids->n, false, &out, &err), HD_OK);
    if (out.len != json_string_length(decoded) || memcmp(buf_cstr(&out), json_string_value(decoded), out.len))
        fail_msg("%s %s decodes to '%s', not '%s'", family, json_string_value(json_object_get(want, "id")),
                 buf_cstr(&out), json_string_value(decoded));
    buf_deinit(&out);
}

/* Expected ids for mpt and starcoder's end-of-text marker name another numbering (the marker appended after the
 * vocabulary); in the files it is token 0. */
static bool is_misnumbered(const char *family, const char *id) {
    return (!strcmp(family, "mpt") || !strcmp(family, "starcoder")) && !strcmp(id, "s157");
}

static int count_wrong(const char *family) {
    char path[512];
    tokenizer *t = open_vocab(family);
    json_t *want;
    id_list ids;
    hd_err err;
    FILE *f;
    int n = 0, bad = 0;
    if (!t) return 0;
    snprintf(path, sizeof path, "%s/tokenizers/expected/%s.jsonl", data_dir, family);
    if (!(f = fopen(path, "rb"))) fail_msg("%s is missing", path);
    id_list_init(&ids, 1 << 20);
    for (; (want = next_line(f)); json_decref(want)) {
        const char *id = json_string_value(json_object_get(want, "id"));
        const json_t *special = json_object_get(want, "ids_special");
        json_t *s = stress(id), *text = json_object_get(s, "text");
        const char *p = json_string_value(text);
        size_t len = json_string_length(text);
        n++;
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, p, len, 0, &ids, &err), HD_OK);
        if (json_is_true(json_object_get(want, "ambiguous"))) {
            check_decoded(t, family, want, text, &ids);
        } else {
            if (!same_ids(&ids, json_object_get(want, "ids")))
                report(family, id, &ids, json_object_get(want, "ids")), bad++;
            check_decoded(t, family, want, text, &ids);
        }
        if (special && !is_misnumbered(family, id)) {
            ids.n = 0;
            assert_int_equal(tokenizer_encode(t, p, len, TOK_SPECIAL, &ids, &err), HD_OK);
            if (!same_ids(&ids, special)) report(family, id, &ids, special), bad++;
        }
        json_decref(s);
    }
    fclose(f);
    id_list_deinit(&ids);
    tokenizer_free(t);
    assert_true(n > 100);
    return bad;
}

#define EXPECTED(name, family)                                                                                         \
    static void expected_##name(void **state) {                                                                        \
        (void)state;                                                                                                   \
        if (!data_dir) skip();                                                                                         \
        assert_int_equal(count_wrong(family), 0);                                                                      \
    }
EXPECTED(llama_spm, "llama-spm")
EXPECTED(mistral_v3, "mistral-v3")
EXPECTED(gemma3, "gemma3")
EXPECTED(gpt_2, "gpt-2")
EXPECTED(mpt, "mpt")
EXPECTED(starcoder, "starcoder")
EXPECTED(llama3, "llama3")
EXPECTED(qwen3, "qwen3")
EXPECTED(gpt_oss, "gpt-oss")

/* Strings between separator lines, and one line of ids for each. */
static void check_upstream(const char *family) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[512], *in, *out, *line, *at, *end;
    tokenizer *t = open_vocab(family);
    id_list ids;
    hd_err err;
    int n = 0;
    if (!t) return;
    snprintf(path, sizeof path, "%s/tokenizers/upstream/llamacpp.inp", data_dir);
    if (!(in = slurp(path, NULL))) fail_msg("%s is missing", path);
    snprintf(path, sizeof path, "%s/tokenizers/upstream/%s.out", data_dir, family);
    if (!(out = slurp(path, NULL))) fail_msg("%s is missing", path);
    id_list_init(&ids, 1 << 20);
    for (at = in, line = out; (end = strstr(at, separator)); at = end + sizeof separator - 1, n++) {
        char *eol = strchr(line, '\n');
        json_t *want = json_array();
        assert_non_null(eol);
        for (char *p = line; p < eol;) {
            char *next;
            long v = strtol(p, &next, 10);
            if (next == p) break;
            if (next > eol) break;
            json_array_append_new(want, json_integer(v));
            p = next;
        }
        line = eol + 1;
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, at, (size_t)(end - at), 0, &ids, &err), HD_OK);
        if (!same_ids(&ids, want)) {
            report(family, "upstream", &ids, want);
            fail_msg("%s: upstream string %d differs", family, n);
        }
        json_decref(want);
    }
    assert_true(n >= 46);
    id_list_deinit(&ids);
    free(in);
    free(out);
    tokenizer_free(t);
}

static void upstream(void **state) {
    static const char *const families[] = {"bert-bge",  "deepseek-coder", "deepseek-llm", "gpt-2",
                                           "llama-spm", "llama3",         "mpt",          "phi-3",
                                           "qwen3",     "starcoder"};
    (void)state;
    if (!data_dir) skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) check_upstream(families[i]);
}

static void stories(void **state) {
    char path[512];
    json_t *all, *c;
    size_t i;
    gguf *g;
    tokenizer *t;
    id_list ids;
    hd_err err;
    (void)state;
    if (!data_dir) skip();
    snprintf(path, sizeof path, "%s/stories260K/expected.json", data_dir);
    all = json_load_file(path, 0, NULL);
    assert_non_null(all);
    snprintf(path, sizeof path, "%s/stories260K/stories260K.gguf", data_dir);
    assert_int_equal(gguf_open(&g, path, &err), HD_OK);
    assert_int_equal(tokenizer_from_gguf(&t, g, &err), HD_OK);
    gguf_close(g);
    assert_string_equal(tokenizer_kind(t), "spm");
    assert_true(tokenizer_is_eog(t, 2) && !tokenizer_is_eog(t, 1));
    id_list_init(&ids, 1 << 20);
    json_array_foreach(json_object_get(all, "cases"), i, c) {
        const json_t *text = json_object_get(c, "prompt"), *greedy = json_object_get(c, "greedy_ids");
        hd_buf out;
        detok d;
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, json_string_value(text), json_string_length(text), TOK_BOS, &ids, &err),
                         HD_OK);
        assert_true(same_ids(&ids, json_object_get(c, "prompt_ids")));
        buf_init(&out, SIZE_MAX);
        /* The text of the run is the prompt continued, so only a run from nothing starts without its space. */
        detok_init(&d, t, json_string_length(text) == 0);
        for (size_t k = 0; k < json_array_size(greedy); k++)
            detok_push(&d, t, (int32_t)json_integer_value(json_array_get(greedy, k)), false, &out);
        detok_finish(&d, &out);
        if (json_object_get(c, "text")) {
            const char *whole = json_string_value(json_object_get(c, "text"));
            size_t n_whole = strlen(whole);
            assert_true(out.len && n_whole >= out.len);
            assert_string_equal(whole + n_whole - out.len, out.data);
        }
        buf_deinit(&out);
    }
    id_list_deinit(&ids);
    tokenizer_free(t);
    json_decref(all);
}

/* R063: BERT's normalisation, composed and decomposed; ids from golden/make_wordpiece.py. */
static void word_pieces_R063(void **state) {
    FILE *f = fopen(TEST_DIR "/golden/wordpiece.jsonl", "rb");
    tokenizer *t;
    json_t *v;
    id_list ids;
    hd_err err;
    int n = 0, bad = 0;
    (void)state;
    assert_non_null(f);
    if (!data_dir) {
        fclose(f);
        skip();
    }
    t = open_vocab("bert-bge");
    id_list_init(&ids, 1 << 20);
    for (; (v = next_line(f)); json_decref(v), n++) {
        const json_t *text = json_object_get(v, "text"), *want = json_object_get(v, "ids");
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, json_string_value(text), json_string_length(text), 0, &ids, &err), HD_OK);
        if (!same_ids(&ids, want)) report("bert-bge", json_string_value(text), &ids, want), bad++;
    }
    fclose(f);
    assert_true(n > 40);
    assert_int_equal(bad, 0);
    id_list_deinit(&ids);
    tokenizer_free(t);
}

/* Ids of mistral-common for whole conversations; each message there begins with SentencePiece's space. */
static void mistral_chat(void **state) {
    static const char *const samples[] = {"get_weather_full", "get_weather_no_history", "get_weather_no_system_prompt",
                                          "no_tools", "parallel_calls"};
    tokenizer *t;
    (void)state;
    if (!data_dir) skip();
    if (!(t = open_vocab("mistral-v3"))) skip();
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        char path[512], *shown;
        json_t *all, *want;
        hd_buf text, pieces;
        id_list ids;
        hd_err err;
        bool begins = true;
        size_t n_shown;
        snprintf(path, sizeof path, "%s/tokenizers/mistral-chat/%s/tokens_v3.json", data_dir, samples[i]);
        all = json_load_file(path, 0, NULL);
        want = json_object_get(all, "tokens");
        assert_true(json_array_size(want) > 10);
        buf_init(&text, SIZE_MAX);
        buf_init(&pieces, SIZE_MAX);
        for (size_t k = 0; k < json_array_size(want); k++) {
            int32_t id = (int32_t)json_integer_value(json_array_get(want, k));
            gguf_str x = tokenizer_bytes(t, id, true);
            for (size_t b = 0; b < x.n; b++)
                if (x.s[b] == ' ')
                    buf_str(&pieces, "\xe2\x96\x81");
                else if (x.s[b] == '\n')
                    buf_str(&pieces, "<0x0A>"); /* the file shows the byte token's name */
                else
                    buf_byte(&pieces, x.s[b]);
            if (begins && !tokenizer_is_control(t, id)) {
                assert_true(x.n && x.s[0] == ' ');
                x.s++, x.n--;
            }
            buf_add(&text, x.s, x.n);
            begins = tokenizer_is_control(t, id);
        }
        snprintf(path, sizeof path, "%s/tokenizers/mistral-chat/%s/text_v3.txt", data_dir, samples[i]);
        shown = slurp(path, &n_shown);
        assert_non_null(shown);
        if (n_shown && shown[n_shown - 1] == '\n') shown[--n_shown] = 0;
        assert_string_equal(buf_cstr(&pieces), shown);
        id_list_init(&ids, 1 << 20);
        assert_int_equal(tokenizer_encode(t, text.data, text.len, TOK_SPECIAL, &ids, &err), HD_OK);
        if (!same_ids(&ids, want)) {
            report("mistral-v3", samples[i], &ids, want);
            fail();
        }
        /* With BOS asked for and written there is one. */
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, text.data, text.len, TOK_SPECIAL | TOK_BOS, &ids, &err), HD_OK);
        assert_true(same_ids(&ids, want));
        id_list_deinit(&ids);
        free(shown);
        buf_deinit(&text);
        buf_deinit(&pieces);
        json_decref(all);
    }
    tokenizer_free(t);
}

/* Bytes that are not UTF-8 survive in every family that has a token for each byte. */
static void invalid_bytes(void **state) {
    static const char *const families[] = {"llama-spm", "gpt-2", "llama3", "gpt-oss", "mistral-v3", "gemma3", "qwen3"};
    (void)state;
    if (!data_dir) skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char path[512];
        tokenizer *t = open_vocab(families[i]);
        json_t *v;
        FILE *f;
        id_list ids;
        hd_err err;
        int n = 0;
        if (!t) continue;
        id_list_init(&ids, 1 << 20);
        snprintf(path, sizeof path, "%s/text/stress-strings.jsonl", data_dir);
        assert_non_null(f = fopen(path, "rb"));
        for (; (v = next_line(f)); json_decref(v)) {
            const char *hex = json_string_value(json_object_get(v, "hex"));
            char bytes[64];
            size_t len = 0, at = 0;
            bool strip = !strcmp(tokenizer_kind(t), "spm") && strcmp(families[i], "gemma3");
            if (!hex) continue;
            n++;
            for (; hex[2 * len]; len++) {
                unsigned b = 0;
                assert_true(len < sizeof bytes && sscanf(hex + 2 * len, "%2x", &b) == 1);
                bytes[len] = (char)b;
            }
            ids.n = 0;
            assert_int_equal(tokenizer_encode(t, bytes, len, 0, &ids, &err), HD_OK);
            for (size_t k = 0; k < ids.n; k++) {
                gguf_str x = tokenizer_bytes(t, ids.ids[k], false);
                if (k == 0 && strip) assert_true(x.n && x.s[0] == ' '), x.s++, x.n--;
                assert_true(at + x.n <= len && !memcmp(bytes + at, x.s, x.n));
                at += x.n;
            }
            assert_int_equal(at, len);
        }
        assert_true(n >= 20);
        fclose(f);
        id_list_deinit(&ids);
        tokenizer_free(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stories),
        cmocka_unit_test(upstream),
        cmocka_unit_test(expected_llama_spm),
        cmocka_unit_test(expected_gpt_2),
        cmocka_unit_test(expected_mpt),
        cmocka_unit_test(expected_starcoder),
        cmocka_unit_test(expected_llama3),
        cmocka_unit_test(expected_qwen3),
        cmocka_unit_test(expected_gpt_oss),
        cmocka_unit_test(expected_gemma3),
        cmocka_unit_test(expected_mistral_v3),
        cmocka_unit_test(mistral_chat),
        cmocka_unit_test(invalid_bytes),
        cmocka_unit_test(word_pieces_R063),
    };
    data_dir = getenv("HEDDLE_TEST_DATA");
    if (!data_dir) print_message("HEDDLE_TEST_DATA is not set: no vocabularies to test with\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
