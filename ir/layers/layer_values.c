/* Values of a module with separate layers, and the instructions that they need.
 *
 * split_add() and its relatives append instructions to the new module. A value is made where a user first
 * needs it: split_array() makes it as one array, with a concatenation if it is a stack, and split_layer()
 * makes layer k of a stack.
 */
#include "ir/layers/layer_values.h"

#include <string.h>

#include "base/union_find.h"

const IrInstruction *split_instruction(const Splitter *self, int32_t made) {
    return ir_composed(&self->composer, 0, made);
}

static int32_t append_instruction(Splitter *self, IrInstruction *made) {
    if (--self->room < 0) self->is_too_large = true;
    if (self->is_too_large || self->arena->failed || self->composer.module->arena.failed) return 0;
    return ir_compose(&self->composer, 0, made, self->origin);
}

int32_t split_add(Splitter *self, IrOpcode opcode, const IrShape *shape, const int32_t *operands,
                  int32_t operand_count, const IrAttributes *attributes) {
    const IrInstruction *served = &self->from->instructions[self->origin];
    IrInstruction made = ir_serving(served, opcode, shape, operands, operand_count, attributes);
    return append_instruction(self, &made);
}

int32_t split_add_like(Splitter *self, const IrShape *shape, const int32_t *operands, int32_t operand_count,
                       const IrAttributes *attributes) {
    IrInstruction made = self->from->instructions[self->origin];
    int32_t called[2];
    if (made.called_count > 2) return 0;
    for (int32_t k = 0; k < made.called_count; k++)
        called[k] = split_computation(self, made.called[k], made.opcode != IR_WHILE);
    if (!ir_shape_equal(&made.shape, shape)) made.message = NULL;
    made.shape = *shape;
    made.operands = operands;
    made.operand_count = operand_count;
    made.called = called;
    made.attributes = attributes;
    return append_instruction(self, &made);
}

int32_t split_computation(Splitter *self, int32_t computation, bool is_shared) {
    if (is_shared && self->computation[computation] >= 0) return self->computation[computation];
    const IrComputation *from = &self->from->computations[computation];
    self->room -= from->count;
    if (self->room < 0) self->is_too_large = true;
    if (self->is_too_large) return 0;
    int32_t made = ir_compose_computation(&self->composer, from->name);
    if (is_shared) self->computation[computation] = made;
    for (int32_t i = from->first; i < from->first + from->count && !self->is_too_large; i++) {
        IrInstruction copy = self->from->instructions[i];
        int32_t *operands = ARENA_ARRAY(self->arena, int32_t, copy.operand_count + 1);
        int32_t *called = ARENA_ARRAY(self->arena, int32_t, copy.called_count + 1);
        if (self->arena->failed || self->composer.module->arena.failed) return made;
        bool shares = copy.opcode != IR_WHILE && copy.opcode != IR_CONDITIONAL;
        for (int32_t k = 0; k < copy.operand_count; k++) operands[k] = copy.operands[k] - from->first;
        for (int32_t k = 0; k < copy.called_count; k++)
            called[k] = split_computation(self, copy.called[k], shares);
        copy.operands = operands;
        copy.called = called;
        ir_compose(&self->composer, made, &copy, i);
    }
    if (!self->composer.module->arena.failed)
        self->composer.computations[made].root = from->root - from->first;
    return made;
}

SplitValue *split_value(Splitter *self, const IrShape *shape) {
    static SplitValue none;
    SplitValue *value = ARENA_ARRAY(self->arena, SplitValue, 1);
    if (!value) return &none;
    *value = (SplitValue){.shape = shape,
                          .array = LAYERS_NONE,
                          .fill = LAYERS_NONE,
                          .parameter = LAYERS_NONE,
                          .follows = LAYERS_NONE,
                          .base = LAYERS_NONE,
                          .group = LAYERS_NONE,
                          .origin = self->origin};
    return value;
}

SplitValue *split_made(Splitter *self, const IrShape *shape, int32_t array) {
    SplitValue *value = split_value(self, shape);
    value->array = array;
    return value;
}

SplitValue *split_number(Splitter *self, const IrShape *shape, int64_t number) {
    SplitValue *value = split_value(self, shape);
    value->is_known = true;
    value->number = number;
    return value;
}

