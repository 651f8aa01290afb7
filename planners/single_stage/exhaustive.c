/* Exhaustive search: every ordered list on every axis, with and without storage, depth first. It is the
 * oracle of the other searchers where the space is small enough. */
#include "planners/single_stage/searchers.h"

/* Axis priorities of at most AXIS_PLAN_MAX_ENTRIES of n candidates, each once. */
static int64_t count_lists(int64_t n) {
    int64_t total = 1, lists = 1;
    for (int64_t length = 1; length <= n && length <= AXIS_PLAN_MAX_ENTRIES; length++) {
        if (__builtin_mul_overflow(lists, n - length + 1, &lists)) return INT64_MAX;
        if (__builtin_add_overflow(total, lists, &total)) return INT64_MAX;
    }
    return total;
}

int64_t exhaustive_size(const Problem *problem) {
    int64_t total = 1;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        int64_t usable = 0;
        for (int32_t k = 0; k < problem->candidate_count; k++) usable += problem_usable(problem, k, axis);
        if (__builtin_mul_overflow(total, count_lists(usable), &total)) return INT64_MAX;
        if (__builtin_mul_overflow(total, (int64_t)problem_storage_kinds(problem, axis) + 1, &total))
            return INT64_MAX;
    }
    return total;
}

/* Prices the axis plan as it is on this axis and all before, then all extensions of the axis's list. */
static AmStatus extend(Problem *problem, AxisPlan *axis_plan, int32_t axis, AmError *error) {
    if (axis == problem->mesh.axis_count) {
        PlanPrice price;
        return problem_price(problem, axis_plan, &price, error);
    }
    for (int32_t kinds = problem_storage_kinds(problem, axis); kinds >= 0; kinds--) {
        axis_plan->storage[axis] = (uint8_t)kinds;
        TRY(extend(problem, axis_plan, axis + 1, error));
    }
    for (int32_t k = 0; k < problem->candidate_count; k++) {
        if (problem_must_stop(problem)) return AM_OK;
        int32_t place = axis_plan->count[axis];
        if (!problem_usable(problem, k, axis) || !axis_plan_insert(axis_plan, axis, place, k)) continue;
        TRY(extend(problem, axis_plan, axis, error));
        axis_plan_remove(axis_plan, axis, place);
    }
    return AM_OK;
}

AmStatus exhaustive_search(Problem *problem, AmError *error) {
    AxisPlan axis_plan = {0};
    return extend(problem, &axis_plan, 0, error);
}
