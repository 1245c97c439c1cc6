/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

#include "base/mem.h"
#include "serve/durable.h"
#include "state/prefix.h"

#include <math.h>
#include <string.h>

/* Upper bounds; the last bucket is +Inf. */
static const double seconds_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,  0.75,
                                        1,     2.5,   5,    7.5,  10,   20,   40,   80,   160,  640,  2560};
static const double token_bounds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
enum { N_SECONDS = sizeof seconds_bounds / sizeof *seconds_bounds, N_TOKENS = sizeof token_bounds / sizeof *token_bounds };

typedef struct {
    uint64_t bucket[N_SECONDS + 1], count;
    double sum;
} hist;

#define HISTS(X)                                                                                                       \
    X(TTFT, "vllm:time_to_first_token_seconds", "submit to first token", true)                                         \
    X(ITL, "vllm:inter_token_latency_seconds", "mean gap between tokens of a request, once per request", true)         \
    X(GAP50, "heddle:inter_token_p50_seconds", "median gap between tokens of a request, once per request", true)       \
    X(GAP99, "heddle:inter_token_p99_seconds", "99th percentile of the gaps of a request, once per request", true)     \
    X(E2E, "vllm:e2e_request_latency_seconds", "body read to last byte queued", true)                                  \
    X(QUEUE, "vllm:request_queue_time_seconds", "submit to admission", true)                                           \
    X(PREFILL, "vllm:request_prefill_time_seconds", "admission to first token", true)                                  \
    X(DECODE, "vllm:request_decode_time_seconds", "first token to end", true)                                          \
    X(PROMPT, "vllm:request_prompt_tokens", "prompt tokens of a request", false)                                       \
    X(GENERATED, "vllm:request_generation_tokens", "generated tokens of a request", false)                             \
    X(N, "vllm:request_params_n", "n of a request", false)
enum {
#define X(id, name, help, seconds) HIST_##id,
    HISTS(X)
#undef X
    N_HISTS
};

struct metrics {
    uint64_t status[600];
    uint64_t refused_connections, cut_readers;
    uint64_t prompt_tokens, cached_tokens, generated_tokens, paused_us, preemptions;
    uint64_t finished[2]; /* stop, length */
    uint64_t misses[N_PREFIX_MISSES];
    hist h[N_HISTS];
};

metrics *metrics_new(void) { return hd_calloc(1, sizeof(metrics)); }
void metrics_free(metrics *m) { hd_free(m); }
void metrics_status(metrics *m, int status) { m->status[status >= 0 && status < 600 ? status : 0]++; }
void metrics_refused_connection(metrics *m) { m->refused_connections++; }
void metrics_cut_reader(metrics *m) { m->cut_readers++; }

static void observe(hist *h, const double *bounds, int n, double v) {
    int i = 0;
    while (i < n && v > bounds[i]) i++;
    h->bucket[i]++;
    h->count++;
    h->sum += v;
}
static void see_seconds(metrics *m, int i, uint64_t us) { observe(&m->h[i], seconds_bounds, N_SECONDS, (double)us * 1e-6); }
static void see_tokens(metrics *m, int i, uint64_t n) { observe(&m->h[i], token_bounds, N_TOKENS, (double)n); }

void metrics_generation(metrics *m, finish_reason finish, const gen_stats *s) {
    m->prompt_tokens += s->prompt_tokens;
    m->cached_tokens += s->cached_tokens;
    for (int i = 0; i < N_PREFIX_MISSES; i++) m->misses[i] += s->cache_miss == prefix_miss_name((prefix_miss)i);
    m->generated_tokens += s->generated_tokens;
    m->paused_us += s->paused_us;
    m->preemptions += s->preemptions;
    if (finish != FINISH_STOP && finish != FINISH_LENGTH) return;
    m->finished[finish == FINISH_LENGTH]++;
    see_seconds(m, HIST_QUEUE, s->queue_us);
    see_seconds(m, HIST_PREFILL, s->prefill_us);
    see_seconds(m, HIST_TTFT, s->queue_us + s->prefill_us);
    see_seconds(m, HIST_DECODE, s->decode_us);
    if (s->generated_tokens > 1) see_seconds(m, HIST_ITL, s->decode_us / (s->generated_tokens - 1));
    if (s->gap_p50_us) see_seconds(m, HIST_GAP50, s->gap_p50_us);
    if (s->gap_p99_us) see_seconds(m, HIST_GAP99, s->gap_p99_us);
    see_tokens(m, HIST_PROMPT, s->prompt_tokens);
    see_tokens(m, HIST_GENERATED, s->generated_tokens);
}

