/* executor.c - see executor.h: opening, rows, admission, steering, ends. */
#include "exec/executor.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/plant.h"
#include "base/topology.h"
#include "exec/engine_int.h"

#include <stdio.h>
#include <string.h>

/* ---- sizes ---- */

uint32_t pages_for(uint32_t n_tokens, uint32_t page_tokens) {
    return n_tokens / page_tokens + (n_tokens % page_tokens != 0);
}

uint64_t executor_project(const executor *x, uint32_t n_tokens) { return engine_plan_row_bytes(&x->plan, n_tokens); }

hd_status executor_open(executor *x, model *m, const engine_options *opt, hd_err *err) {
    engine_plan *p = &x->plan;
    hd_status st;
    memset(x, 0, sizeof *x);
    buf_init(&x->text_a, 1 << 20);
    buf_init(&x->text_b, 2 << 20);
    x->m = m;
    x->deadline_us = x->idle_due_us = UINT64_MAX;
    x->info = model_get(m);
    x->n_groups = x->info->n_groups;
    x->opt = *opt;
    if ((st = engine_plan_make(p, &x->opt, m, hd_memory_limit(), err)) || (st = engine_plan_bound(p, &x->opt, err))) return st;
    x->max_pages = pages_for(x->opt.ctx, x->opt.page_tokens);
    if ((st = kv_open(&x->kv, x->opt.kv_budget_bytes, x->n_groups, p->page_bytes, err)) ||
        (st = prefix_open(&x->tree, x->kv, x->opt.page_tokens, x->n_groups, p->window, err)) || (st = model_plan(m, &p->lim, err)) ||
        (st = disk_open(x, err)))
        goto fail;
    x->rows = hd_calloc(x->opt.max_rows, sizeof *x->rows);
    x->segs = hd_calloc(x->opt.max_rows, sizeof *x->segs);
    x->seg_rows = hd_calloc(x->opt.max_rows, sizeof *x->seg_rows);
    x->sample_members = engine_sample_members(x->info);
    x->sample_work = hd_alloc_aligned(64, x->sample_members * engine_sample_bytes(x->info));
    if (x->rows && x->segs && x->seg_rows && x->sample_work) return HD_OK;
    st = hd_fail(err, HD_NOMEM, "engine: no memory");
fail:
    executor_close(x);
    return st;
}

void executor_close(executor *x) {
    HD_ASSERT(!x->n_rows);
    while (pins_yield(x)) {}
    disk_close(x);
    prefix_close(x->tree);
    kv_close(x->kv);
    hd_free(x->rows);
    hd_free(x->segs);
    hd_free(x->seg_rows);
    hd_free_aligned(x->sample_work);
    buf_deinit(&x->text_a);
    buf_deinit(&x->text_b);
    memset(x, 0, sizeof *x);
}

hd_status executor_check(const executor *x, const gen_request *req, hd_err *err) {
    uint32_t ctx = x->opt.ctx;
    if (!req->n_prompt) return hd_fail_field(err, HD_INVALID, "prompt", "the prompt is empty");
    if (req->n_prompt > ctx || (req->n_prompt == ctx && req->max_tokens))
        return hd_fail_field(err, HD_NEVER_FITS, "prompt",
                             "the prompt has %zu tokens; the context holds %u, one of them for the answer", req->n_prompt, ctx);
    for (size_t i = 0; i < req->n_prompt; i++)
        if (req->prompt[i] < 0 || (uint32_t)req->prompt[i] >= x->info->n_vocab)
            return hd_fail_field(err, HD_INVALID, "prompt", "token id %d at index %zu is outside the vocabulary of %u",
                                 req->prompt[i], i, x->info->n_vocab);
    if (req->n_said > ctx - req->n_prompt || req->n_said > req->max_tokens)
        return hd_fail_field(err, HD_NEVER_FITS, "said", "%zu tokens were generated before, which is above the cap or the context",
                             req->n_said);
    for (size_t i = 0; i < req->n_said; i++)
        if (req->said[i] < 0 || (uint32_t)req->said[i] >= x->info->n_vocab)
            return hd_fail_field(err, HD_INVALID, "said", "token id %d at index %zu is outside the vocabulary", req->said[i], i);
    for (size_t i = 0; i < req->n_stop_ids; i++)
        if (req->stop_ids[i] < 0 || (uint32_t)req->stop_ids[i] >= x->info->n_vocab)
            return hd_fail_field(err, HD_INVALID, "stop_token_ids", "token id %d is outside the vocabulary", req->stop_ids[i]);
    return HD_OK;
}

