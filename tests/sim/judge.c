/* judge.c - the invariants: after each turn from outside, and for each event that a reader takes.
 *
 * What must be true is worked out from what was asked for and from what was seen after the turn before.  The engine's
 * insides are looked at for five things only: how far a row has computed and what its pages hold, how full a queue is,
 * whether the engine was woken, and what all collecting sessions hold. */
#include "base/mem.h"
#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

static sim_slot *slot_of(sim_world *w, const char *id) {
    int i = id[0] == 's' ? atoi(id + 1) : -1;
    SIM_CHECK(w, i >= 0 && i < SIM_MAX_SLOTS && w->slot[i].used && !strcmp(w->slot[i].r.id, id), "the view shows '%s', which nobody asked for", id);
    return &w->slot[i];
}

/* What the row would read is what it thinks: the scripted model writes tokens into pages. */
static void check_pages(sim_world *w, const row *r) {
    const executor *x = &w->e->x;
    for (uint32_t g = 0; g < x->n_groups; g++) {
        uint32_t window = x->info->groups[g].window, page = x->opt.page_tokens, pos = 0;
        if (window && r->n_done + 1 > window) pos = r->n_done + 1 - window;
        for (; pos < r->n_done; pos++) {
            const char *p = r->pages[g][pos / page];
            int32_t id = -1;
            if (p) memcpy(&id, p + pos % page * 1024, sizeof id);
            SIM_CHECK(w, id == r->tokens[pos], "%s has token %d at %u, its page of group %u has %d", r->s->copy.id, r->tokens[pos],
                      pos, g, id);
        }
    }
}

void judge_look(sim_world *w) {
    engine_view *v = &w->view;
    *v = (engine_view){.rows = w->rows, .queue = w->queue, .cap_rows = 16, .cap_queue = 32};
    engine_look(w->e, v);
    for (int i = 0; i < SIM_MAX_SLOTS; i++) w->slot[i].seen.live = w->slot[i].seen.running = false;
    for (uint32_t i = 0; i < v->n_rows; i++) {
        const row_view *r = &v->rows[i];
        sim_slot *s = slot_of(w, r->id);
        SIM_CHECK(w, !s->seen.live, "%s is twice in the view", r->id);
        s->seen.live = s->seen.running = true;
        s->seen.preempted = false;
        s->seen.phase = r->phase;
        s->seen.generated = r->generated_tokens;
        s->seen.prompt_done = r->prompt_done;
        s->seen.preemptions = r->preemptions;
        s->seen.n_done = w->e->x.rows[i]->n_done;
        check_pages(w, w->e->x.rows[i]);
        SIM_CHECK(w, r->prompt_tokens == s->r.req.n_prompt, "%s has a prompt of %u tokens", r->id, r->prompt_tokens);
    }
    for (uint32_t i = 0; i < v->n_queue; i++) {
        const row_view *r = &v->queue[i];
        sim_slot *s = slot_of(w, r->id);
        SIM_CHECK(w, !s->seen.live, "%s is twice in the view", r->id);
        s->seen.live = true;
        s->seen.preempted = r->phase == ROW_PREEMPTED;
        s->was_row |= s->seen.preempted; /* it may have come and gone within a turn */
        s->seen.phase = r->phase;
        s->seen.n_done = 0;
    }
}

static bool is_full(const sim_slot *s) {
    return s->s && !s->s->collect && (s->s->n >= SESSION_MAX_TOKENS || s->s->text.len - s->s->text_at >= SESSION_MAX_TEXT);
}

/* A reader that took a little from a full queue does not wake the engine for it: only at half, or with all logits read. */
static bool half_read(const sim_slot *s) {
    if (!s->used || !s->s || !s->seen.running || !s->s->starved) return false;
    if (!s->s->collect && (s->s->n > SESSION_MAX_TOKENS / 2 || s->s->text.len - s->s->text_at > SESSION_MAX_TEXT / 2)) return true;
    return s->r.req.prompt_logits && (s->s->n_logits || s->s->logits_at);
}

void judge_before(sim_world *w) {
    w->half_read = false;
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        w->slot[i].was_full = w->slot[i].used && is_full(&w->slot[i]);
        w->half_read |= half_read(&w->slot[i]);
    }
}

