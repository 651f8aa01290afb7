/* FLOPs, transcendentals and bytes as XLA's cost analysis counts them.
 *
 *   dot            2 * results * contracted
 *   convolution    2 * (input features / groups) * output features *
 *                  (batch / batch groups) * valid positions, where a position is
 *                  a pair of output and kernel place that meets an input element
 *                  and neither padding nor a hole of the dilation
 *   element-wise   1 per result, a transcendental where the function is one; a copy 0
 *   reduce         (inputs - results) * operations of its computation
 *   reduce-window  results * (window - 1) * operations; one that sums a whole row
 *                  into each of its places: results / row + row - 1
 *   select-and-scatter  sources * ((window - 1) * selections + operations)
 *   scatter        updates * operations (of the first array)
 *   sort           elements * log2(elements) comparisons
 *   fft            8 * elements * product of log2(lengths)
 *   cholesky       elements * n / 3; triangular-solve 2 * elements * n
 *   all-reduce     1 per result, as if of two devices
 *   while, call, fusion  their computations once; conditional: of each number the
 *                  most that any branch has
 *
 * Everything else moves data. Bytes are operands plus results in full, where a
 * tuple that is read counts its table of pointers and one that is written its
 * leaves; what reads or writes a part counts the part. Contracted sizes and
 * windows come from the operand shapes given, so that the count of a shard
 * follows from its local shapes. XLA gives -1 for a custom-call, which it does
 * not know; here that has no FLOPs and the bytes of anything else.
 */
#include "ir/analysis/flops.h"

#include <math.h>

#include "base/integers.h"
#include "ir/dataflow.h"

/* Beyond this many steps of counting, every position of a window counts as valid. */
#define MAX_POSITIONS 4000000

/* Bytes of one entry in the index table of a tuple. */
#define POINTER_BYTES 8.0

/* Returns the number of elements; for a tuple, of its first array. */
static double elements(const IrShape *shape) {
    double product = 1;
    while (shape->type == DTYPE_TUPLE) {
        if (shape->rank == 0) return 0;
        shape = &shape->elements[0];
    }
    for (int32_t d = 0; d < shape->rank; d++) product *= (double)shape->dimensions[d];
    return product;
}

static double elements_of_all(const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) return dtype_bits(shape->type) > 0 ? elements(shape) : 0;
    double sum = 0;
    for (int32_t k = 0; k < shape->rank; k++) sum += elements_of_all(&shape->elements[k]);
    return sum;
}

static double written_bytes(const IrShape *shape) {
    return (double)ir_shape_bytes(shape);
}

static double read_bytes(const IrShape *shape) {
    return shape->type == DTYPE_TUPLE ? POINTER_BYTES * shape->rank : (double)ir_shape_bytes(shape);
}

/* ---- FLOPs and transcendentals: the column `flops` of ir/opcodes.def, bytes stay 0 ---- */

/* An instruction with given shapes, and the work of all computations; NULL: not known. */
typedef struct Counted {
    const IrComputationWork *computations;
    const IrInstruction *instruction;
    const IrShape *operands, *result;
} Counted;

typedef IrWork FlopsFunction(const Counted *of);

/* Returns the work of the k-th computation that the instruction calls, `times` times. */
static IrWork called_times(const Counted *of, int32_t k, double times) {
    if (!of->computations || k >= of->instruction->called_count) return (IrWork){0};
    const IrWork *work = &of->computations[of->instruction->called[k]].work;
    return (IrWork){.flops = times * work->flops, .transcendentals = times * work->transcendentals};
}

static IrWork sum_of(IrWork a, IrWork b) {
    return (IrWork){.flops = a.flops + b.flops, .transcendentals = a.transcendentals + b.transcendentals};
}

static IrWork flops_none(const Counted *of) {
    (void)of;
    return (IrWork){0};
}

static IrWork flops_uncounted(const Counted *of) {
    return flops_none(of);
}

static IrWork flops_each(const Counted *of) {
    return (IrWork){.flops = elements(of->result)};
}

static IrWork flops_transcendental(const Counted *of) {
    return (IrWork){.transcendentals = elements(of->result)};
}

