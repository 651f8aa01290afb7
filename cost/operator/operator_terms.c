/* Maps steps to classes and sizes. A fusion is executed by the tile interpreter:
 *
 *   fusion(n) + further inputs, each by its layout + further outputs
 *             + operators, each by its kind; one cheap operator is part of fusion(n)
 *
 * Every other step is one class; a scatter also moves its operand. Element types: moves count bytes
 * (an element of the curves has four), 64-bit arithmetic counts twice, narrow floating types have
 * classes of their own or are rounded after each operator, which costs "cheap_bf16" - "cheap".
 *
 * A step of a row group takes the time of as many arrays as there are blocks, each of a block's size. The
 * difference is added for values of global arrays that only memory holds.
 */
#include "cost/operator/operator_terms.h"

#include <math.h>

typedef struct Terms {
    const OperatorCurves *curves;
    const Program *program;
    double seconds;
    bool is_known;
    double blocks, share; /* of a kernel by blocks: their number, and the share of the keys that they read */
} Terms;

static bool is_product(OperatorClass class) {
    switch (class) {
    case OPERATOR_CLASS_DOT_NN:
    case OPERATOR_CLASS_DOT_NT:
    case OPERATOR_CLASS_DOT_TN:
    case OPERATOR_CLASS_DOT_TT:
    case OPERATOR_CLASS_DOT_BF16:
    case OPERATOR_CLASS_DOT_BF16_NT:
    case OPERATOR_CLASS_DOT_BF16_TN:
    case OPERATOR_CLASS_DOT_BF16_TT: return true;
    default: return false;
    }
}

static void add_term(Terms *self, double times, OperatorClass class, double a, double b, double c, double d) {
    double blocks = a > self->blocks && !is_product(class) ? self->blocks : 1;
    const double sizes[OPERATOR_MOST_DIMENSIONS] = {a / blocks, b, c, d};
    self->is_known &= self->curves->of[class].seconds != NULL;
    self->seconds += times * self->share * blocks * operator_curve_seconds(self->curves, class, sizes);
}

static bool is_narrow(Dtype type) {
    return dtype_is_floating(type) && dtype_bits(type) < 32;
}

/* Returns the number of words of four bytes in an element. */
static double words(Dtype type) {
    return (double)dtype_bytes(type) / 4;
}

static double elements_of(const IrShape *shape) {
    return (double)ir_shape_elements(shape);
}

static const IrShape *operand_shape(const Terms *self, const ProgramInstruction *of, int32_t k) {
    return &self->program->values[of->operands[k]].shape;
}

static const IrShape *result_shape(const Terms *self, const ProgramInstruction *of) {
    return &self->program->values[of->first_result].shape;
}

/* The class of every opcode inside a fusion. */
static const OperatorClass class_of_opcode[IR_OPCODE_COUNT + 1] = {
#define OPCODE(name, text, arity, rule, linearity, cost, ...) [IR_##name] = OPERATOR_CLASS_##cost,
#include "ir/opcodes.def"
#undef OPCODE
    [IR_UNKNOWN] = OPERATOR_CLASS_CHEAP,
};

/* Adds one operator on every element of an index space of n. */
static void add_operator(Terms *self, IrOpcode opcode, Dtype type, double n) {
    double wide = dtype_bytes(type) == 8 ? 2 : 1;
    add_term(self, wide, class_of_opcode[opcode], n, 0, 0, 0);
    if (!is_narrow(type) || opcode == IR_CONVERT) return;
    add_term(self, 1, OPERATOR_CLASS_CHEAP_BF16, n, 0, 0, 0);
    add_term(self, -1, OPERATOR_CLASS_CHEAP, n, 0, 0, 0);
}

/* Returns how an input lies: READ, READ_ROWS (`*row` long, `*rows` of them one step apart; one value again
 * and again is a row of one), READ_STRIDED, or REPEATED: a small one that is the same again and again.
 * Neighbouring dimensions that step as one are one. */
