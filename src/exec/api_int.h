/* api_int.h - what the files behind heddle.h share.
 *
 * The public calls are thin: they check what cannot be trusted from outside (sizes, flags, numbers of enumerators),
 * bring structs to the engine's own shape and back, and call it.  Handles are one struct around the engine's own. Read:
 * api_model.c (errors, models, text), api_engine.c, api_session.c, api_steer.c, api_method.c. */
#ifndef HD_EXEC_API_INT_H
#define HD_EXEC_API_INT_H

#include "base/err.h"
#include "exec/engine.h"
#include "heddle.h"

#include <pthread.h>
#include <stdatomic.h>

/* Freed with the last reference: its maker's and its engine's. */
struct heddle_model {
    model *m;
    atomic_uint refs;
    atomic_flag has_engine;
    bool vocab_only;
};
void api_model_unref(heddle_model *m);

enum { API_MAX_METHODS = 16 };
typedef struct api_method api_method;

struct heddle_engine {
    engine *e;
    heddle_model *m;
    store *store;       /* NULL: no state_dir */
    pthread_mutex_t mu; /* guards the registered methods */
    api_method *methods[API_MAX_METHODS];
    size_t n_methods;
};
/* HD_OK unless r names a registered method that refuses it. */
hd_status api_method_check(heddle_engine *e, const heddle_request *r, hd_err *err);

struct heddle_session {
    session *s;
    bool done; /* its end was read */
    bool logprobs;
    void (*notify)(void *ctx);
    void *notify_ctx;
    gen_event ev; /* what the reader borrows from; by the reader alone */
    heddle_stats stats;
    heddle_error error;
};

/* ---- structs that cross ----
 * `known` is the library's size of the struct, `size` the caller's, which is the first member on both sides. */

/* Bring the caller's struct to the library's shape: what it does not know is 0.  HD_INVALID: no size; HD_UNSUPPORTED:
 * it sets something that this library does not know. */
hd_status api_take(void *own, size_t known, const void *theirs, const char *what, hd_err *err);
/* Copy as much as the caller knows; own's first member becomes the caller's size. */
void api_give(void *theirs, const void *own, size_t known);
/* Fill err (NULL is fine) and return in its shape. */
heddle_status api_fail(heddle_error *err, const hd_err *e);
heddle_error api_error(const hd_err *e); /* of the library's size */
cancel_reason api_reason(int32_t reason);
/* HD_INVALID: n entries are promised, but p is NULL. */
hd_status api_list(const char *field, const void *p, size_t n, hd_err *err);

#endif
