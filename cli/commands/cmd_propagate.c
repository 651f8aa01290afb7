/* automap propagate: the module as HLO text with a sharding on every instruction. */
#include "api/option_rows.h"
#include "cli/common.h"

static AmStatus run_propagate(const Cli *cli, AmError *error) {
    return cli_report(cli, AM_COMMAND_PROPAGATE, NULL, error);
}

static const CliOption options[] = {CLI_GROUP("shardings"), PROPAGATE_ROWS(CLI_ROW){0}};

const CliCommand CLI_PROPAGATE = {
    .name = "propagate",
    .arguments = "MODEL",
    .summary = "HLO text with a sharding on every instruction, from pins",
    .least_arguments = 1,
    .most_arguments = 1,
    .options = options,
    .notes = "A sharding lists each dimension: - is replicated, axes of one dimension are joined by +.",
    .examples = "propagate model.hlo.pb --mesh data=2,model=4 --pin '*kernel=-,model'",
    .run = run_propagate};
