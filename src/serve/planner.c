/* planner.c - see planner.h. */
#include "serve/planner.h"

#include "base/mem.h"
#include "serve/conversation.h"
#include "serve/durable.h"
#include "serve/go_on.h"
#include "serve/stored.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* The parsed tree of a body takes many times its size, and the C library keeps what one thread freed for that thread. */
enum { TRIM_BODY = 256 * 1024 };

struct planner {
    server *srv;
    pthread_t *threads;
    uint32_t n_threads, max_waiting;
    pthread_mutex_t mu; /* guards the queue and stop */
    pthread_cond_t cond;
    gen *head, *tail;
    uint32_t n;
    bool large; /* a thread has a large body */
    bool stop;
};

static bool plan_body(gen *g, const json_t *body) {
    serve_error *e = &g->error;
    return request_check_model(g->srv, body, e) && (!g->d->id_prefix || request_read_class(g->srv, body, g->key, &g->plan, e)) &&
           g->d->plan(g, body, e);
}

static void warn_not_kept(gen *g) {
    size_t n = strlen(g->warning);
    snprintf(g->warning + n, sizeof g->warning - n, "%s%s is ignored: the server has no --state-dir", n ? "; " : "", g->not_kept);
}

/* From the body to the engine's line. */
static void plan_post(gen *g, const json_t *body, uint64_t t) {
    json_t *whole = NULL;
    bool ok = durable_plan(g, body, &g->error) && conversation_plan(g, body, &whole) &&
              (go_on_asked(body) ? go_on_plan(g, body, &g->error) : plan_body(g, whole ? whole : body));
    if (ok && g->not_kept) warn_not_kept(g);
    t = gen_trace(g, "tokenise", t, "prompts", g->n_prompts);
    if (ok && g->n_prompts && !planner_unwanted(g)) {
        gen_submit(g);
        gen_trace(g, "submit", t, "choices", g->n_choices);
    }
    g->plan.stops = (hd_free(g->plan.stops), NULL); /* they point into the body */
    g->plan.n_stops = 0;
    json_decref(whole);
}

static void plan(gen *g) {
    uint64_t t = gen_trace(g, "wait for a planner", g->t_start_us, NULL, 0);
    json_t *body;
    if (planner_unwanted(g)) return;
    if (g->kind != GEN_POST) {
        stored_plan(g);
        return;
    }
    body = request_parse(g->body.data, g->body.len, &g->has_big_seed, &g->big_seed, &g->error);
    t = gen_trace(g, "parse", t, NULL, 0);
    if (!body) return;
    if (!planner_unwanted(g)) plan_post(g, body, t);
    if (g->view.how == VIEW_NEW && !g->view.r) g->view.how = VIEW_NONE; /* it did not come so far */
    json_decref(body);
}

static void post(gen *g) {
    server *s = g->srv;
    pthread_mutex_lock(&s->mu);
    g->planned_next = NULL;
    if (s->planned_tail) s->planned_tail->planned_next = g;
    else s->planned_head = g;
    s->planned_tail = g;
    pthread_mutex_unlock(&s->mu);
    server_wake(s);
}

static bool is_large(const gen *g) { return g->body.len > PLANNER_LARGE_BODY || g->long_before; }

/* Under mu. */
static void unlink_job(planner *p, gen *g) {
    if (g->job_prev) g->job_prev->job_next = g->job_next;
    else p->head = g->job_next;
    if (g->job_next) g->job_next->job_prev = g->job_prev;
    else p->tail = g->job_prev;
    g->job_next = g->job_prev = NULL;
    g->job_queued = false;
    p->n--;
}

/* Under mu.  It was found to be large: back, to be taken when no other large one is being planned.  Beyond the queue's limit by one
 * for each thread at most. */
static void link_first(planner *p, gen *g) {
    g->job_prev = NULL;
    if ((g->job_next = p->head)) p->head->job_prev = g;
    else p->tail = g;
    p->head = g;
    g->job_queued = true;
    p->n++;
}

/* Under mu.  The first that may be planned now; NULL: none. */
static gen *take_job(planner *p) {
    gen *g = p->head;
    while (g && p->large && is_large(g)) g = g->job_next;
    if (!g) return NULL;
    unlink_job(p, g);
    p->large |= is_large(g);
    return g;
}

static void *work(void *arg) {
    planner *p = arg;
    gen *g;
    pthread_mutex_lock(&p->mu);
    while (!p->stop) {
        bool large, trim, again;
        if (!(g = take_job(p))) {
            pthread_cond_wait(&p->cond, &p->mu);
            continue;
        }
        pthread_mutex_unlock(&p->mu);
        large = is_large(g);
        trim = large || g->body.len > TRIM_BODY;
        plan(g);
        again = g->long_before && !large;
        if (again) gen_clear_plan(g);
        else post(g);
        if (trim) hd_mem_trim();
        pthread_mutex_lock(&p->mu);
        if (again) link_first(p, g);
        if (large) {
            p->large = false;
            pthread_cond_signal(&p->cond); /* the next large one may have been passed over */
        }
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

bool planner_push(planner *p, gen *g) {
    bool ok;
    pthread_mutex_lock(&p->mu);
    if ((ok = p->n < p->max_waiting)) {
        g->job_next = NULL;
        if ((g->job_prev = p->tail)) p->tail->job_next = g;
        else p->head = g;
        p->tail = g;
        g->job_queued = true;
        p->n++;
        pthread_cond_signal(&p->cond);
    }
    pthread_mutex_unlock(&p->mu);
    return ok;
}

bool planner_remove(planner *p, gen *g) {
    bool queued;
    pthread_mutex_lock(&p->mu);
    if ((queued = g->job_queued)) unlink_job(p, g);
    pthread_mutex_unlock(&p->mu);
    return queued;
}

hd_status planner_new(planner **out, server *s, uint32_t n_threads, uint32_t max_waiting, hd_err *err) {
    planner *p = hd_calloc(1, sizeof *p);
    sigset_t all, old;
    *out = NULL;
    if (!p) return hd_fail(err, HD_NOMEM, "serve: no memory for the planners");
    p->srv = s;
    p->max_waiting = max_waiting;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->cond, NULL);
    if (!(p->threads = hd_calloc(n_threads, sizeof *p->threads))) {
        planner_free(p);
        return hd_fail(err, HD_NOMEM, "serve: no memory for the planners");
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (p->n_threads < n_threads && !pthread_create(&p->threads[p->n_threads], NULL, work, p)) p->n_threads++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (p->n_threads < n_threads) {
        planner_free(p);
        return hd_fail(err, HD_IO, "serve: a planner thread could not be started");
    }
    *out = p;
    return HD_OK;
}

void planner_free(planner *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mu);
    p->stop = true;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->mu);
    for (uint32_t i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->cond);
    pthread_mutex_destroy(&p->mu);
    hd_free(p->threads);
    hd_free(p);
}
