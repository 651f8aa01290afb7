/* Runs a blocked region: each member of the team takes units, or blocks of rows of a unit.
 *
 * For each unit the program `before` runs, then the programs of its blocks in order, then the program
 * `after`. Arrays that are not contiguous are packed into the worker's scratch memory before a program, and
 * its results are unpacked after it. Packed keys serve all blocks of a unit.
 */
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/attention/region_kernel.h"
#include "executor/cpu/team.h"

/* One thread's share of a run. */
typedef struct Worker {
    const KernelCall *call;
    const RegionKernel *kernel;
    char *scratch;
    int64_t index[REGION_MOST_LABELS]; /* [label]: the first one of the block */
    int64_t first_key;                 /* the last key of row 0; -1: every row has all keys */
    const PartProgram *packed;         /* the program whose copies for this unit are in `scratch`; or NULL */
} Worker;

static char *array_address(const Worker *self, const BlockArray *array) {
    switch (array->link.place) {
    case REGION_PARAMETER: return self->call->operands[array->link.index];
    case REGION_OUTPUT: return self->call->results[array->link.index];
    case REGION_INDICES: return (char *)array->indices;
    default: return self->scratch + self->kernel->array_at[array->link.value];
    }
}

static char *block_address(const Worker *self, const BlockArray *array) {
    int64_t at = 0;
    for (int32_t d = 0; d < array->rank; d++) at += self->index[array->labels[d]] * array->label_strides[d];
    return array_address(self, array) + at * array->element_bytes;
}

static void pack(const Worker *self, const BlockArray *array) {
    if (array->in_place) return;
    strided_copy(self->scratch + array->packed_at, array->packed_strides, block_address(self, array),
                 array->array_strides, array->dimensions, array->rank, array->element_bytes);
}

/* Copies a block's result to its place in the array. */
static void unpack(const Worker *self, const BlockArray *array, const void *from) {
    char *target = block_address(self, array);
    if (array->in_place && target != from) memcpy(target, from, (size_t)array->bytes);
    if (!array->in_place)
        strided_copy(target, array->array_strides, from, array->packed_strides, array->dimensions,
                     array->rank, array->element_bytes);
}

/* Finds the addresses of a program's values: inputs in their arrays or in packed copies. */
static void find_value_addresses(const Worker *self, const PartProgram *part, void **addresses) {
    const Program *program = part->part.program;
    char *memory = self->scratch + self->kernel->values_at - program->allocation.parameter_bytes;
    for (int32_t k = 0; k < part->part.input_count; k++) {
        const BlockArray *array = &part->inputs[k];
        addresses[array->link.own] =
            array->in_place ? block_address(self, array) : self->scratch + array->packed_at;
    }
    for (int32_t v = 0; v < program->value_count; v++) {
        const ProgramValue *owner = &program->values[program->values[v].storage];
        if (owner->kind == PROGRAM_VALUE_PARAMETER) addresses[v] = addresses[program->values[v].storage];
        else addresses[v] = owner->offset >= 0 ? memory + owner->offset : NULL;
    }
}

static void run_program(Worker *self, const PartProgram *part) {
    const Program *program = part->part.program;
    void **addresses = (void **)(self->scratch + self->kernel->addresses_at);
    void **places = addresses + self->kernel->most_values;
    if (part->is_empty) return;
    for (int32_t k = 0; k < part->owner->part.input_count && self->packed != part->owner; k++)
        if (!part->owner->inputs[k].differs_by_block) pack(self, &part->owner->inputs[k]);
    self->packed = part->owner;
    for (int32_t k = 0; k < part->part.input_count; k++)
        if (part->inputs[k].differs_by_block) pack(self, &part->inputs[k]);
    find_value_addresses(self, part, addresses);
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        KernelCall call = *part->calls[s];
        call.operands = places;
        call.results = places + call.operand_count;
        kernel_bind(&call, addresses, self->scratch + self->kernel->kernels_at);
        call.run(&call);
    }
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        const ProgramUpdate *update = &program->execution.updates[k];
        const BlockArray *array = &part->inputs[update->parameter];
        void *to = addresses[array->link.own];
        if (!update->in_place) memcpy(to, addresses[update->value], (size_t)array->bytes);
        unpack(self, array, to);
    }
    for (int32_t k = 0; k < part->part.output_count; k++)
        unpack(self, &part->outputs[k], addresses[part->outputs[k].link.own]);
}

