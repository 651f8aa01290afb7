/* 1-D convolutions on the CPU, row by row of the batch.
 *
 * The windows of one row are the columns of a matrix X (im2col). The convolution is a product with the kernel
 * matrix K [filters, channels width], by OpenBLAS on one thread. Every row has the same product, so that the
 * bits of a row depend on no other row.
 *
 *   X[(c, w), o] = x[c, o stride + w],   y = relu(K X + k)
 *
 * Backward, with D [filters, output_length] the derivative by y before relu:
 *   dK += D X^T,  dk += row sums of D,  dX = K^T D, summed back onto x.
 */
#include "dqn/cpu/convolution_cpu.h"

#include <cblas.h>
#include <string.h>

#include "dqn/cpu/product_cpu.h"

#ifdef DQN_DOUBLE
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

static void use_one_thread(void) {
    if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
}

static void lay_out_columns(const NetworkFilter *filter, const Real *inputs, Real *columns) {
    int32_t count = filter->output_length, stride = filter->stride;
    for (int32_t c = 0; c < filter->channels; c++)
        for (int32_t w = 0; w < filter->width; w++, columns += count) {
            const Real *from = inputs + (int64_t)c * filter->length + w;
            for (int32_t o = 0; o < count; o++) columns[o] = from[(int64_t)o * stride];
        }
}

static void filter_forward(const NetworkFilter *filter, const Real *parameters, Real *columns,
                           const Real *inputs, Real *outputs) {
    int32_t count = filter->output_length, taps = filter->channels * filter->width;
    lay_out_columns(filter, inputs, columns);
    for (int32_t f = 0; f < filter->filters; f++)
        for (int32_t o = 0; o < count; o++) outputs[(int64_t)f * count + o] = parameters[filter->biases + f];
    GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, filter->filters, count, taps, 1,
         parameters + filter->weights, taps, columns, count, 1, outputs, count);
    relu(outputs, (int64_t)filter->filters * count);
}

const Real *convolutions_forward(const Network *network, const Real *parameters, NetworkPass *pass,
                                 const Real *observations, int32_t batch) {
    int32_t count = network->shape.convolution_count;
    const Real *inputs = observations;
    if (count > 0) use_one_thread();
    for (int32_t i = 0; i < count; i++) {
        const NetworkFilter *filter = &network->filters[i];
        for (int32_t row = 0; row < batch; row++)
            filter_forward(filter, parameters, pass->columns, inputs + (int64_t)row * filter->input_row,
                           pass->maps[i] + (int64_t)row * filter->output_row);
        inputs = pass->maps[i];
    }
    if (count == 0) return inputs;
    const NetworkFilter *last = &network->filters[count - 1];
    int64_t arrays = (int64_t)network->shape.channels * network->shape.length;
    int64_t mapped = (int64_t)last->filters * last->output_length;
    size_t rest = (size_t)(network->shape.observation_size - arrays);
    for (int32_t row = 0; row < batch; row++)
        memcpy(pass->maps[count - 1] + (int64_t)row * last->output_row + mapped,
               observations + (int64_t)row * network->shape.observation_size + arrays, rest * sizeof(Real));
    return inputs;
}

/* Adds one row's share of the gradients; `below` (or NULL) gets the derivative by the inputs. */
static void filter_backward(const NetworkFilter *filter, const Real *parameters, Real *columns,
                            const Real *inputs, const Real *output_gradients, Real *gradients, Real *below) {
    int32_t count = filter->output_length, taps = filter->channels * filter->width;
    lay_out_columns(filter, inputs, columns);
    GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, filter->filters, taps, count, 1, output_gradients, count,
         columns, count, 1, gradients + filter->weights, taps);
    for (int32_t f = 0; f < filter->filters; f++) {
        Real sum = 0;
        for (int32_t o = 0; o < count; o++) sum += output_gradients[(int64_t)f * count + o];
        gradients[filter->biases + f] += sum;
    }
    if (!below) return;
    GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, taps, count, filter->filters, 1,
         parameters + filter->weights, taps, output_gradients, count, 0, columns, count);
    memset(below, 0, sizeof(Real) * (size_t)filter->channels * (size_t)filter->length);
    /* Every column goes to the place of the inputs [channels, length] from which it was taken. */
    int32_t places = filter->output_length, stride = filter->stride;
    for (int32_t c = 0; c < filter->channels; c++)
        for (int32_t w = 0; w < filter->width; w++, columns += places) {
            Real *to = below + (int64_t)c * filter->length + w;
            for (int32_t o = 0; o < places; o++) to[(int64_t)o * stride] += columns[o];
        }
    int64_t size = (int64_t)filter->channels * filter->length;
    for (int64_t k = 0; k < size; k++) below[k] = inputs[k] > 0 ? below[k] : 0;
}

void convolutions_backward(const Network *network, const Real *parameters, NetworkPass *pass,
                           const Real *observations, int32_t batch, Real *current, Real *below,
                           Real *gradients) {
    use_one_thread();
    for (int32_t i = network->shape.convolution_count - 1; i >= 0; i--) {
        const NetworkFilter *filter = &network->filters[i];
        const Real *inputs = i == 0 ? observations : pass->maps[i - 1];
        memset(gradients + filter->weights, 0,
               sizeof(Real) * (size_t)(filter->biases + filter->filters - filter->weights));
        for (int32_t row = 0; row < batch; row++) {
            int64_t at = (int64_t)row * filter->input_row;
            filter_backward(filter, parameters, pass->columns, inputs + at,
                            current + (int64_t)row * filter->output_row, gradients,
                            i > 0 ? below + at : NULL);
        }
        Real *swap = current;
        current = below;
        below = swap;
    }
}
