/* automap published: predictions beside measured training runs. */
#include "api/option_rows.h"
#include "cli/commands/search_progress.h"

static AmStatus run_published(const Cli *cli, AmError *error) {
    SearchProgressLine progress;
    search_progress_open(&progress, cli, PROGRESS_SWEEP, 0);
    AmCallbacks callbacks = cli_callbacks(cli);
    if (progress.line.is_shown) {
        callbacks.user = &progress;
        callbacks.on_progress = search_progress_show;
        callbacks.on_message = NULL; /* rows have no warnings */
    }
    AmStatus status = cli_report(cli, AM_COMMAND_PUBLISHED, &callbacks, error);
    search_progress_close(&progress);
    return status;
}

static const CliOption options[] = {CLI_GROUP("rows"), PUBLISHED_ROWS(CLI_ROW) CLI_GROUP("output"),
                                    PUBLISHED_OUTPUT_ROWS(CLI_ROW){0}};

const CliCommand CLI_PUBLISHED = {.name = "published",
                                  .arguments = "RUNS.csv",
                                  .summary = "predictions beside measured training runs of a CSV file",
                                  .least_arguments = 1,
                                  .most_arguments = 1,
                                  .options = options,
                                  .examples = "published runs.csv\n"
                                              "published runs.csv --row 12 --write-module m.hlo.pb "
                                              "--write-plan p.json",
                                  .run = run_published};
