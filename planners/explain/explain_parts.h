/* The state of an explanation and the list of the changes of a plan, which the files of this folder share.
 * Each file fills one member of Explanation, and some add their changes. Callers include explain_plan.h
 * alone.
 */
#ifndef PLANNERS_EXPLAIN_EXPLAIN_PARTS_H
#define PLANNERS_EXPLAIN_EXPLAIN_PARTS_H

#include "planners/explain/explain_plan.h"

/* Makes the plan of change `number` in the arena of its simulation. */
typedef AmStatus ChangedPlan(const Plan **plan, Arena *arena, const void *data, int32_t number,
                             AmError *error);

/* Another plan and where its figures go. */
typedef struct PlannedChange {
    const Plan *plan;  /* NULL: it is made where it is simulated, there may be many and large ones */
    ChangedPlan *make; /* of `data` and `number` */
    const void *data;
    int32_t number;
    ExplainedChange *result;
    AmStatus status; /* of its simulation: anything but that there is no such plan ends everything */
    AmError error;
} PlannedChange;

typedef struct Explainer {
    Arena *arena;
    PlanContext *primary;       /* as read */
    const PlanContext *context; /* of the plan's micro-batches */
    const Plan *plan;
    const json_t *root;
    const Cluster *cluster;
    const ExplainOptions *options;
    struct {
        bool micro_batches, attention;
    } keeps;            /* no change of these */
    uint32_t schedules; /* those that other plans may have, bits by ScheduleKind */
    struct {
        const int32_t *of; /* [count] ascending; NULL: not found yet */
        int32_t count;
    } places; /* of cuts */
    double memory_fraction;
    bool is_report;         /* the memory of all ranks is found, which takes up to 20 s in large modules */
    const StopSignal *stop; /* or NULL; ends the listing and the simulation of changes */
    PlanRanks ranks;
    PlanCosts *costs;
    Simulation *simulation;
    struct {
        PlannedChange *of; /* in the order in which they matter */
        int32_t count, capacity;
        int64_t most_priced; /* none beyond are priced, nor made where they recompute; 0: any number */
    } changes;
    struct {
        json_t **of; /* [count] that changed plans were read from */
        int32_t count, capacity;
    } documents;
    Explanation *result;
    AmError *error;
} Explainer;

/* Returns "file:line", or "". */
const char *explain_source(Arena *arena, const IrInstruction *instruction);
/* Returns the user's name of an operator. */
const char *explain_name(const IrInstruction *instruction);
/* Returns whether two names are equal but for their numbers, as those of repeated layers. */
bool explain_is_same_name(const char *a, const char *b);

/* Fills result->stages (explain_stages.c); cuts, without what moving them would cost, and transfers
 * (explain_cuts.c). */
AmStatus explain_stages(Explainer *self);
AmStatus explain_cuts(Explainer *self);
/* Fills result->loops (explain_loops.c). */
AmStatus explain_loops(Explainer *self);
/* Returns a sharding as in tables of parameters, "[data+model,-]", and its partial axes, " partial(model)";
 * in the arena, NULL without memory. */
const char *explain_sharding(Arena *arena, const Mesh *mesh, SbpState state, int32_t rank);
/* Fills result->collectives (explain_collectives.c). */
AmStatus explain_collectives(Explainer *self);
/* Adds changes: other numbers and schedules (explain_alternatives.c), cuts one unit away, overrides
 * (explain_overrides.c) and decisions (explain_decisions.c) removed. */
AmStatus explain_alternatives(Explainer *self);
/* Stages that save more values and recompute fewer: at most EXPLAIN_MOST_RECOMPUTED alternatives
 * (explain_recompute.c). */
enum { EXPLAIN_MOST_RECOMPUTED = 12 };
AmStatus explain_recompute(Explainer *self);
/* Adds a row without figures. */
ExplainedAlternative *explain_add_alternative(Explainer *self, const char *what, const char *value);
/* Sets why there is no such plan. */
AmStatus explain_note_reason(const Explainer *self, ExplainedChange *change, const AmError *why);
/* Returns the document with a number of micro-batches, without derived fields and the old prediction; NULL
 * without memory. */
json_t *explain_other_document(const Explainer *self, int32_t micro_batches);
/* Keeps the caller's reference to a document until explain_close(). NULL is a lack of memory. */
AmStatus explain_keep_document(Explainer *self, json_t *root);
AmStatus explain_units(Explainer *self);
AmStatus explain_overrides(Explainer *self);
AmStatus explain_decisions(Explainer *self);
/* Cuts at the nearest of `places`, ascending instructions (explain_cuts.c). */
AmStatus explain_moves(Explainer *self, const int32_t *places, int32_t count);
/* Adds a change; `plan` is in the arena. */
AmStatus explain_add_change(Explainer *self, const Plan *plan, ExplainedChange *result);
/* Adds a change whose plan is made when it is simulated; `data` is in the arena. */
AmStatus explain_add_made(Explainer *self, ChangedPlan *make, const void *data, int32_t number,
                          ExplainedChange *result);

/* Simulates the plan and lists its single changes, those that matter most first: numbers of micro-batches and
 * schedules, then cuts, overrides and decisions, those of the busiest stages first. `explain` prices the
 * first explain_most_changes() of them, and `search` climbs by the same ones (plan_climb.h). */
AmStatus explain_list_changes(Explainer *self);
int32_t explain_most_changes(const Explainer *self);
/* Releases the documents that changed plans refer to. */
void explain_close(Explainer *self);
/* Makes the plan of a change in `arena`, unless it is made already. */
AmStatus explain_make_change(const Plan **plan, const PlannedChange *change, Arena *arena, AmError *error);

/* Fills result->spans (explain_timeline.c). */
AmStatus explain_timeline(Explainer *self);

#endif
