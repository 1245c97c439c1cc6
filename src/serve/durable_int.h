/* durable_int.h - the request log's side of the server, as its own files see it. */
#ifndef HD_SERVE_DURABLE_INT_H
#define HD_SERVE_DURABLE_INT_H

#include "serve/durable.h"

#include <pthread.h>

struct durable {
    server *srv;
    journal *log;
    uint8_t (*space)[JOURNAL_DIGEST]; /* by API key; [0]: without one */
    uint8_t identity[JOURNAL_DIGEST]; /* of what must answer; from the resume on */
    uint64_t sweep_us;                /* between sweeps */
    pthread_t thread;
    pthread_mutex_t mu; /* guards jobs and stop; nothing is called under it */
    pthread_cond_t some;
    bool cond_made, started, stop;
    log_job *jobs; /* by t_due_us */
};

#endif
