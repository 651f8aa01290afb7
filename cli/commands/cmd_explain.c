/* automap explain: the reasons for a plan's decisions. */
#include "base/files/file.h"
#include "cli/commands/search_progress.h"
#include "cli/common.h"
#include "cli/terminal.h"
#include "planners/explain/explain.h"

/* --html: a separate page, in addition to the output. */
static AmStatus write_page(const Cli *cli, const Explanation *explanation, const char *title,
                           AmError *error) {
    const char *path = cli_text(cli, "--html");
    if (!path) return AM_OK;
    Text page = {0};
    explanation_print_html(&page, explanation, title);
    AmStatus status = page.failed ? am_fail_memory(error, (int64_t)page.capacity)
                                  : file_write(path, page.data, page.length, error);
    text_free(&page);
    return status;
}

static AmStatus print(const Cli *cli, const Explanation *explanation, const char *title, const Plan *plan,
                      const PlanContext *context, AmError *error) {
    if (cli_has(cli, "--json"))
        return cli_output_json(cli,
                               explanation_to_json(explanation, plan_context_used(plan, context)->classes),
                               JSON_STYLE_COMPACT, error);
    Text text = {.is_styled = terminal_output_is_styled(cli)};
    text_append(&text, "%s\n", title);
    explanation_print(&text, explanation);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus explain(const Cli *cli, Arena *arena, PlanContext *context, json_t **root, Cluster **cluster,
                        AmError *error) {
    Plan *plan;
    Explanation *explanation;
    ExplainOptions options = {.with_timeline = cli_has(cli, "--html")};
    if (cli_has(cli, "--html")) TRY(file_check_writable(cli_text(cli, "--html"), error));
    TRY(cli_integer(cli, "--evaluations", 1, INT32_MAX, &options.simulations, error));
    TRY(plan_read(&plan, root, arena, context, cli->arguments[0], error));
    TRY(cluster_from_json(cluster, arena, plan->cluster_description, cli->arguments[0], error));
    SearchProgressLine progress;
    search_progress_begin(&progress, cli, PROGRESS_EXPLANATION, 0, 0);
    options.watch = progress.watch;
    AmStatus status = explain_plan(&explanation, arena, context, plan, *root, *cluster, &options, error);
    search_progress_end(&progress);
    TRY(status);
    const char *title = arena_format(arena, "%s on cluster %s", plan->module_name, plan->cluster_name);
    if (!title) return am_fail_memory(error, 0);
    TRY(write_page(cli, explanation, title, error));
    return print(cli, explanation, title, plan, context, error);
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
    CLI_GROUP("explanation"),
    {"--html", "R.html", "page with the same content and a timeline of the stages", false},
    {"--evaluations", "N", "most changes simulated (default: by the module's size, at least 24)", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_EXPLAIN = {.name = "explain",
                                .arguments = "PLAN MODEL",
                                .summary = "content of each stage and the cost of each decision of a plan",
                                .least_arguments = 2,
                                .most_arguments = 2,
                                .options = options,
                                .examples = "explain plan.json model.hlo.pb --html report.html",
                                .run = run};
