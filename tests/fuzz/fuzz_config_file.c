/* libFuzzer target: any bytes as a configuration file; what was accepted must print as JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gs_config cfg;
    gs_buf json = {0};
    char err[256] = "";
    if (gs_config_init(&cfg) != GS_OK)
        abort();
    int rc = gs_config_read_text(&cfg, "fuzz", (const char *)data, size, err, sizeof err);
    if (rc != GS_OK && strncmp(err, "fuzz:", 5) != 0)
        abort(); /* a refusal says where */
    if (rc == GS_OK && (gs_config_json(&cfg, &json) != GS_OK || json.data[json.len - 1] != '}'))
        abort();
    gs_buf_deinit(&json);
    gs_config_deinit(&cfg);
    return 0;
}
