/* Rules of operators that compute element by element or only move elements: element-wise,
 * broadcast, reshape, transpose, slices, pad, concatenate, reverse.
 *
 * A reshape keeps the row-major order. Operand dimension i and result dimension j with equal
 * products of the dimensions before them share their major part. Splitting either n ways splits the
 * other n ways into the same elements iff n divides both. So the factor's size is their greatest
 * common divisor (b,t,h*e -> b,t,h,e gives h).
 *
 * A dimension inside a larger one of the other side is a factor in each of the blocks before it
 * (e in the h blocks of h*e). So is an aligned slice (q in the three of q, k, v). If elements move
 * along a dimension by a fixed map, it is a permutation. Dynamic slices, whose map is known at run
 * time, carry their positions.
 */
#include <stdlib.h>

#include "base/integers.h"
#include "propagation/rules/rules_builder.h"

/* Places that shift by less than this part of a dimension stay on their device, all but a few. */
enum { NEAR_PART = 8 };

void rule_elementwise(RuleBuilder *builder) {
    int32_t result = rule_result(builder), rank = rule_rank(builder, result);
    if (!rule_expect(builder, builder->result_count == 1)) return;
    if (builder->instruction->opcode == IR_BITCAST_CONVERT) {
        /* The narrower type has one more dimension, the innermost: the parts of one element. */
        int32_t from = rule_rank(builder, 0), to = rule_rank(builder, 1);
        for (int32_t d = 0; d < from && d < to; d++) {
            rule_factor(builder, FACTOR_PARALLEL);
            rule_put(builder, 0, d);
            rule_put(builder, 1, d);
        }
        return;
    }
    for (int32_t k = 0; k < builder->operand_count; k++) {
        int32_t operand_rank = rule_rank(builder, k);
        if (!rule_expect(builder, operand_rank == rank || operand_rank == 0)) return;
    }
    for (int32_t d = 0; d < rank; d++) {
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, result, d);
        for (int32_t k = 0; k < builder->operand_count; k++) {
            if (rule_rank(builder, k) == rank) rule_put(builder, k, d);
        }
    }
}

void rule_each_dimension(RuleBuilder *builder) {
    for (int32_t leaf = 0; leaf < builder->result_count; leaf++) {
        int32_t slot = builder->operand_count + leaf;
        for (int32_t d = 0; d < rule_rank(builder, slot); d++) {
            rule_factor(builder, FACTOR_PARALLEL);
            rule_put(builder, slot, d);
        }
    }
}

void rule_broadcast(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    int32_t result = rule_result(builder);
    if (!rule_expect(builder, builder->operand_count == 1 && builder->result_count == 1 &&
                                  attributes->dimension_count == rule_rank(builder, 0)))
        return;
    for (int32_t d = 0; d < rule_rank(builder, result); d++) {
        int32_t source = 0;
        while (source < attributes->dimension_count && attributes->dimensions[source] != d) source++;
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, result, d);
        /* An operand dimension of size 1 is repeated as a new one is. */
        if (source < attributes->dimension_count && rule_size(builder, 0, source) != 1)
            rule_put(builder, 0, source);
    }
}

/* Puts dimension d of slot `slot`, with `before` elements before it, within dimension `large` of the other
 * slot, which ends at `end`: a factor in the blocks of that. */
static void put_within(RuleBuilder *builder, int32_t slot, int32_t d, int64_t before, int32_t large,
                       int64_t end) {
    const IrShape *shape = builder->shapes[slot], *other = builder->shapes[1 - slot];
    while (large > 0 && other->dimensions[large] == 1) large--;
    int64_t large_before = end / other->dimensions[large];
    if (before % large_before != 0 || end % (before * shape->dimensions[d]) != 0) return;
    rule_factor(builder, FACTOR_PARALLEL);
    rule_put(builder, slot, d);
    rule_put_in_blocks(builder, 1 - slot, large, before / large_before);
}

