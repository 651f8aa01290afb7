/* convolution by tiles of output positions and features, directly from the image.
 *
 * Rows of a product are output positions, its columns output features, its depth the window's cells
 * and their features. If the features are contiguous, each cell is one segment of a row (tile.h),
 * so that no columns are gathered (the indirect convolution of Dukhan, 2019). Padding is read from
 * zeros, and a cell that is padding in all rows of a tile is skipped. Images with few features are
 * first copied with their padding; adjacent cells are then contiguous and form one segment.
 *
 * With a dilated base (the gradient of a strided convolution) the cells between the input's
 * elements depend only on the output position modulo a period. Positions are therefore sorted into
 * phases, each with its own cells.
 *
 * The weights are packed once in panels as wide as a tile, [group, panel, cell, feature, column].
 * Blocks of rows times panels times stretches of the depth keep repeated data in the second-level
 * cache; the sums of a stretch are added to those of the stretches before. The team divides the
 * blocks of rows.
 */
#include <string.h>

#include "base/integers.h"
#include "executor/array/strided.h"
#include "executor/cpu/convolution/convolution.h"
#include "executor/cpu/matmul/tile.h"
#include "executor/cpu/team.h"
#include "propagation/rules/rules.h"

enum {
    MOST_SPATIAL = 3,
    MOST_CELLS = 1 << 16,
    MOST_PHASES = 1 << 10,
    ROWS_GRAIN = 24,        /* a multiple of every tile's rows */
    MOST_ROWS = 384,        /* of a block */
    DEPTH_BLOCK = 2048,     /* products of a stretch */
    MOST_SEGMENTS = 128,    /* of a stretch */
    FEW_FEATURES = 64,      /* images of at most so many features may be copied with their padding */
    MOST_GROWTH = 4,        /* most growth of an image by such a copy, as a factor */
    FREE_PADDING = 1 << 16, /* elements of all copies up to which any growth is allowed */
};

/* Shares of the second-level cache, in bytes. */
enum { ROWS_BYTES = 384 * 1024, PANELS_BYTES = 640 * 1024 };

/* The source of the image: the operand, or a copy with its padding. */
typedef struct Image {
    int64_t sizes[MOST_SPATIAL], strides[MOST_SPATIAL], batch_stride, group_step;
    int64_t low[MOST_SPATIAL]; /* places of padding before the first */
} Image;

/* One cell of the window in a phase, or the first of several contiguous ones: its address relative
 * to the phase's position 0. */
typedef struct Cell {
    int64_t at[MOST_SPATIAL], offset; /* index in each spatial dimension; elements */
    int64_t number;                   /* in the packed weights */
} Cell;

typedef struct Phase {
    int64_t first[MOST_SPATIAL], sizes[MOST_SPATIAL]; /* first output index; positions */
    int64_t low[MOST_SPATIAL], high[MOST_SPATIAL];    /* least and largest index of its cells */
    int64_t first_cell, cells, rows, first_block;
    int64_t run; /* cells of the window that each of `cells` stands for */
} Phase;

typedef struct Indirect {
    const TileKind *tile;
    Phase *phases;
    Cell *cells;
    Image image;
    int32_t phase_count;
    int64_t period[MOST_SPATIAL]; /* output positions from one of a phase to the next */
    int64_t step[MOST_SPATIAL];   /* input elements by which they are apart */
    int64_t window_cells, panel_width, panels, feature_block, rows_block, blocks;
    int64_t packed_at, zeros_at, group_packed; /* scratch offsets; elements of a group's packed weights */
    bool is_padded;                            /* the image is copied, to: */
    int64_t padded_at, images;                 /* scratch offset; images of all batch groups */
} Indirect;

/* One run of it. */
typedef struct IndirectTask {
    const KernelCall *call;
    const ConvolutionKernel *kernel;
    const Indirect *plan;
    const float *whole, *in, *weights; /* the input; it or its copy with padding */
    float *out, *packed;
    const float *zeros;
} IndirectTask;

