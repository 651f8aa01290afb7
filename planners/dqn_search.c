/* Deep Q-learning over an environment (Auto-MAP section 4.2): episodes until
 * the budget is spent. Plans that were priced before cost
 * nothing, so the agent may walk familiar ground; a run of episodes that finds
 * nothing new ends the search, as the policy has settled. */
#include "planners/environment.h"
#include "planners/searchers.h"

#define MAX_FAMILIAR_EPISODES 40
#define STEPS_PER_UPDATE      2

static AmStatus create_agent(Agent **agent, uint64_t seed, DqnDevice device, int64_t evaluations,
                             AmError *error) {
    AgentSettings settings = agent_default_settings();
    settings.seed = seed;
    settings.device = device;
    settings.batch = 32;
    settings.n_step = 0; /* episodes are short: whole returns */
    settings.hidden_count = 2;
    settings.hidden[0] = settings.hidden[1] = 32;
    /* From scratch on a budget of some hundred plans: explore little, and soon less. */
    settings.epsilon_start = 0.5;
    settings.epsilon_end = 0.05;
    settings.epsilon_decay = evaluations > 0 ? 2 * evaluations : 0;
    return agent_create(agent, &settings, LISTS_OBSERVATION_SIZE, LISTS_ACTION_COUNT, error);
}

static AmStatus run_episode(Environment *environment, Agent *agent, int64_t *steps, double *total,
                            AmError *error) {
    float observation[LISTS_OBSERVATION_SIZE], next[LISTS_OBSERVATION_SIZE];
    uint8_t mask[LISTS_ACTION_COUNT], next_mask[LISTS_ACTION_COUNT];
    bool done = false;
    *total = 0;
    TRY(environment->methods->reset(environment, error));
    environment->methods->observe(environment, observation);
    environment->methods->mask(environment, mask);
    while (!done) {
        int32_t action = agent_act(agent, observation, mask, false);
        double reward;
        TRY(agent_check(agent, error));
        TRY(environment->methods->step(environment, action, &reward, &done, error));
        environment->methods->observe(environment, next);
        environment->methods->mask(environment, next_mask);
        TRY(agent_observe(agent,
                          &(AgentStep){.observation = observation,
                                       .action = action,
                                       .reward = reward,
                                       .next_observation = next,
                                       .next_mask = next_mask,
                                       .terminal = done},
                          error));
        if (++*steps % STEPS_PER_UPDATE == 0) agent_learn(agent, 1);
        *total += reward;
        for (int32_t k = 0; k < LISTS_OBSERVATION_SIZE; k++) observation[k] = next[k];
        for (int32_t k = 0; k < LISTS_ACTION_COUNT; k++) mask[k] = next_mask[k];
    }
    agent_end_episode(agent);
    return AM_OK;
}

static void log_episode(const Problem *problem, Agent *agent, Text *log, double reward) {
    text_append(log, "{\"evaluations\":%lld,\"reward\":%.6g,\"best\":%.9g,\"epsilon\":%.4g,\"loss\":%.6g}\n",
                (long long)problem->budget.evaluations, reward, problem->best_price.seconds,
                agent_epsilon(agent), agent_loss(agent));
}

AmStatus dqn_search(Problem *problem, uint64_t seed, DqnDevice device, double reference_seconds, Text *log,
                    AmError *error) {
    Environment *environment;
    Agent *agent;
    TRY(lists_environment_create(&environment, problem, reference_seconds, error));
    TRY(create_agent(&agent, seed, device, problem->budget.limit - problem->budget.evaluations, error));
    bool anything = false;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        for (int32_t k = 0; k < problem->candidate_count; k++)
            anything = anything || problem_usable(problem, k, axis);
    int64_t steps = 0;
    int32_t familiar = 0;
    double reward;
    AmStatus status = AM_OK;
    while (anything && status == AM_OK && familiar < MAX_FAMILIAR_EPISODES && !problem_must_stop(problem)) {
        int64_t before = problem->budget.evaluations;
        status = run_episode(environment, agent, &steps, &reward, error);
        familiar = problem->budget.evaluations == before ? familiar + 1 : 0;
        log_episode(problem, agent, log, reward);
    }
    if (status == AM_OK) status = agent_check(agent, error);
    agent_free(agent);
    return status;
}
