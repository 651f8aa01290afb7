/* convolution: im2col and a matrix product, for any layout and window.
 *
 * Rows are output positions (batch and spatial dimensions in the order in which
 * the output lies in memory), the depth is (kernel position, input feature) in
 * the order in which the kernel lies. Column buffers of at most COLUMN_ELEMENTS
 * are filled for a block of rows and of depth and multiplied with the kernel;
 * blocks along the depth accumulate. Where the input runs fastest along the
 * features a buffer is [rows, depth] (forward, input gradient), where it runs
 * fastest along the batch it is [depth, rows] (kernel gradient, whose "batch"
 * are the features), so that copies are runs. Position p of a window reads
 * output*stride + kernel*window_dilation - padding_low, if that is a multiple of
 * the base dilation and inside. Groups are computed one after the other. Narrower
 * floating types are widened to f32 and their results rounded once; other types go
 * through a plain loop that accumulates wide.
 */
#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "executor/cpu/cpu.h"
#include "executor/cpu/strided.h"
#include "executor/cpu/wide.h"

#define COLUMN_ELEMENTS (512 * 1024)
#define DEPTH_BLOCK     2048
#define NO_SPATIAL      (-1)

typedef struct ConvolutionKernel {
    int32_t spatial_count;
    IrWindowDimension window[IR_MAX_RANK];
    int64_t input_sizes[IR_MAX_RANK], input_strides[IR_MAX_RANK]; /* of the spatial dimensions */
    int64_t batch_stride, feature_stride;                         /* of the input */
    /* Rows: output dimensions but the feature, in memory order. */
    int32_t row_rank, row_spatial[IR_MAX_RANK]; /* spatial index, NO_SPATIAL for the batch */
    int64_t row_sizes[IR_MAX_RANK], row_strides[IR_MAX_RANK];
    int64_t rows, output_feature_stride;
    /* Depth: kernel dimensions but the output feature, in memory order. */
    int32_t depth_rank, depth_spatial[IR_MAX_RANK]; /* spatial index, NO_SPATIAL for the input feature */
    int64_t depth_sizes[IR_MAX_RANK], depth_strides[IR_MAX_RANK];
    int64_t depth, kernel_feature_stride;
    int64_t groups, group_features, group_input_step, outputs; /* outputs: features of all groups */
    bool columns_are_rows_last;                                /* buffer is [depth, rows] */
    int64_t run;                                               /* elements copied together */
    int64_t row_block, depth_block;
    enum { KERNEL_DEPTH_MAJOR, KERNEL_FEATURE_MAJOR, KERNEL_PACKED } kernel_form;
    int64_t kernel_at, product_at; /* scratch offsets; product_at -1: multiplied into the result */
    Dtype input_type, kernel_type, output_type;
    int64_t wide_input_at, wide_kernel_at, wide_output_at; /* scratch offsets of what is widened */
} ConvolutionKernel;

static void decode(int64_t *index, int64_t at, const int64_t *sizes, int32_t rank) {
    for (int32_t d = rank - 1; d >= 0; d--) {
        index[d] = at % sizes[d];
        at /= sizes[d];
    }
}

/* What an output position, or a kernel position, adds to the place that is read. */
typedef struct Part {
    int64_t at;                    /* offset by the batch, or by the feature */
    int64_t position[IR_MAX_RANK]; /* in each spatial dimension, before base dilation */
} Part;

static void row_part(Part *part, const ConvolutionKernel *kernel, const int64_t *row) {
    part->at = 0;
    for (int32_t d = 0; d < kernel->row_rank; d++) {
        int32_t s = kernel->row_spatial[d];
        if (s == NO_SPATIAL) part->at += row[d] * kernel->batch_stride;
        else part->position[s] = row[d] * kernel->window[s].stride - kernel->window[s].padding_low;
    }
}

