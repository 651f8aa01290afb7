/* Where array values come from (internal to rules*.c): tuples and planned loops. */
#ifndef PROPAGATION_RULES_VALUES_H
#define PROPAGATION_RULES_VALUES_H

#include "propagation/rules.h"

typedef struct ValueResolver {
    Rules *rules;
    int32_t *constants; /* [constant_mask + 1]: hash table of small constants, -1 where empty */
    uint64_t constant_mask;
} ValueResolver;

/* Finds the planned computations and loops of rules->module, filling
 * is_planned, times and loops; rules->alias and leaf are ready to be set. */
AmStatus values_begin(ValueResolver *resolver, Rules *rules, Arena *arena, AmError *error);
/* Sets alias and leaf of an instruction of this planned computation. Instructions
 * go in order, and bodies and conditions before their callers. */
void values_resolve(ValueResolver *resolver, int32_t computation, int32_t instruction);
/* After all of a planned computation: what a loop's body gives. */
void values_end_computation(ValueResolver *resolver, int32_t computation);

#endif
