/* Warnings about operators without a partitioning rule, which every device computes in full. */
#ifndef PROPAGATION_RULES_RULES_WARNINGS_H
#define PROPAGATION_RULES_RULES_WARNINGS_H

#include "propagation/rules/rules.h"

/* Adds a warning to the module for each opcode among the instructions without a partitioning rule:
 * is_blocked[instruction]. Small values are left out; an optimized module has one warning of its own. */
void rules_warn(IrModule *module, const bool *is_blocked);

#endif
