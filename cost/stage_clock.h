/* The devices of one stage in a simulation: a lane each, or one for all where they do the same at the
 * same time. Pieces are computed step by step, or, where nobody watches and nothing varies, as one number
 * that was worked out once: time then grows with the distinct pieces and not with steps times turns. */
#ifndef COST_STAGE_CLOCK_H
#define COST_STAGE_CLOCK_H

#include "cost/lane.h"
#include "cost/simulate.h"
#include "cost/stage_costs.h"

/* Is told what devices do; returns the number of the event, or -1. `start.event` is what it waited for. */
typedef struct StageWatch {
    int32_t (*on_step)(void *user, int32_t rank, const ExecutedStep *executed, Moment start, Ticks ticks);
    void *user;
} StageWatch;

/* What a piece takes of a lane from a join to a join. */
typedef struct FoldedPiece {
    Ticks ticks;
    LaneTotals totals;
} FoldedPiece;

typedef struct StageClock {
    const StageCosts *costs;
    int32_t first_rank, lane_count;
    Lane *lanes;
    FoldedPiece *folded; /* [piece], or NULL: step by step */
    const StageWatch *watch;
    const SimulationOptions *options;
    uint64_t *drawn; /* [lane] random numbers so far */
} StageClock;

/* `watch` may be NULL. Arrays in the arena. */
AmStatus stage_clock_open(StageClock *self, Arena *arena, const StageCosts *costs, int32_t first_rank,
                          const SimulationOptions *options, const StageWatch *watch, AmError *error);

/* The functions of PipelineWorker for this stage. */
void stage_clock_compute(StageClock *self, int32_t piece);
Moment stage_clock_arrive(StageClock *self, int32_t piece);
void stage_clock_wait(StageClock *self, int32_t piece, Moment until);
void stage_clock_meet(StageClock *self, int32_t piece, Moment end, Ticks ticks);

/* The lane of a device of the stage. */
static inline const Lane *stage_clock_lane(const StageClock *self, int32_t device) {
    return &self->lanes[self->lane_count == 1 ? 0 : device];
}

#endif
