/* cholesky and triangular-solve on batches of matrices.
 *
 * Both work in double or complex double for every type, by plain elimination, column by column (Golub and Van
 * Loan, Matrix Computations, sections 3.1 and 4.2).
 *
 * cholesky reads one triangle of a symmetric or Hermitian matrix A. It gives L with A = L L^H, or U with
 * A = U^H U, and 0 in the other triangle. A matrix that is not positive definite gives NaN everywhere.
 * triangular-solve reads one triangle of A. It gives X with op(A) X = B, or with X op(A) = B.
 */
#include <complex.h>
#include <math.h>
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"

typedef struct MatrixKernel {
    int64_t batches, size; /* of the square matrices */
    int64_t rows, columns; /* triangular-solve: of B and X */
    Dtype type;
    const IrOptions *options;
} MatrixKernel;

/* Returns the `parts` of a number, by which the code treats real and complex numbers alike. */
static int32_t parts_of(Dtype type) {
    return dtype_is_complex(type) ? 2 : 1;
}

static void load_numbers(double *out, const void *data, Dtype type, int64_t first, int64_t count) {
    Scalar64 run[SCALAR64_RUN];
    Dtype part = dtype_real_part(type);
    const char *from = (const char *)data + first * dtype_bytes(type);
    count *= parts_of(type);
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        scalar64_load(run, from + at * dtype_bytes(part), part, n, 1);
        for (int64_t i = 0; i < n; i++) out[at + i] = run[i].floating;
    }
}

static void store_numbers(void *data, Dtype type, int64_t first, const double *values, int64_t count) {
    Scalar64 run[SCALAR64_RUN];
    Dtype part = dtype_real_part(type);
    char *to = (char *)data + first * dtype_bytes(type);
    count *= parts_of(type);
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        for (int64_t i = 0; i < n; i++) run[i].floating = values[at + i];
        scalar64_store(to + at * dtype_bytes(part), part, run, SCALAR64_FLOATING, n, 1);
    }
}

/* A system to substitute in: row r of op(A) is read with strides (row, column). */
typedef struct System {
    int64_t row, column, n;
    bool forward, unit, conjugate;
} System;

/* The functions for one kind of number, `REAL` the real part of an expression.
 * transpose: also conjugates. factorize: the lower triangle of `a` [n, n] becomes
 * L, in place, row by row. substitute: column c of X in op(A) x = b; `b` has stride
 * `step` and becomes x. */
#define DEFINE_FUNCTIONS(NAME, NUMBER, CONJUGATE, REAL)                                             \
    static void transpose_##NAME(NUMBER *a, int64_t n) {                                            \
        for (int64_t i = 0; i < n; i++)                                                             \
            for (int64_t j = 0; j <= i; j++) {                                                      \
                NUMBER other = CONJUGATE(a[i * n + j]);                                             \
                a[i * n + j] = CONJUGATE(a[j * n + i]);                                             \
                a[j * n + i] = other;                                                               \
            }                                                                                       \
    }                                                                                               \
    static void factorize_##NAME(NUMBER *a, int64_t n) {                                            \
        bool positive = true;                                                                       \
        for (int64_t i = 0; i < n && positive; i++) {                                               \
            for (int64_t j = 0; j <= i; j++) {                                                      \
                NUMBER sum = a[i * n + j];                                                          \
                for (int64_t k = 0; k < j; k++) sum -= a[i * n + k] * CONJUGATE(a[j * n + k]);      \
                if (i > j) a[i * n + j] = sum / a[j * n + j];                                       \
                else a[i * n + i] = sqrt(REAL(sum));                                                \
                if (i == j && !(REAL(sum) > 0)) positive = false;                                   \
            }                                                                                       \
        }                                                                                           \
        for (int64_t i = 0; i < n; i++)                                                             \
            for (int64_t j = 0; j < n; j++)                                                         \
                if (!positive) a[i * n + j] = NAN;                                                  \
                else if (j > i) a[i * n + j] = 0;                                                   \
    }                                                                                               \
    static void substitute_##NAME(const NUMBER *a, const System *system, NUMBER *b, int64_t step) { \
        int64_t n = system->n;                                                                      \
        for (int64_t done = 0; done < n; done++) {                                                  \
            int64_t r = system->forward ? done : n - 1 - done;                                      \
            NUMBER sum = b[r * step];                                                               \
            for (int64_t k = 0; k < done; k++) {                                                    \
                int64_t c = system->forward ? k : n - 1 - k;                                        \
                NUMBER factor = a[r * system->row + c * system->column];                            \
                sum -= (system->conjugate ? CONJUGATE(factor) : factor) * b[c * step];              \
            }                                                                                       \
            NUMBER diagonal = a[r * system->row + r * system->column];                              \
            if (system->conjugate) diagonal = CONJUGATE(diagonal);                                  \
            b[r * step] = system->unit ? sum : sum / diagonal;                                      \
        }                                                                                           \
    }
