/* gamasot sim: a household trace through the real scheduler, on a device that is a cost model. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/args.h"
#include "cli/device.h"
#include "load/trace.h"
#include "sched/policy.h"
#include "sched/sim_rules.h"

#define REMOTE_LATENCY_NS 2000000LL /* of a network at home */

typedef struct sim_options {
    const char *trace, *device, *cost, *out, *policy, *print_device;
    double seed, model_error, speed;
    const char *remotes;
    bool rules, check, own_scopes, round_robin;
    char label[256]; /* of the device */
} sim_options;

static const char usage_text[] =
    "usage: gamasot sim --trace FILE [options]\n"
    "       gamasot sim --rules [--seed N]\n"
    "\n"
    "A trace of requests through the real scheduler, on a machine that is a model of step times.\n"
    "Built-in machines: ";

static int parse(int argc, char **argv, sim_options *o) {
    char head[600];
    const gs_arg args[] = {
        {"--trace", GS_ARG_TEXT, &o->trace, 0, 0, "FILE",
         "household trace (gamasot trace, or recorded by the server)"},
        {"--device", GS_ARG_TEXT, &o->device, 0, 0, "NAME|FILE",
         "machine to simulate (default: this one, as the latest start measured it)"},
        {"--cost", GS_ARG_TEXT, &o->cost, 0, 0, "FILE",
         "step times from a calibration instead of the device's"},
        {"--remotes", GS_ARG_TEXT, &o->remotes, 0, 0, "NAME|FILE,...",
         "other machines that take part, as docs/workers.md says; at most 16"},
        {"--round-robin", GS_ARG_FLAG, &o->round_robin, 0, 0, NULL,
         "a plain proxy instead: to each machine in turn"},
        {"--policy", GS_ARG_TEXT, &o->policy, 0, 0, "slo|fcfs", "scheduling policy (slo)"},
        {"--speed", GS_ARG_NUMBER, &o->speed, 0.001, 1000, "X",
         "play the trace so many times as fast: the load's multiplier (1)"},
        {"--model-error", GS_ARG_NUMBER, &o->model_error, 0.01, 100, "X",
         "the scheduler first believes X times the true step times"},
        {"--seed", GS_ARG_NUMBER, &o->seed, 0, 1e15, "N", "of the device's noise (1)"},
        {"--out", GS_ARG_TEXT, &o->out, 0, 0, "FILE", "write the result as JSON"},
        {"--own-scopes", GS_ARG_FLAG, &o->own_scopes, 0, 0, NULL,
         "nobody's prompt is found in the cache by others, not even the home assistant's"},
        {"--check", GS_ARG_FLAG, &o->check, 0, 0, NULL,
         "check all invariants after every step (slow)"},
        {"--rules", GS_ARG_FLAG, &o->rules, 0, 0, NULL,
         "what each scheduling rule is worth, as a table"},
        {"--print-device", GS_ARG_TEXT, &o->print_device, 0, 0, "NAME",
         "print a built-in device as a file"},
        {.name = NULL},
    };
    snprintf(head, sizeof head, "%s", usage_text);
    for (int i = 0; gs_sim_device_name(i); i++) {
        const size_t n = strlen(head);
        snprintf(head + n, sizeof head - n, "%s%s", i > 0 ? ", " : "", gs_sim_device_name(i));
    }
    const size_t n = strlen(head);
    snprintf(head + n, sizeof head - n, ".\n\n");
    const int rc = gs_args_read("sim", head, args, argc, argv);
    if (rc == 0 && !o->rules && !o->trace && !o->print_device) {
        fprintf(stderr, "gamasot sim: say --trace FILE (--help lists the options)\n");
        return 2;
    }
    return rc;
}

/* ---- results
 * -------------------------------------------------------------------------------------*/

static double s_of(int64_t ns) {
    return (double)ns / 1e9;
}

static double ms_of(int64_t ns) {
    return (double)ns / 1e6;
}

