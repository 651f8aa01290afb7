/* Factor rules of a module: the rule class of every opcode, and the values that are made on demand.
 *
 * One scalar broadcast, constant or iota has unrelated users of the same shape (JAX shares the
 * zeros of relu among all layers). Such values cost nothing in any state. A value without a
 * parameter among its ancestors is free. A broadcast is on demand, and resolves to its operand.
 * Chains of broadcasts and of barriers are followed for a bounded number of steps, so that no
 * module takes disproportionate time.
 */
#include "propagation/rules/rules.h"

#include "propagation/rules/rules_builder.h"
#include "propagation/rules/rules_values.h"
#include "propagation/rules/rules_warnings.h"
#include "propagation/rules/share.h"

/* A broadcast at the end of a longer chain of broadcasts is a stored value. */
#define BROADCAST_CHAIN 32

typedef enum RuleClass {
    RULE_ELEMENTWISE,
    RULE_BROADCAST,
    RULE_RESHAPE,
    RULE_TRANSPOSE,
    RULE_DOT,
    RULE_CONVOLUTION,
    RULE_REDUCE,
    RULE_WINDOW,
    RULE_GATHER,
    RULE_SCATTER,
    RULE_SLICE,
    RULE_DYNAMIC_SLICE,
    RULE_DYNAMIC_UPDATE_SLICE,
    RULE_PAD,
    RULE_CONCATENATE,
    RULE_REVERSE,
    RULE_MAP,
    RULE_RAGGED_DOT,
    RULE_SORT,
    RULE_TOPK,
    RULE_FFT,
    RULE_CHOLESKY,
    RULE_TRIANGULAR_SOLVE,
    RULE_CUSTOM_CALL,
    RULE_BATCH_NORM,
    RULE_RANDOM_BITS,
    RULE_RANDOM,
    RULE_DIMENSION_SIZE,
    RULE_HAND_ON,
    RULE_FUSION,
    RULE_FREE,
    RULE_PARAMETER,
    RULE_TUPLE,
    RULE_BLOCKED,
    RULE_CLASS_COUNT
} RuleClass;

static const RuleClass class_of_opcode[IR_OPCODE_COUNT + 1] = {
#define OPCODE(name, text, arity, rule, ...) [IR_##name] = RULE_##rule,
#include "ir/opcodes.def"
#undef OPCODE
    [IR_UNKNOWN] = RULE_BLOCKED,
};

/* NULL: no factor may be split. */
static void (*const class_function[RULE_CLASS_COUNT])(RuleBuilder *) = {
    [RULE_ELEMENTWISE] = rule_elementwise,
    [RULE_BROADCAST] = rule_broadcast,
    [RULE_RESHAPE] = rule_reshape,
    [RULE_TRANSPOSE] = rule_transpose,
    [RULE_DOT] = rule_dot,
    [RULE_CONVOLUTION] = rule_convolution,
    [RULE_REDUCE] = rule_reduce,
    [RULE_WINDOW] = rule_window,
    [RULE_GATHER] = rule_gather,
    [RULE_SCATTER] = rule_scatter,
    [RULE_SLICE] = rule_slice,
    [RULE_DYNAMIC_SLICE] = rule_dynamic_slice,
    [RULE_DYNAMIC_UPDATE_SLICE] = rule_dynamic_update_slice,
    [RULE_PAD] = rule_pad,
    [RULE_CONCATENATE] = rule_concatenate,
    [RULE_REVERSE] = rule_reverse,
    [RULE_MAP] = rule_elementwise,
    [RULE_RAGGED_DOT] = rule_ragged_dot,
    [RULE_SORT] = rule_sort,
    [RULE_TOPK] = rule_topk,
    [RULE_FFT] = rule_fft,
    [RULE_CHOLESKY] = rule_cholesky,
    [RULE_TRIANGULAR_SOLVE] = rule_triangular_solve,
    [RULE_CUSTOM_CALL] = rule_custom_call,
    [RULE_BATCH_NORM] = rule_batch_norm,
    [RULE_RANDOM_BITS] = rule_random_bits,
    [RULE_RANDOM] = rule_each_dimension,
    [RULE_DIMENSION_SIZE] = rule_dimension_size,
    [RULE_HAND_ON] = rule_hand_on,
    [RULE_FUSION] = rule_fusion,
    [RULE_FREE] = rule_each_dimension,
    [RULE_PARAMETER] = rule_each_dimension,
};

