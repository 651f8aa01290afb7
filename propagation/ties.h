/* Repeated layers: which dimension classes are decided as one. */
#ifndef PROPAGATION_TIES_H
#define PROPAGATION_TIES_H

#include "propagation/classes.h"

/* Sets `tie` of every class and `tie_count`. AM_ERROR_INTERNAL without memory. */
AmStatus ties_find(Classes *classes, const Rules *rules, AmError *error);

#endif
