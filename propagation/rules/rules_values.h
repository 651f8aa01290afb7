/* Origins of array values: tuples, planned loops and conditionals (internal to this folder).
 *
 * A rule concerns arrays. These functions follow an element of a tuple to the instruction that makes the
 * array, through calls, loops and branches, and list the arrays that a loop carries.
 */
#ifndef PROPAGATION_RULES_RULES_VALUES_H
#define PROPAGATION_RULES_RULES_VALUES_H

#include "propagation/rules/rules.h"

typedef struct ValueResolver {
    Rules *rules;
    int32_t *constants; /* [constant_mask + 1]: hash table of small constants, -1 where empty */
    uint64_t constant_mask;
} ValueResolver;

/* Returns whether all leaves of a shape are arrays: no token, no opaque value. */
bool values_are_arrays(const IrShape *shape);
/* Finds the planned computations and loops of rules->module, filling
 * is_planned, times, loops and conditionals; rules->alias and leaf are ready to be set. */
AmStatus values_begin(ValueResolver *resolver, Rules *rules, Arena *arena, AmError *error);
/* Sets alias and leaf of an instruction of this planned computation. Instructions
 * go in order, and bodies and conditions before their callers. */
void values_resolve(ValueResolver *resolver, int32_t computation, int32_t instruction);
/* Ends a planned computation: resolves the results of a loop's body or a branch. */
void values_end_computation(ValueResolver *resolver, int32_t computation);

/* Conditionals (rules_branches.c): whether one is planned through its branches; planning it; the
 * slot for the reader of leaf `leaf` of `instruction`, the conditional or the parameter of
 * `computation`, or NULL; the inputs of the branches, once all instructions before the conditional
 * are known; the results of a branch, once it is known. */
bool branches_can_be_planned(const IrModule *module, const IrInstruction *conditional,
                             const int32_t *mentions);
void branches_plan(Rules *rules, Arena *arena, int32_t computation, int32_t instruction);
int32_t *branches_reader(const Rules *rules, int32_t computation, int32_t instruction, int32_t leaf);
void branches_find_given(const Rules *rules, int32_t instruction);
void branches_find_made(const Rules *rules, int32_t computation);

#endif
