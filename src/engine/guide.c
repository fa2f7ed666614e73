#include "engine/guide.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

/* What a step waits for a mask that is late. */
#define WAIT_NS (GS_NS_PER_MS)
/* A guide that took this long for a token goes to the slow thread. */
#define SLOW_NS       (4 * GS_NS_PER_MS)
#define SLOW_PRIORITY 19

enum { MASK_READY, MASK_PENDING, MASK_FAILED };

struct gs_guide {
    atomic_int refs, state;
    atomic_bool slow;
    gs_grammar_state *grammar;
    uint32_t *mask; /* [n_words] */
    size_t n_words;
    int32_t n_vocab;
    /* while PENDING */
    gs_guides *guides;
    gs_guide *next;
    int32_t token;
};

typedef struct guide_queue {
    pthread_cond_t some;
    gs_guide *first, **last;
    pthread_t thread;
    gs_guides *guides;
    bool started, slow;
} guide_queue;

struct gs_guides {
    pthread_mutex_t lock;
    pthread_cond_t done; /* a mask was made */
    guide_queue queues[2];
    bool stop;
};

/* ---- Guides ------------------------------------------------------------------------------- */

int gs_guide_create(gs_grammar *grammar, gs_guide **out) {
    gs_guide *g = gs_calloc(1, sizeof(*g));
    *out = NULL;
    if (!g)
        return GS_ERR_NOMEM;
    atomic_init(&g->refs, 1);
    g->n_vocab = gs_grammar_n_vocab(grammar);
    g->n_words = ((size_t)g->n_vocab + 31) / 32;
    g->mask = gs_calloc(g->n_words, sizeof(*g->mask));
    int rc = g->mask ? gs_grammar_start(grammar, &g->grammar) : GS_ERR_NOMEM;
    if (rc == 0)
        rc = gs_grammar_mask(g->grammar, g->mask, g->n_words);
    if (rc != 0)
        gs_guide_unref(g);
    else
        *out = g;
    return rc;
}

void gs_guide_unref(gs_guide *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    gs_grammar_state_free(g->grammar);
    gs_free(g->mask);
    gs_free(g);
}

/* ---- The threads -------------------------------------------------------------------------- */

static void make_mask(gs_guide *g) {
    int64_t began_ns = gs_now_ns();
    int rc = gs_grammar_advance(g->grammar, g->token);
    if (rc == 0)
        rc = gs_grammar_mask(g->grammar, g->mask, g->n_words);
    if (gs_now_ns() - began_ns > SLOW_NS)
        atomic_store(&g->slow, true);
    atomic_store(&g->state, rc == 0 ? MASK_READY : MASK_FAILED);
}

static void *queue_main(void *arg) {
    guide_queue *q = arg;
    gs_guides *gs = q->guides;
    pthread_setname_np(pthread_self(), q->slow ? "gs-guide-slow" : "gs-guide");
    if (q->slow) /* of this thread alone, in Linux */
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), SLOW_PRIORITY);
    pthread_mutex_lock(&gs->lock);
    for (;;) {
        while (!q->first && !gs->stop)
            pthread_cond_wait(&q->some, &gs->lock);
        gs_guide *g = q->first;
        if (!g)
            break;
        q->first = g->next;
        if (!q->first)
            q->last = &q->first;
        pthread_mutex_unlock(&gs->lock);
        make_mask(g);
        pthread_mutex_lock(&gs->lock);
        pthread_cond_broadcast(&gs->done);
        gs_guide_unref(g);
    }
    pthread_mutex_unlock(&gs->lock);
    return NULL;
}

int gs_guides_create(gs_guides **out) {
    *out = NULL;
    gs_guides *gs = gs_calloc(1, sizeof(*gs));
    if (!gs)
        return GS_ERR_NOMEM;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&gs->lock, NULL);
    pthread_cond_init(&gs->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    bool all = true;
    for (int i = 0; i < 2; i++) {
        guide_queue *q = &gs->queues[i];
        pthread_cond_init(&q->some, NULL);
        q->last = &q->first;
        q->guides = gs;
        q->slow = i == 1;
        q->started = pthread_create(&q->thread, NULL, queue_main, q) == 0;
        all &= q->started;
    }
    if (!all) {
        gs_guides_free(gs);
        return GS_ERR_NOMEM;
    }
    *out = gs;
    return 0;
}

void gs_guides_free(gs_guides *gs) {
    if (!gs)
        return;
    pthread_mutex_lock(&gs->lock);
    gs->stop = true;
    for (int i = 0; i < 2; i++)
        pthread_cond_signal(&gs->queues[i].some);
    pthread_mutex_unlock(&gs->lock);
    for (int i = 0; i < 2; i++) {
        if (gs->queues[i].started)
            pthread_join(gs->queues[i].thread, NULL);
        pthread_cond_destroy(&gs->queues[i].some);
    }
    pthread_cond_destroy(&gs->done);
    pthread_mutex_destroy(&gs->lock);
    gs_free(gs);
}

void gs_guides_push(gs_guides *gs, gs_guide *g, int32_t token) {
    guide_queue *q = &gs->queues[atomic_load(&g->slow)];
    atomic_fetch_add(&g->refs, 1);
    g->token = token;
    g->guides = gs;
    g->next = NULL;
    atomic_store(&g->state, MASK_PENDING);
    pthread_mutex_lock(&gs->lock);
    *q->last = g;
    q->last = &g->next;
    pthread_cond_signal(&q->some);
    pthread_mutex_unlock(&gs->lock);
}

/* ---- The step ----------------------------------------------------------------------------- */

static void wait_for_mask(gs_guide *g) {
    gs_guides *gs = g->guides;
    int64_t until_ns = gs_now_ns() + WAIT_NS;
    struct timespec until = {until_ns / GS_NS_PER_S, until_ns % GS_NS_PER_S};
    pthread_mutex_lock(&gs->lock);
    while (atomic_load(&g->state) == MASK_PENDING &&
           pthread_cond_timedwait(&gs->done, &gs->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&gs->lock);
}

bool gs_guide_limit(gs_guide *g, int32_t n_vocab, gs_sampler *s, gs_sample *out) {
    if (atomic_load(&g->state) == MASK_PENDING && !atomic_load(&g->slow))
        wait_for_mask(g);
    int state = atomic_load(&g->state);
    if (state == MASK_READY && g->n_vocab <= n_vocab) {
        s->mask = g->mask;
        s->n_mask = g->n_vocab;
        return true;
    }
    out->token = 0;
    out->n_top = 0;
    out->pending = state == MASK_PENDING;
    out->err = out->pending ? 0 : GS_ERR_INVALID;
    return false;
}
