/* Halos: lowering of factors whose parts read ranges of the operands' dimensions
 * (slice, pad, concatenate, reverse, convolution and windows in space).
 *
 * Each device computes its part of the result's dimension. Place j of it reads
 * the elements i of an operand's dimension with
 *
 *     0 <= base i + low - step j <= span
 *
 * (a window: step is its stride, span its reach less one, base its base dilation,
 * low its padding), so a part reads one range of elements. A convolution's
 * reduction over its window is the same with kernel places for result places.
 * Every operand is brought from the parts in which it lies to these ranges by one
 * halo_exchange, or by a local slice where every range is within its part; then
 * the operator runs with the attributes that the range calls for. What lies
 * outside of a range is outside of the whole or is not read, so padding means the
 * same. select-and-scatter first goes from its part to the windows that reach into
 * it, then to all that these windows see, and is cut to the part afterwards.
 */
#include <string.h>

#include "propagation/lower_internal.h"

typedef struct HaloRange {
    int64_t start, extent;
} HaloRange;

typedef struct HaloMap {
    int64_t size; /* of the operand's dimension */
    int64_t step, span, base, low;
    bool is_reversed; /* place j reads element size - 1 - j */
} HaloMap;

/* One factor that is split over some axes, and the devices along them. */
typedef struct Halo {
    const IrModule *module;
    const IrInstruction *source;
    const FactorRule *rule;
    const Factor *factor;
    uint32_t axes;
    const int32_t *group; /* [count] */
    int32_t count, position;
    const HaloRange *parts; /* [count] that the members compute, of the result or of the kernel */
    HaloRange *ranges;      /* [slot * count + member] that they have of each operand */
} Halo;

