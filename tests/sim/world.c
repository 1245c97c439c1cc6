/* world.c - running a plan: each event is one call; a turn is judged as soon as it is over. */
#include "sim/world.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void sim_wrong(const sim_world *w, const char *fmt, ...) {
    va_list ap;
    hd_mem_fail_after(-1);
    va_start(ap, fmt);
    fprintf(stderr, "sim: seed %llu, event %u of %u: ", (unsigned long long)w->p->seed, w->at, w->p->n_events);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    fflush(stderr);
    _Exit(SIM_VIOLATION);
}

static uint64_t read_clock(void *ctx) { return ((sim_world *)ctx)->now; }

uint32_t sim_live(const sim_world *w) {
    uint32_t n = 0;
    for (int i = 0; i < SIM_MAX_SLOTS; i++) n += w->slot[i].used && w->slot[i].seen.live;
    return n;
}

/* ---- opening ---- */

static void open_world(sim_world *w, const sim_plan *p, sim_totals *t) {
    engine_options opt = p->opt;
    hd_err err;
    memset(w, 0, sizeof *w);
    w->p = p;
    w->t = t;
    w->now = 1000000000;
    w->clock = (hd_clock){read_clock, w};
    w->fail_after = -1;
    opt.clock = &w->clock;
    SIM_CHECK(w, !sim_model_open(p, &w->m, &err), "the model: %s", err.msg);
    SIM_CHECK(w, !engine_open(&w->e, w->m, &opt, &err), "the engine: %s", err.msg);
    SIM_CHECK(w, !engine_register(w->e, &sim_method_guess, &err), "the method: %s", err.msg);
    for (int i = 0; i < SIM_SOURCES; i++) SIM_CHECK(w, !cancel_new(&w->source[i], &err), "a source: %s", err.msg);
    w->leases = sim_leases_open(p->max_leases);
    judge_look(w);
    w->ctx = w->view.ctx;
}

/* ---- requests ---- */

/* What engine_submit must say; *also: or this, when a request is wrong in two ways. */
static hd_status verdict(const sim_world *w, const sim_request *r, uint32_t n, hd_status *also) {
    uint32_t capacity = w->p->opt.max_queued + w->p->opt.max_rows;
    if (w->draining) return HD_CLOSED;
    if (n > capacity) return HD_NEVER_FITS;
    if (sim_live(w) + n > capacity) return HD_FULL;
    for (uint32_t i = 0; i < n; i++) {
        const gen_request *q = &r[i].req;
        bool large = q->collect && q->max_tokens != GEN_NO_CAP && q->max_tokens > w->p->opt.collect_tokens;
        large |= q->n_prompt > w->ctx || (q->n_prompt == w->ctx && q->max_tokens);
        if (large) *also = HD_NEVER_FITS;
        if (r[i].invalid) return HD_INVALID;
        if (large) return HD_NEVER_FITS;
    }
    return HD_OK;
}

static void accept(sim_world *w, sim_slot *s, const sim_request *r, session *ss) {
    memset(s, 0, sizeof *s);
    s->used = true;
    s->r = *r;
    s->r.req.prompt = s->r.prompt; /* the copy leads into itself */
    s->r.req.id = s->r.id;
    if (s->r.req.n_stops) s->r.req.stops = s->r.stops;
    if (s->r.req.n_stop_ids) s->r.req.stop_ids = s->r.stop_ids;
    if (s->r.req.sampling.n_bias) s->r.req.sampling.bias = s->r.bias;
    s->s = ss;
    s->stalled = r->starts_stalled;
    s->order = w->next_order++;
    s->t_submit_us = s->t_read_us = w->now;
    s->priority = r->req.priority;
    s->max_tokens = r->req.max_tokens;
    s->collect = r->req.collect;
    s->seen.live = true;
    if (r->source >= 0) s->cancel = cancel_why(w->source[r->source]);
    oracle_open(&s->o, w->p, &s->r, model_kernels(w->m), w->ctx);
    w->accepted++;
    w->t->requests++;
}

static void submit(sim_world *w, const sim_event *ev) {
    sim_request r[3];
    gen_request reqs[3];
    session *out[3] = {NULL, NULL, NULL};
    uint32_t n = sim_request_count(ev->arg);
    hd_status want, got, also = HD_OK;
    hd_err err;
    if (ev->slot + n > SIM_MAX_SLOTS || w->slot[ev->slot].used) return;
    for (uint32_t i = 0; i < n; i++) {
        sim_request_make(&r[i], ev->arg, i, ev->slot + i);
        reqs[i] = r[i].req;
        if (r[i].source >= 0) reqs[i].cancel = w->source[r[i].source];
    }
    want = verdict(w, r, n, &also);
    hd_mem_fail_after(w->fail_after);
    got = engine_submit(w->e, reqs, n, NULL, NULL, out, &err);
    hd_mem_fail_after(-1);
    if (w->fail_after >= 0 && got == HD_NOMEM) want = HD_NOMEM, w->t->oom++;
    w->fail_after = -1;
    if (want && got == also) want = got;
    SIM_CHECK(w, got == want, "submit of %u to slot %u: %s (%s), should be %s", n, ev->slot, hd_status_name(got),
              got ? err.msg : "", hd_status_name(want));
    for (uint32_t i = 0; i < n; i++) {
        SIM_CHECK(w, !got == !!out[i], "submit %s and a session is %s", hd_status_name(got), out[i] ? "given" : "missing");
        if (!got) accept(w, &w->slot[ev->slot + i], &r[i], out[i]);
        else w->t->refused++;
    }
}

