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
 *
 * Wider vectors change no bit: nothing is summed over parameters, and products
 * are not fused into additions here.
 */
#include <tgmath.h>

#include "dqn/network.h"

#define NEGLIGIBLE ((Real)1e-30)

/* The constants of one update. */
typedef struct Step {
    Real rate, epsilon, beta1, beta2, rest1, rest2;
} Step;

/* One step of Adam on all parameters. */
static inline __attribute__((always_inline)) void update(Step step, int64_t count, Real *restrict parameters,
                                                         Real *restrict first, Real *restrict second,
                                                         const Real *restrict gradients) {
    for (int64_t i = 0; i < count; i++) {
        Real gradient = gradients[i];
        Real m = step.beta1 * first[i] + step.rest1 * gradient;
        Real v = step.beta2 * second[i] + step.rest2 * gradient * gradient;
        m = fabs(m) < NEGLIGIBLE ? 0 : m;
        v = v < NEGLIGIBLE ? 0 : v;
        first[i] = m;
        second[i] = v;
        parameters[i] -= step.rate * m / (sqrt(v) + step.epsilon);
    }
}

#if defined __x86_64__
__attribute__((target("avx2"))) static void update_avx2(Step step, const Adam *adam, Real *parameters,
                                                        const Real *gradients) {
    update(step, adam->count, parameters, adam->first, adam->second, gradients);
}
#endif

static void update_any(Step step, const Adam *adam, Real *parameters, const Real *gradients) {
    update(step, adam->count, parameters, adam->first, adam->second, gradients);
}

void adam_update(Adam *adam, Real *parameters, const Real *gradients) {
    adam->step++;
    double correction1 = 1 - pow(adam->beta1, (double)adam->step);
    double correction2 = sqrt(1 - pow(adam->beta2, (double)adam->step));
    Step step = {.rate = (Real)(adam->learning_rate * correction2 / correction1),
                 .epsilon = (Real)(adam->epsilon * correction2),
                 .beta1 = (Real)adam->beta1,
                 .beta2 = (Real)adam->beta2,
                 .rest1 = (Real)(1 - adam->beta1),
                 .rest2 = (Real)(1 - adam->beta2)};
#if defined __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        update_avx2(step, adam, parameters, gradients);
        return;
    }
#endif
    update_any(step, adam, parameters, gradients);
}
