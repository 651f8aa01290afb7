/* Running a module: training steps under a plan, or on one device.
 *
 * The module is lowered for every device of the plan; each device is a rank, a thread with one
 * allocation. Several processes may share a plan: each has the same number of consecutive ranks and
 * reads the files itself, and the results come to process 0, which alone reports and writes. State
 * and data come from files of named arrays (docs/running.md) and are cut into the ranks' shards.
 * Every step feeds the next batch, runs the program, reads watched outputs and applies the updates.
 * A run allocates no memory between the first step and the last.
 */
#ifndef EXECUTOR_PROGRAM_RUN_OPTIONS_H
#define EXECUTOR_PROGRAM_RUN_OPTIONS_H

#include <signal.h>

#include "base/files/disk.h"
#include "executor/comm/comm.h"
#include "executor/processes/process_group.h"
#include "propagation/plan/plan.h"

/* An output that is reported every step, as doubles. */
typedef struct RunWatched {
    int32_t output;
    int64_t count;
    const double *values;
} RunWatched;

/* An output of a validation: the mean over its batches, or the sum where it is an integer. */
typedef struct RunValidatedOutput {
    int32_t output;
    bool is_loss, is_integer;
    double value;
} RunValidatedOutput;

typedef struct RunValidated {
    const RunValidatedOutput *outputs; /* [count] */
    int32_t count;
    int64_t batches;
    double seconds; /* not part of a step's */
} RunValidated;

typedef struct RunStep {
    int64_t step; /* from 0 */
    double loss;  /* NAN where the module has none */
    bool has_loss;
    double seconds;
    int64_t examples, tokens; /* of its batch (throughput.h); 0: not known */
    int64_t planned_bytes;    /* what this process's ranks hold by the buffer plan, scratch memory included */
    const RunWatched *watched; /* [watched_count], in the requested order */
    int32_t watched_count;
    const RunValidated *validated; /* with the values after the step; NULL: no validation */
} RunStep;

/* After a step whose loss is infinite or not a number. */
typedef enum RunOnNan {
    RUN_STOP_ON_NAN, /* the run fails; nothing of the state is saved */
    RUN_GO_ON_AFTER_NAN
} RunOnNan;

/* Another module that runs over held-out data during a training (validation.h). */
typedef struct RunValidation {
    const PlanContext *context;    /* NULL: none */
    const char *const *data_paths; /* [data_count], as those of the training */
    int32_t data_count;
    int64_t every; /* steps from one to the next; 0: after the last step only */
} RunValidation;

/* A Chrome trace of the last steps. */
typedef struct RunTrace {
    const char *path; /* NULL: none */
    int64_t steps;    /* 0: 3 */
} RunTrace;

/* Reports, after the run, the median seconds of every step of this process's ranks. */
typedef struct RunMedians {
    AmStatus (*on_median)(void *user, int32_t rank, const Program *program, int32_t step, double seconds,
                          AmError *error); /* NULL: none */
    void *user;
    int64_t steps; /* the number of last steps considered */
} RunMedians;

/* Checkpoints of the state, written during the run (checkpoint.h). */
typedef struct RunCheckpoints {
    const char *path;      /* their folder; NULL: none */
    int64_t every;         /* steps from one to the next; 0: after the last step only */
    int32_t keep;          /* how many stay; 0: 2 */
    bool resumes;          /* goes on from the newest; the number of steps counts those before it, too */
    const DiskCalls *disk; /* of a test; NULL: the system's */
} RunCheckpoints;

typedef struct RunOptions {
    /* -- the plan and the machine -- */
    const Plan *plan;               /* NULL: the whole module on one device */
    const char *device;             /* kernel_back_end_find(); NULL: "cpu" */
    const char *comm;               /* comm_back_end_choose(); NULL: what suits */
    bool tf32;                      /* KernelOptions */
    int32_t threads;                /* KernelOptions: of a rank on the host; 0: processors over ranks */
    ProcessGroup *processes;        /* the processes that run the plan together; NULL: this one alone */
    const CommBackEnd *collectives; /* a back end of the caller's own in place of `comm`; or NULL */
    /* -- state and data -- */
    int64_t steps;
    const char *state_path;        /* npz or safetensors, "random", or NULL: everything is in data_path */
    const char *data_path;         /* as --data has it, FILE or NAME[,NAME]=FILE (feed_source.h); or NULL */
    const char *const *data_paths; /* [data_count]: more of them */
    int32_t data_count;
    RunValidation validation;
    bool shuffle;     /* another order of the examples in every epoch */
    int32_t prefetch; /* batches that are loaded ahead; 0: FEED_PREFETCH */
    uint64_t seed;    /* of "random", and of the order of the examples */
    /* -- results -- */
    const int32_t *watch; /* outputs to report beside the loss */
    int32_t watch_count;
    const char *outputs_path; /* .npz: every output of the last step as output[k]; or NULL */
    const char *save_path;    /* the final state by path; or NULL */
    RunTrace trace;
    RunMedians medians;
    RunOnNan on_nan;
    RunCheckpoints checkpoints;
    /* -- the caller -- */
    void (*on_note)(void *user, const char *text);    /* a line for the user at once, as on_step; or NULL */
    const volatile sig_atomic_t *interrupted;         /* set: stop after the step in work; or NULL */
    const volatile sig_atomic_t *stopped;             /* the same, set by on_step; or NULL */
    void (*on_step)(void *user, const RunStep *step); /* in the caller's thread of process 0; or NULL */
    void *user;
    AmWarnings *warnings; /* or NULL */
} RunOptions;

#endif
