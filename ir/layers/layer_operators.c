/* Operators on known integers and on stacks of layers.
 *
 * The first dimension of a stack is that of the layers. An operator that treats it apart from the others
 * becomes one operator for each layer, without that dimension.
 */
#include <string.h>

#include "base/hash.h"
#include "ir/analysis/fold_integer.h"
#include "ir/dataflow.h"
#include "ir/layers/layer_values.h"

/* ---- integers ---- */

static bool is_integer(const IrShape *shape) {
    return shape->rank == 0 && (dtype_is_integer(shape->type) || shape->type == DTYPE_PRED);
}

static SplitValue *constant_number(Splitter *self, const IrInstruction *constant) {
    int64_t number = 0;
    const IrLiteral *literal = constant->literal;
    Dtype type = constant->shape.type;
    int64_t bytes = dtype_bytes(type);
    if (!literal || !literal->data || literal->bytes < bytes || bytes > 8 || dtype_bits(type) < 8) {
        if (type != DTYPE_PRED || !literal || !literal->data || literal->bytes < 1) return NULL;
        bytes = 1;
    }
    memcpy(&number, literal->data, (size_t)bytes);
    int32_t bits = (int32_t)(8 * bytes);
    if (dtype_is_signed(type) && bits < 64 && number >> (bits - 1) & 1) number -= INT64_C(1) << bits;
    return ir_integer_fits(type, number) ? split_number(self, &constant->shape, number) : NULL;
}

static SplitValue *known_integer(Splitter *self, const IrInstruction *instruction,
                                 SplitValue *const *operands) {
    if (!is_integer(&instruction->shape)) return NULL;
    if (instruction->opcode == IR_CONSTANT) return constant_number(self, instruction);
    int32_t count = instruction->operand_count;
    if (instruction->opcode == IR_SELECT && operands[0]->is_known)
        return operands[0]->number ? operands[1] : operands[2];
    for (int32_t k = 0; k < count; k++)
        if (!operands[k]->is_known || !is_integer(operands[k]->shape)) return NULL;
    if (count < 1 || count > 2) return NULL;
    const int64_t numbers[2] = {operands[0]->number, count == 2 ? operands[1]->number : 0};
    int64_t number;
    bool is_known = ir_fold_integer(&number, instruction->opcode, instruction->attributes->comparison,
                                    instruction->shape.type, numbers);
    return is_known ? split_number(self, &instruction->shape, number) : NULL;
}

/* ---- slices ---- */

/* Returns whether the starts of a dynamic slice or update are known, clamped as at run time. */
static bool known_starts(int64_t *starts, SplitValue *const *indices, const IrShape *array,
                         const int64_t *sizes) {
    for (int32_t d = 0; d < array->rank; d++) {
        if (!indices[d]->is_known) return false;
        int64_t most = array->dimensions[d] - sizes[d];
        starts[d] = indices[d]->number < 0 ? 0 : indices[d]->number > most ? most : indices[d]->number;
    }
    return true;
}

/* Returns whether only the first dimension is sliced. */
static bool slices_layers(const IrShape *array, const int64_t *sizes) {
    for (int32_t d = 1; d < array->rank; d++)
        if (sizes[d] != array->dimensions[d]) return false;
    return array->rank >= 1;
}

static SplitValue *layers_of(Splitter *self, SplitValue *stack, int64_t first, const IrShape *shape) {
    SplitValue *result = split_stack(self, shape);
    if (!result) return NULL;
    for (int64_t k = 0; k < shape->dimensions[0]; k++) {
        LayerValue *layer = &stack->layers[first + k];
        if (layer->value < 0 && layer->fill < 0) split_layer(self, stack, (int32_t)(first + k));
        result->layers[k] = *layer;
    }
    result->group = stack->group;
    return result;
}

static SplitValue *static_slice(Splitter *self, const IrInstruction *instruction, SplitValue *operand,
                                const int64_t *starts) {
    Arena *arena = &self->composer.module->arena;
    const IrShape *shape = &instruction->shape;
    int64_t *start = ARENA_ARRAY(arena, int64_t, shape->rank + 1);
    int64_t *limit = ARENA_ARRAY(arena, int64_t, shape->rank + 1);
    int64_t *stride = ARENA_ARRAY(arena, int64_t, shape->rank + 1);
    IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
    if (arena->failed) return NULL;
    for (int32_t d = 0; d < shape->rank; d++) {
        start[d] = starts[d];
        limit[d] = starts[d] + shape->dimensions[d];
        stride[d] = 1;
    }
    *attributes = (IrAttributes){.slice_start = start, .slice_limit = limit, .slice_stride = stride};
    int32_t array = split_array(self, operand);
    return split_made(self, shape, split_add(self, IR_SLICE, shape, &array, 1, attributes));
}

