/* cuBLASLt through a table of functions.
 *
 * A row-major matrix [r, c] is the column-major matrix [c, r] of cuBLASLt, so that D = A B is
 * requested as D' = B' A': our B is its A, our A its B, its D has `columns` rows, and its bias,
 * which runs along the rows, runs along our columns. Only this file includes cublasLt.h.
 */
#include "base/cuda/blas.h"

#include <assert.h>
#include <cublasLt.h>
#include <stdlib.h>

#include "base/cuda/library.h"
#include "base/cuda/trial.h"

#define DEFAULT_WORKSPACE   (INT64_C(32) << 20)
#define WORKSPACE_ALIGNMENT 256 /* what cublasLtMatmul() asks for */
#define MASK_BITS           128 /* a row of the mask is a multiple of so many bits */
#define DEFAULT_ALIGNMENT   16
#define MOST_SIZE           INT32_MAX /* of a dimension */
#define MOST_CANDIDATES     8         /* algorithms of the heuristic */

#define BLAS_FUNCTIONS(X)               \
    X(cublasLtCreate)                   \
    X(cublasLtDestroy)                  \
    X(cublasLtGetVersion)               \
    X(cublasLtGetStatusString)          \
    X(cublasLtMatmul)                   \
    X(cublasLtMatmulAlgoCheck)          \
    X(cublasLtMatmulAlgoGetHeuristic)   \
    X(cublasLtMatmulDescCreate)         \
    X(cublasLtMatmulDescDestroy)        \
    X(cublasLtMatmulDescSetAttribute)   \
    X(cublasLtMatrixLayoutCreate)       \
    X(cublasLtMatrixLayoutDestroy)      \
    X(cublasLtMatrixLayoutSetAttribute) \
    X(cublasLtMatmulPreferenceCreate)   \
    X(cublasLtMatmulPreferenceDestroy)  \
    X(cublasLtMatmulPreferenceSetAttribute)

static struct { BLAS_FUNCTIONS(CUDA_MEMBER) } lt;

#define SYMBOL(function) CUDA_SYMBOL_IN(lt, function)
static const CudaSymbol symbols[] = {BLAS_FUNCTIONS(SYMBOL)};
static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
static CudaLibrary library = {.title = "cuBLASLt, which multiplies matrices",
                              .names = names,
                              .symbols = symbols,
                              .symbol_count = sizeof symbols / sizeof *symbols};

struct CudaBlas {
    cublasLtHandle_t handle;
    CudaProduct *products; /* newest first */
};

struct CudaProduct {
    CudaBlas *blas;
    CudaProduct *next;
    CudaProductShape shape; /* the requested shape */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d; /* of our matrices */
    /* Those that cublasLtMatmulAlgoCheck() accepts, in the heuristic's order; `algorithm` is the one in
     * use. */
    cublasLtMatmulHeuristicResult_t candidates[MOST_CANDIDATES];
    int32_t candidate_count, algorithm;
    bool is_tried;           /* the algorithm has run */
    bool is_refused;         /* none of them runs */
    int64_t workspace_bytes; /* of the algorithm, or of all candidates until one has run */
};

/* cuBLASLt's name and operands of each of our epilogues. */
static const struct {
    cublasLtEpilogue_t epilogue;
    bool bias, mask;
} epilogues[CUDA_EPILOGUE_COUNT] = {
    [CUDA_EPILOGUE_NONE] = {CUBLASLT_EPILOGUE_DEFAULT, false, false},
    [CUDA_EPILOGUE_BIAS] = {CUBLASLT_EPILOGUE_BIAS, true, false},
    [CUDA_EPILOGUE_RELU] = {CUBLASLT_EPILOGUE_RELU, false, false},
    [CUDA_EPILOGUE_RELU_BIAS] = {CUBLASLT_EPILOGUE_RELU_BIAS, true, false},
    [CUDA_EPILOGUE_RELU_BIAS_MASK] = {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, true, true},
    [CUDA_EPILOGUE_RELU_GRADIENT] = {CUBLASLT_EPILOGUE_DRELU, false, true},
    [CUDA_EPILOGUE_RELU_GRADIENT_BIAS] = {CUBLASLT_EPILOGUE_DRELU_BGRAD, true, true},
    [CUDA_EPILOGUE_SUM_A] = {CUBLASLT_EPILOGUE_BGRADB, true, false},
    [CUDA_EPILOGUE_SUM_B] = {CUBLASLT_EPILOGUE_BGRADA, true, false},
};

