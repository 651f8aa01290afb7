/* The work of a step, independent of the plan, for a bound over pipelines.
 *
 * An item is a product, a reduction, or the moved bytes of element-wise operators. Items of one
 * group are on one stage in every pipeline: a weight's forward product, the products for its
 * gradient and its input's gradient, and its update. Other items without the batch are omitted:
 * they need not run in every iteration.
 *
 * Items of one pass are ordered by its spine, the longest path of products: an item lies between
 * the last product of the spine on which it depends and the first that depends on it. A stage with
 * a part of the spine therefore has to wait for all items before that part, except those across its
 * border.
 *
 * Stages are identified by the forward spine: stage(0) <= stage(1) <= ..., and border b lies
 * between b and b + 1. A forward product is on a stage between those of its neighbours in the
 * module's order. A product of the backward spine is on the stage of its weight's forward product,
 * or not after the stage of a product before it and not before that of one after it. An item
 * therefore has borders [first, end). If none of these divides stages, it is on the stage of
 * `first`, and on its pass if it lies between others.
 *
 * Stages with neighbouring products of a spine exchange a value of each path between the two: one of
 * at least the bytes of the path's least value. The stage of the first one sends it, and that of the
 * second one receives it.
 */
#ifndef PLANNERS_BOUNDS_WORK_ITEMS_H
#define PLANNERS_BOUNDS_WORK_ITEMS_H

#include "cost/cluster/cluster.h"
#include "cost/operator/operator.h"
#include "cost/relaxation/sharding_graph.h"
#include "propagation/plan/plan.h"

typedef enum BoundOrder {
    BOUND_ANYWHERE,
    BOUND_SPINE,   /* a product of its pass's spine */
    BOUND_BETWEEN, /* between two products of the spine, at most LONGEST_SPAN apart (work_items.c) */
    BOUND_BEHIND,  /* after a product of the spine; none waits for it: the gradient of a group's weight */
    BOUND_AFTER,   /* once in a step, in or after its stage's iterations: updates of weights */
    BOUND_ORDERS
} BoundOrder;

typedef struct BoundItem {
    OperatorWork work;    /* of the whole batch on one device */
    double seconds;       /* of `work`; the least time on one device if it is not executed */
    double *type_seconds; /* [type] `seconds` on each of several types; NULL: on one */
    double launches;      /* in `seconds`: each device of a stage has them in each micro-batch */
    double sum_bytes;     /* of its result, if that is a weight's gradient summed over the batch */
    double kept_bytes[2]; /* of a group's weight, and of its optimizer state, at the forward product */
    int32_t group;        /* or -1 */
    bool is_backward;
    BoundOrder order;
    int32_t after, until; /* places on its pass's spine; its own twice, where it has one */
    int32_t first, end;   /* borders; -1: none and no stage are known */
} BoundItem;

typedef struct BoundWork {
    BoundItem *items;
    int32_t item_count, item_capacity, group_count;
    int32_t type_count;         /* of the devices; 0 or 1: one */
    const double *type_weights; /* [type] of a second (bound_of_work.h); NULL: one type */
    int32_t spine_count[2];     /* products, of the forward and of the backward pass */
    double *sent[2];            /* [place] bytes between a product of each spine and the next one; or NULL */
    double *crossing[2];        /* [border] bytes of both passes that stages exchange there; or NULL */
} BoundWork;

/* Allocates in the arena; for the context as read and a device's type. `*known` false: no claim for
 * such a type (cost/relaxation/sharding_graph.h). */
AmStatus bound_work_find(BoundWork *work, bool *known, Arena *arena, const PlanContext *primary,
                         const Cluster *cluster, int32_t device, AmError *error);

/* Sets what crosses borders from `sent`, and borders from places: of forward items `first` and `end` are
 * those of the module's order before, or -1; of backward ones `first` is the least place of what nothing
 * waits for, or -1. */
AmStatus bound_work_find_borders(BoundWork *work, AmError *error);

/* Returns the least seconds of an operator over all of its splits. */
double bound_least_seconds(const ShardingGraphNode *node);

#endif
