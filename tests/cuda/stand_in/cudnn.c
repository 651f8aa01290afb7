/* A stand-in for libcudnn: the functions that base/cuda/dnn.c calls, by their documentation, on the stand-in
 * driver's streams and memory.
 *
 * The rules of the library for its caller are checked: ranks, sizes and strides of
 * descriptors, that input, filter, window and output fit each other, that all data is in device memory, that
 * the workspace is there (it is overwritten). Its heuristics propose first an algorithm with different bits
 * each time, then one by a transform, then the plain one; layouts have features first or features last
 * throughout. Sums are carried in double; f32 outside FMA math shortens its operands to tf32.
 * STAND_IN_PERTURB: elements.h.
 */
#include <cudnn.h>
#include <stdlib.h>

#include "tests/cuda/stand_in/cudnn_parts.h"

#define MOST_RANK       8
#define MOST_SPATIAL    (MOST_RANK - 2)
#define PLAIN_WORKSPACE 1000 /* of the plain algorithms but the first */

struct cudnnTensorStruct {
    Tag tag;
    cudnnDataType_t type;
    int rank, sizes[MOST_RANK], strides[MOST_RANK];
};

struct cudnnFilterStruct {
    Tag tag;
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    int rank, sizes[MOST_RANK];
};

struct cudnnConvolutionStruct {
    Tag tag;
    int count, padding[MOST_SPATIAL], stride[MOST_SPATIAL], dilation[MOST_SPATIAL], groups;
    cudnnConvolutionMode_t mode;
    cudnnDataType_t compute;
    cudnnMathType_t math;
};

typedef enum Kind { FORWARD, INPUT_GRADIENT, FILTER_GRADIENT } Kind;

/* A convolution on its way through a stream. */
typedef struct Convolution {
    Kind kind;
    struct cudnnTensorStruct x, y;
    struct cudnnFilterStruct w;
    struct cudnnConvolutionStruct window;
    int64_t w_strides[MOST_RANK];
    uint64_t seed; /* of STAND_IN_PERTURB, or 0 */
    double alpha, beta;
    void *data[3]; /* x, w, y */
    void *workspace;
    size_t workspace_bytes;
} Convolution;

static bool knows_type(cudnnDataType_t type) {
    return type == CUDNN_DATA_FLOAT || element_of(type) != ELEMENT_F32;
}

EXPORT size_t cudnnGetVersion(void) {
    return 91900;
}

EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "success";
    case CUDNN_STATUS_NOT_INITIALIZED: return "not initialized";
    case CUDNN_STATUS_BAD_PARAM: return "a bad parameter";
    case CUDNN_STATUS_NOT_SUPPORTED: return "not supported";
    default: return "an error of the stand-in";
    }
}

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    ENTER(cudnnCreate);
    *handle = calloc(1, sizeof **handle);
    if (!*handle) return CUDNN_STATUS_INTERNAL_ERROR;
    (*handle)->tag = TAG_HANDLE;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    ENTER(cudnnDestroy);
    if (!handle || handle->tag != TAG_HANDLE) return CUDNN_STATUS_BAD_PARAM;
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    ENTER(cudnnSetStream);
    if (!handle || handle->tag != TAG_HANDLE) return CUDNN_STATUS_BAD_PARAM;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* Creation and destruction of the three kinds of descriptors. */
#define DESCRIPTOR(Name, Type, number)                                                 \
    EXPORT cudnnStatus_t cudnnCreate##Name##Descriptor(Type *made) {                   \
        ENTER(cudnnCreate##Name##Descriptor);                                          \
        *made = calloc(1, sizeof **made);                                              \
        if (!*made) return CUDNN_STATUS_INTERNAL_ERROR;                                \
        (*made)->tag = (number);                                                       \
        return CUDNN_STATUS_SUCCESS;                                                   \
    }                                                                                  \
    EXPORT cudnnStatus_t cudnnDestroy##Name##Descriptor(Type descriptor) {             \
        ENTER(cudnnDestroy##Name##Descriptor);                                         \
        if (!descriptor || descriptor->tag != (number)) return CUDNN_STATUS_BAD_PARAM; \
        free(descriptor);                                                              \
        return CUDNN_STATUS_SUCCESS;                                                   \
    }
