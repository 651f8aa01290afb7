/* Fused attention: a region with products runs block of rows by block of rows.
 *
 * region_blocks.h divides the region, and makes ordinary programs for one block. Their steps are the kernels
 * of the other operators, prepared once for one thread. A member of the team takes units (batch indices, or
 * blocks of rows of one where no gradient sums over rows) with scratch memory of its own: the values of a
 * block, which stay in a cache, accumulators, and copies of the parts of parameters that are not contiguous.
 * Copies of keys serve all blocks of a unit. A block under a causal mask leaves out keys behind its rows. The
 * memory is linear in the number of keys. Blocks of a unit follow one another in a fixed order, so that the
 * result does not depend on the team.
 */
#include <string.h>

#include "base/integers.h"
#include "executor/array/strided.h"
#include "executor/array/wide.h"
#include "executor/cpu/attention/region_blocks.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/team.h"

enum { BLOCK_BYTES = 512 << 10, LEAST_BLOCKS = 8, LEAST_ROWS = 32, MOST_ROWS = 128, MOST_PREFIXES = 16 };
enum { WHOLE_BLOCK, LAST_BLOCK, SIZES }; /* sizes of a block: row_block rows, or the remaining ones */

/* The elements of an array that one block reads or writes, and a packed copy of them in the scratch memory.
 */
typedef struct Move {
    RegionLink link;
    bool in_place;    /* the elements are contiguous in the array: they are not copied */
    bool is_of_block; /* their place differs from block to block of a unit */
    int64_t element_bytes;
    int64_t bytes, packed_at; /* of the copy; its scratch offset */
    int64_t array_at;         /* scratch offset of an array that is no operand or result; else -1 */
    const void *indices;
    int32_t rank;
    int64_t *dimensions;                     /* [rank] */
    int64_t *array_strides, *packed_strides; /* [rank]: in elements */
    int64_t *label_strides; /* [rank]: elements of the array from one index of the label to the next */
    const int32_t *labels;  /* [rank] */
} Move;

typedef struct PartKernel {
    RegionPart part;
    KernelCall **calls; /* [step of the program] */
    Move *inputs, *outputs;
    bool is_empty;                  /* it gives nothing */
    const struct PartKernel *owner; /* whose copies of what all blocks of a unit read it uses: its own, or a
                                       larger block's */
} PartKernel;

typedef struct RegionKernel {
    RegionBlocks blocks;
    int64_t row_block, row_blocks, rows; /* rows of a block, number of blocks of a unit, rows of a unit */
    int32_t unit_count, summed_count;
    int32_t units[REGION_MOST_LABELS];  /* labels whose indices are units, such as batch and head */
    int32_t summed[REGION_MOST_LABELS]; /* labels that accumulators sum over, one index after the other */
    int64_t work_items; /* that run in any order: units, or their blocks where no sum is over the rows */
    int32_t worker_count;
    CausalMask mask;
    /* Under a causal mask a block computes a prefix of the keys: k * prefix_keys of them, with k from 1 to
     * prefix_count. Each k has its own program. Without a mask there is one prefix, of all keys. */
    int32_t prefix_count;
    int64_t prefix_keys;
    PartKernel before, after[SIZES]; /* programs that run once for a unit, before and after its blocks */
    PartKernel
        block[MOST_PREFIXES + 1]; /* programs of whole blocks by their prefix, then of the last block */
    int64_t *array_at; /* [value of the region]: scratch offset of its accumulator, or of it if made before */
    int64_t *array_bytes;
    int64_t values_at, kernels_at, places_at, part_bytes;
    int32_t most_values;
} RegionKernel;

/* One thread's share of a run. */
typedef struct Worker {
    const KernelCall *call;
    const RegionKernel *kernel;
    char *scratch;
    int64_t index[REGION_MOST_LABELS]; /* [label]: the first one of the block */
    int64_t first_key;                 /* that row 0 sees last; -1: every row may see all keys */
    const PartKernel *loaded;          /* its copies of what all blocks of the unit read are there; or NULL */
} Worker;