/* An output position. */
typedef struct IndirectRow {
    int64_t base, at[MOST_SPATIAL]; /* the base of its cells' offsets and indices */
    int64_t out;
    bool is_inside; /* with its whole window */
} IndirectRow;

static int64_t panel_columns(const ConvolutionKernel *kernel, const Indirect *plan, int64_t panel) {
    int64_t left = kernel->group_features - panel * plan->panel_width;
    return left < plan->panel_width ? left : plan->panel_width;
}

/* Columns rounded up to whole vectors. */
static int64_t packed_width(const Indirect *plan, int64_t columns) {
    return (columns + plan->tile->width - 1) / plan->tile->width * plan->tile->width;
}

/* Packs one cell of a panel: to[feature][column], zero beyond the last column. */
static void pack_cell(const ConvolutionKernel *kernel, float *to, const float *from, int64_t columns,
                      int64_t width) {
    const int64_t along = kernel->weights_feature_stride, across = kernel->weights_output_stride;
    for (int64_t i = 0; across == 1 && i < kernel->features; i++) {
        memcpy(to + i * width, from + i * along, sizeof(float) * (size_t)columns);
        memset(to + i * width + columns, 0, sizeof(float) * (size_t)(width - columns));
    }
    for (int64_t first = 0; across != 1 && first < kernel->features; first += TILE_MOST_WIDTH) {
        int64_t end = first + TILE_MOST_WIDTH < kernel->features ? first + TILE_MOST_WIDTH : kernel->features;
        for (int64_t c = 0; c < width; c++)
            for (int64_t i = first; i < end; i++)
                to[i * width + c] = c < columns ? from[i * along + c * across] : 0.0f;
    }
}

static void pack_part(void *user, int32_t part, int32_t parts) {
    const IndirectTask *task = user;
    const ConvolutionKernel *kernel = task->kernel;
    const Indirect *plan = task->plan;
    int64_t first, end, sizes[MOST_SPATIAL], index[MOST_SPATIAL];
    for (int32_t s = 0; s < kernel->spatial_count; s++) sizes[s] = kernel->window[s].size;
    team_stretch(kernel->groups * plan->panels * plan->window_cells, 1, part, parts, &first, &end);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t cell = unit % plan->window_cells, panel = unit / plan->window_cells % plan->panels;
        int64_t group = unit / plan->window_cells / plan->panels;
        int64_t from =
            (group * kernel->group_features + panel * plan->panel_width) * kernel->weights_output_stride;
        int64_t left = cell;
        for (int32_t s = kernel->spatial_count - 1; s >= 0; s--) {
            index[s] = left % sizes[s];
            left /= sizes[s];
            from += index[s] * kernel->cell_strides[s];
        }
        int64_t columns = panel_columns(kernel, plan, panel), width = packed_width(plan, columns);
        float *to = task->packed + group * plan->group_packed +
                    panel * plan->panel_width * kernel->features * plan->window_cells +
                    cell * kernel->features * width;
        pack_cell(kernel, to, task->weights + from, columns, width);
    }
}

/* Rows first .. first+count of a phase. */
static void describe_rows(const IndirectTask *task, const Phase *phase, IndirectRow *rows, int64_t first,
                          int64_t count) {
    const ConvolutionKernel *kernel = task->kernel;
    const Indirect *plan = task->plan;
    int64_t index[MOST_SPATIAL], example = first;
    for (int32_t s = kernel->spatial_count - 1; s >= 0; s--) {
        index[s] = example % phase->sizes[s];
        example /= phase->sizes[s];
    }
    for (int64_t r = 0; r < count; r++) {
        IndirectRow *row = &rows[r];
        row->base = example * plan->image.batch_stride;
        row->out = example * kernel->output_batch_stride;
        row->is_inside = true;
        for (int32_t s = 0; s < kernel->spatial_count; s++) {
            int64_t at = index[s] * plan->step[s];
            row->at[s] = at;
            row->base += at * plan->image.strides[s];
            row->out += (phase->first[s] + index[s] * plan->period[s]) * kernel->output_strides[s];
            row->is_inside &= at + phase->low[s] >= 0 && at + phase->high[s] < plan->image.sizes[s];
        }
        if (!strided_next(index, phase->sizes, kernel->spatial_count)) example++;
    }
}

