/* base/cuda/blas: products in every layout, type and with every epilogue beside
 * sums on the host. Values are whole numbers, whose sums are exact in any order, so
 * results are equal exactly. Refusals of the library are counted and printed.
 * Skipped (77) in a build without CUDA and where there is neither a GPU nor a
 * stand-in. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "base/cuda/blas.h"
#include "tests/support/device_case.h"
#include "tests/support/gpu_present.h"

typedef struct ProductCase {
    const char *name;
    CudaProductShape shape;
} ProductCase;

#define SCALED(b, m, n, k, factor, old) \
    .batch = (b), .rows = (m), .columns = (n), .depth = (k), .alpha = (factor), .beta = (old)
#define SIZES(b, m, n, k) SCALED(b, m, n, k, 1, 0)
#define F32               .type = DTYPE_F32
#define BF16              .type = DTYPE_BF16
#define F16               .type = DTYPE_F16
#define F64               .type = DTYPE_F64

static const ProductCase products[] = {
    {"plain", {SIZES(1, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {F32}}},
    {"A transposed", {SIZES(1, 5, 3, 7), .a = {F32, .transposed = true}, .b = {F32}, .d = {F32}}},
    {"B transposed", {SIZES(1, 5, 3, 7), .a = {F32}, .b = {F32, .transposed = true}, .d = {F32}}},
    {"both transposed",
     {SIZES(1, 5, 3, 7), .a = {F32, .transposed = true}, .b = {F32, .transposed = true}, .d = {F32}}},
    {"rows apart",
     {SIZES(1, 5, 3, 7), .a = {F32, .leading = 9}, .b = {F32, .leading = 4}, .d = {F32, .leading = 8}}},
    {"scaled", {SCALED(1, 5, 3, 7, 2, 3), .a = {F32}, .b = {F32}, .d = {F32}}},
    {"batched",
     {SIZES(4, 5, 3, 7), .a = {F32, .batch_stride = 35}, .b = {F32, .batch_stride = 21},
      .d = {F32, .batch_stride = 15}}},
    {"batched, one B",
     {SIZES(4, 5, 3, 7), .a = {F32, .batch_stride = 40}, .b = {F32}, .d = {F32, .batch_stride = 16}}},
    {"batches side by side",
     {SIZES(4, 5, 3, 8), .a = {F32, .leading = 32, .batch_stride = 8},
      .b = {F32, .transposed = true, .leading = 32, .batch_stride = 8}, .d = {F32, .batch_stride = 15}}},
    {"deep, with a workspace", {SIZES(1, 6, 5, 130), .a = {F32}, .b = {F32}, .d = {F32}}},
    {"one element", {SIZES(1, 1, 1, 1), .a = {F32}, .b = {F32}, .d = {F32}}},
    {"bf16", {SIZES(1, 5, 3, 7), .a = {BF16}, .b = {BF16}, .d = {BF16}}},
    {"bf16 into f32", {SIZES(1, 5, 3, 7), .a = {BF16, .alignment = 2}, .b = {BF16}, .d = {F32}}},
    {"f16", {SIZES(1, 5, 3, 7), .a = {F16}, .b = {F16}, .d = {F16}}},
    {"f64", {SCALED(1, 5, 3, 7, 2, 3), .a = {F64}, .b = {F64}, .d = {F64}}},
    {"bias", {SIZES(1, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {F32}, .epilogue = CUDA_EPILOGUE_BIAS}},
    {"relu", {SIZES(1, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {F32}, .epilogue = CUDA_EPILOGUE_RELU}},
    {"relu and bias",
     {SIZES(1, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {F32}, .epilogue = CUDA_EPILOGUE_RELU_BIAS}},
    {"relu, bias and mask",
     {SIZES(1, 5, 140, 7), .a = {F32}, .b = {F32}, .d = {F32}, .epilogue = CUDA_EPILOGUE_RELU_BIAS_MASK}},
    {"sums of A",
     {SIZES(1, 5, 3, 7), .a = {F32, .transposed = true}, .b = {F32}, .d = {F32},
      .epilogue = CUDA_EPILOGUE_SUM_A}},
    {"sums of B",
     {SIZES(1, 5, 3, 7), .a = {F32, .transposed = true}, .b = {F32}, .d = {F32},
      .epilogue = CUDA_EPILOGUE_SUM_B}},
};
enum { PRODUCT_COUNT = sizeof products / sizeof *products };

/* Returns the place of element [row, column] of a matrix [rows, columns]. */
static int64_t place(const CudaMatrix *matrix, int64_t rows, int64_t columns, int64_t row, int64_t column,
                     int64_t batch) {
    int64_t leading = matrix->leading ? matrix->leading : matrix->transposed ? rows : columns;
    return batch * matrix->batch_stride +
           (matrix->transposed ? column * leading + row : row * leading + column);
}

