/* api_model.c - heddle.h: errors and memory, models, text. */
#include "base/clock.h"
#include "base/mem.h"
#include "exec/api_int.h"
#include "exec/methods/embedding.h"

#include <string.h>

enum { MAX_IDS = 64 << 20 /* of one text */, MAX_RENDERED = 64 << 20 /* bytes */ };

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "heddle.h and the engine number this alike")
SAME(HEDDLE_OK, HD_OK);
SAME(HEDDLE_INVALID, HD_INVALID);
SAME(HEDDLE_UNSUPPORTED, HD_UNSUPPORTED);
SAME(HEDDLE_NOT_FOUND, HD_NOTFOUND);
SAME(HEDDLE_NO_MEMORY, HD_NOMEM);
SAME(HEDDLE_IO, HD_IO);
SAME(HEDDLE_FULL, HD_FULL);
SAME(HEDDLE_NEVER_FITS, HD_NEVER_FITS);
SAME(HEDDLE_CANCELLED, HD_CANCELLED);
SAME(HEDDLE_TIMEOUT, HD_TIMEOUT);
SAME(HEDDLE_CLOSED, HD_CLOSED);
SAME(HEDDLE_FAILED, HD_FAILED);
SAME(HEDDLE_POOL_LAST, EMBEDDING_LAST);
SAME(HEDDLE_POOL_MEAN, EMBEDDING_MEAN);
SAME(HEDDLE_POOL_CLS, EMBEDDING_CLS);
SAME(HEDDLE_POOL_RAW, EMBEDDING_RAW);
_Static_assert(sizeof((heddle_error *)0)->field == sizeof((hd_err *)0)->field, "one length of fields");
_Static_assert(sizeof((heddle_error *)0)->message == sizeof((hd_err *)0)->msg, "one length of messages");

/* ---- versions, memory, errors ---- */

const char *heddle_version(void) { return HEDDLE_VERSION; }
void heddle_free(void *p) { hd_free(p); }

void heddle_init(void *p, size_t size) {
    memset(p, 0, size);
    if (size >= sizeof size) memcpy(p, &size, sizeof size);
}

size_t heddle_struct_size(const char *name) {
    static const struct {
        const char *name;
        size_t size;
    } all[] = {
#define STRUCT(s) {#s, sizeof(s)}
        STRUCT(heddle_error),          STRUCT(heddle_model_options), STRUCT(heddle_model_info),
        STRUCT(heddle_engine_options), STRUCT(heddle_counters),      STRUCT(heddle_text),
        STRUCT(heddle_logit_bias),     STRUCT(heddle_request),       STRUCT(heddle_stats),
        STRUCT(heddle_event),          STRUCT(heddle_token_logprob), STRUCT(heddle_result),
        STRUCT(heddle_plan),       STRUCT(heddle_method),
#undef STRUCT
    };
    for (size_t i = 0; name && i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) return all[i].size;
    return 0;
}

const char *heddle_status_name(int32_t status) {
    return status >= HEDDLE_OK && status <= HEDDLE_FAILED ? hd_status_name((hd_status)status) : "unknown";
}

hd_status api_take(void *own, size_t known, const void *theirs, const char *what, hd_err *err) {
    size_t size;
    memset(own, 0, known);
    if (!theirs) return HD_OK;
    memcpy(&size, theirs, sizeof size);
    if (size < sizeof size || size > 1 << 16)
        return hd_fail_field(err, HD_INVALID, "size", "%s.size is not set: begin with its init call", what);
    for (size_t i = known; i < size; i++)
        if (((const char *)theirs)[i])
            return hd_fail_field(err, HD_UNSUPPORTED, what, "%s uses a member that is newer than this library (%s)",
                                 what, HEDDLE_VERSION);
    memcpy(own, theirs, size < known ? size : known);
    return HD_OK;
}

