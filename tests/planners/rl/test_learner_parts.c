/* Parts of Rainbow by name: each changes its setting alone, bad ones are refused with the reason, and the
 * text of changed settings reads back. Returns of n steps bootstrap from the best next action. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "planners/rl/learner_parts.h"
#include "planners/rl/trained_agent.h"
#include "planners/single_stage/assignment_policy.h"

enum { ALL = (1 << LEARNER_PARTS) - 1 };

static void test_each_part(void **state) {
    (void)state;
    AgentSettings settings = agent_default_settings();
    AmError error = {0};
    assert_int_equal(learner_parts_apply(&settings, NULL, ALL, &error), AM_OK);
    assert_true(settings.double_q && settings.dueling && settings.alpha > 0 && !settings.noisy);
    const char *text = "double=off,dueling=off,prioritized=off,n-step=7,noisy,atoms=51";
    assert_int_equal(learner_parts_apply(&settings, text, ALL, &error), AM_OK);
    assert_true(!settings.double_q && !settings.dueling && settings.alpha == 0 && settings.noisy);
    assert_int_equal(settings.n_step, 7);
    assert_int_equal(settings.atoms, 51);
    assert_int_equal(learner_parts_apply(&settings, "double,prioritized=on", ALL, &error), AM_OK);
    assert_true(settings.double_q && settings.alpha > 0 && !settings.dueling);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
        uint32_t allowed;
    } cases[] = {{"duelling", "expected double, dueling", ALL},
                 {"", NULL, ALL},
                 {"double=yes", "expected on or off", ALL},
                 {"n-step", "expected 0 to 64", ALL},
                 {"n-step=-1", "expected 0 to 64", ALL},
                 {"n-step=3x", "expected 0 to 64", ALL},
                 {"atoms=1", "expected 0, or 2 to 256", ALL},
                 {"atoms=257", "expected 0, or 2 to 256", ALL},
                 {"dueling", "one output", LEARNER_OF_ONE_OUTPUT},
                 {"double", "one action at each state", LEARNER_OF_WHOLE_RETURNS}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        AgentSettings settings = agent_default_settings();
        AmError error = {0};
        AmStatus status = learner_parts_apply(&settings, cases[k].text, cases[k].allowed, &error);
        assert_int_equal(status, cases[k].said ? AM_ERROR_USAGE : AM_OK);
        if (cases[k].said && !strstr(error.text, cases[k].said))
            fail_msg("%s: %s", cases[k].text, error.text);
    }
}

static void test_text_reads_back(void **state) {
    (void)state;
    AgentSettings usual = agent_default_settings(), changed = usual, read = usual;
    char text[LEARNER_TEXT_BYTES];
    AmError error = {0};
    assert_string_equal(learner_parts_text(text, &usual, &usual), "");
    changed.double_q = changed.dueling = false;
    changed.alpha = 0;
    changed.n_step = 64;
    changed.noisy = true;
    changed.atoms = 256;
    learner_parts_text(text, &changed, &usual);
    assert_int_equal(learner_parts_apply(&read, text, ALL, &error), AM_OK);
    assert_string_equal(learner_parts_text((char[LEARNER_TEXT_BYTES]){0}, &read, &changed), "");
}

/* The mean value that an agent learns for the first of three actions, whose gains are 0.1 each, and whose
 * last action has the value 0.3 for certain. */
static double learn_first_value(const char *parts, double last_gain) {
    static AssignmentEpisode episode;
    AgentSettings settings = assignment_settings();
    AmError error = {0};
    Agent *agent, *frozen;
    float value;
    const AssignmentValue values[] = {{0}, {.gain = 0.1}, {.gain = 0.2}, {.gain = last_gain}};
    memset(&episode, 0, sizeof episode);
    episode.count = 3;
    for (int32_t k = 0; k < 3; k++) episode.rows[k][k] = 1;
    settings.batch = 16;
    settings.replay_capacity = 256;
    settings.target_update = 10;
    assert_int_equal(learner_parts_apply(&settings, parts, LEARNER_OF_ONE_OUTPUT, &error), AM_OK);
    assert_int_equal(assignment_agent_untrained(&agent, &settings, ASSIGNMENT_FEATURES, &error), AM_OK);
    assert_int_equal(assignment_agent_untrained(&frozen, &settings, ASSIGNMENT_FEATURES, &error), AM_OK);
    for (int32_t round = 0; round < 40; round++) {
        assert_int_equal(assignment_observe(&episode, agent, frozen, values, &error), AM_OK);
        agent_learn(agent, 16);
    }
    assert_int_equal(agent_values(agent, episode.rows[0], 1, &value, &error), AM_OK);
    agent_free(agent);
    agent_free(frozen);
    return (double)value;
}

/* All returns lead to the last gain, by the sum of an episode or by the value of the next action. */
static void test_returns_of_an_episode(void **state) {
    (void)state;
    static const char *const parts[] = {NULL, "n-step=1", "n-step=2,double", "n-step=1,prioritized=off"};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        for (int32_t last = 1; last <= 2; last++) {
            double value = learn_first_value(parts[k], 0.5 * last);
            if (fabs(value - 0.5 * last) > 0.05)
                fail_msg("%s: %g, expected %g", parts[k] ? parts[k] : "none", value, 0.5 * last);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_part), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_text_reads_back),
                                       cmocka_unit_test(test_returns_of_an_episode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
