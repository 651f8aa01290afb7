/* Greedy search: from a plan that splits nothing, the change that shortens the step most, again and again
 * until none does. A change puts one more class set into an axis priority, at any place, or stores one more
 * kind of a weight's companions in shards there. It reads the marginal gains and cannot see that two changes
 * pay only together. */
#include "planners/local_search/climb.h"
#include "planners/single_stage/searchers.h"

/* A change: of the storage (class set -1), or a class set at a place of the axis priority. */
typedef struct Addition {
    int32_t axis, class_set, place;
} Addition;

typedef struct Greedy {
    StageProblem *problem;
    AxisPlan axis_plan, next; /* the present plan, and the best that is one change away */
    double least;             /* score of `next` */
    Arena arena;              /* of the changes */
    Addition *additions;
    int32_t addition_count, addition_capacity;
    AxisPlan batch[PROBLEM_BATCH];
    int32_t waiting;
} Greedy;

static void append_addition(Greedy *self, int32_t axis, int32_t class_set, int32_t place) {
    ARENA_RESERVE(&self->arena, self->additions, self->addition_count, self->addition_capacity);
    if (self->additions) self->additions[self->addition_count++] = (Addition){axis, class_set, place};
}

static AmStatus list_additions(void *user, int32_t *count, AmError *error) {
    Greedy *self = user;
    const StageProblem *problem = self->problem;
    self->addition_count = 0;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        if (self->axis_plan.storage[axis] < problem_storage_kinds(problem, axis))
            append_addition(self, axis, -1, 0);
        for (int32_t k = 0; k < problem->class_set_count; k++)
            for (int32_t place = self->axis_plan.count[axis]; place >= 0; place--)
                if (problem_can_split(problem, k, axis)) append_addition(self, axis, k, place);
    }
    *count = self->addition_count;
    return self->arena.failed ? am_fail_memory(error, *count) : AM_OK;
}

static AmStatus make_addition(void *user, int32_t move, ClimbMove *made, AmError *error) {
    Greedy *self = user;
    const Addition *addition = &self->additions[move];
    AxisPlan *changed = &self->batch[self->waiting];
    (void)error;
    *changed = self->axis_plan;
    if (addition->class_set < 0) changed->storage[addition->axis]++;
    else if (!axis_plan_insert(changed, addition->axis, addition->place, addition->class_set)) return AM_OK;
    self->waiting++;
    *made = CLIMB_ADDED;
    return AM_OK;
}

static AmStatus price_batch(void *user, bool *is_better, AmError *error) {
    Greedy *self = user;
    TRY(problem_price_batch(self->problem, self->batch, self->waiting, error));
    for (int32_t k = 0; k < self->waiting; k++) {
        PlanPrice price;
        if (!problem_known(self->problem, &self->batch[k], &price)) continue; /* beyond the budget */
        double score = plan_price_score(&price);
        if (score >= self->least) continue;
        self->least = score;
        self->next = self->batch[k];
        *is_better = true;
    }
    self->waiting = 0;
    return AM_OK;
}

static AmStatus take_next(void *user, AmError *error) {
    Greedy *self = user;
    (void)error;
    self->axis_plan = self->next;
    return AM_OK;
}

static bool is_over(void *user) {
    const Greedy *self = user;
    return problem_must_stop(self->problem);
}

AmStatus greedy_search(StageProblem *problem, AmError *error) {
    Greedy self = {.problem = problem};
    const Climb climb = {.order = CLIMB_STEEPEST,
                         .batch = PROBLEM_BATCH,
                         .user = &self,
                         .is_over = is_over,
                         .list = list_additions,
                         .make = make_addition,
                         .price = price_batch,
                         .take = take_next};
    ClimbPlace place = {0};
    PlanPrice price;
    TRY(problem_price(problem, &self.axis_plan, &price, error));
    self.least = plan_price_score(&price);
    AmStatus status = climb_run(&climb, &place, error);
    arena_free(&self.arena);
    return status;
}
