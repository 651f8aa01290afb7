/* The key and the sizes of a step, by which measured times are found. Attributes that are sizes themselves
 * (windows, slices) stay in the key where they decide how the operator is computed, and are left out where
 * the shapes say them (starts of slices). */
#include "lowering/program/step_event.h"

static void add_shape(StepEvent *event, const IrShape *shape) {
    text_append(&event->key, "%s[%d]", dtype_name(shape->type), shape->rank);
    for (int32_t d = 0; d < shape->rank; d++)
        if (event->size_count < STEP_EVENT_MOST_SIZES)
            event->sizes[event->size_count++] = (double)shape->dimensions[d];
        else event->key.failed = true;
}

static void add_numbers(Text *key, const char *name, const int64_t *numbers, int32_t count) {
    if (!numbers || count == 0) return;
    text_append(key, " %s", name);
    for (int32_t k = 0; k < count; k++) text_append(key, "%c%lld", k ? ',' : '=', (long long)numbers[k]);
}

static void add_attributes(Text *key, const ProgramInstruction *instruction, int32_t operand_rank) {
    const IrAttributes *attributes = instruction->attributes;
    if (!attributes) return;
    add_numbers(key, "dimensions", attributes->dimensions, attributes->dimension_count);
    if (attributes->dot) {
        add_numbers(key, "batch", attributes->dot->lhs_batch, attributes->dot->batch_count);
        add_numbers(key, "over", attributes->dot->lhs_contracting, attributes->dot->contracting_count);
        add_numbers(key, "batch", attributes->dot->rhs_batch, attributes->dot->batch_count);
        add_numbers(key, "over", attributes->dot->rhs_contracting, attributes->dot->contracting_count);
    }
    const IrConvolution *of = attributes->convolution;
    if (of)
        text_append(key, " input=%lld.%lld kernel=%lld.%lld output=%lld.%lld groups=%lld.%lld",
                    (long long)of->input_batch, (long long)of->input_feature,
                    (long long)of->kernel_input_feature, (long long)of->kernel_output_feature,
                    (long long)of->output_batch, (long long)of->output_feature,
                    (long long)of->feature_group_count, (long long)of->batch_group_count);
    for (int32_t k = 0; k < attributes->window_count; k++) {
        const IrWindowDimension *window = &attributes->window[k];
        text_append(key, " %lldx%lld:%lldx%lld%s", (long long)window->size, (long long)window->stride,
                    (long long)window->window_dilation, (long long)window->base_dilation,
                    window->reversal ? "r" : "");
    }
    if (attributes->gather) {
        add_numbers(key, "offset", attributes->gather->offset_dimensions, attributes->gather->offset_count);
        add_numbers(key, "collapsed", attributes->gather->collapsed_dimensions,
                    attributes->gather->collapsed_count);
        add_numbers(key, "starts", attributes->gather->start_index_map, attributes->gather->index_map_count);
        add_numbers(key, "window", attributes->gather->slice_sizes,
                    attributes->gather->slice_sizes ? operand_rank : 0);
    }
    if (attributes->slice_stride) add_numbers(key, "stride", attributes->slice_stride, operand_rank);
    if (attributes->comparison) text_append(key, " %s", attributes->comparison);
    if (attributes->custom_call_target) text_append(key, " %s", attributes->custom_call_target);
}

/* Adds the operators of a to_apply computation, in order. */
static void add_called(Text *key, const IrModule *module, int32_t computation) {
    if (computation < 0 || !module) return;
    const IrComputation *called = &module->computations[computation];
    text_append_string(key, " by");
    for (int32_t k = 0; k < called->count; k++) {
        IrOpcode opcode = module->instructions[called->first + k].opcode;
        if (opcode != IR_PARAMETER) text_append(key, " %s", ir_opcode_name(opcode));
    }
}

static void add_fusion(StepEvent *event, const Program *program, const ProgramFusion *fusion) {
    Text *key = &event->key;
    text_append_string(key, "fusion");
    for (int32_t d = 0; d < fusion->rank && d < STEP_EVENT_MOST_SIZES; d++)
        event->sizes[event->size_count++] = (double)fusion->dimensions[d];
    for (int32_t k = 0; k < fusion->input_count; k++) {
        text_append(key, " %s:", dtype_name(program->values[fusion->inputs[k].value].shape.type));
        /* Strides: 'b' the same along the dimension; 'd' as in a dense array of the index space; 's'
         * otherwise. */
        int64_t dense = 1;
        char letters[IR_MAX_RANK + 1] = "";
        for (int32_t d = fusion->rank - 1; d >= 0; d--) {
            letters[d] = fusion->inputs[k].strides[d] == 0       ? 'b'
                         : fusion->inputs[k].strides[d] == dense ? 'd'
                                                                 : 's';
            dense *= fusion->dimensions[d];
        }
        letters[fusion->rank] = 0;
        text_append_string(key, letters);
    }
    for (int32_t k = 0; k < fusion->op_count; k++) {
        const ProgramFusionOp *op = &fusion->ops[k];
        text_append(key, " %s.%s", ir_opcode_name(op->opcode), dtype_name(op->type));
        for (int32_t o = 0; o < op->operand_count; o++)
            text_append(key, "%c%d", o ? ',' : '(', op->operands[o]);
        if (op->operand_count > 0) text_append_string(key, ")");
    }
    text_append_string(key, " ->");
    for (int32_t k = 0; k < fusion->output_count; k++) text_append(key, " %d", fusion->output_slots[k]);
}

bool step_event(StepEvent *event, const Program *program, const ProgramStep *step) {
    event->key.length = 0;
    event->size_count = 0;
    if (step->row_group > 0) return false; /* it has no time of its own */
    if (step->fusion >= 0) {
        add_fusion(event, program, &program->execution.fusions[step->fusion]);
        return !event->key.failed;
    }
    const ProgramInstruction *instruction = &program->instructions[step->instruction];
    if (instruction->kind != PROGRAM_COMPUTE || instruction->regions.count > 0) return false;
    Text *key = &event->key;
    text_append_string(key, ir_opcode_name(instruction->opcode));
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        text_append_string(key, k ? "," : " ");
        add_shape(event, &program->values[instruction->operands[k]].shape);
    }
    text_append_string(key, "->");
    for (int32_t k = 0; k < instruction->result_count; k++)
        add_shape(event, &program->values[instruction->first_result + k].shape);
    add_attributes(key, instruction,
                   instruction->operand_count > 0 ? program->values[instruction->operands[0]].shape.rank : 0);
    add_called(key, program->module, instruction->compute.called);
    add_called(key, program->module, instruction->compute.called_second);
    if (instruction->opcode == IR_DYNAMIC_UPDATE_SLICE &&
        program->values[instruction->operands[0]].offset == program->values[instruction->first_result].offset)
        text_append_string(key, " in place");
    if (instruction->compute.shard) text_append_string(key, " of a shard");
    return !event->key.failed;
}
