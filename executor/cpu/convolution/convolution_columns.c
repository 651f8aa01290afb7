/* convolution by columns and a matrix product, for any layout and window.
 *
 * Rows are output positions (batch and spatial dimensions in the memory order of the output), the
 * depth is (kernel position, input feature) in the memory order of the weights. Column buffers of
 * at most COLUMN_ELEMENTS are filled for a block of rows and of depth and multiplied with the
 * weights; blocks along the depth accumulate. If the input runs fastest along the features a buffer
 * is [rows, depth], if it runs fastest along the batch it is [depth, rows], so that copies are
 * runs. Position p of a window reads output*stride + kernel*window_dilation - padding_low, if that
 * is a multiple of the base dilation and inside. Groups are computed one after the other. The team
 * divides the blocks of rows, and each member has buffers of its own.
 */
#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/convolution/convolution.h"
#include "executor/cpu/team.h"

#define COLUMN_ELEMENTS (256 * 1024)
#define DEPTH_BLOCK     2048
#define NO_SPATIAL      (-1)

enum {
    LEAST_BLOCKS = 16,
    LEAST_ROWS = 64
}; /* blocks of rows, for the team; rows of one, where there are more */

typedef struct Columns {
    /* Rows: output dimensions but the feature, in memory order. */
    int32_t row_rank, row_spatial[IR_MAX_RANK]; /* spatial index, NO_SPATIAL for the batch */
    int64_t row_sizes[IR_MAX_RANK], row_strides[IR_MAX_RANK];
    /* Depth: dimensions of the weights but the output feature, in memory order. */
    int32_t depth_rank, depth_spatial[IR_MAX_RANK]; /* spatial index, NO_SPATIAL for the input feature */
    int64_t depth_sizes[IR_MAX_RANK], depth_strides[IR_MAX_RANK];
    bool columns_are_rows_last; /* buffer is [depth, rows] */
    int64_t run;                /* elements copied together */
    int64_t row_block, depth_block;
    enum { WEIGHTS_DEPTH_MAJOR, WEIGHTS_FEATURE_MAJOR, WEIGHTS_PACKED } weights_form;
    int64_t packed_at;                            /* scratch offset */
    bool is_direct;                               /* products go straight to the result */
    int64_t members_at, member_bytes, product_at; /* scratch of each member; the product's offset in it */
    int32_t members;
} Columns;

typedef struct ColumnsTask {
    const ConvolutionKernel *kernel;
    const Columns *plan;
    const float *in, *weights;
    float *out;
    char *scratch;
} ColumnsTask;

static void decode(int64_t *index, int64_t at, const int64_t *sizes, int32_t rank) {
    for (int32_t d = rank - 1; d >= 0; d--) {
        index[d] = at % sizes[d];
        at /= sizes[d];
    }
}

/* The offset that an output position, or a position of the window, adds to the read address. */
typedef struct ColumnsPart {
    int64_t at;                    /* offset by the batch, or by the feature */
    int64_t position[IR_MAX_RANK]; /* in each spatial dimension, before base dilation */
} ColumnsPart;

static void row_part(ColumnsPart *part, const ColumnsTask *task, const int64_t *row) {
    const ConvolutionKernel *kernel = task->kernel;
    part->at = 0;
    for (int32_t d = 0; d < task->plan->row_rank; d++) {
        int32_t s = task->plan->row_spatial[d];
        if (s == NO_SPATIAL) part->at += row[d] * kernel->batch_stride;
        else part->position[s] = row[d] * kernel->window[s].stride - kernel->window[s].padding_low;
    }
}

static void depth_part(ColumnsPart *part, const ColumnsTask *task, const int64_t *depth) {
    part->at = 0;
    for (int32_t d = 0; d < task->plan->depth_rank; d++) {
        int32_t s = task->plan->depth_spatial[d];
        if (s == NO_SPATIAL) {
            part->at += depth[d] * task->kernel->feature_stride;
        } else {
            const IrWindowDimension *window = &task->kernel->window[s];
            int64_t k = window->reversal ? window->size - 1 - depth[d] : depth[d];
            part->position[s] = k * window->window_dilation;
        }
    }
}

