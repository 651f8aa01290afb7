/* The back-end independent part of the network: its layout in the flat buffer,
 * the memory of a pass, the first parameters, and Adam's moments. Sizes are
 * checked here once; the back ends rely on them. */
#include "dqn/network.h"

#include <math.h>

static bool width_ok(int32_t width) {
    return width >= 1 && width <= NETWORK_MAX_WIDTH;
}

AmStatus network_create(Network *network, const NetworkShape *shape, AmError *error) {
    if (!width_ok(shape->observation_size) || !width_ok(shape->action_count))
        return am_fail(error, AM_ERROR_USAGE, "", "network: %d observations and %d actions; expected 1 to %d",
                       shape->observation_size, shape->action_count, NETWORK_MAX_WIDTH);
    if (shape->hidden_count < 0 || shape->hidden_count > NETWORK_MAX_HIDDEN)
        return am_fail(error, AM_ERROR_USAGE, "", "network: %d hidden layers; expected 0 to %d",
                       shape->hidden_count, NETWORK_MAX_HIDDEN);
    *network = (Network){.shape = *shape, .layer_count = shape->hidden_count + 1};
    int64_t offset = 0;
    for (int32_t i = 0; i < network->layer_count; i++) {
        NetworkLayer *layer = &network->layers[i];
        bool head = i == shape->hidden_count;
        layer->inputs = i == 0 ? shape->observation_size : shape->hidden[i - 1];
        layer->outputs = head ? shape->action_count + (shape->dueling ? 1 : 0) : shape->hidden[i];
        if (!head && !width_ok(layer->outputs))
            return am_fail(error, AM_ERROR_USAGE, "", "network: a hidden layer of %d; expected 1 to %d",
                           layer->outputs, NETWORK_MAX_WIDTH);
        layer->weights = offset;
        layer->biases = offset + (int64_t)layer->inputs * layer->outputs;
        offset = layer->biases + layer->outputs;
    }
    if (offset > NETWORK_MAX_COUNT)
        return am_fail(error, AM_ERROR_USAGE, "", "network: %lld parameters; at most %lld are allowed",
                       (long long)offset, (long long)NETWORK_MAX_COUNT);
    network->parameter_count = offset;
    return AM_OK;
}

AmStatus network_pass_create(NetworkPass *pass, Arena *arena, const Network *network, int32_t capacity,
                             AmError *error) {
    *pass = (NetworkPass){.capacity = capacity};
    int64_t widest = 1;
    for (int32_t i = 0; i < network->layer_count; i++) {
        int64_t width = network->layers[i].outputs;
        if (width > widest) widest = width;
        pass->outputs[i] = ARENA_ARRAY(arena, Real, capacity * width);
        if (!pass->outputs[i]) return am_fail_memory(error, capacity * width * (int64_t)sizeof(Real));
    }
    pass->gradient = ARENA_ARRAY(arena, Real, capacity * widest);
    pass->next_gradient = ARENA_ARRAY(arena, Real, capacity * widest);
    if (!pass->gradient || !pass->next_gradient)
        return am_fail_memory(error, capacity * widest * (int64_t)sizeof(Real));
    return AM_OK;
}

void network_initialize(const Network *network, Real *parameters, Random *random) {
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *layer = &network->layers[i];
        double scale = i == network->layer_count - 1 ? 0.1 : 1.0;
        double deviation = scale * sqrt(2.0 / layer->inputs);
        int64_t count = (int64_t)layer->inputs * layer->outputs;
        for (int64_t k = 0; k < count; k++)
            parameters[layer->weights + k] = (Real)(deviation * random_normal(random));
        for (int32_t k = 0; k < layer->outputs; k++) parameters[layer->biases + k] = 0;
    }
}

AmStatus adam_create(Adam *adam, Arena *arena, int64_t count, double learning_rate, AmError *error) {
    *adam = (Adam){.learning_rate = learning_rate, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    adam->count = count;
    adam->first = ARENA_ARRAY(arena, Real, count);
    adam->second = ARENA_ARRAY(arena, Real, count);
    if (!adam->first || !adam->second) return am_fail_memory(error, 2 * count * (int64_t)sizeof(Real));
    return AM_OK;
}
