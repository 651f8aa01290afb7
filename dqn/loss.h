/* The learning target and the loss, as functions of plain arrays.
 *
 * Double DQN (van Hasselt et al. 2016): the online network chooses the next
 * action among the legal ones, the target network values it,
 *
 *   y = reward + discount Q_target(s', argmax_{legal a} Q_online(s', a)).
 *
 * The loss of one row is Huber's function of delta = y - Q_online(s, a),
 * weighted by its importance weight: delta^2 / 2 within `huber`, linear beyond,
 * so that one large error moves the weights no further than a bounded one.
 */
#ifndef DQN_LOSS_H
#define DQN_LOSS_H

#include "dqn/network.h"

/* The legal action of the largest value, the first among equals; -1 if the mask
 * forbids all. `mask` NULL: all are legal. */
int32_t loss_best_action(const Real *values, const uint8_t *mask, int32_t actions);

/* targets[batch] from choosing_values and valuing_values [batch, actions] of
 * the next states (the same array twice: plain DQN), next_masks [batch,
 * actions], rewards and discounts [batch]. A row with discount 0 takes its
 * reward alone. */
void loss_targets(const Real *choosing_values, const Real *valuing_values, const uint8_t *next_masks,
                  const Real *rewards, const Real *discounts, int32_t batch, int32_t actions, Real *targets);

/* Fills errors[batch] with delta (unweighted) and value_gradients[batch,
 * actions] with the derivative of the loss by the values, 0 except at the
 * action taken; returns the loss, the weighted mean over the batch. huber 0:
 * squared error everywhere. */
double loss_gradients(const Real *values, const int32_t *actions_taken, const Real *targets,
                      const Real *weights, double huber, int32_t batch, int32_t actions, Real *errors,
                      Real *value_gradients);

#endif
