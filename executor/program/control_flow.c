/* Control flow: while, conditional, and fusions and calls of the module.
 *
 * A loop resembles a training step. Its carried values are its results: the operands are copied
 * there once, unless they are in place, and the body's parameters are these addresses, which the
 * body updates, in place if the buffer plan allows it. Other values are read at the operand's
 * address. The condition has the same parameters at the same addresses. Branches and called
 * computations read the operands in place and write their outputs to the results; values that are
 * not outputs of theirs alone are copied there. Regions never run concurrently and share the memory
 * for their other values: an allocation in the caller's buffer plan.
 *
 * A loop with a known trip count runs without its condition. Else the host reads the result of the
 * condition, as it reads a selector, on any device. All ranks read the same value, so that collectives inside
 * match on every rank; a failing rank ends the loop.
 */
#include "executor/program/control_flow.h"

#include <stdlib.h>

#include "base/integers.h"
#include "executor/array/scalar64.h"

static AmStatus refuse_control(const Control *self, const char *reason, AmError *error) {
    return kernel_refuse(self->program, self->instruction->origin, self->instruction->opcode, reason, error);
}

static const IrShape *operand_shape(const Control *self, int32_t k) {
    return &self->program->values[self->instruction->operands[k]].shape;
}

static const IrShape *result_shape(const Control *self, int32_t k) {
    return &self->program->values[self->instruction->first_result + k].shape;
}

static void copy_to_result(const Control *self, int32_t k, const void *from) {
    if (from == self->results[k]) return;
    device_copy_within(self->device, self->results[k], from, ir_shape_bytes(result_shape(self, k)));
}

/* Reads a value from the device, after all work before it is done or has failed. */
static AmStatus read_value(const Control *self, void *to, const void *from, int64_t bytes, AmError *error) {
    TRY(comm_await(self->comm, error));
    device_copy_out(self->device, to, from, bytes);
    return AM_OK;
}

/* Returns the condition of a loop. A device that has failed gives false, so that every loop ends. */
static AmStatus holds(const Control *self, bool *result, AmError *error) {
    Executable *condition = self->regions[1];
    uint8_t value = 0;
    TRY(executable_run(condition, error));
    TRY(read_value(self, &value, executable_output(condition, 0), 1, error));
    *result = value != 0;
    return AM_OK;
}

void control_enter(const Control *self) {
    const ProgramInstruction *loop = self->instruction;
    for (int32_t k = 0; k < loop->result_count; k++)
        if (!loop->loop.unset || !loop->loop.unset[loop->loop.carried[k]])
            copy_to_result(self, k, self->operands[loop->loop.carried[k]]);
}

/* Skips the condition of a loop with a known trip count, so that the host does not wait. */
static AmStatus run_while(const Control *self, AmError *error) {
    int64_t iterations = self->regions[0]->program->counter.iterations;
    bool counts = iterations > 0, goes_on = counts;
    control_enter(self);
    if (!counts) TRY(holds(self, &goes_on, error));
    for (int64_t iteration = 0; goes_on; iteration++) {
        double start = timeline_start(self->regions[0]->timeline);
        self->regions[0]->iteration = iteration;
        TRY(executable_run(self->regions[0], error));
        goes_on = iteration + 1 < iterations;
        if (!counts) TRY(holds(self, &goes_on, error));
        executable_mark_iteration(self->regions[0], start);
    }
    return AM_OK;
}

static AmStatus run_region(const Control *self, int32_t region, AmError *error) {
    Executable *ready = self->regions[region];
    TRY(self->waits_on_host ? executable_run(ready, error) : executable_issue(ready, error));
    for (int32_t k = 0; k < self->instruction->result_count; k++)
        copy_to_result(self, k, executable_output(ready, k));
    return AM_OK;
}

/* Runs a branch. A pred takes the first one when true; a number out of range takes the last. */
static AmStatus run_conditional(const Control *self, AmError *error) {
    Dtype type = operand_shape(self, 0)->type;
    int32_t count = self->instruction->regions.count;
    char number[16] = {0};
    TRY(read_value(self, number, self->operands[0], dtype_bytes(type), error));
    int64_t branch = scalar64_index(number, type, 0);
    if (type == DTYPE_PRED) branch = branch ? 0 : 1;
    return run_region(self, branch < 0 || branch >= count ? count - 1 : (int32_t)branch, error);
}

static AmStatus run_call(const Control *self, AmError *error) {
    return run_region(self, 0, error);
}

