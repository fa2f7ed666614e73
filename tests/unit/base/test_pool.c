#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/park.h"
#include "base/pool.h"
#include "base/sys.h"

#include "base/pool_impl.h"
#include "faults/fault.h"
#include "cgroup.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_THREADS 16

typedef struct work {
    gs_pool *pool;
    int n_phases;
    int cells[MAX_THREADS][16]; /* [thread][..]: one cache line each, written without atomics */
    int errors[MAX_THREADS];
} work;

/* Each phase every thread bumps its cell; after the barrier all cells must show the phase. */
static void phases(void *arg, int tid, int n) {
    work *w = arg;
    for (int phase = 1; phase <= w->n_phases; phase++) {
        w->cells[tid][0]++;
        gs_pool_barrier(w->pool, tid);
        for (int i = 0; i < n; i++)
            w->errors[tid] += w->cells[i][0] != phase;
        gs_pool_barrier(w->pool, tid);
    }
}

static void run_phases(int n_threads, int n_runs, int n_phases, bool pin) {
    work w = {.pool = gs_pool_create(n_threads, pin), .n_phases = n_phases};
    assert_non_null(w.pool);
    assert_int_equal(gs_pool_threads(w.pool), n_threads);
    for (int run = 0; run < n_runs; run++) {
        memset(w.cells, 0, sizeof w.cells);
        gs_pool_run(w.pool, phases, &w);
        for (int i = 0; i < n_threads; i++) {
            assert_int_equal(w.cells[i][0], n_phases);
            assert_int_equal(w.errors[i], 0);
        }
    }
    gs_pool_free(w.pool);
}

/* Runs on some of the threads and on all take turns; with an odd number of barriers in each, who
 * was left out comes back in another phase. */
static void runs_on_some_of_the_threads(void **state) {
    (void)state;
    static const int counts[] = {4, 1, 4, 2, 3, 1, 1, 4, 3, 2};
    work w = {.pool = gs_pool_create(4, false)};
    assert_non_null(w.pool);
    for (int run = 0; run < 3000; run++) {
        int n = counts[run % 10];
        memset(w.cells, 0, sizeof w.cells);
        w.n_phases = run % 3;
        gs_pool_run_on(w.pool, n, phases, &w);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(w.cells[i][0], i < n ? w.n_phases : 0);
            assert_int_equal(w.errors[i], 0);
        }
    }
    gs_pool_free(w.pool);
}

static void one_thread(void **state) {
    (void)state;
    run_phases(1, 10, 3, true);
}

static void barrier_separates_phases(void **state) {
    (void)state;
    run_phases(2, 200, 20, true);
}

static void more_threads_than_cores(void **state) {
    (void)state;
    run_phases(MAX_THREADS, 5, 10, true);
    run_phases(7, 5, 10, false);
}

static void odd_number_of_barriers_per_run(void **state) {
    (void)state;
    work w = {.pool = gs_pool_create(3, false), .n_phases = 0};
    assert_non_null(w.pool);
    for (int run = 0; run < 50; run++) /* no barrier of its own: only the run's end */
        gs_pool_run(w.pool, phases, &w);
    gs_pool_free(w.pool);
}

static void runs_after_parking(void **state) {
    (void)state;
    work w = {.pool = gs_pool_create(2, false), .n_phases = 2};
    assert_non_null(w.pool);
    for (int run = 0; run < 5; run++) {
        usleep(10000); /* longer than the spin: the worker is asleep on its futex */
        memset(w.cells, 0, sizeof w.cells);
        gs_pool_run(w.pool, phases, &w);
        assert_int_equal(w.cells[0][0], 2);
        assert_int_equal(w.cells[1][0], 2);
    }
    gs_pool_free(w.pool);
}

static int64_t process_cpu_ns(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * GS_NS_PER_S +
           (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * GS_NS_PER_US;
}

/* CPU time, not wall time: a busy machine does not change the outcome. */
static void idle_workers_use_no_cpu(void **state) {
    (void)state;
    work w = {.pool = gs_pool_create(4, false), .n_phases = 2};
    assert_non_null(w.pool);
    gs_pool_run(w.pool, phases, &w);
    usleep(50000); /* until they sleep */
    int64_t cpu = process_cpu_ns(), wall = gs_now_ns();
    usleep(1000000);
    cpu = process_cpu_ns() - cpu;
    wall = gs_now_ns() - wall;
    assert_true(cpu * 200 < wall); /* below 0.5 % of one core for all of them */
    gs_pool_free(w.pool);
}

static void create_and_free_without_a_run(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++)
        gs_pool_free(gs_pool_create(3, true));
    gs_pool_free(NULL);
    gs_pool *p = gs_pool_create(0, false);
    assert_non_null(p);
    assert_int_equal(gs_pool_threads(p), gs_cpu_count());
    gs_pool_free(p);
}

static void create_fails_without_memory(void **state) {
    (void)state;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        gs_fault_set(GS_FAULT_ALLOC, nth, 0);
        assert_null(gs_pool_create(2, false));
    }
    gs_fault_clear();
}

static void pin_is_undone(void **state) {
    (void)state;
    cpu_set_t before, after;
    CPU_ZERO(&before);
    CPU_ZERO(&after);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    gs_pool *p = gs_pool_create(CPU_COUNT(&before) < 4 ? CPU_COUNT(&before) : 4, true);
    assert_non_null(p);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_int_equal(CPU_COUNT(&after), 1);
    gs_pool_free(p);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

/* In a child, because the count is taken once per process. */
static void cpu_count_obeys_the_affinity_mask(void **state) {
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cpu_set_t all, one;
        sched_getaffinity(0, sizeof all, &all);
        CPU_ZERO(&one);
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &all)) {
                CPU_SET(i, &one);
                break;
            }
        sched_setaffinity(0, sizeof one, &one);
        _exit(gs_cpu_count());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
}

