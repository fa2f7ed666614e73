/*
 * The two queues between threads. Neither takes a lock and neither allocates.
 *
 * gs_mpsc: intrusive, unbounded, many producers, one consumer (D. Vyukov's intrusive MPSC node
 * queue, 1024cores.net). The node lives inside the message, so a push can't fail: a cancel is
 * never lost because a queue was full.
 *
 * gs_spsc: bounded ring of fixed-size messages, one producer, one consumer (L. Lamport 1983 with
 * cached indices). Push returns false when full: the producer decides what waiting means.
 */
#ifndef GS_BASE_QUEUE_H
#define GS_BASE_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gs_mpsc_node {
    _Atomic(struct gs_mpsc_node *) next;
} gs_mpsc_node;

typedef struct gs_mpsc {
    _Alignas(64) _Atomic(gs_mpsc_node *) head; /* producers */
    _Alignas(64) gs_mpsc_node *tail;           /* consumer */
    gs_mpsc_node stub;
} gs_mpsc;

void gs_mpsc_init(gs_mpsc *q);
void gs_mpsc_push(gs_mpsc *q, gs_mpsc_node *n); /* any thread; n must not be queued already */
/*
 * Consumer only. NULL when empty, or when a producer is in the middle of a push: the wake-up that
 * follows every push brings the consumer back.
 */
gs_mpsc_node *gs_mpsc_pop(gs_mpsc *q);

typedef struct gs_spsc {
    _Alignas(64) _Atomic size_t head; /* next to read; written by the consumer */
    size_t tail_seen;                 /* the consumer's last look at tail */
    _Alignas(64) _Atomic size_t tail; /* next to write; written by the producer */
    size_t head_seen;                 /* the producer's last look at head */
    _Alignas(64) char *slots;
    size_t mask;
    size_t item_bytes;
} gs_spsc;

int gs_spsc_init(gs_spsc *q, size_t n_items /* power of two */, size_t item_bytes);
void gs_spsc_deinit(gs_spsc *q);
bool gs_spsc_push(gs_spsc *q, const void *item);
bool gs_spsc_pop(gs_spsc *q, void *item);

#endif
