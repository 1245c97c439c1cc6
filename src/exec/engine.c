/* engine.c - the thread around an executor: the waiting line, waking and sleeping, and looking from outside.
 *
 * mu guards the waiting line and the list of live sessions; it is held for list work only, never during a step.
 * wake_mu is a leaf: anyone may take it to say that there is something to do. */
#include "base/mem.h"
#include "exec/engine_int.h"
#include "exec/executor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { STEP_TIMES = 64 };

struct engine {
    executor x;
    engine_options opt; /* after defaults; read-only */
    pthread_t thread;

    pthread_mutex_t mu;
    session *wait_head, *wait_tail; /* by order */
    uint32_t n_waiting;
    session *live;                  /* not over, waiting or running */
    uint64_t next_order, next_id;
    bool draining, closing;
    uint64_t requests_total, rejected_full;
    const char *head_reason;        /* why the head of the line waits */

    pthread_mutex_t wake_mu;
    pthread_cond_t wake;
    bool woken;

    pthread_mutex_t view_mu;        /* guards the copy below, written after each step */
    row_view *rows;
    uint32_t n_rows;
    engine_view view;
    double step_ms[STEP_TIMES];
    uint32_t n_step_ms;
    double service_ms;              /* moving mean of admission to end */
    uint64_t t_progress_us;         /* last time a step finished or there was no work */
    bool has_work;
};

const hd_clock *engine_clock(const engine *e) { return e->opt.clock; }

void engine_wake(engine *e) {
    pthread_mutex_lock(&e->wake_mu);
    e->woken = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->wake_mu);
}

void engine_wake_cancel(engine *e) {
    engine_wake(e);
    model_interrupt(e->x.m);
}

static void sleep_until_woken(engine *e, uint64_t us) {
    struct timespec t;
    if (us < UINT64_MAX) {
        if (us > 3600u * 1000000ull) us = 3600u * 1000000ull;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_sec += (time_t)(us / 1000000);
        t.tv_nsec += (long)(us % 1000000 * 1000);
        if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    }
    pthread_mutex_lock(&e->wake_mu);
    while (!e->woken) {
        if (us == UINT64_MAX) pthread_cond_wait(&e->wake, &e->wake_mu);
        else if (pthread_cond_timedwait(&e->wake, &e->wake_mu, &t) == ETIMEDOUT) break;
    }
    e->woken = false;
    pthread_mutex_unlock(&e->wake_mu);
}

/* ---- the waiting line ---- */

static void push_waiting(engine *e, session *s) {
    s->next_wait = NULL;
    if (e->wait_tail) e->wait_tail->next_wait = s;
    else e->wait_head = s;
    e->wait_tail = s;
    e->n_waiting++;
}

static void link_live(engine *e, session *s) {
    s->next_live = e->live;
    s->prev_live = NULL;
    if (e->live) e->live->prev_live = s;
    e->live = s;
}

void engine_forget(engine *e, session *s) {
    pthread_mutex_lock(&e->mu);
    if (s->prev_live) s->prev_live->next_live = s->next_live;
    else e->live = s->next_live;
    if (s->next_live) s->next_live->prev_live = s->prev_live;
    pthread_mutex_unlock(&e->mu);
}

/* Take cancelled and overdue sessions out of the line; all of them when closing.  Returns them as a list. */
static session *take_dead(engine *e, uint64_t *next_deadline) {
    uint64_t now = hd_now_us(e->opt.clock);
    session *dead = NULL, **tail = &dead, *kept = NULL, *next;
    pthread_mutex_lock(&e->mu);
    next = e->wait_head;
    e->wait_head = e->wait_tail = NULL;
    e->n_waiting = 0;
    for (session *s = next; s; s = next) {
        int none = CANCEL_NONE;
        cancel_reason due = e->closing ? CANCEL_ENGINE_CLOSED : executor_overdue(s, now);
        const gen_request *q = &s->copy.req;
        next = s->next_wait;
        if (due != CANCEL_NONE) atomic_compare_exchange_strong(&s->cancel, &none, (int)due);
        if (atomic_load(&s->cancel) != CANCEL_NONE) {
            s->next_wait = NULL;
            *tail = s;
            tail = &s->next_wait;
        } else {
            push_waiting(e, s);
            if (q->queue_timeout_us || q->first_token_timeout_us || q->total_timeout_us) kept = s;
        }
    }
    pthread_mutex_unlock(&e->mu);
    if (kept && *next_deadline > 10000) *next_deadline = 10000; /* deadlines are kept to 10 ms */
    return dead;
}

