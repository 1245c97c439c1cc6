/* cgroup.c - what the control groups of this process allow: CPU time and memory, v1 and v2.
 *
 * A limit may be set on our own group or on any above it, so every level that can be seen is read and the smallest
 * counts.  Inside a container the group path in /proc/self/cgroup may be the host's, while only its lower end is mounted:
 * the mount's root field tells how much of the path to drop.  Files that are missing or odd mean "no limit".
 * Sources: cgroup-v2 documentation of Linux (cpu.max, memory.max), proc(5) for mountinfo and cgroup. */
#include "base/cgroup.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 256 * 1024 }; /* mountinfo of a busy container host is some tens of KiB; the rest is not looked at */

/* ---- the texts ---- */

/* Next line of *text as a string of its own in buf; lines that do not fit are skipped. */
static bool next_line(const char **text, char *buf, size_t size) {
    while (**text) {
        size_t n = strcspn(*text, "\n");
        const char *line = *text;
        *text += n + (line[n] == '\n');
        if (n < size) {
            memcpy(buf, line, n);
            buf[n] = 0;
            return true;
        }
    }
    return false;
}

/* Is `word` one of the comma-separated words of list? */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (;;) {
        size_t len = strcspn(list, ",");
        if (len == n && memcmp(list, word, n) == 0) return true;
        if (!list[len]) return false;
        list += len + 1;
    }
}

bool cgroup_parse_path(const char *proc_cgroup, const char *controller, char *path, size_t size) {
    char line[CGROUP_PATH];
    while (next_line(&proc_cgroup, line, sizeof line)) { /* id:controllers:path */
        char *list = strchr(line, ':');
        char *p = list ? strchr(list + 1, ':') : NULL;
        if (!p) continue;
        *list++ = 0;
        *p++ = 0;
        bool mine = controller ? has_word(list, controller) : strcmp(line, "0") == 0 && !*list;
        if (!mine || *p != '/' || strlen(p) >= size) continue;
        strcpy(path, p);
        return true;
    }
    return false;
}

bool cgroup_parse_mount(const char *mountinfo, const char *controller, char *root, char *point, size_t size) {
    char line[CGROUP_PATH * 2];
    while (next_line(&mountinfo, line, sizeof line)) {
        /* id parent dev root point options [tags] - type source super-options */
        char *field[5], *save = NULL;
        int n = 0;
        char *dash = strstr(line, " - ");
        if (!dash) continue;
        *dash = 0;
        for (char *f = strtok_r(line, " ", &save); f && n < 5; f = strtok_r(NULL, " ", &save)) field[n++] = f;
        if (n < 5) continue;
        char *type = strtok_r(dash + 3, " ", &save);
        char *super = type && strtok_r(NULL, " ", &save) ? strtok_r(NULL, " ", &save) : NULL;
        if (!super) continue;
        bool mine = controller ? strcmp(type, "cgroup") == 0 && has_word(super, controller) : !strcmp(type, "cgroup2");
        if (!mine || strlen(field[3]) >= size || strlen(field[4]) >= size) continue;
        strcpy(root, field[3]);
        strcpy(point, field[4]);
        return true;
    }
    return false;
}

double cgroup_parse_cpu_max(const char *text) {
    char *end;
    double quota = strtod(text, &end);
    if (end == text || !(quota > 0) || quota > 1e15) return 0; /* "max" */
    const char *rest = end;
    double period = strtod(rest, &end);
    if (end == rest) period = 100000; /* the kernel's default */
    return period > 0 && period < 1e15 ? quota / period : 0;
}

uint64_t cgroup_parse_bytes(const char *text) {
    char *end;
    errno = 0;
    while (*text == ' ') text++;
    if (*text < '0' || *text > '9') return 0; /* "max", "-1" */
    unsigned long long v = strtoull(text, &end, 10);
    if (errno) return 0;
    return v >= (uint64_t)1 << 60 ? 0 : v; /* v1 writes a page-rounded 2^63 for "none" */
}

/* ---- the files ---- */