static IrWork flops_dot(const Counted *of) {
    const IrDot *dot = of->instruction->attributes->dot;
    double contracted = 1;
    for (int32_t k = 0; k < dot->contracting_count; k++)
        contracted *= (double)of->operands[0].dimensions[dot->lhs_contracting[k]];
    return (IrWork){.flops = 2 * elements(of->result) * contracted};
}

/* Counts the outputs o < output whose place `first_place + o * stride` is inside [0, span)
 * and a multiple of the dilation: of those inside, one in every
 * dilation / gcd(stride, dilation), or none. */
static int64_t valid_outputs(int64_t first_place, int64_t stride, int64_t dilation, int64_t span,
                             int64_t output) {
    if (first_place >= span) return 0;
    int64_t first = first_place < 0 ? (-first_place + stride - 1) / stride : 0;
    int64_t end = (span - 1 - first_place) / stride + 1;
    int64_t period = dilation / common_divisor(stride, dilation);
    if (end > output) end = output;
    for (int64_t o = first; o < end && o < first + period; o++)
        if ((first_place + o * stride) % dilation == 0) return (end - 1 - o) / period + 1;
    return 0;
}

/* Counts the pairs (output o, kernel place k) of one spatial dimension whose input place
 * o * stride + k * window_dilation - padding_low is inside the dilated input and
 * on an element of it. */
static double valid_positions(const IrWindowDimension *window, int64_t input, int64_t kernel,
                              int64_t output) {
    int64_t span = input > 0 ? (input - 1) * window->base_dilation + 1 : 0, valid = 0;
    if (window->stride <= 0 || window->base_dilation <= 0) return 0;
    if ((double)kernel * (double)output > MAX_POSITIONS) return (double)kernel * (double)output;
    for (int64_t k = 0; k < kernel; k++)
        valid += valid_outputs(k * window->window_dilation - window->padding_low, window->stride,
                               window->base_dilation, span, output);
    return (double)valid;
}

static IrWork flops_convolution(const Counted *of) {
    const IrAttributes *attributes = of->instruction->attributes;
    const IrConvolution *convolution = attributes->convolution;
    const IrShape *lhs = &of->operands[0], *rhs = &of->operands[1], *result = of->result;
    double feature_groups =
        (double)(convolution->feature_group_count > 1 ? convolution->feature_group_count : 1);
    double batch_groups = (double)(convolution->batch_group_count > 1 ? convolution->batch_group_count : 1);
    double product = 2 * (double)lhs->dimensions[convolution->input_feature] / feature_groups *
                     (double)result->dimensions[convolution->output_feature] *
                     (double)lhs->dimensions[convolution->input_batch] / batch_groups;
    for (int32_t d = 0; d < convolution->spatial_count && d < attributes->window_count; d++)
        product *= valid_positions(&attributes->window[d], lhs->dimensions[convolution->input_spatial[d]],
                                   rhs->dimensions[convolution->kernel_spatial[d]],
                                   result->dimensions[convolution->output_spatial[d]]);
    return (IrWork){.flops = product};
}

static double window_elements(const IrAttributes *attributes) {
    double product = 1;
    for (int32_t d = 0; d < attributes->window_count; d++) product *= (double)attributes->window[d].size;
    return product;
}

/* Returns the dimension of a reduce-window that gives every place of a row the sum of the whole row: the
 * only one with a window and the only one padded, by one less than its size on both sides. -1: none. */
static int32_t whole_row_dimension(const IrAttributes *attributes, const IrShape *result) {
    int32_t found = -1, reduced = 0, padded = 0;
    for (int32_t d = 0; d < attributes->window_count; d++) {
        const IrWindowDimension *window = &attributes->window[d];
        int64_t low = window->padding_low, high = window->padding_high;
        reduced += window->size != 1;
        padded += low != 0 || high != 0;
        if (low > 0 && low == high && window->size % 2 == 1 && window->size / 2 == low &&
            low == result->dimensions[d] - 1)
            found = d;
    }
    return reduced == 1 && padded == 1 ? found : -1;
}

static IrWork flops_reduce(const Counted *of) {
    return called_times(of, 0, fmax(elements(&of->operands[0]) - elements(of->result), 0));
}

