/* decoder_cost.c - what a step of a dense decoder costs at least, and where its time went. */
#include "base/mem.h"
#include "model/decoder_clock.h"

#include <string.h>

static void add_matrix(const kernels *k, model_cost *c, const mm_weight *w) {
    const tensor_type_info *t = tensor_type_get((uint32_t)w->type);
    if (!w->n_rows) return;
    c->bytes += (uint64_t)w->n_rows * (w->n_cols / t->block_elems) * t->block_bytes;
    c->products[mm_act_kind(k, w->type)] += (uint64_t)w->n_rows * w->n_cols;
}

void decoder_costs(const model *m, model_cost *trunk, model_cost *head) {
    const decoder *d = (const decoder *)m;
    if (!d->packed.data) return;
    for (uint32_t i = 0; i < d->cfg.n_layers; i++) {
        const decoder_layer *y = &d->layers[i];
        const mm_weight *ws[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down};
        for (size_t j = 0; j < sizeof ws / sizeof *ws; j++) add_matrix(m->k, trunk, ws[j]);
    }
    add_matrix(m->k, head, &d->head);
}

void decoder_time_steps(model *m, bool on) {
    decoder *d = (decoder *)m;
    size_t bytes = sizeof *d->clock + m->info.n_threads * sizeof d->clock->lines[0];
    hd_free_aligned(d->clock);
    d->clock = NULL;
    if (!on || !(d->clock = hd_alloc_aligned(64, bytes))) return; /* without memory: untimed */
    memset(d->clock, 0, bytes);
    d->clock->n_lines = m->info.n_threads;
}

void decoder_step_times(const model *m, step_times *out) {
    const step_clock *c = ((const decoder *)m)->clock;
    if (!c) return;
    for (unsigned i = 0; i < c->n_lines; i++)
        for (int p = 0; p < STEP_PARTS; p++) out->ns[p] += atomic_load_explicit(&c->lines[i].ns[p], memory_order_relaxed);
    out->wall_ns = atomic_load_explicit(&c->wall_ns, memory_order_relaxed);
    out->n_steps = atomic_load_explicit(&c->n_steps, memory_order_relaxed);
}