/* ---- run ---- */

static char *array_of(const Worker *self, const Move *move) {
    switch (move->link.place) {
    case REGION_PARAMETER: return self->call->operands[move->link.index];
    case REGION_OUTPUT: return self->call->results[move->link.index];
    case REGION_INDICES: return (char *)move->indices;
    default: return self->scratch + self->kernel->array_at[move->link.value];
    }
}

static char *array_place(const Worker *self, const Move *move) {
    int64_t at = 0;
    for (int32_t d = 0; d < move->rank; d++) at += self->index[move->labels[d]] * move->label_strides[d];
    return array_of(self, move) + at * move->element_bytes;
}

static void load(const Worker *self, const Move *move) {
    if (move->in_place) return;
    strided_copy(self->scratch + move->packed_at, move->packed_strides, array_place(self, move),
                 move->array_strides, move->dimensions, move->rank, move->element_bytes);
}

static void store(const Worker *self, const Move *move, const void *from) {
    char *array = array_place(self, move);
    if (move->in_place && array != from) memcpy(array, from, (size_t)move->bytes);
    if (!move->in_place)
        strided_copy(array, move->array_strides, from, move->packed_strides, move->dimensions, move->rank,
                     move->element_bytes);
}

/* The addresses of a program's values: inputs where they lie or in their packed copies. */
static void find_addresses(const Worker *self, const PartKernel *part, void **addresses) {
    const Program *program = part->part.program;
    char *memory = self->scratch + self->kernel->values_at - program->parameter_bytes;
    for (int32_t k = 0; k < part->part.input_count; k++) {
        const Move *move = &part->inputs[k];
        addresses[move->link.own] =
            move->in_place ? array_place(self, move) : self->scratch + move->packed_at;
    }
    for (int32_t v = 0; v < program->value_count; v++) {
        const ProgramValue *owner = &program->values[program->values[v].storage];
        if (owner->kind == PROGRAM_VALUE_PARAMETER) addresses[v] = addresses[program->values[v].storage];
        else addresses[v] = owner->offset >= 0 ? memory + owner->offset : NULL;
    }
}

static void run_program(Worker *self, const PartKernel *part) {
    const Program *program = part->part.program;
    void **addresses = (void **)(self->scratch + self->kernel->places_at);
    void **places = addresses + self->kernel->most_values;
    if (part->is_empty) return;
    for (int32_t k = 0; k < part->owner->part.input_count && self->loaded != part->owner; k++)
        if (!part->owner->inputs[k].is_of_block) load(self, &part->owner->inputs[k]);
    self->loaded = part->owner;
    for (int32_t k = 0; k < part->part.input_count; k++)
        if (part->inputs[k].is_of_block) load(self, &part->inputs[k]);
    find_addresses(self, part, addresses);
    for (int32_t s = 0; s < program->step_count; s++) {
        KernelCall call = *part->calls[s];
        call.operands = places;
        call.results = places + call.operand_count;
        kernel_bind(&call, addresses, self->scratch + self->kernel->kernels_at);
        call.run(&call);
    }
    for (int32_t k = 0; k < program->update_count; k++) {
        const ProgramUpdate *update = &program->updates[k];
        const Move *move = &part->inputs[update->parameter];
        void *to = addresses[move->link.own];
        if (!update->in_place) memcpy(to, addresses[update->value], (size_t)move->bytes);
        store(self, move, to);
    }
    for (int32_t k = 0; k < part->part.output_count; k++)
        store(self, &part->outputs[k], addresses[part->outputs[k].link.own]);
}

static int32_t size_of_block(const RegionKernel *kernel, int64_t block) {
    return (block + 1) * kernel->row_block > kernel->rows ? LAST_BLOCK : WHOLE_BLOCK;
}

/* Returns the number of the block program: by the first key that the block may see. */
static int32_t variant_of_block(const Worker *self, int64_t block) {
    const RegionKernel *kernel = self->kernel;
    if (size_of_block(kernel, block) == LAST_BLOCK) return kernel->prefix_count;
    if (self->first_key < 0) return kernel->prefix_count - 1;
    int64_t number = (self->first_key + (block + 1) * kernel->row_block - 1) / kernel->prefix_keys;
    return number < kernel->prefix_count ? (int32_t)number : kernel->prefix_count - 1;
}

