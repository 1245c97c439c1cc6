/* request.c - see request.h. */
#include "serve/request.h"

#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One pass over the text before jansson sees it: count values, and find integers beyond int64. */
typedef struct {
    size_t at[64]; /* offsets just behind such integers */
    size_t n;
} big_ints;

static bool scan(const char *s, size_t n, big_ints *big, bool *has_seed, uint64_t *seed, serve_error *e) {
    size_t values = 0, str = 0, n_str = 0; /* the last string */
    int depth = 0;
    bool after_colon = false;
    for (size_t i = 0; i < n;) {
        char c = s[i];
        if (c == '"') {
            str = ++i;
            while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
            n_str = (i < n ? i : n) - str;
            i++;
            continue;
        }
        if (c == '{' || c == '[' || c == ',' || c == ':') {
            if (++values > REQUEST_MAX_VALUES)
                return serve_fail(e, 400, "invalid_json", NULL, "the body holds more than %d values", REQUEST_MAX_VALUES);
        }
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (c == '-' || (c >= '0' && c <= '9')) {
            size_t start = i;
            bool real = false;
            while (i < n && (s[i] == '-' || s[i] == '+' || s[i] == '.' || s[i] == 'e' || s[i] == 'E' ||
                             (s[i] >= '0' && s[i] <= '9'))) {
                real |= s[i] == '.' || s[i] == 'e' || s[i] == 'E';
                i++;
            }
            if (!real && i - start > 18) {
                char text[32];
                if (i - start < sizeof text) {
                    memcpy(text, s + start, i - start);
                    text[i - start] = 0;
                    errno = 0;
                    strtoll(text, NULL, 10);
                    if (!errno) goto next;
                    if (depth == 1 && after_colon && n_str == 4 && !memcmp(s + str, "seed", 4)) {
                        errno = 0;
                        *seed = strtoull(text, NULL, 10);
                        *has_seed = !errno && text[0] != '-';
                    }
                }
                if (big->n == sizeof big->at / sizeof *big->at)
                    return serve_fail(e, 400, "invalid_json", NULL, "too many integers above 64 bits");
                big->at[big->n++] = i;
            }
        next:
            after_colon = false;
            continue;
        }
        if (c == ':') after_colon = true;
        else if (c != ' ' && c != '\t' && c != '\n' && c != '\r') after_colon = false;
        i++;
    }
    return true;
}

json_t *request_parse(const char *body, size_t n, bool *has_big_seed, uint64_t *big_seed, serve_error *e) {
    big_ints big = {.n = 0};
    json_error_t why;
    json_t *v = NULL;
    hd_buf fixed;
    *has_big_seed = false;
    if (!body) body = "", n = 0;
    buf_init(&fixed, n + 4 * sizeof big.at);
    if (!scan(body, n, &big, has_big_seed, big_seed, e)) goto out;
    if (big.n) {
        size_t from = 0;
        for (size_t i = 0; i < big.n; i++) {
            buf_add(&fixed, body + from, big.at[i] - from);
            buf_str(&fixed, ".0");
            from = big.at[i];
        }
        buf_add(&fixed, body + from, n - from);
        if (fixed.failed) {
            serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
            goto out;
        }
        body = fixed.data;
        n = fixed.len;
    }
    v = json_loadb(body, n, JSON_ALLOW_NUL, &why);
    if (!v) {
        serve_fail(e, 400, "invalid_json", NULL, "the body is not JSON: %s (line %d, column %d)", why.text, why.line,
                   why.column);
    } else if (!json_is_object(v)) {
        serve_fail(e, 400, "invalid_json", NULL, "the body must be a JSON object");
        json_decref(v);
        v = NULL;
    }
out:
    buf_deinit(&fixed);
    return v;
}

const json_t *req_get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

bool json_is_whole(const json_t *v, int64_t *out) {
    if (json_is_integer(v)) return *out = json_integer_value(v), true;
    if (json_is_real(v)) {
        double d = json_real_value(v);
        if (d == floor(d) && d >= -9.2233720368547758e18 && d < 9.2233720368547758e18) return *out = (int64_t)d, true;
    }
    return false;
}

bool req_bool(const json_t *o, const char *key, bool *v, serve_error *e) {
    const json_t *j = req_get(o, key);
    if (!j) return true;
    if (!json_is_boolean(j)) return bad_field(e, key, "%s must be true or false", key);
    *v = json_is_true(j);
    return true;
}

