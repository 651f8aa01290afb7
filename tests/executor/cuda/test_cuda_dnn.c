/* base/cuda/dnn: convolutions of the three kinds in several layouts and types
 * beside sums on the host. Values are whole numbers, so results are equal
 * exactly. Skipped (77) in a build without CUDA and where there is neither a GPU
 * nor a stand-in, or no cuDNN. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/dnn.h"
#include "tests/support/device_case.h"
#include "tests/support/error_case.h"

typedef struct ConvolutionCase {
    const char *name;
    CudaConvolutionShape shape; /* without the output's sizes and without strides */
} ConvolutionCase;

#define SIZES(kind_, count, n, c, f)                                                                   \
    .kind = (kind_), .type = DTYPE_F32, .spatial_count = (count), .batch = (n), .input_features = (c), \
    .output_features = (f), .groups = 1
#define ONES \
    { 1, 1, 1 }
#define PLAIN .stride = ONES, .dilation = ONES

static const ConvolutionCase convolutions[] = {
    {"plain", {SIZES(0, 2, 2, 3, 4), PLAIN, .input_sizes = {7, 6}, .filter_sizes = {3, 2}}},
    {"features last",
     {SIZES(0, 2, 2, 3, 4), PLAIN, .features_last = true, .input_sizes = {7, 6}, .filter_sizes = {3, 2}}},
    {"padded",
     {SIZES(0, 2, 2, 3, 4), PLAIN, .input_sizes = {5, 6}, .filter_sizes = {3, 3}, .padding = {1, 2}}},
    {"strided",
     {SIZES(0, 2, 2, 3, 4), .stride = {2, 3}, .dilation = {2, 1}, .input_sizes = {9, 8},
      .filter_sizes = {3, 3}, .padding = {1, 1}}},
    {"turned", {SIZES(0, 2, 2, 3, 4), PLAIN, .flipped = true, .input_sizes = {5, 6}, .filter_sizes = {3, 2}}},
    {"one dimension", {SIZES(0, 1, 2, 3, 4), PLAIN, .input_sizes = {9}, .filter_sizes = {3}, .padding = {1}}},
    {"one dimension, features last",
     {SIZES(0, 1, 2, 3, 4), PLAIN, .features_last = true, .input_sizes = {9}, .filter_sizes = {3},
      .padding = {1}}},
    {"three dimensions",
     {SIZES(0, 3, 2, 2, 3), PLAIN, .input_sizes = {4, 5, 3}, .filter_sizes = {2, 3, 2},
      .padding = {1, 0, 1}}},
};
enum { CONVOLUTION_COUNT = sizeof convolutions / sizeof *convolutions };

/* Dense strides of [batch, features, spatial...] or, features last, of [batch, spatial..., features]. */
static void lay_densely(int64_t *strides, int64_t features, const int64_t *sizes, int32_t count, bool last) {
    int64_t stride = last ? features : 1;
    for (int32_t s = count - 1; s >= 0; s--) {
        strides[2 + s] = stride;
        stride *= sizes[s];
    }
    strides[1] = last ? 1 : stride;
    strides[0] = last ? stride : stride * features;
}

static void complete(CudaConvolutionShape *shape) {
    for (int32_t s = 0; s < shape->spatial_count; s++)
        shape->output_sizes[s] = (shape->input_sizes[s] + 2 * shape->padding[s] -
                                  ((shape->filter_sizes[s] - 1) * shape->dilation[s] + 1)) /
                                     shape->stride[s] +
                                 1;
    lay_densely(shape->input_strides, shape->input_features, shape->input_sizes, shape->spatial_count,
                shape->features_last);
    lay_densely(shape->output_strides, shape->output_features, shape->output_sizes, shape->spatial_count,
                shape->features_last);
}

static int64_t product_of(const int64_t *sizes, int32_t count) {
    int64_t product = 1;
    for (int32_t s = 0; s < count; s++) product *= sizes[s];
    return product;
}

