/*
 * Any bytes as a request body: the first byte chooses the dialect. What is accepted must lie
 * within the bounds that the engine relies on, and what is refused must say why.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const gs_gen_params *p) {
    const gs_sampler *s = &p->sampler;
    const float f[] = {s->temperature,      s->top_p,          s->min_p,
                       s->typical_p,        s->dry_base,       s->repeat_penalty,
                       s->presence_penalty, s->dry_multiplier, s->frequency_penalty};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        if (!isfinite(f[i]))
            abort();
    }
    if (s->repeat_penalty <= 0 || s->top_k < 0 || s->repeat_last_n < -1 ||
        s->dry_allowed_length < 1 || s->n_logprobs < -1 || s->n_logprobs > GS_MAX_TOP_LOGPROBS)
        abort();
    if (p->n < 1 || p->n > GS_MAX_CHOICES || p->max_tokens == 0 || p->max_tokens < -1)
        abort();
    if (p->stop.n > GS_MAX_STOPS || p->n_bias > GS_MAX_BIAS ||
        strnlen(p->user, sizeof p->user) == sizeof p->user)
        abort();
    for (int i = 0; i < p->stop.n; i++) {
        if (p->stop.len[i] == 0 || p->stop.len[i] > GS_MAX_STOP_BYTES)
            abort();
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= 1000 || !(fabsf(p->bias[i].bias) <= 100))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gs_gen_params p;
    gs_api_error e = {0};
    if (size == 0)
        return 0;
    json_t *root = gs_api_parse_json((const char *)data + 1, size - 1, &e);
    if (root && gs_gen_params_read(root, data[0] & 1, 1000, &p, &e) == 0)
        check(&p);
    else if (e.code >= 0 || !e.message[0])
        abort();
    gs_gen_params_deinit(&p);
    json_decref(root);
    return 0;
}
