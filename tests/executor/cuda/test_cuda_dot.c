/* dot on a CUDA device: every layout and type beside the CPU, with as many
 * products and packings as its layout asks for; tf32; what happens without
 * cuBLASLt. Values are whole numbers, so results are equal. Skipped
 * (77) in a build without CUDA and where there is neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/gpu_present.h"
#include "tests/support/product_device.h"

enum { ROW_COUNT = sizeof dot_rows / sizeof *dot_rows };

static void test_layouts_and_types(void **state) {
    (void)state;
    ProductDevice device;
    Random random;
    random_seed(&random, 1);
    product_device_open(&device, false);
    for (int32_t k = 0; k < ROW_COUNT; k++) product_device_add(&device, dot_case(&dot_rows[k], &random));
    product_device_finish(&device);
    for (int32_t k = 0; k < ROW_COUNT; k++) {
        const DotCase *row = &dot_rows[k];
        int64_t products = product_count("cublasLtMatmul"), kernels = product_count("cuLaunchKernel");
        product_device_compare(&device, k, row->name);
        if (!stand_in()) continue;
        products = product_count("cublasLtMatmul") - products;
        kernels = product_count("cuLaunchKernel") - kernels;
        if (products != row->products || kernels != row->kernels)
            fail_msg("%s: %d products and %d kernels, not %d and %d", row->name, (int)products, (int)kernels,
                     row->products, row->kernels);
    }
    product_device_close(&device);
}

/* Added to an array, by the library or by a kernel, in the same number of calls. */
static void test_added_products(void **state) {
    (void)state;
    ProductDevice device;
    Random random;
    int32_t rows[ROW_COUNT], count = 0;
    random_seed(&random, 6);
    product_device_open(&device, false);
    for (int32_t k = 0; k < ROW_COUNT; k++) {
        if (dot_rows[k].result_type != F32) continue;
        product_device_add(&device, product_add_addend(dot_case(&dot_rows[k], &random), &random));
        rows[count++] = k;
    }
    assert_true(count > 5);
    product_device_finish(&device);
    for (int32_t k = 0; k < count; k++) {
        const DotCase *row = &dot_rows[rows[k]];
        int64_t products = product_count("cublasLtMatmul"), kernels = product_count("cuLaunchKernel");
        product_device_compare(&device, k, row->name);
        if (!stand_in()) continue;
        assert_int_equal(product_count("cublasLtMatmul") - products, row->products);
        assert_int_equal(product_count("cuLaunchKernel") - kernels, row->kernels);
    }
    product_device_close(&device);
}

/* The result's dimensions in another order: turned round by `by`, or the last two but one exchanged. */
static void order_result(KernelCase *c, int64_t by) {
    IrShape *result = &c->values[2].shape;
    int64_t rank = result->rank, order[IR_MAX_RANK], sizes[IR_MAX_RANK];
    for (int64_t d = 0; d < rank; d++) order[d] = by > 0 ? (d + by) % rank : d;
    if (by == 0 && rank > 2) {
        order[rank - 2] = rank - 3;
        order[rank - 3] = rank - 2;
    }
    for (int64_t d = 0; d < rank; d++) sizes[d] = result->dimensions[order[d]];
    result->dimensions = case_list(c, (int32_t)rank, sizes);
    c->attributes.dimensions = case_list(c, (int32_t)rank, order);
    c->attributes.dimension_count = (int32_t)rank;
}

/* Gives the result's dimensions this order. */
static KernelCase *in_order(KernelCase *c, const int64_t *order) {
    IrShape *result = &c->values[2].shape;
    int64_t sizes[IR_MAX_RANK];
    for (int64_t d = 0; d < result->rank; d++) sizes[d] = result->dimensions[order[d]];
    result->dimensions = case_list(c, result->rank, sizes);
    c->attributes.dimensions = case_list(c, result->rank, order);
    c->attributes.dimension_count = result->rank;
    return c;
}

