/* Repeated layers: which dimension classes are decided as one. */
#ifndef PROPAGATION_CLASSES_TIES_H
#define PROPAGATION_CLASSES_TIES_H

#include "propagation/classes/classes.h"

/* Sets `tie` of every class and `tie_count`. AM_ERROR_INTERNAL without memory. */
AmStatus ties_find(Classes *classes, const Rules *rules, AmError *error);

#endif
