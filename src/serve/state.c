/* state.c - see state.h. */
#include "serve/state.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "serve/durable.h"
#include "serve/request.h"
#include "serve/runner.h"

#include <stdlib.h>
#include <string.h>

/* The id clients know: sessions of one response differ by a suffix behind '#'. */
static void write_id(jsonw *w, const char *id) {
    const char *cut = strchr(id, '#');
    jsonw_key(w, "id"), jsonw_strn(w, id, cut ? (size_t)(cut - id) : strlen(id));
}

static void write_store(jsonw *w, const store_counts *c) {
    const struct {
        const char *key;
        uint64_t v;
    } n[] = {{"files", c->files}, {"pages", c->pages}, {"bytes", c->bytes}, {"cap_bytes", c->cap_bytes},
             {"queue_bytes", c->queue_bytes}, {"hits", c->hits}, {"misses", c->misses}, {"dropped", c->put_dropped},
             {"damaged_files", c->damaged_files}, {"evicted_files", c->evicted_files}, {"written_bytes", c->written_bytes},
             {"read_bytes", c->read_bytes}, {"write_errors", c->write_errors}};
    jsonw_key(w, "disk"), jsonw_obj(w);
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) jsonw_key(w, n[i].key), jsonw_uint(w, n[i].v);
    jsonw_key(w, "writing"), jsonw_bool(w, c->writing);
    jsonw_key(w, "last_error"), jsonw_str(w, c->last_error);
    jsonw_obj_end(w);
}

static bool is_durable(const server *s, const char *id) {
    size_t n = strcspn(id, "#");
    for (const runner *r = s->runners; r; r = r->next)
        if (!r->lost && !strncmp(r->id, id, n) && !r->id[n]) return true;
    return false;
}

static void write_log(const server *s, jsonw *w) {
    journal_stat t;
    uint32_t viewers = 0;
    journal_stats(durable_log(s->dur), &t);
    for (const runner *r = s->runners; r; r = r->next) viewers += r->n_viewers;
    jsonw_key(w, "durable"), jsonw_obj(w);
    jsonw_key(w, "running"), jsonw_uint(w, t.running);
    jsonw_key(w, "stored"), jsonw_uint(w, t.requests);
    jsonw_key(w, "bytes"), jsonw_uint(w, t.bytes);
    jsonw_key(w, "lost"), jsonw_uint(w, t.lost_queue + t.lost_write + t.lost_space);
    jsonw_key(w, "viewers"), jsonw_uint(w, viewers);
    jsonw_key(w, "queue_bytes"), jsonw_uint(w, t.queue_bytes);
    jsonw_obj_end(w);
}

/* Whose it is: ids of sessions carry it where there are several keys (gen_submit.c). */
static bool shown(const server *s, size_t key, const char *id) {
    const char *mark = strchr(id, '~');
    return server_may(s, key, mark ? strtoul(mark + 1, NULL, 10) : 0);
}

