/* heddle.h - heddle as a library: models, engines, requests and the sessions that answer them.
 *
 *     heddle_model_open -> heddle_engine_open -> heddle_open -> heddle_next ... -> heddle_session_free
 *
 * A model is a file of weights with its tokenizer and chat template.  An engine runs requests on a model, all of them
 * together, from one thread of its own and a pool of compute threads.  A session is one request being answered: a bounded
 * queue of events with one reader.  docs/library.md is the tour; examples/ has programs.
 *
 * Threads.  Every call may come from any thread unless its comment narrows that; none waits for compute except where it
 * says so (heddle_next with a timeout, heddle_collect, heddle_engine_close, opening a model).  A session has one reader at
 * a time.  Callbacks run on heddle's threads; they must be quick, must not throw, and must not call the heddle functions
 * that their comment excludes.  Nothing survives fork() but an exec.
 *
 * Ownership.  Text, ids and arrays that go in are copied or read during the call; nothing is kept unless said.  Memory that
 * comes out through a char ** or int32_t ** is the caller's and is given back with heddle_free.  Pointers inside events,
 * results and infos are borrowed, for as long as the comment says.
 *
 * Text is UTF-8 bytes with a length; it may hold NULs, and what comes out has one more behind it.  Ids are int32_t, 0 up to
 * the size of the vocabulary.  Times are microseconds.  Flags are int: 0 or not.
 *
 * Errors.  A call that can fail returns a heddle_status and fills *err, which may be NULL.  When it fails, what it would
 * have handed out is NULL or 0 and nothing has changed.  heddle prints nothing but warnings of its log on stderr, never
 * exits, and installs no signal handlers; it keeps no global state, so engines do not know of each other.
 *
 * Growth.  Every struct begins with its own size, which the caller sets before the call: HEDDLE_INIT(&x) zeroes a struct
 * and does that, HEDDLE_REQUEST_INIT(&r) gives a request its defaults.  A newer library reads and fills as much as the
 * caller knows; an older one refuses what it does not know unless it is zero.  Structs only grow at their ends and
 * enumerators keep their numbers. */
#ifndef HEDDLE_H
#define HEDDLE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HEDDLE_API __attribute__((visibility("default")))
#else
#define HEDDLE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_model heddle_model;
typedef struct heddle_engine heddle_engine;
typedef struct heddle_session heddle_session;
typedef struct heddle_cancellation heddle_cancellation;

#define HEDDLE_NO_CAP UINT32_MAX  /* heddle_request.max_tokens: until the context ends */
#define HEDDLE_FOREVER UINT64_MAX /* a timeout that never comes */
#define HEDDLE_NOWHERE UINT64_MAX /* heddle_error.at: no byte in particular */

/* ---- versions, memory, errors ---- */

/* "0.1.0"; static. */
HEDDLE_API const char *heddle_version(void);

/* Give back what a call handed out.  NULL is fine. */
HEDDLE_API void heddle_free(void *p);

/* Zero `size` bytes at p and write size into the first member. */
HEDDLE_API void heddle_init(void *p, size_t size);
#define HEDDLE_INIT(p) heddle_init((p), sizeof *(p))

/* The size of a public struct in this library ("heddle_event", ...), for bindings that write structs down again; 0: there
 * is none of that name. */
HEDDLE_API size_t heddle_struct_size(const char *name);

typedef enum heddle_status {
    HEDDLE_OK = 0,
    HEDDLE_INVALID = 1,     /* the input is wrong: field or at says where */
    HEDDLE_UNSUPPORTED = 2, /* well-formed, but something heddle does not do */
    HEDDLE_NOT_FOUND = 3,   /* a file, method, model or id that is not there */
    HEDDLE_NO_MEMORY = 4,
    HEDDLE_IO = 5,          /* a read, write or map failed */
    HEDDLE_FULL = 6,        /* a stated limit was reached; later it may go */
    HEDDLE_NEVER_FITS = 7,  /* larger than a limit that will not move */
    HEDDLE_CANCELLED = 8,   /* ended by its owner, a deadline or a shutdown */
    HEDDLE_TIMEOUT = 9,     /* the caller's own limit of time passed */
    HEDDLE_CLOSED = 10,     /* the thing asked is shutting down, or over */
    HEDDLE_FAILED = 11      /* a computation failed for this request only */
} heddle_status;
/* "ok", "invalid", "unsupported" ...; static, "unknown" for other numbers. */
HEDDLE_API const char *heddle_status_name(int32_t status);