/* Returns whether a vector of a run has consecutive numbers; `*first` is the first. */
static bool is_consecutive(int64_t *first, const KernelCall *call, int32_t parameter) {
    const Program *region = call->instruction->regions[0];
    const IrShape *shape = &region->values[region->parameters[parameter]].shape;
    int64_t count = ir_shape_elements(shape), size = dtype_bytes(shape->type);
    const char *numbers = call->operands[parameter];
    Wide number;
    for (int64_t k = 0; k < count; k++) {
        wide_load(&number, numbers + k * size, shape->type, 1, 1);
        if (k == 0) *first = number.is_signed;
        if (number.is_signed != *first + k) return false;
    }
    return true;
}

/* Returns whether several vectors of a run have the same consecutive numbers; `*first` is the first. */
static bool are_consecutive(int64_t *first, const KernelCall *call, const int32_t *parameters,
                            int32_t count) {
    int64_t other;
    *first = 0;
    for (int32_t k = 0; k < count; k++) {
        if (!is_consecutive(k == 0 ? first : &other, call, parameters[k])) return false;
        if (k > 0 && other != *first) return false;
    }
    return true;
}

/* Blocks [first, end) of rows for every index of the summed labels. */
static void run_blocks(Worker *self, int64_t first, int64_t end) {
    const RegionKernel *kernel = self->kernel;
    for (int32_t k = 0; k < kernel->summed_count; k++) self->index[kernel->summed[k]] = 0;
    for (int32_t v = 0; v < kernel->blocks.region->value_count; v++)
        if (kernel->blocks.is_accumulated[v])
            memset(self->scratch + kernel->array_at[v], 0, (size_t)kernel->array_bytes[v]);
    for (int32_t k = 0; k >= 0;) {
        for (int64_t block = first; block < end; block++) {
            self->index[kernel->blocks.row] = block * kernel->row_block;
            run_program(self, &kernel->block[variant_of_block(self, block)]);
        }
        for (k = kernel->summed_count - 1; k >= 0; k--) {
            int32_t label = kernel->summed[k];
            if (++self->index[label] < kernel->blocks.labels.sizes[label]) break;
            self->index[label] = 0;
        }
    }
    self->index[kernel->blocks.row] = first * kernel->row_block;
    run_program(self, &kernel->after[size_of_block(kernel, end - 1)]);
}

static void run_items(void *user, int32_t part, int32_t parts) {
    const KernelCall *call = user;
    const RegionKernel *kernel = call->compiled;
    bool divides_rows = !kernel->blocks.is_summed[kernel->blocks.row];
    int64_t per_unit = divides_rows ? kernel->row_blocks : 1, first, end, last = -1;
    Worker worker = {
        .call = call, .kernel = kernel, .scratch = (char *)call->scratch + part * kernel->part_bytes};
    /* `first_key` is the last key that row 0 sees in this run, or -1. */
    int64_t row, key;
    bool is_known = kernel->mask.key >= 0 &&
                    are_consecutive(&row, call, kernel->mask.rows, kernel->mask.row_count) &&
                    are_consecutive(&key, call, kernel->mask.keys, kernel->mask.key_count);
    worker.first_key = is_known && row >= key ? row - key : -1;
    team_stretch(kernel->work_items, 1, part, parts, &first, &end);
    for (int64_t item = first; item < end; item++) {
        int64_t left = item / per_unit, block = item % per_unit;
        if (left != last) {
            last = left;
            for (int32_t k = kernel->unit_count - 1; k >= 0; k--) {
                int64_t size = kernel->blocks.labels.sizes[kernel->units[k]];
                worker.index[kernel->units[k]] = left % size;
                left /= size;
            }
            worker.loaded = NULL;
            run_program(&worker, &kernel->before);
        }
        run_blocks(&worker, divides_rows ? block : 0, divides_rows ? block + 1 : kernel->row_blocks);
    }
}

