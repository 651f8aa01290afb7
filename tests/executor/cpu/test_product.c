/* Products by every kind of tile that runs here, against sums written out, exactly: whole numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "executor/cpu/matmul/product.h"

enum { AROUND = 5 /* numbers that must stay, after every row of the result */ };

/* Element [i, k] of an operand in its layout: rows one after the other, or side by side. */
static int64_t element(ProductSide side, int64_t i, int64_t k) {
    return i * side.stride + k * side.depth_stride;
}

static ProductSide side_of(Dtype type, bool along, int64_t count, int64_t depth) {
    return along ? (ProductSide){type, depth, 1} : (ProductSide){type, 1, count};
}

/* Whole numbers, or thirds, whose sums depend on their order. */
static float number_at(int64_t k, bool whole) {
    return whole ? (float)(k * 7 % 11 - 5) : (float)(k * 7 % 11 - 5) / 3;
}

static void *operand(ProductSide side, int64_t elements, bool whole) {
    void *memory = malloc((size_t)(elements * 4));
    for (int64_t k = 0; k < elements; k++) {
        float value = number_at(k, whole);
        if (side.type == DTYPE_F32) ((float *)memory)[k] = value;
        else if (side.type == DTYPE_BF16) ((uint16_t *)memory)[k] = dtype_float_to_bf16(value);
        else ((uint16_t *)memory)[k] = dtype_float_to_f16(value);
    }
    return memory;
}

static void run(const ProductPlan *plan, Product product) {
    void *scratch = malloc((size_t)plan->scratch_bytes);
    product_run(plan, &product, scratch);
    free(scratch);
}

static void check(const TileKind *tile, Dtype type, int32_t layout, int64_t rows, int64_t columns,
                  int64_t depth) {
    ProductPlan plan;
    ProductSide left = side_of(type, layout & 1, rows, depth);
    ProductSide right = side_of(layout & 4 ? DTYPE_F32 : type, layout & 2, columns, depth);
    int64_t step = columns + AROUND;
    const ProductForm form = {left, right, rows, columns, depth, step};
    if (!product_plan(&plan, tile, &form)) return;
    void *x = operand(left, rows * depth, true), *y = operand(right, columns * depth, true);
    float *out = malloc(sizeof(float) * (size_t)(rows * step));
    for (int64_t k = 0; k < rows * step; k++) out[k] = NAN;
    run(&plan, (Product){.out = out, .left = x, .right = y, .rows = rows, .columns = columns});
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < step; j++) {
            float sum = 0;
            for (int64_t k = 0; k < depth && j < columns; k++)
                sum += number_at(element(left, i, k), true) * number_at(element(right, j, k), true);
            if (j < columns) assert_true(out[i * step + j] == sum);
            else assert_true(isnan(out[i * step + j]));
        }
    free(x);
    free(y);
    free(out);
}

static void for_each_kind(void (*test)(const TileKind *tile)) {
    for (int32_t k = 0; k < tile_kind_count; k++)
        if (tile_kinds[k].is_here()) test(&tile_kinds[k]);
}

static void check_sizes(const TileKind *tile) {
    static const int64_t sizes[][3] = {
        {4, 48, 1},   {5, 49, 7},    {8, 64, 16},  {9, 129, 33}, {33, 96, 20}, {64, 200, 5}, {17, 80, 400},
        {70, 16, 30}, {200, 100, 9}, {6, 800, 11}, /* small ones follow */
        {1, 1, 1},    {5, 5, 4},     {16, 4, 16},  {4, 16, 17},  {3, 70, 33},  {15, 31, 6},  {2, 9, 1000}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int32_t layout = 0; layout < 8; layout++) {
            check(tile, DTYPE_F32, layout, sizes[s][0], sizes[s][1], sizes[s][2]);
            check(tile, DTYPE_BF16, layout, sizes[s][0], sizes[s][1], sizes[s][2]);
            check(tile, DTYPE_F16, layout, sizes[s][0], sizes[s][1], sizes[s][2]);
        }
}

static void test_sizes_layouts_and_types(void **state) {
    (void)state;
    for_each_kind(check_sizes);
}

/* A product in pieces of its rows and columns has the same bits as the whole. */
static void check_pieces_of(const TileKind *tile, int64_t columns, int64_t piece) {
    enum { ROWS = 90, DEPTH = 500 };
    for (int32_t layout = 0; layout < 4; layout++) {
        ProductPlan plan;
        ProductSide left = side_of(DTYPE_F32, layout & 1, ROWS, DEPTH);
        ProductSide right = side_of(DTYPE_F32, layout & 2, columns, DEPTH);
        const ProductForm form = {left, right, ROWS, columns, DEPTH, columns};
        if (!product_plan(&plan, tile, &form)) continue;
        float *x = operand(left, ROWS * DEPTH, false), *y = operand(right, columns * DEPTH, false);
        size_t bytes = sizeof(float) * ROWS * (size_t)columns;
        float *whole = malloc(bytes), *pieces = malloc(bytes);
        run(&plan, (Product){.out = whole, .left = x, .right = y, .rows = ROWS, .columns = columns});
        for (int64_t i = 0; i < ROWS; i += 37)
            for (int64_t j = 0; j < columns; j += piece)
                run(&plan, (Product){.out = pieces + i * columns + j,
                                     .left = x + element(left, i, 0),
                                     .right = y + element(right, j, 0),
                                     .rows = i + 37 < ROWS ? 37 : ROWS - i,
                                     .columns = j + piece < columns ? piece : columns - j});
        assert_memory_equal(whole, pieces, bytes);
        free(x);
        free(y);
        free(whole);
        free(pieces);
    }
}

