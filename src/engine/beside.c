#include "engine/beside.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/park.h"
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
    atomic_bool computing; /* the sibling's code runs: then no lock is held */
    _Atomic uint64_t n_began;
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

static void finish(gs_beside *b) {
    set_state(b, DONE);
    b->done(b->done_arg);
}

/* Batch after batch, until it is to end. */
static void serve(gs_beside *b) {
    while (wait_while(b, IDLE, DONE) == RUNS) {
        const int64_t began_ns = gs_now_ns();
        atomic_fetch_add(&b->n_began, 1);
        atomic_store(&b->computing, true);
        const int rc = b->sibling->ops->forward(b->sibling, b->batch);
        atomic_store(&b->computing, false);
        b->rc = rc;
        b->elapsed_ns = gs_now_ns() - began_ns;
        finish(b);
    }
    if (b->sibling)
        b->sibling->ops->destroy(b->sibling);
}

static void *beside_main(void *arg) {
    gs_beside *b = arg;
    pthread_setname_np(pthread_self(), "gs-beside");
    b->rc = b->of->ops->sibling(b->of, &b->sibling);
    set_state(b, IDLE);
    serve(b);
    return NULL;
}

/* In place of one that hangs. Its step did not compute anything, and took nobody's time. */
static void *revived_main(void *arg) {
    gs_beside *b = arg;
    pthread_setname_np(pthread_self(), "gs-beside");
    if (b->sibling->ops->restart && b->sibling->ops->restart(b->sibling) != GS_OK)
        return NULL; /* nobody hears of the step again, which the watchdog sees */
    atomic_store(&b->computing, false);
    b->rc = GS_ERR_STALLED;
    b->elapsed_ns = 0;
    finish(b);
    serve(b);
    return NULL;
}

uint64_t gs_beside_progress(const gs_beside *b, bool *runs) {
    *runs = atomic_load(&b->computing);
    return atomic_load(&b->n_began) + (*runs ? b->sibling->ops->progress(b->sibling) : 0);
}

int gs_beside_revive(gs_beside *b) {
    if (!gs_park(&b->thread, 1))
        return GS_ERR_TIMEOUT;
    if (!atomic_load(&b->computing)) { /* it has just come back */
        gs_unpark();
        return GS_ERR_EXISTS;
    }
    if (b->sibling->ops->park && !b->sibling->ops->park(b->sibling))
        return GS_ERR_TIMEOUT;
    pthread_detach(b->thread);
    return pthread_create(&b->thread, NULL, revived_main, b) == 0 ? GS_OK : GS_ERR_NOMEM;
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
