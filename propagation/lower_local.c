/* What local instructions say beside their operands: windows that indices move,
 * and groups. A convolution in groups, split by its groups, has as many of them as
 * its shard of the input holds: a group's features, or its part of the batch, are
 * what they are in the whole.
 */
#include "propagation/lower_internal.h"
#include "propagation/rules_builder.h"

bool lower_moves_window(IrOpcode opcode) {
    return opcode == IR_GATHER || opcode == IR_SCATTER || opcode == IR_DYNAMIC_SLICE ||
           opcode == IR_DYNAMIC_UPDATE_SLICE;
}

/* Sizes of the window of operand 0 that the indices move, with nothing split. */
const int64_t *lower_window(Arena *arena, const IrModule *module, const IrInstruction *source) {
    const IrShape *operand = &module->instructions[source->operands[0]].shape;
    const IrGather *form = source->attributes->gather;
    if (source->opcode == IR_GATHER) return form->slice_sizes;
    if (source->opcode == IR_DYNAMIC_SLICE) return source->attributes->slice_sizes;
    if (source->opcode == IR_DYNAMIC_UPDATE_SLICE)
        return module->instructions[source->operands[1]].shape.dimensions;
    int64_t *window = ARENA_ARRAY(arena, int64_t, operand->rank + 1);
    const IrShape *updates = &module->instructions[source->operands[source->operand_count - 1]].shape;
    for (int32_t d = 0, next = 0; window && d < operand->rank; d++) {
        bool is_window = !rule_contains(form->collapsed_dimensions, form->collapsed_count, d) &&
                         !rule_contains(form->operand_batching, form->batching_count, d);
        window[d] = is_window ? updates->dimensions[form->offset_dimensions[next++]] : 1;
    }
    return window;
}

AmStatus lower_local_groups(const Lowering *self, ProgramInstruction *instruction,
                            const IrInstruction *source, AmError *error) {
    const IrConvolution *whole = source->attributes->convolution;
    if (whole->feature_group_count == 1 && whole->batch_group_count == 1) return AM_OK;
    bool of_features = whole->feature_group_count > 1;
    int64_t groups = of_features ? whole->feature_group_count : whole->batch_group_count;
    int64_t dimension = of_features ? whole->input_feature : whole->input_batch;
    int64_t size = self->module->instructions[source->operands[0]].shape.dimensions[dimension];
    int64_t local_size = self->program->values[instruction->operands[0]].shape.dimensions[dimension];
    if (size == local_size || size < groups) return AM_OK;
    int64_t group_size = size / groups, local_groups = local_size / group_size;
    if (local_size % group_size != 0)
        return am_fail(error, AM_ERROR_INTERNAL, self->module->source,
                       "lowering %s: its groups are cut apart", source->name);
    if (local_groups < 1) local_groups = 1; /* of a shard without elements */
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    IrConvolution *local = ARENA_ARRAY(self->arena, IrConvolution, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *attributes);
    *local = *whole;
    *(of_features ? &local->feature_group_count : &local->batch_group_count) = local_groups;
    *attributes = *instruction->attributes;
    attributes->convolution = local;
    instruction->attributes = attributes;
    return AM_OK;
}
