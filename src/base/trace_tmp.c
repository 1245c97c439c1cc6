/* trace_tmp.c - does nothing yet; delete this file when src/base/trace.c comes. */
#include "base/trace.h"
void trace_span(trace *t, const char *name, uint32_t lane, uint64_t t0_us, uint64_t t1_us, const char *arg1, uint64_t v1, const char *arg2, uint64_t v2) { (void)t,(void)name,(void)lane,(void)t0_us,(void)t1_us,(void)arg1,(void)v1,(void)arg2,(void)v2; }
void trace_request(trace *t, const char *name, const char *id, uint64_t order, uint64_t t0_us, uint64_t t1_us, const char *arg1, uint64_t v1) { (void)t,(void)name,(void)id,(void)order,(void)t0_us,(void)t1_us,(void)arg1,(void)v1; }
void trace_mark(trace *t, const char *name, const char *id, uint64_t order, uint64_t t_us) { (void)t,(void)name,(void)id,(void)order,(void)t_us; }
