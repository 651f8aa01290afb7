/* Unequal shares of mixed devices in one-stage plans.
 *
 * Searchers price axis priorities with equal shares, which all devices of a mesh can run as one program. The
 * best plan with equal shares need not be the best with unequal ones. So the best plans of several meshes and
 * data parallelism get shares (uneven_shares.h), and the fastest is taken. The plan without shares stays
 * where no shares are quicker.
 */
#include <math.h>

#include "planners/improve/uneven_shares.h"
#include "planners/single_stage/searchers.h"
#include "planners/single_stage/single_stage_state.h"

/* The most plans that get shares; fewer of large modules, whose instructions add up to at most WORK. */
enum { MOST_PLANS = 4, WORK = 12000 };
enum {
    MOST_CLIMB = 150,
    CLIMB_WORK = 200000
};                       /* evaluations for axis priorities under the shares; times instructions */
enum { LIMIT_PART = 4 }; /* of the evaluations that the user allows */
/* A plan slower than the best one by more than this cannot catch up. */
#define CATCHES_UP 2.0
/* A plan of the same mesh gets shares again if its step is shorter than that of the last one times this. */
#define LEAST_GAIN 0.995

static bool is_mixed(const SingleStageSearch *self, const Mesh *mesh) {
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (uneven_shares_axis_is_mixed(mesh, self->devices, self->cluster, axis)) return true;
    return false;
}

int64_t single_stage_share_evaluations(const SingleStageSearch *self, int64_t limit) {
    const SearchScope *scope = self->scope;
    const int64_t wanted = MOST_PLANS * (UNEVEN_SHARES_TRIED + 1) + MOST_CLIMB;
    bool mixes = false;
    for (int32_t k = 0; k < self->problem_count; k++) mixes |= is_mixed(self, &self->problems[k]->mesh);
    if (!mixes || scope->request->constraints.is_even || scope->request->constraints.kept) return 0;
    if (scope->limits.evaluations == 0 || scope->limits.is_default) return wanted;
    int64_t part = limit / LIMIT_PART;
    return part < wanted ? part : wanted;
}

/* The plans that may be the quickest with shares: the one that is best without, the best ones of other
 * meshes, and data parallelism. Each but the first has its problem and axis plan. */
typedef struct Sharer {
    Plan *plan;
    MemoryFit fit;
    const StageProblem *problem; /* whose mesh it has */
    AxisPlan axis_plan;
} Sharer;

typedef struct Sharers {
    Sharer of[MOST_PLANS];
    int32_t count;
} Sharers;

/* Adds data parallelism as priced, unless it is the best plan. */
static AmStatus add_data_parallel(Sharers *sharers, SingleStageSearch *self, AmError *error) {
    Plan *plan = self->baselines[BASELINE_DATA_PARALLEL].plan;
    const StageProblem *problem = self->baselines[BASELINE_DATA_PARALLEL].problem;
    bool is_there = plan && !isnan(self->result->baselines[BASELINE_DATA_PARALLEL].seconds);
    const char *reason;
    bool is_other = problem && problem->context != self->context; /* of another number of micro-batches */
    if (!is_there || is_other || self->request->method.no_seeds || plan == sharers->of[0].plan) return AM_OK;
    Sharer *sharer = &sharers->of[sharers->count++];
    *sharer = (Sharer){.plan = plan, .fit = {.fits = true}, .problem = problem};
    return baseline_axis_plan(problem, BASELINE_DATA_PARALLEL, &sharer->axis_plan, &reason, error);
}

