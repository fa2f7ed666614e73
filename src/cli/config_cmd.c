/* gamasot config show|reference|metrics */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cli/cli.h"
#include "metrics/expose.h"

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
        else
            rc = gs_fail(err, sizeof(err), GS_ERR_INVALID, "say 'show', 'reference' or 'metrics'");
        if (rc == 0)
            printf("%.*s%s", (int)out.len, out.data ? out.data : "",
                   strcmp(what, "show") == 0 ? "\n" : "");
    }
    gs_buf_deinit(&out);
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 2 : 0;
}
