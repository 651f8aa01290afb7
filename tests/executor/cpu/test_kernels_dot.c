/* dot and convolution against sums written out as loops, on whole numbers, so exactly. */
#include <math.h>

#include "tests/support/kernel_case.h"

/* out[b, i, j] = sum_k left[b, i, k] right[b, j, k], each operand's dimensions
 * stored in the order that `left_order` and `right_order` say (a permutation of
 * batch 0, free 1, contracted 2). */
static void check_dot(const int *left_order, const int *right_order, Dtype type) {
    enum { B = 2, M = 3, N = 5, K = 4 };
    const int64_t left_sizes[3] = {B, M, K}, right_sizes[3] = {B, N, K};
    KernelCase *c = case_new(IR_DOT);
    int64_t left[3], right[3], lb = 0, rb = 0, lc = 0, rc = 0, left_at[3], right_at[3];
    for (int d = 0; d < 3; d++) {
        left[d] = left_sizes[left_order[d]];
        right[d] = right_sizes[right_order[d]];
        if (left_order[d] == 0) lb = d;
        if (left_order[d] == 2) lc = d;
        if (right_order[d] == 0) rb = d;
        if (right_order[d] == 2) rc = d;
    }
    int64_t left_stride = 1, right_stride = 1;
    for (int d = 2; d >= 0; d--) {
        left_at[left_order[d]] = left_stride;
        right_at[right_order[d]] = right_stride;
        left_stride *= left[d];
        right_stride *= right[d];
    }
    int32_t x = case_value(c, type, 3, left), y = case_value(c, type, 3, right), z = VALUE(c, type, B, M, N);
    IrDot dot = {.batch_count = 1,
                 .contracting_count = 1,
                 .lhs_batch = &lb,
                 .rhs_batch = &rb,
                 .lhs_contracting = &lc,
                 .rhs_contracting = &rc};
    c->attributes = (IrAttributes){.dot = &dot};
    float in[2][B * (M > N ? M : N) * K];
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < B * (v ? N : M) * K; i++) {
            in[v][i] = (float)((i * 7 + v * 3) % 11 - 5);
            void *memory = c->memory[v ? y : x];
            if (type == DTYPE_F32) ((float *)memory)[i] = in[v][i];
            if (type == DTYPE_F64) ((double *)memory)[i] = in[v][i];
            if (type == DTYPE_S32) ((int32_t *)memory)[i] = (int32_t)in[v][i];
            if (type == DTYPE_BF16) ((uint16_t *)memory)[i] = dtype_float_to_bf16(in[v][i]);
        }
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int b = 0; b < B; b++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float sum = 0, got = 0;
                for (int k = 0; k < K; k++)
                    sum += in[0][b * left_at[0] + i * left_at[1] + k * left_at[2]] *
                           in[1][b * right_at[0] + j * right_at[1] + k * right_at[2]];
                int at = (b * M + i) * N + j;
                if (type == DTYPE_F32) got = ((float *)c->memory[z])[at];
                if (type == DTYPE_F64) got = (float)((double *)c->memory[z])[at];
                if (type == DTYPE_S32) got = (float)((int32_t *)c->memory[z])[at];
                if (type == DTYPE_BF16) got = dtype_bf16_to_float(((uint16_t *)c->memory[z])[at]);
                assert_true(got == sum);
            }
    case_free(c);
}

/* out[order of b0, b1, i, j] = sum_k left[b0, i, b1, k] right[b0, b1, k, j]: the result's dimensions
 * in every order; `size` makes products that are cut in blocks. */
