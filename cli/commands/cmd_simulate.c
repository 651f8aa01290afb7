/* automap simulate: step time, devices and memory of a plan. */
#include "api/option_rows.h"
#include "cli/commands/simulate_sweep.h"
#include "cli/common.h"
#include "cli/open_cluster.h"

static AmStatus run_simulate(const Cli *cli, AmError *error) {
    const char *other = cli_text(cli, "--cluster");
    const AmCallbacks callbacks = cli_callbacks(cli);
    AmModule *module = NULL;
    AmPlan *plan = NULL;
    AmCluster *cluster = NULL; /* of --cluster */
    AmOptions *options = NULL;
    AmSimulation *simulation = NULL;
    AmStatus status;
    char *text;
    size_t bytes;
    bool sweeps;
    TRY(simulate_sweep_wanted(&sweeps, cli, error));
    if (sweeps) return simulate_sweep(cli, error);
    TRY_OR_FAIL(cli_read_module(cli, 1, &module, error));
    TRY_OR_FAIL(am_plan_read(&plan, module, cli->arguments[0], error));
    if (other) TRY_OR_FAIL(cli_open_cluster(cli, &cluster, other, NULL, error));
    TRY_OR_FAIL(cli_api_options(cli, AM_COMMAND_SIMULATE, &options, error));
    TRY_OR_FAIL(am_simulate(&simulation, plan, cluster, options, &callbacks, error));
    TRY_OR_FAIL(am_simulation_print(simulation, cli_format(cli), &text, &bytes, error));
    status = cli_output_buffer(cli, text, bytes, error);
fail:
    am_simulation_free(simulation);
    am_options_free(options);
    am_plan_free(plan);
    am_cluster_free(cluster);
    am_module_free(module);
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
                                 .run = run_simulate};