typedef struct heddle_error {
    size_t size;
    int32_t code;      /* heddle_status */
    uint32_t line;     /* of a chat template, from 1; 0: none */
    uint64_t at;       /* byte offset in the input, or HEDDLE_NOWHERE */
    char field[64];    /* the field of the request or options, the key of the file, the class of a template error; or "" */
    char message[360]; /* for people */
} heddle_error;

/* ---- models ---- */

typedef struct heddle_model_options {
    size_t size;
    uint32_t n_threads; /* for packing weights and computing; 0: one for each core that this process may use */
    int vocab_only;     /* no weights: heddle_tokenize, heddle_detokenize, heddle_render and heddle_model_look only */
    const char *isa;    /* kernels: "generic", "avx2" ...; NULL: the best this machine has */
    /* Called on the opening thread with what is being done and how much of it is, 0 to 1; may be NULL. */
    void (*progress)(void *ctx, const char *what, double share);
    void *progress_ctx;
    /* A directory (made if its parent is there) where packed weights are kept: the next open of the same file maps them
     * instead of packing.  NULL: none.  What is wrong there never shows but in time.  heddle_model_close waits until a file
     * that is being written is whole. */
    const char *pack_dir;
    uint64_t pack_cap_bytes; /* of all files there; 0: 16 GiB */
} heddle_model_options;

/* Open `name`: a GGUF file (any part of a split one), or "script:FILE", a scripted model for tests.  Reads, checks and
 * packs the weights before it returns.  opt may be NULL.  HEDDLE_NOT_FOUND, HEDDLE_IO, HEDDLE_INVALID (a broken file),
 * HEDDLE_UNSUPPORTED (an architecture or tensor type), HEDDLE_NO_MEMORY. */
HEDDLE_API heddle_status heddle_model_open(heddle_model **out, const char *name, const heddle_model_options *opt,
                                           heddle_error *err);
/* Give the model up.  NULL is fine.  It goes away once its engine is closed too. */
HEDDLE_API void heddle_model_close(heddle_model *m);

typedef struct heddle_model_info {
    size_t size;
    const char *name;          /* the file's base name; this and all other text: borrowed, until the model is closed */
    const char *arch;
    const char *isa;           /* the kernels it runs on */
    const char *chat_template; /* its source, or NULL */
    const char *chat_error;    /* why the template cannot be used, or NULL */
    uint64_t weight_bytes;     /* held in memory */
    uint64_t n_params;
    uint32_t n_vocab;
    uint32_t context;          /* what it was trained for; an engine may have less */
    uint32_t n_layers;
    uint32_t width;            /* of hidden states and vectors */
    uint32_t n_threads;
    int32_t bos, eos;          /* -1: none */
    uint32_t n_eog;
    int32_t eog[16];           /* ids that end a generation */
    int adds_bos;              /* prompts of plain text begin with bos */
    int scripted;
    float temperature, top_p, min_p; /* the file's sampling defaults; NaN: it names none */
    uint32_t top_k;                  /* UINT32_MAX: it names none */
    uint32_t pooling;                /* a heddle_pooling: what the file asks for, else HEDDLE_POOL_LAST */
} heddle_model_info;
/* Fill *out, as much as out->size says. */
HEDDLE_API void heddle_model_look(const heddle_model *m, heddle_model_info *out);

/* ---- text ---- */

enum {
    HEDDLE_TOKENIZE_SPECIAL = 1, /* control tokens written in the text are recognised: never for text of users */
    HEDDLE_TOKENIZE_BOS = 2      /* begin with bos (and end with eos) where the model's file says so */
};
/* text[0..n) as *n_ids ids in *ids (heddle_free).  HEDDLE_INVALID: the vocabulary has no token for a part of it;
 * HEDDLE_NEVER_FITS: more than 2 GiB; HEDDLE_NO_MEMORY.  Here as in all calls, a list may be NULL when it has no entries,
 * and is HEDDLE_INVALID otherwise. */
HEDDLE_API heddle_status heddle_tokenize(const heddle_model *m, const char *text, size_t n, uint32_t flags, int32_t **ids,
                                         size_t *n_ids, heddle_error *err);
/* The text of ids[0..n_ids): *n bytes in *text (heddle_free).  special: control tokens print their names.  Bytes that are
 * not UTF-8 become U+FFFD.  HEDDLE_INVALID: an id outside the vocabulary; HEDDLE_NO_MEMORY. */
HEDDLE_API heddle_status heddle_detokenize(const heddle_model *m, const int32_t *ids, size_t n_ids, int special, char **text,
                                           size_t *n, heddle_error *err);

