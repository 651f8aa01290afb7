/* A chain of five states with known values, for tests of the agent: the environment, its value
 * iteration, a learning run, and the state of an agent. */
#ifndef TESTS_SUPPORT_CHAIN_CASE_H
#define TESTS_SUPPORT_CHAIN_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "dqn/agent_state.h"

enum { STATES = 5, LEFT = 0, RIGHT = 1 };

/* Five states in a row. Left of the first the episode ends with 0.2, right of
 * the last with 1; every other step costs 0.05. */
static inline double chain_step(int32_t *at, int32_t action, bool *terminal) {
    *at += action == RIGHT ? 1 : -1;
    *terminal = *at < 0 || *at >= STATES;
    if (!*terminal) return -0.05;
    return *at < 0 ? 0.2 : 1;
}

static inline void value_iteration(double gamma, double values[STATES][2]) {
    memset(values, 0, sizeof(double) * STATES * 2);
    for (int32_t sweep = 0; sweep < 200; sweep++)
        for (int32_t s = 0; s < STATES; s++)
            for (int32_t a = 0; a < 2; a++) {
                int32_t next = s;
                bool terminal;
                values[s][a] = chain_step(&next, a, &terminal);
                if (!terminal) values[s][a] += gamma * fmax(values[next][0], values[next][1]);
            }
}

static inline void observe_state(int32_t at, float observation[STATES]) {
    for (int32_t i = 0; i < STATES; i++) observation[i] = i == at ? 1 : 0;
}

static inline AgentSettings chain_settings(void) {
    AgentSettings settings = agent_default_settings();
    settings.gamma = 0.9;
    settings.learning_rate = 0.003;
    settings.epsilon_start = 1;
    settings.epsilon_end = 0.5;
    settings.epsilon_decay = 3000;
    settings.batch = 32;
    settings.n_step = 1;
    settings.hidden_count = 1;
    settings.hidden[0] = 32;
    return settings;
}

static inline Agent *make_agent(const AgentSettings *settings) {
    Agent *agent;
    AmError error = {0};
    assert_int_equal(agent_create(&agent, settings, STATES, 2, &error), AM_OK);
    return agent;
}

/* Walks the chain for `steps` steps, an update each; returns the sum of losses. */
static inline double walk(Agent *agent, Random *random, int32_t steps) {
    int32_t at = (int32_t)random_below(random, STATES), length = 0;
    double losses = 0;
    for (int32_t i = 0; i < steps; i++) {
        float here[STATES], there[STATES];
        observe_state(at, here);
        bool terminal;
        AgentStep step = {.observation = here, .action = agent_act(agent, here, NULL, false)};
        step.reward = chain_step(&at, step.action, &terminal);
        observe_state(at, there);
        step.next_observation = there;
        step.terminal = terminal;
        assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
        if (agent_learn(agent, 1)) losses += agent_loss(agent);
        if (terminal || ++length >= 30) {
            agent_end_episode(agent);
            at = (int32_t)random_below(random, STATES);
            length = 0;
        }
    }
    agent_end_episode(agent);
    return losses;
}

/* The state of the agent's learner, in host memory owned by the arena. */
static inline LearnerState state_of(Agent *agent, Arena *arena) {
    LearnerState result;
    AmError error = {0};
    Learner *learner = agent->learner;
    assert_int_equal(learner_state_create(&result, arena, learner, learner->count, &error), AM_OK);
    assert_int_equal(learner_get_state(learner, &result, &error), AM_OK);
    return result;
}

/* The largest distance of the learnt values from the true ones. */
static inline double chain_error(Agent *agent, double gamma) {
    double exact[STATES][2], worst = 0;
    value_iteration(gamma, exact);
    for (int32_t s = 0; s < STATES; s++) {
        float observation[STATES], values[2];
        observe_state(s, observation);
        agent_values(agent, observation, 1, values, NULL);
        for (int32_t a = 0; a < 2; a++) worst = fmax(worst, fabs(values[a] - exact[s][a]));
        assert_int_equal(agent_act(agent, observation, NULL, true), exact[s][1] > exact[s][0]);
    }
    return worst;
}

/* Every damaged byte of a saved agent is refused or gives an agent that works. */
static inline void assert_damage_is_survived(Text *saved, Random *random) {
    for (size_t at = 0; at < saved->length; at++) {
        Agent *loaded;
        char kept = saved->data[at];
        saved->data[at] = (char)(kept ^ (at % 2 ? 0x80 : 0x7f));
        AmStatus status = agent_load(&loaded, DQN_CPU, saved->data, saved->length, "state", NULL);
        saved->data[at] = kept;
        if (status == AM_OK) {
            walk(loaded, random, 3);
            agent_free(loaded);
        } else {
            assert_int_equal(status, AM_ERROR_INPUT);
        }
    }
}

#endif
