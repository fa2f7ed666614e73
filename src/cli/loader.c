#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sys.h"
#include "base/version.h"
#include "cli/cli.h"
#include "cli/device.h"
#include "config/dirs.h"
#include "engine/calibrate.h"
#include "engine/encoder.h"
#include "engine/native.h"
#include "kernels/kernels.h"
#include "pull/names.h"

#define DEFAULT_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"
#define DEFAULT_MODEL_HINT                                                                         \
    "name a file with --model or model.path, install the package gamasot-model-smollm2, or run "   \
    "'./run serve' once, which fetches it"
#define PACKAGED_MODEL "/usr/share/gamasot/models/" DEFAULT_MODEL
/* Of a step's time, on both sides, as measured on quiet machines. */
#define DEVICE_NOISE  0.05 /* until it has served */
#define MOST_NOISE    0.9
#define LEARNED_STEPS 128 /* from which on what was learned is worth keeping */
#define FAKE_CONTEXT  8192
/* A quarter of what the weights leave (docs/configuration.md, kv.memory_mb). */
#define KV_SHARE 4

typedef struct loaded {
    void *fake_bytes;
    json_t *fake_script;
    gs_fake_rule *fake_rules;
    gs_gguf *gguf;
    gs_pool *pool; /* its own, or the loader's shared one */
    gs_model *model;
    int last_percent;
    bool calibrated; /* anew, and not yet kept */
} loaded;

int gs_model_path(const gs_config *cfg, char *out, size_t outlen, char *err, size_t errlen) {
    if (cfg->model_path[0]) {
        snprintf(out, outlen, "%s", cfg->model_path);
        return 0;
    }
    char dir[GS_DIRS_MAX_PATH];
    int rc = gs_dirs_cache(dir, sizeof(dir), err, errlen);
    if (rc != 0)
        return rc;
    snprintf(out, outlen, "%s/models/%s", dir, DEFAULT_MODEL);
    if (access(out, R_OK) != 0 && access(PACKAGED_MODEL, R_OK) == 0)
        snprintf(out, outlen, "%s", PACKAGED_MODEL);
    if (access(out, R_OK) != 0)
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND, "no model: %s is not there; %s", out,
                       DEFAULT_MODEL_HINT);
    return 0;
}

static int open_text_side(gs_loader *l, const gs_gguf *g, char *err, size_t errlen) {
    int rc = gs_tokenizer_create(g, &l->served.tokenizer, err, errlen);
    if (rc != 0)
        return rc;
    rc = gs_chat_template_from_gguf(g, l->served.tokenizer, &l->served.chat, err, errlen);
    if (rc == 0)
        rc = gs_grammars_create(l->served.tokenizer, (size_t)l->cfg->memory_grammars_mb << 20,
                                &l->served.grammars, err, errlen);
    if (rc == 0)
        l->served.format = gs_out_format_detect(gs_chat_template_source(l->served.chat));
    if (rc == 0)
        rc = gs_model_facts_read(g, l->served.tokenizer, &l->served.facts);
    return rc;
}

/* False: it is to give up. */
static bool tell_percent(const gs_loader *l, int percent) {
    int was = l->percent ? atomic_load(l->percent) : 0;
    return was >= 0 && (!l->percent || atomic_compare_exchange_strong(l->percent, &was, percent));
}

/* ---- Fake
 * --------------------------------------------------------------------------------------------- */

/* As if there were much to read. */
static int spend_time(const gs_loader *l, int64_t ns) {
    for (int percent = 0; ns > 0 && percent < 100; percent++) {
        struct timespec t = {ns / 100 / GS_NS_PER_S, ns / 100 % GS_NS_PER_S};
        nanosleep(&t, NULL);
        if (!tell_percent(l, percent))
            return GS_ERR_CANCELLED;
    }
    return 0;
}

/* Its step times, where a token costs the same in a prompt as in a stream. */
static void know_fake(const gs_fake_config *fc, gs_cost *c) {
    *c = (gs_cost){.calibrated = true};
    for (int i = 0; i < GS_COST_KNOTS; i++)
        c->knot_ns[i] = (double)(fc->step_ns + fc->prefill_token_ns * (1 << i));
}