DESCRIPTOR(Tensor, cudnnTensorDescriptor_t, TAG_TENSOR)
DESCRIPTOR(Filter, cudnnFilterDescriptor_t, TAG_FILTER)
DESCRIPTOR(Convolution, cudnnConvolutionDescriptor_t, TAG_WINDOW)

EXPORT cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type,
                                                int rank, const int sizes[], const int strides[]) {
    ENTER(cudnnSetTensorNdDescriptor);
    int64_t elements = 1;
    if (!tensor || tensor->tag != TAG_TENSOR || !knows_type(type)) return CUDNN_STATUS_BAD_PARAM;
    if (rank < 4 || rank > MOST_RANK) return CUDNN_STATUS_NOT_SUPPORTED;
    for (int d = 0; d < rank; d++) {
        if (sizes[d] < 1 || strides[d] < 1) return CUDNN_STATUS_BAD_PARAM;
        tensor->sizes[d] = sizes[d];
        tensor->strides[d] = strides[d];
        elements += (int64_t)(sizes[d] - 1) * strides[d];
    }
    if (elements > INT32_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
    tensor->type = type;
    tensor->rank = rank;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                                cudnnTensorFormat_t format, int rank, const int sizes[]) {
    ENTER(cudnnSetFilterNdDescriptor);
    if (!filter || filter->tag != TAG_FILTER || !knows_type(type)) return CUDNN_STATUS_BAD_PARAM;
    if (rank < 3 || rank > MOST_RANK || (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC))
        return CUDNN_STATUS_NOT_SUPPORTED;
    for (int d = 0; d < rank; d++) {
        if (sizes[d] < 1) return CUDNN_STATUS_BAD_PARAM;
        filter->sizes[d] = sizes[d];
    }
    filter->type = type;
    filter->format = format;
    filter->rank = rank;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t window, int count,
                                                     const int padding[], const int stride[],
                                                     const int dilation[], cudnnConvolutionMode_t mode,
                                                     cudnnDataType_t compute) {
    ENTER(cudnnSetConvolutionNdDescriptor);
    if (!window || window->tag != TAG_WINDOW || count < 0) return CUDNN_STATUS_BAD_PARAM;
    if (count < 2 || count > MOST_SPATIAL) return CUDNN_STATUS_NOT_SUPPORTED;
    for (int s = 0; s < count; s++) {
        if (padding[s] < 0 || stride[s] < 1 || dilation[s] < 1) return CUDNN_STATUS_BAD_PARAM;
        window->padding[s] = padding[s];
        window->stride[s] = stride[s];
        window->dilation[s] = dilation[s];
    }
    window->count = count;
    window->mode = mode;
    window->compute = compute;
    window->groups = 1;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t window, int groups) {
    ENTER(cudnnSetConvolutionGroupCount);
    if (!window || window->tag != TAG_WINDOW || groups < 1) return CUDNN_STATUS_BAD_PARAM;
    window->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t window, cudnnMathType_t math) {
    ENTER(cudnnSetConvolutionMathType);
    if (!window || window->tag != TAG_WINDOW) return CUDNN_STATUS_BAD_PARAM;
    window->math = math;
    return CUDNN_STATUS_SUCCESS;
}

/* Features first or features last: which of the strides fall, sizes of 1 aside. */
static bool lies_as(const struct cudnnTensorStruct *tensor, cudnnTensorFormat_t format) {
    int64_t last = INT64_MAX;
    for (int n = 0; n < tensor->rank; n++) {
        int d = format == CUDNN_TENSOR_NCHW ? n : n == 0 ? 0 : n == tensor->rank - 1 ? 1 : n + 1;
        if (tensor->sizes[d] == 1) continue;
        if (tensor->strides[d] > last) return false;
        last = tensor->strides[d];
    }
    return true;
}

static cudnnStatus_t check_problem(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                   cudnnConvolutionDescriptor_t window, cudnnTensorDescriptor_t y) {
    if (!handle || handle->tag != TAG_HANDLE || !x || x->tag != TAG_TENSOR || !w || w->tag != TAG_FILTER ||
        !y || y->tag != TAG_TENSOR || !window || window->tag != TAG_WINDOW)
        return CUDNN_STATUS_BAD_PARAM;
    if (x->rank != w->rank || y->rank != w->rank || window->count + 2 != w->rank || x->type != w->type ||
        y->type != w->type || x->sizes[0] != y->sizes[0] || x->sizes[1] != w->sizes[1] * window->groups ||
        y->sizes[1] != w->sizes[0] || w->sizes[0] % window->groups != 0)
        return CUDNN_STATUS_BAD_PARAM;
    for (int s = 0; s < window->count; s++) {
        int room =
            x->sizes[2 + s] + 2 * window->padding[s] - ((w->sizes[2 + s] - 1) * window->dilation[s] + 1);
        if (room < 0 || room / window->stride[s] + 1 != y->sizes[2 + s]) return CUDNN_STATUS_BAD_PARAM;
    }
    bool twice = x->type == CUDNN_DATA_DOUBLE;
    if (window->compute != (twice ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT)) return CUDNN_STATUS_NOT_SUPPORTED;
    return lies_as(x, w->format) && lies_as(y, w->format) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

/* A number for the problem. */
static uint64_t fingerprint(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                            const struct cudnnConvolutionStruct *window, const struct cudnnTensorStruct *y) {
    uint64_t sum = (uint64_t)w->format * 31 + (uint64_t)w->type;
    for (int d = 0; d < w->rank; d++)
        sum = ((sum * 1000003 + (uint64_t)x->sizes[d]) * 1000003 + (uint64_t)w->sizes[d]) * 1000003 +
              (uint64_t)y->sizes[d];
    for (int s = 0; s < window->count; s++) sum = sum * 1000003 + (uint64_t)window->stride[s];
    return sum;
}

/* Different each time, through a transform, plain; the same for all three kinds. */
typedef struct Proposal {
    int algorithm;
    cudnnDeterminism_t determinism;
} Proposal;
enum { PROPOSALS = 3 };

static const Proposal forward_proposals[PROPOSALS] = {
    {CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_NON_DETERMINISTIC},
    {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, CUDNN_DETERMINISTIC},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_DETERMINISTIC}};
static const Proposal input_proposals[PROPOSALS] = {
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_NON_DETERMINISTIC},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_DETERMINISTIC},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_DETERMINISTIC}};
static const Proposal filter_proposals[PROPOSALS] = {
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_NON_DETERMINISTIC},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, CUDNN_DETERMINISTIC},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_DETERMINISTIC}};

