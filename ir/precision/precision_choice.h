/* The type of every f32 value in mixed precision: f32 as before, or bf16.
 *
 * A value is an array, or a leaf of a tuple. Leaves that are one array, as those of a loop and of its body,
 * have one choice. An array that enters a tuple may be converted there.
 */
#ifndef IR_PRECISION_PRECISION_CHOICE_H
#define IR_PRECISION_PRECISION_CHOICE_H

#include "ir/analysis/roles.h"

typedef enum ValueKind {
    VALUE_MOVED,    /* elements of other values: a move, or a leaf of a tuple */
    VALUE_FIXED,    /* keeps its type */
    VALUE_PRODUCT,  /* bf16 */
    VALUE_COMPUTED, /* by an operator with FACT_16BIT_SAFE */
    VALUE_GATHERED, /* rows of a table */
    VALUE_WIDENED,  /* of the source's own bf16 value: it is that value */
    VALUE_CONSTANT  /* a constant or its broadcast, made in the types that are read */
} ValueKind;

typedef struct PrecisionChoice {
    const IrModule *module;
    const IrRoles *roles;
    Arena *arena;
    bool *is_rewritten;   /* [computation]: the entry, and bodies, conditions and branches */
    int32_t *first;       /* [instruction + 1]: its first value */
    int32_t value_count;  /* of the rewritten computations */
    int32_t *set;         /* [value]: union-find; the arrays below are by its roots */
    ValueKind *kinds;     /* [value] */
    bool *is_f32;         /* [value] */
    bool *is_bf16;        /* [value]: the choice */
    bool *is_bf16_reader; /* [instruction]: a comparison of bf16 values */
} PrecisionChoice;

/* Chooses the types. All arrays are in `arena`. */
AmStatus precision_choose(PrecisionChoice *choice, Arena *arena, const IrModule *canonical,
                          const IrRoles *roles, AmError *error);

/* Returns the number of arrays in a shape. */
int32_t precision_leaf_count(const IrShape *shape);
/* Returns the value of an array, or that of leaf `leaf` of a tuple. */
int32_t precision_value(const PrecisionChoice *choice, int32_t instruction, int32_t leaf);
/* Returns whether the instruction is a product of f32 that sums elements for several results and is not of
 * the optimizer. */
bool precision_is_product(const PrecisionChoice *choice, int32_t instruction);

static inline bool precision_is_f32(const IrShape *shape) {
    return shape->type == DTYPE_F32;
}

#endif