/* A conversation through the model's chat template.  json[0..n) is an array of messages ({"role","content"}, content as
 * one string), or an object of everything the template shall see: "messages", and where wanted "tools",
 * "add_generation_prompt" (default true), and others by name; bos_token and eos_token are there by themselves.
 * heddle_render gives the text, *n_text bytes in *text.  heddle_render_ids gives the prompt, *n_ids ids in *ids: there,
 * control tokens are recognised in what the template wrote and never in what a message says, which tokenizing the text
 * could not tell apart.  Both are the caller's (heddle_free).
 * HEDDLE_INVALID: not JSON (at), not a conversation, or refused by the template (line, field: "raise", "undefined",
 * "type" ...); HEDDLE_UNSUPPORTED: there is no template, or not one heddle can run; HEDDLE_FULL: a limit of steps or bytes. */
HEDDLE_API heddle_status heddle_render(const heddle_model *m, const char *json, size_t n, char **text, size_t *n_text,
                                       heddle_error *err);
HEDDLE_API heddle_status heddle_render_ids(const heddle_model *m, const char *json, size_t n, int32_t **ids, size_t *n_ids,
                                           heddle_error *err);

/* ---- engines ---- */

/* How keys and values are kept.  q8 and q4: blocks of 32 values of a head with one f16 scale each.  docs/kv.md has sizes,
 * speeds and what each costs in quality. */
enum {
    HEDDLE_KV_DEFAULT = 0,
    HEDDLE_KV_F16 = 1,
    HEDDLE_KV_F32 = 2,
    HEDDLE_KV_BF16 = 3,
    HEDDLE_KV_Q8 = 4,
    HEDDLE_KV_Q4 = 5
};

/* Limits.  0 takes the default named beside it; HEDDLE_FOREVER is a time that never comes. */
typedef struct heddle_engine_options {
    size_t size;
    uint32_t max_rows;           /* requests that run together: 16 */
    uint32_t max_queued;         /* requests that wait beside them: 256; at most 1,048,576 */
    uint32_t step_tokens;        /* tokens computed in one step: 256 */
    uint32_t default_max_tokens; /* what is set aside for a request without a cap: 512 */
    uint64_t kv_budget_bytes;    /* attention state of all requests: half of (memory limit - weights) */
    uint32_t page_tokens;        /* positions in a page of it, a power of two: 64 */
    uint32_t context;            /* positions of one request: the model's own, or as many as the budget holds */
    int32_t kv_type;             /* of layers with full attention: HEDDLE_KV_F16 */
    uint32_t max_exclusive;      /* exclusive jobs that wait: 64 */
    uint64_t idle_timeout_us;    /* a session whose queue is full and unread for so long is cancelled: 30 s */
    uint64_t stuck_timeout_us;   /* work but no finished step for so long: counters.failed: 120 s */
    uint64_t age_us;             /* waiting so long lifts a request by one priority: 10 s */
    uint64_t collect_tokens;     /* unread output of all collecting sessions together, in tokens: 65,536 */
    int32_t kv_type_sliding;     /* of layers with a sliding window: as kv_type */
    int no_cache;                /* nothing that was computed is kept for, or shared with, other requests */
    /* Pages that must make room, and at heddle_engine_close all that is cached, go to files in this directory (made if it
     * is not there) and come back from there, also in later processes and in others that use it.  Damaged or foreign files
     * are never more than a miss.  NULL: none.  Text is read during the call. */
    const char *state_dir;
    uint64_t state_cap_bytes;    /* of those files: 4 GiB; at least 1 MiB */
    const char *state_key_file;  /* they are encrypted with this key (32 bytes or 64 hex digits); NULL: they are not */
    uint64_t step_target_us;     /* a step in which requests generate reads no more of prompts than takes so long: 25 ms */
} heddle_engine_options;

/* An engine on m, with its thread.  m is kept until heddle_engine_close; a model has at most one engine at a time
 * (HEDDLE_FULL).  opt may be NULL.  HEDDLE_INVALID names the field: out of range, or a budget that does not hold one
 * request, or a cap or key without a state_dir; HEDDLE_UNSUPPORTED: kv_type, kv_type_sliding, or a model opened vocab_only;
 * HEDDLE_IO, HEDDLE_NOT_FOUND: the state_dir cannot be made or written, the key file cannot be read; HEDDLE_NO_MEMORY;
 * HEDDLE_FAILED: no thread. */
HEDDLE_API heddle_status heddle_engine_open(heddle_engine **out, heddle_model *m, const heddle_engine_options *opt,
                                            heddle_error *err);
