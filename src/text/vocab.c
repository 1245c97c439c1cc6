/* vocab.c - a tokenizer from the metadata of a GGUF file.
 *
 * Everything in the file is doubted: counts against each other, types, ids in keys, merge rules that name no token,
 * names that collide in the hash table by design.  Loading is linear in the bytes of the vocabulary; a quarter of a
 * million tokens with half a million rules load in tens of milliseconds, which is why names sit in one block and the
 * tables are flat.  Read: tokenizer_from_gguf at the end, then upwards. */
#include "text/tokenizer_int.h"

#include "base/checked.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define KEY(name) "tokenizer.ggml." name

/* More probes than this in a table that is half empty: the names were chosen to collide. */
enum { MAX_PROBES = 4096 };

/* ------------------------------------------------------------------------------------------------ names to symbols */

static uint64_t hash(const char *s, size_t n) { return XXH3_64bits(s, n); }

static bool same_name(const tokenizer *t, uint32_t sym, const char *s, size_t n) {
    gguf_str x = vocab_name(t, sym);
    return x.n == n && !memcmp(x.s, s, n);
}

/* The slot of this name, or the empty one where it belongs; NULL after too many probes. */
static name_slot *slot_of(const tokenizer *t, const char *s, size_t n, uint64_t h) {
    size_t mask = t->n_slots - 1, i = (size_t)h & mask;
    uint32_t tag = (uint32_t)(h >> 32);
    for (size_t k = 0; k < MAX_PROBES; k++, i = (i + 1) & mask) {
        name_slot *x = &t->slots[i];
        if (!x->sym1 || (x->tag == tag && same_name(t, x->sym1 - 1, s, n))) return x;
    }
    return NULL;
}

static int32_t find_hashed(const tokenizer *t, const char *name, size_t n, uint64_t h) {
    const name_slot *x = slot_of(t, name, n, h);
    return x && x->sym1 ? (int32_t)(x->sym1 - 1) : -1;
}

int32_t vocab_find(const tokenizer *t, const char *name, size_t n) {
    return t->n_slots ? find_hashed(t, name, n, hash(name, n)) : -1;
}

static hd_status slots_size(tokenizer *t, size_t names, hd_err *err) {
    size_t n = 64;
    name_slot *old = t->slots;
    size_t n_old = t->n_slots;
    while (n < names * 2) n *= 2;
    if (n <= t->n_slots) return HD_OK;
    if (!(t->slots = hd_calloc(n, sizeof *t->slots))) {
        t->slots = old;
        return hd_fail(err, HD_NOMEM, "tokenizer: no memory for %zu names", names);
    }
    t->n_slots = n;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].sym1) {
            gguf_str x = vocab_name(t, old[i].sym1 - 1);
            name_slot *to = slot_of(t, x.s, x.n, hash(x.s, x.n));
            if (to) *to = old[i];
        }
    hd_free(old);
    return HD_OK;
}

/* Enter symbol `sym`, whose name is in place.  Of tokens with one name the last counts, as in the reference. */
static hd_status enter(tokenizer *t, uint32_t sym, hd_err *err) {
    gguf_str x = vocab_name(t, sym);
    uint64_t h = hash(x.s, x.n);
    name_slot *to = slot_of(t, x.s, x.n, h);
    if (!to) return hd_fail_field(err, HD_INVALID, KEY("tokens"), "token %u: too many names that collide", sym);
    if (!to->sym1) t->n_named++;
    *to = (name_slot){(uint32_t)(h >> 32), sym + 1};
    return HD_OK;
}

static hd_status add_name(tokenizer *t, const char *s, size_t n, hd_err *err) {
    if (n > UINT32_MAX - t->names_len || t->n_syms >= INT32_MAX)
        return hd_fail_field(err, HD_INVALID, KEY("tokens"), "the vocabulary is larger than 4 GiB");
    if (!hd_grow(&t->names, &t->names_cap, t->names_len + n, 1, UINT32_MAX) ||
        !hd_grow(&t->name_at, &t->cap_syms, t->n_syms + 2, sizeof *t->name_at, (size_t)INT32_MAX + 1))
        return hd_fail(err, HD_NOMEM, "tokenizer: no memory for names");
    if (!t->n_syms) t->name_at[0] = 0;
    if (n) memcpy(t->names + t->names_len, s, n);
    t->names_len += n;
    t->name_at[++t->n_syms] = (uint32_t)t->names_len;
    return HD_OK;
}