/* Returns whether the cell of a window lies inside of the image. */
static bool reads(const IndirectTask *task, const IndirectRow *row, const Cell *cell) {
    if (row->is_inside) return true;
    for (int32_t s = 0; s < task->kernel->spatial_count; s++) {
        int64_t at = row->at[s] + cell->at[s];
        if (at < 0 || at >= task->plan->image.sizes[s]) return false;
    }
    return true;
}

/* A stretch of the depth: cells, and `depth` products of each from `feature` on. */
typedef struct Stretch {
    const Cell *cells;
    int64_t cell_count, feature, depth;
} Stretch;

/* The input of a group, and the packed weights of a panel of `width` columns. */
typedef struct PanelInput {
    const float *in, *weights;
    int64_t width;
} PanelInput;

/* Fills the segments of a tile of `count` rows; returns how many there are. */
static int64_t fill_segments(const IndirectTask *task, TileSegment *segments, const IndirectRow *rows,
                             int32_t count, int32_t tile_rows, const Stretch *stretch,
                             const PanelInput *panel) {
    int64_t filled = 0;
    for (int64_t c = 0; c < stretch->cell_count; c++) {
        const Cell *cell = &stretch->cells[c];
        TileSegment *segment = &segments[filled];
        bool any = false;
        for (int32_t r = 0; r < count; r++) {
            bool is_read = reads(task, &rows[r], cell);
            segment->rows[r] =
                is_read ? panel->in + rows[r].base + cell->offset + stretch->feature : task->zeros;
            any |= is_read;
        }
        for (int32_t r = count; r < tile_rows; r++) segment->rows[r] = segment->rows[0];
        segment->columns =
            panel->weights + (cell->number * task->kernel->features + stretch->feature) * panel->width;
        filled += any;
    }
    return filled;
}

/* Multiplies a block of rows by a panel over a part of the depth. */
static void multiply(const IndirectTask *task, const IndirectRow *rows, int64_t row_count, int64_t group,
                     int64_t panel, const Stretch *stretch, bool accumulate) {
    const ConvolutionKernel *kernel = task->kernel;
    const Indirect *plan = task->plan;
    TileSegment segments[MOST_SEGMENTS];
    int64_t columns = panel_columns(kernel, plan, panel), width = packed_width(plan, columns);
    int32_t vectors = (int32_t)(width / plan->tile->width), tile_rows = plan->tile->rows[vectors];
    const PanelInput input = {.in = task->in + group * plan->image.group_step,
                              .weights = task->packed + group * plan->group_packed +
                                         panel * plan->panel_width * kernel->features * plan->window_cells,
                              .width = width};
    TileWork work = {.segments = segments,
                     .depth = stretch->depth,
                     .row_step = 1,
                     .column_step = width,
                     .out = task->out + group * kernel->group_features + panel * plan->panel_width,
                     .columns = (int32_t)columns,
                     .accumulate = accumulate};
    for (int64_t first = 0; first < row_count; first += tile_rows) {
        int64_t left = row_count - first;
        work.end_row = left < tile_rows ? (int32_t)left : tile_rows;
        work.segment_count =
            fill_segments(task, segments, rows + first, work.end_row, tile_rows, stretch, &input);
        for (int32_t r = 0; r < work.end_row; r++) work.out_rows[r] = rows[first + r].out;
        plan->tile->run[vectors](&work);
    }
}

