/* state.h - GET /v1/heddle/state: rows, queue, pages, steps, as JSON.  Loop thread. */
#ifndef HD_SERVE_STATE_H
#define HD_SERVE_STATE_H

#include "serve/server_int.h"

/* False: no memory. */
bool state_write(server *s, hd_buf *out);

#endif