/* The symbol of this name, made if there is none. */
static hd_status intern(tokenizer *t, const char *s, size_t n, uint64_t h, uint32_t *out, hd_err *err) {
    int32_t have = find_hashed(t, s, n, h);
    hd_status st;
    if (have >= 0) return *out = (uint32_t)have, HD_OK;
    if ((st = slots_size(t, t->n_named + 1, err)) || (st = add_name(t, s, n, err))) return st;
    *out = (uint32_t)t->n_syms - 1;
    return enter(t, *out, err);
}

/* --------------------------------------------------------------------------------------------- bytes as letters */

/* Byte-level BPE writes 33-126, 161-172 and 174-255 as they are, the other 68 bytes as U+0100 to U+0143 in order. */
uint32_t vocab_byte_letter(uint8_t b) {
    if (b <= 32) return 0x100u + b;
    if (b >= 127 && b <= 160) return 0x100u + 33 + (b - 127u);
    return b == 173 ? 0x143u : b;
}

static int byte_of_letter(uint32_t cp) {
    if (cp < 0x100) return cp <= 32 || (cp >= 127 && cp <= 160) || cp == 173 ? -1 : (int)cp;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 127);
    return cp == 0x143 ? 173 : -1;
}

/* Append what a byte-level name stands for; false (and nothing appended) if a letter of it is not of the alphabet. */
static bool add_bytes(hd_buf *b, gguf_str name) {
    for (size_t i = 0, pass = 0; pass < 2; pass++)
        for (i = 0; i < name.n;) {
            uint32_t cp;
            int len = utf8_next(name.s + i, name.n - i, &cp);
            int byte = len > 0 ? byte_of_letter(cp) : -1;
            if (byte < 0) return false;
            if (pass) buf_byte(b, (char)byte);
            i += (size_t)len;
        }
    return true;
}

/* <0xHH> */
static int hex_byte(gguf_str name) {
    unsigned v;
    char h[3] = {0};
    if (name.n != 6 || memcmp(name.s, "<0x", 3) || name.s[5] != '>') return -1;
    memcpy(h, name.s + 3, 2);
    if (strspn(h, "0123456789abcdefABCDEF") != 2 || sscanf(h, "%x", &v) != 1) return -1;
    return (int)v;
}

static void add_spaces(hd_buf *b, gguf_str name, bool first_only) {
    for (size_t i = 0; i < name.n;) {
        if (name.n - i >= 3 && !memcmp(name.s + i, "\xe2\x96\x81", 3) && (!first_only || i == 0)) {
            buf_byte(b, ' ');
            i += 3;
        } else {
            buf_byte(b, name.s[i++]);
        }
    }
}

static hd_status load_texts(tokenizer *t, hd_err *err) {
    hd_buf b;
    size_t len;
    buf_init(&b, UINT32_MAX);
    if (!(t->text_at = hd_reallocarray(NULL, t->n + 1, sizeof *t->text_at))) goto oom;
    t->text_at[0] = 0;
    for (size_t i = 0; i < t->n; i++) {
        gguf_str name = vocab_name(t, (uint32_t)i);
        unsigned type = vocab_type(t, (int32_t)i);
        int byte = type == TYPE_BYTE ? hex_byte(name) : -1;
        if (byte >= 0) {
            buf_byte(&b, (char)byte);
            if (t->algorithm != TOK_BPE) t->byte_id[byte] = (int32_t)i;
        } else if (type == TYPE_CONTROL || type == TYPE_UNKNOWN) {
            buf_add(&b, name.s, name.n);
        } else if (t->algorithm == TOK_BPE) {
            if (type == TYPE_USER || !add_bytes(&b, name)) buf_add(&b, name.s, name.n);
        } else {
            add_spaces(&b, name, t->algorithm == TOK_WPM);
        }
        if (b.failed) goto oom;
        t->text_at[i + 1] = (uint32_t)b.len;
    }
    t->texts = buf_take(&b, &len);
    if (!t->texts) goto oom;
    return HD_OK;
oom:
    buf_deinit(&b);
    return hd_fail(err, HD_NOMEM, "tokenizer: no memory for the texts of %zu tokens", t->n);
}

/* -------------------------------------------------------------------------------------------------- merge rules */