/* Returns the offset in the input of the element of both parts, or -1 for padding. */
static int64_t input_offset(const ConvolutionKernel *kernel, const ColumnsPart *row,
                            const ColumnsPart *depth) {
    int64_t at = row->at + depth->at;
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        int64_t position = row->position[s] + depth->position[s], dilation = kernel->window[s].base_dilation;
        if (position < 0) return -1;
        if (dilation > 1) {
            if (position % dilation != 0) return -1;
            position /= dilation;
        }
        if (position >= kernel->input_sizes[s]) return -1;
        at += position * kernel->input_strides[s];
    }
    return at;
}

static void put_run(float *out, const float *in, int64_t at, int64_t stride, int64_t count) {
    if (at < 0) memset(out, 0, sizeof(float) * (size_t)count);
    else if (stride == 1) memcpy(out, in + at, sizeof(float) * (size_t)count);
    else
        for (int64_t i = 0; i < count; i++) out[i] = in[at + i * stride];
}

/* A block of rows and of depth. */
typedef struct Block {
    int64_t row, rows, first, depth;
} Block;

/* Fills columns[row][depth]; runs are along the input feature if that is innermost. */
static void fill_by_rows(const ColumnsTask *task, float *columns, const float *in, const Block *block) {
    const Columns *plan = task->plan;
    int64_t row_index[IR_MAX_RANK], index[IR_MAX_RANK];
    int32_t last = plan->depth_rank - 1;
    ColumnsPart row_at, depth_at;
    decode(row_index, block->row, plan->row_sizes, plan->row_rank);
    for (int64_t r = 0; r < block->rows; r++) {
        row_part(&row_at, task, row_index);
        decode(index, block->first, plan->depth_sizes, plan->depth_rank);
        for (int64_t done = 0; done < block->depth;) {
            int64_t count = plan->run > 1 ? plan->run - index[last] : 1;
            if (count > block->depth - done) count = block->depth - done;
            depth_part(&depth_at, task, index);
            put_run(columns + r * block->depth + done, in, input_offset(task->kernel, &row_at, &depth_at),
                    task->kernel->feature_stride, count);
            done += count;
            if (plan->run > 1) index[last] = plan->depth_sizes[last] - 1;
            strided_next(index, plan->depth_sizes, plan->depth_rank);
        }
        strided_next(row_index, plan->row_sizes, plan->row_rank);
    }
}

/* Fills columns[depth][row]; runs are along the batch, the last row dimension. */
static void fill_by_depth(const ColumnsTask *task, float *columns, const float *in, const Block *block) {
    const Columns *plan = task->plan;
    int64_t row_index[IR_MAX_RANK], index[IR_MAX_RANK];
    int32_t last = plan->row_rank - 1;
    ColumnsPart row_at, depth_at;
    decode(index, block->first, plan->depth_sizes, plan->depth_rank);
    for (int64_t k = 0; k < block->depth; k++) {
        depth_part(&depth_at, task, index);
        decode(row_index, block->row, plan->row_sizes, plan->row_rank);
        for (int64_t done = 0; done < block->rows;) {
            int64_t count = plan->row_sizes[last] - row_index[last];
            if (count > block->rows - done) count = block->rows - done;
            row_part(&row_at, task, row_index);
            put_run(columns + k * block->rows + done, in, input_offset(task->kernel, &row_at, &depth_at),
                    task->kernel->batch_stride, count);
            done += count;
            row_index[last] = plan->row_sizes[last] - 1;
            strided_next(row_index, plan->row_sizes, plan->row_rank);
        }
        strided_next(index, plan->depth_sizes, plan->depth_rank);
    }
}

static void multiply(const ColumnsTask *task, float *product, int64_t product_step, const float *columns,
                     const Block *block, int64_t group) {
    const ConvolutionKernel *kernel = task->kernel;
    bool feature_major = task->plan->weights_form == WEIGHTS_FEATURE_MAJOR;
    int64_t column = group * kernel->group_features, step = feature_major ? kernel->depth : kernel->outputs;
    const float *from = task->weights + (feature_major ? column * kernel->depth + block->first
                                                       : block->first * kernel->outputs + column);
    cblas_sgemm(CblasRowMajor, task->plan->columns_are_rows_last ? CblasTrans : CblasNoTrans,
                feature_major ? CblasTrans : CblasNoTrans, (int)block->rows, (int)kernel->group_features,
                (int)block->depth, 1.0f, columns,
                (int)(task->plan->columns_are_rows_last ? block->rows : block->depth), from, (int)step,
                block->first == 0 ? 0.0f : 1.0f, product, (int)product_step);
}

