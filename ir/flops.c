/* FLOPs as XLA's cost analysis counts them (HloCostAnalysis).
 *
 *   dot            2 * results * contracted
 *   convolution    2 * (input features / groups) * output features *
 *                  (batch / batch groups) * valid positions, where a position is
 *                  a pair of output and kernel place that meets an input element
 *                  and neither padding nor a hole of the dilation
 *   element-wise   1 per result; transcendental functions too (XLA lists these
 *                  apart); a copy 0
 *   reduce         (inputs - results) * operations of its computation
 *   reduce-window  results * (window - 1) * operations
 *   select-and-scatter  sources * ((window - 1) * selections + operations)
 *   scatter        updates * operations (of the first array)
 *   sort           keys * log2(keys of a row) comparisons
 *   while, call, fusion  their computations once; conditional: the dearest branch
 *
 * Everything else moves data. Contracted sizes and windows come from the operand
 * shapes given, so that the count of a shard follows from its local shapes.
 */
#include "ir/flops.h"

#include <math.h>

#include "ir/dataflow.h"

/* Computations may be mentioned over and over by nested loops: this many
 * instructions are counted for one question, what lies beyond counts nothing. */
#define MAX_COUNTED 1000000

/* Beyond this many steps of counting, every position of a window counts as valid. */
#define MAX_POSITIONS 4000000

/* Of an instruction inside another, so many operands' shapes are looked at. */
#define COUNTED_OPERANDS 8

typedef struct Counter {
    const IrModule *module;
    int32_t left; /* instructions that may still be counted */
} Counter;

static double count(Counter *counter, const IrInstruction *instruction, const IrShape *operands,
                    const IrShape *result);

static double elements(const IrShape *shape) {
    double product = 1;
    if (shape->type == DTYPE_TUPLE) return shape->rank > 0 ? elements(&shape->elements[0]) : 0;
    for (int32_t d = 0; d < shape->rank; d++) product *= (double)shape->dimensions[d];
    return product;
}

/* All instructions of a computation, at their own shapes. Nesting is bounded by
 * the canonical module. */
static double computation_flops(Counter *counter, int32_t computation) {
    const IrModule *module = counter->module;
    const IrComputation *body = &module->computations[computation];
    double sum = 0;
    for (int32_t i = body->first; i < body->first + body->count && counter->left > 0; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        IrShape operands[COUNTED_OPERANDS];
        for (int32_t k = 0; k < instruction->operand_count && k < COUNTED_OPERANDS; k++)
            operands[k] = module->instructions[instruction->operands[k]].shape;
        counter->left--;
        if (instruction->opcode == IR_SCATTER && instruction->operand_count > COUNTED_OPERANDS) continue;
        sum += count(counter, instruction, operands, &instruction->shape);
    }
    return sum;
}

static double called_flops(Counter *counter, const IrInstruction *instruction, int32_t k) {
    return k < instruction->called_count ? computation_flops(counter, instruction->called[k]) : 0;
}

static double dot_flops(const IrDot *dot, const IrShape *lhs, const IrShape *result) {
    double contracted = 1;
    for (int32_t k = 0; k < dot->contracting_count; k++)
        contracted *= (double)lhs->dimensions[dot->lhs_contracting[k]];
    return 2 * elements(result) * contracted;
}

