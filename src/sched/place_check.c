/* Names, and the invariants of placement. */
#include <string.h>

#include "base/err.h"
#include "sched/place_impl.h"

static const char *const state_texts[GS_WORKER_STATE_COUNT][2] = {
#define X(name, text, sentence) {text, sentence},
    GS_WORKER_STATE_MAP(X)
#undef X
};

static const char *const why_texts[GS_PLACE_WHY_COUNT][2] = {
#define X(name, text, sentence) {text, sentence},
    GS_PLACE_WHY_MAP(X)
#undef X
};

static const char *const fallback_names[GS_FALLBACK_COUNT] = {
#define X(name, text) text,
    GS_FALLBACK_MAP(X)
#undef X
};

const char *gs_worker_state_name(gs_worker_state s) {
    return (int)s >= 0 && s < GS_WORKER_STATE_COUNT ? state_texts[s][0] : "?";
}

const char *gs_worker_state_sentence(gs_worker_state s) {
    return (int)s >= 0 && s < GS_WORKER_STATE_COUNT ? state_texts[s][1] : "?";
}

const char *gs_place_why_name(gs_place_why w) {
    return (int)w >= 0 && w < GS_PLACE_WHY_COUNT ? why_texts[w][0] : "?";
}

const char *gs_place_why_sentence(gs_place_why w) {
    return (int)w >= 0 && w < GS_PLACE_WHY_COUNT ? why_texts[w][1] : "?";
}

const char *gs_fallback_name(gs_fallback f) {
    return (int)f >= 0 && f < GS_FALLBACK_COUNT ? fallback_names[f] : "?";
}

int gs_fallback_parse(const char *s) {
    for (int i = 0; s && i < GS_FALLBACK_COUNT; i++)
        if (strcmp(s, fallback_names[i]) == 0)
            return i;
    return -1;
}

/* ---- invariants -------------------------------------------------------------------------------*/

/* What is counted at a worker is what is on its list. */
static int check_worker(const gs_place *p, int32_t at, int32_t *n_found, char *err, size_t errlen) {
    const place_worker *w = &p->workers[at];
    place_load load[2] = {0};
    int32_t n = 0, n_answering = 0;
    for (int32_t i = w->placed; i >= 0 && n <= p->cfg.max_requests; i = p->requests[i].next) {
        const place_request *r = &p->requests[i];
        place_load *l = &load[place_tier(w, r->d.cls)];
        if (!r->living || r->worker != at || r->attempt < 1)
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "request %llu is on a wrong worker's list",
                           (unsigned long long)r->d.id);
        n++;
        n_answering += r->first_ns > 0;
        l->n_seqs += place_seqs(r);
        l->n_answering += r->first_ns > 0 ? place_seqs(r) : 0;
        l->n_tokens += r->d.n_prompt + (int64_t)r->d.max_output * place_seqs(r);
        l->n_prompt += r->n_uncached;
    }
    *n_found += n;
    if (n != w->n_placed || n_answering != w->n_answering)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "worker %s has %d requests and counts %d",
                       w->w.name, n, w->n_placed);
    for (int i = 0; i < 2; i++)
        if (load[i].n_seqs != w->load[i].n_seqs || load[i].n_answering != w->load[i].n_answering ||
            load[i].n_tokens != w->load[i].n_tokens || load[i].n_prompt != w->load[i].n_prompt)
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "the load of worker %s is miscounted",
                           w->w.name);
    return GS_OK;
}

static int check_waiting(const gs_place *p, int c, int32_t *n_found, char *err, size_t errlen) {
    int32_t n = 0, before = PLACE_NONE;
    for (int32_t i = p->waiting[c]; i >= 0 && n <= p->cfg.max_requests; i = p->requests[i].next) {
        const place_request *r = &p->requests[i];
        if (!r->living || r->worker != PLACE_NONE || (int)r->d.cls != c || r->prev != before)
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "request %llu is on a wrong queue",
                           (unsigned long long)r->d.id);
        if (before >= 0 && p->requests[before].d.arrival_ns > r->d.arrival_ns)
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "a queue is not in the order of arrival");
        before = i;
        n++;
    }
    *n_found += n;
    if (n != p->n_waiting[c] || before != p->last_waiting[c])
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "the queue of %s is miscounted",
                       gs_class_name((gs_class)c));
    return GS_OK;
}

/* Each living request is on one list, and no other is. */
int gs_place_check(const gs_place *p, char *err, size_t errlen) {
    int32_t n = 0, n_free = 0;
    double reserved = 0.0;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if (p->workers[i].living && check_worker(p, i, &n, err, errlen) != GS_OK)
            return GS_ERR_INTERNAL;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (check_waiting(p, c, &n, err, errlen) != GS_OK)
            return GS_ERR_INTERNAL;
    for (int32_t i = p->free_request; i >= 0 && n_free <= p->cfg.max_requests;
         i = p->requests[i].id_next)
        n_free++;
    if (n != p->n_living || n + n_free != p->cfg.max_requests)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "%d requests live, %d are on lists",
                       p->n_living, n);
    for (uint32_t i = 0; i < p->cfg.max_persons; i++)
        reserved += p->persons[i].reserved_ns;
    if (p->n_living == 0 && (reserved > 1.0 || reserved < -1.0))
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "persons owe for nothing");
    return GS_OK;
}
