/* Every element-wise operator on every type, with corner cases: the generated kernel, compiled for
 * the host, compared with the CPU's; operators that the CPU refuses are refused. AUTOMAP_FULL:
 * NVRTC compiles them too. Skipped (77) in a build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/generated_module.h"

enum { ELEMENTS = 600, MOST_CASES = 2048 };

static const Dtype types[] = {DTYPE_PRED, DTYPE_S8,  DTYPE_S16, DTYPE_S32,  DTYPE_S64, DTYPE_U8,  DTYPE_U16,
                              DTYPE_U32,  DTYPE_U64, DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64, DTYPE_C64};
enum { TYPE_COUNT = sizeof types / sizeof *types };

static const struct {
    IrOpcode opcode;
    int32_t arity;
    const char *rule, *results;
} operators[] = {
#define OPCODE(name, text, arity, rule, linearity, cost, flops, shape, operands, results, facts) \
    {IR_##name, arity, #rule, #results},
#include "ir/opcodes.def"
#undef OPCODE
};

/* One instruction, its CPU call and where its kernel is. */
typedef struct Case {
    KernelCase *values;
    KernelCall *call;
    int32_t kernel;
} Case;

typedef struct Cases {
    Generated generated;
    Random random;
    Case list[MOST_CASES];
    int32_t count, refused;
} Cases;

/* Adds an instruction whose operands have the given types, if there is a kernel for it. */
static void add(Cases *self, IrOpcode opcode, const IrAttributes *attributes, int32_t arity,
                const Dtype *operands, Dtype result) {
    KernelCase *values = case_new(opcode);
    KernelCall *call;
    CudaSource source;
    AmError error = {0};
    for (int32_t k = 0; k < arity; k++) {
        int32_t v = VALUE(values, operands[k], ELEMENTS);
        generated_fill(values->memory[v], operands[k], ELEMENTS, k == 1, &self->random);
    }
    VALUE(values, result, ELEMENTS);
    if (attributes) values->attributes = *attributes;
    values->instruction.operands = memcpy(ARENA_ARRAY(&values->arena, int32_t, 3), (int32_t[]){0, 1, 2}, 12);
    values->instruction.operand_count = values->instruction.first_result = arity;
    values->instruction.result_count = 1;
    ProgramStep step = {.instruction = 0, .fusion = -1};
    AmStatus status =
        kernel_prepare(&call, &values->arena, &kernel_device_cpu, &values->program, &step, &error);
    AmStatus generated = cuda_source_make(&source, &values->arena, call, &error);
    if (status != generated)
        fail_msg("%s on %s: the CPU says %d, the generator %d", ir_opcode_name(opcode),
                 dtype_name(arity > 0 ? operands[0] : result), status, generated);
    if (status != AM_OK) {
        self->refused++;
        case_free(values);
        return;
    }
    assert_true(self->count < MOST_CASES);
    generated_add(&self->generated, call);
    self->list[self->count++] = (Case){values, call, generated_find(&self->generated, &source)};
}

static void add_table(Cases *self) {
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        IrOpcode opcode = operators[k].opcode;
        int32_t arity = operators[k].arity;
        if (strcmp(operators[k].rule, "ELEMENTWISE") != 0 || opcode == IR_COMPARE || opcode == IR_CONVERT ||
            opcode == IR_BITCAST_CONVERT || opcode == IR_COMPLEX || opcode == IR_REAL || opcode == IR_IMAG ||
            opcode == IR_STOCHASTIC_CONVERT || opcode == IR_REDUCE_PRECISION)
            continue;
        for (int32_t t = 0; t < TYPE_COUNT; t++) {
            Dtype operands[3] = {opcode == IR_SELECT ? DTYPE_PRED : types[t], types[t], types[t]};
            bool is_pred = strcmp(operators[k].results, "PRED") == 0;
            add(self, opcode, NULL, arity, operands, is_pred ? DTYPE_PRED : types[t]);
        }
    }
}