void rule_reshape(RuleBuilder *builder) {
    if (!rule_expect(builder, builder->operand_count == 1 && builder->result_count == 1)) return;
    const IrShape *in = builder->shapes[0], *out = builder->shapes[1];
    bool is_bitcast = builder->instruction->opcode == IR_BITCAST;
    if (is_bitcast && (in->minor_to_major || out->minor_to_major || in->type != out->type)) {
        builder->malformed = true; /* may be a transpose in disguise */
        return;
    }
    if (ir_shape_elements(in) != ir_shape_elements(out) || ir_shape_elements(in) <= 0) return;
    int64_t in_before = 1, out_before = 1; /* both divide the number of elements: no overflow */
    int32_t i = 0, j = 0;
    while (i < in->rank || j < out->rank) {
        bool has_in = i < in->rank, has_out = j < out->rank;
        if (has_in && in->dimensions[i] == 1) i++;
        else if (has_out && out->dimensions[j] == 1) j++;
        else if (has_in && (!has_out || in_before < out_before)) {
            put_within(builder, 0, i, in_before, j - 1, out_before);
            in_before *= in->dimensions[i++];
        } else if (has_out && (!has_in || out_before < in_before)) {
            put_within(builder, 1, j, out_before, i - 1, in_before);
            out_before *= out->dimensions[j++];
        } else {
            int64_t size = common_divisor(in->dimensions[i], out->dimensions[j]);
            if (size > 1) {
                rule_major_factor(builder, size);
                rule_put(builder, 0, i);
                rule_put(builder, 1, j);
            }
            in_before *= in->dimensions[i++];
            out_before *= out->dimensions[j++];
        }
    }
}

void rule_transpose(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    int32_t result = rule_result(builder);
    if (!rule_expect(builder, builder->operand_count == 1 && builder->result_count == 1 &&
                                  attributes->dimension_count == rule_rank(builder, result)))
        return;
    for (int32_t d = 0; d < attributes->dimension_count; d++) {
        rule_factor(builder, FACTOR_PARALLEL);
        rule_put(builder, result, d);
        rule_put(builder, 0, attributes->dimensions[d]);
    }
}

/* Adds one factor that is dimension d of operand 0 and of the result. */
static void same_dimension(RuleBuilder *builder, FactorHalo halo, int32_t d) {
    if (halo == HALO_NONE) rule_factor(builder, FACTOR_PARALLEL);
    else rule_halo(builder, FACTOR_PERMUTATION, halo, rule_size(builder, rule_result(builder), d));
    rule_put(builder, 0, d);
    rule_put(builder, rule_result(builder), d);
}

/* Adds one of several equal blocks of dimension d, as a factor in each of them. */
static void put_block(RuleBuilder *builder, const IrAttributes *attributes, int32_t d) {
    int64_t start = attributes->slice_start[d], size = attributes->slice_limit[d] - start;
    bool is_dense = !attributes->slice_stride || attributes->slice_stride[d] == 1;
    int64_t whole = rule_size(builder, 0, d);
    if (!is_dense || size <= 1 || start % size != 0 || whole % size != 0) return;
    rule_factor(builder, FACTOR_PARALLEL);
    rule_put(builder, rule_result(builder), d);
    rule_put_in_blocks(builder, 0, d, whole / size);
}

/* Returns the halo of a slice or a pad of a dimension of `size` that leaves out or adds so many places at
 * its ends. */
static FactorHalo shift_halo(int64_t outside, int64_t size) {
    return outside <= size / NEAR_PART ? HALO_NEAR : HALO_FAR;
}

void rule_slice(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    if (!rule_expect(builder, builder->operand_count == 1 && builder->result_count == 1 &&
                                  attributes->slice_start && attributes->slice_limit))
        return;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        bool whole = attributes->slice_start[d] == 0 &&
                     attributes->slice_limit[d] == rule_size(builder, 0, d) &&
                     (!attributes->slice_stride || attributes->slice_stride[d] == 1);
        if (!whole) put_block(builder, attributes, d);
        int64_t outside = rule_size(builder, 0, d) - attributes->slice_limit[d] + attributes->slice_start[d];
        same_dimension(builder, whole ? HALO_NONE : shift_halo(outside, rule_size(builder, 0, d)), d);
    }
}

