/* automap compare: the predicted timeline of a plan beside the trace of a run. */
#include "api/option_rows.h"
#include "cli/common.h"
#include "cli/open_cluster.h"

static AmStatus run_compare(const Cli *cli, AmError *error) {
    const char *other = cli_text(cli, "--cluster"), *trace;
    const AmCallbacks callbacks = cli_callbacks(cli);
    AmModule *module = NULL;
    AmPlan *plan = NULL;
    AmCluster *cluster = NULL; /* of --cluster */
    AmOptions *options = NULL;
    AmStatus status;
    char *text;
    size_t bytes;
    TRY_OR_FAIL(cli_need(cli, "--trace", &trace, error));
    TRY_OR_FAIL(cli_read_module(cli, 1, &module, error));
    TRY_OR_FAIL(am_plan_read(&plan, module, cli->arguments[0], error));
    if (other) TRY_OR_FAIL(cli_open_cluster(cli, &cluster, other, NULL, error));
    TRY_OR_FAIL(cli_api_options(cli, AM_COMMAND_COMPARE, &options, error));
    TRY_OR_FAIL(am_compare(plan, cluster, cli_format(cli), options, &callbacks, &text, &bytes, error));
    status = cli_output_buffer(cli, text, bytes, error);
fail:
    am_options_free(options);
    am_plan_free(plan);
    am_cluster_free(cluster);
    am_module_free(module);
    return status;
}

static const CliOption options[] = {CLI_GROUP("comparison"),
                                    {"--cluster", "CLUSTER", "another cluster than the plan's", false},
                                    CLI_OPTION_NO_PROBE COMPARE_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW){0}};

const CliCommand CLI_COMPARE = {.name = "compare",
                                .arguments = "PLAN MODEL",
                                .summary = "error of the predicted timeline beside that of a run",
                                .least_arguments = 2,
                                .most_arguments = 2,
                                .options = options,
                                .examples = "run model.hlo.pb --plan plan.json --steps 8 --trace run.json\n"
                                            "compare plan.json model.hlo.pb --trace run.json",
                                .run = run_compare};
