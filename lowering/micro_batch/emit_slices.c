/* Parts of arrays: cutting them out, putting them together, counting in them.
 *
 * A dimension of rows * unit elements is seen as [rows / M, M, unit]; micro-batch m
 * is index m of the middle dimension. So a dynamic-slice takes one index of a
 * dimension that nothing splits, and the rows may be split over devices.
 */
#include <string.h>

#include "lowering/micro_batch/emit_loops.h"
#include "propagation/sharding/reduction_identity.h"

int32_t micro_batch_add(MicroBatchEmitter *self, const MicroBatchBlock *block, IrOpcode opcode,
                        const IrShape *shape, const int32_t *operands, int32_t operand_count,
                        const IrAttributes *attributes) {
    const IrInstruction *served = &self->rewrite->module->instructions[block->origin];
    const IrInstruction made = ir_serving(served, opcode, shape, operands, operand_count, attributes);
    return ir_compose(&self->composer, block->computation, &made, block->origin);
}

const IrShape *micro_batch_shape_of(const MicroBatchEmitter *self, const MicroBatchBlock *block,
                                    int32_t value) {
    static const IrShape none = {.type = DTYPE_S32};
    if (self->arena->failed) return &none;
    return &ir_composed(&self->composer, block->computation, value)->shape;
}

/* Returns an array shape with these dimensions, which are copied. */
static IrShape array_shape(MicroBatchEmitter *self, Dtype type, int32_t rank, const int64_t *dimensions) {
    int64_t *copy = ARENA_ARRAY(self->arena, int64_t, rank + 1);
    if (copy && rank > 0) memcpy(copy, dimensions, sizeof *copy * (size_t)rank);
    return (IrShape){.type = type, .rank = copy ? rank : 0, .dimensions = copy};
}

IrShape micro_batch_part_shape(MicroBatchEmitter *self, const IrShape *shape, MicroBatchState state) {
    int64_t dimensions[IR_MAX_RANK + 2] = {0};
    for (int32_t d = 0; d < shape->rank; d++) dimensions[d] = shape->dimensions[d];
    if (state.kind == TIME_SPLIT)
        dimensions[state.dimension] =
            dimensions[state.dimension] / self->rewrite->settings.micro_batches * self->part_count;
    return array_shape(self, shape->type, shape->rank, dimensions);
}

/* ---- constants ---- */

static int32_t constant_of(MicroBatchEmitter *self, const MicroBatchBlock *block, Dtype type,
                           const char *bytes) {
    IrLiteral *literal = ARENA_ARRAY(self->arena, IrLiteral, 1);
    char *data = arena_copy_bytes(self->arena, bytes, (size_t)dtype_bytes(type));
    if (self->arena->failed) return 0;
    *literal = (IrLiteral){.data = data, .bytes = dtype_bytes(type)};
    IrShape scalar = {.type = type};
    int32_t made = micro_batch_add(self, block, IR_CONSTANT, &scalar, NULL, 0, NULL);
    if (!self->arena->failed) ir_composed(&self->composer, block->computation, made)->literal = literal;
    return made;
}

int32_t micro_batch_constant(MicroBatchEmitter *self, const MicroBatchBlock *block, Dtype type,
                             double value) {
    char bytes[16];
    reduction_encode(bytes, type, value);
    return constant_of(self, block, type, bytes);
}

int32_t micro_batch_filled(MicroBatchEmitter *self, const MicroBatchBlock *block, const IrShape *shape,
                           SbpReduction reduction) {
    char bytes[16];
    reduction_identity(bytes, shape->type, reduction);
    int32_t scalar = constant_of(self, block, shape->type, bytes);
    if (shape->rank == 0) return scalar;
    return micro_batch_add(self, block, IR_BROADCAST, shape, &scalar, 1, NULL);
}

/* ---- plumbing ---- */

int32_t micro_batch_convert(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value,
                            Dtype type) {
    IrShape shape = *micro_batch_shape_of(self, block, value);
    if (shape.type == type) return value;
    shape.type = type;
    return micro_batch_add(self, block, IR_CONVERT, &shape, &value, 1, NULL);
}

int32_t micro_batch_element(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t tuple,
                            int32_t index) {
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    const IrShape *shape = micro_batch_shape_of(self, block, tuple);
    if (!attributes || self->arena->failed) return 0;
    attributes->tuple_index = index;
    IrShape element = shape->elements[index];
    return micro_batch_add(self, block, IR_GET_TUPLE_ELEMENT, &element, &tuple, 1, attributes);
}

