/* Search in Auto-MAP's own mode (`search --objective paper`): operator partitioning, auto data
 * parallelism and pipelines with the paper's states, rewards and learning. The result is an
 * ordinary plan, priced by the simulator; the price is not used in learning.
 */
#ifndef PLANNERS_AUTOMAP_PAPER_PAPER_SEARCH_H
#define PLANNERS_AUTOMAP_PAPER_PAPER_SEARCH_H

#include "lowering/micro_batch/micro_batches.h"
#include "planners/automap_paper/paper_learn.h"
#include "planners/automap_paper/paper_partition.h"
#include "planners/automap_paper/paper_pipeline.h"
#include "planners/problem/search_result.h"
#include "planners/problem/search_scope.h"

/* A cut of a pipeline, for readers. */
typedef struct PaperCutReport {
    int32_t instruction, device; /* the first ones after it */
    double part;                 /* fraction of the arithmetic before it */
    double crossing;             /* bytes of the whole batch */
    const char *name, *op_name;  /* of the instruction */
    const char *before, *after;  /* paths of the weights next to it, or NULL */
} PaperCutReport;

/* The result of SPACE_OPERATOR and SPACE_DATA: the dimensions that one axis splits. */
typedef struct PaperPartitionReport {
    int32_t axis_size, dimension_count, decision_count, variable_count;
    int32_t partitioned, replicated;
    double reward; /* of the strategy over its whole vector */
    int32_t
        maximum; /* the most that can be partitioned together, by linkage groups; the search has not got it */
    bool is_exact;                   /* the maximum is exact, else it is at least that */
    const LinkageMember *dimensions; /* [partitioned]: those that are */
} PaperPartitionReport;

/* The result of SPACE_PIPELINE. */
typedef struct PaperPipelineReport {
    PaperCutReport *cuts; /* [cut_count] */
    int32_t cut_count;
    int32_t pivot_count, candidate_count; /* pivots near boundaries, of so many in the module */
    int32_t micro_batches;
    int32_t storage;         /* kinds that the devices of a stage have in shards: PaperStageCuts */
    double seconds;          /* L */
    double shortest_seconds; /* the least L of all; NAN: too many. The search has not got it */
} PaperPipelineReport;

/* The result of a search in this mode, besides the plan. */
typedef struct PaperReport {
    PlanSpace space;
    PaperLearning learning;
    int64_t failures;               /* episodes that ended in a conflict, or did not fit */
    double pricing_seconds;         /* of the plan by the simulator, its context included */
    PaperPartitionReport partition; /* SPACE_OPERATOR and SPACE_DATA */
    PaperPipelineReport pipeline;   /* SPACE_PIPELINE */
} PaperReport;

/* scope->kind is SPACE_OPERATOR, SPACE_DATA or SPACE_PIPELINE (AM_ERROR_USAGE). Pipelines of
 * scope->micro_batches 0 have micro-batches of PAPER_MICRO_BATCH examples, as the paper's. result->paper
 * is set. Otherwise as plan_search(). */
#define PAPER_MICRO_BATCH 16
AmStatus paper_search(SearchResult *result, Arena *arena, PlanContext *primary, const Cluster *cluster,
                      const SearchScope *scope, AmError *error);

/* Returns the report as an object (the caller's reference), and for readers. */
json_t *paper_report_to_json(const PaperReport *report, const PlanContext *context);
void paper_report_print(Text *text, const PaperReport *report);

#endif
