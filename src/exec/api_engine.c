/* api_engine.c - heddle.h: engines, and requests on their way in. */
#include "base/mem.h"
#include "exec/api_int.h"

#include <stdio.h>
#include <string.h>

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "heddle.h and the engine number this alike")
SAME(HEDDLE_PRIORITY_HIGH, PRIORITY_HIGH);
SAME(HEDDLE_PRIORITY_NORMAL, PRIORITY_NORMAL);
SAME(HEDDLE_PRIORITY_LOW, PRIORITY_LOW);
SAME(HEDDLE_KV_DEFAULT, KV_DEFAULT);
SAME(HEDDLE_KV_F16, KV_F16);
SAME(HEDDLE_KV_F32, KV_F32);
SAME(HEDDLE_KV_BF16, KV_BF16);
SAME(HEDDLE_KV_Q8, KV_Q8);
SAME(HEDDLE_KV_Q4, KV_Q4);
_Static_assert(HEDDLE_NO_CAP == GEN_NO_CAP, "one number for no cap");
_Static_assert(sizeof(heddle_text) == sizeof(stop_string) && offsetof(heddle_text, n) == offsetof(stop_string, n),
               "one shape");
_Static_assert(sizeof(heddle_logit_bias) == sizeof(logit_bias) &&
                   offsetof(heddle_logit_bias, bias) == offsetof(logit_bias, bias),
               "one shape");