static void cancelled(sim_slot *s, cancel_reason why) {
    if (s->used && s->seen.live && s->cancel == CANCEL_NONE) s->cancel = why;
}

static void read_one(sim_world *w, sim_slot *s, gen_event *ev) {
    session_next(s->s, ev);
    judge_event(w, s, ev);
}

static void read_some(sim_world *w, sim_slot *s, uint64_t n) {
    gen_event ev;
    if (!s->s) return;
    do read_one(w, s, &ev);
    while (ev.kind != EV_NONE && --n);
}

static void force(sim_world *w, sim_slot *s, uint64_t arg) {
    int32_t ids[3];
    uint64_t rng = arg;
    uint32_t n = 1 + sim_below(&rng, 3), at = s->seen.generated, waiting = 0;
    hd_status st;
    hd_err err;
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)sim_below(&rng, V_BIG);
    for (uint32_t i = 0; i < s->n_forced; i++) {
        waiting += s->forced_at[i] >= s->seen.generated;
        if (s->forced_at[i] + 1 > at) at = s->forced_at[i] + 1;
    }
    if (s->n_forced + n > 64) return; /* the sim's own bound */
    st = session_force(s->s, ids, n, &err);
    SIM_CHECK(w, st == HD_OK, "forcing %u tokens behind %u: %s", n, waiting, err.msg);
    if (!s->seen.live) return;
    for (uint32_t i = 0; i < n; i++) {
        s->forced_at[s->n_forced] = at + i;
        s->forced[s->n_forced++] = ids[i];
    }
}

static void raise_cap(sim_world *w, sim_slot *s, uint32_t cap) {
    uint32_t room = w->ctx - (uint32_t)s->r.req.n_prompt;
    session_raise_cap(s->s, cap);
    if (!s->seen.live || !s->max_tokens || cap <= s->max_tokens) return;
    s->max_tokens = cap;
    s->o.cap = cap < room ? cap : room;
    if (s->o.over && s->o.finish == FINISH_LENGTH && s->o.n_generated < s->o.cap) s->o.over = false;
}

static void free_session(sim_world *w, sim_slot *s) {
    cancelled(s, CANCEL_CLIENT_DISCONNECTED);
    session_free(s->s);
    s->s = NULL;
    w->freed_any = true;
    oracle_close(&s->o);
    if (!s->seen.live) s->used = false;
}

/* ---- jobs ---- */

static void run_job(void *ctx) {
    sim_job *j = ctx;
    sim_world *w = j->w;
    SIM_CHECK(w, w->e->x.n_rows == 0, "a job runs beside %u rows", w->e->x.n_rows);
    SIM_CHECK(w, !j->ran && !j->told, "a job runs again");
    for (const sim_job *o = w->job; o < j; o++) SIM_CHECK(w, !o->asked || o->told, "a job overtakes an older one");
    j->ran = true;
}

static void job_done(void *ctx, hd_status st) {
    sim_job *j = ctx;
    SIM_CHECK(j->w, !j->told++, "a job is told twice");
    SIM_CHECK(j->w, j->ran == (st == HD_OK), "a job that %s is told %s", j->ran ? "ran" : "did not run", hd_status_name(st));
    j->said = st;
    j->w->t->jobs++;
}

static void ask_job(sim_world *w, sim_job *j, uint64_t patience) {
    uint32_t waiting = 0;
    hd_status st;
    hd_err err;
    if (j->asked) return;
    for (const sim_job *o = w->job; o < w->job + SIM_MAX_JOBS; o++) {
        waiting += o->asked && !o->told;
        if (o > j && o->asked) return; /* a replay out of order */
    }
    SIM_CHECK(w, !cancel_new(&j->cancel, &err), "no cancellation");
    j->w = w;
    j->asked = true;
    j->due_us = w->now + patience;
    st = engine_exclusive(w->e, run_job, job_done, j, patience, j->cancel, &err);
    SIM_CHECK(w, st == HD_OK || (st == HD_FULL && waiting + 1 >= w->p->opt.max_leases_queued), "a job behind %u others: %s",
              waiting, hd_status_name(st));
    if (st) {
        SIM_CHECK(w, !j->told, "a refused job is told");
        j->asked = false;
    }
}

