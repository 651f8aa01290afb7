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

#include <math.h>

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

/* Returns the FLOPs of a local instruction, with the shapes of the shards. */
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
    int32_t called[2] = {instruction->compute.called, instruction->compute.called_second};
    local.opcode = instruction->opcode;
    local.attributes = instruction->attributes;
    local.shape = result_count == 1 ? results[0] : tuple;
    local.operand_count = count;
    local.called = called;
    local.called_count = (instruction->compute.called >= 0) + (instruction->compute.called_second >= 0);
    return ir_flops(program->module, &local, operands, &local.shape);
}

OperatorUnit operator_unit(IrOpcode opcode) {
    if (!ir_is_product(opcode)) return OPERATOR_VECTOR;
    return ir_is_matrix_product(opcode) ? OPERATOR_DOT : OPERATOR_CONVOLUTION;
}

/* Returns whether a result lies where the operand did, which then is not copied. */
static bool is_in_place(const Program *program, int32_t operand, int32_t result) {
    int64_t offset = program->values[result].offset;
    return offset >= 0 && program->values[operand].offset == offset;
}

/* Returns the bytes that a loop or conditional copies itself: a loop its initial values into its results,
 * unless they are in place; a conditional the results of a branch. */
static double copied_bytes(const Program *program, const ProgramInstruction *instruction) {
    double bytes = 0;
    for (int32_t k = 0; k < instruction->result_count; k++) {
        int32_t result = instruction->first_result + k;
        if (instruction->loop.carried &&
            (is_in_place(program, instruction->operands[instruction->loop.carried[k]], result) ||
             (instruction->loop.unset && instruction->loop.unset[instruction->loop.carried[k]])))
            continue;
        bytes += 2 * array_bytes(&program->values[result].shape);
    }
    return bytes;
}

/* Returns the sizes of a product of the first two operands. */
static ProductSize product_size(const Program *program, const ProgramInstruction *instruction) {
    const IrDot *dot = instruction->attributes->dot;
    const IrShape *left = &program->values[instruction->operands[0]].shape;
    const IrShape *right = &program->values[instruction->operands[1]].shape;
    ProductSize size = {.count = 1, .k = 1};
    bool left_inside = false, right_inside = false;
    for (int32_t d = 0; d < dot->batch_count; d++) size.count *= (double)left->dimensions[dot->lhs_batch[d]];
    for (int32_t d = 0; d < dot->contracting_count; d++) {
        size.k *= (double)left->dimensions[dot->lhs_contracting[d]];
        left_inside |= dot->lhs_contracting[d] == left->rank - 1;
        right_inside |= dot->rhs_contracting[d] == right->rank - 1;
    }
    double shared = size.count * size.k;
    if (!(shared > 0)) return (ProductSize){0};
    size.m = (double)ir_shape_elements(left) / shared;
    size.n = (double)ir_shape_elements(right) / shared;
    size.layout = right_inside ? PRODUCT_TN : left_inside ? PRODUCT_NN : PRODUCT_NT;
    return size;
}

static bool has_bit(uint64_t bits, int32_t k) {
    return k < 64 && bits >> k & 1;
}

static void instruction_work(OperatorWork *work, const Program *program,
                             const ProgramInstruction *instruction, const FusedStep *fused) {
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
        if (!has_bit(fused->in_registers, k))
            work->bytes += array_bytes(&program->values[instruction->first_result + k].shape);
    /* These read of operand 0 only as many bytes as they write. */
    bool part = instruction->opcode == IR_GATHER || instruction->opcode == IR_SLICE ||
                instruction->opcode == IR_DYNAMIC_SLICE;
    if (part) work->bytes *= 2;
    for (int32_t k = part ? 1 : 0; k < instruction->operand_count; k++)
        if (!has_bit(fused->read_before, k))
            work->bytes += array_bytes(&program->values[instruction->operands[k]].shape);
    if (instruction->regions.in_blocks) {
        /* A kernel by blocks computes its products, some of them again. */
        attention_work(&work->attention, instruction->regions.programs[0]);
        work->unit = OPERATOR_DOT;
        work->type = work->attention.type;
        work->flops = work->attention.flops;
        return;
    }
    work->unit = operator_unit(instruction->opcode);
    if (work->unit == OPERATOR_DOT) work->product = product_size(program, instruction);
    if (!ir_opcode_has(instruction->opcode, FACT_NO_FLOPS))
        work->flops = instruction_flops(program, instruction);
}

