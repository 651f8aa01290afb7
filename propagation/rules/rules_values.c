/* Origins of array values: through tuples, and into and out of loops.
 *
 * A value is (instruction, leaf). Tuple, get-tuple-element and opt-barrier only forward values;
 * each is resolved to its origin. Sources of tuples are cached, so that a step goes back at most
 * one level of nesting.
 *
 * A while whose body and condition have no other caller is planned through: its carried arrays are
 * handled one by one. Inside and after it, such an array is represented by the first
 * get-tuple-element that reads it. An array that the body returns unchanged (a weight, a scanned
 * input) is identical to its initial value for all later instructions. Conditionals:
 * rules_branches.c.
 */
#include "propagation/rules/rules_values.h"

#include <string.h>

#include "base/hash.h"
#include "ir/analysis/loops.h"

int32_t rules_leaf_count(const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) return 1;
    int32_t count = 0;
    for (int32_t k = 0; k < shape->rank; k++) count += rules_leaf_count(&shape->elements[k]);
    return count;
}

const IrShape *rules_leaf(const IrShape *shape, int32_t leaf) {
    while (shape->type == DTYPE_TUPLE) {
        int32_t element = 0, count;
        while ((count = rules_leaf_count(&shape->elements[element])) <= leaf) {
            leaf -= count;
            element++;
        }
        shape = &shape->elements[element];
    }
    return shape;
}

/* ---- which loops are planned ---- */

bool values_are_arrays(const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) return dtype_bits(shape->type) > 0;
    for (int32_t k = 0; k < shape->rank; k++)
        if (!values_are_arrays(&shape->elements[k])) return false;
    return true;
}

/* Returns whether a shape is a tuple without tuples inside. */
static bool is_flat_tuple(const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) return false;
    for (int32_t k = 0; k < shape->rank; k++)
        if (shape->elements[k].type == DTYPE_TUPLE) return false;
    return true;
}

/* Computations are numbered by discovery, so that one that is mentioned once
 * comes after its caller. */
static bool can_be_planned(const IrModule *module, const IrInstruction *loop, const int32_t *mentions) {
    return loop->opcode == IR_WHILE && loop->shape.type == DTYPE_TUPLE && loop->called_count == 2 &&
           loop->operand_count == 1 && mentions[loop->called[0]] == 1 && mentions[loop->called[1]] == 1 &&
           values_are_arrays(&loop->shape) && module->computations[loop->called[0]].parameter_count == 1 &&
           module->computations[loop->called[1]].parameter_count == 1;
}

static void plan_loop(ValueResolver *self, Arena *arena, int32_t computation, int32_t instruction) {
    Rules *rules = self->rules;
    const IrInstruction *loop = &rules->module->instructions[instruction];
    int64_t trips = ir_loop_trips(rules->module, instruction);
    int32_t leaves = rules_leaf_count(&loop->shape);
    rules->loop_of[instruction] = rules->loop_count;
    for (int32_t k = 0; k < 2; k++) {
        int32_t called = loop->called[k];
        rules->is_planned[called] = true;
        rules->region_of[called] = rules->loop_count;
        double times = rules->times[computation] * (trips == IR_TRIPS_UNKNOWN ? 1 : (double)trips + k);
        rules->times[called] = times < RULES_MOST_TIMES ? times : RULES_MOST_TIMES;
    }
    LoopLeaf *made = ARENA_ARRAY(arena, LoopLeaf, leaves + 1);
    for (int32_t k = 0; made && k < leaves; k++)
        made[k] = (LoopLeaf){.shape = rules->is_flat[instruction] ? &loop->shape.elements[k]
                                                                  : rules_leaf(&loop->shape, k),
                             .in_body = -1,
                             .in_condition = -1,
                             .afterwards = -1};
    rules->loops[rules->loop_count++] = (PlannedLoop){.instruction = instruction,
                                                      .body = loop->called[0],
                                                      .condition = loop->called[1],
                                                      .leaf_count = leaves,
                                                      .leaves = made};
}

/* ---- equal constants ---- */

/* Constants that are the same thing: small, and of one computation. */
#define MOST_CONSTANT_BYTES 64

static bool is_small_constant(const IrInstruction *value) {
    return value->opcode == IR_CONSTANT && value->shape.type != DTYPE_TUPLE && value->literal &&
           value->literal->data && value->literal->bytes <= MOST_CONSTANT_BYTES;
}

