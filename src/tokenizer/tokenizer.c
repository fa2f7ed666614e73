/* Creation from GGUF metadata, encoding, and what is known about single tokens. */
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "tok_impl.h"

#define KEY "tokenizer.ggml."

/* Texts shorter than this are encoded without the word cache: clearing it would cost more. */
#define CACHE_FROM_BYTES 512u

/* ---- creation ---------------------------------------------------------------------------------
 */

typedef struct model_def {
    const char *name; /* tokenizer.ggml.model */
    gs_tok_kind kind;
    bool raw_bpe;
} model_def;

static const model_def model_defs[] = {
    {"gpt2", GS_TOK_BPE, false}, {"gemma4", GS_TOK_BPE, true},     {"llama", GS_TOK_SPM, false},
    {"bert", GS_TOK_WPM, false}, {"no_vocab", GS_TOK_NONE, false}, {"none", GS_TOK_NONE, false},
};

static bool str_is(gs_str s, const char *lit) {
    return s.len == strlen(lit) && memcmp(s.data, lit, s.len) == 0;
}

static int read_model(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    gs_str model;
    int rc = gs_gguf_get_str(g, KEY "model", &model, err, errlen);
    if (rc == GS_ERR_NOT_FOUND)
        return GS_OK; /* GS_TOK_NONE: a file of weights only */
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof(model_defs) / sizeof(model_defs[0]); i++) {
        if (!str_is(model, model_defs[i].name))
            continue;
        t->kind = model_defs[i].kind;
        t->raw_bpe = model_defs[i].raw_bpe;
        t->by_score = t->kind == GS_TOK_SPM;
        return GS_OK;
    }
    return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                   KEY "model: tokenizer \"%.*s\" is not supported",
                   (int)(model.len < 64 ? model.len : 64), model.data);
}

/* Without a tokenizer the vocabulary's size is all there is. */
static int read_size(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    gs_str arch;
    char key[128];
    uint32_t n = 0;
    int rc = gs_gguf_get_str(g, "general.architecture", &arch, err, errlen);
    if (rc == GS_OK && arch.len < 64) {
        snprintf(key, sizeof(key), "%.*s.vocab_size", (int)arch.len, arch.data);
        rc = gs_gguf_get_u32(g, key, &n, err, errlen);
        if (rc == GS_OK && n > GS_TOK_MAX_VOCAB)
            return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: %u is too large", key, n);
    }
    t->n_vocab = (int32_t)n;
    return rc == GS_ERR_NOT_FOUND ? GS_OK : rc;
}

static int read_id(const gs_tokenizer *t, const gs_gguf *g, const char *key, int32_t *out,
                   char *err, size_t errlen) {
    int64_t v;
    int rc = gs_gguf_get_i64(g, key, &v, err, errlen);
    if (rc == GS_ERR_NOT_FOUND)
        return GS_OK;
    if (rc)
        return rc;
    if (v == -1 || v == UINT32_MAX) { /* how some writers say "none" */
        *out = -1;
        return GS_OK;
    }
    if (v < 0 || v >= t->n_vocab)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: token %lld of %d", key, (long long)v,
                       t->n_vocab);
    *out = (int32_t)v;
    return GS_OK;
}

static int read_flag(const gs_gguf *g, const char *key, bool *out, char *err, size_t errlen) {
    int rc = gs_gguf_get_bool(g, key, out, err, errlen);
    return rc == GS_ERR_NOT_FOUND ? GS_OK : rc;
}

static int read_ids_and_flags(gs_tokenizer *t, const gs_gguf *g, int32_t *eot, int32_t *eom,
                              char *err, size_t errlen) {
    struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        {KEY "bos_token_id", &t->bos},       {KEY "eos_token_id", &t->eos},
        {KEY "unknown_token_id", &t->unk},   {KEY "cls_token_id", &t->cls},
        {KEY "seperator_token_id", &t->sep}, /* the format's own spelling */
        {KEY "eot_token_id", eot},           {KEY "eom_token_id", eom},
    };
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        int rc = read_id(t, g, ids[i].key, ids[i].id, err, errlen);
        if (rc)
            return rc;
    }
    struct {
        const char *key;
        bool *flag;
    } flags[] = {
        {KEY "add_bos_token", &t->add_bos},
        {KEY "add_eos_token", &t->add_eos},
        {KEY "add_space_prefix", &t->add_space_prefix},
    };
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        int rc = read_flag(g, flags[i].key, flags[i].flag, err, errlen);
        if (rc)
            return rc;
    }
    /* Byte-level BPE and WordPiece have no prefix to add, whatever their files say. */
    t->add_space_prefix &= t->kind == GS_TOK_SPM || t->raw_bpe;
    t->lowercase = true;
    int rc = read_flag(g, KEY "normalizer.lowercase", &t->lowercase, err, errlen);
    t->strip_accents = t->lowercase;
    return rc ? rc : read_flag(g, KEY "normalizer.strip_accents", &t->strip_accents, err, errlen);
}

