/* Which forward values a stage saves for the backward pass, and which it computes again.
 *
 * Full recomputation saves no value inside a segment (recompute.h). A level saves some of them: those that
 * minimise, for a price lambda of memory,
 *
 *     sum of seconds(v) over recomputed v + lambda * sum of bytes(v) over saved v,
 *
 * where a value that the backward pass reads, or that a recomputed operator reads, is saved or recomputed.
 * This is a minimum cut (base/min_cut.h). Each value v has a node "needed" and a node "recomputed":
 *
 *     source -> needed(v)          unlimited, if the backward pass reads v
 *     needed(v) -> recomputed(v)   lambda * bytes(v)
 *     recomputed(v) -> sink        seconds(v)
 *     recomputed(v) -> needed(u)   unlimited, for each operand u
 *
 * A rising lambda recomputes cheap operators first (norms, activations, dropout), then the products of
 * attention, then all products: selective recomputation (Korthikanti et al. 2022, section 5) is one of these
 * levels.
 */
#ifndef PLANNERS_LAYERS_RECOMPUTE_LEVELS_H
#define PLANNERS_LAYERS_RECOMPUTE_LEVELS_H

#include "cost/cluster/cluster.h"
#include "propagation/plan/plan.h"

enum { RECOMPUTE_MOST_LEVELS = 3 };

/* How a stage treats its forward values: level k is RECOMPUTE_LEVELS + k. */
enum { RECOMPUTE_NONE, RECOMPUTE_FULL, RECOMPUTE_LEVELS };

/* The treatment of a forward value by a solution. */
typedef enum RecomputeChoice {
    RECOMPUTE_UNUSED, /* not needed by the backward pass, or not the subject of recomputation */
    RECOMPUTE_SAVED,
    RECOMPUTE_AGAIN
} RecomputeChoice;

typedef struct RecomputeLevels {
    int32_t count;                           /* of the levels between none and full; the most bytes first */
    uint8_t *choices[RECOMPUTE_MOST_LEVELS]; /* [level][entry instruction] RecomputeChoice */
    bool *is_needed;                         /* [entry instruction] kept without recomputation */
    double *seconds;   /* [entry instruction] of computing it once more; 0: it is never recomputed */
    double *bytes;     /* [entry instruction] of the whole batch */
    int32_t *last_use; /* [entry instruction] the last forward operator that reads it, or -1 */
} RecomputeLevels;

/* Finds one solution for the operators [first, end) of the entry at `seconds_per_byte`; writes
 * choices[first..end). Values that forward operators from `end` on read are kept in any case, and are
 * RECOMPUTE_UNUSED. Times and bytes are those of `levels`. AM_ERROR_INTERNAL without memory. */
AmStatus recompute_solve(uint8_t *choices, const RecomputeLevels *levels, const PlanContext *context,
                         int32_t first, int32_t end, double seconds_per_byte, AmError *error);

/* Finds up to RECOMPUTE_MOST_LEVELS levels of different memory, for segments that begin at cuts[0 .. count)
 * and end where the next one begins, the last at cuts[count]. Seconds are those of `type`. All arrays are in
 * the arena. */
AmStatus recompute_levels_find(RecomputeLevels *levels, Arena *arena, const PlanContext *context,
                               const ClusterDeviceType *type, const int32_t *cuts, int32_t count,
                               AmError *error);

/* Lists the operators in the ranges [first, end) whose values a level saves; `saved` NULL: only counts them.
 * A level below 0 stands for no or full recomputation, which save no value. Returns their number. */
int32_t recompute_levels_list(int32_t *saved, const RecomputeLevels *levels, int32_t level,
                              int32_t (*ranges)[2], int32_t range_count);

#endif
