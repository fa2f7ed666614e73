/* gamasot why REQUEST_ID: what a request waited for and what it did, as a picture and a sentence.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cli/cli.h"
#include "cli/jobs.h"

#define COLUMNS 48

enum { F_URL, F_KEY, F_USER, N_FLAGS };

static const gs_config_flag flag_table[N_FLAGS] = {
    [F_URL] = {"url", "URL", "the server; default: this machine's", NULL},
    [F_KEY] = {"key", "KEY", "API key; default: GAMASOT_API_KEY", NULL},
    [F_USER] = {"user", "NAME", "Without API keys: whose request; default: anybody's.", NULL},
};

static double num(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static const char *str(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* "1.3 s" or "40 ms" */
static const char *time_text(double ms, char out[16]) {
    if (ms >= 1000)
        snprintf(out, 16, "%.2f s", ms / 1000);
    else
        snprintf(out, 16, "%.0f ms", ms);
    return out;
}

/* One stretch: its place in the whole, and how long it was. */
static void print_stretch(const char *what, double from, double to, double all) {
    char bar[COLUMNS + 1], text[16];
    const double scale = all > 0 ? COLUMNS / all : 0;
    const int at = (int)(from * scale) < COLUMNS ? (int)(from * scale) : COLUMNS - 1;
    int n = (int)(to * scale + 0.5) - at;
    n = n < 1 ? 1 : n > COLUMNS - at ? COLUMNS - at : n;
    memset(bar, ' ', COLUMNS);
    memset(bar + at,
           strcmp(what, "prefill") == 0 || strcmp(what, "embed") == 0 ? '#'
           : strcmp(what, "decode") == 0                              ? '='
                                                                      : '.',
           (size_t)n);
    bar[COLUMNS] = '\0';
    printf("  %-9s |%s| %s\n", what, bar, time_text(to - from, text));
}

static void print_company(const json_t *story) {
    const char *name;
    json_t *n;
    const char *before = "  beside: ";
    json_object_foreach(json_object_get(story, "steps_with"), name, n) {
        printf("%s%s in %lld", before, name, (long long)json_integer_value(n));
        before = ", ";
    }
    if (before[0] == ',')
        printf(" of %.0f steps\n", num(story, "steps"));
}

static void print_story(const json_t *story) {
    const json_t *spans = json_object_get(story, "timeline");
    const size_t n = json_array_size(spans);
    const double all = num(story, "total_ms");
    char queued[16], first[16], total[16];
    printf("%s, %s: queued %s", str(story, "class"), str(story, "state"),
           time_text(num(story, "queued_ms"), queued));
    if (json_object_get(story, "ttft_ms"))
        printf(", first token after %s", time_text(num(story, "ttft_ms"), first));
    printf(", %s after %s\n", strcmp(str(story, "state"), "done") == 0 ? "ended" : "now",
           time_text(all, total));
    for (size_t i = 0; i + 1 < n; i++)
        print_stretch(str(json_array_get(spans, i), "what"), num(json_array_get(spans, i), "at_ms"),
                      num(json_array_get(spans, i + 1), "at_ms"), all);
    printf("  %.0f prompt tokens (%.0f from the prefix cache) in %.0f pieces, %.0f of output\n",
           num(story, "prompt_tokens"), num(story, "cached_tokens"), num(story, "chunks"),
           num(story, "output_tokens"));
    print_company(story);
    const double predicted = num(story, "steps_predicted_ms");
    const double measured = num(story, "steps_measured_ms");
    if (measured > 0)
        printf("  steps took %s, predicted %s (%+.0f %%)\n", time_text(measured, first),
               time_text(predicted, total), 100.0 * (predicted - measured) / measured);
    printf("%s\n", str(story, "why"));
}

static int print_all(const gs_http_answer *a, char *err, size_t errlen) {
    json_t *v = json_loadb(a->body.data ? a->body.data : "", a->body.len, 0, NULL);
    const json_t *stories = json_object_get(v, "sequences");
    const json_t *story;
    size_t i;
    int rc = GS_OK;
    if (json_array_size(stories) == 0)
        rc = gs_fail(err, errlen, GS_ERR_NOT_FOUND, "the request has no sequences yet");
    json_array_foreach(stories, i, story) {
        if (i > 0)
            printf("\n");
        print_story(story);
    }
    json_decref(v);
    return rc;
}

static int ask(const gs_config *cfg, const gs_config_flag *flags, char *err, size_t errlen) {
    gs_http_target target;
    gs_http_answer answer = {0};
    char path[512];
    const char *user = flags[F_USER].value;
    if (cfg->n_positional != 1)
        return gs_fail(err, errlen, GS_ERR_INVALID, "say which request (its X-Request-Id)");
    if (strpbrk(cfg->positional[0], "/?# ") || (user && strpbrk(user, "&#% ")))
        return gs_fail(err, errlen, GS_ERR_INVALID, "'%.60s' is no request's id",
                       cfg->positional[0]);
    snprintf(path, sizeof(path), "/v1/requests/%.100s%s%.100s", cfg->positional[0],
             user ? "?user=" : "", user ? user : "");
    int rc = gs_jobs_target(cfg, flags[F_URL].value, flags[F_KEY].value, &target, err, errlen);
    if (rc == GS_OK)
        rc = gs_http_call(&target, "GET", path, NULL, 0, &answer, err, errlen);
    if (rc == GS_OK && answer.status != 200) {
        gs_jobs_error_text(&answer, err, errlen);
        rc = GS_ERR_NOT_FOUND;
    }
    if (rc == GS_OK)
        rc = print_all(&answer, err, errlen);
    gs_http_answer_deinit(&answer);
    return rc;
}

int gs_cmd_why(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[512] = "";
    memcpy(flags, flag_table, sizeof(flags));
    int rc =
        gs_cli_config(&cfg, gs_cli_command("why"), argc, argv, flags, N_FLAGS, err, sizeof(err));
    if (rc == GS_OK)
        rc = ask(&cfg, flags, err, sizeof(err));
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 1 : 0;
}
