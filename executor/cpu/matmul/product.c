/* Products by tiles: the loops of Goto and van de Geijn (2008), "Anatomy of high-performance matrix
 * multiplication".
 *
 * A block of the right operand, depth_block x column_block, is packed in panels as wide as a tile
 * and stays in a shared cache; blocks of the left operand, row_block x depth_block, are packed for
 * the second-level cache; a tile's rows then pass by one panel. Rows along the depth are packed row
 * by row, others [depth][rows of a tile]. Data used by too few tiles to pay for the copy is read in
 * place.
 *
 * A product that is added to an array is completed before: sums over some of the blocks along the
 * depth stay in scratch memory, for a stretch of rows at a time.
 */
#include "executor/cpu/matmul/product.h"

#include <string.h>

#include "base/integers.h"
#include "executor/cpu/vector/vector.h"

enum {
    ROW_BLOCK = 192, /* a multiple of every tile's rows */
    COLUMN_BLOCK = 768,
    DEPTH_BLOCK = 384,
    PARTIAL_ROWS = 768, /* of a stretch; a multiple of ROW_BLOCK */
    LEAST_ROWS = 4,     /* with fewer a tile is mostly empty */
    LEAST_WIDTH = 8,
    TOGETHER = 16,     /* depths of rows that lie side by side */
    PAYING_PANELS = 8, /* least number of panels that pays for packing rows */
    PAYING_GROUPS = 7, /* least number of groups of rows that pays for packing columns */
};

/* Narrow products with fewer multiplications are small ones. */
static const double small_work = 1e6;
enum { SMALL_DEPTH = 4096 }; /* at most: bounds the packed data */
/* Rows that a tile may compute in vain, as a share. */
static const double slack = 1.03;
enum { LEAST_VECTORS = 3 };

/* One block of rows or columns of a product, as tiles read it. */
typedef struct Rows {
    const float *first;
    int64_t group_step, row_step, depth_step; /* elements between groups, rows of one, depths */
    int64_t count;
} Rows;

typedef struct Panels {
    const float *first;
    int64_t panel_step, depth_step, count; /* columns */
} Panels;

static const char *element_at(const void *array, Dtype type, int64_t index) {
    return (const char *)array + index * dtype_bytes(type);
}

/* Returns `count` neighbouring elements as f32: in place, or widened into `line`. */
static const float *line_of(ElementLoop *widen, const char *from, int64_t count, float *line) {
    if (!widen) return (const float *)from;
    widen(line, from, NULL, NULL, count, NULL, NULL);
    return line;
}

/* Rows along the depth, one after the other. */
static void pack_rows_along(const ProductPlan *plan, float *to, const char *from, int64_t rows,
                            int64_t depth) {
    int64_t step = plan->left.stride * dtype_bytes(plan->left.type);
    for (int64_t i = 0; i < rows; i++, to += depth, from += step) {
        if (plan->widen[0]) plan->widen[0](to, from, NULL, NULL, depth, NULL, NULL);
        else memcpy(to, from, sizeof(float) * (size_t)depth);
    }
}

/* Copies a group's rows of one depth; the sizes of tiles are constants, so that no function is called. */
static inline void copy_group(float *to, const float *from, int64_t group) {
    if (group == 6) memcpy(to, from, 6 * sizeof(float));
    else if (group == 8) memcpy(to, from, 8 * sizeof(float));
    else memcpy(to, from, sizeof(float) * (size_t)group);
}

/* Rows that lie side by side: [group][depth][row of the group], some depths of all groups after others. */
static void pack_rows_across(const ProductPlan *plan, float *to, const char *from, int64_t rows,
                             int64_t depth, float *buffer) {
    int64_t step = plan->left.depth_stride * dtype_bytes(plan->left.type);
    int64_t group = plan->tile->rows[plan->vectors];
    const float *lines[TOGETHER];
    for (int64_t first = 0; first < depth; first += TOGETHER) {
        int64_t count = smaller_integer(TOGETHER, depth - first);
        for (int64_t k = 0; k < count; k++)
            lines[k] = line_of(plan->widen[0], from + (first + k) * step, rows, buffer + k * rows);
        /* The processor does not foresee the next depths, which are far from these. */
        bool has_next = !plan->widen[0] && first + 2 * TOGETHER <= depth;
        for (int64_t i = 0; i < rows; i += group)
            for (int64_t k = 0; k < count; k++) {
                copy_group(to + (i * depth + (first + k) * group), lines[k] + i,
                           smaller_integer(group, rows - i));
                if (has_next) __builtin_prefetch((const char *)(lines[k] + i) + TOGETHER * step);
            }
    }
}

