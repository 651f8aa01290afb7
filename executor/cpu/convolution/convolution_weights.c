/* convolution with a contiguous batch in the input: gradients to the weights.
 *
 * JAX's f01b_i01o->01bf: the "batch" are the input features (i), the contracted "features" are the examples
 * (n), the window covers the whole image of the gradient. For every output position t (a cell of the
 * weights) the result is therefore the product [i, positions] x [positions, f] over all examples and
 * positions. Both of its operands are read in place: row i of a tile is x[n, position(t), i], B is dy[n,
 * position, f]. Lines along the last spatial dimension are the segments (tile.h); reads of padding are cut
 * off, so that they cost nothing. Without a window all lines are one.
 *
 * The depth is processed in chunks that stay in the second-level cache while all tiles of the
 * result are updated. The team divides (position t, rows i). If the features do not fill whole
 * vectors a chunk of B is packed first.
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
    MOST_POSITIONS = 1 << 12, /* of the result */
    CHUNK = 256,              /* places of a chunk, rounded up to whole lines */
    MOST_LINES = 256,
};

/* In one spatial dimension: the kernel indices with which output index o reads inside. */
typedef struct Reach {
    int64_t first, count; /* first + j * period, j < count */
    int64_t at;           /* input index of j = 0; then `step` further each */
} Reach;

typedef struct Gradient {
    const TileKind *tile;
    const Reach *reaches[MOST_SPATIAL]; /* [spatial][o] */
    int64_t period[MOST_SPATIAL], step[MOST_SPATIAL];
    bool is_flat; /* all lines are one; its steps: */
    int64_t flat_step, flat_weights_step;
    int64_t positions, lines, line_places, lines_per_chunk;
    int64_t panel_width, panels, width; /* width: of packed B; 0: B is read in place */
    int32_t tile_rows, members;
    int64_t row_tiles;
    int64_t packed_at, packed_bytes; /* scratch offset; of each member */
} Gradient;

typedef struct WeightsTask {
    const ConvolutionKernel *kernel;
    const Gradient *plan;
    const float *in, *weights;
    float *out;
    char *packed;
} WeightsTask;

/* Places [first, end) of the depth: lines, or, of a flat depth, places of the only line. */
typedef struct Chunk {
    int64_t first, end;
    const float *columns; /* packed B, or NULL */
} Chunk;

/* Finds the start of line `line`: elements from the operand's start, and its spatial indices except the
 * last. */
static void find_line(const ConvolutionKernel *kernel, int64_t line, int64_t *index, int64_t *example,
                      int64_t *weights_at) {
    *weights_at = 0;
    for (int32_t s = kernel->spatial_count - 2; s >= 0; s--) {
        index[s] = line % kernel->window[s].size;
        line /= kernel->window[s].size;
        *weights_at += index[s] * kernel->cell_strides[s];
    }
    *example = line;
    *weights_at += line * kernel->weights_feature_stride;
}

static inline void copy_places(float *packed, int64_t width, const float *from, int64_t step, int64_t count,
                               int64_t features) {
    for (int64_t k = 0; k < count; k++)
        memcpy(packed + k * width, from + k * step, sizeof(float) * (size_t)features);
}

/* Packs a chunk of B: [position][width]; memory after the last column is unchanged. Few features
 * are copied without a call. */
static void pack_chunk(const WeightsTask *task, float *packed, int64_t group, const Chunk *chunk) {
    const ConvolutionKernel *kernel = task->kernel;
    const Gradient *plan = task->plan;
    int64_t last = kernel->spatial_count - 1, count = plan->is_flat ? 1 : plan->line_places;
    int64_t step = plan->is_flat ? plan->flat_weights_step : kernel->cell_strides[last];
    int64_t lines = plan->is_flat ? 1 : chunk->end - chunk->first, features = kernel->group_features;
    if (plan->is_flat) count = chunk->end - chunk->first;
    for (int64_t line = 0; line < lines; line++, packed += count * plan->width) {
        int64_t index[IR_MAX_RANK], example, at;
        if (plan->is_flat) at = chunk->first * step;
        else find_line(kernel, chunk->first + line, index, &example, &at);
        const float *from = task->weights + group * features + at;
        if (features == 4) copy_places(packed, plan->width, from, step, count, 4);
        else if (features == 8) copy_places(packed, plan->width, from, step, count, 8);
        else copy_places(packed, plan->width, from, step, count, features);
    }
}

