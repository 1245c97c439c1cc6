/* session.c - see session.h; the public calls of engine.h that concern one session are here too. */
#include "exec/session.h"
#include "base/mem.h"
#include "exec/engine_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *finish_reason_name(finish_reason r) {
    static const char *const names[] = {"stop", "length", "cancelled", "failed"};
    return names[r];
}

const char *row_phase_name(row_phase p) {
    switch (p) {
#define X(id, name)                                                                                                    \
    case ROW_##id: return name;
        ROW_PHASES(X)
#undef X
    }
    return "unknown";
}

collect_pool *collect_pool_new(engine *e, uint64_t limit) {
    collect_pool *p = hd_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->limit = limit > INT64_MAX ? INT64_MAX : (long long)limit;
    atomic_store(&p->refs, 1);
    pthread_mutex_init(&p->mu, NULL);
    p->engine = e;
    return p;
}

void collect_pool_unref(collect_pool *p) {
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1) return;
    pthread_mutex_destroy(&p->mu);
    hd_free(p);
}

void collect_pool_leave(collect_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mu);
    p->engine = NULL;
    pthread_mutex_unlock(&p->mu);
}

/* n records less.  Another session's row may wait for the room, so its own being starved or over does not matter. */
static void pool_release(collect_pool *p, uint32_t n) {
    long long was = atomic_fetch_sub(&p->held, n);
    if (was < p->limit || was - n >= p->limit) return;
    pthread_mutex_lock(&p->mu);
    if (p->engine) engine_wake(p->engine);
    pthread_mutex_unlock(&p->mu);
}

static void copy_deinit(gen_copy *c) {
    hd_free(c->prompt);
    hd_free(c->stop_ids);
    stop_set_free(c->stops);
    sampler_close(c->sampler);
}

static int32_t *dup_ids(const int32_t *ids, size_t n) {
    int32_t *p = hd_reallocarray(NULL, n ? n : 1, sizeof *p);
    if (p && n) memcpy(p, ids, n * sizeof *p);
    return p;
}

static hd_status copy_request(gen_copy *c, const gen_request *req, size_t n_vocab, hd_err *err) {
    hd_status st;
    c->req = *req;
    if (strlen(req->id) >= sizeof c->id) return hd_fail_field(err, HD_INVALID, "id", "an id has at most 63 bytes");
    snprintf(c->id, sizeof c->id, "%s", req->id);
    c->req.id = c->id;
    if (req->share && strlen(req->share) >= sizeof c->share)
        return hd_fail_field(err, HD_INVALID, "share", "a share key has at most 63 bytes");
    snprintf(c->share, sizeof c->share, "%s", req->share ? req->share : "");
    c->req.share = c->share;
    if (req->cache_space && strlen(req->cache_space) >= sizeof c->space)
        return hd_fail_field(err, HD_INVALID, "cache_space", "a cache space has at most 63 bytes");
    snprintf(c->space, sizeof c->space, "%s", req->cache_space ? req->cache_space : "");
    c->req.cache_space = c->space;
    c->req.method = NULL; /* the session knows its method itself */
    if ((st = sampler_open(&c->sampler, &req->sampling, n_vocab, err)) ||
        (st = stop_set_new(&c->stops, req->stops, req->n_stops, err)))
        return st;
    c->req.stops = NULL;
    if (!(c->prompt = hd_reallocarray(NULL, req->n_prompt + req->n_said + !req->n_prompt, sizeof *c->prompt)) ||
        !(c->stop_ids = dup_ids(req->stop_ids, req->n_stop_ids)))
        return hd_fail(err, HD_NOMEM, "no memory for a request");
    if (req->n_prompt) memcpy(c->prompt, req->prompt, req->n_prompt * sizeof *c->prompt);
    if (req->n_said) memcpy(c->prompt + req->n_prompt, req->said, req->n_said * sizeof *c->prompt);
    c->req.prompt = c->prompt;
    c->req.said = c->prompt + req->n_prompt;
    c->req.stop_ids = c->stop_ids;
    return HD_OK;
}

