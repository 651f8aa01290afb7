/* The back-end independent part of the network: its layout in the flat buffer,
 * the memory of a pass, the first parameters, and Adam's moments. Sizes are
 * checked here once; the back ends rely on them. */
#include "dqn/network.h"

#include <math.h>

static bool width_ok(int32_t width) {
    return width >= 1 && width <= NETWORK_MAX_WIDTH;
}

/* Lays the convolutions out from `offset` on and gives the inputs of the first
 * dense layer. */
static AmStatus create_filters(Network *network, int64_t *offset, int32_t *dense_inputs, AmError *error) {
    const NetworkShape *shape = &network->shape;
    *dense_inputs = shape->observation_size;
    if (shape->convolution_count < 0 || shape->convolution_count > NETWORK_MAX_CONVOLUTIONS)
        return am_fail(error, AM_ERROR_USAGE, "", "network: %d convolutions; expected 0 to %d",
                       shape->convolution_count, NETWORK_MAX_CONVOLUTIONS);
    if (shape->convolution_count == 0) return AM_OK;
    int32_t channels = shape->channels, length = shape->length, row = shape->observation_size;
    if (!width_ok(channels) || !width_ok(length) || (int64_t)channels * length > shape->observation_size)
        return am_fail(error, AM_ERROR_USAGE, "", "network: %d arrays of %d do not fit an observation of %d",
                       channels, length, shape->observation_size);
    int32_t rest = shape->observation_size - channels * length;
    for (int32_t i = 0; i < shape->convolution_count; i++) {
        const NetworkConvolution *given = &shape->convolutions[i];
        if (!width_ok(given->filters) || given->width < 1 || given->width > length || given->stride < 1)
            return am_fail(error, AM_ERROR_USAGE, "",
                           "network: a convolution of %d filters of width %d, stride %d, over arrays of %d",
                           given->filters, given->width, given->stride, length);
        NetworkFilter *filter = &network->filters[i];
        *filter = (NetworkFilter){.channels = channels,
                                  .length = length,
                                  .filters = given->filters,
                                  .width = given->width,
                                  .stride = given->stride,
                                  .output_length = (length - given->width) / given->stride + 1,
                                  .weights = *offset,
                                  .input_row = row};
        filter->biases = *offset + (int64_t)filter->filters * channels * filter->width;
        *offset = filter->biases + filter->filters;
        int64_t outputs = (int64_t)filter->filters * filter->output_length;
        if (i == shape->convolution_count - 1) outputs += rest;
        if (outputs > NETWORK_MAX_WIDTH)
            return am_fail(error, AM_ERROR_USAGE, "", "network: a convolution with %lld outputs; at most %d",
                           (long long)outputs, NETWORK_MAX_WIDTH);
        row = filter->output_row = (int32_t)outputs;
        channels = filter->filters;
        length = filter->output_length;
    }
    *dense_inputs = row;
    return AM_OK;
}

AmStatus network_create(Network *network, const NetworkShape *shape, AmError *error) {
    if (!width_ok(shape->observation_size) || !width_ok(shape->action_count))
        return am_fail(error, AM_ERROR_USAGE, "", "network: %d observations and %d actions; expected 1 to %d",
                       shape->observation_size, shape->action_count, NETWORK_MAX_WIDTH);
    if (shape->hidden_count < 0 || shape->hidden_count > NETWORK_MAX_HIDDEN)
        return am_fail(error, AM_ERROR_USAGE, "", "network: %d hidden layers; expected 0 to %d",
                       shape->hidden_count, NETWORK_MAX_HIDDEN);
    if (shape->atoms != 0 && (shape->atoms < 2 || shape->atoms > NETWORK_MAX_ATOMS))
        return am_fail(error, AM_ERROR_USAGE, "", "network: %d atoms; expected 0 or 2 to %d", shape->atoms,
                       NETWORK_MAX_ATOMS);
    *network = (Network){.shape = *shape,
                         .layer_count = shape->hidden_count + 1,
                         .action_outputs = shape->atoms > 0 ? shape->atoms : 1};
    int64_t offset = 0;
    int32_t inputs;
    TRY(create_filters(network, &offset, &inputs, error));
    network->dense = offset;
    for (int32_t i = 0; i < network->layer_count; i++) {
        NetworkLayer *layer = &network->layers[i];
        bool head = i == shape->hidden_count;
        layer->inputs = inputs;
        int64_t outputs = ((int64_t)shape->action_count + (shape->dueling ? 1 : 0)) * network->action_outputs;
        if (!head) outputs = shape->hidden[i];
        if (outputs < 1 || outputs > NETWORK_MAX_WIDTH + 1)
            return am_fail(error, AM_ERROR_USAGE, "", "network: a layer of %lld; expected 1 to %d",
                           (long long)outputs, NETWORK_MAX_WIDTH);
        layer->outputs = (int32_t)outputs;
        layer->weights = offset;
        layer->biases = offset + (int64_t)layer->inputs * layer->outputs;
        offset = layer->biases + layer->outputs;
        inputs = layer->outputs;
    }
    network->mean_count = offset;
    network->parameter_count = shape->noisy ? network_deviation(network, offset) : offset;
    if (network->parameter_count > NETWORK_MAX_COUNT)
        return am_fail(error, AM_ERROR_USAGE, "", "network: %lld parameters; at most %lld are allowed",
                       (long long)network->parameter_count, (long long)NETWORK_MAX_COUNT);
    return AM_OK;
}

