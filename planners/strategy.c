/* A given strategy (degrees of data, tensor and pipeline parallelism, schedule, ZeRO) as a plan, without a
 * search. */
#include "planners/strategy.h"

#include <math.h>
#include <string.h>

#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/baselines/layer_modules.h"
#include "planners/baselines/layer_spans.h"
#include "propagation/stages/stages.h"

/* ---- cuts between layers ---- */

/* Before the layers there is a table, after them a norm and a table. */
enum { TABLES_BEFORE = 1, TABLES_AFTER = 2 };

/* Returns the number of layers before part `part`, where tables count as layers: equal parts, or the first
 * ones with one more. */
static int32_t layers_before_with_tables(int32_t layers, int32_t parts, int32_t part) {
    int32_t all = layers + TABLES_BEFORE + TABLES_AFTER, least = all / parts, larger = all % parts;
    int32_t before = part * least + (part < larger ? part : larger) - TABLES_BEFORE;
    return before < layers ? before : layers;
}

/* Returns the number of layers before part `part`: equal parts, or first and last ones with one less. */
static int32_t layers_before(int32_t layers, int32_t parts, int32_t part) {
    int32_t most = (layers + parts - 1) / parts, lacking = most * parts - layers;
    int32_t in_front = lacking / 2, after = lacking - in_front; /* parts with one less */
    int32_t reduced = part < in_front ? part : in_front;
    if (part > parts - after) reduced += part - (parts - after);
    return part * most - reduced;
}

/* Finds the first instructions of parts of equal numbers of layers: cuts[p] is that of part p, the last one
 * the end of the entry. The first and the last part may be the tables alone. AM_ERROR_INFEASIBLE: there are
 * too few layers, or no cut between two of them. */
static AmStatus strategy_cuts(int32_t *cuts, const PlanContext *primary, const LayerSpans *spans,
                              int32_t parts, bool counts_tables, AmError *error) {
    int32_t count = spans->count;
    if (count == 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, primary->module->source,
                       "stages of a strategy have whole layers, and no paths of weights number them (as in "
                       "layer[0], layer[1]; a loop over stacked weights, as of scan, cannot be cut)");
    if (count + 2 < parts)
        return am_fail(error, AM_ERROR_INFEASIBLE, primary->module->source,
                       "layers: %d cannot be cut into %d stages or chunks", (int)count, (int)parts);
    cuts[0] = 0;
    cuts[parts] = spans->work.count;
    for (int32_t p = 1; p < parts; p++) {
        int32_t layer =
            counts_tables ? layers_before_with_tables(count, parts, p) : layers_before(count, parts, p);
        int32_t places[2];
        layer_spans_boundary(spans, layer, places);
        if (layer == 0) places[0] = 1; /* the first part is the tables */
        if (places[0] <= cuts[p - 1]) places[0] = cuts[p - 1] + 1;
        cuts[p] = layer_spans_cut(spans, places[0], places[1]);
        if (cuts[p] < 0)
            return am_fail(error, AM_ERROR_INFEASIBLE, primary->module->source,
                           "no cut between layers %d and %d, for %d stages or chunks", (int)layer - 1,
                           (int)layer, (int)parts);
    }
    return AM_OK;
}

/* ---- recomputation ---- */

/* Adds the layers of a part, from the first on, as ranges of their own; `from` is the first of all layers
 * that may be in the part, and is then the first one after it. */
static AmStatus add_recomputed(PlanRecomputation *recompute, const PlanContext *primary,
                               const LayerSpans *spans, int32_t begin, int32_t end, int32_t most,
                               int32_t *from, AmError *error) {
    for (int32_t count = 0; *from < spans->count && spans->layers[*from].first < end; (*from)++, count++) {
        int32_t before[2], after[2];
        if (count >= most) continue;
        layer_spans_boundary(spans, *from, before);
        layer_spans_boundary(spans, *from + 1, after);
        if (before[0] < begin) before[0] = begin;
        if (after[1] > end) after[1] = end;
        int32_t first = layer_spans_cut(spans, before[0], before[1]);
        int32_t last = after[1] == end ? end : layer_spans_cut(spans, after[0], after[1]);
        if (first < 0 || last < 0)
            return am_fail(error, AM_ERROR_INFEASIBLE, primary->module->source,
                           "layer %d cannot be recomputed by itself: no cut is before or after it",
                           (int)*from);
        recompute->ranges[recompute->range_count][0] = first;
        recompute->ranges[recompute->range_count++][1] = last;
    }
    return AM_OK;
}

