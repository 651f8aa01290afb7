/* Propagation of shardings through gather and scatter.
 *
 * Dimensions correspond in three ways. Dimensions of the indices that enumerate slices correspond
 * to those of the result (the updates) that enumerate them. Dimensions of the operand that a slice
 * covers completely correspond to those of the result inside a slice. Dimensions of the operand
 * that the indices traverse in order, one position for each slice, correspond to those of the
 * indices: explicitly as batching dimensions, or if the index is an iota.
 */
#include "base/int_list.h"
#include "propagation/spread/spread_internal.h"

#define MAX_VIEWS 16 /* between an iota and its use as an index */

typedef struct ParallelDimensions {
    int32_t count;
    int32_t operand[IR_MAX_RANK], indices[IR_MAX_RANK], slices[IR_MAX_RANK];
} ParallelDimensions;

/* A gather or scatter with the correspondence of its dimensions; -1: none. */
typedef struct IndexedDimensions {
    const IrGather *gather;
    const IrShape *operand, *indices, *slices; /* slices: the result of a gather, the updates of a scatter */
    int32_t indices_to_slices[IR_MAX_RANK];
    int32_t operand_to_slices[IR_MAX_RANK]; /* covered completely by a slice */
    ParallelDimensions parallel;
} IndexedDimensions;

static bool counts_up(const IrInstruction *constant) {
    const int32_t *values = constant->literal ? constant->literal->data : NULL;
    if (constant->shape.rank != 1 || constant->shape.type != DTYPE_S32 || !values) return false;
    for (int64_t k = 0; k < constant->shape.dimensions[0]; k++)
        if (values[k] != k) return false;
    return true;
}

/* Returns the dimension along which an array counts 0, 1, 2, ...; -1: none. */
static int32_t counting_dimension(const Spread *self, int32_t i) {
    const IrInstruction *views[MAX_VIEWS];
    const IrInstruction *source = ir_instruction(self->module, i);
    int32_t count = 0, d = -1;
    while (source->opcode == IR_BROADCAST || source->opcode == IR_CONVERT || source->opcode == IR_COPY) {
        if (count == MAX_VIEWS) return -1;
        views[count++] = source;
        source = ir_instruction(self->module, source->operands[0]);
    }
    if (source->opcode == IR_IOTA && source->attributes->dimension_count > 0)
        d = (int32_t)source->attributes->dimensions[0];
    else if (source->opcode == IR_CONSTANT && counts_up(source)) d = 0;
    for (int32_t k = count - 1; d >= 0 && k >= 0; k--)
        if (views[k]->opcode == IR_BROADCAST) d = (int32_t)views[k]->attributes->dimensions[d];
    return d;
}

/* Adds the pair of operand dimension and indices dimension, if each is new and they agree in size. */
static bool add_parallel(IndexedDimensions *self, int64_t operand, int64_t indices) {
    ParallelDimensions *parallel = &self->parallel;
    for (int32_t k = 0; k < parallel->count; k++)
        if (parallel->operand[k] == operand || parallel->indices[k] == indices) return false;
    if (self->operand->dimensions[operand] != self->indices->dimensions[indices]) return false;
    parallel->operand[parallel->count] = (int32_t)operand;
    parallel->indices[parallel->count] = (int32_t)indices;
    parallel->slices[parallel->count++] = self->indices_to_slices[indices];
    return true;
}

/* Finds components of the index that count along a dimension of the indices. */
static void find_counting(const Spread *self, IndexedDimensions *indexing, int32_t indices,
                          const int64_t *slice_sizes) {
    const IrGather *gather = indexing->gather;
    const IrInstruction *source = ir_instruction(self->module, indices);
    ParallelDimensions before = indexing->parallel;
    bool is_joined = source->opcode == IR_CONCATENATE &&
                     source->attributes->dimensions[0] == gather->index_vector_dimension;
    int64_t component = 0;
    for (int32_t k = 0; k < (is_joined ? source->operand_count : 1); k++) {
        int32_t piece = is_joined ? source->operands[k] : indices;
        const IrShape *shape = &ir_instruction(self->module, piece)->shape;
        int64_t width = gather->index_vector_dimension < shape->rank
                            ? shape->dimensions[gather->index_vector_dimension]
                            : 1;
        int32_t d = counting_dimension(self, piece);
        if (d >= 0 && d != gather->index_vector_dimension && width == 1 &&
            component < gather->index_map_count) {
            int64_t operand = gather->start_index_map[component];
            if (slice_sizes[operand] == 1 && !add_parallel(indexing, operand, d)) {
                indexing->parallel = before;
                return;
            }
        }
        component += width;
    }
}