static void check_result_order(const int64_t *order, Dtype type, int64_t size) {
    int64_t sizes[4] = {2, 3, size, 5}, K = size + 2, out[4], strides[4], at[4], stride = 1;
    KernelCase *c = case_new(IR_DOT);
    for (int d = 0; d < 4; d++) out[d] = sizes[order[d]];
    for (int d = 3; d >= 0; d--) {
        strides[order[d]] = stride;
        stride *= out[d];
    }
    int32_t x = VALUE(c, type, 2, size, 3, K), y = VALUE(c, type, 2, 3, K, 5),
            z = case_value(c, type, 4, out);
    IrDot dot = {.batch_count = 2,
                 .contracting_count = 1,
                 .lhs_batch = LIST(c, 0, 2),
                 .rhs_batch = LIST(c, 0, 1),
                 .lhs_contracting = LIST(c, 3),
                 .rhs_contracting = LIST(c, 2)};
    c->attributes = (IrAttributes){.dot = &dot, .dimensions = order, .dimension_count = 4};
    float *left = calloc((size_t)(6 * size * K), sizeof(float)),
          *right = calloc((size_t)(30 * K), sizeof(float));
    for (int64_t i = 0; i < 6 * size * K; i++) left[i] = (float)(i * 7 % 11 - 5);
    for (int64_t i = 0; i < 30 * K; i++) right[i] = (float)(i * 5 % 9 - 4);
    for (int64_t i = 0; i < 6 * size * K; i++)
        if (type == DTYPE_F32) ((float *)c->memory[x])[i] = left[i];
        else ((uint16_t *)c->memory[x])[i] = dtype_float_to_bf16(left[i]);
    for (int64_t i = 0; i < 30 * K; i++)
        if (type == DTYPE_F32) ((float *)c->memory[y])[i] = right[i];
        else ((uint16_t *)c->memory[y])[i] = dtype_float_to_bf16(right[i]);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (at[0] = 0; at[0] < 2; at[0]++)
        for (at[1] = 0; at[1] < 3; at[1]++)
            for (at[2] = 0; at[2] < size; at[2]++)
                for (at[3] = 0; at[3] < 5; at[3]++) {
                    float sum = 0;
                    int64_t place = 0;
                    for (int64_t k = 0; k < K; k++)
                        sum += left[((at[0] * size + at[2]) * 3 + at[1]) * K + k] *
                               right[((at[0] * 3 + at[1]) * K + k) * 5 + at[3]];
                    for (int d = 0; d < 4; d++) place += at[d] * strides[d];
                    if (type == DTYPE_F32) assert_true(case_floats(c, z)[place] == sum);
                    else assert_true(((uint16_t *)c->memory[z])[place] == dtype_float_to_bf16(sum));
                }
    free(left);
    free(right);
    case_free(c);
}

static void test_result_in_every_order(void **state) {
    (void)state;
    for (int64_t code = 0; code < 256; code++) {
        int64_t order[4] = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6};
        int64_t seen = 1 << order[0] | 1 << order[1] | 1 << order[2] | 1 << order[3];
        if (seen != 15) continue;
        check_result_order(order, DTYPE_F32, 4);
        check_result_order(order, DTYPE_BF16, 3);
    }
    check_result_order((int64_t[]){0, 2, 1, 3}, DTYPE_F32, 70);
}

static AmStatus open_team(KernelDevice **device, int32_t threads) {
    AmError error = {0};
    KernelOptions options = {.threads = threads};
    TRY(kernels_cpu.open(device, &options, &error));
    return kernels_cpu.finish(*device, &error);
}

/* A product that is cut in blocks: the same bits from teams of any size. */
static void test_teams_give_the_same_bits(void **state) {
    enum { M = 500, N = 430, K = 330 };
    float *results[3];
    (void)state;
    for (int32_t t = 0; t < 3; t++) {
        KernelCase *c = case_new(IR_DOT);
        int32_t x = VALUE(c, DTYPE_F32, M, K), y = VALUE(c, DTYPE_F32, N, K), z = VALUE(c, DTYPE_F32, M, N);
        IrDot dot = {.contracting_count = 1, .lhs_contracting = LIST(c, 1), .rhs_contracting = LIST(c, 1)};
        c->attributes = (IrAttributes){.dot = &dot};
        for (int64_t i = 0; i < M * K; i++) case_floats(c, x)[i] = 1.0f / (float)(i % 97 + 3);
        for (int64_t i = 0; i < N * K; i++) case_floats(c, y)[i] = 1.0f / (float)(i % 89 + 5) - 0.1f;
        KernelDevice *device;
        assert_int_equal(open_team(&device, t + 1), AM_OK);
        c->device = device;
        assert_int_equal(case_run(c, NULL, 1), AM_OK);
        kernels_cpu.close(device);
        results[t] = malloc(sizeof(float) * M * N);
        memcpy(results[t], c->memory[z], sizeof(float) * M * N);
        double sum = 0;
        for (int64_t k = 0; k < K; k++)
            sum += (double)case_floats(c, x)[499 * K + k] * (double)case_floats(c, y)[429 * K + k];
        assert_true(fabs(sum - (double)results[t][M * N - 1]) < 1e-4);
        case_free(c);
        assert_memory_equal(results[0], results[t], sizeof(float) * M * N);
    }
    for (int32_t t = 0; t < 3; t++) free(results[t]);
}

static void test_dot_in_every_layout(void **state) {
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const Dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_S32, DTYPE_BF16};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            for (int t = 0; t < 4; t++) check_dot(orders[i], orders[j], types[t]);
}

