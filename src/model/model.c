/* model.c - opening a model by name and calling its kind. */
#include "model/model_int.h"
#include "base/mem.h"
#include "base/topology.h"

#include <openssl/evp.h>
#include <stdatomic.h>
#include <string.h>

/* Kernel paths give the same bits, so they are not part of it. */
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
static const char numerics[] = "heddle numerics " TEXT(HD_NUMERICS_VERSION);

hd_status model_open(model **out, const char *name, const model_options *opt, hd_err *err) {
    static const model_options none = {0};
    if (!opt) opt = &none;
    *out = NULL;
    if (!strncmp(name, "script:", 7)) return script_open(out, name + 7, opt, err);
    return decoder_open(out, name, opt, err);
}

void model_close(model *m) {
    if (m) m->ops->close(m);
}

tokenizer *model_take_tokenizer(model *m) {
    tokenizer *t = m->tok;
    m->tok = NULL;
    return t;
}

const model_info *model_get(const model *m) { return &m->info; }
const kernels *model_kernels(const model *m) { return m->k; }

hd_status model_plan(model *m, const step_limits *lim, hd_err *err) { return m->ops->plan(m, lim, err); }
void model_rest(model *m) {
    if (m->ops->rest) m->ops->rest(m);
}

hd_status model_identity(const model *m, uint8_t out[32], hd_err *err) {
    uint8_t all[sizeof numerics + 16];
    memcpy(all, numerics, sizeof numerics);
    if (m->ops->digest(m, all + sizeof numerics) && EVP_Digest(all, sizeof all, out, NULL, EVP_sha256(), NULL)) return HD_OK;
    return hd_fail(err, HD_NOMEM, "model: no memory for a digest");
}

uint64_t model_workspace_bytes(const model *m, const step_limits *lim) { return m->ops->workspace_bytes(m, lim); }

uint64_t model_page_bytes(const model *m, uint32_t g, uint32_t page_tokens, kv_scheme scheme) {
    return m->ops->page_bytes(m, g, page_tokens, scheme);
}

hd_status model_forward(model *m, const step *st, uint32_t *bad_seg, hd_err *err) {
    *bad_seg = st->n_segs;
    return m->ops->forward(m, st, bad_seg, err);
}

typedef struct {
    atomic_size_t next;
    size_t n;
    unsigned most;
    void (*fn)(void *ctx, unsigned member, size_t i);
    void *ctx;
} shared;

static void run_shared(void *ctx, unsigned member, unsigned n) {
    shared *s = ctx;
    (void)n;
    if (member >= s->most) return;
    for (size_t i; (i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->n;) s->fn(s->ctx, member, i);
}

void model_share(model *m, size_t n, unsigned most, void (*fn)(void *ctx, unsigned member, size_t i), void *ctx) {
    shared s = {0, n, most, fn, ctx};
    if (n > 1 && m->pool) pool_run_some(m->pool, run_shared, &s);
    else run_shared(&s, 0, 1);
}

hd_status model_row_open(model *m, const int32_t *prompt, size_t n_prompt, void **row_state, hd_err *err) {
    *row_state = NULL;
    return m->ops->row_open ? m->ops->row_open(m, prompt, n_prompt, row_state, err) : HD_OK;
}

void model_row_close(model *m, void *row_state) {
    if (m->ops->row_close) m->ops->row_close(m, row_state);
}

void model_interrupt(model *m) {
    if (m->ops->interrupt) m->ops->interrupt(m);
}

void model_costs(const model *m, model_cost *trunk, model_cost *head) {
    *trunk = *head = (model_cost){0};
    if (m->ops->costs) m->ops->costs(m, trunk, head);
}

void model_time_steps(model *m, bool on) {
    if (m->ops->time_steps) m->ops->time_steps(m, on);
}

void model_step_times(const model *m, step_times *out) {
    *out = (step_times){0};
    if (m->ops->step_times) m->ops->step_times(m, out);
}

void model_base_deinit(model *m) {
    pool_free(m->pool);
    tokenizer_free(m->tok);
    template_free(m->chat);
    hd_free(m->name);
    hd_free(m->arch);
    hd_free(m->chat_text);
    hd_free(m->chat_error);
}

hd_status model_base_text(model *m, tokenizer *tok, const char *chat_text, size_t n, hd_err *err) {
    model_info *in = &m->info;
    m->tok = tok;
    in->tok = tok;
    in->bos = tokenizer_bos(tok);
    in->eos = tokenizer_eos(tok);
    for (size_t i = 0; i < tokenizer_size(tok) && in->n_eog < MODEL_MAX_EOG; i++)
        if (tokenizer_is_eog(tok, (int32_t)i)) in->eog[in->n_eog++] = (int32_t)i;
    if (chat_text) {
        hd_err why;
        if (!(m->chat_text = hd_strndup(chat_text, n))) return hd_fail(err, HD_NOMEM, "model: no memory");
        in->chat_text = m->chat_text;
        if (template_parse(&m->chat, chat_text, n, &why)) {
            m->chat = NULL;
            if (why.code == HD_NOMEM || !(m->chat_error = hd_strdup(why.msg)))
                return hd_fail(err, HD_NOMEM, "model: no memory");
            in->chat_error = m->chat_error;
        }
        in->chat = m->chat;
    }
    return HD_OK;
}
