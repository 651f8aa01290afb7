/* The network of deep Q-learning on a GPU.
 *
 * Backward through a dense layer with D the derivative by its output before relu:
 * one product gives dW = X' D, one gives D W', masked by the relu below and with
 * its column sums, the biases' gradients of the layer below, from the same
 * epilogue. Only the head takes its biases' gradients from the product dW. Our own
 * kernels keep the same order of work, mask by the layer's output itself and sum
 * the biases' gradients with dW. An own kernel replaces each product that cuBLASLt
 * lacks, each product whose mask no other product writes, and each product dW whose
 * biases' gradients no other product sums. The same holds for a convolution that
 * cuDNN lacks.
 */
#include "dqn/cuda/network_cuda.h"

#define ALIGNED_NUMBERS 4 /* 16 bytes */
#define TILE            4 /* dqn.cu */

static const void *pointer(CUdeviceptr address) {
    return (const void *)(uintptr_t)address;
}

static void *writable(CUdeviceptr address) {
    return (void *)(uintptr_t)address;
}

static CUdeviceptr at(CUdeviceptr array, int64_t number) {
    return array + (CUdeviceptr)number * sizeof(float);
}

static int64_t align(int64_t offset) {
    return (offset + ALIGNED_NUMBERS - 1) / ALIGNED_NUMBERS * ALIGNED_NUMBERS;
}

static void lay_out(Network *layout) {
    int64_t offset = 0;
    for (int32_t i = 0; i < layout->shape.convolution_count; i++) {
        NetworkFilter *filter = &layout->filters[i];
        filter->weights = offset;
        filter->biases = align(offset + (int64_t)filter->filters * filter->channels * filter->width);
        offset = align(filter->biases + filter->filters);
    }
    for (int32_t i = 0; i < layout->layer_count; i++) {
        NetworkLayer *layer = &layout->layers[i];
        layer->weights = offset;
        layer->biases = align(offset + (int64_t)layer->inputs * layer->outputs);
        offset = align(layer->biases + layer->outputs);
    }
    layout->parameter_count = offset;
}

/* Makes a product; NULL for an own kernel, if the settings require it, or cuBLASLt lacks the product or the
 * memory to try it. */
static AmStatus make_product(NetworkCuda *self, CudaProduct **product, CudaProductShape shape,
                             AmError *error) {
    AmError reason = {0};
    *product = NULL;
    if (!self->blas) return AM_OK;
    shape.batch = 1;
    shape.alpha = 1;
    shape.a.type = shape.b.type = shape.d.type = DTYPE_F32;
    AmStatus status = cuda_product_make(product, self->blas, &shape, &reason);
    if (status == AM_OK && !cuda_product_is_tried(*product)) *product = NULL;
    return status == AM_OK || status == AM_ERROR_INPUT ? AM_OK
                                                       : am_fail(error, status, "", "%s", reason.text);
}

/* The argument of the filter kernels: struct Filter of dqn.cu. */
typedef struct FilterCuda {
    int32_t channels, length, filters, width, stride, output_length, input_row, output_row;
} FilterCuda;

/* Makes a convolution; NULL for an own kernel, if the settings require it, or cuDNN lacks the convolution or
 * the memory to try it. */
static AmStatus make_convolution(NetworkCuda *self, CudaConvolution **convolution,
                                 const NetworkFilter *filter, CudaConvolutionKind kind, int32_t rows,
                                 AmError *error) {
    AmError reason = {0};
    *convolution = NULL;
    self->convolution_count++;
    if (!self->dnn) {
        self->own_convolutions++;
        return AM_OK;
    }
    const CudaConvolutionShape shape = {.kind = kind,
                                        .type = DTYPE_F32,
                                        .spatial_count = 1,
                                        .batch = rows,
                                        .input_features = filter->channels,
                                        .output_features = filter->filters,
                                        .groups = 1,
                                        .input_sizes = {filter->length},
                                        .filter_sizes = {filter->width},
                                        .output_sizes = {filter->output_length},
                                        .stride = {filter->stride},
                                        .dilation = {1},
                                        .input_strides = {filter->input_row, filter->length, 1},
                                        .output_strides = {filter->output_row, filter->output_length, 1}};
    AmStatus status = cuda_convolution_make(convolution, self->dnn, &shape, &reason);
    if (status == AM_OK && cuda_convolution_is_tried(*convolution)) return AM_OK;
    if (status == AM_OK) am_fail(&reason, AM_ERROR_INPUT, "", "no memory to try cuDNN's algorithms");
    else if (status != AM_ERROR_INPUT)
        return am_fail(error, status, "", "training the network on a GPU: %s", reason.text);
    *convolution = NULL;
    if (self->own_convolutions++ == 0) self->refusal = reason;
    return AM_OK;
}

