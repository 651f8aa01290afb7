/* A given strategy (degrees of data, tensor and pipeline parallelism, schedule, ZeRO) as a plan, without a
 * search. */
#include "planners/strategy.h"

#include <math.h>

#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/baselines/layer_path.h"
#include "propagation/stages/stages.h"

/* ---- cuts between layers ---- */

/* Forward operators that read weights of one layer: from the first to the last of them. */
typedef struct LayerSpan {
    LayerPath path;
    int32_t first, last;
} LayerSpan;

/* The layers in the order of their first operators. Weights without a number are in none. */
static AmStatus find_layers(LayerSpan **layers, int32_t *count, Arena *arena, const PlanContext *whole,
                            AmError *error) {
    int32_t capacity = 0;
    *layers = NULL;
    *count = 0;
    for (int32_t i = 0; i < whole->rules->entry_count; i++) {
        const char *name = layer_weight_of(whole, i);
        LayerPath path = layer_path(name);
        if (!name[0] || path.number < 0) continue;
        int32_t k = *count;
        while (k > 0 && !(layer_path_is_same(&(*layers)[k - 1].path, &path) &&
                          (*layers)[k - 1].path.number == path.number))
            k--;
        if (k > 0) {
            (*layers)[k - 1].last = i;
            continue;
        }
        ARENA_RESERVE(arena, *layers, *count, capacity);
        if (!*layers) return am_fail_memory(error, capacity);
        (*layers)[(*count)++] = (LayerSpan){path, i, i};
    }
    return AM_OK;
}

/* Before the layers there is a table, behind them a norm and a table. */
enum { TABLES_BEFORE = 1, TABLES_BEHIND = 2 };

/* The number of layers before part `part`, where tables count as layers: equal parts, or the first ones with
 * one more. */
static int32_t layers_before_with_tables(int32_t layers, int32_t parts, int32_t part) {
    int32_t all = layers + TABLES_BEFORE + TABLES_BEHIND, least = all / parts, larger = all % parts;
    int32_t before = part * least + (part < larger ? part : larger) - TABLES_BEFORE;
    return before < layers ? before : layers;
}

/* The number of layers before part `part`: equal parts, or first and last ones with one less. */
static int32_t layers_before(int32_t layers, int32_t parts, int32_t part) {
    int32_t most = (layers + parts - 1) / parts, lacking = most * parts - layers;
    int32_t in_front = lacking / 2, behind = lacking - in_front; /* parts with one less */
    int32_t reduced = part < in_front ? part : in_front;
    if (part > parts - behind) reduced += part - (parts - behind);
    return part * most - reduced;
}

/* The first instruction from `first` on that reads a weight outside of the layers; the last one if none does.
 * A part behind the layers begins there at the latest, so that its backward pass has the loss's products. */
static int32_t first_table_reader(const PlanContext *whole, int32_t first, int32_t count) {
    for (int32_t i = first; i < count; i++) {
        const char *name = layer_weight_of(whole, i);
        if (name[0] && layer_path(name).number < 0) return i;
    }
    return count - 1;
}

/* The beginnings of parts of equal numbers of layers: cuts[p] is the first instruction of part p, and the
 * last one the end of the entry. The first and the last part may be the tables alone. AM_ERROR_INFEASIBLE:
 * there are too few layers, or no cut between two of them. */
static AmStatus strategy_cuts(int32_t *cuts, const PlanContext *whole, int32_t parts, bool counts_tables,
                              AmError *error) {
    Arena scratch = {0};
    PipelineWork work;
    LayerSpan *layers;
    int32_t count;
    AmStatus status;
    TRY_OR_FAIL(even_pipeline_work(&work, &scratch, whole, error));
    TRY_OR_FAIL(find_layers(&layers, &count, &scratch, whole, error));
    if (count == 0) {
        status = am_fail(error, AM_ERROR_INFEASIBLE, whole->module->source,
                         "stages of a strategy have whole layers, and no paths of weights number them (as in "
                         "layer[0], layer[1])");
        goto fail;
    }
    if (count + 2 < parts) {
        status = am_fail(error, AM_ERROR_INFEASIBLE, whole->module->source,
                         "%d layers cannot be cut into %d stages or chunks", (int)count, (int)parts);
        goto fail;
    }
    cuts[0] = 0;
    cuts[parts] = work.count;
    for (int32_t p = 1; p < parts; p++) {
        int32_t layer =
            counts_tables ? layers_before_with_tables(count, parts, p) : layers_before(count, parts, p);
        int32_t best = -1;
        int32_t first = layer > 0 ? layers[layer - 1].last + 1 : 1;
        int32_t last = layer < count ? layers[layer].first : first_table_reader(whole, first, work.count);
        for (int32_t i = first > cuts[p - 1] ? first : cuts[p - 1] + 1; i <= last; i++)
            if (work.is_cut[i] && (best < 0 || work.crossing[i] < work.crossing[best])) best = i;
        if (best < 0) {
            status = am_fail(error, AM_ERROR_INFEASIBLE, whole->module->source,
                             "no cut between layers %d and %d, for %d stages or chunks", (int)layer - 1,
                             (int)layer, (int)parts);
            goto fail;
        }
        cuts[p] = best;
    }
fail:
    arena_free(&scratch);
    return status;
}

