/* Lower bound of one-stage plans in any number of micro-batches and with any recomputation.
 *
 * Proposition: on each mesh of all devices the step is at least the bound of the sharding graph of the module
 * as read, in which edges from the forward pass to other operators are free, and a fusing forward operator
 * has the cost of its best label in all labels. Micro-batches move as many bytes in total, and parts of an
 * operator take as long as the whole at least. Recomputed values may have another state than the original,
 * which these free edges allow. The bound of the space is the minimum over all meshes.
 */
#include "planners/bounds/bound_one_stage.h"

#include <math.h>

#include "base/system/parallel.h"
#include "planners/bounds/bound.h"

enum { MOST_MESHES = 64, FIRST_WEIGHTS = 2 };

typedef struct Bounding {
    const PlanContext *whole;
    const Cluster *cluster;
    const int32_t *devices;
    double enough;
    const StopSignal *stop;
} Bounding;

typedef struct MeshTask {
    const Bounding *of;
    Mesh mesh;
    double seconds;
    AmStatus status;
    AmError error;
} MeshTask;

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

static AmStatus bound_mesh(MeshTask *self, Arena *arena, AmError *error) {
    const Bounding *of = self->of;
    ShardingGraph *model;
    ShardingGraphFold *fold;
    int32_t start = FIRST_WEIGHTS;
    TRY(sharding_graph_create(&model, arena, of->whole, &self->mesh, of->cluster, of->devices, error));
    if (!model) return AM_OK;
    TRY(free_recomputed(model, arena, error));
    TRY(sharding_graph_fold(&fold, arena, model, error));
    sharding_graph_fold_watch(fold, of->stop);
    bool overlaps = cluster_device_type(of->cluster, of->devices[0])->overlaps_communication;
    self->seconds = plan_bound_weighted(fold, overlaps, of->enough, &start);
    return AM_OK;
}

static void mesh_task(void *user, int32_t k) {
    MeshTask *self = (MeshTask *)user + k;
    Arena arena = {0};
    self->status = bound_mesh(self, &arena, &self->error);
    arena_free(&arena);
}

AmStatus plan_bound_one_stage(double *seconds, const PlanContext *whole, const Cluster *cluster,
                              double enough, const StopSignal *stop, AmError *error) {
    Arena arena = {0};
    int32_t count = cluster->device_count, task_count = 0;
    int32_t *devices = ARENA_ARRAY(&arena, int32_t, count);
    MeshTask *tasks = ARENA_ARRAY(&arena, MeshTask, MOST_MESHES);
    const Bounding self = {
        .whole = whole, .cluster = cluster, .devices = devices, .enough = enough, .stop = stop};
    AmStatus status = arena.failed ? am_fail_memory(error, count) : AM_OK;
    *seconds = 0;
    for (int32_t d = 0; d < count && status == AM_OK; d++) devices[d] = d;
    for (int32_t model = 1; model <= count && status == AM_OK && task_count < MOST_MESHES; model++)
        if (count % model == 0)
            tasks[task_count++] = (MeshTask){
                .of = &self,
                .mesh = {.axis_count = 2,
                         .axes = {{.name = "data", .size = count / model}, {.name = "model", .size = model}},
                         .device_count = count}};
    if (status == AM_OK) parallel_for(task_count, 0, mesh_task, tasks);
    double least = INFINITY;
    for (int32_t k = 0; k < task_count && status == AM_OK; k++) {
        status = tasks[k].status;
        if (status != AM_OK && error) *error = tasks[k].error;
        least = fmin(least, tasks[k].seconds);
    }
    if (status == AM_OK && isfinite(least)) *seconds = least;
    arena_free(&arena);
    return status;
}
