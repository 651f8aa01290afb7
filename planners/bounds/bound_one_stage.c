/* The bound of one-stage plans in any number of micro-batches, by the sharding graph of the module as read.
 *
 * Edges from the forward pass to other operators are free. A forward operator that fuses has the cost of its
 * best label in all labels. Every mesh data x model of all devices is bounded (plan_bound_meshes()); the
 * least counts.
 */
#include "planners/bounds/bound_one_stage.h"

#include <math.h>

#include "planners/bounds/bound.h"

enum { MOST_MESHES = 64 };

typedef struct OneStageBound {
    const PlanContext *whole;
    const Cluster *cluster;
    const int32_t *devices;
    double enough;
    const StopSignal *stop;
    Mesh meshes[MOST_MESHES];
} OneStageBound;

static IrPhase phase_of(const PlanContext *whole, const ShardingGraphNode *node) {
    return whole->roles->phases[node->instruction];
}

/* Makes operands from the forward pass free, since they may be recomputed. */
static AmStatus free_recomputed(ShardingGraph *model, Arena *arena, AmError *error) {
    const PlanContext *whole = model->context;
    for (int32_t e = 0; e < model->edge_count; e++) {
        ShardingGraphEdge *edge = &model->edges[e];
        if (phase_of(whole, &model->nodes[edge->producer]) == IR_PHASE_FORWARD &&
            phase_of(whole, &model->nodes[edge->reader]) != IR_PHASE_FORWARD)
            edge->scale = 0;
    }
    for (int32_t n = 0; n < model->node_count; n++) {
        ShardingGraphNode *node = &model->nodes[n];
        if (!node->seconds || node->is_tensor || phase_of(whole, node) != IR_PHASE_FORWARD) continue;
        IrOpcode opcode = whole->canonical->instructions[node->instruction].opcode;
        if (ir_is_product(opcode) || opcode == IR_REDUCE) continue; /* it is not fused */
        float *seconds = ARENA_ARRAY(arena, float, node->label_count), least = INFINITY;
        if (!seconds) return am_fail_memory(error, node->label_count);
        for (int32_t label = 0; label < node->label_count; label++)
            least = fminf(least, node->seconds[label]);
        for (int32_t label = 0; label < node->label_count; label++) seconds[label] = least;
        node->seconds = seconds;
    }
    return AM_OK;
}

static AmStatus bound_mesh(double *seconds, const void *user, Arena *arena, int32_t k, AmError *error) {
    const OneStageBound *self = user;
    ShardingGraph *model;
    ShardingGraphFold *fold;
    int32_t start = BOUND_FIRST_WEIGHTS;
    TRY(sharding_graph_create(&model, arena, self->whole, &self->meshes[k], self->cluster, self->devices,
                              error));
    if (!model) return AM_OK;
    TRY(free_recomputed(model, arena, error));
    TRY(sharding_graph_fold(&fold, arena, model, error));
    sharding_graph_fold_watch(fold, self->stop);
    bool overlaps = cluster_device_type(self->cluster, self->devices[0])->overlaps_communication;
    *seconds = plan_bound_weighted(fold, overlaps, self->enough, &start);
    return AM_OK;
}

AmStatus plan_bound_one_stage(double *seconds, const PlanContext *whole, const Cluster *cluster,
                              double enough, const StopSignal *stop, AmError *error) {
    Arena arena = {0};
    int32_t count = cluster->device_count, mesh_count = 0;
    int32_t *devices = ARENA_ARRAY(&arena, int32_t, count);
    OneStageBound *self = ARENA_ARRAY(&arena, OneStageBound, 1);
    double least = 0;
    AmStatus status = arena.failed ? am_fail_memory(error, count) : AM_OK;
    for (int32_t d = 0; d < count && status == AM_OK; d++) devices[d] = d;
    if (status == AM_OK)
        *self = (OneStageBound){
            .whole = whole, .cluster = cluster, .devices = devices, .enough = enough, .stop = stop};
    for (int32_t model = 1; model <= count && status == AM_OK && mesh_count < MOST_MESHES; model++)
        if (count % model == 0)
            self->meshes[mesh_count++] =
                (Mesh){.axis_count = 2,
                       .axes = {{.name = "data", .size = count / model}, {.name = "model", .size = model}},
                       .device_count = count};
    if (status == AM_OK) status = plan_bound_meshes(&least, mesh_count, bound_mesh, self, error);
    *seconds = status == AM_OK && isfinite(least) ? least : 0;
    arena_free(&arena);
    return status;
}