bool state_write(server *s, size_t key, hd_buf *out) {
    engine_view v = {0};
    row_view *rows = NULL;
    jsonw w;
    /* The line may hold those who will get a row at the next step on top of those who wait. */
    uint32_t cap_queue = s->max_rows + s->max_queued, cap = s->max_rows + cap_queue;
    if (!(rows = hd_calloc(cap, sizeof *rows))) return false;
    v.rows = rows;
    v.cap_rows = s->max_rows;
    v.queue = rows + s->max_rows;
    v.cap_queue = cap_queue;
    engine_look(s->eng, &v);
    jsonw_init(&w, out);
    jsonw_obj(&w);
    jsonw_key(&w, "rows"), jsonw_arr(&w);
    for (uint32_t i = 0; i < v.n_rows; i++) {
        const row_view *r = &v.rows[i];
        if (!shown(s, key, r->id)) continue;
        jsonw_obj(&w);
        write_id(&w, r->id);
        jsonw_key(&w, "method"), jsonw_str(&w, r->method ? r->method : "autoregressive");
        jsonw_key(&w, "phase"), jsonw_str(&w, row_phase_name(r->phase));
        jsonw_key(&w, "priority"), jsonw_str(&w, priority_name(r->priority));
        jsonw_key(&w, "prompt_tokens"), jsonw_uint(&w, r->prompt_tokens);
        jsonw_key(&w, "prompt_done"), jsonw_uint(&w, r->prompt_done);
        jsonw_key(&w, "cached_tokens"), jsonw_uint(&w, r->cached_tokens);
        jsonw_key(&w, "cache_miss"), jsonw_str(&w, r->cache_miss);
        jsonw_key(&w, "cache_miss_at"), jsonw_uint(&w, r->cache_miss_at);
        jsonw_key(&w, "generated_tokens"), jsonw_uint(&w, r->generated_tokens);
        jsonw_key(&w, "pages"), jsonw_uint(&w, r->pages);
        jsonw_key(&w, "preemptions"), jsonw_uint(&w, r->preemptions);
        if (is_durable(s, r->id)) jsonw_key(&w, "durable"), jsonw_bool(&w, true);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    jsonw_key(&w, "queue"), jsonw_arr(&w);
    for (uint32_t i = 0; i < v.n_queue; i++) {
        const row_view *r = &v.queue[i];
        if (!shown(s, key, r->id)) continue;
        jsonw_obj(&w);
        write_id(&w, r->id);
        jsonw_key(&w, "method"), jsonw_str(&w, r->method ? r->method : "autoregressive");
        jsonw_key(&w, "phase"), jsonw_str(&w, row_phase_name(r->phase));
        jsonw_key(&w, "priority"), jsonw_str(&w, priority_name(r->priority));
        jsonw_key(&w, "prompt_tokens"), jsonw_uint(&w, r->prompt_tokens);
        jsonw_key(&w, "reason"), jsonw_str(&w, r->wait_reason ? r->wait_reason : "order");
        jsonw_key(&w, "waited_ms"), jsonw_uint(&w, r->waited_ms);
        jsonw_key(&w, "expected_wait_ms"), jsonw_uint(&w, r->expected_wait_ms);
        if (is_durable(s, r->id)) jsonw_key(&w, "durable"), jsonw_bool(&w, true);
        jsonw_obj_end(&w);
    }
    jsonw_arr_end(&w);
    jsonw_key(&w, "pages"), jsonw_obj(&w);
    jsonw_key(&w, "total"), jsonw_uint(&w, v.pages_total);
    jsonw_key(&w, "used"), jsonw_uint(&w, v.pages_used);
    jsonw_key(&w, "cached"), jsonw_uint(&w, v.pages_cached);
    jsonw_key(&w, "shared"), jsonw_uint(&w, v.pages_shared);
    jsonw_key(&w, "evicted"), jsonw_uint(&w, v.pages_evicted);
    jsonw_key(&w, "pinned"), jsonw_uint(&w, v.pages_pinned);
    jsonw_key(&w, "pins"), jsonw_uint(&w, v.pins);
    jsonw_key(&w, "page_tokens"), jsonw_uint(&w, v.page_tokens);
    jsonw_obj_end(&w);
    if (v.has_store) write_store(&w, &v.store);
    if (s->dur) write_log(s, &w);
    jsonw_key(&w, "step"), jsonw_obj(&w);
    jsonw_key(&w, "count"), jsonw_uint(&w, v.steps);
    jsonw_key(&w, "tokens_last"), jsonw_uint(&w, v.step_tokens_last);
    jsonw_key(&w, "ms_p50"), jsonw_num(&w, v.step_ms_p50);
    jsonw_key(&w, "ms_max"), jsonw_num(&w, v.step_ms_max);
    jsonw_obj_end(&w);
    /* beyond the contract: limits, and what the server itself holds */
    jsonw_key(&w, "limits"), jsonw_obj(&w);
    jsonw_key(&w, "context"), jsonw_uint(&w, v.ctx);
    jsonw_key(&w, "max_rows"), jsonw_uint(&w, v.max_rows);
    jsonw_key(&w, "max_queued"), jsonw_uint(&w, v.max_queued);
    jsonw_key(&w, "step_tokens"), jsonw_uint(&w, v.step_tokens);
    jsonw_key(&w, "kv_bytes"), jsonw_uint(&w, v.kv_bytes_total);
    jsonw_key(&w, "kv_type"), jsonw_str(&w, kv_scheme_name(v.kv_type));
    jsonw_key(&w, "kv_type_sliding"), jsonw_str(&w, kv_scheme_name(v.kv_type_sliding));
    jsonw_obj_end(&w);
    jsonw_key(&w, "leases_waiting"), jsonw_uint(&w, v.leases_waiting);
    jsonw_key(&w, "planning"), jsonw_uint(&w, s->n_planning);
    jsonw_key(&w, "connections"), jsonw_uint(&w, s->n_conns);
    jsonw_key(&w, "body_bytes"), jsonw_uint(&w, s->body_bytes);
    jsonw_key(&w, "planned_bytes"), jsonw_uint(&w, atomic_load(&s->request_bytes));
    jsonw_key(&w, "reply_bytes"), jsonw_uint(&w, s->reply_bytes);
    jsonw_key(&w, "unread_bytes"), jsonw_uint(&w, s->output_bytes);
    jsonw_key(&w, "collected_tokens"), jsonw_uint(&w, s->collected_tokens);
    jsonw_key(&w, "running"), jsonw_uint(&w, v.running);
    jsonw_key(&w, "waiting"), jsonw_uint(&w, v.waiting);
    jsonw_key(&w, "cancelled"), jsonw_obj(&w);
    for (int i = 1; i <= CANCEL_FAILED; i++) jsonw_key(&w, cancel_reason_name((cancel_reason)i)), jsonw_uint(&w, v.cancelled[i]);
    jsonw_obj_end(&w);
    jsonw_obj_end(&w);
    hd_free(rows);
    return !out->failed;
}
