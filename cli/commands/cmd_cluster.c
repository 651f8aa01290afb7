/* automap cluster: the built-in clusters, a cluster of any kind, this machine measured, or imports
 * from other tools.
 */
#include <string.h>

#include "api/option_rows.h"
#include "base/files/file.h"
#include "cli/common.h"
#include "cli/open_cluster.h"

static AmStatus run_cluster(const Cli *cli, AmError *error) {
    const char *name = cli->argument_count > 0 ? cli->arguments[0] : NULL, *path = cli_text(cli, "-o");
    bool is_made = cli_has(cli, "--probe") || cli_has(cli, "--import");
    AmCluster *cluster = NULL;
    AmOptions *options = NULL;
    AmStatus status;
    TRY_OR_FAIL(cli_api_options(cli, AM_COMMAND_CLUSTER, &options, error));
    TRY_OR_FAIL(am_options_check(options, error));
    if (name && cli_has(cli, "--forget")) {
        status = am_fail(error, AM_ERROR_USAGE, "", "--forget: expected no CLUSTER, --probe or --import");
        goto fail;
    }
    if (is_made && name) {
        status = am_fail(error, AM_ERROR_USAGE, "", "%s: expected no CLUSTER, got %.200s",
                         cli_has(cli, "--probe") ? "--probe" : "--import", name);
        goto fail;
    }
    if (!is_made && (!name || cli_has(cli, "--forget"))) {
        status = cli_report(cli, AM_COMMAND_CLUSTER, NULL, error);
        goto fail;
    }
    if (cli_has(cli, "--probe") && path && strcmp(path, "-") != 0)
        TRY_OR_FAIL(file_check_writable(path, error));
    TRY_OR_FAIL(cli_open_cluster(cli, &cluster, name, options, error));
    /* A table in a ".json" file could not be read back. */
    size_t length = path ? strlen(path) : 0;
    bool as_file = is_made || (length > 5 && strcmp(path + length - 5, ".json") == 0);
    char *text;
    size_t bytes;
    TRY_OR_FAIL(am_cluster_print(cluster, as_file ? AM_FORMAT_JSON : cli_format(cli), &text, &bytes, error));
    status = cli_output_buffer(cli, text, bytes, error);
fail:
    am_cluster_free(cluster);
    am_options_free(options);
    return status;
}

static const CliOption options[] = {CLI_GROUP("measurement"),
                                    CLUSTER_PROBE_ROWS(CLI_ROW) OPTION_ROW_NO_PROBE(CLI_ROW)
                                        CLUSTER_FORGET_ROWS(CLI_ROW) CLI_GROUP("import"),
                                    CLUSTER_IMPORT_ROWS(CLI_ROW){0}};

const CliCommand CLI_CLUSTER = {
    .name = "cluster",
    .arguments = "[CLUSTER]",
    .summary = "lists, prints, measures or imports clusters",
    .least_arguments = 0,
    .most_arguments = 1,
    .options = options,
    .notes =
        "Without CLUSTER the built-in clusters are listed. --json, -o FILE.json, --probe and --import give "
        "a\n"
        "cluster file. Imported are hostfiles, Slurm jobs, tables of nccl-tests, vTrain and Aceso, systems\n"
        "of SimuMax, profiles of Sailor, and topologies of NCCL, hwloc and nvidia-smi.",
    .examples = "cluster h100:4\n"
                "cluster --probe -o this.json\n"
                "cluster --import hostfile --device-type A100-80GB -o cluster.json",
    .run = run_cluster};