static const struct {
    bool multiplied; /* by cuBLASLt */
    cudaDataType data, scale;
    cublasComputeType_t compute;
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = {true, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    [DTYPE_F64] = {true, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F},
    [DTYPE_BF16] = {true, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    [DTYPE_F16] = {true, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
};

int32_t cuda_blas_version(void) {
    return cuda_library_open(&library, NULL) == AM_OK ? (int32_t)lt.cublasLtGetVersion() : 0;
}

static AmStatus check_cublas(cublasStatus_t result, const char *what, AmError *error) {
    if (result == CUBLAS_STATUS_SUCCESS) return AM_OK;
    const char *reason = lt.cublasLtGetStatusString(result);
    return am_fail(error, AM_ERROR_RUNTIME, "", "cuBLASLt: %s: %s", what, reason ? reason : "unknown error");
}

AmStatus cuda_blas_open(CudaBlas **blas, AmError *error) {
    *blas = NULL;
    TRY(cuda_library_open(&library, error));
    CudaBlas *made = calloc(1, sizeof *made);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    AmStatus status = check_cublas(lt.cublasLtCreate(&made->handle), "no handle", error);
    if (status == AM_OK) *blas = made;
    else free(made);
    return status;
}

static void free_product(CudaProduct *product) {
    if (product->operation) lt.cublasLtMatmulDescDestroy(product->operation);
    if (product->a) lt.cublasLtMatrixLayoutDestroy(product->a);
    if (product->b) lt.cublasLtMatrixLayoutDestroy(product->b);
    if (product->d) lt.cublasLtMatrixLayoutDestroy(product->d);
    free(product);
}

void cuda_blas_close(CudaBlas *blas) {
    if (!blas) return;
    for (CudaProduct *product = blas->products, *next; product; product = next) {
        next = product->next;
        free_product(product);
    }
    lt.cublasLtDestroy(blas->handle);
    free(blas);
}

static bool same_matrix(const CudaMatrix *x, const CudaMatrix *y) {
    return x->type == y->type && x->transposed == y->transposed && x->leading == y->leading &&
           x->batch_stride == y->batch_stride && x->alignment == y->alignment;
}

static bool same_shape(const CudaProductShape *x, const CudaProductShape *y) {
    return x->batch == y->batch && x->rows == y->rows && x->columns == y->columns && x->depth == y->depth &&
           same_matrix(&x->a, &y->a) && same_matrix(&x->b, &y->b) && same_matrix(&x->d, &y->d) &&
           x->epilogue == y->epilogue && x->tf32 == y->tf32 && x->alpha == y->alpha && x->beta == y->beta &&
           x->workspace_limit == y->workspace_limit;
}

/* Fails with AM_ERROR_INPUT: cuBLASLt has no such product, and the caller takes a generated kernel. */
static AmStatus refuse_product(const char *reason, AmError *error) {
    return am_fail(error, AM_ERROR_INPUT, "", "no matrix product by cuBLASLt: %s", reason);
}

/* Refuses shapes that no algorithm could compute. */
static AmStatus check_shape(const CudaProductShape *shape, AmError *error) {
    const int64_t sizes[] = {shape->batch, shape->rows, shape->columns, shape->depth};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (sizes[k] < 1 || sizes[k] > MOST_SIZE)
            return refuse_product("a size is below 1 or above 2^31", error);
    Dtype in = shape->a.type, out = shape->d.type;
    bool widens = dtype_is_16bit_float(in) && out == DTYPE_F32;
    if (!types[in].multiplied || shape->b.type != in || (out != in && !widens))
        return am_fail(error, AM_ERROR_INPUT, "", "no matrix product by cuBLASLt of %s and %s into %s",
                       dtype_name(in), dtype_name(shape->b.type), dtype_name(out));
    if (shape->d.transposed) return refuse_product("its result is to be transposed", error);
    if (shape->batch > 1 && shape->d.batch_stride < 1)
        return refuse_product("its results would overlap", error);
    if ((unsigned)shape->epilogue >= CUDA_EPILOGUE_COUNT) return refuse_product("an unknown epilogue", error);
    if (shape->batch > 1 && shape->epilogue != CUDA_EPILOGUE_NONE)
        return refuse_product("an epilogue on a batch", error);
    return AM_OK;
}

/* Makes the layout of a matrix [rows, columns], or of its transpose if that is in memory. */
static AmStatus make_layout(cublasLtMatrixLayout_t *layout, const CudaMatrix *matrix, int64_t rows,
                            int64_t columns, int64_t batch, AmError *error) {
    int64_t outer = matrix->transposed ? columns : rows, inner = matrix->transposed ? rows : columns;
    int64_t leading = matrix->leading ? matrix->leading : inner;
    if (leading < inner) return refuse_product("rows overlap in memory", error);
    TRY(check_cublas(lt.cublasLtMatrixLayoutCreate(layout, types[matrix->type].data, (uint64_t)inner,
                                                   (uint64_t)outer, leading),
                     "no layout", error));
    int32_t count = (int32_t)batch;
    if (batch == 1) return AM_OK;
    TRY(check_cublas(lt.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                         sizeof count),
                     "batch count", error));
    return check_cublas(lt.cublasLtMatrixLayoutSetAttribute(*layout,
                                                            CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                            &matrix->batch_stride, sizeof(int64_t)),
                        "batch stride", error);
}

static AmStatus set_operation(CudaProduct *product, cublasLtMatmulDescAttributes_t attribute,
                              const void *value, size_t bytes, AmError *error) {
    return check_cublas(lt.cublasLtMatmulDescSetAttribute(product->operation, attribute, value, bytes),
                        "attribute of the product", error);
}

static int64_t mask_leading(int64_t columns) {
    return (columns + MASK_BITS - 1) / MASK_BITS * MASK_BITS;
}

int64_t cuda_product_mask_bytes(int64_t rows, int64_t columns) {
    return rows * mask_leading(columns) / 8;
}

static AmStatus set_pointers(CudaProduct *product, const void *bias, const void *mask, AmError *error) {
    CudaEpilogue epilogue = product->shape.epilogue;
    if (epilogues[epilogue].bias)
        TRY(set_operation(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, error));
    if (epilogues[epilogue].mask)
        TRY(set_operation(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &mask, sizeof mask, error));
    return AM_OK;
}

static AmStatus describe_operation(CudaProduct *product, AmError *error) {
    const CudaProductShape *shape = &product->shape;
    cublasComputeType_t compute = types[shape->a.type].compute;
    if (shape->tf32 && shape->a.type == DTYPE_F32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    TRY(check_cublas(lt.cublasLtMatmulDescCreate(&product->operation, compute, types[shape->a.type].scale),
                     "no description", error));
    int32_t our_a = shape->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t our_b = shape->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY(set_operation(product, CUBLASLT_MATMUL_DESC_TRANSA, &our_b, sizeof our_b, error));
    TRY(set_operation(product, CUBLASLT_MATMUL_DESC_TRANSB, &our_a, sizeof our_a, error));
    uint32_t epilogue = epilogues[shape->epilogue].epilogue;
    TRY(set_operation(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, error));
    if (epilogues[shape->epilogue].mask) {
        int64_t leading = mask_leading(shape->columns);
        TRY(set_operation(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &leading, sizeof leading, error));
    }
    /* The heuristic examines the alignment of these pointers and does not read through them. */
    const void *aligned = (const void *)(uintptr_t)DEFAULT_ALIGNMENT;
    return set_pointers(product, aligned, aligned, error);
}

static AmStatus set_preference(cublasLtMatmulPreference_t preference, const CudaProductShape *shape,
                               AmError *error) {
    uint64_t workspace = (uint64_t)(shape->workspace_limit ? shape->workspace_limit : DEFAULT_WORKSPACE);
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t a = (uint32_t)(shape->a.alignment ? shape->a.alignment : DEFAULT_ALIGNMENT);
    uint32_t b = (uint32_t)(shape->b.alignment ? shape->b.alignment : DEFAULT_ALIGNMENT);
    uint32_t d = (uint32_t)(shape->d.alignment ? shape->d.alignment : DEFAULT_ALIGNMENT);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } rows[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof d},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        TRY(check_cublas(lt.cublasLtMatmulPreferenceSetAttribute(preference, rows[k].attribute, rows[k].value,
                                                                 rows[k].bytes),
                         "preference", error));
    return AM_OK;
}

/* Returns whether cuBLASLt refuses the problem, or lacks memory for it. Any other error is a failure of the
 * library. */
static bool is_refusal(cublasStatus_t result) {
    return result == CUBLAS_STATUS_NOT_SUPPORTED || result == CUBLAS_STATUS_INVALID_VALUE ||
           result == CUBLAS_STATUS_ARCH_MISMATCH || result == CUBLAS_STATUS_ALLOC_FAILED;
}

/* Keeps the candidates of the heuristic that cublasLtMatmulAlgoCheck() accepts. */
static AmStatus find_candidates(CudaProduct *product, AmError *error) {
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[MOST_CANDIDATES] = {0}, checked = {0};
    cublasLtHandle_t handle = product->blas->handle;
    int count = 0;
    TRY(check_cublas(lt.cublasLtMatmulPreferenceCreate(&preference), "no preference", error));
    AmStatus status = set_preference(preference, &product->shape, error);
    cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
    if (status == AM_OK)
        result =
            lt.cublasLtMatmulAlgoGetHeuristic(handle, product->operation, product->b, product->a, product->d,
                                              product->d, preference, MOST_CANDIDATES, found, &count);
    lt.cublasLtMatmulPreferenceDestroy(preference);
    TRY(status);
    if (!is_refusal(result)) TRY(check_cublas(result, "choice of an algorithm", error));
    for (int k = 0; k < count && result == CUBLAS_STATUS_SUCCESS; k++) {
        if (found[k].state != CUBLAS_STATUS_SUCCESS) continue;
        cublasStatus_t accepted =
            lt.cublasLtMatmulAlgoCheck(handle, product->operation, product->b, product->a, product->d,
                                       product->d, &found[k].algo, &checked);
        if (!is_refusal(accepted)) TRY(check_cublas(accepted, "check of an algorithm", error));
        if (accepted != CUBLAS_STATUS_SUCCESS) continue;
        product->candidates[product->candidate_count++] = found[k];
        int64_t workspace = (int64_t)found[k].workspaceSize;
        if (workspace > product->workspace_bytes) product->workspace_bytes = workspace;
    }
    if (product->candidate_count > 0) return AM_OK;
    return refuse_product("it has no algorithm for this shape", error);
}

/* Enqueues the product by its algorithm. */
static cublasStatus_t enqueue(CudaProduct *product, CUstream stream, const CudaProductBuffers *buffers) {
    const cublasLtMatmulHeuristicResult_t *chosen = &product->candidates[product->algorithm];
    uintptr_t workspace = (uintptr_t)buffers->workspace;
    workspace = (workspace + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    bool twice = product->shape.a.type == DTYPE_F64;
    float alpha = (float)product->shape.alpha, beta = (float)product->shape.beta;
    const void *alpha_at = twice ? (const void *)&product->shape.alpha : &alpha;
    const void *beta_at = twice ? (const void *)&product->shape.beta : &beta;
    const void *c = buffers->c ? buffers->c : buffers->d;
    return lt.cublasLtMatmul(product->blas->handle, product->operation, alpha_at, buffers->b, product->b,
                             buffers->a, product->a, beta_at, c, product->d, buffers->d, product->d,
                             &chosen->algo, (void *)workspace, (size_t)product->workspace_bytes, stream);
}

/* Enqueues the product. The first time, by the first candidate that runs. */
static cublasStatus_t multiply(CudaProduct *product, CUstream stream, const CudaProductBuffers *buffers) {
    cublasStatus_t result = enqueue(product, stream, buffers);
    while (!product->is_tried && is_refusal(result) && product->algorithm + 1 < product->candidate_count) {
        product->algorithm++;
        result = enqueue(product, stream, buffers);
    }
    product->is_tried = product->is_tried || result == CUBLAS_STATUS_SUCCESS;
    product->is_refused = !product->is_tried && is_refusal(result);
    return result;
}

/* Returns the bytes from the first to the last element of a matrix [rows, columns] and of the others of its
 * batch. */
static int64_t extent(const CudaMatrix *matrix, int64_t rows, int64_t columns, int64_t batch) {
    int64_t outer = matrix->transposed ? columns : rows, inner = matrix->transposed ? rows : columns;
    int64_t leading = matrix->leading ? matrix->leading : inner;
    return ((batch - 1) * matrix->batch_stride + (outer - 1) * leading + inner) * dtype_bytes(matrix->type);
}

/* Runs the product once, so that its algorithm is one that runs. Without memory for that, the first run tries
 * the candidates. AM_ERROR_INPUT: cuBLASLt refuses all of them. */
static AmStatus try_product(CudaProduct *product, AmError *error) {
    const CudaProductShape *shape = &product->shape;
    int64_t longer = shape->rows > shape->columns ? shape->rows : shape->columns;
    const int64_t bytes[] = {extent(&shape->a, shape->rows, shape->depth, shape->batch),
                             extent(&shape->b, shape->depth, shape->columns, shape->batch),
                             extent(&shape->d, shape->rows, shape->columns, shape->batch),
                             longer * dtype_bytes(shape->d.type),
                             cuda_product_mask_bytes(shape->rows, shape->columns),
                             cuda_product_workspace(product)};
    CudaTrial trial;
    if (!cuda_trial_open(&trial, bytes, sizeof bytes / sizeof *bytes)) return AM_OK;
    const CudaProductBuffers buffers = {.a = trial.arrays[0],
                                        .b = trial.arrays[1],
                                        .d = trial.arrays[2],
                                        .bias = trial.arrays[3],
                                        .mask = trial.arrays[4],
                                        .workspace = trial.arrays[5]};
    AmStatus status = set_pointers(product, buffers.bias, buffers.mask, error);
    cublasStatus_t result = status == AM_OK ? multiply(product, NULL, &buffers) : CUBLAS_STATUS_SUCCESS;
    AmError unfinished = {0};
    AmStatus ended = cuda_trial_close(&trial, &unfinished);
    TRY(status);
    if (is_refusal(result)) return refuse_product(lt.cublasLtGetStatusString(result), error);
    TRY(check_cublas(result, "trial of a product", error));
    product->workspace_bytes = (int64_t)product->candidates[product->algorithm].workspaceSize;
    return ended == AM_OK ? AM_OK : am_fail(error, ended, "", "cuBLASLt: %s", unfinished.text);
}

AmStatus cuda_product_make(CudaProduct **product, CudaBlas *blas, const CudaProductShape *shape,
                           AmError *error) {
    *product = NULL;
    TRY(check_shape(shape, error));
    for (CudaProduct *known = blas->products; known; known = known->next)
        if (same_shape(&known->shape, shape)) {
            *product = known;
            return AM_OK;
        }
    CudaProduct *made = calloc(1, sizeof *made);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    AmStatus status;
    made->blas = blas;
    made->shape = *shape;
    TRY_OR_FAIL(make_layout(&made->a, &shape->a, shape->rows, shape->depth, shape->batch, error));
    TRY_OR_FAIL(make_layout(&made->b, &shape->b, shape->depth, shape->columns, shape->batch, error));
    TRY_OR_FAIL(make_layout(&made->d, &shape->d, shape->rows, shape->columns, shape->batch, error));
    TRY_OR_FAIL(describe_operation(made, error));
    TRY_OR_FAIL(find_candidates(made, error));
    TRY_OR_FAIL(try_product(made, error));
    made->next = blas->products;
    blas->products = made;
    *product = made;
    return AM_OK;
fail:
    free_product(made);
    return status;
}

bool cuda_product_is_tried(const CudaProduct *product) {
    return product->is_tried;
}

bool cuda_product_is_refused(const CudaProduct *product) {
    return product->is_refused;
}

int64_t cuda_product_workspace(const CudaProduct *product) {
    return product->workspace_bytes > 0 ? product->workspace_bytes + WORKSPACE_ALIGNMENT - 1 : 0;
}

AmStatus cuda_product_run(CudaProduct *product, CUstream stream, const CudaProductBuffers *buffers,
                          AmError *error) {
    assert(buffers->bias || !epilogues[product->shape.epilogue].bias);
    assert(buffers->mask || !epilogues[product->shape.epilogue].mask);
    TRY(set_pointers(product, buffers->bias, buffers->mask, error));
    cublasStatus_t result = multiply(product, stream, buffers);
    if (product->is_refused) return refuse_product(lt.cublasLtGetStatusString(result), error);
    return check_cublas(result, "product", error);
}
