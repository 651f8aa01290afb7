/* What the programs of a stage cost: the seconds of each step that they execute, cut into the pieces
 * between which the stage meets others (pipeline_clock.h). Worked out once, whatever happens in time. */
#ifndef COST_STAGE_COSTS_H
#define COST_STAGE_COSTS_H

#include "cost/collective.h"
#include "cost/executed.h"
#include "cost/memory.h"
#include "cost/moment.h"
#include "cost/pipeline_clock.h"
#include "cost/price.h"
#include "propagation/ranks.h"

/* Executed steps [first, end): one transfer, or what is between. */
typedef struct StagePiece {
    int32_t first, end;
    const ProgramTransfer *transfer; /* or NULL */
} StagePiece;

/* One distinct program. */
typedef struct ProgramCosts {
    ExecutedStep *steps; /* the program's own updates are the last one */
    int32_t step_count;
    Ticks *ticks;         /* [cluster type * step_count + step] all times; 0 for collectives and transfers */
    double *turns;        /* [step] of the spans around it, multiplied */
    double *tensor_bytes; /* [step] of collectives, each time */
    MemoryUse memory;
    double flops;
} ProgramCosts;

typedef struct StageCosts {
    const PlanStage *stage;
    const Cluster *cluster;
    int32_t first_rank;
    Program **lowered;      /* [1] or [device], as `programs` */
    ProgramCosts *programs; /* [1] where all devices run the same, else [device] */
    bool is_equal;
    /* Alike for all devices. */
    StagePiece *pieces;
    PipelineSpan *spans;
    int32_t piece_count, span_count;
    int32_t most_collectives; /* in a piece */
    Ticks **collectives;      /* [step][group of the partition, or the only one where the stage is uniform]:
                                 all times; NULL where the step is none */
    bool is_uniform;          /* all devices do the same at the same time */
    CollectivePartition partitions[1 << MESH_MAX_AXES]; /* by axes; of those that are used */
    uint32_t axes_used[1 << MESH_MAX_AXES];
    int32_t axes_count;
} StageCosts;

/* Lowers stage `stage`; everything lives in the arena. */
AmStatus stage_costs_lower(StageCosts *self, Arena *arena, const PlanRanks *ranks, int32_t stage,
                           const Cluster *cluster, AmError *error);
/* Prices what has been lowered. `gradients`: memory_find_gradients() of its module. */
AmStatus stage_costs_price(StageCosts *self, Arena *arena, const uint8_t *gradients, AmError *error);

/* Of a device of the stage. */
static inline const ProgramCosts *stage_costs_of(const StageCosts *self, int32_t device) {
    return &self->programs[self->is_equal ? 0 : device];
}

/* Adds the collectives of a step of the first device, by kind; seconds are those of the slowest groups. */
void stage_costs_add_collectives(const StageCosts *self, CollectivePrice *by_kind);

#endif
