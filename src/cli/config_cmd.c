/* gamasot config show|reference|metrics|commands */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/jsonw.h"
#include "cli/cli.h"
#include "metrics/expose.h"

static void key_str(gs_jsonw *w, const char *key, const char *v) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, v);
}

/* The table of commands, for whoever writes the man page and completes words. */
static int commands_json(gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_arr(&w);
    for (size_t i = 0; gs_cli_command_at(i); i++) {
        const gs_command *c = gs_cli_command_at(i);
        if (c->hidden)
            continue;
        gs_jsonw_obj(&w);
        key_str(&w, "name", c->name);
        key_str(&w, "usage", c->usage);
        key_str(&w, "help", c->help);
        gs_jsonw_end_obj(&w);
    }
    gs_jsonw_end_arr(&w);
    return out->failed ? GS_ERR_NOMEM : 0;
}

int gs_cmd_config(int argc, char **argv) {
    gs_config cfg;
    gs_buf out = {0};
    char err[512] = "";
    int rc = gs_cli_config(&cfg, gs_cli_command("config"), argc, argv, NULL, 0, err, sizeof(err));
    if (rc == 0) {
        const char *what = cfg.n_positional == 1 ? cfg.positional[0] : "";
        if (strcmp(what, "show") == 0)
            rc = gs_config_json(&cfg, &out);
        else if (strcmp(what, "reference") == 0)
            rc = gs_config_reference(&out);
        else if (strcmp(what, "metrics") == 0)
            gs_metrics_reference(&out);
        else if (strcmp(what, "commands") == 0)
            rc = commands_json(&out);
        else
            rc = gs_fail(err, sizeof(err), GS_ERR_INVALID,
                         "say 'show', 'reference', 'metrics' or 'commands'");
        const bool ended = out.data && out.len > 0 && out.data[out.len - 1] == '\n';
        if (rc == 0)
            printf("%.*s%s", (int)out.len, out.data ? out.data : "", ended ? "" : "\n");
    }
    gs_buf_deinit(&out);
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 2 : 0;
}
