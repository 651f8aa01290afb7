/* The cluster `host:N`: this machine as N ranks, from the cache of measurements, else measured in at most ten
 * seconds. */
#include <math.h>
#include <stdlib.h>

#include "api/reports/clusters.h"

#include "base/system/clock.h"
#include "cost/cluster/host_cache.h"
#include "cost/cluster/host_cluster.h"
#include "executor/calibrate/probe.h"

static const char disturbed[] = "disturbed"; /* member of a measurement beside other programs */
static const double probe_seconds = 8.8, lock_seconds = 60;

/* Returns the caller's callbacks, for functions that take a user pointer. */
static const AmCallbacks *callbacks_of(void *user) {
    return user;
}

void report_measuring(const AmCallbacks *callbacks, const char *phase, double done) {
    const AmProgress progress = {.size = sizeof progress,
                                 .is_last = done >= 1,
                                 .phase = phase,
                                 .evaluations = (int64_t)(1000 * done),
                                 .limit = 1000,
                                 .best_seconds = NAN,
                                 .bound_seconds = NAN,
                                 .seconds_left = NAN};
    if (callbacks->on_progress) callbacks->on_progress(callbacks->user, &progress);
}

static void show_progress(void *user, double done) {
    report_measuring(callbacks_of(user), "measuring", done);
}

static void note_waiting(void *user) {
    report_measuring(callbacks_of(user), "waiting", 0); /* the note is of use now, not at the end */
    api_message(callbacks_of(user), AM_NOTE, "another process measures this machine; waiting for its result");
}

static bool may_probe(const ClusterCall *call) {
    const char *text = getenv("AUTOMAP_NO_PROBE");
    return !option_has(call->options, "no-probe") && !(text && text[0] && strcmp(text, "0") != 0);
}

/* Measures and keeps the result. */
static AmStatus measure(json_t **measurement, const ClusterCall *call, const char *name, HostCache *cache,
                        AmWarnings *warnings, AmError *error) {
    double begun = clock_seconds();
    const ProbeListener listener = {
        .progress = show_progress, .user = (void *)call->callbacks, .warnings = warnings};
    int32_t known = warnings->count;
    AmStatus status = probe_measure_host(measurement, probe_seconds, &listener, error);
    show_progress((void *)call->callbacks, 1);
    TRY(status);
    if (warnings->count > known) json_object_set_new(*measurement, disturbed, json_true());
    /* The measurement becomes its text read back, in which 5.0 has become 5: the form that later commands
     * read. */
    Text text = {0};
    json_t *parsed = NULL;
    json_write(&text, *measurement, JSON_STYLE_INDENTED);
    AmStatus loaded = text.failed ? am_fail_memory(error, (int64_t)text.capacity)
                                  : json_parse(&parsed, "<probe>", text.data, text.length, error);
    text_free(&text);
    if (loaded != AM_OK) return loaded;
    json_decref(*measurement);
    *measurement = parsed;
    TRY(host_cluster_check(*measurement, &cache->facts, "<probe>", error));
    double seconds = clock_seconds() - begun;
    if (host_cache_write(cache, *measurement, warnings))
        api_message(call->callbacks, AM_NOTE, "%s: this machine was measured in %.1f s; the result is in %s",
                    name, seconds, cache->path);
    else api_message(call->callbacks, AM_NOTE, "%s: this machine was measured in %.1f s", name, seconds);
    return AM_OK;
}

/* Finds the kept measurement, or measures; the caller's reference. *measurement NULL: none is kept, and none
 * may be made. */
static AmStatus find_measurement(json_t **measurement, const ClusterCall *call, const char *name,
                                 HostCache *cache, AmWarnings *warnings, AmError *error) {
    *measurement = host_cache_read(cache, warnings);
    if (*measurement && json_is_true(json_object_get(*measurement, disturbed)))
        api_message(call->callbacks, AM_NOTE,
                    "other programs disturbed the measurement of this machine; automap cluster --forget "
                    "removes it, and the next %s measures again",
                    name);
    if (*measurement || !may_probe(call)) return AM_OK;
    if (host_cache_lock(cache, lock_seconds, note_waiting, (void *)call->callbacks, warnings))
        *measurement = host_cache_read(cache, warnings);
    return *measurement ? AM_OK : measure(measurement, call, name, cache, warnings, error);
}

static AmStatus read_host(Cluster **cluster, Arena *arena, const ClusterCall *call, const char *name,
                          int32_t ranks, AmError *error) {
    Machine machine;
    HostCache cache;
    AmWarnings warnings = {.arena = arena};
    json_t *measurement = NULL, *description = NULL;
    machine_find(&machine, "");
    AmStatus status = host_cache_open(&cache, &machine, NULL, may_probe(call), &warnings, error);
    if (status == AM_OK) status = find_measurement(&measurement, call, name, &cache, &warnings, error);
    api_warn(call->callbacks, &warnings);
    if (status == AM_OK && measurement) {
        status = host_cluster_describe(&description, measurement, &machine, ranks, cache.path, error);
        if (status == AM_OK) status = cluster_from_json(cluster, arena, description, name, error);
        if (ranks > machine.processors)
            api_message(call->callbacks, AM_WARNING,
                        "%s: %d ranks share %d processor%s; their times are extrapolated", name, ranks,
                        machine.processors, machine.processors == 1 ? "" : "s");
    } else if (status == AM_OK) {
        api_message(call->callbacks, AM_NOTE,
                    "%s has nominal figures: this machine is not measured (--no-probe)", name);
        status = cluster_read(cluster, arena, name, error);
    }
    host_cache_close(&cache);
    json_decref(description);
    json_decref(measurement);
    return status;
}

AmStatus report_read_cluster(Cluster **cluster, Arena *arena, const ClusterCall *call, const char *name,
                             AmError *error) {
    int32_t ranks;
    *cluster = NULL;
    TRY(host_cluster_ranks(&ranks, name, error));
    return ranks > 0 ? read_host(cluster, arena, call, name, ranks, error)
                     : cluster_read(cluster, arena, name, error);
}

AmStatus report_forget_host(const ClusterCall *call, AmError *error) {
    Machine machine;
    HostCache cache;
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    int32_t removed = 0;
    machine_find(&machine, "");
    AmStatus status = host_cache_open(&cache, &machine, NULL, false, &warnings, error);
    if (status == AM_OK) removed = host_cache_forget(&cache, &warnings);
    api_warn(call->callbacks, &warnings);
    host_cache_close(&cache);
    arena_free(&arena);
    TRY(status);
    if (removed < 0) return am_fail(error, AM_ERROR_RUNTIME, "", "--forget: a measurement cannot be removed");
    api_message(call->callbacks, AM_NOTE, "%d measurement%s removed", removed, removed == 1 ? "" : "s");
    return AM_OK;
}