/* Two contracted dimensions in opposite orders, one free dimension in front and one after. */
static void test_dot_with_two_contracted_dimensions(void **state) {
    (void)state;
    enum { P = 3, K = 4, L = 2, Q = 5 };
    KernelCase *c = case_new(IR_DOT);
    int32_t x = VALUE(c, DTYPE_F32, P, K, L), y = VALUE(c, DTYPE_F32, L, Q, K), z = VALUE(c, DTYPE_F32, P, Q);
    IrDot dot = {.contracting_count = 2, .lhs_contracting = LIST(c, 1, 2), .rhs_contracting = LIST(c, 2, 0)};
    c->attributes = (IrAttributes){.dot = &dot};
    case_fill(c, x, 1);
    case_fill(c, y, 2);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int p = 0; p < P; p++)
        for (int q = 0; q < Q; q++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                for (int l = 0; l < L; l++)
                    sum += case_floats(c, x)[(p * K + k) * L + l] * case_floats(c, y)[(l * Q + q) * K + k];
            assert_true(case_floats(c, z)[p * Q + q] == sum);
        }
    case_free(c);
}

static void test_dot_of_nothing_is_zero(void **state) {
    (void)state;
    KernelCase *c = case_new(IR_DOT);
    VALUE(c, DTYPE_F32, 3, 0);
    VALUE(c, DTYPE_F32, 0, 2);
    int32_t z = VALUE(c, DTYPE_F32, 3, 2);
    IrDot dot = {.contracting_count = 1, .lhs_contracting = LIST(c, 1), .rhs_contracting = LIST(c, 0)};
    c->attributes = (IrAttributes){.dot = &dot};
    case_fill(c, z, 3);
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < 6; i++) assert_true(case_floats(c, z)[i] == 0);
    case_free(c);
}

/* A dot of [rows, depth] and [columns, depth] (`across`: [depth, rows], [depth, columns]) in batches, with or
 * without a third operand. Returns the result, which the caller frees. `shared`: it lies there. */
static float *run_added(Dtype type, const int64_t *sizes, bool across, bool is_added, bool is_shared,
                        int32_t threads, float *addend) {
    int64_t batches = sizes[0], rows = sizes[1], columns = sizes[2], depth = sizes[3];
    int64_t deep = across ? 1 : 2, result[] = {batches, rows, columns};
    int64_t left[] = {batches, across ? depth : rows, across ? rows : depth};
    int64_t right[] = {batches, across ? depth : columns, across ? columns : depth};
    int64_t elements = batches * rows * columns;
    KernelCase *c = case_new(IR_DOT);
    KernelDevice *device;
    case_value(c, type, 3, left);
    case_value(c, type, 3, right);
    if (is_added) case_value(c, DTYPE_F32, 3, result);
    int32_t z = case_value(c, DTYPE_F32, 3, result);
    IrDot dot = {.batch_count = 1,
                 .contracting_count = 1,
                 .lhs_batch = LIST(c, 0),
                 .rhs_batch = LIST(c, 0),
                 .lhs_contracting = LIST(c, deep),
                 .rhs_contracting = LIST(c, deep)};
    c->attributes = (IrAttributes){.dot = &dot};
    for (int v = 0; v < 2; v++)
        for (int64_t i = 0; i < ir_shape_elements(&c->values[v].shape); i++) {
            float number = (float)(i * 7 % 23 - 11) / 3;
            if (type == DTYPE_F32) case_floats(c, v)[i] = number;
            else ((uint16_t *)c->memory[v])[i] = dtype_float_to_bf16(number);
        }
    for (int64_t i = 0; i < elements; i++) addend[i] = (float)(i % 31 - 15) / 7;
    if (is_added) memcpy(c->memory[2], addend, sizeof(float) * (size_t)elements);
    void *own = c->memory[z];
    if (is_shared) c->memory[z] = c->memory[2];
    assert_int_equal(open_team(&device, threads), AM_OK);
    c->device = device;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    kernels_cpu.close(device);
    float *out = malloc(sizeof(float) * (size_t)elements + 1);
    memcpy(out, c->memory[z], sizeof(float) * (size_t)elements);
    c->memory[z] = own;
    case_free(c);
    return out;
}

/* Products by tiles and by OpenBLAS, with several stretches along the depth, in blocks, with empty
 * dimensions. */