static void fusion_work(OperatorWork *work, const Program *program, const ProgramFusion *fusion,
                        const FusedStep *fused) {
    for (int32_t k = 0; k < fusion->input_count; k++) {
        if (has_bit(fused->read_before, k)) continue;
        const ProgramFusionInput *input = &fusion->inputs[k];
        double bytes = element_bytes[program->values[input->value].shape.type];
        for (int32_t d = 0; d < fusion->rank; d++)
            if (input->strides[d] != 0) bytes *= (double)fusion->dimensions[d];
        work->bytes += bytes;
    }
    for (int32_t k = 0; k < fusion->output_count; k++)
        if (!has_bit(fused->in_registers, k))
            work->bytes += (double)fusion->elements *
                           element_bytes[program->values[fusion->output_values[k]].shape.type];
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
    static const FusedStep alone = {0};
    const FusedStep *fused =
        program->execution.fused ? &program->execution.fused[step - program->execution.steps] : &alone;
    if (step->fusion >= 0) fusion_work(work, program, &program->execution.fusions[step->fusion], fused);
    else instruction_work(work, program, &program->instructions[step->instruction], fused);
    if (fused->kind == FUSED_COLUMNS || fused->kind == FUSED_DEPTH) {
        if (fused->products > 0) { /* the first of joined products, which has the work of all */
            work->flops *= fused->products;
            if (fused->kind == FUSED_COLUMNS) work->product.n *= fused->products;
            else work->product.k *= fused->products;
        } else {
            work->flops = work->bytes = 0;
            work->unit = OPERATOR_VECTOR;
            work->product = (ProductSize){0};
        }
    }
    work->fused = fused->kind;
    work->waits = fused->waits;
    work->is_continued = fused->kind != FUSED_NONE && !fused->launches;
}

/* The kernel by blocks: scores of a block, and of one of several short sequences; rows of a block; the
 * numbers of keys that it distinguishes under a causal mask. */
enum { BLOCK_SCORES = 128 << 10, SHORT_SCORES = 16 << 10, LEAST_ROWS = 32, MOST_ROWS = 128, KEY_COUNTS = 16 };

/* The fraction of the memory's rate that attention products of the V100 reach, with heads of 64 to 128. */
#define BATCHED_PRODUCT_RATE 0.55

/* FlashAttention 2 is 1.7 to 3 times as fast as FlashAttention 1 (Dao 2023); the measured kernels are of
 * version 2. */
#define FLASH_1_SHARE (1 / 1.7)

/* The kernels of fused attention. */
typedef struct FlashKernel {
    AttentionPass pass;
    bool is_causal;
    int32_t flash_version;
} FlashKernel;

static const FlashKernel flash_kernels[FUSED_KINDS] = {
    [FUSED_FORWARD] = {ATTENTION_FORWARD, false, 2},
    [FUSED_FORWARD_CAUSAL] = {ATTENTION_FORWARD, true, 2},
    [FUSED_BACKWARD] = {ATTENTION_BACKWARD, false, 2},
    [FUSED_BACKWARD_CAUSAL] = {ATTENTION_BACKWARD, true, 2},
    [FUSED_FLASH1_FORWARD] = {ATTENTION_FORWARD, false, 1},
    [FUSED_FLASH1_FORWARD_CAUSAL] = {ATTENTION_FORWARD, true, 1},
    [FUSED_FLASH1_BACKWARD] = {ATTENTION_BACKWARD, false, 1},
    [FUSED_FLASH1_BACKWARD_CAUSAL] = {ATTENTION_BACKWARD, true, 1}};

