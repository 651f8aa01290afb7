/* Improves the best pipelines that a search has simulated: their cuts, schedules, storage and axis
 * priorities, each change by a simulation. */
#include "planners/pipeline/pipeline_improve.h"

#include <math.h>
#include <string.h>

#include "planners/local_search/climb.h"
#include "planners/pipeline/pipeline_balance.h"
#include "planners/pipeline/pipeline_changes.h"
#include "planners/pipeline/stage_model.h"

/* The best tries whose cuts can still be moved for the better: their pipelines then, at most PIPELINE_BATCH.
 */
static int32_t propose(PipelineCandidates *self, bool *is_settled, PipelineLayout *proposed) {
    int32_t count = 0;
    while (count < PIPELINE_BATCH) {
        int32_t best = -1;
        for (int32_t k = 0; k < self->try_count; k++)
            if (!is_settled[k] && !self->tries[k]->given && !self->tries[k]->is_strict &&
                (best < 0 || pipeline_is_before(self->tries[k], self->tries[best])))
                best = k;
        if (best < 0 || !self->tries[best]->plan) break;
        const PipelineCandidate *try = self->tries[best];
        PipelineLayout *pipeline = &proposed[count];
        PipelineScales scales;
        is_settled[best] = true;
        *pipeline = try->pipeline;
        pipeline->origin = PLAN_ORIGIN_IMPROVEMENT;
        pipeline_scales(&scales, self->model, pipeline, try->seconds, try->busy, try->peak_bytes);
        if (!pipeline_balance(self->model, pipeline, &scales) || pipeline_was_priced(self, pipeline))
            continue;
        if (count == 1 && pipeline_same_layout(&proposed[0], pipeline)) continue;
        count++;
    }
    return count;
}

AmStatus pipeline_move_cuts(PipelineCandidates *self, int64_t last, AmError *error) {
    PipelineLayout proposed[PIPELINE_BATCH];
    while (!pipeline_must_stop(self) && self->try_count + PIPELINE_BATCH <= last) {
        int32_t count = propose(self, self->is_settled, proposed);
        if (count == 0) break;
        TRY(pipeline_price_layouts(self, proposed, count, error));
    }
    return AM_OK;
}

/* Raises the recomputation of the stages that lack memory; false where none can. */
static bool recompute_more(const PipelineCandidates *self, const PipelineCandidate *try,
                           PipelineLayout *pipeline) {
    bool is_changed = false;
    *pipeline = try->pipeline;
    pipeline->origin = PLAN_ORIGIN_IMPROVEMENT;
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        StageStrategy *strategy = &pipeline->stages[s].strategy;
        const StageModel *model = stage_model_of(self->model, pipeline);
        double limit = model->classes[pipeline->stages[s].place.class].limit;
        if (try->peak_bytes[s] <= limit || strategy->recompute == RECOMPUTE_FULL) continue;
        /* The recomputation that keeps the next fewer bytes; RECOMPUTE_FULL is the last. */
        int32_t next = strategy->recompute == RECOMPUTE_NONE ? RECOMPUTE_LEVELS : strategy->recompute + 1;
        strategy->recompute =
            (uint8_t)(next < RECOMPUTE_LEVELS + self->costs->levels.count ? next : RECOMPUTE_FULL);
        is_changed = true;
    }
    return is_changed;
}

/* The fastest try that does not fit, was not eased yet and is faster than the best. */
static PipelineCandidate *fastest_unfit(const PipelineCandidates *self) {
    PipelineCandidate *found = NULL;
    for (int32_t k = 0; k < self->try_count; k++) {
        PipelineCandidate *try = self->tries[k];
        bool is_open = try->plan && !try->fit.fits && !try->is_eased && !try->given && !try->is_strict &&
                       !try->is_apart && !try->cuts;
        if (!is_open || (self->best && try->seconds >= self->best->seconds)) continue;
        if (!found || try->seconds < found->seconds) found = try;
    }
    return found;
}

AmStatus pipeline_recompute_more(PipelineCandidates *self, int64_t last, AmError *error) {
    PipelineCandidate *try;
    while (!pipeline_must_stop(self) && self->try_count + PIPELINE_BATCH <= last &&
           (try = fastest_unfit(self))) {
        PipelineLayout pipeline;
        try->is_eased = true;
        if (!recompute_more(self, try, &pipeline) || pipeline_was_priced(self, &pipeline)) continue;
        TRY(pipeline_price_layouts(self, &pipeline, 1, error));
    }
    return AM_OK;
}

/* The best pipeline under the requested schedule, among those tried with other schedules or among
 * the rest; NULL: none. */
