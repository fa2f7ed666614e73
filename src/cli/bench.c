/* gamasot bench: plays a trace against any server, or measures the backend alone (--engine). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/jsonw.h"
#include "base/rng.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/replay.h"

typedef struct bench_options {
    gs_replay_config replay;
    const char *trace, *out, *html, *label;
    double retries, salt;
    gs_arg_list targets, what;
    bool compare;
} bench_options;

static const char usage_text[] =
    "usage: gamasot bench --url URL --trace FILE [options]   any server with OpenAI's API\n"
    "       gamasot bench --compare A.json B.json [--html FILE]\n"
    "       gamasot bench --engine [options]                 the backend alone\n"
    "\n"
    "Times count from when a request was due, so a stalled server can't hide behind a client that\n"
    "waits with it.\n\n";

static int parse(int argc, char **argv, bench_options *o) {
    gs_replay_config *r = &o->replay;
    const gs_arg args[] = {
        {"--url", GS_ARG_TEXT, &r->url, 0, 0, "URL", "http://HOST:PORT, with or without /v1"},
        {"--trace", GS_ARG_TEXT, &o->trace, 0, 0, "FILE", "what to play (gamasot trace)"},
        {"--model", GS_ARG_TEXT, &r->model, 0, 0, "NAME", "default: the first one listed"},
        {"--out", GS_ARG_TEXT, &o->out, 0, 0, "FILE", "write the result as JSON"},
        {"--html", GS_ARG_TEXT, &o->html, 0, 0, "FILE", "write a report with plots"},
        {"--label", GS_ARG_TEXT, &o->label, 0, 0, "NAME", "of the run (default: the URL)"},
        {"--speed", GS_ARG_NUMBER, &r->speed, 0.001, 1000, "X",
         "divides arrival and think times: the load's multiplier (1)"},
        {"--time-limit", GS_ARG_NUMBER, &r->time_limit_s, 0.1, 1e7, "S",
         "end the run after this many seconds"},
        {"--timeout", GS_ARG_NUMBER, &r->timeout_s, 0.1, 1e6, "S",
         "give up on one request after this (300)"},
        {"--retries", GS_ARG_NUMBER, &o->retries, 0, 1000, "N",
         "send again this often when given Retry-After (0)"},
        {"--target", GS_ARG_MANY, &o->targets, 0, 0, "CLASS.WHAT=S",
         "another target, e.g. voice.ttft=0.5, chat.tpot=0.08, utility.complete=10"},
        {"--key", GS_ARG_TEXT, &r->key, 0, 0, "KEY", "API key"},
        {"--key-per-person", GS_ARG_FLAG, &r->key_per_person, 0, 0, NULL,
         "send sk-family-PERSON as the key"},
        {"--class-header", GS_ARG_TEXT, &r->class_header, 0, 0, "NAME",
         "send the class in this header (gamasot: X-Gamasot-Class)"},
        {"--class-field", GS_ARG_TEXT, &r->class_field, 0, 0, "NAME",
         "send the class in this field of the body"},
        {"--user", GS_ARG_FLAG, &r->user_field, 0, 0, NULL, "send the person as \"user\""},
        {"--embeddings-url", GS_ARG_TEXT, &r->embeddings_url, 0, 0, "URL",
         "where another server has embeddings"},
        {"--embeddings-model", GS_ARG_TEXT, &r->embeddings_model, 0, 0, "NAME",
         "model for embeddings"},
        {"--ignore-eos", GS_ARG_FLAG, &r->ignore_eos, 0, 0, NULL,
         "fix output lengths (gamasot, llama-server, vLLM)"},
        {"--tokens-per-word", GS_ARG_NUMBER, &r->tokens_per_word, 0.1, 10, "X",
         "instead of asking the server's /tokenize"},
        {"--salt", GS_ARG_NUMBER, &o->salt, 0, 1e15, "N",
         "makes the prompts' text; give one to repeat a run exactly"},
        {"--warm-prefixes", GS_ARG_FLAG, &r->warm_prefixes, 0, 0, NULL,
         "compute shared prefixes before the clock starts, as on a server that runs for days"},
        {"--no-warm-up", GS_ARG_FLAG, &r->no_warm_up, 0, 0, NULL, "send nothing before the clock"},
        {"--quiet", GS_ARG_FLAG, &r->quiet, 0, 0, NULL, "no progress"},
        {"--compare", GS_ARG_FLAG, &o->compare, 0, 0, NULL, "two results, with ratios"},
        {"", GS_ARG_MANY, &o->what, 0, 0, NULL, NULL},
        {.name = NULL},
    };
    const int rc = gs_args_read("bench", usage_text, args, argc, argv);
    r->retries = (int)o->retries;
    return rc;
}

int gs_load_parse_target(const char *text, gs_load_target targets[GS_CLASS_COUNT]) {
    char cls[32], what[32];
    double v = 0;
    int n = 0;
    if (sscanf(text, "%31[a-z].%31[a-z]=%lf%n", cls, what, &v, &n) != 3 || text[n] != '\0' ||
        !(v >= 0 && v < 1e6))
        return GS_ERR_INVALID;
    const int c = gs_class_parse(cls);
    if (c < 0)
        return GS_ERR_INVALID;
    if (strcmp(what, "ttft") == 0)
        targets[c].ttft_s = v;
    else if (strcmp(what, "tpot") == 0)
        targets[c].tpot_s = v;
    else if (strcmp(what, "complete") == 0)
        targets[c].complete_s = v;
    else
        return GS_ERR_INVALID;
    return 0;
}

static void write_options(const bench_options *o, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "url");
    gs_jsonw_str(&w, o->replay.url);
    gs_jsonw_key(&w, "trace");
    gs_jsonw_str(&w, o->trace);
    gs_jsonw_key(&w, "model");
    gs_jsonw_str(&w, o->replay.model);
    const struct {
        const char *key;
        double value;
    } v[] = {{"speed", o->replay.speed},
             {"retries", o->retries},
             {"timeout", o->replay.timeout_s},
             {"time_limit", o->replay.time_limit_s > 0 ? o->replay.time_limit_s : (double)NAN},
             {"salt", (double)o->replay.salt}};
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        gs_jsonw_key(&w, v[i].key);
        gs_jsonw_num(&w, v[i].value);
    }
    gs_jsonw_key(&w, "ignore_eos");
    gs_jsonw_bool(&w, o->replay.ignore_eos);
    gs_jsonw_end_obj(&w);
}

static int report(const gs_load_run *run, const bench_options *o, char *err, size_t errlen) {
    gs_load_summary s;
    gs_buf text = {0}, json = {0}, html = {0}, options = {0};
    int rc = gs_load_summarise(run, &s);
    if (rc != 0)
        return gs_fail(err, errlen, rc, "out of memory");
    gs_load_print(run, &s, &text);
    fwrite(text.data ? text.data : "", 1, text.len, stdout);
    if (o->out) {
        write_options(o, &options);
        gs_load_json(run, &s, gs_buf_cstr(&options), &json);
        rc = gs_args_save(o->out, &json, err, errlen);
    }
    if (rc == 0 && o->html) {
        gs_load_html(run, &s, &html);
        rc = gs_args_save(o->html, &html, err, errlen);
    }
    gs_buf_deinit(&text);
    gs_buf_deinit(&json);
    gs_buf_deinit(&html);
    gs_buf_deinit(&options);
    gs_load_summary_free(&s);
    return rc;
}

static int play(bench_options *o, char *err, size_t errlen) {
    gs_trace t;
    gs_load_run run = {.seed = 1};
    int rc = gs_trace_read(o->trace, &t, err, errlen);
    if (rc != 0)
        return rc;
    gs_load_default_targets(run.targets);
    for (int i = 0; i < o->targets.n && rc == 0; i++)
        if (gs_load_parse_target(o->targets.items[i], run.targets) != 0)
            rc = gs_fail(err, errlen, GS_ERR_INVALID,
                         "--target %.60s: it must look like voice.ttft=0.5", o->targets.items[i]);
    snprintf(run.label, sizeof run.label, "%s", o->label ? o->label : o->replay.url);
    o->replay.salt = (uint64_t)o->salt;
    if (o->salt < 0) {
        uint64_t any = 0;
        rc = rc == 0 ? gs_random_bytes(&any, sizeof any) : rc;
        o->replay.salt = any >> 16;
    }
    if (rc == 0)
        rc = gs_replay(&t, &o->replay, &run, err, errlen);
    if (rc == 0)
        rc = report(&run, o, err, errlen);
    gs_load_run_free(&run);
    gs_trace_free(&t);
    return rc;
}

static int compare(const bench_options *o, char *err, size_t errlen) {
    gs_buf text = {0}, html = {0};
    int rc = gs_load_compare(o->what.items[0], o->what.items[1], &text, &html, err, errlen);
    if (rc == 0)
        fwrite(text.data ? text.data : "", 1, text.len, stdout);
    if (rc == 0 && o->html)
        rc = gs_args_save(o->html, &html, err, errlen);
    gs_buf_deinit(&text);
    gs_buf_deinit(&html);
    return rc;
}

int gs_cmd_bench(int argc, char **argv) {
    bench_options o = {.salt = -1};
    char err[300] = "";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--engine") == 0)
            return gs_bench_engine(argc, argv);
    gs_replay_defaults(&o.replay);
    const int wrong = parse(argc, argv, &o);
    if (wrong != 0)
        return wrong == 1 ? 0 : 2;
    int rc;
    if (o.compare && o.what.n == 2)
        rc = compare(&o, err, sizeof err);
    else if (!o.compare && o.what.n == 0 && o.replay.url && o.trace)
        rc = play(&o, err, sizeof err);
    else
        rc = gs_fail(err, sizeof err, GS_ERR_INVALID,
                     "say --url URL --trace FILE, --compare A B or --engine (--help)");
    if (rc == 0)
        return 0;
    fprintf(stderr, "gamasot bench: %s\n", err);
    return rc == GS_ERR_INVALID ? 2 : 1;
}
