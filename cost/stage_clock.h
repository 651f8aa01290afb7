/* One stage of a plan in a simulation: its steps, their costs, and the clocks of
 * its devices, which advance step by step up to where the stage meets another. */
#ifndef COST_STAGE_CLOCK_H
#define COST_STAGE_CLOCK_H

#include "cost/exchange.h"
#include "cost/executed.h"
#include "cost/simulate.h"
#include "propagation/ranks.h"

/* One distinct program: seconds of its steps on each device type. */
typedef struct LoweredCosts {
    ExecutedStep *steps;
    int32_t step_count;
    ExecutedSpan *spans;
    int32_t span_count;
    double *seconds; /* [cluster type * (step_count + 1) + step]: all times; the last entry is the updates */
    double *tensor_bytes;     /* [step] of collectives, each time */
    ExchangePrice *exchanges; /* [step] of transfers, each time; filled when first met */
    MemoryUse memory;
    double flops;
} LoweredCosts;

/* A span that is being run, and those that are joined with it. */
typedef struct SpanTurn {
    int32_t span;
    int64_t done[3]; /* turns of the span, of the joined ones */
    int32_t runs;    /* whose turn it is */
} SpanTurn;

typedef struct StageClock {
    Arena *arena;
    const Cluster *cluster;
    const PlanStage *stage;
    int32_t first_rank;
    LoweredCosts *costs;      /* [1] or [device] */
    bool is_equal;            /* one program for all */
    double *clock;            /* [device] */
    SimulatedDevice *devices; /* [device], the simulation's */
    CollectivePrice *collectives;
    CollectivePartition partitions[1 << MESH_MAX_AXES];
    int32_t at;                         /* the next step */
    const SimulationObserver *observer; /* or NULL */
    SpanTurn *turns;
    int32_t turn_count, next_span;
} StageClock;

/* Lowers and prices the programs of stage `stage` of a plan. `simulation` has room for its devices,
 * whose first is rank first_rank; arrays live in the arena. */
AmStatus stage_clock_open(StageClock *self, Arena *arena, const PlanRanks *ranks, int32_t stage,
                          const Cluster *cluster, Simulation *simulation, AmError *error);

/* Runs until a transfer is next (`*transfer`), or to the end and the updates (NULL). */
AmStatus stage_clock_advance(StageClock *self, const ProgramTransfer **transfer, AmError *error);
/* After the transfer: the step is done. */
void stage_clock_pass(StageClock *self);

/* Tells the observer, if there is one, what a rank of the stage does with step `at`. */
void stage_clock_tell(const StageClock *self, int32_t rank, double start, double end);

/* Of a device of the stage. */
static inline const LoweredCosts *stage_clock_costs(const StageClock *self, int32_t device) {
    return &self->costs[self->is_equal ? 0 : device];
}

#endif
