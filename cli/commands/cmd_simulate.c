/* automap simulate: step time, devices and memory of a plan. */
#include "api/option_rows.h"
#include "cli/commands/simulate_sweep.h"
#include "cli/commands/simulate_trace.h"
#include <stdlib.h>
#include <string.h>

#include "cli/common.h"
#include "cli/host.h"
#include "cli/terminal.h"

/* With the timeline in `path`, unless that is NULL. */
static AmStatus simulate_traced(AmSimulation **simulation, Arena *arena, const AmPlan *plan,
                                const AmCluster *cluster, const AmOptions *options,
                                const AmCallbacks *callbacks, const char *path, AmError *error) {
    SimulateTrace trace;
    if (!path) return am_simulate(simulation, plan, cluster, options, callbacks, error);
    AmStatus status = simulate_trace_open(&trace, arena, path, plan_context_used(plan->plan, plan->whole),
                                          plan->plan, error);
    const SimulationObserver observer = {simulate_trace_slice, &trace};
    if (status == AM_OK)
        status = api_simulate(simulation, plan, cluster, options, callbacks, &observer, error);
    if (status == AM_OK) status = simulate_trace_end(&trace, (*simulation)->simulation);
    simulate_trace_close(&trace);
    return status;
}

typedef struct Simulating {
    Arena arena;
    AmModule *module;
    AmPlan *plan;
    AmCluster *cluster; /* of --cluster, or NULL */
    AmOptions *options;
    AmSimulation *simulation;
} Simulating;

static AmStatus simulate(const Cli *cli, Simulating *self, AmError *error) {
    const char *other = cli_text(cli, "--cluster");
    const AmCallbacks callbacks = {
        .size = sizeof callbacks, .user = (void *)cli, .on_message = cli_on_message};
    TRY(cli_read_module(cli, 1, &self->module, error));
    TRY(am_plan_read(&self->plan, self->module, cli->arguments[0], error));
    if (other) TRY(cli_open_cluster(cli, &self->cluster, other, error));
    TRY(cli_api_options(cli, AM_COMMAND_SIMULATE, &self->options, error));
    TRY(simulate_traced(&self->simulation, &self->arena, self->plan, self->cluster, self->options, &callbacks,
                        cli_text(cli, "--trace"), error));
    bool is_json = cli_has(cli, "--json");
    Text text = {.is_styled = !is_json && terminal_output_is_styled(cli)};
    AmStatus status =
        api_append_simulation(&text, self->simulation, is_json ? AM_FORMAT_JSON : AM_FORMAT_TEXT, error);
    if (status == AM_OK) status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
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
    arena_free(&self.arena);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("simulation"),
    {"--cluster", "CLUSTER", "another cluster than the plan's", false},
    CLI_OPTION_NO_PROBE,
    SIMULATE_ROWS(CLI_ROW) CLI_OPTION_ROLES,
    SIMULATE_SWEEP_OPTIONS CLI_GROUP("output"),
    {"--trace", "T.json", "timeline as a Chrome trace (opens in Perfetto)", false},
    SIMULATE_OUTPUT_ROWS(CLI_ROW){0}};

const CliCommand CLI_SIMULATE = {.name = "simulate",
                                 .arguments = "PLAN MODEL | --sweep MODEL",
                                 .summary = "step time, collectives, and each device's time and memory",
                                 .least_arguments = 1,
                                 .most_arguments = 2,
                                 .options = options,
                                 .examples = "simulate plan.json model.hlo.pb\n"
                                             "simulate --sweep model.hlo.pb --cluster h100:4",
                                 .run = run};
