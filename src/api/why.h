/* Why an answer took as long as it did until its first token: one sentence, for people. */
#ifndef GS_API_WHY_H
#define GS_API_WHY_H

#include <stddef.h>
#include <stdint.h>

#include "sched/explain.h"

#define GS_WHY_BYTES 256

/* Names the largest cause of the time to the first token (or to the end, where there is none). */
void gs_why(const gs_explain *x, int64_t now_ns, char out[GS_WHY_BYTES]);

#endif
