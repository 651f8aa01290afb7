/* Common code of tests of the dynamic program over stages: costs of the stages of a small model on
 * a cluster. */
#ifndef TESTS_SUPPORT_STAGES_CASE_H
#define TESTS_SUPPORT_STAGES_CASE_H

#include "model_case.h"

#include "planners/pipeline/stage_model.h"

#define STAGES_FRACTION 0.9

typedef struct StagesCase {
    Arena arena;
    PlanContext *context;
    Cluster *cluster;
    LayerCosts *costs;
    StageModel *model;
} StagesCase;

static inline void open_stages(StagesCase *self, const char *model, const char *cluster,
                               int32_t micro_batches) {
    const ProblemSettings of_problem = {
        .space = SPACE_AUTO, .constraints.memory_fraction = STAGES_FRACTION, .budget = {.limit = 1}};
    const StageModelSettings settings = {.memory_fraction = STAGES_FRACTION, .may_shard_storage = true};
    AmError error = {0};
    *self = (StagesCase){.context = read_model(model)};
    assert_int_equal(cluster_read(&self->cluster, &self->arena, cluster, &error), AM_OK);
    if (layer_costs_open(&self->costs, self->context, self->cluster, &of_problem, NULL, &error) != AM_OK ||
        stage_model_open(&self->model, self->costs, &micro_batches, 1, &settings, &error) != AM_OK)
        fail_msg("%s", error.text);
}

static inline void close_stages(StagesCase *self) {
    stage_model_close(self->model);
    layer_costs_close(self->costs);
    cluster_free(self->cluster);
    plan_context_free(self->context);
    arena_free(&self->arena);
}

/* The fastest strategy for a stage, by the objective of the program. */
static inline bool best_stage(const StagesCase *self, int32_t micro_batches, StageLayout *stage, int32_t kept,
                              StageCost *best) {
    double limit = self->model->classes[stage->place.class].limit;
    bool found = false;
    if (kept > micro_batches) kept = micro_batches;
    for (int32_t k = 0; k < self->model->tensor_count; k++)
        for (int32_t sequence = 0; sequence < 2; sequence++)
            for (uint8_t storage = 0; storage <= 3; storage++) {
                StageCost cost;
                stage->strategy = (StageStrategy){
                    .tensor = self->model->tensors[k], .splits_sequence = sequence == 1, .storage = storage};
                if (storage > 0 && stage->place.width == stage->strategy.tensor) continue;
                if (!stage_model_cost(self->model, micro_batches, stage, &cost)) continue;
                if (cost.fixed_bytes + kept * cost.iteration_bytes > limit) continue;
                double value = cost.forward + cost.backward + cost.rest / micro_batches;
                if (found && value >= best->forward + best->backward + best->rest / micro_batches) continue;
                *best = cost;
                found = true;
            }
    return found;
}

#endif
