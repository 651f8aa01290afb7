/* Pipelines over other orders of a cluster's servers.
 *
 * stage_dp_find() puts stages on the devices in the cluster's order. Servers of mixed kinds have several
 * orders that differ: V V P, V P V and P V V for two servers V and one server P. The dynamic program runs for
 * each of them on the same tables, which depend on device types alone.
 */
#ifndef PLANNERS_PIPELINE_DEVICE_ORDERS_H
#define PLANNERS_PIPELINE_DEVICE_ORDERS_H

#include "base/arena.h"
#include "planners/pipeline/stage_dp.h"

enum { DEVICE_ORDERS_MOST_MODELS = 12, DEVICE_ORDERS_EACH = 3 };

/* Other orders, by the seconds of their fastest pipelines. */
typedef struct DeviceOrders {
    StageModel *models[DEVICE_ORDERS_MOST_MODELS]; /* to which the pipelines refer */
    PipelineLayout pipelines[DEVICE_ORDERS_MOST_MODELS][DEVICE_ORDERS_EACH]; /* the fastest first */
    int32_t pipeline_counts[DEVICE_ORDERS_MOST_MODELS];
    int32_t count;
} DeviceOrders;

/* Returns whether all servers are of one kind. */
bool device_orders_are_uniform(const Cluster *cluster);

/* Lists orders of all devices, [order][device_count], in the arena: all that differ where they are few, else
 * those of whole kinds of servers; none for uniform servers. */
AmStatus device_orders_list(int32_t ***orders, int32_t *count, Arena *arena, const Cluster *cluster,
                            AmError *error);

/* Finds the fastest pipelines of at most DEVICE_ORDERS_MOST_MODELS other orders by the tables of `model`,
 * with the numbers of micro-batches of the `known` pipelines [known_count]. Every order is priced where there
 * are few; else orders of whole kinds, and swaps of neighbours that make the best order faster. Closes the
 * models that `self` had. */
AmStatus device_orders_find(DeviceOrders *self, const StageModel *model, const PipelineLayout *known,
                            int32_t known_count, AmError *error);
void device_orders_close(DeviceOrders *self);

#endif
