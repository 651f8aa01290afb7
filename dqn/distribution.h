/* Distributions of the return instead of its mean (C51, Bellemare et al. 2017).
 *
 * A return is one of `count` atoms z_i = least + i step, step = (most - least) / (count - 1), with
 * probability p_i = softmax(logits)_i. A value is the mean sum_i p_i z_i.
 *
 * The target of a transition is the distribution of reward + discount z at the next state, for the action of
 * the largest mean. In double DQN the online network chooses the action, and the target network gives the
 * distribution. The mass of a moved atom is shared between its two neighbours in proportion to its nearness.
 * Mass outside [least, most] goes to the ends.
 *
 * The loss is the cross entropy -sum_i m_i ln p_i of a target m. Its derivative by the logits is p - m. The
 * priority of a transition is KL(m || p), the loss less the entropy of m, which is 0 where nothing is left to
 * learn (Hessel et al. 2018).
 */
#ifndef DQN_DISTRIBUTION_H
#define DQN_DISTRIBUTION_H

#include "dqn/loss.h"
#include "dqn/network.h"

/* Rewards and returns are represented in [least, most] and clamped outside. */
typedef struct Atoms {
    int32_t count; /* 2 .. NETWORK_MAX_ATOMS */
    double least, most;
} Atoms;

/* Computes values[rows], the means of the distributions that logits[rows, count] stand for. */
void distribution_means(const Atoms *atoms, const Real *logits, int64_t rows, Real *values);

/* Computes targets[count] = the distribution of reward + discount z under probabilities[count], which are not
 * read where the discount is 0. */
void distribution_project(const Atoms *atoms, const Real *probabilities, double reward, double discount,
                          Real *target);

/* Computes targets[batch, count]. choosing_values [batch, actions] are means by which the next action is
 * chosen, logits [batch, actions, count] those of the network that values it; the rest is as in
 * loss_targets. */
void distribution_targets(const Atoms *atoms, const Real *choosing_values, const Real *logits,
                          const LossRewards *of, Real *targets);

/* Fills errors[batch] with the priorities KL(m || p) (unweighted) and
 * logit_gradients[batch, actions, count] with the derivative of the loss, 0 except
 * at the action taken; returns the loss, the weighted mean over the batch. */
double distribution_gradients(const Atoms *atoms, const Real *logits, const LossActions *of, Real *errors,
                              Real *logit_gradients);

#endif
