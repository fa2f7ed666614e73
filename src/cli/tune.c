/* gamasot tune: the settings with which this machine carries the most of a family's load. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/device.h"
#include "cli/tune.h"
#include "config/dirs.h"

#define LOW_LOAD  0.02
#define HIGH_LOAD 1000.0

typedef struct tune_options {
    const char *trace, *config_out, *report, *out;
    double seed, seeds, candidates, rounds, confirm, confirm_s;
    bool own_scopes, quiet, no_state;
    gs_arg_list devices, variants, sets;
} tune_options;

static const char usage_text[] =
    "usage: gamasot tune --trace FILE [--config-out FILE] [--report FILE.html] [options]\n"
    "\n"
    "Searches the scheduler's settings for those with which this machine carries the largest\n"
    "multiple of the trace's load while all targets hold (95 of 100): in simulation, hundreds of\n"
    "candidates a minute; with --confirm the best ones on the real engine too.\n\n";

static int parse(int argc, char **argv, tune_options *o) {
    const gs_arg args[] = {
        {"--trace", GS_ARG_TEXT, &o->trace, 0, 0, "FILE",
         "the family's load (recorded, or gamasot trace generate)"},
        {"--config-out", GS_ARG_TEXT, &o->config_out, 0, 0, "FILE",
         "write the settings, with comments"},
        {"--report", GS_ARG_TEXT, &o->report, 0, 0, "FILE", "write a page for people"},
        {"--out", GS_ARG_TEXT, &o->out, 0, 0, "FILE", "write the findings as JSON"},
        {"--device", GS_ARG_MANY, &o->devices, 0, 0, "NAME|FILE",
         "machine (default: this one as last measured); several: one is chosen"},
        {"--variant", GS_ARG_MANY, &o->variants, 0, 0, "SETS",
         "measure this machine with e.g. kv.type=q8 or model.path=FILE; several: one is chosen"},
        {"--set", GS_ARG_MANY, &o->sets, 0, 0, "OPTION=VALUE",
         "an option that stays as it is said, e.g. model.backend=fake"},
        {"--candidates", GS_ARG_NUMBER, &o->candidates, 0, 100000, "N",
         "random ones to begin with (256)"},
        {"--rounds", GS_ARG_NUMBER, &o->rounds, 0, 20, "N",
         "of the search from value to value, at most (3); 0 with --candidates 0 tries nothing"},
        {"--seeds", GS_ARG_NUMBER, &o->seeds, 1, GS_TUNE_SEEDS, "N",
         "variations of the trace with which the targets must hold (5)"},
        {"--seed", GS_ARG_NUMBER, &o->seed, 0, 1e15, "N", "of the search (1)"},
        {"--own-scopes", GS_ARG_FLAG, &o->own_scopes, 0, 0, NULL,
         "nobody's prompt is found in the cache by others"},
        {"--confirm", GS_ARG_NUMBER, &o->confirm, 0, GS_TUNE_BEST, "N",
         "play the trace on the real engine with the best N (0)"},
        {"--confirm-limit", GS_ARG_NUMBER, &o->confirm_s, 1, 1e6, "S",
         "seconds of each such run (300)"},
        {"--no-state", GS_ARG_FLAG, &o->no_state, 0, 0, NULL,
         "do not leave the curve for the server's /v1/tune"},
        {"--quiet", GS_ARG_FLAG, &o->quiet, 0, 0, NULL, "no progress"},
        {.name = NULL},
    };
    const int rc = gs_args_read("tune", usage_text, args, argc, argv);
    if (rc == 0 && !o->trace) {
        fprintf(stderr, "gamasot tune: say --trace FILE (--help lists the options)\n");
        return 2;
    }
    return rc;
}

/* ---- set-up ----------------------------------------------------------------------------------*/

/* "kv.type=q8,engine.threads=1" */
static int apply_sets(gs_config *c, const char *sets, char *err, size_t errlen) {
    while (*sets) {
        char one[600];
        const size_t n = strcspn(sets, ",");
        snprintf(one, sizeof one, "%.*s", (int)n, sets);
        char *eq = strchr(one, '=');
        if (!eq)
            return gs_fail(err, errlen, GS_ERR_INVALID, "'%s': say OPTION=VALUE", one);
        *eq = '\0';
        const int rc = gs_config_set(c, one, eq + 1, err, errlen);
        if (rc != 0)
            return rc;
        sets += n + (sets[n] == ',');
    }
    return 0;
}

/* The file's and the environment's options, then --set. */
static int read_base(const tune_options *o, gs_config *c, char *err, size_t errlen) {
    char name[] = "tune", *argv[] = {name, NULL};
    int rc = gs_config_load(c, 1, argv, NULL, 0, err, errlen);
    for (int i = 0; i < o->sets.n && rc == 0; i++)
        rc = apply_sets(c, o->sets.items[i], err, errlen);
    return rc;
}