static void run_region(const KernelCall *call) {
    const RegionKernel *kernel = call->compiled;
    team_run(call->device, run_items, (void *)call, kernel->worker_count);
}

/* ---- preparation ---- */

/* The extents of an array that a link leads to. */
static const int64_t *array_extents(const RegionKernel *kernel, const RegionLink *link, int32_t size) {
    switch (link->place) {
    case REGION_MADE_BEFORE: return kernel->before.part.extents;
    case REGION_ACCUMULATOR: return kernel->after[size].part.extents;
    default: return kernel->blocks.labels.sizes;
    }
}

static AmStatus make_indices(Move *move, Arena *arena, Dtype type, int64_t count, AmError *error) {
    char *indices = arena_alloc(arena, (size_t)(count * dtype_bytes(type)));
    if (!indices) return am_fail_memory(error, count * 8);
    for (int64_t k = 0; k < count; k++) {
        Wide number = {.is_signed = k};
        wide_store(indices + k * dtype_bytes(type), type, &number, WIDE_SIGNED, 1, 1);
    }
    move->indices = indices;
    return AM_OK;
}

static AmStatus prepare_move(RegionKernel *kernel, Move *move, Arena *arena, const PartKernel *of,
                             const RegionLink *link, int32_t size, AmError *error) {
    const ValueLabels *labels = &kernel->blocks.labels.values[link->value];
    const int64_t *extents = of->part.extents, *whole = array_extents(kernel, link, size);
    int32_t first = link->dimension > 0 ? labels->ends[link->dimension - 1] : 0;
    int32_t end = link->dimension >= 0 ? labels->ends[link->dimension] : labels->count, rank = end - first;
    int64_t *lists = ARENA_ARRAY(arena, int64_t, 4 * rank + 1), elements = 1, array = 1;
    const IrShape *shape = &of->part.program->values[link->own].shape;
    if (!lists) return am_fail_memory(error, rank * 32);
    *move = (Move){.link = *link,
                   .element_bytes = dtype_bytes(shape->type),
                   .bytes = ir_shape_bytes(shape),
                   .rank = rank,
                   .dimensions = lists,
                   .array_strides = lists + rank,
                   .packed_strides = lists + 2 * rank,
                   .label_strides = lists + 3 * rank,
                   .labels = labels->list + first,
                   .in_place = true};
    for (int32_t d = rank - 1; d >= 0; d--) {
        int32_t label = move->labels[d];
        bool is_divided = kernel->blocks.is_divided[label];
        move->dimensions[d] = extents[label];
        move->packed_strides[d] = elements;
        move->array_strides[d] = array;
        move->label_strides[d] = whole[label] == kernel->blocks.labels.sizes[label] ? array : 0;
        if (extents[label] > 1 && array != elements) move->in_place = false;
        if (is_divided && (label == kernel->blocks.row || kernel->blocks.is_summed[label]) &&
            extents[label] != kernel->blocks.labels.sizes[label])
            move->is_of_block = true;
        elements *= extents[label];
        array *= whole[label];
    }
    if (link->place == REGION_INDICES) return make_indices(move, arena, shape->type, array, error);
    return AM_OK;
}

static AmStatus prepare_part(RegionKernel *kernel, PartKernel *part, Arena *arena, int32_t size,
                             AmError *error) {
    const Program *program = part->part.program;
    part->calls = ARENA_ARRAY(arena, KernelCall *, program->step_count + 1);
    part->inputs = ARENA_ARRAY(arena, Move, part->part.input_count + 1);
    part->outputs = ARENA_ARRAY(arena, Move, part->part.output_count + 1);
    part->is_empty = part->part.output_count + program->update_count == 0;
    if (arena->failed) return am_fail_memory(error, program->step_count * 8);
    for (int32_t s = 0; s < program->step_count; s++)
        TRY(kernel_prepare(&part->calls[s], arena, &kernel_device_cpu, program, &program->steps[s], error));
    for (int32_t k = 0; k < part->part.input_count; k++)
        TRY(prepare_move(kernel, &part->inputs[k], arena, part, &part->part.inputs[k], size, error));
    for (int32_t k = 0; k < part->part.output_count; k++)
        TRY(prepare_move(kernel, &part->outputs[k], arena, part, &part->part.outputs[k], size, error));
    return AM_OK;
}

