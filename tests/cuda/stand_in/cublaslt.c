/* A stand-in for libcublasLt: the functions that base/cuda/blas.c calls, as their
 * documentation has them, on the stand-in driver's streams and memory.
 *
 * Matrices are column-major. The rules of the library for its caller are checked, so that a wrong call fails
 * here, too: descriptors are its own, sizes of attributes are right, leading dimensions hold a column, shapes
 * fit, types are a combination it has, an algorithm is used for the problem it was chosen for, addresses have
 * the alignment that was promised, lie in device memory as a whole, and the workspace is there (it is
 * overwritten). Sums are carried in double; tf32 shortens the operands, so that it shows. STAND_IN_PERTURB:
 * elements.h.
 */
#include <cublasLt.h>
#include <stdlib.h>

#include "tests/cuda/stand_in/elements.h"
#include "tests/cuda/stand_in/stand_in.h"

#define EXPORT              __attribute__((visibility("default")))
#define VERSION             130000
#define SPLIT_WORKSPACE     4096 /* the workspace of a deep product */
#define SPLIT_DEPTH         64
#define WORKSPACE_ALIGNMENT 256
#define MASK_ALIGNMENT_BITS 128
#define ENTER(function)                                      \
    do {                                                     \
        const StandIn *entered_ = stand_in();                \
        if (!entered_) return CUBLAS_STATUS_NOT_INITIALIZED; \
        int code_ = entered_->enter(#function);              \
        if (code_) return (cublasStatus_t)code_;             \
    } while (0)

typedef enum Tag { TAG_HANDLE = 0x1a7e01, TAG_LAYOUT, TAG_OPERATION, TAG_PREFERENCE, TAG_ALGORITHM } Tag;

struct cublasLtContext {
    Tag tag;
};

typedef struct Layout {
    Tag tag;
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading, batch_stride;
    int32_t batch;
} Layout;

typedef struct Operation {
    Tag tag;
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transposed_a, transposed_b; /* cublasOperation_t */
    uint32_t epilogue;
    void *bias, *mask;
    int64_t mask_leading;
} Operation;

typedef struct Preference {
    Tag tag;
    uint64_t workspace;
    uint32_t schemes, alignments[4]; /* A, B, C, D */
} Preference;

/* The problem of an algorithm. */
typedef struct Algorithm {
    uint64_t tag, workspace, problem;
    uint32_t alignments[4], bias_alignment;
} Algorithm;

/* A product on its way through a stream. */
typedef struct Product {
    Operation operation;
    Layout a, b, c, d;
    double alpha, beta;
    const void *a_data, *b_data, *c_data;
    void *d_data, *workspace;
    uint64_t workspace_bytes;
} Product;

static const struct {
    cudaDataType type;
    ElementType element;
} types[] = {{CUDA_R_32F, ELEMENT_F32},
             {CUDA_R_64F, ELEMENT_F64},
             {CUDA_R_16BF, ELEMENT_BF16},
             {CUDA_R_16F, ELEMENT_F16}};

static bool knows_type(cudaDataType type) {
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (types[k].type == type) return true;
    return false;
}

static ElementType element_of(cudaDataType type) {
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        if (types[k].type == type) return types[k].element;
    return ELEMENT_F32;
}

EXPORT size_t cublasLtGetVersion(void) {
    return VERSION;
}

EXPORT const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    default: return "an error of the stand-in";
    }
}

/* Returns whether this thread has a context of the driver. */
static bool has_context(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *symbol;
    CUresult (*get)(CUcontext *) = NULL;
    CUcontext context = NULL;
    if (!driver) return false;
    symbol = dlsym(driver, "cuCtxGetCurrent");
    memcpy(&get, &symbol, sizeof get);
    return symbol && get(&context) == CUDA_SUCCESS && context;
}

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    ENTER(cublasLtCreate);
    if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
    if (!has_context()) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    if (!*handle) return CUBLAS_STATUS_ALLOC_FAILED;
    (*handle)->tag = TAG_HANDLE;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    ENTER(cublasLtDestroy);
    if (!handle || handle->tag != TAG_HANDLE) return CUBLAS_STATUS_INVALID_VALUE;
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t leading) {
    ENTER(cublasLtMatrixLayoutCreate);
    Layout *layout = calloc(1, sizeof *layout);
    if (!layout) return CUBLAS_STATUS_ALLOC_FAILED;
    *layout = (Layout){TAG_LAYOUT, type, rows, columns, leading, 0, 1};
    *made = (cublasLtMatrixLayout_t)layout;
    return CUBLAS_STATUS_SUCCESS;
}

