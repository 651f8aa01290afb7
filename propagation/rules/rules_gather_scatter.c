/* Rules of gather and scatter.
 *
 * Both relate an operand, an array of indices and an array of slices (gather's
 * result, scatter's updates). Slice dimensions are window dimensions, which
 * follow the operand, or batch dimensions, which follow the indices; batching
 * dimensions are in all three. A dimension that indices point into, and that
 * slices do not span, is `indexed`: a shard handles what of the slices falls into
 * it, so a gather's result is P (zeros for the rest), and a scatter's stays split;
 * the slices are whole there.
 * Scattering shards of the updates gives P, if the operand is one that may be
 * counted in every part.
 */
#include "propagation/rules/rules_builder.h"

/* The role of each dimension of indices and slices. */
typedef struct IndexMap {
    int32_t slice_of_operand[IR_MAX_RANK]; /* window dimensions: slice dimension, else -1 */
    int32_t slice_of_indices[IR_MAX_RANK]; /* slice dimension, -1 for the index vector */
} IndexMap;

static bool map_dimensions(RuleBuilder *builder, const IrGather *gather, int32_t indices, int32_t slices,
                           IndexMap *map) {
    int32_t operand_rank = rule_rank(builder, 0), indices_rank = rule_rank(builder, indices);
    int32_t slice_rank = rule_rank(builder, slices), window = 0, slice = 0;
    if (!rule_expect(builder, operand_rank <= IR_MAX_RANK && indices_rank <= IR_MAX_RANK)) return false;
    for (int32_t d = 0; d < operand_rank; d++) {
        map->slice_of_operand[d] = -1;
        if (int_list_contains(gather->collapsed_dimensions, gather->collapsed_count, d) ||
            int_list_contains(gather->operand_batching, gather->batching_count, d))
            continue;
        if (!rule_expect(builder, window < gather->offset_count)) return false;
        map->slice_of_operand[d] = (int32_t)gather->offset_dimensions[window++];
    }
    for (int32_t d = 0; d < indices_rank; d++) {
        map->slice_of_indices[d] = -1;
        if (d == gather->index_vector_dimension) continue;
        while (int_list_contains(gather->offset_dimensions, gather->offset_count, slice)) slice++;
        if (!rule_expect(builder, slice < slice_rank)) return false;
        map->slice_of_indices[d] = slice++;
    }
    return true;
}

static bool is_indices_batching(const IrGather *gather, int64_t dimension) {
    return int_list_contains(gather->indices_batching, gather->batching_count, dimension);
}

void rule_gather(RuleBuilder *builder) {
    const IrGather *gather = builder->instruction->attributes->gather;
    int32_t result = rule_result(builder);
    IndexMap map;
    if (!rule_expect(builder, builder->operand_count == 2 && builder->result_count == 1 && gather &&
                                  gather->slice_sizes) ||
        !map_dimensions(builder, gather, 1, result, &map))
        return;
    for (int32_t k = 0; k < gather->batching_count; k++) {
        int64_t indices = gather->indices_batching[k];
        rule_size(builder, 1, indices);
        if (builder->malformed) return;
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, 0, gather->operand_batching[k]);
        rule_put(builder, 1, indices);
        rule_put(builder, result, map.slice_of_indices[indices]);
    }
    for (int32_t d = 0; d < rule_rank(builder, 1); d++) {
        if (map.slice_of_indices[d] < 0 || is_indices_batching(gather, d)) continue;
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, 1, d);
        rule_put(builder, result, map.slice_of_indices[d]);
    }
    bool is_pred = builder->shapes[0]->type == DTYPE_PRED;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        if (map.slice_of_operand[d] >= 0 && gather->slice_sizes[d] == rule_size(builder, 0, d)) {
            rule_factor(builder, FACTOR_PARALLEL);
            rule_put(builder, 0, d);
            rule_put(builder, result, map.slice_of_operand[d]);
        } else if (int_list_contains(gather->start_index_map, gather->index_map_count, d)) {
            rule_reduction(builder, is_pred ? SBP_OR : SBP_ADD, true);
            rule_put(builder, 0, d);
        }
    }
}

/* Puts a dimension of every operand and of its result into the latest factor. */
static void put_operands(RuleBuilder *builder, int32_t count, int64_t dimension) {
    for (int32_t k = 0; k < count; k++) {
        rule_put(builder, k, dimension);
        rule_put(builder, rule_result(builder) + k, dimension);
    }
}

static void put_updates(RuleBuilder *builder, int32_t count, int64_t dimension) {
    for (int32_t k = 0; k < count; k++) rule_put(builder, count + 1 + k, dimension);
}

/* Adds the factors of operands, indices, updates -> results; as many operands and results as updates. */
void rule_scatter(RuleBuilder *builder) {
    const IrInstruction *instruction = builder->instruction;
    const IrGather *scatter = instruction->attributes->gather;
    int32_t count = builder->operand_count / 2, indices = count, updates = count + 1;
    IndexMap map;
    if (!rule_expect(builder, count > 0 && builder->operand_count == 2 * count + 1 &&
                                  builder->result_count == count && scatter &&
                                  instruction->called_count == 1) ||
        !map_dimensions(builder, scatter, indices, updates, &map))
        return;
    for (int32_t k = 0; k < scatter->batching_count; k++) {
        int64_t batching = scatter->indices_batching[k];
        rule_size(builder, indices, batching);
        if (builder->malformed) return;
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, indices, batching);
        put_operands(builder, count, scatter->operand_batching[k]);
        put_updates(builder, count, map.slice_of_indices[batching]);
    }
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        int32_t window = map.slice_of_operand[d];
        bool full = window >= 0 && rule_size(builder, updates, window) == rule_size(builder, 0, d);
        bool indexed = !full && int_list_contains(scatter->start_index_map, scatter->index_map_count, d);
        if (!full && !indexed) continue;
        rule_factor(builder, FACTOR_PARALLEL);
        if (!builder->malformed) builder->factors[builder->count - 1].indexed = indexed;
        put_operands(builder, count, d);
        if (full) put_updates(builder, count, window);
    }
    SbpReduction reduction =
        sbp_reduction_of(ir_computation_operator(builder->module, instruction->called[0]));
    if (count > 1 || reduction == SBP_REDUCTION_COUNT ||
        !rule_may_repeat(builder->module, instruction->operands[0], reduction))
        return;
    for (int32_t d = 0; d < rule_rank(builder, indices); d++) {
        if (map.slice_of_indices[d] < 0 || is_indices_batching(scatter, d)) continue;
        rule_reduction(builder, reduction, false);
        rule_put(builder, indices, d);
        rule_put(builder, updates, map.slice_of_indices[d]);
    }
}
