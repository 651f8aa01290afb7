/* Incremental propagation: independent of the order of seeds, equal to the definition, and equal to
 * propagation from nothing after changes of priorities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "lowering/spmd/lower.h"
#include "propagation/propagate/incremental.h"
#include "tests/support/model_case.h"

#define MOST_SEEDS 24

typedef struct Seed {
    int32_t axis, instruction, dimension, priority;
} Seed;

static const char *const models[] = {"mlp_tiny", "gpt2_tiny", "moe_tiny", "llama_tiny", "lstm_tiny"};

static Incremental *create(Arena *arena, const PlanContext *context, const Mesh *mesh) {
    Incremental *incremental;
    AmError error = {0};
    if (incremental_create(&incremental, arena, context, mesh, &error) != AM_OK) fail_msg("%s", error.text);
    return incremental;
}

/* A random dimension that something can split. */
static Seed pick_seed(Random *random, const PlanContext *context, const Mesh *mesh) {
    const SplitOptions *split_options = context->split_options;
    for (;;) {
        int32_t i = split_options->decided[random_below(random, split_options->decided_count)];
        int32_t count = split_options->first_dimension[i + 1] - split_options->first_dimension[i];
        if (count == 0) continue;
        const SplitOption *choice =
            &split_options
                 ->dimensions[split_options->first_dimension[i] + (int32_t)random_below(random, count)];
        if (choice->blocks != 1) continue;
        return (Seed){.axis = (int32_t)random_below(random, mesh->axis_count),
                      .instruction = i,
                      .dimension = choice->place,
                      .priority = (int32_t)random_below(random, 3)};
    }
}

static bool same_dimension(const Seed *a, const Seed *b) {
    return a->axis == b->axis && a->instruction == b->instruction && a->dimension == b->dimension;
}

/* Distinct seeds, so that no order among them decides a priority. */
static int32_t random_seeds(Seed *seeds, int32_t count, Random *random, const PlanContext *context,
                            const Mesh *mesh) {
    int32_t made = 0;
    while (made < count) {
        Seed seed = pick_seed(random, context, mesh);
        bool is_new = true;
        for (int32_t k = 0; k < made; k++) is_new = is_new && !same_dimension(&seeds[k], &seed);
        if (is_new) seeds[made++] = seed;
    }
    return made;
}

static void add(Incremental *incremental, const Seed *seed) {
    assert_true(incremental_add(incremental, seed->axis, seed->instruction, seed->dimension, seed->priority));
}

static void assert_same(const PlanContext *context, const Incremental *a, const Incremental *b) {
    for (int32_t d = 0; d < context->split_options->decided_count; d++) {
        int32_t i = context->split_options->decided[d];
        if (!sbp_equal(incremental_state(a, i), incremental_state(b, i)))
            fail_msg("%s lies otherwise", context->canonical->instructions[i].name);
    }
}

static void shuffle(Seed *seeds, int32_t count, Random *random) {
    for (int32_t k = count - 1; k > 0; k--) {
        int32_t other = (int32_t)random_below(random, k + 1);
        Seed seed = seeds[k];
        seeds[k] = seeds[other];
        seeds[other] = seed;
    }
}

static void test_any_order(void **state) {
    (void)state;
    Random random = {0};
    random_seed(&random, 7);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlanContext *context = read_model(models[m]);
        for (int32_t round = 0; round < 12; round++) {
            Arena arena = {0};
            Mesh mesh;
            AmError error = {0};
            Seed seeds[MOST_SEEDS];
            assert_int_equal(mesh_parse(&mesh, &arena, round % 2 ? "a=2,b=4" : "a=2,b=2,c=2", &error), AM_OK);
            int32_t count = random_seeds(seeds, 1 + round * 2, &random, context, &mesh);
            Incremental *first = create(&arena, context, &mesh), *second = create(&arena, context, &mesh);
            for (int32_t k = 0; k < count; k++) add(first, &seeds[k]);
            shuffle(seeds, count, &random);
            for (int32_t k = 0; k < count; k++) add(second, &seeds[k]);
            assert_same(context, first, second);
            arena_free(&arena);
        }
        plan_context_free(context);
    }
}

/* The last priority of a seed counts, be it stronger or weaker than the one before. */
static void test_changed_priorities(void **state) {
    (void)state;
    Random random = {0};
    random_seed(&random, 8);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlanContext *context = read_model(models[m]);
        Arena arena = {0};
        Mesh mesh;
        AmError error = {0};
        Seed seeds[MOST_SEEDS];
        assert_int_equal(mesh_parse(&mesh, &arena, "a=2,b=4", &error), AM_OK);
        int32_t count = random_seeds(seeds, MOST_SEEDS, &random, context, &mesh);
        Incremental *changed = create(&arena, context, &mesh);
        for (int32_t k = 0; k < count; k++) add(changed, &seeds[k]);
        for (int32_t step = 0; step < 240; step++) {
            Seed *seed = &seeds[random_below(&random, count)];
            seed->priority = (int32_t)random_below(&random, 3);
            add(changed, seed);
            if (step % 20 != 19) continue;
            ArenaMark before = arena_mark(&arena);
            Incremental *fresh = create(&arena, context, &mesh);
            for (int32_t k = 0; k < count; k++) add(fresh, &seeds[k]);
            assert_same(context, changed, fresh);
            arena_release(&arena, before);
        }
        arena_free(&arena);
        plan_context_free(context);
    }
}

