/* The graph API of the stand-in for libcudnn: it evaluates the operators of a graph one after the other, each
 * on whole tensors of doubles, and rounds every result to the tensor's type.
 *
 * Checked of the caller: descriptors are finalised before they are used, attributes have the type and number
 * that the documentation states, sizes of operands fit, arrays are in device memory, and every tensor that is
 * neither virtual nor a number gets an address. The heuristic first proposes an engine that gives different
 * bits each time. Graphs that the fused engines would refuse for their structure alone are evaluated: tests
 * of the real library (test_cudnn_engines.c) find these.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/cuda/stand_in/cudnn_parts.h"

enum { RANK = 4, MOST_ATTRIBUTES = 16, MOST_OPERATIONS = 64, MOST_TENSORS = 64, GRAPH_WORKSPACE = 1000 };

typedef struct Attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *data;
} Attribute;

/* cudnnBackendDescriptor_t points to this. */
typedef struct Descriptor {
    Tag tag;
    cudnnBackendDescriptorType_t type;
    bool is_final;
    int32_t count;
    int64_t engine; /* of a configuration and an engine: 0 gives different bits each time */
    Attribute attributes[MOST_ATTRIBUTES];
} Descriptor;

typedef struct Tensor {
    cudnnDataType_t type;
    bool is_virtual, is_number;
    int64_t identity, sizes[RANK], strides[RANK];
    void *place; /* of an array */
    double number;
} Tensor;

typedef struct Operation {
    cudnnBackendDescriptorType_t type;
    int mode; /* pointwise mode or fold */
    int64_t axis;
    int32_t a, b, c, result; /* tensors; -1: none */
} Operation;

/* A graph on its way through a stream. */
typedef struct Run {
    int32_t operation_count, tensor_count;
    Operation operations[MOST_OPERATIONS];
    Tensor tensors[MOST_TENSORS];
    void *workspace;
} Run;

static Descriptor *descriptor_of(cudnnBackendDescriptor_t descriptor) {
    Descriptor *it = (Descriptor *)descriptor;
    return it && it->tag == TAG_GRAPH ? it : NULL;
}

static const Attribute *find(const Descriptor *it, cudnnBackendAttributeName_t name) {
    for (int32_t k = 0; it && k < it->count; k++)
        if (it->attributes[k].name == name) return &it->attributes[k];
    return NULL;
}

static Descriptor *child(const Descriptor *it, cudnnBackendAttributeName_t name) {
    const Attribute *attribute = find(it, name);
    return attribute ? descriptor_of(((cudnnBackendDescriptor_t *)attribute->data)[0]) : NULL;
}

static int64_t integer_of(const Descriptor *it, cudnnBackendAttributeName_t name, int64_t missing) {
    const Attribute *attribute = find(it, name);
    return attribute ? ((const int64_t *)attribute->data)[0] : missing;
}

static int enumerator_of(const Descriptor *it, cudnnBackendAttributeName_t name) {
    const Attribute *attribute = find(it, name);
    return attribute ? ((const int *)attribute->data)[0] : -1;
}

static bool truth_of(const Descriptor *it, cudnnBackendAttributeName_t name) {
    const Attribute *attribute = find(it, name);
    return attribute && ((const bool *)attribute->data)[0];
}

static size_t bytes_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    default: return 4;
    }
}

EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
    if (size > 0) message[0] = 0;
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                  cudnnBackendDescriptor_t *descriptor) {
    ENTER(cudnnBackendCreateDescriptor);
    Descriptor *made = calloc(1, sizeof *made);
    if (!made) return CUDNN_STATUS_INTERNAL_ERROR;
    made->tag = TAG_GRAPH;
    made->type = type;
    made->engine = -1;
    *descriptor = (cudnnBackendDescriptor_t)made;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    ENTER(cudnnBackendDestroyDescriptor);
    Descriptor *it = descriptor_of(descriptor);
    if (!it) return CUDNN_STATUS_BAD_PARAM;
    for (int32_t k = 0; k < it->count; k++) free(it->attributes[k].data);
    it->tag = 0;
    free(it);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count,
                                              const void *values) {
    ENTER(cudnnBackendSetAttribute);
    Descriptor *it = descriptor_of(descriptor);
    if (!it || it->is_final || find(it, name) || it->count == MOST_ATTRIBUTES || count < 1 || !values)
        return CUDNN_STATUS_BAD_PARAM;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t k = 0; k < count; k++) {
            const Descriptor *value = descriptor_of(((const cudnnBackendDescriptor_t *)values)[k]);
            if (!value || !value->is_final) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
        }
    size_t bytes = bytes_of(type) * (size_t)count;
    void *data = malloc(bytes);
    if (!data) return CUDNN_STATUS_INTERNAL_ERROR;
    memcpy(data, values, bytes);
    it->attributes[it->count++] = (Attribute){.name = name, .type = type, .count = count, .data = data};
    return CUDNN_STATUS_SUCCESS;
}

