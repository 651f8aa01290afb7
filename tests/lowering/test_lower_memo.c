/* The memo of a lowering gives the results without it, however often its entries are replaced:
 * shards, paths between states, groups and parts of random arrays on random meshes; and equal rules
 * of a module are shared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/random.h"
#include "lowering/spmd/lower_memo.h"
#include "propagation/plan/plan.h"

enum { ARRAYS = 40, QUESTIONS = 20000 };

static SbpState random_state(Random *random, const Mesh *mesh, const IrShape *shape) {
    SbpState state = {.axis = {SBP_B}};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        int32_t d = (int32_t)random_below(random, shape->rank + 1);
        if (d == shape->rank) continue;
        /* Between elements, or between granules of two. */
        int64_t size = shape->dimensions[d],
                granules = size % 2 == 0 && random_below(random, 2) ? size / 2 : size;
        sbp_set_split(&state, axis, d, sbp_cut(mesh, state, axis, d, size, 1, granules));
    }
    return state;
}

static void check_shape(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device, const IrShape *shape,
                        SbpState state) {
    const LocalShape *local = lower_memo_shape(memo, arena, mesh, device, shape, state);
    IrShape expected = sbp_local_shape(arena, mesh, state, device, shape);
    bool is_uneven = false;
    assert_non_null(local);
    for (int32_t d = 0; d < shape->rank; d++) {
        assert_int_equal(local->local[d], expected.dimensions[d]);
        is_uneven |= !sbp_is_even(mesh, state, d, shape->dimensions[d]);
    }
    assert_int_equal(local->is_uneven, is_uneven);
}

static void check_path(LowerMemo *memo, Arena *arena, const Mesh *mesh, const IrShape *shape, SbpState from,
                       SbpState to) {
    ReshardPath expected;
    const ReshardPath *path = lower_memo_path(memo, arena, mesh, shape, from, to);
    assert_int_equal(path != NULL, reshard_find_path(&expected, mesh, shape, from, to));
    if (!path) return;
    assert_int_equal(path->count, expected.count);
    assert_true(path->weight == expected.weight);
    for (int32_t k = 0; k < path->count; k++) {
        assert_int_equal(path->steps[k].kind, expected.steps[k].kind);
        assert_int_equal(path->steps[k].axes, expected.steps[k].axes);
        assert_true(sbp_equal(path->steps[k].state, expected.steps[k].state));
    }
}

static void check_parts(LowerMemo *memo, Arena *arena, const Mesh *mesh, int32_t device, const IrShape *shape,
                        SbpState state, uint32_t axes, int32_t dimension) {
    int32_t members[64], count = mesh_group(mesh, device, axes, members);
    const KnownGroup *group = lower_memo_group(memo, arena, mesh, device, axes);
    int64_t size = shape->dimensions[dimension], start, extent;
    const int64_t *parts = lower_memo_parts(memo, arena, mesh, device, axes, state, dimension, size);
    assert_int_equal(group->count, count);
    for (int32_t k = 0; k < count; k++) {
        assert_int_equal(group->devices[k], members[k]);
        sbp_shard(mesh, state, members[k], dimension, size, &start, &extent);
        assert_int_equal(parts[k], extent);
    }
}

static void test_answers(void **test) {
    (void)test;
    static const double shares[] = {0.5, 0.3, 0.2};
    const Mesh meshes[] = {
        {.axis_count = 2, .axes = {{.name = "a", .size = 4}, {.name = "b", .size = 2}}, .device_count = 8},
        {.axis_count = 2,
         .axes = {{.name = "a", .size = 3, .shares = shares}, {.name = "b", .size = 2}},
         .device_count = 6}};
    Random random;
    random_seed(&random, 5);
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        Arena arena = {0};
        const Mesh *mesh = &meshes[m];
        int64_t sizes[ARRAYS][3];
        LowerMemo *memo = ARENA_ARRAY(&arena, LowerMemo, 1);
        assert_non_null(memo);
        for (int32_t k = 0; k < ARRAYS; k++)
            for (int32_t d = 0; d < 3; d++)
                sizes[k][d] = 8 * (1 + random_below(&random, 5)) + random_below(&random, 3);
        int32_t device = (int32_t)random_below(&random, mesh->device_count);
        for (int32_t k = 0; k < QUESTIONS; k++) {
            const IrShape shape = {.type = DTYPE_F32,
                                   .rank = 1 + (int32_t)random_below(&random, 3),
                                   .dimensions = sizes[random_below(&random, ARRAYS)]};
            SbpState from = random_state(&random, mesh, &shape), to = random_state(&random, mesh, &shape);
            uint32_t axes = 1 + (uint32_t)random_below(&random, 3);
            if (sbp_has_split(from)) check_shape(memo, &arena, mesh, device, &shape, from);
            check_path(memo, &arena, mesh, &shape, from, to);
            check_parts(memo, &arena, mesh, device, &shape, from, axes,
                        (int32_t)random_below(&random, shape.rank));
        }
        arena_free(&arena);
    }
}

static void test_equal_rules_are_one(void **test) {
    (void)test;
    PlanContext *context;
    AmError error = {0};
    assert_int_equal(
        plan_context_read(&context, SOURCE_DIR "/datasets/models/gpt2_tiny/model.hlo.pb", NULL, &error),
        AM_OK);
    const Rules *rules = context->rules;
    int32_t equal = 0;
    for (int32_t i = 0; i < rules->count; i++) {
        const FactorRule *rule = &rules->rules[i];
        for (int32_t f = 0; f < rule->factor_count; f++)
            for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
                int8_t d = rule->factors[f].dimension[slot];
                int64_t extent = d < 0 ? 0 : rules_slot_shape(rules, i, slot)->dimensions[d];
                assert_int_equal(rule->factors[f].extent[slot], extent);
            }
        for (int32_t k = 0; k < i; k++)
            equal += rule->factor_count > 0 && rules->rules[k].factors == rule->factors;
    }
    assert_true(equal > rules->count); /* pairs */
    plan_context_free(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers),
                                       cmocka_unit_test(test_equal_rules_are_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
