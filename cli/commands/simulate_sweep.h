/* simulate --sweep: all data x tensor x pipeline degrees of a module on a cluster, as a table. */
#ifndef CLI_COMMANDS_SIMULATE_SWEEP_H
#define CLI_COMMANDS_SIMULATE_SWEEP_H

#include "api/option_rows.h"
#include "cli/common.h"

/* Its rows in the table of options. */
#define SIMULATE_SWEEP_OPTIONS                                                                  \
    CLI_GROUP("sweep"),                                                                         \
        {"--sweep", NULL, "all data x tensor x pipeline degrees of MODEL on --cluster", false}, \
        SWEEP_ROWS(CLI_ROW){"--plan", "PLAN", "file of the best strategy's plan", false},

/* Returns whether a sweep is requested. AM_ERROR_USAGE if arguments or options belong neither to a
 * sweep nor to a plan. */
AmStatus simulate_sweep_wanted(bool *wanted, const Cli *cli, AmError *error);

/* Runs `automap simulate --sweep MODEL --cluster C`. */
AmStatus simulate_sweep(const Cli *cli, AmError *error);

#endif