AmStatus network_cuda_create(NetworkCuda *self, const Network *network, int32_t batch, bool own_products,
                             const CudaUnit *unit, CUstream stream, AmError *error) {
    *self = (NetworkCuda){.layout = *network, .batch = batch, .stream = stream};
    lay_out(&self->layout);
    const struct {
        CUfunction *function;
        const char *name;
    } kernels[] = {{&self->map, "dqn_map"},
                   {&self->map_gradient, "dqn_map_gradient"},
                   {&self->dense_forward, "dqn_dense_forward"},
                   {&self->dense_gradients, "dqn_dense_gradients"},
                   {&self->dense_below, "dqn_dense_below"},
                   {&self->filter_forward, "dqn_filter_forward"},
                   {&self->filter_gradients, "dqn_filter_gradients"},
                   {&self->filter_below, "dqn_filter_below"}};
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
        TRY(cuda_unit_function(kernels[i].function, unit, kernels[i].name, error));
    if (!own_products) TRY(cuda_blas_open(&self->blas, error));
    int32_t convolutions = network->shape.convolution_count;
    if (convolutions > 0 && !own_products && cuda_dnn_open(&self->dnn, &self->refusal) != AM_OK)
        self->dnn = NULL;
    for (int32_t i = 0; i < convolutions; i++) {
        const NetworkFilter *filter = &self->layout.filters[i];
        TRY(make_convolution(self, &self->kernel_gradients[i], filter, CUDA_CONVOLUTION_FILTER_GRADIENT,
                             batch, error));
        if (i > 0)
            TRY(make_convolution(self, &self->input_gradients[i], filter, CUDA_CONVOLUTION_INPUT_GRADIENT,
                                 batch, error));
    }
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *layer = &self->layout.layers[i];
        bool is_head = i == network->layer_count - 1;
        TRY(make_product(self, &self->weight_gradients[i],
                         (CudaProductShape){.rows = layer->inputs,
                                            .columns = layer->outputs,
                                            .depth = batch,
                                            .a = {.transposed = true},
                                            .epilogue = is_head ? CUDA_EPILOGUE_SUM_B : CUDA_EPILOGUE_NONE},
                         error));
        if (i == 0 && convolutions == 0) continue;
        TRY(make_product(
            self, &self->below[i],
            (CudaProductShape){.rows = batch,
                               .columns = layer->inputs,
                               .depth = layer->outputs,
                               .b = {.transposed = true},
                               .epilogue = i > 0 ? CUDA_EPILOGUE_RELU_GRADIENT_BIAS : CUDA_EPILOGUE_NONE},
            error));
    }
    return AM_OK;
}

void network_cuda_free(NetworkCuda *self) {
    cuda_dnn_close(self->dnn);
    cuda_blas_close(self->blas);
    *self = (NetworkCuda){0};
}

AmStatus network_cuda_pass(NetworkCuda *self, PassCuda *pass, int32_t rows, bool trained,
                           int32_t input_alignment, DeviceMemory *memory, AmError *error) {
    const Network *layout = &self->layout;
    *pass = (PassCuda){.rows = rows, .trained = trained};
    for (int32_t i = 0; i < layout->shape.convolution_count; i++) {
        const NetworkFilter *filter = &layout->filters[i];
        TRY(make_convolution(self, &pass->convolutions[i], filter, CUDA_CONVOLUTION_FORWARD, rows, error));
        memory_reserve(memory, &pass->maps[i], (int64_t)rows * filter->output_row * (int64_t)sizeof(float));
    }
    for (int32_t i = 0; i < layout->layer_count; i++) {
        const NetworkLayer *layer = &layout->layers[i];
        bool is_head = i == layout->layer_count - 1,
             is_input = i == 0 && layout->shape.convolution_count == 0;
        CudaEpilogue hidden = trained ? CUDA_EPILOGUE_RELU_BIAS_MASK : CUDA_EPILOGUE_RELU_BIAS;
        TRY(make_product(self, &pass->products[i],
                         (CudaProductShape){.rows = rows,
                                            .columns = layer->outputs,
                                            .depth = layer->inputs,
                                            .a = {.alignment = is_input ? input_alignment : 0},
                                            .epilogue = is_head ? CUDA_EPILOGUE_BIAS : hidden},
                         error));
        memory_reserve(memory, &pass->outputs[i], (int64_t)rows * layer->outputs * (int64_t)sizeof(float));
        if (trained && !is_head)
            memory_reserve(memory, &pass->masks[i], cuda_product_mask_bytes(rows, layer->outputs));
    }
    return AM_OK;
}

