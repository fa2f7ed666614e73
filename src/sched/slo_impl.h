/* Inside of the "slo" policy: policy_slo.c builds the step, slo_fair.c keeps persons' accounts,
 * slo_room.c finds seats and KV blocks, slo_admit.c judges newcomers, slo_mode.c chooses the mode.
 * Private to sched/. */
#ifndef GS_SCHED_SLO_IMPL_H
#define GS_SCHED_SLO_IMPL_H

#include "sched/sched_impl.h"

#define SLO_BUCKETS   10 /* seconds over which background's floor is counted */
#define SLO_BUCKET_NS 1000000000LL
/* Two persons within this time: a household at work, not one user. */
#define SLO_COMPANY_NS (600 * SLO_BUCKET_NS)

/* The part of a stream's slack that a step is planned to fill: predictions are off by 10 to 30 %,
 * and the token still has to leave the house. */
#define SLO_HORIZON_PART 0.70

typedef struct slo_person {
    gs_person_config cfg; /* with own; else gs_slo_config.person counts */
    bool own;
    double counter_ns; /* weighted device time, lifted on return (VTC) */
    int64_t charged_ns;
    double output_tokens;  /* moving average of answers' length */
    int32_t n_live;        /* waiting and running */
    int32_t n_paused;      /* of them */
    int32_t n_running;     /* while a step is built */
    int32_t n_wanted;      /* interactive streams and waiting ones; while building */
    uint64_t passed_over;  /* step in which no more of this person is asked */
    int32_t n_looked;      /* waiting texts that may be sorted by length; while building */
    uint64_t last_ordinal; /* latest of them that is in the step; while building */
    int64_t day_began_ns, day_ns;
} slo_person;

/* An item's part in its step's time; kept beside the plan, also while that is suspended. */
typedef struct slo_charge {
    double weight; /* what the step would save without it, and its part of what all share */
    double useful; /* 0..1: not recomputed, not a public prefix */
    bool background;
} slo_charge;

typedef struct slo_class {
    double soon;   /* share of arrivals that follow another one soon, moving average */
    double gap_ns; /* between those; 0: none yet */
    int64_t last_arrival_ns;
    int64_t window_ns; /* moved by misses within the class's bounds */
} slo_class;

/* What all schedulers of a device share. The fields of slo_person that are for while a step is
 * built belong to whoever builds one. */
struct gs_accounts {
    gs_sched *members;              /* list, by next_member */
    double last_counter_ns;         /* of the person that left last */
    int64_t background_since_ns;    /* it has had work since; 0: has none */
    int64_t bucket_ns[SLO_BUCKETS]; /* background's device time by second */
    int64_t bucket;                 /* number of the newest second */
    int64_t rest_until_ns;          /* background has had its share until then */
    bool someone_came;
    uint32_t last_person; /* who came last */
    int64_t switched_ns;  /* when somebody else came than before; 0: never */
    uint32_t n_persons;
    slo_person *persons; /* [n_persons] */
};

typedef struct slo_state {
    slo_class classes[GS_CLASS_COUNT];
    gs_accounts *accounts;
    uint32_t n_persons;  /* of the accounts */
    slo_person *persons; /* [n_persons] likewise */
    slo_charge *charges; /* [max_seqs] of the plan */
    slo_charge *parked;  /* [max_seqs] of the suspended step, or the one beside */
    /* slo_mode.c */
    int64_t weigh_ns;        /* when the modes are weighed again */
    gs_mode better;          /* than the one that runs, */
    int64_t better_since_ns; /* since then; 0: none is */
    bool prompts_last;       /* the last step held prompts */
} slo_state;

#define SLO_HEAVY 4 /* times the requests of the person with fewest */

/* One step while it is built. */
typedef struct slo_step {
    gs_sched *s;
    slo_state *p;
    int64_t now_ns;
    gs_work work;            /* what it may hold */
    gs_cost_step x;          /* what is planned so far */
    double token_ns;         /* price of a prompt token in large chunks */
    double streams_ns;       /* T of all interactive streams alone */
    double horizon_ns;       /* the step ends by then; INFINITY without streams */
    double limit_ns;         /* without streams: the classes' widest bound */
    bool streams;            /* somebody reads or listens */
    bool first_waits;        /* somebody waits for a first token */
    int32_t allowed;         /* streams and waiting ones above which a person is a heavy one */
    int32_t n_active;        /* persons with interactive work */
    double light_counter_ns; /* of the one with fewest requests */
    double light_ns;         /* T of the streams of persons who are not heavy; 0: none */
    uint32_t held;           /* classes whose newcomers are held: bit per class */
    uint32_t seats_full;     /* classes without a free seat */
    gs_cost_step streams_x;  /* all interactive streams alone */
    int64_t shown_ns;        /* the newest token of one of them; 0: none */
    int64_t until_ns;        /* background alone ends or gives way by then */
    double room_ns;          /* exclusive: a step of prompts may take so long */
    bool sliced;             /* background prompts have slices between the streams' steps */
    int64_t owed_ns;         /* to background */
    bool background_held;    /* by its schedule, or it rests */
    bool kv_blocked;         /* a newcomer waits for blocks: worse ones don't pass it */
    gs_class kv_blocked_by;
} slo_step;

