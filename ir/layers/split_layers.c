/* Finds stacked parameters, and interprets the entry with a value for each of their layers.
 *
 * 1. A parameter with a new value is a candidate if a counted loop takes row `i` of it in every trip, or if
 *    slices of one row each cover it.
 * 2. The entry is interpreted (layer_values.h) with these as stacks. Loops that slice stacks are unrolled.
 * 3. A parameter that meets a stack element by element becomes a candidate (the optimizer's states). One
 *    that some operator needs as one array is a candidate no more, with all that it meets. After such a
 *    change step 2 starts again; the last attempt changes nothing.
 */
#include "ir/layers/layers.h"

#include <string.h>

#include "ir/analysis/loops.h"
#include "ir/canonical/simplify.h"
#include "ir/layers/layer_values.h"

#define MOST_ATTEMPTS 8
#define MOST_HOPS     16

/* ---- candidates ---- */

int32_t split_parameter_of(const IrModule *module, int32_t value) {
    const IrShape *shape = &module->instructions[value].shape;
    for (int32_t hop = 0; hop < MOST_HOPS; hop++) {
        const IrInstruction *instruction = &module->instructions[value];
        const IrInstruction *first =
            instruction->operand_count > 0 ? &module->instructions[instruction->operands[0]] : NULL;
        if (instruction->opcode == IR_PARAMETER) return (int32_t)instruction->attributes->parameter_number;
        if (instruction->opcode == IR_GET_TUPLE_ELEMENT && first->opcode == IR_OPT_BARRIER)
            first = &module->instructions[first->operands[0]];
        if (instruction->opcode == IR_GET_TUPLE_ELEMENT && first->opcode == IR_TUPLE)
            value = first->operands[instruction->attributes->tuple_index];
        else if (instruction->operand_count == 1 && ir_is_elementwise(instruction->opcode) &&
                 first->shape.type != DTYPE_TUPLE && first->shape.rank == shape->rank)
            value = instruction->operands[0];
        else return -1;
    }
    return -1;
}

static bool takes_row(const IrShape *array, const IrShape *row) {
    if (array->type == DTYPE_TUPLE || array->rank < 1 || row->rank != array->rank || row->dimensions[0] != 1)
        return false;
    for (int32_t d = 1; d < array->rank; d++)
        if (row->dimensions[d] != array->dimensions[d]) return false;
    return array->dimensions[0] > 1 && array->dimensions[0] <= LAYERS_MOST;
}

void split_mark_sliced(const IrModule *module, const IrInstruction *loop, bool *is_sliced) {
    const IrComputation *body = &module->computations[loop->called[0]];
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *slice = &module->instructions[i];
        if (slice->opcode != IR_DYNAMIC_SLICE) continue;
        const IrInstruction *element = &module->instructions[slice->operands[0]];
        if (element->opcode != IR_GET_TUPLE_ELEMENT || element->operands[0] != body->parameters[0]) continue;
        if (takes_row(&element->shape, &slice->shape)) is_sliced[element->attributes->tuple_index] = true;
    }
}

static bool has_pair(const IrRoles *roles, int32_t parameter) {
    return parameter >= 0 && roles->parameters[parameter].output >= 0 &&
           roles->parameters[parameter].role != IR_ROLE_DATA;
}

static AmStatus find_in_loop(Splitter *self, const IrInstruction *loop, AmError *error) {
    const IrModule *module = self->from;
    const IrInstruction *start = &module->instructions[loop->operands[0]];
    if (start->opcode != IR_TUPLE) return AM_OK;
    bool *is_sliced = ARENA_ARRAY(self->arena, bool, start->operand_count + 1);
    if (!is_sliced) return am_fail_memory(error, start->operand_count);
    split_mark_sliced(module, loop, is_sliced);
    for (int32_t k = 0; k < start->operand_count; k++) {
        int32_t parameter = is_sliced[k] ? split_parameter_of(module, start->operands[k]) : -1;
        if (has_pair(self->roles, parameter)) self->is_split[parameter] = true;
    }
    return AM_OK;
}