/* The parts of a strategy, a stage or a chunk each, and their recomputation. */
typedef struct StrategyParts {
    int32_t count;
    int32_t cuts[STAGES_MOST + 1];        /* cuts[p] is the first instruction of part p */
    PlanRecomputation recompute;          /* of all parts, in order */
    int32_t first_range[STAGES_MOST + 1]; /* of each part in `recompute` */
} StrategyParts;

/* Finds the cuts, and the ranges that are recomputed. */
static AmStatus find_parts(StrategyParts *parts, Arena *arena, const PlanContext *primary,
                           const Strategy *strategy, AmError *error) {
    LayerSpans spans;
    parts->count = strategy->stages * strategy->chunks;
    parts->recompute = (PlanRecomputation){0};
    if (parts->count > STAGES_MOST)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "%d stages of %d chunks: at most %d parts can be made",
                       (int)strategy->stages, (int)strategy->chunks, STAGES_MOST);
    if (parts->count == 1 && strategy->recomputed_layers == 0) return AM_OK;
    TRY(layer_spans_find(&spans, arena, primary, error));
    TRY(strategy_cuts(parts->cuts, primary, &spans, parts->count, strategy->counts_tables, error));
    if (strategy->recomputed_layers == 0) return AM_OK;
    parts->recompute.ranges = arena_alloc(arena, sizeof *parts->recompute.ranges * (size_t)spans.count);
    if (arena->failed) return am_fail_memory(error, spans.count);
    for (int32_t p = 0, layer = 0; p < parts->count; p++) {
        TRY(add_recomputed(&parts->recompute, primary, &spans, parts->cuts[p], parts->cuts[p + 1],
                           strategy->recomputed_layers, &layer, error));
        parts->first_range[p + 1] = parts->recompute.range_count;
    }
    if (strategy->recomputed_modules == 0) return AM_OK;
    return layer_modules_save(&parts->recompute, arena, primary, &spans, strategy->recomputed_modules, error);
}

/* ---- the plan ---- */

/* Returns whether a shape has a last dimension of this size, after two others. */
static bool has_last(const IrShape *shape, int64_t size) {
    return shape->type != DTYPE_TUPLE && shape->rank > 2 && shape->dimensions[shape->rank - 1] == size;
}

/* Returns whether an instruction but a product makes or reads a value with a last dimension of this size. */
static bool touches(const IrModule *module, const IrInstruction *instruction, int64_t size) {
    if (ir_is_matrix_product(instruction->opcode)) return false;
    bool found = has_last(&instruction->shape, size);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        found |= has_last(&module->instructions[instruction->operands[k]].shape, size);
    return found;
}

/* Adds overrides that replicate the values with a last dimension of this size on an axis. */
static AmStatus replicate_values(PlanStage *stage, Arena *arena, const PlanContext *context, int64_t size,
                                 int32_t axis, AmError *error) {
    const IrModule *module = context->canonical;
    int32_t capacity = stage->override_count;
    for (int32_t i = 0; i < module->instruction_count; i++) {
        if (!touches(module, &module->instructions[i], size) || !context->split_options->live[i] ||
            context->rules->rules[i].factor_count == 0 ||
            plan_instruction_of(context, plan_number_of(context, i)) != i)
            continue;
        ARENA_RESERVE(arena, stage->overrides, stage->override_count, capacity);
        if (!stage->overrides) return am_fail_memory(error, capacity);
        PlanOverride *override = &stage->overrides[stage->override_count++];
        *override = (PlanOverride){.instruction = i, .has_factors = true};
        for (int32_t k = 0; k < MESH_MAX_AXES; k++) override->factors[k] = k == axis ? -1 : PLAN_NO_OVERRIDE;
    }
    return AM_OK;
}