/* ---- ends ---- */

static void overdue(const sim_world *w, sim_slot *s, const sim_seen *b, bool surely, int *n, cancel_reason *why) {
    const gen_request *q = &s->r.req;
    uint64_t age = w->now - s->t_submit_us, idle = w->p->opt.idle_timeout_us;
    uint64_t since = surely && s->t_paused_us > s->t_read_us ? s->t_paused_us : s->t_read_us;
    *n = 0;
    if (q->total_timeout_us && age >= q->total_timeout_us) why[(*n)++] = CANCEL_DEADLINE_TOTAL;
    if (q->first_token_timeout_us && !b->generated && age >= q->first_token_timeout_us) why[(*n)++] = CANCEL_DEADLINE_FIRST_TOKEN;
    if (q->queue_timeout_us && !s->was_row && age >= q->queue_timeout_us) why[(*n)++] = CANCEL_DEADLINE_QUEUE;
    /* A row that gave way while it was paused may come back only to find that its reader is gone. */
    if ((b->phase == ROW_PAUSED || (!surely && b->preempted)) && !s->collect && w->now - since >= idle)
        why[(*n)++] = CANCEL_IDLE_TIMEOUT;
}

static void ended(sim_world *w, sim_slot *s, const sim_seen *b) {
    int n_sure;
    cancel_reason sure[4];
    overdue(w, s, b, true, &n_sure, sure);
    overdue(w, s, b, false, &s->n_end_cancel, s->end_cancel);
    s->n_at_end = b->generated;
    s->end_stop = s->stop;
    if (s->cancel) s->end_cancel[0] = s->cancel, s->n_end_cancel = 1, s->end_stop = false;
    else if (s->stop || s->n_end_cancel != n_sure) s->end_free = true;
    SIM_CHECK(w, !s->was_full || s->n_end_cancel || s->end_stop, "%s ended by itself though its queue was full", s->r.id);
}

static void still_lives(sim_world *w, sim_slot *s, const sim_seen *b) {
    cancel_reason why[4];
    int n;
    SIM_CHECK(w, !s->cancel, "%s lives a turn after its cancel (%s)", s->r.id, cancel_reason_name(s->cancel));
    SIM_CHECK(w, !s->stop, "%s lives a turn after it was told to stop", s->r.id);
    overdue(w, s, b, true, &n, why);
    SIM_CHECK(w, !n, "%s lives past its deadline (%s)", s->r.id, cancel_reason_name(why[0]));
}

/* ---- progress ---- */

/* Of those that ran in this turn; one that ended or gave way in it did. */
static bool oldest_collecting(const sim_world *w, const sim_slot *s) {
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        const sim_slot *o = &w->slot[i];
        if (o->collect && o->order < s->order && ((o->used && o->seen.running) || o->left_now)) return false;
    }
    return true;
}

static long long collected(sim_world *w) {
    long long n = 0;
    for (int i = 0; i < SIM_MAX_SLOTS; i++)
        if (w->slot[i].used && w->slot[i].s && w->slot[i].s->collect) n += w->slot[i].s->n;
    return n;
}

/* It waits for a page that another row computes: one that has, or had in this turn, the same tokens up to the end of that
 * page, and that got on. */
static bool waits_for_another(const sim_world *w, const sim_slot *s) {
    uint32_t end = s->seen.n_done + w->p->opt.page_tokens;
    if (s->seen.phase != ROW_WAITING_PREFIX || w->p->opt.no_cache || s->r.req.no_cache) return false;
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        const sim_slot *o = &w->slot[i];
        uint32_t both = o->r.req.n_prompt < s->r.req.n_prompt ? (uint32_t)o->r.req.n_prompt : (uint32_t)s->r.req.n_prompt;
        if (o == s || !((o->used && o->seen.running) || o->left_now) || o->r.req.no_cache) continue;
        if ((o->r.req.cache_space != NULL) != (s->r.req.cache_space != NULL)) continue;
        if (both > end) both = end; /* what a preempted row had generated is not compared */
        if (!memcmp(o->r.prompt, s->r.prompt, both * sizeof *s->r.prompt)) return true;
    }
    return false;
}

