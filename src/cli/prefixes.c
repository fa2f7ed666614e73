/* System prompts that everybody shares (prefix.files) as tokens. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "cli/cli.h"

static void add_message(gs_jsonw *w, const char *role, const char *text, size_t n) {
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "role");
    gs_jsonw_str(w, role);
    gs_jsonw_key(w, "content");
    gs_jsonw_strn(w, text, n);
    gs_jsonw_end_obj(w);
}

/* A conversation with this system prompt, as the API would render it. */
static int render(const gs_served_model *m, const char *text, size_t n, const char *user,
                  gs_ids *out, char *err, size_t errlen) {
    gs_buf json = {0}, prompt = {0};
    gs_jsonw w;
    gs_jsonw_init(&w, &json);
    gs_jsonw_arr(&w);
    add_message(&w, "system", text, n);
    add_message(&w, "user", user, strlen(user));
    gs_jsonw_end_arr(&w);
    gs_chat_input in = {.messages_json = gs_buf_cstr(&json),
                        .add_generation_prompt = true,
                        .guard = m->tokenizer,
                        .now_s = gs_wall_s()};
    int rc = in.messages_json ? gs_chat_render(m->chat, &in, &prompt, err, errlen)
                              : gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0) {
        gs_str bos = {0};
        if (gs_tok_bos(m->tokenizer) >= 0)
            bos = gs_tok_spelling(m->tokenizer, gs_tok_bos(m->tokenizer));
        bool has_bos =
            bos.len > 0 && prompt.len >= bos.len && memcmp(prompt.data, bos.data, bos.len) == 0;
        rc = gs_tok_encode(m->tokenizer, prompt.data ? prompt.data : "", prompt.len,
                           GS_TOK_PARSE_SPECIAL | GS_TOK_GUARDED |
                               (has_bos ? 0 : GS_TOK_ADD_SPECIAL),
                           out, err, errlen);
    }
    gs_buf_deinit(&json);
    gs_buf_deinit(&prompt);
    return rc;
}

/* What two conversations with this system prompt have in common is what all have. */
static int load_one(const gs_served_model *m, const char *path, gs_public_prefix *out, char *err,
                    size_t errlen) {
    const void *map;
    size_t n;
    char why[256] = "";
    gs_ids a = {0}, b = {0};
    int rc = gs_map_file(path, &map, &n, why, sizeof(why));
    if (rc != 0)
        return gs_fail(err, errlen, rc, "prefix.files: %s", why);
    const char *text = map;
    size_t len = n;
    while (len > 0 && strchr("\r\n", text[len - 1]))
        len--;
    if (len == 0 || !gs_utf8_valid(text, len))
        rc = gs_fail(why, sizeof(why), GS_ERR_INVALID, "the file is %s",
                     len == 0 ? "empty" : "not valid UTF-8");
    if (rc == 0)
        rc = render(m, text, len, "a", &a, why, sizeof(why));
    if (rc == 0)
        rc = render(m, text, len, "Where is it?", &b, why, sizeof(why));
    while (rc == 0 && out->n < (int32_t)a.len && out->n < (int32_t)b.len &&
           a.data[out->n] == b.data[out->n])
        out->n++;
    if (rc == 0) {
        out->tokens = gs_array(a.len > 0 ? a.len : 1, sizeof(*out->tokens));
        if (out->tokens)
            memcpy(out->tokens, a.data, (size_t)out->n * sizeof(*out->tokens));
        else
            rc = gs_fail(why, sizeof(why), GS_ERR_NOMEM, "out of memory");
    }
    gs_ids_deinit(&a);
    gs_ids_deinit(&b);
    gs_unmap(map, n);
    return rc == 0 ? 0 : gs_fail(err, errlen, rc, "prefix.files: %s: %s", path, why);
}

int gs_prefixes_load(gs_loader *l, const gs_backend *b, char *err, size_t errlen) {
    const gs_config *cfg = l->cfg;
    gs_public_prefixes *out = &l->prefixes;
    *out = (gs_public_prefixes){.pinned_share = cfg->prefix_pinned_share};
    if (cfg->prefix_files.n == 0)
        return 0;
    out->items = gs_calloc(cfg->prefix_files.n, sizeof(*out->items));
    if (!out->items)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < cfg->prefix_files.n; i++) {
        out->n++;
        int rc = load_one(&l->served, cfg->prefix_files.items[i], &out->items[i], err, errlen);
        if (rc != 0)
            return rc;
    }
    gs_backend_info info;
    b->ops->info(b, &info);
    gs_saver_open(l, &info);
    return 0;
}

void gs_prefixes_free(gs_loader *l) {
    gs_public_prefixes *p = &l->prefixes;
    gs_saver_close(l);
    for (int32_t i = 0; i < p->n; i++) {
        gs_free(p->items[i].tokens);
        gs_free(p->items[i].pages);
    }
    gs_free(p->items);
    *p = (gs_public_prefixes){0};
}
