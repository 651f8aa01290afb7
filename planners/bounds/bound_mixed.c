/* The bound of one-stage plans on devices of several types (proposition in bound_mixed.h): the sharding graph
 * with the seconds r(o) m(o) on operators. The bytes of parameters get a price g where copies of all of them
 * do not fit, and the best of some prices counts.
 */
#include "planners/bounds/bound_mixed.h"

#include <math.h>

#include "cost/relaxation/fusion_groups.h"
#include "cost/relaxation/graph_parts.h"
#include "cost/step/memory.h"
#include "planners/bounds/bound_of_work.h"

enum { MOST_WEIGHTS = 8, FIRST_WEIGHT = 1 };

/* Weights a of computing. Near 1 operators of partial sums, which may be omitted, cost little communication.
 */
static const double compute_weights[MOST_WEIGHTS] = {0.99, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.1};

/* Prices of all memory, in bounds without a price. */
static const double memory_prices[] = {0.5, 2, 8};

typedef struct MixedGraph {
    const BoundMixedSpace *space;
    ShardingGraph *model;
    Arena *arena;
} MixedGraph;

/* ---- seconds of labels ---- */

/* Returns the copies that an operator's label computes. */
static double copies_of_label(const MixedGraph *self, const ShardingGraphPart *part, int32_t label) {
    const ReshardCosts *reshards = self->model->reshards;
    double copies = 1;
    for (int32_t k = 0; k < reshards->axis_count; k++)
        if (sharding_graph_option(part, label, k).factor < 0) copies *= reshards->sizes[k];
    return copies;
}

/* Returns the copies of a tensor in a state; 1 where the state is not known. */
static double copies_of_state(const MixedGraph *self, ReshardState state) {
    const ReshardCosts *reshards = self->model->reshards;
    double copies = 1;
    for (int32_t k = 0; k < reshards->axis_count && state != RESHARD_ANY; k++)
        if (!sbp_is_split(reshard_axis_sbp(state, k))) copies *= reshards->sizes[k];
    return copies;
}

/* Returns the fraction of an operator's bytes that its result has. */
static double result_part(const MixedGraph *self, int32_t i) {
    const FactorRule *rule = &self->model->context->rules->rules[i];
    double all = 0, result = 0;
    for (int32_t slot = 0; slot <= rule->operand_count; slot++) {
        result = (double)ir_shape_bytes(rules_slot_shape(self->model->context->rules, i, slot));
        all += result;
    }
    return all > 0 ? result / all : 0;
}

/* Returns the fraction of a reduction's elements that no device has as a view. */
static double reduced_part(const MixedGraph *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->model->context->canonical, i);
    const IrShape *shape = split_options_array_shape(instruction);
    double results = fmax((double)ir_shape_elements(shape), 1);
    double elements = (double)ir_shape_elements(
        &ir_instruction(self->model->context->canonical, instruction->operands[0])->shape);
    return fmax(1 - self->space->cluster->device_count * results / fmax(elements, 1), 0);
}

/* Returns the least fraction of t(o) that all parts of one copy take. */
static double least_part(const MixedGraph *self, int32_t i, const ShardingGraphPart *part, int32_t label) {
    const PlanContext *context = self->model->context;
    IrOpcode opcode = ir_instruction(context->canonical, i)->opcode;
    bool has_partial = false, has_halo = false;
    for (int32_t k = 0; k < self->model->reshards->axis_count; k++) {
        const ShardingGraphOption option = sharding_graph_option(part, label, k);
        has_partial |= option.partial;
        has_halo |= option.factor >= 0 && context->rules->rules[i].factors[option.factor].halo;
    }
    if (ir_is_product(opcode)) return 1;
    if (has_partial && fusion_groups_may_vanish(context, i)) return 0;
    if (opcode == IR_REDUCE) return reduced_part(self, i);
    return has_halo ? result_part(self, i) : 1;
}

static double kept_bytes(const ShardingGraph *model) {
    double sum = 0;
    for (int32_t n = 0; n < model->node_count; n++)
        if (model->nodes[n].is_tensor) sum += model->parts->kept_bytes[model->nodes[n].instruction];
    return sum;
}

/* Returns the bytes of all devices that plans may fill. */
static double memory_limit(const BoundMixedSpace *space) {
    double sum = 0;
    for (int32_t d = 0; d < space->cluster->device_count; d++)
        sum += memory_usable(space->cluster, &d, 1, space->meshes->memory_fraction);
    return sum;
}

/* Sets the seconds r(o) m(o) of all operators, by label. */
static void set_operators(MixedGraph *self, const LeastWork *work) {
    for (int32_t n = 0; n < self->model->node_count; n++) {
        ShardingGraphNode *node = &self->model->nodes[n];
        if (node->is_tensor) continue;
        const ShardingGraphPart *part = &self->model->parts->parts[node->instruction];
        float *seconds = ARENA_ARRAY(self->arena, float, node->label_count);
        for (int32_t label = 0; seconds && label < node->label_count; label++)
            seconds[label] = (float)(work->seconds[n] * copies_of_label(self, part, label) *
                                     least_part(self, node->instruction, part, label));
        node->seconds = seconds;
    }
}

/* Sets g (r(p) b(p) - L) of all parameters for a price g of a byte: a kept one pays for its copies, and gets
 * its part of the price of all memory. */
