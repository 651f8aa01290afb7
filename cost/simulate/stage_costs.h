/* Costs of a stage's programs: the seconds of every event in its list (stage_events.h), computed
 * once and independent of the simulated time. */
#ifndef COST_SIMULATE_STAGE_COSTS_H
#define COST_SIMULATE_STAGE_COSTS_H

#include "cost/collective/collective.h"
#include "cost/simulate/simulate.h"
#include "cost/simulate/stage_events.h"
#include "cost/step/moment.h"
#include "cost/step/price.h"
#include "lowering/spmd/ranks.h"

typedef struct StageCosts {
    const PlanStage *stage;
    const Cluster *cluster;
    int32_t first_rank;
    int32_t program_count;
    int32_t *program_of;     /* [device]: number of its program */
    Program **lowered;       /* [program] of its first device; may be kept for program 0 alone */
    ProgramEvents *programs; /* [program] */
    StagePieces of_all;      /* alike for all devices */
    Ticks **ticks;       /* [program][cluster type * step_count + step] all times; 0 for transfers, and for
                            collectives unless the stage is uniform */
    Ticks **collectives; /* [step][group of the partition, or the only one if the stage is uniform]: all
                            times; NULL if the step is no collective */
    double busy;         /* of the devices whose programs came first: a lower bound of a step in seconds */
    bool is_uniform;     /* all devices do the same at the same time */
    CollectivePartition partitions[1 << MESH_MAX_AXES]; /* by axes; of those that are used */
    uint32_t axes_used[1 << MESH_MAX_AXES];
    int32_t axes_count;
} StageCosts;

/* Lowers stage `stage`, lists its events and prices its operators; everything lives in the arena.
 * `gradients`: memory_find_gradients() of the module. If the options have neither an observer nor details,
 * only program 0 is kept. A stage with several programs is left unfinished if `busy` exceeds most_seconds. */
AmStatus stage_costs_lower(StageCosts *self, Arena *arena, const PlanRanks *ranks, int32_t stage,
                           const Cluster *cluster, const uint8_t *gradients, const SimulationOptions *options,
                           AmError *error);
/* Prices the collectives of a finished stage, and the waiting for the host. */
AmStatus stage_costs_price(StageCosts *self, Arena *arena, AmError *error);
/* Returns the seconds for which a device computes, or takes part in collectives if all devices do the same,
 * whichever is longer: a lower bound of a step. */
double stage_costs_busy(const StageCosts *self, int32_t device);

/* Returns the events of a device of the stage. */
static inline const ProgramEvents *stage_costs_of(const StageCosts *self, int32_t device) {
    return &self->programs[self->program_of[device]];
}
/* Returns the ticks [step] of a device of the stage. */
static inline const Ticks *stage_costs_ticks(const StageCosts *self, int32_t device) {
    int32_t program = self->program_of[device];
    const ClusterDeviceType *type = cluster_device_type(self->cluster, self->stage->devices[device]);
    return self->ticks[program] +
           (size_t)(type - self->cluster->types) * (size_t)self->programs[program].step_count;
}

/* Adds the collectives of a step of the first device, by kind; seconds are those of the slowest groups. */
void stage_costs_add_collectives(const StageCosts *self, CollectivePrice *by_kind);

#endif
