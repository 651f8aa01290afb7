/* The work of whole computations and modules, as XLA's cost analysis sums it.
 *
 * Every computation is counted once, callees first; an instruction that calls a computation
 * multiplies its work. Values inside a fusion do not reach memory. A fusion writes its results (of
 * a dynamic-update-slice, only the update) and reads from each parameter
 *
 *     the results of slices and dynamic-slices, the whole for each broadcast and
 *     reshape, the reads of inner fusions, no bytes for the array that a
 *     dynamic-update-slice updates, and the whole once for all other users;
 *
 * constants of more than one element are read too. A parameter that is a tuple is read by its
 * elements.
 */
#include "ir/analysis/flops.h"

/* Bytes of one entry in the index table of a tuple. */
#define POINTER_BYTES 8.0

/* The most that is counted: nested calls multiply beyond all numbers. */
#define MOST_WORK 1e30

typedef struct Counter {
    const IrModule *module;
    IrComputationWork *computations;
    Arena *arena;    /* for the results */
    IrShape *shapes; /* of one instruction's operands */
    bool *is_shared; /* [instruction]: read in full already, by all users that can share it */
    double *read;    /* [instruction]: bytes read of a fusion's parameter or its element */
} Counter;

static double array_bytes(const IrShape *shape) {
    return shape->type == DTYPE_TUPLE ? POINTER_BYTES * shape->rank : (double)ir_shape_bytes(shape);
}

static double bounded(double value) {
    return value < MOST_WORK ? value : MOST_WORK;
}

/* Returns the bytes that a result of a fusion writes: a dynamic-update-slice writes in place. */
static double output_bytes(const IrModule *module, int32_t value) {
    const IrInstruction *output = &module->instructions[value];
    if (output->opcode == IR_DYNAMIC_UPDATE_SLICE)
        return (double)ir_shape_bytes(&module->instructions[output->operands[1]].shape);
    return (double)ir_shape_bytes(&output->shape);
}

/* Adds the bytes that `user` reads of operand k, inside a fusion. */
static void read_operand(Counter *counter, const IrInstruction *user, int32_t k) {
    int32_t operand = user->operands[k];
    const IrShape *shape = &counter->module->instructions[operand].shape;
    double *read = &counter->read[operand];
    if (user->opcode == IR_GET_TUPLE_ELEMENT) return; /* its users read */
    if (user->opcode == IR_FUSION && user->called_count > 0) {
        const IrComputationWork *inner = &counter->computations[user->called[0]];
        if (inner->parameter_read) *read += inner->parameter_read[k];
    } else if (user->opcode == IR_SLICE || (user->opcode == IR_DYNAMIC_SLICE && k == 0)) {
        *read += (double)ir_shape_bytes(&user->shape);
    } else if (user->opcode == IR_BROADCAST || user->opcode == IR_RESHAPE) {
        *read += array_bytes(shape);
    } else if ((user->opcode != IR_DYNAMIC_UPDATE_SLICE || k != 0) && !counter->is_shared[operand]) {
        counter->is_shared[operand] = true;
        *read += array_bytes(shape);
    }
}

/* Computes the bytes that a fusion that calls `body` reads and writes; its callees are counted. */
static AmStatus count_fused(Counter *counter, IrComputationWork *work, const IrComputation *body,
                            AmError *error) {
    const IrModule *module = counter->module;
    double *parameter_read = ARENA_ARRAY(counter->arena, double, body->parameter_count + 1);
    if (!parameter_read) return am_fail_memory(error, (int64_t)body->parameter_count * 8);
    const IrInstruction *root = &module->instructions[body->root];
    if (root->opcode == IR_TUPLE)
        for (int32_t k = 0; k < root->operand_count; k++)
            work->fused_bytes += output_bytes(module, root->operands[k]);
    else work->fused_bytes += output_bytes(module, body->root);
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *user = &module->instructions[i];
        for (int32_t k = 0; k < user->operand_count; k++) read_operand(counter, user, k);
        if (user->opcode == IR_CONSTANT && user->shape.type != DTYPE_TUPLE &&
            ir_shape_elements(&user->shape) > 1)
            work->fused_bytes += (double)ir_shape_bytes(&user->shape);
    }
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *element = &module->instructions[i];
        if (element->opcode != IR_GET_TUPLE_ELEMENT) continue;
        int32_t tuple = element->operands[0];
        if (module->instructions[tuple].opcode == IR_PARAMETER) counter->read[tuple] += counter->read[i];
    }
    for (int32_t k = 0; k < body->parameter_count; k++) {
        parameter_read[k] = bounded(counter->read[body->parameters[k]]);
        work->fused_bytes = bounded(work->fused_bytes + parameter_read[k]);
    }
    work->parameter_read = parameter_read;
    return AM_OK;
}

