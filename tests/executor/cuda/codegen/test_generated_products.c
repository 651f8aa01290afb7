/* dot and convolution by themselves, and the packing of operands: generated
 * kernels, compiled for the host, beside the CPU's. Values are small whole
 * numbers, so results are equal bit for bit. Skipped (77) in a build without
 * CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "executor/cuda/codegen/move/pack.h"
#include "executor/cuda/codegen/source_product.h"
#include "tests/support/generated_case.h"
#include "tests/support/product_rows.h"

typedef AmStatus Writer(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);

/* Adds the plain kernel of a case, prepared for the CPU too. */
static void add(Generated *generated, KernelCase *self, Writer *write) {
    ProgramStep step = {.instruction = 0, .fusion = -1};
    KernelCall *call;
    CudaSource source;
    if (kernel_prepare(&call, &generated->arena, &kernel_device_cpu, &self->program, &step, &self->error) !=
            AM_OK ||
        write(&source, &generated->arena, call, &self->error) != AM_OK)
        fail_msg("%s", self->error.text);
    int32_t count = generated->count;
    ARENA_RESERVE(&generated->arena, generated->sources, count, generated->capacity);
    ARENA_RESERVE(&generated->arena, generated->calls, count, generated->call_capacity);
    generated->sources[generated->count] = source;
    generated->calls[generated->count++] = call;
}

static void compare(const Generated *generated, int32_t k, KernelCase *self, const char *name) {
    KernelCall *call = generated->calls[k];
    const IrShape *shape = call->result_shapes[0];
    void *own = calloc(1, (size_t)ir_shape_bytes(shape) + 1);
    void *addresses[] = {self->memory[0], self->memory[1], own, own};
    if (call->operand_count > 2) { /* the third operand lies where the result does */
        memcpy(own, self->memory[3], (size_t)ir_shape_bytes(shape));
        call->operands[2] = self->memory[3];
    }
    call->scratch = aligned_alloc(64, (size_t)(call->scratch_bytes + 127) / 64 * 64);
    memcpy(call->operands, addresses, 2 * sizeof(void *));
    call->results[0] = self->memory[2];
    call->run(call);
    generated_run(generated, k, addresses);
    if (memcmp(own, self->memory[2], (size_t)ir_shape_bytes(shape)) != 0)
        fail_msg("%s differs, of\n%s", name, generated_text(generated, k));
    free(own);
    free(call->scratch);
}

static void test_dots(void **state) {
    (void)state;
    enum { COUNT = sizeof dot_rows / sizeof *dot_rows };
    Generated generated = {0};
    KernelCase *cases[COUNT];
    Random random;
    random_seed(&random, 5);
    for (int32_t k = 0; k < COUNT; k++) {
        cases[k] = dot_case(&dot_rows[k], &random);
        add(&generated, cases[k], cuda_source_dot);
    }
    generated_compile(&generated);
    generated_check_devices(&generated, "products", getenv("AUTOMAP_FULL"));
    for (int32_t k = 0; k < COUNT; k++) compare(&generated, k, cases[k], dot_rows[k].name);
    generated_free(&generated);
    for (int32_t k = 0; k < COUNT; k++) case_free(cases[k]);
}

static void test_added_dots(void **state) {
    (void)state;
    enum { COUNT = sizeof dot_rows / sizeof *dot_rows };
    Generated generated = {0};
    KernelCase *cases[COUNT];
    int32_t count = 0;
    Random random;
    random_seed(&random, 7);
    for (int32_t k = 0; k < COUNT; k++) {
        if (dot_rows[k].result_type != DTYPE_F32) continue;
        cases[count] = product_add_addend(dot_case(&dot_rows[k], &random), &random);
        add(&generated, cases[count++], cuda_source_dot);
    }
    assert_true(count > 5);
    generated_compile(&generated);
    generated_check_devices(&generated, "products", getenv("AUTOMAP_FULL"));
    for (int32_t k = 0; k < count; k++) compare(&generated, k, cases[k], "an added product");
    generated_free(&generated);
    for (int32_t k = 0; k < count; k++) case_free(cases[k]);
}

static void test_convolutions(void **state) {
    (void)state;
    enum { COUNT = sizeof convolution_rows / sizeof *convolution_rows };
    Generated generated = {0};
    KernelCase *cases[COUNT];
    Random random;
    random_seed(&random, 6);
    for (int32_t k = 0; k < COUNT; k++) {
        cases[k] = convolution_case(&convolution_rows[k], &random);
        add(&generated, cases[k], cuda_source_convolution);
    }
    generated_compile(&generated);
    generated_check_devices(&generated, "products", getenv("AUTOMAP_FULL"));
    for (int32_t k = 0; k < COUNT; k++) compare(&generated, k, cases[k], convolution_rows[k].name);
    generated_free(&generated);
    for (int32_t k = 0; k < COUNT; k++) case_free(cases[k]);
}

/* out[j, i] = in[i, j] with a border above, and a crop of the other dimension. */
static void test_pack(void **state) {
    (void)state;
    Generated generated = {0};
    float in[4 * 5], out[3 * 6];
    void *addresses[] = {in, out};
    CudaSource source;
    CudaPack pack = {.rank = 2, .sizes = {3, 6}, .strides = {1, 5}, .low = {-2, 1}, .limits = {5, 4}};
    for (int32_t k = 0; k < 20; k++) in[k] = (float)k;
    assert_int_equal(cuda_source_pack(&source, &generated.arena, &pack, DTYPE_F32, NULL), AM_OK);
    generated.sources = &source;
    generated.count = 1;
    generated_compile(&generated);
    generated_check_devices(&generated, "products", getenv("AUTOMAP_FULL"));
    generated_run(&generated, 0, addresses);
    for (int32_t j = 0; j < 3; j++)
        for (int32_t i = 0; i < 6; i++) {
            bool inside = i >= 1 && i - 1 < 4;
            assert_float_equal(out[j * 6 + i], inside ? (float)((i - 1) * 5 + j + 2) : 0, 0);
        }
    generated_free(&generated);
}