/* FIFO with the head waiting: preempted rows first (they are older than anyone in the line), nobody overtakes. */
static void admit(engine *e) {
    executor *x = &e->x;
    const char *why = NULL;
    while (x->preempted) {
        session *s = x->preempted;
        if (executor_admit(x, s, &why) == HD_FULL) goto out;
        x->preempted = s->next_wait;
    }
    for (;;) {
        session *s;
        pthread_mutex_lock(&e->mu);
        s = e->wait_head;
        pthread_mutex_unlock(&e->mu);
        if (!s) break;
        /* Only this thread takes from the line, so the head stays the head meanwhile. */
        if (executor_admissible(x, s, &why) == HD_FULL) break;
        pthread_mutex_lock(&e->mu);
        e->wait_head = s->next_wait;
        if (!e->wait_head) e->wait_tail = NULL;
        e->n_waiting--;
        pthread_mutex_unlock(&e->mu);
        executor_admit(x, s, &why);
    }
out:
    pthread_mutex_lock(&e->mu);
    e->head_reason = why;
    pthread_mutex_unlock(&e->mu);
}

/* ---- the thread ---- */

static void view_row(const executor *x, const row *r, row_view *w) {
    memset(w, 0, sizeof *w);
    memcpy(w->id, r->s->copy.id, sizeof w->id);
    w->phase = r->phase;
    w->prompt_tokens = r->n_prompt;
    w->generated_tokens = r->n_generated;
    for (uint32_t g = 0; g < x->n_groups; g++) w->pages += r->n_pages[g] - r->first_page[g];
}

static void copy_view(engine *e, bool stepped, double ms) {
    executor *x = &e->x;
    engine_view *v = &e->view;
    pthread_mutex_lock(&e->view_mu);
    e->n_rows = 0;
    for (uint32_t i = 0; i < x->n_rows; i++) view_row(x, x->rows[i], &e->rows[e->n_rows++]);
    v->running = x->n_rows;
    /* Rows that gave way were admitted too; the copy holds max_rows in all. */
    for (const session *s = x->preempted; s && e->n_rows < e->opt.max_rows; s = s->next_wait)
        view_row(x, s->row, &e->rows[e->n_rows++]);
    v->pages_used = kv_used_pages(x->kv);
    v->kv_bytes_used = kv_used_bytes(x->kv);
    v->steps = x->steps;
    v->step_tokens_last = x->step_tokens_last;
    v->finished_stop = x->finished[FINISH_STOP];
    v->finished_length = x->finished[FINISH_LENGTH];
    v->finished_failed = x->finished[FINISH_FAILED];
    memcpy(v->cancelled, x->cancelled, sizeof v->cancelled);
    v->prompt_tokens_total = x->prompt_tokens;
    v->generated_tokens_total = x->generated_tokens;
    v->preemptions_total = x->preemptions;
    e->service_ms = x->service_us / 1000;
    if (stepped) e->step_ms[e->n_step_ms++ % STEP_TIMES] = ms;
    e->has_work = false; /* rows that wait for their readers are no work */
    for (uint32_t i = 0; i < x->n_rows; i++) e->has_work |= x->rows[i]->phase != ROW_PAUSED;
    e->t_progress_us = hd_now_us(e->opt.clock);
    pthread_mutex_unlock(&e->view_mu);
}

static bool closing(engine *e) {
    bool c;
    pthread_mutex_lock(&e->mu);
    c = e->closing;
    pthread_mutex_unlock(&e->mu);
    return c;
}

