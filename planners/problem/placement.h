/* Pins that place scopes: on stages, on devices, and on a number of devices.
 *
 *   stage(n)        the operators of the scope are on stage n of the plan, from 0 on
 *   devices(V100)   they are on devices of this type; devices(0-3,8): on these devices of the cluster
 *   replicate(k), split(k)   they are on a stage of r x k devices; r, the number of replicas, is the same for
 *                   all such stages (Whale nests data parallelism around task graphs in this way)
 *
 * A plan keeps a placement if the ranges of its stages do: every forward operator is in the range of one
 * stage.
 */
#ifndef PLANNERS_PROBLEM_PLACEMENT_H
#define PLANNERS_PROBLEM_PLACEMENT_H

#include "cost/cluster/cluster.h"
#include "propagation/propagate/pins.h"

typedef struct Placement {
    int32_t count; /* of the entry's instructions */
    const Cluster *cluster;
    const PropagationPin **on_stage;   /* [count] the pin of its stage; or NULL */
    const PropagationPin **on_number;  /* [count] the pin with the largest number of devices; or NULL */
    const PropagationPin **on_devices; /* [count] the pin of its devices; or NULL */
    const bool **devices;              /* [count][device]: where it may be; NULL: anywhere */
} Placement;

/* The requirements of a range of instructions on its stage. */
typedef struct RangePlacement {
    int32_t stage;  /* -1: any */
    int32_t number; /* the number of devices of the stage is a multiple of it; 0: any number */
    const PropagationPin *on_number, *on_devices;
    bool is_contradicted; /* by two pins: no stage has the range */
} RangePlacement;

/* Returns the number of stages that the pins imply, 0 without stage pins; `*last`: the pin of the last
 * stage. */
int32_t placement_stages(const PropagationPin *pins, int32_t count, const PropagationPin **last);
/* Returns the first stage before the last one that no pin names; -1: pins name all. */
int32_t placement_free_stage(const PropagationPin *pins, int32_t count);

/* Marks the devices [device_count] that a pin of devices lists: types, numbers, and FIRST-LAST. Returns false
 * and copies the item to `unknown` if the cluster has none of an item. */
bool placement_mark_devices(bool *allowed, char unknown[PIN_ARGUMENT_BYTES], const Cluster *cluster,
                            const PropagationPin *pin);

/* Finds the operators of all scopes, in the arena; `*placement` is NULL where no pin places any. `context` is
 * the module as read. AM_ERROR_USAGE names an empty scope, an unknown device, or the two pins of an operator
 * that is on two stages, or on a stage after one of a later operator. */
AmStatus placement_find(const Placement **placement, Arena *arena, const PlanContext *context,
                        const Cluster *cluster, const PropagationPin *pins, int32_t count, AmError *error);

/* Returns AM_ERROR_INFEASIBLE if all stages have a number of devices by pins, and the cluster is no multiple
 * of their sum. */
AmStatus placement_check_numbers(const Placement *placement, int32_t stages, AmError *error);

/* Returns AM_ERROR_INFEASIBLE if stages in the order of the cluster's devices cannot keep the pins of
 * devices: an operator may only be on devices before all those that an earlier one needs. Names both pins. */
AmStatus placement_check_order(const Placement *placement, AmError *error);

/* Returns the requirements of the instructions [first, end). */
RangePlacement placement_of_range(const Placement *placement, int32_t first, int32_t end);
/* Returns whether the operators of [first, end) may be on these devices of the cluster, a run. */
bool placement_allows_devices(const Placement *placement, int32_t first, int32_t end, int32_t device,
                              int32_t device_count);

/* Checks a plan. AM_ERROR_INFEASIBLE names the pin that the plan does not keep. `placement` may be NULL. */
AmStatus placement_check_plan(const Placement *placement, const Plan *plan, AmError *error);

#endif
