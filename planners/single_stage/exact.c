/* Exact search: branch and bound over the axis priorities of a mesh.
 *
 * The members of an axis priority are decided first, one after the other, in or out; then their
 * order. Only one list of each equivalence class is visited: two class sets interact only if a
 * tensor or an operator has dimensions of both, so that adjacent class sets without a common one
 * may be exchanged. The lexicographically smallest list represents its class (the normal form of
 * partially commutative words: no class set could move left past larger ones with which it does not
 * interact). Storage in shards, on which no product depends, comes last. A branch is cut if its
 * products alone (product_bound.h) take as long as the best plan that fits. If evaluations end
 * before the tree, the least bound of the open branches is a bound of the whole.
 */
#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "planners/single_stage/exploration.h"
#include "planners/single_stage/product_bound.h"
#include "planners/single_stage/searchers.h"

typedef struct Exact {
    StageProblem *problem;
    const ProductBound *bound;
    bool *conflicts; /* [class_set * class_set_count + other]: some tensor or operator has both */
    AllowedClassSets allowed;
    AxisPlan axis_plan;
    double cutoff;             /* seconds of a plan that fits, of any mesh */
    double open;               /* the least bound of the open branches */
    int64_t nodes, most_nodes; /* of the tree: visited, and their limit */
    AxisPlan batch[PROBLEM_BATCH];
    double batch_bound;
    int32_t waiting;
} Exact;

static void mark_conflicts(const Exact *self, const SplitOption *split_options, int32_t from, int32_t to,
                           const int32_t *class_set_of) {
    int32_t count = self->problem->class_set_count;
    for (int32_t a = from; a < to; a++)
        for (int32_t b = from; b < to; b++) {
            int32_t one = class_set_of[split_options[a].class_index],
                    other = class_set_of[split_options[b].class_index];
            if (one >= 0 && other >= 0) self->conflicts[one * count + other] = true;
        }
}

static AmStatus find_conflicts(Exact *self, Arena *arena, AmError *error) {
    const StageProblem *problem = self->problem;
    const SplitOptions *split_options = problem->context->split_options;
    int32_t classes = problem->context->classes->count;
    int32_t *class_set_of = ARENA_ARRAY(arena, int32_t, classes + 1);
    self->conflicts = ARENA_ARRAY(arena, bool, problem->class_set_count * problem->class_set_count + 1);
    if (arena->failed) return am_fail_memory(error, classes);
    for (int32_t c = 0; c < classes; c++) class_set_of[c] = -1;
    for (int32_t k = 0; k < problem->class_set_count; k++)
        for (int32_t m = 0; m < problem->class_sets[k].class_count; m++)
            class_set_of[problem->class_sets[k].classes[m]] = k;
    for (int32_t i = 0; i < split_options->count; i++) {
        mark_conflicts(self, split_options->dimensions, split_options->first_dimension[i],
                       split_options->first_dimension[i + 1], class_set_of);
        mark_conflicts(self, split_options->factors, split_options->first_factor[i],
                       split_options->first_factor[i + 1], class_set_of);
    }
    return AM_OK;
}

/* Returns whether a branch is left out: its bound is no better, or it is postponed indefinitely. */
static bool is_cut(Exact *self) {
    double seconds = product_bound_seconds(self->bound, &self->allowed);
    self->nodes++;
    const StageProblem *problem = self->problem;
    bool has_own = problem->best.is_known && problem->best.price.excess <= 0;
    if (seconds >= (has_own ? fmin(self->cutoff, problem->best.price.seconds) : self->cutoff)) return true;
    if (self->nodes < self->most_nodes && !problem_must_stop(self->problem)) return false;
    self->open = fmin(self->open, seconds);
    return true;
}

static AmStatus price_waiting(Exact *self, AmError *error) {
    TRY(problem_price_batch(self->problem, self->batch, self->waiting, error));
    for (int32_t k = 0; k < self->waiting; k++) {
        PlanPrice price;
        bool is_left_out = !problem_known(self->problem, &self->batch[k], &price);
        if (is_left_out) self->open = fmin(self->open, self->batch_bound);
    }
    self->waiting = 0;
    self->batch_bound = INFINITY;
    return AM_OK;
}

/* Prices complete axis priorities with each amount of storage. */
static AmStatus choose_storage(Exact *self, int32_t axis, AmError *error) {
    if (axis == self->problem->mesh.axis_count) {
        self->batch_bound = fmin(self->batch_bound, product_bound_seconds(self->bound, &self->allowed));
        self->batch[self->waiting++] = self->axis_plan;
        return self->waiting == PROBLEM_BATCH ? price_waiting(self, error) : AM_OK;
    }
    for (int32_t kinds = problem_storage_kinds(self->problem, axis); kinds >= 0; kinds--) {
        self->axis_plan.storage[axis] = (uint8_t)kinds;
        TRY(choose_storage(self, axis + 1, error));
    }
    return AM_OK;
}

