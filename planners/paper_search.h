/* Search in Auto-MAP's own mode (`search --objective paper`): operator partitioning, auto data parallelism
 * and pipelines as the paper states, rewards and learns them. What comes out is an ordinary plan, priced by
 * the simulator like any other; the price plays no part in what is learned.
 */
#ifndef PLANNERS_PAPER_SEARCH_H
#define PLANNERS_PAPER_SEARCH_H

#include "planners/micro_batch_search.h"
#include "planners/paper_learn.h"
#include "planners/paper_partition.h"

/* What a search in this mode found, beside the plan. */
typedef struct PaperReport {
    PlanSpace space;
    PaperLearning learning;
    double pricing_seconds; /* of the plan by the simulator, its context included */
    /* SPACE_OPERATOR and SPACE_DATA */
    int32_t axis_size, dimension_count, decision_count, variable_count;
    int32_t partitioned, replicated;
    double reward; /* of the strategy over its whole vector */
    int32_t
        maximum;   /* the most that can be partitioned together, by linkage groups; not told to the search */
    bool is_exact; /* the maximum is proved, else it is at least that */
    int64_t failures;                /* episodes that ended in a conflict, or did not fit */
    const LinkageMember *dimensions; /* [partitioned]: those that are */
} PaperReport;

/* options->space is SPACE_OPERATOR, SPACE_DATA or SPACE_PIPELINE (AM_ERROR_USAGE). result->paper is set.
 * Otherwise as search_micro_batches(). */
AmStatus paper_search(SearchResult *result, Arena *arena, PlanContext *whole, const Cluster *cluster,
                      const SearchOptions *options, const MicroBatching *settings, AmError *error);

/* The report as an object (the caller's reference), and for readers. */
json_t *paper_report_to_json(const PaperReport *report, const PlanContext *context);
void paper_report_print(Text *text, const PaperReport *report, const PlanContext *context);

#endif