static void check_row(sim_world *w, sim_slot *s, const sim_seen *b, bool stepped, long long held) {
    const sim_seen *a = &s->seen;
    SIM_CHECK(w, a->generated >= b->generated && a->generated <= s->o.cap, "%s went from %u to %u tokens, cap %u", s->r.id,
              b->generated, a->generated, s->o.cap);
    if (s->was_full)
        SIM_CHECK(w, a->generated == b->generated, "%s got a token though its queue was full", s->r.id);
    if (a->phase == ROW_PAUSED && (b->phase != ROW_PAUSED || a->preemptions != b->preemptions)) s->t_paused_us = w->now;
    if (w->no_memory || a->preemptions != b->preemptions) return;
    if (a->phase != ROW_PAUSED) {
        SIM_CHECK(w, stepped, "%s is not paused, but no step ran", s->r.id);
        SIM_CHECK(w, a->generated != b->generated || a->n_done != b->n_done || !b->running || waits_for_another(w, s),
                  "a step left %s where it was: %u computed, %u tokens", s->r.id, a->n_done, a->generated);
        SIM_CHECK(w, a->n_done || b->running || waits_for_another(w, s), "%s was admitted and left out of the step", s->r.id);
    } else if (s->collect) {
        SIM_CHECK(w, s->r.req.prompt_logits || (held >= (long long)w->p->opt.collect_tokens && !oldest_collecting(w, s)),
                  "%s collects and is paused at %lld of %llu", s->r.id, held, (unsigned long long)w->p->opt.collect_tokens);
    } else {
        SIM_CHECK(w, !s->s || is_full(s) || s->r.req.prompt_logits, "%s is paused with %u records unread", s->r.id, s->s->n);
    }
}

/* ---- who was admitted ---- */

static uint32_t rank_of(const sim_world *w, const sim_slot *s) {
    uint32_t class = (uint32_t)(s->priority - PRIORITY_HIGH);
    uint64_t steps = (w->now - s->t_submit_us) / w->p->opt.age_us;
    return steps >= class ? 0 : class - (uint32_t)steps;
}

static uint64_t projected_pages(const sim_world *w, const sim_slot *s, uint32_t generated) {
    uint64_t have = s->r.req.n_prompt + generated, more;
    more = s->max_tokens == GEN_NO_CAP ? w->p->opt.default_max_tokens : s->max_tokens > generated ? s->max_tokens - generated : 0;
    have = have + more < w->ctx ? have + more : w->ctx;
    return (have + w->p->opt.page_tokens - 1) / w->p->opt.page_tokens;
}

/* Pages of others that may count for it. */
static uint64_t may_share(const sim_world *w, const sim_slot *s) {
    if (w->p->opt.no_cache || s->r.req.no_cache) return 0;
    return (s->r.req.n_prompt - 1) / w->p->opt.page_tokens;
}

static bool same_line(const sim_slot *a, const sim_slot *b) {
    const char *x = a->r.req.share, *y = b->r.req.share;
    return a->priority == b->priority && !strcmp(x ? x : "", y ? y : "");
}

/* Behind an older one of its own line it has no claim: that one may have aged into a rank above. */
static bool heads_its_line(const sim_world *w, const sim_slot *s) {
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        const sim_slot *o = &w->slot[i];
        if (o->used && o->seen.live && !o->seen.running && o->order < s->order && same_line(o, s)) return false;
    }
    return true;
}

/* `in` became a row in this turn and had not been one; nobody may have a better claim: of its own line no one older, and
 * of each more urgent rank only those behind a head that needs more pages and has not waited for long. */
static void check_admission(sim_world *w, const sim_slot *in, const sim_seen *before) {
    const sim_slot *waits[N_PRIORITIES] = {NULL};
    bool blocked[N_PRIORITIES] = {false};
    uint64_t need = projected_pages(w, in, 0) - may_share(w, in); /* it had generated nothing then */
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        const sim_slot *s = &w->slot[i];
        if (s == in || !s->used || !s->seen.live || s->seen.running) continue;
        if (projected_pages(w, s, s->seen.generated) > need && w->now - s->t_submit_us < w->p->opt.age_us)
            blocked[rank_of(w, s)] = true;
        if (before[i].running || s->seen.preemptions != before[i].preemptions) continue; /* it gave way only now */
        if (same_line(s, in))
            SIM_CHECK(w, s->order > in->order, "%s overtook %s of its own line", in->r.id, s->r.id);
        if (heads_its_line(w, s)) waits[rank_of(w, s)] = s;
    }
    for (uint32_t r = 0; r < rank_of(w, in); r++)
        SIM_CHECK(w, !waits[r] || blocked[r], "%s overtook the more urgent %s", in->r.id, waits[r]->r.id);
}