bool req_num(const json_t *o, const char *key, double lo, double hi, double *v, serve_error *e) {
    const json_t *j = req_get(o, key);
    double d;
    if (!j) return true;
    if (!json_is_number(j)) return bad_field(e, key, "%s must be a number", key);
    d = json_number_value(j);
    if (!(d >= lo && d <= hi)) return bad_field(e, key, "%s must be between %g and %g", key, lo, hi);
    *v = d;
    return true;
}

bool req_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *v, serve_error *e) {
    const json_t *j = req_get(o, key);
    int64_t i;
    if (!j) return true;
    if (!json_is_number(j)) return bad_field(e, key, "%s must be an integer", key);
    if (!json_is_whole(j, &i) || i < lo || i > hi)
        return bad_field(e, key, "%s must be an integer between %lld and %lld", key, (long long)lo, (long long)hi);
    *v = i;
    return true;
}

bool req_str(const json_t *o, const char *key, const char **v, size_t *n, serve_error *e) {
    const json_t *j = req_get(o, key);
    if (!j) return true;
    if (!json_is_string(j)) return bad_field(e, key, "%s must be a string", key);
    if (!n && !json_name(j)) return bad_field(e, key, "%s may not hold a NUL character", key);
    *v = json_string_value(j);
    if (n) *n = json_string_length(j);
    return true;
}