static void add_others(Cases *self) {
    static const char *const directions[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
    for (int32_t t = 0; t < TYPE_COUNT; t++) {
        for (int32_t d = 0; d < 12; d++) {
            IrAttributes compare = {.comparison = directions[d % 6],
                                    .comparison_type = d < 6 ? NULL : "TOTALORDER"};
            add(self, IR_COMPARE, &compare, 2, (Dtype[]){types[t], types[t]}, DTYPE_PRED);
        }
        static const int64_t first = 0;
        IrAttributes iota = {.dimension_count = 1, .dimensions = &first};
        add(self, IR_IOTA, &iota, 0, NULL, types[t]);
        for (int32_t to = 0; to < TYPE_COUNT; to++) {
            add(self, IR_CONVERT, NULL, 1, &types[t], types[to]);
            if (dtype_bits(types[t]) == dtype_bits(types[to]) && types[t] != types[to] &&
                types[t] != DTYPE_PRED && types[to] != DTYPE_PRED)
                add(self, IR_BITCAST_CONVERT, NULL, 1, &types[t], types[to]);
        }
    }
    static const Dtype parts[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        add(self, IR_COMPLEX, NULL, 2, (Dtype[]){parts[k], parts[k]}, DTYPE_C64);
        add(self, IR_REAL, NULL, 1, (Dtype[]){DTYPE_C64}, parts[k]);
        add(self, IR_IMAG, NULL, 1, (Dtype[]){DTYPE_C64}, parts[k]);
        add(self, IR_ABS, NULL, 1, (Dtype[]){DTYPE_C64}, parts[k]);
    }
    static const int32_t precisions[][2] = {{5, 10}, {8, 7}, {4, 3}, {8, 23}, {5, 0}, {11, 52}};
    for (size_t k = 0; k < sizeof precisions / sizeof *precisions; k++) {
        IrAttributes bits = {.exponent_bits = precisions[k][0], .mantissa_bits = precisions[k][1]};
        add(self, IR_REDUCE_PRECISION, &bits, 1, (Dtype[]){DTYPE_F32}, DTYPE_F32);
        add(self, IR_REDUCE_PRECISION, &bits, 1, (Dtype[]){DTYPE_F16}, DTYPE_F16);
    }
}

static void run_case(const Cases *self, const Case *one) {
    KernelCase *values = one->values;
    int32_t result = values->program.value_count - 1;
    Dtype type = values->values[result].shape.type;
    void *addresses[4], *out = calloc(ELEMENTS, 8);
    for (int32_t k = 0; k < result; k++) addresses[k] = one->call->operands[k] = values->memory[k];
    addresses[result] = out;
    one->call->results[0] = values->memory[result];
    one->call->scratch = aligned_alloc(64, (size_t)(one->call->scratch_bytes + 127) / 64 * 64);
    one->call->run(one->call);
    generated_run(&self->generated, one->kernel, addresses);
    bool is_complex = type == DTYPE_C64 || values->values[0].shape.type == DTYPE_C64;
    double tolerance = generated_tolerance(type) * (is_complex ? 64 : 1);
    int64_t at = generated_difference(out, values->memory[result], type, ELEMENTS, tolerance, 0);
    if (at >= 0)
        fail_msg("element %lld differs, of\n%s", (long long)at,
                 generated_text(&self->generated, one->kernel));
    free(one->call->scratch);
    free(out);
}

static void test_every_operator_on_every_type(void **state) {
    (void)state;
    Cases *cases = calloc(1, sizeof *cases);
    random_seed(&cases->random, 1);
    add_table(cases);
    add_others(cases);
    assert_true(cases->count > 600);
    assert_true(cases->refused > 100);
    generated_compile(&cases->generated);
    generated_check_devices(&cases->generated, "every operator", getenv("AUTOMAP_FULL"));
    for (int32_t k = 0; k < cases->count; k++) run_case(cases, &cases->list[k]);
    for (int32_t k = 0; k < cases->count; k++) case_free(cases->list[k].values);
    generated_free(&cases->generated);
    free(cases);
}

/* Every bfloat16, and every float whose upper half is one, with lower halves around those that round. NaN
 * keeps its upper bits and turns quiet. */
static void test_every_bfloat16(void **state) {
    (void)state;
    enum { COUNT = 1 << 16, LOWER = 6 };
    static const uint32_t lower[LOWER] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    GeneratedModules *modules = calloc(1, sizeof *modules);
    generated_add_text(modules,
                       "ENTRY e { x = f32[393216] parameter(0) ROOT r = bf16[393216] convert(x) }\n");
    generated_add_text(modules, "ENTRY e { x = bf16[65536] parameter(0) ROOT r = f32[65536] convert(x) }\n");
    generated_compile(&modules->generated);
    uint32_t *wide = aligned_alloc(64, (size_t)COUNT * LOWER * 4);
    uint16_t *narrow = aligned_alloc(64, (size_t)COUNT * LOWER * 2);
    for (uint32_t k = 0; k < COUNT * LOWER; k++) wide[k] = k / LOWER << 16 | lower[k % LOWER];
    generated_run(&modules->generated, 0, (void *[]){wide, narrow});
    for (uint32_t k = 0; k < COUNT * LOWER; k++) {
        float value;
        memcpy(&value, &wide[k], 4);
        uint16_t expected = isnan(value) ? (uint16_t)(wide[k] >> 16 | 0x40) : dtype_float_to_bf16(value);
        if (narrow[k] != expected)
            fail_msg("0x%08x gives 0x%04x, expected 0x%04x", wide[k], narrow[k], expected);
        if (isnan(value)) assert_int_equal(dtype_float_to_bf16(value), expected);
    }
    for (uint32_t k = 0; k < COUNT; k++) narrow[k] = (uint16_t)k;
    generated_run(&modules->generated, 1, (void *[]){narrow, wide});
    for (uint32_t k = 0; k < COUNT; k++) assert_int_equal(wide[k], k << 16);
    free(wide);
    free(narrow);
    for (int32_t k = 0; k < modules->count; k++) module_close(&modules->modules[k]);
    generated_free(&modules->generated);
    free(modules);
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_operator_on_every_type),
                                       cmocka_unit_test(test_every_bfloat16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
