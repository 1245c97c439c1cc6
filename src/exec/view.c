/* view.c - the engine as seen from outside: copies, so that nobody who looks waits for a step. */
#include "base/mem.h"
#include "exec/engine_int.h"

#include <stdlib.h>
#include <string.h>

enum { VIEW_EVERY_US = 5000, STUCK_MIN_US = 10000000, STUCK_STEPS = 20 };

static void view_row(const executor *x, const row *r, row_view *w) {
    memset(w, 0, sizeof *w);
    memcpy(w->id, r->s->copy.id, sizeof w->id);
    w->phase = r->phase;
    w->method = r->method->name;
    w->priority = r->s->copy.req.priority;
    w->prompt_tokens = r->n_prompt;
    w->prompt_done = r->n_done < r->n_prompt ? r->n_done : r->n_prompt;
    w->generated_tokens = r->n_generated;
    w->cached_tokens = r->n_taken;
    w->cache_miss = prefix_miss_name(r->miss);
    w->cache_miss_at = r->miss_at;
    w->preemptions = r->preemptions;
    for (uint32_t g = 0; g < x->n_groups; g++) w->pages += r->n_pages[g] - r->first_page[g];
}

/* Until the first row ends: rows with a cap at the pace of steps, at most what rows usually take. */
static double first_free(const executor *x) {
    double best = 0;
    if (x->n_rows < x->opt.max_rows) return 0;
    for (uint32_t i = 0; i < x->n_rows; i++) {
        const row *r = x->rows[i];
        uint32_t left = r->cap_generated - r->n_generated;
        double us;
        if (left > x->opt.default_max_tokens) left = x->opt.default_max_tokens;
        us = left * x->step_us;
        if (x->service_us > 0 && us > x->service_us) us = x->service_us;
        if (!i || us < best) best = us;
    }
    return best;
}

void engine_copy_view(engine *e, bool stepped, uint64_t step_us, bool force) {
    executor *x = &e->x;
    engine_view *v = &e->view;
    uint64_t now = hd_now_us(e->opt.clock);
    prefix_stats st = prefix_look(x->tree);
    bool work = false;
    for (uint32_t i = 0; i < x->n_rows && !work; i++) work = x->rows[i]->phase != ROW_PAUSED;
    atomic_store(&e->has_work, work);
    atomic_store(&e->x.t_progress_us, now);
    atomic_store(&e->step_us_max, x->step_us_max);
    pthread_mutex_lock(&e->view_mu);
    if (stepped) e->step_ms[e->n_step_ms++ % STEP_TIMES] = (double)step_us / 1000;
    if (!force && now - e->t_view_us < VIEW_EVERY_US) {
        pthread_mutex_unlock(&e->view_mu);
        return;
    }
    e->t_view_us = now;
    e->n_rows = 0;
    for (uint32_t i = 0; i < x->n_rows; i++) view_row(x, x->rows[i], &e->rows[e->n_rows++]);
    v->running = x->n_rows;
    v->pages_used = kv_used_pages(x->kv) - st.cached_pages;
    v->pages_cached = st.cached_pages;
    v->pages_shared = st.extra_holds;
    v->pages_evicted = st.evicted_pages;
    v->pages_pinned = st.pinned_pages;
    v->kv_bytes_pinned = st.pinned_bytes;
    v->pins = x->n_pins;
    v->kv_bytes_used = kv_used_bytes(x->kv) - st.cached_bytes;
    v->kv_bytes_cached = st.cached_bytes;
    v->step_tokens_last = x->step_tokens_last;
    e->service_us = x->service_us;
    e->first_free_us = first_free(x);
    pthread_mutex_unlock(&e->view_mu);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *v, uint32_t n) {
    double t[STEP_TIMES];
    if (!n) return 0;
    memcpy(t, v, n * sizeof *t);
    qsort(t, n, sizeof *t, by_value);
    return t[n / 2];
}

/* ---- the line ---- */

typedef struct {
    const session *s;
    uint32_t rank;
    uint64_t start;
} waiter;

typedef struct {
    const engine *e;
    waiter *w;
    uint32_t n, cap;
    uint64_t now;
} collector;

static void collect(void *ctx, session *s) {
    collector *c = ctx;
    const share *h = s->share;
    if (c->n == c->cap) return;
    c->w[c->n++] = (waiter){s, line_rank(&c->e->waiting, s, c->now), h->vtime > c->e->waiting.vnow ? h->vtime : c->e->waiting.vnow};
}

/* As line.c orders heads; a rough forecast for those behind them. */
static int by_turn(const void *pa, const void *pb) {
    const waiter *a = pa, *b = pb;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    if ((a->s->row != NULL) != (b->s->row != NULL)) return a->s->row ? -1 : 1;
    if (a->start != b->start && strcmp(a->s->copy.share, b->s->copy.share) != 0) return a->start < b->start ? -1 : 1;
    return a->s->order < b->s->order ? -1 : 1;
}

