/* The rules, executed: operators split by every factor give on several devices the result of one
 * device, bit for bit. */
/* labels: threads */
#include <stdio.h>

#include "tests/support/split_case.h"

#define COMPUTATIONS                                                                                       \
    "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"                     \
    "greater { a = f32[] parameter(0) b = f32[] parameter(1) i = s32[] parameter(2) j = s32[] "            \
    "parameter(3)\n  ROOT c = pred[] compare(a, b), direction=GT }\n"                                      \
    "max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }\n"                 \
    "both { a = f32[] parameter(0) m = s32[] parameter(1) b = f32[] parameter(2) n = s32[] parameter(3)\n" \
    "  s = f32[] subtract(b, a) c = s32[] convert(a) d = s32[] add(m, n) k = s32[] add(c, d)\n"            \
    "  ROOT t = (f32[], s32[]) tuple(s, k) }\n"                                                            \
    "twice { a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] add(a, a) ROOT d = f32[] add(c, b) }\n"

/* The root is a tuple of what r gives, as types A, B and C. */
#define TWO(A, B)                                                                         \
    "\nx = " A " get-tuple-element(r), index=0 y = " B " get-tuple-element(r), index=1\n" \
    "ROOT t = (" A ", " B ") tuple(x, y)"
#define THREE(A, B, C)                                                                    \
    "\nx = " A " get-tuple-element(r), index=0 y = " B " get-tuple-element(r), index=1\n" \
    "z = " C " get-tuple-element(r), index=2 ROOT t = (" A ", " B ", " C ") tuple(x, y, z)"

typedef struct Case {
    const char *body;
    int32_t factors; /* of r that can be split in two */
} Case;

static void check(const Case *cases, size_t count, uint64_t seed) {
    for (size_t k = 0; k < count; k++) {
        SplitCase self;
        char text[8192];
        snprintf(text, sizeof text, "HloModule test\n%sENTRY main {\n%s\n}\n", COMPUTATIONS, cases[k].body);
        split_open(&self, text, 100 * k + seed);
        int32_t found = split_check_each(&self, "data=2", 2, "r");
        if (found != cases[k].factors)
            fail_msg("%s\n%d factors were split, expected %d", cases[k].body, found, cases[k].factors);
        split_check_each(&self, "data=3", 3, "r");
        split_check_each(&self, "data=4", 4, "r");
        split_check_each(&self, "data=5", 5, "r");
        split_close(&self);
    }
}
#define CHECK(cases) \
    for (uint64_t seed = 0; seed < 3; seed++) check(cases, sizeof cases / sizeof *cases, seed)

