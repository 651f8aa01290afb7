/* Splits a loop in two (loop fission): both loops consist of copies of its regions. See
 * interleave_weights.h.
 *
 * A value x of shape s that crosses gets an array [kept, s], which is initially zero and which B
 * carries. B writes x to the place of its iteration after computing it; W reads it from there
 * before its first use. In W's body the name of x then refers to the value read, so that nothing
 * else changes. */
#include <string.h>

#include "lowering/interleave/interleave_weights.h"

typedef struct Splitter {
    Program *program;
    Arena *arena;
    ProgramInstruction loop; /* as it was */
    const WaitingPart *part;
    int32_t kept, iterations;
    int32_t *crossing; /* [crossing_count]: values of the body */
    int32_t crossing_count;
} Splitter;

/* One of the two loops. */
typedef struct Half {
    bool is_later;
    int32_t *parameters; /* [count]: the operands of the loop that it has; then the arrays that cross */
    int32_t count;
    Program *body, *condition;
    int32_t *arrays;     /* [crossing]: in the body */
    int32_t place, zero; /* in the body: of the iteration, and index 0 */
} Half;

/* Returns whether the half's loop has a result for operand p. */
static bool carries(const Splitter *self, const Half *half, int32_t p) {
    const Program *body = self->loop.regions.programs[0];
    if (body->outputs[p] == body->parameters[p]) return false;
    return half->is_later ? self->part->is_later[p] || self->part->is_common[p] : !self->part->is_later[p];
}

/* Returns the shape [places, shape] for a value; the array's dimensions are one further than the value's. */
static IrShape array_shape(Arena *arena, const IrShape *shape, int64_t places) {
    IrShape result = *shape;
    int64_t *dimensions = ARENA_ARRAY(arena, int64_t, shape->rank + 1);
    if (!dimensions) return result;
    dimensions[0] = places;
    if (shape->rank > 0) memcpy(dimensions + 1, shape->dimensions, sizeof *dimensions * (size_t)shape->rank);
    result.rank++;
    result.dimensions = dimensions;
    result.minor_to_major = NULL;
    return result;
}

/* Adds a value like `like` of another shape. */
static int32_t add_like(Program *program, const ProgramValue *like, const IrShape *shape) {
    ProgramValue value = *like;
    value.shape = *shape;
    value.kind = PROGRAM_VALUE_TEMPORARY;
    value.offset = -1;
    value.instruction = -1;
    return program_add_value(program, &value);
}

/* Adds an instruction of one result that is there already. Operands are copied. */
static void emit_instruction(Program *program, ProgramKind kind, IrOpcode opcode, const int32_t *operands,
                             int32_t count, int32_t result, const IrAttributes *attributes) {
    static const IrAttributes none;
    Arena *arena = program->arena;
    int32_t *own = ARENA_ARRAY(arena, int32_t, count + 1);
    ARENA_RESERVE(arena, program->instructions, program->instruction_count, program->instruction_capacity);
    if (arena->failed) return;
    for (int32_t k = 0; k < count; k++) own[k] = operands[k];
    program->values[result].instruction = program->instruction_count;
    program->instructions[program->instruction_count++] =
        (ProgramInstruction){.kind = kind,
                             .opcode = opcode,
                             .origin = program->values[result].origin,
                             .operand_count = count,
                             .operands = own,
                             .result_count = 1,
                             .first_result = result,
                             .attributes = attributes ? attributes : &none,
                             .compute.called = -1,
                             .compute.called_second = -1};
}

static void emit_number(Program *program, int64_t number, int32_t result) {
    IrLiteral *literal = ARENA_ARRAY(program->arena, IrLiteral, 1);
    int64_t *data = ARENA_ARRAY(program->arena, int64_t, 2); /* of any type up to complex */
    if (program->arena->failed) return;
    data[0] = number; /* little-endian: the same bytes at the start, whatever the width */
    *literal = (IrLiteral){.data = data, .bytes = dtype_bytes(program->values[result].shape.type)};
    emit_instruction(program, PROGRAM_COMPUTE, IR_CONSTANT, NULL, 0, result, NULL);
    if (!program->arena->failed)
        program->instructions[program->instruction_count - 1].compute.literal = literal;
}

