/* The common procedure of the searchers that look for good plans of many meshes.
 *
 * On every mesh plans are screened by estimates and the baselines priced, then the searcher explores and the
 * best plan is improved. The meshes compete by successive halving: every round has an equal part of the
 * evaluations, which the remaining meshes share, and the better half continues:
 *
 *     8 meshes, 4 rounds of 120 evaluations:   8 x 15 | 8 x 15 | 4 x 30 | 2 x 60
 *
 * A walk of the last round ends after a fifth of its evaluations without a better plan. The rest is for
 * meshes that have left although their best plans are near the best one of all.
 *
 * On meshes that cannot have the best plan, by the estimates, one plan is priced. All devices on one axis are
 * one space, whatever the name of the axis: one of its meshes competes.
 */
#include "planners/single_stage/exploration.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "planners/improve/uneven_shares.h"
#include "planners/single_stage/assignment_search.h"
#include "planners/single_stage/screen.h"
#include "planners/single_stage/searchers.h"

/* Prices a given plan for the problem's mesh and number of micro-batches as one more start. */
static AmStatus price_initial(StageProblem *problem, const Plan *plan, AmError *error) {
    const PlanStage *stage = &plan->stages[0];
    AxisPlan axis_plan = {0};
    PlanPrice price;
    if (plan->stage_count > 1 || plan_context_used(plan, problem->context) != problem->context) return AM_OK;
    if (stage->mesh.axis_count != problem->mesh.axis_count) return AM_OK;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        if (stage->mesh.axes[axis].size != problem->mesh.axes[axis].size) return AM_OK;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
            const PlanEntry *entry = &stage->axis_priorities[axis].entries[e];
            bool is_storage = entry->kind != PLAN_COMPUTE;
            if (is_storage && axis_plan.storage[axis] < problem_storage_kinds(problem, axis))
                axis_plan.storage[axis]++;
            for (int32_t c = 0; c < problem->class_set_count && !is_storage; c++)
                for (int32_t m = 0; m < problem->class_sets[c].class_count; m++)
                    if (problem->class_sets[c].classes[m] == entry->class_index)
                        axis_plan_insert(&axis_plan, axis, axis_plan.count[axis], c);
        }
    return problem_price(problem, &axis_plan, &price, error);
}

/* The exploration of one problem, for parallel_for(). */
typedef struct ExplorationTask {
    AmStatus status;
    AmError error;
} ExplorationTask;

/* A plan that other meshes try, too: one of one axis for both axes of theirs. */
typedef struct Carried {
    const StageProblem *of; /* NULL: there is none */
    AxisPlan axis_plan;
    double seconds;
} Carried;

/* More meshes, of 512 devices or more, have few evaluations each. */
enum { FEW_MESHES = 9 };

typedef struct Exploration {
    SingleStageSearch *search;
    ExploreFunction *explore;
    bool has_reference; /* data parallelism is priced and fits */
    ExplorationTask tasks[SEARCH_MOST_MESHES];
    Carried carried;
    bool is_last;                             /* round */
    Screening screenings[SEARCH_MOST_MESHES]; /* of the search's problems */
} Exploration;

/* Returns whether the problem's mesh has two proper axes. */
static bool is_wide(const StageProblem *problem) {
    int32_t proper = 0;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        proper += problem->mesh.axes[axis].size > 1;
    return proper > 1;
}

static AmStatus explore_problem(const Exploration *exploration, const Screening *screening,
                                StageProblem *problem, AmError *error) {
    const SearchScope *scope = exploration->search->scope;
    AxisPlan nothing = {0};
    int64_t before = problem->budget.used;
    /* A search that is stopped at once makes do with one plan (single_stage_search.c), else each mesh has one
     * at least. */
    if (problem_must_stop(problem)) return AM_OK;
    if (!exploration->has_reference || screening->count == 0) {
        PlanPrice unsplit; /* splits nothing beside the pins */
        TRY(problem_price(problem, &nothing, &unsplit, error));
    }
    if (scope->request->space.initial && !problem_must_stop(problem))
        TRY(price_initial(problem, scope->request->space.initial, error));
    TRY(screen_price(screening, problem, error));
    if (!scope->request->method.no_seeds) TRY(baseline_price_seeds(problem, error));
    /* A part of the share explores, the rest climbs: meshes differ in the plans that they can
     * reach. */
    int64_t share = problem->budget.limit;
    if (!scope->request->method.no_polish) problem->budget.limit = before + (share - before) / 3 + 1;
    if (exploration->explore) TRY(exploration->explore(problem, exploration->search->rounds.seed, error));
    problem->budget.limit = share;
    return scope->request->method.no_polish ? AM_OK : polish_climb(problem, error);
}