/* Returns whether the packed elements of one input begin with those of another, for all of a unit's blocks.
 */
static bool begins_with(const Move *wide, const Move *narrow) {
    bool is_alike = wide->link.place == narrow->link.place && wide->link.index == narrow->link.index &&
                    wide->link.value == narrow->link.value &&
                    wide->link.dimension == narrow->link.dimension && wide->rank == narrow->rank &&
                    !wide->in_place && !narrow->is_of_block;
    for (int32_t d = 0; d < narrow->rank && is_alike; d++)
        is_alike = narrow->dimensions[d] <= wide->dimensions[d] &&
                   (narrow->dimensions[d] == 1 || narrow->packed_strides[d] == wide->packed_strides[d]);
    return is_alike;
}

/* Returns whether a block can use the copies of the one with all keys. */
static bool shares_copies(const PartKernel *wide, const PartKernel *part) {
    if (part->part.input_count != wide->part.input_count) return false;
    for (int32_t k = 0; k < part->part.input_count; k++) {
        const Move *own = &part->inputs[k], *other = &wide->inputs[k];
        if (own->is_of_block != other->is_of_block) return false;
        if (!own->is_of_block && !own->in_place && !begins_with(other, own)) return false;
    }
    return true;
}

/* Places the copies of a program from `at` on, those that it shares excepted; returns their end. */
static int64_t place_copies(PartKernel *part, int64_t at) {
    for (int32_t k = 0; k < part->part.input_count; k++) {
        Move *move = &part->inputs[k];
        bool is_shared = part->owner != part && !move->is_of_block;
        move->packed_at = is_shared ? part->owner->inputs[k].packed_at : at;
        if (!is_shared && !move->in_place) at += kernel_align(move->bytes);
    }
    return at;
}

/* The scratch memory of one thread: arrays, packed copies, values, kernels and tables. */
static void plan_memory(RegionKernel *kernel) {
    PartKernel *parts[MOST_PREFIXES + 1 + SIZES + 1] = {&kernel->before, &kernel->after[WHOLE_BLOCK],
                                                        &kernel->after[LAST_BLOCK]};
    for (int32_t k = 0; k <= kernel->prefix_count; k++) parts[k + 1 + SIZES] = &kernel->block[k];
    int64_t end = 0, copies = 0, values = 0, kernels = 0, places = 0;
    for (int32_t v = 0; v < kernel->blocks.region->value_count; v++) {
        kernel->array_at[v] = end;
        end += kernel_align(kernel->array_bytes[v]);
    }
    PartKernel *wide = &kernel->block[kernel->prefix_count - 1];
    wide->owner = wide;
    int64_t end_of_wide = place_copies(wide, end);
    copies = end_of_wide - end;
    /* One program's copies of what all blocks read stay while another runs. */
    for (int32_t p = 0; p < kernel->prefix_count + 2 + SIZES; p++) {
        const Program *program = parts[p]->part.program;
        bool is_shared = p > SIZES && shares_copies(wide, parts[p]);
        parts[p]->owner = is_shared ? wide : parts[p];
        if (parts[p] != wide)
            copies = larger_integer(copies, place_copies(parts[p], is_shared ? end_of_wide : end) - end);
        values = larger_integer(values, program->allocation_bytes - program->parameter_bytes);
        kernel->most_values = (int32_t)larger_integer(kernel->most_values, program->value_count);
        for (int32_t s = 0; s < program->step_count; s++) {
            kernels = larger_integer(kernels, parts[p]->calls[s]->scratch_bytes);
            places =
                larger_integer(places, parts[p]->calls[s]->operand_count + parts[p]->calls[s]->result_count);
        }
    }
    kernel->values_at = end + copies;
    kernel->kernels_at = kernel->values_at + kernel_align(values);
    kernel->places_at = kernel->kernels_at + kernel_align(kernels);
    kernel->part_bytes =
        kernel->places_at + kernel_align((kernel->most_values + places) * (int64_t)sizeof(void *));
}

