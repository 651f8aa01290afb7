/* Orders of a cluster's devices that do not depend on the order of its servers in a file. */
#ifndef PLANNERS_DEVICES_DEVICE_ORDER_H
#define PLANNERS_DEVICES_DEVICE_ORDER_H

#include "planners/problem/candidate_pool.h"
#include "planners/problem/search_result.h"
#include "planners/problem/search_scope.h"

/* Lists all devices [device_count]: server by server, those with the fastest devices first, then those with
 * more memory, more devices, faster links; servers that are equal in all of these as they are numbered.
 * `*is_same`: this is the cluster's own order. */
AmStatus device_order_list(int32_t *devices, bool *is_same, const Cluster *cluster, AmError *error);

/* Sorts the devices of an order that pins name, in the places of these devices, by the first operator that
 * each may compute: stages are runs of an order. No change where pins name entire servers of several kinds,
 * whose orders a search tries by itself. `*is_same` becomes false if the order changes. Pins that no plan
 * keeps change nothing: the search refuses them. */
AmStatus device_order_follow_pins(int32_t *devices, bool *is_same, const PlanContext *primary,
                                  const Cluster *cluster, const PlanConstraints *constraints, AmError *error);

/* Replaces every device d of the plans of a result by devices[d]. */
AmStatus device_order_translate(SearchResult *result, Arena *arena, const int32_t *devices, AmError *error);

/* Copies a plan for a part of a cluster whose device k is devices[k] [count]. NULL in `*plan`: it has a
 * device that the part lacks. */
AmStatus device_order_place(const Plan **plan, Arena *arena, const Plan *given, const int32_t *devices,
                            int32_t count, AmError *error);

#endif
