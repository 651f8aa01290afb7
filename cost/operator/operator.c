/* Time of an operator by the roofline model: the slower of arithmetic and memory.
 *
 *     seconds = launch + max( FLOPs / (peak x e(FLOPs)), bytes / (rate x e(bytes)) )
 *
 * A kernel overlaps its loads with its arithmetic but cannot begin before it is launched. The peak
 * is that of the operands' type; e is the efficiency curve of the device: large products fill the
 * matrix units, small ones do not. Only dots and convolutions use matrix units; other operators run
 * on the vector units at the f32 rate (f64 for 64-bit types), also for narrow types.
 *
 * Bytes are those that must cross the memory interface once: every operand and result in full,
 * except if an operator touches part of an operand (gather, slice: as many bytes as it writes, and
 * the indices; a dynamic-update-slice in place: the bytes that it changes) or none of it. A fusion
 * reads each input once, a broadcast input (stride 0) in its own small size, and writes its
 * outputs; its internal values do not reach memory.
 *
 * A loop or conditional counts only the bytes that it copies itself; its body consists of steps of
 * their own (cost/step/executed.h).
 */
#include "cost/operator/operator.h"

#include "cost/operator/operator_terms.h"
#include "cost/operator/profile.h"
#include "ir/analysis/flops.h"

enum { MOST_PRICED_OPERANDS = 16 };

/* dtype_bytes() as a table: pricing asks some ten thousand times. */
static const double element_bytes[DTYPE_COUNT] = {
#define ELEMENT_BYTES(name, text, number, bits, numpy, safetensors) [number] = ((bits) + 7) / 8,
    DTYPE_LIST(ELEMENT_BYTES)
#undef ELEMENT_BYTES
};

static double array_bytes(const IrShape *shape) {
    double bytes = element_bytes[shape->type];
    for (int32_t d = 0; d < shape->rank; d++) bytes *= (double)shape->dimensions[d];
    return bytes;
}

/* Operators that read of operand 0 only as much as they write. */
static bool reads_a_part(IrOpcode opcode) {
    return opcode == IR_GATHER || opcode == IR_SLICE || opcode == IR_DYNAMIC_SLICE;
}

/* Operators that move, make or rename values and compute nothing. */
static bool moves_only(IrOpcode opcode) {
    static const bool moving[IR_OPCODE_COUNT + 1] = {
        [IR_BITCAST] = true,   [IR_BROADCAST] = true, [IR_CONCATENATE] = true,
        [IR_CONSTANT] = true,  [IR_COPY] = true,      [IR_DYNAMIC_SLICE] = true,
        [IR_GATHER] = true,    [IR_IOTA] = true,      [IR_PAD] = true,
        [IR_RESHAPE] = true,   [IR_REVERSE] = true,   [IR_SLICE] = true,
        [IR_TRANSPOSE] = true, [IR_TUPLE] = true,     [IR_DYNAMIC_UPDATE_SLICE] = true,
    };
    return moving[opcode];
}

/* FLOPs of a local instruction: the shard's operands and results in the place
 * of the canonical instruction's. */
static double instruction_flops(const Program *program, const ProgramInstruction *instruction) {
    IrShape operands[MOST_PRICED_OPERANDS], results[MOST_PRICED_OPERANDS];
    int32_t count = instruction->operand_count, result_count = instruction->result_count;
    const IrShape *first = &program->values[instruction->first_result].shape;
    if (count > MOST_PRICED_OPERANDS || result_count > MOST_PRICED_OPERANDS)
        return (double)ir_shape_elements(first) * result_count;
    for (int32_t k = 0; k < count; k++) operands[k] = program->values[instruction->operands[k]].shape;
    for (int32_t k = 0; k < result_count; k++)
        results[k] = program->values[instruction->first_result + k].shape;
    IrShape tuple = {.type = DTYPE_TUPLE, .rank = result_count, .elements = results};
    IrInstruction local = program->module->instructions[instruction->origin];
    int32_t called[2] = {instruction->called, instruction->called_second};
    local.opcode = instruction->opcode;
    local.attributes = instruction->attributes;
    local.shape = result_count == 1 ? results[0] : tuple;
    local.operand_count = count;
    local.called = called;
    local.called_count = (instruction->called >= 0) + (instruction->called_second >= 0);
    return ir_flops(program->module, &local, operands, &local.shape);
}

static OperatorUnit unit_of(IrOpcode opcode) {
    if (opcode == IR_DOT) return OPERATOR_DOT;
    return opcode == IR_CONVOLUTION ? OPERATOR_CONVOLUTION : OPERATOR_VECTOR;
}

/* Returns whether a result lies where the operand did, which then is not copied. */
static bool is_in_place(const Program *program, int32_t operand, int32_t result) {
    int64_t offset = program->values[result].offset;
    return offset >= 0 && program->values[operand].offset == offset;
}

/* Bytes that a loop or conditional copies itself: a loop its initial values into its results,
 * unless they are in place; a conditional the results of a branch. */
static double copied_bytes(const Program *program, const ProgramInstruction *instruction) {
    double bytes = 0;
    for (int32_t k = 0; k < instruction->result_count; k++) {
        int32_t result = instruction->first_result + k;
        if (instruction->carried &&
            (is_in_place(program, instruction->operands[instruction->carried[k]], result) ||
             (instruction->unset && instruction->unset[instruction->carried[k]])))
            continue;
        bytes += 2 * array_bytes(&program->values[result].shape);
    }
    return bytes;
}

