/* Improves the best pipelines that a search has simulated: their cuts, schedules, storage and axis
 * priorities, each change by a simulation. */
#include "planners/pipeline/pipeline_improve.h"

#include <math.h>
#include <string.h>

#include "planners/local_search/climb.h"
#include "planners/pipeline/pipeline_balance.h"
#include "planners/pipeline/pipeline_changes.h"
#include "planners/pipeline/stage_model.h"

AmStatus pipeline_move_cuts(PipelineCandidates *self, int64_t last, AmError *error) {
    PipelineLayout proposed[PIPELINE_BATCH];
    while (!pipeline_must_stop(self) && self->priced_count + PIPELINE_BATCH <= last) {
        int32_t count = 0;
        while (count < PIPELINE_BATCH) {
            int32_t best = -1;
            for (int32_t k = 0; k < self->priced_count; k++)
                if (!self->is_settled[k] && !self->priced[k]->given && !self->priced[k]->is_strict &&
                    (best < 0 || pipeline_is_before(self->priced[k], self->priced[best])))
                    best = k;
            if (best < 0 || !self->priced[best]->plan) break;
            const PipelineCandidate *candidate = self->priced[best];
            PipelineLayout *pipeline = &proposed[count];
            PipelineScales scales;
            self->is_settled[best] = true;
            *pipeline = candidate->pipeline;
            pipeline->origin = PLAN_ORIGIN_IMPROVEMENT;
            pipeline_scales(&scales, self->model, pipeline, candidate->seconds, candidate->busy,
                            candidate->peak_bytes);
            if (!pipeline_balance(self->model, pipeline, &scales) || pipeline_was_priced(self, pipeline))
                continue;
            if (count == 1 && pipeline_same_layout(&proposed[0], pipeline)) continue;
            count++;
        }
        if (count == 0) break;
        TRY(pipeline_price_layouts(self, proposed, count, error));
    }
    return AM_OK;
}

bool pipeline_recomputes_more(PipelineLayout *pipeline, const PipelineCandidates *self,
                              const PipelineCandidate *candidate) {
    bool is_changed = false;
    *pipeline = candidate->pipeline;
    pipeline->origin = PLAN_ORIGIN_IMPROVEMENT;
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        StageStrategy *strategy = &pipeline->stages[s].strategy;
        const StageModel *model = stage_model_of(self->model, pipeline);
        double limit = model->classes[pipeline->stages[s].place.class].limit;
        if (candidate->peak_bytes[s] <= limit || strategy->recompute == RECOMPUTE_FULL) continue;
        /* The recomputation that keeps the next fewer bytes; RECOMPUTE_FULL is the last. */
        int32_t next = strategy->recompute == RECOMPUTE_NONE ? RECOMPUTE_LEVELS : strategy->recompute + 1;
        strategy->recompute =
            (uint8_t)(next < RECOMPUTE_LEVELS + self->costs->recompute.levels.count ? next : RECOMPUTE_FULL);
        is_changed = true;
    }
    return is_changed;
}

/* Returns the fastest candidate that does not fit, was not eased yet and is faster than the best. */
static PipelineCandidate *fastest_unfit(const PipelineCandidates *self) {
    PipelineCandidate *found = NULL;
    for (int32_t k = 0; k < self->priced_count; k++) {
        PipelineCandidate *candidate = self->priced[k];
        bool is_open = candidate->plan && !candidate->fit.fits && !candidate->is_eased && !candidate->given &&
                       !candidate->is_strict && !candidate->is_apart && !candidate->cuts;
        if (!is_open || (self->best && candidate->seconds >= self->best->seconds)) continue;
        if (!found || candidate->seconds < found->seconds) found = candidate;
    }
    return found;
}

AmStatus pipeline_recompute_more(PipelineCandidates *self, int64_t last, AmError *error) {
    PipelineCandidate *candidate;
    while (!pipeline_must_stop(self) && self->priced_count + PIPELINE_BATCH <= last &&
           (candidate = fastest_unfit(self))) {
        PipelineLayout pipeline;
        candidate->is_eased = true;
        if (!pipeline_recomputes_more(&pipeline, self, candidate) || pipeline_was_priced(self, &pipeline))
            continue;
        TRY(pipeline_price_layouts(self, &pipeline, 1, error));
    }
    return AM_OK;
}

/* Returns the best pipeline under the requested schedule, among those that were tried with other schedules
 * (`is_varied`) or among the rest; NULL: none. */
static PipelineCandidate *best_varied(const PipelineCandidates *self, bool is_varied) {
    PipelineCandidate *best = NULL;
    for (int32_t k = 0; k < self->priced_count; k++) {
        PipelineCandidate *candidate = self->priced[k];
        if (candidate->is_apart || candidate->is_strict || candidate->is_varied != is_varied) continue;
        if (!best || pipeline_is_before(candidate, best)) best = candidate;
    }
    return best;
}