static void emit_again(Program *program, const ProgramInstruction *instruction) {
    ARENA_RESERVE(program->arena, program->instructions, program->instruction_count,
                  program->instruction_capacity);
    if (program->arena->failed) return;
    for (int32_t r = 0; r < instruction->result_count; r++)
        program->values[instruction->first_result + r].instruction = program->instruction_count;
    program->instructions[program->instruction_count++] = *instruction;
}

/* ---- regions ---- */

/* Copies a region with the half's parameters and no instructions yet. */
static AmStatus copy_region(const Splitter *self, Program **copy, const Half *half, const Program *from,
                            int32_t outputs, int32_t *arrays, AmError *error) {
    Arena *arena = self->arena;
    int32_t count = half->count + self->crossing_count, values = from->value_count;
    Program *made = *copy = ARENA_ARRAY(arena, Program, 1);
    IrRoles *roles = ARENA_ARRAY(arena, IrRoles, 1);
    if (arena->failed) return am_fail_memory(error, count);
    *made = *from;
    *roles = *from->roles;
    roles->parameter_count = count;
    roles->output_count = outputs;
    made->roles = roles;
    made->values = ARENA_ARRAY(arena, ProgramValue, values + count + 8);
    made->value_capacity = values + count + 8;
    made->parameters = ARENA_ARRAY(arena, int32_t, count + 1);
    made->outputs = ARENA_ARRAY(arena, int32_t, outputs + 1);
    made->execution.updates = ARENA_ARRAY(arena, ProgramUpdate, outputs + 1);
    if (arena->failed) return am_fail_memory(error, count);
    memcpy(made->values, from->values, sizeof *made->values * (size_t)values);
    made->instructions = NULL;
    made->instruction_count = made->instruction_capacity = made->execution.update_count = 0;
    for (int32_t v = 0; v < values; v++) {
        made->values[v].instruction = -1;
        if (made->values[v].kind == PROGRAM_VALUE_PARAMETER) made->values[v].kind = PROGRAM_VALUE_TEMPORARY;
    }
    for (int32_t k = 0; k < half->count; k++) {
        made->parameters[k] = from->parameters[half->parameters[k]];
        made->values[made->parameters[k]].kind = PROGRAM_VALUE_PARAMETER;
    }
    const Program *body = self->loop.regions.programs[0];
    for (int32_t k = 0; k < self->crossing_count; k++) {
        const ProgramValue *value = &body->values[self->crossing[k]];
        IrShape shape = array_shape(arena, &value->shape, self->kept);
        arrays[k] = add_like(made, value, &shape);
        if (arena->failed) return am_fail_memory(error, count);
        made->values[arrays[k]].kind = PROGRAM_VALUE_PARAMETER;
        made->parameters[half->count + k] = arrays[k];
    }
    return AM_OK;
}

/* Emits the place of the iteration, and 0. */
static void emit_place(const Splitter *self, Half *half) {
    Program *body = half->body;
    int32_t iteration = body->parameters[0];
    const ProgramValue like = body->values[iteration];
    int32_t operands[] = {iteration, add_like(body, &like, &like.shape)};
    half->place = iteration;
    half->zero = add_like(body, &like, &like.shape);
    if (self->arena->failed) return;
    emit_number(body, 0, half->zero);
    if (self->kept == self->iterations) return;
    emit_number(body, self->kept, operands[1]);
    half->place = add_like(body, &like, &like.shape);
    if (!self->arena->failed)
        emit_instruction(body, PROGRAM_COMPUTE, IR_REMAINDER, operands, 2, half->place, NULL);
}

/* Returns the operands of a slice of place `half->place`, after the first `count`. */
static int32_t *slice_operands(const Half *half, int32_t count, int32_t rank) {
    int32_t *operands = ARENA_ARRAY(half->body->arena, int32_t, count + rank + 1);
    if (!operands) return NULL;
    operands[count] = half->place;
    for (int32_t d = 1; d < rank; d++) operands[count + d] = half->zero;
    return operands;
}