int32_t micro_batch_leaf(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value, int32_t leaf) {
    while (!self->arena->failed && micro_batch_shape_of(self, block, value)->type == DTYPE_TUPLE) {
        const IrShape *shape = micro_batch_shape_of(self, block, value);
        int32_t element = 0, count;
        while ((count = rules_leaf_count(&shape->elements[element])) <= leaf) {
            leaf -= count;
            element++;
        }
        value = micro_batch_element(self, block, value, element);
    }
    return value;
}

int32_t micro_batch_tuple(MicroBatchEmitter *self, const MicroBatchBlock *block, const int32_t *values,
                          int32_t count) {
    IrShape *elements = ARENA_ARRAY(self->arena, IrShape, count + 1);
    for (int32_t k = 0; elements && k < count; k++)
        elements[k] = *micro_batch_shape_of(self, block, values[k]);
    IrShape shape = {.type = DTYPE_TUPLE, .rank = count, .elements = elements};
    return micro_batch_add(self, block, IR_TUPLE, &shape, values, count, NULL);
}

static int32_t reshape(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value,
                       const IrShape *shape) {
    if (ir_shape_equal(micro_batch_shape_of(self, block, value), shape)) return value;
    return micro_batch_add(self, block, IR_RESHAPE, shape, &value, 1, NULL);
}

/* ---- cutting and stacking ---- */

/* Returns a shape with [rows / M, middle, unit] in place of the split dimension of `full`. */
static IrShape opened_shape(MicroBatchEmitter *self, const IrShape *full, MicroBatchState state,
                            int64_t middle) {
    int64_t dimensions[IR_MAX_RANK + 2] = {0};
    int32_t rank = 0;
    for (int32_t d = 0; d < full->rank; d++) {
        if (d != state.dimension) {
            dimensions[rank++] = full->dimensions[d];
            continue;
        }
        dimensions[rank++] = full->dimensions[d] / state.unit / self->rewrite->settings.micro_batches;
        dimensions[rank++] = middle;
        if (state.unit > 1) dimensions[rank++] = state.unit;
    }
    return array_shape(self, full->type, rank, dimensions);
}

IrShape micro_batch_stack_shape(MicroBatchEmitter *self, const IrShape *full, MicroBatchState state) {
    return opened_shape(self, full, state, self->rewrite->settings.micro_batches);
}

/* Writes the start indices of a slice at the iteration along the middle dimension, from operands[first]
 * on. */
static void start_at_iteration(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t rank,
                               MicroBatchState state, int32_t *operands) {
    int32_t zero = micro_batch_constant(self, block, DTYPE_S32, 0);
    for (int32_t d = 0; d < rank; d++) operands[d] = d == state.dimension + 1 ? block->iteration : zero;
}

/* Cuts the rows of the replica being written out of a full value. */
static int32_t cut_replica(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value,
                           MicroBatchState state) {
    IrShape full = *micro_batch_shape_of(self, block, value);
    IrShape stack = micro_batch_stack_shape(self, &full, state);
    IrShape rows = opened_shape(self, &full, state, self->part_count);
    IrShape part = micro_batch_part_shape(self, &full, state);
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *start = ARENA_ARRAY(self->arena, int64_t, stack.rank + 1);
    int64_t *limit = ARENA_ARRAY(self->arena, int64_t, stack.rank + 1);
    int64_t *stride = ARENA_ARRAY(self->arena, int64_t, stack.rank + 1);
    if (self->arena->failed) return 0;
    for (int32_t d = 0; d < stack.rank; d++) {
        start[d] = d == state.dimension + 1 ? self->part_first : 0;
        limit[d] = start[d] + rows.dimensions[d];
        stride[d] = 1;
    }
    *attributes = (IrAttributes){.slice_start = start, .slice_limit = limit, .slice_stride = stride};
    bool in_entry = block->computation == 0;
    if (in_entry) micro_batch_note_replica(self, self->replica);
    int32_t opened = reshape(self, block, value, &stack);
    int32_t cut = micro_batch_add(self, block, IR_SLICE, &rows, &opened, 1, attributes);
    cut = reshape(self, block, cut, &part);
    if (in_entry) micro_batch_note_replica(self, -1); /* who has the value cuts it up and sends the parts */
    return cut;
}

int32_t micro_batch_cut(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t value,
                        MicroBatchState state) {
    if (self->replicas) return cut_replica(self, block, value, state);
    IrShape full = *micro_batch_shape_of(self, block, value);
    IrShape stack = micro_batch_stack_shape(self, &full, state), one = opened_shape(self, &full, state, 1);
    IrShape part = micro_batch_part_shape(self, &full, state);
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int32_t operands[IR_MAX_RANK + 3];
    if (self->arena->failed) return 0;
    attributes->slice_sizes = one.dimensions;
    operands[0] = reshape(self, block, value, &stack);
    start_at_iteration(self, block, stack.rank, state, operands + 1);
    int32_t slice =
        micro_batch_add(self, block, IR_DYNAMIC_SLICE, &one, operands, stack.rank + 1, attributes);
    return reshape(self, block, slice, &part);
}