#define PROPOSE(Performance, Algorithm, proposals)                                                          \
    do {                                                                                                    \
        cudnnStatus_t status_ = check_problem(handle, x, w, window, y);                                     \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_;                                                \
        if (wanted < 1 || !count || !found) return CUDNN_STATUS_BAD_PARAM;                                  \
        if (stand_in()->refuses(__func__, fingerprint(x, w, window, y))) return CUDNN_STATUS_NOT_SUPPORTED; \
        *count = wanted < PROPOSALS ? wanted : PROPOSALS;                                                   \
        for (int k = 0; k < *count; k++)                                                                    \
            found[k] = (Performance){.algo = (Algorithm)(proposals)[k].algorithm,                           \
                                     .status = CUDNN_STATUS_SUCCESS,                                        \
                                     .determinism = (proposals)[k].determinism,                             \
                                     .mathType = window->math};                                             \
        return CUDNN_STATUS_SUCCESS;                                                                        \
    } while (0)

EXPORT cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnFilterDescriptor_t w,
                                                            cudnnConvolutionDescriptor_t window,
                                                            cudnnTensorDescriptor_t y, int wanted, int *count,
                                                            cudnnConvolutionFwdAlgoPerf_t *found) {
    ENTER(cudnnGetConvolutionForwardAlgorithm_v7);
    PROPOSE(cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t, forward_proposals);
}

EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t y,
    cudnnConvolutionDescriptor_t window, cudnnTensorDescriptor_t x, int wanted, int *count,
    cudnnConvolutionBwdDataAlgoPerf_t *found) {
    ENTER(cudnnGetConvolutionBackwardDataAlgorithm_v7);
    PROPOSE(cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t, input_proposals);
}

