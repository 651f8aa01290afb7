/* Returns the loop of one width of tiles; tile.c includes it once for each kind with
 *
 *   NAME(word)   the name of a function or type of this kind
 *   WIDTH        floats of a vector
 *   TARGET       the instruction set for the compiler, or nothing
 *   TILES        the tiles as TILE(rows, vectors)
 *   ADD_PRODUCT(sum, a, b)  a number times a vector, added to another
 *   STRIP_ROWS   rows that a small product computes at a time
 *   LOAD_PART(from, count), STORE_PART(to, vector, count)   the first floats of a vector, if the processor
 *                has instructions for that
 *
 * and undefines them. Rows and vectors are constants where the loop is inlined, so that the sums
 * stay in registers.
 */
typedef float NAME(Vector) __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

static inline TARGET __attribute__((always_inline)) void
NAME(store)(const TileWork *work, int32_t row, int32_t vectors, const NAME(Vector) * sums) {
    float *out = work->out + work->out_rows[row];
    const float *addend = work->addend ? work->addend + work->out_rows[row] : NULL;
    const float *earlier = work->earlier                 ? work->earlier + row * work->earlier_step
                           : work->accumulate && !addend ? out
                                                         : NULL;
    if (work->columns == vectors * WIDTH) {
        for (int32_t v = 0; v < vectors; v++) {
            NAME(Vector) sum = sums[v];
            if (earlier) sum += *(const NAME(Vector) *)(earlier + v * WIDTH);
            if (addend) sum += *(const NAME(Vector) *)(addend + v * WIDTH);
            *(NAME(Vector) *)(out + v * WIDTH) = sum;
        }
        return;
    }
    const float *numbers = (const float *)sums;
    for (int32_t c = 0; c < work->columns; c++) {
        float sum = numbers[c];
        if (earlier) sum += earlier[c];
        if (addend) sum += addend[c];
        out[c] = sum;
    }
}

static inline TARGET __attribute__((always_inline)) void NAME(tile)(const TileWork *work, const int32_t rows,
                                                                    const int32_t vectors) {
    NAME(Vector) sums[TILE_MOST_ROWS][TILE_MOST_VECTORS];
    for (int32_t r = 0; r < rows; r++)
        for (int32_t v = 0; v < vectors; v++) sums[r][v] = (NAME(Vector)){0};
    for (int32_t r = work->first_row; r < rows && r < work->end_row; r++)
        for (int32_t v = 0; v < vectors; v++)
            __builtin_prefetch(work->out + work->out_rows[r] + v * WIDTH, 1);
    const int64_t row_step = work->row_step, column_step = work->column_step, end = work->depth * row_step;
    for (int64_t s = 0; s < work->segment_count; s++) {
        const TileSegment *segment = &work->segments[s];
        const float *from[TILE_MOST_ROWS], *columns = segment->columns + work->column_shift;
        for (int32_t r = 0; r < rows; r++) from[r] = segment->rows[r] + work->row_shift;
        for (int64_t k = 0; k < end; k += row_step, columns += column_step) {
            NAME(Vector) b[TILE_MOST_VECTORS];
            for (int32_t v = 0; v < vectors; v++) b[v] = *(const NAME(Vector) *)(columns + v * WIDTH);
            for (int32_t v = 0; v < vectors; v++)
                __builtin_prefetch(columns + TILE_PREFETCHED * column_step + v * WIDTH);
            for (int32_t r = 0; r < rows; r++) {
                const float a = from[r][k];
                for (int32_t v = 0; v < vectors; v++) sums[r][v] = ADD_PRODUCT(sums[r][v], a, b[v]);
            }
        }
    }
    if (work->first_row == 0 && work->end_row >= rows && work->columns == vectors * WIDTH && !work->addend) {
        for (int32_t r = 0; r < rows; r++) {
            NAME(Vector) *place = (NAME(Vector) *)(work->out + work->out_rows[r]);
            for (int32_t v = 0; v < vectors; v++)
                if (work->accumulate) place[v] += sums[r][v];
                else place[v] = sums[r][v];
        }
        return;
    }
    NAME(Vector) kept[TILE_MOST_ROWS][TILE_MOST_VECTORS]; /* in memory, so that the sums need not be */
    for (int32_t r = 0; r < rows; r++)
        for (int32_t v = 0; v < vectors; v++) kept[r][v] = sums[r][v];
    for (int32_t r = work->first_row; r < rows && r < work->end_row; r++)
        NAME(store)(work, r, vectors, kept[r]);
}