const char *json_name(const json_t *v) {
    const char *s = json_string_value(v);
    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

static const char *const priorities[N_PRIORITIES] = {"high", "normal", "low"};

const char *priority_name(gen_priority p) { return priorities[p - PRIORITY_HIGH]; }

bool json_priority(const json_t *v, gen_priority *out) {
    const char *s = json_name(v);
    int64_t i;
    for (int k = 0; s && k < N_PRIORITIES; k++)
        if (!strcmp(s, priorities[k])) return *out = (gen_priority)(PRIORITY_HIGH + k), true;
    if (json_is_whole(v, &i) && i >= PRIORITY_HIGH && i <= PRIORITY_LOW) return *out = (gen_priority)i, true;
    return false;
}

bool req_priority(const json_t *o, gen_priority *p, serve_error *e) {
    const json_t *v = req_get(o, "priority");
    if (!v || json_priority(v, p)) return true;
    return bad_field(e, "priority", "priority must be \"high\", \"normal\", \"low\" or an integer between -1 and 1");
}

/* Of the API key and a name that the client chose; "" where there is neither.  Salted, so that nobody can choose a name
 * that lands on somebody else's digest, and the digest tells nothing. */
static bool class_digest(const server *s, size_t key, const char *name, size_t n, char out[40], serve_error *e) {
    uint8_t d[32];
    unsigned n_d = sizeof d;
    hd_buf all;
    bool ok;
    if (!key && !n) return true;
    buf_init(&all, SIZE_MAX);
    if (key) buf_str(&all, s->keys[key - 1]);
    buf_byte(&all, 0);
    buf_add(&all, name, n);
    ok = !all.failed && HMAC(EVP_sha256(), s->share_salt, sizeof s->share_salt, (const uint8_t *)all.data, all.len, d, &n_d);
    buf_deinit(&all);
    if (!ok) return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request");
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", d[i]);
    return true;
}

/* cache_pin: true, or seconds. */
static bool read_pin(const json_t *body, gen_params *p, serve_error *e) {
    const json_t *v = req_get(body, "cache_pin");
    int64_t s = 0;
    if (!v || json_is_boolean(v)) {
        p->pin_us = json_is_true(v) ? (uint64_t)PIN_DEFAULT_S * 1000000 : 0;
        return true;
    }
    if (!json_is_whole(v, &s) || s < 1 || s > PIN_MAX_S)
        return bad_field(e, "cache_pin", "cache_pin must be true, false or a whole number of seconds between 1 and %d", PIN_MAX_S);
    p->pin_us = (uint64_t)s * 1000000;
    return true;
}

/* What was computed for one API key is not taken up by another: how fast an answer comes would tell what others asked. */
bool request_read_class(server *s, const json_t *body, size_t key, gen_params *p, serve_error *e) {
    const char *user = NULL, *salt = NULL;
    size_t n_user = 0, n_salt = 0;
    bool cache = true;
    if (!req_priority(body, &p->priority, e) || !req_str(body, "user", &user, &n_user, e) ||
        !req_str(body, "cache_salt", &salt, &n_salt, e) || !req_bool(body, "cache_prompt", &cache, e) ||
        !read_pin(body, p, e))
        return false;
    p->no_cache = !cache;
    return class_digest(s, key, user, n_user, p->share, e) && class_digest(s, key, salt, n_salt, p->space, e);
}

bool request_check_model(server *s, const json_t *body, serve_error *e) {
    const char *name = "";
    hd_buf have;
    if (!req_str(body, "model", &name, NULL, e)) return false;
    if (server_knows_model(s, name)) return true;
    buf_init(&have, 400);
    buf_fmt(&have, "'%s'", s->info->name);
    for (size_t i = 0; i < s->opt.n_aliases; i++) buf_fmt(&have, ", '%s'", s->aliases[i]);
    serve_fail(e, 404, "model_not_found", "model", "there is no model '%.200s' here; there is %s", name,
               have.failed ? s->info->name : buf_cstr(&have));
    buf_deinit(&have);
    return false;
}

void gen_params_deinit(gen_params *p) {
    hd_free(p->bias);
    hd_free(p->breakers);
    hd_free(p->stops);
    hd_free(p->stop_ids);
    memset(p, 0, sizeof *p);
}

static bool oom(serve_error *e) { return serve_fail(e, 503, "out_of_memory", NULL, "no memory for the request"); }

static bool read_stops(const json_t *body, gen_params *p, serve_error *e) {
    const json_t *j = req_get(body, "stop");
    size_t n = !j ? 0 : json_is_array(j) ? json_array_size(j) : 1;
    if (!n) return true;
    if (n > STOP_MAX_STRINGS) return bad_field(e, "stop", "stop may hold at most %d strings", STOP_MAX_STRINGS);
    if (!(p->stops = hd_calloc(n, sizeof *p->stops))) return oom(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(j) ? json_array_get(j, i) : j;
        if (!json_is_string(v)) return bad_field(e, "stop", "stop must be a string or an array of strings");
        if (!json_string_length(v)) return bad_field(e, "stop", "a stop string may not be empty");
        if (json_string_length(v) > STOP_MAX_BYTES)
            return bad_field(e, "stop", "a stop string may be at most %d bytes", STOP_MAX_BYTES);
        p->stops[p->n_stops++] = (stop_string){json_string_value(v), json_string_length(v)};
    }
    return true;
}

static bool read_stop_ids(server *s, const json_t *body, gen_params *p, serve_error *e) {
    const json_t *j = req_get(body, "stop_token_ids");
    size_t n;
    if (!j) return true;
    if (!json_is_array(j)) return bad_field(e, "stop_token_ids", "stop_token_ids must be an array of token ids");
    if ((n = json_array_size(j)) > REQUEST_MAX_STOP_IDS)
        return bad_field(e, "stop_token_ids", "stop_token_ids may hold at most %d ids", REQUEST_MAX_STOP_IDS);
    if (!(p->stop_ids = hd_calloc(n, sizeof *p->stop_ids))) return oom(e);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!json_is_whole(json_array_get(j, i), &id) || id < 0 || id >= s->info->n_vocab)
            return bad_field(e, "stop_token_ids", "stop_token_ids[%zu] is not a token id below %u", i, s->info->n_vocab);
        p->stop_ids[p->n_stop_ids++] = (int32_t)id;
    }
    return true;
}

static bool read_bias(server *s, const json_t *body, gen_params *p, serve_error *e) {
    json_t *j = json_object_get(body, "logit_bias");
    const char *key;
    json_t *v;
    if (!j || json_is_null(j)) return true;
    if (!json_is_object(j)) return bad_field(e, "logit_bias", "logit_bias must be an object of token id to number");
    if (json_object_size(j) > SAMPLER_MAX_BIAS)
        return bad_field(e, "logit_bias", "logit_bias may hold at most %d entries", SAMPLER_MAX_BIAS);
    if (!(p->bias = hd_calloc(json_object_size(j), sizeof *p->bias))) return oom(e);
    json_object_foreach(j, key, v) {
        char *end;
        long id = strtol(key, &end, 10);
        double b = json_number_value(v);
        if (key[0] < '0' || key[0] > '9' || *end || id < 0 || (uint64_t)id >= s->info->n_vocab)
            return bad_field(e, "logit_bias", "logit_bias: '%.40s' is not a token id below %u", key, s->info->n_vocab);
        if (!json_is_number(v) || !(b >= -100 && b <= 100))
            return bad_field(e, "logit_bias", "logit_bias: the value of '%.40s' must be between -100 and 100", key);
        p->bias[p->sampling.n_bias++] = (logit_bias){(int32_t)id, (float)b};
    }
    p->sampling.bias = p->bias;
    return true;
}

