/* An order of instructions in which groups of them stand side by side. */
#ifndef PROPAGATION_ORDER_H
#define PROPAGATION_ORDER_H

#include "propagation/program.h"

/* Orders program->instructions so that operands come first and all
 * instructions of equal leader are adjacent; groups whose turn may come are
 * taken by their smallest member (Kahn with a heap). The graph of groups must
 * be acyclic. `*order` lives in the program's arena. */
AmStatus program_order(const int32_t **order, const Program *program, const int32_t *leader, AmError *error);

#endif
