/* embedding.h - what a request of the method "embedding" says in method_arg, and the pooling that a file asks for. */
#ifndef HD_EXEC_EMBEDDING_H
#define HD_EXEC_EMBEDDING_H

#include "model/model.h"

/* From one vector per token to one vector: that of the last token, the mean of all, that of the first.  method_arg is one
 * of these, and EMBEDDING_RAW if the vector is to stay as long as it comes out. */
typedef enum { EMBEDDING_LAST, EMBEDDING_MEAN, EMBEDDING_CLS, N_EMBEDDING_POOLINGS } embedding_pooling;
enum { EMBEDDING_RAW = 1 << 8 }; /* without it the vector is divided by its length (L2) */

/* The pooling the model's file names, else that of the last token, the only one that a decoder lets see all others. */
static inline embedding_pooling embedding_default(const model_info *m) {
    return m->pooling_type == 1 ? EMBEDDING_MEAN : m->pooling_type == 2 ? EMBEDDING_CLS : EMBEDDING_LAST;
}
/* "last", "mean", "cls".  False: none of them. */
bool embedding_by_name(const char *name, embedding_pooling *out);

#endif