static void set_parameters(MixedGraph *self, double byte_price) {
    double limit_part = memory_limit(self->space) / kept_bytes(self->model);
    for (int32_t n = 0; n < self->model->node_count; n++) {
        ShardingGraphNode *node = &self->model->nodes[n];
        if (!node->is_tensor) continue;
        double bytes = self->model->parts->kept_bytes[node->instruction];
        const ReshardState *states = self->model->parts->parts[node->instruction].produced_states;
        float *seconds = ARENA_ARRAY(self->arena, float, node->label_count);
        for (int32_t label = 0; seconds && label < node->label_count; label++)
            seconds[label] =
                (float)(byte_price * bytes * (copies_of_state(self, states[label]) - limit_part));
        node->seconds = seconds;
    }
}

/* Makes the graph of one mesh with seconds of computing, without a price of memory; in the arena. Its model
 * is NULL without a claim. */
static AmStatus create_graph(MixedGraph *self, Arena *arena, const BoundMixedSpace *space,
                             const LeastWork *work, const Mesh *mesh, AmError *error) {
    *self = (MixedGraph){.space = space, .arena = arena};
    if (!work->seconds || mesh->device_count != space->cluster->device_count) return AM_OK;
    TRY(sharding_graph_create_mixed(&self->model, arena, space->context, mesh, space->cluster,
                                    space->meshes->devices, error));
    if (self->model && self->model->node_count != work->count) self->model = NULL;
    if (self->model) set_operators(self, work);
    return arena->failed ? am_fail_memory(error, work->count) : AM_OK;
}

/* Returns the mean computing of a plan's devices by their weights, and their mean communication. */
static ShardingGraphCost mean_cost(const BoundMixedSpace *space, const LeastWork *work, const Plan *plan) {
    ShardingGraphCost cost = {0};
    for (int32_t d = 0; d < plan->device_count; d++) {
        int32_t type =
            (int32_t)(cluster_device_type(space->cluster, space->meshes->devices[d]) - space->cluster->types);
        cost.compute_seconds += work->type_weights[type] * plan->predicted[d].compute_seconds;
        cost.communication_seconds += plan->predicted[d].communication_seconds / plan->device_count;
    }
    return cost;
}

AmStatus bound_mixed_holds(bool *holds, const BoundMixedSpace *space, const Mesh *mesh, const Plan *plan,
                           AmError *error) {
    Arena arena = {0};
    MixedGraph graph = {0};
    LeastWork work;
    Assignment *assignment;
    *holds = false;
    AmStatus status = least_work_find(&work, &arena, space->context, space->cluster, error);
    if (status == AM_OK) status = create_graph(&graph, &arena, space, &work, mesh, error);
    if (status == AM_OK && graph.model)
        status = plan_assign(&assignment, &arena, space->context, &plan->stages[0], error);
    if (status == AM_OK && graph.model) {
        const ShardingGraphCost cost = sharding_graph_cost(graph.model, assignment);
        const ShardingGraphCost mean = mean_cost(space, &work, plan);
        *holds = plan_bound_holds(&cost, &mean);
    }
    arena_free(&arena);
    return status;
}

/* ---- the bound ---- */

typedef struct MixedMeshes {
    const BoundMixedSpace *space;
    const LeastWork *work;
} MixedMeshes;

/* Finds the best bound of a graph over the weights, from `*start`. */
static AmStatus bound_graph(double *seconds, const MixedGraph *graph, int32_t *start, AmError *error) {
    const BoundWeights weights = {compute_weights, MOST_WEIGHTS};
    ShardingGraphFold *fold;
    TRY(sharding_graph_fold(&fold, graph->arena, graph->model, error));
    if (graph->space->stop) sharding_graph_fold_watch(fold, graph->space->stop);
    *seconds = plan_bound_climb(fold, &weights, INFINITY, start);
    return AM_OK;
}

static AmStatus bound_mesh(double *seconds, const void *user, Arena *arena, int32_t k, AmError *error) {
    const MixedMeshes *self = user;
    int32_t start = FIRST_WEIGHT;
    MixedGraph graph;
    TRY(create_graph(&graph, arena, self->space, self->work, &self->space->meshes->of[k], error));
    if (!graph.model) return AM_OK;
    TRY(bound_graph(seconds, &graph, &start, error));
    double limit = memory_limit(self->space), first = *seconds / limit;
    bool lacks_memory = kept_bytes(graph.model) * self->space->cluster->device_count > limit;
    for (size_t p = 0; lacks_memory && p < sizeof memory_prices / sizeof *memory_prices; p++) {
        double priced;
        set_parameters(&graph, memory_prices[p] * first);
        if (arena->failed) return am_fail_memory(error, graph.model->node_count);
        TRY(bound_graph(&priced, &graph, &start, error));
        *seconds = fmax(*seconds, priced);
    }
    return AM_OK;
}

AmStatus plan_bound_mixed(double *seconds, const BoundMixedSpace *space, AmError *error) {
    Arena arena = {0};
    LeastWork work;
    const MixedMeshes meshes = {.space = space, .work = &work};
    double least = 0;
    AmStatus status = least_work_find(&work, &arena, space->context, space->cluster, error);
    if (status == AM_OK) status = plan_bound_meshes(&least, space->meshes->count, bound_mesh, &meshes, error);
    *seconds = status == AM_OK && isfinite(least) ? fmax(least, 0) : 0;
    arena_free(&arena);
    return status;
}
