/* trace.c - see trace.h.
 *
 * The file is a JSON array of events.  Process 1 is heddle, one thread per lane; process 2 holds the requests, one
 * "thread" per request, so that each has a line of its own.  Spans are complete events (ph X), marks instant ones (ph
 * i), names metadata (ph M).  Source: Google's "Trace Event Format", as chrome://tracing and Perfetto read it.
 *
 *     [ head  ,record ,record ...  ,end record  ]
 *             |<-- the file up to `good` -->|<- TAIL_BYTES ->|
 *
 * Every write puts new records over the old tail and a new tail behind them, so the file is whole between writes, also
 * after kill -9.  The tail has a fixed size: when the disk is full, there is still room to put it back where it was.
 *
 * mu guards the ring being filled and the counters beside it; callers hold it for one copy, the writer for one swap.
 * Read: struct trace, put, writer, flush, then the formatting. */
#include "base/trace.h"
#include "base/buf.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    RING = 8192,           /* records of 150 bytes, twice: a decode step makes some, so seconds of the busiest server */
    OUT_BYTES = 64 * 1024, /* one write */
    LINE_BYTES = 4096,     /* one record as text; names are ours and short */
    TAIL_BYTES = 384,      /* the end record padded; three counters of 20 digits, a time and 150 bytes of words */
    MIN_BYTES = 4096,      /* of a file: head, tail and something to see */
    GATHER_MS = 100,       /* how long the writer lets records gather */
    NAMED = 1024,          /* requests whose line was named lately; naming one again does no harm */
    PID_LANES = 1,
    PID_REQUESTS = 2,
    TID_REQUESTS =
        1000, /* order 0; apart from process numbers, as a thread numbered like its process is shown as "main" */
};

typedef enum { SPAN, REQUEST, MARK } record_kind;

typedef struct {
    record_kind kind;
    uint32_t lane;
    uint64_t order, t0_us, t1_us, v1, v2;
    const char *name, *arg1, *arg2;
    char id[64];
} record;

struct trace {
    pthread_mutex_t mu;
    pthread_cond_t some; /* something to write, or stop */
    record *ring;        /* being filled, n records */
    uint32_t n;
    uint64_t dropped; /* by a full ring */
    bool stop;

    /* Writer thread only (and open and close, before and after it). */
    record *taken;
    int fd;
    uint64_t good, max_bytes; /* bytes before the tail; the file's bound */
    char *out;                /* records not yet written, with room for a tail */
    size_t n_out;
    uint64_t n_out_records, written, omitted; /* omitted: over the bound, or after a failed write */
    uint64_t t_last_us;
    bool over, failed;
    hd_buf line;
    uint64_t lanes_named;  /* bit i: lane i */
    uint64_t named[NAMED]; /* order + 1 of the request in this slot */
    pthread_t thread;
};

/* ---- records come in ---- */

static void put(trace *t, const record *r) {
    bool wake = false;
    pthread_mutex_lock(&t->mu);
    if (t->n == RING) {
        t->dropped++;
    } else {
        t->ring[t->n++] = *r;
        wake = t->n == 1 || t->n == RING / 2;
    }
    pthread_mutex_unlock(&t->mu);
    if (wake) pthread_cond_signal(&t->some);
}

void trace_span(trace *t, const char *name, uint32_t lane, uint64_t t0_us, uint64_t t1_us, const char *arg1,
                uint64_t v1, const char *arg2, uint64_t v2) {
    if (!t) return;
    put(t, &(record){.kind = SPAN,
                     .name = name,
                     .lane = lane,
                     .t0_us = t0_us,
                     .t1_us = t1_us,
                     .arg1 = arg1,
                     .v1 = v1,
                     .arg2 = arg2,
                     .v2 = v2});
}

static void set_id(record *r, const char *id) {
    size_t n = id ? strnlen(id, sizeof r->id - 1) : 0;
    if (n) memcpy(r->id, id, n);
    r->id[n] = 0;
}

