/* Fused kernels of a module, for prices: instructions of one kernel have names "fused/KIND/NUMBER", or
 * "fused/KIND/waits/NUMBER" where the host waits for the device first.
 *
 * find_in_program() finds the kernel of each step, the values that stay in registers (find_registers()), and
 * the products that are priced as one. The memory of the program is then planned again without values in
 * registers.
 */
#include "cost/operator/fused_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lowering/passes/passes.h"

enum { MOST_BITS = 64 };

typedef struct KernelFinder {
    Program *program;
    int32_t *number;   /* [step]: of its kernel, or -1 */
    int32_t *producer; /* [storage]: kernel that makes it, -1: none or several steps outside */
    bool *is_shared;   /* [storage]: a step outside the kernel reads it, or the program returns it */
    int32_t *reader;   /* [value]: the kernel that has read it last */
} KernelFinder;

static FusedKind kind_of_name(const char *name, int32_t *number, bool *waits) {
    static const struct {
        const char *prefix;
        FusedKind kind;
    } kinds[] = {{"fused/columns/", FUSED_COLUMNS},
                 {"fused/depth/", FUSED_DEPTH},
                 {"fused/kernel/", FUSED_PLAIN},
                 {"fused/attention_forward/", FUSED_FORWARD},
                 {"fused/causal_forward/", FUSED_FORWARD_CAUSAL},
                 {"fused/attention_backward/", FUSED_BACKWARD},
                 {"fused/causal_backward/", FUSED_BACKWARD_CAUSAL},
                 {"fused/attention_forward_1/", FUSED_FLASH1_FORWARD},
                 {"fused/causal_forward_1/", FUSED_FLASH1_FORWARD_CAUSAL},
                 {"fused/attention_backward_1/", FUSED_FLASH1_BACKWARD},
                 {"fused/causal_backward_1/", FUSED_FLASH1_BACKWARD_CAUSAL}};
    if (strncmp(name, "fused/", strlen("fused/")) != 0) return FUSED_NONE;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t length = strlen(kinds[k].prefix);
        if (strncmp(name, kinds[k].prefix, length) != 0) continue;
        *waits = strncmp(name + length, "waits/", strlen("waits/")) == 0;
        if (*waits) length += strlen("waits/");
        *number = (int32_t)strtol(name + length, NULL, 10);
        return kinds[k].kind;
    }
    return FUSED_NONE;
}

/* Returns the kernel of a step; a fusion belongs to that of its last operator that has one. */
static FusedKind kind_of_step(const Program *program, const ProgramStep *step, int32_t *number, bool *waits) {
    const IrInstruction *instructions = program->module->instructions;
    FusedKind kind = FUSED_NONE;
    if (step->fusion < 0) {
        const ProgramInstruction *instruction = &program->instructions[step->instruction];
        bool computes = instruction->kind == PROGRAM_COMPUTE && instruction->regions.count == 0;
        return computes ? kind_of_name(instructions[instruction->origin].op_name, number, waits) : FUSED_NONE;
    }
    const ProgramFusion *fusion = &program->execution.fusions[step->fusion];
    for (int32_t k = fusion->op_count - 1; k >= 0 && kind == FUSED_NONE; k--)
        kind = kind_of_name(instructions[fusion->ops[k].origin].op_name, number, waits);
    return kind;
}

/* Values that stay in registers: their kernel alone makes and reads them. */
static bool find_registers(KernelFinder *self) {
    Program *program = self->program;
    bool any = false;
    for (int32_t v = 0; v < program->value_count; v++) self->producer[v] = self->reader[v] = -1;
    for (int32_t s = 0; s < program->execution.step_count; s++)
        for (int32_t k = 0; k < program_step_results(program, &program->execution.steps[s]); k++)
            self->producer[program_step_result(program, &program->execution.steps[s], k)] = self->number[s];
    for (int32_t s = 0; s < program->execution.step_count; s++)
        for (int32_t k = 0; k < program_step_operands(program, &program->execution.steps[s]); k++) {
            int32_t storage =
                program->values[program_step_operand(program, &program->execution.steps[s], k)].storage;
            if (self->producer[storage] != self->number[s]) self->is_shared[storage] = true;
        }
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) self->is_shared[program->values[program->outputs[k]].storage] = true;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        self->is_shared[program->values[program->execution.updates[k].value].storage] = true;
    for (int32_t v = 0; v < program->value_count; v++) {
        ProgramValue *value = &program->values[v];
        value->in_registers = value->storage == v && self->producer[v] >= 0 && !self->is_shared[v] &&
                              value->kind == PROGRAM_VALUE_TEMPORARY;
        any |= value->in_registers;
    }
    /* A framework allocates the result of a kernel before it frees the operands. */
    for (int32_t s = 0; s < program->execution.step_count; s++)
        for (int32_t k = 0;
             self->number[s] >= 0 && k < program_step_results(program, &program->execution.steps[s]); k++) {
            program->values[program_step_result(program, &program->execution.steps[s], k)].lies_apart = true;
            any = true;
        }
    return any;
}

