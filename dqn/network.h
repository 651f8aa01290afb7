/* Network: a multilayer perceptron with a dueling head, over flat buffers; before it, if the
 * observation contains arrays, 1-D convolutions over them.
 *
 *   convolution:  x_i[f, o] = relu(sum_{c, w} K_i[f, c, w] x_{i-1}[c, o stride + w] + k_i[f])
 *   hidden:  h_0 = observation, or (x_last flattened, the rest of the observation),
 *            h_i = relu(h_{i-1} W_i + b_i)
 *   head:    [v, a_1 .. a_A] = h_last W + b
 *   values:  Q_j = v + a_j - mean(a_1 .. a_A)         (Wang et al. 2016, formula 9)
 *
 * The mean runs over all actions, masked or not, so that acting, training and targets use the same
 * function. Without dueling the head gives Q directly.
 *
 * With `atoms` the head gives that many numbers for the state and for each action instead of one,
 * and the formula holds for each of them: the logits of the distributions of distribution.h.
 *
 * With `noisy` every dense weight and bias has a second number, the deviation of its noise:
 * noise.h. The deviations follow the parameters above, the means, in the same order. A pass uses
 * the means alone, or the means with the noise of one draw added.
 *
 * A Network is only the shape and the offset of every layer in one flat buffer; the online and
 * target parameters, their gradients and Adam's moments are buffers of `parameter_count` numbers in
 * that layout. Work is requested in batches. A back end supplies network_forward, network_backward
 * and adam_update (dqn/cpu: OpenBLAS on one thread).
 *
 * A planner uses it in one of two forms. Fixed heads: one output per action of the whole problem.
 * Candidate features: the observation describes one candidate (size, cost, conflicts, ...) and the
 * outputs are its possible choices (leave, take, take on the second axis). An episode then visits
 * the candidates one after the other, every candidate of every problem shares the same weights, and
 * many are ranked in one batch by Q(take) - Q(leave).
 */
#ifndef DQN_NETWORK_H
#define DQN_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/random.h"
#include "base/status.h"

/* Numbers of the network; double only where a test checks gradients. */
#ifdef DQN_DOUBLE
typedef double Real;
#else
typedef float Real;
#endif

#define NETWORK_MAX_HIDDEN       8
#define NETWORK_MAX_CONVOLUTIONS 4
#define NETWORK_MAX_WIDTH        (1 << 20)
#define NETWORK_MAX_COUNT        ((int64_t)1 << 28) /* parameters */
#define NETWORK_MAX_ATOMS        256

typedef struct NetworkConvolution {
    int32_t filters, width, stride; /* no padding: (length - width) / stride + 1 outputs */
} NetworkConvolution;

typedef struct NetworkShape {
    int32_t observation_size, action_count;
    /* With convolutions an observation begins with arrays [channels, length]; the rest bypasses the
     * convolutions and enters the first dense layer. */
    int32_t convolution_count; /* 0 .. NETWORK_MAX_CONVOLUTIONS */
    int32_t channels, length;  /* not read without convolutions */
    NetworkConvolution convolutions[NETWORK_MAX_CONVOLUTIONS];
    int32_t hidden_count; /* 0 .. NETWORK_MAX_HIDDEN */
    int32_t hidden[NETWORK_MAX_HIDDEN];
    int32_t atoms; /* 0: one value for each action; else 2 .. NETWORK_MAX_ATOMS logits */
    bool dueling, noisy;
} NetworkShape;

/* weights [inputs, outputs] and biases [outputs], row-major, as offsets into a
 * flat buffer. */
typedef struct NetworkLayer {
    int32_t inputs, outputs;
    int64_t weights, biases;
} NetworkLayer;

/* A convolution: kernel [filters, channels, width] and biases [filters] as
 * offsets, and how far apart the rows of its input and of its output lie. */
typedef struct NetworkFilter {
    int32_t channels, length; /* of the input */
    int32_t filters, width, stride, output_length;
    int64_t weights, biases;
    int32_t input_row, output_row;
} NetworkFilter;