static void check_jobs(sim_world *w, bool admitted, const engine_view *before) {
    uint32_t ahead = 0;
    for (sim_job *j = w->job; j < w->job + SIM_MAX_JOBS; j++) {
        if (!j->asked || j->told) continue;
        SIM_CHECK(w, !admitted, "a row was admitted though a job waits");
        if (before->running == 0 || w->now >= j->due_us) j->overdue_turns++;
        SIM_CHECK(w, w->no_memory || j->overdue_turns <= 2 + 2 * ahead, "a job waits though nothing runs, or past its patience");
        ahead++;
    }
}

/* ---- a turn ---- */

static uint64_t n_ended(const engine_view *v) {
    uint64_t n = v->finished_stop + v->finished_length + v->finished_failed;
    for (int i = 0; i < 16; i++) n += v->cancelled[i];
    return n;
}

static void check_counts(sim_world *w, long long held) {
    const engine_view *v = &w->view;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < v->n_rows; i++) pages += v->rows[i].pages;
    SIM_CHECK(w, v->requests_total == w->accepted, "%llu requests are counted of %llu", (unsigned long long)v->requests_total,
              (unsigned long long)w->accepted);
    SIM_CHECK(w, n_ended(v) + v->running + v->waiting == w->accepted, "%llu ended + %u run + %u wait, but %llu were accepted",
              (unsigned long long)n_ended(v), v->running, v->waiting, (unsigned long long)w->accepted);
    SIM_CHECK(w, v->running == v->n_rows && v->waiting == v->n_queue, "the view's lists and its numbers differ");
    SIM_CHECK(w, v->running <= w->p->opt.max_rows, "%u rows run", v->running);
    SIM_CHECK(w, v->running + v->waiting <= w->p->opt.max_rows + w->p->opt.max_queued, "%u wait", v->waiting);
    SIM_CHECK(w, v->pages_used + v->pages_shared == pages, "%llu pages are taken and %llu shared, rows hold %llu",
              (unsigned long long)v->pages_used, (unsigned long long)v->pages_shared, (unsigned long long)pages);
    SIM_CHECK(w, v->kv_bytes_used + v->kv_bytes_cached <= w->p->opt.kv_budget_bytes, "the budget is exceeded");
    SIM_CHECK(w, v->kv_bytes_pinned <= w->p->opt.kv_budget_bytes / 2 && v->pins <= MAX_PINS, "%u pins hold %llu bytes", v->pins,
              (unsigned long long)v->kv_bytes_pinned);
    SIM_CHECK(w, !w->p->opt.no_cache || (!v->pages_cached && !v->pages_shared), "pages are kept though there is no cache");
    SIM_CHECK(w, held == atomic_load(&w->e->pool->held), "collecting sessions hold %lld, %lld are counted", held,
              (long long)atomic_load(&w->e->pool->held));
}

void judge_turn(sim_world *w, uint64_t slept_until) {
    sim_seen before[SIM_MAX_SLOTS];
    engine_view vb = w->view;
    bool admitted = false, stepped, progress;
    long long held;
    for (int i = 0; i < SIM_MAX_SLOTS; i++) before[i] = w->slot[i].seen;
    judge_look(w);
    held = collected(w);
    stepped = w->view.steps != vb.steps;
    progress = stepped || n_ended(&w->view) != n_ended(&vb) || w->view.exclusive_total != vb.exclusive_total;
    SIM_CHECK(w, !progress || slept_until <= w->now || w->half_read, "there was work, but the engine would have slept");
    check_counts(w, held);
    for (int i = 0; i < SIM_MAX_SLOTS; i++) w->slot[i].left_now = w->slot[i].used && before[i].live && (!w->slot[i].seen.live || (before[i].running && !w->slot[i].seen.running));
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        sim_slot *s = &w->slot[i];
        const sim_seen *b = &before[i];
        if (!s->used) continue;
        SIM_CHECK(w, b->live || !s->seen.live, "%s came back", s->r.id);
        if (!b->live) continue;
        s->may_lack_memory |= w->no_memory;
        if (!s->seen.live) {
            if (s->s) ended(w, s, b);
            else s->used = false;
            continue;
        }
        still_lives(w, s, b);
        if (s->seen.running) check_row(w, s, b, stepped, held);
    }
    for (int i = 0; i < SIM_MAX_SLOTS; i++) {
        sim_slot *s = &w->slot[i];
        if (!s->used || !s->seen.running) continue;
        admitted |= !before[i].running;
        if (!s->was_row) check_admission(w, s, before);
        s->was_row = true;
    }
    check_jobs(w, admitted, &vb);
}

