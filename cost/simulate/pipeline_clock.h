/* The stages of a pipeline in time.
 *
 * A stage is a list of pieces: computation, and transfers, by which it exchanges a value with another stage
 * in a channel. Spans of pieces repeat as the iterations of a loop. The iterations of joined spans follow one
 * given order, the schedule (GPipe needs none; 1F1B, interleaved and zero-bubble schedules are such orders).
 * A channel without slots is a rendezvous: the transfer starts when the later stage arrives and ends for both
 * together. In a channel with slots the sender continues while a slot is free, values travel on the link
 * between the two stages one after the other, and the receiver waits for them.
 *
 * The worker determines the duration of a piece and the number of devices of a stage: the simulator
 * (simulate.c), or in tests a table of durations. Time: one visit per piece and iteration.
 */
#ifndef COST_SIMULATE_PIPELINE_CLOCK_H
#define COST_SIMULATE_PIPELINE_CLOCK_H

#include "base/arena.h"
#include "base/status.h"
#include "cost/step/moment.h"

typedef struct PipelinePiece {
    int32_t channel; /* -1: the stage computes */
    bool sends;      /* into the channel; else it receives from it */
    Ticks ticks;     /* that the value is under way; of a rendezvous: its duration */
} PipelinePiece;

/* pieces[first, end). Spans are sorted by their first piece, outer ones before those inside. */
typedef struct PipelineSpan {
    int32_t first, end;
    int64_t iterations;
    /* The first one of several that are joined: their iterations, each named by its span; else NULL. All
     * stand side by side and are passed when the order is. */
    const int32_t *order;
    int64_t order_count;
} PipelineSpan;

typedef struct PipelineChannel {
    int32_t sender, receiver; /* stages */
    int32_t slots;            /* 0: a rendezvous */
} PipelineChannel;

typedef struct PipelineStage {
    const PipelinePiece *pieces;
    const PipelineSpan *spans;
    int32_t piece_count, span_count;
} PipelineStage;

/* The work of the stages. `piece` is a number in the stage's pieces. */
typedef struct PipelineWorker {
    /* Computes the piece from where the stage is. */
    void (*compute)(void *user, int32_t stage, int32_t piece);
    /* The latest of the stage's devices that take part in a transfer. */
    Moment (*arrive)(void *user, int32_t stage, int32_t piece);
    /* They wait until then. */
    void (*wait)(void *user, int32_t stage, int32_t piece, Moment until);
    /* Both stages are busy with their rendezvous for `ticks`, up to `end`. */
    void (*rendezvous)(void *user, int32_t stage, int32_t piece, Moment end, Ticks ticks);
    /* A value travels from `start` for `ticks`, to the receiver or in a rendezvous; returns the event.
     * NULL: no observer. */
    int32_t (*travel)(void *user, int32_t channel, int32_t sender_piece, Moment start, Ticks ticks);
    void *user;
} PipelineWorker;

/* Runs all stages to their ends. Scratch memory is taken from the arena and given back. AM_ERROR_INFEASIBLE:
 * the stages wait for one another, each for another transfer. */
AmStatus pipeline_clock_run(Arena *arena, const PipelineStage *stages, int32_t stage_count,
                            const PipelineChannel *channels, int32_t channel_count,
                            const PipelineWorker *worker, AmError *error);

#endif
