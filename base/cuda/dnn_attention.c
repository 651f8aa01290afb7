/* The operators of attention in the order in which cuDNN's fused engines expect them.
 *
 * NVIDIA's open front end of cuDNN (cudnn-frontend, node/scaled_dot_product_flash_attention.h) documents the
 * graphs that the engines accept by building them. With s, p and their gradients ds, dp [batch, head, row,
 * key]:
 *
 *   forward    s = scale q k^T + bias, masked;  m = max s;  e = exp(s - m);  l = sum e;  o = (e / l) v
 *   backward   d = sum over widths of do o;  p = exp(s - log-sum-exp);  dv = p^T do;  dp = do v^T
 *              ds = scale (dp - d) p;  dk = ds^T q;  dq = ds k
 */
#include "base/cuda/dnn_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda/trial.h"

enum { ALIGNMENT = 256 };

struct CudaAttention {
    CudaAttentionShape shape;
    DnnGraph *graph;
    int32_t count;                            /* arrays of the graph */
    int32_t order[ATTENTION_ARRAY_COUNT + 1]; /* those arrays; ATTENTION_ARRAY_COUNT: the sums `d` */
    int64_t sums_bytes;
    CudaAttention *next;
};

static void sizes_of(int64_t sizes[DNN_RANK], const CudaAttentionShape *shape, CudaAttentionArray array) {
    bool is_key = array == ATTENTION_KEYS || array == ATTENTION_VALUES || array == ATTENTION_KEY_GRADIENT ||
                  array == ATTENTION_VALUE_GRADIENT;
    bool is_row = array == ATTENTION_LOG_SUM || array == ATTENTION_MAXIMUM || array == ATTENTION_SUM;
    sizes[0] = shape->batch;
    sizes[1] = is_key ? shape->key_heads : shape->heads;
    sizes[2] = is_key ? shape->keys : shape->rows;
    sizes[3] = is_row ? 1 : shape->width;
}

static void swap_last(int64_t list[DNN_RANK]) {
    int64_t kept = list[2];
    list[2] = list[3];
    list[3] = kept;
}

/* Adds an array of the attention, or its transpose. */
static int32_t add_array(CudaAttention *self, CudaAttentionArray array, bool is_transposed) {
    const CudaAttentionShape *shape = &self->shape;
    bool is_row = array == ATTENTION_LOG_SUM || array == ATTENTION_MAXIMUM || array == ATTENTION_SUM;
    int64_t sizes[DNN_RANK], strides[DNN_RANK];
    sizes_of(sizes, shape, array);
    if (array == ATTENTION_BIAS) memcpy(sizes, shape->bias_sizes, sizeof sizes);
    memcpy(strides, shape->strides[array], sizeof strides);
    if (is_transposed) swap_last(sizes), swap_last(strides);
    self->order[self->count++] = (int32_t)array;
    return dnn_graph_array(self->graph,
                           is_row                    ? DTYPE_F32
                           : array == ATTENTION_BIAS ? shape->bias_type
                                                     : shape->type,
                           sizes, strides);
}

/* Adds an operator, and returns its result, virtual and of f32. */
static int32_t compute(CudaAttention *self, DnnOperator kind, int32_t a, int32_t b,
                       const int64_t sizes[DNN_RANK]) {
    int32_t result = dnn_graph_virtual(self->graph, DTYPE_F32, sizes);
    dnn_graph_pointwise(self->graph, kind, a, b, -1, result);
    return result;
}

/* Scores outside of the mask become -inf. */
static int32_t mask(CudaAttention *self, int32_t scores, const int64_t sizes[DNN_RANK]) {
    const CudaAttentionShape *shape = &self->shape;
    DnnGraph *graph = self->graph;
    for (int32_t side = 0; side < 2; side++) {
        if (side == 0 ? !shape->has_last : !shape->has_first) continue;
        int32_t lowest = dnn_graph_number(graph, DTYPE_F32, -(double)INFINITY);
        int32_t row = dnn_graph_virtual(graph, DTYPE_S32, sizes);
        int32_t key = dnn_graph_virtual(graph, DTYPE_S32, sizes);
        int32_t *moved = side == 0 ? &row : &key;
        dnn_graph_pointwise(graph, DNN_ROW_INDEX, scores, -1, -1, row);
        dnn_graph_pointwise(graph, DNN_KEY_INDEX, scores, -1, -1, key);
        if (side == 1 || shape->last != 0) {
            /* The engines expect the width of a window as f32. */
            Dtype type = side == 0 ? DTYPE_S32 : DTYPE_F32;
            int32_t offset =
                dnn_graph_number(graph, type, side == 0 ? (double)shape->last : (double)shape->first + 1);
            int32_t sum = dnn_graph_virtual(graph, type, sizes);
            dnn_graph_pointwise(graph, DNN_ADD, *moved, offset, -1, sum);
            *moved = sum;
        }
        int32_t sees = dnn_graph_virtual(graph, DTYPE_PRED, sizes);
        if (side == 0) dnn_graph_pointwise(graph, DNN_GREATER_EQUAL, row, key, -1, sees);
        else dnn_graph_pointwise(graph, DNN_GREATER, key, row, -1, sees);
        int32_t masked = dnn_graph_virtual(graph, DTYPE_F32, sizes);
        dnn_graph_pointwise(graph, DNN_SELECT, scores, lowest, sees, masked);
        scores = masked;
    }
    return scores;
}

