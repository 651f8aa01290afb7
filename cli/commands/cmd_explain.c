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

typedef struct Explaining {
    AmModule *module;
    AmPlan *plan;
    AmOptions *options;
    AmExplanation *explanation;
} Explaining;

static AmStatus explain(const Cli *cli, Explaining *self, AmError *error) {
    SearchProgressLine progress;
    char *text;
    size_t bytes;
    TRY(cli_read_module(cli, 1, &self->module, error));
    if (cli_has(cli, "--html")) TRY(file_check_writable(cli_text(cli, "--html"), error));
    TRY(cli_api_options(cli, AM_COMMAND_EXPLAIN, &self->options, error));
    if (cli_has(cli, "--html")) TRY(set_page_options(cli, self->options, error));
    TRY(am_plan_read(&self->plan, self->module, cli->arguments[0], error));
    bool is_shown = search_progress_open(&progress, cli, PROGRESS_EXPLANATION, 0);
    const AmCallbacks callbacks = {.size = sizeof callbacks,
                                   .user = &progress,
                                   .on_progress = is_shown ? search_progress_show : NULL,
                                   .on_message = note};
    AmStatus status = am_explain(&self->explanation, self->plan, self->options, &callbacks, error);
    search_progress_close(&progress);
    TRY(status);
    TRY(write_page(cli, self->explanation, error));
    TRY(am_explanation_print(self->explanation, cli_format(cli), &text, &bytes, error));
    return cli_output_buffer(cli, text, bytes, error);
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
    EXPLAIN_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW){0}};

const CliCommand CLI_EXPLAIN = {.name = "explain",
                                .arguments = "PLAN MODEL",
                                .summary = "content of each stage and the cost of each decision of a plan",
                                .least_arguments = 2,
                                .most_arguments = 2,
                                .options = options,
                                .examples = "explain plan.json model.hlo.pb --html report.html",
                                .run = run};
