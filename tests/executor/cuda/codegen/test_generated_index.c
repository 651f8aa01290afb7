/* gather and scatter: the generated kernels, compiled for the host, beside the
 * CPU's: repeated, negative and too large indices, windows that meet, batching
 * dimensions, shards. Skipped (77) in a build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include "tests/support/generated_module.h"

#define SUM(type) \
    "f { a = " type "[] parameter(0) b = " type "[] parameter(1) ROOT c = " type "[] add(a, b) }\n"
/* Not commutative: shows the order. */
#define MIX(type)                                                   \
    "f { a = " type "[] parameter(0) b = " type "[] parameter(1)\n" \
    "  d = " type "[] add(a, a) ROOT c = " type "[] subtract(b, d) }\n"
#define SET(type) "f { a = " type "[] parameter(0) ROOT b = " type "[] parameter(1) }\n"

static const char *const gathers[] = {
    "ENTRY e { x = f32[10,3] parameter(0) i = s32[60] parameter(1) ROOT r = f32[60,3] gather(x, i),\n"
    "  offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,3} }\n",
    "ENTRY e { x = bf16[6,7] parameter(0) i = s64[9,2] parameter(1) ROOT r = bf16[9,2,3] gather(x, i),\n"
    "  offset_dims={1,2}, collapsed_slice_dims={}, start_index_map={1,0}, index_vector_dim=1, "
    "slice_sizes={2,3} }\n",
    "ENTRY e { x = u8[2,3,5] parameter(0) i = u64[2,3,1] parameter(1) ROOT r = u8[2,3] gather(x, i),\n"
    "  offset_dims={}, collapsed_slice_dims={2}, start_index_map={2}, operand_batching_dims={0,1},\n"
    "  start_indices_batching_dims={0,1}, index_vector_dim=2, slice_sizes={1,1,1} }\n",
    /* Windows whose last dimension moves in words. */
    "ENTRY e { x = bf16[10,24] parameter(0) i = s32[60] parameter(1) ROOT r = bf16[60,24] gather(x, i),\n"
    "  offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,24} }\n",
    "ENTRY e { x = u8[4,9,12] parameter(0) i = s32[4,7,1] parameter(1) ROOT r = u8[4,7,2,8] gather(x, i),\n"
    "  offset_dims={2,3}, collapsed_slice_dims={}, start_index_map={1}, operand_batching_dims={0},\n"
    "  start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,2,8} }\n",
    "ENTRY e { x = c128[8,4] parameter(0) i = s8[5,7] parameter(1) ROOT r = c128[4,5,7] gather(x, i),\n"
    "  offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, "
    "slice_sizes={1,4} }\n",
};

#define ROWS                                                                                 \
    "  update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, " \
    "index_vector_dim=1, to_apply=f }\n"

static const char *const scatters[] = {
    SUM("f32") "ENTRY e { x = f32[9,5] parameter(0) i = s32[70] parameter(1) u = f32[70,5] parameter(2)\n"
               "  ROOT r = f32[9,5] scatter(x, i, u)," ROWS,
    MIX("bf16") "ENTRY e { x = bf16[9,5] parameter(0) i = s32[70] parameter(1) u = bf16[70,5] parameter(2)\n"
                "  ROOT r = bf16[9,5] scatter(x, i, u)," ROWS,
    SET("s64") "ENTRY e { x = s64[9,5] parameter(0) i = u8[70] parameter(1) u = s64[70,3] parameter(2)\n"
               "  ROOT r = s64[9,5] scatter(x, i, u)," ROWS,
    SET("f16") "ENTRY e { x = f16[9,5] parameter(0) i = u64[1] parameter(1) u = f16[1,5] parameter(2)\n"
               "  ROOT r = f16[9,5] scatter(x, i, u)," ROWS,
    MIX("s32") "ENTRY e { x = s32[11,6,8] parameter(0) i = s32[3,9,2] parameter(1)\n"
               "  u = s32[3,4,9] parameter(2) ROOT r = s32[11,6,8] scatter(x, i, u),\n"
               "  update_window_dims={1}, inserted_window_dims={0,2}, scatter_dims_to_operand_dims={2,0},\n"
               "  index_vector_dim=2, to_apply=f }\n",
    /* Windows of 2 x 3, which meet. */
    MIX("f32") "ENTRY e { x = f32[6,7] parameter(0) i = s32[20,2] parameter(1) u = f32[20,2,3] parameter(2)\n"
               "  ROOT r = f32[6,7] scatter(x, i, u), update_window_dims={1,2}, inserted_window_dims={},\n"
               "  scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=f }\n",
    SUM("u16") "ENTRY e { x = u16[2,3,5] parameter(0) i = s32[2,3,1] parameter(1) u = u16[2,3] parameter(2)\n"
               "  ROOT r = u16[2,3,5] scatter(x, i, u), update_window_dims={}, inserted_window_dims={2},\n"
               "  scatter_dims_to_operand_dims={2}, input_batching_dims={0,1}, "
               "scatter_indices_batching_dims={0,1},\n  index_vector_dim=2, to_apply=f }\n",
    /* Batching dimensions beside windows that meet. */
    MIX("f64") "ENTRY e { x = f64[4,9] parameter(0) i = s32[4,6,1] parameter(1) u = f64[4,6,2] parameter(2)\n"
               "  ROOT r = f64[4,9] scatter(x, i, u), update_window_dims={2}, inserted_window_dims={},\n"
               "  scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
               "scatter_indices_batching_dims={0},\n  index_vector_dim=2, to_apply=f }\n",
    /* More entries than a tile holds: rows, single elements, and windows of 2 x 3 beside rows of 4. */
    MIX("f32") "ENTRY e { x = f32[40,3] parameter(0) i = s32[5000] parameter(1) u = f32[5000,3] "
               "parameter(2)\n"
               "  ROOT r = f32[40,3] scatter(x, i, u)," ROWS,
    MIX("bf16") "ENTRY e { x = bf16[90] parameter(0) i = s32[3,1500] parameter(1) u = bf16[3,1500] "
                "parameter(2)\n"
                "  ROOT r = bf16[90] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0},\n"
                "  scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=f }\n",
    MIX("s32") "ENTRY e { x = s32[9,30,4] parameter(0) i = s32[700,2] parameter(1)\n"
               "  u = s32[2,700,3,4] parameter(2) ROOT r = s32[9,30,4] scatter(x, i, u),\n"
               "  update_window_dims={0,2,3}, inserted_window_dims={}, scatter_dims_to_operand_dims={0,1},\n"
               "  index_vector_dim=1, to_apply=f }\n",
    SUM("f32") "ENTRY e { x = f32[9,5] parameter(0) i = s32[0] parameter(1) u = f32[0,5] parameter(2)\n"
               "  ROOT r = f32[9,5] scatter(x, i, u)," ROWS,
};

