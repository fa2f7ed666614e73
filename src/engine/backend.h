/*
 * Compute backend: runs one planned step and samples. One of the four vtables.
 *
 * Implementations: engine/native.c (CPU kernels over a GGUF model) and engine/fake.c
 * (deterministic tokens with programmable latency and faults, for scheduling and HTTP tests).
 * All calls come from the engine thread, but for those to a sibling, which come from another one;
 * destroy after the last forward has returned.
 */
#ifndef GS_ENGINE_BACKEND_H
#define GS_ENGINE_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/embed.h"
#include "engine/guide.h"
#include "engine/sampler.h"
#include "kv/kv.h"

typedef struct gs_batch_item {
    int32_t slot;
    int32_t pos;
    int32_t n_tokens;
    const int32_t *tokens;  /* [n_tokens] */
    const uint32_t *blocks; /* block table covering pos + n_tokens positions */
    int32_t n_blocks;
    /* Sampling: the last position's token, drawn from its logits. NULL: none wanted. */
    const gs_sampler *sampler; /* parameters; read-only during the step */
    gs_guide *guide;           /* says which tokens may come (gs_guide_limit); NULL: all */
    const int32_t *history;    /* prompt + output so far, [n_history]: what penalties look at */
    int32_t n_history;
    int32_t n_prompt;  /* history[0..n_prompt) is the prompt */
    gs_sample *sample; /* result; sample->err says that only this sequence failed */
    /* Raw logits of the last n_logits positions, [n_logits][n_vocab]; NULL: none wanted. */
    float *logits;
    int32_t n_logits;
    /* The sequence's vector, [info.n_embd]: the step's hidden states are taken into it as
     * gs_embed_add does; RANK: the score, with the prompt's last token. NULL: none wanted. */
    float *embedding;
} gs_batch_item;

typedef struct gs_batch {
    int32_t n_items;
    int32_t n_tokens;
    gs_batch_item *items;
    const gs_kv_copy_op *copies; /* done first */
    int32_t n_copies;
    int max_threads; /* of the compute threads, so many at most; 0: all. resume: as at its start */
    /* Asked between layers where it is not NULL, on the engine thread; true: give way. Only for a
     * backend that can resume. */
    bool (*should_yield)(void *arg);
    void *yield_arg;
} gs_batch;

/* How many of n threads compute the batch. */
static inline int gs_batch_threads(const gs_batch *b, int n) {
    return b->max_threads > 0 && b->max_threads < n ? b->max_threads : n;
}

/* Whether the batch wants to give way now. */
static inline bool gs_batch_yields(const gs_batch *b) {
    return b->should_yield && b->should_yield(b->yield_arg);
}

/* forward or resume gave way between two layers: no item has a result yet. */
#define GS_BACKEND_SUSPENDED 1

typedef struct gs_backend_info {
    const char *name; /* "native", "fake"; static */
    int32_t n_vocab;
    int32_t max_context; /* positions one sequence may have */
    int32_t max_batch_tokens;
    int32_t max_seqs;
    uint32_t n_kv_blocks;
    int32_t block_tokens;
    size_t kv_bytes;
    size_t block_bytes; /* of one KV block, as read_block gives it; 0: it has no read_block */
    int32_t n_layers;   /* a step can give way between them */
    int n_threads;      /* compute threads of a step; 0: it has none of its own */
    int32_t n_embd;     /* floats of a sequence's vector; RANK: 1 */
    gs_pooling pooling; /* NONE: makes no vectors */
    /* An encoder: each token looks at the whole prompt, so a prompt is computed in one step, and
     * nothing is generated. Its KV blocks are only an account of the step's room. */
    bool whole_prompts;
} gs_backend_info;

typedef struct gs_backend gs_backend;

