/*
 * Random faults at the seams of engine and scheduler: functions whose contract allows a rare answer
 * that a quiet machine hardly ever gives. In two stages, as FoundationDB's buggify does it: a seed
 * first decides which seams are armed at all (one in four), so that runs differ in kind, and then
 * an armed one gives its rare answer now and then. The same seed arms the same seams; when they
 * answer so depends on the threads.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/queue.h"
#include "base/sys.h"
#include "engine/encoder.h"
#include "engine/native.h"
#include "faults/fault.h"
#include "sched/turns.h"

/* seam, one of so many calls of an armed one */
#define SEAMS(X)                                                                                   \
    X(FULL_OUTBOX, 8) /* the event loop is behind */                                               \
    X(LATE_MASK, 4)   /* a grammar was slow */                                                     \
    X(YIELD, 4)       /* a step gives way although nobody came */                                  \
    X(REFUSE, 8)      /* the queue is full */                                                      \
    X(FAIL_STEP, 64)  /* the backend fails */                                                      \
    X(FAIL_ITEM, 64)  /* ... for one sequence */                                                   \
    X(SLOW_STEP, 16)  /* a step takes long */

typedef enum seam {
#define X(id, one_of) id,
    SEAMS(X)
#undef X
} seam;

static const uint32_t rates[] = {
#define X(id, one_of) one_of,
    SEAMS(X)
#undef X
};

static uint64_t mix(uint64_t h) {
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL;
    return h ^ (h >> 31);
}

static bool hit(seam s) {
    static _Atomic uint64_t n_calls;
    const uint64_t seed = gs_fault_seed();
    if (seed == 0 || mix(seed * 64 + (uint64_t)s) % 4 != 0)
        return false;
    return mix(seed + atomic_fetch_add(&n_calls, 1) * 64 + (uint64_t)s) % rates[s] == 0;
}

/* ---- Queues, guides, scheduler ------------------------------------------------------------- */

// clang-format off
#define SEAM(result, name, args, call, seam, answer)                                               \
    result __real_##name args;                                                                     \
    result __wrap_##name args;                                                                     \
    result __wrap_##name args {                                                                    \
        if (hit(seam))                                                                             \
            return answer;                                                                         \
        return __real_##name call;                                                                 \
    }

SEAM(bool, gs_spsc_push, (gs_spsc *q, const void *item), (q, item), FULL_OUTBOX, false)
SEAM(bool, gs_guide_limit, (gs_guide *g, int32_t n, gs_sampler *s, gs_sample *out), (g, n, s, out),
     LATE_MASK, ((out->pending = true), (out->err = 0), false))
SEAM(bool, gs_turns_should_yield,
     (gs_sched *const *s, int32_t n, int32_t at, const gs_plan *plan, int64_t now_ns),
     (s, n, at, plan, now_ns), YIELD, true)
// clang-format on

static int refuse(gs_admission *adm) {
    *adm = (gs_admission){
        .code = GS_ERR_OVERLOADED, .reason = "a fault on purpose", .retry_after_ns = GS_NS_PER_S};
    return GS_ERR_OVERLOADED;
}

// clang-format off
SEAM(int, gs_sched_submit, (gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *adm),
     (s, d, now_ns, adm), REFUSE, refuse(adm))
// clang-format on

/* ---- Backends ------------------------------------------------------------------------------ */

/* Around the one that there is. */
typedef struct faulty {
    gs_backend base;
    gs_backend_ops ops;
    gs_backend *real;
} faulty;

static void nap(int64_t ns) {
    const struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

/* GS_OK: the step may be computed. */
static int before_step(void) {
    if (hit(SLOW_STEP))
        nap(20 * GS_NS_PER_MS);
    if (hit(FAIL_STEP))
        return GS_ERR_BACKEND;
    if (!gs_fault_hit(GS_FAULT_STEP))
        return GS_OK;
    if (errno == GS_FAULT_CRASH)
        abort();
    while (errno == GS_FAULT_HANG) /* until the watchdog makes it stand still */
        nap(GS_NS_PER_MS);
    return GS_ERR_BACKEND;
}

static int after_step(gs_batch *batch, int rc) {
    for (int32_t i = 0; rc == GS_OK && i < batch->n_items; i++)
        if (batch->items[i].sample && !batch->items[i].sample->pending && hit(FAIL_ITEM))
            batch->items[i].sample->err = GS_ERR_BACKEND;
    return rc;
}

static gs_backend *real_of(const gs_backend *b) {
    return ((const faulty *)(const void *)b)->real;
}

static void faulty_info(const gs_backend *b, gs_backend_info *out) {
    real_of(b)->ops->info(real_of(b), out);
}

static int faulty_forward(gs_backend *b, gs_batch *batch) {
    const int rc = before_step();
    return rc ? rc : after_step(batch, real_of(b)->ops->forward(real_of(b), batch));
}

static int faulty_resume(gs_backend *b, gs_batch *batch) {
    return after_step(batch, real_of(b)->ops->resume(real_of(b), batch));
}

static uint64_t faulty_progress(const gs_backend *b) {
    return real_of(b)->ops->progress(real_of(b));
}

static bool faulty_park(gs_backend *b) {
    return real_of(b)->ops->park(real_of(b));
}

static int faulty_restart(gs_backend *b) {
    return real_of(b)->ops->restart(real_of(b));
}

static void faulty_destroy(gs_backend *b) {
    real_of(b)->ops->destroy(real_of(b));
    gs_free(b);
}

static int put_around(int rc, gs_backend **b) {
    faulty *f = rc == GS_OK ? calloc(1, sizeof(*f)) : NULL;
    if (!f)
        return rc;
    f->real = *b;
    f->ops = (gs_backend_ops){.name = f->real->ops->name,
                              .info = faulty_info,
                              .forward = faulty_forward,
                              .resume = f->real->ops->resume ? faulty_resume : NULL,
                              .progress = faulty_progress,
                              .park = f->real->ops->park ? faulty_park : NULL,
                              .restart = f->real->ops->restart ? faulty_restart : NULL,
                              .destroy = faulty_destroy};
    f->base.ops = &f->ops;
    *b = &f->base;
    return rc;
}

// clang-format off
#define AROUND(name, args, call)                                                                   \
    int __real_##name args;                                                                        \
    int __wrap_##name args;                                                                        \
    int __wrap_##name args {                                                                       \
        return put_around(__real_##name call, out);                                                \
    }
AROUND(gs_fake_create, (const gs_fake_config *c, gs_backend **out), (c, out))
AROUND(gs_native_create, (const gs_native_config *c, gs_backend **out, char *err, size_t errlen),
       (c, out, err, errlen))
AROUND(gs_encoder_create, (const gs_native_config *c, gs_backend **out, char *err, size_t errlen),
       (c, out, err, errlen))
// clang-format on

void __real_gs_fake_release(gs_backend *b);
void __wrap_gs_fake_release(gs_backend *b);
void __wrap_gs_fake_release(gs_backend *b) {
    __real_gs_fake_release(real_of(b));
}
