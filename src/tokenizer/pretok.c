/*
 * Pre-tokenisers: regular expressions that cut text into the words inside which BPE merges.
 *
 * A pre-tokeniser is a sequence of passes. Each pass cuts every piece of the pass before it into
 * its matches and the gaps between them ("isolated" splitting of the models' tokenizer.json);
 * a pass sees only its own piece, so that look-ahead ends at the piece's end. Patterns are those
 * of the models themselves; names are the values of tokenizer.ggml.pre.
 *
 * Only patterns that PCRE2 matches in linear time are in the table: no nested repeats, and no
 * look-ahead over an unbounded run.
 */
#include "tok_impl.h"

#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"

/* Unicode White_Space, inside and outside a class. PCRE2's \s also takes U+180E, which stopped
 * being white space in Unicode 6.3. */
#define S_          "\\p{Z}\\t-\\r\\x{85}"
#define S           "[" S_ "]"
#define NOTS        "[^" S_ "]"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL        "|" S "*[\\r\\n]+|" S "+(?!" NOTS ")|" S "+"
#define LETTERS     "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define PUNCT       "| ?[^" S_ "\\p{L}\\p{N}]+[\\r\\n]*"

#define P_GPT2                                                                                     \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" S_ "\\p{L}\\p{N}]+|" S "+(?!" NOTS ")"
#define P_LLAMA3 CONTRACTION "|" LETTERS "|\\p{N}{1,3}" PUNCT TAIL
#define P_QWEN2  CONTRACTION "|" LETTERS "|\\p{N}" PUNCT TAIL
#define P_QWEN35                                                                                   \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" S_                            \
                "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL
#define P_SEED                                                                                     \
    CONTRACTION "|" LETTERS "|\\p{N}| ?[^" S_ "\\p{L}\\p{N}\\r\\n]+|" S "*[\\r\\n]+|" S            \
                "+(?!" NOTS ")|" S "+"
#define P_BAILING                                                                                  \
    "'(?i:[sdmt]|ll|ve|re)|" LETTERS "|\\p{N}" PUNCT "|" S "*[\\r\\n]|" S "+(?!" NOTS ")|" S "+"
/* o200k: words change at lower -> upper case */
#define UPPER         "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER         "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE        "[^\\r\\n\\p{L}\\p{N}]?"
#define CASED(suffix) BEFORE UPPER "*" LOWER "+" suffix "|" BEFORE UPPER "+" LOWER "*" suffix
#define PUNCT_SLASH   "| ?[^" S_ "\\p{L}\\p{N}]+[\\r\\n/]*"
#define P_GPT4O       CASED(CONTRACTION "?") "|\\p{N}{1,3}" PUNCT_SLASH TAIL
#define P_TEKKEN      CASED("") "|\\p{N}" PUNCT_SLASH TAIL
#define P_YOUTU       CASED(CONTRACTION "?") "|\\p{N}" PUNCT_SLASH TAIL
#define P_DEEPSEEK3                                                                                \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"    \
    "\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL
#define P_BLOOM " ?[^(" S_ "|.,!?…。，、।۔،)]+"
#define P_CJK   "[一-龥\\x{0800}-一가-\\x{D7FF}]+"
#define P_KANA  "[一-龥぀-ゟ゠-ヿ]+"
/* Letters with case, as the pattern of deepseek-llm lists them. */
#define P_CASED_LETTERS                                                                            \
    S "?["                                                                                         \
      "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-"      \
      "\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}"        \
      "\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}"       \
      "\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-"         \
      "\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"      \
      "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-"     \
      "\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-"       \
      "\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-"      \
      "\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}"      \
      "\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}"        \
      "\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-"      \
      "\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-"       \
      "\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"       \
      "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-"     \
      "\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-"            \
      "\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-"       \
      "\\x{118DF}\\x{1E900}-\\x{1E943}"                                                            \
      "]+"
/* White space at the end. The look-behind changes no match: it keeps the search from trying every
 * position of a long run that is not at the end. */
