/* Equal parts of a module's rules and shapes are stored once. */
#ifndef PROPAGATION_RULES_SHARE_H
#define PROPAGATION_RULES_SHARE_H

#include "propagation/rules/rules.h"

/* Makes equal dimensions, attributes and factors of the instructions share memory, the module's in
 * the module's arena, and stores the extents of their dimensions in the factors. Existing values do
 * not change. Everything to which a rule points is copied into `arena`. AM_ERROR_INTERNAL if memory is
 * exhausted. */
AmStatus rules_share(Rules *rules, IrModule *canonical, Arena *arena, AmError *error);

#endif
