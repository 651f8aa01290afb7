/* The lower bound of a search: least seconds of a step of any plan that it covers.
 *
 * With several stages the bound is over every number of stages and the schedules of
 * search_bounded_schedules(). One-stage searches bound their own space (single_stage_search.c).
 */
#include "planners/search_bound.h"

#include <math.h>

#include "base/system/parallel.h"
#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/pipeline/stage_dp.h"

uint32_t search_bounded_schedules(const SearchRequest *request, const Plan *plan) {
    uint32_t schedules = search_schedules(request);
    if (!request->space.schedule) schedules &= BOUND_FILLED;
    if (plan->stage_count > 1) schedules |= 1U << plan_schedule(plan);
    return schedules;
}

/* The bound and the model gap of a plan, which do not depend on each other. */
typedef struct BoundTasks {
    const Plan *plan;
    const PlanContext *primary;
    const Cluster *cluster;
    const BoundSpace *space;
    PlanBound bound;
    double model_gap;
    AmStatus status[2];
    AmError error[2];
} BoundTasks;

static void bound_task(void *user, int32_t k) {
    BoundTasks *self = user;
    if (k == 0)
        self->status[k] = plan_model_gap(&self->model_gap, self->primary, self->cluster, self->plan,
                                         &self->space->stop, &self->error[k]);
    else
        self->status[k] =
            plan_bound_pipelines(&self->bound, self->primary, self->cluster, self->space, &self->error[k]);
}

AmStatus search_bound_plan(SearchResult *result, const PlanContext *primary, const Cluster *cluster,
                           const SearchScope *scope, int32_t micro_batches, const StopSignal *stop,
                           AmError *error) {
    const SearchRequest *request = scope->request;
    Plan *plan = result->plan;
    const BoundSpace space = {.micro_batches = micro_batches,
                              .most_stages = plan->stage_count > PIPELINE_MOST_STAGES ? plan->stage_count
                                                                                      : PIPELINE_MOST_STAGES,
                              .schedule = bound_schedule_of(search_bounded_schedules(request, plan)),
                              .memory = {.fraction = request->constraints.memory_fraction,
                                         .offloads_optimizer = request->constraints.offloads_optimizer},
                              .stop = *stop};
    BoundTasks tasks = {
        .plan = plan, .primary = primary, .cluster = cluster, .space = &space, .model_gap = NAN};
    search_watch_phase(request->callbacks.watch, SEARCH_PHASE_BOUND);
    if (result->interrupted || stop_wanted(&space.stop))
        TRY(plan_bound_of_work(&tasks.bound, primary, cluster, error));
    else parallel_for(2, 0, bound_task, &tasks);
    for (int32_t k = 1; k >= 0; k--) TRY(am_pass_error(tasks.status[k], &tasks.error[k], error));
    bool is_known = tasks.bound.seconds > 0;
    plan->bound_seconds = is_known ? fmin(tasks.bound.seconds, plan->predicted_step_seconds) : NAN;
    plan->bound = is_known ? "lower" : NULL;
    search_watch_bound(request->callbacks.watch, plan->bound_seconds);
    result->model_gap = tasks.model_gap;
    return AM_OK;
}

bool search_bounds_stages(const SearchResult *result, const SearchScope *scope) {
    bool is_paper = scope->request->objective == OBJECTIVE_PAPER;
    return search_spans_stages(scope) || (!is_paper && result->plan->stage_count > 1);
}

AmStatus search_show_bound(const SearchContext *self, AmError *error) {
    const SearchRequest *request = self->request;
    const BoundSpace space = {.most_stages = PIPELINE_MOST_STAGES};
    PlanBound bound;
    if (!request->callbacks.watch || self->scope->skip_bound) return AM_OK;
    TRY(plan_bound_quickly(&bound, self->primary, self->cluster, &space, error));
    search_watch_bound(request->callbacks.watch, bound.seconds);
    return AM_OK;
}