static IndexedDimensions read_indexing(const Spread *self, const IrInstruction *instruction, int32_t slices) {
    bool is_gather = instruction->opcode == IR_GATHER;
    int32_t indices = instruction->operands[is_gather ? 1 : instruction->operand_count / 2];
    IndexedDimensions indexing = {.gather = instruction->attributes->gather};
    const IrGather *gather = indexing.gather;
    int64_t sizes[IR_MAX_RANK];
    int32_t offset = 0, slice = 0;
    indexing.operand = &ir_instruction(self->module, instruction->operands[0])->shape;
    indexing.indices = &ir_instruction(self->module, indices)->shape;
    indexing.slices = is_gather ? &instruction->shape : &ir_instruction(self->module, slices)->shape;
    for (int32_t d = 0; d < IR_MAX_RANK; d++)
        indexing.indices_to_slices[d] = indexing.operand_to_slices[d] = -1;
    for (int32_t d = 0; d < indexing.indices->rank; d++) {
        if (d == gather->index_vector_dimension) continue;
        while (int_list_contains(gather->offset_dimensions, gather->offset_count, slice)) slice++;
        indexing.indices_to_slices[d] = slice++;
    }
    /* Fills slice_sizes of a scatter from its updates. */
    int32_t place = 0;
    for (int32_t d = 0; d < indexing.operand->rank; d++) {
        bool is_inside = !int_list_contains(gather->collapsed_dimensions, gather->collapsed_count, d) &&
                         !int_list_contains(gather->operand_batching, gather->batching_count, d);
        sizes[d] = 1;
        if (is_inside && place < gather->offset_count)
            sizes[d] = indexing.slices->dimensions[gather->offset_dimensions[place++]];
    }
    for (int32_t d = 0; d < indexing.operand->rank; d++) {
        if (int_list_contains(gather->collapsed_dimensions, gather->collapsed_count, d) ||
            int_list_contains(gather->operand_batching, gather->batching_count, d) ||
            offset >= gather->offset_count)
            continue;
        int64_t to = gather->offset_dimensions[offset++];
        if (sizes[d] == indexing.operand->dimensions[d]) indexing.operand_to_slices[d] = (int32_t)to;
    }
    for (int32_t k = 0; k < gather->batching_count; k++)
        add_parallel(&indexing, gather->operand_batching[k], gather->indices_batching[k]);
    find_counting(self, &indexing, indices, sizes);
    return indexing;
}

/* Maps pairs of dimensions, from one list to the other. */
static const Tiles *map_pairs(Spread *self, const Tiles *tiles, const int32_t *from, const int32_t *to,
                              int32_t count, int32_t rank) {
    DimensionMap map = spread_no_map(rank);
    for (int32_t k = 0; k < count; k++) map.to[from[k]] = to[k];
    return spread_apply(self, tiles, &map);
}

/* Maps by a table over the source's dimensions, in its direction or against it. */
static const Tiles *map_table(Spread *self, const Tiles *tiles, const int32_t *table, int32_t source_rank,
                              bool is_backward, int32_t rank) {
    DimensionMap map = spread_no_map(rank);
    for (int32_t d = 0; d < source_rank; d++) {
        if (table[d] < 0) continue;
        if (is_backward) map.to[table[d]] = d;
        else map.to[d] = table[d];
    }
    return spread_apply(self, tiles, &map);
}

static const Tiles *spatial_array(const Spread *self, int32_t i) {
    return spread_is_spatial(self, i) ? spread_array(self, i) : NULL;
}

bool spread_gather_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Tiles *operand = spatial_array(self, instruction->operands[0]);
    const Tiles *indices = spatial_array(self, instruction->operands[1]);
    IndexedDimensions indexing = read_indexing(self, instruction, -1);
    const ParallelDimensions *parallel = &indexing.parallel;
    int32_t rank = instruction->shape.rank;
    bool is_changed = false;
    if (operand && parallel->count > 0)
        is_changed |= spread_improve_all(
            self, i, map_pairs(self, operand, parallel->operand, parallel->slices, parallel->count, rank),
            false);
    if (indices)
        is_changed |= spread_improve_all(
            self, i,
            map_table(self, indices, indexing.indices_to_slices, indexing.indices->rank, false, rank), false);
    if (!operand) return is_changed;
    const Tiles *inside =
        map_table(self, operand, indexing.operand_to_slices, indexing.operand->rank, false, rank);
    if (inside->kind == TILES_TILED) is_changed |= spread_improve_all(self, i, inside, false);
    return is_changed;
}