EXPORT cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y,
    cudnnConvolutionDescriptor_t window, cudnnFilterDescriptor_t w, int wanted, int *count,
    cudnnConvolutionBwdFilterAlgoPerf_t *found) {
    ENTER(cudnnGetConvolutionBackwardFilterAlgorithm_v7);
    PROPOSE(cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t, filter_proposals);
}

static cudnnStatus_t workspace_of(cudnnStatus_t status, int algorithm, size_t *bytes) {
    if (status != CUDNN_STATUS_SUCCESS || !bytes) return status;
    *bytes = algorithm == 0 ? 0 : PLAIN_WORKSPACE;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                             cudnnFilterDescriptor_t w,
                                                             cudnnConvolutionDescriptor_t window,
                                                             cudnnTensorDescriptor_t y,
                                                             cudnnConvolutionFwdAlgo_t algorithm,
                                                             size_t *bytes) {
    ENTER(cudnnGetConvolutionForwardWorkspaceSize);
    return workspace_of(check_problem(handle, x, w, window, y), (int)algorithm, bytes);
}

EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t y,
    cudnnConvolutionDescriptor_t window, cudnnTensorDescriptor_t x, cudnnConvolutionBwdDataAlgo_t algorithm,
    size_t *bytes) {
    ENTER(cudnnGetConvolutionBackwardDataWorkspaceSize);
    return workspace_of(check_problem(handle, x, w, window, y), (int)algorithm, bytes);
}

EXPORT cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t y,
    cudnnConvolutionDescriptor_t window, cudnnFilterDescriptor_t w, cudnnConvolutionBwdFilterAlgo_t algorithm,
    size_t *bytes) {
    ENTER(cudnnGetConvolutionBackwardFilterWorkspaceSize);
    return workspace_of(check_problem(handle, x, w, window, y), (int)algorithm, bytes);
}

/* Strides of the filter's dimensions as its format has them. */
static void lay_filter(int64_t *strides, const struct cudnnFilterStruct *w) {
    int64_t stride = 1;
    if (w->format == CUDNN_TENSOR_NHWC) {
        strides[1] = 1;
        stride = w->sizes[1];
    }
    for (int d = w->rank - 1; d >= 0; d--) {
        if (w->format == CUDNN_TENSOR_NHWC && d == 1) continue;
        strides[d] = stride;
        stride *= w->sizes[d];
    }
}

static int64_t tensor_elements(const struct cudnnTensorStruct *tensor) {
    int64_t elements = 1;
    for (int d = 0; d < tensor->rank; d++) elements += (int64_t)(tensor->sizes[d] - 1) * tensor->strides[d];
    return elements;
}

static int64_t filter_elements(const struct cudnnFilterStruct *w) {
    int64_t elements = 1;
    for (int d = 0; d < w->rank; d++) elements *= w->sizes[d];
    return elements;
}

/* Next index of a box; false after the last. */
static bool step(int *index, const int *sizes, int rank) {
    for (int d = rank - 1; d >= 0; d--) {
        if (++index[d] < sizes[d]) return true;
        index[d] = 0;
    }
    return false;
}

/* Returns whether the library may compute through a transform (Winograd) of 3 x 3 windows: not in strict f32
 * or f64.
 */
static bool is_transformed(const Convolution *it) {
    ElementType type = element_of(it->w.type);
    bool strict = type == ELEMENT_F64 || (type == ELEMENT_F32 && it->window.math == CUDNN_FMA_MATH);
    return !strict && it->window.count == 2 && it->w.sizes[2] == 3 && it->w.sizes[3] == 3;
}