/* Returns whether the region takes the operands from first_operand[region] on. */
static bool takes_operands(const Control *self, int32_t region) {
    const Program *program = self->instruction->regions.programs[region];
    int32_t first = self->first_operand[region];
    if (first + program->roles->parameter_count > self->instruction->operand_count) return false;
    for (int32_t k = 0; k < program->roles->parameter_count; k++)
        if (!ir_shape_equal(&program->values[program->parameters[k]].shape, operand_shape(self, first + k)))
            return false;
    return true;
}

static bool gives_results(const Control *self, int32_t region) {
    const Program *program = self->instruction->regions.programs[region];
    if (program->roles->output_count != self->instruction->result_count) return false;
    for (int32_t k = 0; k < self->instruction->result_count; k++)
        if (!ir_shape_equal(&program->values[program->outputs[k]].shape, result_shape(self, k))) return false;
    return true;
}

/* Returns whether the body gives the next value of every operand: as a result where it
 * is carried, and unchanged where it is not. */
static bool gives_next_values(const Control *self) {
    const ProgramInstruction *instruction = self->instruction;
    const Program *body = instruction->regions.programs[0];
    int32_t unchanged = 0, changed = 0;
    if (body->roles->output_count != instruction->operand_count) return false;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        unchanged += body->outputs[k] == body->parameters[k];
    for (int32_t r = 0; r < instruction->result_count; r++) {
        int32_t k = instruction->loop.carried[r];
        if (k < 0 || k >= instruction->operand_count || (r > 0 && k <= instruction->loop.carried[r - 1]))
            return false;
        if (!ir_shape_equal(&body->values[body->outputs[k]].shape, result_shape(self, r)) ||
            !ir_shape_equal(operand_shape(self, k), result_shape(self, r)))
            return false;
        changed += body->outputs[k] != body->parameters[k];
    }
    return changed + unchanged == instruction->operand_count;
}

static AmStatus check_while(const Control *self, AmError *error) {
    const ProgramInstruction *instruction = self->instruction;
    if (instruction->regions.count != 2 || !instruction->loop.carried)
        return refuse_control(self, "it lacks its body or condition", error);
    const Program *condition = instruction->regions.programs[1];
    int32_t count = instruction->operand_count;
    for (int32_t r = 0; r < 2; r++)
        if (instruction->regions.programs[r]->roles->parameter_count != count || !takes_operands(self, r))
            return refuse_control(self, "a computation that it names has other operands", error);
    if (!gives_next_values(self))
        return refuse_control(self, "its body gives other arrays than it takes", error);
    if (condition->roles->output_count != 1 ||
        condition->values[condition->outputs[0]].shape.type != DTYPE_PRED)
        return refuse_control(self, "its condition gives no pred", error);
    return AM_OK;
}

/* Checks that the parameters of all branches follow the selector. */
static AmStatus check_conditional(const Control *self, AmError *error) {
    const ProgramInstruction *instruction = self->instruction;
    int32_t count = instruction->regions.count, last = count - 1;
    if (count < 1 ||
        self->first_operand[last] + instruction->regions.programs[last]->roles->parameter_count !=
            instruction->operand_count)
        return refuse_control(self, "its branches and operands differ in number", error);
    for (int32_t r = 0; r < count; r++)
        if (!takes_operands(self, r) || !gives_results(self, r))
            return refuse_control(self, "a computation that it names has other operands or results", error);
    return AM_OK;
}

static AmStatus check_call(const Control *self, AmError *error) {
    const ProgramInstruction *instruction = self->instruction;
    if (instruction->regions.count != 1) return refuse_control(self, "it lacks its computation", error);
    if (!takes_operands(self, 0) || !gives_results(self, 0))
        return refuse_control(self, "a computation that it names has other operands or results", error);
    return AM_OK;
}

/* `first`: the operand of the first region's first parameter; `apart`: the other
 * regions' follow on it, instead of being the same. */
static const struct {
    IrOpcode opcode;
    int32_t first;
    bool apart, waits_on_host;
    AmStatus (*check)(const Control *control, AmError *error);
    AmStatus (*run)(const Control *control, AmError *error);
} rows[] = {
    {IR_CALL, 0, false, false, check_call, run_call},
    {IR_CONDITIONAL, 1, true, true, check_conditional, run_conditional},
    {IR_FUSION, 0, false, false, check_call, run_call},
    {IR_WHILE, 0, false, true, check_while, run_while},
};

bool control_covers(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode) return true;
    return false;
}