static IrWork flops_reduce_window(const Counted *of) {
    const IrAttributes *attributes = of->instruction->attributes;
    const IrShape *result = of->result;
    int32_t row = result->type == DTYPE_TUPLE ? -1 : whole_row_dimension(attributes, result);
    if (row < 0) return called_times(of, 0, elements(result) * (window_elements(attributes) - 1));
    double places = (double)result->dimensions[row];
    return called_times(of, 0, elements(result) / places + places - 1);
}

static IrWork flops_select_and_scatter(const Counted *of) {
    double sources = elements(&of->operands[1]);
    double selections = sources * (window_elements(of->instruction->attributes) - 1);
    return sum_of(called_times(of, 0, selections), called_times(of, 1, sources));
}

static IrWork flops_scatter(const Counted *of) {
    return called_times(of, 0, elements(&of->operands[of->instruction->operand_count / 2 + 1]));
}

static IrWork flops_map(const Counted *of) {
    return called_times(of, 0, elements(of->result));
}

static IrWork flops_sort(const Counted *of) {
    double count = elements(&of->operands[0]);
    return (IrWork){.flops = count > 1 ? count * ceil(log2(count)) : 0};
}

static IrWork flops_fft(const Counted *of) {
    const IrOptions *options = of->instruction->attributes->options;
    double logarithms = 1;
    for (int32_t k = 0; options && k < options->fft_rank; k++)
        logarithms *= options->fft_length[k] > 0 ? floor(log2((double)options->fft_length[k])) : 0;
    return (IrWork){.flops = 8 * elements(&of->operands[0]) * logarithms};
}

/* Returns the size of the last dimension, the n of a matrix n x n. */
static double last_dimension(const IrShape *shape) {
    return shape->type != DTYPE_TUPLE && shape->rank > 0 ? (double)shape->dimensions[shape->rank - 1] : 1;
}

static IrWork flops_cholesky(const Counted *of) {
    const IrShape *matrix = &of->operands[0];
    return (IrWork){.flops = floor(elements(matrix) * last_dimension(matrix) / 3)};
}

static IrWork flops_triangular_solve(const Counted *of) {
    return (IrWork){.flops = 2 * elements(&of->operands[1]) * last_dimension(&of->operands[0])};
}

static IrWork flops_all_reduce(const Counted *of) {
    return (IrWork){.flops = elements_of_all(of->result)};
}

static IrWork flops_random(const Counted *of) {
    return (IrWork){.transcendentals = elements_of_all(of->result)};
}

static IrWork flops_loop(const Counted *of) {
    return sum_of(called_times(of, 0, 1), called_times(of, 1, 1));
}

static IrWork flops_called(const Counted *of) {
    return called_times(of, 0, 1);
}

static IrWork flops_branches(const Counted *of) {
    IrWork most = {0};
    for (int32_t k = 0; k < of->instruction->called_count; k++) {
        IrWork branch = called_times(of, k, 1);
        most.flops = fmax(most.flops, branch.flops);
        most.transcendentals = fmax(most.transcendentals, branch.transcendentals);
    }
    return most;
}

static FlopsFunction *const flops_of[IR_OPCODE_COUNT + 1] = {
#define OPCODE(name, text, arity, rule, linearity, cost, flops, ...) [IR_##name] = flops_##flops,
#include "ir/opcodes.def"
#undef OPCODE
    [IR_UNKNOWN] = flops_uncounted,
};

static IrWork arithmetic(const IrComputationWork *computations, const IrInstruction *instruction,
                         const IrShape *operands, const IrShape *result) {
    const Counted counted = {computations, instruction, operands, result};
    return flops_of[instruction->opcode](&counted);
}

double ir_flops(const IrModule *canonical, const IrInstruction *instruction, const IrShape *operands,
                const IrShape *result) {
    IrWork work = arithmetic(canonical->called_work, instruction, operands, result);
    return work.flops + work.transcendentals;
}

double ir_instruction_flops(const IrModule *canonical, int32_t i, Arena *scratch) {
    const IrInstruction *instruction = &canonical->instructions[i];
    ArenaMark mark = arena_mark(scratch);
    IrShape *operands = ARENA_ARRAY(scratch, IrShape, instruction->operand_count);
    double flops = 0;
    for (int32_t k = 0; operands && k < instruction->operand_count; k++)
        operands[k] = canonical->instructions[instruction->operands[k]].shape;
    if (operands) flops = ir_flops(canonical, instruction, operands, &instruction->shape);
    arena_release(scratch, mark);
    return flops;
}

