/* Minimum cuts between a source and a sink, by maximum flow (Dinic 1970).
 *
 * The caller adds edges with non-negative capacities and asks for the side of the source. If several cuts are
 * minimal, it is the one with the fewest nodes on that side. Capacities are integers, so that the result does
 * not depend on the order of additions.
 */
#ifndef BASE_MIN_CUT_H
#define BASE_MIN_CUT_H

#include "base/arena.h"

/* A capacity that no minimum cut contains. The finite capacities of a graph must add up to less. */
#define MIN_CUT_UNLIMITED ((int64_t)1 << 60)

typedef struct MinCut {
    Arena *arena;
    int32_t node_count, edge_count, capacity; /* edges in pairs: 2 k and its reverse 2 k + 1 */
    int32_t *first;                           /* [node] newest edge, or -1 */
    int32_t *next, *to;                       /* [edge] */
    int64_t *room;                            /* [edge] residual capacity */
    int32_t *level, *at, *queue;              /* [node] */
} MinCut;

/* Creates a graph without edges; check arena->failed at the end. */
void min_cut_open(MinCut *self, Arena *arena, int32_t node_count);
void min_cut_add(MinCut *self, int32_t from, int32_t to, int64_t capacity);
/* Finds the minimum cut; afterwards min_cut_is_source_side() answers. The capacities are consumed. */
void min_cut_find(MinCut *self, int32_t source, int32_t sink);
bool min_cut_is_source_side(const MinCut *self, int32_t node);

#endif
