/* Clusters that have no cluster file: this machine as measured, imports of other tools' files, and the list
 * of the built-in clusters. */
#include <stdlib.h>
#include <string.h>

#include "api/reports/clusters.h"
#include "api/reports/reports.h"
#include "base/files/file.h"
#include "cost/cluster_import/import.h"
#include "cost/operator/measured_events.h"
#include "cost/operator/profile_file.h"
#include "executor/calibrate/probe.h"

/* ---- the built-in clusters ---- */

AmStatus report_clusters(Text *text, const ReportCall *call, AmError *error) {
    int32_t count;
    TRY(cluster_options_check(call->options, error));
    const ClusterBuiltin *builtins = cluster_builtins(&count);
    if (option_has(call->options, "forget"))
        return report_forget_host(&(ClusterCall){call->options, call->callbacks}, error);
    if (call->format != AM_FORMAT_JSON) {
        for (int32_t k = 0; k < count; k++)
            text_append(text, "%-16s%s\n", builtins[k].name, builtins[k].summary);
        return AM_OK;
    }
    json_t *list = json_array();
    for (int32_t k = 0; k < count; k++)
        json_array_append_new(
            list, json_pack("{s:s, s:s}", "name", builtins[k].name, "summary", builtins[k].summary));
    return api_append_json(text, json_pack("{s:s, s:o}", "format", "automap-clusters-1", "clusters", list),
                           JSON_STYLE_COMPACT, error);
}

/* ---- measurements ---- */

static const double probe_seconds = 35;

/* Measurements of a probe, as events of a profile. */
typedef struct ProbeProfile {
    const AmCallbacks *callbacks;
    ProfileFile file;
} ProbeProfile;

static void report_progress(void *user, double done) {
    report_measuring(((ProbeProfile *)user)->callbacks, "measuring", done);
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

/* Measures this machine. The reader of cluster files checks the description, so that it can be written. */
static AmStatus probe(Cluster **cluster, Arena *arena, const ClusterCall *call, AmError *error) {
    int64_t devices = 0;
    json_t *description = NULL;
    const char *profile_path = option_text(call->options, "profile");
    ProbeProfile found = {.callbacks = call->callbacks};
    AmWarnings warnings = {.arena = arena};
    ProbeListener listener = {.progress = report_progress, .user = &found, .warnings = &warnings};
    AmStatus status;
    option_integer(call->options, "devices", &devices);
    if (profile_path) {
        TRY_OR_FAIL(profile_file_open(&found.file, profile_path, error));
        listener.on_operator = add_operator;
        listener.collective = add_collective;
    }
    TRY_OR_FAIL(probe_measure(&description, option_text(call->options, "device"), (int32_t)devices,
                              probe_seconds, &listener, error));
    TRY_OR_FAIL(cluster_from_json(cluster, arena, description, "<probe>", error));
    for (int32_t k = 0; k < warnings.count; k++)
        api_message(call->callbacks, AM_WARNING, "%s", warnings.texts[k]);
    if (profile_path) status = profile_file_write(&found.file, error);
fail:
    if (status != AM_OK) report_progress(&found, 1);
    json_decref(description);
    profile_file_close(&found.file);
    return status;
}

/* Imports the files. The reader of cluster files checks the description, so that it can be written. */
static AmStatus import_files(Cluster **cluster, Arena *arena, const ClusterCall *call, AmError *error) {
    const char *const *paths;
    int32_t count = option_texts(call->options, "import", &paths);
    json_t *description = NULL;
    Import import;
    AmStatus status;
    TRY(import_begin(&import, arena, option_text(call->options, "device-type"),
                     option_text(call->options, "between"), error));
    for (int32_t k = 0; k < count; k++) TRY_OR_FAIL(import_add(&import, paths[k], error));
    TRY_OR_FAIL(import_finish(&description, &import, error));
    TRY_OR_FAIL(cluster_from_json(cluster, arena, description, "<import>", error));
    for (int32_t k = 0; k < import.warnings.count; k++)
        api_message(call->callbacks, AM_WARNING, "%s", import.warnings.texts[k]);
fail:
    json_decref(description);
    import_end(&import);
    return status;
}

/* ---- calls ---- */

AmStatus cluster_options_check(const AmOptions *options, AmError *error) {
    bool probes = option_has(options, "probe"), imports = option_has(options, "import");
    if (option_has(options, "forget") && (probes || imports))
        return am_fail(error, AM_ERROR_USAGE, "", "--forget: expected no CLUSTER, --probe or --import");
    if (probes && imports)
        return am_fail(error, AM_ERROR_USAGE, "", "--probe and --import exclude each other");
    if (!probes &&
        (option_has(options, "device") || option_has(options, "devices") || option_has(options, "profile")))
        return am_fail(error, AM_ERROR_USAGE, "", "--device, --devices and --profile need --probe");
    if (!imports && (option_has(options, "device-type") || option_has(options, "between")))
        return am_fail(error, AM_ERROR_USAGE, "", "--device-type and --between need --import");
    return AM_OK;
}

static AmStatus open_cluster(AmCluster *self, const char *name, const ClusterCall *call, AmError *error) {
    const AmOptions *options = call->options;
    TRY(cluster_options_check(options, error));
    bool is_made = option_has(options, "probe") || option_has(options, "import");
    if (name && (is_made || option_has(options, "forget")))
        return am_fail(error, AM_ERROR_USAGE, "", "name_or_path %.200s: expected NULL with these options",
                       name);
    if (option_has(options, "probe")) return probe(&self->cluster, &self->arena, call, error);
    if (option_has(options, "import")) return import_files(&self->cluster, &self->arena, call, error);
    if (!name)
        return am_fail(error, AM_ERROR_USAGE, "", "name_or_path: NULL (expected the option probe or import)");
    return report_read_cluster(&self->cluster, &self->arena, call, name, error);
}

AmStatus am_cluster_open(AmCluster **cluster, const char *name_or_path, const AmOptions *options,
                         const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    api_begin(error);
    TRY(api_require(cluster, "cluster", error));
    *cluster = NULL;
    TRY(api_check_options(options, AM_COMMAND_CLUSTER, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    AmCluster *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    const ClusterCall call = {options, &own};
    API_IN_C_LOCALE(status, open_cluster(self, name_or_path, &call, error), error);
    if (status == AM_OK) *cluster = self;
    else am_cluster_free(self);
    return status;
}

static AmStatus append_cluster(Text *text, const Cluster *cluster, AmFormat format, AmError *error) {
    if (format != AM_FORMAT_JSON) {
        cluster_print(text, cluster);
        return AM_OK;
    }
    return api_append_json(text, cluster_to_json(cluster), JSON_STYLE_INDENTED, error);
}

AmStatus am_cluster_print(const AmCluster *cluster, AmFormat format, char **text, size_t *bytes,
                          AmError *error) {
    AmStatus status;
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(cluster, "cluster", error));
    TRY(api_check_format(format, false, error));
    Text all = {.is_styled = format == AM_FORMAT_TERMINAL};
    API_IN_C_LOCALE(status, append_cluster(&all, cluster->cluster, format, error), error);
    return api_end_text(status, text, bytes, &all, error);
}