static int open_fake(gs_loader *l, loaded *x, gs_backend **out, char *err, size_t errlen) {
    const gs_config *c = l->cfg;
    size_t size = 0, n_template = 0;
    const void *source = NULL;
    int32_t n_rules = 0;
    int rc =
        c->fake_template[0] ? gs_map_file(c->fake_template, &source, &n_template, err, errlen) : 0;
    if (rc == 0)
        rc = gs_fake_vocab(c->fake_vocab, source, n_template, &x->fake_bytes, &size);
    gs_unmap(source, n_template);
    if (rc == 0 && c->fake_script[0])
        rc = gs_fake_script(c->fake_script, &x->fake_script, &x->fake_rules, &n_rules, err, errlen);
    if (rc == 0)
        rc = gs_gguf_open_mem(x->fake_bytes, size, &x->gguf, err, errlen);
    if (rc == 0)
        rc = open_text_side(l, x->gguf, err, errlen);
    if (rc != 0)
        return rc;
    gs_fake_config fc = {
        .n_vocab = c->fake_vocab,
        .max_context = c->model_context > 0 ? c->model_context : FAKE_CONTEXT,
        .max_batch_tokens = c->engine_max_batch_tokens,
        .max_seqs = c->engine_max_seqs,
        .block_tokens = c->kv_block_tokens,
        .n_kv_blocks = (uint32_t)c->fake_kv_blocks,
        .step_ns = c->fake_step_ms * GS_NS_PER_MS,
        .decode_token_ns = c->fake_token_us * GS_NS_PER_US,
        .prefill_token_ns = c->fake_prefill_us * GS_NS_PER_US,
        .n_layers = c->fake_layers,
        .n_threads = c->fake_threads,
        .n_embd = c->fake_embd,
        .rank = c->fake_rank,
        .whole_prompts = c->fake_whole_prompts,
        .first_token = c->fake_first_token,
        .n_tokens = c->fake_n_tokens,
        .eos_token = GS_FAKE_EOS,
        .eos_after = c->fake_eos_after,
        .rules = x->fake_rules,
        .n_rules = n_rules,
        .fail_step = (uint64_t)c->fake_fail_at_step,
        .fail_item_step = (uint64_t)c->fake_fail_item_at_step,
        .hang_step = (uint64_t)c->fake_hang_at_step,
        .hang_every = (uint64_t)c->fake_hang_every,
        .hang_beside = (uint64_t)c->fake_hang_beside,
        .crash_step = (uint64_t)c->fake_crash_at_step,
    };
    if (!l->served.name[0])
        snprintf(l->served.name, sizeof(l->served.name), "fake");
    gs_cost_prior(&l->cost);
    if (c->fake_calibrated)
        know_fake(&fc, &l->cost);
    l->served.bytes = (uint64_t)c->kv_memory_mb << 20; /* what it claims to hold */
    rc = spend_time(l, c->fake_load_ms * GS_NS_PER_MS);
    if (rc == 0)
        rc = gs_fake_create(&fc, out);
    return rc == 0 ? 0
                   : gs_fail(err, errlen, rc,
                             "fake backend: fake.first_token and fake.n_tokens do "
                             "not fit fake.vocab");
}

/* ---- Native
 * ------------------------------------------------------------------------------------------- */

static bool show_progress(void *arg, double done) {
    gs_loader *l = arg;
    loaded *x = l->impl;
    int percent = (int)(done * 100);
    if (percent == x->last_percent)
        return true;
    if (l->percent && percent / 25 != x->last_percent / 25)
        gs_info("loader", "loading name=%s percent=%d", l->served.name, percent);
    x->last_percent = percent;
    if (!l->quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "\rpacking weights %3d %%%s", percent, percent >= 100 ? "\n" : "");
    return tell_percent(l, percent);
}