#define ITSELF(x) (x)
DEFINE_FUNCTIONS(real, double, ITSELF, ITSELF)
DEFINE_FUNCTIONS(complex, double complex, conj, creal)

static void run_cholesky(const KernelCall *call) {
    const MatrixKernel *kernel = call->compiled;
    int64_t n = kernel->size;
    bool flips = !kernel->options->lower, is_complex = dtype_is_complex(kernel->type);
    for (int64_t batch = 0; batch < kernel->batches; batch++) {
        load_numbers(call->scratch, call->operands[0], kernel->type, batch * n * n, n * n);
        if (is_complex) {
            if (flips) transpose_complex(call->scratch, n);
            factorize_complex(call->scratch, n);
            if (flips) transpose_complex(call->scratch, n);
        } else {
            if (flips) transpose_real(call->scratch, n);
            factorize_real(call->scratch, n);
            if (flips) transpose_real(call->scratch, n);
        }
        store_numbers(call->results[0], kernel->type, batch * n * n, call->scratch, n * n);
    }
}

/* Solves triangular systems. X op(A) = B is op(A)^T X^T = B^T: the rows of X are the columns of that. */
static void run_triangular_solve(const KernelCall *call) {
    const MatrixKernel *kernel = call->compiled;
    const IrOptions *options = kernel->options;
    int64_t n = kernel->size, elements = kernel->rows * kernel->columns;
    int32_t parts = parts_of(kernel->type);
    double *a = call->scratch, *x = a + n * n * parts;
    bool flips = options->is_transposed != !options->left_side; /* the system's matrix is A^T */
    System system = {.row = flips ? 1 : n,
                     .column = flips ? n : 1,
                     .n = n,
                     .forward = options->lower != flips,
                     .unit = options->unit_diagonal,
                     .conjugate = options->adjoint};
    int64_t systems = options->left_side ? kernel->columns : kernel->rows;
    int64_t step = options->left_side ? kernel->columns : 1, next = options->left_side ? 1 : n;
    for (int64_t batch = 0; batch < kernel->batches; batch++) {
        load_numbers(a, call->operands[0], kernel->type, batch * n * n, n * n);
        load_numbers(x, call->operands[1], kernel->type, batch * elements, elements);
        for (int64_t s = 0; s < systems; s++) {
            double *b = x + s * next * parts;
            if (parts == 2) substitute_complex((const double complex *)a, &system, (double complex *)b, step);
            else substitute_real(a, &system, b, step);
        }
        store_numbers(call->results[0], kernel->type, batch * elements, x, elements);
    }
}

/* Batches and size of operand 0; refuses operands that are no batch of square matrices. */
static AmStatus prepare_square(MatrixKernel **result, KernelCall *call, Arena *arena, AmError *error) {
    MatrixKernel *kernel = ARENA_ARRAY(arena, MatrixKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    const IrShape *shape = call->operand_shapes[0];
    if (!dtype_is_floating(dtype_real_part(shape->type)))
        return kernel_call_refuse(call, "not on this type", error);
    if (shape->rank < 2 || shape->dimensions[shape->rank - 1] != shape->dimensions[shape->rank - 2])
        return kernel_call_refuse(call, "its matrices are not square", error);
    kernel->batches = strided_elements(shape->dimensions, shape->rank - 2);
    kernel->size = shape->dimensions[shape->rank - 1];
    kernel->type = shape->type;
    kernel->options = call->attributes->options;
    call->scratch_bytes = kernel->size * kernel->size * parts_of(shape->type) * (int64_t)sizeof(double);
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
    call->scratch_bytes += kernel->rows * kernel->columns * parts_of(kernel->type) * (int64_t)sizeof(double);
    call->run = run_triangular_solve;
    return AM_OK;
}