void metrics_request(metrics *m, const gen *g, uint64_t e2e_us) {
    see_seconds(m, HIST_E2E, e2e_us);
    see_tokens(m, HIST_N, g->plan.n);
}

/* A label value: backslash, quote and line feed escaped. */
static void label(hd_buf *b, const char *s) {
    for (; *s; s++) {
        if (*s == '\n') buf_str(b, "\\n");
        else {
            if (*s == '"' || *s == '\\') buf_byte(b, '\\');
            buf_byte(b, *s);
        }
    }
}

static void head(hd_buf *b, const char *name, const char *type, const char *help) {
    buf_fmt(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void value(hd_buf *b, double v) {
    if (v == floor(v) && fabs(v) < 1e15) buf_fmt(b, " %.0f\n", v);
    else buf_fmt(b, " %.9g\n", v);
}

static void one(hd_buf *b, const char *labels, const char *name, const char *type, const char *help, double v) {
    head(b, name, type, help);
    buf_fmt(b, "%s{%s}", name, labels);
    value(b, v);
}

static void write_hist(hd_buf *b, const char *labels, const char *name, const char *help, const hist *h,
                       const double *bounds, int n) {
    uint64_t c = 0;
    head(b, name, "histogram", help);
    for (int i = 0; i < n; i++) {
        c += h->bucket[i];
        buf_fmt(b, "%s_bucket{%s,le=\"%g\"} %llu\n", name, labels, bounds[i], (unsigned long long)c);
    }
    buf_fmt(b, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s}", name, labels, (unsigned long long)h->count, name, labels);
    value(b, h->sum);
    buf_fmt(b, "%s_count{%s} %llu\n", name, labels, (unsigned long long)h->count);
}

/* Who waits, by class and by reason.  Both sets are fixed: no label comes from a client. */
static void write_queue(hd_buf *b, const char *labels, const engine_view *v) {
    static const char *const reasons[] = {"rows", "pages", "order", "exclusive_job", "draining", "other"};
    enum { N_REASONS = sizeof reasons / sizeof *reasons };
    uint32_t by_class[N_PRIORITIES] = {0}, by_reason[N_REASONS] = {0};
    for (uint32_t i = 0; i < v->n_queue; i++) {
        const row_view *r = &v->queue[i];
        int k = 0;
        while (k < N_REASONS - 1 && strcmp(reasons[k], r->wait_reason ? r->wait_reason : "order") != 0) k++;
        by_reason[k]++;
        by_class[r->priority - PRIORITY_HIGH]++;
    }
    head(b, "heddle:queue_requests", "gauge", "requests that wait, by priority class");
    for (int i = 0; i < N_PRIORITIES; i++)
        buf_fmt(b, "heddle:queue_requests{%s,priority=\"%s\"} %u\n", labels, priority_name((gen_priority)(PRIORITY_HIGH + i)), by_class[i]);
    head(b, "heddle:queue_reasons", "gauge", "requests that wait, by what they wait for");
    for (int i = 0; i < N_REASONS; i++)
        buf_fmt(b, "heddle:queue_reasons{%s,reason=\"%s\"} %u\n", labels, reasons[i], by_reason[i]);
}

static void write_durable(server *s, hd_buf *b, const char *l) {
    journal_stat t;
    journal_stats(durable_log(s->dur), &t);
    one(b, l, "heddle:durable_running", "gauge", "durable requests that have not ended", t.running);
    one(b, l, "heddle:durable_stored", "gauge", "durable requests in the log", (double)t.requests);
    one(b, l, "heddle:durable_bytes", "gauge", "bytes of the request log", (double)t.bytes);
    one(b, l, "heddle:durable_accepted_total", "counter", "durable requests accepted", (double)t.accepted);
    one(b, l, "heddle:durable_repeated_total", "counter", "requests that raced with one of the same key", (double)t.repeated);
    one(b, l, "heddle:durable_refused_total", "counter", "durable requests refused, log full", (double)t.refused);
    one(b, l, "heddle:durable_finished_total", "counter", "durable requests whose end is on disk", (double)t.finished);
    one(b, l, "heddle:durable_events_total", "counter", "events on disk", (double)t.events);
    head(b, "heddle:durable_lost_total", "counter", "requests that lost durability, by reason");
    buf_fmt(b, "heddle:durable_lost_total{%s,reason=\"queue\"} %llu\n", l, (unsigned long long)t.lost_queue);
    buf_fmt(b, "heddle:durable_lost_total{%s,reason=\"write\"} %llu\n", l, (unsigned long long)t.lost_write);
    buf_fmt(b, "heddle:durable_lost_total{%s,reason=\"space\"} %llu\n", l, (unsigned long long)t.lost_space);
    one(b, l, "heddle:durable_expired_total", "counter", "stored requests deleted after their time", (double)t.expired);
    one(b, l, "heddle:durable_evicted_total", "counter", "stored requests that made room", (double)t.evicted);
    one(b, l, "heddle:durable_damaged_total", "counter", "times a row of the log was found damaged", (double)t.damaged);
    one(b, l, "heddle:durable_failed_commits_total", "counter", "failed writes of the log", (double)t.failed_commits);
    one(b, l, "heddle:durable_queue_bytes", "gauge", "events on their way to the disk", (double)t.queue_bytes);
    one(b, l, "heddle:durable_commit_max_seconds", "gauge", "longest commit", (double)t.commit_us_max * 1e-6);
}

void metrics_write(server *s, hd_buf *b) {
    metrics *m = s->met;
    server_phase phase = server_phase_now(s);
    engine_view v = {0};
    hd_buf lb;
    const char *l;
    buf_init(&lb, 4096);
    buf_str(&lb, "model_name=\"");
    label(&lb, phase == PHASE_LOADING ? "" : s->info->name);
    buf_str(&lb, "\",engine=\"0\"");
    l = buf_cstr(&lb);
    if (phase != PHASE_LOADING) {
        v.cap_queue = s->max_rows + s->max_queued;
        if (!(v.queue = hd_calloc(v.cap_queue, sizeof *v.queue))) v.cap_queue = 0; /* the totals are still true */
        engine_look(s->eng, &v);
    }

    one(b, l, "vllm:num_requests_running", "gauge", "requests in the running batch", v.running);
    one(b, l, "vllm:num_requests_waiting", "gauge", "requests that wait for admission", v.waiting);
    one(b, l, "vllm:kv_cache_usage_perc", "gauge", "share of the KV pages in use, 0 to 1",
        v.pages_total ? (double)v.pages_used / (double)v.pages_total : 0);
    head(b, "vllm:cache_config_info", "gauge", "geometry of the KV cache");
    buf_fmt(b, "vllm:cache_config_info{%s,block_size=\"%u\",num_gpu_blocks=\"%llu\"} 1\n", l, v.page_tokens,
            (unsigned long long)v.pages_total);
    one(b, l, "vllm:prompt_tokens_total", "counter", "prompt tokens of requests that ended", (double)m->prompt_tokens);
    one(b, l, "vllm:generation_tokens_total", "counter", "tokens generated", (double)v.generated_tokens_total);
    one(b, l, "vllm:prefix_cache_queries_total", "counter", "prompt tokens looked up in the prefix cache", (double)m->prompt_tokens);
    one(b, l, "vllm:prefix_cache_hits_total", "counter", "prompt tokens found there", (double)m->cached_tokens);
    one(b, l, "vllm:num_preemptions_total", "counter", "rows sent back to the queue", (double)v.preemptions_total);
    head(b, "vllm:request_success_total", "counter", "requests that ended, by reason");
    buf_fmt(b, "vllm:request_success_total{%s,finished_reason=\"stop\"} %llu\n", l, (unsigned long long)m->finished[0]);
    buf_fmt(b, "vllm:request_success_total{%s,finished_reason=\"length\"} %llu\n", l, (unsigned long long)m->finished[1]);
#define X(id, name, help, seconds)                                                                                     \
    write_hist(b, l, name, help, &m->h[HIST_##id], seconds ? seconds_bounds : token_bounds, seconds ? N_SECONDS : N_TOKENS);
    HISTS(X)
#undef X
    one(b, l, "vllm:engine_healthy", "gauge", "1 while steps advance", phase != PHASE_LOADING && !v.failed);

    one(b, l, "heddle:max_queued", "gauge", "limit of waiting requests", v.max_queued);
    one(b, l, "heddle:max_rows", "gauge", "limit of running requests", v.max_rows);
    one(b, l, "heddle:requests_planning", "gauge", "requests being parsed and tokenised", s->n_planning);
    one(b, l, "heddle:connections", "gauge", "open connections", s->n_conns);
    one(b, l, "heddle:connections_refused_total", "counter", "connections above the limit", (double)m->refused_connections);
    one(b, l, "heddle:request_body_bytes", "gauge", "request bodies held", (double)s->body_bytes);
    one(b, l, "heddle:planned_bytes", "gauge", "memory that planned requests hold", (double)atomic_load(&s->request_bytes));
    one(b, l, "heddle:reply_bytes", "gauge", "unstreamed replies being collected", (double)s->reply_bytes);
    one(b, l, "heddle:unread_bytes", "gauge", "output that peers have not taken", (double)s->output_bytes);
    one(b, l, "heddle:readers_cut_total", "counter", "connections closed because unread output took too much memory", (double)m->cut_readers);
    one(b, l, "heddle:collected_tokens", "gauge", "tokens held by unstreamed replies", (double)s->collected_tokens);
    one(b, l, "heddle:steps_total", "counter", "steps of the executor", (double)v.steps);
    one(b, l, "heddle:step_tokens", "gauge", "tokens of the last step", v.step_tokens_last);
    one(b, l, "heddle:kv_bytes", "gauge", "bytes of KV in use", (double)v.kv_bytes_used);
    one(b, l, "heddle:kv_budget_bytes", "gauge", "bytes of KV at most", (double)v.kv_bytes_total);
    one(b, l, "heddle:kv_pages_cached", "gauge", "pages kept for reuse", (double)v.pages_cached);
    one(b, l, "heddle:requests_total", "counter", "generations submitted", (double)v.requests_total);
    one(b, l, "heddle:requests_failed_total", "counter", "generations that failed", (double)v.finished_failed);
    one(b, l, "heddle:requests_rejected_total", "counter", "generations refused, queue full", (double)v.rejected_full);
    one(b, l, "heddle:reader_stall_seconds_total", "counter", "time rows paused for a slow reader", (double)m->paused_us * 1e-6);
    one(b, l, "heddle:step_max_seconds", "gauge", "longest step of late", v.step_ms_max / 1000);
    one(b, l, "heddle:preemptions_total", "counter", "rows that gave their pages back", (double)v.preemptions_total);
    one(b, l, "heddle:pauses_total", "counter", "rows paused for a slow reader", (double)v.pauses_total);
    one(b, l, "heddle:faults_contained_total", "counter", "rows ended by a failing step, others went on", (double)v.faults_contained);
    one(b, l, "heddle:exclusive_jobs_total", "counter", "exclusive jobs run", (double)v.exclusive_total);
    one(b, l, "heddle:exclusive_jobs_waiting", "gauge", "exclusive jobs that wait or run", v.leases_waiting);
    one(b, l, "heddle:kv_pages_shared", "gauge", "pages saved by rows that share", (double)v.pages_shared);
    one(b, l, "heddle:kv_pages_evicted_total", "counter", "cached pages that made room", (double)v.pages_evicted);
    one(b, l, "heddle:kv_cached_bytes", "gauge", "bytes of KV kept for reuse", (double)v.kv_bytes_cached);
    if (v.has_store) {
        one(b, l, "heddle:disk_bytes", "gauge", "bytes of cached pages on disk", (double)v.store.bytes);
        one(b, l, "heddle:disk_hits_total", "counter", "pages read back from disk", (double)v.store.hits);
        one(b, l, "heddle:disk_written_bytes_total", "counter", "bytes of pages written", (double)v.store.written_bytes);
        one(b, l, "heddle:disk_dropped_total", "counter", "pages that found no room in the queue", (double)v.store.put_dropped);
        one(b, l, "heddle:disk_write_errors_total", "counter", "failed writes", (double)v.store.write_errors);
    }
    if (s->dur) write_durable(s, b, l);
    head(b, "heddle:prefix_cache_misses_total", "counter", "prompts by why no more of them was cached");
    for (int i = 0; i < N_PREFIX_MISSES; i++)
        buf_fmt(b, "heddle:prefix_cache_misses_total{%s,reason=\"%s\"} %llu\n", l, prefix_miss_name((prefix_miss)i),
                (unsigned long long)m->misses[i]);
    write_queue(b, l, &v);
    head(b, "heddle:requests_cancelled_total", "counter", "generations cancelled, by reason");
    for (int i = 1; i <= CANCEL_FAILED; i++)
        buf_fmt(b, "heddle:requests_cancelled_total{%s,reason=\"%s\"} %llu\n", l, cancel_reason_name((cancel_reason)i),
                (unsigned long long)v.cancelled[i]);
    head(b, "heddle:http_responses_total", "counter", "responses by status");
    for (int i = 0; i < 600; i++)
        if (m->status[i])
            buf_fmt(b, "heddle:http_responses_total{%s,code=\"%d\"} %llu\n", l, i, (unsigned long long)m->status[i]);
    hd_free(v.queue);
    buf_deinit(&lb);
}
