/* topology_int.h - the counting behind hd_topology_get, open to tests with made-up machines. */
#ifndef HD_BASE_TOPOLOGY_INT_H
#define HD_BASE_TOPOLOGY_INT_H

#include "base/topology.h"

#include <hwloc.h>

/* Count a loaded topology.  allowed: PUs this process may run on, NULL for all.  quota: CPUs, 0: none. */
void topology_count(hwloc_topology_t topo, hwloc_const_cpuset_t allowed, double quota, hd_topology *t);

#endif