static Rows rows_of(const ProductPlan *plan, const char *from, int64_t count, int64_t depth, int64_t panels,
                    char *scratch) {
    int64_t group = plan->tile->rows[plan->vectors];
    float *packed = (float *)scratch;
    if (!plan->widen[0] && panels < PAYING_PANELS)
        return (Rows){(const float *)from, group * plan->left.stride, plan->left.stride,
                      plan->left.depth_stride, count};
    if (plan->left.depth_stride == 1) {
        pack_rows_along(plan, packed, from, count, depth);
        return (Rows){packed, group * depth, depth, 1, count};
    }
    pack_rows_across(plan, packed, from, count, depth, (float *)(scratch + plan->line_at));
    return (Rows){packed, group * depth, 1, group, count};
}

/* Columns that lie side by side: [panel][depth][column], zeros after the last. */
static void pack_columns_across(const ProductPlan *plan, float *to, const char *from, int64_t columns,
                                int64_t depth, int64_t width) {
    int64_t bytes = dtype_bytes(plan->right.type), step = plan->right.depth_stride * bytes;
    for (int64_t k = 0; k < depth; k++, from += step)
        for (int64_t j = 0; j < columns; j += width) {
            int64_t count = smaller_integer(width, columns - j);
            float *piece = to + (j * depth + k * width);
            if (plan->widen[1]) plan->widen[1](piece, from + j * bytes, NULL, NULL, count, NULL, NULL);
            else memcpy(piece, from + j * bytes, sizeof(float) * (size_t)count);
            if (count < width) memset(piece + count, 0, sizeof(float) * (size_t)(width - count));
        }
}

/* Columns along the depth: as many as a vector has, widened where they must be, and transposed. */
static void pack_columns_along(const ProductPlan *plan, float *to, const char *from, int64_t columns,
                               int64_t depth, float *buffer) {
    int64_t step = plan->right.stride * dtype_bytes(plan->right.type), edge = plan->tile->width;
    int64_t width = plan->vectors * edge;
    for (int64_t j = 0; j < multiple_above(columns, width); j += edge) {
        int64_t count = smaller_integer(edge, columns - j);
        float *place = to + j / width * width * depth + j % width;
        const float *lines[TILE_MOST_WIDTH];
        for (int64_t c = 0; c < count; c++)
            lines[c] = line_of(plan->widen[1], from + (j + c) * step, depth, buffer + c * depth);
        if (count == edge) {
            plan->tile->transpose(place, width, lines, depth);
            continue;
        }
        for (int64_t k = 0; k < depth; k++)
            for (int64_t c = 0; c < edge; c++) place[k * width + c] = c < count ? lines[c][k] : 0;
    }
}

/* `groups`: of rows that use the panels. A panel that is read in place has whole vectors. */
static Panels panels_of(const ProductPlan *plan, const char *from, int64_t count, int64_t depth,
                        int64_t groups, char *scratch) {
    int64_t width = plan->vectors * plan->tile->width;
    if (!plan->widen[1] && plan->right.stride == 1 && groups < PAYING_GROUPS &&
        count % plan->tile->width == 0)
        return (Panels){(const float *)from, width, plan->right.depth_stride, count};
    float *packed = (float *)(scratch + plan->columns_at), *line = (float *)(scratch + plan->line_at);
    if (plan->right.stride == 1) pack_columns_across(plan, packed, from, count, depth, width);
    else pack_columns_along(plan, packed, from, count, depth, line);
    return (Panels){packed, width * depth, width, count};
}

/* The destination of a block of sums: row 0, column 0; see TileWork. */
typedef struct Target {
    float *out;
    int64_t step; /* elements from one row to the next, of the addend too */
    bool accumulate;
    const float *addend, *earlier;
} Target;