static size_t merge_at(uint64_t pair, size_t mask) {
    pair ^= pair >> 32;
    pair *= 0x9e3779b97f4a7c15u;
    return (size_t)(pair >> 32) & mask;
}

const merge_slot *vocab_merge(const tokenizer *t, uint32_t left, uint32_t right) {
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = t->n_merge_slots - 1, i = merge_at(pair, mask);
    for (; t->merges[i].pair != UINT64_MAX; i = (i + 1) & mask)
        if (t->merges[i].pair == pair) return &t->merges[i];
    return NULL;
}

static hd_status add_merge(tokenizer *t, uint32_t left, uint32_t right, uint32_t rank, uint32_t result, hd_err *err) {
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = t->n_merge_slots - 1, i = merge_at(pair, mask);
    for (size_t k = 0; t->merges[i].pair != UINT64_MAX; i = (i + 1) & mask) {
        if (t->merges[i].pair == pair) return HD_OK; /* the first rule of a pair counts */
        if (++k > MAX_PROBES) return hd_fail_field(err, HD_INVALID, KEY("merges"), "rule %u: too many collide", rank);
    }
    t->merges[i] = (merge_slot){pair, rank, result};
    return HD_OK;
}

/* One rule "A B" on its way in: the names A, B and AB, their hashes, their symbols. */
typedef struct {
    const char *s[3];
    size_t n[3];
    uint64_t h[3];
    uint32_t sym[3];
} rule;

/* Rules come in batches, and what a later pass will read is asked for in an earlier one: the tables are larger than the
 * caches, and half a million rules that wait three times each for memory would be most of the time a start takes. */
enum { BATCH = 32 };

/* "A B": the space is looked for from the second byte on, since A may begin with one. */
static hd_status parse_rule(gguf_str m, uint32_t rank, rule *r, hd_buf *joined, hd_err *err) {
    const char *sp = m.n > 1 ? memchr(m.s + 1, ' ', m.n - 1) : NULL;
    size_t a = sp ? (size_t)(sp - m.s) : 0;
    if (!sp || a + 1 == m.n)
        return hd_fail_field(err, HD_INVALID, KEY("merges"), "rule %u does not have the form \"A B\"", rank);
    r->s[0] = m.s, r->n[0] = a;
    r->s[1] = sp + 1, r->n[1] = m.n - a - 1;
    r->n[2] = m.n - 1;
    buf_add(joined, r->s[0], r->n[0]);
    buf_add(joined, r->s[1], r->n[1]);
    return HD_OK;
}

static hd_status load_batch(tokenizer *t, const gguf_str *m, size_t n, uint32_t rank, hd_buf *joined, hd_err *err) {
    rule rules[BATCH];
    const char *at;
    hd_status st;
    buf_clear(joined);
    for (size_t i = 0; i < n; i++)
        if ((st = parse_rule(m[i], rank + (uint32_t)i, &rules[i], joined, err))) return st;
    if (joined->failed) return hd_fail(err, HD_NOMEM, "tokenizer: no memory for merge rule %u", rank);
    at = joined->data;
    for (rule *r = rules; r < rules + n; at += (r++)->n[2]) {
        r->s[2] = at;
        for (int k = 0; k < 3; k++) {
            r->h[k] = hash(r->s[k], r->n[k]);
            __builtin_prefetch(&t->slots[r->h[k] & (t->n_slots - 1)]);
        }
    }
    for (rule *r = rules; r < rules + n; r++)
        for (int k = 0; k < 3; k++) {
            uint32_t sym1 = t->slots[r->h[k] & (t->n_slots - 1)].sym1;
            r->sym[k] = sym1 ? sym1 - 1 : 0;
            __builtin_prefetch(&t->name_at[r->sym[k]]);
        }
    for (rule *r = rules; r < rules + n; r++)
        for (int k = 0; k < 3; k++) __builtin_prefetch(t->names + t->name_at[r->sym[k]]);
    for (rule *r = rules; r < rules + n; r++) {
        for (int k = 0; k < 3; k++)
            if ((st = intern(t, r->s[k], r->n[k], r->h[k], &r->sym[k], err))) return st;
        __builtin_prefetch(&t->merges[merge_at((uint64_t)r->sym[0] << 32 | r->sym[1], t->n_merge_slots - 1)], 1);
    }
    for (rule *r = rules; r < rules + n; r++) {
        /* A rule that would turn plain text into a control token is left out. */
        if (r->sym[2] < t->n && !vocab_is_text(t, (int32_t)r->sym[2])) continue;
        if ((st = add_merge(t, r->sym[0], r->sym[1], rank + (uint32_t)(r - rules), r->sym[2], err))) return st;
    }
    return HD_OK;
}

