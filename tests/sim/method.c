/* method.c - a method that guesses: up to three tokens ahead in one segment, and takes back what was wrong.
 *
 * It knows the script, so some guesses are right; others are wrong on purpose, by position.  Its output must be that of
 * the plain method, token for token. */
#include "sim/sim.h"
#include "base/mem.h"
#include "exec/executor.h"
#include "model/script.h"

#include <string.h>

enum { AHEAD = 3 };

typedef struct {
    uint32_t n_guessed;
    int32_t guess[AHEAD];
} guess_state;

static hd_status guess_open(row *r, hd_err *err) {
    if (!(r->mstate = hd_calloc(1, sizeof(guess_state)))) return hd_fail(err, HD_NOMEM, "no memory for guesses");
    return HD_OK;
}

static void guess_close(row *r) {
    hd_free(r->mstate);
    r->mstate = NULL;
}

static uint32_t guess_wants(const row *r) {
    (void)r;
    return 1 + AHEAD;
}

static int32_t guess_at(const row *r, uint32_t at) {
    const script_rule *rule = r->model_state;
    if ((at + r->n_prompt) % 4 == 2 || !rule->n_emit) return V_X;
    return rule->emit[at % rule->n_emit];
}

/* Looking ahead must not meet a failure that the plain method would meet only later. */
static bool may_look(const row *r, uint32_t at) {
    const script_rule *rule = r->model_state;
    return rule->then != SCRIPT_FAIL || at < rule->n_emit;
}

static bool guess_plan(row *r, const step_grant *grant, segment *g) {
    guess_state *m = r->mstate;
    uint32_t n = r->n_tokens - r->n_done, ahead = 0, left = r->cap_generated - r->n_generated;
    m->n_guessed = 0;
    if (!n) return false;
    if (n > grant->tokens) n = grant->tokens;
    g->tokens = r->tokens + r->n_done;
    g->pos0 = r->n_done;
    g->n = g->first_logits = n;
    if (r->n_done + n < r->n_tokens || !r->cap_generated) return true;
    g->first_logits = n - 1;
    while (ahead < AHEAD && n + ahead < grant->tokens && 1 + ahead < grant->logits && ahead + 1 < left &&
           may_look(r, r->n_generated + ahead + 1)) {
        m->guess[ahead] = guess_at(r, r->n_generated + ahead);
        r->tokens[r->n_tokens + ahead] = m->guess[ahead];
        ahead++;
    }
    m->n_guessed = ahead;
    g->n += ahead;
    return true;
}

static void guess_consume(row *r, const segment *g) {
    guess_state *m = r->mstate;
    sample_result s;
    if (r->n_done < r->n_tokens) return;
    if (!r->cap_generated) {
        row_end(r, FINISH_LENGTH);
        return;
    }
    for (uint32_t i = 0; i <= m->n_guessed; i++) {
        float *logits = g->logits + (uint64_t)(g->n - 1 - m->n_guessed + i - g->first_logits) * r->x->info->n_vocab;
        if (!row_sample(r, logits, &s) || !row_publish(r, &s)) break;
        if (i < m->n_guessed && s.id != m->guess[i]) break;
    }
    if (r->n_done > r->n_tokens - 1) r->n_done = r->n_tokens - 1; /* what was computed behind a wrong guess counts for nothing */
}

static uint32_t guess_skips(const session *s, uint32_t n_tokens) { return (void)s, n_tokens; }

const gen_method sim_method_guess = {.name = "guess", .open = guess_open, .close = guess_close, .wants = guess_wants,
                                     .plan = guess_plan, .consume = guess_consume, .tail = row_tail, .skips = guess_skips};