/* Cancel everything with HEDDLE_CANCEL_ENGINE_CLOSED and wait for the threads: at most a step; with a state_dir also until
 * what is cached is written, 10 s at most.  NULL is fine.  Sessions
 * stay readable until they are freed.  Not from a callback, and no other call on the engine may be under way. */
HEDDLE_API void heddle_engine_close(heddle_engine *e);
/* From now on new requests are refused (HEDDLE_CLOSED); those that are there go on. */
HEDDLE_API void heddle_engine_drain(heddle_engine *e);
/* Whether no request is waiting or running. */
HEDDLE_API int heddle_engine_idle(heddle_engine *e);

typedef struct heddle_counters {
    size_t size;
    uint32_t running, waiting;               /* requests now */
    uint32_t max_rows, max_queued, context, page_tokens, step_tokens; /* the limits in force */
    uint32_t exclusive_waiting;              /* exclusive jobs that wait or run */
    int draining;
    int failed;                              /* there was work and no step finished within stuck_timeout_us */
    uint64_t pages_total, pages_used, pages_cached; /* used: by requests that run, each once; cached: by none */
    uint64_t pages_shared;                   /* how many more would be used if nothing were shared */
    uint64_t kv_bytes_total, kv_bytes_used;
    uint64_t steps;
    uint32_t step_tokens_last;
    double step_ms_p50;                      /* of the last steps */
    uint64_t requests_total;                 /* since the engine was opened, as all below */
    uint64_t finished_stop, finished_length, finished_failed, finished_cancelled;
    uint64_t rejected_full;                  /* refused because the queue was full */
    uint64_t prompt_tokens_total, generated_tokens_total, preemptions_total;
    uint64_t exclusive_total, faults_contained, pauses_total; /* jobs run; rows ended by a failing step; readers that lagged */
    uint64_t retry_after_ms;                 /* when a refused request may be tried again: an estimate */
    uint64_t kv_bytes_cached, pages_evicted_total;
    int has_state_dir;                       /* and if so: */
    int state_writing;                       /* 0: after an error, for half a minute */
    uint64_t state_files, state_bytes, state_cap_bytes;                /* on disk */
    uint64_t state_hits, state_misses;                                 /* pages asked for */
    uint64_t state_read_bytes, state_written_bytes, state_write_errors;
} heddle_counters;
/* Fill *out, as much as out->size says: a copy, which never waits for a step. */
HEDDLE_API void heddle_engine_look(heddle_engine *e, heddle_counters *out);

/* ---- cancellation ---- */

typedef enum heddle_cancel_reason {
    HEDDLE_CANCEL_NONE = 0,
    HEDDLE_CANCEL_CLIENT_DISCONNECTED = 1,
    HEDDLE_CANCEL_BY_REQUEST = 2,
    HEDDLE_CANCEL_IDLE_TIMEOUT = 3,
    HEDDLE_CANCEL_DEADLINE_QUEUE = 4,
    HEDDLE_CANCEL_DEADLINE_FIRST_TOKEN = 5,
    HEDDLE_CANCEL_DEADLINE_TOTAL = 6,
    HEDDLE_CANCEL_ENGINE_CLOSED = 7,
    HEDDLE_CANCEL_SHUTDOWN = 8,
    HEDDLE_CANCEL_FAILED = 9
} heddle_cancel_reason;
/* "none", "client_disconnected", "cancelled_by_request" ...; static. */
HEDDLE_API const char *heddle_cancel_reason_name(int32_t reason);

/* ---- requests ---- */

typedef struct heddle_text {
    const char *text;
    size_t n;
} heddle_text;

typedef struct heddle_logit_bias {
    int32_t id;
    float bias; /* added to its logit; -INFINITY forbids it */
} heddle_logit_bias;

/* request.method_arg of the method "embedding", which makes one vector of a prompt (max_tokens 0) out of the hidden state
 * of its last token, all of them, or the first.  It has length 1 unless HEDDLE_POOL_RAW is added. */
typedef enum heddle_pooling {
    HEDDLE_POOL_LAST = 0,
    HEDDLE_POOL_MEAN = 1,
    HEDDLE_POOL_CLS = 2,
    HEDDLE_POOL_RAW = 256
} heddle_pooling;

enum { HEDDLE_PRIORITY_HIGH = -1, HEDDLE_PRIORITY_NORMAL = 0, HEDDLE_PRIORITY_LOW = 1 };

/* HEDDLE_REQUEST_INIT sets the defaults; a prompt is all that must be added.  Everything that is pointed at is copied by
 * heddle_open. */
