/* Guides: masks that follow the drawn tokens, several at a time, and states that fail alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "../tokenizer/vocab_builder.h"
#include "base/err.h"
#include "engine/guide.h"

#define EOS     256
#define N_VOCAB 258

static gs_tokenizer *tok;
static gs_gguf *gguf;
static gs_buf file;
static gs_grammars *grammars;
static gs_guides *guides;
static char err[256];

/* Like a step that comes again until the mask is there. */
static gs_sampler mask_of(gs_guide *g) {
    gs_sampler s;
    gs_sample out = {0};
    gs_sampler_default(&s);
    while (!gs_guide_limit(g, N_VOCAB, &s, &out))
        assert_true(out.pending && out.err == 0);
    return s;
}

static bool allows(const gs_sampler *s, int32_t id) {
    return (s->mask[id / 32] >> (id % 32)) & 1;
}

static gs_grammar *compile(const char *regex) {
    gs_grammar *g = NULL;
    int rc =
        gs_grammars_get(grammars, GS_GRAMMAR_REGEX, regex, strlen(regex), &g, err, sizeof(err));
    if (rc == GS_ERR_UNSUPPORTED) {
        print_message("a build without Rust: %s\n", err);
        skip();
    }
    assert_int_equal(rc, 0);
    return g;
}

static void masks_follow_the_tokens(void **state) {
    (void)state;
    enum { N = 16 };
    gs_grammar *g = compile("(abc)+");
    gs_guide *all[N];
    for (int i = 0; i < N; i++)
        assert_int_equal(gs_guide_create(g, &all[i]), 0);
    gs_grammar_unref(g);
    for (int step = 0; step < 60; step++) {
        for (int i = 0; i < N; i++) {
            gs_sampler s = mask_of(all[i]);
            for (int32_t id = 'a'; id <= 'd'; id++)
                assert_int_equal(allows(&s, id), id == 'a' + step % 3);
            assert_int_equal(allows(&s, EOS), step > 0 && step % 3 == 0);
        }
        for (int i = 0; i < N; i++)
            gs_guides_push(guides, all[i], 'a' + step % 3);
    }
    for (int i = 0; i < N; i++)
        gs_guide_unref(all[i]); /* some of them while their masks are being made */
}

static void a_failed_guide_says_so(void **state) {
    (void)state;
    gs_grammar *g = compile("ab");
    gs_guide *bad = NULL, *good = NULL;
    gs_sampler s;
    gs_sample out = {0};
    gs_sampler_default(&s);
    assert_int_equal(gs_guide_create(g, &bad), 0);
    assert_int_equal(gs_guide_create(g, &good), 0);
    gs_guides_push(guides, bad, 'z');
    while (!gs_guide_limit(bad, N_VOCAB, &s, &out) && out.pending)
        ;
    assert_int_equal(out.err, GS_ERR_INVALID);
    assert_null(s.mask);
    gs_guides_push(guides, good, 'a');
    s = mask_of(good);
    assert_true(allows(&s, 'b'));
    /* A vocabulary that has fewer tokens than the grammar's was compiled for. */
    assert_false(gs_guide_limit(good, N_VOCAB - 1, &s, &out));
    assert_int_equal(out.err, GS_ERR_INVALID);
    gs_guide_unref(bad);
    gs_guide_unref(good);
    gs_grammar_unref(g);
}

static bool open_all(void) {
    vocab_builder v = {0};
    vb_str(&v, "general.architecture", "test");
    vb_str(&v, "tokenizer.ggml.model", "gpt2");
    vb_str(&v, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&v);
    vb_u32(&v, "tokenizer.ggml.eos_token_id", (uint32_t)vb_token(&v, "<|endoftext|>", 3, 0));
    vb_merge(&v, "a b");
    vb_token(&v, "ab", 1, 0);
    return vb_finish(&v, &file) &&
           gs_gguf_open_mem(file.data, file.len, &gguf, err, sizeof(err)) == 0 &&
           gs_tokenizer_create(gguf, &tok, err, sizeof(err)) == 0 &&
           gs_grammars_create(tok, 1 << 24, &grammars, err, sizeof(err)) == 0 &&
           gs_guides_create(&guides) == 0;
}

int main(void) {
    if (!open_all()) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_follow_the_tokens),
        cmocka_unit_test(a_failed_guide_says_so),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    gs_guides_free(guides);
    gs_grammars_free(grammars);
    gs_tokenizer_free(tok);
    gs_gguf_close(gguf);
    gs_buf_deinit(&file);
    return rc;
}