static void depth_part(Part *part, const ConvolutionKernel *kernel, const int64_t *depth) {
    part->at = 0;
    for (int32_t d = 0; d < kernel->depth_rank; d++) {
        int32_t s = kernel->depth_spatial[d];
        if (s == NO_SPATIAL) {
            part->at += depth[d] * kernel->feature_stride;
        } else {
            const IrWindowDimension *window = &kernel->window[s];
            int64_t k = window->reversal ? window->size - 1 - depth[d] : depth[d];
            part->position[s] = k * window->window_dilation;
        }
    }
}

/* Offset in the input of what both parts name, or -1 for padding. */
static int64_t input_offset(const ConvolutionKernel *kernel, const Part *row, const Part *depth) {
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

/* columns[row][depth] for a block; runs are along the input feature where that is innermost. */
static void fill_by_rows(const ConvolutionKernel *kernel, float *columns, const float *in, int64_t row,
                         int64_t rows, int64_t first, int64_t depth) {
    int64_t row_index[IR_MAX_RANK], index[IR_MAX_RANK];
    int32_t last = kernel->depth_rank - 1;
    Part row_at, depth_at;
    decode(row_index, row, kernel->row_sizes, kernel->row_rank);
    for (int64_t r = 0; r < rows; r++) {
        row_part(&row_at, kernel, row_index);
        decode(index, first, kernel->depth_sizes, kernel->depth_rank);
        for (int64_t done = 0; done < depth;) {
            int64_t count = kernel->run > 1 ? kernel->run - index[last] : 1;
            if (count > depth - done) count = depth - done;
            depth_part(&depth_at, kernel, index);
            put_run(columns + r * depth + done, in, input_offset(kernel, &row_at, &depth_at),
                    kernel->feature_stride, count);
            done += count;
            if (kernel->run > 1) index[last] = kernel->depth_sizes[last] - 1;
            strided_next(index, kernel->depth_sizes, kernel->depth_rank);
        }
        strided_next(row_index, kernel->row_sizes, kernel->row_rank);
    }
}

/* columns[depth][row] for a block; runs are along the batch, the last row dimension. */
static void fill_by_depth(const ConvolutionKernel *kernel, float *columns, const float *in, int64_t row,
                          int64_t rows, int64_t first, int64_t depth) {
    int64_t row_index[IR_MAX_RANK], index[IR_MAX_RANK];
    int32_t last = kernel->row_rank - 1;
    Part row_at, depth_at;
    decode(index, first, kernel->depth_sizes, kernel->depth_rank);
    for (int64_t k = 0; k < depth; k++) {
        depth_part(&depth_at, kernel, index);
        decode(row_index, row, kernel->row_sizes, kernel->row_rank);
        for (int64_t done = 0; done < rows;) {
            int64_t count = kernel->row_sizes[last] - row_index[last];
            if (count > rows - done) count = rows - done;
            row_part(&row_at, kernel, row_index);
            put_run(columns + k * rows + done, in, input_offset(kernel, &row_at, &depth_at),
                    kernel->batch_stride, count);
            done += count;
            row_index[last] = kernel->row_sizes[last] - 1;
            strided_next(row_index, kernel->row_sizes, kernel->row_rank);
        }
        strided_next(index, kernel->depth_sizes, kernel->depth_rank);
    }
}

static void multiply_block(const ConvolutionKernel *kernel, float *product, int64_t product_step,
                           const float *columns, const float *weights, int64_t group, int64_t rows,
                           int64_t first, int64_t depth) {
    bool feature_major = kernel->kernel_form == KERNEL_FEATURE_MAJOR;
    int64_t column = group * kernel->group_features;
    const float *from =
        feature_major ? weights + column * kernel->depth + first : weights + first * kernel->outputs + column;
    int64_t step = feature_major ? kernel->depth : kernel->outputs;
    cblas_sgemm(CblasRowMajor, kernel->columns_are_rows_last ? CblasTrans : CblasNoTrans,
                feature_major ? CblasTrans : CblasNoTrans, (int)rows, (int)kernel->group_features, (int)depth,
                1.0f, columns, (int)(kernel->columns_are_rows_last ? rows : depth), from, (int)step,
                first == 0 ? 0.0f : 1.0f, product, (int)product_step);
}

/* Rows of a product [rows, group_features] to their places in the output. */
static void place_rows(const ConvolutionKernel *kernel, float *out, const float *product, int64_t group,
                       int64_t row, int64_t rows) {
    int64_t index[IR_MAX_RANK];
    decode(index, row, kernel->row_sizes, kernel->row_rank);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = group * kernel->group_features * kernel->output_feature_stride;
        for (int32_t d = 0; d < kernel->row_rank; d++) at += index[d] * kernel->row_strides[d];
        for (int64_t f = 0; f < kernel->group_features; f++)
            out[at + f * kernel->output_feature_stride] = product[r * kernel->group_features + f];
        strided_next(index, kernel->row_sizes, kernel->row_rank);
    }
}