/* Rows, and windows of 2 x 3, of a shard that begins at row `first`. */
static KernelCase *new_shard(IrOpcode opcode, bool windows, int64_t first, int64_t local, int64_t columns) {
    KernelCase *c = case_new(opcode);
    bool is_scatter = opcode == IR_SCATTER;
    VALUE(c, DTYPE_F32, local, columns);
    if (windows) VALUE(c, DTYPE_S32, 20, 2);
    else VALUE(c, DTYPE_S32, 20);
    if (windows) VALUE(c, DTYPE_F32, 20, 2, 3);
    else VALUE(c, DTYPE_F32, 20, columns);
    if (is_scatter) VALUE(c, DTYPE_F32, local, columns);
    IrGather *form = ARENA_ARRAY(&c->arena, IrGather, 1);
    ProgramShard *shard = ARENA_ARRAY(&c->arena, ProgramShard, 1);
    *form = (IrGather){.offset_count = windows ? 2 : 1,
                       .collapsed_count = windows ? 0 : 1,
                       .index_map_count = windows ? 2 : 1,
                       .offset_dimensions = LIST(c, 1, 2),
                       .collapsed_dimensions = LIST(c, 0),
                       .start_index_map = LIST(c, 0, 1),
                       .index_vector_dimension = 1,
                       .slice_sizes = is_scatter ? NULL
                                      : windows  ? LIST(c, 2, 3)
                                                 : LIST(c, 1, columns)};
    *shard = (ProgramShard){.start = LIST(c, first, 0), .global = LIST(c, 9, columns)};
    c->attributes = (IrAttributes){.gather = form};
    c->instruction.compute.shard = shard;
    if (is_scatter) c->instruction.compute.called = case_computation(c, IR_SUBTRACT, DTYPE_F32, DTYPE_F32);
    return c;
}

/* A window of two rows that indices move over a shard which begins at row `first` of 9. */
static KernelCase *new_dynamic(IrOpcode opcode, int64_t first, int64_t local, int64_t columns) {
    KernelCase *c = case_new(opcode);
    bool is_update = opcode == IR_DYNAMIC_UPDATE_SLICE;
    ProgramShard *shard = ARENA_ARRAY(&c->arena, ProgramShard, 1);
    *shard = (ProgramShard){
        .start = LIST(c, first, 0), .global = LIST(c, 9, columns), .window = LIST(c, 2, columns)};
    VALUE(c, DTYPE_F32, local, columns);
    if (is_update) VALUE(c, DTYPE_F32, 2, columns);
    case_value(c, DTYPE_S32, 0, NULL);
    case_value(c, DTYPE_S32, 0, NULL);
    if (is_update) VALUE(c, DTYPE_F32, local, columns);
    else VALUE(c, DTYPE_F32, 2, columns);
    c->attributes = (IrAttributes){.slice_sizes = is_update ? NULL : shard->window};
    c->instruction.compute.shard = shard;
    return c;
}