/* Counts a computation and, before it, those it calls; the canonical form bounds their nesting. */
static AmStatus count_computation(Counter *counter, int32_t computation, AmError *error) {
    const IrModule *module = counter->module;
    const IrComputation *body = &module->computations[computation];
    IrComputationWork *result = &counter->computations[computation];
    if (result->is_done) return AM_OK;
    result->is_done = true;
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        for (int32_t k = 0; k < instruction->called_count; k++) {
            int32_t callee = instruction->called[k];
            TRY(count_computation(counter, callee, error));
            IrComputationWork *called = &counter->computations[callee];
            if (instruction->opcode == IR_FUSION && !called->parameter_read)
                TRY(count_fused(counter, called, &module->computations[callee], error));
        }
        for (int32_t k = 0; k < instruction->operand_count; k++)
            counter->shapes[k] = module->instructions[instruction->operands[k]].shape;
        IrWork work = ir_work(counter->computations, instruction, counter->shapes, &instruction->shape);
        result->work.flops = bounded(result->work.flops + work.flops);
        result->work.transcendentals = bounded(result->work.transcendentals + work.transcendentals);
        result->work.bytes = bounded(result->work.bytes + work.bytes);
    }
    return AM_OK;
}

/* Counts `computation`, or with -1 all that the entry calls. */
static AmStatus count_module(IrComputationWork **computations, const IrModule *module, Arena *arena,
                             int32_t computation, AmError *error) {
    Arena scratch = {0};
    int32_t most_operands = 0;
    for (int32_t i = 0; i < module->instruction_count; i++)
        if (module->instructions[i].operand_count > most_operands)
            most_operands = module->instructions[i].operand_count;
    Counter counter = {.module = module,
                       .arena = arena,
                       .computations = ARENA_ARRAY(arena, IrComputationWork, module->computation_count),
                       .shapes = ARENA_ARRAY(&scratch, IrShape, most_operands + 1),
                       .is_shared = ARENA_ARRAY(&scratch, bool, module->instruction_count),
                       .read = ARENA_ARRAY(&scratch, double, module->instruction_count)};
    AmStatus status = AM_OK;
    if (!counter.computations || scratch.failed)
        status = am_fail_memory(error, (int64_t)module->instruction_count * 9);
    else if (computation >= 0) status = count_computation(&counter, computation, error);
    const IrComputation *entry = &module->computations[module->entry];
    for (int32_t i = entry->first; computation < 0 && i < entry->first + entry->count; i++) {
        const IrInstruction *caller = &module->instructions[i];
        for (int32_t k = 0; status == AM_OK && k < caller->called_count; k++)
            status = count_computation(&counter, caller->called[k], error);
    }
    arena_free(&scratch);
    *computations = counter.computations;
    return status;
}

AmStatus ir_module_work(IrWork *total, const IrModule *module, AmError *error) {
    Arena arena = {0};
    IrComputationWork *computations;
    AmStatus status = count_module(&computations, module, &arena, module->entry, error);
    if (status == AM_OK) *total = computations[module->entry].work;
    arena_free(&arena);
    return status;
}

AmStatus ir_find_called_work(IrModule *module, AmError *error) {
    IrComputationWork *computations;
    TRY(count_module(&computations, module, &module->arena, -1, error));
    module->called_work = computations;
    return AM_OK;
}