/* Emits in B the write of value `crossing[k]` to the place of the iteration. */
static void emit_write(const Splitter *self, Half *half, int32_t k) {
    Program *body = half->body;
    int32_t value = self->crossing[k];
    const ProgramValue like = body->values[value], array = body->values[half->arrays[k]];
    IrShape one = array_shape(self->arena, &like.shape, 1);
    int32_t *operands = slice_operands(half, 2, one.rank), view = add_like(body, &like, &one);
    int32_t written = add_like(body, &like, &array.shape);
    if (self->arena->failed) return;
    operands[0] = half->arrays[k];
    operands[1] = view;
    emit_instruction(body, PROGRAM_VIEW, IR_RESHAPE, &value, 1, view, NULL);
    emit_instruction(body, PROGRAM_COMPUTE, IR_DYNAMIC_UPDATE_SLICE, operands, 2 + one.rank, written, NULL);
    body->outputs[half->count + k] = written;
}

/* Emits in W the read of value `crossing[k]` from the place of the iteration. */
static void emit_read(const Splitter *self, Half *half, int32_t k) {
    Program *body = half->body;
    int32_t value = self->crossing[k];
    const ProgramValue like = body->values[value];
    IrShape one = array_shape(self->arena, &like.shape, 1);
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int32_t *operands = slice_operands(half, 1, one.rank), slice = add_like(body, &like, &one);
    if (self->arena->failed) return;
    *attributes = (IrAttributes){.slice_sizes = one.dimensions};
    operands[0] = half->arrays[k];
    emit_instruction(body, PROGRAM_COMPUTE, IR_DYNAMIC_SLICE, operands, 1 + one.rank, slice, attributes);
    emit_instruction(body, PROGRAM_VIEW, IR_RESHAPE, &slice, 1, value, NULL);
}

static void emit_earlier(const Splitter *self, Half *half, const int32_t *number) {
    const Program *from = self->loop.regions.programs[0];
    for (int32_t p = 0; p < half->count; p++) {
        int32_t value = half->body->parameters[p];
        if (number[value] >= 0) emit_write(self, half, number[value]);
    }
    for (int32_t i = 0; i < from->instruction_count; i++) {
        const ProgramInstruction *instruction = &from->instructions[i];
        if (self->part->waits[i]) continue;
        emit_again(half->body, instruction);
        for (int32_t r = 0; r < instruction->result_count; r++)
            if (number[instruction->first_result + r] >= 0)
                emit_write(self, half, number[instruction->first_result + r]);
    }
}

/* Reads the crossing values that an instruction needs right before it, once. */
static void emit_later(const Splitter *self, Half *half, int32_t *number) {
    const Program *from = self->loop.regions.programs[0];
    for (int32_t i = 0; i < from->instruction_count; i++) {
        const ProgramInstruction *instruction = &from->instructions[i];
        if (!self->part->waits[i] && !self->part->is_copied[i]) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t value = instruction->operands[k];
            if (number[value] < 0) continue;
            emit_read(self, half, number[value]);
            number[value] = -1;
        }
        emit_again(half->body, instruction);
    }
    for (int32_t k = 0; k < half->count; k++) {
        int32_t value = half->body->outputs[k];
        if (value >= from->value_count || number[value] < 0) continue;
        emit_read(self, half, number[value]);
        number[value] = -1;
    }
}

