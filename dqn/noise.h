/* Noisy layers: learned exploration (Fortunato et al. 2018, factorised Gaussian noise, formulas 9
 * to 11). For a dense layer of p inputs and q outputs
 *
 *   W[i, j] = mean + deviation f(e_i) f(e'_j),    b[j] = mean + deviation f(e'_j),
 *   f(e) = sign(e) sqrt|e|,
 *
 * with p + q normal numbers instead of p q + q. A draw holds f of them for every dense layer of a
 * network; it is a function of a seed, a stream and a number (random_normal_at), so that it need
 * not be saved.
 *
 * The derivative by a deviation is that by its mean times the noise between them: forward and
 * backward passes use the sum and are independent of the noise.
 */
#ifndef DQN_NOISE_H
#define DQN_NOISE_H

#include "dqn/network.h"

typedef struct Noise {
    Real *inputs[NETWORK_MAX_HIDDEN + 1], *outputs[NETWORK_MAX_HIDDEN + 1]; /* f(e), f(e') of each layer */
    Real *means; /* [mean_count]: the means with the noise added */
} Noise;

/* The purpose of a draw; each has its own numbers. */
typedef enum NoiseStream { NOISE_ONLINE, NOISE_TARGET, NOISE_ACTING } NoiseStream;

/* Creates the memory for one draw and its sum; the arena owns it. */
AmStatus noise_create(Noise *noise, Arena *arena, const Network *network, AmError *error);

/* Draws number `number` of a stream. */
void noise_draw(Noise *noise, const Network *network, uint64_t seed, NoiseStream stream, int64_t number);

/* Computes noise->means from parameters[parameter_count]. */
void noise_apply(const Noise *noise, const Network *network, const Real *parameters);

/* Fills the rest, given the first mean_count of gradients[parameter_count], fills the rest. */
void noise_gradients(const Noise *noise, const Network *network, Real *gradients);

#endif
