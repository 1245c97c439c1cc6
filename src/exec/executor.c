/* executor.c - see executor.h.  Read: executor_open, executor_admit, executor_step, then pages and preemption. */
#include "exec/executor.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/topology.h"
#include "exec/engine_int.h"

#include <stdio.h>
#include <string.h>

/* ---- sizes ---- */

static uint32_t pages_for(uint32_t n_tokens, uint32_t page_tokens) {
    return n_tokens / page_tokens + (n_tokens % page_tokens != 0);
}

/* Pages of group g that a row of n_tokens can hold at once: all, or those a window and one segment touch. */
static uint32_t max_held_pages(const executor *x, uint32_t g, uint32_t n_tokens) {
    uint32_t all = pages_for(n_tokens, x->opt.page_tokens), window = x->info->groups[g].window, some;
    uint64_t span = (uint64_t)window + x->max_step_tokens;
    if (!window || span >= n_tokens) return all;
    some = pages_for((uint32_t)span, x->opt.page_tokens) + 1; /* a span may begin inside a page */
    return some < all ? some : all;
}

uint64_t executor_project(const executor *x, uint32_t n_tokens) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < x->n_groups; g++) bytes += max_held_pages(x, g, n_tokens) * kv_page_bytes(x->kv, g);
    return bytes;
}

static void fill_defaults(executor *x, const engine_options *opt) {
    engine_options *o = &x->opt;
    uint64_t limit = hd_memory_limit(), weights = x->info->weight_bytes;
    *o = *opt;
    if (!o->max_rows) o->max_rows = 16;
    if (!o->max_queued) o->max_queued = 256;
#ifdef HD_HOSTILE
    if (!o->step_tokens) o->step_tokens = 3;
    if (!o->page_tokens) o->page_tokens = 2;
#endif
    if (!o->step_tokens) o->step_tokens = 256;
    if (!o->default_max_tokens) o->default_max_tokens = 512;
    if (!o->page_tokens) o->page_tokens = 64;
    if (!o->ctx || o->ctx > x->info->ctx_train) o->ctx = x->info->ctx_train;
    if (!o->kv_budget_bytes) o->kv_budget_bytes = limit > weights ? (limit - weights) / 2 : limit / 8;
    if (!o->idle_timeout_us) o->idle_timeout_us = 30u * 1000000;
    if (!o->stuck_timeout_us) o->stuck_timeout_us = 120u * 1000000;
    if (!o->clock) o->clock = &hd_clock_real;
    x->max_step_tokens = o->step_tokens > o->max_rows ? o->step_tokens : o->max_rows;
    x->max_logits = o->max_rows + PROMPT_LOGITS;
}

static hd_status check_options(const engine_options *o, hd_err *err) {
    if (o->max_rows > 4096) return hd_fail_field(err, HD_INVALID, "max-rows", "max-rows must be at most 4096");
    if (o->step_tokens > 65536) return hd_fail_field(err, HD_INVALID, "step-tokens", "step-tokens must be at most 65536");
    if (o->page_tokens & (o->page_tokens - 1) || o->page_tokens > 4096)
        return hd_fail_field(err, HD_INVALID, "page-tokens", "page-tokens must be a power of two up to 4096");
    if (o->ctx < 2) return hd_fail_field(err, HD_INVALID, "ctx", "a context of %u tokens is too small", o->ctx);
    return HD_OK;
}

/* The longest row that the budget holds, at most opt.ctx. */
static hd_status bound_context(executor *x, hd_err *err) {
    uint32_t lo = 1, hi = x->opt.ctx;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (executor_project(x, mid) <= x->opt.kv_budget_bytes) lo = mid;
        else hi = mid - 1;
    }
    if (lo < 2 || executor_project(x, lo) > x->opt.kv_budget_bytes)
        return hd_fail_field(err, HD_INVALID, "kv-budget", "a budget of %llu bytes does not hold one row (%llu bytes for 2 tokens)",
                             (unsigned long long)x->opt.kv_budget_bytes, (unsigned long long)executor_project(x, 2));
    x->opt.ctx = lo;
    return HD_OK;
}

