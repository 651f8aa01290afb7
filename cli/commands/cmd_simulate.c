/* automap simulate: step time, devices and memory of a plan; with --sweep a table of all strategies of a
 * module on a cluster.
 *
 * The API simulates and prints. This file chooses the output and writes the fastest strategy that fits to
 * --plan.
 */
#include "api/option_rows.h"
#include "base/files/file.h"
#include "cli/commands/search_progress.h"
#include "cli/common.h"
#include "cli/open_cluster.h"

/* ---- sweeps ---- */

/* Writes the fastest strategy to --plan. */
static AmStatus write_best(const Cli *cli, const AmSweep *sweep, AmError *error) {
    const char *path = cli_text(cli, "--plan");
    AmStrategy best = {.size = sizeof best};
    AmPlan *plan;
    if (!path) return AM_OK;
    if (am_sweep_count(sweep) > 0) TRY(am_sweep_strategy(sweep, 0, &best, error));
    if (!best.fits) return am_fail(error, AM_ERROR_INFEASIBLE, "", "--plan: no strategy of the sweep fits");
    TRY(am_sweep_plan(&plan, sweep, 0, error));
    AmStatus status = am_plan_write(plan, path, error);
    am_plan_free(plan);
    return status;
}

/* Runs `automap simulate --sweep MODEL --cluster C`. */
static AmStatus run_sweep(const Cli *cli, AmError *error) {
    const char *name;
    AmModule *module = NULL;
    AmCluster *cluster = NULL;
    AmOptions *options = NULL;
    AmSweep *sweep = NULL;
    SearchProgressLine progress;
    AmStatus status;
    char *text;
    size_t bytes;
    TRY_OR_FAIL(cli_need(cli, "--cluster", &name, error));
    TRY_OR_FAIL(cli_api_options(cli, AM_COMMAND_SWEEP, &options, error));
    if (cli_has(cli, "--plan")) TRY_OR_FAIL(file_check_writable(cli_text(cli, "--plan"), error));
    TRY_OR_FAIL(cli_open_cluster(cli, &cluster, name, NULL, error));
    TRY_OR_FAIL(cli_read_module(cli, 0, &module, error));
    bool is_shown = search_progress_open(&progress, cli, PROGRESS_SWEEP, 0);
    const AmCallbacks callbacks = {
        .size = sizeof callbacks, .user = &progress, .on_progress = is_shown ? search_progress_show : NULL};
    status = am_sweep(&sweep, module, cluster, options, &callbacks, error);
    search_progress_close(&progress);
    if (status != AM_OK) goto fail;
    TRY_OR_FAIL(write_best(cli, sweep, error));
    TRY_OR_FAIL(am_sweep_print(sweep, cli_format(cli), &text, &bytes, error));
    status = cli_output_buffer(cli, text, bytes, error);
fail:
    am_sweep_free(sweep);
    am_options_free(options);
    am_cluster_free(cluster);
    am_module_free(module);
    return status;
}

/* ---- the command ---- */

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
    /* Arguments and options belong either to a sweep or to a plan. */
    static const char *const of_plans[] = {"--trace", "--verbose", "--jitter", "--seed", "--slow"};
    static const char *const of_sweeps[] = {"--micro-batches", "--relax", "--schedule", "--plan"};
    const bool sweeps = cli_has(cli, "--sweep");
    if (sweeps && cli->argument_count != 1)
        return am_fail(error, AM_ERROR_USAGE, "", "expected automap simulate --sweep MODEL, got %d arguments",
                       cli->argument_count);
    if (!sweeps && cli->argument_count != 2)
        return am_fail(error, AM_ERROR_USAGE, "", "expected automap simulate PLAN MODEL, got %d argument%s",
                       cli->argument_count, cli->argument_count == 1 ? "" : "s");
    for (size_t k = 0; sweeps && k < sizeof of_plans / sizeof *of_plans; k++)
        if (cli_has(cli, of_plans[k]))
            return am_fail(error, AM_ERROR_USAGE, "", "%s applies to one plan, not to --sweep", of_plans[k]);
    for (size_t k = 0; !sweeps && k < sizeof of_sweeps / sizeof *of_sweeps; k++)
        if (cli_has(cli, of_sweeps[k]))
            return am_fail(error, AM_ERROR_USAGE, "", "%s applies to --sweep; a plan has its own",
                           of_sweeps[k]);
    if (sweeps) return run_sweep(cli, error);
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

static const CliOption options[] = {
    CLI_GROUP("simulation"),
    {"--cluster", "CLUSTER", "another cluster than the plan's", false},
    CLI_OPTION_NO_PROBE SIMULATE_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW) CLI_GROUP("sweep"),
    {"--sweep", NULL, "all data x tensor x pipeline degrees of MODEL on --cluster", false},
    SWEEP_ROWS(CLI_ROW){"--plan", "PLAN", "file of the best strategy's plan", false},
    CLI_GROUP("output"),
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