static AmStatus find_candidates(Splitter *self, AmError *error) {
    const IrModule *module = self->from;
    const IrComputation *entry = &module->computations[module->entry];
    int32_t *rows = ARENA_ARRAY(self->arena, int32_t, entry->parameter_count + 1);
    if (!rows) return am_fail_memory(error, entry->parameter_count);
    for (int32_t i = entry->first; i < entry->first + entry->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        if (instruction->opcode == IR_WHILE) {
            const IrLoop *loop = ir_loop(module, i);
            if (loop && loop->trips > 1 && loop->trips <= LAYERS_MOST)
                TRY(find_in_loop(self, instruction, error));
        }
        if (instruction->opcode != IR_SLICE) continue;
        const IrInstruction *array = &module->instructions[instruction->operands[0]];
        if (!takes_row(&array->shape, &instruction->shape)) continue;
        int32_t parameter = split_parameter_of(module, instruction->operands[0]);
        if (!has_pair(self->roles, parameter)) continue;
        if (++rows[parameter] >= array->shape.dimensions[0]) self->is_split[parameter] = true;
    }
    return AM_OK;
}

/* ---- interpretation ---- */

static SplitValue *interpret(Splitter *self, int32_t i, SplitValue **values, int32_t first);

static SplitValue *element_of(Splitter *self, const IrInstruction *instruction, SplitValue *tuple) {
    if (tuple->elements) return tuple->elements[instruction->attributes->tuple_index];
    int32_t array = split_array(self, tuple);
    return split_made(self, &instruction->shape,
                      split_add_like(self, &instruction->shape, &array, 1, instruction->attributes));
}

static SplitValue *tuple_of(Splitter *self, const IrShape *shape, SplitValue *const *elements) {
    SplitValue *tuple = split_value(self, shape);
    tuple->elements = ARENA_ARRAY(self->arena, SplitValue *, shape->rank + 1);
    if (tuple->elements && shape->rank > 0)
        memcpy(tuple->elements, elements, sizeof(SplitValue *) * (size_t)shape->rank);
    return tuple;
}

/* Copies any other operator, on arrays. */
static SplitValue *plain(Splitter *self, const IrInstruction *instruction, SplitValue *const *operands) {
    if (instruction->opcode == IR_CONSTANT && self->constant[self->origin] >= 0)
        return split_made(self, &instruction->shape, self->constant[self->origin]);
    IrInstruction made = *instruction;
    int32_t *arrays = ARENA_ARRAY(self->arena, int32_t, made.operand_count + 1);
    int32_t *called = ARENA_ARRAY(self->arena, int32_t, made.called_count + 1);
    if (self->arena->failed) return split_value(self, &instruction->shape);
    bool shares = made.opcode != IR_WHILE && made.opcode != IR_CONDITIONAL;
    for (int32_t k = 0; k < made.operand_count; k++) arrays[k] = split_array(self, operands[k]);
    for (int32_t k = 0; k < made.called_count; k++)
        called[k] = split_computation(self, made.called[k], shares);
    made.operands = arrays;
    made.called = called;
    if (--self->room < 0) self->is_too_large = true;
    if (self->is_too_large || self->composer.module->arena.failed)
        return split_value(self, &instruction->shape);
    SplitValue *value =
        split_made(self, &instruction->shape, ir_compose(&self->composer, 0, &made, self->origin));
    if (made.opcode == IR_CONSTANT) self->constant[self->origin] = value->array;
    for (int32_t k = made.operand_count - 1; ir_is_elementwise(made.opcode) && k >= 0; k--)
        if (operands[k]->follows >= 0) value->follows = operands[k]->follows;
    return value;
}

