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
    BoundAhead *ahead; /* of the same space; or NULL */
    PlanBound bound;
    double model_gap;
    AmStatus status[2];
    AmError error[2];
} BoundTasks;

static void bound_task(void *user, int32_t k) {
    BoundTasks *self = user;
    if (k == 0) {
        self->status[k] = plan_model_gap(&self->model_gap, self->primary, self->cluster, self->plan,
                                         &self->space->stop, &self->error[k]);
    } else if (self->ahead) {
        if (!self->ahead->is_done) parallel_end(&self->ahead->task);
        self->ahead->is_done = true;
        self->bound = self->ahead->bound;
        self->status[k] = self->ahead->status;
        self->error[k] = self->ahead->error;
    } else {
        self->status[k] =
            plan_bound_pipelines(&self->bound, self->primary, self->cluster, self->space, &self->error[k]);
    }
}

/* Returns the space of the bound of a plan. */
static BoundSpace space_of(const Plan *plan, const SearchRequest *request, int32_t micro_batches,
                           const StopSignal *stop) {
    int32_t stages = plan->stage_count, fixed = request->constraints.degrees.stages;
    int32_t most = stages > PIPELINE_MOST_STAGES ? stages : PIPELINE_MOST_STAGES;
    return (BoundSpace){.micro_batches = micro_batches,
                        .least_stages = fixed,
                        .most_stages = fixed > 0 ? fixed : most,
                        .schedule = bound_schedule_of(search_bounded_schedules(request, plan)),
                        .memory = {.fraction = request->constraints.memory_fraction,
                                   .offloads_optimizer = request->constraints.offloads_optimizer},
                        .stop = *stop};
}

/* ---- a bound beside the search ---- */

static void bound_ahead(void *user) {
    BoundAhead *self = user;
    self->status =
        plan_bound_pipelines(&self->bound, self->primary, self->cluster, &self->space, &self->error);
}

/* Returns whether a bound was begun for the space. */
static bool is_ahead(const BoundAhead *ahead, const PlanContext *primary, const Cluster *cluster,
                     const BoundSpace *space) {
    if (!ahead || !ahead->is_begun || ahead->primary != primary || ahead->cluster != cluster) return false;
    const BoundSpace *begun = &ahead->space;
    return begun->micro_batches == space->micro_batches && begun->most_stages == space->most_stages &&
           begun->least_stages == space->least_stages && begun->schedule == space->schedule &&
           begun->memory.fraction == space->memory.fraction &&
           begun->memory.offloads_optimizer == space->memory.offloads_optimizer &&
           begun->stop.interrupted == space->stop.interrupted && space->stop.deadline == 0;
}

void search_bound_begin(const SearchContext *self, const Plan *plan) {
    BoundAhead *ahead = self->scope->bound_ahead;
    if (!ahead || self->cluster != ahead->cluster || !search_spans_stages(self->scope)) return;
    const StopSignal stop = {self->request->callbacks.interrupted, 0};
    const BoundSpace space = space_of(plan, self->request, self->scope->micro_batches, &stop);
    if (is_ahead(ahead, self->primary, self->cluster, &space)) return;
    search_bound_wait(ahead);
    *ahead =
        (BoundAhead){.is_begun = true, .primary = self->primary, .cluster = self->cluster, .space = space};
    parallel_begin(&ahead->task, bound_ahead, ahead);
}

void search_bound_wait(BoundAhead *ahead) {
    if (!ahead->is_begun || ahead->is_done || !ahead->task.has_thread) return;
    parallel_end(&ahead->task);
    ahead->is_done = true;
}

AmStatus search_bound_plan(SearchResult *result, const PlanContext *primary, const Cluster *cluster,
                           const SearchScope *scope, int32_t micro_batches, const StopSignal *stop,
                           AmError *error) {
    const SearchRequest *request = scope->request;
    Plan *plan = result->plan;
    const BoundSpace space = space_of(plan, request, micro_batches, stop);
    BoundAhead *ahead = scope->bound_ahead;
    BoundTasks tasks = {.plan = plan,
                        .primary = primary,
                        .cluster = cluster,
                        .space = &space,
                        .ahead = is_ahead(ahead, primary, cluster, &space) ? ahead : NULL,
                        .model_gap = NAN};
    search_watch_phase(request->callbacks.watch, SEARCH_PHASE_BOUND);
    if (result->interrupted || stop_wanted(&space.stop) || plan->replicas.count > 0)
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