static Layout *layout_of(cublasLtMatrixLayout_t layout) {
    Layout *it = (Layout *)layout;
    return it && it->tag == TAG_LAYOUT ? it : NULL;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    ENTER(cublasLtMatrixLayoutDestroy);
    if (!layout_of(layout)) return CUBLAS_STATUS_INVALID_VALUE;
    free(layout_of(layout));
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute: a number, and where its value lies. */
typedef struct Attribute {
    int number;
    void *place;
    size_t bytes;
} Attribute;

static cublasStatus_t set_attribute(const Attribute *attributes, size_t count, int number, const void *value,
                                    size_t bytes) {
    for (size_t k = 0; k < count; k++) {
        if (attributes[k].number != number) continue;
        if (!value || attributes[k].bytes != bytes) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(attributes[k].place, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attribute,
                                                       const void *value, size_t bytes) {
    ENTER(cublasLtMatrixLayoutSetAttribute);
    Layout *it = layout_of(layout);
    if (!it) return CUBLAS_STATUS_INVALID_VALUE;
    const Attribute attributes[] = {
        {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &it->batch, sizeof it->batch},
        {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &it->batch_stride, sizeof it->batch_stride},
    };
    return set_attribute(attributes, sizeof attributes / sizeof *attributes, (int)attribute, value, bytes);
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    ENTER(cublasLtMatmulDescCreate);
    Operation *operation = calloc(1, sizeof *operation);
    if (!operation) return CUBLAS_STATUS_ALLOC_FAILED;
    *operation = (Operation){.tag = TAG_OPERATION,
                             .compute = compute,
                             .scale = scale,
                             .transposed_a = CUBLAS_OP_N,
                             .transposed_b = CUBLAS_OP_N,
                             .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    *made = (cublasLtMatmulDesc_t)operation;
    return CUBLAS_STATUS_SUCCESS;
}

static Operation *operation_of(cublasLtMatmulDesc_t operation) {
    Operation *it = (Operation *)operation;
    return it && it->tag == TAG_OPERATION ? it : NULL;
}

EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
    ENTER(cublasLtMatmulDescDestroy);
    if (!operation_of(operation)) return CUBLAS_STATUS_INVALID_VALUE;
    free(operation_of(operation));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                                     cublasLtMatmulDescAttributes_t attribute,
                                                     const void *value, size_t bytes) {
    ENTER(cublasLtMatmulDescSetAttribute);
    Operation *it = operation_of(operation);
    if (!it) return CUBLAS_STATUS_INVALID_VALUE;
    const Attribute attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &it->transposed_a, sizeof it->transposed_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &it->transposed_b, sizeof it->transposed_b},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &it->epilogue, sizeof it->epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &it->bias, sizeof it->bias},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &it->mask, sizeof it->mask},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &it->mask_leading, sizeof it->mask_leading},
    };
    return set_attribute(attributes, sizeof attributes / sizeof *attributes, (int)attribute, value, bytes);
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) {
    ENTER(cublasLtMatmulPreferenceCreate);
    Preference *preference = calloc(1, sizeof *preference);
    if (!preference) return CUBLAS_STATUS_ALLOC_FAILED;
    *preference = (Preference){TAG_PREFERENCE, 0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    *made = (cublasLtMatmulPreference_t)preference;
    return CUBLAS_STATUS_SUCCESS;
}

static Preference *preference_of(cublasLtMatmulPreference_t preference) {
    Preference *it = (Preference *)preference;
    return it && it->tag == TAG_PREFERENCE ? it : NULL;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    ENTER(cublasLtMatmulPreferenceDestroy);
    if (!preference_of(preference)) return CUBLAS_STATUS_INVALID_VALUE;
    free(preference_of(preference));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void *value, size_t bytes) {
    ENTER(cublasLtMatmulPreferenceSetAttribute);
    Preference *it = preference_of(preference);
    if (!it) return CUBLAS_STATUS_INVALID_VALUE;
    const Attribute attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &it->workspace, sizeof it->workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &it->schemes, sizeof it->schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &it->alignments[0], sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &it->alignments[1], sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &it->alignments[2], sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &it->alignments[3], sizeof(uint32_t)},
    };
    return set_attribute(attributes, sizeof attributes / sizeof *attributes, (int)attribute, value, bytes);
}