/* Values that are not recomputed for every use, even if they depend on constants alone: they are
 * expensive, draw random numbers, or consist of several arrays. */
static const bool is_made_once[RULE_CLASS_COUNT] = {
    [RULE_PARAMETER] = true,  [RULE_BLOCKED] = true,     [RULE_SORT] = true,
    [RULE_TOPK] = true,       [RULE_FFT] = true,         [RULE_CHOLESKY] = true,
    [RULE_RANDOM] = true,     [RULE_RANDOM_BITS] = true, [RULE_TRIANGULAR_SOLVE] = true,
    [RULE_RAGGED_DOT] = true, [RULE_BATCH_NORM] = true,  [RULE_CUSTOM_CALL] = true,
    [RULE_FUSION] = true,
};

const IrShape *rules_slot_shape(const Rules *rules, int32_t i, int32_t slot) {
    const IrInstruction *instruction = &rules->module->instructions[i];
    int32_t operands = rules->rules[i].operand_count;
    return slot < operands ? &rules->module->instructions[instruction->operands[slot]].shape
                           : rules_leaf(&instruction->shape, slot - operands);
}

/* Returns whether few broadcasts lie between this one and a stored value. */
static bool is_short_chain(const Rules *rules, int32_t instruction) {
    for (int32_t steps = 0; steps < BROADCAST_CHAIN; steps++) {
        instruction = rules->alias[rules->module->instructions[instruction].operands[0]];
        if (!rules->on_demand[instruction] || rules->is_free[instruction]) return true;
    }
    return false;
}

/* Finds values made on demand: from constants alone, by operators that give the same on every device. */
static void find_on_demand(Rules *rules, int32_t instruction) {
    int32_t from = rules->alias[instruction];
    if (from != instruction) {
        rules->is_free[instruction] = rules->is_free[from];
        rules->on_demand[instruction] = rules->on_demand[from];
        return;
    }
    const IrInstruction *value = &rules->module->instructions[instruction];
    RuleClass rule = class_of_opcode[value->opcode];
    bool is_free = !is_made_once[rule];
    for (int32_t k = 0; k < value->operand_count; k++)
        is_free &= rules->is_free[rules->alias[value->operands[k]]];
    rules->is_free[instruction] = is_free;
    rules->on_demand[instruction] =
        is_free || (value->opcode == IR_BROADCAST && is_short_chain(rules, instruction));
}

bool rules_resolve(const Rules *rules, int32_t *instruction, int32_t *leaf, int32_t *dimension) {
    for (;;) {
        int32_t from = rules->alias[*instruction];
        if (from != *instruction) {
            *leaf = rules->leaf[*instruction];
            *instruction = from;
        }
        if (!rules->on_demand[from]) return true;
        if (rules->is_free[from]) return false;
        const FactorRule *rule = &rules->rules[from];
        int32_t source = -1;
        for (int32_t f = 0; f < rule->factor_count; f++) {
            if (rule->factors[f].dimension[1] == *dimension) source = rule->factors[f].dimension[0];
        }
        if (source < 0) return false;
        *instruction = rules->module->instructions[from].operands[0];
        *leaf = 0;
        *dimension = source;
    }
}

/* Returns whether an instruction makes no array of its own: tuples, what hands values on,
 * and loops, whose arrays belong to who reads them. */
static bool forwards_values(const Rules *rules, int32_t index, RuleClass rule) {
    const IrInstruction *instruction = &rules->module->instructions[index];
    bool is_region_tuple = index >= rules->entry_count && instruction->opcode == IR_PARAMETER &&
                           instruction->shape.type == DTYPE_TUPLE;
    if (rule == RULE_TUPLE) return instruction->shape.type == DTYPE_TUPLE || rules->alias[index] != index;
    bool gives_tuple = rules_conditional(rules, index) && instruction->shape.type == DTYPE_TUPLE;
    return is_region_tuple || gives_tuple || rules_loop(rules, index);
}

void rule_of_instruction(FactorRule *rule, Arena *arena, const IrModule *module, int32_t index) {
    const IrInstruction *instruction = &module->instructions[index];
    const IrShape **shapes = ARENA_ARRAY(arena, const IrShape *, instruction->operand_count + 1);
    RuleBuilder builder = {.arena = arena,
                           .module = module,
                           .instruction = instruction,
                           .shapes = shapes,
                           .operand_count = instruction->operand_count,
                           .result_count = 1};
    if (!shapes) return;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        shapes[k] = &module->instructions[instruction->operands[k]].shape;
    shapes[instruction->operand_count] = &instruction->shape;
    void (*function)(RuleBuilder *) = class_function[class_of_opcode[instruction->opcode]];
    if (function) function(&builder);
    rule_finish(&builder, rule);
}