static void print_report(const gs_sim_report *r, double wall_s) {
    printf("%-11s %5s %5s %5s %5s  %8s %8s  %8s %8s %8s  %8s %8s\n", "class", "n", "met", "cut",
           "429", "TTFT p50", "p95 s", "gap p50", "p99", "max ms", "total50", "p95 s");
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const gs_sim_class *k = &r->cls[c];
        if (k->n == 0)
            continue;
        printf("%-11s %5d %4.0f%% %5d %5d  %8.3f %8.3f  %8.1f %8.1f %8.1f  %8.2f %8.2f\n",
               gs_class_name((gs_class)c), k->n,
               k->n_judged > 0 ? 100.0 * k->n_met / k->n_judged : 0.0, k->n_cancelled, k->n_refused,
               s_of(k->ttft_p50_ns), s_of(k->ttft_p95_ns), ms_of(k->gap_p50_ns),
               ms_of(k->gap_p99_ns), ms_of(k->gap_max_ns), s_of(k->total_p50_ns),
               s_of(k->total_p95_ns));
    }
    const double busy = s_of(r->stats.busy_ns);
    printf(
        "\n%.0f s simulated in %.2f s; device busy %.1f %% (background %.1f %%), %.1f tokens/s\n",
        s_of(r->end_ns), wall_s, 100.0 * busy / s_of(r->end_ns),
        100.0 * s_of(r->stats.busy_background_ns) / s_of(r->end_ns), r->tokens_per_s);
    printf("%llu steps, %llu preempted, %.2f %% of tokens computed again, %llu suspended, "
           "prefix cache %.1f %%\n",
           (unsigned long long)r->stats.steps, (unsigned long long)r->stats.preemptions,
           100.0 * (double)r->stats.recomputed_tokens /
               (double)(r->stats.prefill_tokens + r->stats.decode_tokens + 1),
           (unsigned long long)r->stats.suspensions,
           100.0 * (double)r->kv.hits_tokens / (double)(r->kv.lookups_tokens + 1));
    printf("cost model: median error %.1f %%, p95 %.1f %%; decisions %016llx\n",
           100.0 * r->error.median_error, 100.0 * r->error.p95_error, (unsigned long long)r->hash);
}

static void write_class(gs_jsonw *w, int c, const gs_sim_class *k) {
    const struct {
        const char *key;
        double value;
    } v[] = {
        {"requests", k->n},
        {"done", k->n_done},
        {"cancelled", k->n_cancelled},
        {"refused", k->n_refused},
        {"judged", k->n_judged},
        {"met", k->n_met},
        {"ttft_p50_s", s_of(k->ttft_p50_ns)},
        {"ttft_p95_s", s_of(k->ttft_p95_ns)},
        {"ttft_p99_s", s_of(k->ttft_p99_ns)},
        {"gap_p50_s", s_of(k->gap_p50_ns)},
        {"gap_p95_s", s_of(k->gap_p95_ns)},
        {"gap_p99_s", s_of(k->gap_p99_ns)},
        {"gap_max_s", s_of(k->gap_max_ns)},
        {"tpot_p50_s", s_of(k->tpot_p50_ns)},
        {"tpot_p95_s", s_of(k->tpot_p95_ns)},
        {"total_p50_s", s_of(k->total_p50_ns)},
        {"total_p95_s", s_of(k->total_p95_ns)},
        {"tokens_in", (double)k->n_tokens_in},
        {"tokens_out", (double)k->n_tokens_out},
    };
    gs_jsonw_key(w, gs_class_name((gs_class)c));
    gs_jsonw_obj(w);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        gs_jsonw_key(w, v[i].key);
        gs_jsonw_num(w, v[i].value);
    }
    gs_jsonw_end_obj(w);
}

