/* gen_flow.c - events into replies.  Loop thread.
 *
 * Flow control: events are taken out of a session only while the connection has less than HTTP_OUTPUT_MARK unsent, so
 * a reader that stalls leaves its events in the session's bounded queue and pauses its own row.  Unstreamed replies are
 * collected under one bound for the whole server (options.collect_tokens, max_replies_bytes): at the bound only the oldest goes on, and
 * the held ones read one event now and then so that their sessions do not count as idle.
 * Read: gen_begin_reply, gen_drain, take_event, settle. */
#include "serve/gen.h"

#include "serve/bounds.h"
#include "serve/metrics.h"
#include "serve/stored.h"
#include "serve/stream.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum {
    DRAIN_EVENTS = 64,       /* taken in one turn before other connections get theirs */
    HELD_READ_US = 10000000, /* well below the engine's idle timeout */
    ROOM_RETRY_US = 100000,
};

void gen_frame(gen *g, hd_buf *out) {
    g->frame_at = out->len;
    sse_open(out, g->event_no);
}

void gen_frame_end(gen *g, hd_buf *out) {
    sse_close(out);
    if (g->has_from && g->event_no <= g->from && !out->failed) { /* the client has it */
        out->len = g->frame_at;
        if (out->data) out->data[out->len] = 0;
    }
    g->event_no++;
}

void gen_fail(gen *g, const serve_error *e) {
    conn *c = g->conn;
    bool streaming = c->streaming;
    gen_cancel_sessions(g, CANCEL_FAILED);
    c->gen = NULL;
    if (streaming) {
        http_tell_error(c, e);
        hd_buf *out = &g->srv->scratch;
        buf_clear(out);
        sse_open_plain(out);
        serve_error_json(out, e);
        sse_close(out);
        http_stream_write(c, buf_cstr(out), out->len);
        gen_release(g);
        http_stream_end(c, true);
    } else {
        gen_release(g);
        http_reply_error(c, e);
    }
}

static uint64_t generated(const gen *g) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n_choices; i++) n += g->choices[i].stats.generated_tokens;
    return n;
}

void gen_cancel_error(serve_error *e, cancel_reason why) {
    switch (why) {
    case CANCEL_BY_REQUEST: serve_fail(e, 499, cancel_reason_name(why), NULL, "the generation was cancelled"); break;
    case CANCEL_DEADLINE_QUEUE:
    case CANCEL_DEADLINE_FIRST_TOKEN:
    case CANCEL_DEADLINE_TOTAL:
    case CANCEL_IDLE_TIMEOUT:
        serve_fail(e, 504, cancel_reason_name(why), NULL, "the generation ran into a deadline (%s)",
                   cancel_reason_name(why));
        break;
    case CANCEL_SHUTDOWN:
    case CANCEL_ENGINE_CLOSED:
        serve_fail(e, 503, cancel_reason_name(why), NULL, "the server is shutting down");
        break;
    default: serve_fail(e, 500, "internal_error", NULL, "the generation ended: %s", cancel_reason_name(why));
    }
}

/* Move entries whose text is out (or, at the end, all that were not withheld) into the dialect's pieces. */
static void flush_entries(gen *g, choice *ch, bool all) {
    size_t i = 0;
    while (i < ch->n_pending && (all || ch->pending[i].start < ch->text_bytes)) g->d->entry(g, ch, &ch->pending[i++]);
    if (!i) return; /* pending may be NULL */
    memmove(ch->pending, ch->pending + i, (ch->n_pending - i) * sizeof *ch->pending);
    ch->n_pending -= i;
}

static uint64_t count_chars(const char *s, size_t n) {
    uint64_t c = 0;
    for (size_t i = 0; i < n; i++) c += ((unsigned char)s[i] & 0xC0) != 0x80;
    return c;
}

/* Text of this choice for the client. */
static void emit_text(gen *g, choice *ch, const char *text, size_t n, hd_buf *out) {
    ch->text_bytes += n;
    flush_entries(g, ch, false);
    if (gen_streams(g)) g->d->delta(g, ch, text, n, out);
    else buf_add(&ch->text, text, n);
}

/* A token is known: remember its entry and what text it stands for.  Only when the client wants to see tokens. */
static bool note_token(gen *g, choice *ch, const sample_result *r, bool first, hd_buf *text) {
    token_entry *t;
    if (!hd_grow(&ch->pending, &ch->cap_pending, ch->n_pending + 1, sizeof *ch->pending, GEN_MAX_PENDING)) return false;
    t = &ch->pending[ch->n_pending++];
    t->sample = *r;
    t->start = ch->seen_bytes;
    t->chars = ch->seen_chars;
    t->first = first;
    buf_clear(text);
    detok_push(&ch->dt, g->srv->info->tok, r->id, g->plan.special, text);
    ch->seen_bytes += text->len;
    ch->seen_chars += count_chars(buf_cstr(text), text->len);
    return true;
}

