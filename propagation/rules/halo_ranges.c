/* Ranges of an operand that a shard of a split dimension reads, and local attributes, operator by operator.
 */
#include "propagation/rules/halo_ranges.h"

typedef struct HaloMap {
    int64_t size; /* of the operand's dimension */
    int64_t step, span, base, low;
    bool is_reversed; /* place j reads element size - 1 - j */
} HaloMap;

static int64_t floor_divide(int64_t a, int64_t b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/* Returns the range that a shard reads. */
static HaloRange range_of(const HaloMap *map, HaloRange part) {
    if (part.extent == 0) return (HaloRange){0, 0};
    if (map->is_reversed) return (HaloRange){map->size - part.start - part.extent, part.extent};
    int64_t first = part.start * map->step - map->low;
    int64_t last = (part.start + part.extent - 1) * map->step + map->span - map->low;
    int64_t low = -floor_divide(-first, map->base);
    int64_t high = floor_divide(last, map->base);
    if (low < 0) low = 0;
    if (high > map->size - 1) high = map->size - 1;
    return high < low ? (HaloRange){0, 0} : (HaloRange){low, high - low + 1};
}

int64_t halo_operand_size(const Halo *halo, int32_t slot) {
    const IrShape *shape = &halo->module->instructions[halo->source->operands[slot]].shape;
    return shape->dimensions[halo->factor->dimension[slot]];
}

/* Places that n elements take up with base - 1 others between each two. */
static int64_t dilated(int64_t n, int64_t base) {
    return n > 0 ? (n - 1) * base + 1 : 0;
}

static int64_t reach_of(const IrWindowDimension *window) {
    return (window->size - 1) * window->window_dilation;
}

/* Returns the stride of a slice. */
static int64_t stride_of(const Halo *halo, int32_t d) {
    const IrAttributes *attributes = halo->source->attributes;
    return attributes->slice_stride ? attributes->slice_stride[d] : 1;
}

/* ---- maps and local attributes, by operator ---- */

static HaloMap map_slice(const Halo *halo, int32_t slot) {
    const IrAttributes *attributes = halo->source->attributes;
    int32_t d = halo->factor->dimension[slot];
    return (HaloMap){.step = stride_of(halo, d), .base = 1, .low = -attributes->slice_start[d]};
}

static void local_slice(LocalAttributes *local, const Halo *halo) {
    const IrAttributes *global = halo->source->attributes;
    int32_t d = halo->factor->dimension[0];
    HaloRange part = halo_own_part(halo), range = halo_own_range(halo, 0);
    int64_t stride = stride_of(halo, d);
    int64_t start = part.extent == 0 ? 0 : global->slice_start[d] + part.start * stride - range.start;
    local->slice_start[d] = start;
    local->slice_limit[d] = start + dilated(part.extent, stride);
}

static HaloMap map_pad(const Halo *halo, int32_t slot) {
    const IrPadding *padding = &halo->source->attributes->padding[halo->factor->dimension[slot]];
    return (HaloMap){.step = 1, .base = padding->interior + 1, .low = padding->low};
}

static void local_pad(LocalAttributes *local, const Halo *halo) {
    IrPadding *padding = &local->padding[halo->factor->dimension[0]];
    HaloRange part = halo_own_part(halo), range = halo_own_range(halo, 0);
    int64_t base = padding->interior + 1;
    padding->low = range.extent > 0 ? padding->low + range.start * base - part.start : part.extent;
    padding->high = part.extent - padding->low - dilated(range.extent, base);
}

static HaloMap map_concatenate(const Halo *halo, int32_t slot) {
    HaloMap map = {.step = 1, .base = 1};
    for (int32_t k = 0; k < slot; k++) map.low += halo_operand_size(halo, k);
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

/* Pads `range` so that the window has `count` positions, the first at element `first` before base
 * dilation. */
static void pad_window(IrWindowDimension *window, HaloRange range, int64_t first, int64_t count) {
    int64_t reach = reach_of(window) + 1;
    int64_t padded = count > 0 ? dilated(count, window->stride) + reach - 1 : reach - 1;
    window->padding_low = count > 0 ? range.start * window->base_dilation - first : 0;
    window->padding_high = padded - window->padding_low - dilated(range.extent, window->base_dilation);
}

/* Returns the spatial dimension of a convolution that the factor is. */
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

static void local_convolution(LocalAttributes *local, const Halo *halo) {
    int32_t k = spatial_of(halo);
    IrWindowDimension *window = &local->window[k];
    HaloRange part = halo_own_part(halo);
    if (halo->factor->kind == FACTOR_PERMUTATION) {
        pad_window(window, halo_own_range(halo, 0), part.start * window->stride - window->padding_low,
                   part.extent);
        return;
    }
    int64_t positions =
        halo->source->shape.dimensions[halo->source->attributes->convolution->output_spatial[k]];
    int64_t first = part.start * window->window_dilation - window->padding_low;
    window->size = part.extent;
    pad_window(window, halo_own_range(halo, 0), first, positions);
}

static HaloMap map_window(const Halo *halo, int32_t slot) {
    return map_positions(&halo->source->attributes->window[halo->factor->dimension[slot]]);
}

static void local_window(LocalAttributes *local, const Halo *halo) {
    IrWindowDimension *window = &local->window[halo->factor->dimension[0]];
    HaloRange part = halo_own_part(halo);
    pad_window(window, halo_own_range(halo, 0), part.start * window->stride - window->padding_low,
               part.extent);
}

/* Maps a place of the result to the windows that it is in. */
static HaloMap map_selecting(const Halo *halo, int32_t slot) {
    HaloMap windows = map_window(halo, slot);
    return (HaloMap){
        .step = 1, .span = windows.span, .base = windows.step, .low = windows.span - windows.low};
}

static void local_select(LocalAttributes *local, const Halo *halo) {
    IrWindowDimension *window = &local->window[halo->factor->dimension[0]];
    HaloRange windows = halo_own_range(halo, 1);
    pad_window(window, halo_own_range(halo, 0), windows.start * window->stride - window->padding_low,
               windows.extent);
}

static const struct HaloRow {
    IrOpcode opcode;
    bool is_exact;
    HaloMap (*map)(const Halo *halo, int32_t slot);
    void (*localise)(LocalAttributes *local, const Halo *halo); /* NULL: nothing to do */
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

bool halo_is_known(IrOpcode opcode) {
    return find_row(opcode) != NULL;
}

bool halo_is_exact(const Halo *halo) {
    bool is_dense = halo->source->opcode == IR_SLICE && stride_of(halo, halo->factor->dimension[0]) == 1;
    return is_dense || find_row(halo->source->opcode)->is_exact;
}

bool halo_is_slice_done(const Halo *halos, int32_t count) {
    const IrShape *operand = &halos->module->instructions[halos->source->operands[0]].shape;
    if (halos->source->opcode != IR_SLICE) return false;
    for (int32_t d = 0; d < operand->rank; d++) {
        bool is_done = halos->source->shape.dimensions[d] == operand->dimensions[d];
        for (int32_t k = 0; k < count; k++)
            is_done |= halos[k].factor->dimension[0] == d && stride_of(&halos[k], d) == 1;
        if (!is_done) return false;
    }
    return true;
}

void halo_localise(LocalAttributes *local, const Halo *halo) {
    const struct HaloRow *row = find_row(halo->source->opcode);
    if (row->localise) row->localise(local, halo);
}

bool halo_is_reversed(const Halo *halo) {
    return halo->source->opcode == IR_CONVOLUTION &&
           halo->source->attributes->window[spatial_of(halo)].reversal;
}

void halo_find_ranges(Halo *halo, int32_t slot) {
    const struct HaloRow *row = find_row(halo->source->opcode);
    HaloMap map = row->map(halo, slot);
    HaloRange *ranges = &halo->ranges[slot * halo->count];
    map.size = halo_operand_size(halo, slot);
    for (int32_t m = 0; m < halo->count; m++) ranges[m] = range_of(&map, halo->parts[m]);
    if (halo->source->opcode != IR_SELECT_AND_SCATTER || slot != 0) return;
    HaloMap seen = map_window(halo, 0), windows = row->map(halo, 1);
    seen.size = map.size;
    windows.size = halo_operand_size(halo, 1);
    for (int32_t m = 0; m < halo->count; m++) {
        HaloRange part = halo->parts[m], view = range_of(&seen, range_of(&windows, part));
        int64_t start = view.extent > 0 && view.start < part.start ? view.start : part.start;
        int64_t end = part.start + part.extent;
        if (view.extent > 0 && view.start + view.extent > end) end = view.start + view.extent;
        ranges[m] = (HaloRange){start, part.extent > 0 ? end - start : 0};
    }
}
