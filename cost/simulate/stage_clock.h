/* The devices of a stage in a simulation: each has streams of its own, or one stands for all if they do the
 * same at the same time. Pieces are simulated step by step. Without observers and variation, a piece of the
 * one device is a precomputed duration, so that time grows with the number of distinct pieces and not with
 * steps times iterations. Runs of operators of several devices are sums of durations. */
#ifndef COST_SIMULATE_STAGE_CLOCK_H
#define COST_SIMULATE_STAGE_CLOCK_H

#include "cost/simulate/simulate.h"
#include "cost/simulate/stage_costs.h"
#include "cost/step/device_streams.h"

/* Receives the events of devices; returns the number of the event, or -1. `start.event` is the
 * event for which it waited. */
typedef struct StageWatch {
    int32_t (*on_step)(void *user, int32_t rank, const ExecutedStep *executed, Moment start, Ticks ticks);
    void *user;
} StageWatch;

/* The effect of a piece on the streams of a device from join to join. */
typedef struct FoldedPiece {
    Ticks ticks;
    StreamTotals totals;
} FoldedPiece;

typedef struct StageClock {
    const StageCosts *costs;
    int32_t first_rank, stream_count;
    DeviceStreams *streams;
    const Ticks **ticks; /* [stream_count][step] */
    Ticks **sums;        /* [stream_count][step + 1] of all steps before, or NULL: step by step */
    int32_t *run_end;    /* [step]: the next one that may wait, communicates, or is in another program */
    bool varies;         /* devices are slow, or steps have jitter */
    FoldedPiece *folded; /* [piece], or NULL: step by step */
    const StageWatch *watch;
    const SimulationOptions *options;
    uint64_t *drawn; /* [stream_count] random numbers so far */
} StageClock;

/* Opens a clock. `watch` may be NULL. Arrays in the arena. */
AmStatus stage_clock_open(StageClock *self, Arena *arena, const StageCosts *costs, int32_t first_rank,
                          const SimulationOptions *options, const StageWatch *watch, AmError *error);

/* Implement the functions of PipelineWorker for this stage. */
void stage_clock_compute(StageClock *self, int32_t piece);
Moment stage_clock_arrive(StageClock *self, int32_t piece);
void stage_clock_wait(StageClock *self, int32_t piece, Moment until);
void stage_clock_rendezvous(StageClock *self, int32_t piece, Moment end, Ticks ticks);

/* Returns the streams of a device of the stage. */
static inline const DeviceStreams *stage_clock_streams(const StageClock *self, int32_t device) {
    return &self->streams[self->stream_count == 1 ? 0 : device];
}

#endif
