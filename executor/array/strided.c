/* Strided boxes. Copies first join dimensions, so that a contiguous part is one
 * memcpy; where the two sides run fastest along different dimensions (a
 * transpose) they go by tiles of TILE x TILE elements, so that both sides use
 * whole cache lines.
 */
#include "executor/array/strided.h"

#include <string.h>

#include "ir/module.h"

#define TILE 16

typedef struct Sixteen {
    uint64_t words[2];
} Sixteen;

void strided_row_major(int64_t *strides, const int64_t *dimensions, int32_t rank) {
    int64_t stride = 1;
    for (int32_t d = rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= dimensions[d];
    }
}

int64_t strided_elements(const int64_t *dimensions, int32_t rank) {
    int64_t elements = 1;
    for (int32_t d = 0; d < rank; d++) elements *= dimensions[d];
    return elements;
}

int32_t strided_coalesce(int64_t *dimensions, int64_t *a, int64_t *b, int32_t rank) {
    int32_t last = -1;
    for (int32_t d = 0; d < rank; d++) {
        if (dimensions[d] == 1) continue;
        bool joins = last >= 0 && a[last] == a[d] * dimensions[d] && (!b || b[last] == b[d] * dimensions[d]);
        if (joins) {
            dimensions[last] *= dimensions[d];
        } else {
            last++;
            dimensions[last] = dimensions[d];
        }
        a[last] = a[d];
        if (b) b[last] = b[d];
    }
    return last + 1;
}

bool strided_next(int64_t *index, const int64_t *dimensions, int32_t rank) {
    for (int32_t d = rank - 1; d >= 0; d--) {
        if (++index[d] < dimensions[d]) return true;
        index[d] = 0;
    }
    return false;
}

/* A row, and a plane of rows, for each element size. */
#define DEFINE_MOVES(TYPE)                                                                                   \
    static void row_##TYPE(TYPE *out, int64_t out_stride, const TYPE *in, int64_t in_stride,                 \
                           int64_t count) {                                                                  \
        if (out_stride == 1 && in_stride == 1) {                                                             \
            memcpy(out, in, (size_t)count * sizeof(TYPE));                                                   \
        } else if (in_stride == 0 && out_stride == 1) {                                                      \
            TYPE value = *in;                                                                                \
            for (int64_t i = 0; i < count; i++) out[i] = value;                                              \
        } else if (out_stride == 1) {                                                                        \
            for (int64_t i = 0; i < count; i++) out[i] = in[i * in_stride];                                  \
        } else {                                                                                             \
            for (int64_t i = 0; i < count; i++) out[i * out_stride] = in[i * in_stride];                     \
        }                                                                                                    \
    }                                                                                                        \
    static void plane_##TYPE(TYPE *out, int64_t out_row, int64_t out_stride, const TYPE *in, int64_t in_row, \
                             int64_t in_stride, int64_t rows, int64_t columns) {                             \
        for (int64_t i = 0; i < rows; i++)                                                                   \
            row_##TYPE(out + i * out_row, out_stride, in + i * in_row, in_stride, columns);                  \
    }                                                                                                        \
    /* out[i*out_row + j] = in[i + j*in_column]: a transpose of rows x columns. */                           \
    static void transpose_##TYPE(TYPE *out, int64_t out_row, const TYPE *in, int64_t in_column,              \
                                 int64_t rows, int64_t columns) {                                            \
        for (int64_t i0 = 0; i0 < rows; i0 += TILE)                                                          \
            for (int64_t j0 = 0; j0 < columns; j0 += TILE) {                                                 \
                int64_t i1 = i0 + TILE < rows ? i0 + TILE : rows;                                            \
                int64_t j1 = j0 + TILE < columns ? j0 + TILE : columns;                                      \
                for (int64_t i = i0; i < i1; i++)                                                            \
                    for (int64_t j = j0; j < j1; j++) out[i * out_row + j] = in[i + j * in_column];          \
            }                                                                                                \
    }

DEFINE_MOVES(uint8_t)
DEFINE_MOVES(uint16_t)
DEFINE_MOVES(uint32_t)
DEFINE_MOVES(uint64_t)
DEFINE_MOVES(Sixteen)

#define BY_SIZE(bytes, CALL)      \
    switch (bytes) {              \
    case 1: CALL(uint8_t) break;  \
    case 2: CALL(uint16_t) break; \
    case 4: CALL(uint32_t) break; \
    case 8: CALL(uint64_t) break; \
    default: CALL(Sixteen) break; \
    }

static void move_row(void *out, int64_t out_stride, const void *in, int64_t in_stride, int64_t count,
                     int64_t element_bytes) {
#define CALL_ROW(TYPE) row_##TYPE(out, out_stride, in, in_stride, count);
    BY_SIZE(element_bytes, CALL_ROW)
}

/* Rows of columns in both arrays: elements from a row to the next, and from a column to the next. */
typedef struct Plane {
    int64_t rows, columns, out_row, out_stride, in_row, in_stride;
} Plane;