static void check_pieces(const TileKind *tile) {
    check_pieces_of(tile, 210, 101);
    check_pieces_of(tile, 13, 5);
}

static void test_pieces_have_the_same_bits(void **state) {
    (void)state;
    for_each_kind(check_pieces);
}

/* Added to an array, where it lies or into another: the bits of a product and an addition after it. */
static void check_added(const TileKind *tile, Dtype type, int32_t layout, int64_t rows, int64_t columns,
                        int64_t depth) {
    ProductPlan plan;
    ProductSide left = side_of(type, layout & 1, rows, depth),
                right = side_of(type, layout & 2, columns, depth);
    int64_t step = columns + AROUND, elements = rows * step;
    const ProductForm form = {left, right, rows, columns, depth, step};
    if (!product_plan(&plan, tile, &form) || plan.is_small) return;
    product_plan_addend(&plan, rows);
    void *x = operand(left, rows * depth, false), *y = operand(right, columns * depth, false);
    void *scratch = malloc((size_t)plan.scratch_bytes);
    float *arrays[4]; /* the product, the addend, the sum elsewhere and in the addend's place */
    for (int32_t a = 0; a < 4; a++) arrays[a] = malloc(sizeof(float) * (size_t)elements);
    for (int64_t k = 0; k < elements; k++)
        arrays[1][k] = arrays[3][k] = number_at(k * 3, false), arrays[0][k] = arrays[2][k] = 0;
    Product product = {.out = arrays[0], .left = x, .right = y, .rows = rows, .columns = columns};
    product_run(&plan, &product, scratch);
    for (int32_t a = 2; a < 4; a++) {
        product.out = arrays[a];
        product.addend = arrays[a == 2 ? 1 : 3];
        product_run(&plan, &product, scratch);
    }
    for (int64_t i = 0; i < elements; i++) {
        bool is_around = i % step >= columns;
        float sum = arrays[1][i] + arrays[0][i];
        assert_true(arrays[2][i] == (is_around ? 0 : sum));
        assert_true(arrays[3][i] == (is_around ? arrays[1][i] : sum));
    }
    for (int32_t a = 0; a < 4; a++) free(arrays[a]);
    free(scratch);
    free(x);
    free(y);
}

static void check_added_sizes(const TileKind *tile) {
    static const int64_t sizes[][3] = {{4, 48, 1},     {9, 129, 33},   {33, 96, 384},  {17, 80, 385},
                                       {70, 70, 1000}, {900, 50, 800}, {10, 900, 450}, {800, 17, 20}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int32_t layout = 0; layout < 4; layout++) {
            check_added(tile, DTYPE_F32, layout, sizes[s][0], sizes[s][1], sizes[s][2]);
            check_added(tile, DTYPE_BF16, layout, sizes[s][0], sizes[s][1], sizes[s][2]);
        }
}

static void test_added_products_are_rounded_before(void **state) {
    (void)state;
    for_each_kind(check_added_sizes);
}

static void check_transpose(const TileKind *tile) {
    enum { DEPTH = 37, STEP = 19 };
    float lines[TILE_MOST_WIDTH][DEPTH], out[DEPTH * STEP];
    const float *places[TILE_MOST_WIDTH];
    for (int32_t c = 0; c < tile->width; c++) {
        places[c] = lines[c];
        for (int32_t k = 0; k < DEPTH; k++) lines[c][k] = (float)(c * DEPTH + k);
    }
    for (int32_t k = 0; k < DEPTH * STEP; k++) out[k] = -1;
    tile->transpose(out, STEP, places, DEPTH);
    for (int32_t k = 0; k < DEPTH; k++)
        for (int32_t c = 0; c < STEP; c++)
            assert_true(out[k * STEP + c] == (c < tile->width ? lines[c][k] : -1));
}

static void test_transpose(void **state) {
    (void)state;
    for_each_kind(check_transpose);
}

/* A small product whose operands end at the end of the allocation. */
static void check_small(const TileKind *tile) {
    ProductPlan plan;
    for (int32_t layout = 0; layout < 4; layout++)
        for (int64_t columns = 1; columns <= 2 * TILE_MOST_WIDTH + 1; columns++) {
            ProductSide left = side_of(DTYPE_F32, layout & 1, 9, 7);
            ProductSide right = side_of(DTYPE_F32, layout & 2, columns, 7);
            bool is_narrow = columns <= TILE_STRIP * tile->width;
            const ProductForm form = {left, right, 9, columns, 7, columns};
            assert_true(product_plan(&plan, tile, &form) || !is_narrow);
            if (is_narrow) assert_true(plan.is_small);
            check(tile, DTYPE_F32, layout, 9, columns, 7);
        }
}

static void test_small_products(void **state) {
    (void)state;
    for_each_kind(check_small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_layouts_and_types),
        cmocka_unit_test(test_pieces_have_the_same_bits),
        cmocka_unit_test(test_added_products_are_rounded_before),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_small_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
