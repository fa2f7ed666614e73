/*
 * Inside of placement. Private to sched/.
 *
 * Every living request is on exactly one list: its class's waiting ones, in the order of arrival,
 * or its worker's placed ones. Records are preallocated; lists link them by index.
 */
#ifndef GS_SCHED_PLACE_IMPL_H
#define GS_SCHED_PLACE_IMPL_H

#include "base/rng.h"
#include "sched/place.h"

#define PLACE_BLOCKS     128 /* hashes kept of one prompt: of a longer one each second, ... */
#define PLACE_WAYS       4
#define PLACE_SETS       1024 /* of block hashes remembered for one worker */
#define PLACE_TALKS      1024 /* conversations remembered */
#define PLACE_NONE       (-1)
#define PLACE_FIT_TOKENS 16 /* between two looks at an answer's speed */

typedef struct place_request {
    gs_place_desc d; /* blocks: NULL */
    bool living;
    uint64_t ordinal;   /* of submission */
    int32_t prev, next; /* of its list */
    int32_t id_next;    /* of its bucket, or of the free list */
    int32_t worker;     /* it is placed at; -1: waits */
    int32_t attempt;
    uint32_t may;    /* workers that may take it; as of may_at */
    uint64_t may_at; /* gs_place.version */
    uint32_t tried;  /* workers that have failed it */
    uint64_t file;   /* to be continued with this model file; 0: from the beginning */
    bool ever_failed;
    int32_t left;     /* worker of the attempt before; -1 */
    int32_t n_output; /* tokens that the client has */
    uint64_t *blocks; /* [PLACE_BLOCKS], its part of the placement's */
    int32_t n_blocks, block_tokens;
    bool waits;
    bool paused;           /* by itself; its class may be held, too */
    int64_t held_since_ns; /* by either; 0: it is not */
    int64_t held_ns;       /* before that */
    int64_t resumed_ns;    /* the latest end of it */
    int64_t lone_ns;       /* and since then no worker is there that it would go to; 0: one is */
    /* Of the attempt: */
    gs_place_why why;
    int32_t n_here;     /* tokens from this worker */
    int32_t n_load;     /* tokens counted in its tier */
    int32_t n_uncached; /* prompt tokens that it is to compute */
    double ahead;       /* prompt tokens it is to compute before and with it */
    int32_t n_before;   /* sequences that answered there when it came */
    double began_share; /* the worker's share_ns then */
    double reserved_ns; /* on the person's counter until it is charged */
    int64_t placed_ns, first_ns, last_ns;
    int64_t predicted_ttft_ns, predicted_ns;
    int32_t fit_tokens; /* since the latest look at its speed */
    int64_t fit_ns;
    double fit_seqs; /* the worker's seqs_ns then */
} place_request;

/* What is at a worker of one kind: all, or where it prioritises interactive and background apart.
 */
typedef struct place_load {
    int32_t n_seqs, n_answering; /* sequences */
    int64_t n_tokens;
    int64_t n_prompt; /* to be computed before first tokens */
} place_load;

typedef struct place_way {
    uint64_t key; /* 0: free */
    uint64_t used;
} place_way;

typedef struct place_counts {
    uint64_t n_dispatched, n_done, n_faults, n_moved, n_busy, n_probes;
    uint64_t n_by_class[GS_CLASS_COUNT];
    int64_t busy_ns, charged_ns;
} place_counts;

typedef struct place_worker {
    bool living;
    gs_place_worker w;
    gs_worker_cost cost[2];
    place_load load[2];
    int32_t placed; /* list */
    int32_t n_placed, n_answering;
    int32_t by_class[GS_CLASS_COUNT]; /* placed */
    gs_breaker breaker;
    bool draining, leaving;
    bool slow;
    bool must_probe; /* nothing goes there before a probe from after doubt_ns is answered */
    bool probing;    /* one is under way */
    bool dead;       /* what is placed there is to be aborted */
    bool in_hours;
    uint32_t open_classes;
    int64_t change_ns;     /* when in_hours or open_classes change */
    int64_t edge_ns;       /* when hours open or close */
    int64_t probed_ns;     /* when the latest probe went out */
    int64_t doubt_ns;      /* since when it must be probed */
    int64_t seen_ns;       /* sign of life */
    int64_t busy_since_ns; /* something is placed there since */
    int64_t hold_until_ns;
    int64_t powered_ns; /* the hook ran; 0: never */
    int64_t ended_ns;   /* an answer ended there */
    int64_t fitted_ns;  /* the cost was looked at */
    int32_t limit;      /* sequences it can run at once, <= max_seqs */
    int32_t n_at_limit; /* answers that ended while it was full, since limit changed */
    int64_t settled_ns; /* clocks below go to here */
    double share_ns;    /* time, divided by the sequences there */
    double seqs_ns[2];  /* of each kind: sequences there, times time */
    place_counts count;
    place_way (*ways)[PLACE_WAYS]; /* [PLACE_SETS] */
} place_worker;

typedef struct place_talk {
    uint64_t key; /* 0: free */
    int32_t worker, n_tokens;
} place_talk;

/* Both counters are of the same account, and the one that is further on is right: the scheduler
 * hears of charges a little later, this object does not hear of local work at all. */
typedef struct place_person {
    double told_ns; /* counter as the scheduler has it */
    double own_ns;  /* counter as of the latest charge by this object */
    double weight;  /* 0: 1 */
    double reserved_ns;
    int32_t n_living; /* requests */
} place_person;

