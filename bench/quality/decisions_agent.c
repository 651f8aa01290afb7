/* Runs of deep Q-learning on decision problems (Auto-MAP section 4.2).
 *
 * Episodes are short, returns are whole and gamma is 1, as with less the best
 * policy is not the cheapest plan. A policy that has settled before the evaluations are spent explores anew,
 * twice as far from the first rank as before. */
#include "bench/quality/decisions_agent.h"

#include "base/random.h"
#include "bench/quality/decisions_environment.h"
#include "dqn/agent_state.h"
#include "planners/rl/dqn_run.h"
#include "planners/rl/learner_parts.h"

#define EPSILON_START          0.3
#define EPSILON_END            0.02
#define MOST_FAMILIAR_EPISODES 16 /* that priced nothing new, one after the other */
#define MOST_ITERATIONS        8
#define STEPS_PER_UPDATE       4
#define MOST_RETURN            2 /* that a distribution represents, in the units of the rewards */

AmStatus decision_agent_create_with(Agent **agent, const char *parts, uint64_t seed, AmError *error) {
    AgentSettings settings = agent_default_settings();
    settings.seed = seed;
    settings.batch = 32;
    settings.n_step = 1;
    settings.hidden_count = 2;
    settings.hidden[0] = settings.hidden[1] = 48;
    settings.epsilon_start = EPSILON_START;
    settings.epsilon_end = EPSILON_END;
    settings.v_min = -MOST_RETURN;
    settings.v_max = MOST_RETURN;
    TRY(learner_parts_apply(&settings, parts, (1U << LEARNER_PARTS) - 1, error));
    return agent_create(agent, &settings, DECISION_OBSERVATION, DECISIONS_MOST_STRATEGIES, error);
}

AmStatus decision_agent_create(Agent **agent, uint64_t seed, AmError *error) {
    return decision_agent_create_with(agent, NULL, seed, error);
}

typedef struct Watch {
    const DecisionMeter *meter;
    int64_t evaluations;
    int32_t familiar;
} Watch;

static bool must_stop(void *user, const DqnEpisode *last) {
    Watch *watch = user;
    if (last->number > 0)
        watch->familiar = watch->meter->evaluations == watch->evaluations ? watch->familiar + 1 : 0;
    watch->evaluations = watch->meter->evaluations;
    return watch->familiar >= MOST_FAMILIAR_EPISODES || decision_meter_is_spent(watch->meter);
}

AmStatus decision_agent_search(DecisionMeter *meter, Agent *agent, AmError *error) {
    DecisionEnvironment environment;
    AmStatus status = decision_environment_create(&environment, meter, error);
    for (int32_t iteration = 0;
         status == AM_OK && iteration < MOST_ITERATIONS && !decision_meter_is_spent(meter); iteration++) {
        Watch watch = {.meter = meter, .evaluations = meter->evaluations};
        DqnRunOptions options = {
            .steps_per_update = STEPS_PER_UPDATE, .must_stop = must_stop, .user = &watch};
        /* Every iteration explores anew, over the remaining evaluations. */
        agent->settings.epsilon_start = EPSILON_START;
        agent->settings.epsilon_end = EPSILON_END;
        agent->settings.epsilon_decay = meter->limit - meter->evaluations;
        agent->explored = 0;
        status = dqn_run_agent(agent, &environment.base, &options, error);
        environment.most_behind *= 2;
    }
    decision_environment_free(&environment);
    return status;
}

/* Episodes until the meter is spent or nothing new comes up. */
static AmStatus run_ranks(DecisionEnvironment *environment, Random *random, AmError *error) {
    const DecisionMeter *meter = environment->meter;
    int64_t first = meter->evaluations;
    Watch watch = {.meter = meter, .evaluations = first};
    for (DqnEpisode episode = {0}; !must_stop(&watch, &episode); episode.number++) {
        TRY(environment->base.methods->reset(&environment->base, error));
        for (bool done = false; !done;) {
            double spent = (double)(meter->evaluations - first) / (double)(meter->limit - first), reward;
            double epsilon = EPSILON_START + (EPSILON_END - EPSILON_START) * spent;
            int32_t action =
                random_uniform(random) < epsilon ? (int32_t)random_below(random, environment->rank_count) : 0;
            TRY(environment->base.methods->step(&environment->base, action, &reward, &done, error));
        }
    }
    return AM_OK;
}

AmStatus decision_rank_search(DecisionMeter *meter, uint64_t seed, AmError *error) {
    DecisionEnvironment environment;
    Random random;
    random_seed(&random, seed);
    AmStatus status = decision_environment_create(&environment, meter, error);
    for (int32_t iteration = 0;
         status == AM_OK && iteration < MOST_ITERATIONS && !decision_meter_is_spent(meter); iteration++)
        status = run_ranks(&environment, &random, error);
    decision_environment_free(&environment);
    return status;
}
