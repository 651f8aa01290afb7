/* automap export: a plan in the form of another system. */
#include "cli/common.h"
#include "planners/export_hlo.h"
#include "planners/export_jax.h"

/* One format: how the plan is written, as JSON or as text, and what the user should know. */
typedef struct Format {
    const char *name;
    AmStatus (*write_json)(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);
    ShardingSpelling spelling; /* of text */
    bool has_spellings;        /* --spelling chooses among them */
    const char *note;
} Format;

static const Format formats[] = {
    {"jax", export_jax, 0, false, "the shardings of intermediate values are left to XLA"},
    {"hlo", NULL, SHARDING_TILES, true, "what no constraint says is left to XLA's propagation"},
    {"shardy", NULL, SHARDING_SHARDY, false, "what no constraint says is left to Shardy's propagation"},
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
    return cli_output_json(cli, exported, JSON_STYLE_INDENTED, error);
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
    if (format->write_json) TRY_OR_FAIL(write_json(cli, format, context, plan, error));
    else TRY_OR_FAIL(write_text(cli, context, plan, spelling, error));
    cli_note(cli, "note: %s", format->note);
fail:
    json_decref(root);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static const CliOption options[] = {
    {"--format", "F",
     "jax: a PartitionSpec for each parameter and output; hlo: the module as text with shardings; shardy: "
     "the "
     "same with Shardy's attributes",
     false},
    {"--spelling", "S", "of --format hlo: tiles ({devices=[2,4]<=[8]}) or named (axes of the mesh)", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_EXPORT = {.name = "export",
                               .arguments = "PLAN MODEL",
                               .summary = "the plan for another system, or a refusal with the reason",
                               .least_arguments = 2,
                               .most_arguments = 2,
                               .options = options,
                               .run = run};
