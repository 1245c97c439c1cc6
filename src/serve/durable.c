/* durable.c - see durable.h.  Opening, closing, the log's thread; durable_take.c has what planners and starts do. */
#include "serve/durable_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/record.h"
#include "serve/runner.h"

#include <openssl/evp.h>
#include <signal.h>
#include <string.h>
#include <time.h>

enum {
    SWEEP_S = 60,             /* retention is not exact to the minute */
    CLOSE_MS = 10000,         /* a disk may hang; the process shall end */
};

journal *durable_log(durable *d) { return d->log; }
const uint8_t *durable_space(const durable *d, size_t key) { return d->space[key]; }

/* ---- jobs ---- */

log_job *log_job_new(log_kind kind) {
    log_job *j = hd_calloc(1, sizeof *j);
    if (!j) return NULL;
    j->kind = kind;
    buf_init(&j->events, VIEW_CHUNK_MAX);
    return j;
}

void log_job_free(log_job *j) {
    if (!j) return;
    buf_deinit(&j->events);
    hd_free(j);
}

void durable_ask(durable *d, log_job *j) {
    log_job **at;
    pthread_mutex_lock(&d->mu);
    for (at = &d->jobs; *at && (*at)->t_due_us <= j->t_due_us; at = &(*at)->next) {}
    j->next = *at;
    *at = j;
    pthread_cond_signal(&d->some);
    pthread_mutex_unlock(&d->mu);
}

static bool take(void *ctx, uint64_t index, const journal_event *e) {
    log_job *j = ctx;
    (void)index;
    return event_pack(&j->events, e) && j->events.len < VIEW_CHUNK;
}

static void find(durable *d, log_job *j) {
    journal_entry *e;
    j->status = journal_find(d->log, j->id, &e, NULL);
    if (j->status) return;
    j->state = e->state;
    j->lost = e->lost;
    j->has_end = e->finish && finish_read(e->finish, e->n_finish, &j->end);
    journal_entry_free(e);
}

static void serve_job(durable *d, log_job *j) {
    if (j->kind == LOG_READ) {
        j->status = journal_read_events(d->log, j->order, j->choice, j->from, take, j, NULL);
        if (j->events.len) return;
        /* Those that left the tail may be on their way to the disk still. */
        journal_flush(d->log, NULL);
        j->status = journal_read_events(d->log, j->order, j->choice, j->from, take, j, NULL);
        if (!j->events.len && !j->status) find(d, j);
    } else {
        j->status = journal_flush(d->log, NULL);
        if (j->kind == LOG_FIND) find(d, j);
    }
}

static void give_back(durable *d, log_job *j) {
    server *s = d->srv;
    pthread_mutex_lock(&s->mu);
    j->next = s->logged;
    s->logged = j;
    pthread_mutex_unlock(&s->mu);
    server_wake(s);
}

/* With mu held: wait for a job that is due, or for the time to sweep.  NULL: sweep, or stop. */
static log_job *next_job(durable *d, uint64_t sweep_us) {
    for (;;) {
        uint64_t now = hd_now_us(&hd_clock_real), due = d->jobs && d->jobs->t_due_us < sweep_us ? d->jobs->t_due_us : sweep_us;
        struct timespec t = {(time_t)(due / 1000000), (long)(due % 1000000) * 1000};
        if (d->stop || (due <= now && !(d->jobs && d->jobs->t_due_us <= now))) return NULL;
        if (d->jobs && d->jobs->t_due_us <= now) {
            log_job *j = d->jobs;
            d->jobs = j->next;
            return j;
        }
        pthread_cond_timedwait(&d->some, &d->mu, &t);
    }
}

static void *work(void *arg) {
    durable *d = arg;
    uint64_t sweep_us = 0;
    pthread_mutex_lock(&d->mu);
    while (!d->stop) {
        log_job *j = next_job(d, sweep_us);
        pthread_mutex_unlock(&d->mu);
        if (j) {
            serve_job(d, j);
            give_back(d, j);
        } else if (hd_now_us(&hd_clock_real) >= sweep_us) {
            journal_sweep(d->log, hd_wall_seconds(), NULL, NULL);
            sweep_us = hd_now_us(&hd_clock_real) + d->sweep_us;
        }
        pthread_mutex_lock(&d->mu);
    }
    pthread_mutex_unlock(&d->mu);
    return NULL;
}

