/* Folds transposes into adjacent products and fused attention.
 *
 * A product reads its operands and writes its result in any order of their dimensions (program.h),
 * so that an adjacent transpose moves data unnecessarily:
 *
 *   transpose -> dot   the dot uses the dimensions of the untransposed operand
 *   dot -> transpose   the dot computes the transposed array, if the other one has no
 *                      further user
 *
 * If the last dimension of the result belongs to the left operand, the operands are exchanged, so
 * that the right one's come last again; a dot whose dimensions are then in the usual order is a
 * plain dot. A transpose without users becomes a view, which takes no time.
 *
 * A region that is computed by blocks takes the transposes beside it inside, where they move the
 * elements of one block in a cache, or are folded into the region's own products. Large arrays
 * keep their transposes. No value would live longer without them, but the allocation has other gaps
 * then (buffers.c), which may be larger, and a plan close to a device's limit may no longer fit.
 */
#include <string.h>

#include "base/int_list.h"
#include "ir/dataflow.h"
#include "lowering/passes/passes.h"
#include "lowering/program/program_edit.h"

enum { MOST_BETWEEN = 4 };     /* values of a region's result before its transpose */
enum { MOST_BYTES = 1 << 20 }; /* of an array whose transpose a region takes */

typedef struct Absorber {
    Program *program;
    int32_t *uses; /* [value]: by instructions, outputs and updates */
} Absorber;

/* A dot whose numbers may be changed; `order` [rank] as IrAttributes.dimensions has it. */
typedef struct Dot {
    int32_t batch_count, contracting_count, rank, free_counts[2];
    int64_t batch[2][IR_MAX_RANK], contracting[2][IR_MAX_RANK], order[IR_MAX_RANK];
} Dot;

static const IrShape *shape_of(const Program *program, int32_t value) {
    return &program->values[value].shape;
}

static bool is_compute(const ProgramInstruction *instruction, IrOpcode opcode) {
    return instruction->kind == PROGRAM_COMPUTE && instruction->opcode == opcode;
}

/* Returns the instruction of that opcode that makes the value, or NULL. */
static ProgramInstruction *producer(const Program *program, int32_t value, IrOpcode opcode) {
    int32_t i = program->values[value].instruction;
    return i >= 0 && is_compute(&program->instructions[i], opcode) ? &program->instructions[i] : NULL;
}

/* Returns whether every back end computes results of this type in any order. */
static bool takes_orders(const Program *program, const ProgramInstruction *dot) {
    Dtype left = shape_of(program, dot->operands[0])->type, right = shape_of(program, dot->operands[1])->type;
    Dtype result = shape_of(program, dot->first_result)->type;
    return left == right && left == result &&
           (left == DTYPE_F32 || left == DTYPE_F64 || dtype_is_16bit_float(left));
}

/* Returns the free dimensions of a side, in order. */
static int32_t list_free(int64_t *list, const Dot *dot, int32_t side, int32_t rank) {
    int32_t count = 0;
    for (int32_t d = 0; d < rank; d++)
        if (!int_list_contains(dot->batch[side], dot->batch_count, d) &&
            !int_list_contains(dot->contracting[side], dot->contracting_count, d))
            list[count++] = d;
    return count;
}

static void read_dot(Dot *dot, const Program *program, const ProgramInstruction *instruction) {
    const IrDot *given = instruction->attributes->dot;
    const IrAttributes *attributes = instruction->attributes;
    *dot = (Dot){.batch_count = given->batch_count, .contracting_count = given->contracting_count};
    const int64_t *lists[2][2] = {{given->lhs_batch, given->lhs_contracting},
                                  {given->rhs_batch, given->rhs_contracting}};
    for (int32_t side = 0; side < 2; side++) {
        for (int32_t k = 0; k < dot->batch_count; k++) dot->batch[side][k] = lists[side][0][k];
        for (int32_t k = 0; k < dot->contracting_count; k++) dot->contracting[side][k] = lists[side][1][k];
        int64_t list[IR_MAX_RANK];
        dot->free_counts[side] =
            list_free(list, dot, side, shape_of(program, instruction->operands[side])->rank);
    }
    dot->rank = shape_of(program, instruction->first_result)->rank;
    for (int32_t d = 0; d < dot->rank; d++)
        dot->order[d] = attributes->dimension_count > 0 ? attributes->dimensions[d] : d;
}

