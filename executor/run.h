/* Running a module: training steps under a plan, or on one device.
 *
 * The module is lowered for every device of the plan; each device is a rank, a thread with one
 * allocation. Several processes may share a plan: each has the same number of consecutive ranks and
 * reads the files itself, and the results come to process 0, which alone reports and writes. State
 * and data come from files of named arrays (docs/training.md) and are cut into the ranks' shards.
 * Every step feeds the next batch, runs the program, reads watched outputs and applies the updates.
 * Nothing is allocated between the first step and the last.
 */
#ifndef EXECUTOR_RUN_H
#define EXECUTOR_RUN_H

#include <signal.h>

#include "base/disk.h"
#include "executor/comm.h"
#include "executor/world.h"
#include "propagation/plan.h"

/* An output that is reported every step, as doubles. */
typedef struct AmRunWatched {
    int32_t output;
    int64_t count;
    const double *values;
} AmRunWatched;

/* An output of an evaluation: the mean over its batches, or the sum where it is an integer. */
typedef struct AmRunEvaluatedOutput {
    int32_t output;
    bool is_loss, is_integer;
    double value;
} AmRunEvaluatedOutput;

typedef struct AmRunEvaluated {
    const AmRunEvaluatedOutput *outputs; /* [count] */
    int32_t count;
    int64_t batches;
    double seconds; /* not part of a step's */
} AmRunEvaluated;

typedef struct AmRunStep {
    int64_t step; /* from 0 */
    double loss;  /* NAN where the module has none */
    bool has_loss;
    double seconds;
    int64_t examples, tokens; /* of its batch (throughput.h); 0: not known */
    int64_t planned_bytes;    /* what this process's ranks hold by the buffer plan, scratch memory included */
    const AmRunWatched *watched; /* [watched_count], as asked for */
    int32_t watched_count;
    const AmRunEvaluated *evaluated; /* with the values after the step; NULL: no evaluation */
} AmRunStep;

/* After a step whose loss is infinite or not a number. */
typedef enum AmRunOnNan {
    AM_RUN_STOP_ON_NAN, /* the run fails; nothing of the state is saved */
    AM_RUN_GO_ON_AFTER_NAN
} AmRunOnNan;

/* Another module that runs over held-out data during a training (evaluation.h). */
typedef struct AmRunEvaluation {
    const PlanContext *context;    /* NULL: none */
    const char *const *data_paths; /* [data_count], as those of the training */
    int32_t data_count;
    int64_t every; /* steps from one to the next; 0: after the last step only */
} AmRunEvaluation;

typedef struct AmRunOptions {
    const Plan *plan;               /* NULL: the whole module on one device */
    const char *device;             /* kernel_back_end_find(); NULL: "cpu" */
    const char *comm;               /* comm_back_end_choose(); NULL: what suits */
    bool tf32;                      /* KernelOptions */
    int32_t threads;                /* KernelOptions: of a rank on the host; 0: processors over ranks */
    World *world;                   /* the processes that run the plan together; NULL: this one alone */
    const CommBackEnd *collectives; /* a back end of the caller's own in place of `comm`; or NULL */
    int64_t steps;
    const char *state_path;        /* npz or safetensors, "random", or NULL: everything is in data_path */
    const char *data_path;         /* as --data has it, FILE or NAME[,NAME]=FILE (feed_source.h); or NULL */
    const char *const *data_paths; /* [data_count]: more of them */
    int32_t data_count;
    AmRunEvaluation evaluation;
    bool shuffle;         /* another order of the examples in every epoch */
    int32_t prefetch;     /* batches that are loaded ahead; 0: FEED_PREFETCH */
    uint64_t seed;        /* of "random", and of the order of the examples */
    const int32_t *watch; /* outputs to report beside the loss */
    int32_t watch_count;
    const char *outputs_path; /* .npz: every output of the last step as output[k]; or NULL */
    const char *save_path;    /* the final state by path; or NULL */
    const char *trace_path;   /* Chrome trace of the last steps; or NULL */
    int64_t trace_steps;      /* how many; 0: 3 */
    /* After the run, of every step of this process's ranks: its median seconds in the last steps; or NULL. */
    AmStatus (*on_median)(void *user, int32_t rank, const Program *program, int32_t step, double seconds,
                          AmError *error);
    void *median_user;
    int64_t median_steps; /* the number of steps considered */
    AmRunOnNan on_nan;
    const char *checkpoint_path; /* folder of checkpoints (checkpoint.h); or NULL */
    int64_t checkpoint_every;    /* steps from one to the next; 0: after the last step only */
    int32_t checkpoint_keep;     /* how many stay; 0: 2 */
    bool resume;                 /* go on from the newest; `steps` counts the steps before it too */
    const DiskCalls *disk;       /* of a test; NULL: the system's */
    void (*on_note)(void *user, const char *text);      /* a line for the user at once, as on_step; or NULL */
    const volatile sig_atomic_t *interrupted;           /* set: stop after the step in work; or NULL */
    void (*on_step)(void *user, const AmRunStep *step); /* in the caller's thread of process 0; or NULL */
    void *user;
    AmWarnings *warnings; /* or NULL */
} AmRunOptions;

/* After this step all resources of steps are allocated: the memory of the process should not grow
 * afterwards. */
#define RUN_EARLY_STEP 10

typedef struct AmRunReport {
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
    int64_t graphs, graph_nodes; /* recorded stretches and their nodes; sums over the ranks of process 0 */
} AmRunReport;

/* Runs the module in all processes of options->world together, with the same module, plan and
 * options (checked; paths of files may differ); the report is process 0's. A failure in one process
 * ends the others with AM_ERROR_RUNTIME. AM_ERROR_INPUT: no kernel for an operator, a parameter
 * that no file names, a shape that does not match (both named). AM_ERROR_RUNTIME: a rank failed, or
 * the loss was not finite (on_nan). AM_INTERRUPTED: stopped; requested results are saved and the
 * report is valid.
 */
AmStatus am_run(const PlanContext *context, const AmRunOptions *options, Arena *arena, AmRunReport *report,
                AmError *error);

#endif