static void multiply_block(const IndirectTask *task, const Phase *phase, int64_t group,
                           const IndirectRow *rows, int64_t count) {
    const Indirect *plan = task->plan;
    int64_t depth = task->kernel->features * phase->run;
    int64_t block = depth < DEPTH_BLOCK ? depth : DEPTH_BLOCK, cells = DEPTH_BLOCK / block;
    if (cells > MOST_SEGMENTS) cells = MOST_SEGMENTS;
    for (int64_t panel = 0; panel < plan->panels; panel++) {
        bool accumulate = false;
        for (int64_t feature = 0; feature < depth; feature += block)
            for (int64_t c = 0; c < phase->cells || !accumulate; c += cells) {
                Stretch stretch = {.cells = task->plan->cells + phase->first_cell + c,
                                   .cell_count = phase->cells - c < cells ? phase->cells - c : cells,
                                   .feature = feature,
                                   .depth = depth - feature < block ? depth - feature : block};
                multiply(task, rows, count, group, panel, &stretch, accumulate);
                accumulate = true;
            }
    }
}

/* Copies one line at a time: zeros, the image's elements, zeros. */
static void pad_part(void *user, int32_t part, int32_t parts) {
    const IndirectTask *task = user;
    const ConvolutionKernel *kernel = task->kernel;
    const Image *image = &task->plan->image;
    int32_t last = kernel->spatial_count - 1;
    float *padded = (float *)((char *)task->call->scratch + task->plan->padded_at);
    int64_t lines = image->batch_stride / (image->sizes[last] * image->strides[last]), first, end;
    int64_t line_elements = image->sizes[last] * image->strides[last];
    int64_t before = image->low[last] * image->strides[last];
    int64_t count = kernel->input_sizes[last] * kernel->input_strides[last];
    team_stretch(task->plan->images * lines, 1, part, parts, &first, &end);
    for (int64_t line = first; line < end; line++) {
        float *to = padded + line * line_elements;
        int64_t left = line, from = 0;
        bool is_inside = true;
        for (int32_t s = last - 1; s >= 0; s--) {
            int64_t at = left % image->sizes[s] - image->low[s];
            left /= image->sizes[s];
            is_inside &= at >= 0 && at < kernel->input_sizes[s];
            from += at * kernel->input_strides[s];
        }
        if (!is_inside) {
            memset(to, 0, sizeof(float) * (size_t)line_elements);
            continue;
        }
        memset(to, 0, sizeof(float) * (size_t)before);
        memcpy(to + before, task->whole + from + left * kernel->batch_stride, sizeof(float) * (size_t)count);
        memset(to + before + count, 0, sizeof(float) * (size_t)(line_elements - before - count));
    }
}

static void multiply_part(void *user, int32_t part, int32_t parts) {
    const IndirectTask *task = user;
    const Indirect *plan = task->plan;
    int64_t first, end;
    IndirectRow rows[MOST_ROWS];
    team_stretch(task->kernel->groups * plan->blocks, 1, part, parts, &first, &end);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t group = unit / plan->blocks, block = unit % plan->blocks;
        const Phase *phase = plan->phases;
        while (phase + 1 < plan->phases + plan->phase_count && phase[1].first_block <= block) phase++;
        int64_t row = (block - phase->first_block) * plan->rows_block, left = phase->rows - row;
        int64_t count = left < plan->rows_block ? left : plan->rows_block;
        describe_rows(task, phase, rows, row, count);
        multiply_block(task, phase, group, rows, count);
    }
}

