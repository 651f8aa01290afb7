/* Offloading of optimizer state: finds the steps that use it, and inserts host copies around them. */
#include "lowering/offload/offload.h"

#include <string.h>

#include "lowering/program/program_edit.h"

enum { NO_STEP = -1 };

/* A parameter in the host's memory. Steps that run together count as the first of them. */
typedef struct HostArray {
    int32_t parameter, value, output; /* number; its value; the number of the output that replaces it */
    int32_t read_at, made_at;         /* the first step that reads it, or NO_STEP; that makes its new value */
} HostArray;

typedef struct Offloader {
    Program *program;
    Arena *arena;
    int32_t *viewed;  /* [value]: itself, or the value behind a view */
    int32_t *read_at; /* [value]: the first step that reads it or a view of it, or NO_STEP */
    int32_t *made_at; /* [value]: the step that makes it, or NO_STEP */
    int32_t *renamed; /* [value]: the copy on the device; itself where there is none */
    HostArray *arrays;
    int32_t array_count;
    ProgramStep *steps; /* the new list */
    int32_t step_count;
} Offloader;

static void find_uses(Offloader *self) {
    const Program *program = self->program;
    for (int32_t v = 0; v < program->value_count; v++) {
        self->viewed[v] = self->renamed[v] = v;
        self->read_at[v] = self->made_at[v] = NO_STEP;
    }
    for (int32_t i = 0; i < program->instruction_count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (program_is_view(instruction))
            self->viewed[instruction->first_result] = self->viewed[instruction->operands[0]];
    }
    for (int32_t s = program->execution.step_count - 1; s >= 0; s--) {
        const ProgramStep *step = &program->execution.steps[s];
        int32_t at = program_first_together(program, s);
        for (int32_t k = 0; k < program_step_operands(program, step); k++)
            self->read_at[self->viewed[program_step_operand(program, step, k)]] = at;
        for (int32_t k = 0; k < program_step_results(program, step); k++)
            self->made_at[program_step_result(program, step, k)] = at;
    }
}

/* Lists the arrays to move, in the order of the steps that read them. */
static void find_arrays(Offloader *self) {
    const Program *program = self->program;
    for (int32_t k = 0; k < program->roles->parameter_count; k++) {
        const IrParameter *role = &program->roles->parameters[k];
        int32_t value = program->parameters[k];
        if (role->role != IR_ROLE_OPTIMIZER || role->output < 0 || value < 0) continue;
        int32_t next = program->outputs[role->output];
        if (program->values[value].shape.rank == 0 || next < 0) continue;
        HostArray array = {.parameter = k,
                           .value = value,
                           .output = role->output,
                           .read_at = self->read_at[value],
                           .made_at = self->made_at[self->viewed[next]]};
        if (array.made_at == NO_STEP) continue;
        int32_t at = self->array_count++;
        for (; at > 0 && self->arrays[at - 1].read_at > array.read_at; at--)
            self->arrays[at] = self->arrays[at - 1];
        self->arrays[at] = array;
    }
}

/* Appends an instruction that copies `count` values, and its step. */
static AmStatus append_copy(Offloader *self, ProgramCollectiveKind kind, int32_t *operands, int32_t count,
                            int32_t first_result, AmError *error) {
    Program *program = self->program;
    bool loads = kind == PROGRAM_HOST_LOAD;
    ProgramCollective *collective = ARENA_ARRAY(self->arena, ProgramCollective, 1);
    int32_t *group = ARENA_ARRAY(self->arena, int32_t, 1);
    ARENA_RESERVE(self->arena, program->instructions, program->instruction_count,
                  program->instruction_capacity);
    if (self->arena->failed) return am_fail_memory(error, count);
    group[0] = program->device;
    *collective = (ProgramCollective){.kind = kind, .group_count = 1, .group = group};
    program->instructions[program->instruction_count] =
        (ProgramInstruction){.kind = PROGRAM_COLLECTIVE,
                             .opcode = IR_COPY,
                             .origin = program->values[operands[0]].origin,
                             .operand_count = loads ? count : 2 * count,
                             .result_count = loads ? count : 0,
                             .operands = operands,
                             .first_result = first_result,
                             .compute = {.called = -1, .called_second = -1},
                             .collective = collective};
    self->steps[self->step_count++] =
        (ProgramStep){.instruction = program->instruction_count++, .fusion = -1};
    return AM_OK;
}

/* Loads the arrays [first, end), which the same step reads. */
static AmStatus load_arrays(Offloader *self, int32_t first, int32_t end, AmError *error) {
    Program *program = self->program;
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, end - first), first_result = program->value_count;
    if (!operands) return am_fail_memory(error, end - first);
    for (int32_t k = first; k < end; k++) {
        ProgramValue copy = program->values[self->arrays[k].value];
        copy.kind = PROGRAM_VALUE_TEMPORARY;
        copy.is_on_host = false;
        copy.instruction = program->instruction_count;
        operands[k - first] = self->arrays[k].value;
        self->renamed[self->arrays[k].value] = program_add_value(program, &copy);
        if (program->arena->failed) return am_fail_memory(error, end - first);
    }
    return append_copy(self, PROGRAM_HOST_LOAD, operands, end - first, first_result, error);
}