static void cancel_job(sim_world *w, sim_job *j) {
    bool granted = w->e->granted != NULL; /* it has its lease already and runs at the next turn */
    if (!j->asked) return;
    cancel_fire(j->cancel, CANCEL_BY_REQUEST);
    SIM_CHECK(w, j->told || granted, "a cancelled job is not told");
}

/* ---- turns ---- */

static void deliver(sim_world *w) {
    for (int i = 0; i < SIM_MAX_SLOTS; i++)
        if (w->slot[i].used && w->slot[i].s && !w->slot[i].stalled) read_some(w, &w->slot[i], UINT64_MAX);
}

static uint64_t turn(sim_world *w) {
    bool woken = w->e->woken || w->e->calls;
    uint64_t slept_until = w->asleep && !woken ? w->due_us : 0, us;
    w->no_memory = w->fail_after >= 0;
    w->ever_no_memory |= w->no_memory;
    judge_before(w);
    hd_mem_fail_after(w->fail_after);
    us = engine_turn(w->e);
    hd_mem_fail_after(-1);
    w->fail_after = -1;
    w->t->turns++;
    w->asleep = us > 0 && (!w->no_memory || us == UINT64_MAX); /* what memory was missing for may be tried again */
    w->due_us = us > UINT64_MAX - w->now ? UINT64_MAX : w->now + us;
    judge_turn(w, slept_until);
    deliver(w);
    return us;
}

/* ---- events ---- */

static void on_session(sim_world *w, sim_slot *s, const sim_event *ev) {
    if (!s->used || !s->s) return;
    switch (ev->kind) {
    case SIM_READ: read_some(w, s, ev->arg); break;
    case SIM_STALL: s->stalled = true; break;
    case SIM_RESUME:
        s->stalled = false;
        read_some(w, s, UINT64_MAX);
        break;
    case SIM_CANCEL:
        cancelled(s, CANCEL_BY_REQUEST);
        session_cancel(s->s, CANCEL_BY_REQUEST);
        break;
    case SIM_CANCEL_ID: {
        bool known = engine_cancel(w->e, s->r.id, CANCEL_SHUTDOWN);
        SIM_CHECK(w, known == s->seen.live, "cancel by id says %s of %s", known ? "known" : "unknown", s->r.id);
        cancelled(s, CANCEL_SHUTDOWN);
        break;
    }
    case SIM_FREE: free_session(w, s); break;
    case SIM_RAISE_CAP: raise_cap(w, s, (uint32_t)ev->arg); break;
    case SIM_STOP:
        session_stop(s->s);
        s->stop |= s->seen.live;
        break;
    case SIM_FORCE: force(w, s, ev->arg); break;
    case SIM_PRIORITY:
        session_set_priority(s->s, (gen_priority)((int)(ev->arg % 3) - 1));
        if (s->seen.live) s->priority = (gen_priority)((int)(ev->arg % 3) - 1);
        break;
    case SIM_DETACH:
        session_detach(s->s);
        if (s->seen.live) s->collect = true;
        break;
    default: break;
    }
}

static void close_engine(sim_world *w) {
    for (int i = 0; i < SIM_MAX_SLOTS; i++) cancelled(&w->slot[i], CANCEL_ENGINE_CLOSED);
    engine_close(w->e);
    w->e = NULL;
    w->closed = true;
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        sim_slot *s = &w->slot[i];
        if (!s->used || !s->seen.live) continue;
        s->seen.live = false;
        s->n_at_end = s->seen.generated;
        s->end_cancel[s->n_end_cancel++] = s->cancel;
        s->end_free = s->stop; /* a stop that was called just before may come first */
    }
    for (sim_job *j = w->job; j < w->job + SIM_MAX_JOBS; j++) SIM_CHECK(w, !j->asked || j->told, "a job is not told of the close");
}