/* Exchanges the operands where the last dimension is the left one's. */
static void exchange(Dot *dot, int32_t *operands) {
    int32_t batch = dot->batch_count, left = dot->free_counts[0], right = dot->free_counts[1];
    int64_t last = dot->rank > 0 ? dot->order[dot->rank - 1] : 0;
    if (dot->rank == 0 || last < batch || last >= batch + left) return;
    Dot old = *dot;
    for (int32_t side = 0; side < 2; side++) {
        memcpy(dot->batch[side], old.batch[1 - side], sizeof dot->batch[side]);
        memcpy(dot->contracting[side], old.contracting[1 - side], sizeof dot->contracting[side]);
        dot->free_counts[side] = old.free_counts[1 - side];
    }
    for (int32_t d = 0; d < dot->rank; d++)
        if (dot->order[d] >= batch) dot->order[d] += dot->order[d] < batch + left ? right : -left;
    int32_t first = operands[0];
    operands[0] = operands[1];
    operands[1] = first;
}

static const int64_t *copy_list(Arena *arena, const int64_t *list, int32_t count) {
    int64_t *copy = ARENA_ARRAY(arena, int64_t, count + 1);
    if (copy) memcpy(copy, list, sizeof *list * (size_t)count);
    return copy;
}

static AmStatus write_dot(Program *program, ProgramInstruction *instruction, Dot *dot,
                          const int32_t operands[2], AmError *error) {
    Arena *arena = program->arena;
    IrAttributes *attributes = ARENA_ARRAY(arena, IrAttributes, 1);
    IrDot *numbers = ARENA_ARRAY(arena, IrDot, 1);
    int32_t *list = ARENA_ARRAY(arena, int32_t, 2);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *attributes);
    list[0] = operands[0];
    list[1] = operands[1];
    exchange(dot, list);
    bool plain = true;
    for (int32_t d = 0; d < dot->rank; d++) plain = plain && dot->order[d] == d;
    *attributes = *instruction->attributes;
    *numbers = (IrDot){.batch_count = dot->batch_count,
                       .contracting_count = dot->contracting_count,
                       .lhs_batch = copy_list(arena, dot->batch[0], dot->batch_count),
                       .rhs_batch = copy_list(arena, dot->batch[1], dot->batch_count),
                       .lhs_contracting = copy_list(arena, dot->contracting[0], dot->contracting_count),
                       .rhs_contracting = copy_list(arena, dot->contracting[1], dot->contracting_count)};
    attributes->dot = numbers;
    attributes->dimensions = plain ? NULL : copy_list(arena, dot->order, dot->rank);
    attributes->dimension_count = plain ? 0 : dot->rank;
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *attributes);
    instruction->attributes = attributes;
    instruction->operands = list;
    return AM_OK;
}

/* Returns whether the order, once operands are exchanged, is the usual one. */
static bool becomes_plain(const Dot *dot) {
    Dot copy = *dot;
    int32_t operands[2] = {0};
    exchange(&copy, operands);
    for (int32_t d = 0; d < copy.rank; d++)
        if (copy.order[d] != d) return false;
    return true;
}

static void become_view(ProgramInstruction *transpose) {
    static const IrAttributes nothing = {0};
    transpose->kind = PROGRAM_VIEW;
    transpose->opcode = IR_BITCAST;
    transpose->attributes = &nothing;
}