SplitValue *split_stack(Splitter *self, const IrShape *shape) {
    if (shape->rank < 1 || shape->dimensions[0] < 1 || shape->dimensions[0] > LAYERS_MOST) return NULL;
    self->room -= shape->dimensions[0] / 8; /* an entry is an eighth of an instruction */
    if (self->room < 0) self->is_too_large = true;
    if (self->is_too_large) return NULL;
    SplitValue *value = split_value(self, shape);
    value->layers = ARENA_ARRAY(self->arena, LayerValue, shape->dimensions[0]);
    if (!value->layers) return NULL;
    for (int64_t k = 0; k < shape->dimensions[0]; k++)
        value->layers[k] = (LayerValue){LAYERS_NONE, LAYERS_NONE};
    return value;
}

bool split_is_stack(const SplitValue *value) {
    return value->layers && value->shape->dimensions[0] > 1;
}

SplitValue *split_as_stack(Splitter *self, SplitValue *value) {
    if (value->layers) return value;
    SplitValue *stack = split_stack(self, value->shape);
    if (!stack) return NULL;
    for (int64_t k = 0; k < value->shape->dimensions[0]; k++) stack->layers[k].fill = value->fill;
    if (value->fill < 0) stack->base = split_array(self, value);
    return stack;
}

IrShape split_layer_shape(const IrShape *shape) {
    return (IrShape){.type = shape->type, .rank = shape->rank - 1, .dimensions = shape->dimensions + 1};
}

/* Returns a constant of one element. */
static int32_t split_constant(Splitter *self, Dtype type, int64_t number) {
    Arena *arena = &self->composer.module->arena;
    IrLiteral *literal = ARENA_ARRAY(arena, IrLiteral, 1);
    char *data = arena_copy_bytes(arena, &number, sizeof number); /* little-endian, as files are */
    if (arena->failed) return 0;
    *literal = (IrLiteral){.data = data, .bytes = dtype_bytes(type)};
    IrShape scalar = {.type = type};
    int32_t made = split_add(self, IR_CONSTANT, &scalar, NULL, 0, NULL);
    if (!arena->failed && !self->is_too_large) ir_composed(&self->composer, 0, made)->literal = literal;
    return made;
}

bool split_is_zero(const Splitter *self, int32_t made) {
    const IrInstruction *constant = split_instruction(self, made);
    if (constant->opcode != IR_CONSTANT || !constant->literal || !constant->literal->data) return false;
    const char *bytes = constant->literal->data;
    for (int64_t b = 0; b < constant->literal->bytes; b++)
        if (bytes[b] != 0) return false;
    return true;
}

int32_t split_join(Splitter *self, int32_t a, int32_t b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    a = union_find_root(self->group, a);
    b = union_find_root(self->group, b);
    self->group[a > b ? a : b] = a < b ? a : b;
    return a < b ? a : b;
}

static int32_t reshape(Splitter *self, int32_t made, const IrShape *shape) {
    if (self->is_too_large || ir_shape_equal(&split_instruction(self, made)->shape, shape)) return made;
    return split_add(self, IR_RESHAPE, shape, &made, 1, NULL);
}

static IrShape row_shape(Splitter *self, const IrShape *shape) {
    int64_t *dimensions = ARENA_ARRAY(&self->composer.module->arena, int64_t, shape->rank + 1);
    IrShape row = {.type = shape->type, .rank = shape->rank, .dimensions = dimensions};
    for (int32_t d = 1; dimensions && d < shape->rank; d++) dimensions[d] = shape->dimensions[d];
    if (dimensions) dimensions[0] = 1;
    else row.rank = 0;
    return row;
}

/* Puts a parameter of the original, or part `layer` of it, in place. */
static int32_t add_parameter(Splitter *self, int32_t parameter, int32_t layer) {
    const IrComputation *entry = &self->from->computations[self->from->entry];
    IrInstruction made = self->from->instructions[entry->parameters[parameter]];
    Arena *arena = &self->composer.module->arena;
    IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
    if (!attributes) return 0;
    *attributes = *made.attributes;
    attributes->parameter_number =
        self->number[parameter] + (layer < 0 ? 0 : layer * self->stride[parameter]);
    made.attributes = attributes;
    if (layer >= 0) {
        made.message = NULL;
        made.shape = split_layer_shape(&made.shape);
        made.name = arena_format(arena, "%s.%d", made.name, layer);
        made.op_name = *made.op_name ? arena_format(arena, "%s[%d]", made.op_name, layer) : made.op_name;
    }
    int32_t origin = self->origin;
    self->origin = entry->parameters[parameter];
    int32_t added = append_instruction(self, &made);
    self->origin = origin;
    return added;
}

