/* engine.c - the thread around an executor: calls from outside, the line, turns, submitting, opening and closing.
 *
 * exclusive.c has managed jobs, view.c looking, line.c the order of those who wait. */
#include "base/mem.h"
#include "exec/engine_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    LEASE_RETRY_US = 1000, /* the line of leases was full, or there was no memory to stand in it */
    REST_AFTER_US = 1000000,
    REST_PAGES = 64
};

const hd_clock *engine_clock(const engine *e) { return e->opt.clock; }
collect_pool *engine_collect_pool(engine *e) { return e->pool; }

/* ---- calls from outside ---- */

void engine_wake(engine *e) {
    pthread_mutex_lock(&e->wake_mu);
    e->woken = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->wake_mu);
}

void engine_interrupt(engine *e) { model_interrupt(e->x.m); }

void engine_call(engine *e, session *s) {
    pthread_mutex_lock(&e->wake_mu);
    if (!s->calling) {
        s->calling = true;
        s->next_call = NULL;
        if ((s->prev_call = e->calls_tail)) s->prev_call->next_call = s;
        else e->calls = s;
        e->calls_tail = s;
    }
    e->woken = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->wake_mu);
}

/* Under wake_mu. */
static void unlink_call(engine *e, session *s) {
    if (s->prev_call) s->prev_call->next_call = s->next_call;
    else e->calls = s->next_call;
    if (s->next_call) s->next_call->prev_call = s->prev_call;
    else e->calls_tail = s->prev_call;
    s->calling = false;
}

static session *next_call(engine *e) {
    session *s;
    pthread_mutex_lock(&e->wake_mu);
    if ((s = e->calls)) unlink_call(e, s);
    pthread_mutex_unlock(&e->wake_mu);
    return s;
}

static void end_waiting(engine *e, session *s, cancel_reason why) {
    pthread_mutex_lock(&e->mu);
    line_remove(&e->waiting, s);
    e->line_changed = true;
    pthread_mutex_unlock(&e->mu);
    executor_end_waiting(&e->x, s, why == CANCEL_NONE ? FINISH_STOP : FINISH_CANCELLED, why, NULL);
}

static void set_priority(engine *e, session *s, gen_priority p) {
    uint64_t now = hd_now_us(e->opt.clock);
    pthread_mutex_lock(&e->mu);
    if (s->waiting) {
        line_remove(&e->waiting, s);
        s->copy.req.priority = p;
        line_push(&e->waiting, s);
        e->line_changed = true;
    } else {
        s->copy.req.priority = p;
    }
    pthread_mutex_unlock(&e->mu);
    if (s->row && s->row->phase != ROW_PREEMPTED) {
        s->row->rank = line_rank(&e->waiting, s, now);
        executor_place(&e->x, s->row);
    }
}

