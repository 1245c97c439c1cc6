/* step.c - one step: plan every row, one forward pass, consume in row order, publish, evict. */
#include "base/fp.h"
#include "base/plant.h"
#include "exec/engine_int.h"
#include "exec/executor.h"

#include <string.h>

static void note_pause(executor *x, row *r, bool paused) {
    uint64_t now;
    if (paused == (r->phase == ROW_PAUSED)) return;
    now = hd_now_us(x->opt.clock);
    if (paused) {
        r->phase = ROW_PAUSED;
        r->t_paused_us = now;
        x->pauses++;
        x->idle_due_us = 0; /* the sweep looks again */
    } else {
        r->paused_us += now - r->t_paused_us;
        r->phase = r->n_done < r->n_prompt ? ROW_PREFILL : ROW_DECODE;
        trace_request(x->opt.trace, "paused", r->s->copy.id, r->order, r->t_paused_us, now, NULL, 0);
    }
}

typedef struct {
    uint32_t tokens, logits; /* left for this step */
    const row *collector;    /* the oldest collecting row: it may go on above their bound */
    uint32_t n_segs;
} step_plan;

static bool scores(const row *r) { return r->s->copy.req.prompt_logprobs || r->s->copy.req.prompt_logits; }

static void plan_row(executor *x, row *r, step_plan *p, step_grant grant) {
    segment *g = &x->segs[p->n_segs];
    uint32_t room = session_room(r->s, r == p->collector);
    memset(g, 0, sizeof *g);
    note_pause(x, r, room == 0);
    if (!room && !PLANTED(PLANT_PLAN_PAUSED)) return;
    if (r->phase == ROW_WAITING_PREFIX) r->phase = ROW_PREFILL;
    if (room < grant.tokens && (scores(r) || r->n_tokens - r->n_done <= 1)) grant.tokens = room ? room : 1;
    if (room < grant.logits) grant.logits = room ? room : 1; /* each position with logits may publish */
    if (!r->method->plan(r, &grant, g)) return;
    HD_ASSERT(g->n && g->n <= grant.tokens && g->n - g->first_logits <= grant.logits && g->pos0 == r->n_done);
    p->tokens -= g->n < p->tokens ? g->n : p->tokens;
    p->logits -= g->n - g->first_logits;
    x->seg_rows[p->n_segs] = r;
    r->planned = p->n_segs++;
}

static bool prefills(const row *r) { return r->n_tokens - r->n_done > 1; }

/* How many positions a row past its prompt may take, when `behind` others still need one each. */
static uint32_t decode_grant(const row *r, const step_plan *p, uint32_t behind) {
    uint32_t want = r->method->wants ? r->method->wants(r) : 1;
    uint32_t tokens = p->tokens > behind ? p->tokens - behind : 1, logits = p->logits - behind;
    if (want > r->cap_tokens - r->n_done) want = r->cap_tokens - r->n_done;
    if (want > tokens) want = tokens;
    return want > logits ? logits : want ? want : 1;
}

static const row *oldest_collecting(const executor *x) {
    const row *best = NULL;
    for (uint32_t i = 0; i < x->n_rows; i++)
        if (x->rows[i]->collect && (!best || x->rows[i]->order < best->order)) best = x->rows[i];
    return best;
}

/* Tokens of a step of many cost about the same each, and fewer than these share a read of the weights badly. */
enum { MANY_TOKENS = 16 };

/* Tokens that prompts get of a step at least: with fewer than twice what decodes, first tokens come ever later. */
static uint32_t prompt_floor(uint32_t decode) { return 2 * decode > MANY_TOKENS ? 2 * decode : MANY_TOKENS; }

/* Who waits for the next token of a row that decodes waits for the prompts that are read in the same step.  So they get what
 * the target leaves room for, at the pace of the last steps, and all of step_tokens where nobody decodes.  When is all that
 * changes: a prompt cut elsewhere is the same prompt. */
