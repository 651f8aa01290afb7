/* Equal parts of a module's rules and shapes are stored once. */
#ifndef PROPAGATION_SHARE_H
#define PROPAGATION_SHARE_H

#include "propagation/rules.h"

/* Lets equal dimensions, attributes and factors of the instructions be the same memory, the module's in the
 * module's arena, and tells the factors the extents of their dimensions. What was there does not change.
 * AM_ERROR_INTERNAL without memory. */
AmStatus rules_share(Rules *rules, IrModule *canonical, Arena *arena, AmError *error);

#endif