static const float *pack_kernel(const KernelCall *call, const ConvolutionKernel *kernel) {
    if (kernel->kernel_form != KERNEL_PACKED) return call->operands[1];
    float *packed = (float *)((char *)call->scratch + kernel->kernel_at);
    int64_t dimensions[IR_MAX_RANK], from[IR_MAX_RANK], to[IR_MAX_RANK];
    int32_t rank = kernel->depth_rank;
    memcpy(dimensions, kernel->depth_sizes, sizeof(int64_t) * (size_t)rank);
    memcpy(from, kernel->depth_strides, sizeof(int64_t) * (size_t)rank);
    dimensions[rank] = kernel->outputs;
    from[rank] = kernel->kernel_feature_stride;
    strided_row_major(to, dimensions, rank + 1);
    strided_copy(packed, to, call->operands[1], from, dimensions, rank + 1, sizeof(float));
    return packed;
}

static void run_convolution(const KernelCall *call) {
    const ConvolutionKernel *kernel = call->compiled;
    float *out = call->results[0], *columns = call->scratch;
    if (kernel->rows == 0 || kernel->outputs == 0 || kernel->depth == 0) {
        memset(out, 0, sizeof(float) * (size_t)ir_shape_elements(call->result_shapes[0]));
        return;
    }
    const float *weights = pack_kernel(call, kernel);
    for (int64_t group = 0; group < kernel->groups; group++) {
        const float *in = (const float *)call->operands[0] + group * kernel->group_input_step;
        for (int64_t row = 0; row < kernel->rows; row += kernel->row_block) {
            int64_t rows = kernel->rows - row < kernel->row_block ? kernel->rows - row : kernel->row_block;
            bool direct = kernel->product_at < 0;
            float *product = direct ? out + row * kernel->outputs + group * kernel->group_features
                                    : (float *)((char *)call->scratch + kernel->product_at);
            int64_t step = direct ? kernel->outputs : kernel->group_features;
            for (int64_t first = 0; first < kernel->depth; first += kernel->depth_block) {
                int64_t left = kernel->depth - first;
                int64_t depth = left < kernel->depth_block ? left : kernel->depth_block;
                if (kernel->columns_are_rows_last)
                    fill_by_depth(kernel, columns, in, row, rows, first, depth);
                else fill_by_rows(kernel, columns, in, row, rows, first, depth);
                multiply_block(kernel, product, step, columns, weights, group, rows, first, depth);
            }
            if (!direct) place_rows(kernel, out, product, group, row, rows);
        }
    }
}

static void convert(void *out, Dtype to, const void *in, Dtype from, int64_t elements) {
    Wide run[WIDE_RUN];
    for (int64_t at = 0; at < elements; at += WIDE_RUN) {
        int64_t n = elements - at < WIDE_RUN ? elements - at : WIDE_RUN;
        wide_load(run, (const char *)in + at * dtype_bytes(from), from, n, 1);
        wide_store((char *)out + at * dtype_bytes(to), to, run, WIDE_FLOATING, n, 1);
    }
}