/* Makes the dot read operand `side` without its transpose. */
static AmStatus absorb_operand(Absorber *self, ProgramInstruction *instruction, int32_t side,
                               AmError *error) {
    Program *program = self->program;
    int32_t value = instruction->operands[side];
    ProgramInstruction *transpose = producer(program, value, IR_TRANSPOSE);
    if (!transpose || instruction->operands[0] == instruction->operands[1]) return AM_OK;
    const int64_t *permutation = transpose->attributes->dimensions;
    int32_t rank = shape_of(program, value)->rank, count, base;
    int64_t before[IR_MAX_RANK], after[IR_MAX_RANK], moved[IR_MAX_RANK];
    Dot dot;
    read_dot(&dot, program, instruction);
    count = list_free(before, &dot, side, rank);
    for (int32_t k = 0; k < dot.batch_count; k++) dot.batch[side][k] = permutation[dot.batch[side][k]];
    for (int32_t k = 0; k < dot.contracting_count; k++)
        dot.contracting[side][k] = permutation[dot.contracting[side][k]];
    list_free(after, &dot, side, rank);
    /* Free dimension k of the transposed array is number moved[k] of the other. */
    for (int32_t k = 0; k < count; k++)
        for (int32_t n = 0; n < count; n++)
            if (after[n] == permutation[before[k]]) moved[k] = n;
    base = dot.batch_count + (side == 1 ? dot.free_counts[0] : 0);
    for (int32_t d = 0; d < dot.rank; d++)
        if (dot.order[d] >= base && dot.order[d] < base + count)
            dot.order[d] = base + moved[dot.order[d] - base];
    if (!takes_orders(program, instruction) && !becomes_plain(&dot)) return AM_OK;
    int32_t operands[2] = {instruction->operands[0], instruction->operands[1]};
    operands[side] = transpose->operands[0];
    TRY(write_dot(program, instruction, &dot, operands, error));
    self->uses[transpose->operands[0]]++;
    if (--self->uses[value] == 0) become_view(transpose);
    return AM_OK;
}

/* Makes the dot compute the result of its only user, a transpose. */
static AmStatus absorb_result(Absorber *self, ProgramInstruction *transpose, AmError *error) {
    Program *program = self->program;
    int32_t value = transpose->operands[0], result = transpose->first_result;
    ProgramInstruction *instruction = producer(program, value, IR_DOT);
    if (!instruction || self->uses[value] != 1) return AM_OK;
    Dot dot, turned;
    read_dot(&dot, program, instruction);
    turned = dot;
    for (int32_t d = 0; d < dot.rank; d++) turned.order[d] = dot.order[transpose->attributes->dimensions[d]];
    if (!takes_orders(program, instruction) && !becomes_plain(&turned)) return AM_OK;
    int32_t *views = ARENA_ARRAY(program->arena, int32_t, 1);
    if (!views) return am_fail_memory(error, (int64_t)sizeof *views);
    TRY(write_dot(program, instruction, &turned, instruction->operands, error));
    views[0] = result;
    instruction->first_result = result;
    transpose->first_result = value;
    transpose->operands = views;
    become_view(transpose);
    program->values[result].instruction = (int32_t)(instruction - program->instructions);
    program->values[value].instruction = (int32_t)(transpose - program->instructions);
    return AM_OK;
}

/* Appends a copy of a transpose to a region, from value `from` to value `to`. */
static AmStatus append_transpose(Program *region, const ProgramInstruction *transpose, int32_t from,
                                 int32_t to, AmError *error) {
    int32_t *operand = ARENA_ARRAY(region->arena, int32_t, 1);
    ARENA_RESERVE(region->arena, region->instructions, region->instruction_count,
                  region->instruction_capacity);
    if (region->arena->failed) return am_fail_memory(error, (int64_t)sizeof(ProgramInstruction));
    operand[0] = from;
    region->values[to].instruction = region->instruction_count;
    ProgramInstruction *made = &region->instructions[region->instruction_count++];
    *made = *transpose;
    made->operands = operand;
    made->first_result = to;
    return AM_OK;
}