void api_give(void *theirs, const void *own, size_t known) {
    size_t size;
    memcpy(&size, theirs, sizeof size);
    if (size > sizeof size)
        memcpy((char *)theirs + sizeof size, (const char *)own + sizeof size,
               (size < known ? size : known) - sizeof size);
}

heddle_error api_error(const hd_err *e) {
    heddle_error own;
    HEDDLE_INIT(&own);
    own.code = (int32_t)e->code;
    own.line = e->line;
    own.at = e->at;
    memcpy(own.field, e->field, sizeof own.field);
    memcpy(own.message, e->msg, sizeof own.message);
    return own;
}

heddle_status api_fail(heddle_error *err, const hd_err *e) {
    if (err) {
        heddle_error own = api_error(e);
        api_give(err, &own, sizeof own);
    }
    return (heddle_status)e->code;
}

hd_status api_list(const char *field, const void *p, size_t n, hd_err *err) {
    return p || !n ? HD_OK : hd_fail_field(err, HD_INVALID, field, "%s is NULL with %zu entries", field, n);
}

/* ---- models ---- */

heddle_status heddle_model_open(heddle_model **out, const char *name, const heddle_model_options *opt,
                                heddle_error *err) {
    heddle_model *m;
    heddle_model_options o;
    model_options mo;
    hd_err e = {.at = HD_NOWHERE};
    *out = NULL;
    if (api_take(&o, sizeof o, opt, "heddle_model_options", &e)) return api_fail(err, &e);
    if (!name) {
        hd_fail_field(&e, HD_INVALID, "name", "a model has a name");
        return api_fail(err, &e);
    }
    if (o.n_threads > 256) {
        hd_fail_field(&e, HD_INVALID, "n_threads", "n_threads must be at most 256");
        return api_fail(err, &e);
    }
    if (!(m = hd_calloc(1, sizeof *m))) {
        hd_fail(&e, HD_NOMEM, "no memory for a model");
        return api_fail(err, &e);
    }
    mo = (model_options){.isa = o.isa,
                         .n_threads = o.n_threads,
                         .vocab_only = o.vocab_only,
                         .pack_dir = o.pack_dir,
                         .pack_cap = o.pack_cap_bytes,
                         .progress = o.progress,
                         .progress_ctx = o.progress_ctx};
    m->vocab_only = o.vocab_only;
    atomic_init(&m->refs, 1);
    atomic_flag_clear(&m->has_engine);
    if (model_open(&m->m, name, &mo, &e)) {
        hd_free(m);
        return api_fail(err, &e);
    }
    *out = m;
    return HEDDLE_OK;
}

void api_model_unref(heddle_model *m) {
    if (!m || atomic_fetch_sub(&m->refs, 1) > 1) return;
    model_close(m->m);
    hd_free(m);
}

void heddle_model_close(heddle_model *m) { api_model_unref(m); }

void heddle_model_look(const heddle_model *m, heddle_model_info *out) {
    const model_info *in = model_get(m->m);
    heddle_model_info own;
    HEDDLE_INIT(&own);
    own.name = in->name;
    own.arch = in->arch;
    own.isa = in->isa;
    own.chat_template = in->chat_text;
    own.chat_error = in->chat_error;
    own.weight_bytes = in->weight_bytes;
    own.n_params = in->n_params;
    own.n_vocab = in->n_vocab;
    own.context = in->ctx_train;
    own.n_layers = in->n_layers;
    own.width = in->width;
    own.n_threads = in->n_threads;
    own.bos = in->bos;
    own.eos = in->eos;
    own.n_eog = in->n_eog;
    _Static_assert(sizeof own.eog == sizeof in->eog, "all ids that end a generation");
    memcpy(own.eog, in->eog, sizeof own.eog);
    own.adds_bos = tokenizer_adds_bos(in->tok);
    own.scripted = in->scripted;
    own.temperature = in->temperature;
    own.top_p = in->top_p;
    own.min_p = in->min_p;
    own.top_k = in->top_k;
    own.pooling = embedding_default(in);
    api_give(out, &own, sizeof own);
}