static AmStatus add_meshes(Sharers *sharers, SingleStageSearch *self, int32_t most, AmError *error) {
    const Sharer *best = &sharers->of[0];
    for (int32_t k = 0; k < self->problem_count && sharers->count < most && self->shares.left > 0; k++) {
        const StageProblem *problem = self->problems[k];
        Sharer *sharer = &sharers->of[sharers->count];
        bool is_near = problem->best.is_known &&
                       (!best->fit.fits ||
                        problem->best.price.seconds < CATCHES_UP * best->plan->predicted_step_seconds);
        bool is_listed = false;
        for (int32_t s = 0; s < sharers->count; s++) is_listed |= sharers->of[s].problem == problem;
        if (!is_near || is_listed || !is_mixed(self, &problem->mesh)) continue;
        *sharer = (Sharer){.problem = problem, .axis_plan = problem->best.axis_plan};
        TRY(single_stage_plan(self, problem, &problem->best.axis_plan, &sharer->plan, error));
        TRY(single_stage_simulate(self, sharer->plan, &sharer->fit, error));
        sharers->count++;
        self->budget.used++;
        self->shares.left--;
    }
    return AM_OK;
}

static AmStatus find_sharers(Sharers *sharers, SingleStageSearch *self, Plan *plan, const MemoryFit *fit,
                             AmError *error) {
    int32_t most = WORK / (self->context->rules->count + 1);
    const StageProblem *problem = NULL; /* the one of the plan's mesh */
    for (int32_t k = 0; k < self->problem_count && !problem; k++)
        if (mesh_is_alike(&self->problems[k]->mesh, &plan->stages[0].mesh)) problem = self->problems[k];
    *sharers = (Sharers){.of = {{.plan = plan, .fit = *fit, .problem = problem}}, .count = 1};
    if (problem) sharers->of[0].axis_plan = problem->best.axis_plan;
    if (!search_method_takes_baselines(self->scope->searcher)) return AM_OK;
    most = most < 1 ? 1 : most > MOST_PLANS ? MOST_PLANS : most;
    if (most > 1) TRY(add_data_parallel(sharers, self, error));
    return add_meshes(sharers, self, most, error);
}

/* Prices the axis priorities of the best plan so far cut off behind each entry. Entries that save time
 * with equal shares, such as weights in shards, may cost time with unequal ones. Leaving out only one of them
 * may not help. */
static AmStatus price_prefixes(StageProblem *problem, AmError *error) {
    const AxisPlan best = problem->best.axis_plan;
    PlanPrice price;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        for (int32_t kept = 1; kept + 1 < best.count[axis] && !problem_must_stop(problem); kept++) {
            AxisPlan prefix = best;
            while (prefix.count[axis] > kept) axis_plan_remove(&prefix, axis, prefix.count[axis] - 1);
            TRY(problem_price(problem, &prefix, &price, error));
        }
    return AM_OK;
}

/* Changes the axis priorities of the best plan with shares, one by one, to those of the sharers on its
 * mesh. */
static AmStatus climb_priorities(SingleStageSearch *self, const Sharers *sharers, Plan **plan, MemoryFit *fit,
                                 AmError *error) {
    const Mesh *mesh = &(*plan)->stages[0].mesh;
    int64_t most = CLIMB_WORK / (self->context->rules->count + 1);
    StageProblem *problem;
    PlanPrice price;
    Plan *found;
    MemoryFit found_fit;
    most = most < MOST_CLIMB ? most : MOST_CLIMB;
    self->shares.is_short |= most > self->shares.left;
    if (most > self->shares.left) most = self->shares.left;
    if (most < 1 || self->request->method.no_polish) return AM_OK;
    TRY(single_stage_problem(&problem, self, mesh, most, error));
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < sharers->count && status == AM_OK; k++)
        if (sharers->of[k].problem && mesh_is_alike(&sharers->of[k].problem->mesh, mesh))
            status = problem_price(problem, &sharers->of[k].axis_plan, &price, error);
    if (status == AM_OK && problem->best.is_known) status = price_prefixes(problem, error);
    if (status == AM_OK) status = polish_climb(problem, error);
    if (status == AM_OK) status = polish_walk(problem, 0, error);
    self->shares.left -= problem->budget.used;
    self->budget.used += problem->budget.used;
    if (status == AM_OK && problem->best.is_known)
        status = single_stage_plan(self, problem, &problem->best.axis_plan, &found, error);
    if (status == AM_OK && problem->best.is_known)
        status = single_stage_simulate(self, found, &found_fit, error);
    if (status == AM_OK && problem->best.is_known &&
        plan_is_better(found->predicted_step_seconds, &found_fit, (*plan)->predicted_step_seconds, fit)) {
        *plan = found;
        *fit = found_fit;
    }
    problem_free(problem);
    return status;
}

