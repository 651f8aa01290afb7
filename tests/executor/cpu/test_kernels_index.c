/* gather and scatter: clamping and skipping in the whole, shards that add up to it. */
#include "tests/support/kernel_case.h"

enum { ROWS = 10, WIDTH = 3, COUNT = 6 };
static const int32_t names[COUNT] = {3, -4, 9, 12, 3, 0};

static IrGather row_form(KernelCase *c) {
    return (IrGather){.offset_count = 1,
                      .collapsed_count = 1,
                      .index_map_count = 1,
                      .offset_dimensions = LIST(c, 1),
                      .collapsed_dimensions = LIST(c, 0),
                      .start_index_map = LIST(c, 0),
                      .index_vector_dimension = 1,
                      .slice_sizes = LIST(c, 1, WIDTH)};
}

/* Rows of a table; a shard of rows [first, first + rows) gives zeros for the others. */
static void check_gather_rows(int64_t first, int64_t rows) {
    KernelCase *c = case_new(IR_GATHER);
    int32_t table = VALUE(c, DTYPE_F32, rows, WIDTH), index = VALUE(c, DTYPE_S32, COUNT);
    int32_t y = VALUE(c, DTYPE_F32, COUNT, WIDTH);
    IrGather form = row_form(c);
    ProgramShard shard = {.start = LIST(c, first, 0), .global = LIST(c, ROWS, WIDTH)};
    c->attributes = (IrAttributes){.gather = &form};
    if (rows < ROWS) c->instruction.compute.shard = &shard;
    for (int64_t i = 0; i < rows * WIDTH; i++) case_floats(c, table)[i] = (float)(first * WIDTH + i + 1);
    memcpy(c->memory[index], names, sizeof names);
    for (int i = 0; i < COUNT * WIDTH; i++) case_floats(c, y)[i] = 99;
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int n = 0; n < COUNT; n++) {
        int64_t row = names[n] < 0 ? 0 : names[n] > ROWS - 1 ? ROWS - 1 : names[n];
        for (int j = 0; j < WIDTH; j++) {
            float expected = row >= first && row < first + rows ? (float)(row * WIDTH + j + 1) : 0;
            assert_true(case_floats(c, y)[n * WIDTH + j] == expected);
        }
    }
    case_free(c);
}

static void test_gather_rows(void **state) {
    (void)state;
    check_gather_rows(0, ROWS);
    check_gather_rows(0, 4);
    check_gather_rows(4, 5);
    check_gather_rows(9, 1);
}

static void check_scatter_rows(int64_t first, int64_t rows) {
    KernelCase *c = case_new(IR_SCATTER);
    int32_t table = VALUE(c, DTYPE_F32, rows, WIDTH), index = VALUE(c, DTYPE_S32, COUNT);
    int32_t updates = VALUE(c, DTYPE_F32, COUNT, WIDTH), y = VALUE(c, DTYPE_F32, rows, WIDTH);
    IrGather form = row_form(c);
    form.slice_sizes = NULL;
    ProgramShard shard = {.start = LIST(c, first, 0), .global = LIST(c, ROWS, WIDTH)};
    c->attributes = (IrAttributes){.gather = &form};
    if (rows < ROWS) c->instruction.compute.shard = &shard;
    c->instruction.compute.called = case_computation(c, IR_ADD, DTYPE_F32, DTYPE_F32);
    case_fill(c, table, 1);
    case_fill(c, updates, 2);
    memcpy(c->memory[index], names, sizeof names);
    float expected[ROWS * WIDTH];
    memcpy(expected, c->memory[table], sizeof(float) * (size_t)(rows * WIDTH));
    for (int n = 0; n < COUNT; n++)
        for (int j = 0; j < WIDTH; j++)
            if (names[n] >= first && names[n] < first + rows)
                expected[(names[n] - first) * WIDTH + j] += case_floats(c, updates)[n * WIDTH + j];
    assert_int_equal(case_run(c, NULL, 1), AM_OK);
    for (int i = 0; i < rows * WIDTH; i++) assert_true(case_floats(c, y)[i] == expected[i]);
    case_free(c);
}

static void test_scatter_rows(void **state) {
    (void)state;
    check_scatter_rows(0, ROWS);
    check_scatter_rows(0, 4);
    check_scatter_rows(3, 7);
}

