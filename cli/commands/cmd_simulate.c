/* automap simulate: step time, devices and memory of a plan. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands/simulate_sweep.h"
#include "cli/commands/simulate_trace.h"
#include "cli/common.h"
#include "cli/host.h"
#include "cli/terminal.h"
#include "cost/operator/profile.h"

/* DEVICE=FACTOR, times slower than its type; several, separated by commas. */
static AmStatus read_slowdowns(SimulationOptions *options, Arena *arena, const char *text,
                               const Cluster *cluster, AmError *error) {
    if (!text) return AM_OK;
    double *slowdowns = ARENA_ARRAY(arena, double, cluster->device_count);
    if (!slowdowns) return am_fail_memory(error, cluster->device_count);
    for (const char *at = text; at;) {
        char *end;
        long device = strtol(at, &end, 10);
        bool has_factor = end != at && *end == '=' && device >= 0 && device < cluster->device_count;
        double factor = has_factor ? strtod(at = end + 1, &end) : 0;
        if (!has_factor || end == at || !(factor >= 1e-3 && factor <= 1e3) || (*end != ',' && *end != '\0'))
            return am_fail(
                error, AM_ERROR_USAGE, "",
                "--slow %s: expected DEVICE=FACTOR,... with devices below %d and factors from 0.001 "
                "to 1000",
                text, cluster->device_count);
        if (slowdowns[device] != 0)
            return am_fail(error, AM_ERROR_USAGE, "", "--slow %s: device %ld is named twice", text, device);
        slowdowns[device] = factor;
        at = *end == ',' ? end + 1 : NULL;
    }
    for (int32_t d = 0; d < cluster->device_count; d++)
        if (slowdowns[d] == 0) slowdowns[d] = 1;
    options->slowdowns = slowdowns;
    return AM_OK;
}

static AmStatus read_options(SimulationOptions *options, const Cli *cli, Arena *arena, const Cluster *cluster,
                             AmError *error) {
    double seed = 0;
    *options = (SimulationOptions){.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION, .with_details = true};
    TRY(cli_number(cli, "--memory-fraction", 1e-6, 1, &options->memory_fraction, error));
    TRY(cli_number(cli, "--jitter", 0, 10, &options->jitter, error));
    TRY(cli_number(cli, "--seed", 0, 9007199254740992., &seed, error));
    options->seed = (uint64_t)seed;
    return read_slowdowns(options, arena, cli_text(cli, "--slow"), cluster, error);
}

/* With the timeline in `path`, unless that is NULL. */
static AmStatus simulate_traced(Simulation **simulation, Arena *arena, const PlanContext *context,
                                const Plan *plan, const Cluster *cluster, SimulationOptions *options,
                                const char *path, AmError *error) {
    SimulateTrace trace;
    if (!path) return simulate_plan_with(simulation, arena, context, plan, cluster, options, error);
    AmStatus status = simulate_trace_open(&trace, arena, path, plan_context_used(plan, context), plan, error);
    const SimulationObserver observer = {simulate_trace_slice, &trace};
    options->observer = &observer;
    if (status == AM_OK)
        status = simulate_plan_with(simulation, arena, context, plan, cluster, options, error);
    if (status == AM_OK) status = simulate_trace_end(&trace, *simulation);
    simulate_trace_close(&trace);
    return status;
}

/* The lines of a text as an array of strings. */
static json_t *lines_to_json(const char *text) {
    json_t *lines = json_array();
    while (*text) {
        size_t length = strcspn(text, "\n");
        json_array_append_new(lines, json_stringn(text, length));
        text += length + (text[length] == '\n');
    }
    return lines;
}

static AmStatus print(const Cli *cli, const Simulation *simulation, const Text *collectives, AmError *error) {
    if (cli_has(cli, "--json")) {
        json_t *json = simulation_to_json(simulation);
        if (collectives->data) json_object_set_new(json, "derivation", lines_to_json(collectives->data));
        return cli_output_json(cli, json, JSON_STYLE_COMPACT, error);
    }
    Text text = {.is_styled = terminal_output_is_styled(cli)};
    simulation_print(&text, simulation);
    if (collectives->data) text_append_string(&text, collectives->data);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus simulate(const Cli *cli, Arena *arena, PlanContext *context, json_t **root, Cluster **cluster,
                         Profile *profile, Text *collectives, AmError *error) {
    Plan *plan;
    Simulation *simulation;
    SimulationOptions options;
    const char *other = cli_text(cli, "--cluster");
    TRY(plan_read(&plan, root, arena, context, cli->arguments[0], error));
    if (other) TRY(cli_read_cluster(cli, cluster, arena, other, error));
    else TRY(cluster_from_json(cluster, arena, plan->cluster_description, cli->arguments[0], error));
    const char *measured = cli_text(cli, "--profile");
    if (measured) TRY(profile_read(profile, measured, error));
    if (measured) TRY(profile_attach(profile, *cluster, measured, error));
    TRY(read_options(&options, cli, arena, *cluster, error));
    if (cli_has(cli, "--verbose")) options.collectives = collectives;
    AmStatus status = simulate_traced(&simulation, arena, context, plan, *cluster, &options,
                                      cli_text(cli, "--trace"), error);
    am_error_source(error, cli->arguments[0]);
    TRY(status);
    cli_warn(cli, &simulation->warnings);
    return print(cli, simulation, collectives, error);
}

static AmStatus run(const Cli *cli, AmError *error) {
    Arena arena = {0};
    PlanContext *context = NULL;
    Cluster *cluster = NULL;
    json_t *root = NULL;
    Profile *profile = NULL;
    Text collectives = {0};
    bool sweeps;
    TRY(simulate_sweep_wanted(&sweeps, cli, error));
    if (sweeps) return simulate_sweep(cli, error);
    AmStatus status = profile_open(&profile, error);
    if (status == AM_OK) status = cli_read_model(cli, 1, &context, error);
    if (status == AM_OK)
        status = simulate(cli, &arena, context, &root, &cluster, profile, &collectives, error);
    text_free(&collectives);
    profile_close(profile);
    cluster_free(cluster);
    json_decref(root);
    plan_context_free(context);
    arena_free(&arena);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("simulation"),
    {"--cluster", "CLUSTER", "another cluster than the plan's", false},
    CLI_OPTION_NO_PROBE,
    {"--profile", "FILE", "measured operator times (from run --profile)", false},
    {"--memory-fraction", "F", "usable part of a device's memory (default 0.9)", false},
    {"--jitter", "F", "random delay of operators, as a mean fraction of their time", false},
    {"--seed", "N", "seed of the jitter (default 0)", false},
    {"--slow", "DEVICE=FACTOR,...", "slow devices: operators take FACTOR times as long", false},
    CLI_OPTION_ROLES,
    SIMULATE_SWEEP_OPTIONS,
    CLI_GROUP("output"),
    {"--trace", "T.json", "timeline as a Chrome trace (opens in Perfetto)", false},
    {"--verbose", NULL, "cost of each collective and transfer, with the other algorithms", false},
    {0}};

const CliCommand CLI_SIMULATE = {.name = "simulate",
                                 .arguments = "PLAN MODEL | --sweep MODEL",
                                 .summary = "step time, collectives, and each device's time and memory",
                                 .least_arguments = 1,
                                 .most_arguments = 2,
                                 .options = options,
                                 .examples = "simulate plan.json model.hlo.pb\n"
                                             "simulate --sweep model.hlo.pb --cluster h100:4",
                                 .run = run};
