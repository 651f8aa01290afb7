/* A run of deep Q-learning: episodes of any environment by an agent. */
#include "planners/rl/dqn_run.h"

#include <string.h>

typedef struct EpisodeRun {
    Agent *agent;
    Environment *environment;
    const DqnRunOptions *options;
    float *observation, *next; /* [observation_size] */
    uint8_t *mask, *next_mask; /* [action_count] */
} EpisodeRun;

static AmStatus take_step(EpisodeRun *self, DqnEpisode *episode, bool *done, AmError *error) {
    const EnvironmentMethods *methods = self->environment->methods;
    int32_t action = agent_act(self->agent, self->observation, self->mask, episode->is_greedy);
    double reward;
    TRY(agent_check(self->agent, error));
    TRY(methods->step(self->environment, action, &reward, done, error));
    methods->observe(self->environment, self->next);
    methods->mask(self->environment, self->next_mask);
    episode->reward += reward;
    if (episode->is_greedy) return AM_OK;
    episode->steps++;
    TRY(agent_observe(self->agent,
                      &(AgentStep){.observation = self->observation,
                                   .action = action,
                                   .reward = reward,
                                   .next_observation = self->next,
                                   .next_mask = self->next_mask,
                                   .terminal = *done},
                      error));
    int32_t every = self->options->steps_per_update;
    if (every > 0 && episode->steps % every == 0) agent_learn(self->agent, 1);
    return AM_OK;
}

/* Plays an episode. `episode` holds the count of steps before, and whether this one is greedy. */
static AmStatus play(EpisodeRun *self, DqnEpisode *episode, AmError *error) {
    const EnvironmentMethods *methods = self->environment->methods;
    bool done = false;
    episode->reward = 0;
    TRY(methods->reset(self->environment, error));
    methods->observe(self->environment, self->observation);
    methods->mask(self->environment, self->mask);
    while (!done) {
        TRY(take_step(self, episode, &done, error));
        memcpy(self->observation, self->next,
               sizeof *self->observation * (size_t)self->environment->observation_size);
        memcpy(self->mask, self->next_mask, sizeof *self->mask * (size_t)self->environment->action_count);
    }
    if (!episode->is_greedy) agent_end_episode(self->agent);
    episode->number++;
    episode->epsilon = agent_epsilon(self->agent);
    episode->loss = agent_loss(self->agent);
    return AM_OK;
}

AmStatus dqn_run_agent(Agent *agent, Environment *environment, const DqnRunOptions *options, AmError *error) {
    Arena arena = {0};
    int32_t numbers = environment->observation_size, actions = environment->action_count;
    EpisodeRun self = {.agent = agent,
                       .environment = environment,
                       .options = options,
                       .observation = ARENA_ARRAY(&arena, float, numbers),
                       .next = ARENA_ARRAY(&arena, float, numbers),
                       .mask = ARENA_ARRAY(&arena, uint8_t, actions),
                       .next_mask = ARENA_ARRAY(&arena, uint8_t, actions)};
    DqnEpisode episode = {.epsilon = agent_epsilon(agent)};
    AmStatus status = AM_OK;
    if (arena.failed) status = am_fail_memory(error, (int64_t)numbers * 8 + actions * 2);
    else if (!options->must_stop) status = am_fail(error, AM_ERROR_USAGE, "", "nothing ends this run");
    while (status == AM_OK && !options->must_stop(options->user, &episode)) {
        episode.is_greedy = options->is_greedy && options->is_greedy(options->user, &episode);
        status = play(&self, &episode, error);
        if (status == AM_OK && options->on_episode) options->on_episode(options->user, &episode);
    }
    if (status == AM_OK) status = agent_check(agent, error);
    arena_free(&arena);
    return status;
}

AmStatus dqn_run(Environment *environment, const AgentSettings *settings, const DqnRunOptions *options,
                 AmError *error) {
    Agent *agent;
    TRY(agent_create(&agent, settings, environment->observation_size, environment->action_count, error));
    AmStatus status = dqn_run_agent(agent, environment, options, error);
    agent_free(agent);
    return status;
}
