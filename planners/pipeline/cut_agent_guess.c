/* Asks the cut agent for pipelines: units of layers become a chain (cut_agent/chain.h), for each number of
 * micro-batches and stages. The tables estimate the pipelines that it cuts, and the fastest few are kept.
 */
#include "planners/pipeline/cut_agent_guess.h"

#include <math.h>

#include "planners/cut_agent/chain_cluster.h"
#include "planners/pipeline/stage_model.h"

enum { MOST_STAGES = 8, STORAGES = 4, WIDTH = 4 };

/* Fills the chain with the units' costs on the first place of that width. */
static bool fill_chain(Chain *chain, ChainProblem *problem, const StagePricing *pricing, double rate,
                       const double *crossing) {
    double kept = 0, reduced = 0;
    for (int32_t u = 0; u < chain->count; u++) {
        const UnitCost *unit = &pricing->units[u];
        chain->forward[u + 1] = chain->forward[u] + unit->forward * rate;
        chain->backward[u + 1] = chain->backward[u] + unit->backward * rate;
        chain->stored[u + 1] = chain->stored[u] + unit->bytes.kept * pricing->data;
        chain->weight[u + 1] = chain->weight[u] + unit->bytes.gradients;
        if (u + 1 < chain->count) chain->activation[u + 1] = crossing[u + 1] / pricing->micro_batches;
        kept += unit->bytes.weights + unit->bytes.gradients + unit->bytes.optimizer;
        reduced += unit->bytes.gradients;
    }
    problem->weight_factor = reduced > 0 ? kept / reduced : 0;
    return chain->forward[chain->count] + chain->backward[chain->count] > 0;
}

/* Makes the chain of the model's layers and the problem on it. Returns false if the tables have no stages of
 * that width. */
static bool cut_agent_layers(Chain *chain, ChainProblem *problem, Arena *arena, const StageModel *model,
                             int32_t micro_batches, int32_t stages) {
    const LayerCosts *costs = model->costs;
    const Cluster *cluster = costs->cluster;
    const StageStrategy strategy = {.tensor = 1};
    DeviceRange place;
    StagePricing pricing;
    *problem = (ChainProblem){.chain = chain, .stages = stages, .micro_batches = micro_batches};
    if (!stage_model_range(model, 0, cluster->device_count / stages, &place) ||
        !stage_pricing_open(&pricing, model, arena, micro_batches, place.class, &strategy) ||
        chain_cluster_units(problem, cluster, CUT_AGENT_MOST_UNITS, model->settings.memory_fraction, NULL) !=
            AM_OK ||
        chain_create(chain, arena, costs->units.count, NULL) != AM_OK)
        return false;
    double rate = 0;
    int32_t devices = 0;
    for (int32_t k = 0; k < problem->unit_count && devices < place.width; k++) {
        rate += problem->units[k].rate;
        devices += problem->units[k].devices;
    }
    return fill_chain(chain, problem, &pricing, rate * place.width / devices, costs->units.crossing) &&
           chain_problem_prepare(problem, NULL) == AM_OK;
}

AmStatus cut_agent_module(Chain *chain, ChainProblem *problem, Arena *arena, const PlanContext *context,
                          const Cluster *cluster, int32_t micro_batches, int32_t stages, AmError *error) {
    const ProblemSettings settings = problem_settings(SPACE_AUTO, CLUSTER_DEFAULT_MEMORY_FRACTION);
    const StageModelSettings of_model = {.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION};
    LayerCosts *costs = NULL;
    StageModel *model = NULL;
    AmStatus status;
    TRY_OR_FAIL(layer_costs_open(&costs, context, cluster, &settings, NULL, error));
    TRY_OR_FAIL(stage_model_open(&model, costs, &micro_batches, 1, &of_model, error));
    if (!cut_agent_layers(chain, problem, arena, model, micro_batches, stages))
        status = am_fail(error, AM_ERROR_INFEASIBLE, context->module->source,
                         "no %d stages of equal width on %s with %d micro-batches", stages, cluster->name,
                         micro_batches);
fail:
    stage_model_close(model);
    layer_costs_close(costs);
    return status;
}

