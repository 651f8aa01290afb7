/* Pooling in vectors: maxima, minima and sums of windows of f32, and the gradient of maxima.
 *
 * Trailing dimensions that the window does not touch are the channels, the last
 * one that it does touch is a line. A cell of the window is applied to all places
 * of a line that it reaches at once (vector/window_cell.c), in stretches of at most
 * STRETCH elements. For select-and-scatter each place first notes which cell is
 * chosen; then each cell adds the source wherever it was. The team divides the
 * lines, or, where windows of different lines may choose the same element, the
 * first dimension if no window reaches over it.
 */
#include "executor/cpu/reduce/pool.h"

#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/team.h"
#include "executor/cpu/vector/vector.h"

enum { STRETCH = 2048, MOST_CELLS = 1 << 20 };

struct Pool {
    int32_t rank; /* dimensions up to the line's, that one included */
    IrWindowDimension window[IR_MAX_RANK];
    int64_t positions[IR_MAX_RANK], outer_cells[IR_MAX_RANK]; /* the line's own are 1 in outer_cells */
    int64_t input_sizes[IR_MAX_RANK], input_strides[IR_MAX_RANK];
    int64_t channels, lines, lines_of_first, image; /* lines of an index of dimension 0; elements of it */
    bool has_padding;
    VectorPoolFold *fold;
    VectorPoolChoose *choose;
    int32_t members;
    int64_t members_at, member_bytes;
};

typedef struct PoolTask {
    const Pool *pool;
    const KernelCall *call;
} PoolTask;

/* Places [first, first + count) of a line, channels [channel, channel + channels) of each. */
typedef struct Stretch {
    int64_t first, count, channel, channels;
} Stretch;

/* Finds the part of a stretch that cell k of the line reaches. Returns the offset in the line of the first
 * position. */
static int64_t reach(const Pool *pool, const Stretch *stretch, int64_t k, int64_t *skip,
                     VectorPlaces *places) {
    int32_t d = pool->rank - 1;
    const IrWindowDimension *window = &pool->window[d];
    int64_t shift = k * window->window_dilation - window->padding_low, size = pool->input_sizes[d];
    int64_t first = shift < 0 ? (-shift + window->stride - 1) / window->stride : 0;
    int64_t end = shift < size ? (size - 1 - shift) / window->stride + 1 : 0;
    if (first < stretch->first) first = stretch->first;
    if (end > stretch->first + stretch->count) end = stretch->first + stretch->count;
    *skip = (first - stretch->first) * stretch->channels;
    *places = (VectorPlaces){
        .count = end - first, .step = window->stride * pool->input_strides[d], .channels = stretch->channels};
    return (first * window->stride + shift) * pool->input_strides[d] + stretch->channel;
}

/* Returns the offset of the line that a cell reads at a position, both without the line's own dimension; -1:
 * padding. */
static int64_t line_offset(const Pool *pool, const int64_t *position, const int64_t *cell) {
    int64_t offset = 0;
    for (int32_t d = 0; d < pool->rank - 1; d++) {
        const IrWindowDimension *window = &pool->window[d];
        int64_t at = position[d] * window->stride + cell[d] * window->window_dilation - window->padding_low;
        if (at < 0 || at >= pool->input_sizes[d]) return -1;
        offset += at * pool->input_strides[d];
    }
    return offset;
}

/* Called for each cell and the positions of a stretch that it reaches: `image` elements from the
 * image's start, `packed` elements from the stretch's. */
typedef void Visit(const PoolTask *task, void *state, int64_t image, int64_t packed, int32_t cell,
                   const VectorPlaces *places);

static void visit_cells(const PoolTask *task, void *state, Visit *visit, const int64_t *position,
                        const Stretch *stretch) {
    const Pool *pool = task->pool;
    int64_t cell[IR_MAX_RANK] = {0};
    int32_t number = 0, count = (int32_t)pool->window[pool->rank - 1].size;
    do {
        int64_t line = line_offset(pool, position, cell);
        for (int32_t k = 0; line >= 0 && k < count; k++) {
            int64_t packed;
            VectorPlaces places;
            int64_t at = reach(pool, stretch, k, &packed, &places);
            if (places.count > 0) visit(task, state, line + at, packed, number + k, &places);
        }
        number += count;
    } while (strided_next(cell, pool->outer_cells, pool->rank));
}

/* Runs one line stretch by stretch: positions of the line in `source` or the result begin at `packed`.
 * Channels of a stretch are neighbours in memory only if there is one place or they are all there are. */