static uint32_t step_budget(const executor *x) {
    uint32_t decode = 0, n;
    for (uint32_t i = 0; i < x->n_rows; i++) decode += x->rows[i]->phase == ROW_DECODE;
    if (!decode || decode == x->n_rows || x->token_us * x->opt.step_tokens <= (double)x->opt.step_target_us)
        return x->opt.step_tokens;
    n = (uint32_t)((double)x->opt.step_target_us / x->token_us);
    if (n < decode + prompt_floor(decode)) n = decode + prompt_floor(decode);
    return n < x->opt.step_tokens ? n : x->opt.step_tokens;
}

/* Decoding rows first (one token each at least, even past the budget), then prefill; each later row keeps one token, so
 * that every running row advances in every step. */
static uint32_t plan_rows(executor *x) {
    step_plan p = {.tokens = x->step_budget = step_budget(x), .logits = x->plan.max_logits, .collector = oldest_collecting(x)};
    uint32_t behind = x->n_rows;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        row *r = x->rows[i];
        r->planned = ROW_UNPLANNED;
        if (prefills(r)) continue;
        behind--;
        if (PLANTED(PLANT_CURSOR_SKIPS) && x->steps % 5 == 3 && i == 1) continue;
        {
            uint32_t n = decode_grant(r, &p, behind);
            plan_row(x, r, &p, (step_grant){n, n});
        }
    }
    for (uint32_t i = 0; i < x->n_rows && behind; i++) {
        row *r = x->rows[i];
        if (r->planned != ROW_UNPLANNED || !prefills(r)) continue;
        behind--;
        if (r->phase != ROW_PAUSED && share_follow(x, r)) {
            r->phase = ROW_WAITING_PREFIX;
            continue;
        }
        plan_row(x, r, &p, (step_grant){p.tokens > behind ? p.tokens - behind : 1, p.logits - behind});
    }
    return p.n_segs;
}

/* Take pages for every planned segment, first row first: a row is only ever preempted for one before it, or gives way
 * itself.  Rows that lost their pages drop out of the step. */
static uint32_t plan_pages(executor *x, uint32_t n) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        row *r = x->rows[i];
        if (r->planned != ROW_UNPLANNED) pages_take(x, r, x->segs[r->planned].pos0 + x->segs[r->planned].n);
    }
    for (uint32_t j = 0; j < n; j++) {
        row *r = x->seg_rows[j];
        if (r->phase == ROW_PREEMPTED) continue;
        x->segs[kept] = x->segs[j];
        for (uint32_t g = 0; g < x->n_groups; g++) x->segs[kept].pages[g] = r->pages[g];
        x->segs[kept].n_prompt = r->n_prompt;
        x->segs[kept].row_state = r->model_state;
        x->seg_rows[kept++] = r;
    }
    return kept;
}

static void consume(executor *x, row *r, const segment *g) {
    r->computed += g->n;
    r->n_done += g->n;
    if (PLANTED(PLANT_MISCOUNT_FED) && r->n_done > r->n_prompt && r->n_done % 3 == 0) r->n_done--;
    atomic_store_explicit(&r->s->progress_done, r->n_done < r->n_prompt ? r->n_done : r->n_prompt, memory_order_relaxed);
    if (r->n_done >= r->n_prompt) r->phase = ROW_DECODE;
    r->method->consume(r, g);
    HD_ASSERT(r->n_done <= r->n_tokens);
    share_publish(x, r);
    if (!r->ended) pages_drop_behind_window(x, r);
}

typedef struct {
    executor *x;
    uint32_t lo;
} choices;

static void choose_one(void *ctx, unsigned member, size_t i) {
    const choices *c = ctx;
    executor *x = c->x;
    row *r = x->seg_rows[c->lo + i];
    if (r->method->choose)
        r->method->choose(r, &x->segs[c->lo + i], x->sample_work + member * engine_sample_bytes(x->info));
}