static AmStatus make_body(const Splitter *self, Half *half, AmError *error) {
    const Program *from = self->loop.regions.programs[0];
    int32_t count = half->count + self->crossing_count;
    int32_t *number = ARENA_ARRAY(self->arena, int32_t, from->value_count + 1); /* in `crossing`, or -1 */
    half->arrays = ARENA_ARRAY(self->arena, int32_t, self->crossing_count + 1);
    if (self->arena->failed) return am_fail_memory(error, from->value_count);
    TRY(copy_region(self, &half->body, half, from, count, half->arrays, error));
    Program *body = half->body;
    for (int32_t v = 0; v < from->value_count; v++) number[v] = -1;
    for (int32_t k = 0; k < self->crossing_count; k++) number[self->crossing[k]] = k;
    for (int32_t k = 0; k < half->count; k++) body->outputs[k] = from->outputs[half->parameters[k]];
    for (int32_t k = 0; k < self->crossing_count; k++) body->outputs[half->count + k] = half->arrays[k];
    emit_place(self, half);
    if (half->is_later) emit_later(self, half, number);
    else emit_earlier(self, half, number);
    for (int32_t k = 0; k < count; k++)
        if (body->outputs[k] != body->parameters[k])
            body->execution.updates[body->execution.update_count++] =
                (ProgramUpdate){.parameter = k, .value = body->outputs[k]};
    return self->arena->failed ? am_fail_memory(error, count) : AM_OK;
}

static AmStatus make_half(const Splitter *self, Half *half, AmError *error) {
    half->parameters = ARENA_ARRAY(self->arena, int32_t, self->loop.operand_count + 1);
    if (!half->parameters) return am_fail_memory(error, self->loop.operand_count);
    const WaitingPart *part = self->part;
    for (int32_t p = 0; p < self->loop.operand_count; p++) {
        bool is_in_later = part->is_later[p] || part->is_common[p] || part->is_taken[p];
        if (half->is_later ? is_in_later : part->is_kept[p]) half->parameters[half->count++] = p;
    }
    TRY(make_body(self, half, error));
    const Program *from = self->loop.regions.programs[1];
    int32_t *arrays = ARENA_ARRAY(self->arena, int32_t, self->crossing_count + 1);
    if (!arrays) return am_fail_memory(error, self->crossing_count);
    TRY(copy_region(self, &half->condition, half, from, 1, arrays, error));
    for (int32_t i = 0; i < from->instruction_count; i++) emit_again(half->condition, &from->instructions[i]);
    half->condition->outputs[0] = from->outputs[0];
    return self->arena->failed ? am_fail_memory(error, from->instruction_count) : AM_OK;
}

/* ---- the loops ---- */

/* Adds the loop of one half. `given`: [crossing] the initial values of the arrays; `results`:
 * [crossing] their final values in B, set here. */
static void emit_loop(const Splitter *self, const Half *half, const int32_t *given, int32_t *results,
                      int32_t *renamed) {
    Program *program = self->program;
    Arena *arena = self->arena;
    int32_t count = half->count + self->crossing_count;
    ProgramInstruction loop = self->loop;
    int32_t *operands = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *carried = ARENA_ARRAY(arena, int32_t, count + 1);
    Program **regions = ARENA_ARRAY(arena, Program *, 2);
    if (arena->failed) return;
    for (int32_t k = 0; k < half->count; k++) operands[k] = self->loop.operands[half->parameters[k]];
    for (int32_t k = 0; k < self->crossing_count; k++) operands[half->count + k] = given[k];
    loop.operand_count = count;
    loop.operands = operands;
    loop.first_result = program->value_count;
    loop.result_count = 0;
    for (int32_t k = 0, r = 0; k < half->count; k++) {
        if (!carries(self, half, half->parameters[k])) continue;
        while (self->loop.loop.carried[r] != half->parameters[k]) r++;
        int32_t old = self->loop.first_result + r;
        const ProgramValue like = program->values[old];
        int32_t made = add_like(program, &like, &like.shape);
        if (arena->failed) return;
        carried[loop.result_count++] = k;
        if (!half->is_later || !self->part->is_common[half->parameters[k]]) renamed[old] = made;
    }
    for (int32_t k = 0; k < self->crossing_count && !half->is_later; k++) {
        const ProgramValue like = program->values[given[k]];
        results[k] = add_like(program, &like, &like.shape);
        carried[loop.result_count++] = half->count + k;
    }
    regions[0] = half->body;
    regions[1] = half->condition;
    loop.loop.carried = carried;
    loop.regions.programs = regions;
    emit_again(program, &loop);
}

