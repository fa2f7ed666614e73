/*
 * Stop strings across token borders. Feed text as it is detokenised; what can't be the beginning
 * of a stop string any more is released, the rest is held back until the next token decides.
 */
#ifndef GS_API_STOP_H
#define GS_API_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define GS_MAX_STOPS      16
#define GS_MAX_STOP_BYTES 256

typedef struct gs_stop_set {
    int n;
    char text[GS_MAX_STOPS][GS_MAX_STOP_BYTES + 1];
    size_t len[GS_MAX_STOPS];
} gs_stop_set;

typedef struct gs_stop_matcher {
    const gs_stop_set *set;
    gs_buf held;  /* text not yet released */
    bool matched; /* a stop string was found: nothing more is released, ever */
    int which;    /* of the set; with matched */
} gs_stop_matcher;

void gs_stop_init(gs_stop_matcher *m, const gs_stop_set *set);
/* Appends to out what may be shown. On a match, text before the stop string is released and the
 * string itself and everything after it dropped. 0 or GS_ERR_NOMEM. */
int gs_stop_feed(gs_stop_matcher *m, const char *text, size_t n, gs_buf *out);
/* The end: releases what was held. */
int gs_stop_finish(gs_stop_matcher *m, gs_buf *out);
void gs_stop_deinit(gs_stop_matcher *m);

#endif
