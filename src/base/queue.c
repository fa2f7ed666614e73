#include "base/queue.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/sys.h"

#include <string.h>

/*
 * Vyukov's intrusive MPSC queue. head is the newest node, tail the oldest; the stub keeps the
 * list non-empty, so that a push is one exchange and one store. Between these two the list is
 * broken at prev->next: pop then reports "empty" although nodes are behind the gap.
 */
void gs_mpsc_init(gs_mpsc *q) {
    atomic_init(&q->stub.next, NULL);
    atomic_init(&q->head, &q->stub);
    q->tail = &q->stub;
}

void gs_mpsc_push(gs_mpsc *q, gs_mpsc_node *n) {
    atomic_store_explicit(&n->next, NULL, memory_order_relaxed);
    gs_mpsc_node *prev = atomic_exchange_explicit(&q->head, n, memory_order_acq_rel);
    atomic_store_explicit(&prev->next, n, memory_order_release);
}

gs_mpsc_node *gs_mpsc_pop(gs_mpsc *q) {
    gs_mpsc_node *tail = q->tail;
    gs_mpsc_node *next = atomic_load_explicit(&tail->next, memory_order_acquire);
    if (tail == &q->stub) {
        if (!next)
            return NULL;
        q->tail = tail = next;
        next = atomic_load_explicit(&tail->next, memory_order_acquire);
    }
    if (!next) {
        if (tail != atomic_load_explicit(&q->head, memory_order_acquire))
            return NULL; /* a producer is between its exchange and its store */
        /* tail is the only node: put the stub behind it, so that it can be taken out. */
        gs_mpsc_push(q, &q->stub);
        next = atomic_load_explicit(&tail->next, memory_order_acquire);
        if (!next)
            return NULL;
    }
    q->tail = next;
    return tail;
}

int gs_spsc_init(gs_spsc *q, size_t n_items, size_t item_bytes) {
    if (n_items == 0 || (n_items & (n_items - 1)) != 0 || item_bytes == 0)
        return GS_ERR_INVALID;
    *q = (gs_spsc){0};
    q->slots = gs_array(n_items, item_bytes);
    if (!q->slots)
        return GS_ERR_NOMEM;
    q->mask = n_items - 1;
    q->item_bytes = item_bytes;
    return GS_OK;
}

void gs_spsc_deinit(gs_spsc *q) {
    gs_free(q->slots);
    q->slots = NULL;
}

/* Indices run on without bound and are masked at use: tail - head is the fill level. */
bool gs_spsc_push(gs_spsc *q, const void *item) {
    size_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
    if (tail - q->head_seen > q->mask) {
        q->head_seen = atomic_load_explicit(&q->head, memory_order_acquire);
        if (tail - q->head_seen > q->mask)
            return false;
    }
    memcpy(q->slots + (tail & q->mask) * q->item_bytes, item, q->item_bytes);
    atomic_store_explicit(&q->tail, tail + 1, memory_order_release);
    return true;
}

bool gs_spsc_pop(gs_spsc *q, void *item) {
    size_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    if (head == q->tail_seen) {
        q->tail_seen = atomic_load_explicit(&q->tail, memory_order_acquire);
        if (head == q->tail_seen)
            return false;
    }
    memcpy(item, q->slots + (head & q->mask) * q->item_bytes, q->item_bytes);
    atomic_store_explicit(&q->head, head + 1, memory_order_release);
    return true;
}
