/*
 * The memory ledger: what takes memory, and what the kernel says of it.
 *
 * Whoever takes a large mapping (gs_pages_alloc) enters it with its kind; gs_pages_free takes it
 * out. What the C heap holds is asked of the allocator. Together that is the process's anonymous
 * memory, up to stacks and static data; what is left over is told, not hidden.
 *
 * A mapping is reserved at once and takes memory when it is first written, so both are counted: an
 * attention cache of 8 GB that has held one chat takes some megabytes.
 *
 * Any thread. gs_memory_read walks page tables: milliseconds for tens of gigabytes.
 */
#ifndef GS_BASE_MEMORY_H
#define GS_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kinds of mappings. */
#define GS_PAGES_MAP(X)                                                                            \
    X(WEIGHTS, "weights")                                                                          \
    X(KV, "kv")     /* attention cache and prefix cache */                                         \
    X(STEP, "step") /* what a step works on */

typedef enum gs_pages_kind {
#define X(id, text) GS_PAGES_##id,
    GS_PAGES_MAP(X)
#undef X
        GS_PAGES_KINDS
} gs_pages_kind;

typedef struct gs_memory {
    uint64_t reserved[GS_PAGES_KINDS], resident[GS_PAGES_KINDS];
    uint64_t heap_used; /* given out by malloc */
    uint64_t heap_free; /* given back to malloc, and kept by it */
    /* What the kernel says: RssAnon and VmSwap of /proc/self/status. */
    uint64_t anonymous, swapped;
} gs_memory;

/* At most 128 mappings at a time; one that does not fit is left out. */
void gs_memory_add(gs_pages_kind kind, const void *p, size_t size);
void gs_memory_remove(const void *p); /* of gs_pages_free */
void gs_memory_read(gs_memory *out);

/* What could be taken without swapping or an OOM kill: MemAvailable, or what the tightest control
 * group leaves where that is less. 0: not known. */
uint64_t gs_memory_available(void);
/* Of the group at root/group: memory.max less what it holds, and can't drop. For its test. */
uint64_t gs_memory_of_cgroup(const char *root, const char *group);

#endif