/* Makes the pipeline with the plan's cuts. Returns false if a stage is not allowed on its devices. */
static bool place_stages(PipelineLayout *pipeline, const StageModel *model, const ChainProblem *problem,
                         const ChainPlan *plan) {
    int32_t device = 0;
    *pipeline = (PipelineLayout){.micro_batches = problem->micro_batches, .stage_count = plan->stages};
    for (int32_t s = 0; s < plan->stages; s++) {
        int32_t width = 0;
        for (int32_t k = plan->units[s]; k < plan->units[s + 1]; k++) width += problem->units[k].devices;
        pipeline->stages[s].first_unit = plan->places[s];
        pipeline->stages[s].end_unit = plan->places[s + 1];
        if (!stage_model_range(model, device, width, &pipeline->stages[s].place)) return false;
        device += width;
    }
    return true;
}

/* Gives all stages the quickest strategy with which they fit; false: none. */
static bool choose_strategy(PipelineLayout *pipeline, const StageModel *model) {
    StageStrategy best = {0};
    pipeline->seconds = INFINITY;
    for (int32_t t = 0; t < model->tensor_count; t++)
        for (int32_t storage = 0; storage < (model->settings.may_shard_storage ? STORAGES : 1); storage++) {
            const StageStrategy strategy = {.tensor = model->tensors[t], .storage = (uint8_t)storage};
            double excess;
            for (int32_t s = 0; s < pipeline->stage_count; s++) pipeline->stages[s].strategy = strategy;
            double seconds = stage_model_seconds(model, pipeline, &excess);
            if (!(seconds < pipeline->seconds) || excess > 0) continue;
            pipeline->seconds = seconds;
            best = strategy;
        }
    for (int32_t s = 0; s < pipeline->stage_count; s++) pipeline->stages[s].strategy = best;
    return pipeline->seconds < INFINITY;
}

/* Keeps the quickest `most`, in order. */
static void keep(PipelineLayout *pipelines, int32_t most, int32_t *count, const PipelineLayout *pipeline) {
    int32_t at = *count;
    while (at > 0 && pipelines[at - 1].seconds > pipeline->seconds) at--;
    if (at == most) return;
    if (*count < most) ++*count;
    for (int32_t k = *count - 1; k > at; k--) pipelines[k] = pipelines[k - 1];
    pipelines[at] = *pipeline;
}

AmStatus cut_agent_guess(PipelineLayout *pipelines, int32_t most, int32_t *count, const StageModel *model,
                         Agent *agent, AmError *error) {
    Arena arena = {0};
    AmStatus status = AM_OK;
    int32_t most_stages = model->costs->cluster->device_count;
    if (most_stages > MOST_STAGES) most_stages = MOST_STAGES;
    *count = 0;
    ChainProblem *problem = ARENA_ARRAY(&arena, ChainProblem, 1);
    if (!problem) status = am_fail_memory(error, sizeof(*problem));
    for (int32_t m = 0; m < model->number_count && status == AM_OK; m++)
        for (int32_t stages = 2; stages <= most_stages && status == AM_OK; stages++) {
            ArenaMark mark = arena_mark(&arena);
            AmError refusal = {0};
            PipelineLayout pipeline;
            ChainPlan plan;
            Chain chain;
            if (cut_agent_layers(&chain, problem, &arena, model, model->numbers[m], stages)) {
                status = cut_agent_plan(&plan, problem, agent, WIDTH, &refusal);
                if (status == AM_OK && place_stages(&pipeline, model, problem, &plan) &&
                    choose_strategy(&pipeline, model))
                    keep(pipelines, most, count, &pipeline);
            }
            if (status == AM_ERROR_INFEASIBLE) status = AM_OK; /* these stages do not fit; others may */
            else am_pass_error(status, &refusal, error);
            arena_release(&arena, mark);
        }
    arena_free(&arena);
    return status;
}
