/* Larger changes of a plan than the single ones of `explain`.
 *
 *   shift    every cut between two parts moves by one unit, so that one part gives a unit to another:
 *            cuts 8 | 16 | 24 of 32 units become 7 | 15 | 24 where part 0 gives a unit to part 2
 *   lists    a stage takes the axis priorities of another stage with a mesh of the same sizes
 *   entry    an entry moves to another place of its axis priority, or to another axis priority
 *   prefix   an axis priority keeps its first entries and its storage entries alone
 *   swap     two devices of different types change places between two stages
 *   join     two changes of one plan at once
 *
 * A made plan shares with its origin all that it does not change. `*made` is NULL where there is no such
 * plan.
 */
#ifndef PLANNERS_IMPROVE_PLAN_MOVES_H
#define PLANNERS_IMPROVE_PLAN_MOVES_H

#include "planners/explain/explain_parts.h"

#define PLAN_MOST_SWAPS 32

/* Moves a unit from part `from` to part `to`: parts in the order of the model, 0 to the number of cuts. */
AmStatus plan_move_shift(const Plan **made, Arena *arena, const Explainer *of, int32_t from, int32_t to,
                         AmError *error);
AmStatus plan_copy_axis_priorities(const Plan **made, Arena *arena, const Plan *plan, int32_t from,
                                   int32_t to, AmError *error);

/* Entry `entry` of axis `axis` of a stage comes to stand at `place` of axis `onto`. */
typedef struct EntryMove {
    int32_t stage, axis, entry, onto, place;
} EntryMove;
AmStatus plan_move_entry(const Plan **made, Arena *arena, const Plan *plan, const EntryMove *move,
                         AmError *error);

/* A prefix of an axis priority. */
typedef struct PrefixMove {
    int32_t stage, axis, kept; /* compute entries */
} PrefixMove;
/* Lists the prefixes that leave out at least two compute entries, the shortest of each list first.
 * `*moves` is in the arena. */
AmStatus plan_list_prefixes(PrefixMove **moves, int32_t *count, Arena *arena, const Plan *plan,
                            AmError *error);
AmStatus plan_move_prefix(const Plan **made, Arena *arena, const Plan *plan, const PrefixMove *move,
                          AmError *error);

/* Two devices of different types, at places of the lists of two stages. */
typedef struct DeviceSwap {
    int32_t stage, place, other_stage, other_place;
} DeviceSwap;
/* Lists the swaps that differ: of a stage's devices of one type and server the first alone takes part. At
 * most PLAN_MOST_SWAPS, and none on a cluster where there are more. `*swaps` is in the arena. */
AmStatus plan_list_swaps(DeviceSwap **swaps, int32_t *count, Arena *arena, const Plan *plan,
                         const Cluster *cluster, AmError *error);
AmStatus plan_swap_devices(const Plan **made, Arena *arena, const Plan *plan, const DeviceSwap *swap,
                           AmError *error);

/* Joins two changes `a` and `b` of `plan`. There is no joint plan where both change the same field of a
 * stage. */
AmStatus plan_move_join(const Plan **made, Arena *arena, const Plan *plan, const Plan *a, const Plan *b,
                        AmError *error);

#endif
