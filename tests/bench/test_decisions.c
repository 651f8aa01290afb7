/* Decision problems: prices, the meter, the exact optimum against all plans, and searchers' bookkeeping. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/random.h"
#include "bench/quality/decisions_agent.h"
#include "bench/quality/decisions_cut.h"
#include "bench/quality/decisions_environment.h"
#include "bench/quality/decisions_planted.h"
#include "bench/quality/decisions_search.h"
#include "tests/support/model_case.h"

enum { SMALL = 6, SMALL_STRATEGIES = 3 };

/* Six decisions of three strategies: a chain with two long edges and a cap on memory. */
static Decisions small_problem(Arena *arena, uint64_t seed) {
    static const int32_t ends[][2] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {0, 4}, {1, 5}};
    Random random;
    random_seed(&random, seed);
    Decisions decisions = {.count = SMALL, .edge_count = 7, .edges = ARENA_ARRAY(arena, DecisionEdge, 7)};
    double most = 0;
    for (int32_t i = 0; i < SMALL; i++) {
        decisions.strategies[i] = SMALL_STRATEGIES;
        for (int32_t k = 0; k < SMALL_STRATEGIES; k++) {
            decisions.seconds[i][k] = random_uniform(&random);
            decisions.bytes[i][k] = random_uniform(&random);
        }
        most += 1;
    }
    for (int32_t e = 0; e < 7; e++) {
        decisions.edges[e] = (DecisionEdge){.from = ends[e][0], .to = ends[e][1]};
        for (int32_t a = 0; a < SMALL_STRATEGIES; a++)
            for (int32_t b = 0; b < SMALL_STRATEGIES; b++)
                decisions.edges[e].seconds[a][b] = random_uniform(&random);
    }
    decisions_complete(&decisions);
    decisions.memory = decisions.least_after[0] + 0.3 * (most - decisions.least_after[0]);
    return decisions;
}

static double cheapest_of_all(const Decisions *decisions) {
    double least = INFINITY;
    int32_t all = 1;
    for (int32_t i = 0; i < SMALL; i++) all *= SMALL_STRATEGIES;
    for (int32_t number = 0; number < all; number++) {
        DecisionPlan plan = decision_plan_open();
        for (int32_t i = 0, rest = number; i < SMALL; i++, rest /= SMALL_STRATEGIES)
            plan.choice[i] = (int8_t)(rest % SMALL_STRATEGIES);
        if (decision_plan_fits(decisions, &plan))
            least = fmin(least, decision_plan_seconds(decisions, &plan));
    }
    return least;
}

static void exact_is_the_cheapest_of_all_plans(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        Arena arena = {0};
        Decisions decisions = small_problem(&arena, seed);
        DecisionPlan plan;
        double seconds;
        assert_int_equal(decisions_exact(&plan, &seconds, &decisions, 1000000, NULL), AM_OK);
        assert_true(fabs(seconds - cheapest_of_all(&decisions)) < 1e-12);
        assert_true(fabs(seconds - decision_plan_seconds(&decisions, &plan)) < 1e-12);
        assert_true(decision_plan_fits(&decisions, &plan));
        decisions.memory = INFINITY;
        assert_int_equal(decisions_exact(&plan, &seconds, &decisions, 1000000, NULL), AM_OK);
        assert_true(fabs(seconds - cheapest_of_all(&decisions)) < 1e-12);
        decisions.memory = decisions.least_after[0] * 0.99;
        assert_int_equal(decisions_exact(&plan, &seconds, &decisions, 1000000, NULL), AM_ERROR_INFEASIBLE);
        arena_free(&arena);
    }
}

static void the_bound_of_no_price_is_the_cheapest_assignment(void **state) {
    (void)state;
    Arena arena = {0};
    Decisions decisions = small_problem(&arena, 3);
    DecisionBound bound;
    DecisionPlan open = decision_plan_open();
    decisions.memory = INFINITY;
    assert_int_equal(decision_bound_create(&bound, &arena, &decisions, NULL), AM_OK);
    decision_bound_fill(&bound, &decisions, 0);
    assert_true(fabs(decision_bound_after(&bound, &open, 0) - cheapest_of_all(&decisions)) < 1e-12);
    arena_free(&arena);
}

static void a_plan_is_charged_once(void **state) {
    (void)state;
    Arena arena = {0};
    Decisions decisions = small_problem(&arena, 5);
    DecisionMeter meter;
    DecisionPlan plan = decision_plan_open();
    double seconds;
    assert_int_equal(decision_meter_create(&meter, &decisions, 3, NULL), AM_OK);
    plan.choice[0] = 1;
    assert_true(decision_meter_price(&meter, &plan, &seconds));
    assert_true(seconds == decisions.seconds[0][1]);
    assert_true(decision_meter_price(&meter, &plan, &seconds));
    assert_int_equal(meter.evaluations, 1);
    for (int32_t k = 0; k < 2; k++) {
        plan.choice[1] = (int8_t)k;
        assert_true(decision_meter_price(&meter, &plan, &seconds));
    }
    assert_int_equal(meter.evaluations, 3);
    assert_true(decision_meter_is_spent(&meter));
    plan.choice[1] = 2;
    assert_false(decision_meter_price(&meter, &plan, &seconds)); /* new, and nothing is left */
    plan.choice[1] = 1;
    assert_true(decision_meter_price(&meter, &plan, &seconds)); /* known */
    assert_true(isinf(meter.best));                             /* none was whole */
    decision_meter_free(&meter);
    arena_free(&arena);
}