/* A prompt token to echo with its score. */
static void echo_token(gen *g, choice *ch, const sample_result *r, bool first, hd_buf *out) {
    hd_buf text;
    buf_init(&text, 1 << 20);
    if (!note_token(g, ch, r, first, &text)) {
        flush_entries(g, ch, true);
        note_token(g, ch, r, first, &text);
    }
    if (text.len) emit_text(g, ch, buf_cstr(&text), text.len, out);
    buf_deinit(&text);
}

/* The prompt is over, the answer begins: an unfinished character of the prompt does not reach into it. */
static void echo_end(gen *g, choice *ch, hd_buf *out) {
    hd_buf text;
    if (ch->echo_over) return;
    ch->echo_over = true;
    buf_init(&text, 64);
    detok_finish(&ch->dt, &text);
    ch->seen_bytes += text.len;
    ch->seen_chars += count_chars(buf_cstr(&text), text.len);
    if (text.len) emit_text(g, ch, buf_cstr(&text), text.len, out);
    flush_entries(g, ch, true);
    buf_deinit(&text);
}

static void collect_one(gen *g, choice *ch) {
    if (gen_streams(g)) return;
    ch->collected++;
    g->srv->collected_tokens++;
}

static void take_token(gen *g, choice *ch, const gen_event *ev, hd_buf *out) {
    hd_err err;
    collect_one(g, ch);
    /* Without memory, or past the limit, they are not all there: replay_write will see it. */
    if (g->d == &dialect_chat) id_list_add(&ch->ids, ev->sample.id, &err);
    if (g->plan.return_token_ids) buf_fmt(&ch->pieces[PIECE_IDS], "%s%d", ch->pieces[PIECE_IDS].len ? "," : "", ev->sample.id);
    if (g->plan.logprobs) {
        hd_buf text;
        buf_init(&text, 1 << 20);
        if (!note_token(g, ch, &ev->sample, false, &text)) {
            /* Too many tokens without text: show them now, with an empty delta. */
            flush_entries(g, ch, true);
            if (gen_streams(g)) g->d->delta(g, ch, "", 0, out);
            note_token(g, ch, &ev->sample, false, &text);
        }
        buf_deinit(&text);
    }
    if (ev->n_text) emit_text(g, ch, ev->text, ev->n_text, out);
}

/* False: the whole request failed (e is filled). */
static bool take_event(gen *g, choice *ch, const gen_event *ev, hd_buf *out, serve_error *e) {
    switch (ev->kind) {
    case EV_PROMPT:
        collect_one(g, ch);
        echo_token(g, ch, &ev->sample, false, out);
        break;
    case EV_TOKEN:
        if (g->plan.score_prompt) echo_end(g, ch, out);
        take_token(g, ch, ev, out);
        break;
    case EV_TEXT: emit_text(g, ch, ev->text, ev->n_text, out); break;
    case EV_DONE:
        if (g->plan.score_prompt && !ev->stats.generated_tokens) echo_end(g, ch, out);
        ch->done = true;
        ch->finish = ev->finish;
        ch->stop_index = ev->stop_index;
        ch->ended_by_eos = ev->ended_by_eos;
        ch->stats = ev->stats;
        g->n_done++;
        if (!g->view.how) metrics_generation(g->srv->met, ch->finish, &ch->stats); /* else its runner counted it */
        if (ev->finish == FINISH_FAILED) {
            serve_fail(e, 500, "internal_error", NULL, "the generation failed: %s", ev->err.msg);
        } else if (ev->finish == FINISH_CANCELLED) {
            gen_cancel_error(e, ev->reason);
            gen_cancel_sessions(g, ev->reason); /* the other choices are of no use now, but nothing failed */
        } else {
            /* Entries that remain were withheld by the stop string; otherwise they belong to the reply. */
            if (ev->stop_index < 0) flush_entries(g, ch, true);
            else flush_entries(g, ch, false), ch->n_pending = 0;
            if (gen_streams(g)) g->d->finish(g, ch, out);
            gen_submit_more(g, e);
        }
        break;
    case EV_VECTOR: buf_add(&ch->text, (const char *)ev->vector, ev->n_vector * sizeof *ev->vector); break;
    case EV_LOGITS:
    case EV_NONE: break;
    }
    return !e->status;
}

static bool text_failed(const choice *ch) {
    if (ch->text.failed) return true;
    for (int i = 0; i < N_PIECES; i++)
        if (ch->pieces[i].failed) return true;
    return false;
}

/* The bound on collected tokens: may this one go on? */
static bool may_collect(gen *g) {
    server *s = g->srv;
    gen *oldest;
    if (gen_streams(g) || g->ending || bounds_collect_room(s)) return true;
    for (oldest = s->gens; oldest && !oldest->collecting; oldest = oldest->next) {}
    return oldest == g;
}

