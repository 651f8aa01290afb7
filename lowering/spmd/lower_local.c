/* Local attributes of instructions: sizes of shards, parts of constants, windows that indices move,
 * and groups. A convolution in groups, split by its groups, has as many as its shard of the input
 * holds; a group's features, or its part of the batch, are unchanged.
 */
#include "lowering/spmd/lower_internal.h"
#include "propagation/rules/rules_builder.h"
#include "propagation/sharding/shard.h"

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
        bool is_window = !int_list_contains(form->collapsed_dimensions, form->collapsed_count, d) &&
                         !int_list_contains(form->operand_batching, form->batching_count, d);
        window[d] = is_window ? updates->dimensions[form->offset_dimensions[next++]] : 1;
    }
    return window;
}

AmStatus lower_local_groups(const Lowering *self, ProgramInstruction *instruction,
                            const IrInstruction *source, AmError *error) {
    const IrConvolution *global = source->attributes->convolution;
    if (!global || (global->feature_group_count == 1 && global->batch_group_count == 1)) return AM_OK;
    bool of_features = global->feature_group_count > 1;
    int64_t groups = of_features ? global->feature_group_count : global->batch_group_count;
    int64_t dimension = of_features ? global->input_feature : global->input_batch;
    int64_t size = self->module->instructions[source->operands[0]].shape.dimensions[dimension];
    int64_t local_size = self->program->values[instruction->operands[0]].shape.dimensions[dimension];
    if (size == local_size || size < groups) return AM_OK;
    int64_t group_size = size / groups, local_groups = local_size / group_size;
    if (local_size % group_size != 0)
        return am_fail(error, AM_ERROR_INTERNAL, self->module->source,
                       "lowering %s: a group is split over several devices", source->name);
    if (local_groups < 1) local_groups = 1; /* of a shard without elements */
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    IrConvolution *local = ARENA_ARRAY(self->arena, IrConvolution, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *attributes);
    *local = *global;
    *(of_features ? &local->feature_group_count : &local->batch_group_count) = local_groups;
    *attributes = *instruction->attributes;
    attributes->convolution = local;
    instruction->attributes = attributes;
    return AM_OK;
}

/* Sizes that a shard of a tensor has under `state`, and where it starts. */
static int64_t *shard_extents(Lowering *self, const IrShape *shape, SbpState state, int64_t **starts) {
    int64_t *extents = ARENA_ARRAY(self->arena, int64_t, shape->rank + 1);
    *starts = ARENA_ARRAY(self->arena, int64_t, shape->rank + 1);
    if (self->arena->failed) return extents;
    for (int32_t d = 0; d < shape->rank; d++)
        sbp_shard(self->mesh, state, self->program->device, d, shape->dimensions[d], &(*starts)[d],
                  &extents[d]);
    return extents;
}

const ProgramShard *lower_shard(Lowering *self, const IrShape *shape, SbpState state, const int64_t *window) {
    ProgramShard *shard = ARENA_ARRAY(self->arena, ProgramShard, 1);
    int64_t *starts;
    shard_extents(self, shape, state, &starts);
    if (self->arena->failed) return NULL;
    *shard = (ProgramShard){.start = starts, .global = shape->dimensions, .window = window};
    return shard;
}

const IrLiteral *lower_literal(Lowering *self, const IrInstruction *instruction, SbpState state) {
    const IrLiteral *global = instruction->literal;
    const IrShape *shape = &instruction->shape;
    if (!global || !global->data || !sbp_has_split(state)) return global;
    ShardLayout layout;
    if (!shard_layout(&layout, self->mesh, state, self->program->device, shape)) return global;
    int64_t bytes = shard_elements(&layout) * dtype_bytes(shape->type);
    IrLiteral *part = ARENA_ARRAY(self->arena, IrLiteral, 1);
    char *data = arena_alloc(self->arena, (size_t)bytes);
    if (self->arena->failed) return global;
    shard_copy_out(&layout, data, global->data, dtype_bytes(shape->type));
    *part = (IrLiteral){.data = data, .bytes = bytes};
    return part;
}

