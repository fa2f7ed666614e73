/*
 * The kernel worker pool: one engine step is one gs_pool_run in SPMD style.
 *
 *     static void step(void *arg, int tid, int n) {
 *         ... this thread's share ...
 *         gs_pool_barrier(pool, tid);          // nine per layer
 *         ...
 *     }
 *     gs_pool_run(pool, step, &args);          // the caller is thread 0
 *
 * Threads spin during a run (a sleeping barrier costs 18 us, a spinning one 60 ns) and park on a
 * futex soon after it, so that an idle server uses no CPU. When there are more threads than cores
 * or a core is taken away, spinning falls back to sched_yield after a bounded number of tries.
 * Owner: the thread that created it is thread 0 and the only one that calls run.
 */
#ifndef GS_BASE_POOL_H
#define GS_BASE_POOL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gs_pool gs_pool;
typedef void (*gs_pool_fn)(void *arg, int tid, int n_threads);

/* n_threads 0 = as many as this process may use (affinity mask and cgroup quota). NULL when out
 * of memory or threads. pin: bind thread i to the i-th allowed core where possible. */
gs_pool *gs_pool_create(int n_threads, bool pin);
/*
 * A pool that works at the same time as p, on the cores at the other end: one thread less, and if
 * p is pinned thread i on the i-th core from the last. While one uses n threads the other has the
 * rest of p's to itself. The caller becomes its thread 0; it may be any but p's. NULL as above.
 */
gs_pool *gs_pool_create_beside(const gs_pool *p);
void gs_pool_free(gs_pool *p);
int gs_pool_threads(const gs_pool *p);
void gs_pool_run(gs_pool *p, gs_pool_fn fn, void *arg);
/* On threads 0 .. n-1 alone, 1 <= n <= gs_pool_threads; the others sleep through it. */
void gs_pool_run_on(gs_pool *p, int n, gs_pool_fn fn, void *arg);
/* Inside fn only; every thread of the run must reach it. */
void gs_pool_barrier(gs_pool *p, int tid);
/*
 * A run that does not come back. progress: a number that changes while runs go on; any thread.
 * park: the workers stand still for good (base/park.h), thread 0 must stand still already; false:
 * they don't. restart: after park, by the thread that is to be thread 0, new workers take their
 * places; GS_ERR_NOMEM.
 */
uint64_t gs_pool_progress(const gs_pool *p);
bool gs_pool_park(gs_pool *p);
int gs_pool_restart(gs_pool *p);
/* CPUs this process may use: the smaller of the affinity mask and the cgroup CPU quota, as at the
 * first call. >= 1 */
int gs_cpu_count(void);

/* The half-open share [*begin, *end) of n items that thread tid of n_threads works on. */
static inline void gs_share(int n, int tid, int n_threads, int *begin, int *end) {
    *begin = (int)((long long)n * tid / n_threads);
    *end = (int)((long long)n * (tid + 1) / n_threads);
}

#endif
