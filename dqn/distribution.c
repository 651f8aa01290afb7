/* Distributions of the return instead of its mean (C51, Bellemare et al. 2017). Sums are in double. */
#include "dqn/distribution.h"

#include <math.h>
#include <string.h>

#include "dqn/loss.h"

static double step_of(const Atoms *atoms) {
    return (atoms->most - atoms->least) / (atoms->count - 1);
}

/* Computes exp(logits - the largest), and returns their sum. */
static double exponentials(const Real *logits, int32_t count, double *result) {
    double largest = (double)logits[0], sum = 0;
    for (int32_t i = 1; i < count; i++) largest = (double)logits[i] > largest ? (double)logits[i] : largest;
    for (int32_t i = 0; i < count; i++) {
        result[i] = exp((double)logits[i] - largest);
        sum += result[i];
    }
    return sum;
}

void distribution_means(const Atoms *atoms, const Real *logits, int64_t rows, Real *values) {
    double step = step_of(atoms), masses[NETWORK_MAX_ATOMS];
    for (int64_t row = 0; row < rows; row++, logits += atoms->count) {
        double sum = exponentials(logits, atoms->count, masses), moment = 0;
        for (int32_t i = 0; i < atoms->count; i++) moment += masses[i] * i;
        values[row] = (Real)(atoms->least + step * (moment / sum));
    }
}

/* Shares `mass` at `value` between the two atoms around it. */
static void share(const Atoms *atoms, double value, Real mass, Real *target) {
    double place = (fmin(fmax(value, atoms->least), atoms->most) - atoms->least) / step_of(atoms);
    int32_t below = (int32_t)fmin(floor(place), atoms->count - 1);
    Real above = (Real)(place - below);
    target[below] += mass * (1 - above);
    if (below + 1 < atoms->count) target[below + 1] += mass * above;
}

void distribution_project(const Atoms *atoms, const Real *probabilities, double reward, double discount,
                          Real *target) {
    memset(target, 0, sizeof(Real) * (size_t)atoms->count);
    if (discount == 0) {
        share(atoms, reward, 1, target);
        return;
    }
    double step = step_of(atoms);
    for (int32_t i = 0; i < atoms->count; i++)
        share(atoms, reward + discount * (atoms->least + i * step), probabilities[i], target);
}

void distribution_targets(const Atoms *atoms, const Real *choosing_values, const Real *logits,
                          const LossRewards *of, Real *targets) {
    double masses[NETWORK_MAX_ATOMS];
    Real probabilities[NETWORK_MAX_ATOMS];
    int64_t count = atoms->count;
    for (int32_t row = 0; row < of->batch; row++) {
        int64_t at = (int64_t)row * of->actions;
        double discount = (double)of->discounts[row];
        int32_t action =
            discount == 0 ? -1 : loss_best_action(choosing_values + at, of->next_masks + at, of->actions);
        if (action >= 0) {
            double sum = exponentials(logits + (at + action) * count, atoms->count, masses);
            for (int32_t i = 0; i < atoms->count; i++) probabilities[i] = (Real)(masses[i] / sum);
        }
        distribution_project(atoms, probabilities, (double)of->rewards[row], action < 0 ? 0 : discount,
                             targets + row * count);
    }
}

double distribution_gradients(const Atoms *atoms, const Real *logits, const LossActions *of, Real *errors,
                              Real *logit_gradients) {
    int32_t batch = of->batch;
    double loss = 0, masses[NETWORK_MAX_ATOMS];
    int64_t count = atoms->count;
    memset(logit_gradients, 0, sizeof(Real) * (size_t)batch * (size_t)of->actions * (size_t)count);
    for (int32_t row = 0; row < batch; row++) {
        int64_t at = ((int64_t)row * of->actions + of->taken[row]) * count;
        const Real *target = of->targets + row * count;
        double sum = exponentials(logits + at, atoms->count, masses), weight = (double)of->weights[row];
        double largest = (double)logits[at], cross = 0, entropy = 0;
        for (int32_t i = 1; i < atoms->count; i++) largest = fmax(largest, (double)logits[at + i]);
        double shift = largest + log(sum); /* ln p_i = logit_i - shift */
        for (int32_t i = 0; i < atoms->count; i++) {
            double goal = (double)target[i];
            cross -= goal * ((double)logits[at + i] - shift);
            if (goal > 0) entropy -= goal * log(goal);
            logit_gradients[at + i] = (Real)(weight * (masses[i] / sum - goal) / batch);
        }
        errors[row] = (Real)fmax(cross - entropy, 0);
        loss += weight * cross / batch;
    }
    return loss;
}