static void on_cancelled(void *ctx, cancel_reason why) { session_cancel(ctx, why); }

/* Its text, and the copy that its reader borrows. */
size_t session_bytes(void) {
    return sizeof(session) + SESSION_MAX_TOKENS * sizeof(session_record) + 2 * (size_t)SESSION_MAX_TEXT;
}

size_t session_waiting_bytes(void) { return sizeof(session) + sizeof(sampling_params); }

hd_status session_new(session **out, engine *e, const gen_request *req, const gen_method *m, size_t n_vocab,
                      session_notify notify, void *ctx, hd_err *err) {
    session *s = hd_calloc(1, sizeof *s);
    pthread_condattr_t attr;
    hd_status st;
    *out = NULL;
    if (!s) return hd_fail(err, HD_NOMEM, "no memory for a request");
    pthread_mutex_init(&s->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->ready, &attr);
    pthread_condattr_destroy(&attr);
    buf_init(&s->text, SIZE_MAX); /* bounded by session_room */
    buf_init(&s->tail, SIZE_MAX); /* bounded by the longest stop string and one character */
    buf_init(&s->out, SIZE_MAX);
    s->engine = e;
    s->clock = engine_clock(e);
    s->notify = notify;
    s->notify_ctx = ctx;
    s->n_vocab = n_vocab;
    s->method = m;
    s->collect = req->collect;
    s->pool = engine_collect_pool(e);
    atomic_fetch_add(&s->pool->refs, 1);
    if ((st = copy_request(&s->copy, req, n_vocab, err)) ||
        (req->cancel && (st = cancel_subscribe(req->cancel, on_cancelled, s, &s->sub, err)))) {
        session_destroy(s);
        return st;
    }
    *out = s;
    return HD_OK;
}

void session_unsubscribe(session *s) {
    cancel_unsubscribe(s->sub);
    s->sub = NULL;
}

void session_destroy(session *s) {
    if (!s) return;
    session_unsubscribe(s);
    if (s->collect) pool_release(s->pool, s->n);
    collect_pool_unref(s->pool);
    copy_deinit(&s->copy);
    hd_free(s->vector);
    hd_free(s->vector_out);
    hd_free(s->ring);
    hd_free(s->logits);
    buf_deinit(&s->text);
    buf_deinit(&s->tail);
    buf_deinit(&s->out);
    pthread_cond_destroy(&s->ready);
    pthread_mutex_destroy(&s->mu);
    hd_free(s);
}

hd_status session_prepare(session *s, hd_err *err) {
    uint32_t cap = SESSION_MAX_TOKENS;
    session_record *ring = s->ring ? s->ring : hd_reallocarray(NULL, cap, sizeof *ring);
    float *logits = s->logits;
    if (ring && s->copy.req.prompt_logits && !logits)
        logits = hd_reallocarray(NULL, SESSION_LOGITS * s->n_vocab, sizeof *logits);
    pthread_mutex_lock(&s->mu);
    if (!s->ring && ring) s->cap = cap;
    s->ring = ring;
    s->logits = logits;
    pthread_mutex_unlock(&s->mu);
    if (!ring || (s->copy.req.prompt_logits && !logits)) return hd_fail(err, HD_NOMEM, "no memory for a session's queue");
    return HD_OK;
}

/* ---- producer ---- */

/* Under mu.  A collecting session's ring grows by doubling; false: no memory now. */
static bool grow_ring(session *s) {
    session_record *ring = hd_reallocarray(NULL, (size_t)s->cap * 2, sizeof *ring);
    if (!ring) return false;
    for (uint32_t i = 0; i < s->n; i++) ring[i] = s->ring[(s->head + i) % s->cap];
    hd_free(s->ring);
    s->ring = ring;
    s->head = 0;
    s->cap *= 2;
    return true;
}

