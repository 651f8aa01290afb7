/* Measurements of this machine in a private folder (base/files/private_folder.h). A lock file stays where it
 * is: removing it would give two processes two locks.
 */
#define _GNU_SOURCE /* O_NOFOLLOW, O_CLOEXEC, flock */
#include "cost/cluster/host_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "automap.h"
#include "automap_features.h"
#include "base/files/json.h"
#include "base/files/private_folder.h"
#include "base/hash.h"
#include "base/system/clock.h"
#include "cost/cluster/host_cluster.h"

enum { MOST_BYTES = 8 << 20, KEY_DIGITS = 16 };
static const char format[] = "automap-host-1";

AmStatus host_cache_open(HostCache *cache, const Machine *machine, const char *base, bool creates,
                         AmWarnings *warnings, AmError *error) {
    char found[3072], folder[3200];
    *cache = (HostCache){.folder = -1, .lock = -1, .facts = *machine};
    cache->machine = json_pack("{s:s, s:i, s:I, s:s, s:s, s:s, s:s}", "processor", machine->processor,
                               "processors", machine->processors, "memory_bytes",
                               (json_int_t)machine->memory_bytes, "vectors", machine->vectors, "blas",
                               machine->blas, "version", AM_VERSION, "features", AUTOMAP_FEATURES);
    if (!cache->machine) return am_fail_memory(error, 1024);
    Text text = {0};
    char hex[65];
    Sha256 hash;
    json_write(&text, cache->machine, JSON_STYLE_CANONICAL);
    if (text.failed) {
        text_free(&text);
        return am_fail_memory(error, 1024);
    }
    sha256_begin(&hash);
    sha256_add(&hash, text.data, text.length);
    sha256_end(&hash, hex);
    text_free(&text);
    hex[KEY_DIGITS] = '\0';
    snprintf(cache->name, sizeof cache->name, "host-%.16s.json", hex);
    snprintf(cache->lock_name, sizeof cache->lock_name, "host-%.16s.lock", hex);
    if (!base && !private_folder_cache(found, sizeof found)) {
        am_warn(warnings,
                "the measurement of this machine is not kept: neither XDG_CACHE_HOME nor HOME is set");
        return AM_OK;
    }
    int length = snprintf(folder, sizeof folder, "%s/automap", base ? base : found);
    if (length >= (int)sizeof folder) {
        am_warn(warnings, "%.60s: the path is too long; the measurement of this machine is not kept", folder);
        return AM_OK;
    }
    snprintf(cache->path, sizeof cache->path, "%s/%s", folder, cache->name);
    const char *problem = private_folder_open(&cache->folder, folder, creates);
    if (problem && (creates || problem != PRIVATE_FOLDER_MISSING))
        am_warn(warnings, "%s: %s; the measurement of this machine is not kept", folder, problem);
    return AM_OK;
}

void host_cache_close(HostCache *cache) {
    if (cache->lock >= 0) close(cache->lock);
    if (cache->folder >= 0) close(cache->folder);
    json_decref(cache->machine);
    *cache = (HostCache){.folder = -1, .lock = -1};
}

/* Returns the measurement in a file's text, the caller's reference; NULL with the error filled: it cannot be
 * used. */
static json_t *parse_measurement(const HostCache *cache, const char *text, size_t length, AmError *error) {
    static const char *const keys[] = {"format", "machine", "measurement", NULL};
    json_t *root = NULL, *measurement = NULL, *found = NULL;
    AmStatus status;
    TRY_OR_FAIL(json_parse(&root, cache->path, text, length, error));
    TRY_OR_FAIL(json_check_format(root, format, cache->path, error));
    TRY_OR_FAIL(json_only_keys(root, keys, cache->path, "$", error));
    TRY_OR_FAIL(json_get_object(&measurement, root, "measurement", cache->path, "$", error));
    if (!json_equal(json_object_get(root, "machine"), cache->machine)) {
        status = am_fail(error, AM_ERROR_INPUT, cache->path, "describes another machine or version");
        goto fail;
    }
    TRY_OR_FAIL(host_cluster_check(measurement, &cache->facts, cache->path, error));
    found = json_incref(measurement);
fail:
    json_decref(root);
    return status == AM_OK ? found : NULL;
}

json_t *host_cache_read(const HostCache *cache, AmWarnings *warnings) {
    char *text;
    size_t length;
    if (cache->folder < 0) return NULL;
    const char *problem = private_file_read(&text, &length, cache->folder, cache->name, MOST_BYTES);
    json_t *found = NULL;
    AmError error = {0};
    if (!problem && text) {
        found = parse_measurement(cache, text, length, &error);
        if (!found) problem = error.text;
    }
    if (problem) am_warn(warnings, "%s: %s; it is not used", cache->path, problem);
    free(text);
    return found;
}

bool host_cache_lock(HostCache *cache, double seconds, void (*waits)(void *user), void *user,
                     AmWarnings *warnings) {
    static const struct timespec pause = {.tv_nsec = 50000000};
    if (cache->folder < 0) return false;
    cache->lock =
        openat(cache->folder, cache->lock_name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    double end = clock_seconds() + seconds;
    bool has_waited = false;
    while (cache->lock >= 0 && flock(cache->lock, LOCK_EX | LOCK_NB) != 0) {
        bool is_held = errno == EWOULDBLOCK || errno == EINTR;
        if (is_held && clock_seconds() < end) {
            if (!has_waited && waits) waits(user);
            has_waited = true;
            nanosleep(&pause, NULL);
            continue;
        }
        if (is_held)
            am_warn(warnings, "%s: another process has measured for more than %.0f s", cache->path, seconds);
        close(cache->lock);
        cache->lock = -1;
        return false;
    }
    if (cache->lock < 0) am_warn(warnings, "%s: cannot be locked: %s", cache->path, strerror(errno));
    return cache->lock >= 0;
}

bool host_cache_write(const HostCache *cache, json_t *measurement, AmWarnings *warnings) {
    int problem = ENOMEM;
    Text text = {0};
    if (cache->folder < 0) return false;
    json_t *root =
        json_pack("{s:s, s:O, s:O}", "format", format, "machine", cache->machine, "measurement", measurement);
    if (root) json_write(&text, root, JSON_STYLE_INDENTED);
    json_decref(root);
    text_append_string(&text, "\n");
    if (!text.failed) problem = private_file_replace(cache->folder, cache->name, text.data, text.length);
    text_free(&text);
    if (problem)
        am_warn(warnings, "%s: cannot be written: %s; the next command measures again", cache->path,
                strerror(problem));
    return problem == 0;
}

int32_t host_cache_forget(const HostCache *cache, AmWarnings *warnings) {
    int32_t removed = 0;
    bool failed = false;
    if (cache->folder < 0) return 0;
    int copy = dup(cache->folder);
    DIR *folder = copy >= 0 ? fdopendir(copy) : NULL;
    if (!folder && copy >= 0) close(copy);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        /* "host-0123456789abcdef.json", or the unfinished file of a killed process */
        bool is_measurement = strncmp(entry->d_name, "host-", 5) == 0 &&
                              strspn(entry->d_name + 5, "0123456789abcdef") == KEY_DIGITS &&
                              strncmp(entry->d_name + 5 + KEY_DIGITS, ".json", 5) == 0;
        if (!is_measurement) continue;
        if (unlinkat(cache->folder, entry->d_name, 0) == 0) {
            removed++;
            continue;
        }
        am_warn(warnings, "%s: cannot be removed: %s", entry->d_name, strerror(errno));
        failed = true;
    }
    if (folder) closedir(folder);
    return failed ? -1 : removed;
}
