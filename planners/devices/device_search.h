/* The search over a cluster's devices: in which order, and which of them, a plan uses them.
 *
 * plan_search() takes the devices of a cluster in their order. device_search() gives it a part of the cluster
 * (cluster_part()) whose order does not depend on that of the cluster file, and translates the devices of the
 * plans that it finds.
 */
#ifndef PLANNERS_DEVICES_DEVICE_SEARCH_H
#define PLANNERS_DEVICES_DEVICE_SEARCH_H

#include "planners/plan_search.h"

/* Searches by plan_search() over choices and orders of the devices. All plans in the result have devices of
 * `cluster`. With scope->request->devices.keeps_order, and where all servers are of one kind, there is one
 * choice.
 */
AmStatus device_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                       const SearchScope *scope, AmError *error);

#endif