static OperatorClass access_of(const ProgramFusion *fusion, const ProgramFusionInput *input, double *row,
                               double *rows) {
    double n = (double)fusion->elements, runs[2] = {1, 1}; /* of the two innermost steps */
    int64_t step = -1, outer = 0, extent = 1;
    int32_t changes = 0;
    for (int32_t d = fusion->rank - 1; d >= 0; d--) {
        int64_t size = fusion->dimensions[d], stride = input->strides[d];
        if (size == 1) continue;
        if (step < 0) step = outer = stride;
        if (stride != outer * extent) {
            changes++;
            outer = stride;
            extent = 1;
        }
        if (changes < 2) runs[changes] *= (double)size;
        extent *= size;
    }
    bool is_dense = changes == 0;
    double run = runs[0];
    *row = step == 0 ? 1 : run;
    *rows = step == 0 ? run : runs[1];
    if (step < 0 || (is_dense && step == 0)) return OPERATOR_CLASS_REPEATED;
    if (is_dense && step == 1) return OPERATOR_CLASS_READ;
    if (step > 1) return OPERATOR_CLASS_READ_STRIDED;
    /* An input that repeats along the outer dimensions and is small stays in the cache. */
    double period = 1;
    bool is_outer = true, repeats = false;
    for (int32_t d = 0; d < fusion->rank; d++) {
        if (fusion->dimensions[d] == 1) continue;
        if (is_outer && input->strides[d] == 0) {
            repeats = true;
            continue;
        }
        is_outer = false;
        period *= (double)fusion->dimensions[d];
    }
    if (repeats && step == 1 && period == run && (period <= 1024 || n <= 1024))
        return OPERATOR_CLASS_REPEATED;
    if (repeats && step == 1 && period == run) return OPERATOR_CLASS_READ;
    return OPERATOR_CLASS_READ_ROWS;
}

static void add_fusion(Terms *self, const ProgramFusion *fusion) {
    double n = (double)fusion->elements, row, rows;
    bool has_packed = false;
    add_term(self, 1, OPERATOR_CLASS_FUSION, n, 0, 0, 0);
    add_term(self, -1, OPERATOR_CLASS_CHEAP, n, 0, 0, 0);
    for (int32_t k = 0; k < fusion->input_count; k++) {
        OperatorClass access = access_of(fusion, &fusion->inputs[k], &row, &rows);
        Dtype type = self->program->values[fusion->inputs[k].value].shape.type;
        if (access == OPERATOR_CLASS_READ && !has_packed) has_packed = true;
        else add_term(self, access == OPERATOR_CLASS_READ ? words(type) : 1, access, n, row, rows, 0);
        if (is_narrow(type)) add_term(self, 1, OPERATOR_CLASS_CONVERT, n, 0, 0, 0);
    }
    for (int32_t k = 1; k < fusion->output_count; k++)
        add_term(self, words(self->program->values[fusion->output_values[k]].shape.type),
                 OPERATOR_CLASS_WRITE, n, 0, 0, 0);
    for (int32_t k = 0; k < fusion->op_count; k++) {
        const ProgramFusionOp *op = &fusion->ops[k];
        if (op->operand_count > 0) add_operator(self, op->opcode, op->type, n);
        else
            add_term(self, 1, op->opcode == IR_CONSTANT ? OPERATOR_CLASS_CONSTANT : OPERATOR_CLASS_CHEAP, n,
                     0, 0, 0);
    }
}

/* Returns whether the contracted dimensions are the innermost ones. */
static bool is_contracted_inside(const IrShape *operand, const int64_t *contracting, int32_t count) {
    int32_t d = operand->rank - 1;
    while (d > 0 && operand->dimensions[d] == 1) d--;
    for (int32_t k = 0; k < count; k++)
        if (contracting[k] == d) return true;
    return false;
}

