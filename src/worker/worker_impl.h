/* Private to worker/: between the workers and how they are watched and switched on. */
#ifndef GS_WORKER_WORKER_IMPL_H
#define GS_WORKER_WORKER_IMPL_H

#include "worker/workers.h"

#define GS_WORKER_MAX_KEY 512

struct gs_worker_impl {
    gs_workers *ws;
    gs_http_url url;
    gs_tls_context *tls; /* NULL: plain */
    char key[GS_WORKER_MAX_KEY + 1];
    gs_place_worker desc;
    bool removed;
    /* The probe under way. */
    bool probing;
    uv_getaddrinfo_t resolve;
    gs_http_fetch *fetch;
    int status;
    gs_buf body;
    bool metrics; /* it is the gauges that are asked for */
};

struct gs_workers {
    uv_loop_t *loop;
    gs_workers_config cfg;
    uv_timer_t pump, clock;
    gs_place *place;
    int32_t local; /* index of this machine; -1: not told yet */
    gs_worker *first;
    gs_worker *leaving; /* removed, not yet gone */
    gs_job *jobs;
    uint64_t last_id;
    uint32_t held; /* classes, as gs_workers_hold */
    char *
        *names; /* [n_names]: of workers and models, for ever; a model's number is its index + 1 */
    int n_names;
    bool closing;
};

/* workers.c */
const char *gs_workers_intern(gs_workers *ws, const char *name); /* NULL: no room for another */
void gs_workers_pump_soon(gs_workers *ws);
/* Its list of models has grown, or what it is has become known. */
void gs_worker_describe(gs_worker *w);
/* Takes cfg's contents in any case. NULL: out of memory. */
gs_worker *gs_worker_create(gs_workers *ws, gs_config_worker *cfg);
void gs_worker_free(gs_worker *w); /* one that was not placed */
/* Once it is set up: it gets work from now on. As gs_workers_add. */
int gs_worker_place(gs_worker *w, char *err, size_t errlen);
/* Frees it once it is gone and nothing of it is under way. */
void gs_worker_release(gs_worker *w);

/* describe.c: the configuration's text -> what is needed of it. 0, or GS_ERR_INVALID, GS_ERR_IO. */
int gs_worker_set_up(gs_worker *w, char *err, size_t errlen);
bool gs_worker_add_model(gs_worker *w, const char *name, size_t n, const char *its_name);

/* probe.c */
void gs_worker_probe(gs_worker *w);
void gs_worker_stop_probe(gs_worker *w);

/* power.c */
/* Switches it on as the configuration says: command, wake-on-LAN packet, or both. */
void gs_worker_power_on(gs_worker *w);
bool gs_worker_mac_ok(const char *text);

#endif
