/* The numbers of iterations on each kind of path: the table of pipeline_paths.h as counts for every pass and
 * order of an item. An item that other stages need not wait for counts less often.
 */
#include "planners/bounds/pipeline_paths.h"

#include <math.h>

/* Sets the backward path for every iteration in which it stays on the stage: `between` of them lead on, all
 * others may come before the first of these or after the last. */
static void set_backward(PathCounts *counts, double between, double behind, double anywhere, double across) {
    counts->more[PATH_BACKWARD][BOUND_SPINE] = counts->more[PATH_BACKWARD][BOUND_BETWEEN] = between;
    counts->more[PATH_BACKWARD][BOUND_BEHIND] = fmax(behind, 0);
    counts->more[PATH_BACKWARD][BOUND_ANYWHERE] = fmax(fmin(anywhere, behind), 0);
    for (int32_t order = 0; order < BOUND_ORDERS; order++)
        counts->across[PATH_BACKWARD][order] = fmax(fmin(across, counts->more[PATH_BACKWARD][order]), 0);
}

static void set_forward(PathCounts *counts, double iterations) {
    for (int32_t order = 0; order < BOUND_AFTER; order++)
        counts->more[PATH_FORWARD][order] = counts->across[PATH_FORWARD][order] = iterations;
}

PathCounts path_counts(PathKind kind, int32_t stages, int32_t micro_batches, int32_t stage) {
    bool follows_on = kind == PATH_PERIOD || kind == PATH_RETURN;
    double iterations = micro_batches, ahead = follows_on ? 2 * (stages - stage) - 1 : stages - stage;
    double left = fmax(iterations - ahead, 0);
    bool is_first = stage == 0; /* without a waiting stage: its last work ends the step */
    PathCounts counts = {0};
    if (kind == PATH_WORK) {
        set_forward(&counts, iterations);
        set_backward(&counts, iterations, iterations, iterations, iterations);
        counts.more[PATH_BACKWARD][BOUND_AFTER] = 1;
        return counts;
    }
    set_forward(&counts, left);
    if (kind == PATH_PERIOD) {
        counts.above[PATH_FORWARD] = 1;
        counts.more[PATH_FORWARD][BOUND_SPINE] = counts.more[PATH_FORWARD][BOUND_BETWEEN] = left + 1;
    } else {
        counts.once[PATH_FORWARD][BOUND_SPINE] = counts.once[PATH_FORWARD][BOUND_BETWEEN] = 1;
    }
    if (kind == PATH_STAYS || kind == PATH_PERIOD) {
        counts.above[PATH_BACKWARD] = 1;
        set_backward(&counts, iterations, iterations, iterations - 1, iterations - 1);
        counts.more[PATH_BACKWARD][BOUND_AFTER] = 1;
        return counts;
    }
    counts.once[PATH_BACKWARD][BOUND_SPINE] = counts.once[PATH_BACKWARD][BOUND_BETWEEN] = 1;
    counts.once[PATH_BACKWARD][BOUND_BEHIND] = is_first;
    if (kind == PATH_LAST && left > 0) {
        counts.above[PATH_FORWARD] = counts.above[PATH_BACKWARD] = 1;
        set_backward(&counts, left, left, left - 1, left - 1);
        /* The path leaves the stage with the transfer of its last iteration. */
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            if (order != BOUND_SPINE) counts.across[PATH_FORWARD][order] = left - 1;
        counts.more[PATH_FORWARD][BOUND_BEHIND] = counts.more[PATH_FORWARD][BOUND_ANYWHERE] = left - 1;
    } else if (kind == PATH_WEIGHTS || kind == PATH_RETURN) {
        double late = kind == PATH_RETURN ? 2 * stage : stage;
        set_backward(&counts, iterations - 1, iterations - 1 - late, iterations - 2, iterations - 2 - late);
    } else {
        set_backward(&counts, iterations - 1, iterations - 1, iterations - 2, iterations - 2);
    }
    return counts;
}
