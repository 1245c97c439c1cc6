/* plan.c - see plan.h. */
#include "exec/plan.h"
#include "decode/sampler.h"
#include "exec/executor.h"
#include "state/prefix.h"

enum { MAX_SAMPLERS = 8 }; /* each takes 24 bytes of memory a token of the vocabulary */

/* A time that may be "never": far off, and still safe to add to a clock three times (line.c). */
static uint64_t far(uint64_t us) { return us < UINT64_MAX / 8 ? us : UINT64_MAX / 8; }

static void fill_defaults(engine_options *o, const model_info *in, uint64_t limit) {
    uint64_t weights = in->weight_bytes;
    if (!o->max_rows) o->max_rows = 16;
    if (!o->max_queued) o->max_queued = 256;
#ifdef HD_HOSTILE
    if (!o->step_tokens) o->step_tokens = 3;
    if (!o->page_tokens) o->page_tokens = 2;
#endif
    if (!o->step_tokens) o->step_tokens = 256;
    if (!o->default_max_tokens) o->default_max_tokens = 512;
    if (!o->page_tokens) o->page_tokens = 64;
    if (!o->kv_type) o->kv_type = KV_F16;
    if (!o->kv_type_sliding) o->kv_type_sliding = o->kv_type;
    if (!o->ctx || o->ctx > in->ctx_train) o->ctx = in->ctx_train;
    if (!o->kv_budget_bytes) o->kv_budget_bytes = limit > weights ? (limit - weights) / 2 : limit / 8;
    if (!o->pin_budget_bytes) o->pin_budget_bytes = o->kv_budget_bytes / 4;
    if (o->pin_budget_bytes > o->kv_budget_bytes / 2) o->pin_budget_bytes = o->kv_budget_bytes / 2; /* rows come first */
    if (!o->step_target_us) o->step_target_us = 20000;
    if (!o->idle_timeout_us) o->idle_timeout_us = 30u * 1000000;
    if (!o->stuck_timeout_us) o->stuck_timeout_us = 120u * 1000000;
    if (!o->age_us) o->age_us = 10u * 1000000;
    o->idle_timeout_us = far(o->idle_timeout_us);
    o->stuck_timeout_us = far(o->stuck_timeout_us);
    o->age_us = far(o->age_us);
    if (!o->collect_tokens) o->collect_tokens = 65536;
    if (!o->max_leases_queued) o->max_leases_queued = 64;
    if (!o->clock) o->clock = &hd_clock_real;
}

static hd_status check_options(const engine_options *o, hd_err *err) {
    if (o->max_rows > 4096) return hd_fail_field(err, HD_INVALID, "max-rows", "max-rows must be at most 4096");
    if (o->max_queued > ENGINE_MAX_QUEUED)
        return hd_fail_field(err, HD_INVALID, "max-queued", "max-queued must be at most %d", ENGINE_MAX_QUEUED);
    if (o->step_tokens > 65536) return hd_fail_field(err, HD_INVALID, "step-tokens", "step-tokens must be at most 65536");
    if (o->page_tokens & (o->page_tokens - 1) || o->page_tokens > 4096)
        return hd_fail_field(err, HD_INVALID, "page-tokens", "page-tokens must be a power of two up to 4096");
    if (o->ctx < 2) return hd_fail_field(err, HD_INVALID, "ctx", "a context of %u tokens is too small", o->ctx);
    return HD_OK;
}

hd_status engine_plan_make(engine_plan *p, engine_options *o, const model *m, uint64_t memory_limit, hd_err *err) {
    const model_info *in = model_get(m);
    hd_status st;
    *p = (engine_plan){.n_groups = in->n_groups};
    fill_defaults(o, in, memory_limit);
    if ((st = check_options(o, err))) return st;
    p->page_tokens = o->page_tokens;
    p->max_step_tokens = o->step_tokens > o->max_rows ? o->step_tokens : o->max_rows;
    p->max_logits = o->max_rows + PROMPT_LOGITS;
    p->lim = (step_limits){p->max_step_tokens, o->max_rows, p->max_logits, p->max_step_tokens, o->ctx, o->page_tokens, {0}};
    for (uint32_t g = 0; g < p->n_groups; g++) {
        p->window[g] = in->groups[g].window;
        p->lim.kv_type[g] = p->window[g] ? o->kv_type_sliding : o->kv_type;
        if (!(p->page_bytes[g] = model_page_bytes(m, g, o->page_tokens, p->lim.kv_type[g])) ||
            !(p->page_stride[g] = kv_stride(p->page_bytes[g])))
            return hd_fail_field(err, HD_UNSUPPORTED, "kv-type", "kv-type must be " KV_SCHEME_NAMES);
    }
    return HD_OK;
}

