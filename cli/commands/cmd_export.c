/* automap export: a plan in the form of another system. */
#include "api/option_rows.h"
#include "cli/common.h"

static AmStatus run_export(const Cli *cli, AmError *error) {
    AmModule *module = NULL;
    AmPlan *plan = NULL;
    AmOptions *options = NULL;
    const AmCallbacks callbacks = cli_callbacks(cli);
    const char *format;
    char *text;
    size_t bytes;
    AmStatus status;
    TRY_OR_FAIL(cli_need(cli, "--format", &format, error));
    TRY_OR_FAIL(cli_api_options(cli, AM_COMMAND_EXPORT, &options, error));
    TRY_OR_FAIL(am_options_check(options, error));
    TRY_OR_FAIL(cli_read_module(cli, 1, &module, error));
    TRY_OR_FAIL(am_plan_read(&plan, module, cli->arguments[0], error));
    TRY_OR_FAIL(am_export(plan, format, options, &callbacks, &text, &bytes, error));
    TRY_OR_FAIL(cli_output_buffer(cli, text, bytes, error));
fail:
    if (status == AM_ERROR_INFEASIBLE && error && !error->source[0]) {
        const AmError refusal = *error;
        *error = (AmError){0};
        am_fail(error, refusal.code, cli->arguments[0], "%s", refusal.text);
    }
    am_options_free(options);
    am_plan_free(plan);
    am_module_free(module);
    return status;
}

static const CliOption options[] = {CLI_GROUP("export"), EXPORT_FORMAT_ROWS(CLI_ROW) EXPORT_ROWS(CLI_ROW)
                                                             OPTION_ROW_ROLES(CLI_ROW){0}};

const CliCommand CLI_EXPORT = {
    .name = "export",
    .arguments = "PLAN MODEL",
    .summary = "the plan for another system, or a refusal with the reason",
    .least_arguments = 2,
    .most_arguments = 2,
    .options = options,
    .notes = "jax: a PartitionSpec for each parameter and output. hlo: the module as text with shardings.\n"
             "shardy: the same with Shardy's attributes. torch (or dtensor): placements of PyTorch for\n"
             "each stage. megatron: arguments of Megatron-LM. torchtitan: a Python function that sets its\n"
             "configuration. automap: the plan file.",
    .examples = "export plan.json model.hlo.pb --format jax -o shardings.json",
    .run = run_export};