/* Under mu. */
static uint32_t room_locked(session *s, bool oldest) {
    uint32_t room = s->cap - s->n;
    if (s->collect) {
        long long left = s->pool->limit - atomic_load(&s->pool->held);
        if (left <= 0 && !oldest) return 0;
        if (!room && s->cap < UINT32_MAX / 2 && grow_ring(s)) room = s->cap - s->n;
        if (!oldest && room > left) room = (uint32_t)left;
    } else if (s->text.len - s->text_at >= SESSION_MAX_TEXT) {
        room = 0;
    }
    if (s->copy.req.prompt_logits && room > SESSION_LOGITS - s->logits_at) room = SESSION_LOGITS - s->logits_at;
    if (s->copy.req.prompt_logits && s->n_logits) room = 0;
    return room;
}

uint32_t session_room(session *s, bool oldest) {
    uint32_t room;
    pthread_mutex_lock(&s->mu);
    room = room_locked(s, oldest);
    if (!room && !s->starved) {
        s->starved = true;
        s->t_read_us = hd_now_us(s->clock); /* the idle deadline runs from now, or from the next read */
    }
    pthread_mutex_unlock(&s->mu);
    return room;
}

void session_take_steer(session *s, session_steer *out) {
    uint32_t n_forced;
    pthread_mutex_lock(&s->mu);
    n_forced = s->steer.n_forced;
    *out = s->steer;
    s->steer = (session_steer){.n_forced = n_forced};
    memcpy(s->steer.forced, out->forced, n_forced * sizeof *out->forced);
    pthread_mutex_unlock(&s->mu);
}

uint32_t session_take_forced(session *s, int32_t *ids, uint32_t max) {
    uint32_t n;
    pthread_mutex_lock(&s->mu);
    n = s->steer.n_forced < max ? s->steer.n_forced : max;
    memcpy(ids, s->steer.forced, n * sizeof *ids);
    memmove(s->steer.forced, s->steer.forced + n, (s->steer.n_forced - n) * sizeof *ids);
    s->steer.n_forced -= n;
    if (n) atomic_store(&s->has_forced, s->steer.n_forced > 0);
    pthread_mutex_unlock(&s->mu);
    return n;
}

static void tell_reader(session *s) {
    pthread_cond_signal(&s->ready);
    if (s->notify) s->notify(s->notify_ctx);
}

bool session_push(session *s, const session_record *r, const char *text) {
    pthread_mutex_lock(&s->mu);
    HD_ASSERT(s->n < s->cap && !s->over);
    if (r->n_text && !buf_reserve(&s->text, r->n_text)) {
        pthread_mutex_unlock(&s->mu);
        return false;
    }
    s->ring[(s->head + s->n++) % s->cap] = *r;
    if (s->collect) atomic_fetch_add(&s->pool->held, 1);
    if (r->n_text) buf_add(&s->text, text, r->n_text);
    tell_reader(s);
    pthread_mutex_unlock(&s->mu);
    return true;
}

