/* Rule of a fusion that contains products: composed from the rules of the instructions inside.
 *
 * Dimensions of values inside that some inner factor ties are one class. A class is a factor of the fusion
 * if every inner instruction may split it. Every result is split, does not depend on it, or is a sum of
 * parts:
 *
 *     attention backward: rows are split in q, dq and the statistics; dk and dv are partial sums
 *
 * A sum of parts may not be used inside, and parts of 16-bit sums would round, so that both block
 * the class. Fusions without products, which only optimized modules have, stay blocked.
 */
#include <string.h>

#include "base/union_find.h"
#include "propagation/rules/rules_builder.h"

typedef enum Spread { SPREAD_REPLICATED, SPREAD_SPLIT, SPREAD_PARTIAL, SPREAD_BLOCKED } Spread;

typedef struct Inside {
    RuleBuilder *builder;
    const IrModule *module;
    const IrComputation *body;
    FactorRule *rules; /* [instruction of the body] */
    int32_t *class;    /* [instruction of the body * IR_MAX_RANK + dimension]: union-find */
    bool *is_blocked;  /* likewise, of a class's representative */
    Spread *spread;    /* [instruction of the body]: for the class that is examined */
} Inside;

/* Returns the instruction of the body in a slot of instruction i's rule. */
static int32_t slot_instruction(const Inside *self, int32_t i, int32_t slot) {
    const IrInstruction *instruction = &self->module->instructions[self->body->first + i];
    return slot < instruction->operand_count ? instruction->operands[slot] - self->body->first : i;
}

static bool is_supported(const IrInstruction *instruction) {
    if (instruction->shape.type == DTYPE_TUPLE || instruction->shape.rank > IR_MAX_RANK) return false;
    if (ir_is_elementwise(instruction->opcode) || ir_is_matrix_product(instruction->opcode)) return true;
    switch (instruction->opcode) {
    case IR_CONSTANT: return instruction->shape.rank == 0 || ir_shape_elements(&instruction->shape) == 1;
    case IR_PARAMETER:
    case IR_BROADCAST:
    case IR_TRANSPOSE:
    case IR_RESHAPE:
    case IR_COPY:
    case IR_REDUCE: return true;
    default: return false;
    }
}

/* Joins the dimensions that instruction i ties, and blocks those that it does not let be split. */
static void tie(Inside *self, int32_t i) {
    const FactorRule *rule = &self->rules[i];
    for (int32_t f = 0; f < rule->factor_count; f++) {
        const Factor *factor = &rule->factors[f];
        bool splits = !factor->blocks && !factor->halo && !factor->indexed;
        splits &= factor->kind == FACTOR_PARALLEL || factor->kind == FACTOR_REDUCTION;
        int32_t first = -1;
        for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
            if (factor->dimension[slot] < 0) continue;
            int32_t value = slot_instruction(self, i, slot), d = factor->dimension[slot];
            const IrShape *shape = &self->module->instructions[self->body->first + value].shape;
            int32_t place = union_find_root(self->class, value * IR_MAX_RANK + d);
            if (!splits || shape->dimensions[d] != factor->size) self->is_blocked[place] = true;
            if (factor->kind == FACTOR_BLOCKED) continue;
            if (first < 0) first = place;
            first = union_find_root(self->class, first);
            self->is_blocked[place] |= self->is_blocked[first];
            self->class[first] = place;
            first = place;
        }
    }
}

enum { NO_DIMENSION = -1, SEVERAL_DIMENSIONS = -2 };

/* Returns the dimension of a value that is in a class, NO_DIMENSION or SEVERAL_DIMENSIONS. */
static int32_t dimension_in(Inside *self, int32_t value, int32_t class) {
    int32_t found = NO_DIMENSION;
    const IrShape *shape = &self->module->instructions[self->body->first + value].shape;
    for (int32_t d = 0; d < shape->rank; d++)
        if (shape->dimensions[d] > 1 && union_find_root(self->class, value * IR_MAX_RANK + d) == class)
            found = found == NO_DIMENSION ? d : SEVERAL_DIMENSIONS;
    return found;
}

/* Returns how value i lies when a class is split, its operands being known. */
static Spread spread_of(Inside *self, int32_t i, int32_t class) {
    const IrInstruction *instruction = &self->module->instructions[self->body->first + i];
    int32_t dimension = dimension_in(self, i, class);
    bool is_split = false;
    if (dimension == SEVERAL_DIMENSIONS) return SPREAD_BLOCKED;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        Spread operand = self->spread[instruction->operands[k] - self->body->first];
        if (operand == SPREAD_PARTIAL || operand == SPREAD_BLOCKED) return SPREAD_BLOCKED;
        is_split |= operand == SPREAD_SPLIT;
    }
    if (dimension >= 0) return SPREAD_SPLIT;
    if (!is_split) return SPREAD_REPLICATED;
    Dtype type = instruction->shape.type;
    for (int32_t f = 0; f < self->rules[i].factor_count; f++) {
        const Factor *factor = &self->rules[i].factors[f];
        if (factor->kind != FACTOR_REDUCTION || factor->reduction != SBP_ADD) continue;
        int32_t operand = slot_instruction(self, i, 0), d = factor->dimension[0];
        if (d < 0 || union_find_root(self->class, operand * IR_MAX_RANK + d) != class) continue;
        return dtype_is_floating(type) && dtype_bits(type) >= 32 ? SPREAD_PARTIAL : SPREAD_BLOCKED;
    }
    return SPREAD_BLOCKED;
}

