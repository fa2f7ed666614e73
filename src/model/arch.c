/* The table of architectures. */
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* All layers but each n-th see a window only. */
static void set_windows(gs_hparams *hp, int32_t window, int32_t n) {
    for (int32_t i = 0; i < hp->n_layers; i++)
        hp->window[i] = (i + 1) % n != 0 ? window : 0;
}

/* The 27B models alone scale by their embedding width per head; the files have no key for it. */
static void set_gemma_scale(gs_hparams *hp, int32_t n_layers_27b) {
    if (hp->n_layers == n_layers_27b)
        hp->attn_scale = 1.0f / sqrtf((float)hp->n_embd / (float)hp->n_heads);
}

/* Every other layer has a sliding window; scores and logits are capped. */
static int gemma2_hparams(gs_keys *k, gs_hparams *hp) {
    int32_t window = gs_keys_int(k, "attention.sliding_window", 0, INT32_MAX, 4096);
    hp->attn_softcap = gs_keys_float(k, "attn_logit_softcapping", 0.0f, 1e6f, 50.0f);
    hp->logit_softcap = gs_keys_float(k, "final_logit_softcapping", 0.0f, 1e6f, 30.0f);
    set_windows(hp, window, 2);
    set_gemma_scale(hp, 46);
    return k->rc;
}

/*
 * Five layers with a sliding window and rotary base 10000, then one with full attention. Linear
 * position scaling holds for the full layers alone.
 */
static int gemma3_hparams(gs_keys *k, gs_hparams *hp) {
    int32_t window = gs_keys_int(k, "attention.sliding_window", 0, INT32_MAX, 0);
    int32_t pattern = gs_keys_int(k, "attention.sliding_window_pattern", 1, GS_MAX_LAYERS, 6);
    float local_base = gs_keys_float(k, "rope.freq_base_swa", 1.0f, 1e15f, 10000.0f);
    set_windows(hp, window, pattern);
    for (int32_t i = 0; i < hp->n_layers; i++)
        if (hp->window[i] > 0) {
            hp->layer_rope_base[i] = local_base;
            hp->layer_rope_scale[i] = 1.0f;
        }
    set_gemma_scale(hp, 62);
    return k->rc;
}

/* A scale that the file may leave out or give as 0: none. */
static float granite_scale(gs_keys *k, const char *suffix, float none) {
    float scale = gs_keys_float(k, suffix, 0.0f, 1e6f, 0.0f);
    return scale > 0.0f ? scale : none;
}

static int granite_hparams(gs_keys *k, gs_hparams *hp) {
    hp->embd_scale = granite_scale(k, "embedding_scale", 1.0f);
    hp->residual_scale = granite_scale(k, "residual_scale", 1.0f);
    hp->attn_scale = granite_scale(k, "attention.scale", hp->attn_scale);
    hp->logit_scale = 1.0f / granite_scale(k, "logit_scale", 1.0f);
    if (!gs_keys_bool(k, "rope.scaling.finetuned", true)) /* what says: no rotation */
        memset(hp->layer_rope_base, 0, sizeof hp->layer_rope_base);
    return k->rc;
}

static int phi3_hparams(gs_keys *k, gs_hparams *hp) {
    int32_t window = gs_keys_int(k, "attention.sliding_window", 0, INT32_MAX, 0);
    for (int32_t i = 0; i < hp->n_layers; i++)
        hp->window[i] = window;
    return k->rc;
}

/* Each fourth layer has no positions (NoPE; Yang et al. 2025). */
static int smollm3_hparams(gs_keys *k, gs_hparams *hp) {
    for (int32_t i = 3; i < hp->n_layers; i += 4)
        hp->layer_rope_base[i] = 0.0f;
    return k->rc;
}

static const gs_arch_ops archs[] = {
    {"llama", 0, NULL},
    {"qwen2", GS_ARCH_QKV_BIAS | GS_ARCH_ROPE_NEOX, NULL},
    {"qwen3", GS_ARCH_QK_NORM | GS_ARCH_ROPE_NEOX, NULL},
    {"qwen3moe", GS_ARCH_QK_NORM | GS_ARCH_ROPE_NEOX | GS_ARCH_EXPERTS, NULL},
    {"smollm3", 0, smollm3_hparams},
    {"granite", 0, granite_hparams},
    {"phi3", GS_ARCH_FUSED | GS_ARCH_ROPE_NEOX, phi3_hparams},
    {"gemma2", GS_ARCH_POST_NORM | GS_ARCH_FFN_GELU | GS_ARCH_ROPE_NEOX | GS_ARCH_EMBD_SCALE,
     gemma2_hparams},
    {"gemma3",
     GS_ARCH_QK_NORM | GS_ARCH_POST_NORM | GS_ARCH_FFN_GELU | GS_ARCH_ROPE_NEOX |
         GS_ARCH_EMBD_SCALE,
     gemma3_hparams},
    {"bert", GS_ARCH_ENCODER | GS_ARCH_LEARNED_POS | GS_ARCH_FFN_GELU, NULL},
    {"nomic-bert", GS_ARCH_ENCODER | GS_ARCH_FFN_GATE | GS_ARCH_ROPE_NEOX, NULL},
};
#define N_ARCHS (sizeof archs / sizeof archs[0])

const gs_arch_ops *gs_arch_find(gs_str name) {
    for (size_t i = 0; i < N_ARCHS; i++)
        if (strlen(archs[i].name) == name.len && memcmp(archs[i].name, name.data, name.len) == 0)
            return &archs[i];
    return NULL;
}

void gs_arch_list(char *buf, size_t size) {
    size_t n = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < N_ARCHS && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%s", i ? ", " : "", archs[i].name);
}
