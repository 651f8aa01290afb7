/* Sums taken into the products that make one of their terms; see accumulate.c. */
#ifndef PROPAGATION_ACCUMULATE_H
#define PROPAGATION_ACCUMULATE_H

#include "propagation/program.h"

/* Of the groups that fusions would be made of (`leader` [instruction]: the group's smallest member; `size`
 * [leader]: its members) those that are nothing but such sums. *taken [instruction], in the arena: the sums,
 * which are views that nobody reads now and groups of their own; NULL: there are none, and nothing has
 * changed. */
AmStatus program_accumulate_products(bool **taken, Program *program, int32_t *leader, int32_t *size,
                                     AmError *error);

#endif