static PipelineCandidate *best_varied(const PipelineCandidates *self, bool is_varied) {
    PipelineCandidate *best = NULL;
    for (int32_t k = 0; k < self->try_count; k++) {
        PipelineCandidate *try = self->tries[k];
        if (try->is_apart || try->is_strict || try->is_varied != is_varied) continue;
        if (!best || pipeline_is_before(try, best)) best = try;
    }
    return best;
}

/* Adds the pipeline under the other schedules to `tries`, which has room for two. */
static void add_schedules(PipelineCandidate *tries, int32_t *count, const PipelineCandidates *self,
                          PipelineCandidate *from) {
    const uint32_t schedules = target_row(self->plans.options->request->constraints.target)->schedules;
    bool alternates = from->plan && from->fit.fits && from->schedule == SCHEDULE_1F1B;
    from->is_varied = true;
    if (!alternates || from->pipeline.stage_count == 1 || from->pipeline.micro_batches == 1) return;
    PipelineCandidate changed = {.pipeline = from->pipeline,
                                 .origin = PLAN_ORIGIN_IMPROVEMENT,
                                 .schedule = SCHEDULE_ZB_H1,
                                 .is_strict = true,
                                 .cuts = from->cuts};
    if (schedules >> SCHEDULE_ZB_H1 & 1) tries[(*count)++] = changed;
    changed.schedule = SCHEDULE_INTERLEAVED;
    if (schedules >> SCHEDULE_INTERLEAVED & 1 &&
        pipeline_chunks_find(&changed.chunks, self->model, &changed.pipeline, SEARCH_DEFAULT_CHUNKS))
        tries[(*count)++] = changed;
}

AmStatus pipeline_price_schedules(PipelineCandidates *self, int32_t most, double near, AmError *error) {
    PipelineCandidate *tries = ARENA_ARRAY(self->plans.arena, PipelineCandidate, 2 * most), *from;
    const PipelineCandidate *best = best_varied(self, true);
    int32_t count = 0;
    if (!tries) return am_fail_memory(error, most);
    for (int32_t taken = 0; taken < most && (from = best_varied(self, false)); taken++) {
        if (!best) best = from;
        if (best->fit.fits && !(from->seconds <= near * best->seconds)) break;
        add_schedules(tries, &count, self, from);
    }
    return pipeline_price_all(self, tries, count, error);
}

/* The best pipeline of an order of the devices that was not tried with other schedules; NULL: it was. */
static PipelineCandidate *best_of_order(const PipelineCandidates *self, const StageModel *order) {
    PipelineCandidate *best = NULL;
    for (int32_t k = 0; k < self->try_count; k++) {
        PipelineCandidate *try = self->tries[k];
        if (try->is_apart || try->is_strict || try->pipeline.order != order) continue;
        if (!best || pipeline_is_before(try, best)) best = try;
    }
    return best && !best->is_varied ? best : NULL;
}

AmStatus pipeline_price_orders(PipelineCandidates *self, double near, AmError *error) {
    int32_t orders = self->orders.count, count = 0;
    PipelineCandidate *tries = ARENA_ARRAY(self->plans.arena, PipelineCandidate, 2 * (orders + 1));
    if (!tries) return am_fail_memory(error, orders);
    for (int32_t k = 0; k <= orders && orders > 0; k++) {
        PipelineCandidate *from = best_of_order(self, k < orders ? self->orders.models[k] : NULL);
        if (from && self->best && from->seconds <= near * self->best->seconds)
            add_schedules(tries, &count, self, from);
    }
    return pipeline_price_all(self, tries, count, error);
}

static bool was_changed_so(const PipelineCandidates *self, const PipelineCandidate *changed) {
    for (int32_t k = 0; k < self->try_count; k++) {
        const PipelineCandidate *try = self->tries[k];
        bool same = !try->given && try->axis_plans && try->schedule == changed->schedule &&
                    pipeline_same_layout(&try->pipeline, &changed->pipeline) &&
                    pipeline_same_cuts(try, changed);
        size_t bytes = sizeof *try->axis_plans * (size_t)changed->pipeline.stage_count;
        if (same && memcmp(try->axis_plans, changed->axis_plans, bytes) == 0) return true;
    }
    return false;
}