/* Returns a barrier of a tuple that has stacks: of all their layers. */
static SplitValue *barrier(Splitter *self, const IrInstruction *instruction, SplitValue *tuple) {
    int32_t count = 0, made = 0;
    bool has_stack = false;
    for (int32_t k = 0; k < tuple->shape->rank; k++) {
        bool is_stack = split_is_stack(tuple->elements[k]);
        count += is_stack ? (int32_t)tuple->elements[k]->shape->dimensions[0] : 1;
        has_stack = has_stack || is_stack;
    }
    if (!has_stack) return NULL;
    Arena *arena = &self->composer.module->arena;
    int32_t *values = ARENA_ARRAY(self->arena, int32_t, count + 1);
    IrShape *shapes = ARENA_ARRAY(arena, IrShape, count + 1);
    SplitValue **elements = ARENA_ARRAY(self->arena, SplitValue *, tuple->shape->rank + 1);
    if (self->arena->failed || arena->failed) return NULL;
    for (int32_t k = 0; k < tuple->shape->rank; k++) {
        SplitValue *element = tuple->elements[k];
        int64_t parts = split_is_stack(element) ? element->shape->dimensions[0] : 1;
        for (int32_t p = 0; p < parts && !self->is_too_large; p++) {
            values[made] =
                split_is_stack(element) ? split_layer(self, element, p) : split_array(self, element);
            shapes[made++] = split_is_stack(element) ? split_layer_shape(element->shape) : *element->shape;
        }
    }
    IrShape shape = {.type = DTYPE_TUPLE, .rank = made, .elements = shapes};
    int32_t joined = split_add(self, IR_TUPLE, &shape, values, made, NULL);
    int32_t held = split_add_like(self, &shape, &joined, 1, instruction->attributes);
    made = 0;
    for (int32_t k = 0; k < tuple->shape->rank; k++) {
        SplitValue *element = tuple->elements[k];
        SplitValue *after = split_is_stack(element) ? split_stack(self, element->shape) : NULL;
        int64_t parts = after ? element->shape->dimensions[0] : 1;
        for (int32_t p = 0; p < parts && !self->is_too_large; p++, made++) {
            IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
            if (!attributes) return NULL;
            attributes->tuple_index = made;
            int32_t taken = split_add(self, IR_GET_TUPLE_ELEMENT, &shapes[made], &held, 1, attributes);
            if (after) after->layers[p].value = taken;
            else elements[k] = split_made(self, element->shape, taken);
        }
        if (self->is_too_large) return NULL;
        if (after) after->group = element->group;
        if (after) elements[k] = after;
    }
    return tuple_of(self, &instruction->shape, elements);
}

/* Returns whether the loop takes the rows of stacks, one in each trip. */
static bool is_over_layers(Splitter *self, int32_t i, SplitValue *start) {
    const IrInstruction *instruction = &self->from->instructions[i];
    const IrLoop *loop = ir_loop(self->from, i);
    if (!loop || loop->trips < 2 || loop->trips > LAYERS_MOST || loop->counter < 0 || !start->elements)
        return false;
    bool *is_sliced = ARENA_ARRAY(self->arena, bool, start->shape->rank + 1);
    if (!is_sliced) return false;
    split_mark_sliced(self->from, instruction, is_sliced);
    for (int32_t k = 0; k < start->shape->rank; k++)
        if (is_sliced[k] && split_is_stack(start->elements[k]) &&
            start->elements[k]->shape->dimensions[0] == loop->trips)
            return true;
    return false;
}

/* Interprets the body of a loop over layers once for each trip. */
static SplitValue *unroll(Splitter *self, int32_t i, SplitValue *carried) {
    const IrInstruction *loop = &self->from->instructions[i];
    const IrComputation *body = &self->from->computations[loop->called[0]];
    int64_t trips = ir_loop_trips(self->from, i);
    self->unrolled++;
    for (int64_t trip = 0; trip < trips && !self->is_too_large && !self->arena->failed; trip++) {
        SplitValue **values = ARENA_ARRAY(self->arena, SplitValue *, body->count + 1);
        if (!values) return carried;
        values[body->parameters[0] - body->first] = carried;
        for (int32_t b = body->first; b < body->first + body->count && !self->is_too_large; b++)
            if (!values[b - body->first]) values[b - body->first] = interpret(self, b, values, body->first);
        if (!self->is_too_large) carried = values[body->root - body->first];
    }
    return carried;
}

/* Finds the value of an instruction from those of its operands: a tuple, the layers of a stack, or a new
 * instruction. */
static SplitValue *interpret(Splitter *self, int32_t i, SplitValue **values, int32_t first) {
    const IrInstruction *instruction = &self->from->instructions[i];
    SplitValue **operands = ARENA_ARRAY(self->arena, SplitValue *, instruction->operand_count + 1);
    if (!operands) return split_value(self, &instruction->shape);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        operands[k] = values[instruction->operands[k] - first];
    int32_t before = self->origin;
    self->origin = i;
    SplitValue *value = NULL;
    if (instruction->opcode == IR_TUPLE) value = tuple_of(self, &instruction->shape, operands);
    else if (instruction->opcode == IR_GET_TUPLE_ELEMENT) value = element_of(self, instruction, operands[0]);
    else if (instruction->opcode == IR_OPT_BARRIER && operands[0]->elements)
        value = barrier(self, instruction, operands[0]);
    else if (instruction->opcode == IR_WHILE && is_over_layers(self, i, operands[0]))
        value = unroll(self, i, operands[0]);
    else value = split_operator(self, instruction, operands);
    if (!value && !self->is_too_large) value = plain(self, instruction, operands);
    self->origin = before;
    return value ? value : split_value(self, &instruction->shape);
}

