/* Moves the cuts of a simulated pipeline.
 *
 * The tables' seconds and bytes of a stage are scaled by simulated over estimated. Every cut is tried one or
 * two units earlier and later, and a move is kept if the 1F1B recursion gets shorter and memory suffices.
 * Passes over all cuts repeat until none is kept.
 */
#include "planners/pipeline/pipeline_balance.h"

#include <math.h>

#include "planners/pipeline/stage_model.h"
#include "propagation/plan/pipeline_schedule.h"

enum { MOST_ROUNDS = 64, FARTHEST = 3 };

typedef struct Balance {
    const StageModel *model;
    const PipelineScales *scales;
    StagePricing pricings[PIPELINE_MOST_STAGES];
    StageCost costs[PIPELINE_MOST_STAGES];
    double excess[PIPELINE_MOST_STAGES];
    double up[PIPELINE_MOST_STAGES], down[PIPELINE_MOST_STAGES];
} Balance;

static void price(Balance *self, const PipelineLayout *pipeline, int32_t s) {
    const StageLayout *stage = &pipeline->stages[s];
    StageCost *cost = &self->costs[s];
    StageSums sums = {0};
    for (int32_t u = stage->first_unit; u < stage->end_unit; u++)
        stage_sums_add(&sums, &self->pricings[s].units[u]);
    stage_sums_cost(self->model, &self->pricings[s], &sums, stage->first_unit, cost);
    int32_t kept = schedule_kept_for_backward(pipeline->stage_count, s, pipeline->micro_batches);
    double bytes = cost->fixed_bytes + kept * cost->iteration_bytes;
    self->excess[s] = fmax(0, bytes * self->scales->bytes[s] / self->pricings[s].class->limit - 1);
    cost->forward *= self->scales->seconds[s];
    cost->backward *= self->scales->seconds[s];
    cost->rest *= self->scales->seconds[s];
    self->up[s] = stage_model_transfer(self->model, pipeline->micro_batches, stage->first_unit,
                                       stage->place.first, false);
    self->down[s] = stage_model_transfer(self->model, pipeline->micro_batches, stage->first_unit,
                                         stage->place.first, true);
}

/* Returns the seconds, with a penalty for missing memory. */
static double seconds_of(const Balance *self, const PipelineLayout *pipeline) {
    double excess = 0;
    for (int32_t s = 0; s < pipeline->stage_count; s++) excess += self->excess[s];
    double seconds =
        stage_model_clock(self->costs, self->up, self->down, pipeline->stage_count, pipeline->micro_batches);
    return excess > 0 ? seconds * (10 + 10 * excess) : seconds;
}

/* Moves the cut before stage s by so many units; false where a stage would have none. */
static bool move(Balance *self, PipelineLayout *pipeline, int32_t s, int32_t units) {
    StageLayout *before = &pipeline->stages[s - 1], *stage = &pipeline->stages[s];
    int32_t cut = stage->first_unit + units;
    if (cut <= before->first_unit || cut >= stage->end_unit) return false;
    before->end_unit = stage->first_unit = cut;
    price(self, pipeline, s - 1);
    price(self, pipeline, s);
    return true;
}

static bool open_pricings(Balance *self, Arena *arena, const PipelineLayout *pipeline) {
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        const StageLayout *stage = &pipeline->stages[s];
        if (!stage_pricing_open(&self->pricings[s], self->model, arena, pipeline->micro_batches,
                                stage->place.class, &stage->strategy))
            return false;
        price(self, pipeline, s);
    }
    return true;
}

/* Makes one pass over all cuts and pairs of neighbouring cuts. Returns whether the step became shorter. */
static bool pass(Balance *self, PipelineLayout *pipeline, double *best) {
    bool moved = false;
    for (int32_t s = 1; s < pipeline->stage_count; s++)
        for (int32_t end = s; end < pipeline->stage_count; end++)
            for (int32_t units = -FARTHEST; units <= FARTHEST; units++) {
                int32_t done = s;
                while (units != 0 && done <= end && move(self, pipeline, done, units)) done++;
                double seconds = done > end ? seconds_of(self, pipeline) : INFINITY;
                if (units != 0 && seconds < *best) {
                    *best = seconds;
                    moved = true;
                    continue;
                }
                while (units != 0 && done > s) move(self, pipeline, --done, -units);
            }
    return moved;
}

bool pipeline_balance(const StageModel *model, PipelineLayout *pipeline, const PipelineScales *scales) {
    Arena arena = {0};
    Balance self = {.model = stage_model_of(model, pipeline), .scales = scales};
    bool moved = false;
    if (open_pricings(&self, &arena, pipeline)) {
        double best = seconds_of(&self, pipeline);
        for (int32_t round = 0; round < MOST_ROUNDS && pass(&self, pipeline, &best); round++) moved = true;
        pipeline->seconds = best;
    }
    arena_free(&arena);
    return moved;
}

void pipeline_scales(PipelineScales *scales, const StageModel *model, const PipelineLayout *pipeline,
                     double seconds, const double *busy, const double *peak_bytes) {
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        StageCost cost;
        scales->seconds[s] = scales->bytes[s] = 1;
        if (!stage_model_cost(stage_model_of(model, pipeline), pipeline->micro_batches, &pipeline->stages[s],
                              &cost))
            continue;
        double estimated = pipeline->micro_batches * (cost.forward + cost.backward) + cost.rest;
        double bytes =
            cost.fixed_bytes + schedule_kept_for_backward(pipeline->stage_count, s, pipeline->micro_batches) *
                                   cost.iteration_bytes;
        if (estimated > 0) scales->seconds[s] = fmin(fmax(busy[s] / estimated, 0.5), 2);
        if (bytes > 0) scales->bytes[s] = peak_bytes[s] / bytes;
    }
    /* Scales the recursion to the simulated value. */
    Arena arena = {0};
    Balance self = {.model = stage_model_of(model, pipeline), .scales = scales};
    if (open_pricings(&self, &arena, pipeline)) {
        double estimated =
            stage_model_clock(self.costs, self.up, self.down, pipeline->stage_count, pipeline->micro_batches);
        for (int32_t s = 0; s < pipeline->stage_count && estimated > 0; s++)
            scales->seconds[s] *= seconds / estimated;
    }
    arena_free(&arena);
}