static int64_t elements(const CudaMatrix *matrix, int64_t rows, int64_t columns, int64_t batch) {
    return place(matrix, rows, columns, rows - 1, columns - 1, batch - 1) + 1;
}

static double product_at(const CudaProductShape *shape, const DeviceArray *a, const DeviceArray *b,
                         int64_t row, int64_t column, int64_t batch) {
    double sum = 0;
    for (int64_t k = 0; k < shape->depth; k++)
        sum += a->values[place(&shape->a, shape->rows, shape->depth, row, k, batch)] *
               b->values[place(&shape->b, shape->depth, shape->columns, k, column, batch)];
    return sum;
}

static bool adds_bias(CudaEpilogue epilogue) {
    return epilogue == CUDA_EPILOGUE_BIAS || epilogue == CUDA_EPILOGUE_RELU_BIAS ||
           epilogue == CUDA_EPILOGUE_RELU_BIAS_MASK;
}

static bool is_relu(CudaEpilogue epilogue) {
    return epilogue >= CUDA_EPILOGUE_RELU && epilogue <= CUDA_EPILOGUE_RELU_BIAS_MASK;
}

/* Returns the expected value of D, whose old content is `old`. */
static double expected_at(const CudaProductShape *shape, const DeviceArray *a, const DeviceArray *b,
                          const double *bias, double old, int64_t row, int64_t column, int64_t batch) {
    double x = shape->alpha * product_at(shape, a, b, row, column, batch);
    if (shape->beta != 0) x += shape->beta * old;
    if (adds_bias(shape->epilogue)) x += bias[column];
    return is_relu(shape->epilogue) && x < 0 ? 0 : x;
}

static void check_sums(const CudaProductShape *shape, const DeviceArray *a, const DeviceArray *b,
                       const DeviceArray *bias, const char *name) {
    bool of_a = shape->epilogue == CUDA_EPILOGUE_SUM_A;
    if (!of_a && shape->epilogue != CUDA_EPILOGUE_SUM_B) return;
    for (int64_t k = 0; k < (of_a ? shape->rows : shape->columns); k++) {
        double sum = 0;
        for (int64_t j = 0; j < shape->depth; j++)
            sum += of_a ? a->values[place(&shape->a, shape->rows, shape->depth, k, j, 0)]
                        : b->values[place(&shape->b, shape->depth, shape->columns, j, k, 0)];
        if (bias->values[k] != sum) fail_msg("%s: sum %d is %g, not %g", name, (int)k, bias->values[k], sum);
    }
}

static void check_product(DeviceCase *device, CudaBlas *blas, const ProductCase *row, Random *random,
                          DeviceRefusals *refusals) {
    const CudaProductShape *shape = &row->shape;
    CudaProduct *product, *again;
    int64_t most = shape->rows > shape->columns ? shape->rows : shape->columns;
    AmStatus status = cuda_product_make(&product, blas, shape, &device->error);
    if (!device_makes(refusals, status, device, row->name)) return;
    device_check(cuda_product_make(&again, blas, shape, &device->error), device);
    assert_ptr_equal(product, again);
    DeviceArray a = device_array(device, shape->a.type,
                                 elements(&shape->a, shape->rows, shape->depth, shape->batch), random);
    DeviceArray b = device_array(device, shape->b.type,
                                 elements(&shape->b, shape->depth, shape->columns, shape->batch), random);
    DeviceArray d = device_array(device, shape->d.type,
                                 elements(&shape->d, shape->rows, shape->columns, shape->batch), NULL);
    DeviceArray bias = device_array(device, shape->d.type, most, random);
    DeviceArray mask =
        device_array(device, DTYPE_F32, cuda_product_mask_bytes(shape->rows, shape->columns) / 4, NULL);
    DeviceArray workspace = device_array(device, DTYPE_F32, cuda_product_workspace(product) / 4 + 1, NULL);
    double *old = calloc((size_t)d.count, sizeof *old), *given = calloc((size_t)most, sizeof *given);
    memcpy(old, d.values, (size_t)d.count * sizeof *old);
    memcpy(given, bias.values, (size_t)most * sizeof *given);
    CudaProductBuffers buffers = {.a = device_address(&a),
                                  .b = device_address(&b),
                                  .d = device_address(&d),
                                  .bias = device_address(&bias),
                                  .mask = device_address(&mask),
                                  .workspace = device_address(&workspace)};
    device_check(cuda_product_run(product, device->stream, &buffers, &device->error), device);
    device_get(device, &d);
    device_get(device, &bias);
    for (int64_t batch = 0; batch < shape->batch; batch++)
        for (int64_t m = 0; m < shape->rows; m++)
            for (int64_t n = 0; n < shape->columns; n++) {
                int64_t at = place(&shape->d, shape->rows, shape->columns, m, n, batch);
                double expected = expected_at(shape, &a, &b, given, old[at], m, n, batch);
                if (d.values[at] != expected)
                    fail_msg("%s: [%d, %d] of %d is %g, not %g", row->name, (int)m, (int)n, (int)batch,
                             d.values[at], expected);
                old[at] = d.values[at]; /* a zero of either sign */
            }
    /* Elements between rows and batches are unchanged. */
    assert_memory_equal(d.values, old, (size_t)d.count * sizeof *old);
    check_sums(shape, &a, &b, &bias, row->name);
    DeviceArray *arrays[] = {&a, &b, &d, &bias, &mask, &workspace};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) device_release(arrays[k]);
    free(old);
    free(given);
}