/* What each kind does where the file's keys are silent. */
static void set_defaults(gs_tokenizer *t) {
    t->bos = t->eos = t->unk = t->cls = t->sep = -1;
    if (t->kind == GS_TOK_SPM) {
        t->add_bos = true;
        t->add_space_prefix = true;
        if (t->n_vocab > 2) {
            t->unk = 0;
            t->bos = 1;
            t->eos = 2;
        }
    }
}

/* Spellings that end a turn or a text, in the models whose files do not say so by keys. */
static const char *const eog_spellings[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|END_OF_TURN_TOKEN|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|end_of_turn|>",
};

static void eog_add(gs_tokenizer *t, int32_t id) {
    if (id < 0)
        return;
    size_t at = 0;
    while (at < t->n_eog && t->eog[at] < id)
        at++;
    if (at < t->n_eog && t->eog[at] == id)
        return;
    memmove(t->eog + at + 1, t->eog + at, (t->n_eog - at) * sizeof(*t->eog));
    t->eog[at] = id;
    t->n_eog++;
}

static int32_t find(const gs_tokenizer *t, const char *s) {
    return gs_vmap_find(&t->by_spelling, s, strlen(s));
}

/* Marks the tokens that end a generation. They count as control tokens whatever the file says:
 * a user's text must not spell one. */
static int build_eog(gs_tokenizer *t, int32_t eot, int32_t eom) {
    const size_t n = sizeof(eog_spellings) / sizeof(eog_spellings[0]);
    t->eog = gs_array(n + 3, sizeof(*t->eog));
    if (!t->eog)
        return GS_ERR_NOMEM;
    /* In the harmony format <|end|> ends a message, not the reply. */
    bool harmony = (find(t, "<|return|>") >= 0 && find(t, "<|call|>") >= 0) ||
                   (find(t, "<|calls|>") >= 0 && find(t, "<|flush|>") >= 0);
    for (size_t i = 0; i < n; i++) {
        int32_t id = find(t, eog_spellings[i]);
        if (id < 0 || (harmony && strcmp(eog_spellings[i], "<|end|>") == 0))
            continue;
        /* "</s>" and "[EOS]" are also plain words (HTML strike-through in Gemma): such a token is
         * not taken from a user's text, but it ends nothing. */
        bool looks_plain = eog_spellings[i][1] != '|' && eog_spellings[i][0] != '_';
        if (looks_plain && !(t->attr[id] & GS_ATTR_CONTROL) && id != t->eos) {
            if (t->attr[id] & GS_ATTR_USER)
                t->attr[id] = GS_ATTR_MARKED;
            continue;
        }
        eog_add(t, id);
        t->attr[id] = GS_ATTR_CONTROL;
    }
    eog_add(t, t->eos);
    eog_add(t, eot);
    eog_add(t, eom);
    return GS_OK;
}

/* Phi-3's own tokenizer drops white space behind its control tokens; the file does not say so. */
static int mark_rstrip(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    gs_str name;
    int rc = gs_gguf_get_str(g, "general.name", &name, err, errlen);
    if (rc)
        return rc == GS_ERR_NOT_FOUND ? GS_OK : rc;
    char low[64];
    size_t n = name.len < sizeof(low) - 1 ? name.len : sizeof(low) - 1;
    for (size_t i = 0; i < n; i++)
        low[i] =
            (char)(name.data[i] >= 'A' && name.data[i] <= 'Z' ? name.data[i] + 32 : name.data[i]);
    low[n] = '\0';
    if (!strstr(low, "phi-3") && !strstr(low, "phi3"))
        return GS_OK;
    for (int32_t i = 0; i < t->n_vocab; i++)
        if (t->attr[i] & GS_ATTR_CONTROL)
            t->attr[i] |= GS_ATTR_RSTRIP;
    const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (size_t i = 0; i < sizeof(keep) / sizeof(keep[0]); i++) {
        int32_t id = find(t, keep[i]);
        if (id >= 0)
            t->attr[id] &= (uint8_t)~GS_ATTR_RSTRIP;
    }
    return GS_OK;
}