typedef struct Network {
    NetworkShape shape;
    NetworkFilter filters[NETWORK_MAX_CONVOLUTIONS];
    NetworkLayer layers[NETWORK_MAX_HIDDEN + 1]; /* the hidden layers, then the head */
    int32_t layer_count;
    int32_t action_outputs; /* numbers for each action: 1, or the atoms */
    int64_t dense;          /* where the dense layers begin */
    int64_t mean_count;     /* parameters that a pass takes */
    int64_t parameter_count;
} Network;

/* Returns the deviation of the dense mean at `offset`, in a noisy network. */
static inline int64_t network_deviation(const Network *network, int64_t offset) {
    return network->mean_count + offset - network->dense;
}

/* Values of a forward pass for the backward pass, for up to `capacity` rows. maps[i] is [capacity,
 * filters[i].output_row], the last one followed by the rest of the observation: the input of the
 * first dense layer. outputs[i] is [capacity, layers[i].outputs]. */
typedef struct NetworkPass {
    int32_t capacity;
    Real *maps[NETWORK_MAX_CONVOLUTIONS];
    Real *outputs[NETWORK_MAX_HIDDEN + 1];
    Real *gradient, *next_gradient; /* [capacity, widest layer] */
    Real *columns;                  /* of one row: [channels width, output_length] */
} NetworkPass;

/* Returns zeroed numbers that begin at a multiple of 64 bytes, which wide vectors want; NULL if memory is
 * short. The arena owns them. */
Real *network_array(Arena *arena, int64_t count);

/* Checks the shape and lays the layers out. AM_ERROR_USAGE for sizes out of range. */
AmStatus network_create(Network *network, const NetworkShape *shape, AmError *error);

/* Returns the numbers that a pass takes per row, and the most that one layer has. */
int64_t network_pass_width(const Network *network);
int64_t network_widest(const Network *network);

/* Creates the memory of a pass of `capacity` rows; the arena owns it. */
AmStatus network_pass_create(NetworkPass *pass, Arena *arena, const Network *network, int32_t capacity,
                             AmError *error);

/* Fills parameters[parameter_count]: normal weights of variance 2 / inputs of one
 * output (He et al. 2015), a tenth of that deviation in the head so that the first values
 * are near 0; biases 0; noise of deviation 0.5 / sqrt(inputs) (Fortunato et al. 2018, 3.2). */
void network_initialize(const Network *network, Real *parameters, Random *random);

/* Computes values[batch, action_count, action_outputs] of observations[batch, observation_size] by
 * means[mean_count]; batch <= pass->capacity. */
void network_forward(const Network *network, const Real *means, NetworkPass *pass, const Real *observations,
                     int32_t batch, Real *values);

/* Computes gradients[mean_count] = the derivative of a loss whose derivative by the values is
 * value_gradients[batch, action_count, action_outputs]. Takes the first `batch` rows of the last forward
 * pass, with the same means and observations. */
void network_backward(const Network *network, const Real *means, NetworkPass *pass, const Real *observations,
                      int32_t batch, const Real *value_gradients, Real *gradients);

/* Adam (Kingma and Ba 2015, algorithm 1) with its step counter. */
typedef struct Adam {
    double learning_rate, beta1, beta2, epsilon;
    int64_t step;         /* updates made so far: the exponent of the bias corrections */
    int64_t count;        /* parameters */
    Real *first, *second; /* running means of the gradient and of its square */
} Adam;

/* Returns the usual beta1 0.9, beta2 0.999, epsilon 1e-8, without moments. */
Adam adam_constants(double learning_rate);

/* Makes an Adam with the usual constants and moments of 0, which the arena owns. */
AmStatus adam_create(Adam *adam, Arena *arena, int64_t count, double learning_rate, AmError *error);

/* Makes one update of parameters[count] by gradients[count]. */
void adam_update(Adam *adam, Real *parameters, const Real *gradients);

#endif