static SplitValue *parameter_value(Splitter *self, int32_t p) {
    const IrComputation *entry = &self->from->computations[self->from->entry];
    const IrShape *shape = &self->from->instructions[entry->parameters[p]].shape;
    SplitValue *value = self->is_split[p] ? split_stack(self, shape) : split_value(self, shape);
    if (!value) value = split_value(self, shape);
    value->parameter = value->follows = p;
    if (value->layers) value->group = p;
    return value;
}

/* ---- numbers ---- */

static int64_t depth_of(const Splitter *self, int32_t p) {
    const IrShape *shape = &self->from->instructions[self->roles->parameters[p].instruction].shape;
    return self->is_split[p] ? shape->dimensions[0] : 0;
}

/* Returns whether parameters p - 1 and p are in one tree of stacks of the same depth: all parameters whose
 * paths begin as both do are such stacks. */
static bool follows_in_tree(const Splitter *self, int32_t p) {
    const IrParameter *parameters = self->roles->parameters;
    const char *path = parameters[p].path, *before = parameters[p - 1].path;
    int64_t depth = depth_of(self, p);
    if (depth == 0 || depth_of(self, p - 1) != depth || !path || !before) return false;
    size_t length = 0, common = 0;
    for (; path[length] && path[length] == before[length]; length++)
        if (path[length] == '[' || path[length] == '.') common = length;
    for (int32_t step = -1; step <= 1; step += 2)
        for (int32_t k = p + step; k >= 0 && k < self->roles->parameter_count; k += step) {
            if (!parameters[k].path || strncmp(parameters[k].path, path, common) != 0) break;
            if (depth_of(self, k) != depth) return false;
        }
    return true;
}

/* Numbers the new parameters as a model with one tree for each layer has them: of the stacks in one tree, all
 * of the first layer come first. */
static void number_parameters(Splitter *self) {
    int32_t count = self->roles->parameter_count;
    for (int32_t first = 0, next = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && follows_in_tree(self, end); end++) {}
        for (int32_t p = first; p < end; p++) {
            self->number[p] = next + p - first;
            self->stride[p] = end - first;
        }
        next += (end - first) * (int32_t)(self->is_split[first] ? depth_of(self, first) : 1);
    }
}

/* ---- outputs ---- */

/* Emits the parameters that no user needed, and maps all to those of the module as read. */
static void map_parameters(Splitter *self, IrLayerMap *map, SplitValue **parameters) {
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        int64_t layers = self->is_split[p] ? parameters[p]->shape->dimensions[0] : 1;
        int64_t elements = self->is_split[p] ? ir_shape_elements(parameters[p]->shape) / layers : 0;
        for (int32_t l = 0; l < layers; l++) {
            if (self->is_split[p]) split_layer(self, parameters[p], l);
            else split_array(self, parameters[p]);
            map->parameters[self->number[p] + l * self->stride[p]] =
                (IrLayerPart){p, l * elements, self->is_split[p] ? l : -1};
        }
    }
}