static void explore_task(void *user, int32_t k) {
    Exploration *exploration = user;
    ExplorationTask *task = &exploration->tasks[k];
    task->status = explore_problem(exploration, &exploration->screenings[k], exploration->search->problems[k],
                                   &task->error);
}

static void screen_task(void *user, int32_t k) {
    Exploration *exploration = user;
    ExplorationTask *task = &exploration->tasks[k];
    const SingleStageSearch *search = exploration->search;
    if (!search->request->method.no_seeds)
        task->status = screen_search(&exploration->screenings[k], search->problems[k], search->rounds.seed,
                                     &task->error);
}

/* Returns the set of the same classes of another problem; -1: there is none. */
static int32_t same_class_set(const StageProblem *problem, const ClassSet *set) {
    for (int32_t c = 0; c < problem->class_set_count; c++)
        if (problem->class_sets[c].class_count == set->class_count &&
            problem->class_sets[c].classes[0] == set->classes[0])
            return c;
    return -1;
}

/* Prices the carried plan on a problem's mesh, unless the problem's own plan is faster. */
static AmStatus price_carried(const Carried *self, StageProblem *problem, AmError *error) {
    const AxisPlan *from = &self->axis_plan;
    AxisPlan axis_plan = {.gathers_again = from->gathers_again};
    PlanPrice price;
    bool is_faster = problem->best.is_known && problem->best.price.excess <= 0 &&
                     problem->best.price.seconds < self->seconds;
    if (problem == self->of || !is_wide(problem) || is_faster || problem_must_stop(problem)) return AM_OK;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        int32_t kinds = problem_storage_kinds(problem, axis);
        int32_t of = is_wide(self->of) ? axis : self->of->mesh.axes[0].size > 1 ? 0 : 1;
        axis_plan.storage[axis] = (uint8_t)(from->storage[of] < kinds ? from->storage[of] : kinds);
        for (int32_t e = 0; e < from->count[of]; e++) {
            int32_t set = same_class_set(problem, &self->of->class_sets[from->entries[of][e]]);
            if (set >= 0 && problem_can_split(problem, set, axis))
                axis_plan_insert(&axis_plan, axis, axis_plan.count[axis], set);
        }
    }
    return problem_price(problem, &axis_plan, &price, error);
}

/* Returns how many evaluations a walk may make without a better plan: a part of those that are left. A search
 * without a plan that fits uses all. */
static int64_t most_in_vain(const StageProblem *problem) {
    enum { PARTS = 5 };
    int64_t left = problem->budget.limit - problem->budget.used;
    return problem->best.price.excess > 0 ? 0 : left / PARTS + 1;
}

static void polish_task(void *user, int32_t k) {
    Exploration *exploration = user;
    ExplorationTask *task = &exploration->tasks[k];
    StageProblem *problem = exploration->search->problems[k];
    if (exploration->carried.of) task->status = price_carried(&exploration->carried, problem, &task->error);
    if (task->status == AM_OK) task->status = polish_climb(problem, &task->error);
    int64_t in_vain = exploration->is_last ? most_in_vain(problem) : 0;
    if (task->status == AM_OK) task->status = polish_walk(problem, in_vain, &task->error);
}

