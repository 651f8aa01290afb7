/* Which value of a training each parameter of a validation module takes.
 *
 * Parameters are matched by path. Without an equal path in the training, the words of two paths are compared
 * from the end: `params[0]['kernel']` takes the value of `state['params'][0]['kernel']`. One of the paths may
 * have one other word at its beginning, the other path two. The path with the most common words counts, of
 * several the weight's. Types and shapes must agree.
 */
#ifndef EXECUTOR_RUN_VALIDATION_MATCH_H
#define EXECUTOR_RUN_VALIDATION_MATCH_H

#include "propagation/plan/plan.h"

/* Returns the number of common words at the end of two paths, or 0 where the beginnings differ too much. */
int32_t validation_common_words(const char *a, const char *b);

/* Sets sources[k] to the parameter of `training` that feeds parameter k of `module`, or to -1 where the
 * held-out data feeds it; is_in_data[k]: the data can. AM_ERROR_INPUT: lists the parameters without a value,
 * or names one whose type or shape differs or that matches several. */
AmStatus validation_match(int32_t *sources, const PlanContext *training, const PlanContext *module,
                          const bool *is_in_data, AmError *error);

#endif
