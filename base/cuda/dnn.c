/* cuDNN through a table of functions.
 *
 * The convolution functions of cudnn_cnn.h serve: version 9 still has them, and
 * they cover every layout that strides can say. The three kinds differ in the
 * order of their arguments and in their enumerations of algorithms, so each has
 * three small functions (candidates, workspace, run) in a table. This file
 * and dnn_graph.c include cudnn.h.
 */
#include "base/cuda/dnn.h"

#include <assert.h>
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda/dnn_attention.h"
#include "base/cuda/library.h"
#include "base/cuda/trial.h"

#define DEFAULT_WORKSPACE   (INT64_C(256) << 20)
#define WORKSPACE_ALIGNMENT 256
#define MOST_RANK           (2 + CUDA_MOST_SPATIAL)
#define MOST_CANDIDATES     16

#define DNN_FUNCTIONS(X)                              \
    X(cudnnCreate)                                    \
    X(cudnnDestroy)                                   \
    X(cudnnGetVersion)                                \
    X(cudnnGetErrorString)                            \
    X(cudnnSetStream)                                 \
    X(cudnnCreateTensorDescriptor)                    \
    X(cudnnDestroyTensorDescriptor)                   \
    X(cudnnSetTensorNdDescriptor)                     \
    X(cudnnCreateFilterDescriptor)                    \
    X(cudnnDestroyFilterDescriptor)                   \
    X(cudnnSetFilterNdDescriptor)                     \
    X(cudnnCreateConvolutionDescriptor)               \
    X(cudnnDestroyConvolutionDescriptor)              \
    X(cudnnSetConvolutionNdDescriptor)                \
    X(cudnnSetConvolutionGroupCount)                  \
    X(cudnnSetConvolutionMathType)                    \
    X(cudnnGetConvolutionForwardAlgorithm_v7)         \
    X(cudnnGetConvolutionForwardWorkspaceSize)        \
    X(cudnnConvolutionForward)                        \
    X(cudnnGetConvolutionBackwardDataAlgorithm_v7)    \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)   \
    X(cudnnConvolutionBackwardData)                   \
    X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)  \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize) \
    X(cudnnConvolutionBackwardFilter)

static struct { DNN_FUNCTIONS(CUDA_MEMBER) } cudnn;

#define SYMBOL(function) CUDA_SYMBOL_IN(cudnn, function)
static const CudaSymbol symbols[] = {DNN_FUNCTIONS(SYMBOL)};
static const char *const names[] = {"libcudnn.so.9", NULL};
static CudaLibrary library = {.title = "cuDNN, which convolves",
                              .names = names,
                              .symbols = symbols,
                              .symbol_count = sizeof symbols / sizeof *symbols};

struct CudaDnn {
    cudnnHandle_t handle;
    CudaConvolution *convolutions; /* newest first */
    CudaAttention *attentions;
};

/* An algorithm that the heuristic proposes. */
typedef struct Candidate {
    int algorithm;
    bool usable, deterministic;
    cudnnMathType_t math;
    size_t workspace_bytes;
} Candidate;

struct CudaConvolution {
    CudaDnn *dnn;
    CudaConvolution *next;
    CudaConvolutionShape shape; /* the requested shape */
    cudnnTensorDescriptor_t input, output;
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t window;
    Candidate candidates[MOST_CANDIDATES]; /* that are allowed, in the heuristic's order */
    int candidate_count, chosen;
    int algorithm;          /* of the chosen one */
    bool is_tried;          /* the algorithm has run */
    bool is_refused;        /* none of them runs */
    size_t workspace_bytes; /* of the algorithm, or of all candidates until one has run */
};

static const struct {
    bool convolved; /* by cuDNN */
    cudnnDataType_t data, compute;
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = {true, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT},
    [DTYPE_F64] = {true, CUDNN_DATA_DOUBLE, CUDNN_DATA_DOUBLE},
    [DTYPE_BF16] = {true, CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT},
    [DTYPE_F16] = {true, CUDNN_DATA_HALF, CUDNN_DATA_FLOAT},
};

