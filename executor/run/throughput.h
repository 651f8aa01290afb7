/* How much a step works through, for rates: examples and tokens of its batch.
 *
 * Read off the entry parameters that are data, in their whole, unsplit shapes.
 * Examples are the first dimension of the first such parameter that has one, as
 * exporters pass the batch first; tokens are the elements of the largest of
 * those that are matrices of integers, [examples, positions].
 */
#ifndef EXECUTOR_RUN_THROUGHPUT_H
#define EXECUTOR_RUN_THROUGHPUT_H

#include "propagation/plan/plan.h"

/* Finds the samples of a batch; 0: the module has no such parameter. `context`: of the whole step, not of one
 * micro-batch. */
void throughput_of_batch(const PlanContext *context, int64_t *examples, int64_t *tokens);

#endif