static int32_t block_size_kind(const RegionKernel *kernel, int64_t block) {
    return (block + 1) * kernel->row_block > kernel->rows ? LAST_BLOCK : FULL_BLOCK;
}

/* Returns the number of the program of a block: by the last key of its rows. */
static int32_t block_program(const Worker *self, int64_t block) {
    const RegionKernel *kernel = self->kernel;
    if (block_size_kind(kernel, block) == LAST_BLOCK) return kernel->prefix_count;
    if (self->first_key < 0) return kernel->prefix_count - 1;
    int64_t number = (self->first_key + (block + 1) * kernel->row_block - 1) / kernel->prefix_keys;
    return number < kernel->prefix_count ? (int32_t)number : kernel->prefix_count - 1;
}

/* Returns whether a vector of a run has consecutive numbers; `*first` is the first. */
static bool is_consecutive(int64_t *first, const KernelCall *call, int32_t parameter) {
    const Program *region = call->instruction->regions.programs[0];
    const IrShape *shape = &region->values[region->parameters[parameter]].shape;
    int64_t count = ir_shape_elements(shape), size = dtype_bytes(shape->type);
    const char *numbers = call->operands[parameter];
    Scalar64 number;
    for (int64_t k = 0; k < count; k++) {
        scalar64_load(&number, numbers + k * size, shape->type, 1, 1);
        if (k == 0) *first = number.as_signed;
        if (number.as_signed != *first + k) return false;
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

/* Runs blocks [first, end) of rows for every index of the summed labels. */
static void run_blocks(Worker *self, int64_t first, int64_t end) {
    const RegionKernel *kernel = self->kernel;
    for (int32_t k = 0; k < kernel->summed_count; k++) self->index[kernel->summed[k]] = 0;
    for (int32_t v = 0; v < kernel->blocks.region->value_count; v++)
        if (kernel->blocks.is_accumulated[v])
            memset(self->scratch + kernel->array_at[v], 0, (size_t)kernel->array_bytes[v]);
    for (int32_t k = 0; k >= 0;) {
        for (int64_t block = first; block < end; block++) {
            self->index[kernel->blocks.row] = block * kernel->row_block;
            run_program(self, &kernel->block[block_program(self, block)]);
        }
        for (k = kernel->summed_count - 1; k >= 0; k--) {
            int32_t label = kernel->summed[k];
            if (++self->index[label] < kernel->blocks.labels.sizes[label]) break;
            self->index[label] = 0;
        }
    }
    self->index[kernel->blocks.row] = first * kernel->row_block;
    run_program(self, &kernel->after[block_size_kind(kernel, end - 1)]);
}

static void run_items(void *user, int32_t part, int32_t parts) {
    const KernelCall *call = user;
    const RegionKernel *kernel = call->compiled;
    bool divides_rows = !kernel->blocks.is_summed[kernel->blocks.row];
    int64_t per_unit = divides_rows ? kernel->row_blocks : 1, first, end, last = -1;
    Worker worker = {
        .call = call, .kernel = kernel, .scratch = (char *)call->scratch + part * kernel->worker_bytes};
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
            worker.packed = NULL;
            run_program(&worker, &kernel->before);
        }
        run_blocks(&worker, divides_rows ? block : 0, divides_rows ? block + 1 : kernel->row_blocks);
    }
}

void region_kernel_run(const KernelCall *call) {
    const RegionKernel *kernel = call->compiled;
    team_run(call->device, run_items, (void *)call, kernel->worker_count);
}