static hd_status load_merges(tokenizer *t, const gguf *g, hd_err *err) {
    gguf_str *m = NULL;
    hd_buf joined;
    size_t n = 0, slots = 64;
    hd_status st;
    buf_init(&joined, SIZE_MAX);
    if ((st = gguf_arr_n(g, KEY("merges"), NULL, &n, err))) return st;
    if (n > INT32_MAX) return hd_fail_field(err, HD_INVALID, KEY("merges"), "too many merge rules");
    while (slots < n * 2) slots *= 2;
    m = hd_reallocarray(NULL, n ? n : 1, sizeof *m);
    t->merges = hd_reallocarray(NULL, slots, sizeof *t->merges);
    if (!m || !t->merges) {
        st = hd_fail(err, HD_NOMEM, "tokenizer: no memory for %zu merge rules", n);
        goto out;
    }
    memset(t->merges, 0xff, slots * sizeof *t->merges);
    t->n_merge_slots = slots;
    if ((st = gguf_arr_strs(g, KEY("merges"), m, n, err))) goto out;
    for (int b = 0; b < 256; b++) {
        char letter[2];
        uint32_t cp = vocab_byte_letter((uint8_t)b), sym;
        size_t len = 1;
        letter[0] = (char)cp;
        if (cp >= 0x80) letter[0] = (char)(0xc0 | cp >> 6), letter[1] = (char)(0x80 | (cp & 0x3f)), len = 2;
        if ((st = intern(t, letter, len, hash(letter, len), &sym, err))) goto out;
        t->byte_id[b] = (int32_t)sym;
    }
    for (size_t i = 0; i < n; i += BATCH)
        if ((st = load_batch(t, m + i, n - i < BATCH ? n - i : BATCH, (uint32_t)i, &joined, err))) goto out;
out:
    buf_deinit(&joined);
    hd_free(m);
    return st;
}

/* ------------------------------------------------------------------------------------------------ spm, wpm extras */

/* Which bytes meet at a character's border inside some token.  Where two bytes never do, no merge can cross, so text
 * is cut there first: most texts fall into words.  The space sign counts as one byte. */
static void load_joins(tokenizer *t) {
    for (size_t i = 0; i < t->n; i++) {
        gguf_str x = vocab_name(t, (uint32_t)i);
        size_t k = 0;
        unsigned last = 256;
        if (!vocab_is_text(t, (int32_t)i)) continue;
        while (k < x.n) {
            uint32_t cp;
            int len = utf8_next(x.s + k, x.n - k, &cp);
            size_t step = len < 0 ? 1 : (size_t)len;
            unsigned first = cp == 0x2581 ? ' ' : (uint8_t)x.s[k];
            if (last < 256) t->joins[(last << 8 | first) >> 3] |= (uint8_t)(1u << (first & 7));
            last = cp == 0x2581 ? ' ' : (uint8_t)x.s[k + step - 1];
            k += step;
        }
    }
}

static hd_status load_spm(tokenizer *t, const gguf *g, hd_err *err) {
    hd_status st;
    t->space_prefix = true;
    if (gguf_has(g, KEY("add_space_prefix")) && (st = gguf_get_bool(g, KEY("add_space_prefix"), &t->space_prefix, err)))
        return st;
    t->scores = hd_calloc(t->n, sizeof *t->scores);
    t->joins = hd_calloc(8192, 1);
    if (!t->scores || !t->joins) return hd_fail(err, HD_NOMEM, "tokenizer: no memory for %zu scores", t->n);
    if ((st = gguf_arr_f32(g, KEY("scores"), t->scores, t->n, err))) return st;
    load_joins(t);
    t->has_bytes = true;
    for (int b = 0; b < 256; b++) t->has_bytes = t->has_bytes && t->byte_id[b] >= 0;
    return HD_OK;
}

/* Vocabularies of uncased models hold no capital; their text is lower-cased and loses its accents. */
static void load_wpm(tokenizer *t) {
    t->lower = true;
    for (size_t i = 0; i < t->n && t->lower; i++) {
        gguf_str x = vocab_name(t, (uint32_t)i);
        if (vocab_type(t, (int32_t)i) == TYPE_NORMAL && x.n > 3 && !memcmp(x.s, "\xe2\x96\x81", 3) && x.s[3] >= 'A' &&
            x.s[3] <= 'Z')
            t->lower = false;
    }
}

