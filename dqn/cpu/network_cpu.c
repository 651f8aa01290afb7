/* The network on the CPU, on one thread: at the sizes of a planner starting
 * threads costs more than it gives. A dense layer is one product forward and two
 * backward; a row's values have the same bits in a batch of any size.
 *
 * Backward, with D the derivative by a layer's output before relu:
 *   dW = inputs^T D,  db = column sums of D,  D_below = (D W^T) where output > 0.
 * Through the dueling head Q_j = v + a_j - mean(a), for every atom alone:
 *   dv = sum_j dQ_j,  da_j = dQ_j - mean(dQ).
 */
#include <string.h>

#include "dqn/cpu/convolution_cpu.h"
#include "dqn/cpu/product_cpu.h"

/* Computes outputs[batch, layer outputs] = inputs W + b. */
static void layer_forward(const NetworkLayer *layer, const Real *parameters, const Real *inputs,
                          int32_t batch, Real *outputs) {
    dqn_product(&(DqnProduct){.rows = batch,
                              .columns = layer->outputs,
                              .depth = layer->inputs,
                              .a = inputs,
                              .a_row = layer->inputs,
                              .a_depth = 1,
                              .b = parameters + layer->weights,
                              .b_depth = layer->outputs,
                              .b_column = 1,
                              .start = parameters + layer->biases,
                              .out = outputs});
}

/* Computes sums[atoms] over the actions of one row, numbers[actions, atoms]. */
static inline void sum_actions(const Real *numbers, int32_t actions, int32_t atoms, Real *sums) {
    for (int32_t z = 0; z < atoms; z++) sums[z] = 0;
    for (int32_t a = 0; a < actions; a++, numbers += atoms)
        for (int32_t z = 0; z < atoms; z++) sums[z] += numbers[z];
}

/* Computes values[batch, actions, atoms] from head[batch, 1 + actions, atoms]. */
static inline void dueling_values(const Real *head, int32_t batch, int32_t actions, const int32_t atoms,
                                  Real *values) {
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

/* Computes the derivatives by head[batch, 1 + actions, atoms] from those by the values. */
static inline void dueling_gradients(const Real *value_gradients, int32_t batch, int32_t actions,
                                     const int32_t atoms, Real *head) {
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
    const Real *inputs = convolutions_forward(network, parameters, pass, observations, batch);
    int32_t head = network->layer_count - 1, actions = network->shape.action_count;
    int32_t atoms = network->action_outputs;
    for (int32_t i = 0; i <= head; i++) {
        layer_forward(&network->layers[i], parameters, inputs, batch, pass->outputs[i]);
        if (i < head) relu(pass->outputs[i], (int64_t)batch * network->layers[i].outputs);
        inputs = pass->outputs[i];
    }
    if (network->shape.dueling) {
        /* A constant number of atoms lets the compiler remove loops over one atom. */
        if (atoms == 1) dueling_values(pass->outputs[head], batch, actions, 1, values);
        else dueling_values(pass->outputs[head], batch, actions, atoms, values);
    } else memcpy(values, pass->outputs[head], sizeof(Real) * (size_t)batch * (size_t)(actions * atoms));
}

/* Computes the derivatives by weights and biases of one layer from those by its outputs. */
static void layer_backward(const NetworkLayer *layer, const Real *inputs, int32_t batch,
                           const Real *output_gradients, Real *gradients) {
    dqn_product(&(DqnProduct){.rows = layer->inputs,
                              .columns = layer->outputs,
                              .depth = batch,
                              .a = inputs,
                              .a_row = 1,
                              .a_depth = layer->inputs,
                              .b = output_gradients,
                              .b_depth = layer->outputs,
                              .b_column = 1,
                              .out = gradients + layer->weights});
    Real *biases = gradients + layer->biases;
    memcpy(biases, output_gradients, sizeof(Real) * (size_t)layer->outputs);
    for (int32_t row = 1; row < batch; row++) {
        const Real *from = output_gradients + (int64_t)row * layer->outputs;
        for (int32_t k = 0; k < layer->outputs; k++) biases[k] += from[k];
    }
}

/* Computes below[batch, inputs]: the derivatives by the layer's inputs before their relu. */
static void layer_below(const NetworkLayer *layer, const Real *parameters, const Real *inputs, int32_t batch,
                        const Real *output_gradients, Real *below) {
    dqn_product(&(DqnProduct){.rows = batch,
                              .columns = layer->inputs,
                              .depth = layer->outputs,
                              .a = output_gradients,
                              .a_row = layer->outputs,
                              .a_depth = 1,
                              .b = parameters + layer->weights,
                              .b_depth = 1,
                              .b_column = layer->outputs,
                              .out = below});
    int64_t count = (int64_t)batch * layer->inputs;
    for (int64_t k = 0; k < count; k++) below[k] = inputs[k] > 0 ? below[k] : 0;
}

void network_backward(const Network *network, const Real *parameters, NetworkPass *pass,
                      const Real *observations, int32_t batch, const Real *value_gradients, Real *gradients) {
    int32_t head = network->layer_count - 1, actions = network->shape.action_count;
    int32_t convolutions = network->shape.convolution_count, atoms = network->action_outputs;
    const Real *dense_inputs = convolutions > 0 ? pass->maps[convolutions - 1] : observations;
    Real *current = pass->gradient, *below = pass->next_gradient;
    if (network->shape.dueling) {
        if (atoms == 1) dueling_gradients(value_gradients, batch, actions, 1, current);
        else dueling_gradients(value_gradients, batch, actions, atoms, current);
    } else memcpy(current, value_gradients, sizeof(Real) * (size_t)batch * (size_t)(actions * atoms));
    for (int32_t i = head; i >= 0; i--) {
        const NetworkLayer *layer = &network->layers[i];
        const Real *inputs = i == 0 ? dense_inputs : pass->outputs[i - 1];
        layer_backward(layer, inputs, batch, current, gradients);
        if (i == 0 && convolutions == 0) return;
        layer_below(layer, parameters, inputs, batch, current, below);
        Real *swap = current;
        current = below;
        below = swap;
    }
    convolutions_backward(network, parameters, pass, observations, batch, current, below, gradients);
}
