/* The experts of one layer: the phases of kernels/moe.h with barriers between them. */
#include "engine/native_impl.h"

void gs_native_experts(const native_lane *t, const gs_layer *ly) {
    gs_moe *m = &t->b->moe;
    const gs_moe_weights w = {&ly->w_gate, &ly->w_up, &ly->w_down};
    gs_moe_score(m, &ly->router, &t->router, t->tid, t->n);
    gs_native_sync(t);
    gs_moe_route(m, t->r0, t->r1);
    gs_native_sync(t);
    if (t->tid == 0)
        gs_moe_group_rows(m, t->b->n_rows, t->n);
    gs_native_sync(t);
    gs_moe_gather(m, &t->embd, t->tid, t->n);
    gs_native_sync(t);
    gs_moe_up(m, &w, &t->embd, t->tid);
    gs_native_sync(t);
    gs_moe_down(m, &w, t->x, t->tid, t->n);
}