/* Returns the device whose measured attention the type follows, the A100 by default, and the peak in FLOP/s
 * of the operands' type beside that device's. */
static const MeasuredDevice *attention_device(const OperatorWork *work, const ClusterDeviceType *type,
                                              double *peak) {
    *peak = type->flops_per_second[work->type] * (type->measured ? type->measured_rate : 1);
    return type->measured ? type->measured : measured_device_find("A100");
}

/* Returns the seconds of a step of fused attention: those of its product, 0 for other steps. Each product has
 * as many FLOPs as rows x keys x size of a head. The two of a forward kernel, or the five of a backward one,
 * together take the measured time. */
static double attention_step_seconds(const OperatorWork *work, const ClusterDeviceType *type) {
    const ProductSize *product = &work->product;
    if (work->unit != OPERATOR_DOT || !(product->count > 0)) return 0;
    const FlashKernel *kernel = &flash_kernels[work->fused];
    double head = fmin(fmin(product->m, product->n), product->k);
    double length = sqrt(product->m * product->n * product->k / head), peak;
    const AttentionSize size = {.batch = 1,
                                .heads = product->count,
                                .rows = length,
                                .keys = length,
                                .key_size = head, /* without a value_size: one product of the forward pass */
                                .is_causal = kernel->is_causal};
    const MeasuredDevice *device = attention_device(work, type, &peak);
    if (kernel->flash_version == 1) peak *= FLASH_1_SHARE;
    double seconds = measured_attention_seconds(device, kernel->pass, &size, peak);
    return kernel->pass == ATTENTION_BACKWARD ? seconds / ATTENTION_BACKWARD_FLOPS : seconds;
}

/* Returns the roofline (file head) after the launch. */
static double roofline_seconds(const OperatorWork *work, const ClusterDeviceType *type) {
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
    return arithmetic > memory ? arithmetic : memory;
}

/* A source of prices: sets the seconds of an operator on a device; false: the source has no price of it. */
typedef bool PriceSource(double *seconds, const OperatorWork *work, const ClusterDeviceType *type);

static bool profile_price(double *seconds, const OperatorWork *work, const ClusterDeviceType *type,
                          ProfileSource source) {
    if (!type->profile || !work->step) return false;
    StepEvent event = {0};
    bool is_known = step_event(&event, work->program, work->step) &&
                    profile_seconds(type->profile, source, &event, work->flops + work->bytes, seconds);
    text_free(&event.key);
    if (is_known) *seconds /= type->processors > 0 ? type->processors : 1;
    return is_known;
}

static bool price_by_run(double *seconds, const OperatorWork *work, const ClusterDeviceType *type) {
    return profile_price(seconds, work, type, PROFILE_RUN);
}

static bool price_by_curves(double *seconds, const OperatorWork *work, const ClusterDeviceType *type) {
    if (!type->operators || !work->step) return false;
    if (!operator_terms_seconds(seconds, type->operators, work->program, work->step)) return false;
    *seconds /= type->processors > 0 ? type->processors : 1;
    return true;
}

static bool price_by_probe(double *seconds, const OperatorWork *work, const ClusterDeviceType *type) {
    return profile_price(seconds, work, type, PROFILE_PROBE);
}

