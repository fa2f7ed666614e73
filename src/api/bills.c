#include "api/bills.h"

#include "api/api_impl.h"
#include "base/err.h"
#include "base/sys.h"

struct gs_bills {
    gs_query q;
    gs_engine_view view;
    gs_person_view persons[GS_API_MAX_PERSONS];
    bool asking;
};

gs_bills *gs_bills_create(void) {
    return gs_calloc(1, sizeof(gs_bills));
}

void gs_bills_free(gs_bills *b) {
    gs_free(b);
}

static void ask(gs_api *a, gs_query *q) {
    a->n_live++;
    gs_engine_ask(a->engine, q);
}

void gs_bills_charge(void *arg, uint32_t person, int64_t ns) {
    gs_api *a = arg;
    gs_query *q = gs_calloc(1, sizeof(*q));
    if (!q)
        return;
    *q = (gs_query){.kind = GS_QUERY_CHARGE, .person = person, .charge_ns = ns};
    ask(a, q);
}

static bool somebody_waits(const gs_api *a) {
    int32_t n[GS_CLASS_COUNT];
    gs_place_count_waiting(gs_workers_place(a->workers), n);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (n[c] > 0)
            return true;
    return false;
}

void gs_bills_refresh(gs_api *a) {
    gs_bills *b = a->bills;
    if (b->asking || a->draining || !a->engine ||
        gs_engine_get_state(a->engine) != GS_ENGINE_READY || !somebody_waits(a))
        return;
    b->asking = true;
    b->view = (gs_engine_view){.persons = b->persons, .n_persons = GS_API_MAX_PERSONS};
    b->q = (gs_query){.kind = GS_QUERY_STATE, .owner = b, .view = &b->view};
    ask(a, &b->q);
}

bool gs_bills_answered(gs_api *a, gs_query *q) {
    gs_bills *b = a->bills;
    if (q->kind == GS_QUERY_CHARGE) {
        a->n_live--;
        gs_free(q);
        return true;
    }
    if (q != &b->q)
        return false;
    a->n_live--;
    b->asking = false;
    for (uint32_t i = 0; q->code == GS_OK && i < GS_API_MAX_PERSONS; i++)
        gs_workers_set_account(a->workers, i, b->persons[i].stats.counter_ns,
                               b->persons[i].config.weight);
    return true;
}
