/* Auto-MAP's environment of pipelines by online training (its sections 3.4 and 4.4).
 *
 * Devices stand in a row, server by server. A step cuts the chain at a pivot; the devices before it are as
 * many as the part of all arithmetic that lies before it, rounded. Pivots are kept only where that device
 * cut lies within a radius of the boundary of a server, and cut k lies around boundary k; a stage has a
 * weight at least. Of these, ours: only those at which no more crosses than at the pivots next to them. What
 * is observed, of every pivot of the cut's window if it were taken now: seconds of the all-reduces of all
 * stages, seconds of the largest transfer, and the ratio of the shortest to the longest stage. Pivots that
 * may not be taken are masked (their value is -infinity).
 *
 * When all cuts are made the reward is 1 / L, or -1 / sqrt(L) where a stage does not fit in its devices'
 * memory; L is the length of the pipeline, in units of that of a perfect one without transfers:
 *
 *   L = max_s (e_s + max(A_s / w_s, A_s - B_s) + update_s)
 *
 * where e_s is when stage s has ended its last turn in 1F1B: F_s, B_s and the transfers between stages,
 * walked through turn by turn. The stage before takes what it needs of B_s before the gradients of weights,
 * the rest of it, are made. The all-reduces of a stage's w_s gradients, A_s seconds in all, begin as its last
 * backward turn yields them and go on beside it; the last one has to wait for its end.
 */
#ifndef PLANNERS_PAPER_PIPELINE_H
#define PLANNERS_PAPER_PIPELINE_H

#include "cost/memory.h"
#include "planners/environment.h"
#include "planners/paper_chain.h"

#define PAPER_RADIUS 3

typedef struct PaperCut {
    int32_t pivot;  /* in the chain */
    int32_t device; /* the first one behind it */
} PaperCut;

typedef struct PaperPipeline {
    Environment base; /* action k: the k-th pivot of the cut's window */
    const PaperChain *chain;
    int32_t stage_count, micro_batches;
    int32_t pivot_count; /* kept, of all cuts together */
    double unit;         /* seconds: L of a perfect pipeline */
    int64_t failures;    /* episodes whose pipeline did not fit */
    PaperCut *best;      /* [stage_count - 1] the shortest that fits */
    double best_seconds; /* its L; 0: none has fitted */
    MemoryFit nearest;   /* of those that did not, that which lacks least */
} PaperPipeline;

/* One stage per server. Everything lives in the arena. AM_ERROR_USAGE for a cluster of one server or of
 * unequal ones, AM_ERROR_INFEASIBLE where no pivot is near some boundary. */
AmStatus paper_pipeline_create(PaperPipeline **pipeline, Arena *arena, const PaperChain *chain,
                               const Cluster *cluster, int32_t micro_batches, double memory_fraction,
                               AmError *error);

/* L of a pipeline that is cut so, in seconds, and whether every stage fits. */
double paper_pipeline_seconds(const PaperPipeline *pipeline, const PaperCut *cuts, bool *fits);

/* Returns whether the best pipeline leaves no room for one more copy of the gradients, which the paper's
 * memory does not have: what a turn makes, before it is added to the sum of those before. */
bool paper_pipeline_is_tight(const PaperPipeline *pipeline);

/* The shortest L of all pipelines that fit, by enumeration: for readers, no part of the search. NAN where
 * there are more than a million. */
double paper_pipeline_shortest(const PaperPipeline *pipeline);

#endif