static char *read_text(const char *root, const char *path, char *buf, size_t size) {
    char full[CGROUP_PATH * 2];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof full) return NULL;
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    size_t have = 0;
    for (;;) {
        ssize_t got = read(fd, buf + have, size - 1 - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    close(fd);
    buf[have] = 0;
    return buf;
}

/* The folder of our group for this controller; *top is the length of its mount point, below which no level is read. */
static bool own_folder(const cgroup_texts *t, const char *controller, char *folder, size_t size, size_t *top) {
    char path[CGROUP_PATH], mount_root[CGROUP_PATH], point[CGROUP_PATH];
    if (!cgroup_parse_path(t->cgroup, controller, path, sizeof path)) return false;
    if (!cgroup_parse_mount(t->mountinfo, controller, mount_root, point, sizeof point)) return false;
    const char *rest = path;
    size_t n = strlen(mount_root);
    if (strcmp(mount_root, "/") != 0) {
        if (strncmp(path, mount_root, n) == 0 && (path[n] == '/' || !path[n])) rest = path + n;
        else rest = ""; /* our group is outside what is mounted: the mount's own top is the best there is */
    }
    *top = strlen(point);
    int len = snprintf(folder, size, "%s%s", point, strcmp(rest, "/") == 0 ? "" : rest);
    return len >= 0 && (size_t)len < size;
}

typedef double (*level_fn)(const char *root, const char *folder); /* the limit at one level, 0: none */

static double smallest(const char *root, char *folder, size_t top, level_fn level) {
    double least = 0;
    for (;;) {
        double v = level(root, folder);
        if (v > 0 && (least == 0 || v < least)) least = v;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= top || !slash) return least;
        *slash = 0;
    }
}

static bool level_text(const char *root, const char *folder, const char *file, char *buf, size_t size) {
    char path[CGROUP_PATH * 2];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    return n >= 0 && (size_t)n < sizeof path && read_text(root, path, buf, size);
}

static double cpu_v2(const char *root, const char *folder) {
    char buf[128];
    return level_text(root, folder, "cpu.max", buf, sizeof buf) ? cgroup_parse_cpu_max(buf) : 0;
}

static double cpu_v1(const char *root, const char *folder) {
    char quota[64], period[64], both[130];
    if (!level_text(root, folder, "cpu.cfs_quota_us", quota, sizeof quota)) return 0;
    if (!level_text(root, folder, "cpu.cfs_period_us", period, sizeof period)) period[0] = 0;
    snprintf(both, sizeof both, "%s %s", quota, period);
    return cgroup_parse_cpu_max(both);
}

/* Byte counts below 2^60 pass through a double; above 2^53 they lose some low bits, which no decision hangs on. */
static double mem_v2(const char *root, const char *folder) {
    char buf[64];
    return level_text(root, folder, "memory.max", buf, sizeof buf) ? (double)cgroup_parse_bytes(buf) : 0;
}

static double mem_v1(const char *root, const char *folder) {
    char buf[64];
    return level_text(root, folder, "memory.limit_in_bytes", buf, sizeof buf) ? (double)cgroup_parse_bytes(buf) : 0;
}

static double limit(const char *root, const char *controller, level_fn v1, level_fn v2) {
    static const size_t size = TEXT_MAX;
    double least = 0;
    char *cgroup = hd_alloc(size), *mountinfo = hd_alloc(size);
    if (cgroup && mountinfo && read_text(root, "/proc/self/cgroup", cgroup, size) &&
        read_text(root, "/proc/self/mountinfo", mountinfo, size)) {
        cgroup_texts t = {cgroup, mountinfo};
        char folder[CGROUP_PATH * 2];
        size_t top;
        for (int v = 1; v <= 2; v++) {
            if (!own_folder(&t, v == 1 ? controller : NULL, folder, sizeof folder, &top)) continue;
            double x = smallest(root, folder, top, v == 1 ? v1 : v2);
            if (x > 0 && (least == 0 || x < least)) least = x;
        }
    }
    hd_free(cgroup);
    hd_free(mountinfo);
    return least;
}

double cgroup_cpu_quota(const char *root) { return limit(root, "cpu", cpu_v1, cpu_v2); }
uint64_t cgroup_memory_limit(const char *root) { return (uint64_t)limit(root, "memory", mem_v1, mem_v2); }