int32_t cuda_dnn_version(void) {
    return cuda_library_open(&library, NULL) == AM_OK ? (int32_t)cudnn.cudnnGetVersion() : 0;
}

static AmStatus check_cudnn(cudnnStatus_t result, const char *what, AmError *error) {
    if (result == CUDNN_STATUS_SUCCESS) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, "", "cuDNN: %s: %s", what, cudnn.cudnnGetErrorString(result));
}

/* Fails with AM_ERROR_INPUT: cuDNN has no such convolution, and the caller takes a generated kernel. */
static AmStatus refuse_convolution(const char *reason, AmError *error) {
    return am_fail(error, AM_ERROR_INPUT, "", "no convolution by cuDNN: %s", reason);
}

/* Returns AM_ERROR_INPUT if cuDNN refuses a description: the caller takes a generated kernel. */
static AmStatus describe(cudnnStatus_t result, AmError *error) {
    return result == CUDNN_STATUS_SUCCESS ? AM_OK
                                          : refuse_convolution(cudnn.cudnnGetErrorString(result), error);
}

AmStatus cuda_dnn_open(CudaDnn **dnn, AmError *error) {
    *dnn = NULL;
    TRY(cuda_library_open(&library, error));
    CudaDnn *made = calloc(1, sizeof *made);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    AmStatus status = check_cudnn(cudnn.cudnnCreate(&made->handle), "no handle", error);
    if (status == AM_OK) *dnn = made;
    else free(made);
    return status;
}

static void free_convolution(CudaConvolution *convolution) {
    if (convolution->input) cudnn.cudnnDestroyTensorDescriptor(convolution->input);
    if (convolution->output) cudnn.cudnnDestroyTensorDescriptor(convolution->output);
    if (convolution->filter) cudnn.cudnnDestroyFilterDescriptor(convolution->filter);
    if (convolution->window) cudnn.cudnnDestroyConvolutionDescriptor(convolution->window);
    free(convolution);
}

void cuda_dnn_close(CudaDnn *dnn) {
    if (!dnn) return;
    for (CudaConvolution *convolution = dnn->convolutions, *next; convolution; convolution = next) {
        next = convolution->next;
        free_convolution(convolution);
    }
    cuda_attention_close(dnn->attentions);
    cudnn.cudnnDestroy(dnn->handle);
    free(dnn);
}

void *cuda_dnn_handle(CudaDnn *dnn) {
    return dnn->handle;
}

CudaAttention **cuda_dnn_attentions(CudaDnn *dnn) {
    return &dnn->attentions;
}

/* Each kind's heuristic, as a list of candidates, best first. */
#define DEFINE_CANDIDATES(name, Performance, get, x, y, z)                                              \
    static cudnnStatus_t name(const CudaConvolution *it, Candidate *candidates, int *count) {           \
        Performance found[MOST_CANDIDATES];                                                             \
        cudnnStatus_t result =                                                                          \
            cudnn.get(it->dnn->handle, it->x, it->y, it->window, it->z, MOST_CANDIDATES, count, found); \
        if (result != CUDNN_STATUS_SUCCESS) return result;                                              \
        for (int k = 0; k < *count; k++)                                                                \
            candidates[k] = (Candidate){.algorithm = (int)found[k].algo,                                \
                                        .usable = found[k].status == CUDNN_STATUS_SUCCESS,              \
                                        .deterministic = found[k].determinism == CUDNN_DETERMINISTIC,   \
                                        .math = found[k].mathType};                                     \
        return result;                                                                                  \
    }
DEFINE_CANDIDATES(forward_candidates, cudnnConvolutionFwdAlgoPerf_t, cudnnGetConvolutionForwardAlgorithm_v7,
                  input, filter, output)
