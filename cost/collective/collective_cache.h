/* A cache of the properties of a cluster's process groups, kept with the cluster: a search prices
 * the same meshes on the same devices repeatedly. It is thread-safe. */
#ifndef COST_COLLECTIVE_COLLECTIVE_CACHE_H
#define COST_COLLECTIVE_COLLECTIVE_CACHE_H

#include "cost/collective/collective.h"

/* Fills topologies and distinct of a partition whose groups are `members`, cluster
 * devices group by group. They belong to the cluster, or, where it keeps enough
 * already, live in the arena. AM_ERROR_INTERNAL: no memory. */
AmStatus collective_cache_find(CollectivePartition *partition, Arena *arena, const Cluster *cluster,
                               const int32_t *members, AmError *error);

#endif