hd_status executor_open(executor *x, model *m, const engine_options *opt, hd_err *err) {
    uint64_t page_bytes[MODEL_MAX_GROUPS];
    step_limits lim;
    hd_status st;
    memset(x, 0, sizeof *x);
    buf_init(&x->text_a, 1 << 20);
    buf_init(&x->text_b, 2 << 20);
    x->m = m;
    x->info = model_get(m);
    x->n_groups = x->info->n_groups;
    fill_defaults(x, opt);
    if ((st = check_options(&x->opt, err))) return st;
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (!(page_bytes[g] = model_page_bytes(m, g, x->opt.page_tokens, x->opt.kv_type)))
            return hd_fail_field(err, HD_UNSUPPORTED, "kv-type", "this KV type is not supported");
    if ((st = kv_open(&x->kv, x->opt.kv_budget_bytes, x->n_groups, page_bytes, err)) || (st = bound_context(x, err)))
        goto fail;
    x->max_pages = pages_for(x->opt.ctx, x->opt.page_tokens);
    lim = (step_limits){x->max_step_tokens, x->opt.max_rows, x->max_logits, x->max_step_tokens, x->opt.ctx, x->opt.page_tokens, x->opt.kv_type};
    if ((st = model_plan(m, &lim, err))) goto fail;
    x->rows = hd_calloc(x->opt.max_rows, sizeof *x->rows);
    x->segs = hd_calloc(x->opt.max_rows, sizeof *x->segs);
    x->seg_rows = hd_calloc(x->opt.max_rows, sizeof *x->seg_rows);
    x->sample_work = hd_alloc_aligned(64, sampler_work_bytes(x->info->n_vocab));
    if (x->rows && x->segs && x->seg_rows && x->sample_work) return HD_OK;
    st = hd_fail(err, HD_NOMEM, "engine: no memory");
fail:
    executor_close(x);
    return st;
}

void executor_close(executor *x) {
    HD_ASSERT(!x->n_rows);
    kv_close(x->kv);
    hd_free(x->rows);
    hd_free(x->segs);
    hd_free(x->seg_rows);
    hd_free_aligned(x->sample_work);
    buf_deinit(&x->text_a);
    buf_deinit(&x->text_b);
    memset(x, 0, sizeof *x);
}

static const gen_method *find_method(const char *name) {
    static const gen_method *const built_in[] = {&method_autoregressive, &method_embedding};
    if (!name) return built_in[0];
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (!strcmp(built_in[i]->name, name)) return built_in[i];
    return NULL;
}

hd_status executor_check(const executor *x, const gen_request *req, hd_err *err) {
    uint32_t ctx = x->opt.ctx;
    const gen_method *m = find_method(req->method);
    if (!m) return hd_fail_field(err, HD_INVALID, "method", "there is no method '%.60s'", req->method);
    if (!req->n_prompt) return hd_fail_field(err, HD_INVALID, "prompt", "the prompt is empty");
    if (req->n_prompt > ctx || (req->n_prompt == ctx && req->max_tokens))
        return hd_fail_field(err, HD_NEVER_FITS, "prompt",
                             "the prompt has %zu tokens; the context holds %u, one of them for the answer", req->n_prompt, ctx);
    for (size_t i = 0; i < req->n_prompt; i++)
        if (req->prompt[i] < 0 || (uint32_t)req->prompt[i] >= x->info->n_vocab)
            return hd_fail_field(err, HD_INVALID, "prompt", "token id %d at index %zu is outside the vocabulary of %u",
                                 req->prompt[i], i, x->info->n_vocab);
    if (m->check) {
        hd_status st = m->check(req, x->info, err);
        if (st) return st;
    }
    for (size_t i = 0; i < req->n_stop_ids; i++)
        if (req->stop_ids[i] < 0 || (uint32_t)req->stop_ids[i] >= x->info->n_vocab)
            return hd_fail_field(err, HD_INVALID, "stop_token_ids", "token id %d is outside the vocabulary", req->stop_ids[i]);
    return HD_OK;
}