static void test_a_third_operand_is_added(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{1, 30, 70, 20},    {2, 3, 5, 4},     {3, 2, 90, 7}, {1, 40, 5, 900},
                                       {1, 500, 430, 700}, {2, 200, 64, 50}, {1, 4, 8, 0},  {1, 0, 8, 3}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int32_t way = 0; way < 16; way++) {
            Dtype type = way & 1 ? DTYPE_BF16 : DTYPE_F32;
            bool across = way & 2, is_shared = way & 4;
            int32_t threads = way & 8 ? 3 : 1;
            int64_t elements = sizes[s][0] * sizes[s][1] * sizes[s][2];
            float *addend = malloc(sizeof(float) * (size_t)elements + 1);
            float *product = run_added(type, sizes[s], across, false, false, 1, addend);
            float *sum = run_added(type, sizes[s], across, true, is_shared, threads, addend);
            for (int64_t i = 0; i < elements; i++) assert_true(sum[i] == addend[i] + product[i]);
            free(addend);
            free(product);
            free(sum);
        }
}

typedef struct Layout {
    const char *input, *kernel, *output; /* as in HLO: b01f_01io->b01f */
} Layout;

static int64_t place(const char *labels, char which) {
    return strchr(labels, which) - labels;
}

static void sizes_of(const char *labels, const char *names, const int64_t *sizes, int64_t *out) {
    for (int d = 0; labels[d]; d++) out[d] = sizes[strchr(names, labels[d]) - names];
}

static int64_t offset(const char *labels, const char *names, const int64_t *sizes, const int64_t *index) {
    int64_t at = 0;
    for (int d = 0; labels[d]; d++) {
        int64_t n = strchr(names, labels[d]) - names;
        at = at * sizes[n] + index[n];
    }
    return at;
}

static int64_t output_size(int64_t input, const IrWindowDimension *w) {
    int64_t dilated = input == 0 ? 0 : (input - 1) * w->base_dilation + 1;
    int64_t window = (w->size - 1) * w->window_dilation + 1;
    int64_t room = dilated + w->padding_low + w->padding_high - window;
    return room < 0 ? 0 : room / w->stride + 1;
}

/* A convolution of any layout and window against its definition. */
static void check_convolution(Layout layout, const IrWindowDimension *windows, int64_t batch,
                              int64_t features, int64_t outputs, int64_t feature_groups, int64_t batch_groups,
                              Dtype type) {
    const int64_t spatial[2] = {6, 5};
    int64_t input_features = features * feature_groups, input_batch = batch * batch_groups;
    const int64_t in_sizes[4] = {input_batch, spatial[0], spatial[1], input_features};
    const int64_t kernel_sizes[4] = {outputs, windows[0].size, windows[1].size, features};
    const int64_t out_sizes[4] = {batch, output_size(spatial[0], &windows[0]),
                                  output_size(spatial[1], &windows[1]), outputs};
    KernelCase *c = case_new(IR_CONVOLUTION);
    int64_t dims[4];
    sizes_of(layout.input, "b01f", in_sizes, dims);
    int32_t x = case_value(c, type, 4, dims);
    sizes_of(layout.kernel, "o01i", kernel_sizes, dims);
    int32_t k = case_value(c, type, 4, dims);
    sizes_of(layout.output, "b01f", out_sizes, dims);
    int32_t y = case_value(c, type, 4, dims);
    IrConvolution form = {.input_batch = place(layout.input, 'b'),
                          .input_feature = place(layout.input, 'f'),
                          .kernel_input_feature = place(layout.kernel, 'i'),
                          .kernel_output_feature = place(layout.kernel, 'o'),
                          .output_batch = place(layout.output, 'b'),
                          .output_feature = place(layout.output, 'f'),
                          .spatial_count = 2,
                          .input_spatial = LIST(c, place(layout.input, '0'), place(layout.input, '1')),
                          .kernel_spatial = LIST(c, place(layout.kernel, '0'), place(layout.kernel, '1')),
                          .output_spatial = LIST(c, place(layout.output, '0'), place(layout.output, '1')),
                          .feature_group_count = feature_groups,
                          .batch_group_count = batch_groups};
    c->attributes = (IrAttributes){.convolution = &form, .window = windows, .window_count = 2};
    for (int v = 0; v < 2; v++) {
        int32_t value = v ? k : x;
        for (int64_t i = 0; i < ir_shape_elements(&c->values[value].shape); i++) {
            double number = (double)((i * 5 + v) % 7 - 3);
            if (type == DTYPE_F32) ((float *)c->memory[value])[i] = (float)number;
            else ((double *)c->memory[value])[i] = number;
        }
    }
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    int64_t groups = feature_groups * batch_groups, per_group = outputs / groups;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t p = 0; p < out_sizes[1]; p++)
            for (int64_t q = 0; q < out_sizes[2]; q++)
                for (int64_t o = 0; o < outputs; o++) {
                    double sum = 0;
                    int64_t group = o / per_group;
                    for (int64_t m = 0; m < windows[0].size; m++)
                        for (int64_t n = 0; n < windows[1].size; n++)
                            for (int64_t f = 0; f < features; f++) {
                                int64_t at[2] = {p, q}, cell[2] = {m, n}, pixel[2];
                                int inside = 1;
                                for (int s = 0; s < 2; s++) {
                                    const IrWindowDimension *w = &windows[s];
                                    int64_t r = w->reversal ? w->size - 1 - cell[s] : cell[s];
                                    int64_t position =
                                        at[s] * w->stride + r * w->window_dilation - w->padding_low;
                                    if (position < 0 || position % w->base_dilation) inside = 0;
                                    pixel[s] = position / w->base_dilation;
                                    if (pixel[s] >= spatial[s]) inside = 0;
                                }
                                if (!inside) continue;
                                int64_t in_index[4] = {batch_groups > 1 ? group * batch + b : b, pixel[0],
                                                       pixel[1],
                                                       feature_groups > 1 ? group * features + f : f};
                                int64_t kernel_index[4] = {o, m, n, f};
                                int64_t i = offset(layout.input, "b01f", in_sizes, in_index);
                                int64_t j = offset(layout.kernel, "o01i", kernel_sizes, kernel_index);
                                sum += type == DTYPE_F32
                                           ? (double)((float *)c->memory[x])[i] * ((float *)c->memory[k])[j]
                                           : ((double *)c->memory[x])[i] * ((double *)c->memory[k])[j];
                            }
                    int64_t out_index[4] = {b, p, q, o};
                    int64_t at = offset(layout.output, "b01f", out_sizes, out_index);
                    double got =
                        type == DTYPE_F32 ? ((float *)c->memory[y])[at] : ((double *)c->memory[y])[at];
                    assert_true(got == sum);
                }
    case_free(c);
}

