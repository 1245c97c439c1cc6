/* cgroup.h - limits that control groups (v1 and v2) put on this process.  Read by topology.c and tests only. */
#ifndef HD_BASE_CGROUP_H
#define HD_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CGROUP_PATH = 1024 }; /* longer paths are not looked at */

/* root: prefix of every path that is read; "" for the real files, a folder with copies in tests.
 * CPUs' worth of time per second, the least over our group and those above it.  0: no quota. */
double cgroup_cpu_quota(const char *root);
uint64_t cgroup_memory_limit(const char *root); /* bytes, likewise */

/* The texts behind them.  controller NULL means v2. */
typedef struct {
    const char *cgroup, *mountinfo; /* /proc/self/... */
} cgroup_texts;
/* Our group's path for the controller, out of the text of /proc/self/cgroup. */
bool cgroup_parse_path(const char *proc_cgroup, const char *controller, char *path, size_t size);
/* Which folder of the hierarchy (root) is mounted where (point); both of `size` bytes. */
bool cgroup_parse_mount(const char *mountinfo, const char *controller, char *root, char *point, size_t size);
double cgroup_parse_cpu_max(const char *text);  /* "quota period" in us; 0: "max", negative or odd */
uint64_t cgroup_parse_bytes(const char *text);  /* 0: "max", negative, odd or absurdly large */

#endif
