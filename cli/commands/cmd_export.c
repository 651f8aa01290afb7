/* automap export: a plan in the form of another system. */
#include "cli/common.h"
#include "cost/simulate/simulate.h"
#include "planners/export/export_dtensor.h"
#include "planners/export/export_hlo.h"
#include "planners/export/export_jax.h"
#include "planners/export/export_megatron.h"
#include "planners/export/whole_layers.h"

/* One format: the function that writes the plan, as JSON or as text, and its notes for the user. */
typedef struct Format {
    const char *name;
    AmStatus (*write_json)(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);
    void (*print)(Text *text, const json_t *root); /* instead of JSON, where that is not asked for; or NULL */
    ShardingSpelling spelling;                     /* of text */
    bool has_spellings;                            /* --spelling chooses among them */
    bool deals_evenly; /* --whole-layers gives stages as many layers each, but for the ends */
    const char *note;
} Format;

static const Format formats[] = {
    {"jax", export_jax, NULL, 0, false, false, "the shardings of intermediate values are left to XLA"},
    {"hlo", NULL, NULL, SHARDING_TILES, true, false,
     "XLA's propagation sets the shardings without a constraint"},
    {"shardy", NULL, NULL, SHARDING_SHARDY, false, false,
     "Shardy's propagation sets the shardings without a constraint"},
    {"dtensor", export_dtensor, NULL, 0, false, false,
     "placements of intermediate values are left to DTensor's operators"},
    {"megatron", export_megatron, export_megatron_print, 0, false, true,
     "add the arguments for the model, the data and the optimizer"},
};

static const struct {
    const char *name;
    ShardingSpelling spelling;
} spellings[] = {{"tiles", SHARDING_TILES}, {"named", SHARDING_NAMED}};

static const char *format_name(int32_t k) {
    return formats[k].name;
}

static const char *spelling_name(int32_t k) {
    return spellings[k].name;
}

static AmStatus find_spelling(const Cli *cli, const Format *format, ShardingSpelling *spelling,
                              AmError *error) {
    int32_t chosen = 0;
    *spelling = format->spelling;
    if (!cli_has(cli, "--spelling")) return AM_OK;
    if (!format->has_spellings) return am_fail(error, AM_ERROR_USAGE, "", "--spelling is for --format hlo");
    TRY(cli_choice(cli, "--spelling", spelling_name, sizeof spellings / sizeof spellings[0], &chosen, error));
    *spelling = spellings[chosen].spelling;
    return AM_OK;
}

static AmStatus write_json(const Cli *cli, const Format *format, const PlanContext *context, const Plan *plan,
                           AmError *error) {
    json_t *exported = NULL;
    TRY(format->write_json(&exported, context, plan, error));
    if (!format->print || cli_has(cli, "--json"))
        return cli_output_json(cli, exported, JSON_STYLE_INDENTED, error);
    Text text = {0};
    format->print(&text, exported);
    json_decref(exported);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus write_text(const Cli *cli, const PlanContext *context, const Plan *plan,
                           ShardingSpelling spelling, AmError *error) {
    Text text = {0};
    AmStatus status = export_hlo(&text, context, plan, spelling, error);
    if (status == AM_OK && cli_has(cli, "--json"))
        status = cli_output_json(cli, json_pack("{s:s}", "text", text.data), JSON_STYLE_COMPACT, error);
    else if (status == AM_OK) status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus simulate_step(double *seconds, Arena *arena, const PlanContext *context, const Plan *plan,
                              const Cluster *cluster, AmError *error) {
    Simulation *simulation;
    TRY(simulate_plan(&simulation, arena, context, plan, cluster, CLUSTER_DEFAULT_MEMORY_FRACTION, error));
    *seconds = simulation->step_seconds;
    return AM_OK;
}

/* Moves the plan's cuts between layers, and reports the effect on the step. */
static AmStatus move_cuts(const Cli *cli, const Format *format, Arena *arena, const PlanContext *context,
                          Plan **plan, AmError *error) {
    Plan *moved;
    int32_t count;
    double before, behind;
    Cluster *cluster = NULL;
    Text note = {0};
    TRY(plan_with_whole_layers(&moved, &count, arena, context, *plan, format->deals_evenly, error));
    if (count == 0) return AM_OK;
    AmStatus status;
    TRY_OR_FAIL(cluster_from_json(&cluster, arena, (*plan)->cluster_description, cli->arguments[0], error));
    TRY_OR_FAIL(simulate_step(&before, arena, context, *plan, cluster, error));
    TRY_OR_FAIL(simulate_step(&behind, arena, context, moved, cluster, error));
    text_append(&note, "%d cut%s moved between layers: the step becomes ", count, count == 1 ? "" : "s");
    text_append_seconds(&note, behind);
    text_append_string(&note, ", it was ");
    text_append_seconds(&note, before);
    cli_note(cli, "note: %s", note.data ? note.data : "");
    *plan = moved;
fail:
    text_free(&note);
    cluster_free(cluster);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    PlanContext *context = NULL;
    Plan *plan;
    Arena arena = {0};
    json_t *root = NULL;
    const char *name;
    int32_t chosen = 0;
    ShardingSpelling spelling;
    AmStatus status;
    TRY_OR_FAIL(cli_need(cli, "--format", &name, error));
    TRY_OR_FAIL(cli_choice(cli, "--format", format_name, sizeof formats / sizeof formats[0], &chosen, error));
    const Format *format = &formats[chosen];
    TRY_OR_FAIL(find_spelling(cli, format, &spelling, error));
    TRY_OR_FAIL(cli_read_model(cli, 1, &context, error));
    TRY_OR_FAIL(plan_read(&plan, &root, &arena, context, cli->arguments[0], error));
    if (cli_has(cli, "--whole-layers")) TRY_OR_FAIL(move_cuts(cli, format, &arena, context, &plan, error));
    if (format->write_json) TRY_OR_FAIL(write_json(cli, format, context, plan, error));
    else TRY_OR_FAIL(write_text(cli, context, plan, spelling, error));
    cli_note(cli, "note: %s", format->note);
fail:
    if (status == AM_ERROR_INFEASIBLE && error && !error->source[0]) {
        const AmError refusal = *error;
        *error = (AmError){0};
        am_fail(error, refusal.code, cli->arguments[0], "%s", refusal.text);
    }
    json_decref(root);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("export"),
    {"--format", "F", "jax, hlo, shardy, dtensor or megatron (below); required", false},
    {"--whole-layers", NULL, "cuts of a pipeline moved to the nearest layer boundaries", false},
    {"--spelling", "S", "--format hlo: tiles ({devices=[2,4]<=[8]}) or named (mesh axes)", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_EXPORT = {
    .name = "export",
    .arguments = "PLAN MODEL",
    .summary = "the plan for another system, or a refusal with the reason",
    .least_arguments = 2,
    .most_arguments = 2,
    .options = options,
    .notes = "jax: a PartitionSpec for each parameter and output. hlo: the module as text with shardings.\n"
             "shardy: the same with Shardy's attributes. dtensor: placements of PyTorch for each stage.\n"
             "megatron: arguments of Megatron-LM.",
    .examples = "export plan.json model.hlo.pb --format jax -o shardings.json",
    .run = run};