static void add_dot(Terms *self, const ProgramInstruction *of) {
    const IrDot *dot = of->attributes->dot;
    const IrShape *left = operand_shape(self, of, 0), *right = operand_shape(self, of, 1);
    double products = 1, depth = 1;
    for (int32_t k = 0; k < dot->batch_count; k++) products *= (double)left->dimensions[dot->lhs_batch[k]];
    for (int32_t k = 0; k < dot->contracting_count; k++)
        depth *= (double)left->dimensions[dot->lhs_contracting[k]];
    double shared = products * depth > 0 ? products * depth : 1;
    double rows = elements_of(left) / shared, columns = elements_of(right) / shared;
    bool left_lies = is_contracted_inside(left, dot->lhs_contracting, dot->contracting_count);
    bool right_lies = !is_contracted_inside(right, dot->rhs_contracting, dot->contracting_count);
    OperatorClass class = left_lies ? (right_lies ? OPERATOR_CLASS_DOT_NN : OPERATOR_CLASS_DOT_NT)
                                    : (right_lies ? OPERATOR_CLASS_DOT_TN : OPERATOR_CLASS_DOT_TT);
    if (is_narrow(left->type)) {
        /* Files without separate classes of narrow types have only the first. */
        OperatorClass narrow = class == OPERATOR_CLASS_DOT_NT   ? OPERATOR_CLASS_DOT_BF16_NT
                               : class == OPERATOR_CLASS_DOT_TN ? OPERATOR_CLASS_DOT_BF16_TN
                               : class == OPERATOR_CLASS_DOT_TT ? OPERATOR_CLASS_DOT_BF16_TT
                                                                : OPERATOR_CLASS_DOT_BF16;
        class = self->curves->of[narrow].seconds ? narrow : OPERATOR_CLASS_DOT_BF16;
    }
    add_term(self, left->type == DTYPE_F64 ? 2 : 1, class, products, rows, columns, depth);
    if (of->operand_count > 2) add_term(self, 1, OPERATOR_CLASS_READ, products * rows * columns, 0, 0, 0);
}

/* Returns the mean number of elements of a window on the operand, over its places: beside the edges and
 * between the elements of a dilated operand there is nothing. */
static double cells_read(const IrWindowDimension *window, int64_t operand, int64_t results) {
    int64_t all = 0, dilation = window->base_dilation > 0 ? window->base_dilation : 1;
    int64_t end = (operand - 1) * dilation, places = results < 64 ? results : 64, cells = window->size;
    if (cells > 4096 || places < 1) return (double)cells / (double)dilation;
    for (int64_t place = 0; place < places; place++)
        for (int64_t k = 0; k < cells; k++) {
            /* Samples the positions at both ends if there are many. */
            int64_t o = place < places / 2 ? place : results - places + place;
            int64_t at = o * window->stride + k * window->window_dilation - window->padding_low;
            all += at >= 0 && at <= end && at % dilation == 0;
        }
    return (double)all / (double)places;
}

/* Adds a convolution. A gradient of weights is one whose window is the output and whose batch is the
 * features. */
static void add_convolution(Terms *self, const ProgramInstruction *of) {
    const IrConvolution *convolution = of->attributes->convolution;
    const IrShape *input = operand_shape(self, of, 0), *kernel = operand_shape(self, of, 1),
                  *result = result_shape(self, of);
    double out = (double)kernel->dimensions[convolution->kernel_output_feature];
    double in = (double)kernel->dimensions[convolution->kernel_input_feature];
    double cells = 1, positions = elements_of(result) / (out > 0 ? out : 1);
    bool is_of_weights = convolution->input_batch == input->rank - 1;
    for (int32_t k = 0; k < of->attributes->window_count && k < convolution->spatial_count; k++) {
        const IrWindowDimension *window = &of->attributes->window[k];
        double dilation = (double)(window->base_dilation > 0 ? window->base_dilation : 1);
        /* Padding is multiplied like other elements. */
        cells *= !is_of_weights ? (double)window->size / dilation
                                : cells_read(window, input->dimensions[convolution->input_spatial[k]],
                                             result->dimensions[convolution->output_spatial[k]]);
    }
    if (!is_of_weights) {
        add_term(self, 1, OPERATOR_CLASS_CONVOLUTION, positions, cells, in, out);
        return;
    }
    double features = (double)result->dimensions[convolution->output_batch];
    add_term(self, 1, OPERATOR_CLASS_CONVOLUTION_WEIGHTS, in * cells,
             positions / (features > 0 ? features : 1), features, out);
}