/* Multiplies all rows of a block by all its panels. */
static void multiply_block(const ProductPlan *plan, const Target *to, const Rows *rows, const Panels *panels,
                           int64_t depth) {
    int64_t width = plan->vectors * plan->tile->width, group = plan->tile->rows[plan->vectors];
    TileSegment segment;
    TileWork work = {.segments = &segment,
                     .segment_count = 1,
                     .depth = depth,
                     .row_step = rows->depth_step,
                     .column_step = panels->depth_step,
                     .accumulate = to->accumulate,
                     .earlier_step = plan->column_block};
    for (int64_t r = 0; r < TILE_MOST_ROWS; r++) work.out_rows[r] = r * to->step;
    for (int64_t j = 0, p = 0; j < panels->count; j += width, p++) {
        work.columns = (int32_t)smaller_integer(width, panels->count - j);
        int32_t vectors = (work.columns + plan->tile->width - 1) / plan->tile->width;
        segment.columns = panels->first + p * panels->panel_step;
        for (int64_t i = 0, g = 0; i < rows->count; i += group, g++) {
            const float *first = rows->first + g * rows->group_step;
            work.end_row = (int32_t)smaller_integer(group, rows->count - i);
            for (int64_t r = 0; r < TILE_MOST_ROWS; r++)
                segment.rows[r] = first + smaller_integer(r, work.end_row - 1) * rows->row_step;
            work.out = to->out + i * to->step + j;
            if (to->addend) work.addend = to->addend + i * to->step + j;
            if (to->earlier) work.earlier = to->earlier + i * plan->column_block + j;
            plan->tile->run[vectors](&work);
        }
    }
}

static void run_small(const ProductPlan *plan, const Product *product, float *scratch) {
    const TileProduct small = {.left = product->left,
                               .right = product->right,
                               .left_row = plan->left.stride,
                               .left_depth = plan->left.depth_stride,
                               .right_column = plan->right.stride,
                               .right_depth = plan->right.depth_stride,
                               .out = product->out,
                               .out_row = plan->out_stride,
                               .rows = product->rows,
                               .columns = product->columns,
                               .depth = plan->depth,
                               .scratch = scratch};
    plan->tile->multiply(&small);
}

/* Returns the destination of the block from row `i` and column `j` on, the depth from `k` on. For a product
 * that is added to an array, incomplete sums go to `partial`, whose rows are column_block apart. */
static Target target_of(const ProductPlan *plan, const Product *product, float *partial, int64_t i, int64_t j,
                        int64_t k) {
    int64_t at = i * plan->out_stride + j;
    float *out = product->out + at;
    if (!product->addend) return (Target){.out = out, .step = plan->out_stride, .accumulate = k > 0};
    bool is_last = k + plan->depth_block >= plan->depth;
    partial += i * plan->column_block;
    if (!is_last) return (Target){.out = partial, .step = plan->column_block, .accumulate = k > 0};
    return (Target){.out = out,
                    .step = plan->out_stride,
                    .addend = product->addend + at,
                    .earlier = k > 0 ? partial : NULL};
}

static void run_blocks(const ProductPlan *plan, const Product *product, char *scratch) {
    int64_t rows = product->rows, columns = product->columns;
    int64_t group = plan->tile->rows[plan->vectors], width = plan->vectors * plan->tile->width;
    int64_t groups = (rows + group - 1) / group;
    float *partial = (float *)(scratch + plan->partial_at);
    for (int64_t j = 0; j < columns; j += plan->column_block)
        for (int64_t k = 0; k < plan->depth; k += plan->depth_block) {
            int64_t depth = smaller_integer(plan->depth_block, plan->depth - k);
            int64_t at = j * plan->right.stride + k * plan->right.depth_stride;
            Panels panels =
                panels_of(plan, element_at(product->right, plan->right.type, at),
                          smaller_integer(plan->column_block, columns - j), depth, groups, scratch);
            for (int64_t i = 0; i < rows; i += plan->row_block) {
                at = i * plan->left.stride + k * plan->left.depth_stride;
                Rows block = rows_of(plan, element_at(product->left, plan->left.type, at),
                                     smaller_integer(plan->row_block, rows - i), depth,
                                     (panels.count + width - 1) / width, scratch);
                Target to = target_of(plan, product, partial, i, j, k);
                multiply_block(plan, &to, &block, &panels, depth);
            }
        }
}

