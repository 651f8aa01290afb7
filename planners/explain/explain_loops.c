/* Why pipelines are not cut inside of the loops of a module.
 *
 * A loop is one unit of a pipeline. Loops over layers can be unrolled into layers (ir/layers/layers.h). A
 * loop that reads the same weights in every trip, such as one over time or tokens, stays on the devices that
 * hold these weights.
 */
#include "ir/analysis/loops.h"
#include "ir/layers/layers.h"
#include "ir/layers/loop_weights.h"
#include "planners/explain/explain_parts.h"

/* Returns why the layers of the module's loops are not split. */
static AmStatus find_layers_reason(const char **reason, Explainer *self) {
    const PlanContext *primary = self->primary;
    const char *found = NULL;
    IrModule *split = NULL;
    IrLayerMap *map;
    *reason = "its stacked parameters are needed as one array";
    if (primary->layer_map) return AM_OK;
    TRY(ir_split_layers(&split, &map, &found, self->arena, primary->canonical, primary->roles, self->error));
    if (split) *reason = "each trip is a layer, and the plan keeps them together (expected --layers split)";
    else if (found) *reason = arena_format(self->arena, "its layers are not split: %s", found);
    ir_module_free(split);
    return *reason ? AM_OK : am_fail_memory(self->error, 0);
}

static AmStatus find_reason(ExplainedLoop *row, const char **layers_reason, Explainer *self) {
    const PlanContext *primary = self->primary;
    IrLoopWeights weights;
    TRY(ir_loop_weights(&weights, self->arena, primary->canonical, primary->roles, row->instruction,
                        self->error));
    if (row->trips == IR_TRIPS_UNKNOWN) row->reason = "its number of trips is unknown";
    else if (weights.row_count > 0) {
        if (!*layers_reason) TRY(find_layers_reason(layers_reason, self));
        row->reason = *layers_reason;
    } else if (weights.same_count > 0) {
        row->reason = arena_format(self->arena, "every trip reads the same weights, such as %s",
                                   primary->roles->parameters[weights.first_same].path);
    } else {
        row->reason = "it reads no weights";
    }
    return row->reason ? AM_OK : am_fail_memory(self->error, 0);
}

AmStatus explain_loops(Explainer *self) {
    const IrModule *module = self->primary->canonical;
    const IrComputation *entry = &module->computations[module->entry];
    const IrLoops *loops = module->loops;
    Explanation *result = self->result;
    const char *layers_reason = NULL;
    result->loops.of = ARENA_ARRAY(self->arena, ExplainedLoop, loops->loop_count + 1);
    if (!result->loops.of) return am_fail_memory(self->error, loops->loop_count);
    for (int32_t k = 0; k < loops->loop_count; k++) {
        int32_t number = loops->loops[k].instruction;
        const IrInstruction *instruction = &module->instructions[number];
        if (number < entry->first || number >= entry->first + entry->count) continue;
        ExplainedLoop *row = &result->loops.of[result->loops.count++];
        *row = (ExplainedLoop){.instruction = number,
                               .trips = loops->loops[k].trips,
                               .op_name = explain_name(instruction),
                               .source = explain_source(self->arena, instruction)};
        TRY(find_reason(row, &layers_reason, self));
    }
    return AM_OK;
}