/* Returns the step of the fastest plan that any part of the search has, or 0. */
static double find_rival(const SingleStageSearch *self) {
    const KnownSteps *known = &self->scope->known;
    const Plan *plan = pool_best(&self->result->pool);
    double seconds = plan ? plan->predicted_step_seconds : INFINITY;
    if (known->rival_seconds > 0) seconds = fmin(seconds, known->rival_seconds);
    if (known->form_seconds > 0) seconds = fmin(seconds, known->form_seconds);
    for (int32_t k = 0; k < self->problem_count; k++) {
        const StageProblem *problem = self->problems[k];
        if (problem->best.is_known && problem->best.price.excess <= 0)
            seconds = fmin(seconds, problem->best.price.seconds);
    }
    return isfinite(seconds) ? seconds : 0;
}

/* Tries unequal shares of the round's plans, within `self->shares.left` evaluations; sets
 * `self->shares.is_short` if those may not do. */
static AmStatus share_plans(SingleStageSearch *self, Plan **plan, MemoryFit *fit, AmError *error) {
    ShareSearch search = {.cluster = self->cluster,
                          .memory_fraction = self->request->constraints.memory_fraction,
                          .stop = &self->budget.stop};
    Sharers sharers;
    if (self->shares.left == 0 || single_stage_must_end(self)) return AM_OK;
    TRY(find_sharers(&sharers, self, *plan, fit, error));
    for (int32_t k = 0; k < sharers.count && self->shares.left > 0; k++) {
        int64_t evaluations = 0;
        MemoryFit shared_fit;
        Plan *shared;
        search.most = self->shares.left;
        search.rival_seconds = find_rival(self);
        self->shares.is_short |=
            self->shares.left < UNEVEN_SHARES_TRIED * sharers.of[k].plan->stages[0].mesh.axis_count;
        if (!is_mixed(self, &sharers.of[k].plan->stages[0].mesh)) continue;
        TRY(uneven_shares_find(&shared, &shared_fit, &evaluations, self->arena, sharers.of[k].plan, &search,
                               error));
        self->shares.left -= evaluations;
        self->budget.used += evaluations;
        if (!shared || !plan_is_better(shared->predicted_step_seconds, &shared_fit,
                                       (*plan)->predicted_step_seconds, fit))
            continue;
        *plan = shared;
        *fit = shared_fit;
    }
    bool may_climb = search_method_takes_baselines(self->scope->searcher) &&
                     !mesh_has_equal_shares(&(*plan)->stages[0].mesh) && !single_stage_must_end(self);
    self->shares.is_short |= self->shares.left == 0;
    return may_climb ? climb_priorities(self, &sharers, plan, fit, error) : AM_OK;
}

/* Tries unequal shares with the evaluations left. The search counts as cut if the cap leaves fewer than were
 * reserved, and those are too few. */
AmStatus single_stage_share(SingleStageSearch *self, Plan **plan, MemoryFit *fit, AmError *error) {
    int64_t left = single_stage_left(self);
    bool is_reduced = left < self->shares.left;
    if (is_reduced) self->shares.left = left > 0 ? left : 0;
    self->shares.is_short = self->shares.left == 0;
    TRY(share_plans(self, plan, fit, error));
    self->budget.is_cut |= is_reduced && self->shares.is_short;
    return AM_OK;
}

/* Returns the fastest baseline that fits and takes more than `after` seconds; NULL: none. One with groups is
 * returned as the fastest of all alone: its axes leave less freedom to shares than the one axis of zero3. */
