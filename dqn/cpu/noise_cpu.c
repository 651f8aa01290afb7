/* Noisy layers on the CPU: learned exploration with factorised Gaussian noise (Fortunato et al. 2018).
 *
 * A weight is mean + deviation f(input noise) f(output noise) with f(x) = sign(x) sqrt(|x|). noise_draw()
 * draws the factors of all layers, noise_apply() adds the noise to the means, and noise_gradients() derives
 * by means and deviations.
 */
#include <string.h>
#include <tgmath.h>

#include "base/random.h"
#include "dqn/noise.h"

AmStatus noise_create(Noise *noise, Arena *arena, const Network *network, AmError *error) {
    *noise = (Noise){0};
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *layer = &network->layers[i];
        noise->inputs[i] = ARENA_ARRAY(arena, Real, layer->inputs);
        noise->outputs[i] = ARENA_ARRAY(arena, Real, layer->outputs);
        if (!noise->inputs[i] || !noise->outputs[i])
            return am_fail_memory(error, ((int64_t)layer->inputs + layer->outputs) * (int64_t)sizeof(Real));
    }
    noise->means = network_array(arena, network->mean_count);
    return noise->means ? AM_OK : am_fail_memory(error, network->mean_count * (int64_t)sizeof(Real));
}

/* Draws factors[count] = f(e) of the numbers from `index` on; advances `index`. */
static void draw_factors(Real *factors, int32_t count, uint64_t seed, uint64_t number, uint64_t *index) {
    for (int32_t k = 0; k < count; k++) {
        double normal = random_normal_at(seed, number, (*index)++);
        factors[k] = (Real)copysign(sqrt(fabs(normal)), normal);
    }
}

void noise_draw(Noise *noise, const Network *network, uint64_t seed, NoiseStream stream, int64_t number) {
    uint64_t stream_seed = random_at(seed, UINT64_MAX, (uint64_t)stream), index = 0;
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *layer = &network->layers[i];
        draw_factors(noise->inputs[i], layer->inputs, stream_seed, (uint64_t)number, &index);
        draw_factors(noise->outputs[i], layer->outputs, stream_seed, (uint64_t)number, &index);
    }
}

/* Computes sums[count] = means + deviations scale factors. */
static void add_noise(Real *sums, const Real *means, const Real *deviations, Real scale, const Real *factors,
                      int32_t count) {
    for (int32_t k = 0; k < count; k++) sums[k] = means[k] + deviations[k] * (scale * factors[k]);
}

void noise_apply(const Noise *noise, const Network *network, const Real *parameters) {
    memcpy(noise->means, parameters, sizeof(Real) * (size_t)network->dense);
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *layer = &network->layers[i];
        int32_t inputs = layer->inputs, outputs = layer->outputs;
        for (int32_t row = 0; row <= inputs; row++) {
            int64_t at = layer->weights + (int64_t)row * outputs; /* the biases are the row after the last */
            add_noise(noise->means + at, parameters + at, parameters + network_deviation(network, at),
                      row < inputs ? noise->inputs[i][row] : 1, noise->outputs[i], outputs);
        }
    }
}

void noise_gradients(const Noise *noise, const Network *network, Real *gradients) {
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *layer = &network->layers[i];
        int32_t inputs = layer->inputs, outputs = layer->outputs;
        for (int32_t row = 0; row <= inputs; row++) {
            int64_t at = layer->weights + (int64_t)row * outputs;
            const Real *by_means = gradients + at, *factors = noise->outputs[i];
            Real *by_deviations = gradients + network_deviation(network, at);
            Real scale = row < inputs ? noise->inputs[i][row] : 1;
            for (int32_t k = 0; k < outputs; k++) by_deviations[k] = by_means[k] * (scale * factors[k]);
        }
    }
}
