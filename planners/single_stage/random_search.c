/* Random plans: for tests, which want any valid plan rather than a good one. */
#include "planners/single_stage/searchers.h"

void random_axis_plan(const Problem *problem, Random *random, AxisPlan *axis_plan) {
    *axis_plan = (AxisPlan){0};
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        double density = random_uniform(random);
        for (int32_t k = 0; k < problem->candidate_count; k++) {
            if (!problem_usable(problem, k, axis) || random_uniform(random) > density) continue;
            axis_plan_insert(axis_plan, axis, (int32_t)random_below(random, axis_plan->count[axis] + 1), k);
        }
        int32_t kinds = problem_storage_kinds(problem, axis);
        if (kinds > 0) axis_plan->storage[axis] = (uint8_t)random_below(random, kinds + 1);
    }
}
