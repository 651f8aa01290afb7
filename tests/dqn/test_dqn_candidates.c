/* The candidate-features form: the observation describes one candidate and the two actions leave or
 * take it. An agent trained on small problems ranks the candidates of a larger, unseen one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "dqn/agent.h"

enum { FEATURES = 3, LEAVE = 0, TAKE = 1, LARGE = 200 };

/* Gain and cost of a candidate, and whether it is in conflict: then it pays a
 * fine of 1 when taken. Taking a candidate is worth gain - cost - fine. */
static double make_candidate(Random *random, float features[FEATURES]) {
    features[0] = (float)random_uniform(random);
    features[1] = (float)random_uniform(random);
    features[2] = random_below(random, 4) == 0;
    return (double)features[0] - features[1] - features[2];
}

/* Visits `count` random candidates one after the other: one episode. */
static void run_problem(Agent *agent, Random *random, int32_t count) {
    float features[2][FEATURES];
    double worth = make_candidate(random, features[0]);
    for (int32_t i = 0; i < count; i++) {
        float *here = features[i % 2], *there = features[(i + 1) % 2];
        int32_t action = agent_act(agent, here, NULL, false);
        double reward = action == TAKE ? worth : 0;
        worth = make_candidate(random, there);
        const AgentStep step = {.observation = here,
                                .action = action,
                                .reward = reward,
                                .next_observation = there,
                                .terminal = i == count - 1};
        assert_int_equal(agent_observe(agent, &step, NULL), AM_OK);
        agent_learn(agent, 1);
    }
    agent_end_episode(agent);
}

static void one_network_ranks_candidates_of_any_problem(void **state) {
    (void)state;
    AgentSettings settings = agent_default_settings();
    settings.gamma = 0; /* candidates do not touch each other here */
    settings.n_step = 1;
    settings.learning_rate = 0.003;
    settings.batch = 32;
    settings.hidden_count = 1;
    settings.hidden[0] = 32;
    Agent *agent;
    assert_int_equal(agent_create(&agent, &settings, FEATURES, 2, NULL), AM_OK);
    Random random;
    random_seed(&random, 31);
    for (int32_t problem = 0; problem < 400; problem++) run_problem(agent, &random, 10);

    static float features[LARGE][FEATURES], values[LARGE][2];
    double worth[LARGE], best = 0, chosen = 0, most = -1;
    int32_t right = 0, clear = 0;
    for (int32_t i = 0; i < LARGE; i++) {
        worth[i] = make_candidate(&random, features[i]);
        best = fmax(best, worth[i]);
    }
    agent_values(agent, features[0], LARGE, values[0], NULL);
    for (int32_t i = 0; i < LARGE; i++) {
        double advantage = (double)values[i][TAKE] - values[i][LEAVE];
        if (advantage > most) most = advantage, chosen = worth[i];
        if (fabs(worth[i]) < 0.1) continue;
        clear++;
        right += (advantage > 0) == (worth[i] > 0);
    }
    assert_true(clear > LARGE / 2);
    assert_true(right >= 0.97 * clear);
    assert_true(chosen > best - 0.1);
    agent_free(agent);
}

/* More rows than the agent's own batch give the same values as row by row, to
 * rounding. */
static void values_of_many_rows_are_those_of_each(void **state) {
    (void)state;
    AgentSettings settings = agent_default_settings();
    settings.batch = 3;
    Agent *agent;
    assert_int_equal(agent_create(&agent, &settings, FEATURES, 5, NULL), AM_OK);
    Random random;
    random_seed(&random, 8);
    float features[20][FEATURES], values[20][5], alone[5];
    for (int32_t i = 0; i < 20; i++) make_candidate(&random, features[i]);
    agent_values(agent, features[0], 20, values[0], NULL);
    for (int32_t i = 0; i < 20; i++) {
        agent_values(agent, features[i], 1, alone, NULL);
        for (int32_t a = 0; a < 5; a++) assert_true(fabsf(alone[a] - values[i][a]) < 1e-5f);
    }
    agent_free(agent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_network_ranks_candidates_of_any_problem),
        cmocka_unit_test(values_of_many_rows_are_those_of_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
