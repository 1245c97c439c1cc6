/* metrics.h - counters and histograms of the server, and the Prometheus text of them and of the engine.
 *
 * Loop thread only.  Names are vLLM's where it has one (routers read those without configuration), heddle's own
 * otherwise; labels take values from fixed sets. */
#ifndef HD_SERVE_METRICS_H
#define HD_SERVE_METRICS_H

#include "serve/gen.h"

metrics *metrics_new(void);
void metrics_free(metrics *m);
void metrics_status(metrics *m, int status);
void metrics_refused_connection(metrics *m);
void metrics_generation(metrics *m, finish_reason finish, const gen_stats *s); /* a choice ended */
void metrics_cut_reader(metrics *m); /* closed because unread output took too much memory */
void metrics_request(metrics *m, const gen *g, uint64_t e2e_us);     /* a whole request did */
void metrics_write(server *s, hd_buf *out);

#endif
