/* Control flow: while, conditional, and fusions and calls as the file has them.
 *
 * The computations that such an operator names are subprograms that live in the
 * kernel's scratch memory. A loop is a training step in the small: its carried
 * values are the body's parameters, which the body updates, in place where the
 * buffer plan allows it; the condition takes the same parameters, so it reads
 * them where they lie, and as the two never run at the same time they share the
 * memory behind the parameters too. The branches of a conditional share their
 * memory likewise. A run copies operands in, runs, and copies results out. What
 * a condition gave is read by the host, on any device.
 */
#include "executor/control.h"

#include <string.h>

#include "executor/cpu/wide.h"
#include "executor/subprogram.h"

/* loop: part 0 is the body, part 1 the condition; conditional: the branches;
 * fusion, call: the computation. */
typedef struct ControlKernel {
    int32_t count;
    Subprogram **parts;
    const int32_t *first_operand;          /* [part]: where its parameters begin among the operands */
    int64_t staging_at, scratch_at;        /* offsets in the scratch memory */
    int64_t *operand_bytes, *result_bytes; /* [operand], [result] */
} ControlKernel;

static void bind_parts(const KernelCall *call) {
    const ControlKernel *kernel = call->compiled;
    char *memory = call->scratch;
    for (int32_t p = 0; p < kernel->count; p++)
        subprogram_bind(kernel->parts[p], memory, memory + kernel->staging_at, memory + kernel->scratch_at);
}

static void copy(const KernelCall *call, void *to, const void *from, int64_t bytes) {
    call->device->back_end->copy_within(call->device, to, from, bytes);
}

static void copy_in(const KernelCall *call, int32_t part) {
    const ControlKernel *kernel = call->compiled;
    const Subprogram *to = kernel->parts[part];
    for (int32_t k = 0; k < to->parameter_count; k++) {
        int32_t operand = kernel->first_operand[part] + k;
        copy(call, to->parameters[k], call->operands[operand], kernel->operand_bytes[operand]);
    }
}

static void copy_out(const KernelCall *call, void *const *from) {
    const ControlKernel *kernel = call->compiled;
    for (int32_t k = 0; k < call->result_count; k++)
        copy(call, call->results[k], from[k], kernel->result_bytes[k]);
}

/* A device that has failed gives false, so that no loop runs on for ever. */
static bool holds(Subprogram *condition) {
    uint8_t value = 0;
    subprogram_replay(condition);
    condition->device->back_end->copy_out(condition->device, &value, condition->outputs[0], 1);
    return value != 0;
}

static void run_while(const KernelCall *call) {
    const ControlKernel *kernel = call->compiled;
    Subprogram *body = kernel->parts[0], *condition = kernel->parts[1];
    copy_in(call, 0);
    while (holds(condition)) subprogram_replay(body);
    copy_out(call, body->parameters);
}

static void run_part(const KernelCall *call, int32_t part) {
    const ControlKernel *kernel = call->compiled;
    copy_in(call, part);
    subprogram_run(kernel->parts[part]);
    copy_out(call, kernel->parts[part]->outputs);
}

/* A pred takes the first branch when true; a number out of range takes the last. */
static void run_conditional(const KernelCall *call) {
    const ControlKernel *kernel = call->compiled;
    Dtype type = call->operand_shapes[0]->type;
    char number[16] = {0};
    call->device->back_end->copy_out(call->device, number, call->operands[0], dtype_bytes(type));
    int64_t branch = wide_index(number, type, 0);
    if (type == DTYPE_PRED) branch = branch ? 0 : 1;
    run_part(call, branch < 0 || branch >= kernel->count ? kernel->count - 1 : (int32_t)branch);
}

