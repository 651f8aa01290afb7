/* The assignment: a split and a stored state for every instruction of a stage, derived from the plan's axis
 * priorities.
 */
#ifndef PROPAGATION_ASSIGN_ASSIGN_H
#define PROPAGATION_ASSIGN_ASSIGN_H

#include "propagation/plan/plan.h"
#include "propagation/stages/stages.h"

/* The meaning of a stage's axis priorities for every instruction (docs/method.md). */
typedef struct Assignment {
    const PlanStage *stage;
    int8_t *factor;        /* [instruction * MESH_MAX_AXES]: factor split on the axis, -1 none */
    SbpCut *cut;           /* [instruction * MESH_MAX_AXES]: how a split factor is cut: in each of how many
                              blocks, 1 or more, between how many granules */
    SbpState *stored;      /* [instruction]: how its result is stored, never P; on-demand values: B */
    uint8_t *carries;      /* [instruction]: axes (bits) on which it takes P operands and gives P */
    uint8_t *deferred;     /* [instruction]: axes (bits) on which its P result is left to its user */
    SbpReduction *partial; /* [instruction * MESH_MAX_AXES]: where its result is partial, what combines it */
    bool *pinned;          /* [instruction]: resharded to its stored state where computed; NULL: none */
    bool *regathered;      /* [instruction]: resharded again for forward, recomputed forward and backward */
    const bool *live;      /* [instruction]: reaches an output */
} Assignment;

/* Finds the sharding of every value and the factors of every operator for a one-stage plan; everything is
 * in the arena. AM_ERROR_INPUT: a decision of the stage does not apply. */
AmStatus plan_assign(Assignment **assignment, Arena *arena, const PlanContext *context,
                     const PlanStage *stage, AmError *error);

/* Assigns one stage of several; the map has the part of the module that it computes (stages.h). */
AmStatus plan_assign_stage(Assignment **assignment, Arena *arena, const PlanContext *context,
                           const PlanStage *stage, const StageMap *map, AmError *error);

/* Returns the state in which a planned loop carries an array. */
SbpState assignment_carried(const Assignment *assignment, const LoopLeaf *leaf);

#endif