/* Whatever place a session is in, its call finds it: it is live until the executor forgets it. */
static void answer_call(engine *e, session *s) {
    executor *x = &e->x;
    int why = atomic_load(&s->cancel);
    bool waits = !s->row || s->row->phase == ROW_PREEMPTED;
    session_steer st;
    if (why != CANCEL_NONE) {
        if (waits) end_waiting(e, s, (cancel_reason)why);
        else executor_cancel(x, s, (cancel_reason)why);
        return;
    }
    session_take_steer(s, &st);
    if (st.has_priority && st.priority != s->copy.req.priority) set_priority(e, s, st.priority);
    if (st.stop && waits) {
        end_waiting(e, s, CANCEL_NONE);
        return;
    }
    executor_steer(x, s, &st);
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

/* ---- the line ---- */

void engine_forget(engine *e, session *s, uint64_t tokens) {
    pthread_mutex_lock(&e->mu);
    if (s->prev_live) s->prev_live->next_live = s->next_live;
    else e->live = s->next_live;
    if (s->next_live) s->next_live->prev_live = s->prev_live;
    e->n_live--;
    if (s->cost) line_settle(&e->waiting, s, tokens);
    line_leave(&e->waiting, s);
    pthread_mutex_unlock(&e->mu);
}

void engine_uncall(engine *e, session *s) {
    pthread_mutex_lock(&e->wake_mu);
    if (s->calling) unlink_call(e, s);
    pthread_mutex_unlock(&e->wake_mu);
}

void engine_requeue(engine *e, session *s) {
    pthread_mutex_lock(&e->mu);
    line_push(&e->waiting, s);
    if (executor_due(s) < e->line_due_us) e->line_due_us = executor_due(s);
    e->line_changed = true;
    pthread_mutex_unlock(&e->mu);
}

typedef struct {
    uint64_t now, due;
} deadline_scan;

static void look_at_deadline(void *ctx, session *s) {
    deadline_scan *d = ctx;
    uint64_t due = executor_due(s);
    int none = CANCEL_NONE;
    if (due > d->now) {
        if (due < d->due) d->due = due;
        return;
    }
    if (atomic_compare_exchange_strong(&s->cancel, &none, (int)executor_overdue(s, d->now))) engine_call(s->engine, s);
}

/* End those whose deadline has passed; returns the next one. */
static uint64_t sweep_line(engine *e) {
    deadline_scan d = {hd_now_us(e->opt.clock), UINT64_MAX};
    pthread_mutex_lock(&e->mu);
    if (d.now >= e->line_due_us) {
        line_each(&e->waiting, look_at_deadline, &d);
        e->line_due_us = d.due;
    }
    d.due = e->line_due_us;
    pthread_mutex_unlock(&e->mu);
    return d.due;
}

/* Under mu.  Who may be tried now: of each rank only the first, in the order of ranks; a lower rank only while the one
 * above has not waited for long. */
static session *next_to_try(engine *e, uint64_t now, uint32_t min_rank, const session *blocked, uint32_t *rank) {
    if (blocked && now - blocked->t_submit_us >= e->opt.age_us) return NULL;
    return line_next(&e->waiting, now, min_rank, rank);
}

/* Admit one.  False: nobody can be now. */
static bool admit_one(engine *e) {
    executor *x = &e->x;
    uint64_t now = hd_now_us(e->opt.clock);
    uint32_t rank = 0, min_rank = 0;
    session *s = NULL;
    for (;;) {
        const char *why = NULL;
        pthread_mutex_lock(&e->mu);
        s = next_to_try(e, now, min_rank, s, &rank);
        pthread_mutex_unlock(&e->mu);
        if (!s) return false;
        /* Only this thread takes from the line, so it stays there meanwhile. */
        if (executor_admissible(x, s, &why) == HD_OK || executor_make_way(x, s)) break;
        pthread_mutex_lock(&e->mu);
        e->reason[rank] = why;
        pthread_mutex_unlock(&e->mu);
        min_rank = rank + 1;
    }
    if (disk_fetch(x, s)) {
        e->fetching = true; /* it stays in the line meanwhile */
        return false;
    }
    pthread_mutex_lock(&e->mu);
    line_remove(&e->waiting, s);
    if (!s->row) line_charge(&e->waiting, s, executor_projected_tokens(x, s));
    pthread_mutex_unlock(&e->mu);
    executor_admit(x, s, rank);
    disk_fetch_end(x);
    return true;
}

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Returns when ages may change who is admitted. */
static uint64_t admit(engine *e) {
    executor *x = &e->x;
    uint64_t now = hd_now_us(e->opt.clock), due = UINT64_MAX;
    bool someone, changed, refused;
    pthread_mutex_lock(&e->mu);
    someone = e->waiting.n_waiting;
    changed = e->line_changed || x->freed || now >= e->rank_due_us;
    e->line_changed = x->freed = false;
    if (!changed) due = e->rank_due_us;
    pthread_mutex_unlock(&e->mu);
    if (!engine_may_run(e, someone, &refused)) {
        pthread_mutex_lock(&e->mu);
        for (int i = 0; i < N_PRIORITIES; i++) e->reason[i] = "exclusive_job";
        e->line_changed = true;
        pthread_mutex_unlock(&e->mu);
        return refused ? now + LEASE_RETRY_US : UINT64_MAX; /* else the coordinator wakes us */
    }
    if (!someone) disk_fetch_end(x);
    if (!someone || !changed) return someone ? due : UINT64_MAX;
    e->fetching = false;
    while (admit_one(e)) {}
    pthread_mutex_lock(&e->mu);
    due = line_next_change(&e->waiting, now);
    for (uint32_t rank = 0, r = 0; r < N_PRIORITIES; r = rank + 1) {
        const session *s = line_next(&e->waiting, now, r, &rank);
        if (!s) break;
        if (now - s->t_submit_us < e->opt.age_us) due = min_u64(due, s->t_submit_us + e->opt.age_us);
    }
    e->rank_due_us = due;
    e->line_changed = false; /* what our own preemptions changed was looked at */
    pthread_mutex_unlock(&e->mu);
    x->freed = e->fetching;
    return e->fetching ? now : due;
}

/* ---- turns ---- */

static bool closing(engine *e, bool *empty) {
    bool c;
    pthread_mutex_lock(&e->mu);
    c = e->closing;
    *empty = !e->live;
    pthread_mutex_unlock(&e->mu);
    return c;
}

/* One turn.  0: a step ran; else when something is due, in clock time. */
static uint64_t turn(engine *e) {
    executor *x = &e->x;
    uint64_t due, t0, jobs_due;
    session *s;
    bool stepped, ended, empty;
    uint32_t rows = x->n_rows;
    due = sweep_line(e);
    while ((s = next_call(e))) answer_call(e, s);
    due = min_u64(due, executor_sweep(x));
    jobs_due = engine_serve_jobs(e);
    due = min_u64(due, jobs_due);
    if (!closing(e, &empty)) due = min_u64(due, admit(e));
    engine_copy_view(e, false, 0, rows != x->n_rows);
    rows = x->n_rows;
    t0 = hd_now_us(e->opt.clock);
    stepped = executor_step(x);
    ended = rows != x->n_rows;
    engine_copy_view(e, stepped, hd_now_us(e->opt.clock) - t0, ended || !stepped || e->opt.manual);
    if (stepped || ended) return 0; /* a row that gave way in vain may let another in */
    /* Rows that paused in this very turn have a deadline that the sweep before it could not know. */
    rows = x->n_rows;
    due = min_u64(due, executor_sweep(x));
    if (rows != x->n_rows) { /* what they held may let others in */
        engine_copy_view(e, false, 0, true);
        return 0;
    }
    return due ? due : 1;
}

uint64_t engine_turn(engine *e) {
    uint64_t due = turn(e), now;
    bool called;
    pthread_mutex_lock(&e->wake_mu);
    called = e->calls != NULL || e->woken;
    e->woken = false;
    pthread_mutex_unlock(&e->wake_mu);
    if (!due || called) return 0;
    if (due == UINT64_MAX) return due;
    now = hd_now_us(e->opt.clock);
    return due > now ? due - now : 1;
}

/* An engine without work for a second hands its free memory back, a bounded part at a time.  Returns when to look again. */
static uint64_t rest(engine *e) {
    uint64_t due = e->x.t_forward_us + REST_AFTER_US;
    bool rested = e->rested_at == e->x.steps;
    if (rested && !kv_trim(e->x.kv, 0)) return UINT64_MAX; /* pages are also freed without a step: a reader gives up */
    if (hd_now_us(e->opt.clock) < due) return due;
    if (!rested) model_rest(e->x.m);
    e->rested_at = e->x.steps;
    return kv_trim(e->x.kv, REST_PAGES) ? due : UINT64_MAX;
}

static void *engine_main(void *ctx) {
    engine *e = ctx;
    for (;;) {
        uint64_t due = turn(e), now;
        bool empty;
        if (closing(e, &empty) && empty) break;
        if (!due) continue;
        due = min_u64(due, rest(e));
        now = hd_now_us(e->opt.clock);
        sleep_until_woken(e, due == UINT64_MAX ? due : due > now ? due - now : 0);
    }
    return NULL;
}

/* ---- opening and closing ---- */

static void engine_free(engine *e) {
    collect_pool_leave(e->pool); /* sessions that are over may still be read */
    coordinator_free(e->leases);
    line_deinit(&e->waiting);
    executor_close(&e->x);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->mu);
    pthread_mutex_destroy(&e->wake_mu);
    pthread_mutex_destroy(&e->view_mu);
    collect_pool_unref(e->pool);
    hd_free(e->rows);
    hd_free(e);
}

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
    e->line_due_us = UINT64_MAX;
    line_init(&e->waiting, e->opt.age_us);
    e->methods[e->n_methods++] = &method_autoregressive;
    e->methods[e->n_methods++] = &method_embedding;
    pthread_mutex_init(&e->mu, NULL);
    pthread_mutex_init(&e->wake_mu, NULL);
    pthread_mutex_init(&e->view_mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attr);
    pthread_condattr_destroy(&attr);
    atomic_store(&e->x.t_progress_us, hd_now_us(e->opt.clock));
    if (!(e->rows = hd_calloc(e->opt.max_rows, sizeof *e->rows)) || !(e->pool = collect_pool_new(e, e->opt.collect_tokens)))
        st = hd_fail(err, HD_NOMEM, "engine: no memory");
    else if (!(st = coordinator_new(&e->leases, e->opt.max_leases_queued, err)) && !e->opt.manual &&
             pthread_create(&e->thread, NULL, engine_main, e))
        st = hd_fail(err, HD_FAILED, "engine: no thread");
    if (!st) {
        tell_opened(&e->x);
        *out = e;
        return HD_OK;
    }
    engine_free(e);
    return st;
}