/* Rows of a block whose scores take about BLOCK_BYTES. */
static int64_t choose_rows(const RegionBlocks *blocks) {
    int64_t most = 1;
    for (int32_t v = 0; v < blocks->region->value_count; v++) {
        int64_t bytes = 4;
        if (!region_labels_has(&blocks->labels, v, blocks->row)) continue;
        const ValueLabels *labels = &blocks->labels.values[v];
        for (int32_t k = 0; k < labels->count; k++)
            if (!blocks->is_divided[labels->list[k]]) bytes *= blocks->labels.sizes[labels->list[k]];
        most = larger_integer(most, bytes);
    }
    int64_t rows = BLOCK_BYTES / most / 8 * 8, all = blocks->labels.sizes[blocks->row];
    if (blocks->has_whole_rows) {
        rows = (all + LEAST_BLOCKS - 1) / LEAST_BLOCKS;
        if (rows > REGION_JOINED_BYTES / most) rows = REGION_JOINED_BYTES / most;
        return rows < 1 ? 1 : rows;
    }
    rows = rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
    return rows < all ? rows : all;
}

/* The extents of a stage's programs, by label. */
static int64_t *extents_of(const RegionKernel *kernel, Arena *arena, RegionStage stage, int64_t rows) {
    const RegionBlocks *blocks = &kernel->blocks;
    int64_t *extents = ARENA_ARRAY(arena, int64_t, blocks->labels.count + 1);
    for (int32_t l = 0; extents && l < blocks->labels.count; l++) {
        bool is_whole = !blocks->is_divided[l] || (stage == REGION_AFTER && blocks->is_summed[l]);
        extents[l] = is_whole ? blocks->labels.sizes[l] : l == blocks->row ? rows : 1;
    }
    return extents;
}

static AmStatus build_parts(RegionKernel *kernel, Arena *arena, AmError *error) {
    int64_t rest = kernel->rows % kernel->row_block;
    for (int32_t k = 0; k <= kernel->prefix_count; k++) {
        bool is_last = k == kernel->prefix_count;
        int64_t *block =
            extents_of(kernel, arena, REGION_BLOCK, is_last && rest > 0 ? rest : kernel->row_block);
        if (!block) return am_fail_memory(error, 64);
        if (kernel->mask.key >= 0 && !is_last && (k + 1) * kernel->prefix_keys < block[kernel->mask.key])
            block[kernel->mask.key] = (k + 1) * kernel->prefix_keys;
        TRY(region_part_build(&kernel->block[k].part, arena, &kernel->blocks, REGION_BLOCK, block, error));
    }
    for (int32_t size = 0; size < SIZES; size++) {
        int64_t rows = size == LAST_BLOCK && rest > 0 ? rest : kernel->row_block;
        int64_t *after = extents_of(kernel, arena, REGION_AFTER, rows);
        if (!after) return am_fail_memory(error, 64);
        TRY(region_part_build(&kernel->after[size].part, arena, &kernel->blocks, REGION_AFTER, after, error));
    }
    int64_t *before = extents_of(kernel, arena, REGION_BEFORE, 1);
    if (arena->failed) return am_fail_memory(error, 64);
    TRY(region_part_build(&kernel->before.part, arena, &kernel->blocks, REGION_BEFORE, before, error));
    TRY(prepare_part(kernel, &kernel->before, arena, WHOLE_BLOCK, error));
    for (int32_t size = 0; size < SIZES; size++)
        TRY(prepare_part(kernel, &kernel->after[size], arena, size, error));
    for (int32_t k = 0; k <= kernel->prefix_count; k++)
        TRY(prepare_part(kernel, &kernel->block[k], arena,
                         k == kernel->prefix_count ? LAST_BLOCK : WHOLE_BLOCK, error));
    return AM_OK;
}

