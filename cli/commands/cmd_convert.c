/* automap convert: a module in another of the three encodings or in mixed precision, or a checkpoint as one
 * file. */
#include "api/option_rows.h"
#include "cli/common.h"

static AmStatus run_convert(const Cli *cli, AmError *error) {
    const AmCallbacks callbacks = cli_callbacks(cli);
    const char *path = cli->argument_count > 1 ? cli->arguments[1] : cli_text(cli, "-o");
    if (!path) return am_fail(error, AM_ERROR_USAGE, "", "expected MODEL OUT; see automap convert --help");
    AmOptions *given = NULL;
    TRY(cli_api_options(cli, AM_COMMAND_CONVERT, &given, error));
    AmStatus status = am_convert(cli->arguments[0], path, given, &callbacks, error);
    am_options_free(given);
    return status;
}

static const CliOption options[] = {CLI_GROUP("mixed precision"), CONVERT_ROWS(CLI_ROW){0}};

const CliCommand CLI_CONVERT = {
    .name = "convert",
    .arguments = "MODEL OUT",
    .summary = "converts a module to binary, JSON or text, by OUT's suffix",
    .least_arguments = 1,
    .most_arguments = 2,
    .options = options,
    .notes =
        "Suffixes: .hlo.pb, .hlo.json and .hlo.txt, each also with .gz or .zst. A folder of checkpoints,\n"
        "or one checkpoint of it, in place of MODEL becomes one file of complete arrays by path,\n"
        ".safetensors or .npz, for run --state.\n"
        "Mixed precision: products and what is between them in bf16; weights, optimizer and loss in f32.",
    .examples = "convert model.hlo.pb model.hlo.txt\n"
                "convert checkpoints state.safetensors\n"
                "convert model.hlo.pb bf16/model.hlo.pb --mixed-precision bf16",
    .run = run_convert};
