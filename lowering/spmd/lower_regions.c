/* Regions: the computations that an instruction runs, each as a program of its own.
 *
 * Every mention of a computation is lowered anew, since its kernels have their
 * own memory; the size after that is measured before anything is lowered.
 */
#include <stdlib.h>

#include "lowering/interleave/interleave.h"
#include "lowering/passes/passes.h"
#include "lowering/passes/places.h"
#include "lowering/spmd/lower_internal.h"

#define MOST_INSTRUCTIONS (1 << 20) /* of a computation with all that it calls, mention by mention */

/* Instructions of a computation and, for each mention, of those it mentions;
 * saturates. `known` [computation] remembers. Recursion ends, as canonical
 * modules have none that is endless. */
static int64_t full_size(const IrModule *module, int32_t computation, int64_t *known) {
    const IrComputation *body = &module->computations[computation];
    if (known[computation] > 0) return known[computation];
    int64_t size = body->count + 1;
    for (int32_t i = 0; i < body->count && size <= MOST_INSTRUCTIONS; i++) {
        const IrInstruction *instruction = &module->instructions[body->first + i];
        for (int32_t k = 0; k < instruction->called_count && size <= MOST_INSTRUCTIONS; k++)
            size += full_size(module, instruction->called[k], known);
    }
    if (size > MOST_INSTRUCTIONS) size = MOST_INSTRUCTIONS + 1;
    return known[computation] = size;
}

static AmStatus check_size(const IrModule *module, int32_t computation, AmError *error) {
    if (computation < 0 || computation >= module->computation_count) return AM_OK;
    int64_t *known = calloc((size_t)module->computation_count, sizeof *known);
    if (!known) return am_fail_memory(error, module->computation_count * 8);
    int64_t size = full_size(module, computation, known);
    free(known);
    if (size <= MOST_INSTRUCTIONS) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, module->source,
                   "computation %s: more than %d instructions with the computations that it calls",
                   module->computations[computation].name, MOST_INSTRUCTIONS);
}

bool lower_has_regions(IrOpcode opcode) {
    return opcode == IR_WHILE || opcode == IR_CONDITIONAL || opcode == IR_CALL || opcode == IR_FUSION;
}

AmStatus lower_replicated_regions(ProgramInstruction *instruction, Arena *arena, const IrModule *module,
                                  AmError *error) {
    const IrInstruction *source = &module->instructions[instruction->origin];
    bool is_loop = source->opcode == IR_WHILE;
    Program **regions = ARENA_ARRAY(arena, Program *, source->called_count + 1);
    if (!regions) return am_fail_memory(error, source->called_count);
    for (int32_t k = 0; k < source->called_count; k++) {
        TRY(program_from_computation(&regions[k], arena, module, source->called[k], is_loop && k == 0,
                                     error));
        if (is_loop && k == 0) {
            program_set_counter(regions[k], instruction->origin, NULL);
            if (regions[k]->counter.iterations > 0) TRY(program_finish_again(regions[k], error));
        }
        if (is_loop) continue;
        regions[k]->allocation.outputs_outside = true;
        TRY(program_plan_buffers(regions[k], error));
    }
    instruction->regions.programs = regions;
    instruction->regions.count = source->called_count;
    if (is_loop) {
        /* Everything that a loop takes is carried: 0, 1, 2, ... */
        int32_t *numbers = ARENA_ARRAY(arena, int32_t, instruction->operand_count + 1);
        for (int32_t k = 0; numbers && k < instruction->operand_count; k++) numbers[k] = k;
        instruction->loop.carried = numbers;
    }
    return arena->failed ? am_fail_memory(error, instruction->operand_count) : AM_OK;
}

AmStatus lower_fusion_region(Lowering *self, ProgramInstruction *instruction, AmError *error) {
    const IrInstruction *source = &self->module->instructions[instruction->origin];
    const ProgramValue *values = self->program->values;
    int32_t operands = instruction->operand_count;
    const IrShape **slots = ARENA_ARRAY(self->arena, const IrShape *, operands + instruction->result_count);
    Program **regions = ARENA_ARRAY(self->arena, Program *, 1);
    if (!slots || !regions) return am_fail_memory(error, operands);
    for (int32_t k = 0; k < operands; k++) slots[k] = &values[instruction->operands[k]].shape;
    for (int32_t r = 0; r < instruction->result_count; r++)
        slots[operands + r] = &values[instruction->first_result + r].shape;
    const IrShape *shapes = rules_shapes_inside(self->arena, self->rules, instruction->origin, slots);
    if (!shapes) return am_fail_memory(error, operands);
    TRY(program_from_local_computation(&regions[0], self->arena, self->module, source->called[0], shapes,
                                       error));
    instruction->regions.programs = regions;
    instruction->regions.count = 1;
    instruction->regions.in_blocks = true;
    return AM_OK;
}

AmStatus lower_finish_fusion_regions(Program *program, AmError *error) {
    for (int32_t i = 0; i < program->instruction_count; i++) {
        if (!program->instructions[i].regions.in_blocks) continue;
        Program *region = program->instructions[i].regions.programs[0];
        TRY(program_absorb_transposes(region, error));
        TRY(program_fuse(region, error));
        region->allocation.outputs_outside = true;
        TRY(program_plan_buffers(region, error));
    }
    return AM_OK;
}

AmStatus lower_check_bitcast(const IrModule *module, int32_t i, AmError *error) {
    const IrInstruction *instruction = &module->instructions[i];
    if (instruction->opcode != IR_BITCAST || instruction->shape.type == DTYPE_TUPLE) return AM_OK;
    const IrShape *operand = &module->instructions[instruction->operands[0]].shape;
    if (ir_bitcast_is_reshape(operand, &instruction->shape)) return AM_OK;
    const char *name = *instruction->op_name ? instruction->op_name : instruction->name;
    return am_fail(error, AM_ERROR_INPUT, module->source,
                   "bitcast \"%.200s\" reads elements in the order of a layout that is not row-major, as "
                   "compiled modules do; pass the module before optimization",
                   name);
}

AmStatus lower_check_regions(const IrModule *module, const IrInstruction *instruction, AmError *error) {
    for (int32_t k = 0; k < instruction->called_count; k++)
        TRY(check_size(module, instruction->called[k], error));
    return AM_OK;
}