static void test_products(void **state) {
    (void)state;
    DeviceCase device;
    DeviceRefusals refusals = {0};
    CudaBlas *blas;
    Random random;
    random_seed(&random, 1);
    device_open(&device);
    device_check(cuda_blas_open(&blas, &device.error), &device);
    for (int32_t k = 0; k < PRODUCT_COUNT; k++)
        check_product(&device, blas, &products[k], &random, &refusals);
    device_report(&refusals);
    assert_true(cuda_blas_version() >= 120000);
    cuda_blas_close(blas);
    cuda_blas_close(NULL);
    device_close(&device);
}

/* Forward with a mask, then the gradient through it with the gradient of the bias. At a sum of exactly 0 the
 * mask is the library's choice. */
static void test_mask(void **state) {
    (void)state;
    enum { ROWS = 6, IN = 5, OUT = 7, LAST = 4 };
    DeviceCase device;
    DeviceRefusals refusals = {0};
    CudaBlas *blas;
    CudaProduct *forward, *backward;
    Random random;
    random_seed(&random, 2);
    device_open(&device);
    device_check(cuda_blas_open(&blas, &device.error), &device);
    const CudaProductShape up = {SIZES(1, ROWS, OUT, IN), .a = {F32}, .b = {F32}, .d = {F32},
                                 .epilogue = CUDA_EPILOGUE_RELU_BIAS_MASK};
    const CudaProductShape down = {SIZES(1, ROWS, OUT, LAST), .a = {F32}, .b = {F32, .transposed = true},
                                   .d = {F32}, .epilogue = CUDA_EPILOGUE_RELU_GRADIENT_BIAS};
    AmStatus status = cuda_product_make(&forward, blas, &up, &device.error);
    bool has = device_makes(&refusals, status, &device, "forward");
    status = cuda_product_make(&backward, blas, &down, &device.error);
    has = device_makes(&refusals, status, &device, "backward") && has;
    DeviceArray x = device_array(&device, DTYPE_F32, ROWS * IN, &random),
                w = device_array(&device, DTYPE_F32, IN * OUT, &random);
    DeviceArray y = device_array(&device, DTYPE_F32, ROWS * OUT, NULL),
                bias = device_array(&device, DTYPE_F32, OUT, &random);
    DeviceArray dz = device_array(&device, DTYPE_F32, ROWS * LAST, &random),
                v = device_array(&device, DTYPE_F32, OUT * LAST, &random);
    DeviceArray dy = device_array(&device, DTYPE_F32, ROWS * OUT, NULL),
                dbias = device_array(&device, DTYPE_F32, OUT, NULL);
    DeviceArray mask = device_array(&device, DTYPE_F32, cuda_product_mask_bytes(ROWS, OUT) / 4, NULL);
    int64_t most = has ? cuda_product_workspace(forward) + cuda_product_workspace(backward) : 0;
    DeviceArray workspace = device_array(&device, DTYPE_F32, most / 4 + 1, NULL);
    CudaProductBuffers first = {.a = device_address(&x),
                                .b = device_address(&w),
                                .d = device_address(&y),
                                .bias = device_address(&bias),
                                .mask = device_address(&mask),
                                .workspace = device_address(&workspace)};
    CudaProductBuffers second = {.a = device_address(&dz),
                                 .b = device_address(&v),
                                 .d = device_address(&dy),
                                 .bias = device_address(&dbias),
                                 .mask = device_address(&mask),
                                 .workspace = device_address(&workspace)};
    if (has) {
        device_check(cuda_product_run(forward, device.stream, &first, &device.error), &device);
        device_check(cuda_product_run(backward, device.stream, &second, &device.error), &device);
        device_get(&device, &y);
        device_get(&device, &dy);
        device_get(&device, &dbias);
    }
    for (int32_t n = 0; n < OUT && has; n++) {
        double sum = 0;
        for (int32_t m = 0; m < ROWS; m++) {
            double gradient = 0, before = bias.values[n], given = dy.values[m * OUT + n];
            for (int32_t k = 0; k < LAST; k++) gradient += dz.values[m * LAST + k] * v.values[n * LAST + k];
            for (int32_t k = 0; k < IN; k++) before += x.values[m * IN + k] * w.values[k * OUT + n];
            assert_true(y.values[m * OUT + n] == (before > 0 ? before : 0));
            if (before == 0) assert_true(given == 0 || given == gradient);
            else assert_true(given == (before > 0 ? gradient : 0));
            sum += given;
        }
        assert_true(dbias.values[n] == sum);
    }
    device_report(&refusals);
    DeviceArray *arrays[] = {&x, &w, &y, &bias, &dz, &v, &dy, &dbias, &mask, &workspace};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) device_release(arrays[k]);
    cuda_blas_close(blas);
    device_close(&device);
}

