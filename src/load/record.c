#include "load/record.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/sys.h"

#define MAX_WAITING        1024               /* sequences between the two threads */
#define MAX_WAITING_TOKENS (8 << 20)          /* and what they hold */
#define RECENT             512                /* ends that a later turn may follow */
#define HASH_BITS          ((1ULL << 53) - 1) /* exact in every JSON reader */
#define MAX_BLOCKS         4096 /* of one request; what is beyond counts as its own text */
#define SALT_BYTES         32

typedef struct item {
    struct item *next;
    gs_record_event e;
    int32_t n_tokens;
    int32_t tokens[];
} item;

/* The end of a sequence: its last whole block, by which a later turn is known. */
typedef struct past {
    uint64_t hash;
    int32_t n_blocks;
    uint32_t person;
    uint64_t number;
    int64_t end_ns;
} past;

struct gs_recorder {
    gs_record_config cfg;
    char dir[4096], path[4200];
    int64_t began_ns;
    uint8_t salt[SALT_BYTES];
    pthread_t thread;
    pthread_mutex_t lock; /* queue and done */
    pthread_cond_t more;
    item *first, *last;
    int32_t n_waiting;
    int64_t n_tokens;
    bool done;
    atomic_uint_fast64_t n_dropped;
    /* the thread's */
    FILE *file;
    uint64_t written, number;
    uint64_t *hashes; /* [MAX_BLOCKS] */
    past recent[RECENT];
    uint64_t n_recent;
    bool failed; /* writing did: said once */
};

/* ---- the thread ------------------------------------------------------------------------------*/

/* Chained: equal hashes mean equal beginnings. */
static int32_t hash_blocks(gs_recorder *r, const item *x) {
    const int32_t size = r->cfg.block_tokens;
    int32_t n = x->n_tokens / size;
    uint8_t out[GS_SHA256_BYTES] = {0};
    uint8_t text[SALT_BYTES + GS_SHA256_BYTES + 1024];
    const size_t n_bytes = (size_t)size * sizeof(int32_t);
    if (n > MAX_BLOCKS)
        n = MAX_BLOCKS;
    for (int32_t i = 0; i < n; i++) {
        memcpy(text, r->salt, SALT_BYTES);
        memcpy(text + SALT_BYTES, out, GS_SHA256_BYTES);
        memcpy(text + SALT_BYTES + GS_SHA256_BYTES, x->tokens + (size_t)i * (size_t)size, n_bytes);
        gs_sha256(text, SALT_BYTES + GS_SHA256_BYTES + n_bytes, out);
        memcpy(&r->hashes[i], out, sizeof r->hashes[i]);
        r->hashes[i] &= HASH_BITS;
    }
    return n;
}

/* The sequence whose prompt and answer this one's prompt begins with: the turn before it. */
static const past *turn_before(const gs_recorder *r, const item *x) {
    const uint64_t n = r->n_recent < RECENT ? r->n_recent : RECENT;
    const past *best = NULL;
    for (uint64_t i = 0; i < n; i++) {
        const past *p = &r->recent[i];
        if (p->person == x->e.person && p->end_ns <= x->e.arrival_ns && p->n_blocks > 0 &&
            p->n_blocks * r->cfg.block_tokens <= x->e.n_prompt &&
            r->hashes[p->n_blocks - 1] == p->hash && (!best || p->n_blocks > best->n_blocks))
            best = p;
    }
    return best;
}

static int is_trace(const struct dirent *d) {
    const size_t n = strlen(d->d_name);
    return strncmp(d->d_name, "trace-", 6) == 0 && n > 12 &&
           strcmp(d->d_name + n - 6, ".jsonl") == 0;
}

/* Oldest first, by name. */
static void drop_oldest(const gs_recorder *r) {
    struct dirent **names = NULL;
    const int n = scandir(r->dir, &names, is_trace, alphasort);
    uint64_t sum = 0;
    for (int i = n - 1; i >= 0; i--) {
        char path[4400];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", r->dir, names[i]->d_name);
        sum += stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
        if (sum > r->cfg.max_bytes - r->cfg.max_bytes / 4)
            unlink(path);
        free(names[i]);
    }
    free(names);
}

/* What follows an earlier file's request is no later turn in this one. */
static void open_file(gs_recorder *r) {
    const time_t now = (time_t)gs_wall_s();
    struct tm tm;
    char when[32];
    if (r->file)
        fclose(r->file);
    drop_oldest(r);
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", &tm);
    r->file = NULL;
    for (int i = 0; i < 1000 && !r->file; i++) { /* several may begin within a second */
        snprintf(r->path, sizeof r->path, "%s/trace-%s-%03d.jsonl", r->dir, when, i);
        r->file = fopen(r->path, "wxe");
        if (!r->file && errno != EEXIST)
            break;
    }
    r->written = 0;
    r->n_recent = 0;
    r->began_ns = gs_now_ns();
}

static void complain(gs_recorder *r) {
    if (!r->failed)
        gs_warn("record", "%s: %s", r->path, gs_errno_text(errno));
    r->failed = true;
}

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

static void fill(gs_recorder *r, const item *x, gs_trace_request *q, const past *before) {
    const gs_record_event *e = &x->e;
    q->t_s = seconds(e->arrival_ns - r->began_ns);
    q->t_s = q->t_s > 0 ? q->t_s : 0;
    q->cls = e->cls;
    q->api = e->api;
    q->stream = e->stream;
    q->n_prompt = e->n_prompt;
    q->deadline_s = seconds(e->deadline_ns);
    if (e->api == GS_TRACE_EMBEDDINGS)
        q->n_texts = e->n_texts;
    /* Of a cancelled answer nobody knows how long it would have been. */
    else
        q->n_output = e->cancelled || e->n_output == 0 ? e->max_output : e->n_output;
    if (e->cancelled)
        q->cancel_after_s = seconds(e->end_ns - e->arrival_ns);
    if (before)
        q->think_s = seconds(e->arrival_ns - before->end_ns);
}

