/* simulate --sweep: all data x tensor x pipeline degrees of a module on a cluster, as a table. */
#ifndef CLI_SIMULATE_SWEEP_H
#define CLI_SIMULATE_SWEEP_H

#include "cli/common.h"

/* Its rows in the table of options. */
#define SIMULATE_SWEEP_OPTIONS                                                                               \
    {"--sweep", NULL,                                                                                        \
     "of MODEL alone: every data x tensor x pipeline degree and number of micro-batches, best first; needs " \
     "--cluster",                                                                                            \
     false},                                                                                                 \
        {"--micro-batches", "M", "of a sweep: this number alone (default: the powers of two)", false},       \
        {"--schedule", "NAME",                                                                               \
         "of a sweep: a row for this schedule (default: 1f1b, or gpipe where turns cannot alternate)",       \
         true},                                                                                              \
        {"--plan", "PLAN", "of a sweep: write the best strategy's plan", false}, {                           \
        "--relax", "NAME", "of a sweep: as in search", true                                                  \
    }

/* Whether it is asked for. AM_ERROR_USAGE where arguments or options are not those of a sweep, or not those
 * of a plan. */
AmStatus simulate_sweep_wanted(bool *wanted, const Cli *cli, AmError *error);

/* `automap simulate --sweep MODEL --cluster C`. */
AmStatus simulate_sweep(const Cli *cli, AmError *error);

#endif
