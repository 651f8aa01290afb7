/* Acting on the CPU: values from parameters that every call passes, in memory of its own, so that
 * acting and learning may run concurrently on two threads. */
#ifndef DQN_CPU_ACTOR_CPU_H
#define DQN_CPU_ACTOR_CPU_H

#include "dqn/learner.h"
#include "dqn/noise.h"

typedef struct ActorCpu {
    NetworkPass pass;
    Noise noise;   /* of noisy networks */
    float *logits; /* [pass.capacity, action_count, atoms] of distributions */
} ActorCpu;

/* Creates an actor for as many rows at once as a batch has; the arena owns the memory. */
AmStatus actor_cpu_create(ActorCpu *actor, Arena *arena, const Learner *base, AmError *error);

/* Computes values[count, action_count] of observations[count, observation_size] by
 * parameters[parameter_count]; `noise` as in learner_values. A row's values do not depend on the other
 * rows. */
void actor_cpu_values(ActorCpu *actor, const Learner *base, const float *parameters,
                      const float *observations, int32_t count, int64_t noise, float *values);

#endif
