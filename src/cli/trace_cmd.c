/* gamasot trace: makes, converts and describes traces. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "load/trace.h"

typedef struct trace_options {
    const char *out;
    double seed, scale, tokens_scale, duration, context;
    bool no_embeddings;
    gs_arg_list only, what;
} trace_options;

static const char usage_text[] =
    "usage: gamasot trace generate SCENARIO [options]   a household's load, made up\n"
    "       gamasot trace import FORMAT FILE [options]  a public trace: azure, burstgpt, mooncake\n"
    "       gamasot trace info FILE                     what a trace holds\n"
    "\n"
    "A server with record.enabled writes traces of its own, trace-*.jsonl in its state folder.\n"
    "Scenarios:\n";

static int parse(int argc, char **argv, trace_options *o) {
    char head[2400];
    const gs_arg args[] = {
        {"--out", GS_ARG_TEXT, &o->out, 0, 0, "FILE", "write here (default: standard output)"},
        {"--seed", GS_ARG_NUMBER, &o->seed, 0, 1e15, "N", "another one is another evening (1)"},
        {"--scale", GS_ARG_NUMBER, &o->scale, 0.001, 1000, "X", "multiplies arrival rates (1)"},
        {"--tokens-scale", GS_ARG_NUMBER, &o->tokens_scale, 0.001, 100, "X",
         "multiplies lengths (1)"},
        {"--duration", GS_ARG_NUMBER, &o->duration, 1, 400.0 * 86400, "S",
         "seconds, instead of the scenario's own"},
        {"--context", GS_ARG_NUMBER, &o->context, 16, 1e7, "N",
         "make every request fit a context of N tokens"},
        {"--only", GS_ARG_MANY, &o->only, 0, 0, "CLASS", "keep only these classes (repeat it)"},
        {"--no-embeddings", GS_ARG_FLAG, &o->no_embeddings, 0, 0, NULL, "leave embeddings out"},
        {"", GS_ARG_MANY, &o->what, 0, 0, NULL, NULL},
        {.name = NULL},
    };
    snprintf(head, sizeof head, "%s", usage_text);
    for (int i = 0; gs_scenario_name(i); i++) {
        const size_t n = strlen(head);
        snprintf(head + n, sizeof head - n, "  %-24s %s\n", gs_scenario_name(i),
                 gs_scenario_about(i));
    }
    const size_t n = strlen(head);
    snprintf(head + n, sizeof head - n, "\n");
    return gs_args_read("trace", head, args, argc, argv);
}

static int filter(gs_trace *t, const trace_options *o, char *err, size_t errlen) {
    bool wanted[GS_CLASS_COUNT] = {false};
    for (int i = 0; i < o->only.n; i++) {
        const int c = gs_class_parse(o->only.items[i]);
        if (c < 0)
            return gs_fail(err, errlen, GS_ERR_INVALID, "'%.40s' is no class", o->only.items[i]);
        wanted[c] = true;
    }
    bool *keep = gs_array(t->n > 0 ? (size_t)t->n : 1, sizeof *keep);
    if (!keep)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    for (int32_t i = 0; i < t->n; i++)
        keep[i] = (o->only.n == 0 || wanted[t->requests[i].cls]) &&
                  (!o->no_embeddings || t->requests[i].api != GS_TRACE_EMBEDDINGS);
    gs_trace_filter(t, keep);
    gs_free(keep);
    return 0;
}

static int write_out(gs_trace *t, const trace_options *o, char *err, size_t errlen) {
    gs_buf out = {0};
    int rc = filter(t, o, err, errlen);
    if (rc == 0 && o->context > 0) {
        const int32_t n = gs_trace_clip(t, (int32_t)o->context);
        if (n > 0)
            fprintf(stderr, "%d of %d requests were made to fit\n", n, t->n);
    }
    if (rc == 0 && (rc = gs_trace_write(t, &out)) != 0)
        gs_fail(err, errlen, rc, "out of memory");
    if (rc == 0 && o->out)
        rc = gs_args_save(o->out, &out, err, errlen);
    else if (rc == 0)
        fwrite(out.data ? out.data : "", 1, out.len, stdout);
    gs_buf_deinit(&out);
    return rc;
}

static void print_info(const gs_trace *t) {
    const double seconds = gs_trace_seconds(t);
    printf("%d requests of %d persons in %.0f s\n\n", t->n, t->n_persons - 1, seconds);
    printf("%-11s %6s %9s %12s %12s %12s %9s %9s\n", "class", "n", "per hour", "input", "repeated",
           "output", "cancelled", "embedded");
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        int32_t n = 0, cut = 0, embedded = 0;
        double in = 0, prefix = 0, out = 0;
        for (int32_t i = 0; i < t->n; i++) {
            const gs_trace_request *q = &t->requests[i];
            if ((int)q->cls != c)
                continue;
            n++;
            cut += q->cancel_after_s > 0;
            embedded += q->n_texts;
            in += (double)q->n_prompt * (q->n_texts > 0 ? q->n_texts : 1);
            prefix += q->n_prefix;
            out += q->n_output;
        }
        if (n > 0)
            printf("%-11s %6d %9.1f %12.0f %12.0f %12.0f %9d %9d\n", gs_class_name((gs_class)c), n,
                   seconds > 0 ? n * 3600.0 / seconds : 0.0, in, prefix, out, cut, embedded);
    }
}

static int run(const trace_options *o, char *err, size_t errlen) {
    const char *verb = o->what.n > 0 ? o->what.items[0] : "";
    gs_trace t;
    int rc;
    gs_trace_init(&t);
    if (strcmp(verb, "generate") == 0 && o->what.n == 2) {
        const gs_scenario_options so = {(uint64_t)o->seed, o->scale, o->tokens_scale, o->duration};
        rc = gs_scenario_generate(o->what.items[1], &so, &t, err, errlen);
        if (rc == 0)
            rc = write_out(&t, o, err, errlen);
    } else if (strcmp(verb, "import") == 0 && o->what.n == 3) {
        rc = gs_trace_import(o->what.items[1], o->what.items[2], &t, err, errlen);
        if (rc == 0)
            rc = write_out(&t, o, err, errlen);
    } else if (strcmp(verb, "info") == 0 && o->what.n == 2) {
        rc = gs_trace_read(o->what.items[1], &t, err, errlen);
        if (rc == 0)
            print_info(&t);
    } else {
        rc = gs_fail(err, errlen, GS_ERR_INVALID,
                     "say generate SCENARIO, import FORMAT FILE or info FILE (--help)");
    }
    gs_trace_free(&t);
    return rc;
}

int gs_cmd_trace(int argc, char **argv) {
    trace_options o = {.seed = 1, .scale = 1, .tokens_scale = 1};
    char err[256] = "";
    const int wrong = parse(argc, argv, &o);
    if (wrong != 0)
        return wrong == 1 ? 0 : 2;
    if (run(&o, err, sizeof err) == 0)
        return 0;
    fprintf(stderr, "gamasot trace: %s\n", err);
    return 1;
}