static int64_t dilated(int64_t size, int64_t dilation) {
    return size > 0 ? (size - 1) * dilation + 1 : 0;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Outputs o < output whose place `first_place + o * stride` is inside [0, span)
 * and a multiple of the dilation: of those inside, one in every
 * dilation / gcd(stride, dilation), or none. */
static int64_t valid_outputs(int64_t first_place, int64_t stride, int64_t dilation, int64_t span,
                             int64_t output) {
    if (first_place >= span) return 0;
    int64_t first = first_place < 0 ? (-first_place + stride - 1) / stride : 0;
    int64_t end = (span - 1 - first_place) / stride + 1;
    int64_t period = dilation / greatest_common_divisor(stride, dilation);
    if (end > output) end = output;
    for (int64_t o = first; o < end && o < first + period; o++)
        if ((first_place + o * stride) % dilation == 0) return (end - 1 - o) / period + 1;
    return 0;
}

/* Pairs (output o, kernel place k) of one spatial dimension whose input place
 * o * stride + k * window_dilation - padding_low is inside the dilated input and
 * on an element of it. */
static double valid_positions(const IrWindowDimension *window, int64_t input, int64_t kernel,
                              int64_t output) {
    int64_t span = dilated(input, window->base_dilation), valid = 0;
    if (window->stride <= 0 || window->base_dilation <= 0) return 0;
    if ((double)kernel * (double)output > MAX_POSITIONS) return (double)kernel * (double)output;
    for (int64_t k = 0; k < kernel; k++)
        valid += valid_outputs(k * window->window_dilation - window->padding_low, window->stride,
                               window->base_dilation, span, output);
    return (double)valid;
}

static double convolution_flops(const IrInstruction *instruction, const IrShape *lhs, const IrShape *rhs,
                                const IrShape *result) {
    const IrConvolution *convolution = instruction->attributes->convolution;
    double feature_groups =
        (double)(convolution->feature_group_count > 1 ? convolution->feature_group_count : 1);
    double batch_groups = (double)(convolution->batch_group_count > 1 ? convolution->batch_group_count : 1);
    double product = 2 * (double)lhs->dimensions[convolution->input_feature] / feature_groups *
                     (double)result->dimensions[convolution->output_feature] *
                     (double)lhs->dimensions[convolution->input_batch] / batch_groups;
    for (int32_t d = 0; d < convolution->spatial_count && d < instruction->attributes->window_count; d++)
        product *= valid_positions(&instruction->attributes->window[d],
                                   lhs->dimensions[convolution->input_spatial[d]],
                                   rhs->dimensions[convolution->kernel_spatial[d]],
                                   result->dimensions[convolution->output_spatial[d]]);
    return product;
}

static double window_elements(const IrAttributes *attributes) {
    double product = 1;
    for (int32_t d = 0; d < attributes->window_count; d++) product *= (double)attributes->window[d].size;
    return product;
}

static double sort_flops(const IrAttributes *attributes, const IrShape *keys) {
    double row = attributes->dimension_count > 0 && attributes->dimensions[0] < keys->rank
                     ? (double)keys->dimensions[attributes->dimensions[0]]
                     : 1;
    return row > 1 ? elements(keys) * ceil(log2(row)) : 0;
}

static double count(Counter *counter, const IrInstruction *instruction, const IrShape *operands,
                    const IrShape *result) {
    const IrAttributes *attributes = instruction->attributes;
    double dearest = 0;
    if (ir_is_elementwise(instruction->opcode)) return instruction->opcode == IR_COPY ? 0 : elements(result);
    switch (instruction->opcode) {
    case IR_DOT: return dot_flops(attributes->dot, &operands[0], result);
    case IR_CONVOLUTION: return convolution_flops(instruction, &operands[0], &operands[1], result);
    case IR_REDUCE: {
        double combined = elements(&operands[0]) - elements(result);
        return (combined > 0 ? combined : 0) * called_flops(counter, instruction, 0);
    }
    case IR_REDUCE_WINDOW:
        return elements(result) * (window_elements(attributes) - 1) * called_flops(counter, instruction, 0);
    case IR_SELECT_AND_SCATTER:
        return elements(&operands[1]) *
               ((window_elements(attributes) - 1) * called_flops(counter, instruction, 0) +
                called_flops(counter, instruction, 1));
    case IR_SCATTER:
        return elements(&operands[instruction->operand_count / 2 + 1]) *
               called_flops(counter, instruction, 0);
    case IR_MAP: return elements(result) * called_flops(counter, instruction, 0);
    case IR_SORT: return sort_flops(attributes, &operands[0]);
    case IR_RNG:
    case IR_RNG_BIT_GENERATOR: return elements(result);
    case IR_WHILE: return called_flops(counter, instruction, 0) + called_flops(counter, instruction, 1);
    case IR_CALL:
    case IR_FUSION: return called_flops(counter, instruction, 0);
    case IR_CONDITIONAL:
        for (int32_t k = 0; k < instruction->called_count; k++)
            dearest = fmax(dearest, called_flops(counter, instruction, k));
        return dearest;
    default: return 0;
    }
}

double ir_flops(const IrModule *module, const IrInstruction *instruction, const IrShape *operands,
                const IrShape *result) {
    Counter counter = {module, MAX_COUNTED};
    return count(&counter, instruction, operands, result);
}
