/* The learning target and the loss of deep Q-learning, as functions of plain arrays. */
#include "dqn/loss.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

int32_t loss_best_action(const Real *values, const uint8_t *mask, int32_t actions) {
    int32_t best = -1;
    for (int32_t a = 0; a < actions; a++)
        if ((!mask || mask[a]) && (best < 0 || values[a] > values[best])) best = a;
    return best;
}

void loss_targets(const Real *choosing_values, const Real *valuing_values, const uint8_t *next_masks,
                  const Real *rewards, const Real *discounts, int32_t batch, int32_t actions, Real *targets) {
    for (int32_t row = 0; row < batch; row++) {
        targets[row] = rewards[row];
        if (discounts[row] == 0) continue;
        int64_t at = (int64_t)row * actions;
        int32_t action = loss_best_action(choosing_values + at, next_masks + at, actions);
        if (action >= 0) targets[row] += discounts[row] * valuing_values[at + action];
    }
}

double loss_gradients(const Real *values, const int32_t *actions_taken, const Real *targets,
                      const Real *weights, double huber, int32_t batch, int32_t actions, Real *errors,
                      Real *value_gradients) {
    double loss = 0;
    memset(value_gradients, 0, sizeof(Real) * (size_t)batch * (size_t)actions);
    for (int32_t row = 0; row < batch; row++) {
        int64_t at = (int64_t)row * actions + actions_taken[row];
        double delta = (double)targets[row] - values[at];
        bool linear = huber > 0 && fabs(delta) > huber;
        double slope = linear ? copysign(huber, delta) : delta;
        double row_loss = linear ? huber * (fabs(delta) - huber / 2) : delta * delta / 2;
        errors[row] = (Real)delta;
        value_gradients[at] = (Real)(-weights[row] * slope / batch);
        loss += weights[row] * row_loss / batch;
    }
    return loss;
}