static int size_kv(const gs_loader *l, const gs_model *m, gs_native_config *nc, char *err,
                   size_t errlen) {
    const gs_config *c = l->cfg;
    uint64_t left = gs_memory_available();
    if (l->room > 0)
        left = l->room > m->weight_bytes ? l->room - m->weight_bytes : 0;
    uint64_t block_bytes = gs_native_block_bytes(m, (gs_kv_type)c->kv_type, c->kv_block_tokens);
    uint64_t bytes = c->kv_memory_mb > 0 ? (uint64_t)c->kv_memory_mb << 20 : left / KV_SHARE;
    uint64_t n = bytes / block_bytes;
    if (n > UINT32_MAX / 2)
        n = UINT32_MAX / 2;
    uint64_t tokens = n * (uint64_t)c->kv_block_tokens;
    if (tokens < 256)
        return gs_fail(err, errlen, GS_ERR_NOMEM,
                       "kv.memory_mb: %llu MB hold only %llu tokens of this model",
                       (unsigned long long)(bytes >> 20), (unsigned long long)tokens);
    int32_t context = c->model_context > 0 ? c->model_context : m->hp.n_ctx_train;
    if (tokens < (uint64_t)context) {
        gs_warn("loader", "context cut from %d to %llu tokens to fit kv.memory_mb", context,
                (unsigned long long)tokens);
        context = (int32_t)tokens;
    }
    nc->max_context = context;
    nc->n_kv_blocks = (uint32_t)n;
    return 0;
}

/* One small step, so that the first request does not pay for cold pages. Block 0's contents are
 * not published, so the prefix cache never sees them. */
static int warm_up(gs_backend *b, const gs_config *c) {
    gs_backend_info info;
    b->ops->info(b, &info);
    int32_t tokens[8] = {0}, n = 8 < c->kv_block_tokens ? 8 : c->kv_block_tokens;
    uint32_t block = 0;
    gs_sampler s;
    gs_sample out = {0};
    gs_sampler_default(&s);
    s.temperature = 0;
    gs_batch_item it = {.n_tokens = n,
                        .tokens = tokens,
                        .blocks = &block,
                        .n_blocks = 1,
                        .sampler = info.whole_prompts ? NULL : &s,
                        .history = tokens,
                        .n_history = n,
                        .n_prompt = n,
                        .sample = info.whole_prompts ? NULL : &out};
    gs_batch batch = {.n_items = 1, .n_tokens = n, .items = &it};
    return b->ops->forward(b, &batch);
}

/* ---- Step-time model
 * --------------------------------------------------------------------------------- */

/* One line that changes whenever the old figures could be wrong. */
static void calibration_id(const gs_loader *l, const loaded *x, char *out, size_t n) {
    char cpu[128] = "", line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !cpu[0] && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "model name : %127[^\n]", cpu) != 1)
            cpu[0] = '\0';
    }
    if (f)
        fclose(f);
    snprintf(out, n, "%s %zu %s %s pages %d threads %s", l->served.name, x->model->weight_bytes,
             gs_isa_name(gs_kernels_isa()), gs_kv_type_name((gs_kv_type)l->cfg->kv_type),
             gs_pool_threads(x->pool), cpu);
}

static int calibration_path(const char *id, char *out, size_t n) {
    char dir[GS_DIRS_MAX_PATH];
    int rc = gs_dirs_state(dir, sizeof(dir), NULL, 0);
    if (rc == 0)
        snprintf(out, n, "%s/calibration-%016llx.txt", dir,
                 (unsigned long long)XXH64(id, strlen(id), 0));
    return rc;
}

static bool read_calibration(const char *path, const char *id, gs_cost *cost) {
    const void *text;
    size_t n;
    if (gs_map_file(path, &text, &n, NULL, 0) != 0)
        return false;
    int rc = gs_cost_read(text ? text : "", n, id, cost, NULL, 0);
    gs_unmap(text, n);
    return rc == 0;
}

/* Written whole under another name first: half a file is never read. */
static void write_calibration(const char *path, const char *id, const gs_cost *cost) {
    gs_buf text = {0};
    char tmp[GS_DIRS_MAX_PATH + 80];
    snprintf(tmp, sizeof(tmp), "%s.tmp", path);
    FILE *f = gs_cost_write(cost, id, &text) == 0 ? fopen(tmp, "we") : NULL;
    bool ok = f && fwrite(text.data, 1, text.len, f) == text.len;
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok || rename(tmp, path) != 0)
        gs_warn("loader", "the calibration could not be kept in %s", path);
    gs_buf_deinit(&text);
}