static void arm(gen *g, uint64_t us) {
    struct timeval tv = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
    evtimer_add(g->timer, &tv);
}

static void too_large(serve_error *e) {
    serve_fail(e, 500, "reply_too_large", NULL, "the reply is larger than the server can hold; stream it");
}

static void count_request(const gen *g) {
    if (g->n_choices && g->view.how != VIEW_STORED) metrics_request(g->srv->met, g, server_now_us() - g->t_start_us);
}

/* All choices are done, or there are none (tokenize and its kin): the last bytes. */
static void settle(gen *g, hd_buf *out) {
    conn *c = g->conn;
    char extra[400] = "";
    bool failed = false;
    if (gen_streams(g)) {
        count_request(g);
        c->gen = NULL;
        g->d->end(g, out);
        http_stream_write(c, buf_cstr(out), out->len);
        gen_release(g);
        http_stream_end(c, false);
        return;
    }
    for (uint32_t i = 0; i < g->n_choices; i++) failed |= text_failed(&g->choices[i]);
    if (!failed && g->n_choices && !g->reply.len) g->d->reply(g, &g->reply);
    if (failed || g->reply.failed) {
        serve_error e = {0};
        too_large(&e);
        gen_fail(g, &e);
        return;
    }
    bounds_collect(g);
    if (!bounds_output_room(g->srv, g->reply.len)) { /* others are still reading theirs */
        arm(g, ROOM_RETRY_US);
        return;
    }
    count_request(g);
    c->gen = NULL;
    if (g->warning[0] || viewer_lost(g))
        snprintf(extra, sizeof extra, "x-heddle-warning: %s%s%s\r\n", g->warning, g->warning[0] && viewer_lost(g) ? "; " : "",
                 viewer_lost(g) ? "the request lost durability: the log could not be written" : "");
    http_reply_take(c, 200, "application/json", extra, &g->reply);
    gen_release(g);
}

static bool blocked(const gen *g, const hd_buf *out) {
    return gen_streams(g) && http_unsent(g->conn) + out->len >= HTTP_OUTPUT_MARK;
}

/* May it take more?  What it has collected is counted. */
static bool go_on(gen *g, serve_error *e) {
    if (!gen_streams(g) && !e->status && !bounds_collect(g)) {
        too_large(e);
        return false;
    }
    g->held = !may_collect(g);
    return !g->held;
}

/* One event of each session in turn. */
static void take_waiting(gen *g, unsigned *budget, hd_buf *out, serve_error *e) {
    bool progress = true;
    while (progress && *budget && !e->status) {
        progress = false;
        for (uint32_t i = 0; i < g->n_submitted && *budget && !e->status; i++) {
            choice *ch = &g->choices[i];
            gen_event ev;
            if (ch->done) continue;
            if (blocked(g, out)) return;
            session_next(ch->s, &ev);
            if (ev.kind == EV_NONE) continue;
            progress = true;
            (*budget)--;
            take_event(g, ch, &ev, out, e);
        }
        if (!go_on(g, e)) return;
    }
}

/* A viewer's events, in their own order. */
static void take_viewed(gen *g, unsigned *budget, hd_buf *out, serve_error *e) {
    while (*budget && !e->status && !blocked(g, out)) {
        gen_event ev;
        uint32_t i;
        if (!viewer_next(g, &i, &ev, e)) return;
        (*budget)--;
        take_event(g, &g->choices[i], &ev, out, e);
        if (!go_on(g, e)) return;
    }
}

static void drain(gen *g, unsigned budget) {
    server *s = g->srv;
    hd_buf *out = &s->scratch;
    serve_error e = {0};
    if (g->phase != GEN_ACTIVE || !g->conn || g->conn->dead) return;
    if (g->kind == GEN_CANCEL) {
        stored_cancelled(g, false);
        return;
    }
    buf_clear(out);
    if (g->view.how && gen_streams(g) && !g->view.told && viewer_lost(g)) {
        g->view.told = true;
        sse_comment(out, "durability lost");
    }
    if (g->view.how) take_viewed(g, &budget, out, &e);
    else take_waiting(g, &budget, out, &e);
    if (out->failed) serve_fail(&e, 500, "internal_error", NULL, "no memory for the reply");
    if (gen_streams(g) && out->len) {
        http_stream_write(g->conn, buf_cstr(out), out->len);
        g->t_last_write_us = server_now_us();
        buf_clear(out);
    }
    if (e.status) {
        if (!g->view.how) { /* else the runner counted */
            e.has_generated = true;
            e.generated_tokens = generated(g);
        }
        gen_fail(g, &e);
    } else if (g->n_done == g->n_choices) {
        if (viewer_may_end(g)) settle(g, out);
    } else if (!budget && !g->held) {
        server_notify(&g->w); /* more waits: after the others */
    }
}

