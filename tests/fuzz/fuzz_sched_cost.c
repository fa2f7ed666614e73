/* Any text as a kept calibration: what is accepted predicts times that can be scheduled with. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sched/cost.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gs_cost c, back;
    gs_buf text = {0};
    char err[256] = "";
    gs_cost_prior(&c);
    if (gs_cost_read((const char *)data, size, "fuzz", &c, err, sizeof err) != 0) {
        if (!err[0])
            abort();
        return 0;
    }
    for (int i = 0; i < GS_COST_KNOTS; i++)
        if (!isfinite(c.knot_ns[i]) || c.knot_ns[i] < 0)
            abort();
    gs_cost_prior(&back);
    if (gs_cost_write(&c, "fuzz", &text) != 0 ||
        gs_cost_read(text.data, text.len, "fuzz", &back, err, sizeof err) != 0)
        abort();
    gs_buf_deinit(&text);
    return 0;
}
