/* The even pipeline: what an engineer cuts by hand. Stages of equal FLOPs, the cuts where the least
 * is sent, data parallelism inside every stage. */
#ifndef PLANNERS_EVEN_PIPELINE_H
#define PLANNERS_EVEN_PIPELINE_H

#include "planners/search.h"

#define EVEN_PIPELINE_MOST_STAGES 8

/* The forward operators of a module's entry as a line. */
typedef struct PipelineWork {
    int32_t count;    /* instructions of the entry */
    double *flops;    /* [count]: of forward operators, loops with what they run */
    double *crossing; /* [count + 1]: bytes that cross a cut before instruction i, each value once */
    bool *is_cut;     /* [count]: a forward operator with FLOPs, before which a stage may begin */
} PipelineWork;

/* Everything lives in the arena. */
AmStatus even_pipeline_work(PipelineWork *work, Arena *arena, const PlanContext *context, AmError *error);

/* Where stages, or several chunks of each, begin: cuts[p] is the first instruction of part p, the last one
 * the end of the entry. False if there are not enough forward operators with FLOPs. */
AmStatus even_pipeline_cuts(int32_t *cuts, bool *found, const PlanContext *context, int32_t stages,
                            int32_t chunks, AmError *error);

/* The stages between such cuts, [stage_count]: each as `inside`, on devices of its own, one after the other.
 * Where that has several ranges, as many chunks: chunk c of stage s is between cuts c S + s and c S + s + 1.
 */
AmStatus even_pipeline_stages(PlanStage **stages, Arena *arena, const PlanStage *inside, const int32_t *cuts,
                              int32_t stage_count, AmError *error);

/* Or, where options->expert is megatron_3d, each stage is a mesh data x model: Megatron-LM's tensor
 * parallelism over the devices of a server, the batch over the rest.
 * The fastest by simulation of all numbers of stages that divide the devices, or of that which
 * options->mesh, the mesh of one stage, leaves. *plan is NULL where the module cannot be cut, and
 * `*reason` says why. AM_ERROR_INFEASIBLE if none fits; `*evaluations` counts the simulated. */
AmStatus even_pipeline_plan(Plan **plan, const char **reason, int64_t *evaluations, Arena *arena,
                            const PlanContext *context, const Cluster *cluster, const SearchOptions *options,
                            AmError *error);

#endif