/* Dimensions of an array in any order, some of them padded or cropped; sizes that words divide, and
 * others. */
static int64_t random_pack(CudaPack *pack, Random *random) {
    static const int64_t sizes[] = {1, 3, 8, 16, 34, 40, 70};
    int64_t dimensions[4], strides[4], elements = 1;
    int32_t order[4], rank = 1 + (int32_t)random_below(random, 4);
    *pack = (CudaPack){.rank = 0};
    for (int32_t d = 0; d < rank; d++) {
        dimensions[d] = sizes[random_below(random, d + 2 < rank ? 3 : 7)];
        order[d] = d;
    }
    for (int32_t d = rank - 1; d >= 0; d--) {
        strides[d] = elements;
        elements *= dimensions[d];
    }
    for (int32_t d = 0; d < rank; d++) {
        int32_t other = (int32_t)random_below(random, (uint64_t)rank), was = order[d];
        if (random_below(random, 2) == 0) continue;
        order[d] = order[other];
        order[other] = was;
    }
    for (int32_t d = 0; d < rank; d++) {
        cuda_pack_add(pack, dimensions[order[d]], strides[order[d]]);
        if (random_below(random, 3) > 0) continue;
        int64_t border = (int64_t)random_below(random, 9), end = (int64_t)random_below(random, 9);
        if (random_below(random, 2) == 0 && border < pack->sizes[d]) {
            pack->low[d] = -border;
            pack->sizes[d] -= border;
        } else {
            pack->low[d] = border;
            pack->sizes[d] += border + end;
        }
    }
    return elements;
}

/* Byte `b` of element `i` of the pack. */
static uint8_t expected_byte(const CudaPack *pack, const uint8_t *array, int64_t bytes, int64_t i,
                             int64_t b) {
    int64_t place = pack->offset;
    for (int32_t d = pack->rank - 1; d >= 0; d--) {
        int64_t p = i % pack->sizes[d] - pack->low[d];
        if (p < 0 || p >= pack->limits[d]) return 0;
        place += p * pack->strides[d];
        i /= pack->sizes[d];
    }
    return array[place * bytes + b];
}

static void test_random_packs(void **state) {
    (void)state;
    enum { COUNT = 120 };
    static const Dtype types[] = {DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_F64, DTYPE_C128};
    Generated generated = {.sources = calloc(COUNT, sizeof(CudaSource)), .count = COUNT};
    CudaPack packs[COUNT];
    int64_t elements[COUNT];
    Random random;
    random_seed(&random, 9);
    for (int32_t k = 0; k < COUNT; k++) {
        elements[k] = random_pack(&packs[k], &random);
        assert_int_equal(
            cuda_source_pack(&generated.sources[k], &generated.arena, &packs[k], types[k % 5], NULL), AM_OK);
    }
    generated_compile(&generated);
    for (int32_t k = 0; k < COUNT; k++) {
        int64_t bytes = dtype_bytes(types[k % 5]), in_bytes = elements[k] * bytes;
        int64_t out_bytes = cuda_pack_elements(&packs[k]) * bytes;
        uint8_t *in = aligned_alloc(64, (size_t)in_bytes / 64 * 64 + 64);
        uint8_t *out = aligned_alloc(64, (size_t)out_bytes / 64 * 64 + 64);
        for (int64_t i = 0; i < in_bytes; i++) in[i] = (uint8_t)random_bits(&random);
        memset(out, 0xA5, (size_t)out_bytes / 64 * 64 + 64);
        generated_run(&generated, k, (void *[]){in, out});
        for (int64_t i = 0; i < out_bytes; i++)
            if (out[i] != expected_byte(&packs[k], in, bytes, i / bytes, i % bytes))
                fail_msg("byte %lld of pack %d differs, of\n%s", (long long)i, k,
                         generated_text(&generated, k));
        for (int64_t i = out_bytes; i < out_bytes / 64 * 64 + 64; i++) assert_int_equal(out[i], 0xA5);
        free(in);
        free(out);
    }
    free(generated.sources);
    generated_free(&generated);
}

/* Operators that the CPU refuses are refused. */
static void test_refusals(void **state) {
    (void)state;
    static const DotCase row = {"complex", DTYPE_C64, DTYPE_C64, DTYPE_C64, {2, 3}, {3, 2}, 0,
                                1,         {0},       {0},       {1},       {0},    0,      1};
    Generated generated = {0};
    Random random;
    random_seed(&random, 7);
    KernelCase *self = dot_case(&row, &random);
    KernelCall call = {.program = &self->program,
                       .instruction = &self->instruction,
                       .attributes = self->instruction.attributes};
    const IrShape *shapes[] = {&self->values[0].shape, &self->values[1].shape, &self->values[2].shape};
    CudaSource source;
    call.operand_shapes = shapes;
    call.result_shapes = shapes + 2;
    call.operand_count = 2;
    call.result_count = 1;
    assert_int_equal(cuda_source_dot(&source, &generated.arena, &call, &self->error), AM_ERROR_INPUT);
    assert_non_null(strstr(self->error.text, "not on these types"));
    generated_free(&generated);
    case_free(self);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dots),         cmocka_unit_test(test_added_dots),
                                       cmocka_unit_test(test_convolutions), cmocka_unit_test(test_pack),
                                       cmocka_unit_test(test_random_packs), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