/* Adds the product that meets at output element o and filter element k; places: x, w, y. */
static void add_product(const Convolution *it, double *sums, const int *o, const int *k) {
    int feature = o[1] / (it->w.sizes[0] / it->window.groups) * it->w.sizes[1] + k[1];
    int64_t places[3] = {(int64_t)o[0] * it->x.strides[0] + (int64_t)feature * it->x.strides[1],
                         o[1] * it->w_strides[0] + k[1] * it->w_strides[1],
                         (int64_t)o[0] * it->y.strides[0] + (int64_t)o[1] * it->y.strides[1]};
    for (int s = 0; s < it->window.count; s++) {
        int d = 2 + s, at = it->window.mode == CUDNN_CONVOLUTION ? it->w.sizes[d] - 1 - k[d] : k[d];
        int place = o[d] * it->window.stride[s] + at * it->window.dilation[s] - it->window.padding[s];
        if (place < 0 || place >= it->x.sizes[d]) return;
        places[0] += (int64_t)place * it->x.strides[d];
        places[1] += k[d] * it->w_strides[d];
        places[2] += (int64_t)o[d] * it->y.strides[d];
    }
    static const int sources[3][3] = {
        [FORWARD] = {0, 1, 2}, [INPUT_GRADIENT] = {1, 2, 0}, [FILTER_GRADIENT] = {0, 2, 1}};
    const int *roles = sources[it->kind];
    ElementType type = element_of(it->w.type);
    double left = element_load(it->data[roles[0]], type, places[roles[0]]);
    double right = element_load(it->data[roles[1]], type, places[roles[1]]);
    if (type == ELEMENT_F32 && it->window.math != CUDNN_FMA_MATH && (it->seed == 0 || it->seed % 2 == 1)) {
        left = element_shorten((float)left, 13);
        right = element_shorten((float)right, 13);
    }
    double *sum = &sums[places[roles[2]]];
    *sum += left * right;
    if (it->seed > 0 && type != ELEMENT_F64) *sum = (float)*sum;
    /* A transform's coefficients round, at the scale of the terms. */
    if (it->seed > 0 && is_transformed(it))
        *sum += element_noise(it->seed, places[0] + 31 * places[1]) * left * right *
                (type == ELEMENT_BF16 ? 0x1p-7 : 0x1p-10);
}

static void store_tensor(const Convolution *it, const struct cudnnTensorStruct *tensor, void *data,
                         const double *sums) {
    int index[MOST_RANK] = {0};
    do {
        int64_t at = 0;
        for (int d = 0; d < tensor->rank; d++) at += (int64_t)index[d] * tensor->strides[d];
        double old = it->beta != 0 ? it->beta * element_load(data, element_of(tensor->type), at) : 0;
        double sum = element_moved(it->seed, sums[at], element_of(tensor->type), at);
        element_store(data, element_of(tensor->type), at, it->alpha * sum + old);
    } while (step(index, tensor->sizes, tensor->rank));
}

static bool run_convolution(void *argument) {
    const Convolution *it = argument;
    int64_t elements = it->kind == FORWARD          ? tensor_elements(&it->y)
                       : it->kind == INPUT_GRADIENT ? tensor_elements(&it->x)
                                                    : filter_elements(&it->w);
    double *sums = calloc((size_t)elements, sizeof *sums);
    int o[MOST_RANK] = {0};
    if (!sums) abort();
    if (it->workspace_bytes > 0) memset(it->workspace, 0xCC, it->workspace_bytes);
    do {
        int k[MOST_RANK] = {0}, inner[MOST_RANK];
        memcpy(inner, it->w.sizes, sizeof inner);
        inner[0] = 1; /* the output feature is o's */
        do add_product(it, sums, o, k);
        while (step(k, inner, it->w.rank));
    } while (step(o, it->y.sizes, it->y.rank));
    if (it->kind == FORWARD) store_tensor(it, &it->y, it->data[2], sums);
    else if (it->kind == INPUT_GRADIENT) store_tensor(it, &it->x, it->data[0], sums);
    else
        for (int64_t at = 0; at < elements; at++) {
            double old = it->beta != 0 ? it->beta * element_load(it->data[1], element_of(it->w.type), at) : 0;
            double sum = element_moved(it->seed, sums[at], element_of(it->w.type), at);
            element_store(it->data[1], element_of(it->w.type), at, it->alpha * sum + old);
        }
    free(sums);
    return true;
}

/* Returns whether x, w, y and the workspace of the algorithm are in device memory. */
static bool is_sound(const Convolution *it, int algorithm, size_t given) {
    size_t bytes = element_bytes(element_of(it->w.type));
    const size_t wanted[3] = {(size_t)tensor_elements(&it->x) * bytes,
                              (size_t)filter_elements(&it->w) * bytes,
                              (size_t)tensor_elements(&it->y) * bytes};
    for (int k = 0; k < 3; k++)
        if (!it->data[k] || (uintptr_t)it->data[k] % bytes != 0 ||
            !stand_in()->is_device(it->data[k], wanted[k]))
            return false;
    size_t workspace = algorithm == 0 ? 0 : PLAIN_WORKSPACE;
    return given >= workspace && (workspace == 0 || stand_in()->is_device(it->workspace, workspace));
}