/* ---- rows ---- */

static void drop_pages(row *r) {
    executor *x = r->x;
    for (uint32_t g = 0; g < x->n_groups; g++) {
        for (uint32_t i = r->first_page[g]; i < r->n_pages[g]; i++) {
            kv_drop(x->kv, g, r->pages[g][i]);
            r->pages[g][i] = NULL;
        }
        r->n_pages[g] = r->first_page[g] = 0;
    }
    r->held_bytes = 0;
    r->n_done = 0;
}

static void row_free(row *r) {
    if (!r) return;
    if (r->method && r->mstate) r->method->close(r);
    model_row_close(r->x->m, r->model_state);
    for (uint32_t g = 0; g < MODEL_MAX_GROUPS; g++) hd_free(r->pages[g]);
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
    r->method = find_method(req->method);
    r->n_prompt = r->n_tokens = (uint32_t)req->n_prompt;
    r->cap_generated = req->max_tokens < room ? req->max_tokens : room;
    r->cap_tokens = r->n_prompt + r->cap_generated;
    r->end.stop_index = -1;
    if (!(r->tokens = hd_reallocarray(NULL, r->cap_tokens, sizeof *r->tokens))) goto oom;
    memcpy(r->tokens, req->prompt, req->n_prompt * sizeof *r->tokens);
    for (uint32_t g = 0; g < x->n_groups; g++)
        if (!(r->pages[g] = hd_calloc(pages_for(r->cap_tokens, x->opt.page_tokens), sizeof **r->pages))) goto oom;
    if ((st = session_prepare(s, err)) || (st = model_row_open(x->m, req->prompt, req->n_prompt, &r->model_state, err)) ||
        (st = r->method->open(r, err))) {
        row_free(r);
        return st;
    }
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

static void cancel_row(row *r, cancel_reason why) {
    if (r->ended) return;
    row_end(r, FINISH_CANCELLED);
    r->end.reason = why;
}

/* Tokens that admission counts: a named cap in full; without one the default, and more as it grows. */
static uint32_t projected_tokens(const executor *x, const session *s) {
    const gen_request *req = &s->copy.req;
    uint32_t have = s->row ? s->row->n_tokens : (uint32_t)req->n_prompt, room = x->opt.ctx - have;
    uint32_t more = req->max_tokens == GEN_NO_CAP ? x->opt.default_max_tokens
                                                  : req->max_tokens - (have - (uint32_t)req->n_prompt);
    return have + (more < room ? more : room);
}

hd_status executor_admissible(const executor *x, const session *s, const char **why) {
    if (x->n_rows >= x->opt.max_rows) return *why = "rows", HD_FULL;
    if (x->reserved_bytes + executor_project(x, projected_tokens(x, s)) > x->opt.kv_budget_bytes)
        return *why = "pages", HD_FULL;
    return HD_OK;
}

hd_status executor_admit(executor *x, session *s, const char **why) {
    uint64_t bytes = executor_project(x, projected_tokens(x, s)), now = hd_now_us(x->opt.clock);
    row *r = s->row;
    hd_err err;
    if (executor_admissible(x, s, why) == HD_FULL) return HD_FULL;
    if (!r) {
        hd_status st = row_new(&r, x, s, &err);
        if (st) {
            executor_end_waiting(x, s, FINISH_FAILED, CANCEL_NONE, &err);
            return st;
        }
        r->t_admit_us = now;
        s->row = r;
    }
    r->phase = ROW_PREFILL;
    r->reserved_bytes = bytes;
    x->reserved_bytes += bytes;
    x->rows[x->n_rows++] = r;
    /* Admission order is submit order: a row that comes back goes before the younger ones. */
    for (uint32_t i = x->n_rows - 1; i > 0 && x->rows[i - 1]->order > r->order; i--) {
        x->rows[i] = x->rows[i - 1];
        x->rows[i - 1] = r;
    }
    atomic_store_explicit(&s->admitted, true, memory_order_relaxed);
    return HD_OK;
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
    t->generated_tokens = r->n_generated + end->ended_by_eos;
    t->queue_us = r->t_admit_us - s->t_submit_us;
    t->prefill_us = (r->t_first_us ? r->t_first_us : now) - r->t_admit_us;
    t->decode_us = r->t_first_us ? now - r->t_first_us : 0;
    t->paused_us = r->paused_us;
    t->preemptions = r->preemptions;
}

static void count_end(executor *x, const gen_event *end) {
    x->finished[end->finish]++;
    if (end->finish == FINISH_CANCELLED) x->cancelled[end->reason]++;
    x->prompt_tokens += end->stats.prompt_tokens;
}

static void settle(executor *x, session *s, row *r, gen_event *end) {
    uint64_t now = hd_now_us(x->opt.clock);
    fill_stats(end, s, r, now);
    count_end(x, end);
    if (r) x->service_us += ((double)(now - r->t_admit_us) - x->service_us) * 0.1;
    engine_forget(s->engine, s);
    s->row = NULL;
    session_finish(s, end, buf_cstr(&x->text_b), x->text_b.len);
}

void executor_end_waiting(executor *x, session *s, finish_reason why, cancel_reason reason, const hd_err *err) {
    row *r = s->row;
    gen_event end = {.kind = EV_DONE, .finish = why, .reason = reason, .stop_index = -1};
    if (err) end.err = *err;
    buf_clear(&x->text_b);
    if (r && r->method->tail) r->method->tail(r, &x->text_b);
    settle(x, s, r, &end);
    row_free(r);
}

/* Publish is done; settle, then evict. */
static void finish_row(executor *x, row *r) {
    r->end.kind = EV_DONE;
    buf_clear(&x->text_b);
    if (r->method->tail) r->method->tail(r, &x->text_b);
    settle(x, r->s, r, &r->end);
    drop_pages(r);
    x->reserved_bytes -= r->reserved_bytes;
    row_free(r);
}

static void evict_ended(executor *x) {
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

uint64_t executor_sweep(executor *x) {
    uint64_t now = hd_now_us(x->opt.clock), next = UINT64_MAX;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        row *r = x->rows[i];
        const gen_request *q = &r->s->copy.req;
        int why = atomic_load(&r->s->cancel);
        if (why == CANCEL_NONE) why = (int)executor_overdue(r->s, now);
        if (why == CANCEL_NONE && r->phase == ROW_PAUSED) {
            uint64_t due = session_last_read(r->s) + x->opt.idle_timeout_us;
            if (due <= now) why = CANCEL_IDLE_TIMEOUT;
            else if (due - now < next) next = due - now;
        }
        if (why != CANCEL_NONE) cancel_row(r, (cancel_reason)why);
        if (q->total_timeout_us || q->first_token_timeout_us) next = next < 10000 ? next : 10000;
    }
    evict_ended(x);
    for (session **at = &x->preempted; *at;) {
        session *s = *at;
        int why = atomic_load(&s->cancel);
        if (why == CANCEL_NONE) why = (int)executor_overdue(s, now);
        if (why == CANCEL_NONE) {
            at = &s->next_wait;
            continue;
        }
        *at = s->next_wait;
        executor_end_waiting(x, s, FINISH_CANCELLED, (cancel_reason)why, NULL);
    }
    return next;
}

/* ---- pages ---- */

/* Give a row's pages back; it waits at the head of the line and is computed again, to the same bits (law 1). */
static void preempt(executor *x, row *r) {
    session **at = &x->preempted;
    uint32_t i = 0;
    drop_pages(r);
    x->reserved_bytes -= r->reserved_bytes;
    r->reserved_bytes = 0;
    r->phase = ROW_PREEMPTED;
    r->preemptions++;
    x->preemptions++;
    while (x->rows[i] != r) i++;
    memmove(&x->rows[i], &x->rows[i + 1], (--x->n_rows - i) * sizeof *x->rows);
    while (*at && (*at)->order < r->order) at = &(*at)->next_wait;
    r->s->next_wait = *at;
    *at = r->s;
}

/* Pages for positions [0, n) in every group; the youngest rows give way, at last this row itself. */
static void take_pages(executor *x, row *r, uint32_t n) {
    uint64_t need = r->held_bytes;
    for (uint32_t g = 0; g < x->n_groups; g++) {
        uint32_t want = pages_for(n, x->opt.page_tokens);
        if (want > r->n_pages[g]) need += (want - r->n_pages[g]) * kv_page_bytes(x->kv, g);
    }
    while (need > r->reserved_bytes && x->reserved_bytes - r->reserved_bytes + need > x->opt.kv_budget_bytes) {
        row *youngest = x->rows[x->n_rows - 1];
        HD_ASSERT(x->n_rows > 1); /* one row alone always fits: executor_check */
        preempt(x, youngest);
        if (youngest == r) return;
    }
    if (need > r->reserved_bytes) {
        x->reserved_bytes += need - r->reserved_bytes;
        r->reserved_bytes = need;
    }
    for (uint32_t g = 0; g < x->n_groups; g++) {
        uint32_t want = pages_for(n, x->opt.page_tokens);
        while (r->n_pages[g] < want) {
            void *page = kv_take(x->kv, g);
            HD_ASSERT(page); /* reserved bytes cover it */
            r->pages[g][r->n_pages[g]++] = page;
            r->held_bytes += kv_page_bytes(x->kv, g);
        }
    }
}

/* Pages that no later query of a sliding group can see. */
static void drop_behind_window(executor *x, row *r) {
    for (uint32_t g = 0; g < x->n_groups; g++) {
        uint32_t window = x->info->groups[g].window, first_seen;
        if (!window || r->n_done + 1 <= window) continue;
        first_seen = (r->n_done + 1 - window) / x->opt.page_tokens; /* the next query sits at n_done */
        for (; r->first_page[g] < first_seen && r->first_page[g] < r->n_pages[g]; r->first_page[g]++) {
            kv_drop(x->kv, g, r->pages[g][r->first_page[g]]);
            r->pages[g][r->first_page[g]] = NULL;
            r->held_bytes -= kv_page_bytes(x->kv, g);
        }
    }
}

/* ---- the step ---- */

static void note_pause(executor *x, row *r, bool paused) {
    uint64_t now = hd_now_us(x->opt.clock);
    if (paused && r->phase != ROW_PAUSED) {
        r->phase = ROW_PAUSED;
        r->t_paused_us = now;
    } else if (!paused && r->phase == ROW_PAUSED) {
        r->paused_us += now - r->t_paused_us;
        r->phase = r->n_done < r->n_prompt ? ROW_PREFILL : ROW_DECODE;
    }
}

typedef struct {
    uint32_t tokens, logits; /* left for this step */
} step_budget;

static bool plan_row(executor *x, row *r, step_budget *left, uint32_t max_tokens, uint32_t max_logits, uint32_t n_segs) {
    segment *g = &x->segs[n_segs];
    uint32_t room = session_room(r->s);
    memset(g, 0, sizeof *g);
    note_pause(x, r, room == 0);
    if (!room) return false;
    if (room < max_tokens && (r->s->copy.req.prompt_logprobs || r->s->copy.req.prompt_logits)) max_tokens = room;
    if (!r->method->plan(r, &(step_grant){max_tokens, max_logits}, g)) return false;
    left->tokens -= g->n < left->tokens ? g->n : left->tokens;
    left->logits -= g->n - g->first_logits;
    x->seg_rows[n_segs] = r;
    r->planned = n_segs;
    return true;
}

/* Decoding rows first (they take one token each, even past the budget), then prefill in admission order; each later
 * prefilling row keeps one token, so that every running row advances in every step. */
static uint32_t plan_rows(executor *x) {
    step_budget left = {x->opt.step_tokens, x->max_logits};
    uint32_t n = 0, prefilling = 0;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        row *r = x->rows[i];
        r->planned = ROW_UNPLANNED;
        if (r->n_tokens - r->n_done > 1) prefilling++;
        else n += plan_row(x, r, &left, 1, 1, n);
    }
    for (uint32_t i = 0; i < x->n_rows && prefilling; i++) {
        row *r = x->rows[i];
        if (r->n_tokens - r->n_done <= 1) continue;
        prefilling--;
        n += plan_row(x, r, &left, left.tokens > prefilling ? left.tokens - prefilling : 1, left.logits - prefilling, n);
    }
    return n;
}

