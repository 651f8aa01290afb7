/* Graphs of operators that cuDNN runs as one kernel or a few: an object that hides its graph API.
 *
 * A graph has tensors of four dimensions and operators that relate them. A virtual tensor has no memory, an
 * array has an address in each run, a number is a constant. In
 *
 *     s = dnn_graph_virtual(graph, DTYPE_F32, sizes);
 *     dnn_graph_multiply_matrices(graph, q, k, s);
 *     dnn_graph_pointwise(graph, DNN_EXPONENTIAL, s, -1, -1, p);
 *
 * nothing is reported by the functions that add tensors and operators: dnn_graph_plan() reports the first
 * failure. Sums, products and functions are computed in f32.
 */
#ifndef BASE_CUDA_DNN_GRAPH_H
#define BASE_CUDA_DNN_GRAPH_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum { DNN_RANK = 4 };

typedef struct DnnGraph DnnGraph;

typedef enum DnnOperator {
    DNN_ADD,
    DNN_SUBTRACT,
    DNN_MULTIPLY,
    DNN_DIVIDE,
    DNN_EXPONENTIAL,
    DNN_LOGARITHM,
    DNN_ROW_INDEX, /* of dimension 2, as s32 */
    DNN_KEY_INDEX, /* of dimension 3, as s32 */
    DNN_GREATER,
    DNN_GREATER_EQUAL,
    DNN_SELECT /* the third operand is true: the first, else the second */
} DnnOperator;

/* Makes an empty graph; dnn_graph_close() releases it. AM_ERROR_RUNTIME: there is no cuDNN. */
AmStatus dnn_graph_open(DnnGraph **graph, AmError *error);
void dnn_graph_close(DnnGraph *graph); /* NULL is allowed */

/* Adds a tensor and returns its number. Sizes and strides in elements [DNN_RANK]. Virtual tensors are
 * row-major; a number is f32 or s32 and is broadcast. */
int32_t dnn_graph_array(DnnGraph *graph, Dtype type, const int64_t *sizes, const int64_t *strides);
int32_t dnn_graph_virtual(DnnGraph *graph, Dtype type, const int64_t *sizes);
int32_t dnn_graph_number(DnnGraph *graph, Dtype type, double value);
/* Returns a virtual tensor with strides of its own. */
int32_t dnn_graph_virtual_strided(DnnGraph *graph, Dtype type, const int64_t *sizes, const int64_t *strides);

/* Adds operators; tensors by number, -1: none. Dimensions of size 1 are broadcast. */
void dnn_graph_pointwise(DnnGraph *graph, DnnOperator kind, int32_t a, int32_t b, int32_t c, int32_t result);
void dnn_graph_multiply_matrices(DnnGraph *graph, int32_t a, int32_t b, int32_t result);
/* Adds sums, or maxima, over the dimensions whose size in the result is smaller. */
void dnn_graph_reduce(DnnGraph *graph, bool is_maximum, int32_t a, int32_t result);
/* Adds the same elements in another order of dimensions. */
void dnn_graph_reshape(DnnGraph *graph, int32_t a, int32_t result);

/* Chooses the first engine of cuDNN's heuristic that builds a plan and gives equal bits in equal runs.
 * `handle`: a cudnnHandle_t, or NULL: there is no plan, but an engine for the device that `properties`
 * describes, as cuDNN's JSON text. AM_ERROR_INPUT: cuDNN has no such engine; AM_ERROR_RUNTIME: it failed. */
AmStatus dnn_graph_plan(DnnGraph *graph, void *handle, const char *properties, AmError *error);
int64_t dnn_graph_workspace(const DnnGraph *graph); /* bytes, of any alignment */
/* Enqueues the plan. `addresses` [number of arrays], in the order in which they were added. AM_ERROR_INPUT:
 * cuDNN refuses to run it, and nothing was enqueued. */
AmStatus dnn_graph_run(DnnGraph *graph, CUstream stream, void *const *addresses, void *workspace,
                       AmError *error);

#endif
