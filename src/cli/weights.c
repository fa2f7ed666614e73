#include <string.h>

#include "cli/cli.h"

static bool is(const gs_gguf_tensor *t, const char *name) {
    return t->name.len == strlen(name) && memcmp(t->name.data, name, t->name.len) == 0;
}

void gs_each_matrix(const gs_gguf *g, const gs_hparams *hp, gs_matrix_use_fn fn, void *arg) {
    const bool tied = !gs_gguf_tensor_find(g, "output.weight");
    for (size_t i = 0; i < gs_gguf_n_tensors(g); i++) {
        const gs_gguf_tensor *t = gs_gguf_tensor_at(g, i);
        const bool embd = is(t, "token_embd.weight"), output = is(t, "output.weight");
        if (t->n_dims < 2 || !gs_mat_type_ok(t->type))
            continue;
        gs_matrix_use u = {.type = t->type,
                           .n = (double)t->ne[0] * (double)t->n_rows,
                           .bytes = t->n_bytes,
                           .layer = !embd && !output,
                           .output = output || (embd && tied),
                           .part = 1.0};
        if (t->n_dims > 2 && hp->n_experts > 0)
            u.part = (double)hp->n_experts_used / hp->n_experts;
        fn(arg, &u);
    }
}
