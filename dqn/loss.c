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

void loss_targets(const Real *choosing_values, const Real *valuing_values, const LossRewards *of,
                  Real *targets) {
    for (int32_t row = 0; row < of->batch; row++) {
        targets[row] = of->rewards[row];
        if (of->discounts[row] == 0) continue;
        int64_t at = (int64_t)row * of->actions;
        int32_t action = loss_best_action(choosing_values + at, of->next_masks + at, of->actions);
        if (action >= 0) targets[row] += of->discounts[row] * valuing_values[at + action];
    }
}

double loss_gradients(const Real *values, const LossActions *of, double huber, Real *errors,
                      Real *value_gradients) {
    int32_t batch = of->batch;
    double loss = 0;
    memset(value_gradients, 0, sizeof(Real) * (size_t)batch * (size_t)of->actions);
    for (int32_t row = 0; row < batch; row++) {
        int64_t at = (int64_t)row * of->actions + of->taken[row];
        double delta = (double)of->targets[row] - values[at];
        bool linear = huber > 0 && fabs(delta) > huber;
        double slope = linear ? copysign(huber, delta) : delta;
        double row_loss = linear ? huber * (fabs(delta) - huber / 2) : delta * delta / 2;
        errors[row] = (Real)delta;
        value_gradients[at] = (Real)(-of->weights[row] * slope / batch);
        loss += of->weights[row] * row_loss / batch;
    }
    return loss;
}
