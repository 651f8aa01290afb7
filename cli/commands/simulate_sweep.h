/* simulate --sweep: all data x tensor x pipeline degrees of a module on a cluster, as a table. */
#ifndef CLI_COMMANDS_SIMULATE_SWEEP_H
#define CLI_COMMANDS_SIMULATE_SWEEP_H

#include "cli/common.h"

/* Its rows in the table of options. */
#define SIMULATE_SWEEP_OPTIONS                                                                  \
    CLI_GROUP("sweep"),                                                                         \
        {"--sweep", NULL, "all data x tensor x pipeline degrees of MODEL on --cluster", false}, \
        {"--micro-batches", "M", "this number only (default: the powers of two)", false},       \
        {"--schedule", "NAME", "a row for this schedule (default: 1f1b, or gpipe)", true},      \
        {"--plan", "PLAN", "file of the best strategy's plan", false}, {                        \
        "--relax", "NAME", "permitted change of meaning, as in search", true                    \
    }

/* Returns whether a sweep is requested. AM_ERROR_USAGE if arguments or options belong neither to a
 * sweep nor to a plan. */
AmStatus simulate_sweep_wanted(bool *wanted, const Cli *cli, AmError *error);

/* `automap simulate --sweep MODEL --cluster C`. */
AmStatus simulate_sweep(const Cli *cli, AmError *error);

#endif