static void view_waiter(const engine *e, const waiter *w, bool first_of_rank, uint32_t place, uint64_t now, double service_us,
                        double first_free_us, row_view *v) {
    const session *s = w->s;
    memset(v, 0, sizeof *v);
    memcpy(v->id, s->copy.id, sizeof v->id);
    v->phase = s->row ? ROW_PREEMPTED : ROW_QUEUED;
    v->method = s->method->name;
    v->priority = s->copy.req.priority;
    v->prompt_tokens = (uint32_t)s->copy.req.n_prompt;
    v->wait_reason = first_of_rank && e->reason[w->rank] ? e->reason[w->rank] : first_of_rank ? "rows" : "order";
    v->waited_ms = (now - s->t_submit_us) / 1000;
    v->expected_wait_ms = (uint64_t)((first_free_us + service_us * place / e->opt.max_rows) / 1000);
}

static void view_line(engine *e, engine_view *out, double service_us, double first_free_us) {
    collector c = {e, NULL, 0, e->waiting.n_waiting, hd_now_us(e->opt.clock)};
    out->n_queue = 0;
    if (!out->queue || !c.cap || !(c.w = hd_reallocarray(NULL, c.cap, sizeof *c.w))) return;
    line_each(&e->waiting, collect, &c);
    qsort(c.w, c.n, sizeof *c.w, by_turn);
    for (uint32_t i = 0; i < c.n && i < out->cap_queue; i++)
        view_waiter(e, &c.w[i], !i || c.w[i - 1].rank != c.w[i].rank, i, c.now, service_us, first_free_us,
                    &out->queue[out->n_queue++]);
    hd_free(c.w);
}

static bool stuck(engine *e) {
    uint64_t limit = atomic_load(&e->step_us_max) * STUCK_STEPS, since = atomic_load(&e->x.t_progress_us);
    uint64_t now = hd_now_us(e->opt.clock);
    if (limit < STUCK_MIN_US) limit = limit ? STUCK_MIN_US : e->opt.stuck_timeout_us;
    if (limit > e->opt.stuck_timeout_us) limit = e->opt.stuck_timeout_us;
    return atomic_load(&e->has_work) && now > since && now - since > limit;
}

/* Not part of the copy: whoever has seen the end of a request finds it counted. */
static void count(const executor *x, engine_view *out) {
    out->steps = x->steps;
    out->finished_stop = x->finished[FINISH_STOP];
    out->finished_length = x->finished[FINISH_LENGTH];
    out->finished_failed = x->finished[FINISH_FAILED];
    for (size_t i = 0; i < sizeof out->cancelled / sizeof *out->cancelled; i++) out->cancelled[i] = x->cancelled[i];
    out->prompt_tokens_total = x->prompt_tokens;
    out->generated_tokens_total = x->generated_tokens;
    out->preemptions_total = x->preemptions;
    out->faults_contained = x->faults_contained;
    out->pauses_total = x->pauses;
}

bool engine_salt(const engine *e, uint8_t out[32]) { return e->opt.store && store_salt(e->opt.store, out); }

void engine_look(engine *e, engine_view *out) {
    row_view *rows = out->rows, *queue = out->queue;
    uint32_t cap_rows = out->cap_rows, cap_queue = out->cap_queue;
    double service_us, first_free_us;
    uint64_t page_bytes = 0;
    coordinator_view leases = coordinator_look(e->leases);
    pthread_mutex_lock(&e->view_mu);
    *out = e->view;
    out->rows = rows;
    out->queue = queue;
    out->cap_rows = cap_rows;
    out->cap_queue = cap_queue;
    out->n_rows = e->n_rows < cap_rows ? e->n_rows : cap_rows;
    if (rows) memcpy(rows, e->rows, out->n_rows * sizeof *rows);
    else out->n_rows = 0;
    out->step_ms_p50 = median(e->step_ms, e->n_step_ms < STEP_TIMES ? e->n_step_ms : STEP_TIMES);
    service_us = e->service_us;
    first_free_us = e->first_free_us;
    pthread_mutex_unlock(&e->view_mu);
    out->step_ms_max = (double)atomic_load(&e->step_us_max) / 1000;
    out->failed = stuck(e);
    count(&e->x, out);
    if ((out->has_store = e->opt.store != NULL)) store_stats(e->opt.store, &out->store);
    out->ctx = e->opt.ctx;
    out->max_rows = e->opt.max_rows;
    out->max_queued = e->opt.max_queued;
    out->step_tokens = e->opt.step_tokens;
    out->page_tokens = e->opt.page_tokens;
    out->kv_bytes_total = e->opt.kv_budget_bytes;
    out->kv_type = e->opt.kv_type;
    out->kv_type_sliding = e->opt.kv_type_sliding;
    out->leases_waiting = leases.waiting_exclusive + leases.exclusive_held;
    for (uint32_t g = 0; g < e->x.n_groups; g++) page_bytes += kv_page_bytes(e->x.kv, g);
    out->pages_total = e->opt.kv_budget_bytes / page_bytes * e->x.n_groups;
    pthread_mutex_lock(&e->mu);
    out->waiting = e->waiting.n_waiting;
    view_line(e, out, service_us, first_free_us);
    out->draining = e->draining;
    out->requests_total = e->requests_total;
    out->rejected_full = e->rejected_full;
    out->exclusive_total = e->exclusive_total;
    pthread_mutex_unlock(&e->mu);
    out->retry_after_ms = (uint64_t)((first_free_us + service_us * out->waiting / e->opt.max_rows) / 1000);
    if (out->retry_after_ms < 1000) out->retry_after_ms = 1000;
}