/* Common data of the tiles of one output position. */
typedef struct Position {
    int64_t index[MOST_SPATIAL]; /* of the result */
    int64_t segments, depth, row_step, column_step;
    int64_t out;
} Position;

/* Fills the segments of an output position for the first tile of rows. */
static void fill_segments(const WeightsTask *task, Position *position, TileSegment *segments, int64_t group,
                          const Chunk *chunk) {
    const ConvolutionKernel *kernel = task->kernel;
    const Gradient *plan = task->plan;
    int32_t last = kernel->spatial_count - 1;
    const float *in = task->in + group * kernel->group_input_step;
    const float *weights = task->weights + group * kernel->group_features;
    int64_t most_row = kernel->batch < plan->tile_rows ? kernel->batch : plan->tile_rows;
    position->segments = 0;
    if (plan->is_flat) {
        position->segments = 1;
        position->depth = chunk->end - chunk->first;
        position->row_step = plan->flat_step;
        position->column_step = chunk->columns ? plan->width : plan->flat_weights_step;
        segments[0].columns =
            chunk->columns ? chunk->columns : weights + chunk->first * plan->flat_weights_step;
        for (int32_t r = 0; r < TILE_MOST_ROWS; r++)
            segments[0].rows[r] = in + chunk->first * plan->flat_step + (r < most_row ? r : 0);
        return;
    }
    const Reach *along = &plan->reaches[last][position->index[last]];
    int64_t weights_step = plan->period[last] * kernel->cell_strides[last];
    position->depth = along->count;
    position->row_step = plan->step[last] * kernel->input_strides[last];
    position->column_step = chunk->columns ? plan->period[last] * plan->width : weights_step;
    for (int64_t line = chunk->first; line < chunk->end && along->count > 0; line++) {
        int64_t index[IR_MAX_RANK], example, weights_at;
        find_line(kernel, line, index, &example, &weights_at);
        int64_t at = example * kernel->feature_stride + along->at * kernel->input_strides[last];
        bool is_inside = true;
        for (int32_t s = 0; s < last; s++) {
            const Reach *reach = &plan->reaches[s][position->index[s]];
            int64_t turn = index[s] - reach->first;
            is_inside &= turn >= 0 && turn % plan->period[s] == 0 && turn / plan->period[s] < reach->count;
            at += (reach->at + turn / plan->period[s] * plan->step[s]) * kernel->input_strides[s];
        }
        if (!is_inside) continue;
        TileSegment *segment = &segments[position->segments++];
        segment->columns =
            chunk->columns
                ? chunk->columns + ((line - chunk->first) * plan->line_places + along->first) * plan->width
                : weights + weights_at + along->first * kernel->cell_strides[last];
        for (int32_t r = 0; r < TILE_MOST_ROWS; r++) segment->rows[r] = in + at + (r < most_row ? r : 0);
    }
}

/* Adds a chunk to the rows of tiles [first, end) of an output position. */
static void multiply(const WeightsTask *task, const Position *position, const TileSegment *segments,
                     int64_t group, int64_t first, int64_t end, bool accumulate) {
    const ConvolutionKernel *kernel = task->kernel;
    const Gradient *plan = task->plan;
    TileWork work = {.segments = segments,
                     .segment_count = position->segments,
                     .depth = position->depth,
                     .row_step = position->row_step,
                     .column_step = position->column_step,
                     .accumulate = accumulate};
    for (int64_t panel = 0; panel < plan->panels; panel++) {
        int64_t column = panel * plan->panel_width, columns = kernel->group_features - column;
        if (columns > plan->panel_width) columns = plan->panel_width;
        int32_t vectors = (int32_t)((columns + plan->tile->width - 1) / plan->tile->width);
        work.columns = (int32_t)columns;
        work.column_shift = column;
        for (int64_t tile = first; tile < end; tile++) {
            /* The last tile of several moves back over rows that are done. */
            int64_t row = tile * plan->tile_rows, begin = row;
            if (row + plan->tile_rows > kernel->batch) begin = kernel->batch - plan->tile_rows;
            if (begin < 0) begin = 0;
            work.row_shift = begin;
            work.first_row = (int32_t)(row - begin);
            work.end_row =
                (int32_t)(kernel->batch - begin < plan->tile_rows ? kernel->batch - begin : plan->tile_rows);
            work.out = task->out + position->out + begin * kernel->output_batch_stride +
                       group * kernel->group_features + column;
            for (int32_t r = 0; r < plan->tile_rows; r++) work.out_rows[r] = r * kernel->output_batch_stride;
            plan->tile->run[vectors](&work);
        }
    }
}

