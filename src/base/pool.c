#include "base/pool.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/park.h"
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

/* The epoch word: number of the run, and how many threads take part in it. One word, because who
 * does not take part is not waited for and may look when the next run has begun. */
#define EPOCH_THREADS 4096u
#define EPOCH_STOP    0u /* threads of the run that ends the workers */
_Static_assert((EPOCH_THREADS & (EPOCH_THREADS - 1)) == 0, "a power of two");

typedef struct worker {
    _Alignas(CACHE_LINE) gs_pool *pool;
    pthread_t thread;
    int tid;
    /* How many take part in the run; only this thread touches it. A common number could change
     * while a thread still looks whether it was the last to arrive. */
    int n_running;
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

    _Alignas(CACHE_LINE) _Atomic uint32_t epoch; /* the futex word */
    _Alignas(CACHE_LINE) atomic_int n_parked;
    /*
     * Central barrier. Its phase counts where a sense would only turn (Mellor-Crummey & Scott 1991,
     * algorithm 7): a run on fewer threads may pass barriers while one of the threads before has
     * not seen yet that the last one of its own run is over.
     */
    _Alignas(CACHE_LINE) atomic_int n_arrived;
    _Alignas(CACHE_LINE) atomic_uint phase;
};

static inline void cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void gs_pool_barrier(gs_pool *p, int tid) {
    /* It can't change before this thread has arrived. */
    unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    /* acq_rel: the last to arrive has seen everyone's writes and hands them on with the store. */
    if (atomic_fetch_add_explicit(&p->n_arrived, 1, memory_order_acq_rel) ==
        p->workers[tid].n_running - 1) {
        atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
        return;
    }
    int spins = 0;
    while (atomic_load_explicit(&p->phase, memory_order_acquire) == phase) {
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

/* Waits for the epoch to leave `seen`: spins, then yields, then sleeps; or sleeps at once. Returns
 * the new epoch. */
static uint32_t wait_for_run(gs_pool *p, uint32_t seen, bool at_once) {
    int64_t idle_since_ns = gs_now_ns();
    for (int spins = 0; !at_once; spins++) {
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

static void start_run(gs_pool *p, uint32_t n) {
    uint32_t run = atomic_load_explicit(&p->epoch, memory_order_relaxed) / EPOCH_THREADS + 1;
    atomic_store(&p->epoch, run * EPOCH_THREADS + n % EPOCH_THREADS);
    if (atomic_load(&p->n_parked) > 0)
        futex_wake_all(&p->epoch);
}

static void *worker_main(void *arg) {
    worker *w = arg;
    gs_pool *p = w->pool;
    char name[16];
    snprintf(name, sizeof name, "gs-kernel-%d", w->tid % 10000);
    pthread_setname_np(pthread_self(), name);
    bool left_out = false;
    for (uint32_t epoch = 0;;) {
        epoch = wait_for_run(p, epoch, left_out);
        int n = (int)(epoch % EPOCH_THREADS);
        if (n == (int)EPOCH_STOP)
            return NULL;
        left_out = w->tid >= n;
        if (left_out)
            continue;
        w->n_running = n;
        p->fn(p->arg, w->tid, n);
        gs_pool_barrier(p, w->tid);
    }
}

void gs_pool_run_on(gs_pool *p, int n, gs_pool_fn fn, void *arg) {
    GS_ASSERT(n >= 1 && n <= p->n_threads);
    p->workers[0].n_running = n;
    if (n > 1) {
        p->fn = fn;
        p->arg = arg;
        start_run(p, (uint32_t)n);
    }
    fn(arg, 0, n);
    if (n > 1)
        gs_pool_barrier(p, 0);
}

void gs_pool_run(gs_pool *p, gs_pool_fn fn, void *arg) {
    gs_pool_run_on(p, p->n_threads, fn, arg);
}

static void pin_to(const gs_pool *p, int tid, size_t core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(tid == 0 ? pthread_self() : p->workers[tid].thread, sizeof one, &one);
}

/* Binds thread i to the i-th allowed core. Pinning only helps: failures are of no account. */
static void pin_threads(gs_pool *p) {
    if (sched_getaffinity(0, sizeof p->allowed, &p->allowed) != 0 ||
        CPU_COUNT(&p->allowed) < p->n_threads)
        return;
    p->pinned = true;
    int tid = 0;
    for (size_t core = 0; core < CPU_SETSIZE && tid < p->n_threads; core++)
        if (CPU_ISSET(core, &p->allowed))
            pin_to(p, tid++, core);
}

/* The same from the last core of another pool's on. */
static void pin_threads_beside(gs_pool *p, int n_cores) {
    int at = 0;
    p->pinned = true;
    for (size_t core = 0; core < CPU_SETSIZE && at < n_cores; core++)
        if (CPU_ISSET(core, &p->allowed)) {
            const int tid = n_cores - 1 - at++;
            if (tid < p->n_threads)
                pin_to(p, tid, core);
        }
}

/* Ends and joins the workers 1 .. n_started. */
static void stop_workers(gs_pool *p, int n_started) {
    start_run(p, EPOCH_STOP);
    for (int i = 1; i <= n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
}

static int start_workers(gs_pool *p) {
    /* Signals are for the threads that expect them. */
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, GS_PARK_SIGNAL);
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

static gs_pool *create(int n_threads, bool crowded) {
    gs_pool *p = gs_aligned(CACHE_LINE, sizeof *p);
    if (!p)
        return NULL;
    *p = (gs_pool){.n_threads = n_threads};
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
    return p;
}

gs_pool *gs_pool_create(int n_threads, bool pin) {
    const int cpus = gs_cpu_count();
    if (n_threads <= 0)
        n_threads = cpus;
    gs_pool *p = create(n_threads, n_threads > cpus);
    if (p && pin)
        pin_threads(p);
    return p;
}

gs_pool *gs_pool_create_beside(const gs_pool *of) {
    if (of->pinned) /* the caller may come from a pinned thread, and its own ones from it */
        pthread_setaffinity_np(pthread_self(), sizeof of->allowed, &of->allowed);
    gs_pool *p = create(of->n_threads > 1 ? of->n_threads - 1 : 1, of->n_threads > gs_cpu_count());
    if (!p)
        return NULL;
    p->park_after_ns = PARK_AFTER_CROWDED_NS; /* others want these cores between two steps */
    p->allowed = of->allowed;
    if (of->pinned)
        pin_threads_beside(p, of->n_threads);
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

uint64_t gs_pool_progress(const gs_pool *p) {
    return atomic_load_explicit(&p->phase, memory_order_relaxed);
}

bool gs_pool_park(gs_pool *p) {
    pthread_t *threads = gs_array((size_t)p->n_threads, sizeof(*threads));
    if (!threads)
        return false;
    for (int i = 1; i < p->n_threads; i++)
        threads[i - 1] = p->workers[i].thread;
    const bool ok = gs_park(threads, p->n_threads - 1);
    for (int i = 1; ok && i < p->n_threads; i++)
        pthread_detach(p->workers[i].thread);
    gs_free(threads);
    return ok;
}

int gs_pool_restart(gs_pool *p) {
    /* As nobody ever ran: new workers look for an epoch other than 0. */
    atomic_store(&p->epoch, 0);
    atomic_store(&p->n_parked, 0);
    atomic_store(&p->n_arrived, 0);
    const int started = start_workers(p);
    if (started < p->n_threads - 1) {
        stop_workers(p, started);
        p->n_threads = 1; /* nobody is left to be stopped */
        return GS_ERR_NOMEM;
    }
    if (p->pinned)
        pin_threads(p);
    return GS_OK;
}

int gs_pool_threads(const gs_pool *p) {
    return p->n_threads;
}