const IrAttributes *lower_attributes(Lowering *self, const IrInstruction *instruction, SbpState state,
                                     const IrShape *operand) {
    const IrAttributes *global = instruction->attributes;
    const int64_t *sizes = instruction->opcode == IR_SLICE           ? global->slice_limit
                           : instruction->opcode == IR_GATHER        ? global->gather->slice_sizes
                           : instruction->opcode == IR_DYNAMIC_SLICE ? global->slice_sizes
                                                                     : NULL;
    if (!sizes) return global;
    IrAttributes *local = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *starts, *local_sizes = shard_extents(self, operand, state, &starts);
    if (self->arena->failed) return global;
    *local = *global;
    if (instruction->opcode == IR_SLICE) {
        for (int32_t d = 0; d < operand->rank; d++) {
            int64_t extent = local_sizes[d];
            starts[d] = global->slice_start[d];
            local_sizes[d] = global->slice_limit[d];
            if (sbp_ways(self->mesh, state, d) > 1) {
                /* The device has a shard of each of several equal blocks, or of the only one. */
                int64_t block = local_sizes[d] - starts[d], shard = extent / (operand->dimensions[d] / block);
                starts[d] = starts[d] / block * shard;
                local_sizes[d] = starts[d] + shard;
            }
        }
        local->slice_start = starts;
        local->slice_limit = local_sizes;
        return local;
    }
    for (int32_t d = 0; d < operand->rank; d++)
        if (sizes[d] != operand->dimensions[d]) local_sizes[d] = sizes[d];
    if (instruction->opcode == IR_DYNAMIC_SLICE) {
        local->slice_sizes = local_sizes;
    } else {
        IrGather *gather = ARENA_ARRAY(self->arena, IrGather, 1);
        if (!gather) return global;
        *gather = *global->gather;
        gather->slice_sizes = local_sizes;
        local->gather = gather;
    }
    return local;
}

/* Elements of the largest shard of an array in a value's state; of the whole where shares are unequal. */
static int64_t most_elements(const Lowering *self, const IrShape *global, int32_t value) {
    const Mesh *mesh = self->mesh;
    SbpState state = self->program->values[value].state;
    int64_t elements = 1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (mesh->axes[axis].shares) sbp_set(&state, axis, SBP_B);
    for (int32_t d = 0; d < global->rank; d++) {
        int64_t start, extent; /* the first device has the largest part */
        sbp_shard(mesh, state, 0, d, global->dimensions[d], &start, &extent);
        elements *= extent;
    }
    return elements;
}

/* Returns whether a broadcast or a reduction only adds or removes dimensions of size 1, which makes
 * it a reshape; on every device, since all devices have the same instructions. */
static bool changes_ones_only(const Lowering *self, const IrInstruction *instruction, int32_t operand,
                              int32_t result) {
    const ProgramValue *values = self->program->values;
    const IrShape *taken = &self->module->instructions[instruction->operands[0]].shape;
    if (instruction->opcode == IR_REDUCE && instruction->operand_count != 2) return false;
    if (most_elements(self, taken, operand) != most_elements(self, &instruction->shape, result)) return false;
    if (instruction->opcode == IR_REDUCE) {
        SbpReduction reduction =
            sbp_reduction_of(ir_computation_operator(self->module, instruction->called[0]));
        return reduction != SBP_REDUCTION_COUNT &&
               rule_is_identity(self->module, instruction->operands[1], reduction);
    }
    if (values[result].shape.rank == 0) return false;
    for (int32_t k = 1; k < instruction->attributes->dimension_count; k++)
        if (instruction->attributes->dimensions[k] <= instruction->attributes->dimensions[k - 1])
            return false;
    return true;
}

bool lower_is_view(const Lowering *self, const IrInstruction *instruction, int32_t operand, int32_t result) {
    if (ir_opcode_has(instruction->opcode, FACT_VIEW)) return true;
    switch (instruction->opcode) {
    case IR_BROADCAST:
    case IR_REDUCE: return changes_ones_only(self, instruction, operand, result);
    default: return false;
    }
}