/* Units [first, end) of (output position, tile of rows) for one chunk. */
static void add_chunk(const WeightsTask *task, const Chunk *chunk, int64_t group, int64_t first,
                      int64_t end) {
    const ConvolutionKernel *kernel = task->kernel;
    const Gradient *plan = task->plan;
    TileSegment segments[MOST_LINES];
    for (int64_t unit = first; unit < end;) {
        int64_t number = unit / plan->row_tiles, tile = unit % plan->row_tiles;
        int64_t tiles = plan->row_tiles - tile < end - unit ? plan->row_tiles - tile : end - unit;
        Position position = {.out = 0};
        for (int32_t s = kernel->spatial_count - 1; s >= 0; s--) {
            position.index[s] = number % kernel->output_sizes[s];
            number /= kernel->output_sizes[s];
            position.out += position.index[s] * kernel->output_strides[s];
        }
        fill_segments(task, &position, segments, group, chunk);
        if (position.segments > 0 || chunk->first == 0)
            multiply(task, &position, segments, group, tile, tile + tiles, chunk->first > 0);
        unit += tiles;
    }
}

static void multiply_part(void *user, int32_t part, int32_t parts) {
    const WeightsTask *task = user;
    const Gradient *plan = task->plan;
    int64_t first, end, per_group = plan->positions * plan->row_tiles;
    float *packed = plan->width > 0 ? (float *)(task->packed + part * plan->packed_bytes) : NULL;
    if (packed) memset(packed, 0, (size_t)plan->packed_bytes); /* beyond the last column, once */
    team_stretch(task->kernel->groups * per_group, 1, part, parts, &first, &end);
    for (int64_t unit = first; unit < end;) {
        int64_t group = unit / per_group, from = unit % per_group;
        int64_t units = per_group - from < end - unit ? per_group - from : end - unit;
        for (int64_t line = 0; line < plan->lines; line += plan->lines_per_chunk) {
            int64_t left = plan->lines - line;
            Chunk chunk = {line, line + (left < plan->lines_per_chunk ? left : plan->lines_per_chunk),
                           packed};
            if (packed) pack_chunk(task, packed, group, &chunk);
            add_chunk(task, &chunk, group, from, from + units);
        }
        unit += units;
    }
}

static void run_weights(const KernelCall *call, const float *in, const float *weights, float *out) {
    const ConvolutionKernel *kernel = call->compiled;
    const Gradient *plan = kernel->plan;
    WeightsTask task = {kernel, plan, in, weights, out, (char *)call->scratch + plan->packed_at};
    double products = (double)kernel->rows * (double)kernel->depth * (double)kernel->outputs;
    int32_t parts = team_parts(call->device, products / 32);
    team_run(call->device, multiply_part, &task, parts < plan->members ? parts : plan->members);
}

static bool fits_weights(const ConvolutionKernel *kernel) {
    int64_t positions = 1;
    if (kernel->spatial_count < 1 || kernel->spatial_count > MOST_SPATIAL) return false;
    if (kernel->batch_stride != 1 || kernel->output_feature_stride != 1 || kernel->weights_output_stride != 1)
        return false;
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        if (kernel->output_sizes[s] > MOST_POSITIONS || kernel->window[s].reversal) return false;
        positions *= kernel->output_sizes[s];
        if (positions > MOST_POSITIONS) return false;
    }
    return true;
}

/* Returns the reach of output index o: positions o * stride + k * dilation - padding are inside and on the
 * base. */
static Reach find_reach(const ConvolutionKernel *kernel, int32_t spatial, int64_t o, int64_t period) {
    Reach reach = {0};
    int64_t size = kernel->window[spatial].size, at;
    for (int64_t k = 0; k < size; k++)
        if (convolution_reads(kernel, spatial, o, k, &at)) {
            reach.first = k;
            reach.at = at;
            break;
        }
    for (int64_t k = reach.first; k < size && convolution_reads(kernel, spatial, o, k, &at); k += period)
        reach.count++;
    return reach;
}

