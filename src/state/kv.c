/* kv.c - see kv.h. */
#include "state/kv.h"
#include "base/checked.h"
#include "base/mem.h"

#include <string.h>
#include <sys/mman.h>

typedef struct {
    uint64_t page_bytes, stride; /* stride: page_bytes rounded up so that a page can be given back alone */
    uint8_t *base;
    uint32_t n_pages;            /* address space for so many */
    uint32_t n_fresh;            /* pages [n_fresh, n_pages) were never touched */
    uint32_t *warm, n_warm;      /* free, memory behind them */
    uint32_t *dry, n_dry;        /* free, memory given back */
    uint32_t n_held;
} group;

struct kv {
    uint64_t budget;
    uint32_t n_groups;
    group g[KV_MAX_GROUPS];
};

enum { SYSTEM_PAGE = 4096 };

uint64_t kv_stride(uint64_t page_bytes) {
    uint64_t stride;
    return hd_align_up(page_bytes, SYSTEM_PAGE, &stride) ? stride : 0;
}

/* Pages of one group that the budget holds: its address space and its lists are made for so many. */
static uint32_t pages_of_budget(uint64_t budget_bytes, uint64_t stride) {
    uint64_t n = budget_bytes / stride;
    return n > 1u << 24 ? 1u << 24 : (uint32_t)n;
}

uint64_t kv_tables_bytes(uint64_t budget_bytes, uint64_t stride) {
    return (uint64_t)pages_of_budget(budget_bytes, stride) * 2 * sizeof(uint32_t);
}

hd_status kv_open(kv **out, uint64_t budget_bytes, uint32_t n_groups, const uint64_t *page_bytes, hd_err *err) {
    kv *k;
    *out = NULL;
    if (n_groups < 1 || n_groups > KV_MAX_GROUPS) return hd_fail(err, HD_INVALID, "kv: %u layer groups", n_groups);
    if (!(k = hd_calloc(1, sizeof *k))) goto oom;
    k->budget = budget_bytes;
    k->n_groups = n_groups;
    for (uint32_t i = 0; i < n_groups; i++) {
        group *g = &k->g[i];
        g->page_bytes = page_bytes[i];
        if (!(g->stride = kv_stride(g->page_bytes)) || budget_bytes / g->stride < 1) {
            kv_close(k);
            return hd_fail_field(err, HD_INVALID, "kv-budget", "a budget of %llu bytes does not hold one page of %llu bytes",
                                 (unsigned long long)budget_bytes, (unsigned long long)page_bytes[i]);
        }
        g->n_pages = pages_of_budget(budget_bytes, g->stride);
        g->warm = hd_reallocarray(NULL, g->n_pages, sizeof *g->warm);
        g->dry = hd_reallocarray(NULL, g->n_pages, sizeof *g->dry);
        if (!g->warm || !g->dry) goto oom;
        g->base = mmap(NULL, g->n_pages * g->stride, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (g->base == MAP_FAILED) {
            g->base = NULL;
            goto oom;
        }
        madvise(g->base, g->n_pages * g->stride, MADV_HUGEPAGE); /* attention at depth 10 % faster; a refusal costs nothing */
    }
    *out = k;
    return HD_OK;
oom:
    kv_close(k);
    return hd_fail(err, HD_NOMEM, "kv: no memory for a budget of %llu bytes", (unsigned long long)budget_bytes);
}

void kv_close(kv *k) {
    if (!k) return;
    for (uint32_t i = 0; i < k->n_groups; i++) {
        group *g = &k->g[i];
        if (g->base) munmap(g->base, g->n_pages * g->stride);
        hd_free(g->warm);
        hd_free(g->dry);
    }
    hd_free(k);
}

static uint64_t resident_bytes(const kv *k) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < k->n_groups; i++) n += (k->g[i].n_held + (uint64_t)k->g[i].n_warm) * k->g[i].stride;
    return n;
}

static void give_back(group *g) {
    uint32_t page = g->warm[--g->n_warm];
    madvise(g->base + page * g->stride, g->stride, MADV_DONTNEED);
    g->dry[g->n_dry++] = page;
}

bool kv_trim(kv *k, uint32_t n) {
    for (uint32_t i = 0; i < k->n_groups; i++) {
        group *g = &k->g[i];
        for (; g->n_warm && n; n--) give_back(g);
        if (g->n_warm) return true;
    }
    return false;
}

/* Give free memory of other groups back until `need` more bytes fit. */
static void make_room(kv *k, uint32_t for_group, uint64_t need) {
    for (uint32_t i = 0; i < k->n_groups; i++) {
        group *g = &k->g[i];
        if (i == for_group) continue;
        while (g->n_warm && resident_bytes(k) + need > k->budget) give_back(g);
    }
}

void *kv_take(kv *k, uint32_t gi) {
    group *g = &k->g[gi];
    uint32_t page;
    if (kv_used_bytes(k) + g->stride > k->budget) return NULL;
    if (g->n_warm) {
        page = g->warm[--g->n_warm];
    } else {
        make_room(k, gi, g->stride);
        if (g->n_dry) page = g->dry[--g->n_dry];
        else if (g->n_fresh < g->n_pages) page = g->n_fresh++;
        else return NULL;
    }
    g->n_held++;
#ifdef HD_DEBUG
    /* Stale contents must never reach a result: NaN in every KV format. Scripted pages are only counted, never read. */
    memset(g->base + page * g->stride, 0xFF, g->page_bytes < 1u << 16 ? g->page_bytes : 1u << 16);
#endif
    return g->base + page * g->stride;
}

void kv_drop(kv *k, uint32_t gi, void *page) {
    group *g = &k->g[gi];
    if (!page) return;
    HD_ASSERT((uint8_t *)page >= g->base && ((uint64_t)((uint8_t *)page - g->base)) % g->stride == 0);
    HD_ASSERT(g->n_held > 0);
    g->n_held--;
    g->warm[g->n_warm++] = (uint32_t)(((uint64_t)((uint8_t *)page - g->base)) / g->stride);
}

uint64_t kv_budget(const kv *k) { return k->budget; }

uint64_t kv_used_bytes(const kv *k) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < k->n_groups; i++) n += k->g[i].n_held * k->g[i].stride;
    return n;
}

uint64_t kv_used_pages(const kv *k) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < k->n_groups; i++) n += k->g[i].n_held;
    return n;
}

uint64_t kv_page_bytes(const kv *k, uint32_t g) { return k->g[g].stride; }

void kv_check(const kv *k) {
    HD_ASSERT(resident_bytes(k) <= k->budget);
    for (uint32_t i = 0; i < k->n_groups; i++)
        HD_ASSERT(k->g[i].n_held + k->g[i].n_warm + k->g[i].n_dry + (k->g[i].n_pages - k->g[i].n_fresh) ==
                  k->g[i].n_pages);
    (void)k;
}