/* The engine names fields as the command line and HTTP do; the members of heddle.h's structs are sometimes others. */
static void rename_field(hd_err *e) {
    static const char *const names[][2] = {
        {"max-rows", "max_rows"},
        {"max-queued", "max_queued"},
        {"step-tokens", "step_tokens"},
        {"page-tokens", "page_tokens"},
        {"ctx", "context"},
        {"kv-budget", "kv_budget_bytes"},
        {"kv-type", "kv_type"},
        {"dir", "state_dir"},
        {"cap_bytes", "state_cap_bytes"},
        {"key_file", "state_key_file"},
        {"stop", "stops"},
        {"stop_token_ids", "stop_ids"},
        {"logit_bias", "bias"},
        {"top_logprobs", "n_top_logprobs"},
        {"dry_sequence_breakers", "dry_breakers"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(e->field, names[i][0])) {
            snprintf(e->field, sizeof e->field, "%s", names[i][1]);
            return;
        }
}

static heddle_status refuse(heddle_error *err, hd_err *e) {
    rename_field(e);
    return api_fail(err, e);
}

/* ---- engines ---- */

static hd_status check_kv_type(const char *field, int32_t type, hd_err *e) {
    if (type >= HEDDLE_KV_DEFAULT && type <= HEDDLE_KV_Q4) return HD_OK;
    return hd_fail_field(e, HD_UNSUPPORTED, field, "%s %d is not one this library knows (" KV_SCHEME_NAMES ")", field, type);
}

static hd_status open_store(store **out, const heddle_engine_options *o, hd_err *e) {
    const store_opts so = {.dir = o->state_dir, .key_file = o->state_key_file, .cap_bytes = o->state_cap_bytes};
    if (o->state_dir) return store_open(out, &so, e);
    if (!o->state_key_file && !o->state_cap_bytes) return HD_OK;
    return hd_fail_field(e, HD_INVALID, o->state_key_file ? "key_file" : "cap_bytes", "a cap or key of stored pages needs a state_dir");
}

heddle_status heddle_engine_open(heddle_engine **out, heddle_model *m, const heddle_engine_options *opt,
                                 heddle_error *err) {
    heddle_engine *e = NULL;
    heddle_engine_options o;
    engine_options eo;
    hd_err he = {.at = HD_NOWHERE};
    bool mine = false;
    hd_status st;
    *out = NULL;
    if ((st = api_take(&o, sizeof o, opt, "heddle_engine_options", &he))) goto fail;
    if ((st = check_kv_type("kv_type", o.kv_type, &he)) || (st = check_kv_type("kv_type_sliding", o.kv_type_sliding, &he)))
        goto fail;
    if (m->vocab_only) {
        st = hd_fail(&he, HD_UNSUPPORTED, "the model was opened without its weights (vocab_only)");
        goto fail;
    }
    if (atomic_flag_test_and_set(&m->has_engine)) {
        st = hd_fail(&he, HD_FULL, "the model has an engine already");
        goto fail;
    }
    mine = true;
    eo = (engine_options){.max_rows = o.max_rows,
                          .max_queued = o.max_queued,
                          .step_tokens = o.step_tokens,
                          .step_target_us = o.step_target_us,
                          .default_max_tokens = o.default_max_tokens,
                          .kv_budget_bytes = o.kv_budget_bytes,
                          .page_tokens = o.page_tokens,
                          .ctx = o.context,
                          .kv_type = (kv_scheme)o.kv_type,
                          .kv_type_sliding = (kv_scheme)o.kv_type_sliding,
                          .idle_timeout_us = o.idle_timeout_us,
                          .stuck_timeout_us = o.stuck_timeout_us,
                          .age_us = o.age_us,
                          .collect_tokens = o.collect_tokens,
                          .no_cache = o.no_cache,
                          .max_leases_queued = o.max_exclusive};
    if (!(e = hd_calloc(1, sizeof *e))) {
        st = hd_fail(&he, HD_NOMEM, "no memory for an engine");
        goto fail;
    }
    if ((st = open_store(&e->store, &o, &he))) goto fail;
    eo.store = e->store;
    if ((st = engine_open(&e->e, m->m, &eo, &he))) goto fail;
    pthread_mutex_init(&e->mu, NULL);
    atomic_fetch_add(&m->refs, 1);
    e->m = m;
    *out = e;
    return HEDDLE_OK;
fail:
    if (mine) atomic_flag_clear(&m->has_engine);
    if (e) store_close(e->store);
    hd_free(e);
    return refuse(err, &he);
}

void heddle_engine_close(heddle_engine *e) {
    if (!e) return;
    engine_close(e->e); /* writes what is cached */
    store_close(e->store);
    atomic_flag_clear(&e->m->has_engine);
    api_model_unref(e->m);
    for (size_t i = 0; i < e->n_methods; i++) hd_free(e->methods[i]);
    pthread_mutex_destroy(&e->mu);
    hd_free(e);
}

void heddle_engine_drain(heddle_engine *e) { engine_drain(e->e); }
int heddle_engine_idle(heddle_engine *e) { return engine_idle(e->e); }

void heddle_engine_look(heddle_engine *e, heddle_counters *out) {
    engine_view v = {0};
    heddle_counters own;
    engine_look(e->e, &v);
    HEDDLE_INIT(&own);
    own.running = v.running;
    own.waiting = v.waiting;
    own.max_rows = v.max_rows;
    own.max_queued = v.max_queued;
    own.context = v.ctx;
    own.page_tokens = v.page_tokens;
    own.step_tokens = v.step_tokens;
    own.exclusive_waiting = v.leases_waiting;
    own.draining = v.draining;
    own.failed = v.failed;
    own.pages_total = v.pages_total;
    own.pages_used = v.pages_used;
    own.pages_cached = v.pages_cached;
    own.pages_shared = v.pages_shared;
    own.kv_bytes_total = v.kv_bytes_total;
    own.kv_bytes_used = v.kv_bytes_used;
    own.steps = v.steps;
    own.step_tokens_last = v.step_tokens_last;
    own.step_ms_p50 = v.step_ms_p50;
    own.requests_total = v.requests_total;
    own.finished_stop = v.finished_stop;
    own.finished_length = v.finished_length;
    own.finished_failed = v.finished_failed;
    for (size_t i = 0; i < sizeof v.cancelled / sizeof *v.cancelled; i++) own.finished_cancelled += v.cancelled[i];
    own.rejected_full = v.rejected_full;
    own.prompt_tokens_total = v.prompt_tokens_total;
    own.generated_tokens_total = v.generated_tokens_total;
    own.preemptions_total = v.preemptions_total;
    own.exclusive_total = v.exclusive_total;
    own.faults_contained = v.faults_contained;
    own.pauses_total = v.pauses_total;
    own.retry_after_ms = v.retry_after_ms;
    own.kv_bytes_cached = v.kv_bytes_cached;
    own.pages_evicted_total = v.pages_evicted;
    own.has_state_dir = v.has_store;
    own.state_writing = v.has_store && v.store.writing;
    own.state_files = v.store.files;
    own.state_bytes = v.store.bytes;
    own.state_cap_bytes = v.store.cap_bytes;
    own.state_hits = v.store.hits;
    own.state_misses = v.store.misses;
    own.state_read_bytes = v.store.read_bytes;
    own.state_written_bytes = v.store.written_bytes;
    own.state_write_errors = v.store.write_errors;
    api_give(out, &own, sizeof own);
}

int heddle_cancel_id(heddle_engine *e, const char *id, int32_t reason) {
    return id && engine_cancel(e->e, id, api_reason(reason));
}

/* ---- requests ---- */

void heddle_request_init(heddle_request *r, size_t size) {
    heddle_request own;
    sampling_params p;
    heddle_init(r, size);
    HEDDLE_INIT(&own);
    sampling_defaults(&p);
    own.max_tokens = HEDDLE_NO_CAP;
    own.temperature = p.temperature;
    own.top_p = p.top_p;
    own.min_p = p.min_p;
    own.typical_p = p.typical_p;
    own.top_k = p.top_k;
    own.xtc_probability = p.xtc_probability;
    own.xtc_threshold = p.xtc_threshold;
    own.repetition_penalty = p.repetition_penalty;
    own.presence_penalty = p.presence_penalty;
    own.frequency_penalty = p.frequency_penalty;
    own.repetition_window = p.repetition_window;
    own.presence_window = p.presence_window;
    own.frequency_window = p.frequency_window;
    own.dry_multiplier = p.dry_multiplier;
    own.dry_base = p.dry_base;
    own.dry_allowed_length = p.dry_allowed_length;
    own.dry_window = p.dry_window;
    own.seed = p.seed;
    own.sample_index = p.sample_index;
    api_give(r, &own, sizeof own);
}

/* A list whose pointer is missing would be read past the end of nothing. */
static hd_status check_lists(const heddle_request *r, hd_err *e) {
    const struct {
        const char *name;
        const void *p;
        size_t n;
    } lists[] = {{"prompt", r->prompt, r->n_prompt},
                 {"said", r->said, r->n_said},
                 {"stops", r->stops, r->n_stops},
                 {"stop_ids", r->stop_ids, r->n_stop_ids},
                 {"bias", r->bias, r->n_bias},
                 {"dry_breakers", r->dry_breakers, r->n_dry_breakers}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (api_list(lists[i].name, lists[i].p, lists[i].n, e)) return e->code;
    for (size_t i = 0; i < r->n_stops; i++)
        if (!r->stops[i].text) return hd_fail_field(e, HD_INVALID, "stops", "stops[%zu] is NULL", i);
    if (r->priority < HEDDLE_PRIORITY_HIGH || r->priority > HEDDLE_PRIORITY_LOW)
        return hd_fail_field(e, HD_INVALID, "priority", "priority must be -1, 0 or 1");
    return HD_OK;
}

static gen_request to_engine(const heddle_request *r) {
    gen_request q = {0};
    sampling_params *p = &q.sampling;
    sampling_defaults(p);
    p->temperature = r->temperature;
    p->top_p = r->top_p;
    p->min_p = r->min_p;
    p->typical_p = r->typical_p;
    p->top_k = r->top_k;
    p->xtc_probability = r->xtc_probability;
    p->xtc_threshold = r->xtc_threshold;
    p->repetition_penalty = r->repetition_penalty;
    p->presence_penalty = r->presence_penalty;
    p->frequency_penalty = r->frequency_penalty;
    p->repetition_window = r->repetition_window;
    p->presence_window = r->presence_window;
    p->frequency_window = r->frequency_window;
    p->dry_multiplier = r->dry_multiplier;
    p->dry_base = r->dry_base;
    p->dry_allowed_length = r->dry_allowed_length;
    p->dry_window = r->dry_window;
    p->dry_breakers = r->dry_breakers;
    p->n_dry_breakers = r->n_dry_breakers;
    p->bias = (const logit_bias *)r->bias;
    p->n_bias = r->n_bias;
    p->seed = r->seed;
    p->sample_index = r->sample_index;
    p->logprobs = r->logprobs || r->n_top_logprobs;
    p->n_top_logprobs = r->n_top_logprobs;
    q.method = r->method;
    q.method_arg = r->method_arg;
    q.priority = (gen_priority)r->priority;
    q.share = r->share;
    q.cache_space = r->cache_space;
    q.no_cache = r->no_cache;
    q.collect = r->collect;
    q.cancel = (cancellation *)r->cancel;
    q.id = r->id ? r->id : "";
    q.prompt = r->prompt;
    q.n_prompt = r->n_prompt;
    q.said = r->said;
    q.n_said = r->n_said;
    q.max_tokens = r->max_tokens;
    q.stops = (const stop_string *)r->stops;
    q.n_stops = r->n_stops;
    q.stop_ids = r->stop_ids;
    q.n_stop_ids = r->n_stop_ids;
    q.ignore_eos = r->ignore_eos;
    q.min_tokens = r->min_tokens;
    q.special = r->special;
    q.prompt_logprobs = r->prompt_logprobs;
    q.prompt_logits = r->prompt_logits;
    q.queue_timeout_us = r->queue_timeout_us;
    q.first_token_timeout_us = r->first_token_timeout_us;
    q.total_timeout_us = r->total_timeout_us;
    return q;
}

/* The notify of one session; engine_submit takes one function for all. */
static void tell(void *ctx) {
    const heddle_session *s = ctx;
    if (s->notify) s->notify(s->notify_ctx);
}

heddle_status heddle_open(heddle_engine *e, const heddle_request *reqs, size_t n, heddle_session **out,
                          heddle_error *err) {
    gen_request *q = hd_calloc(n ? n : 1, sizeof *q);
    session **s = hd_calloc(n ? n : 1, sizeof *s);
    hd_err he = {.at = HD_NOWHERE};
    size_t stride = 0;
    hd_status st = HD_OK;
    for (size_t i = 0; i < n; i++) out[i] = NULL;
    if (!q || !s) goto oom;
    if (!n) st = hd_fail_field(&he, HD_INVALID, "n", "there is no request");
    for (size_t i = 0; !st && i < n; i++) {
        const heddle_request *theirs = (const heddle_request *)(const void *)((const char *)reqs + i * stride);
        heddle_request r;
        if ((st = api_take(&r, sizeof r, theirs, "heddle_request", &he)) || (st = check_lists(&r, &he)) ||
            (st = api_method_check(e, &r, &he)))
            break;
        if (!i) stride = r.size;
        if (r.size != stride) {
            st = hd_fail_field(&he, HD_INVALID, "size", "requests of different sizes in one call");
            break;
        }
        if (!(out[i] = hd_calloc(1, sizeof **out))) goto oom;
        out[i]->notify = r.notify;
        out[i]->notify_ctx = r.notify_ctx;
        q[i] = to_engine(&r);
        out[i]->logprobs = q[i].sampling.logprobs;
    }
    if (!st) st = engine_submit(e->e, q, n, tell, (void *const *)out, s, &he);
    if (st) goto fail;
    for (size_t i = 0; i < n; i++) out[i]->s = s[i];
    hd_free(q);
    hd_free(s);
    return HEDDLE_OK;
oom:
    hd_fail(&he, HD_NOMEM, "no memory for a request");
fail:
    for (size_t i = 0; i < n; i++) {
        hd_free(out[i]);
        out[i] = NULL;
    }
    hd_free(q);
    hd_free(s);
    return refuse(err, &he);
}
