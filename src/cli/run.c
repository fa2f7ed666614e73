/* gamasot run: one prompt through the same engine as the server, streamed to the terminal. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cli/cli.h"

enum { FLAG_MAX_TOKENS, FLAG_TEMPERATURE, FLAG_SEED, FLAG_SYSTEM, FLAG_RAW, FLAG_STATS, N_FLAGS };

typedef struct run {
    gs_config cfg;
    gs_loader loader;
    gs_engine *engine;
    int wake_fd;
    const gs_config_flag *flags;
    gs_ids prompt;
    int64_t began_ns, first_ns;
    int32_t n_output;
} run;

static void wake(void *arg) {
    uint64_t one = 1;
    (void)!write(*(int *)arg, &one, sizeof(one));
}

static void wait_event(run *r) {
    struct pollfd p = {.fd = r->wake_fd, .events = POLLIN};
    uint64_t n;
    if (poll(&p, 1, 1000) > 0)
        (void)!read(r->wake_fd, &n, sizeof(n));
}

static void add_message(gs_jsonw *w, const char *role, const char *content) {
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "role");
    gs_jsonw_str(w, role);
    gs_jsonw_key(w, "content");
    gs_jsonw_str(w, content);
    gs_jsonw_end_obj(w);
}

static int make_prompt(run *r, const char *text, char *err, size_t errlen) {
    const gs_served_model *m = &r->loader.served;
    if (r->flags[FLAG_RAW].value)
        return gs_tok_encode(m->tokenizer, text, strlen(text), GS_TOK_ADD_SPECIAL, &r->prompt, err,
                             errlen);
    gs_buf json = {0}, prompt = {0};
    gs_jsonw w;
    gs_jsonw_init(&w, &json);
    gs_jsonw_arr(&w);
    if (r->flags[FLAG_SYSTEM].value)
        add_message(&w, "system", r->flags[FLAG_SYSTEM].value);
    add_message(&w, "user", text);
    gs_jsonw_end_arr(&w);
    gs_chat_input in = {.messages_json = gs_buf_cstr(&json),
                        .add_generation_prompt = true,
                        .guard = m->tokenizer,
                        .now_s = gs_wall_s()};
    int rc = in.messages_json ? gs_chat_render(m->chat, &in, &prompt, err, errlen) : GS_ERR_NOMEM;
    if (rc == 0)
        rc = gs_tok_encode(m->tokenizer, prompt.data, prompt.len,
                           GS_TOK_PARSE_SPECIAL | GS_TOK_GUARDED, &r->prompt, err, errlen);
    gs_buf_deinit(&json);
    gs_buf_deinit(&prompt);
    return rc;
}

static int number_flag(const gs_config_flag *f, double min, double max, double *out, char *err,
                       size_t errlen) {
    if (!f->value)
        return 0;
    char *end;
    double v = strtod(f->value, &end);
    if (end == f->value || *end || !(v >= min && v <= max))
        return gs_fail(err, errlen, GS_ERR_INVALID, "--%s must be a number between %g and %g",
                       f->name, min, max);
    *out = v;
    return 0;
}

static gs_seq *make_seq(run *r, char *err, size_t errlen) {
    double max_tokens = 512, temperature = 0, seed = 0;
    if (number_flag(&r->flags[FLAG_MAX_TOKENS], 1, 1e6, &max_tokens, err, errlen) != 0 ||
        number_flag(&r->flags[FLAG_TEMPERATURE], 0, 100, &temperature, err, errlen) != 0 ||
        number_flag(&r->flags[FLAG_SEED], 0, 1e15, &seed, err, errlen) != 0)
        return NULL;
    gs_seq *q = gs_seq_create(r->prompt.data, (int32_t)r->prompt.len, (int32_t)max_tokens);
    if (!q) {
        gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
        return NULL;
    }
    size_t n_eog;
    q->sampler.temperature = (float)temperature;
    q->sampler.eog = gs_tok_eog(r->loader.served.tokenizer, &n_eog);
    q->sampler.n_eog = (int32_t)n_eog;
    q->sampler.seed = (uint64_t)seed;
    if (!r->flags[FLAG_SEED].value)
        (void)gs_random_bytes(&q->sampler.seed, sizeof(q->sampler.seed));
    return q;
}

static void show_token(run *r, gs_detok *d, const gs_event *ev) {
    gs_buf text = {0};
    if (r->n_output++ == 0)
        r->first_ns = gs_now_ns();
    if (!ev->u.token.stop)
        gs_detok_push(d, ev->u.token.sample.token, &text);
    fwrite(text.data ? text.data : "", 1, text.len, stdout);
    fflush(stdout);
    gs_buf_deinit(&text);
}

/* Streams until the sequence is back. */
static int stream(run *r, gs_seq *q, char *err, size_t errlen) {
    gs_detok d;
    gs_detok_init(&d, r->loader.served.tokenizer, false);
    gs_engine_submit(r->engine, q);
    for (;;) {
        gs_event ev;
        if (!gs_engine_poll(r->engine, &ev)) {
            wait_event(r);
            continue;
        }
        if (ev.kind == GS_EVENT_TOKEN) {
            show_token(r, &d, &ev);
        } else if (ev.kind == GS_EVENT_REJECTED) {
            const gs_admission *a = &ev.u.admission;
            return gs_fail(err, errlen, a->code, "%s",
                           a->reason ? a->reason : gs_err_text(a->code));
        } else if (ev.kind == GS_EVENT_END) {
            gs_buf rest = {0};
            gs_detok_flush(&d, &rest);
            printf("%.*s\n", (int)rest.len, rest.data ? rest.data : "");
            gs_buf_deinit(&rest);
            return ev.u.end.reason == GS_END_ERROR
                       ? gs_fail(err, errlen, ev.u.end.err, "%s", gs_err_text(ev.u.end.err))
                       : 0;
        }
    }
}

