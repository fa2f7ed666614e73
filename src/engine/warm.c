/* Public prefixes of a lane: computed once, or taken from an earlier process, then pinned for
 * everybody. */
#include <stddef.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "engine/lane_impl.h"

/* Bytes of pages that are moved between two steps: streams of other lanes wait meanwhile. */
#define PIECE_BYTES ((size_t)4 << 20)

bool gs_lane_is_warm(const gs_lane *l) {
    return !l->prefixes || l->n_warmed >= l->prefixes->n;
}

bool gs_lane_warm_moves(const gs_lane *l) {
    return !gs_lane_is_warm(l) && (l->copy || l->prefixes->items[l->n_warmed].pages);
}

static bool fits(const gs_lane *l, const gs_public_prefix *p) {
    gs_kv_stats k;
    gs_kv_get_stats(l->kv, &k);
    const double blocks = k.n_pinned + (double)p->n / l->info.block_tokens;
    return blocks <= l->prefixes->pinned_share * k.n_blocks;
}

static int32_t n_blocks(const gs_lane *l, const gs_public_prefix *p) {
    return p->n / l->info.block_tokens;
}

/* ---- Pages from an earlier process, and for a later one ------------------------------------- */

static uint8_t *page_of(const gs_lane *l, uint8_t *pages, int32_t block) {
    return pages + (size_t)block * l->info.block_bytes;
}

static int32_t piece(const gs_lane *l) {
    const size_t n = PIECE_BYTES / l->info.block_bytes;
    return n > INT32_MAX / 2 ? INT32_MAX / 2 : n > 0 ? (int32_t)n : 1;
}

/* What does not fit any more is computed, or left out, as if there had been no pages. */
static void take_pages(gs_lane *l, gs_public_prefix *p) {
    const int32_t bt = l->info.block_tokens, n = n_blocks(l, p);
    int rc = GS_OK;
    for (int32_t left = piece(l); left > 0 && l->n_moved < n && rc == GS_OK; left--) {
        uint32_t block;
        rc = gs_kv_put_pinned(l->kv, p->tokens, (l->n_moved + 1) * bt, &block);
        if (rc == GS_OK)
            l->backend->ops->write_block(l->backend, block, page_of(l, p->pages, l->n_moved));
        if (rc == GS_ERR_EXISTS) /* another prefix begins like this one */
            rc = GS_OK;
        l->n_moved += rc == GS_OK;
    }
    if (rc == GS_OK && l->n_moved < n)
        return;
    gs_free(p->pages);
    p->pages = NULL;
    l->n_moved = 0;
    if (rc != GS_OK)
        return;
    gs_info("engine", "shared prefix lane=%d tokens=%d blocks=%d saved=1", l->index, p->n, n);
    l->n_warmed++;
}

static void copy_pages(gs_lane *l, const gs_public_prefix *p) {
    const int32_t bt = l->info.block_tokens, n = n_blocks(l, p);
    int rc = GS_OK;
    for (int32_t left = piece(l); left > 0 && l->n_moved < n && rc == GS_OK; left--) {
        uint32_t block;
        rc = gs_kv_pinned_block(l->kv, p->tokens, (l->n_moved + 1) * bt, &block);
        if (rc == GS_OK)
            l->backend->ops->read_block(l->backend, block, page_of(l, l->copy, l->n_moved++));
    }
    if (rc == GS_OK && l->n_moved < n)
        return;
    if (rc == GS_OK)
        l->prefixes->computed(l->prefixes->computed_arg, l->n_warmed, l->copy);
    else
        gs_free(l->copy);
    l->copy = NULL;
    l->n_moved = 0;
    l->n_warmed++;
}

/* ---- Computing ------------------------------------------------------------------------------ */

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
    gs_public_prefix *p = &l->prefixes->items[i];
    if (l->copy) {
        copy_pages(l, p);
        return;
    }
    if (l->n_moved == 0 && !fits(l, p)) {
        gs_warn("engine", "prefix.files: the %d. does not fit prefix.pinned_share", i + 1);
        l->n_warmed++;
        return;
    }
    if (p->pages) {
        take_pages(l, p);
        return;
    }
    int rc = submit(l, p, cls, id, now_ns);
    if (rc == 0)
        return;
    gs_warn("engine", "prefix.files: the %d. was not computed: %s", i + 1, gs_err_text(rc));
    l->n_warmed++;
}

/* Pins what was computed; true: its pages are to be copied next. */
static bool keep(gs_lane *l, const gs_seq *q) {
    gs_info("engine", "shared prefix lane=%d tokens=%d blocks=%u", l->index, q->desc.n_prompt,
            gs_kv_pin(l->kv, q->desc.tokens, q->desc.n_prompt));
    const gs_public_prefix *p = &l->prefixes->items[l->n_warmed];
    if (!p->wanted || n_blocks(l, p) == 0)
        return false;
    l->copy = gs_array((size_t)n_blocks(l, p), l->info.block_bytes);
    return l->copy != NULL;
}

bool gs_lane_warm_ended(gs_lane *l, const gs_seq *q, const gs_seq_end *end) {
    if (!l->warming || q != l->warming)
        return false;
    if (end->reason == GS_END_ERROR)
        gs_warn("engine", "prefix.files: the %d. was not computed: %s", l->n_warmed + 1,
                gs_err_text(end->err));
    if (end->reason == GS_END_ERROR || end->reason == GS_END_CANCELLED || !keep(l, q))
        l->n_warmed++;
    gs_seq_free(l->warming);
    l->warming = NULL;
    return true;
}