/* Emits the outputs, and the parameters that no user needed; fills the map. */
static AmStatus finish_entry(Splitter *self, IrLayerMap *map, SplitValue **parameters, SplitValue *root,
                             AmError *error) {
    const IrRoles *roles = self->roles;
    Arena *arena = &self->composer.module->arena;
    int64_t count = 0;
    int32_t parameter_count = 0;
    int32_t *split_of = ARENA_ARRAY(self->arena, int32_t, roles->output_count + 1);
    if (!split_of) return am_fail_memory(error, roles->output_count);
    for (int32_t k = 0; k < roles->output_count; k++) split_of[k] = -1;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (self->is_split[p]) split_of[roles->parameters[p].output] = p;
        parameter_count += self->is_split[p] ? (int32_t)parameters[p]->shape->dimensions[0] : 1;
    }
    for (int32_t k = 0; k < roles->output_count; k++)
        count += split_of[k] >= 0 ? parameters[split_of[k]]->shape->dimensions[0] : 1;
    int32_t *values = ARENA_ARRAY(self->arena, int32_t, count + 1);
    IrShape *shapes = ARENA_ARRAY(arena, IrShape, count + 1);
    map->outputs = ARENA_ARRAY(arena, IrLayerPart, count + 1);
    map->parameters = ARENA_ARRAY(arena, IrLayerPart, parameter_count + 1);
    if (self->arena->failed || arena->failed) return am_fail_memory(error, count);
    int32_t root_instruction = self->from->computations[self->from->entry].root;
    bool from_tuple = self->from->instructions[root_instruction].opcode == IR_TUPLE;
    for (int32_t first = 0, next = 0, trees; first < roles->output_count; first += trees) {
        int32_t root_split = split_of[first]; /* outputs of one tree are stacks one after another */
        for (trees = 1; root_split >= 0 && first + trees < roles->output_count; trees++)
            if (split_of[first + trees] != root_split + trees ||
                self->number[root_split + trees] != self->number[root_split] + trees)
                break;
        for (int32_t k = first; k < first + trees; k++) {
            SplitValue *value = from_tuple ? root->elements[k] : root;
            int64_t layers = split_of[k] >= 0 ? value->shape->dimensions[0] : 1;
            int64_t elements = split_of[k] >= 0 ? ir_shape_elements(value->shape) / layers : 0;
            map->output_count += (int32_t)layers;
            for (int32_t l = 0; l < layers && !self->is_too_large; l++) {
                int32_t to = next + k - first + l * trees;
                values[to] = split_of[k] >= 0 ? split_layer(self, value, l) : split_array(self, value);
                shapes[to] = split_of[k] >= 0 ? split_layer_shape(value->shape) : *value->shape;
                map->outputs[to] = (IrLayerPart){k, l * elements, split_of[k] >= 0 ? l : -1};
            }
        }
        next = map->output_count;
    }
    map->parameter_count = parameter_count;
    map_parameters(self, map, parameters);
    if (self->is_too_large) return AM_OK;
    IrShape shape = {.type = DTYPE_TUPLE, .rank = (int32_t)count, .elements = shapes};
    bool is_tuple = self->from->instructions[self->origin].opcode == IR_TUPLE || count > 1;
    int32_t made = is_tuple ? split_add(self, IR_TUPLE, &shape, values, (int32_t)count, NULL) : values[0];
    if (arena->failed) return am_fail_memory(error, count);
    self->composer.computations[0].root = made;
    return AM_OK;
}

/* Interprets the entry once, with the parameters that are split now. */
static AmStatus attempt_split(Splitter *self, IrLayerMap *map, AmError *error) {
    const IrModule *from = self->from;
    const IrComputation *entry = &from->computations[from->entry];
    SplitValue **values = ARENA_ARRAY(self->arena, SplitValue *, entry->count + 1);
    SplitValue **parameters = ARENA_ARRAY(self->arena, SplitValue *, entry->parameter_count + 1);
    if (self->arena->failed) return am_fail_memory(error, entry->count);
    self->origin = entry->root;
    number_parameters(self);
    for (int32_t p = 0; p < entry->parameter_count; p++) {
        const IrShape *shape = &from->instructions[entry->parameters[p]].shape;
        self->group[p] = p;
        if (self->is_split[p]) self->has_depth[shape->dimensions[0]] = true;
        values[entry->parameters[p] - entry->first] = parameters[p] = parameter_value(self, p);
    }
    for (int32_t i = entry->first; i < entry->first + entry->count && !self->is_too_large; i++)
        if (!values[i - entry->first]) values[i - entry->first] = interpret(self, i, values, entry->first);
    if (self->is_too_large) return AM_OK;
    TRY(finish_entry(self, map, parameters, values[entry->root - entry->first], error));
    if (self->arena->failed || self->composer.module->arena.failed)
        return am_fail_memory(error, entry->count);
    return AM_OK;
}

/* ---- attempts ---- */

