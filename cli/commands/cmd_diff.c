/* automap diff: the differences of two plans of one module. */
#include "api/option_rows.h"
#include "cli/common.h"

typedef struct Comparing {
    AmModule *module;
    AmPlan *plans[2];
} Comparing;

static AmStatus compare(const Cli *cli, Comparing *self, AmError *error) {
    AmCallbacks callbacks = cli_callbacks(cli);
    char *text;
    size_t bytes;
    TRY(cli_read_module(cli, 2, &self->module, error));
    for (int32_t k = 0; k < 2; k++)
        TRY(am_plan_read(&self->plans[k], self->module, cli->arguments[k], error));
    TRY(am_diff(self->plans[0], self->plans[1], cli_format(cli), &callbacks, &text, &bytes, error));
    return cli_output_buffer(cli, text, bytes, error);
}

static AmStatus run(const Cli *cli, AmError *error) {
    Comparing self = {0};
    AmStatus status = compare(cli, &self, error);
    am_plan_free(self.plans[0]);
    am_plan_free(self.plans[1]);
    am_module_free(self.module);
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
                             .run = run};
