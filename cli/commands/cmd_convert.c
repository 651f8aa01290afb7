/* automap convert: a module in another of the three encodings, or a checkpoint as one file. */
#include "cli/common.h"

static AmStatus run(const Cli *cli, AmError *error) {
    const AmCallbacks callbacks = cli_callbacks(cli);
    const char *path = cli->argument_count > 1 ? cli->arguments[1] : cli_text(cli, "-o");
    if (!path) return am_fail(error, AM_ERROR_USAGE, "", "expected MODEL OUT; see automap convert --help");
    return am_convert(cli->arguments[0], path, &callbacks, error);
}

static const CliOption options[] = {{0}};

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
        ".safetensors or .npz, for run --state.",
    .examples = "convert model.hlo.pb model.hlo.txt\n"
                "convert checkpoints state.safetensors",
    .run = run};