/* One seed of one class splits what assignment splits with this class alone in the list. */
static void test_like_assignment(void **state) {
    (void)state;
    Random random = {0};
    random_seed(&random, 9);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlanContext *context = read_model(models[m]);
        for (int32_t round = 0; round < 10; round++) {
            Arena arena = {0};
            AmError error = {0};
            PlanStage stage = {0};
            Assignment *assignment;
            assert_int_equal(mesh_parse(&stage.mesh, &arena, "a=2", &error), AM_OK);
            Incremental *incremental = create(&arena, context, &stage.mesh);
            Seed seed = pick_seed(&random, context, &stage.mesh);
            add(incremental, &seed);
            assert_int_equal(incremental_to_stage(&stage, &arena, incremental, &error), AM_OK);
            assert_int_equal(stage.axis_priorities[0].count, 1);
            if (plan_assign(&assignment, &arena, context, &stage, &error) != AM_OK)
                fail_msg("%s", error.text);
            int32_t wrong = 0;
            for (int32_t d = 0; d < context->split_options->decided_count; d++) {
                int32_t i = context->split_options->decided[d];
                SbpState have = incremental_state(incremental, i);
                /* Beyond the axis priorities assignment stores some values as their users want them. */
                if (sbp_has_split(have) && !sbp_equal(have, assignment->stored[i])) wrong++;
            }
            assert_int_equal(wrong, 0);
            arena_free(&arena);
        }
        plan_context_free(context);
    }
}

static int32_t instruction_of(const PlanContext *context, const char *path) {
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        if (strcmp(context->roles->parameters[p].path, path) == 0)
            return context->roles->parameters[p].instruction;
    fail_msg("no parameter %s", path);
    return -1;
}

/* Rows and columns of one weight on one axis: the seed of the better priority is kept there, and
 * the cost of the other is reported. */
static void test_conflict(void **state) {
    (void)state;
    PlanContext *context = read_model("mlp_tiny");
    int32_t weight = instruction_of(context, "state['params'][0]['kernel']");
    for (int32_t stronger = 0; stronger < 2; stronger++) {
        Arena arena = {0};
        Mesh mesh;
        AmError error = {0};
        IncrementalConflict *conflicts;
        int32_t count, found = 0;
        assert_int_equal(mesh_parse(&mesh, &arena, "a=4", &error), AM_OK);
        Incremental *incremental = create(&arena, context, &mesh);
        assert_true(incremental_add(incremental, 0, weight, 0, stronger == 0 ? 1 : 2));
        assert_true(incremental_add(incremental, 0, weight, 1, stronger == 1 ? 1 : 2));
        assert_int_equal(incremental_state(incremental, weight).axis[0], sbp_split(stronger));
        assert_int_equal(incremental_conflicts(&conflicts, &count, &arena, incremental, &error), AM_OK);
        for (int32_t k = 0; k < count; k++) {
            if (conflicts[k].instruction != weight) continue;
            found++;
            assert_int_equal(conflicts[k].kept, stronger);
            assert_int_equal(conflicts[k].refused, 1 - stronger);
            assert_int_equal(conflicts[k].level, 0);
            assert_true(conflicts[k].bytes == 64 * 32 * 4 * 0.75);
        }
        assert_int_equal(found, 1);
        assert_false(incremental_add(incremental, 0, weight, 2, 0));
        assert_false(incremental_add(incremental, 0, -1, 0, 0));
        arena_free(&arena);
    }
    plan_context_free(context);
}

/* A seed on the value itself comes before a stronger one that reaches it from afar. */
static void test_levels(void **state) {
    (void)state;
    PlanContext *context = read_model("mlp_tiny");
    Arena arena = {0};
    Mesh mesh;
    AmError error = {0};
    int32_t first = instruction_of(context, "state['params'][0]['kernel']");
    int32_t second = instruction_of(context, "state['params'][1]['kernel']");
    assert_int_equal(mesh_parse(&mesh, &arena, "a=4", &error), AM_OK);
    Incremental *incremental = create(&arena, context, &mesh);
    assert_true(incremental_add(incremental, 0, first, 1, 0)); /* reaches the second one's rows by a dot */
    assert_int_equal(incremental_state(incremental, second).axis[0], sbp_split(0));
    assert_true(incremental_add(incremental, 0, second, 1, 9));
    assert_int_equal(incremental_state(incremental, second).axis[0], sbp_split(1));
    assert_int_equal(incremental_state(incremental, first).axis[0], sbp_split(1));
    arena_free(&arena);
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order),
                                       cmocka_unit_test(test_changed_priorities),
                                       cmocka_unit_test(test_like_assignment),
                                       cmocka_unit_test(test_conflict), cmocka_unit_test(test_levels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