static void *engine_main(void *ctx) {
    engine *e = ctx;
    executor *x = &e->x;
    bool idle = false;
    for (;;) {
        uint64_t next = UINT64_MAX, row_next, t0;
        bool stepped, close = closing(e);
        for (session *s = take_dead(e, &next), *n; s; s = n) {
            n = s->next_wait;
            executor_end_waiting(x, s, FINISH_CANCELLED, (cancel_reason)atomic_load(&s->cancel), NULL);
        }
        row_next = executor_sweep(x);
        if (row_next < next) next = row_next;
        if (close && !x->n_rows && !x->preempted) break;
        if (!close) admit(e);
        copy_view(e, false, 0);
        t0 = hd_now_us(&hd_clock_real);
        stepped = executor_step(x);
        copy_view(e, stepped, (double)(hd_now_us(&hd_clock_real) - t0) / 1000);
        /* Rows that paused in this very turn have a deadline that the sweep before it could not know: go round once
         * more before sleeping. */
        if (!stepped && idle) sleep_until_woken(e, next);
        idle = !stepped;
    }
    return NULL;
}

/* ---- opening and closing ---- */

hd_status engine_open(engine **out, model *m, const engine_options *opt, hd_err *err) {
    engine *e = hd_calloc(1, sizeof *e);
    pthread_condattr_t attr;
    hd_status st;
    *out = NULL;
    if (!e) return hd_fail(err, HD_NOMEM, "engine: no memory");
    if ((st = executor_open(&e->x, m, opt, err))) {
        hd_free(e);
        return st;
    }
    e->opt = e->x.opt;
    pthread_mutex_init(&e->mu, NULL);
    pthread_mutex_init(&e->wake_mu, NULL);
    pthread_mutex_init(&e->view_mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (!(e->rows = hd_calloc(e->opt.max_rows, sizeof *e->rows))) st = hd_fail(err, HD_NOMEM, "engine: no memory");
    else if (pthread_create(&e->thread, NULL, engine_main, e)) st = hd_fail(err, HD_FAILED, "engine: no thread");
    if (!st) {
        *out = e;
        return HD_OK;
    }
    hd_free(e->rows);
    executor_close(&e->x);
    hd_free(e);
    return st;
}

void engine_close(engine *e) {
    if (!e) return;
    pthread_mutex_lock(&e->mu);
    e->closing = e->draining = true;
    for (session *s = e->live; s; s = s->next_live) session_cancel(s, CANCEL_ENGINE_CLOSED);
    pthread_mutex_unlock(&e->mu);
    engine_wake_cancel(e);
    pthread_join(e->thread, NULL);
    executor_close(&e->x);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->mu);
    pthread_mutex_destroy(&e->wake_mu);
    pthread_mutex_destroy(&e->view_mu);
    hd_free(e->rows);
    hd_free(e);
}

void engine_drain(engine *e) {
    pthread_mutex_lock(&e->mu);
    e->draining = true;
    pthread_mutex_unlock(&e->mu);
}

bool engine_idle(engine *e) {
    bool idle;
    pthread_mutex_lock(&e->mu);
    idle = !e->live;
    pthread_mutex_unlock(&e->mu);
    return idle;
}

/* ---- submitting ---- */

/* Under mu.  Rows that are free now do not count as waiting places. */
static hd_status room_for(engine *e, size_t n, hd_err *err) {
    uint32_t live = 0, capacity = e->opt.max_queued + e->opt.max_rows;
    if (e->draining) return hd_fail(err, HD_CLOSED, "the server is shutting down");
    if (n > capacity) return hd_fail_field(err, HD_NEVER_FITS, "n", "%zu sequences at once; at most %u can wait and run", n, capacity);
    for (session *s = e->live; s; s = s->next_live) live++;
    if (live + n <= capacity) return HD_OK;
    e->rejected_full++;
    return hd_fail(err, HD_FULL, "the queue is full: %u requests are running or waiting, %u may wait", live, e->opt.max_queued);
}

