/* Every way to compute a convolution against the plain definition, over random layouts, windows, dilations
 * and groups, on whole numbers, so exactly; alone and by a team of three. */
/* cost: 4 seconds */
#include "tests/support/kernel_case.h"

#include "base/random.h"
#include "executor/cpu/convolution/convolution.h"
#include "executor/cpu/matmul/tile.h"

enum { SPATIAL = 2, RANK = SPATIAL + 2, CONFIGURATIONS = 200 };

/* Order of (batch, feature, spatial 0, spatial 1), of (output feature, input feature, ...) for weights. */
typedef struct Layout {
    int64_t input[RANK], weights[RANK], output[RANK];
} Layout;

static const Layout layouts[] = {
    {{0, 3, 1, 2}, {3, 2, 0, 1}, {0, 3, 1, 2}}, /* b01f_01io->b01f: forward */
    {{0, 3, 1, 2}, {2, 3, 0, 1}, {0, 3, 1, 2}}, /* b01f_01oi->b01f: gradient to the input */
    {{3, 0, 1, 2}, {3, 0, 1, 2}, {2, 3, 0, 1}}, /* f01b_i01o->01bf: gradient to the weights */
    {{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}, /* bf01_oi01->bf01 */
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

typedef struct Configuration {
    Layout layout;
    IrWindowDimension window[SPATIAL];
    IrConvolution form;
    int64_t input[RANK], weights[RANK], output[RANK];
} Configuration;

static int64_t between(Random *random, int64_t low, int64_t high) {
    return low + random_below(random, high - low + 1);
}

/* Sizes that reach every kind of tile, and now and then several blocks; false: the window fits nowhere. */
static bool draw(Random *random, Configuration *c) {
    *c = (Configuration){.layout = layouts[between(random, 0, LAYOUTS - 1)]};
    int64_t groups = between(random, 0, 3) > 0 ? 1 : between(random, 2, 3);
    bool by_batch = groups > 1 && between(random, 0, 1);
    int64_t batch = between(random, 1, 9), features = between(random, 1, between(random, 0, 9) ? 20 : 300);
    int64_t outputs = groups * between(random, 1, between(random, 0, 3) ? 24 : 150);
    c->input[c->layout.input[0]] = batch * (by_batch ? groups : 1);
    c->input[c->layout.input[1]] = features * (by_batch ? 1 : groups);
    c->weights[c->layout.weights[0]] = outputs;
    c->weights[c->layout.weights[1]] = features;
    c->output[c->layout.output[0]] = batch;
    c->output[c->layout.output[1]] = outputs;
    for (int32_t s = 0; s < SPATIAL; s++) {
        IrWindowDimension *window = &c->window[s];
        int64_t size = between(random, 1, 9);
        *window = (IrWindowDimension){.size = between(random, 1, 5),
                                      .stride = between(random, 1, 3),
                                      .padding_low = between(random, -1, 3),
                                      .padding_high = between(random, -1, 3),
                                      .window_dilation = between(random, 0, 2) ? 1 : between(random, 2, 3),
                                      .base_dilation = between(random, 0, 2) ? 1 : between(random, 2, 3),
                                      .reversal = between(random, 0, 4) == 0};
        int64_t reach = (window->size - 1) * window->window_dilation + 1;
        int64_t base = (size - 1) * window->base_dilation + 1 + window->padding_low + window->padding_high;
        if (base < reach) return false;
        c->input[c->layout.input[2 + s]] = size;
        c->weights[c->layout.weights[2 + s]] = window->size;
        c->output[c->layout.output[2 + s]] = (base - reach) / window->stride + 1;
    }
    c->form = (IrConvolution){.input_batch = c->layout.input[0],
                              .input_feature = c->layout.input[1],
                              .kernel_output_feature = c->layout.weights[0],
                              .kernel_input_feature = c->layout.weights[1],
                              .output_batch = c->layout.output[0],
                              .output_feature = c->layout.output[1],
                              .spatial_count = SPATIAL,
                              .input_spatial = c->layout.input + 2,
                              .kernel_spatial = c->layout.weights + 2,
                              .output_spatial = c->layout.output + 2,
                              .feature_group_count = by_batch ? 1 : groups,
                              .batch_group_count = by_batch ? groups : 1};
    return true;
}

/* Fills the case; its values are input, weights, result. */
static KernelCase *build(const Configuration *c, Dtype type) {
    KernelCase *self = case_new(IR_CONVOLUTION);
    self->attributes = (IrAttributes){.convolution = &c->form, .window = c->window, .window_count = SPATIAL};
    case_value(self, type, RANK, c->input);
    case_value(self, type, RANK, c->weights);
    case_value(self, type, RANK, c->output);
    return self;
}

/* Prepares the case with an algorithm (NULL: the plain definition) and runs it; false: it does not fit. */
static bool run(KernelCase *self, KernelDevice *device, const ConvolutionAlgorithm *algorithm) {
    static int32_t operands[] = {0, 1};
    const IrShape *shapes[] = {&self->values[0].shape, &self->values[1].shape, &self->values[2].shape};
    self->instruction.operands = operands;
    KernelCall call = {.device = device,
                       .program = &self->program,
                       .instruction = &self->instruction,
                       .attributes = self->instruction.attributes,
                       .operand_count = 2,
                       .result_count = 1,
                       .operand_shapes = shapes,
                       .result_shapes = shapes + 2,
                       .operands = self->memory,
                       .results = self->memory + 2};
    if (convolution_prepare_with(&call, algorithm, &self->arena, &self->error) != AM_OK) return false;
    call.scratch = aligned_alloc(64, (size_t)(call.scratch_bytes + 127) / 64 * 64);
    memset(call.scratch, 0xff, (size_t)call.scratch_bytes); /* not numbers */
    memset(self->memory[2], 0xff, (size_t)ir_shape_bytes(&self->values[2].shape));
    if (algorithm) call.run(&call);
    else convolution_run_plain(&call);
    free(call.scratch);
    return true;
}

static KernelDevice *open_team(int32_t threads) {
    KernelDevice *device;
    AmError error = {0};
    KernelOptions options = {.threads = threads, .ranks_here = 1};
    assert_int_equal(kernels_cpu.open(&device, &options, &error), AM_OK);
    assert_int_equal(kernels_cpu.finish(device, &error), AM_OK);
    return device;
}

static void check(const Configuration *c, KernelDevice *device, int32_t *fitted, uint32_t seed) {
    KernelCase *self = build(c, DTYPE_F32);
    int64_t bytes = ir_shape_bytes(&self->values[2].shape);
    case_fill(self, 0, seed);
    case_fill(self, 1, seed + 1);
    assert_true(run(self, &kernel_device_cpu, NULL));
    float *expected = malloc((size_t)bytes + 1);
    memcpy(expected, self->memory[2], (size_t)bytes);
    for (int32_t k = 0; k < convolution_algorithm_count; k++) {
        if (!run(self, device, convolution_algorithms[k])) continue;
        fitted[k]++;
        for (int64_t i = 0; i < bytes / 4; i++)
            if (case_floats(self, 2)[i] != expected[i])
                fail_msg("%s, configuration %u: element %lld is %g instead of %g",
                         convolution_algorithms[k]->name, seed, (long long)i, (double)case_floats(self, 2)[i],
                         (double)expected[i]);
    }
    free(expected);
    case_free(self);
}

static void check_by(KernelDevice *device) {
    Random random;
    int32_t fitted[8] = {0};
    random_seed(&random, 7);
    for (uint32_t n = 0; n < CONFIGURATIONS; n++) {
        Configuration configuration;
        if (draw(&random, &configuration)) check(&configuration, device, fitted, n);
    }
    for (int32_t k = 0; k < convolution_algorithm_count; k++) assert_true(fitted[k] > CONFIGURATIONS / 12);
}

static void test_every_algorithm(void **state) {
    (void)state;
    check_by(&kernel_device_cpu);
}

static void test_every_algorithm_by_a_team(void **state) {
    (void)state;
    KernelDevice *device = open_team(3);
    check_by(device);
    kernels_cpu.close(device);
}

enum { DEPTH = 37, STEP = 5, SEGMENTS = 3, WIDE = TILE_MOST_COLUMNS + 3 };

/* One tile of a kind against its definition: out = or += the sum over segments and depth. */
static void check_tile(const TileKind *kind, int32_t vectors, int32_t columns, bool accumulate) {
    static float a[TILE_MOST_ROWS][SEGMENTS][DEPTH * STEP], b[SEGMENTS][DEPTH][WIDE];
    float out[TILE_MOST_ROWS][WIDE], expected[TILE_MOST_ROWS][WIDE];
    TileSegment segments[SEGMENTS];
    int32_t rows = kind->rows[vectors], first = 1;
    TileWork work = {.segments = segments,
                     .segment_count = SEGMENTS,
                     .depth = DEPTH,
                     .row_step = STEP,
                     .column_step = WIDE,
                     .row_shift = 2,
                     .column_shift = 3,
                     .out = &out[0][0],
                     .first_row = first,
                     .end_row = rows - 1,
                     .columns = columns,
                     .accumulate = accumulate};
    uint32_t seed = (uint32_t)vectors;
    for (size_t i = 0; i < sizeof a / 4; i++) (&a[0][0][0])[i] = (float)((seed = seed * 69069u + 1u) >> 29);
    for (size_t i = 0; i < sizeof b / 4; i++) (&b[0][0][0])[i] = (float)((seed = seed * 69069u + 1u) >> 29);
    for (int32_t r = 0; r < rows; r++) {
        work.out_rows[r] = r * WIDE;
        for (int32_t c = 0; c < WIDE; c++) out[r][c] = expected[r][c] = (float)(r + c);
        for (int32_t s = 0; s < SEGMENTS; s++) segments[s].rows[r] = a[r][s];
        if (r < first || r >= rows - 1) continue;
        for (int32_t c = 0; c < columns; c++) {
            float sum = accumulate ? expected[r][c] : 0;
            for (int32_t s = 0; s < SEGMENTS; s++)
                for (int32_t k = 0; k < DEPTH; k++)
                    sum += k * STEP + 2 < DEPTH * STEP ? a[r][s][k * STEP + 2] * b[s][k][c + 3] : 0;
            expected[r][c] = sum;
        }
    }
    for (int32_t s = 0; s < SEGMENTS; s++) segments[s].columns = &b[s][0][0];
    kind->run[vectors](&work);
    for (int32_t r = 0; r < rows; r++) assert_memory_equal(out[r], expected[r], sizeof out[r]);
}

static void test_every_tile(void **state) {
    (void)state;
    for (int32_t k = 0; k < tile_kind_count; k++) {
        const TileKind *kind = &tile_kinds[k];
        if (!kind->is_here()) continue;
        for (int32_t v = 1; v <= kind->most_vectors; v++)
            for (int32_t columns = 1; columns <= v * kind->width; columns++) {
                check_tile(kind, v, columns, false);
                check_tile(kind, v, columns, true);
            }
    }
}

/* Narrow types are widened, computed in the same way and rounded once. */
static void test_narrow_types(void **state) {
    (void)state;
    const Configuration configuration = {
        .window = {{3, 1, 1, 1, 1, 1, false}, {3, 1, 1, 1, 1, 1, false}},
        .form = {.input_feature = 3,
                 .kernel_input_feature = 2,
                 .kernel_output_feature = 3,
                 .output_feature = 3,
                 .spatial_count = 2,
                 .input_spatial = (const int64_t[]){1, 2},
                 .kernel_spatial = (const int64_t[]){0, 1},
                 .output_spatial = (const int64_t[]){1, 2},
                 .feature_group_count = 1,
                 .batch_group_count = 1},
        .input = {2, 5, 5, 4},
        .weights = {3, 3, 4, 6},
        .output = {2, 5, 5, 6},
    };
    KernelCase *self = build(&configuration, DTYPE_BF16);
    for (int32_t v = 0; v < 2; v++)
        for (int64_t i = 0; i < ir_shape_elements(&self->values[v].shape); i++)
            ((uint16_t *)self->memory[v])[i] = i % 3 == 0 ? 0x3f80 : i % 3 == 1 ? 0xc000 : 0; /* 1, -2, 0 */
    assert_true(run(self, &kernel_device_cpu, NULL));
    uint16_t expected[300];
    memcpy(expected, self->memory[2], sizeof expected);
    assert_true(run(self, &kernel_device_cpu, &convolution_indirect));
    assert_memory_equal(self->memory[2], expected, sizeof expected);
    case_free(self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tile),
        cmocka_unit_test(test_every_algorithm),
        cmocka_unit_test(test_every_algorithm_by_a_team),
        cmocka_unit_test(test_narrow_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