#define TILE(rows, vectors)                                                  \
    static TARGET void NAME(tile_##rows##_##vectors)(const TileWork *work) { \
        NAME(tile)(work, rows, vectors);                                     \
    }
TILES

typedef float NAME(Square) __attribute__((vector_size(WIDTH * 4)));
typedef int32_t NAME(Lanes) __attribute__((vector_size(WIDTH * 4)));

/* Lane l of the result is lane[l] of `a`, or of `b` from WIDTH on. */
#ifdef __clang__ /* has no such builtin for lanes in a variable */
static inline TARGET __attribute__((always_inline)) NAME(Square)
    NAME(pick)(NAME(Square) a, NAME(Square) b, NAME(Lanes) lane) {
    NAME(Square) picked;
    for (int32_t l = 0; l < WIDTH; l++) picked[l] = lane[l] < WIDTH ? a[lane[l]] : b[lane[l] - WIDTH];
    return picked;
}
#define PICK NAME(pick)
#else
#define PICK __builtin_shuffle
#endif

/* Exchanges the off-diagonal blocks of every square of 2 x 2 blocks. */
static inline TARGET __attribute__((always_inline)) void NAME(exchange)(NAME(Square) * square,
                                                                        const int32_t block) {
    NAME(Lanes) low, high;
#pragma GCC unroll 16
    for (int32_t l = 0; l < WIDTH; l++) {
        low[l] = l & block ? WIDTH + l - block : l;
        high[l] = l & block ? WIDTH + l : l + block;
    }
#pragma GCC unroll 16
    for (int32_t c = 0; c < WIDTH; c++) {
        if (c & block) continue;
        NAME(Square) a = square[c], b = square[c + block];
        square[c] = PICK(a, b, low);
        square[c + block] = PICK(a, b, high);
    }
}

/* A square of WIDTH x WIDTH at a time. */
static TARGET void NAME(transpose)(float *out, int64_t step, const float *const *lines, int64_t depth) {
    int64_t k = 0;
    for (; k + WIDTH <= depth; k += WIDTH) {
        NAME(Square) square[WIDTH];
#pragma GCC unroll 16
        for (int32_t c = 0; c < WIDTH; c++) square[c] = *(const NAME(Vector) *)(lines[c] + k);
        NAME(exchange)(square, 1);
        NAME(exchange)(square, 2);
        if (WIDTH > 4) NAME(exchange)(square, 4);
        if (WIDTH > 8) NAME(exchange)(square, 8);
#pragma GCC unroll 16
        for (int32_t c = 0; c < WIDTH; c++) *(NAME(Vector) *)(out + (k + c) * step) = square[c];
    }
    for (; k < depth; k++)
        for (int32_t c = 0; c < WIDTH; c++) out[k * step + c] = lines[c][k];
}
/* ---- small products ---- */

#ifdef LOAD_PART
#define LOAD_FIRST(from, count)        LOAD_PART(from, count)
#define STORE_FIRST(to, vector, count) STORE_PART(to, vector, count)
#else
static inline TARGET __attribute__((always_inline)) NAME(Vector)
    NAME(load_first)(const float *from, int64_t count) {
    NAME(Vector) vector = {0};
    for (int64_t c = 0; c < count; c++) vector[c] = from[c];
    return vector;
}
static inline TARGET __attribute__((always_inline)) void NAME(store_first)(float *to, NAME(Vector) vector,
                                                                           int64_t count) {
    for (int64_t c = 0; c < count; c++) to[c] = vector[c];
}
#define LOAD_FIRST  NAME(load_first)
#define STORE_FIRST NAME(store_first)
#endif

/* Some rows of a strip: `right` has whole vectors, `last` columns of the last one are needed. */
static inline TARGET __attribute__((always_inline)) void
NAME(multiply_rows)(const TileProduct *of, const float *left, const float *right, int64_t right_step,
                    float *out, const int32_t rows, const int32_t vectors, int64_t last) {
    NAME(Vector) sums[TILE_MOST_ROWS][TILE_STRIP];
    const int64_t row_step = of->left_row, depth_step = of->left_depth, depth = of->depth;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t v = 0; v < vectors; v++) sums[r][v] = (NAME(Vector)){0};
    for (int64_t k = 0; k < depth; k++, right += right_step, left += depth_step) {
        NAME(Vector) b[TILE_STRIP];
        for (int32_t v = 0; v < vectors; v++) b[v] = *(const NAME(Vector) *)(right + v * WIDTH);
        for (int32_t r = 0; r < rows; r++) {
            const float a = left[r * row_step];
            for (int32_t v = 0; v < vectors; v++) sums[r][v] = ADD_PRODUCT(sums[r][v], a, b[v]);
        }
    }
    for (int32_t r = 0; r < rows; r++) {
        float *place = out + r * of->out_row;
        for (int32_t v = 0; v < vectors - 1; v++) *(NAME(Vector) *)(place + v * WIDTH) = sums[r][v];
        STORE_FIRST(place + (vectors - 1) * WIDTH, sums[r][vectors - 1], last);
    }
}