int64_t network_widest(const Network *network) {
    int64_t widest = 1;
    for (int32_t i = 0; i < network->shape.convolution_count; i++)
        if (network->filters[i].output_row > widest) widest = network->filters[i].output_row;
    for (int32_t i = 0; i < network->layer_count; i++)
        if (network->layers[i].outputs > widest) widest = network->layers[i].outputs;
    return widest;
}

int64_t network_pass_width(const Network *network) {
    int64_t sum = 2 * network_widest(network);
    for (int32_t i = 0; i < network->shape.convolution_count; i++) sum += network->filters[i].output_row;
    for (int32_t i = 0; i < network->layer_count; i++) sum += network->layers[i].outputs;
    return sum;
}

Real *network_array(Arena *arena, int64_t count) {
    enum { ALIGNMENT = 64 };
    char *bytes = ARENA_ARRAY(arena, char, count *(int64_t)sizeof(Real) + ALIGNMENT);
    return bytes ? (Real *)(bytes + (ALIGNMENT - (uintptr_t)bytes % ALIGNMENT) % ALIGNMENT) : NULL;
}

static AmStatus allocate(Real **array, Arena *arena, int64_t count, AmError *error) {
    *array = network_array(arena, count);
    return *array ? AM_OK : am_fail_memory(error, count * (int64_t)sizeof(Real));
}

AmStatus network_pass_create(NetworkPass *pass, Arena *arena, const Network *network, int32_t capacity,
                             AmError *error) {
    *pass = (NetworkPass){.capacity = capacity};
    int64_t rows = capacity, columns = 0;
    for (int32_t i = 0; i < network->shape.convolution_count; i++) {
        const NetworkFilter *filter = &network->filters[i];
        int64_t needed = (int64_t)filter->channels * filter->width * filter->output_length;
        if (needed > columns) columns = needed;
        TRY(allocate(&pass->maps[i], arena, rows * filter->output_row, error));
    }
    if (columns > 0) TRY(allocate(&pass->columns, arena, columns, error));
    for (int32_t i = 0; i < network->layer_count; i++)
        TRY(allocate(&pass->outputs[i], arena, rows * network->layers[i].outputs, error));
    TRY(allocate(&pass->gradient, arena, rows * network_widest(network), error));
    return allocate(&pass->next_gradient, arena, rows * network_widest(network), error);
}

#define NOISE_DEVIATION 0.5 /* of weights and biases, times sqrt(inputs): Fortunato's sigma_0 */

static void initialize(Real *weights, int64_t count, double deviation, Random *random) {
    for (int64_t k = 0; k < count; k++) weights[k] = (Real)(deviation * random_normal(random));
}

void network_initialize(const Network *network, Real *parameters, Random *random) {
    for (int64_t k = 0; k < network->parameter_count; k++) parameters[k] = 0;
    for (int32_t i = 0; i < network->shape.convolution_count; i++) {
        const NetworkFilter *filter = &network->filters[i];
        int64_t inputs = (int64_t)filter->channels * filter->width;
        initialize(parameters + filter->weights, inputs * filter->filters, sqrt(2.0 / (double)inputs),
                   random);
    }
    for (int32_t i = 0; i < network->layer_count; i++) {
        const NetworkLayer *layer = &network->layers[i];
        double scale = i == network->layer_count - 1 ? 0.1 : 1.0;
        initialize(parameters + layer->weights, (int64_t)layer->inputs * layer->outputs,
                   scale * sqrt(2.0 / layer->inputs), random);
        if (!network->shape.noisy) continue;
        Real *deviations = parameters + network_deviation(network, layer->weights);
        int64_t count = ((int64_t)layer->inputs + 1) * layer->outputs;
        for (int64_t k = 0; k < count; k++) deviations[k] = (Real)(NOISE_DEVIATION / sqrt(layer->inputs));
    }
}

Adam adam_constants(double learning_rate) {
    return (Adam){.learning_rate = learning_rate, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
}

AmStatus adam_create(Adam *adam, Arena *arena, int64_t count, double learning_rate, AmError *error) {
    *adam = adam_constants(learning_rate);
    adam->count = count;
    adam->first = network_array(arena, count);
    adam->second = network_array(arena, count);
    if (!adam->first || !adam->second) return am_fail_memory(error, 2 * count * (int64_t)sizeof(Real));
    return AM_OK;
}