static void grow(int64_t *bytes, int64_t needed) {
    if (needed > *bytes) *bytes = needed;
}

static void grow_for(int64_t *bytes, const CudaProduct *product) {
    if (product) grow(bytes, cuda_product_workspace(product));
}

static void grow_for_convolution(int64_t *bytes, const CudaConvolution *convolution) {
    if (convolution) grow(bytes, cuda_convolution_workspace(convolution));
}

void network_cuda_reserve(NetworkCuda *self, const PassCuda *passes, int32_t pass_count,
                          DeviceMemory *memory) {
    int64_t workspace = 0;
    /* Drops products of the backward pass that depend on a missing product, and counts all. */
    int32_t convolutions = self->layout.shape.convolution_count, layers = self->layout.layer_count;
    for (int32_t i = layers - 1; i > 0; i--)
        for (int32_t p = 0; p < pass_count; p++)
            if (passes[p].trained && !passes[p].products[i - 1]) self->below[i] = NULL;
    for (int32_t i = 0; i < layers - 1; i++)
        if (!self->below[i + 1]) self->weight_gradients[i] = NULL;
    for (int32_t i = 0; i < layers; i++) {
        bool goes_below = i > 0 || convolutions > 0;
        self->product_count += 1 + goes_below + pass_count;
        self->own_count += !self->weight_gradients[i] + (goes_below && !self->below[i]);
        for (int32_t p = 0; p < pass_count; p++) self->own_count += !passes[p].products[i];
    }
    int64_t widest = (int64_t)self->batch * network_widest(&self->layout) * (int64_t)sizeof(float);
    for (int32_t i = 0; i < self->layout.layer_count; i++) {
        grow_for(&workspace, self->weight_gradients[i]);
        grow_for(&workspace, self->below[i]);
        for (int32_t p = 0; p < pass_count; p++) grow_for(&workspace, passes[p].products[i]);
    }
    for (int32_t i = 0; i < self->layout.shape.convolution_count; i++) {
        grow_for_convolution(&workspace, self->kernel_gradients[i]);
        if (i > 0) grow_for_convolution(&workspace, self->input_gradients[i]);
        for (int32_t p = 0; p < pass_count; p++) grow_for_convolution(&workspace, passes[p].convolutions[i]);
    }
    memory_reserve(memory, &self->gradient, widest);
    memory_reserve(memory, &self->next_gradient, widest);
    memory_reserve(memory, &self->workspace, workspace);
}

AmStatus dqn_cuda_launch(CUfunction function, int64_t blocks_x, int64_t blocks_y, int32_t threads,
                         CUstream stream, void **arguments, AmError *error) {
    CUresult result = cuda.cuLaunchKernel(function, (unsigned)blocks_x, (unsigned)blocks_y, 1,
                                          (unsigned)threads, 1, 1, 0, stream, arguments, NULL);
    return cuda_check(result, "starting a kernel", error);
}

/* The arrays of a filter kernel: it reads two and writes the third, which has `count` elements. */
typedef struct FilterArrays {
    CUdeviceptr first, second, result;
    int64_t count;
} FilterArrays;