/* All rows of a strip. */
static inline TARGET __attribute__((always_inline)) void
NAME(multiply_strip)(const TileProduct *of, const float *right, int64_t right_step, float *out,
                     const int32_t vectors, int64_t last) {
    enum { FEWER = 4 };
    int64_t i = 0, rows = of->rows;
    for (; i + STRIP_ROWS <= rows; i += STRIP_ROWS) NAME(multiply_rows)
    (of, of->left + i * of->left_row, right, right_step, out + i * of->out_row, STRIP_ROWS, vectors, last);
    for (; i + FEWER <= rows; i += FEWER) NAME(multiply_rows)
    (of, of->left + i * of->left_row, right, right_step, out + i * of->out_row, FEWER, vectors, last);
    for (; i < rows; i++) NAME(multiply_rows)
    (of, of->left + i * of->left_row, right, right_step, out + i * of->out_row, 1, vectors, last);
}

/* Packs a strip's columns, [depth][whole vectors]. Values after the last column are undefined. */
static inline TARGET __attribute__((always_inline)) void NAME(pack_strip)(float *to, const TileProduct *of,
                                                                          const float *from, int64_t columns,
                                                                          const int32_t vectors) {
    enum { SQUARE = 4 };
    int64_t width = vectors * WIDTH, depth = of->depth, column = of->right_column, k = 0;
    if (column == 1) {
        int64_t last = columns - (vectors - 1) * WIDTH;
        for (; k < depth; k++, from += of->right_depth, to += width) {
            for (int32_t v = 0; v < vectors - 1; v++)
                *(NAME(Vector) *)(to + v * WIDTH) = *(const NAME(Vector) *)(from + v * WIDTH);
            *(NAME(Vector) *)(to + (vectors - 1) * WIDTH) = LOAD_FIRST(from + (vectors - 1) * WIDTH, last);
        }
        return;
    }
    for (; k + SQUARE <= depth && of->right_depth == 1; k += SQUARE)
        for (int64_t j = 0; j < width; j += SQUARE) {
            TilePart part[SQUARE];
            for (int64_t c = 0; c < SQUARE; c++)
                part[c] = *(const TilePart *)(from + k + (j + c < columns ? j + c : 0) * column);
            tile_turn_square(to + k * width + j, width, part);
        }
    for (; k < depth; k++)
        for (int64_t j = 0; j < width; j++)
            to[k * width + j] = from[k * of->right_depth + (j < columns ? j : 0) * column];
}

static TARGET void NAME(multiply)(const TileProduct *of) {
    for (int64_t j = 0; j < of->columns; j += TILE_STRIP * WIDTH) {
        int64_t columns = of->columns - j, step = of->right_depth;
        int32_t vectors = columns <= WIDTH ? 1 : TILE_STRIP;
        if (columns > TILE_STRIP * WIDTH) columns = TILE_STRIP * WIDTH;
        const float *right = of->right + j * of->right_column;
        if (of->right_column != 1 || columns % WIDTH != 0) {
            if (vectors == 1) NAME(pack_strip)(of->scratch, of, right, columns, 1);
            else NAME(pack_strip)(of->scratch, of, right, columns, TILE_STRIP);
            right = of->scratch;
            step = vectors * WIDTH;
        }
        int64_t last = columns - (vectors - 1) * WIDTH;
        if (vectors == 1) NAME(multiply_strip)(of, right, step, of->out + j, 1, last);
        else NAME(multiply_strip)(of, right, step, of->out + j, TILE_STRIP, last);
    }
}
#undef LOAD_FIRST
#undef STORE_FIRST
#undef LOAD_PART
#undef STORE_PART
#undef STRIP_ROWS
#undef ADD_PRODUCT
#undef TILE
#undef PICK
#undef NAME
#undef WIDTH
#undef TARGET
#undef TILES
