/* Running a module: training steps under a plan, or on one device.
 *
 * The module is lowered for every device of the plan; each device is a rank, a thread with one
 * allocation. Several processes may share a plan: each has the same number of consecutive ranks and
 * reads the files itself, and the results come to process 0, which alone reports and writes. State
 * and data come from files of named arrays (docs/running.md) and are cut into the ranks' shards.
 * Every step feeds the next batch, runs the program, reads watched outputs and applies the updates.
 * A run allocates no memory between the first step and the last.
 */
#ifndef EXECUTOR_RUN_RUN_H
#define EXECUTOR_RUN_RUN_H

#include "executor/program/run_options.h"

/* After this step all resources of steps are allocated: the memory of the process should not grow
 * afterwards. */
#define RUN_EARLY_STEP 10

typedef struct RunReport {
    int64_t steps;           /* that were run */
    double seconds_per_step; /* mean without the first, which warms up */
    double first_loss, last_loss;
    int64_t not_finite_steps,
        first_not_finite; /* whose loss was infinite or not a number; the first of them */
    int64_t resident_bytes_early,
        resident_bytes;          /* of process 0: after step RUN_EARLY_STEP, and at the end */
    int32_t device_count;        /* of the whole plan */
    int64_t *peak_bytes;         /* [device_count]: the allocation without scratch memory; in the arena */
    int64_t peak_resident_bytes; /* the most that process 0 ever held */
    int64_t channel_bytes;       /* process 0's slots of transfers between stages, beside the allocations */
    int64_t *scratch_bytes; /* [device_count]: scratch memory of the kernels, in addition; in the arena */
    double compile_seconds; /* compilation of kernels; sum over the ranks of process 0 */
    int64_t graphs,
        graph_nodes; /* recorded capture regions and their nodes; sums over the ranks of process 0 */
} RunReport;

/* Runs the module in all processes of options->processes together, with the same module, plan and
 * options (checked; paths of files may differ); the report is process 0's. A failure in one process
 * ends the others with AM_ERROR_RUNTIME. AM_ERROR_INPUT: no kernel for an operator, a parameter
 * that no file names, a shape that does not match (both named). AM_ERROR_RUNTIME: a rank failed, or
 * the loss was not finite (on_nan). AM_INTERRUPTED: stopped; requested results are saved and the
 * report is valid.
 */
AmStatus run_module(const PlanContext *context, const RunOptions *options, Arena *arena, RunReport *report,
                    AmError *error);

#endif