/* Every attribute of a list is there. */
static bool has_all(const Descriptor *it, const int *names, size_t count) {
    for (size_t k = 0; k < count; k++)
        if (!find(it, (cudnnBackendAttributeName_t)names[k])) return false;
    return true;
}
#define HAS_ALL(it, ...) \
    has_all(it, (const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int))

static bool is_sound(const Descriptor *it) {
    switch (it->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
        const Attribute *sizes = find(it, CUDNN_ATTR_TENSOR_DIMENSIONS);
        const Attribute *strides = find(it, CUDNN_ATTR_TENSOR_STRIDES);
        if (!HAS_ALL(it, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_UNIQUE_ID,
                     CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) ||
            !sizes || !strides || sizes->count != RANK || strides->count != RANK)
            return false;
        for (int32_t d = 0; d < RANK; d++)
            if (((int64_t *)sizes->data)[d] < 1 || ((int64_t *)strides->data)[d] < 1) return false;
        return true;
    }
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MATH_PREC);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                       CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR: return HAS_ALL(it, CUDNN_ATTR_MATMUL_COMP_TYPE);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
                       CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_MATMUL_DESC);
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_ATTR_REDUCTION_COMP_TYPE);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
                       CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return HAS_ALL(it, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                       CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    default: return false;
    }
}

EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    ENTER(cudnnBackendFinalize);
    Descriptor *it = descriptor_of(descriptor);
    if (!it || it->is_final || !is_sound(it)) return CUDNN_STATUS_BAD_PARAM;
    if (it->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && stand_in()->refuses("cudnnBackendFinalize", 1))
        return CUDNN_STATUS_NOT_SUPPORTED;
    it->is_final = true;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t wanted,
                                              int64_t *count, void *values) {
    ENTER(cudnnBackendGetAttribute);
    const Descriptor *it = descriptor_of(descriptor);
    if (!it || !it->is_final || wanted < 1 || !values || !count) return CUDNN_STATUS_BAD_PARAM;
    Descriptor **given = type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? (Descriptor **)values : NULL;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: /* two configurations, in descriptors that the caller has made */
        *count = 2;
        for (int32_t k = 0; k < 2 && k < wanted; k++) {
            if (!given[k] || given[k]->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
                return CUDNN_STATUS_BAD_PARAM;
            given[k]->engine = k;
            given[k]->is_final = true;
            given[k]->attributes[0] = (Attribute){.name = CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                                                  .type = CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                  .count = 1,
                                                  .data = malloc(8)};
            if (!given[k]->attributes[0].data) return CUDNN_STATUS_INTERNAL_ERROR;
            memcpy(given[k]->attributes[0].data, find(it, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->data, 8);
            given[k]->count = 1;
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        if (!given[0] || given[0]->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR) return CUDNN_STATUS_BAD_PARAM;
        *count = 1;
        given[0]->engine = it->engine;
        given[0]->is_final = true;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = 1;
        *(cudnnBackendNumericalNote_t *)values =
            it->engine == 0 ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *count = 1;
        *(int64_t *)values = GRAPH_WORKSPACE;
        return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_NOT_SUPPORTED;
    }
}

/* ---- evaluation ---- */

static int64_t elements_of(const Tensor *tensor) {
    return tensor->sizes[0] * tensor->sizes[1] * tensor->sizes[2] * tensor->sizes[3];
}

static double round_to(const Tensor *tensor, double value) {
    unsigned char memory[8];
    if (tensor->type == CUDNN_DATA_INT32 || tensor->type == CUDNN_DATA_BOOLEAN) return value;
    element_store(memory, element_of(tensor->type), 0, value);
    return element_load(memory, element_of(tensor->type), 0);
}

/* The place of element `at` [RANK] of another tensor in this one: an index goes to its share of the size. */
static int64_t place_of(const Tensor *tensor, const int64_t *at, const int64_t *sizes) {
    int64_t place = 0;
    for (int32_t d = 0; d < RANK; d++) place = place * tensor->sizes[d] + at[d] * tensor->sizes[d] / sizes[d];
    return place;
}

static void next_index(int64_t *at, const int64_t *sizes) {
    for (int32_t d = RANK - 1; d >= 0; d--) {
        if (++at[d] < sizes[d]) return;
        at[d] = 0;
    }
}

static int64_t offset_of(const Tensor *tensor, const int64_t *at) {
    int64_t offset = 0;
    for (int32_t d = 0; d < RANK; d++) offset += at[d] * tensor->strides[d];
    return offset;
}

static double point(int mode, double x, double b, double t) {
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return exp(x);
    case CUDNN_POINTWISE_LOG: return log(x);
    case CUDNN_POINTWISE_CMP_GT: return x > b;
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: return NAN;
    }
}

static void evaluate_pointwise(const Operation *it, const Tensor *tensors, double **values) {
    const Tensor *result = &tensors[it->result];
    int64_t at[RANK] = {0};
    for (int64_t i = 0; i < elements_of(result); i++, next_index(at, result->sizes)) {
        double of[3] = {0, 0, 0};
        const int32_t operands[3] = {it->a, it->b, it->c};
        for (int32_t k = 0; k < 3; k++)
            if (operands[k] >= 0)
                of[k] = values[operands[k]][place_of(&tensors[operands[k]], at, result->sizes)];
        bool is_index = it->mode == CUDNN_POINTWISE_GEN_INDEX;
        double value = is_index ? (double)at[it->axis] : point(it->mode, of[0], of[1], of[2]);
        values[it->result][i] = round_to(result, value);
    }
}

static void evaluate_product(const Operation *it, const Tensor *tensors, double **values) {
    const Tensor *result = &tensors[it->result], *a = &tensors[it->a], *b = &tensors[it->b];
    int64_t at[RANK] = {0}, depth = a->sizes[3];
    for (int64_t i = 0; i < elements_of(result); i++, next_index(at, result->sizes)) {
        int64_t of_a =
            at[0] * a->sizes[0] / result->sizes[0] * a->sizes[1] + at[1] * a->sizes[1] / result->sizes[1];
        int64_t of_b =
            at[0] * b->sizes[0] / result->sizes[0] * b->sizes[1] + at[1] * b->sizes[1] / result->sizes[1];
        double sum = 0;
        for (int64_t k = 0; k < depth; k++)
            sum += values[it->a][(of_a * a->sizes[2] + at[2]) * depth + k] *
                   values[it->b][(of_b * depth + k) * b->sizes[3] + at[3]];
        values[it->result][i] = round_to(result, sum);
    }
}

static void evaluate_reduction(const Operation *it, const Tensor *tensors, double **values) {
    const Tensor *result = &tensors[it->result], *a = &tensors[it->a];
    bool is_maximum = it->mode == CUDNN_REDUCE_TENSOR_MAX;
    int64_t at[RANK] = {0};
    for (int64_t i = 0; i < elements_of(result); i++) values[it->result][i] = is_maximum ? -INFINITY : 0;
    for (int64_t i = 0; i < elements_of(a); i++, next_index(at, a->sizes)) {
        double *place = &values[it->result][place_of(result, at, a->sizes)];
        *place = is_maximum ? fmax(*place, values[it->a][i]) : *place + values[it->a][i];
    }
    for (int64_t i = 0; i < elements_of(result); i++)
        values[it->result][i] = round_to(result, values[it->result][i]);
}

/* Both tensors are views of the same memory. */
static void evaluate_reshape(const Operation *it, const Tensor *tensors, double **values) {
    const Tensor *result = &tensors[it->result], *a = &tensors[it->a];
    int64_t at[RANK] = {0};
    for (int64_t i = 0; i < elements_of(result); i++, next_index(at, result->sizes)) {
        int64_t offset = offset_of(result, at), from[RANK] = {0}, bound = INT64_MAX;
        for (int32_t step = 0; step < RANK; step++) { /* the dimensions from the largest stride on */
            int32_t largest = -1;
            for (int32_t d = 0; d < RANK; d++)
                if (a->sizes[d] > 1 && a->strides[d] < bound &&
                    (largest < 0 || a->strides[d] > a->strides[largest]))
                    largest = d;
            if (largest < 0) break;
            bound = a->strides[largest];
            from[largest] = offset / bound;
            offset %= bound;
        }
        values[it->result][i] = values[it->a][place_of(a, from, a->sizes)];
    }
}

static void load(const Tensor *tensor, double *values) {
    int64_t at[RANK] = {0};
    for (int64_t i = 0; i < elements_of(tensor); i++, next_index(at, tensor->sizes))
        values[i] = tensor->is_number
                        ? tensor->number
                        : element_load(tensor->place, element_of(tensor->type), offset_of(tensor, at));
}

static void store(const Tensor *tensor, const double *values) {
    int64_t at[RANK] = {0};
    for (int64_t i = 0; i < elements_of(tensor); i++, next_index(at, tensor->sizes))
        element_store(tensor->place, element_of(tensor->type), offset_of(tensor, at), values[i]);
}

static bool run_graph(void *argument) {
    const Run *run = argument;
    double *values[MOST_TENSORS] = {NULL};
    memset(run->workspace, 0xa5, GRAPH_WORKSPACE);
    for (int32_t k = 0; k < run->tensor_count; k++) {
        values[k] = calloc((size_t)elements_of(&run->tensors[k]), sizeof *values[k]);
        if (!values[k]) abort();
    }
    bool is_made[MOST_TENSORS] = {false};
    for (int32_t k = 0; k < run->operation_count; k++) is_made[run->operations[k].result] = true;
    for (int32_t k = 0; k < run->tensor_count; k++)
        if (!is_made[k]) load(&run->tensors[k], values[k]);
    for (int32_t k = 0; k < run->operation_count; k++) {
        const Operation *it = &run->operations[k];
        if (it->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            evaluate_pointwise(it, run->tensors, values);
        else if (it->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            evaluate_product(it, run->tensors, values);
        else if (it->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            evaluate_reduction(it, run->tensors, values);
        else evaluate_reshape(it, run->tensors, values);
        if (!run->tensors[it->result].is_virtual) store(&run->tensors[it->result], values[it->result]);
    }
    for (int32_t k = 0; k < run->tensor_count; k++) free(values[k]);
    return true;
}

/* ---- a graph becomes a run ---- */

/* The number of a tensor in the run, which is added at its first use; -1: none, or too many. */
static int32_t add_tensor(Run *run, const Descriptor *it) {
    if (!it) return -1;
    int64_t identity = integer_of(it, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    for (int32_t k = 0; k < run->tensor_count; k++)
        if (run->tensors[k].identity == identity) return k;
    if (run->tensor_count == MOST_TENSORS) return -1;
    Tensor *tensor = &run->tensors[run->tensor_count];
    *tensor = (Tensor){.type = (cudnnDataType_t)enumerator_of(it, CUDNN_ATTR_TENSOR_DATA_TYPE),
                       .is_virtual = truth_of(it, CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                       .is_number = truth_of(it, CUDNN_ATTR_TENSOR_IS_BY_VALUE),
                       .identity = identity};
    memcpy(tensor->sizes, find(it, CUDNN_ATTR_TENSOR_DIMENSIONS)->data, sizeof tensor->sizes);
    memcpy(tensor->strides, find(it, CUDNN_ATTR_TENSOR_STRIDES)->data, sizeof tensor->strides);
    return run->tensor_count++;
}

/* Sizes of operands divide those of the result; a product's inner sizes are equal. */
static bool fits(const Run *run, const Operation *it) {
    const Tensor *result = &run->tensors[it->result];
    const int32_t operands[3] = {it->a, it->b, it->c};
    if (it->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        const Tensor *a = &run->tensors[it->a], *b = &run->tensors[it->b];
        return a->sizes[3] == b->sizes[2] && a->sizes[2] == result->sizes[2] &&
               b->sizes[3] == result->sizes[3] && a->type == b->type &&
               (a->type == CUDNN_DATA_BFLOAT16 || a->type == CUDNN_DATA_HALF);
    }
    for (int32_t k = 0; k < 3; k++)
        for (int32_t d = 0; d < RANK && operands[k] >= 0; d++) {
            int64_t own = run->tensors[operands[k]].sizes[d], of_result = result->sizes[d];
            if (it->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ? own % of_result != 0
                : it->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR ? false
                                                                         : own != of_result && own != 1)
                return false;
        }
    return it->type != CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR ||
           elements_of(&run->tensors[it->a]) == elements_of(result);
}

static bool add_operation(Run *run, const Descriptor *it) {
    static const struct {
        cudnnBackendDescriptorType_t type;
        int a, b, c, result, mode_of, mode; /* attributes; 0: none */
    } rows[] = {
        {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
         CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
         CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
         CUDNN_ATTR_POINTWISE_MODE},
        {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
         CUDNN_ATTR_OPERATION_MATMUL_BDESC, 0, CUDNN_ATTR_OPERATION_MATMUL_CDESC, 0, 0},
        {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0, 0,
         CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
         CUDNN_ATTR_REDUCTION_OPERATOR},
        {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0, 0,
         CUDNN_ATTR_OPERATION_RESHAPE_YDESC, 0, 0},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (rows[k].type != it->type || run->operation_count == MOST_OPERATIONS) continue;
        const Descriptor *mode =
            rows[k].mode_of ? child(it, (cudnnBackendAttributeName_t)rows[k].mode_of) : NULL;
        Operation *made = &run->operations[run->operation_count++];
        *made =
            (Operation){.type = it->type,
                        .mode = mode ? enumerator_of(mode, (cudnnBackendAttributeName_t)rows[k].mode) : 0,
                        .axis = mode ? integer_of(mode, CUDNN_ATTR_POINTWISE_AXIS, 0) : 0,
                        .a = add_tensor(run, child(it, (cudnnBackendAttributeName_t)rows[k].a)),
                        .b = -1,
                        .c = -1,
                        .result = add_tensor(run, child(it, (cudnnBackendAttributeName_t)rows[k].result))};
        if (rows[k].b) made->b = add_tensor(run, child(it, (cudnnBackendAttributeName_t)rows[k].b));
        if (rows[k].c) made->c = add_tensor(run, child(it, (cudnnBackendAttributeName_t)rows[k].c));
        return made->a >= 0 && made->result >= 0 && fits(run, made);
    }
    return false;
}

/* Addresses of arrays and values of numbers. */
static bool add_places(Run *run, const Descriptor *pack) {
    const Attribute *identities = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const Attribute *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (identities->count != pointers->count) return false;
    for (int32_t k = 0; k < run->tensor_count; k++) {
        Tensor *tensor = &run->tensors[k];
        if (tensor->is_virtual) continue;
        void *place = NULL;
        for (int64_t n = 0; n < identities->count; n++)
            if (((int64_t *)identities->data)[n] == tensor->identity) place = ((void **)pointers->data)[n];
        if (!place) return false;
        if (tensor->is_number) {
            tensor->number =
                tensor->type == CUDNN_DATA_INT32 ? *(const int32_t *)place : *(const float *)place;
            continue;
        }
        int64_t last[RANK];
        for (int32_t d = 0; d < RANK; d++) last[d] = tensor->sizes[d] - 1;
        size_t bytes = (size_t)(offset_of(tensor, last) + 1) * element_bytes(element_of(tensor->type));
        if ((uintptr_t)place % 16 != 0 || !stand_in()->is_device(place, bytes)) return false;
        tensor->place = place;
    }
    run->workspace = ((void **)find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->data)[0];
    return stand_in()->is_device(run->workspace, GRAPH_WORKSPACE);
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                         cudnnBackendDescriptor_t pack) {
    ENTER(cudnnBackendExecute);
    const Descriptor *of_plan = descriptor_of(plan), *of_pack = descriptor_of(pack);
    if (!handle || handle->tag != TAG_HANDLE || !of_plan || !of_plan->is_final || !of_pack ||
        !of_pack->is_final)
        return CUDNN_STATUS_BAD_PARAM;
    const Descriptor *configuration = child(of_plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const Descriptor *graph = child(configuration, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    const Attribute *operations = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    Run *run = calloc(1, sizeof *run);
    if (!run) return CUDNN_STATUS_INTERNAL_ERROR;
    bool is_good = configuration->engine == 1;
    for (int64_t k = 0; k < operations->count && is_good; k++)
        is_good = add_operation(run, descriptor_of(((cudnnBackendDescriptor_t *)operations->data)[k]));
    cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM;
    if (is_good && add_places(run, of_pack)) {
        status = CUDNN_STATUS_NOT_SUPPORTED;
        if (!stand_in()->refuses("cudnnBackendExecute", (uint64_t)run->tensor_count))
            status = stand_in()->enqueue((CUstream)handle->stream, "cudnnBackendExecute", run_graph, run,
                                         sizeof *run, NULL) == CUDA_SUCCESS
                         ? CUDNN_STATUS_SUCCESS
                         : CUDNN_STATUS_EXECUTION_FAILED;
    }
    free(run);
    return status;
}
