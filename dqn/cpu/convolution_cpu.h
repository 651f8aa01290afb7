/* The convolutions in front of the dense layers, on the CPU. */
#ifndef DQN_CPU_CONVOLUTION_CPU_H
#define DQN_CPU_CONVOLUTION_CPU_H

#include "dqn/network.h"

/* Fills pass->maps and returns the input of the first dense layer: the last map,
 * or `observations` where the network has no convolutions. */
const Real *convolutions_forward(const Network *network, const Real *parameters, NetworkPass *pass,
                                 const Real *observations, int32_t batch);

/* Computes the kernels' and biases' gradients. `current` [batch, last output_row] is the derivative by the
 * last map before relu; `below` is room for as much. Both are overwritten. */
void convolutions_backward(const Network *network, const Real *parameters, NetworkPass *pass,
                           const Real *observations, int32_t batch, Real *current, Real *below,
                           Real *gradients);

#endif
