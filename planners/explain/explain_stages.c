/* The contents and work of each stage of a plan.
 *
 * Times and memory are those of the simulation. The weights of a stage have the user's names: a
 * path is cut after its first number, which counts layers, and consecutive layers form a range.
 */
#include <string.h>

#include "planners/explain/explain_parts.h"
#include "planners/explain/layer_names.h"
#include "propagation/assign/storage.h"

/* The largest number of names of weights that are written out. */
enum { MOST_NAMES = 6 };

/* Returns whether the stage owns parameter p. */
static bool owns(const Explainer *self, int32_t stage, int32_t p) {
    return !self->ranks.map || self->ranks.map->owner[p] % self->plan->stage_count == stage;
}

static AmStatus name_weights(const Explainer *self, int32_t s, ExplainedStage *stage) {
    const IrRoles *roles = self->context->roles;
    LayerName *names = ARENA_ARRAY(self->arena, LayerName, roles->parameter_count + 1);
    int32_t count = 0;
    if (!names) return am_fail_memory(self->error, roles->parameter_count);
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        if (parameter->role != IR_ROLE_WEIGHT || !owns(self, s, p)) continue;
        LayerName name = {.path = layer_path(parameter->path)};
        int32_t k = 0;
        while (k < count && !layer_path_is_same(&names[k].path, &name.path)) k++;
        if (k == count) names[count++] = name;
        layer_name_add(self->arena, &names[k], name.path.number);
    }
    Text text = {0};
    for (int32_t k = 0; k < count && k < MOST_NAMES; k++) {
        if (k > 0) text_append_string(&text, ", ");
        layer_name_append(&text, &names[k], names[k].path.end);
    }
    if (count > MOST_NAMES) text_append(&text, " and %d more", count - MOST_NAMES);
    stage->weights = text.data ? arena_copy_string(self->arena, text.data) : "";
    bool has_failed = text.failed || self->arena->failed;
    text_free(&text);
    return has_failed ? am_fail_memory(self->error, count) : AM_OK;
}

/* Names the first and the last forward operators of the stage that compute anything. */
static void name_operators(const Explainer *self, const PlanStage *of, ExplainedStage *stage) {
    const PlanContext *primary = self->primary;
    stage->first_op = stage->last_op = "";
    for (int32_t r = 0; r < of->range_count; r++)
        for (int32_t i = of->ranges[r][0]; i < of->ranges[r][1]; i++) {
            const IrInstruction *instruction = plan_context_instruction(primary, i);
            if (!plan_context_in_forward(primary, i)) continue;
            if (!instruction->op_name[0] || primary->rules->on_demand[i]) continue;
            if (!stage->first_op[0]) stage->first_op = instruction->op_name;
            stage->last_op = instruction->op_name;
        }
}

/* Means of the devices' times, and the memory of the fullest. */
static void add_devices(const Explainer *self, ExplainedStage *stage) {
    const Simulation *simulation = self->simulation;
    double flops = 0, fullest = -1;
    for (int32_t r = stage->first_rank; r < stage->first_rank + stage->device_count; r++) {
        const SimulatedDevice *device = &simulation->devices[r];
        stage->seconds.compute += device->compute_seconds / stage->device_count;
        stage->seconds.communication += device->communication_seconds / stage->device_count;
        stage->seconds.hidden += device->hidden_seconds / stage->device_count;
        stage->seconds.idle += device->idle_seconds / stage->device_count;
        flops += device->flops;
        double fullness = (double)device->needed_bytes / (double)device->memory_bytes;
        if (fullness <= fullest) continue;
        fullest = fullness;
        stage->fullest.rank = r;
        stage->fullest.use = device->memory;
        stage->fullest.channel_bytes = device->channel_bytes;
        stage->fullest.kept_bytes = device->kept_bytes;
        stage->fullest.needed_bytes = device->needed_bytes;
        stage->fullest.limit_bytes = device->limit_bytes;
        stage->fullest.memory_bytes = device->memory_bytes;
    }
    stage->flops_share = simulation->executed_flops > 0 ? flops / simulation->executed_flops : 0;
    const char *first = simulation->devices[stage->first_rank].name;
    const char *last = simulation->devices[stage->first_rank + stage->device_count - 1].name;
    stage->devices = stage->device_count == 1 ? first : arena_format(self->arena, "%s to %s", first, last);
    if (!stage->devices) stage->devices = "";
}

AmStatus explain_stages(Explainer *self) {
    const Plan *plan = self->plan;
    Explanation *result = self->result;
    result->stages.of = ARENA_ARRAY(self->arena, ExplainedStage, plan->stage_count);
    if (!result->stages.of) return am_fail_memory(self->error, plan->stage_count);
    result->stages.count = plan->stage_count;
    for (int32_t s = 0; s < plan->stage_count; s++) {
        ExplainedStage *stage = &result->stages.of[s];
        stage->first_rank = self->ranks.first_rank[s];
        stage->device_count = plan->stages[s].mesh.device_count;
        Text text = {0};
        mesh_append(&text, &plan->stages[s].mesh, " ");
        const char *copy = text.data ? arena_copy_string(self->arena, text.data) : "";
        text_free(&text);
        stage->mesh = copy ? copy : "";
        stage->zero_level = storage_zero_level(&plan->stages[s]);
        add_devices(self, stage);
        name_operators(self, &plan->stages[s], stage);
        TRY(name_weights(self, s, stage));
    }
    const IrRoles *roles = self->context->roles;
    double total = 0;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
        const IrShape *shape =
            &plan_context_instruction(self->context, roles->parameters[p].instruction)->shape;
        for (int32_t s = 0; s < result->stages.count; s++)
            if (owns(self, s, p)) result->stages.of[s].weight_bytes += ir_shape_bytes(shape);
        total += (double)ir_shape_bytes(shape);
    }
    for (int32_t s = 0; s < result->stages.count && total > 0; s++)
        result->stages.of[s].weight_share = (double)result->stages.of[s].weight_bytes / total;
    return AM_OK;
}
