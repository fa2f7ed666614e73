/* gamasot perplexity TEXT_FILE: the number by which weights, kernels and KV types are judged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "engine/perplexity.h"

enum { FLAG_CHUNK, FLAG_QUIET, N_FLAGS };

static void show_chunk(void *arg, const gs_perplexity_result *r) {
    if (!arg)
        fprintf(stderr, "[%d] %.4f\n", r->n_chunks, r->perplexity);
}

static int measure(gs_config *cfg, const gs_config_flag *flags, char *err, size_t errlen) {
    gs_loader loader = {.cfg = cfg, .quiet = true, .no_calibration = true};
    gs_backend *backend = NULL;
    const void *text = NULL;
    size_t n = 0;
    gs_ids ids = {0};
    long chunk = flags[FLAG_CHUNK].value ? strtol(flags[FLAG_CHUNK].value, NULL, 10) : 512;
    if (chunk < 4 || chunk > 65536)
        return gs_fail(err, errlen, GS_ERR_INVALID, "--chunk must be between 4 and 65536");
    int rc = gs_map_file(cfg->positional[0], &text, &n, err, errlen);
    if (rc == 0)
        rc = gs_loader_open(&loader, &backend, err, errlen);
    if (rc == 0)
        rc = gs_tok_encode(loader.served.tokenizer, text ? text : "", n, 0, &ids, err, errlen);
    if (rc == 0) {
        gs_perplexity_result r;
        int32_t bos =
            gs_tok_add_bos(loader.served.tokenizer) ? gs_tok_bos(loader.served.tokenizer) : -1;
        rc = gs_perplexity(backend, ids.data, (int32_t)ids.len, (int32_t)chunk, bos, show_chunk,
                           flags[FLAG_QUIET].value ? backend : NULL, &r, err, errlen);
        if (rc == 0)
            printf("perplexity %.4f over %d chunks of %ld tokens\n", r.perplexity, r.n_chunks,
                   chunk);
    }
    if (backend)
        backend->ops->destroy(backend);
    gs_loader_close(&loader);
    gs_ids_deinit(&ids);
    gs_unmap(text, n);
    return rc;
}

int gs_cmd_perplexity(int argc, char **argv) {
    gs_config_flag flags[N_FLAGS] = {
        [FLAG_CHUNK] = {"chunk", "N", "tokens of a chunk (512)", NULL},
        [FLAG_QUIET] = {"quiet", NULL, "only the final line", NULL},
    };
    gs_config cfg;
    char err[512] = "";
    int rc = gs_cli_config(&cfg, gs_cli_command("perplexity"), argc, argv, flags, N_FLAGS, err,
                           sizeof(err));
    if (rc == 0 && cfg.n_positional != 1)
        rc = gs_fail(err, sizeof(err), GS_ERR_INVALID, "give one text file");
    if (rc == 0) {
        gs_log_set_level(GS_LOG_WARN);
        rc = measure(&cfg, flags, err, sizeof(err));
    }
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 1 : 0;
}
