/* The cluster `host:N`: this machine as N ranks, from the cache of measurements, else measured in at most ten
 * seconds. */
#define _DEFAULT_SOURCE
#include "cli/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/clock.h"
#include "cost/cluster/host_cache.h"
#include "cost/cluster/host_cluster.h"
#include "executor/calibrate/probe.h"

static const char disturbed[] = "disturbed"; /* member of a measurement beside other programs */
static const double probe_seconds = 8.8, lock_seconds = 60;

void cli_show_measuring(const Cli *cli, double done) {
    if (!isatty(2) || cli_has(cli, "--quiet")) return;
    static const char full[] = "##############################", empty[] = "..............................";
    int length = (int)(done * (double)(sizeof full - 1));
    if (done < 1)
        fprintf(stderr, "\rmeasuring [%.*s%s] %3.0f %%\033[K", length, full, empty + length, 100 * done);
    else fputs("\r\033[K", stderr);
    fflush(stderr);
}

static void show_progress(void *cli, double done) {
    cli_show_measuring(cli, done);
}

static void note_waiting(void *cli) {
    cli_release_notes(cli);
    cli_note(cli, "another process measures this machine; waiting for its result");
}

static bool may_probe(const Cli *cli) {
    const char *text = getenv("AUTOMAP_NO_PROBE");
    return !cli_has(cli, "--no-probe") && !(text && text[0] && strcmp(text, "0") != 0);
}

/* Replaces the measurement by its text read back, in which 5.0 has become 5: the form that later commands
 * read. */
static AmStatus normalize(json_t **measurement, AmError *error) {
    Text text = {0};
    json_t *parsed = NULL;
    json_write(&text, *measurement, JSON_STYLE_INDENTED);
    AmStatus status = text.failed ? am_fail_memory(error, (int64_t)text.capacity)
                                  : json_parse(&parsed, "<probe>", text.data, text.length, error);
    text_free(&text);
    if (status != AM_OK) return status;
    json_decref(*measurement);
    *measurement = parsed;
    return AM_OK;
}

/* Measures and keeps the result. */
static AmStatus measure(json_t **measurement, const Cli *cli, const char *name, HostCache *cache,
                        AmWarnings *warnings, AmError *error) {
    double begun = clock_seconds();
    const ProbeListener listener = {.progress = show_progress, .user = (void *)cli, .warnings = warnings};
    int32_t known = warnings->count;
    AmStatus status = probe_measure_host(measurement, probe_seconds, &listener, error);
    cli_show_measuring(cli, 1);
    TRY(status);
    if (warnings->count > known) json_object_set_new(*measurement, disturbed, json_true());
    TRY(normalize(measurement, error));
    TRY(host_cluster_check(*measurement, &cache->facts, "<probe>", error));
    double seconds = clock_seconds() - begun;
    if (host_cache_write(cache, *measurement, warnings))
        cli_note(cli, "%s: this machine was measured in %.1f s; the result is in %s", name, seconds,
                 cache->path);
    else cli_note(cli, "%s: this machine was measured in %.1f s", name, seconds);
    return AM_OK;
}

/* The kept measurement or a new one, the caller's reference; *measurement NULL: none, and none may be made.
 */
static AmStatus find_measurement(json_t **measurement, const Cli *cli, const char *name, HostCache *cache,
                                 AmWarnings *warnings, AmError *error) {
    *measurement = host_cache_read(cache, warnings);
    if (*measurement && json_is_true(json_object_get(*measurement, disturbed)))
        cli_note(cli,
                 "note: other programs disturbed the measurement of this machine; automap cluster --forget "
                 "removes it, and the next %s measures again",
                 name);
    if (*measurement || !may_probe(cli)) return AM_OK;
    if (host_cache_lock(cache, lock_seconds, note_waiting, (void *)cli, warnings))
        *measurement = host_cache_read(cache, warnings);
    return *measurement ? AM_OK : measure(measurement, cli, name, cache, warnings, error);
}

static AmStatus read_host(const Cli *cli, Cluster **cluster, Arena *arena, const char *name, int32_t ranks,
                          AmError *error) {
    Machine machine;
    HostCache cache;
    AmWarnings warnings = {.arena = arena};
    json_t *measurement = NULL, *description = NULL;
    machine_find(&machine, "");
    AmStatus status = host_cache_open(&cache, &machine, NULL, may_probe(cli), &warnings, error);
    if (status == AM_OK) status = find_measurement(&measurement, cli, name, &cache, &warnings, error);
    cli_warn(cli, &warnings);
    if (status == AM_OK && measurement) {
        status = host_cluster_describe(&description, measurement, &machine, ranks, cache.path, error);
        if (status == AM_OK) status = cluster_from_json(cluster, arena, description, name, error);
        if (ranks > machine.processors)
            cli_note(cli, "warning: %s: %d ranks share %d processor%s; their times are extrapolated", name,
                     ranks, machine.processors, machine.processors == 1 ? "" : "s");
    } else if (status == AM_OK) {
        cli_note(cli, "note: %s has nominal figures: this machine is not measured (--no-probe)", name);
        status = cluster_read(cluster, arena, name, error);
    }
    host_cache_close(&cache);
    json_decref(description);
    json_decref(measurement);
    return status;
}

AmStatus cli_read_cluster(const Cli *cli, Cluster **cluster, Arena *arena, const char *name, AmError *error) {
    int32_t ranks;
    *cluster = NULL;
    TRY(host_cluster_ranks(&ranks, name, error));
    return ranks > 0 ? read_host(cli, cluster, arena, name, ranks, error)
                     : cluster_read(cluster, arena, name, error);
}

AmStatus cli_open_cluster(const Cli *cli, AmCluster **cluster, const char *name, AmError *error) {
    AmCluster *self = calloc(1, sizeof *self);
    *cluster = NULL;
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    AmStatus status = cli_read_cluster(cli, &self->cluster, &self->arena, name, error);
    if (status == AM_OK) *cluster = self;
    else am_cluster_free(self);
    return status;
}

AmStatus cli_forget_host(const Cli *cli, AmError *error) {
    Machine machine;
    HostCache cache;
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    int32_t removed = 0;
    machine_find(&machine, "");
    AmStatus status = host_cache_open(&cache, &machine, NULL, false, &warnings, error);
    if (status == AM_OK) removed = host_cache_forget(&cache, &warnings);
    cli_warn(cli, &warnings);
    host_cache_close(&cache);
    arena_free(&arena);
    TRY(status);
    if (removed < 0) return am_fail(error, AM_ERROR_RUNTIME, "", "--forget: a measurement cannot be removed");
    cli_note(cli, "%d measurement%s removed", removed, removed == 1 ? "" : "s");
    return AM_OK;
}
