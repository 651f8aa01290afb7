/* automap simulate: step time, devices and memory of a plan. */
#include "api/option_rows.h"
#include "cli/commands/simulate_sweep.h"
#include "cli/common.h"
#include "cli/open_cluster.h"

typedef struct Simulating {
    AmModule *module;
    AmPlan *plan;
    AmCluster *cluster; /* of --cluster, or NULL */
    AmOptions *options;
    AmSimulation *simulation;
} Simulating;

static AmStatus simulate(const Cli *cli, Simulating *self, AmError *error) {
    const char *other = cli_text(cli, "--cluster");
    const AmCallbacks callbacks = cli_callbacks(cli);
    char *text;
    size_t bytes;
    TRY(cli_read_module(cli, 1, &self->module, error));
    TRY(am_plan_read(&self->plan, self->module, cli->arguments[0], error));
    if (other) TRY(cli_open_cluster(cli, &self->cluster, other, NULL, error));
    TRY(cli_api_options(cli, AM_COMMAND_SIMULATE, &self->options, error));
    TRY(am_simulate(&self->simulation, self->plan, self->cluster, self->options, &callbacks, error));
    TRY(am_simulation_print(self->simulation, cli_format(cli), &text, &bytes, error));
    return cli_output_buffer(cli, text, bytes, error);
}

static AmStatus run(const Cli *cli, AmError *error) {
    Simulating self = {0};
    bool sweeps;
    TRY(simulate_sweep_wanted(&sweeps, cli, error));
    if (sweeps) return simulate_sweep(cli, error);
    AmStatus status = simulate(cli, &self, error);
    am_simulation_free(self.simulation);
    am_options_free(self.options);
    am_plan_free(self.plan);
    am_cluster_free(self.cluster);
    am_module_free(self.module);
    return status;
}

static const CliOption options[] = {CLI_GROUP("simulation"),
                                    {"--cluster", "CLUSTER", "another cluster than the plan's", false},
                                    CLI_OPTION_NO_PROBE SIMULATE_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW)
                                        SIMULATE_SWEEP_OPTIONS CLI_GROUP("output"),
                                    SIMULATE_TRACE_ROWS(CLI_ROW) SIMULATE_OUTPUT_ROWS(CLI_ROW){0}};

const CliCommand CLI_SIMULATE = {.name = "simulate",
                                 .arguments = "PLAN MODEL | --sweep MODEL",
                                 .summary = "step time, collectives, and each device's time and memory",
                                 .least_arguments = 1,
                                 .most_arguments = 2,
                                 .options = options,
                                 .examples = "simulate plan.json model.hlo.pb\n"
                                             "simulate --sweep model.hlo.pb --cluster h100:4",
                                 .run = run};
