/* The loop of one width of tiles; tile.c includes it once for each kind with
 *
 *   NAME(word)   the name of a function or type of this kind
 *   WIDTH        floats of a vector
 *   TARGET       what the compiler may use, or nothing
 *
 * and undefines them. Rows and vectors are constants where the loop is inlined,
 * so that the sums stay in registers.
 */
typedef float NAME(Vector) __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

static inline TARGET __attribute__((always_inline)) void
NAME(store)(const TileWork *work, int32_t row, int32_t vectors, const NAME(Vector) * sums) {
    float *out = work->out + work->out_rows[row];
    if (work->columns == vectors * WIDTH) {
        for (int32_t v = 0; v < vectors; v++) {
            NAME(Vector) *place = (NAME(Vector) *)(out + v * WIDTH);
            if (work->accumulate) *place += sums[v];
            else *place = sums[v];
        }
        return;
    }
    const float *numbers = (const float *)sums;
    for (int32_t c = 0; c < work->columns; c++) out[c] = work->accumulate ? out[c] + numbers[c] : numbers[c];
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
                for (int32_t v = 0; v < vectors; v++) sums[r][v] += a * b[v];
            }
        }
    }
    if (work->first_row == 0 && work->end_row >= rows && work->columns == vectors * WIDTH) {
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

/* Of every square of 2 x 2 blocks, those beside the diagonal change places. */
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
#undef TILE
#undef PICK
#undef NAME
#undef WIDTH
#undef TARGET
#undef TILES