DEFINE_CANDIDATES(input_candidates, cudnnConvolutionBwdDataAlgoPerf_t,
                  cudnnGetConvolutionBackwardDataAlgorithm_v7, filter, output, input)
DEFINE_CANDIDATES(filter_candidates, cudnnConvolutionBwdFilterAlgoPerf_t,
                  cudnnGetConvolutionBackwardFilterAlgorithm_v7, input, output, filter)

static cudnnStatus_t forward_workspace(const CudaConvolution *it, int algorithm, size_t *bytes) {
    return cudnn.cudnnGetConvolutionForwardWorkspaceSize(it->dnn->handle, it->input, it->filter, it->window,
                                                         it->output, (cudnnConvolutionFwdAlgo_t)algorithm,
                                                         bytes);
}

static cudnnStatus_t input_workspace(const CudaConvolution *it, int algorithm, size_t *bytes) {
    return cudnn.cudnnGetConvolutionBackwardDataWorkspaceSize(
        it->dnn->handle, it->filter, it->output, it->window, it->input,
        (cudnnConvolutionBwdDataAlgo_t)algorithm, bytes);
}

static cudnnStatus_t filter_workspace(const CudaConvolution *it, int algorithm, size_t *bytes) {
    return cudnn.cudnnGetConvolutionBackwardFilterWorkspaceSize(
        it->dnn->handle, it->input, it->output, it->window, it->filter,
        (cudnnConvolutionBwdFilterAlgo_t)algorithm, bytes);
}

static cudnnStatus_t run_forward(const CudaConvolution *it, const CudaConvolutionBuffers *buffers,
                                 void *workspace, const void *one, const void *zero) {
    return cudnn.cudnnConvolutionForward(it->dnn->handle, one, it->input, buffers->input, it->filter,
                                         buffers->filter, it->window,
                                         (cudnnConvolutionFwdAlgo_t)it->algorithm, workspace,
                                         it->workspace_bytes, zero, it->output, buffers->output);
}

static cudnnStatus_t run_input(const CudaConvolution *it, const CudaConvolutionBuffers *buffers,
                               void *workspace, const void *one, const void *zero) {
    return cudnn.cudnnConvolutionBackwardData(it->dnn->handle, one, it->filter, buffers->filter, it->output,
                                              buffers->output, it->window,
                                              (cudnnConvolutionBwdDataAlgo_t)it->algorithm, workspace,
                                              it->workspace_bytes, zero, it->input, buffers->input);
}

static cudnnStatus_t run_filter(const CudaConvolution *it, const CudaConvolutionBuffers *buffers,
                                void *workspace, const void *one, const void *zero) {
    return cudnn.cudnnConvolutionBackwardFilter(it->dnn->handle, one, it->input, buffers->input, it->output,
                                                buffers->output, it->window,
                                                (cudnnConvolutionBwdFilterAlgo_t)it->algorithm, workspace,
                                                it->workspace_bytes, zero, it->filter, buffers->filter);
}

#define BIT(algorithm) (UINT32_C(1) << (algorithm))

static const struct {
    cudnnStatus_t (*candidates)(const CudaConvolution *, Candidate *, int *);
    cudnnStatus_t (*workspace)(const CudaConvolution *, int, size_t *);
    cudnnStatus_t (*run)(const CudaConvolution *, const CudaConvolutionBuffers *, void *, const void *,
                         const void *);
    uint32_t plain; /* algorithms that sum by the definition, not through a transform */
} kinds[CUDA_CONVOLUTION_KIND_COUNT] = {
    [CUDA_CONVOLUTION_FORWARD] = {forward_candidates, forward_workspace, run_forward,
                                  BIT(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM) |
                                      BIT(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) |
                                      BIT(CUDNN_CONVOLUTION_FWD_ALGO_GEMM) |
                                      BIT(CUDNN_CONVOLUTION_FWD_ALGO_DIRECT)},
    [CUDA_CONVOLUTION_INPUT_GRADIENT] = {input_candidates, input_workspace, run_input,
                                         BIT(CUDNN_CONVOLUTION_BWD_DATA_ALGO_0) |
                                             BIT(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)},
    [CUDA_CONVOLUTION_FILTER_GRADIENT] = {filter_candidates, filter_workspace, run_filter,
                                          BIT(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0) |
                                              BIT(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1) |
                                              BIT(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3)},
};

