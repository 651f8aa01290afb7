/* A CPU learner on a thread of its own, while its owner acts.
 *
 * The owner stores transitions in a bank and requests updates. The thread exchanges the filled bank
 * for an empty one, stores its transitions, makes one update, and publishes the parameters. Acting
 * uses the newest published ones. The number of updates between two actions depends on time:
 * results are not reproducible, unless the owner does not act while updates are pending.
 *
 * The owner may be MOST_BEHIND updates ahead and then waits; it also waits for values that depend
 * on finished work: losses, parameters, states.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/parallel.h"
#include "dqn/cpu/actor_cpu.h"
#include "dqn/cpu/learner_threaded.h"

enum { MOST_BEHIND = 64 };

/* Transitions on their way; rows of arrays as in the replay. */
typedef struct Bank {
    int32_t count;
    float *observations, *next_observations;
    uint8_t *next_masks;
    Transition *transitions; /* whose arrays are the rows above */
} Bank;

typedef struct LearnerThreaded {
    Learner base;
    Arena arena;    /* owns the following fields except the inner learner */
    Learner *inner; /* the thread's while it works, else the owner's */
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex; /* guards the next ones */
    pthread_cond_t requested, done;
    Bank banks[2]; /* [filling] is the owner's, the other the thread's */
    int32_t filling;
    int32_t updates_waiting;
    bool working, ends;
    float *published; /* [parameter_count], after the newest update */
    int64_t version;  /* of them */

    ActorCpu actor; /* the owner's */
    float *acting;  /* its copy of the published parameters, of version `acting_version` */
    int64_t acting_version;
} LearnerThreaded;

static void publish(LearnerThreaded *learner) {
    learner_get_parameters(learner->inner, learner->published, NULL);
    learner->version++;
}

static bool has_work(const LearnerThreaded *learner) {
    return learner->banks[learner->filling].count > 0 || learner->updates_waiting > 0;
}

/* Runs the thread of the learner. Calls of a CPU learner do not fail. */
static void *work(void *user) {
    LearnerThreaded *learner = user;
    pthread_mutex_lock(&learner->mutex);
    while (!learner->ends) {
        if (!has_work(learner)) {
            pthread_cond_wait(&learner->requested, &learner->mutex);
            continue;
        }
        Bank *bank = &learner->banks[learner->filling];
        bool updates = learner->updates_waiting > 0;
        learner->filling = 1 - learner->filling;
        learner->updates_waiting -= updates;
        learner->working = true;
        pthread_mutex_unlock(&learner->mutex);
        learner_add(learner->inner, bank->transitions, bank->count, NULL);
        learner_learn(learner->inner, updates, NULL);
        pthread_mutex_lock(&learner->mutex);
        bank->count = 0;
        learner->working = false;
        if (updates) publish(learner);
        pthread_cond_broadcast(&learner->done);
    }
    pthread_mutex_unlock(&learner->mutex);
    return NULL;
}

/* Waits until nothing is left to do: the inner learner is then the owner's. */
static void finish(LearnerThreaded *learner) {
    pthread_mutex_lock(&learner->mutex);
    while (learner->working || has_work(learner)) pthread_cond_wait(&learner->done, &learner->mutex);
    pthread_mutex_unlock(&learner->mutex);
}

static void threaded_free(Learner *base) {
    LearnerThreaded *learner = (LearnerThreaded *)base;
    if (learner->started) {
        pthread_mutex_lock(&learner->mutex);
        learner->ends = true;
        pthread_cond_broadcast(&learner->requested);
        pthread_mutex_unlock(&learner->mutex);
        pthread_join(learner->thread, NULL);
    }
    pthread_cond_destroy(&learner->requested);
    pthread_cond_destroy(&learner->done);
    pthread_mutex_destroy(&learner->mutex);
    learner_free(learner->inner);
    arena_free(&learner->arena);
    free(learner);
}

/* Copies the transition to the next row of the bank. */
static void put(Bank *bank, const Transition *transition, const NetworkShape *shape) {
    size_t size = (size_t)shape->observation_size, actions = (size_t)shape->action_count;
    size_t row = (size_t)bank->count++;
    float *observation = bank->observations + row * size, *next = bank->next_observations + row * size;
    uint8_t *mask = bank->next_masks + row * actions;
    memcpy(observation, transition->observation, size * sizeof(float));
    if (transition->discount != 0) memcpy(next, transition->next_observation, size * sizeof(float));
    if (transition->next_mask) memcpy(mask, transition->next_mask, actions);
    Transition *copy = &bank->transitions[row];
    *copy = *transition;
    copy->observation = observation;
    copy->next_observation = next;
    copy->next_mask = transition->next_mask ? mask : NULL;
}

static AmStatus threaded_add(Learner *base, const Transition *transitions, int32_t count, AmError *error) {
    (void)error;
    LearnerThreaded *learner = (LearnerThreaded *)base;
    pthread_mutex_lock(&learner->mutex);
    for (int32_t i = 0; i < count; i++) {
        while (learner->banks[learner->filling].count == LEARNER_THREADED_ROWS)
            pthread_cond_wait(&learner->done, &learner->mutex);
        put(&learner->banks[learner->filling], &transitions[i], &base->settings.shape);
        pthread_cond_signal(&learner->requested);
    }
    pthread_mutex_unlock(&learner->mutex);
    return AM_OK;
}