/* ---- bytes ---- */

/* Returns whether a transpose moves no element, by the layouts: the k-th minor dimension of the result
 * corresponds to the k-th minor dimension of the operand. */
static bool transpose_is_bitcast(const IrInstruction *transpose, const IrShape *operand,
                                 const IrShape *result) {
    for (int32_t k = 0; k < result->rank; k++) {
        int64_t from = operand->minor_to_major ? operand->minor_to_major[k] : result->rank - 1 - k;
        int64_t to = result->minor_to_major ? result->minor_to_major[k] : result->rank - 1 - k;
        if (transpose->attributes->dimensions[to] != from) return false;
    }
    return true;
}

static double scatter_bytes(const IrInstruction *scatter, const IrShape *operands) {
    int32_t arrays = scatter->operand_count / 2;
    double bytes = read_bytes(&operands[arrays]);
    for (int32_t k = arrays + 1; k < scatter->operand_count; k++) bytes += 3 * read_bytes(&operands[k]);
    return bytes;
}

/* Returns the bytes of the computations that implement an operator; -1 for other operators. */
static double called_bytes(const IrComputationWork *computations, const IrInstruction *instruction) {
    const int32_t *called = instruction->called;
    double bytes = 0;
    switch (instruction->opcode) {
    case IR_WHILE:
    case IR_CALL:
    case IR_ASYNC_START:
        for (int32_t k = 0; computations && k < instruction->called_count; k++)
            bytes += computations[called[k]].work.bytes;
        return bytes;
    case IR_CONDITIONAL:
        for (int32_t k = 0; computations && k < instruction->called_count; k++)
            bytes = fmax(bytes, computations[called[k]].work.bytes);
        return bytes;
    case IR_FUSION:
        return computations && instruction->called_count > 0 ? computations[called[0]].fused_bytes : 0;
    default: return -1;
    }
}

static double bytes_of(const IrComputationWork *computations, const IrInstruction *instruction,
                       const IrShape *operands, const IrShape *result) {
    double called = called_bytes(computations, instruction), bytes = written_bytes(result);
    int32_t count = instruction->operand_count;
    if (called >= 0) return called;
    switch (instruction->opcode) {
    case IR_PARAMETER:
    case IR_CONSTANT:
    case IR_GET_TUPLE_ELEMENT:
    case IR_BITCAST:
    case IR_AFTER_ALL:
    case IR_ADD_DEPENDENCY:
    case IR_DOMAIN: return 0;
    case IR_TUPLE: return read_bytes(result);
    case IR_SLICE: return 2 * bytes;
    case IR_GATHER: return 2 * bytes + read_bytes(&operands[1]);
    /* XLA reads one start index of these two. */
    case IR_DYNAMIC_SLICE: return 2 * bytes + (count > 1 ? read_bytes(&operands[1]) : 0);
    case IR_DYNAMIC_UPDATE_SLICE:
        return 2 * read_bytes(&operands[1]) + (count > 2 ? read_bytes(&operands[2]) : 0);
    case IR_SCATTER: return scatter_bytes(instruction, operands);
    case IR_CHOLESKY: return read_bytes(&operands[0]);
    case IR_TRIANGULAR_SOLVE: return bytes + read_bytes(&operands[0]) / 2 + read_bytes(&operands[1]);
    case IR_OUTFEED: return written_bytes(&operands[0]);
    case IR_TRANSPOSE:
        if (transpose_is_bitcast(instruction, &operands[0], result)) return 0;
        break;
    default: break;
    }
    for (int32_t k = 0; k < count; k++) bytes += read_bytes(&operands[k]);
    return bytes;
}

IrWork ir_work(const IrComputationWork *computations, const IrInstruction *instruction,
               const IrShape *operands, const IrShape *result) {
    IrWork work = arithmetic(computations, instruction, operands, result);
    work.bytes = bytes_of(computations, instruction, operands, result);
    return work;
}