/* ---- the plan ---- */

static bool has_last(const IrShape *shape, int64_t size) {
    return shape->type != DTYPE_TUPLE && shape->rank > 2 && shape->dimensions[shape->rank - 1] == size;
}

/* Returns whether an instruction but a product makes or reads a value with a last dimension of this size. */
static bool touches(const IrModule *module, const IrInstruction *instruction, int64_t size) {
    if (instruction->opcode == IR_DOT) return false;
    bool found = has_last(&instruction->shape, size);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        found |= has_last(&module->instructions[instruction->operands[k]].shape, size);
    return found;
}

/* Adds overrides that keep such instructions from splitting anything over the axis. */
static AmStatus keep_whole(PlanStage *stage, Arena *arena, const PlanContext *context, int64_t size,
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

/* The lists of a mesh data x context x tensor of devices 0, 1, ... */
static AmStatus make_stage(PlanStage *stage, Arena *arena, const PlanContext *context, const Cluster *cluster,
                           const Strategy *strategy, double memory_fraction, AmError *error) {
    const ProblemSettings settings = {
        .space = SPACE_AUTO, .memory_fraction = memory_fraction, .budget = {.limit = 1}};
    int32_t context_ways = strategy->context > 1 ? strategy->context : 1;
    int32_t count = strategy->data * context_ways * strategy->tensor, model = context_ways > 1 ? 2 : 1;
    Mesh mesh = {
        .axis_count = model + 1, .axes = {{.name = "data", .size = strategy->data}}, .device_count = count};
    if (model > 1) mesh.axes[1] = (MeshAxis){.name = "context", .size = context_ways};
    mesh.axes[model] = (MeshAxis){.name = "model", .size = strategy->tensor};
    Problem *problem = NULL;
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
    problem_stage(problem, &lists, arena, stage);
    stage->rounds_parts = strategy->rounds_parts;
    stage->reduces_whole = strategy->reduces_whole;
    stage->reduces_wide = strategy->reduces_wide;
    if (strategy->gathered_size > 0 && strategy->tensor > 1)
        TRY_OR_FAIL(keep_whole(stage, arena, context, strategy->gathered_size, model, error));
    if (arena->failed) status = am_fail_memory(error, count);
fail:
    problem_free(problem);
    return status;
}

MicroBatching strategy_batching(const Strategy *strategy) {
    return (MicroBatching){.micro_batches = strategy->micro_batches,
                           .relaxations = strategy->rounds_sums ? 1u << RELAXATION_ROUNDED_SUMS : 0,
                           .separate_backward = strategy->stages > 1};
}

static AmStatus make_plan(Plan *plan, Arena *arena, const PlanContext *context, const Cluster *cluster,
                          const Strategy *strategy, double memory_fraction, AmError *error) {
    const SearchOptions described = {.searcher = SEARCHER_BASELINE};
    int32_t parts = strategy->stages * strategy->chunks, cuts[STAGES_MOST + 1];
    if (parts > STAGES_MOST)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "%d stages of %d chunks: at most %d parts can be made",
                       (int)strategy->stages, (int)strategy->chunks, STAGES_MOST);
    PlanStage *inside = ARENA_ARRAY(arena, PlanStage, 1);
    if (!inside) return am_fail_memory(error, (int64_t)sizeof *inside);
    TRY(make_stage(inside, arena, context, cluster, strategy, memory_fraction, error));
    search_describe_plan(plan, context, cluster, &described);
    TRY(micro_batches_state_relaxations(plan, arena, context, error));
    plan->stages = inside;
    plan->stage_count = strategy->stages;
    if (strategy->stages == 1) return AM_OK;
    TRY(strategy_cuts(cuts, plan_context_whole(context), parts, strategy->counts_tables, error));
    inside->range_count = strategy->chunks;
    plan->schedule = schedule_kind_name(strategy->schedule);
    return even_pipeline_stages(&plan->stages, arena, inside, cuts, strategy->stages, error);
}

AmStatus strategy_simulate(Plan **plan, Simulation **simulation, Arena *arena, const PlanContext *context,
                           const Cluster *cluster, const Strategy *strategy, double memory_fraction,
                           AmError *error) {
    *plan = ARENA_ARRAY(arena, Plan, 1);
    if (!*plan) return am_fail_memory(error, (int64_t)sizeof **plan);
    TRY(make_plan(*plan, arena, context, cluster, strategy, memory_fraction, error));
    TRY(simulate_plan(simulation, arena, context, *plan, cluster, memory_fraction, error));
    return simulation_predict(*plan, arena, *simulation, error);
}