static void searchers_keep_their_budget_and_the_memory(void **state) {
    (void)state;
    static void (*const searchers[])(DecisionMeter *, uint64_t) = {decision_greedy, decision_restarts,
                                                                   decision_anneal};
    Arena arena = {0};
    Decisions decisions;
    DecisionPlan best;
    double optimum;
    assert_int_equal(decisions_planted(&decisions, &arena, 7, NULL), AM_OK);
    assert_int_equal(decisions_exact(&best, &optimum, &decisions, 1000000, NULL), AM_OK);
    for (size_t s = 0; s < sizeof searchers / sizeof *searchers; s++) {
        double found[2];
        for (int32_t iteration = 0; iteration < 2; iteration++) {
            DecisionMeter meter;
            assert_int_equal(decision_meter_create(&meter, &decisions, 400, NULL), AM_OK);
            searchers[s](&meter, 11);
            decision_polish(&meter, 11);
            assert_in_range(meter.evaluations, 1, 400);
            assert_true(decision_plan_is_complete(&decisions, &meter.best_plan));
            assert_true(decision_plan_fits(&decisions, &meter.best_plan));
            assert_true(meter.best == decision_plan_seconds(&decisions, &meter.best_plan));
            assert_true(meter.best >= optimum - 1e-12);
            found[iteration] = meter.best;
            decision_meter_free(&meter);
        }
        assert_true(found[0] == found[1]); /* same seed, same plan */
    }
    arena_free(&arena);
}

/* Prices every increment of every decision in every surrounding. */
static void pay_for_all(DecisionEstimate *estimate, const Decisions *decisions) {
    int32_t all = 1;
    for (int32_t i = 0; i < SMALL; i++) all *= SMALL_STRATEGIES;
    for (int32_t number = 0; number < all; number++) {
        DecisionPlan plan = decision_plan_open();
        for (int32_t i = 0, rest = number; i < SMALL; i++, rest /= SMALL_STRATEGIES)
            plan.choice[i] = (int8_t)(rest % SMALL_STRATEGIES);
        for (int32_t i = 0; i < SMALL; i++)
            assert_int_equal(
                decision_estimate_add(estimate, &plan, i, decision_increment(decisions, &plan, i), NULL),
                AM_OK);
    }
}

static void an_estimate_of_all_prices_is_the_problem(void **state) {
    (void)state;
    Arena arena = {0};
    Decisions decisions = small_problem(&arena, 9);
    DecisionEstimate estimate;
    assert_int_equal(decision_estimate_create(&estimate, &decisions, NULL), AM_OK);
    pay_for_all(&estimate, &decisions);
    decision_estimate_update(&estimate, INFINITY);
    Random random;
    random_seed(&random, 1);
    for (int32_t iteration = 0; iteration < 50; iteration++) {
        DecisionPlan plan = decision_random_plan(&decisions, &random);
        double believed = 0, hoped = 0;
        for (int32_t i = 0; i < SMALL; i++) {
            assert_true(decision_estimate_knows(&estimate, &plan, i));
            believed += decision_increment(&estimate.likely, &plan, i);
            hoped += decision_increment(&estimate.hopeful, &plan, i);
        }
        assert_true(fabs(believed - decision_plan_seconds(&decisions, &plan)) < 0.01);
        assert_true(hoped <= believed);
    }
    decision_estimate_free(&estimate);
    arena_free(&arena);
}

