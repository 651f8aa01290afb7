/* Plans that come from outside the search: baselines of several stages, and the plan of --init-plan. */
#include "planners/search_additions.h"

#include <math.h>

#include "cost/simulate/simulate.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/bounds/model_gap.h"

/* ---- baselines of several stages ---- */

/* Prices one baseline with one number of micro-batches. */
static AmStatus add_pipeline(SearchResult *result, SearchContext *self, const SearchOptions *recipe,
                             const MicroBatching *settings, AmError *error) {
    BaselineResult *baseline = &result->baselines[recipe->baseline];
    const PlanContext *context;
    Plan *plan = NULL;
    AmError refusal = {0};
    const char *reason = NULL;
    int64_t evaluations;
    AmStatus status = plan_context_for(&context, self->whole, settings, &refusal);
    if (status == AM_OK)
        status = even_pipeline_plan(&plan, &reason, &evaluations, self->arena, context, self->cluster, recipe,
                                    &refusal);
    if (status != AM_OK && status != AM_ERROR_INFEASIBLE) {
        if (error && error->code == AM_OK) *error = refusal;
        return status;
    }
    if (isnan(baseline->seconds))
        baseline->reason = status == AM_OK ? reason : arena_copy_string(self->arena, refusal.text);
    if (!plan || baseline->seconds <= plan->predicted_step_seconds) return AM_OK;
    *baseline = (BaselineResult){.seconds = plan->predicted_step_seconds};
    plan->searcher = searcher_name(self->options->searcher);
    search_result_add(result, plan, PLAN_ORIGIN_BASELINE, baseline_name(recipe->baseline));
    return AM_OK;
}

AmStatus search_add_pipeline_baselines(SearchResult *result, SearchContext *self,
                                       const SearchOptions *options, AmError *error) {
    static const Baseline recipes[] = {BASELINE_EVEN_PIPELINE, BASELINE_MEGATRON_3D};
    const MicroBatching *settings = self->settings;
    const int32_t numbers[] = {1, result->plan->micro_batches};
    /* The number of a search that was cut short is not one that a larger budget comes to. */
    bool has_both = numbers[1] > 1 && (!self->budget.is_cut || settings->micro_batches > 0);
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
        SearchOptions recipe = *options;
        recipe.searcher = SEARCHER_BASELINE;
        recipe.baseline = recipes[r];
        result->baselines[recipes[r]] = (BaselineResult){.seconds = NAN};
        for (int32_t k = 0; k < 1 + has_both; k++) {
            if (options->interrupted && *options->interrupted) return AM_OK;
            MicroBatching here = *settings;
            here.micro_batches = numbers[k];
            here.separate_backward = true;
            if (settings->micro_batches > 0 && numbers[k] != settings->micro_batches) continue;
            TRY(add_pipeline(result, self, &recipe, &here, error));
        }
    }
    return AM_OK;
}

/* ---- a given plan ---- */

AmStatus search_check_given(const Plan *given, const Cluster *cluster, AmError *error) {
    int32_t devices = 0, most = -1;
    for (int32_t s = 0; s < given->stage_count; s++) {
        const PlanStage *stage = &given->stages[s];
        devices += stage->mesh.device_count;
        for (int32_t d = 0; d < stage->mesh.device_count; d++)
            if (stage->devices[d] > most) most = stage->devices[d];
    }
    const char *source = given->source ? given->source : "";
    if (devices != cluster->device_count)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.stages: a plan for %d devices of cluster %s (expected the %d of cluster %s)",
                       devices, given->cluster_name, cluster->device_count, cluster->name);
    if (most >= cluster->device_count)
        return am_fail(error, AM_ERROR_INPUT, source,
                       "$.stages: %d is not a device of cluster %s (expected 0 to %d)", most, cluster->name,
                       cluster->device_count - 1);
    return AM_OK;
}

/* Returns whether the search may return the given plan unchanged. */
static bool may_add(const SearchOptions *options, const MicroBatching *settings) {
    const Plan *given = options->initial;
    bool is_narrowed =
        options->mesh || options->pin_count > 0 || options->kept || options->is_even || options->no_overrides;
    bool is_one = given && options->space == SPACE_SINGLE_STAGE && given->stage_count == 1;
    bool is_number =
        is_one && (settings->micro_batches == 0 || given->micro_batches == settings->micro_batches);
    return is_number && !is_narrowed;
}

AmStatus search_add_given(SearchContext *self, AmError *error) {
    const SearchOptions *options = self->options;
    const Plan *given = options->initial, *before = self->result->plan;
    SearchResult *result = self->result;
    Simulation *simulation;
    AmError refusal = {0};
    if (!may_add(options, self->settings)) return AM_OK;
    const PlanContext *context = plan_context_used(given, self->whole);
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    search_describe_plan(plan, context, self->cluster, options);
    plan->stages = given->stages;
    plan->micro_batches = given->micro_batches;
    plan->relaxations = given->relaxations;
    plan->relaxation_count = given->relaxation_count;
    AmStatus status = simulate_plan(&simulation, self->arena, context, plan, self->cluster,
                                    options->memory_fraction, &refusal);
    if (status == AM_ERROR_INFEASIBLE) return AM_OK;
    if (status != AM_OK && error) *error = refusal;
    if (status == AM_OK) status = simulation_predict(plan, self->arena, simulation, error);
    if (status != AM_OK || !simulation->fit.fits) return status;
    plan->evaluations = result->evaluations;
    search_result_add(result, plan, PLAN_ORIGIN_GIVEN, NULL);
    if (result->plan != plan) return AM_OK;
    if (before) plan->bound = before->bound;
    if (before) plan->bound_seconds = fmin(before->bound_seconds, plan->predicted_step_seconds);
    result->model_gap = NAN;
    if (options->skip_bound) return AM_OK;
    return plan_model_gap(&result->model_gap, self->whole, self->cluster, plan,
                          &(StopSignal){options->interrupted, 0}, error);
}