/* Splits a number into indices of a box. */
static void split(int64_t *index, int64_t at, const int64_t *sizes, int32_t count) {
    for (int32_t s = count - 1; s >= 0; s--) {
        index[s] = at % sizes[s];
        at /= sizes[s];
    }
}

/* A sum, and that of its terms' sizes, which bounds its error. */
typedef struct Sum {
    double value, size;
} Sum;

static void add_term(Sum *sum, double left, double right) {
    sum->value += left * right;
    sum->size += fabs(left * right);
}

/* Adds to the array that the kind writes all products of the definition in dnn.h for one image, output
 * feature and input feature of its group. */
static void add_plane(const CudaConvolutionShape *shape, double *const *arrays, Sum *sums, int64_t n,
                      int64_t f, int64_t c) {
    int32_t count = shape->spatial_count;
    int64_t window = product_of(shape->filter_sizes, count), outputs = product_of(shape->output_sizes, count);
    int64_t in_group = shape->input_features / shape->groups, filter_strides[5];
    lay_densely(filter_strides, in_group, shape->filter_sizes, count, shape->features_last);
    int64_t feature = f / (shape->output_features / shape->groups) * in_group + c;
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t k = 0; k < window; k++) {
            int64_t out[3], in_window[3];
            split(out, o, shape->output_sizes, count);
            split(in_window, k, shape->filter_sizes, count);
            int64_t x = n * shape->input_strides[0] + feature * shape->input_strides[1];
            int64_t y = n * shape->output_strides[0] + f * shape->output_strides[1];
            int64_t w = f * filter_strides[0] + c * filter_strides[1];
            bool inside = true;
            for (int32_t s = 0; s < count; s++) {
                int64_t at = shape->flipped ? shape->filter_sizes[s] - 1 - in_window[s] : in_window[s];
                int64_t place = out[s] * shape->stride[s] + at * shape->dilation[s] - shape->padding[s];
                inside = inside && place >= 0 && place < shape->input_sizes[s];
                x += place * shape->input_strides[2 + s];
                y += out[s] * shape->output_strides[2 + s];
                w += in_window[s] * filter_strides[2 + s];
            }
            if (!inside) continue;
            if (shape->kind == CUDA_CONVOLUTION_FORWARD) add_term(&sums[y], arrays[0][x], arrays[1][w]);
            else if (shape->kind == CUDA_CONVOLUTION_INPUT_GRADIENT)
                add_term(&sums[x], arrays[2][y], arrays[1][w]);
            else add_term(&sums[w], arrays[0][x], arrays[2][y]);
        }
}

/* Sums of whole numbers are exact in any order. For 16-bit ones the library may use a transform, whose
 * coefficients it rounds to the type. */
static void compare_sums(const CudaConvolutionShape *shape, const double *values, const Sum *sums,
                         int64_t count, const char *name) {
    CaseError error = {case_unit(shape->type), 0, 0};
    bool exact = shape->type == DTYPE_F32 || shape->type == DTYPE_F64;
    for (int64_t k = 0; k < count; k++)
        if (!(exact ? values[k] == sums[k].value
                    : case_bounds(&error, values[k], sums[k].value, sums[k].size)))
            fail_msg("%s, kind %d: element %d is %g, not %g", name, (int)shape->kind, (int)k, values[k],
                     sums[k].value);
    if (!case_bounds_mean(&error))
        fail_msg("%s, kind %d: mean error %g", name, (int)shape->kind, error.sum / error.size);
}

