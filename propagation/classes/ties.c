/* Repeated layers: classes with isomorphic neighbourhoods are tied, so that one decision serves all
 * layers.
 *
 * Colour refinement: an instruction's colour is a hash of its operator, shape and dimension
 * attributes; one round adds the colours of its operands, in order, and of its users, as a
 * multiset. More rounds would extend from the first and last layer into their surroundings and
 * distinguish those. A class's signature is the multiset of (colour, dimension) of its tensors and
 * of (colour, factor) of its operators. Equal signatures are tied.
 */
#include "propagation/classes/ties.h"

#include <stdlib.h>

#include "base/hash.h"

typedef struct Signature {
    uint64_t hash;
    int32_t class_index;
} Signature;

static uint64_t add_values(uint64_t hash, const int64_t *values, int32_t count) {
    hash = hash_combine(hash, (uint64_t)count);
    for (int32_t k = 0; k < count; k++) hash = hash_combine(hash, (uint64_t)values[k]);
    return hash;
}

static uint64_t local_colour(const IrInstruction *instruction) {
    const IrShape *shape = &instruction->shape;
    const IrAttributes *attributes = instruction->attributes;
    uint64_t hash = hash_combine((uint64_t)instruction->opcode, (uint64_t)shape->type);
    if (shape->type != DTYPE_TUPLE) hash = add_values(hash, shape->dimensions, shape->rank);
    hash = add_values(hash, attributes->dimensions, attributes->dimension_count);
    if (attributes->dot) {
        const IrDot *dot = attributes->dot;
        hash = add_values(hash, dot->lhs_batch, dot->batch_count);
        hash = add_values(hash, dot->rhs_batch, dot->batch_count);
        hash = add_values(hash, dot->lhs_contracting, dot->contracting_count);
        hash = add_values(hash, dot->rhs_contracting, dot->contracting_count);
    }
    return hash;
}

/* Colours after one round of refinement; operands and users through tuples. */
static void refine(uint64_t *colours, const uint64_t *local, uint64_t *users, const Rules *rules) {
    for (int32_t i = 0; i < rules->count; i++) {
        const IrInstruction *instruction = &rules->module->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++)
            users[rules->alias[instruction->operands[k]]] += hash_combine(local[i], 1);
    }
    for (int32_t i = 0; i < rules->count; i++) {
        const IrInstruction *instruction = &rules->module->instructions[i];
        uint64_t hash = hash_combine(local[i], users[i]);
        for (int32_t k = 0; k < instruction->operand_count; k++)
            hash = hash_combine(hash, local[rules->alias[instruction->operands[k]]]);
        colours[i] = hash;
    }
}

static void add_members(Signature *signatures, const Classes *classes, const Rules *rules,
                        const uint64_t *colours) {
    for (int32_t i = 0; i < rules->count; i++) {
        if (rules->on_demand[i] || rules->alias[i] != i) continue;
        for (int32_t node = classes->first_node[i]; node < classes->first_node[i + 1]; node++) {
            int32_t class_index = classes->class_of[node];
            if (class_index < 0) continue;
            signatures[class_index].hash +=
                hash_combine(colours[i], (uint64_t)(node - classes->first_node[i]));
        }
        for (int32_t f = 0; f < rules->rules[i].factor_count; f++) {
            int32_t class_index = classes_of_factor(classes, i, f);
            if (class_index >= 0)
                signatures[class_index].hash += hash_combine(colours[i], ((uint64_t)f << 8) + IR_MAX_RANK);
        }
    }
}

static int compare_signatures(const void *left, const void *right) {
    const Signature *a = left, *b = right;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    return a->class_index - b->class_index;
}

/* Numbers ties in the order of their first class. */
static void number_ties(Classes *classes, Signature *signatures) {
    qsort(signatures, (size_t)classes->count, sizeof *signatures, compare_signatures);
    for (int32_t k = 0; k < classes->count; k++) {
        bool repeats = k > 0 && signatures[k].hash == signatures[k - 1].hash;
        int32_t first =
            repeats ? classes->classes[signatures[k - 1].class_index].tie : signatures[k].class_index;
        classes->classes[signatures[k].class_index].tie = first; /* the first class, for now */
    }
    classes->tie_count = 0;
    for (int32_t c = 0; c < classes->count; c++) {
        DimensionClass *entry = &classes->classes[c];
        entry->tie = entry->tie == c ? classes->tie_count++ : classes->classes[entry->tie].tie;
    }
}

AmStatus ties_find(Classes *classes, const Rules *rules, AmError *error) {
    Arena scratch = {0};
    uint64_t *local = ARENA_ARRAY(&scratch, uint64_t, rules->count);
    uint64_t *users = ARENA_ARRAY(&scratch, uint64_t, rules->count);
    uint64_t *colours = ARENA_ARRAY(&scratch, uint64_t, rules->count);
    Signature *signatures = ARENA_ARRAY(&scratch, Signature, classes->count);
    AmStatus status = AM_OK;
    if (scratch.failed) {
        status = am_fail_memory(error, (int64_t)sizeof(uint64_t) * rules->count * 3);
    } else {
        for (int32_t i = 0; i < rules->count; i++) local[i] = local_colour(&rules->module->instructions[i]);
        for (int32_t c = 0; c < classes->count; c++) signatures[c].class_index = c;
        refine(colours, local, users, rules);
        add_members(signatures, classes, rules, colours);
        number_ties(classes, signatures);
    }
    arena_free(&scratch);
    return status;
}
