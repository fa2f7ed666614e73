/* gamasot serve: event loop, engine, signals. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "api/keys.h"
#include "api/settings.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/thread.h"
#include "cli/cli.h"
#include "cli/confine.h"
#include "config/dirs.h"
#include "sched/policy.h"

/* Of a hash in a recorded trace: the prefix cache finds parts of a KV block, too. */
#define RECORDED_TOKENS   8
#define MAX_LIVE_REQUESTS 4096
#define EXIT_HUNG         70  /* EX_SOFTWARE of sysexits.h */
#define LAST_WORDS_MS     500 /* for requests to hear of it */

typedef struct server {
    int argc;
    char **argv;
    gs_config cfg;
    gs_loader loader; /* of the first model */
    gs_model_list models;
    gs_engine *engine;
    gs_api *api;
    gs_recorder *recorder; /* NULL: none */
    uv_loop_t loop;
    uv_signal_t on_term, on_int, on_hup;
    char keys_file[GS_DIRS_MAX_PATH]; /* "": none */
    char state[GS_DIRS_MAX_PATH];     /* folder of what is kept; "": none, for this reason */
    char state_reason[512];
    char folder[GS_DIRS_MAX_PATH]; /* of models that are pulled; "": none, for this reason */
    char folder_reason[512];
    gs_pull_config pull;
    gs_pull_helper helper;
    bool has_keys;
    gs_model_alias aliases[GS_CONFIG_MAX_ALIASES];
    uv_timer_t loading; /* watches the engine until it is ready */
    uv_timer_t last_words;
    int status;
} server;

static void close_signals(void *arg) {
    server *s = arg;
    uv_close((uv_handle_t *)&s->on_term, NULL);
    uv_close((uv_handle_t *)&s->on_int, NULL);
    uv_close((uv_handle_t *)&s->on_hup, NULL);
    if (!uv_is_closing((uv_handle_t *)&s->loading))
        uv_close((uv_handle_t *)&s->loading, NULL);
}

/* ---- An engine that is of no use any more -------------------------------------------------- */

static void on_last_words(uv_timer_t *h) {
    (void)h;
    gs_error("serve", "ended status=%d", EXIT_HUNG);
    _exit(EXIT_HUNG); /* there are threads that nobody can join */
}

static void give_up(void *arg) {
    server *s = arg;
    gs_notify("STOPPING=1\nSTATUS=the compute backend does not answer");
    gs_api_drain(s->api, 0, close_signals, s);
    uv_timer_init(&s->loop, &s->last_words);
    uv_timer_start(&s->last_words, on_last_words, LAST_WORDS_MS, 0);
}

static void on_signal(uv_signal_t *h, int signum) {
    server *s = h->data;
    static bool second;
    if (second)
        _exit(128 + signum);
    second = true;
    gs_info("serve", "signal=%d, ending; a second one ends at once", signum);
    gs_notify("STOPPING=1\nSTATUS=ending; running requests may finish");
    /* A hanging backend must not keep the process: SIGALRM's default action is the last resort. */
    alarm((unsigned)(s->cfg.server_drain_timeout_ms / 1000 + 2));
    if (s->cfg.model_backend == GS_CONFIG_BACKEND_FAKE &&
        gs_engine_get_state(s->engine) == GS_ENGINE_READY)
        gs_fake_release(gs_engine_backend(s->engine, 0));
    gs_api_drain(s->api, (int)s->cfg.server_drain_timeout_ms, close_signals, s);
}

static void on_hangup(uv_signal_t *h, int signum) {
    const server *s = h->data;
    gs_info("serve", "signal=%d, reading the workers of the configuration again", signum);
    gs_api_reload(s->api);
}

static void warn_of_aliases(const server *s) {
    for (size_t i = 0; i < s->cfg.n_aliases; i++) {
        const gs_model_alias *found;
        if (!gs_api_find_name(s->api, s->cfg.aliases[i].name, &found))
            gs_warn("serve", "alias %s: the model '%s' is not served here%s",
                    s->cfg.aliases[i].name, s->cfg.aliases[i].model,
                    s->cfg.n_workers > 0 ? ", unless a worker has it" : "");
    }
}

