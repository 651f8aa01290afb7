/* Builds the programs of a region's stages: the region's instructions on the extents of one block.
 *
 * region_part_build() marks the instructions that the stage's results need, adds inputs for values of other
 * programs, copies the instructions with shapes of one block, and adds the terms of sums to accumulators.
 * The new program is fused and gets buffers as any other.
 */
#include "executor/cpu/attention/region_part.h"

#include <string.h>

#include "lowering/passes/passes.h"
#include "lowering/program/program_edit.h"

typedef struct RegionPartBuilder {
    Arena *arena;
    const Program *region;
    const RegionBlocks *blocks; /* of the region */
    RegionStage stage;
    RegionPart *part;
    Program *program;
    int32_t *made;   /* [value of the region]: value of the program, or -1 */
    bool *is_needed; /* [value of the region] */
    bool *is_given;  /* [value of the region]: it is an output of the program */
} RegionPartBuilder;

static int32_t add_value(RegionPartBuilder *self, IrShape shape, int32_t origin) {
    ProgramValue value = {.shape = shape,
                          .origin = origin,
                          .instruction = self->program->instruction_count,
                          .kind = PROGRAM_VALUE_TEMPORARY,
                          .offset = -1};
    return program_add_value(self->program, &value);
}

static int64_t extent_of(const RegionPartBuilder *self, const ValueLabels *labels, int32_t first,
                         int32_t end) {
    int64_t extent = 1;
    for (int32_t k = first; k < end; k++) extent *= self->part->extents[labels->list[k]];
    return extent;
}

/* Returns the shape of a value of the region in this part. */
static IrShape shape_of(const RegionPartBuilder *self, int32_t value, Dtype type) {
    const ValueLabels *labels = &self->blocks->labels.values[value];
    int32_t rank = self->region->values[value].shape.rank;
    int64_t *dimensions = ARENA_ARRAY(self->arena, int64_t, rank + 1);
    for (int32_t d = 0; d < rank && dimensions; d++)
        dimensions[d] = extent_of(self, labels, d > 0 ? labels->ends[d - 1] : 0, labels->ends[d]);
    return (IrShape){.type = type, .rank = dimensions ? rank : 0, .dimensions = dimensions};
}

static Dtype type_of(const RegionPartBuilder *self, int32_t value) {
    return self->region->values[value].shape.type;
}

/* Appends an instruction like `like` with its own operands; returns its result. */
static int32_t add_instruction(RegionPartBuilder *self, const ProgramInstruction *like,
                               const int32_t *operands, int32_t operand_count, IrShape shape) {
    Program *program = self->program;
    int32_t *own = ARENA_ARRAY(self->arena, int32_t, operand_count + 1);
    ARENA_RESERVE(self->arena, program->instructions, program->instruction_count,
                  program->instruction_capacity);
    if (self->arena->failed) return 0;
    for (int32_t k = 0; k < operand_count; k++) own[k] = operands[k];
    int32_t result = add_value(self, shape, like->origin);
    if (self->arena->failed) return 0;
    ProgramInstruction *instruction = &program->instructions[program->instruction_count++];
    *instruction = *like;
    instruction->operands = own;
    instruction->operand_count = operand_count;
    instruction->first_result = result;
    instruction->result_count = 1;
    return result;
}

static int32_t add_operator(RegionPartBuilder *self, IrOpcode opcode, const ProgramInstruction *origin,
                            const int32_t *operands, int32_t operand_count, IrShape shape) {
    static const IrAttributes nothing;
    ProgramInstruction like = {.kind = PROGRAM_COMPUTE,
                               .opcode = opcode,
                               .origin = origin->origin,
                               .attributes = &nothing,
                               .compute.called = -1,
                               .compute.called_second = -1};
    return add_instruction(self, &like, operands, operand_count, shape);
}

static int32_t add_input(RegionPartBuilder *self, RegionLink link, IrShape shape, int32_t origin) {
    RegionPart *part = self->part;
    int32_t value = add_value(self, shape, origin);
    if (self->arena->failed) return 0;
    self->program->values[value].kind = PROGRAM_VALUE_PARAMETER;
    self->program->values[value].instruction = -1;
    link.own = value;
    self->program->parameters[part->input_count] = value;
    part->inputs[part->input_count++] = link;
    return value;
}

static void add_output(RegionPartBuilder *self, RegionLink link) {
    link.own = self->made[link.value];
    link.dimension = -1;
    self->program->outputs[self->part->output_count] = link.own;
    self->part->outputs[self->part->output_count++] = link;
}

/* Returns whether this program computes the value, instead of reading it as an input. */
static bool is_made_here(const RegionPartBuilder *self, int32_t value) {
    int32_t producer = self->blocks->producer[value];
    if (producer < 0 || self->blocks->stage[producer] == REGION_UNUSED) return false;
    return self->blocks->is_free[producer] || self->blocks->stage[producer] == self->stage;
}

