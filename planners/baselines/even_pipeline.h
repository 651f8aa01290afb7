/* The even pipeline: the cuts of an engineer without a search. Stages of equal FLOPs, cut at the
 * smallest transfers, data parallelism inside every stage. */
#ifndef PLANNERS_BASELINES_EVEN_PIPELINE_H
#define PLANNERS_BASELINES_EVEN_PIPELINE_H

#include "planners/problem/search_scope.h"

#define EVEN_PIPELINE_MOST_STAGES 8

/* The forward operators of a module's entry as a line. */
typedef struct PipelineWork {
    int32_t count;    /* instructions of the entry */
    double *flops;    /* [count]: of forward operators; loops include their computations */
    double *crossing; /* [count + 1]: bytes that cross a cut before instruction i, each value once */
    bool *is_cut;     /* [count]: a forward operator with FLOPs, before which a stage may begin */
} PipelineWork;

/* Finds the work of the operators. Everything lives in the arena. */
AmStatus even_pipeline_work(PipelineWork *work, Arena *arena, const PlanContext *context, AmError *error);

/* Finds the beginnings of stages, or of several chunks of each: cuts[p] is the first instruction of part p,
 * the last one the end of the entry. False if there are not enough forward operators with FLOPs. */
AmStatus even_pipeline_cuts(int32_t *cuts, bool *found, const PlanContext *context, int32_t stages,
                            int32_t chunks, AmError *error);

/* Makes the stages between such cuts, [stage_count]: each as `inside`, on devices of its own, one after the
 * other. If that has several ranges, as many chunks: chunk c of stage s is between cuts c S + s and c S + s
 * + 1. */
AmStatus even_pipeline_stages(PlanStage **stages, Arena *arena, const PlanStage *inside, const int32_t *cuts,
                              int32_t stage_count, AmError *error);

/* Finds the fastest even pipeline by simulation, over all numbers of stages that divide the devices, or the
 * number that scope->request->space.mesh, a one-stage mesh, leaves. If scope->baseline is megatron_3d,
 * each stage is a mesh data x model: Megatron-LM's tensor parallelism over the devices of a server, the
 * batch over the rest. *plan is NULL if the module cannot be cut, and `*reason` contains the cause.
 * AM_ERROR_INFEASIBLE if none fits; `*evaluations` counts the simulations. */
AmStatus even_pipeline_plan(Plan **plan, const char **reason, int64_t *evaluations, Arena *arena,
                            const PlanContext *context, const Cluster *cluster, const SearchScope *scope,
                            AmError *error);

#endif
