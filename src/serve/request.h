/* request.h - fields of JSON request bodies: one place for types, ranges and what null means.
 *
 * null equals absent, everywhere.  A wrong type or range is a 400 whose `param` names the field.  Getters return false
 * after filling the error; an absent field leaves the value as it was. */
#ifndef HD_SERVE_REQUEST_H
#define HD_SERVE_REQUEST_H

#include "serve/error.h"
#include "serve/server_int.h"

#include <jansson.h>

enum {
    REQUEST_MAX_VALUES = 2000000, /* JSON values in a body: bounds what the parsed tree takes */
    REQUEST_MAX_STOP_IDS = 256,
    REQUEST_MAX_N = 128,
    PIN_DEFAULT_S = 300, /* between an agent's steps; what others take for a short one */
    PIN_MAX_S = 86400,
};

/* Parse a body.  Integers above int64 become reals (jansson refuses them); a top-level "seed" of that kind is kept
 * exactly in *big_seed.  NULL: e says why. */
json_t *request_parse(const char *body, size_t n, bool *has_big_seed, uint64_t *big_seed, serve_error *e);

const json_t *req_get(const json_t *o, const char *key); /* NULL when absent or null */
bool req_bool(const json_t *o, const char *key, bool *v, serve_error *e);
bool req_num(const json_t *o, const char *key, double lo, double hi, double *v, serve_error *e);
bool req_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *v, serve_error *e);
/* n NULL: a name, compared as a C string, so that a NUL inside is a 400; *v holds none. */
bool req_str(const json_t *o, const char *key, const char **v, size_t *n, serve_error *e);
/* The text of a JSON string that is a name; NULL for anything else, also for a string with a NUL inside. */
const char *json_name(const json_t *v);
/* "high", "normal", "low" or -1, 0, 1.  False: neither. */
bool json_priority(const json_t *v, gen_priority *out);
const char *priority_name(gen_priority p);
/* The field `priority`; absent leaves *p. */
bool req_priority(const json_t *o, gen_priority *p, serve_error *e);
/* An integer in any JSON spelling (5, 5.0, 5e0). */
bool json_is_whole(const json_t *v, int64_t *out);

/* What every generating dialect takes.  Arrays belong to the struct; stops borrow from the body. */
typedef struct {
    sampling_params sampling;
    logit_bias *bias;
    int32_t *breakers;
    stop_string *stops;
    size_t n_stops;
    int32_t *stop_ids;
    size_t n_stop_ids;
    bool has_max_tokens;
    uint32_t max_tokens; /* GEN_NO_CAP when absent */
    uint32_t min_tokens;
    uint32_t n;
    bool ignore_eos, special;
    bool stream, include_usage;
    bool logprobs; /* entries are wanted; sampling.n_top_logprobs of them */
    bool return_token_ids, timings;
    bool echo;           /* completions */
    bool score_prompt;   /* echo with logprobs */
    const char *method;  /* static text; NULL: text is generated */
    uint64_t method_arg;
    bool base64;         /* embeddings: how vectors are written */
    bool seed_given;
    uint64_t queue_timeout_us, first_token_timeout_us, total_timeout_us;
    gen_priority priority;
    char share[40];      /* whose fair share it takes: a digest of key and user, never shown; "" for nobody in particular */
    char space[40];      /* who shares computed prefixes with it: a digest of key and cache_salt; "": everybody without either */
    bool no_cache;
    uint64_t pin_us;     /* so long the prompt's pages stay; 0: as long as they are worth it */
} gen_params;

void gen_params_deinit(gen_params *p);
/* Everything but messages, prompt and logprobs (whose shapes differ by dialect). */
bool gen_params_read(server *s, const json_t *body, bool has_big_seed, uint64_t big_seed, gen_params *p,
                     serve_error *e);
/* Refuses a cap on the tokens of an answer, alike in every dialect: below 0 here, 0 where a dialect has no use for it. */
bool request_bad_cap(const char *name, serve_error *e);
/* priority, share and cache space of every dialect that computes.  key: 1 + index of the API key that let the request in, or 0. */
bool request_read_class(server *s, const json_t *body, size_t key, gen_params *p, serve_error *e);
/* model: absent, empty or one we answer to; else 404 naming what there is. */
bool request_check_model(server *s, const json_t *body, serve_error *e);

#endif
