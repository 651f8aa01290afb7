/* automap export: a plan in the form of another system. */
#include "cli/common.h"
#include "planners/export_jax.h"

/* One format: how the plan is written, and what the user should know. */
typedef struct Format {
    const char *name;
    AmStatus (*write)(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);
    const char *note;
} Format;

static const Format formats[] = {
    {"jax", export_jax, "the shardings of intermediate values are left to XLA"},
};

static const char *format_name(int32_t k) {
    return formats[k].name;
}

static AmStatus run(const Cli *cli, AmError *error) {
    PlanContext *context = NULL;
    Plan *plan;
    Arena arena = {0};
    json_t *root = NULL, *exported = NULL;
    const char *name;
    int32_t format = 0;
    AmStatus status;
    TRY_OR_FAIL(cli_need(cli, "--format", &name, error));
    TRY_OR_FAIL(cli_choice(cli, "--format", format_name, sizeof formats / sizeof formats[0], &format, error));
    TRY_OR_FAIL(cli_read_model(cli, 1, &context, error));
    TRY_OR_FAIL(plan_read(&plan, &root, &arena, context, cli->arguments[0], error));
    TRY_OR_FAIL(formats[format].write(&exported, context, plan, error));
    TRY_OR_FAIL(cli_output_json(cli, exported, JSON_STYLE_INDENTED, error));
    cli_note(cli, "note: %s", formats[format].note);
fail:
    json_decref(root);
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static const CliOption options[] = {
    {"--format", "F", "jax: a PartitionSpec for each parameter and output", false}, CLI_OPTION_ROLES, {0}};

const CliCommand CLI_EXPORT = {.name = "export",
                               .arguments = "PLAN MODEL",
                               .summary = "the plan for another system, or a refusal with the reason",
                               .least_arguments = 2,
                               .most_arguments = 2,
                               .options = options,
                               .run = run};
