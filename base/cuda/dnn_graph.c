/* cuDNN's backend API through a table of functions: descriptors with attributes, from which it finds a plan.
 */
#include "base/cuda/dnn_graph.h"

#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda/dnn.h"
#include "base/cuda/library.h"

enum { MOST_DESCRIPTORS = 256, MOST_TENSORS = 64, MOST_ENGINES = 16, ALIGNMENT = 256, NUMBER_ALIGNMENT = 16 };

#define GRAPH_FUNCTIONS(X)           \
    X(cudnnGetVersion)               \
    X(cudnnGetErrorString)           \
    X(cudnnGetLastErrorString)       \
    X(cudnnSetStream)                \
    X(cudnnBackendCreateDescriptor)  \
    X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendSetAttribute)      \
    X(cudnnBackendGetAttribute)      \
    X(cudnnBackendFinalize)          \
    X(cudnnBackendExecute)

static struct { GRAPH_FUNCTIONS(CUDA_MEMBER) } cudnn;

#define SYMBOL(function) CUDA_SYMBOL_IN(cudnn, function)
static const CudaSymbol symbols[] = {GRAPH_FUNCTIONS(SYMBOL)};
static const char *const names[] = {"libcudnn.so.9", NULL};
static CudaLibrary library = {.title = "cuDNN, which fuses attention",
                              .names = names,
                              .symbols = symbols,
                              .symbol_count = sizeof symbols / sizeof *symbols};

typedef struct Tensor {
    cudnnBackendDescriptor_t descriptor;
    bool is_array, is_number;
    Dtype type;
    union {
        float f32;
        int32_t s32;
    } number;
    int64_t sizes[DNN_RANK];
} Tensor;

struct DnnGraph {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t descriptors[MOST_DESCRIPTORS]; /* to destroy, the last first */
    int32_t descriptor_count, operator_count, tensor_count;
    cudnnBackendDescriptor_t operators[MOST_TENSORS];
    Tensor tensors[MOST_TENSORS];
    cudnnBackendDescriptor_t plan;
    bool has_engine; /* for a described device, for which there is no plan */
    int64_t workspace_bytes;
    cudnnStatus_t failure; /* the first */
    const char *failed;    /* what failed */
    char reason[160];      /* of cuDNN */
};

static cudnnDataType_t data_type(Dtype type) {
    switch (type) {
    case DTYPE_F16: return CUDNN_DATA_HALF;
    case DTYPE_BF16: return CUDNN_DATA_BFLOAT16;
    case DTYPE_S32: return CUDNN_DATA_INT32;
    case DTYPE_PRED: return CUDNN_DATA_BOOLEAN;
    default: return CUDNN_DATA_FLOAT;
    }
}

/* Notes the first failure. */
static bool note(DnnGraph *graph, cudnnStatus_t status, const char *what) {
    if (status != CUDNN_STATUS_SUCCESS && graph->failure == CUDNN_STATUS_SUCCESS) {
        graph->failure = status;
        graph->failed = what;
        cudnn.cudnnGetLastErrorString(graph->reason, sizeof graph->reason);
        graph->reason[strcspn(graph->reason, "\n")] = 0;
    }
    return graph->failure == CUDNN_STATUS_SUCCESS;
}

/* Creates a descriptor, which the graph owns; NULL after a failure. */
static cudnnBackendDescriptor_t create(DnnGraph *graph, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t made = NULL;
    if (graph->failure != CUDNN_STATUS_SUCCESS) return NULL;
    if (graph->descriptor_count == MOST_DESCRIPTORS) {
        note(graph, CUDNN_STATUS_NOT_SUPPORTED, "too many parts");
        return NULL;
    }
    if (!note(graph, cudnn.cudnnBackendCreateDescriptor(type, &made), "a description")) return NULL;
    graph->descriptors[graph->descriptor_count++] = made;
    return made;
}

static void set(DnnGraph *graph, cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (graph->failure != CUDNN_STATUS_SUCCESS) return;
    note(graph, cudnn.cudnnBackendSetAttribute(to, name, type, count, values), "an attribute");
}