/* Rows of a product [rows, group_features] to their places in the output. */
static void place_rows(const ColumnsTask *task, const float *product, int64_t group, const Block *block) {
    const ConvolutionKernel *kernel = task->kernel;
    const Columns *plan = task->plan;
    int64_t index[IR_MAX_RANK];
    decode(index, block->row, plan->row_sizes, plan->row_rank);
    for (int64_t r = 0; r < block->rows; r++) {
        int64_t at = group * kernel->group_features * kernel->output_feature_stride;
        for (int32_t d = 0; d < plan->row_rank; d++) at += index[d] * plan->row_strides[d];
        for (int64_t f = 0; f < kernel->group_features; f++)
            task->out[at + f * kernel->output_feature_stride] = product[r * kernel->group_features + f];
        strided_next(index, plan->row_sizes, plan->row_rank);
    }
}

static void multiply_rows(const ColumnsTask *task, char *memory, int64_t group, int64_t row, int64_t rows) {
    const ConvolutionKernel *kernel = task->kernel;
    const Columns *plan = task->plan;
    float *columns = (float *)memory, *product = (float *)(memory + plan->product_at);
    const float *in = task->in + group * kernel->group_input_step;
    int64_t step = plan->is_direct ? kernel->outputs : kernel->group_features;
    if (plan->is_direct) product = task->out + row * kernel->outputs + group * kernel->group_features;
    Block block = {.row = row, .rows = rows};
    for (; block.first < kernel->depth; block.first += plan->depth_block) {
        int64_t left = kernel->depth - block.first;
        block.depth = left < plan->depth_block ? left : plan->depth_block;
        if (plan->columns_are_rows_last) fill_by_depth(task, columns, in, &block);
        else fill_by_rows(task, columns, in, &block);
        multiply(task, product, step, columns, &block, group);
    }
    if (!plan->is_direct) place_rows(task, product, group, &block);
}

static void multiply_part(void *user, int32_t part, int32_t parts) {
    const ColumnsTask *task = user;
    const Columns *plan = task->plan;
    int64_t first, end;
    char *memory = task->scratch + plan->members_at + part * plan->member_bytes;
    int64_t blocks = (task->kernel->rows + plan->row_block - 1) / plan->row_block;
    team_stretch(blocks * task->kernel->groups, 1, part, parts, &first, &end);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t row = unit % blocks * plan->row_block, left = task->kernel->rows - row;
        multiply_rows(task, memory, unit / blocks, row, left < plan->row_block ? left : plan->row_block);
    }
}

static const float *pack_weights(const ConvolutionKernel *kernel, const float *weights, char *scratch) {
    const Columns *plan = kernel->plan;
    if (plan->weights_form != WEIGHTS_PACKED) return weights;
    float *packed = (float *)(scratch + plan->packed_at);
    int64_t dimensions[IR_MAX_RANK], from[IR_MAX_RANK], to[IR_MAX_RANK];
    int32_t rank = plan->depth_rank;
    memcpy(dimensions, plan->depth_sizes, sizeof(int64_t) * (size_t)rank);
    memcpy(from, plan->depth_strides, sizeof(int64_t) * (size_t)rank);
    dimensions[rank] = kernel->outputs;
    from[rank] = kernel->weights_output_stride;
    strided_row_major(to, dimensions, rank + 1);
    strided_copy(packed, to, weights, from, dimensions, rank + 1, sizeof(float));
    return packed;
}