/* Types below 32 bits: the same on f32 copies. */
static void run_widened(const KernelCall *call) {
    const ConvolutionKernel *kernel = call->compiled;
    char *scratch = call->scratch;
    void *operands[2] = {scratch + kernel->wide_input_at, scratch + kernel->wide_kernel_at};
    void *results[1] = {scratch + kernel->wide_output_at};
    KernelCall widened = *call;
    widened.operands = operands;
    widened.results = results;
    convert(operands[0], DTYPE_F32, call->operands[0], kernel->input_type,
            ir_shape_elements(call->operand_shapes[0]));
    convert(operands[1], DTYPE_F32, call->operands[1], kernel->kernel_type,
            ir_shape_elements(call->operand_shapes[1]));
    run_convolution(&widened);
    convert(call->results[0], kernel->output_type, results[0], DTYPE_F32,
            ir_shape_elements(call->result_shapes[0]));
}

/* What one output element adds up: wide numbers, or the parts of complex ones. */
typedef struct Sum {
    Wide wide;
    double real, imaginary;
} Sum;

static double part_of(const void *data, Dtype type, int64_t at) {
    Wide value;
    wide_load(&value, (const char *)data + at * dtype_bytes(type), type, 1, 1);
    return value.floating;
}

/* sum += input[at] * weights[kernel_at] */
static void add_product(Sum *sum, const KernelCall *call, int64_t at, int64_t kernel_at) {
    const ConvolutionKernel *kernel = call->compiled;
    const void *in = call->operands[0], *weights = call->operands[1];
    if (dtype_is_complex(kernel->output_type)) {
        Dtype part = dtype_real_part(kernel->output_type);
        double a = part_of(in, part, 2 * at), b = part_of(in, part, 2 * at + 1);
        double c = part_of(weights, part, 2 * kernel_at), d = part_of(weights, part, 2 * kernel_at + 1);
        sum->real += a * c - b * d;
        sum->imaginary += a * d + b * c;
        return;
    }
    Wide x, y;
    WideKind kind = wide_kind(kernel->output_type);
    wide_load(&x, (const char *)in + at * dtype_bytes(kernel->input_type), kernel->input_type, 1, 1);
    wide_load(&y, (const char *)weights + kernel_at * dtype_bytes(kernel->kernel_type), kernel->kernel_type,
              1, 1);
    wide_fold(&x, &y, kind, SBP_MULTIPLY, 1);
    wide_fold(&sum->wide, &x, kind, SBP_ADD, 1);
}

static void store_sum(const KernelCall *call, int64_t at, const Sum *sum) {
    Dtype type = ((const ConvolutionKernel *)call->compiled)->output_type, part = dtype_real_part(type);
    char *out = (char *)call->results[0] + at * dtype_bytes(type);
    const Wide parts[2] = {{.floating = sum->real}, {.floating = sum->imaginary}};
    if (part != type) wide_store(out, part, parts, WIDE_FLOATING, 2, 1);
    else wide_store(out, type, &sum->wide, wide_kind(type), 1, 1);
}

/* Any other type: one output element at a time. */
static void run_plain(const KernelCall *call) {
    const ConvolutionKernel *kernel = call->compiled;
    for (int64_t row = 0; row < kernel->rows; row++) {
        int64_t row_index[IR_MAX_RANK], out_at = 0;
        Part row_at, depth_at;
        decode(row_index, row, kernel->row_sizes, kernel->row_rank);
        for (int32_t d = 0; d < kernel->row_rank; d++) out_at += row_index[d] * kernel->row_strides[d];
        row_part(&row_at, kernel, row_index);
        for (int64_t f = 0; f < kernel->outputs; f++) {
            int64_t group = f / kernel->group_features, index[IR_MAX_RANK] = {0};
            Sum sum = {.wide = {.is_unsigned = 0}};
            for (int64_t k = 0; k < kernel->depth; k++) {
                depth_part(&depth_at, kernel, index);
                int64_t at = input_offset(kernel, &row_at, &depth_at);
                int64_t kernel_at = f * kernel->kernel_feature_stride;
                for (int32_t d = 0; d < kernel->depth_rank; d++)
                    kernel_at += index[d] * kernel->depth_strides[d];
                if (at >= 0) add_product(&sum, call, at + group * kernel->group_input_step, kernel_at);
                strided_next(index, kernel->depth_sizes, kernel->depth_rank);
            }
            store_sum(call, out_at + f * kernel->output_feature_stride, &sum);
        }
    }
}

