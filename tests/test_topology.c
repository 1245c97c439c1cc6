/* test_topology.c - thread counts on made-up machines, control group files of made-up containers. */
#include "base/cgroup.h"
#include "base/mem.h"
#include "base/topology.h"
#include "base/topology_int.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- machines ---- */

static hwloc_topology_t machine(const char *synthetic) {
    hwloc_topology_t topo;
    assert_int_equal(hwloc_topology_init(&topo), 0);
    assert_int_equal(hwloc_topology_set_synthetic(topo, synthetic), 0);
    assert_int_equal(hwloc_topology_load(topo), 0);
    return topo;
}

static hwloc_cpuset_t cpus(unsigned first, unsigned last) {
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    assert_non_null(set);
    hwloc_bitmap_set_range(set, first, (int)last);
    return set;
}

static void expect(hwloc_topology_t topo, hwloc_cpuset_t allowed, double quota, unsigned threads, unsigned cores,
                   unsigned logical) {
    hd_topology t;
    topology_count(topo, allowed, quota, &t);
    assert_int_equal(t.threads, threads);
    assert_int_equal(t.cores, cores);
    assert_int_equal(t.logical, logical);
    hwloc_bitmap_free(allowed);
}

static void siblings_count_once(void **state) {
    (void)state;
    hwloc_topology_t topo = machine("pack:2 core:4 pu:2");
    expect(topo, NULL, 0, 8, 8, 16);
    expect(topo, cpus(0, 3), 0, 2, 2, 4);   /* bound to two whole cores */
    expect(topo, cpus(1, 2), 0, 2, 2, 2);   /* one sibling of each of two */
    expect(topo, cpus(6, 6), 0, 1, 1, 1);
    expect(topo, cpus(99, 99), 0, 1, 1, 1); /* nothing that exists: still one */
    hwloc_topology_destroy(topo);
}

static void quota_bounds_threads(void **state) {
    (void)state;
    hwloc_topology_t topo = machine("core:8 pu:1");
    expect(topo, NULL, 4, 4, 8, 8);
    expect(topo, NULL, 3.9, 3, 8, 8); /* a fourth would be throttled, and the others wait for it (R103) */
    expect(topo, NULL, 1.5, 1, 8, 8);
    expect(topo, cpus(2, 3), 4, 2, 2, 2); /* the mask and the quota: the smaller one */
    expect(topo, cpus(0, 5), 2, 2, 6, 6);
    expect(topo, NULL, 0.1, 1, 8, 8);
    expect(topo, NULL, 64, 8, 8, 8);
    hwloc_topology_destroy(topo);
}

static void hybrid_uses_the_fast_kind(void **state) {
    (void)state;
    hwloc_topology_t topo = machine("core:12 pu:1");
    hwloc_cpuset_t fast = cpus(0, 3), slow = cpus(4, 11);
    assert_int_equal(hwloc_cpukinds_register(topo, slow, 1, 0, NULL, 0), 0);
    assert_int_equal(hwloc_cpukinds_register(topo, fast, 7, 0, NULL, 0), 0);
    expect(topo, NULL, 0, 4, 12, 12);
    expect(topo, cpus(2, 7), 0, 2, 6, 6);
    expect(topo, cpus(6, 9), 0, 4, 4, 4); /* only slow ones left to us */
    hwloc_bitmap_free(fast);
    hwloc_bitmap_free(slow);
    hwloc_topology_destroy(topo);
}

static void this_machine(void **state) {
    (void)state;
    hd_topology t;
    hd_topology_get(&t);
    assert_true(t.threads >= 1 && t.threads <= t.cores && t.cores <= t.logical);
    assert_true(hd_memory_limit() > (uint64_t)64 << 20);
}

/* ---- control groups ---- */

