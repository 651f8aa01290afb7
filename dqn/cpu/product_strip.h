/* A strip of a product, one or two vectors of columns wide, for one width of
 * vectors; product_cpu.c includes it once for each, with NAME, BYTES (of a
 * vector), TARGET and MOST_ROWS (of a tile: 8 or 4).
 *
 * A tile is a few rows of a strip. Its sums stay in registers while k runs; a step
 * loads the vectors of b once and one number of a for each row. */

typedef Real NAME(Vector) __attribute__((vector_size(BYTES), aligned(sizeof(Real)), may_alias));

static inline TARGET __attribute__((always_inline)) void
NAME(tile)(const Strip *strip, int32_t row, const int32_t rows, const int32_t vectors) {
    NAME(Vector) sums[MOST_ROWS][2] = {0};
    const int32_t lanes = BYTES / sizeof(Real);
    const Real *a = strip->a + row * strip->a_row, *b = strip->b;
    Real *out = strip->out + row * strip->out_row;
#pragma GCC unroll 8
    for (int32_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int32_t v = 0; v < vectors; v++)
            sums[r][v] = *(const NAME(Vector) *)(out + r * strip->out_row + v * lanes);
    for (int32_t k = 0; k < strip->depth; k++, a += strip->a_depth, b += strip->b_depth) {
#pragma GCC unroll 8
        for (int32_t r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int32_t v = 0; v < vectors; v++)
                sums[r][v] += a[r * strip->a_row] * *(const NAME(Vector) *)(b + v * lanes);
    }
#pragma GCC unroll 8
    for (int32_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int32_t v = 0; v < vectors; v++)
            *(NAME(Vector) *)(out + r * strip->out_row + v * lanes) = sums[r][v];
}

static inline TARGET __attribute__((always_inline)) void NAME(strip)(const Strip *strip,
                                                                     const int32_t vectors) {
    int32_t row = 0, rows = strip->rows;
    for (; row + MOST_ROWS <= rows; row += MOST_ROWS) NAME(tile)(strip, row, MOST_ROWS, vectors);
#if MOST_ROWS > 4
    for (; row + 4 <= rows; row += 4) NAME(tile)(strip, row, 4, vectors);
#endif
    for (; row + 2 <= rows; row += 2) NAME(tile)(strip, row, 2, vectors);
    if (row < rows) NAME(tile)(strip, row, 1, vectors);
}

static TARGET void NAME(strip_1)(const Strip *strip) {
    NAME(strip)(strip, 1);
}

static TARGET void NAME(strip_2)(const Strip *strip) {
    NAME(strip)(strip, 2);
}

#undef NAME
#undef BYTES
#undef TARGET
#undef MOST_ROWS