/* ---- rows ---- */

static void row_free(row *r) {
    if (!r) return;
    if (r->opened && r->method->close) r->method->close(r);
    row_text_close(r);
    model_row_close(r->x->m, r->model_state);
    for (uint32_t g = 0; g < MODEL_MAX_GROUPS; g++) hd_free(r->pages[g]);
    hd_free(r->path);
    hd_free(r->tokens);
    hd_free(r);
}

static hd_status row_new(row **out, executor *x, session *s, hd_err *err) {
    const gen_request *req = &s->copy.req;
    row *r = hd_calloc(1, sizeof *r);
    uint32_t room = x->opt.ctx - (uint32_t)req->n_prompt;
    hd_status st;
    *out = NULL;
    if (!r) return hd_fail(err, HD_NOMEM, "no memory for a row");
    r->x = x;
    r->s = s;
    r->order = s->order;
    r->method = s->method;
    r->collect = s->copy.req.collect;
    r->n_prompt = (uint32_t)req->n_prompt;
    r->n_generated = (uint32_t)req->n_said;
    r->n_tokens = r->n_prompt + r->n_generated;
    r->cap_generated = req->max_tokens < room ? req->max_tokens : room;
    r->cap_tokens = r->n_prompt + r->cap_generated;
    r->end.stop_index = -1;
    if (!(r->tokens = hd_reallocarray(NULL, r->cap_tokens, sizeof *r->tokens))) goto oom;
    memcpy(r->tokens, req->prompt, r->n_tokens * sizeof *r->tokens); /* what was said lies behind it */
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (!(r->pages[g] = hd_calloc(pages_for(r->cap_tokens, x->opt.page_tokens), sizeof **r->pages))) goto oom;
    if (!(r->path = hd_calloc(pages_for(r->cap_tokens, x->opt.page_tokens), sizeof *r->path))) goto oom;
    if ((st = session_prepare(s, err)) || (st = model_row_open(x->m, req->prompt, req->n_prompt, &r->model_state, err)) ||
        (st = row_text_open(r, err)) || (st = r->method->open(r, err))) {
        row_free(r);
        return st;
    }
    r->opened = true;
    if (req->n_said) row_take_up(r);
    *out = r;
    return HD_OK;
oom:
    row_free(r);
    return hd_fail(err, HD_NOMEM, "no memory for a row");
}

void row_end(row *r, finish_reason why) {
    r->ended = true;
    r->end.finish = why;
}

void row_fail(row *r, const hd_err *err) {
    row_end(r, FINISH_FAILED);
    r->end.err = *err;
}

void executor_cancel(executor *x, session *s, cancel_reason why) {
    row *r = s->row;
    (void)x;
    if (r->ended) return;
    row_end(r, FINISH_CANCELLED);
    r->end.reason = why;
}

/* Room for a larger cap.  No memory: it keeps the cap it had. */
static void raise_cap(executor *x, row *r, uint32_t cap) {
    uint32_t room = x->opt.ctx - r->n_prompt, old = pages_for(r->cap_tokens, x->opt.page_tokens), now;
    int32_t *tokens;
    prefix_node **path;
    if (cap > room) cap = room;
    if (cap <= r->cap_generated) return;
    if (!(tokens = hd_reallocarray(r->tokens, r->n_prompt + cap, sizeof *tokens))) return;
    r->tokens = tokens;
    now = pages_for(r->n_prompt + cap, x->opt.page_tokens);
    if (!(path = hd_reallocarray(r->path, now, sizeof *path))) return;
    r->path = path;
    for (uint32_t g = 0; g < x->n_groups && now > old; g++) {
        void **pages = hd_reallocarray(r->pages[g], now, sizeof *pages);
        if (!pages) return;
        r->pages[g] = pages;
        memset(pages + old, 0, (now - old) * sizeof *pages);
    }
    r->cap_generated = cap;
    r->cap_tokens = r->n_prompt + cap;
}