static void run_columns(const KernelCall *call, const float *in, const float *weights, float *out) {
    const ConvolutionKernel *kernel = call->compiled;
    const Columns *plan = kernel->plan;
    ColumnsTask task = {kernel, plan, in, pack_weights(kernel, weights, call->scratch), out, call->scratch};
    double products = (double)kernel->rows * (double)kernel->depth * (double)kernel->outputs;
    int32_t parts = team_parts(call->device, products / 32);
    team_run(call->device, multiply_part, &task, parts < plan->members ? parts : plan->members);
}

static bool fits_columns(const ConvolutionKernel *kernel) {
    return kernel->outputs <= INT_MAX && kernel->depth <= INT_MAX;
}

static int32_t spatial_of(const int64_t *spatial, int32_t count, int64_t dimension) {
    for (int32_t s = 0; s < count; s++)
        if (spatial[s] == dimension) return s;
    return NO_SPATIAL;
}

static AmStatus prepare_columns(ConvolutionKernel *kernel, KernelCall *call, Arena *arena, AmError *error) {
    const int64_t word = (int64_t)sizeof(float);
    const IrConvolution *form = kernel->form;
    const IrShape *output = call->result_shapes[0], *weights = call->operand_shapes[1];
    Columns *plan = ARENA_ARRAY(arena, Columns, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, output->dimensions, output->rank);
    for (int32_t d = 0; d < output->rank; d++) {
        if (d == form->output_feature) continue;
        int32_t n = plan->row_rank++;
        plan->row_spatial[n] = spatial_of(form->output_spatial, form->spatial_count, d);
        plan->row_sizes[n] = output->dimensions[d];
        plan->row_strides[n] = strides[d];
    }
    int64_t weight_strides[IR_MAX_RANK];
    strided_row_major(weight_strides, weights->dimensions, weights->rank);
    for (int32_t d = 0; d < weights->rank; d++) {
        if (d == form->kernel_output_feature) continue;
        int32_t n = plan->depth_rank++;
        plan->depth_spatial[n] = spatial_of(form->kernel_spatial, form->spatial_count, d);
        plan->depth_sizes[n] = weights->dimensions[d];
        plan->depth_strides[n] = weight_strides[d];
    }
    plan->weights_form = form->kernel_output_feature == weights->rank - 1 ? WEIGHTS_DEPTH_MAJOR
                         : form->kernel_output_feature == 0               ? WEIGHTS_FEATURE_MAJOR
                                                                          : WEIGHTS_PACKED;
    int32_t last_row = plan->row_rank - 1, last_depth = plan->depth_rank - 1;
    bool feature_last = plan->depth_spatial[last_depth] == NO_SPATIAL;
    bool batch_last = plan->row_spatial[last_row] == NO_SPATIAL;
    plan->columns_are_rows_last =
        batch_last && kernel->batch_stride == 1 && !(feature_last && kernel->feature_stride == 1);
    plan->run = feature_last ? plan->depth_sizes[last_depth] : 1;
    plan->members = team_size(call->device);
    plan->depth_block = kernel->depth < DEPTH_BLOCK ? kernel->depth : DEPTH_BLOCK;
    plan->row_block = COLUMN_ELEMENTS / plan->depth_block;
    /* Blocks do not depend on the team, so that neither does the order of BLAS's sums. */
    int64_t fair = (kernel->rows + LEAST_BLOCKS - 1) / LEAST_BLOCKS;
    if (fair < LEAST_ROWS) fair = LEAST_ROWS;
    if (plan->row_block > fair) plan->row_block = fair;
    if (plan->row_block > kernel->rows) plan->row_block = kernel->rows;
    plan->is_direct = kernel->form->output_feature == output->rank - 1;
    plan->product_at = kernel_align(plan->row_block * plan->depth_block * word);
    plan->member_bytes = plan->product_at;
    if (!plan->is_direct) plan->member_bytes += kernel_align(plan->row_block * kernel->group_features * word);
    plan->members_at = convolution_reserve(call, plan->members * plan->member_bytes);
    if (plan->weights_form == WEIGHTS_PACKED)
        plan->packed_at = convolution_reserve(call, ir_shape_elements(call->operand_shapes[1]) * word);
    kernel->plan = plan;
    return AM_OK;
}

const ConvolutionAlgorithm convolution_columns = {
    .name = "columns", .fits = fits_columns, .prepare = prepare_columns, .run = run_columns};
