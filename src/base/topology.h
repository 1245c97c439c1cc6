/* topology.h - how many threads this process should compute with: the physical cores it may use (affinity mask, SMT
 * siblings counted once, on hybrid machines the fast kind), bounded by the cgroup CPU quota (v1 and v2), at least 1. */
#ifndef HD_BASE_TOPOLOGY_H
#define HD_BASE_TOPOLOGY_H

#include <stdint.h>

typedef struct {
    unsigned threads;        /* recommended */
    unsigned cores, logical; /* usable by this process */
    double quota;            /* CPUs by cgroup, 0: no quota */
} hd_topology;

void hd_topology_get(hd_topology *t);
uint64_t hd_memory_limit(void); /* bytes this process may use: cgroup limit or physical memory, the smaller */

#endif