/* Makes a stage on a mesh data x context x tensor of devices 0, 1, ..., by the rules of the baselines. */
static AmStatus make_stage(PlanStage *stage, Arena *arena, const PlanContext *context, const Cluster *cluster,
                           const Strategy *strategy, double memory_fraction, AmError *error) {
    ProblemSettings settings = problem_settings(SPACE_AUTO, memory_fraction);
    settings.constraints.offloads_optimizer = strategy->offloads_optimizer;
    int32_t context_ways = strategy->context > 1 ? strategy->context : 1;
    int32_t count = strategy->data * context_ways * strategy->tensor, model = context_ways > 1 ? 2 : 1;
    Mesh mesh = {
        .axis_count = model + 1, .axes = {{.name = "data", .size = strategy->data}}, .device_count = count};
    if (model > 1) mesh.axes[1] = (MeshAxis){.name = "context", .size = context_ways};
    mesh.axes[model] = (MeshAxis){.name = "model", .size = strategy->tensor};
    StageProblem *problem = NULL;
    AxisPlan lists = {0};
    bool found = true;
    int32_t *devices = ARENA_ARRAY(arena, int32_t, count);
    if (!devices) return am_fail_memory(error, count);
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    AmStatus status;
    TRY_OR_FAIL(problem_create(&problem, context, cluster, &mesh, devices, &settings, error));
    if (strategy->tensor > 1) TRY_OR_FAIL(baseline_megatron(problem, model, &lists, &found, error));
    if (!found) {
        status = am_fail(error, AM_ERROR_INFEASIBLE, "",
                         "no weights can be split %d ways by the strict rules", (int)strategy->tensor);
        goto fail;
    }
    if (strategy->tensor > 1 && strategy->splits_sequence && !baseline_sequence(problem, model, &lists)) {
        status = am_fail(error, AM_ERROR_INFEASIBLE, "", "no sequence can be split %d ways",
                         (int)strategy->tensor);
        goto fail;
    }
    if (context_ways > 1 && !baseline_sequence(problem, 1, &lists)) {
        status =
            am_fail(error, AM_ERROR_INFEASIBLE, "", "no sequence can be split %d ways", (int)context_ways);
        goto fail;
    }
    if (strategy->data > 1 && !baseline_batch(problem, 0, &lists)) {
        status = am_fail(error, AM_ERROR_INFEASIBLE, "", "%d devices cannot share a micro-batch",
                         (int)strategy->data);
        goto fail;
    }
    if (strategy->data > 1) lists.storage[0] = (uint8_t)strategy->zero;
    if (context_ways > 1) lists.storage[1] = (uint8_t)strategy->zero;
    problem_stage(problem, &lists, arena, stage);
    stage->rounds_parts = strategy->rounds_parts;
    stage->all_reduces_gradients = strategy->all_reduces_gradients;
    stage->reduces_in_f32 = strategy->reduces_in_f32;
    if (strategy->gathered_size > 0 && strategy->tensor > 1)
        TRY_OR_FAIL(replicate_values(stage, arena, context, strategy->gathered_size, model, error));
    if (arena->failed) status = am_fail_memory(error, count);
fail:
    problem_free(problem);
    return status;
}

MicroBatchSettings strategy_batching(const Strategy *strategy) {
    return (MicroBatchSettings){.micro_batches = strategy->micro_batches,
                                .relaxations = strategy->rounds_sums ? 1u << RELAXATION_ROUNDED_SUMS : 0,
                                .separate_backward = strategy->stages > 1};
}

AmStatus strategy_recomputation(PlanRecomputation *recomputed, Arena *arena, const PlanContext *primary,
                                const Strategy *strategy, AmError *error) {
    StrategyParts parts = {0};
    *recomputed = (PlanRecomputation){0};
    if (strategy->recomputed_layers == 0) return AM_OK;
    TRY(find_parts(&parts, arena, primary, strategy, error));
    *recomputed = parts.recompute;
    return AM_OK;
}