/* Stores the arrays whose new values step s makes. */
static AmStatus store_arrays(Offloader *self, int32_t s, AmError *error) {
    int32_t count = 0, stored = 0;
    for (int32_t k = 0; k < self->array_count; k++) count += self->arrays[k].made_at == s;
    if (count == 0) return AM_OK;
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, 2 * count);
    if (!operands) return am_fail_memory(error, count);
    for (int32_t k = 0; k < self->array_count; k++) {
        if (self->arrays[k].made_at != s) continue;
        operands[stored] = self->program->outputs[self->arrays[k].output];
        operands[count + stored++] = self->arrays[k].value;
    }
    return append_copy(self, PROGRAM_HOST_STORE, operands, count, self->program->value_count, error);
}

/* Replaces a list of operands where one of them has a copy. */
static AmStatus rename_operands(Offloader *self, const int32_t **operands, int32_t count, AmError *error) {
    bool has_copy = false;
    for (int32_t k = 0; k < count; k++) has_copy |= self->renamed[(*operands)[k]] != (*operands)[k];
    if (!has_copy) return AM_OK;
    int32_t *renamed = ARENA_ARRAY(self->arena, int32_t, count);
    if (!renamed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) renamed[k] = self->renamed[(*operands)[k]];
    *operands = renamed;
    return AM_OK;
}

/* Lets the first `count` instructions, and all fusions, read the copies. */
static AmStatus rename_readers(Offloader *self, int32_t count, AmError *error) {
    Program *program = self->program;
    for (int32_t i = 0; i < count; i++)
        TRY(rename_operands(self, &program->instructions[i].operands, program->instructions[i].operand_count,
                            error));
    for (int32_t f = 0; f < program->execution.fusion_count; f++) {
        ProgramFusion *fusion = &program->execution.fusions[f];
        ProgramFusionInput *inputs = ARENA_ARRAY(self->arena, ProgramFusionInput, fusion->input_count + 1);
        if (!inputs) return am_fail_memory(error, fusion->input_count);
        memcpy(inputs, fusion->inputs, sizeof *inputs * (size_t)fusion->input_count);
        for (int32_t k = 0; k < fusion->input_count; k++) inputs[k].value = self->renamed[inputs[k].value];
        fusion->inputs = inputs;
    }
    return AM_OK;
}

/* Makes the new list of steps. The load for a step comes before the step that an earlier load is for. */
static AmStatus insert_copies(Offloader *self, AmError *error) {
    const Program *program = self->program;
    int32_t loaded = 0; /* arrays that have been */
    while (loaded < self->array_count && self->arrays[loaded].read_at == NO_STEP) loaded++;
    for (int32_t s = 0, together; s < program->execution.step_count; s += together) {
        together = program_steps_together(program, s);
        /* The arrays of this step, and those of the next one that reads any. */
        bool reads = false;
        for (int32_t k = 0; k < self->array_count; k++) reads |= self->arrays[k].read_at == s;
        for (bool is_own = true; reads && is_own && loaded < self->array_count;) {
            int32_t end = loaded, read_at = self->arrays[loaded].read_at;
            while (end < self->array_count && self->arrays[end].read_at == read_at) end++;
            TRY(load_arrays(self, loaded, end, error));
            loaded = end;
            is_own = read_at == s;
        }
        int32_t row_group = program->execution.steps[s].row_group, first = self->step_count;
        for (int32_t k = 0; k < together; k++)
            self->steps[self->step_count++] = program->execution.steps[s + k];
        if (row_group > 0) program->execution.row_groups[row_group - 1].first = first;
        TRY(store_arrays(self, s, error));
    }
    return AM_OK;
}

AmStatus program_offload_optimizer(Program *program, AmError *error) {
    Arena *arena = program->arena;
    int32_t values = program->value_count, parameters = program->roles->parameter_count;
    Offloader self = {.program = program,
                      .arena = arena,
                      .viewed = ARENA_ARRAY(arena, int32_t, values + 1),
                      .read_at = ARENA_ARRAY(arena, int32_t, values + 1),
                      .made_at = ARENA_ARRAY(arena, int32_t, values + 1),
                      .renamed = ARENA_ARRAY(arena, int32_t, values + 1),
                      .arrays = ARENA_ARRAY(arena, HostArray, parameters + 1)};
    if (arena->failed) return am_fail_memory(error, values);
    find_uses(&self);
    find_arrays(&self);
    if (self.array_count == 0) return AM_OK;
    self.steps = ARENA_ARRAY(arena, ProgramStep, program->execution.step_count + 2 * self.array_count + 1);
    if (!self.steps) return am_fail_memory(error, program->execution.step_count);
    int32_t instructions = program->instruction_count;
    TRY(insert_copies(&self, error));
    program->execution.steps = self.steps;
    program->execution.step_count = self.step_count;
    TRY(rename_readers(&self, instructions, error));
    /* Drops the updates of offloaded parameters, whose new values are in the stores. */
    int32_t kept = 0;
    for (int32_t k = 0; k < self.array_count; k++) {
        program->outputs[self.arrays[k].output] = self.arrays[k].value;
        program->values[self.arrays[k].value].is_on_host = true;
    }
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        const ProgramUpdate *update = &program->execution.updates[k];
        if (!program->values[program->parameters[update->parameter]].is_on_host)
            program->execution.updates[kept++] = *update;
    }
    program->execution.update_count = kept;
    return AM_OK;
}