/* Merges two shardings, the first with priority. */
static const Tiles *first_with(Spread *self, const Tiles *first, const Tiles *second) {
    if (first->kind != TILES_TILED) return second;
    const Tiles *merged = tiles_merge(&self->pool, second, first, tiles_count(first) + 1);
    return merged ? merged : first;
}

const Tiles *spread_gather_operand(Spread *self, int32_t user, int32_t operand) {
    const IrInstruction *instruction = ir_instruction(self->module, user);
    const Tiles *tiles = spread_array(self, user);
    IndexedDimensions indexing = read_indexing(self, instruction, -1);
    const ParallelDimensions *parallel = &indexing.parallel;
    int32_t rank = indexing.operand->rank;
    if (operand == 1)
        return map_table(self, tiles, indexing.indices_to_slices, indexing.indices->rank, true,
                         indexing.indices->rank);
    const Tiles *along = map_pairs(self, tiles, parallel->slices, parallel->operand, parallel->count, rank);
    const Tiles *inside = map_table(self, tiles, indexing.operand_to_slices, rank, true, rank);
    const Tiles *found = first_with(self, along, inside);
    return found->kind == TILES_TILED || tiles->kind != TILES_TILED ? found : NULL;
}

bool spread_scatter_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t arrays = instruction->operand_count / 2;
    const Tiles *indices = spatial_array(self, instruction->operands[arrays]);
    bool is_changed = false;
    for (int32_t k = 0; k < arrays; k++) {
        const Tiles *operand = spatial_array(self, instruction->operands[k]);
        if (operand) is_changed |= spread_improve_leaf(self, i, k, operand, false);
    }
    for (int32_t k = 0; k < arrays; k++) {
        int32_t update = instruction->operands[arrays + 1 + k];
        const Tiles *updates = spatial_array(self, update);
        IndexedDimensions indexing = read_indexing(self, instruction, update);
        const ParallelDimensions *parallel = &indexing.parallel;
        int32_t rank = indexing.operand->rank;
        if (indices && parallel->count > 0)
            is_changed |= spread_improve_leaf(
                self, i, k,
                map_pairs(self, indices, parallel->indices, parallel->operand, parallel->count, rank), false);
        if (!updates) continue;
        if (parallel->count > 0)
            is_changed |= spread_improve_leaf(
                self, i, k,
                map_pairs(self, updates, parallel->slices, parallel->operand, parallel->count, rank), false);
        const Tiles *inside = map_table(self, updates, indexing.operand_to_slices, rank, true, rank);
        if (inside->kind == TILES_TILED) is_changed |= spread_improve_leaf(self, i, k, inside, false);
    }
    return is_changed;
}

/* Returns the refinement of the shardings that all updates imply for the indices. */
static const Tiles *scatter_indices(Spread *self, const IrInstruction *instruction, int32_t arrays) {
    const Tiles *found = NULL;
    for (int32_t k = 0; k < arrays; k++) {
        int32_t update = instruction->operands[arrays + 1 + k];
        const Tiles *updates = spatial_array(self, update);
        if (!updates) continue;
        IndexedDimensions indexing = read_indexing(self, instruction, update);
        const Tiles *tiles = map_table(self, updates, indexing.indices_to_slices, indexing.indices->rank,
                                       true, indexing.indices->rank);
        const Tiles *merged = found ? tiles_merge(&self->pool, tiles, found, tiles_count(found) + 1) : tiles;
        if (merged) found = merged;
    }
    return found;
}

const Tiles *spread_scatter_operand(Spread *self, int32_t user, int32_t operand) {
    const IrInstruction *instruction = ir_instruction(self->module, user);
    int32_t arrays = instruction->operand_count / 2;
    const Tiles *const *leaves = &self->leaves[self->first_leaf[user]];
    if (operand < arrays) return leaves[operand];
    if (operand == arrays) return scatter_indices(self, instruction, arrays);
    IndexedDimensions indexing = read_indexing(self, instruction, instruction->operands[operand]);
    const ParallelDimensions *parallel = &indexing.parallel;
    int32_t rank = indexing.slices->rank;
    const Tiles *tiles = leaves[operand - arrays - 1],
                *indices = spatial_array(self, instruction->operands[arrays]);
    const Tiles *along = map_pairs(self, tiles, parallel->operand, parallel->slices, parallel->count, rank);
    const Tiles *inside =
        map_table(self, tiles, indexing.operand_to_slices, indexing.operand->rank, false, rank);
    const Tiles *found = first_with(self, along, inside);
    if (indices)
        found = first_with(
            self, found,
            map_table(self, indices, indexing.indices_to_slices, indexing.indices->rank, false, rank));
    return found->kind == TILES_TILED ? found : NULL;
}