void gen_drain(gen *g) {
    if (g->phase == GEN_ACTIVE && g->held && may_collect(g)) g->held = false;
    if (g->phase != GEN_ACTIVE || g->held) return;
    drain(g, DRAIN_EVENTS);
}

void gen_resume(gen *g) {
    if (g->phase == GEN_ACTIVE && gen_streams(g)) drain(g, DRAIN_EVENTS);
}

static void on_timer(evutil_socket_t fd, short what, void *arg) {
    gen *g = arg;
    server *s = g->srv;
    (void)fd, (void)what;
    if (g->phase != GEN_ACTIVE || !g->conn) return;
    if (g->kind == GEN_CANCEL) {
        stored_cancelled(g, true);
        return;
    }
    if (!gen_streams(g)) {
        arm(g, HELD_READ_US);
        if (may_collect(g)) g->held = false;
        drain(g, g->held ? 1 : DRAIN_EVENTS);
        return;
    }
    {
        uint64_t now = server_now_us(), silent = now - g->t_last_write_us;
        if (silent + 1000 >= s->opt.comment_us) {
            uint32_t done = 0, total = 0, i = 0;
            bool queued = false;
            hd_buf *out = &s->scratch;
            while (i + 1 < g->n_choices && g->choices[i].done) i++;
            if (g->view.how) viewer_progress(g, &done, &total, &queued);
            else session_progress(g->choices[i].s, &done, &total, &queued);
            buf_clear(out);
            if (queued) sse_comment(out, "queued");
            else if (done < total) sse_comment(out, "prefill %u/%u", done, total);
            else sse_comment(out, "ping");
            if (http_unsent(g->conn) < HTTP_OUTPUT_MARK) http_stream_write(g->conn, buf_cstr(out), out->len);
            g->t_last_write_us = now;
            silent = 0;
        }
        arm(g, s->opt.comment_us - silent);
    }
    if (g->view.how) drain(g, DRAIN_EVENTS); /* it may wait for a log that hangs */
}

bool gen_time(gen *g, uint64_t us) {
    if (!(g->timer = evtimer_new(g->srv->base, on_timer, g))) return false;
    arm(g, us);
    return true;
}

/* Echo of prompts in front of the answers. */
static void start_echo(gen *g, hd_buf *out) {
    for (uint32_t i = 0; i < g->n_choices; i++) {
        choice *ch = &g->choices[i];
        const gen_prompt *p = &g->prompts[ch->prompt];
        if (g->plan.score_prompt) {
            sample_result first = {.id = p->ids.ids[0]};
            echo_token(g, ch, &first, true, out);
        } else if (g->plan.echo && p->n_echo) {
            ch->seen_bytes = p->n_echo;
            ch->seen_chars = count_chars(p->echo, p->n_echo);
            emit_text(g, ch, p->echo, p->n_echo, out);
            if (!gen_streams(g)) ch->collected = (uint32_t)p->ids.n, g->srv->collected_tokens += p->ids.n;
        }
    }
}

void gen_begin_reply(gen *g) {
    server *s = g->srv;
    conn *c = g->conn;
    hd_buf *out = &s->scratch;
    if (!(g->timer = evtimer_new(s->base, on_timer, g))) {
        serve_error e = {0};
        serve_fail(&e, 503, "out_of_memory", NULL, "no memory for the request");
        gen_fail(g, &e);
        return;
    }
    buf_clear(out);
    if (hd_log_on(HD_LOG_DEBUG)) {
        char what[HTTP_TOLD];
        hd_log(HD_LOG_DEBUG, "serve: %s: accepted: %s, %s, choices: %u", g->id, http_tell(c, what), gen_streams(g) ? "streamed" : "not streamed", g->n_choices);
    }
    if (gen_streams(g)) {
        char extra[400];
        snprintf(extra, sizeof extra, "%s%s%s%s", SSE_HEADERS, g->warning[0] ? "x-heddle-warning: " : "", g->warning,
                 g->warning[0] ? "\r\n" : "");
        http_stream_begin(c, 200, SSE_TYPE, extra);
        g->d->start(g, out);
        start_echo(g, out);
        if (out->failed) {
            serve_error e = {0};
            serve_fail(&e, 500, "reply_too_large", NULL, "no memory for the echo of the prompts");
            gen_fail(g, &e);
            return;
        }
        http_stream_write(c, buf_cstr(out), out->len);
        g->t_last_write_us = server_now_us();
        arm(g, s->opt.comment_us);
    } else {
        g->collecting = true;
        start_echo(g, out);
        arm(g, HELD_READ_US);
    }
    gen_drain(g);
}
