/* What a step asks of whoever computes it, whatever the plan: the work that a bound over pipelines adds up.
 *
 * An item is a product, a reduction, or what element-wise operators move. Items of one group are on one stage
 * in every pipeline: a weight's forward product and those that give its gradient and its input's (method,
 * section 4), and its update. Other items without the batch are left out: they need not be done in every
 * turn.
 *
 * Items of one pass are ordered by its spine, the longest path of products: an item lies between the last
 * product of the spine that it waits for and the first that waits for it. So a stage that has a part of the
 * spine has to wait for all items before that, but for those that lie across its border.
 *
 * Stages are told by the forward spine: stage(0) <= stage(1) <= ..., and border b lies between b and b + 1. A
 * forward product is on a stage between those of its neighbours in the module's order, which is what is cut.
 * A product of the backward spine is where its weight's forward product is, or not after the stage of one
 * before it and not before that of one behind it. So an item has borders [first, end), and where none of
 * these divides stages it is on the stage of `first`, and on its pass if it is between others.
 */
#ifndef PLANNERS_BOUND_WORK_H
#define PLANNERS_BOUND_WORK_H

#include "cost/cluster.h"
#include "cost/operator.h"
#include "propagation/plan.h"

typedef enum BoundOrder {
    BOUND_ANYWHERE,
    BOUND_SPINE,   /* it is a product of it */
    BOUND_BETWEEN, /* two products of its pass's spine that are not far from one another */
    BOUND_BEHIND,  /* one, and nothing on the spine waits for it: what gives the gradient of a group's weight
                    */
    BOUND_AFTER, /* once in a step, not before the stage's turns have ended or in these: the weights' updates
                  */
    BOUND_ORDERS
} BoundOrder;

typedef struct BoundItem {
    OperatorWork work; /* of the whole batch on one device */
    double seconds;    /* or, where that is not run, what it takes there at the least */
    double sum_bytes;  /* of its result, where that is the sum over the batch that is a weight's gradient */
    int32_t group;     /* or -1 */
    bool is_backward;
    BoundOrder order;
    int32_t after, until; /* places on its pass's spine; its own twice, where it has one */
    int32_t first, end;   /* borders; -1: none and no stage are known */
} BoundItem;

typedef struct BoundWork {
    BoundItem *items;
    int32_t item_count, item_capacity, group_count;
    int32_t spine_count[2]; /* products, of the forward and of the backward pass */
} BoundWork;

/* In the arena; of the context as it was read, for a device's type. `*known` false: nothing is claimed of
 * such a type (cost/additive.h). */
AmStatus bound_work_find(BoundWork *work, bool *known, Arena *arena, const PlanContext *whole,
                         const Cluster *cluster, int32_t device, AmError *error);

/* Sets borders from places: of forward items `first` and `end` are those of the module's order before, or -1;
 * of backward ones `first` is the least place of what nothing waits for, or -1. */
AmStatus bound_work_find_borders(BoundWork *work, AmError *error);

#endif