/* Loads the model with those options for some seconds and times its steps. */
static int measure_variant(const tune_options *o, const char *sets, gs_tune_variant *v, char *err,
                           size_t errlen) {
    gs_config c;
    gs_backend *b = NULL;
    int rc = read_base(o, &c, err, errlen);
    if (rc == 0)
        rc = apply_sets(&c, sets, err, errlen);
    gs_loader l = {.cfg = &c, .quiet = true, .no_device_file = true};
    if (rc == 0)
        rc = gs_loader_open(&l, &b, err, errlen);
    *v = (gs_tune_variant){.sets = sets, .device = l.device};
    snprintf(v->label, sizeof v->label, "%s", sets);
    if (rc == 0 && l.device.n_blocks == 0)
        rc = gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "%s: this backend has no step times", sets);
    if (b)
        b->ops->destroy(b);
    gs_loader_close(&l);
    gs_config_deinit(&c);
    return rc;
}

static int read_variants(const tune_options *o, gs_tuner *t, char *err, size_t errlen) {
    for (int i = 0; i < o->devices.n || (i == 0 && o->variants.n == 0); i++) {
        gs_tune_variant *v = &t->variants[t->n_variants];
        if (t->n_variants == GS_TUNE_VALUES)
            return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "too many devices");
        *v = (gs_tune_variant){.sets = ""};
        const int rc = gs_device_read(o->devices.n > 0 ? o->devices.items[i] : NULL, &v->device,
                                      v->label, err, errlen);
        if (rc != 0)
            return rc;
        t->n_variants++;
    }
    for (int i = 0; i < o->variants.n; i++) {
        if (t->n_variants == GS_TUNE_VALUES)
            return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "too many variants");
        const int rc =
            measure_variant(o, o->variants.items[i], &t->variants[t->n_variants], err, errlen);
        if (rc != 0)
            return rc;
        t->n_variants++;
    }
    return 0;
}

static int32_t smallest_context(const gs_tuner *t) {
    int32_t least = t->variants[0].device.max_context;
    for (int i = 1; i < t->n_variants; i++)
        least =
            t->variants[i].device.max_context < least ? t->variants[i].device.max_context : least;
    return least;
}

/* ---- search ----------------------------------------------------------------------------------*/

static int look(void *arg, const gs_tune_point *p, double load, uint64_t seed, gs_tune_look *out) {
    gs_tune_sight s;
    const int rc = gs_tuner_see(arg, p, load, seed, &s);
    *out = s.look;
    return rc;
}

static void progress(void *arg, int n, double load, double throughput) {
    (void)arg;
    fprintf(stderr, "%6d candidates: %.2f times the trace's load, %.0f tokens/s\n", n, load,
            throughput);
}

static int measure_curve(const gs_tuner *t, gs_tune_findings *f) {
    const gs_tune_result *best = &f->outcome->best[0];
    const int lead = gs_tuner_lead_class(t);
    const double chosen = best->load > 0 ? best->load : LOW_LOAD;
    f->n_curve = GS_TUNE_CURVE;
    f->chosen = GS_TUNE_CURVE - 5;
    for (int i = 0; i < GS_TUNE_CURVE; i++) {
        gs_tune_curve_point *c = &f->curve[i];
        *c = (gs_tune_curve_point){.load = i <= f->chosen ? chosen * (i + 1) / (f->chosen + 1)
                                                          : chosen * (1 + 0.15 * (i - f->chosen)),
                                   .holds = true};
        for (int k = 0; k < t->n_seeds; k++) {
            gs_tune_sight s;
            const int rc = gs_tuner_see(t, &best->point, c->load, (uint64_t)k, &s);
            if (rc != 0)
                return rc;
            c->tokens_per_s += s.look.throughput / t->n_seeds;
            c->ttft_p95_ms += (double)s.rep.cls[lead].ttft_p95_ns / 1e6 / t->n_seeds;
            c->itl_p95_ms += (double)s.rep.cls[lead].gap_p95_ns / 1e6 / t->n_seeds;
            if (s.look.margin <= 0 && c->holds && s.worst_class >= 0) {
                c->holds = false;
                snprintf(c->breaks, sizeof c->breaks, "%s: %s",
                         gs_class_name((gs_class)s.worst_class), s.worst_what);
            }
            if (i == f->chosen && k == 0)
                f->at_best = s;
            if (i == f->chosen)
                for (int j = 0; j < GS_CLASS_COUNT; j++) {
                    f->met[j] += s.rep.cls[j].n_met;
                    f->judged[j] += s.rep.cls[j].n_judged;
                }
        }
        if (i > f->chosen && !c->holds && f->beyond.rep.end_ns == 0)
            for (int k = 0; k < t->n_seeds; k++) {
                const int rc = gs_tuner_see(t, &best->point, c->load, (uint64_t)k, &f->beyond);
                if (rc != 0 || f->beyond.look.margin <= 0)
                    break;
            }
    }
    return 0;
}