static void texts(void **state) {
    (void)state;
    assert_true(cgroup_parse_cpu_max("max 100000\n") == 0);
    assert_true(cgroup_parse_cpu_max("150000 100000\n") == 1.5);
    assert_true(cgroup_parse_cpu_max("50000") == 0.5);
    assert_true(cgroup_parse_cpu_max("-1 100000") == 0);
    assert_true(cgroup_parse_cpu_max("") == 0);
    assert_true(cgroup_parse_cpu_max("nan nan") == 0);
    assert_true(cgroup_parse_cpu_max("100000 0") == 0);
    assert_true(cgroup_parse_cpu_max("100000 -5") == 0);
    assert_int_equal(cgroup_parse_bytes("max\n"), 0);
    assert_int_equal(cgroup_parse_bytes("-1\n"), 0);
    assert_int_equal(cgroup_parse_bytes("9223372036854771712\n"), 0);
    assert_int_equal(cgroup_parse_bytes("99999999999999999999999\n"), 0);
    assert_int_equal(cgroup_parse_bytes("536870912\n"), 536870912);

    char path[64], root[64], point[64];
    const char *self = "5:cpuset:/a\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x:y\n0::/slice/unit\n";
    assert_true(cgroup_parse_path(self, "cpu", path, sizeof path));
    assert_string_equal(path, "/docker/abc");
    assert_true(cgroup_parse_path(self, "cpuacct", path, sizeof path));
    assert_true(cgroup_parse_path(self, NULL, path, sizeof path));
    assert_string_equal(path, "/slice/unit");
    assert_false(cgroup_parse_path(self, "memory", path, sizeof path));
    assert_false(cgroup_parse_path("rubbish\n:::\n0:", NULL, path, sizeof path));
    assert_false(cgroup_parse_path("4:cpu:/docker/abc", "cpu", path, 5));

    const char *mounts = "21 20 0:1 / / rw - ext4 /dev/sda rw\n"
                         "30 29 0:26 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:9 - cgroup cgroup rw,cpu,cpuacct\n"
                         "31 29 0:27 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n"
                         "broken line\n";
    assert_true(cgroup_parse_mount(mounts, "cpu", root, point, sizeof root));
    assert_string_equal(root, "/docker/abc");
    assert_string_equal(point, "/sys/fs/cgroup/cpu,cpuacct");
    assert_true(cgroup_parse_mount(mounts, NULL, root, point, sizeof root));
    assert_string_equal(point, "/sys/fs/cgroup/unified");
    assert_false(cgroup_parse_mount(mounts, "memory", root, point, sizeof root));
}

static char fake[] = "/tmp/heddle-cgroup-XXXXXX";

static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", fake, path);
    for (char *p = full + strlen(fake) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void clear(void) {
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s/proc %s/sys", fake, fake);
    assert_int_equal(system(cmd), 0);
}

static void files_v2(void **state) {
    (void)state;
    assert_non_null(mkdtemp(fake));
    assert_true(cgroup_cpu_quota(fake) == 0); /* no files at all */
    put("/proc/self/cgroup", "0::/pod/box\n");
    put("/proc/self/mountinfo", "31 29 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    assert_true(cgroup_cpu_quota(fake) == 0);
    assert_int_equal(cgroup_memory_limit(fake), 0);
    put("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/pod/cpu.max", "250000 100000\n"); /* the group above decides */
    put("/sys/fs/cgroup/pod/box/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/pod/memory.max", "2147483648\n");
    assert_true(cgroup_cpu_quota(fake) == 2.5);
    assert_int_equal(cgroup_memory_limit(fake), 1073741824);
    put("/sys/cpu.max", "1 100000\n"); /* above the mount point: not a group */
    assert_true(cgroup_cpu_quota(fake) == 2.5);
    clear();
}

static void files_v1_in_a_container(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n");
    put("/proc/self/mountinfo", "30 29 0:26 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
                                "32 29 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "120000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "80000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(cgroup_cpu_quota(fake) == 1.5);
    assert_int_equal(cgroup_memory_limit(fake), 0);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096000\n");
    assert_int_equal(cgroup_memory_limit(fake), 4096000);
    /* Nested groups: the tightest of those that are visible decides. */
    put("/proc/self/cgroup", "4:memory:/docker/abc/in/side\n3:cpu,cpuacct:/docker/abc/in/side\n0::/\n");
    put("/sys/fs/cgroup/cpu/in/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu/in/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu/in/side/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/in/side/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/in/side/memory.limit_in_bytes", "2048000\n");
    assert_true(cgroup_cpu_quota(fake) == 0.5);
    assert_int_equal(cgroup_memory_limit(fake), 2048000);
    /* A path that the mount does not contain: the mount's own top counts. */
    put("/proc/self/cgroup", "3:cpu,cpuacct:/elsewhere\n");
    assert_true(cgroup_cpu_quota(fake) == 1.5);
    clear();
    remove(fake);
}

static void no_memory_means_no_limit(void **state) {
    (void)state;
    for (long n = 0; n < 2; n++) {
        hd_mem_fail_after(n);
        assert_true(cgroup_cpu_quota("") == 0);
        hd_mem_fail_after(-1);
    }
    assert_int_equal(hd_mem_live(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siblings_count_once), cmocka_unit_test(quota_bounds_threads),
        cmocka_unit_test(hybrid_uses_the_fast_kind), cmocka_unit_test(this_machine),
        cmocka_unit_test(texts), cmocka_unit_test(files_v2),
        cmocka_unit_test(files_v1_in_a_container), cmocka_unit_test(no_memory_means_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
