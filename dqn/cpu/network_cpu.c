/* The network on the CPU: every layer is one OpenBLAS matrix product on one
 * thread. At the sizes of a planner (hundreds of kiloflops) starting threads
 * costs more than it gives, and one thread keeps the result the same from run
 * to run.
 *
 * Backward, with D the derivative by a layer's output before relu:
 *   dW = inputs^T D,  db = column sums of D,  D_below = (D W^T) where output > 0.
 * Through the dueling head Q_j = v + a_j - mean(a), for every atom alone:
 *   dv = sum_j dQ_j,  da_j = dQ_j - mean(dQ).
 */
#include <string.h>

#include "dqn/cpu/convolution_cpu.h"
#include "dqn/cpu/product_cpu.h"

/* outputs[batch, layer outputs] = inputs W + b. */
static void layer_forward(const NetworkLayer *layer, const Real *parameters, const Real *inputs,
                          int32_t batch, Real *outputs) {
    const Real *biases = parameters + layer->biases;
    for (int32_t row = 0; row < batch; row++)
        memcpy(outputs + (int64_t)row * layer->outputs, biases, sizeof(Real) * (size_t)layer->outputs);
    GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, batch, layer->outputs, layer->inputs, 1, inputs,
         layer->inputs, parameters + layer->weights, layer->outputs, 1, outputs, layer->outputs);
}

/* sums[atoms] over the actions of one row, numbers[actions, atoms]. */
static void sum_actions(const Real *numbers, int32_t actions, int32_t atoms, Real *sums) {
    for (int32_t z = 0; z < atoms; z++) sums[z] = 0;
    for (int32_t a = 0; a < actions; a++, numbers += atoms)
        for (int32_t z = 0; z < atoms; z++) sums[z] += numbers[z];
}

/* values[batch, actions, atoms] from head[batch, 1 + actions, atoms]. */
static void dueling_forward(const Real *head, int32_t batch, int32_t actions, int32_t atoms, Real *values) {
    Real base[NETWORK_MAX_ATOMS];
    for (int32_t row = 0; row < batch; row++) {
        const Real *value = head;
        head += atoms;
        sum_actions(head, actions, atoms, base);
        for (int32_t z = 0; z < atoms; z++) base[z] = value[z] - base[z] / (Real)actions;
        for (int32_t a = 0; a < actions; a++, head += atoms, values += atoms)
            for (int32_t z = 0; z < atoms; z++) values[z] = base[z] + head[z];
    }
}

/* head[batch, 1 + actions, atoms], derivatives, from those of the values. */
static void dueling_backward(const Real *value_gradients, int32_t batch, int32_t actions, int32_t atoms,
                             Real *head) {
    Real mean[NETWORK_MAX_ATOMS];
    for (int32_t row = 0; row < batch; row++) {
        sum_actions(value_gradients, actions, atoms, head);
        for (int32_t z = 0; z < atoms; z++) mean[z] = head[z] / (Real)actions;
        head += atoms;
        for (int32_t a = 0; a < actions; a++, head += atoms, value_gradients += atoms)
            for (int32_t z = 0; z < atoms; z++) head[z] = value_gradients[z] - mean[z];
    }
}

void network_forward(const Network *network, const Real *parameters, NetworkPass *pass,
                     const Real *observations, int32_t batch, Real *values) {
    use_one_thread();
    const Real *inputs = convolutions_forward(network, parameters, pass, observations, batch);
    int32_t head = network->layer_count - 1, actions = network->shape.action_count;
    int32_t atoms = network->action_outputs;
    for (int32_t i = 0; i <= head; i++) {
        layer_forward(&network->layers[i], parameters, inputs, batch, pass->outputs[i]);
        if (i < head) relu(pass->outputs[i], (int64_t)batch * network->layers[i].outputs);
        inputs = pass->outputs[i];
    }
    if (network->shape.dueling) dueling_forward(pass->outputs[head], batch, actions, atoms, values);
    else memcpy(values, pass->outputs[head], sizeof(Real) * (size_t)batch * (size_t)(actions * atoms));
}

/* weights and biases of one layer, from outputs' derivatives. */
static void layer_backward(const NetworkLayer *layer, const Real *inputs, int32_t batch,
                           const Real *output_gradients, Real *gradients) {
    GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, layer->inputs, layer->outputs, batch, 1, inputs,
         layer->inputs, output_gradients, layer->outputs, 0, gradients + layer->weights, layer->outputs);
    Real *biases = gradients + layer->biases;
    memcpy(biases, output_gradients, sizeof(Real) * (size_t)layer->outputs);
    for (int32_t row = 1; row < batch; row++) {
        const Real *from = output_gradients + (int64_t)row * layer->outputs;
        for (int32_t k = 0; k < layer->outputs; k++) biases[k] += from[k];
    }
}

void network_backward(const Network *network, const Real *parameters, NetworkPass *pass,
                      const Real *observations, int32_t batch, const Real *value_gradients, Real *gradients) {
    use_one_thread();
    int32_t head = network->layer_count - 1, actions = network->shape.action_count;
    int32_t convolutions = network->shape.convolution_count, atoms = network->action_outputs;
    const Real *dense_inputs = convolutions > 0 ? pass->maps[convolutions - 1] : observations;
    Real *current = pass->gradient, *below = pass->next_gradient;
    if (network->shape.dueling) dueling_backward(value_gradients, batch, actions, atoms, current);
    else memcpy(current, value_gradients, sizeof(Real) * (size_t)batch * (size_t)(actions * atoms));
    for (int32_t i = head; i >= 0; i--) {
        const NetworkLayer *layer = &network->layers[i];
        const Real *inputs = i == 0 ? dense_inputs : pass->outputs[i - 1];
        layer_backward(layer, inputs, batch, current, gradients);
        if (i == 0 && convolutions == 0) return;
        GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, batch, layer->inputs, layer->outputs, 1, current,
             layer->outputs, parameters + layer->weights, layer->outputs, 0, below, layer->inputs);
        int64_t count = (int64_t)batch * layer->inputs;
        for (int64_t k = 0; k < count; k++) below[k] = inputs[k] > 0 ? below[k] : 0;
        Real *swap = current;
        current = below;
        below = swap;
    }
    convolutions_backward(network, parameters, pass, observations, batch, current, below, gradients);
}
