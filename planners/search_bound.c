/* The lower bound of a search: least seconds of a step of any plan of the space.
 *
 * With several stages the bound is over every number of stages and, where the user leaves it free, over the
 * schedule that excludes least. One-stage searches bound their own space (single_stage_search.c).
 */
#include "planners/search_bound.h"

#include <math.h>

#include "planners/bounds/bound_of_work.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/pipeline/stage_dp.h"

/* Returns the schedule of the space that leaves the lowest bound: ZB-H1 of those with one chunk a stage. The
 * given plan may have another schedule. */
static ScheduleKind weakest_schedule(const SearchOptions *options, const Plan *plan) {
    if (options->request->space.schedule) return schedule_kind_find(options->request->space.schedule);
    ScheduleKind kind = plan->stage_count > 1 ? plan_schedule(plan) : SCHEDULE_ZB_H1;
    return kind == SCHEDULE_INTERLEAVED || kind == SCHEDULE_ZB_2P ? kind : SCHEDULE_ZB_H1;
}

AmStatus search_bound_plan(SearchResult *result, const PlanContext *whole, const Cluster *cluster,
                           const SearchOptions *options, int32_t micro_batches, const StopSignal *stop,
                           AmError *error) {
    Plan *plan = result->plan;
    PlanBound bound;
    const BoundSpace space = {.micro_batches = micro_batches,
                              .most_stages = plan->stage_count > PIPELINE_MOST_STAGES ? plan->stage_count
                                                                                      : PIPELINE_MOST_STAGES,
                              .schedule = weakest_schedule(options, plan),
                              .stop = *stop};
    search_watch_phase(options->request->callbacks.watch, SEARCH_PHASE_BOUND);
    if (result->interrupted || stop_wanted(&space.stop))
        TRY(plan_bound_of_work(&bound, whole, cluster, error));
    else TRY(plan_bound_pipelines(&bound, whole, cluster, &space, error));
    bool is_known = bound.seconds > 0;
    plan->bound_seconds = is_known ? fmin(bound.seconds, plan->predicted_step_seconds) : NAN;
    plan->bound = is_known ? "lower" : NULL;
    search_watch_bound(options->request->callbacks.watch, plan->bound_seconds);
    result->model_gap = NAN;
    if (result->interrupted || stop_wanted(&space.stop)) return AM_OK;
    return plan_model_gap(&result->model_gap, whole, cluster, plan, &space.stop, error);
}

bool search_bounds_stages(const SearchResult *result, const SearchOptions *options) {
    bool is_paper = options->request->objective == OBJECTIVE_PAPER;
    return search_spans_stages(options) || (!is_paper && result->plan->stage_count > 1);
}

AmStatus search_show_bound(const SearchContext *self, AmError *error) {
    const BoundSpace space = {.most_stages = PIPELINE_MOST_STAGES};
    PlanBound bound;
    if (!self->options->request->callbacks.watch || self->options->skip_bound) return AM_OK;
    TRY(plan_bound_quickly(&bound, self->whole, self->cluster, &space, error));
    search_watch_bound(self->options->request->callbacks.watch, bound.seconds);
    return AM_OK;
}
