/* cholesky and triangular-solve on batches of matrices, in double and in the
 * CPU's order of operations (executor/cpu/matmul/linear_algebra.c), so that results are
 * equal bit for bit.
 *
 * cholesky gives each matrix a block, which works on a copy in the scratch
 * memory: column after column it divides by the root of the pivot and subtracts
 * the column's products from everything right of it (Golub and Van Loan, Matrix
 * Computations, section 4.2.4). triangular-solve has one thread per system.
 */
#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cuda/codegen/source_fold.h"

typedef struct Matrices {
    int64_t batches, size; /* of the square matrices */
} Matrices;

static AmStatus describe(Matrices *self, const KernelCall *call, AmError *error) {
    const IrShape *shape = call->operand_shapes[0];
    if (!dtype_is_floating(shape->type) || !cuda_has_arithmetic(shape->type))
        return kernel_call_refuse(call, "not on this type", error);
    if (shape->rank < 2 || shape->dimensions[shape->rank - 1] != shape->dimensions[shape->rank - 2])
        return kernel_call_refuse(call, "its matrices are not square", error);
    self->batches = strided_elements(shape->dimensions, shape->rank - 2);
    self->size = shape->dimensions[shape->rank - 1];
    return AM_OK;
}

/* In the scratch memory the matrix is lower: row r, column c of it is element (c, r) of an upper one. */
AmStatus cuda_source_cholesky(CudaSource *source, const KernelCall *call, AmError *error) {
    Matrices self;
    TRY(describe(&self, call, error));
    Dtype type = call->operand_shapes[0]->type;
    long long n = (long long)self.size;
    const char *place = call->attributes->options->lower ? "row * n + column" : "column * n + row";
    Text body = {0};
    if (self.batches * self.size == 0) return AM_OK;
    source->scratch_bytes = 8 * self.batches * self.size * self.size;
    cuda_append_signature(&body, call, source, "f64", false);
    text_append(&body,
                "    const s64 n = %lldll, at = (s64)blockIdx.x * n * n;\n"
                "    const u32 t = threadIdx.x;\n"
                "    f64 *a = scratch + at;\n"
                "    for (s64 k = t; k < n * n; k += %d) {\n"
                "        const s64 row = k / n, column = k %% n;\n"
                "        a[k] = column > row ? 0 : (f64)",
                n, CUDA_THREADS);
    Text from = {0};
    text_append(&from, "at + %s", place);
    cuda_append_element(&body, type, "in0", from.failed ? "" : from.data);
    text_append(&body,
                ";\n    }\n    __syncthreads();\n"
                "    bool positive = true;\n"
                "    for (s64 j = 0; j < n && positive; j++) {\n"
                "        const f64 pivot = a[j * n + j], root = sqrt(pivot);\n"
                "        positive = pivot > 0;\n"
                "        __syncthreads();\n"
                "        if (t == 0) a[j * n + j] = root;\n"
                "        for (s64 row = j + 1 + t; row < n; row += %d) a[row * n + j] /= root;\n"
                "        __syncthreads();\n"
                "        const s64 rest = n - j - 1;\n"
                "        for (s64 k = t; k < rest * rest; k += %d) {\n"
                "            const s64 row = j + 1 + k / rest, column = j + 1 + k %% rest;\n"
                "            if (column <= row) a[row * n + column] -= a[row * n + j] * a[column * n + j];\n"
                "        }\n"
                "        __syncthreads();\n"
                "    }\n"
                "    for (s64 k = t; k < n * n; k += %d) {\n"
                "        const s64 row = k / n, column = k %% n;\n"
                "        const f64 value = positive ? a[k] : bits_as<f64>(0x7ff8000000000000ull);\n"
                "        out0[at + %s] = ",
                CUDA_THREADS, CUDA_THREADS, CUDA_THREADS, place);
    cuda_append_narrow(&body, type, SCALAR64_FLOATING, "value");
    text_append_string(&body, ";\n    }\n}\n");
    body.failed = body.failed || from.failed;
    text_free(&from);
    return cuda_source_launch(source, "cholesky", &body, self.batches, CUDA_THREADS, error);
}

/* X op(A) = B is op(A)^T X^T = B^T: the rows of X are the columns of that. The scratch memory has X in
 * double as [batch, row of the system, system], where neighbouring threads have neighbouring elements. */
AmStatus cuda_source_triangular_solve(CudaSource *source, const KernelCall *call, AmError *error) {
    Matrices self;
    TRY(describe(&self, call, error));
    const IrOptions *options = call->attributes->options;
    const IrShape *a = call->operand_shapes[0], *b = call->operand_shapes[1];
    if (b->rank != a->rank || b->type != a->type || !ir_shape_equal(b, call->result_shapes[0]) ||
        strided_elements(b->dimensions, b->rank - 2) != self.batches)
        return kernel_call_refuse(call, "its operands do not fit together", error);
    int64_t rows = b->dimensions[b->rank - 2], columns = b->dimensions[b->rank - 1];
    if ((options->left_side ? rows : columns) != self.size)
        return kernel_call_refuse(call, "its operands do not fit together", error);
    int64_t systems = options->left_side ? columns : rows, n = self.size;
    if (self.batches * n * systems == 0) return AM_OK;
    bool flips = options->is_transposed != !options->left_side; /* the system's matrix is A^T */
    bool forward = options->lower != flips;
    Text body = {0};
    source->scratch_bytes = 8 * self.batches * n * systems;
    cuda_append_signature(&body, call, source, "f64", false);
    cuda_append_guard(&body, self.batches * systems);
    text_append(
        &body,
        "    const s64 n = %lldll, systems = %lldll, batch = (s64)i / systems, system = (s64)i %% systems;\n"
        "    const s64 matrix = batch * n * n, right = batch * n * systems + system%s;\n"
        "    f64 *x = scratch + batch * n * systems + system;\n"
        "    for (s64 done = 0; done < n; done++) {\n"
        "        const s64 row = %s;\n"
        "        f64 sum = (f64)",
        (long long)n, (long long)systems, options->left_side ? "" : " * n",
        forward ? "done" : "n - 1 - done");
    const char *at = options->left_side ? "right + row * systems" : "right + row";
    cuda_append_element(&body, b->type, "in1", at);
    text_append(&body,
                ";\n        for (s64 k = 0; k < done; k++) {\n"
                "            const s64 column = %s;\n"
                "            sum -= (f64)",
                forward ? "k" : "n - 1 - k");
    cuda_append_element(&body, a->type, "in0",
                        flips ? "matrix + column * n + row" : "matrix + row * n + column");
    text_append_string(&body, " * x[column * systems];\n        }\n");
    if (!options->unit_diagonal) {
        text_append_string(&body, "        sum /= (f64)");
        cuda_append_element(&body, a->type, "in0", "matrix + row * n + row");
        text_append_string(&body, ";\n");
    }
    text_append(&body, "        x[row * systems] = sum;\n        out0[%s] = ", at);
    cuda_append_narrow(&body, b->type, SCALAR64_FLOATING, "sum");
    text_append_string(&body, ";\n    }\n}\n");
    return cuda_source_launch(source, "triangular_solve", &body, cuda_blocks(self.batches * systems),
                              CUDA_THREADS, error);
}
