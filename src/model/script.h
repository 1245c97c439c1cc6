/* script.h - the scripted model: logits from a JSON file, through the same executor, server and programs (DESIGN 11). */
#ifndef HD_MODEL_SCRIPT_H
#define HD_MODEL_SCRIPT_H

#include "model/model_int.h"

#include <jansson.h>
#include <pthread.h>

enum {
    SCRIPT_MAX_FILE = 64 << 20,
    SCRIPT_MAX_VOCAB = 1 << 20,
    SCRIPT_MAX_EMIT = 1 << 22,
    SCRIPT_TOKEN_BYTES = 1024, /* what one token of context is accounted as */
    SCRIPT_WIDTH = 8           /* of its hidden states */
};

typedef enum { SCRIPT_EOS, SCRIPT_LOOP, SCRIPT_FAIL } script_then;

typedef struct {
    int32_t id;
    float logit;
} script_pair;
typedef struct {
    size_t n;
    script_pair *pairs;
} script_top;

typedef struct {
    char *match; /* NULL: the default rule */
    size_t n_match;
    int32_t *emit;
    size_t n_emit;
    script_then then;
    script_top *top; /* [n_top], or NULL */
    size_t n_top;
} script_rule;

typedef struct {
    model base;
    script_rule *rules; /* the default rule is the last */
    size_t n_rules;
    uint8_t digest[16]; /* of the file */
    uint64_t step_delay_us, token_delay_us, prompt_delay_us;
    float *logits, *hidden;
    logit_best *best; /* of each row of logits */
    step_limits lim;
    pthread_mutex_t mu; /* guards the sleep */
    pthread_cond_t wake;
    bool interrupted;
} script_model;

void script_close(model *m);
hd_status script_read(script_model *s, const json_t *root, hd_err *err);

#endif