static void add_reduce(Terms *self, const ProgramInstruction *of) {
    const IrShape *operand = operand_shape(self, of, 0);
    double reduced = 1, side = 1, all = elements_of(operand);
    bool is_inner = true;
    for (int32_t d = operand->rank - 1; d >= 0; d--) {
        bool is_reduced = false;
        for (int32_t k = 0; k < of->attributes->dimension_count; k++)
            is_reduced |= of->attributes->dimensions[k] == d;
        if (is_reduced) reduced *= (double)operand->dimensions[d];
        if (is_reduced && operand->dimensions[d] > 1) is_inner = false;
        if (is_inner) side *= (double)operand->dimensions[d];
    }
    double results = reduced > 0 ? all / reduced : 0;
    const IrModule *module = self->program->module;
    bool adds = module && of->compute.called >= 0 &&
                module->instructions[module->computations[of->compute.called].root].opcode == IR_ADD;
    OperatorClass rows = adds ? OPERATOR_CLASS_REDUCE_ROWS : OPERATOR_CLASS_REDUCE_ROWS_MOST;
    if (side > 1) add_term(self, 1, OPERATOR_CLASS_REDUCE_COLUMNS, results / side, reduced, side, 0);
    else add_term(self, 1, rows, results, reduced, 0, 0);
}

/* Elements that are contiguous in both arrays: the innermost dimensions of equal sizes, and the
 * part inside the first dimension that differs. */
static double kept_together(const IrShape *a, const IrShape *b) {
    double run = 1;
    int32_t rank = a->rank < b->rank ? a->rank : b->rank;
    for (int32_t k = 1; k <= rank; k++) {
        int64_t x = a->dimensions[a->rank - k], y = b->dimensions[b->rank - k];
        run *= (double)(x < y ? x : y);
        if (x != y) break;
    }
    return run;
}

/* Elements that stay together, as words: there are as many runs of a narrow type. */
static double words_together(double run, Dtype type) {
    double together = run * words(type);
    return together > 1 ? together : 1;
}

static void add_move(Terms *self, const ProgramInstruction *of) {
    const IrShape *result = result_shape(self, of);
    double n = elements_of(result) * words(result->type), run = 1;
    const int64_t *dimensions = of->attributes->dimensions;
    if (of->opcode == IR_TRANSPOSE) {
        for (int32_t d = result->rank - 1; d >= 0 && dimensions[d] == d; d--)
            run *= (double)result->dimensions[d];
        add_term(self, 1, OPERATOR_CLASS_TRANSPOSE, n, words_together(run, result->type), 0, 0);
        return;
    }
    if (of->opcode == IR_BROADCAST) {
        /* Its innermost dimensions are an operand's, or one value. */
        int32_t last = result->rank - 1, count = of->attributes->dimension_count;
        bool is_filled = count == 0 || dimensions[count - 1] != last;
        for (int32_t k = 0; k < count && !is_filled && dimensions[count - 1 - k] == last - k; k++)
            run *= (double)result->dimensions[last - k];
        for (int32_t d = last; is_filled && d >= 0 && (count == 0 || dimensions[count - 1] != d); d--)
            run *= (double)result->dimensions[d];
        if (is_filled) {
            add_term(self, 1, OPERATOR_CLASS_FILL, n, words_together(run, result->type), 0, 0);
            return;
        }
    } else if (of->opcode == IR_DYNAMIC_UPDATE_SLICE) {
        const IrShape *update = operand_shape(self, of, 1);
        int64_t operand_at = self->program->values[of->operands[0]].offset;
        run = kept_together(update, result);
        if (operand_at >= 0 && operand_at == self->program->values[of->first_result].offset)
            n = elements_of(update) * words(update->type);
    } else if (of->opcode == IR_CONSTANT || of->opcode == IR_IOTA || of->operand_count == 0) {
        run = n;
    } else if (of->opcode == IR_REVERSE) {
        int32_t first = of->attributes->dimension_count > 0 ? (int32_t)dimensions[0] : -1;
        for (int32_t k = 1; k < of->attributes->dimension_count; k++)
            if (dimensions[k] > first) first = (int32_t)dimensions[k];
        for (int32_t d = result->rank - 1; d > first; d--) run *= (double)result->dimensions[d];
    } else {
        run = kept_together(operand_shape(self, of, 0), result);
    }
    add_term(self, 1, OPERATOR_CLASS_MOVE, n, words_together(run, result->type), 0, 0);
}

