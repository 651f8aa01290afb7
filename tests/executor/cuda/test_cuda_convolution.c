/* convolution on a CUDA device: windows, layouts and types beside the CPU, each
 * by the function of cuDNN that it is a case of; tf32; what happens without
 * cuDNN. Values are whole numbers, so results are equal; those of 16 bits within an error bound. Skipped (77)
 * in a build without CUDA and where there is neither a GPU nor a stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/gpu_present.h"
#include "tests/support/product_device.h"

enum { ROW_COUNT = sizeof convolution_rows / sizeof *convolution_rows };

static int64_t count_of(const char *form) {
    char name[64];
    snprintf(name, sizeof name, "cudnnConvolution%s", form);
    return product_count(name);
}

static void test_forms(void **state) {
    (void)state;
    static const char *const forms[] = {"Forward", "BackwardData", "BackwardFilter"};
    ProductDevice device;
    Random random;
    random_seed(&random, 1);
    product_device_open(&device, false);
    for (int32_t k = 0; k < ROW_COUNT; k++)
        product_device_add(&device, convolution_case(&convolution_rows[k], &random));
    product_device_finish(&device);
    for (int32_t k = 0; k < ROW_COUNT; k++) {
        const ConvolutionCase *row = &convolution_rows[k];
        int64_t before[3], kernels = product_count("cuLaunchKernel");
        for (int32_t f = 0; f < 3; f++) before[f] = count_of(forms[f]);
        product_device_compare(&device, k, row->name);
        if (!stand_in()) continue;
        for (int32_t f = 0; f < 3; f++) {
            bool expected = row->form && strcmp(row->form, forms[f]) == 0;
            if (count_of(forms[f]) - before[f] != expected)
                fail_msg("%s: %d times %s", row->name, (int)(count_of(forms[f]) - before[f]), forms[f]);
        }
        kernels = product_count("cuLaunchKernel") - kernels;
        if (kernels != row->kernels)
            fail_msg("%s: %d kernels, not %d", row->name, (int)kernels, row->kernels);
    }
    product_device_close(&device);
}

/* Random windows on two layouts: any stride, dilation, padding and direction. */
static void test_random_windows(void **state) {
    (void)state;
    enum { COUNT = 24 };
    ProductDevice device;
    Random random;
    random_seed(&random, 2);
    product_device_open(&device, false);
    for (int32_t n = 0; n < COUNT; n++) {
        ConvolutionCase row = {.name = "random",
                               .type = F32,
                               .input_labels = n % 2 ? "b01f" : "bf01",
                               .kernel_labels = n % 3 ? "01io" : "oi01",
                               .output_labels = n % 2 ? "b01f" : "bf01"};
        for (int32_t s = 0; s < 2; s++) {
            bool turns = random_below(&random, 6) == 0;
            row.window[s] = (IrWindowDimension){.stride = 1 + (int64_t)random_below(&random, 2),
                                                .window_dilation = 1 + (int64_t)random_below(&random, 2),
                                                .base_dilation = 1 + (int64_t)random_below(&random, 2),
                                                .padding_low = (int64_t)random_below(&random, 4) - 1,
                                                .padding_high = (int64_t)random_below(&random, 4) - 1,
                                                .reversal = turns};
            row.input[label_at(row.input_labels, (char)('0' + s))] = 5 + (int64_t)random_below(&random, 4);
            row.kernel[label_at(row.kernel_labels, (char)('0' + s))] = 1 + (int64_t)random_below(&random, 2);
        }
        if (n % 4 > 0) row.window[0].base_dilation = row.window[1].base_dilation = 1;
        if (n % 4 == 0) row.window[0].stride = row.window[1].stride = 1;
        row.feature_groups = 1 + (int64_t)random_below(&random, 2);
        row.input[label_at(row.input_labels, 'b')] = 2;
        row.input[label_at(row.input_labels, 'f')] = 4;
        row.kernel[label_at(row.kernel_labels, 'i')] = 4 / row.feature_groups;
        row.kernel[label_at(row.kernel_labels, 'o')] = 2;
        product_device_add(&device, convolution_case(&row, &random));
    }
    product_device_finish(&device);
    for (int32_t k = 0; k < COUNT; k++) product_device_compare(&device, k, "a random convolution");
    product_device_close(&device);
}

