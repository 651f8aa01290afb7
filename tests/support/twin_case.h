/* Two learners that differ in rounding alone: a device's beside the CPU's, or the CPU's with perturbed
 * products beside itself (test_dqn_perturbed.c, from whose runs the limits here come).
 *
 * From one state they make 1, 2 and 10 updates: losses and the moves of the parameters agree closely. Over
 * 1,000 updates they may part, as a draw by priority may fall on the other side of an edge; then the results
 * of learning are compared: losses, values, and the regret of the greedy action, whose best reward is known.
 */
#ifndef TESTS_SUPPORT_TWIN_CASE_H
#define TESTS_SUPPORT_TWIN_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dqn/agent_state.h"

enum { MOST_OBSERVATION = 24, MOST_ACTIONS = 6 };

static inline LearnerSettings small_settings(void) {
    return (LearnerSettings){.shape = {.observation_size = 6,
                                       .action_count = 3,
                                       .hidden_count = 1,
                                       .hidden = {16},
                                       .dueling = true},
                             .learning_rate = 0.003,
                             .alpha = 0.5,
                             .beta = 0.6,
                             .priority_epsilon = 1e-6,
                             .huber = 1,
                             .batch = 8,
                             .target_update = 25,
                             .replay_capacity = 75,
                             .double_q = true,
                             .seed = 9};
}

/* Transition `number` of a stream that depends on nothing else: the reward is a
 * smooth function of the observation and the action. */
static inline void add_transition(Learner *learner, int64_t number) {
    const NetworkShape *shape = &learner->settings.shape;
    float here[MOST_OBSERVATION], there[MOST_OBSERVATION];
    uint8_t mask[MOST_ACTIONS];
    uint64_t stream = (uint64_t)number;
    double sum = 0;
    for (int32_t k = 0; k < shape->observation_size; k++) {
        here[k] = (float)random_normal_at(1, stream, (uint64_t)k);
        there[k] = (float)random_normal_at(2, stream, (uint64_t)k);
        sum += here[k];
    }
    for (int32_t a = 0; a < shape->action_count; a++) mask[a] = random_at(3, stream, (uint64_t)a) % 4 != 0;
    int32_t action = (int32_t)(random_at(4, stream, 0) % (uint64_t)shape->action_count);
    const Transition transition = {.observation = here,
                                   .next_observation = there,
                                   .next_mask = number % 3 ? mask : NULL,
                                   .action = action,
                                   .reward = sin(sum + action),
                                   .discount = number % 5 ? 0.9 : 0};
    assert_int_equal(learner_add(learner, &transition, 1, NULL), AM_OK);
}

static inline Learner *make_learner(DqnDevice device, const LearnerSettings *settings) {
    Learner *learner;
    AmError error = {0};
    float parameters[4000];
    Random random;
    if (learner_create(&learner, device, settings, INT64_MAX, &error) != AM_OK) fail_msg("%s", error.text);
    assert_true(learner->network.parameter_count <= 4000);
    random_seed(&random, 5);
    network_initialize(&learner->network, parameters, &random);
    assert_int_equal(learner_set_parameters(learner, parameters, &error), AM_OK);
    return learner;
}

static inline LearnerState state_of(Learner *learner, Arena *arena) {
    LearnerState result;
    AmError error = {0};
    assert_int_equal(learner_state_create(&result, arena, learner, learner->count, &error), AM_OK);
    if (learner_get_state(learner, &result, &error) != AM_OK) fail_msg("%s", error.text);
    return result;
}

/* |a - b| over all, relative to the norm of b. */
static inline double distance(const float *a, const float *b, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(difference / (norm + 1e-30));
}

/* The stored transitions are equal to the last bit. */
static inline void check_replay(const LearnerState *device, const LearnerState *cpu,
                                const NetworkShape *shape) {
    size_t rows = (size_t)cpu->count, row_bytes = rows * sizeof(float) * (size_t)shape->observation_size;
    assert_int_equal(device->count, cpu->count);
    assert_int_equal(device->next, cpu->next);
    assert_memory_equal(device->observations, cpu->observations, row_bytes);
    assert_memory_equal(device->next_observations, cpu->next_observations, row_bytes);
    assert_memory_equal(device->next_masks, cpu->next_masks, rows * (size_t)shape->action_count);
    assert_memory_equal(device->actions, cpu->actions, rows * sizeof(int32_t));
    assert_memory_equal(device->rewards, cpu->rewards, rows * sizeof(float));
    assert_memory_equal(device->discounts, cpu->discounts, rows * sizeof(float));
}

