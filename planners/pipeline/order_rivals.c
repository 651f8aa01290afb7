/* Plans of other orders: the sequence of their devices, stage after stage, is replaced by that of an order.
 * The copies are simulated in batches like the changes of a climb.
 */
#include "planners/pipeline/order_rivals.h"

#include <string.h>

#include "planners/pipeline/device_orders.h"

/* Copies a plan that has all devices to those of an order. */
static AmStatus reorder(const Plan **made, Arena *arena, const Plan *plan, const int32_t *devices,
                        AmError *error) {
    Plan *copy = ARENA_ARRAY(arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(arena, PlanStage, plan->stage_count);
    if (arena->failed) return am_fail_memory(error, plan->stage_count);
    *copy = *plan;
    copy->stages = stages;
    for (int32_t s = 0, at = 0; s < plan->stage_count; at += stages[s++].mesh.device_count) {
        size_t bytes = sizeof *devices * (size_t)plan->stages[s].mesh.device_count;
        stages[s] = plan->stages[s];
        stages[s].devices = arena_alloc(arena, bytes);
        if (!stages[s].devices) return am_fail_memory(error, (int64_t)bytes);
        memcpy(stages[s].devices, devices + at, bytes);
    }
    *made = copy;
    return AM_OK;
}

/* Keeps the plan of a step if it is one of the fastest. */
static AmStatus keep_rival(Plan *rivals[ORDER_RIVALS_MOST], int32_t *count, Plan *plan, const ClimbStep *step,
                           const PlanClimb *climb, Arena *arena, AmError *error) {
    int32_t at = *count;
    while (at > 0 && rivals[at - 1]->predicted_step_seconds > step->seconds) at--;
    if (at == ORDER_RIVALS_MOST) return AM_OK;
    if (*count < ORDER_RIVALS_MOST) ++*count;
    for (int32_t k = *count - 1; k > at; k--) rivals[k] = rivals[k - 1];
    rivals[at] = plan;
    return plan_climb_take(&rivals[at], step, climb, arena, error);
}

AmStatus order_rivals_find(Plan *rivals[ORDER_RIVALS_MOST], int32_t *count, Plan *plan, double near,
                           PlanClimb *climb, Arena *arena, AmError *error) {
    const double most_seconds = near * plan->predicted_step_seconds;
    const Cluster *cluster = climb->cluster;
    Arena of_base = {0};
    ClimbBase base = {0};
    ClimbBatch batch = {0};
    int32_t **orders = NULL, order_count = 0, used = 0;
    AmError failure = {0};
    AmStatus status = AM_OK;
    *count = 0;
    for (int32_t s = 0; s < plan->stage_count; s++) used += plan->stages[s].mesh.device_count;
    if (used != cluster->device_count) return AM_OK; /* it leaves some devices out */
    TRY_OR_FAIL(device_orders_list(&orders, &order_count, arena, cluster, &failure));
    if (order_count == 0) return AM_OK;
    TRY_OR_FAIL(plan_climb_list(&base, plan, climb, &of_base, &failure));
    for (int32_t k = 0; k < order_count && !climb->budget.is_cut; k++) {
        const Plan *made = NULL;
        if (batch.count == 0) plan_climb_clear(&batch, climb);
        TRY_OR_FAIL(reorder(&made, &climb->scratch[batch.count], plan, orders[k], &failure));
        plan_climb_add(&batch, made, most_seconds, climb);
        if (batch.count < PLAN_CLIMB_BATCH && k < order_count - 1) continue;
        batch.most_seconds = most_seconds;
        TRY_OR_FAIL(plan_climb_price(&batch, climb, &base, &failure));
        for (int32_t j = 0; j < batch.count; j++) {
            const ClimbStep *step = &batch.steps[j];
            bool is_near = step->status == AM_OK && step->simulation->fit.fits &&
                           !step->simulation->is_left && step->seconds <= most_seconds;
            if (is_near) TRY_OR_FAIL(keep_rival(rivals, count, plan, step, climb, arena, &failure));
        }
        plan_climb_clear(&batch, climb);
    }
fail:
    if (base.arena) plan_climb_unlist(&base);
    plan_climb_clear(&batch, climb);
    arena_free(&of_base);
    if (status == AM_INTERRUPTED) climb->budget.is_cut = true;
    if (status == AM_INTERRUPTED || status == AM_ERROR_INFEASIBLE) return AM_OK;
    return am_pass_error(status, &failure, error);
}
