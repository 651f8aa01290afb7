/* Options of a search that exclude one another: each pair is refused with both names and the reason, in
 * either order. An option that repeats its default changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/search_settings.h"

#define MODEL SOURCE_DIR "/datasets/models/gpt2/model.hlo.pb.zst"

typedef struct Setting {
    const char *key, *value;
} Setting;

static const struct {
    Setting one, other;
    const char *text;
} refused[] = {
    {{"for", "jax"}, {"objective", "paper"}, "--for jax and --objective paper: only --objective time"},
    {{"baseline", "fsdp"}, {"searcher", "greedy"}, "--baseline fsdp and --searcher greedy: a baseline"},
    {{"baseline", "zero1"}, {"for", "megatron"}, "--baseline zero1 and --for megatron: strategies"},
    {{"evaluations", "5"}, {"searcher", "exhaustive"}, "--evaluations 5 and --searcher exhaustive: every"},
    {{"device", "cpu"}, {"searcher", "exact"}, "--device cpu and --searcher exact: a device trains"},
    {{"policy", "untrained"}, {"searcher", "anneal"}, "--policy untrained and --searcher anneal: only dqn"},
    {{"learner", "dueling"}, {"objective", "time"}, "--learner dueling and --objective time: a policy"},
    {{"init-plan", "p.json"}, {"baseline", "zero1"}, "--init-plan p.json and --baseline zero1: the latter"},
    {{"init-plan", "p.json"}, {"searcher", "random"}, "--init-plan p.json and --searcher random: the latter"},
    {{"measure", "2"}, {"objective", "cost"}, "--measure 2 and --objective cost: measured plans"},
    {{"measure", "2"}, {"pareto", "true"}, "--measure 2 and --pareto: measured plans"},
    {{"quota", "V100=2"}, {"init-plan", "p.json"}, "--quota V100=2 and --init-plan p.json: the latter"},
    {{"objective", "cost"}, {"for", "hlo"}, "--objective cost and --for hlo: the latter decides"},
    {{"pareto", "true"}, {"keep-shardings", "true"}, "--pareto and --keep-shardings: the latter decides"},
    {{"tensor", "2"}, {"mesh", "data=4"}, "--tensor and --mesh data=4: the latter sets the degrees"},
    {{"stages", "2"}, {"searcher", "exact"}, "--stages 2 and --searcher exact: its plans have one stage"},
    {{"pin", "l0=stage(1)"}, {"baseline", "zero3"}, "\"l0=stage(1)\" and --baseline zero3: the latter sets"},
    {{"pin", "l0=stage(1)"}, {"space", "operator"}, "\"l0=stage(1)\" and --space operator: its plans"},
    {{"agent", "a"}, {"even", "true"}, "--agent a and --even: the agent cuts pipelines"},
    {{"micro-batches", "2"}, {"for", "hlo"}, "--micro-batches 2 and --for hlo: its plans have one micro"},
    {{"micro-batches", "auto"}, {"keep-shardings", "true"}, "--micro-batches auto and --keep-shardings: its"},
    {{"layers", "split"}, {"pin", "*=data"}, "--layers split and --pin *=data: the latter is about"},
    {{"schedule", "zb_h1"}, {"for", "torch"}, "--schedule zb_h1 and --for torch: the target lacks"},
    {{"schedule", "gpipe"}, {"mesh", "data=4"}, "--schedule gpipe and --mesh: a schedule applies"},
    {{"chunks", "2"}, {"schedule", "gpipe"}, "--chunks 2 and --schedule gpipe: only"},
};

static AmStatus check(const Setting *first, const Setting *second, AmError *error) {
    AmOptions *options;
    assert_int_equal(am_options_new(&options, AM_COMMAND_SEARCH, error), AM_OK);
    assert_int_equal(am_options_set(options, first->key, first->value, error), AM_OK);
    assert_int_equal(am_options_set(options, second->key, second->value, error), AM_OK);
    AmStatus status = search_options_check(options, error);
    am_options_free(options);
    return status;
}

static void test_pairs(void **state) {
    (void)state;
    AmError error;
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
        for (int32_t order = 0; order < 2; order++) {
            const Setting *first = order ? &refused[k].other : &refused[k].one;
            const Setting *second = order ? &refused[k].one : &refused[k].other;
            AmStatus status = check(first, second, &error);
            if (status != AM_ERROR_USAGE || !strstr(error.text, refused[k].text))
                fail_msg("%s, %s: status %d, \"%s\"", first->key, second->key, (int)status,
                         status == AM_OK ? "" : error.text);
        }
    }
}

/* The limits of a search of GPT-2 with an option, or with none. */
static SearchLimits limits_of(const char *key, const char *value) {
    Arena arena = {0};
    AmError error;
    AmModule *module;
    AmOptions *options;
    SearchSettings settings;
    assert_int_equal(am_module_read(&module, MODEL, NULL, &error), AM_OK);
    assert_int_equal(am_options_new(&options, AM_COMMAND_SEARCH, &error), AM_OK);
    if (key) assert_int_equal(am_options_set(options, key, value, &error), AM_OK);
    assert_int_equal(am_options_set(options, "searcher", "greedy", &error), AM_OK);
    assert_int_equal(am_options_set(options, "space", "single_stage", &error), AM_OK);
    assert_int_equal(search_settings_read(&settings, &arena, NULL, options, &error), AM_OK);
    assert_int_equal(search_settings_complete(&settings, &arena, options, module->context, &error), AM_OK);
    am_options_free(options);
    am_module_free(module);
    arena_free(&arena);
    return settings.scope.limits;
}

static void test_defaults_may_be_given(void **state) {
    (void)state;
    const SearchLimits none = limits_of(NULL, NULL), given = limits_of("objective", "time");
    assert_true(none.is_default && given.is_default);
    assert_true(none.evaluations != SEARCH_DEFAULT_EVALUATIONS); /* scaled by the module's size */
    assert_int_equal(given.evaluations, none.evaluations);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_defaults_may_be_given)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