static void move_plane(void *out, const void *in, const Plane *plane, int64_t element_bytes) {
#define CALL_PLANE(TYPE)                                                                                   \
    plane_##TYPE(out, plane->out_row, plane->out_stride, in, plane->in_row, plane->in_stride, plane->rows, \
                 plane->columns);
    BY_SIZE(element_bytes, CALL_PLANE)
}

static void move_transposed(void *out, const void *in, const Plane *plane, int64_t element_bytes) {
#define CALL_TRANSPOSE(TYPE) \
    transpose_##TYPE(out, plane->out_row, in, plane->in_stride, plane->rows, plane->columns);
    BY_SIZE(element_bytes, CALL_TRANSPOSE)
}

void strided_fill(void *out, const void *value, int64_t count, int64_t element_bytes) {
    move_row(out, 1, value, 0, count, element_bytes);
}

void strided_copy(void *out, const int64_t *out_strides, const void *in, const int64_t *in_strides,
                  const int64_t *dimensions, int32_t rank, int64_t element_bytes) {
    int64_t sizes[IR_MAX_RANK], to[IR_MAX_RANK], from[IR_MAX_RANK], index[IR_MAX_RANK] = {0};
    if (strided_elements(dimensions, rank) == 0) return;
    for (int32_t d = 0; d < rank; d++) {
        sizes[d] = dimensions[d];
        to[d] = out_strides[d];
        from[d] = in_strides[d];
    }
    rank = strided_coalesce(sizes, to, from, rank);
    if (rank == 0) {
        memcpy(out, in, (size_t)element_bytes);
        return;
    }
    /* If the source runs fastest along another dimension, that one joins the tile. */
    int32_t inner = rank - 1, fast = -1;
    if (to[inner] == 1 && from[inner] != 1 && from[inner] != 0)
        for (int32_t d = 0; d < inner; d++)
            if (from[d] == 1) fast = d;
    int32_t outer = fast >= 0 ? fast : inner - 1; /* of the plane; -1: a row */
    const Plane plane = {.rows = outer >= 0 ? sizes[outer] : 1,
                         .columns = sizes[inner],
                         .out_row = outer >= 0 ? to[outer] : 0,
                         .out_stride = to[inner],
                         .in_row = outer >= 0 ? from[outer] : 0,
                         .in_stride = from[inner]};
    if (outer >= 0) sizes[outer] = 1;
    rank = inner;
    do {
        int64_t out_at = 0, in_at = 0;
        for (int32_t d = 0; d < rank; d++) {
            out_at += index[d] * to[d];
            in_at += index[d] * from[d];
        }
        char *target = (char *)out + out_at * element_bytes;
        const char *source = (const char *)in + in_at * element_bytes;
        if (fast >= 0) move_transposed(target, source, &plane, element_bytes);
        else move_plane(target, source, &plane, element_bytes);
    } while (strided_next(index, sizes, rank));
}

/* An array whose elements are `strides` apart. */
typedef struct StridedArray {
    const int64_t *strides, *dimensions; /* [rank] */
    int32_t rank;
} StridedArray;

/* Moves elements first .. first+count-1 by runs along the innermost dimension, from the array (`load`) or
 * into it. */
static void move_runs(void *out, const void *in, bool load, StridedArray array, int64_t first, int64_t count,
                      int64_t element_bytes) {
    const int64_t *strides = array.strides, *dimensions = array.dimensions;
    int32_t rank = array.rank;
    int64_t index[IR_MAX_RANK], left = first;
    if (count <= 0) return;
    if (rank == 0) {
        memcpy(out, in, (size_t)element_bytes);
        return;
    }
    for (int32_t d = rank - 1; d >= 0; d--) {
        index[d] = left % dimensions[d];
        left /= dimensions[d];
    }
    int32_t inner = rank - 1;
    for (int64_t done = 0; done < count;) {
        int64_t at = 0, run = dimensions[inner] - index[inner];
        for (int32_t d = 0; d < rank; d++) at += index[d] * strides[d];
        if (run > count - done) run = count - done;
        if (load)
            move_row((char *)out + done * element_bytes, 1, (const char *)in + at * element_bytes,
                     strides[inner], run, element_bytes);
        else
            move_row((char *)out + at * element_bytes, strides[inner],
                     (const char *)in + done * element_bytes, 1, run, element_bytes);
        done += run;
        index[inner] = 0;
        strided_next(index, dimensions, inner);
    }
}

void strided_load(void *out, const void *in, const int64_t *strides, const int64_t *dimensions, int32_t rank,
                  int64_t first, int64_t count, int64_t element_bytes) {
    move_runs(out, in, true, (StridedArray){strides, dimensions, rank}, first, count, element_bytes);
}

void strided_store(void *out, const void *in, const int64_t *strides, const int64_t *dimensions, int32_t rank,
                   int64_t first, int64_t count, int64_t element_bytes) {
    move_runs(out, in, false, (StridedArray){strides, dimensions, rank}, first, count, element_bytes);
}
