#include "engine/steps.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"

#define WORD  sizeof(uint64_t)
#define WORDS (sizeof(gs_step_record) / WORD)

_Static_assert(sizeof(gs_step_record) % WORD == 0, "records are copied by words");
_Static_assert(offsetof(gs_step_record, parts) % WORD == 0, "only the parts in use are copied");

/* mark: 2 * (number + 1) while record `number` is whole, one less while it is being written. */
typedef struct steps_slot {
    _Atomic uint64_t mark;
    _Atomic uint64_t words[WORDS];
} steps_slot;

struct gs_steps {
    _Atomic uint64_t head;
    uint64_t mask;
    steps_slot *slots;
};

int gs_steps_create(uint32_t n_slots, gs_steps **out) {
    if (n_slots == 0 || (n_slots & (n_slots - 1)) != 0)
        return GS_ERR_INVALID;
    gs_steps *r = gs_calloc(1, sizeof(*r));
    if (!r)
        return GS_ERR_NOMEM;
    r->mask = n_slots - 1;
    r->slots = gs_calloc(n_slots, sizeof(*r->slots));
    if (!r->slots) {
        gs_free(r);
        return GS_ERR_NOMEM;
    }
    *out = r;
    return GS_OK;
}

void gs_steps_free(gs_steps *r) {
    if (!r)
        return;
    gs_free(r->slots);
    gs_free(r);
}

static size_t used_words(int32_t n_parts) {
    return (offsetof(gs_step_record, parts) + (size_t)n_parts * sizeof(gs_step_part)) / WORD;
}

void gs_steps_push(gs_steps *r, const gs_step_record *rec) {
    const uint64_t number = atomic_load_explicit(&r->head, memory_order_relaxed);
    steps_slot *s = &r->slots[number & r->mask];
    uint64_t words[WORDS];
    const size_t n = used_words(rec->n_parts);
    memcpy(words, rec, n * WORD);
    atomic_store_explicit(&s->mark, 2 * number + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < n; i++)
        atomic_store_explicit(&s->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&s->mark, 2 * number + 2, memory_order_release);
    atomic_store_explicit(&r->head, number + 1, memory_order_release);
}

uint64_t gs_steps_head(const gs_steps *r) {
    return atomic_load_explicit(&r->head, memory_order_acquire);
}

/* False: it was overwritten before or meanwhile. */
static bool read_slot(const steps_slot *s, uint64_t number, gs_step_record *out) {
    uint64_t words[WORDS];
    if (atomic_load_explicit(&s->mark, memory_order_acquire) != 2 * number + 2)
        return false;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = atomic_load_explicit(&s->words[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&s->mark, memory_order_relaxed) != 2 * number + 2)
        return false;
    memcpy(out, words, sizeof(*out));
    return true;
}

uint32_t gs_steps_read(const gs_steps *r, uint64_t *at, gs_step_record *out, uint32_t max,
                       uint64_t *lost) {
    const uint64_t head = gs_steps_head(r);
    uint32_t n = 0;
    if (head - *at > r->mask + 1) {
        *lost += head - *at - (r->mask + 1);
        *at = head - (r->mask + 1);
    }
    for (; *at < head && n < max; (*at)++) {
        if (read_slot(&r->slots[*at & r->mask], *at, &out[n]))
            n++;
        else
            *lost += 1;
    }
    return n;
}
