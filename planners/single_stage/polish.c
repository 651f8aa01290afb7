/* Local search over single changes of the lists: an entry inserted, removed,
 * replaced or moved, more or less kept in shards. A batch of changes that beats the best plan so far is
 * followed at once. Climbing tries the ends of the lists alone and stops where
 * no change helps; walking tries every place, and goes on from the best plan
 * whose changes have not all been tried. With evaluations enough that reaches
 * the whole space, so a local optimum ends nothing.
 */
#include <string.h>

#include "planners/single_stage/searchers.h"

typedef struct Polish {
    Problem *problem;
    AxisPlan axis_plan; /* whose changes are being tried */
    double best;        /* score of the best plan when they were begun */
    AxisPlan batch[PROBLEM_BATCH];
    int32_t waiting;
    bool improved;
    bool every_place; /* of a list, not its ends alone */
} Polish;

static bool goes_on(const Polish *self) {
    return !self->improved && !problem_must_stop(self->problem);
}

static AmStatus price_waiting(Polish *self, AmError *error) {
    TRY(problem_price_batch(self->problem, self->batch, self->waiting, error));
    self->waiting = 0;
    self->improved = plan_price_score(&self->problem->best_price) < self->best;
    return AM_OK;
}

static AmStatus try_axis_plan(Polish *self, const AxisPlan *axis_plan, AmError *error) {
    if (!goes_on(self)) return AM_OK;
    self->batch[self->waiting++] = *axis_plan;
    return self->waiting == PROBLEM_BATCH ? price_waiting(self, error) : AM_OK;
}

/* The candidate put into the axis's list, at the end first: earlier entries weigh more. */
static AmStatus try_insertions(Polish *self, const AxisPlan *base, int32_t axis, int32_t candidate,
                               AmError *error) {
    if (!problem_usable(self->problem, candidate, axis)) return AM_OK;
    for (int32_t place = base->count[axis]; place >= 0; place--) {
        AxisPlan changed = *base;
        if (!self->every_place && place > 0 && place < base->count[axis]) continue;
        if (axis_plan_insert(&changed, axis, place, candidate)) TRY(try_axis_plan(self, &changed, error));
    }
    return AM_OK;
}

/* Entry `place` of `axis` taken out, replaced, or put back elsewhere. */
static AmStatus try_without(Polish *self, int32_t axis, int32_t place, AmError *error) {
    const Problem *problem = self->problem;
    int32_t candidate = self->axis_plan.entries[axis][place];
    AxisPlan without = self->axis_plan;
    axis_plan_remove(&without, axis, place);
    TRY(try_axis_plan(self, &without, error));
    for (int32_t other = 0; other < problem->candidate_count; other++) {
        AxisPlan replaced = without;
        if (other == candidate || !problem_usable(problem, other, axis)) continue;
        if (axis_plan_insert(&replaced, axis, place, other)) TRY(try_axis_plan(self, &replaced, error));
    }
    for (int32_t target = 0; target < problem->mesh.axis_count; target++)
        TRY(try_insertions(self, &without, target, candidate, error));
    return AM_OK;
}

/* Optimizer state, gradients and weights kept in shards over the axis, or no longer. */
static AmStatus try_storage(Polish *self, int32_t axis, AmError *error) {
    for (int32_t kinds = problem_storage_kinds(self->problem, axis); kinds >= 0; kinds--) {
        AxisPlan changed = self->axis_plan;
        changed.storage[axis] = (uint8_t)kinds;
        if (kinds != self->axis_plan.storage[axis]) TRY(try_axis_plan(self, &changed, error));
    }
    return AM_OK;
}

static AmStatus try_changes(Polish *self, AmError *error) {
    const Problem *problem = self->problem;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) TRY(try_storage(self, axis, error));
    for (int32_t k = 0; k < problem->candidate_count; k++)
        for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
            TRY(try_insertions(self, &self->axis_plan, axis, k, error));
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        for (int32_t place = 0; place < self->axis_plan.count[axis]; place++)
            TRY(try_without(self, axis, place, error));
    return goes_on(self) ? price_waiting(self, error) : AM_OK;
}

/* Tries the changes of self->axis plan; false in `improved` if none beats the best plan. */
static AmStatus try_around(Polish *self, AmError *error) {
    self->improved = false;
    self->waiting = 0;
    self->best = plan_price_score(&self->problem->best_price);
    return try_changes(self, error);
}

AmStatus polish_climb(Problem *problem, AmError *error) {
    Polish self = {.problem = problem, .improved = true};
    while (problem->has_best && self.improved && !problem_must_stop(problem)) {
        self.axis_plan = problem->best;
        TRY(try_around(&self, error));
    }
    return AM_OK;
}

AmStatus polish_walk(Problem *problem, AmError *error) {
    Polish self = {.problem = problem, .every_place = true};
    while (!problem_must_stop(problem) && problem_best_untried(problem, &self.axis_plan)) {
        TRY(try_around(&self, error));
        if (goes_on(&self)) problem_set_tried(problem, &self.axis_plan);
    }
    return AM_OK;
}