/* One line, as gs_trace_write has it. A trace of two, so that "after" finds its id. */
static void write_item(gs_recorder *r, const item *x) {
    gs_trace t;
    gs_buf out = {0};
    char person[16];
    const int32_t n = hash_blocks(r, x);
    const past *before = turn_before(r, x);
    gs_trace_init(&t);
    snprintf(person, sizeof person, "%u", x->e.person);
    gs_trace_request *q =
        before ? gs_trace_add(&t, "rec", (int32_t)before->number) : gs_trace_add(&t, "rec", 0);
    q = q ? gs_trace_add(&t, "rec", (int32_t)++r->number) : NULL;
    if (q && gs_trace_person(&t, person) == 1) {
        fill(r, x, q, before);
        q->name = 1;
        q->after = before ? 0 : -1;
        q->block_tokens = r->cfg.block_tokens;
        q->blocks = n > 0 ? gs_array((size_t)n, sizeof *q->blocks) : NULL;
        if (q->blocks) {
            memcpy(q->blocks, r->hashes, (size_t)n * sizeof *q->blocks);
            q->n_blocks = n;
        }
        gs_trace_write(&t, &out);
    }
    /* Only the second line is this sequence's. */
    const char *nl = out.len > 0 ? memchr(out.data, '\n', out.len) : NULL;
    const size_t skip = nl ? (size_t)(nl + 1 - out.data) : out.len;
    if (r->written + (out.len - skip) > r->cfg.max_bytes / 4)
        open_file(r);
    if (!r->file || fwrite(out.data + skip, 1, out.len - skip, r->file) != out.len - skip)
        complain(r);
    r->written += out.len - skip;
    gs_buf_deinit(&out);
    gs_trace_free(&t);
    r->recent[r->n_recent++ % RECENT] =
        (past){n > 0 ? r->hashes[n - 1] : 0, n, x->e.person, r->number, x->e.end_ns};
}

static void *work(void *arg) {
    gs_recorder *r = arg;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (!r->first && !r->done)
            pthread_cond_wait(&r->more, &r->lock);
        item *x = r->first;
        if (!x)
            break;
        r->first = x->next;
        if (!r->first)
            r->last = NULL;
        r->n_waiting--;
        r->n_tokens -= x->n_tokens;
        const bool pause = !r->first;
        pthread_mutex_unlock(&r->lock);
        write_item(r, x);
        gs_free(x);
        if (pause && r->file && fflush(r->file) != 0)
            complain(r);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- the callers' side -----------------------------------------------------------------------*/

int gs_recorder_create(const gs_record_config *cfg, gs_recorder **out, char *err, size_t errlen) {
    if (cfg->block_tokens < 1 || cfg->block_tokens > 256)
        return gs_fail(err, errlen, GS_ERR_INVALID, "blocks of %d tokens", cfg->block_tokens);
    gs_recorder *r = gs_calloc(1, sizeof *r);
    if (!r)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    r->cfg = *cfg;
    snprintf(r->dir, sizeof r->dir, "%s", cfg->dir);
    r->cfg.dir = NULL;
    r->hashes = gs_array(MAX_BLOCKS, sizeof *r->hashes);
    int rc = r->hashes ? gs_random_bytes(r->salt, SALT_BYTES) : GS_ERR_NOMEM;
    if (rc == 0)
        open_file(r);
    if (rc == 0 && !r->file)
        rc = GS_ERR_IO;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->more, NULL);
    if (rc == 0 && pthread_create(&r->thread, NULL, work, r) != 0)
        rc = GS_ERR_NOMEM;
    if (rc != 0) {
        gs_fail(err, errlen, rc, "%s: %s", r->path,
                rc == GS_ERR_IO ? gs_errno_text(errno) : gs_err_text(rc));
        if (r->file)
            fclose(r->file);
        gs_free(r->hashes);
        gs_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void gs_recorder_add(gs_recorder *r, const gs_record_event *e) {
    const size_t n = e->tokens ? (size_t)e->n_prompt + (size_t)e->n_output : 0;
    item *x = gs_malloc(sizeof *x + n * sizeof(int32_t));
    if (x) {
        x->next = NULL;
        x->e = *e;
        x->e.tokens = NULL;
        x->n_tokens = (int32_t)n;
        if (n > 0)
            memcpy(x->tokens, e->tokens, n * sizeof(int32_t));
    }
    pthread_mutex_lock(&r->lock);
    const bool room = r->n_waiting < MAX_WAITING && r->n_tokens < MAX_WAITING_TOKENS;
    if (x && room) {
        if (r->last)
            r->last->next = x;
        else
            r->first = x;
        r->last = x;
        r->n_waiting++;
        r->n_tokens += (int64_t)n;
        pthread_cond_signal(&r->more);
    }
    pthread_mutex_unlock(&r->lock);
    if (!x || !room) {
        atomic_fetch_add(&r->n_dropped, 1);
        gs_free(x);
    }
}

uint64_t gs_recorder_dropped(const gs_recorder *r) {
    return atomic_load(&r->n_dropped);
}

void gs_recorder_free(gs_recorder *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->done = true;
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    if (r->file)
        fclose(r->file);
    if (gs_recorder_dropped(r) > 0)
        gs_warn("record", "%llu sequences were left out, the disk was too slow",
                (unsigned long long)gs_recorder_dropped(r));
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->more);
    gs_free(r->hashes);
    gs_free(r);
}