/* ---- text ---- */

/* The block of b with at least a NUL in it, and its length. */
static hd_status take_text(hd_buf *b, char **text, size_t *n, hd_err *e) {
    if (b->failed)
        return hd_fail(e, b->failed, b->failed == HD_FULL ? "the text is too long" : "no memory for the text");
    *n = b->len;
    if ((*text = b->data ? buf_take(b, n) : hd_strdup(""))) return HD_OK;
    *n = 0;
    return hd_fail(e, HD_NOMEM, "no memory for the text");
}

/* The block of l, never NULL. */
static hd_status take_ids(id_list *l, int32_t **ids, size_t *n, hd_err *e) {
    if (!l->ids && !(l->ids = hd_alloc(sizeof *l->ids))) return hd_fail(e, HD_NOMEM, "no memory for tokens");
    *ids = l->ids;
    *n = l->n;
    l->ids = NULL;
    return HD_OK;
}

heddle_status heddle_tokenize(const heddle_model *m, const char *text, size_t n, uint32_t flags, int32_t **ids,
                              size_t *n_ids, heddle_error *err) {
    unsigned f = (flags & HEDDLE_TOKENIZE_SPECIAL ? TOK_SPECIAL : 0) | (flags & HEDDLE_TOKENIZE_BOS ? TOK_BOS : 0);
    hd_err e = {.at = HD_NOWHERE};
    id_list l;
    hd_status st;
    *ids = NULL;
    *n_ids = 0;
    if (flags & ~(uint32_t)(HEDDLE_TOKENIZE_SPECIAL | HEDDLE_TOKENIZE_BOS)) {
        hd_fail_field(&e, HD_UNSUPPORTED, "flags", "unknown flags %#x", flags);
        return api_fail(err, &e);
    }
    id_list_init(&l, MAX_IDS);
    if (!(st = api_list("text", text, n, &e)) &&
        !(st = tokenizer_encode(model_get(m->m)->tok, text ? text : "", n, f, &l, &e)))
        st = take_ids(&l, ids, n_ids, &e);
    id_list_deinit(&l);
    return st ? api_fail(err, &e) : HEDDLE_OK;
}

heddle_status heddle_detokenize(const heddle_model *m, const int32_t *ids, size_t n_ids, int special, char **text,
                                size_t *n, heddle_error *err) {
    hd_err e = {.at = HD_NOWHERE};
    hd_buf b;
    hd_status st;
    *text = NULL;
    *n = 0;
    buf_init(&b, SIZE_MAX);
    if (!(st = api_list("ids", ids, n_ids, &e)) &&
        !(st = tokenizer_decode(model_get(m->m)->tok, ids, n_ids, special != 0, &b, &e)))
        st = take_text(&b, text, n, &e);
    buf_deinit(&b);
    return st ? api_fail(err, &e) : HEDDLE_OK;
}

/* Set input's `key` to token `id` unless the caller did, or the token is no text.  False: no memory. */
static bool offer_token(json_t *input, const char *key, const tokenizer *tok, int32_t id) {
    json_t *name;
    gguf_str t;
    if (id < 0 || json_object_get(input, key)) return true;
    t = tokenizer_bytes(tok, id, true);
    return !(name = json_stringn(t.s, t.n)) || !json_object_set_new(input, key, name);
}