void pipeline_list_schedules(PipelineCandidate *candidates, int32_t *count, const PipelineCandidates *self,
                             const PipelineCandidate *from) {
    const uint32_t schedules = search_schedules(self->plans.request);
    bool alternates = from->plan && from->fit.fits && from->schedule == SCHEDULE_1F1B;
    if (!alternates || from->pipeline.stage_count == 1 || from->pipeline.micro_batches == 1) return;
    PipelineCandidate changed = {.pipeline = from->pipeline,
                                 .origin = PLAN_ORIGIN_IMPROVEMENT,
                                 .schedule = SCHEDULE_ZB_H1,
                                 .is_strict = true,
                                 .cuts = from->cuts};
    if (schedules >> SCHEDULE_ZB_H1 & 1) candidates[(*count)++] = changed;
    changed.schedule = SCHEDULE_INTERLEAVED;
    if (schedules >> SCHEDULE_INTERLEAVED & 1 &&
        pipeline_chunks_find(&changed.chunks, self->model, &changed.pipeline, SEARCH_DEFAULT_CHUNKS))
        candidates[(*count)++] = changed;
}

AmStatus pipeline_price_schedules(PipelineCandidates *self, int32_t most, double near, AmError *error) {
    PipelineCandidate *candidates = ARENA_ARRAY(self->plans.arena, PipelineCandidate, 2 * most), *from;
    const PipelineCandidate *best = best_varied(self, true);
    int32_t count = 0;
    if (!candidates) return am_fail_memory(error, most);
    for (int32_t taken = 0; taken < most && (from = best_varied(self, false)); taken++) {
        if (!best) best = from;
        if (best->fit.fits && !(from->seconds <= near * best->seconds)) break;
        pipeline_list_schedules(candidates, &count, self, from);
        from->is_varied = true;
    }
    return pipeline_price_all(self, candidates, count, error);
}

/* Returns the best pipeline of an order of the devices if it was not tried with other schedules, else
 * NULL. */
static PipelineCandidate *best_of_order(const PipelineCandidates *self, const StageModel *order) {
    PipelineCandidate *best = NULL;
    for (int32_t k = 0; k < self->priced_count; k++) {
        PipelineCandidate *candidate = self->priced[k];
        if (candidate->is_apart || candidate->is_strict || candidate->pipeline.order != order) continue;
        if (!best || pipeline_is_before(candidate, best)) best = candidate;
    }
    return best && !best->is_varied ? best : NULL;
}

AmStatus pipeline_price_orders(PipelineCandidates *self, double near, AmError *error) {
    int32_t orders = self->orders.count, count = 0;
    PipelineCandidate *candidates = ARENA_ARRAY(self->plans.arena, PipelineCandidate, 2 * (orders + 1));
    if (!candidates) return am_fail_memory(error, orders);
    for (int32_t k = 0; k <= orders && orders > 0; k++) {
        PipelineCandidate *from = best_of_order(self, k < orders ? self->orders.models[k] : NULL);
        if (!from || !self->best || from->seconds > near * self->best->seconds) continue;
        pipeline_list_schedules(candidates, &count, self, from);
        from->is_varied = true;
    }
    return pipeline_price_all(self, candidates, count, error);
}

static bool was_changed_so(const PipelineCandidates *self, const PipelineCandidate *changed) {
    for (int32_t k = 0; k < self->priced_count; k++) {
        const PipelineCandidate *candidate = self->priced[k];
        bool same = !candidate->given && candidate->axis_plans && candidate->schedule == changed->schedule &&
                    pipeline_same_layout(&candidate->pipeline, &changed->pipeline) &&
                    pipeline_same_cuts(candidate, changed);
        size_t bytes = sizeof *candidate->axis_plans * (size_t)changed->pipeline.stage_count;
        if (same && memcmp(candidate->axis_plans, changed->axis_plans, bytes) == 0) return true;
    }
    return false;
}

/* A climb over the changes of the axis priorities of a candidate's stages. */
typedef struct Polish {
    PipelineCandidates *candidates;
    const PipelineCandidate *from, *best; /* the present candidate, and the best of the batch */
    int64_t last;
    PipelineCandidate *changes; /* of `from` */
    int32_t first, waiting;     /* those of the batch */
} Polish;

static bool polish_is_over(void *user) {
    const Polish *self = user;
    return self->candidates->priced_count >= self->last || pipeline_must_stop(self->candidates);
}

static AmStatus polish_list(void *user, int32_t *count, AmError *error) {
    Polish *self = user;
    int64_t most = self->last - self->candidates->priced_count;
    Arena *arena = self->candidates->plans.arena;
    PipelineChange *changes = ARENA_ARRAY(arena, PipelineChange, PIPELINE_MOST_PRICED);
    int32_t change_count, stage_count = self->from->pipeline.stage_count;
    self->changes = ARENA_ARRAY(arena, PipelineCandidate, most);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, most);
    TRY(pipeline_changes_list(changes, PIPELINE_MOST_PRICED, &change_count, &self->candidates->plans,
                              self->from, error));
    for (int32_t k = 0; k < change_count && *count < most; k++) {
        AxisPlan *axis_plans = ARENA_ARRAY(arena, AxisPlan, stage_count);
        if (!axis_plans) return am_fail_memory(error, stage_count);
        memcpy(axis_plans, self->from->axis_plans, sizeof *axis_plans * (size_t)stage_count);
        axis_plans[changes[k].stage] = changes[k].axis_plan;
        PipelineCandidate changed = {.pipeline = self->from->pipeline,
                                     .origin = PLAN_ORIGIN_IMPROVEMENT,
                                     .schedule = self->from->schedule,
                                     .is_strict = true,
                                     .is_apart = true,
                                     .chunks = self->from->chunks,
                                     .cuts = self->from->cuts,
                                     .axis_plans = axis_plans};
        if (!was_changed_so(self->candidates, &changed)) self->changes[(*count)++] = changed;
    }
    return AM_OK;
}