/* Takes the figures of an earlier start if two of them still hold, else measures some seconds. What
 * fails leaves the prior, which learns from the first steps; so does what is interrupted, unless
 * there are figures to take on trust. */
static void calibrate(gs_loader *l, loaded *x, gs_backend *b, bool (*busy)(void *),
                      void *busy_arg) {
    bool differs = true;
    const bool kept = l->cost.calibrated; /* read by load_calibration */
    int rc = kept ? gs_calibrate(b, &l->cost, true, &differs, busy, busy_arg) : 0;
    if (kept && (rc == GS_ERR_CANCELLED || (rc == 0 && !differs)))
        return;
    int64_t began_ns = gs_now_ns();
    gs_cost_prior(&l->cost);
    rc = gs_calibrate(b, &l->cost, false, NULL, busy, busy_arg);
    if (rc != 0) {
        gs_cost_prior(&l->cost);
        return;
    }
    x->calibrated = true;
    gs_info("loader", "calibrated ms=%lld", (long long)((gs_now_ns() - began_ns) / GS_NS_PER_MS));
}

static void load_calibration(gs_loader *l, const loaded *x) {
    char id[400], path[GS_DIRS_MAX_PATH + 64];
    gs_cost_prior(&l->cost);
    calibration_id(l, x, id, sizeof(id));
    if (l->no_calibration || calibration_path(id, path, sizeof(path)) != 0 ||
        !read_calibration(path, id, &l->cost))
        gs_cost_prior(&l->cost);
}

/* Not on the engine thread, which waits for no disk. */
static void keep_calibration(gs_loader *l, loaded *x) {
    char id[400], path[GS_DIRS_MAX_PATH + 64];
    if (!x->calibrated)
        return;
    calibration_id(l, x, id, sizeof(id));
    if (calibration_path(id, path, sizeof(path)) == 0)
        write_calibration(path, id, &l->cost);
    x->calibrated = false;
}

int gs_loader_prepare(void *loader, gs_backend *b, bool (*busy)(void *), void *busy_arg) {
    gs_loader *l = loader;
    loaded *x = l->impl;
    if (!x->model)
        return 0; /* fake */
    if (l->cfg->model_warm_up && warm_up(b, l->cfg) != 0)
        return GS_ERR_BACKEND;
    if (!l->no_calibration)
        calibrate(l, x, b, busy, busy_arg);
    l->cost.logits_together = true;
    return 0;
}

/* Threads that pack weights: all of them while nobody is served, half of them beside steps. */
static int load_weights(gs_loader *l, loaded *x, char *err, size_t errlen) {
    const gs_config *c = l->cfg;
    gs_pool *packing = NULL;
    if (!l->shared) {
        x->pool = packing = gs_pool_create(c->engine_threads, c->engine_pin);
    } else {
        if (!*l->shared) /* the first model is a fake one */
            *l->shared = gs_pool_create(c->engine_threads, false);
        x->pool = *l->shared;
        packing = gs_pool_create((gs_cpu_count() + 1) / 2, false);
    }
    if (!x->pool || !packing)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "could not start the compute threads");
    int rc = gs_model_load(x->gguf, packing, show_progress, l, &x->model, err, errlen);
    if (rc == 0 && gs_gguf_is_damaged(x->gguf))
        rc = gs_fail(err, errlen, GS_ERR_FORMAT, "the file became shorter while it was read");
    if (packing != x->pool)
        gs_pool_free(packing);
    return rc;
}

