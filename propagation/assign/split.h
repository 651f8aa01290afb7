/* The split factors of an instruction, and the resulting states of its operands and results. Only
 * this file derives states from factors. */
#ifndef PROPAGATION_ASSIGN_SPLIT_H
#define PROPAGATION_ASSIGN_SPLIT_H

#include "propagation/assign/assign.h"
#include "propagation/rules/rules.h"

/* On each axis a factor (-1 none), and how that is cut (Assignment.cut). */
typedef struct Split {
    const int8_t *factors;
    const SbpCut *cuts;
} Split;

/* Returns the split that the assignment has chosen for instruction i; borrowed from it. */
Split split_of(const Assignment *assignment, int32_t i);
/* Returns the state of slot `place` of instruction i, operands first and then results, if it is split so. */
SbpState split_state(const Rules *rules, const Mesh *mesh, int32_t i, Split split, int32_t place);
/* Returns the state in which instruction i takes operand k by its factors. */
SbpState split_operand_state(const Assignment *assignment, const PlanContext *context, int32_t i, int32_t k);

#endif
