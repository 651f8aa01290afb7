/* Simplification: a forward pass finds the representative of each instruction, a backward pass
 * finds the needed instructions, and a third pass closes the gaps.
 *
 * These instructions are equal to their operand by their attributes: a copy, a conversion to the
 * same type, a reshape to the same shape, an identity transpose, a slice, pad, broadcast, reverse
 * or concatenation without effect, and a reshape that reverts another. Layouts have no meaning in
 * the canonical module, except for a bitcast. A dynamic-slice or dynamic-update-slice of the whole
 * array can only start at 0. The root of a computation is kept; in the entry, the elements of a
 * root tuple are kept too, since they are the outputs. In the entry, each distinct conversion,
 * reshape or transpose of a parameter is computed once.
 */
#include "ir/canonical/simplify.h"

#include <string.h>

#include "ir/hlo.pb-c.h"

bool ir_has_effect(const IrInstruction *instruction) {
    if (ir_opcode_has(instruction->opcode, FACT_EFFECT)) return true;
    return instruction->opcode == IR_CUSTOM_CALL && instruction->message &&
           instruction->message->custom_call_has_side_effect;
}

static bool says_sharding(const IrInstruction *instruction) {
    return instruction->message && instruction->message->sharding;
}

static bool same_layout(const IrShape *a, const IrShape *b) {
    for (int32_t d = 0; d < a->rank; d++) {
        int64_t of_a = a->minor_to_major ? a->minor_to_major[d] : a->rank - 1 - d;
        int64_t of_b = b->minor_to_major ? b->minor_to_major[d] : b->rank - 1 - d;
        if (of_a != of_b) return false;
    }
    return true;
}

static bool in_old_order(const IrAttributes *attributes) {
    for (int32_t d = 0; d < attributes->dimension_count; d++)
        if (attributes->dimensions[d] != d) return false;
    return true;
}

static bool pads_nothing(const IrAttributes *attributes, int32_t rank) {
    for (int32_t d = 0; d < rank; d++) {
        const IrPadding *padding = &attributes->padding[d];
        if (padding->low != 0 || padding->high != 0 || padding->interior != 0) return false;
    }
    return true;
}

/* Returns the operand that the instruction passes on unchanged, or -1. */
static int32_t operand_handed_on(const IrInstruction *instructions, const IrInstruction *instruction) {
    const IrAttributes *attributes = instruction->attributes;
    if (instruction->operand_count == 0) return -1;
    const IrShape *shape = &instruction->shape;
    const IrShape *operand = &instructions[instruction->operands[0]].shape;
    if (!ir_shape_equal(shape, operand)) return -1;
    switch (instruction->opcode) {
    case IR_COPY:
    case IR_CONVERT:
    case IR_BITCAST_CONVERT:
    case IR_RESHAPE:
    case IR_SLICE: return 0; /* of the whole, in steps of 1 */
    case IR_BITCAST: return shape->type != DTYPE_TUPLE && same_layout(shape, operand) ? 0 : -1;
    case IR_TRANSPOSE:
    case IR_BROADCAST: return in_old_order(attributes) ? 0 : -1;
    case IR_REVERSE: return attributes->dimension_count == 0 ? 0 : -1;
    case IR_CONCATENATE: return instruction->operand_count == 1 ? 0 : -1;
    case IR_PAD: return pads_nothing(attributes, shape->rank) ? 0 : -1;
    case IR_DYNAMIC_SLICE: return 0;
    case IR_DYNAMIC_UPDATE_SLICE:
        return ir_shape_equal(shape, &instructions[instruction->operands[1]].shape) ? 1 : -1;
    default: return -1;
    }
}

/* Returns whether the result has the elements of the operand in the same order, in another shape. */
static bool only_reshapes(const IrInstruction *instructions, const IrInstruction *instruction) {
    if (instruction->opcode == IR_RESHAPE) return true;
    if (instruction->opcode != IR_BROADCAST) return false;
    const IrAttributes *attributes = instruction->attributes;
    for (int32_t k = 1; k < attributes->dimension_count; k++)
        if (attributes->dimensions[k] <= attributes->dimensions[k - 1]) return false;
    return ir_shape_elements(&instruction->shape) ==
           ir_shape_elements(&instructions[instruction->operands[0]].shape);
}

