#include "api/watch.h"

#include "api/api_impl.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/notify.h"

/* A tick comes every half second; what is more was no time of this process's. */
#define MOST_NS GS_NS_PER_S

static void ask(gs_api *a) {
    gs_watch *w = &a->watch;
    w->ping = (gs_query){.kind = GS_QUERY_EXPLAIN, .owner = w}; /* about nobody */
    w->asked = true;
    w->silent_ns = 0;
    w->progress = gs_engine_progress(a->engine);
    gs_engine_ask(a->engine, &w->ping);
}

static void judge(gs_api *a) {
    gs_watch *w = &a->watch;
    const bool stalled = w->silent_ns > a->cfg.stall_ns || w->beside_ns > a->cfg.stall_ns;
    if (stalled && !w->stalled)
        gs_error("watch", "the engine makes no progress");
    else if (!stalled && w->stalled)
        gs_info("watch", "the engine answers again");
    w->stalled = stalled;
}

bool gs_watch_answered(gs_api *a, const gs_query *q) {
    gs_watch *w = &a->watch;
    if (q != &w->ping)
        return false;
    w->asked = false;
    w->silent_ns = 0;
    judge(a);
    return true;
}

static void give_up(gs_api *a, const char *why) {
    gs_error("watch", "the engine hangs, and %s", why);
    a->watch.over = true;
    if (a->cfg.give_up)
        a->cfg.give_up(a->cfg.give_up_arg);
}

/* What has been silent for so long is revived. */
static void restart(gs_api *a, int (*revive)(gs_engine *e), int64_t *silent_ns, int64_t now_ns) {
    gs_watch *w = &a->watch;
    int64_t *oldest_ns = &w->restarts_ns[w->n_restarts % GS_WATCH_RESTARTS];
    if (w->n_restarts >= GS_WATCH_RESTARTS && now_ns - *oldest_ns < GS_WATCH_WINDOW_NS) {
        give_up(a, "it has done so too often");
        return;
    }
    const int rc = revive(a->engine);
    if (rc == GS_OK) {
        gs_warn("watch", "the engine's threads were replaced");
        *oldest_ns = now_ns;
        w->n_restarts++;
        *silent_ns = 0; /* the new ones have as long to answer */
    } else if (rc != GS_ERR_EXISTS) {
        give_up(a, "its threads could not be stopped");
    } else if (*silent_ns > 2 * a->cfg.restart_ns) {
        give_up(a, "not in a step");
    }
}

static void look(gs_api *a, int64_t now_ns, int64_t passed_ns) {
    gs_watch *w = &a->watch;
    const uint64_t progress = gs_engine_progress(a->engine);
    w->silent_ns = progress == w->progress ? w->silent_ns + passed_ns : 0;
    w->progress = progress;
    if (a->cfg.restart_ns > 0 && w->silent_ns > a->cfg.restart_ns)
        restart(a, gs_engine_revive, &w->silent_ns, now_ns);
}

/* The engine may wait for that step, and is as silent then: it is of no use to look for the reason
 * in its own. */
static void look_beside(gs_api *a, int64_t now_ns, int64_t passed_ns) {
    gs_watch *w = &a->watch;
    bool runs;
    const uint64_t progress = gs_engine_beside_progress(a->engine, &runs);
    w->beside_ns = runs && progress == w->beside ? w->beside_ns + passed_ns : 0;
    w->beside = progress;
    if (a->cfg.restart_ns <= 0 || w->beside_ns <= a->cfg.restart_ns)
        return;
    restart(a, gs_engine_revive_beside, &w->beside_ns, now_ns);
    w->silent_ns = 0;
}

void gs_watch_tick(gs_api *a, int64_t now_ns) {
    gs_watch *w = &a->watch;
    const int64_t passed_ns = now_ns - w->looked_ns < MOST_NS ? now_ns - w->looked_ns : MOST_NS;
    w->looked_ns = now_ns;
    if (w->over)
        return;
    if (a->cfg.stall_ns > 0 && a->engine && gs_engine_get_state(a->engine) == GS_ENGINE_READY) {
        look_beside(a, now_ns, passed_ns);
        if (w->asked && !w->over)
            look(a, now_ns, passed_ns);
        else if (!w->over)
            ask(a);
        judge(a);
    }
    if (!w->stalled && !w->over)
        gs_notify("WATCHDOG=1");
}