static bool same(const int64_t *x, const int64_t *y, int32_t count) {
    return memcmp(x, y, sizeof *x * (size_t)count) == 0;
}

static bool same_shape(const CudaConvolutionShape *x, const CudaConvolutionShape *y) {
    int32_t n = x->spatial_count;
    return x->kind == y->kind && x->type == y->type && x->tf32 == y->tf32 && x->flipped == y->flipped &&
           x->features_last == y->features_last && n == y->spatial_count && x->batch == y->batch &&
           x->input_features == y->input_features && x->output_features == y->output_features &&
           x->groups == y->groups && x->workspace_limit == y->workspace_limit &&
           same(x->input_sizes, y->input_sizes, n) && same(x->filter_sizes, y->filter_sizes, n) &&
           same(x->output_sizes, y->output_sizes, n) && same(x->stride, y->stride, n) &&
           same(x->dilation, y->dilation, n) && same(x->padding, y->padding, n) &&
           same(x->input_strides, y->input_strides, n + 2) &&
           same(x->output_strides, y->output_strides, n + 2);
}

static bool fits(int64_t value, int64_t least) {
    return value >= least && value <= INT32_MAX;
}

static AmStatus check_spatial(const CudaConvolutionShape *shape, int32_t s, AmError *error) {
    int64_t in = shape->input_sizes[s], k = shape->filter_sizes[s], out = shape->output_sizes[s];
    int64_t stride = shape->stride[s], dilation = shape->dilation[s], padding = shape->padding[s];
    if (!fits(in, 1) || !fits(k, 1) || !fits(out, 1) || !fits(stride, 1) || !fits(dilation, 1) ||
        !fits(padding, 0))
        return refuse_convolution("a size, stride, dilation or padding is out of range", error);
    int64_t room = in + 2 * padding - ((k - 1) * dilation + 1);
    if (room < 0 || room / stride + 1 != out)
        return refuse_convolution("its sizes do not fit each other", error);
    return AM_OK;
}

static AmStatus check_shape(const CudaConvolutionShape *shape, AmError *error) {
    if ((unsigned)shape->kind >= CUDA_CONVOLUTION_KIND_COUNT)
        return refuse_convolution("an unknown kind", error);
    if (!types[shape->type].convolved) return refuse_convolution(dtype_name(shape->type), error);
    if (shape->spatial_count < 1 || shape->spatial_count > CUDA_MOST_SPATIAL)
        return refuse_convolution("it has other than 1 to 3 spatial dimensions", error);
    if (!fits(shape->batch, 1) || !fits(shape->input_features, 1) || !fits(shape->output_features, 1) ||
        !fits(shape->groups, 1) || shape->input_features % shape->groups != 0 ||
        shape->output_features % shape->groups != 0)
        return refuse_convolution("its batch, features or groups are out of range", error);
    for (int32_t d = 0; d < shape->spatial_count + 2; d++)
        if (!fits(shape->input_strides[d], 1) || !fits(shape->output_strides[d], 1))
            return refuse_convolution("a stride is out of range", error);
    for (int32_t s = 0; s < shape->spatial_count; s++) TRY(check_spatial(shape, s, error));
    return AM_OK;
}

/* Returns a spatial list as cuDNN takes it: at least two, `before` in front of a single one. */
static int spatial_list(int *out, const int64_t *values, int32_t count, int before) {
    int n = 0;
    if (count == 1) out[n++] = before;
    for (int32_t s = 0; s < count; s++) out[n++] = (int)values[s];
    return n;
}