/* Without cuDNN, and for shapes that it lacks, results are equal. */
static void test_without_the_library(void **state) {
    (void)state;
    static const char *const failures[] = {"cudnnCreate=1001", "cudnnGetConvolutionForwardAlgorithm_v7=3000"};
    static const char *const warned[] = {"convolutions run as plain kernels, slowly: cuDNN: no handle",
                                         "2 convolutions run as generated kernels, slowly; the first is "
                                         "'convolution': no convolution by cuDNN"};
    const StandIn *stand = stand_in();
    if (!stand) skip();
    for (size_t k = 0; k < sizeof failures / sizeof *failures; k++) {
        ProductDevice device;
        Random random;
        random_seed(&random, 3);
        product_device_open(&device, false);
        (stand->fail)(failures[k]);
        for (int32_t n = 0; n < 2; n++)
            product_device_add(&device, convolution_case(&convolution_rows[0], &random));
        (stand->fail)("");
        assert_int_equal(device.warnings.count, 1);
        if (!strstr(device.warnings.texts[0], warned[k])) fail_msg("warned: %s", device.warnings.texts[0]);
        product_device_finish(&device);
        int64_t before = count_of("Forward");
        product_device_compare(&device, 0, failures[k]);
        assert_int_equal(count_of("Forward"), before);
        product_device_close(&device);
    }
}

/* All forms give the same results if the library refuses to run algorithms of its heuristic. */
static void test_refused_when_called(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    ProductDevice device;
    Random random;
    if (!stand) skip();
    random_seed(&random, 5);
    product_device_open(&device, false);
    (stand->refuse)(
        "1:50:cudnnConvolutionForward,cudnnConvolutionBackwardData,cudnnConvolutionBackwardFilter");
    for (int32_t k = 0; k < ROW_COUNT; k++)
        product_device_add(&device, convolution_case(&convolution_rows[k], &random));
    assert_int_equal(device.warnings.count, 1);
    assert_non_null(strstr(device.warnings.texts[0], "convolutions run as generated kernels, slowly"));
    product_device_finish(&device);
    for (int32_t k = 0; k < ROW_COUNT; k++) product_device_compare(&device, k, convolution_rows[k].name);
    (stand->refuse)("");
    product_device_close(&device);
}

/* Without a trial, and with all algorithms refused when they are first run, the generated kernels run. */
static void test_refused_in_the_first_run(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    ProductDevice device;
    Random random;
    if (!stand) skip();
    random_seed(&random, 6);
    product_device_open(&device, false);
    for (int32_t k = 0; k < ROW_COUNT; k++)
        product_device_add_untried(&device, convolution_case(&convolution_rows[k], &random));
    /* Convolutions without a form of cuDNN have the second warning already. */
    assert_int_equal(device.warnings.count, 2);
    assert_non_null(strstr(device.warnings.texts[0], "no memory to try cuDNN's algorithms"));
    int lacking = atoi(device.warnings.texts[1]);
    product_device_finish(&device);
    (stand->refuse)(
        "0:100:cudnnConvolutionForward,cudnnConvolutionBackwardData,cudnnConvolutionBackwardFilter");
    for (int32_t k = 0; k < ROW_COUNT; k++) product_device_compare(&device, k, convolution_rows[k].name);
    (stand->refuse)("");
    cuda_state_refusals(cuda_device_of(device.device));
    assert_int_equal(device.warnings.count, 2);
    assert_non_null(strstr(device.warnings.texts[1], "convolutions run as generated kernels, slowly"));
    if (atoi(device.warnings.texts[1]) < lacking + 20) fail_msg("%s", device.warnings.texts[1]);
    product_device_close(&device);
}

/* Convolutions that the CPU refuses are refused here. */
static void test_refusals(void **state) {
    (void)state;
    static const ConvolutionCase row = {
        "integers into f32", DTYPE_S32,    0,          F32, "b01f", "01io", "b01f",
        {1, 3, 3, 1},        {2, 2, 1, 1}, {{0}, {0}}, 0,   0,      NULL,   0};
    ProductDevice device;
    Random random;
    random_seed(&random, 4);
    product_device_open(&device, false);
    KernelCase *c = convolution_case(&row, &random);
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    assert_int_equal(kernel_prepare(&call, &c->arena, device.device, &c->program, &step, &c->error),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(c->error.text, "not on these types"));
    case_free(c);
    product_device_close(&device);
}

int main(void) {
    if (!gpu_is_present()) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms),
                                       cmocka_unit_test(test_random_windows),
                                       cmocka_unit_test(test_without_the_library),
                                       cmocka_unit_test(test_refused_when_called),
                                       cmocka_unit_test(test_refused_in_the_first_run),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