static void run_indirect(const KernelCall *call, const float *in, const float *weights, float *out) {
    const ConvolutionKernel *kernel = call->compiled;
    const Indirect *plan = kernel->plan;
    float *zeros = (float *)((char *)call->scratch + plan->zeros_at);
    IndirectTask task = {.call = call,
                         .kernel = kernel,
                         .plan = plan,
                         .whole = in,
                         .in = plan->is_padded ? (float *)((char *)call->scratch + plan->padded_at) : in,
                         .weights = weights,
                         .out = out,
                         .packed = (float *)((char *)call->scratch + plan->packed_at),
                         .zeros = zeros};
    memset(zeros, 0, sizeof(float) * (size_t)plan->feature_block);
    double packed = (double)kernel->groups * (double)plan->group_packed;
    double products = (double)kernel->rows * (double)kernel->depth * (double)kernel->outputs;
    double copied = (double)plan->images * (double)plan->image.batch_stride;
    if (plan->is_padded) team_run(call->device, pad_part, &task, team_parts(call->device, copied / 8));
    team_run(call->device, pack_part, &task, team_parts(call->device, packed / 4));
    team_run(call->device, multiply_part, &task, team_parts(call->device, products / 32));
}

static int64_t period_of(const IrWindowDimension *window) {
    return window->base_dilation / common_divisor(window->base_dilation, window->stride);
}

static bool fits_indirect(const ConvolutionKernel *kernel) {
    int64_t cells = 1, phases = 1;
    if (kernel->spatial_count > MOST_SPATIAL || kernel->output_feature_stride != 1) return false;
    if (kernel->feature_stride != 1 && kernel->features > 1) return false;
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        const IrWindowDimension *window = &kernel->window[s];
        if (window->stride < 1 || window->size > MOST_CELLS || period_of(window) > MOST_PHASES) return false;
        cells *= window->size;
        phases *= period_of(window);
        if (cells > MOST_CELLS || phases > MOST_PHASES) return false;
    }
    return true;
}

/* Lists the cells of a phase. Returns their number. */
static int64_t list_cells(const ConvolutionKernel *kernel, const Image *image, const Phase *phase,
                          Cell *cells) {
    int64_t index[MOST_SPATIAL] = {0}, sizes[MOST_SPATIAL], count = 0, number = 0;
    for (int32_t s = 0; s < kernel->spatial_count; s++) sizes[s] = kernel->window[s].size;
    do {
        Cell cell = {.number = number++};
        bool is_hit = true;
        for (int32_t s = 0; s < kernel->spatial_count; s++) {
            const IrWindowDimension *window = &kernel->window[s];
            int64_t k = window->reversal ? window->size - 1 - index[s] : index[s];
            int64_t position =
                phase->first[s] * window->stride + k * window->window_dilation - window->padding_low;
            is_hit &= position % window->base_dilation == 0;
            cell.at[s] = position / window->base_dilation + image->low[s];
            cell.offset += cell.at[s] * image->strides[s];
        }
        if (is_hit) cells[count++] = cell;
    } while (strided_next(index, sizes, kernel->spatial_count));
    return count;
}

/* Joins cells that are contiguous in the copy of the image and in the weights. */
static void join_cells(const ConvolutionKernel *kernel, Phase *phase, Cell *cells) {
    int64_t run = 1, step = kernel->features;
    while (run < phase->cells && cells[run].offset == cells[run - 1].offset + step &&
           cells[run].number == cells[run - 1].number + 1)
        run++;
    for (int64_t c = 0; c < phase->cells; c++) {
        const Cell *first = &cells[c / run * run];
        if (cells[c].offset != first->offset + c % run * step || cells[c].number != first->number + c % run)
            return;
    }
    if (phase->cells == 0 || phase->cells % run != 0 || run * step > DEPTH_BLOCK) return;
    phase->run = run;
    phase->cells /= run;
    for (int64_t c = 0; c < phase->cells; c++) cells[c] = cells[c * run];
}

static void describe_phase(const ConvolutionKernel *kernel, const Indirect *plan, Phase *phase) {
    phase->rows = kernel->batch;
    phase->run = 1;
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        int64_t left = kernel->output_sizes[s] - phase->first[s];
        phase->sizes[s] = left > 0 ? (left + plan->period[s] - 1) / plan->period[s] : 0;
        phase->rows *= phase->sizes[s];
        for (int64_t c = 0; c < phase->cells; c++) {
            int64_t at = plan->cells[phase->first_cell + c].at[s];
            if (c == 0 || at < phase->low[s]) phase->low[s] = at;
            if (c == 0 || at > phase->high[s]) phase->high[s] = at;
        }
    }
    if (plan->is_padded && kernel->groups == 1) join_cells(kernel, phase, plan->cells + phase->first_cell);
}

