#include "engine/embed.h"

#include <math.h>
#include <string.h>

const char *gs_pooling_name(gs_pooling p) {
    switch (p) {
#define X(name, number, text)                                                                      \
    case GS_POOLING_##name:                                                                        \
        return text;
        GS_POOLING_MAP(X)
#undef X
    }
    return "none";
}

void gs_embed_add(gs_pooling p, float *v, int32_t n, const float *rows, int32_t pos, int32_t n_rows,
                  int32_t n_prompt) {
    const float *one = NULL;
    if (p == GS_POOLING_CLS && pos == 0)
        one = rows;
    else if (p == GS_POOLING_LAST && pos + n_rows == n_prompt)
        one = rows + (int64_t)(n_rows - 1) * n;
    if (one)
        memcpy(v, one, (size_t)n * sizeof(*v));
    if (p != GS_POOLING_MEAN)
        return;
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t i = 0; i < n; i++)
            v[i] += rows[(int64_t)r * n + i];
}

void gs_embed_finish(gs_pooling p, float *v, int32_t n, int32_t n_prompt) {
    double square = 0.0;
    if (p == GS_POOLING_RANK)
        return;
    for (int32_t i = 0; i < n; i++) {
        if (p == GS_POOLING_MEAN)
            v[i] /= (float)n_prompt;
        square += (double)v[i] * (double)v[i];
    }
    if (square <= 0.0)
        return;
    const double scale = 1.0 / sqrt(square);
    for (int32_t i = 0; i < n; i++)
        v[i] = (float)((double)v[i] * scale);
}
