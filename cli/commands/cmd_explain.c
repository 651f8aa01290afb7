/* automap explain: the reasons for a plan's decisions. */
#include "api/option_rows.h"
#include "base/files/file.h"
#include "cli/commands/search_progress.h"
#include "cli/common.h"
#include "cli/terminal.h"
#include "planners/explain/explain.h"

/* --html: a separate page, in addition to the output. */
static AmStatus write_page(const Cli *cli, const AmExplanation *explanation, AmError *error) {
    const char *path = cli_text(cli, "--html");
    Text page = {0}, command = {0};
    if (!path) return AM_OK;
    cli_append_command(cli, &command);
    AmStatus status = api_append_explanation_page(&page, explanation, command.data, error);
    if (status == AM_OK && page.failed) status = am_fail_memory(error, (int64_t)page.capacity);
    if (status == AM_OK) status = file_write(path, page.data, page.length, error);
    text_free(&command);
    text_free(&page);
    return status;
}

typedef struct Explaining {
    AmModule *module;
    AmPlan *plan;
    AmOptions *options;
    AmExplanation *explanation;
} Explaining;

static AmStatus explain(const Cli *cli, Explaining *self, AmError *error) {
    SearchProgressLine progress;
    TRY(cli_read_module(cli, 1, &self->module, error));
    if (cli_has(cli, "--html")) TRY(file_check_writable(cli_text(cli, "--html"), error));
    TRY(cli_api_options(cli, AM_COMMAND_EXPLAIN, &self->options, error));
    if (cli_has(cli, "--html")) TRY(am_options_set(self->options, "timeline", NULL, error));
    TRY(am_plan_read(&self->plan, self->module, cli->arguments[0], error));
    bool is_shown = search_progress_open(&progress, cli, PROGRESS_EXPLANATION, 0);
    const AmCallbacks callbacks = {
        .size = sizeof callbacks, .user = &progress, .on_progress = is_shown ? search_progress_show : NULL};
    AmStatus status = am_explain(&self->explanation, self->plan, self->options, &callbacks, error);
    search_progress_close(&progress);
    TRY(status);
    TRY(write_page(cli, self->explanation, error));
    bool is_json = cli_has(cli, "--json");
    Text text = {.is_styled = !is_json && terminal_output_is_styled(cli)};
    status =
        api_append_explanation(&text, self->explanation, is_json ? AM_FORMAT_JSON : AM_FORMAT_TEXT, error);
    if (status == AM_OK) status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Explaining self = {0};
    AmStatus status = explain(cli, &self, error);
    am_explanation_free(self.explanation);
    am_options_free(self.options);
    am_plan_free(self.plan);
    am_module_free(self.module);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("explanation"),
    {"--html", "R.html", "page with the same content and a timeline of the stages", false},
    EXPLAIN_ROWS(CLI_ROW) CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_EXPLAIN = {.name = "explain",
                                .arguments = "PLAN MODEL",
                                .summary = "content of each stage and the cost of each decision of a plan",
                                .least_arguments = 2,
                                .most_arguments = 2,
                                .options = options,
                                .examples = "explain plan.json model.hlo.pb --html report.html",
                                .run = run};