static void add_gather(Terms *self, const ProgramInstruction *of) {
    bool scatters = of->opcode == IR_SCATTER;
    const IrGather *gather = of->attributes->gather;
    const IrShape *windows =
        scatters ? operand_shape(self, of, of->operand_count - 1) : result_shape(self, of);
    const IrShape *indices = operand_shape(self, of, scatters ? of->operand_count / 2 : 1);
    double count = elements_of(indices), vector = 1;
    if (gather->index_vector_dimension < indices->rank)
        vector = (double)indices->dimensions[gather->index_vector_dimension];
    count /= vector > 0 ? vector : 1;
    double each = count > 0 ? elements_of(windows) / count : 0;
    add_term(self, 1, scatters ? OPERATOR_CLASS_SCATTER : OPERATOR_CLASS_GATHER, count, each, 0, 0);
    double operand = elements_of(operand_shape(self, of, 0));
    if (scatters) add_term(self, 1, OPERATOR_CLASS_MOVE, operand, operand, 0, 0);
}

static void add_window(Terms *self, const ProgramInstruction *of) {
    bool selects = of->opcode == IR_SELECT_AND_SCATTER;
    const IrShape *operand = operand_shape(self, of, 0);
    const IrShape *placed = selects ? operand_shape(self, of, 1) : result_shape(self, of);
    double cells = 1, side = 1; /* adjacent elements share their cells */
    for (int32_t k = 0; k < of->attributes->window_count && k < operand->rank && k < placed->rank; k++) {
        cells *= cells_read(&of->attributes->window[k], operand->dimensions[k], placed->dimensions[k]);
        side = of->attributes->window[k].size > 1 ? 1 : side * (double)placed->dimensions[k];
    }
    add_term(self, 1, selects ? OPERATOR_CLASS_SELECT_SCATTER : OPERATOR_CLASS_WINDOW, elements_of(placed),
             cells, side, 0);
}

typedef void AddTerms(Terms *self, const ProgramInstruction *of);

static AddTerms *const kinds[IR_OPCODE_COUNT + 1] = {
    [IR_DOT] = add_dot,
    [IR_CONVOLUTION] = add_convolution,
    [IR_REDUCE] = add_reduce,
    [IR_TRANSPOSE] = add_move,
    [IR_BROADCAST] = add_move,
    [IR_SLICE] = add_move,
    [IR_PAD] = add_move,
    [IR_CONCATENATE] = add_move,
    [IR_REVERSE] = add_move,
    [IR_RESHAPE] = add_move,
    [IR_COPY] = add_move,
    [IR_CONSTANT] = add_move,
    [IR_IOTA] = add_move,
    [IR_DYNAMIC_SLICE] = add_move,
    [IR_DYNAMIC_UPDATE_SLICE] = add_move,
    [IR_GATHER] = add_gather,
    [IR_SCATTER] = add_gather,
    [IR_REDUCE_WINDOW] = add_window,
    [IR_SELECT_AND_SCATTER] = add_window,
};