/* Returns whether the indices of an iota do not all occur in a block. */
static bool is_divided_iota(const RegionPartBuilder *self, const ProgramInstruction *instruction,
                            int32_t *dimension) {
    if (instruction->opcode != IR_IOTA) return false;
    *dimension =
        instruction->attributes->dimension_count > 0 ? (int32_t)instruction->attributes->dimensions[0] : 0;
    const ValueLabels *labels = &self->blocks->labels.values[instruction->first_result];
    int32_t first = *dimension > 0 ? labels->ends[*dimension - 1] : 0;
    const int64_t *dimensions = self->region->values[instruction->first_result].shape.dimensions;
    return extent_of(self, labels, first, labels->ends[*dimension]) != dimensions[*dimension];
}

/* Marks the values that this program gives to others, and then all that they need. */
static void find_needed(RegionPartBuilder *self) {
    const RegionBlocks *blocks = self->blocks;
    const Program *region = self->region;
    for (int32_t k = 0; k < region->roles->output_count; k++) {
        int32_t value = region->outputs[k];
        self->is_given[value] = blocks->is_accumulated[value]
                                    ? self->stage == REGION_AFTER
                                    : blocks->stage[blocks->producer[value]] == (uint8_t)self->stage;
    }
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        if (self->stage == REGION_BLOCK && blocks->is_accumulated[instruction->first_result])
            self->is_needed[instruction->first_result] = true;
        for (int32_t k = 0; k < instruction->operand_count && self->stage == REGION_BEFORE; k++) {
            int32_t operand = instruction->operands[k], producer = blocks->producer[operand];
            if (producer >= 0 && blocks->stage[producer] == REGION_BEFORE && blocks->stage[i] > REGION_BEFORE)
                self->is_given[operand] = true;
        }
    }
    for (int32_t v = 0; v < region->value_count; v++) self->is_needed[v] |= self->is_given[v];
    for (int32_t i = region->instruction_count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t value = instruction->first_result;
        if (!self->is_needed[value] || !is_made_here(self, value)) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            self->is_needed[instruction->operands[k]] = true;
    }
}

/* Adds an input for each value that the part reads and does not compute. */
static void add_inputs(RegionPartBuilder *self) {
    const RegionBlocks *blocks = self->blocks;
    const Program *region = self->region;
    for (int32_t k = 0; k < region->roles->parameter_count; k++) {
        int32_t value = region->parameters[k];
        if (value < 0 || !self->is_needed[value]) continue;
        RegionLink link = {.place = REGION_PARAMETER, .index = k, .value = value, .dimension = -1};
        self->made[value] = add_input(self, link, shape_of(self, value, type_of(self, value)), -1);
    }
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t value = instruction->first_result;
        if (!self->is_needed[value] || is_made_here(self, value)) continue;
        RegionLink link = {.place = REGION_MADE_BEFORE, .value = value, .dimension = -1};
        Dtype type = type_of(self, value);
        if (blocks->is_accumulated[value]) {
            link.place = REGION_ACCUMULATOR;
            type = region_sum_type(type);
        }
        self->made[value] = add_input(self, link, shape_of(self, value, type), instruction->origin);
    }
}

/* Adds the input of a divided iota: a vector with its indices. */
static void add_indices(RegionPartBuilder *self, const ProgramInstruction *iota, int32_t dimension) {
    int32_t value = iota->first_result;
    IrShape shape = shape_of(self, value, type_of(self, value));
    int64_t *extent = ARENA_ARRAY(self->arena, int64_t, 1), *to = ARENA_ARRAY(self->arena, int64_t, 1);
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    if (self->arena->failed) return;
    *extent = shape.dimensions[dimension];
    *to = dimension;
    *attributes = (IrAttributes){.dimension_count = 1, .dimensions = to};
    RegionLink link = {.place = REGION_INDICES,
                       .index = self->blocks->producer[value],
                       .value = value,
                       .dimension = dimension};
    IrShape indices = {.type = shape.type, .rank = 1, .dimensions = extent};
    int32_t vector = add_input(self, link, indices, iota->origin);
    self->made[value] = add_operator(self, IR_BROADCAST, iota, &vector, 1, shape);
    if (!self->arena->failed)
        self->program->instructions[self->program->instruction_count - 1].attributes = attributes;
}