void trace_request(trace *t, const char *name, const char *id, uint64_t order, uint64_t t0_us, uint64_t t1_us,
                   const char *arg1, uint64_t v1) {
    record r = {.kind = REQUEST, .name = name, .order = order, .t0_us = t0_us, .t1_us = t1_us, .arg1 = arg1, .v1 = v1};
    if (!t) return;
    set_id(&r, id);
    put(t, &r);
}

void trace_mark(trace *t, const char *name, const char *id, uint64_t order, uint64_t t_us) {
    record r = {.kind = MARK, .name = name, .order = order, .t0_us = t_us, .t1_us = t_us};
    if (!t) return;
    set_id(&r, id);
    put(t, &r);
}

/* ---- text ---- */

/* A number as JSON readers take it: none of them goes above int64. */
static unsigned long long json_u64(uint64_t v) { return v > INT64_MAX ? INT64_MAX : v; }

static void add_str(hd_buf *b, const char *s) {
    buf_byte(b, '"');
    jsonw_escape(b, s, strlen(s));
    buf_byte(b, '"');
}

static void add_name(hd_buf *b, const char *what, int pid, uint64_t tid, const char *name) {
    buf_fmt(b, ",\n{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%llu,\"args\":{\"name\":", what, pid,
            json_u64(tid));
    add_str(b, name);
    buf_str(b, "}}");
}

static void add_arg(hd_buf *b, const char *name, uint64_t v, bool *any) {
    if (!name) return;
    if (*any) buf_byte(b, ',');
    add_str(b, name);
    buf_fmt(b, ":%llu", json_u64(v));
    *any = true;
}

/* The thread of a request.  31 bits: Perfetto keeps thread numbers in 32. */
static uint64_t request_tid(uint64_t order) { return TID_REQUESTS + order % 2000000000; }

static void add_record(hd_buf *b, const record *r, bool name_it) {
    bool lane = r->kind == SPAN, any = false;
    int pid = lane ? PID_LANES : PID_REQUESTS;
    uint64_t tid = lane ? r->lane : request_tid(r->order);
    if (name_it) {
        char name[32];
        snprintf(name, sizeof name, "lane %u", r->lane);
        add_name(b, "thread_name", pid, tid, !lane ? r->id : r->lane ? name : "executor");
        if (!lane)
            buf_fmt(b,
                    ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%llu,\"args\":{\"sort_index\":%"
                    "llu}}",
                    pid, json_u64(tid), json_u64(tid));
    }
    buf_str(b, ",\n{\"name\":");
    add_str(b, r->name);
    buf_fmt(b, ",\"pid\":%d,\"tid\":%llu,\"ts\":%llu", pid, json_u64(tid), json_u64(r->t0_us));
    if (r->kind == MARK)
        buf_str(b, ",\"ph\":\"i\",\"s\":\"t\"");
    else
        buf_fmt(b, ",\"ph\":\"X\",\"dur\":%llu", json_u64(r->t1_us > r->t0_us ? r->t1_us - r->t0_us : 0));
    buf_str(b, ",\"args\":{");
    if (!lane) buf_str(b, "\"id\":"), add_str(b, r->id), any = true;
    add_arg(b, r->arg1, r->v1, &any);
    add_arg(b, r->arg2, r->v2, &any);
    buf_str(b, "}}");
}

/* The end record, padded to TAIL_BYTES exactly. */
static void make_tail(trace *t, char tail[TAIL_BYTES], uint64_t written) {
    char text[TAIL_BYTES];
    uint64_t dropped;
    int n;
    pthread_mutex_lock(&t->mu);
    dropped = t->dropped;
    pthread_mutex_unlock(&t->mu);
    n = snprintf(text, sizeof text,
                 ",\n{\"name\":\"end of "
                 "trace\",\"ph\":\"i\",\"s\":\"g\",\"pid\":%d,\"tid\":0,\"ts\":%llu,\"args\":{\"records\":%llu,"
                 "\"dropped\":%llu,\"omitted\":%llu,\"file_full\":%s,\"write_failed\":%s}}",
                 PID_LANES, json_u64(t->t_last_us), json_u64(written), json_u64(dropped), json_u64(t->omitted),
                 t->over ? "true" : "false", t->failed ? "true" : "false");
    HD_ASSERT(n > 0 && n <= TAIL_BYTES - 3);
    memset(tail, ' ', TAIL_BYTES);
    memcpy(tail, text, (size_t)n);
    memcpy(tail + TAIL_BYTES - 3, "\n]\n", 3);
}

