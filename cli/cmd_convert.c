/* automap convert: a module in another of the three encodings. */
#include "cli/common.h"

static AmStatus run(const Cli *cli, AmError *error) {
    IrModule *module;
    TRY(ir_read(&module, cli->arguments[0], error));
    cli_warn(cli, &module->warnings);
    const char *path = cli->argument_count > 1 ? cli->arguments[1] : cli_text(cli, "-o");
    AmStatus status =
        path ? ir_write(module, path, error)
             : am_fail(error, AM_ERROR_USAGE, "", "expected MODEL OUT; see automap convert --help");
    ir_module_free(module);
    return status;
}

static const CliOption options[] = {{0}};

const CliCommand CLI_CONVERT = {
    .name = "convert",
    .arguments = "MODEL OUT",
    .summary = "the module as OUT's suffix says: .hlo.pb, .hlo.json or .hlo.txt, each also .gz or .zst",
    .least_arguments = 1,
    .most_arguments = 2,
    .options = options,
    .run = run};
