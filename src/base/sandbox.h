/*
 * Walls around a process that reads what strangers wrote: with them, code that a hostile file or
 * request smuggled in can start no program, reach no other machine and open no file beyond a list.
 *
 * Three walls, in this order, all before the first thread and none of them ever taken down:
 *
 *     gs_sandbox_harden();               no new privileges, no core dumps
 *     gs_sandbox_files(rules, n, ...);   Landlock: which files
 *     ... open sockets to listen on ...
 *     gs_sandbox_calls(allow, ...);      seccomp: which system calls
 *
 * Later threads and programs inherit them. By hand, with the kernel's interface alone: see
 * landlock(7), seccomp(2).
 */
#ifndef GS_BASE_SANDBOX_H
#define GS_BASE_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

typedef enum gs_sandbox_access {
    GS_SANDBOX_READ,
    GS_SANDBOX_WRITE,  /* reads, too; creates, renames and removes below a folder */
    GS_SANDBOX_EXECUTE /* reads and starts as a program */
} gs_sandbox_access;

/* A file, or a folder with all below it. One that does not exist is passed over; of a symbolic
 * link what it leads to now. Borrowed for the call. */
typedef struct gs_sandbox_rule {
    const char *path;
    gs_sandbox_access access;
} gs_sandbox_rule;

enum {
    GS_SANDBOX_CONNECT = 1, /* sockets to other machines */
    GS_SANDBOX_EXEC = 2     /* other programs (they live within the same walls) */
};

/* What a set-user-id program could give, and what a crash would write to the disk. 0 or
 * GS_ERR_UNSUPPORTED. */
int gs_sandbox_harden(char *err, size_t errlen);
/* allow: GS_SANDBOX_*. GS_ERR_UNSUPPORTED: this kernel has no Landlock, or does not let us. For
 * the calling thread and those it starts later. */
int gs_sandbox_files(const gs_sandbox_rule *rules, size_t n, unsigned allow, char *err,
                     size_t errlen);
/* For all threads there are and come. What is not allowed fails with EPERM, and calls that this
 * program has no use for as if the kernel did not have them. GS_ERR_UNSUPPORTED as above. */
int gs_sandbox_calls(unsigned allow, char *err, size_t errlen);

#endif