/* A kernel by blocks: its products, also those that it computes again, and its operands and results. */
static void blocks_work(OperatorWork *work, const Program *region) {
    work->unit = OPERATOR_DOT;
    for (int32_t i = 0; i < region->instruction_count; i++) {
        const ProgramInstruction *inside = &region->instructions[i];
        if (inside->opcode != IR_DOT) continue;
        work->type = region->values[inside->operands[0]].shape.type;
        work->flops += instruction_flops(region, inside);
    }
}

static void instruction_work(OperatorWork *work, const Program *program,
                             const ProgramInstruction *instruction) {
    const IrShape *result = &program->values[instruction->first_result].shape;
    const IrShape *operand =
        instruction->operand_count > 0 ? &program->values[instruction->operands[0]].shape : result;
    work->type = operand->type;
    work->is_run = instruction->kind == PROGRAM_COMPUTE;
    if (!work->is_run) return;
    if (instruction->opcode == IR_WHILE || instruction->opcode == IR_CONDITIONAL) {
        work->bytes = copied_bytes(program, instruction);
        work->is_run = work->bytes > 0;
        return;
    }
    if (instruction->opcode == IR_DYNAMIC_UPDATE_SLICE && instruction->operand_count > 1 &&
        is_in_place(program, instruction->operands[0], instruction->first_result)) {
        work->bytes = 2 * array_bytes(&program->values[instruction->operands[1]].shape);
        return;
    }
    for (int32_t k = 0; k < instruction->result_count; k++)
        work->bytes += array_bytes(&program->values[instruction->first_result + k].shape);
    bool part = reads_a_part(instruction->opcode);
    if (part) work->bytes *= 2;
    for (int32_t k = part ? 1 : 0; k < instruction->operand_count; k++)
        work->bytes += array_bytes(&program->values[instruction->operands[k]].shape);
    if (instruction->in_blocks) {
        blocks_work(work, instruction->regions[0]);
        return;
    }
    work->unit = unit_of(instruction->opcode);
    if (!moves_only(instruction->opcode)) work->flops = instruction_flops(program, instruction);
}

static void fusion_work(OperatorWork *work, const Program *program, const ProgramFusion *fusion) {
    for (int32_t k = 0; k < fusion->input_count; k++) {
        const ProgramFusionInput *input = &fusion->inputs[k];
        double bytes = element_bytes[program->values[input->value].shape.type];
        for (int32_t d = 0; d < fusion->rank; d++)
            if (input->strides[d] != 0) bytes *= (double)fusion->dimensions[d];
        work->bytes += bytes;
    }
    for (int32_t k = 0; k < fusion->output_count; k++)
        work->bytes +=
            (double)fusion->elements * element_bytes[program->values[fusion->output_values[k]].shape.type];
    int32_t computing = 0;
    for (int32_t k = 0; k < fusion->op_count; k++) {
        const ProgramFusionOp *op = &fusion->ops[k];
        computing += op->operand_count > 0; /* not a constant or an iota */
        if (element_bytes[op->type] > element_bytes[work->type]) work->type = op->type;
    }
    work->flops = (double)computing * (double)fusion->elements;
    work->is_run = true;
}

void operator_work(OperatorWork *work, const Program *program, const ProgramStep *step) {
    *work = (OperatorWork){.unit = OPERATOR_VECTOR, .type = DTYPE_PRED, .program = program, .step = step};
    if (step->fusion >= 0) fusion_work(work, program, &program->fusions[step->fusion]);
    else instruction_work(work, program, &program->instructions[step->instruction]);
}

/* As measured there; false: the profile does not know it. */
static bool find_measured(const OperatorWork *work, const ProfileType *profile, ProfileSource source,
                          double *seconds) {
    StepEvent event = {0};
    bool is_known = step_event(&event, work->program, work->step) &&
                    profile_seconds(profile, source, &event, work->flops + work->bytes, seconds);
    text_free(&event.key);
    return is_known;
}

double operator_seconds(const OperatorWork *work, const ClusterDeviceType *type) {
    double measured, processors = type->processors > 0 ? type->processors : 1;
    if (!work->is_run) return 0;
    if (type->profile && work->step && find_measured(work, type->profile, PROFILE_RUN, &measured))
        return measured / processors;
    if (type->operators && work->step &&
        operator_terms_seconds(&measured, type->operators, work->program, work->step))
        return measured / processors;
    if (type->profile && work->step && find_measured(work, type->profile, PROFILE_PROBE, &measured))
        return measured / processors;
    double arithmetic = 0, memory = 0;
    if (work->flops > 0) {
        if (work->unit == OPERATOR_VECTOR) {
            bool wide = work->type == DTYPE_F64 || work->type == DTYPE_C128 || work->type == DTYPE_S64 ||
                        work->type == DTYPE_U64;
            arithmetic = work->flops / type->flops_per_second[wide ? DTYPE_F64 : DTYPE_F32];
        } else {
            const ClusterCurve *curve =
                &(work->unit == OPERATOR_DOT ? type->dot : type->convolution)[work->type];
            arithmetic =
                work->flops / (type->flops_per_second[work->type] * cluster_efficiency(curve, work->flops));
        }
    }
    if (work->bytes > 0)
        memory =
            work->bytes / (type->memory_bytes_per_second * cluster_efficiency(&type->memory, work->bytes));
    return type->kernel_launch_seconds + (arithmetic > memory ? arithmetic : memory);
}