/* Adds the class as a factor of the fusion if all results allow it. */
static void add_class(Inside *self, int32_t class, int8_t *inner) {
    RuleBuilder *builder = self->builder;
    const IrModule *module = self->module;
    const IrInstruction *root = &module->instructions[self->body->root];
    int64_t size =
        module->instructions[self->body->first + class / IR_MAX_RANK].shape.dimensions[class % IR_MAX_RANK];
    bool is_summed = false, is_visible = false;
    if (self->is_blocked[class] || size <= 1 || builder->count >= INT8_MAX) return;
    for (int32_t i = 0; i < self->body->count; i++) {
        if (self->body->first + i == self->body->root && root->opcode == IR_TUPLE) continue;
        self->spread[i] = spread_of(self, i, class);
        if (self->spread[i] == SPREAD_BLOCKED) return;
    }
    for (int32_t r = 0; r < builder->result_count; r++) {
        int32_t result =
            (root->opcode == IR_TUPLE ? root->operands[r] : self->body->root) - self->body->first;
        is_summed |= self->spread[result] == SPREAD_PARTIAL;
        is_visible |= self->spread[result] != SPREAD_REPLICATED;
    }
    if (!is_visible) return;
    if (is_summed) rule_reduction(builder, SBP_ADD, false);
    else rule_factor(builder, FACTOR_PARALLEL);
    for (int32_t k = 0; k < builder->operand_count; k++) {
        int32_t d = dimension_in(self, self->body->parameters[k] - self->body->first, class);
        if (d >= 0) rule_put(builder, k, d);
    }
    for (int32_t r = 0; r < builder->result_count; r++) {
        int32_t result =
            (root->opcode == IR_TUPLE ? root->operands[r] : self->body->root) - self->body->first;
        int32_t d = dimension_in(self, result, class);
        if (d >= 0) rule_put(builder, rule_result(builder) + r, d);
    }
    for (int32_t place = 0; place < self->body->count * IR_MAX_RANK; place++)
        if (union_find_root(self->class, place) == class) inner[place] = (int8_t)(builder->count - 1);
}

void rule_fusion(RuleBuilder *builder) {
    const IrModule *module = builder->module;
    const IrInstruction *fusion = builder->instruction;
    const IrComputation *body = fusion->called_count == 1 ? &module->computations[fusion->called[0]] : NULL;
    bool has_product = false, is_plain = body && body->parameter_count == builder->operand_count;
    for (int32_t i = body ? body->first : 0; body && i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        has_product |= ir_is_matrix_product(instruction->opcode);
        is_plain &= is_supported(instruction) || (i == body->root && instruction->opcode == IR_TUPLE);
    }
    builder->unknown = !is_plain || !has_product;
    if (builder->unknown) return;
    const IrInstruction *root = &module->instructions[body->root];
    int32_t places = body->count * IR_MAX_RANK;
    Inside self = {.builder = builder,
                   .module = module,
                   .body = body,
                   .rules = ARENA_ARRAY(builder->arena, FactorRule, body->count),
                   .class = ARENA_ARRAY(builder->arena, int32_t, places),
                   .is_blocked = ARENA_ARRAY(builder->arena, bool, places),
                   .spread = ARENA_ARRAY(builder->arena, Spread, body->count)};
    int8_t *inner = ARENA_ARRAY(builder->arena, int8_t, places);
    if (builder->arena->failed) return;
    memset(inner, -1, (size_t)places);
    for (int32_t place = 0; place < places; place++) self.class[place] = place;
    for (int32_t i = 0; i < body->count; i++) {
        const IrInstruction *instruction = &module->instructions[body->first + i];
        if (instruction->opcode == IR_PARAMETER || instruction->opcode == IR_TUPLE) continue;
        rule_of_instruction(&self.rules[i], builder->arena, module, body->first + i);
        if (!builder->arena->failed) tie(&self, i);
    }
    if (builder->arena->failed) return;
    /* Classes in the order of the operands' dimensions, then of the results'. */
    for (int32_t slot = 0; slot < builder->operand_count + builder->result_count; slot++) {
        int32_t r = slot - builder->operand_count;
        int32_t value = (r < 0                      ? body->parameters[slot]
                         : root->opcode == IR_TUPLE ? root->operands[r]
                                                    : body->root) -
                        body->first;
        for (int32_t d = 0; d < rule_rank(builder, slot); d++) {
            int32_t class = union_find_root(self.class, value * IR_MAX_RANK + d);
            if (inner[class] < 0 && builder->shapes[slot]->dimensions[d] > 1) add_class(&self, class, inner);
        }
    }
    builder->inner = inner;
}
