/* Writes factors, and recognises the identity of a reduction.
 *
 * Blocked factors are not distinguished, so that dimensions that must be replicated have at most
 * one factor per dimension number: the size of a rule is bounded by the rank times the number of
 * slots, for every operator.
 */
#include "propagation/rules/rules_builder.h"

#include <math.h>
#include <string.h>

/* The number of steps, and the size of a constant, up to which an identity is searched. */
#define IDENTITY_STEPS 32
#define IDENTITY_BYTES 65536

static Factor *add_factor(RuleBuilder *builder, FactorKind kind) {
    if (!builder->factors) {
        builder->factors = builder->few;
        builder->capacity = RULE_FEW_FACTORS;
    }
    ARENA_RESERVE(builder->arena, builder->factors, builder->count, builder->capacity);
    int32_t slots = builder->operand_count + builder->result_count;
    int8_t *dimension = ARENA_ARRAY(builder->arena, int8_t, slots);
    if (!builder->factors || !dimension) {
        builder->malformed = true;
        return NULL;
    }
    memset(dimension, -1, (size_t)slots);
    builder->is_major = false;
    Factor *factor = &builder->factors[builder->count++];
    *factor = (Factor){.kind = kind, .dimension = dimension};
    return factor;
}

void rule_factor(RuleBuilder *builder, FactorKind kind) {
    add_factor(builder, kind);
}

void rule_major_factor(RuleBuilder *builder, int64_t size) {
    Factor *factor = add_factor(builder, FACTOR_PARALLEL);
    if (!factor) return;
    factor->size = size;
    builder->is_major = true;
}

void rule_halo(RuleBuilder *builder, FactorKind kind, FactorHalo halo, int64_t size) {
    Factor *factor = add_factor(builder, kind);
    if (!factor) return;
    factor->size = size;
    factor->halo = halo;
}

void rule_reduction(RuleBuilder *builder, SbpReduction reduction, bool indexed) {
    Factor *factor = add_factor(builder, FACTOR_REDUCTION);
    if (!factor) return;
    factor->reduction = reduction;
    factor->indexed = indexed;
}

int64_t rule_size(RuleBuilder *builder, int32_t slot, int64_t dimension) {
    if (dimension < 0 || dimension >= rule_rank(builder, slot)) {
        builder->malformed = true;
        return 0;
    }
    return builder->shapes[slot]->dimensions[dimension];
}

bool rule_expect(RuleBuilder *builder, bool condition) {
    if (!condition) builder->malformed = true;
    return condition;
}

void rule_put(RuleBuilder *builder, int32_t slot, int64_t dimension) {
    int64_t size = rule_size(builder, slot, dimension);
    if (builder->malformed) return;
    Factor *factor = &builder->factors[builder->count - 1];
    if (factor->size == 0) factor->size = size;
    bool fits = factor->halo || factor->kind == FACTOR_BLOCKED || size == factor->size ||
                (builder->is_major && size % factor->size == 0);
    if (!rule_expect(builder, fits && factor->dimension[slot] < 0)) return;
    ((int8_t *)factor->dimension)[slot] = (int8_t)dimension;
}

void rule_put_in_blocks(RuleBuilder *builder, int32_t slot, int64_t dimension, int64_t blocks) {
    int64_t size = rule_size(builder, slot, dimension);
    if (builder->malformed) return;
    Factor *factor = &builder->factors[builder->count - 1];
    int32_t slots = builder->operand_count + builder->result_count;
    if (!factor->blocks) {
        int32_t *made = ARENA_ARRAY(builder->arena, int32_t, slots);
        if (!rule_expect(builder, made)) return;
        for (int32_t k = 0; k < slots; k++) made[k] = 1;
        factor->blocks = made;
    }
    bool fits = blocks > 0 && blocks <= INT32_MAX && factor->size > 0 && size % blocks == 0 &&
                size / blocks % factor->size == 0;
    if (!rule_expect(builder, fits && factor->dimension[slot] < 0)) return;
    ((int32_t *)factor->blocks)[slot] = (int32_t)blocks;
    ((int8_t *)factor->dimension)[slot] = (int8_t)dimension;
}

/* Blocks all dimensions without a factor, which must be replicated. */
static void block_rest(RuleBuilder *builder) {
    int32_t slots = builder->operand_count + builder->result_count, rank = 0;
    for (int32_t slot = 0; slot < slots; slot++) {
        if (rule_rank(builder, slot) > rank) rank = rule_rank(builder, slot);
    }
    for (int32_t d = 0; d < rank; d++) {
        Factor *factor = NULL;
        for (int32_t slot = 0; slot < slots; slot++) {
            if (d >= rule_rank(builder, slot) || builder->shapes[slot]->dimensions[d] <= 1) continue;
            bool is_covered = false;
            for (int32_t f = 0; f < builder->count; f++)
                is_covered |= builder->factors[f].dimension[slot] == d;
            if (is_covered) continue;
            if (!factor) factor = add_factor(builder, FACTOR_BLOCKED);
            if (!factor) return;
            ((int8_t *)factor->dimension)[slot] = (int8_t)d;
            if (builder->shapes[slot]->dimensions[d] > factor->size)
                factor->size = builder->shapes[slot]->dimensions[d];
        }
    }
}