/* Adds the scaled scores with their bias, and returns their array. */
static int32_t add_scores(CudaAttention *self, int32_t queries, int32_t keys, int32_t scale,
                          const int64_t sizes[DNN_RANK]) {
    int32_t scores = dnn_graph_virtual(self->graph, DTYPE_F32, sizes);
    dnn_graph_multiply_matrices(self->graph, queries, keys, scores);
    scores = compute(self, DNN_MULTIPLY, scores, scale, sizes);
    if (self->shape.uses[ATTENTION_BIAS])
        scores = compute(self, DNN_ADD, scores, add_array(self, ATTENTION_BIAS, false), sizes);
    return scores;
}

static void build_forward(CudaAttention *self) {
    const CudaAttentionShape *shape = &self->shape;
    DnnGraph *graph = self->graph;
    int64_t sizes[DNN_RANK] = {shape->batch, shape->heads, shape->rows, shape->keys};
    int64_t rows[DNN_RANK] = {shape->batch, shape->heads, shape->rows, 1};
    int32_t queries = add_array(self, ATTENTION_QUERIES, false), keys = add_array(self, ATTENTION_KEYS, true);
    int32_t values = add_array(self, ATTENTION_VALUES, false);
    int32_t scale = dnn_graph_number(graph, DTYPE_F32, shape->scale);
    int32_t scores = mask(self, add_scores(self, queries, keys, scale, sizes), sizes);
    int32_t maximum = shape->uses[ATTENTION_MAXIMUM] ? add_array(self, ATTENTION_MAXIMUM, false)
                                                     : dnn_graph_virtual(graph, DTYPE_F32, rows);
    dnn_graph_reduce(graph, true, scores, maximum);
    int32_t exponentials = compute(self, DNN_SUBTRACT, scores, maximum, sizes);
    exponentials = compute(self, DNN_EXPONENTIAL, exponentials, -1, sizes);
    int32_t sum = shape->uses[ATTENTION_SUM] ? add_array(self, ATTENTION_SUM, false)
                                             : dnn_graph_virtual(graph, DTYPE_F32, rows);
    dnn_graph_reduce(graph, false, exponentials, sum);
    if (shape->uses[ATTENTION_LOG_SUM]) {
        int32_t logarithm = compute(self, DNN_LOGARITHM, sum, -1, rows);
        dnn_graph_pointwise(graph, DNN_ADD, maximum, logarithm, -1,
                            add_array(self, ATTENTION_LOG_SUM, false));
    }
    int32_t weights = dnn_graph_virtual(graph, shape->type, sizes);
    dnn_graph_pointwise(graph, DNN_DIVIDE, exponentials, sum, -1, weights);
    dnn_graph_multiply_matrices(graph, weights, values, add_array(self, ATTENTION_OUTPUT, false));
}

/* Adds the sum over rows of the transpose of `weights` and an array, for keys or values. With groups of
 * queries the first sum is of each query head. */
static void add_key_gradient(CudaAttention *self, int32_t weights, int32_t array,
                             CudaAttentionArray gradient) {
    const CudaAttentionShape *shape = &self->shape;
    int64_t sizes[DNN_RANK] = {shape->batch, shape->heads, shape->keys, shape->rows};
    int64_t strides[DNN_RANK] = {shape->heads * shape->rows * shape->keys, shape->rows * shape->keys, 1,
                                 shape->keys};
    int64_t heads[DNN_RANK] = {shape->batch, shape->heads, shape->keys, shape->width};
    int32_t transposed = dnn_graph_virtual_strided(self->graph, shape->type, sizes, strides);
    dnn_graph_reshape(self->graph, weights, transposed);
    int32_t result = add_array(self, gradient, false);
    if (shape->heads == shape->key_heads) {
        dnn_graph_multiply_matrices(self->graph, transposed, array, result);
        return;
    }
    int32_t of_heads = dnn_graph_virtual(self->graph, shape->type, heads);
    dnn_graph_multiply_matrices(self->graph, transposed, array, of_heads);
    dnn_graph_reduce(self->graph, false, of_heads, result);
}

