/* Measurements of the plans that a search found, on this machine: `search --measure N`.
 *
 * measure_plans() chooses candidates of different structure from the pool of the search. It runs each in a
 * process of its own (executor/run/separate_run.h), and corrects the predictions of the others by the errors
 * so far. The fastest run becomes the plan.
 */
#ifndef API_MEASURE_H
#define API_MEASURE_H

#include "api/work.h"
#include "planners/measure/correction.h"

/* The run of a plan. */
typedef struct MeasuredRun {
    PlanCandidate candidate;
    PlanFeatures features;
    double corrected_seconds;   /* the prediction with the errors of the runs before it */
    double measured_seconds;    /* the shortest step after the first; NAN: the run failed */
    const double *step_seconds; /* [steps] of the steps after the first */
    int32_t steps;
    const char *failure; /* or NULL */
} MeasuredRun;

struct PlanMeasurements {
    const PlanContext *module; /* of the plans */
    MeasuredRun *runs;         /* [count] in the order of the runs */
    int32_t count, candidates;
    int32_t chosen; /* the fastest run; -1: none succeeded */
    bool interrupted;
};

typedef struct MeasureCall {
    Arena *arena;
    const PlanContext *module;
    const CandidatePool *pool; /* of the search, which has a plan that fits */
    /* Returns whether a candidate may be chosen. */
    bool (*allows)(void *user, const PlanCandidate *candidate);
    void *user;
    int32_t runs;
    double deadline; /* clock_seconds(), or 0 */
    uint64_t seed;
    SearchWatch *watch;
    const volatile sig_atomic_t *interrupted; /* or NULL */
} MeasureCall;

/* Returns AM_ERROR_INPUT if the cluster is not this machine. */
AmStatus measure_check_cluster(const Cluster *cluster, AmError *error);

/* Runs candidates of different structure, one after the other, until there are enough runs, no candidate is
 * left, or the time is up. Plans that cannot be run have their reason in the result. */
AmStatus measure_plans(PlanMeasurements **measurements, const MeasureCall *call, AmError *error);

/* Prints a table of the runs. measurements_to_json(): an array of them, with the seconds of every step if
 * `has_steps`. */
void measurements_print(Text *text, const PlanMeasurements *measurements);
json_t *measurements_to_json(const PlanMeasurements *measurements, bool has_steps);

#endif