typedef struct gs_backend_ops {
    const char *name;
    void (*info)(const gs_backend *b, gs_backend_info *out);
    /*
     * One iteration. 0, or a GS_ERR_ code: then no item has a result and the KV pages of the
     * step's positions are undefined. Tokens and positions are already validated. Without items
     * only the copies are done.
     * GS_BACKEND_SUSPENDED, when batch->should_yield said so: what the step has computed is kept
     * until resume goes on with it, or until another step is suspended in its place.
     */
    int (*forward)(gs_backend *b, gs_batch *batch);
    /* Goes on with the suspended step. batch holds the same items in the same order, their
     * pointers renewed, and no copies; other steps may have run in between. As forward. NULL: this
     * backend never gives way. */
    int (*resume)(gs_backend *b, gs_batch *batch);
    /*
     * A step that does not come back (gs_engine_revive). progress: a number that changes as long as
     * a step goes on; any thread. park: the thread that called forward stands still, the step's
     * others are to do the same, for good; false: they don't. restart: on the thread that takes its
     * place, new ones take theirs; 0, or a code. What the step had begun is as after a step that
     * failed. park and restart may be NULL: the backend has no threads of its own.
     */
    uint64_t (*progress)(const gs_backend *b);
    bool (*park)(gs_backend *b);
    int (*restart)(gs_backend *b);
    void (*destroy)(gs_backend *b);
    /*
     * A second backend over the weights and the KV memory of this one, for steps of other
     * sequences that run at the same time as its own: a step on n threads takes the last n, one of
     * this one the first. It is made, used and destroyed on one thread that is not this one's, and
     * is gone before this one. Without suspension. NULL: this backend has no such thing.
     */
    int (*sibling)(gs_backend *b, gs_backend **out);
    /*
     * The keys and values of a whole KV block, info.block_bytes, to elsewhere and back; between two
     * steps. What comes back may be of an earlier process with the same model and page layout.
     * NULL, both: this backend has none that are worth keeping.
     */
    void (*read_block)(const gs_backend *b, uint32_t block, uint8_t *out);
    void (*write_block)(gs_backend *b, uint32_t block, const uint8_t *in);
} gs_backend_ops;

struct gs_backend { /* first member of each implementation */
    const gs_backend_ops *ops;
};

/* ---- fake ---- */
/* A scripted answer: a prompt in which `after` ends later than that of any other rule is answered
 * with the bytes of `say` (byte b is token b), then the end token. */
typedef struct gs_fake_rule {
    const char *after, *say;
    size_t n_after, n_say;
} gs_fake_rule;

typedef struct gs_fake_config {
    int32_t n_vocab, max_context, max_batch_tokens, max_seqs, block_tokens;
    uint32_t n_kv_blocks;
    int64_t step_ns;               /* fixed latency of a step */
    int64_t decode_token_ns;       /* per decode row */
    int64_t prefill_token_ns;      /* per prompt token */
    int32_t n_layers;              /* a step can give way between them; 0 counts as 1 */
    int n_threads;                 /* that it says it has; with several it has a sibling */
    int32_t n_embd;                /* of its vectors, mean pooling; 0: makes none */
    bool rank;                     /* one made-up score in place of a vector; n_embd > 0 */
    bool whole_prompts;            /* as an encoder: asserts that no prompt is cut */
    int32_t first_token, n_tokens; /* generated ids lie in [first, first + n) */
    int32_t eos_token;             /* -1: never generated */
    int32_t eos_after;             /* generated at this output index; 0: never */
    uint64_t fail_step;            /* this step (from 1) fails as a whole; 0: never */
    uint64_t fail_item_step;       /* in this step the first item alone fails; 0: never */
    const gs_fake_rule *rules;     /* borrowed, [n_rules]; none that fits: the hash decides */
    int32_t n_rules;
    uint64_t hang_step;   /* this step never returns until gs_fake_release(); 0: never */
    uint64_t hang_every;  /* and from then on every so many again; 0: once */
    uint64_t hang_beside; /* this one of the steps of its sibling alone does neither; 0: none */
    uint64_t crash_step;  /* in this step the process is aborted; 0: never */
} gs_fake_config;

/* Deterministic: the next token is a hash of the whole history read back from its own KV pages,
 * so wrong block tables, wrong copies or lost writes change the text. */
int gs_fake_create(const gs_fake_config *cfg, gs_backend **out);
/* Lets a hanging step go on with an error (shutdown, tests). Any thread. */
void gs_fake_release(gs_backend *b);

#endif