/* Results in another order, with the products and kernels of each, and its scratch memory in elements. With
 * `slice_bytes` 1 slices are as small as possible. */
static const struct {
    DotCase dot;
    int64_t order[5];
    int32_t slice_bytes, products, kernels;
    int64_t scratch;
} orders[] = {
    /* btgqe,bsge->bgqts: the left operand is packed; its free dimensions in the result's order */
    {{"grouped queries",
      F32,
      F32,
      F32,
      {2, 16, 4, 2, 3},
      {2, 32, 4, 3},
      2,
      1,
      {0, 2},
      {0, 2},
      {4},
      {3},
      0,
      0},
     {0, 1, 3, 2, 4},
     0,
     2,
     1,
     2 * 16 * 4 * 2 * 3},
    {{"rows and columns exchanged", F32, F32, F32, {4, 5, 7}, {4, 7, 3}, 1, 1, {0}, {0}, {2}, {1}, 0, 0},
     {0, 2, 1},
     0,
     1,
     0,
     0},
    {{"columns turned", F32, F32, F32, {5, 7}, {7, 3, 4}, 0, 1, {0}, {0}, {1}, {0}, 0, 0},
     {0, 2, 1},
     0,
     1,
     1,
     7 * 3 * 4},
    {{"rows around columns", F32, F32, F32, {4, 4, 4, 7}, {4, 7, 4}, 1, 1, {0}, {0}, {3}, {1}, 0, 0},
     {0, 1, 3, 2},
     0,
     1,
     1,
     4 * 64},
    {{"the same in slices", F32, F32, F32, {4, 4, 4, 7}, {4, 7, 4}, 1, 1, {0}, {0}, {3}, {1}, 0, 0},
     {0, 1, 3, 2},
     1,
     4,
     4,
     64},
    {{"slices that would begin anywhere",
      F32,
      F32,
      F32,
      {4, 3, 3, 7},
      {4, 7, 5},
      1,
      1,
      {0},
      {0},
      {3},
      {1},
      0,
      0},
     {0, 1, 3, 2},
     1,
     1,
     1,
     180},
    {{"slices of two batches",
      F32,
      F32,
      F32,
      {2, 3, 4, 4, 7},
      {3, 2, 7, 4},
      2,
      1,
      {0, 1},
      {1, 0},
      {4},
      {2},
      0,
      0},
     {1, 0, 2, 4, 3},
     1,
     6,
     6,
     64},
    {{"the batch last", F32, F32, F32, {4, 5, 7}, {4, 7, 3}, 1, 1, {0}, {0}, {2}, {1}, 0, 0},
     {1, 2, 0},
     1,
     1,
     1,
     64},
};

static void test_orders(void **state) {
    (void)state;
    enum { COUNT = sizeof orders / sizeof *orders };
    ProductDevice device;
    Random random;
    random_seed(&random, 7);
    product_device_open(&device, false);
    for (int32_t k = 0; k < COUNT; k++) {
        if (orders[k].slice_bytes > 0) cuda_device_of(device.device)->slice_bytes = orders[k].slice_bytes;
        KernelCall *call =
            product_device_add(&device, in_order(dot_case(&orders[k].dot, &random), orders[k].order));
        int64_t most = kernel_align(orders[k].scratch * (int64_t)sizeof(float));
        if (stand_in() && call->scratch_bytes != most)
            fail_msg("%s: %lld bytes of scratch memory, not %lld", orders[k].dot.name,
                     (long long)call->scratch_bytes, (long long)most);
    }
    product_device_finish(&device);
    for (int32_t k = 0; k < COUNT; k++) {
        int64_t products = product_count("cublasLtMatmul"), kernels = product_count("cuLaunchKernel");
        product_device_compare(&device, k, orders[k].dot.name);
        if (!stand_in()) continue;
        assert_int_equal(product_count("cublasLtMatmul") - products, orders[k].products);
        assert_int_equal(product_count("cuLaunchKernel") - kernels, orders[k].kernels);
    }
    assert_int_equal(device.warnings.count, 0);
    product_device_close(&device);
}

