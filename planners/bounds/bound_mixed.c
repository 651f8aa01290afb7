/* The bound of one-stage plans on devices of several types (proposition in bound_mixed.h): the sharding graph
 * with the seconds r(o) m(o) on operators. The bytes of parameters get a price g where copies of all of them
 * do not fit, and the best of some prices counts.
 */
#include "planners/bounds/bound_mixed.h"

#include <math.h>

#include "cost/cluster/topology.h"
#include "cost/relaxation/fusion_groups.h"
#include "cost/relaxation/graph_parts.h"
#include "cost/step/memory.h"
#include "planners/bounds/bound_of_work.h"

enum { MOST_WEIGHTS = 8, FIRST_WEIGHT = 1, MEMORY_PRICES = 3 };

/* Weights a of computing. Near 1 operators of partial sums, which may be omitted, cost little
 * communication. */
static const double compute_weights[MOST_WEIGHTS] = {0.99, 0.95, 0.9, 0.8, 0.65, 0.5, 0.3, 0.1};

/* Prices of all memory, in bounds without a price. */
static const double memory_prices[MEMORY_PRICES] = {0.5, 2, 8};

typedef struct MixedGraph {
    const BoundMixedSpace *space;
    ShardingGraph *graph;
    Arena *arena;
} MixedGraph;

/* ---- seconds of labels ---- */

/* Returns the copies of an operator that a label computes, r(o), and in `*part` the least fraction of t(o)
 * that all parts of one copy take. */
static double copies_of_label(const MixedGraph *self, int32_t i, int32_t label, double *part) {
    const PlanContext *context = self->graph->context;
    const ReshardCosts *reshards = self->graph->reshards;
    const ShardingGraphParts *parts = self->graph->parts;
    const Cluster *cluster = self->space->cluster;
    const IrInstruction *instruction = ir_instruction(context->canonical, i);
    const FactorRule *rule = &context->rules->rules[i];
    bool has_partial = false, has_halo = false;
    double copies = 1;
    for (int32_t k = 0; k < reshards->axis_count; k++) {
        const ShardingGraphOption option = sharding_graph_option(&parts->parts[i], label, k);
        has_partial |= option.partial;
        has_halo |= option.factor >= 0 && rule->factors[option.factor].halo;
        if (option.factor < 0) copies *= reshards->sizes[k];
    }
    *part = 1;
    if (ir_is_product(instruction->opcode)) return copies;
    if (has_partial && fusion_groups_may_vanish(context, i)) {
        *part = 0;
    } else if (instruction->opcode == IR_REDUCE) { /* what no device has as a view */
        double results = fmax((double)ir_shape_elements(split_options_array_shape(instruction)), 1);
        double elements =
            (double)ir_shape_elements(&ir_instruction(context->canonical, instruction->operands[0])->shape);
        *part = fmax(1 - cluster->device_count * results / fmax(elements, 1), 0);
    } else if (has_halo) { /* the result alone, of its bytes */
        double all = 0, result = 0;
        for (int32_t slot = 0; slot <= rule->operand_count; slot++) {
            result = (double)ir_shape_bytes(rules_slot_shape(context->rules, i, slot));
            all += result;
        }
        *part = all > 0 ? result / all : 0;
    }
    return copies;
}

/* Returns the bytes of a parameter that devices keep. */
static double bytes_of(const BoundMixedSpace *space, const ShardingGraph *graph, int32_t instruction) {
    bool is_offloaded = space->meshes->offloads_optimizer && graph->parts->is_optimizer[instruction];
    return is_offloaded ? 0 : graph->parts->kept_bytes[instruction];
}

static double kept_bytes(const BoundMixedSpace *space, const ShardingGraph *graph) {
    double sum = 0;
    for (int32_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].is_tensor) sum += bytes_of(space, graph, graph->nodes[n].instruction);
    return sum;
}

/* Returns the bytes of all devices that plans may fill. */
static double memory_limit(const BoundMixedSpace *space) {
    double sum = 0;
    for (int32_t d = 0; d < space->cluster->device_count; d++)
        sum += memory_usable(space->cluster, &d, 1, space->meshes->memory_fraction);
    return sum;
}

/* Sets g (r(p) b(p) - L) of all parameters for a price g of a byte: a kept one pays for its copies, and gets
 * its part of the price of all memory. */
