/* The table of architectures. */
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

/*
 * Gemma 3: five layers with a sliding window and rotary base 10000, then one with full attention.
 * Linear position scaling holds for the full layers alone.
 */
static int gemma3_hparams(const gs_gguf *g, gs_hparams *hp, char *err, size_t errlen) {
    uint32_t window = 0, pattern = 6;
    float local_base = 10000.0f;
    int rc = gs_gguf_get_u32(g, "gemma3.attention.sliding_window", &window, err, errlen);
    if (rc != GS_OK && rc != GS_ERR_NOT_FOUND)
        return rc;
    rc = gs_gguf_get_u32(g, "gemma3.attention.sliding_window_pattern", &pattern, err, errlen);
    if (rc != GS_OK && rc != GS_ERR_NOT_FOUND)
        return rc;
    rc = gs_gguf_get_f32(g, "gemma3.rope.freq_base_swa", &local_base, err, errlen);
    if (rc != GS_OK && rc != GS_ERR_NOT_FOUND)
        return rc;
    if (window > INT32_MAX)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "gemma3.attention.sliding_window: %u is too large", window);
    if (pattern < 1 || pattern > GS_MAX_LAYERS)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "gemma3.attention.sliding_window_pattern: %u is not in 1..%d", pattern,
                       GS_MAX_LAYERS);
    if (!(local_base >= 1.0f))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "gemma3.rope.freq_base_swa: %g is below 1",
                       (double)local_base);
    if (window > 0)
        for (int32_t i = 0; i < hp->n_layers; i++)
            if ((uint32_t)(i + 1) % pattern != 0) {
                hp->window[i] = (int32_t)window;
                hp->layer_rope_base[i] = local_base;
                hp->layer_rope_scale[i] = 1.0f;
            }
    /* The 27B model alone scales by its embedding width per head; the file has no key for it. */
    if (hp->n_layers == 62)
        hp->attn_scale = 1.0f / sqrtf((float)hp->n_embd / (float)hp->n_heads);
    return GS_OK;
}

static const gs_arch_ops archs[] = {
    {"llama", 0, NULL},
    {"qwen2", GS_ARCH_QKV_BIAS | GS_ARCH_ROPE_NEOX, NULL},
    {"qwen3", GS_ARCH_QK_NORM | GS_ARCH_ROPE_NEOX, NULL},
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
