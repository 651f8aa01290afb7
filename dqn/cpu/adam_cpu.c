/* Adam on the CPU: one pass over the flat buffers.
 *
 *   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
 *   p -= rate m / (sqrt(v) + epsilon'),
 *   rate = learning rate sqrt(1 - beta2^t) / (1 - beta1^t),
 *   epsilon' = epsilon sqrt(1 - beta2^t)
 *
 * which is m_hat / (sqrt(v_hat) + epsilon) with both bias corrections taken out
 * of the loop. Moments too small to move a parameter are set to 0: the moments
 * of a unit that is no longer active would otherwise decay into subnormal
 * numbers, on which arithmetic is many times slower.
 */
#include <tgmath.h>

#include "dqn/network.h"

#define NEGLIGIBLE ((Real)1e-30)

void adam_update(Adam *adam, Real *parameters, const Real *gradients) {
    adam->step++;
    double correction1 = 1 - pow(adam->beta1, (double)adam->step);
    double correction2 = sqrt(1 - pow(adam->beta2, (double)adam->step));
    Real rate = (Real)(adam->learning_rate * correction2 / correction1);
    Real epsilon = (Real)(adam->epsilon * correction2);
    Real beta1 = (Real)adam->beta1, beta2 = (Real)adam->beta2;
    Real rest1 = (Real)(1 - adam->beta1), rest2 = (Real)(1 - adam->beta2);
    Real *first = adam->first, *second = adam->second;
    for (int64_t i = 0; i < adam->count; i++) {
        Real gradient = gradients[i];
        Real m = beta1 * first[i] + rest1 * gradient;
        Real v = beta2 * second[i] + rest2 * gradient * gradient;
        m = fabs(m) < NEGLIGIBLE ? 0 : m;
        v = v < NEGLIGIBLE ? 0 : v;
        first[i] = m;
        second[i] = v;
        parameters[i] -= rate * m / (sqrt(v) + epsilon);
    }
}
