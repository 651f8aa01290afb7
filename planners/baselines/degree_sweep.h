/* Sweep: every data x tensor x pipeline degree and number of micro-batches (DistSim, section 6).
 *
 * A strategy deals the devices to `stages` stages of equal FLOPs, each a mesh of `data` x `tensor`.
 * The tensor axis is innermost, so that it lies inside a server as far as it can. The batch is split
 * over the first axis. The second axis splits the dimensions that Megatron-LM splits. Each strategy
 * is lowered and simulated by itself; nothing is searched inside it.
 */
#ifndef PLANNERS_BASELINES_DEGREE_SWEEP_H
#define PLANNERS_BASELINES_DEGREE_SWEEP_H

#include <signal.h>

#include "planners/problem/search_scope.h"
#include "propagation/plan/pipeline_schedule.h"

/* One strategy with one number of micro-batches. */
typedef struct SweepRow {
    int32_t data, tensor, stages, micro_batches;
    const char *schedule; /* "none" for one stage */
    const char *reason;   /* why there is no such plan; NULL: it was simulated */
    double step_seconds;
    double examples_per_second; /* 0 where the module has no batch */
    int64_t peak_bytes;         /* of the fullest device, slots of transfers that come in among them */
    bool fits;
} SweepRow;

/* The distribution of a sweep's time, of all threads together. */
typedef struct SweepSeconds {
    double split;    /* the module rewritten in micro-batches, and analysed */
    double baseline; /* which dimensions are split */
    double lower;    /* every tensor's state, and the programs of the stages */
    double price;    /* steps, collectives and transfers of these */
    double simulate; /* the step in time */
} SweepSeconds;

typedef struct SweepOptions {
    int32_t micro_batches; /* one number, or 0: every power of two that divides the batch */
    uint32_t relaxations;  /* bits by Relaxation */
    uint32_t schedules;    /* bits by ScheduleKind, a row for each of multiple stages; 0: 1f1b, or gpipe if
                              passes    cannot alternate */
    double memory_fraction;
    int32_t threads;                          /* 0: one per processor */
    SearchWatch *watch;                       /* counts the strategies; or NULL */
    const volatile sig_atomic_t *interrupted; /* set: the sweep ends with AM_INTERRUPTED; or NULL */
} SweepOptions;

typedef struct Sweep {
    const char *module_name, *cluster_name;
    int32_t device_count;
    int64_t batch;  /* 1 where the module has none */
    SweepRow *rows; /* those that fit, fastest first; those that do not; those that cannot be */
    int32_t row_count;
    int32_t refused;     /* the module cannot be rewritten in this number of micro-batches; 0: none */
    const char *refusal; /* why */
    SweepSeconds seconds;
    double wall_seconds;
} Sweep;

/* Prices all degrees. Everything is the arena's. `primary` is the context as read and is not changed.
 * AM_ERROR_INFEASIBLE: the one requested number of micro-batches cannot be; of several, those that cannot
 * are left out. */
AmStatus sweep(Sweep *sweep, Arena *arena, const PlanContext *primary, const Cluster *cluster,
               const SweepOptions *options, AmError *error);

/* Prices the plan of a simulated row anew. The plan is in the arena; its context is owned by `primary`. */
AmStatus sweep_plan(Plan **plan, Arena *arena, PlanContext *primary, const Cluster *cluster,
                    const SweepOptions *options, const SweepRow *row, AmError *error);

#endif