/* Returns the factors in the arena: `few` ends with the builder. Without memory the rule has none, and the
 * arena has failed. */
static const Factor *keep_factors(RuleBuilder *builder) {
    if (builder->factors != builder->few) return builder->factors;
    Factor *kept = ARENA_ARRAY(builder->arena, Factor, builder->count);
    if (kept) memcpy(kept, builder->few, sizeof *kept * (size_t)builder->count);
    else builder->count = 0;
    return kept;
}

void rule_finish(RuleBuilder *builder, FactorRule *rule) {
    if (builder->malformed) builder->count = 0;
    int32_t kept = 0;
    for (int32_t f = 0; f < builder->count; f++) {
        if (builder->factors[f].size > 1) builder->factors[kept++] = builder->factors[f];
    }
    builder->count = kept;
    block_rest(builder);
    const Factor *factors = keep_factors(builder);
    *rule = (FactorRule){.factor_count = builder->count,
                         .operand_count = builder->operand_count,
                         .result_count = builder->result_count,
                         .factors = factors,
                         .inner = builder->inner};
}

/* Returns whether a value of floating type is the identity. */
static bool floating_is_identity(double value, SbpReduction reduction) {
    switch (reduction) {
    case SBP_ADD: return value == 0;
    case SBP_MULTIPLY: return value == 1;
    case SBP_MAX: return value == -INFINITY;
    case SBP_MIN: return value == INFINITY;
    default: return false;
    }
}

/* Returns whether a value of `bits` bits is the identity, of an integer type or of pred as one unsigned
 * bit. */
static bool integer_is_identity(uint64_t value, int32_t bits, bool is_signed, SbpReduction reduction) {
    uint64_t all_ones = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    uint64_t sign = (uint64_t)1 << (bits - 1);
    value &= all_ones;
    switch (reduction) {
    case SBP_ADD:
    case SBP_OR: return value == 0;
    case SBP_MULTIPLY: return value == 1;
    case SBP_AND: return value == all_ones;
    case SBP_MAX: return value == (is_signed ? sign : 0);
    case SBP_MIN: return value == (is_signed ? all_ones ^ sign : all_ones);
    default: return false;
    }
}

static bool element_is_identity(const char *data, Dtype type, SbpReduction reduction) {
    uint16_t half;
    float single;
    double real;
    if (dtype_is_complex(type)) {
        Dtype part = dtype_real_part(type);
        return reduction == SBP_ADD && element_is_identity(data, part, reduction) &&
               element_is_identity(data + dtype_bytes(part), part, reduction);
    }
    switch (type) {
    case DTYPE_F32: memcpy(&single, data, sizeof single); return floating_is_identity(single, reduction);
    case DTYPE_F64: memcpy(&real, data, sizeof real); return floating_is_identity(real, reduction);
    case DTYPE_BF16:
        memcpy(&half, data, sizeof half);
        return floating_is_identity(dtype_bf16_to_float(half), reduction);
    case DTYPE_F16:
        memcpy(&half, data, sizeof half);
        return floating_is_identity(dtype_f16_to_float(half), reduction);
    case DTYPE_PRED: return integer_is_identity(data[0] != 0, 1, false, reduction);
    default: break;
    }
    if (!dtype_is_integer(type)) return false;
    uint64_t value = 0;
    memcpy(&value, data, (size_t)dtype_bytes(type)); /* little endian, as literals are */
    return integer_is_identity(value, dtype_bits(type), dtype_is_signed(type), reduction);
}

bool rule_is_identity(const IrModule *module, int32_t instruction, SbpReduction reduction) {
    const IrInstruction *value = &module->instructions[instruction];
    int32_t steps = 0;
    while (value->opcode == IR_BROADCAST || value->opcode == IR_RESHAPE || value->opcode == IR_COPY ||
           value->opcode == IR_CONVERT) {
        const IrInstruction *operand = &module->instructions[value->operands[0]];
        bool keeps_extremes = dtype_is_floating(value->shape.type) && dtype_is_floating(operand->shape.type);
        if (value->opcode == IR_CONVERT && !keeps_extremes && reduction != SBP_ADD &&
            reduction != SBP_MULTIPLY)
            return false;
        if (++steps > IDENTITY_STEPS) return false;
        value = operand;
    }
    const IrLiteral *literal = value->literal;
    int64_t width = dtype_bytes(value->shape.type);
    if (value->opcode != IR_CONSTANT || !literal || !literal->data || width <= 0 ||
        literal->bytes > IDENTITY_BYTES)
        return false;
    for (int64_t at = 0; at + width <= literal->bytes; at += width) {
        if (!element_is_identity((const char *)literal->data + at, value->shape.type, reduction))
            return false;
    }
    return literal->bytes >= width;
}

bool rule_may_repeat(const IrModule *module, int32_t instruction, SbpReduction reduction) {
    bool is_idempotent =
        reduction == SBP_MAX || reduction == SBP_MIN || reduction == SBP_AND || reduction == SBP_OR;
    bool is_complex = dtype_is_complex(module->instructions[instruction].shape.type);
    return (is_idempotent && !is_complex) || rule_is_identity(module, instruction, reduction);
}
