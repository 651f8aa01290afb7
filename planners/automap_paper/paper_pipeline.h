/* Auto-MAP's environment of pipelines by online training (its sections 3.4 and 4.4).
 *
 * Devices form a sequence, server by server. A step cuts the chain at a pivot; the number of
 * devices before it is proportional to the arithmetic before it, rounded. Pivots are kept only if
 * that device cut is within a radius of the boundary of a server, and cut k is near boundary k; a
 * stage has at least one weight. An addition to the paper: only pivots with at most as many
 * crossing bytes as their neighbours. The observation has for every pivot of the cut's window, if
 * it were taken now: seconds of the all-reduces across stages, seconds of the largest transfer, and
 * the ratio of the shortest to the longest stage. Forbidden pivots are masked (their value is
 * -infinity).
 *
 * When all cuts are made the reward is 1 / L, or -1 / sqrt(L) if a stage does not fit in its
 * devices' memory; L is the length of the pipeline, in units of that of a perfect one without
 * transfers:
 *
 *   L = max_s (e_s + max(A_s / w_s, A_s - B_s) + update_s)
 *
 * where e_s is the end of stage s's last iteration in 1F1B: F_s, B_s and the transfers between
 * stages, simulated iteration by iteration. The previous stage gets its input from B_s before the
 * gradients of weights, the rest of it, are computed. The all-reduces of a stage's w_s gradients,
 * A_s seconds in total, begin as its last backward iteration yields them and overlap with it; the
 * last one has to wait for its end.
 */
#ifndef PLANNERS_AUTOMAP_PAPER_PAPER_PIPELINE_H
#define PLANNERS_AUTOMAP_PAPER_PAPER_PIPELINE_H

#include "cost/step/memory.h"
#include "planners/automap_paper/paper_chain.h"
#include "planners/rl/environment.h"

#define PAPER_RADIUS 3

typedef struct PaperCut {
    int32_t pivot;  /* in the chain */
    int32_t device; /* the first one after it */
} PaperCut;

typedef struct PaperPipeline {
    Environment base; /* action k: the k-th pivot of the cut's window */
    const PaperChain *chain;
    int32_t stage_count, micro_batches;
    int32_t pivot_count; /* kept, of all cuts together */
    double unit;         /* seconds: L of a perfect pipeline */
    int64_t failures;    /* episodes whose pipeline did not fit */
    PaperCut *best;      /* [stage_count - 1] the best by plan_is_better() */
    double best_seconds; /* its L; 0: not found yet */
    MemoryFit best_fit;  /* its memory; does not fit: none has fitted */
} PaperPipeline;

/* Creates the environment in which every server is a stage. Everything lives in the arena. AM_ERROR_USAGE for
 * a cluster of one server or of unequal ones, AM_ERROR_INFEASIBLE where no pivot is near some boundary. */
AmStatus paper_pipeline_create(PaperPipeline **pipeline, Arena *arena, const PaperChain *chain,
                               const Cluster *cluster, int32_t micro_batches, double memory_fraction,
                               AmError *error);

/* Returns the length L, in seconds, of a pipeline with these cuts, and finds whether every stage fits. */
double paper_pipeline_seconds(const PaperPipeline *pipeline, const PaperCut *cuts, bool *fits);

/* Returns whether the best pipeline has no memory for one more copy of the gradients, which the
 * paper's memory model omits: the result of an iteration before it is accumulated. */
bool paper_pipeline_is_tight(const PaperPipeline *pipeline);

/* Returns the shortest L of all pipelines that fit, by enumeration: for readers, no part of the search. NAN
 * where there are more than a million. */
double paper_pipeline_shortest(const PaperPipeline *pipeline);

#endif