/* Pages of group g that a row of n_tokens can hold at once: all, or those a window and one segment touch. */
static uint32_t max_held_pages(const engine_plan *p, uint32_t g, uint32_t n_tokens) {
    uint32_t all = pages_for(n_tokens, p->page_tokens), some;
    uint64_t span = (uint64_t)p->window[g] + p->max_step_tokens;
    if (!p->window[g] || span >= n_tokens) return all;
    some = pages_for((uint32_t)span, p->page_tokens) + 1; /* a span may begin inside a page */
    return some < all ? some : all;
}

uint64_t engine_plan_row_bytes(const engine_plan *p, uint32_t n_tokens) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) bytes += max_held_pages(p, g, n_tokens) * p->page_stride[g];
    return bytes;
}

uint32_t engine_plan_longest(const engine_plan *p, uint64_t budget, uint32_t rows, uint32_t max_tokens) {
    uint32_t lo = 1, hi = max_tokens;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (engine_plan_row_bytes(p, mid) <= budget / rows) lo = mid;
        else hi = mid - 1;
    }
    return lo < 2 ? 0 : lo;
}

uint64_t engine_plan_rows(const engine_plan *p, uint64_t budget, uint32_t n_tokens) {
    return budget / engine_plan_row_bytes(p, n_tokens);
}

hd_status engine_plan_bound(engine_plan *p, engine_options *o, hd_err *err) {
    uint32_t ctx = engine_plan_longest(p, o->kv_budget_bytes, 1, o->ctx);
    if (!ctx)
        return hd_fail_field(err, HD_INVALID, "kv-budget",
                             "kv-budget must be at least %llu bytes for this model, not %llu: one request needs %s of keys and values (%u tokens%s)",
                             (unsigned long long)engine_plan_row_bytes(p, 2), (unsigned long long)o->kv_budget_bytes,
                             p->n_groups > 1 ? "a page of each kind" : p->page_tokens > 1 ? "a page" : "two pages", p->page_tokens,
                             p->n_groups > 1 ? "; full attention, sliding window" : "");
    o->ctx = p->lim.ctx = ctx;
    return HD_OK;
}

unsigned engine_sample_members(const model_info *in) { return in->n_threads < MAX_SAMPLERS ? in->n_threads : MAX_SAMPLERS; }
size_t engine_sample_bytes(const model_info *in) { return (sampler_work_bytes(in->n_vocab) + 63) & ~(size_t)63; }

uint64_t engine_plan_tables_bytes(const engine_plan *p, const engine_options *o, const model_info *in) {
    uint64_t bytes = (uint64_t)engine_sample_members(in) * engine_sample_bytes(in), nodes = 0, n_pages = 0, row_pages = pages_for(o->ctx, p->page_tokens), rows;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint64_t n = o->kv_budget_bytes / p->page_stride[g];
        bytes += kv_tables_bytes(o->kv_budget_bytes, p->page_stride[g]);
        n_pages += n;
        if (n > nodes) nodes = n;
    }
    if (!o->no_cache) bytes += prefix_tables_bytes(nodes, n_pages, p->page_tokens);
    /* A budget that holds fewer rows of the full context holds as many tokens in shorter ones. */
    rows = engine_plan_rows(p, o->kv_budget_bytes, o->ctx) + 1;
    if (rows > o->max_rows) rows = o->max_rows;
    bytes += rows * (o->ctx * sizeof(int32_t) * 2 + row_pages * sizeof(void *) * (p->n_groups + 1));
    /* Who waits, and who runs, has its prompt in the session too. */
    bytes += (o->max_queued + (uint64_t)o->max_rows) * (o->ctx * sizeof(int32_t) + session_waiting_bytes());
    return bytes + o->max_rows * session_bytes();
}