static int64_t floor_divide(int64_t a, int64_t b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static HaloRange clip(int64_t first, int64_t last, int64_t size) {
    if (first < 0) first = 0;
    if (last > size - 1) last = size - 1;
    return last < first ? (HaloRange){0, 0} : (HaloRange){first, last - first + 1};
}

/* What a part reads. */
static HaloRange range_of(const HaloMap *map, HaloRange part) {
    if (part.extent == 0) return (HaloRange){0, 0};
    if (map->is_reversed) return (HaloRange){map->size - part.start - part.extent, part.extent};
    int64_t first = part.start * map->step - map->low;
    int64_t last = (part.start + part.extent - 1) * map->step + map->span - map->low;
    return clip(-floor_divide(-first, map->base), floor_divide(last, map->base), map->size);
}

static const IrShape *operand_shape(const Halo *halo, int32_t slot) {
    return &halo->module->instructions[halo->source->operands[slot]].shape;
}

static int64_t operand_size(const Halo *halo, int32_t slot) {
    return operand_shape(halo, slot)->dimensions[halo->factor->dimension[slot]];
}

static HaloRange own_part(const Halo *halo) {
    return halo->parts[halo->position];
}

static HaloRange own_range(const Halo *halo, int32_t slot) {
    return halo->ranges[slot * halo->count + halo->position];
}

/* Places that n elements take up with base - 1 others between each two. */
static int64_t dilated(int64_t n, int64_t base) {
    return n > 0 ? (n - 1) * base + 1 : 0;
}

static int64_t reach_of(const IrWindowDimension *window) {
    return (window->size - 1) * window->window_dilation;
}

/* ---- maps and local attributes, by operator ---- */

static HaloMap map_slice(const Halo *halo, int32_t slot) {
    const IrAttributes *attributes = halo->source->attributes;
    int32_t d = halo->factor->dimension[slot];
    return (HaloMap){.step = attributes->slice_stride ? attributes->slice_stride[d] : 1,
                     .base = 1,
                     .low = -attributes->slice_start[d]};
}

static void local_slice(IrAttributes *local, const Halo *halo) {
    const IrAttributes *whole = halo->source->attributes;
    int32_t d = halo->factor->dimension[0];
    HaloRange part = own_part(halo), range = own_range(halo, 0);
    int64_t stride = whole->slice_stride ? whole->slice_stride[d] : 1;
    int64_t start = part.extent == 0 ? 0 : whole->slice_start[d] + part.start * stride - range.start;
    ((int64_t *)local->slice_start)[d] = start;
    ((int64_t *)local->slice_limit)[d] = start + dilated(part.extent, stride);
}

static HaloMap map_pad(const Halo *halo, int32_t slot) {
    const IrPadding *padding = &halo->source->attributes->padding[halo->factor->dimension[slot]];
    return (HaloMap){.step = 1, .base = padding->interior + 1, .low = padding->low};
}

static void local_pad(IrAttributes *local, const Halo *halo) {
    IrPadding *padding = (IrPadding *)&local->padding[halo->factor->dimension[0]];
    HaloRange part = own_part(halo), range = own_range(halo, 0);
    int64_t base = padding->interior + 1;
    padding->low = range.extent > 0 ? padding->low + range.start * base - part.start : part.extent;
    padding->high = part.extent - padding->low - dilated(range.extent, base);
}

static HaloMap map_concatenate(const Halo *halo, int32_t slot) {
    HaloMap map = {.step = 1, .base = 1};
    for (int32_t k = 0; k < slot; k++) map.low += operand_size(halo, k);
    return map;
}

static HaloMap map_reverse(const Halo *halo, int32_t slot) {
    (void)halo, (void)slot;
    return (HaloMap){.is_reversed = true};
}

static HaloMap map_positions(const IrWindowDimension *window) {
    return (HaloMap){.step = window->stride,
                     .span = reach_of(window),
                     .base = window->base_dilation,
                     .low = window->padding_low};
}

/* Pads `range` so that the window has `count` positions, the first at element `first` before base dilation.
 */
static void pad_window(IrWindowDimension *window, HaloRange range, int64_t first, int64_t count) {
    int64_t reach = reach_of(window) + 1;
    int64_t padded = count > 0 ? dilated(count, window->stride) + reach - 1 : reach - 1;
    window->padding_low = count > 0 ? range.start * window->base_dilation - first : 0;
    window->padding_high = padded - window->padding_low - dilated(range.extent, window->base_dilation);
}

/* The spatial dimension of a convolution that the factor is. */
static int32_t spatial_of(const Halo *halo) {
    const IrConvolution *convolution = halo->source->attributes->convolution;
    int32_t k = 0;
    while (convolution->input_spatial[k] != halo->factor->dimension[0]) k++;
    return k;
}

static HaloMap map_convolution(const Halo *halo, int32_t slot) {
    (void)slot;
    int32_t k = spatial_of(halo);
    const IrAttributes *attributes = halo->source->attributes;
    const IrWindowDimension *window = &attributes->window[k];
    HaloMap map = map_positions(window);
    if (halo->factor->kind == FACTOR_PERMUTATION) return map;
    int64_t positions = halo->source->shape.dimensions[attributes->convolution->output_spatial[k]];
    map.step = window->window_dilation;
    map.span = positions > 0 ? (positions - 1) * window->stride : 0;
    return map;
}

static void local_convolution(IrAttributes *local, const Halo *halo) {
    int32_t k = spatial_of(halo);
    IrWindowDimension *window = (IrWindowDimension *)&local->window[k];
    HaloRange part = own_part(halo);
    if (halo->factor->kind == FACTOR_PERMUTATION) {
        pad_window(window, own_range(halo, 0), part.start * window->stride - window->padding_low,
                   part.extent);
        return;
    }
    int64_t positions =
        halo->source->shape.dimensions[halo->source->attributes->convolution->output_spatial[k]];
    int64_t first = part.start * window->window_dilation - window->padding_low;
    window->size = part.extent;
    pad_window(window, own_range(halo, 0), first, positions);
}

static HaloMap map_window(const Halo *halo, int32_t slot) {
    return map_positions(&halo->source->attributes->window[halo->factor->dimension[slot]]);
}

static void local_window(IrAttributes *local, const Halo *halo) {
    IrWindowDimension *window = (IrWindowDimension *)&local->window[halo->factor->dimension[0]];
    HaloRange part = own_part(halo);
    pad_window(window, own_range(halo, 0), part.start * window->stride - window->padding_low, part.extent);
}

/* From a place of the result to the windows that it is in. */
static HaloMap map_selecting(const Halo *halo, int32_t slot) {
    HaloMap windows = map_window(halo, slot);
    return (HaloMap){
        .step = 1, .span = windows.span, .base = windows.step, .low = windows.span - windows.low};
}

static void local_select(IrAttributes *local, const Halo *halo) {
    IrWindowDimension *window = (IrWindowDimension *)&local->window[halo->factor->dimension[0]];
    HaloRange windows = own_range(halo, 1);
    pad_window(window, own_range(halo, 0), windows.start * window->stride - window->padding_low,
               windows.extent);
}

/* `is_exact`: operands must have just the elements that are read, as no attribute says which. */
static const struct HaloRow {
    IrOpcode opcode;
    bool is_exact;
    HaloMap (*map)(const Halo *halo, int32_t slot);
    void (*localise)(IrAttributes *local, const Halo *halo); /* NULL: nothing to do */
} rows[] = {
    {IR_SLICE, false, map_slice, local_slice},
    {IR_PAD, true, map_pad, local_pad},
    {IR_CONCATENATE, true, map_concatenate, NULL},
    {IR_REVERSE, true, map_reverse, NULL},
    {IR_CONVOLUTION, false, map_convolution, local_convolution},
    {IR_REDUCE_WINDOW, false, map_window, local_window},
    {IR_SELECT_AND_SCATTER, true, map_selecting, local_select},
};

static const struct HaloRow *find_row(IrOpcode opcode) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (rows[k].opcode == opcode) return &rows[k];
    return NULL;
}

