/*
 * Which worker knows the beginning of which prompt: the hashes of the blocks that it was sent
 * lately, and who had a conversation last. It guesses at what the worker's own cache keeps; a wrong
 * guess costs a prediction, never an answer.
 */
#include "sched/place_impl.h"

#include <string.h>

#include <xxhash.h>

int32_t gs_place_blocks(uint64_t scope, const void *data, size_t n, size_t block_bytes,
                        uint64_t *out, int32_t max) {
    uint64_t key = XXH64(&scope, sizeof scope, 0);
    int32_t k = 0;
    for (size_t at = 0; k < max && n - at >= block_bytes; at += block_bytes) {
        key = XXH64((const char *)data + at, block_bytes, key);
        out[k++] = key > 0 ? key : 1;
    }
    return k;
}

static place_way *find_way(const gs_place *p, int32_t worker, uint64_t key) {
    place_way *set = p->workers[worker].ways[key % PLACE_SETS];
    for (int i = 0; i < PLACE_WAYS; i++)
        if (set[i].key == key)
            return &set[i];
    return NULL;
}

static const place_talk *talk_of(const gs_place *p, uint64_t conversation) {
    const place_talk *t = &p->talks[conversation % PLACE_TALKS];
    return conversation > 0 && t->key == conversation ? t : NULL;
}

/* Hashes are chained, so a block that is known has known ones before it: the last is searched by
 * halves. */
int32_t place_n_cached(const gs_place *p, int32_t worker, const place_request *r) {
    int32_t known = 0, unknown = r->n_blocks + 1;
    while (unknown - known > 1) {
        const int32_t mid = (known + unknown) / 2;
        if (find_way(p, worker, r->blocks[mid - 1]))
            known = mid;
        else
            unknown = mid;
    }
    int64_t n = (int64_t)known * r->block_tokens;
    const place_talk *t = talk_of(p, r->d.conversation);
    if (t && t->worker == worker && t->n_tokens > n)
        n = t->n_tokens;
    return n < r->d.n_prompt ? (int32_t)n : r->d.n_prompt - 1;
}

static void remember_key(gs_place *p, int32_t worker, uint64_t key) {
    place_way *at = find_way(p, worker, key);
    if (!at) {
        at = p->workers[worker].ways[key % PLACE_SETS];
        for (int i = 1; i < PLACE_WAYS; i++)
            if (p->workers[worker].ways[key % PLACE_SETS][i].used < at->used)
                at = &p->workers[worker].ways[key % PLACE_SETS][i];
    }
    *at = (place_way){.key = key, .used = ++p->clock};
}

void place_remember(gs_place *p, int32_t worker, const place_request *r) {
    for (int32_t i = 0; i < r->n_blocks; i++)
        remember_key(p, worker, r->blocks[i]);
}

void place_remember_talk(gs_place *p, const place_request *r) {
    const uint64_t key = r->d.conversation;
    if (key > 0)
        p->talks[key % PLACE_TALKS] =
            (place_talk){.key = key, .worker = r->worker, .n_tokens = r->d.n_prompt + r->n_output};
}

void place_forget_worker(gs_place *p, int32_t worker) {
    memset(p->workers[worker].ways, 0, PLACE_SETS * sizeof *p->workers[worker].ways);
    for (int32_t i = 0; i < PLACE_TALKS; i++)
        if (p->talks[i].worker == worker)
            p->talks[i] = (place_talk){0};
}
