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

/* Returns the legal action of the largest value, the first among equals; -1 if the mask forbids all. `mask`
 * NULL: all are legal. */
int32_t loss_best_action(const Real *values, const uint8_t *mask, int32_t actions);

/* The rewards of a batch of transitions, and the actions of their next states. */
typedef struct LossRewards {
    int32_t batch, actions;
    const Real *rewards, *discounts; /* [batch] */
    const uint8_t *next_masks;       /* [batch, actions] */
} LossRewards;

/* The actions of a batch of transitions with their learning targets. */
typedef struct LossActions {
    int32_t batch, actions;
    const int32_t *taken; /* [batch] */
    const Real *targets;  /* [batch]; distributions: [batch, atoms] */
    const Real *weights;  /* [batch] */
} LossActions;

/* Computes targets[batch] from choosing_values and valuing_values [batch, actions] of the next states (the
 * same array twice: plain DQN). A row with discount 0 takes its reward alone. */
void loss_targets(const Real *choosing_values, const Real *valuing_values, const LossRewards *of,
                  Real *targets);

/* Fills errors[batch] with delta (unweighted) and value_gradients[batch,
 * actions] with the derivative of the loss by the values, 0 except at the
 * action taken; returns the loss, the weighted mean over the batch. huber 0:
 * squared error everywhere. */
double loss_gradients(const Real *values, const LossActions *of, double huber, Real *errors,
                      Real *value_gradients);

#endif
