/* Pooling and its gradient against their definition, over random windows, on whole numbers with many ties;
 * alone and by a team of three. */
#include "tests/support/kernel_case.h"

#include <math.h>

#include "base/random.h"

enum { RANK = 4, CONFIGURATIONS = 300, MAXIMUM, MINIMUM, SUM, GRADIENT };

typedef struct Windows {
    IrWindowDimension window[RANK];
    int64_t input[RANK], output[RANK];
} Windows;

static int64_t between(Random *random, int64_t low, int64_t high) {
    return low + random_below(random, high - low + 1);
}

/* Features last or first, now and then more of them than are worked on together; false: nothing fits. */
static bool draw(Random *random, Windows *w) {
    bool last = between(random, 0, 2) > 0;
    for (int32_t d = 0; d < RANK; d++) {
        bool is_spatial = last ? d == 1 || d == 2 : d >= 2;
        int64_t size =
            is_spatial ? between(random, 1, 9) : between(random, 1, between(random, 0, 5) ? 20 : 130);
        if (d == 3 && last && between(random, 0, 30) == 0) size = 5000;
        if (d == 0) size = between(random, 1, 5);
        w->window[d] = (IrWindowDimension){.size = 1, .stride = 1, .window_dilation = 1, .base_dilation = 1};
        if (is_spatial || between(random, 0, 15) == 0)
            w->window[d] = (IrWindowDimension){.size = between(random, 1, 4),
                                               .stride = between(random, 1, 3),
                                               .padding_low = between(random, 0, 2),
                                               .padding_high = between(random, 0, 2),
                                               .window_dilation = between(random, 0, 3) ? 1 : 2,
                                               .base_dilation = between(random, 0, 7) ? 1 : 2};
        const IrWindowDimension *window = &w->window[d];
        int64_t base = (size - 1) * window->base_dilation + 1 + window->padding_low + window->padding_high;
        int64_t reach = (window->size - 1) * window->window_dilation + 1;
        if (base < reach) return false;
        w->input[d] = size;
        w->output[d] = (base - reach) / window->stride + 1;
    }
    return true;
}

static int64_t product(const int64_t *sizes) {
    return sizes[0] * sizes[1] * sizes[2] * sizes[3];
}

static int64_t elements_of(const int64_t *sizes, const int64_t *index) {
    return ((index[0] * sizes[1] + index[1]) * sizes[2] + index[2]) * sizes[3] + index[3];
}

static bool advance(int64_t *index, const int64_t *sizes) {
    for (int32_t d = RANK - 1; d >= 0; d--) {
        if (++index[d] < sizes[d]) return true;
        index[d] = 0;
    }
    return false;
}

/* Element that a cell of the window at `place` reads, or -1. */
static int64_t cell_element(const Windows *w, const int64_t *place, const int64_t *cell) {
    int64_t index[RANK];
    for (int32_t d = 0; d < RANK; d++) {
        const IrWindowDimension *window = &w->window[d];
        int64_t at = place[d] * window->stride + cell[d] * window->window_dilation - window->padding_low;
        if (at < 0 || at % window->base_dilation || at / window->base_dilation >= w->input[d]) return -1;
        index[d] = at / window->base_dilation;
    }
    return elements_of(w->input, index);
}

static float fold(int what, float a, float b) {
    return what == SUM ? a + b : (what == MAXIMUM ? a > b : a < b) || isnan(a) ? a : b;
}

static void compute(const Windows *w, int what, const float *in, const float *source, float begin,
                    bool strict, float *out) {
    int64_t place[RANK] = {0}, sizes[RANK], p = 0;
    for (int32_t d = 0; d < RANK; d++) sizes[d] = w->window[d].size;
    for (int64_t i = 0; what == GRADIENT && i < product(w->input); i++) out[i] = begin;
    do {
        int64_t cell[RANK] = {0}, best = -1;
        float value = begin;
        do {
            int64_t at = cell_element(w, place, cell);
            if (what != GRADIENT) value = fold(what, value, at < 0 ? begin : in[at]);
            else if (at >= 0 && (best < 0 || !(strict ? in[best] > in[at] : in[best] >= in[at]))) best = at;
        } while (advance(cell, sizes));
        if (what != GRADIENT) out[p] = value;
        else if (best >= 0) out[best] += source[p];
        p++;
    } while (advance(place, w->output));
}

static void check(KernelDevice *device, const Windows *w, int what, float begin, bool strict, uint32_t seed) {
    KernelCase *c = case_new(what == GRADIENT ? IR_SELECT_AND_SCATTER : IR_REDUCE_WINDOW);
    c->device = device;
    int32_t x = case_value(c, DTYPE_F32, RANK, w->input), source = -1;
    if (what == GRADIENT) source = case_value(c, DTYPE_F32, RANK, w->output);
    int32_t initial = case_value(c, DTYPE_F32, 0, NULL);
    int32_t y = case_value(c, DTYPE_F32, RANK, what == GRADIENT ? w->input : w->output);
    IrAttributes comparison = {.comparison = strict ? "GT" : "GE"};
    c->attributes = (IrAttributes){.window = w->window, .window_count = RANK};
    if (what == GRADIENT) {
        c->instruction.compute.called = case_computation(c, IR_COMPARE, DTYPE_F32, DTYPE_PRED);
        c->body[2].attributes = &comparison;
        c->instruction.compute.called_second = case_computation(c, IR_ADD, DTYPE_F32, DTYPE_F32);
        case_fill(c, source, seed + 1);
    } else {
        IrOpcode opcode = what == MAXIMUM ? IR_MAXIMUM : what == MINIMUM ? IR_MINIMUM : IR_ADD;
        c->instruction.compute.called = case_computation(c, opcode, DTYPE_F32, DTYPE_F32);
    }
    case_fill(c, x, seed);
    if (seed % 7 == 0) case_floats(c, x)[product(w->input) / 2] = NAN;
    case_floats(c, initial)[0] = begin;
    int64_t count = product(what == GRADIENT ? w->input : w->output);
    float *expected = malloc(sizeof(float) * (size_t)count);
    compute(w, what, case_floats(c, x), source < 0 ? NULL : case_floats(c, source), begin, strict, expected);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int64_t i = 0; i < count; i++) {
        float is = case_floats(c, y)[i];
        if (is != expected[i] && !(isnan(is) && isnan(expected[i])))
            fail_msg("operator %d, configuration %u: element %lld is %g instead of %g", what, seed,
                     (long long)i, (double)is, (double)expected[i]);
    }
    free(expected);
    case_free(c);
}

static void check_by(KernelDevice *device) {
    Random random;
    random_seed(&random, 3);
    for (uint32_t n = 0; n < CONFIGURATIONS; n++) {
        Windows windows;
        if (!draw(&random, &windows)) continue;
        int what = (int)between(&random, MAXIMUM, GRADIENT);
        float begin = between(&random, 0, 1) ? 2
                      : what == MAXIMUM      ? -INFINITY
                      : what == MINIMUM      ? INFINITY
                                             : 0;
        check(device, &windows, what, begin, n % 2 == 0, n);
    }
}

static void test_pooling(void **state) {
    (void)state;
    check_by(NULL);
}

static void test_pooling_by_a_team(void **state) {
    (void)state;
    KernelDevice *device;
    AmError error = {0};
    KernelOptions options = {.threads = 3, .ranks_here = 1};
    assert_int_equal(kernels_cpu.open(&device, &options, &error), AM_OK);
    assert_int_equal(kernels_cpu.finish(device, &error), AM_OK);
    check_by(device);
    kernels_cpu.close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pooling),
        cmocka_unit_test(test_pooling_by_a_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