/* Returns whether the axis priority stays the smallest of its kind with one more class set at its end. */
static bool stays_normal(const Exact *self, int32_t axis, int32_t class_set) {
    const uint8_t *entries = self->axis_plan.entries[axis];
    for (int32_t k = self->axis_plan.count[axis] - 1; k >= 0; k--) {
        if (self->conflicts[class_set * self->problem->class_set_count + entries[k]]) return true;
        if (entries[k] > class_set) return false;
    }
    return true;
}

static AmStatus choose_class_set(Exact *self, int32_t axis, int32_t class_set, AmError *error);

/* Class sets that are in, in every order that matters. */
static AmStatus arrange(Exact *self, int32_t axis, int32_t left, AmError *error) {
    if (left == 0) {
        bool is_last = axis + 1 == self->problem->mesh.axis_count;
        return is_last ? choose_storage(self, 0, error) : choose_class_set(self, axis + 1, 0, error);
    }
    for (int32_t k = 0; k < self->problem->class_set_count; k++) {
        if (!self->allowed.may[axis][k] || axis_plan_has(&self->axis_plan, axis, k)) continue;
        if (!stays_normal(self, axis, k)) continue;
        if (is_cut(self)) return AM_OK;
        int32_t place = self->axis_plan.count[axis];
        if (!axis_plan_insert(&self->axis_plan, axis, place, k)) continue;
        TRY(arrange(self, axis, left - 1, error));
        axis_plan_remove(&self->axis_plan, axis, place);
    }
    return AM_OK;
}

/* Class set after class set of an axis, in or out. */
static AmStatus choose_class_set(Exact *self, int32_t axis, int32_t class_set, AmError *error) {
    const StageProblem *problem = self->problem;
    if (is_cut(self)) return AM_OK;
    while (class_set < problem->class_set_count && !self->allowed.may[axis][class_set]) class_set++;
    if (class_set == problem->class_set_count) {
        int32_t chosen = 0;
        for (int32_t k = 0; k < class_set; k++) chosen += self->allowed.may[axis][k];
        return chosen <= AXIS_PLAN_MAX_ENTRIES ? arrange(self, axis, chosen, error) : AM_OK;
    }
    TRY(choose_class_set(self, axis, class_set + 1, error));
    self->allowed.may[axis][class_set] = false;
    AmStatus status = choose_class_set(self, axis, class_set + 1, error);
    self->allowed.may[axis][class_set] = true;
    return status;
}

/* Searches the distinct axis priorities of at most AXIS_PLAN_MAX_ENTRIES class sets by branch and bound,
 * with every amount of storage. `cutoff`: seconds of a plan that fits, on any mesh, or INFINITY. `nodes`:
 * the limit of computed bounds, besides the evaluations of the problem's budget. No plan of the problem
 * takes less than the minimum of `cutoff`, of the best plan that fits and of `*open`, which is INFINITY if
 * the whole space was searched. */
static AmStatus search_tree(StageProblem *problem, double cutoff, int64_t nodes, double *open,
                            AmError *error) {
    Arena arena = {0};
    Exact self = {
        .problem = problem, .cutoff = cutoff, .open = INFINITY, .most_nodes = nodes, .batch_bound = INFINITY};
    ProductBound *bound;
    AmStatus status = product_bound_create(&bound, &arena, problem, error);
    self.bound = bound;
    if (status == AM_OK) status = find_conflicts(&self, &arena, error);
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        for (int32_t k = 0; k < problem->class_set_count; k++)
            self.allowed.may[axis][k] = problem_can_split(problem, k, axis);
    if (status == AM_OK) status = choose_class_set(&self, 0, 0, error);
    if (status == AM_OK) status = price_waiting(&self, error);
    arena_free(&arena);
    *open = self.open;
    return status;
}

/* ---- the trees of all meshes ---- */

/* Nodes of a tree that may be visited for each evaluation of its share. */
enum { NODES_PER_EVALUATION = 500 };

typedef struct ExactTask {
    AmStatus status;
    AmError error;
    double open; /* as of search_tree(); 0 before it has run */
} ExactTask;

typedef struct ExactTasks {
    SingleStageSearch *search;
    double cutoff;
    int64_t nodes; /* of each tree, in the pass */
    ExactTask tasks[SEARCH_MOST_MESHES];
} ExactTasks;

