/* automap cluster: the built-in clusters, a cluster of any kind, this machine measured, or imports
 * from other tools.
 */
#include "base/files/file.h"
#include "cli/common.h"
#include "cli/host.h"
#include "cli/terminal.h"
#include "cost/cluster/cluster.h"
#include "cost/cluster_import/import.h"
#include "cost/operator/measured_events.h"
#include "cost/operator/profile_file.h"
#include "executor/calibrate/probe.h"

static AmStatus list_clusters(const Cli *cli, AmError *error) {
    int32_t count;
    const ClusterBuiltin *builtins = cluster_builtins(&count);
    if (cli_has(cli, "--json")) {
        json_t *list = json_array();
        for (int32_t k = 0; k < count; k++)
            json_array_append_new(
                list, json_pack("{s:s, s:s}", "name", builtins[k].name, "summary", builtins[k].summary));
        return cli_output_json(cli, json_pack("{s:s, s:o}", "format", "automap-clusters-1", "clusters", list),
                               JSON_STYLE_COMPACT, error);
    }
    Text text = {0};
    for (int32_t k = 0; k < count; k++)
        text_append(&text, "%-16s%s\n", builtins[k].name, builtins[k].summary);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static const double probe_seconds = 35;

/* Measurements of a probe, as events of a profile. */
typedef struct ProbeProfile {
    const Cli *cli;
    ProfileFile file;
} ProbeProfile;

static void tell_progress(void *user, double done) {
    cli_show_measuring(((ProbeProfile *)user)->cli, done);
}

static AmStatus add_operator(void *user, const char *type, const Program *program, int32_t step,
                             double seconds, AmError *error) {
    return measured_add_step(((ProbeProfile *)user)->file.added, type, PROFILE_PROBE, program, step, seconds,
                             error);
}

static AmStatus add_collective(void *user, const char *type, ProgramCollectiveKind kind, int32_t ranks,
                               double bytes, double seconds, AmError *error) {
    const MeasuredCollective of = {.kind = kind, .devices = ranks, .bytes = bytes};
    return measured_add_collective(((ProbeProfile *)user)->file.added, type, PROFILE_PROBE, &of, seconds,
                                   error);
}

/* The measured cluster; read as any other, so that the written file is readable. */
static AmStatus probe(const Cli *cli, Cluster **cluster, Arena *arena, AmError *error) {
    int64_t devices = 0;
    json_t *description = NULL;
    const char *path = cli_text(cli, "-o"), *profile_path = cli_text(cli, "--profile");
    ProbeProfile found = {.cli = cli};
    AmWarnings warnings = {.arena = arena};
    ProbeListener listener = {.progress = tell_progress, .user = &found, .warnings = &warnings};
    AmStatus status;
    TRY(cli_check_device(cli, error));
    TRY(cli_integer(cli, "--devices", 1, 1024, &devices, error));
    if (path && strcmp(path, "-") != 0) TRY(file_check_writable(path, error));
    if (profile_path) {
        TRY_OR_FAIL(profile_file_open(&found.file, profile_path, error));
        listener.operator= add_operator;
        listener.collective = add_collective;
    }
    TRY_OR_FAIL(probe_measure(&description, cli_text(cli, "--device"), (int32_t)devices, probe_seconds,
                              &listener, error));
    TRY_OR_FAIL(cluster_from_json(cluster, arena, description, "<probe>", error));
    cli_warn(cli, &warnings);
    if (profile_path) status = profile_file_write(&found.file, error);
fail:
    if (status != AM_OK) cli_show_measuring(cli, 1);
    json_decref(description);
    profile_file_close(&found.file);
    return status;
}

/* The cluster of the imported files; read as any other. */
static AmStatus import_files(const Cli *cli, Cluster **cluster, Arena *arena, AmError *error) {
    const char *const *paths;
    int32_t count = cli_texts(cli, "--import", &paths);
    json_t *description = NULL;
    Import import;
    AmStatus status;
    TRY(import_begin(&import, arena, cli_text(cli, "--device-type"), cli_text(cli, "--between"), error));
    for (int32_t k = 0; k < count; k++) TRY_OR_FAIL(import_add(&import, paths[k], error));
    TRY_OR_FAIL(import_finish(&description, &import, error));
    TRY_OR_FAIL(cluster_from_json(cluster, arena, description, "<import>", error));
    cli_warn(cli, &import.warnings);
fail:
    json_decref(description);
    import_end(&import);
    return status;
}

/* Returns whether -o ends in ".json": a table there could not be read back. */
static bool names_cluster_file(const Cli *cli) {
    const char *path = cli_text(cli, "-o");
    size_t length = path ? strlen(path) : 0;
    return length > 5 && strcmp(path + length - 5, ".json") == 0;
}

static AmStatus check_options(const Cli *cli, bool probes, bool imports, AmError *error) {
    if (cli_has(cli, "--forget") && (probes || imports || cli->argument_count > 0))
        return am_fail(error, AM_ERROR_USAGE, "", "--forget: expected no CLUSTER, --probe or --import");
    if (probes && imports)
        return am_fail(error, AM_ERROR_USAGE, "", "--probe and --import exclude each other");
    if ((probes || imports) && cli->argument_count > 0)
        return am_fail(error, AM_ERROR_USAGE, "", "%s: expected no CLUSTER, got %.200s",
                       probes ? "--probe" : "--import", cli->arguments[0]);
    if (!probes && (cli_has(cli, "--device") || cli_has(cli, "--devices") || cli_has(cli, "--profile")))
        return am_fail(error, AM_ERROR_USAGE, "", "--device, --devices and --profile need --probe");
    if (!imports && (cli_has(cli, "--device-type") || cli_has(cli, "--between")))
        return am_fail(error, AM_ERROR_USAGE, "", "--device-type and --between need --import");
    return AM_OK;
}

static AmStatus run(const Cli *cli, AmError *error) {
    bool probes = cli_has(cli, "--probe"), imports = cli_has(cli, "--import");
    TRY(check_options(cli, probes, imports, error));
    if (cli_has(cli, "--forget")) return cli_forget_host(cli, error);
    if (!probes && !imports && cli->argument_count == 0) return list_clusters(cli, error);
    Arena arena = {0};
    Cluster *cluster = NULL;
    AmStatus status;
    if (probes) TRY_OR_FAIL(probe(cli, &cluster, &arena, error));
    else if (imports) TRY_OR_FAIL(import_files(cli, &cluster, &arena, error));
    else TRY_OR_FAIL(cli_read_cluster(cli, &cluster, &arena, cli->arguments[0], error));
    if (probes || imports || cli_has(cli, "--json") || names_cluster_file(cli)) {
        status = cli_output_json(cli, cluster_to_json(cluster), JSON_STYLE_INDENTED, error);
    } else {
        Text text = {.is_styled = terminal_output_is_styled(cli)};
        cluster_print(&text, cluster);
        status = cli_output(cli, &text, error);
        text_free(&text);
    }
    cluster_free(cluster);
fail:
    arena_free(&arena);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("measurement"),
    {"--probe", NULL, "measures this host or its GPUs, in under a minute", false},
    {"--device", "NAME", "measured device: cuda or cpu (default: cuda where there is a GPU)", false},
    {"--devices", "N", "devices of the cluster (default: all GPUs, or the host as one)", false},
    {"--profile", "FILE", "profile that receives the measured operators, as of run --profile", false},
    CLI_OPTION_NO_PROBE,
    {"--forget", NULL, "removal of the kept measurement of host:N", false},
    CLI_GROUP("import"),
    {"--import", "FILE", "output of another tool (below), or hwloc: this host", true},
    {"--device-type", "NAME", "type of the imported devices, such as A100-80GB", false},
    {"--between", "LINK", "link between the imported servers, such as infiniband-200", false},
    {0}};

const CliCommand CLI_CLUSTER = {
    .name = "cluster",
    .arguments = "[CLUSTER]",
    .summary = "lists, prints, measures or imports clusters",
    .least_arguments = 0,
    .most_arguments = 1,
    .options = options,
    .notes = "Without CLUSTER the built-in clusters are listed. --json, -o FILE.json, --probe and --import "
             "give a\ncluster file. "
             "Imported are hostfiles, Slurm jobs, nccl-tests, NCCL, hwloc and nvidia-smi topologies.",
    .examples = "cluster h100:4\n"
                "cluster --probe -o this.json\n"
                "cluster --import hostfile --device-type A100-80GB -o cluster.json",
    .run = run};
