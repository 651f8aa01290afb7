/* The work of fused attention: FLOPs and bytes of the region of one operator. The first reduction of the
 * largest values is over keys, in the forward operator that of the maximum, in the backward one that of the
 * softmax's gradient. */
#include "cost/operator/attention_work.h"

#include "ir/analysis/flops.h"

/* Returns whether a value is an index, perhaps shifted, converted or repeated: an iota, or a vector of
 * integers that the region is given. */
static bool is_index(const Program *region, const int32_t *producer, int32_t value) {
    for (int32_t steps = 0; steps <= region->instruction_count; steps++) {
        const IrShape *shape = &region->values[value].shape;
        if (producer[value] < 0)
            return shape->rank == 1 && (shape->type == DTYPE_S32 || shape->type == DTYPE_S64);
        const ProgramInstruction *instruction = &region->instructions[producer[value]];
        switch (instruction->opcode) {
        case IR_IOTA: return true;
        case IR_BROADCAST:
        case IR_RESHAPE:
        case IR_TRANSPOSE:
        case IR_CONVERT:
        case IR_COPY:
        case IR_ADD:
        case IR_SUBTRACT: value = instruction->operands[0]; break;
        default: return false;
        }
    }
    return false;
}

static bool has_causal_mask(const Program *region) {
    Arena scratch = {0};
    int32_t *producer = ARENA_ARRAY(&scratch, int32_t, region->value_count + 1);
    bool found = false;
    for (int32_t v = 0; producer && v < region->value_count; v++) producer[v] = -1;
    for (int32_t i = 0; producer && i < region->instruction_count && !found; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        for (int32_t k = 0; k < instruction->result_count; k++) producer[instruction->first_result + k] = i;
        const char *comparison =
            instruction->opcode == IR_COMPARE ? instruction->attributes->comparison : NULL;
        found = comparison && (comparison[0] == 'L' || comparison[0] == 'G') &&
                is_index(region, producer, instruction->operands[0]) &&
                is_index(region, producer, instruction->operands[1]);
    }
    arena_free(&scratch);
    return found;
}

void attention_work(AttentionWork *work, const Program *region) {
    double largest = 0;
    int32_t products = 0;
    *work = (AttentionWork){.type = DTYPE_PRED};
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *instruction = &region->instructions[i];
        if (ir_is_matrix_product(instruction->opcode)) {
            work->type = region->values[instruction->operands[0]].shape.type;
            const IrShape operands[] = {region->values[instruction->operands[0]].shape,
                                        region->values[instruction->operands[1]].shape};
            const IrShape *result = &region->values[instruction->first_result].shape;
            IrInstruction local = region->module->instructions[instruction->origin];
            local.attributes = instruction->attributes;
            local.shape = *result;
            work->flops += ir_flops(region->module, &local, operands, result);
            products++;
        }
        if (instruction->opcode != IR_REDUCE) continue;
        double elements = (double)ir_shape_elements(&region->values[instruction->operands[0]].shape);
        if (elements <= largest) continue;
        largest = elements;
        work->rows = (double)ir_shape_elements(&region->values[instruction->first_result].shape);
        work->keys = work->rows > 0 ? elements / work->rows : 0;
    }
    work->is_backward = products > 2;
    work->is_causal = has_causal_mask(region);
}

void attention_work_unsharded(AttentionWork *work, const IrModule *module, int32_t fusion) {
    const IrComputation *body = &module->computations[module->instructions[fusion].called[0]];
    double largest = 0;
    int32_t products = 0;
    *work = (AttentionWork){.type = DTYPE_PRED, .is_causal = true};
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        if (!ir_is_matrix_product(instruction->opcode) && instruction->opcode != IR_REDUCE) continue;
        const IrShape operands[] = {module->instructions[instruction->operands[0]].shape,
                                    module->instructions[instruction->operands[1]].shape};
        if (ir_is_matrix_product(instruction->opcode)) {
            work->type = operands[0].type;
            work->flops += ir_flops(module, instruction, operands, &instruction->shape);
            products++;
            continue;
        }
        double elements = (double)ir_shape_elements(&operands[0]);
        if (elements <= largest || instruction->shape.type == DTYPE_TUPLE) continue;
        largest = elements;
        work->rows = (double)ir_shape_elements(&instruction->shape);
        work->keys = work->rows > 0 ? elements / work->rows : 0;
    }
    work->is_backward = products > 2;
}

double attention_work_seconds(const AttentionWork *work, const MeasuredDevice *device, double peak) {
    /* pairs of a product with keys and one with values */
    double products = work->is_backward ? ATTENTION_BACKWARD_FLOPS : 1;
    const AttentionSize size = {.batch = 1,
                                .heads = 1,
                                .rows = work->rows,
                                .keys = work->keys,
                                .key_size = work->flops / (products * 2 * work->rows * work->keys),
                                .is_causal = work->is_causal};
    return measured_attention_seconds(device, work->is_backward ? ATTENTION_BACKWARD : ATTENTION_FORWARD,
                                      &size, peak);
}
