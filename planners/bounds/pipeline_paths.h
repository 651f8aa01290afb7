/* Paths through the iterations of a pipeline: a step takes at least as long as any of them
 * (docs/planning.md).
 *
 * A path follows the first micro-batch up the stages, stays on one stage s for some iterations, and
 * follows a micro-batch down to the end. F is an iteration of the forward pass, B the part of a
 * backward iteration for which the previous stage waits, W the rest of it. In the order of
 * iterations of propagation/plan/pipeline_schedule.h, with a = min(M, S - s) iterations of F before the
 * first B:
 *
 *   PATH_WORK        all iterations of s, and the work after them
 *                    any schedule
 *   PATH_ITERATIONS  sum F, B of the stages after s, then on s its other M - a F and M B, B of the
 *                    stages before s
 *                    1f1b, gpipe
 *   PATH_LAST        sum F, B of the stages after s, M - a iterations F and B on s up to its last F;
 *                    that micro-batch through all stages after s and back, and down
 *                    1f1b, gpipe
 *   PATH_WEIGHTS     as PATH_ITERATIONS, where W may be min(M, s + 1) iterations after B
 *                    1f1b, gpipe, zb_h1
 *   PATH_STAYS       sum F, B of the stages after s, M - a F, M B and M W on s, and the work after them
 *                    1f1b, gpipe, zb_h1
 *   PATH_PERIOD      F of s and of the stages after it, B of the stages after s, M - b F, M B and M W on s,
 *                    and the work after them: from the first input of s to its end
 *                    any of these, zb_2p
 *   PATH_RETURN      as PATH_ITERATIONS with M - b F, where W may be min(M, 2 s + 1) iterations after B: all
 *                    of the step on the first stage
 *                    any of these, zb_2p
 *
 * Under zb_2p b = min(M, 2 (S - s) - 1) iterations of F come before the first B. A stage begins the next step
 * after its own end, so that the waiting time before its first input is no part of the step.
 *
 * If M <= a PATH_LAST is PATH_ITERATIONS. GPipe has no last micro-batch that returns before others. Its step
 * is at least the mean of the paths that stay on a stage v for all iterations of a pass. With the weight 1 /
 * (M - 1) for each v after s, and the rest for s, this mean is PATH_LAST.
 *
 * A path passes the transfer of F from stage u to u + 1 as often as it goes up between them: once, or for
 * PATH_PERIOD where u >= s. It passes that of B once, or for PATH_STAYS and PATH_PERIOD where u >= s.
 *
 * The end of an iteration may come after its transfer, its beginning before its input: BoundOrder.
 */
#ifndef PLANNERS_BOUNDS_PIPELINE_PATHS_H
#define PLANNERS_BOUNDS_PIPELINE_PATHS_H

#include "planners/bounds/work_items.h"

typedef enum PathPass { PATH_FORWARD, PATH_BACKWARD, PATH_PASSES } PathPass;

typedef enum PathKind {
    PATH_WORK,
    PATH_ITERATIONS,
    PATH_LAST,
    PATH_WEIGHTS,
    PATH_STAYS,
    PATH_PERIOD,
    PATH_RETURN,
    PATH_KINDS
} PathKind;

/* How often what stage u computes in an iteration is on the path that stays on stage s:
 * once(u), and more(s) besides where u = s, and above(s) besides where u > s. */
typedef struct PathCounts {
    double once[PATH_PASSES][BOUND_ORDERS], more[PATH_PASSES][BOUND_ORDERS];
    double above[PATH_PASSES];                /* of BOUND_SPINE and BOUND_BETWEEN */
    double across[PATH_PASSES][BOUND_ORDERS]; /* replaces `more` and `above` of items that a border divides */
} PathCounts;

/* Returns whether a path passes the transfers after its stage as often as the work of later stages that
 * `above` counts: not PATH_LAST, which under GPipe is a mean of paths that pass each transfer once. */
static inline bool path_passes_again(int32_t kind) {
    return kind != PATH_LAST;
}

PathCounts path_counts(PathKind kind, int32_t stages, int32_t micro_batches, int32_t stage);

#endif
