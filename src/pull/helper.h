/*
 * A process that fetches models for a server which itself reaches no other machine.
 *
 *     server                               helper: forked before the server's walls, has its own
 *     gs_pull_helper_run(h, p)  ─ order ─► gs_pull_run: hosts of the list, one folder to write
 *        progress into p        ◄─ news ─  (a channel for each pull, handed over with the order)
 *
 * It waits in one system call while nothing is asked of it, and ends with the server, however that
 * ends. It is never started again: should it die, pulls fail with a sentence until the server is
 * started anew. What it says is looked at as what a stranger says: it reads answers of other
 * machines.
 */
#ifndef GS_PULL_HELPER_H
#define GS_PULL_HELPER_H

#include <sys/types.h>

#include "pull/pull.h"

typedef struct gs_pull_helper {
    int fd; /* orders go here; -1: there is none */
    pid_t pid;
} gs_pull_helper;

/*
 * Forks; before the first thread. In the new process confine(arg) gives up what it does not need,
 * and the call never returns. cfg: what pulls may do (source, name and sha256 come with an order);
 * borrowed for good. GS_ERR_NOMEM, GS_ERR_IO: *out is empty.
 */
int gs_pull_helper_start(const gs_pull_config *cfg, void (*confine)(void *arg), void *arg,
                         gs_pull_helper *out, char *err, size_t errlen);
/* As gs_pull_run, done by the helper. GS_ERR_UNAVAILABLE: it is not there any more. Several threads
 * at a time, each with its own pull. */
void gs_pull_helper_run(const gs_pull_helper *h, gs_pull *p);
/* No run is under way. */
void gs_pull_helper_stop(gs_pull_helper *h);

#endif