void session_push_logits(session *s, uint64_t position, const float *logits) {
    pthread_mutex_lock(&s->mu);
    HD_ASSERT(s->logits_at + s->n_logits < SESSION_LOGITS);
    if (!s->n_logits) s->logits_pos = position;
    memcpy(s->logits + (s->logits_at + s->n_logits++) * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    tell_reader(s);
    pthread_mutex_unlock(&s->mu);
}

void session_push_vector(session *s, float *v, size_t n) {
    pthread_mutex_lock(&s->mu);
    HD_ASSERT(!s->vector && !s->over);
    s->vector = v;
    s->n_vector = n;
    tell_reader(s);
    pthread_mutex_unlock(&s->mu);
}

uint64_t session_last_read(session *s) {
    uint64_t t;
    pthread_mutex_lock(&s->mu);
    t = s->t_read_us;
    pthread_mutex_unlock(&s->mu);
    return t;
}

bool session_push_tail(session *s, const char *tail, size_t n) {
    bool held;
    pthread_mutex_lock(&s->mu);
    if ((held = !n || buf_reserve(&s->tail, n)) && n) buf_add(&s->tail, tail, n);
    pthread_mutex_unlock(&s->mu);
    return held;
}

void session_finish(session *s, const gen_event *end) {
    bool gone;
    session_unsubscribe(s);
    pthread_mutex_lock(&s->mu);
    HD_ASSERT(!s->over);
    s->end = *end;
    s->over = true;
    if (s->submitted) engine_uncall(s->engine, s); /* no call can come after this */
    gone = s->reader_gone;
    if (!gone) tell_reader(s);
    pthread_mutex_unlock(&s->mu);
    if (gone) session_destroy(s);
}

/* ---- reader ---- */

/* Under mu.  The end is only told after the records, the logits and the tail.  Without memory for the copy of a record's
 * text nothing is taken: the reader finds it at its next call. */
static void take_next(session *s, gen_event *ev) {
    memset(ev, 0, sizeof *ev);
    if (s->n_logits) {
        ev->kind = EV_LOGITS;
        ev->position = s->logits_pos++;
        ev->logits = s->logits + s->logits_at++ * s->n_vocab;
        ev->n_logits = s->n_vocab;
        s->n_logits--;
    } else if (s->n) {
        const session_record *r = &s->ring[s->head];
        buf_clear(&s->out);
        if (r->n_text && !buf_reserve(&s->out, r->n_text)) return;
        ev->kind = r->kind;
        ev->position = r->position;
        ev->sample = r->sample;
        if (r->n_text) buf_add(&s->out, s->text.data + s->text_at, r->n_text);
        ev->text = buf_cstr(&s->out);
        ev->n_text = s->out.len;
        s->text_at += r->n_text;
        s->head = (s->head + 1) % s->cap;
        if (s->collect) pool_release(s->pool, 1);
        if (!--s->n) buf_clear(&s->text), s->text_at = 0;
    } else if (s->vector) {
        hd_free(s->vector_out);
        s->vector_out = s->vector;
        s->vector = NULL;
        ev->kind = EV_VECTOR;
        ev->vector = s->vector_out;
        ev->n_vector = s->n_vector;
    } else if (s->over && !s->tail_read && s->tail.len) {
        s->tail_read = true;
        ev->kind = EV_TEXT;
        ev->text = s->tail.data;
        ev->n_text = s->tail.len;
    } else if (s->over && !s->over_read) {
        s->over_read = true;
        *ev = s->end;
        ev->kind = EV_DONE;
    }
}

/* Under mu.  What the reader borrowed is free at its next call; tell the executor once there is room again, at half
 * empty: it should not be woken for the room of one token. */
static void release_room(session *s) {
    if (!s->starved || s->over) return;
    if (!s->collect && (s->n > SESSION_MAX_TOKENS / 2 || s->text.len - s->text_at > SESSION_MAX_TEXT / 2)) return;
    if (s->copy.req.prompt_logits && (s->n_logits || s->logits_at)) return;
    s->starved = false;
    engine_wake(s->engine);
}

static void start_read(session *s) {
    if (!s->n_logits) s->logits_at = 0;
    release_room(s);
}

static void end_read(session *s, const gen_event *ev) {
    if (ev->kind == EV_NONE) return;
    s->t_read_us = hd_now_us(s->clock);
    release_room(s);
}

void session_next(session *s, gen_event *ev) {
    pthread_mutex_lock(&s->mu);
    start_read(s);
    take_next(s, ev);
    end_read(s, ev);
    pthread_mutex_unlock(&s->mu);
}

void session_wait(session *s, gen_event *ev, uint64_t timeout_us) {
    struct timespec t;
    bool forever = timeout_us > 1ull << 50;
    if (!forever) {
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_sec += (time_t)(timeout_us / 1000000);
        t.tv_nsec += (long)(timeout_us % 1000000 * 1000);
        if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    }
    pthread_mutex_lock(&s->mu);
    start_read(s);
    for (;;) {
        take_next(s, ev);
        if (ev->kind != EV_NONE || s->over) break;
        if (forever) pthread_cond_wait(&s->ready, &s->mu);
        else if (pthread_cond_timedwait(&s->ready, &s->mu, &t) == ETIMEDOUT) break;
    }
    end_read(s, ev);
    pthread_mutex_unlock(&s->mu);
}

/* Under mu.  While a session is not over its engine lives: engine_close ends all sessions first. */
static void call_locked(session *s) {
    if (s->submitted && !s->over) engine_call(s->engine, s);
}

static void cancel_locked(session *s, cancel_reason why) {
    int none = CANCEL_NONE;
    if (s->over || !atomic_compare_exchange_strong(&s->cancel, &none, (int)why)) return;
    call_locked(s);
    if (s->submitted) engine_interrupt(s->engine);
}

void session_cancel(session *s, cancel_reason why) {
    pthread_mutex_lock(&s->mu);
    cancel_locked(s, why);
    pthread_mutex_unlock(&s->mu);
}

void session_submitted(session *s) {
    pthread_mutex_lock(&s->mu);
    s->submitted = true;
    if (atomic_load(&s->cancel) != CANCEL_NONE) call_locked(s);
    pthread_mutex_unlock(&s->mu);
}

/* ---- steering ---- */

void session_raise_cap(session *s, uint32_t max_tokens) {
    pthread_mutex_lock(&s->mu);
    if (max_tokens > s->steer.cap) s->steer.cap = max_tokens;
    call_locked(s);
    pthread_mutex_unlock(&s->mu);
}

void session_stop(session *s) {
    pthread_mutex_lock(&s->mu);
    s->steer.stop = true;
    call_locked(s);
    pthread_mutex_unlock(&s->mu);
}

void session_set_priority(session *s, gen_priority p) {
    pthread_mutex_lock(&s->mu);
    s->steer.has_priority = true;
    s->steer.priority = p < PRIORITY_HIGH ? PRIORITY_HIGH : p > PRIORITY_LOW ? PRIORITY_LOW : p;
    call_locked(s);
    pthread_mutex_unlock(&s->mu);
}

uint32_t session_force_room(session *s) {
    uint32_t room;
    pthread_mutex_lock(&s->mu);
    room = SESSION_MAX_FORCED - s->steer.n_forced;
    pthread_mutex_unlock(&s->mu);
    return room;
}

hd_status session_force(session *s, const int32_t *ids, size_t n, hd_err *err) {
    hd_status st = HD_OK;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= s->n_vocab)
            return hd_fail_field(err, HD_INVALID, "ids", "token id %d is outside the vocabulary", ids[i]);
    pthread_mutex_lock(&s->mu);
    if (n > SESSION_MAX_FORCED - s->steer.n_forced) {
        st = hd_fail_field(err, HD_FULL, "ids", "more than %d forced tokens wait", SESSION_MAX_FORCED);
    } else if (n) {
        memcpy(s->steer.forced + s->steer.n_forced, ids, n * sizeof *ids);
        s->steer.n_forced += (uint32_t)n;
        atomic_store(&s->has_forced, true);
    }
    pthread_mutex_unlock(&s->mu);
    return st;
}

void session_detach(session *s) {
    pthread_mutex_lock(&s->mu);
    if (!s->collect) {
        s->collect = true;
        atomic_fetch_add(&s->pool->held, s->n);
    }
    s->steer.detach = true;
    s->starved = false;
    call_locked(s);
    pthread_mutex_unlock(&s->mu);
}

void session_free(session *s) {
    bool over;
    if (!s) return;
    pthread_mutex_lock(&s->mu);
    s->notify = NULL;
    s->reader_gone = true;
    over = s->over;
    cancel_locked(s, CANCEL_CLIENT_DISCONNECTED);
    pthread_mutex_unlock(&s->mu);
    if (over) session_destroy(s); /* else the executor does, when it has ended */
}

const char *session_id(const session *s) { return s->copy.id; }

void session_progress(session *s, uint32_t *done, uint32_t *total, bool *queued) {
    *done = atomic_load_explicit(&s->progress_done, memory_order_relaxed);
    *total = (uint32_t)s->copy.req.n_prompt;
    *queued = !atomic_load_explicit(&s->admitted, memory_order_relaxed);
}