/* Launches a filter kernel with a thread for each element of its result. */
static AmStatus launch_filter(const NetworkCuda *self, CUfunction function, const NetworkFilter *filter,
                              int32_t rows, FilterArrays arrays, AmError *error) {
    FilterCuda shape = {filter->channels, filter->length,        filter->filters,   filter->width,
                        filter->stride,   filter->output_length, filter->input_row, filter->output_row};
    void *arguments[] = {&arrays.first, &arrays.second, &rows, &shape, &arrays.result};
    int64_t blocks = (arrays.count + DQN_CUDA_THREADS - 1) / DQN_CUDA_THREADS;
    return dqn_cuda_launch(function, blocks, 1, DQN_CUDA_THREADS, self->stream, arguments, error);
}

static AmStatus filter_forward(const NetworkCuda *self, const PassCuda *pass, int32_t i,
                               CUdeviceptr parameters, CUdeviceptr inputs, CUdeviceptr observations,
                               AmError *error) {
    const NetworkShape *shape = &self->layout.shape;
    const NetworkFilter *filter = &self->layout.filters[i];
    CUdeviceptr map = pass->maps[i], biases = at(parameters, filter->biases);
    CUdeviceptr kernel = at(parameters, filter->weights);
    const CudaConvolutionBuffers buffers = {.input = writable(inputs),
                                            .filter = writable(kernel),
                                            .output = writable(map),
                                            .workspace = writable(self->workspace)};
    if (pass->convolutions[i])
        TRY(cuda_convolution_run(pass->convolutions[i], self->stream, &buffers, error));
    else
        TRY(launch_filter(self, self->filter_forward, filter, pass->rows,
                          (FilterArrays){inputs, kernel, map,
                                         (int64_t)pass->rows * filter->filters * filter->output_length},
                          error));
    int32_t filters = filter->filters, length = filter->output_length, row = filter->output_row;
    int32_t size = shape->observation_size, arrays = shape->channels * shape->length;
    void *arguments[] = {&map, &biases, &filters, &length, &row, &observations, &size, &arrays};
    int64_t blocks = (row + DQN_CUDA_THREADS - 1) / DQN_CUDA_THREADS;
    return dqn_cuda_launch(self->map, blocks, pass->rows, DQN_CUDA_THREADS, self->stream, arguments, error);
}

/* Launches a kernel over a matrix [rows, columns], a thread for TILE results in a column. */
static AmStatus launch_tiles(const NetworkCuda *self, CUfunction function, int64_t rows, int64_t columns,
                             void **arguments, AmError *error) {
    int64_t items = (rows + TILE - 1) / TILE * columns;
    int64_t blocks = (items + DQN_CUDA_THREADS - 1) / DQN_CUDA_THREADS;
    return dqn_cuda_launch(function, blocks, 1, DQN_CUDA_THREADS, self->stream, arguments, error);
}

static AmStatus layer_forward(const NetworkCuda *self, const PassCuda *pass, int32_t i,
                              CUdeviceptr parameters, CUdeviceptr inputs, AmError *error) {
    const NetworkLayer *layer = &self->layout.layers[i];
    CUdeviceptr weights = at(parameters, layer->weights), biases = at(parameters, layer->biases);
    CUdeviceptr outputs = pass->outputs[i];
    if (pass->products[i])
        return cuda_product_run(pass->products[i], self->stream,
                                &(CudaProductBuffers){.a = pointer(inputs),
                                                      .b = pointer(weights),
                                                      .d = writable(outputs),
                                                      .bias = writable(biases),
                                                      .mask = writable(pass->masks[i]),
                                                      .workspace = writable(self->workspace)},
                                error);
    int32_t rows = pass->rows, input_count = layer->inputs, output_count = layer->outputs;
    int32_t relu = i < self->layout.layer_count - 1;
    void *arguments[] = {&inputs, &weights, &biases, &rows, &input_count, &output_count, &relu, &outputs};
    return launch_tiles(self, self->dense_forward, rows, output_count, arguments, error);
}

AmStatus network_cuda_forward(const NetworkCuda *self, const PassCuda *pass, CUdeviceptr parameters,
                              CUdeviceptr observations, AmError *error) {
    CUdeviceptr inputs = observations;
    for (int32_t i = 0; i < self->layout.shape.convolution_count; i++) {
        TRY(filter_forward(self, pass, i, parameters, inputs, observations, error));
        inputs = pass->maps[i];
    }
    for (int32_t i = 0; i < self->layout.layer_count; i++) {
        TRY(layer_forward(self, pass, i, parameters, inputs, error));
        inputs = pass->outputs[i];
    }
    return AM_OK;
}