static void test_whole_dimensions(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[4,6,12] parameter(0) i = s32[4,6,12] parameter(1)\n"
         "r = (f32[4,6,12], s32[4,6,12]) sort(a, i), dimensions={1}, to_apply=greater, is_stable=true" TWO(
             "f32[4,6,12]", "s32[4,6,12]"),
         2},
        {"a = f32[4,12,9] parameter(0) r = (f32[4,12,5], s32[4,12,5]) topk(a), k=5, largest=true" TWO(
             "f32[4,12,5]", "s32[4,12,5]"),
         2},
        {"a = f32[12,4,8] parameter(0) ROOT r = c64[12,4,5] fft(a), fft_type=RFFT, fft_length={8}", 2},
        {"a = f32[4,3,3] parameter(0) ROOT r = f32[4,3,3] cholesky(a), lower=true", 1},
        {"a = f32[4,3,3] parameter(0) b = f32[4,3,12] parameter(1)\n"
         "ROOT r = f32[4,3,12] triangular-solve(a, b), left_side=true, lower=true, unit_diagonal=true, "
         "transpose_a=NO_TRANSPOSE",
         2},
        {"a = f32[4,3,3] parameter(0) b = f32[4,12,3] parameter(1)\n"
         "ROOT r = f32[4,12,3] triangular-solve(a, b), lower=true, unit_diagonal=true, "
         "transpose_a=NO_TRANSPOSE",
         2},
        {"a = f32[12,4,5] parameter(0) r = (f32[12,4,5], s32[12,4], s32[12]) custom-call(a), "
         "custom_call_target=\"lapack_sgetrf_ffi\"" THREE("f32[12,4,5]", "s32[12,4]", "s32[12]"),
         1},
        {"a = f32[12,4] parameter(0) ROOT r = f32[12,4] custom-call(a), custom_call_target=\"MoveToHost\"",
         2},
        {"a = f32[4,3,12] parameter(0) s = f32[12] parameter(1) o = f32[12] parameter(2)\n"
         "r = (f32[4,3,12], f32[12], f32[12]) batch-norm-training(a, s, o), epsilon=0.5, "
         "feature_index=2" THREE("f32[4,3,12]", "f32[12]", "f32[12]"),
         1},
        {"a = f32[4,6,3] parameter(0) s = f32[6] parameter(1) o = f32[6] parameter(2)\n"
         "m = f32[6] parameter(3) v = f32[6] parameter(4) w = f32[6] multiply(v, v)\n"
         "ROOT r = f32[4,6,3] batch-norm-inference(a, s, o, m, w), epsilon=0.5, feature_index=1",
         3},
        {"a = f32[4,6,3] parameter(0) s = f32[6] parameter(1) m = f32[6] parameter(2)\n"
         "v = f32[6] parameter(3) w = f32[6] multiply(v, v) g = f32[4,6,3] parameter(4)\n"
         "r = (f32[4,6,3], f32[6], f32[6]) batch-norm-grad(a, s, m, w, g), epsilon=0.5, "
         "feature_index=1" THREE("f32[4,6,3]", "f32[6]", "f32[6]"),
         1},
        {"a = f32[4,12,3] parameter(0) ROOT r = s32[] get-dimension-size(a), dimensions={1}", 2},
        {"a = f32[4,12] parameter(0) t = token[] after-all() ROOT r = f32[4,12] add-dependency(a, t)", 2},
        {"a = f32[4,12] parameter(0) b = f32[4,12] parameter(1)\n"
         "ROOT r = f32[4,12] map(a, b), dimensions={0,1}, to_apply=twice",
         2},
        {"a = f32[4,12] parameter(0) ROOT r = u16[4,12,2] bitcast-convert(a)", 2},
        {"a = u16[4,12,2] parameter(0) ROOT r = f32[4,12] bitcast-convert(a)", 2},
        {"a = f32[4,12,9] parameter(0) z = f32[] constant(0)\n"
         "ROOT r = f32[4,12,9] reduce-window(a, z), window={size=1x1x9 pad=0_0x0_0x8_0}, to_apply=add",
         2},
    };
    CHECK(cases);
}

static void test_products(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[12,6] parameter(0) b = f32[3,6,4] parameter(1) g = s32[3] parameter(2)\n"
         "ROOT r = f32[12,4] ragged-dot(a, b, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
         "lhs_ragged_dims={0}, rhs_group_dims={0}",
         2},
        {"a = f32[12,6] parameter(0) b = f32[12,4] parameter(1) g = s32[3] parameter(2)\n"
         "ROOT r = f32[3,6,4] ragged-dot(a, b, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}, "
         "lhs_ragged_dims={0}",
         2},
        /* Depthwise, two features to a group, and groups of the batch. */
        {"a = f32[4,5,5,12] parameter(0) k = f32[3,3,1,12] parameter(1)\n"
         "ROOT r = f32[4,5,5,12] convolution(a, k), window={size=3x3 pad=1_1x1_1}, "
         "dim_labels=b01f_01io->b01f, feature_group_count=12",
         2},
        {"a = f32[4,5,5,8] parameter(0) k = f32[3,3,2,12] parameter(1)\n"
         "ROOT r = f32[4,5,5,12] convolution(a, k), window={size=3x3 pad=1_1x1_1}, "
         "dim_labels=b01f_01io->b01f, feature_group_count=4",
         2},
        {"a = f32[8,5,6] parameter(0) k = f32[3,6,12] parameter(1)\n"
         "ROOT r = f32[2,5,12] convolution(a, k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, "
         "batch_group_count=4",
         2},
    };
    CHECK(cases);
}

static void test_random(void **state) {
    (void)state;
    static const Case cases[] = {
        {"s = u64[2] parameter(0) r = (u64[2], u32[12,4]) rng-bit-generator(s), "
         "algorithm=rng_philox" TWO("u64[2]", "u32[12,4]"),
         2},
        {"s = u64[3] parameter(0) r = (u64[3], u64[12,4]) rng-bit-generator(s), "
         "algorithm=rng_philox" TWO("u64[3]", "u64[12,4]"),
         2},
        {"s = u64[2] parameter(0) r = (u64[2], u32[3,12,4]) rng-bit-generator(s), "
         "algorithm=rng_three_fry" TWO("u64[2]", "u32[3,12,4]"),
         3},
        {"s = u64[2] parameter(0) r = (u64[2], u8[3,12,5]) rng-bit-generator(s), "
         "algorithm=rng_three_fry" TWO("u64[2]", "u8[3,12,5]"),
         3},
        {"s = u64[2] parameter(0) r = (u64[2], u64[12,4]) rng-bit-generator(s), "
         "algorithm=rng_three_fry" TWO("u64[2]", "u64[12,4]"),
         2},
        {"a = f32[] parameter(0) b = f32[] parameter(1)\n"
         "ROOT r = f32[12,4] rng(a, b), distribution=rng_uniform",
         2},
        {"a = f32[] parameter(0) b = f32[] parameter(1)\n"
         "ROOT r = f32[12,4] rng(a, b), distribution=rng_normal",
         2},
    };
    CHECK(cases);
}