static void build_backward(CudaAttention *self) {
    const CudaAttentionShape *shape = &self->shape;
    DnnGraph *graph = self->graph;
    int64_t sizes[DNN_RANK] = {shape->batch, shape->heads, shape->rows, shape->keys};
    int64_t rows[DNN_RANK] = {shape->batch, shape->heads, shape->rows, 1};
    int64_t outputs[DNN_RANK] = {shape->batch, shape->heads, shape->rows, shape->width};
    int64_t of_rows[DNN_RANK] = {shape->heads * shape->rows, shape->rows, 1, 1};
    int64_t untransposed[DNN_RANK] = {shape->batch, shape->key_heads, shape->keys, shape->width};
    int32_t queries = add_array(self, ATTENTION_QUERIES, false), keys = add_array(self, ATTENTION_KEYS, true);
    int32_t values = add_array(self, ATTENTION_VALUES, true);
    int32_t output = add_array(self, ATTENTION_OUTPUT, false);
    int32_t gradient = add_array(self, ATTENTION_OUTPUT_GRADIENT, false);
    int32_t scale = dnn_graph_number(graph, DTYPE_F32, shape->scale);
    int32_t one = dnn_graph_number(graph, DTYPE_F32, 1);
    int32_t products = compute(self, DNN_MULTIPLY, gradient, output, outputs);
    int32_t unscaled = dnn_graph_virtual(graph, DTYPE_F32, rows);
    dnn_graph_reduce(graph, false, products, unscaled);
    self->order[self->count++] = ATTENTION_ARRAY_COUNT;
    int32_t sums = dnn_graph_array(graph, DTYPE_F32, rows, of_rows);
    dnn_graph_pointwise(graph, DNN_MULTIPLY, unscaled, one, -1, sums);
    self->sums_bytes = shape->batch * shape->heads * shape->rows * 4;

    int32_t scores = add_scores(self, queries, keys, scale, sizes);
    scores = compute(self, DNN_SUBTRACT, scores, add_array(self, ATTENTION_LOG_SUM, false), sizes);
    int32_t weights = compute(self, DNN_EXPONENTIAL, mask(self, scores, sizes), -1, sizes);
    add_key_gradient(self, weights, gradient, ATTENTION_VALUE_GRADIENT);

    int32_t slopes = dnn_graph_virtual(graph, DTYPE_F32, sizes);
    dnn_graph_multiply_matrices(graph, gradient, values, slopes);
    slopes = compute(self, DNN_SUBTRACT, slopes, sums, sizes);
    slopes = compute(self, DNN_MULTIPLY, slopes, weights, sizes);
    int32_t scaled = dnn_graph_virtual(graph, shape->type, sizes);
    dnn_graph_pointwise(graph, DNN_MULTIPLY, slopes, scale, -1, scaled);
    add_key_gradient(self, scaled, queries, ATTENTION_KEY_GRADIENT);
    int32_t again =
        dnn_graph_virtual_strided(graph, shape->type, untransposed, shape->strides[ATTENTION_KEYS]);
    dnn_graph_reshape(graph, keys, again);
    dnn_graph_multiply_matrices(graph, scaled, again, add_array(self, ATTENTION_QUERY_GRADIENT, false));
}

/* Fails with AM_ERROR_INPUT: cuDNN has no such attention, and the caller takes generated kernels. */
static AmStatus refuse_attention(const char *reason, AmError *error) {
    return am_fail(error, AM_ERROR_INPUT, "", "no attention by cuDNN: %s", reason);
}

static AmStatus check_shape(const CudaAttentionShape *shape, AmError *error) {
    if (!dtype_is_16bit_float(shape->type))
        return refuse_attention("its operands are neither bf16 nor f16", error);
    if (shape->width % 8 != 0 || shape->width > 128)
        return refuse_attention("its head size is no multiple of 8, or above 128", error);
    if (shape->heads % shape->key_heads != 0)
        return refuse_attention("its heads are no multiple of its key heads", error);
    return AM_OK;
}

