/* The measurement of this machine on disk, so that `host:N` measures once.
 *
 * The file is FOLDER/host-KEY.json with FOLDER = $XDG_CACHE_HOME/automap or ~/.cache/automap:
 *
 *   {"format": "automap-host-1", "machine": {...}, "measurement": {...}}
 *
 * KEY is a hash of "machine": the processor's name, processors, memory, vectors, BLAS library, automap's
 * version and features. The folder is private (base/files/private_folder.h). Files are opened without
 * following links and replaced by rename. One of several processes measures, and the others wait for its
 * result (flock of host-KEY.lock).
 */
#ifndef COST_CLUSTER_HOST_CACHE_H
#define COST_CLUSTER_HOST_CACHE_H

#include <jansson.h>

#include "base/status.h"
#include "base/system/machine.h"

typedef struct HostCache {
    int folder, lock; /* descriptors; -1: none */
    json_t *machine;  /* owned */
    Machine facts;
    char path[4096], name[32],
        lock_name[32]; /* the whole path for messages; the files' names in the folder */
} HostCache;

/* Opens the cache of the machine; makes the folder where `creates`. `base`: the folder that has "automap";
 * NULL: that of the environment. Without a usable folder cache->folder is -1 and a warning is added. The
 * caller calls host_cache_close() in every case. AM_ERROR_INTERNAL: no memory. */
AmStatus host_cache_open(HostCache *cache, const Machine *machine, const char *base, bool creates,
                         AmWarnings *warnings, AmError *error);
void host_cache_close(HostCache *cache);

/* Reads the measurement, the caller's reference. Returns NULL where it is missing, and with a warning where
 * the file cannot be used. */
json_t *host_cache_read(const HostCache *cache, AmWarnings *warnings);

/* Takes the lock; waits `seconds` at most while another process has it. `waits` (or NULL) is called once
 * before waiting. Returns false, with a warning, where this process does not get the lock. */
bool host_cache_lock(HostCache *cache, double seconds, void (*waits)(void *user), void *user,
                     AmWarnings *warnings);

/* Writes the measurement. Returns false, with a warning, where that fails. */
bool host_cache_write(const HostCache *cache, json_t *measurement, AmWarnings *warnings);

/* Removes the measurements of all machines and versions. Returns their number; below 0 where one cannot be
 * removed, which a warning names. */
int32_t host_cache_forget(const HostCache *cache, AmWarnings *warnings);

#endif