static void set_descriptor(DnnGraph *graph, cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value) {
    set(graph, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_tensor(DnnGraph *graph, cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                       int32_t tensor) {
    if (tensor >= 0) set_descriptor(graph, to, name, graph->tensors[tensor].descriptor);
}

static bool finalize(DnnGraph *graph, cudnnBackendDescriptor_t descriptor, const char *what) {
    if (graph->failure != CUDNN_STATUS_SUCCESS) return false;
    return note(graph, cudnn.cudnnBackendFinalize(descriptor), what);
}

static void add_operator(DnnGraph *graph, cudnnBackendDescriptor_t made) {
    if (!finalize(graph, made, "an operator")) return;
    if (graph->operator_count == MOST_TENSORS) note(graph, CUDNN_STATUS_NOT_SUPPORTED, "too many operators");
    else graph->operators[graph->operator_count++] = made;
}

AmStatus dnn_graph_open(DnnGraph **graph, AmError *error) {
    *graph = NULL;
    TRY(cuda_library_open(&library, error));
    *graph = calloc(1, sizeof **graph);
    return *graph ? AM_OK : am_fail_memory(error, (int64_t)sizeof **graph);
}

void dnn_graph_close(DnnGraph *graph) {
    if (!graph) return;
    while (graph->descriptor_count > 0)
        cudnn.cudnnBackendDestroyDescriptor(graph->descriptors[--graph->descriptor_count]);
    free(graph);
}

static int32_t add_tensor(DnnGraph *graph, Dtype type, const int64_t *sizes, const int64_t *strides,
                          bool is_virtual, bool is_number) {
    int32_t number = graph->tensor_count;
    if (number == MOST_TENSORS) {
        note(graph, CUDNN_STATUS_NOT_SUPPORTED, "too many tensors");
        return 0;
    }
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t data = data_type(type);
    int64_t alignment = NUMBER_ALIGNMENT, identity = number + 1;
    set(graph, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &data);
    set(graph, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DNN_RANK, sizes);
    set(graph, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DNN_RANK, strides);
    set(graph, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &identity);
    set(graph, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(graph, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(graph, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_number);
    finalize(graph, made, "a tensor");
    graph->tensors[number] = (Tensor){
        .descriptor = made, .type = type, .is_array = !is_virtual && !is_number, .is_number = is_number};
    memcpy(graph->tensors[number].sizes, sizes, sizeof graph->tensors[number].sizes);
    graph->tensor_count++;
    return number;
}

int32_t dnn_graph_array(DnnGraph *graph, Dtype type, const int64_t *sizes, const int64_t *strides) {
    return add_tensor(graph, type, sizes, strides, false, false);
}

int32_t dnn_graph_virtual_strided(DnnGraph *graph, Dtype type, const int64_t *sizes, const int64_t *strides) {
    return add_tensor(graph, type, sizes, strides, true, false);
}

int32_t dnn_graph_virtual(DnnGraph *graph, Dtype type, const int64_t *sizes) {
    int64_t strides[DNN_RANK] = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
    return add_tensor(graph, type, sizes, strides, true, false);
}

int32_t dnn_graph_number(DnnGraph *graph, Dtype type, double value) {
    static const int64_t ones[DNN_RANK] = {1, 1, 1, 1};
    int32_t made = add_tensor(graph, type, ones, ones, false, true);
    if (type == DTYPE_S32) graph->tensors[made].number.s32 = (int32_t)value;
    else graph->tensors[made].number.f32 = (float)value;
    return made;
}

static const struct {
    cudnnPointwiseMode_t mode;
    int64_t axis; /* -1: none */
    Dtype compute;
} operators[] = {
    [DNN_ADD] = {CUDNN_POINTWISE_ADD, -1, DTYPE_F32},
    [DNN_SUBTRACT] = {CUDNN_POINTWISE_SUB, -1, DTYPE_F32},
    [DNN_MULTIPLY] = {CUDNN_POINTWISE_MUL, -1, DTYPE_F32},
    [DNN_DIVIDE] = {CUDNN_POINTWISE_DIV, -1, DTYPE_F32},
    [DNN_EXPONENTIAL] = {CUDNN_POINTWISE_EXP, -1, DTYPE_F32},
    [DNN_LOGARITHM] = {CUDNN_POINTWISE_LOG, -1, DTYPE_F32},
    [DNN_ROW_INDEX] = {CUDNN_POINTWISE_GEN_INDEX, 2, DTYPE_F32},
    [DNN_KEY_INDEX] = {CUDNN_POINTWISE_GEN_INDEX, 3, DTYPE_F32},
    [DNN_GREATER] = {CUDNN_POINTWISE_CMP_GT, -1, DTYPE_PRED},
    [DNN_GREATER_EQUAL] = {CUDNN_POINTWISE_CMP_GE, -1, DTYPE_PRED},
    [DNN_SELECT] = {CUDNN_POINTWISE_BINARY_SELECT, -1, DTYPE_F32},
};

void dnn_graph_pointwise(DnnGraph *graph, DnnOperator kind, int32_t a, int32_t b, int32_t c, int32_t result) {
    cudnnBackendDescriptor_t mode = create(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    /* Positions are added in the type of their sum. */
    bool is_integer = operators[kind].compute == DTYPE_F32 && graph->tensors[result].type == DTYPE_S32 &&
                      operators[kind].axis < 0;
    cudnnDataType_t compute = data_type(is_integer ? DTYPE_S32 : operators[kind].compute);
    set(graph, mode, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &operators[kind].mode);
    set(graph, mode, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (operators[kind].axis >= 0)
        set(graph, mode, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &operators[kind].axis);
    finalize(graph, mode, "an operator's mode");
    set_descriptor(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, c);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    add_operator(graph, made);
}

void dnn_graph_multiply_matrices(DnnGraph *graph, int32_t a, int32_t b, int32_t result) {
    cudnnBackendDescriptor_t mode = create(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    set(graph, mode, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(graph, mode, "a product's mode");
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, result);
    set_descriptor(graph, made, CUDNN_ATTR_OPERATION_MATMUL_DESC, mode);
    add_operator(graph, made);
}

void dnn_graph_reduce(DnnGraph *graph, bool is_maximum, int32_t a, int32_t result) {
    cudnnBackendDescriptor_t mode = create(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnReduceTensorOp_t fold = is_maximum ? CUDNN_REDUCE_TENSOR_MAX : CUDNN_REDUCE_TENSOR_ADD;
    set(graph, mode, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &fold);
    set(graph, mode, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(graph, mode, "a reduction's mode");
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, a);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
    set_descriptor(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode);
    add_operator(graph, made);
}

void dnn_graph_reshape(DnnGraph *graph, int32_t a, int32_t result) {
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, a);
    set_tensor(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result);
    add_operator(graph, made);
}

/* Returns whether the engine of a configuration gives equal bits in equal runs. */
static bool is_deterministic(DnnGraph *graph, cudnnBackendDescriptor_t configuration) {
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = create(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;
    if (!engine || cudnn.cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                                  &engine) != CUDNN_STATUS_SUCCESS)
        return false;
    if (cudnn.cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                       notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t k = 0; k < count; k++)
        if (notes[k] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return true;
}

/* Builds the plan of a configuration; false: cuDNN cannot. */
static bool build_plan(DnnGraph *graph, cudnnBackendDescriptor_t configuration) {
    int64_t count = 0;
    cudnnBackendDescriptor_t plan = create(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (!plan) return false;
    if (graph->handle)
        set(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &graph->handle);
    set_descriptor(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    if (!finalize(graph, plan, "a plan")) return false;
    if (!note(graph,
              cudnn.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                             1, &count, &graph->workspace_bytes),
              "a plan's memory"))
        return false;
    graph->plan = plan;
    return true;
}

/* Tries the heuristic's configurations in their order. */
static void choose_engine(DnnGraph *graph, cudnnBackendDescriptor_t operations,
                          cudnnBackendDescriptor_t device) {
    cudnnBackendDescriptor_t found[MOST_ENGINES];
    cudnnBackendDescriptor_t heuristic = create(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    set_descriptor(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    set(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (device) set_descriptor(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    if (!finalize(graph, heuristic, "the heuristic")) return;
    for (int32_t k = 0; k < MOST_ENGINES; k++) found[k] = create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (graph->failure != CUDNN_STATUS_SUCCESS) return;
    if (!note(graph,
              cudnn.cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_ENGINES, &count, found),
              "the heuristic's answer"))
        return;
    cudnnStatus_t first = CUDNN_STATUS_SUCCESS;
    for (int64_t k = 0; k < count && k < MOST_ENGINES; k++) {
        if (!is_deterministic(graph, found[k])) continue;
        if (device) graph->has_engine = true;
        if (device || build_plan(graph, found[k])) return;
        if (first == CUDNN_STATUS_SUCCESS) first = graph->failure;
        graph->failure = CUDNN_STATUS_SUCCESS; /* the next one */
    }
    note(graph, first == CUDNN_STATUS_SUCCESS ? CUDNN_STATUS_NOT_SUPPORTED : first, "no engine");
}

/* Fails with the first failure of the graph: AM_ERROR_INPUT if cuDNN does not support it. */
static AmStatus report(const DnnGraph *graph, AmError *error) {
    int category = (int)graph->failure / 1000 * 1000;
    bool refuses = category == CUDNN_STATUS_BAD_PARAM || category == CUDNN_STATUS_NOT_SUPPORTED ||
                   category == CUDNN_STATUS_INTERNAL_ERROR ||
                   graph->failure == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED;
    return am_fail(error, refuses ? AM_ERROR_INPUT : AM_ERROR_RUNTIME, "", "cuDNN: %s: %s", graph->failed,
                   graph->reason[0] ? graph->reason : cudnn.cudnnGetErrorString(graph->failure));
}

AmStatus dnn_graph_plan(DnnGraph *graph, void *handle, const char *properties, AmError *error) {
    cudnnBackendDescriptor_t device = NULL, operations;
    graph->handle = handle;
    if (properties) {
        device = create(graph, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
        set(graph, device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
            (int64_t)strlen(properties), properties);
        finalize(graph, device, "the device");
    }
    operations = create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (handle)
        set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &graph->handle);
    set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        graph->operator_count, graph->operators);
    if (finalize(graph, operations, "the graph")) choose_engine(graph, operations, device);
    return graph->plan || graph->has_engine ? AM_OK : report(graph, error);
}

int64_t dnn_graph_workspace(const DnnGraph *graph) {
    return graph->workspace_bytes > 0 ? graph->workspace_bytes + ALIGNMENT - 1 : 0;
}

AmStatus dnn_graph_run(DnnGraph *graph, CUstream stream, void *const *addresses, void *workspace,
                       AmError *error) {
    int64_t identities[MOST_TENSORS];
    void *places[MOST_TENSORS];
    int32_t count = 0, arrays = 0, before = graph->descriptor_count;
    void *aligned = (void *)(((uintptr_t)workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    for (int32_t k = 0; k < graph->tensor_count; k++) {
        Tensor *tensor = &graph->tensors[k];
        if (!tensor->is_array && !tensor->is_number) continue;
        identities[count] = k + 1;
        places[count++] = tensor->is_array ? addresses[arrays++] : (void *)&tensor->number;
    }
    cudnnBackendDescriptor_t pack = create(graph, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(graph, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, identities);
    set(graph, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, places);
    set(graph, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &aligned);
    if (finalize(graph, pack, "the arrays") &&
        note(graph, cudnn.cudnnSetStream(graph->handle, (cudaStream_t)stream), "its stream"))
        note(graph, cudnn.cudnnBackendExecute(graph->handle, graph->plan, pack), "a run");
    while (graph->descriptor_count > before)
        cudnn.cudnnBackendDestroyDescriptor(graph->descriptors[--graph->descriptor_count]);
    return graph->failure == CUDNN_STATUS_SUCCESS ? AM_OK : report(graph, error);
}