IrShape *rules_shapes_inside(Arena *arena, const Rules *rules, int32_t fusion, const IrShape *const *slots) {
    const IrModule *module = rules->module;
    const FactorRule *rule = &rules->rules[fusion];
    const IrComputation *body = &module->computations[module->instructions[fusion].called[0]];
    IrShape *shapes = ARENA_ARRAY(arena, IrShape, body->count + 1);
    int64_t *sizes = ARENA_ARRAY(arena, int64_t, rule->factor_count + 1);
    if (!shapes || !sizes) return NULL;
    for (int32_t f = 0; f < rule->factor_count; f++)
        for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++)
            if (rule->factors[f].dimension[slot] >= 0)
                sizes[f] = slots[slot]->dimensions[rule->factors[f].dimension[slot]];
    for (int32_t i = 0; i < body->count; i++) {
        const IrShape *global = &module->instructions[body->first + i].shape;
        shapes[i] = *global;
        if (global->type == DTYPE_TUPLE || global->rank == 0) continue;
        int64_t *dimensions = ARENA_ARRAY(arena, int64_t, global->rank);
        if (!dimensions) return NULL;
        for (int32_t d = 0; d < global->rank; d++) {
            int8_t factor = rule->inner[i * IR_MAX_RANK + d];
            dimensions[d] = factor < 0 || global->dimensions[d] == 1 ? global->dimensions[d] : sizes[factor];
        }
        shapes[i].dimensions = dimensions;
    }
    return shapes;
}

static AmStatus build_rule(Rules *rules, Arena *arena, IrModule *module, int32_t index,
                           const IrShape **shapes, bool *is_blocked, AmError *error) {
    const IrInstruction *instruction = &module->instructions[index];
    RuleClass rule = class_of_opcode[instruction->opcode];
    if (forwards_values(rules, index, rule)) return AM_OK;
    bool is_reader = rule == RULE_TUPLE; /* stands for an array of a loop, as a parameter does */
    if (is_reader || rules_conditional(rules, index)) rule = RULE_PARAMETER;
    RuleBuilder builder = {.arena = arena,
                           .module = module,
                           .instruction = instruction,
                           .shapes = shapes,
                           .operand_count = is_reader ? 0 : instruction->operand_count,
                           .result_count = rules_leaf_count(&instruction->shape)};
    for (int32_t k = 0; k < builder.operand_count; k++)
        shapes[k] = &module->instructions[instruction->operands[k]].shape;
    for (int32_t k = 0; k < builder.result_count; k++)
        shapes[builder.operand_count + k] = rules_leaf(&instruction->shape, k);
    if (class_function[rule]) class_function[rule](&builder);
    rule_finish(&builder, &rules->rules[index]);
    /* Scalars have no factors, and nothing to split. */
    is_blocked[index] = (rule == RULE_BLOCKED || builder.unknown) && rules->rules[index].factor_count > 0;
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

/* Builds the rules. What they point to is in the scratch arena, until it is shared. */
static AmStatus build_all(Rules *built, Arena *arena, Arena *scratch, IrModule *canonical, AmError *error) {
    int32_t count = canonical->instruction_count;
    /* The most slots that any instruction has. */
    int32_t most = 1;
    for (int32_t i = 0; i < canonical->instruction_count; i++) {
        const IrInstruction *instruction = &canonical->instructions[i];
        int32_t slots = instruction->operand_count + rules_leaf_count(&instruction->shape);
        if (slots > most) most = slots;
    }
    const IrShape **shapes = ARENA_ARRAY(scratch, const IrShape *, most);
    bool *is_blocked = ARENA_ARRAY(scratch, bool, count);
    ValueResolver resolver;
    if (scratch->failed) return am_fail_memory(error, count);
    TRY(values_begin(&resolver, built, arena, error));
    /* The computations of a loop come after the loop, and must be known first. */
    for (int32_t c = canonical->computation_count - 1; c >= 0; c--) {
        const IrComputation *body = &canonical->computations[c];
        if (!built->is_planned[c]) continue;
        for (int32_t i = body->first; i < body->first + body->count; i++) {
            values_resolve(&resolver, c, i);
            find_on_demand(built, i);
            TRY(build_rule(built, scratch, canonical, i, shapes, is_blocked, error));
        }
        values_end_computation(&resolver, c);
    }
    rules_warn(canonical, is_blocked);
    return rules_share(built, canonical, arena, error);
}

AmStatus rules_build(Rules **rules, Arena *arena, IrModule *canonical, AmError *error) {
    int32_t count = canonical->instruction_count;
    Rules *built = ARENA_ARRAY(arena, Rules, 1);
    if (!built) return am_fail_memory(error, (int64_t)sizeof *built);
    *built = (Rules){.module = canonical,
                     .rules = ARENA_ARRAY(arena, FactorRule, count),
                     .alias = ARENA_ARRAY(arena, int32_t, count),
                     .leaf = ARENA_ARRAY(arena, int32_t, count),
                     .is_free = ARENA_ARRAY(arena, bool, count),
                     .on_demand = ARENA_ARRAY(arena, bool, count),
                     .count = count,
                     .entry_count = canonical->computations[canonical->entry].count};
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(FactorRule) * count);
    Arena scratch = {0};
    AmStatus status = build_all(built, arena, &scratch, canonical, error);
    arena_free(&scratch);
    *rules = built;
    return status;
}