static bool layout_is_sound(const Layout *layout, bool writes) {
    if (!layout || layout->rows < 1 || layout->columns < 1 || layout->leading < (int64_t)layout->rows ||
        layout->batch < 1 || layout->rows > INT32_MAX || layout->columns > INT32_MAX)
        return false;
    int64_t matrix = layout->leading * ((int64_t)layout->columns - 1) + (int64_t)layout->rows;
    return !writes || layout->batch == 1 || llabs((long long)layout->batch_stride) >= matrix ||
           (layout->batch_stride > 0 && layout->leading > layout->batch_stride &&
            layout->batch_stride >= (int64_t)layout->rows);
}

/* Matrices of the batch overlap in extent, not in elements. */
static bool interleaves(const Layout *layout) {
    return layout->batch > 1 && layout->batch_stride > 0 && layout->batch_stride < layout->leading;
}

static bool masks(uint32_t epilogue) {
    return (epilogue & 128) != 0;
}

static bool has_bias(uint32_t epilogue) {
    return (epilogue & CUBLASLT_EPILOGUE_BIAS) || epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD ||
           epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

/* A combination of types that the library has. */
static bool combines(const Operation *operation, const Layout *a, const Layout *b, const Layout *c,
                     const Layout *d) {
    bool half = a->type == CUDA_R_16BF || a->type == CUDA_R_16F;
    if (a->type != b->type || c->type != d->type || !knows_type(a->type)) return false;
    if (a->type == CUDA_R_64F)
        return d->type == CUDA_R_64F && operation->scale == CUDA_R_64F &&
               operation->compute == CUBLAS_COMPUTE_64F && operation->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    bool computes = operation->compute == CUBLAS_COMPUTE_32F ||
                    (operation->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type == CUDA_R_32F);
    return computes && operation->scale == CUDA_R_32F &&
           (d->type == a->type || (half && d->type == CUDA_R_32F));
}

static cublasStatus_t check_problem(const Operation *operation, const Layout *a, const Layout *b,
                                    const Layout *c, const Layout *d) {
    if (!operation || !layout_is_sound(a, false) || !layout_is_sound(b, false) ||
        !layout_is_sound(c, false) || !layout_is_sound(d, true))
        return CUBLAS_STATUS_INVALID_VALUE;
    bool transposed_a = operation->transposed_a == CUBLAS_OP_T,
         transposed_b = operation->transposed_b == CUBLAS_OP_T;
    uint64_t m = transposed_a ? a->columns : a->rows, depth = transposed_a ? a->rows : a->columns;
    uint64_t n = transposed_b ? b->rows : b->columns, b_depth = transposed_b ? b->columns : b->rows;
    if (depth != b_depth || d->rows != m || d->columns != n || c->rows != m || c->columns != n ||
        a->batch != d->batch || b->batch != d->batch || c->batch != d->batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (masks(operation->epilogue) && (operation->mask_leading % MASK_ALIGNMENT_BITS != 0 ||
                                       operation->mask_leading < (int64_t)m || !operation->mask))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (has_bias(operation->epilogue) && !operation->bias) return CUBLAS_STATUS_INVALID_VALUE;
    if (!combines(operation, a, b, c, d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return d->batch > 1 && operation->epilogue != CUBLASLT_EPILOGUE_DEFAULT ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                            : CUBLAS_STATUS_SUCCESS;
}

/* The power of two, at most 16, that divides an address. */
static uint32_t alignment_of(const void *pointer) {
    uint32_t alignment = 16;
    while ((uintptr_t)pointer % alignment != 0) alignment /= 2;
    return alignment;
}

/* Returns a number for the problem of an algorithm. */
static uint64_t fingerprint(const Operation *operation, const Layout *layouts[4]) {
    uint64_t sum = UINT64_C(1469598103934665603);
    const uint64_t own[] = {(uint64_t)operation->compute, (uint64_t)operation->transposed_a,
                            (uint64_t)operation->transposed_b, operation->epilogue};
    for (size_t k = 0; k < 4; k++) sum = (sum ^ own[k]) * UINT64_C(1099511628211);
    for (size_t k = 0; k < 4; k++) {
        const uint64_t parts[] = {(uint64_t)layouts[k]->type,
                                  layouts[k]->rows,
                                  layouts[k]->columns,
                                  (uint64_t)layouts[k]->leading,
                                  (uint64_t)layouts[k]->batch_stride,
                                  (uint64_t)layouts[k]->batch};
        for (size_t p = 0; p < 6; p++) sum = (sum ^ parts[p]) * UINT64_C(1099511628211);
    }
    return sum;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int *count) {
    ENTER(cublasLtMatmulAlgoGetHeuristic);
    const Layout *layouts[4] = {layout_of(a), layout_of(b), layout_of(c), layout_of(d)};
    const Preference *limits = preference_of(preference);
    if (!handle || handle->tag != TAG_HANDLE || !limits || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status =
        check_problem(operation_of(operation), layouts[0], layouts[1], layouts[2], layouts[3]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (stand_in()->refuses("cublasLtMatmulAlgoGetHeuristic", fingerprint(operation_of(operation), layouts)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    uint64_t depth =
        operation_of(operation)->transposed_a == CUBLAS_OP_T ? layouts[0]->rows : layouts[0]->columns;
    bool split = depth >= SPLIT_DEPTH && limits->workspace >= SPLIT_WORKSPACE &&
                 (limits->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    Algorithm algorithm = {.tag = TAG_ALGORITHM,
                           .workspace = split ? SPLIT_WORKSPACE : 0,
                           .problem = fingerprint(operation_of(operation), layouts)};
    memcpy(algorithm.alignments, limits->alignments, sizeof algorithm.alignments);
    algorithm.bias_alignment = alignment_of(operation_of(operation)->bias);
    memset(&results[0], 0, sizeof results[0]);
    memcpy(&results[0].algo, &algorithm, sizeof algorithm);
    results[0].workspaceSize = algorithm.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *count = wanted < 2 ? wanted : 2; /* the same twice, as a caller may try one after the other */
    if (*count > 1) results[1] = results[0];
    return CUBLAS_STATUS_SUCCESS;
}

/* Returns whether the algorithm is for this problem. */
static bool is_for(const Algorithm *algorithm, const Operation *operation, const Layout *layouts[4]) {
    return algorithm->tag == TAG_ALGORITHM && algorithm->problem == fingerprint(operation, layouts);
}

EXPORT cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              const cublasLtMatmulAlgo_t *algorithm,
                                              cublasLtMatmulHeuristicResult_t *result) {
    ENTER(cublasLtMatmulAlgoCheck);
    const Layout *layouts[4] = {layout_of(a), layout_of(b), layout_of(c), layout_of(d)};
    Algorithm chosen;
    if (!handle || handle->tag != TAG_HANDLE || !algorithm || !result) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status =
        check_problem(operation_of(operation), layouts[0], layouts[1], layouts[2], layouts[3]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memcpy(&chosen, algorithm, sizeof chosen);
    if (!is_for(&chosen, operation_of(operation), layouts)) return CUBLAS_STATUS_INVALID_VALUE;
    if (stand_in()->refuses("cublasLtMatmulAlgoCheck", chosen.problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = chosen.workspace;
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

/* Element [row, column] of batch `batch`, after transposition. */
static double at(const Layout *layout, const void *data, bool turned, int64_t row, int64_t column,
                 int64_t batch) {
    int64_t place = turned ? row * layout->leading + column : column * layout->leading + row;
    return element_load(data, element_of(layout->type), batch * layout->batch_stride + place);
}

/* A whole operand of one batch, after transposition, as dense columns; shortened for tf32. The caller's. */
static double *unpack(const Layout *layout, const void *data, bool turned, bool tf32, int64_t batch) {
    int64_t rows = (int64_t)(turned ? layout->columns : layout->rows);
    int64_t columns = (int64_t)(turned ? layout->rows : layout->columns);
    double *values = calloc((size_t)(rows * columns), sizeof *values);
    if (!values) abort();
    for (int64_t column = 0; column < columns; column++)
        for (int64_t row = 0; row < rows; row++) {
            double value = at(layout, data, turned, row, column, batch);
            values[column * rows + row] = tf32 ? (double)element_shorten((float)value, 13) : value;
        }
    return values;
}

static bool mask_bit(const Product *it, int64_t row, int64_t column) {
    int64_t bit = column * it->operation.mask_leading + row;
    return ((const uint8_t *)it->operation.mask)[bit / 8] >> (bit % 8) & 1;
}

static void set_mask_bit(const Product *it, int64_t row, int64_t column, bool value) {
    int64_t bit = column * it->operation.mask_leading + row;
    uint8_t *byte = (uint8_t *)it->operation.mask + bit / 8;
    *byte = (uint8_t)((*byte & ~(1 << (bit % 8))) | value << (bit % 8));
}

/* x = alpha A B + beta C through the epilogue. */
static double finish_element(const Product *it, double x, int64_t row, int64_t column) {
    uint32_t epilogue = it->operation.epilogue;
    ElementType type = element_of(it->d.type);
    if ((epilogue & CUBLASLT_EPILOGUE_BIAS)) x += element_load(it->operation.bias, type, row);
    if (epilogue & CUBLASLT_EPILOGUE_RELU) {
        if (masks(epilogue)) set_mask_bit(it, row, column, x > 0);
        x = x > 0 ? x : 0;
    }
    if (epilogue == CUBLASLT_EPILOGUE_DRELU || epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD)
        x = mask_bit(it, row, column) ? x : 0;
    return x;
}

/* Sums of an operand over the depth: BGRADA of its rows, BGRADB of its columns. */
static void sum_operand(const Product *it) {
    bool of_a = it->operation.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    if (!of_a && it->operation.epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
    bool turned = (of_a ? it->operation.transposed_a : it->operation.transposed_b) == CUBLAS_OP_T;
    const Layout *layout = of_a ? &it->a : &it->b;
    int64_t rows = (int64_t)(turned ? layout->columns : layout->rows);
    int64_t columns = (int64_t)(turned ? layout->rows : layout->columns);
    for (int64_t out = 0; out < (of_a ? rows : columns); out++) {
        double sum = 0;
        for (int64_t k = 0; k < (of_a ? columns : rows); k++)
            sum += at(layout, of_a ? it->a_data : it->b_data, turned, of_a ? out : k, of_a ? k : out, 0);
        element_store(it->operation.bias, element_of(it->d.type), out, sum);
    }
}

/* sums[rows] = column `column` of A B; `narrow`: backwards, and every sum rounded to f32. */
static void multiply_column(double *sums, const double *a, const double *b, int64_t rows, int64_t depth,
                            int64_t column, bool narrow) {
    memset(sums, 0, (size_t)rows * sizeof *sums);
    for (int64_t step = 0; step < depth; step++) {
        int64_t k = narrow ? depth - 1 - step : step;
        double factor = b[column * depth + k];
        for (int64_t row = 0; row < rows; row++) {
            sums[row] += a[k * rows + row] * factor;
            if (narrow) sums[row] = (float)sums[row];
        }
    }
}

static void run_batch(const Product *it, double *row_sums, int64_t batch) {
    bool transposed_a = it->operation.transposed_a == CUBLAS_OP_T;
    bool transposed_b = it->operation.transposed_b == CUBLAS_OP_T;
    uint64_t seed = element_seed();
    ElementType type = element_of(it->d.type);
    bool tf32 = it->operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && (seed == 0 || seed % 2 == 1);
    int64_t rows = (int64_t)it->d.rows, depth = (int64_t)(transposed_a ? it->a.rows : it->a.columns);
    double *a = unpack(&it->a, it->a_data, transposed_a, tf32, batch);
    double *b = unpack(&it->b, it->b_data, transposed_b, tf32, batch);
    double *sums = calloc((size_t)rows, sizeof *sums);
    if (!sums) abort();
    for (int64_t column = 0; column < (int64_t)it->d.columns; column++) {
        multiply_column(sums, a, b, rows, depth, column, seed > 0 && type != ELEMENT_F64);
        for (int64_t row = 0; row < rows; row++) {
            double x = it->alpha * element_moved(seed, sums[row], type, column * rows + row);
            if (it->beta != 0) x += it->beta * at(&it->c, it->c_data, false, row, column, batch);
            x = finish_element(it, x, row, column);
            row_sums[row] += x;
            element_store(it->d_data, type, batch * it->d.batch_stride + column * it->d.leading + row, x);
        }
    }
    free(sums);
    free(b);
    free(a);
}

static bool run_product(void *argument) {
    const Product *it = argument;
    int64_t rows = (int64_t)it->d.rows;
    double *row_sums = calloc((size_t)rows, sizeof *row_sums);
    if (!row_sums) abort();
    if (it->workspace_bytes > 0) memset(it->workspace, 0xCC, it->workspace_bytes);
    for (int64_t batch = 0; batch < it->d.batch; batch++) run_batch(it, row_sums, batch);
    for (int64_t row = 0; row < rows && it->operation.epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD; row++)
        element_store(it->operation.bias, element_of(it->d.type), row, row_sums[row]);
    sum_operand(it);
    free(row_sums);
    return true;
}

/* Returns whether a whole matrix is in device memory, with the promised alignment. */
static bool is_readable(const void *data, const Layout *layout, uint32_t alignment) {
    size_t bytes = element_bytes(element_of(layout->type));
    int64_t elements = (layout->batch - 1) * layout->batch_stride +
                       ((int64_t)layout->columns - 1) * layout->leading + (int64_t)layout->rows;
    return data && (uintptr_t)data % alignment == 0 && stand_in()->is_device(data, (size_t)elements * bytes);
}

static bool vectors_are_sound(const Product *it, uint32_t bias_alignment) {
    uint32_t epilogue = it->operation.epilogue;
    size_t length = (size_t)(epilogue == CUBLASLT_EPILOGUE_BGRADB ? it->d.columns : it->d.rows);
    if (has_bias(epilogue) && alignment_of(it->operation.bias) < bias_alignment) return false;
    if (has_bias(epilogue) &&
        !stand_in()->is_device(it->operation.bias, length * element_bytes(element_of(it->d.type))))
        return false;
    size_t mask = (size_t)it->operation.mask_leading * it->d.columns / 8;
    return !masks(epilogue) ||
           ((uintptr_t)it->operation.mask % 16 == 0 && stand_in()->is_device(it->operation.mask, mask));
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                     const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                                     const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                                     const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                     cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm,
                                     void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    ENTER(cublasLtMatmul);
    const Layout *layouts[4] = {layout_of(a_layout), layout_of(b_layout), layout_of(c_layout),
                                layout_of(d_layout)};
    Algorithm chosen = {0};
    if (!handle || handle->tag != TAG_HANDLE || !alpha || !beta || !algorithm)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status =
        check_problem(operation_of(operation), layouts[0], layouts[1], layouts[2], layouts[3]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    memcpy(&chosen, algorithm, sizeof chosen);
    Product product = {.operation = *operation_of(operation),
                       .a = *layouts[0],
                       .b = *layouts[1],
                       .c = *layouts[2],
                       .d = *layouts[3],
                       .a_data = a,
                       .b_data = b,
                       .c_data = c,
                       .d_data = d,
                       .workspace = workspace,
                       .workspace_bytes = chosen.workspace};
    bool twice = product.operation.scale == CUDA_R_64F;
    product.alpha = twice ? *(const double *)alpha : (double)*(const float *)alpha;
    product.beta = twice ? *(const double *)beta : (double)*(const float *)beta;
    if (!is_for(&chosen, &product.operation, layouts) || workspace_bytes < chosen.workspace ||
        stand_in()->refuses("cublasLtMatmul", chosen.problem) ||
        (interleaves(layouts[3]) && stand_in()->refuses("interleaved", chosen.problem)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (chosen.workspace > 0 && ((uintptr_t)workspace % WORKSPACE_ALIGNMENT != 0 ||
                                 !stand_in()->is_device(workspace, chosen.workspace)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_readable(a, layouts[0], chosen.alignments[0]) ||
        !is_readable(b, layouts[1], chosen.alignments[1]) ||
        (product.beta != 0 && !is_readable(c, layouts[2], chosen.alignments[2])) ||
        !is_readable(d, layouts[3], chosen.alignments[3]) ||
        !vectors_are_sound(&product, chosen.bias_alignment))
        return CUBLAS_STATUS_INVALID_VALUE;
    CUresult result =
        stand_in()->enqueue((CUstream)stream, "cublasLtMatmul", run_product, &product, sizeof product, NULL);
    return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
