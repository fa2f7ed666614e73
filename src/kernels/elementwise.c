/* Element-wise entry points: they only go through the dispatch table. */
#include "kernels/kernels_impl.h"

void gs_add_scaled(float *y, const float *x, float scale, int32_t n) {
    gs_kernels->add_scaled(y, x, scale, n);
}

void gs_silu_mul(float *out, const float *gate, const float *up, int32_t n) {
    gs_kernels->silu_mul(out, gate, up, n);
}

void gs_gelu_mul(float *out, const float *gate, const float *up, int32_t n) {
    gs_kernels->gelu_mul(out, gate, up, n);
}

void gs_gelu(float *x, int32_t n) {
    gs_kernels->gelu(x, n);
}

void gs_softcap(float *x, int32_t n, float cap) {
    gs_kernels->softcap(x, n, cap);
}

void gs_layernorm(float *y, const float *x, const float *weight, const float *bias, int32_t k,
                  float eps) {
    gs_kernels->layernorm(y, x, weight, bias, k, eps);
}

void gs_rope(float *x, const float *cos_tab, const float *sin_tab, int32_t n_rot, bool neox) {
    gs_kernels->rope(x, cos_tab, sin_tab, n_rot, neox);
}

void gs_logsumexp(const float *x, int32_t n, float *max, float *lse) {
    gs_kernels->logsumexp(x, n, max, lse);
}

int32_t gs_argmax(const float *x, int32_t n, bool *finite) {
    return gs_kernels->argmax(x, n, finite);
}