/* A transition that a learner can predict: the reward is the observation's element of that action. */
static inline void add_lesson(Learner *learner, int64_t number) {
    enum { STREAM = 11 };
    float here[MOST_OBSERVATION];
    for (int32_t k = 0; k < learner->settings.shape.observation_size; k++)
        here[k] = (float)random_normal_at(STREAM, (uint64_t)number, (uint64_t)k);
    int32_t action = (int32_t)(number % learner->settings.shape.action_count);
    const Transition transition = {
        .observation = here, .next_observation = here, .action = action, .reward = (double)here[action]};
    assert_int_equal(learner_add(learner, &transition, 1, NULL), AM_OK);
}

/* The learners; enter(k), if any, is called before work of learner k. */
typedef struct Twins {
    DqnDevice devices[2];
    void (*enter)(int32_t learner);
    Learner *learners[2];
    Arena arena;
} Twins;

static inline void twins_open(Twins *self, const LearnerSettings *settings) {
    for (int32_t d = 0; d < 2; d++) self->learners[d] = make_learner(self->devices[d], settings);
}

static inline void twins_close(Twins *self) {
    for (int32_t d = 0; d < 2; d++) learner_free(self->learners[d]);
    arena_free(&self->arena);
}

static inline void twin_add(const Twins *self, int32_t d, int64_t first, int32_t count) {
    for (int32_t i = 0; i < count; i++) add_transition(self->learners[d], first + i);
}

/* The mean loss of as many updates. */
static inline double twin_learn(const Twins *self, int32_t d, int32_t updates) {
    double loss;
    AmError error = {0};
    if (self->enter) self->enter(d);
    assert_int_equal(learner_learn(self->learners[d], updates, &error), AM_OK);
    if (learner_take_loss(self->learners[d], &loss, &error) != AM_OK) fail_msg("%s", error.text);
    if (self->enter) self->enter(0);
    return loss;
}

/* How far two learners are apart after updates from one state. */
typedef struct TwinDistance {
    double loss; /* relative */
    double online, first,
        second;  /* of the moves of the parameters and of Adam's moments, relative to their norm */
    double mass; /* the largest of a priority, relative */
} TwinDistance;

/* Limits of a TwinDistance: ten times the largest of 30 CPU runs whose products err by up to 16 units of
 * rounding of the sum of their terms' sizes. One product in seven that is 1.001 times too large exceeds them.
 */
static const TwinDistance twin_limits = {5e-5, 1e-4, 1.5e-4, 3e-4, 4e-3};

/* |(b - start) - (a - start)| relative to |a - start|. */
static inline double twin_move(const float *b, const float *a, const float *start, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)b[i] - a[i]) * ((double)b[i] - a[i]);
        norm += ((double)a[i] - start[i]) * ((double)a[i] - start[i]);
    }
    return sqrt(difference / (norm + 1e-30));
}

/* Gives learner 1 the state of learner 0, lets both make `updates` updates and compares all they changed. */
static inline TwinDistance twins_part(Twins *self, int32_t updates) {
    AmError error = {0};
    LearnerState start = state_of(self->learners[0], &self->arena);
    if (learner_set_state(self->learners[1], &start, &error) != AM_OK) fail_msg("%s", error.text);
    double losses[2];
    for (int32_t d = 0; d < 2; d++) losses[d] = twin_learn(self, d, updates);
    LearnerState a = state_of(self->learners[0], &self->arena), b = state_of(self->learners[1], &self->arena);
    check_replay(&b, &a, &self->learners[0]->settings.shape);
    assert_int_equal(a.updates, b.updates);
    TwinDistance result = {.loss = fabs(losses[1] - losses[0]) / (losses[0] + 1e-3),
                           .online = twin_move(b.online, a.online, start.online, a.parameter_count),
                           .first = twin_move(b.first, a.first, start.first, a.parameter_count),
                           .second = twin_move(b.second, a.second, start.second, a.parameter_count)};
    for (int32_t i = 0; i < a.count; i++) {
        double mass = fabs(b.masses[i] - a.masses[i]) / (a.masses[i] + 0.01);
        if (mass > result.mass) result.mass = mass;
    }
    bool copied = a.updates / self->learners[0]->settings.target_update !=
                  start.updates / self->learners[0]->settings.target_update;
    double target = copied ? distance(b.target, a.target, a.parameter_count) : 0;
    if (target > result.online) result.online = target;
    return result;
}

