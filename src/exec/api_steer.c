/* api_steer.c - heddle.h: steering a session, cancellation sources, exclusive jobs. */
#include "base/mem.h"
#include "exec/api_int.h"

/* ---- steering ---- */

void heddle_raise_cap(heddle_session *s, uint32_t max_tokens) { session_raise_cap(s->s, max_tokens); }
void heddle_stop(heddle_session *s) { session_stop(s->s); }
void heddle_detach(heddle_session *s) { session_detach(s->s); }

void heddle_set_priority(heddle_session *s, int32_t priority) {
    session_set_priority(s->s, priority < PRIORITY_HIGH  ? PRIORITY_HIGH
                               : priority > PRIORITY_LOW ? PRIORITY_LOW
                                                         : (gen_priority)priority);
}

heddle_status heddle_force(heddle_session *s, const int32_t *ids, size_t n, heddle_error *err) {
    hd_err e = {.at = HD_NOWHERE};
    if (!api_list("ids", ids, n, &e) && !session_force(s->s, ids, n, &e)) return HEDDLE_OK;
    return api_fail(err, &e);
}

/* ---- cancellation sources: the engine's own behind another name ---- */

heddle_status heddle_cancellation_new(heddle_cancellation **out, heddle_error *err) {
    cancellation *c;
    hd_err e = {.at = HD_NOWHERE};
    *out = NULL;
    if (cancel_new(&c, &e)) return api_fail(err, &e);
    *out = (heddle_cancellation *)c;
    return HEDDLE_OK;
}

int heddle_cancellation_fire(heddle_cancellation *c, int32_t reason) { return cancel_fire((cancellation *)c, api_reason(reason)); }
int32_t heddle_cancellation_reason(const heddle_cancellation *c) { return (int32_t)cancel_why((const cancellation *)c); }
void heddle_cancellation_free(heddle_cancellation *c) { cancel_unref((cancellation *)c); }

/* ---- exclusive jobs ---- */

typedef struct {
    void (*job)(void *ctx);
    void (*done)(void *ctx, heddle_status st);
    void *ctx;
} exclusive_job;

static void run_job(void *ctx) {
    const exclusive_job *j = ctx;
    j->job(j->ctx);
}

static void job_done(void *ctx, hd_status st) {
    exclusive_job *j = ctx;
    if (j->done) j->done(j->ctx, (heddle_status)st);
    hd_free(j);
}

heddle_status heddle_exclusive(heddle_engine *e, void (*job)(void *ctx), void (*done)(void *ctx, heddle_status status), void *ctx,
                               uint64_t drain_us, heddle_cancellation *cancel, heddle_error *err) {
    exclusive_job *j = hd_calloc(1, sizeof *j);
    hd_err he = {.at = HD_NOWHERE};
    if (!j) {
        hd_fail(&he, HD_NOMEM, "no memory for a job");
        return api_fail(err, &he);
    }
    if (!job) {
        hd_fail_field(&he, HD_INVALID, "job", "there is no job");
        hd_free(j);
        return api_fail(err, &he);
    }
    *j = (exclusive_job){job, done, ctx};
    if (!engine_exclusive(e->e, run_job, job_done, j, drain_us, (cancellation *)cancel, &he)) return HEDDLE_OK;
    hd_free(j);
    return api_fail(err, &he);
}
