/* A hash table of lists, in an arena of its own, under one lock. A partition is
 * known by all its members in order, which are compared in full. Kept ones stay
 * until the cluster is freed, since prices point to them, so their number and
 * memory have a limit.
 */
#include "cost/collective/collective_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cost/collective/collective_algorithms.h"

enum { BUCKETS = 512, MOST_KEPT = 4096, MOST_BYTES = 64 << 20 };

typedef struct Entry {
    struct Entry *next;
    uint64_t hash;
    int32_t group_count, group_size, distinct_count;
    const int32_t *members; /* [group_count * group_size] */
    const CollectiveTopology *topologies, *distinct;
} Entry;

typedef struct CollectiveCache {
    pthread_mutex_t lock;
    Arena arena;
    Entry *buckets[BUCKETS];
    int32_t count;
} CollectiveCache;

CollectiveCache *collective_cache_create(void) {
    CollectiveCache *self = calloc(1, sizeof *self);
    if (self) pthread_mutex_init(&self->lock, NULL);
    return self;
}

void collective_cache_free(CollectiveCache *self) {
    if (!self) return;
    pthread_mutex_destroy(&self->lock);
    arena_free(&self->arena);
    free(self);
}

/* Finds the topologies of a partition, and the different ones among them. */
static AmStatus fill(Entry *entry, Arena *arena, const Cluster *cluster, AmError *error) {
    CollectiveTopology *topologies = ARENA_ARRAY(arena, CollectiveTopology, entry->group_count);
    CollectiveTopology *distinct = ARENA_ARRAY(arena, CollectiveTopology, entry->group_count);
    if (arena->failed) return am_fail_memory(error, entry->group_count);
    TRY(collective_find_loads(topologies, arena, cluster, entry->members, entry->group_count,
                              entry->group_size, error));
    for (int32_t k = 0; k < entry->group_count; k++) {
        bool is_known = false;
        for (int32_t d = 0; d < entry->distinct_count && !is_known; d++)
            is_known = distinct[d].loads == topologies[k].loads;
        if (!is_known) distinct[entry->distinct_count++] = topologies[k];
    }
    entry->topologies = topologies;
    entry->distinct = distinct;
    return AM_OK;
}

/* Finds or makes the entry; the caller holds the lock. *entry is NULL if the cache is full. */
static AmStatus find_or_price(Entry **entry, CollectiveCache *self, const Cluster *cluster,
                              const Entry *wanted, AmError *error) {
    size_t bytes = sizeof(int32_t) * (size_t)wanted->group_count * (size_t)wanted->group_size;
    Entry **bucket = &self->buckets[wanted->hash % BUCKETS];
    for (*entry = *bucket; *entry; *entry = (*entry)->next)
        if ((*entry)->hash == wanted->hash && (*entry)->group_size == wanted->group_size &&
            (*entry)->group_count == wanted->group_count &&
            memcmp((*entry)->members, wanted->members, bytes) == 0)
            return AM_OK;
    if (self->count >= MOST_KEPT || self->arena.used > MOST_BYTES) return AM_OK;
    Entry *made = ARENA_ARRAY(&self->arena, Entry, 1);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    *made = *wanted;
    made->members = (const int32_t *)arena_copy_bytes(&self->arena, (const char *)wanted->members, bytes);
    if (!made->members) return am_fail_memory(error, (int64_t)bytes);
    TRY(fill(made, &self->arena, cluster, error));
    made->next = *bucket;
    *entry = *bucket = made;
    self->count++;
    return AM_OK;
}

AmStatus collective_cache_find(CollectivePartition *partition, Arena *arena, const Cluster *cluster,
                               const int32_t *members, AmError *error) {
    CollectiveCache *self = cluster->collectives;
    size_t count = (size_t)partition->group_count * (size_t)partition->group_size;
    Entry wanted = {.group_count = partition->group_count,
                    .group_size = partition->group_size,
                    .members = members,
                    .hash = hash_bytes(members, count * sizeof *members, (uint64_t)partition->group_size)};
    Entry *entry = NULL;
    pthread_mutex_lock(&self->lock);
    AmStatus status = find_or_price(&entry, self, cluster, &wanted, error);
    pthread_mutex_unlock(&self->lock);
    if (status != AM_OK) return status;
    if (!entry) {
        TRY(fill(&wanted, arena, cluster, error));
        entry = &wanted;
    }
    partition->topologies = entry->topologies;
    partition->distinct = entry->distinct;
    partition->distinct_count = entry->distinct_count;
    return AM_OK;
}