static AmStatus threaded_values(Learner *base, const float *observations, int32_t count, int64_t noise,
                                float *values, AmError *error) {
    (void)error;
    LearnerThreaded *learner = (LearnerThreaded *)base;
    pthread_mutex_lock(&learner->mutex);
    if (learner->acting_version != learner->version) {
        memcpy(learner->acting, learner->published, sizeof(float) * (size_t)base->network.parameter_count);
        learner->acting_version = learner->version;
    }
    pthread_mutex_unlock(&learner->mutex);
    actor_cpu_values(&learner->actor, base, learner->acting, observations, count, noise, values);
    return AM_OK;
}

static AmStatus threaded_learn(Learner *base, int32_t updates, AmError *error) {
    (void)error;
    LearnerThreaded *learner = (LearnerThreaded *)base;
    pthread_mutex_lock(&learner->mutex);
    learner->updates_waiting += updates;
    pthread_cond_signal(&learner->requested);
    while (learner->updates_waiting > MOST_BEHIND) pthread_cond_wait(&learner->done, &learner->mutex);
    pthread_mutex_unlock(&learner->mutex);
    return AM_OK;
}

static AmStatus threaded_take_loss(Learner *base, double *sum, AmError *error) {
    LearnerThreaded *learner = (LearnerThreaded *)base;
    finish(learner);
    return learner->inner->methods->take_loss(learner->inner, sum, error);
}

static AmStatus threaded_get_parameters(Learner *base, float *parameters, AmError *error) {
    LearnerThreaded *learner = (LearnerThreaded *)base;
    finish(learner);
    return learner_get_parameters(learner->inner, parameters, error);
}

static AmStatus threaded_set_parameters(Learner *base, const float *parameters, AmError *error) {
    LearnerThreaded *learner = (LearnerThreaded *)base;
    finish(learner);
    TRY(learner_set_parameters(learner->inner, parameters, error));
    publish(learner);
    return AM_OK;
}

static AmStatus threaded_get_state(Learner *base, LearnerState *state, AmError *error) {
    LearnerThreaded *learner = (LearnerThreaded *)base;
    finish(learner);
    return learner_get_state(learner->inner, state, error);
}

static AmStatus threaded_set_state(Learner *base, const LearnerState *state, AmError *error) {
    LearnerThreaded *learner = (LearnerThreaded *)base;
    finish(learner);
    TRY(learner_set_state(learner->inner, state, error));
    publish(learner);
    return AM_OK;
}

static const LearnerMethods METHODS = {
    .free = threaded_free,
    .add = threaded_add,
    .values = threaded_values,
    .learn = threaded_learn,
    .take_loss = threaded_take_loss,
    .get_parameters = threaded_get_parameters,
    .set_parameters = threaded_set_parameters,
    .get_state = threaded_get_state,
    .set_state = threaded_set_state,
};

static AmStatus create_bank(Bank *bank, Arena *arena, const NetworkShape *shape, AmError *error) {
    int64_t rows = LEARNER_THREADED_ROWS, size = shape->observation_size;
    bank->observations = ARENA_ARRAY(arena, float, rows *size);
    bank->next_observations = ARENA_ARRAY(arena, float, rows *size);
    bank->next_masks = ARENA_ARRAY(arena, uint8_t, rows * shape->action_count);
    bank->transitions = ARENA_ARRAY(arena, Transition, rows);
    if (!bank->observations || !bank->next_observations || !bank->next_masks || !bank->transitions)
        return am_fail_memory(error, rows * (8 * size + shape->action_count + (int64_t)sizeof(Transition)));
    return AM_OK;
}

static AmStatus start_learner_thread(LearnerThreaded *learner, AmError *error) {
    Learner *base = &learner->base;
    Learner inner = *base;
    inner.settings.threaded = false;
    TRY(learner_cpu_create(&learner->inner, &inner, error));
    TRY(actor_cpu_create(&learner->actor, &learner->arena, base, error));
    for (int32_t i = 0; i < 2; i++)
        TRY(create_bank(&learner->banks[i], &learner->arena, &base->settings.shape, error));
    learner->published = network_array(&learner->arena, base->network.parameter_count);
    learner->acting = network_array(&learner->arena, base->network.parameter_count);
    if (!learner->published || !learner->acting)
        return am_fail_memory(error, 2 * base->network.parameter_count * (int64_t)sizeof(float));
    TRY(parallel_start_thread(&learner->thread, work, learner, error));
    learner->started = true;
    return AM_OK;
}

AmStatus learner_threaded_create(Learner **result, const Learner *base, AmError *error) {
    *result = NULL;
    LearnerThreaded *learner = calloc(1, sizeof(*learner));
    if (!learner) return am_fail_memory(error, sizeof(*learner));
    learner->base = *base;
    learner->base.methods = &METHODS;
    learner->base.description = "a thread beside the caller's";
    pthread_mutex_init(&learner->mutex, NULL);
    pthread_cond_init(&learner->requested, NULL);
    pthread_cond_init(&learner->done, NULL);
    AmStatus status = start_learner_thread(learner, error);
    if (status == AM_OK) *result = &learner->base;
    else threaded_free(&learner->base);
    return status;
}
