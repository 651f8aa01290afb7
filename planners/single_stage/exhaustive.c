/* Exhaustive search: every axis priority of every mesh, with and without storage, depth first. It is the
 * oracle of the other searchers where the space is small enough. */
#include "planners/single_stage/searchers.h"

#define EXHAUSTIVE_LIMIT 200000

/* Axis priorities of at most AXIS_PLAN_MAX_ENTRIES of n class sets, each once. */
static int64_t count_axis_priorities(int64_t n) {
    int64_t total = 1, priorities = 1;
    for (int64_t length = 1; length <= n && length <= AXIS_PLAN_MAX_ENTRIES; length++) {
        if (__builtin_mul_overflow(priorities, n - length + 1, &priorities)) return INT64_MAX;
        if (__builtin_add_overflow(total, priorities, &total)) return INT64_MAX;
    }
    return total;
}

/* Returns the number of axis plans; saturates at INT64_MAX. */
static int64_t size_of(const StageProblem *problem) {
    int64_t total = 1;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        int64_t usable = 0;
        for (int32_t k = 0; k < problem->class_set_count; k++) usable += problem_can_split(problem, k, axis);
        if (__builtin_mul_overflow(total, count_axis_priorities(usable), &total)) return INT64_MAX;
        if (__builtin_mul_overflow(total, (int64_t)problem_storage_kinds(problem, axis) + 1, &total))
            return INT64_MAX;
    }
    return total;
}

/* Prices the axis plan with the lists of this axis and all before, then with all extensions of this axis's
 * list.
 */
static AmStatus extend(StageProblem *problem, AxisPlan *axis_plan, int32_t axis, AmError *error) {
    if (axis == problem->mesh.axis_count) {
        PlanPrice price;
        return problem_price(problem, axis_plan, &price, error);
    }
    for (int32_t kinds = problem_storage_kinds(problem, axis); kinds >= 0; kinds--) {
        axis_plan->storage[axis] = (uint8_t)kinds;
        TRY(extend(problem, axis_plan, axis + 1, error));
    }
    for (int32_t k = 0; k < problem->class_set_count; k++) {
        if (problem_must_stop(problem)) return AM_OK;
        int32_t place = axis_plan->count[axis];
        if (!problem_can_split(problem, k, axis) || !axis_plan_insert(axis_plan, axis, place, k)) continue;
        TRY(extend(problem, axis_plan, axis, error));
        axis_plan_remove(axis_plan, axis, place);
    }
    return AM_OK;
}

AmStatus exhaustive_search(SingleStageSearch *self, AmError *error) {
    int64_t size = 0;
    for (int32_t k = 0; k < self->problem_count; k++) {
        int64_t one = size_of(self->problems[k]);
        if (__builtin_add_overflow(size, one, &size)) size = INT64_MAX;
    }
    if (size > EXHAUSTIVE_LIMIT)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "--searcher exhaustive: the space has more than %d plans; narrow it by --space or --mesh",
            EXHAUSTIVE_LIMIT);
    self->result->space_size = size;
    for (int32_t k = 0; k < self->problem_count; k++) {
        self->problems[k]->budget.limit = INT64_MAX / BUDGET_REPEATS; /* none */
        AxisPlan axis_plan = {0};
        TRY(extend(self->problems[k], &axis_plan, 0, error));
    }
    self->result->is_exact = !single_stage_must_end(self);
    return AM_OK;
}
