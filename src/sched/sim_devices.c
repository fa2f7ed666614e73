/*
 * Machines of a home, estimated: step times are the measured ceilings of their linear layers with
 * a third added for attention, sampling and barriers. What a part of the threads takes follows from
 * how many of them load the weights as fast as all. `gamasot sim --device FILE` takes the
 * calibration of a real one.
 */
#include <string.h>

#include "sched/sim.h"

typedef struct named_device {
    const char *name;
    gs_sim_device device;
} named_device;

#define MS(x) ((x)*1e6)
#define KNOTS(a, b, c, d, e, f, g, h, i, j)                                                        \
    { MS(a), MS(b), MS(c), MS(d), MS(e), MS(f), MS(g), MS(h), MS(i), MS(j) }

static const named_device devices[] = {
    /* 2 cores with AVX-512 VNNI, 28 GB/s; 135M parameters, 4 bits. */
    {"xeon2-135m",
     {.cost = {.knot_ns = KNOTS(2.6, 2.9, 3.8, 6.1, 10.2, 18.5, 36, 71, 140, 280),
               .decode_ctx_ns = 900,
               .prefill_ns = 150,
               .logit_ns = 3e5,
               .sample_ns = 5e4,
               .fixed_ns = 1e5,
               .few = {0.85, 1.0},
               .beside = {0.25, 0.1}},
      .noise = 0.05,
      .n_layers = 30,
      .n_threads = 2,
      .n_blocks = 4096,
      .block_tokens = 32,
      .max_seqs = 32,
      .max_batch_tokens = 512,
      .prefill_chunk = 512,
      .max_context = 32768}},
    /* The same with 1.5B parameters. */
    {"xeon2-1.5b",
     {.cost = {.knot_ns = KNOTS(48, 50, 57, 60, 95, 160, 310, 600, 1190, 2370),
               .decode_ctx_ns = 1000,
               .prefill_ns = 400,
               .logit_ns = 3e6,
               .sample_ns = 1e5,
               .fixed_ns = 2e5,
               .few = {0.8, 1.0},
               .beside = {0.35, 0.1}},
      .noise = 0.05,
      .n_layers = 28,
      .n_threads = 2,
      .n_blocks = 2048,
      .block_tokens = 32,
      .max_seqs = 32,
      .max_batch_tokens = 512,
      .prefill_chunk = 512,
      .max_context = 32768}},
    /* 4 small cores with AVX2, one memory channel; 135M parameters. */
    {"n100-135m",
     {.cost = {.knot_ns = KNOTS(4.5, 5.6, 8.8, 16, 31, 60, 119, 237, 472, 942),
               .decode_ctx_ns = 1500,
               .prefill_ns = 500,
               .logit_ns = 8e5,
               .sample_ns = 1e5,
               .fixed_ns = 2e5,
               .few = {0.2, 1.0},
               .beside = {0.4, 0.15}},
      .noise = 0.08,
      .n_layers = 30,
      .n_threads = 4,
      .n_blocks = 2048,
      .block_tokens = 32,
      .max_seqs = 16,
      .max_batch_tokens = 512,
      .prefill_chunk = 512,
      .max_context = 32768}},
    /* 16 cores, two memory channels; 1.5B parameters. */
    {"desktop16-1.5b",
     {.cost = {.knot_ns = KNOTS(16, 16.3, 17, 19, 24, 36, 61, 112, 212, 412),
               .decode_ctx_ns = 400,
               .prefill_ns = 60,
               .logit_ns = 4e5,
               .sample_ns = 2e4,
               .fixed_ns = 2e5,
               .few = {0.04, 1.0},
               .beside = {0.25, 0.1}},
      .noise = 0.05,
      .n_layers = 28,
      .n_threads = 16,
      .n_blocks = 8192,
      .block_tokens = 32,
      .max_seqs = 64,
      .max_batch_tokens = 512,
      .prefill_chunk = 512,
      .max_context = 32768}},
    /* A graphics card of 190 GB/s that computes much more than it can load; 8B parameters. */
    {"gpu-8b",
     {.cost = {.knot_ns = KNOTS(24, 24.1, 24.2, 24.4, 24.8, 25.5, 27, 33, 52, 96),
               .decode_ctx_ns = 700,
               .prefill_ns = 20,
               .logit_ns = 1e5,
               .sample_ns = 2e4,
               .fixed_ns = 5e5},
      .noise = 0.03,
      .n_layers = 32,
      .n_threads = 1,
      .n_blocks = 1024,
      .block_tokens = 32,
      .max_seqs = 64,
      .max_batch_tokens = 512,
      .prefill_chunk = 512,
      .max_context = 16384}},
    /* The first one with an encoder of 22M parameters, 6 layers. */
    {"xeon2-minilm",
     {.cost = {.knot_ns = KNOTS(0.6, 0.62, 0.66, 0.85, 1.3, 2.2, 4.1, 8, 16, 32),
               .prefill_ns = 20,
               .fixed_ns = 5e4},
      .noise = 0.05,
      .n_layers = 6,
      .n_blocks = 2048,
      .block_tokens = 32,
      .max_seqs = 64,
      .max_batch_tokens = 512,
      .prefill_chunk = 512,
      .max_context = 512}},
};

#define N_DEVICES ((int)(sizeof devices / sizeof devices[0]))

const gs_sim_device *gs_sim_device_find(const char *name) {
    for (int i = 0; i < N_DEVICES; i++)
        if (strcmp(devices[i].name, name) == 0)
            return &devices[i].device;
    return NULL;
}

const char *gs_sim_device_name(int i) {
    return i >= 0 && i < N_DEVICES ? devices[i].name : NULL;
}