/* Bits of a part of the whole: columns 3 to 6 of 10. */
static KernelCase *new_random(IrRandomAlgorithm algorithm, Dtype type) {
    KernelCase *c = case_new(IR_RNG_BIT_GENERATOR);
    IrOptions *options = ARENA_ARRAY(&c->arena, IrOptions, 1);
    ProgramShard *shard = ARENA_ARRAY(&c->arena, ProgramShard, 1);
    *options = (IrOptions){.random = algorithm};
    *shard = (ProgramShard){.start = LIST(c, 0, 3), .global = LIST(c, 7, 10)};
    VALUE(c, DTYPE_U64, 2);
    VALUE(c, DTYPE_U64, 2);
    VALUE(c, type, 7, 4);
    c->attributes = (IrAttributes){.options = options};
    c->instruction.compute.shard = shard;
    return c;
}

static void test_parts(void **state) {
    (void)state;
    static const IrRandomAlgorithm algorithms[] = {IR_RANDOM_PHILOX, IR_RANDOM_THREEFRY};
    static const Dtype types[] = {DTYPE_U8, DTYPE_U32, DTYPE_U64};
    GeneratedModules *modules = calloc(1, sizeof *modules);
    KernelCase *parts[32];
    int32_t count = 0;
    for (int update = 0; update < 2; update++)
        for (int64_t first = 0; first < 8; first += 3) {
            IrOpcode opcode = update ? IR_DYNAMIC_UPDATE_SLICE : IR_DYNAMIC_SLICE;
            for (int64_t columns = 5; columns < 12; columns += 3) {
                KernelCase *part = parts[count++] = new_dynamic(opcode, first, 3, columns);
                generated_add_case(&modules->generated, part, 1);
            }
        }
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            generated_add_case(&modules->generated, parts[count] = new_random(algorithms[a], types[t]), 2);
            count++;
        }
    generated_finish(modules, true, 0);
    for (int32_t k = 0; k < count; k++) case_free(parts[k]);
}

static void test_gather_and_scatter(void **state) {
    (void)state;
    GeneratedModules *modules = calloc(1, sizeof *modules);
    KernelCase *shards[16];
    int32_t count = 0;
    for (size_t k = 0; k < sizeof gathers / sizeof *gathers; k++) generated_add_text(modules, gathers[k]);
    for (size_t k = 0; k < sizeof scatters / sizeof *scatters; k++) generated_add_text(modules, scatters[k]);
    for (int scatter = 0; scatter < 2; scatter++)
        for (int windows = 0; windows < 2; windows++)
            for (int64_t first = 0; first < 8; first += 3) {
                IrOpcode opcode = scatter ? IR_SCATTER : IR_GATHER;
                KernelCase *c = shards[count++] =
                    new_shard(opcode, windows, first, first == 3 ? 4 : 3, windows ? 40 : 5);
                generated_add_case(&modules->generated, c, 1);
            }
    generated_finish(modules, true, 0);
    for (int32_t k = 0; k < count; k++) case_free(shards[k]);
}

/* Basic blocks that one scatter of `positions` rows runs. Their indices are all 7, or spread over `rows`. */
static uint64_t steps_of_scatter(int32_t positions, int32_t rows, bool repeated) {
    GeneratedModules *modules = calloc(1, sizeof *modules);
    char text[512];
    snprintf(text, sizeof text,
             SUM("f32") "ENTRY e { x = f32[%d,2] parameter(0) i = s32[%d] parameter(1)\n"
                        "  u = f32[%d,2] parameter(2) ROOT r = f32[%d,2] scatter(x, i, u)," ROWS,
             rows, positions, positions, rows);
    modules->generated.counts = true;
    generated_add_text(modules, text);
    generated_compile(&modules->generated);
    float *array = calloc((size_t)rows * 2, sizeof *array),
          *result = calloc((size_t)rows * 2, sizeof *result);
    float *updates = calloc((size_t)positions * 2, sizeof *updates);
    int32_t *indices = calloc((size_t)positions, sizeof *indices);
    for (int32_t k = 0; k < positions; k++) indices[k] = repeated ? 7 : (int32_t)(k * 7919ll % rows);
    for (int32_t k = 0; k < 2 * positions; k++) updates[k] = 1;
    generated_run(&modules->generated, 0, (void *[]){array, indices, updates, result});
    float sum = 0;
    for (int32_t k = 0; k < 2 * rows; k++) sum += result[k];
    assert_true(sum == 2.0f * (float)positions);
    uint64_t steps = generated_steps(&modules->generated);
    free(array);
    free(result);
    free(updates);
    free(indices);
    module_close(&modules->modules[0]);
    generated_free(&modules->generated);
    free(modules);
    return steps;
}

/* Eight times the positions cost at most sixteen times the work, repeated or not: no loop runs over all. */
static void test_scatter_grows_with_its_positions(void **state) {
    (void)state;
    for (int repeated = 0; repeated < 2; repeated++) {
        uint64_t few = steps_of_scatter(1024, 500, repeated), many = steps_of_scatter(8192, 4000, repeated);
        if (many > 16 * few)
            fail_msg("1,024 positions take %llu steps, 8,192 take %llu", (unsigned long long)few,
                     (unsigned long long)many);
    }
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gather_and_scatter),
                                       cmocka_unit_test(test_scatter_grows_with_its_positions),
                                       cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
