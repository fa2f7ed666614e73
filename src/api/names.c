/* The names under which models are listed and asked for: the model's own, and aliases. */
#include <string.h>

#include "api/api_impl.h"

/* "name" or "name:latest", as Ollama's clients write it. */
static bool same_name(const char *want, const char *have) {
    size_t n = strlen(have);
    return strncmp(want, have, n) == 0 && (want[n] == '\0' || strcmp(want + n, ":latest") == 0);
}

/* Of a model that is served. */
static bool alias_works(const gs_api *a, const gs_model_alias *x) {
    return x->model[0] == '\0' || same_name(x->model, a->cfg.model->name);
}

const char *gs_api_served_name(const gs_api *a, int i) {
    if (i == 0)
        return a->cfg.model->name;
    for (int k = 0; k < a->cfg.n_aliases; k++) {
        if (alias_works(a, &a->cfg.aliases[k]) && --i == 0)
            return a->cfg.aliases[k].name;
    }
    return NULL;
}

const char *gs_api_find_name(const gs_api *a, const char *want, const gs_model_alias **alias) {
    *alias = NULL;
    if (*want == '\0' || same_name(want, a->cfg.model->name))
        return a->cfg.model->name;
    for (int k = 0; k < a->cfg.n_aliases; k++) {
        const gs_model_alias *x = &a->cfg.aliases[k];
        if (alias_works(a, x) && same_name(want, x->name)) {
            *alias = x;
            return x->name;
        }
    }
    return NULL;
}
