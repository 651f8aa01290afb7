/* The number of this process in a run of several processes, and the address at which they connect: the
 * launcher is recognised by its environment variables. */
#include "executor/processes/bootstrap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

AmStatus bootstrap_integer(const char *name, int64_t least, int64_t most, int64_t *value, AmError *error) {
    const char *text = getenv(name);
    if (!text || !*text)
        return am_fail(error, AM_ERROR_USAGE, "", "the environment variable %s is missing", name);
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || *end || number < least || number > most)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "the environment variable %s is %.100s: expected an integer from %lld to %lld", name,
                       text, (long long)least, (long long)most);
    *value = number;
    return AM_OK;
}

void bootstrap_secret(ProcessPlace *place, const char *job) {
    const char *own = getenv("AUTOMAP_SECRET");
    const char *const parts[] = {"automap", place->launcher, job ? job : "", own ? own : ""};
    Sha256 hash;
    sha256_begin(&hash);
    for (int k = 0; k < 4; k++) sha256_add(&hash, parts[k], strlen(parts[k]) + 1);
    sha256_end(&hash, place->secret);
}

bool bootstrap_is_open(const ProcessPlace *place) {
    const char *own = getenv("AUTOMAP_SECRET");
    bool is_guessable = strcmp(place->launcher, "torchrun") == 0 || strcmp(place->launcher, "Slurm") == 0;
    bool is_loopback = strcmp(place->host, "localhost") == 0 || strcmp(place->host, "::1") == 0 ||
                       strncmp(place->host, "127.", 4) == 0;
    return is_guessable && place->count > 1 && !(own && *own) && !is_loopback;
}

AmStatus bootstrap_port(uint16_t *port, AmError *error) {
    int64_t value;
    if (!getenv("AUTOMAP_PORT")) return AM_OK;
    TRY(bootstrap_integer("AUTOMAP_PORT", 1, UINT16_MAX, &value, error));
    *port = (uint16_t)value;
    return AM_OK;
}

static bool torchrun_is_present(void) {
    return getenv("RANK") && getenv("WORLD_SIZE");
}

/* Reads torchrun's variables. It may have a store of its own on MASTER_PORT; then the next port is used. */
static AmStatus torchrun(ProcessPlace *place, AmError *error) {
    int64_t count, process, local_count, local_process, port;
    TRY(bootstrap_integer("WORLD_SIZE", 1, BOOTSTRAP_MOST_PROCESSES, &count, error));
    TRY(bootstrap_integer("RANK", 0, count - 1, &process, error));
    TRY(bootstrap_integer("LOCAL_WORLD_SIZE", 1, count, &local_count, error));
    TRY(bootstrap_integer("LOCAL_RANK", 0, local_count - 1, &local_process, error));
    place->process = (int32_t)process;
    place->count = (int32_t)count;
    place->local_process = (int32_t)local_process;
    place->local_count = (int32_t)local_count;
    if (count == 1) return AM_OK;
    const char *host = getenv("MASTER_ADDR"), *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (!host || !*host || strlen(host) >= BOOTSTRAP_HOST)
        return am_fail(error, AM_ERROR_USAGE, "", "the environment variable MASTER_ADDR is %s",
                       host && *host ? "longer than a host's name" : "missing");
    TRY(bootstrap_integer("MASTER_PORT", 1, UINT16_MAX, &port, error));
    if (store && (strcmp(store, "True") == 0 || strcmp(store, "1") == 0))
        port = port < UINT16_MAX ? port + 1 : port - 1;
    snprintf(place->host, sizeof place->host, "%s", host);
    place->port = (uint16_t)port;
    bootstrap_secret(place, getenv("TORCHELASTIC_RUN_ID"));
    return bootstrap_port(&place->port, error);
}

typedef struct Launcher {
    const char *name;
    bool (*is_present)(void);
    AmStatus (*read)(ProcessPlace *place, AmError *error);
} Launcher;

/* mpirun before Slurm: inside a job its processes see the variables of both. */
static const Launcher launchers[] = {
    {"torchrun", torchrun_is_present, torchrun},
    {"mpirun", bootstrap_mpi_is_present, bootstrap_mpi},
    {"Slurm", bootstrap_slurm_is_present, bootstrap_slurm},
};

AmStatus bootstrap_read(ProcessPlace *place, AmError *error) {
    *place = (ProcessPlace){.launcher = "none", .count = 1, .local_count = 1};
    for (size_t k = 0; k < sizeof launchers / sizeof launchers[0]; k++) {
        if (!launchers[k].is_present()) continue;
        place->launcher = launchers[k].name;
        return launchers[k].read(place, error);
    }
    return AM_OK;
}
