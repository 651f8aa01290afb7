/* The work of a training step, independent of its partitioning. */
#ifndef COST_OPERATOR_MODEL_FLOPS_H
#define COST_OPERATOR_MODEL_FLOPS_H

#include "propagation/rules/rules.h"

typedef struct ModelFlops {
    double flops; /* arithmetic of any kind (ir_flops) */
    double bytes; /* operands plus results, instruction by instruction */
} ModelFlops;

/* Computes the work of the whole module: loops by their trips (once if unknown), conditionals by
 * their most expensive branch. AM_ERROR_INTERNAL if memory is exhausted. */
AmStatus model_flops(ModelFlops *work, const Rules *rules, AmError *error);

#endif