/* Takes what the attempt found over into the next one; returns whether anything changes. */
static bool revise(Splitter *self) {
    int32_t count = self->roles->parameter_count;
    bool changes = false;
    for (int32_t p = 0; p < count; p++)
        if (self->is_denied[p]) self->is_denied[split_join(self, p, p)] = true;
    for (int32_t p = 0; p < count; p++)
        if (self->is_denied[split_join(self, p, p)]) self->is_denied[p] = true;
    for (int32_t p = 0; p < count; p++) {
        const IrInstruction *parameter = &self->from->instructions[self->roles->parameters[p].instruction];
        bool fits = parameter->shape.type != DTYPE_TUPLE && parameter->shape.rank > 0 &&
                    parameter->shape.dimensions[0] > 1 && parameter->shape.dimensions[0] <= LAYERS_MOST;
        bool is_split = (self->is_split[p] || (self->is_wanted[p] && fits && has_pair(self->roles, p))) &&
                        !self->is_denied[p];
        changes = changes || is_split != self->is_split[p];
        self->is_split[p] = is_split;
    }
    return changes;
}

/* Removes from the entry what nothing needs, and keeps the origins with their instructions. */
static AmStatus simplify(Splitter *self, AmError *error) {
    IrComposed *entry = &self->composer.computations[0];
    int64_t *positions = ARENA_ARRAY(self->arena, int64_t, entry->count + 1);
    bool *has_effect = ARENA_ARRAY(self->arena, bool, self->composer.count + 1);
    if (self->arena->failed) return am_fail_memory(error, entry->count);
    for (int32_t i = 0; i < entry->count; i++) positions[i] = entry->origins[i];
    IrInstructionList list = {entry->instructions, positions, entry->count, entry->root, true};
    TRY(ir_simplify(&list, has_effect, self->arena, error));
    for (int32_t i = 0; i < list.count; i++) entry->origins[i] = (int32_t)positions[i];
    entry->count = list.count;
    entry->root = list.root;
    return AM_OK;
}

/* A depth-first walk over the entry. */
typedef struct EntryWalk {
    const IrComposed *entry;
    int32_t *stack, *next; /* next [instruction]: its operand to visit */
    int32_t *place;        /* [instruction]: in `instructions`, or LAYERS_NONE */
    IrInstruction *instructions;
    int32_t *origins;
    int32_t placed;
} EntryWalk;

/* Places an instruction after its operands. */
static void walk_from(EntryWalk *self, int32_t root) {
    const IrComposed *entry = self->entry;
    int32_t depth = 0;
    for (self->stack[depth++] = root; depth > 0;) {
        int32_t i = self->stack[depth - 1];
        const IrInstruction *instruction = &entry->instructions[i];
        int32_t *next = &self->next[i];
        while (*next < instruction->operand_count && self->place[instruction->operands[*next]] >= 0) ++*next;
        if (*next < instruction->operand_count) {
            self->stack[depth++] = instruction->operands[*next];
            continue;
        }
        depth--;
        int32_t *operands = (int32_t *)instruction->operands; /* a copy that ir_compose() made */
        for (int32_t k = 0; k < instruction->operand_count; k++) operands[k] = self->place[operands[k]];
        self->place[i] = self->placed;
        self->instructions[self->placed] = *instruction;
        self->origins[self->placed++] = entry->origins[i];
    }
}

/* Returns whether instruction i was made of one of the entry's in the forward pass. */
static bool is_forward(const Splitter *self, int32_t i) {
    const IrComputation *entry = &self->from->computations[self->from->entry];
    int32_t origin = self->composer.computations[0].origins[i];
    return origin >= entry->first && origin < entry->first + entry->count && self->roles->phases &&
           self->roles->phases[origin] == IR_PHASE_FORWARD;
}

/* Finds the instructions of the forward pass, [count], but for scalars that it alone needs, such as the
 * loss. */
static bool *find_first(const Splitter *self, AmError *error) {
    const IrComposed *entry = &self->composer.computations[0];
    bool *is_first = ARENA_ARRAY(self->arena, bool, entry->count + 1);
    if (!is_first) return am_fail_memory(error, entry->count), NULL;
    for (int32_t i = entry->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &entry->instructions[i];
        bool is_needed = i != entry->root && (is_first[i] || !is_forward(self, i));
        is_first[i] = (is_first[i] || instruction->shape.rank > 0) && is_forward(self, i);
        for (int32_t k = 0; k < instruction->operand_count && is_needed; k++)
            is_first[instruction->operands[k]] = true;
    }
    return is_first;
}