static AmStatus describe_tensor(cudnnTensorDescriptor_t *tensor, const CudaConvolutionShape *shape,
                                int64_t features, const int64_t *sizes, const int64_t *strides,
                                AmError *error) {
    int dimensions[MOST_RANK] = {(int)shape->batch, (int)features};
    int steps[MOST_RANK] = {(int)strides[0], (int)strides[1]};
    int rank = 2 + spatial_list(dimensions + 2, sizes, shape->spatial_count, 1);
    /* The row that is put in front of one dimension ends where that does. */
    int64_t row = shape->spatial_count == 1 ? sizes[0] * strides[2] : 1;
    if (!fits(row, 1)) return refuse_convolution("a stride is out of range", error);
    spatial_list(steps + 2, strides + 2, shape->spatial_count, (int)row);
    TRY(check_cudnn(cudnn.cudnnCreateTensorDescriptor(tensor), "no description", error));
    return describe(
        cudnn.cudnnSetTensorNdDescriptor(*tensor, types[shape->type].data, rank, dimensions, steps), error);
}

static AmStatus describe_filter(CudaConvolution *it, AmError *error) {
    const CudaConvolutionShape *shape = &it->shape;
    int dimensions[MOST_RANK] = {(int)shape->output_features, (int)(shape->input_features / shape->groups)};
    int rank = 2 + spatial_list(dimensions + 2, shape->filter_sizes, shape->spatial_count, 1);
    TRY(check_cudnn(cudnn.cudnnCreateFilterDescriptor(&it->filter), "no description", error));
    return describe(cudnn.cudnnSetFilterNdDescriptor(
                        it->filter, types[shape->type].data,
                        shape->features_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, rank, dimensions),
                    error);
}

/* f32 without tf32 must exclude the tensor cores explicitly. */
static bool is_strict(const CudaConvolutionShape *shape) {
    return shape->type == DTYPE_F32 && !shape->tf32;
}

static cudnnMathType_t math_of(const CudaConvolutionShape *shape) {
    if (is_strict(shape)) return CUDNN_FMA_MATH;
    bool is_16bit = dtype_is_16bit_float(shape->type);
    return is_16bit ? CUDNN_TENSOR_OP_MATH : CUDNN_DEFAULT_MATH;
}

static AmStatus describe_window(CudaConvolution *it, AmError *error) {
    const CudaConvolutionShape *shape = &it->shape;
    int padding[MOST_RANK], stride[MOST_RANK], dilation[MOST_RANK];
    int count = spatial_list(padding, shape->padding, shape->spatial_count, 0);
    spatial_list(stride, shape->stride, shape->spatial_count, 1);
    spatial_list(dilation, shape->dilation, shape->spatial_count, 1);
    TRY(check_cudnn(cudnn.cudnnCreateConvolutionDescriptor(&it->window), "no description", error));
    TRY(describe(
        cudnn.cudnnSetConvolutionNdDescriptor(it->window, count, padding, stride, dilation,
                                              shape->flipped ? CUDNN_CONVOLUTION : CUDNN_CROSS_CORRELATION,
                                              types[shape->type].compute),
        error));
    TRY(describe(cudnn.cudnnSetConvolutionGroupCount(it->window, (int)shape->groups), error));
    return describe(cudnn.cudnnSetConvolutionMathType(it->window, math_of(shape)), error);
}

/* Takes candidate k. */
static cudnnStatus_t choose(CudaConvolution *it, int k) {
    it->chosen = k;
    it->algorithm = it->candidates[k].algorithm;
    if (is_strict(&it->shape)) return CUDNN_STATUS_SUCCESS;
    return cudnn.cudnnSetConvolutionMathType(it->window, it->candidates[k].math);
}

