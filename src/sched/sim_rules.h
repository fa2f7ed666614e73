/*
 * What each rule of the "slo" policy is worth: a household scenario for each, simulated with the
 * rule and without it. `gamasot sim --rules` prints the table of docs/scheduling.md.
 */
#ifndef GS_SCHED_SIM_RULES_H
#define GS_SCHED_SIM_RULES_H

#include "sched/sim.h"

typedef struct gs_sim_rule {
    gs_rule rule;
    const char *name;     /* "horizon" */
    const char *scenario; /* a sentence */
    const char *device;   /* gs_sim_device_find */
    const char *metric;   /* what with and without are; lower is better */
    double with, without;
} gs_sim_rule;

int gs_sim_n_rules(void);
/* Fills the i-th row. GS_OK, GS_ERR_NOMEM or GS_ERR_INTERNAL. */
int gs_sim_rule_run(int i, uint64_t seed, gs_sim_rule *out, char *err, size_t errlen);

#endif
