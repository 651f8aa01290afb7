/* From a plan to the program of one device: assignment of every tensor, then lowering. */
#ifndef PROPAGATION_LOWER_H
#define PROPAGATION_LOWER_H

#include "propagation/plan.h"
#include "propagation/program.h"
#include "propagation/stages.h"

/* The meaning of a stage's lists for every instruction (docs/method.md). */
typedef struct Assignment {
    const PlanStage *stage;
    int8_t *factor;        /* [instruction * MESH_MAX_AXES]: factor split on the axis, -1 none */
    SbpCut *cut;           /* [instruction * MESH_MAX_AXES]: how a split factor is cut: in each of how many
                              blocks, 1 or more, between how many granules */
    SbpState *stored;      /* [instruction]: how its result is stored, never P; on-demand values: B */
    uint8_t *carries;      /* [instruction]: axes (bits) on which it takes P operands and gives P */
    uint8_t *deferred;     /* [instruction]: axes (bits) on which its P result is left to its user */
    SbpReduction *partial; /* [instruction * MESH_MAX_AXES]: where its result is partial, what combines it */
    bool *redone;          /* [instruction]: boxed anew for forward, recomputed forward and backward */
    const bool *live;      /* [instruction]: reaches an output */
} Assignment;

AmStatus plan_assign(Assignment **assignment, Arena *arena, const PlanContext *context,
                     const PlanStage *stage, AmError *error);

/* The same for one stage of several: what of the module it has is in the map (stages.h). */
AmStatus plan_assign_stage(Assignment **assignment, Arena *arena, const PlanContext *context,
                           const PlanStage *stage, const StageMap *map, AmError *error);

/* The state in which a planned loop carries an array. */
SbpState assignment_carried(const Assignment *assignment, const LoopLeaf *leaf);

/* Lowers one stage for one device of its mesh: local instructions and
 * collectives, merged, fused, with buffers. Everything lives in the arena. */
AmStatus plan_lower(Program **program, Arena *arena, const PlanContext *context, const Assignment *assignment,
                    int32_t device, AmError *error);

/* Lowers one stage of several, all of which are assigned: its computation, and its transfers, in
 * the order of the module; except for gpipe the loops of the passes are joined (interleave.h). */
AmStatus plan_lower_stage(Program **program, Arena *arena, const PlanContext *context, const StageMap *map,
                          Assignment *const *assignments, int32_t stage, int32_t device,
                          ScheduleKind schedule, AmError *error);

/* The same for a stage in chunks (lower_chunks.h): `map` and `completions` are of the chunks of all
 * stages. */
AmStatus plan_lower_chunks(Program **program, Arena *arena, const PlanContext *context, const StageMap *map,
                           Assignment *const *assignments, int32_t stage, int32_t device,
                           ScheduleKind schedule, AmError *error);

/* The reference: the whole module on one device (`--plan none`). */
AmStatus plan_lower_whole(Program **program, Arena *arena, const PlanContext *context, AmError *error);

/* A called computation of the canonical module as a program of its own on one
 * device, everything whole. Its parameters and outputs are the leaves of the
 * computation's, in order; `repeats`: output k is the next value of parameter k.
 * `roles` holds no more than their numbers and `mesh` is NULL. AM_ERROR_INPUT:
 * the computations inside one another multiply beyond all proportion. */
AmStatus program_from_computation(Program **program, Arena *arena, const IrModule *module,
                                  int32_t computation, bool repeats, AmError *error);

#endif