static void event(sim_world *w, const sim_event *ev) {
    const char *why = NULL;
    w->t->events++;
    switch (ev->kind) {
    case SIM_SUBMIT: submit(w, ev); break;
    case SIM_CANCEL_SOURCE:
        for (int i = 0; i < SIM_MAX_SLOTS; i++)
            if (w->slot[i].used && w->slot[i].r.source == (int)ev->slot) cancelled(&w->slot[i], CANCEL_DEADLINE_TOTAL);
        cancel_fire(w->source[ev->slot % SIM_SOURCES], CANCEL_DEADLINE_TOTAL);
        break;
    case SIM_JOB: ask_job(w, &w->job[ev->slot % SIM_MAX_JOBS], ev->arg); break;
    case SIM_JOB_CANCEL: cancel_job(w, &w->job[ev->slot % SIM_MAX_JOBS]); break;
    case SIM_LEASE:
    case SIM_RELEASE:
    case SIM_LEASE_CANCEL:
    case SIM_LEASE_CLOSE:
        why = sim_leases_event(w->leases, ev);
        SIM_CHECK(w, !why, "%s", why);
        w->t->leases++;
        break;
    case SIM_CLOCK: w->now += ev->arg; break;
    case SIM_TURN:
        for (uint64_t i = 0; i < ev->arg; i++) turn(w);
        break;
    case SIM_NO_MEMORY: w->fail_after = (long)ev->arg; break;
    case SIM_DRAIN:
        engine_drain(w->e);
        w->draining = true;
        break;
    case SIM_CLOSE: close_engine(w); break;
    default: on_session(w, &w->slot[ev->slot], ev);
    }
}

/* Everybody reads, the clock goes as the engine asks: it all ends, in as many turns as there is work. */
static void settle(sim_world *w) {
    uint32_t turns = 0;
    for (int i = 0; i < SIM_MAX_SLOTS; i++) w->slot[i].stalled = false;
    deliver(w);
    for (;;) {
        bool jobs = false;
        uint64_t us;
        for (const sim_job *j = w->job; j < w->job + SIM_MAX_JOBS; j++) jobs |= j->asked && !j->told;
        if (!sim_live(w) && !jobs) break;
        us = turn(w);
        SIM_CHECK(w, us != UINT64_MAX || w->e->woken || w->e->calls || (!sim_live(w)),
                  "the engine would sleep for ever with %u requests unfinished", sim_live(w));
        if (us && us != UINT64_MAX && !w->e->woken && !w->e->calls) w->now += us;
        SIM_CHECK(w, ++turns < 40000, "%u requests are unfinished after %u turns", sim_live(w), turns);
    }
    turn(w);
    SIM_CHECK(w, engine_idle(w->e), "nothing lives, but the engine is not idle");
    SIM_CHECK(w, !w->view.running && !w->view.waiting, "nothing lives, but %u rows run and %u wait", w->view.running, w->view.waiting);
    SIM_CHECK(w, !w->view.pages_used && !w->view.kv_bytes_used, "nothing lives, but %llu pages are held",
              (unsigned long long)w->view.pages_used);
}

static void check_sums(sim_world *w) {
    uint64_t prompt = 0, generated = 0;
    if (w->closed || w->freed_any) return;
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        const sim_slot *s = &w->slot[i];
        if (!s->used) continue;
        SIM_CHECK(w, s->done, "%s has no end", s->r.id);
        prompt += s->r.req.n_prompt;
        generated += s->n_generated;
    }
    SIM_CHECK(w, w->view.prompt_tokens_total == prompt, "%llu prompt tokens are counted, not %llu",
              (unsigned long long)w->view.prompt_tokens_total, (unsigned long long)prompt);
    SIM_CHECK(w, w->view.generated_tokens_total == generated, "%llu generated tokens are counted, not %llu",
              (unsigned long long)w->view.generated_tokens_total, (unsigned long long)generated);
}

static void end_world(sim_world *w, long live_before) {
    const char *why;
    if (!w->closed) {
        w->t->preemptions += w->view.preemptions_total;
        w->t->pauses += w->view.pauses_total;
        w->t->steps += w->view.steps;
        w->t->tokens += w->view.generated_tokens_total;
        w->t->failed += w->view.finished_failed;
        for (int i = 0; i < 16; i++) w->t->cancelled += w->view.cancelled[i];
    }
    check_sums(w);
    for (int i = 0; i < SIM_MAX_SLOTS; i++) w->slot[i].stalled = false;
    if (w->closed) deliver(w);
    else close_engine(w);
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        sim_slot *s = &w->slot[i];
        if (!s->used || !s->s) continue;
        SIM_CHECK(w, s->done, "%s has no end after the close", s->r.id);
        free_session(w, s);
    }
    why = sim_leases_close(w->leases);
    SIM_CHECK(w, !why, "%s", why);
    for (int i = 0; i < SIM_SOURCES; i++) cancel_unref(w->source[i]);
    for (int i = 0; i < SIM_MAX_JOBS; i++) cancel_unref(w->job[i].cancel);
    model_close(w->m);
    SIM_CHECK(w, hd_mem_live() == live_before, "%ld blocks of memory are left over", hd_mem_live() - live_before);
}

void sim_run(const sim_plan *p, sim_totals *t) {
    sim_world *w = calloc(1, sizeof *w);
    long live = hd_mem_live();
    open_world(w, p, t);
    for (w->at = 0; w->at < p->n_events && !w->closed; w->at++) event(w, &p->events[w->at]);
    if (!w->closed) settle(w);
    end_world(w, live);
    t->schedules++;
    free(w);
}
