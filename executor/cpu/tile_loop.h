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
    const int64_t row_step = work->row_step, column_step = work->column_step, end = work->depth * row_step;
    for (int64_t s = 0; s < work->segment_count; s++) {
        const TileSegment *segment = &work->segments[s];
        const float *from[TILE_MOST_ROWS], *columns = segment->columns + work->column_shift;
        for (int32_t r = 0; r < rows; r++) from[r] = segment->rows[r] + work->row_shift;
        for (int64_t k = 0; k < end; k += row_step, columns += column_step) {
            NAME(Vector) b[TILE_MOST_VECTORS];
            for (int32_t v = 0; v < vectors; v++) b[v] = *(const NAME(Vector) *)(columns + v * WIDTH);
            for (int32_t r = 0; r < rows; r++) {
                const float a = from[r][k];
                for (int32_t v = 0; v < vectors; v++) sums[r][v] += a * b[v];
            }
        }
    }
    for (int32_t r = 0; r < rows; r++)
        if (r >= work->first_row && r < work->end_row) NAME(store)(work, r, vectors, sums[r]);
}

#define TILE(rows, vectors)                                                  \
    static TARGET void NAME(tile_##rows##_##vectors)(const TileWork *work) { \
        NAME(tile)(work, rows, vectors);                                     \
    }
TILES
#undef TILE
#undef NAME
#undef WIDTH
#undef TARGET
#undef TILES