int32_t micro_batch_join(MicroBatchEmitter *self, const MicroBatchBlock *block, const int32_t *parts,
                         const IrShape *full, MicroBatchState state) {
    const MicroBatchReplicas *replicas = self->replicas;
    IrShape stack = micro_batch_stack_shape(self, full, state);
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *along = ARENA_ARRAY(self->arena, int64_t, 1);
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, replicas->count);
    if (self->arena->failed) return 0;
    *along = state.dimension + 1;
    *attributes = (IrAttributes){.dimension_count = 1, .dimensions = along};
    for (int32_t r = 0; r < replicas->count; r++) {
        IrShape rows = opened_shape(self, full, state, replicas->parts[r]);
        operands[r] = reshape(self, block, parts[r], &rows);
    }
    return micro_batch_add(self, block, IR_CONCATENATE, &stack, operands, replicas->count, attributes);
}

int32_t micro_batch_stack(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t stack, int32_t part,
                          const IrShape *full, MicroBatchState state) {
    IrShape one = opened_shape(self, full, state, 1), shape = *micro_batch_shape_of(self, block, stack);
    int32_t operands[IR_MAX_RANK + 4];
    operands[0] = stack;
    operands[1] = reshape(self, block, part, &one);
    start_at_iteration(self, block, shape.rank, state, operands + 2);
    return micro_batch_add(self, block, IR_DYNAMIC_UPDATE_SLICE, &shape, operands, shape.rank + 2, NULL);
}

/* ---- counting ---- */

static int32_t binary(MicroBatchEmitter *self, const MicroBatchBlock *block, IrOpcode opcode, int32_t a,
                      int32_t b) {
    IrShape shape = *micro_batch_shape_of(self, block, a);
    const int32_t operands[] = {a, b};
    return micro_batch_add(self, block, opcode, &shape, operands, 2, NULL);
}

static int32_t broadcast(MicroBatchEmitter *self, const MicroBatchBlock *block, int32_t scalar,
                         const IrShape *shape) {
    return shape->rank == 0 ? scalar : micro_batch_add(self, block, IR_BROADCAST, shape, &scalar, 1, NULL);
}

static int32_t iota_along(MicroBatchEmitter *self, const MicroBatchBlock *block, const IrShape *shape,
                          int32_t dimension) {
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *along = ARENA_ARRAY(self->arena, int64_t, 1);
    if (self->arena->failed) return 0;
    *along = dimension;
    attributes->dimension_count = 1;
    attributes->dimensions = along;
    return micro_batch_add(self, block, IR_IOTA, shape, NULL, 0, attributes);
}

int32_t micro_batch_iota(MicroBatchEmitter *self, const MicroBatchBlock *block, const IrInstruction *iota,
                         MicroBatchState state) {
    IrShape part = micro_batch_part_shape(self, &iota->shape, state);
    int32_t dimension = (int32_t)iota->attributes->dimensions[0];
    int32_t iterations = self->rewrite->settings.micro_batches;
    if (dimension != state.dimension) return iota_along(self, block, &part, dimension);
    /* element (j, q, r) of the part is (j * M + first + q) * unit + r, where a loop has first = m and q = 0
     */
    IrShape rows = opened_shape(self, &iota->shape, state, self->part_count);
    Dtype type = part.type;
    int32_t count = iota_along(self, block, &rows, dimension);
    int32_t scale = micro_batch_constant(self, block, type, (double)iterations * (double)state.unit);
    count = binary(self, block, IR_MULTIPLY, count, broadcast(self, block, scale, &rows));
    int32_t offset = self->replicas ? micro_batch_constant(self, block, type, (double)self->part_first)
                                    : micro_batch_convert(self, block, block->iteration, type);
    if (state.unit > 1)
        offset = binary(self, block, IR_MULTIPLY, offset,
                        micro_batch_constant(self, block, type, (double)state.unit));
    count = binary(self, block, IR_ADD, count, broadcast(self, block, offset, &rows));
    if (self->part_count > 1) {
        int32_t row = iota_along(self, block, &rows, dimension + 1);
        int32_t unit = micro_batch_constant(self, block, type, (double)state.unit);
        if (state.unit > 1) row = binary(self, block, IR_MULTIPLY, row, broadcast(self, block, unit, &rows));
        count = binary(self, block, IR_ADD, count, row);
    }
    if (state.unit > 1)
        count = binary(self, block, IR_ADD, count, iota_along(self, block, &rows, dimension + 2));
    return reshape(self, block, count, &part);
}