/* Terms of a sum, as the accumulator's type, are added to the accumulator. */
static void add_terms(RegionPartBuilder *self, const ProgramInstruction *instruction,
                      const int32_t *operands) {
    int32_t value = instruction->first_result, terms[3] = {operands[0], operands[1]};
    Dtype type = region_sum_type(type_of(self, value));
    IrShape shape = shape_of(self, value, type);
    RegionLink link = {.place = REGION_ACCUMULATOR, .value = value, .dimension = -1};
    if (instruction->opcode == IR_REDUCE && type != type_of(self, value)) {
        static const float zero = 0;
        IrLiteral *literal = ARENA_ARRAY(self->arena, IrLiteral, 1);
        IrShape operand = self->program->values[operands[0]].shape;
        if (!literal) return;
        *literal = (IrLiteral){.data = &zero, .bytes = sizeof zero};
        operand.type = type;
        terms[0] = add_operator(self, IR_CONVERT, instruction, operands, 1, operand);
        terms[1] = add_operator(self, IR_CONSTANT, instruction, NULL, 0, (IrShape){.type = type});
        if (self->arena->failed) return;
        self->program->instructions[self->program->instruction_count - 1].compute.literal = literal;
    }
    int32_t sum[2] = {add_input(self, link, shape, instruction->origin)};
    sum[1] = add_instruction(self, instruction, terms, 2, shape);
    int32_t result = add_operator(self, IR_ADD, instruction, sum, 2, shape);
    self->program->execution.updates[self->program->execution.update_count++] =
        (ProgramUpdate){.parameter = self->part->input_count - 1, .value = result};
}

static AmStatus add_instructions(RegionPartBuilder *self, AmError *error) {
    const RegionBlocks *blocks = self->blocks;
    const Program *region = self->region;
    for (int32_t i = 0; i < region->instruction_count && !self->arena->failed; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        int32_t value = instruction->first_result, dimension, operands[3] = {0};
        if (!self->is_needed[value]) continue;
        if (!is_made_here(self, value)) {
            Dtype type = type_of(self, value);
            if (blocks->is_accumulated[value] && type != region_sum_type(type))
                self->made[value] = add_operator(self, IR_CONVERT, instruction, &self->made[value], 1,
                                                 shape_of(self, value, type));
            continue;
        }
        if (is_divided_iota(self, instruction, &dimension)) {
            add_indices(self, instruction, dimension);
            continue;
        }
        if (instruction->operand_count > 3)
            return am_fail(error, AM_ERROR_INPUT, "", "more than three operands");
        for (int32_t k = 0; k < instruction->operand_count; k++)
            operands[k] = self->made[instruction->operands[k]];
        if (blocks->is_accumulated[value]) {
            add_terms(self, instruction, operands);
            continue;
        }
        self->made[value] = add_instruction(self, instruction, operands, instruction->operand_count,
                                            shape_of(self, value, type_of(self, value)));
    }
    return self->arena->failed ? am_fail_memory(error, 64) : AM_OK;
}

AmStatus region_part_build(RegionPart *part, Arena *arena, const RegionBlocks *blocks, RegionStage stage,
                           const int64_t *extents, AmError *error) {
    const Program *region = blocks->region;
    int32_t most = 2 * region->value_count + region->roles->output_count + 1;
    Program *program = ARENA_ARRAY(arena, Program, 1);
    IrRoles *roles = ARENA_ARRAY(arena, IrRoles, 1);
    *part = (RegionPart){.program = program,
                         .extents = extents,
                         .inputs = ARENA_ARRAY(arena, RegionLink, most),
                         .outputs = ARENA_ARRAY(arena, RegionLink, most)};
    RegionPartBuilder self = {.arena = arena,
                              .region = blocks->region,
                              .blocks = blocks,
                              .stage = stage,
                              .part = part,
                              .program = program,
                              .made = ARENA_ARRAY(arena, int32_t, most),
                              .is_needed = ARENA_ARRAY(arena, bool, most),
                              .is_given = ARENA_ARRAY(arena, bool, most)};
    if (arena->failed) return am_fail_memory(error, most * (int64_t)sizeof(RegionLink));
    *program = (Program){.arena = arena,
                         .module = region->module,
                         .roles = roles,
                         .parameters = ARENA_ARRAY(arena, int32_t, most),
                         .outputs = ARENA_ARRAY(arena, int32_t, most),
                         .execution.updates = ARENA_ARRAY(arena, ProgramUpdate, most)};
    if (arena->failed) return am_fail_memory(error, most * (int64_t)sizeof(ProgramUpdate));
    for (int32_t v = 0; v < region->value_count; v++) self.made[v] = -1;
    find_needed(&self);
    add_inputs(&self);
    TRY(add_instructions(&self, error));
    for (int32_t k = 0; k < region->roles->output_count; k++)
        if (self.is_given[region->outputs[k]])
            add_output(&self, (RegionLink){.place = REGION_OUTPUT, .index = k, .value = region->outputs[k]});
    for (int32_t v = 0; v < region->value_count && self.stage == REGION_BEFORE; v++)
        if (self.is_given[v]) add_output(&self, (RegionLink){.place = REGION_MADE_BEFORE, .value = v});
    /* New values of parameters are outputs too, as those of a loop's body are. */
    for (int32_t k = 0; k < program->execution.update_count; k++)
        program->outputs[part->output_count + k] = program->execution.updates[k].value;
    *roles = (IrRoles){.loss = -1,
                       .parameter_count = part->input_count,
                       .output_count = part->output_count + program->execution.update_count};
    TRY(program_fuse(program, error));
    return program_plan_buffers(program, error);
}