typedef struct heddle_request {
    size_t size;
    const int32_t *prompt;  /* n_prompt ids: 1 .. context - 1, or context when max_tokens is 0 */
    size_t n_prompt;
    uint32_t max_tokens;    /* HEDDLE_NO_CAP; 0: only read (and score) the prompt */
    uint32_t min_tokens;    /* the end is forbidden before so many: 0 */
    const char *id;         /* for heddle_cancel_id, at most 63 bytes; NULL: the engine makes one */

    /* From logits to a token, in this order: bias, repetition, presence, frequency, DRY, top_p, typical_p, min_p, XTC,
     * top_k, temperature.  Equal seeds give equal output. */
    uint64_t seed;                             /* 0 */
    uint32_t sample_index;                     /* tells several answers to one prompt and seed apart: 0 */
    float temperature;                         /* 1; 0: always the likeliest token */
    float top_p, min_p, typical_p;             /* 1, 0, 1: off */
    uint32_t top_k;                            /* 0: off */
    float xtc_probability, xtc_threshold;      /* 0: off */
    float repetition_penalty;                  /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off; -2 .. 2 */
    uint32_t repetition_window, presence_window, frequency_window; /* last tokens looked at, the prompt's too: 20; 0: all */
    float dry_multiplier, dry_base;            /* 0: off; 1.75 */
    uint32_t dry_allowed_length, dry_window;   /* 2; 0: all */
    const int32_t *dry_breakers;
    size_t n_dry_breakers;
    const heddle_logit_bias *bias;
    size_t n_bias;                             /* at most 4,096 */
    int logprobs;                              /* events carry log-probabilities */
    uint32_t n_top_logprobs;                   /* and those of the likeliest tokens: at most 20 */
    int prompt_logprobs;                       /* HEDDLE_EVENT_PROMPT for each prompt token but the first */
    int prompt_logits;                         /* HEDDLE_EVENT_LOGITS after each prompt token */

    /* When it ends. */
    const heddle_text *stops;                  /* at most 64 strings of 1 to 4,096 bytes */
    size_t n_stops;
    const int32_t *stop_ids;                   /* tokens that end it, beside the model's own */
    size_t n_stop_ids;
    int ignore_eos;                            /* the model's own do not */
    int special;                               /* control tokens print their names */
    uint64_t queue_timeout_us, first_token_timeout_us, total_timeout_us; /* from heddle_open on; 0: none */

    /* How it is run. */
    const char *method;                        /* NULL: "autoregressive"; "embedding"; a registered one */
    uint64_t method_arg;                       /* the method's own */
    int32_t priority;                          /* HEDDLE_PRIORITY_NORMAL */
    int collect;                               /* its unread output is bounded by engine_options.collect_tokens, not by a queue */
    const char *share;                         /* requests of one key (a user) get one fair share; NULL: ""; at most 63 bytes */
    heddle_cancellation *cancel;               /* ends this request too; NULL: none; kept while it runs */
    /* Called on the engine's thread when there is something new to read: set a flag, wake a loop.  May be NULL.  Must not
     * call anything of heddle's. */
    void (*notify)(void *ctx);
    void *notify_ctx;

    const char *cache_space;                   /* computed prefixes are shared among requests of one name; NULL: ""; at most 63 bytes */
    int no_cache;                              /* takes nothing up and leaves nothing behind */

    /* What this request generated before, in another session or process, with the same model and settings: it goes on
     * after these tokens as if it had not been interrupted.  They count, and are not handed out again.  n_said is at
     * most max_tokens.  Not with prompt_logprobs, prompt_logits or methods other than "autoregressive". */
    const int32_t *said;
    size_t n_said;
} heddle_request;
HEDDLE_API void heddle_request_init(heddle_request *r, size_t size);
#define HEDDLE_REQUEST_INIT(r) heddle_request_init((r), sizeof *(r))

/* Open n requests together: all are accepted, reqs[i] becomes out[i], or none is.  All have the size of the first.
 * HEDDLE_INVALID, HEDDLE_UNSUPPORTED name the field; HEDDLE_NEVER_FITS: the context does not hold the prompt, or the queue
 * never holds n; HEDDLE_FULL: the queue is full now; HEDDLE_CLOSED: the engine drains; HEDDLE_NO_MEMORY. */
HEDDLE_API heddle_status heddle_open(heddle_engine *e, const heddle_request *reqs, size_t n, heddle_session **out,
                                     heddle_error *err);

/* ---- sessions ---- */