static bool is_same_constant(const IrInstruction *a, const IrInstruction *b) {
    return ir_shape_equal(&a->shape, &b->shape) && a->literal->bytes == b->literal->bytes &&
           memcmp(a->literal->data, b->literal->data, (size_t)a->literal->bytes) == 0;
}

static AmStatus make_constants(ValueResolver *self, Arena *arena, AmError *error) {
    const IrModule *module = self->rules->module;
    uint64_t count = 0;
    for (int32_t i = 0; i < module->instruction_count; i++)
        count += is_small_constant(&module->instructions[i]);
    while (self->constant_mask < 2 * count) self->constant_mask = 2 * self->constant_mask + 1;
    self->constants = ARENA_ARRAY(arena, int32_t, (int64_t)self->constant_mask + 1);
    if (!self->constants) return am_fail_memory(error, (int64_t)count * 8);
    memset(self->constants, -1, sizeof(int32_t) * (size_t)(self->constant_mask + 1));
    return AM_OK;
}

/* Returns the first constant of the computation that is equal to this one, and stands for all. */
static int32_t first_constant(ValueResolver *self, int32_t instruction, int32_t computation) {
    const IrInstruction *instructions = self->rules->module->instructions;
    const IrInstruction *value = &instructions[instruction];
    uint64_t at = hash_bytes(value->literal->data, (size_t)value->literal->bytes,
                             hash_combine((uint64_t)value->shape.type, (uint64_t)computation));
    for (;; at++) {
        int32_t *slot = &self->constants[at & self->constant_mask];
        if (*slot < 0) *slot = instruction;
        if (*slot >= self->rules->module->computations[computation].first && *slot <= instruction &&
            is_same_constant(&instructions[*slot], value))
            return *slot;
    }
}

AmStatus values_begin(ValueResolver *self, Rules *rules, Arena *arena, AmError *error) {
    const IrModule *module = rules->module;
    int32_t computations = module->computation_count, loops = 0, conditionals = 0;
    int32_t *mentions = ARENA_ARRAY(arena, int32_t, computations + 1);
    for (int32_t i = 0; i < rules->count; i++) {
        loops += module->instructions[i].opcode == IR_WHILE;
        conditionals += module->instructions[i].opcode == IR_CONDITIONAL;
    }
    *self = (ValueResolver){.rules = rules};
    rules->source = ARENA_ARRAY(arena, int32_t, rules->count);
    rules->loop_of = ARENA_ARRAY(arena, int32_t, rules->count);
    rules->region_of = ARENA_ARRAY(arena, int32_t, computations);
    rules->is_planned = ARENA_ARRAY(arena, bool, computations);
    rules->times = ARENA_ARRAY(arena, double, computations);
    rules->loops = ARENA_ARRAY(arena, PlannedLoop, loops + 1);
    rules->conditionals = ARENA_ARRAY(arena, PlannedConditional, conditionals + 1);
    rules->conditional_of = ARENA_ARRAY(arena, int32_t, rules->count);
    rules->branch_of = ARENA_ARRAY(arena, int32_t, computations);
    rules->is_flat = ARENA_ARRAY(arena, bool, rules->count);
    if (arena->failed) return am_fail_memory(error, rules->count);
    memset(rules->loop_of, -1, sizeof(int32_t) * (size_t)rules->count);
    memset(rules->region_of, -1, sizeof(int32_t) * (size_t)computations);
    memset(rules->conditional_of, -1, sizeof(int32_t) * (size_t)rules->count);
    memset(rules->branch_of, -1, sizeof(int32_t) * (size_t)computations);
    for (int32_t i = 0; i < rules->count; i++) {
        rules->alias[i] = rules->source[i] = i;
        rules->is_flat[i] = is_flat_tuple(&module->instructions[i].shape);
    }
    /* mentions[c] is the number of places at which instructions call computation c. */
    for (int32_t i = 0; i < module->instruction_count; i++)
        for (int32_t k = 0; k < module->instructions[i].called_count; k++)
            mentions[module->instructions[i].called[k]]++;
    rules->is_planned[module->entry] = true;
    rules->times[module->entry] = 1;
    for (int32_t c = 0; c < computations; c++) {
        const IrComputation *body = &module->computations[c];
        for (int32_t i = body->first; rules->is_planned[c] && i < body->first + body->count; i++) {
            const IrInstruction *instruction = &module->instructions[i];
            if (can_be_planned(module, instruction, mentions)) plan_loop(self, arena, c, i);
            else if (branches_can_be_planned(module, instruction, mentions))
                branches_plan(rules, arena, c, i);
        }
    }
    return arena->failed ? am_fail_memory(error, rules->count) : make_constants(self, arena, error);
}

