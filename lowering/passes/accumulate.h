/* Sums taken into the products that make one of their terms; see accumulate.c. */
#ifndef LOWERING_PASSES_ACCUMULATE_H
#define LOWERING_PASSES_ACCUMULATE_H

#include "lowering/program/program.h"

/* Folds such sums among the groups of the future fusions (`leader` [instruction]: the group's
 * smallest member; `size` [leader]: its number of members). *taken [instruction], in the arena: the
 * folded sums, which become views without readers and groups of their own; NULL if nothing changed. */
AmStatus program_accumulate_products(bool **taken, Program *program, int32_t *leader, int32_t *size,
                                     AmError *error);

#endif