/* The slot whose dimension the parts are of: the result's, or a reduction's kernel. */
static int32_t part_slot(const FactorRule *rule, const Factor *factor) {
    return factor->kind == FACTOR_PERMUTATION ? rule->operand_count : 1;
}

static bool is_brought(const FactorRule *rule, const Factor *factor, int32_t slot) {
    return factor->dimension[slot] >= 0 && slot != part_slot(rule, factor);
}

/* All ranges of operand `slot`, as the parts read them. */
static void find_ranges(Halo *halo, const struct HaloRow *row, int32_t slot) {
    HaloMap map = row->map(halo, slot);
    HaloRange *ranges = &halo->ranges[slot * halo->count];
    map.size = operand_size(halo, slot);
    for (int32_t m = 0; m < halo->count; m++) ranges[m] = range_of(&map, halo->parts[m]);
    if (halo->source->opcode != IR_SELECT_AND_SCATTER || slot != 0) return;
    HaloMap seen = map_window(halo, 0), windows = row->map(halo, 1);
    seen.size = map.size;
    windows.size = operand_size(halo, 1);
    for (int32_t m = 0; m < halo->count; m++) {
        HaloRange part = halo->parts[m], view = range_of(&seen, range_of(&windows, part));
        int64_t start = view.extent > 0 && view.start < part.start ? view.start : part.start;
        int64_t end = part.start + part.extent;
        if (view.extent > 0 && view.start + view.extent > end) end = view.start + view.extent;
        ranges[m] = (HaloRange){start, part.extent > 0 ? end - start : 0};
    }
}

/* ---- bringing an operand to its ranges ---- */

/* Where the members of a halo's group have dimension d of a value. */
static HaloRange *find_parts(Lowering *self, const Halo *halo, SbpState state, int32_t d, int64_t size) {
    HaloRange *parts = ARENA_ARRAY(self->arena, HaloRange, halo->count);
    for (int32_t m = 0; parts && m < halo->count; m++)
        sbp_shard(self->program->mesh, state, halo->group[m], d, size, &parts[m].start, &parts[m].extent);
    return parts;
}