#define P_TRAILING       "(?<!" S ")" S "+$"
#define P_DEEPSEEK_PUNCT S "?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+"
#define P_FALCON_PUNCT   "[\\p{P}\\$\\+<=>\\^~\\|`]+"
#define P_DEFAULT_PUNCT  "[\\p{P}\\$\\+<=>\\^~\\|]+"
#define P_YOUTU_CJK                                                                                \
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-"    \
    "ゟ゠-"                                                                                      \
    "ヿ]"                                                                                         \
    "+"

enum { IGNORE_MERGES = 1, ADD_BOS = 2, NO_BOS = 4 };

typedef struct pretok_def {
    const char *names; /* separated by spaces */
    const char *patterns[GS_PRETOK_MAX];
    unsigned flags; /* what the model's tokenizer does where the file's keys are silent */
} pretok_def;

// clang-format off
static const pretok_def defs[] = {
    {"default", {P_DEFAULT_PUNCT, P_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0},
    {"gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt "
     "olmo jais trillion granite-docling exaone4 jina-v1-en jina-v2-code roberta-bpe", {P_GPT2}, 0},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", {"\\p{N}", P_GPT2}, 0},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", {P_LLAMA3},
     IGNORE_MERGES | ADD_BOS},
    {"dbrx smaug-bpe", {P_LLAMA3}, 0},
    {"chatglm-bpe", {P_LLAMA3}, NO_BOS},
    {"glm4 glm5", {P_LLAMA3}, NO_BOS | IGNORE_MERGES},
    {"minicpm5", {"\\p{N}{1,3}", CONTRACTION "|" LETTERS "|\\p{N}+" PUNCT TAIL}, IGNORE_MERGES},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open stablelm2 grok-2", {P_QWEN2}, 0},
    {"qwen35", {P_QWEN35}, 0},
    {"ufakzeka", {LETTERS "|\\p{N}" PUNCT TAIL}, 0},
    {"laguna", {"[^\\n]+|[\\n]+", P_QWEN2}, 0},
    {"seed-coder", {P_SEED}, 0},
    {"bailingmoe bailingmoe2 llada-moe", {P_BAILING}, 0},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {P_GPT4O}, 0},
    {"granite-embed-multi-97m", {P_GPT4O}, IGNORE_MERGES},
    {"tekken", {P_TEKKEN}, IGNORE_MERGES | ADD_BOS},
    {"youtu", {P_YOUTU_CJK, P_YOUTU}, IGNORE_MERGES},
    {"deepseek-llm", {"[\\r\\n]", P_CASED_LETTERS, P_DEEPSEEK_PUNCT, P_TRAILING, P_CJK, "\\p{N}+"}, 0},
    {"deepseek-coder", {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", P_CJK, "\\p{N}"}, 0},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", {"\\p{N}{1,3}", P_KANA, P_DEEPSEEK3}, 0},
    {"falcon", {P_FALCON_PUNCT, P_GPT2, "[0-9][0-9][0-9]"}, 0},
    {"poro-chat bloom gpt3-finnish", {P_BLOOM}, 0},
    {"viking", {P_BLOOM, "\\p{N}"}, 0},
};
// clang-format on

static bool has_name(const char *names, gs_str name) {
    for (const char *p = names; *p;) {
        size_t len = strcspn(p, " ");
        if (len == name.len && memcmp(p, name.data, len) == 0)
            return true;
        p += len + (p[len] == ' ');
    }
    return false;
}

static void *pcre_malloc(PCRE2_SIZE n, void *ud) {
    (void)ud;
    return gs_malloc(n);
}

static void pcre_free(void *p, void *ud) {
    (void)ud;
    gs_free(p);
}