/* The changes of a try that were not tried yet. */
static AmStatus list_changed(PipelineCandidates *self, const PipelineCandidate *from,
                             PipelineCandidate **tries, int32_t *count, int64_t most, AmError *error) {
    Arena *arena = self->plans.arena;
    PipelineChange *changes = ARENA_ARRAY(arena, PipelineChange, PIPELINE_MOST_TRIED);
    int32_t change_count, stages = from->pipeline.stage_count;
    *tries = ARENA_ARRAY(arena, PipelineCandidate, most);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, most);
    TRY(pipeline_changes_list(changes, PIPELINE_MOST_TRIED, &change_count, &self->plans, from, error));
    for (int32_t k = 0; k < change_count && *count < most; k++) {
        AxisPlan *axis_plans = ARENA_ARRAY(arena, AxisPlan, stages);
        if (!axis_plans) return am_fail_memory(error, stages);
        memcpy(axis_plans, from->axis_plans, sizeof *axis_plans * (size_t)stages);
        axis_plans[changes[k].stage] = changes[k].axis_plan;
        PipelineCandidate changed = {.pipeline = from->pipeline,
                                     .origin = PLAN_ORIGIN_IMPROVEMENT,
                                     .schedule = from->schedule,
                                     .is_strict = true,
                                     .is_apart = true,
                                     .chunks = from->chunks,
                                     .cuts = from->cuts,
                                     .axis_plans = axis_plans};
        if (!was_changed_so(self, &changed)) (*tries)[(*count)++] = changed;
    }
    return AM_OK;
}

/* A climb over the changes of the axis priorities of a candidate's stages. */
typedef struct Polish {
    PipelineCandidates *candidates;
    const PipelineCandidate *from, *best; /* the present candidate, and the best of the batch */
    int64_t last;
    PipelineCandidate *tries; /* changes of `from` */
    int32_t first, waiting;   /* those of the batch */
} Polish;

static bool polish_is_over(void *user) {
    const Polish *self = user;
    return self->candidates->try_count >= self->last || pipeline_must_stop(self->candidates);
}

static AmStatus polish_list(void *user, int32_t *count, AmError *error) {
    Polish *self = user;
    int64_t most = self->last - self->candidates->try_count;
    return list_changed(self->candidates, self->from, &self->tries, count, most, error);
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
    PipelineCandidate *batch = &self->tries[self->first];
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
static AmStatus polish(PipelineCandidates *candidates, const PipelineCandidate *from, int64_t last,
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

/* The best one-stage or multi-stage candidate that fits. */
static const PipelineCandidate *best_of_kind(const PipelineCandidates *self, bool has_stages) {
    const PipelineCandidate *best = NULL;
    for (int32_t k = 0; k < self->try_count; k++) {
        const PipelineCandidate *try = self->tries[k];
        bool is_one = try->plan && try->fit.fits && !try->given && (try->plan->stage_count > 1) == has_stages;
        if (is_one && (!best || try->seconds < best->seconds)) best = try;
    }
    return best;
}

static bool is_near_best(const PipelineCandidates *self, const PipelineCandidate *try) {
    const double near = 1.15;
    return try && try->seconds < near * self->best->seconds;
}

/* Alternately changes axis priorities and moves cuts of the best pipelines while either has candidates left;
 * new cuts that are faster than the old ones get the other schedules, too. */
static AmStatus improve_pipelines(PipelineCandidates *self, int64_t last, AmError *error) {
    enum { ITERATION = 4 };
    for (int32_t before = -1;
         before < self->try_count && self->try_count < last && !pipeline_must_stop(self);) {
        before = self->try_count;
        int64_t iteration = before + ITERATION < last ? before + ITERATION : last;
        TRY(polish(self, best_of_kind(self, true), iteration, error));
        iteration = self->try_count + ITERATION < last ? self->try_count + ITERATION : last;
        TRY(pipeline_move_cuts(self, iteration, error));
        const PipelineCandidate *varied = best_varied(self, true), *other = best_varied(self, false);
        bool is_quicker = varied && other && pipeline_is_before(other, varied);
        if (is_quicker && self->try_count + 2 <= last)
            TRY(pipeline_price_schedules(self, 1, INFINITY, error));
    }
    return AM_OK;
}

AmStatus pipeline_improve(PipelineCandidates *self, int64_t last, AmError *error) {
    if (!self->best) return AM_OK;
    const PipelineCandidate *one = best_of_kind(self, false), *several = best_of_kind(self, true);
    if (!is_near_best(self, one)) one = NULL;
    if (!is_near_best(self, several)) several = NULL;
    bool is_limited = self->plans.options->limits.evaluations > 0 && several;
    int64_t most = is_limited ? (last - self->try_count) / 2 : self->most_single_changes,
            before = self->try_count;
    TRY(polish(self, one, before + most, error));
    if (!is_limited) last += self->try_count - before;
    return several ? improve_pipelines(self, last, error) : AM_OK;
}
