/* The story of one sequence as JSON: why it waited, what it took, whom it shared steps with. */
#ifndef GS_API_STORY_H
#define GS_API_STORY_H

#include "base/jsonw.h"
#include "sched/explain.h"

/* The members of an object that w has open. */
void gs_story_members(gs_jsonw *w, int32_t index, const gs_explain *x, int64_t now_ns);
/* One object; id may be NULL. model: the name it answers to. now_ns: what living sequences' times
 * count to. */
void gs_story_write(gs_jsonw *w, const char *id, const char *model, int32_t index,
                    const gs_explain *x, int64_t now_ns);

#endif