/* The largest distances after 1, 2 and 10 updates from states along a run of learner 0, `points` of them. */
static inline TwinDistance twins_follow(Twins *self, const LearnerSettings *settings, int32_t updates,
                                        int32_t points) {
    static const int32_t lengths[] = {1, 2, 10};
    TwinDistance worst = {0};
    int64_t number = 0;
    twins_open(self, settings);
    for (int32_t p = 0; p < points; p++) {
        int32_t length = lengths[p % 3], fresh = p == 0 ? settings->batch : 15;
        twin_add(self, 0, number, fresh);
        number += fresh;
        TwinDistance now = twins_part(self, length);
        const double *from = &now.loss;
        double *to = &worst.loss;
        for (size_t k = 0; k < sizeof now / sizeof *from; k++)
            if (!(from[k] <= to[k])) to[k] = from[k];
        if (updates / points > length) twin_learn(self, 0, updates / points - length);
    }
    twins_close(self);
    return worst;
}

static inline bool twin_is_near(const TwinDistance *it) {
    const double *value = &it->loss, *limit = &twin_limits.loss;
    for (size_t k = 0; k < sizeof *it / sizeof *value; k++)
        if (!(value[k] <= limit[k])) return false;
    return true;
}

static inline void check_twins(DqnDevice device, const LearnerSettings *settings, int32_t updates,
                               int32_t points) {
    Twins twins = {.devices = {DQN_CPU, device}};
    TwinDistance worst = twins_follow(&twins, settings, updates, points);
    if (!twin_is_near(&worst))
        fail_msg("apart from the CPU: loss %.2g, parameters %.2g, moments %.2g and %.2g, priorities %.2g",
                 worst.loss, worst.online, worst.first, worst.second, worst.mass);
}

/* The results of learning: the mean loss of the last fifth of the updates, and by how much the greedy
 * action's reward is below the best on fresh observations. */
typedef struct TwinResult {
    double loss, regret;
} TwinResult;

/* The mean regret by add_lesson's rewards. */
static inline double twin_regret(Learner *learner) {
    enum { ROWS = 256, STREAM = 77 };
    const NetworkShape *shape = &learner->settings.shape;
    float observations[ROWS * MOST_OBSERVATION], values[ROWS * MOST_ACTIONS];
    double total = 0;
    for (uint64_t i = 0; i < ROWS * MOST_OBSERVATION; i++)
        observations[i] = (float)random_normal_at(STREAM, 0, i);
    assert_int_equal(learner_values(learner, observations, ROWS, LEARNER_NO_NOISE, values, NULL), AM_OK);
    for (int32_t i = 0; i < ROWS; i++) {
        const float *reward = observations + i * shape->observation_size,
                    *value = values + i * shape->action_count;
        int32_t greedy = 0, best = 0;
        for (int32_t a = 1; a < shape->action_count; a++) {
            if (value[a] > value[greedy]) greedy = a;
            if (reward[a] > reward[best]) best = a;
        }
        total += (double)reward[best] - (double)reward[greedy];
    }
    return total / ROWS;
}

/* Both learn lessons on their own, ten updates at a time with some transitions in between; at the end they
 * hold the same transitions. */
static inline void twins_learn_alone(Twins *self, const LearnerSettings *settings, int32_t updates,
                                     TwinResult results[2]) {
    twins_open(self, settings);
    for (int32_t d = 0; d < 2; d++) {
        int64_t number = 0;
        results[d] = (TwinResult){0};
        for (int32_t done = 0; done < updates; done += 10) {
            for (int32_t fresh = done == 0 ? settings->batch : 3; fresh > 0; fresh--)
                add_lesson(self->learners[d], number++);
            double loss = twin_learn(self, d, 10);
            if (done >= updates - updates / 5) results[d].loss += 10 * loss / (updates / 5);
        }
        results[d].regret = twin_regret(self->learners[d]);
    }
    LearnerState cpu = state_of(self->learners[0], &self->arena),
                 other = state_of(self->learners[1], &self->arena);
    check_replay(&other, &cpu, &settings->shape);
    twins_close(self);
}

/* Returns whether the second has learned as much. The limits are at least twice the largest differences of
 * the CPU runs above; in most of them a draw fell on the other side of an edge. An untrained learner's regret
 * is 0.67. */
static inline bool twin_has_learned(const TwinResult results[2]) {
    return results[1].loss > 0.7 * results[0].loss && results[1].loss < 1.4 * results[0].loss &&
           fabs(results[1].regret - results[0].regret) < 0.02;
}

#endif