typedef enum heddle_event_kind {
    HEDDLE_EVENT_NONE = 0,
    HEDDLE_EVENT_PROMPT = 1, /* the score of a prompt token: token, position, logprob, top */
    HEDDLE_EVENT_LOGITS = 2, /* logits[n_logits] after prompt position `position` */
    HEDDLE_EVENT_TOKEN = 3,  /* one token (never the one that ends it), with the text that became certain by it, often none */
    HEDDLE_EVENT_VECTOR = 4, /* an embedding: vector[n_vector] */
    HEDDLE_EVENT_TEXT = 5,   /* text that was held back until the end; no token */
    HEDDLE_EVENT_DONE = 6    /* the end: finish, reason, stop_index, ended_by_eos, stats, error */
} heddle_event_kind;

typedef enum heddle_finish {
    HEDDLE_FINISH_STOP = 0,      /* an end token or a stop string */
    HEDDLE_FINISH_LENGTH = 1,    /* max_tokens, or the context's end */
    HEDDLE_FINISH_CANCELLED = 2, /* reason says why */
    HEDDLE_FINISH_FAILED = 3     /* error says why */
} heddle_finish;
/* "stop", "length", "cancelled", "failed"; static. */
HEDDLE_API const char *heddle_finish_name(int32_t finish);

typedef struct heddle_token_logprob {
    int32_t id;
    float logprob; /* natural logarithm; -INFINITY is possible */
} heddle_token_logprob;

typedef struct heddle_stats {
    size_t size;               /* set by the library */
    uint32_t prompt_tokens, cached_tokens;
    uint32_t generated_tokens; /* its ids, and one more if an end token ended it */
    uint32_t preemptions;      /* times it gave its memory back and was computed again */
    uint64_t queue_us;         /* heddle_open to the start */
    uint64_t prefill_us;       /* the start to the first token */
    uint64_t decode_us;        /* the first token to the end */
    uint64_t gap_p50_us, gap_p99_us; /* between tokens; 0 with fewer than two */
    uint64_t paused_us;        /* its reader lagged */
    uint64_t preempted_us;
} heddle_stats;

/* What is pointed at is borrowed until the next heddle_next or heddle_collect on the session, or its end. */
typedef struct heddle_event {
    size_t size;
    int32_t kind;              /* heddle_event_kind; the members it does not name are 0, ids and indices -1 */
    int32_t token;
    uint64_t position;         /* in the whole text, from 0 */
    float logprob;             /* if asked for */
    uint32_t n_top;
    const heddle_token_logprob *top; /* likeliest first */
    const char *text;          /* whole UTF-8 characters; never NULL */
    size_t n_text;
    const float *logits;
    size_t n_logits;
    const float *vector;
    size_t n_vector;
    int32_t finish;            /* heddle_finish */
    int32_t reason;            /* heddle_cancel_reason, with HEDDLE_FINISH_CANCELLED */
    int32_t stop_index;        /* which of stops ended it, or -1 */
    int ended_by_eos;
    const heddle_stats *stats; /* HEDDLE_EVENT_DONE, else NULL */
    const heddle_error *error; /* HEDDLE_EVENT_DONE with HEDDLE_FINISH_FAILED, else NULL */
} heddle_event;

/* The next event, waiting for it up to timeout_us (0: not at all; HEDDLE_FOREVER).  Fills *ev, as much as ev->size says.
 * HEDDLE_TIMEOUT: there is none yet.  HEDDLE_CLOSED: HEDDLE_EVENT_DONE was read before.  HEDDLE_INVALID: ev->size is not set,
 * and nothing was read.  One reader at a time. */
HEDDLE_API heddle_status heddle_next(heddle_session *s, heddle_event *ev, uint64_t timeout_us);

/* All that a session still had to say. */
typedef struct heddle_result {
    size_t size;               /* set by the library */
    const int32_t *ids;        /* the tokens, those of a matched stop string too, the end token not */
    size_t n_ids;
    const float *logprobs;     /* [n_ids], or NULL if not asked for */
    const char *text;          /* never NULL */
    size_t n_text;
    const float *vector;       /* of an embedding, else NULL */
    size_t n_vector;
    int32_t finish;            /* heddle_finish */
    int32_t reason;            /* heddle_cancel_reason */
    int32_t stop_index;        /* or -1 */
    int ended_by_eos;
    const heddle_stats *stats;
    const heddle_error *error; /* HEDDLE_FINISH_FAILED, else NULL */
} heddle_result;

/* Read s to its end, waiting as long as that takes, and hand out what it said since the last heddle_next.  *out is the
 * caller's, for heddle_result_free; it may hold as much as the request's cap allows.  HEDDLE_OK: it finished by stop or
 * length.  HEDDLE_CANCELLED, HEDDLE_FAILED: it did not, err says why, and *out still has what there was.  HEDDLE_CLOSED: its
 * end was read before; HEDDLE_NO_MEMORY: the rest is lost; both without *out.  One reader at a time. */