/* The arrays of the backward pass through one layer. */
typedef struct BackwardArrays {
    CUdeviceptr parameters, gradients; /* of the network; the layer's gradients are written */
    CUdeviceptr inputs;                /* that the layer read in the forward pass */
    CUdeviceptr current;               /* derivative of the loss by the layer's output, before relu */
    CUdeviceptr below;                 /* derivative by the output of the layer below, before relu; written */
} BackwardArrays;

static AmStatus filter_backward(const NetworkCuda *self, const PassCuda *pass, int32_t i,
                                BackwardArrays arrays, AmError *error) {
    const NetworkFilter *filter = &self->layout.filters[i];
    CUdeviceptr map = pass->maps[i], bias_gradients = at(arrays.gradients, filter->biases);
    int32_t rows = self->batch, length = filter->output_length, row = filter->output_row;
    void *arguments[] = {&arrays.current, &map, &rows, &length, &row, &bias_gradients};
    TRY(dqn_cuda_launch(self->map_gradient, filter->filters, 1, DQN_CUDA_THREADS, self->stream, arguments,
                        error));
    CUdeviceptr kernel = at(arrays.parameters, filter->weights);
    CUdeviceptr kernel_gradients = at(arrays.gradients, filter->weights);
    CudaConvolutionBuffers buffers = {.input = writable(arrays.inputs),
                                      .filter = writable(kernel_gradients),
                                      .output = writable(arrays.current),
                                      .workspace = writable(self->workspace)};
    if (self->kernel_gradients[i])
        TRY(cuda_convolution_run(self->kernel_gradients[i], self->stream, &buffers, error));
    else
        TRY(launch_filter(self, self->filter_gradients, filter, rows,
                          (FilterArrays){arrays.inputs, arrays.current, kernel_gradients,
                                         (int64_t)filter->filters * filter->channels * filter->width},
                          error));
    if (i == 0) return AM_OK;
    buffers.input = writable(arrays.below);
    buffers.filter = writable(kernel);
    if (self->input_gradients[i])
        return cuda_convolution_run(self->input_gradients[i], self->stream, &buffers, error);
    return launch_filter(self, self->filter_below, filter, rows,
                         (FilterArrays){arrays.current, kernel, arrays.below,
                                        (int64_t)rows * filter->channels * filter->length},
                         error);
}

/* Computes the gradients of layer i's weights and, by our own kernel or as the head, of its biases. */
static AmStatus weights_backward(const NetworkCuda *self, int32_t i, BackwardArrays arrays, AmError *error) {
    const NetworkLayer *layer = &self->layout.layers[i];
    CUdeviceptr inputs = arrays.inputs, current = arrays.current;
    CUdeviceptr weights = at(arrays.gradients, layer->weights), biases = at(arrays.gradients, layer->biases);
    if (self->weight_gradients[i])
        return cuda_product_run(self->weight_gradients[i], self->stream,
                                &(CudaProductBuffers){.a = pointer(inputs),
                                                      .b = pointer(current),
                                                      .d = writable(weights),
                                                      .bias = writable(biases),
                                                      .workspace = writable(self->workspace)},
                                error);
    int32_t rows = self->batch, input_count = layer->inputs, output_count = layer->outputs;
    void *arguments[] = {&inputs, &current, &rows, &input_count, &output_count, &weights, &biases};
    return launch_tiles(self, self->dense_gradients, input_count, output_count, arguments, error);
}

/* Computes `below` for layer i; a product of the library also computes the gradients of the biases of the
 * layer below. */
static AmStatus inputs_backward(const NetworkCuda *self, const PassCuda *pass, int32_t i,
                                BackwardArrays arrays, AmError *error) {
    const NetworkLayer *layer = &self->layout.layers[i];
    CUdeviceptr inputs = arrays.inputs, current = arrays.current, below = arrays.below;
    CUdeviceptr weights = at(arrays.parameters, layer->weights);
    if (self->below[i]) {
        CudaProductBuffers buffers = {.a = pointer(current),
                                      .b = pointer(weights),
                                      .d = writable(below),
                                      .workspace = writable(self->workspace)};
        if (i > 0) {
            buffers.bias = writable(at(arrays.gradients, self->layout.layers[i - 1].biases));
            buffers.mask = writable(pass->masks[i - 1]);
        }
        return cuda_product_run(self->below[i], self->stream, &buffers, error);
    }
    int32_t rows = self->batch, input_count = layer->inputs, output_count = layer->outputs, masked = i > 0;
    void *arguments[] = {&current, &weights, &inputs, &rows, &input_count, &output_count, &masked, &below};
    return launch_tiles(self, self->dense_below, rows, input_count, arguments, error);
}