/* Keeps the candidates that are allowed and whose workspace fits, and takes the first. */
static AmStatus find_candidates(CudaConvolution *it, AmError *error) {
    Candidate candidates[MOST_CANDIDATES];
    int count = 0;
    size_t limit = (size_t)(it->shape.workspace_limit ? it->shape.workspace_limit : DEFAULT_WORKSPACE);
    TRY(describe(kinds[it->shape.kind].candidates(it, candidates, &count), error));
    for (int k = 0; k < count; k++) {
        const Candidate *candidate = &candidates[k];
        if (!candidate->usable || !candidate->deterministic) continue;
        if (is_strict(&it->shape)) {
            if (!(kinds[it->shape.kind].plain & BIT(candidate->algorithm))) continue;
        } else {
            TRY(describe(cudnn.cudnnSetConvolutionMathType(it->window, candidate->math), error));
        }
        size_t bytes = 0;
        if (kinds[it->shape.kind].workspace(it, candidate->algorithm, &bytes) != CUDNN_STATUS_SUCCESS)
            continue;
        if (bytes > limit) continue;
        it->candidates[it->candidate_count] = *candidate;
        it->candidates[it->candidate_count++].workspace_bytes = bytes;
        if (bytes > it->workspace_bytes) it->workspace_bytes = bytes;
    }
    if (it->candidate_count > 0) return describe(choose(it, 0), error);
    return refuse_convolution("it has no algorithm for this shape that gives equal results each time", error);
}