/* take_along_axis: one element per position, batching dimensions 0 and 1. */
static void test_batching_dimensions(void **state) {
    (void)state;
    enum { B = 2, T = 3, V = 5 };
    for (int scatter = 0; scatter < 2; scatter++) {
        KernelCase *c = case_new(scatter ? IR_SCATTER : IR_GATHER);
        int32_t x = VALUE(c, DTYPE_F32, B, T, V), index = VALUE(c, DTYPE_S32, B, T, 1, 1);
        int32_t updates = scatter ? VALUE(c, DTYPE_F32, B, T, 1) : -1;
        int32_t y = scatter ? VALUE(c, DTYPE_F32, B, T, V) : VALUE(c, DTYPE_F32, B, T, 1);
        IrGather form = {.collapsed_count = 1,
                         .index_map_count = 1,
                         .batching_count = 2,
                         .collapsed_dimensions = LIST(c, 2),
                         .start_index_map = LIST(c, 2),
                         .operand_batching = LIST(c, 0, 1),
                         .indices_batching = LIST(c, 0, 1),
                         .index_vector_dimension = 3,
                         .slice_sizes = LIST(c, 1, 1, 1)};
        c->attributes = (IrAttributes){.gather = &form};
        case_fill(c, x, 5);
        for (int i = 0; i < B * T; i++) ((int32_t *)c->memory[index])[i] = (i * 3 + 1) % V;
        if (scatter) {
            c->instruction.compute.called = case_computation(c, IR_ADD, DTYPE_F32, DTYPE_F32);
            case_fill(c, updates, 6);
        }
        assert_int_equal(case_run(c, NULL, 1), AM_OK);
        for (int i = 0; i < B * T; i++)
            for (int v = 0; v < V; v++) {
                float value = case_floats(c, x)[i * V + v];
                bool named = v == (i * 3 + 1) % V;
                if (scatter)
                    assert_true(case_floats(c, y)[i * V + v] ==
                                value + (named ? case_floats(c, updates)[i] : 0));
                else if (named) assert_true(case_floats(c, y)[i] == value);
            }
        case_free(c);
    }
}

/* Windows of 2 x 3 at two-component indices: a gather clamps them, a scatter
 * skips those that stick out; in a shard that a window straddles, the rest is
 * clipped. */
static void test_windows(void **state) {
    (void)state;
    enum { H = 6, W = 7, N = 4, FIRST = 2, LOCAL = 3 };
    static const int32_t corners[N][2] = {{1, 2}, {5, 6}, {3, -1}, {4, 4}};
    for (int scatter = 0; scatter < 2; scatter++)
        for (int sharded = 0; sharded < 2; sharded++) {
            int64_t first = sharded ? FIRST : 0, local = sharded ? LOCAL : H;
            KernelCase *c = case_new(scatter ? IR_SCATTER : IR_GATHER);
            int32_t x = VALUE(c, DTYPE_F32, local, W), index = VALUE(c, DTYPE_S32, N, 2);
            int32_t slices = VALUE(c, DTYPE_F32, N, 2, 3),
                    y = scatter ? VALUE(c, DTYPE_F32, local, W) : slices;
            IrGather form = {.offset_count = 2,
                             .index_map_count = 2,
                             .offset_dimensions = LIST(c, 1, 2),
                             .start_index_map = LIST(c, 0, 1),
                             .index_vector_dimension = 1,
                             .slice_sizes = LIST(c, 2, 3)};
            ProgramShard shard = {.start = LIST(c, first, 0), .global = LIST(c, H, W)};
            c->attributes = (IrAttributes){.gather = &form};
            if (sharded) c->instruction.compute.shard = &shard;
            case_fill(c, x, 7);
            memcpy(c->memory[index], corners, sizeof corners);
            if (scatter) {
                c->instruction.compute.called = case_computation(c, IR_ADD, DTYPE_F32, DTYPE_F32);
                case_fill(c, slices, 8);
            }
            float expected[H * W];
            memcpy(expected, c->memory[x], sizeof(float) * (size_t)(local * W));
            assert_int_equal(case_run(c, NULL, 1), AM_OK);
            for (int n = 0; n < N; n++) {
                int64_t at[2] = {corners[n][0], corners[n][1]};
                if (scatter && (at[0] < 0 || at[0] > H - 2 || at[1] < 0 || at[1] > W - 3)) continue;
                at[0] = at[0] > H - 2 ? H - 2 : at[0];
                at[1] = at[1] < 0 ? 0 : at[1] > W - 3 ? W - 3 : at[1];
                for (int i = 0; i < 2; i++)
                    for (int j = 0; j < 3; j++) {
                        int64_t row = at[0] + i - first;
                        bool inside = row >= 0 && row < local;
                        float *slice = &case_floats(c, slices)[(n * 2 + i) * 3 + j];
                        if (scatter && inside) expected[row * W + at[1] + j] += *slice;
                        if (!scatter)
                            assert_true(*slice == (inside ? case_floats(c, x)[row * W + at[1] + j] : 0));
                    }
            }
            if (scatter)
                for (int64_t i = 0; i < local * W; i++) assert_true(case_floats(c, y)[i] == expected[i]);
            case_free(c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather_rows),
        cmocka_unit_test(test_scatter_rows),
        cmocka_unit_test(test_batching_dimensions),
        cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