/* An encoder has no attention cache to size: what it needs follows from its context. */
static int make_backend(const gs_loader *l, const gs_model *m, gs_native_config *nc,
                        gs_backend **out, char *err, size_t errlen) {
    const int32_t asked = l->cfg->model_context;
    if (m->hp.encoder) {
        nc->max_context = asked > 0 && asked < m->hp.n_ctx_train ? asked : m->hp.n_ctx_train;
        return gs_encoder_create(nc, out, err, errlen);
    }
    int rc = size_kv(l, m, nc, err, errlen);
    return rc == 0 ? gs_native_create(nc, out, err, errlen) : rc;
}

/* What `gamasot sim` and `gamasot tune` take for this machine; step times follow. */
static void describe(gs_loader *l, const loaded *x, const gs_native_config *nc) {
    l->device = (gs_sim_device){.noise = DEVICE_NOISE,
                                .n_layers = x->model->hp.n_layers,
                                .n_threads = gs_pool_threads(x->pool),
                                .n_blocks = nc->n_kv_blocks,
                                .block_tokens = nc->block_tokens,
                                .max_seqs = nc->max_seqs,
                                .max_batch_tokens = nc->max_batch_tokens,
                                .prefill_chunk = l->cfg->engine_prefill_chunk,
                                .max_context = nc->max_context};
}

static void keep_device(gs_loader *l, const loaded *x) {
    char name[400];
    l->device.cost = l->cost;
    if (l->no_calibration || l->no_device_file || l->device.n_blocks == 0) /* fakes, encoders */
        return;
    calibration_id(l, x, name, sizeof(name));
    gs_device_keep(&l->device, name);
}

/* Under real work steps take longer than while they were measured alone: other threads of the
 * server want the processor, and clients on the same machine do. */
void gs_loader_keep_learned(gs_loader *l, const gs_cost *learned) {
    gs_cost_error e = {0};
    if (learned)
        gs_cost_get_error(learned, &e);
    if (e.n < LEARNED_STEPS || !l->impl)
        return;
    /* Steps that took more than twice their time, as so many that take four times. */
    double slow = 0;
    for (uint32_t i = 0; i < e.n; i++)
        if (learned->ratio[i] > 0 && learned->ratio[i] < 0.5F)
            slow += (1.0 / (double)learned->ratio[i] - 1.0) / 3.0;
    l->cost = *learned;
    /* Half of all values of even noise lie within half of its bounds. */
    l->device.noise = fmin(2 * e.median_error, MOST_NOISE);
    l->device.slow_rate = fmin(slow / e.n, 1.0);
    keep_device(l, l->impl);
}

static int open_native(gs_loader *l, loaded *x, gs_backend **out, char *err, size_t errlen) {
    const gs_config *c = l->cfg;
    char path[GS_DIRS_MAX_PATH + 64];
    int rc = gs_model_path(c, path, sizeof(path), err, errlen);
    snprintf(l->served.path, sizeof(l->served.path), "%.4000s", path);
    if (rc == 0)
        rc = gs_kernels_init(c->engine_isa, err, errlen);
    if (rc == 0)
        rc = gs_gguf_open(path, &x->gguf, err, errlen);
    if (rc == 0)
        rc = open_text_side(l, x->gguf, err, errlen);
    if (rc == 0)
        rc = load_weights(l, x, err, errlen);
    if (rc != 0)
        return rc;
    if (c->model_pooling > 0 && x->model->hp.pooling != GS_POOLING_RANK)
        x->model->hp.pooling = c->model_pooling - 1; /* the option's values after "file" */
    if (gs_tok_n_vocab(l->served.tokenizer) > x->model->hp.n_vocab)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "tokenizer.ggml.tokens has %d tokens, token_embd.weight %d rows",
                       gs_tok_n_vocab(l->served.tokenizer), x->model->hp.n_vocab);
    gs_gguf_close(x->gguf);
    x->gguf = NULL;
    if (!l->served.name[0])
        gs_model_name_of_path(path, l->served.name);
    gs_native_config nc = {.model = x->model,
                           .pool = x->pool,
                           .max_seqs = c->engine_max_seqs,
                           .max_batch_tokens = c->engine_max_batch_tokens,
                           .kv_type = (gs_kv_type)c->kv_type,
                           .block_tokens = c->kv_block_tokens};
    rc = make_backend(l, x->model, &nc, out, err, errlen);
    if (rc != 0)
        return rc;
    gs_backend_info info;
    (*out)->ops->info(*out, &info);
    l->served.bytes = x->model->weight_bytes + info.kv_bytes;
    load_calibration(l, x);
    describe(l, x, &nc);
    gs_info("loader",
            "model in memory name=%s arch=%s isa=%s threads=%d weights_mb=%zu kv_mb=%zu context=%d",
            l->served.name, x->model->hp.arch, gs_isa_name(gs_kernels_isa()),
            gs_pool_threads(x->pool), x->model->weight_bytes >> 20, info.kv_bytes >> 20,
            info.max_context);
    return 0;
}

