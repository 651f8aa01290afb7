/* automap compare: the predicted timeline of a plan beside the trace of a run. */
#include "api/option_rows.h"
#include "cli/common.h"
#include "cli/open_cluster.h"

typedef struct Comparing {
    AmModule *module;
    AmPlan *plan;
    AmCluster *cluster; /* of --cluster, or NULL */
    AmOptions *options;
} Comparing;

static AmStatus compare(const Cli *cli, Comparing *self, AmError *error) {
    const char *other = cli_text(cli, "--cluster"), *trace;
    const AmCallbacks callbacks = cli_callbacks(cli);
    char *text;
    size_t bytes;
    TRY(cli_need(cli, "--trace", &trace, error));
    TRY(cli_read_module(cli, 1, &self->module, error));
    TRY(am_plan_read(&self->plan, self->module, cli->arguments[0], error));
    if (other) TRY(cli_open_cluster(cli, &self->cluster, other, NULL, error));
    TRY(cli_api_options(cli, AM_COMMAND_COMPARE, &self->options, error));
    TRY(am_compare(self->plan, self->cluster, cli_format(cli), self->options, &callbacks, &text, &bytes,
                   error));
    return cli_output_buffer(cli, text, bytes, error);
}

static AmStatus run(const Cli *cli, AmError *error) {
    Comparing self = {0};
    AmStatus status = compare(cli, &self, error);
    am_options_free(self.options);
    am_plan_free(self.plan);
    am_cluster_free(self.cluster);
    am_module_free(self.module);
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
                                .run = run};