static SplitValue *dynamic_slice(Splitter *self, const IrInstruction *instruction,
                                 SplitValue *const *operands) {
    int64_t starts[IR_MAX_RANK];
    const IrShape *array = operands[0]->shape;
    const int64_t *sizes = instruction->shape.dimensions;
    if (instruction->operand_count != array->rank + 1) return NULL;
    if (!known_starts(starts, operands + 1, array, sizes)) return NULL;
    if (operands[0]->layers && slices_layers(array, sizes))
        return layers_of(self, operands[0], starts[0], &instruction->shape);
    return static_slice(self, instruction, operands[0], starts);
}

static SplitValue *slice(Splitter *self, const IrInstruction *instruction, SplitValue *operand) {
    const IrAttributes *attributes = instruction->attributes;
    if (!operand->layers || !slices_layers(operand->shape, instruction->shape.dimensions)) return NULL;
    if (attributes->slice_stride && attributes->slice_stride[0] != 1) return NULL;
    return layers_of(self, operand, attributes->slice_start[0], &instruction->shape);
}

static bool has_depth(const Splitter *self, const IrShape *shape) {
    return shape->rank >= 1 && shape->dimensions[0] > 1 && shape->dimensions[0] <= LAYERS_MOST &&
           self->has_depth[shape->dimensions[0]];
}

/* Copies a stack, so that the other users still see the old one. */
static SplitValue *copy_stack(Splitter *self, SplitValue *from) {
    SplitValue *stack = split_stack(self, from->shape);
    if (!stack) return NULL;
    memcpy(stack->layers, from->layers, sizeof *stack->layers * (size_t)from->shape->dimensions[0]);
    stack->base = from->base;
    stack->group = from->group;
    if (from->parameter >= 0)
        for (int32_t k = 0; k < from->shape->dimensions[0]; k++)
            stack->layers[k].value = split_layer(self, from, k);
    return stack;
}

static SplitValue *dynamic_update(Splitter *self, const IrInstruction *instruction,
                                  SplitValue *const *operands) {
    int64_t starts[IR_MAX_RANK];
    const IrShape *array = operands[0]->shape, *update = operands[1]->shape;
    if (!has_depth(self, array) || instruction->operand_count != array->rank + 2) return NULL;
    if (!known_starts(starts, operands + 2, array, update->dimensions)) return NULL;
    if (!slices_layers(array, update->dimensions)) return NULL;
    SplitValue *stack = split_as_stack(self, operands[0]), *rows = split_as_stack(self, operands[1]);
    if (stack == operands[0]) stack = copy_stack(self, stack);
    if (!stack || !rows) return NULL;
    for (int32_t k = 0; k < update->dimensions[0]; k++) {
        if (rows->layers[k].fill < 0) split_layer(self, rows, k);
        stack->layers[starts[0] + k] = rows->layers[k];
    }
    stack->group = split_join(self, stack->group, rows->group);
    return stack;
}

/* Layers with a constant before and after them. */
static SplitValue *pad(Splitter *self, const IrInstruction *instruction, SplitValue *const *operands) {
    const IrPadding *padding = instruction->attributes->padding;
    if (!operands[0]->layers || !has_depth(self, &instruction->shape)) return NULL;
    for (int32_t d = 0; d < instruction->shape.rank; d++)
        if (padding[d].interior != 0 || padding[d].low < 0 || padding[d].high < 0 ||
            (d > 0 && (padding[d].low > 0 || padding[d].high > 0)))
            return NULL;
    SplitValue *stack = split_stack(self, &instruction->shape);
    int32_t fill = split_array(self, operands[1]), first = (int32_t)padding[0].low;
    if (!stack) return NULL;
    for (int64_t k = 0; k < instruction->shape.dimensions[0]; k++) stack->layers[k].fill = fill;
    for (int32_t k = 0; k < operands[0]->shape->dimensions[0]; k++)
        stack->layers[first + k] =
            (LayerValue){split_layer(self, operands[0], k), operands[0]->layers[k].fill};
    stack->group = operands[0]->group;
    return stack;
}