void product_run(const ProductPlan *plan, const Product *product, void *scratch) {
    if (plan->is_small) {
        run_small(plan, product, scratch);
        return;
    }
    int64_t stretch = product->addend ? plan->partial_rows : product->rows;
    for (int64_t i = 0; i < product->rows; i += stretch) {
        Product part = *product;
        part.out += i * plan->out_stride;
        if (part.addend) part.addend += i * plan->out_stride;
        part.left = element_at(product->left, plan->left.type, i * plan->left.stride);
        part.rows = smaller_integer(stretch, product->rows - i);
        run_blocks(plan, &part, scratch);
    }
}

bool product_plan(ProductPlan *plan, const TileKind *tile, const ProductForm *form) {
    const ProductSide left = form->left, right = form->right;
    const int64_t rows = form->rows, columns = form->columns, depth = form->depth;
    if ((left.type != DTYPE_F32 && !dtype_is_16bit_float(left.type)) ||
        (right.type != DTYPE_F32 && !dtype_is_16bit_float(right.type)))
        return false;
    if ((left.stride != 1 && left.depth_stride != 1) || (right.stride != 1 && right.depth_stride != 1))
        return false;
    int64_t vectors = (columns + tile->width - 1) / tile->width;
    *plan = (ProductPlan){
        .left = left, .right = right, .depth = depth, .out_stride = form->out_stride, .tile = tile};
    bool is_narrow_shape = vectors < LEAST_VECTORS || rows < LEAST_ROWS;
    bool is_small = (double)rows * (double)columns * (double)depth < small_work && depth <= SMALL_DEPTH;
    if (is_narrow_shape && is_small && left.type == DTYPE_F32 && right.type == DTYPE_F32) {
        plan->is_small = true;
        plan->scratch_bytes = depth * TILE_STRIP * tile->width * (int64_t)sizeof(float);
        return true;
    }
    if (tile->width < LEAST_WIDTH || rows < LEAST_ROWS || columns < tile->width) return false;
    /* Vectors of a panel: as many as a tile takes, a vector less where its rows then fit better, and the same
     * in all panels. */
    int32_t best = tile->most_vectors, fewer = best - 1;
    int64_t padded = multiple_above(rows, tile->rows[best]), other = multiple_above(rows, tile->rows[fewer]);
    if (fewer >= LEAST_VECTORS && (double)padded > slack * (double)other) best = fewer;
    int64_t panels = (vectors + best - 1) / best;
    plan->vectors = (int32_t)((vectors + panels - 1) / panels);
    int64_t stretches = (depth + DEPTH_BLOCK - 1) / DEPTH_BLOCK, width = plan->vectors * tile->width;
    plan->depth_block = (depth + stretches - 1) / stretches;
    plan->row_block = smaller_integer(ROW_BLOCK, multiple_above(rows, tile->rows[plan->vectors]));
    plan->column_block = smaller_integer(COLUMN_BLOCK / width * width, multiple_above(columns, width));
    plan->widen[0] = left.type == DTYPE_F32 ? NULL : element_convert_loop(left.type, DTYPE_F32);
    plan->widen[1] = right.type == DTYPE_F32 ? NULL : element_convert_loop(right.type, DTYPE_F32);
    int64_t line = plan->depth_block * tile->width;
    if (line < TOGETHER * plan->row_block) line = TOGETHER * plan->row_block;
    plan->columns_at = multiple_above(plan->row_block * plan->depth_block * (int64_t)sizeof(float), 64);
    plan->line_at = plan->columns_at +
                    multiple_above(plan->column_block * plan->depth_block * (int64_t)sizeof(float), 64);
    plan->scratch_bytes = plan->line_at + multiple_above(line * (int64_t)sizeof(float), 64);
    return true;
}

void product_plan_addend(ProductPlan *plan, int64_t rows) {
    bool is_whole = plan->depth_block >= plan->depth;
    plan->partial_at = plan->scratch_bytes;
    plan->partial_rows = is_whole ? rows : smaller_integer(PARTIAL_ROWS, rows);
    if (is_whole) return;
    int64_t elements = plan->partial_rows * plan->column_block;
    plan->scratch_bytes += multiple_above(elements * (int64_t)sizeof(float), 64);
}