/* Several rows that sample do so at the same time; a single one when it consumes. */
static void choose(executor *x, uint32_t lo, uint32_t hi) {
    uint32_t n = 0;
    for (uint32_t i = lo; i < hi; i++) {
        const segment *g = &x->segs[i];
        n += x->seg_rows[i]->method->choose && g->first_logits < g->n && !g->only_best;
    }
    if (n > 1) model_share(x->m, hi - lo, x->sample_members, choose_one, &(choices){x, lo});
}

static void forward(executor *x, uint32_t lo, uint32_t hi);

/* A pass failed.  The model may know the segment; else halves are run alone until one row is left: that one ends, the
 * others lose nothing, because running a segment again writes the same values. */
static void contain(executor *x, uint32_t lo, uint32_t hi, uint32_t bad, const hd_err *err) {
    if (hi - lo == 1) bad = lo;
    if (bad >= lo && bad < hi) {
        x->faults_contained++;
        row_fail(x->seg_rows[bad], err);
        if (lo < bad) forward(x, lo, bad);
        if (bad + 1 < hi) forward(x, bad + 1, hi);
        return;
    }
    forward(x, lo, lo + (hi - lo) / 2);
    forward(x, lo + (hi - lo) / 2, hi);
}

/* Run segments [lo, hi) and consume them, in row order. */
static void forward(executor *x, uint32_t lo, uint32_t hi) {
    step st = {x->segs + lo, hi - lo, 0, NULL};
    uint32_t bad = UINT32_MAX;
    uint64_t t0, t1;
    hd_err err = {0};
    for (uint32_t i = lo; i < hi; i++) st.n_tokens += x->segs[i].n;
    HD_ASSERT(st.n_tokens <= x->plan.max_step_tokens);
    t0 = hd_now_us(x->opt.clock);
    if (model_forward(x->m, &st, &bad, &err)) {
        contain(x, lo, hi, bad < hi - lo ? lo + bad : UINT32_MAX, &err);
        return;
    }
    t1 = hd_now_us(x->opt.clock);
    x->t_progress_us = x->t_forward_us = t1;
    choose(x, lo, hi);
    for (uint32_t i = lo; i < hi; i++) consume(x, x->seg_rows[i], &x->segs[i]);
    trace_span(x->opt.trace, "forward", 0, t0, t1, "rows", hi - lo, "tokens", st.n_tokens);
    trace_span(x->opt.trace, "consume", 0, t1, x->opt.trace ? hd_now_us(x->opt.clock) : 0, NULL, 0, NULL, 0);
}

static void note_step_time(executor *x, uint64_t us) {
    x->step_us += ((double)us - x->step_us) * (x->steps > 1 ? 0.05 : 1);
    if (x->step_tokens_last >= MANY_TOKENS) {
        double each = (double)us / x->step_tokens_last;
        x->token_us += (each - x->token_us) * (x->token_us > 0 ? 0.2 : 1);
    }
    if (us > x->step_us_max) x->step_us_max = us;
    else x->step_us_max -= (x->step_us_max - us) / 64;
}

static bool step_once(executor *x) {
    uint64_t t0 = hd_now_us(x->opt.clock), t1;
    uint32_t n = plan_pages(x, plan_rows(x));
    if (!n) return false;
    x->steps++; /* before anything of it can be seen */
    x->step_tokens_last = 0;
    for (uint32_t i = 0; i < n; i++) x->step_tokens_last += x->segs[i].n;
    trace_span(x->opt.trace, "plan", 0, t0, x->opt.trace ? hd_now_us(x->opt.clock) : 0, "rows", n, NULL, 0);
    forward(x, 0, n);
    t1 = hd_now_us(x->opt.clock);
    note_step_time(x, t1 - t0);
    executor_evict_ended(x);
    tell_step(x, x->step_tokens_last, x->step_budget, t1 - t0);
    executor_check_invariants(x);
    return true;
}

bool executor_step(executor *x) {
    hd_fp fp = hd_fp_enter(); /* a row that samples alone does so on this thread */
    bool did = step_once(x);
    hd_fp_leave(fp);
    return did;
}