/* Returns the value that a reshape of a reshape comes back to, or -1. */
static int32_t reshaped_back(const IrInstruction *instructions, const IrInstruction *instruction) {
    if (instruction->operand_count != 1 || !only_reshapes(instructions, instruction)) return -1;
    const IrInstruction *between = &instructions[instruction->operands[0]];
    if (between->operand_count != 1 || between->control_count > 0 || says_sharding(between)) return -1;
    if (!only_reshapes(instructions, between)) return -1;
    int32_t value = between->operands[0];
    return ir_shape_equal(&instruction->shape, &instructions[value].shape) ? value : -1;
}

/* Returns the value that instruction i stands for: i itself, or an earlier one. Its operands are translated
 * already. */
static int32_t stands_for(const IrInstruction *instructions, int32_t i, bool is_output) {
    const IrInstruction *instruction = &instructions[i];
    if (instruction->control_count > 0 || says_sharding(instruction)) return i;
    if (instruction->opcode == IR_GET_TUPLE_ELEMENT) {
        const IrInstruction *tuple = &instructions[instruction->operands[0]];
        int64_t k = instruction->attributes->tuple_index;
        bool is_made_here = tuple->opcode == IR_TUPLE && !says_sharding(tuple) && tuple->control_count == 0;
        return is_made_here && k < tuple->operand_count ? tuple->operands[k] : i;
    }
    if (is_output) return i;
    int32_t k = operand_handed_on(instructions, instruction);
    if (k >= 0) return instruction->operands[k];
    int32_t value = reshaped_back(instructions, instruction);
    return value < 0 ? i : value;
}

/* ---- values that depend on parameters alone ---- */

/* Forms of parameters: each parameter, and what conversions, reshapes and transposes make of it. A module
 * that computes its forward pass once more makes them once more, after barriers that keep the two passes
 * apart. They are one value here; whether it is kept in between is for a plan to say (PlanStage's
 * `keeps_gathered_weights`). */
typedef struct Forms {
    int32_t *form;    /* [instruction]: the form that it is, or hands on; -1: none */
    int32_t *first;   /* [form]: the first that was made of it, or -1 */
    int32_t *sibling; /* [form]: the next that is made of the same, or -1 */
} Forms;

/* Forms of one form that are compared with a new one. */
#define MOST_SIBLINGS 8

/* Returns the form that instruction i hands on through a barrier, or -1. */
static int32_t handed_form(const Forms *forms, const IrInstruction *instructions, int32_t i) {
    const IrInstruction *instruction = &instructions[i];
    const IrInstruction *operand = &instructions[instruction->operands[0]];
    if (instruction->opcode == IR_OPT_BARRIER) return forms->form[instruction->operands[0]];
    if (instruction->opcode != IR_GET_TUPLE_ELEMENT || operand->opcode != IR_OPT_BARRIER) return -1;
    const IrInstruction *tuple = &instructions[operand->operands[0]];
    int64_t k = instruction->attributes->tuple_index;
    return tuple->opcode == IR_TUPLE && k < tuple->operand_count ? forms->form[tuple->operands[k]] : -1;
}

static bool is_same_form(const IrInstruction *a, const IrInstruction *b) {
    if (a->opcode != b->opcode || !ir_shape_equal(&a->shape, &b->shape)) return false;
    if (a->opcode != IR_TRANSPOSE) return true;
    size_t bytes = sizeof *a->attributes->dimensions * (size_t)a->attributes->dimension_count;
    return memcmp(a->attributes->dimensions, b->attributes->dimensions, bytes) == 0;
}

/* Returns the form that represents instruction i: an earlier one or itself. Other values do not represent
 * i. */