/* What the template shall see, from what the caller wrote. */
static hd_status read_conversation(const model_info *in, const char *json, size_t n, json_t **out, hd_err *e) {
    json_error_t je;
    json_t *root;
    const json_t *messages;
    *out = NULL;
    if (api_list("json", json, n, e)) return e->code;
    root = json_loadb(json ? json : "", n, JSON_ALLOW_NUL, &je);
    if (!root) {
        hd_fail_at(e, HD_INVALID, je.position > 0 ? (uint64_t)je.position : 0, "line %d, column %d: %s", je.line,
                   je.column, je.text);
        return e->code;
    }
    if (json_is_array(root)) {
        json_t *o = json_object();
        if (!o || json_object_set_new(o, "messages", root)) { /* takes root in any case */
            json_decref(o);
            return hd_fail(e, HD_NOMEM, "no memory for the conversation");
        }
        root = o;
    }
    messages = json_object_get(root, "messages");
    if (!json_is_array(messages) || !json_array_size(messages)) {
        json_decref(root);
        return hd_fail_field(e, HD_INVALID, "messages", "there must be an array of messages that is not empty");
    }
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_object(json_array_get(messages, i))) {
            json_decref(root);
            return hd_fail_field(e, HD_INVALID, "messages", "messages[%zu] is not an object", i);
        }
    if ((!json_object_get(root, "add_generation_prompt") &&
         json_object_set_new(root, "add_generation_prompt", json_true())) ||
        !offer_token(root, "bos_token", in->tok, in->bos) || !offer_token(root, "eos_token", in->tok, in->eos)) {
        json_decref(root);
        return hd_fail(e, HD_NOMEM, "no memory for the conversation");
    }
    *out = root;
    return HD_OK;
}

static hd_status render(const model_info *in, const char *json, size_t n, hd_buf *text, template_spans *spans,
                        hd_err *e) {
    template_options o = {.now = hd_wall_seconds(), .local = true};
    json_t *input;
    hd_status st;
    if (!in->chat)
        return hd_fail(e, HD_UNSUPPORTED, "this model has no usable chat template%s%s", in->chat_error ? ": " : "",
                       in->chat_error ? in->chat_error : "");
    if ((st = read_conversation(in, json, n, &input, e))) return st;
    st = template_render(in->chat, input, &o, text, spans, e);
    json_decref(input);
    return st;
}

heddle_status heddle_render(const heddle_model *m, const char *json, size_t n, char **text, size_t *n_text,
                            heddle_error *err) {
    hd_err e = {.at = HD_NOWHERE};
    hd_buf b;
    hd_status st;
    *text = NULL;
    *n_text = 0;
    buf_init(&b, MAX_RENDERED);
    if (!(st = render(model_get(m->m), json, n, &b, NULL, &e))) st = take_text(&b, text, n_text, &e);
    buf_deinit(&b);
    return st ? api_fail(err, &e) : HEDDLE_OK;
}

heddle_status heddle_render_ids(const heddle_model *m, const char *json, size_t n, int32_t **ids, size_t *n_ids,
                                heddle_error *err) {
    const model_info *in = model_get(m->m);
    hd_err e = {.at = HD_NOWHERE};
    template_spans spans = {0};
    text_piece *pieces = NULL;
    hd_buf b;
    id_list l;
    hd_status st;
    *ids = NULL;
    *n_ids = 0;
    buf_init(&b, MAX_RENDERED);
    id_list_init(&l, MAX_IDS);
    if ((st = render(in, json, n, &b, &spans, &e))) goto out;
    if (!(pieces = hd_calloc(spans.n ? spans.n : 1, sizeof *pieces))) {
        st = hd_fail(&e, HD_NOMEM, "no memory for the prompt");
        goto out;
    }
    for (size_t i = 0; i < spans.n; i++)
        pieces[i] = (text_piece){b.data + spans.spans[i].start, spans.spans[i].n, spans.spans[i].trusted};
    /* The template decides about BOS: nothing is added to what it wrote. */
    if (!(st = tokenizer_encode_pieces(in->tok, pieces, spans.n, 0, &l, &e))) st = take_ids(&l, ids, n_ids, &e);
out:
    hd_free(pieces);
    template_spans_deinit(&spans);
    id_list_deinit(&l);
    buf_deinit(&b);
    return st ? api_fail(err, &e) : HEDDLE_OK;
}