static void for_stretches(const PoolTask *task, int64_t line,
                          void (*work)(const PoolTask *task, char *memory, const int64_t *position,
                                       int64_t packed, const Stretch *stretch),
                          char *memory) {
    const Pool *pool = task->pool;
    int64_t position[IR_MAX_RANK] = {0}, left = line, places = pool->positions[pool->rank - 1];
    for (int32_t d = pool->rank - 2; d >= 0; d--) {
        position[d] = left % pool->positions[d];
        left /= pool->positions[d];
    }
    int64_t most_channels = pool->channels < STRETCH ? pool->channels : STRETCH;
    int64_t most_places = pool->channels < STRETCH ? STRETCH / most_channels : 1;
    for (int64_t first = 0; first < places; first += most_places)
        for (int64_t channel = 0; channel < pool->channels; channel += most_channels) {
            Stretch stretch = {first, places - first < most_places ? places - first : most_places, channel,
                               pool->channels - channel < most_channels ? pool->channels - channel
                                                                        : most_channels};
            work(task, memory, position, (line * places + first) * pool->channels + channel, &stretch);
        }
}

static void fold_cell(const PoolTask *task, void *out, int64_t image, int64_t packed, int32_t cell,
                      const VectorPlaces *places) {
    (void)cell;
    task->pool->fold((float *)out + packed, (const float *)task->call->operands[0] + image, places);
}

static void reduce_stretch(const PoolTask *task, char *memory, const int64_t *position, int64_t packed,
                           const Stretch *stretch) {
    float *out = (float *)task->call->results[0] + packed;
    (void)memory;
    strided_fill(out, task->call->operands[1], stretch->count * stretch->channels, sizeof(float));
    visit_cells(task, out, fold_cell, position, stretch);
}

static void reduce_part(void *user, int32_t part, int32_t parts) {
    const PoolTask *task = user;
    int64_t first, end;
    team_stretch(task->pool->lines, 1, part, parts, &first, &end);
    for (int64_t line = first; line < end; line++) for_stretches(task, line, reduce_stretch, NULL);
}

/* Nanoseconds on one thread: every cell touches every element once. */
static double pool_nanoseconds(const Pool *pool) {
    double elements = (double)pool->lines * (double)pool->positions[pool->rank - 1] * (double)pool->channels;
    for (int32_t d = 0; d < pool->rank; d++) elements *= (double)pool->window[d].size;
    return elements / 4;
}

bool pool_reduce(const Pool *pool, const KernelCall *call) {
    PoolTask task = {pool, call};
    float begin;
    memcpy(&begin, call->operands[1], sizeof begin);
    if (pool->has_padding && pool->fold == vector_loops()->pool->sum && begin != 0.0f) return false;
    team_run(call->device, reduce_part, &task, team_parts(call->device, pool_nanoseconds(pool)));
    return true;
}

/* The cells that the positions of a stretch have selected. */
typedef struct Choice {
    float best[STRETCH];
    int32_t chosen[STRETCH];
    const float *source;
} Choice;

static void choose_cell(const PoolTask *task, void *state, int64_t image, int64_t packed, int32_t cell,
                        const VectorPlaces *places) {
    Choice *choice = state;
    task->pool->choose(choice->best + packed, choice->chosen + packed,
                       (const float *)task->call->operands[0] + image, cell, places);
}

static void add_cell(const PoolTask *task, void *state, int64_t image, int64_t packed, int32_t cell,
                     const VectorPlaces *places) {
    const Choice *choice = state;
    vector_loops()->pool->add_chosen((float *)task->call->results[0] + image, choice->chosen + packed,
                                     choice->source + packed, cell, places);
}

static void scatter_stretch(const PoolTask *task, char *memory, const int64_t *position, int64_t packed,
                            const Stretch *stretch) {
    Choice *choice = (Choice *)(void *)memory;
    int64_t elements = stretch->count * stretch->channels;
    for (int64_t i = 0; i < elements; i++) choice->chosen[i] = -1;
    choice->source = (const float *)task->call->operands[1] + packed;
    visit_cells(task, choice, choose_cell, position, stretch);
    visit_cells(task, choice, add_cell, position, stretch);
}

/* Indices of dimension 0: their part of the result begins with the initial value. */
static void scatter_part(void *user, int32_t part, int32_t parts) {
    const PoolTask *task = user;
    const Pool *pool = task->pool;
    char *memory = (char *)task->call->scratch + pool->members_at + part * pool->member_bytes;
    int64_t first, end;
    team_stretch(pool->lines / pool->lines_of_first, 1, part, parts, &first, &end);
    strided_fill((float *)task->call->results[0] + first * pool->image, task->call->operands[2],
                 (end - first) * pool->image, sizeof(float));
    for (int64_t line = first * pool->lines_of_first; line < end * pool->lines_of_first; line++)
        for_stretches(task, line, scatter_stretch, memory);
}

