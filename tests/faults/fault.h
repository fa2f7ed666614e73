/*
 * Calls that fail on purpose. Linked into test programs and into gamasot-faults, around the calls
 * of the same objects that the program is made of (ld --wrap, see FAULT_WRAPS in the Makefile): the
 * program itself holds nothing of it.
 *
 *     gs_fault_set(GS_FAULT_ALLOC, 17, ENOMEM);   // the 17th allocation from now returns NULL
 *     ... run the scenario ...
 *     gs_fault_clear();
 *
 * GAMASOT_FAULT="alloc:17,write:3:ENOSPC" in the environment arms them in a whole process. step:N
 * fails the N-th step of whatever backend there is; step:N:HANG, step:N:CRASH. random:SEED arms the
 * seams of engine and scheduler (seams.c).
 */
#ifndef GS_TESTS_FAULT_H
#define GS_TESTS_FAULT_H

#include <stddef.h>
#include <stdint.h>

/* kind, name, errno unless another is asked for */
#define GS_FAULT_MAP(X)                                                                            \
    X(ALLOC, "alloc", ENOMEM)                                                                      \
    X(READ, "read", EIO)                                                                           \
    X(WRITE, "write", EIO)                                                                         \
    X(FILE, "file", EIO)   /* opens, names, syncs or looks at a file or a folder */                \
    X(NET, "net", ENOBUFS) /* makes or uses a socket, but for what READ, WRITE, ACCEPT are of */   \
    X(ACCEPT, "accept", EMFILE)                                                                    \
    X(MMAP, "mmap", ENOMEM)                                                                        \
    X(THREAD, "thread", EAGAIN)                                                                    \
    X(SQLITE, "sqlite", EIO)                                                                       \
    X(STEP, "step", EIO)                                                                           \
    X(RANDOM, "random", EIO) /* the number is a seed */

typedef enum gs_fault_kind {
#define X(id, name, errnum) GS_FAULT_##id,
    GS_FAULT_MAP(X)
#undef X
        GS_FAULT_COUNT
} gs_fault_kind;

/* 1 = fail now, with errno set. Counts one call of that kind. Any thread. */
int gs_fault_hit(gs_fault_kind kind);
/* The nth call from now of that kind fails once with errnum (0: the kind's own); nth 0 disarms. */
void gs_fault_set(gs_fault_kind kind, uint64_t nth, int errnum);
void gs_fault_clear(void);
/* Calls of that kind since the last gs_fault_set/clear: how many points a torture run can hit. */
uint64_t gs_fault_calls(gs_fault_kind kind);
/* Of RANDOM: the seed, 0: not armed. */
uint64_t gs_fault_seed(void);
/* Arms from GAMASOT_FAULT. Unknown words are reported in err. */
int gs_fault_from_env(char *err, size_t errlen);

/* What step:N:HANG and step:N:CRASH leave in errno. */
#define GS_FAULT_HANG  10001
#define GS_FAULT_CRASH 10002

#endif
