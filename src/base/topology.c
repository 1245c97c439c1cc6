/* topology.c - from the machine, the affinity mask and the quota to a number of threads.
 *
 * Matrix products gain nothing from a second thread on the same core, and a barrier waits for the slowest member, so one
 * thread per physical core of the fastest kind is what pays.  A quota is rounded down: one thread too many and the group is
 * throttled in every period, in the midst of a barrier, and everybody waits for the one that was stopped. */
#include "base/topology.h"
#include "base/cgroup.h"
#include "base/topology_int.h"

#include <hwloc.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

/* Cores that have a PU in `set`; where the system reports no cores, its PUs. */
static unsigned cores_in(hwloc_topology_t topo, hwloc_const_cpuset_t set) {
    unsigned n = 0;
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, core)))
        if (hwloc_bitmap_intersects(core->cpuset, set)) n++;
    int pus = hwloc_bitmap_weight(set);
    return n ? n : pus > 0 ? (unsigned)pus : 0;
}

/* Narrow `set` to the fastest kind of core it contains, where the kinds' ranks are known.  hwloc orders kinds by
 * rising efficiency value, which is its word for speed. */
static void keep_fast(hwloc_topology_t topo, hwloc_cpuset_t set) {
    int kinds = hwloc_cpukinds_get_nr(topo, 0);
    hwloc_cpuset_t kind = kinds > 1 ? hwloc_bitmap_alloc() : NULL;
    if (!kind) return;
    for (int i = kinds - 1; i >= 0; i--) {
        int efficiency = -1;
        if (hwloc_cpukinds_get_info(topo, (unsigned)i, kind, &efficiency, NULL, NULL, 0) != 0 || efficiency < 0) break;
        if (!hwloc_bitmap_intersects(kind, set)) continue;
        hwloc_bitmap_and(set, set, kind);
        break;
    }
    hwloc_bitmap_free(kind);
}

static unsigned under_quota(unsigned threads, double quota) {
    if (!(quota > 0) || quota >= threads) return threads;
    return quota < 1 ? 1 : (unsigned)quota;
}

void topology_count(hwloc_topology_t topo, hwloc_const_cpuset_t allowed, double quota, hd_topology *t) {
    *t = (hd_topology){.threads = 1, .cores = 1, .logical = 1, .quota = quota};
    hwloc_cpuset_t set = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topo));
    if (!set) return;
    if (allowed) hwloc_bitmap_and(set, set, allowed);
    int logical = hwloc_bitmap_weight(set);
    if (logical > 0) {
        t->logical = (unsigned)logical;
        t->cores = cores_in(topo, set);
        keep_fast(topo, set);
        t->threads = cores_in(topo, set);
    }
    t->threads = under_quota(t->threads, quota);
    hwloc_bitmap_free(set);
}

void hd_topology_get(hd_topology *t) {
    double quota = cgroup_cpu_quota("");
    hwloc_topology_t topo;
    if (hwloc_topology_init(&topo) == 0) {
        hwloc_cpuset_t mine = hwloc_bitmap_alloc();
        if (mine && hwloc_topology_load(topo) == 0) {
            bool bound = hwloc_get_cpubind(topo, mine, HWLOC_CPUBIND_PROCESS) == 0;
            topology_count(topo, bound ? mine : NULL, quota, t);
            hwloc_bitmap_free(mine);
            hwloc_topology_destroy(topo);
            return;
        }
        hwloc_bitmap_free(mine);
        hwloc_topology_destroy(topo);
    }
    /* Without hwloc (no memory, no /sys): the affinity mask alone. */
    cpu_set_t cpus;
    int n = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    *t = (hd_topology){.cores = (unsigned)n, .logical = (unsigned)n, .quota = quota};
    t->threads = under_quota((unsigned)n, quota);
}

uint64_t hd_memory_limit(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    uint64_t physical = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : UINT64_MAX;
    uint64_t group = cgroup_memory_limit("");
    return group > 0 && group < physical ? group : physical;
}