/* ---- events ---- */

static bool is_forced(const sim_slot *s, uint32_t at, int32_t *id) {
    for (uint32_t i = 0; i < s->n_forced; i++)
        if (s->forced_at[i] == at) return *id = s->forced[i], true;
    return false;
}

static void check_logprobs(sim_world *w, const sim_slot *s, const sample_result *got, const sample_result *want) {
    bool same = got->n_top == want->n_top && !memcmp(&got->logprob, &want->logprob, sizeof(float));
    for (uint32_t i = 0; same && i < got->n_top; i++)
        same = got->top[i].id == want->top[i].id && !memcmp(&got->top[i].logprob, &want->top[i].logprob, sizeof(float));
    SIM_CHECK(w, same, "%s: the logprobs of token %u differ", s->r.id, s->o.n_generated);
}

static void take_text(sim_world *w, sim_slot *s, const gen_event *ev) {
    SIM_CHECK(w, s->n_text + ev->n_text <= s->o.n_text && (!ev->n_text || !memcmp(s->o.text + s->n_text, ev->text, ev->n_text)),
              "%s: text that the tokens do not give, at byte %zu", s->r.id, s->n_text);
    s->n_text += ev->n_text;
}

static void on_token(sim_world *w, sim_slot *s, const gen_event *ev) {
    const gen_request *q = &s->r.req;
    oracle *o = &s->o;
    sample_result want;
    int32_t id;
    size_t passed;
    SIM_CHECK(w, ev->position == q->n_prompt + o->n_generated, "%s: a token at position %llu, not %zu", s->r.id,
              (unsigned long long)ev->position, q->n_prompt + o->n_generated);
    SIM_CHECK(w, !o->over && o->n_generated < o->cap, "%s: a token after its end", s->r.id);
    SIM_CHECK(w, !q->prompt_logprobs || s->n_prompt_read + 1 == q->n_prompt, "%s: a token before the prompt's scores", s->r.id);
    SIM_CHECK(w, !q->prompt_logits || s->n_logits_read == q->n_prompt, "%s: a token before the prompt's logits", s->r.id);
    if (is_forced(s, o->n_generated, &id)) {
        SIM_CHECK(w, ev->sample.id == id, "%s: token %u is %d, steering put %d", s->r.id, o->n_generated, ev->sample.id, id);
    } else {
        SIM_CHECK(w, oracle_next(o, &want), "%s: a token where the script fails", s->r.id);
        SIM_CHECK(w, ev->sample.id == want.id, "%s: token %u is %d, not %d", s->r.id, o->n_generated, ev->sample.id, want.id);
        if (q->sampling.logprobs) check_logprobs(w, s, &ev->sample, &want);
    }
    oracle_push(o, ev->sample.id);
    SIM_CHECK(w, !o->by_eos, "%s: an ending token is handed out", s->r.id);
    passed = oracle_released(o, false);
    take_text(w, s, ev);
    SIM_CHECK(w, s->n_text == passed, "%s: %zu bytes of text have come by token %u, not %zu", s->r.id, s->n_text, o->n_generated,
              passed);
}

static void on_logits(sim_world *w, sim_slot *s, const gen_event *ev) {
    float want[V_SIZE] = {0};
    SIM_CHECK(w, s->r.req.prompt_logits && ev->position == s->n_logits_read && ev->n_logits == V_SIZE, "%s: logits of position %llu",
              s->r.id, (unsigned long long)ev->position);
    if (++s->n_logits_read == s->r.req.n_prompt) oracle_logits(s->o.rule, 0, want);
    SIM_CHECK(w, !memcmp(want, ev->logits, sizeof want), "%s: other logits", s->r.id);
}

