/* Products and fused attention by measurements: monotone at random shapes, exact at measured ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "base/random.h"
#include "cost/measured/measured_device.h"
#include "cost/operator/operator.h"

static const char *const names[] = {"A100", "V100", "B200"};
static const double peaks[] = {312e12, 125e12, 2250e12};

static double draw(Random *random, double least, double most) {
    return floor(least * pow(most / least, random_uniform(random)));
}

static void a_larger_product_never_takes_less(void **state) {
    (void)state;
    Random random = {0};
    random_seed(&random, 1);
    for (int32_t n = 0; n < 20000; n++) {
        const MeasuredDevice *device = measured_device_find(names[n % 3]);
        ProductSize small = {.layout = (ProductLayout)(n / 3 % PRODUCT_LAYOUTS), .count = n % 4 ? 1 : 24};
        small.m = draw(&random, 1, 200000);
        small.n = draw(&random, 1, 200000);
        small.k = draw(&random, 1, 100000);
        ProductSize large = small;
        large.m += n % 5 ? draw(&random, 1, 3000) : 0;
        large.n += n % 7 ? draw(&random, 1, 3000) : 0;
        large.k += n % 3 ? draw(&random, 1, 3000) : 0;
        double less = measured_product_seconds(device, &small, peaks[n % 3]);
        double more = measured_product_seconds(device, &large, peaks[n % 3]);
        double flops = 2 * small.count * small.m * small.n * small.k;
        assert_true(less > 0);
        assert_true(less <= more);
        assert_true(less >= measured_product_bound(device, flops, peaks[n % 3]) * (1 - 1e-12));
    }
}

typedef struct Point {
    const char *device;
    ProductSize size;
    double microseconds;
} Point;

#define PRODUCT_POINT(device, layout, m, n, k, microseconds) \
    {#device, {PRODUCT_##layout, 1, m, n, k}, microseconds},
static const Point points[] = {
#include "cost/measured/product_points.def"
};

/* Returns whether a measured shape of the same device that is at least as large took less, or the reverse. */
static bool is_contradicted(const Point *point) {
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        const Point *other = &points[p];
        if (other->device[0] != point->device[0] || other->size.layout != point->size.layout) continue;
        bool is_larger = other->size.m >= point->size.m && other->size.n >= point->size.n &&
                         other->size.k >= point->size.k;
        bool is_smaller = other->size.m <= point->size.m && other->size.n <= point->size.n &&
                          other->size.k <= point->size.k;
        if (is_larger && other->microseconds < point->microseconds) return true;
        if (is_smaller && other->microseconds > point->microseconds) return true;
    }
    return false;
}

static void measured_products_take_the_measured_time(void **state) {
    (void)state;
    int32_t contradicted = 0, count = sizeof points / sizeof *points;
    double largest = 0;
    for (int32_t p = 0; p < count; p++) {
        double peak = points[p].device[0] == 'A' ? 312e12 : 2250e12;
        double seconds =
            measured_product_seconds(measured_device_find(points[p].device), &points[p].size, peak);
        double error = fabs(seconds * 1e6 / points[p].microseconds - 1);
        if (!is_contradicted(&points[p])) assert_true(error < 1e-9);
        else contradicted++;
        largest = fmax(largest, error);
    }
    print_message("%d of %d measured shapes contradict others; largest difference %.1f %%\n",
                  (int)contradicted, (int)count, 100 * largest);
    assert_true(contradicted < count / 4);
    assert_true(largest < 0.4);
}

static void a_step_of_a_program_takes_the_measured_time(void **state) {
    (void)state;
    ClusterDeviceType type = {.kernel_launch_seconds = 4e-6,
                              .memory_bytes_per_second = 1935e9,
                              .measured = measured_device_find("A100"),
                              .measured_rate = 1};
    type.flops_per_second[DTYPE_BF16] = 312e12;
    const Point *point = &points[0];
    assert_string_equal(point->device, "A100");
    OperatorWork work = {.flops = 2 * point->size.m * point->size.n * point->size.k,
                         .unit = OPERATOR_DOT,
                         .type = DTYPE_BF16,
                         .product = point->size,
                         .is_run = true};
    double whole = operator_seconds(&work, &type);
    assert_float_equal(whole * 1e6, 4 + point->microseconds, 1e-6);
    type.measured_rate = 2;
    assert_float_equal(operator_seconds(&work, &type) * 1e6, 4 + point->microseconds / 2, 1e-6);
    type.measured_rate = 1;
    work.flops /= 2; /* a part, of unknown sizes: at the best rate */
    assert_true(operator_seconds(&work, &type) < whole / 2 + 4e-6);
}

static void attention_grows_with_every_size(void **state) {
    (void)state;
    Random random = {0};
    random_seed(&random, 2);
    for (int32_t n = 0; n < 2000; n++) {
        const MeasuredDevice *device = measured_device_find(names[n % 3]);
        AttentionPass pass = (AttentionPass)(n / 3 % ATTENTION_PASSES);
        AttentionSize small = {.batch = draw(&random, 1, 64),
                               .heads = draw(&random, 1, 64),
                               .rows = draw(&random, 1, 100000),
                               .keys = draw(&random, 1, 100000),
                               .key_size = 128,
                               .value_size = 128,
                               .is_causal = true};
        AttentionSize large = small;
        large.rows *= 2;
        large.keys += 100;
        double less = measured_attention_seconds(device, pass, &small, peaks[n % 3]);
        assert_true(less > 0);
        assert_true(less < measured_attention_seconds(device, pass, &large, peaks[n % 3]));
        large = small;
        large.is_causal = false;
        assert_true(less < measured_attention_seconds(device, pass, &large, peaks[n % 3]));
    }
    /* A100, 32 heads of 128, 4,096 tokens: 1.132 of the peak without regard to the mask. */
    const AttentionSize known = {1, 32, 8, 4096, 4096, 128, 128, true};
    double share =
        4. * 32 * 4096 * 4096 * 128 / 312e12 /
        measured_attention_seconds(measured_device_find("A100"), ATTENTION_FORWARD, &known, 312e12);
    assert_true(share > 1.0 && share < 1.2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_larger_product_never_takes_less),
        cmocka_unit_test(measured_products_take_the_measured_time),
        cmocka_unit_test(a_step_of_a_program_takes_the_measured_time),
        cmocka_unit_test(attention_grows_with_every_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
