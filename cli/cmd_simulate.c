/* automap simulate: step time, devices and memory of a plan. */
#include "cli/common.h"
#include "cli/simulate_sweep.h"
#include "cli/simulate_trace.h"
#include "cost/profile.h"

/* With the timeline in `path`, unless that is NULL. */
static AmStatus simulate_traced(Simulation **simulation, Arena *arena, const PlanContext *context,
                                const Plan *plan, const Cluster *cluster, double fraction, const char *path,
                                AmError *error) {
    SimulateTrace trace;
    if (!path) return simulate_plan(simulation, arena, context, plan, cluster, fraction, error);
    AmStatus status = simulate_trace_open(&trace, arena, path, plan_context_used(plan, context), plan, error);
    const SimulationObserver observer = {simulate_trace_slice, &trace};
    if (status == AM_OK)
        status =
            simulate_plan_observed(simulation, arena, context, plan, cluster, fraction, &observer, error);
    if (status == AM_OK) status = simulate_trace_end(&trace, *simulation);
    simulate_trace_close(&trace);
    return status;
}

static AmStatus simulate(const Cli *cli, Arena *arena, PlanContext *context, json_t **root, Cluster **cluster,
                         Profile *profile, AmError *error) {
    Plan *plan;
    Simulation *simulation;
    double fraction = CLUSTER_DEFAULT_MEMORY_FRACTION;
    const char *other = cli_text(cli, "--cluster");
    TRY(cli_number(cli, "--memory-fraction", 1e-6, 1, &fraction, error));
    TRY(plan_read(&plan, root, arena, context, cli->arguments[0], error));
    if (other) TRY(cluster_read(cluster, arena, other, error));
    else TRY(cluster_from_json(cluster, arena, plan->cluster_description, cli->arguments[0], error));
    const char *measured = cli_text(cli, "--profile");
    if (measured) TRY(profile_read(profile, measured, error));
    if (measured) TRY(profile_attach(profile, *cluster, measured, error));
    TRY(simulate_traced(&simulation, arena, context, plan, *cluster, fraction, cli_text(cli, "--trace"),
                        error));
    cli_warn(cli, &simulation->warnings);
    if (cli_has(cli, "--json"))
        return cli_output_json(cli, simulation_to_json(simulation), JSON_STYLE_COMPACT, error);
    Text text = {0};
    simulation_print(&text, simulation);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Arena arena = {0};
    PlanContext *context = NULL;
    Cluster *cluster = NULL;
    json_t *root = NULL;
    Profile *profile = NULL;
    bool sweeps;
    TRY(simulate_sweep_wanted(&sweeps, cli, error));
    if (sweeps) return simulate_sweep(cli, error);
    AmStatus status = profile_open(&profile, error);
    if (status == AM_OK) status = cli_read_model(cli, 1, &context, error);
    if (status == AM_OK) status = simulate(cli, &arena, context, &root, &cluster, profile, error);
    profile_close(profile);
    cluster_free(cluster);
    json_decref(root);
    plan_context_free(context);
    arena_free(&arena);
    return status;
}

static const CliOption options[] = {
    {"--cluster", "CLUSTER", "price the plan on another cluster", false},
    {"--profile", "FILE", "measured operators (run --profile), used where they have an answer", false},
    {"--trace", "T.json", "write the timeline as a Chrome trace (opens in Perfetto)", false},
    {"--memory-fraction", "F", "of a device's memory that a plan may fill (default 0.9)", false},
    SIMULATE_SWEEP_OPTIONS,
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_SIMULATE = {.name = "simulate",
                                 .arguments = "PLAN MODEL | --sweep MODEL",
                                 .summary = "step time, collectives, and each device's time and memory",
                                 .least_arguments = 1,
                                 .most_arguments = 2,
                                 .options = options,
                                 .run = run};
