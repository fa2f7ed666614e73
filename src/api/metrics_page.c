/* GET /metrics. Persons are told to admins alone. */
#include <math.h>
#include <strings.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/route.h"
#include "base/memory.h"
#include "api/workers.h"
#include "base/version.h"
#include "metrics/expose.h"

int gs_api_take_metrics(const gs_api *a, gs_engine_stats stats[GS_ENGINE_LANES],
                        gs_metrics_source out[GS_ENGINE_LANES]) {
    const bool ready = gs_engine_get_state(a->engine) == GS_ENGINE_READY;
    int n = 1;
    gs_engine_get_lane_stats(a->engine, 0, &stats[0]);
    out[0] = (gs_metrics_source){ready ? a->cfg.model->name : "", &stats[0], a->metrics};
    /* Those in memory first: of the others only what was counted is left to tell. */
    for (int loaded = 1; loaded >= 0; loaded--)
        for (int i = 1; i < a->models.n && n < GS_ENGINE_LANES; i++) {
            const gs_model_entry *m = &a->models.v[i];
            if (!m->metrics || (m->served != NULL) != loaded)
                continue;
            stats[n] = (gs_engine_stats){0};
            if (m->served)
                gs_engine_get_lane_stats(a->engine, m->served->lane, &stats[n]);
            out[n] = (gs_metrics_source){m->name, &stats[n], m->metrics};
            n++;
        }
    return n;
}

static const char *person_name(void *arg, int place) {
    const gs_api *a = arg;
    return gs_api_person_name(a, a->metrics->person_at[place]);
}

static uint64_t grammar_bytes(const gs_api *a) {
    uint64_t n = 0;
    for (int i = 0; i < a->models.n; i++) {
        const gs_model_entry *m = &a->models.v[i];
        gs_grammars_stats s;
        if (!m->served || !m->served->grammars)
            continue;
        gs_grammars_get_stats(m->served->grammars, &s);
        n += s.bytes;
    }
    return n;
}

static int n_in_memory(const gs_api *a) {
    int n = 0;
    for (int i = 0; i < a->models.n; i++)
        n += a->models.v[i].served != NULL;
    return n;
}

/* Grammars, store and connections are parts of the heap. */
static void take_memory(const gs_api *a, gs_metrics_server *out) {
    const gs_config *c = a->cfg.config;
    double *bytes = out->memory_bytes, *limits = out->memory_limits;
    gs_memory m;
    gs_memory_read(&m);
    for (int i = 0; i < GS_METRICS_MEMORY; i++)
        limits[i] = (double)NAN;
    for (int i = 0; i < GS_PAGES_KINDS; i++) {
        bytes[i] = (double)m.resident[i];
        limits[i] = (double)m.reserved[i];
    }
    const bool ready = gs_engine_get_state(a->engine) == GS_ENGINE_READY;
    bytes[GS_METRICS_MEMORY_GRAMMARS] = ready ? (double)grammar_bytes(a) : 0.0;
    bytes[GS_METRICS_MEMORY_STORE] = (double)gs_store_memory();
    bytes[GS_METRICS_MEMORY_CONNECTIONS] = (double)gs_http_bytes(a->http);
    double heap = (double)m.heap_used;
    for (int i = GS_METRICS_MEMORY_GRAMMARS; i <= GS_METRICS_MEMORY_CONNECTIONS; i++)
        heap -= bytes[i];
    bytes[GS_METRICS_MEMORY_HEAP] = fmax(heap, 0.0);
    bytes[GS_METRICS_MEMORY_HEAP_FREE] = (double)m.heap_free;
    if (c) {
        limits[GS_METRICS_MEMORY_GRAMMARS] =
            (double)c->memory_grammars_mb * n_in_memory(a) * 1048576;
        limits[GS_METRICS_MEMORY_STORE] = (double)c->memory_store_mb * 1048576;
    }
    limits[GS_METRICS_MEMORY_CONNECTIONS] = (double)gs_http_max_bytes(a->http);
    out->memory_anonymous = (double)(m.anonymous + m.swapped);
    out->memory_available = (double)gs_memory_available();
    out->memory_low = a->memory_low;
}

static int32_t n_placing(const gs_api *a) {
    int32_t n[GS_CLASS_COUNT], sum = 0;
    gs_place_count_waiting(gs_workers_place(a->workers), n);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        sum += n[c];
    return sum;
}

static void take_server(gs_api *a, const gs_engine_stats *s, gs_metrics_server *out) {
    const gs_metrics *m = a->metrics;
    *out = (gs_metrics_server){.jain = gs_metrics_jain(m, s),
                               .energy_j = gs_energy_read(&a->energy),
                               .started_s = (double)a->started_ms / 1e3,
                               .n_connections = gs_http_n_connections(a->http),
                               .n_placing = n_placing(a),
                               .stalled = a->watch.stalled,
                               .n_restarts = a->watch.n_restarts,
                               .one = 1,
                               .version = GS_VERSION};
    for (uint32_t i = 0; i < GS_ENGINE_PERSONS; i++)
        out->person_s[i == 0        ? 0
                      : m->place[i] ? m->place[i]
                                    : GS_METRICS_OTHERS] += (double)s->person_ns[i] / 1e9;
    gs_tuning_metrics(a, out);
    take_memory(a, out);
}

static bool wants_open_metrics(const gs_http_request *rq) {
    const char *accept = gs_http_header(rq, "accept");
    return accept && strcasestr(accept, "application/openmetrics-text") != NULL;
}

void gs_api_get_metrics(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_engine_stats stats[GS_ENGINE_LANES], all;
    gs_metrics_source sources[GS_ENGINE_LANES];
    gs_metrics_server server;
    gs_metrics_worker workers[GS_API_WORKERS];
    gs_api_error none;
    gs_buf out = {0};
    gs_engine_get_stats(a->engine, &all);
    take_server(a, &all, &server);
    const bool named = !a->metrics->persons_off && gs_api_check_admin(a, rq, &none) == 0;
    gs_metrics_page page = {.sources = sources,
                            .n_sources = gs_api_take_metrics(a, stats, sources),
                            .server = &server,
                            .workers = workers,
                            .n_workers = gs_workers_metrics(a, workers),
                            .person_name = named ? person_name : NULL,
                            .person_arg = a,
                            .open_metrics = wants_open_metrics(rq)};
    gs_metrics_write(&page, &out);
    gs_api_reply(rq, 200, gs_metrics_type(page.open_metrics), &out);
}