struct gs_place {
    gs_place_config cfg;
    gs_class_config classes[GS_CLASS_COUNT];
    place_worker workers[GS_PLACE_WORKERS];
    place_way (*ways)[PLACE_WAYS]; /* of all workers */
    place_request *requests;       /* [max_requests] */
    uint64_t *blocks;              /* [max_requests][PLACE_BLOCKS] */
    bool stirred;                  /* something has happened that decisions depend on */
    int32_t free_request;
    int32_t *ids; /* [id_mask + 1] */
    uint64_t id_mask;
    int32_t waiting[GS_CLASS_COUNT], last_waiting[GS_CLASS_COUNT];
    int32_t n_waiting[GS_CLASS_COUNT];
    int32_t n_living;
    uint64_t last_ordinal;
    uint64_t version;      /* of the workers descriptions */
    uint32_t wanted;       /* workers that something that waits may go to; of the latest look */
    place_person *persons; /* [max_persons] */
    double left_ns;        /* counter of the person who left last */
    uint32_t held;         /* classes: 1 << gs_class each */
    place_talk *talks;     /* [PLACE_TALKS] */
    double output[GS_CLASS_COUNT]; /* moving average of answers' length */
    uint64_t clock;                /* of the memory of blocks */
    bool wall_known;
    int64_t wall_s, wall_at_ns;
    int64_t now_ns; /* of the latest call: time does not go back */
    int64_t wake_ns;
    gs_rng rng;
    uint64_t hash;
};

typedef struct place_choice {
    int32_t worker; /* -1: waits */
    gs_place_why why;
    int32_t n_cached;
    double ahead;
    double ttft_ns, total_ns;
    bool known; /* those come from observations */
    bool loads; /* the model is loaded first, which they count */
} place_choice;

static inline uint32_t place_bit(int32_t i) {
    return 1u << i;
}
static inline bool place_interactive(gs_class c) {
    return c != GS_CLASS_BACKGROUND;
}
/* Which load and cost of a worker count for a class. */
static inline int place_tier(const place_worker *w, gs_class c) {
    return w->w.prioritises && !place_interactive(c);
}
static inline int32_t place_seqs(const place_request *r) {
    return r->d.n_seqs > 1 ? r->d.n_seqs : 1;
}
static inline place_person *place_person_of(gs_place *p, const place_request *r) {
    return &p->persons[r->d.person < p->cfg.max_persons ? r->d.person : 0];
}
static inline double place_counter(const place_person *u) {
    return u->told_ns > u->own_ns ? u->told_ns : u->own_ns;
}
/* Something is to be looked at again then. */
static inline void place_due(gs_place *p, int64_t t_ns) {
    if (t_ns < p->wake_ns)
        p->wake_ns = t_ns;
}
/* Where the caller's clock was read before that of an earlier call, that one counts. */
static inline int64_t place_now(gs_place *p, int64_t now_ns) {
    if (now_ns > p->now_ns)
        p->now_ns = now_ns;
    return p->now_ns;
}
/* The same for what decisions depend on: they are taken anew. */
static inline int64_t place_stir(gs_place *p, int64_t now_ns) {
    p->stirred = true;
    return place_now(p, now_ns);
}

/* ---- place.c ---- */
place_request *place_find(const gs_place *p, uint64_t id);
/* What happens to a request whose attempt has failed. True: it waits again. */
bool place_failed(gs_place *p, place_request *r);
/* Takes the attempt off its worker; what it costs the person. */
int64_t place_take_off(gs_place *p, place_request *r, bool charge, int64_t now_ns);
void place_put(gs_place *p, place_request *r, const place_choice *c, int64_t now_ns);
void place_forget(gs_place *p, place_request *r); /* the record is free */

/* ---- place_worker.c ---- */
gs_worker_state place_state(const place_worker *w);
/* Is there, or may be within moments: what waits for it alone is not lost. */
bool place_is_there(const place_worker *w);
/* When something of that class may begin there at the earliest, as far as is known; in the past: it
 * may now, or a probe will tell within moments. GS_NEVER_NS: not before somebody has done something
 * about it. */
int64_t place_hope_ns(const place_worker *w, gs_class c);
void place_settle(place_worker *w, int64_t now_ns); /* its clocks */
void place_saw_life(place_worker *w, int64_t now_ns);
void place_saw_fault(gs_place *p, place_worker *w, int64_t now_ns);
/* Acts about workers: probes, hooks, dead ones. */
bool place_next_worker_act(gs_place *p, int64_t now_ns, gs_place_act *out);
void place_read_hours(gs_place *p, place_worker *w, int64_t now_ns);

/* ---- place_choose.c ---- */
/* Workers that may take it, whatever their state. */
uint32_t place_may(const gs_place *p, place_request *r);
/* Of them those that it waits for while nobody is there: by its rule, or all. */
uint32_t place_waits_for(const gs_place *p, place_request *r);
/* Whether any worker can ever hold it. */
int place_judge(const gs_place *p, const gs_place_desc *d);
/* The request that goes next, and where; PLACE_NONE: none. */
int32_t place_choose_next(gs_place *p, int64_t now_ns, place_choice *out);
void place_saw_first(gs_place *p, place_request *r, int64_t now_ns);
/* Its speed is looked at from now on. */
void place_fit_from(const gs_place *p, place_request *r, int64_t now_ns);
/* n tokens behind the first one */
void place_saw_tokens(gs_place *p, place_request *r, int32_t n, bool last, int64_t now_ns);
void place_saw_end(gs_place *p, place_request *r, int64_t now_ns); /* a whole answer */

/* ---- place_memory.c: who knows which beginnings ---- */
int32_t place_n_cached(const gs_place *p, int32_t worker, const place_request *r);
void place_remember(gs_place *p, int32_t worker, const place_request *r); /* its prompt */
void place_remember_talk(gs_place *p, const place_request *r);
void place_forget_worker(gs_place *p, int32_t worker);

#endif