/* ---- the file ---- */

static bool write_at(int fd, const char *p, size_t n, uint64_t at) {
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) errno = EIO; /* a regular file takes something or says why not */
        if (k <= 0) return false;
        p += k, n -= (size_t)k, at += (uint64_t)k;
    }
    return true;
}

/* Write what gathered in `out` and a tail; `good` moves only when all of it is there. */
static void flush(trace *t) {
    char *tail = t->out + t->n_out;
    if (t->failed) {
        t->omitted += t->n_out_records;
    } else {
        make_tail(t, tail, t->written + t->n_out_records);
        if (write_at(t->fd, t->out, t->n_out + TAIL_BYTES, t->good)) {
            t->good += t->n_out;
            t->written += t->n_out_records;
        } else {
            int why = errno;
            t->failed = true;
            t->omitted += t->n_out_records;
            hd_log(HD_LOG_WARN, "trace: cannot write any more (%s); the file ends with what it has", strerror(why));
        }
    }
    if (t->failed) { /* put the tail back, with the counts of now; the place was ours before, so this fits */
        char end[TAIL_BYTES];
        make_tail(t, end, t->written);
        if (!write_at(t->fd, end, TAIL_BYTES, t->good) || ftruncate(t->fd, (off_t)(t->good + TAIL_BYTES)) != 0) {
            /* A disk that refuses even this: nothing is left to do, and it was said that writing failed. */
        }
    }
    t->n_out = 0;
    t->n_out_records = 0;
}

static void write_record(trace *t, const record *r) {
    bool lane = r->kind == SPAN, fresh;
    size_t slot = (size_t)(r->order % NAMED);
    if (r->t1_us > t->t_last_us) t->t_last_us = r->t1_us;
    if (t->over || t->failed) {
        t->omitted++;
        return;
    }
    fresh = lane ? r->lane < 64 && !(t->lanes_named >> r->lane & 1) : t->named[slot] != r->order + 1;
    buf_clear(&t->line);
    add_record(&t->line, r, fresh);
    if (t->line.failed != HD_OK) { /* no memory, or a name beyond any reason */
        t->omitted++;
        return;
    }
    if (t->good + t->n_out + t->line.len + TAIL_BYTES > t->max_bytes) {
        t->over = true;
        t->omitted++;
        hd_log(HD_LOG_WARN, "trace: the file is full (%llu bytes), later records are left out",
               (unsigned long long)t->max_bytes);
        return;
    }
    if (t->n_out + t->line.len > OUT_BYTES) flush(t);
    if (t->failed) {
        t->omitted++;
        return;
    }
    memcpy(t->out + t->n_out, t->line.data, t->line.len);
    t->n_out += t->line.len;
    t->n_out_records++;
    if (fresh && lane)
        t->lanes_named |= 1ull << r->lane;
    else if (fresh)
        t->named[slot] = r->order + 1;
}

static void until_gathered(trace *t) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += GATHER_MS * 1000000L;
    if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
    while (!t->stop && t->n < RING / 2)
        if (pthread_cond_timedwait(&t->some, &t->mu, &at) == ETIMEDOUT) break;
}