AmStatus network_cuda_backward(const NetworkCuda *self, const PassCuda *pass, CUdeviceptr parameters,
                               CUdeviceptr observations, CUdeviceptr gradients, AmError *error) {
    int32_t convolutions = self->layout.shape.convolution_count;
    CUdeviceptr dense_inputs = convolutions > 0 ? pass->maps[convolutions - 1] : observations;
    BackwardArrays arrays = {.parameters = parameters,
                             .gradients = gradients,
                             .current = self->gradient,
                             .below = self->next_gradient};
    for (int32_t i = self->layout.layer_count - 1; i >= 0; i--) {
        arrays.inputs = i > 0 ? pass->outputs[i - 1] : dense_inputs;
        TRY(weights_backward(self, i, arrays, error));
        if (i > 0 || convolutions > 0) TRY(inputs_backward(self, pass, i, arrays, error));
        CUdeviceptr swap = arrays.current;
        arrays.current = arrays.below;
        arrays.below = swap;
    }
    for (int32_t i = convolutions - 1; i >= 0; i--) {
        arrays.inputs = i > 0 ? pass->maps[i - 1] : observations;
        TRY(filter_backward(self, pass, i, arrays, error));
        CUdeviceptr swap = arrays.current;
        arrays.current = arrays.below;
        arrays.below = swap;
    }
    return AM_OK;
}

/* A run of parameters that lies close in both layouts. */
typedef struct Piece {
    int64_t host, device, count;
} Piece;

enum { MOST_PIECES = 2 * (NETWORK_MAX_CONVOLUTIONS + NETWORK_MAX_HIDDEN + 1) };

static int32_t list_pieces(const NetworkCuda *self, const Network *network, Piece pieces[MOST_PIECES]) {
    int32_t count = 0;
    for (int32_t i = 0; i < network->shape.convolution_count; i++) {
        const NetworkFilter *host = &network->filters[i], *device = &self->layout.filters[i];
        pieces[count++] = (Piece){host->weights, device->weights, host->biases - host->weights};
        pieces[count++] = (Piece){host->biases, device->biases, host->filters};
    }
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *host = &network->layers[i], *device = &self->layout.layers[i];
        pieces[count++] = (Piece){host->weights, device->weights, host->biases - host->weights};
        pieces[count++] = (Piece){host->biases, device->biases, host->outputs};
    }
    return count;
}

AmStatus network_cuda_upload(const NetworkCuda *self, const Network *network, CUdeviceptr to,
                             const float *from, AmError *error) {
    Piece pieces[MOST_PIECES];
    int32_t count = list_pieces(self, network, pieces);
    for (int32_t i = 0; i < count; i++)
        TRY(cuda_check(cuda.cuMemcpyHtoDAsync(at(to, pieces[i].device), from + pieces[i].host,
                                              sizeof(float) * (size_t)pieces[i].count, self->stream),
                       "copying parameters to the device", error));
    return cuda_check(cuda.cuStreamSynchronize(self->stream), "copying parameters to the device", error);
}

AmStatus network_cuda_download(const NetworkCuda *self, const Network *network, float *to, CUdeviceptr from,
                               AmError *error) {
    Piece pieces[MOST_PIECES];
    int32_t count = list_pieces(self, network, pieces);
    for (int32_t i = 0; i < count; i++)
        TRY(cuda_check(cuda.cuMemcpyDtoHAsync(to + pieces[i].host, at(from, pieces[i].device),
                                              sizeof(float) * (size_t)pieces[i].count, self->stream),
                       "copying parameters from the device", error));
    return cuda_check(cuda.cuStreamSynchronize(self->stream), "copying parameters from the device", error);
}