/* A repeated span may not cross these: the ids that end the given strings. */
static bool read_breakers(server *s, const json_t *body, gen_params *p, serve_error *e) {
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const json_t *j = req_get(body, "dry_sequence_breakers");
    size_t n = j ? json_array_size(j) : sizeof usual / sizeof *usual;
    if (j && !json_is_array(j))
        return bad_field(e, "dry_sequence_breakers", "dry_sequence_breakers must be an array of strings");
    if (p->sampling.dry_multiplier == 0 || !n) return true;
    if (n > SAMPLER_MAX_BREAKERS)
        return bad_field(e, "dry_sequence_breakers", "dry_sequence_breakers may hold at most %d", SAMPLER_MAX_BREAKERS);
    if (!(p->breakers = hd_calloc(n, sizeof *p->breakers))) return oom(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = j ? json_array_get(j, i) : NULL;
        id_list ids;
        hd_err err;
        if (j && (!json_is_string(v) || !json_string_length(v) || json_string_length(v) > 64))
            return bad_field(e, "dry_sequence_breakers", "dry_sequence_breakers[%zu] must be a string of 1 to 64 bytes", i);
        id_list_init(&ids, 64);
        if (tokenizer_encode(s->info->tok, j ? json_string_value(v) : usual[i], j ? json_string_length(v) : 1,
                             TOK_CONTINUES, &ids, &err) == HD_OK &&
            ids.n)
            p->breakers[p->sampling.n_dry_breakers++] = ids.ids[ids.n - 1];
        id_list_deinit(&ids);
    }
    p->sampling.dry_breakers = p->breakers;
    return true;
}

static bool num_f(const json_t *body, const char *key, double lo, double hi, float *v, serve_error *e) {
    double d = *v;
    if (!req_num(body, key, lo, hi, &d, e)) return false;
    *v = (float)d;
    return true;
}

static bool int_u(const json_t *body, const char *key, int64_t hi, uint32_t *v, serve_error *e) {
    int64_t i = *v;
    if (!req_int(body, key, 0, hi, &i, e)) return false;
    *v = (uint32_t)i;
    return true;
}

/* llama.cpp clients write -1 for "all". */
static bool window(const json_t *body, const char *key, uint32_t *v, serve_error *e) {
    int64_t i = *v;
    if (!req_int(body, key, -1, UINT32_MAX, &i, e)) return false;
    *v = i < 0 ? 0 : (uint32_t)i;
    return true;
}

static bool timeout_ms(const json_t *body, const char *key, uint64_t *us, serve_error *e) {
    int64_t ms = 0;
    if (!req_int(body, key, 0, (int64_t)1 << 40, &ms, e)) return false;
    *us = (uint64_t)ms * 1000;
    return true;
}

static bool read_seed(const json_t *body, bool has_big_seed, uint64_t big_seed, gen_params *p, serve_error *e) {
    const json_t *j = req_get(body, "seed");
    int64_t v;
    if (!j) {
        /* Reported to the client, so it stays in what every JSON reader holds exactly. */
        p->sampling.seed = server_random_u64() >> 11;
        return true;
    }
    p->seed_given = true;
    if (has_big_seed) p->sampling.seed = big_seed;
    else if (json_is_whole(j, &v)) p->sampling.seed = (uint64_t)v; /* -1 is its 64-bit pattern */
    else return bad_field(e, "seed", "seed must be an integer of at most 64 bits");
    return true;
}

bool request_bad_cap(const char *name, serve_error *e) { return bad_field(e, name, "%s must be a whole number of at least 1", name); }