static inline slo_state *slo_of(const gs_sched *s) {
    return gs_sched_policy_state(s);
}
static inline bool slo_rule(const gs_sched *s, gs_rule rule) {
    return (s->slo.rules_off & (uint32_t)rule) == 0;
}
/* With the class rule off there is only one class. */
static inline bool slo_interactive(const gs_sched *s, const gs_sched_seq *q) {
    return q->d.cls != GS_CLASS_BACKGROUND || !slo_rule(s, GS_RULE_CLASSES);
}
static inline slo_person *slo_person_of(const gs_sched *s, const gs_sched_seq *q) {
    slo_state *p = slo_of(s);
    return &p->persons[q->d.person < p->n_persons ? q->d.person : 0];
}
static inline const gs_person_config *slo_config_of(const gs_sched *s, const slo_person *u) {
    return u->own ? &u->cfg : &s->slo.person;
}
/* Wants device time now or soon. */
static inline bool slo_is_active(const slo_person *u) {
    return u->n_live > u->n_paused;
}
/* Whether q is paused, or background whose hour has not come. */
static inline bool slo_is_held(const slo_step *t, const gs_sched_seq *q) {
    return q->paused ||
           (!slo_interactive(t->s, q) &&
            (t->background_held || slo_config_of(t->s, slo_person_of(t->s, q))->background_paused));
}
static inline double slo_max(double a, double b) {
    return a > b ? a : b;
}
static inline double slo_min(double a, double b) {
    return a < b ? a : b;
}

/* How long a step of that many ns may become when background joins it. */
static inline double slo_background_bound(const gs_sched *s, double own_ns) {
    return slo_max(s->slo.background_stretch * own_ns, (double)s->slo.background_gap_ns);
}

/* ---- slo_fair.c ---- */
size_t slo_accounts_bytes(uint32_t max_persons);
void slo_accounts_place(void *at, uint32_t max_persons); /* at zeroed memory of that many bytes */
void slo_join(gs_sched *s, gs_accounts *a);
void slo_leave(gs_sched *s);
/* Clears what is counted while a step is built, and counts who runs, in all members. */
void slo_begin(gs_sched *s);
double slo_expected_output(const gs_sched *s, const gs_sched_seq *q); /* tokens still to come */
/* What the person's counter is once a request of theirs comes. */
double slo_counter_on_return(const gs_sched *s, uint32_t person);
void slo_person_joins(gs_sched *s, gs_sched_seq *q);
void slo_person_pauses(gs_sched *s, gs_sched_seq *q); /* or no longer */
void slo_person_leaves(gs_sched *s, const gs_sched_seq *q);
void slo_weigh_items(gs_sched *s); /* charges of the plan that is ready */
void slo_charge_step(gs_sched *s, int64_t elapsed_ns, int64_t now_ns);
int64_t slo_background_owed(gs_sched *s, int64_t now_ns);
int slo_set_person(gs_sched *s, uint32_t person, const gs_person_config *cfg);
int64_t slo_charged_ns(const gs_sched *s, uint32_t person);
int slo_charge_person(gs_sched *s, uint32_t person, int64_t ns, int64_t now_ns);
void slo_person_config(const gs_sched *s, uint32_t person, gs_person_config *out);
int slo_get_person(const gs_sched *s, uint32_t person, gs_person_stats *out);
int slo_check(const gs_sched *s, char *err, size_t errlen);

/* ---- policy_slo.c ---- */
/* When a class's next token is due after the last: its target, or what this load allows. */
int64_t slo_tpot(const slo_step *t, gs_class c);
/* How much of a stream's slack a step may be planned to take. */
double slo_reach(const slo_step *t, gs_class c, int64_t slack_ns);
/* Time until a step of all streams has to begin; INFINITY without streams. */
double slo_room_ns(const slo_step *t);

/* ---- slo_mode.c ---- */
/* Chooses the mode, and what this step may hold. After look and slo_windows. */
gs_work slo_find_work(slo_step *t);

/* ---- slo_room.c ---- */
/* Plans up to n tokens of a running sequence, taking blocks from victims. As core_extend. */
int slo_extend(slo_step *t, gs_sched_seq *q, int32_t n);
/* Starts a waiting one with up to n tokens. A token count, or why not (-gs_wait). */
int slo_start(slo_step *t, gs_sched_seq *q, int32_t n);

/* Runs as many sequences as it may, at this model and others. */
bool slo_person_full(const gs_sched *s, const gs_sched_seq *q);

/* ---- slo_admit.c ---- */
gs_class slo_classify(const gs_sched *s, const gs_seq_desc *d, int32_t n_cached);
int slo_admit(gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *out);
/* When its first token is due. */
int64_t slo_first_due(const gs_sched *s, const gs_sched_seq *q);
/* Which classes' newcomers are better held for company, and until when. */
uint32_t slo_windows(slo_step *t, int64_t *until_ns);
void slo_window_arrival(gs_sched *s, gs_class c, int64_t now_ns);
/* Counts a first token, or an end, against its target and moves the class's window. */
void slo_judge(gs_sched *s, gs_class c, bool missed);

#endif
