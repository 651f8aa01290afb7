/* What a training step has to get done, however it is cut. */
#ifndef COST_USEFUL_H
#define COST_USEFUL_H

#include "propagation/rules.h"

typedef struct UsefulWork {
    double flops; /* arithmetic of any kind (ir_flops) */
    double bytes; /* operands plus results, instruction by instruction */
} UsefulWork;

/* Of the whole module: loops by their trips (once where these are unknown), of
 * a conditional the dearest branch. AM_ERROR_INTERNAL without memory. */
AmStatus useful_work(UsefulWork *work, const Rules *rules, AmError *error);

#endif