static int32_t stands_for_form(Forms *forms, const IrInstruction *instructions, int32_t i, bool is_output) {
    const IrInstruction *instruction = &instructions[i];
    forms->form[i] = forms->first[i] = forms->sibling[i] = -1;
    if (instruction->opcode == IR_PARAMETER) forms->form[i] = i;
    if (instruction->operand_count != 1 || instruction->control_count > 0 || says_sharding(instruction))
        return i;
    forms->form[i] = handed_form(forms, instructions, i);
    int32_t of = forms->form[instruction->operands[0]];
    bool makes_form = instruction->opcode == IR_CONVERT || instruction->opcode == IR_RESHAPE ||
                      instruction->opcode == IR_TRANSPOSE;
    if (of < 0 || !makes_form) return i;
    int32_t siblings = 0;
    for (int32_t k = forms->first[of]; k >= 0 && siblings < MOST_SIBLINGS; k = forms->sibling[k], siblings++)
        if (!is_output && is_same_form(&instructions[k], instruction)) return k;
    forms->form[i] = i;
    forms->sibling[i] = forms->first[of];
    forms->first[of] = i;
    return i;
}

/* Translates indices in place: the arrays are private copies of this list. */
static void translate_indices(const int32_t *indices, int32_t count, const int32_t *values) {
    int32_t *own = (int32_t *)indices;
    for (int32_t k = 0; k < count; k++) own[k] = values[own[k]];
}

static void translate_instruction(const IrInstruction *instruction, const int32_t *values) {
    translate_indices(instruction->operands, instruction->operand_count, values);
    translate_indices(instruction->control, instruction->control_count, values);
}

static void mark_needed(const IrInstructionList *list, const bool *has_effect, bool *is_needed) {
    is_needed[list->root] = true;
    for (int32_t i = list->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &list->instructions[i];
        is_needed[i] |= instruction->opcode == IR_PARAMETER || ir_has_effect(instruction);
        for (int32_t k = 0; k < instruction->called_count; k++)
            is_needed[i] |= has_effect[instruction->called[k]];
        if (!is_needed[i]) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) is_needed[instruction->operands[k]] = true;
        for (int32_t k = 0; k < instruction->control_count; k++) is_needed[instruction->control[k]] = true;
    }
}

AmStatus ir_simplify(IrInstructionList *list, const bool *has_effect, Arena *scratch, AmError *error) {
    ArenaMark mark = arena_mark(scratch);
    IrInstruction *instructions = list->instructions;
    int32_t *values = ARENA_ARRAY(scratch, int32_t, list->count);
    bool *is_output = ARENA_ARRAY(scratch, bool, list->count);
    bool *is_needed = ARENA_ARRAY(scratch, bool, list->count);
    if (!values || !is_output || !is_needed) return am_fail_memory(error, (int64_t)list->count * 6);
    const IrInstruction *root = &instructions[list->root];
    is_output[list->root] = true;
    for (int32_t k = 0; list->is_entry && root->opcode == IR_TUPLE && k < root->operand_count; k++)
        is_output[root->operands[k]] = true;
    Forms forms = {0};
    if (list->is_entry)
        forms = (Forms){.form = ARENA_ARRAY(scratch, int32_t, list->count),
                        .first = ARENA_ARRAY(scratch, int32_t, list->count),
                        .sibling = ARENA_ARRAY(scratch, int32_t, list->count)};
    if (list->is_entry && scratch->failed) return am_fail_memory(error, (int64_t)list->count * 12);
    for (int32_t i = 0; i < list->count; i++) {
        translate_instruction(&instructions[i], values);
        values[i] = stands_for(instructions, i, is_output[i]);
        int32_t form = list->is_entry ? stands_for_form(&forms, instructions, i, is_output[i]) : i;
        if (values[i] == i) values[i] = form;
    }
    list->root = values[list->root];

    mark_needed(list, has_effect, is_needed);
    int32_t count = 0;
    for (int32_t i = 0; i < list->count; i++) {
        if (!is_needed[i]) continue;
        translate_instruction(&instructions[i], values); /* now by new indices */
        values[i] = count;
        instructions[count] = instructions[i];
        list->positions[count++] = list->positions[i];
    }
    list->root = values[list->root];
    list->count = count;
    arena_release(scratch, mark);
    return AM_OK;
}
