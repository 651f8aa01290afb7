/* Storage entries of a stage's axis priorities: ZeRO (docs/method.md).
 *
 * A storage entry defines where values of a role are stored, not how they are computed: [batch,
 * *:optimizer] is ZeRO 1, with *:gradients ZeRO 2, with *:weights ZeRO 3. On each axis a weight,
 * its gradient and its optimizer state are split along one dimension of the weight: that of the
 * entry's class, or for "*" the largest that no compute entry splits and that divides (unevenly
 * only if none divides and the weight is large). Views, casts and the optimizer's element-wise
 * operators run on the shards.
 */
#ifndef PROPAGATION_ASSIGN_STORAGE_H
#define PROPAGATION_ASSIGN_STORAGE_H

#include "propagation/assign/assign.h"

typedef struct Storage {
    const PlanContext *context;
    const Rules *rules; /* of the context */
    const Mesh *mesh;   /* of the stage */
    const StorageRoles *roles;
    Assignment *assignment;
    /* [(kind * MESH_MAX_AXES + axis) * parameter_count + p]: the dimension of weight p that is split */
    int8_t *split;
} Storage;

/* Returns ZeRO's level, the highest of all axes: 1 shards the optimizer, 2 gradients too, 3 weights too. */
int32_t storage_zero_level(const PlanStage *stage);
bool storage_is_used(const PlanStage *stage);

/* Computes the additional splits from the states of compute entries in `assignment`. Allocates in
 * the arena. */
AmStatus storage_begin(Storage *self, Arena *arena, const PlanContext *context, Assignment *assignment,
                       AmError *error);

/* Stores instruction i as a storage entry says on an axis on which it may be whole till now; else whole. */
void storage_keep(const Storage *self, int32_t i, int32_t axis);

/* Writes the states of all values of a role, and which weights are gathered anew for every pass. */
void storage_choose_states(const Storage *self);

/* Factors of the operators that run where such values are kept. */
void storage_choose_factors(const Storage *self);

/* Splits a weight, its gradient, its optimizer state and their producers in the same way, if an override
 * determines the storage of one of them. */
AmStatus storage_follow_overrides(const Storage *self, Arena *arena, AmError *error);

/* Applies the places of resharding that the stage names. AM_ERROR_INPUT: no such instruction, or one that no
 * loop reads unchanged is to be gathered before a loop. */
AmStatus storage_apply_places(Assignment *assignment, const PlanContext *context, AmError *error);

#endif