static const Plan *next_baseline(const SingleStageSearch *self, double after) {
    const Plan *best = NULL;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const Plan *plan = isnan(self->result->baselines[e].seconds) ? NULL : self->baselines[e].plan;
        if (!plan || plan->predicted_step_seconds <= after) continue;
        if (after > 0 && baseline_has_groups((Baseline)e)) continue;
        if (!best || plan->predicted_step_seconds < best->predicted_step_seconds) best = plan;
    }
    return best;
}

/* Gives a plan unequal shares before the end of the round, beside its evaluations. */
static AmStatus share_at_once(SingleStageSearch *self, const Plan *plan, int64_t most, AmError *error) {
    const ShareSearch search = {.cluster = self->cluster,
                                .memory_fraction = self->request->constraints.memory_fraction,
                                .most = most,
                                .rival_seconds = find_rival(self),
                                .stop = &self->budget.stop};
    int64_t evaluations = 0;
    MemoryFit fit;
    Plan *shared;
    if (!is_mixed(self, &plan->stages[0].mesh)) return AM_OK;
    TRY(uneven_shares_find(&shared, &fit, &evaluations, self->arena, plan, &search, error));
    self->budget.used += evaluations;
    self->budget.limit += evaluations;
    if (shared && search_check_plan(self->scope, shared, NULL) == AM_OK)
        pool_add(&self->result->pool, shared, &fit, PLAN_ORIGIN_IMPROVEMENT, NULL);
    return AM_OK;
}

/* Evaluations that the cap leaves for unequal shares; 0: shares are not wanted. */
static int64_t share_left(const SingleStageSearch *self) {
    bool is_wanted = self->shares.left > 0 && search_method_takes_baselines(self->scope->searcher) &&
                     !self->request->method.no_seeds && !self->budget.is_cut && !single_stage_must_end(self);
    int64_t left = single_stage_left(self);
    return !is_wanted || left < 0 ? 0 : left < self->shares.left ? left : self->shares.left;
}

AmStatus single_stage_share_baselines(SingleStageSearch *self, double near, AmError *error) {
    const int64_t last = self->budget.used + share_left(self);
    const Plan *first = next_baseline(self, 0), *plan = first;
    while (plan && plan->predicted_step_seconds <= near * first->predicted_step_seconds) {
        if (self->budget.used >= last) return AM_OK;
        TRY(share_at_once(self, plan, last - self->budget.used, error));
        plan = next_baseline(self, plan->predicted_step_seconds);
    }
    return AM_OK;
}

AmStatus single_stage_share_problem(SingleStageSearch *self, const StageProblem *problem, AmError *error) {
    int32_t own = 0;
    while (own < self->shares.count && self->shares.of[own].problem != problem) own++;
    if (own == self->shares.count) self->shares.of[self->shares.count++] = (ProblemShare){problem, INFINITY};
    /* Seconds of the problem's plan that got shares last; INFINITY: none has. */
    double *shared = &self->shares.of[own].seconds, best = INFINITY;
    int64_t most = share_left(self);
    MemoryFit fit;
    Plan *plan;
    for (int32_t k = 0; k < self->shares.count; k++) best = fmin(best, self->shares.of[k].seconds);
    if (most < 1 || !problem->best.is_known ||
        problem->best.price.seconds >= fmin(LEAST_GAIN * *shared, CATCHES_UP * best))
        return AM_OK;
    self->budget.is_cut |= single_stage_left(self) < 2; /* the plan and one share */
    if (most < 2 || self->budget.is_cut) return AM_OK;
    *shared = problem->best.price.seconds;
    TRY(single_stage_plan(self, problem, &problem->best.axis_plan, &plan, error));
    TRY(single_stage_simulate(self, plan, &fit, error));
    self->budget.used++;
    self->budget.limit++;
    return share_at_once(self, plan, most - 1, error);
}
