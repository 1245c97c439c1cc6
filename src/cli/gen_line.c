/* gen_line.c - a request of the generate command, from options or from one line of JSON. */
#include "base/mem.h"
#include "cli/generate.h"
#include "serve/request.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void gen_line_init(gen_line *g) {
    memset(g, 0, sizeof *g);
    sampling_defaults(&g->sampling);
    g->sampling.temperature = 0;
    g->max_tokens = GEN_NO_CAP;
    id_list_init(&g->ids, 1u << 28);
}

void gen_line_deinit(gen_line *g) {
    id_list_deinit(&g->ids);
    for (size_t i = 0; i < g->n_stops; i++) hd_free((void *)(uintptr_t)g->stops[i].s);
    hd_free(g->stops);
    hd_free(g->stop_ids);
    hd_free(g->bias);
    memset(g, 0, sizeof *g);
}

hd_status gen_line_add_stop(gen_line *g, const char *s, size_t n, hd_err *err) {
    char *copy;
    if (!n) return hd_fail_field(err, HD_INVALID, "stop", "a stop string is empty");
    if (!hd_grow(&g->stops, &g->cap_stops, g->n_stops + 1, sizeof *g->stops, STOP_MAX_STRINGS))
        return hd_fail_field(err, HD_INVALID, "stop", "more than %d stop strings", STOP_MAX_STRINGS);
    if (!(copy = hd_strndup(s, n))) return hd_fail(err, HD_NOMEM, "no memory");
    g->stops[g->n_stops++] = (stop_string){copy, n};
    return HD_OK;
}

gen_request gen_line_request(const gen_line *g) {
    return (gen_request){.id = "", .prompt = g->ids.ids, .n_prompt = g->ids.n, .max_tokens = g->max_tokens,
                         .sampling = g->sampling, .stops = g->stops, .n_stops = g->n_stops, .stop_ids = g->stop_ids,
                         .n_stop_ids = g->n_stop_ids, .ignore_eos = g->ignore_eos, .min_tokens = g->min_tokens, .priority = g->priority};
}

/* ---- JSON ---- */

static hd_status wrong(hd_err *err, const char *key, const char *want) {
    return hd_fail_field(err, HD_INVALID, key, "%s must be %s", key, want);
}

static hd_status get_float(const json_t *o, const char *key, float *out, hd_err *err) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return HD_OK;
    if (!json_is_number(v)) return wrong(err, key, "a number");
    *out = (float)json_number_value(v);
    return HD_OK;
}

static hd_status get_uint(const json_t *o, const char *key, uint32_t *out, hd_err *err) {
    const json_t *v = json_object_get(o, key);
    double d;
    if (!v || json_is_null(v)) return HD_OK;
    d = json_is_number(v) ? json_number_value(v) : -1;
    if (!(d >= 0 && d < UINT32_MAX && d == floor(d))) return wrong(err, key, "a whole number of at least 0");
    *out = (uint32_t)d;
    return HD_OK;
}

static hd_status get_bool(const json_t *o, const char *key, bool *out, hd_err *err) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return HD_OK;
    if (!json_is_boolean(v)) return wrong(err, key, "true or false");
    *out = json_is_true(v);
    return HD_OK;
}

static hd_status get_ids(const json_t *v, const char *key, int32_t **out, size_t *n, hd_err *err) {
    size_t i;
    json_t *e;
    if (!json_is_array(v)) return wrong(err, key, "a list of token ids");
    if (!(*out = hd_reallocarray(NULL, json_array_size(v) + 1, sizeof **out))) return hd_fail(err, HD_NOMEM, "no memory");
    json_array_foreach(v, i, e) {
        if (!json_is_integer(e) || json_integer_value(e) < 0 || json_integer_value(e) > INT32_MAX)
            return wrong(err, key, "a list of token ids");
        (*out)[i] = (int32_t)json_integer_value(e);
    }
    *n = json_array_size(v);
    return HD_OK;
}

static hd_status get_prompt(gen_line *g, const json_t *o, const model *m, hd_err *err) {
    const json_t *text = json_object_get(o, "prompt"), *ids = json_object_get(o, "ids");
    if (ids && json_is_null(ids)) ids = NULL;
    if (text && json_is_array(text)) ids = text, text = NULL;
    if (!!text == !!ids) return hd_fail_field(err, HD_INVALID, "prompt", "a line has \"prompt\" or \"ids\"");
    if (ids) {
        hd_status st = get_ids(ids, "ids", &g->ids.ids, &g->ids.n, err);
        g->ids.cap = g->ids.n;
        return st;
    }
    if (!json_is_string(text)) return wrong(err, "prompt", "a string or a list of token ids");
    return tokenizer_encode(model_get(m)->tok, json_string_value(text), json_string_length(text), TOK_BOS, &g->ids, err);
}

static hd_status get_stops(gen_line *g, const json_t *o, hd_err *err) {
    const json_t *v = json_object_get(o, "stop");
    size_t i;
    json_t *e;
    hd_status st;
    if (!v || json_is_null(v)) return HD_OK;
    if (json_is_string(v)) return gen_line_add_stop(g, json_string_value(v), json_string_length(v), err);
    if (!json_is_array(v)) return wrong(err, "stop", "a string or a list of strings");
    json_array_foreach(v, i, e) {
        if (!json_is_string(e)) return wrong(err, "stop", "a string or a list of strings");
        if ((st = gen_line_add_stop(g, json_string_value(e), json_string_length(e), err))) return st;
    }
    return HD_OK;
}

