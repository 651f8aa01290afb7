/* The tiles of matrix products: every width of vectors that the processor has, in
 * every place of a tile and of a strip, gives the bits of one chain of additions in
 * the order of k. The source is compiled here once more, without fused
 * multiply-adds, so that the chain can be written down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "base/random.h"
#include "dqn/cpu/product_cpu.c"

enum { MOST = 300 };

typedef struct Case {
    int32_t rows, columns, depth;
    bool a_across, b_across; /* a or b lie column by column */
    bool starts;
} Case;

static float a[MOST * MOST], b[MOST * MOST], start[MOST], expected[MOST * MOST], out[MOST * MOST + 1];

static DqnProduct product_of(const Case *c) {
    return (DqnProduct){.rows = c->rows,
                        .columns = c->columns,
                        .depth = c->depth,
                        .a = a,
                        .a_row = c->a_across ? 1 : c->depth,
                        .a_depth = c->a_across ? c->rows : 1,
                        .b = b,
                        .b_depth = c->b_across ? 1 : c->columns,
                        .b_column = c->b_across ? c->depth : 1,
                        .start = c->starts ? start : NULL,
                        .out = out};
}

static void multiply(const DqnProduct *product) {
    for (int32_t r = 0; r < product->rows; r++)
        for (int32_t c = 0; c < product->columns; c++) {
            float sum = product->start ? product->start[c] : 0;
            for (int32_t k = 0; k < product->depth; k++)
                sum += product->a[r * product->a_row + k * product->a_depth] *
                       product->b[k * product->b_depth + c * product->b_column];
            expected[r * product->columns + c] = sum;
        }
}

static void check_case(const Case *c) {
    DqnProduct product = product_of(c);
    int32_t count = c->rows * c->columns;
    multiply(&product);
    for (size_t kind = 0; kind < sizeof(KINDS) / sizeof(*KINDS); kind++) {
        if (!KINDS[kind].is_here()) continue;
        for (int32_t i = 0; i < count; i++) out[i] = NAN;
        out[count] = 12345;
        run_product(&KINDS[kind], &product);
        assert_memory_equal(out, expected, sizeof(float) * (size_t)count);
        assert_true(out[count] == 12345);
    }
}

static void every_width_and_place_gives_the_same_bits(void **state) {
    (void)state;
    Random random;
    random_seed(&random, 5);
    for (int32_t i = 0; i < MOST * MOST; i++) {
        a[i] = (float)random_normal(&random);
        b[i] = (float)random_normal(&random);
    }
    for (int32_t i = 0; i < MOST; i++) start[i] = (float)random_normal(&random);
    for (int32_t rows = 1; rows <= 19; rows++)
        for (int32_t columns = 1; columns <= 70; columns += 1 + columns / 20)
            check_case(&(Case){.rows = rows, .columns = columns, .depth = 9, .starts = columns % 2});
    const Case cases[] = {
        {64, 128, 64, false, false, true}, {128, 17, 32, true, false, false},
        {32, 128, 17, false, true, false}, {5, 300, 300, false, false, true},
        {70, 3, 257, false, true, true},   {33, 33, 129, true, true, true},
        {1, 1, 1, false, false, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) check_case(&cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_and_place_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