static bool is_at_most_single(Dtype type) {
    return dtype_is_floating(type) && dtype_bits(type) <= 32;
}

/* Room in the scratch memory for an array in f32. */
static int64_t reserve(KernelCall *call, const IrShape *shape) {
    int64_t at = kernel_align(call->scratch_bytes);
    call->scratch_bytes = at + kernel_align(ir_shape_elements(shape) * (int64_t)sizeof(float));
    return at;
}

/* Whether run_plain() can multiply these: all complex and equal, or all real. */
static bool is_plain(const ConvolutionKernel *kernel) {
    Dtype input = kernel->input_type, weights = kernel->kernel_type, output = kernel->output_type;
    if (dtype_is_complex(output)) return input == output && weights == output;
    return wide_supports(input) && wide_supports(weights) && wide_supports(output) &&
           dtype_is_floating(input) == dtype_is_floating(output) &&
           dtype_is_floating(weights) == dtype_is_floating(output);
}

static void describe_input(ConvolutionKernel *kernel, const IrConvolution *form, const IrShape *input) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, input->dimensions, input->rank);
    kernel->batch_stride = strides[form->input_batch];
    kernel->feature_stride = strides[form->input_feature];
    for (int32_t s = 0; s < form->spatial_count; s++) {
        kernel->input_sizes[s] = input->dimensions[form->input_spatial[s]];
        kernel->input_strides[s] = strides[form->input_spatial[s]];
    }
}

static int32_t spatial_of(const int64_t *spatial, int32_t count, int64_t dimension) {
    for (int32_t s = 0; s < count; s++)
        if (spatial[s] == dimension) return s;
    return NO_SPATIAL;
}

static void describe_rows(ConvolutionKernel *kernel, const IrConvolution *form, const IrShape *output) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, output->dimensions, output->rank);
    for (int32_t d = 0; d < output->rank; d++) {
        if (d == form->output_feature) continue;
        int32_t n = kernel->row_rank++;
        kernel->row_spatial[n] = spatial_of(form->output_spatial, form->spatial_count, d);
        kernel->row_sizes[n] = output->dimensions[d];
        kernel->row_strides[n] = strides[d];
    }
    kernel->rows = strided_elements(kernel->row_sizes, kernel->row_rank);
    kernel->outputs = output->dimensions[form->output_feature];
    kernel->output_feature_stride = strides[form->output_feature];
}

static void describe_depth(ConvolutionKernel *kernel, const IrConvolution *form, const IrShape *weights) {
    int64_t strides[IR_MAX_RANK];
    strided_row_major(strides, weights->dimensions, weights->rank);
    for (int32_t d = 0; d < weights->rank; d++) {
        if (d == form->kernel_output_feature) continue;
        int32_t n = kernel->depth_rank++;
        kernel->depth_spatial[n] = spatial_of(form->kernel_spatial, form->spatial_count, d);
        kernel->depth_sizes[n] = weights->dimensions[d];
        kernel->depth_strides[n] = strides[d];
    }
    kernel->depth = strided_elements(kernel->depth_sizes, kernel->depth_rank);
    kernel->kernel_feature_stride = strides[form->kernel_output_feature];
    kernel->kernel_form = form->kernel_output_feature == weights->rank - 1 ? KERNEL_DEPTH_MAJOR
                          : form->kernel_output_feature == 0               ? KERNEL_FEATURE_MAJOR
                                                                           : KERNEL_PACKED;
}

