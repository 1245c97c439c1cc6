/* generate.h - one line of a batch file, or the options of a single run: a request before it is submitted. */
#ifndef HD_CLI_GENERATE_H
#define HD_CLI_GENERATE_H

#include "cli/common.h"

typedef struct {
    sampling_params sampling; /* temperature 0 unless said */
    id_list ids;              /* the prompt */
    uint32_t max_tokens;
    uint32_t min_tokens;
    gen_priority priority;
    bool ignore_eos, seed_given;
    stop_string *stops;       /* owned, texts too */
    size_t n_stops, cap_stops;
    int32_t *stop_ids;
    size_t n_stop_ids;
    logit_bias *bias;
} gen_line;

void gen_line_init(gen_line *g);
void gen_line_deinit(gen_line *g);
hd_status gen_line_add_stop(gen_line *g, const char *s, size_t n, hd_err *err);
/* Parse one JSON line; what it leaves out comes from `defaults`.  Names are those of /v1/completions. */
hd_status gen_line_parse(gen_line *g, const char *json, size_t n, const gen_line *defaults, const model *m, hd_err *err);
gen_request gen_line_request(const gen_line *g); /* borrows from g */

#endif
