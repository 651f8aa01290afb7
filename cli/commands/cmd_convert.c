/* automap convert: a module in another of the three encodings, or a checkpoint as one file. */
#define _XOPEN_SOURCE 700
#include <sys/stat.h>

#include "cli/common.h"
#include "executor/checkpoint/checkpoint_export.h"

static AmStatus fail_without_out(AmError *error) {
    return am_fail(error, AM_ERROR_USAGE, "", "expected MODEL OUT; see automap convert --help");
}

static AmStatus convert_module(const Cli *cli, const char *path, AmError *error) {
    IrModule *module;
    TRY(ir_read(&module, cli->arguments[0], error));
    cli_warn(cli, &module->warnings);
    AmStatus status = path ? ir_write(module, path, error) : fail_without_out(error);
    ir_module_free(module);
    return status;
}

static AmStatus convert_checkpoint(const Cli *cli, const char *path, AmError *error) {
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    AmStatus status =
        !path ? fail_without_out(error) : checkpoint_export(cli->arguments[0], path, &warnings, error);
    cli_warn(cli, &warnings);
    arena_free(&arena);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    struct stat facts;
    const char *path = cli->argument_count > 1 ? cli->arguments[1] : cli_text(cli, "-o");
    if (stat(cli->arguments[0], &facts) == 0 && S_ISDIR(facts.st_mode))
        return convert_checkpoint(cli, path, error);
    return convert_module(cli, path, error);
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