/* Decides whether the image is copied with its padding, and describes the source. */
static void plan_image(const ConvolutionKernel *kernel, const KernelCall *call, Indirect *plan) {
    const IrShape *input = call->operand_shapes[0];
    int64_t together = input->dimensions[kernel->form->input_feature], elements = together, padded = together;
    Image *image = &plan->image;
    *image = (Image){.batch_stride = kernel->batch_stride, .group_step = kernel->group_input_step};
    memcpy(image->sizes, kernel->input_sizes, sizeof image->sizes);
    memcpy(image->strides, kernel->input_strides, sizeof image->strides);
    if (kernel->spatial_count == 0 || together > FEW_FEATURES || plan->window_cells == 1) return;
    Image copy = {.group_step = kernel->group_input_step};
    for (int32_t s = kernel->spatial_count - 1; s >= 0; s--) {
        const IrWindowDimension *window = &kernel->window[s];
        if (kernel->input_strides[s] != elements) return; /* it does not lie as batch, places, features */
        int64_t end = (kernel->output_sizes[s] - 1) * window->stride +
                      (window->size - 1) * window->window_dilation - window->padding_low;
        int64_t low = window->padding_low > 0 ? window->padding_low / window->base_dilation : 0;
        int64_t high = end / window->base_dilation + 1 - kernel->input_sizes[s];
        copy.low[s] = low;
        copy.sizes[s] = kernel->input_sizes[s] + low + (high > 0 ? high : 0);
        copy.strides[s] = padded;
        elements *= kernel->input_sizes[s];
        if (copy.sizes[s] > MOST_GROWTH * elements + FREE_PADDING) return;
        padded *= copy.sizes[s];
        if (padded > MOST_GROWTH * elements + FREE_PADDING) return;
    }
    int64_t images = input->dimensions[kernel->form->input_batch];
    if (kernel->batch_stride != elements || images * padded > MOST_GROWTH * images * elements + FREE_PADDING)
        return;
    copy.batch_stride = padded;
    if (kernel->form->batch_group_count > 1) copy.group_step = kernel->batch * padded;
    *image = copy;
    plan->images = images;
    plan->is_padded = true;
}

/* Phases and their cells; every cell belongs to one phase in each dimension or to some, so cells may
 * repeat. */
static AmStatus list_phases(const ConvolutionKernel *kernel, Indirect *plan, Arena *arena, AmError *error) {
    int64_t phases = 1, cells = 0, first[MOST_SPATIAL] = {0};
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        plan->period[s] = period_of(&kernel->window[s]);
        plan->step[s] = plan->period[s] * kernel->window[s].stride / kernel->window[s].base_dilation;
        phases *= plan->period[s];
    }
    Cell *scratch = ARENA_ARRAY(arena, Cell, plan->window_cells);
    plan->phases = ARENA_ARRAY(arena, Phase, phases);
    if (!scratch || !plan->phases) return am_fail_memory(error, phases * (int64_t)sizeof(Phase));
    for (int32_t pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            plan->cells = ARENA_ARRAY(arena, Cell, cells + 1);
            if (!plan->cells) return am_fail_memory(error, cells * (int64_t)sizeof(Cell));
        }
        cells = 0;
        plan->phase_count = 0;
        memset(first, 0, sizeof first);
        do {
            Phase *phase = &plan->phases[plan->phase_count++];
            *phase = (Phase){.first_cell = cells};
            memcpy(phase->first, first, sizeof first);
            phase->cells = list_cells(kernel, &plan->image, phase, pass == 0 ? scratch : plan->cells + cells);
            cells += phase->cells;
            if (pass == 1) describe_phase(kernel, plan, phase);
        } while (strided_next(first, plan->period, kernel->spatial_count));
    }
    return AM_OK;
}