static void check_convolution(DeviceCase *device, CudaDnn *dnn, const CudaConvolutionShape *shape,
                              const char *name, Random *random, DeviceRefusals *refusals) {
    static const int32_t written[] = {2, 0, 1}; /* of x, w, y, by kind */
    int32_t count = shape->spatial_count, target = written[shape->kind];
    CudaConvolution *convolution, *again;
    AmStatus status = cuda_convolution_make(&convolution, dnn, shape, &device->error);
    if (!device_makes(refusals, status, device, name)) return;
    device_check(cuda_convolution_make(&again, dnn, shape, &device->error), device);
    assert_ptr_equal(convolution, again);
    const int64_t elements[] = {shape->batch * shape->input_features * product_of(shape->input_sizes, count),
                                shape->output_features * (shape->input_features / shape->groups) *
                                    product_of(shape->filter_sizes, count),
                                shape->batch * shape->output_features *
                                    product_of(shape->output_sizes, count)};
    DeviceArray arrays[3];
    double *values[3];
    Sum *sums = calloc((size_t)elements[target], sizeof *sums);
    for (int32_t k = 0; k < 3; k++) {
        arrays[k] = device_array(device, shape->type, elements[k], k == target ? NULL : random);
        values[k] = arrays[k].values;
    }
    DeviceArray workspace =
        device_array(device, DTYPE_F32, cuda_convolution_workspace(convolution) / 4 + 1, NULL);
    CudaConvolutionBuffers buffers = {.input = device_address(&arrays[0]),
                                      .filter = device_address(&arrays[1]),
                                      .output = device_address(&arrays[2]),
                                      .workspace = device_address(&workspace)};
    device_check(cuda_convolution_run(convolution, device->stream, &buffers, &device->error), device);
    device_get(device, &arrays[target]);
    for (int64_t n = 0; n < shape->batch; n++)
        for (int64_t f = 0; f < shape->output_features; f++)
            for (int64_t c = 0; c < shape->input_features / shape->groups; c++)
                add_plane(shape, values, sums, n, f, c);
    compare_sums(shape, arrays[target].values, sums, elements[target], name);
    for (int32_t k = 0; k < 3; k++) device_release(&arrays[k]);
    device_release(&workspace);
    free(sums);
}

static void open_both(DeviceCase *device, CudaDnn **dnn) {
    device_open(device);
    device_check(cuda_dnn_open(dnn, &device->error), device);
}

static void close_both(DeviceCase *device, CudaDnn *dnn) {
    cuda_dnn_close(dnn);
    device_close(device);
}

static void test_kinds_and_layouts(void **state) {
    (void)state;
    DeviceCase device;
    DeviceRefusals refusals = {0};
    CudaDnn *dnn;
    Random random;
    random_seed(&random, 1);
    open_both(&device, &dnn);
    for (int32_t k = 0; k < CONVOLUTION_COUNT; k++)
        for (int32_t kind = 0; kind < CUDA_CONVOLUTION_KIND_COUNT; kind++) {
            CudaConvolutionShape shape = convolutions[k].shape;
            shape.kind = (CudaConvolutionKind)kind;
            complete(&shape);
            check_convolution(&device, dnn, &shape, convolutions[k].name, &random, &refusals);
        }
    device_report(&refusals);
    assert_true(cuda_dnn_version() >= 90000);
    close_both(&device, dnn);
    cuda_dnn_close(NULL);
}

static void test_groups_and_types(void **state) {
    (void)state;
    static const Dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16};
    DeviceCase device;
    DeviceRefusals refusals = {0};
    CudaDnn *dnn;
    Random random;
    random_seed(&random, 2);
    open_both(&device, &dnn);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (int32_t kind = 0; kind < CUDA_CONVOLUTION_KIND_COUNT; kind++) {
            CudaConvolutionShape shape = {SIZES((CudaConvolutionKind)kind, 2, 2, 4, 6), PLAIN,
                                          .input_sizes = {6, 5}, .filter_sizes = {3, 3}, .padding = {1, 1}};
            shape.type = types[k];
            shape.groups = types[k] == DTYPE_F32 ? 2 : 1;
            complete(&shape);
            check_convolution(&device, dnn, &shape, dtype_name(types[k]), &random, &refusals);
        }
    device_report(&refusals);
    close_both(&device, dnn);
}

