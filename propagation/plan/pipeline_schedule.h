/* Pipeline schedules: the order in which a stage runs the iterations of its passes.
 *
 * S stages, M micro-batches, V chunks of the model on each stage (chunk c of stage s is part c S +
 * s of the model; V is 1 except in the interleaved schedule). F forward, B backward, W the
 * gradients of weights, which are part of B except in zb_h1 and zb_2p.
 *
 *   gpipe              all F, then all B                                     in flight M
 *   1f1b               S - s iterations of F, then B and F alternate (DAPPLE)    min(M, S - s)
 *   interleaved_1f1b   groups of S micro-batches, chunk after chunk; 2 (S - s - 1) + (V - 1) S
 *                      iterations of F before the first pair of F and B (Narayanan et al. 2021)
 *   zb_h1              1f1b with W s iterations after B: W fills the idle time while the pipeline
 *                      drains, and at most as much is kept until W as on stage 0 (Qi et al. 2023)
 *   zb_2p              the handcrafted schedule ZB-H2 of the same paper: 2 (S - s) - 1 iterations of F
 *                      before the first B, and W 2 s iterations after B                   in flight 2 S - 1
 *
 * With equal stages that do not wait for transfers a step takes M (F + B + W) and a bubble. The bubble is (S
 * - 1)(F + B + W) for gpipe and 1f1b, and 1/V of it for interleaved_1f1b if S divides M. For zb_h1 it is (S
 * - 1)(F + max(B - W, 0)) if M is at least S. Under zb_2p a stage that has ended its step begins the next
 * one, before the stages after it end theirs: with F = B = W and M of at least 2 S - 1 no stage waits.
 */
#ifndef PROPAGATION_PLAN_PIPELINE_SCHEDULE_H
#define PROPAGATION_PLAN_PIPELINE_SCHEDULE_H

#include "base/arena.h"
#include "base/status.h"

typedef enum ScheduleKind {
    SCHEDULE_GPIPE,
    SCHEDULE_1F1B,
    SCHEDULE_INTERLEAVED,
    SCHEDULE_ZB_H1,
    SCHEDULE_ZB_2P,
    SCHEDULE_KINDS
} ScheduleKind;
const char *schedule_kind_name(ScheduleKind kind); /* as in plan files: "gpipe", "1f1b", ... */
/* Finds a kind; SCHEDULE_KINDS: no schedule has that name. */
ScheduleKind schedule_kind_find(const char *name);
/* Returns whether W is a pass of its own. */
static inline bool schedule_splits_backward(ScheduleKind kind) {
    return kind == SCHEDULE_ZB_H1 || kind == SCHEDULE_ZB_2P;
}

typedef enum SchedulePass {
    SCHEDULE_FORWARD,
    SCHEDULE_BACKWARD,
    SCHEDULE_WEIGHTS,
    SCHEDULE_PASSES
} SchedulePass;

/* One iteration of one pass: a chunk of the stage processes a micro-batch. */
typedef struct ScheduleIteration {
    SchedulePass pass;
    int32_t chunk, micro_batch;
} ScheduleIteration;

/* A stage of a pipeline, with its chunks. */
typedef struct ScheduledStage {
    ScheduleKind kind;
    int32_t stages, stage; /* their number; this one, from 0 */
    int32_t micro_batches, chunks;
} ScheduledStage;

/* Lists the iterations of a stage in their order, in the arena: micro_batches x chunks of each pass of the
 * schedule. If all stages follow these orders and sends do not block, no stage deadlocks. AM_ERROR_USAGE: a
 * number below 1, an invalid stage, or chunks that the schedule does not support. */
AmStatus schedule_iterations(ScheduleIteration **iterations, int32_t *count, Arena *arena,
                             const ScheduledStage *of, AmError *error);

/* Counts the micro-batches that chunk `chunk` of a stage has begun and whose B has not ended, at most. */
AmStatus schedule_kept_of_chunk(int32_t *kept, Arena *arena, const ScheduledStage *of, int32_t chunk,
                                AmError *error);

/* Returns the micro-batches that a stage of one chunk has begun and not ended: between F and B under 1f1b,
 * between F and the end of W, and between B and the end of W. */
static inline int32_t schedule_kept(int32_t micro_batches, int32_t most) {
    return micro_batches < most ? micro_batches : most;
}
static inline int32_t schedule_kept_for_backward(int32_t stages, int32_t stage, int32_t micro_batches) {
    return schedule_kept(micro_batches, stages - stage);
}
static inline int32_t schedule_kept_for_weights(ScheduleKind kind, int32_t stages, int32_t micro_batches) {
    return schedule_kept(micro_batches, kind == SCHEDULE_ZB_2P ? 2 * stages - 1 : stages);
}
static inline int32_t schedule_kept_from_backward(ScheduleKind kind, int32_t stage, int32_t micro_batches) {
    return schedule_kept(micro_batches, kind == SCHEDULE_ZB_2P ? 2 * stage + 1 : stage + 1);
}

#endif