int gs_pretok_init(gs_tokenizer *t, gs_str name, char *err, size_t errlen) {
    const pretok_def *def = NULL;
    for (size_t i = 0; i < sizeof(defs) / sizeof(defs[0]) && !def; i++)
        if (has_name(defs[i].names, name))
            def = &defs[i];
    if (!def)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                       "tokenizer.ggml.pre: pre-tokeniser \"%.*s\" is not supported",
                       (int)(name.len < 64 ? name.len : 64), name.data);
    t->ignore_merges = def->flags & IGNORE_MERGES;
    t->add_bos = def->flags & ADD_BOS;
    if (def->flags & NO_BOS)
        t->bos = -1;
    t->pcre_memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    t->pcre_limits = t->pcre_memory ? pcre2_match_context_create(t->pcre_memory) : NULL;
    if (!t->pcre_limits)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "tokenizer: out of memory");
    pcre2_set_match_limit(t->pcre_limits, 100000000);
    pcre2_set_heap_limit(t->pcre_limits, 64 * 1024); /* KiB */
    pcre2_compile_context *cc = pcre2_compile_context_create(t->pcre_memory);
    if (!cc)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "tokenizer: out of memory");
    int rc = GS_OK;
    t->pretok_jit = true;
    for (unsigned i = 0; i < GS_PRETOK_MAX && def->patterns[i] && !rc; i++) {
        int code;
        PCRE2_SIZE at;
        pcre2_code *re =
            pcre2_compile((PCRE2_SPTR)def->patterns[i], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, cc);
        if (!re) {
            PCRE2_UCHAR why[128];
            pcre2_get_error_message(code, why, sizeof(why));
            rc = gs_fail(err, errlen,
                         code == PCRE2_ERROR_HEAP_FAILED ? GS_ERR_NOMEM : GS_ERR_INTERNAL,
                         "pre-tokeniser pattern %u at %zu: %s", i, (size_t)at, (char *)why);
            break;
        }
        t->pretok[t->n_pretok++] = re;
        if (pcre2_jit_compile(re, PCRE2_JIT_COMPLETE) != 0)
            t->pretok_jit = false; /* no JIT on this machine: the interpreter gives the same */
    }
    pcre2_compile_context_free(cc);
    return rc;
}

void gs_pretok_deinit(gs_tokenizer *t) {
    for (unsigned i = 0; i < t->n_pretok; i++)
        pcre2_code_free(t->pretok[i]);
    pcre2_match_context_free(t->pcre_limits);
    pcre2_general_context_free(t->pcre_memory);
}

static int match_at(gs_tok_run *r, unsigned pass, const char *text, size_t n, size_t from) {
    const gs_tokenizer *t = r->t;
    PCRE2_SPTR s = (PCRE2_SPTR)text;
    if (t->pretok_jit) {
        int rc = pcre2_jit_match(t->pretok[pass], s, n, from, 0, r->match, t->pcre_limits);
        if (rc != PCRE2_ERROR_JIT_STACKLIMIT)
            return rc;
    }
    return pcre2_match(t->pretok[pass], s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->match,
                       t->pcre_limits);
}

int gs_pretok_split(gs_tok_run *r, const char *text, size_t n, unsigned pass) {
    if (pass == r->t->n_pretok)
        return gs_merge_word(r, text, n);
    size_t at = 0, from = 0; /* done up to `at`; the search goes on at `from` */
    while (from < n) {
        int rc = match_at(r, pass, text, n, from);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return gs_fail(r->err, r->errlen,
                           rc == PCRE2_ERROR_NOMEMORY ? GS_ERR_NOMEM : GS_ERR_INVALID,
                           "text can't be cut into words (PCRE2 error %d)", rc);
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(r->match);
        size_t start = o[0], end = o[1];
        if (end <= start) { /* an empty match would not advance */
            uint32_t cp;
            unsigned len = gs_utf8_decode(text + from, n - from, &cp);
            from += len ? len : 1;
            continue;
        }
        if (start > at && (rc = gs_pretok_split(r, text + at, start - at, pass + 1)))
            return rc;
        if ((rc = gs_pretok_split(r, text + start, end - start, pass + 1)))
            return rc;
        at = from = end;
    }
    return at < n ? gs_pretok_split(r, text + at, n - at, pass + 1) : GS_OK;
}