static hd_status get_bias(gen_line *g, const json_t *o, hd_err *err) {
    json_t *v = json_object_get(o, "logit_bias"), *e;
    const char *key;
    size_t n = 0;
    if (!v || json_is_null(v)) return HD_OK;
    if (!json_is_object(v)) return wrong(err, "logit_bias", "an object of id: number");
    if (!(g->bias = hd_reallocarray(NULL, json_object_size(v) + 1, sizeof *g->bias))) return hd_fail(err, HD_NOMEM, "no memory");
    json_object_foreach(v, key, e) {
        char *end;
        long id = strtol(key, &end, 10);
        if (*end || end == key || id < 0 || id > INT32_MAX || !json_is_number(e))
            return wrong(err, "logit_bias", "an object of id: number");
        g->bias[n++] = (logit_bias){(int32_t)id, (float)json_number_value(e)};
    }
    g->sampling.bias = g->bias;
    g->sampling.n_bias = n;
    return HD_OK;
}

static hd_status get_seed(gen_line *g, const json_t *o, const gen_line *defaults, hd_err *err) {
    const json_t *v = json_object_get(o, "seed");
    if (v && json_is_integer(v)) return g->sampling.seed = (uint64_t)json_integer_value(v), HD_OK;
    if (v && !json_is_null(v)) return wrong(err, "seed", "a whole number");
    if (!defaults->seed_given) g->sampling.seed = random_seed();
    return HD_OK;
}

static hd_status get_logprobs(gen_line *g, const json_t *o, hd_err *err) {
    const json_t *v = json_object_get(o, "logprobs");
    if (!v || json_is_null(v)) return HD_OK;
    if (json_is_boolean(v)) {
        g->sampling.logprobs = json_is_true(v);
        return get_uint(o, "top_logprobs", &g->sampling.n_top_logprobs, err);
    }
    g->sampling.logprobs = true;
    return get_uint(o, "logprobs", &g->sampling.n_top_logprobs, err);
}

static hd_status fill(gen_line *g, const json_t *o, const gen_line *defaults, const model *m, hd_err *err) {
    sampling_params *s = &g->sampling;
    const json_t *v;
    hd_status st;
    const struct {
        const char *key;
        float *out;
    } floats[] = {{"temperature", &s->temperature}, {"top_p", &s->top_p}, {"min_p", &s->min_p}, {"typical_p", &s->typical_p},
        {"xtc_probability", &s->xtc_probability}, {"xtc_threshold", &s->xtc_threshold},
        {"repetition_penalty", &s->repetition_penalty}, {"presence_penalty", &s->presence_penalty},
        {"frequency_penalty", &s->frequency_penalty}, {"dry_multiplier", &s->dry_multiplier}, {"dry_base", &s->dry_base}};
    const struct {
        const char *key;
        uint32_t *out;
    } uints[] = {{"top_k", &s->top_k}, {"max_tokens", &g->max_tokens}, {"min_tokens", &g->min_tokens},
        {"repetition_context_size", &s->repetition_window}, {"presence_context_size", &s->presence_window},
        {"frequency_context_size", &s->frequency_window}, {"dry_allowed_length", &s->dry_allowed_length},
        {"dry_range", &s->dry_window}, {"sample_index", &s->sample_index}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if ((st = get_float(o, floats[i].key, floats[i].out, err))) return st;
    for (size_t i = 0; i < sizeof uints / sizeof *uints; i++)
        if ((st = get_uint(o, uints[i].key, uints[i].out, err))) return st;
    for (size_t i = 0; i < 2; i++) {
        static const char *const keys[] = {"schema", "grammar"};
        if ((v = json_object_get(o, keys[i])) && !json_is_null(v))
            return hd_fail_field(err, HD_UNSUPPORTED, keys[i], "%s is not supported yet", keys[i]);
    }
    if ((v = json_object_get(o, "priority")) && !json_is_null(v) && !json_priority(v, &g->priority))
        return wrong(err, "priority", "\"high\", \"normal\", \"low\" or an integer between -1 and 1");
    if ((v = json_object_get(o, "stop_token_ids")) && !json_is_null(v) &&
        (st = get_ids(v, "stop_token_ids", &g->stop_ids, &g->n_stop_ids, err)))
        return st;
    if ((st = get_bool(o, "ignore_eos", &g->ignore_eos, err)) || (st = get_seed(g, o, defaults, err)) ||
        (st = get_logprobs(g, o, err)) || (st = get_stops(g, o, err)) || (st = get_bias(g, o, err)))
        return st;
    if (!g->n_stops)
        for (size_t i = 0; i < defaults->n_stops; i++)
            if ((st = gen_line_add_stop(g, defaults->stops[i].s, defaults->stops[i].n, err))) return st;
    return get_prompt(g, o, m, err);
}

hd_status gen_line_parse(gen_line *g, const char *json, size_t n, const gen_line *defaults, const model *m, hd_err *err) {
    json_error_t why;
    json_t *o = json_loadb(json, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    hd_status st;
    gen_line_init(g);
    g->sampling = defaults->sampling;
    g->max_tokens = defaults->max_tokens;
    g->ignore_eos = defaults->ignore_eos;
    if (!o) return hd_fail_at(err, HD_INVALID, (uint64_t)why.position, "not JSON: %s", why.text);
    st = json_is_object(o) ? fill(g, o, defaults, m, err) : hd_fail(err, HD_INVALID, "a line must be a JSON object");
    json_decref(o);
    return st;
}
