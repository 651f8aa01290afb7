/* The work of a training step, independent of its partitioning. */
#ifndef COST_USEFUL_H
#define COST_USEFUL_H

#include "propagation/rules.h"

typedef struct UsefulWork {
    double flops; /* arithmetic of any kind (ir_flops) */
    double bytes; /* operands plus results, instruction by instruction */
} UsefulWork;

/* Computes the work of the whole module: loops by their trips (once if unknown), conditionals by
 * their most expensive branch. AM_ERROR_INTERNAL if memory is exhausted. */
AmStatus useful_work(UsefulWork *work, const Rules *rules, AmError *error);

#endif
