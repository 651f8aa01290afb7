/* Local search over single changes of the axis priorities: an entry inserted, removed,
 * replaced or moved, more or less kept in shards. The first batch of changes that beats the best plan so far
 * is followed. Climbing tries the ends of the axis priorities alone, the changes with the least estimates
 * first, and stops where no change helps; walking tries every place, and goes on from the best plan whose
 * changes have not all been tried. With evaluations enough that reaches the whole space, so a local optimum
 * ends nothing. On mixed devices changes are tried in the order of the list: estimates have equal shares, and
 * plans get unequal ones after the climb.
 */
#include <stdlib.h>

#include "planners/local_search/climb.h"
#include "planners/single_stage/estimate.h"
#include "planners/single_stage/searchers.h"

typedef struct Change {
    AxisPlan axis_plan;
    double estimate; /* score */
    int32_t place;   /* in the order of the list */
} Change;

typedef struct Polish {
    StageProblem *problem;
    AxisPlan axis_plan;   /* whose changes are being tried */
    double best;          /* score of the best plan when they were listed */
    bool every_place;     /* of a list, not its ends alone */
    int64_t most_in_vain; /* evaluations of a walk since its last better plan; 0: no limit */
    int64_t improved_at;  /* evaluations of the problem at that plan */
    Estimator *estimator; /* NULL: changes are tried in the order of the list */
    Arena arena;          /* of the changes */
    Change *changes;
    int32_t change_count, change_capacity;
    AxisPlan batch[PROBLEM_BATCH];
    int32_t waiting;
} Polish;

static void add_change(Polish *self, const AxisPlan *axis_plan) {
    ARENA_RESERVE(&self->arena, self->changes, self->change_count, self->change_capacity);
    if (!self->changes) return;
    self->changes[self->change_count] = (Change){.axis_plan = *axis_plan, .place = self->change_count};
    self->change_count++;
}

/* Adds the class set in the axis priority, at the end first: earlier entries weigh more. */
static void add_insertions(Polish *self, const AxisPlan *base, int32_t axis, int32_t class_set) {
    if (!problem_can_split(self->problem, class_set, axis)) return;
    for (int32_t place = base->count[axis]; place >= 0; place--) {
        AxisPlan changed = *base;
        if (!self->every_place && place > 0 && place < base->count[axis]) continue;
        if (axis_plan_insert(&changed, axis, place, class_set)) add_change(self, &changed);
    }
}

/* Adds the plans with entry `place` of `axis` taken out, replaced, or put back elsewhere. */
static void add_without(Polish *self, int32_t axis, int32_t place) {
    const StageProblem *problem = self->problem;
    int32_t class_set = self->axis_plan.entries[axis][place];
    AxisPlan without = self->axis_plan;
    axis_plan_remove(&without, axis, place);
    add_change(self, &without);
    for (int32_t other = 0; other < problem->class_set_count; other++) {
        AxisPlan replaced = without;
        if (other == class_set || !problem_can_split(problem, other, axis)) continue;
        if (axis_plan_insert(&replaced, axis, place, other)) add_change(self, &replaced);
    }
    for (int32_t target = 0; target < problem->mesh.axis_count; target++)
        add_insertions(self, &without, target, class_set);
}

static int compare_changes(const void *one, const void *other) {
    const Change *a = one, *b = other;
    if (a->estimate != b->estimate) return a->estimate < b->estimate ? -1 : 1;
    return a->place < b->place ? -1 : 1;
}

static AmStatus list_changes(void *user, int32_t *count, AmError *error) {
    Polish *self = user;
    const StageProblem *problem = self->problem;
    self->best = plan_price_score(&problem->best.price);
    self->waiting = self->change_count = 0;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        for (int32_t kinds = problem_storage_kinds(problem, axis); kinds >= 0; kinds--) {
            AxisPlan changed = self->axis_plan; /* with another amount of storage in shards */
            changed.storage[axis] = (uint8_t)kinds;
            if (kinds != self->axis_plan.storage[axis]) add_change(self, &changed);
        }
    for (int32_t k = 0; k < problem->class_set_count; k++)
        for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
            add_insertions(self, &self->axis_plan, axis, k);
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        for (int32_t place = 0; place < self->axis_plan.count[axis]; place++) add_without(self, axis, place);
    *count = self->change_count;
    if (self->arena.failed) return am_fail_memory(error, *count);
    if (!self->estimator || *count == 0) return AM_OK;
    /* Changes with the least estimates come first: few are priced to their end. */
    for (int32_t k = 0; k < self->change_count; k++) {
        PlanPrice estimate;
        TRY(estimate_axis_plan(&estimate, self->estimator, &self->changes[k].axis_plan, error));
        self->changes[k].estimate = plan_price_score(&estimate);
    }
    qsort(self->changes, (size_t)self->change_count, sizeof *self->changes, compare_changes);
    return AM_OK;
}

static AmStatus make_change(void *user, int32_t move, ClimbMove *made, AmError *error) {
    Polish *self = user;
    (void)error;
    self->batch[self->waiting++] = self->changes[move].axis_plan;
    *made = CLIMB_ADDED;
    return AM_OK;
}

static AmStatus price_batch(void *user, bool *is_better, AmError *error) {
    Polish *self = user;
    TRY(problem_price_batch(self->problem, self->batch, self->waiting, error));
    self->waiting = 0;
    *is_better = plan_price_score(&self->problem->best.price) < self->best;
    if (*is_better) self->improved_at = self->problem->budget.used;
    return AM_OK;
}

static AmStatus take_best(void *user, AmError *error) {
    Polish *self = user;
    (void)error;
    if (self->every_place) problem_best_untried(self->problem, &self->axis_plan);
    else self->axis_plan = self->problem->best.axis_plan;
    return AM_OK;
}

static bool is_over(void *user) {
    const Polish *self = user;
    bool is_in_vain =
        self->most_in_vain > 0 && self->problem->budget.used - self->improved_at >= self->most_in_vain;
    return is_in_vain || problem_must_stop(self->problem);
}

/* Climbs from self->axis_plan to a plan that no change improves, or as far as the budget allows. */
static AmStatus climb_axis_plans(Polish *self, AmError *error) {
    const Climb moves = {.order = CLIMB_FROM_FIRST,
                         .batch = PROBLEM_BATCH,
                         .user = self,
                         .is_over = is_over,
                         .list = list_changes,
                         .make = make_change,
                         .price = price_batch,
                         .take = take_best};
    ClimbPlace place = {0};
    TRY(climb_run(&moves, &place, error));
    if (self->every_place && place.is_end && !is_over(self))
        problem_set_tried(self->problem, &self->axis_plan);
    return AM_OK;
}

AmStatus polish_climb(StageProblem *problem, AmError *error) {
    Polish self = {.problem = problem, .axis_plan = problem->best.axis_plan};
    if (!problem->best.is_known || problem_must_stop(problem)) return AM_OK;
    if (!cluster_is_mixed(problem->cluster)) TRY(estimator_of(&self.estimator, problem, error));
    AmStatus status = climb_axis_plans(&self, error);
    arena_free(&self.arena);
    return status;
}

AmStatus polish_walk(StageProblem *problem, int64_t most_in_vain, AmError *error) {
    Polish self = {.problem = problem,
                   .every_place = true,
                   .most_in_vain = most_in_vain,
                   .improved_at = problem->budget.used};
    AmStatus status = AM_OK;
    while (status == AM_OK && !is_over(&self) && problem_best_untried(problem, &self.axis_plan))
        status = climb_axis_plans(&self, error);
    arena_free(&self.arena);
    return status;
}