static void on_loading(uv_timer_t *h) {
    server *s = h->data;
    gs_engine_state state = gs_engine_get_state(s->engine);
    if (state == GS_ENGINE_LOADING)
        return;
    uv_close((uv_handle_t *)h, NULL);
    if (state == GS_ENGINE_READY) {
        gs_info("serve", "ready model=%s load_ms=%.0f", s->loader.served.name,
                s->loader.served.load_ms);
        gs_notify("READY=1\nSTATUS=serving %s on port %d", s->loader.served.name,
                  gs_api_port(s->api));
        warn_of_aliases(s);
        return;
    }
    gs_error("serve", "the model could not be loaded: %s", gs_engine_error(s->engine));
    gs_notify("STATUS=the model could not be loaded: %s", gs_engine_error(s->engine));
    s->status = 1;
    gs_api_drain(s->api, 0, close_signals, s);
}

static int start_recorder(server *s, char *err, size_t errlen) {
    const gs_config *c = &s->cfg;
    const gs_record_config rc = {.dir = c->record_folder[0] ? c->record_folder : s->state,
                                 .max_bytes = (uint64_t)c->record_max_mb << 20,
                                 .block_tokens = RECORDED_TOKENS};
    if (!rc.dir[0])
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND, "record.enabled needs a folder: %s",
                       s->state_reason);
    return gs_recorder_create(&rc, &s->recorder, err, errlen);
}

static int listen_and_load(server *s, char *err, size_t errlen) {
    const gs_config *c = &s->cfg;
    gs_engine_settings settings;
    int rc = gs_settings_read(c, &settings, err, errlen);
    if (rc != 0)
        return rc;
    s->loader = (gs_loader){.cfg = c, .state = s->state[0] ? s->state : NULL};
    rc = gs_model_list_init(&s->models, c, &s->loader, err, errlen);
    if (rc != 0)
        return rc;
    gs_engine_config ec = {
        .open = gs_loader_open,
        .open_arg = &s->loader,
        .max_waiting = c->server_max_queued,
        .prefill_chunk = settings.prefill_chunk,
        .classes = settings.classes,
        .slo = &settings.slo,
        .policy = c->sched_policy == GS_CONFIG_POLICY_FCFS ? &gs_policy_fcfs : &gs_policy_slo,
        .max_persons = GS_API_MAX_PERSONS,
        .no_prefix_cache = !c->kv_prefix_cache,
        .prefixes = &s->loader.prefixes,
        .wake = gs_api_wake,
        .wake_arg = &s->api,
        .cost = c->model_backend == GS_CONFIG_BACKEND_NATIVE || c->fake_calibrated ? &s->loader.cost
                                                                                   : NULL,
        .check = c->engine_check};
    gs_http_config hc;
    gs_http_config_default(&hc);
    hc.hosts = (const char *const *)c->server_host.items;
    hc.n_hosts = (int)c->server_host.n;
    hc.port = c->server_port;
    hc.max_connections = c->server_max_connections;
    hc.max_connections_per_address = c->server_max_connections_per_address;
    hc.header_timeout_ms = (int)c->server_header_timeout_ms;
    hc.body_timeout_ms = (int)c->server_body_timeout_ms;
    hc.keep_alive_ms = (int)c->server_keep_alive_ms;
    hc.max_body_bytes = (size_t)c->server_max_body_kb * 1024;
    gs_api_config ac = {.model = &s->loader.served,
                        .loading = &s->models.loading,
                        .pull_helper = s->helper.fd >= 0 ? &s->helper : NULL,
                        .pull = s->folder[0] ? &s->pull : NULL,
                        .pull_reason = s->folder_reason,
                        .rescan_ms = (int)c->models_rescan_ms,
                        .memory_bytes = s->models.memory_bytes,
                        .api_keys = (const char *const *)c->server_api_keys.items,
                        .n_api_keys = (int)c->server_api_keys.n,
                        .aliases = s->aliases,
                        .n_aliases = (int)c->n_aliases,
                        .keys_file = s->keys_file[0] ? s->keys_file : NULL,
                        .allowed_hosts = (const char *const *)c->server_allowed_hosts.items,
                        .n_allowed_hosts = (int)c->server_allowed_hosts.n,
                        .allowed_origins = (const char *const *)c->server_allowed_origins.items,
                        .n_allowed_origins = (int)c->server_allowed_origins.n,
                        .metrics_persons = c->metrics_persons,
                        .max_live_requests = MAX_LIVE_REQUESTS,
                        .config = &s->cfg,
                        .state_folder = s->state[0] ? s->state : NULL,
                        .state_reason = s->state_reason,
                        .stall_ns = c->engine_stall_ms * GS_NS_PER_MS,
                        .restart_ns = c->engine_restart_ms * GS_NS_PER_MS,
                        .give_up = give_up,
                        .give_up_arg = s};
    if (c->record_enabled && (rc = start_recorder(s, err, errlen)) != 0)
        return rc;
    ac.recorder = s->recorder;
    /* The port first: when it is taken, the answer should not have to wait for a model. */
    rc = gs_api_create(&s->loop, &ac, &hc, &s->api, err, errlen);
    if (rc != 0)
        return rc;
    gs_api_apply_hours(s->api, &settings);
    gs_confine_calls(c);
    rc = gs_engine_create(&ec, &s->engine, err, errlen);
    if (rc == 0)
        gs_api_set_engine(s->api, s->engine);
    return rc;
}

