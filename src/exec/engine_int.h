/* engine_int.h - what the files of exec/ know of the engine.  Lock order: engine->mu, session->mu, engine->wake_mu. */
#ifndef HD_EXEC_ENGINE_INT_H
#define HD_EXEC_ENGINE_INT_H

#include "exec/engine.h"

const hd_clock *engine_clock(const engine *e);
void engine_wake(engine *e);        /* there may be work again; takes only wake_mu */
void engine_wake_cancel(engine *e); /* the same, and cut a scripted model's sleep short */
void engine_forget(engine *e, session *s); /* it is over: off the list of live sessions */

#endif