/* (1 + 2^-12)^2 is 1 + 2^-11 + 2^-24; tf32 keeps 1. */
static void test_tf32_is_an_option(void **state) {
    (void)state;
    DeviceCase device;
    DeviceRefusals refusals = {0};
    CudaDnn *dnn;
    open_both(&device, &dnn);
    for (int32_t tf32 = 0; tf32 < 2; tf32++) {
        CudaConvolutionShape shape = {SIZES(0, 2, 1, 8, 8),  PLAIN,
                                      .tf32 = tf32,          .features_last = true,
                                      .input_sizes = {8, 8}, .filter_sizes = {1, 1}};
        CudaConvolution *convolution;
        complete(&shape);
        AmStatus status = cuda_convolution_make(&convolution, dnn, &shape, &device.error);
        if (!device_makes(&refusals, status, &device, tf32 ? "tf32" : "f32")) continue;
        DeviceArray x = device_array(&device, DTYPE_F32, 512, NULL),
                    w = device_array(&device, DTYPE_F32, 64, NULL);
        DeviceArray y = device_array(&device, DTYPE_F32, 512, NULL);
        DeviceArray workspace =
            device_array(&device, DTYPE_F32, cuda_convolution_workspace(convolution) / 4 + 1, NULL);
        for (int32_t k = 0; k < 512; k++) x.values[k] = 1 + 0x1p-12;
        for (int32_t k = 0; k < 64; k++) w.values[k] = k % 9 == 0 ? 1 + 0x1p-12 : 0;
        device_put(&device, &x);
        device_put(&device, &w);
        CudaConvolutionBuffers buffers = {.input = device_address(&x),
                                          .filter = device_address(&w),
                                          .output = device_address(&y),
                                          .workspace = device_address(&workspace)};
        device_check(cuda_convolution_run(convolution, device.stream, &buffers, &device.error), &device);
        device_get(&device, &y);
        double exact = (1 + 0x1p-12) * (1 + 0x1p-12);
        /* The library may use tf32, or not. */
        bool shortened = tf32 && y.values[0] == 1;
        if (!shortened) assert_true(y.values[0] == (double)(float)exact);
        if (tf32 && stand_in() && !getenv("STAND_IN_PERTURB")) assert_true(shortened);
        DeviceArray *arrays[] = {&x, &w, &y, &workspace};
        for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) device_release(arrays[k]);
    }
    device_report(&refusals);
    close_both(&device, dnn);
}

static void test_refusals(void **state) {
    (void)state;
    DeviceCase device;
    CudaDnn *dnn;
    CudaConvolution *convolution;
    CudaConvolutionShape good = convolutions[0].shape;
    complete(&good);
    open_both(&device, &dnn);
    CudaConvolutionShape wrong[] = {good, good, good, good, good};
    wrong[0].output_sizes[0]++;
    wrong[1].type = DTYPE_S32;
    wrong[2].padding[1] = -1;
    wrong[3].groups = 2;
    wrong[4].spatial_count = 0;
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        AmError error = {0};
        assert_int_equal(cuda_convolution_make(&convolution, dnn, &wrong[k], &error), AM_ERROR_INPUT);
        assert_non_null(strstr(error.text, "no convolution by cuDNN"));
        assert_null(convolution);
    }
    /* The workspace may be limited, and then nothing may be left. */
    good.workspace_limit = 1;
    AmStatus status = cuda_convolution_make(&convolution, dnn, &good, NULL);
    assert_true(status == AM_ERROR_INPUT ||
                (status == AM_OK && cuda_convolution_workspace(convolution) <= 256));
    close_both(&device, dnn);
}

/* A candidate that is refused is followed by the next, in the trial or, if there is no memory for that, in
 * the first run. */