/* Returns whether the examples and the places of all lines step evenly through both operands. */
static bool find_flat(const ConvolutionKernel *kernel, Gradient *plan) {
    int64_t sizes[MOST_SPATIAL + 1] = {kernel->features}, in[MOST_SPATIAL + 1] = {kernel->feature_stride};
    int64_t weights[MOST_SPATIAL + 1] = {kernel->weights_feature_stride};
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        const Reach *reach = plan->reaches[s];
        if (kernel->output_sizes[s] != 1 || reach->first != 0 || reach->count != kernel->window[s].size ||
            plan->period[s] != 1)
            return false;
        if (reach->at != 0) return false;
        sizes[s + 1] = kernel->window[s].size;
        in[s + 1] = plan->step[s] * kernel->input_strides[s];
        weights[s + 1] = kernel->cell_strides[s];
    }
    if (strided_coalesce(sizes, in, weights, kernel->spatial_count + 1) > 1) return false;
    plan->flat_step = in[0];
    plan->flat_weights_step = weights[0];
    return true;
}

static AmStatus prepare_weights(ConvolutionKernel *kernel, KernelCall *call, Arena *arena, AmError *error) {
    Gradient *plan = ARENA_ARRAY(arena, Gradient, 1);
    if (!plan) return am_fail_memory(error, (int64_t)sizeof *plan);
    int32_t last = kernel->spatial_count - 1;
    plan->tile = tile_kind();
    plan->positions = 1;
    plan->lines = kernel->features;
    for (int32_t s = 0; s < kernel->spatial_count; s++) {
        const IrWindowDimension *window = &kernel->window[s];
        plan->period[s] =
            window->base_dilation / common_divisor(window->base_dilation, window->window_dilation);
        plan->step[s] = plan->period[s] * window->window_dilation / window->base_dilation;
        Reach *reaches = ARENA_ARRAY(arena, Reach, kernel->output_sizes[s]);
        if (!reaches) return am_fail_memory(error, kernel->output_sizes[s] * (int64_t)sizeof *reaches);
        for (int64_t o = 0; o < kernel->output_sizes[s]; o++)
            reaches[o] = find_reach(kernel, s, o, plan->period[s]);
        plan->reaches[s] = reaches;
        plan->positions *= kernel->output_sizes[s];
        if (s < last) plan->lines *= window->size;
    }
    plan->line_places = kernel->window[last].size;
    plan->is_flat = find_flat(kernel, plan);
    if (plan->is_flat) plan->lines *= plan->line_places;
    plan->lines_per_chunk = plan->is_flat ? CHUNK : (CHUNK + plan->line_places - 1) / plan->line_places;
    plan->panel_width = plan->tile->width * (int64_t)plan->tile->most_vectors;
    plan->panels = (kernel->group_features + plan->panel_width - 1) / plan->panel_width;
    int64_t widest = kernel->group_features < plan->panel_width ? kernel->group_features : plan->panel_width;
    plan->tile_rows = TILE_MOST_ROWS;
    for (int64_t vectors = 1; vectors <= (widest + plan->tile->width - 1) / plan->tile->width; vectors++)
        if (plan->tile->rows[vectors] < plan->tile_rows) plan->tile_rows = plan->tile->rows[vectors];
    plan->row_tiles = (kernel->batch + plan->tile_rows - 1) / plan->tile_rows;
    plan->members = team_size(call->device);
    if (kernel->group_features % plan->tile->width != 0) {
        plan->width =
            (kernel->group_features + plan->tile->width - 1) / plan->tile->width * plan->tile->width;
        int64_t places = plan->lines_per_chunk * (plan->is_flat ? 1 : plan->line_places);
        plan->packed_bytes = kernel_align(places * plan->width * (int64_t)sizeof(float));
        plan->packed_at = convolution_reserve(call, plan->members * plan->packed_bytes);
    }
    kernel->plan = plan;
    return AM_OK;
}

const ConvolutionAlgorithm convolution_weights = {
    .name = "weights", .fits = fits_weights, .prepare = prepare_weights, .run = run_weights};
