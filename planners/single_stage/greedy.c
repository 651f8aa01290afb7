/* Greedy search: from a plan that splits nothing, the change that shortens the step most, again and again
 * until none does. A change puts one more candidate into an axis's list, at any place, or stores one more
 * kind of a weight's companions in shards there. It reads the marginal gains and cannot see that two changes
 * pay only together. */
#include "planners/single_stage/searchers.h"

/* The changes of one round. Every change is priced, in batches; the best of them is kept. */
typedef struct Greedy {
    Problem *problem;
    AxisPlan axis_plan, next; /* where the round begins, and the best that is one change away */
    double least;             /* score of `next` */
    AxisPlan batch[PROBLEM_BATCH];
    int32_t waiting;
} Greedy;

static AmStatus price_waiting(Greedy *self, AmError *error) {
    TRY(problem_price_batch(self->problem, self->batch, self->waiting, error));
    for (int32_t k = 0; k < self->waiting; k++) {
        PlanPrice price;
        if (!problem_known(self->problem, &self->batch[k], &price)) continue; /* beyond the budget */
        double score = plan_price_score(&price);
        if (score >= self->least) continue;
        self->least = score;
        self->next = self->batch[k];
    }
    self->waiting = 0;
    return AM_OK;
}

static AmStatus try_axis_plan(Greedy *self, const AxisPlan *axis_plan, AmError *error) {
    self->batch[self->waiting++] = *axis_plan;
    return self->waiting == PROBLEM_BATCH ? price_waiting(self, error) : AM_OK;
}

static AmStatus try_axis(Greedy *self, int32_t axis, AmError *error) {
    const Problem *problem = self->problem;
    AxisPlan changed = self->axis_plan;
    if (self->axis_plan.storage[axis] < problem_storage_kinds(problem, axis)) {
        changed.storage[axis]++;
        TRY(try_axis_plan(self, &changed, error));
    }
    for (int32_t k = 0; k < problem->candidate_count && !problem_must_stop(problem); k++) {
        if (!problem_usable(problem, k, axis)) continue;
        for (int32_t place = self->axis_plan.count[axis]; place >= 0; place--) {
            changed = self->axis_plan;
            if (axis_plan_insert(&changed, axis, place, k)) TRY(try_axis_plan(self, &changed, error));
        }
    }
    return AM_OK;
}

AmStatus greedy_search(Problem *problem, AmError *error) {
    Greedy self = {.problem = problem};
    PlanPrice price;
    TRY(problem_price(problem, &self.axis_plan, &price, error));
    for (self.least = plan_price_score(&price); !problem_must_stop(problem);) {
        double before = self.least;
        for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) TRY(try_axis(&self, axis, error));
        TRY(price_waiting(&self, error));
        if (self.least >= before) break;
        self.axis_plan = self.next;
    }
    return AM_OK;
}