static void set_parameters(MixedGraph *self, double byte_price) {
    const ReshardCosts *reshards = self->graph->reshards;
    const ShardingGraphParts *parts = self->graph->parts;
    double limit_part = memory_limit(self->space) / kept_bytes(self->space, self->graph);
    for (int32_t n = 0; n < self->graph->node_count; n++) {
        ShardingGraphNode *node = &self->graph->nodes[n];
        if (!node->is_tensor) continue;
        double bytes = bytes_of(self->space, self->graph, node->instruction);
        const ReshardState *states = parts->parts[node->instruction].produced_states;
        float *seconds = ARENA_ARRAY(self->arena, float, node->label_count);
        for (int32_t label = 0; seconds && label < node->label_count; label++) {
            double copies = 1; /* where the state is not known */
            for (int32_t k = 0; k < reshards->axis_count && states[label] != RESHARD_ANY; k++)
                if (!sbp_is_split(reshard_axis_sbp(states[label], k))) copies *= reshards->sizes[k];
            seconds[label] = (float)(byte_price * bytes * (copies - limit_part));
        }
        node->seconds = seconds;
    }
}

/* Makes the graph of one mesh with seconds of computing, without a price of memory; in the arena. Its graph
 * is NULL without a claim. */
static AmStatus create_graph(MixedGraph *self, Arena *arena, const BoundMixedSpace *space,
                             const LeastWork *work, const Mesh *mesh, AmError *error) {
    *self = (MixedGraph){.space = space, .arena = arena};
    if (!work->seconds || mesh->device_count != space->cluster->device_count) return AM_OK;
    TRY(sharding_graph_create_mixed(&self->graph, arena, space->context,
                                    &(PlacedMesh){mesh, space->cluster, space->meshes->devices}, error));
    if (self->graph && self->graph->node_count != work->count) self->graph = NULL;
    if (self->graph) {
        /* The seconds r(o) m(o) of all operators, by label. */
        for (int32_t n = 0; n < self->graph->node_count; n++) {
            ShardingGraphNode *node = &self->graph->nodes[n];
            if (node->is_tensor) continue;
            float *seconds = ARENA_ARRAY(self->arena, float, node->label_count);
            for (int32_t label = 0; seconds && label < node->label_count; label++) {
                double part, copies = copies_of_label(self, node->instruction, label, &part);
                seconds[label] = (float)(work->seconds[n] * copies * part);
            }
            node->seconds = seconds;
        }
    }
    return arena->failed ? am_fail_memory(error, work->count) : AM_OK;
}

AmStatus bound_mixed_holds(bool *holds, const BoundMixedSpace *space, const Mesh *mesh, const Plan *plan,
                           AmError *error) {
    Arena arena = {0};
    MixedGraph mixed = {0};
    LeastWork work;
    Assignment *assignment;
    ShardingGraphCost mean = {0}; /* of the plan's devices: computing by their weights, communication */
    AmStatus status;
    *holds = false;
    TRY_OR_FAIL(least_work_find(&work, &arena, space->context, space->cluster, error));
    TRY_OR_FAIL(create_graph(&mixed, &arena, space, &work, mesh, error));
    if (!mixed.graph) goto fail;
    TRY_OR_FAIL(plan_assign(&assignment, &arena, space->context, &plan->stages[0], error));
    for (int32_t d = 0; d < plan->device_count; d++) {
        const ClusterDeviceType *type = cluster_device_type(space->cluster, space->meshes->devices[d]);
        mean.compute_seconds +=
            work.type_weights[type - space->cluster->types] * plan->predicted[d].compute_seconds;
        mean.communication_seconds += plan->predicted[d].communication_seconds / plan->device_count;
    }
    const ShardingGraphCost cost = sharding_graph_cost(mixed.graph, assignment);
    *holds = plan_bound_holds(&cost, &mean);
fail:
    arena_free(&arena);
    return status;
}

/* ---- the bound ---- */

typedef struct MixedMeshes {
    const BoundMixedSpace *space;
    const LeastWork *work;
} MixedMeshes;

