/* automap lower: the local program of one device, as text. */
#include "api/option_rows.h"
#include "cli/common.h"

static AmStatus run_lower(const Cli *cli, AmError *error) {
    const char *plan;
    TRY(cli_need(cli, "--plan", &plan, error));
    return cli_report(cli, AM_COMMAND_LOWER, NULL, error);
}

static const CliOption options[] = {CLI_GROUP("program"), LOWER_ROWS(CLI_ROW){0}};

const CliCommand CLI_LOWER = {.name = "lower",
                              .arguments = "MODEL",
                              .summary = "program of one device: local shapes and explicit collectives",
                              .least_arguments = 1,
                              .most_arguments = 1,
                              .options = options,
                              .examples = "lower model.hlo.pb --plan plan.json --device 3",
                              .run = run_lower};
