/* Paths through the turns of a pipeline: a step takes at least as long as any of them (method, section 6).
 *
 * A path follows the first micro-batch up the stages, stays on one stage s for turns of its own, and follows
 * a micro-batch down to the end. F is a turn of the forward pass, B what the stage before waits for in one of
 * the backward pass, W the rest of it. In the order of turns of propagation/pipeline_schedule.h, with
 * a = min(M, S - s) turns of F before the first B:
 *
 *   PATH_WORK      all turns of s, and what comes after                    any schedule
 *   PATH_TURNS     sum F, B of the stages after s, then on s its other M - a F and M B, B of the stages
 *                  before s                                                1f1b, gpipe
 *   PATH_LAST      sum F, B of the stages after s, M - a turns F and B on s up to its last F; that
 * micro-batch through all stages after s and back, and down           1f1b, gpipe PATH_WEIGHTS   as
 * PATH_TURNS, where W may be min(M, s + 1) turns behind B   1f1b, gpipe, zb_h1 PATH_STAYS     sum F, B of the
 * stages after s, M - a F, M B and M W on s, and what comes after
 *                                                                          1f1b, gpipe, zb_h1
 *
 * Where M <= a PATH_LAST is PATH_TURNS. GPipe has no place for a last micro-batch that comes back before
 * others, but its step is at least the mean of its paths that stay on v for all turns, of each pass, by
 * weights 1 / (M - 1) for v after s and the rest for s, which is PATH_LAST.
 *
 * What ends a turn may be behind what is sent, what begins it before what is waited for: BoundOrder.
 */
#ifndef PLANNERS_PIPELINE_PATHS_H
#define PLANNERS_PIPELINE_PATHS_H

#include "planners/bound_work.h"

typedef enum PathPass { PATH_FORWARD, PATH_BACKWARD, PATH_PASSES } PathPass;

typedef enum PathKind { PATH_WORK, PATH_TURNS, PATH_LAST, PATH_WEIGHTS, PATH_STAYS, PATH_KINDS } PathKind;

/* How often what stage u computes in a turn is on the path that stays on stage s:
 * once(u), and more(s) besides where u = s, and above(s) besides where u > s. */
typedef struct PathCounts {
    double once[PATH_PASSES][BOUND_ORDERS], more[PATH_PASSES][BOUND_ORDERS];
    double above[PATH_PASSES];                /* of BOUND_SPINE and BOUND_BETWEEN */
    double across[PATH_PASSES][BOUND_ORDERS]; /* all that is left where it lies across a border */
} PathCounts;

PathCounts path_counts(PathKind kind, int32_t stages, int32_t micro_batches, int32_t stage);

#endif
