/* Bytes become the policy and scheduler events (tests/unit/sched/sim.h): configuration first, then
 * arrivals, cancels, steps and faults, all invariants checked after each. */
#include "../unit/sched/sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

_Noreturn static void sim_fail(const char *what, unsigned long long id) {
    fprintf(stderr, "sequence or step %llu: %s\n", id, what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static sim m; /* large; one run at a time */
    if (n > 4096)
        return -1; /* longer ones reach nothing new */
    if (n == 0)
        return 0;
    m = (sim){.data = data + 1, .n_data = n - 1, .slo = data[0] & 1};
    sim_init(&m);
    while (m.n_data > 0)
        sim_event(&m);
    sim_drain(&m);
    sim_deinit(&m);
    return 0;
}