static void run_call(const KernelCall *call) {
    run_part(call, 0);
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Whether the parts take and give what the operator does: operands from
 * first_operand[part] on, `outputs_match`: outputs as the results. */
static bool shapes_match(const KernelCall *call, const ControlKernel *kernel, int32_t part,
                         bool outputs_match) {
    const Program *program = kernel->parts[part]->program;
    int32_t first = kernel->first_operand[part];
    if (first + program->roles->parameter_count > call->operand_count) return false;
    for (int32_t k = 0; k < program->roles->parameter_count; k++)
        if (!ir_shape_equal(&program->values[program->parameters[k]].shape, call->operand_shapes[first + k]))
            return false;
    if (!outputs_match) return true;
    if (program->roles->output_count != call->result_count) return false;
    for (int32_t k = 0; k < call->result_count; k++)
        if (!ir_shape_equal(&program->values[program->outputs[k]].shape, call->result_shapes[k]))
            return false;
    return true;
}

/* Prepares the regions; `loops`: all but the first have outputs of their own. */
static AmStatus prepare_parts(KernelCall *call, Arena *arena, const int32_t *first_operand, bool loops,
                              AmError *error) {
    int32_t count = call->instruction->region_count;
    ControlKernel *kernel = ARENA_ARRAY(arena, ControlKernel, 1);
    Subprogram **parts = ARENA_ARRAY(arena, Subprogram *, count + 1);
    int64_t *bytes = ARENA_ARRAY(arena, int64_t, call->operand_count + call->result_count + 1);
    if (arena->failed) return am_fail_memory(error, count * 64);
    *kernel = (ControlKernel){.count = count,
                              .parts = parts,
                              .first_operand = first_operand,
                              .operand_bytes = bytes,
                              .result_bytes = bytes + call->operand_count};
    for (int32_t k = 0; k < call->operand_count; k++) bytes[k] = ir_shape_bytes(call->operand_shapes[k]);
    for (int32_t k = 0; k < call->result_count; k++)
        kernel->result_bytes[k] = ir_shape_bytes(call->result_shapes[k]);
    int64_t values = 0, staging = 0, scratch = 0;
    for (int32_t p = 0; p < count; p++) {
        TRY(subprogram_prepare(&parts[p], arena, call->device, call->instruction->regions[p], error));
        if (!shapes_match(call, kernel, p, !loops || p == 0))
            return kernel_call_refuse(call, "a computation that it names has other operands or results",
                                      error);
        call->waits_on_host |= parts[p]->waits_on_host;
        values = larger(values, parts[p]->value_bytes);
        staging = larger(staging, parts[p]->updates.staging_bytes);
        scratch = larger(scratch, parts[p]->scratch_bytes);
    }
    kernel->staging_at = values;
    kernel->scratch_at = values + staging;
    call->scratch_bytes = values + staging + kernel_align(scratch);
    call->compiled = kernel;
    call->bind = bind_parts;
    return AM_OK;
}

static AmStatus prepare_while(KernelCall *call, Arena *arena, AmError *error) {
    int32_t *first_operand = ARENA_ARRAY(arena, int32_t, 2);
    if (!first_operand) return am_fail_memory(error, 8);
    if (call->instruction->region_count != 2)
        return kernel_call_refuse(call, "it lacks its body or condition", error);
    TRY(prepare_parts(call, arena, first_operand, true, error));
    const ControlKernel *kernel = call->compiled;
    const Subprogram *condition = kernel->parts[1];
    if (condition->output_count != 1 ||
        condition->program->values[condition->program->outputs[0]].shape.type != DTYPE_PRED)
        return kernel_call_refuse(call, "its condition gives no pred", error);
    call->waits_on_host = true;
    call->run = run_while;
    return AM_OK;
}

static AmStatus prepare_conditional(KernelCall *call, Arena *arena, AmError *error) {
    int32_t count = call->instruction->region_count, first = 1;
    int32_t *first_operand = ARENA_ARRAY(arena, int32_t, count + 1);
    if (!first_operand) return am_fail_memory(error, count * 4);
    for (int32_t k = 0; k < count; k++) {
        first_operand[k] = first;
        first += call->instruction->regions[k]->roles->parameter_count;
    }
    if (count < 1 || first != call->operand_count)
        return kernel_call_refuse(call, "its branches and operands differ in number", error);
    TRY(prepare_parts(call, arena, first_operand, false, error));
    call->waits_on_host = true;
    call->run = run_conditional;
    return AM_OK;
}

static AmStatus prepare_call(KernelCall *call, Arena *arena, AmError *error) {
    int32_t *first_operand = ARENA_ARRAY(arena, int32_t, 1);
    if (!first_operand) return am_fail_memory(error, 4);
    if (call->instruction->region_count != 1)
        return kernel_call_refuse(call, "it lacks its computation", error);
    TRY(prepare_parts(call, arena, first_operand, false, error));
    call->run = run_call;
    return AM_OK;
}

static void run_marker(const KernelCall *call) {
    for (int32_t k = 0; k < call->result_count; k++)
        copy(call, call->results[k], call->operands[k], ir_shape_bytes(call->result_shapes[k]));
}

/* Custom calls that only say something to a partitioner or a scheduler. */
static AmStatus prepare_custom_call(KernelCall *call, Arena *arena, AmError *error) {
    static const char *const markers[] = {
        "Sharding",     "SPMDFullToShardShape", "SPMDShardToFullShape",     "LayoutConstraint",
        "MoveToDevice", "MoveToHost",           "annotate_device_placement"};
    (void)arena;
    const char *target = call->instruction->attributes->custom_call_target;
    bool is_marker = target && strncmp(target, "xla.sdy.", 8) == 0;
    for (size_t k = 0; target && k < sizeof markers / sizeof *markers; k++)
        is_marker |= strcmp(markers[k], target) == 0;
    if (!is_marker) return kernel_call_refuse(call, "this custom call is not known", error);
    if (call->operand_count != call->result_count)
        return kernel_call_refuse(call, "a marker that takes other arrays than it gives", error);
    for (int32_t k = 0; k < call->result_count; k++)
        if (!ir_shape_equal(call->operand_shapes[k], call->result_shapes[k]))
            return kernel_call_refuse(call, "a marker that changes shapes", error);
    call->run = run_marker;
    return AM_OK;
}

static const struct {
    IrOpcode opcode;
    AmStatus (*prepare)(KernelCall *call, Arena *arena, AmError *error);
} rows[] = {
    {IR_CALL, prepare_call},
    {IR_CONDITIONAL, prepare_conditional},
    {IR_CUSTOM_CALL, prepare_custom_call},
    {IR_FUSION, prepare_call},
    {IR_WHILE, prepare_while},
};

bool control_covers(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode) return true;
    return false;
}

AmStatus control_prepare(KernelCall *call, Arena *arena, AmError *error) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == call->instruction->opcode) return rows[k].prepare(call, arena, error);
    return kernel_call_refuse(call, "this is no control flow", error);
}
