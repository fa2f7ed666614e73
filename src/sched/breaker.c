#include "sched/breaker.h"

#define MAX_FAILURES 3
#define FIRST_NS     1000000000LL
#define MAX_NS       60000000000LL
#define SPREAD       0.1

void gs_breaker_defaults(gs_breaker_config *out) {
    *out =
        (gs_breaker_config){.max_failures = MAX_FAILURES, .first_ns = FIRST_NS, .max_ns = MAX_NS};
}

gs_breaker_state gs_breaker_look(gs_breaker *b, int64_t now_ns) {
    if (b->state == GS_BREAKER_OPEN && now_ns >= b->until_ns)
        b->state = GS_BREAKER_HALF_OPEN;
    return b->state;
}

void gs_breaker_trip(gs_breaker *b, const gs_breaker_config *cfg, int64_t now_ns, gs_rng *jitter) {
    int64_t ns = cfg->first_ns;
    for (int32_t i = 0; i < b->n_opened && ns < cfg->max_ns; i++)
        ns *= 2;
    if (ns > cfg->max_ns)
        ns = cfg->max_ns;
    const double spread = SPREAD * (2.0 * gs_rng_unit(jitter) - 1.0);
    b->state = GS_BREAKER_OPEN;
    b->until_ns = now_ns + (int64_t)((double)ns * (1.0 + spread));
    if (b->n_opened < INT32_MAX)
        b->n_opened++;
}

bool gs_breaker_failed(gs_breaker *b, const gs_breaker_config *cfg, int64_t now_ns,
                       gs_rng *jitter) {
    if (b->n_failures < cfg->max_failures)
        b->n_failures++;
    if (b->state != GS_BREAKER_CLOSED || b->n_failures < cfg->max_failures)
        return false;
    gs_breaker_trip(b, cfg, now_ns, jitter);
    return true;
}

/* One failure is taken back, so that a worker whose probes alone succeed opens at the next one. */
void gs_breaker_answered(gs_breaker *b) {
    if (b->state == GS_BREAKER_CLOSED)
        return;
    b->state = GS_BREAKER_CLOSED;
    b->n_failures -= b->n_failures > 0;
}

void gs_breaker_succeeded(gs_breaker *b) {
    *b = (gs_breaker){.state = b->state, .until_ns = b->until_ns};
}