void pool_select_and_scatter(const Pool *pool, const KernelCall *call) {
    PoolTask task = {pool, call};
    int32_t parts = team_parts(call->device, 4 * pool_nanoseconds(pool));
    team_run(call->device, scatter_part, &task, parts < pool->members ? parts : pool->members);
}

static bool is_untouched(const IrWindowDimension *window) {
    return window->size == 1 && window->stride == 1 && window->padding_low == 0 && window->padding_high == 0;
}

/* Recognises "a >= b" or "a > b" of the two parameters in this order. */
static VectorPoolChoose *find_choose(const IrModule *module, int32_t computation) {
    const IrComputation *body = &module->computations[computation];
    const IrInstruction *root = &module->instructions[body->root];
    if (ir_computation_operator(module, computation) != IR_COMPARE ||
        root->operands[0] != body->parameters[0])
        return NULL;
    const IrAttributes *attributes = root->attributes;
    if (!attributes->comparison) return NULL;
    if (attributes->comparison_type && strcmp(attributes->comparison_type, "FLOAT") != 0) return NULL;
    return strcmp(attributes->comparison, "GE") == 0   ? vector_loops()->pool->choose_at_least
           : strcmp(attributes->comparison, "GT") == 0 ? vector_loops()->pool->choose_above
                                                       : NULL;
}

/* Sizes and strides; `stepped` is the side that has a place for each window. False: not covered. */
static bool describe_windows(Pool *pool, const KernelCall *call, const IrShape *input,
                             const IrShape *stepped) {
    const IrWindowDimension *window = call->attributes->window;
    double cells = 1;
    strided_row_major(pool->input_strides, input->dimensions, input->rank);
    pool->rank = input->rank;
    pool->channels = 1;
    while (pool->rank > 0 && window[pool->rank - 1].base_dilation <= 1 &&
           is_untouched(&window[pool->rank - 1]))
        pool->channels *= input->dimensions[--pool->rank];
    if (pool->rank == 0 || ir_shape_elements(stepped) == 0 || ir_shape_elements(input) == 0) return false;
    pool->lines = 1;
    for (int32_t d = 0; d < pool->rank; d++) {
        pool->window[d] = window[d];
        if (window[d].window_dilation < 1) pool->window[d].window_dilation = 1;
        if (window[d].base_dilation > 1 || window[d].stride < 1 || window[d].size < 1) return false;
        pool->positions[d] = stepped->dimensions[d];
        pool->outer_cells[d] = d == pool->rank - 1 ? 1 : window[d].size;
        pool->input_sizes[d] = input->dimensions[d];
        pool->has_padding |= window[d].padding_low > 0 || window[d].padding_high > 0;
        if (d < pool->rank - 1) pool->lines *= stepped->dimensions[d];
        cells *= (double)window[d].size;
    }
    bool first_is_apart = pool->rank > 1 && is_untouched(&window[0]);
    pool->lines_of_first = first_is_apart ? pool->lines / pool->positions[0] : pool->lines;
    pool->image = first_is_apart ? pool->input_strides[0] : ir_shape_elements(input);
    return cells <= MOST_CELLS;
}

AmStatus pool_prepare(Pool **result, KernelCall *call, bool selects, Arena *arena, AmError *error) {
    const IrModule *module = call->program->module;
    const IrShape *input = call->operand_shapes[0];
    *result = NULL;
    if (input->type != DTYPE_F32 || call->result_count != 1 || !module) return AM_OK;
    int32_t folds = selects ? call->instruction->compute.called_second : call->instruction->compute.called;
    if (folds < 0 || (selects && call->instruction->compute.called < 0)) return AM_OK;
    IrOpcode opcode = ir_computation_operator(module, folds);
    const VectorPool *loops = vector_loops()->pool;
    VectorPoolFold *fold = opcode == IR_MAXIMUM   ? loops->maximum
                           : opcode == IR_MINIMUM ? loops->minimum
                           : opcode == IR_ADD     ? loops->sum
                                                  : NULL;
    VectorPoolChoose *choose = selects ? find_choose(module, call->instruction->compute.called) : NULL;
    if (!fold || (selects && (!choose || fold != vector_loops()->pool->sum))) return AM_OK;
    Pool *pool = ARENA_ARRAY(arena, Pool, 1);
    if (!pool) return am_fail_memory(error, (int64_t)sizeof *pool);
    if (!describe_windows(pool, call, input, selects ? call->operand_shapes[1] : call->result_shapes[0]))
        return AM_OK;
    pool->fold = fold;
    pool->choose = choose;
    pool->members = team_size(call->device);
    if (selects) {
        pool->member_bytes = kernel_align((int64_t)sizeof(Choice));
        pool->members_at = kernel_align(call->scratch_bytes);
        call->scratch_bytes = pool->members_at + pool->members * pool->member_bytes;
    }
    *result = pool;
    return AM_OK;
}