/* A call refuses an algorithm of the heuristic. Slices write the result, or a generated kernel with one
 * warning for all dots. */
static void test_refused_when_called(void **state) {
    (void)state;
    /* bhts,bshe->bthe: the heads' results interleave */
    static const DotCase values = {
        "attention values", F32, F32, F32, {2, 3, 5, 6}, {2, 6, 3, 4}, 2, 1, {0, 1}, {0, 2}, {3}, {1}, 0, 0};
    static const int64_t order[] = {0, 2, 1, 3};
    static const struct {
        const char *refusals, *warning;
        int32_t products, kernels; /* of one dot */
    } rows[] = {
        {"", NULL, 2, 0},
        {"0:100:interleaved", NULL, 2, 1},
        {"0:100:cublasLtMatmul", "3 matrix products run as generated kernels, slowly; the first is 'dot'", 0,
         1},
        {"0:100:cublasLtMatmulAlgoCheck", "3 matrix products run as generated kernels, slowly", 0, 1},
        {"0:100:cublasLtMatmulAlgoGetHeuristic", "3 matrix products run as generated kernels, slowly", 0, 1},
    };
    const StandIn *stand = stand_in();
    if (!stand) skip();
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        ProductDevice device;
        Random random;
        random_seed(&random, 8);
        product_device_open(&device, false);
        (stand->refuse)(rows[k].refusals);
        for (int32_t n = 0; n < 3; n++)
            product_device_add(&device, in_order(dot_case(&values, &random), order));
        (stand->refuse)("");
        product_device_finish(&device);
        assert_int_equal(device.warnings.count, rows[k].warning != NULL);
        if (rows[k].warning) assert_non_null(strstr(device.warnings.texts[0], rows[k].warning));
        for (int32_t n = 0; n < 3; n++) {
            int64_t products = product_count("cublasLtMatmul"), kernels = product_count("cuLaunchKernel");
            product_device_compare(&device, n, rows[k].refusals);
            assert_int_equal(product_count("cublasLtMatmul") - products, rows[k].products);
            assert_int_equal(product_count("cuLaunchKernel") - kernels, rows[k].kernels);
        }
        product_device_close(&device);
    }
}

/* Without room for a trial the product is made without one, with a note. The first run then takes the next
 * algorithm where the first one is refused. */
static void test_no_room_for_a_trial(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    if (!stand) skip();
    ProductDevice device;
    Random random;
    random_seed(&random, 9);
    product_device_open(&device, false);
    product_device_add_untried(&device, dot_case(&dot_rows[0], &random));
    assert_int_equal(device.warnings.count, 1);
    assert_non_null(strstr(device.warnings.texts[0], "no memory to try cuBLASLt's algorithms"));
    product_device_finish(&device);
    stand->reset();
    (stand->fail)("cublasLtMatmul=7#1");
    product_device_compare(&device, 0, "a dot that was not tried");
    assert_int_equal(stand->count("cublasLtMatmul"), 2);
    (stand->fail)("");
    assert_int_equal(device.warnings.count, 1);
    product_device_close(&device);
}

/* Without a trial, and with all algorithms refused when they are first run, the generated kernel runs in that
 * run and in later ones. One warning counts the calls when the device is closed. */