HEDDLE_API heddle_status heddle_collect(heddle_session *s, heddle_result **out, heddle_error *err);
HEDDLE_API void heddle_result_free(heddle_result *r); /* NULL is fine */

/* Its id, borrowed until it is freed. */
HEDDLE_API const char *heddle_session_id(const heddle_session *s);
/* How much of the prompt has been computed, of how much; whether it still waits for its turn.  Any pointer may be NULL. */
HEDDLE_API void heddle_session_progress(heddle_session *s, uint32_t *prompt_done, uint32_t *prompt_total, int *queued);
/* Cancel it unless it is over, and give it up: s is gone.  NULL is fine.  No other call on it may be under way. */
HEDDLE_API void heddle_session_free(heddle_session *s);

/* End it, for `reason` (a heddle_cancel_reason; others count as HEDDLE_CANCEL_BY_REQUEST).  The first reason wins.  Takes
 * effect within one step, in every phase; what was generated is still read, and then the end. */
HEDDLE_API void heddle_cancel(heddle_session *s, int32_t reason);
/* The same for every session of that id that is not over.  0: there is none. */
HEDDLE_API int heddle_cancel_id(heddle_engine *e, const char *id, int32_t reason);

/* ---- steering a running session ----
 * Taken up before its next token; nothing happens once it is over. */

/* It may generate so many tokens in all.  Never lowers; goes as far as the context does. */
HEDDLE_API void heddle_raise_cap(heddle_session *s, uint32_t max_tokens);
/* End it as a stop string would, with what is there. */
HEDDLE_API void heddle_stop(heddle_session *s);
/* Its next tokens are ids[0..n) instead of sampled ones: the end of a reasoning block, say.  At most 64 wait.  HEDDLE_FULL;
 * HEDDLE_INVALID: an id outside the vocabulary. */
HEDDLE_API heddle_status heddle_force(heddle_session *s, const int32_t *ids, size_t n, heddle_error *err);
/* A waiting one changes its place, a running one gives way sooner or later.  Numbers beyond the last class count as it. */
HEDDLE_API void heddle_set_priority(heddle_session *s, int32_t priority);
/* From now on it collects, as with request.collect: nobody needs to read it until later. */
HEDDLE_API void heddle_detach(heddle_session *s);

/* ---- cancellation sources: one for many requests ---- */

HEDDLE_API heddle_status heddle_cancellation_new(heddle_cancellation **out, heddle_error *err); /* HEDDLE_NO_MEMORY */
/* End every request opened with it, now and later (those opened later end at once).  1: this call did it; 0: it was
 * fired before, with another reason.  Not from a callback. */
HEDDLE_API int heddle_cancellation_fire(heddle_cancellation *c, int32_t reason);
/* The heddle_cancel_reason it was fired with, or HEDDLE_CANCEL_NONE. */
HEDDLE_API int32_t heddle_cancellation_reason(const heddle_cancellation *c);
/* Give it up; requests that have it keep it.  NULL is fine. */
HEDDLE_API void heddle_cancellation_free(heddle_cancellation *c);

/* ---- exclusive jobs ---- */

/* Run job(ctx) while nothing else runs: no request starts any more, running ones finish or, after drain_us, give their
 * memory back and go on afterwards with the same output.  Jobs run in the order of the calls, on the engine's thread; then
 * done(ctx, status), exactly once: HEDDLE_OK after the job ran, HEDDLE_CANCELLED, or HEDDLE_CLOSED.  done may be NULL, and
 * may be called before this returns.  Neither may close the engine or wait for a session.  cancel ends only its waiting;
 * may be NULL.
 * HEDDLE_FULL: max_exclusive wait; HEDDLE_CLOSED; HEDDLE_CANCELLED: cancel was fired before; then done is not called. */
HEDDLE_API heddle_status heddle_exclusive(heddle_engine *e, void (*job)(void *ctx), void (*done)(void *ctx, heddle_status status),
                                          void *ctx, uint64_t drain_us, heddle_cancellation *cancel, heddle_error *err);

/* ---- methods: algorithms that produce a request's output ----
 *
 * A row is a request inside the engine: its tokens (the prompt, then what was published), of which the first so many are
 * computed.  In every step the engine grants each row some positions; the method's plan may add a draft, tokens that it
 * guesses to follow.  After the forward pass its consume samples tokens and publishes them.  What a draft got wrong is taken
 * back by the engine, so a draft changes how fast a row is, and never what it says.  Members left NULL do as
 * "autoregressive" does: a method may be a plan alone (speculation), a consume alone (another way to choose), or both.
 *
 * All calls but check come from the engine's thread, in this order: open; plan and consume in turns; close.  A slow method
 * is a slow engine.  They may call heddle_row_* on their row, during the call, and no other function of heddle's but
 * heddle_error_set. */