/* ---- values ---- */

/* Returns the origin of a tuple value, through barriers and elements of tuples. It follows from the origin
 * of its operand in one step, for chains of any length. */
static int32_t tuple_source(const Rules *rules, int32_t instruction) {
    const IrModule *module = rules->module;
    const IrInstruction *value = &module->instructions[instruction];
    if (value->opcode == IR_OPT_BARRIER) return rules->source[value->operands[0]];
    if (value->opcode != IR_GET_TUPLE_ELEMENT) return instruction;
    const IrInstruction *from = &module->instructions[rules->source[value->operands[0]]];
    return from->opcode == IR_TUPLE ? rules->source[from->operands[value->attributes->tuple_index]]
                                    : instruction;
}

/* Finds the value that leaf *leaf of *instruction hands on. Returns false if it makes it itself. */
static bool step_back(const Rules *rules, int32_t *instruction, int32_t *leaf) {
    const IrModule *module = rules->module;
    const IrInstruction *from = &module->instructions[*instruction];
    switch (from->opcode) {
    case IR_OPT_BARRIER: *instruction = rules->source[from->operands[0]]; return true;
    case IR_GET_TUPLE_ELEMENT: {
        const IrShape *tuple = &module->instructions[from->operands[0]].shape;
        bool is_flat = rules->is_flat[from->operands[0]];
        if (is_flat) *leaf += (int32_t)from->attributes->tuple_index;
        for (int64_t k = 0; k < from->attributes->tuple_index && !is_flat; k++)
            *leaf += rules_leaf_count(&tuple->elements[k]);
        *instruction = rules->source[from->operands[0]];
        return true;
    }
    case IR_TUPLE: {
        int32_t operand = rules->is_flat[*instruction] ? *leaf : 0, count;
        if (rules->is_flat[*instruction]) *leaf = 0;
        while ((count = rules_leaf_count(&module->instructions[from->operands[operand]].shape)) <= *leaf) {
            *leaf -= count;
            operand++;
        }
        *instruction = rules->source[from->operands[operand]];
        return true;
    }
    default: return false;
    }
}

static int32_t computation_of(const IrModule *module, int32_t instruction) {
    int32_t low = 0, high = module->computation_count - 1;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (module->computations[middle].first <= instruction) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Returns the place in a planned loop's or conditional's table for who reads leaf `leaf` of `instruction`:
 * that itself, or the parameter of a computation that it runs; NULL for other values. */
static int32_t *reader_of(const Rules *rules, int32_t instruction, int32_t leaf) {
    const IrModule *module = rules->module;
    if (rules->loop_of[instruction] >= 0)
        return &rules->loops[rules->loop_of[instruction]].leaves[leaf].afterwards;
    bool is_parameter = module->instructions[instruction].opcode == IR_PARAMETER;
    int32_t computation = is_parameter ? computation_of(module, instruction) : -1;
    if (!is_parameter || rules->region_of[computation] < 0)
        return branches_reader(rules, computation, instruction, leaf);
    PlannedLoop *loop = &rules->loops[rules->region_of[computation]];
    return computation == loop->body ? &loop->leaves[leaf].in_body : &loop->leaves[leaf].in_condition;
}

void rules_find_outermost(const Rules *rules, int32_t *outermost) {
    for (int32_t i = 0; i < rules->count; i++) outermost[i] = i < rules->entry_count ? i : -1;
    for (int32_t c = 0; c < rules->module->computation_count; c++) { /* callers before their computations */
        const IrComputation *computation = &rules->module->computations[c];
        int32_t caller = rules->is_planned[c] ? rules_caller(rules, c) : -1;
        for (int32_t i = computation->first; caller >= 0 && i < computation->first + computation->count; i++)
            outermost[i] = outermost[caller];
    }
}

void rules_find_value(const Rules *rules, int32_t *instruction, int32_t *leaf) {
    for (;;) {
        *instruction = rules->source[*instruction];
        while (rules->module->instructions[*instruction].shape.type == DTYPE_TUPLE)
            if (!step_back(rules, instruction, leaf)) break;
        if (rules->module->instructions[*instruction].shape.type != DTYPE_TUPLE) {
            int32_t array = *instruction;
            *instruction = rules->alias[array];
            if (*instruction != array) *leaf = rules->leaf[array];
            return;
        }
        const PlannedLoop *loop = rules_loop(rules, *instruction);
        const LoopLeaf *carried = loop ? &loop->leaves[*leaf] : NULL;
        if (!carried || !carried->is_invariant) break;
        *instruction = carried->initial;
        *leaf = carried->initial_leaf;
        if (rules->module->instructions[*instruction].shape.type != DTYPE_TUPLE) return;
    }
    const int32_t *reader = reader_of(rules, *instruction, *leaf);
    if (reader && *reader >= 0) {
        *instruction = *reader;
        *leaf = 0;
    }
}

/* Finds the reader of an array that is read from a loop's tuple, in the loop or after it. */
static void resolve_reader(Rules *rules, int32_t instruction, int32_t from, int32_t leaf) {
    if (rules->loop_of[from] >= 0) {
        const LoopLeaf *carried = &rules->loops[rules->loop_of[from]].leaves[leaf];
        if (carried->is_invariant) {
            rules->alias[instruction] = carried->initial;
            rules->leaf[instruction] = carried->initial_leaf;
            return;
        }
    }
    int32_t *reader = reader_of(rules, from, leaf);
    if (reader && *reader < 0) *reader = instruction;
    rules->alias[instruction] = reader ? *reader : from;
    rules->leaf[instruction] = reader ? 0 : leaf;
}

/* Finds the initial values of a planned loop's arrays. An invariant array represents its initial
 * value only if that has a name of its own. */
static void find_initial(const Rules *rules, PlannedLoop *loop) {
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        LoopLeaf *leaf = &loop->leaves[k];
        leaf->initial = rules->module->instructions[loop->instruction].operands[0];
        leaf->initial_leaf = k;
        rules_find_value(rules, &leaf->initial, &leaf->initial_leaf);
        if (reader_of(rules, leaf->initial, leaf->initial_leaf)) leaf->is_invariant = false;
    }
}

