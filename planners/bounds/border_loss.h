/* The largest weight that a few borders can intersect: given weighted intervals of places, the most
 * that a number of places lie in, each interval counted once. Cuts between stages are such places;
 * the parts of a pipeline's path that a cut may divide are such intervals (bound_pipelines.c). */
#ifndef PLANNERS_BOUNDS_BORDER_LOSS_H
#define PLANNERS_BOUNDS_BORDER_LOSS_H

#include <stdint.h>

#include "base/arena.h"

typedef struct BorderInterval {
    int32_t first, end; /* places [first, end) */
} BorderInterval;

typedef struct IntervalStabbing {
    int32_t places, count, longest;  /* places of the longest interval that is distinguished, at least 1 */
    const BorderInterval *intervals; /* [count] */
    double *near;                    /* scratch */
    double *most[2];
    double always; /* of intervals too long to be distinguished */
} IntervalStabbing;

/* Allocates in the arena. Places of intervals are in [0, places). `arena->failed` if memory is
 * exhausted. */
IntervalStabbing border_loss_create(Arena *arena, const BorderInterval *intervals, int32_t count,
                                    int32_t places);

/* Weights of at least 0 for each interval. */
void border_loss_weigh(IntervalStabbing *self, const double *weights);
/* Upper limits of the loss: for any one place; and for any number of places. */
double border_loss_of_one(const IntervalStabbing *self);
/* At least what `points` places meet; exact where no interval is longer than BORDER_LONGEST. Time: points x
 * places x longest. */
double border_loss_of(IntervalStabbing *self, int32_t points);

enum { BORDER_LONGEST = 32 };

#endif