/* A value like `value`, of another extent along dimension d, made by the next instruction. */
static int32_t add_brought(Lowering *self, int32_t value, int32_t d, int64_t extent) {
    IrShape shape = self->program->values[value].shape;
    int64_t *dimensions = ARENA_ARRAY(self->arena, int64_t, shape.rank);
    if (!dimensions) return 0;
    memcpy(dimensions, shape.dimensions, sizeof(int64_t) * (size_t)shape.rank);
    dimensions[d] = extent;
    shape.dimensions = dimensions;
    SbpState state = self->program->values[value].state;
    int32_t made = lower_add_value(self, self->program->values[value].origin, LOWERED_HALO, &shape,
                                   (SbpState){.axis = {SBP_B}});
    if (!self->arena->failed) self->program->values[made].state = state;
    return made;
}

static ProgramInstruction *add_mover(Lowering *self, int32_t from, int32_t to) {
    static const IrAttributes none;
    int32_t *operand = ARENA_ARRAY(self->arena, int32_t, 1);
    ProgramInstruction *instruction = lower_add_instruction(self);
    if (self->arena->failed) return instruction;
    *operand = from;
    instruction->origin = self->program->values[from].origin;
    instruction->operand_count = instruction->result_count = 1;
    instruction->operands = operand;
    instruction->first_result = to;
    instruction->attributes = &none;
    return instruction;
}