/* Returns the bytes at the beginning of the scratch memory for the values of a region without memory in the
 * allocation. */
static int64_t own_scratch(const ProgramInstruction *instruction) {
    if (!instruction->regions.in_blocks) return 0;
    return kernel_align(instruction->regions.programs[0]->allocation.bytes -
                        instruction->regions.programs[0]->allocation.parameter_bytes);
}

AmStatus control_prepare(Control **result, Arena *arena, KernelDevice *device, Comm *comm,
                         const Program *program, const ProgramInstruction *instruction, AmError *error) {
    int32_t count = instruction->regions.count, row = 0;
    int32_t addresses = instruction->operand_count + instruction->result_count;
    Control *self = ARENA_ARRAY(arena, Control, 1);
    int32_t *first_operand = ARENA_ARRAY(arena, int32_t, count + 1);
    void **places = ARENA_ARRAY(arena, void *, addresses + 1);
    Executable **regions = ARENA_ARRAY(arena, Executable *, count + 1);
    if (arena->failed) return am_fail_memory(error, addresses * 8);
    while (rows[row].opcode != instruction->opcode) row++;
    *self = (Control){.device = device,
                      .comm = comm,
                      .program = program,
                      .instruction = instruction,
                      .regions = regions,
                      .first_operand = first_operand,
                      .operands = places,
                      .results = places + instruction->operand_count,
                      .waits_on_host = rows[row].waits_on_host,
                      .run = rows[row].run};
    first_operand[0] = rows[row].first;
    for (int32_t r = 1; r < count; r++)
        first_operand[r] =
            first_operand[r - 1] +
            (rows[row].apart ? instruction->regions.programs[r - 1]->roles->parameter_count : 0);
    bool holds_numbers = true;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        holds_numbers &= dtype_bytes(operand_shape(self, k)->type) != 0;
    for (int32_t k = 0; k < instruction->result_count; k++)
        holds_numbers &= dtype_bytes(result_shape(self, k)->type) != 0;
    if (!holds_numbers) return refuse_control(self, "an operand or result is no array of numbers", error);
    TRY(rows[row].check(self, error));
    *result = self;
    for (int32_t r = 0; r < count; r++) {
        bool repeats = instruction->opcode == IR_WHILE && r == 0;
        TRY(executable_prepare(&self->regions[r], arena, device, comm, instruction->regions.programs[r],
                               repeats, error));
        const Executable *region = self->regions[r];
        self->waits_on_host |= region->waits_on_host;
        int64_t scratch = region->scratch_bytes + own_scratch(instruction);
        self->scratch_bytes = larger_integer(self->scratch_bytes, scratch);
        self->comm_scratch_bytes = larger_integer(self->comm_scratch_bytes, region->comm_scratch_bytes);
    }
    return AM_OK;
}

AmStatus control_bind(Control *self, void *const *addresses, const ExecutableMemory *memory, AmError *error) {
    const ProgramInstruction *instruction = self->instruction;
    int32_t most = instruction->operand_count;
    for (int32_t k = 0; k < most; k++) self->operands[k] = addresses[instruction->operands[k]];
    for (int32_t k = 0; k < instruction->result_count; k++)
        self->results[k] = addresses[instruction->first_result + k];
    void **parameters = malloc(sizeof *parameters * (size_t)(most + 1));
    if (!parameters) return am_fail_memory(error, (int64_t)sizeof *parameters * most);
    AmStatus status = AM_OK;
    for (int32_t r = 0; r < instruction->regions.count && status == AM_OK; r++) {
        /* A region's parameters are the operands; the carried ones of a loop are its results. */
        int32_t count = instruction->regions.programs[r]->roles->parameter_count;
        for (int32_t k = 0; k < count; k++) parameters[k] = self->operands[self->first_operand[r] + k];
        for (int32_t k = 0; k < instruction->result_count && instruction->opcode == IR_WHILE; k++)
            parameters[instruction->loop.carried[k]] = self->results[k];
        ExecutableMemory of_region = {
            .parameters = parameters,
            .outputs = instruction->opcode == IR_WHILE ? NULL : self->results,
            .values = instruction->regions.in_blocks
                          ? memory->scratch
                          : executable_place(self->program, memory, instruction->regions.workspace),
            .scratch = memory->scratch + own_scratch(instruction),
            .comm_scratch = memory->comm_scratch};
        status = executable_bind(self->regions[r], &of_region, error);
    }
    free(parameters);
    return status;
}

AmStatus control_run(const Control *self, AmError *error) {
    return self->run(self, error);
}
