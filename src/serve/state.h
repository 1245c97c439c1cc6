/* state.h - GET /v1/heddle/state: rows, queue, pages, steps, as JSON.  Loop thread. */
#ifndef HD_SERVE_STATE_H
#define HD_SERVE_STATE_H

#include "serve/server_int.h"

/* For the holder of API key `key` (conn.key): rows and queue are his own, or all for the first key and where there are none.
 * False: no memory. */
bool state_write(server *s, size_t key, hd_buf *out);

#endif
