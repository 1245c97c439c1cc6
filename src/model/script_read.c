/* script_read.c - the scripted model's file: reading, checking, and freeing what was read. */
#include "model/script.h"
#include "base/mem.h"
#include "text/tok_longest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void rule_deinit(script_rule *r) {
    hd_free(r->match);
    hd_free(r->emit);
    for (size_t i = 0; r->top && i < r->n_top; i++) hd_free(r->top[i].pairs);
    hd_free(r->top);
}

void script_close(model *m) {
    script_model *s = (script_model *)m;
    for (size_t i = 0; s->rules && i < s->n_rules; i++) rule_deinit(&s->rules[i]);
    hd_free(s->rules);
    hd_free(s->logits);
    hd_free(s->best);
    hd_free(s->hidden);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mu);
    model_base_deinit(m);
    hd_free(s);
}

static hd_status bad(hd_err *err, const char *field, const char *why) {
    return hd_fail_field(err, HD_INVALID, field, "script: %s: %s", field, why);
}

static int hex_digit(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One vocabulary entry into buf (bytes). */
static hd_status entry_bytes(const json_t *e, hd_buf *b, hd_err *err) {
    const json_t *hex = json_object_get(e, "hex");
    const char *h = json_string_value(hex);
    size_t n = hex ? json_string_length(hex) : 0;
    if (json_is_string(e)) return buf_add(b, json_string_value(e), json_string_length(e)) ? HD_OK : b->failed;
    if (!h || !n || n % 2) return bad(err, "vocab", "an entry is a string or {\"hex\": pairs of digits}");
    for (size_t i = 0; i < n; i += 2) {
        int hi = hex_digit((unsigned char)h[i]), lo = hex_digit((unsigned char)h[i + 1]);
        if (hi < 0 || lo < 0) return bad(err, "vocab", "bad hex digit");
        buf_byte(b, (char)(hi << 4 | lo));
    }
    return b->failed;
}

static hd_status read_special(const json_t *root, longest_vocab *v, bool *special, int32_t *eos, hd_err *err) {
    const json_t *sp = json_object_get(root, "special"), *bos = json_object_get(sp, "bos"), *ends = json_object_get(sp, "eos");
    size_t i;
    json_t *e;
    v->bos = -1;
    if (bos && !json_is_null(bos)) {
        if (!json_is_integer(bos) || json_integer_value(bos) < 0 || (size_t)json_integer_value(bos) >= v->n)
            return bad(err, "special.bos", "not an id of vocab");
        v->bos = (int32_t)json_integer_value(bos);
        special[v->bos] = true;
    }
    if (ends && !json_is_array(ends)) return bad(err, "special.eos", "not a list of ids");
    if (json_array_size(ends) > MODEL_MAX_EOG) return bad(err, "special.eos", "more than 16 ids");
    json_array_foreach(ends, i, e) {
        if (!json_is_integer(e) || json_integer_value(e) < 0 || (size_t)json_integer_value(e) >= v->n)
            return bad(err, "special.eos", "not an id of vocab");
        eos[v->n_eos++] = (int32_t)json_integer_value(e);
        special[json_integer_value(e)] = true;
    }
    v->eos = eos;
    return HD_OK;
}

static hd_status read_vocab(const json_t *root, tokenizer **out, hd_err *err) {
    const json_t *vocab = json_object_get(root, "vocab");
    longest_vocab v = {.n = json_array_size(vocab)};
    gguf_str *entries = NULL;
    bool *special = NULL;
    int32_t eos[MODEL_MAX_EOG];
    size_t *ends = NULL;
    hd_buf bytes;
    hd_status st = HD_OK;
    buf_init(&bytes, SCRIPT_MAX_FILE);
    *out = NULL;
    if (!json_is_array(vocab) || v.n > SCRIPT_MAX_VOCAB) {
        st = bad(err, "vocab", "must be a list of at most 1,048,576 entries");
        goto out;
    }
    entries = hd_calloc(v.n, sizeof *entries);
    special = hd_calloc(v.n, sizeof *special);
    ends = hd_calloc(v.n, sizeof *ends);
    if (!entries || !special || !ends) {
        st = hd_fail(err, HD_NOMEM, "script: no memory");
        goto out;
    }
    for (size_t i = 0; i < v.n; i++) {
        if ((st = entry_bytes(json_array_get(vocab, i), &bytes, err))) goto out;
        ends[i] = bytes.len;
    }
    for (size_t i = 0; i < v.n; i++) {
        size_t start = i ? ends[i - 1] : 0;
        entries[i] = (gguf_str){buf_cstr(&bytes) + start, ends[i] - start};
    }
    v.entries = entries;
    v.special = special;
    if ((st = read_special(root, &v, special, eos, err))) goto out;
    st = tokenizer_from_entries(out, &v, err);
out:
    buf_deinit(&bytes);
    hd_free(entries);
    hd_free(special);
    hd_free(ends);
    return st;
}

static hd_status read_emit(script_model *s, script_rule *r, const json_t *emit, hd_err *err) {
    id_list ids;
    size_t i;
    json_t *e;
    hd_status st = HD_OK;
    if (emit && !json_is_array(emit)) return bad(err, "emit", "not a list");
    id_list_init(&ids, SCRIPT_MAX_EMIT);
    json_array_foreach(emit, i, e) {
        if (json_is_string(e)) {
            st = tokenizer_encode(s->base.tok, json_string_value(e), json_string_length(e), 0, &ids, err);
        } else if (json_is_integer(e) && json_integer_value(e) >= 0 && json_integer_value(e) < (json_int_t)s->base.info.n_vocab) {
            st = id_list_add(&ids, (int32_t)json_integer_value(e), err);
        } else {
            st = bad(err, "emit", "an item is an id or a string");
        }
        if (st) break;
    }
    r->emit = ids.ids;
    r->n_emit = ids.n;
    return st;
}

static hd_status read_top(script_model *s, script_rule *r, const json_t *top, hd_err *err) {
    size_t i, j;
    json_t *list, *pair;
    if (!top) return HD_OK;
    if (!json_is_array(top)) return bad(err, "top", "not a list of lists of [id, logit]");
    if (!(r->top = hd_calloc(json_array_size(top), sizeof *r->top))) return hd_fail(err, HD_NOMEM, "script: no memory");
    r->n_top = json_array_size(top);
    json_array_foreach(top, i, list) {
        if (!json_is_array(list)) return bad(err, "top", "not a list of lists of [id, logit]");
        if (!(r->top[i].pairs = hd_calloc(json_array_size(list), sizeof *r->top[i].pairs)))
            return hd_fail(err, HD_NOMEM, "script: no memory");
        json_array_foreach(list, j, pair) {
            const json_t *id = json_array_get(pair, 0), *logit = json_array_get(pair, 1);
            if (!json_is_integer(id) || json_integer_value(id) < 0 ||
                json_integer_value(id) >= (json_int_t)s->base.info.n_vocab || !json_is_number(logit))
                return bad(err, "top", "a pair is [id, logit]");
            r->top[i].pairs[r->top[i].n++] = (script_pair){(int32_t)json_integer_value(id), (float)json_number_value(logit)};
        }
    }
    return HD_OK;
}

static hd_status read_rule(script_model *s, script_rule *r, const json_t *j, bool is_default, hd_err *err) {
    const json_t *match = json_object_get(j, "match"), *then = json_object_get(j, "then");
    const char *t = then ? json_string_value(then) : "eos";
    hd_status st;
    if (!json_is_object(j)) return bad(err, is_default ? "default" : "rules", "a rule is an object");
    if (!is_default) {
        if (!json_is_string(match)) return bad(err, "rules", "a rule needs \"match\"");
        r->n_match = json_string_length(match);
        if (!(r->match = hd_strndup(json_string_value(match), r->n_match))) return hd_fail(err, HD_NOMEM, "script: no memory");
    }
    if (!t || (strcmp(t, "eos") && strcmp(t, "loop") && strcmp(t, "fail")))
        return bad(err, "then", "must be \"eos\", \"loop\" or \"fail\"");
    r->then = t[0] == 'e' ? SCRIPT_EOS : t[0] == 'l' ? SCRIPT_LOOP : SCRIPT_FAIL;
    if ((st = read_emit(s, r, json_object_get(j, "emit"), err)) || (st = read_top(s, r, json_object_get(j, "top"), err)))
        return st;
    if (r->then == SCRIPT_LOOP && !r->n_emit) return bad(err, "then", "\"loop\" needs something in \"emit\"");
    if (r->then == SCRIPT_EOS && s->base.info.n_eog == 0) return bad(err, "then", "\"eos\" needs special.eos");
    return HD_OK;
}

static hd_status read_delay(const json_t *root, const char *key, uint64_t *us, hd_err *err) {
    const json_t *v = json_object_get(root, key);
    if (!v) return HD_OK;
    if (!json_is_number(v) || !(json_number_value(v) >= 0 && json_number_value(v) <= 1e7))
        return bad(err, key, "not a time in milliseconds");
    *us = (uint64_t)(json_number_value(v) * 1000);
    return HD_OK;
}

hd_status script_read(script_model *s, const json_t *root, hd_err *err) {
    const json_t *rules = json_object_get(root, "rules"), *dflt = json_object_get(root, "default"),
                 *ctx = json_object_get(root, "context"), *window = json_object_get(root, "window"), *tmpl = json_object_get(root, "template");
    model_info *in = &s->base.info;
    /* Messages joined by a line break.  Tools are taken, and left out: a script answers as it is written. */
    static const char plain[] = "{% if tools %}{% endif %}{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}";
    tokenizer *tok;
    hd_status st;
    size_t i;
    json_t *r;
    if (!json_is_object(root)) return bad(err, "file", "not a JSON object");
    if ((st = read_vocab(root, &tok, err))) return st;
    in->n_vocab = (uint32_t)tokenizer_size(tok);
    if (tmpl && !json_is_string(tmpl)) {
        tokenizer_free(tok);
        return bad(err, "template", "not a string");
    }
    if ((st = model_base_text(&s->base, tok, tmpl ? json_string_value(tmpl) : plain,
                              tmpl ? json_string_length(tmpl) : sizeof plain - 1, err)))
        return st;
    if (ctx && (!json_is_integer(ctx) || json_integer_value(ctx) < 2 || json_integer_value(ctx) > 1 << 24))
        return bad(err, "context", "must be 2 to 16777216");
    if (window && (!json_is_integer(window) || json_integer_value(window) < 1 || json_integer_value(window) > 1 << 24))
        return bad(err, "window", "must be 1 to 16777216");
    if (window) {
        in->groups[in->n_groups] = in->groups[0];
        in->groups[in->n_groups++].window = (uint32_t)json_integer_value(window);
    }
    in->ctx_train = ctx ? (uint32_t)json_integer_value(ctx) : 4096;
    if ((st = read_delay(root, "step_delay_ms", &s->step_delay_us, err)) ||
        (st = read_delay(root, "token_delay_ms", &s->token_delay_us, err)) ||
        (st = read_delay(root, "prompt_delay_ms", &s->prompt_delay_us, err)))
        return st;
    if (rules && !json_is_array(rules)) return bad(err, "rules", "not a list");
    if (!(s->rules = hd_calloc(json_array_size(rules) + 1, sizeof *s->rules))) return hd_fail(err, HD_NOMEM, "script: no memory");
    json_array_foreach(rules, i, r) {
        s->n_rules++;
        if ((st = read_rule(s, &s->rules[i], r, false, err))) return st;
    }
    s->n_rules++;
    if (dflt) return read_rule(s, &s->rules[s->n_rules - 1], dflt, true, err);
    return HD_OK; /* an empty default: EOS at once */
}
