/* Acting on the CPU: values of actions from parameters that every call passes. */
#include "dqn/cpu/actor_cpu.h"

AmStatus actor_cpu_create(ActorCpu *actor, Arena *arena, const Learner *base, AmError *error) {
    const NetworkShape *shape = &base->settings.shape;
    int32_t rows = base->settings.batch;
    TRY(network_pass_create(&actor->pass, arena, &base->network, rows, error));
    if (shape->noisy) TRY(noise_create(&actor->noise, arena, &base->network, error));
    if (shape->atoms == 0) return AM_OK;
    int64_t logits = (int64_t)rows * shape->action_count * shape->atoms;
    actor->logits = ARENA_ARRAY(arena, float, logits);
    return actor->logits ? AM_OK : am_fail_memory(error, logits * (int64_t)sizeof(float));
}

void actor_cpu_values(ActorCpu *actor, const Learner *base, const float *parameters,
                      const float *observations, int32_t count, int64_t noise, float *values) {
    const Network *network = &base->network;
    const NetworkShape *shape = &network->shape;
    const float *means = parameters;
    if (shape->noisy && noise != LEARNER_NO_NOISE) {
        noise_draw(&actor->noise, network, base->settings.seed, NOISE_ACTING, noise);
        noise_apply(&actor->noise, network, parameters);
        means = actor->noise.means;
    }
    for (int32_t begin = 0; begin < count; begin += actor->pass.capacity) {
        int32_t rows = count - begin < actor->pass.capacity ? count - begin : actor->pass.capacity;
        float *row_values = values + (int64_t)begin * shape->action_count;
        network_forward(network, means, &actor->pass, observations + (int64_t)begin * shape->observation_size,
                        rows, shape->atoms > 0 ? actor->logits : row_values);
        if (shape->atoms > 0)
            distribution_means(&base->atoms, actor->logits, (int64_t)rows * shape->action_count, row_values);
    }
}