static AmStatus rename_values(Program *program, const int32_t *renamed, int32_t known, AmError *error) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        ProgramInstruction *instruction = &program->instructions[i];
        int32_t *operands = NULL;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t value = instruction->operands[k];
            if (value >= known || renamed[value] < 0) continue;
            if (!operands) {
                operands = ARENA_ARRAY(program->arena, int32_t, instruction->operand_count);
                if (!operands) return am_fail_memory(error, instruction->operand_count);
                memcpy(operands, instruction->operands,
                       sizeof *operands * (size_t)instruction->operand_count);
                instruction->operands = operands;
            }
            operands[k] = renamed[value];
        }
    }
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0 && renamed[program->outputs[k]] >= 0)
            program->outputs[k] = renamed[program->outputs[k]];
    for (int32_t k = 0; k < program->execution.update_count; k++)
        if (renamed[program->execution.updates[k].value] >= 0)
            program->execution.updates[k].value = renamed[program->execution.updates[k].value];
    return AM_OK;
}

AmStatus waiting_part_split(Program *program, int32_t *first, int32_t *second, int32_t *third,
                            const WaitingPart *part, int32_t kept, int32_t iterations, AmError *error) {
    Arena *arena = program->arena;
    Splitter self = {.program = program,
                     .arena = arena,
                     .loop = program->instructions[*second],
                     .part = part,
                     .kept = kept,
                     .iterations = iterations};
    Half halves[] = {{.is_later = false}, {.is_later = true}};
    int32_t known = program->value_count, count = program->instruction_count, at = *second;
    const ProgramInstruction *before = program->instructions;
    int32_t inside = self.loop.regions.programs[0]->value_count;
    self.crossing = ARENA_ARRAY(arena, int32_t, inside + 1);
    if (!self.crossing) return am_fail_memory(error, inside);
    for (int32_t v = 0; v < inside; v++)
        if (self.part->crosses[v]) self.crossing[self.crossing_count++] = v;
    for (int h = 0; h < 2; h++) TRY(make_half(&self, &halves[h], error));
    int32_t *renamed = ARENA_ARRAY(arena, int32_t, known + 1);
    int32_t *zeros = ARENA_ARRAY(arena, int32_t, self.crossing_count + 1);
    int32_t *written = ARENA_ARRAY(arena, int32_t, self.crossing_count + 1);
    if (arena->failed) return am_fail_memory(error, known);
    for (int32_t v = 0; v < known; v++) renamed[v] = -1;
    for (int32_t r = 0; r < self.loop.result_count; r++) {
        int32_t p = self.loop.loop.carried[r];
        const Program *body = self.loop.regions.programs[0];
        if (body->outputs[p] == body->parameters[p])
            renamed[self.loop.first_result + r] = self.loop.operands[p];
    }
    program->instructions = NULL;
    program->instruction_count = program->instruction_capacity = 0;
    for (int32_t i = 0; i < *first; i++) emit_again(program, &before[i]);
    for (int32_t k = 0; k < self.crossing_count; k++) {
        const Program *body = halves[0].body;
        ProgramValue like = body->values[halves[0].arrays[k]];
        like.origin = self.loop.origin;
        zeros[k] = add_like(program, &like, &like.shape);
        if (arena->failed) return am_fail_memory(error, known);
        const ProgramValue array = program->values[zeros[k]]; /* initial arrays are zeros */
        IrShape scalar = {.type = array.shape.type};
        int32_t zero = add_like(program, &array, &scalar);
        if (arena->failed) return am_fail_memory(error, known);
        emit_number(program, 0, zero);
        emit_instruction(program, PROGRAM_COMPUTE, IR_BROADCAST, &zero, 1, zeros[k], NULL);
    }
    emit_again(program, &before[*first]);
    *first = program->instruction_count - 1;
    *second = program->instruction_count;
    emit_loop(&self, &halves[0], zeros, written, renamed);
    *third = program->instruction_count;
    emit_loop(&self, &halves[1], written, NULL, renamed);
    for (int32_t i = at + 1; i < count; i++) emit_again(program, &before[i]);
    if (arena->failed) return am_fail_memory(error, count);
    return rename_values(program, renamed, known, error);
}