/* Prints the name of factor f: a, b, ..., z, a1, b1, ... */
static void print_name(Text *text, int32_t factor) {
    text_append(text, "%c", 'a' + factor % 26);
    if (factor >= 26) text_append(text, "%d", factor / 26);
}

/* Returns the factor that stands for a dimension of a slot: one that is not in blocks of it, if there is
 * any. */
static int32_t factor_of_dimension(const FactorRule *rule, int32_t slot, int32_t dimension) {
    int32_t found = rule->factor_count;
    for (int32_t f = rule->factor_count - 1; f >= 0; f--) {
        if (rule->factors[f].dimension[slot] != dimension) continue;
        bool is_in_blocks = factor_blocks(&rule->factors[f], slot) > 1;
        if (!is_in_blocks || found == rule->factor_count) found = f;
    }
    return found;
}

static void print_slots(Text *text, const FactorRule *rule, int32_t first, int32_t count, bool is_list) {
    if (is_list) text_append_string(text, "(");
    for (int32_t k = 0; k < count; k++) {
        if (k) text_append_string(text, ",");
        int32_t slot = first + k, rank = 0;
        for (int32_t f = 0; f < rule->factor_count; f++) {
            if (rule->factors[f].dimension[slot] >= rank) rank = rule->factors[f].dimension[slot] + 1;
        }
        text_append_string(text, "[");
        for (int32_t d = 0; d < rank; d++) {
            int32_t factor = factor_of_dimension(rule, slot, d);
            if (d) text_append_string(text, ",");
            if (factor < rule->factor_count) print_name(text, factor);
            else text_append_string(text, "1");
        }
        text_append_string(text, "]");
    }
    if (is_list) text_append_string(text, ")");
}

/* Prints " b in 3 of a": factor b is in each of three blocks of the dimension that stands as a. */
static void print_blocks(Text *text, const FactorRule *rule, int32_t f) {
    const Factor *factor = &rule->factors[f];
    for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
        if (factor_blocks(factor, slot) == 1) continue;
        text_append_string(text, " ");
        print_name(text, f);
        text_append(text, " in %d of ", factor_blocks(factor, slot));
        print_name(text, factor_of_dimension(rule, slot, factor->dimension[slot]));
    }
}

void rule_print(Text *text, const FactorRule *rule) {
    static const char *const words[] = {[FACTOR_PARALLEL] = "indexed",
                                        [FACTOR_REDUCTION] = "reduce",
                                        [FACTOR_PERMUTATION] = "permute",
                                        [FACTOR_BLOCKED] = "whole"};
    print_slots(text, rule, 0, rule->operand_count, true);
    text_append_string(text, "->");
    print_slots(text, rule, rule->operand_count, rule->result_count, rule->result_count != 1);
    for (int32_t f = 0; f < rule->factor_count; f++) {
        const Factor *factor = &rule->factors[f];
        if (factor->blocks) print_blocks(text, rule, f);
        if (factor->kind == FACTOR_PARALLEL && !factor->indexed) continue;
        text_append(text, " %s ", words[factor->kind]);
        print_name(text, f);
        if (factor->kind != FACTOR_REDUCTION) continue;
        text_append(text, "(%s%s%s)", sbp_reduction_name(factor->reduction),
                    factor->indexed ? ", indexed" : "", factor->halo ? ", halo" : "");
    }
}