/* The bytes of accumulators, and of values that are made before the blocks. */
static void find_arrays(RegionKernel *kernel) {
    const PartKernel *const parts[] = {&kernel->before, &kernel->after[WHOLE_BLOCK]};
    for (size_t p = 0; p < 2; p++) {
        const RegionPart *part = &parts[p]->part;
        const RegionLink *links = p == 0 ? part->outputs : part->inputs;
        for (int32_t k = 0; k < (p == 0 ? part->output_count : part->input_count); k++)
            if (links[k].place == (p == 0 ? REGION_MADE_BEFORE : REGION_ACCUMULATOR))
                kernel->array_bytes[links[k].value] =
                    ir_shape_bytes(&part->program->values[links[k].own].shape);
    }
}

static AmStatus prepare(KernelCall *call, RegionKernel *kernel, Arena *arena, AmError *error) {
    const Program *region = call->instruction->regions[0];
    RegionBlocks *blocks = &kernel->blocks;
    double elements = 0;
    TRY(region_blocks_find(blocks, arena, region, error));
    if (blocks->labels.count > REGION_MOST_LABELS)
        return am_fail(error, AM_ERROR_INPUT, "", "too many dimensions");
    kernel->rows = blocks->labels.sizes[blocks->row];
    kernel->row_block = choose_rows(blocks);
    kernel->row_blocks = (kernel->rows + kernel->row_block - 1) / kernel->row_block;
    TRY(region_blocks_find_causal(&kernel->mask, arena, blocks, error));
    /* Blocks under a causal mask have one of a few numbers of keys. */
    int64_t keys = kernel->mask.key >= 0 ? kernel->blocks.labels.sizes[kernel->mask.key] : 1;
    int64_t least = (keys + MOST_PREFIXES - 1) / MOST_PREFIXES;
    kernel->prefix_keys = (least + kernel->row_block - 1) / kernel->row_block * kernel->row_block;
    kernel->prefix_count = (int32_t)((keys + kernel->prefix_keys - 1) / kernel->prefix_keys);
    kernel->work_items = blocks->is_summed[blocks->row] ? 1 : kernel->row_blocks;
    for (int32_t l = 0; l < blocks->labels.count; l++) {
        if (!blocks->is_divided[l] || l == blocks->row) continue;
        if (blocks->is_summed[l]) kernel->summed[kernel->summed_count++] = l;
        else kernel->units[kernel->unit_count++] = l;
        if (!blocks->is_summed[l]) kernel->work_items *= blocks->labels.sizes[l];
    }
    kernel->array_at = ARENA_ARRAY(arena, int64_t, region->value_count + 1);
    kernel->array_bytes = ARENA_ARRAY(arena, int64_t, region->value_count + 1);
    if (arena->failed) return am_fail_memory(error, region->value_count * 16);
    TRY(build_parts(kernel, arena, error));
    find_arrays(kernel);
    plan_memory(kernel);
    for (int32_t v = 0; v < region->value_count; v++)
        elements += (double)ir_shape_elements(&region->values[v].shape);
    int32_t parts = team_parts(call->device, elements);
    kernel->worker_count = parts < kernel->work_items ? parts : (int32_t)kernel->work_items;
    call->scratch_bytes = kernel->worker_count * kernel->part_bytes;
    call->compiled = kernel;
    call->run = run_region;
    return AM_OK;
}

AmStatus cpu_prepare_blocked_region(KernelCall *call, Arena *arena, AmError *error) {
    AmError reason = {0};
    RegionKernel *kernel = ARENA_ARRAY(arena, RegionKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (call->instruction->region_count != 1)
        return kernel_call_refuse(call, "it lacks its computation", error);
    AmStatus status = prepare(call, kernel, arena, &reason);
    if (status == AM_ERROR_INPUT) return kernel_call_refuse(call, reason.text, error);
    if (status != AM_OK) return am_fail(error, status, "", "%s", reason.text);
    return AM_OK;
}