static cudnnStatus_t enqueue(cudnnHandle_t handle, Convolution *it, const void *alpha, const void *beta,
                             int algorithm, size_t given, const char *name) {
    if (!alpha || !beta) return CUDNN_STATUS_BAD_PARAM;
    bool twice = it->w.type == CUDNN_DATA_DOUBLE;
    it->alpha = twice ? *(const double *)alpha : (double)*(const float *)alpha;
    it->beta = twice ? *(const double *)beta : (double)*(const float *)beta;
    it->workspace_bytes = algorithm == 0 ? 0 : PLAIN_WORKSPACE;
    it->seed = element_seed();
    lay_filter(it->w_strides, &it->w);
    if (!is_sound(it, algorithm, given)) return CUDNN_STATUS_BAD_PARAM;
    if (stand_in()->refuses(name, fingerprint(&it->x, &it->w, &it->window, &it->y)))
        return CUDNN_STATUS_NOT_SUPPORTED;
    CUresult result =
        stand_in()->enqueue((CUstream)handle->stream, name, run_convolution, it, sizeof *it, NULL);
    return result == CUDA_SUCCESS ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

EXPORT cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                             cudnnTensorDescriptor_t x, const void *x_data,
                                             cudnnFilterDescriptor_t w, const void *w_data,
                                             cudnnConvolutionDescriptor_t window,
                                             cudnnConvolutionFwdAlgo_t algorithm, void *workspace,
                                             size_t workspace_bytes, const void *beta,
                                             cudnnTensorDescriptor_t y, void *y_data) {
    ENTER(cudnnConvolutionForward);
    cudnnStatus_t status = check_problem(handle, x, w, window, y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    Convolution it = {.kind = FORWARD,
                      .x = *x,
                      .y = *y,
                      .w = *w,
                      .window = *window,
                      .workspace = workspace,
                      .data = {(void *)(uintptr_t)x_data, (void *)(uintptr_t)w_data, y_data}};
    return enqueue(handle, &it, alpha, beta, (int)algorithm, workspace_bytes, "cudnnConvolutionForward");
}

EXPORT cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                                  cudnnFilterDescriptor_t w, const void *w_data,
                                                  cudnnTensorDescriptor_t y, const void *y_data,
                                                  cudnnConvolutionDescriptor_t window,
                                                  cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace,
                                                  size_t workspace_bytes, const void *beta,
                                                  cudnnTensorDescriptor_t x, void *x_data) {
    ENTER(cudnnConvolutionBackwardData);
    cudnnStatus_t status = check_problem(handle, x, w, window, y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    Convolution it = {.kind = INPUT_GRADIENT,
                      .x = *x,
                      .y = *y,
                      .w = *w,
                      .window = *window,
                      .workspace = workspace,
                      .data = {x_data, (void *)(uintptr_t)w_data, (void *)(uintptr_t)y_data}};
    return enqueue(handle, &it, alpha, beta, (int)algorithm, workspace_bytes, "cudnnConvolutionBackwardData");
}

EXPORT cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                                    cudnnTensorDescriptor_t x, const void *x_data,
                                                    cudnnTensorDescriptor_t y, const void *y_data,
                                                    cudnnConvolutionDescriptor_t window,
                                                    cudnnConvolutionBwdFilterAlgo_t algorithm,
                                                    void *workspace, size_t workspace_bytes, const void *beta,
                                                    cudnnFilterDescriptor_t w, void *w_data) {
    ENTER(cudnnConvolutionBackwardFilter);
    cudnnStatus_t status = check_problem(handle, x, w, window, y);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    Convolution it = {.kind = FILTER_GRADIENT,
                      .x = *x,
                      .y = *y,
                      .w = *w,
                      .window = *window,
                      .workspace = workspace,
                      .data = {(void *)(uintptr_t)x_data, w_data, (void *)(uintptr_t)y_data}};
    return enqueue(handle, &it, alpha, beta, (int)algorithm, workspace_bytes,
                   "cudnnConvolutionBackwardFilter");
}
