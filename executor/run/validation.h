/* Validation during training: another module over held-out data, with the values that the training has.
 *
 * After a step for which a validation is due, every rank copies its shards of the values that the validation
 * module takes (validation_match.h); process 0 puts the global arrays together and runs the module over all
 * batches of the data, on the device of its first rank. The updates of the module are not applied. Its
 * outputs of one number come back: the mean over the batches for floating types, the sum for integers. The
 * opening allocates everything.
 */
#ifndef EXECUTOR_RUN_VALIDATION_H
#define EXECUTOR_RUN_VALIDATION_H

#include "executor/program/run_options.h"
#include "executor/report/gather_shards.h"

typedef struct Validation Validation;

/* Opens the validation: all processes of the run together, after their ranks are open. `*validation` is NULL
 * where the options ask for no validation. `training`, options and the ranks of `owner` are used until
 * validation_close(). AM_ERROR_INPUT: a parameter without a value, data that does not fit, no output of one
 * number. */
AmStatus validation_open(Validation **validation, const PlanContext *training, const RunOptions *options,
                         const ShardOwner *owner, AmError *error);
/* Closes it; NULL is allowed; also after a failure. */
void validation_close(Validation *validation);

/* Returns the bytes that the validation has in this process, for its rank and global arrays; 0 for NULL. */
int64_t validation_bytes(const Validation *validation);

/* Returns true if a validation follows `steps` steps; false for NULL. */
bool validation_is_due(const Validation *validation, int64_t steps);
/* Copies the shards of rank r, after its updates; by the rank's thread. */
void validation_take(Validation *validation, int32_t r);
/* Assembles the global arrays in process 0; by one thread of every process. */
AmStatus validation_gather(Validation *validation, AmError *error);
/* Runs the module in process 0, by the thread of the first rank. The result lasts until the next call;
 * it is NULL where an interrupt ended the validation. */
AmStatus validation_run(Validation *validation, const RunValidated **result, AmError *error);

#endif
