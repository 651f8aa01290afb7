/* The position of a group's devices on the graph of the cluster: parts of close devices, and rings
 * that use all links. */
#ifndef COST_COLLECTIVE_COLLECTIVE_GROUP_H
#define COST_COLLECTIVE_COLLECTIVE_GROUP_H

#include "cost/cluster/topology.h"

/* Parts are servers; of a group on one server whose links are said by edges, islands: devices that are near
 * one another. */
typedef struct CollectiveGroup {
    int32_t devices, servers, parts;
    const int32_t *members; /* [devices] cluster devices, part by part */
    const int32_t *first;   /* [parts + 1] where each part's begin */
    int32_t least, most;    /* devices of a part */
    int32_t *column;        /* [parts] scratch */
    bool is_vast;           /* too many routes to search those to far devices; set by the caller */
    int32_t ring_count;     /* rings without a common link, each usable in both directions; 0: not searched */
    const int32_t *rings;   /* [ring_count * devices] cluster devices */
} CollectiveGroup;

enum { COLLECTIVE_MOST_GROUPINGS = 4 };

/* Describes a group of `size` cluster devices in all ways in which it is to be seen: one, or for islands one
 * for each nearness that joins other devices, nearest first. Which they are does not depend on the rates of
 * links, so that the least price of all falls where a link gets faster. `groups`:
 * [COLLECTIVE_MOST_GROUPINGS]; arrays live in the arena. AM_ERROR_INTERNAL: no memory. */
AmStatus collective_groupings(CollectiveGroup *groups, int32_t *count, Arena *arena, const Cluster *cluster,
                              const int32_t *members, int32_t size, AmError *error);

#endif