/* Blocks, the direction of the column buffer and the scratch memory. */
static void plan_blocks(KernelCall *call, ConvolutionKernel *kernel, bool output_is_direct) {
    int32_t last_row = kernel->row_rank - 1, last_depth = kernel->depth_rank - 1;
    bool feature_last = kernel->depth_spatial[last_depth] == NO_SPATIAL;
    bool batch_last = kernel->row_spatial[last_row] == NO_SPATIAL;
    kernel->columns_are_rows_last =
        batch_last && kernel->batch_stride == 1 && !(feature_last && kernel->feature_stride == 1);
    kernel->run = feature_last ? kernel->depth_sizes[last_depth] : 1;
    kernel->depth_block = kernel->depth < DEPTH_BLOCK ? kernel->depth : DEPTH_BLOCK;
    kernel->row_block = kernel->depth_block > 0 ? COLUMN_ELEMENTS / kernel->depth_block : 1;
    if (kernel->row_block > kernel->rows) kernel->row_block = kernel->rows;
    int64_t scratch = kernel_align(kernel->row_block * kernel->depth_block * (int64_t)sizeof(float));
    kernel->kernel_at = scratch;
    if (kernel->kernel_form == KERNEL_PACKED)
        scratch += kernel_align(ir_shape_elements(call->operand_shapes[1]) * (int64_t)sizeof(float));
    kernel->product_at = output_is_direct ? -1 : scratch;
    if (!output_is_direct)
        scratch += kernel_align(kernel->row_block * kernel->group_features * (int64_t)sizeof(float));
    call->scratch_bytes = scratch;
}

AmStatus cpu_prepare_convolution(KernelCall *call, Arena *arena, AmError *error) {
    const IrAttributes *attributes = call->instruction->attributes;
    const IrConvolution *form = attributes->convolution;
    const IrShape *input = call->operand_shapes[0], *output = call->result_shapes[0];
    ConvolutionKernel *kernel = ARENA_ARRAY(arena, ConvolutionKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (!form || attributes->window_count != form->spatial_count)
        return kernel_call_refuse(call, "its window does not fit its dimensions", error);
    kernel->spatial_count = form->spatial_count;
    for (int32_t s = 0; s < form->spatial_count; s++) {
        kernel->window[s] = attributes->window[s];
        if (kernel->window[s].base_dilation < 1) kernel->window[s].base_dilation = 1;
        if (kernel->window[s].window_dilation < 1) kernel->window[s].window_dilation = 1;
    }
    describe_input(kernel, form, input);
    describe_rows(kernel, form, output);
    describe_depth(kernel, form, call->operand_shapes[1]);
    bool by_batch = form->batch_group_count > 1;
    kernel->groups = by_batch ? form->batch_group_count : form->feature_group_count;
    if (kernel->groups < 1 || kernel->outputs % kernel->groups != 0)
        return kernel_call_refuse(call, "its groups do not divide the features", error);
    kernel->group_features = kernel->outputs / kernel->groups;
    kernel->group_input_step =
        by_batch ? output->dimensions[form->output_batch] * kernel->batch_stride
                 : call->operand_shapes[1]->dimensions[form->kernel_input_feature] * kernel->feature_stride;
    kernel->input_type = input->type;
    kernel->kernel_type = call->operand_shapes[1]->type;
    kernel->output_type = output->type;
    call->compiled = kernel;
    bool single = input->type == DTYPE_F32 && kernel->kernel_type == DTYPE_F32 && output->type == DTYPE_F32;
    bool widened = !single && is_at_most_single(input->type) && is_at_most_single(kernel->kernel_type) &&
                   is_at_most_single(output->type);
    if (!single && !widened) {
        if (!is_plain(kernel)) return kernel_call_refuse(call, "not on these types", error);
        call->run = run_plain;
        return AM_OK;
    }
    if (kernel->outputs > INT_MAX || kernel->depth > INT_MAX)
        return kernel_call_refuse(call, "a dimension is above 2^31", error);
    plan_blocks(call, kernel, form->output_feature == output->rank - 1);
    call->run = widened ? run_widened : run_convolution;
    if (!widened) return AM_OK;
    kernel->wide_input_at = reserve(call, input);
    kernel->wide_kernel_at = reserve(call, call->operand_shapes[1]);
    kernel->wide_output_at = reserve(call, output);
    return AM_OK;
}
