/* One-stage plans with one micro-batch in a search over any number of stages.
 *
 * Large modules get the strategies of the stage tables on all devices. Others get the one-stage search with a
 * part of the evaluations. The best plan of the tables then gets overrides of single operators
 * (override_search.h).
 */
#include "planners/pipeline/pipeline_one_stage.h"

#include <math.h>

#include "ir/analysis/loops.h"
#include "planners/improve/plan_climb.h"
#include "planners/pipeline/pipeline_policy.h"
#include "planners/pipeline/stage_model.h"
#include "planners/single_stage/override_search.h"

/* Evaluations of one-stage plans per simulated pipeline: such a plan takes a fraction of a
 * pipeline's time. A large module's plans are searched with this number only if no pipeline fits; a
 * small module's independently of pipelines. */
enum { STAGE_EVALUATIONS = 8 };

PipelineLayout pipeline_one_stage_layout(const PipelineCandidates *self, const StageStrategy *strategy) {
    PipelineLayout pipeline = {.micro_batches = 1, .stage_count = 1};
    pipeline.stages[0] = (StageLayout){.end_unit = self->costs->units.count,
                                       .place = {.width = self->plans.cluster->device_count},
                                       .strategy = *strategy};
    return pipeline;
}

/* Lists the one-stage strategies that fit by the tables, fastest first, up to `most_seconds`. */
static int32_t list_singles(const PipelineCandidates *self, PipelineLayout *found, int32_t most,
                            double most_seconds) {
    DeviceRange place;
    double excess;
    int32_t count = 0;
    if (!stage_model_range(self->model, 0, self->plans.cluster->device_count, &place)) return 0;
    for (int32_t k = 0; k < self->model->tensor_count * 8; k++) {
        const StageStrategy strategy = {.tensor = self->model->tensors[k / 8],
                                        .splits_sequence = k / 4 % 2 == 1,
                                        .storage = (uint8_t)(k % 4)};
        PipelineLayout pipeline = pipeline_one_stage_layout(self, &strategy);
        int32_t at = count < most ? count : most;
        pipeline.stages[0].place = place;
        pipeline.seconds = stage_model_seconds(self->model, &pipeline, &excess);
        if (excess > 0 || !(pipeline.seconds < most_seconds) || pipeline_was_priced(self, &pipeline))
            continue;
        while (at > 0 && found[at - 1].seconds > pipeline.seconds) at--;
        if (at == most) continue;
        if (count < most) count++;
        for (int32_t j = count - 1; j > at; j--) found[j] = found[j - 1];
        found[at] = pipeline;
    }
    return count;
}

AmStatus pipeline_one_stage_price(PipelineCandidates *self, AmError *error) {
    enum { MOST = 4 };
    const double near = 1.1; /* times the best step */
    if (self->plans.scope->micro_batches > 1 || !search_module_is_large(self->plans.primary) || !self->model)
        return AM_OK;
    if (!degrees_allow_stages(&self->plans.request->constraints.degrees, 1)) return AM_OK;
    double best = self->best ? self->best->seconds : INFINITY;
    int64_t most = pipeline_evaluations_left(self) < MOST ? pipeline_evaluations_left(self) : MOST;
    PipelineLayout found[MOST];
    int32_t count = list_singles(self, found, (int32_t)most, near * best);
    return pipeline_price_layouts(self, found, count, error);
}

/* Returns the baseline that a strategy of the tables is; BASELINE_COUNT: none. */
static Baseline baseline_of(const PipelineCandidates *self, const PipelineCandidate *candidate) {
    static const Baseline wide[] = {BASELINE_DATA_PARALLEL, BASELINE_ZERO1, BASELINE_ZERO2, BASELINE_ZERO3};
    static const Baseline deep[] = {BASELINE_MEGATRON, BASELINE_MEGATRON_ZERO1, BASELINE_MEGATRON_ZERO2,
                                    BASELINE_MEGATRON_ZERO3};
    const PipelineLayout *pipeline = &candidate->pipeline;
    const StageStrategy *strategy = &pipeline->stages[0].strategy;
    int32_t server = self->plans.cluster->servers[0].device_count;
    if (candidate->given || candidate->is_apart || strategy->recompute != RECOMPUTE_NONE)
        return BASELINE_COUNT;
    if (strategy->tensor > 1 && strategy->tensor != server) return BASELINE_COUNT;
    if (pipeline->stage_count > 1) { /* the only ones with cuts of their own are even */
        bool is_other =
            candidate->schedule != pipeline_wanted_schedule(self->plans.scope) || strategy->storage > 0;
        if (!candidate->cuts || is_other) return BASELINE_COUNT;
        return strategy->tensor > 1 ? BASELINE_MEGATRON_3D : BASELINE_EVEN_PIPELINE;
    }
    if (pipeline->micro_batches > 1 || (strategy->splits_sequence && strategy->storage > 0))
        return BASELINE_COUNT;
    if (strategy->splits_sequence) return BASELINE_MEGATRON_SEQUENCE;
    return strategy->tensor > 1 ? deep[strategy->storage] : wide[strategy->storage];
}