typedef struct heddle_row heddle_row;

typedef struct heddle_plan {
    size_t size;          /* set by the library */
    uint32_t max_draft;   /* how many draft tokens fit into this step: often 0, at most 63 */
    uint32_t n_draft;     /* the method's: how many there are; more than max_draft are not taken */
    const int32_t *draft; /* the method's: read when plan returns */
    int hidden;           /* the method's: hidden states of this segment are wanted */
} heddle_plan;

typedef struct heddle_method {
    size_t size;
    const char *name; /* what heddle_request.method says: 1 to 63 bytes */
    void *ctx;        /* handed to all of these */
    /* Can this request be done?  On the thread of heddle_open, which returns what it returns. */
    heddle_status (*check)(void *ctx, const heddle_request *request, const heddle_model_info *model, heddle_error *err);
    /* The row starts: *state is the method's own (heddle_row_state).  Otherwise it fails with err. */
    heddle_status (*open)(void *ctx, heddle_row *row, void **state, heddle_error *err);
    void (*close)(void *ctx, void *state); /* once for each open that returned HEDDLE_OK */
    /* How many tokens the next draft would like to have; NULL: 0. */
    uint32_t (*wants)(void *ctx, const heddle_row *row);
    void (*plan)(void *ctx, heddle_row *row, heddle_plan *plan);
    /* All tokens of the row are computed: publish one at least, or end the row, or fail it; otherwise the row fails.  As many
     * as the draft held and one more may be published.  With plan.hidden it comes after every segment, also of a prompt
     * that is not read to its end, and then need not do anything.  NULL: sample and publish while there are logits. */
    void (*consume)(void *ctx, heddle_row *row);
} heddle_method;

/* Register a method on e, before the first request that names it; *m and its name are copied.  HEDDLE_INVALID: the name is
 * taken or none; HEDDLE_FULL: 16 are registered; HEDDLE_NO_MEMORY. */
HEDDLE_API heddle_status heddle_register(heddle_engine *e, const heddle_method *m, heddle_error *err);
/* Fill err in check and open; returns status.  field may be NULL; longer text is cut. */
HEDDLE_API heddle_status heddle_error_set(heddle_error *err, heddle_status status, const char *field, const char *message);

HEDDLE_API void *heddle_row_state(const heddle_row *row);
HEDDLE_API const char *heddle_row_id(const heddle_row *row);
HEDDLE_API uint64_t heddle_row_arg(const heddle_row *row);       /* request.method_arg */
HEDDLE_API uint32_t heddle_row_prompt_length(const heddle_row *row);
HEDDLE_API uint32_t heddle_row_computed(const heddle_row *row);  /* of its tokens */
HEDDLE_API uint32_t heddle_row_left(const heddle_row *row);      /* tokens it may still publish */
/* The prompt and what was published: *n of them, borrowed for the call. */
HEDDLE_API const int32_t *heddle_row_tokens(const heddle_row *row, size_t *n);

/* In consume.  The logits [*n] that the next token is sampled from; what is written there counts.  NULL: there are none (any
 * more): the draft was wrong here, or ended. */
HEDDLE_API float *heddle_row_logits(heddle_row *row, size_t *n);
/* In consume.  Sample the next token as the request says, or take the one that heddle_force gave.  The same until it is
 * published.  HEDDLE_NOT_FOUND: there are no logits for it; HEDDLE_FAILED: the row has failed (every token was forbidden). */
HEDDLE_API heddle_status heddle_row_sample(heddle_row *row, int32_t *id);
/* In consume.  Append id and hand it out, sampled or not.  0: the row is over with it (an end token, a stop string, the cap,
 * a failure), or was before. */
HEDDLE_API int heddle_row_publish(heddle_row *row, int32_t id);
/* In consume, after plan.hidden.  The hidden states [*n][width] of the segment's positions, the first of which is *first. */
HEDDLE_API const float *heddle_row_hidden(const heddle_row *row, uint32_t *first, size_t *n);
/* In consume.  The row is over: HEDDLE_FINISH_STOP or HEDDLE_FINISH_LENGTH (others count as the first); or it has failed. */
HEDDLE_API void heddle_row_end(heddle_row *row, int32_t finish);
HEDDLE_API void heddle_row_fail(heddle_row *row, const char *message);

#ifdef __cplusplus
}
#endif

#endif