/* A graph with a plan: for the handle's device, or found out to exist for the described one. */
static AmStatus build(CudaAttention *self, void *handle, const char *properties, AmError *error) {
    TRY(check_shape(&self->shape, error));
    TRY(dnn_graph_open(&self->graph, error));
    if (self->shape.is_backward) build_backward(self);
    else build_forward(self);
    return dnn_graph_plan(self->graph, handle, properties, error);
}

AmStatus cuda_attention_check(const CudaAttentionShape *shape, const char *properties, AmError *error) {
    CudaAttention self = {.shape = *shape};
    AmStatus status = build(&self, NULL, properties, error);
    dnn_graph_close(self.graph);
    return status;
}

static int64_t align(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Returns the bytes from the first to the last element. */
static int64_t extent(const CudaAttention *self, int32_t array) {
    const CudaAttentionShape *shape = &self->shape;
    int64_t sizes[DNN_RANK], last = 0;
    if (array == ATTENTION_ARRAY_COUNT) return self->sums_bytes;
    sizes_of(sizes, shape, (CudaAttentionArray)array);
    if (array == ATTENTION_BIAS) memcpy(sizes, shape->bias_sizes, sizeof sizes);
    for (int32_t d = 0; d < DNN_RANK; d++) last += (sizes[d] - 1) * shape->strides[array][d];
    return (last + 1) * 4;
}

int64_t cuda_attention_workspace(const CudaAttention *attention) {
    return align(attention->sums_bytes) + ALIGNMENT - 1 + dnn_graph_workspace(attention->graph);
}

AmStatus cuda_attention_run(CudaAttention *attention, CUstream stream, void *const *arrays, void *workspace,
                            AmError *error) {
    void *addresses[ATTENTION_ARRAY_COUNT + 1];
    uintptr_t sums = ((uintptr_t)workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    for (int32_t k = 0; k < attention->count; k++)
        addresses[k] =
            attention->order[k] == ATTENTION_ARRAY_COUNT ? (void *)sums : arrays[attention->order[k]];
    return dnn_graph_run(attention->graph, stream, addresses,
                         (void *)(sums + (uintptr_t)align(attention->sums_bytes)), error);
}

/* Runs the attention once on memory of zeros. */
static AmStatus try_attention(CudaAttention *self, AmError *error) {
    int64_t bytes[CUDA_TRIAL_MOST_ARRAYS];
    void *arrays[ATTENTION_ARRAY_COUNT] = {0};
    CudaTrial trial;
    AmError unfinished = {0};
    for (int32_t k = 0; k < self->count; k++) bytes[k] = extent(self, self->order[k]);
    bytes[self->count] = cuda_attention_workspace(self);
    if (!cuda_trial_open(&trial, bytes, self->count + 1))
        return refuse_attention("there is no memory to try it", error);
    for (int32_t k = 0; k < self->count; k++)
        if (self->order[k] < ATTENTION_ARRAY_COUNT) arrays[self->order[k]] = trial.arrays[k];
    AmStatus status = cuda_attention_run(self, NULL, arrays, trial.arrays[self->count], error);
    AmStatus ended = cuda_trial_close(&trial, &unfinished);
    if (status != AM_OK || ended == AM_OK) return status;
    return am_fail(error, ended, "", "cuDNN: %s", unfinished.text);
}

void cuda_attention_close(CudaAttention *list) {
    for (CudaAttention *next; list; list = next) {
        next = list->next;
        dnn_graph_close(list->graph);
        free(list);
    }
}

AmStatus cuda_attention_make(CudaAttention **attention, CudaDnn *dnn, const CudaAttentionShape *shape,
                             AmError *error) {
    AmStatus status;
    CudaAttention **list = cuda_dnn_attentions(dnn);
    *attention = NULL;
    for (CudaAttention *known = *list; known; known = known->next)
        if (memcmp(&known->shape, shape, sizeof *shape) == 0) {
            *attention = known;
            return AM_OK;
        }
    CudaAttention *made = calloc(1, sizeof *made);
    if (!made) return am_fail_memory(error, (int64_t)sizeof *made);
    memcpy(&made->shape, shape, sizeof *shape);
    TRY_OR_FAIL(build(made, cuda_dnn_handle(dnn), NULL, error));
    TRY_OR_FAIL(try_attention(made, error));
    made->next = *list;
    *list = *attention = made;
    return AM_OK;
fail:
    cuda_attention_close(made);
    return status;
}
