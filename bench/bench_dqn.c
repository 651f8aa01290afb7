/* Benchmark of the learning step on one core.
 *
 * For a few shapes: full updates per second (draw a batch, two forward passes,
 * backward, Adam, new priorities), and how much of an update is replay and Adam;
 * and the time of one greedy choice.
 * Reference: about 10,000 updates per second for a 64-128-16 network with a
 * batch of 32, on one core with OpenBLAS.
 */
#include <stdio.h>

#include "base/clock.h"
#include "dqn/agent_state.h"

#define REFERENCE_UPDATES 10000
#define SECONDS           0.3

typedef struct Case {
    const char *name;
    int32_t observation_size, action_count, batch, hidden_count;
    int32_t hidden[2];
} Case;

static const Case cases[] = {
    {"64-128-16 batch 32", 64, 16, 32, 1, {128}},
    {"64-128-16 batch 64", 64, 16, 64, 1, {128}},
    {"16-64-64-4 batch 64", 16, 4, 64, 2, {64, 64}},
    {"128-256-256-128 batch 64", 128, 128, 64, 2, {256, 256}},
};

static void fill_replay(Agent *agent, Random *random) {
    const NetworkShape *shape = agent_shape(agent);
    for (int32_t i = 0; i < agent->replay.capacity; i++) {
        for (int32_t k = 0; k < shape->observation_size; k++)
            agent->observations[k] = (float)random_normal(random);
        const AgentStep step = {.observation = agent->observations,
                                .action = (int32_t)random_below(random, shape->action_count),
                                .reward = random_normal(random),
                                .next_observation = agent->observations,
                                .terminal = i % 10 == 9};
        if (agent_observe(agent, &step, NULL) != AM_OK) return;
    }
}

static void update(Agent *agent) {
    agent_learn(agent, NULL);
}

static void draw_and_set_priorities(Agent *agent) {
    replay_sample(&agent->replay, &agent->random, agent->settings.batch, agent->indices, agent->weights);
    replay_update(&agent->replay, agent->indices, agent->errors, agent->settings.batch);
}

static void adam(Agent *agent) {
    adam_update(&agent->adam, agent->online, agent->gradients);
}

static void act(Agent *agent) {
    agent_act(agent, agent->observations, NULL, true);
}

/* Seconds of one call. */
static double time_of(void (*call)(Agent *), Agent *agent) {
    int64_t calls = 0;
    double begin = clock_seconds(), now = begin;
    while (now - begin < SECONDS) {
        for (int32_t i = 0; i < 50; i++, calls++) call(agent);
        now = clock_seconds();
    }
    return (now - begin) / (double)calls;
}

int main(void) {
    printf("%-26s %10s %10s %10s %10s %10s\n", "network (input-..-actions)", "updates/s", "update us",
           "replay us", "Adam us", "act us");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const Case *c = &cases[i];
        AgentSettings settings = agent_default_settings();
        settings.batch = c->batch;
        settings.hidden_count = c->hidden_count;
        for (int32_t k = 0; k < c->hidden_count; k++) settings.hidden[k] = c->hidden[k];
        Agent *agent;
        AmError error = {0};
        if (agent_create(&agent, &settings, c->observation_size, c->action_count, &error) != AM_OK) {
            fprintf(stderr, "bench_dqn: %s\n", error.text);
            return error.code;
        }
        Random random;
        random_seed(&random, 7);
        fill_replay(agent, &random);
        double seconds = time_of(update, agent);
        printf("%-26s %10.0f %10.1f %10.1f %10.1f %10.1f\n", c->name, 1 / seconds, 1e6 * seconds,
               1e6 * time_of(draw_and_set_priorities, agent), 1e6 * time_of(adam, agent),
               1e6 * time_of(act, agent));
        agent_free(agent);
    }
    printf("reference: about %d updates/s for 64-128-16 batch 32\n", REFERENCE_UPDATES);
    return 0;
}
