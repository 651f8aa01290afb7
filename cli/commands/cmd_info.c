/* automap info: instructions, parameters, loops and work of a module. */
#include "api/option_rows.h"
#include "cli/common.h"

static AmStatus run_info(const Cli *cli, AmError *error) {
    return cli_report(cli, AM_COMMAND_INFO, NULL, error);
}

static const CliOption options[] = {CLI_GROUP("module"), INFO_ROWS(CLI_ROW){0}};

const CliCommand CLI_INFO = {.name = "info",
                             .arguments = "MODEL",
                             .summary = "instructions, parameters, FLOPs and linkage groups of a module",
                             .least_arguments = 1,
                             .most_arguments = 1,
                             .options = options,
                             .examples = "info model.hlo.pb",
                             .run = run_info};