static AmStatus polish_make(void *user, int32_t move, ClimbMove *made, AmError *error) {
    Polish *self = user;
    (void)error;
    if (self->waiting++ == 0) self->first = move;
    *made = CLIMB_ADDED;
    return AM_OK;
}

static AmStatus polish_price(void *user, bool *is_better, AmError *error) {
    Polish *self = user;
    PipelineCandidate *batch = &self->changes[self->first];
    self->best = self->from;
    TRY(pipeline_price_all(self->candidates, batch, self->waiting, error));
    for (int32_t t = 0; t < self->waiting; t++)
        if (batch[t].plan && pipeline_is_before(&batch[t], self->best)) self->best = &batch[t];
    self->waiting = 0;
    *is_better = self->best != self->from;
    return AM_OK;
}

static AmStatus polish_take(void *user, AmError *error) {
    Polish *self = user;
    (void)error;
    self->from = self->best;
    return AM_OK;
}

/* Changes the axis priorities of a candidate's stages one by one, each time from the best so far, until no
 * change helps or nothing is left to spend. */
static AmStatus polish_stages(PipelineCandidates *candidates, const PipelineCandidate *from, int64_t last,
                              AmError *error) {
    Polish self = {.candidates = candidates, .from = from, .last = last};
    const Climb climb = {.order = CLIMB_FROM_FIRST,
                         .batch = PIPELINE_BATCH,
                         .user = &self,
                         .is_over = polish_is_over,
                         .list = polish_list,
                         .make = polish_make,
                         .price = polish_price,
                         .take = polish_take};
    ClimbPlace place = {0};
    return from ? climb_run(&climb, &place, error) : AM_OK;
}

/* Returns the best one-stage or multi-stage candidate that fits. */
static const PipelineCandidate *best_of_kind(const PipelineCandidates *self, bool has_stages) {
    const PipelineCandidate *best = NULL;
    for (int32_t k = 0; k < self->priced_count; k++) {
        const PipelineCandidate *candidate = self->priced[k];
        bool is_one = candidate->plan && candidate->fit.fits && !candidate->given &&
                      (candidate->plan->stage_count > 1) == has_stages;
        if (is_one && (!best || candidate->seconds < best->seconds)) best = candidate;
    }
    return best;
}

static bool is_near_best(const PipelineCandidates *self, const PipelineCandidate *candidate) {
    const double near = 1.15; /* times the best step */
    return candidate && candidate->seconds < near * self->best->seconds;
}

/* Changes axis priorities and moves cuts of the best pipelines by turns, while either has candidates left.
 * New cuts that are faster than the old ones get the other schedules, too. */
static AmStatus improve_pipelines(PipelineCandidates *self, int64_t last, AmError *error) {
    enum { ITERATION = 4 };
    for (int32_t before = -1;
         before < self->priced_count && self->priced_count < last && !pipeline_must_stop(self);) {
        before = self->priced_count;
        int64_t iteration = before + ITERATION < last ? before + ITERATION : last;
        TRY(polish_stages(self, best_of_kind(self, true), iteration, error));
        iteration = self->priced_count + ITERATION < last ? self->priced_count + ITERATION : last;
        TRY(pipeline_move_cuts(self, iteration, error));
        const PipelineCandidate *varied = best_varied(self, true), *other = best_varied(self, false);
        bool is_quicker = varied && other && pipeline_is_before(other, varied);
        if (is_quicker && self->priced_count + 2 <= last)
            TRY(pipeline_price_schedules(self, 1, INFINITY, error));
    }
    return AM_OK;
}

AmStatus pipeline_improve(PipelineCandidates *self, int64_t last, AmError *error) {
    if (!self->best) return AM_OK;
    const PipelineCandidate *one = best_of_kind(self, false), *several = best_of_kind(self, true);
    if (!is_near_best(self, one)) one = NULL;
    if (!is_near_best(self, several)) several = NULL;
    bool is_limited = self->plans.scope->limits.evaluations > 0 && several;
    int64_t most = is_limited ? (last - self->priced_count) / 2 : self->most_single_changes,
            before = self->priced_count;
    TRY(polish_stages(self, one, before + most, error));
    if (!is_limited) last += self->priced_count - before;
    return several ? improve_pipelines(self, last, error) : AM_OK;
}