/* Lists the parameters of the entry by their numbers, the forward pass in its order, and other instructions
 * depth first from the root. XLA writes unrolled layers in this order: gradients of weights come after the
 * backward pass, and the loss at the end. Loops compute the gradients in each trip. */
static AmStatus order_entry(Splitter *self, const IrLayerMap *map, AmError *error) {
    IrComposed *entry = &self->composer.computations[0];
    int32_t count = entry->count;
    EntryWalk walk = {.entry = entry,
                      .stack = ARENA_ARRAY(self->arena, int32_t, count + 1),
                      .next = ARENA_ARRAY(self->arena, int32_t, count + 1),
                      .place = ARENA_ARRAY_RAW(self->arena, int32_t, count + 1),
                      .instructions = ARENA_ARRAY_RAW(self->arena, IrInstruction, count + 1),
                      .origins = ARENA_ARRAY_RAW(self->arena, int32_t, count + 1)};
    int32_t *parameters = ARENA_ARRAY(self->arena, int32_t, map->parameter_count + 1);
    const bool *is_first = find_first(self, error);
    if (self->arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = &entry->instructions[i];
        walk.place[i] = LAYERS_NONE;
        if (instruction->opcode == IR_PARAMETER) parameters[instruction->attributes->parameter_number] = i;
    }
    for (int32_t k = 0; k < map->parameter_count; k++) walk_from(&walk, parameters[k]);
    for (int32_t i = 0; i < count; i++)
        if (walk.place[i] < 0 && is_first[i]) walk_from(&walk, i);
    if (walk.place[entry->root] < 0) walk_from(&walk, entry->root);
    memcpy(entry->instructions, walk.instructions, sizeof *walk.instructions * (size_t)walk.placed);
    memcpy(entry->origins, walk.origins, sizeof *walk.origins * (size_t)walk.placed);
    entry->root = walk.place[entry->root];
    entry->count = walk.placed;
    return AM_OK;
}

/* Donations between a part of an output and the same part of the parameter. */
static AmStatus map_aliases(const Splitter *self, IrModule *made, const IrLayerMap *map, AmError *error) {
    const IrModule *from = self->from;
    int64_t most = (int64_t)map->output_count + from->alias_count;
    made->aliases = ARENA_ARRAY(&made->arena, IrAlias, most + 1);
    int32_t *donor = ARENA_ARRAY(&made->arena, int32_t, map->output_count + 1);
    if (made->arena.failed) return am_fail_memory(error, most);
    for (int32_t k = 0; k < map->output_count; k++) donor[k] = -1;
    for (int32_t a = 0; a < from->alias_count; a++) {
        int32_t output = from->aliases[a].output < 0 ? 0 : from->aliases[a].output;
        for (int32_t k = 0; k < map->output_count; k++) {
            if (map->outputs[k].original != output) continue;
            int32_t parameter = from->aliases[a].parameter, layer = map->outputs[k].layer;
            int32_t p = self->number[parameter] + (layer < 0 ? 0 : layer * self->stride[parameter]);
            bool is_same = p < map->parameter_count && map->parameters[p].original == parameter &&
                           map->parameters[p].layer == layer;
            if (is_same) donor[k] = p;
        }
    }
    for (int32_t k = 0; k < map->output_count; k++)
        if (donor[k] >= 0)
            made->aliases[made->alias_count++] =
                (IrAlias){from->aliases[0].output < 0 && map->output_count == 1 ? -1 : k, donor[k]};
    return AM_OK;
}

/* Returns why the module keeps its stacks. */
static const char *reason_of(Arena *arena, const Splitter *self) {
    if (self->is_too_large)
        return arena_format(arena, "its layers would have more than %d instructions",
                            IR_LAYERS_MOST_INSTRUCTIONS);
    if (self->needed_by < 0) return NULL;
    const IrInstruction *needs = &self->from->instructions[self->needed_by];
    return arena_format(arena, "%s (%s) needs the stacked array of all layers", needs->name,
                        ir_opcode_name(needs->opcode));
}

