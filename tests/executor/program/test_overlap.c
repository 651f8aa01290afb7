/* Overlap: which kernels wait for which collective, and where capture regions end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "executor/program/control_flow.h"

enum { STEPS = 8 };

static const int64_t four[] = {4};
static const IrShape shape = {.type = DTYPE_F32, .rank = 1, .dimensions = (int64_t *)four}; /* 16 bytes */

/* Steps with one operand and one result each, at offsets in `memory`. */
typedef struct Steps {
    char memory[256];
    ExecutableStep steps[STEPS];
    KernelCall kernels[STEPS];
    CommCall collectives[STEPS];
    const IrShape *shapes[1];
    void *addresses[STEPS][2];
    int32_t count;
} Steps;

static void add(Steps *self, bool collective, int32_t operand, int32_t result) {
    int32_t s = self->count++;
    self->shapes[0] = &shape;
    self->addresses[s][0] = self->memory + operand;
    self->addresses[s][1] = self->memory + result;
    void **operands = &self->addresses[s][0], **results = &self->addresses[s][1];
    if (collective) {
        self->collectives[s] = (CommCall){.operand_count = 1,
                                          .result_count = 1,
                                          .operand_shapes = self->shapes,
                                          .result_shapes = self->shapes,
                                          .operands = operands,
                                          .results = results};
        self->steps[s].collective = &self->collectives[s];
    } else {
        self->kernels[s] = (KernelCall){.operand_count = 1,
                                        .result_count = 1,
                                        .operand_shapes = self->shapes,
                                        .result_shapes = self->shapes,
                                        .operands = operands,
                                        .results = results};
        self->steps[s].kernel = &self->kernels[s];
    }
}

static void test_waits(void **state) {
    (void)state;
    Steps s = {0};
    const CommCall *last = NULL;
    add(&s, true, 0, 16);    /* 0: reads 0, writes 16 */
    add(&s, false, 64, 80);  /* 1: touches nothing of it */
    add(&s, false, 0, 96);   /* 2: reads what 0 reads: no wait */
    add(&s, true, 32, 48);   /* 3 */
    add(&s, false, 64, 44);  /* 4: overlaps what 3 reads and writes: waits for 3, and so for 0 */
    add(&s, false, 16, 112); /* 5: reads what 0 wrote: no longer under way */
    add(&s, true, 128, 128); /* 6 */
    add(&s, false, 64, 144); /* 7: begins where 6 ends */
    assert_int_equal(overlap_find_waits(s.steps, s.count, &last, NULL), AM_OK);
    for (int32_t k = 0; k < s.count; k++)
        assert_ptr_equal(s.steps[k].wait, k == 4 ? &s.collectives[3] : NULL);
    assert_ptr_equal(last, &s.collectives[6]);
}

/* Only the older of two is needed: the newer stays under way. */
static void test_older_first(void **state) {
    (void)state;
    Steps s = {0};
    const CommCall *last = NULL;
    add(&s, true, 0, 16);
    add(&s, true, 32, 48);
    add(&s, false, 64, 0);  /* overwrites the first one's operand */
    add(&s, false, 48, 80); /* reads the second one's result */
    assert_int_equal(overlap_find_waits(s.steps, s.count, &last, NULL), AM_OK);
    assert_ptr_equal(s.steps[2].wait, &s.collectives[0]);
    assert_ptr_equal(s.steps[3].wait, &s.collectives[1]);
    assert_null(last);
}

/* Control flow waits for all that is under way, whatever it touches. */
static void test_control_waits_for_all(void **state) {
    (void)state;
    Steps s = {0};
    const CommCall *last = NULL;
    Control call = {0};
    add(&s, true, 0, 16);
    add(&s, true, 32, 48);
    s.steps[s.count++] = (ExecutableStep){.control = &call};
    add(&s, false, 16, 112);
    assert_int_equal(overlap_find_waits(s.steps, s.count, &last, NULL), AM_OK);
    assert_ptr_equal(s.steps[2].wait, &s.collectives[1]);
    assert_null(s.steps[3].wait);
    assert_null(last);
}