AmStatus strategy_context(const PlanContext **context, PlanContext *primary, const Strategy *strategy,
                          AmError *error) {
    Arena scratch = {0};
    MicroBatchSettings batching = strategy_batching(strategy);
    AmStatus status;
    TRY_OR_FAIL(strategy_recomputation(&batching.recomputed, &scratch, primary, strategy, error));
    status = plan_context_for(context, primary, &batching, error);
fail:
    arena_free(&scratch);
    return status;
}

/* Makes the plan: a stage, its copies on the devices after it, cuts and recomputation. */
static AmStatus make_plan(Plan *plan, Arena *arena, const PlanContext *context, const Cluster *cluster,
                          const Strategy *strategy, double memory_fraction, AmError *error) {
    const SearchRequest request = {0};
    const SearchScope described = {.request = &request, .searcher = SEARCHER_BASELINE};
    StrategyParts parts = {0};
    PlanStage *inside = ARENA_ARRAY(arena, PlanStage, 1);
    if (!inside) return am_fail_memory(error, (int64_t)sizeof *inside);
    TRY(find_parts(&parts, arena, plan_context_primary(context), strategy, error));
    TRY(make_stage(inside, arena, context, cluster, strategy, memory_fraction, error));
    search_describe_plan(plan, context, cluster, &described);
    TRY(micro_batches_state_relaxations(plan, arena, context, error));
    plan->stages = inside;
    plan->stage_count = strategy->stages;
    plan->is_for_jax = strategy->is_for_jax;
    inside->kept_bytes = strategy->kept_bytes;
    if (strategy->stages > 1) {
        inside->range_count = strategy->chunks;
        plan->schedule = schedule_kind_name(strategy->schedule);
        TRY(even_pipeline_stages(&plan->stages, arena, inside, parts.cuts, strategy->stages, error));
    }
    plan->stages[strategy->stages - 1].kept_bytes += strategy->kept_outputs;
    /* Each stage has the ranges of its chunks. */
    for (int32_t s = 0; s < strategy->stages && parts.recompute.range_count > 0; s++) {
        PlanRecomputation *own = &plan->stages[s].recompute;
        *own = (PlanRecomputation){
            .ranges = arena_alloc(arena, sizeof *own->ranges * (size_t)(parts.recompute.range_count + 1)),
            .saved = ARENA_ARRAY(arena, int32_t, parts.recompute.saved_count + 1)};
        if (arena->failed) return am_fail_memory(error, parts.recompute.range_count);
        for (int32_t p = s; p < parts.count; p += strategy->stages)
            for (int32_t r = parts.first_range[p]; r < parts.first_range[p + 1]; r++) {
                memcpy(own->ranges[own->range_count++], parts.recompute.ranges[r],
                       sizeof *parts.recompute.ranges);
                for (int32_t k = 0; k < parts.recompute.saved_count; k++)
                    if (parts.recompute.saved[k] >= parts.recompute.ranges[r][0] &&
                        parts.recompute.saved[k] < parts.recompute.ranges[r][1])
                        own->saved[own->saved_count++] = parts.recompute.saved[k];
            }
    }
    return AM_OK;
}

AmStatus strategy_simulate(PlanCandidate *candidate, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, const Strategy *strategy, double memory_fraction,
                           AmError *error) {
    const SimulationOptions options = {.memory_fraction = memory_fraction};
    Arena scratch = {0}; /* the programs of all stages */
    Simulation *simulation;
    Plan *plan = ARENA_ARRAY(arena, Plan, 1);
    AmStatus status;
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    TRY_OR_FAIL(make_plan(plan, arena, context, cluster, strategy, memory_fraction, error));
    TRY_OR_FAIL(simulate_plan(&simulation, &scratch, context, plan, cluster, &options, error));
    TRY_OR_FAIL(simulation_predict(plan, arena, simulation, error));
    *candidate = (PlanCandidate){.plan = plan,
                                 .seconds = simulation->step_seconds,
                                 .fit = simulation->fit,
                                 .origin = PLAN_ORIGIN_BASELINE};
fail:
    arena_free(&scratch);
    return status;
}