int gs_loader_load(gs_loader *l, gs_backend **out, char *err, size_t errlen) {
    int64_t began_ns = gs_now_ns();
    loaded *x = gs_calloc(1, sizeof(*x));
    if (!x)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    l->impl = x;
    l->served.created_s = gs_wall_s();
    if (l->cfg->model_name[0])
        snprintf(l->served.name, sizeof(l->served.name), "%s", l->cfg->model_name);
    int rc = l->cfg->model_backend == GS_CONFIG_BACKEND_FAKE ? open_fake(l, x, out, err, errlen)
                                                             : open_native(l, x, out, err, errlen);
    l->served.load_ms = (double)(gs_now_ns() - began_ns) / 1e6;
    return rc;
}

int gs_loader_open(void *loader, gs_backend **out, char *err, size_t errlen) {
    gs_loader *l = loader;
    int64_t began_ns = gs_now_ns();
    int rc = gs_loader_load(l, out, err, errlen);
    if (rc == 0 && gs_loader_prepare(l, *out, NULL, NULL) != 0)
        rc = gs_fail(err, errlen, GS_ERR_BACKEND, "the warm-up step failed");
    if (rc == 0) {
        keep_calibration(l, l->impl);
        keep_device(l, l->impl);
    }
    if (rc == 0)
        rc = gs_prefixes_load(l, *out, err, errlen);
    l->served.load_ms = (double)(gs_now_ns() - began_ns) / 1e6;
    return rc;
}

void gs_loader_close(gs_loader *l) {
    loaded *x = l->impl;
    gs_prefixes_free(l);
    gs_grammars_free(l->served.grammars);
    gs_tokenizer_free(l->served.tokenizer);
    gs_chat_template_free(l->served.chat);
    gs_model_facts_deinit(&l->served.facts);
    l->served.grammars = NULL;
    l->served.tokenizer = NULL;
    l->served.chat = NULL;
    if (!x)
        return;
    keep_calibration(l, x);
    gs_model_free(x->model);
    if (!l->shared)
        gs_pool_free(x->pool);
    gs_gguf_close(x->gguf);
    gs_free(x->fake_bytes);
    gs_free(x->fake_rules);
    json_decref(x->fake_script);
    gs_free(x);
    l->impl = NULL;
}

void gs_loader_cache_id(const gs_loader *l, char *out, size_t n) {
    const loaded *x = l->impl;
    const gs_config *c = l->cfg;
    uint64_t weights[2] = {0, 0};
    if (!x->model) {
        snprintf(out, n, "gamasot %s fake %d tokens %d", GS_VERSION, c->fake_vocab,
                 c->kv_block_tokens);
        return;
    }
    const gs_hparams *hp = &x->model->hp;
    gs_model_hash(x->model, weights);
    /* Rotations may depend on the context (native.c). */
    snprintf(out, n, "gamasot %s %s %s %dx%dx%dx%d context %d model %s weights %016llx%016llx",
             GS_VERSION, gs_isa_name(gs_kernels_isa()), gs_kv_type_name((gs_kv_type)c->kv_type),
             hp->n_layers, hp->n_kv_heads, hp->head_dim, c->kv_block_tokens, l->device.max_context,
             l->served.facts.digest, (unsigned long long)weights[0],
             (unsigned long long)weights[1]);
}

gs_pool *gs_loader_pool(const gs_loader *l) {
    const loaded *x = l->impl;
    return x ? x->pool : NULL;
}