/* (1 + 2^-12)^2 is rounded once in f32. With tf32 the operands may lose their second term, to 10 bits of
 * fraction: the library may choose a kernel without tf32. */
static void test_tf32_is_an_option(void **state) {
    (void)state;
    DeviceCase device;
    CudaBlas *blas;
    DeviceRefusals refusals = {0};
    device_open(&device);
    device_check(cuda_blas_open(&blas, &device.error), &device);
    for (int32_t tf32 = 0; tf32 < 2; tf32++) {
        enum { SIZE = 16 };
        CudaProductShape shape = {SIZES(1, SIZE, SIZE, SIZE), .a = {F32}, .b = {F32}, .d = {F32},
                                  .tf32 = tf32};
        CudaProduct *product;
        AmStatus made = cuda_product_make(&product, blas, &shape, &device.error);
        if (!device_makes(&refusals, made, &device, tf32 ? "f32 in tf32" : "f32")) continue;
        DeviceArray a = device_array(&device, DTYPE_F32, SIZE * SIZE, NULL);
        DeviceArray d = device_array(&device, DTYPE_F32, SIZE * SIZE, NULL);
        for (int32_t k = 0; k < SIZE * SIZE; k++) a.values[k] = k % (SIZE + 1) == 0 ? 1 + 0x1p-12 : 0;
        device_put(&device, &a);
        DeviceArray workspace =
            device_array(&device, DTYPE_F32, cuda_product_workspace(product) / 4 + 1, NULL);
        CudaProductBuffers buffers = {.a = device_address(&a),
                                      .b = device_address(&a),
                                      .d = device_address(&d),
                                      .workspace = device_address(&workspace)};
        device_check(cuda_product_run(product, device.stream, &buffers, &device.error), &device);
        device_get(&device, &d);
        double exact = (1 + 0x1p-12) * (1 + 0x1p-12);
        bool shortened = tf32 && d.values[0] == 1;
        if (!shortened) assert_true(d.values[0] == (double)(float)exact);
        if (tf32 && stand_in() && !getenv("STAND_IN_PERTURB")) assert_true(shortened);
        device_release(&a);
        device_release(&d);
        device_release(&workspace);
    }
    device_report(&refusals);
    cuda_blas_close(blas);
    device_close(&device);
}