static void write_json(gs_buf *out, const gs_sim_report *r, const gs_sim *m, const gs_trace *t,
                       const sim_options *o) {
    gs_jsonw w;
    char hash[24];
    const struct {
        const char *key;
        double value;
    } v[] = {
        {"seed", o->seed},
        {"seconds", s_of(r->end_ns)},
        {"busy_s", s_of(r->stats.busy_ns)},
        {"busy_background_s", s_of(r->stats.busy_background_ns)},
        {"discarded_s", s_of(r->stats.discarded_ns)},
        {"tokens_per_s", r->tokens_per_s},
        {"fairness", r->fairness},
        {"steps", (double)r->stats.steps},
        {"preemptions", (double)r->stats.preemptions},
        {"suspensions", (double)r->stats.suspensions},
        {"prefill_tokens", (double)r->stats.prefill_tokens},
        {"decode_tokens", (double)r->stats.decode_tokens},
        {"recomputed_tokens", (double)r->stats.recomputed_tokens},
        {"prefix_hit_tokens", (double)r->kv.hits_tokens},
        {"cost_median_error", r->error.median_error},
        {"cost_p95_error", r->error.p95_error},
    };
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->hash);
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "device");
    gs_jsonw_str(&w, o->label);
    gs_jsonw_key(&w, "policy");
    gs_jsonw_str(&w, o->policy);
    gs_jsonw_key(&w, "decisions");
    gs_jsonw_str(&w, hash);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        gs_jsonw_key(&w, v[i].key);
        gs_jsonw_num(&w, v[i].value);
    }
    gs_jsonw_key(&w, "classes");
    gs_jsonw_obj(&w);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (r->cls[c].n > 0)
            write_class(&w, c, &r->cls[c]);
    gs_jsonw_end_obj(&w);
    gs_jsonw_key(&w, "device_seconds");
    gs_jsonw_obj(&w);
    for (int32_t i = 1; i < t->n_persons; i++) {
        gs_jsonw_key(&w, t->persons[i]);
        gs_jsonw_num(&w, s_of(gs_sim_charged(m, (uint32_t)i)));
    }
    gs_jsonw_end_obj(&w);
    gs_jsonw_end_obj(&w);
    gs_buf_char(out, '\n');
}

static void print_workers(const gs_sim *m, int64_t end_ns) {
    const gs_place *p = gs_sim_place(m);
    for (int32_t i = 0; p && gs_place_get_worker(p, i); i++) {
        gs_place_view v;
        gs_place_get_view(p, i, end_ns, &v);
        printf("%-16s %6llu requests, %llu faults, busy %5.1f %%, charged %.1f s\n",
               gs_place_get_worker(p, i)->name, (unsigned long long)v.n_dispatched,
               (unsigned long long)v.n_faults, 100.0 * s_of(v.busy_ns) / s_of(end_ns),
               s_of(v.charged_ns));
    }
}

/* The machines of a list with commas; remotes has room for as many as there may be. */
static int read_remotes(const char *list, gs_sim_remote *remotes, int32_t *n, char *err,
                        size_t errlen) {
    char name[512], label[256];
    for (const char *at = list; *at; at += *at == ',') {
        const size_t len = strcspn(at, ",");
        if (*n == GS_PLACE_WORKERS - 1 || len >= sizeof name)
            return gs_fail(err, errlen, GS_ERR_INVALID, "--remotes: too many, or a name too long");
        gs_sim_remote *x = &remotes[*n];
        memcpy(name, at, len);
        name[len] = '\0';
        const int rc = gs_device_read(name, &x->device, label, err, errlen);
        if (rc != 0)
            return rc;
        gs_place_worker_defaults(GS_WORKER_REMOTE, &x->worker);
        snprintf(x->worker.name, sizeof x->worker.name, "%d-%.30s", ++*n, name);
        x->worker.max_seqs = x->device.max_seqs;
        x->worker.max_tokens = 0;
        x->latency_ns = REMOTE_LATENCY_NS;
        at += len;
    }
    return GS_OK;
}

static int print_rules(uint64_t seed) {
    char err[200] = "";
    printf("| rule | scenario | machine | measured | with | without | worse by |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < gs_sim_n_rules(); i++) {
        gs_sim_rule r;
        if (gs_sim_rule_run(i, seed, &r, err, sizeof err) != 0) {
            fprintf(stderr, "gamasot sim: %s\n", err);
            return 1;
        }
        printf("| %s | %s | %s | %s | %.3f | %.3f | %.1fx |\n", r.name, r.scenario, r.device,
               r.metric, r.with, r.without, r.without / r.with);
    }
    return 0;
}