AmStatus pipeline_one_stage_search(SearchResult *single, PipelineCandidates *self, AmError *error) {
    SearchScope scope = search_one_stage_part(self->plans.scope);
    bool is_left_out = search_module_is_large(self->plans.primary) && self->best &&
                       (self->best->plan->stage_count > 1 || self->plans.scope->purpose == PURPOSE_TRIAL);
    bool is_wanted = scope.micro_batches <= 1 && !is_left_out;
    bool may_be_one = degrees_allow_stages(&scope.request->constraints.degrees, 1);
    const char *reason = may_be_one ? "its time by the tables is far from the best" : "it has other degrees";
    for (int32_t e = 0; e < BASELINE_COUNT; e++)
        single->baselines[e] = (BaselineResult){.seconds = NAN, .reason = reason};
    for (int32_t k = 0; k < self->priced_count; k++) {
        const PipelineCandidate *candidate = self->priced[k];
        Baseline baseline = baseline_of(self, candidate);
        if (baseline == BASELINE_COUNT || !candidate->plan || !candidate->fit.fits) continue;
        BaselineResult *priced = &single->baselines[baseline];
        if (baseline_is_faster(candidate->seconds, priced))
            *priced = (BaselineResult){.seconds = candidate->seconds,
                                       .micro_batches = candidate->plan->micro_batches};
    }
    if (!is_wanted || !may_be_one || self->budget.is_cut) return AM_OK;
    if (self->best && pipeline_must_stop(self)) return AM_OK;
    AmError refusal = {0};
    if (scope.searcher == SEARCHER_EXHAUSTIVE) scope.searcher = SEARCHER_ANNEAL;
    int32_t instructions = ir_represented(self->plans.primary->canonical);
    bool is_trial = scope.purpose == PURPOSE_TRIAL;
    int64_t size = search_evaluations_for(scope.searcher, instructions);
    if (scope.limits.evaluations > 0) size = pipeline_evaluations_left(self) - uneven_shares_reserve(self);
    else if (is_trial) size = SEARCH_TRIAL_EVALUATIONS;
    else if (search_module_is_large(self->plans.primary) && !self->best)
        size = STAGE_EVALUATIONS * (self->most_candidates + self->most_changes);
    if (scope.limits.evaluations == 0 && !is_trial) size -= plan_climb_reserve(self->plans.scope, size);
    if (scope.purpose == PURPOSE_PIPELINES && !stop_wanted(&self->budget.stop)) return AM_OK;
    bool is_first = scope.purpose == PURPOSE_STAGES, is_short = true;
    if (is_first) { /* the first evaluations of a search that a later round repeats */
        size = search_evaluations_for(scope.searcher, instructions);
        size -= plan_climb_reserve(&scope, size);
        scope.purpose = PURPOSE_FIRST_PLANS;
    }
    if (size < 1 || !budget_try_take(&self->budget, 1)) return AM_OK;
    if (self->best) scope.known.rival_seconds = self->best->seconds;
    scope = search_part(&scope, &self->budget, size);
    if (is_first) {
        is_short = scope.limits.has_cap && scope.limits.cap < SEARCH_FIRST_STAGE_PLANS;
        scope.limits.has_cap = true;
        if (!is_short) scope.limits.cap = SEARCH_FIRST_STAGE_PLANS;
    }
    PipelinePolicy *policy = NULL;
    if (scope.searcher == SEARCHER_DQN && !scope.request->method.no_stage_choice) {
        TRY(pipeline_policy_open(&policy, self, error));
        scope.stages = pipeline_policy_choices(policy);
    }
    AmStatus status = single_stage_search(single, self->plans.arena, self->plans.primary, self->plans.cluster,
                                          &scope, &refusal);
    pipeline_policy_close(policy);
    single->is_cut &= is_short; /* the cap of the first plans cuts nothing */
    budget_return(&self->budget, single->evaluations, single->is_cut);
    if (status == AM_OK || status == AM_ERROR_INFEASIBLE || status == AM_INTERRUPTED) {
        if (self->refusal.code == AM_OK) self->refusal = refusal;
        if (single->plan) single->plan->space = plan_space_name(self->plans.scope->kind);
        return AM_OK;
    }
    return am_pass_error(status, &refusal, error);
}

AmStatus pipeline_one_stage_add_overrides(const SearchResult *single, PipelineCandidates *self,
                                          AmError *error) {
    const PipelinePlans *plans = &self->plans;
    bool is_best = self->best && candidate_is_better(&self->pool.best, &single->pool.best);
    const Plan *plan = is_best ? self->best->plan : NULL;
    if (!plan || plan->stage_count > 1 || plan->micro_batches > 1 || pipeline_must_stop(self)) return AM_OK;
    if (!budget_try_take(&self->budget, 1)) return AM_OK;
    SearchBudget part = budget_part(&self->budget);
    Plan *refined = ARENA_ARRAY(plans->arena, Plan, 1);
    if (!refined) return am_fail_memory(error, (int64_t)sizeof *refined);
    *refined = *plan;
    part.limit = pipeline_evaluations_left(self) - uneven_shares_reserve(self);
    TRY(plan_add_overrides(refined, &part, plans->arena, plans->primary, plans->cluster, plans->scope,
                           OVERRIDES_ALL, error));
    budget_return(&self->budget, part.used, part.is_cut);
    pool_add(&self->pool, refined, &self->best->fit, PLAN_ORIGIN_IMPROVEMENT, NULL);
    return AM_OK;
}
