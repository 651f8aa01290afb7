/* The candidate pool: one order for all parts of a search, the best of each part, and the record in the plan.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "planners/problem/candidate_pool.h"

static const MemoryFit fits = {.fits = true, .needed_fraction = 0.5};

static Plan plan_of(double seconds) {
    return (Plan){.predicted_step_seconds = seconds};
}

/* A plan that fits is better than a faster one that does not; a shorter step, or less memory, decides. */
static void test_order(void **state) {
    (void)state;
    const MemoryFit large = {.needed_fraction = 1.2}, larger = {.needed_fraction = 1.5};
    assert_true(plan_is_better(1, &fits, 2, &fits));
    assert_false(plan_is_better(2, &fits, 1, &fits));
    assert_false(plan_is_better(1, &fits, 1, &fits));
    assert_true(plan_is_better(2, &fits, 1, &large));
    assert_false(plan_is_better(1, &large, 2, &fits));
    assert_true(plan_is_better(2, &large, 1, &larger));
    assert_false(plan_is_better(1, &larger, 2, &large));
}

static void test_best_of_each_part(void **state) {
    (void)state;
    CandidatePool pool = {0};
    Plan large = plan_of(1), slow = plan_of(4), quick = plan_of(2), same = plan_of(2), other = plan_of(3);
    const MemoryFit lacks = {.needed_fraction = 1.1};
    assert_null(pool_best(&pool));
    assert_null(pool_nearest(&pool));
    pool_add(&pool, &large, &lacks, PLAN_ORIGIN_STAGES, NULL);
    assert_null(pool_best(&pool));
    assert_ptr_equal(pool_nearest(&pool)->plan, &large);
    assert_true(pool_has(&pool, &large));
    assert_false(pool_has(&pool, &slow));
    pool_add(&pool, &slow, &fits, PLAN_ORIGIN_BASELINE, "zero1");
    assert_ptr_equal(pool_best(&pool), &slow);
    assert_null(pool_nearest(&pool));
    pool_add(&pool, &quick, &fits, PLAN_ORIGIN_AGENT, NULL);
    pool_add(&pool, &same, &fits, PLAN_ORIGIN_SINGLE_STAGE, NULL); /* a tie: the first one stays */
    pool_add(&pool, &other, &fits, PLAN_ORIGIN_AGENT, NULL);
    assert_ptr_equal(pool_best(&pool), &quick);
    assert_string_equal(pool.of[PLAN_ORIGIN_BASELINE].note, "zero1");
    pool_record(&pool);
    assert_int_equal(quick.origin, PLAN_ORIGIN_AGENT);
    const double found[PLAN_ORIGIN_COUNT] = {
        [PLAN_ORIGIN_BASELINE] = 4, [PLAN_ORIGIN_SINGLE_STAGE] = 2, [PLAN_ORIGIN_AGENT] = 2};
    for (int32_t k = 0; k < PLAN_ORIGIN_COUNT; k++) assert_true(quick.found_seconds[k] == found[k]);
}

/* Contexts of slower plans that the pool keeps are listed; those of plans that it drops, or as read, are not.
 */
static void test_contexts(void **state) {
    (void)state;
    CandidatePool pool = {0};
    const PlanContext *contexts[POOL_CANDIDATES];
    PlanContext of[3] = {0};
    Plan slow = plan_of(3), quick = plan_of(2), dropped = plan_of(4), read = plan_of(1);
    slow.context = &of[0];
    quick.context = &of[1];
    dropped.context = &of[2];
    quick.micro_batches = 2;
    read.micro_batches = 4;
    pool_add(&pool, &slow, &fits, PLAN_ORIGIN_BASELINE, NULL);
    pool_add(&pool, &quick, &fits, PLAN_ORIGIN_BASELINE, NULL);
    pool_add(&pool, &read, &fits, PLAN_ORIGIN_STAGES, NULL);
    const MemoryFit lacks = {.needed_fraction = 1.1};
    pool_add(&pool, &dropped, &lacks, PLAN_ORIGIN_BASELINE, NULL);
    int32_t count = pool_contexts(contexts, &pool);
    bool is_listed[3] = {false};
    for (int32_t k = 0; k < count; k++)
        for (int32_t c = 0; c < 3; c++) is_listed[c] |= contexts[k] == &of[c];
    assert_true(is_listed[0]);
    assert_true(is_listed[1]);
    assert_false(is_listed[2]);
}

/* A merged pool has the best of both, for each part and of all. */
static void test_merge(void **state) {
    (void)state;
    CandidatePool first = {0}, second = {0};
    Plan a = plan_of(3), b = plan_of(2), c = plan_of(5), same = plan_of(2);
    pool_add(&first, &a, &fits, PLAN_ORIGIN_STAGES, NULL);
    pool_add(&second, &c, &fits, PLAN_ORIGIN_STAGES, NULL);
    pool_add(&second, &b, &fits, PLAN_ORIGIN_IMPROVEMENT, NULL);
    pool_merge(&first, &second);
    assert_ptr_equal(pool_best(&first), &b);
    assert_ptr_equal(first.of[PLAN_ORIGIN_STAGES].plan, &a);
    second = (CandidatePool){0};
    pool_add(&second, &same, &fits, PLAN_ORIGIN_BASELINE, NULL);
    pool_merge(&first, &second);
    assert_ptr_equal(pool_best(&first), &b);
}

