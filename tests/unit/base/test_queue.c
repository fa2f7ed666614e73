#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/queue.h"
#include "base/sys.h"
#include "faults/fault.h"

#include <pthread.h>
#include <sched.h>

typedef struct message {
    gs_mpsc_node node; /* first: a node is a message */
    int producer;
    int number;
} message;

#define N_PRODUCERS 4
#define N_EACH      5000

static gs_mpsc mpsc;
static message messages[N_PRODUCERS][N_EACH];

static void *produce(void *arg) {
    message *own = arg;
    for (int i = 0; i < N_EACH; i++) {
        own[i].number = i;
        gs_mpsc_push(&mpsc, &own[i].node);
    }
    return NULL;
}

static void mpsc_keeps_each_producers_order(void **state) {
    (void)state;
    gs_mpsc_init(&mpsc);
    pthread_t t[N_PRODUCERS];
    for (int p = 0; p < N_PRODUCERS; p++) {
        for (int i = 0; i < N_EACH; i++)
            messages[p][i].producer = p;
        assert_int_equal(pthread_create(&t[p], NULL, produce, messages[p]), 0);
    }
    int next[N_PRODUCERS] = {0};
    for (int got = 0; got < N_PRODUCERS * N_EACH;) {
        message *m = (message *)gs_mpsc_pop(&mpsc);
        if (!m) {
            sched_yield();
            continue;
        }
        assert_int_equal(m->number, next[m->producer]);
        next[m->producer]++;
        got++;
    }
    for (int p = 0; p < N_PRODUCERS; p++)
        pthread_join(t[p], NULL);
    assert_null(gs_mpsc_pop(&mpsc));
}

static void mpsc_one_by_one(void **state) {
    (void)state;
    static gs_mpsc q; /* gcc's ASan does not keep 64-byte alignment on the stack */
    message a = {.number = 1}, b = {.number = 2};
    gs_mpsc_init(&q);
    assert_null(gs_mpsc_pop(&q));
    for (int round = 0; round < 3; round++) { /* a popped node may be pushed again at once */
        gs_mpsc_push(&q, &a.node);
        assert_ptr_equal(gs_mpsc_pop(&q), &a);
        assert_null(gs_mpsc_pop(&q));
        gs_mpsc_push(&q, &a.node);
        gs_mpsc_push(&q, &b.node);
        assert_ptr_equal(gs_mpsc_pop(&q), &a);
        gs_mpsc_push(&q, &a.node);
        assert_ptr_equal(gs_mpsc_pop(&q), &b);
        assert_ptr_equal(gs_mpsc_pop(&q), &a);
        assert_null(gs_mpsc_pop(&q));
    }
}

typedef struct item {
    uint64_t number;
    uint64_t check;
    char pad[8];
} item;

static gs_spsc spsc;
#define N_ITEMS 50000

static void *feed(void *arg) {
    (void)arg;
    for (uint64_t i = 0; i < N_ITEMS;) {
        item it = {.number = i, .check = ~i * 31};
        if (gs_spsc_push(&spsc, &it))
            i++;
        else
            sched_yield();
    }
    return NULL;
}

static void spsc_between_two_threads(void **state) {
    (void)state;
    assert_int_equal(gs_spsc_init(&spsc, 16, sizeof(item)), GS_OK);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, feed, NULL), 0);
    for (uint64_t i = 0; i < N_ITEMS;) {
        item it;
        if (!gs_spsc_pop(&spsc, &it)) {
            sched_yield();
            continue;
        }
        assert_int_equal(it.number, i);
        assert_int_equal(it.check, ~i * 31);
        i++;
    }
    pthread_join(t, NULL);
    item it;
    assert_false(gs_spsc_pop(&spsc, &it));
    gs_spsc_deinit(&spsc);
}

static void spsc_is_full_at_its_size(void **state) {
    (void)state;
    static gs_spsc q;
    assert_int_equal(gs_spsc_init(&q, 4, sizeof(int)), GS_OK);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 4; i++)
            assert_true(gs_spsc_push(&q, &i));
        int v = 9;
        assert_false(gs_spsc_push(&q, &v));
        for (int i = 0; i < 4; i++) {
            assert_true(gs_spsc_pop(&q, &v));
            assert_int_equal(v, i);
        }
        assert_false(gs_spsc_pop(&q, &v));
    }
    gs_spsc_deinit(&q);
}

static void spsc_init_refuses(void **state) {
    (void)state;
    static gs_spsc q;
    assert_int_equal(gs_spsc_init(&q, 0, 4), GS_ERR_INVALID);
    assert_int_equal(gs_spsc_init(&q, 3, 4), GS_ERR_INVALID);
    assert_int_equal(gs_spsc_init(&q, 4, 0), GS_ERR_INVALID);
    assert_int_equal(gs_spsc_init(&q, (size_t)1 << 62, 64), GS_ERR_NOMEM);
    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    assert_int_equal(gs_spsc_init(&q, 4, 4), GS_ERR_NOMEM);
    gs_fault_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mpsc_keeps_each_producers_order),
        cmocka_unit_test(mpsc_one_by_one),
        cmocka_unit_test(spsc_between_two_threads),
        cmocka_unit_test(spsc_is_full_at_its_size),
        cmocka_unit_test(spsc_init_refuses),
    };
    return cmocka_run_group_tests_name("base/queue", tests, NULL, NULL);
}
