/* Evaluation during training: another module over held-out data, with the values that the training has.
 *
 * After a step for which an evaluation is due, every rank copies its shards of the values that the evaluation
 * module takes (evaluation_match.h); process 0 puts the whole arrays together and runs the module over all
 * batches of the data, on the device of its first rank. The updates of the module are not applied. Its
 * outputs of one number come back: the mean over the batches for floating types, the sum for integers. The
 * opening allocates everything.
 */
#ifndef EXECUTOR_RUN_EVALUATION_H
#define EXECUTOR_RUN_EVALUATION_H

#include "executor/program/run_options.h"
#include "executor/report/gather_shards.h"

typedef struct Evaluation Evaluation;

/* Opens the evaluation: all processes of the run together, after their ranks are open. `*evaluation` is NULL
 * where the options ask for no evaluation. `training`, options and the ranks of `owner` are used until
 * evaluation_close(). AM_ERROR_INPUT: a parameter without a value, data that does not fit, no output of one
 * number. */
AmStatus evaluation_open(Evaluation **evaluation, const PlanContext *training, const RunOptions *options,
                         const ShardOwner *owner, AmError *error);
/* Closes it; NULL is allowed; also after a failure. */
void evaluation_close(Evaluation *evaluation);

/* Returns the bytes that the evaluation has in this process, of its rank and the whole arrays; 0 for NULL. */
int64_t evaluation_bytes(const Evaluation *evaluation);

/* Returns true if an evaluation follows `steps` steps; false for NULL. */
bool evaluation_is_due(const Evaluation *evaluation, int64_t steps);
/* Copies the shards of rank r, after its updates; by the rank's thread. */
void evaluation_take(Evaluation *evaluation, int32_t r);
/* Assembles the whole arrays in process 0; by one thread of every process. */
AmStatus evaluation_gather(Evaluation *evaluation, AmError *error);
/* Runs the module in process 0, by the thread of the first rank. The result lasts until the next call;
 * it is NULL where an interrupt ended the evaluation. */
AmStatus evaluation_run(Evaluation *evaluation, const RunEvaluated **result, AmError *error);

#endif