static bool price_by_blocks(double *seconds, const OperatorWork *work, const ClusterDeviceType *type) {
    if (!type->operators || !work->step || !(work->attention.rows > 0)) return false;
    /* The executor's kernel by blocks (executor/cpu/attention/) has no class of its own: its seconds are
     * those of its steps for each block, as separate operators of a block's size, and of copies of operands
     * and results. */
    const ProgramInstruction *instruction = &work->program->instructions[work->step->instruction];
    const Program *region = instruction->regions.programs[0];
    double rows = fmin(fmax(BLOCK_SCORES / work->attention.keys, LEAST_ROWS),
                       fmax(SHORT_SCORES / work->attention.keys, MOST_ROWS));
    double blocks = ceil(work->attention.rows / rows), sum = 0, measured = 0;
    double key_counts = fmin(fmax(work->attention.keys / rows, 1), KEY_COUNTS);
    double share = work->attention.is_causal ? (1 + 1 / key_counts) / 2 : 1;
    for (int32_t s = 0; s < region->execution.step_count; s++) {
        double step;
        if (operator_terms_in_blocks(&step, type->operators, region, &region->execution.steps[s], blocks,
                                     share)) {
            measured += step;
            continue;
        }
        OperatorWork inside;
        operator_work(&inside, region, &region->execution.steps[s]);
        if (inside.is_run) sum += (blocks - 1) * type->kernel_launch_seconds;
        sum += share * operator_seconds(&inside, type);
    }
    for (int32_t k = 0; k < instruction->operand_count + instruction->result_count; k++) {
        int32_t value = k < instruction->operand_count
                            ? instruction->operands[k]
                            : instruction->first_result + k - instruction->operand_count;
        measured += operator_terms_copy(type->operators, &work->program->values[value].shape);
    }
    *seconds = sum + measured / (type->processors > 0 ? type->processors : 1);
    return true;
}

static double launch_seconds(const OperatorWork *work, const ClusterDeviceType *type) {
    return work->is_continued ? 0 : type->kernel_launch_seconds;
}

static bool price_by_fused_attention(double *seconds, const OperatorWork *work,
                                     const ClusterDeviceType *type) {
    if (work->fused <= FUSED_PLAIN) return false;
    *seconds = launch_seconds(work, type) + attention_step_seconds(work, type);
    return true;
}

static bool price_by_attention(double *seconds, const OperatorWork *work, const ClusterDeviceType *type) {
    if (!(work->attention.rows > 0) || !dtype_is_16bit_float(work->type)) return false;
    double peak;
    const MeasuredDevice *device = attention_device(work, type, &peak);
    *seconds = launch_seconds(work, type) + fmax(attention_work_seconds(&work->attention, device, peak),
                                                 work->bytes / type->memory_bytes_per_second);
    return true;
}

static bool price_by_product(double *seconds, const OperatorWork *work, const ClusterDeviceType *type) {
    if (!type->measured || work->unit != OPERATOR_DOT || !dtype_is_16bit_float(work->type)) return false;
    /* Work without the sizes of the product, or a part of it, takes at least as long as any product. */
    double peak = type->flops_per_second[work->type] * type->measured_rate;
    const ProductSize *size = &work->product;
    double sized = 2 * size->count * size->m * size->n * size->k;
    bool is_whole = fabs(sized - work->flops) <= 1e-6 * work->flops;
    double arithmetic = is_whole ? measured_product_seconds(type->measured, size, peak)
                                 : measured_product_bound(type->measured, work->flops, peak);
    double rate = is_whole && size->count > 1 ? BATCHED_PRODUCT_RATE : 1;
    *seconds =
        launch_seconds(work, type) + fmax(arithmetic, work->bytes / (rate * type->memory_bytes_per_second));
    return true;
}

static bool price_by_roofline(double *seconds, const OperatorWork *work, const ClusterDeviceType *type) {
    *seconds = launch_seconds(work, type) + roofline_seconds(work, type);
    return true;
}

double operator_seconds(const OperatorWork *work, const ClusterDeviceType *type) {
    /* The first that has a price counts (operator.h). */
    static PriceSource *const sources[] = {price_by_run,     price_by_curves,          price_by_probe,
                                           price_by_blocks,  price_by_fused_attention, price_by_attention,
                                           price_by_product, price_by_roofline};
    double seconds = 0;
    if (!work->is_run) return 0;
    for (size_t s = 0; s < sizeof sources / sizeof *sources && !sources[s](&seconds, work, type); s++)
        ;
    return seconds;
}
