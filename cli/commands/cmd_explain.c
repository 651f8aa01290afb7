/* automap explain: the reasons for a plan's decisions. */
#include "api/option_rows.h"
#include "base/files/file.h"
#include "cli/commands/search_progress.h"
#include "cli/common.h"

/* Writes the page of --html, in addition to the output. */
static AmStatus write_page(const Cli *cli, const AmExplanation *explanation, AmError *error) {
    const char *path = cli_text(cli, "--html");
    char *page;
    size_t bytes;
    if (!path) return AM_OK;
    TRY(am_explanation_print(explanation, AM_FORMAT_HTML, &page, &bytes, error));
    AmStatus status = file_write(path, page, bytes, error);
    am_free(page);
    return status;
}

/* Sets the options of the page of --html. */
static AmStatus set_page_options(const Cli *cli, AmOptions *options, AmError *error) {
    Text command = {0};
    TRY(am_options_set(options, "timeline", NULL, error));
    cli_append_command(cli, &command);
    AmStatus status = command.failed ? am_fail_memory(error, (int64_t)command.capacity)
                                     : am_options_set(options, "command", command.data, error);
    text_free(&command);
    return status;
}

static void note(void *user, AmMessage kind, const char *text) {
    cli_on_message((void *)((SearchProgressLine *)user)->cli, kind, text);
}

static AmStatus run_explain(const Cli *cli, AmError *error) {
    AmModule *module = NULL;
    AmPlan *plan = NULL;
    AmOptions *options = NULL;
    AmExplanation *explanation = NULL;
    SearchProgressLine progress;
    AmStatus status;
    char *text;
    size_t bytes;
    TRY_OR_FAIL(cli_read_module(cli, 1, &module, error));
    if (cli_has(cli, "--html")) TRY_OR_FAIL(file_check_writable(cli_text(cli, "--html"), error));
    TRY_OR_FAIL(cli_api_options(cli, AM_COMMAND_EXPLAIN, &options, error));
    if (cli_has(cli, "--html")) TRY_OR_FAIL(set_page_options(cli, options, error));
    TRY_OR_FAIL(am_plan_read(&plan, module, cli->arguments[0], error));
    bool is_shown = search_progress_open(&progress, cli, PROGRESS_EXPLANATION, 0);
    const AmCallbacks callbacks = {.size = sizeof callbacks,
                                   .user = &progress,
                                   .on_progress = is_shown ? search_progress_show : NULL,
                                   .on_message = note};
    status = am_explain(&explanation, plan, options, &callbacks, error);
    search_progress_close(&progress);
    if (status != AM_OK) goto fail;
    TRY_OR_FAIL(write_page(cli, explanation, error));
    TRY_OR_FAIL(am_explanation_print(explanation, cli_format(cli), &text, &bytes, error));
    status = cli_output_buffer(cli, text, bytes, error);
fail:
    am_explanation_free(explanation);
    am_options_free(options);
    am_plan_free(plan);
    am_module_free(module);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("explanation"),
    {"--html", "R.html", "page with the same content and a timeline of the stages", false},
    EXPLAIN_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW){0}};

const CliCommand CLI_EXPLAIN = {.name = "explain",
                                .arguments = "PLAN MODEL",
                                .summary = "content of each stage and the cost of each decision of a plan",
                                .least_arguments = 2,
                                .most_arguments = 2,
                                .options = options,
                                .examples = "explain plan.json model.hlo.pb --html report.html",
                                .run = run_explain};