static void test_next_candidates(void **state) {
    (void)state;
    enum { SIZE = 16 };
    const StandIn *stand = stand_in();
    DeviceCase device;
    CudaDnn *dnn;
    if (!stand) skip();
    device_open(&device);
    device_check(cuda_dnn_open(&dnn, &device.error), &device);
    DeviceArray x = device_array(&device, DTYPE_F16, SIZE, NULL),
                w = device_array(&device, DTYPE_F16, 1, NULL);
    DeviceArray y = device_array(&device, DTYPE_F16, SIZE, NULL);
    DeviceArray workspace = device_array(&device, DTYPE_F32, 4096, NULL);
    x.values[3] = 5;
    w.values[0] = 3;
    device_put(&device, &x);
    device_put(&device, &w);
    const CudaConvolutionBuffers buffers = {.input = device_address(&x),
                                            .filter = device_address(&w),
                                            .output = device_address(&y),
                                            .workspace = device_address(&workspace)};
    for (int32_t has_memory = 0; has_memory < 2; has_memory++) {
        const CudaConvolutionShape shape = {.type = DTYPE_F16,
                                            .spatial_count = 1,
                                            .batch = 1,
                                            .input_features = 1,
                                            .output_features = 1,
                                            .groups = 1,
                                            .input_sizes = {SIZE},
                                            .filter_sizes = {1},
                                            .output_sizes = {SIZE},
                                            .stride = {1},
                                            .dilation = {1},
                                            .input_strides = {SIZE, SIZE, 1},
                                            .output_strides = {SIZE, SIZE, 1},
                                            .workspace_limit = 16000 + has_memory};
        CudaConvolution *convolution;
        stand->reset();
        (stand->fail)(has_memory ? "cudnnConvolutionForward=3000#1" : "cuMemAlloc=2");
        device_check(cuda_convolution_make(&convolution, dnn, &shape, &device.error), &device);
        assert_int_equal(cuda_convolution_is_tried(convolution), has_memory);
        assert_true(cuda_convolution_workspace(convolution) <= 4 * 4096);
        (stand->fail)(has_memory ? "" : "cudnnConvolutionForward=3000#1");
        device_check(cuda_convolution_run(convolution, device.stream, &buffers, &device.error), &device);
        device_get(&device, &y);
        assert_true(cuda_convolution_is_tried(convolution) && y.values[3] == 15);
        assert_int_equal(stand->count("cudnnConvolutionForward"), 2 + has_memory);
        (stand->fail)("cudnnConvolutionForward=3000"); /* the algorithm stays */
        assert_int_equal(cuda_convolution_run(convolution, device.stream, &buffers, NULL), AM_ERROR_RUNTIME);
        (stand->fail)("");
    }
    DeviceArray *arrays[] = {&x, &w, &y, &workspace};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) device_release(arrays[k]);
    cuda_dnn_close(dnn);
    device_close(&device);
}

static void test_failures(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    DeviceCase device;
    CudaDnn *dnn;
    CudaConvolution *convolution;
    AmError error = {0};
    if (!stand) skip();
    CudaConvolutionShape shape = convolutions[0].shape;
    complete(&shape);
    device_open(&device);
    (stand->fail)("cudnnCreate=1001");
    assert_int_equal(cuda_dnn_open(&dnn, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "cuDNN: no handle: not initialized"));
    assert_null(dnn);
    (stand->fail)("");
    device_check(cuda_dnn_open(&dnn, &device.error), &device);
    (stand->fail)("cudnnGetConvolutionForwardAlgorithm_v7=3000");
    assert_int_equal(cuda_convolution_make(&convolution, dnn, &shape, NULL), AM_ERROR_INPUT);
    (stand->fail)("");
    device_check(cuda_convolution_make(&convolution, dnn, &shape, &device.error), &device);
    int32_t host = 0; /* no device memory, as the library will find */
    CudaConvolutionBuffers buffers = {.input = &host, .filter = &host, .output = &host};
    assert_int_equal(cuda_convolution_run(convolution, device.stream, &buffers, NULL), AM_ERROR_RUNTIME);
    close_both(&device, dnn);
}

int main(void) {
    DeviceCase device = {0};
    CudaDnn *dnn = NULL;
    bool present = cuda_device_open(&device.device, 0, &device.error) == AM_OK &&
                   cuda_dnn_open(&dnn, &device.error) == AM_OK;
    cuda_dnn_close(dnn);
    cuda_device_close(&device.device);
    if (!present) {
        printf("skipped: %s\n", device.error.text);
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_and_layouts), cmocka_unit_test(test_groups_and_types),
        cmocka_unit_test(test_tf32_is_an_option), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_next_candidates),   cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