void values_resolve(ValueResolver *self, int32_t computation, int32_t instruction) {
    Rules *rules = self->rules;
    const IrInstruction *value = &rules->module->instructions[instruction];
    if (rules->loop_of[instruction] >= 0) find_initial(rules, &rules->loops[rules->loop_of[instruction]]);
    if (rules->conditional_of[instruction] >= 0) branches_find_given(rules, instruction);
    if (value->shape.type == DTYPE_TUPLE) {
        rules->source[instruction] = tuple_source(rules, instruction);
        return;
    }
    if (is_small_constant(value)) {
        rules->alias[instruction] = first_constant(self, instruction, computation);
        return;
    }
    int32_t from = instruction, leaf = 0;
    while (step_back(rules, &from, &leaf)) {
        if (rules->module->instructions[from].shape.type == DTYPE_TUPLE) continue;
        leaf = rules->leaf[from];
        from = rules->alias[from];
        break;
    }
    rules->alias[instruction] = from;
    rules->leaf[instruction] = leaf;
    if (rules->module->instructions[from].shape.type == DTYPE_TUPLE)
        resolve_reader(rules, instruction, from, leaf);
}

/* Finds the next values that a planned loop's body computes, once all of the body is known. */
static void find_next(const Rules *rules, PlannedLoop *loop) {
    const IrComputation *body = &rules->module->computations[loop->body];
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        LoopLeaf *leaf = &loop->leaves[k];
        leaf->next = body->root;
        leaf->next_leaf = k;
        rules_find_value(rules, &leaf->next, &leaf->next_leaf);
        bool is_read = leaf->in_body >= 0;
        leaf->is_invariant =
            is_read ? leaf->next == leaf->in_body : leaf->next == body->parameters[0] && leaf->next_leaf == k;
    }
}

void values_end_computation(ValueResolver *self, int32_t computation) {
    Rules *rules = self->rules;
    const IrComputation *body = &rules->module->computations[computation];
    /* An array of a tuple may have got its reader after a loop or conditional that takes it. */
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        if (rules->conditional_of[i] >= 0) branches_find_given(rules, i);
        if (rules->loop_of[i] < 0) continue;
        PlannedLoop *loop = &rules->loops[rules->loop_of[i]];
        for (int32_t k = 0; k < loop->leaf_count; k++) {
            LoopLeaf *leaf = &loop->leaves[k];
            const int32_t *reader = reader_of(rules, leaf->initial, leaf->initial_leaf);
            if (!reader || *reader < 0) continue;
            leaf->initial = *reader;
            leaf->initial_leaf = 0;
        }
    }
    if (rules->branch_of[computation] >= 0) branches_find_made(rules, computation);
    if (rules->region_of[computation] < 0) return;
    PlannedLoop *loop = &rules->loops[rules->region_of[computation]];
    if (computation == loop->body) find_next(rules, loop);
}
