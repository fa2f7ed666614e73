/*
 * Private to api/: an answer as a list of blocks (text, reasoning, a call) in the order in which
 * they came, for the dialects that stream it so (Anthropic's messages, OpenAI's responses).
 */
#ifndef GS_API_BLOCKS_H
#define GS_API_BLOCKS_H

#include "api/request.h"

/* What a dialect says of a block of c; all of it is in the block and in c. */
typedef struct gs_block_events {
    void (*open)(gs_req *r, gs_choice *c, const gs_block *b, int32_t index);
    void (*more)(gs_req *r, gs_choice *c, const gs_block *b, int32_t index, const gs_part *part);
    void (*close)(gs_req *r, gs_choice *c, const gs_block *b, int32_t index);
} gs_block_events;

/* A part of a stream. Without memory the stream is cut. */
void gs_blocks_part(gs_req *r, gs_choice *c, const gs_part *part, const gs_block_events *ev);
/* The stream's end: closes what is open. */
void gs_blocks_end(gs_req *r, gs_choice *c, const gs_block_events *ev);
/* An answer that was not streamed: reasoning, text, calls. 0 or GS_ERR_NOMEM. */
int gs_blocks_of_whole(gs_req *r, const gs_choice *c);
/* The block's text; for calls the arguments. */
gs_str gs_block_text(const gs_choice *c, const gs_block *b);

#endif