/* ---- opening and closing ---- */

/* On the log's own writer thread. */
static void on_lost(void *ctx, uint64_t order, const char *id, journal_loss why) {
    static const char *const text[] = {"", "the disk does not keep up", "a write failed", "there is no room for it"};
    (void)ctx, (void)order;
    hd_log(HD_LOG_WARN, "serve: request %s is not durable any more: %s", id, text[why <= JOURNAL_LOST_SPACE ? why : 0]);
}

static bool spaces(durable *d) {
    static const char label[] = "heddle api key 1";
    const server *s = d->srv;
    size_t n = s->opt.n_api_keys;
    if (!(d->space = hd_calloc(n + 1, sizeof *d->space))) return false;
    for (size_t i = 0; i < n; i++) {
        EVP_MD_CTX *c = EVP_MD_CTX_new();
        bool ok = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) && EVP_DigestUpdate(c, label, sizeof label) &&
                  EVP_DigestUpdate(c, s->keys[i], strlen(s->keys[i])) && EVP_DigestFinal_ex(c, d->space[i + 1], NULL);
        EVP_MD_CTX_free(c);
        if (!ok) return false;
    }
    return true;
}

static bool start(durable *d) {
    pthread_condattr_t a;
    sigset_t all, old;
    bool ok;
    if (pthread_condattr_init(&a)) return false;
    ok = !pthread_condattr_setclock(&a, CLOCK_MONOTONIC) && !pthread_cond_init(&d->some, &a);
    pthread_condattr_destroy(&a);
    if (!ok) return false;
    d->cond_made = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    d->started = !pthread_create(&d->thread, NULL, work, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return d->started;
}

hd_status durable_open(durable **out, server *s, hd_err *err) {
    journal_config cfg = s->opt.log;
    durable *d;
    hd_status st;
    uint64_t retain = cfg.retain_seconds ? cfg.retain_seconds : 24 * 3600;
    *out = NULL;
    if (!s->opt.state_dir) return HD_OK;
    if (!(d = hd_calloc(1, sizeof *d))) return hd_fail(err, HD_NOMEM, "serve: no memory for the request log");
    d->srv = s;
    d->sweep_us = (retain / 4 < 1 ? 1 : retain / 4 > SWEEP_S ? SWEEP_S : retain / 4) * 1000000;
    pthread_mutex_init(&d->mu, NULL);
    cfg.lost = on_lost;
    cfg.ctx = d;
    if ((st = journal_open(&d->log, s->opt.state_dir, &cfg, err))) goto fail;
    st = HD_NOMEM;
    if (!spaces(d) || !start(d)) {
        hd_fail(err, st, "serve: no memory for the request log");
        goto fail;
    }
    *out = d;
    return HD_OK;
fail:
    durable_close(d);
    return st;
}

void durable_close(durable *d) {
    hd_err err = {0};
    if (!d) return;
    if (d->started) {
        pthread_mutex_lock(&d->mu);
        d->stop = true;
        pthread_cond_signal(&d->some);
        pthread_mutex_unlock(&d->mu);
        pthread_join(d->thread, NULL);
    }
    while (d->jobs) {
        log_job *j = d->jobs;
        d->jobs = j->next;
        log_job_free(j);
    }
    if (journal_close(d->log, CLOSE_MS, &err)) hd_log(HD_LOG_WARN, "serve: %s", err.msg);
    if (d->cond_made) pthread_cond_destroy(&d->some);
    pthread_mutex_destroy(&d->mu);
    hd_free(d->space);
    hd_free(d);
}

/* ---- loop ---- */

void durable_answered(log_job *list) {
    while (list) {
        log_job *j = list;
        list = j->next;
        if (j->r) {
            runner_flushed(j->r);
        } else if (j->g->phase == GEN_ACTIVE && j->g->view.serial == j->serial) {
            viewer_answer(j->g, j);
        }
        log_job_free(j);
    }
}