void executor_steer(executor *x, session *s, const session_steer *st) {
    gen_request *q = &s->copy.req;
    row *r = s->row;
    if (st->cap && q->max_tokens && st->cap > q->max_tokens) {
        q->max_tokens = st->cap;
        if (r) raise_cap(x, r, st->cap);
    }
    if (st->detach && r) r->collect = true;
    q->collect |= st->detach;
    if (!r || r->ended) return;
    if (st->stop) row_end(r, FINISH_STOP);
}

uint32_t executor_projected_tokens(const executor *x, const session *s) {
    const gen_request *req = &s->copy.req;
    uint32_t have = s->row ? s->row->n_tokens : session_tokens(s), room = x->opt.ctx - have;
    uint32_t done = have - (uint32_t)req->n_prompt, more;
    if (req->max_tokens == GEN_NO_CAP) more = x->opt.default_max_tokens;
    else more = req->max_tokens > done ? req->max_tokens - done : 0;
    return have + (more < room ? more : room);
}

hd_status executor_admissible(const executor *x, const session *s, const char **why) {
    prefix_hit h;
    if (x->n_rows >= x->opt.max_rows) return *why = "rows", HD_FULL;
    share_find(x, s, &h);
    if (executor_committed(x) + share_cost(x, s, &h) > x->opt.kv_budget_bytes) return *why = "pages", HD_FULL;
    return HD_OK;
}