static void an_episode_is_a_plan_that_fits_and_is_charged_by_the_step(void **state) {
    (void)state;
    Arena arena = {0};
    Decisions decisions;
    DecisionMeter meter;
    DecisionEnvironment environment;
    assert_int_equal(decisions_planted(&decisions, &arena, 3, NULL), AM_OK);
    assert_int_equal(decision_meter_create(&meter, &decisions, 1000, NULL), AM_OK);
    assert_int_equal(decision_environment_create(&environment, &meter, NULL), AM_OK);
    const EnvironmentMethods *methods = environment.base.methods;
    for (int32_t episode = 0; episode < 3; episode++) {
        int64_t before = meter.evaluations;
        bool done = false;
        assert_int_equal(methods->reset(&environment.base, NULL), AM_OK);
        for (int32_t i = 0; !done; i++) {
            float observation[DECISION_OBSERVATION];
            uint8_t legal[DECISIONS_MOST_STRATEGIES];
            double reward;
            methods->observe(&environment.base, observation);
            methods->mask(&environment.base, legal);
            for (int32_t n = 0; n < DECISION_OBSERVATION; n++) assert_true(isfinite(observation[n]));
            assert_true(legal[0]);
            assert_int_equal(meter.evaluations <= before + i, 1); /* looking costs nothing */
            assert_int_equal(methods->step(&environment.base, 0, &reward, &done, NULL), AM_OK);
            assert_true(isfinite(reward));
        }
        assert_true(decision_plan_is_complete(&decisions, &environment.plan));
        assert_true(decision_plan_fits(&decisions, &environment.plan));
        assert_in_range(meter.evaluations - before, episode == 0 ? PLANTED_DECISIONS : 0, PLANTED_DECISIONS);
    }
    decision_environment_free(&environment);
    decision_meter_free(&meter);
    arena_free(&arena);
}

static void learning_keeps_the_budget_and_repeats_itself(void **state) {
    (void)state;
    Arena arena = {0};
    Decisions decisions;
    double found[2];
    assert_int_equal(decisions_planted(&decisions, &arena, 3, NULL), AM_OK);
    for (int32_t iteration = 0; iteration < 2; iteration++) {
        DecisionMeter meter;
        Agent *agent;
        assert_int_equal(decision_meter_create(&meter, &decisions, 300, NULL), AM_OK);
        assert_int_equal(decision_agent_create(&agent, 4, NULL), AM_OK);
        assert_int_equal(decision_agent_search(&meter, agent, NULL), AM_OK);
        assert_in_range(meter.evaluations, 1, 300);
        assert_true(decision_plan_fits(&decisions, &meter.best_plan));
        found[iteration] = meter.best;
        agent_free(agent);
        decision_meter_free(&meter);
    }
    assert_true(found[0] == found[1]);
    arena_free(&arena);
}

/* On a problem with few plans a policy settles soon; it spends the rest further from the first
 * rank.
 */
static void a_settled_policy_looks_further(void **state) {
    (void)state;
    int64_t evaluations = 0;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        Arena arena = {0};
        Decisions decisions = small_problem(&arena, seed);
        DecisionMeter meter;
        Agent *agent;
        assert_int_equal(decision_meter_create(&meter, &decisions, 250, NULL), AM_OK);
        assert_int_equal(decision_agent_create(&agent, seed, NULL), AM_OK);
        assert_int_equal(decision_agent_search(&meter, agent, NULL), AM_OK);
        evaluations += meter.evaluations;
        assert_true(fabs(meter.best - cheapest_of_all(&decisions)) < 1e-12);
        agent_free(agent);
        decision_meter_free(&meter);
        arena_free(&arena);
    }
    assert_true(evaluations > 450); /* where the first policies settle they are 323 */
}

/* A window's resharding takes time just where it moves bytes, and equal states move none. */
static void a_window_pays_for_what_it_moves(void **state) {
    (void)state;
    Arena arena = {0};
    Cluster *cluster;
    PlanContext *context = read_model("moe_tiny");
    int32_t windows = 0;
    assert_int_equal(cluster_read(&cluster, &arena, "C", NULL), AM_OK);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        Decisions decisions;
        if (decisions_cut(&decisions, &arena, context, cluster, seed, NULL) != AM_OK) continue;
        windows++;
        assert_in_range(decisions.count, CUT_LEAST, CUT_MOST);
        assert_true(decisions.least_after[0] < decisions.memory);
        for (int32_t e = 0; e < decisions.edge_count; e++) {
            const DecisionEdge *edge = &decisions.edges[e];
            for (int32_t a = 0; a < decisions.strategies[edge->from]; a++)
                for (int32_t b = 0; b < decisions.strategies[edge->to]; b++)
                    assert_true((edge->seconds[a][b] > 0) == (edge->moved[DECISIONS_LOADS / 2][a][b] +
                                                                  edge->moved[DECISIONS_LOADS / 2 + 1][a][b] >
                                                              0));
        }
        for (int32_t i = 0; i < decisions.count; i++) assert_true(decisions.strategies[i] > 1);
    }
    assert_true(windows > 0);
    plan_context_free(context);
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_is_the_cheapest_of_all_plans),
        cmocka_unit_test(the_bound_of_no_price_is_the_cheapest_assignment),
        cmocka_unit_test(a_plan_is_charged_once),
        cmocka_unit_test(searchers_keep_their_budget_and_the_memory),
        cmocka_unit_test(an_estimate_of_all_prices_is_the_problem),
        cmocka_unit_test(an_episode_is_a_plan_that_fits_and_is_charged_by_the_step),
        cmocka_unit_test(learning_keeps_the_budget_and_repeats_itself),
        cmocka_unit_test(a_settled_policy_looks_further),
        cmocka_unit_test(a_window_pays_for_what_it_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
