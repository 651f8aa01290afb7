/* TrainerReader: the plan, its meshes and the result so far, while trainer_plan_read() checks a plan.
 *
 * trainer_plan.c checks meshes, devices and axis priorities. trainer_layers.c counts the layers of each part.
 */
#ifndef PLANNERS_EXPORT_TRAINER_READER_H
#define PLANNERS_EXPORT_TRAINER_READER_H

#include "lowering/spmd/ranks.h"
#include "planners/targets/target.h"

/* The end of a message; its argument is the target's name. */
#define TRAINER_REMEDY "search --for %s finds plans that can be exported"

/* The axes of a stage by their meaning. */
enum { TRAINER_DATA, TRAINER_MODEL, TRAINER_AXES };

typedef struct TrainerReader {
    Arena *arena;
    Target target;
    const TargetRow *row; /* of the target */
    const PlanContext *context;
    const Plan *plan;
    PlanRanks ranks;
    int32_t axes[TRAINER_AXES]; /* of the plan's meshes; -1: no axis of that name */
    int32_t sizes[TRAINER_AXES];
    int32_t zero_level;
    bool splits_sequence;
    int32_t *layers;    /* [part]: number of its layers */
    int32_t recomputed; /* the first layers of each part, which are recomputed: the most of any part */
    bool recomputes_all;
    uint32_t recomputed_modules; /* LayerModule; 0: whole layers */
    AmError *error;
} TrainerReader;

/* Sets `layers`. AM_ERROR_INFEASIBLE: layers are not those of one stack, in order, whole on their parts. */
AmStatus trainer_count_layers(TrainerReader *self);
/* Sets `recomputed`, `recomputes_all` and `recomputed_modules`. AM_ERROR_INFEASIBLE: the trainer cannot
 * recompute the same layers, or the same parts of them. */
AmStatus trainer_check_recomputation(TrainerReader *self);

#endif