static int find_markers(gs_tokenizer *t, char *err, size_t errlen) {
    /* BERT's files name the markers by any of these keys, or by spelling only. */
    if (t->cls < 0)
        t->cls = t->bos >= 0 ? t->bos : find(t, "[CLS]");
    if (t->sep < 0)
        t->sep = t->eos >= 0 ? t->eos : find(t, "[SEP]");
    if (t->unk < 0)
        t->unk = find(t, "[UNK]");
    if (t->unk < 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY "unknown_token_id: missing");
    return GS_OK;
}

static int load(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    int32_t eot = -1, eom = -1;
    int rc = gs_vocab_load(t, g, err, errlen);
    if (rc)
        return rc;
    set_defaults(t);
    gs_str pre = {"default", 7};
    if (t->kind == GS_TOK_BPE && !t->raw_bpe) {
        rc = gs_gguf_get_str(g, KEY "pre", &pre, err, errlen);
        if (rc && rc != GS_ERR_NOT_FOUND)
            return rc;
        if ((rc = gs_pretok_init(t, pre, err, errlen)))
            return rc;
    }
    if ((rc = read_ids_and_flags(t, g, &eot, &eom, err, errlen)))
        return rc;
    if (t->kind == GS_TOK_WPM && (rc = find_markers(t, err, errlen)))
        return rc;
    if (build_eog(t, eot, eom))
        return gs_fail(err, errlen, GS_ERR_NOMEM, "tokenizer: out of memory");
    /* From here on the types are final. */
    if ((rc = mark_rstrip(t, g, err, errlen)) || (rc = gs_vocab_pieces(t, err, errlen)))
        return rc;
    if (t->kind == GS_TOK_BPE && (rc = gs_bpe_load(t, g, err, errlen)))
        return rc;
    if (t->kind == GS_TOK_SPM || t->raw_bpe)
        gs_spm_prepare(t);
    if (gs_special_build(t))
        return gs_fail(err, errlen, GS_ERR_NOMEM, "tokenizer: out of memory");
    return GS_OK;
}

int gs_tokenizer_create(const gs_gguf *g, gs_tokenizer **out, char *err, size_t errlen) {
    *out = NULL;
    gs_tokenizer *t = gs_calloc(1, sizeof(*t));
    if (!t)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "tokenizer: out of memory");
    t->kind = GS_TOK_NONE;
    t->bos = t->eos = t->unk = t->cls = t->sep = -1;
    int rc = read_model(t, g, err, errlen);
    if (!rc)
        rc = t->kind == GS_TOK_NONE ? read_size(t, g, err, errlen) : load(t, g, err, errlen);
    if (rc) {
        gs_tokenizer_free(t);
        return rc;
    }
    *out = t;
    return GS_OK;
}

void gs_tokenizer_free(gs_tokenizer *t) {
    if (!t)
        return;
    gs_pretok_deinit(t);
    gs_strpool_deinit(&t->spellings);
    gs_strpool_deinit(&t->pieces);
    gs_free(t->attr);
    gs_free(t->scores);
    gs_free(t->by_spelling.slots);
    gs_free(t->by_piece.slots);
    gs_free(t->pairs.slots);
    gs_free(t->special.nodes);
    gs_free(t->special.edges);
    gs_free(t->eog);
    gs_free(t);
}

/* ---- encoding ---------------------------------------------------------------------------------
 */

static int run_init(gs_tok_run *r, size_t n) {
    r->epoch = 1;
    if (r->t->kind == GS_TOK_BPE && !r->t->raw_bpe) {
        r->match = pcre2_match_data_create(4, r->t->pcre_memory);
        if (!r->match)
            return GS_ERR_NOMEM;
    }
    if (n >= CACHE_FROM_BYTES && r->t->kind != GS_TOK_WPM) {
        r->words = gs_calloc(GS_CACHE_WORDS, sizeof(*r->words));
        if (!r->words)
            return GS_ERR_NOMEM;
    }
    return GS_OK;
}

static void run_deinit(gs_tok_run *r) {
    gs_free(r->syms);
    gs_free(r->heap);
    gs_free(r->words);
    gs_buf_deinit(&r->buf);
    gs_buf_deinit(&r->word);
    pcre2_match_data_free(r->match);
}

static int segment(gs_tok_run *r, const char *text, size_t n, bool after_special) {
    if (n == 0)
        return GS_OK;
    switch (r->t->kind) {
    case GS_TOK_BPE:
        if (!r->t->raw_bpe)
            return gs_pretok_split(r, text, n, 0);
        return gs_spm_segment(r, text, n, r->t->add_space_prefix && after_special);
    case GS_TOK_SPM:
        return gs_spm_segment(r, text, n, r->t->add_space_prefix && after_special);
    case GS_TOK_WPM:
        return gs_wpm_segment(r, text, n);
    case GS_TOK_NONE:
        break;
    }
    return gs_fail(r->err, r->errlen, GS_ERR_UNSUPPORTED, "the model has no tokenizer");
}