static void test_refused_in_the_first_run(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    ProductDevice device;
    Random random;
    char expected[64];
    int32_t rows[ROW_COUNT + 1], count = 0;
    Arena kept = {0};
    if (!stand) skip();
    random_seed(&random, 10);
    product_device_open(&device, false);
    device.warnings.arena = &kept;
    for (int32_t k = 0; k <= ROW_COUNT; k++) {
        const DotCase *row = &dot_rows[k % ROW_COUNT]; /* the last one shares the product of the first */
        if (row->products == 0) continue;
        KernelCase *c = dot_case(row, &random);
        if (row->result_type == F32 && k % 2 == 0) product_add_addend(c, &random);
        product_device_add_untried(&device, c);
        rows[count++] = k % ROW_COUNT;
    }
    assert_true(count > 8);
    assert_int_equal(device.warnings.count, 1);
    product_device_finish(&device);
    (stand->refuse)("0:100:cublasLtMatmul");
    for (int32_t k = 0; k < count; k++) product_device_compare(&device, k, dot_rows[rows[k]].name);
    (stand->refuse)("");
    int64_t products = product_count("cublasLtMatmul");
    for (int32_t k = 0; k < count; k++) {
        if (device.cases[k]->instruction.operand_count == 2)
            product_device_compare(&device, k, dot_rows[rows[k]].name);
    }
    assert_int_equal(product_count("cublasLtMatmul"), products);
    snprintf(expected, sizeof expected, "%d matrix products run as generated kernels, slowly", count);
    AmWarnings *warnings = &device.warnings;
    product_device_close(&device);
    assert_int_equal(warnings->count, 2);
    if (!strstr(warnings->texts[1], expected)) fail_msg("%s, not %s", warnings->texts[1], expected);
    arena_free(&kept);
}

/* Random shapes, orders of dimensions and roles. */
static void test_random_dots(void **state) {
    (void)state;
    enum { COUNT = 48 };
    ProductDevice device;
    Random random;
    random_seed(&random, 2);
    product_device_open(&device, false);
    for (int32_t n = 0; n < COUNT; n++) {
        DotCase row = {.name = "random", .left_type = F32, .right_type = F32, .result_type = F32};
        int32_t ranks[2] = {0, 0}, roles = 1 + (int32_t)random_below(&random, 4);
        int64_t *sizes[2] = {row.left, row.right};
        /* Dimensions are added with random places in both operands: 0 batch, 1 contracted, 2 and 3 free. */
        for (int32_t r = 0; r < roles + 1; r++) {
            int32_t role = r == 0 ? 1 : (int32_t)random_below(&random, 4), at[2];
            int64_t size = 1 + (int64_t)random_below(&random, 4);
            for (int32_t side = 0; side < 2; side++) {
                at[side] = -1;
                if (role == 2 + side || ranks[side] == 5) continue;
                at[side] = ranks[side];
                sizes[side][ranks[side]++] = size;
            }
            if (role == 0) {
                row.left_batch[row.batch_count] = at[0];
                row.right_batch[row.batch_count++] = at[1];
            } else if (role == 1) {
                row.left_contracting[row.contracting_count] = at[0];
                row.right_contracting[row.contracting_count++] = at[1];
            }
            if (row.batch_count == 3 || row.contracting_count == 3) break;
        }
        /* Turn the left operand's dimensions around every other time. */
        for (int32_t d = 0; n % 2 == 1 && d < ranks[0] / 2; d++) {
            int64_t size = row.left[d];
            row.left[d] = row.left[ranks[0] - 1 - d];
            row.left[ranks[0] - 1 - d] = size;
        }
        for (int32_t k = 0; n % 2 == 1 && k < row.batch_count; k++)
            row.left_batch[k] = ranks[0] - 1 - row.left_batch[k];
        for (int32_t k = 0; n % 2 == 1 && k < row.contracting_count; k++)
            row.left_contracting[k] = ranks[0] - 1 - row.left_contracting[k];
        KernelCase *c = dot_case(&row, &random);
        if (n % 3 == 2) order_result(c, n / 3 % 4);
        product_device_add(&device, c);
    }
    product_device_finish(&device);
    for (int32_t k = 0; k < COUNT; k++) product_device_compare(&device, k, "a random dot");
    product_device_close(&device);
}