hd_status engine_submit(engine *e, const gen_request *reqs, size_t n, session_notify notify, void *const *ctx, session **out,
                        hd_err *err) {
    hd_status st = HD_OK;
    size_t made = 0;
    uint64_t now = hd_now_us(e->opt.clock);
    pthread_mutex_lock(&e->mu);
    st = room_for(e, n, err); /* early, before anything is copied */
    pthread_mutex_unlock(&e->mu);
    for (; !st && made < n; made++) {
        if ((st = executor_check(&e->x, &reqs[made], err))) break;
        if ((st = session_new(&out[made], e, &reqs[made], e->x.info->n_vocab, notify, ctx ? ctx[made] : NULL, err))) break;
    }
    if (!st) {
        pthread_mutex_lock(&e->mu);
        if (!(st = room_for(e, n, err))) {
            for (size_t i = 0; i < n; i++) {
                session *s = out[i];
                s->order = e->next_order++;
                s->t_submit_us = now;
                if (!s->copy.id[0]) snprintf(s->copy.id, sizeof s->copy.id, "gen-%llu", (unsigned long long)++e->next_id);
                link_live(e, s);
                push_waiting(e, s);
                e->requests_total++;
            }
        }
        pthread_mutex_unlock(&e->mu);
    }
    if (st) {
        for (size_t i = 0; i < made; i++) {
            session_destroy(out[i]);
            out[i] = NULL;
        }
        return st;
    }
    engine_wake(e);
    return HD_OK;
}

bool engine_cancel(engine *e, const char *id, cancel_reason why) {
    bool found = false;
    pthread_mutex_lock(&e->mu);
    for (session *s = e->live; s; s = s->next_live)
        if (!strcmp(s->copy.id, id)) {
            session_cancel(s, why);
            found = true;
        }
    pthread_mutex_unlock(&e->mu);
    return found;
}

/* ---- looking ---- */

static double median(const double *v, uint32_t n) {
    double t[STEP_TIMES];
    if (!n) return 0;
    memcpy(t, v, n * sizeof *t);
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j && t[j - 1] > t[j]; j--) {
            double x = t[j];
            t[j] = t[j - 1];
            t[j - 1] = x;
        }
    return t[n / 2];
}

void engine_look(engine *e, engine_view *out) {
    row_view *rows = out->rows, *queue = out->queue;
    uint32_t cap_rows = out->cap_rows, cap_queue = out->cap_queue;
    double service_ms;
    uint64_t page_bytes = 0;
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
    out->failed = e->has_work && hd_now_us(e->opt.clock) - e->t_progress_us > e->opt.stuck_timeout_us;
    service_ms = e->service_ms;
    pthread_mutex_unlock(&e->view_mu);
    out->ctx = e->opt.ctx;
    out->max_rows = e->opt.max_rows;
    out->max_queued = e->opt.max_queued;
    out->step_tokens = e->opt.step_tokens;
    out->page_tokens = e->opt.page_tokens;
    out->kv_bytes_total = e->opt.kv_budget_bytes;
    for (uint32_t g = 0; g < e->x.n_groups; g++) page_bytes += kv_page_bytes(e->x.kv, g);
    out->pages_total = e->opt.kv_budget_bytes / page_bytes * e->x.n_groups;
    pthread_mutex_lock(&e->mu);
    out->waiting = e->n_waiting;
    out->n_queue = 0;
    for (session *s = e->wait_head; s && queue && out->n_queue < cap_queue; s = s->next_wait) {
        row_view *w = &queue[out->n_queue++];
        memset(w, 0, sizeof *w);
        memcpy(w->id, s->copy.id, sizeof w->id);
        w->phase = ROW_QUEUED;
        w->prompt_tokens = (uint32_t)s->copy.req.n_prompt;
        w->wait_reason = out->n_queue > 1 ? "order" : e->head_reason ? e->head_reason : "rows";
        w->expected_wait_ms = (uint64_t)(service_ms * out->n_queue / e->opt.max_rows);
    }
    out->draining = e->draining;
    out->requests_total = e->requests_total;
    out->rejected_full = e->rejected_full;
    pthread_mutex_unlock(&e->mu);
    out->retry_after_ms = (uint64_t)(service_ms * (out->waiting + 1.0) / e->opt.max_rows);
    if (out->retry_after_ms < 1000) out->retry_after_ms = 1000;
}
