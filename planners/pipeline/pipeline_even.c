/* Lists even pipelines: devices are dealt to each number of stages in equal parts, with and without a tensor
 * axis. The tables estimate the step for each number of micro-batches, with the least level of ZeRO that
 * fits. The fastest few are kept.
 */
#include "planners/pipeline/pipeline_even.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planners/baselines/even_pipeline.h"
#include "planners/pipeline/stage_model.h"

typedef struct EvenLister {
    const StageModel *model;
    PipelineEven *kept; /* [most] quickest first */
    int32_t count, most;
} EvenLister;

/* Returns the unit that begins nearest to an instruction. */
static int32_t nearest_unit(const LayerCosts *costs, int32_t instruction) {
    int32_t best = 0;
    for (int32_t u = 1; u < costs->units.count; u++)
        if (abs(costs->units.cuts[u] - instruction) < abs(costs->units.cuts[best] - instruction)) best = u;
    return best;
}

/* Stages and places by the cuts; false where a stage has no unit or may not be there. */
static bool deal(const StageModel *model, PipelineEven *even, int32_t stages) {
    const LayerCosts *costs = model->costs;
    int32_t width = costs->cluster->device_count / stages;
    even->pipeline = (PipelineLayout){.stage_count = stages};
    for (int32_t s = 0; s < stages; s++) {
        StageLayout *stage = &even->pipeline.stages[s];
        stage->first_unit = s == 0 ? 0 : nearest_unit(costs, even->cuts[s]);
        stage->end_unit = s + 1 == stages ? costs->units.count : nearest_unit(costs, even->cuts[s + 1]);
        if (stage->end_unit <= stage->first_unit) return false;
        if (!stage_model_range(model, s * width, width, &stage->place)) return false;
    }
    return true;
}

/* Keeps the pipeline in its fastest number of micro-batches, with the least level of ZeRO that fits. */
static void keep_quickest(EvenLister *self, const PipelineEven *even, int32_t tensor) {
    const int32_t data = even->pipeline.stages[0].place.width / tensor;
    PipelineEven best = *even, changed = *even;
    PipelineLayout *pipeline = &changed.pipeline;
    best.pipeline.seconds = INFINITY;
    for (int32_t n = 0; n < self->model->number_count; n++) {
        double excess = 1;
        pipeline->micro_batches = self->model->numbers[n];
        for (int32_t storage = 0; storage <= (data > 1 ? 3 : 0) && excess > 0; storage++) {
            const StageStrategy strategy = {.tensor = tensor, .storage = (uint8_t)storage};
            for (int32_t s = 0; s < pipeline->stage_count; s++) pipeline->stages[s].strategy = strategy;
            pipeline->seconds = stage_model_seconds(self->model, pipeline, &excess);
        }
        if (excess <= 0 && pipeline->seconds < best.pipeline.seconds) best = changed;
    }
    if (!isfinite(best.pipeline.seconds)) return;
    int32_t at = self->count; /* the quickest are kept, in order */
    while (at > 0 && self->kept[at - 1].pipeline.seconds > best.pipeline.seconds) at--;
    if (at == self->most) return;
    if (self->count < self->most) self->count++;
    memmove(&self->kept[at + 1], &self->kept[at], (size_t)(self->count - 1 - at) * sizeof best);
    self->kept[at] = best;
}

