#include "engine/beside.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

enum { OPENING, IDLE, RUNS, DONE, ENDS };

struct gs_beside {
    gs_backend *of, *sibling;
    void (*done)(void *arg);
    void *done_arg;
    pthread_t thread;
    pthread_mutex_t lock; /* state changes under it; is_done reads it without */
    pthread_cond_t changed;
    atomic_int state;
    gs_batch *batch;
    int rc;
    int64_t elapsed_ns;
};

static void set_state(gs_beside *b, int state) {
    pthread_mutex_lock(&b->lock);
    atomic_store(&b->state, state);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* Waits while the state is one of these two. Returns the other one that it became. */
static int wait_while(gs_beside *b, int one, int other) {
    int state;
    pthread_mutex_lock(&b->lock);
    while ((state = atomic_load(&b->state)) == one || state == other)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
    return state;
}

static void *beside_main(void *arg) {
    gs_beside *b = arg;
    pthread_setname_np(pthread_self(), "gs-beside");
    b->rc = b->of->ops->sibling(b->of, &b->sibling);
    set_state(b, IDLE);
    while (wait_while(b, IDLE, DONE) == RUNS) {
        const int64_t began_ns = gs_now_ns();
        b->rc = b->sibling->ops->forward(b->sibling, b->batch);
        b->elapsed_ns = gs_now_ns() - began_ns;
        set_state(b, DONE);
        b->done(b->done_arg);
    }
    if (b->sibling)
        b->sibling->ops->destroy(b->sibling);
    return NULL;
}

int gs_beside_create(gs_backend *of, void (*done)(void *arg), void *arg, gs_beside **out) {
    gs_beside *b = gs_calloc(1, sizeof(*b));
    if (!b)
        return GS_ERR_NOMEM;
    b->of = of;
    b->done = done;
    b->done_arg = arg;
    atomic_init(&b->state, OPENING);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    if (pthread_create(&b->thread, NULL, beside_main, b) != 0) {
        pthread_mutex_destroy(&b->lock);
        pthread_cond_destroy(&b->changed);
        gs_free(b);
        return GS_ERR_NOMEM;
    }
    wait_while(b, OPENING, OPENING);
    const int rc = b->rc;
    if (rc == 0)
        *out = b;
    else
        gs_beside_free(b);
    return rc;
}

void gs_beside_free(gs_beside *b) {
    if (!b)
        return;
    wait_while(b, RUNS, RUNS);
    set_state(b, ENDS);
    pthread_join(b->thread, NULL);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
    gs_free(b);
}

void gs_beside_start(gs_beside *b, gs_batch *batch) {
    GS_ASSERT(atomic_load(&b->state) == IDLE);
    b->batch = batch;
    set_state(b, RUNS);
}

bool gs_beside_is_done(const gs_beside *b) {
    return atomic_load(&b->state) == DONE;
}

bool gs_beside_take(gs_beside *b, bool wait, int *rc, int64_t *elapsed_ns) {
    if (wait)
        wait_while(b, RUNS, RUNS);
    if (!gs_beside_is_done(b))
        return false;
    *rc = b->rc;
    *elapsed_ns = b->elapsed_ns;
    set_state(b, IDLE);
    return true;
}
