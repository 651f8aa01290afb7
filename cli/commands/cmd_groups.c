/* automap groups: the linkage groups of a module. */
#include "api/option_rows.h"
#include "cli/common.h"

static AmStatus run_groups(const Cli *cli, AmError *error) {
    return cli_report(cli, AM_COMMAND_GROUPS, NULL, error);
}

static const CliOption options[] = {CLI_GROUP("groups"), GROUPS_ROWS(CLI_ROW){0}};

const CliCommand CLI_GROUPS = {.name = "groups",
                               .arguments = "MODEL",
                               .summary = "linkage groups: the weight dimensions that each decision fixes",
                               .least_arguments = 1,
                               .most_arguments = 1,
                               .options = options,
                               .examples = "groups model.hlo.pb --strict --axis-size 4",
                               .run = run_groups};