static void test_refusals(void **state) {
    (void)state;
    static const ProductCase wrong[] = {
        {"below 1", {SIZES(1, 0, 3, 7), .a = {F32}, .b = {F32}, .d = {F32}}},
        {"rows overlap", {SIZES(1, 5, 3, 7), .a = {F32, .leading = 6}, .b = {F32}, .d = {F32}}},
        {"transposed", {SIZES(1, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {F32, .transposed = true}}},
        {"overlap", {SIZES(2, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {F32}}},
        {"of s32",
         {SIZES(1, 5, 3, 7), .a = {.type = DTYPE_S32}, .b = {.type = DTYPE_S32}, .d = {.type = DTYPE_S32}}},
        {"of f32 and bf16", {SIZES(1, 5, 3, 7), .a = {F32}, .b = {BF16}, .d = {F32}}},
        {"into bf16", {SIZES(1, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {BF16}}},
        {"epilogue",
         {SIZES(2, 5, 3, 7), .a = {F32}, .b = {F32}, .d = {F32, .batch_stride = 15},
          .epilogue = CUDA_EPILOGUE_BIAS}},
    };
    DeviceCase device;
    CudaBlas *blas;
    CudaProduct *product;
    device_open(&device);
    device_check(cuda_blas_open(&blas, &device.error), &device);
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        AmError error = {0};
        assert_int_equal(cuda_product_make(&product, blas, &wrong[k].shape, &error), AM_ERROR_INPUT);
        if (!strstr(error.text, wrong[k].name)) fail_msg("no \"%s\" in: %s", wrong[k].name, error.text);
        assert_null(product);
    }
    cuda_blas_close(blas);
    device_close(&device);
}

/* The error has the message of the library if a handle, a choice or a run fails. */
static void test_failures(void **state) {
    (void)state;
    const StandIn *stand = stand_in();
    DeviceCase device;
    CudaBlas *blas;
    CudaProduct *product;
    AmError error = {0};
    if (!stand) skip();
    const CudaProductShape *shape = &products[0].shape;
    device_open(&device);
    (stand->fail)("cublasLtCreate=1");
    assert_int_equal(cuda_blas_open(&blas, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "not initialized"));
    assert_null(blas);
    (stand->fail)("");
    device_check(cuda_blas_open(&blas, &device.error), &device);
    (stand->fail)("cublasLtMatmulAlgoGetHeuristic=15");
    assert_int_equal(cuda_product_make(&product, blas, shape, NULL), AM_ERROR_INPUT);
    (stand->fail)("cublasLtMatmulAlgoGetHeuristic=14");
    error = (AmError){0};
    assert_int_equal(cuda_product_make(&product, blas, shape, &error), AM_ERROR_RUNTIME);
    assert_non_null(strstr(error.text, "cuBLASLt: choice of an algorithm"));
    (stand->fail)("");
    device_check(cuda_product_make(&product, blas, shape, &device.error), &device);
    int32_t host = 0; /* no device memory, as the library will find */
    CudaProductBuffers buffers = {.a = &host, .b = &host, .d = &host};
    assert_int_equal(cuda_product_run(product, device.stream, &buffers, NULL), AM_ERROR_RUNTIME);
    cuda_blas_close(blas);
    device_close(&device);
}

/* A candidate that is refused is followed by the next, in the trial or, if there is no memory for that, in
 * the first run. */
static void test_next_candidates(void **state) {
    (void)state;
    enum { SIZE = 16 };
    const StandIn *stand = stand_in();
    DeviceCase device;
    CudaBlas *blas;
    if (!stand) skip();
    device_open(&device);
    device_check(cuda_blas_open(&blas, &device.error), &device);
    DeviceArray a = device_array(&device, DTYPE_F32, SIZE * SIZE, NULL);
    DeviceArray d = device_array(&device, DTYPE_F32, SIZE * SIZE, NULL);
    for (int32_t k = 0; k < SIZE * SIZE; k++) a.values[k] = k % (SIZE + 1) == 0 ? 3 : 0;
    device_put(&device, &a);
    const CudaProductBuffers buffers = {
        .a = device_address(&a), .b = device_address(&a), .d = device_address(&d)};
    for (int32_t has_memory = 0; has_memory < 2; has_memory++) {
        const CudaProductShape shape = {SIZES(1, SIZE, SIZE, SIZE), .a = {F32}, .b = {F32}, .d = {F32},
                                        .workspace_limit = 1024 + has_memory};
        CudaProduct *product;
        stand->reset();
        (stand->fail)(has_memory ? "cublasLtMatmul=7#1" : "cuMemAlloc=2");
        device_check(cuda_product_make(&product, blas, &shape, &device.error), &device);
        assert_int_equal(cuda_product_is_tried(product), has_memory);
        (stand->fail)(has_memory ? "" : "cublasLtMatmul=7#1");
        device_check(cuda_product_run(product, device.stream, &buffers, &device.error), &device);
        device_get(&device, &d);
        assert_true(cuda_product_is_tried(product) && d.values[0] == 9);
        assert_int_equal(stand->count("cublasLtMatmul"), 2 + has_memory);
        (stand->fail)("cublasLtMatmul=7"); /* the algorithm stays */
        assert_int_equal(cuda_product_run(product, device.stream, &buffers, NULL), AM_ERROR_RUNTIME);
        (stand->fail)("");
    }
    device_release(&a);
    device_release(&d);
    cuda_blas_close(blas);
    device_close(&device);
}

int main(void) {
    if (!gpu_is_present()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),          cmocka_unit_test(test_mask),
        cmocka_unit_test(test_tf32_is_an_option), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_next_candidates),   cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
