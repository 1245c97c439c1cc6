/* tell.c - see tell.h. */
#include "exec/tell.h"

#include "exec/engine_int.h"
#include "exec/executor.h"

#include <stdio.h>

enum { STEPS_EVERY_US = 1000000 };

static bool on(void) { return hd_log_on(HD_LOG_DEBUG); }
static double ms(uint64_t us) { return (double)us / 1000; }

void tell_opened(const executor *x) {
    const engine_options *o = &x->opt;
    uint64_t one = engine_plan_row_bytes(&x->plan, o->ctx);
    if (!on()) return;
    hd_log(HD_LOG_DEBUG, "engine: context %u, %u rows, %u tokens a step, keys and values %.1f MiB in pages of %u tokens (%s), a row of the context %.1f MiB, cache %s",
           o->ctx, o->max_rows, o->step_tokens, (double)o->kv_budget_bytes / (1 << 20), o->page_tokens, kv_scheme_name(o->kv_type),
           (double)one / (1 << 20), o->no_cache ? "off" : o->store ? "on, and on disk" : "on");
}

void tell_taken(const char *id, const gen_request *q, uint32_t n_live) {
    static const char *const classes[] = {"high", "normal", "low"};
    char cap[40] = "";
    if (!on()) return;
    if (q->max_tokens && q->max_tokens != GEN_NO_CAP) snprintf(cap, sizeof cap, ", at most %u to come", q->max_tokens);
    hd_log(HD_LOG_DEBUG, "%s: taken: %s, %zu prompt tokens%s, priority %s; %u running or waiting", id,
           q->method ? q->method : "autoregressive", q->n_prompt, cap, classes[q->priority - PRIORITY_HIGH], n_live);
}

void tell_admitted(const row *r, uint64_t now) {
    const executor *x = r->x;
    const char *id = r->s->copy.id;
    if (!on()) return;
    if (r->preemptions) {
        hd_log(HD_LOG_DEBUG, "%s: goes on after %.1f ms: %u of %u tokens are there still; %u rows", id, ms(now - r->t_preempted_us), r->n_done,
               r->n_tokens, x->n_rows);
        return;
    }
    hd_log(HD_LOG_DEBUG, "%s: admitted after %.1f ms: %u of %u prompt tokens cached (the next: %s), %.1f MiB set aside; %u rows", id,
           ms(now - r->s->t_submit_us), r->n_taken, r->n_prompt, prefix_miss_name(r->miss), (double)r->reserved_bytes / (1 << 20), x->n_rows);
}

void tell_first(const row *r, uint64_t now) {
    if (!on()) return;
    hd_log(HD_LOG_DEBUG, "%s: first token %.1f ms after it was admitted", r->s->copy.id, ms(now - r->t_admit_us));
}

void tell_preempted(const row *r) {
    if (!on()) return;
    hd_log(HD_LOG_DEBUG, "%s: gives way with %u tokens; %u rows stay", r->s->copy.id, r->n_tokens, r->x->n_rows);
}

void tell_ended(const session *s, const gen_event *end) {
    const gen_stats *t = &end->stats;
    const char *why = "";
    char more[120] = "";
    int n = 0;
    if (!on()) return;
    if (end->finish == FINISH_CANCELLED) why = cancel_reason_name(end->reason);
    else if (end->finish == FINISH_FAILED) why = end->err.msg;
    else if (end->finish == FINISH_STOP) why = end->ended_by_eos ? "end of text" : end->stop_index >= 0 ? "a stop string" : "";
    if (t->preemptions) n = snprintf(more, sizeof more, ", gave way %u times for %.1f ms", t->preemptions, ms(t->preempted_us));
    if (t->paused_us) snprintf(more + n, sizeof more - (size_t)n, ", its reader lagged for %.1f ms", ms(t->paused_us));
    hd_log(HD_LOG_DEBUG, "%s: ended: %s%s%s; %u prompt tokens (%u cached), %u generated; waited %.1f ms, read for %.1f, decoded for %.1f%s", s->copy.id,
           finish_reason_name(end->finish), *why ? ", " : "", why, t->prompt_tokens, t->cached_tokens, t->generated_tokens, ms(t->queue_us),
           ms(t->prefill_us), ms(t->decode_us), more);
}

void tell_step(executor *x, uint32_t tokens, uint32_t budget, uint64_t us) {
    tell_steps *w = &x->told;
    uint64_t now, evicted;
    char changes[40] = "";
    if (!on()) return;
    now = hd_now_us(x->opt.clock);
    if (!w->steps++) {
        w->t_begin_us = now - us;
        w->budget_min = w->budget_max = budget;
    }
    w->us += us;
    w->tokens += tokens;
    if (us > w->us_max) w->us_max = us;
    if (budget < w->budget_min) w->budget_min = budget;
    if (budget > w->budget_max) w->budget_max = budget;
    if (now - w->t_begin_us < STEPS_EVERY_US && (x->n_rows || now - w->t_told_us < STEPS_EVERY_US)) return;
    evicted = prefix_look(x->tree).evicted_pages;
    if (w->budget_min != w->budget_max) snprintf(changes, sizeof changes, "%u to ", w->budget_min);
    hd_log(HD_LOG_DEBUG,
           "engine: %u steps of %.1f ms (longest %.1f) with %llu tokens made %llu; at most %s%u tokens a step; %u rows now; "
           "%llu pages dropped from the cache, %llu times a row gave way, %llu times a reader lagged",
           w->steps, ms(w->us / w->steps), ms(w->us_max), (unsigned long long)w->tokens, (unsigned long long)(x->generated_tokens - w->generated),
           changes, w->budget_max, x->n_rows, (unsigned long long)(evicted - w->evicted), (unsigned long long)(x->preemptions - w->preempted),
           (unsigned long long)(x->pauses - w->paused));
    *w = (tell_steps){.t_told_us = now, .generated = x->generated_tokens, .preempted = x->preemptions, .paused = x->pauses, .evicted = evicted};
}
