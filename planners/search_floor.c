/* Baselines outside of the rounds of a search: before all other plans, for every budget, and after the time.
 *
 * A round prices baselines itself. A budget that ends before that, a cluster of mixed devices and a deadline
 * that passes without a plan need them elsewhere.
 */
#include "planners/search_floor.h"

#include <math.h>

#include "planners/search_additions.h"
#include "planners/search_numbers.h"

AmStatus search_share_baselines(SearchContext *search, AmError *error) {
    SearchOptions options = *search->options;
    SearchResult found = {.model_gap = NAN};
    int32_t numbers[BASELINE_COUNT], number = search->settings->micro_batches;
    const int64_t kept = options.request->space.initial ? 1 : 0;
    bool is_mixed = cluster_is_mixed(search->cluster) && !options.request->constraints.is_even;
    bool may_share =
        degrees_allow_stages(&options.request->constraints.degrees, 1) && !options.request->method.no_seeds;
    Budget *budget = &search->budget;
    if (!is_mixed || !may_share || options.nested.purpose == PURPOSE_TRIAL) return AM_OK;
    if (budget->has_cap && budget->cap <= kept) return AM_OK;
    for (int32_t e = 0; e < BASELINE_COUNT; e++) numbers[e] = number > 1 ? number : 1;
    options.nested.purpose = PURPOSE_SHARED_BASELINES;
    options.limits.evaluations = 0;
    if (budget->has_cap) budget->cap -= kept;
    AmStatus status = search_add_stage_baselines(&found, search, false, numbers, &options, error);
    if (budget->has_cap) budget->cap += kept;
    TRY(status);
    search_spend(search, &found);
    search_result_merge(search->result, &found);
    return AM_OK;
}

AmStatus search_add_floor(SearchContext *self, AmError *error) {
    SearchOptions options = *self->options;
    SearchContext spent = *self;
    SearchResult found = {.model_gap = NAN};
    AmError refusal = {0};
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], only[BASELINE_COUNT] = {0};
    double bound;
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        found.baselines[e] = (BaselineResult){.seconds = NAN, .reason = "it has other degrees"};
    micro_batches_numbers(numbers, self->whole, self->settings->micro_batches);
    if (degrees_allow_stages(&options.request->constraints.degrees, 1) && !stop_wanted(&self->budget.stop)) {
        spent.budget.has_cap = true;
        spent.budget.cap = spent.budget.used = 0;
        options.kind = SPACE_SINGLE_STAGE;
        options.skip_bound = true;
        options.searcher = SEARCHER_ANNEAL; /* takes baselines */
        AmStatus status = search_add_each_number(&found, &bound, &spent, &options, 1, &refusal);
        TRY(search_check_part(status, &refusal, error));
        if (!options.request->method.no_seeds)
            TRY(search_add_stage_baselines(&found, &spent, found.has_baselines, NULL, &options, error));
        if (found.plan) found.plan->space = plan_space_name(self->options->kind);
    }
    only[BASELINE_EVEN_PIPELINE] = only[BASELINE_MEGATRON_3D] = numbers[0];
    if (search_may_price_pipelines(self) && !search_is_large(self) && !stop_wanted(&self->budget.stop))
        TRY(search_add_pipeline_baselines(&found, self, false, only, self->options, error));
    else search_leave_out_pipelines(&found);
    search_result_merge(self->result, &found);
    return AM_OK;
}

AmStatus search_add_late_baselines(SearchContext *self, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, self->whole, self->settings->micro_batches);
    const StopSignal timed = self->budget.stop;
    const MicroBatching *settings = self->settings;
    MicroBatching here = *settings;
    SearchOptions options = *self->options;
    AmStatus status = AM_OK;
    if (options.nested.purpose == PURPOSE_TRIAL || options.request->method.no_seeds || timed.deadline <= 0)
        return AM_OK;
    if (!degrees_allow_stages(&options.request->constraints.degrees, 1)) return AM_OK;
    options.limits.seconds = 0;
    self->budget.stop.deadline = 0;
    self->settings = &here;
    for (int32_t k = 0; k < count && status == AM_OK && !self->result->plan; k++) {
        here.micro_batches = numbers[k];
        status = search_add_stage_baselines(self->result, self, false, NULL, &options, error);
    }
    self->settings = settings;
    self->budget.stop = timed;
    return status;
}