static int load_cost(const char *path, gs_cost *c, char *err, size_t errlen) {
    const void *data = NULL;
    size_t size = 0;
    int rc = gs_map_file(path, &data, &size, err, errlen);
    if (rc != 0)
        return rc;
    /* Whatever it was made for: the user chose the file. */
    const char *id = size > 18 ? (const char *)data + 18 : "";
    const char *nl = size > 18 ? memchr(id, '\n', size - 18) : NULL;
    char name[256] = "";
    if (nl && (size_t)(nl - id) < sizeof name)
        memcpy(name, id, (size_t)(nl - id));
    rc = gs_cost_read(data, size, name, c, err, errlen);
    gs_unmap(data, size);
    return rc;
}

static int simulate(sim_options *o, char *err, size_t errlen) {
    static gs_sim_remote remotes[GS_PLACE_WORKERS];
    gs_trace t;
    gs_trace_sim ts = {0};
    gs_sim *m = NULL;
    gs_buf json = {0};
    gs_sim_report rep;
    gs_sim_config cfg = {.policy = gs_policy_find(o->policy),
                         .max_waiting = 512,
                         .max_tries = 5,
                         .model_error = o->model_error,
                         .seed = (uint64_t)o->seed,
                         .check = o->check,
                         .remotes = remotes,
                         .local_only = 1u << GS_CLASS_VOICE,
                         .round_robin = o->round_robin};
    if (!cfg.policy)
        return gs_fail(err, errlen, GS_ERR_INVALID, "there is no policy '%s'", o->policy);
    gs_trace_init(&t);
    int rc = gs_device_read(o->device, &cfg.device, o->label, err, errlen);
    if (rc == 0 && o->cost)
        rc = load_cost(o->cost, &cfg.device.cost, err, errlen);
    if (rc == 0 && o->remotes)
        rc = read_remotes(o->remotes, remotes, &cfg.n_remotes, err, errlen);
    if (rc == 0)
        rc = gs_trace_read(o->trace, &t, err, errlen);
    if (rc == 0 && gs_trace_clip(&t, cfg.device.max_context) > 0)
        fprintf(stderr, "some requests were cut to the context of %d tokens\n",
                cfg.device.max_context);
    if (rc == 0 && (rc = gs_trace_to_sim(&t, o->speed, o->own_scopes, &ts)) != 0)
        gs_fail(err, errlen, rc, "out of memory");
    if (rc != 0)
        goto out;
    cfg.n_persons = ts.n_persons;
    const int64_t began_ns = gs_now_ns();
    rc = gs_sim_create(&cfg, ts.requests, ts.n, &m);
    if (rc != 0) {
        gs_fail(err, errlen, rc, "the trace or the device is not valid");
        goto out;
    }
    rc = gs_sim_run(m, err, errlen);
    if (rc == 0 && (rc = gs_sim_report_create(m, &rep)) != 0)
        gs_fail(err, errlen, rc, "out of memory");
    if (rc != 0)
        goto out;
    print_report(&rep, s_of(gs_now_ns() - began_ns));
    print_workers(m, rep.end_ns);
    if (o->out) {
        write_json(&json, &rep, m, &t, o);
        rc = gs_args_save(o->out, &json, err, errlen);
    }
out:
    gs_buf_deinit(&json);
    gs_sim_free(m);
    gs_trace_sim_free(&ts);
    gs_trace_free(&t);
    return rc;
}

int gs_cmd_sim(int argc, char **argv) {
    sim_options o = {.policy = "slo", .seed = 1, .speed = 1};
    char err[256] = "";
    const int wrong = parse(argc, argv, &o);
    if (wrong != 0)
        return wrong == 1 ? 0 : 2;
    if (o.rules)
        return print_rules((uint64_t)o.seed);
    if (o.print_device) {
        const gs_sim_device *d = gs_sim_device_find(o.print_device);
        gs_buf out = {0};
        if (d && gs_device_write(d, o.print_device, &out) == 0)
            fwrite(out.data, 1, out.len, stdout);
        else
            fprintf(stderr, "gamasot sim: there is no device '%s'\n", o.print_device);
        gs_buf_deinit(&out);
        return d ? 0 : 1;
    }
    if (simulate(&o, err, sizeof err) == 0)
        return 0;
    fprintf(stderr, "gamasot sim: %s\n", err);
    return 1;
}