/* Returns the columns, or the depth, of a step that is a product of two matrices; 0 for others. */
static double joined_size(const Program *program, const ProgramStep *step, FusedKind kind) {
    if (step->fusion >= 0 || !ir_is_matrix_product(program->instructions[step->instruction].opcode)) return 0;
    const ProgramInstruction *dot = &program->instructions[step->instruction];
    double left = (double)ir_shape_elements(&program->values[dot->operands[0]].shape);
    double right = (double)ir_shape_elements(&program->values[dot->operands[1]].shape);
    double result = (double)ir_shape_elements(&program->values[dot->first_result].shape);
    if (!(left > 0 && right > 0 && result > 0)) return 0;
    return kind == FUSED_COLUMNS ? sqrt(right * result / left) : sqrt(left * right / result);
}

static void mark_steps(KernelFinder *self, FusedStep *steps) {
    Program *program = self->program;
    int32_t most = 0;
    for (int32_t s = 0; s < program->execution.step_count; s++)
        most = self->number[s] > most ? self->number[s] : most;
    /* The first product of a kernel of joined ones has the share of all. */
    double *sizes = ARENA_ARRAY(program->arena, double, most + 1);
    for (int32_t s = 0; s < program->execution.step_count && sizes; s++)
        if (steps[s].kind == FUSED_COLUMNS || steps[s].kind == FUSED_DEPTH)
            sizes[self->number[s]] += joined_size(program, &program->execution.steps[s], steps[s].kind);
    for (int32_t s = 0; s < program->execution.step_count && sizes; s++) {
        if (steps[s].kind != FUSED_COLUMNS && steps[s].kind != FUSED_DEPTH) continue;
        double own = joined_size(program, &program->execution.steps[s], steps[s].kind);
        if (!(own > 0 && sizes[self->number[s]] > 0)) continue;
        steps[s].products = sizes[self->number[s]] / own;
        sizes[self->number[s]] = 0;
    }
    bool *is_launched = ARENA_ARRAY(program->arena, bool, most + 1);
    for (int32_t s = 0; s < program->execution.step_count && is_launched; s++) {
        if (self->number[s] < 0) continue;
        const ProgramStep *step = &program->execution.steps[s];
        steps[s].launches = !is_launched[self->number[s]];
        is_launched[self->number[s]] = true;
        for (int32_t k = 0; k < program_step_operands(program, step) && k < MOST_BITS; k++) {
            int32_t storage = program->values[program_step_operand(program, step, k)].storage;
            bool is_free = program->values[storage].in_registers || self->reader[storage] == self->number[s];
            if (is_free) steps[s].read_before |= UINT64_C(1) << k;
            self->reader[storage] = self->number[s];
        }
        for (int32_t k = 0; k < program_step_results(program, step) && k < MOST_BITS; k++)
            if (program->values[program->values[program_step_result(program, step, k)].storage].in_registers)
                steps[s].in_registers |= UINT64_C(1) << k;
    }
}

/* Finds fused kernels in a program. `changed` is set where the memory of the program has to be planned
 * again. */
static AmStatus find_in_program(Program *program, bool *changed, AmError *error) {
    Arena *arena = program->arena;
    *changed = false;
    if (program->execution.fused) return AM_OK;
    for (int32_t i = 0; i < program->instruction_count; i++)
        for (int32_t r = 0; r < program->instructions[i].regions.count; r++) {
            bool region_changed;
            TRY(find_in_program(program->instructions[i].regions.programs[r], &region_changed, error));
            *changed |= region_changed;
        }
    KernelFinder self = {.program = program,
                         .number = ARENA_ARRAY(arena, int32_t, program->execution.step_count + 1)};
    FusedStep *steps = ARENA_ARRAY(arena, FusedStep, program->execution.step_count + 1);
    if (arena->failed) return am_fail_memory(error, program->execution.step_count);
    bool any = false;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        self.number[s] = -1;
        steps[s].kind = kind_of_step(program, &program->execution.steps[s], &self.number[s], &steps[s].waits);
        any |= steps[s].kind != FUSED_NONE;
    }
    if (any) {
        self.producer = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
        self.reader = ARENA_ARRAY(arena, int32_t, program->value_count + 1);
        self.is_shared = ARENA_ARRAY(arena, bool, program->value_count + 1);
        if (arena->failed) return am_fail_memory(error, program->value_count);
        *changed |= find_registers(&self);
        mark_steps(&self, steps);
        program->execution.fused = steps;
    }
    program->allocation.shares_workspaces = *changed;
    return *changed ? program_plan_buffers(program, error) : AM_OK;
}

AmStatus fused_kernels_find(Program *program, bool is_serial, AmError *error) {
    bool changed;
    TRY(find_in_program(program, &changed, error));
    if (!is_serial || program->allocation.shares_workspaces) return AM_OK;
    program->allocation.shares_workspaces = true;
    return program_plan_buffers(program, error);
}