/* One plan for each number of stages and micro-batches stays; the fastest shapes are kept in order. */
static void test_shapes(void **state) {
    (void)state;
    CandidatePool pool = {0}, merged = {0};
    Plan plans[] = {plan_of(5), plan_of(4), plan_of(4.5), plan_of(3), plan_of(6), plan_of(2)};
    static PlanStage empty[8];
    const int32_t stages[] = {2, 4, 2, 4, 1, 8};
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        plans[k].stage_count = stages[k];
        plans[k].stages = empty;
        plans[k].schedule = "1f1b";
        plans[k].micro_batches = 4;
        pool_add(&pool, &plans[k], &fits, PLAN_ORIGIN_STAGES, NULL);
    }
    pool_merge(&merged, &pool);
    pool_merge(&merged, &pool);
    assert_int_equal(POOL_SHAPES, 3);
    assert_ptr_equal(merged.shapes[0].plan, &plans[5]);
    assert_ptr_equal(merged.shapes[1].plan, &plans[3]);
    assert_ptr_equal(merged.shapes[2].plan, &plans[2]);
    Plan other = plans[3];
    other.micro_batches = 8;
    other.predicted_step_seconds = 2.5;
    pool_add(&pool, &other, &fits, PLAN_ORIGIN_STAGES, NULL);
    assert_ptr_equal(pool.shapes[1].plan, &other);
    assert_ptr_equal(pool.shapes[2].plan, &plans[3]);
    assert_false(pool_has(&pool, &plans[0])); /* a faster one has its shape */
    assert_false(pool_has(&merged, &other));
}

/* Plans that differ in the first two classes of an axis, in storage or in a mesh have different structures;
 * a third class, a cut or an axis of one device makes none. */
static void test_structures(void **state) {
    (void)state;
    static PlanEntry first[] = {{0, PLAN_COMPUTE}, {1, PLAN_COMPUTE}, {2, PLAN_COMPUTE}};
    static PlanEntry other_third[] = {{0, PLAN_COMPUTE}, {1, PLAN_COMPUTE}, {3, PLAN_COMPUTE}};
    static PlanEntry other_second[] = {{0, PLAN_COMPUTE}, {2, PLAN_COMPUTE}, {1, PLAN_COMPUTE}};
    static PlanEntry stored[] = {{0, PLAN_COMPUTE}, {1, PLAN_COMPUTE}, {PLAN_ANY_CLASS, PLAN_OPTIMIZER}};
    PlanStage stages[6];
    Plan plans[6];
    const struct {
        PlanEntry *entries;
        int32_t axis, size;
    } cases[] = {{first, 0, 4},  {other_third, 0, 4},  {first, 1, 4},
                 {stored, 0, 4}, {other_second, 0, 4}, {first, 0, 2}};
    CandidatePool pool = {0};
    for (int32_t k = 0; k < 6; k++) {
        stages[k] = (PlanStage){.mesh = {.axis_count = 2, .axes = {{.size = 1}, {.size = 1}}}};
        stages[k].mesh.axes[cases[k].axis].size = cases[k].size;
        stages[k].axis_priorities[cases[k].axis] = (PlanAxisPriority){3, cases[k].entries};
        plans[k] = plan_of(10 - k);
        plans[k].stages = &stages[k];
        plans[k].stage_count = plans[k].micro_batches = 1;
        pool_add(&pool, &plans[k], &fits, PLAN_ORIGIN_SINGLE_STAGE, NULL);
    }
    for (int32_t k = 1; k < 6; k++) assert_true(plan_has_same_structure(&plans[0], &plans[k]) == (k <= 2));
    const int32_t kept[] = {5, 4, 3, 2};
    for (int32_t k = 0; k < 4; k++) assert_ptr_equal(pool.structures[k].plan, &plans[kept[k]]);
    assert_null(pool.structures[4].plan);
    Plan recomputing = plans[5];
    PlanStage stage = stages[5];
    stage.recompute.range_count = 1;
    recomputing.stages = &stage;
    assert_false(plan_has_same_structure(&plans[5], &recomputing));
}

/* The leanest plan is nearly as fast as the best one and needs less memory. */
static void test_leanest(void **state) {
    (void)state;
    const struct {
        int64_t needed[3]; /* of 1,000 bytes; 0: unknown */
        double seconds[3];
        int32_t leanest; /* -1: none */
    } cases[] = {
        {{999, 930, 900}, {100, 102, 101}, 2},  /* the least memory */
        {{999, 930, 900}, {100, 102, 104}, 1},  /* but not at any price */
        {{999, 930, 900}, {100, 104, 105}, -1}, /* both are slower */
        {{999, 0, 930}, {100, 101, 102}, 2},    /* unknown is not little */
        {{900, 910, 920}, {100, 101, 102}, -1}, /* the best one has the least */
        {{0, 930, 900}, {100, 101, 102}, -1},
    };
    static PlanStage empty[3];
    CandidatePool pool = {0};
    assert_null(pool_leanest(&pool, 1.03));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Plan plans[3];
        pool = (CandidatePool){0};
        for (int32_t k = 0; k < 3; k++) {
            const MemoryFit fit = {.fits = true, .needed_bytes = cases[c].needed[k], .limit_bytes = 1000};
            plans[k] = plan_of(cases[c].seconds[k]);
            plans[k].stages = empty;
            plans[k].stage_count = k + 1;
            plans[k].micro_batches = 4;
            plans[k].schedule = "1f1b";
            pool_add(&pool, &plans[k], &fit, PLAN_ORIGIN_STAGES, NULL);
        }
        const Plan *expected = cases[c].leanest < 0 ? NULL : &plans[cases[c].leanest];
        assert_ptr_equal(pool_leanest(&pool, 1.03), expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),    cmocka_unit_test(test_best_of_each_part),
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_merge),
        cmocka_unit_test(test_shapes),   cmocka_unit_test(test_structures),
        cmocka_unit_test(test_leanest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
