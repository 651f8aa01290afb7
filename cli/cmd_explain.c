/* automap explain: why a plan is what it is. */
#include "cli/common.h"
#include "planners/explain.h"

static AmStatus explain(const Cli *cli, Arena *arena, PlanContext *context, json_t **root, Cluster **cluster,
                        AmError *error) {
    Plan *plan;
    Explanation *explanation;
    ExplainOptions options = {0};
    TRY(cli_integer(cli, "--evaluations", 1, INT32_MAX, &options.simulations, error));
    TRY(plan_read(&plan, root, arena, context, cli->arguments[0], error));
    TRY(cluster_from_json(cluster, arena, plan->cluster_description, cli->arguments[0], error));
    TRY(explain_plan(&explanation, arena, context, plan, *root, *cluster, &options, error));
    if (cli_has(cli, "--json"))
        return cli_output_json(cli,
                               explanation_to_json(explanation, plan_context_used(plan, context)->classes),
                               JSON_STYLE_COMPACT, error);
    Text text = {0};
    text_append(&text, "%s on cluster %s\n", plan->module_name, plan->cluster_name);
    explanation_print(&text, explanation);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Arena arena = {0};
    PlanContext *context = NULL;
    Cluster *cluster = NULL;
    json_t *root = NULL;
    AmStatus status = cli_read_model(cli, 1, &context, error);
    if (status == AM_OK) status = explain(cli, &arena, context, &root, &cluster, error);
    cluster_free(cluster);
    json_decref(root);
    plan_context_free(context);
    arena_free(&arena);
    return status;
}

static const CliOption options[] = {
    {"--evaluations", "N", "changes to simulate at most (default: by the module's size, at least 24)", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_EXPLAIN = {
    .name = "explain",
    .arguments = "PLAN MODEL",
    .summary =
        "why: every decision and what the step costs without it, and the collectives with their origin",
    .least_arguments = 2,
    .most_arguments = 2,
    .options = options,
    .run = run};