static bool goes_before(const row *a, const row *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

void executor_place(executor *x, row *r) {
    uint32_t i = 0;
    while (x->rows[i] != r) i++;
    for (; i > 0 && goes_before(r, x->rows[i - 1]); i--) {
        x->rows[i] = x->rows[i - 1];
        x->rows[i - 1] = r;
    }
    for (; i + 1 < x->n_rows && goes_before(x->rows[i + 1], r); i++) {
        x->rows[i] = x->rows[i + 1];
        x->rows[i + 1] = r;
    }
}

void executor_admit(executor *x, session *s, uint32_t rank) {
    uint64_t now = hd_now_us(x->opt.clock), due;
    row *r = s->row;
    hd_err err;
    if (!r) {
        if (row_new(&r, x, s, &err)) {
            executor_end_waiting(x, s, FINISH_FAILED, CANCEL_NONE, &err);
            return;
        }
        r->t_admit_us = now;
        s->row = r;
        trace_request(x->opt.trace, "queued", s->copy.id, s->order, s->t_submit_us, now, NULL, 0);
    } else {
        r->preempted_us += now - r->t_preempted_us;
        trace_request(x->opt.trace, "preempted", s->copy.id, s->order, r->t_preempted_us, now, NULL, 0);
    }
    r->phase = ROW_PREFILL;
    r->rank = rank;
    share_begin(x, r);
    x->reserved_bytes += r->reserved_bytes;
    x->rows[x->n_rows++] = r;
    executor_place(x, r);
    tell_admitted(r, now);
    if ((due = executor_due(s)) < x->deadline_us) x->deadline_us = due;
    atomic_store_explicit(&s->admitted, true, memory_order_relaxed);
    if (r->ended) executor_evict_ended(x); /* what it said before was all */
}

/* ---- ends ---- */

static void fill_stats(gen_event *end, const session *s, const row *r, uint64_t now) {
    gen_stats *t = &end->stats;
    memset(t, 0, sizeof *t);
    t->prompt_tokens = (uint32_t)s->copy.req.n_prompt;
    if (!r) {
        t->queue_us = now - s->t_submit_us;
        return;
    }
    t->cached_tokens = r->n_taken;
    t->cache_miss = prefix_miss_name(r->miss);
    t->cache_miss_at = r->miss_at;
    t->pinned_tokens = r->n_pinned;
    t->generated_tokens = r->n_generated + end->ended_by_eos;
    t->queue_us = r->t_admit_us - s->t_submit_us;
    t->prefill_us = (r->t_first_us ? r->t_first_us : now) - r->t_admit_us;
    t->decode_us = r->t_first_us ? now - r->t_first_us : 0;
    t->gap_p50_us = gap_quantile(&r->gaps, 0.5);
    t->gap_p99_us = gap_quantile(&r->gaps, 0.99);
    t->paused_us = r->paused_us + (r->phase == ROW_PAUSED ? now - r->t_paused_us : 0);
    t->preempted_us = r->preempted_us + (r->phase == ROW_PREEMPTED ? now - r->t_preempted_us : 0);
    t->computed_tokens = r->computed;
    t->preemptions = r->preemptions;
}

static void count_end(executor *x, const gen_event *end) {
    x->finished[end->finish]++;
    if (end->finish == FINISH_CANCELLED) x->cancelled[end->reason]++;
    x->prompt_tokens += end->stats.prompt_tokens;
}

static void trace_end(executor *x, const session *s, const row *r, const gen_event *end, uint64_t now) {
    trace *t = x->opt.trace;
    if (!t) return;
    if (!r) trace_request(t, "queued", s->copy.id, s->order, s->t_submit_us, now, NULL, 0);
    else {
        uint64_t first = r->t_first_us ? r->t_first_us : now;
        trace_request(t, "prefill", s->copy.id, s->order, r->t_admit_us, first, "prompt_tokens", r->n_prompt);
        if (r->t_first_us)
            trace_request(t, "decode", s->copy.id, s->order, first, now, "tokens", end->stats.generated_tokens);
    }
    trace_mark(t, finish_reason_name(end->finish), s->copy.id, s->order, now);
}

/* The text that the end released.  Without memory for it the request has not ended as it says. */
static void hand_tail(executor *x, session *s, gen_event *end) {
    if (!x->text_b.failed && session_push_tail(s, buf_cstr(&x->text_b), x->text_b.len)) return;
    if (end->finish == FINISH_CANCELLED) return;
    end->finish = FINISH_FAILED;
    hd_fail(&end->err, HD_NOMEM, "no memory for a request's text");
}

static void settle(executor *x, session *s, row *r, gen_event *end) {
    uint64_t now = hd_now_us(x->opt.clock);
    hand_tail(x, s, end);
    fill_stats(end, s, r, now);
    count_end(x, end);
    if (r) {
        double took = (double)(now - r->t_admit_us);
        x->service_us = x->service_us > 0 ? x->service_us + (took - x->service_us) * 0.1 : took;
    }
    trace_end(x, s, r, end, now);
    tell_ended(s, end);
    engine_forget(s->engine, s, end->stats.prompt_tokens + (uint64_t)end->stats.generated_tokens);
    s->row = NULL;
    if (PLANTED(PLANT_SETTLE_TWICE) && end->finish == FINISH_CANCELLED) {
        count_end(x, end);
        session_finish(s, end);
    }
    session_finish(s, end);
}

static void add_tail(executor *x, row *r) {
    buf_clear(&x->text_b);
    if (r && r->method->tail) r->method->tail(r, &x->text_b);
}

void executor_end_waiting(executor *x, session *s, finish_reason why, cancel_reason reason, const hd_err *err) {
    row *r = s->row;
    gen_event end = {.kind = EV_DONE, .finish = why, .reason = reason, .stop_index = -1};
    if (err) end.err = *err;
    add_tail(x, r);
    settle(x, s, r, &end);
    row_free(r);
}

/* Publish is done; settle, then evict. */
static void finish_row(executor *x, row *r) {
    r->end.kind = EV_DONE;
    add_tail(x, r);
    settle(x, r->s, r, &r->end);
    pages_drop(r, r->end.finish != FINISH_FAILED);
    x->reserved_bytes -= r->reserved_bytes;
    x->freed = true;
    row_free(r);
}

void executor_evict_ended(executor *x) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        row *r = x->rows[i];
        if (r->ended) finish_row(x, r);
        else x->rows[kept++] = r;
    }
    x->n_rows = kept;
}