void engine_close(engine *e) {
    if (!e) return;
    pthread_mutex_lock(&e->mu);
    e->closing = e->draining = true;
    for (session *s = e->live; s; s = s->next_live) session_cancel(s, CANCEL_ENGINE_CLOSED);
    pthread_mutex_unlock(&e->mu);
    coordinator_close(e->leases); /* waiting jobs are told */
    engine_wake(e);
    engine_interrupt(e);
    if (e->opt.manual)
        while (e->live) turn(e);
    else pthread_join(e->thread, NULL);
    /* A granted job still runs, also one that another thread asked for just before the closing; the executor's lease goes
     * back. */
    do engine_serve_jobs(e);
    while (coordinator_quiesce(e->leases, 1000, NULL) == HD_TIMEOUT);
    engine_free(e);
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

hd_status engine_register(engine *e, const gen_method *m, hd_err *err) {
    hd_status st = HD_OK;
    pthread_mutex_lock(&e->mu);
    for (size_t i = 0; i < e->n_methods; i++)
        if (!strcmp(e->methods[i]->name, m->name))
            st = hd_fail_field(err, HD_INVALID, "name", "there is a method '%s' already", m->name);
    if (!st && e->n_methods == MAX_METHODS) st = hd_fail(err, HD_FULL, "%d methods are registered already", MAX_METHODS);
    if (!st) e->methods[e->n_methods++] = m;
    pthread_mutex_unlock(&e->mu);
    return st;
}

/* ---- submitting ---- */

/* Under mu.  Rows that are free now do not count as waiting places.  All of one call are alike in `readmit`. */
static hd_status room_for(engine *e, const gen_request *reqs, size_t n, hd_err *err) {
    uint32_t capacity = e->opt.max_queued + e->opt.max_rows;
    if (e->draining) return hd_fail(err, HD_CLOSED, "the server is shutting down");
    if (n && reqs->readmit) return HD_OK;
    if (n > capacity) return hd_fail_field(err, HD_NEVER_FITS, "n", "%zu sequences at once; at most %u can wait and run", n, capacity);
    if (e->n_live + n <= capacity) return HD_OK;
    e->rejected_full++;
    return hd_fail(err, HD_FULL, "the queue is full: %u requests are running or waiting, %u may wait", e->n_live, e->opt.max_queued);
}

/* Under mu. */
static const gen_method *find_method(engine *e, const char *name) {
    if (!name) return e->methods[0];
    for (size_t i = 0; i < e->n_methods; i++)
        if (!strcmp(e->methods[i]->name, name)) return e->methods[i];
    return NULL;
}

static hd_status check_request(engine *e, const gen_request *req, const gen_method **m, hd_err *err) {
    hd_status st;
    pthread_mutex_lock(&e->mu);
    *m = find_method(e, req->method);
    pthread_mutex_unlock(&e->mu);
    if (!*m) return hd_fail_field(err, HD_INVALID, "method", "there is no method '%.60s'", req->method);
    if (req->priority < PRIORITY_HIGH || req->priority > PRIORITY_LOW)
        return hd_fail_field(err, HD_INVALID, "priority", "a priority is -1, 0 or 1");
    if (req->collect && req->max_tokens != GEN_NO_CAP && req->max_tokens > e->opt.collect_tokens)
        return hd_fail_field(err, HD_NEVER_FITS, "max_tokens", "%u tokens are to be collected; all requests together may hold %llu",
                             req->max_tokens, (unsigned long long)e->opt.collect_tokens);
    if ((st = executor_check(&e->x, req, err))) return st;
    if (req->n_said && (!(*m)->resumes || req->prompt_logprobs || req->prompt_logits))
        return hd_fail_field(err, HD_UNSUPPORTED, "said", "%s cannot go on after what was generated before",
                             (*m)->resumes ? "a request for scores of its prompt" : (*m)->name);
    return (*m)->check ? (*m)->check(req, e->x.info, err) : HD_OK;
}

/* Under mu. */
static void enter(engine *e, session *s, uint64_t now) {
    s->order = e->next_order++;
    s->t_submit_us = now;
    if (!s->copy.id[0]) snprintf(s->copy.id, sizeof s->copy.id, "gen-%llu", (unsigned long long)++e->next_id);
    s->prev_live = NULL;
    if ((s->next_live = e->live)) e->live->prev_live = s;
    e->live = s;
    e->n_live++;
    line_push(&e->waiting, s);
    if (executor_due(s) < e->line_due_us) e->line_due_us = executor_due(s);
    e->requests_total++;
    e->line_changed = true;
    session_submitted(s);
}

/* Under mu.  All shares or none. */
static hd_status join_all(engine *e, session *const *s, size_t n, hd_err *err) {
    for (size_t i = 0; i < n; i++)
        if (!line_join(&e->waiting, s[i])) {
            while (i--) line_leave(&e->waiting, s[i]);
            return hd_fail(err, HD_NOMEM, "no memory for a request");
        }
    return HD_OK;
}

hd_status engine_submit(engine *e, const gen_request *reqs, size_t n, session_notify notify, void *const *ctx, session **out,
                        hd_err *err) {
    const gen_method *m;
    hd_status st = HD_OK;
    size_t made = 0;
    uint32_t n_live = 0;
    pthread_mutex_lock(&e->mu);
    st = room_for(e, reqs, n, err); /* early, before anything is copied */
    pthread_mutex_unlock(&e->mu);
    for (; !st && made < n; made++) {
        if ((st = check_request(e, &reqs[made], &m, err))) break;
        if ((st = session_new(&out[made], e, &reqs[made], m, e->x.info->n_vocab, notify, ctx ? ctx[made] : NULL, err))) break;
    }
    if (!st) {
        pthread_mutex_lock(&e->mu);
        if (!(st = room_for(e, reqs, n, err)) && !(st = join_all(e, out, n, err))) {
            uint64_t now = hd_now_us(e->opt.clock);
            for (size_t i = 0; i < n; i++) enter(e, out[i], now);
            n_live = e->n_live;
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
    for (size_t i = 0; i < n; i++) tell_taken(out[i]->copy.id, &reqs[i], n_live); /* the caller's to free, so they are there still */
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
