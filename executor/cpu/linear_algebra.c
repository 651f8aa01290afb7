/* cholesky and triangular-solve on batches of matrices.
 *
 * Both work in double whatever the floating type, with plain column by column
 * elimination (Golub and Van Loan, Matrix Computations, sections 3.1 and 4.2).
 * cholesky reads one triangle of a symmetric matrix A and gives L with A = L L^T
 * (or U with A = U^T U), 0 in the other triangle; a matrix that is not positive
 * definite gives NaN everywhere. triangular-solve gives X with op(A) X = B, or
 * X op(A) = B, where A is read in one triangle only.
 */
#include <math.h>
#include <string.h>

#include "executor/cpu/cpu.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"

typedef struct MatrixKernel {
    int64_t batches, size; /* of the square matrices */
    int64_t rows, columns; /* triangular-solve: of B and X */
    Dtype type;
    const IrOptions *options;
} MatrixKernel;

static void load(double *out, const void *data, Dtype type, int64_t first, int64_t count) {
    Wide run[WIDE_RUN];
    const char *from = (const char *)data + first * dtype_bytes(type);
    for (int64_t at = 0; at < count; at += WIDE_RUN) {
        int64_t n = count - at < WIDE_RUN ? count - at : WIDE_RUN;
        wide_load(run, from + at * dtype_bytes(type), type, n, 1);
        for (int64_t i = 0; i < n; i++) out[at + i] = run[i].floating;
    }
}

static void store(void *data, Dtype type, int64_t first, const double *values, int64_t count) {
    Wide run[WIDE_RUN];
    char *to = (char *)data + first * dtype_bytes(type);
    for (int64_t at = 0; at < count; at += WIDE_RUN) {
        int64_t n = count - at < WIDE_RUN ? count - at : WIDE_RUN;
        for (int64_t i = 0; i < n; i++) run[i].floating = values[at + i];
        wide_store(to + at * dtype_bytes(type), type, run, WIDE_FLOATING, n, 1);
    }
}

static void transpose(double *a, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) {
            double other = a[i * n + j];
            a[i * n + j] = a[j * n + i];
            a[j * n + i] = other;
        }
}

/* The lower triangle of `a` [n, n] becomes L, in place, row by row. */
static void factorize(double *a, int64_t n) {
    bool positive = true;
    for (int64_t i = 0; i < n && positive; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int64_t k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
            if (i > j) a[i * n + j] = sum / a[j * n + j];
            else a[i * n + i] = sqrt(sum);
            if (i == j && !(sum > 0)) positive = false;
        }
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            if (!positive) a[i * n + j] = NAN;
            else if (j > i) a[i * n + j] = 0;
}

static void run_cholesky(const KernelCall *call) {
    const MatrixKernel *kernel = call->compiled;
    int64_t n = kernel->size;
    double *a = call->scratch;
    for (int64_t batch = 0; batch < kernel->batches; batch++) {
        load(a, call->operands[0], kernel->type, batch * n * n, n * n);
        if (!kernel->options->lower) transpose(a, n);
        factorize(a, n);
        if (!kernel->options->lower && n > 0) transpose(a, n);
        store(call->results[0], kernel->type, batch * n * n, a, n * n);
    }
}

/* Column c of X in op(A) x = b: `b` has stride `step` and becomes x. Row r of
 * op(A) is read with strides (row, column). */
static void substitute(const double *a, int64_t row, int64_t column, bool forward, bool unit, double *b,
                       int64_t step, int64_t n) {
    for (int64_t done = 0; done < n; done++) {
        int64_t r = forward ? done : n - 1 - done;
        double sum = b[r * step];
        for (int64_t k = 0; k < done; k++) {
            int64_t c = forward ? k : n - 1 - k;
            sum -= a[r * row + c * column] * b[c * step];
        }
        b[r * step] = unit ? sum : sum / a[r * row + r * column];
    }
}

/* X op(A) = B is op(A)^T X^T = B^T: the rows of X are the columns of that. */
static void run_triangular_solve(const KernelCall *call) {
    const MatrixKernel *kernel = call->compiled;
    const IrOptions *options = kernel->options;
    int64_t n = kernel->size, elements = kernel->rows * kernel->columns;
    double *a = call->scratch, *x = a + n * n;
    bool flips = options->is_transposed != !options->left_side; /* the system's matrix is A^T */
    int64_t systems = options->left_side ? kernel->columns : kernel->rows;
    for (int64_t batch = 0; batch < kernel->batches; batch++) {
        load(a, call->operands[0], kernel->type, batch * n * n, n * n);
        load(x, call->operands[1], kernel->type, batch * elements, elements);
        for (int64_t s = 0; s < systems; s++)
            substitute(a, flips ? 1 : n, flips ? n : 1, options->lower != flips, options->unit_diagonal,
                       options->left_side ? x + s : x + s * n, options->left_side ? kernel->columns : 1, n);
        store(call->results[0], kernel->type, batch * elements, x, elements);
    }
}

/* Batches and size of operand 0; refuses what is no batch of square matrices. */
static AmStatus prepare_square(MatrixKernel **result, KernelCall *call, Arena *arena, AmError *error) {
    MatrixKernel *kernel = ARENA_ARRAY(arena, MatrixKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    const IrShape *shape = call->operand_shapes[0];
    if (!dtype_is_floating(shape->type) || !wide_supports(shape->type))
        return kernel_call_refuse(call, "not on this type", error);
    if (shape->rank < 2 || shape->dimensions[shape->rank - 1] != shape->dimensions[shape->rank - 2])
        return kernel_call_refuse(call, "its matrices are not square", error);
    kernel->batches = strided_elements(shape->dimensions, shape->rank - 2);
    kernel->size = shape->dimensions[shape->rank - 1];
    kernel->type = shape->type;
    kernel->options = call->instruction->attributes->options;
    call->scratch_bytes = kernel->size * kernel->size * (int64_t)sizeof(double);
    call->compiled = kernel;
    *result = kernel;
    return AM_OK;
}

AmStatus cpu_prepare_cholesky(KernelCall *call, Arena *arena, AmError *error) {
    MatrixKernel *kernel;
    TRY(prepare_square(&kernel, call, arena, error));
    call->run = run_cholesky;
    return AM_OK;
}

AmStatus cpu_prepare_triangular_solve(KernelCall *call, Arena *arena, AmError *error) {
    MatrixKernel *kernel;
    TRY(prepare_square(&kernel, call, arena, error));
    const IrShape *a = call->operand_shapes[0], *b = call->operand_shapes[1];
    if (b->rank != a->rank || b->type != a->type || !ir_shape_equal(b, call->result_shapes[0]) ||
        strided_elements(b->dimensions, b->rank - 2) != kernel->batches)
        return kernel_call_refuse(call, "its operands do not fit together", error);
    kernel->rows = b->dimensions[b->rank - 2];
    kernel->columns = b->dimensions[b->rank - 1];
    if ((kernel->options->left_side ? kernel->rows : kernel->columns) != kernel->size)
        return kernel_call_refuse(call, "its operands do not fit together", error);
    call->scratch_bytes += kernel->rows * kernel->columns * (int64_t)sizeof(double);
    call->run = run_triangular_solve;
    return AM_OK;
}