/* Returns the seconds of the best plan so far that fits. */
static double fastest_that_fits(const SingleStageSearch *self) {
    double seconds = INFINITY;
    for (int32_t k = 0; k < self->problem_count; k++) {
        const StageProblem *problem = self->problems[k];
        if (problem->best.is_known && problem->best.price.excess <= 0)
            seconds = fmin(seconds, problem->best.price.seconds);
    }
    return seconds;
}

static void exact_task(void *user, int32_t k) {
    ExactTasks *self = user;
    ExactTask *task = &self->tasks[k];
    task->status =
        search_tree(self->search->problems[k], self->cutoff, self->nodes, &task->open, &task->error);
}

/* Makes one pass over the trees that are not done, each with `share` more evaluations: side by side, or one
 * after the other where the cap may end them. */
static AmStatus branch_once(SingleStageSearch *self, ExactTasks *tasks, int64_t share, AmError *error) {
    int32_t unfinished[SEARCH_MOST_MESHES], count = 0;
    for (int32_t k = 0; k < self->problem_count; k++) {
        SearchBudget *budget = &self->problems[k]->budget;
        if (isinf(tasks->tasks[k].open)) continue;
        unfinished[count++] = k;
        budget->limit = budget->used + share;
        budget_set_cap(budget, 0);
        self->problems[k]->priced.repeats = 0;
    }
    tasks->cutoff = fastest_that_fits(self);
    tasks->nodes = share * NODES_PER_EVALUATION;
    bool is_free = (share + 2 * PROBLEM_BATCH) * count <= single_stage_left(self);
    if (is_free && count == self->problem_count) parallel_for(count, 0, exact_task, tasks);
    for (int32_t k = 0; k < count && !(is_free && count == self->problem_count); k++) {
        StageProblem *problem = self->problems[unfinished[k]];
        if (!single_stage_cap(self, problem)) break;
        exact_task(tasks, unfinished[k]);
        self->budget.is_cut |= problem->budget.is_cut;
    }
    for (int32_t k = 0; k < count; k++) {
        const ExactTask *task = &tasks->tasks[unfinished[k]];
        TRY(am_pass_error(task->status, &task->error, error));
    }
    return AM_OK;
}

/* Passes over all trees, each with twice the evaluations of the one before, until all trees are done or
 * nothing is left. Many nodes may come to few plans, so that the shares of all passes have a limit, too: the
 * time is proportional to the cap. The sizes of the passes do not depend on it. */
static AmStatus branch(SingleStageSearch *self, ExactTasks *tasks, AmError *error) {
    enum { FIRST_SHARE = 16, MOST_GRANTED = 2 /* shares for each evaluation of the cap */ };
    int64_t granted = 0;
    for (int64_t share = FIRST_SHARE;; share *= 2) {
        int32_t unfinished = 0;
        for (int32_t k = 0; k < self->problem_count; k++) unfinished += !isinf(tasks->tasks[k].open);
        bool is_spent =
            self->budget.is_cut || single_stage_left(self) <= 0 || granted >= MOST_GRANTED * self->budget.cap;
        if (unfinished == 0 || is_spent || single_stage_must_end(self)) return AM_OK;
        granted += share * unfinished;
        TRY(branch_once(self, tasks, share, error));
    }
}

AmStatus exact_search(SingleStageSearch *self, AmError *error) {
    SearchResult *result = self->result;
    if (!self->budget.has_cap) budget_set_cap(&self->budget, self->budget.limit);
    TRY(exploration_start(self, SEARCH_EXACT_EVALUATIONS / (4 * self->problem_count) + 1, error));
    ExactTasks *tasks = ARENA_ARRAY(self->arena, ExactTasks, 1);
    if (!tasks) return am_fail_memory(error, (int64_t)sizeof *tasks);
    tasks->search = self;
    TRY(branch(self, tasks, error));
    result->is_exact = true;
    result->bound_seconds = fastest_that_fits(self);
    for (int32_t k = 0; k < self->problem_count; k++) {
        result->is_exact = result->is_exact && isinf(tasks->tasks[k].open);
        result->bound_seconds = fmin(result->bound_seconds, tasks->tasks[k].open);
    }
    int32_t most = 0;
    for (int32_t k = 0; k < self->problem_count; k++)
        if (self->problems[k]->class_set_count > most) most = self->problems[k]->class_set_count;
    result->exact_space = arena_format(
        self->arena,
        "one stage on %d mesh%s: on each axis every ordered list of at most %d of %d tied dimension classes, "
        "with nothing, optimizer state, gradients or weights in shards",
        self->problem_count, self->problem_count == 1 ? "" : "es", AXIS_PLAN_MAX_ENTRIES, most);
    return result->exact_space ? AM_OK : am_fail_memory(error, 0);
}