/* ----------------------------------------------------------------------------------------------- special ids */

static hd_status get_id(const tokenizer *t, const gguf *g, const char *key, int32_t *id, hd_err *err) {
    uint64_t v;
    hd_status st;
    int64_t raw;
    if (!gguf_has(g, key)) return HD_OK;
    /* Writers put -1, also as unsigned, for "none". */
    if (gguf_arr_i64(g, key, &raw, 1, NULL) == HD_OK && (raw == -1 || raw == (int64_t)UINT32_MAX))
        return *id = -1, HD_OK;
    if ((st = gguf_get_uint(g, key, 0, t->n - 1, &v, err))) return st;
    *id = (int32_t)v;
    return HD_OK;
}

static hd_status get_flag(const gguf *g, const char *key, bool *out, hd_err *err) {
    return gguf_has(g, key) ? gguf_get_bool(g, key, out, err) : HD_OK;
}

/* Is this name built like a marker: <...> or [...]? */
static bool is_marker(gguf_str x) {
    return x.n >= 3 && ((x.s[0] == '<' && x.s[x.n - 1] == '>') || (x.s[0] == '[' && x.s[x.n - 1] == ']') ||
                        (x.n > 4 && !memcmp(x.s, "_<", 2)));
}

/* An id that a key names as BOS or as an end is a control token, whatever type a careless converter gave it: text from
 * users must not become it.  (A key that points at ordinary text, as the defaults of old files do, changes nothing.) */
static void make_control(tokenizer *t, int32_t id) {
    if (id < 0 || !is_marker(vocab_name(t, (uint32_t)id))) return;
    if (vocab_type(t, id) == TYPE_NORMAL || vocab_type(t, id) == TYPE_USER)
        t->type[id] = (uint8_t)((t->type[id] & ~TYPE_MASK) | TYPE_CONTROL);
}