/* Joins all positions of all examples to rows of one matrix, without a window and if they have one order on
 * both sides. */
static void join_places(ConvolutionKernel *kernel) {
    int64_t sizes[MOST_SPATIAL + 1] = {kernel->batch}, in[MOST_SPATIAL + 1] = {kernel->batch_stride};
    int64_t out[MOST_SPATIAL + 1] = {kernel->output_batch_stride};
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        const IrWindowDimension *window = &kernel->window[s];
        if (window->size != 1 || window->stride != 1 || window->base_dilation != 1 ||
            window->padding_low != 0 || kernel->output_sizes[s] != kernel->input_sizes[s])
            return;
        sizes[s + 1] = kernel->output_sizes[s];
        in[s + 1] = kernel->input_strides[s];
        out[s + 1] = kernel->output_strides[s];
    }
    if (strided_coalesce(sizes, in, out, kernel->spatial_count + 1) > 1) return;
    kernel->spatial_count = 0;
    kernel->batch = kernel->rows;
    kernel->batch_stride = in[0];
    kernel->output_batch_stride = out[0];
}

static AmStatus prepare_indirect(ConvolutionKernel *kernel, KernelCall *call, Arena *arena, AmError *error) {
    const int64_t word = (int64_t)sizeof(float);
    Indirect *plan = ARENA_ARRAY(arena, Indirect, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    join_places(kernel);
    plan->tile = tile_kind();
    plan->window_cells = 1;
    for (int32_t s = 0; s < kernel->spatial_count; s++) plan->window_cells *= kernel->window[s].size;
    plan->panel_width = plan->tile->width * (int64_t)plan->tile->most_vectors;
    plan->panels = (kernel->group_features + plan->panel_width - 1) / plan->panel_width;
    plan->feature_block = kernel->features < DEPTH_BLOCK ? kernel->features : DEPTH_BLOCK;
    plan->group_packed = ((plan->panels - 1) * plan->panel_width +
                          packed_width(plan, panel_columns(kernel, plan, plan->panels - 1))) *
                         kernel->features * plan->window_cells;
    plan_image(kernel, call, plan);
    TRY(list_phases(kernel, plan, arena, error));
    /* Rows that are worked on together: few where all panels stay in the cache, many where they pass by. */
    int64_t row_bytes = kernel->features * (int64_t)sizeof(float);
    bool panels_stay = plan->group_packed * (int64_t)sizeof(float) <= PANELS_BYTES;
    int64_t rows = panels_stay ? ROWS_GRAIN : ROWS_BYTES / (row_bytes + 1) / ROWS_GRAIN * ROWS_GRAIN;
    int64_t fair = kernel->rows / team_size(call->device) / plan->phase_count / ROWS_GRAIN * ROWS_GRAIN;
    if (rows > fair) rows = fair;
    if (rows > MOST_ROWS) rows = MOST_ROWS;
    if (rows < ROWS_GRAIN) rows = ROWS_GRAIN;
    plan->rows_block = rows;
    for (int32_t p = 0; p < plan->phase_count; p++) {
        plan->phases[p].first_block = plan->blocks;
        plan->blocks += (plan->phases[p].rows + rows - 1) / rows;
    }
    plan->packed_at = convolution_reserve(call, kernel->groups * plan->group_packed * word);
    plan->zeros_at = convolution_reserve(call, plan->feature_block * word);
    if (plan->is_padded)
        plan->padded_at = convolution_reserve(call, plan->images * plan->image.batch_stride * word);
    kernel->plan = plan;
    return AM_OK;
}

const ConvolutionAlgorithm convolution_indirect = {
    .name = "indirect", .fits = fits_indirect, .prepare = prepare_indirect, .run = run_indirect};
