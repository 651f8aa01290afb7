/* The lower bound of one-stage plans on devices of several types: the sharding graph with the seconds of
 * bound_mixed.h. The bytes of parameters get a price where copies of all of them do not fit, and the best of
 * some prices counts. */
#include "planners/bounds/bound_mixed.h"

#include <math.h>

#include "base/system/parallel.h"
#include "cost/relaxation/fusion_groups.h"
#include "cost/relaxation/graph_parts.h"
#include "planners/bounds/bound_of_work.h"

enum { SWEEPS = 40, MOST_WEIGHTS = 8, FIRST_WEIGHT = 1 };

/* Weights a of computing. Near 1 operators of partial sums, which may be omitted, cost little communication.
 */
static const double compute_weights[MOST_WEIGHTS] = {0.99, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.1};

/* The simulator may round other than the graph. */
#define ROUNDING 1e-5

/* Prices of all memory, in bounds without a price. */
static const double memory_prices[] = {0.5, 2, 8};

typedef struct MixedGraph {
    const BoundMixedSpace *space;
    ShardingGraph *model;
    Arena *arena;
} MixedGraph;

static const IrInstruction *instruction_of(const MixedGraph *self, int32_t i) {
    return &self->model->context->canonical->instructions[i];
}

/* ---- seconds of labels ---- */

/* The copies that an operator's label computes. */
static double copies_of_label(const MixedGraph *self, const ShardingGraphPart *part, int32_t label) {
    const ReshardCosts *reshards = self->model->reshards;
    double copies = 1;
    for (int32_t k = 0; k < reshards->axis_count; k++)
        if (sharding_graph_option(part, label, k).factor < 0) copies *= reshards->sizes[k];
    return copies;
}

/* The copies of a tensor in a state; 1 where the state is not known. */
static double copies_of_state(const MixedGraph *self, ReshardState state) {
    const ReshardCosts *reshards = self->model->reshards;
    double copies = 1;
    for (int32_t k = 0; k < reshards->axis_count && state != RESHARD_ANY; k++)
        if (!sbp_is_split(reshard_axis_sbp(state, k))) copies *= reshards->sizes[k];
    return copies;
}

static bool has_halo(const MixedGraph *self, int32_t i, const ShardingGraphPart *part, int32_t label) {
    for (int32_t k = 0; k < self->model->reshards->axis_count; k++) {
        int8_t factor = sharding_graph_option(part, label, k).factor;
        if (factor >= 0 && self->model->context->rules->rules[i].factors[factor].halo) return true;
    }
    return false;
}

static bool has_partial(const MixedGraph *self, const ShardingGraphPart *part, int32_t label) {
    for (int32_t k = 0; k < self->model->reshards->axis_count; k++)
        if (sharding_graph_option(part, label, k).partial) return true;
    return false;
}

/* The fraction of an operator's bytes that its result has. */
static double result_part(const MixedGraph *self, int32_t i) {
    const FactorRule *rule = &self->model->context->rules->rules[i];
    double all = 0, result = 0;
    for (int32_t slot = 0; slot <= rule->operand_count; slot++) {
        result = (double)ir_shape_bytes(rules_slot_shape(self->model->context->rules, i, slot));
        all += result;
    }
    return all > 0 ? result / all : 0;
}

/* The fraction of a reduction's elements that no device has as a view. */
static double reduced_part(const MixedGraph *self, int32_t i) {
    const IrInstruction *instruction = instruction_of(self, i);
    const IrShape *shape = split_options_array_shape(instruction);
    double results = fmax((double)ir_shape_elements(shape), 1);
    double elements = (double)ir_shape_elements(&instruction_of(self, instruction->operands[0])->shape);
    return fmax(1 - self->space->cluster->device_count * results / fmax(elements, 1), 0);
}

/* The least fraction of t(o) that all parts of one copy take. */
static double least_part(const MixedGraph *self, int32_t i, const ShardingGraphPart *part, int32_t label) {
    IrOpcode opcode = instruction_of(self, i)->opcode;
    if (opcode == IR_DOT || opcode == IR_CONVOLUTION) return 1;
    if (has_partial(self, part, label) && fusion_groups_may_vanish(self->model->context, i)) return 0;
    if (opcode == IR_REDUCE) return reduced_part(self, i);
    return has_halo(self, i, part, label) ? result_part(self, i) : 1;
}