/* Runs a task for each of the first `count` problems. */
static AmStatus run_tasks(Exploration *exploration, int32_t count, void (*run)(void *user, int32_t k),
                          AmError *error) {
    memset(exploration->tasks, 0, sizeof exploration->tasks);
    bool evaluates = run != screen_task;
    /* The tasks run side by side, or, where the cap may end them, one after the other, each with what those
     * before have left: then the plans priced are the first ones of a search without a cap, in that order.
     * After each task the best plan of its problem gets unequal shares, where devices are mixed. */
    enum { MOST_OVERRUN = 2 * PROBLEM_BATCH };
    SingleStageSearch *self = exploration->search;
    int64_t wanted = 0, left = single_stage_left(self);
    for (int32_t k = 0; k < count; k++) {
        SearchBudget *budget = &self->problems[k]->budget;
        budget_set_cap(budget, 0);
        if (budget->limit > budget->used) wanted += budget->limit - budget->used + MOST_OVERRUN;
    }
    if (self->shares.left > 0) wanted += count * (1 + MESH_MAX_AXES * UNEVEN_SHARES_TRIED);
    bool is_capped = evaluates && wanted > left;
    if (!is_capped) parallel_for(count, 0, run, exploration);
    for (int32_t k = 0; k < count && evaluates; k++) {
        if (is_capped && !single_stage_cap(self, self->problems[k])) break;
        if (is_capped) run(exploration, k);
        self->budget.is_cut |= self->problems[k]->budget.is_cut;
        TRY(single_stage_share_problem(self, self->problems[k], error));
    }
    for (int32_t k = 0; k < count; k++)
        TRY(am_pass_error(exploration->tasks[k].status, &exploration->tasks[k].error, error));
    return AM_OK;
}

/* Gives the first `count` problems `share` more evaluations each and the others `rest`, as long as there are
 * any. */
static void allow_evaluations(SingleStageSearch *self, int32_t count, int64_t share, int64_t rest) {
    int64_t left = self->budget.limit - single_stage_evaluations(self);
    if (left < 0) left = 0;
    for (int32_t k = 0; k < self->problem_count; k++) {
        SearchBudget *budget = &self->problems[k]->budget;
        int64_t wanted = k < count ? share : rest, given = left < wanted ? left : wanted;
        budget->limit = budget->used + given;
        left -= given;
    }
}

/* Screens every problem, for `explore` to start from. */
static AmStatus open_exploration(Exploration **exploration, SingleStageSearch *self, ExploreFunction *explore,
                                 AmError *error) {
    *exploration = ARENA_ARRAY(self->arena, Exploration, 1);
    if (!*exploration) return am_fail_memory(error, (int64_t)sizeof **exploration);
    TRY(baseline_price(self, BASELINE_DATA_PARALLEL, error));
    double reference = self->result->baselines[BASELINE_DATA_PARALLEL].seconds;
    **exploration = (Exploration){
        .search = self, .explore = explore, .has_reference = !isnan(reference) && reference > 0};
    allow_evaluations(self, self->problem_count, 1, 0);
    return run_tasks(*exploration, self->problem_count, screen_task, error);
}

/* Returns the estimate of a screened plan with half of its communication hidden, or with half of its
 * computing where that is shorter. */
static double least_seconds(const Screening *screening) {
    const PlanPrice *estimate = &screening->kept[0].estimate;
    return plan_price_score(estimate) -
           0.5 * fmin(estimate->compute_seconds, estimate->communication_seconds);
}

/* Returns whether all devices of the problem are on one axis whose name has no use: for no pin, no target. On
 * mixed devices the best plans of several meshes get unequal shares, so that each mesh counts. */
static bool is_on_one_axis(const StageProblem *problem) {
    bool is_on_one = false;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        is_on_one |= problem->mesh.axes[axis].size == problem->mesh.device_count;
    return is_on_one && problem->constraints.pin_count == 0 &&
           problem->constraints.target == TARGET_AUTOMAP && !cluster_is_mixed(problem->cluster);
}

/* Returns whether one of the first `count` problems has all plans of the problem. */
static bool is_repeated(const SingleStageSearch *self, const StageProblem *problem, int32_t count) {
    bool has_one_axis = false;
    for (int32_t k = 0; k < count; k++) has_one_axis |= is_on_one_axis(self->problems[k]);
    return has_one_axis && is_on_one_axis(problem);
}

