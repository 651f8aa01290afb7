/* automap cluster: the built-in clusters, or one of any kind. */
#include "cli/common.h"
#include "cost/cluster.h"

static AmStatus list_clusters(const Cli *cli, AmError *error) {
    int32_t count;
    const ClusterBuiltin *builtins = cluster_builtins(&count);
    if (cli_has(cli, "--json")) {
        json_t *list = json_array();
        for (int32_t k = 0; k < count; k++)
            json_array_append_new(
                list, json_pack("{s:s, s:s}", "name", builtins[k].name, "summary", builtins[k].summary));
        return cli_output_json(cli, json_pack("{s:o}", "clusters", list), JSON_STYLE_COMPACT, error);
    }
    Text text = {0}, rows = {0};
    for (int32_t k = 0; k < count; k++) text_append(&rows, "%s\t%s\n", builtins[k].name, builtins[k].summary);
    text_append_table(&text, rows.data);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&rows);
    text_free(&text);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    if (cli->argument_count == 0) return list_clusters(cli, error);
    Arena arena = {0};
    Cluster *cluster = NULL;
    AmStatus status;
    TRY_OR_FAIL(cluster_read(&cluster, &arena, cli->arguments[0], error));
    if (cli_has(cli, "--json")) {
        status = cli_output_json(cli, cluster_to_json(cluster), JSON_STYLE_INDENTED, error);
    } else {
        Text text = {0};
        cluster_print(&text, cluster);
        status = cli_output(cli, &text, error);
        text_free(&text);
    }
    cluster_free(cluster);
fail:
    arena_free(&arena);
    return status;
}

static const CliOption options[] = {{0}};

const CliCommand CLI_CLUSTER = {
    .name = "cluster",
    .arguments = "[CLUSTER]",
    .summary = "lists the built-in clusters, or prints one; with --json as a cluster file",
    .least_arguments = 0,
    .most_arguments = 1,
    .options = options,
    .run = run};
