/* Classes of work, best first, and what each may expect. One table gives the names. */
#ifndef GS_SCHED_CLASS_H
#define GS_SCHED_CLASS_H

#include <stdint.h>

#define GS_CLASS_MAP(X)                                                                            \
    X(VOICE, "voice")                                                                              \
    X(CHAT, "chat")                                                                                \
    X(COMPLETION, "completion")                                                                    \
    X(DOCUMENT, "document")                                                                        \
    X(UTILITY, "utility")                                                                          \
    X(BACKGROUND, "background")

typedef enum gs_class {
#define X(name, text) GS_CLASS_##name,
    GS_CLASS_MAP(X)
#undef X
        GS_CLASS_COUNT
} gs_class;

/* All but background are interactive. Times in ns; 0 means "none" or "no limit of its own". */
typedef struct gs_class_config {
    int64_t ttft_ns;      /* first-token target (95 of 100) */
    int64_t tpot_ns;      /* target for each further token */
    int64_t complete_ns;  /* whole answer; then the first token is due so that the rest fits */
    int64_t hard_ttft_ns; /* a later first token is of no use: refused at admission */
    int64_t window_min_ns, window_max_ns; /* how long a newcomer may be held for company */
    int64_t quantum_ns;                   /* longest step of this class when nobody streams */
    int64_t consume_ns;  /* a listener or reader takes this long per token; what a stream is ahead
                            of that is slack for others. 0: each token is due by tpot_ns */
    double share;        /* most of a step while another interactive class waits, (0, 1] */
    double min_share;    /* least of a step once relegated */
    double kv_share;     /* most of the KV pool, (0, 1] */
    double kv_reserve;   /* of the pool, kept free for this class */
    int32_t seats;       /* running sequences at most; 0: no limit */
    int32_t seats_kept;  /* running sequences that no other class may take the place of */
    int32_t max_waiting; /* queue bound; 0: only the common one */
} gs_class_config;

const char *gs_class_name(gs_class c); /* "voice"; static */
int gs_class_parse(const char *s);     /* a gs_class, or -1 */
/* The table that docs/scheduling.md describes. */
void gs_class_defaults(gs_class_config out[GS_CLASS_COUNT]);
/* Bounds of each field. 0, or GS_ERR_INVALID with the field's name in *field (may be NULL). */
int gs_class_check(const gs_class_config *c, const char **field);

#endif
