/* Compiled units that the ranks of a process share, by device and text.
 *
 * One lock guards the list, another in each entry the loading: two different
 * units load side by side, equal ones once. An entry lives while somebody has
 * it; one whose loading failed is found as such by those who waited for it.
 */
#include "executor/cuda/unit_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct SharedUnit {
    int32_t ordinal;
    char digest[65]; /* of the text */
    int32_t users;   /* under `lock` */
    pthread_mutex_t loading;
    bool tried;
    CudaUnit unit;
    AmError failure; /* its code is AM_OK: it is loaded */
    SharedUnit *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static SharedUnit *units;

/* Finds or adds the unit, under `lock`; NULL: out of memory. */
static SharedUnit *find_or_add(int32_t ordinal, const char *digest) {
    for (SharedUnit *unit = units; unit; unit = unit->next)
        if (unit->ordinal == ordinal && strcmp(unit->digest, digest) == 0) return unit;
    SharedUnit *unit = calloc(1, sizeof *unit);
    if (!unit) return NULL;
    unit->ordinal = ordinal;
    memcpy(unit->digest, digest, sizeof unit->digest);
    pthread_mutex_init(&unit->loading, NULL);
    unit->next = units;
    units = unit;
    return unit;
}

AmStatus unit_cache_take(SharedUnit **result, const CudaDevice *device, const char *text, AmError *error) {
    char digest[65];
    Sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, text, strlen(text));
    sha256_end(&hash, digest);
    pthread_mutex_lock(&lock);
    SharedUnit *unit = find_or_add(device->ordinal, digest);
    if (unit) unit->users++;
    pthread_mutex_unlock(&lock);
    if (!unit) return am_fail_memory(error, (int64_t)sizeof *unit);
    pthread_mutex_lock(&unit->loading);
    if (!unit->tried) cuda_unit_load(&unit->unit, device, text, &unit->failure);
    unit->tried = true;
    pthread_mutex_unlock(&unit->loading);
    if (unit->failure.code == AM_OK) {
        *result = unit;
        return AM_OK;
    }
    am_fail(error, unit->failure.code, unit->failure.source, "%s", unit->failure.text);
    AmStatus status = unit->failure.code;
    unit_cache_return(unit);
    return status;
}

const CudaUnit *unit_cache_unit(const SharedUnit *unit) {
    return &unit->unit;
}

void unit_cache_return(SharedUnit *unit) {
    pthread_mutex_lock(&lock);
    bool unused = --unit->users == 0;
    if (unused) {
        SharedUnit **place = &units;
        while (*place != unit) place = &(*place)->next;
        *place = unit->next;
    }
    pthread_mutex_unlock(&lock);
    if (!unused) return;
    cuda_unit_unload(&unit->unit);
    pthread_mutex_destroy(&unit->loading);
    free(unit);
}
