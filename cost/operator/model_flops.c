/* Useful work: instructions of the planned computations, each times its executions.
 *
 * A loop that is planned through counts by the contents of its body and condition; another loop
 * counts as its computations once, times its trips.
 */
#include "cost/operator/model_flops.h"

#include "ir/analysis/flops.h"
#include "ir/analysis/loops.h"

static AmStatus add_instruction(ModelFlops *work, Arena *scratch, const IrModule *module, int32_t index,
                                double times, AmError *error) {
    const IrInstruction *instruction = &module->instructions[index];
    ArenaMark mark = arena_mark(scratch);
    IrShape *operands = ARENA_ARRAY(scratch, IrShape, instruction->operand_count + 1);
    if (!operands) return am_fail_memory(error, instruction->operand_count);
    /* Operators that move no data count as 0: the bytes of a large tuple take long to count. */
    bool counts = instruction->opcode != IR_PARAMETER && instruction->opcode != IR_CONSTANT &&
                  instruction->opcode != IR_TUPLE && instruction->opcode != IR_GET_TUPLE_ELEMENT;
    double bytes = counts ? (double)ir_shape_bytes(&instruction->shape) : 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        operands[k] = module->instructions[instruction->operands[k]].shape;
        if (counts) bytes += (double)ir_shape_bytes(&operands[k]);
    }
    if (instruction->opcode == IR_WHILE) {
        int64_t trips = ir_loop_trips(module, index);
        if (trips != IR_TRIPS_UNKNOWN) times *= (double)trips;
    }
    work->bytes += times * bytes;
    work->flops += times * ir_flops(module, instruction, operands, &instruction->shape);
    arena_release(scratch, mark);
    return AM_OK;
}

AmStatus model_flops(ModelFlops *work, const Rules *rules, AmError *error) {
    const IrModule *module = rules->module;
    Arena scratch = {0};
    AmStatus status = AM_OK;
    *work = (ModelFlops){0};
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrComputation *body = &module->computations[c];
        for (int32_t i = body->first; rules->is_planned[c] && i < body->first + body->count; i++)
            if (status == AM_OK && !rules_loop(rules, i) && !rules_conditional(rules, i))
                status = add_instruction(work, &scratch, module, i, rules->times[c], error);
    }
    arena_free(&scratch);
    return status;
}