static void show_stats(const run *r) {
    double ttft = (double)(r->first_ns - r->began_ns) / 1e9;
    double rest = (double)(gs_now_ns() - r->first_ns) / 1e9;
    fprintf(stderr, "%zu prompt tokens, first token after %.3f s, %d tokens at %.1f tok/s\n",
            r->prompt.len, ttft, r->n_output, rest > 0 ? (r->n_output - 1) / rest : 0.0);
}

static int run_prompt(run *r, char *err, size_t errlen) {
    gs_engine_config ec = {.open = gs_loader_open,
                           .open_arg = &r->loader,
                           .max_waiting = 4,
                           .prefill_chunk = r->cfg.engine_prefill_chunk,
                           .max_persons = 1,
                           .wake = wake,
                           .wake_arg = &r->wake_fd};
    int rc = gs_engine_create(&ec, &r->engine, err, errlen);
    if (rc != 0)
        return rc;
    while (gs_engine_get_state(r->engine) == GS_ENGINE_LOADING)
        wait_event(r);
    if (gs_engine_get_state(r->engine) == GS_ENGINE_FAILED)
        return gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "%s", gs_engine_error(r->engine));
    rc = make_prompt(r, r->cfg.positional[0], err, errlen);
    if (rc != 0)
        return rc;
    gs_seq *q = make_seq(r, err, errlen);
    if (!q)
        return GS_ERR_INVALID;
    r->began_ns = gs_now_ns();
    rc = stream(r, q, err, errlen);
    gs_seq_free(q);
    if (rc == 0 && r->flags[FLAG_STATS].value)
        show_stats(r);
    return rc;
}

int gs_cmd_run(int argc, char **argv) {
    gs_config_flag flags[N_FLAGS] = {
        [FLAG_MAX_TOKENS] = {"max-tokens", "N", "most tokens of the answer (512)", NULL},
        [FLAG_TEMPERATURE] = {"temperature", "T", "0 is greedy (0)", NULL},
        [FLAG_SEED] = {"seed", "N", "for temperatures above 0 (random)", NULL},
        [FLAG_SYSTEM] = {"system", "TEXT", "system message", NULL},
        [FLAG_RAW] = {"raw", NULL, "continue the text as it is, without a chat template", NULL},
        [FLAG_STATS] = {"stats", NULL, "print times afterwards", NULL},
    };
    run r = {.flags = flags, .wake_fd = -1};
    char err[512] = "";
    int rc =
        gs_cli_config(&r.cfg, gs_cli_command("run"), argc, argv, flags, N_FLAGS, err, sizeof(err));
    if (rc == 0 && r.cfg.n_positional != 1)
        rc = gs_fail(err, sizeof(err), GS_ERR_INVALID, "give one prompt, in quotes");
    if (rc == 0) {
        gs_log_set_level(r.cfg.source[GS_OPT_log_level] == GS_CONFIG_FROM_DEFAULT
                             ? GS_LOG_WARN
                             : (gs_log_level)r.cfg.log_level);
        r.loader.cfg = &r.cfg;
        r.loader.no_calibration = true;
        r.wake_fd = eventfd(0, EFD_CLOEXEC);
        rc = run_prompt(&r, err, sizeof(err));
        gs_engine_free(r.engine);
        gs_loader_close(&r.loader);
        close(r.wake_fd);
    }
    gs_ids_deinit(&r.prompt);
    gs_config_deinit(&r.cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 1 : 0;
}