static const Layout layouts[] = {{"b01f", "01io", "b01f"},
                                 {"f01b", "i01o", "01bf"},
                                 {"b01f", "01oi", "b01f"},
                                 {"bf01", "oi01", "bf01"},
                                 {"01bf", "io01", "fb01"}};

static void test_convolution_layouts_and_windows(void **state) {
    (void)state;
    static const IrWindowDimension windows[][2] = {
        {{3, 1, 1, 1, 1, 1, false}, {3, 1, 1, 1, 1, 1, false}},
        {{3, 2, 0, 1, 1, 1, false}, {2, 3, 1, 0, 1, 1, true}},
        {{3, 1, 2, 2, 2, 1, false}, {2, 1, -1, 2, 1, 1, false}},
        {{2, 1, 1, -1, 1, 2, true}, {3, 2, 2, 1, 1, 3, false}},
    };
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
        for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
            check_convolution(layouts[l], windows[w], 3, 4, 5, 1, 1, DTYPE_F32);
    check_convolution(layouts[0], windows[1], 2, 3, 4, 1, 1, DTYPE_F64);
}

static void test_convolution_groups(void **state) {
    (void)state;
    static const IrWindowDimension window[2] = {{3, 1, 1, 1, 1, 1, false}, {2, 2, 0, 1, 1, 1, false}};
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        check_convolution(layouts[l], window, 2, 1, 6, 3, 1, DTYPE_F32); /* depthwise */
        check_convolution(layouts[l], window, 2, 2, 4, 2, 1, DTYPE_F32);
        check_convolution(layouts[l], window, 2, 3, 4, 1, 2, DTYPE_F32);
    }
}

/* More depth and rows than one block of the column buffer holds. */
static void test_convolution_in_blocks(void **state) {
    (void)state;
    static const IrWindowDimension window[2] = {{3, 1, 1, 1, 1, 1, false}, {3, 1, 1, 1, 1, 1, false}};
    check_convolution(layouts[0], window, 12, 400, 2, 1, 1, DTYPE_F32);
    check_convolution(layouts[1], window, 12, 400, 2, 1, 1, DTYPE_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dot_in_every_layout),
        cmocka_unit_test(test_result_in_every_order),
        cmocka_unit_test(test_teams_give_the_same_bits),
        cmocka_unit_test(test_dot_with_two_contracted_dimensions),
        cmocka_unit_test(test_dot_of_nothing_is_zero),
        cmocka_unit_test(test_a_third_operand_is_added),
        cmocka_unit_test(test_convolution_layouts_and_windows),
        cmocka_unit_test(test_convolution_groups),
        cmocka_unit_test(test_convolution_in_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