static const char *const eog_names[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end\xe2\x96\x81of\xe2\x96\x81sentence|>",
    ("<\xef\xbd\x9c"
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
    "<|EOT|>",
    "<EOT>",
    "_<EOT>",
    "<eos>",
    "</s>",
    "<turn|>",
    "<|tool_response>",
};
/* Ends of code infilling: a model that writes one has nothing more to say. */
static const char *const fim_names[] = {"<|fim_pad|>",   "<fim_pad>",  "<fim-pad>", "<PAD>",       "<|fim_repo|>",
                                        "<|repo_name|>", "<fim-repo>", "<REPO>",    "<|file_sep|>"};
static const char *const eog_keys[] = {KEY("eot_token_id"), KEY("eom_token_id"), KEY("fim_pad_token_id"),
                                       KEY("fim_rep_token_id"), KEY("fim_sep_token_id")};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static int32_t find_token(const tokenizer *t, const char *name) {
    int32_t id = vocab_find(t, name, strlen(name));
    return id >= 0 && (size_t)id < t->n ? id : -1;
}

static hd_status load_eog(tokenizer *t, const gguf *g, hd_err *err) {
    hd_status st;
    bool harmony = find_token(t, "<|return|>") >= 0 && find_token(t, "<|call|>") >= 0;
    for (size_t i = 0; i < COUNT(eog_names); i++) {
        int32_t id = find_token(t, eog_names[i]);
        if (id < 0) continue;
        if (harmony && !strcmp(eog_names[i], "<|end|>")) continue; /* ends a message of a channel only */
        /* </s> and <eos> may be ordinary text (HTML), so there the type decides. */
        if (vocab_type(t, id) != TYPE_CONTROL && (!strcmp(eog_names[i], "</s>") || !strcmp(eog_names[i], "<eos>")))
            continue;
        if (vocab_type(t, id) == TYPE_NORMAL) make_control(t, id); /* of a user-defined one the file says what it is */
        t->type[id] |= TYPE_EOG;
    }
    for (size_t i = 0; i < COUNT(fim_names); i++) {
        int32_t id = find_token(t, fim_names[i]);
        if (id >= 0 && vocab_type(t, id) != TYPE_NORMAL) t->type[id] |= TYPE_EOG;
    }
    for (size_t i = 0; i < COUNT(eog_keys); i++) {
        int32_t id = -1;
        if ((st = get_id(t, g, eog_keys[i], &id, err))) return st;
        if (id < 0) continue;
        t->type[id] |= TYPE_EOG;
        if (i < 2) make_control(t, id);
    }
    if (t->eos >= 0) t->type[t->eos] |= TYPE_EOG;
    return HD_OK;
}

static hd_status load_special_ids(tokenizer *t, const gguf *g, hd_err *err) {
    hd_status st;
    t->bos = t->eos = t->unk = t->sep = -1;
    if (t->algorithm == TOK_SPM) {
        /* The defaults of the format, taken only where such tokens are. */
        if (t->n > 2 && vocab_type(t, 1) == TYPE_CONTROL) t->bos = 1;
        if (t->n > 2 && vocab_type(t, 2) == TYPE_CONTROL) t->eos = 2;
        if (vocab_type(t, 0) == TYPE_UNKNOWN) t->unk = 0;
        t->add_bos = true;
    } else if (t->algorithm == TOK_WPM) {
        t->bos = find_token(t, "[CLS]");
        t->sep = find_token(t, "[SEP]");
        t->unk = find_token(t, "[UNK]");
        t->add_bos = t->add_sep = true;
    } else {
        t->add_bos = t->pre->flags & PRETOK_BOS;
    }
    if ((st = get_id(t, g, KEY("bos_token_id"), &t->bos, err)) ||
        (st = get_id(t, g, KEY("eos_token_id"), &t->eos, err)) ||
        (st = get_id(t, g, KEY("unknown_token_id"), &t->unk, err)) ||
        (st = get_id(t, g, KEY("seperator_token_id"), &t->sep, err)) || /* spelled like this in the format */
        (st = get_flag(g, KEY("add_bos_token"), &t->add_bos, err)) ||
        (st = get_flag(g, KEY("add_eos_token"), &t->add_eos, err)) ||
        (st = get_flag(g, KEY("add_sep_token"), &t->add_sep, err)))
        return st;
    if (t->algorithm == TOK_WPM && (st = get_id(t, g, KEY("cls_token_id"), &t->bos, err))) return st;
    make_control(t, t->bos);
    make_control(t, t->eos);
    return load_eog(t, g, err);
}

/* phi-3's own tokenizer lets its markers eat the white space after them; the format has no field for it. */
static void load_phi3(tokenizer *t, const gguf *g) {
    gguf_str arch;
    if (t->algorithm != TOK_SPM || gguf_get_str(g, "general.architecture", &arch, NULL) || arch.n != 4 ||
        memcmp(arch.s, "phi3", 4))
        return;
    for (size_t i = 0; i < t->n; i++) {
        gguf_str x = vocab_name(t, (uint32_t)i);
        unsigned type = vocab_type(t, (int32_t)i);
        bool eats = (type == TYPE_CONTROL && x.n > 4 && !memcmp(x.s, "<|", 2) &&
                     (int32_t)i != find_token(t, "<|endoftext|>")) ||
                    (int32_t)i == find_token(t, "</s>");
        if (eats) t->type[i] |= TYPE_RSTRIP;
    }
}

/* ---------------------------------------------------------------------------------------------------- the whole */

static hd_status load_algorithm(tokenizer *t, const gguf *g, hd_err *err) {
    gguf_str model, pre = {"default", 7};
    hd_status st;
    if ((st = gguf_get_str(g, KEY("model"), &model, err))) return st;
    if (model.n == 5 && !memcmp(model.s, "llama", 5)) {
        t->algorithm = TOK_SPM;
        snprintf(t->kind, sizeof t->kind, "spm");
    } else if (model.n == 4 && !memcmp(model.s, "bert", 4)) {
        t->algorithm = TOK_WPM;
        snprintf(t->kind, sizeof t->kind, "wpm");
    } else if (model.n == 4 && !memcmp(model.s, "gpt2", 4)) {
        t->algorithm = TOK_BPE;
        if (gguf_has(g, KEY("pre")) && (st = gguf_get_str(g, KEY("pre"), &pre, err))) return st;
        if (!(t->pre = pretok_find(pre.s, pre.n)))
            return hd_fail_field(err, HD_UNSUPPORTED, KEY("pre"), "the pre-tokenizer '%.*s' is not known to heddle",
                                 (int)(pre.n < 60 ? pre.n : 60), pre.s);
        if (t->pre->flags & PRETOK_GUESSED)
            hd_log(HD_LOG_WARN,
                   "the file names no pre-tokenizer; text may be cut otherwise than the model was trained on");
        snprintf(t->kind, sizeof t->kind, "bpe/%s", t->pre->name);
    } else {
        return hd_fail_field(err, HD_UNSUPPORTED, KEY("model"), "the tokenizer model '%.*s' is not known to heddle",
                             (int)(model.n < 60 ? model.n : 60), model.s);
    }
    return HD_OK;
}

static hd_status load_tokens(tokenizer *t, const gguf *g, hd_err *err) {
    gguf_str *names = NULL;
    int64_t *types = NULL;
    uint64_t total = 0;
    size_t n;
    hd_status st;
    if ((st = gguf_arr_n(g, KEY("tokens"), NULL, &n, err))) return st;
    if (!n || n > INT32_MAX / 4)
        return hd_fail_field(err, HD_INVALID, KEY("tokens"), "%zu tokens are not a vocabulary", n);
    names = hd_reallocarray(NULL, n, sizeof *names);
    types = hd_reallocarray(NULL, n, sizeof *types);
    t->type = hd_calloc(n, 1);
    if (!names || !types || !t->type) {
        st = hd_fail(err, HD_NOMEM, "tokenizer: no memory for %zu tokens", n);
        goto out;
    }
    if ((st = gguf_arr_strs(g, KEY("tokens"), names, n, err))) goto out;
    if (gguf_has(g, KEY("token_type")) && (st = gguf_arr_i64(g, KEY("token_type"), types, n, err))) goto out;
    for (size_t i = 0; i < n; i++) {
        int64_t y = gguf_has(g, KEY("token_type")) ? types[i] : TYPE_NORMAL;
        if (y < 0 || y > TYPE_BYTE) {
            st = hd_fail_field(err, HD_INVALID, KEY("token_type"), "token %zu has the unknown type %lld", i,
                               (long long)y);
            goto out;
        }
        t->type[i] = (uint8_t)(y ? y : TYPE_NORMAL);
        total += names[i].n;
    }
    if ((st = slots_size(t, n, err))) goto out;
    if (total >= UINT32_MAX || !hd_grow(&t->names, &t->names_cap, (size_t)total + 1, 1, UINT32_MAX) ||
        !hd_grow(&t->name_at, &t->cap_syms, n + 1, sizeof *t->name_at, (size_t)INT32_MAX + 1)) {
        st = hd_fail(err, total >= UINT32_MAX ? HD_INVALID : HD_NOMEM, "tokenizer: no room for %zu tokens", n);
        goto out;
    }
    t->n = n;
    for (size_t i = 0; i < n; i++) {
        if ((st = add_name(t, names[i].s, names[i].n, err)) || (st = enter(t, (uint32_t)i, err))) goto out;
        if (vocab_is_text(t, (int32_t)i) && names[i].n > t->max_name) t->max_name = (uint32_t)names[i].n;
    }
out:
    hd_free(names);
    hd_free(types);
    return st;
}

hd_status tokenizer_from_gguf(tokenizer **out, const gguf *g, hd_err *err) {
    tokenizer *t = hd_calloc(1, sizeof *t);
    hd_status st;
    *out = NULL;
    if (!t) return hd_fail(err, HD_NOMEM, "tokenizer: no memory");
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    if ((st = load_algorithm(t, g, err)) || (st = load_tokens(t, g, err)) || (st = load_special_ids(t, g, err)) ||
        (st = load_texts(t, err)))
        goto fail;
    load_phi3(t, g);
    if (t->algorithm == TOK_BPE) st = load_merges(t, g, err);
    if (t->algorithm == TOK_SPM) st = load_spm(t, g, err);
    if (t->algorithm == TOK_WPM) load_wpm(t);
    if (st || (st = specials_build(t, err))) goto fail;
    *out = t;
    return HD_OK;
fail:
    tokenizer_free(t);
    return st;
}

void tokenizer_free(tokenizer *t) {
    if (!t) return;
    hd_free(t->names);
    hd_free(t->name_at);
    hd_free(t->texts);
    hd_free(t->text_at);
    hd_free(t->type);
    hd_free(t->slots);
    hd_free(t->merges);
    hd_free(t->scores);
    hd_free(t->joins);
    specials_deinit(&t->specials);
    hd_free(t);
}