/* The keys there are, before a port is opened to whom they are to keep out. */
static int check_keys(server *s, char *err, size_t errlen) {
    gs_keys keys = {0};
    /* Without a state folder there is no file, and no harm unless it is needed. */
    int rc = gs_keys_path(&s->cfg, s->keys_file, sizeof(s->keys_file), err, errlen);
    if (rc != 0) {
        gs_warn("serve", "no file of keys: %s", err);
        s->keys_file[0] = '\0';
    } else {
        rc = gs_keys_load(s->keys_file, &keys, err, errlen);
        if (rc != 0)
            return rc;
    }
    s->has_keys = keys.n > 0 || s->cfg.server_api_keys.n > 0;
    gs_keys_deinit(&keys);
    return gs_config_check_serve(&s->cfg, s->has_keys, err, errlen);
}

/* Before there is a second thread: the zone is the process's. */
static int set_time_zone(const gs_config *c, char *err, size_t errlen) {
    const char *zone = c->background_time_zone;
    char path[320];
    if (!zone[0])
        return 0;
    snprintf(path, sizeof(path), "/usr/share/zoneinfo/%s", zone);
    bool ok =
        strlen(zone) <= 255 && zone[0] != '.' && !strstr(zone, "..") && access(path, R_OK) == 0;
    if (ok)
        ok = setenv("TZ", zone, 1) == 0; // NOLINT(concurrency-mt-unsafe): there is one thread yet
    if (!ok)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "background.time_zone: '%.60s' is no time zone of this machine, such as "
                       "Europe/Berlin",
                       zone);
    tzset();
    return 0;
}

static void find_state(server *s) {
    const char *own = s->cfg.store_folder;
    int n = snprintf(s->state, sizeof(s->state), "%s", own);
    int rc = GS_ERR_TOO_LARGE;
    if (!own[0])
        rc = gs_dirs_state(s->state, sizeof(s->state), s->state_reason, sizeof(s->state_reason));
    else if (n > 0 && (size_t)n < sizeof(s->state))
        rc = gs_dirs_make(s->state, s->state_reason, sizeof(s->state_reason));
    if (rc == 0)
        return;
    s->state[0] = '\0';
    gs_warn("serve", "files and batches are not available: %s", s->state_reason);
}

static void find_models_folder(server *s) {
    if (gs_models_folder(&s->cfg, s->folder, sizeof(s->folder), s->folder_reason,
                         sizeof(s->folder_reason)) != 0) {
        gs_warn("serve", "no models can be pulled: %s", s->folder_reason);
        s->folder[0] = '\0';
    }
    s->pull = gs_models_pull_config(&s->cfg, s->folder);
}

static void confine_puller(void *arg) {
    server *s = arg;
    gs_config_wipe_secrets(&s->cfg, s->argc, s->argv);
    gs_confine_puller(&s->cfg, s->folder);
}