bool gen_params_read(server *s, const json_t *body, bool has_big_seed, uint64_t big_seed, gen_params *p,
                     serve_error *e) {
    const model_info *m = s->info;
    sampling_params *sp = &p->sampling;
    const json_t *so;
    bool skip_special = true;
    int64_t i, n = 1;
    sampling_defaults(sp);
    if (!isnan(m->temperature)) sp->temperature = m->temperature;
    if (!isnan(m->top_p)) sp->top_p = m->top_p;
    if (!isnan(m->min_p)) sp->min_p = m->min_p;
    if (m->top_k != UINT32_MAX) sp->top_k = m->top_k;
    p->max_tokens = GEN_NO_CAP;

    if (!num_f(body, "temperature", 0, 100, &sp->temperature, e) || !num_f(body, "top_p", 0, 1, &sp->top_p, e) ||
        !num_f(body, "min_p", 0, 1, &sp->min_p, e) || !num_f(body, "typical_p", 0, 1, &sp->typical_p, e) ||
        !num_f(body, "xtc_probability", 0, 1, &sp->xtc_probability, e) ||
        !num_f(body, "xtc_threshold", 0, 1, &sp->xtc_threshold, e) ||
        !num_f(body, "repeat_penalty", 0.01, 100, &sp->repetition_penalty, e) ||
        !num_f(body, "repetition_penalty", 0.01, 100, &sp->repetition_penalty, e) ||
        !num_f(body, "presence_penalty", -2, 2, &sp->presence_penalty, e) ||
        !num_f(body, "frequency_penalty", -2, 2, &sp->frequency_penalty, e) ||
        !window(body, "repeat_last_n", &sp->repetition_window, e) ||
        !window(body, "repetition_context_size", &sp->repetition_window, e) ||
        !window(body, "presence_context_size", &sp->presence_window, e) ||
        !window(body, "frequency_context_size", &sp->frequency_window, e) ||
        !num_f(body, "dry_multiplier", 0, 100, &sp->dry_multiplier, e) ||
        !num_f(body, "dry_base", 0, 100, &sp->dry_base, e) ||
        !int_u(body, "dry_allowed_length", 1 << 20, &sp->dry_allowed_length, e) ||
        !window(body, "dry_penalty_last_n", &sp->dry_window, e))
        return false;
    i = sp->top_k;
    if (!req_int(body, "top_k", -1, UINT32_MAX - 1, &i, e)) return false; /* -1: off, as vLLM writes it */
    sp->top_k = i < 0 ? 0 : (uint32_t)i;
    if (!read_seed(body, has_big_seed, big_seed, p, e) || !read_bias(s, body, p, e) || !read_stops(body, p, e) ||
        !read_stop_ids(s, body, p, e) || !read_breakers(s, body, p, e))
        return false;

    /* max_completion_tokens wins over max_tokens; a cap above every context is no cap. */
    for (int k = 0; k < 2; k++) {
        static const char *const names[] = {"max_tokens", "max_completion_tokens"};
        const json_t *cap = req_get(body, names[k]);
        if (!cap) continue;
        if (!json_is_whole(cap, &i) || i < 0) return request_bad_cap(names[k], e);
        p->has_max_tokens = true;
        p->max_tokens = i >= GEN_NO_CAP ? GEN_NO_CAP - 1 : (uint32_t)i;
    }
    if (!req_int(body, "n", 1, REQUEST_MAX_N, &n, e)) return false;
    p->n = (uint32_t)n;
    if (!int_u(body, "min_tokens", UINT32_MAX, &p->min_tokens, e) || !req_bool(body, "ignore_eos", &p->ignore_eos, e) ||
        !req_bool(body, "skip_special_tokens", &skip_special, e) || !req_bool(body, "stream", &p->stream, e) ||
        !req_bool(body, "return_token_ids", &p->return_token_ids, e) ||
        !req_bool(body, "timings_per_token", &p->timings, e) ||
        !timeout_ms(body, "queue_timeout_ms", &p->queue_timeout_us, e) ||
        !timeout_ms(body, "first_token_timeout_ms", &p->first_token_timeout_us, e) ||
        !timeout_ms(body, "total_timeout_ms", &p->total_timeout_us, e))
        return false;
    p->special = !skip_special;
    if ((so = req_get(body, "stream_options"))) {
        bool any = false;
        if (!json_is_object(so)) return bad_field(e, "stream_options", "stream_options must be an object");
        if (!req_bool(so, "include_usage", &p->include_usage, e)) {
            strcpy(e->param, "stream_options.include_usage");
            return false;
        }
        if (!req_bool(so, "include_obfuscation", &any, e)) return false;
    }
    return true;
}
