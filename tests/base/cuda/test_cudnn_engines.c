/* cost: 20 seconds */
/* The graphs of fused attention in the real cuDNN, for described devices: no card is needed. cuDNN's
 * heuristic lists the engines that support a graph, after it has generated their kernels. Nothing runs.
 * Skipped (77) without cuDNN 9.8 or later, and in a build without CUDA. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "base/cuda/dnn_attention.h"

/* An H200, as cuDNN describes it. */
static const char device[] =
    "{\"deviceName\":\"NVIDIA H200\",\"cudaDeviceId\":0,\"deviceVer\":900,\"multiProcessorCount\":132,"
    "\"driverVer\":13000,\"maxSharedMemoryPerBlockOptin\":232448,\"totalGlobalMem\":150000000000,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"pciDeviceId\":0,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"isTccDriver\":0,\"supportCoopLaunch\":1}";

typedef struct Form {
    const char *name;
    Dtype type;
    int64_t batch, heads, key_heads, rows, keys, width;
    bool is_backward, is_causal, has_bias, has_sums;
    int64_t window; /* 0: all keys */
} Form;

/* Arrays [batch, line, head, width], as training steps have them. */
static void describe(CudaAttentionShape *shape, const Form *form) {
    *shape = (CudaAttentionShape){.is_backward = form->is_backward,
                                  .type = form->type,
                                  .bias_type = DTYPE_F32,
                                  .batch = form->batch,
                                  .heads = form->heads,
                                  .key_heads = form->key_heads,
                                  .rows = form->rows,
                                  .keys = form->keys,
                                  .width = form->width,
                                  .scale = 0.125,
                                  .has_last = form->is_causal,
                                  .has_first = form->window > 0,
                                  .first = form->window - 1};
    for (int32_t k = 0; k < ATTENTION_ARRAY_COUNT; k++) {
        bool is_key = k == ATTENTION_KEYS || k == ATTENTION_VALUES || k == ATTENTION_KEY_GRADIENT ||
                      k == ATTENTION_VALUE_GRADIENT;
        bool is_row = k == ATTENTION_LOG_SUM || k == ATTENTION_MAXIMUM || k == ATTENTION_SUM;
        int64_t heads = is_key ? form->key_heads : form->heads, lines = is_key ? form->keys : form->rows;
        int64_t *strides = shape->strides[k];
        strides[0] = is_row ? heads * lines : lines * heads * form->width;
        strides[1] = is_row ? lines : form->width;
        strides[2] = is_row ? 1 : heads * form->width;
        strides[3] = 1;
    }
    const int64_t sizes[DNN_RANK] = {1, form->heads, form->rows, form->keys};
    const int64_t strides[DNN_RANK] = {form->heads * form->rows * form->keys, form->rows * form->keys,
                                       form->keys, 1};
    memcpy(shape->bias_sizes, sizes, sizeof sizes);
    memcpy(shape->strides[ATTENTION_BIAS], strides, sizeof strides);
    shape->uses[ATTENTION_BIAS] = form->has_bias;
    shape->uses[ATTENTION_LOG_SUM] = !form->has_sums;
    shape->uses[ATTENTION_MAXIMUM] = shape->uses[ATTENTION_SUM] = form->has_sums;
}

/* Every form has an engine that gives equal bits in equal runs. */
static void test_engines(void **state) {
    static const Form forms[] = {
        {"plain", DTYPE_BF16, 8, 12, 12, 1024, 1024, 64, .is_backward = false},
        {"causal", DTYPE_BF16, 8, 12, 12, 1024, 1024, 64, .is_causal = true, .has_sums = true},
        {"window", DTYPE_BF16, 2, 4, 4, 256, 256, 64, .is_causal = true, .window = 100},
        {"groups", DTYPE_F16, 2, 8, 2, 512, 512, 128, .is_causal = true, .has_sums = true},
        {"odd sizes", DTYPE_BF16, 2, 3, 3, 100, 77, 8, .is_backward = false},
        {"bias", DTYPE_BF16, 2, 4, 4, 128, 128, 64, .has_bias = true},
        {"gradients", DTYPE_BF16, 8, 12, 12, 1024, 1024, 64, true, .is_causal = true},
        {"gradients of groups", DTYPE_BF16, 2, 8, 2, 363, 363, 128, true, .is_causal = true},
        {"gradients in a window", DTYPE_F16, 2, 4, 4, 256, 256, 64, true, .is_causal = true, .window = 100},
    };
    (void)state;
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
        CudaAttentionShape shape;
        AmError error = {0};
        describe(&shape, &forms[k]);
        if (cuda_attention_check(&shape, device, &error) != AM_OK)
            fail_msg("%s: %s", forms[k].name, error.text);
    }
}

/* A graph that no fused engine has: the test above can fail. */
static void test_refusal(void **state) {
    static const int64_t sizes[DNN_RANK] = {2, 4, 64, 64}, strides[DNN_RANK] = {16384, 4096, 64, 1};
    DnnGraph *graph;
    AmError error = {0};
    (void)state;
    assert_int_equal(dnn_graph_open(&graph, &error), AM_OK);
    int32_t a = dnn_graph_array(graph, DTYPE_BF16, sizes, strides);
    int32_t b = dnn_graph_array(graph, DTYPE_BF16, sizes, strides);
    int32_t product = dnn_graph_virtual(graph, DTYPE_F32, sizes), last = product;
    dnn_graph_multiply_matrices(graph, a, b, product);
    for (int32_t k = 0; k < 2; k++) {
        int32_t weights = dnn_graph_virtual(graph, DTYPE_BF16, sizes),
                next = dnn_graph_virtual(graph, DTYPE_F32, sizes);
        dnn_graph_pointwise(graph, DNN_EXPONENTIAL, last, -1, -1, weights);
        dnn_graph_multiply_matrices(graph, weights, b, next);
        last = next;
    }
    dnn_graph_pointwise(graph, DNN_LOGARITHM, last, -1, -1,
                        dnn_graph_array(graph, DTYPE_BF16, sizes, strides));
    assert_int_equal(dnn_graph_plan(graph, NULL, device, &error), AM_ERROR_INPUT);
    dnn_graph_close(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_engines), cmocka_unit_test(test_refusal)};
    AmError error = {0};
    if (cuda_dnn_version() < 90800) {
        AmStatus status = cuda_dnn_open(&(CudaDnn *){NULL}, &error);
        printf("skipped: %s\n", status != AM_OK ? error.text : "cuDNN 9.8 or later is needed");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
