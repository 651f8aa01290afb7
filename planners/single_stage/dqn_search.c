/* Deep Q-learning over an environment (Auto-MAP section 4.2): episodes until
 * the budget is spent. Plans that were priced before cost
 * nothing, so the agent may walk familiar ground; a run of episodes that finds
 * nothing new ends the search, as the policy has settled. */
#include "planners/rl/dqn_run.h"
#include "planners/single_stage/searchers.h"

#define MAX_FAMILIAR_EPISODES 40
#define STEPS_PER_UPDATE      2

typedef struct DqnSearch {
    const Problem *problem;
    Text *log;
    int64_t evaluations; /* before the episode that is played */
    int32_t familiar;    /* episodes without a new plan, up to now */
} DqnSearch;

static AgentSettings settings_for(uint64_t seed, DqnDevice device, int64_t evaluations) {
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
    return settings;
}

static bool must_stop(void *user, const DqnEpisode *last) {
    DqnSearch *self = user;
    int64_t evaluations = self->problem->budget.evaluations;
    if (last->number > 0) self->familiar = evaluations == self->evaluations ? self->familiar + 1 : 0;
    self->evaluations = evaluations;
    return self->familiar >= MAX_FAMILIAR_EPISODES || problem_must_stop(self->problem);
}

static void log_episode(void *user, const DqnEpisode *episode) {
    const DqnSearch *self = user;
    text_append(self->log,
                "{\"evaluations\":%lld,\"reward\":%.6g,\"best\":%.9g,\"epsilon\":%.4g,\"loss\":%.6g}\n",
                (long long)self->problem->budget.evaluations, episode->reward,
                self->problem->best_price.seconds, episode->epsilon, episode->loss);
}

AmStatus dqn_search(Problem *problem, uint64_t seed, DqnDevice device, double reference_seconds, Text *log,
                    AmError *error) {
    Environment *environment;
    TRY(lists_environment_create(&environment, problem, reference_seconds, error));
    AgentSettings settings = settings_for(seed, device, problem->budget.limit - problem->budget.evaluations);
    bool anything = false;
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        for (int32_t k = 0; k < problem->candidate_count; k++)
            anything = anything || problem_usable(problem, k, axis);
    DqnSearch self = {.problem = problem, .log = log, .familiar = anything ? 0 : MAX_FAMILIAR_EPISODES};
    DqnRunOptions options = {.steps_per_update = STEPS_PER_UPDATE,
                             .must_stop = must_stop,
                             .on_episode = log_episode,
                             .user = &self};
    return dqn_run(environment, &settings, &options, error);
}