static float *set_operator(MixedGraph *self, const ShardingGraphNode *node, double seconds) {
    const ShardingGraphPart *part = &self->model->parts->parts[node->instruction];
    float *of = ARENA_ARRAY(self->arena, float, node->label_count);
    for (int32_t label = 0; of && label < node->label_count; label++)
        of[label] = (float)(seconds * copies_of_label(self, part, label) *
                            least_part(self, node->instruction, part, label));
    return of;
}

/* A kept parameter pays for its copies, and gets its part of the price of all memory. */
static float *set_parameter(MixedGraph *self, const ShardingGraphNode *node, double byte_price,
                            double limit_part) {
    double bytes = self->model->parts->kept_bytes[node->instruction];
    const ReshardState *states = self->model->parts->parts[node->instruction].produced_states;
    float *of = ARENA_ARRAY(self->arena, float, node->label_count);
    for (int32_t label = 0; of && label < node->label_count; label++)
        of[label] = (float)(byte_price * bytes * (copies_of_state(self, states[label]) - limit_part));
    return of;
}

static double kept_bytes(const ShardingGraph *model) {
    double sum = 0;
    for (int32_t n = 0; n < model->node_count; n++)
        if (model->nodes[n].is_tensor) sum += model->parts->kept_bytes[model->nodes[n].instruction];
    return sum;
}

/* Bytes that plans may fill of all devices. */
static double memory_limit(const BoundMixedSpace *space) {
    double sum = 0;
    for (int32_t d = 0; d < space->cluster->device_count; d++)
        sum += space->meshes->memory_fraction * (double)cluster_device_type(space->cluster, d)->memory_bytes;
    return sum;
}

/* The graph of one mesh with the seconds r(o) m(o), and g (r(p) b(p) - L) for a price g of a byte; in the
 * arena. `*model` NULL: no claim. */
static AmStatus create_graph(ShardingGraph **model, Arena *arena, const BoundMixedSpace *space,
                             const Mesh *mesh, double byte_price, AmError *error) {
    LeastWork work;
    MixedGraph self = {.space = space, .arena = arena};
    *model = NULL;
    if (mesh->device_count != space->cluster->device_count) return AM_OK;
    TRY(least_work_find(&work, arena, space->context, space->cluster, error));
    if (!work.seconds) return AM_OK;
    TRY(sharding_graph_create_mixed(&self.model, arena, space->context, mesh, space->cluster,
                                    space->meshes->devices, error));
    if (!self.model || self.model->node_count != work.count) return AM_OK;
    double kept = kept_bytes(self.model), limit_part = kept > 0 ? memory_limit(space) / kept : 0;
    for (int32_t n = 0; n < self.model->node_count; n++) {
        ShardingGraphNode *node = &self.model->nodes[n];
        if (!node->is_tensor) node->seconds = set_operator(&self, node, work.seconds[n]);
        else if (byte_price > 0) node->seconds = set_parameter(&self, node, byte_price, limit_part);
    }
    *model = self.model;
    return arena->failed ? am_fail_memory(error, self.model->node_count) : AM_OK;
}

/* The mean computing of a plan's devices by their weights, and their mean communication. */
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
    ShardingGraph *model;
    LeastWork work;
    Assignment *assignment;
    *holds = false;
    AmStatus status = create_graph(&model, &arena, space, mesh, 0, error);
    if (status == AM_OK && model)
        status = least_work_find(&work, &arena, space->context, space->cluster, error);
    if (status == AM_OK && model)
        status = plan_assign(&assignment, &arena, space->context, &plan->stages[0], error);
    if (status == AM_OK && model) {
        const ShardingGraphCost cost = sharding_graph_cost(model, assignment);
        const ShardingGraphCost mean = mean_cost(space, &work, plan);
        *holds = cost.compute_seconds <= mean.compute_seconds * (1 + ROUNDING) &&
                 cost.communication_seconds <= mean.communication_seconds * (1 + ROUNDING);
    }
    arena_free(&arena);
    return status;
}

