/* automap diff: the differences of two plans of one module. */
#include "api/option_rows.h"
#include "cli/common.h"

static AmStatus run_diff(const Cli *cli, AmError *error) {
    AmCallbacks callbacks = cli_callbacks(cli);
    AmModule *module = NULL;
    AmPlan *plans[2] = {NULL, NULL};
    AmStatus status;
    char *text;
    size_t bytes;
    TRY_OR_FAIL(cli_read_module(cli, 2, &module, error));
    for (int32_t k = 0; k < 2; k++) TRY_OR_FAIL(am_plan_read(&plans[k], module, cli->arguments[k], error));
    TRY_OR_FAIL(am_diff(plans[0], plans[1], cli_format(cli), &callbacks, &text, &bytes, error));
    status = cli_output_buffer(cli, text, bytes, error);
fail:
    am_plan_free(plans[0]);
    am_plan_free(plans[1]);
    am_module_free(module);
    return status;
}

static const CliOption options[] = {OPTION_ROW_ROLES(CLI_ROW){0}};

const CliCommand CLI_DIFF = {.name = "diff",
                             .arguments = "PLAN PLAN MODEL",
                             .summary = "differences of two plans and the cost of each",
                             .least_arguments = 3,
                             .most_arguments = 3,
                             .options = options,
                             .examples = "diff found.json megatron.json model.hlo.pb",
                             .run = run_diff};
