/* Public prefixes of a lane: computed once, then pinned for everybody. */
#include <stddef.h>

#include "base/err.h"
#include "base/log.h"
#include "engine/lane_impl.h"

bool gs_lane_is_warm(const gs_lane *l) {
    return !l->prefixes || l->n_warmed >= l->prefixes->n;
}

static bool fits(const gs_lane *l, const gs_public_prefix *p) {
    gs_kv_stats k;
    gs_kv_get_stats(l->kv, &k);
    const double blocks = k.n_pinned + (double)p->n / l->info.block_tokens;
    return blocks <= l->prefixes->pinned_share * k.n_blocks;
}

static int submit(gs_lane *l, const gs_public_prefix *p, gs_class cls, gs_seq_id id,
                  int64_t now_ns) {
    gs_admission adm;
    gs_seq *q = gs_seq_create(p->tokens, p->n, 0);
    if (!q)
        return GS_ERR_NOMEM;
    q->desc.id = id;
    q->desc.cls = cls;
    q->desc.class_fixed = true;
    q->desc.cache_scope = GS_KV_PUBLIC;
    q->desc.prefill_only = true;
    q->desc.n_public = p->n;
    q->desc.arrival_ns = now_ns;
    int rc = gs_sched_submit(l->sched, &q->desc, now_ns, &adm);
    if (rc != 0)
        gs_seq_free(q);
    else
        l->warming = q;
    return rc;
}

void gs_lane_warm(gs_lane *l, gs_class cls, gs_seq_id id, int64_t now_ns) {
    if (l->warming || gs_lane_is_warm(l))
        return;
    const int32_t i = l->n_warmed;
    const gs_public_prefix *p = &l->prefixes->items[i];
    if (!fits(l, p)) {
        gs_warn("engine", "prefix.files: the %d. does not fit prefix.pinned_share", i + 1);
        l->n_warmed++;
        return;
    }
    int rc = submit(l, p, cls, id, now_ns);
    if (rc == 0)
        return;
    gs_warn("engine", "prefix.files: the %d. was not computed: %s", i + 1, gs_err_text(rc));
    l->n_warmed++;
}

bool gs_lane_warm_ended(gs_lane *l, const gs_seq *q, const gs_seq_end *end) {
    if (!l->warming || q != l->warming)
        return false;
    l->n_warmed++;
    if (end->reason == GS_END_ERROR)
        gs_warn("engine", "prefix.files: the %d. was not computed: %s", l->n_warmed,
                gs_err_text(end->err));
    else if (end->reason != GS_END_CANCELLED)
        gs_info("engine", "shared prefix lane=%d tokens=%d blocks=%u", l->index, q->desc.n_prompt,
                gs_kv_pin(l->kv, q->desc.tokens, q->desc.n_prompt));
    gs_seq_free(l->warming);
    l->warming = NULL;
    return true;
}
