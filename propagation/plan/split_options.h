/* What an assignment may split, in flat arrays.
 *
 * A search makes thousands of assignments for one module. Properties that depend only on the module
 * are computed once: the live instructions and their users, their bytes, and for each the
 * dimensions and factors that a plan may split. All arrays are by canonical instruction;
 * instructions outside the planned computations are not live.
 */
#ifndef PROPAGATION_PLAN_SPLIT_OPTIONS_H
#define PROPAGATION_PLAN_SPLIT_OPTIONS_H

#include "propagation/classes/classes.h"
#include "propagation/plan/storage_roles.h"
#include "propagation/rules/linearity.h"

/* A dimension of a stored tensor, or a factor of an operator, that can be split. */
typedef struct SplitOption {
    int64_t size; /* > 0 */
    int32_t class_index;
    uint32_t place : 7;   /* the dimension, or the factor; at most INT8_MAX */
    uint32_t blocks : 25; /* 1, or the class is in each of so many blocks of it */
} SplitOption;

#define SPLIT_OPTION_MOST_BLOCKS ((1 << 25) - 1)

/* An array that a loop starts at zero and only adds to, or likewise takes the
 * greatest of: it may stay partial until the loop is over, and is then reduced once
 * instead of every time. */
typedef struct Accumulation {
    int32_t reader, next, afterwards; /* LoopLeaf's in_body, next and afterwards */
    SbpReduction reduction;
} Accumulation;

typedef struct SplitOptions {
    int32_t count;
    int32_t decided_count;
    int32_t *decided;   /* [decided_count]: live and not made on demand; ascending, but the body and condition
                           of a loop come before the loop */
    bool *live;         /* reaches an output */
    int32_t *uses;      /* live uses as an operand or output */
    int32_t *user;      /* the last of them, -1 for an output */
    uint8_t *linearity; /* Linearity */
    bool *takes_tuple;  /* an operand is a tuple as a whole, not an element of one */
    double *bytes;      /* of the whole result */
    double *array_bytes;                     /* of its first leaf, to which states refer */
    int32_t *first_operand;                  /* [count + 1] ranges in operands */
    int32_t *operands;                       /* producing instructions, tuples seen through */
    int32_t *first_dimension, *first_factor; /* [count + 1] ranges in dimensions and in factors */
    SplitOption *dimensions, *factors;       /* none of values made on demand */
    Accumulation *accumulations;
    int32_t accumulation_count;
    int32_t *accumulation_of; /* the one that this adds to, or -1 */
    const StorageRoles *storage;
} SplitOptions;

/* Returns the number of instructions whose results instruction i takes. */
static inline int32_t split_options_operand_count(const SplitOptions *self, int32_t i) {
    return self->first_operand[i + 1] - self->first_operand[i];
}

/* Returns the instruction whose result is operand k of instruction i. */
static inline int32_t split_options_operand(const SplitOptions *self, int32_t i, int32_t k) {
    return self->operands[self->first_operand[i] + k];
}

/* Builds the options. Everything lives in the arena. AM_ERROR_INTERNAL without memory. */
AmStatus split_options_build(SplitOptions **split_options, Arena *arena, const Rules *rules,
                             const Classes *classes, const IrRoles *roles, AmError *error);

/* Returns the array to which an instruction's states refer: its result, or the first leaf of a tuple; an
 * empty tuple is returned itself. */
const IrShape *split_options_array_shape(const IrInstruction *instruction);

#endif