/* Keeps of a value the box that begins at `starts` [rank] and has the shape of `to`. */
static AmStatus emit_slice(Lowering *self, int32_t from, const int64_t *starts, int32_t to, AmError *error) {
    const IrShape *shape = &self->program->values[to].shape;
    int32_t rank = shape->rank;
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *numbers = ARENA_ARRAY(self->arena, int64_t, 3 * rank + 1);
    if (self->arena->failed) return am_fail_memory(error, rank);
    for (int32_t d = 0; d < rank; d++) {
        numbers[d] = starts[d];
        numbers[rank + d] = starts[d] + shape->dimensions[d];
        numbers[2 * rank + d] = 1;
    }
    *attributes = (IrAttributes){
        .slice_start = numbers, .slice_limit = numbers + rank, .slice_stride = numbers + 2 * rank};
    ProgramInstruction *instruction = add_mover(self, from, to);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = IR_SLICE;
    instruction->attributes = attributes;
    return self->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

static bool is_same_exchange(const ProgramMovement *a, const ProgramMovement *b, int32_t count) {
    size_t bytes = sizeof(int64_t) * (size_t)count;
    return a->dimension == b->dimension && memcmp(a->range_start, b->range_start, bytes) == 0 &&
           memcmp(a->range_extent, b->range_extent, bytes) == 0;
}

/* What the same exchange of the value has made before, or -1. */
static int32_t find_exchanged(const Lowering *self, int32_t value, const ProgramMovement *movement,
                              int32_t count) {
    const Program *program = self->program;
    for (int32_t held = self->newest[program->values[value].origin]; held >= 0;
         held = self->states[held].older) {
        if (self->states[held].leaf != LOWERED_HALO) continue;
        const ProgramInstruction *maker = &program->instructions[program->values[held].instruction];
        if (maker->kind == PROGRAM_COLLECTIVE && maker->operands[0] == value &&
            is_same_exchange(movement, &maker->collective->movements[0], count))
            return held;
    }
    return -1;
}

AmStatus lower_exchange(Lowering *self, const ProgramCollective *along, int32_t dimension,
                        const int64_t *parts, const int64_t *range_start, const int64_t *range_extent,
                        int32_t from, int32_t to, AmError *error) {
    ProgramCollective *collective = ARENA_ARRAY(self->arena, ProgramCollective, 1);
    ProgramMovement *movement = ARENA_ARRAY(self->arena, ProgramMovement, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *collective);
    *movement = (ProgramMovement){
        .dimension = dimension, .parts = parts, .range_start = range_start, .range_extent = range_extent};
    *collective = *along;
    collective->kind = PROGRAM_HALO_EXCHANGE;
    collective->movements = movement;
    ProgramInstruction *instruction = add_mover(self, from, to);
    instruction->kind = PROGRAM_COLLECTIVE;
    instruction->collective = collective;
    return self->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

static AmStatus exchange(Lowering *self, const Halo *halo, const HaloRange *parts, int32_t slot,
                         int32_t *value, AmError *error) {
    const HaloRange *ranges = &halo->ranges[slot * halo->count];
    int32_t count = halo->count, d = halo->factor->dimension[slot];
    int64_t *numbers = ARENA_ARRAY(self->arena, int64_t, 3 * count);
    if (!numbers) return am_fail_memory(error, count);
    for (int32_t m = 0; m < count; m++) {
        numbers[m] = parts[m].extent;
        numbers[count + m] = ranges[m].start;
        numbers[2 * count + m] = ranges[m].extent;
    }
    ProgramMovement wanted = {
        .dimension = d, .range_start = numbers + count, .range_extent = numbers + 2 * count};
    int32_t held = find_exchanged(self, *value, &wanted, count);
    if (held < 0) {
        ProgramCollective along = {.axes = halo->axes, .group_count = count, .group = halo->group};
        held = add_brought(self, *value, d, own_range(halo, slot).extent);
        TRY(lower_exchange(self, &along, d, numbers, numbers + count, numbers + 2 * count, *value, held,
                           error));
    }
    *value = held;
    return AM_OK;
}

/* Brings an operand to the ranges found, or, where they are within the parts and
 * need not be exact, sets the ranges to the parts. */
static AmStatus bring(Lowering *self, Halo *halo, bool is_exact, int32_t slot, int32_t *value,
                      AmError *error) {
    HaloRange *ranges = &halo->ranges[slot * halo->count];
    int32_t d = halo->factor->dimension[slot];
    SbpState state = self->program->values[*value].state;
    const HaloRange *parts = find_parts(self, halo, state, d, operand_size(halo, slot));
    if (!parts) return am_fail_memory(error, halo->count);
    bool are_equal = true, are_within = true;
    for (int32_t m = 0; m < halo->count; m++) {
        if (ranges[m].extent == 0) ranges[m].start = parts[m].start;
        int64_t end = ranges[m].start + ranges[m].extent, part_end = parts[m].start + parts[m].extent;
        are_equal &= ranges[m].start == parts[m].start && end == part_end;
        are_within &= ranges[m].start >= parts[m].start && end <= part_end;
    }
    if (are_equal || (are_within && !is_exact)) {
        memcpy(ranges, parts, sizeof *ranges * (size_t)halo->count);
        return AM_OK;
    }
    if (!are_within) return exchange(self, halo, parts, slot, value, error);
    int64_t starts[IR_MAX_RANK] = {0};
    starts[d] = own_range(halo, slot).start - parts[halo->position].start;
    int32_t cut = add_brought(self, *value, d, own_range(halo, slot).extent);
    TRY(emit_slice(self, *value, starts, cut, error));
    *value = cut;
    return AM_OK;
}

/* ---- the instruction ---- */

static AmStatus open_halo(Halo *halo, Lowering *self, int32_t i, int32_t f, uint32_t axes,
                          SbpState part_state, AmError *error) {
    const Mesh *mesh = self->program->mesh;
    const IrInstruction *source = &self->module->instructions[i];
    const FactorRule *rule = &self->rules->rules[i];
    int32_t count = 1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (axes >> axis & 1) count *= mesh->axes[axis].size;
    int32_t *group = ARENA_ARRAY(self->arena, int32_t, count);
    *halo = (Halo){.module = self->module,
                   .source = source,
                   .rule = rule,
                   .factor = &rule->factors[f],
                   .axes = axes,
                   .group = group,
                   .count = count,
                   .ranges = ARENA_ARRAY(self->arena, HaloRange, (int64_t)count * rule->operand_count)};
    if (self->arena->failed) return am_fail_memory(error, count);
    mesh_group(mesh, self->program->device, axes, group);
    while (group[halo->position] != self->program->device) halo->position++;
    int32_t slot = part_slot(rule, halo->factor);
    const IrShape *shape =
        slot < rule->operand_count ? operand_shape(halo, slot) : rules_leaf(&source->shape, 0);
    int32_t d = halo->factor->dimension[slot];
    halo->parts = find_parts(self, halo, part_state, d, shape->dimensions[d]);
    if (!halo->parts) return am_fail_memory(error, count);
    bool turns =
        halo->factor->kind == FACTOR_REDUCTION && source->attributes->window[spatial_of(halo)].reversal;
    for (int32_t m = 0; turns && m < count; m++) { /* a window that is turned round meets its end first */
        HaloRange *part = (HaloRange *)&halo->parts[m];
        part->start = shape->dimensions[d] - part->start - part->extent;
    }
    return AM_OK;
}

/* A copy of the attributes whose arrays of places can be changed, with the slices
 * of dimensions that are split without a halo as long as these are here. */
static IrAttributes *copy_attributes(Lowering *self, const IrInstruction *source,
                                     const IrShape *local_operand) {
    const IrAttributes *whole = source->attributes;
    int32_t rank = local_operand->rank;
    IrAttributes *local = ARENA_ARRAY(self->arena, IrAttributes, 1);
    IrPadding *padding = ARENA_ARRAY(self->arena, IrPadding, rank + 1);
    IrWindowDimension *window = ARENA_ARRAY(self->arena, IrWindowDimension, whole->window_count + 1);
    int64_t *numbers = ARENA_ARRAY(self->arena, int64_t, 2 * rank + 1);
    if (self->arena->failed) return NULL;
    *local = *whole;
    if (whole->padding) {
        memcpy(padding, whole->padding, sizeof *padding * (size_t)rank);
        local->padding = padding;
    }
    if (whole->window) {
        memcpy(window, whole->window, sizeof *window * (size_t)whole->window_count);
        local->window = window;
    }
    if (source->opcode != IR_SLICE) return local;
    const IrShape *operand = &self->module->instructions[source->operands[0]].shape;
    for (int32_t d = 0; d < rank; d++) {
        bool is_whole = whole->slice_limit[d] - whole->slice_start[d] == operand->dimensions[d];
        numbers[d] = whole->slice_start[d];
        numbers[rank + d] = is_whole ? local_operand->dimensions[d] : whole->slice_limit[d];
    }
    local->slice_start = numbers;
    local->slice_limit = numbers + rank;
    return local;
}

static void fill(Lowering *self, ProgramInstruction *instruction, int32_t i, int32_t *operands,
                 int32_t first_result, const IrAttributes *attributes) {
    const IrInstruction *source = &self->module->instructions[i];
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = source->opcode;
    instruction->origin = i;
    instruction->operand_count = source->operand_count;
    instruction->operands = operands;
    instruction->result_count = self->rules->rules[i].result_count;
    instruction->first_result = first_result;
    instruction->attributes = attributes;
    if (source->called_count > 0) instruction->called = source->called[0];
    if (source->called_count > 1) instruction->called_second = source->called[1];
}

/* What a factor does to the result of a select-and-scatter: `starts` of the part in what is computed. */
static bool find_cut(const Halo *halo, int64_t *starts) {
    bool is_cut = false;
    for (int32_t m = 0; m < halo->count; m++) is_cut |= halo->ranges[m].extent != halo->parts[m].extent;
    starts[halo->factor->dimension[0]] =
        own_part(halo).extent > 0 ? own_part(halo).start - own_range(halo, 0).start : 0;
    return is_cut;
}

bool lower_has_halo(const Lowering *self, int32_t i, const int8_t *factors) {
    for (int32_t axis = 0; axis < self->program->mesh->axis_count; axis++)
        if (factors[axis] >= 0 && self->rules->rules[i].factors[factors[axis]].halo) return true;
    return false;
}

SbpState lower_halo_state(const Lowering *self, int32_t i, const int8_t *factors, int32_t slot,
                          SbpState state) {
    const FactorRule *rule = &self->rules->rules[i];
    int32_t producer = self->choices->operands[self->choices->first_operand[i] + slot];
    const SbpState *stored = &self->completion->stored[producer];
    for (int32_t axis = 0; axis < self->program->mesh->axis_count; axis++) {
        const Factor *factor = factors[axis] < 0 ? NULL : &rule->factors[factors[axis]];
        if (!factor || !factor->halo || !is_brought(rule, factor, slot)) continue;
        Sbp split = sbp_split(factor->dimension[slot]);
        bool is_there = sbp_blocks(*stored, factor->dimension[slot]) == 1, is_whole = true;
        for (int32_t k = 0; k < MESH_MAX_AXES; k++) {
            bool is_along = k < self->program->mesh->axis_count && factors[k] == factors[axis];
            is_there &= (stored->axis[k] == split) == is_along;
            is_whole &= !is_along || stored->axis[k] == SBP_B;
        }
        if (self->rules->on_demand[producer] || is_whole) sbp_set(&state, axis, SBP_B);
        else if (is_there) sbp_take(&state, *stored, axis);
    }
    return state;
}

AmStatus lower_halo(Lowering *self, int32_t i, const int8_t *factors, int32_t *operands,
                    SbpState result_state, AmError *error) {
    const IrInstruction *source = &self->module->instructions[i];
    const FactorRule *rule = &self->rules->rules[i];
    const struct HaloRow *row = find_row(source->opcode);
    int64_t starts[IR_MAX_RANK] = {0};
    bool is_cut = false;
    uint32_t done = 0;
    if (!row)
        return am_fail(error, AM_ERROR_INTERNAL, self->module->source, "lowering %s: its halo is not known",
                       source->name);
    Halo halos[MESH_MAX_AXES];
    int32_t halo_count = 0;
    for (int32_t axis = 0; axis < self->program->mesh->axis_count; axis++) {
        if (factors[axis] < 0 || done >> axis & 1 || !rule->factors[factors[axis]].halo) continue;
        uint32_t axes = 0;
        for (int32_t k = axis; k < self->program->mesh->axis_count; k++)
            if (factors[k] == factors[axis]) axes |= 1u << k;
        done |= axes;
        Halo *halo = &halos[halo_count++];
        int32_t slot = part_slot(rule, &rule->factors[factors[axis]]);
        SbpState parts =
            slot < rule->operand_count ? self->program->values[operands[slot]].state : result_state;
        TRY(open_halo(halo, self, i, factors[axis], axes, parts, error));
        for (int32_t k = 0; k < rule->operand_count; k++) {
            if (!is_brought(rule, halo->factor, k)) continue;
            find_ranges(halo, row, k);
            TRY(bring(self, halo, row->is_exact, k, &operands[k], error));
        }
        is_cut |= source->opcode == IR_SELECT_AND_SCATTER && find_cut(halo, starts);
    }
    IrAttributes *attributes = copy_attributes(self, source, &self->program->values[operands[0]].shape);
    if (!attributes) return am_fail_memory(error, (int64_t)sizeof *attributes);
    for (int32_t k = 0; k < halo_count && row->localise; k++) row->localise(attributes, &halos[k]);

    int32_t first_result = self->program->value_count;
    if (is_cut) {
        int32_t computed = lower_add_value(self, i, LOWERED_HALO, &self->program->values[operands[0]].shape,
                                           (SbpState){.axis = {SBP_B}});
        if (!self->arena->failed) self->program->values[computed].state = result_state;
    }
    for (int32_t leaf = 0; leaf < rule->result_count && !is_cut; leaf++)
        lower_add_value(self, i, leaf, rules_leaf(&source->shape, leaf), result_state);
    ProgramInstruction *instruction = lower_add_instruction(self);
    fill(self, instruction, i, operands, first_result, attributes);
    if (self->arena->failed) return am_fail_memory(error, 0);
    if (source->opcode == IR_CONVOLUTION) TRY(lower_local_groups(self, instruction, source, error));
    if (!is_cut) return AM_OK;
    int32_t kept = lower_add_value(self, i, 0, &source->shape, result_state);
    return self->arena->failed ? am_fail_memory(error, 0)
                               : emit_slice(self, first_result, starts, kept, error);
}
