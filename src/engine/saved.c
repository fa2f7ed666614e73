#include "engine/saved.h"

#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/err.h"

/* Both machines that there are kernels for are little-endian, and so is the file. */
typedef struct head {
    char magic[8];
    uint32_t version;
    int32_t block_tokens;
    int32_t n_blocks;
    uint32_t reserved; /* 0 */
    uint64_t block_bytes;
    char of[GS_SAVED_OF_BYTES]; /* zeros behind the text */
    uint64_t tokens_hash;
    uint64_t pages_hash[2];
    uint64_t head_hash; /* of all before it */
} head;

static const char magic[8] = {'G', 'S', 'P', 'R', 'E', 'F', 'I', 'X'};

_Static_assert(sizeof(head) == 48 + GS_SAVED_OF_BYTES + 16, "no padding");

static size_t n_tokens(const gs_saved *s) {
    return (size_t)s->n_blocks * (size_t)s->block_tokens;
}

size_t gs_saved_front_bytes(const gs_saved *s) {
    return sizeof(head) + n_tokens(s) * sizeof(int32_t);
}

size_t gs_saved_pages_bytes(const gs_saved *s) {
    size_t n;
    return gs_mul_size((size_t)s->n_blocks, s->block_bytes, &n) ? n : 0;
}

size_t gs_saved_bytes(const gs_saved *s) {
    size_t n;
    const size_t pages = gs_saved_pages_bytes(s);
    return pages > 0 && gs_add_size(gs_saved_front_bytes(s), pages, &n) ? n : 0;
}

static uint64_t hash_tokens(const gs_saved *s) {
    return XXH64(s->tokens, n_tokens(s) * sizeof(int32_t), 0);
}

static uint64_t hash_head(const head *h) {
    return XXH64(h, offsetof(head, head_hash), 0);
}

/* All but the pages' hash and the head's own. */
static head head_of(const gs_saved *s) {
    head h = {.version = GS_SAVED_VERSION,
              .block_tokens = s->block_tokens,
              .n_blocks = s->n_blocks,
              .block_bytes = s->block_bytes,
              .tokens_hash = hash_tokens(s)};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.of, s->of, strnlen(s->of, sizeof h.of - 1));
    return h;
}

void gs_saved_write_front(const gs_saved *s, const uint8_t *pages, uint8_t *front) {
    head h = head_of(s);
    const XXH128_hash_t hash = XXH3_128bits(pages, gs_saved_pages_bytes(s));
    h.pages_hash[0] = hash.low64;
    h.pages_hash[1] = hash.high64;
    h.head_hash = hash_head(&h);
    memcpy(front, &h, sizeof h);
    memcpy(front + sizeof h, s->tokens, n_tokens(s) * sizeof(int32_t));
}

static int check_head(const gs_saved *want, const head *h, char *err, size_t errlen) {
    const head w = head_of(want);
    if (memcmp(h->magic, w.magic, sizeof h->magic) != 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "it is no saved prefix");
    if (h->version != w.version)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "its format has version %u instead of %u",
                       h->version, w.version);
    if (h->head_hash != hash_head(h))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "its head is damaged");
    if (memcmp(h->of, w.of, sizeof h->of) != 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "it is of another model, context, program, or type of cache");
    if (h->block_tokens != w.block_tokens || h->n_blocks != w.n_blocks ||
        h->block_bytes != w.block_bytes || h->reserved != 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "its blocks are others");
    if (h->tokens_hash != w.tokens_hash)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "it is of another text");
    return GS_OK;
}

int gs_saved_check(const gs_saved *want, const uint8_t *front, size_t n_front, const uint8_t *pages,
                   size_t n_pages, char *err, size_t errlen) {
    head h;
    if (n_front != gs_saved_front_bytes(want) || n_pages != gs_saved_pages_bytes(want))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "it has %zu bytes instead of %zu",
                       n_front + n_pages, gs_saved_bytes(want));
    memcpy(&h, front, sizeof h);
    int rc = check_head(want, &h, err, errlen);
    if (rc != GS_OK)
        return rc;
    if (memcmp(front + sizeof h, want->tokens, n_tokens(want) * sizeof(int32_t)) != 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "its tokens are damaged");
    const XXH128_hash_t hash = XXH3_128bits(pages, n_pages);
    if (hash.low64 != h.pages_hash[0] || hash.high64 != h.pages_hash[1])
        return gs_fail(err, errlen, GS_ERR_FORMAT, "its pages are damaged");
    return GS_OK;
}