static int encode_parts(gs_tok_run *r, const char *text, size_t n, bool control,
                        const gs_guards *guards) {
    size_t at = 0;
    bool after_special = true;
    while (at < n) {
        gs_special_hit hit;
        bool found = gs_special_next(r->t, text, n, at, control, guards, &hit);
        size_t upto = found ? hit.start : n;
        int rc = segment(r, text + at, upto - at, after_special);
        if (rc)
            return rc;
        if (!found)
            break;
        if (gs_ids_push(r->out, hit.id))
            return GS_ERR_NOMEM;
        at = hit.start + hit.len;
        after_special = true;
        if (r->t->attr[hit.id] & GS_ATTR_RSTRIP)
            while (at < n && memchr(" \t\n\v\f\r", text[at], 6))
                at++;
    }
    return GS_OK;
}

int gs_tok_encode(const gs_tokenizer *t, const char *text, size_t n, int flags, gs_ids *out,
                  char *err, size_t errlen) {
    if (t->kind == GS_TOK_NONE)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "the model has no tokenizer");
    if (n > GS_TOK_MAX_TEXT)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "text: more than %u bytes", GS_TOK_MAX_TEXT);
    size_t good = gs_utf8_valid_prefix(text, n);
    if (good != n)
        return gs_fail(err, errlen, GS_ERR_INVALID, "text: no valid UTF-8 at byte %zu", good);
    gs_tok_run r = {.t = t, .out = out, .err = err, .errlen = errlen};
    gs_buf clean = {0};
    gs_guards guards = {0};
    size_t was = out->len;
    int rc = run_init(&r, n);
    if (!rc && flags & GS_TOK_GUARDED) {
        rc = gs_guards_strip(text, n, &clean, &guards);
        text = clean.data;
        n = clean.len;
    }
    bool wpm = t->kind == GS_TOK_WPM;
    int32_t first = wpm ? t->cls : t->add_bos ? t->bos : -1;
    int32_t last = wpm ? t->sep : t->add_eos ? t->eos : -1;
    if (!rc && flags & GS_TOK_ADD_SPECIAL && first >= 0)
        rc = gs_ids_push(out, first);
    if (!rc)
        rc = encode_parts(&r, text, n, flags & GS_TOK_PARSE_SPECIAL, guards.n ? &guards : NULL);
    if (!rc && flags & GS_TOK_ADD_SPECIAL && last >= 0)
        rc = gs_ids_push(out, last);
    run_deinit(&r);
    gs_buf_deinit(&clean);
    gs_free(guards.at);
    if (rc) {
        out->len = was;
        if (rc == GS_ERR_NOMEM)
            gs_fail(err, errlen, rc, "text: out of memory");
    }
    return rc;
}

/* ---- facts -------------------------------------------------------------------------------------
 */

gs_tok_kind gs_tok_kind_of(const gs_tokenizer *t) {
    return t->kind;
}

int32_t gs_tok_n_vocab(const gs_tokenizer *t) {
    return t->n_vocab;
}

int32_t gs_tok_bos(const gs_tokenizer *t) {
    return t->kind == GS_TOK_WPM ? t->cls : t->bos;
}

int32_t gs_tok_eos(const gs_tokenizer *t) {
    return t->kind == GS_TOK_WPM ? t->sep : t->eos;
}

bool gs_tok_add_bos(const gs_tokenizer *t) {
    return gs_tok_bos(t) >= 0 && (t->kind == GS_TOK_WPM || t->add_bos);
}

bool gs_tok_is_control(const gs_tokenizer *t, int32_t id) {
    return t->attr && id >= 0 && id < t->n_vocab && t->attr[id] & GS_ATTR_CONTROL;
}

const int32_t *gs_tok_eog(const gs_tokenizer *t, size_t *n) {
    *n = t->n_eog;
    return t->eog;
}

bool gs_tok_is_eog(const gs_tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id)
            return true;
    return false;
}

int32_t gs_tok_find(const gs_tokenizer *t, const char *spelling, size_t n) {
    return gs_vmap_find(&t->by_spelling, spelling, n);
}

gs_str gs_tok_spelling(const gs_tokenizer *t, int32_t id) {
    if (!t->attr || id < 0 || id >= t->n_vocab)
        return (gs_str){NULL, 0};
    return gs_strpool_at(&t->spellings, id);
}