/* Moves problems that repeat the space of an earlier one behind the others. */
static void put_repeated_last(SingleStageSearch *self) {
    for (int32_t k = 0, left = self->problem_count; left > 0; left--) {
        StageProblem *problem = self->problems[k];
        if (!is_repeated(self, problem, k)) {
            k++;
            continue;
        }
        for (int32_t place = k; place < self->problem_count - 1; place++)
            self->problems[place] = self->problems[place + 1];
        self->problems[self->problem_count - 1] = problem;
    }
}

/* Notes the plan to carry to other meshes: the best one of all where the many meshes have few evaluations
 * each; the best one of one axis on mixed devices, whose screening by equal shares favours one axis. */
static void note_carried(Exploration *exploration) {
    SingleStageSearch *self = exploration->search;
    Carried *carried = &exploration->carried;
    *carried = (Carried){.of = NULL};
    bool has_many = self->problem_count > FEW_MESHES;
    if (!cluster_is_mixed(self->cluster) && !has_many) return;
    for (int32_t k = 0; k < self->problem_count; k++) {
        const StageProblem *problem = self->problems[k];
        bool may_carry = has_many || !is_wide(problem);
        if (!may_carry || !problem->best.is_known || problem->best.price.excess > 0) continue;
        if (carried->of && carried->seconds <= problem->best.price.seconds) continue;
        *carried = (Carried){problem, problem->best.axis_plan, problem->best.price.seconds};
    }
}

/* Puts the problems first on which a plan may be the best of all, by the estimates, and returns their
 * number. */
static int32_t put_promising_first(Exploration *exploration) {
    SingleStageSearch *self = exploration->search;
    Screening *screenings = exploration->screenings;
    const double margin = 1.5; /* estimates may be wrong by so much */
    double rival = margin * self->scope->known.rival_seconds, best = rival > 0 ? rival : INFINITY;
    int32_t promising = 0;
    for (int32_t k = 0; k < self->problem_count; k++)
        if (screenings[k].count > 0) best = fmin(best, plan_price_score(&screenings[k].kept[0].estimate));
    for (int32_t k = 0; k < self->problem_count; k++) {
        if (screenings[k].count > 0 && least_seconds(&screenings[k]) > best) continue;
        StageProblem *problem = self->problems[k];
        Screening screening = screenings[k];
        if (is_repeated(self, problem, promising)) continue;
        for (int32_t place = k; place > promising; place--) {
            self->problems[place] = self->problems[place - 1];
            screenings[place] = screenings[place - 1];
        }
        self->problems[promising] = problem;
        screenings[promising++] = screening;
    }
    return promising;
}

/* Searches by a policy until the search has `until` evaluations, and adds its best plan to the pool. */
static AmStatus run_policy(AssignmentSearch *policy, SingleStageSearch *self, int64_t until, AmError *error) {
    StageProblem *problem;
    AxisPlan axis_plan;
    TRY(assignment_search_run(policy, until, error));
    if (!assignment_search_best(policy, &problem, &axis_plan)) return AM_OK;
    single_stage_take_number(self, problem);
    return single_stage_add(self, problem, &axis_plan, PLAN_ORIGIN_POLICY, error);
}

/* The part of a round's evaluations that SEARCHER_AUTO gives to the policy, within limits. A policy's best
 * plan is among its first ones (bench/searchers.py). */
enum { EPISODE_PARTS = 50, EPISODE_LEAST = 4, EPISODE_MOST = 10, EPISODE_MESHES = 4 };

/* Prices the first plans of the trained policy on the most promising meshes, once in a search. */
static AmStatus price_episode(SingleStageSearch *self, int32_t promising, AmError *error) {
    const SearchScope *scope = self->scope;
    int64_t before = single_stage_evaluations(self), most = (self->budget.limit - before) / EPISODE_PARTS;
    AssignmentSearch *policy = NULL;
    if (scope->searcher != SEARCHER_AUTO || scope->purpose == PURPOSE_TRIAL || self->rounds.has_episode)
        return AM_OK;
    if (most > EPISODE_MOST) most = EPISODE_MOST;
    if (most < EPISODE_LEAST) most = EPISODE_LEAST;
    self->rounds.has_episode = true;
    if (self->budget.limit - before < 2 * most || promising == 0) return AM_OK;
    int32_t meshes =
        promising < EPISODE_MESHES || scope->request->method.no_seeds ? promising : EPISODE_MESHES;
    AmStatus status = assignment_search_open(&policy, self, meshes, error);
    if (status == AM_OK) status = run_policy(policy, self, before + most, error);
    assignment_search_close(policy);
    return status;
}