/* Where nobody needs a key, whoever reaches the port is an admin: there it takes a word of the
 * owner's. */
static void start_helper(server *s) {
    char err[256] = "";
    const bool asked = s->cfg.source[GS_OPT_models_pull] != GS_CONFIG_FROM_DEFAULT;
    s->helper.fd = -1;
    if (!s->folder[0] || !s->cfg.models_pull || !(s->has_keys || asked))
        return;
    if (gs_pull_helper_start(&s->pull, confine_puller, s, &s->helper, err, sizeof(err)) != 0)
        gs_warn("serve", "no models can be pulled through this server: %s", err);
}

static int read_aliases(server *s, char *err, size_t errlen) {
    for (size_t i = 0; i < s->cfg.n_aliases; i++) {
        const gs_config_alias *a = &s->cfg.aliases[i];
        int cls = a->class_name[0] ? gs_class_parse(a->class_name) : -1;
        if (a->class_name[0] && cls < 0)
            return gs_fail(err, errlen, GS_ERR_INVALID, "alias %s: '%.40s' is no class", a->name,
                           a->class_name);
        s->aliases[i] = (gs_model_alias){a->name, a->model, cls};
    }
    return 0;
}

int gs_cmd_serve(int argc, char **argv) {
    static server s;
    char err[512] = "";
    s.argc = argc;
    s.argv = argv;
    int rc = gs_cli_config(&s.cfg, gs_cli_command("serve"), argc, argv, NULL, 0, err, sizeof(err));
    if (rc == 0)
        rc = check_keys(&s, err, sizeof(err));
    if (rc == 0)
        rc = set_time_zone(&s.cfg, err, sizeof(err));
    if (rc == 0)
        rc = read_aliases(&s, err, sizeof(err));
    if (rc == 0 && s.cfg.n_positional > 0)
        rc =
            gs_fail(err, sizeof(err), GS_ERR_INVALID, "'%s' is not an option", s.cfg.positional[0]);
    if (rc != 0) {
        gs_config_deinit(&s.cfg);
        if (rc < 0)
            fprintf(stderr, "gamasot: %s\n", err);
        return rc < 0 ? 2 : 0;
    }
    gs_log_set_level((gs_log_level)s.cfg.log_level);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is as a full disk */
    find_state(&s);
    if (s.state[0])
        gs_added_read(s.state, &s.cfg);
    find_models_folder(&s);
    start_helper(&s);
    gs_thread_wake_soon(); /* before the walls, which know no such call */
    gs_confine_files(&s.cfg, &(gs_confine_paths){s.state, s.folder, s.keys_file});
    uv_loop_init(&s.loop);
    rc = listen_and_load(&s, err, sizeof(err));
    gs_config_wipe_secrets(&s.cfg, argc, argv); /* hashed by now */
    if (rc != 0) {
        fprintf(stderr, "gamasot: %s\n", err);
        return 1;
    }
    gs_info("serve", "listening on http://%s:%d", s.cfg.server_host.items[0], gs_api_port(s.api));
    gs_notify("STATUS=loading the model");
    uv_signal_init(&s.loop, &s.on_term);
    uv_signal_init(&s.loop, &s.on_int);
    uv_signal_init(&s.loop, &s.on_hup);
    uv_timer_init(&s.loop, &s.loading);
    s.on_term.data = s.on_int.data = s.on_hup.data = s.loading.data = &s;
    uv_signal_start(&s.on_term, on_signal, SIGTERM);
    uv_signal_start(&s.on_int, on_signal, SIGINT);
    uv_signal_start(&s.on_hup, on_hangup, SIGHUP);
    uv_timer_start(&s.loading, on_loading, 20, 20);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    gs_loader_keep_learned(&s.loader, gs_api_learned_cost(s.api));
    gs_engine_free(s.engine);
    gs_api_free(s.api);
    gs_pull_helper_stop(&s.helper);
    gs_model_list_deinit(&s.models);
    gs_loader_close(&s.loader);
    gs_recorder_free(s.recorder);
    uv_loop_close(&s.loop);
    gs_config_deinit(&s.cfg);
    gs_info("serve", "ended status=%d", s.status);
    return s.status;
}