/* Enqueues the convolution by its algorithm. */
static cudnnStatus_t enqueue(const CudaConvolution *it, const CudaConvolutionBuffers *buffers) {
    static const float one = 1, zero = 0;
    static const double one_twice = 1, zero_twice = 0;
    bool twice = it->shape.type == DTYPE_F64;
    uintptr_t workspace = (uintptr_t)buffers->workspace;
    workspace = (workspace + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return kinds[it->shape.kind].run(it, buffers, (void *)workspace, twice ? (const void *)&one_twice : &one,
                                     twice ? (const void *)&zero_twice : &zero);
}

/* Returns whether cuDNN refuses the problem, or lacks the memory or a part of itself for it. Any other error
 * is a failure of the library. */
static bool is_refusal(cudnnStatus_t result) {
    int category = (int)result / 1000 * 1000;
    return category == CUDNN_STATUS_BAD_PARAM || category == CUDNN_STATUS_NOT_SUPPORTED ||
           category == CUDNN_STATUS_INTERNAL_ERROR || result == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED;
}

/* Enqueues the convolution. The first time, by the first candidate that runs. */
static cudnnStatus_t convolve(CudaConvolution *it, const CudaConvolutionBuffers *buffers) {
    cudnnStatus_t result = enqueue(it, buffers);
    while (!it->is_tried && is_refusal(result) && it->chosen + 1 < it->candidate_count) {
        result = choose(it, it->chosen + 1);
        if (result == CUDNN_STATUS_SUCCESS) result = enqueue(it, buffers);
    }
    it->is_tried = it->is_tried || result == CUDNN_STATUS_SUCCESS;
    it->is_refused = !it->is_tried && is_refusal(result);
    return result;
}

/* Returns the bytes from the first to the last element of an input or output. */
static int64_t extent(const CudaConvolutionShape *shape, int64_t features, const int64_t *sizes,
                      const int64_t *strides) {
    int64_t last = (shape->batch - 1) * strides[0] + (features - 1) * strides[1];
    for (int32_t s = 0; s < shape->spatial_count; s++) last += (sizes[s] - 1) * strides[2 + s];
    return (last + 1) * dtype_bytes(shape->type);
}

/* Runs the convolution once, so that its algorithm is one that runs. Without memory for that, the first run
 * tries the candidates. AM_ERROR_INPUT: cuDNN refuses all of them. */
static AmStatus try_convolution(CudaConvolution *it, AmError *error) {
    const CudaConvolutionShape *shape = &it->shape;
    int64_t filter = shape->output_features * (shape->input_features / shape->groups);
    for (int32_t s = 0; s < shape->spatial_count; s++) filter *= shape->filter_sizes[s];
    const int64_t bytes[] = {
        extent(shape, shape->input_features, shape->input_sizes, shape->input_strides),
        filter * dtype_bytes(shape->type),
        extent(shape, shape->output_features, shape->output_sizes, shape->output_strides),
        cuda_convolution_workspace(it)};
    CudaTrial trial;
    if (!cuda_trial_open(&trial, bytes, sizeof bytes / sizeof *bytes)) return AM_OK;
    const CudaConvolutionBuffers buffers = {.input = trial.arrays[0],
                                            .filter = trial.arrays[1],
                                            .output = trial.arrays[2],
                                            .workspace = trial.arrays[3]};
    cudnnStatus_t result = cudnn.cudnnSetStream(it->dnn->handle, NULL);
    if (result == CUDNN_STATUS_SUCCESS) result = convolve(it, &buffers);
    AmError unfinished = {0};
    AmStatus ended = cuda_trial_close(&trial, &unfinished);
    if (is_refusal(result)) return refuse_convolution(cudnn.cudnnGetErrorString(result), error);
    TRY(check_cudnn(result, "trial of a convolution", error));
    it->workspace_bytes = it->candidates[it->chosen].workspace_bytes;
    return ended == AM_OK ? AM_OK : am_fail(error, ended, "", "cuDNN: %s", unfinished.text);
}

AmStatus cuda_convolution_make(CudaConvolution **convolution, CudaDnn *dnn, const CudaConvolutionShape *shape,
                               AmError *error) {
    *convolution = NULL;
    TRY(check_shape(shape, error));
    for (CudaConvolution *known = dnn->convolutions; known; known = known->next)
        if (same_shape(&known->shape, shape)) {
            *convolution = known;
            return AM_OK;
        }
    CudaConvolution *made = calloc(1, sizeof *made);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    AmStatus status;
    made->dnn = dnn;
    made->shape = *shape;
    TRY_OR_FAIL(describe_tensor(&made->input, shape, shape->input_features, shape->input_sizes,
                                shape->input_strides, error));
    TRY_OR_FAIL(describe_tensor(&made->output, shape, shape->output_features, shape->output_sizes,
                                shape->output_strides, error));
    TRY_OR_FAIL(describe_filter(made, error));
    TRY_OR_FAIL(describe_window(made, error));
    TRY_OR_FAIL(find_candidates(made, error));
    TRY_OR_FAIL(try_convolution(made, error));
    made->next = dnn->convolutions;
    dnn->convolutions = made;
    *convolution = made;
    return AM_OK;
fail:
    free_convolution(made);
    return status;
}

bool cuda_convolution_is_tried(const CudaConvolution *convolution) {
    return convolution->is_tried;
}

bool cuda_convolution_is_refused(const CudaConvolution *convolution) {
    return convolution->is_refused;
}

int64_t cuda_convolution_workspace(const CudaConvolution *convolution) {
    int64_t bytes = (int64_t)convolution->workspace_bytes;
    return bytes > 0 ? bytes + WORKSPACE_ALIGNMENT - 1 : 0;
}

AmStatus cuda_convolution_run(CudaConvolution *convolution, CUstream stream,
                              const CudaConvolutionBuffers *buffers, AmError *error) {
    assert(buffers->input && buffers->filter && buffers->output);
    TRY(check_cudnn(cudnn.cudnnSetStream(convolution->dnn->handle, stream), "stream", error));
    cudnnStatus_t result = convolve(convolution, buffers);
    if (convolution->is_refused) return refuse_convolution(cudnn.cudnnGetErrorString(result), error);
    return check_cudnn(result, "convolution", error);
}
