/* row.h - what a request is inside the executor, and the method that advances it.
 *
 * A row holds pages for positions [0, n_done) and tokens [0, n_tokens): the prompt, then what was generated.  Whatever is
 * in tokens but not yet in pages is work: a prompt chunk and a decode step are the same thing with another length, and a
 * preempted row is one whose n_done went back to 0.  Executor thread only. */
#ifndef HD_EXEC_ROW_H
#define HD_EXEC_ROW_H

#include "exec/session.h"
#include "model/model.h"
#include "state/prefix.h"

typedef struct row row;
typedef struct executor executor;

/* What a segment may ask for in this step. */
typedef struct {
    uint32_t tokens; /* positions; >= 1 */
    uint32_t logits; /* positions that want logits, each of which may publish one event; >= 1 */
} step_grant;

/* An algorithm that produces a row's output.  Calls come from the executor's thread, in this order: open, then plan and
 * consume in turn, tail once, close once; check comes earlier, from the submitting thread.  Unset members are allowed
 * where said.  A method never waits, and publishes only from consume. */
struct gen_method {
    const char *name;
    /* Is this request one the method can do?  May be NULL.  HD_INVALID, HD_UNSUPPORTED with the field. */
    hd_status (*check)(const gen_request *req, const model_info *info, hd_err *err);
    hd_status (*open)(row *r, hd_err *err); /* make r->mstate */
    void (*close)(row *r);                  /* only after a successful open; may be NULL */
    /* Positions that a segment after the prompt would like to have; NULL: 1. */
    uint32_t (*wants)(const row *r);
    /* Describe the next segment within the grant.  False: nothing to do now. */
    bool (*plan)(row *r, const step_grant *grant, segment *seg);
    /* Take the results: publish, and end the row with row_end or row_fail when it is over.  r->n_done already counts the
     * segment; a method that rejects some of it sets it back. */
    void (*consume)(row *r, const segment *seg);
    /* Before it, the part of that which looks at a whole vocabulary: rows do it at the same time, on any thread, so it touches
     * nothing but its row and its segment's logits.  n_done does not count the segment yet.  work: sampler_work_bytes.  May be NULL. */
    void (*choose)(row *r, const segment *seg, void *work);
    void (*tail)(row *r, hd_buf *out);      /* text still held back, at an end that is not a stop string; may be NULL */
    bool resumes; /* can go on after tokens it generated in another life (gen_request.said) */
    /* How many of its first tokens' outputs the method can do without: so many may be taken from the cache.  NULL: none. */
    uint32_t (*skips)(const session *s, uint32_t n_tokens);
};
extern const gen_method method_autoregressive, method_embedding;

#define ROW_UNPLANNED UINT32_MAX

/* Gaps between tokens, counted in buckets that grow by 2^(1/4): quantiles to within 10 %, in bounded memory. */
enum { GAP_BUCKETS = 104 };
typedef struct {
    uint32_t n, bucket[GAP_BUCKETS];
} gap_counts;
void gap_add(gap_counts *g, uint64_t us);
uint64_t gap_quantile(const gap_counts *g, double q); /* 0 when empty */

struct row {
    const gen_method *method;
    void *mstate;             /* of the method */
    bool opened;              /* the method holds it: close is due */
    executor *x;
    session *s;
    uint64_t order;           /* = submit order */
    uint32_t rank;            /* its class when it was admitted, aged: with order, who gives way to whom */
    row_phase phase;
    int32_t *tokens;          /* [cap_tokens] */
    uint32_t n_tokens, cap_tokens;
    uint32_t n_prompt, n_done;
    uint32_t cap_generated;   /* tokens it may generate: max_tokens or the context's end */
    uint32_t n_generated;
    void **pages[MODEL_MAX_GROUPS];  /* [max_pages]; entries behind a window are NULL again */
    uint32_t n_pages[MODEL_MAX_GROUPS], first_page[MODEL_MAX_GROUPS];
    prefix_node **path;       /* [max_pages]: nodes of the tree that it goes through, page by page */
    prefix_node *root;        /* of its namespace; NULL: it does not share */
    uint32_t n_shared;        /* pages [0, n_shared) are the tree's, the others its own */
    uint32_t n_taken;         /* prompt tokens taken up instead of computed, before its first token */
    bool alone;               /* a page could not be put in: no more are */
    bool marked;              /* the end of its prompt is, in the tree */
    bool boundary_marked;     /* and the place where a next turn is expected to leave it */
    bool pin_tried;
    uint32_t n_pinned;        /* prompt tokens whose pages are */
    prefix_miss miss;         /* why not more */
    uint32_t miss_at;
    uint64_t computed;        /* positions that were computed, again after a preemption */
    uint64_t held_bytes;      /* of pages held now: its own, and windowed groups' shared ones too */
    uint64_t reserved_bytes;  /* what admission counted for it; >= held_bytes */
    void *model_state;
    uint32_t planned;         /* its segment in the step being planned, or ROW_UNPLANNED */
    uint64_t t_admit_us, t_first_us, t_last_us, t_paused_us, paused_us, t_preempted_us, preempted_us;
    uint32_t preemptions;
    gap_counts gaps;
    /* text of what it published */
    detok detok;
    stop_stream *stops;
    bool closed_text;         /* a stop string ended the text: nothing is released any more */
    bool collect;             /* its session collects */
    bool ended;               /* set by row_end; the executor removes it after the step */
    struct {
        bool made;            /* for the token at position `at`, and not used yet */
        uint32_t at;
        hd_status st;
        sample_result s;
        hd_err err;
    } chosen;
    gen_event end;
};

/* ---- what methods call (exec/publish.c) ---- */

/* For a method's choose: what row_sample will give, unless steering forces a token. */
void row_choose(row *r, float *logits, void *work);
/* The token at position n_tokens: chosen before, or sampled from logits [n_vocab] (overwritten), or the one that steering forces.  False: the
 * row has failed. */
bool row_sample(row *r, float *logits, sample_result *out);
/* Does row_sample look at nothing but the best of the next token's logits?  Then a segment may ask for no more (only_best), and
 * row_take_best does the same as row_sample. */
bool row_takes_best(const row *r);
bool row_take_best(row *r, logit_best best, sample_result *out);
/* Append it and hand it out with the text it releases.  False: the row has ended with it (EOS, which is not handed out, a
 * stop string, the cap). */
bool row_publish(row *r, const sample_result *s);
/* A vtable's `tail` for rows whose output is text of row_publish. */
void row_tail(row *r, hd_buf *out);
hd_status row_text_open(row *r, hd_err *err);
/* Bring the text to where the tokens are that it said before, without handing any out.  The row has ended if its last token
 * ended it, and has failed if an earlier one did. */
void row_take_up(row *r);
void row_text_close(row *r);

/* Called by methods.  The end is published by the executor after the step (publish, settle, evict: in this order). */
void row_end(row *r, finish_reason why);
void row_fail(row *r, const hd_err *err);

#endif