static SplitValue *concatenate_stacks(Splitter *self, const IrInstruction *instruction,
                                      SplitValue *const *operands) {
    bool joins_layers = instruction->attributes->dimensions[0] == 0;
    if (!joins_layers || !has_depth(self, &instruction->shape)) return NULL;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        if (!operands[k]->layers) return NULL;
    SplitValue *stack = split_stack(self, &instruction->shape);
    int64_t at = 0;
    for (int32_t o = 0; stack && o < instruction->operand_count; o++)
        for (int32_t k = 0; k < operands[o]->shape->dimensions[0]; k++) {
            if (operands[o]->layers[k].fill < 0) split_layer(self, operands[o], k);
            stack->layers[at++] = operands[o]->layers[k];
            stack->group = split_join(self, stack->group, operands[o]->group);
        }
    return stack;
}

/* ---- one operator for each layer ---- */

/* Returns the scalar that all elements of an array are, or LAYERS_NONE. */
static int32_t fill_of(const SplitValue *value) {
    return value->shape->rank == 0 ? value->array : value->fill;
}

/* Returns the operand that an operator on arrays returns unchanged, as the first trip of a loop does that
 * adds to zeros; or NULL. */
static SplitValue *unchanged(const Splitter *self, const IrInstruction *instruction,
                             SplitValue *const *operands) {
    SplitValue *same = NULL;
    if (instruction->opcode == IR_SELECT) {
        int32_t choice = fill_of(operands[0]);
        if (choice < 0 || split_instruction(self, choice)->opcode != IR_CONSTANT) return NULL;
        same = operands[split_is_zero(self, choice) ? 2 : 1];
    } else if (instruction->opcode == IR_ADD && instruction->shape.type != DTYPE_PRED) {
        for (int32_t k = 0; k < 2 && !same; k++)
            if (fill_of(operands[k]) >= 0 && split_is_zero(self, fill_of(operands[k])))
                same = operands[1 - k];
    }
    return same && ir_shape_equal(same->shape, &instruction->shape) ? same : NULL;
}

static SplitValue *elementwise(Splitter *self, const IrInstruction *instruction,
                               SplitValue *const *operands) {
    int32_t count = instruction->operand_count, fills[3], values[3], last[3] = {-1, -1, -1},
            filled = LAYERS_NONE;
    bool has_stack = false;
    if (count > 3 || instruction->called_count > 0 || instruction->shape.type == DTYPE_TUPLE) return NULL;
    for (int32_t o = 0; o < count; o++) has_stack = has_stack || split_is_stack(operands[o]);
    for (int32_t o = 0; o < count; o++)
        if (operands[o]->shape->rank > 0 && !ir_same_dimensions(operands[o]->shape, &instruction->shape))
            return NULL;
    if (!has_stack) return unchanged(self, instruction, operands);
    if (instruction->opcode == IR_COPY) return operands[0];
    SplitValue *stack = split_stack(self, &instruction->shape);
    if (!stack) return NULL;
    for (int32_t o = 0; o < count; o++) {
        bool is_parameter = operands[o]->follows >= 0 && !operands[o]->layers;
        if (is_parameter) self->is_wanted[operands[o]->follows] = true;
        stack->group = split_join(self, stack->group, operands[o]->group);
    }
    IrShape shape = split_layer_shape(&instruction->shape), scalar = {.type = shape.type};
    for (int32_t k = 0; k < instruction->shape.dimensions[0] && !self->is_too_large; k++) {
        bool is_filled = true, is_same = true;
        for (int32_t o = 0; o < count; o++) {
            SplitValue *operand = operands[o];
            fills[o] = operand->shape->rank == 0 ? split_array(self, operand)
                       : operand->layers         ? operand->layers[k].fill
                                                 : operand->fill; /* LAYERS_NONE: elements may differ */
            is_filled = is_filled && fills[o] >= 0;
            is_same = is_same && fills[o] == last[o];
        }
        bool adds = instruction->opcode == IR_ADD && shape.type != DTYPE_PRED;
        if (is_filled && adds && (split_is_zero(self, fills[0]) || split_is_zero(self, fills[1]))) {
            stack->layers[k].fill = fills[split_is_zero(self, fills[0]) ? 1 : 0];
            continue;
        }
        if (is_filled) {
            if (!is_same || filled < 0)
                filled = split_add_like(self, &scalar, fills, count, instruction->attributes);
            memcpy(last, fills, sizeof last);
            stack->layers[k].fill = filled;
            continue;
        }
        if (adds && fills[0] >= 0 && split_is_zero(self, fills[0])) {
            stack->layers[k].value = split_layer(self, operands[1], k);
        } else if (adds && fills[1] >= 0 && split_is_zero(self, fills[1])) {
            stack->layers[k].value = split_layer(self, operands[0], k);
        } else {
            for (int32_t o = 0; o < count; o++) /* an operator may take scalars beside arrays */
                values[o] = operands[o]->shape->rank == 0 ? split_array(self, operands[o])
                                                          : split_layer(self, operands[o], k);
            stack->layers[k].value = split_add_like(self, &shape, values, count, instruction->attributes);
        }
    }
    return stack;
}