static void *writer(void *ctx) {
    trace *t = ctx;
    for (bool stop = false; !stop;) {
        record *full;
        uint32_t n;
        pthread_mutex_lock(&t->mu);
        while (!t->n && !t->stop) pthread_cond_wait(&t->some, &t->mu);
        until_gathered(t);
        full = t->ring;
        n = t->n;
        t->ring = t->taken;
        t->taken = full;
        t->n = 0;
        stop = t->stop;
        pthread_mutex_unlock(&t->mu);
        for (uint32_t i = 0; i < n; i++) write_record(t, &full[i]);
        flush(t);
    }
    return NULL;
}

/* ---- open, close ---- */

/* Frees a half-open trace, too. */
static void trace_free(trace *t) {
    if (!t) return;
    if (t->fd >= 0) close(t->fd);
    buf_deinit(&t->line);
    hd_free(t->out);
    hd_free(t->ring);
    hd_free(t->taken);
    pthread_cond_destroy(&t->some);
    pthread_mutex_destroy(&t->mu);
    hd_free(t);
}

static void init_sync(trace *t) {
    pthread_condattr_t attr;
    pthread_mutex_init(&t->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->some, &attr);
    pthread_condattr_destroy(&attr);
}

/* The file with its head and a first tail, so that a disk without room is heard of now. */
static bool begin_file(trace *t) {
    static const char head[] =
        "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"heddle\"}},\n"
        "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"sort_index\":1}},\n"
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":2,\"tid\":0,\"args\":{\"name\":\"requests\"}},\n"
        "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":2,\"tid\":0,\"args\":{\"sort_index\":2}}";
    size_t n = sizeof head - 1;
    memcpy(t->out, head, n);
    make_tail(t, t->out + n, 0);
    if (!write_at(t->fd, t->out, n + TAIL_BYTES, 0)) return false;
    t->good = n;
    return true;
}

static int start_thread(trace *t) {
    sigset_t all, old;
    int rc;
    sigfillset(&all); /* signals belong to the threads that set handlers */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&t->thread, NULL, writer, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!rc) pthread_setname_np(t->thread, "hd-trace");
    return rc;
}

hd_status trace_open(trace **out, const char *path, uint64_t max_bytes, hd_err *err) {
    trace *t;
    hd_status st;
    *out = NULL;
    if (!max_bytes) max_bytes = 256ull << 20;
    if (max_bytes < MIN_BYTES || max_bytes > INT64_MAX)
        return hd_fail(err, HD_INVALID, "the bound of a trace file is %d bytes at least", MIN_BYTES);
    if (!(t = hd_calloc(1, sizeof *t))) return hd_fail(err, HD_NOMEM, "trace: no memory");
    t->fd = -1;
    t->max_bytes = max_bytes;
    init_sync(t);
    buf_init(&t->line, LINE_BYTES);
    st = HD_NOMEM;
    if (!(t->ring = hd_calloc(RING, sizeof *t->ring)) || !(t->taken = hd_calloc(RING, sizeof *t->taken)) ||
        !(t->out = hd_alloc(OUT_BYTES + TAIL_BYTES))) {
        hd_fail(err, st, "trace: no memory for %d records", RING);
        goto fail;
    }
    st = HD_IO;
    /* O_NONBLOCK: a pipe is refused instead of waited for; it changes nothing for files. */
    if ((t->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666)) < 0 || !begin_file(t)) {
        hd_fail(err, st, "cannot write the trace %s: %s", path, strerror(errno));
        goto fail;
    }
    if (start_thread(t) != 0) {
        st = hd_fail(err, HD_NOMEM, "could not start the thread that writes the trace");
        goto fail;
    }
    *out = t;
    return HD_OK;
fail:
    trace_free(t);
    return st;
}

void trace_close(trace *t) {
    int fd;
    if (!t) return;
    pthread_mutex_lock(&t->mu);
    t->stop = true;
    pthread_mutex_unlock(&t->mu);
    pthread_cond_signal(&t->some);
    pthread_join(t->thread, NULL);
    fd = t->fd;
    t->fd = -1;
    if (close(fd) != 0 && !t->failed) hd_log(HD_LOG_WARN, "trace: closing the file failed (%s)", strerror(errno));
    trace_free(t);
}
