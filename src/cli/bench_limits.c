/* bench_limits.c - see bench_limits.h. */
#include "cli/bench_limits.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Beyond the last caches of one thread's share, yet small beside a model. */
enum { READ_MIB_MOST = 96, READ_MIB_ALL = 512, READ_MIB_LEAST = 16 };

hd_status limits_open(limits *l, const model *m, hd_err *err) {
    unsigned threads = model_get(m)->n_threads, mib = READ_MIB_ALL / threads;
    hd_status st;
    memset(l, 0, sizeof *l);
    l->m = m;
    l->bytes = (size_t)(mib > READ_MIB_MOST ? READ_MIB_MOST : mib < READ_MIB_LEAST ? READ_MIB_LEAST : mib) << 20;
    if ((st = pool_new(&l->p, threads, err))) return st;
    if (!(l->memory = hd_alloc_aligned(4096, l->bytes * threads))) {
        limits_close(l);
        return hd_fail(err, HD_NOMEM, "no memory for %zu bytes to read", l->bytes * threads);
    }
    memset(l->memory, 1, l->bytes * threads);
    return HD_OK;
}

void limits_close(limits *l) {
    pool_free(l->p);
    hd_free_aligned(l->memory);
    memset(l, 0, sizeof *l);
}

void limits_take(limits *l) {
    if (!l->p) return;
    meter_all(l->p, l->memory, l->bytes, &l->last);
    for (int k = 0; k < METER_KINDS; k++) l->all[k][l->n % LIMITS_TURNS] = l->last.rate[k];
    l->n++;
}

/* What was taken before and is taken now, averaged. */
static meter_rates around(limits *l) {
    meter_rates r = l->last;
    limits_take(l);
    for (int k = 0; k < METER_KINDS; k++) r.rate[k] = (r.rate[k] + l->last.rate[k]) / 2;
    return r;
}

static double product_ns(const meter_rates *r, const model_cost *c, double times) {
    double ns = 0;
    for (int k = 0; k < ACT_KINDS; k++) {
        double rate = r->rate[meter_of((act_kind)k)];
        if (c->products[k] && rate > 0) ns += times * (double)c->products[k] / rate;
    }
    return ns;
}

double limits_prompt(limits *l, uint32_t n) {
    model_cost trunk, head;
    meter_rates r = around(l);
    model_costs(l->m, &trunk, &head);
    double ns = product_ns(&r, &trunk, n) + product_ns(&r, &head, 1);
    return ns > 0 ? n / ns * 1e9 : 0;
}

double limits_decode(limits *l, uint32_t rows, uint32_t depth, const uint64_t *kv_bytes) {
    model_cost trunk, head;
    meter_rates r = around(l);
    const model_info *in = model_get(l->m);
    model_costs(l->m, &trunk, &head);
    double bytes = (double)trunk.bytes + (double)head.bytes;
    double ns = product_ns(&r, &trunk, rows) + product_ns(&r, &head, rows);
    for (uint32_t g = 0; g < in->n_groups; g++) {
        uint32_t seen = in->groups[g].window && in->groups[g].window < depth ? in->groups[g].window : depth;
        bytes += (double)rows * seen * (double)kv_bytes[g];
    }
    if (r.rate[METER_READ] > 0 && bytes / r.rate[METER_READ] > ns) ns = bytes / r.rate[METER_READ];
    return ns > 0 ? rows / ns * 1e9 : 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double middle(limits *l, meter_kind k) {
    int n = l->n < LIMITS_TURNS ? l->n : LIMITS_TURNS;
    if (!n) return 0;
    qsort(l->all[k], (size_t)n, sizeof l->all[k][0], by_value);
    return l->all[k][n / 2];
}

void limits_write(limits *l, jsonw *w) {
    jsonw_obj(w);
    jsonw_key(w, "read_gb_s"), jsonw_num(w, middle(l, METER_READ));
    jsonw_key(w, "int8_gmac_s"), jsonw_num(w, middle(l, METER_INT8));
    jsonw_key(w, "int16_gmac_s"), jsonw_num(w, middle(l, METER_INT16));
    jsonw_key(w, "f32_gfma_s"), jsonw_num(w, middle(l, METER_F32));
    jsonw_obj_end(w);
}

void limits_print(limits *l) {
    printf("this machine, %u threads: read %.1f GB/s, int8 %.0f, int16 %.0f, f32 %.0f G multiply-adds/s\n", pool_size(l->p),
           middle(l, METER_READ), middle(l, METER_INT8), middle(l, METER_INT16), middle(l, METER_F32));
}