/* Returns the operator of one layer, with attributes->dimensions lowered by one; first = 1: without the
 * first one. */
static const IrAttributes *lower_dimensions(Splitter *self, const IrAttributes *attributes, int32_t first) {
    Arena *arena = &self->composer.module->arena;
    IrAttributes *lowered = ARENA_ARRAY(arena, IrAttributes, 1);
    int64_t *dimensions = ARENA_ARRAY(arena, int64_t, attributes->dimension_count + 1);
    if (arena->failed) return attributes;
    for (int32_t d = first; d < attributes->dimension_count; d++)
        dimensions[d - first] = attributes->dimensions[d] - 1;
    *lowered = *attributes;
    lowered->dimensions = dimensions;
    lowered->dimension_count = attributes->dimension_count - first;
    return lowered;
}

static SplitValue *for_each_layer(Splitter *self, const IrInstruction *instruction,
                                  SplitValue *const *operands, const IrAttributes *attributes) {
    SplitValue *stack = split_stack(self, &instruction->shape);
    if (!stack) return NULL;
    stack->group = operands[0]->group;
    IrShape shape = split_layer_shape(&instruction->shape);
    for (int32_t k = 0; k < instruction->shape.dimensions[0] && !self->is_too_large; k++) {
        int32_t values[2] = {split_layer(self, operands[0], k), 0};
        if (instruction->operand_count > 1) values[1] = split_array(self, operands[1]);
        bool is_kept = instruction->opcode != IR_REDUCE &&
                       ir_shape_equal(&split_instruction(self, values[0])->shape, &shape);
        if (instruction->opcode == IR_TRANSPOSE)
            for (int32_t d = 0; d < attributes->dimension_count; d++)
                is_kept = is_kept && attributes->dimensions[d] == d;
        stack->layers[k].value =
            is_kept ? values[0]
                    : split_add_like(self, &shape, values, instruction->operand_count, attributes);
        if (instruction->opcode != IR_REDUCE) stack->layers[k].fill = operands[0]->layers[k].fill;
    }
    return stack;
}

/* A broadcast of a constant. */
typedef struct Repeated {
    OpenEntry entry; /* by constant and shape */
    int32_t made;
} Repeated;

/* Returns a broadcast of a scalar; the same one for equal shapes of one constant. */
static int32_t repeat(Splitter *self, const IrInstruction *instruction, int32_t scalar) {
    const IrShape *shape = &instruction->shape;
    uint64_t key = hash_combine(hash_combine(0, (uint64_t)scalar), (uint64_t)shape->type);
    for (int32_t d = 0; d < shape->rank; d++) key = hash_combine(key, (uint64_t)shape->dimensions[d]);
    const Repeated *known = open_table_find(&self->repeated, sizeof *known, key);
    if (known) {
        const IrInstruction *made = split_instruction(self, known->made);
        if (made->operands[0] == scalar && ir_shape_equal(&made->shape, shape)) return known->made;
    }
    Repeated repeated = {{.key = key}, split_add_like(self, shape, &scalar, 1, instruction->attributes)};
    bool is_shared = !self->is_too_large && !self->composer.module->arena.failed &&
                     split_instruction(self, scalar)->opcode == IR_CONSTANT;
    if (is_shared) open_table_add(&self->repeated, sizeof repeated, &repeated.entry);
    return repeated.made;
}

static SplitValue *broadcast(Splitter *self, const IrInstruction *instruction, SplitValue *operand) {
    const IrAttributes *attributes = instruction->attributes;
    if (operand->shape->rank == 0) {
        int32_t array = split_array(self, operand);
        SplitValue *value = split_made(self, &instruction->shape, repeat(self, instruction, array));
        value->fill = array;
        return value;
    }
    if (!split_is_stack(operand) || attributes->dimension_count < 1 || attributes->dimensions[0] != 0)
        return NULL;
    if (instruction->shape.dimensions[0] != operand->shape->dimensions[0]) return NULL;
    return for_each_layer(self, instruction, &operand, lower_dimensions(self, attributes, 1));
}

static SplitValue *transpose(Splitter *self, const IrInstruction *instruction, SplitValue *operand) {
    const IrAttributes *attributes = instruction->attributes;
    if (!split_is_stack(operand) || attributes->dimension_count < 1 || attributes->dimensions[0] != 0)
        return NULL;
    return for_each_layer(self, instruction, &operand, lower_dimensions(self, attributes, 1));
}