/* Returns why no module is rewritten that has such instructions. */
static const char *obstacle(const IrModule *module) {
    for (int32_t i = 0; i < module->instruction_count; i++) {
        if (module->instructions[i].control_count > 0) return "it has control dependencies";
        if (ir_has_effect(&module->instructions[i]))
            return "it has operators with effects besides their result";
    }
    return NULL;
}

/* Repeats attempts without the parameters that could not be split, until one succeeds or none is left. */
static AmStatus split_parameters(IrModule **made, IrLayerMap **map, const char **reason, Arena *arena,
                                 Splitter *self, AmError *error) {
    bool is_done = false, has_any = false;
    int32_t count = self->roles->parameter_count;
    bool **flags[] = {&self->is_split, &self->is_denied, &self->is_wanted};
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
        *flags[k] = ARENA_ARRAY(self->arena, bool, count + 1);
    self->group = ARENA_ARRAY(self->arena, int32_t, count + 1);
    self->number = ARENA_ARRAY(self->arena, int32_t, count + 1);
    self->stride = ARENA_ARRAY(self->arena, int32_t, count + 1);
    self->computation = ARENA_ARRAY(self->arena, int32_t, self->from->computation_count + 1);
    self->constant = ARENA_ARRAY(self->arena, int32_t, self->from->instruction_count + 1);
    self->has_depth = ARENA_ARRAY(self->arena, bool, LAYERS_MOST + 1);
    if (self->arena->failed) return am_fail_memory(error, count);
    TRY(find_candidates(self, error));
    self->needed_by = LAYERS_NONE;
    for (int32_t p = 0; p < self->roles->parameter_count; p++) has_any = has_any || self->is_split[p];
    if (has_any && (*reason = obstacle(self->from)) != NULL) return AM_OK;
    for (int32_t k = 0; k < MOST_ATTEMPTS && !is_done && !self->is_too_large; k++) {
        has_any = false;
        for (int32_t p = 0; p < self->roles->parameter_count; p++) has_any = has_any || self->is_split[p];
        if (!has_any) break;
        ir_module_free(*made);
        *made = ir_module_new(self->from->source);
        if (!*made) return am_fail_memory(error, (int64_t)sizeof **made);
        self->composer = (IrComposer){.module = *made};
        self->repeated = (OpenTable){.arena = self->arena};
        self->unrolled = 0;
        self->room = IR_LAYERS_MOST_INSTRUCTIONS * INT64_C(2); /* some are made in vain */
        memset(self->computation, -1, sizeof(int32_t) * (size_t)self->from->computation_count);
        memset(self->constant, -1, sizeof(int32_t) * (size_t)self->from->instruction_count);
        memset(self->has_depth, 0, sizeof(bool) * (LAYERS_MOST + 1));
        *map = ARENA_ARRAY(&(*made)->arena, IrLayerMap, 1);
        if (!*map) return am_fail_memory(error, (int64_t)sizeof **map);
        ir_compose_computation(&self->composer, self->from->computations[self->from->entry].name);
        TRY(attempt_split(self, *map, error));
        is_done = !self->is_too_large && !revise(self);
    }
    if (is_done) {
        TRY(simplify(self, error));
        TRY(order_entry(self, *map, error));
        is_done = self->composer.computations[0].count <= IR_LAYERS_MOST_INSTRUCTIONS;
        self->is_too_large = !is_done;
    }
    *reason = is_done ? NULL : reason_of(arena, self);
    if (!is_done) return AM_OK;
    (*made)->name = self->from->name;
    TRY(map_aliases(self, *made, *map, error));
    TRY(ir_compose_finish(&self->composer, &(*map)->origins, error));
    self->composer.module = NULL;
    return AM_OK;
}

AmStatus ir_split_layers(IrModule **split_module, IrLayerMap **map, const char **reason, Arena *arena,
                         const IrModule *canonical, const IrRoles *roles, AmError *error) {
    Arena scratch = {0};
    Splitter self = {.from = canonical, .roles = roles, .arena = &scratch};
    IrModule *made = NULL;
    *split_module = NULL;
    *reason = NULL;
    AmStatus status = split_parameters(&made, map, reason, arena, &self, error);
    bool is_made = status == AM_OK && made && !self.composer.module;
    if (is_made) *split_module = made;
    else ir_module_free(made);
    arena_free(&scratch);
    return status;
}