static void test_indices(void **state) {
    (void)state;
    static const Case cases[] = {
        {"t = f32[12,6] parameter(0) i = s32[8,1] parameter(1)\n"
         "ROOT r = f32[8,6] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
         "index_vector_dim=1, slice_sizes={1,6}",
         3},
        /* Windows that a shard may hold a part of; of another dimension just as long as a shard. */
        {"t = f32[12,6] parameter(0) i = s32[8,2] parameter(1)\n"
         "ROOT r = f32[8,4,3] gather(t, i), offset_dims={1,2}, collapsed_slice_dims={}, "
         "start_index_map={0,1}, index_vector_dim=1, slice_sizes={4,3}",
         3},
        {"t = f32[12,6] parameter(0) i = s32[8,1] parameter(1)\n"
         "ROOT r = f32[8,3,6] gather(t, i), offset_dims={1,2}, collapsed_slice_dims={}, "
         "start_index_map={0}, index_vector_dim=1, slice_sizes={3,6}",
         3},
        {"t = pred[12,6] parameter(0) i = s32[6,8,1] parameter(1)\n"
         "ROOT r = pred[6,8] gather(t, i), offset_dims={}, collapsed_slice_dims={0}, "
         "start_index_map={0}, operand_batching_dims={1}, start_indices_batching_dims={0}, "
         "index_vector_dim=2, slice_sizes={1,1}",
         3},
        {"z = f32[12,6] parameter(0) i = s32[8,2] parameter(1) u = f32[8,4,3] parameter(2)\n"
         "ROOT r = f32[12,6] scatter(z, i, u), update_window_dims={1,2}, inserted_window_dims={}, "
         "scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=add",
         2},
        {"c = f32[] constant(0) z = f32[12,6] broadcast(c), dimensions={} i = s32[8,1] parameter(0)\n"
         "u = f32[8,6] parameter(1)\n"
         "ROOT r = f32[12,6] scatter(z, i, u), update_window_dims={1}, inserted_window_dims={0}, "
         "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
         3},
        /* Two operands, where the second counts the updates of the first; and the maximum of a
         * part. */
        {"z = f32[12,6] parameter(0) n = s32[12,6] parameter(1) i = s32[8,1] parameter(2)\n"
         "u = f32[8,6] parameter(3) v = s32[8,6] parameter(4)\n"
         "r = (f32[12,6], s32[12,6]) scatter(z, n, i, u, v), update_window_dims={1}, "
         "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
         "to_apply=both" TWO("f32[12,6]", "s32[12,6]"),
         2},
        {"z = f32[12,6] parameter(0) i = s32[8,1] parameter(1) u = f32[8,6] parameter(2)\n"
         "ROOT r = f32[12,6] scatter(z, i, u), update_window_dims={1}, inserted_window_dims={0}, "
         "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=max",
         3},
        {"a = f32[12,6] parameter(0) z = f32[] parameter(1)\n"
         "ROOT r = f32[6] reduce(a, z), dimensions={0}, to_apply=max",
         2},
        {"a = f32[12,6] parameter(0) i = s32[] parameter(1) j = s32[] parameter(2)\n"
         "ROOT r = f32[1,6] dynamic-slice(a, i, j), dynamic_slice_sizes={1,6}",
         2},
        {"a = f32[12,6] parameter(0) i = s32[] parameter(1) j = s32[] parameter(2)\n"
         "ROOT r = f32[4,3] dynamic-slice(a, i, j), dynamic_slice_sizes={4,3}",
         2},
        {"a = f32[12,6] parameter(0) u = f32[1,6] parameter(1) i = s32[] parameter(2)\n"
         "ROOT r = f32[12,6] dynamic-update-slice(a, u, i, i)",
         2},
        {"a = f32[12,6] parameter(0) u = f32[4,3] parameter(1) i = s32[] parameter(2)\n"
         "ROOT r = f32[12,6] dynamic-update-slice(a, u, i, i)",
         2},
    };
    CHECK(cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_dimensions),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