/* Climbs on the meshes whose best plans are near the best one of all, as far as spaces that are exhausted, or
 * searched in vain, leave evaluations. */
static AmStatus polish_others(SingleStageSearch *self, AmError *error) {
    const double near = 1.1; /* times the best score */
    single_stage_sort(self);
    double most = near * plan_price_score(&self->problems[0]->best.price);
    for (int32_t k = 0; k < self->problem_count && !self->budget.is_cut; k++) {
        StageProblem *problem = self->problems[k];
        SearchBudget *budget = &problem->budget;
        if (!problem->best.is_known || plan_price_score(&problem->best.price) > most) continue;
        budget->limit = budget->used + self->budget.limit - single_stage_evaluations(self);
        if (!single_stage_cap(self, problem)) break;
        TRY(polish_climb(problem, error));
        if (k > 0) TRY(polish_walk(problem, most_in_vain(problem), error));
        self->budget.is_cut |= budget->is_cut;
    }
    return AM_OK;
}

AmStatus exploration_search(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    const SearchRequest *request = self->request;
    Exploration *exploration;
    TRY(open_exploration(&exploration, self, explore, error));
    int32_t count = put_promising_first(exploration), rounds = 1;
    TRY(price_episode(self, count, error));
    if (count == 0) { /* by estimates the rival beats all meshes */
        self->rounds.for_overrides = 0;
        allow_evaluations(self, self->problem_count, 1, 0);
        return run_tasks(exploration, self->problem_count, explore_task, error);
    }
    for (int32_t left = count; left > 1 && !request->method.no_polish; left = (left + 1) / 2) rounds++;
    int64_t others = self->problem_count - count,
            round_limit = self->budget.limit - single_stage_evaluations(self);
    allow_evaluations(self, count, (round_limit - others) / ((int64_t)rounds * count) + 1, 1);
    TRY(run_tasks(exploration, self->problem_count, explore_task, error));
    if (request->method.no_polish) return AM_OK;
    for (int32_t left = rounds; left > 0 && !self->budget.is_cut; left--) {
        single_stage_sort(self);
        put_repeated_last(self);
        note_carried(exploration);
        exploration->is_last = left == 1;
        if (left < rounds) count = (count + 1) / 2;
        allow_evaluations(self, count,
                          (self->budget.limit - single_stage_evaluations(self)) / ((int64_t)left * count), 0);
        TRY(run_tasks(exploration, count, polish_task, error));
    }
    return polish_others(self, error);
}

AmStatus exploration_start(SingleStageSearch *self, int64_t evaluations, AmError *error) {
    Exploration *exploration;
    TRY(open_exploration(&exploration, self, NULL, error));
    allow_evaluations(self, self->problem_count, evaluations, 0);
    return run_tasks(exploration, self->problem_count, explore_task, error);
}

/* The part of the evaluations that belongs to the policy where the baselines and the polish have theirs. */
#define POLICY_PARTS 3

AmStatus exploration_by_policy(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    const SearchScope *scope = self->scope;
    AssignmentSearch *search = NULL;
    for (int32_t k = 0; k < self->problem_count && scope->request->space.initial;
         k++) /* before the budget ends */
        TRY(price_initial(self->problems[k], scope->request->space.initial, error));
    int64_t first = single_stage_evaluations(self), share = self->budget.limit - first;
    bool is_alone = scope->request->method.no_seeds && scope->request->method.no_polish;
    AmStatus status = assignment_search_open(&search, self, self->problem_count, error);
    if (status == AM_OK)
        status =
            run_policy(search, self, is_alone ? self->budget.limit : first + share / POLICY_PARTS + 1, error);
    if (status == AM_OK && !is_alone) status = exploration_search(self, explore, error);
    if (status == AM_OK && scope->request->method.no_polish)
        status = run_policy(search, self, self->budget.limit, error);
    assignment_search_close(search);
    return status;
}
