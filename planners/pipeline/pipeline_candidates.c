/* Simulates the pipelines of a search.
 *
 * Candidates are simulated in batches of a fixed size, and counted, listed and compared in their order. So
 * the result does not depend on the number of threads. The numbers of candidates and of their changes follow
 * from the evaluations that the options leave.
 */
#include "planners/pipeline/pipeline_candidates.h"

#include <math.h>

#include "ir/analysis/loops.h"
#include "planners/improve/uneven_shares.h"

enum { LEAST_CANDIDATES = 15, MOST_CANDIDATES = 72, LEAST_SINGLE_CHANGES = 20 };
/* The default number of simulated plans: their instructions add up to this number. A third of them
 * are changes of the best. */
enum { INSTRUCTIONS_PRICED = 315000 };

int64_t pipeline_evaluations_left(const PipelineCandidates *self) {
    const SearchBudget *budget = &self->budget;
    return budget->limit < INT64_MAX ? budget->limit - budget->used : INT64_MAX;
}

int64_t uneven_shares_reserve(const PipelineCandidates *self) {
    const int64_t wanted = UNEVEN_SHARES_TRIED;
    return self->plans.cluster->type_count > 1 && pipeline_evaluations_left(self) >= 2 * wanted ? wanted : 0;
}

void pipeline_allow_candidates(PipelineCandidates *self) {
    int64_t candidates = INSTRUCTIONS_PRICED / (ir_represented(self->plans.primary->canonical) + 1),
            most = MOST_CANDIDATES;
    if (candidates < LEAST_CANDIDATES) candidates = LEAST_CANDIDATES;
    if (self->plans.scope->limits.evaluations > 0) {
        candidates = (pipeline_evaluations_left(self) - uneven_shares_reserve(self)) / 2;
        most = PIPELINE_MOST_PRICED;
    }
    if (candidates > most) candidates = most;
    self->most_changes = candidates / 3;
    self->most_candidates = candidates - self->most_changes;
    self->most_single_changes = self->most_changes;
    if (self->plans.scope->limits.evaluations == 0 && self->most_single_changes < LEAST_SINGLE_CHANGES)
        self->most_single_changes = LEAST_SINGLE_CHANGES;
}

bool pipeline_must_stop(const PipelineCandidates *self) {
    return self->budget.is_cut || stop_wanted(&self->budget.stop);
}

/* Returns the part of the search that made a candidate. */
static PlanOrigin origin_of(const PipelineCandidate *candidate) {
    if (candidate->given) return PLAN_ORIGIN_GIVEN;
    if (candidate->origin != PLAN_ORIGIN_UNKNOWN) return candidate->origin;
    return candidate->pipeline.origin != PLAN_ORIGIN_UNKNOWN ? candidate->pipeline.origin
                                                             : PLAN_ORIGIN_STAGES;
}

/* Returns a pipeline as a candidate of the pool. */
static PlanCandidate pipeline_candidate(const PipelineCandidate *candidate) {
    return (PlanCandidate){.plan = candidate->plan,
                           .seconds = candidate->seconds,
                           .fit = candidate->fit,
                           .origin = origin_of(candidate)};
}

static AmStatus simulate(PipelineCandidates *self, PipelineCandidate *candidates, int32_t count,
                         AmError *error) {
    self->plans.stop = self->best ? &self->budget.stop : NULL;
    TRY(pipeline_plans_simulate(&self->plans, candidates, count, error));
    for (int32_t k = 0; k < count; k++) {
        PipelineCandidate *candidate = &candidates[k];
        if (!candidate->plan) {
            bool is_reason = candidate->status != AM_INTERRUPTED; /* the time for pipelines was up */
            if (self->refusal.code == AM_OK && is_reason) self->refusal = candidate->error;
            continue;
        }
        self->budget.used++;
        search_watch_count(self->plans.request->callbacks.watch, 1,
                           candidate->fit.fits ? candidate->seconds : NAN);
        pipeline_plans_log(&self->plans, candidate, self->budget.used);
        pool_add(&self->pool, candidate->plan, &candidate->fit, origin_of(candidate), NULL);
        if (candidate->fit.fits && (!self->best || pipeline_is_before(candidate, self->best)))
            self->best = candidate;
    }
    return AM_OK;
}

ScheduleKind pipeline_wanted_schedule(const SearchScope *scope) {
    const SearchRequest *request = scope->request;
    return request->space.schedule ? schedule_kind_find(request->space.schedule) : SCHEDULE_1F1B;
}

AmStatus pipeline_price_all(PipelineCandidates *self, PipelineCandidate *candidates, int32_t count,
                            AmError *error) {
    for (int32_t k = 0; k < count && self->priced_count + PIPELINE_BATCH <= PIPELINE_MOST_PRICED &&
                        !pipeline_must_stop(self);
         k += PIPELINE_BATCH) {
        int32_t batch = count - k < PIPELINE_BATCH ? count - k : PIPELINE_BATCH;
        batch = (int32_t)budget_take(&self->budget, batch);
        for (int32_t t = 0; t < batch; t++) self->priced[self->priced_count++] = &candidates[k + t];
        TRY(simulate(self, candidates + k, batch, error));
    }
    return AM_OK;
}

AmStatus pipeline_price_layouts(PipelineCandidates *self, const PipelineLayout *pipelines, int32_t count,
                                AmError *error) {
    ScheduleKind schedule = pipeline_wanted_schedule(self->plans.scope);
    PipelineCandidate *candidates = ARENA_ARRAY(self->plans.arena, PipelineCandidate, count + 1);
    PipelineCandidate *shared = ARENA_ARRAY(self->plans.arena, PipelineCandidate, count + 1);
    int32_t shared_count = 0;
    if (self->plans.arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) {
        bool recomputes = false;
        candidates[k] = (PipelineCandidate){.pipeline = pipelines[k], .schedule = schedule};
        for (int32_t s = 0; s < pipelines[k].stage_count; s++)
            recomputes |= pipelines[k].stages[s].strategy.recompute != RECOMPUTE_NONE;
        if (!recomputes) shared[shared_count++] = candidates[k];
    }
    TRY(pipeline_plans_open(&self->plans, shared, shared_count, error));
    return pipeline_price_all(self, candidates, count, error);
}

bool pipeline_was_priced(const PipelineCandidates *self, const PipelineLayout *pipeline) {
    for (int32_t k = 0; k < self->priced_count; k++)
        if (!self->priced[k]->is_apart && pipeline_same_layout(&self->priced[k]->pipeline, pipeline))
            return true;
    return false;
}

bool pipeline_is_before(const PipelineCandidate *a, const PipelineCandidate *b) {
    const PlanCandidate first = pipeline_candidate(a), second = pipeline_candidate(b);
    return candidate_is_better(&first, &second);
}

AmStatus pipeline_price_one(PipelineCandidates *self, PipelineCandidate *candidate, AmError *error) {
    if (!budget_try_take(&self->budget, 1)) return AM_OK;
    self->priced[self->priced_count++] = candidate;
    return simulate(self, candidate, 1, error);
}
