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