static SplitValue *reshape(Splitter *self, const IrInstruction *instruction, SplitValue *operand) {
    const IrShape *from = operand->shape, *to = &instruction->shape;
    if (operand->layers && from->dimensions[0] == 1) { /* one layer without its dimension */
        int32_t layer = split_layer(self, operand, 0);
        SplitValue *value = split_made(self, to, layer);
        if (!self->is_too_large && !ir_shape_equal(&split_instruction(self, layer)->shape, to))
            value->array = split_add_like(self, to, &layer, 1, instruction->attributes);
        value->fill = operand->layers[0].fill;
        return value;
    }
    if (split_is_stack(operand)) {
        if (to->rank < 1 || to->dimensions[0] != from->dimensions[0]) return NULL;
        return for_each_layer(self, instruction, &operand, instruction->attributes);
    }
    if (operand->layers || to->rank < 1 || to->dimensions[0] != 1) return NULL;
    IrShape row = {.type = to->type, .rank = to->rank - 1, .dimensions = to->dimensions + 1};
    if (!ir_shape_equal(&row, from)) return NULL;
    SplitValue *stack = split_stack(self, to); /* a row that may become a layer */
    if (!stack) return NULL;
    stack->layers[0] = (LayerValue){split_array(self, operand), operand->fill};
    return stack;
}

/* Returns a sum over layers and other dimensions: of each layer, then of all. */
static SplitValue *reduce_layers(Splitter *self, const IrInstruction *instruction,
                                 SplitValue *const *operands) {
    IrOpcode opcode = ir_computation_operator(self->from, instruction->called[0]);
    bool is_sum = opcode == IR_ADD && split_is_zero(self, split_array(self, operands[1]));
    bool is_extreme = opcode == IR_MAXIMUM || opcode == IR_MINIMUM;
    int32_t others = instruction->attributes->dimension_count - 1, total = 0;
    if (!is_sum && (!is_extreme || others == 0)) return NULL;
    Arena *arena = &self->composer.module->arena;
    IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
    int64_t *dimensions = ARENA_ARRAY(arena, int64_t, others + 1);
    if (arena->failed) return NULL;
    *attributes = *instruction->attributes;
    attributes->dimensions = dimensions;
    attributes->dimension_count = others;
    for (int32_t d = 0, to = 0; d <= others; d++)
        if (instruction->attributes->dimensions[d] > 0)
            dimensions[to++] = instruction->attributes->dimensions[d] - 1;
    for (int32_t k = 0; k < operands[0]->shape->dimensions[0] && !self->is_too_large; k++) {
        int32_t values[2] = {split_layer(self, operands[0], k), split_array(self, operands[1])};
        int32_t part =
            others == 0 ? values[0] : split_add_like(self, &instruction->shape, values, 2, attributes);
        int32_t both[2] = {total, part};
        total = k == 0 ? part : split_add(self, opcode, &instruction->shape, both, 2, NULL);
    }
    return split_made(self, &instruction->shape, total);
}

static SplitValue *reduce_stack(Splitter *self, const IrInstruction *instruction,
                                SplitValue *const *operands) {
    const IrAttributes *attributes = instruction->attributes;
    if (instruction->operand_count != 2 || !split_is_stack(operands[0])) return NULL;
    for (int32_t d = 0; d < attributes->dimension_count; d++)
        if (attributes->dimensions[d] == 0) return reduce_layers(self, instruction, operands);
    return for_each_layer(self, instruction, operands, lower_dimensions(self, attributes, 0));
}

SplitValue *split_operator(Splitter *self, const IrInstruction *instruction, SplitValue *const *operands) {
    SplitValue *value = known_integer(self, instruction, operands);
    if (value || instruction->operand_count == 0) return value;
    switch (instruction->opcode) {
    case IR_DYNAMIC_SLICE: return dynamic_slice(self, instruction, operands);
    case IR_DYNAMIC_UPDATE_SLICE: return dynamic_update(self, instruction, operands);
    case IR_SLICE: return slice(self, instruction, operands[0]);
    case IR_PAD: return pad(self, instruction, operands);
    case IR_CONCATENATE: return concatenate_stacks(self, instruction, operands);
    case IR_BROADCAST: return broadcast(self, instruction, operands[0]);
    case IR_TRANSPOSE: return transpose(self, instruction, operands[0]);
    case IR_RESHAPE: return reshape(self, instruction, operands[0]);
    case IR_REDUCE: return reduce_stack(self, instruction, operands);
    default: return ir_is_elementwise(instruction->opcode) ? elementwise(self, instruction, operands) : NULL;
    }
}
