/*
 * Modes: how prompts and streams share the device.
 *
 *     mixed      both in one step: the weights are read once for both (Sarathi-Serve, OSDI'24)
 *     exclusive  steps of prompts and steps of tokens take turns
 *     split      two steps at once, each on a part of the cores: prompts on one, tokens on the
 *                other, over the same weights and KV pool (DistServe's idea, OSDI'24, in one box)
 *     auto       whichever of these the fitted step times say does most
 *
 * With work of one kind alone all of them are the same: one step on all cores. Pure.
 */
#ifndef GS_SCHED_MODE_H
#define GS_SCHED_MODE_H

#include <stdint.h>

/* In the order of the option sched.mode. */
#define GS_MODE_MAP(X)                                                                             \
    X(AUTO, "auto")                                                                                \
    X(MIXED, "mixed")                                                                              \
    X(EXCLUSIVE, "exclusive")                                                                      \
    X(SPLIT, "split")

typedef enum gs_mode {
#define X(name, text) GS_MODE_##name,
    GS_MODE_MAP(X)
#undef X
        GS_MODE_COUNT
} gs_mode;

#define GS_MODE_WHY_MAP(X)                                                                         \
    X(START, "start", "prompts have not met streams yet")                                          \
    X(SET, "set", "sched.mode names it")                                                           \
    X(BEST, "best", "by the fitted step times it does most of this load")                          \
    X(CLOSE, "close", "no other mode would do clearly more of this load")                          \
    X(MODELS, "models", "split was asked for, but several models share the cores")                 \
    X(DEVICE, "device", "split was asked for, but this backend can't run two steps at once")

typedef enum gs_mode_why {
#define X(name, text, sentence) GS_MODE_WHY_##name,
    GS_MODE_WHY_MAP(X)
#undef X
        GS_MODE_WHY_COUNT
} gs_mode_why;

typedef struct gs_mode_view {
    gs_mode set; /* what was asked for */
    gs_mode now; /* never AUTO */
    gs_mode_why why;
    int64_t since_ns; /* when it became this one; 0: from the start */
    uint64_t n_changes;
    /* Tokens of answers a second, with their part of prompts, of the latest load that was weighed,
     * by mode. 0: not weighed, or not possible. */
    double rate[GS_MODE_COUNT];
    int32_t prompt_threads, token_threads; /* of split, as for that load; 0: not possible */
} gs_mode_view;

const char *gs_mode_name(gs_mode m);             /* "split"; static */
int gs_mode_parse(const char *s);                /* a gs_mode, or -1 */
const char *gs_mode_why_name(gs_mode_why w);     /* "best"; static */
const char *gs_mode_why_sentence(gs_mode_why w); /* static */

#endif
