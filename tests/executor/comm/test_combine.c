/* Reductions over members against the same by wide values, bit for bit: random bits of every type, so
 * that subnormal numbers, infinities and ties of rounding are among them; all lengths around the vectors'. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "executor/array/scalar64.h"
#include "executor/comm/combine.h"

enum { MOST = 70, MEMBERS = 5, BYTES = MOST * 8 };

static bool is_nan(Dtype type, const char *at) {
    Scalar64 value;
    scalar64_load(&value, at, type, 1, 1);
    return scalar64_kind(type) == SCALAR64_FLOATING && isnan(value.floating);
}

static void expect_same(const Combine *work, char *const *before, int64_t first, int64_t count) {
    int64_t bytes = dtype_bytes(work->type);
    for (int64_t i = 0; i < MOST; i++) {
        Scalar64 sum, next;
        char expected[8];
        memcpy(expected, before[0] + i * bytes, (size_t)bytes);
        if (i >= first && i < first + count) {
            scalar64_load(&sum, before[0] + i * bytes, work->type, 1, 1);
            for (int32_t m = 1; m < work->member_count; m++) {
                scalar64_load(&next, before[m] + i * bytes, work->type, 1, 1);
                scalar64_fold(&sum, &next, scalar64_kind(work->type), work->reduction, 1);
            }
            scalar64_store(expected, work->type, &sum, scalar64_kind(work->type), 1, 1);
        }
        for (int32_t r = 0; r < work->result_count; r++) {
            const char *found = work->results[r] + i * bytes;
            if (r > 0 && (i < first || i >= first + count)) continue;
            if (is_nan(work->type, expected)) assert_true(is_nan(work->type, found));
            else assert_memory_equal(found, expected, (size_t)bytes);
        }
    }
}

/* The results are the first members' own memory. */
static void check(Random *random, Dtype type, SbpReduction reduction, int32_t member_count, int64_t first,
                  int64_t count) {
    char given[MEMBERS][BYTES], kept[MEMBERS][BYTES];
    const char *members[MEMBERS];
    char *results[MEMBERS], *before[MEMBERS];
    for (int32_t m = 0; m < member_count; m++) {
        for (int64_t k = 0; k < BYTES; k++) given[m][k] = (char)random_below(random, 256);
        members[m] = results[m] = given[m];
        before[m] = kept[m];
    }
    memcpy(kept, given, sizeof kept);
    Combine work = {.reduction = reduction,
                    .type = type,
                    .members = members,
                    .member_count = member_count,
                    .results = results,
                    .result_count = member_count < 3 ? member_count : 1};
    combine_run(&work, first, count);
    expect_same(&work, before, first, count);
}

static void test_same_bits_as_wide_values(void **state) {
    (void)state;
    static const Dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16, DTYPE_S32, DTYPE_U8};
    static const SbpReduction reductions[] = {SBP_ADD, SBP_MAX, SBP_MULTIPLY};
    Random random;
    random_seed(&random, 1);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t r = 0; r < sizeof reductions / sizeof *reductions; r++)
            for (int32_t members = 1; members <= MEMBERS; members++)
                for (int64_t count = 0; count <= MOST - 3; count += count < 18 ? 1 : 7)
                    check(&random, types[t], reductions[r], members, 3, count);
}

/* Sums of two f32 that lie near a tie of f32, where rounding twice could differ from rounding once. */
static void test_two_singles_near_ties(void **state) {
    (void)state;
    enum { COUNT = 67 };
    float a[COUNT], b[COUNT], sums[COUNT];
    const char *members[] = {(const char *)a, (const char *)b};
    char *results[] = {(char *)sums};
    Combine work = {.reduction = SBP_ADD,
                    .type = DTYPE_F32,
                    .members = members,
                    .member_count = 2,
                    .results = results,
                    .result_count = 1};
    Random random;
    random_seed(&random, 2);
    for (int32_t turn = 0; turn < 3000; turn++) {
        for (int32_t i = 0; i < COUNT; i++) {
            a[i] = (float)((1 << 23) + random_below(&random, 1 << 23));
            b[i] =
                ldexpf((float)((1 << 23) + random_below(&random, 1 << 23)), -(int)random_below(&random, 60));
            if (random_below(&random, 2)) b[i] = -b[i];
        }
        combine_run(&work, 0, COUNT);
        for (int32_t i = 0; i < COUNT; i++) {
            float expected = (float)((double)a[i] + (double)b[i]);
            assert_memory_equal(&sums[i], &expected, sizeof expected);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_wide_values),
        cmocka_unit_test(test_two_singles_near_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