int32_t split_layer(Splitter *self, SplitValue *value, int32_t k) {
    IrShape shape = split_layer_shape(value->shape);
    if (!value->layers && value->fill >= 0) { /* all layers are the same */
        if (value->base < 0)
            value->base =
                shape.rank == 0 ? value->fill : split_add(self, IR_BROADCAST, &shape, &value->fill, 1, NULL);
        return value->base;
    }
    SplitValue *stack = split_as_stack(self, value);
    if (!stack || self->is_too_large) return 0;
    LayerValue *layer = &stack->layers[k];
    if (layer->value >= 0) return layer->value;
    if (layer->fill >= 0 && shape.rank == 0) return layer->value = layer->fill;
    if (layer->fill >= 0) return layer->value = split_add(self, IR_BROADCAST, &shape, &layer->fill, 1, NULL);
    if (stack->parameter >= 0) return layer->value = add_parameter(self, stack->parameter, k);
    Arena *arena = &self->composer.module->arena;
    IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
    IrShape row = row_shape(self, value->shape);
    int64_t *start = ARENA_ARRAY(arena, int64_t, row.rank + 1),
            *limit = ARENA_ARRAY(arena, int64_t, row.rank + 1);
    int64_t *stride = ARENA_ARRAY(arena, int64_t, row.rank + 1);
    if (arena->failed) return 0;
    for (int32_t d = 0; d < row.rank; d++) {
        start[d] = d == 0 ? k : 0;
        limit[d] = d == 0 ? k + 1 : row.dimensions[d];
        stride[d] = 1;
    }
    *attributes = (IrAttributes){.slice_start = start, .slice_limit = limit, .slice_stride = stride};
    int32_t sliced = split_add(self, IR_SLICE, &row, &stack->base, 1, attributes);
    return layer->value = reshape(self, sliced, &shape);
}

/* Returns the array of a stack: its layers one after the other. */
static int32_t concatenate(Splitter *self, SplitValue *stack) {
    int32_t count = (int32_t)stack->shape->dimensions[0];
    int32_t *rows = ARENA_ARRAY(self->arena, int32_t, count);
    IrAttributes *attributes = ARENA_ARRAY(&self->composer.module->arena, IrAttributes, 1);
    int64_t *dimension = ARENA_ARRAY(&self->composer.module->arena, int64_t, 1);
    if (!rows || !attributes || !dimension) return 0;
    bool is_filled = true;
    for (int32_t k = 0; k < count; k++)
        is_filled = is_filled && stack->layers[k].fill >= 0 && stack->layers[k].fill == stack->layers[0].fill;
    if (is_filled) return split_add(self, IR_BROADCAST, stack->shape, &stack->layers[0].fill, 1, NULL);
    if (count == 1) return reshape(self, split_layer(self, stack, 0), stack->shape);
    if (stack->group >= 0) {
        self->is_denied[union_find_root(self->group, stack->group)] = true;
        self->needed_by = self->origin;
    }
    IrShape row = row_shape(self, stack->shape);
    for (int32_t k = 0; k < count; k++) rows[k] = reshape(self, split_layer(self, stack, k), &row);
    *attributes = (IrAttributes){.dimension_count = 1, .dimensions = dimension};
    return split_add(self, IR_CONCATENATE, stack->shape, rows, count, attributes);
}

static int32_t make_tuple(Splitter *self, SplitValue *value) {
    int32_t *elements = ARENA_ARRAY(self->arena, int32_t, value->shape->rank + 1);
    for (int32_t k = 0; elements && k < value->shape->rank; k++)
        elements[k] = split_array(self, value->elements[k]);
    return elements ? split_add(self, IR_TUPLE, value->shape, elements, value->shape->rank, NULL) : 0;
}

int32_t split_array(Splitter *self, SplitValue *value) {
    if (value->array >= 0 || self->is_too_large || self->arena->failed)
        return value->array >= 0 ? value->array : 0;
    if (value->layers) value->array = concatenate(self, value);
    else if (value->elements) value->array = make_tuple(self, value);
    else if (value->is_known) value->array = split_constant(self, value->shape->type, value->number);
    else if (value->parameter >= 0) value->array = add_parameter(self, value->parameter, -1);
    return value->array;
}
