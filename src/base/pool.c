#include "base/pool.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE_LINE 64

/* Pauses before a waiting thread offers its core to others: about 0.1 ms, longer than the spread
 * of a balanced phase. With more threads than cores whoever waits is in the way, so much less. */
#define SPINS_ALONE   2000
#define SPINS_CROWDED 20

/* Idle time between runs before a worker sleeps. The engine needs well under a millisecond
 * between two steps; a futex wake costs 20-50 us, which a step should not pay each time. */
#define PARK_AFTER_NS         (1500 * GS_NS_PER_US)
#define PARK_AFTER_CROWDED_NS (50 * GS_NS_PER_US)
#define SPINS_PER_CLOCK_READ  64

typedef struct worker {
    _Alignas(CACHE_LINE) gs_pool *pool;
    pthread_t thread;
    int tid;
    unsigned sense; /* the barrier phase this thread is in; only it touches this */
} worker;

struct gs_pool {
    /* Written by thread 0 before epoch moves; read by the workers after they see it move. */
    gs_pool_fn fn;
    void *arg;
    int n_threads;
    int spins;
    int64_t park_after_ns;
    worker *workers; /* [n_threads]; 0 is the caller and has no thread */
    bool pinned;
    cpu_set_t allowed; /* the creator's mask before it was pinned */

    _Alignas(CACHE_LINE) _Atomic uint32_t epoch; /* number of the run; the futex word */
    _Alignas(CACHE_LINE) atomic_int n_parked;
    atomic_bool stopping;
    /* Central sense-reversing barrier (Mellor-Crummey & Scott 1991, algorithm 7). */
    _Alignas(CACHE_LINE) atomic_int n_arrived;
    _Alignas(CACHE_LINE) atomic_uint sense;
};

static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void gs_pool_barrier(gs_pool *p, int tid) {
    unsigned phase = p->workers[tid].sense ^= 1u;
    /* acq_rel: the last to arrive has seen everyone's writes and hands them on with the store. */
    if (atomic_fetch_add_explicit(&p->n_arrived, 1, memory_order_acq_rel) == p->n_threads - 1) {
        atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->sense, phase, memory_order_release);
        return;
    }
    int spins = 0;
    while (atomic_load_explicit(&p->sense, memory_order_acquire) != phase) {
        if (spins < p->spins) {
            spins++;
            cpu_relax();
        } else {
            /* A core was taken away, or there are too few: let the late thread run. */
            sched_yield();
        }
    }
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    /* Returns at once when *word has moved on; spurious returns are the caller's loop's. */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Waits for the epoch to leave `seen`: spins, then yields, then sleeps. Returns the new epoch. */
static uint32_t wait_for_run(gs_pool *p, uint32_t seen) {
    int64_t idle_since_ns = gs_now_ns();
    for (int spins = 0;; spins++) {
        uint32_t now = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (now != seen)
            return now;
        if (spins < p->spins)
            cpu_relax();
        else
            sched_yield();
        if (spins % SPINS_PER_CLOCK_READ == 0 && gs_now_ns() - idle_since_ns > p->park_after_ns)
            break;
    }
    /*
     * Sequentially consistent with start_run: either it sees n_parked > 0 and wakes, or the
     * kernel sees its new epoch and does not let us sleep.
     */
    atomic_fetch_add(&p->n_parked, 1);
    uint32_t now;
    while ((now = atomic_load(&p->epoch)) == seen)
        futex_wait(&p->epoch, seen);
    atomic_fetch_sub(&p->n_parked, 1);
    return now;
}

static void start_run(gs_pool *p) {
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->n_parked) > 0)
        futex_wake_all(&p->epoch);
}

static void *worker_main(void *arg) {
    worker *w = arg;
    gs_pool *p = w->pool;
    char name[16];
    snprintf(name, sizeof name, "gs-kernel-%d", w->tid % 10000);
    pthread_setname_np(pthread_self(), name);
    for (uint32_t epoch = 0;;) {
        epoch = wait_for_run(p, epoch);
        if (atomic_load_explicit(&p->stopping, memory_order_acquire))
            return NULL;
        p->fn(p->arg, w->tid, p->n_threads);
        gs_pool_barrier(p, w->tid);
    }
}

void gs_pool_run(gs_pool *p, gs_pool_fn fn, void *arg) {
    if (p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    start_run(p);
    fn(arg, 0, p->n_threads);
    gs_pool_barrier(p, 0);
}

/* Binds thread i to the i-th allowed core. Pinning only helps: failures are of no account. */
static void pin_threads(gs_pool *p) {
    if (sched_getaffinity(0, sizeof p->allowed, &p->allowed) != 0 ||
        CPU_COUNT(&p->allowed) < p->n_threads)
        return;
    p->pinned = true;
    int tid = 0;
    for (size_t core = 0; core < CPU_SETSIZE && tid < p->n_threads; core++) {
        if (!CPU_ISSET(core, &p->allowed))
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        pthread_t thread = tid == 0 ? pthread_self() : p->workers[tid].thread;
        pthread_setaffinity_np(thread, sizeof one, &one);
        tid++;
    }
}

/* Ends and joins the workers 1 .. n_started. */
static void stop_workers(gs_pool *p, int n_started) {
    atomic_store_explicit(&p->stopping, true, memory_order_release);
    start_run(p);
    for (int i = 1; i <= n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
}

static int start_workers(gs_pool *p) {
    /* Signals are for the threads that expect them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0;
    while (started < p->n_threads - 1) {
        worker *w = &p->workers[started + 1];
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            break;
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

gs_pool *gs_pool_create(int n_threads, bool pin) {
    int cpus = gs_cpu_count();
    if (n_threads <= 0)
        n_threads = cpus;
    gs_pool *p = gs_aligned(CACHE_LINE, sizeof *p);
    if (!p)
        return NULL;
    *p = (gs_pool){.n_threads = n_threads};
    bool crowded = n_threads > cpus;
    p->spins = crowded ? SPINS_CROWDED : SPINS_ALONE;
    p->park_after_ns = crowded ? PARK_AFTER_CROWDED_NS : PARK_AFTER_NS;
    p->workers = gs_aligned(CACHE_LINE, (size_t)n_threads * sizeof *p->workers);
    if (!p->workers) {
        gs_free(p);
        return NULL;
    }
    for (int i = 0; i < n_threads; i++)
        p->workers[i] = (worker){.pool = p, .tid = i};
    int started = start_workers(p);
    if (started < n_threads - 1) {
        stop_workers(p, started);
        gs_free(p->workers);
        gs_free(p);
        return NULL;
    }
    if (pin)
        pin_threads(p);
    return p;
}

void gs_pool_free(gs_pool *p) {
    if (!p)
        return;
    stop_workers(p, p->n_threads - 1);
    if (p->pinned) /* the caller outlives the pool */
        pthread_setaffinity_np(pthread_self(), sizeof p->allowed, &p->allowed);
    gs_free(p->workers);
    gs_free(p);
}

int gs_pool_threads(const gs_pool *p) {
    return p->n_threads;
}
