/* automap diff: the differences of two plans of one module. */
#include "cli/common.h"
#include "cli/terminal.h"

typedef struct Comparing {
    AmModule *module;
    AmPlan *plans[2];
} Comparing;

static AmStatus compare(const Cli *cli, Comparing *self, AmError *error) {
    const StopSignal stop = {.interrupted = cli_catch_interrupts()};
    bool is_json = cli_has(cli, "--json");
    TRY(cli_read_module(cli, 2, &self->module, error));
    for (int32_t k = 0; k < 2; k++)
        TRY(am_plan_read(&self->plans[k], self->module, cli->arguments[k], error));
    Text text = {.is_styled = !is_json && terminal_output_is_styled(cli)};
    AmStatus status = api_append_difference(&text, self->plans[0], self->plans[1],
                                            is_json ? AM_FORMAT_JSON : AM_FORMAT_TEXT, &stop, error);
    if (status == AM_OK) status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Comparing self = {0};
    AmStatus status = compare(cli, &self, error);
    am_plan_free(self.plans[0]);
    am_plan_free(self.plans[1]);
    am_module_free(self.module);
    return status;
}

static const CliOption options[] = {CLI_OPTION_ROLES, {0}};

const CliCommand CLI_DIFF = {.name = "diff",
                             .arguments = "PLAN PLAN MODEL",
                             .summary = "differences of two plans and the cost of each",
                             .least_arguments = 3,
                             .most_arguments = 3,
                             .options = options,
                             .examples = "diff found.json megatron.json model.hlo.pb",
                             .run = run};