/* tf32 keeps 10 bits of a fraction, f32 all; the library may choose a kernel without tf32. */
static void test_tf32_is_an_option(void **state) {
    (void)state;
    for (int32_t tf32 = 0; tf32 < 2; tf32++) {
        ProductDevice device;
        Random random;
        float out[64];
        random_seed(&random, 3);
        product_device_open(&device, tf32);
        static const DotCase row = {"", F32, F32, F32, {8, 8}, {8, 8}, 0, 1, {0}, {0}, {1}, {0}, 1, 0};
        KernelCase *c = dot_case(&row, &random);
        for (int32_t k = 0; k < 64; k++)
            case_floats(c, 0)[k] = case_floats(c, 1)[k] = k % 9 ? 0 : 1 + 0x1p-12f;
        product_device_add(&device, c);
        product_device_finish(&device);
        product_device_run(&device, 0, out);
        bool shortened = tf32 && out[0] == 1;
        if (!shortened) assert_true(out[0] == (1 + 0x1p-12f) * (1 + 0x1p-12f));
        if (tf32 && stand_in() && !getenv("STAND_IN_PERTURB")) assert_true(shortened);
        product_device_close(&device);
    }
}

/* An empty sum gives zeros, and an empty result needs no call. */
static void test_empty(void **state) {
    (void)state;
    ProductDevice device;
    Random random;
    random_seed(&random, 4);
    product_device_open(&device, false);
    for (int32_t k = 0; k < 2; k++) {
        KernelCase *c = case_new(IR_DOT);
        int64_t none = k == 0 ? 0 : 4, rows = k == 0 ? 3 : 0;
        case_value(c, F32, 2, (int64_t[]){rows, none});
        case_value(c, F32, 2, (int64_t[]){none, 2});
        case_value(c, F32, 2, (int64_t[]){rows, 2});
        IrDot *dot = ARENA_ARRAY(&c->arena, IrDot, 1);
        *dot = (IrDot){.contracting_count = 1, .lhs_contracting = LIST(c, 1), .rhs_contracting = LIST(c, 0)};
        c->attributes = (IrAttributes){.dot = dot};
        product_device_add(&device, product_finish(c, &random));
    }
    product_device_finish(&device);
    for (int32_t k = 0; k < 2; k++) product_device_compare(&device, k, "an empty dot");
    product_device_close(&device);
}

/* One line; and a shape that the library lacks is computed without it. */
static void test_failures(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    if (!stand) skip();
    ProductDevice device;
    Random random;
    random_seed(&random, 5);
    product_device_open(&device, false);
    KernelCase *c = dot_case(&dot_rows[0], &random);
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    (stand->fail)("cublasLtCreate=1");
    assert_int_equal(kernel_prepare(&call, &c->arena, device.device, &c->program, &step, &c->error),
                     AM_ERROR_RUNTIME);
    assert_non_null(strstr(c->error.text, "cuBLASLt: no handle"));
    c->error = (AmError){0};
    (stand->fail)("cublasLtMatmulAlgoGetHeuristic=15");
    assert_int_equal(device.warnings.count, 0);
    product_device_add(&device, c);
    (stand->fail)("");
    assert_int_equal(device.warnings.count, 1);
    assert_non_null(strstr(device.warnings.texts[0],
                           "1 matrix product runs as a generated kernel, slowly; the first is 'dot': no "));
    product_device_finish(&device);
    int64_t products = product_count("cublasLtMatmul");
    product_device_compare(&device, 0, "a dot without an algorithm");
    assert_int_equal(product_count("cublasLtMatmul"), products);
    product_device_close(&device);
}

int main(void) {
    if (!gpu_is_present()) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts_and_types),
                                       cmocka_unit_test(test_added_products),
                                       cmocka_unit_test(test_orders),
                                       cmocka_unit_test(test_refused_when_called),
                                       cmocka_unit_test(test_no_room_for_a_trial),
                                       cmocka_unit_test(test_refused_in_the_first_run),
                                       cmocka_unit_test(test_random_dots),
                                       cmocka_unit_test(test_tf32_is_an_option),
                                       cmocka_unit_test(test_empty),
                                       cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