/* Splits the result. A dimension that is read completely starts at 0 for any start index. In another
 * dimension a shard returns its part of the slice, and zeros elsewhere. */
void rule_dynamic_slice(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    if (!rule_expect(builder,
                     builder->operand_count >= 1 && builder->result_count == 1 && attributes->slice_sizes))
        return;
    bool is_pred = builder->shapes[0]->type == DTYPE_PRED;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        if (attributes->slice_sizes[d] == rule_size(builder, 0, d)) {
            same_dimension(builder, HALO_NONE, d);
        } else {
            rule_reduction(builder, is_pred ? SBP_OR : SBP_ADD, true);
            rule_put(builder, 0, d);
        }
    }
}

/* Splits the array; each shard writes the part of the update that falls into it. */
void rule_dynamic_update_slice(RuleBuilder *builder) {
    if (!rule_expect(builder, builder->operand_count >= 2 && builder->result_count == 1)) return;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        bool whole = rule_size(builder, 1, d) == rule_size(builder, 0, d);
        same_dimension(builder, HALO_NONE, d);
        if (builder->malformed) return;
        if (whole) rule_put(builder, 1, d);
        else builder->factors[builder->count - 1].indexed = true;
    }
}

void rule_pad(RuleBuilder *builder) {
    const IrPadding *padding = builder->instruction->attributes->padding;
    if (!rule_expect(builder, builder->operand_count == 2 && builder->result_count == 1 && padding)) return;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        bool whole = padding[d].low == 0 && padding[d].high == 0 && padding[d].interior == 0;
        if (!rule_is_near(padding[d].low) || !rule_is_near(padding[d].high) ||
            !rule_is_near(padding[d].interior))
            continue;
        int64_t outside = llabs(padding[d].low) + llabs(padding[d].high);
        same_dimension(
            builder, whole ? HALO_NONE : shift_halo(outside, rule_size(builder, rule_result(builder), d)), d);
    }
}

/* Operands of one size are a factor in each of the blocks that they become. */
static void put_equal_blocks(RuleBuilder *builder, int32_t d) {
    if (builder->operand_count < 2) return;
    for (int32_t k = 0; k < builder->operand_count; k++)
        if (rule_size(builder, k, d) != rule_size(builder, 0, d)) return;
    rule_factor(builder, FACTOR_PARALLEL);
    for (int32_t k = 0; k < builder->operand_count; k++) rule_put(builder, k, d);
    rule_put_in_blocks(builder, rule_result(builder), d, builder->operand_count);
}

void rule_concatenate(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    int32_t result = rule_result(builder);
    if (!rule_expect(builder, builder->result_count == 1 && attributes->dimension_count == 1)) return;
    for (int32_t d = 0; d < rule_rank(builder, result); d++) {
        if (d == attributes->dimensions[0]) {
            put_equal_blocks(builder, d);
            rule_halo(builder, FACTOR_PERMUTATION, HALO_FAR, rule_size(builder, result, d));
        } else {
            rule_factor(builder, FACTOR_PARALLEL);
        }
        rule_put(builder, result, d);
        for (int32_t k = 0; k < builder->operand_count; k++) rule_put(builder, k, d);
    }
}

void rule_reverse(RuleBuilder *builder) {
    const IrAttributes *attributes = builder->instruction->attributes;
    if (!rule_expect(builder, builder->operand_count == 1 && builder->result_count == 1)) return;
    for (int32_t d = 0; d < rule_rank(builder, 0); d++) {
        bool whole = true;
        for (int32_t k = 0; k < attributes->dimension_count; k++) whole &= attributes->dimensions[k] != d;
        same_dimension(builder, whole ? HALO_NONE : HALO_FAR, d);
    }
}
