/*
 * Workers: the machines that requests are lent to. What is decided about them is sched/place.h,
 * which is pure; this module does it: connections, probes, hooks, names of models as numbers.
 *
 *     GS_PLACE_DISPATCH   a request to the remote (remote.h), or gs_engine_submit for the local one
 *     GS_PLACE_ABORT      gs_remote_cancel; with over an error event for the client
 *     GS_PLACE_PROBE      GET of its list of models, bounded by probe_timeout_ns
 *     GS_PLACE_POWER_ON   the command, or the wake-on-LAN packet
 *
 * and tells it what happened: gs_place_tokens, gs_place_end, gs_place_alive, gs_place_probed. What
 * an attempt cost goes to the engine thread for gs_sched_charge.
 */
#ifndef GS_WORKER_WORKER_H
#define GS_WORKER_WORKER_H

#include "sched/place.h"

/* What is shown of one: /v1/workers, /metrics, the dashboard, `gamasot workers list`. */
typedef struct gs_worker_info {
    const gs_place_worker *desc; /* name, kind, budgets, price; borrowed */
    gs_place_view view;
} gs_worker_info;

#endif