static void scale_cost(gs_cost *c, double by) {
    double *const v[] = {&c->decode_ctx_ns, &c->prefill_ns, &c->logit_ns, &c->sample_ns,
                         &c->fixed_ns};
    for (int i = 0; i < GS_COST_KNOTS; i++)
        c->knot_ns[i] *= by;
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        *v[i] *= by;
}

/* On any of the machines there are to choose from, which is their axis, the last one. */
static int class_holds(gs_tuner *t, const gs_tune_point *p, int cls, bool *out) {
    gs_tune_point q = *p;
    int rc = 0;
    *out = false;
    memset(t->only, 0, sizeof t->only);
    t->only[cls] = t->only_some = true;
    for (int v = 0; v < t->n_variants && rc == 0; v++) {
        gs_tune_sight s;
        if (t->n_variants > 1)
            q.choice[t->n_axes - 1] = (uint8_t)v;
        rc = gs_tuner_see(t, &q, LOW_LOAD, 0, &s);
        *out |= s.look.margin > 0;
    }
    t->only_some = false;
    return rc;
}

/* Each class by itself, at a load that is next to none: what even then is missed, no setting mends,
 * and the search goes on for the others. */
static int find_unattainable(gs_tuner *t, const gs_tune_point *p, gs_tune_findings *f) {
    for (int c = 0; c < GS_CLASS_BACKGROUND; c++) {
        bool holds, half;
        int rc = class_holds(t, p, c, &holds);
        if (rc == 0 && !holds) {
            const gs_sim_device was = t->variants[0].device;
            scale_cost(&t->variants[0].device.cost, 0.5);
            rc = class_holds(t, p, c, &half);
            t->variants[0].device = was;
            f->half_helps[c] = half;
        }
        if (rc != 0)
            return rc;
        t->exempt[c] = !holds;
    }
    return 0;
}

/* What the same settings would carry on other machines. */
static int what_if(gs_tuner *t, const gs_tune_config *sc, gs_tune_findings *f) {
    const gs_tune_point *p = &f->outcome->best[0].point;
    gs_tune_variant *v = &t->variants[gs_tuner_variant(t, p) - t->variants];
    const gs_sim_device was = v->device;
    gs_tune_result r;
    scale_cost(&v->device.cost, 0.5); /* half the weights to read: a smaller model */
    int rc = gs_tune_sustain(sc, p, &r);
    f->with_half_step = r.load;
    v->device = was;
    v->device.n_blocks *= 2; /* int8 instead of 16 bits */
    if (rc == 0)
        rc = gs_tune_sustain(sc, p, &r);
    f->with_more_kv = r.load;
    v->device = was;
    scale_cost(&v->device.cost, 0.55); /* a second machine, less what dividing costs */
    if (rc == 0)
        rc = gs_tune_sustain(sc, p, &r);
    f->with_worker = r.load;
    v->device = was;
    return rc;
}

/* The simulator's load is at the edge of what holds, so reality may be a little beyond it: what is
 * missed there is tried with less, and the report names the load that held. */
static int confirm_one(const tune_options *o, gs_tune_findings *f, int rank, char *err,
                       size_t errlen) {
    const gs_tune_result *r = &f->outcome->best[rank];
    double load = r->load;
    for (int i = 0; i < GS_TUNE_TRIES; i++) {
        gs_tune_measured *m = &f->measured[f->n_measured];
        if (!o->quiet)
            fprintf(stderr, "playing the trace at %.2f times its speed on the real engine\n", load);
        const int rc = gs_tune_confirm(f->t, &r->point, load, o->confirm_s, o->sets.items,
                                       o->sets.n, m, err, errlen);
        if (rc != 0)
            return rc;
        m->candidate = rank + 1;
        f->n_measured++;
        if (m->holds)
            break;
        load *= 0.75;
    }
    return 0;
}

static int confirm(const tune_options *o, gs_tune_findings *f, char *err, size_t errlen) {
    int rc = 0;
    for (int i = 0; i < (int)o->confirm && i < f->outcome->n_best && rc == 0; i++)
        if (f->outcome->best[i].load > 0)
            rc = confirm_one(o, f, i, err, errlen);
    return rc;
}

/* ---- results ---------------------------------------------------------------------------------*/

static int save_with(const char *path, void (*write)(const gs_tune_findings *, gs_buf *),
                     const gs_tune_findings *f, char *err, size_t errlen) {
    gs_buf out = {0};
    if (!path)
        return 0;
    write(f, &out);
    const int rc = gs_args_save(path, &out, err, errlen);
    gs_buf_deinit(&out);
    return rc;
}