/* Adds the terms of a step; false: no class describes it. */
static bool add_step(Terms *self, const ProgramStep *step) {
    if (step->fusion >= 0) {
        add_fusion(self, &self->program->execution.fusions[step->fusion]);
        return true;
    }
    const ProgramInstruction *instruction = &self->program->instructions[step->instruction];
    const IrShape *result = &self->program->values[instruction->first_result].shape;
    AddTerms *kind = instruction->attributes ? kinds[instruction->opcode] : NULL;
    if (kind) {
        kind(self, instruction);
    } else if (ir_is_elementwise(instruction->opcode) && instruction->operand_count > 0) {
        double n = elements_of(result);
        add_term(self, 1, OPERATOR_CLASS_FUSION, n, 0, 0, 0);
        add_term(self, -1, OPERATOR_CLASS_CHEAP, n, 0, 0, 0);
        if (instruction->operand_count > 1)
            add_term(self, instruction->operand_count - 1, OPERATOR_CLASS_READ, n, 0, 0, 0);
        add_operator(self, instruction->opcode, result->type, n);
    } else {
        return false;
    }
    return true;
}

/* Returns whether steps [first, end) read a value or make it. */
static bool is_used_by(const Program *program, int32_t first, int32_t end, int32_t storage) {
    for (int32_t s = first; s < end; s++) {
        const ProgramStep *step = &program->execution.steps[s];
        int32_t operands = program_step_operands(program, step);
        for (int32_t k = 0; k < operands + program_step_results(program, step); k++) {
            int32_t value = k < operands ? program_step_operand(program, step, k)
                                         : program_step_result(program, step, k - operands);
            if (program->values[value].storage == storage) return true;
        }
    }
    return false;
}

/* Adds a value of `n` elements of four bytes from or to memory, beyond the time for blocks in a cache. */
static void add_memory(Terms *self, OperatorClass class, double n) {
    Terms whole = {.curves = self->curves, .is_known = true, .blocks = 1, .share = 1};
    add_term(&whole, 1, class, n, 0, 0, 0);
    add_term(self, -1, class, n, 0, 0, 0);
    self->seconds += whole.seconds;
}

/* Operands that no earlier step of the row group uses, and results that others read too. */
static void add_outside(Terms *self, const ProgramRowGroup *rows, const ProgramStep *step) {
    const Program *program = self->program;
    int32_t own = (int32_t)(step - program->execution.steps);
    for (int32_t k = 0; k < program_step_operands(program, step); k++) {
        const ProgramValue *value = &program->values[program_step_operand(program, step, k)];
        if (!is_used_by(program, rows->first, own, value->storage))
            add_memory(self, OPERATOR_CLASS_READ, elements_of(&value->shape) * words(value->shape.type));
    }
    for (int32_t k = 0; k < program_step_results(program, step); k++) {
        const ProgramValue *value = &program->values[program_step_result(program, step, k)];
        if (value->kind != PROGRAM_VALUE_INTERNAL)
            add_memory(self, OPERATOR_CLASS_WRITE, elements_of(&value->shape) * words(value->shape.type));
    }
}

bool operator_terms_seconds(double *seconds, const OperatorCurves *curves, const Program *program,
                            const ProgramStep *step) {
    Terms self = {.curves = curves, .program = program, .is_known = true, .blocks = 1, .share = 1};
    const ProgramRowGroup *rows = program_row_group(program, step);
    if (rows) self.blocks = ceil((double)rows->rows / (double)rows->block);
    if (!add_step(&self, step)) return false;
    if (rows) add_outside(&self, rows, step);
    *seconds = self.seconds > 0 ? self.seconds : 0;
    return self.is_known;
}

bool operator_terms_in_blocks(double *seconds, const OperatorCurves *curves, const Program *region,
                              const ProgramStep *step, double blocks, double share) {
    Terms self = {.curves = curves, .program = region, .is_known = true, .blocks = blocks, .share = share};
    if (!add_step(&self, step)) return false;
    *seconds = self.seconds > 0 ? self.seconds : 0;
    return self.is_known;
}

double operator_terms_copy(const OperatorCurves *curves, const IrShape *shape) {
    double row = shape->rank > 0 ? (double)shape->dimensions[shape->rank - 1] : 1;
    return operator_curve_seconds(
        curves, OPERATOR_CLASS_TRANSPOSE,
        (const double[OPERATOR_MOST_DIMENSIONS]){elements_of(shape) * words(shape->type), row});
}