static void test_capture_regions(void **state) {
    (void)state;
    Arena arena = {0};
    Steps s = {0};
    CaptureRegion *regions;
    int32_t count;
    add(&s, false, 0, 16);
    add(&s, true, 0, 16);
    add(&s, false, 0, 16);
    add(&s, false, 0, 16);
    Control loop = {.waits_on_host = true};
    s.steps[3] = (ExecutableStep){.control = &loop};
    assert_int_equal(overlap_find_capture_regions(&regions, &count, &arena, s.steps, s.count, false, NULL),
                     AM_OK);
    assert_int_equal(count, 2);
    assert_true(regions[0].recordable && regions[0].end == 3);
    assert_true(!regions[1].recordable && regions[1].first == 3 && regions[1].end == 4);
    assert_int_equal(overlap_find_capture_regions(&regions, &count, &arena, s.steps, s.count, true, NULL),
                     AM_OK);
    assert_int_equal(count, 4);
    for (int32_t k = 0; k < count; k++) assert_int_equal(regions[k].recordable, k % 2 == 0);
    arena_free(&arena);
}

/* A kernel that has a part of an array that the iteration chooses has any part of it. */
static void test_placed(void **state) {
    (void)state;
    Steps s = {0};
    const CommCall *last = NULL;
    add(&s, true, 0, 64);   /* writes the third part of 16 bytes from 32 on */
    add(&s, false, 32, 96); /* bound to the first part */
    add(&s, false, 32, 96);
    PlacedAddress placed = {.address = &s.kernels[2].operands[0], .array = s.memory + 32, .bytes = 48};
    s.steps[2].placed = &placed;
    s.steps[2].placed_count = 1;
    assert_int_equal(overlap_find_waits(s.steps, s.count, &last, NULL), AM_OK);
    assert_null(s.steps[1].wait);
    assert_ptr_equal(s.steps[2].wait, &s.collectives[0]);
}

/* A capture region has a record for every pattern of addresses, if they are few. */
static void test_records(void **state) {
    (void)state;
    enum { MANY = 65 };
    Arena arena = {0};
    Steps s = {0};
    CaptureRegion *regions;
    int32_t count;
    int64_t far[MANY];
    const int64_t offsets[] = {0, 16, 0, 32, 16};
    const int32_t expected[] = {0, 1, 0, 2, 1};
    ProgramPlace place = {.iterations = 5, .offset = offsets};
    PlacedAddress placed = {.place = &place};
    add(&s, false, 0, 16);
    add(&s, false, 0, 16);
    assert_int_equal(overlap_find_capture_regions(&regions, &count, &arena, s.steps, s.count, false, NULL),
                     AM_OK);
    assert_true(count == 1 && regions[0].recordable && !regions[0].record_of);
    s.steps[1].placed = &placed;
    s.steps[1].placed_count = 1;
    assert_int_equal(overlap_find_capture_regions(&regions, &count, &arena, s.steps, s.count, false, NULL),
                     AM_OK);
    assert_true(count == 1 && regions[0].recordable);
    assert_memory_equal(regions[0].record_of, expected, sizeof expected);
    for (int32_t k = 0; k < MANY; k++) far[k] = 16 * k;
    for (place = (ProgramPlace){.iterations = MANY - 1, .offset = far}; place.iterations <= MANY;
         place.iterations++) {
        assert_int_equal(
            overlap_find_capture_regions(&regions, &count, &arena, s.steps, s.count, false, NULL), AM_OK);
        assert_true(regions[0].recordable == (place.iterations < MANY));
    }
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_older_first),
        cmocka_unit_test(test_control_waits_for_all),
        cmocka_unit_test(test_capture_regions),
        cmocka_unit_test(test_placed),
        cmocka_unit_test(test_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