/* Makes a region read operand k without its transpose. */
static AmStatus absorb_region_operand(Absorber *self, ProgramInstruction *instruction, int32_t k,
                                      AmError *error) {
    Program *program = self->program, *region = instruction->regions.programs[0];
    int32_t value = instruction->operands[k], parameter = region->parameters[k];
    ProgramInstruction *transpose = producer(program, value, IR_TRANSPOSE);
    if (!transpose || ir_shape_bytes(shape_of(program, value)) > MOST_BYTES) return AM_OK;
    ProgramValue untransposed = region->values[parameter];
    untransposed.shape = *shape_of(program, transpose->operands[0]);
    region->parameters[k] = program_add_value(region, &untransposed);
    TRY(append_transpose(region, transpose, region->parameters[k], parameter, error));
    region->values[parameter].kind = PROGRAM_VALUE_TEMPORARY;
    int32_t count = region->instruction_count, *list = ARENA_ARRAY(region->arena, int32_t, count);
    int32_t *operands = ARENA_ARRAY(program->arena, int32_t, instruction->operand_count);
    if (!list || !operands) return am_fail_memory(error, count * (int64_t)sizeof *list);
    for (int32_t i = 0; i < count; i++) list[i] = i == 0 ? count - 1 : i - 1;
    memcpy(operands, instruction->operands, sizeof *operands * (size_t)instruction->operand_count);
    operands[k] = transpose->operands[0];
    instruction->operands = operands;
    self->uses[operands[k]]++;
    if (--self->uses[value] == 0) become_view(transpose);
    return program_relist(region, list, count, error);
}

/* Returns whether an instruction hands its operand on, in the same shape: a view, or a conversion. */
static bool keeps_dimensions(const Program *program, const ProgramInstruction *instruction) {
    if (instruction->kind != PROGRAM_VIEW && !is_compute(instruction, IR_CONVERT)) return false;
    return ir_same_dimensions(shape_of(program, instruction->operands[0]),
                              shape_of(program, instruction->first_result));
}

/* Makes a region compute a result in the order of its only user, a transpose. Views and a conversion may be
 * between the two. */
static AmStatus absorb_region_result(Absorber *self, ProgramInstruction *transpose, AmError *error) {
    Program *program = self->program;
    const ProgramInstruction *maker = NULL;
    int32_t chain[MOST_BETWEEN], count = 0, value = transpose->operands[0];
    if (ir_shape_bytes(shape_of(program, value)) > MOST_BYTES) return AM_OK;
    while (!maker && count < MOST_BETWEEN && self->uses[value] == 1) {
        if (program->values[value].instruction < 0) return AM_OK;
        const ProgramInstruction *instruction = &program->instructions[program->values[value].instruction];
        chain[count++] = value;
        if (instruction->regions.in_blocks) maker = instruction;
        else if (keeps_dimensions(program, instruction)) value = instruction->operands[0];
        else return AM_OK;
    }
    if (!maker) return AM_OK;
    Program *region = maker->regions.programs[0];
    const ProgramValue *after = &program->values[transpose->first_result];
    int32_t output = value - maker->first_result, from = region->outputs[output];
    ProgramValue transposed = region->values[from];
    transposed.shape.dimensions = after->shape.dimensions;
    transposed.kind = PROGRAM_VALUE_TEMPORARY;
    region->outputs[output] = program_add_value(region, &transposed);
    TRY(append_transpose(region, transpose, from, region->outputs[output], error));
    for (int32_t k = 0; k < count; k++) {
        program->values[chain[k]].shape.dimensions = after->shape.dimensions;
        program->values[chain[k]].state = after->state;
    }
    become_view(transpose);
    return AM_OK;
}

AmStatus program_absorb_transposes(Program *program, AmError *error) {
    Absorber self = {.program = program,
                     .uses = ARENA_ARRAY(program->arena, int32_t, program->value_count + 1)};
    if (!self.uses) return am_fail_memory(error, (int64_t)sizeof(int32_t) * program->value_count);
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t k = 0; k < program->instructions[i].operand_count; k++)
            self.uses[program->instructions[i].operands[k]]++;
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) self.uses[program->outputs[k]]++;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        self.uses[program->execution.updates[k].value]++;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        ProgramInstruction *instruction = &program->instructions[i];
        if (is_compute(instruction, IR_TRANSPOSE)) TRY(absorb_result(&self, instruction, error));
        if (is_compute(instruction, IR_TRANSPOSE)) TRY(absorb_region_result(&self, instruction, error));
        for (int32_t k = 0; instruction->regions.in_blocks && k < instruction->operand_count; k++)
            TRY(absorb_region_operand(&self, instruction, k, error));
        if (!is_compute(instruction, IR_DOT) || !instruction->attributes->dot) continue;
        /* Twice: the operands may have been exchanged. */
        for (int32_t k = 0; k < 4; k++) TRY(absorb_operand(&self, instruction, k % 2, error));
    }
    return AM_OK;
}