static AmStatus bound_mesh(double *seconds, const void *user, Arena *arena, int32_t k, AmError *error) {
    const MixedMeshes *self = user;
    const BoundMixedSpace *space = self->space;
    const BoundWeights weights = {compute_weights, MOST_WEIGHTS};
    const double limit = memory_limit(space);
    int32_t start = FIRST_WEIGHT;
    double first = 0; /* the price of a byte */
    MixedGraph mixed;
    TRY(create_graph(&mixed, arena, space, self->work, &space->meshes->of[k], error));
    if (!mixed.graph) return AM_OK;
    double copies_bytes = kept_bytes(space, mixed.graph) * space->cluster->device_count;
    bool lacks_memory = space->meshes->memory_fraction > 0 && copies_bytes > limit;
    for (int32_t p = 0; p < 1 + (lacks_memory ? MEMORY_PRICES : 0); p++) {
        ShardingGraphFold *fold;
        if (p > 0) set_parameters(&mixed, memory_prices[p - 1] * first);
        if (arena->failed) return am_fail_memory(error, mixed.graph->node_count);
        TRY(sharding_graph_fold(&fold, arena, mixed.graph, error));
        if (space->stop) sharding_graph_fold_watch(fold, space->stop);
        double priced = plan_bound_climb(fold, &weights, INFINITY, &start);
        *seconds = p == 0 ? priced : fmax(*seconds, priced);
        if (p == 0) first = priced / limit;
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

/* ---- any order of the devices ---- */

/* Returns the bytes per second that the device with the fastest links sends over all of them; 0: no claim, as
 * collectives do not follow the links. */
static double fastest_rate(const Cluster *cluster) {
    for (int32_t k = 0; k < cluster->link_count; k++)
        if (cluster->links[k].collectives) return 0;
    return cluster->nccl ? 0 : topology_fastest_rate(cluster->topology);
}

/* Makes a cluster of the same devices, each on a server of its own, with equal links. */
static AmStatus make_star(Cluster **star, Arena *arena, const Cluster *cluster, double rate, AmError *error) {
    json_t *servers = json_array(), *types = json_object_get(cluster->description, "device_types");
    for (int32_t d = 0; d < cluster->device_count; d++)
        json_array_append_new(servers, json_pack("{s:s, s:i}", "device_type",
                                                 cluster_device_type(cluster, d)->name, "devices", 1));
    json_t *object = json_pack("{s:s, s:s, s:O, s:{s:{s:f, s:f}}, s:o, s:s}", "format", "automap-cluster-1",
                               "name", "star", "device_types", types, "links", "link", "bytes_per_second",
                               rate, "latency_seconds", 0.0, "servers", servers, "between_servers", "link");
    if (!object) return am_fail_memory(error, cluster->device_count);
    AmStatus status = cluster_from_json(star, arena, object, cluster->name, error);
    json_decref(object);
    return status;
}

AmStatus plan_bound_mixed_orders(double *seconds, const PlanContext *primary, const Cluster *cluster,
                                 const BoundMemory *memory, const StopSignal *stop, AmError *error) {
    Arena arena = {0};
    Cluster *star = NULL;
    int32_t count = cluster->device_count;
    int32_t *devices = ARENA_ARRAY(&arena, int32_t, count);
    Mesh *of = ARENA_ARRAY(&arena, Mesh, count);
    BoundMeshes meshes = {.of = of,
                          .devices = devices,
                          .memory_fraction = memory->fraction,
                          .offloads_optimizer = memory->offloads_optimizer};
    double rate = fastest_rate(cluster);
    AmStatus status = AM_OK;
    *seconds = 0;
    if (arena.failed) TRY_OR_FAIL(am_fail_memory(error, count));
    if (rate <= 0) goto fail;
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    for (int32_t inner = 1; inner <= count; inner++)
        if (count % inner == 0)
            of[meshes.count++] =
                (Mesh){.axis_count = 2,
                       .axes = {{.name = "data", .size = count / inner}, {.name = "model", .size = inner}},
                       .device_count = count};
    TRY_OR_FAIL(make_star(&star, &arena, cluster, rate, error));
    const BoundMixedSpace space = {primary, star, &meshes, stop, true};
    TRY_OR_FAIL(plan_bound_mixed(seconds, &space, error));
fail:
    cluster_free(star);
    arena_free(&arena);
    return status;
}