cancel_reason executor_overdue(const session *s, uint64_t now) {
    const gen_request *q = &s->copy.req;
    uint64_t age = now - s->t_submit_us;
    bool first_seen = s->row && s->row->t_first_us;
    if (q->total_timeout_us && age >= q->total_timeout_us) return CANCEL_DEADLINE_TOTAL;
    if (q->first_token_timeout_us && !first_seen && age >= q->first_token_timeout_us) return CANCEL_DEADLINE_FIRST_TOKEN;
    if (q->queue_timeout_us && !s->row && age >= q->queue_timeout_us) return CANCEL_DEADLINE_QUEUE;
    return CANCEL_NONE;
}

uint64_t executor_due(const session *s) {
    const gen_request *q = &s->copy.req;
    uint64_t in = q->total_timeout_us ? q->total_timeout_us : UINT64_MAX;
    if (q->first_token_timeout_us && !(s->row && s->row->t_first_us) && q->first_token_timeout_us < in)
        in = q->first_token_timeout_us;
    if (q->queue_timeout_us && !s->row && q->queue_timeout_us < in) in = q->queue_timeout_us;
    return in > UINT64_MAX - s->t_submit_us ? UINT64_MAX : s->t_submit_us + in;
}

static void sweep_row(executor *x, row *r, uint64_t now) {
    cancel_reason why = executor_overdue(r->s, now);
    uint64_t due = executor_due(r->s);
    if (due < x->deadline_us) x->deadline_us = due;
    if (why == CANCEL_NONE && r->phase == ROW_PAUSED && !r->collect) {
        uint64_t read = session_last_read(r->s), idle = (read > r->t_paused_us ? read : r->t_paused_us) + x->opt.idle_timeout_us;
        if (idle <= now) why = CANCEL_IDLE_TIMEOUT;
        else if (idle < x->idle_due_us) x->idle_due_us = idle;
    }
    if (why != CANCEL_NONE) executor_cancel(x, r->s, why);
}

uint64_t executor_sweep(executor *x) {
    uint64_t now = hd_now_us(x->opt.clock), pins_due = pins_sweep(x, now), due;
    if (now >= x->deadline_us || now >= x->idle_due_us) {
        x->deadline_us = x->idle_due_us = UINT64_MAX;
        for (uint32_t i = 0; i < x->n_rows; i++) sweep_row(x, x->rows[i], now);
    }
    executor_evict_ended(x);
    due = x->deadline_us < x->idle_due_us ? x->deadline_us : x->idle_due_us;
    return due < pins_due ? due : pins_due;
}

#ifdef HD_DEBUG
/* Of pages that are the row's own. */
static uint64_t own_bytes(const executor *x, const row *r) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < x->n_groups; g++)
        for (uint32_t i = r->first_page[g] > r->n_shared ? r->first_page[g] : r->n_shared; i < r->n_pages[g]; i++)
            bytes += kv_page_bytes(x->kv, g);
    return bytes;
}

/* Of pages of the tree that its windows see. */
static uint64_t windowed_bytes(const executor *x, const row *r) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < x->n_groups; g++)
        for (uint32_t i = r->first_page[g]; x->info->groups[g].window && i < r->n_shared; i++) bytes += kv_page_bytes(x->kv, g);
    return bytes;
}
#endif

void executor_check_invariants(const executor *x) {
#ifdef HD_DEBUG
    uint64_t own = 0, reserved = 0;
    prefix_stats st = prefix_look(x->tree);
    kv_check(x->kv);
    prefix_check(x->tree);
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const row *r = x->rows[i];
        own += own_bytes(x, r);
        HD_ASSERT(r->held_bytes == own_bytes(x, r) + windowed_bytes(x, r));
        reserved += r->reserved_bytes;
        HD_ASSERT(r->held_bytes <= r->reserved_bytes);
        HD_ASSERT(r->n_done <= r->n_tokens && r->n_tokens == r->n_prompt + r->n_generated);
        HD_ASSERT(r->n_generated <= r->cap_generated);
        HD_ASSERT(i == 0 || goes_before(x->rows[i - 1], r));
    }
    HD_ASSERT(own + st.bytes == kv_used_bytes(x->kv));
    HD_ASSERT(reserved == x->reserved_bytes && executor_committed(x) <= x->opt.kv_budget_bytes);
#else
    (void)x;
#endif
}