static void cgroup_quota_is_the_tightest_of_the_path(void **state) {
    (void)state;
    char dir[] = "/tmp/gamasot-cgroup-XXXXXX";
    assert_non_null(mkdtemp(dir));
    put_file(dir, "", "cpu.max", "max 100000\n");
    put_file(dir, "/a", "cpu.max", "150000 100000\n");
    put_file(dir, "/a/b", "cpu.max", "400000 100000\n");
    put_file(dir, "/c", "cpu.max", "max 100000\n");
    put_file(dir, "/d", "cpu.max", "nonsense\n");
    put_file(dir, "/e", "cpu.max", "1000 100000\n");
    assert_int_equal(gs_cgroup_cpus(dir, "/a/b"), 2); /* 1.5 of the parent, rounded up */
    assert_int_equal(gs_cgroup_cpus(dir, "/a"), 2);
    assert_int_equal(gs_cgroup_cpus(dir, "/a/b/missing"), 2);
    assert_int_equal(gs_cgroup_cpus(dir, "/c"), 0);
    assert_int_equal(gs_cgroup_cpus(dir, "/d"), 0);
    assert_int_equal(gs_cgroup_cpus(dir, "/e"), 1);
    assert_int_equal(gs_cgroup_cpus(dir, "/"), 0);
    static const char *const subs[] = {"/a/b", "/a", "/c", "/d", "/e", ""};
    for (size_t i = 0; i < sizeof subs / sizeof subs[0]; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s%s/cpu.max", dir, subs[i]);
        unlink(path);
        snprintf(path, sizeof path, "%s%s", dir, subs[i]);
        rmdir(path);
    }
}

/* One thread of the run never reaches the barrier; the others spin there. */
typedef struct stuck_run {
    gs_pool *pool;
    atomic_int stuck; /* which thread; -1: none */
    atomic_int n_begun;
} stuck_run;

static void may_hang(void *arg, int tid, int n) {
    stuck_run *s = arg;
    (void)n;
    atomic_fetch_add(&s->n_begun, 1);
    while (tid == atomic_load(&s->stuck))
        sched_yield();
    gs_pool_barrier(s->pool, tid);
}

static void *run_that_hangs(void *arg) {
    stuck_run *s = arg;
    gs_pool_run(s->pool, may_hang, s);
    return NULL;
}

static void a_hanging_run_is_parked_and_the_pool_restarted(void **state) {
    (void)state;
    for (int stuck = 0; stuck < 3; stuck++) {
        stuck_run s = {.pool = gs_pool_create(3, false), .stuck = stuck};
        pthread_t thread;
        assert_non_null(s.pool);
        assert_int_equal(pthread_create(&thread, NULL, run_that_hangs, &s), 0);
        while (atomic_load(&s.n_begun) < 3)
            sched_yield();
        assert_true(gs_park(&thread, 1));
        assert_true(gs_pool_park(s.pool));
        pthread_detach(thread);
        assert_int_equal(gs_pool_restart(s.pool), GS_OK);
        work w = {.pool = s.pool, .n_phases = 5};
        const uint64_t progress = gs_pool_progress(s.pool);
        gs_pool_run(s.pool, phases, &w);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(w.cells[i][0], 5);
            assert_int_equal(w.errors[i], 0);
        }
        assert_true(gs_pool_progress(s.pool) > progress);
        gs_pool_free(s.pool);
    }
}

static void parking_by_mistake_is_undone(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        stuck_run s = {.pool = gs_pool_create(2, false), .stuck = 0};
        pthread_t thread;
        assert_non_null(s.pool);
        assert_int_equal(pthread_create(&thread, NULL, run_that_hangs, &s), 0);
        while (atomic_load(&s.n_begun) < 2)
            sched_yield();
        assert_true(gs_park(&thread, 1));
        atomic_store(&s.stuck, -1); /* it stands still and will read this later */
        gs_unpark();
        pthread_join(thread, NULL);
        gs_pool_free(s.pool);
    }
}

static void share_covers_every_item_once(void **state) {
    (void)state;
    for (int n = 0; n < 40; n++)
        for (int threads = 1; threads < 9; threads++) {
            int next = 0;
            for (int tid = 0; tid < threads; tid++) {
                int begin, end;
                gs_share(n, tid, threads, &begin, &end);
                assert_int_equal(begin, next);
                assert_true(end - begin <= n / threads + 1);
                next = end;
            }
            assert_int_equal(next, n);
        }
    int begin, end;
    gs_share(INT32_MAX, 6, 7, &begin, &end);
    assert_int_equal(end, INT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_count_obeys_the_affinity_mask), /* first: before the count is taken */
        cmocka_unit_test(cgroup_quota_is_the_tightest_of_the_path),
        cmocka_unit_test(share_covers_every_item_once),
        cmocka_unit_test(one_thread),
        cmocka_unit_test(barrier_separates_phases),
        cmocka_unit_test(more_threads_than_cores),
        cmocka_unit_test(odd_number_of_barriers_per_run),
        cmocka_unit_test(runs_on_some_of_the_threads),
        cmocka_unit_test(runs_after_parking),
        cmocka_unit_test(idle_workers_use_no_cpu),
        cmocka_unit_test(create_and_free_without_a_run),
        cmocka_unit_test(create_fails_without_memory),
        cmocka_unit_test(pin_is_undone),
        cmocka_unit_test(a_hanging_run_is_parked_and_the_pool_restarted),
        cmocka_unit_test(parking_by_mistake_is_undone),
    };
    return cmocka_run_group_tests_name("base/pool", tests, NULL, NULL);
}
