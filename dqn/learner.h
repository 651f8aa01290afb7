/* Learner: the part of an agent that is stored on the computing device.
 *
 * It owns the online and the target parameters, Adam's moments, the replay with its priorities, and
 * the random numbers of sampling; the agent owns the state of acting (exploration, n-step returns).
 * Back ends: dqn/cpu (OpenBLAS), dqn/cuda (the whole update as one graph on the device). Both draw
 * the same samples: stratum i of update t uses random_uniform_at(seed, t, i).
 *
 * One update (Rainbow's parts, Hessel et al. 2018): draw a batch by priority; Q of the states and
 * of the next states by the online network, of the next states by the target network; double-DQN
 * targets; weighted Huber loss, or cross entropy between distributions of the return
 * (distribution.h); Adam; new priorities from the unweighted errors; every target_update updates
 * the target becomes a copy of the online network. Noisy networks draw their noise (noise.h) once
 * an update each, under the number of the update.
 *
 * Calls may return before a device has done the work. learner_add and learner_learn read nothing
 * back; a failure on a device is returned by a later call that reads. After a failed call only
 * learner_free is allowed.
 */
#ifndef DQN_LEARNER_H
#define DQN_LEARNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "dqn/distribution.h"
#include "dqn/network.h"
#include "dqn/transition.h"

#define DQN_DEVICE_LIST(X) \
    X(CPU, "cpu")          \
    X(CUDA, "cuda")
typedef enum DqnDevice {
#define DQN_DEVICE_ENUM(name, text) DQN_##name,
    DQN_DEVICE_LIST(DQN_DEVICE_ENUM)
#undef DQN_DEVICE_ENUM
        DQN_DEVICE_COUNT
} DqnDevice;
const char *dqn_device_name(DqnDevice device);

#define LEARNER_THREADED_ROWS 256 /* transitions that may wait for a threaded learner, twice */

/* How a CUDA device makes its updates; a choice for measurements. */
typedef enum DqnUpdate {
    DQN_UPDATE_GRAPH,     /* one graph each; dense layers by cuBLASLt, where it has products for them */
    DQN_UPDATE_OWN_GRAPH, /* one graph each; dense layers by our own kernels */
    DQN_UPDATE_BLOCK      /* many in one block of threads; a network with convolutions: OWN_GRAPH */
} DqnUpdate;

/* Returns AM_OK if a learner can be made there; else AM_ERROR_RUNTIME with the reason in one line: a build
 * without CUDA, no driver, no device. */
AmStatus dqn_device_check(DqnDevice device, AmError *error);

/* Ranges are the caller's to check (agent.c). */
typedef struct LearnerSettings {
    NetworkShape shape;
    double learning_rate;
    double alpha, beta, priority_epsilon; /* of prioritized replay */
    double huber;
    double v_min, v_max; /* of distributions: not read without shape.atoms */
    int32_t batch, target_update, replay_capacity;
    bool double_q;
    bool threaded; /* learn on a thread of its own (CPU) */
    DqnUpdate update;
    uint64_t seed; /* of sampling and of noise */
} LearnerSettings;

/* The whole state in host memory, arrays of `count` rows owned by an arena. */
typedef struct LearnerState {
    int64_t parameter_count, updates, adam_steps;
    float *online, *target, *first, *second; /* [parameter_count], network.h's layout */
    int32_t count, next;                     /* transitions held; the place written next */
    double max_priority;                     /* raw: not yet raised to alpha */
    float *observations, *next_observations; /* [count, observation_size] */
    uint8_t *next_masks;                     /* [count, action_count] */
    int32_t *actions;
    float *rewards, *discounts;
    double *masses; /* p_i^alpha */
} LearnerState;

typedef struct Learner Learner;

/* A back end. Functions are called with arguments that learner.c has checked. */
typedef struct LearnerMethods {
    void (*free)(Learner *learner);
    AmStatus (*add)(Learner *learner, const Transition *transitions, int32_t count, AmError *error);
    AmStatus (*values)(Learner *learner, const float *observations, int32_t count, int64_t noise,
                       float *values, AmError *error);
    AmStatus (*learn)(Learner *learner, int32_t updates, AmError *error);
    AmStatus (*take_loss)(Learner *learner, double *sum, AmError *error);
    AmStatus (*get_parameters)(Learner *learner, float *parameters, AmError *error);
    AmStatus (*set_parameters)(Learner *learner, const float *parameters, AmError *error);
    AmStatus (*get_state)(Learner *learner, LearnerState *state, AmError *error);
    AmStatus (*set_state)(Learner *learner, const LearnerState *state, AmError *error);
} LearnerMethods;

/* The common part of all back ends. The counters need no query of the device, since they depend on
 * the calls alone. */
struct Learner {
    const LearnerMethods *methods;
    const char *description; /* how updates are made; static */
    LearnerSettings settings;
    Network network;
    Atoms atoms;         /* of shape.atoms */
    int32_t count, next; /* transitions held; the place written next */
    int64_t updates;
    int64_t adam_steps;     /* updates since the parameters were set */
    int64_t losses_waiting; /* updates whose loss was not taken yet */
};

/* Create learners: the constructors that learner_create chooses from; they fill everything after `base`,
 * which is given. Parameters start as 0. */
AmStatus learner_cpu_create(Learner **learner, const Learner *base, AmError *error);
AmStatus learner_cuda_create(Learner **learner, const Learner *base, AmError *error);
AmStatus learner_cuda_check(AmError *error);

/* Fails with AM_ERROR_USAGE for a shape out of range, one that the device has no learner for (noisy layers
 * and atoms: the CPU alone), or more than `most_bytes` of memory; AM_ERROR_RUNTIME if the device cannot be
 * used. learner_free releases it. */
AmStatus learner_create(Learner **learner, DqnDevice device, const LearnerSettings *settings,
                        int64_t most_bytes, AmError *error);
void learner_free(Learner *learner);

/* Stores copies over the oldest transitions, in order. */
AmStatus learner_add(Learner *learner, const Transition *transitions, int32_t count, AmError *error);

/* values[count, action_count] of observations[count, observation_size]: of
 * distributions their means. `noise` counts the draws of acting, one for all rows;
 * LEARNER_NO_NOISE: by the means of the parameters. */
#define LEARNER_NO_NOISE ((int64_t)-1)
AmStatus learner_values(Learner *learner, const float *observations, int32_t count, int64_t noise,
                        float *values, AmError *error);

/* Makes `updates` updates; the replay holds at least one batch. */
AmStatus learner_learn(Learner *learner, int32_t updates, AmError *error);

/* Reads the mean loss of the updates since the last call; NAN if there were none. The loss of one update is
 * the weighted mean over its batch. */
AmStatus learner_take_loss(Learner *learner, double *mean, AmError *error);

/* Reads the online parameters[parameter_count]. Setting them sets both networks and restarts Adam. */
AmStatus learner_get_parameters(Learner *learner, float *parameters, AmError *error);
AmStatus learner_set_parameters(Learner *learner, const float *parameters, AmError *error);

/* Creates the memory of a state of `count` transitions; the arena owns it. */
AmStatus learner_state_create(LearnerState *state, Arena *arena, const Learner *learner, int32_t count,
                              AmError *error);
/* Copies the state. `state` was created with the learner's count (get), or by its own (set). After a set the
 * learner continues exactly as the one of the get would have. */
AmStatus learner_get_state(Learner *learner, LearnerState *state, AmError *error);
AmStatus learner_set_state(Learner *learner, const LearnerState *state, AmError *error);

#endif