static void on_vector(sim_world *w, sim_slot *s, const gen_event *ev) {
    uint32_t n = (uint32_t)s->r.req.n_prompt, pooling = (uint32_t)s->r.req.method_arg & 0xff;
    uint32_t lo = pooling == 0 ? n - 1 : 0, hi = pooling == 2 ? 1 : n;
    SIM_CHECK(w, s->r.req.max_tokens == 0 && ev->n_vector == model_get(w->m)->width, "%s: a vector of %zu", s->r.id, ev->n_vector);
    for (uint32_t i = 0; i < ev->n_vector; i++) {
        double sum = 0; /* the script's hidden states: model/script.c */
        for (uint32_t p = lo; p < hi; p++) sum += (double)((31ull * (uint32_t)s->r.prompt[p] + 7ull * (p + 1) * (i + 1)) % 101) - 50;
        SIM_CHECK(w, ev->vector[i] == (float)(sum / (hi - lo)), "%s: element %u of the vector differs", s->r.id, i);
    }
    s->read_vector = true;
}

/* May it take anything up? */
static bool caches(const sim_world *w, const sim_slot *s) {
    return !w->p->opt.no_cache && !s->r.req.no_cache && !s->r.req.prompt_logprobs && !s->r.req.prompt_logits;
}

static void check_natural_end(sim_world *w, sim_slot *s, const gen_event *ev) {
    oracle *o = &s->o;
    sample_result next;
    int32_t id;
    uint64_t computed;
    if (s->r.req.method && s->r.req.method[0] == 'e') {
        SIM_CHECK(w, ev->finish == FINISH_STOP && s->read_vector, "%s: an embedding without a vector", s->r.id);
        return;
    }
    if (!o->over) {
        if (is_forced(s, o->n_generated, &id)) next.id = id;
        else SIM_CHECK(w, oracle_next(o, &next), "%s ended where its script fails", s->r.id);
        SIM_CHECK(w, ev->ended_by_eos, "%s ended after %u tokens, though %d comes next", s->r.id, o->n_generated, next.id);
        oracle_push(o, next.id);
        SIM_CHECK(w, o->by_eos, "%s ended by EOS, but %d comes next", s->r.id, next.id);
    }
    oracle_released(o, true);
    SIM_CHECK(w, ev->finish == (o->decided ? FINISH_STOP : o->finish) && ev->stop_index == o->stop_index && ev->ended_by_eos == o->by_eos,
              "%s ended by %s (stop %d), not %s (stop %d)", s->r.id, finish_reason_name(ev->finish), ev->stop_index,
              finish_reason_name(o->decided ? FINISH_STOP : o->finish), o->stop_index);
    SIM_CHECK(w, !s->r.req.prompt_logprobs || s->n_prompt_read + 1 == s->r.req.n_prompt, "%s ended without all scores", s->r.id);
    w->t->pinned += ev->stats.pinned_tokens > 0;
    SIM_CHECK(w, !ev->stats.pinned_tokens || (s->r.req.pin_us && ev->stats.pinned_tokens <= s->r.req.n_prompt), "%s pinned %u tokens",
              s->r.id, ev->stats.pinned_tokens);
    computed = s->r.req.n_prompt + o->n_generated - (o->n_generated && !o->by_eos);
    if (s->r.req.method) return;
    if (ev->stats.preemptions && caches(w, s)) return; /* what it gave up others may have kept or computed */
    SIM_CHECK(w, ev->stats.computed_tokens + ev->stats.cached_tokens == computed ||
                     (ev->stats.preemptions && ev->stats.computed_tokens > computed),
              "%s computed %llu positions and took up %u, not %llu, with %u preemptions", s->r.id,
              (unsigned long long)ev->stats.computed_tokens, ev->stats.cached_tokens, (unsigned long long)computed,
              ev->stats.preemptions);
    SIM_CHECK(w, ev->stats.cached_tokens < s->r.req.n_prompt, "%s computed nothing of its prompt", s->r.id);
    SIM_CHECK(w, caches(w, s) || !ev->stats.cached_tokens, "%s took up %u tokens", s->r.id, ev->stats.cached_tokens);
}