/* tune.json in the state folder, which the server reads. */
static void leave_state(const gs_tune_findings *f) {
    char dir[GS_DIRS_MAX_PATH], path[GS_DIRS_MAX_PATH + 16], tmp[GS_DIRS_MAX_PATH + 32], err[200];
    if (gs_dirs_state(dir, sizeof dir, NULL, 0) != 0)
        return;
    snprintf(path, sizeof path, "%s/tune.json", dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (save_with(tmp, gs_tune_write_json, f, err, sizeof err) != 0 || rename(tmp, path) != 0)
        gs_warn("tune", "the curve could not be kept in %s", path);
}

static int write_all(const tune_options *o, const gs_tune_findings *f, char *err, size_t errlen) {
    gs_buf text = {0};
    gs_tune_write_text(f, &text);
    fwrite(text.data ? text.data : "", 1, text.len, stdout);
    gs_buf_deinit(&text);
    int rc = save_with(o->config_out, gs_tune_write_config, f, err, errlen);
    if (rc == 0)
        rc = save_with(o->report, gs_tune_write_html, f, err, errlen);
    if (rc == 0)
        rc = save_with(o->out, gs_tune_write_json, f, err, errlen);
    if (rc == 0 && !o->no_state)
        leave_state(f);
    return rc;
}

static int search(const tune_options *o, gs_tuner *t, char *err, size_t errlen) {
    gs_tune_outcome *outcome = gs_calloc(1, sizeof *outcome);
    gs_tune_findings *f = gs_calloc(1, sizeof *f);
    gs_tune_config sc = {.n_params = t->n_axes,
                         .low = LOW_LOAD,
                         .high = HIGH_LOAD,
                         .precision = 0.02,
                         .n_random = (int)o->candidates,
                         .n_seeds = t->n_seeds,
                         .n_rounds = (int)o->rounds,
                         .seed = (uint64_t)o->seed,
                         .look = look,
                         .arg = t,
                         .progress = o->quiet ? NULL : progress};
    for (int i = 0; i < t->n_axes; i++) {
        sc.n_choices[i] = (uint8_t)t->axes[i].n;
        sc.start.choice[i] = (uint8_t)t->axes[i].start;
    }
    const int64_t began_ns = gs_now_ns();
    int rc = outcome && f ? find_unattainable(t, &sc.start, f) : GS_ERR_NOMEM;
    if (rc == 0)
        rc = gs_tune_search(&sc, outcome);
    if (rc == 0) {
        f->t = t;
        f->search = &sc;
        f->outcome = outcome;
        f->seconds = (double)(gs_now_ns() - began_ns) / 1e9;
        rc = measure_curve(t, f);
    }
    if (rc == 0)
        rc = what_if(t, &sc, f);
    if (rc != 0)
        gs_fail(err, errlen, rc, "the simulation failed: %s", gs_err_text(rc));
    else
        rc = confirm(o, f, err, errlen);
    if (rc == 0)
        rc = write_all(o, f, err, errlen);
    for (int i = 0; f && i < f->n_measured; i++)
        gs_load_summary_free(&f->measured[i].summary);
    gs_free(f);
    gs_free(outcome);
    return rc;
}

static int run(const tune_options *o, char *err, size_t errlen) {
    gs_tuner *t = gs_calloc(1, sizeof *t);
    gs_config base = {0};
    gs_trace trace;
    gs_trace_init(&trace);
    if (!t)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    t->base = &base;
    t->trace = &trace;
    t->n_seeds = (int)o->seeds;
    t->own_scopes = o->own_scopes;
    int rc = read_base(o, &base, err, errlen);
    if (rc == 0)
        rc = gs_trace_read(o->trace, &trace, err, errlen);
    if (rc == 0 && trace.n == 0)
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s holds no requests", o->trace);
    if (rc == 0)
        rc = read_variants(o, t, err, errlen);
    if (rc == 0) {
        gs_trace_clip(&trace, smallest_context(t));
        rc = gs_tuner_prepare(t, err, errlen);
    }
    if (rc == 0)
        rc = search(o, t, err, errlen);
    gs_tuner_free(t);
    gs_trace_free(&trace);
    gs_config_deinit(&base);
    gs_free(t);
    return rc;
}

int gs_cmd_tune(int argc, char **argv) {
    tune_options o = {.seed = 1, .seeds = 5, .candidates = 256, .rounds = 3, .confirm_s = 300};
    char err[300] = "";
    const int wrong = parse(argc, argv, &o);
    if (wrong != 0)
        return wrong == 1 ? 0 : 2;
    gs_log_set_level(GS_LOG_WARN);
    if (run(&o, err, sizeof err) == 0)
        return 0;
    fprintf(stderr, "gamasot tune: %s\n", err);
    return 1;
}
