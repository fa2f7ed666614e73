#include "api/blocks.h"

#include "base/err.h"
#include "base/sys.h"

static gs_part_kind kind_of(const gs_part *part) {
    bool text = part->kind == GS_PART_TEXT || part->kind == GS_PART_REASONING;
    return text ? part->kind : GS_PART_CALL_BEGIN;
}

static gs_block *push(gs_blocks *l, gs_part_kind kind, int32_t call, size_t from) {
    if (!l->v || l->n == l->cap) {
        int32_t cap = l->cap ? 2 * l->cap : 4;
        gs_block *more = gs_realloc(l->v, (size_t)cap * sizeof(*more));
        if (!more)
            return NULL;
        l->v = more;
        l->cap = cap;
    }
    gs_block *b = &l->v[l->n++];
    *b = (gs_block){.kind = kind, .call = call, .from = from, .to = from};
    return b;
}

static void close_last(gs_req *r, gs_choice *c, const gs_block_events *ev) {
    gs_blocks *l = &r->blocks;
    if (l->open)
        ev->close(r, c, &l->v[l->n - 1], l->n - 1);
    l->open = false;
}

/* Where the part begins in what the choice has of its kind. */
static size_t begin_of(const gs_choice *c, const gs_part *part) {
    if (part->kind == GS_PART_TEXT)
        return c->text.len - part->n;
    return part->kind == GS_PART_REASONING ? c->reasoning.len - part->n : 0;
}

void gs_blocks_part(gs_req *r, gs_choice *c, const gs_part *part, const gs_block_events *ev) {
    gs_blocks *l = &r->blocks;
    gs_part_kind kind = kind_of(part);
    bool text = kind != GS_PART_CALL_BEGIN;
    if (text && part->n == 0)
        return;
    gs_block *b = l->open ? &l->v[l->n - 1] : NULL;
    if (b && (b->kind != kind || (!text && b->call != part->call))) {
        close_last(r, c, ev);
        b = NULL;
    }
    if (!b) {
        b = push(l, kind, part->call, begin_of(c, part));
        if (!b) {
            gs_req_cut(r);
            return;
        }
        l->open = true;
        ev->open(r, c, b, l->n - 1);
    }
    if (text || part->kind == GS_PART_CALL_ARGS) {
        b->to += part->n;
        ev->more(r, c, b, l->n - 1, part);
    }
    if (part->kind == GS_PART_CALL_END)
        close_last(r, c, ev);
}

void gs_blocks_end(gs_req *r, gs_choice *c, const gs_block_events *ev) {
    close_last(r, c, ev);
}

int gs_blocks_of_whole(gs_req *r, const gs_choice *c) {
    gs_blocks *l = &r->blocks;
    gs_block *b;
    if (c->reasoning.len > 0) {
        b = push(l, GS_PART_REASONING, 0, 0);
        if (!b)
            return GS_ERR_NOMEM;
        b->to = c->reasoning.len;
    }
    if (c->text.len > 0) {
        b = push(l, GS_PART_TEXT, 0, 0);
        if (!b)
            return GS_ERR_NOMEM;
        b->to = c->text.len;
    }
    for (int32_t i = 0; i < c->n_calls; i++) {
        b = push(l, GS_PART_CALL_BEGIN, i, 0);
        if (!b)
            return GS_ERR_NOMEM;
        b->to = c->calls[i].arguments.len;
    }
    return 0;
}

gs_str gs_block_text(const gs_choice *c, const gs_block *b) {
    const gs_buf *in = b->kind == GS_PART_TEXT        ? &c->text
                       : b->kind == GS_PART_REASONING ? &c->reasoning
                                                      : &c->calls[b->call].arguments;
    return (gs_str){b->to > b->from ? in->data + b->from : "", b->to - b->from};
}