/* Scoring a prompt takes the logits of its last position too, also when nothing is to be generated. */
static bool may_fail(oracle *o) {
    bool wanted = !o->over || (!o->cap && (o->r->req.prompt_logits || o->r->req.prompt_logprobs));
    return wanted && !oracle_logits(o->rule, o->n_generated, o->logits);
}

static void on_done(sim_world *w, sim_slot *s, const gen_event *ev) {
    oracle *o = &s->o;
    bool known = false, lacked = ev->finish == FINISH_FAILED && ev->err.code == HD_NOMEM;
    s->done = true;
    s->n_generated = ev->stats.generated_tokens;
    SIM_CHECK(w, !s->seen.live, "%s has an end, but is still there", s->r.id);
    if (ev->finish == FINISH_CANCELLED) {
        for (int i = 0; i < s->n_end_cancel; i++) known |= s->end_cancel[i] == ev->reason;
        SIM_CHECK(w, known, "%s is cancelled (%s), for which there was no reason", s->r.id, cancel_reason_name(ev->reason));
        SIM_CHECK(w, o->n_generated == s->n_at_end, "%s had %u tokens when it was cancelled, %u came", s->r.id, s->n_at_end,
                  o->n_generated);
    } else if (lacked) {
        SIM_CHECK(w, s->may_lack_memory, "%s fails for memory, but there was enough", s->r.id);
    } else if (s->end_stop && ev->finish == FINISH_STOP && o->n_generated == s->n_at_end && !ev->ended_by_eos) {
        known = true;
    } else {
        SIM_CHECK(w, !s->n_end_cancel || s->end_free, "%s ended by itself, not by its cancel", s->r.id);
        SIM_CHECK(w, !s->end_stop || s->end_free, "%s ended by itself, not by steering", s->r.id);
        if (ev->finish == FINISH_FAILED)
            SIM_CHECK(w, may_fail(o), "%s failed after %u tokens: %s", s->r.id,
                      o->n_generated, ev->err.msg);
        else if (s->may_lack_memory && ev->finish == FINISH_LENGTH && !o->over) /* its cap could not be raised */
            SIM_CHECK(w, s->max_tokens != s->r.req.max_tokens && o->n_generated >= s->r.req.max_tokens, "%s ended early", s->r.id);
        else check_natural_end(w, s, ev);
    }
    lacked |= ev->finish == FINISH_CANCELLED && s->may_lack_memory; /* then text held at the end may be missing */
    SIM_CHECK(w, lacked || s->n_text == oracle_released(o, true), "%s: %zu bytes of text in all, not %zu", s->r.id, s->n_text,
              oracle_released(o, true));
    SIM_CHECK(w, ev->stats.generated_tokens == o->n_generated + ev->ended_by_eos, "%s: %u tokens by its statistics, %u came", s->r.id,
              ev->stats.generated_tokens, o->n_generated);
    SIM_CHECK(w, ev->stats.prompt_tokens == s->r.req.n_prompt, "%s: a prompt of %u tokens", s->r.id, ev->stats.prompt_tokens);
}

void judge_event(sim_world *w, sim_slot *s, const gen_event *ev) {
    SIM_CHECK(w, ev->kind == EV_NONE || !s->done, "%s: an event after its end", s->r.id);
    if (ev->kind != EV_NONE) s->t_read_us = w->now;
    switch (ev->kind) {
    case EV_NONE: SIM_CHECK(w, s->seen.live || s->done, "%s is over, but its end does not come", s->r.id); break;
    case EV_PROMPT:
        s->n_prompt_read++;
        SIM_CHECK(w, s->r.req.prompt_logprobs && ev->position == s->n_prompt_read && ev->sample.id == s->r.prompt[s->n_prompt_read],
                  "%s: a score of position %llu", s->r.id, (unsigned long long)ev->position);
        break;
    case EV_LOGITS: on_logits(w, s, ev); break;
    case EV_TOKEN: on_token(w, s, ev); break;
    case EV_VECTOR: on_vector(w, s, ev); break;
    case EV_TEXT:
        oracle_released(&s->o, true);
        take_text(w, s, ev);
        break;
    case EV_DONE: on_done(w, s, ev);
    }
}