/* Take pages for every planned segment, oldest row first: a row is only ever preempted for an older one, or gives way
 * itself.  Rows that lost their pages drop out of the step. */
static uint32_t plan_pages(executor *x, uint32_t n) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        row *r = x->rows[i];
        if (r->planned != ROW_UNPLANNED) take_pages(x, r, x->segs[r->planned].pos0 + x->segs[r->planned].n);
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
    r->n_done += g->n;
    HD_ASSERT(r->n_done <= r->n_tokens);
    atomic_store_explicit(&r->s->progress_done, r->n_done < r->n_prompt ? r->n_done : r->n_prompt, memory_order_relaxed);
    if (r->n_done >= r->n_prompt) r->phase = ROW_DECODE;
    r->method->consume(r, g);
    if (!r->ended) drop_behind_window(x, r);
}

/* A step failed as a whole: run its rows alone.  Those that fail alone end; the others lose nothing. */
static void run_alone(executor *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        segment g = x->segs[i];
        step one = {&g, 1, g.n, NULL};
        uint32_t bad;
        hd_err err;
        if (model_forward(x->m, &one, &bad, &err)) row_fail(x->seg_rows[i], &err);
        else consume(x, x->seg_rows[i], &g);
    }
}

bool executor_step(executor *x) {
    uint32_t n = plan_pages(x, plan_rows(x)), bad;
    step st = {x->segs, n, 0, NULL};
    hd_err err;
    if (!n) return false;
    for (uint32_t i = 0; i < n; i++) st.n_tokens += x->segs[i].n;
    HD_ASSERT(st.n_tokens <= x->max_step_tokens);
    if (model_forward(x->m, &st, &bad, &err)) {
        if (n == 1) row_fail(x->seg_rows[0], &err);
        else run_alone(x, n);
    } else {
        for (uint32_t i = 0; i < n; i++) consume(x, x->seg_rows[i], &x->segs[i]);
    }
    x->steps++;
    x->step_tokens_last = st.n_tokens;
    evict_ended(x);
    executor_check_invariants(x);
    return true;
}

void executor_check_invariants(const executor *x) {
#ifdef HD_DEBUG
    uint64_t held = 0, reserved = 0;
    kv_check(x->kv);
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const row *r = x->rows[i];
        held += r->held_bytes;
        reserved += r->reserved_bytes;
        HD_ASSERT(r->held_bytes <= r->reserved_bytes);
        HD_ASSERT(r->n_done <= r->n_tokens && r->n_tokens == r->n_prompt + r->n_generated);
        HD_ASSERT(r->n_generated <= r->cap_generated);
        HD_ASSERT(i == 0 || x->rows[i - 1]->order < r->order);
    }
    HD_ASSERT(held == kv_used_bytes(x->kv));
    HD_ASSERT(reserved == x->reserved_bytes && reserved <= x->opt.kv_budget_bytes);
#else
    (void)x;
#endif
}
