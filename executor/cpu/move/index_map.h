/* Common code of gather and scatter: the part of an operand that an index vector selects.
 *
 * Positions are the dimensions of the indices without the index vector; at each of them a window of
 * the operand is read or written. Indices refer to the global tensor; if the operand is a shard, a
 * window is clipped to it.
 */
#ifndef EXECUTOR_CPU_MOVE_INDEX_MAP_H
#define EXECUTOR_CPU_MOVE_INDEX_MAP_H

#include "executor/cpu/cpu.h"

typedef struct IndexMap {
    /* Positions, and where each lies among the indices and in the slices (the
     * gather's result, the scatter's updates). */
    int32_t position_rank;
    int64_t positions[IR_MAX_RANK], index_strides[IR_MAX_RANK], slice_strides[IR_MAX_RANK];
    int64_t batch_strides[IR_MAX_RANK]; /* of the operand, for batching dimensions; else 0 */
    int64_t position_count;
    /* Index vectors. */
    Dtype index_type;
    int32_t map_count;
    int64_t component_stride;
    int64_t map_dimension[IR_MAX_RANK]; /* operand dimension of component k */
    int32_t map_window[IR_MAX_RANK];    /* window dimension it moves, -1: an inserted one */
    int64_t map_size[IR_MAX_RANK];      /* window extent along it */
    bool map_full[IR_MAX_RANK];         /* the window spans the shard of a split dimension: it stays */
    /* Windows. */
    int32_t window_rank;
    int64_t window[IR_MAX_RANK], window_operand_strides[IR_MAX_RANK], window_slice_strides[IR_MAX_RANK];
    /* The operand. */
    int64_t operand_strides[IR_MAX_RANK], local[IR_MAX_RANK], global[IR_MAX_RANK], start[IR_MAX_RANK];
} IndexMap;

/* One window, clipped to the shard. */
typedef struct IndexedWindow {
    int64_t operand_at, slice_at; /* offsets in elements of its first element */
    bool is_inside, empty;        /* nothing was clipped; nothing is left */
    int64_t dimensions[IR_MAX_RANK];
} IndexedWindow;

/* Describes the indices. `slices`: the gather's result or the scatter's updates. False if the dimension
 * numbers do not fit. */
bool index_map_describe(IndexMap *map, const IrGather *form, const IrShape *operand, const IrShape *indices,
                        const IrShape *slices, const ProgramShard *shard);

/* Finds the window at a position. `clamp`: gather's rule, indices are moved inside the global array;
 * otherwise scatter's: a window that is not inside the global array is empty. `slice_at` is that of the
 * unclipped window's first element in *unclipped_at. */
void index_map_window(IndexedWindow *window, const IndexMap *map, const int64_t *position,
                      const void *indices, bool clamp, int64_t *unclipped_at);

#endif
