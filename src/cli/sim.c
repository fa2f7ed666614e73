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
#include "cli/sim_input.h"
#include "sched/policy.h"
#include "sched/sim_rules.h"

typedef struct sim_options {
    const char *trace, *device, *cost, *out, *policy, *print_device;
    uint64_t seed;
    double model_error;
    bool rules, check;
} sim_options;

static const char usage_text[] =
    "usage: gamasot sim --trace FILE [options]\n"
    "       gamasot sim --rules [--seed N]\n"
    "\n"
    "  --trace FILE         household trace (bench/family/trace.py writes them)\n"
    "  --device NAME|FILE   machine to simulate: a file of bench/devices, or one of\n"
    "                       %s\n"
    "  --cost FILE          step times from a calibration instead of the device's\n"
    "  --policy slo|fcfs    scheduling policy (default slo)\n"
    "  --model-error X      the scheduler first believes X times the true step times\n"
    "  --seed N             of the device's noise (default 1)\n"
    "  --out FILE           write the result as JSON\n"
    "  --check              check all invariants after every step (slow)\n"
    "  --rules              what each scheduling rule is worth, as a table\n"
    "  --print-device NAME  print a built-in device as a file\n";

static void print_usage(FILE *f) {
    char names[256] = "";
    for (int i = 0; gs_sim_device_name(i); i++) {
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "", gs_sim_device_name(i));
    }
    fprintf(f, usage_text, names);
}

static bool parse_number(const char *s, double *out) {
    char *rest;
    *out = strtod(s, &rest);
    return rest != s && *rest == 0;
}

/* 0: go on; 1: help; 2: wrong. */
static int parse(int argc, char **argv, sim_options *o) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        double x = 0;
        const char **text = strcmp(a, "--trace") == 0          ? &o->trace
                            : strcmp(a, "--device") == 0       ? &o->device
                            : strcmp(a, "--cost") == 0         ? &o->cost
                            : strcmp(a, "--out") == 0          ? &o->out
                            : strcmp(a, "--policy") == 0       ? &o->policy
                            : strcmp(a, "--print-device") == 0 ? &o->print_device
                                                               : NULL;
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            return 1;
        } else if (strcmp(a, "--rules") == 0) {
            o->rules = true;
        } else if (strcmp(a, "--check") == 0) {
            o->check = true;
        } else if (text && v) {
            *text = v;
            i++;
        } else if (strcmp(a, "--seed") == 0 && v && parse_number(v, &x) && x >= 0 && x < 1e15) {
            o->seed = (uint64_t)x;
            i++;
        } else if (strcmp(a, "--model-error") == 0 && v && parse_number(v, &x) && x >= 0.01 &&
                   x <= 100) {
            o->model_error = x;
            i++;
        } else {
            fprintf(stderr, "gamasot sim: '%s' is unknown or lacks a proper value\n", a);
            return 2;
        }
    }
    return 0;
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
        {"seed", (double)o->seed},
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
    gs_jsonw_str(&w, o->device);
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
    for (uint32_t i = 1; i < t->n_persons; i++) {
        gs_jsonw_key(&w, t->persons[i]);
        gs_jsonw_num(&w, s_of(gs_sim_charged(m, i)));
    }
    gs_jsonw_end_obj(&w);
    gs_jsonw_end_obj(&w);
    gs_buf_char(out, '\n');
}

static int save(const char *path, const gs_buf *b, char *err, size_t errlen) {
    FILE *f = b->failed ? NULL : fopen(path, "w");
    if (!f)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, strerror(errno));
    const bool whole = fwrite(b->data, 1, b->len, f) == b->len;
    if (fclose(f) != 0 || !whole)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: could not be written", path);
    return 0;
}

/* ---- the command
 * ---------------------------------------------------------------------------------*/

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

static int simulate(const sim_options *o, char *err, size_t errlen) {
    gs_trace t = {0};
    gs_sim *m = NULL;
    gs_buf json = {0};
    gs_sim_report rep;
    gs_sim_config cfg = {.policy = gs_policy_find(o->policy),
                         .max_waiting = 512,
                         .max_tries = 5,
                         .model_error = o->model_error,
                         .seed = o->seed,
                         .check = o->check};
    if (!cfg.policy)
        return gs_fail(err, errlen, GS_ERR_INVALID, "there is no policy '%s'", o->policy);
    int rc = gs_device_read(o->device, &cfg.device, err, errlen);
    if (rc == 0 && o->cost)
        rc = load_cost(o->cost, &cfg.device.cost, err, errlen);
    if (rc == 0)
        rc = gs_trace_read(o->trace, &t, err, errlen);
    if (rc != 0)
        goto out;
    cfg.n_persons = t.n_persons;
    const int64_t began_ns = gs_now_ns();
    rc = gs_sim_create(&cfg, t.requests, t.n, &m);
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
    if (o->out) {
        write_json(&json, &rep, m, &t, o);
        rc = save(o->out, &json, err, errlen);
    }
out:
    gs_buf_deinit(&json);
    gs_sim_free(m);
    gs_trace_free(&t);
    return rc;
}

int gs_cmd_sim(int argc, char **argv) {
    sim_options o = {.device = "xeon2-135m", .policy = "slo", .seed = 1};
    char err[256] = "";
    const int wrong = parse(argc, argv, &o);
    if (wrong != 0 || (!o.rules && !o.trace && !o.print_device)) {
        print_usage(wrong == 1 ? stdout : stderr);
        return wrong == 1 ? 0 : 2;
    }
    if (o.rules)
        return print_rules(o.seed);
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