AmStatus pipeline_even_list(PipelineEven *pipelines, int32_t most, int32_t *count, const StageModel *model,
                            AmError *error) {
    EvenLister self = {.model = model, .kept = pipelines, .most = most};
    const Cluster *cluster = model->costs->cluster;
    const int32_t devices = cluster->device_count, server = cluster->servers[0].device_count;
    const Degrees *degrees = &model->settings.degrees;
    int32_t last =
        degrees->stages > EVEN_PIPELINE_MOST_STAGES ? PIPELINE_MOST_STAGES : EVEN_PIPELINE_MOST_STAGES;
    int32_t tensor = degrees->tensor > 1 ? degrees->tensor : server;
    for (int32_t stages = 2; stages <= last && most > 0; stages++) {
        int32_t cuts[STAGES_MOST + 1];
        PipelineEven even;
        bool found;
        if (devices % stages != 0 || !degrees_allow_stages(degrees, stages)) continue;
        TRY(even_pipeline_cuts(cuts, &found, model->costs->context, stages, 1, error));
        if (!found) continue;
        memcpy(even.cuts, cuts, sizeof *cuts * (size_t)(stages + 1));
        if (!deal(model, &even, stages)) continue;
        keep_quickest(&self, &even, 1);
        if (tensor > 1 && devices % (stages * tensor) == 0) keep_quickest(&self, &even, tensor);
    }
    *count = self.count;
    return AM_OK;
}

/* The largest part of a device's limit that memory by the tables may lack, which are about as wrong. */
#define MOST_EXCESS 0.1

/* Improves the estimate of a baseline by all numbers of micro-batches of its pipeline with these stages. */
static void estimate_numbers(BaselineEstimate *estimate, const StageModel *model, PipelineEven *even,
                             Baseline baseline, int32_t tensor) {
    PipelineLayout *pipeline = &even->pipeline;
    const bool is_selective = baseline_recompute(baseline) == BASELINE_RECOMPUTES_ATTENTION;
    const int32_t levels = model->costs->recompute.levels.count;
    StageStrategy strategy = {.tensor = tensor, .splits_sequence = is_selective && tensor > 1};
    if (baseline == BASELINE_ZERO3_FULL) strategy.storage = 3;
    for (int32_t n = 0; n < model->number_count; n++) {
        double seconds = 0, excess = 0;
        pipeline->micro_batches = model->numbers[n];
        for (int32_t k = 0; k <= is_selective; k++) {
            double lacking;
            strategy.recompute = k == 1                       ? RECOMPUTE_NONE
                                 : is_selective && levels > 0 ? RECOMPUTE_LEVELS
                                                              : RECOMPUTE_FULL;
            for (int32_t s = 0; s < pipeline->stage_count; s++) pipeline->stages[s].strategy = strategy;
            seconds = stage_model_seconds(model, pipeline, &lacking);
            if (k == 0) excess = lacking;
        }
        if (excess > MOST_EXCESS) seconds = INFINITY;
        if (estimate->micro_batches > 0 && !(seconds < estimate->seconds)) continue;
        *estimate = (BaselineEstimate){.seconds = seconds, .micro_batches = pipeline->micro_batches};
    }
}

AmStatus pipeline_estimate_recomputed(BaselineEstimate estimates[BASELINE_COUNT], const StageModel *model,
                                      AmError *error) {
    const Cluster *cluster = model->costs->cluster;
    const int32_t devices = cluster->device_count, server = cluster->servers[0].device_count;
    for (int32_t stages = 1; stages <= EVEN_PIPELINE_MOST_STAGES; stages++) {
        PipelineEven even;
        bool found = true;
        if (devices % stages != 0 || !degrees_allow_stages(&model->settings.degrees, stages)) continue;
        if (stages > 1) TRY(even_pipeline_cuts(even.cuts, &found, model->costs->context, stages, 1, error));
        if (!found || !deal(model, &even, stages)) continue;
        for (int32_t e = 0; e < BASELINE_COUNT; e++) {
            const Baseline baseline = (Baseline)e, without = baseline_without_recompute(baseline);
            bool is_wide = without == BASELINE_ZERO3 || without == BASELINE_EVEN_PIPELINE;
            int32_t tensor = is_wide ? 1 : server;
            if (baseline_recompute(baseline) == BASELINE_RECOMPUTES_NOTHING) continue;
            if (baseline_has_stages(baseline) != (stages > 1) || devices % (stages * tensor) != 0) continue;
            estimate_numbers(&estimates[e], model, &even, baseline, tensor);
        }
    }
    return AM_OK;
}
