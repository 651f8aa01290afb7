/* The network on a device: a dense layer is one cuBLASLt product with bias and
 * relu in its epilogue forward and two back, a convolution one cuDNN call and one
 * kernel each way. A kernel of our own replaces each product that cuBLASLt lacks,
 * those that depend on it, and each convolution that cuDNN lacks.
 *
 * Parameters lie as in network.h, but every matrix and vector begins at a
 * multiple of 16 bytes, which the fast products want; the gaps stay 0. All calls
 * only enqueue on the stream and can be captured in a graph. Formulas: those of
 * dqn/cpu/network_cpu.c; the dueling head is the learner's, fused with the loss.
 */
#ifndef DQN_CUDA_NETWORK_CUDA_H
#define DQN_CUDA_NETWORK_CUDA_H

#include "base/cuda/blas.h"
#include "base/cuda/dnn.h"
#include "base/cuda/unit.h"
#include "dqn/cuda/memory_cuda.h"
#include "dqn/network.h"

#define DQN_CUDA_THREADS     256 /* of a block: dqn.cu */
#define DQN_CUDA_ROW_THREADS 64  /* of a block that takes one row of a batch */

/* The layer outputs of one forward pass of `rows` rows (network.h's NetworkPass).
 * A pass that is trained keeps a mask of each hidden layer for its way back. */
typedef struct PassCuda {
    int32_t rows;
    bool trained;
    CUdeviceptr maps[NETWORK_MAX_CONVOLUTIONS], outputs[NETWORK_MAX_HIDDEN + 1];
    CUdeviceptr masks[NETWORK_MAX_HIDDEN + 1];
    CudaConvolution *convolutions[NETWORK_MAX_CONVOLUTIONS];
    CudaProduct *products[NETWORK_MAX_HIDDEN + 1];
} PassCuda;

typedef struct NetworkCuda {
    Network layout; /* offsets on the device; parameter_count with the gaps */
    int32_t batch;  /* rows of a backward pass */
    CUstream stream;
    CudaBlas *blas; /* NULL if own products were requested */
    CudaDnn *dnn;   /* NULL without convolutions, without cuDNN, or if own products were requested */
    CUfunction map, map_gradient, dense_forward, dense_gradients, dense_below;
    CUfunction filter_forward, filter_gradients, filter_below;
    int32_t product_count, own_count; /* of one update; those that are our own kernels */
    int32_t convolution_count, own_convolutions;
    AmError refusal; /* the first convolution that cuDNN lacks, or cuDNN itself */
    /* NULL: our own kernel. */
    CudaProduct *weight_gradients[NETWORK_MAX_HIDDEN + 1], *below[NETWORK_MAX_HIDDEN + 1];
    CudaConvolution *kernel_gradients[NETWORK_MAX_CONVOLUTIONS], *input_gradients[NETWORK_MAX_CONVOLUTIONS];
    CUdeviceptr gradient, next_gradient; /* [batch, widest]; the head's begins in `gradient` */
    CUdeviceptr workspace;
} NetworkCuda;

/* Opens the libraries and prepares what backward passes need. The device is
 * current; network_cuda_free() also after a failure. AM_ERROR_RUNTIME. */
AmStatus network_cuda_create(NetworkCuda *self, const Network *network, int32_t batch, bool own_products,
                             const CudaUnit *unit, CUstream stream, AmError *error);
void network_cuda_free(NetworkCuda *self); /* may be called on a zeroed one */

/* Prepares a pass. Its arrays are reserved in `memory`. `input_alignment`: bytes
 * that the address of its observations is a multiple of. */
AmStatus network_cuda_pass(NetworkCuda *self, PassCuda *pass, int32_t rows, bool trained,
                           int32_t input_alignment, DeviceMemory *memory, AmError *error);

/* Reserves the gradients and the workspace, after all passes. */
void network_cuda_reserve(NetworkCuda *self, const PassCuda *passes, int32_t pass_count,
                          DeviceMemory *memory);

/* Leaves the head's outputs [rows, dueling + actions] in the last of pass->outputs. */
AmStatus network_cuda_forward(const NetworkCuda *self, const PassCuda *pass, CUdeviceptr parameters,
                              CUdeviceptr observations, AmError *error);

/* Computes `gradients` from the head's derivatives in self->gradient, over the first `batch` rows of a
 * trained pass. */
AmStatus network_cuda_backward(const NetworkCuda *self, const PassCuda *pass, CUdeviceptr parameters,
                               CUdeviceptr observations, CUdeviceptr gradients, AmError *error);

/* Copies parameters between the two layouts; waits for the device. */
AmStatus network_cuda_upload(const NetworkCuda *self, const Network *network, CUdeviceptr to,
                             const float *from, AmError *error);
AmStatus network_cuda_download(const NetworkCuda *self, const Network *network, float *to, CUdeviceptr from,
                               AmError *error);

/* Launches a kernel of dqn.cu on the stream. */
AmStatus dqn_cuda_launch(CUfunction function, int64_t blocks_x, int64_t blocks_y, int32_t threads,
                         CUstream stream, void **arguments, AmError *error);

#endif
