/* The results of a run: the loss and watched outputs of every step, the outputs of the last one,
 * the final state. They are collected in process 0. */
#ifndef EXECUTOR_REPORT_RESULTS_H
#define EXECUTOR_REPORT_RESULTS_H

#include "executor/data/feed.h"
#include "executor/program/run_options.h"
#include "executor/report/gather_shards.h"

typedef struct Results {
    const PlanContext *context;
    const RunOptions *options;
    Arena *arena;
    ShardOwner owner;
    GatheredArray *watched; /* [watched_count]: the loss first, if there is one, then options->watch */
    int32_t watched_count, loss_count; /* loss_count: 0 or 1 */
    RunWatched *values;                /* [watched_count], as doubles; process 0 */
    GatheredArray *outputs;            /* [output_count], where all are to be written; else NULL */
} Results;

/* Opens the results when the ranks are open. All processes together. results_close() also after a failure of
 * this. */
AmStatus results_open(Results *results, const PlanContext *context, const RunOptions *options,
                      const ShardOwner *owner, Arena *arena, AmError *error);
void results_close(Results *results);

/* Takes the values of rank r after a step, before its updates; called by its thread. */
void results_take(Results *results, int32_t r);
/* Fills values[] in process 0, after every rank has ended the step. One thread of every process. */
AmStatus results_gather_step(Results *results, AmError *error);
double results_loss(const Results *results); /* of the step; NAN where the module has none */

/* Process 0 writes options->outputs_path and options->save_path, if given; all processes together.
 * The state consists of all parameters except batches. */
AmStatus results_save_outputs(Results *results, AmError *error);
AmStatus results_save_state(Results *results, const Feeds *feeds, AmError *error);

#endif