/* ---- the bound ---- */

typedef struct MixedMesh {
    const BoundMixedSpace *space;
    const Mesh *mesh;
    double seconds;
    AmStatus status;
    AmError error;
} MixedMesh;

static double bound_by(ShardingGraphFold *fold, int32_t k) {
    const ShardingGraphWeights weights = {compute_weights[k], 1 - compute_weights[k]};
    return sharding_graph_bound(fold, &weights, SWEEPS);
}

/* The best bound, a concave function of the weights, which is climbed from the weights `*start`. */
static double bound_by_all(ShardingGraphFold *fold, int32_t *start) {
    double best = bound_by(fold, *start);
    for (int32_t step = -1; step <= 1; step += 2)
        for (int32_t k = *start + step; k >= 0 && k < MOST_WEIGHTS; k += step) {
            double bound = bound_by(fold, k);
            if (bound <= best) break;
            best = bound;
            *start = k;
        }
    return best;
}

/* The bound of a mesh with a price of memory, which begins with the weights `*start`. */
static AmStatus bound_priced(double *seconds, MixedMesh *self, double byte_price, int32_t *start,
                             AmError *error) {
    Arena arena = {0};
    ShardingGraph *model;
    ShardingGraphFold *fold;
    AmStatus status = create_graph(&model, &arena, self->space, self->mesh, byte_price, error);
    *seconds = 0;
    if (status == AM_OK && model) {
        status = sharding_graph_fold(&fold, &arena, model, error);
        if (status == AM_OK && self->space->stop) sharding_graph_fold_watch(fold, self->space->stop);
        if (status == AM_OK) *seconds = bound_by_all(fold, start);
    }
    arena_free(&arena);
    return status;
}

/* Returns whether copies of all kept parameters do not fit; 0 bytes are no parameters. */
static AmStatus lacks_memory(bool *lacks, const MixedMesh *self, AmError *error) {
    Arena arena = {0};
    ShardingGraph *model;
    AmStatus status = create_graph(&model, &arena, self->space, self->mesh, 0, error);
    *lacks = status == AM_OK && model &&
             kept_bytes(model) * self->space->cluster->device_count > memory_limit(self->space);
    arena_free(&arena);
    return status;
}

static AmStatus bound_mesh(MixedMesh *self, AmError *error) {
    int32_t start = FIRST_WEIGHT;
    bool lacks;
    TRY(bound_priced(&self->seconds, self, 0, &start, error));
    TRY(lacks_memory(&lacks, self, error));
    const double first = self->seconds / memory_limit(self->space);
    for (size_t k = 0; lacks && k < sizeof memory_prices / sizeof *memory_prices; k++) {
        double seconds;
        TRY(bound_priced(&seconds, self, memory_prices[k] * first, &start, error));
        self->seconds = fmax(self->seconds, seconds);
    }
    return AM_OK;
}

static void mesh_task(void *user, int32_t k) {
    MixedMesh *self = (MixedMesh *)user + k;
    self->status = bound_mesh(self, &self->error);
}

AmStatus plan_bound_mixed(double *seconds, const BoundMixedSpace *space, AmError *error) {
    Arena arena = {0};
    MixedMesh *meshes = ARENA_ARRAY(&arena, MixedMesh, space->meshes->count + 1);
    AmStatus status = meshes ? AM_OK : am_fail_memory(error, space->meshes->count);
    double least = INFINITY;
    for (int32_t k = 0; status == AM_OK && k < space->meshes->count; k++)
        meshes[k] = (MixedMesh){.space = space, .mesh = &space->meshes->of[k]};
    if (status == AM_OK) parallel_for(space->meshes->count, 0, mesh_task, meshes);
    for (int32_t k = 0; status == AM_OK && k < space->meshes->count; k++) {
        status = am_pass_error(meshes[k].status, &meshes[k].error, error);
        least = fmin(least, meshes[k].seconds);
    }
    *seconds = status == AM_OK && isfinite(least) ? fmax(least, 0) : 0;
    arena_free(&arena);
    return status;
}
